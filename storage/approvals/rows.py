"""A thread's approvals, all of them: read, compared with the ledger's seal, and changed under the thread's lock.

Owns what is under the MACs and in the envelopes, and that each change of a row changes the seal and the number of open
approvals in the same transaction. It decides nothing.
"""

from collections.abc import Sequence
from typing import Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import structs

from crypto import Field, Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure, LostRaceError
from storage.format.chain import LiveSet
from storage.format.thread_ledgers.seal import RowKind, member, row_mac
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers.approvals import ActionRow, ApprovalRow, VoteRow
from storage.thread_ledgers.locked import LockedLedger

Row = TypeVar("Row", ApprovalRow, ActionRow, VoteRow)
MEMBER_BYTES: Final = 16
_KINDS: Final[dict[type[msgspec.Struct], RowKind]] = {
    ApprovalRow: "approval", ActionRow: "approval-action", VoteRow: "approval-vote",
}  # fmt: skip
_MACED: Final = {row: [name for name in row.__struct_fields__ if name != "mac"] for row in _KINDS}
_OPEN: Final = frozenset({"pending"})


class RequestedAction(msgspec.Struct, frozen=True, array_like=True):
    """An action as it is sealed; arguments in MessagePack, schemas in JSON."""

    tool: str
    tool_digest: str | None
    args: bytes
    args_schema: bytes | None
    hide: list[str]
    description: str | None


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What is asked, as it is sealed."""

    external_id: str
    message: str | None
    response_schema: bytes | None
    actions: list[RequestedAction]


class DecidedAction(msgspec.Struct, frozen=True, array_like=True):
    """What was said of an action, as it is sealed."""

    edited_args: bytes | None = None
    response: bytes | None = None
    message: str | None = None


_request = msgspec.msgpack.Decoder(Request)
_decision = msgspec.msgpack.Decoder(list[DecidedAction])


def keyed(sealer: Sealer, purpose: bytes, content: bytes, size: int = MEMBER_BYTES) -> bytes:
    """A keyed digest that no client's share takes part in."""
    return sealer.without_share.mac(b"approval-" + purpose, content)[:size]


def action_mac(sealer: Sealer, digest: bytes) -> bytes:
    """What is stored of the hash of an action, or of an approval: few arguments could be guessed by the hash itself."""
    return sealer.without_share.mac(b"approval-action", digest)


def with_mac(sealer: Sealer, thread_id: str, row: Row) -> Row:
    """A row with its MAC, over its place and all of its other columns."""
    return structs.replace(row, mac=_mac(sealer, thread_id, row))


def _mac(sealer: Sealer, thread_id: str, row: ApprovalRow | ActionRow | VoteRow) -> bytes:
    fields: list[Field] = [thread_id]
    for name in _MACED[type(row)]:
        value = getattr(row, name)
        if isinstance(value, list):
            value = "\0".join(value)
        fields.append(int(value) if isinstance(value, bool) else value)
    return row_mac(sealer, _KINDS[type(row)], fields)


def seal_part(sealer: Sealer, thread_id: str, approval_id: UUID, part: str, content: bytes) -> bytes:
    """Seal what is asked (``request``), its ``display`` text, or the ``decision``."""
    return sealer.seal(Kind.APPROVAL, (thread_id, approval_id, part), content)


def open_part(sealer: Sealer, thread_id: str, approval_id: UUID, part: str, envelope: bytes) -> bytes:
    """Undo `seal_part`.

    Raises:
        IntegrityFailure: It is another one's, or was edited.
    """
    try:
        return sealer.open(Kind.APPROVAL, (thread_id, approval_id, part), envelope)
    except OpenError:
        raise IntegrityFailure from None


