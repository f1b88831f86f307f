"""Whoever edits, drops, adds or puts back rows is noticed by the next reader, or by verification (threats 6 to 8)."""

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.errors import CheckpointNotFound, IntegrityFailure, RollbackDetected, ThreadNotFound
from storage.format.ids import mint_checkpoint_id
from storage.format.token import ThreadToken
from storage.model import HistoryQuery, Save
from storage.postgres.unit_of_work import Silent
from storage.scope import Scope, TenantScope
from storage.service import Store
from tests.support.states import document, load, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

SUBJECT_TABLES = ("threads", "heads", "checkpoints", "pending_writes", "chunks", "removed_threads")


class Watch(Silent):
    def __init__(self):
        self.failures = 0

    def integrity_failure(self):
        self.failures += 1


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
async def guarded(database, root_key, watch):
    """A store with an object store to anchor heads in."""
    blobs = MemoryBlobStore()
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=8,
        durable=False,
        blobs=blobs,
        observer=watch,
    )
    yield opened
    await opened.close()


@pytest.fixture
async def chain(guarded, scope):
    made = [await save(guarded, scope, content=state(a=document(str(number)), n=number)) for number in range(5)]
    await put(guarded, scope, made[-1].checkpoint_id, write(0, "a", document("w")))
    return made


class Attacker:
    """Holds the database as superuser, edits one subject's rows, and can put back what was there."""

    def __init__(self, admin, scope):
        self._admin = admin
        self._scope = scope

    async def execute(self, sql, *args):
        return await self._admin.execute(sql, self._scope.tenant_id, self._scope.subject_id, *args)

    async def copy(self, *tables):
        return {
            table: await self._admin.fetch(
                f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2",  # noqa: S608
                self._scope.tenant_id,
                self._scope.subject_id,
            )
            for table in tables or SUBJECT_TABLES
        }

    async def put_back(self, copied):
        for table, rows in copied.items():
            await self.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
            for row in rows:
                await self.insert(table, row)

    async def insert(self, table, row):
        names = list(row.keys())
        places = ", ".join(f"${at + 1}" for at in range(len(names)))
        await self._admin.execute(
            f"INSERT INTO stateroom.{table} ({', '.join(names)}) VALUES ({places})",  # noqa: S608
            *row.values(),
        )


@pytest.fixture
def attacker(admin, scope):
    return Attacker(admin, scope)


async def listed(store, scope, **query):
    """A whole listing, as the SDK and LangGraph read it."""
    query = HistoryQuery(**{"thread_id": "t1", "namespace": "", "limit": 2, "with_state": True} | query)
    found = []
    while True:
        page = await store.checkpoints.history(scope, query)
        found += page.items
        if page.after is None:
            return found
        query = HistoryQuery(**{name: getattr(query, name) for name in query.__slots__} | {"after": page.after})


async def codes(store, scope):
    one, all_of_it = await store.verification.thread(scope, "t1"), await store.verification.subject(scope)
    assert {each.code for each in one.findings} == {each.code for each in all_of_it.findings}
    return {each.code for each in one.findings}


async def clean(store, scope):
    report = await store.verification.subject(scope)
    assert report.findings == []
    return report


async def test_an_untouched_thread_is_whole(guarded, scope, chain, watch):
    report = await guarded.verification.thread(scope, "t1")
    assert (report.threads, report.checkpoints, report.pending_writes, report.findings) == (1, 5, 1, [])
    assert report.pieces > 0
    assert len(await listed(guarded, scope)) == 5
    assert len(await listed(guarded, scope, namespace=None)) == 5
    assert watch.failures == 0


