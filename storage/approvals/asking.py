"""Asking: what a save or a task's writes ask people is stored in the same transaction, or neither is.

Owns what supersedes what: the same question with the same actions is the same approval as long as it waits or its
answer stands; with other actions it supersedes the one before, also an approved one. A checkpoint that a namespace
takes supersedes what waits there, unless it asks that again. An approval that was given stays: what it allows comes
next. What is over is stored as that first, so that who asks the same again is not left with an answer that nobody can
give, or use, any more.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from uuid_utils import uuid7

from crypto import Sealer
from storage.access.access import Access
from storage.administration.audit import GATEWAY_ACTOR
from storage.approvals.model import (
    APPROVAL_ACTIONS_MAX,
    APPROVAL_CONTENT_BYTES_MAX,
    APPROVALS_ENDED_MAX,
    APPROVALS_PENDING_MAX,
    EXPIRES_SECONDS_MAX,
    EXPIRES_SECONDS_MIN,
)
from storage.approvals.policies import policy_for
from storage.approvals.rows import Request, RequestedAction, ThreadApprovals, action_mac, keyed, seal_part
from storage.approvals.telling import draft_of, record
from storage.concurrency.computing import compute
from storage.control.features import DECISIONS
from storage.encoding import encode_msgpack
from storage.errors import ApprovalsExceeded, InvalidState, LimitExceeded
from storage.event_queue.model import EventType
from storage.format.thread_ledgers.actions import Action, action_hash, approval_hash
from storage.model import Asker, NewAction, NewApproval
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope, check_id
from storage.statements.rules.retention import APPROVALS_DUE, BEGIN_ROUNDS
from storage.statements.thread_ledgers.approvals import ActionRow, ApprovalRow
from storage.thread_ledgers.locked import LockedLedger

# As long as it stands so, the same question with the same actions is the same approval.
_STANDS: Final = frozenset({"pending", "approved", "rejected", "answered"})
# What still matters to somebody; all others have ended, and so many of them are kept.
_OPEN: Final = frozenset({"pending", "approved"})
_VERDICTS: Final = frozenset({"approve", "reject", "edit", "respond"})

# In the name of a namespace that is a call of a graph by another one, which goes on only when the call has ended.
_CALL: Final = ":"

# What is hashed on the event loop: for some milliseconds at most.
_INLINE_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Asking:
    """What a transaction asks, and where.

    Attributes:
        thread_id: The thread, which the transaction has locked.
        namespace: The namespace that is written to.
        checkpoint_id: The checkpoint that waits.
        run_id: The run that asks.
        agent: The agent that asks, where an approval names none; None: the thread's.
        asker: The key that asks; None only where nothing is asked.
        approvals: What is asked.
        supersedes: Whether a checkpoint was stored, so that what waited in its namespace does so no more.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    run_id: str | None
    agent: str | None
    asker: Asker | None
    approvals: tuple[NewApproval, ...]
    supersedes: bool


def root_of(namespace: str) -> str:
    """The first segment of a namespace, in which LangGraph's subgraphs run."""
    return namespace.split("|", 1)[0]


async def ready(access: Access, approvals: tuple[NewApproval, ...], asker: Asker | None) -> None:
    """Return if these can be asked, outside of transactions.

    Raises:
        FeatureOff: An older build may run; finish the upgrade first.
        InvalidState: Something of them cannot be stored.
        LimitExceeded: One is too large.
    """
    if not approvals:
        return
    await access.control.features.require(DECISIONS, "people are asked for approval")
    await access.control.ready_to_check()
    if asker is None:
        raise InvalidState("nobody asks")
    if len({each.external_id for each in approvals}) != len(approvals):
        raise InvalidState("two approvals have the same external_id", "/approvals")
    for position, each in enumerate(approvals):
        _check(each, f"/approvals/{position}")


def _check(new: NewApproval, pointer: str) -> None:
    check_id(new.external_id, "external_id")
    if not 1 <= len(new.actions) <= APPROVAL_ACTIONS_MAX:
        raise InvalidState(f"an approval has 1 to {APPROVAL_ACTIONS_MAX} actions", f"{pointer}/actions")
    if not new.allowed or not new.allowed <= _VERDICTS:
        raise InvalidState("allowed has what may be said: approve, reject, edit, respond", f"{pointer}/allowed")
    seconds = new.expires_seconds
    if seconds is not None and not EXPIRES_SECONDS_MIN <= seconds <= EXPIRES_SECONDS_MAX:
        raise InvalidState("an approval expires after 60 seconds to 30 days", f"{pointer}/expires_seconds")
    size = len(encode_msgpack(_request(new))) + len((new.display or "").encode())
    if size > APPROVAL_CONTENT_BYTES_MAX:
        raise LimitExceeded("APPROVAL_CONTENT_BYTES_MAX", APPROVAL_CONTENT_BYTES_MAX, size)
    for position, action in enumerate(new.actions):
        check_id(action.tool, "tool")
        args_of(action.args, f"{pointer}/actions/{position}/args")


