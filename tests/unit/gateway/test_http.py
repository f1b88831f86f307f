import asyncio
import contextlib

import httpx
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.admission import limits
from gateway.admission.write_outcomes import REFUSED_MIN
from gateway.app import create_app
from gateway.http.exchange import decode_id, encode_id
from gateway.problems import InvalidRequest
from gateway.readiness import Probes
from gateway.wire.problems import Fault
from storage.blobs.store import BlobUnavailable
from storage.control.clock_check import ClockOffset
from storage.errors import DatabaseReadOnly, HeadMoved
from storage.model import Value
from storage.service import Health
from tests.unit.gateway.doubles import MemoryStore, settings

SAVE = "/v1/threads/t/checkpoints"
PACKED = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}


@example("A00")
@given(st.text(min_size=1, max_size=60).filter(lambda text: "\0" not in text))
def test_any_id_travels_and_has_one_spelling(text):
    try:
        spelled = encode_id(text)
    except UnicodeEncodeError:
        return
    assert decode_id(spelled, Fault(detail="")) == text
    for other in (spelled + "=", "~" + spelled):
        with contextlib.suppress(InvalidRequest):  # "~A00" is no other spelling of "A00", but the one of another text
            found = decode_id(other, Fault(detail=""))
            assert (found != text, encode_id(found)) == (True, other)


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/nowhere", {}, 404, "not-found"),
        ("PATCH", "/v1/whoami", {}, 405, "method-not-allowed"),
        ("GET", "/v1/whoami", {"headers": {"Accept": "text/html"}}, 406, "not-acceptable"),
        ("GET", "/v1/whoami?x=1", {}, 422, "invalid-request"),
        ("GET", "/v1/threads?limit=1001", {}, 422, "invalid-request"),
        ("GET", "/v1/threads?limit=1&limit=2", {}, 422, "invalid-request"),
        ("GET", "/v1/threads?cursor=forged", {}, 422, "invalid-request"),
        ("GET", "/v1/threads?agent=%FF", {}, 422, "invalid-request"),
        ("GET", "/v1/threads/t", {}, 404, "thread-not-found"),
        ("GET", "/v1/threads/%20", {}, 422, "invalid-request"),
        ("GET", f"{SAVE}/latest", {}, 404, "checkpoint-not-found"),
        ("GET", f"{SAVE}?filter=[1]", {}, 422, "invalid-request"),
        ("GET", "/v1/checkpoints?since=2026-01-01T00:00:00", {}, 422, "invalid-request"),
        ("GET", f"{SAVE}/latest/channel-history", {}, 422, "invalid-request"),
        ("POST", SAVE, {"content": "x", "headers": {"Content-Type": "text/plain"}}, 415, "unsupported-media-type"),
        ("POST", SAVE, {"content": "", "headers": {"Content-Type": "application/json"}}, 400, "malformed-body"),
        ("POST", SAVE, {"content": b'{"state":{"a":"\xff"}}', "headers": {"Content-Type": "application/json"}}, 400,
         "malformed-body"),
        ("POST", SAVE, {"json": {}}, 422, "invalid-request"),
        ("POST", SAVE, {"json": {"state": {}, "channels": {}}}, 422, "invalid-request"),
        ("POST", SAVE, {"json": {"state": {"~private": 1}}}, 422, "invalid-request"),
        ("POST", SAVE, {"json": {"state": {}, "checkpoint_id": "latest"}}, 422, "invalid-request"),
        ("POST", SAVE, {"json": {"state": {"ä" * 128: 1}}}, 422, "limit-exceeded"),
        ("POST", SAVE, {"json": {"state": dict.fromkeys(map(str, range(1001)))}}, 422, "limit-exceeded"),
        ("POST", SAVE, {"json": {"state": {}, "metadata": {"a": "x" * 16_384}}}, 422, "limit-exceeded"),
        ("POST", SAVE, {"json": {"changes": {}}}, 428, "precondition-required"),
        ("POST", SAVE, {"json": {"state": {}}, "headers": {"If-Match": "bare"}}, 422, "invalid-request"),
        ("POST", SAVE, {"json": {"state": {}}, "headers": {"Idempotency-Key": "a b"}}, 422, "invalid-request"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_a_problem(call_one_app, method, path, options, status, code):
    async with call_one_app() as client:
        answer = await client.request(method, path, **options)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["status"]) == (status, code, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["request_id"] == answer.headers["x-request-id"]


async def test_a_full_body_limit_is_refused_before_it_is_read(call_one_app):
    async with call_one_app() as client:
        headers = {"Content-Type": "application/json", "Content-Length": str(limits.BODY_BYTES_MAX + 1)}
        answer = await client.post(SAVE, content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["limit"]) == (413, "BODY_BYTES_MAX")
    assert answer.headers["connection"] == "close"


async def test_a_chunked_body_is_cut_off_at_the_limit(call_one_app):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1
            yield bytes(1024 * 1024)

    async with call_one_app() as client:
        answer = await client.post(SAVE, content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert sent == limits.BODY_BYTES_MAX // (1024 * 1024) + 1


async def test_head_is_get_without_its_body(call_one_app):
    async with call_one_app() as client:
        got, headed = await client.get("/v1/whoami"), await client.head("/v1/whoami")
    assert (headed.status_code, headed.content) == (200, b"")
    assert headed.headers["content-length"] == got.headers["content-length"]


async def test_a_request_id_is_echoed_unless_it_is_nonsense(call_one_app):
    async with call_one_app() as client:
        assert (await client.get("/v1/whoami", headers={"X-Request-Id": "a-1"})).headers["x-request-id"] == "a-1"
        answer = await client.get("/v1/whoami", headers={"X-Request-Id": "a b"})
        assert answer.headers["x-request-id"] != "a b"


async def test_a_header_that_must_come_once_is_refused_twice(call_one_app):
    async with call_one_app() as client:
        answer = await client.get("/v1/threads", headers=[("Stateroom-Subject", "a"), ("Stateroom-Subject", "b")])
    assert answer.json()["errors"] == [{"detail": "the header is given twice", "header": "stateroom-subject"}]


@pytest.mark.parametrize(
    ("lines", "media_type"),
    [
        (["application/msgpack", "text/html"], "application/msgpack"),
        (["application/json;q=0.1", "application/msgpack", "text/html;q=0.9"], "application/msgpack"),
    ],
)
async def test_a_list_in_several_lines_is_one_list(call_one_app, lines, media_type):
    async with call_one_app() as client:
        del client.headers["accept"]
        answer = await client.get("/v1/whoami", headers=[("Accept", line) for line in lines])
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)


async def test_a_state_saved_in_json_loads_in_msgpack_and_back(call, store):
    async with call() as client:
        saved = await client.post(SAVE, json={"state": {"a": {"$bytes": "AAE="}, "b": [1, None]}})
        assert (saved.status_code, saved.headers["etag"]) == (201, '"c1"')
        packed = await client.get(f"{SAVE}/latest", headers={"Accept": "application/msgpack"})
        plain = await client.get(f"{SAVE}/latest")
    assert msgspec.msgpack.decode(packed.content)["state"] == {"a": b"\x00\x01", "b": [1, None]}
    assert plain.json()["state"] == {"a": {"$bytes": "AAE="}, "b": [1, None]}
    assert plain.headers["etag"] == '"c1"'


async def test_channels_pass_untouched_and_private_ones_stay_out_of_the_state(call, store):
    body = {"channels": {"~seen": {"version": 1, "encoding": "x", "data": b"\xc1"}, "m": {"version": "2.1"}}}
    async with call() as client:
        saved = await client.post(SAVE, content=msgspec.msgpack.encode(body), headers=PACKED)
        assert saved.status_code == 201
        state = (await client.get(f"{SAVE}/latest")).json()["state"]
        channels = msgspec.msgpack.decode((await client.get(f"{SAVE}/latest?view=channels", headers=PACKED)).content)[
            "channels"
        ]
    (_, save), *_ = store.checkpoints.saves
    assert save.content.channels["~seen"].value == Value("x", b"\xc1")
    assert save.content.channels["m"].value is None
    assert state == {}
    assert channels["~seen"] == {"version": 1, "encoding": "x", "data": b"\xc1"}


async def test_pending_writes_come_in_both_forms(call):
    async with call() as client:
        path = f"{SAVE}/c1/writes/task"
        bodies = {"writes": [{"channel": "a", "idx": 0, "value": [1]}, {"channel": "b", "idx": -1, "data": "wA=="}]}
        assert (await client.post(path, json=bodies)).json() == {"stored": 2, "unchanged": 0}
        state = (await client.get(path)).json()["writes"]
        channels = (await client.get(f"{path}?view=channels")).json()["writes"]
        both = {"writes": [{"channel": "a", "idx": 0, "value": 1, "data": ""}]}
        refused = await client.post(path, json=both)
    assert [write["value"] for write in state] == [[1], None]
    assert [write["data"] for write in channels] == ["kQE=", "wA=="]
    assert refused.json()["errors"][0]["pointer"] == "/writes/0"


async def test_a_page_goes_on_only_with_the_same_filters_and_subject(call, store):
    store.checkpoints.after = ("c1", "t", "")
    async with call() as client, call("subject", subject_id="bob") as other:
        cursor = (await client.get(f"{SAVE}?step=1")).json()["next_cursor"]
        again = await client.get(f"{SAVE}?step=1&limit=7&view=state", params=None)
        assert again.status_code == 200
        assert (await client.get(f"{SAVE}?step=1&cursor={cursor}")).status_code == 200
        assert store.checkpoints.queries[-1].after == ("c1", "t", "")
        for path in (f"{SAVE}?step=2", "/v1/threads/u/checkpoints?step=1", "/v1/checkpoints?step=1"):
            assert (await client.get(f"{path}&cursor={cursor}")).status_code == 422, path
        assert (await other.get(f"{SAVE}?step=1&cursor={cursor}")).status_code == 422


async def test_a_moved_head_is_named(call, store):
    store.checkpoints.error = HeadMoved("c9")
    async with call() as client:
        answer = await client.post(SAVE, json={"state": {}}, headers={"If-Match": '"c1"'})
    assert (answer.status_code, answer.json()["head_id"]) == (412, "c9")


def caused_by_memory() -> Exception:
    error = ValueError("secret")
    error.__cause__ = MemoryError()
    return error


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("can't start new thread"), caused_by_memory(), ExceptionGroup("", [MemoryError()])],
    ids=["memory", "a thread's stack", "in another's clothes", "in a group"],
)
async def test_out_of_memory_is_overloaded_and_may_be_repeated(call, store, error):
    store.checkpoints.error = error
    async with call() as client:
        answer = await client.post("/v1/threads/t/checkpoints", json={"state": {}})
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["retryable"]) == (503, "overloaded", True)
        assert answer.headers["retry-after"] == "1"
        assert "secret" not in answer.text
        assert store.checkpoints.saves == []
        store.checkpoints.error = None
        assert (await client.post("/v1/threads/t/checkpoints", json={"state": {}})).status_code == 201


