"""The verbs on approvals: decide, open, list, get, cancel.

What suspends a run asks in its own transaction (`storage.approvals.asking`). Everything that changes an approval goes
under its thread's lock, compares all rows of the thread's approvals with the seal of its ledger, and decides by the
database's clock after the lock was granted whether something is over. Owns no policy of who may call.
"""

import builtins
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from crypto import Sealer
from storage.access.access import Access
from storage.approvals import deciding
from storage.approvals.asking import args_of, hash_of
from storage.approvals.model import (
    APPROVAL_CONTENT_BYTES_MAX,
    ActionState,
    Approval,
    ApprovalContent,
    ApprovalPage,
    ApprovalQuery,
    AskedAction,
    Decision,
    Verdict,
    Vote,
    Voter,
)
from storage.approvals.rows import DecidedAction, RequestedAction, ThreadApprovals, action_mac, keyed
from storage.approvals.telling import draft_of, record
from storage.encoding import encode_msgpack
from storage.errors import (
    ActionChanged,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalNotFound,
    ClientShareRequired,
    EditInvalid,
    InvalidState,
    LimitExceeded,
    ThreadNotFound,
)
from storage.format.thread_ledgers.actions import approval_hash
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, TenantListing
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers.approvals import ApprovalRow, VoteRow
from storage.thread_ledgers.locked import LockedLedger

T = TypeVar("T")


class EditChecks(Protocol):
    """Says whether arguments are what a tool takes; not under a lock, because schemas are the tenant's own."""

    async def misfit(self, tenant_id: UUID, schema: bytes, args: bytes) -> str | None:
        """What is wrong with arguments (MessagePack) by a JSON schema; None: nothing."""


