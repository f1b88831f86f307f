"""The ledger of effects: what was done is told again, and nothing that may not be is done twice."""

import asyncio
import hashlib
from datetime import UTC, datetime
from uuid import uuid4

import msgpack
import pytest

from storage.approvals.model import ApprovalPolicy, ApprovalQuery, Decision, Verdict, Voter
from storage.control.features import DECISIONS
from storage.effects.model import EFFECT_RESULT_BYTES_MAX, EffectFinish, EffectStart
from storage.errors import (
    ActionChanged,
    ApprovalConsumed,
    ApprovalNotFound,
    ApprovalRequired,
    ClaimLost,
    ClientShareRequired,
    EffectInProgress,
    EffectMismatch,
    EffectNotFound,
    EffectNotUnknown,
    EffectRepeats,
    EffectResolverStarted,
    EffectsExceeded,
    EffectSuperseded,
    EffectUnknown,
    FeatureOff,
    InvalidState,
    LimitExceeded,
    ThreadClaimed,
    ThreadNotFound,
)
from storage.model import Asker, NewAction, NewApproval, Parent, Save
from storage.scope import Scope, TenantListing, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.ledgers import SHARE, claim, effect_over, finish, resolve, rows, start, window_over
from tests.support.states import put, save, state, write


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, DECISIONS)
        yield made


@pytest.fixture
async def line(store, scope):
    """Two checkpoints of a thread and one beside the second."""
    first = await save(store, scope)
    second = await save(store, scope, parent=_parent(first))
    fork = await save(store, scope, parent=_parent(first))
    return [each.checkpoint_id for each in (first, second, fork)]


def _parent(saved):

    return Parent(saved.checkpoint_id)


def ended(effect):
    return (effect.status, effect.result_state, effect.result)


