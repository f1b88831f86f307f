"""Whoever edits, drops, adds or puts back rows is noticed by the next reader, or by verification (threats 6 to 8)."""

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from crypto import KeyDestroyed
from storage.blobs.memory import MemoryBlobStore
from storage.errors import CheckpointNotFound, IntegrityFailure, RollbackDetected, ThreadNotFound, Unavailable
from storage.format.ids import mint_checkpoint_id
from storage.format.token import ThreadToken
from storage.model import (
    ChannelHistoryQuery,
    Compaction,
    HistoryQuery,
    Idempotency,
    Load,
    Parent,
    Precondition,
    Save,
    TaskWritesQuery,
)
from storage.postgres.unit_of_work import Silent
from storage.scope import ClientShare, Scope, TenantScope
from storage.service import Store, StoreOptions
from storage.statements.keys.keys import HAS_ANYTHING
from storage.verification.jobs import TenantReport
from tests.support.interleaving import Gate, Steered
from tests.support.states import document, load, patch, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

DESTROYED = "state = 'destroyed', wrapped = NULL, destroyed_at = now()"
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
def guarded(connections, root_key, watch):
    """A store with an object store to anchor heads in."""
    options = StoreOptions(blobs=MemoryBlobStore(), observer=watch)
    return Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options)


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
    return store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", checkpoint_id, task_id))


