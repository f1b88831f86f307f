"""Every race the design names: shown with its protection removed, and absent with it.

Where a protection is a clause of a statement, the variant is that statement without the clause, run by the real
verbs. Interleavings are held by gates and by PostgreSQL's own locks, never by time.
"""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio

import asyncpg
import pytest
from sqlalchemy import event

from crypto import (
    KeyDestroyed,
    Kind,
    OpenError,
    Sealer,
    SecretKey,
    SubjectKeyPlace,
    SubjectKeys,
    WrappingKey,
    wrap_subject_key,
)
from storage.errors import CheckpointNotFound, HeadMoved, IntegrityFailure, ParentUnknown, Unavailable
from storage.keys.keys import Keys
from storage.model import ChannelValue, FullState, Load, Parent, Precondition, TaskWritesQuery
from storage.postgres.engine import invalidate_unfinished
from storage.service import Store
from storage.statements.keys import keys as key_sql
from storage.statements.keys.keys import HASH_NOW
from storage.statements.threads import checkpoints as sql
from storage.statements.threads import pieces as pieces_sql
from storage.statements.threads import pruning as pruning_sql
from tests.support.interleaving import CancelAtAwait, CommitAfter, Gate, Meeting, Steered, blocked, without
from tests.support.states import (
    contents,
    document,
    history,
    list_with_indexes,
    load,
    packed,
    patch,
    put,
    save,
    state,
    write,
    writes_of,
)
from tests.support.stores import DEPLOYMENT_ID

# (a) A cancelled request and its connection.

LEFT_BEHIND = """
SELECT coalesce(current_setting('app.tenant_id', true), '') <> '' OR pg_current_xact_id_if_assigned() IS NOT NULL
"""


@pytest.fixture
async def single(database, root_key):
    """A store whose pool is one connection: the next user always gets the one that was cancelled."""
    store = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=1, durable=False
    )
    yield store
    await store.close()


async def cancelled_everywhere(store, scope, verb):
    """Cancel ``verb`` at its first await, its second, and so on; at which of them did the next user find a trace?"""
    await save(store, scope)
    traces, number = [], 0
    while True:
        number += 1
        cancelling = CancelAtAwait(verb(number), number)
        await cancelling.run()
        async with store.unit_of_work.connection() as connection:
            try:
                is_left = await connection.fetchval(LEFT_BEHIND) or connection.is_in_transaction()
            except asyncpg.InFailedSQLTransactionError:
                is_left = True
            if is_left:
                traces.append(number)
                await connection.execute("ROLLBACK")
        if not cancelling.cancelled:
            return number, traces


def verbs_of(store, scope):
    return {
        "save": lambda number: save(store, scope, content=state(a=document(str(number)))),
        "load": lambda _: load(store, scope),
        "put_writes": lambda number: put(store, scope, "c", write(number, "a", 1)),
        "history": lambda _: history(store, scope, with_state=True),
        "prune": lambda _: store.threads.prune(scope, ["t1"], "keep_latest"),
        "copy": lambda number: store.threads.copy(scope, "t1", f"copy-{number}"),
    }


@pytest.mark.parametrize("verb", ["save", "load", "put_writes", "history", "prune", "copy"])
async def test_a_request_cancelled_at_any_await_leaves_nothing_to_the_next(single, scope, verb):
    awaits, traces = await cancelled_everywhere(single, scope, verbs_of(single, scope)[verb])
    assert awaits > 3
    assert traces == []


async def test_without_the_reset_listener_the_next_request_is_inside_the_cancelled_transaction(single, scope):
    event.remove(single._engine.sync_engine.pool, "reset", invalidate_unfinished)
    # A copy always has a transaction of several statements; a save only where nothing is remembered of its thread.
    _, traces = await cancelled_everywhere(single, scope, verbs_of(single, scope)["copy"])
    assert traces


async def test_a_save_cancelled_at_any_await_is_stored_whole_or_not_at_all(store, scope):
    await save(store, scope, content=state(a=document("0")))
    number, stored = 0, 1
    while True:
        number += 1
        cancelling = CancelAtAwait(save(store, scope, content=state(a=document(str(number)))), number)
        await cancelling.run()
        found = await history(store, scope, with_state=True)
        assert len(found) in {stored, stored + 1}
        stored = len(found)
        assert all(len(contents(each)["a"]) == 6000 for each in found)
        if not cancelling.cancelled:
            break
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert contents(await load(store, scope)) == {"a": document(str(number))}


