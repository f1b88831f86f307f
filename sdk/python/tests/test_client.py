import dataclasses
import inspect
from datetime import UTC, datetime
from typing import TypedDict

import httpx2
import msgspec
import pytest
from msgspec.msgpack import Ext
from pydantic import BaseModel

from sdk.python.tests.fakes import API_KEY, URL, Script, checkpoint, packed, problem, receipt
from stateroom import (
    AsyncClient,
    AsyncThread,
    Client,
    GatewayUnavailable,
    HeadMoved,
    InvalidRequest,
    NotConfigured,
    OnceKeyReused,
    StateroomError,
    SubjectRequired,
    Thread,
    current_subject,
)
from stateroom._threads.once.records import ONCE_ANCHOR, once_place
from stateroom._threads.plain import result_type, to_plain
from stateroom.langgraph import StateroomSaver

HEAD = "1ef00000-0000-6000-8000-000000000001"
NEXT = "1ef00000-0000-6000-8000-000000000002"
MOMENT = datetime(2026, 11, 27, tzinfo=UTC).isoformat()
EFFECT = {
    "thread_id": "t", "namespace": "", "name": "hotel", "execution": 1, "attempt": 1, "mode": "idempotent",
    "tool": "stateroom.once", "provider_key": "01a21e8b-405c-73bc-9769-815a002d4316", "started_at": MOMENT,
    "leased_until": MOMENT, "result_state": "none", "started_by": "k",
}  # fmt: skip


@pytest.fixture
def client_of(clock):
    clients = []

    def make(*answers, **options):
        script = Script(*answers)
        client = Client(URL, API_KEY, transport=script.transport, clock=clock, **options)
        clients.append(client)
        return client, script

    yield make
    for client in clients:
        client.close()


def sent(request):
    return msgspec.msgpack.decode(request.content)


def public_names(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind, name):
    member = inspect.getattr_static(kind, name)
    if isinstance(member, property):
        return None
    function = member.__func__ if isinstance(member, classmethod) else member
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("blocking", "on_loop"), [(Client, AsyncClient), (Thread, AsyncThread)])
def test_api_parity_both_clients_offer_the_same(blocking, on_loop):
    assert public_names(blocking) == public_names(on_loop)
    for name in public_names(blocking):
        assert parameters(blocking, name) == parameters(on_loop, name), name


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("Client", lambda client: Client(URL, API_KEY, retries=3)),
        ("AsyncClient", lambda client: AsyncClient(URL, API_KEY, retries=3)),
        ("StateroomSaver", lambda client: StateroomSaver(URL, API_KEY, retries=3)),
        ("HeadMoved", lambda client: HeadMoved("detail", retries=3)),
        ("save", lambda client: client.thread("t").save({}, retries=3)),
        ("patch", lambda client: client.thread("t").patch(retries=3)),
        ("checkpoints", lambda client: client.checkpoints(retries=3)),
        ("upload", lambda client: client.artifacts.upload("t", b"", retries=3)),
    ],
)
def test_an_option_that_does_not_exist_is_refused_by_name_before_anything_is_sent(client_of, name, call):
    client, script = client_of(receipt(), subject="u")
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'retries'"):
        call(client)
    assert script.requests == []


def test_an_option_of_one_thread_is_none_of_a_listing_of_all(client_of):
    client, _ = client_of(receipt(), subject="u")
    for name in ("thread_id", "before"):
        with pytest.raises(TypeError, match=name):
            client.checkpoints(**{name: "t"})


def test_clients_that_the_environment_configures_take_the_same_options(monkeypatch):
    monkeypatch.setenv("STATEROOM_URL", URL)
    monkeypatch.setenv("STATEROOM_API_KEY", API_KEY)
    for kind in (Client, AsyncClient):
        assert kind.from_env(strict=True).strict
        with pytest.raises(TypeError, match="retries"):
            kind.from_env(retries=3)


def test_a_gateway_that_is_down_is_reported_within_the_total_budget(client_of, clock):
    client, script = client_of(httpx2.ConnectError("refused"))
    began = clock.seconds
    with pytest.raises(GatewayUnavailable):
        client.whoami()
    assert len(script.requests) > 3
    assert clock.seconds - began <= 30.0