async def test_an_edited_content_is_refused(guarded, scope, chain, attacker, watch):
    await attacker.execute(
        "UPDATE stateroom.checkpoints SET manifest = set_byte(manifest, 100, get_byte(manifest, 100) # 1)"
        " WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3",
        chain[2].checkpoint_id,
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope, checkpoint_id=chain[2].checkpoint_id)
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope)
    assert watch.failures == 2
    report = await guarded.verification.thread(scope, "t1")
    assert [(each.code, each.checkpoint_id) for each in report.findings] == [("checkpoint", chain[2].checkpoint_id)]
    assert report.checkpoints == 4
    assert watch.failures == 3


@pytest.mark.parametrize("column", ["status", "step", "agent", "parent_id", "created_at", "run_id"])
async def test_edited_metadata_is_refused(guarded, scope, chain, attacker, column):
    value = {"status": "'done'", "step": "77", "created_at": "now()"}.get(column, "'other'")
    await attacker.execute(
        f"UPDATE stateroom.checkpoints SET {column} = {value}"  # noqa: S608
        " WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3",
        chain[-1].checkpoint_id,
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert "checkpoint" in await codes(guarded, scope)


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_truncation_is_noticed_by_load_listing_and_verification(guarded, scope, chain, attacker, count):
    for each in chain[-count:]:
        await attacker.execute(
            "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3",
            each.checkpoint_id,
        )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope, limit=1)
    with pytest.raises(IntegrityFailure):
        await save(guarded, scope)
    assert {"head-checkpoint", "live-set"} <= await codes(guarded, scope)


async def test_truncation_with_an_older_head_put_back_is_noticed_by_whoever_asks_beyond_it(
    guarded, scope, attacker, chain
):
    old = await attacker.copy("heads")
    newest = await save(guarded, scope)
    await attacker.put_back(old)
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope, checkpoint_id=newest.checkpoint_id)
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope)
    assert {"head-checkpoint", "live-set"} <= await codes(guarded, scope)


@pytest.mark.parametrize("which", [0, 2, 3])
async def test_a_deletion_in_the_middle_is_noticed(guarded, scope, chain, attacker, which):
    await attacker.execute(
        "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3",
        chain[which].checkpoint_id,
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope, checkpoint_id=chain[which].checkpoint_id)
    for namespace in ("", None):
        with pytest.raises(IntegrityFailure):
            await listed(guarded, scope, namespace=namespace)
    assert await codes(guarded, scope) == {"live-set"}


async def test_swapped_checkpoints_are_refused(guarded, scope, chain, attacker):
    one, other = chain[1].checkpoint_id, chain[2].checkpoint_id
    rename = (
        "UPDATE stateroom.checkpoints SET checkpoint_id = $4"
        " WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3"
    )
    for before, after in ((one, "x"), (other, one), ("x", other)):
        await attacker.execute(rename, before, after)
    for each in (one, other):
        with pytest.raises(IntegrityFailure):
            await load(guarded, scope, checkpoint_id=each)
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope)
    assert "checkpoint" in await codes(guarded, scope)


async def test_a_forged_checkpoint_is_refused(guarded, scope, chain, attacker):
    [row] = [r for r in (await attacker.copy("checkpoints"))["checkpoints"] if r["step"] == 4]
    forged = {**row, "checkpoint_id": row["checkpoint_id"][:-1] + "z", "parent_id": row["checkpoint_id"]}
    await attacker.insert("checkpoints", forged)
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope, checkpoint_id=forged["checkpoint_id"])
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope)
    assert "checkpoint" in await codes(guarded, scope)


async def test_a_genuine_checkpoint_that_was_pruned_and_is_put_back_is_noticed(guarded, scope, chain, attacker):
    old = (await attacker.copy("checkpoints"))["checkpoints"]
    chunks = (await attacker.copy("chunks"))["chunks"]
    await guarded.threads.prune(scope, ["t1"], "keep_latest")
    assert len(await listed(guarded, scope)) == 1
    await clean(guarded, scope)
    await attacker.insert("checkpoints", old[1])
    await attacker.put_back({"chunks": chunks})
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope)
    assert await codes(guarded, scope) == {"live-set"}


