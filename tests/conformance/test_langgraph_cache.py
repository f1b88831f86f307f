"""LangGraph's claims about its caches, and ours: a node runs once for equal input, and the cache never fails a run."""

import asyncio
import copy
import logging
import operator
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict
from uuid import uuid4

import asyncpg
import httpx2
import msgspec
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, Send

from stateroom import Client, Timeouts, acting_for
from stateroom.errors import GatewayUnavailable, IntegrityFailure, LegalHold, PermissionDenied, SubjectRequired
from stateroom.langgraph import StateroomCache
from tests.support.gateway import new_tenant

KEY = (("graph", "node"), "input")


@pytest.fixture
async def cache(gateway_env, subject):
    async with StateroomCache(gateway_env.url, gateway_env.api_key, subject=subject) as made:
        yield made


@pytest.fixture
async def another(gateway_env, subject):
    """Makes caches of the same subject, as another process would."""
    opened = []

    def make(**options):
        made = StateroomCache(gateway_env.url, gateway_env.api_key, **{"subject": subject} | options)
        opened.append(made)
        return made

    yield make
    for made in opened:
        await made.aclose()


@pytest.fixture
def items(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        yield client.items


@pytest.fixture
async def rows(gateway_env, subject):
    """Changes the subject's rows of items behind the gateway's back."""
    connection = await asyncpg.connect(gateway_env.database_dsn)

    async def change(setting, where="true"):
        change = f"UPDATE stateroom.items SET {setting} WHERE subject_id = $1 AND {where}"  # noqa: S608  constants of this page
        done = await connection.execute(change, subject)
        return int(done.split()[-1])

    yield change
    await connection.close()


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.INFO, "stateroom.langgraph")

    def said():
        return [each.getMessage() for each in caplog.records if each.name == "stateroom.langgraph"]

    return said


OVER = "expires_at = now() - interval '1 second'"
DAMAGED = "envelope = set_byte(envelope, length(envelope) - 1, get_byte(envelope, length(envelope) - 1) # 1)"


# --- what LangGraph's own caches are tested for ---------------------------------------------------------------------


@pytest.fixture(params=["stateroom", "in memory"])
def any_cache(request):
    return request.getfixturevalue("cache") if request.param == "stateroom" else InMemoryCache()


def test_what_is_set_is_got(any_cache):
    keys = [(("test", "ns"), "one"), (("test", "ns"), "two"), (("test", "other"), "one")]
    any_cache.set({key: ({"n": number}, None) for number, key in enumerate(keys)})
    assert any_cache.get(keys) == {key: {"n": number} for number, key in enumerate(keys)}
    assert any_cache.get([keys[1]]) == {keys[1]: {"n": 1}}


async def test_what_is_set_is_got_on_an_event_loop(any_cache):
    await any_cache.aset({KEY: ([["log", ["done"]]], 60)})
    assert await any_cache.aget([KEY]) == {KEY: [["log", ["done"]]]}
    assert any_cache.get([KEY]) == {KEY: [["log", ["done"]]]}
    await any_cache.aclear([KEY[0]])
    assert await any_cache.aget([KEY]) == {}


def test_what_was_never_set_is_absent(any_cache):
    any_cache.set({KEY: (1, None)})
    others = [(("graph", "node"), "another"), (("graph",), "input"), (("graphnode",), "input"), ((), "input")]
    assert any_cache.get(others) == {}
    assert any_cache.get([]) == {}
    any_cache.set({})


def test_the_last_value_wins(any_cache):
    any_cache.set({KEY: ("before", None)})
    any_cache.set({KEY: ("after", None)})
    assert any_cache.get([KEY]) == {KEY: "after"}


def test_a_value_that_is_nothing_is_a_hit(any_cache):
    values = {(("ns",), name): (value, None) for name, value in (("n", None), ("f", False), ("e", []), ("b", b"\x00"))}
    any_cache.set(values)
    assert any_cache.get([*values]) == {key: value for key, (value, _) in values.items()}


