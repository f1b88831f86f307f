"""Operations of one moment on a store: few requests, and nobody's failure but one's own."""

import asyncio
import copy
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx2
import msgspec
import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from stateroom import Client, GatewayUnavailable, InvalidRequest, LimitExceeded, StateroomError, Timeouts, acting_for
from stateroom.langgraph import StateroomStore
from stateroom.testing.stores import CharacterEmbeddings

PATH = ("memories", "ada")


class Wire:
    """What travels on all connections of a store: each request, how many are under way, and what is lost."""

    def __init__(self):
        self.requests = []
        self.closed = 0
        self.lost = 0  # answers to come that nobody gets
        self.opened = asyncio.Event()
        self.opened.set()
        self.reached = asyncio.Event()

    @property
    def bodies(self):
        return [msgspec.msgpack.decode(each.content) for each in self.requests]

    def note(self, request):
        self.requests.append(request)

    def lose(self):
        self.lost -= 1
        return self.lost >= 0


class OnLoop(httpx2.AsyncBaseTransport):
    def __init__(self, wire):
        self.wire, self.inner = wire, httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request):
        await request.aread()
        self.wire.note(request)
        self.wire.reached.set()
        await self.wire.opened.wait()
        answer = await self.inner.handle_async_request(request)
        if self.wire.lose():
            await answer.aclose()
            raise httpx2.ReadError("the connection broke")
        return answer

    async def aclose(self):
        self.wire.closed += 1
        await self.inner.aclose()


class Blocking(httpx2.BaseTransport):
    def __init__(self, wire):
        self.wire, self.inner = wire, httpx2.HTTPTransport()

    def handle_request(self, request):
        request.read()
        self.wire.note(request)
        answer = self.inner.handle_request(request)
        if self.wire.lose():
            answer.close()
            raise httpx2.ReadError("the connection broke")
        return answer

    def close(self):
        self.wire.closed += 1
        self.inner.close()


class Model(CharacterEmbeddings):
    """Notes what it is asked, and refuses one text."""

    def __init__(self):
        self.asked, self.queries = [], []

    def embed_documents(self, texts):
        self.asked.append([*texts])
        if "unspeakable" in texts:
            raise ValueError("this text has no vector")
        return super().embed_documents(texts)

    def embed_query(self, text):
        self.queries.append(text)
        if text == "unspeakable":
            raise ValueError("this text has no vector")
        return super().embed_query(text)


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def model():
    return Model()


@pytest.fixture
async def store(gateway_env, subject, wire):
    async with make(gateway_env, wire, subject=subject) as opened:
        yield opened


@pytest.fixture
async def indexed(gateway_env, subject, wire, model):
    index = {"dims": 48, "embed": model, "fields": ["text"]}
    async with make(gateway_env, wire, subject=subject, index=index) as opened:
        yield opened


def make(gateway_env, wire, **options):
    return StateroomStore(
        gateway_env.url,
        gateway_env.api_key,
        transport=partial(Blocking, wire),
        async_transport=partial(OnLoop, wire),
        **options,
    )


async def settled(*calls):
    return await asyncio.gather(*calls, return_exceptions=True)