async def test_a_row_of_another_thread_is_refused(guarded, scope, chain, attacker):
    await save(guarded, scope, "t2", checkpoint_id=chain[-1].checkpoint_id, content=state(a="evil"))
    await attacker.execute(
        "UPDATE stateroom.checkpoints c SET manifest = o.manifest, piece_ids = o.piece_ids FROM stateroom.checkpoints o"
        " WHERE c.tenant_id = $1 AND c.subject_id = $2 AND c.thread_id = 't1' AND o.tenant_id = $1"
        " AND o.subject_id = $2 AND o.thread_id = 't2' AND c.checkpoint_id = o.checkpoint_id"
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)


async def test_a_namespace_taken_away_is_noticed_by_load_and_listing(guarded, scope, chain, attacker):
    await save(guarded, scope, namespace="sub")
    for table in ("heads", "checkpoints"):
        await attacker.execute(
            f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2 AND namespace = 'sub'"  # noqa: S608
        )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope, namespace="sub")
    for namespace in ("sub", "", None):
        with pytest.raises(IntegrityFailure):
            await listed(guarded, scope, namespace=namespace)
    assert await codes(guarded, scope) == {"namespaces"}


@pytest.mark.parametrize("table", ["heads", "threads"])
async def test_rows_without_what_they_belong_to_are_noticed(guarded, scope, chain, attacker, table):
    await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    with pytest.raises(IntegrityFailure):
        await listed(guarded, scope)
    assert await codes(guarded, scope) & {"head-missing", "thread-missing"}