def test_what_has_no_time_to_live_is_no_hit(any_cache):
    any_cache.set({KEY: (1, None)})
    any_cache.set({KEY: (2, 0)})
    assert any_cache.get([KEY]) == {}


def test_clearing_removes_exactly_the_namespaces_named(any_cache):
    keys = [(namespace, "k") for namespace in (("a",), ("a", "b"), ("b",))]
    any_cache.set(dict.fromkeys(keys, (1, None)))
    any_cache.clear([("a",), ("nothing",)])
    assert [*any_cache.get(keys)] == keys[1:]
    any_cache.clear([])
    assert [*any_cache.get(keys)] == keys[1:]
    any_cache.clear()
    assert any_cache.get(keys) == {}


def test_what_tasks_write_comes_back_as_it_was(any_cache):
    writes = deque([["messages", [HumanMessage("hello", id="1"), AIMessage("hi", id="2")]], ["n", [1, {2, 3}]]])
    any_cache.set({KEY: (writes, None)})
    assert any_cache.get([KEY]) == {KEY: writes}


# --- how entries are kept -------------------------------------------------------------------------------------------


async def test_an_entry_is_over_when_its_time_is_and_reading_does_not_lengthen_it(cache, items, rows):
    cache.set({KEY: (1, 60), (("ns",), "k"): (2, None), (("ns",), "long"): (3, 10**9), (("ns",), "f"): (4, 0.5)})
    cache.get([KEY])
    kept = [*items.search(("~cache",), refresh=False)]
    assert sorted(each.ttl_seconds for each in kept) == [1, 60, 7 * 86_400, 30 * 86_400]
    assert all((each.expires_at - each.updated_at).total_seconds() == each.ttl_seconds for each in kept)
    await rows(OVER, "ttl_seconds = 60")
    assert cache.get([KEY]) == {}
    assert cache.get([(("ns",), "k")]) == {(("ns",), "k"): 2}


def test_an_entry_lives_as_long_as_the_cache_says_where_its_policy_does_not(another, items):
    another(ttl_seconds=90).set({KEY: (1, None)})
    (kept,) = items.search(("~cache",))
    assert kept.ttl_seconds == 90
    for refused in (0, -1, 31 * 86_400):
        with pytest.raises(ValueError, match="ttl_seconds"):
            another(ttl_seconds=refused)


def test_names_of_any_length_and_characters_are_names(cache, items):
    namespaces = [(), ("",), ("", ""), ("a", ""), ("a.b",), ("x" * 1000, "\x00"), ("\ud800",), ("ab", "c"), ("a", "bc")]
    pairs = {(namespace, key): repr((namespace, key)) for namespace in namespaces for key in ("", "k" * 1000, "\udfff")}
    cache.set({full_key: (value, None) for full_key, value in pairs.items()})
    assert cache.get([*pairs]) == pairs
    for each in items.search(("~cache",)):
        assert [len(label) for label in each.path] == [6, 64, 64]
        assert len(each.key) == 64


def test_names_say_nothing_of_what_they_are_of(cache, items):
    cache.set({(("secret_module",), "secret key"): (1, None)})
    (kept,) = items.search(("~cache",))
    assert "secret" not in repr(kept)


class Counting(httpx2.HTTPTransport):
    """Sends as any transport does, and notes what."""

    def __init__(self):
        super().__init__()
        self.sent = []

    def handle_request(self, request):
        self.sent.append(f"{request.method} {request.url.path}")
        return super().handle_request(request)


def test_250_keys_are_three_requests(another):
    counting = Counting()
    cache = another(transport=lambda: counting)
    pairs = {((f"ns-{number % 7}",), f"k{number}"): (number, None) for number in range(250)}
    cache.set(pairs)
    assert counting.sent == ["POST /v1/items:batch"] * 3
    counting.sent.clear()
    asked = [*pairs, *pairs]  # twice is once
    assert cache.get(asked) == {key: value for key, (value, _) in pairs.items()}
    assert counting.sent == ["POST /v1/items:batch"] * 3
    cache.clear()
    assert cache.get([*pairs]) == {}


