"""Approvals in storage: asked with what suspends, decided once, superseded by what comes next, used once."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec
import pytest

from storage.approvals.consuming import Consumption
from storage.approvals.expiring import Expiring
from storage.approvals.model import ApprovalPolicy, ApprovalQuery, Decision, Verdict, Voter
from storage.control.features import DECISIONS
from storage.encoding import encode_msgpack
from storage.errors import (
    ActionChanged,
    ApprovalConsumed,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalLapsed,
    ApprovalNotFound,
    ApprovalNotYours,
    ApprovalRejected,
    ApprovalsExceeded,
    ApprovalUndecided,
    ClientShareRequired,
    FeatureOff,
    IntegrityFailure,
    InvalidState,
    LimitExceeded,
)
from storage.format.thread_ledgers.actions import canonical
from storage.model import Asker, NewAction, NewApproval
from storage.postgres.statement import Statement
from storage.postgres.tables import metadata
from storage.scope import ClientShare, OperatorScope, Scope, TenantListing, TenantScope
from storage.statements.rules.retention import SET_APPROVALS_DUE, TENANTS_DUE
from storage.statements.thread_ledgers.approvals import LIST_PENDING
from storage.thread_ledgers.locked import LockedLedger
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.states import put, save, state, write

OLD = datetime(2020, 1, 1, tzinfo=UTC)
ASKER = Asker("key-agent", "key-agent")
ADA = Voter("key-ada", "ada", OLD)
BOB = Voter("key-bob", "bob", OLD)
AGENT = Voter("key-agent", "key-agent", OLD)
PAY = {"to": "bob", "amount": 1200}
SHARE = ClientShare(bytes(range(32)))


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, DECISIONS)
        yield made


def action(tool="pay", args=PAY, **more):
    return NewAction(tool, encode_msgpack(args), **more)


def question(external_id="q", *actions, **more):
    return NewApproval(external_id, actions or (action(),), **more)


async def ask(store, scope, *questions, thread_id="t1", **more):
    """Save a checkpoint that asks; the approvals of the thread that wait then, the oldest first."""
    await save(store, scope, thread_id, content=state(x=[1]), approvals=questions, asker=ASKER, **more)
    return await waiting(store, scope, thread_id)


async def waiting(store, scope, thread_id="t1", status="pending"):
    page = await store.approvals.list(scope, ApprovalQuery(status=status, thread_id=thread_id))
    return page.approvals[::-1]


async def decision(store, scope, approval, *verdicts, share=None):
    """A decision about what is shown now."""
    content = await store.approvals.open(scope, approval.approval_id, ADA, share)
    said = tuple(Verdict(each) if isinstance(each, str) else each for each in verdicts)
    return Decision(approval.approval_id, content.action_hash, said)


async def decide(store, scope, approval, *verdicts, voter=ADA):
    return await store.approvals.decide(scope, await decision(store, scope, approval, *verdicts), voter)


def act(scope, approval, args=PAY, position=0, thread_id="t1"):
    async def form_for(agent):
        return canonical({
            "v": 1, "tool": "pay", "tool_digest": None, "args": args, "thread": thread_id, "agent": agent,
            "subject": scope.subject_id,
        })  # fmt: skip

    return Consumption(approval.approval_id, position, form_for, b"name" * 4, "key-agent")


async def consume(store, scope, wanted, thread_id="t1"):
    """What the start of an effect does."""
    await store.consuming.ready()

    async def attempt(sealer):
        async with store.unit_of_work.begin(scope) as transaction:
            ledger = await LockedLedger.lock(transaction, sealer, thread_id)
            await store.consuming.consume(scope, transaction, ledger, wanted)
            await ledger.store(transaction, lambda _: None)

    await store.checkpoints._access.with_existing_keys(scope, attempt, ApprovalNotFound())


async def audited(store, scope, target):
    page = await store.audit.page(TenantScope(scope.tenant_id), "auditor", 0, 200)
    return [each.event.action for each in page.items if each.event and each.event.target == target]


# --- asking ---------------------------------------------------------------------------------------------------------


async def test_what_is_asked_with_a_save_waits_and_shows_nothing_of_itself(store, scope):
    (approval,) = await ask(store, scope, question(message="May I?"), run_id="r1", agent="billing")
    assert (approval.status, approval.agent, approval.run_id) == ("pending", "billing", "r1")
    assert (approval.requested_by, approval.decisions_needed, approval.revision) == ("key-agent", 1, 1)
    assert approval.expires_at - approval.created_at == timedelta(days=7)
    content = await store.approvals.open(scope, approval.approval_id, ADA)
    assert (content.message, content.external_id) == ("May I?", "q")
    assert msgspec.msgpack.decode(content.actions[0].args) == PAY


async def test_writes_ask_too_and_the_same_again_is_the_same(store, scope):
    await save(store, scope, "t1", content=state(x=[1]), checkpoint_id="c1")
    for _ in range(2):
        await put(store, scope, "c1", write(-3, "__interrupt__", "?"), approvals=(question(),), asker=ASKER)
    (approval,) = await waiting(store, scope)
    assert approval.checkpoint_id == "c1"


async def test_other_actions_under_the_same_name_supersede_also_what_was_approved(store, scope):
    await save(store, scope, "t1", content=state(x=[1]), checkpoint_id="c1")

    async def asked(amount):
        new = question("q", action(args={**PAY, "amount": amount}))
        await put(store, scope, "c1", write(-3, "__interrupt__", amount), approvals=(new,), asker=ASKER)

    await asked(1)
    (first,) = await waiting(store, scope)
    await decide(store, scope, first, "approve")
    await asked(2)
    (second,) = await waiting(store, scope)
    assert (await store.approvals.get(scope, first.approval_id)).status == "superseded"
    with pytest.raises(ApprovalRejected):
        await consume(store, scope, act(scope, first, {**PAY, "amount": 1}))
    await asked(3)
    assert (await store.approvals.get(scope, second.approval_id)).status == "superseded"


async def test_a_checkpoint_supersedes_what_waits_and_not_what_was_approved(store, scope):
    one, two = await ask(store, scope, question("one"), question("two", action(args={"n": 2})))
    await decide(store, scope, one, "approve")
    await save(store, scope, "t1", content=state(x=[2]))
    assert (await store.approvals.get(scope, one.approval_id)).status == "approved"
    assert (await store.approvals.get(scope, two.approval_id)).status == "superseded"
    assert await waiting(store, scope) == []


async def test_a_checkpoint_that_asks_the_same_again_leaves_it(store, scope):
    (before,) = await ask(store, scope, question())
    (after,) = await ask(store, scope, question())
    assert before == after


async def test_another_namespace_is_another_question(store, scope):
    await ask(store, scope, question(), namespace="beside")
    await save(store, scope, "t1", content=state(x=[2]))
    (left,) = await waiting(store, scope)
    assert left.namespace == "beside"
    await save(store, scope, "t1", content=state(x=[2]), namespace="beside")
    assert await waiting(store, scope) == []


@pytest.mark.parametrize("namespace", ["a:1", ""])
async def test_what_a_call_of_a_graph_asks_ends_with_the_next_checkpoint_of_it_or_of_its_caller(
    store, scope, namespace
):
    await ask(store, scope, question(), namespace="a:1|b:2")
    (asked,) = await waiting(store, scope)
    assert asked.namespace == "a:1"
    await save(store, scope, "t1", content=state(x=[2]), namespace="a:2")
    assert await waiting(store, scope) == [asked]
    await save(store, scope, "t1", content=state(x=[2]), namespace=namespace)
    assert await waiting(store, scope) == []


async def test_references_create_nothing(store, scope):
    await save(store, scope, "t1", content=state(x=[1]), checkpoint_id="c1")
    await put(store, scope, "c1", write(-3, "__interrupt__", "?"), approval_refs=("q",), asker=ASKER)
    assert await waiting(store, scope) == []


async def test_not_more_than_64_wait_in_a_thread(store, scope):
    many = [question(f"q{number}", action(args={"n": number})) for number in range(64)]
    await ask(store, scope, *many)
    with pytest.raises(ApprovalsExceeded):
        await ask(store, scope, *many, question("one more"))
    assert len(await waiting(store, scope)) == 64


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewApproval("q", ()), InvalidState),
        (NewApproval("q", (action(),) * 33), InvalidState),
        (NewApproval("q", (action(),), expires_seconds=59), InvalidState),
        (NewApproval("q", (action(),), allowed=frozenset()), InvalidState),
        (NewApproval("q", (NewAction("pay", encode_msgpack([1])),)), InvalidState),
        (NewApproval("q", (NewAction("pay", b"\xc1"),)), InvalidState),
        (NewApproval("q", (action(args={"x": float("nan")}),)), InvalidState),
        (NewApproval("q", (action(args={"x": "y" * 262_144}),)), LimitExceeded),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_nothing_saved(store, scope, new, error):
    with pytest.raises(error):
        await ask(store, scope, new)
    assert await waiting(store, scope) == []


async def test_nobody_is_asked_before_the_upgrade_is_finished(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as other:
        with pytest.raises(FeatureOff):
            await ask(other, scope, question())


# --- deciding -------------------------------------------------------------------------------------------------------


async def test_a_decision_is_made_once_and_repeated_without_effect(store, scope):
    (approval,) = await ask(store, scope, question())
    said = await decision(store, scope, approval, "approve")
    first = await store.approvals.decide(scope, said, ADA)
    assert (first.status, first.revision, first.actions[0].status) == ("approved", 2, "approved")
    assert first.valid_until - first.decided_at == timedelta(days=1)
    assert await store.approvals.decide(scope, said, ADA) == first
    with pytest.raises(ApprovalDecided) as refused:
        await store.approvals.decide(scope, said, BOB)
    assert (refused.value.status, refused.value.decided_by) == ("approved", "ada")
    records = await audited(store, scope, f"approval:{approval.approval_id}")
    assert records == ["approval.created", "approval.opened", "approval.decided"]


async def test_a_whole_tenants_key_finds_and_decides(store, scope):
    (approval,) = await ask(store, scope, question())
    listing = TenantListing(scope.tenant_id)
    assert [each.approval_id for each in (await store.approvals.list(listing, ApprovalQuery())).approvals] == [
        approval.approval_id
    ]
    assert (await decide(store, listing, approval, "reject")).status == "rejected"


async def test_nobody_decides_what_is_another_subjects(store, scope):
    (approval,) = await ask(store, scope, question())
    said = await decision(store, scope, approval, "approve")
    for other in (Scope(scope.tenant_id, "somebody-else"), TenantListing(approval.approval_id)):
        with pytest.raises(ApprovalNotFound):
            await store.approvals.decide(other, said, ADA)
        with pytest.raises(ApprovalNotFound):
            await store.approvals.open(other, approval.approval_id, ADA)
        with pytest.raises(ApprovalNotFound):
            await store.approvals.get(other, approval.approval_id)
    assert (await store.approvals.get(scope, approval.approval_id)).status == "pending"


async def test_the_hash_of_something_else_decides_nothing(store, scope):
    (approval,) = await ask(store, scope, question())
    said = await decision(store, scope, approval, "approve")
    with pytest.raises(ActionChanged):
        await store.approvals.decide(scope, replace(said, action_hash="00" * 32), ADA)


@pytest.mark.parametrize(
    "voter",
    [
        AGENT,
        replace(AGENT, key_id="other"),
        replace(ADA, made_by="key-agent"),
        replace(ADA, created_at=datetime(2999, 1, 1, tzinfo=UTC)),
        replace(ADA, break_glass=True),
        replace(AGENT, asserted_principal="ada"),
        replace(ADA, asserted_principal="key-agent"),
    ],
)
async def test_whoever_asked_denies_and_does_not_approve(store, scope, voter):
    (approval,) = await ask(store, scope, question(allowed=frozenset({"approve", "reject", "respond", "edit"})))
    for verdict in (Verdict("approve"), Verdict("respond", response=b"\x01"), Verdict("edit", encode_msgpack(PAY))):
        with pytest.raises(ApprovalNotYours):
            await decide(store, scope, approval, verdict, voter=voter)
    assert (await decide(store, scope, approval, "reject", voter=voter)).status == "rejected"


async def test_four_eyes_are_distinct_principals(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await store.approval_policies.put(tenant, None, "pay", ApprovalPolicy(decisions_needed=2))
    (approval,) = await ask(store, scope, question())
    # Loosening it touches nothing that waits.
    await store.approval_policies.put(tenant, None, "pay", None)
    for voter in (ADA, replace(ADA, key_id="second"), replace(ADA, asserted_principal="carl")):
        assert (await decide(store, scope, approval, "approve", voter=voter)).status == "pending"
    backend = Voter("key-backend", "backend", OLD)
    done = await decide(store, scope, approval, "approve", voter=replace(backend, asserted_principal="dora"))
    assert done.status == "approved"


async def test_all_whom_backends_name_are_one_unless_the_policy_counts_them(store, scope):
    tenant = TenantScope(scope.tenant_id)
    backends = [Voter(f"key-{name}", name, OLD, name + "'s person") for name in ("one", "two")]
    for counted, expected in ((False, "pending"), (True, "approved")):
        policy = ApprovalPolicy(decisions_needed=2, asserted_count=counted)
        await store.approval_policies.put(tenant, None, None, policy)
        (approval,) = await ask(store, scope, question(), thread_id=f"t-{counted}")
        for voter in backends:
            done = await decide(store, scope, approval, "approve", voter=voter)
        assert done.status == expected
    await store.approval_policies.put(tenant, None, None, None)


async def test_one_denial_is_enough_and_actions_are_settled_each(store, scope):
    (approval,) = await ask(store, scope, question("q", action(), action(args={"n": 2})))
    done = await decide(store, scope, approval, "approve", "reject")
    assert (done.status, [each.status for each in done.actions]) == ("approved", ["approved", "rejected"])
    with pytest.raises(ApprovalRejected):
        await consume(store, scope, act(scope, approval, {"n": 2}, 1))
    await consume(store, scope, act(scope, approval))
    assert (await store.approvals.get(scope, approval.approval_id)).status == "consumed"


async def test_an_edit_makes_another_action_which_alone_is_allowed(store, scope):
    (approval,) = await ask(store, scope, question(allowed=frozenset({"approve", "edit"})))
    less = {**PAY, "amount": 10}
    done = await decide(store, scope, approval, Verdict("edit", encode_msgpack(less), message="too much"))
    assert (done.status, done.actions[0].edited, done.actions[0].verdict) == ("approved", True, "edit")
    with pytest.raises(ActionChanged):
        await consume(store, scope, act(scope, approval))
    content = await store.approvals.open(scope, approval.approval_id, ADA)
    assert msgspec.msgpack.decode(content.actions[0].edited_args) == less
    assert content.actions[0].message == "too much"
    # The agent asks the same again when it goes on: its answer stands.
    await ask(store, scope, question(allowed=frozenset({"approve", "edit"})))
    assert await waiting(store, scope) == []
    await consume(store, scope, act(scope, approval, less))


async def test_an_edit_starts_the_votes_again(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await store.approval_policies.put(tenant, None, None, ApprovalPolicy(decisions_needed=2))
    (approval,) = await ask(store, scope, question(allowed=frozenset({"approve", "edit"})))
    await store.approval_policies.put(tenant, None, None, None)
    before = await decision(store, scope, approval, "approve")
    await store.approvals.decide(scope, before, ADA)
    await decide(store, scope, approval, Verdict("edit", encode_msgpack({"n": 1})), voter=BOB)
    with pytest.raises(ActionChanged):
        await store.approvals.decide(scope, before, ADA)
    assert (await decide(store, scope, approval, "approve")).status == "approved"


async def test_an_answer_is_no_approval(store, scope):
    (approval,) = await ask(store, scope, question(kind="input", allowed=frozenset({"respond"})))
    with pytest.raises(InvalidState):
        await decide(store, scope, approval, "approve")
    done = await decide(store, scope, approval, Verdict("respond", response=encode_msgpack("yes")))
    assert done.status == "answered"
    with pytest.raises(ApprovalRejected):
        await consume(store, scope, act(scope, approval))


async def test_a_question_is_taken_back_once(store, scope):
    (approval,) = await ask(store, scope, question())
    first = await store.approvals.cancel(scope, approval.approval_id, AGENT)
    assert first.status == "cancelled"
    assert await store.approvals.cancel(scope, approval.approval_id, AGENT) == first
    with pytest.raises(ApprovalDecided):
        await decide(store, scope, approval, "approve")


async def test_what_takes_a_share_is_shown_without_one_by_its_display_text(store, scope):
    await store.checkpoints.save(scope, _shared("t1", question("q", display="pay bob")), SHARE)
    await store.checkpoints.save(scope, _shared("t2", question("q")), SHARE)
    (shown,), (hidden,) = await waiting(store, scope, "t1"), await waiting(store, scope, "t2")
    content = await store.approvals.open(scope, shown.approval_id, ADA)
    assert (content.withheld, content.display, content.actions) == (True, "pay bob", ())
    with pytest.raises(ClientShareRequired):
        await store.approvals.open(scope, hidden.approval_id, ADA)
    said = await decision(store, scope, hidden, "approve", share=SHARE)
    assert (await store.approvals.decide(scope, said, ADA)).status == "approved"  # without the share


def _shared(thread_id, *questions):
    from storage.model import Save

    return Save(thread_id=thread_id, content=state(x=[1]), approvals=questions, asker=ASKER)


# --- time -----------------------------------------------------------------------------------------------------------


async def shortened(store, scope, approval, seconds, column="expires_at"):
    """Let an approval be over in so many seconds from now, by the product's own code."""
    from storage.approvals.rows import ThreadApprovals

    async def attempt(sealer):
        async with store.unit_of_work.begin(scope) as transaction:
            ledger = await LockedLedger.lock(transaction, sealer, approval.thread_id)
            rows = await ThreadApprovals.read(transaction, ledger)
            at = ledger.now + timedelta(seconds=seconds)
            await transaction._connection.execute(
                f"UPDATE stateroom.approvals SET {column} = $1 WHERE approval_id = $2",  # noqa: S608
                at,
                approval.approval_id,
            )
            await rows.change(rows.approvals[approval.approval_id], **{column: at})
            await ledger.store(transaction, lambda _: None)

    await store.checkpoints._access.with_existing_keys(scope, attempt, ApprovalNotFound())