class ThreadApprovals:
    """All approvals of a thread, whose lock is held; or, by who only looks, as they are at one moment.

    Attributes:
        approvals: The approvals by their ids, the oldest first.
        actions: Their actions, in their order.
        votes: What was said of them.
    """

    def __init__(self, transaction: Transaction, ledger: LockedLedger) -> None:
        self._transaction = transaction
        self._ledger = ledger
        self.approvals: dict[UUID, ApprovalRow] = {}
        self.actions: dict[UUID, list[ActionRow]] = {}
        self.votes: dict[UUID, list[VoteRow]] = {}

    @classmethod
    async def read(cls, transaction: Transaction, ledger: LockedLedger) -> "ThreadApprovals":
        """Read them and compare them with the seal.

        Raises:
            IntegrityFailure: A row was edited, removed, or put back.
        """
        self = cls(transaction, ledger)
        thread_id = ledger.thread_id
        for row in await transaction.fetch_all(sql.ALL, thread_id=thread_id):
            self.approvals[row.approval_id] = row
            self.actions[row.approval_id], self.votes[row.approval_id] = [], []
        rows: list[ApprovalRow | ActionRow | VoteRow] = [*self.approvals.values()]
        for action in await transaction.fetch_all(sql.ALL_ACTIONS, thread_id=thread_id):
            self.actions.setdefault(action.approval_id, []).append(action)
            rows.append(action)
        for vote in await transaction.fetch_all(sql.ALL_VOTES, thread_id=thread_id):
            self.votes.setdefault(vote.approval_id, []).append(vote)
            rows.append(vote)
        check_rows(ledger.sealer, thread_id, rows)
        ledger.check("approvals", ((_KINDS[type(row)], row.mac) for row in rows))
        if self.open_count != ledger.thread.open_approvals:
            raise IntegrityFailure("the number of this thread's open approvals was altered outside the gateway")
        return self

    @property
    def open_count(self) -> int:
        """How many wait for a decision."""
        return sum(row.status in _OPEN for row in self.approvals.values())

    async def add(
        self, approval: ApprovalRow, actions: Sequence[ActionRow], request: bytes, display: bytes | None
    ) -> None:
        """Add an approval with its actions; what is sealed of it comes as envelopes."""
        ledger, run = self._ledger, self._transaction.run
        approval = with_mac(ledger.sealer, ledger.thread_id, approval)
        await run(
            sql.ADD, thread_id=ledger.thread_id, request=request,
            display=display, **structs.asdict(approval),
        )  # fmt: skip
        ledger.add("approvals", "approval", approval.mac)
        self.approvals[approval.approval_id] = approval
        self.actions[approval.approval_id], self.votes[approval.approval_id] = [], []
        for each in actions:
            action = with_mac(ledger.sealer, ledger.thread_id, each)
            await run(sql.ADD_ACTION, thread_id=ledger.thread_id, **structs.asdict(action))
            ledger.add("approvals", "approval-action", action.mac)
            self.actions[approval.approval_id].append(action)

    async def change(self, before: ApprovalRow, decision: Sequence[DecidedAction] | None = None, **to: object) -> None:
        """Change an approval, which gets its next revision, and what was decided, if that is given."""
        ledger, approval_id = self._ledger, before.approval_id
        if decision is not None:
            content = encode_msgpack(list(decision))
            to["decision_member"] = keyed(ledger.sealer, b"decision", content)
            envelope = seal_part(ledger.sealer.without_share, ledger.thread_id, approval_id, "decision", content)
            await self._transaction.run(
                sql.SET_DECISION, thread_id=ledger.thread_id, approval_id=approval_id, decision=envelope
            )
        after = structs.replace(before, revision=before.revision + 1, **to)
        after = with_mac(ledger.sealer, ledger.thread_id, after)
        changed = await self._transaction.fetch_one(
            sql.CHANGE, thread_id=ledger.thread_id, approval_id=approval_id, action_mac=after.action_mac,
            status=after.status, valid_until=after.valid_until, decided_at=after.decided_at, revision=after.revision,
            decision_member=after.decision_member, mac=after.mac, before=before.mac,
        )  # fmt: skip
        _check_changed(changed)
        ledger.change("approvals", "approval", before.mac, after.mac)
        self.approvals[approval_id] = after

    async def change_action(self, before: ActionRow, **to: object) -> None:
        """Change an action."""
        ledger = self._ledger
        after = with_mac(ledger.sealer, ledger.thread_id, structs.replace(before, **to))
        changed = await self._transaction.fetch_one(
            sql.CHANGE_ACTION, thread_id=ledger.thread_id, before=before.mac, **structs.asdict(after)
        )
        _check_changed(changed)
        ledger.change("approvals", "approval-action", before.mac, after.mac)
        of = self.actions[before.approval_id]
        of[of.index(before)] = after

    async def vote(self, row: VoteRow) -> None:
        """Count a vote, in the place of an earlier one of the same principal."""
        ledger, votes = self._ledger, self.votes[row.approval_id]
        for earlier in [each for each in votes if (each.principal, each.asserted) == (row.principal, row.asserted)]:
            await self.take_back(earlier)
        vote = with_mac(ledger.sealer, ledger.thread_id, row)
        await self._transaction.run(sql.ADD_VOTE, thread_id=ledger.thread_id, **structs.asdict(vote))
        ledger.add("approvals", "approval-vote", vote.mac)
        votes.append(vote)

    async def take_back(self, vote: VoteRow) -> None:
        """Count a vote no more."""
        ledger = self._ledger
        changed = await self._transaction.fetch_one(
            sql.REMOVE_VOTE, thread_id=ledger.thread_id, approval_id=vote.approval_id, principal=vote.principal,
            asserted=vote.asserted, before=vote.mac,
        )  # fmt: skip
        _check_changed(changed)
        ledger.remove("approvals", "approval-vote", vote.mac)
        self.votes[vote.approval_id].remove(vote)

    async def remove(self, approval: ApprovalRow) -> None:
        """Remove an approval with what belongs to it."""
        ledger, approval_id = self._ledger, approval.approval_id
        place = {"thread_id": ledger.thread_id, "approval_id": approval_id}
        await self._transaction.run(sql.REMOVE_VOTES, **place)
        await self._transaction.run(sql.REMOVE_ACTIONS, **place)
        _check_changed(await self._transaction.fetch_one(sql.REMOVE, before=approval.mac, **place))
        rows: tuple[ApprovalRow | ActionRow | VoteRow, ...] = (
            approval,
            *self.actions.pop(approval_id),
            *self.votes.pop(approval_id),
        )
        for row in rows:
            ledger.remove("approvals", _KINDS[type(row)], row.mac)
        del self.approvals[approval_id]

    async def opened(self, approval: ApprovalRow, sealer: Sealer) -> tuple[Request, str | None, list[DecidedAction]]:
        """What is asked, the display text, and what was said of each action.

        Raises:
            IntegrityFailure: It does not authenticate, or is not what the row says.
        """
        thread_id, approval_id = self._ledger.thread_id, approval.approval_id
        row = await self._transaction.fetch_only(sql.SEALED, thread_id=thread_id, approval_id=approval_id)
        content = open_part(sealer, thread_id, approval_id, "request", row.request)
        if keyed(sealer, b"request", content) != approval.request_member:
            raise IntegrityFailure("what is asked is not what the approval says")
        return _request.decode(content), self._display(approval, row), self._decided(approval, row)

    async def shown(self, approval: ApprovalRow) -> tuple[str | None, list[DecidedAction]]:
        """The display text and what was said of each action, which take no client's share."""
        place = {"thread_id": self._ledger.thread_id, "approval_id": approval.approval_id}
        row = await self._transaction.fetch_only(sql.SEALED, **place)
        return self._display(approval, row), self._decided(approval, row)

    def _display(self, approval: ApprovalRow, row: sql.SealedRow) -> str | None:
        content = self._open_unshared(approval, "display", row.display, approval.display_member)
        return None if content is None else content.decode()

    def _decided(self, approval: ApprovalRow, row: sql.SealedRow) -> list[DecidedAction]:
        content = self._open_unshared(approval, "decision", row.decision, approval.decision_member)
        if content is None:
            return [DecidedAction() for _ in self.actions[approval.approval_id]]
        return _decision.decode(content)

    def _open_unshared(
        self, approval: ApprovalRow, part: str, envelope: bytes | None, expected: bytes | None
    ) -> bytes | None:
        if envelope is None and expected is None:
            return None
        sealer = self._ledger.sealer.without_share
        content = b"" if envelope is None else open_part(
            sealer, self._ledger.thread_id, approval.approval_id, part, envelope
        )  # fmt: skip
        if envelope is None or keyed(sealer, part.encode(), content) != expected:
            raise IntegrityFailure(f"the {part} of an approval is not what its row says")
        return content

    async def store_open_count(self) -> None:
        """Write how many are open into the thread's row, if that changed."""
        if self.open_count != self._ledger.thread.open_approvals:
            await self._transaction.run(sql.SET_OPEN, thread_id=self._ledger.thread_id, open_approvals=self.open_count)
            self._ledger.thread = structs.replace(self._ledger.thread, open_approvals=self.open_count)