class TestOneMoment:
    async def test_operations_of_all_kinds_are_one_request(self, store, wire):
        await store.aput(PATH, "k", {"n": 1})
        wire.requests.clear()
        results = await asyncio.gather(
            *(store.aput(PATH, f"k{number}", {"n": number}) for number in range(20)),
            *(store.aget(PATH, "k") for _ in range(20)),
            *(store.asearch(PATH) for _ in range(20)),
            *(store.alist_namespaces() for _ in range(20)),
        )
        assert len(wire.requests) == 1
        assert [each.value for each in results[20:40]] == [{"n": 1}] * 20
        assert [[each.key for each in found] for found in results[40:60]] == [["k"]] * 20
        assert results[60:] == [[PATH]] * 20

    async def test_no_more_than_a_hundred_are_one_request(self, store, wire):
        await asyncio.gather(*(store.aput(PATH, f"k{number}", {}) for number in range(250)))
        assert [len(each["writes"]) for each in wire.bodies] == [100, 100, 50]
        assert len(await store.asearch(PATH, limit=1000)) == 250

    async def test_large_values_travel_in_several_requests(self, store, wire):
        text = "x" * 250_000
        await asyncio.gather(*(store.aput(PATH, f"k{number}", {"text": text}) for number in range(20)))
        assert len(wire.requests) == 2
        assert all(len(each.content) < 4.5 * 2**20 for each in wire.requests)

    async def test_a_blocking_batch_is_one_request(self, store, wire):
        ops = [PutOp(PATH, f"k{number}", {"n": number}) for number in range(50)]
        await asyncio.to_thread(store.batch, [*ops, *(GetOp(PATH, f"k{number}") for number in range(50))])
        assert len(wire.requests) == 1

    async def test_reads_of_a_call_see_what_was_before_its_writes_on_every_page(self, store):
        await store.abatch([PutOp(PATH, f"k{number}", {}) for number in range(1_005)])
        ops = [
            *(PutOp(PATH, f"k{number}", None) for number in range(100)),  # on the last page are some of these
            SearchOp(PATH, limit=2_000),
            PutOp((*PATH, "new"), "k", {}),
            ListNamespacesOp((MatchCondition("prefix", PATH), MatchCondition("prefix", PATH[:1]))),
        ]
        results = await store.abatch(ops)
        assert len(results[100]) == 1_005
        assert results[102] == [PATH]
        assert len(await store.asearch(PATH, limit=2_000)) == 906

    async def test_writes_do_not_wait_for_what_others_read(self, store, wire):
        await store.abatch([PutOp(PATH, f"k{number}", {}) for number in range(1_005)])
        wire.requests.clear()
        found, _ = await asyncio.gather(store.asearch(PATH, limit=2_000), store.aput(PATH, "other", {}))
        assert len(found) >= 1_005
        assert [len(each.get("writes", [])) for each in wire.bodies] == [1, 0]


class TestOneFails:
    async def test_only_what_the_gateway_refuses_fails(self, store):
        await store.aput(PATH, "k", {"n": 1})
        got, large, label, filtered, put, odd, found, deep = await settled(
            store.aget(PATH, "k"),
            store.aput(PATH, "large", {"text": "x" * 300_000}),
            store.aput(("x" * 300,), "k", {}),
            store.asearch(PATH, filter={"n": {"$gt": [1]}}),
            store.aput(PATH, "other", {"n": 2}),
            store.aput(PATH, "odd", {"n": object()}),
            store.asearch(PATH, filter={"n": 1}),
            store.aget(("x",) * 20, "k"),
        )
        assert got.value == {"n": 1}
        assert isinstance(large, LimitExceeded)
        assert isinstance(label, StateroomError)
        assert isinstance(filtered, InvalidRequest)
        assert isinstance(odd, InvalidRequest)
        assert isinstance(deep, StateroomError)
        assert put is None
        assert [each.key for each in found] == ["k"]
        assert sorted(each.key for each in await store.asearch(PATH)) == ["k", "other"]

    async def test_what_needs_no_gateway_to_be_refused_is_not_sent(self, store, wire):
        unknown, negative, nothing = await settled(
            store.asearch(PATH, filter={"n": {"$like": 1}}),
            store.asearch(PATH, limit=-1),
            store.abatch(["no operation"]),
        )
        assert isinstance(unknown, ValueError)
        assert isinstance(negative, InvalidRequest)
        assert isinstance(nothing, ValueError)
        assert wire.requests == []

    @pytest.mark.parametrize("wanted", [{"$and": "text"}, {"$or": [1]}, {1: 2}, {"n": {"$and": [{}]}}], ids=str)
    async def test_what_is_no_filter_is_refused_alone(self, store, wanted):
        refused, put = await settled(store.asearch(PATH, filter=wanted), store.aput(PATH, "k", {}))
        assert isinstance(refused, InvalidRequest | ValueError)
        assert put is None

    async def test_a_batch_raises_its_first_failure_and_the_others_are_carried_out(self, store):
        ops = [PutOp(PATH, "one", {}), PutOp(PATH, "large", {"text": "x" * 300_000}), PutOp(PATH, "two", {})]
        with pytest.raises(LimitExceeded):
            await store.abatch(ops)
        with pytest.raises(LimitExceeded):
            await asyncio.to_thread(store.batch, [*ops[1:], PutOp(PATH, "three", {})])
        assert sorted(each.key for each in await store.asearch(PATH)) == ["one", "three", "two"]

    async def test_a_gateway_that_is_not_there_fails_all_of_them(self, gateway_env, wire, subject):
        wire.lost = 1_000
        async with make(gateway_env, wire, subject=subject, timeouts=Timeouts(total_seconds=0.5)) as store:
            found = await settled(store.aget(PATH, "k"), store.aput(PATH, "k", {}))
        assert [type(each) for each in found] == [GatewayUnavailable] * 2


