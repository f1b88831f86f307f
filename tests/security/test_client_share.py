"""Threads under a share that only their client holds (threat: the gateway's keys and the database are both stolen)."""

import base64
import secrets

import asyncpg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from crypto import Kind, OpenError
from stateroom import (
    Client,
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    NotConfigured,
    new_client_share,
)
from stateroom._protocol.core import Call, Endpoint
from stateroom.langgraph import StateroomSaver
from storage.errors import (
    CheckpointNotFound,
    IntegrityFailure,
    RollbackDetected,
    ThreadNotFound,
)
from storage.errors import ClientShareRequired as Required
from storage.errors import ClientShareUnexpected as Unexpected
from storage.errors import ClientShareWrong as Wrong
from storage.format.chain import head_location, thread_location
from storage.format.manifest import CheckpointColumns, WriteColumns, chunk_location
from storage.model import (
    ChannelHistoryQuery,
    HistoryQuery,
    Idempotency,
    Load,
    Precondition,
    Save,
    TaskWrites,
    TaskWritesQuery,
)
from storage.postgres.unit_of_work import Silent
from storage.scope import ClientShare
from storage.service import Store, StoreOptions
from tests.support.operations import Tenancy, assert_problem
from tests.support.states import contents, document, packed, patch, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID
from tests.support.tenants import SERVICE

HEADER = "Stateroom-Client-Share"
TABLES = ("threads", "heads", "checkpoints", "pending_writes", "chunks", "idempotency")


class Watch(Silent):
    def __init__(self):
        self.failures = 0

    def integrity_failure(self):
        self.failures += 1


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
async def watched(database, root_key, watch):
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=8,
        durable=False,
        options=StoreOptions(observer=watch),
    )
    yield opened
    await opened.close()


@pytest.fixture
async def admin(database):
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    yield connection
    await connection.close()


@pytest.fixture
def share():
    return ClientShare(secrets.token_bytes(32))


@pytest.fixture
async def shared(watched, scope, share):
    """A thread under the share, with pieces, history, a second namespace and a pending write; its last save."""
    for number in range(3):
        saved = await save(watched, scope, share, content=state(a=document("canary"), n=number), run_id=f"run-{number}")
    await save(watched, scope, share, namespace="inner", content=state(b=document("inner")))
    await put(watched, scope, share, saved.checkpoint_id, write(0, "a", document("written")))
    return saved


async def save(store, scope, share=None, thread_id="t1", **parts):
    return await store.checkpoints.save(scope, Save(thread_id=thread_id, **parts), share)


async def load(store, scope, share=None, thread_id="t1", **parts):
    loaded = await store.checkpoints.load(scope, Load(thread_id, "", None, with_state=True, **parts), share)
    return loaded.checkpoint


async def put(store, scope, share, checkpoint_id, *writes, thread_id="t1"):
    return await store.checkpoints.put_writes(
        scope, TaskWrites(thread_id, "", checkpoint_id, "task", "", writes, None), share
    )


async def rows_of(admin, scope, table):
    return await admin.fetch(
        # In one order, whatever the plan: rows are compared with those of before.
        f"SELECT * FROM stateroom.{table} t WHERE tenant_id = $1 AND subject_id = $2 ORDER BY t::text",  # noqa: S608
        scope.tenant_id,
        scope.subject_id,
    )


async def envelopes(admin, scope):
    """Everything sealed of a subject's threads: kind, place and envelope."""
    found = []
    for row in await rows_of(admin, scope, "checkpoints"):
        columns = CheckpointColumns(**{name: row[name] for name in CheckpointColumns.__struct_fields__})
        found.append((Kind.MANIFEST, columns.location(), row["manifest"]))
    for row in await rows_of(admin, scope, "pending_writes"):
        columns = WriteColumns(**{name: row[name] for name in WriteColumns.__struct_fields__})
        found.append((Kind.WRITE, columns.location(), row["value"]))
    found.extend(
        (Kind.CHUNK, chunk_location(row["piece_id"], row["children"]), row["envelope"])
        for row in await rows_of(admin, scope, "chunks")
    )
    for row in await rows_of(admin, scope, "heads"):
        place = head_location(row["thread_id"], row["namespace"], row["head_id"], row["sequence"])
        found.append((Kind.HEAD, place, row["seal"]))
    return found


