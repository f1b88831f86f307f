"""What a decision makes of an approval: who may say what, and what is settled by it. Reads and writes nothing.

The life cycle: pending -> approved | rejected | answered | expired | cancelled | superseded; approved -> consumed |
lapsed; what an approval became otherwise it stays. A denial of one principal settles an action; an approval takes as
many distinct ones as the policy said when the question was asked.
"""

from collections.abc import Sequence
from typing import Final

from storage.approvals.model import ActionStatus, ApprovalStatus, Verdict, VerdictWord, Voter
from storage.errors import ApprovalNotYours, InvalidState
from storage.statements.thread_ledgers.approvals import ActionRow, ApprovalRow, VoteRow

# Which states an approval may go to from which; all others it stays in.
NEXT: Final[dict[ApprovalStatus, frozenset[ApprovalStatus]]] = {
    "pending": frozenset({"approved", "rejected", "answered", "expired", "cancelled", "superseded"}),
    "approved": frozenset({"consumed", "lapsed", "superseded"}),
}
_WEIGHT: Final[tuple[VerdictWord, ...]] = ("reject", "edit", "respond", "approve")


def check_verdicts(approval: ApprovalRow, verdicts: Sequence[Verdict], count: int) -> None:
    """Return if these can be said of an approval with ``count`` actions.

    Raises:
        InvalidState: There are more or fewer, one is not allowed, or lacks what it takes.
    """
    if len(verdicts) != count:
        raise InvalidState(f"there is one verdict for each of {count} actions", "/verdicts")
    for position, each in enumerate(verdicts):
        pointer = f"/verdicts/{position}"
        # To deny is always possible.
        if each.verdict != "reject" and each.verdict not in approval.allowed:
            raise InvalidState(f"{each.verdict} is not allowed here", pointer)
        if (each.verdict == "edit") != (each.edited_args is not None):
            raise InvalidState("edit, and nothing else, takes edited_args", pointer)
        if (each.verdict == "respond") != (each.response is not None):
            raise InvalidState("respond, and nothing else, takes a response", pointer)


def check_voter(approval: ApprovalRow, voter: Voter, verdicts: Sequence[Verdict]) -> None:
    """Return if a voter may say this; whoever denies everything always may.

    Raises:
        ApprovalNotYours: It would approve what it, or a key that it made, or that made it, asked; or it is an emergency
            key, or younger than the question.
    """
    if all(each.verdict == "reject" for each in verdicts):
        return
    if voter.break_glass or voter.created_at >= approval.created_at:
        raise ApprovalNotYours
    if approval.requester_may_approve:
        return
    asked = {approval.requested_by, approval.requested_principal}
    counts = {voter.named} if voter.asserted_principal and approval.asserted_count else {voter.principal, voter.named}
    own = {voter.key_id, voter.made_by}
    if counts & {*asked, voter.asker_made_by} or (
        own & asked and not (voter.asserted_principal and approval.asserted_count)
    ):
        raise ApprovalNotYours


def counts_as(approval: ApprovalRow, voter: Voter) -> str:
    """The principal by which a vote is distinct."""
    return voter.named if voter.asserted_principal and approval.asserted_count else voter.principal


def _distinct(approval: ApprovalRow, votes: Sequence[VoteRow]) -> int:
    by_themselves = {vote.counts_as for vote in votes if not vote.asserted or approval.asserted_count}
    # All that backends name are one together, and none where their key's principal spoke itself.
    named = {vote.counts_as for vote in votes if vote.asserted and not approval.asserted_count} - by_themselves
    return len(by_themselves) + bool(named)


def settled(approval: ApprovalRow, action: ActionRow, votes: Sequence[VoteRow]) -> ActionStatus:
    """How an action stands after these votes.

    What was denied or answered stays that, also where an edit takes the vote back, or who gave it thinks otherwise.
    """
    if action.status == "rejected":
        return "rejected"
    said = [(vote, vote.verdicts[action.position]) for vote in votes]
    if any(word == "reject" for _, word in said):
        return "rejected"
    if action.status == "answered" or any(word == "respond" for _, word in said):
        return "answered"
    given = [vote for vote, word in said if word in {"approve", "edit"}]
    return "approved" if _distinct(approval, given) >= approval.decisions_needed else "pending"


def status_of(actions: Sequence[ActionStatus]) -> ApprovalStatus:
    """How an approval stands by how its actions do."""
    if "pending" in actions:
        return "pending"
    if "approved" in actions:
        return "approved"
    return "answered" if "answered" in actions else "rejected"


def overall(verdicts: Sequence[str]) -> VerdictWord:
    """One word for what a vote says of all actions: the one that weighs most."""
    return next(word for word in _WEIGHT if word in verdicts)