# (b) A save against a prune.


async def pruned_while_saving(store, scope, admin, saving, content):
    """Save ``content``, whose pieces only a doomed checkpoint holds, while a prune holds the thread's lock."""
    held = FullState({"a": ChannelValue("1", packed(document("doomed")))})
    first = await save(store, scope, content=held)
    await save(store, scope, content=state(b=1))
    gate = CommitAfter(pruning_sql.COLLECT)
    pruning = asyncio.create_task(Steered(store, before=gate).threads.prune(scope, ["t1"], "keep_latest"))
    await gate.arrival()
    parts = {} if content.channels["a"].value else {"parent": Parent(first.checkpoint_id)}
    task = asyncio.create_task(save(saving, scope, content=content, **parts))
    await blocked(admin)
    gate.opened.set()
    assert (await pruning).checkpoints == 1
    return await task


AGAIN = FullState({"a": ChannelValue("2", packed(document("doomed")))})
UNCHANGED = FullState({"a": ChannelValue("1", None)})


async def test_a_save_that_waited_for_a_prune_stores_the_pieces_it_removed(store, scope, admin):
    await pruned_while_saving(store, scope, admin, store, AGAIN)
    assert contents(await load(store, scope)) == {"a": document("doomed")}


async def test_without_key_share_on_pieces_such_a_save_dangles(store, scope, admin):
    shortcut = Steered(store, variants=without(sql.OPEN, "FOR KEY SHARE) present)", ") present)"))
    await pruned_while_saving(store, scope, admin, shortcut, AGAIN)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


async def test_a_save_whose_parent_a_prune_removed_is_told_so(store, scope, admin):
    with pytest.raises(ParentUnknown):
        await pruned_while_saving(store, scope, admin, store, UNCHANGED)


async def test_without_key_share_on_the_parent_its_unchanged_channels_dangle(store, scope, admin):
    shortcut = Steered(store, variants=without(sql.OPEN, "FOR KEY SHARE) p ON true", ") p ON true"))
    await pruned_while_saving(store, scope, admin, shortcut, UNCHANGED)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


# (c) A write against the archive flag.

TIER_BEFORE_THE_LOCK = (
    "SELECT (SELECT x.tier FROM stateroom.threads x WHERE x.tenant_id = $1 AND x.subject_id = $2 AND x.thread_id = $3)"
    " AS tier, t.created_at AS thread_created_at"
)


async def archived_while_writing(store, scope, admin, database, writing):
    await save(store, scope, checkpoint_id="c")
    archiver = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        await archiver.execute("BEGIN")
        await archiver.execute("UPDATE stateroom.threads SET tier = 'archive' WHERE tenant_id = $1", scope.tenant_id)
        task = asyncio.create_task(put(writing, scope, "c", write(0, "a", document("late"))))
        await blocked(admin)
        await archiver.execute("COMMIT")
        return await task
    finally:
        await archiver.close()


async def stored(admin, scope):
    return [
        await admin.fetchval(f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)
        for table in ("pending_writes", "chunks")
    ]


async def test_a_write_that_waited_for_the_archive_flag_is_refused_and_stores_nothing(store, scope, admin, database):
    # It goes to restore the thread and finds a flag without a stub, which no archiver leaves: damage.
    with pytest.raises(IntegrityFailure, match="archive tier"):
        await archived_while_writing(store, scope, admin, database, store)
    assert await stored(admin, scope) == [0, 0]


async def test_a_tier_read_before_the_lock_lets_the_write_vanish_into_the_archived_thread(
    store, scope, admin, database
):
    variant = without(sql.OPEN_WRITES, "SELECT t.tier, t.created_at AS thread_created_at", TIER_BEFORE_THE_LOCK)
    receipt = await archived_while_writing(store, scope, admin, database, Steered(store, variants=variant))
    assert receipt.stored == 1
    assert await stored(admin, scope) == [1, 1]


# (g) Pending writes and their sums.

C = "1f0c0000-0000-6000-8000-000000000001"


async def whole(store, scope):
    assert (await store.verification.thread(scope, "t1")).findings == []


async def beside(first, second, gate, admin):
    """``first`` has done its work and holds the lock until ``second`` waits for it."""
    one = asyncio.create_task(first)
    await gate.arrival()
    other = asyncio.create_task(second)
    await blocked(admin)
    gate.opened.set()
    return await asyncio.gather(one, other)


