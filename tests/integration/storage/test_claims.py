"""Claims: one goes on with a thread, others wait, and what becomes of threads whose worker died."""

import asyncio
from datetime import timedelta

import pytest

from crypto import KeyDestroyed
from storage.claims.model import CLAIM_NOTE_BYTES_MAX, TAKEOVERS_MAX
from storage.control.features import DECISIONS
from storage.errors import (
    ClaimHeld,
    ClaimLost,
    ClaimNotFound,
    ClaimSuperseded,
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    EffectUnknown,
    FeatureOff,
    InvalidState,
    LimitExceeded,
    ThreadClaimed,
    ThreadNotFound,
    ThreadStuck,
)
from storage.model import Save, TaskWrites
from storage.scope import ClientShare, Scope, TenantListing
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.ledgers import SHARE, claim, claim_over, rows, start
from tests.support.states import put, save, state, write


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, DECISIONS)
        yield made


async def silent(store, scope, **more):
    return [each.thread_id for each in (await store.claims.silent(scope, **more)).items]


async def test_no_thread_is_claimed_before_the_feature_is_on(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as before:
        await save(before, scope)
        with pytest.raises(FeatureOff):
            await claim(before, scope)
        await switch_on(before, DECISIONS)
        await claim(before, scope)


async def test_one_claims_and_others_wait_until_it_is_released(store, scope):
    await save(store, scope)
    with pytest.raises(ClaimNotFound):
        await store.claims.get(scope, "t1")
    first = await claim(store, scope, run_id="run-1", note="step 1")
    assert (first.status, first.holder, first.takeovers, first.required) == ("live", "one", 0, False)
    assert first.claimed_until - first.claimed_at == timedelta(seconds=60)
    assert await store.claims.get(scope, "t1") == first
    for run_id in ("run-2", None):
        with pytest.raises(ClaimHeld) as held:
            await claim(store, scope, "one", run_id=run_id)
        assert held.value.claimed_until == first.claimed_until
        assert 0 < held.value.retry_after_seconds <= 60
    with pytest.raises(ClaimHeld):
        await claim(store, scope, "two", run_id="run-1")
    for _ in range(2):
        released = await store.claims.release(scope, "t1", first.fence)
        assert (released.status, released.claimed_until) == ("released", None)
    with pytest.raises(ClaimLost):
        await store.claims.renew(scope, "t1", first.fence)
    second = await claim(store, scope, "two")
    assert second.fence > first.fence
    for refused in (store.claims.release(scope, "t1", first.fence), store.claims.renew(scope, "t1", first.fence)):
        with pytest.raises(ClaimLost):
            await refused
    assert (await store.claims.get(scope, "t1")).holder == "two"


async def test_the_same_run_claims_again_and_keeps_its_fence(store, scope):
    await save(store, scope)
    first = await claim(store, scope, run_id="run-1", note="a")
    again = await claim(store, scope, run_id="run-1", lease_seconds=120)
    assert (again.fence, again.lease_seconds, again.note) == (first.fence, 120, "a")
    assert again.claimed_until > first.claimed_until + timedelta(seconds=59)
    renewed = await store.claims.renew(scope, "t1", first.fence, note="b")
    assert (renewed.lease_seconds, renewed.note) == (120, "b")
    assert (await store.claims.renew(scope, "t1", first.fence, lease_seconds=5)).note == "b"
    assert (await store.claims.get(scope, "t1")).note == "b"


async def test_who_lost_its_claim_writes_nothing_and_who_has_one_renews_it_by_writing(store, scope, admin):
    saved = await save(store, scope)
    first = await claim(store, scope, lease_seconds=300)
    await claim_over(admin, scope)
    saved = await save(store, scope, fence=first.fence)
    assert (await store.claims.get(scope, "t1")).status == "live"
    second = await claim(store, scope, "two", take_over=True)
    for _ in range(2):
        with pytest.raises(ClaimLost):
            await save(store, scope, fence=first.fence)
    with pytest.raises(ClaimLost):
        await store.checkpoints.put_writes(scope, _writes(saved.checkpoint_id, first.fence))
    await save(store, scope)  # whoever names none goes on: the thread does not ask for claims
    await save(store, scope, fence=second.fence)
    await store.checkpoints.put_writes(scope, _writes(saved.checkpoint_id, second.fence))


async def test_a_claim_that_was_released_admits_no_write_any_more(store, scope):
    """Neither by the way that reads, nor by the one that stands on what is remembered."""
    saved = await save(store, scope)
    first = await claim(store, scope, note="a", exclusive=True)
    await save(store, scope, fence=first.fence)
    for _ in range(2):
        released = await store.claims.release(scope, "t1", first.fence)
        assert (released.fence, released.status, released.note) == (first.fence, "released", None)
        for refused in (
            save(store, scope, fence=first.fence),
            store.checkpoints.put_writes(scope, _writes(saved.checkpoint_id, first.fence)),
            start(store, scope, fence=first.fence),
        ):
            with pytest.raises(ClaimLost):
                await refused
    shown = await store.claims.get(scope, "t1")
    assert (shown.fence, shown.status, shown.note) == (first.fence, "released", "a")
    await store.claims.set_required(scope, "t1", required=False, actor="api-key:person")
    with pytest.raises(ClaimLost):
        await save(store, scope, fence=first.fence)
    await save(store, scope)
    assert (await claim(store, scope)).fence > first.fence + 1


async def test_a_run_that_ended_left_its_effect_open_and_nobody_waits_for_its_lease(store, scope):
    await save(store, scope)
    held = await claim(store, scope)
    await start(store, scope, fence=held.fence, mode="once")
    await store.claims.release(scope, "t1", held.fence)
    with pytest.raises(EffectUnknown):
        await start(store, scope, mode="once")


def _writes(checkpoint_id, fence):
    return TaskWrites("t1", "", checkpoint_id, "task", "", [write(0, "note", 1)], fence=fence)


async def test_an_exclusive_claim_keeps_everybody_else_out_until_that_is_lifted(store, scope):
    saved = await save(store, scope)
    held = await claim(store, scope, exclusive=True)
    assert held.required
    for refused in (lambda: save(store, scope), lambda: put(store, scope, saved.checkpoint_id, write(0, "note", 1))):
        with pytest.raises(ThreadClaimed):
            await refused()
    await save(store, scope, fence=held.fence)
    await store.claims.release(scope, "t1", held.fence)
    with pytest.raises(ThreadClaimed):
        await save(store, scope)
    assert (await claim(store, scope, "two")).required
    for _ in range(2):
        await store.claims.set_required(scope, "t1", required=False, actor="api-key:person")
    await save(store, scope)
    await store.claims.set_required(scope, "t1", required=True, actor="api-key:person")
    with pytest.raises(ThreadClaimed):
        await save(store, scope)


async def test_who_names_the_claim_before_takes_its_place_once_and_is_never_the_same_run(store, scope, admin):
    """Two loops of one worker name the same holder, and the run that they recover."""
    await save(store, scope)
    dead = await claim(store, scope, run_id="run-1", lease_seconds=10)
    with pytest.raises(ClaimHeld):
        await claim(store, scope, run_id="run-1", if_fence=dead.fence)
    await claim_over(admin, scope, 100)
    with pytest.raises(ClaimSuperseded):
        await claim(store, scope, run_id="run-1", if_fence=dead.fence + 1)
    recovered = await claim(store, scope, run_id="run-1", if_fence=dead.fence)
    assert (recovered.takeovers, recovered.status) == (1, "live")
    assert recovered.fence > dead.fence
    for take_over in (False, True):
        with pytest.raises(ClaimSuperseded):
            await claim(store, scope, run_id="run-1", if_fence=dead.fence, take_over=take_over)
    assert (await claim(store, scope, run_id="run-1")).fence == recovered.fence
    await store.claims.release(scope, "t1", recovered.fence)
    for fence in (dead.fence, recovered.fence, recovered.fence + 1):
        with pytest.raises(ClaimSuperseded):
            await claim(store, scope, run_id="run-1", if_fence=fence)
    await save(store, scope, "never")
    with pytest.raises(ClaimSuperseded):
        await claim(store, scope, thread_id="never", if_fence=dead.fence)


async def test_without_a_run_nobody_is_taken_for_the_same(store, scope):
    """Two requests of one process name the same holder."""
    await save(store, scope)
    await claim(store, scope)
    with pytest.raises(ClaimHeld):
        await claim(store, scope)


async def test_takeovers_and_lifted_exclusions_are_on_record_and_nothing_else_of_claims(store, scope, admin):
    await save(store, scope)
    await claim(store, scope)
    await claim(store, scope, "two", run_id="r", take_over=True)
    held = await claim(store, scope, "two", run_id="r", exclusive=True)
    await store.claims.set_required(scope, "t1", required=False, actor="api-key:person")
    await store.claims.release(scope, "t1", held.fence)
    await claim(store, scope, "three", take_over=True)
    said = await admin.fetch(
        "SELECT action, actor FROM stateroom.audit_log WHERE tenant_id = $1 ORDER BY sequence", scope.tenant_id
    )
    assert [tuple(each) for each in said] == [
        ("thread.claimed", "api-key:worker"), ("thread.claimed", "api-key:person"),
    ]  # fmt: skip


async def test_a_thread_whose_worker_died_is_handed_on_later_each_time_and_then_to_nobody(store, scope, admin):
    await save(store, scope)
    last = await claim(store, scope, "w0", lease_seconds=10)
    for n in range(TAKEOVERS_MAX):
        await claim_over(admin, scope, 10 * 2**n - 5)
        with pytest.raises(ClaimHeld) as held:
            await claim(store, scope, f"w{n + 1}", lease_seconds=10)
        assert 0 < held.value.retry_after_seconds <= 5
        await claim_over(admin, scope, 10 * 2**n)
        found = await claim(store, scope, f"w{n + 1}", lease_seconds=10)
        assert (found.takeovers, found.status) == (n + 1, "live")
        assert found.fence > last.fence
        last = found
    await claim_over(admin, scope, 3600)
    assert (await store.claims.get(scope, "t1")).status == "stuck"
    for _ in range(2):
        with pytest.raises(ThreadStuck):
            await claim(store, scope, "somebody")
    listed = (await store.claims.silent(scope)).items
    assert [(each.thread_id, each.stuck, each.takeovers) for each in listed] == [("t1", True, TAKEOVERS_MAX)]
    taken = await claim(store, scope, "person", take_over=True)
    assert (taken.takeovers, taken.status) == (0, "live")


async def test_a_thread_that_went_on_begins_to_count_anew(store, scope, admin):
    await save(store, scope)
    await claim(store, scope, "w0", lease_seconds=10)
    for n in range(3):
        await claim_over(admin, scope, 100)
        found = await claim(store, scope, f"w{n + 1}", lease_seconds=10)
    assert found.takeovers == 3
    await save(store, scope, fence=found.fence)
    await claim_over(admin, scope, 10)
    assert (await claim(store, scope, "next", lease_seconds=10)).takeovers == 0


async def test_the_wait_for_a_dead_worker_is_bounded(store, scope, admin):
    await save(store, scope)
    await claim(store, scope, "w0", lease_seconds=300)
    for n in range(TAKEOVERS_MAX):
        await claim_over(admin, scope, 3600)
        await claim(store, scope, f"w{n + 1}", lease_seconds=300)


async def test_that_a_thread_is_stuck_is_told_once(store, scope, admin):
    await save(store, scope)
    store.emitting.learn(scope.tenant_id, is_on=True)
    await claim(store, scope, "w0", lease_seconds=10)
    for n in range(TAKEOVERS_MAX):
        await claim_over(admin, scope, 3600)
        await claim(store, scope, f"w{n + 1}", lease_seconds=10, run_id=f"run-{n}")
    await claim_over(admin, scope, 3600)
    store.emitting.learn(scope.tenant_id, is_on=True)
    for _ in range(2):
        with pytest.raises(ThreadStuck):
            await claim(store, scope, "somebody")
    told = await admin.fetch(
        "SELECT thread_id, run_id FROM stateroom.event_queue WHERE tenant_id = $1 AND type = 'thread.stuck'",
        scope.tenant_id,
    )
    assert [tuple(each) for each in told] == [("t1", f"run-{TAKEOVERS_MAX - 1}")]


async def test_silent_threads_are_listed_by_pages_of_a_subject_or_a_whole_tenant(store, scope, admin):
    other = Scope(scope.tenant_id, "user-2")
    foreign = Scope(scope.tenant_id, "user-3")
    for each in (scope, other):
        for thread_id in ("a", "b", "c", "d"):
            await save(store, each, thread_id, agent="planner" if thread_id == "a" else None)
            held = await claim(store, each, thread_id=thread_id)
            if thread_id == "c":
                await store.claims.release(each, thread_id, held.fence)
            elif thread_id != "d":
                await claim_over(admin, each, 100, thread_id)
    assert await silent(store, scope) == ["a", "b"]
    assert await silent(store, scope, silent_seconds=99) == ["a", "b"]
    assert await silent(store, scope, silent_seconds=200) == []
    assert await silent(store, scope, agent="planner") == ["a"]
    assert await silent(store, foreign) == []
    page = await store.claims.silent(TenantListing(scope.tenant_id), limit=3)
    rest = await store.claims.silent(TenantListing(scope.tenant_id), limit=3, after=page.after)
    assert [(each.subject_id, each.thread_id) for each in page.items + rest.items] == [
        ("user-1", "a"), ("user-1", "b"), ("user-2", "a"), ("user-2", "b"),
    ]  # fmt: skip
    assert rest.after is None


async def test_of_many_that_claim_at_once_one_gets_the_thread(store, scope, admin):
    await save(store, scope)
    answers = await asyncio.gather(*(claim(store, scope, f"w{number}") for number in range(8)), return_exceptions=True)
    won = [each for each in answers if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert all(isinstance(each, ClaimHeld) for each in answers if each is not won[0])
    assert [each["fence"] for each in await rows(admin, scope, "claims")] == [won[0].fence]


async def test_under_a_share_the_note_opens_with_it_only_and_a_claim_needs_none(store, scope, admin):
    await store.checkpoints.save(scope, Save(thread_id="t1", content=state(note="x")), share=SHARE)
    held = await claim(store, scope, run_id="run-1", note="a secret plan", share=SHARE)
    assert (await store.claims.get(scope, "t1", share=SHARE)).note == "a secret plan"
    assert (await store.claims.get(scope, "t1")).note is None
    with pytest.raises(ClientShareWrong):
        await store.claims.get(scope, "t1", share=ClientShare(b"t" * 32))
    wrong = ClientShare(b"t" * 32)
    for note in (None, "b"):
        with pytest.raises(ClientShareWrong):
            await store.claims.renew(scope, "t1", held.fence, note=note, share=wrong)
    with pytest.raises(ClientShareWrong):
        await claim(store, scope, run_id="run-1", share=wrong)
    with pytest.raises(ClientShareRequired):
        await store.claims.renew(scope, "t1", held.fence, note="b")
    assert (await store.claims.renew(scope, "t1", held.fence)).note is None
    assert (await store.claims.get(scope, "t1", share=SHARE)).note == "a secret plan"
    [row] = await rows(admin, scope, "claims")
    assert b"secret" not in row["note"]
    await store.claims.release(scope, "t1", held.fence)
    assert (await claim(store, scope, "two")).note is None
    await save(store, scope, "without")
    with pytest.raises(ClientShareUnexpected):
        await claim(store, scope, thread_id="without", share=SHARE)


async def test_a_thread_made_again_has_a_greater_fence(store, scope):
    await save(store, scope)
    first = await claim(store, scope)
    await store.threads.delete(scope, "t1")
    with pytest.raises(ThreadNotFound):
        await claim(store, scope)
    await save(store, scope)
    with pytest.raises(ClaimNotFound):
        await store.claims.get(scope, "t1")
    with pytest.raises(ClaimLost):
        await save(store, scope, fence=first.fence)
    assert (await claim(store, scope)).fence > first.fence


async def test_what_cannot_be_claimed_is_refused(store, scope):
    nobody = Scope(scope.tenant_id, "nobody")
    for refused in (claim(store, nobody), store.claims.get(nobody, "t1"), store.claims.release(nobody, "t1", 1)):
        with pytest.raises(ThreadNotFound):
            await refused
    for lease_seconds in (4, 301):
        with pytest.raises(InvalidState):
            await claim(store, scope, lease_seconds=lease_seconds)
    for holder in ("", "x" * 256, "a\0b"):
        with pytest.raises(InvalidState):
            await claim(store, scope, holder)
    with pytest.raises(LimitExceeded):
        await claim(store, scope, note="ü" * (CLAIM_NOTE_BYTES_MAX // 2 + 1))
    await save(store, scope)
    await claim(store, scope, note="ü" * (CLAIM_NOTE_BYTES_MAX // 2))


async def test_a_shredded_subjects_claims_are_refused_and_gone(store, scope, admin):
    await save(store, scope)
    held = await claim(store, scope)
    await store.shred.subject(scope, scope.subject_id, "api-key:person")
    for refused in (claim(store, scope), store.claims.renew(scope, "t1", held.fence), store.claims.get(scope, "t1")):
        with pytest.raises(KeyDestroyed):
            await refused