def test_entries_of_many_megabytes_are_kept_and_found(another):
    counting = Counting()
    cache = another(transport=lambda: counting)
    pairs = {(("big",), f"k{number}"): (bytes([number]) * 250_000, None) for number in range(100)}
    cache.set(pairs)
    assert 5 < len(counting.sent) < 10
    assert cache.get([*pairs]) == {key: value for key, (value, _) in pairs.items()}
    cache.clear([("big",)])
    assert cache.get([*pairs]) == {}


def test_a_value_over_256_kib_is_not_kept_and_no_error(cache, items, warnings):
    cache.set({KEY: (b"x" * 200_000, None), (("ns",), "k"): (1, None)})
    cache.set({KEY: (b"x" * 256 * 1024, None), (("ns",), "l"): (2, None)})
    assert cache.get([KEY, (("ns",), "k"), (("ns",), "l")]) == {(("ns",), "k"): 1, (("ns",), "l"): 2}
    cache.set({KEY: (b"x" * 256 * 1024, None)})
    (said,) = warnings()
    assert "an entry is larger than 262144 bytes" in said
    largest = b"x" * (256 * 1024 - len(msgspec.msgpack.encode({"encoding": "bytes", "data": b"x" * 65536})) + 65536)
    cache.set({KEY: (largest, None)})
    assert cache.get([KEY]) == {KEY: largest}


def test_two_subjects_never_share(another, cache, gateway_env):
    cache.set({KEY: ("ours", None)})
    stranger = f"user-{uuid4()}"
    assert another(subject=stranger).get([KEY]) == {}
    another(subject=stranger).set({KEY: ("theirs", None)})
    assert cache.get([KEY]) == {KEY: "ours"}
    tenant = new_tenant(gateway_env)
    with StateroomCache(tenant.url, tenant.api_key, subject="~shared") as elsewhere:
        elsewhere.set({KEY: ("all of a tenant's", None)})
        assert elsewhere.get([KEY]) == {KEY: "all of a tenant's"}
    with StateroomCache(tenant.url, tenant.api_key) as acting:
        with acting_for("ada"):
            assert acting.get([KEY]) == {}
        with acting_for("~shared"):
            assert acting.get([KEY]) == {KEY: "all of a tenant's"}
        with pytest.raises(SubjectRequired):
            acting.get([KEY])
    cache.clear()
    assert another(subject=stranger).get([KEY]) == {KEY: "theirs"}


def test_another_version_has_other_entries(another, items):
    before, after = another(version="1"), another(version="2")
    before.set({KEY: ("before", None)})
    assert another().get([KEY]) == after.get([KEY]) == {}
    after.set({KEY: ("after", None)})
    after.clear()
    assert (before.get([KEY]), after.get([KEY])) == ({KEY: "before"}, {})


def test_entries_under_a_share_are_found_with_it_only(another):
    ours = another(client_share=b"s" * 32)
    ours.set({KEY: (1, None)})
    assert another().get([KEY]) == another(client_share=b"t" * 32).get([KEY]) == {}
    assert ours.get([KEY]) == {KEY: 1}


def test_what_only_has_the_name_of_a_subject_to_act_for_is_configured_by_the_environment(
    gateway_env, subject, monkeypatch
):
    monkeypatch.setenv("STATEROOM_URL", gateway_env.url)
    monkeypatch.setenv("STATEROOM_API_KEY", gateway_env.api_key)
    with StateroomCache.from_env(subject=subject) as cache:
        cache.set({KEY: (1, None)})
        assert cache.get([KEY]) == {KEY: 1}