async def test_a_missing_piece_and_an_altered_write_are_found(guarded, scope, chain, attacker):
    await attacker.execute("UPDATE stateroom.pending_writes SET channel = 'b' WHERE tenant_id = $1 AND subject_id = $2")
    await attacker.execute(
        "DELETE FROM stateroom.chunks c USING stateroom.checkpoints k WHERE c.tenant_id = $1 AND c.subject_id = $2"
        " AND k.tenant_id = $1 AND k.subject_id = $2 AND k.step = 2 AND c.piece_id = substring(k.piece_ids FOR 17)"
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert await codes(guarded, scope) == {"pending-write", "piece-missing"}


@pytest.mark.parametrize("column", ["children", "named_ids"])
async def test_a_piece_whose_clear_ids_are_no_ids_is_found_and_hides_nothing_else(
    guarded, scope, chain, attacker, column
):
    await attacker.execute(
        f"UPDATE stateroom.chunks SET {column} = '\\x01' WHERE ctid ="  # noqa: S608 - a constant of this test
        " (SELECT min(ctid) FROM stateroom.chunks WHERE tenant_id = $1 AND subject_id = $2)"
    )
    await attacker.execute("UPDATE stateroom.pending_writes SET channel = 'b' WHERE tenant_id = $1 AND subject_id = $2")
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert await codes(guarded, scope) >= {"piece", "pending-write"}


# --- pending writes --------------------------------------------------------------------------------

ANCHOR = "stateroom:once"
TAKE_AWAY = "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3"
ONE_WRITE = " AND task_id = 'one' AND idx = 1"


@pytest.fixture
async def written(guarded, scope, chain):
    """Writes of two tasks against the head, an older checkpoint and one that never comes."""
    for checkpoint_id in (chain[-1].checkpoint_id, chain[2].checkpoint_id, ANCHOR):
        for task_id in ("one", "two"):
            await put(
                guarded, scope, checkpoint_id, write(-1, "a", 1), write(0, "a", 2), write(1, "a", 3), task_id=task_id
            )
    return chain


def task_writes(store, scope, checkpoint_id, task_id="one"):
    return store.checkpoints.task_writes(scope, "t1", "", checkpoint_id, task_id)


def reads_of_older(store, scope, chain):
    """Everything that reads pending writes, but a load of the head."""
    return {
        "load": lambda: load(store, scope, checkpoint_id=chain[2].checkpoint_id),
        "task_writes": lambda: task_writes(store, scope, chain[2].checkpoint_id),
        "listing": lambda: listed(store, scope),
        "search": lambda: listed(store, scope, thread_id=None, namespace=None, status="active"),
        "channel_history": lambda: store.checkpoints.channel_history(
            scope, "t1", "", chain[3].checkpoint_id, ["a", "missing"]
        ),
        "prune": lambda: store.threads.prune(scope, ["t1"], "keep_latest"),
        "delete_runs": lambda: store.threads.delete_runs(scope, ["r"]),
        "copy": lambda: store.threads.copy(scope, "t1", "t2"),
    }


async def missed(store, scope, chain, *, head):
    for name, call in reads_of_older(store, scope, chain).items():
        if name == "delete_runs":
            continue  # no checkpoint has a run: it does not come to this thread
        with pytest.raises(IntegrityFailure):
            await call()
    if head:
        with pytest.raises(IntegrityFailure):
            await load(store, scope)
    else:
        await load(store, scope)
    assert await codes(store, scope) == {"pending-writes"}


async def test_untouched_writes_are_whole(guarded, scope, written, watch):
    await clean(guarded, scope)
    for call in reads_of_older(guarded, scope, written).values():
        await call()
    await clean(guarded, scope)
    assert len(await task_writes(guarded, scope, ANCHOR)) == 3
    assert len(writes_of(await load(guarded, scope))) == 7
    assert watch.failures == 0


@pytest.mark.parametrize("which", ["head", "older", "anchor"])
@pytest.mark.parametrize("also", [ONE_WRITE, " AND task_id = 'one'", ""], ids=["one", "task", "checkpoint"])
async def test_writes_taken_away_are_missed(guarded, scope, written, attacker, which, also):
    place = {"head": written[-1].checkpoint_id, "older": written[2].checkpoint_id, "anchor": ANCHOR}[which]
    await attacker.execute(TAKE_AWAY + also, place)
    await missed(guarded, scope, written, head=which == "head")


async def test_all_writes_of_a_thread_taken_away_are_missed(guarded, scope, written, attacker):
    await attacker.execute("DELETE FROM stateroom.pending_writes WHERE tenant_id = $1 AND subject_id = $2")
    await missed(guarded, scope, written, head=True)


@pytest.mark.parametrize("move", ["checkpoint_id = 'elsewhere'", "task_id = 'elsewhere'", "idx = 7", "namespace = 'x'"])
@pytest.mark.parametrize("which", ["head", "older"])
async def test_a_write_moved_out_of_the_way_is_missed(guarded, scope, written, attacker, which, move):
    place = written[-1 if which == "head" else 2].checkpoint_id
    await attacker.execute(
        f"UPDATE stateroom.pending_writes SET {move} WHERE tenant_id = $1"  # noqa: S608
        f" AND subject_id = $2 AND checkpoint_id = $3{ONE_WRITE}",
        place,
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope, checkpoint_id=place)
    for task_id in ("one", "two"):
        with pytest.raises(IntegrityFailure):
            await task_writes(guarded, scope, place, task_id)
    assert "pending-write" in await codes(guarded, scope)


async def test_an_altered_member_is_refused(guarded, scope, written, attacker):
    await attacker.execute(
        "UPDATE stateroom.pending_writes SET member = set_byte(member, 0, get_byte(member, 0) # 1)"  # noqa: S608
        f" WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3{ONE_WRITE}",
        written[-1].checkpoint_id,
    )
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert await codes(guarded, scope) == {"pending-write"}


@pytest.mark.parametrize("which", ["head", "older", "anchor"])
async def test_a_replaced_write_put_back_is_noticed(guarded, scope, written, attacker, which):
    place = {"head": written[-1].checkpoint_id, "older": written[2].checkpoint_id, "anchor": ANCHOR}[which]
    before = await attacker.copy("pending_writes")
    assert (await put(guarded, scope, place, write(-1, "a", "newer"), task_id="one")).stored == 1
    await clean(guarded, scope)
    await attacker.put_back(before)
    await missed(guarded, scope, written, head=which == "head")


async def test_a_write_that_was_removed_and_is_put_back_is_noticed(guarded, scope, written, attacker):
    before = (await attacker.copy("pending_writes"))["pending_writes"]
    [old] = [each for each in before if each["checkpoint_id"] == written[2].checkpoint_id and each["task_id"] == "one"
             and each["idx"] == 0]  # fmt: skip
    await guarded.threads.prune(scope, ["t1"], "keep_latest")
    await clean(guarded, scope)
    await attacker.insert("pending_writes", old)
    with pytest.raises(IntegrityFailure):
        await task_writes(guarded, scope, written[2].checkpoint_id)
    assert await codes(guarded, scope) == {"pending-writes"}


async def test_a_write_of_an_earlier_life_of_the_thread_is_noticed(guarded, scope, written, attacker):
    before = (await attacker.copy("pending_writes"))["pending_writes"]
    await guarded.threads.delete(scope, "t1")
    await save(guarded, scope, checkpoint_id=written[2].checkpoint_id)
    for row in before:
        if row["checkpoint_id"] == written[2].checkpoint_id:
            await attacker.insert("pending_writes", row)
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert await codes(guarded, scope) == {"pending-writes"}


async def test_writes_without_their_thread_are_noticed(guarded, scope, written, attacker):
    for table in ("threads", "heads", "checkpoints"):
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    with pytest.raises(IntegrityFailure):
        await task_writes(guarded, scope, written[2].checkpoint_id)


async def test_writes_that_arrived_early_are_missed_with_the_head_they_belong_to(guarded, scope, attacker):
    await put(guarded, scope, "c", write(0, "a", 1), task_id="one")
    await save(guarded, scope, checkpoint_id="c")
    assert len(writes_of(await load(guarded, scope))) == 1
    await clean(guarded, scope)
    await attacker.execute(TAKE_AWAY, "c")
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert await codes(guarded, scope) == {"pending-writes"}


async def test_writes_taken_away_with_the_threads_seal_put_back_are_missed_by_loads_of_the_head(
    guarded, scope, chain, attacker
):
    before = await attacker.copy("pending_writes", "threads")
    await put(guarded, scope, chain[-1].checkpoint_id, write(0, "a", 1), task_id="one")
    await attacker.put_back(before)
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)
    assert await codes(guarded, scope) == {"pending-writes"}