async def test_all_keys_of_the_gateway_with_all_rows_do_not_open_one_envelope_of_the_thread(
    watched, scope, share, shared, admin
):
    stolen = await watched.keys.sealer(scope)
    sealed = await envelopes(admin, scope)
    assert {kind for kind, _, _ in sealed} == {Kind.MANIFEST, Kind.WRITE, Kind.CHUNK, Kind.HEAD}
    for kind, place, envelope in sealed:
        # Also with the mark of a share taken off the header, or with a share of one's own.
        for attempt in (envelope, envelope[:5] + bytes([envelope[5] & ~8]) + envelope[6:]):
            with pytest.raises(OpenError):
                stolen.open(kind, place, attempt)
        with pytest.raises(OpenError):
            stolen.with_share(bytes(32)).open(kind, place, envelope)
        assert stolen.with_share(share.material).open(kind, place, envelope)
    (thread,) = await rows_of(admin, scope, "threads")
    assert stolen.open(Kind.THREAD, thread_location("t1", thread["created_at"]), thread["seal"])


async def test_content_ids_are_no_dictionary_for_who_has_the_gateways_keys(watched, scope, share, admin):
    text = document("guess")
    await save(watched, scope, share, content=state(a=text))
    await save(watched, scope, thread_id="open", content=state(a=text))
    ids = {row["thread_id"]: set() for row in await rows_of(admin, scope, "threads")}
    for row in await rows_of(admin, scope, "chunks"):
        ids[row["thread_id"]].add(row["piece_id"])
    assert ids["t1"]
    assert ids["open"]
    assert not ids["t1"] & ids["open"]
    stolen = await watched.keys.sealer(scope)
    data = packed(text).data
    assert stolen.content_id("leaf", "raw", data) != stolen.with_share(share.material).content_id("leaf", "raw", data)


async def test_the_share_and_the_state_are_in_no_row(watched, scope, share, shared, admin):
    forms = [share.material, share.material.hex().encode(), base64.b64encode(share.material), b"canary.canary"]
    for table in TABLES:
        for row in await rows_of(admin, scope, table):
            for value in row.values():
                raw = value if isinstance(value, bytes) else str(value).encode()
                assert not any(form in raw for form in forms), table


def test_a_share_is_not_shown_and_is_no_cache_key(share):
    again = ClientShare(share.material)
    assert share.material.hex() not in repr(share)
    assert repr(share.material) not in repr(share)
    assert share != again
    assert len({share, again}) == 2


VERBS = {
    "save": lambda store, scope, share, head: save(store, scope, share, content=state(n=9)),
    "save without a state of its own": lambda store, scope, share, head: save(
        store, scope, share, content=state(n=9), step=7
    ),
    "save in a namespace": lambda store, scope, share, head: save(
        store, scope, share, namespace="other", content=state(n=9)
    ),
    "save again": lambda store, scope, share, head: save(
        store, scope, share, content=state(n=9), checkpoint_id=head.checkpoint_id
    ),
    "load": lambda store, scope, share, head: load(store, scope, share),
    "load with a token": lambda store, scope, share, head: load(store, scope, share, known_token=head.token),
    "load nothing": lambda store, scope, share, head: store.checkpoints.load(
        scope, Load("t1", "no such namespace", None, with_state=True), share
    ),
    "history": lambda store, scope, share, head: store.checkpoints.history(scope, HistoryQuery(thread_id="t1"), share),
    "filtered history": lambda store, scope, share, head: store.checkpoints.history(
        scope, HistoryQuery(thread_id="t1", step=1, with_state=True), share
    ),
    "channel history": lambda store, scope, share, head: store.checkpoints.channel_history(
        scope, ChannelHistoryQuery("t1", "", None, ["a"]), share
    ),
    "writes": lambda store, scope, share, head: put(store, scope, share, head.checkpoint_id, write(1, "a", 1)),
    "task's writes": lambda store, scope, share, head: store.checkpoints.task_writes(
        scope, TaskWritesQuery("t1", "", head.checkpoint_id, "task"), share
    ),
    "settings": lambda store, scope, share, head: store.threads.put(scope, "t1", strict=True, share=share),
    "copy": lambda store, scope, share, head: store.threads.copy(scope, "t1", "t2", share=share),
    "prune": lambda store, scope, share, head: store.threads.prune(scope, ["t1"], "keep_latest", share),
    "delete runs": lambda store, scope, share, head: store.threads.delete_runs(scope, ["run-0"], share),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_without_the_share_or_with_another_nothing_happens_and_no_alarm_rings(
    watched, watch, scope, share, shared, admin, verb
):
    before = {table: await rows_of(admin, scope, table) for table in TABLES}
    with pytest.raises(Required):
        await VERBS[verb](watched, scope, None, shared)
    with pytest.raises(Wrong):
        await VERBS[verb](watched, scope, ClientShare(secrets.token_bytes(32)), shared)
    assert {table: await rows_of(admin, scope, table) for table in TABLES} == before
    assert watch.failures == 0


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in {"prune", "delete runs"}])
async def test_a_share_for_a_thread_without_one_is_refused(watched, watch, scope, share, admin, verb):
    head = await save(watched, scope, content=state(a=1), run_id="run-0")
    before = {table: await rows_of(admin, scope, table) for table in TABLES}
    with pytest.raises(Unexpected):
        await VERBS[verb](watched, scope, share, head)
    assert {table: await rows_of(admin, scope, table) for table in TABLES} == before
    assert watch.failures == 0