def test_several_loops_and_threads_use_one_cache(cache):
    async def turn(number):
        key = (("loops",), f"k{number}")
        await cache.aset({key: (number, None)})
        return await asyncio.gather(*(cache.aget([key]) for _ in range(3)))

    for number in range(3):
        assert asyncio.run(turn(number)) == [{(("loops",), f"k{number}"): number}] * 3
    with ThreadPoolExecutor(4) as pool:
        pool.map(lambda number: cache.set({(("threads",), f"k{number}"): (number, None)}), range(20))
    asked = [(("threads",), f"k{number}") for number in range(20)]
    assert cache.get(asked) == {key: number for number, key in enumerate(asked)}
    cache.close()
    assert cache.get(asked[:1]) == {asked[0]: 0}
    assert copy.deepcopy(cache).get(asked[:1]) == {asked[0]: 0}


# --- what is no hit -------------------------------------------------------------------------------------------------


async def test_a_damaged_entry_is_a_miss_and_hides_no_other(cache, rows, warnings):
    keys = [(("ns",), f"k{number}") for number in range(20)]
    cache.set({key: (number, 100 + number) for number, key in enumerate(keys)})
    assert await rows(DAMAGED, "ttl_seconds IN (103, 117)") == 2
    found = cache.get(keys)
    assert found == {key: number for number, key in enumerate(keys) if number not in {3, 17}}
    assert await cache.aget(keys) == found


async def test_a_damaged_entry_is_replaced_by_what_the_node_makes_anew(cache, rows):
    cache.set({KEY: ("before", None)})
    assert await rows(DAMAGED) == 1
    assert cache.get([KEY]) == {}
    cache.set({KEY: ("after", None)})
    assert cache.get([KEY]) == {KEY: "after"}


async def test_clearing_tells_what_it_could_not_remove(cache, rows):
    cache.set({KEY: ("before", None)})
    assert await rows(DAMAGED) == 1
    with pytest.raises(IntegrityFailure):
        cache.clear()
    with pytest.raises(IntegrityFailure):
        await cache.aclear([KEY[0]])


def test_reading_and_writing_state_is_enough_for_a_cache(gateway_env, warnings):
    tenant = new_tenant(gateway_env)
    bearer = {"Authorization": f"Bearer {tenant.api_key}"}
    asked = {"kind": "service", "permissions": ["state:read", "state:write", "subject:act_as"]}
    made = httpx2.post(f"{tenant.url}/v1/api-keys", json=asked, headers=bearer)
    with StateroomCache(tenant.url, made.json()["api_key"], subject="ada") as cache:
        cache.set({KEY: ("before", None)})
        assert warnings() == []
        cache.set({KEY: ("over", 0), (("ns",), "k"): (1, None)})
        assert cache.get([KEY, (("ns",), "k")]) == {KEY: "before", (("ns",), "k"): 1}
        with pytest.raises(PermissionDenied):
            cache.clear()
    (said,) = warnings()
    assert "permission-denied" in said


def test_what_a_legal_hold_keeps_is_not_replaced_and_fails_no_run(gateway_env, warnings):
    tenant = new_tenant(gateway_env)
    with StateroomCache(tenant.url, tenant.api_key, subject="ada") as cache:
        cache.set({KEY: ("before", None)})
        held = {"legal_hold": True}
        bearer = {"Authorization": f"Bearer {tenant.api_key}"}
        assert httpx2.put(f"{tenant.url}/v1/retention", json=held, headers=bearer).is_success
        cache.set({KEY: ("after", None), (("ns",), "k"): (1, None)})
        cache.set({KEY: ("after", None)})
        assert cache.get([KEY, (("ns",), "k")]) == {KEY: "before", (("ns",), "k"): 1}
        with pytest.raises(LegalHold):
            cache.clear()
    (said,) = warnings()
    assert "legal-hold" in said