def test_a_transport_failure_does_not_leak_the_credential_through_its_cause(client_of):
    client, _ = client_of(httpx2.ConnectError("refused"))
    with pytest.raises(GatewayUnavailable) as caught:
        client.whoami()
    seen = caught.value
    while seen is not None:
        assert not isinstance(seen, httpx2.HTTPError)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def test_a_retried_save_is_the_same_save(client_of):
    client, script = client_of(
        httpx2.ReadTimeout("slow"),
        problem(503, "commit-unknown", retryable=True, headers={"retry-after": "1"}),
        receipt(),
    )
    client.thread("t").save({"a": 1})
    first, second, third = script.requests
    assert first.content == second.content == third.content
    keys = {request.headers["idempotency-key"] for request in script.requests}
    assert len(keys) == 1


def test_two_saves_are_two_saves(client_of):
    client, script = client_of(receipt())
    thread = client.thread("t")
    thread.save({"a": 1})
    thread.save({"a": 1})
    assert script.requests[0].headers["idempotency-key"] != script.requests[1].headers["idempotency-key"]


def test_a_save_with_its_own_id_needs_no_idempotency_key(client_of):
    client, script = client_of(receipt())
    client.thread("t").save({"a": 1}, checkpoint_id="mine")
    assert "idempotency-key" not in script.requests[0].headers
    assert sent(script.requests[0])["checkpoint_id"] == "mine"


def test_a_save_follows_the_head_that_was_loaded(client_of):
    client, script = client_of(checkpoint(HEAD, step=4, state={"a": 1}), receipt(NEXT, 5), receipt(NEXT, 6))
    thread = client.thread("t")
    head = thread.load()
    assert head is not None
    thread.save(head.state)
    thread.save(head.state)
    _, first, second = script.requests
    assert (first.headers["if-match"], sent(first)["step"]) == (f'"{HEAD}"', 5)
    assert (second.headers["if-match"], sent(second)["step"]) == (f'"{NEXT}"', 6)


def test_the_first_save_of_a_thread_found_new_insists_that_it_still_is(client_of):
    client, script = client_of(problem(404, "checkpoint-not-found"), receipt())
    thread = client.thread("t")
    assert thread.load() is None
    thread.save({})
    assert script.requests[1].headers["if-none-match"] == "*"
    assert "if-match" not in script.requests[1].headers


def test_a_save_without_a_load_says_nothing_about_the_head(client_of):
    client, script = client_of(receipt())
    client.thread("t").save({})
    assert not {"if-match", "if-none-match"} & set(script.requests[0].headers)
    assert "step" not in sent(script.requests[0])


def test_a_race_is_reported_with_the_current_head_and_not_retried(client_of):
    client, script = client_of(problem(412, "head-moved", head_id=NEXT))
    with pytest.raises(HeadMoved) as caught:
        client.thread("t").save({})
    assert caught.value.head_id == NEXT
    assert len(script.requests) == 1


def test_a_fork_names_its_parent_and_declares_itself(client_of):
    client, script = client_of(checkpoint(HEAD, head=NEXT, step=2, state={"a": 1}), receipt("x", 3), receipt("y", 4))
    forked = client.thread("t", agent="travel").fork(HEAD)
    forked.save({"a": 2})
    forked.save({"a": 3})
    _, first, second = script.requests
    assert sent(first) | {"parent_id": HEAD, "fork": True, "step": 3, "source": "fork"} == sent(first)
    assert first.headers["if-match"] == f'"{NEXT}"'
    assert {"parent_id", "fork"}.isdisjoint(sent(second))
    assert second.headers["if-match"] == '"x"'


def test_a_patch_loads_the_head_when_none_is_known(client_of):
    client, script = client_of(checkpoint(HEAD, step=1, state={}), receipt(NEXT, 2))
    client.thread("t").patch(set={"a": 1}, append={"log": ["x"]}, remove=["b"])
    body = sent(script.requests[1])
    assert body["changes"] == {"set": {"a": 1}, "append": {"log": ["x"]}, "remove": ["b"]}
    assert (script.requests[1].headers["if-match"], body["step"]) == (f'"{HEAD}"', 2)