@pytest.mark.parametrize("idx", [0, -1])
async def test_of_two_requests_of_one_task_each_write_counts_once(store, scope, admin, idx):
    await save(store, scope, checkpoint_id=C)
    gate = Gate("COMMIT")
    first, second = await beside(
        put(Steered(store, before=gate), scope, C, write(idx, "a", 1)),
        put(store, scope, C, write(idx, "a", 2)),
        gate,
        admin,
    )
    assert (first.stored, second.stored, second.unchanged) == (1, int(idx < 0), int(idx >= 0))
    assert [each[3] for each in writes_of(await load(store, scope))] == [2 if idx < 0 else 1]
    await whole(store, scope)


async def early_while_saving(store, scope, admin, saving):
    """A write that is replaced, and another one that is new, while the checkpoint they belong to waits for the lock."""
    await put(store, scope, C, write(-1, "a", "old"))
    gate = Gate("COMMIT")
    putting = put(Steered(store, before=gate), scope, C, write(-1, "a", "new"), write(0, "a", "more"))
    await beside(putting, save(saving, scope, checkpoint_id=C), gate, admin)


async def test_a_save_counts_the_writes_it_waited_for(store, scope, admin):
    await early_while_saving(store, scope, admin, store)
    assert [each[3] for each in writes_of(await load(store, scope))] == ["new", "more"]
    await whole(store, scope)


async def test_a_replaced_write_alone_is_not_mistaken_for_the_one_before(store, scope, admin):
    await put(store, scope, C, write(-1, "a", "old"))
    gate = Gate("COMMIT")
    putting = put(Steered(store, before=gate), scope, C, write(-1, "a", "new"))
    await beside(putting, save(store, scope, checkpoint_id=C), gate, admin)
    assert [each[3] for each in writes_of(await load(store, scope))] == ["new"]
    await whole(store, scope)


async def test_a_save_that_trusted_what_it_saw_before_the_lock_would_raise_a_false_alarm(store, scope, admin):
    seen_before = ("early_members", "NULL::bytea[] AS early_members")
    await put(store, scope, "unrelated", write(0, "a", "thread"))
    gate = Gate("COMMIT")
    putting = put(Steered(store, before=gate), scope, C, write(0, "a", "early"))
    saving = save(Steered(store, variants=without(sql.WRITE, *seen_before)), scope, checkpoint_id=C)
    await beside(putting, saving, gate, admin)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


@pytest.mark.parametrize("begun", [False, True], ids=["first head", "next head"])
async def test_writes_that_waited_for_their_checkpoint_are_counted_in_its_head(store, scope, admin, begun):
    if begun:
        await save(store, scope)
    else:
        await store.threads.put(scope, "t1")
    gate = Gate("COMMIT")
    saving = save(Steered(store, before=gate), scope, checkpoint_id="zz")
    _, receipt = await beside(saving, put(store, scope, "zz", write(0, "a", 1)), gate, admin)
    assert receipt.token
    assert len(writes_of(await load(store, scope))) == 1
    await whole(store, scope)


async def test_writes_that_missed_a_first_head_would_raise_a_false_alarm(store, scope, admin):
    await store.threads.put(scope, "t1")
    gate = Gate("COMMIT")
    saving = save(Steered(store, before=gate), scope, checkpoint_id="zz")
    variant = without(sql.PUT_WRITES, "head_id, sequence,", "NULL::text AS head_id, NULL::bigint AS sequence,")
    await beside(saving, put(Steered(store, variants=variant), scope, "zz", write(0, "a", 1)), gate, admin)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


async def repeated_while_pruning(store, scope, admin, putting):
    """A task repeats its request while a prune removes what the first one stored."""
    await save(store, scope, checkpoint_id=C)
    await put(store, scope, C, write(0, "a", 1))
    await save(store, scope)
    gate = CommitAfter(pruning_sql.DELETE_CHECKPOINTS)
    pruning = Steered(store, before=gate).threads.prune(scope, ["t1"], "keep_latest")
    _, receipt = await beside(pruning, put(putting, scope, C, write(0, "a", 1)), gate, admin)
    return receipt, await store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", C, "task"))


async def test_a_write_that_waited_for_the_prune_of_its_elder_is_stored(store, scope, admin):
    receipt, kept = await repeated_while_pruning(store, scope, admin, store)
    assert (receipt.stored, len(kept)) == (1, 1)
    await whole(store, scope)