@pytest.mark.parametrize(
    "entry",
    [
        {}, {"encoding": "msgpack"}, {"encoding": 1, "data": b"\x01"}, {"encoding": "msgpack", "data": "text"},
        {"encoding": "msgpack", "data": b"\xc1"}, {"encoding": "unknown", "data": b"1"},
        {"encoding": "pickle", "data": b"cos\nsystem\n(S'true'\ntR."},
    ],
    ids=["empty", "no data", "a number", "a text", "no msgpack", "unknown", "pickle"],
)  # fmt: skip
def test_what_cannot_be_decoded_is_a_miss(cache, items, entry):
    cache.set({KEY: (1, None)})
    (kept,) = items.search(("~cache",))
    items.put(kept.path, kept.key, entry)
    assert cache.get([KEY]) == {}


@dataclass
class Point:
    x: int


def test_an_entry_with_types_that_are_not_rebuilt_is_a_miss(cache, another):
    cache.set({KEY: ([["point", Point(1)]], None)})
    assert cache.get([KEY]) == {}
    assert another(allowed_msgpack_modules=[Point]).get([KEY]) == {KEY: [["point", Point(1)]]}
    with pytest.raises(ValueError, match="allowed_msgpack_modules"):
        another(allowed_msgpack_modules=[Point], serde=cache.serde)


def test_a_value_that_cannot_be_encoded_is_not_kept(cache, warnings):
    cache.set({KEY: (object(), None), (("ns",), "k"): (1, None)})
    assert cache.get([KEY, (("ns",), "k")]) == {(("ns",), "k"): 1}
    (said,) = warnings()
    assert "could not be kept (TypeError)" in said


# --- graphs ---------------------------------------------------------------------------------------------------------


class Log(TypedDict):
    question: str
    log: Annotated[list[str], operator.add]


class Counted:
    """A graph whose nodes count how often they ran."""

    def __init__(self, cache, ttl=None, nodes=("look_up",)):
        self.ran = []
        builder = StateGraph(Log)
        for name in nodes:
            builder.add_node(name, self._node(name), cache_policy=CachePolicy(ttl=ttl))
            builder.add_edge(START, name)
        self.graph = builder.compile(cache=cache)

    def _node(self, name):
        def run(state):
            self.ran.append(name)
            return {"log": [f"{name}: {state['question']}"]}

        return run

    def ask(self, question):
        return self.graph.invoke({"question": question, "log": []})["log"]


async def test_a_node_runs_once_for_equal_input_and_again_after_its_time_or_in_another_version(another, rows):
    graph = Counted(another(), ttl=60)
    assert graph.ask("rain?") == graph.ask("rain?") == ["look_up: rain?"]
    assert graph.ran == ["look_up"]
    assert (await graph.graph.ainvoke({"question": "rain?", "log": []}))["log"] == ["look_up: rain?"]
    elsewhere = Counted(another(), ttl=60)
    assert elsewhere.ask("rain?") == ["look_up: rain?"]
    assert elsewhere.ran == []
    graph.ask("snow?")
    assert len(graph.ran) == 2
    assert await rows(OVER) == 2
    graph.ask("rain?")
    assert len(graph.ran) == 3
    newer = Counted(another(version="2"), ttl=60)
    newer.ask("rain?")
    newer.ask("rain?")
    assert len(newer.ran) == 1
    graph.graph.clear_cache(["look_up"])
    graph.ask("rain?")
    assert len(graph.ran) == 4


def test_two_subjects_run_a_node_each(gateway_env):
    with StateroomCache(gateway_env.url, gateway_env.api_key) as cache:
        graph = Counted(cache)
        for _ in range(2):
            for who in (f"ada-{uuid4()}", f"bob-{uuid4()}"):
                with acting_for(who):
                    assert graph.ask("rain?") == graph.ask("rain?")
        assert len(graph.ran) == 4


def test_nodes_that_run_at_once_are_kept_for_the_subject_of_the_run(gateway_env, warnings):
    with StateroomCache(gateway_env.url, gateway_env.api_key) as cache:
        graph = Counted(cache, nodes=("left", "right", "middle"))
        for who in (f"ada-{uuid4()}", f"bob-{uuid4()}"):
            graph.ran.clear()
            with acting_for(who):
                assert graph.ask("rain?") == graph.ask("rain?")
            assert sorted(graph.ran) == ["left", "middle", "right"]
    assert warnings() == []