async def test_with_the_share_everything_works(watched, watch, scope, share, shared):
    loaded = await load(watched, scope, share)
    assert contents(loaded) == {"a": document("canary"), "n": 2}
    assert writes_of(loaded) == [("task", 0, "a", document("written"))]
    page = await watched.checkpoints.history(scope, HistoryQuery(thread_id="t1", with_state=True), share)
    assert [contents(each)["n"] for each in page.items if each.namespace == ""] == [2, 1, 0]
    assert not any(each.withheld for each in page.items)
    found = await watched.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["a"]), share)
    assert found.channels["a"].seed is not None
    appended = await save(
        watched, scope, share, content=patch(put={"n": 3}), precondition=Precondition(shared.checkpoint_id)
    )
    assert contents(await load(watched, scope, share, known_token=appended.token))["n"] == 3
    assert (await watched.threads.get(scope, "t1")).client_share
    assert watch.failures == 0


async def test_a_pending_write_and_settings_declare_the_share_as_a_save_does(watched, watch, scope, share):
    await put(watched, scope, share, "c1", write(0, "a", 1), thread_id="by-write")
    await watched.threads.put(scope, "by-settings", strict=False, share=share)
    for thread_id in ("by-write", "by-settings"):
        assert (await watched.threads.get(scope, thread_id)).client_share
        with pytest.raises(Required):
            await save(watched, scope, thread_id=thread_id, content=state(n=1))
        await save(watched, scope, share, thread_id=thread_id, content=state(n=1))
        assert contents(await load(watched, scope, share, thread_id=thread_id)) == {"n": 1}
    assert watch.failures == 0


async def test_a_copy_needs_the_same_share_and_keeps_it(watched, scope, share, shared, admin):
    await watched.threads.copy(scope, "t1", "t2", share=share)
    with pytest.raises(Required):
        await load(watched, scope, thread_id="t2")
    assert contents(await load(watched, scope, share, thread_id="t2")) == contents(await load(watched, scope, share))
    assert {row["client_share"] for row in await rows_of(admin, scope, "threads")} == {True}


async def test_deletion_needs_no_share_and_is_believed_by_who_holds_a_token(watched, watch, scope, share, shared):
    await watched.threads.delete(scope, "t1")
    with pytest.raises(CheckpointNotFound):
        await load(watched, scope, share, known_token=shared.token)
    assert watch.failures == 0
    await save(watched, scope, share, content=state(n=1))
    await watched.threads.prune(scope, ["t1"], "delete")
    with pytest.raises(ThreadNotFound):
        await watched.threads.get(scope, "t1")


async def test_pruning_and_removing_runs_use_the_share_where_a_thread_has_one(watched, watch, scope, share, shared):
    for number in range(3):
        await save(watched, scope, thread_id="open", content=state(n=number), run_id=f"run-{number}")
    assert (await watched.threads.delete_runs(scope, ["run-0"], share)).threads == 2
    assert (await watched.threads.prune(scope, ["t1", "open"], "keep_latest", share)).threads == 2
    assert contents(await load(watched, scope, share))["n"] == 2
    assert contents(await load(watched, scope, thread_id="open"))["n"] == 2
    assert watch.failures == 0


async def test_a_repeated_request_shows_its_receipt_only_with_the_share(watched, watch, scope, share):
    once = Idempotency("once", bytes(32))
    saved = await save(watched, scope, share, content=state(n=1), idempotency=once)
    with pytest.raises(Required):
        await save(watched, scope, content=state(n=1), idempotency=once)
    with pytest.raises(Wrong):
        await save(watched, scope, ClientShare(bytes(32)), content=state(n=1), idempotency=once)
    again = await save(watched, scope, share, content=state(n=1), idempotency=once)
    assert (again.checkpoint_id, again.created) == (saved.checkpoint_id, False)
    assert watch.failures == 0