def reads_of_older(store, scope, chain):
    """Everything that reads pending writes, but a load of the head."""
    return {
        "load": lambda: load(store, scope, checkpoint_id=chain[2].checkpoint_id),
        "task_writes": lambda: task_writes(store, scope, chain[2].checkpoint_id),
        "listing": lambda: listed(store, scope),
        "search": lambda: listed(store, scope, namespace=None, status="active"),
        "channel_history": lambda: store.checkpoints.channel_history(
            scope, ChannelHistoryQuery("t1", "", chain[3].checkpoint_id, ["a", "missing"])
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
    forget(guarded, scope)
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


# --- heads that were put back or taken away ---------------------------------------------------------


@pytest.fixture
def other(connections, root_key):
    """Another process, which remembers nothing of the first one's saves."""
    return Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID)


def saves_of(store, scope, chain):
    """Every way to add to a thread, and to be told that it is stored already."""
    head, older = chain[-1].checkpoint_id, Parent(chain[2].checkpoint_id)
    return {
        "plain": lambda: save(store, scope),
        "if-match": lambda: save(store, scope, precondition=Precondition(head)),
        "patch": lambda: save(store, scope, content=patch(put={"a": 1}), precondition=Precondition(head)),
        "fork": lambda: save(store, scope, parent=older, fork=True),
        "again": lambda: save(
            store, scope, checkpoint_id=chain[1].checkpoint_id, content=state(a=document("1"), n=1),
            parent=Parent(chain[0].checkpoint_id),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("how", ["plain", "if-match", "patch", "fork", "again"])
@pytest.mark.parametrize("remembers", [True, False])
async def test_a_save_on_a_head_that_was_put_back_is_refused(guarded, other, scope, chain, attacker, how, remembers):
    old = await attacker.copy("heads")
    await save(other, scope)  # which leaves the thread's seal as it was: `guarded` remembers what is put back
    await attacker.put_back(old)
    with pytest.raises(IntegrityFailure):
        await saves_of(guarded if remembers else other, scope, chain)[how]()
    assert (await attacker.copy("heads")) == old


@pytest.mark.parametrize("namespace", ["", "sub"])
async def test_a_head_that_was_put_back_is_noticed_by_every_load(guarded, scope, chain, attacker, namespace):
    older = chain[0] if namespace == "" else await save(guarded, scope, namespace=namespace)
    old = await attacker.copy("heads")
    await save(guarded, scope, namespace=namespace)
    await attacker.put_back(old)
    for checkpoint_id in (None, older.checkpoint_id):
        for with_state in (True, False):
            with pytest.raises(IntegrityFailure):
                await guarded.checkpoints.load(scope, Load("t1", namespace, checkpoint_id, with_state=with_state))
        load = Load("t1", namespace, checkpoint_id, with_state=True, history=["a"])
        with pytest.raises(IntegrityFailure):
            await guarded.checkpoints.load(scope, load)
        with pytest.raises(IntegrityFailure):
            await guarded.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", namespace, checkpoint_id, ["a"]))


async def test_ids_compare_bytewise_wherever_the_newest_is_looked_for(guarded, scope, attacker, watch):
    for checkpoint_id in ("B", "_", "a", "é", "\U0001f600"):  # in the order of their bytes
        await save(guarded, scope, checkpoint_id=checkpoint_id)
        old = await attacker.copy("heads")
        assert (await load(guarded, scope)).checkpoint_id == checkpoint_id
    await save(guarded, scope, checkpoint_id="A", parent=Parent("B"), fork=True)
    assert (await load(guarded, scope)).checkpoint_id == "\U0001f600"
    await clean(guarded, scope)
    assert watch.failures == 0
    await save(guarded, scope, checkpoint_id="\U0001f601")
    await attacker.put_back(old)
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)


@pytest.mark.parametrize("how", ["plain", "fork", "again"])
@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("tables", [("heads",), ("heads", "threads")], ids="+".join)
async def test_a_save_beside_what_lost_its_head_is_refused(
    guarded, other, scope, chain, attacker, tables, how, remembers
):
    for table in tables:
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    with pytest.raises(IntegrityFailure):
        await saves_of(guarded if remembers else other, scope, chain)[how]()
    assert (await attacker.copy("heads", "threads"))["heads"] == []
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)


@pytest.mark.parametrize("left", ["heads", "checkpoints", "pending_writes"])
async def test_a_thread_is_not_made_again_over_what_is_left_of_it(guarded, scope, attacker, left):
    await save(guarded, scope, namespace="sub")
    await put(guarded, scope, ANCHOR, write(0, "a", 1), namespace="sub")
    for table in {"threads", "heads", "checkpoints", "pending_writes"} - {left}:
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    for call in (save(guarded, scope), put(guarded, scope, ANCHOR, write(0, "a", 2))):
        with pytest.raises(IntegrityFailure):
            await call
    assert (await attacker.copy("threads"))["threads"] == []


@pytest.mark.parametrize("remembers", [True, False])
async def test_a_fork_beside_a_truncated_head_is_refused(guarded, other, scope, chain, attacker, remembers):
    await attacker.execute(
        "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3",
        chain[-1].checkpoint_id,
    )
    with pytest.raises(IntegrityFailure):
        await saves_of(guarded if remembers else other, scope, chain)["fork"]()


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("which", [0, 3])
async def test_a_save_does_not_write_over_an_edited_head(guarded, other, scope, chain, attacker, remembers, which):
    await attacker.execute(
        "UPDATE stateroom.heads SET head_id = $3 WHERE tenant_id = $1 AND subject_id = $2", chain[which].checkpoint_id
    )
    edited = await attacker.copy("heads")
    store = guarded if remembers else other
    for call in (save(store, scope), put(store, scope, chain[-1].checkpoint_id, write(9, "a", 1))):
        with pytest.raises(IntegrityFailure):
            await call
    assert await attacker.copy("heads") == edited


async def test_a_compaction_does_not_stand_on_a_head_that_was_put_back(other, scope, attacker):
    head = await save(other, scope, content=state(messages=[1, 2, 3]))
    await put(other, scope, head.checkpoint_id, write(0, "messages", 4))
    old = await attacker.copy("heads")
    await save(other, scope, content=state(messages=[1, 2, 3, 4]))
    await attacker.put_back(old)
    with pytest.raises(IntegrityFailure):  # not that writes of the older head are still to be applied
        await other.compacting.compact(scope, Compaction(thread_id="t1", channel="messages", keep_last=2))


# --- channels of pending writes ---------------------------------------------------------------------


@pytest.mark.parametrize("edit", ["channel = 'x'", "channel = 'b'", "state_version = 7", "status = 'done'"])
@pytest.mark.parametrize("marked", [True, False])
async def test_a_write_that_was_renamed_is_not_left_out_of_its_channels_history(
    guarded, scope, chain, attacker, edit, marked
):
    asked = ("t1", "", None, ["d"])
    await put(guarded, scope, chain[-1].checkpoint_id, write(1, "d", "first"))
    await save(guarded, scope)
    mark = (await guarded.checkpoints.channel_history(scope, ChannelHistoryQuery(*asked))).mark if marked else None
    parent = await save(guarded, scope)
    await put(guarded, scope, parent.checkpoint_id, write(0, "d", "second"), write(1, "b", "other"))
    await save(guarded, scope)
    given = await guarded.checkpoints.channel_history(scope, ChannelHistoryQuery(*asked, mark=mark))
    assert [len(given.channels["d"].writes), given.channels["d"].continues] == ([1, True] if marked else [2, False])
    await attacker.execute(
        f"UPDATE stateroom.pending_writes SET {edit}"  # noqa: S608
        " WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3 AND channel = 'd'",
        parent.checkpoint_id,
    )
    with pytest.raises(IntegrityFailure):
        await guarded.checkpoints.channel_history(scope, ChannelHistoryQuery(*asked, mark=mark))


async def test_a_write_that_was_given_the_name_of_a_channel_is_not_added_to_its_history(
    guarded, scope, chain, attacker
):
    await put(guarded, scope, chain[-1].checkpoint_id, write(1, "b", "other"))
    await save(guarded, scope)
    await attacker.execute(
        "UPDATE stateroom.pending_writes SET channel = 'd' WHERE tenant_id = $1 AND subject_id = $2 AND channel = 'b'"
    )
    with pytest.raises(IntegrityFailure):
        await guarded.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d"]))


# --- statuses -----------------------------------------------------------------------------------------


async def shows_status(store, scope, checkpoint_id):
    """The status in a load and in a listing with state; verification finds nothing."""
    loaded = await load(store, scope, checkpoint_id=checkpoint_id)
    [shown] = [each for each in await listed(store, scope) if each.checkpoint_id == checkpoint_id]
    assert loaded.status == shown.status
    await clean(store, scope)
    return loaded.status


@pytest.mark.parametrize("which", [2, -1])
@pytest.mark.parametrize("reported", [None, "failed"])
@pytest.mark.parametrize("outcome", [None, "done", "active"])
async def test_an_edited_status_is_refused(guarded, scope, chain, attacker, which, reported, outcome):
    checkpoint_id = chain[which].checkpoint_id
    if reported is not None:
        await put(guarded, scope, checkpoint_id, write(-1, "__error__", "boom"), status=reported, task_id="two")
    assert await shows_status(guarded, scope, checkpoint_id) == (reported or "active")
    await attacker.execute(
        "UPDATE stateroom.checkpoints SET outcome = $4 WHERE tenant_id = $1 AND subject_id = $2 AND checkpoint_id = $3",
        checkpoint_id,
        outcome,
    )
    if reported is None and outcome is None:
        assert await shows_status(guarded, scope, checkpoint_id) == "active"
        return
    for call in (load(guarded, scope, checkpoint_id=checkpoint_id), listed(guarded, scope)):
        with pytest.raises(IntegrityFailure):
            await call
    report = await guarded.verification.thread(scope, "t1")
    assert [(each.code, each.checkpoint_id) for each in report.findings] == [("checkpoint", checkpoint_id)]


async def test_whatever_tasks_report_is_no_edited_status(guarded, scope, chain, watch):
    """Also what comes early, again, as another one's successor, or with nothing to store."""
    head = chain[-1].checkpoint_id

    async def reports(status, *writes, task_id="one", checkpoint_id=head):
        await put(guarded, scope, checkpoint_id, *writes, task_id=task_id, status=status)

    await reports("failed")
    assert await shows_status(guarded, scope, head) == "active"  # nothing was stored that says so
    await reports("waiting", write(0, "a", 1))
    await reports("failed", write(0, "a", 1))
    assert await shows_status(guarded, scope, head) == "waiting"  # kept as it was written first
    await reports("failed", write(-1, "a", 1))
    assert await shows_status(guarded, scope, head) == "failed"
    await reports("done", write(-1, "a", 2))
    assert await shows_status(guarded, scope, head) == "done"
    await reports(None, write(-1, "a", 3))
    assert await shows_status(guarded, scope, head) == "waiting"
    await reports(None, write(1, "a", 1), task_id="two")
    assert await shows_status(guarded, scope, head) == "waiting"
    await asyncio.gather(*(reports(each, write(2, "a", 1), task_id=each) for each in ("failed", "done", "active")))
    assert await shows_status(guarded, scope, head) in {"failed", "done", "active"}
    for status in ("failed", None):
        await reports(status, write(-1, "a", 1), checkpoint_id="early")
    await save(guarded, scope, checkpoint_id="early")
    assert await shows_status(guarded, scope, "early") == "active"
    await reports("waiting", write(-1, "a", 1), checkpoint_id="earlier")
    await save(guarded, scope, checkpoint_id="earlier", parent=Parent(head), fork=True)
    assert await shows_status(guarded, scope, "earlier") == "waiting"
    await guarded.threads.copy(scope, "t1", "t2")
    await clean(guarded, scope)
    assert watch.failures == 0


async def test_writes_that_are_removed_by_age_take_what_they_said_with_them(guarded, scope, chain, watch):
    place = chain[2].checkpoint_id
    await put(guarded, scope, place, write(-1, "__error__", "boom"), status="failed")
    assert await shows_status(guarded, scope, place) == "failed"
    removed = await guarded.pruning.drop_writes(scope, "t1", datetime.now(UTC) + timedelta(days=1))
    assert removed.pending_writes == 1  # the head keeps its own
    assert await shows_status(guarded, scope, place) == "active"
    assert watch.failures == 0


# --- threads, as they are shown ---------------------------------------------------------------------


EDITED_THREADS = [
    "UPDATE stateroom.threads SET created_at = created_at - interval '1 day' WHERE tenant_id = $1 AND subject_id = $2",
    "UPDATE stateroom.threads SET client_share = true WHERE tenant_id = $1 AND subject_id = $2",
    "UPDATE stateroom.threads SET seal = '' WHERE tenant_id = $1 AND subject_id = $2",
    """INSERT INTO stateroom.threads
        (tenant_id, subject_id, thread_id, status, tier, strict, activity, created_at, updated_at, seal)
    SELECT tenant_id, subject_id, 't9', status, tier, strict, activity, created_at, updated_at, seal
    FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2""",
]
EDITED_HEADS = [
    "UPDATE stateroom.heads SET head_id = 'x' WHERE tenant_id = $1 AND subject_id = $2",
    "UPDATE stateroom.heads SET sequence = 9 WHERE tenant_id = $1 AND subject_id = $2",
    "DELETE FROM stateroom.heads WHERE tenant_id = $1 AND subject_id = $2",
    "DELETE FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2",
    "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND step = 4",
]


@pytest.mark.parametrize("edit", EDITED_THREADS + EDITED_HEADS)
async def test_an_edited_thread_is_not_shown(guarded, scope, chain, attacker, edit):
    await attacker.execute(edit)
    if edit in EDITED_THREADS:
        damaged = [each.thread_id for each in (await guarded.threads.list(scope)).items if each.damaged]
        assert damaged == ["t9" if "t9" in edit else "t1"]
    with pytest.raises(IntegrityFailure):
        await guarded.threads.get(scope, "t9" if "t9" in edit else "t1")


async def test_a_thread_whose_head_was_put_back_is_not_shown(guarded, scope, chain, attacker):
    old = await attacker.copy("heads")
    await save(guarded, scope)
    await attacker.put_back(old)
    with pytest.raises(IntegrityFailure):
        await guarded.threads.get(scope, "t1")


async def test_threads_are_shown_without_the_share_they_were_made_under(guarded, scope, chain, watch):
    share = ClientShare(bytes(range(32)))
    await guarded.checkpoints.save(scope, Save(thread_id="private", content=state(a=1)), share)
    await guarded.threads.put(scope, "empty")
    assert {each.thread_id for each in (await guarded.threads.list(scope)).items} == {"t1", "private", "empty"}
    shown = [await guarded.threads.get(scope, each) for each in ("t1", "private", "empty")]
    assert [each.client_share for each in shown] == [False, True, False]
    assert watch.failures == 0


# --- keys that were taken away ------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True], ids=["read again", "cached"])
@pytest.mark.parametrize("also", ["", " AND purpose = 'data'", " AND purpose = 'id'"], ids=["all", "data", "id"])
async def test_data_without_its_keys_is_noticed(guarded, scope, chain, attacker, watch, also, cached):
    await attacker.execute(
        f"DELETE FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id = $2{also}"  # noqa: S608
    )
    if not cached:
        guarded.keys.evict(scope)
    reads = {
        "save": lambda: save(guarded, scope),
        **reads_of_older(guarded, scope, chain),
        "threads": lambda: guarded.threads.list(scope),
        "thread": lambda: guarded.threads.get(scope, "t1"),
        "verify thread": lambda: guarded.verification.thread(scope, "t1"),
        "verify subject": lambda: guarded.verification.subject(scope),
    }
    del reads["prune"], reads["delete_runs"]  # what is sealed under lost keys can still be removed
    for call in reads.values():
        with pytest.raises(IntegrityFailure):
            await call()
    assert watch.failures == len(reads)
    _, report = await verified(guarded, scope)
    assert report.found["keys"] == 1
    assert [each.subject_id for each in report.findings if each.code == "keys"] == [scope.subject_id]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("which", ["purpose = 'data'", "purpose = 'id'"])
async def test_a_destroyed_key_beside_an_active_one_is_damage(guarded, scope, chain, attacker, watch, which, cached):
    await attacker.execute(
        f"UPDATE stateroom.subject_keys SET {DESTROYED} WHERE tenant_id = $1 AND subject_id = $2 AND {which}"  # noqa: S608
    )
    if not cached:
        guarded.keys.evict(scope)
    verbs = {
        "load": lambda: load(guarded, scope),
        "save": lambda: save(guarded, scope),
        "history": lambda: guarded.checkpoints.history(scope, HistoryQuery(thread_id="t1")),
        "threads": lambda: guarded.threads.list(scope),
        "thread": lambda: guarded.threads.get(scope, "t1"),
        "verify": lambda: guarded.verification.subject(scope),
    }
    async with asyncio.timeout(10):
        for verb in verbs.values():
            with pytest.raises(IntegrityFailure, match="others were not"):
                await verb()
    assert watch.failures == len(verbs)
    _, report = await verified(guarded, scope)
    assert [each.subject_id for each in report.findings if each.code == "keys"] == [scope.subject_id]


@pytest.mark.parametrize("column", ["wrapped", "kcv"])
@pytest.mark.parametrize("purpose", ["data", "id"])
async def test_an_edited_key_row_is_damage_though_the_keys_are_cached(guarded, scope, chain, attacker, purpose, column):
    await attacker.execute(
        f"UPDATE stateroom.subject_keys SET {column} = set_byte({column}, 0, get_byte({column}, 0) # 1)"  # noqa: S608
        f" WHERE tenant_id = $1 AND subject_id = $2 AND purpose = '{purpose}'"
    )
    for verb in (load, save):
        with pytest.raises(IntegrityFailure, match="does not authenticate"):
            await verb(guarded, scope)


@pytest.mark.parametrize("cached", [True, False])
async def test_a_destroyed_tenant_key_beside_what_is_left_of_others_is_damage(guarded, scope, chain, attacker, cached):
    await attacker.execute(
        "UPDATE stateroom.tenant_keys SET state = 'retired' WHERE tenant_id = $1 AND $2::text IS NOT NULL"
    )
    if not cached:
        guarded.keys.evict(scope)
        guarded.keys.evict_tenant(scope.tenant_id)
    async with asyncio.timeout(10):
        for verb in (load, save):
            with pytest.raises(IntegrityFailure, match="keys of the tenant"):
                await verb(guarded, scope)


async def verified(store, scope):
    """The job that verifies the tenant, and its report."""
    tenant = TenantScope(scope.tenant_id)
    job_id = await store.verifying.begin_tenant(tenant, "api-key:test")
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(tenant, job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    return job, msgspec.json.decode(job.note, type=TenantReport)


@pytest.mark.parametrize("left", ["threads", "heads", "checkpoints", "pending_writes"])
async def test_anything_without_its_keys_is_noticed(guarded, scope, chain, attacker, left):
    for table in {"threads", "heads", "checkpoints", "pending_writes", "subject_keys"} - {left}:
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    guarded.keys.evict(scope)
    with pytest.raises(IntegrityFailure):
        await load(guarded, scope)


async def test_a_subject_without_anything_is_no_damage(guarded, scope, watch):
    with pytest.raises(CheckpointNotFound):
        await load(guarded, scope)
    assert (await guarded.threads.list(scope)).items == []
    _, report = await verified(guarded, scope)
    assert (report.found, watch.failures) == ({}, 0)


async def test_keys_and_data_that_come_while_somebody_looks_are_no_damage(guarded, other, scope):
    looking = Gate(HAS_ANYTHING.text)
    steered = Steered(guarded, before=looking)
    guarded.keys._unit_of_work = steered.unit_of_work
    loading = asyncio.create_task(load(guarded, scope))
    await looking.arrival()
    await save(other, scope)
    looking.opened.set()
    with pytest.raises(CheckpointNotFound):
        await loading


async def test_a_shredded_subject_is_no_damage_before_nor_after_its_rows_are_gone(guarded, scope, chain, watch):
    shredded = await guarded.shred.subject(scope, scope.subject_id, "api-key:test")
    for _ in range(2):
        guarded.keys.evict(scope)
        for call in (load(guarded, scope), guarded.threads.list(scope), guarded.threads.get(scope, "t1")):
            with pytest.raises(KeyDestroyed):
                await call
        _, report = await verified(guarded, scope)
        assert report.found == {}
        while (await guarded.jobs.get(TenantScope(scope.tenant_id), shredded.job_id)).state != "done":
            await guarded.runner.run_due()
    assert watch.failures == 0


# --- receipts -------------------------------------------------------------------------------------------


async def test_a_request_whose_receipt_was_taken_away_is_refused_for_good(guarded, scope, attacker):
    key = Idempotency("once", b"d" * 32)
    await save(guarded, scope, idempotency=key)
    await attacker.execute("UPDATE stateroom.idempotency SET receipt = NULL WHERE tenant_id = $1 AND subject_id = $2")
    with pytest.raises(IntegrityFailure):
        await save(guarded, scope, idempotency=key)


# --- rollback: everything agrees with everything, only the client knows better ---------------------


async def known_readers(store, scope, token):
    """Everything that takes a token, as calls."""
    return [
        lambda: store.checkpoints.load(scope, Load("t1", "", None, with_state=True, known_token=token)),
        lambda: store.checkpoints.history(scope, HistoryQuery(thread_id="t1", known_token=token)),
        lambda: store.checkpoints.save(scope, Save(thread_id="t1", content=state(a=1), known_token=token)),
        lambda: store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["a"], known_token=token)),
    ]


