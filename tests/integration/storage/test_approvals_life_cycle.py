"""The life cycle of approvals as a table: what is over is asked anew, a denial stays, what ended does not pile up."""

import threading

import pytest

from storage.approvals import asking as asking_module
from storage.approvals.deciding import NEXT
from storage.approvals.model import ApprovalPolicy, ApprovalQuery, Verdict, Voter
from storage.encoding import encode_msgpack
from storage.errors import ApprovalDecided, LimitExceeded, StorageError
from storage.format.thread_ledgers.actions import action_hash
from storage.scope import TenantScope
from tests.integration.storage.test_approvals import (
    ADA,
    BOB,
    OLD,
    PAY,
    act,
    action,
    ask,
    consume,
    decide,
    question,
    shortened,
    store,
)

__all__ = ["store"]
CARL = Voter("key-carl", "carl", OLD)
ALL = frozenset({"approve", "edit", "respond"})
ANSWER = Verdict("respond", response=encode_msgpack("yes"))


async def statuses(store, scope):
    """How each approval of the subject is shown, the oldest first."""
    return [each.status for each in (await store.approvals.list(scope, ApprovalQuery())).approvals[::-1]]


# --- the table ------------------------------------------------------------------------------------------------------


async def _other(store, scope):
    await ask(store, scope, question("q", action(args={"n": 2}), allowed=ALL))


async def _over(store, scope, approval):
    await shortened(store, scope, approval, -1.0)
    await store.approvals_expiring.tenant(scope.tenant_id)


async def _lapsed(store, scope, approval):
    await decide(store, scope, approval, "approve")
    await shortened(store, scope, approval, -1.0, "valid_until")
    await ask(store, scope, question("another"))


async def _consumed(store, scope, approval):
    await decide(store, scope, approval, "approve")
    await consume(store, scope, act(scope, approval))


async def _pending(store, scope, approval):
    pass


REACH = {
    "pending": _pending,
    "approved": lambda store, scope, each: decide(store, scope, each, "approve"),
    "rejected": lambda store, scope, each: decide(store, scope, each, "reject"),
    "answered": lambda store, scope, each: decide(store, scope, each, ANSWER),
    "expired": _over,
    "cancelled": lambda store, scope, each: store.approvals.cancel(scope, each.approval_id, ADA),
    "superseded": lambda store, scope, each: _other(store, scope),
    "consumed": _consumed,
    "lapsed": _lapsed,
}
TRY = {
    "approve": lambda store, scope, each: decide(store, scope, each, "approve", voter=BOB),
    "reject": lambda store, scope, each: decide(store, scope, each, "reject", voter=BOB),
    "respond": lambda store, scope, each: decide(store, scope, each, ANSWER, voter=CARL),
    "cancel": lambda store, scope, each: store.approvals.cancel(scope, each.approval_id, BOB),
    "go on": lambda store, scope, each: ask(store, scope),
    "ask otherwise": lambda store, scope, each: ask(store, scope, question("q", action(args={"n": 3}), allowed=ALL)),
    "consume": lambda store, scope, each: consume(store, scope, act(scope, each)),
    "let time pass": lambda store, scope, each: store.approvals_expiring.tenant(scope.tenant_id),
}
BECOMES = {
    ("pending", "approve"): "approved",
    ("pending", "reject"): "rejected",
    ("pending", "respond"): "answered",
    ("pending", "cancel"): "cancelled",
    ("pending", "go on"): "superseded",
    ("pending", "ask otherwise"): "superseded",
    ("approved", "ask otherwise"): "superseded",
    ("approved", "consume"): "consumed",
}


@pytest.mark.parametrize("tried", TRY)
@pytest.mark.parametrize("status", REACH)
async def test_an_approval_becomes_what_the_table_says_and_nothing_else(store, scope, status, tried):
    (approval,) = await ask(store, scope, question(allowed=ALL))
    await REACH[status](store, scope, approval)
    before = await store.approvals.get(scope, approval.approval_id)
    assert before.status == status
    refused = None
    try:
        await TRY[tried](store, scope, approval)
    except StorageError as error:
        refused = error
    after = await store.approvals.get(scope, approval.approval_id)
    expected = BECOMES.get((status, tried), status)
    assert after.status == expected
    if expected != status:
        assert refused is None
        assert expected in NEXT[status]
        assert after.revision == before.revision + 1
    else:
        assert after.revision == before.revision


# --- what is over ---------------------------------------------------------------------------------------------------


async def test_what_lapsed_is_asked_anew(store, scope):
    (approval,) = await ask(store, scope, question())
    await decide(store, scope, approval, "approve")
    await shortened(store, scope, approval, -1.0, "valid_until")
    (again,) = await ask(store, scope, question())
    assert await statuses(store, scope) == ["lapsed", "pending"]
    old = await store.approvals.get(scope, approval.approval_id)
    assert [each.status for each in old.actions] == ["lapsed"]
    await decide(store, scope, again, "approve")
    await consume(store, scope, act(scope, again))