def check_rows(sealer: Sealer, thread_id: str, rows: Sequence[ApprovalRow | ActionRow | VoteRow]) -> None:
    """Compare rows with their own MACs.

    Raises:
        IntegrityFailure: One was edited outside the gateway.
    """
    for row in rows:
        if _mac(sealer, thread_id, row) != row.mac:
            raise IntegrityFailure(f"an {_KINDS[type(row)]} was edited outside the gateway")


def _check_changed(changed: int | None) -> None:
    if changed is None:
        raise LostRaceError


def counted(sealer: Sealer, rows: Sequence[ApprovalRow | ActionRow | VoteRow]) -> LiveSet:
    """What rows add up to in the seal of a ledger."""
    found = LiveSet()
    for row in rows:
        found = found.add(member(sealer, _KINDS[type(row)], row.mac))
    return found


def check_parts(sealer: Sealer, thread_id: str, row: ApprovalRow, sealed: sql.SealedRow) -> None:
    """Open what is sealed of an approval, but for what takes a client's share, and compare it with its row.

    Raises:
        IntegrityFailure: It is not what the row says.
    """
    for part in ("request", "display", "decision"):
        envelope, expected = getattr(sealed, part), getattr(row, f"{part}_member")
        if part == "request" and row.client_share:
            continue
        found = None
        if envelope is not None:
            content = open_part(sealer.without_share, thread_id, row.approval_id, part, envelope)
            found = keyed(sealer, part.encode(), content)
        if found != expected:
            raise IntegrityFailure(f"its {part} is not what its row says")