def forget(store, scope):
    """Do as a process that did not serve this subject lately."""
    store.checkpoints._access.remembered_heads.forget(scope)


@pytest.mark.parametrize("verb", ["load", "save", "write"])
async def test_a_gateway_notices_a_head_older_than_one_it_acknowledged(
    guarded, other, scope, chain, attacker, watch, verb
):
    await save(other, scope)  # what others add is no rollback
    assert await load(guarded, scope)
    yesterday = await attacker.copy()
    await save(guarded, scope)
    await attacker.put_back(yesterday)
    verbs = {
        "load": lambda: load(guarded, scope),
        "save": lambda: save(guarded, scope),
        "write": lambda: put(guarded, scope, chain[-1].checkpoint_id, write(0, "a", 1), task_id="another"),
    }
    with pytest.raises(RollbackDetected):
        await verbs[verb]()
    assert watch.failures == 1
    assert await load(other, scope)  # it knows no better


async def test_a_gateway_notices_that_a_thread_it_acknowledged_is_gone(guarded, scope, chain, attacker):
    for table in SUBJECT_TABLES:
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    for verb in (load, save):
        with pytest.raises(RollbackDetected):
            await verb(guarded, scope)


async def test_what_requests_removed_is_no_rollback(guarded, other, scope, chain):
    await guarded.pruning.keep_latest(scope, "t1")
    assert await load(guarded, scope)
    await other.threads.delete(scope, "t1")
    with pytest.raises(CheckpointNotFound):
        await load(guarded, scope)
    await save(other, scope)
    assert await load(guarded, scope)
    assert await save(guarded, scope)