class Approvals:
    """The verbs on approvals."""

    def __init__(self, access: Access, edits: EditChecks | None = None) -> None:
        self._access = access
        self._edits = edits

    async def list(self, scope: Scope | TenantListing, query: ApprovalQuery) -> ApprovalPage:
        """Approvals, newest first: a page of clear columns, of a subject or of the whole tenant."""
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            found = await self._listed(transaction, query)
        more = len(found) > query.limit
        found = found[: query.limit]
        return ApprovalPage(found, found[-1].approval_id if more else None)

    async def get(self, scope: Scope | TenantListing, approval_id: UUID) -> Approval:
        """How an approval stands, with its votes; clear columns only.

        Raises:
            ApprovalNotFound: There is none in this scope.
        """
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(sql.LISTED_ONE, approval_id=approval_id)
            if row is None:
                raise ApprovalNotFound
            [found] = await self._with_actions(transaction, [row])
            rows = await transaction.fetch_all(
                sql.LIST_VOTES, of_subject=row.subject_id, thread_id=row.thread_id, approval_id=approval_id
            )
        votes = tuple(
            Vote(row.principal, row.key_id, deciding.overall(row.verdicts), row.at, row.asserted) for row in rows
        )
        return _replaced(found, votes=votes)

    async def open(
        self, scope: Scope | TenantListing, approval_id: UUID, voter: Voter, share: ClientShare | None = None
    ) -> ApprovalContent:
        """What exactly is asked; on the tenant's record as ``approval.opened``.

        Without the share that its thread was made with, a display text is shown, if there is one (``withheld``).

        Raises:
            ApprovalNotFound: There is none in this scope.
            ClientShareRequired: It opens with a share only, and has no display text.
            ClientShareWrong: It opens with another share.
            IntegrityFailure: It was changed outside the gateway.
        """
        place = await self._place(scope, approval_id)

        async def work(held: "_Held") -> tuple[ApprovalContent, ApprovalRow]:
            return await held.content(), held.row

        content, row = await self._found(place, approval_id, work, share, locked=False)
        said = ("approval.opened", place[1], row)
        async with self._access.unit_of_work.begin(place[0]) as transaction:
            await record(
                self._access, transaction, place[0], f"api-key:{voter.key_id}", said,
                principal=voter.named, withheld=content.withheld,
            )  # fmt: skip
        return content

    async def decide(
        self, scope: Scope | TenantListing, decision: Decision, voter: Voter, share: ClientShare | None = None
    ) -> Approval:
        """Decide. The same decision of the same principal again changes nothing. Edits of what takes a share take it.

        Raises:
            ApprovalNotFound: There is none in this scope.
            ActionChanged: Something else is asked than what was shown.
            ApprovalDecided: It was decided otherwise, cancelled or superseded.
            ApprovalExpired: Nobody decided in time.
            ApprovalNotYours: This principal may not approve it.
            EditInvalid: Edited arguments are not what the tool takes.
            InvalidState: A verdict is not allowed here, or there are not as many as actions.
            LimitExceeded: More is said than may be asked.
        """
        said = sum(
            len(each.edited_args or b"") + len(each.response or b"") + len((each.message or "").encode())
            for each in decision.verdicts
        )
        if said > APPROVAL_CONTENT_BYTES_MAX:
            raise LimitExceeded("APPROVAL_CONTENT_BYTES_MAX", APPROVAL_CONTENT_BYTES_MAX, said)
        place = await self._place(scope, decision.approval_id)
        if any(each.verdict == "edit" for each in decision.verdicts):
            await self._check_edits(place, decision, share)

        async def work(held: "_Held") -> Approval:
            if await held.decide(decision, voter):
                await self._changed(
                    held, voter, "approval.decided",
                    asserted=voter.asserted_principal is not None,
                    verdicts=[each.verdict for each in decision.verdicts],
                    status=held.row.status,
                )  # fmt: skip
            return held.approval()

        return await self._under_lock(place, decision.approval_id, work, share)

    async def cancel(self, scope: Scope, approval_id: UUID, voter: Voter) -> Approval:
        """Take a question back; one that was cancelled before is given as it is.

        Raises:
            ApprovalNotFound: There is none in this scope.
            ApprovalDecided: It was decided before, or nobody did in time.
        """
        place = await self._place(scope, approval_id)

        async def work(held: "_Held") -> Approval:
            row = held.row
            if row.status == "cancelled":
                return held.approval()
            if row.status == "pending" and row.expires_at <= held.ledger.now:
                raise ApprovalDecided("expired", None, row.expires_at)
            if row.status != "pending":
                raise held.decided()
            await held.rows.change(row, status="cancelled", decided_at=held.ledger.now)
            await self._changed(held, voter, "approval.cancelled")
            return held.approval()

        return await self._under_lock(place, approval_id, work)

    async def _place(self, scope: Scope | TenantListing, approval_id: UUID) -> tuple[Scope, str]:
        """The subject and the thread of an approval.

        Raises:
            ApprovalNotFound: There is none in this scope.
        """
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            row = await transaction.fetch_one(sql.WHERE_IS, approval_id=approval_id)
        if row is None:
            raise ApprovalNotFound
        return Scope(scope.tenant_id, row.subject_id), row.thread_id

    async def _under_lock(
        self,
        place: tuple[Scope, str],
        approval_id: UUID,
        work: Callable[["_Held"], Awaitable[T]],
        share: ClientShare | None = None,
    ) -> T:
        await self._access.emitting.ready(place[0].tenant_id)
        return await self._found(place, approval_id, work, share, locked=True)

    async def _found(
        self,
        place: tuple[Scope, str],
        approval_id: UUID,
        work: Callable[["_Held"], Awaitable[T]],
        share: ClientShare | None,
        *,
        locked: bool,
    ) -> T:
        """Work on an approval that was compared with its seal: under its thread's lock, or as it was at one moment."""
        scope, thread_id = place
        opening = self._access.unit_of_work.begin if locked else self._access.unit_of_work.snapshot
        look = LockedLedger.lock if locked else LockedLedger.read

        async def attempt(sealer: Sealer) -> T:
            async with opening(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                try:
                    ledger = await look(transaction, sealer, thread_id, without_share=not sealer.shared)
                except ThreadNotFound:
                    raise ApprovalNotFound from None
                rows = await ThreadApprovals.read(transaction, ledger)
                if approval_id not in rows.approvals:
                    raise ApprovalNotFound
                return await work(_Held(scope, transaction, sealer, ledger, rows, approval_id))

        return await self._access.with_existing_keys(scope, attempt, ApprovalNotFound(), share)

    async def _check_edits(self, place: tuple[Scope, str], decision: Decision, share: ClientShare | None) -> None:
        """Compare edited arguments with the tools' schemas, before the transaction that decides.

        Raises:
            EditInvalid: Some are not what the tool takes.
            ClientShareRequired: What is edited takes a client's share.
        """

        async def work(held: "_Held") -> Sequence[RequestedAction]:
            if held.row.client_share and not held.sealer.shared:
                raise ClientShareRequired
            request, _, _ = await held.rows.opened(held.row, held.sealer)
            return request.actions

        actions = await self._found(place, decision.approval_id, work, share, locked=False)
        if len(actions) != len(decision.verdicts):
            raise InvalidState(f"there is one verdict for each of {len(actions)} actions", "/verdicts")
        for position, (action, said) in enumerate(zip(actions, decision.verdicts, strict=True)):
            if said.edited_args is None:
                continue
            args_of(said.edited_args, f"/verdicts/{position}/edited_args")
            if action.args_schema is None:
                continue
            if self._edits is None:
                raise EditInvalid("edited arguments cannot be checked here")
            wrong = await self._edits.misfit(place[0].tenant_id, action.args_schema, said.edited_args)
            if wrong is not None:
                raise EditInvalid(f"the edited arguments of action {position} are not what the tool takes: {wrong}")

    async def _changed(self, held: "_Held", voter: Voter, action: str, **more: Any) -> None:
        """Write what counts an approval's change, its record, and its event, in the order of their locks."""
        await held.rows.store_open_count()
        await held.ledger.store(held.transaction, self._access.note_ledger(held.scope, held.sealer, held.thread_id))
        said = (action, held.thread_id, held.row)
        await record(
            self._access, held.transaction, held.scope, f"api-key:{voter.key_id}", said, principal=voter.named, **more
        )
        draft = draft_of("approval.decided", held.scope, held.thread_id, held.row)
        await self._access.emitting.of_approval(held.transaction, held.scope.tenant_id, draft)

    async def _listed(self, transaction: Transaction, query: ApprovalQuery) -> builtins.list[Approval]:
        values = {"before": query.before, "agent": query.agent, "thread_id": query.thread_id, "limit": query.limit + 1}
        if query.status == "pending":
            rows = await transaction.fetch_all(sql.LIST_PENDING, **values)
        else:
            rows = await transaction.fetch_all(sql.LIST, **values, status=query.status)
        return await self._with_actions(transaction, rows)

    async def _with_actions(self, transaction: Transaction, rows: Sequence[sql.ListedRow]) -> builtins.list[Approval]:
        actions: dict[UUID, builtins.list[ActionState]] = {row.approval_id: [] for row in rows}
        if rows:
            for each in await transaction.fetch_all(
                sql.LIST_ACTIONS,
                subject_ids=sorted({row.subject_id for row in rows}),
                thread_ids=sorted({row.thread_id for row in rows}),
                approval_ids=[*actions],
            ):
                state = ActionState(each.position, each.status, each.verdict, each.edited)  # type: ignore[arg-type]
                actions[each.approval_id].append(state)
        return [_listed(row, actions[row.approval_id]) for row in rows]


class _Held:
    """An approval under its thread's lock."""

    def __init__(
        self,
        scope: Scope,
        transaction: Transaction,
        sealer: Sealer,
        ledger: LockedLedger,
        rows: ThreadApprovals,
        approval_id: UUID,
    ) -> None:
        self.scope = scope
        self.transaction = transaction
        self.sealer = sealer
        self.ledger = ledger
        self.rows = rows
        self._approval_id = approval_id

    @property
    def row(self) -> ApprovalRow:
        """The approval as it now is."""
        return self.rows.approvals[self._approval_id]

    @property
    def thread_id(self) -> str:
        """Its thread."""
        return self.ledger.thread_id

    def decided(self) -> ApprovalDecided:
        """Why it is not decided any more: by whom, and when."""
        votes = self.rows.votes[self._approval_id]
        return ApprovalDecided(self.row.status, votes[-1].principal if votes else None, self.row.decided_at)

    async def decide(self, decision: Decision, voter: Voter) -> bool:
        """Count a vote, and settle what is settled by it; False: it was counted before."""
        row, now = self.row, self.ledger.now
        digest = keyed(self.sealer, b"vote", encode_msgpack((decision.action_hash, decision.verdicts)))
        mine = (voter.named, voter.asserted_principal is not None)
        if any((each.principal, each.asserted) == mine and each.digest == digest for each in self._votes):
            return False
        if row.status != "pending":
            raise self.decided()
        if row.expires_at <= now:
            raise ApprovalExpired
        if action_mac(self.sealer, _digest_of(decision.action_hash)) != row.action_mac:
            raise ActionChanged
        deciding.check_verdicts(row, decision.verdicts, len(self.rows.actions[self._approval_id]))
        deciding.check_voter(row, voter, decision.verdicts)
        said = await self._said(decision.verdicts)
        words = [each.verdict for each in decision.verdicts]
        if "edit" in words:
            await self._edit(decision.verdicts, said)
        vote = VoteRow(
            row.approval_id, *mine[:1], voter.key_id, deciding.counts_as(row, voter), list(words), digest, now, mine[1],
            b"",
        )  # fmt: skip
        await self.rows.vote(vote)
        await self._settle(said)
        return True

    @property
    def _votes(self) -> Sequence[VoteRow]:
        return self.rows.votes[self._approval_id]

    async def _said(self, verdicts: Sequence[Verdict]) -> "list[DecidedAction]":
        """What was said of each action so far, and now."""
        _, before = await self.rows.shown(self.row)
        return [
            DecidedAction(
                new.edited_args if new.edited_args is not None else old.edited_args,
                new.response if new.response is not None else old.response,
                new.message if new.message is not None else old.message,
            )
            for new, old in zip(verdicts, before, strict=True)
        ]

    async def _edit(self, verdicts: Sequence[Verdict], said: Sequence[DecidedAction]) -> None:
        """Make other actions of those that were edited; what was said before was said of others, and is taken back."""
        if self.row.client_share and not self.sealer.shared:
            raise ClientShareRequired
        request, _, _ = await self.rows.opened(self.row, self.sealer)
        hashes = await self._hashes(request.actions, said)
        for vote in [*self._votes]:
            await self.rows.take_back(vote)
        for action, verdict in zip([*self.rows.actions[self._approval_id]], verdicts, strict=True):
            if verdict.verdict == "edit":
                mac = action_mac(self.sealer, hashes[action.position])
                await self.rows.change_action(action, action_mac=mac, edited=True)
        # The rest of the change is `_settle`'s, which writes the row.
        self._edited_mac = action_mac(self.sealer, approval_hash(hashes))

    async def _hashes(self, actions: Sequence[RequestedAction], said: Sequence[DecidedAction]) -> "list[bytes]":
        return [
            await hash_of(
                self.scope, self.thread_id, self.row.agent,
                action if decided.edited_args is None
                else RequestedAction(action.tool, action.tool_digest, decided.edited_args, None, [], None),
            )
            for action, decided in zip(actions, said, strict=True)
        ]  # fmt: skip

    _edited_mac: bytes | None = None

    async def _settle(self, said: Sequence[DecidedAction]) -> None:
        row, now = self.row, self.ledger.now
        for action in [*self.rows.actions[self._approval_id]]:
            stands = deciding.settled(row, action, self._votes)
            words = [vote.verdicts[action.position] for vote in self._votes]
            if stands == action.status and stands in {"rejected", "answered"}:
                continue
            verdict = None if stands == "pending" else deciding.overall(words)
            if (stands, verdict) != (action.status, action.verdict):
                await self.rows.change_action(action, status=stands, verdict=verdict)
        to: dict[str, Any] = {} if self._edited_mac is None else {"action_mac": self._edited_mac}
        status = deciding.status_of([each.status for each in self.rows.actions[self._approval_id]])  # type: ignore[misc]
        if status != "pending":
            to.update(status=status, decided_at=now)
        if status == "approved":
            to.update(valid_until=now + timedelta(seconds=row.valid_seconds))
        await self.rows.change(row, said, **to)

    async def content(self) -> ApprovalContent:
        """What exactly is asked."""
        row = self.row
        allowed: frozenset[Any] = frozenset(row.allowed) | {"reject"}
        if row.client_share and not self.sealer.shared:
            display, _ = await self.rows.shown(row)
            if display is None:
                raise ClientShareRequired
            return ApprovalContent(self.approval(), None, "", allowed, None, display, None, (), withheld=True)
        request, display, said = await self.rows.opened(row, self.sealer)
        hashes = await self._hashes(request.actions, said)
        states = self.rows.actions[self._approval_id]
        actions = tuple(
            AskedAction(
                each.tool, each.tool_digest, each.args, each.args_schema, tuple(each.hide), each.description,
                digest.hex(), state.verdict, decided.edited_args, decided.response, decided.message,  # type: ignore[arg-type]
            )
            for each, digest, state, decided in zip(request.actions, hashes, states, said, strict=True)
        )  # fmt: skip
        return ApprovalContent(
            self.approval(), request.external_id, approval_hash(hashes).hex(), allowed, request.message, display,
            request.response_schema, actions,
        )  # fmt: skip

    def approval(self) -> Approval:
        """How it stands."""
        row = self.row
        listed = sql.ListedRow(
            self.scope.subject_id, self.thread_id, now=self.ledger.now,
            **{name: getattr(row, name) for name in sql.ListedRow.__struct_fields__[2:-1]},
        )  # fmt: skip
        actions = [
            ActionState(each.position, each.status, each.verdict, each.edited)  # type: ignore[arg-type]
            for each in self.rows.actions[self._approval_id]
        ]
        votes = tuple(
            Vote(each.principal, each.key_id, deciding.overall(each.verdicts), each.at, each.asserted)
            for each in self._votes
        )
        return _replaced(_listed(listed, actions), votes=votes)


def _digest_of(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise InvalidState("action_hash is not in hex", "/action_hash") from None


def _replaced(approval: Approval, votes: tuple[Vote, ...]) -> Approval:
    return replace(approval, votes=votes)


def _listed(row: sql.ListedRow, actions: Sequence[ActionState]) -> Approval:
    values = {name: getattr(row, name) for name in row.__struct_fields__ if name != "now"}
    if row.status == "pending" and row.expires_at <= row.now:
        values["status"] = "expired"
    elif row.status == "approved" and row.valid_until is not None and row.valid_until <= row.now:
        values["status"] = "lapsed"
    return Approval(**values, actions=tuple(actions))