async def test_without_locking_the_elder_such_a_write_is_acknowledged_and_lost(store, scope, admin):
    variant = without(sql.OPEN_WRITES, "FOR UPDATE) present", ") present")
    receipt, kept = await repeated_while_pruning(store, scope, admin, Steered(store, variants=variant))
    assert (receipt.unchanged, len(kept)) == (1, 0)


async def shredded_while_waiting(store, scope, admin, database, work):
    """The subject's keys are destroyed while ``work`` waits for the thread's lock."""
    await save(store, scope)
    before = [*await stored(admin, scope), len(await history(store, scope))]
    holder = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        await holder.execute("BEGIN")
        await holder.execute("SELECT FROM stateroom.threads WHERE tenant_id = $1 FOR UPDATE", scope.tenant_id)
        task = asyncio.create_task(work())
        await blocked(admin)
        await store.shred.subject(scope, scope.subject_id, "api-key:test")
        await holder.execute("COMMIT")
        refused = await asyncio.gather(task, return_exceptions=True)
    finally:
        await holder.close()
    checkpoints = await admin.fetchval(
        "SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id
    )
    return refused[0], [*await stored(admin, scope), checkpoints] == before


def waiting(store, scope):
    return {
        "put_writes": lambda: put(store, scope, "c", write(0, "a", document("late"))),
        "save": lambda: save(store, scope, content=state(a=document("late"))),
    }


@pytest.mark.parametrize("verb", ["put_writes", "save"])
async def test_who_waited_for_the_lock_while_the_subject_was_shredded_is_refused_and_stores_nothing(
    store, scope, admin, database, verb
):
    refused, unchanged = await shredded_while_waiting(store, scope, admin, database, waiting(store, scope)[verb])
    assert isinstance(refused, KeyDestroyed)
    assert unchanged


@pytest.mark.parametrize(("verb", "statement"), [("put_writes", sql.PUT_WRITES), ("save", sql.WRITE)])
async def test_keys_as_they_were_before_the_lock_leave_a_row_that_nobody_can_read(
    store, scope, admin, database, verb, statement
):
    await save(store, scope)  # makes the keys
    known = await admin.fetchval(HASH_NOW.text, scope.tenant_id, scope.subject_id)
    trusting = Steered(store, variants=without(statement, "keys_hash", f"'{known}'::bigint AS keys_hash"))
    answered, unchanged = await shredded_while_waiting(store, scope, admin, database, waiting(trusting, scope)[verb])
    assert not isinstance(answered, BaseException)
    assert not unchanged


# (d) Two gateways create one subject's key.


class SecondGateway:
    """Another gateway on the same database: its own pool and key cache, held before it stores a key."""

    def __init__(self, database, root_key, before):
        self._parts = (database, root_key)
        self._before = before

    async def __aenter__(self):
        database, root_key = self._parts
        self.store = await Store.open(
            database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False
        )
        steered = Steered(self.store, before=self._before)
        access = steered.checkpoints._access
        access._keys = Keys(steered.unit_of_work, root_key, DEPLOYMENT_ID, access.clock, access._observer)
        return steered

    async def __aexit__(self, *_):
        await self.store.close()


@pytest.mark.parametrize(
    "statement", [key_sql.ADD_SUBJECT_KEY.text, key_sql.ADD_TENANT_KEY.text], ids=["subject", "tenant"]
)
async def test_two_gateways_that_create_a_key_at_the_same_moment_seal_under_the_same_one(
    store, scope, database, root_key, statement
):
    barrier = asyncio.Barrier(2)
    async with (
        SecondGateway(database, root_key, Meeting(statement, barrier)) as one,
        SecondGateway(database, root_key, Meeting(statement, barrier)) as two,
    ):
        await asyncio.gather(
            save(one, scope, "t1", content=state(a=document("one"))),
            save(two, scope, "t2", content=state(a=document("two"))),
        )
        for reader in (one, two, store):
            assert contents(await load(reader, scope, "t1")) == {"a": document("one")}
            assert contents(await load(reader, scope, "t2")) == {"a": document("two")}