async def test_what_is_over_behind_a_lock_is_refused(store, scope, database):
    import asyncpg

    (approval,) = await ask(store, scope, question())
    said = await decision(store, scope, approval, "approve")
    await shortened(store, scope, approval, 1.0)
    other = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        async with other.transaction():
            await other.execute("SELECT 1 FROM stateroom.threads WHERE subject_id = $1 FOR UPDATE", scope.subject_id)
            deciding = asyncio.create_task(store.approvals.decide(scope, said, ADA))
            await other.execute("SELECT pg_sleep(1.5)")
            assert not deciding.done()
        with pytest.raises(ApprovalExpired):
            await deciding
    finally:
        await other.close()
    assert (await store.approvals.get(scope, approval.approval_id)).status == "expired"


async def test_an_approval_holds_for_a_while(store, scope):
    (approval,) = await ask(store, scope, question())
    await decide(store, scope, approval, "approve")
    await shortened(store, scope, approval, -1.0, "valid_until")
    assert (await store.approvals.get(scope, approval.approval_id)).status == "lapsed"
    with pytest.raises(ApprovalLapsed):
        await consume(store, scope, act(scope, approval))


# --- using ----------------------------------------------------------------------------------------------------------


async def test_an_approved_action_is_used_once_and_only_it(store, scope):
    (approval,) = await ask(store, scope, question())
    with pytest.raises(ApprovalUndecided):
        await consume(store, scope, act(scope, approval))
    await decide(store, scope, approval, "approve")
    for other in ({**PAY, "amount": 1500}, {**PAY, "currency": "EUR"}):
        with pytest.raises(ActionChanged):
            await consume(store, scope, act(scope, approval, other))
    await consume(store, scope, act(scope, approval))
    with pytest.raises(ApprovalConsumed):
        await consume(store, scope, act(scope, approval))
    assert (await store.approvals.get(scope, approval.approval_id)).status == "consumed"