async def test_writes_taken_away_with_all_seals_put_back_are_missed_by_who_keeps_a_token(
    guarded, scope, chain, attacker, watch
):
    before = await attacker.copy("pending_writes", "threads", "heads")
    receipt = await put(guarded, scope, chain[-1].checkpoint_id, write(0, "a", 1), task_id="one")
    await admitted(guarded, scope, receipt.token)
    await attacker.put_back(before)
    await clean(guarded, scope)
    await refused_as_rollback(guarded, scope, receipt.token)
    with pytest.raises(RollbackDetected):
        await put(guarded, scope, chain[-1].checkpoint_id, write(0, "a", 2), task_id="two", known_token=receipt.token)
    await clean(guarded, scope)
    assert len(writes_of(await load(guarded, scope))) == 1
    await put(guarded, scope, chain[-1].checkpoint_id, write(0, "a", 2), task_id="two")  # the sequence is as it was
    await refused_as_rollback(guarded, scope, receipt.token)


async def seals(attacker):
    copied = await attacker.copy("threads", "heads")
    return [(row["seal"], row.get("sequence")) for rows in copied.values() for row in rows]


async def test_writes_that_change_nothing_move_nothing(guarded, scope, chain, attacker):
    place = chain[-1].checkpoint_id
    first = await put(guarded, scope, place, write(0, "a", 1), task_id="one", status="waiting")
    before = await seals(attacker)
    for status in ("waiting", None):
        again = await put(guarded, scope, place, write(0, "a", 1), task_id="one", status=status)
        assert (again.stored, again.unchanged, again.token) == (0, 1, first.token)
    assert await seals(attacker) == before