class TestEmbedding:
    async def test_the_puts_of_a_moment_are_one_call_of_the_model_and_each_query_is_asked_once(self, indexed, model):
        await asyncio.gather(*(indexed.aput(PATH, text, {"text": text}) for text in ("one", "two", "three")))
        assert model.asked == [["one", "two", "three"]]
        found = await asyncio.gather(*(indexed.asearch(PATH, query=text, limit=1) for text in ("one", "two", "one")))
        assert [each[0].key for each in found] == ["one", "two", "one"]
        assert sorted(model.queries) == ["one", "two"]

    async def test_a_text_that_the_model_refuses_fails_its_own_operation(self, indexed, wire):
        put, bad, got, searched, found = await settled(
            indexed.aput(PATH, "k", {"text": "speakable"}),
            indexed.aput(PATH, "bad", {"text": "unspeakable"}),
            indexed.aget(PATH, "k"),
            indexed.asearch(PATH, query="unspeakable"),
            indexed.asearch(PATH, query="speakable"),
        )
        assert (put, got, found) == (None, None, [])
        assert isinstance(bad, ValueError)
        assert isinstance(searched, ValueError)
        assert len(wire.requests) == 1
        assert [each.key for each in await indexed.asearch(PATH)] == ["k"]

    async def test_the_blocking_methods_do_the_same(self, indexed):
        put, bad = PutOp(PATH, "k", {"text": "speakable"}), PutOp(PATH, "bad", {"text": "unspeakable"})
        with pytest.raises(ValueError, match="no vector"):
            await asyncio.to_thread(indexed.batch, [bad, put, SearchOp(PATH, query="unspeakable")])
        found = await asyncio.to_thread(indexed.search, PATH, query="speakable")
        assert [each.key for each in found] == ["k"]

    @pytest.mark.parametrize("made", [[], [[1.0] * 48] * 3, [[1.0] * 3]], ids=["too few", "too many", "too short"])
    async def test_a_model_that_makes_other_vectors_is_told_so(self, gateway_env, wire, subject, made):
        index = {"dims": 48, "embed": lambda texts: made, "fields": ["text"]}
        async with make(gateway_env, wire, subject=subject, index=index) as store:
            put, got = await settled(store.aput(PATH, "k", {"text": "one"}), store.aget(PATH, "k"))
            blocking = PutOp(PATH, "k", {"text": "one"})
            with pytest.raises(InvalidRequest, match="the model made"):
                await asyncio.to_thread(store.batch, [blocking])
        assert isinstance(put, InvalidRequest)
        assert got is None


class TestCancelling:
    async def test_who_is_cancelled_before_the_request_does_not_end_the_others(self, store):
        gone, stays = asyncio.ensure_future(store.aput(PATH, "gone", {})), asyncio.ensure_future(store.aget(PATH, "k"))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays is None
        assert gone.cancelled()

    async def test_who_is_cancelled_while_it_is_sent_does_not_end_the_others(self, store, wire):
        wire.opened.clear()
        gone, stays = asyncio.ensure_future(store.aget(PATH, "k")), asyncio.ensure_future(store.aput(PATH, "k", {}))
        await wire.reached.wait()
        gone.cancel()
        wire.opened.set()
        assert await stays is None
        assert gone.cancelled()
        assert [each.key for each in await store.asearch(PATH)] == ["k"]

    async def test_a_call_that_takes_too_long_can_be_given_up(self, store, wire):
        wire.opened.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.aput(PATH, "k", {"n": 1}), 0.01)
        wire.opened.set()
        await store.aput(PATH, "k", {"n": 2})
        assert len(await store.asearch(PATH)) == 1


