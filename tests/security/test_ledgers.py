"""What somebody with all rights of the database does to claims and effects is noticed before anything starts."""

import asyncio
from datetime import UTC, datetime

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import DECISIONS
from storage.effects.leaving import is_busy
from storage.errors import EffectUnknown, IntegrityFailure, ThreadNotFound
from storage.scope import Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.ledgers import TABLES, claim, finish, put_back, resolve, rows, start
from tests.support.states import save

CANARY = "canary-5d1f"
# By what it does: the statement of a superuser on the effects, claims or seals of one subject.
EDITS = {
    "an effect that was done is gone": "DELETE FROM stateroom.effects WHERE {ours}",
    "an effect is another's": "UPDATE stateroom.effects SET name_mac = set_byte(name_mac, 1, 7) WHERE {ours}",
    "an effect failed for certain": "UPDATE stateroom.effects SET status = 'failed' WHERE {ours}",
    "an effect may be repeated": "UPDATE stateroom.effects SET mode = 'read' WHERE {ours}",
    "an effect was of another line": "UPDATE stateroom.effects SET anchor_checkpoint_id = 'x' WHERE {ours}",
    "an effect meant something else": "UPDATE stateroom.effects SET intent_mac = mac WHERE {ours}",
    "an effect has another result": "UPDATE stateroom.effects SET result = args WHERE {ours}",
    "the seal is gone": "DELETE FROM stateroom.ledger_seals WHERE {ours}",
    "the seal is of another change": "UPDATE stateroom.ledger_seals SET sequence = sequence + 1 WHERE {ours}",
    "the seal says something else": "UPDATE stateroom.ledger_seals SET seal = set_byte(seal, 30, 9) WHERE {ours}",
    "the fence is an older one": "UPDATE stateroom.threads SET fence = fence - 1 WHERE {ours}",
}


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key, blobs=MemoryBlobStore()) as made:
        await switch_on(made, DECISIONS)
        yield made


async def damage(admin, scope, statement):
    ours = f"tenant_id = '{scope.tenant_id}' AND subject_id = '{scope.subject_id}'"
    await admin.execute(statement.format(ours=ours))


async def done(store, scope):
    """A thread that is claimed, in which something was done once."""
    await save(store, scope)
    held = await claim(store, scope, note=CANARY)
    started = await start(store, scope, args={"note": CANARY}, fence=held.fence)
    await finish(store, scope, started, result={"note": CANARY})
    return held


async def found(store, scope):
    """The codes of what verification finds in the thread."""
    return {each.code for each in (await store.verification.thread(scope, "t1")).findings}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edit_is_noticed_by_the_next_start_and_by_verification(store, scope, admin, edit):
    held = await done(store, scope)
    assert await found(store, scope) == set()
    await damage(admin, scope, EDITS[edit])
    with pytest.raises(IntegrityFailure):
        await start(store, scope, args={"note": CANARY}, fence=None if "fence" in edit else held.fence)
    assert await found(store, scope)


@pytest.mark.parametrize("table", ["effects", "claims"])
async def test_older_authentic_rows_that_are_put_back_are_noticed(store, scope, admin, table):
    """A row says what was so once, and its seal is another one now."""
    await save(store, scope)
    held = await claim(store, scope)
    started = await start(store, scope)
    before = await rows(admin, scope, table)
    await finish(store, scope, started)
    await store.claims.release(scope, "t1", held.fence)
    await put_back(admin, scope, table, before)
    with pytest.raises(IntegrityFailure):
        await (start(store, scope) if table == "effects" else claim(store, scope, "two"))
    with pytest.raises(IntegrityFailure):
        await (store.effects.get(scope, "t1", "", "call-1") if table == "effects" else store.claims.get(scope, "t1"))
    assert await found(store, scope)


async def test_a_whole_ledger_that_is_put_back_is_older_than_its_anchor(store, scope, admin):
    await save(store, scope)
    started = await start(store, scope)
    before = {table: await rows(admin, scope, table) for table in TABLES}
    await finish(store, scope, started)
    await store.head_anchors.flush()
    assert await found(store, scope) == set()
    for table, stored in before.items():
        await put_back(admin, scope, table, stored)
    assert await found(store, scope) == {"older-than-anchor"}
    for table in TABLES:
        await put_back(admin, scope, table, [])
    assert await found(store, scope) == {"older-than-anchor"}


async def test_no_text_of_a_client_is_in_a_clear_column(store, scope, admin):
    await done(store, scope)
    for table in TABLES:
        assert CANARY not in repr(await rows(admin, scope, table))
        assert CANARY.encode().hex() not in repr(await rows(admin, scope, table))