async def test_writes_of_the_head_move_its_sequence_and_others_do_not(guarded, scope, chain):
    assert (await put(guarded, scope, chain[2].checkpoint_id, write(0, "a", 1))).token is None
    assert (await put(guarded, scope, ANCHOR, write(0, "a", 1))).token is None
    assert (await put(guarded, scope, chain[-1].checkpoint_id, write(5, "a", 1))).token is not None
    assert (await save(guarded, scope)).sequence == chain[-1].sequence + 3  # the fixture's put, this put, this save


# --- rollback: everything agrees with everything, only the client knows better ---------------------


async def known_readers(store, scope, token):
    """Everything that takes a token, as calls."""
    return [
        lambda: store.checkpoints.load(scope, "t1", "", None, with_state=True, known_token=token),
        lambda: store.checkpoints.history(scope, HistoryQuery(thread_id="t1", known_token=token)),
        lambda: store.checkpoints.save(scope, Save(thread_id="t1", content=state(a=1), known_token=token)),
        lambda: store.checkpoints.channel_history(scope, "t1", "", None, ["a"], known_token=token),
    ]


async def refused_as_rollback(store, scope, token):
    for call in await known_readers(store, scope, token):
        with pytest.raises(RollbackDetected):
            await call()


async def test_a_rollback_of_the_whole_thread_is_noticed_by_who_keeps_a_token(guarded, scope, chain, attacker, watch):
    yesterday = await attacker.copy()
    saved = await save(guarded, scope)
    await attacker.put_back(yesterday)
    await clean(guarded, scope)
    assert len(await listed(guarded, scope)) == 5
    await refused_as_rollback(guarded, scope, saved.token)
    assert watch.failures == 4
    await save(guarded, scope)  # somebody else's save brings the sequence to where it was, but not the state
    await refused_as_rollback(guarded, scope, saved.token)


async def test_a_thread_deleted_and_made_again_by_sql_is_noticed_by_who_keeps_a_token(guarded, scope, chain, attacker):
    for table in ("threads", "heads", "checkpoints", "pending_writes", "chunks"):
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    await refused_as_rollback(guarded, scope, chain[-1].token)
    for _ in range(8):
        await save(guarded, scope)
    await refused_as_rollback(guarded, scope, chain[-1].token)


async def test_a_subject_whose_keys_were_replaced_is_noticed_by_who_keeps_a_token(
    guarded, scope, chain, attacker, database, root_key
):
    for table in (*SUBJECT_TABLES, "subject_keys"):
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    guarded.keys.evict(scope)
    with pytest.raises(RollbackDetected):
        await guarded.checkpoints.load(scope, "t1", "", None, with_state=True, known_token=chain[-1].token)
    await save(guarded, scope)
    await refused_as_rollback(guarded, scope, chain[-1].token)


async def test_a_token_of_another_thread_is_refused(guarded, scope, chain):
    other = await save(guarded, scope, "t2")
    with pytest.raises(RollbackDetected):
        await guarded.checkpoints.load(scope, "t1", "", None, with_state=True, known_token=other.token)


async def admitted(store, scope, token, *, gone=False):
    for call in (await known_readers(store, scope, token))[:2]:
        try:
            await call()
        except CheckpointNotFound:
            assert gone