async def test_a_gateway_that_used_the_key_it_generated_would_seal_what_nobody_opens(store, scope):
    tenant = await store.keys.tenant(scope.tenant_id)
    owner = (DEPLOYMENT_ID, scope.tenant_id, scope.subject_id)
    meeting = asyncio.Barrier(2)

    async def seal_without_reading_again(text):
        own = {"data": SecretKey.generate(), "id": SecretKey.generate()}
        async with store.unit_of_work.begin(scope) as transaction:
            await meeting.wait()
            for purpose, key in own.items():
                wrapping = WrappingKey(tenant.keys[tenant.active_key_version], tenant.active_key_version)
                await transaction.run(
                    key_sql.ADD_SUBJECT_KEY,
                    purpose=purpose,
                    key_version=1,
                    tenant_key_version=tenant.active_key_version,
                    state="active",
                    wrapped=wrap_subject_key(wrapping, SubjectKeyPlace(*owner, purpose, 1), key),
                    kcv=key.kcv(),
                    now=store.checkpoints._access.clock.now(),
                )
        return Sealer(*owner, SubjectKeys({1: own["data"]}, 1, own["id"])).seal(Kind.MANIFEST, ("t1",), text)

    envelopes = await asyncio.gather(seal_without_reading_again(b"one"), seal_without_reading_again(b"two"))
    stored_key = await store.keys.sealer(scope)
    opened = 0
    for envelope in envelopes:
        try:
            stored_key.open(Kind.MANIFEST, ("t1",), envelope)
            opened += 1
        except OpenError:
            pass
    assert opened == 1


# (e) Two writers on one head.


async def two_writers(store, scope, admin, **parts):
    gate = Gate("COMMIT")
    first = asyncio.create_task(save(Steered(store, before=gate), scope, **parts))
    await gate.arrival()
    second = asyncio.create_task(save(store, scope, **parts))
    await blocked(admin)
    gate.opened.set()
    return await asyncio.gather(first, second, return_exceptions=True)


@pytest.mark.parametrize("begun", [False, True], ids=["new thread", "old thread"])
async def test_exactly_one_of_two_writers_with_if_match_wins(store, scope, admin, begun):
    await store.keys.sealer(scope)
    head = (await save(store, scope)).checkpoint_id if begun else None
    precondition = Precondition(head_id=head, absent=not begun)
    won, lost = await two_writers(store, scope, admin, precondition=precondition)
    assert isinstance(lost, HeadMoved)
    assert lost.head_id == won.checkpoint_id
    assert len(await history(store, scope)) == 1 + begun


@pytest.mark.parametrize("begun", [False, True], ids=["new thread", "old thread"])
async def test_two_writers_without_if_match_make_one_chain_of_both(store, scope, admin, begun):
    await store.keys.sealer(scope)
    head = (await save(store, scope)).checkpoint_id if begun else None
    first, second = await two_writers(store, scope, admin)
    assert (first.parent_id, second.parent_id) == (head, first.checkpoint_id)
    assert (second.step, second.sequence) == (first.step + 1, first.sequence + 1)
    assert second.head_id == second.checkpoint_id > first.checkpoint_id
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 1 + begun


async def test_of_two_patches_on_one_head_one_is_applied(store, scope, admin):
    head = await save(store, scope, content=state(a=[0]))
    parts = {"content": patch(append={"a": [1]}), "precondition": Precondition(head_id=head.checkpoint_id)}
    won, lost = await two_writers(store, scope, admin, **parts)
    assert (won.created, type(lost)) == (True, HeadMoved)
    assert contents(await load(store, scope)) == {"a": [0, 1]}


async def test_many_writers_make_one_chain(store, scope):
    answers = await asyncio.gather(*(save(store, scope) for _ in range(24)), return_exceptions=True)
    made = [each for each in answers if not isinstance(each, BaseException)]
    assert all(isinstance(each, Unavailable) for each in answers if isinstance(each, BaseException))
    chain = await history(store, scope)
    assert {each.checkpoint_id for each in chain} == {each.checkpoint_id for each in made}
    assert [each.parent_id for each in chain] == [each.checkpoint_id for each in chain[1:]] + [None]
    assert sorted(each.sequence for each in made) == list(range(1, len(made) + 1))


async def test_parallel_namespaces_never_conflict(store, scope, admin):
    await save(store, scope)
    gate = Gate("COMMIT")
    first = asyncio.create_task(
        save(Steered(store, before=gate), scope, namespace="a", precondition=Precondition(absent=True))
    )
    await gate.arrival()
    second = asyncio.create_task(save(store, scope, namespace="b", precondition=Precondition(absent=True)))
    await blocked(admin)
    gate.opened.set()
    assert [each.sequence for each in await asyncio.gather(first, second)] == [1, 1]
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 0