async def test_nodes_on_an_event_loop_are_kept_for_the_subject_of_the_run(gateway_env, warnings):
    async with StateroomCache(gateway_env.url, gateway_env.api_key) as cache:
        graph = Counted(cache, nodes=("left", "right"))

        async def ask(who):
            with acting_for(who):
                return await graph.graph.ainvoke({"question": "rain?", "log": []})

        people = [f"user-{uuid4()}" for _ in range(3)]
        for _ in range(2):
            await asyncio.gather(*map(ask, people))
        assert sorted(graph.ran) == ["left"] * 3 + ["right"] * 3
    assert warnings() == []


def test_sends_tasks_and_subgraphs_are_cached(another):
    ran = []

    @task(cache_policy=CachePolicy())
    def double(number: int) -> int:
        ran.append(number)
        return number * 2

    @entrypoint(cache=another())
    def program(numbers: list[int]) -> list[int]:
        return [each.result() for each in [double(number) for number in numbers]]

    assert program.invoke([1, 2, 3]) == [2, 4, 6]
    assert program.invoke([3, 2, 1]) == [6, 4, 2]
    assert sorted(ran) == [1, 2, 3]

    def each(word):
        ran.append(word)
        return {"log": [word.upper()]}

    builder = StateGraph(Log)
    builder.add_node("each", each, cache_policy=CachePolicy())
    builder.add_conditional_edges(START, lambda state: [Send("each", word) for word in ("one", "two")])
    graph = builder.compile(cache=another())
    ran.clear()
    for _ in range(2):
        assert graph.invoke({"question": "", "log": []})["log"] == ["ONE", "TWO"]
    assert sorted(ran) == ["one", "two"]


async def test_a_damaged_entry_makes_the_node_run_again(another, rows):
    graph = Counted(another())
    graph.ask("rain?")
    assert await rows(DAMAGED) == 1
    assert graph.ask("rain?") == ["look_up: rain?"]
    assert graph.ran == ["look_up"] * 2
    graph.ask("rain?")
    assert graph.ran == ["look_up"] * 2


async def test_a_gateway_that_cannot_be_reached_fails_no_run_and_is_told_of_once(subject, warnings):
    async with StateroomCache(
        "http://127.0.0.1:9", f"sr_live_0123456789ab_{'x' * 49}", subject=subject, timeouts=Timeouts(total_seconds=0.1)
    ) as cache:
        graph = Counted(cache)
        assert graph.ask("rain?") == graph.ask("rain?")
        assert graph.ran == ["look_up"] * 2
        assert (await graph.graph.ainvoke({"question": "rain?", "log": []}))["log"] == ["look_up: rain?"]
        (said,) = warnings()
        assert "gateway-unavailable" in said
        with pytest.raises(GatewayUnavailable):
            cache.clear()


def test_a_key_that_may_not_fails_no_run_and_is_told_of_once(gateway_env, subject, warnings):
    with StateroomCache(gateway_env.url, f"sr_live_0123456789ab_{'x' * 49}", subject=subject) as cache:
        graph = Counted(cache)
        assert graph.ask("rain?") == graph.ask("rain?") == ["look_up: rain?"]
    (said,) = warnings()
    assert "unauthenticated" in said


def test_the_page_on_the_cache_does_what_it_says(gateway_env, monkeypatch, capsys):
    tenant = new_tenant(gateway_env)
    monkeypatch.setenv("STATEROOM_URL", tenant.url)
    monkeypatch.setenv("STATEROOM_API_KEY", tenant.api_key)
    page = Path(__file__).parents[2] / "docs" / "langgraph-cache.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(program, page.name, "exec"), {"__name__": "langgraph_cache"})  # noqa: S102
    assert capsys.readouterr().out == "asking about Lisbon\nsun in Lisbon\nsun in Lisbon\n"