async def test_what_expired_before_a_round_stored_it_is_asked_anew(store, scope):
    (approval,) = await ask(store, scope, question())
    await shortened(store, scope, approval, -1.0)
    assert await statuses(store, scope) == ["expired"]
    await ask(store, scope, question())
    assert await statuses(store, scope) == ["expired", "pending"]


async def test_what_was_shown_as_expired_stays_that(store, scope):
    (approval,) = await ask(store, scope, question())
    await shortened(store, scope, approval, -1.0)
    with pytest.raises(ApprovalDecided) as refused:
        await store.approvals.cancel(scope, approval.approval_id, ADA)
    assert refused.value.status == "expired"
    await ask(store, scope)
    assert await statuses(store, scope) == ["expired"]


# --- denials --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def two_needed(store, scope):
    """A question about two actions that two principals have to approve."""
    policy = ApprovalPolicy(decisions_needed=2)
    await store.approval_policies.put(TenantScope(scope.tenant_id), None, None, policy)
    return question("q", action(), action(args={"n": 2}), allowed=ALL)


@pytest.mark.parametrize("first", ["reject", ANSWER], ids=["denied", "answered"])
async def test_no_edit_takes_back_what_was_denied_or_answered(store, scope, two_needed, first):
    (approval,) = await ask(store, scope, two_needed)
    await decide(store, scope, approval, first, "approve", voter=ADA)
    edit = Verdict("edit", encode_msgpack({"n": 3}))
    await decide(store, scope, approval, "approve", edit, voter=BOB)
    done = await decide(store, scope, approval, "approve", "approve", voter=CARL)
    stays = "rejected" if first == "reject" else "answered"
    assert (done.status, [each.status for each in done.actions]) == ("approved", [stays, "approved"])
    assert done.actions[0].verdict == ("reject" if first == "reject" else "respond")
    with pytest.raises(StorageError):
        await consume(store, scope, act(scope, approval))


async def test_a_denied_action_is_not_edited_into_an_approved_one(store, scope, two_needed):
    (approval,) = await ask(store, scope, two_needed)
    await decide(store, scope, approval, "reject", "approve", voter=ADA)
    less = {**PAY, "amount": 5}
    await decide(store, scope, approval, Verdict("edit", encode_msgpack(less)), "approve", voter=BOB)
    done = await decide(store, scope, approval, "approve", "approve", voter=CARL)
    assert [each.status for each in done.actions] == ["rejected", "approved"]
    with pytest.raises(StorageError):
        await consume(store, scope, act(scope, approval, less))


# --- what ended -----------------------------------------------------------------------------------------------------


async def _answer(store, scope, approval):
    await decide(store, scope, approval, ANSWER)


async def _let_lapse(store, scope, approval):
    await decide(store, scope, approval, "approve")
    await shortened(store, scope, approval, -1.0, "valid_until")


@pytest.mark.parametrize("end", [_answer, _let_lapse], ids=["answered", "lapsed"])
async def test_what_ended_does_not_pile_up(store, scope, monkeypatch, end):
    monkeypatch.setattr(asking_module, "APPROVALS_ENDED_MAX", 3)
    for number in range(7):
        (approval,) = await ask(store, scope, question(f"q{number}", allowed=ALL))
        await end(store, scope, approval)
    assert len(await statuses(store, scope)) == 4


async def test_no_more_is_said_than_may_be_asked(store, scope):
    (approval,) = await ask(store, scope, question(allowed=ALL))
    much = Verdict("respond", response=encode_msgpack("x" * 200_000), message="m" * 70_000)
    with pytest.raises(LimitExceeded):
        await decide(store, scope, approval, much)
    assert await statuses(store, scope) == ["pending"]


# --- large arguments ------------------------------------------------------------------------------------------------


async def test_large_arguments_are_hashed_beside_the_loop(store, scope, monkeypatch):
    hashed = []

    def seen(said):
        hashed.append((len(said.args), threading.get_ident() == loops_thread))
        return action_hash(said)

    loops_thread = threading.get_ident()
    monkeypatch.setattr(asking_module, "action_hash", seen)
    large = question("large", action(args={"a": [[]] * 20_000}), allowed=ALL)
    (approval,) = await ask(store, scope, large)
    done = await decide(store, scope, approval, Verdict("edit", encode_msgpack({"a": [[]] * 20_001})))
    assert done.status == "approved"
    # When it was asked, when it was opened, and when it was edited.
    assert hashed == [(1, False)] * 3