async def test_another_subjects_thread_of_the_same_id_has_a_ledger_of_its_own(store, scope):
    await done(store, scope)
    other = Scope(scope.tenant_id, "somebody-else")
    with pytest.raises(ThreadNotFound):
        await store.effects.get(other, "t1", "", "call-1")
    await save(store, other)
    assert (await start(store, other, args={"note": CANARY})).must_run
    assert [each.subject_id for each in (await store.claims.silent(other)).items] == []


# --- duties ---------------------------------------------------------------------------------------------------------


async def ended(store, scope, started):
    """Work on a job until it has ended."""
    async with asyncio.timeout(60):
        tenant, open_states = TenantScope(scope.tenant_id), {"queued", "running"}
        while (job := await store.jobs.get(tenant, started.job_id)).state in open_states:
            await store.runner.run_due()
            await asyncio.sleep(0)
    assert (job.state, job.error) == ("done", None)


async def test_effects_and_notes_are_sealed_again_and_say_the_same(store, scope, admin):
    await done(store, scope)
    before = await store.effects.get(scope, "t1", "", "call-1")
    sealed = [(row["asked"], row["args"], row["result"]) for row in await rows(admin, scope, "effects")]
    await ended(store, scope, await store.rotation.rotate_subject(scope, "tester"))
    assert await store.effects.get(scope, "t1", "", "call-1") == before
    assert (await store.claims.get(scope, "t1")).note == CANARY
    again = [(row["asked"], row["args"], row["result"]) for row in await rows(admin, scope, "effects")]
    assert all(new != old for new, old in zip(again[0], sealed[0], strict=True))
    assert not (await start(store, scope, args={"note": CANARY})).must_run
    assert await found(store, scope) == set()


async def test_a_copy_takes_along_what_was_done_and_what_may_have_been(store, scope):
    held = await done(store, scope)
    maybe = await start(store, scope, "maybe", args=2, fence=held.fence)
    await finish(store, scope, maybe, "unknown")
    await store.threads.copy(scope, "t1", "copy")
    told = await start(store, scope, thread_id="copy", args={"note": CANARY})
    assert (told.must_run, told.effect.is_copy) == (False, True)
    with pytest.raises(EffectUnknown):
        await start(store, scope, "maybe", thread_id="copy", args=2)
    assert (await store.verification.thread(scope, "copy")).findings == []


async def test_removals_and_archives_leave_the_ledger_as_it_is(database, root_key, scope, admin):
    async with opened(database, root_key, blobs=MemoryBlobStore(), archive=MemoryBlobStore()) as store:
        await switch_on(store, DECISIONS)
        await done(store, scope)
        await save(store, scope, run_id="r1")
        before = [await rows(admin, scope, table) for table in TABLES]
        await store.threads.prune(scope, ["t1"], "keep_latest")
        await store.threads.delete_runs(scope, ["r1"])
        await store.archives.archive(scope, "t1")
        assert [await rows(admin, scope, table) for table in TABLES] == before
        assert (await store.effects.get(scope, "t1", "", "call-1")).status == "done"
        assert await found(store, scope) == set()


async def test_a_thread_that_is_worked_on_goes_by_no_policy(store, scope):
    async def busy():
        async with store.unit_of_work.snapshot(scope) as transaction:
            return await is_busy(transaction, "t1")

    await save(store, scope)
    assert not await busy()
    held = await claim(store, scope)
    assert await busy()
    await store.claims.release(scope, "t1", held.fence)
    assert not await busy()
    started = await start(store, scope)
    assert await busy()
    await finish(store, scope, started, "unknown")
    assert await busy()
    await resolve(store, scope, started.effect, happened=True)
    assert not await busy()


async def test_a_shred_leaves_no_ledger(store, scope, admin):
    await done(store, scope)
    await store.threads.delete(scope, "t1")
    await done(store, Scope(scope.tenant_id, "stays"))
    await ended(store, scope, await store.shred.subject(scope, scope.subject_id, "api-key:person"))
    for table in (*TABLES, "effect_tombstones"):
        assert await rows(admin, scope, table) == []
    assert len(await rows(admin, Scope(scope.tenant_id, "stays"), "effects")) == 1


async def test_a_thread_goes_with_its_ledger_and_the_names_of_what_it_did_once_stay_a_while(store, scope, admin):
    await done(store, scope)
    await store.threads.delete(scope, "t1")
    for table in TABLES:
        assert await rows(admin, scope, table) == []
    [tombstone] = await rows(admin, scope, "effect_tombstones")
    assert (datetime.now(UTC) - tombstone["removed_at"]).total_seconds() < 60
    a_while_ago = "UPDATE stateroom.effect_tombstones SET removed_at = now() - interval '31 d' WHERE {ours}"
    await damage(admin, scope, a_while_ago)
    await save(store, scope, "another")
    await store.threads.delete(scope, "another")
    assert await rows(admin, scope, "effect_tombstones") == []