async def refused_as_rollback(store, scope, token):
    for call in await known_readers(store, scope, token):
        with pytest.raises(RollbackDetected):
            await call()


async def test_a_rollback_of_the_whole_thread_is_noticed_by_who_keeps_a_token(guarded, scope, chain, attacker, watch):
    yesterday = await attacker.copy()
    saved = await save(guarded, scope)
    await attacker.put_back(yesterday)
    forget(guarded, scope)
    await clean(guarded, scope)
    assert len(await listed(guarded, scope)) == 5
    await refused_as_rollback(guarded, scope, saved.token)
    assert watch.failures == 4
    await save(guarded, scope)  # somebody else's save brings the sequence to where it was, but not the state
    await refused_as_rollback(guarded, scope, saved.token)


async def test_a_thread_deleted_and_made_again_by_sql_is_noticed_by_who_keeps_a_token(guarded, scope, chain, attacker):
    for table in ("threads", "heads", "checkpoints", "pending_writes", "chunks"):
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    forget(guarded, scope)
    await refused_as_rollback(guarded, scope, chain[-1].token)
    for _ in range(8):
        await save(guarded, scope)
    await refused_as_rollback(guarded, scope, chain[-1].token)


async def test_a_subject_whose_keys_were_replaced_is_noticed_by_who_keeps_a_token(
    guarded, scope, chain, attacker, database, root_key
):
    for table in (*SUBJECT_TABLES, "subject_keys"):
        await attacker.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2")  # noqa: S608
    forget(guarded, scope)
    guarded.keys.evict(scope)
    with pytest.raises(RollbackDetected):
        await guarded.checkpoints.load(scope, Load("t1", "", None, with_state=True, known_token=chain[-1].token))
    await save(guarded, scope)
    await refused_as_rollback(guarded, scope, chain[-1].token)