class TestWhoAsks:
    async def test_subjects_of_one_moment_are_kept_apart(self, gateway_env, wire, subject):
        async def put_and_find(name):
            with acting_for(f"{subject}-{name}"):
                await store.aput(PATH, name, {"of": name})
                return [each.value["of"] for each in await store.asearch(PATH)]

        names = [f"n{number}" for number in range(5)]
        async with make(gateway_env, wire) as store:
            assert await asyncio.gather(*map(put_and_find, names)) == [[name] for name in names]
        asked = Counter(each.headers["Stateroom-Subject"] for each in wire.requests)
        assert asked == {f"{subject}-{name}": 2 for name in names}

    async def test_blocking_callers_of_several_threads_are_kept_apart(self, gateway_env, wire, subject):
        def put_and_find(name):
            with acting_for(f"{subject}-{name}"):
                store.put(PATH, name, {"of": name})
                return [each.value["of"] for each in store.search(PATH)]

        names = [f"n{number}" for number in range(5)]
        with make(gateway_env, wire) as store, ThreadPoolExecutor(5) as workers:
            found = await asyncio.gather(
                *(asyncio.get_running_loop().run_in_executor(workers, put_and_find, name) for name in names)
            )
        assert found == [[name] for name in names]

    async def test_event_loops_of_several_threads_share_a_store(self, gateway_env, wire, subject):
        both = threading.Barrier(3)

        async def on_a_loop(name):
            await asyncio.gather(*(store.aput(PATH, f"{name}-{number}", {}) for number in range(10)))
            both.wait(30)
            return len(await store.asearch(PATH, limit=100))  # connections are closed with their loop

        def blocking(name):
            for number in range(10):
                store.put(PATH, f"{name}-{number}", {})
            both.wait(30)
            return len(store.search(PATH, limit=100))

        wire.opened = Always()  # an event belongs to one loop
        with make(gateway_env, wire, subject=subject) as store, ThreadPoolExecutor(3) as workers:
            running = asyncio.get_running_loop().run_in_executor
            found = await asyncio.gather(
                running(workers, lambda: asyncio.run(on_a_loop("one"))),
                running(workers, lambda: asyncio.run(on_a_loop("two"))),
                running(workers, blocking, "three"),
            )
        assert found == [30] * 3


class Always:
    """An event that has happened, on any event loop."""

    async def wait(self):
        return True


class TestLife:
    async def test_a_deep_copy_shares_connections(self, store, wire):
        copied = copy.deepcopy({"store": store})["store"]
        await asyncio.gather(store.aput(PATH, "one", {}), copied.aput(PATH, "two", {}))
        assert len(wire.requests) == 1
        assert len(await copied.asearch(PATH)) == 2

    async def test_what_is_closed_opens_again_when_it_is_asked(self, store, wire):
        await store.aput(PATH, "k", {})
        await asyncio.to_thread(store.get, PATH, "k")
        await store.aclose()
        assert wire.closed == 2
        assert (await store.aget(PATH, "k")).key == "k"
        assert (await asyncio.to_thread(store.get, PATH, "k")).key == "k"
        store.close()
        assert wire.closed == 3

    async def test_closing_twice_or_before_anything_was_asked_is_no_matter(self, gateway_env, wire, subject):
        opened = make(gateway_env, wire, subject=subject)
        opened.close()
        await opened.aclose()
        await opened.aclose()
        assert wire.closed == 0


class TestLostAnswers:
    async def test_a_write_whose_answer_was_lost_is_done_once(self, store, wire, gateway_env, subject):
        wire.lost = 1
        await asyncio.gather(*(store.aput(PATH, f"k{number}", {"n": number}) for number in range(3)))
        first, second = wire.requests
        assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
        assert first.content == second.content
        with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
            revisions = [client.items.get(PATH, f"k{number}").revision for number in range(3)]
            written = client.items.put(PATH, "next", {})
            assert sorted([*revisions, written.revision]) == [*range(min(revisions), min(revisions) + 4)]

    async def test_a_blocking_write_likewise(self, store, wire, gateway_env, subject):
        wire.lost = 1
        await asyncio.to_thread(store.batch, [PutOp(PATH, "k", {"n": 1}), PutOp(PATH, "other", None)])
        assert len({each.headers["Idempotency-Key"] for each in wire.requests}) == 1 < len(wire.requests)
        with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
            assert client.items.put(PATH, "next", {}).revision == client.items.get(PATH, "k").revision + 1

    async def test_a_read_whose_answer_was_lost_is_asked_again(self, store, wire):
        await store.aput(PATH, "k", {"n": 1})
        wire.lost = 1
        got, found = await asyncio.gather(store.aget(PATH, "k"), store.asearch(PATH))
        assert (got.value, [each.key for each in found]) == ({"n": 1}, ["k"])