async def test_two_use_an_action_at_once_and_one_does(store, scope):
    (approval,) = await ask(store, scope, question())
    await decide(store, scope, approval, "approve")
    ends = await asyncio.gather(
        *(consume(store, scope, act(scope, approval)) for _ in range(4)), return_exceptions=True
    )
    assert sorted(type(end).__name__ for end in ends) == ["ApprovalConsumed"] * 3 + ["NoneType"]


# --- races ----------------------------------------------------------------------------------------------------------


async def test_two_decide_at_once_and_one_is_heard(store, scope):
    (approval,) = await ask(store, scope, question())
    yes = await decision(store, scope, approval, "approve")
    no = await decision(store, scope, approval, "reject")
    ends = await asyncio.gather(
        store.approvals.decide(scope, yes, ADA), store.approvals.decide(scope, no, BOB), return_exceptions=True
    )
    assert sorted(type(end).__name__ for end in ends) == ["Approval", "ApprovalDecided"]
    (heard,) = [end for end in ends if not isinstance(end, Exception)]
    assert (await store.approvals.get(scope, approval.approval_id)).status == heard.status


async def test_a_decision_and_what_supersedes_it_are_one_after_the_other(store, scope):
    (approval,) = await ask(store, scope, question())
    said = await decision(store, scope, approval, "approve")
    end, _ = await asyncio.gather(
        store.approvals.decide(scope, said, ADA), save(store, scope, "t1", content=state(x=[2])),
        return_exceptions=True,
    )  # fmt: skip
    status = (await store.approvals.get(scope, approval.approval_id)).status
    assert status == ("superseded" if isinstance(end, ApprovalDecided) else "approved")