def args_of(args: bytes, pointer: str) -> dict[str, Any]:
    """Arguments as they are hashed.

    Raises:
        InvalidState: They are no map in MessagePack.
    """
    try:
        found = msgspec.msgpack.decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidState("arguments are a map", pointer) from None
    if not isinstance(found, dict):
        raise InvalidState("arguments are a map", pointer)
    return found


async def hash_of(scope: Scope, thread_id: str, agent: str | None, action: NewAction | RequestedAction) -> bytes:
    """The hash of an action; that of large arguments is made beside the event loop, because it takes long.

    Raises:
        InvalidState: Its arguments have no canonical form.
    """
    if len(action.args) <= _INLINE_BYTES:
        return _hash_of(scope, thread_id, agent, action)
    return await compute(scope.tenant_id, lambda: _hash_of(scope, thread_id, agent, action))


def _hash_of(scope: Scope, thread_id: str, agent: str | None, action: NewAction | RequestedAction) -> bytes:
    args = args_of(action.args, "")
    try:
        return action_hash(Action(action.tool, action.tool_digest, args, thread_id, agent, scope.subject_id))
    except ValueError as error:
        raise InvalidState(f"arguments cannot be asked about: {error}") from None


def _request(new: NewApproval) -> Request:
    actions = [
        RequestedAction(each.tool, each.tool_digest, each.args, each.args_schema, list(each.hide), each.description)
        for each in new.actions
    ]
    return Request(new.external_id, new.message, new.response_schema, actions)


async def ask(access: Access, scope: Scope, transaction: Transaction, sealer: Sealer, asking: Asking) -> None:
    """Store what is asked, last of all that the transaction writes to the thread.

    Raises:
        ApprovalsExceeded: As many wait in the thread as may.
        IntegrityFailure: The thread's approvals, or a policy, were changed outside the gateway.
    """
    ledger = await LockedLedger.lock(transaction, sealer, asking.thread_id)
    held = await ThreadApprovals.read(transaction, ledger)
    before = ledger.seal
    asked = _Asked(access, scope, transaction, ledger, held, asking)
    await asked.run()
    if ledger.seal != before:
        await held.store_open_count()
        await ledger.store(transaction, access.note_ledger(scope, sealer, asking.thread_id))
        await asked.record()