# (h) The newest checkpoint goes, and with it perhaps the thread, while a save waits: what it saw before is no damage.


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_save_that_waited_while_the_newest_was_removed_goes_on(store, scope, admin, remembers, kept):
    for number in range(3):
        await save(store, scope, run_id="kept" if number < kept else "gone")
    gate = CommitAfter(pruning_sql.MOVE_HEADS if kept else pruning_sql.DELETE_CHECKPOINTS)
    removing = asyncio.create_task(Steered(store, before=gate).threads.delete_runs(scope, ["gone"]))
    await gate.arrival()
    saving = asyncio.create_task(save(store if remembers else Steered(store), scope))
    await blocked(admin)
    gate.opened.set()
    assert (await removing).checkpoints == 3 - kept
    saved = await saving
    assert (await load(store, scope)).checkpoint_id == saved.checkpoint_id
    assert len(await history(store, scope, thread_id="t1")) == kept + 1
    assert (await store.verification.thread(scope, "t1")).findings == []


@pytest.mark.parametrize("what", ["save", "writes"])
async def test_a_save_that_waited_while_its_thread_was_deleted_makes_a_new_one(store, scope, admin, what):
    saved = await save(store, scope)
    await put(store, scope, saved.checkpoint_id, write(0, "a", 1))
    gate = Gate("COMMIT")
    deleting = asyncio.create_task(Steered(store, before=gate).threads.delete(scope, "t1"))
    await gate.arrival()
    beside = Steered(store)
    again = asyncio.create_task(
        save(beside, scope) if what == "save" else put(beside, scope, saved.checkpoint_id, write(0, "a", 2))
    )
    await blocked(admin)
    gate.opened.set()
    await asyncio.gather(deleting, again)
    assert (await store.verification.thread(scope, "t1")).findings == []


# (f) A load during a prune.

READ_COMMITTED = {"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY": "BEGIN READ ONLY"}


async def loaded_during_prune(store, scope, variants):
    """A load that has read the checkpoint, but not yet what its index pieces name, when a prune removes it."""
    items = list_with_indexes()
    first = await save(store, scope, content=state(items=items))
    await save(store, scope)
    elsewhere = await save(store, scope, namespace="n")
    gate = Gate(pieces_sql.OF_IDS)
    steered = Steered(store, variants=variants, before=gate)
    # What was seen of another namespace is compared in a snapshot, so that the load is not one function.
    loading = asyncio.create_task(
        steered.checkpoints.load(
            scope, Load("t1", "", first.checkpoint_id, with_state=True, known_token=elsewhere.token)
        )
    )
    await gate.arrival()
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 1
    gate.opened.set()
    return items, contents((await loading).checkpoint)


async def test_a_load_during_a_prune_sees_one_moment(store, scope):
    items, loaded = await loaded_during_prune(store, scope, {})
    assert loaded == {"items": items}


async def test_without_a_snapshot_a_load_during_a_prune_looks_like_damage(store, scope):
    with pytest.raises(IntegrityFailure):
        await loaded_during_prune(store, scope, READ_COMMITTED)


async def test_a_prune_between_the_moments_of_a_load_is_no_damage(store, scope):
    """The pieces below an index are read after what names them: what is gone then is asked for again."""
    items = list_with_indexes()
    first = await save(store, scope, content=state(items=items))
    gates = [Gate(pieces_sql.OF_IDS), Gate(pieces_sql.OF_IDS)]
    latest, removed = (
        asyncio.create_task(load(Steered(store, before=gate), scope, checkpoint_id=checkpoint_id))
        for gate, checkpoint_id in zip(gates, (None, first.checkpoint_id), strict=True)
    )
    for gate in gates:
        await gate.arrival()
    await save(store, scope, content=state(items=["new"]))
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 1
    for gate in gates:
        gate.opened.set()
    assert contents(await latest) == {"items": ["new"]}
    with pytest.raises(CheckpointNotFound):
        await removed


async def test_loads_and_histories_beside_saves_and_prunes_never_report_damage(store, scope):
    await save(store, scope, content=state(a=document("0")))
    ended = asyncio.Event()

    async def write_and_prune():
        for number in range(60):
            saved = await save(store, scope, content=state(a=document(str(number)), b=document("same")))
            await put(store, scope, saved.checkpoint_id, write(0, "a", document(f"w{number}")))
            await store.threads.prune(scope, ["t1"], "keep_latest")
        ended.set()

    async def read():
        while not ended.is_set():
            loaded = await load(store, scope)
            assert contents(loaded)["a"]
            assert len(writes_of(loaded)) <= 1
            await history(store, scope, with_state=True)

    await asyncio.gather(write_and_prune(), read(), read())