# --- what somebody changes outside ----------------------------------------------------------------------------------

EDITS = {
    "an edited status": "UPDATE stateroom.approvals SET status = 'approved' WHERE subject_id = $1",
    "an edited time": "UPDATE stateroom.approvals SET expires_at = expires_at + interval '1 day' WHERE subject_id = $1",
    "an edited action": "UPDATE stateroom.approval_actions SET status = 'approved' WHERE subject_id = $1",
    "a removed action": "DELETE FROM stateroom.approval_actions WHERE subject_id = $1",
    "a removed approval": "DELETE FROM stateroom.approvals WHERE subject_id = $1 AND kind = 'input'",
    "no open approval": "UPDATE stateroom.threads SET open_approvals = 0 WHERE subject_id = $1",
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_what_was_edited_outside_decides_nothing(store, scope, database, edit):
    approval, _ = await ask(store, scope, question(), question("other", kind="input"))
    said = await decision(store, scope, approval, "approve")
    assert (await store.verification.subject(scope)).findings == []
    await by_superuser(database, f"{edit} AND tenant_id = $2", scope.subject_id, scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await store.approvals.decide(scope, said, ADA)
    assert {each.code for each in (await store.verification.subject(scope)).findings} == {"approval"}


async def by_superuser(database, statement, *values):
    import asyncpg

    other = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        return await other.execute(statement, *values)
    finally:
        await other.close()


TABLES = ("approvals", "approval_actions", "approval_votes")


async def test_older_authentic_rows_put_back_are_noticed(store, scope, database):
    (approval,) = await ask(store, scope, question())
    await decide(store, scope, approval, "approve")
    for table in TABLES:
        await by_superuser(database, f"CREATE TABLE IF NOT EXISTS public.old_{table} (LIKE stateroom.{table})")
        await by_superuser(database, f"INSERT INTO public.old_{table} SELECT * FROM stateroom.{table}")  # noqa: S608
    await consume(store, scope, act(scope, approval))
    for table in TABLES:
        await by_superuser(database, f"DELETE FROM stateroom.{table} WHERE subject_id = $1", scope.subject_id)  # noqa: S608
        await by_superuser(
            database,
            f"INSERT INTO stateroom.{table} SELECT * FROM public.old_{table} WHERE subject_id = $1",  # noqa: S608
            scope.subject_id,
        )
    with pytest.raises(IntegrityFailure):
        await consume(store, scope, act(scope, approval))
    assert {each.code for each in (await store.verification.subject(scope)).findings} == {"approval"}


# --- policies -------------------------------------------------------------------------------------------------------


async def test_the_most_specific_policy_counts(store, scope):
    tenant = TenantScope(scope.tenant_id)
    for agent, tool, seconds in ((None, None, 100), (None, "pay", 200), ("a", None, 300), ("a", "pay", 400)):
        await store.approval_policies.put(tenant, agent, tool, ApprovalPolicy(expires_seconds=seconds))
    found = {}
    for number, (agent, tool) in enumerate(((None, "x"), (None, "pay"), ("a", "x"), ("a", "pay"), ("b", "pay"))):
        (approval,) = await ask(store, scope, question("q", action(tool), agent=agent), thread_id=f"t{number}")
        found[agent, tool] = (approval.expires_at - approval.created_at).total_seconds()
    assert found == {(None, "x"): 100, (None, "pay"): 200, ("a", "x"): 300, ("a", "pay"): 400, ("b", "pay"): 200}
    assert len(await store.approval_policies.list(tenant)) == 4


async def test_a_damaged_policy_stops_who_asks(store, scope, database):
    tenant = TenantScope(scope.tenant_id)
    await store.approval_policies.put(tenant, None, None, ApprovalPolicy(decisions_needed=5))
    await by_superuser(
        database, "UPDATE stateroom.approval_policies SET decisions_needed = 1 WHERE tenant_id = $1", scope.tenant_id
    )
    (entry,) = await store.approval_policies.list(tenant)
    assert (entry.damaged, entry.policy) == (True, None)
    with pytest.raises(IntegrityFailure):
        await ask(store, scope, question())
    assert await store.approval_policies.put(tenant, None, None, None) == []


# --- what happens to all that is stored -----------------------------------------------------------------------------


async def test_the_round_stores_what_is_over_once(store, scope):
    one, two = await ask(store, scope, question("one"), question("two", action(args={"n": 2})))
    assert await store.approvals_expiring.tenant(scope.tenant_id) == 0
    await shortened(store, scope, one, -1.0)
    assert await store.approvals_expiring.tenant(scope.tenant_id) == 1
    assert await store.approvals_expiring.tenant(scope.tenant_id) == 0
    found = await store.approvals.get(scope, one.approval_id)
    assert (found.status, found.revision) == ("expired", one.revision + 2)
    assert (await store.approvals.get(scope, two.approval_id)).status == "pending"
    assert await audited(store, scope, f"approval:{one.approval_id}") == ["approval.created", "approval.expired"]


async def test_a_tenant_that_asks_has_rounds_which_store_what_is_over(store, scope):
    (one,) = await ask(store, scope, question())
    await shortened(store, scope, one, -1.0)
    assert scope.tenant_id in await due_for_a_round(store)
    assert (await store.retaining.tenant(scope.tenant_id, now=True)).tenants == 1
    assert await audited(store, scope, f"approval:{one.approval_id}") == ["approval.created", "approval.expired"]


async def due_for_a_round(store):
    async with store.unit_of_work.snapshot(OperatorScope()) as transaction:
        return await transaction.fetch_all(TENANTS_DUE, limit=10_000)


async def test_a_thread_takes_its_approvals_along(store, scope, database):
    (approval,) = await ask(store, scope, question())
    await decide(store, scope, approval, "approve")
    await store.threads.delete(scope, "t1")
    with pytest.raises(ApprovalNotFound):
        await store.approvals.get(scope, approval.approval_id)
    for table in (*TABLES, "ledger_seals"):
        left = f"DELETE FROM stateroom.{table} WHERE subject_id = $1 AND tenant_id = $2"  # noqa: S608
        counted = await by_superuser(database, left, scope.subject_id, scope.tenant_id)
        assert counted == "DELETE 0"
    assert len(await ask(store, scope, question())) == 1


async def test_a_copy_has_none(store, scope):
    await ask(store, scope, question())
    await store.threads.copy(scope, "t1", "t2")
    assert await waiting(store, scope, "t2") == []
    assert len(await waiting(store, scope)) == 1
    assert (await ask(store, scope, question(), thread_id="t2"))[0].thread_id == "t2"


async def test_a_rotation_seals_them_again_and_they_open(store, scope, database):
    asked = [question(f"q{number}", action(args={"n": number}), display="shown") for number in range(20)]
    first, *rest = await ask(store, scope, *asked)
    await decide(store, scope, first, Verdict("approve", message="go"))
    started = await store.rotation.rotate_subject(scope, "tester")
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(TenantScope(scope.tenant_id), started.job_id)).state in {
            "queued",
            "running",
        }:
            await store.runner.run_due()
            await asyncio.sleep(0)
    assert (job.state, job.error, job.note) == ("done", None, None)
    older = "substring(request FROM 9 FOR 4) <> '\\x00000002'::bytea"  # by the headers of the envelopes
    version = f"SELECT FROM stateroom.approvals WHERE tenant_id = $1 AND {older}"
    assert await by_superuser(database, version, scope.tenant_id) == "SELECT 0"
    for approval in (first, *rest):
        content = await store.approvals.open(scope, approval.approval_id, ADA)
        assert content.display == "shown"
    assert (await store.approvals.open(scope, first.approval_id, ADA)).actions[0].message == "go"
    await consume(store, scope, act(scope, first, {"n": 0}))


async def test_no_approval_is_removed_or_archived_by_policy_while_it_waits(store, scope):
    from storage.approvals.leaving import is_asking

    (approval,) = await ask(store, scope, question())
    found = []
    for _ in range(2):
        async with store.unit_of_work.snapshot(scope) as transaction:
            found.append(await is_asking(transaction, "t1"))
        if approval.status == "pending":
            approval = await decide(store, scope, approval, "reject")
    assert found == [True, False]


async def test_an_event_tells_of_each_change_by_clear_columns_alone(store, scope, database):
    store.emitting.learn(scope.tenant_id, is_on=True)
    one, two = await ask(store, scope, question("one"), question("two", action(args={"n": 2})))
    await decide(store, scope, one, "reject")
    await shortened(store, scope, two, -1.0)
    await store.approvals_expiring.tenant(scope.tenant_id)
    (three,) = await ask(store, scope, question("three"))
    await save(store, scope, "t1", content=state(x=[3]))
    (four,) = await ask(store, scope, question("four"))
    await store.threads.delete(scope, "t1")
    import asyncpg

    other = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        rows = await other.fetch(
            "SELECT stream_id, type, status FROM stateroom.event_queue"
            " WHERE tenant_id = $1 AND stream_kind = 'approval' ORDER BY event_id", scope.tenant_id,
        )  # fmt: skip
    finally:
        await other.close()
    told = {}
    for row in rows:
        told.setdefault(row["stream_id"], []).append((row["type"], row["status"]))
    created = ("approval.created", "pending")
    assert told == {
        str(one.approval_id): [created, ("approval.decided", "rejected")],
        str(two.approval_id): [created, ("approval.expired", "expired")],
        str(three.approval_id): [created, ("approval.superseded", "superseded")],
        str(four.approval_id): [created, ("approval.decided", "cancelled")],
    }


async def test_each_change_is_on_record(store, scope):
    (gone,) = await ask(store, scope, question(), thread_id="gone")
    await store.threads.delete(scope, "gone")
    (used,) = await ask(store, scope, question("used"))
    await decide(store, scope, used, "approve")
    await consume(store, scope, act(scope, used))
    (over,) = await ask(store, scope, question("over"))
    await shortened(store, scope, over, -1.0)
    (late,) = await ask(store, scope, question("late"))
    await decide(store, scope, late, "approve")
    await shortened(store, scope, late, -1.0, "valid_until")
    (taken,) = await ask(store, scope, question("taken"))
    await store.approvals.cancel(scope, taken.approval_id, ADA)
    (other,) = await ask(store, scope, question("other"))
    await save(store, scope, "t1", content=state(x=[9]))
    for approval, end in {
        gone: ["cancelled"], used: ["decided", "consumed"], over: ["expired"], late: ["decided", "lapsed"],
        taken: ["cancelled"], other: ["superseded"],
    }.items():  # fmt: skip
        told = await audited(store, scope, f"approval:{approval.approval_id}")
        told = [each for each in told if each != "approval.opened"]
        assert told == [f"approval.{each}" for each in ("created", *end)]


async def test_what_is_over_is_stored_soon_and_a_look_costs_nothing_where_nothing_is(store, scope):
    """When the next one is over is known of the tenant, so that nobody looks through approvals."""
    one, two = await ask(store, scope, question("one"), question("two", action(args={"n": 2})))
    assert await due_at(store, scope) == min(one.expires_at, two.expires_at)
    assert await store.approvals_expiring.run_once() == 0
    await shortened(store, scope, one, -1.0)
    await due_now(store, scope)
    assert await store.approvals_expiring.run_once() == 1
    assert await due_at(store, scope) == two.expires_at
    assert await store.approvals_expiring.run_once() == 0


async def test_of_more_than_a_look_stores_the_oldest_come_first_and_the_rest_at_once(store, scope):
    looking, asked = Expiring(store.checkpoints._access, page_rows=2, pages_max=1), []
    for number in range(5):
        (approval,) = await ask(store, scope, question(), thread_id=f"t-{number}")
        await shortened(store, scope, approval, number - 100.0)
        asked.append(approval)
    await due_now(store, scope)
    ended = []
    for _ in range(3):
        await looking.run_once()
        ended.append([
            number for number, each in enumerate(asked)
            if "approval.expired" in await audited(store, scope, f"approval:{each.approval_id}")
        ])  # fmt: skip
    assert ended == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert await due_at(store, scope) is None


async def test_what_waits_is_found_among_what_has_ended(store, scope, database):
    (approval,) = await ask(store, scope, question())
    admin = await asyncpg.connect(database.dsn(database.superuser_url))
    try:
        own = {"approval_id", "status"}
        columns = [each.name for each in metadata.tables["stateroom.approvals"].columns if each.name not in own]
        await admin.execute(
            f"INSERT INTO stateroom.approvals (approval_id, status, {', '.join(columns)})"  # noqa: S608
            f" SELECT uuidv7(interval '-1 day'), 'rejected', {', '.join(columns)} FROM stateroom.approvals,"
            " generate_series(1, 20000) WHERE approval_id = $1", approval.approval_id,
        )  # fmt: skip
        await admin.execute("ANALYZE stateroom.approvals")
        async with store.unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
            values = {"before": None, "agent": None, "thread_id": None, "limit": 101}
            arguments = LIST_PENDING.arguments(transaction._bound, values)
            told = await transaction._connection.fetchval(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {LIST_PENDING.text}", *arguments
            )
        assert rows_looked_at(told[0]["Plan"]) == 1
    finally:
        await admin.execute(
            "DELETE FROM stateroom.approvals WHERE subject_id = $1 AND status = 'rejected'", scope.subject_id
        )
        await admin.close()


def rows_looked_at(plan):
    left_out = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    own = (plan["Actual Rows"] + left_out) * plan["Actual Loops"] if "Relation Name" in plan else 0
    return own + sum(map(rows_looked_at, plan.get("Plans", ())))


async def due_at(store, scope):
    """When the next approval of the tenant is over, as it is known."""
    statement = Statement(
        "SELECT approvals_due_at FROM stateroom.retention_rounds WHERE tenant_id = :tenant_id", datetime
    )
    async with store.unit_of_work.snapshot(TenantScope(scope.tenant_id)) as transaction:
        return await transaction.fetch_one(statement)


async def due_now(store, scope):
    """As if the time had come."""
    async with store.unit_of_work.begin(TenantScope(scope.tenant_id)) as transaction:
        await transaction.run(SET_APPROVALS_DUE, due_at=OLD)


async def test_a_flood_of_decisions_settles_one(store, scope):
    (approval,) = await ask(store, scope, question())
    said = await decision(store, scope, approval, "approve")
    voters = [Voter(f"key-{number}", f"p{number}", OLD) for number in range(30)]
    ends = await asyncio.gather(
        *(store.approvals.decide(scope, said, voter) for voter in voters), return_exceptions=True
    )
    assert sorted(type(end).__name__ for end in ends) == ["Approval"] + ["ApprovalDecided"] * 29
    assert len((await store.approvals.get(scope, approval.approval_id)).votes) == 1


async def test_a_shred_leaves_nothing_of_them(store, scope, database):
    (approval,) = await ask(store, scope, question())
    tenant = TenantScope(scope.tenant_id)
    started = await store.shred.subject(scope, scope.subject_id, "tester")
    async with asyncio.timeout(60):
        while (await store.jobs.get(tenant, started.job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    for table in TABLES:
        left = f"SELECT FROM stateroom.{table} WHERE tenant_id = $1"
        assert await by_superuser(database, left, scope.tenant_id) == "SELECT 0"
    with pytest.raises(ApprovalNotFound):
        await store.approvals.get(scope, approval.approval_id)