async def test_legal_operations_keep_every_token_good(guarded, scope):
    tokens = [(await save(guarded, scope, run_id="first")).token for _ in range(3)]
    tokens.append((await save(guarded, scope, run_id="second")).token)
    tokens.append((await guarded.checkpoints.load(scope, "t1", "", None, with_state=True)).token)
    await guarded.threads.prune(scope, ["t1"], "keep_latest")
    await guarded.threads.copy(scope, "t1", "t2")
    for each in tokens:
        await admitted(guarded, scope, each)
    await guarded.threads.delete_runs(scope, ["second"])
    for each in tokens:
        await admitted(guarded, scope, each, gone=True)
    tokens.append((await save(guarded, scope)).token)  # the namespace begins again, above where it was
    for each in tokens:
        await admitted(guarded, scope, each)
    await guarded.threads.delete(scope, "t1")
    for each in tokens:
        await admitted(guarded, scope, each, gone=True)
    await save(guarded, scope)
    for each in tokens:
        await admitted(guarded, scope, each)
    await guarded.head_anchors.flush()
    await clean(guarded, scope)


# --- anchored heads --------------------------------------------------------------------------------


async def test_a_database_restored_to_before_an_anchor_is_reported(guarded, scope, chain, attacker, watch):
    await guarded.head_anchors.flush()
    yesterday = await attacker.copy()
    await save(guarded, scope)
    await save(guarded, scope, namespace="sub")
    await save(guarded, scope, "t9")
    assert await guarded.head_anchors.flush() == 3
    await clean(guarded, scope)
    await attacker.put_back(yesterday)
    report = await guarded.verification.subject(scope)
    assert sorted((each.code, each.thread_id) for each in report.findings if each.thread_id) == [
        ("older-than-anchor", "t1"),
        ("older-than-anchor", "t1"),
    ]
    assert [each.code for each in report.findings if each.thread_id is None] == ["missing-since-anchor"]
    assert watch.failures == 3
    assert {each.code for each in (await guarded.verification.thread(scope, "t9")).findings} == {"missing-since-anchor"}


async def test_a_thread_brought_back_to_life_does_not_silence_its_anchor(guarded, scope, chain, attacker):
    await guarded.head_anchors.flush()
    for table in ("threads", "heads", "checkpoints", "pending_writes", "chunks"):
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    await save(guarded, scope)
    assert await codes(guarded, scope) == {"missing-since-anchor"}


async def test_anchors_are_merged_and_an_altered_one_is_found(guarded, scope):
    for _ in range(70):
        await save(guarded, scope)
        await guarded.head_anchors.flush()
    keys = await guarded.blobs.list_keys(f"head-anchors/v1/{scope.tenant_id.hex}/")
    assert 0 < len(keys) < 64
    await clean(guarded, scope)
    held = guarded.blobs._objects
    held[keys[0]] = held[keys[0]][:-1] + bytes([held[keys[0]][-1] ^ 1])
    assert await codes(guarded, scope) == {"anchor"}


async def test_heads_that_could_not_be_anchored_are_anchored_later(guarded, scope, chain):
    guarded.blobs.available = False
    with pytest.raises(Exception, match="cannot serve"):
        await guarded.head_anchors.flush()
    guarded.blobs.available = True
    assert await guarded.head_anchors.flush() == 1
    assert await guarded.head_anchors.flush() == 0


async def test_a_thread_nobody_has_is_not_found(guarded, scope, chain):
    with pytest.raises(ThreadNotFound):
        await guarded.verification.thread(scope, "nobody's")
    with pytest.raises(ThreadNotFound):
        await guarded.verification.thread(Scope(scope.tenant_id, "nobody"), "t1")


# --- no false alarm --------------------------------------------------------------------------------


@asynccontextmanager
async def running(*works):
    ended = asyncio.Event()
    tasks = [asyncio.create_task(work(ended)) for work in works]
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(*tasks)