async def test_history_over_threads_withholds_what_the_share_does_not_open(watched, watch, scope, share, shared):
    other = ClientShare(secrets.token_bytes(32))
    metadata = {"note": "secret"}
    await save(watched, scope, other, thread_id="t2", content=state(n=1), metadata=metadata, agent="a", step=5)
    await save(watched, scope, thread_id="t3", content=state(n=1), metadata=metadata)

    async def seen(sent, **query):
        page = await watched.checkpoints.history(scope, HistoryQuery(with_state=True, **query), sent)
        return {each.thread_id: each for each in page.items}

    for sent, opened in ((None, {"t3"}), (share, {"t1", "t3"}), (other, {"t2", "t3"})):
        found = await seen(sent)
        assert {thread_id for thread_id, each in found.items() if not each.withheld} == opened
        assert found.keys() == {"t1", "t2", "t3"}
        for each in found.values():
            assert (each.channels is None) == (each.writes is None) == each.withheld
            assert not (each.withheld and each.metadata)
    withheld = (await seen(None))["t2"]
    assert (withheld.agent, withheld.step, withheld.status) == ("a", 5, "active")
    assert (await seen(None, metadata=metadata)).keys() == {"t3"}
    assert (await seen(other, metadata=metadata)).keys() == {"t2", "t3"}
    assert watch.failures == 0


async def test_verification_passes_over_such_threads_and_says_so(watched, watch, scope, shared):
    await save(watched, scope, thread_id="open", content=state(n=1))
    report = await watched.verification.subject(scope)
    assert (report.threads, report.threads_skipped, report.findings) == (1, 1, [])
    assert watch.failures == 0


async def test_whoever_hides_a_thread_from_verification_by_its_clear_column_is_found(watched, scope, admin, shared):
    await save(watched, scope, thread_id="open", content=state(n=1))
    await admin.execute("UPDATE stateroom.threads SET client_share = NOT client_share WHERE subject_id = $1",
                        scope.subject_id)  # fmt: skip
    report = await watched.verification.subject(scope)
    assert [(each.code, each.thread_id) for each in report.findings] == [("thread-seal", "open"), ("thread-seal", "t1")]


async def test_with_the_share_a_moved_or_edited_row_is_still_damage(watched, watch, scope, share, shared, admin):
    await admin.execute(
        "UPDATE stateroom.heads SET sequence = sequence + 1 WHERE subject_id = $1 AND namespace = ''", scope.subject_id
    )
    with pytest.raises(IntegrityFailure):
        await load(watched, scope, share)
    assert watch.failures == 1


async def test_a_thread_replaced_by_one_without_the_share_is_not_read(watched, scope, share, shared, admin):
    for table in ("threads", "heads", "checkpoints", "pending_writes", "chunks"):
        await admin.execute(f"DELETE FROM stateroom.{table} WHERE subject_id = $1", scope.subject_id)  # noqa: S608
    watched.checkpoints._access.remembered_heads.forget(scope)  # as a process that knows nothing of what was there
    await save(watched, scope, content=state(a="forged"))
    with pytest.raises(Unexpected):
        await load(watched, scope, share)
    with pytest.raises(RollbackDetected):
        await load(watched, scope, share, known_token=shared.token)


# --- through HTTP and the SDK ----------------------------------------------------------------------


@pytest.fixture
def tenancy(running_gateway):
    return Tenancy(running_gateway)


@pytest.fixture
def service_key(tenancy):
    return tenancy.key(tenancy.tenant(), None, SERVICE)


def test_a_client_with_the_share_works_and_others_are_told_what_is_missing(running_gateway, service_key):
    share = new_client_share()
    url = running_gateway.url
    with (
        Client(url, service_key, subject="u", client_share=lambda: share) as own,
        Client(url, service_key, subject="u") as bare,
        Client(url, service_key, subject="u", client_share=new_client_share()) as other,
    ):
        own.thread("mine").save({"note": "hello"})
        assert own.thread("mine").load().state == {"note": "hello"}
        assert next(each for each in bare.threads() if each.thread_id == "mine").client_share
        with pytest.raises(ClientShareRequired):
            bare.thread("mine").load()
        with pytest.raises(ClientShareWrong):
            other.thread("mine").load()
        bare.thread("open").save({"n": 1})
        with pytest.raises(ClientShareUnexpected):
            own.thread("open").load()
        listed = bare.request("GET", "/checkpoints", params={"view": "state"}).decode()
        by_thread = {each["thread_id"]: each for each in listed["checkpoints"]}
        assert by_thread["mine"]["withheld"] is True
        assert "state" not in by_thread["mine"]
        assert "withheld" not in by_thread["open"]
        bare.thread("mine").delete()
    for forms in (share, share.hex().encode(), base64.b64encode(share)):
        assert forms not in running_gateway.log_file.read_bytes()
        assert forms.decode("latin-1") not in repr(own)