def test_without_a_subject_no_request_is_made(client_of):
    client, script = client_of(receipt(), subject=current_subject)
    for attempt in (
        lambda: client.thread("t").save({}),
        lambda: client.thread("t").load(),
        client.threads,
        client.checkpoints,
    ):
        with pytest.raises(SubjectRequired):
            attempt()
    assert script.requests == []


def test_from_env_says_which_variable_is_missing(monkeypatch):
    monkeypatch.delenv("STATEROOM_URL", raising=False)
    monkeypatch.setenv("STATEROOM_API_KEY", API_KEY)
    with pytest.raises(NotConfigured, match="STATEROOM_URL"):
        Client.from_env()
    monkeypatch.setenv("STATEROOM_URL", URL)
    with Client.from_env(subject="user-42") as client:
        assert URL in repr(client)
        assert API_KEY not in repr(client)


def test_listings_go_on_until_the_cursor_ends_even_through_short_pages(client_of):
    def page(ids, cursor):
        infos = [msgspec.msgpack.decode(checkpoint(name).content) for name in ids]
        return packed({"checkpoints": infos, "next_cursor": cursor})

    client, script = client_of(page(["c"], "1"), page([], "2"), page(["b", "a"], None))
    assert [info.checkpoint_id for info in client.thread("t").history()] == ["c", "b", "a"]
    assert [request.url.params.get("cursor") for request in script.requests] == [None, "1", "2"]


def test_a_listing_stops_at_its_limit(client_of):
    infos = [msgspec.msgpack.decode(checkpoint(name).content) for name in ("c", "b")]
    client, script = client_of(packed({"checkpoints": infos, "next_cursor": "1"}))
    assert [info.checkpoint_id for info in client.thread("t").history(limit=2)] == ["c", "b"]
    assert len(script.requests) == 1
    assert script.requests[0].url.params["limit"] == "2"


def test_the_low_level_request_repeats_a_post_only_with_an_idempotency_key(client_of):
    client, script = client_of(httpx2.ReadTimeout("slow"), packed({"ok": True}))
    with pytest.raises(GatewayUnavailable):
        client.request("POST", "/api-keys", body={})
    script.answers = [httpx2.ReadTimeout("slow"), packed({"ok": True})]
    assert client.request("POST", "/api-keys", body={}, idempotency_key="k").decode() == {"ok": True}


def test_once_places_are_stable_between_releases():
    assert once_place("book-hotel") == ("once:5b678e1b1413a3247cc2dc24348b09fd", "book-hotel")
    assert once_place("book-hotels") != once_place("book-hotel")


def test_long_once_names_stay_within_a_channel_name():
    task, channel = once_place("ü" * 200)
    assert channel.startswith("sha256:")
    assert len(task) == len("once:") + 32
    assert once_place("ü" * 201)[1] != channel
    for bad in ("", None, 7, "\ud800", "k\0ey"):
        with pytest.raises(InvalidRequest):
            once_place(bad)


def test_a_once_call_whose_name_cannot_be_kept_is_refused_before_its_effect(client_of):
    client, script = client_of(packed({}))
    ran = []
    with pytest.raises(InvalidRequest, match="NUL"):
        client.thread("t").once("k\0ey", ran.append, 1)
    assert ran == script.requests == []


class WriteStore:
    """Pending writes as the contract has them: first wins at an index of 0 or more. There is no ledger of effects."""

    def __init__(self, without_ledger=(404, "not-found")):
        self.kept = {}
        self.without_ledger = without_ledger

    def __call__(self, request):
        place = request.url.path
        if "/effects/" in place:
            return problem(*self.without_ledger)
        kept = self.kept.setdefault(place, {})
        if request.method == "GET":
            return packed({"writes": [{"task_id": place.rsplit("/", 1)[1], **write} for write in kept.values()]})
        writes = msgspec.msgpack.decode(request.content)["writes"]
        stored = sum(kept.setdefault(write["idx"], write) is write for write in writes)
        return packed({"stored": stored, "unchanged": len(writes) - stored})