async def read_writes(store, scope):
    """Everything that compares pending writes, at the head and elsewhere."""
    found = (await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", limit=50))).items
    for each in found[:3]:
        for call in (
            store.checkpoints.load(scope, "t1", each.namespace, each.checkpoint_id, with_state=True),
            store.checkpoints.channel_history(scope, "t1", each.namespace, each.checkpoint_id, ["a", "missing"]),
        ):
            with suppress(CheckpointNotFound):  # pruned meanwhile
                await call
        await task_writes(store, scope, each.checkpoint_id)
    await task_writes(store, scope, ANCHOR)


async def read_on(store, scope):
    """Load a few times, each time with what the time before has given."""
    known = None
    for _ in range(3):
        try:
            loaded = await store.checkpoints.load(scope, "t1", "", None, with_state=True, known_token=known)
        except CheckpointNotFound:  # a run was deleted, and with it all there was
            continue
        known = loaded.token


class Writers:
    """Everything that changes one thread legally, in parallel, on one store."""

    rounds = 25

    def __init__(self, store, scope):
        self._store = store
        self._scope = scope

    def puts(self, namespace, checkpoint_id, number, known):
        for task_id in ("one", "two"):
            yield put(
                self._store,
                self._scope,
                checkpoint_id,
                *(write(idx, "a", document(f"{task_id}{number}")) for idx in (-2, -1, 0, 1)),
                task_id=task_id,
                namespace=namespace,
                known_token=known,
            )
        yield put(self._store, self._scope, ANCHOR, write(number, "a", number), write(-1, "a", number), task_id="one")

    async def write(self, namespace):
        known = None
        for number in range(self.rounds):
            checkpoint_id = mint_checkpoint_id(datetime.now(UTC), None) if number % 2 else None
            new = Save(
                thread_id="t1",
                namespace=namespace,
                content=state(a=document(f"{namespace}{number}", 8000)),
                checkpoint_id=checkpoint_id,
                run_id=f"r{number % 3}",
                known_token=known,
            )
            # Where the id is known, writes arrive before the checkpoint, at the same time, or later.
            early = self.puts(namespace, checkpoint_id, number, known) if checkpoint_id else ()
            saved, *_ = await asyncio.gather(self._store.checkpoints.save(self._scope, new), *early)
            puts = self.puts(namespace, saved.checkpoint_id, number, saved.token)
            tokens = [each.token for each in await asyncio.gather(*puts) if each.token]
            known = max((saved.token, *tokens), key=lambda token: ThreadToken.parse(token).sequence)

    async def prune(self, ended):
        number = 0
        while not ended.is_set():
            number += 1
            await self._store.threads.prune(self._scope, ["t1"], "keep_latest")
            await self._store.threads.delete_runs(self._scope, [f"r{number % 3}"])
            await self._store.threads.copy(self._scope, "t1", f"copy-{number}")
            await self._store.threads.delete(self._scope, f"copy-{number}")

    async def reseal(self, ended):
        tenant = TenantScope(self._scope.tenant_id)
        while not ended.is_set():
            rotated = await self._store.rotation.rotate_subject(self._scope, "api-key:test")
            while (await self._store.jobs.get(tenant, rotated.job_id)).state not in {"done", "failed"}:
                if not await self._store.runner.run_due():
                    await asyncio.sleep(0.02)  # somebody who began before is still at work


async def test_writers_pruners_and_readers_at_once_raise_no_false_alarm(guarded, scope, watch):
    """Every legal operation on one thread in parallel, while everything that compares is comparing."""
    writers = Writers(guarded, scope)

    async def reading(ended):
        while not ended.is_set():
            await listed(guarded, scope)
            await listed(guarded, scope, namespace=None)
            await read_on(guarded, scope)
            await read_writes(guarded, scope)

    async def verifying(ended):
        while not ended.is_set():
            await guarded.head_anchors.flush()
            assert (await guarded.verification.subject(scope)).findings == []
            assert (await guarded.verification.thread(scope, "t1")).findings == []

    await save(guarded, scope)
    async with running(writers.prune, writers.reseal, reading, verifying):
        await asyncio.gather(writers.write(""), writers.write("sub"))
    await guarded.head_anchors.flush()
    await clean(guarded, scope)
    assert watch.failures == 0