async def test_a_token_of_another_thread_is_refused(guarded, scope, chain):
    other = await save(guarded, scope, "t2")
    with pytest.raises(RollbackDetected):
        await guarded.checkpoints.load(scope, Load("t1", "", None, with_state=True, known_token=other.token))


async def admitted(store, scope, token, *, gone=False):
    for call in (await known_readers(store, scope, token))[:2]:
        try:
            await call()
        except (CheckpointNotFound, ThreadNotFound):
            assert gone


async def test_legal_operations_keep_every_token_good(guarded, scope):
    tokens = [(await save(guarded, scope, run_id="first")).token for _ in range(3)]
    tokens.append((await save(guarded, scope, run_id="second")).token)
    tokens.append((await guarded.checkpoints.load(scope, Load("t1", "", None, with_state=True))).token)
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
    forget(guarded, scope)
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
            store.checkpoints.load(scope, Load("t1", each.namespace, each.checkpoint_id, with_state=True)),
            store.checkpoints.channel_history(
                scope, ChannelHistoryQuery("t1", each.namespace, each.checkpoint_id, ["a", "missing"])
            ),
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
            loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=True, known_token=known))
        except CheckpointNotFound:  # a run was deleted, and with it all there was
            continue
        known = loaded.token


class Writers:
    """Everything that changes one thread legally, in parallel, on one store."""

    rounds = 25

    def __init__(self, store, scope):
        self._store = store
        self._scope = scope
        self.pruned = 0

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
            # Who is overtaken again and again is told to come again, and does so in the next round.
            with suppress(Unavailable):
                await self._store.threads.prune(self._scope, ["t1"], "keep_latest")
                self.pruned += 1
            with suppress(Unavailable):
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
    assert writers.pruned
    assert watch.failures == 0