async def test_an_unknown_error_is_internal_and_says_nothing(call, store):
    store.checkpoints.error = ValueError("the payload")
    async with call() as client:
        answer = await client.post(SAVE, json={"state": {}})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "payload" not in answer.text


async def test_a_save_runs_to_its_end_when_the_client_hangs_up(app, call, store):
    store.checkpoints.gate = asyncio.Event()
    async with call() as client:
        request = asyncio.create_task(client.post(SAVE, json={"state": {"a": 1}}))
        await store.checkpoints.reached.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        store.checkpoints.gate.set()
        await app.services.commits.finish()
    assert len(store.checkpoints.saves) == 1


async def test_readiness_follows_the_database_and_the_drain_but_livez_does_not(call, app, store):
    async with call(None) as client:
        assert (await client.get("/readyz")).status_code == 200
        app.services.drain.begin()
        draining = await client.get("/readyz")
        assert (draining.status_code, draining.json()["draining"]) == (503, True)
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    "found",
    [
        Health(writable=True, db_revision="a1", revision_ok=True, unknown_features=("later",), clock=None),
        Health(writable=False, db_revision="a1", revision_ok=True, clock=None),
        Health(writable=True, db_revision="a0", revision_ok=False, clock=None),
    ],
)
async def test_an_unfit_database_is_not_ready(call, store, found):
    store.health_found = found
    async with call(None) as client:
        answer = await client.get("/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def test_a_clock_that_is_off_shows_and_does_not_count(call, app, store):
    store.health_found = Health(writable=True, db_revision="a1", revision_ok=True, clock=ClockOffset(-3600.0, 0.01))
    async with call(None) as client:
        answer = await client.get("/readyz")
    assert answer.status_code == 200
    assert (answer.json()["clock"], answer.json()["clock_offset_seconds"]) == (False, -3600.0)
    assert app.services.metrics.registry.get_sample_value("stateroom_clock_offset_seconds") == -3600.0


async def test_object_stores_that_are_away_show_and_do_not_count():
    store = MemoryStore()

    async def answers():
        return True

    async def fails():
        raise BlobUnavailable

    app = create_app(settings(), store=store, clock=store.clock, probes=Probes(blobs=answers, archive=fails))
    async with app.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        ready = await client.get("/readyz")
    assert ready.status_code == 200
    assert (ready.json()["blobs"], ready.json()["archive"]) == (True, False)


async def test_a_full_process_answers_probes_and_refuses_the_rest():
    store = MemoryStore()
    app = create_app(settings(requests_in_flight_max=1), store=store, clock=store.clock)
    async with app.lifespan():
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {store.mint()}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            with app.services.admission.request():
                refused = await client.get("/v1/whoami")
                assert (await client.get("/livez")).status_code == 200
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "overloaded", "1")
    assert app.services.metrics.registry.get_sample_value("stateroom_refused_total", {"reason": "overloaded"}) == 1.0