@dataclass(frozen=True, slots=True)
class _Asked:
    """One transaction's questions."""

    access: Access
    scope: Scope
    transaction: Transaction
    ledger: LockedLedger
    held: ThreadApprovals
    asking: Asking
    changed: list[tuple[str, ApprovalRow]] = field(default_factory=list)

    async def run(self) -> None:
        """Add what is new, and supersede what is not asked any more."""
        held, root = self.held, root_of(self.asking.namespace)
        kept: set[UUID] = set()
        await self._end_what_is_over()
        for new in self.asking.approvals:
            external = keyed(self.ledger.sealer, b"external-id", new.external_id.encode())
            agent = new.agent or self.asking.agent or self.ledger.thread.agent
            hashes = [await hash_of(self.scope, self.asking.thread_id, agent, each) for each in new.actions]
            asked = action_mac(self.ledger.sealer, approval_hash(hashes))
            same_name = [
                each
                for each in held.approvals.values()
                if (each.namespace, each.external_mac) == (root, external) and each.status in _STANDS
            ]
            repeated = [each for each in same_name if each.asked_mac == asked]
            kept.update(each.approval_id for each in repeated)
            for each in same_name:
                if each.asked_mac != asked:
                    await self._supersede(each)
            if not repeated:
                kept.add(await self._add(new, agent, external, hashes))
        if self.asking.supersedes:
            await self._supersede_older(root, kept)
        if held.open_count > APPROVALS_PENDING_MAX:
            raise ApprovalsExceeded
        if self.asking.approvals:
            await self._note_expiry()
        ended = [each for each in held.approvals.values() if each.status not in _OPEN]
        for each in ended[: max(0, len(ended) - APPROVALS_ENDED_MAX)]:
            await held.remove(each)

    async def _note_expiry(self) -> None:
        """Have what was asked stored as expired soon after it is (`storage.approvals.expiring`)."""
        due_at = min((each.expires_at for each in self.held.approvals.values() if each.status in _OPEN), default=None)
        if due_at is not None:
            await self.transaction.run(BEGIN_ROUNDS, owner=self.scope.tenant_id)
            await self.transaction.run(APPROVALS_DUE, owner=self.scope.tenant_id, due_at=due_at)

    async def _end_what_is_over(self) -> None:
        """Store what nobody decided, or used, in time as readers are shown it: it stands no more."""
        now = self.ledger.now
        for each in [*self.held.approvals.values()]:
            if each.status == "pending" and each.expires_at <= now:
                await self.held.change(each, status="expired")
                await self._tell("approval.expired", each.approval_id)
            elif each.status == "approved" and each.valid_until is not None and each.valid_until <= now:
                for action in [*self.held.actions[each.approval_id]]:
                    if action.status == "approved":
                        await self.held.change_action(action, status="lapsed")
                await self.held.change(each, status="lapsed")
                self.changed.append(("approval.lapsed", each))

    async def _supersede_older(self, root: str, kept: set[UUID]) -> None:
        """Supersede what waits at older checkpoints of a namespace, or of calls that end before it goes on."""
        for each in [*self.held.approvals.values()]:
            # LangGraph may store what a task asks before the checkpoint that it asks at, and that one's parent.
            is_older = each.checkpoint_id is None or each.checkpoint_id < self.asking.checkpoint_id
            is_below = each.namespace == root or (root == "" and _CALL in each.namespace)
            if each.status == "pending" and is_below and is_older and each.approval_id not in kept:
                await self._supersede(each)

    async def _supersede(self, approval: ApprovalRow) -> None:
        if approval.status in {"rejected", "answered"}:
            return  # it ended; what is asked now is another question
        await self.held.change(approval, status="superseded")
        await self._tell("approval.superseded", approval.approval_id)

    async def _add(self, new: NewApproval, agent: str | None, external: bytes, hashes: list[bytes]) -> UUID:
        asking, ledger, sealer = self.asking, self.ledger, self.ledger.sealer
        policy = await policy_for(self.transaction, self.access.control, agent, {each.tool for each in new.actions})
        if asking.asker is None:
            raise InvalidState("nobody asks")
        approval_id = UUID(int=uuid7().int)
        content = encode_msgpack(_request(new))
        display = None if new.display is None else new.display.encode()
        mac = action_mac(sealer, approval_hash(hashes))
        seconds = min(new.expires_seconds or policy.expires_seconds, policy.expires_seconds)
        allowed = new.allowed if policy.edit_allowed else new.allowed - {"edit"}
        row = ApprovalRow(
            approval_id=approval_id,
            namespace=root_of(asking.namespace),
            checkpoint_id=asking.checkpoint_id,
            run_id=asking.run_id,
            agent=agent,
            kind=new.kind,
            external_mac=external,
            asked_mac=mac,
            action_mac=mac,
            status="pending",
            allowed=sorted(allowed),
            requested_by=asking.asker.key_id,
            requested_principal=asking.asker.principal,
            created_at=ledger.now,
            expires_at=ledger.now + timedelta(seconds=seconds),
            valid_until=None,
            decided_at=None,
            decisions_needed=policy.decisions_needed,
            requester_may_approve=policy.requester_may_approve,
            edit_allowed=policy.edit_allowed,
            valid_seconds=policy.valid_seconds,
            asserted_count=policy.asserted_count,
            revision=1,
            client_share=sealer.shared,
            has_display=display is not None,
            request_member=keyed(sealer, b"request", content),
            display_member=None if display is None else keyed(sealer, b"display", display),
            decision_member=None,
            mac=b"",
        )
        actions = [
            ActionRow(approval_id, position, action_mac(sealer, digest), "pending", None, None, False, b"")
            for position, digest in enumerate(hashes)
        ]
        place = (asking.thread_id, approval_id)
        await self.held.add(
            row,
            actions,
            seal_part(sealer, *place, "request", content),
            None if display is None else seal_part(sealer.without_share, *place, "display", display),
        )
        await self._tell("approval.created", approval_id)
        return approval_id

    async def _tell(self, event: EventType, approval_id: UUID) -> None:
        row = self.held.approvals[approval_id]
        draft = draft_of(event, self.scope, self.asking.thread_id, row)
        await self.access.emitting.of_approval(self.transaction, self.scope.tenant_id, draft)
        self.changed.append((event, row))

    async def record(self) -> None:
        """Put all of it on the tenant's record, last of all: until the transaction ends nobody else adds to that."""
        asker = self.asking.asker
        for action, row in self.changed:
            is_askers = asker is not None and action in {"approval.created", "approval.superseded"}
            actor = f"api-key:{asker.key_id}" if asker is not None and is_askers else GATEWAY_ACTOR
            said = (action, self.asking.thread_id, row)
            await record(self.access, self.transaction, self.scope, actor, said)
