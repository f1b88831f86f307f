"""The audit log: who did what, as a hash chain for each tenant and one for the operators.

`append` writes in the caller's transaction: what it records happens if and only if the record is kept, and an audit
log that cannot be written stops the operation (fail-closed). It is for key operations, shreds, exports, policies,
credentials, tenants. `note` is for ordinary access: it never waits, is counted together for about a second and written
in batches; what a crash or a full buffer takes away is at most that second, and drops are recorded.

Events carry identifiers and numbers, never state, keys or secrets. The chain proves order and completeness only
together with an anchor kept elsewhere (`storage.administration.anchors`); a writer to the database can always destroy.
"""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from storage.clock import Clock
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, LostRaceError, TenantNotFound
from storage.format.audit import (
    OPERATOR_CHAIN,
    RESTORED_ACTION,
    AuditInvalid,
    ChainVerifier,
    Detail,
    Entry,
    Event,
    Gap,
    decode_body,
    encode_body,
    link,
    origin_of,
    start_of,
)
from storage.model import Page
from storage.postgres.unit_of_work import Observer, Transaction, UnitOfWork
from storage.scope import OperatorScope, TenantScope
from storage.statements.deployment import audit as sql
from storage.statements.deployment.tenants import ONE_TENANT

FLUSH_SECONDS = 1.0  # what a crash may lose of notes
NOTES_MAX = 10_000  # different accesses waiting, a few megabytes; equal ones are counted together
ACCESSES_PER_EVENT = 100

BREAK_GLASS_ACTION = "state.decrypt-any"
LOCAL_ACTOR = "local"  # an operator with the settings of the server: its command line
GATEWAY_ACTOR = "gateway"  # the gateway itself


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An event as it is stored, and what its body says (None where it cannot be read)."""

    entry: Entry
    event: Event | None


@dataclass(frozen=True, slots=True)
class Opening:
    """What an operator wants to read, and why."""

    tenant_id: UUID
    subject_id: str
    thread_id: str
    namespace: str
    checkpoint_id: str | None  # None: the head of that moment
    reason: str


class BreakGlass:
    """The receipt of an operator's break-glass reading, which both chains hold. Only `Audit.break_glass` makes one."""

    __slots__ = ("actor", "opening", "sequence")

    def __init__(self, actor: str, opening: Opening, sequence: int, *, committed: object) -> None:
        if committed is not _COMMITTED:
            raise TypeError("only Audit.break_glass makes a BreakGlass, after its event was committed")
        self.actor = actor
        self.opening = opening
        self.sequence = sequence


_COMMITTED = object()


@dataclass(slots=True)
class _Notes:
    """Accesses of one tenant that wait to be written: (actor, action, target, status) to how many."""

    since: datetime
    counts: dict[tuple[str, str, str, int], int] = field(default_factory=dict)
    dropped: int = 0


def chain_scope(tenant_id: UUID) -> TenantScope | OperatorScope:
    """The scope that reaches a chain."""
    return OperatorScope() if tenant_id == OPERATOR_CHAIN else TenantScope(tenant_id)


def chain_of(scope: TenantScope | OperatorScope) -> UUID:
    """The chain that a scope's events belong to."""
    return scope.tenant_id if isinstance(scope, TenantScope) else OPERATOR_CHAIN