@dataclasses.dataclass
class Booking:
    number: int
    at: datetime


@pytest.mark.parametrize("answer", [(404, "not-found"), (409, "feature-off"), (409, "effects-exceeded")])
def test_without_a_ledger_once_calls_once_per_name_and_finds_the_result_in_another_process(client_of, answer):
    calls = []

    def book(number: int) -> Booking:
        calls.append(number)
        return Booking(number, datetime(2026, 11, 21, tzinfo=UTC))

    store = WriteStore(answer)
    client, script = client_of(store)
    resumed, _ = client_of(store)
    first = client.thread("t").once("hotel", book, 1)
    again = resumed.thread("t").once("hotel", book, 1)
    other = resumed.thread("t").once("car", book, 3)
    assert calls == [1, 3]
    assert first == again == Booking(1, datetime(2026, 11, 21, tzinfo=UTC))
    assert other.number == 3
    assert f"/checkpoints/{ONCE_ANCHOR}/writes/once:" in script.requests[1].url.path


@pytest.mark.parametrize("code", ["not-found", "effect-in-progress", "effect-superseded", "effect-mismatch"])
def test_what_a_once_call_itself_raises_is_raised_and_it_is_not_called_again(client_of, code):
    kept, ran = {}, []

    def gateway(request):
        if request.url.path.endswith("/elsewhere"):
            return problem(409 if code.startswith("effect") else 404, code)
        if request.url.path.startswith("/v1/threads/t/effects/hotel"):
            effect = EFFECT | {"status": "started"}
            kept.update(sent(request))
            return packed(effect if request.url.path.endswith("finish") else {"must_run": True, "effect": effect})
        return packed({"writes": []})

    client, _ = client_of(gateway)

    def book():
        ran.append(1)
        client.request("GET", "/elsewhere")

    with pytest.raises(StateroomError) as raised:
        client.thread("t").once("hotel", book)
    assert (raised.value.code, ran, kept["status"]) == (code, [1], "unknown")