async def test_paths_nobody_matches_share_one_label(app, call):
    async with call() as client:
        await client.get("/a/secret/path")
        await client.get(f"{SAVE}/latest")
    sample = app.services.metrics.registry.get_sample_value
    labels = {"route": "unmatched", "method": "GET", "status": "404"}
    assert sample("stateroom_request_seconds_count", labels) == 1.0
    labels["route"] = "/v1/threads/{thread_id}/checkpoints/{checkpoint_id}"
    assert sample("stateroom_request_seconds_count", labels) == 1.0


async def test_the_documentation_loads_nothing_from_elsewhere(call_one_app):
    async with call_one_app(None) as client:
        page = (await client.get("/docs")).text
        assert (await client.get("/openapi.json")).json()["openapi"] == "3.1.0"
    assert "<script" not in page
    assert "src=" not in page
    assert 'id="head-moved"' in page


async def test_a_process_whose_writes_are_refused_for_want_of_room_is_not_ready_until_one_is_taken(call, store):
    async with call() as client, call(None) as prober:

        async def save():
            return (await client.post("/v1/threads/t/checkpoints", json={"state": {}})).status_code

        async def ready():
            answer = await prober.get("/readyz")
            return answer.status_code, answer.json()["writes"]

        store.checkpoints.error = HeadMoved("c9")  # what a client does wrong says nothing of the database
        for _ in range(REFUSED_MIN):
            assert await save() == 412
        assert await ready() == (200, True)
        store.checkpoints.error = DatabaseReadOnly()
        for _ in range(REFUSED_MIN):
            assert await ready() == (200, True)
            assert await save() == 503
        assert await ready() == (503, False)
        store.checkpoints.error = None
        assert await save() == 201
        assert await ready() == (200, True)