class Audit:
    """Writes and reads the audit log."""

    def __init__(self, unit_of_work: UnitOfWork, deployment_id: UUID, clock: Clock, observer: Observer) -> None:
        self._unit_of_work = unit_of_work
        self._deployment_id = deployment_id
        self._clock = clock
        self._observer = observer
        self._notes: dict[UUID, _Notes] = {}
        self._waiting = 0
        self._touched: set[UUID] = set()

    def origin(self, scope: TenantScope | OperatorScope) -> str:
        """The name of the scope's chain."""
        return origin_of(self._deployment_id, chain_of(scope))

    async def append(
        self,
        transaction: Transaction,
        tenant_id: UUID,
        actor: str,
        action: str,
        target: str,
        detail: Detail | None = None,
    ) -> Entry:
        """Add an event in the caller's transaction, which must not commit if this raises.

        Until the transaction ends, no other transaction adds to this tenant's chain: call it last, and where a
        transaction writes to a tenant's and to the operators' chain, to the tenant's first.

        Args:
            transaction: Bound to this tenant; to an operator for `OPERATOR_CHAIN`.
            tenant_id: Whose chain; `OPERATOR_CHAIN` for what operators do.
            actor: ``api-key:<id>``, `LOCAL_ACTOR` or `GATEWAY_ACTOR`.
            action: What was done, such as ``api-key.create``.
            target: What it was done to, such as ``api-key:<id>``.
            detail: More of it: texts, whole numbers, booleans, and lists and objects of them. No secret.

        Raises:
            AuditInvalid: The detail holds something else, or too much.
            StorageError: The log cannot be written.
        """
        sequence, previous = await self._lock_head(transaction, tenant_id)
        return await self._add(transaction, tenant_id, sequence + 1, previous, (actor, action, target), detail or {})

    async def append_restored(self, transaction: Transaction, tenant_id: UUID, actor: str, gap: Gap) -> Entry:
        """Add the event that documents what a restored backup took from the log; see `Anchors.accept_restored`.

        It alone leaves numbers out: those of the lost events stay theirs.

        Raises:
            LostRaceError: The log goes on behind what the gap was computed from.
            StorageError: The log cannot be written.
        """
        if await self._lock_head(transaction, tenant_id) != (gap.found, gap.found_hash):
            raise LostRaceError
        what = (actor, RESTORED_ACTION, "audit")
        return await self._add(transaction, tenant_id, gap.sequence, gap.found_hash, what, gap.detail)

    async def _lock_head(self, transaction: Transaction, tenant_id: UUID) -> tuple[int, bytes]:
        head = await transaction.fetch_one(sql.LOCK_HEAD, chain=tenant_id)
        if head is None:
            await transaction.run(sql.ADD_HEAD, chain=tenant_id, hash=start_of(self._deployment_id, tenant_id))
            head = await transaction.fetch_only(sql.LOCK_HEAD, chain=tenant_id)
        return head.sequence, head.hash

    async def _add(
        self,
        transaction: Transaction,
        tenant_id: UUID,
        sequence: int,
        previous: bytes,
        what: tuple[str, str, str],
        detail: Detail,
    ) -> Entry:
        actor, action, target = what
        event = Event(
            tenant_id=tenant_id,
            sequence=sequence,
            at=self._clock.now(),
            actor=actor,
            action=action,
            target=target,
            detail=detail,
        )
        body = encode_body(event)
        entry = Entry(event.sequence, body, previous, link(previous, event.sequence, body))
        await transaction.run(
            sql.ADD_EVENT,
            chain=tenant_id,
            sequence=entry.sequence,
            at=event.at,
            actor=actor,
            action=action,
            target=target,
            body=body,
            previous=previous,
            hash=entry.hash,
        )
        await transaction.run(sql.MOVE_HEAD, chain=tenant_id, sequence=entry.sequence, hash=entry.hash)
        self._touched.add(tenant_id)
        return entry

    async def break_glass(self, actor: str, opening: Opening) -> BreakGlass:
        """Record that an operator is about to read a subject's state: in the tenant's chain and the operators'.

        When this returns, the record is durable; nothing has been opened yet. An attempt that then finds nothing, or
        is refused, stays recorded.

        Raises:
            TenantNotFound: There is no such tenant.
            StorageError: The log cannot be written, or perhaps was not: nothing may be opened.
        """
        target = f"subject:{opening.subject_id}"
        detail: Detail = {
            "thread_id": opening.thread_id,
            "namespace": opening.namespace,
            "checkpoint_id": opening.checkpoint_id,
            "reason": opening.reason,
        }
        tenant_id = opening.tenant_id
        async with self._unit_of_work.begin(OperatorScope(founding=tenant_id)) as transaction:
            if await transaction.fetch_one(ONE_TENANT, wanted=tenant_id) is None:
                raise TenantNotFound
            entry = await self.append(transaction, tenant_id, actor, BREAK_GLASS_ACTION, target, detail)
            everywhere: Detail = {**detail, "tenant_id": str(tenant_id)}
            await self.append(transaction, OPERATOR_CHAIN, actor, BREAK_GLASS_ACTION, target, everywhere)
        return BreakGlass(actor, opening, entry.sequence, committed=_COMMITTED)

    def note(self, tenant_id: UUID, actor: str, action: str, target: str, status: int) -> None:
        """Remember an access for the next `flush`. Never waits and never fails."""
        notes = self._notes.get(tenant_id)
        if notes is None:
            notes = self._notes[tenant_id] = _Notes(self._clock.now())
        what = (actor, action, target, status)
        known = notes.counts.get(what)
        if known is not None:
            notes.counts[what] = known + 1
        elif self._waiting < NOTES_MAX:
            notes.counts[what] = 1
            self._waiting += 1
        else:
            notes.dropped += 1
            self._observer.audit_note_dropped()

    async def flush(self) -> None:
        """Write what was noted, a transaction for each tenant; what could not be written is kept.

        Raises:
            Exception: The first failure, after every tenant was tried.
        """
        failure: Exception | None = None
        for tenant_id in list(self._notes):
            notes = self._notes.pop(tenant_id)
            self._waiting -= len(notes.counts)
            try:
                await self._write(tenant_id, notes)
            except Exception as reason:  # noqa: BLE001  whatever it is, the notes must not be lost for it
                failure = failure or reason
                self._keep(tenant_id, notes)
            except BaseException:
                self._keep(tenant_id, notes)
                raise
        if failure is not None:
            raise failure

    async def _write(self, tenant_id: UUID, notes: _Notes) -> None:
        accesses = [
            {"actor": actor, "action": action, "target": target, "status": status, "count": count}
            for (actor, action, target, status), count in notes.counts.items()
        ]
        period = {"since": notes.since.isoformat(), "until": self._clock.now().isoformat()}
        async with self._unit_of_work.begin(chain_scope(tenant_id)) as transaction:
            for start in range(0, len(accesses), ACCESSES_PER_EVENT):
                detail = {**period, "accesses": accesses[start : start + ACCESSES_PER_EVENT]}
                await self.append(transaction, tenant_id, GATEWAY_ACTOR, "access", "batch", detail)
            if notes.dropped:
                dropped = {**period, "count": notes.dropped}
                await self.append(transaction, tenant_id, GATEWAY_ACTOR, "access.dropped", "batch", dropped)

    def _keep(self, tenant_id: UUID, notes: _Notes) -> None:
        newer = self._notes.get(tenant_id)
        if newer is not None:
            self._waiting -= len(newer.counts)
            notes.dropped += newer.dropped
            for what, count in newer.counts.items():
                notes.counts[what] = notes.counts.get(what, 0) + count
        self._notes[tenant_id] = notes
        self._waiting += len(notes.counts)

    def take_touched(self) -> set[UUID]:
        """The chains this process added to since it was last asked: they want an anchor, whatever the database says."""
        touched, self._touched = self._touched, set()
        return touched

    def touch(self, tenant_ids: set[UUID]) -> None:
        """Give back what could not be anchored."""
        self._touched |= tenant_ids

    async def page(
        self, scope: TenantScope | OperatorScope, actor: str, after: int = 0, limit: int = 100, *, verify: bool = True
    ) -> Page[AuditRecord]:
        """Events from the oldest on. Reading the beginning is itself an event, written before the answer.

        ``verify``: what does not verify is refused. Without it, the rows are given as they are, as evidence.

        Raises:
            IntegrityFailure: The log was edited, cut or reordered; the message says where.
        """
        chain = chain_of(scope)
        if after == 0:
            async with self._unit_of_work.begin(scope) as transaction:
                await self.append(transaction, chain, actor, "audit.read", "audit", {"verified": verify})
                head, rows = await self._read(transaction, chain, after, limit)
        else:
            async with self._unit_of_work.snapshot(scope) as transaction:
                head, rows = await self._read(transaction, chain, after, limit)
        if verify:
            records = await self._verify(chain, after, limit, head, rows)
        else:
            records = []
            pauses = Pauses()
            for row in rows:
                if row.sequence > after:
                    records.append(_record(row))
                    await pauses.after(len(row.body))
        more = len(records) == limit
        return Page(records, (str(records[-1].entry.sequence),) if more else None)

    async def _read(
        self, transaction: Transaction, chain: UUID, after: int, limit: int
    ) -> tuple[sql.HeadRow | None, list[sql.EventRow]]:
        head = await transaction.fetch_one(sql.HEAD, chain=chain)
        # One before, whose hash the first one follows.
        rows = await transaction.fetch_all(
            sql.EVENTS, chain=chain, after=max(after - 1, 0), page_rows=limit + (after > 0)
        )
        return head, rows

    async def _verify(
        self, chain: UUID, after: int, limit: int, head: sql.HeadRow | None, rows: list[sql.EventRow]
    ) -> list[AuditRecord]:
        follower = ChainVerifier(self._deployment_id, chain)
        fresh = rows
        if after:
            if not rows or rows[0].sequence != after:
                raise self.damage(f"event {after} of the audit log is missing")
            follower = ChainVerifier(self._deployment_id, chain, sequence=after, previous=rows[0].hash)
            fresh = rows[1:]
        records = await self.follow(follower, fresh)
        complete = len(fresh) < limit
        if complete and (head is None or (follower.sequence, follower.hash) != (head.sequence, head.hash)):
            raise self.damage(f"the audit log ends at event {follower.sequence}, but its head says otherwise")
        return records

    async def follow(self, follower: ChainVerifier, rows: list[sql.EventRow]) -> list[AuditRecord]:
        """Let a verifier follow stored rows, whose clear columns must say what their bodies say; returns them opened.

        Raises:
            IntegrityFailure: Something does not fit.
        """
        records = []
        pauses = Pauses()
        for row in rows:
            await pauses.after(len(row.body))
            record = _record(row)
            follower.follow(record.entry)
            if follower.findings:
                raise self.damage(f"the audit log does not verify: {follower.findings[0].message}")
            shown = record.event
            columns = (row.at, row.actor, row.action, row.target)
            if shown is None or columns != (shown.at, shown.actor, shown.action, shown.target):
                raise self.damage(f"a column of event {row.sequence} of the audit log was edited")
            records.append(record)
        return records

    def damage(self, message: str) -> IntegrityFailure:
        """The error for a log that does not verify, counted."""
        self._observer.integrity_failure()
        return IntegrityFailure(message)


def _record(row: sql.EventRow) -> AuditRecord:
    entry = Entry(row.sequence, row.body, row.previous, row.hash)
    try:
        return AuditRecord(entry, decode_body(entry.body))
    except AuditInvalid:
        return AuditRecord(entry, None)