def test_once_keeps_nothing_when_the_call_fails(client_of):
    store = WriteStore()
    client, _ = client_of(store)
    with pytest.raises(ZeroDivisionError):
        client.thread("t").once("divide", lambda: 1 // 0)
    assert not any(store.kept.values())
    assert client.thread("t").once("divide", lambda: 7) == 7


def test_of_two_processes_in_the_same_once_call_both_return_the_result_kept_first(client_of):
    store = WriteStore()
    client, _ = client_of(store)
    rival, _ = client_of(store)

    def slow():
        rival.thread("t").once("race", lambda: "rival")
        return "mine"

    assert client.thread("t").once("race", slow) == "rival"


def test_a_once_call_with_other_arguments_is_refused_before_its_effect(client_of):
    store = WriteStore()
    client, _ = client_of(store)
    paid = []

    def pay(amount, *, to):
        paid.append((amount, to))
        return f"paid {amount}"

    thread = client.thread("t")
    assert thread.once("pay", pay, 10, to="bob") == thread.once("pay", pay, 10, to="bob") == "paid 10"
    for amount, to in ((99, "bob"), (10, "eve")):
        with pytest.raises(OnceKeyReused) as refused:
            client.thread("t").once("pay", pay, amount, to=to)
        assert refused.value.code == "once-key-reused"
        assert "99" not in str(refused.value)
    assert paid == [(10, "bob")]


def test_what_an_earlier_release_kept_does_not_say_its_arguments_and_is_returned_for_any(client_of):
    store = WriteStore()
    client, script = client_of(store)
    client.thread("t").once("hotel", lambda: "booked")
    (record,) = store.kept.values()
    del record[1]
    assert client.thread("t").once("hotel", lambda number: "again", 2) == "booked"
    assert [each.method for each in script.requests].count("POST") == 1  # nothing more was stored


def test_of_two_processes_in_the_same_once_call_with_other_arguments_the_later_is_told(client_of):
    store = WriteStore()
    client, _ = client_of(store)
    rival, _ = client_of(store)

    def slow(amount):
        rival.thread("t").once("race", lambda amount: amount, 1)
        return amount

    with pytest.raises(OnceKeyReused):
        client.thread("t").once("race", slow, 2)


def test_once_keeps_none_as_a_result(client_of):
    store = WriteStore()
    client, _ = client_of(store)
    calls = []
    for _ in range(2):
        assert client.thread("t").once("notify", lambda: calls.append(1)) is None
    assert calls == [1]


async def test_once_awaits_coroutines_and_accepts_plain_functions(async_clock):
    store = WriteStore()

    async def book() -> Booking:
        return Booking(1, datetime(2026, 11, 21, tzinfo=UTC))

    async with AsyncClient(URL, API_KEY, transport=Script(store).transport, clock=async_clock) as client:
        thread = client.thread("t")
        assert (await thread.once("hotel", book)).number == 1
        assert (await thread.once("hotel", book)).number == 1
        assert await thread.once("car", lambda: {"number": 2}) == {"number": 2}
        with pytest.raises(OnceKeyReused):
            await thread.once("hotel", lambda number: number, 2)


class Trip(msgspec.Struct):
    plan: list[str]
    done: list[Booking]


class TripDict(TypedDict):
    plan: list[str]


class TripModel(BaseModel):
    plan: list[str]
    at: datetime


@dataclasses.dataclass
class Mixed:
    model: TripModel
    tags: set[str]
    blob: bytes


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (None, {"a": [1, None, {"b": 2.5}], "blob": b"\x00\xff"}),
        (Trip, Trip(plan=["x"], done=[Booking(1, datetime(2026, 1, 1, tzinfo=UTC))])),
        (TripDict, TripDict(plan=["x"])),
        (TripModel, TripModel(plan=["x"], at=datetime(2026, 1, 1, tzinfo=UTC))),
        (Mixed, Mixed(TripModel(plan=[], at=datetime(2026, 1, 1, tzinfo=UTC)), {"a"}, b"\x00")),
    ],
)
def test_states_of_every_supported_type_come_back_as_they_were(client_of, kind, state):
    stored = {}

    def gateway(request):
        if request.method == "POST":
            stored["state"] = sent(request)["state"]
            return receipt()
        return checkpoint(state=stored["state"])

    client, _ = client_of(gateway)
    thread = client.thread("t", state_type=kind)
    thread.save(state)
    head = thread.load()
    assert head is not None
    assert head.state == state


@pytest.mark.parametrize("bad", [[1], "text", {1: 2}, {"a": object()}, {"~mine": 1}])
def test_a_state_without_a_plain_form_is_refused_before_any_request(client_of, bad):
    client, script = client_of(receipt())
    with pytest.raises(InvalidRequest):
        client.thread("t").save(bad)
    assert script.requests == []


def test_extension_values_of_other_programs_pass_through(client_of):
    foreign = {"a": Ext(5, b"xyz"), "b": [Ext(1, b"")]}
    assert to_plain(foreign) == foreign
    client, _ = client_of(checkpoint(state={**foreign, "~langgraph": {"v": 4}}))
    head = client.thread("t").load()
    assert head is not None
    assert head.state == foreign


def test_the_result_type_is_read_from_the_annotation_if_it_can_be():
    def plain(): ...
    def unknown() -> "Missing": ...  # noqa: F821
    def known() -> list[int]: ...

    assert [result_type(fn) for fn in (known,)] == [list[int]]
    assert {str(result_type(fn)) for fn in (plain, unknown)} == {"typing.Any"}


async def test_the_async_client_retries_and_pages_like_the_blocking_one(async_clock):
    infos = [msgspec.msgpack.decode(checkpoint(name).content) for name in ("c", "b")]
    script = Script(
        httpx2.ReadError("reset"),
        packed({"checkpoints": infos[:1], "next_cursor": "1"}),
        packed({"checkpoints": infos[1:], "next_cursor": None}),
    )
    async with AsyncClient(URL, API_KEY, transport=script.transport, clock=async_clock) as client:
        assert [info.checkpoint_id async for info in client.thread("t").history()] == ["c", "b"]
    assert len(async_clock.slept) == 1