def test_problems_name_the_header_and_never_what_was_in_it(tenancy, service_key):
    share = base64.b64encode(secrets.token_bytes(32)).decode()
    body = {"state": {"n": 1}}
    with tenancy.client(service_key, "u") as client:
        saves = "/v1/threads/t/checkpoints"
        assert client.post(saves, json=body, headers={HEADER: share}).status_code == 201
        problems = [
            assert_problem(client.post(saves, json=body), 400, "client-share-required"),
            assert_problem(
                client.get(f"{saves}/latest", headers={HEADER: share.swapcase()}), 403, "client-share-wrong"
            ),
            assert_problem(
                client.patch("/v1/threads/new", json={}, headers={HEADER: share[:-4]}), 422, "invalid-request"
            ),
            assert_problem(client.get(saves, headers={HEADER: f"{share[:-1]} ="}), 422, "invalid-request"),
            assert_problem(client.get(saves, headers=[(HEADER, share), (HEADER, share)]), 422, "invalid-request"),
        ]
        client.post("/v1/threads/open/checkpoints", json=body)
        problems.append(
            assert_problem(
                client.post("/v1/threads/open/copy", json={"target_thread_id": "x"}, headers={HEADER: share}),
                409,
                "client-share-unexpected",
            )
        )
        assert client.delete("/v1/threads/t").status_code == 204
    assert not any(share[:-4] in str(problem) or share.swapcase()[:-4] in str(problem) for problem in problems)
    assert not any(problem["retryable"] for problem in problems)


def test_a_langgraph_saver_keeps_its_threads_under_the_share(running_gateway, service_key):
    share = new_client_share()
    config = {"configurable": {"thread_id": "graph", "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint() | {"channel_values": {"note": "hello"}, "channel_versions": {"note": "1"}}
    own = StateroomSaver(running_gateway.url, service_key, subject="u", client_share=share)
    bare = StateroomSaver(running_gateway.url, service_key, subject="u")
    with own, bare:
        made = own.put(config, checkpoint, {"source": "loop", "step": 0}, {"note": "1"})
        own.put_writes(made, [("note", "later")], "task")
        found = own.get_tuple(config)
        assert found.checkpoint["channel_values"] == {"note": "hello"}
        assert found.pending_writes == [("task", "note", "later")]
        assert [each.config["configurable"]["thread_id"] for each in own.list(None)] == ["graph"]
        assert list(bare.list(None)) == []
        with pytest.raises(ClientShareRequired):
            bare.get_tuple(config)
        with pytest.raises(ClientShareRequired):
            list(bare.list(config))
        bare.delete_thread("graph")
        assert own.get_tuple(config) is None


@pytest.mark.parametrize("wrong", [b"short", bytes(33), "x" * 32])
def test_what_is_no_share_is_refused_before_any_request_and_not_shown(wrong):
    for given in (wrong, lambda: wrong):
        with (
            pytest.raises(NotConfigured, match="32 bytes") as caught,
            Client("http://127.0.0.1:9", "key", subject="u", client_share=given) as client,
        ):
            client.thread("t").load()
        assert str(wrong) not in str(caught.value)


def test_a_share_is_sent_with_what_is_about_threads_and_pinned_for_a_listing():
    shares = iter([bytes(32), bytes([1]) * 32])
    endpoint = Endpoint("http://127.0.0.1:9", "key", "u", lambda: next(shares))
    pinned = endpoint.pin()
    about = Call(method="GET", path="/threads/t")
    assert "AAAA" not in repr(pinned)
    assert [endpoint.headers(about, pinned)[HEADER] for _ in range(3)] == [base64.b64encode(bytes(32)).decode()] * 3
    assert HEADER not in endpoint.headers(Call(method="GET", path="/whoami", subject_optional=True))
    assert endpoint.headers(about)[HEADER] == base64.b64encode(bytes([1]) * 32).decode()