async def test_no_effect_is_kept_before_the_feature_is_on(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as before:
        await save(before, scope)
        with pytest.raises(FeatureOff):
            await start(before, scope)
        await switch_on(before, DECISIONS)
        await start(before, scope)


async def test_an_effect_runs_once_and_is_told_again(store, scope):
    await save(store, scope)
    started = await start(store, scope, run_id="run-1", lease_seconds=60)
    effect = started.effect
    assert started.must_run
    assert (effect.execution, effect.attempt, effect.status, effect.mode) == (1, 1, "started", "once")
    assert (effect.name, effect.tool, effect.run_id, effect.started_by) == ("call-1", "pay", "run-1", "worker")
    done = await finish(store, scope, started, result={"id": 7}, result_digest=b"d" * 32)
    assert (done.status, done.result_state, done.result_bytes, done.result_digest) == ("done", "stored", 5, b"d" * 32)
    again = await start(store, scope)
    assert not again.must_run
    assert ended(again.effect) == ("done", "stored", msgpack.packb({"id": 7}))
    assert again.effect.provider_key == effect.provider_key
    shown = await store.effects.get(scope, "t1", "", "call-1")
    assert msgpack.unpackb(shown.args) == {"to": "bob", "amount": 50}
    assert ended(shown) == ended(again.effect)


@pytest.mark.parametrize("mode", ["read", "idempotent", "once"])
async def test_what_certainly_failed_runs_again_under_the_same_key(store, scope, mode):
    await save(store, scope)
    first = await start(store, scope, mode=mode)
    failed = await finish(store, scope, first, "failed", error="ConnectionRefused")
    assert (failed.status, failed.error) == ("failed", "ConnectionRefused")
    second = await start(store, scope, mode=mode, run_id="run-2")
    assert second.must_run
    assert (second.effect.attempt, second.effect.error) == (2, None)
    assert second.effect.provider_key == first.effect.provider_key
    with pytest.raises(EffectSuperseded):
        await finish(store, scope, first)
    assert (await finish(store, scope, second)).attempt == 2


@pytest.mark.parametrize("mode", ["read", "idempotent"])
async def test_what_may_be_repeated_is_when_whoever_did_it_is_gone(store, scope, admin, mode):
    await save(store, scope)
    first = await start(store, scope, mode=mode)
    with pytest.raises(EffectInProgress) as busy:
        await start(store, scope, mode=mode)
    assert 0 < busy.value.retry_after_seconds <= 300
    await effect_over(store, scope)
    second = await start(store, scope, mode=mode)
    assert (second.must_run, second.effect.attempt) == (True, 2)
    assert second.effect.provider_key == first.effect.provider_key
    await finish(store, scope, second, "unknown")
    assert (await start(store, scope, mode=mode)).effect.attempt == 3


async def test_what_is_done_once_becomes_unknown_when_whoever_did_it_is_gone_and_never_runs(store, scope, admin):
    await save(store, scope)
    first = await start(store, scope)
    with pytest.raises(EffectInProgress):
        await start(store, scope)
    await effect_over(store, scope)
    for _ in range(2):
        with pytest.raises(EffectUnknown) as unknown:
            await start(store, scope)
        assert unknown.value.execution == 1
    assert (await store.effects.get(scope, "t1", "", "call-1")).status == "unknown"
    # Whoever did it was slow and not dead: what it knows counts.
    assert (await finish(store, scope, first, result=1)).status == "done"
    assert not (await start(store, scope)).must_run


async def test_under_claims_the_loss_of_one_is_the_end_of_its_effects(store, scope):
    await save(store, scope)
    one = await claim(store, scope)
    first = await start(store, scope, mode="idempotent", fence=one.fence)
    again = await start(store, scope, mode="idempotent", fence=one.fence)
    assert (again.must_run, again.effect.attempt) == (True, 2)
    await start(store, scope, "pay-1", fence=one.fence, args=1)
    with pytest.raises(EffectInProgress):
        await start(store, scope, "pay-1", fence=one.fence, args=1)
    two = await claim(store, scope, "two", take_over=True)
    with pytest.raises(ClaimLost):
        await start(store, scope, mode="idempotent", fence=one.fence)
    third = await start(store, scope, mode="idempotent", fence=two.fence)
    assert (third.must_run, third.effect.attempt) == (True, 3)
    assert third.effect.provider_key == first.effect.provider_key
    with pytest.raises(EffectUnknown):
        await start(store, scope, "pay-1", fence=two.fence, args=1)


async def test_a_thread_that_asks_for_claims_starts_nothing_without_one(store, scope):
    await save(store, scope)
    held = await claim(store, scope, exclusive=True)
    with pytest.raises(ThreadClaimed):
        await start(store, scope)
    started = await start(store, scope, fence=held.fence)
    await store.claims.release(scope, "t1", held.fence)
    await finish(store, scope, started)  # what happened is said by whoever did it


async def test_a_name_that_means_something_else_is_refused(store, scope):
    await save(store, scope)
    await start(store, scope, identity=("/to",))
    for other in ({"args": {"to": "eve"}, "identity": ("/to",)}, {"tool": "send", "identity": ("/to",)}, {}):
        with pytest.raises(EffectMismatch):
            await start(store, scope, **other)
    with pytest.raises(EffectInProgress):
        await start(store, scope, args={"to": "bob", "nonce": 9}, identity=("/to",))


async def test_lines_of_a_thread_have_effects_of_their_own_and_share_those_before_they_parted(store, scope, line):
    root, left, right = line
    await finish(store, scope, await start(store, scope, checkpoint_id=root), result=1)
    for checkpoint_id in line:
        assert not (await start(store, scope, checkpoint_id=checkpoint_id)).must_run
    one = await start(store, scope, "call-2", checkpoint_id=left, mode="idempotent", args=1)
    await finish(store, scope, one, result="left")
    other = await start(store, scope, "call-2", checkpoint_id=right, mode="idempotent", args=1)
    assert (other.must_run, other.effect.execution, other.effect.repeats) == (True, 2, 1)
    assert other.effect.repeats_name is None
    assert other.effect.provider_key == one.effect.provider_key  # the same payment, on another line
    await finish(store, scope, other, result="right")
    for checkpoint_id, result in ((left, "left"), (right, "right")):
        shown = (await start(store, scope, "call-2", checkpoint_id=checkpoint_id, mode="idempotent", args=1)).effect
        assert msgpack.unpackb(shown.result) == result


async def test_what_was_done_once_on_another_line_is_asked_about(store, scope, line):
    _, left, right = line
    await finish(store, scope, await start(store, scope, checkpoint_id=left))
    for name in ("call-1", "call-2"):
        with pytest.raises(EffectRepeats) as repeats:
            await start(store, scope, name, checkpoint_id=right)
        assert (repeats.value.name, repeats.value.execution, repeats.value.status) == ("call-1", 1, "done")
    meant = await start(store, scope, "call-2", checkpoint_id=right, repeat=True)
    assert (meant.must_run, meant.effect.repeats, meant.effect.repeats_name) == (True, 1, "call-1")
    # Another intent under the same name on another line is another execution.
    assert (await start(store, scope, "call-1", checkpoint_id=right, args="else")).effect.execution == 2


async def test_the_same_a_moment_ago_under_another_name_is_asked_about_and_later_is_not(store, scope, admin):
    await save(store, scope)
    first = await start(store, scope, "call-1")
    await finish(store, scope, first)
    with pytest.raises(EffectRepeats):
        await start(store, scope, "call-2")
    await start(store, scope, "call-2", args={"to": "eve"})
    meant = await start(store, scope, "call-3", repeat=True)
    assert meant.effect.provider_key != first.effect.provider_key
    await finish(store, scope, meant, "failed")
    await window_over(store, scope)
    later = await start(store, scope, "call-4")
    assert (later.must_run, later.effect.repeats) == (True, None)
    idempotent = await start(store, scope, "call-5", mode="idempotent", args=5)
    again = await start(store, scope, "call-6", mode="idempotent", args=5)  # paid again on purpose, on the same line
    assert again.effect.provider_key != idempotent.effect.provider_key


async def test_an_ancestor_that_is_not_known_counts_as_one(store, scope, line):
    _, left, right = line
    await finish(store, scope, await start(store, scope, checkpoint_id=left))
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert not (await start(store, scope, checkpoint_id=right)).must_run  # its parent is gone
    assert not (await start(store, scope, checkpoint_id="01890000-never")).must_run


async def test_a_checkpoint_that_was_never_stored_is_no_other_line(store, scope, line):
    _, left, right = line
    never = "01890000-never"
    paid = await start(store, scope, "call-1", checkpoint_id=never, mode="idempotent", args=1)
    await finish(store, scope, paid)
    later = await start(store, scope, "call-2", checkpoint_id=left, mode="idempotent", args=1)
    assert (later.must_run, later.effect.repeats) == (True, None)
    assert later.effect.provider_key != paid.effect.provider_key
    # What is certainly on another line keeps the key, and the same name is told wherever it is asked for.
    elsewhere = await start(store, scope, "call-3", checkpoint_id=right, mode="idempotent", args=1)
    assert elsewhere.effect.provider_key == later.effect.provider_key
    assert not (await start(store, scope, "call-1", checkpoint_id=right, mode="idempotent", args=1)).must_run
    await finish(store, scope, await start(store, scope, "once-1", checkpoint_id=never, args=2))
    with pytest.raises(EffectRepeats):
        await start(store, scope, "once-2", checkpoint_id=left, args=2)
    await window_over(store, scope)
    assert (await start(store, scope, "once-2", checkpoint_id=left, args=2)).must_run


async def test_calls_count_for_the_root_that_they_are_in(store, scope):
    await save(store, scope)
    await finish(store, scope, await start(store, scope, namespace="node:1"))
    for namespace in ("", "node:2|inner:3"):
        found = await start(store, scope, namespace=namespace)
        assert (found.must_run, found.effect.namespace) == (False, "")
    assert (await start(store, scope, namespace="planner")).must_run


async def test_a_finish_is_said_twice_and_not_otherwise(store, scope):
    await save(store, scope)
    started = await start(store, scope)
    done = await finish(store, scope, started, result=[1])
    assert (await finish(store, scope, started, result=[1])).finished_at == done.finished_at
    for status, parts in (("done", {"result": [2]}), ("done", {}), ("failed", {}), ("unknown", {})):
        with pytest.raises(EffectSuperseded):
            await finish(store, scope, started, status, **parts)
    assert msgpack.unpackb((await start(store, scope)).effect.result) == [1]


async def test_where_a_result_is(store, scope):
    await save(store, scope)
    artifact_id = uuid4()
    for number, (parts, found) in enumerate([
        ({}, ("none", None, None)),
        ({"result": None}, ("stored", 1, None)),
        ({"result_bytes": 9_000_000}, ("missing", 9_000_000, None)),
        ({"artifact_id": artifact_id, "result_bytes": 9}, ("artifact", 9, artifact_id)),
    ]):  # fmt: skip
        started = await start(store, scope, f"n-{number}", args=number)
        await finish(store, scope, started, **parts)
        effect = (await start(store, scope, f"n-{number}", args=number)).effect
        assert (effect.result_state, effect.result_bytes, effect.artifact_id) == found


async def test_somebody_else_says_whether_it_happened_and_it_runs_only_if_not(store, scope, admin):
    await save(store, scope)
    effect = (await start(store, scope)).effect
    with pytest.raises(EffectNotUnknown):
        await resolve(store, scope, effect, happened=True)
    await finish(store, scope, effect, "unknown", error="TimeoutError")
    with pytest.raises(EffectResolverStarted):
        await resolve(store, scope, effect, happened=False, principal="worker")
    for _ in range(2):
        voided = await resolve(store, scope, effect, happened=False)
        assert (voided.status, voided.resolved_by, voided.error) == ("voided", "person", "TimeoutError")
    with pytest.raises(EffectNotUnknown):
        await resolve(store, scope, effect, happened=True)
    with pytest.raises(EffectSuperseded):
        await finish(store, scope, effect)
    again = await start(store, scope)
    assert (again.must_run, again.effect.attempt, again.effect.resolved_by) == (True, 2, None)
    await effect_over(store, scope)  # nobody asked to start it since its worker died
    done = await resolve(
        store, scope, again.effect, happened=True, by_check=True, principal="worker", result=msgpack.packb({"id": 3})
    )
    assert (done.status, done.resolved_by, done.result_state) == ("done", "check", "stored")
    assert msgpack.unpackb((await start(store, scope)).effect.result) == {"id": 3}
    said = await admin.fetch(
        "SELECT actor, action FROM stateroom.audit_log WHERE tenant_id = $1 ORDER BY sequence", scope.tenant_id
    )
    assert [tuple(each) for each in said] == [
        ("api-key:person", "effect.resolved"), ("api-key:worker", "effect.resolved"),
    ]  # fmt: skip


async def test_what_was_found_out_of_one_attempt_is_not_said_of_the_next(store, scope):
    await save(store, scope)
    looked_at = (await start(store, scope)).effect
    await finish(store, scope, looked_at, "unknown")
    await resolve(store, scope, looked_at, happened=False)
    again = (await start(store, scope)).effect
    for happened in (False, True):
        with pytest.raises(EffectSuperseded):
            await resolve(store, scope, looked_at, happened=happened)
    await finish(store, scope, again, "unknown")
    with pytest.raises(EffectSuperseded):
        await resolve(store, scope, looked_at, happened=False, by_check=True)
    assert (await resolve(store, scope, again, happened=False)).status == "voided"


async def test_a_program_that_sees_nothing_is_not_believed_while_whoever_began_may_be_at_it(store, scope, admin):
    """Its claim was taken over, and its call is on its way: what is not there yet may come."""
    await save(store, scope)
    held = await claim(store, scope)
    effect = (await start(store, scope, fence=held.fence, lease_seconds=300)).effect
    taken = await claim(store, scope, "two", take_over=True)
    with pytest.raises(EffectUnknown) as unknown:
        await start(store, scope, fence=taken.fence)
    assert (unknown.value.execution, unknown.value.attempt) == (1, 1)
    with pytest.raises(EffectInProgress) as wait:
        await resolve(store, scope, effect, happened=False, by_check=True)
    assert 0 < wait.value.retry_after_seconds <= 300
    with pytest.raises(EffectUnknown):
        await start(store, scope, fence=taken.fence)
    await effect_over(store, scope)
    assert (await resolve(store, scope, effect, happened=False, by_check=True)).status == "voided"


async def test_a_program_is_believed_at_once_when_whoever_began_said_that_it_does_not_know(store, scope):
    await save(store, scope)
    effect = (await start(store, scope, lease_seconds=300)).effect
    await finish(store, scope, effect, "unknown", error="Timeout")
    assert (await resolve(store, scope, effect, happened=False, by_check=True)).status == "voided"


async def test_a_result_comes_after_its_effect_and_nothing_else_does(store, scope):
    await save(store, scope)
    effect = (await start(store, scope)).effect
    kept = {"result_digest": b"d" * 32, "result_bytes": 9}
    await finish(store, scope, effect, **kept)
    artifact_id = uuid4()
    for wrong in ({**kept, "result_digest": b"e" * 32}, {**kept, "result_bytes": 8}, {"result_bytes": 9}):
        with pytest.raises(EffectSuperseded):
            await finish(store, scope, effect, artifact_id=artifact_id, **wrong)
    for _ in range(2):
        found = await finish(store, scope, effect, artifact_id=artifact_id, **kept)
        assert (found.result_state, found.artifact_id) == ("artifact", artifact_id)
    with pytest.raises(EffectSuperseded):
        await finish(store, scope, effect, artifact_id=uuid4(), **kept)


async def test_effects_are_listed_in_order_by_pages_without_what_is_large(store, scope, line):
    for number in range(5):
        started = await start(store, scope, f"n-{number}", args=number, checkpoint_id=line[number % 2])
        if number % 2:
            await finish(store, scope, started, result="r")
    pages, after = [], None
    while True:
        page = await store.effects.list(scope, "t1", limit=2, after=after)
        pages.append([each.name for each in page.items])
        assert all((each.args, each.result) == (None, None) for each in page.items)
        if (after := page.after) is None:
            break
    assert pages == [["n-0", "n-1"], ["n-2", "n-3"], ["n-4"]]
    assert [each.name for each in (await store.effects.list(scope, "t1", status="done")).items] == ["n-1", "n-3"]
    of = (await store.effects.list(scope, "t1", checkpoint_id=line[1])).items
    assert [each.name for each in of] == ["n-1", "n-3"]


async def test_what_nobody_knows_is_listed_of_a_subject_or_a_whole_tenant(store, scope, admin):
    other = Scope(scope.tenant_id, "user-2")
    for each in (scope, other):
        await save(store, each)
        await finish(store, each, await start(store, each, "unknown", args=1), "unknown")
        await start(store, each, "dead", args=2)
        await effect_over(store, each, "dead")
        await start(store, each, "started", args=3)
        await start(store, each, "read", args=4, mode="read")
        await effect_over(store, each, "read")
        await finish(store, each, await start(store, each, "done", args=5))
    assert [each.thread_id for each in (await store.effects.unknown(scope)).items] == ["t1", "t1"]
    page = await store.effects.unknown(TenantListing(scope.tenant_id), limit=3)
    rest = await store.effects.unknown(TenantListing(scope.tenant_id), limit=3, after=page.after)
    listed = page.items + rest.items
    assert [each.subject_id for each in listed] == ["user-1", "user-1", "user-2", "user-2"]
    assert len({each.effect_id for each in listed}) == 4
    assert rest.after is None


async def test_of_many_that_start_at_once_one_runs(store, scope, admin):
    await save(store, scope)
    for mode in ("once", "idempotent", "read"):
        answers = await asyncio.gather(
            *(start(store, scope, mode, mode=mode, args=mode) for _ in range(8)), return_exceptions=True
        )
        won = [each for each in answers if not isinstance(each, BaseException)]
        assert [each.must_run for each in won] == [True]
        assert all(isinstance(each, EffectInProgress) for each in answers if each is not won[0])
    assert len(await rows(admin, scope, "effects")) == 3


async def test_of_many_names_of_one_intent_at_once_one_runs(store, scope):
    await save(store, scope)
    answers = await asyncio.gather(*(start(store, scope, f"n-{n}") for n in range(6)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in answers) == ["EffectRepeats"] * 5 + ["EffectStarted"]


async def test_records_of_earlier_clients_are_seen_as_done(store, scope):
    await save(store, scope)
    await put(
        store, scope, "stateroom:once", write(0, "pay-1", {"id": 5}), write(1, "stateroom:intent", "1:abc"),
        task_id="once:" + hashlib.sha256(b"pay-1").hexdigest()[:32],
    )  # fmt: skip
    found = await start(store, scope, "pay-1", args="whatever")
    assert not found.must_run
    assert (msgpack.unpackb(found.effect.result), found.effect.execution) == ({"id": 5}, 0)
    assert (await start(store, scope, "pay-2", args="whatever")).must_run
    assert (await start(store, scope, "pay-1", args="whatever", mode="idempotent")).must_run


async def test_a_large_record_of_an_earlier_client_is_read_whole(store, scope):
    await save(store, scope)
    task_id = "once:" + hashlib.sha256(b"pay-1").hexdigest()[:32]
    large = "x" * 700_000
    await put(store, scope, "stateroom:once", write(0, "pay-1", large), task_id=task_id)
    assert msgpack.unpackb((await start(store, scope, "pay-1")).effect.result) == large


async def test_a_thread_made_again_does_not_do_once_again(store, scope, admin):
    await save(store, scope)
    await finish(store, scope, await start(store, scope, "paid", args=1))
    await finish(store, scope, await start(store, scope, "failed", args=2), "failed")
    await finish(store, scope, await start(store, scope, "read", args=3, mode="idempotent"))
    await store.threads.delete(scope, "t1")
    assert await rows(admin, scope, "effects") == []
    assert len(await rows(admin, scope, "effect_tombstones")) == 1
    with pytest.raises(ThreadNotFound):
        await start(store, scope)
    await save(store, scope)
    with pytest.raises(EffectRepeats) as repeats:
        await start(store, scope, "paid", args="even another")
    assert repeats.value.name is None
    for name, mode in (("failed", "once"), ("read", "idempotent"), ("other", "once")):
        assert (await start(store, scope, name, args=name, mode=mode)).must_run
    assert (await start(store, scope, "paid", args=1, repeat=True)).must_run
    await admin.execute("UPDATE stateroom.effect_tombstones SET removed_at = removed_at - interval '31 days'")
    await store.threads.delete(scope, "t1")
    assert len(await rows(admin, scope, "effect_tombstones")) == 3  # those of this life; the one before is over


async def test_under_a_share_everything_written_opens_with_it_only(store, scope, admin):
    await store.checkpoints.save(scope, Save(thread_id="t1", content=state(note="x")), share=SHARE)
    with pytest.raises(ClientShareRequired):
        await start(store, scope)
    started = await start(store, scope, share=SHARE)
    done = await finish(store, scope, started, share=SHARE, result="secret")
    assert done.result_state == "stored"
    with pytest.raises(ClientShareRequired):
        await store.effects.list(scope, "t1")
    assert (await start(store, scope, share=SHARE)).effect.result == msgpack.packb("secret")
    other = await start(store, scope, "other", args=2, share=SHARE)
    await finish(store, scope, other, "unknown", share=SHARE, error="E")
    voided = await resolve(store, scope, other.effect, happened=False)  # a person has no share
    assert (voided.name, voided.tool, voided.error, voided.status) == ("other", "", None, "voided")
    assert (await store.effects.get(scope, "t1", "", "other", share=SHARE)).error == "E"


async def approved(store, scope, args, tool="pay"):
    """The id of an approval of one action, as a person gave it."""
    asked = NewApproval("q", (NewAction(tool, msgpack.packb(args)),))
    await save(store, scope, "t1", content=state(x=1), agent="payer", approvals=(asked,), asker=Asker("key", "key"))
    [approval] = (await store.approvals.list(scope, ApprovalQuery(status="pending", thread_id="t1"))).approvals
    voter = Voter("key-ada", "ada", datetime(2020, 1, 1, tzinfo=UTC))
    shown = await store.approvals.open(scope, approval.approval_id, voter, None)
    decision = Decision(approval.approval_id, shown.action_hash, (Verdict("approve"),))
    await store.approvals.decide(scope, decision, voter)
    return approval.approval_id


async def test_an_approval_is_used_up_by_the_start_of_its_action_and_by_no_other(store, scope):
    args = {"to": "bob", "amount": 1200}
    approval_id = await approved(store, scope, args)
    with pytest.raises(ApprovalNotFound):
        await start(store, scope, args=args, approval_id=uuid4())
    with pytest.raises(ApprovalNotFound):
        await start(store, scope, args=args, approval_id=approval_id, approval_position=1)
    null = {"args": {**args, "memo": None}}  # what is absent is not null
    for other in ({"args": {**args, "amount": 1500}}, null, {"args": args, "tool": "refund"}):
        with pytest.raises(ActionChanged):
            await start(store, scope, approval_id=approval_id, **other)
    assert (await store.effects.list(scope, "t1")).items == []  # whoever is refused has started nothing
    first = await start(store, scope, args=args, approval_id=approval_id)
    assert first.must_run
    await finish(store, scope, first, "failed")
    for given in ({}, {"approval_id": approval_id}):  # it is this effect's, whatever attempt
        again = await start(store, scope, args=args, **given)
        assert again.must_run
        await finish(store, scope, again, "failed")
    with pytest.raises(ApprovalConsumed):
        await start(store, scope, "more", args=args, repeat=True, approval_id=approval_id)


async def test_another_attempt_under_an_approval_is_the_same_action(store, scope):
    """Also where some of the arguments alone make it the same effect."""
    approval_id = await approved(store, scope, {"to": "bob", "amount": 50})
    same = {"identity": ("/to",), "approval_id": approval_id}
    first = await start(store, scope, args={"to": "bob", "amount": 50}, **same)
    await finish(store, scope, first, "failed")
    for given in (same, {"identity": ("/to",)}):
        with pytest.raises(ActionChanged):
            await start(store, scope, args={"to": "bob", "amount": 5000}, **given)
    assert (await start(store, scope, args={"to": "bob", "amount": 50}, **same)).must_run


async def test_what_may_not_be_repeated_now_is_not_although_it_was_begun_as_what_may(store, scope):
    await save(store, scope)
    first = await start(store, scope, mode="idempotent")
    await finish(store, scope, first, "failed")
    assert (await start(store, scope, mode="once")).must_run
    await effect_over(store, scope)
    with pytest.raises(EffectUnknown):
        await start(store, scope, mode="once")
    with pytest.raises(EffectUnknown):  # nor is it, once it was begun so
        await start(store, scope, mode="idempotent")


async def test_what_was_repeated_may_have_happened_although_its_last_attempt_failed(store, scope):
    await save(store, scope)
    first = await start(store, scope, mode="idempotent")
    await finish(store, scope, first, "unknown", error="Timeout")
    again = await start(store, scope, mode="idempotent")
    await finish(store, scope, again, "failed", error="Declined")
    with pytest.raises(EffectUnknown) as unknown:
        await start(store, scope, mode="once")
    assert unknown.value.attempt == 2
    with pytest.raises(EffectUnknown):
        await start(store, scope, mode="once")
    await resolve(store, scope, again.effect, happened=False)
    assert (await start(store, scope, mode="once")).must_run


async def test_of_many_starts_with_one_approval_one_acts(store, scope):
    args = {"to": "bob", "amount": 5}
    approval_id = await approved(store, scope, args)
    starts = (
        start(store, scope, f"call-{number}", args=args, repeat=True, approval_id=approval_id) for number in range(6)
    )
    ended = await asyncio.gather(*starts, return_exceptions=True)
    assert sorted(type(each).__name__ for each in ended) == ["ApprovalConsumed"] * 5 + ["EffectStarted"]


async def test_a_tool_that_a_policy_names_is_not_started_without_an_approval(store, scope):
    policy = ApprovalPolicy(required=True)
    await store.approval_policies.put(TenantScope(scope.tenant_id), "payer", "pay", policy)
    args = {"to": "bob", "amount": 7}
    await save(store, scope, agent="payer")
    with pytest.raises(ApprovalRequired):
        await start(store, scope, args=args)
    assert (await start(store, scope, "free", tool="look")).must_run
    approval_id = await approved(store, scope, args)
    assert (await start(store, scope, args=args, approval_id=approval_id)).must_run


async def test_a_thread_has_so_many_effects_and_no_more(store, scope, monkeypatch):
    monkeypatch.setattr("storage.effects.verbs.EFFECTS_MAX", 2)
    await save(store, scope)
    for number in range(2):
        await start(store, scope, f"n-{number}", args=number)
    with pytest.raises(EffectsExceeded):
        await start(store, scope, "n-2", args=2)
    with pytest.raises(EffectInProgress):
        await start(store, scope, "n-1", args=1)


async def test_what_cannot_be_an_effect_is_refused(store, scope):
    await save(store, scope)
    with pytest.raises(EffectNotFound):
        await store.effects.get(scope, "t1", "", "never")
    with pytest.raises(ThreadNotFound):
        await start(store, scope, thread_id="never")
    for parts in (
        {"name": ""}, {"tool": "x" * 256}, {"lease_seconds": 4}, {"lease_seconds": 3601}, {"identity": ("to",)},
    ):  # fmt: skip
        with pytest.raises(InvalidState):
            await start(store, scope, **parts)
    for parts in ({"identity": ()}, {"identity": ("",) * 33}, {"args": "x" * 1_048_576}):
        with pytest.raises(LimitExceeded):
            await start(store, scope, **parts)
    started = (await start(store, scope)).effect
    ends = {"thread_id": "t1", "namespace": "", "name": "call-1", "execution": 1, "attempt": 1}
    for parts in (
        {"status": "failed", "result": b"\xc0"}, {"status": "done", "result": b"\xc0", "artifact_id": uuid4()},
        {"status": "done", "result_digest": b"short"}, {"status": "failed", "error": "x" * 256},
    ):  # fmt: skip
        with pytest.raises(InvalidState):
            await store.effects.finish(scope, EffectFinish(**ends, **parts))
    with pytest.raises(LimitExceeded):
        await finish(store, scope, started, result="x" * EFFECT_RESULT_BYTES_MAX)
    await finish(store, scope, started, result="x" * (EFFECT_RESULT_BYTES_MAX - 5))
    with pytest.raises(InvalidState):
        EffectStart(thread_id="t1", namespace="", name="a\0b", tool="t", args=b"").check()
