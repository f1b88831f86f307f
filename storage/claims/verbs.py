"""The verbs on claims: who goes on with a thread.

A claim is one row a thread, its newest; what proves it is the thread's fence, which saves compare in the update that
they make anyway. Whether one is over is decided by the database's clock, under the thread's lock. What becomes of a
worker that died is decided by who comes next: the thread is handed on, later each time that nothing was written in
between, and after some times to nobody any more who does not take it over on purpose.

It promises exclusion of writes to the thread, not of what a worker does elsewhere: that is the ledger's of effects.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.administration.audit import Audit
from storage.administration.jobs import thread_target
from storage.claims.model import (
    BACK_OFF_SECONDS_MAX,
    TAKEOVERS_MAX,
    Claim,
    ClaimRequest,
    ClaimStatus,
    SilentThread,
    check_lease,
    check_note,
)
from storage.control.features import DECISIONS, Features
from storage.errors import (
    ClaimHeld,
    ClaimLost,
    ClaimNotFound,
    ClaimSuperseded,
    IntegrityFailure,
    StorageError,
    ThreadNotFound,
    ThreadStuck,
)
from storage.event_queue.model import OfThread
from storage.format.audit import Detail
from storage.format.thread_ledgers.claim import ClaimColumns, open_note, seal_note
from storage.format.token import ThreadToken
from storage.model import Page
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, TenantListing
from storage.statements.thread_ledgers import claims as sql
from storage.statements.thread_ledgers.claims import ClaimRow
from storage.thread_ledgers.locked import LockedLedger

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Claims:
    """The verbs on claims."""

    def __init__(self, access: Access, features: Features, audit: Audit) -> None:
        self._access = access
        self._features = features
        self._audit = audit

    async def claim(
        self, scope: Scope, request: ClaimRequest, *, actor: str, share: ClientShare | None = None
    ) -> Claim:
        """Claim a thread; again by the same holder and run while it is live: renew it.

        Args:
            scope: The tenant and subject.
            request: Who wants to go on, and how.
            actor: ``api-key:<id>``, for the audit log, which has takeovers on purpose.
            share: The client's share of the thread's keys; needed for a note on a thread under one.

        Raises:
            FeatureOff: A process of an older build may run.
            ThreadNotFound: There is no such thread.
            ClaimHeld: Another one's claim is live, or its worker died and its time to be handed on has not come.
            ClaimSuperseded: The claim of the fence that it names is not the thread's any more.
            ThreadStuck: One holder after the other died.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: The thread was made under another share. None
                is needed where nothing is noted.
            IntegrityFailure: What is said of claims was altered outside the gateway.
        """
        request.check()
        await self._features.require(DECISIONS, "threads are claimed")

        async def attempt(sealer: Sealer) -> Claim | StorageError:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                without_share = request.note is None and not sealer.shared
                ledger = await LockedLedger.lock(transaction, sealer, request.thread_id, without_share=without_share)
                change = _Change(self._access, scope, transaction, ledger, await _own_row(transaction, ledger))
                if request.if_fence is not None and not change.is_under(request.if_fence):
                    return ClaimSuperseded()
                if change.is_live and change.is_of(request):
                    return await change.renewed(request.lease_seconds, request.note, exclusive=request.exclusive)
                refusal = None if request.take_over else change.refusal()
                if isinstance(refusal, ThreadStuck):
                    await change.tell_stuck()
                if refusal is not None:
                    return refusal
                deliberate = request.take_over and change.is_open
                before = change.row
                claim = await change.begun(request)
                if deliberate and before is not None:
                    detail: Detail = {"fence": claim.fence, "holder": claim.holder, "holder_before": before.holder}
                    await self._append(transaction, scope, actor, request.thread_id, "thread.claimed", detail)
                return claim

        answer = await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)
        if isinstance(answer, StorageError):
            raise answer
        return answer

    async def renew(
        self,
        scope: Scope,
        thread_id: str,
        fence: int,
        *,
        lease_seconds: int | None = None,
        note: str | None = None,
        share: ClientShare | None = None,
    ) -> Claim:
        """Renew a claim, also one that is over and that nobody else took; what is not given stays.

        Raises:
            ThreadNotFound: There is no such thread.
            ClaimLost: The claim is another's, or was released.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: As `claim`.
        """
        check_note(note)
        if lease_seconds is not None:
            check_lease(lease_seconds)

        async def attempt(sealer: Sealer) -> Claim:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                without_share = note is None and not sealer.shared
                ledger = await LockedLedger.lock(transaction, sealer, thread_id, without_share=without_share)
                change = _Change(self._access, scope, transaction, ledger, await _own_row(transaction, ledger))
                if change.row is None or change.row.fence != fence or not change.is_open:
                    raise ClaimLost
                return await change.renewed(lease_seconds or change.row.lease_seconds, note)

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)

    async def release(self, scope: Scope, thread_id: str, fence: int) -> Claim:
        """Release a claim, whose fence admits no write from then on; one that is released stays so. No share is needed.

        Raises:
            ThreadNotFound: There is no such thread.
            ClaimLost: The claim is another's.
        """

        async def attempt(sealer: Sealer) -> Claim:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.lock(transaction, sealer, thread_id, without_share=True)
                change = _Change(self._access, scope, transaction, ledger, await _own_row(transaction, ledger))
                if change.row is None or change.row.fence != fence:
                    raise ClaimLost
                return await change.released()

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound())

    async def get(self, scope: Scope, thread_id: str, *, share: ClientShare | None = None) -> Claim:
        """The newest claim of a thread, whatever became of it.

        Raises:
            ThreadNotFound: There is no such thread.
            ClaimNotFound: Nobody ever claimed it.
            IntegrityFailure: What is said of claims was altered outside the gateway.
        """

        async def attempt(sealer: Sealer) -> Claim:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.read(transaction, sealer, thread_id, without_share=not sealer.shared)
                row = await _own_row(transaction, ledger)
                if row is None:
                    raise ClaimNotFound
                return _shown(ledger, row.columns, ledger.thread.claimed_until, _note_of(sealer, row))

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)

    async def set_required(self, scope: Scope, thread_id: str, *, required: bool, actor: str) -> None:
        """Say whether nobody writes to a thread without a claim, once it was claimed; lifting that is audited.

        Raises:
            FeatureOff: A process of an older build may run.
            ThreadNotFound: There is no such thread.
            ClaimNotFound: Nobody ever claimed it.
        """
        await self._features.require(DECISIONS, "threads are claimed")

        async def attempt(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.lock(transaction, sealer, thread_id, without_share=True)
                change = _Change(self._access, scope, transaction, ledger, await _own_row(transaction, ledger))
                if change.row is None:
                    raise ClaimNotFound
                if change.row.required == required:
                    return
                await change.set_required(required=required)
                if not required:
                    detail: Detail = {"fence": change.row.fence, "required": False}
                    await self._append(transaction, scope, actor, thread_id, "thread.claimed", detail)

        await self._access.with_existing_keys(scope, attempt, ThreadNotFound())

    async def silent(
        self,
        scope: TenantListing | Scope,
        *,
        silent_seconds: int = 0,
        agent: str | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
    ) -> Page[SilentThread]:
        """Threads whose claim is over for at least so long and was not released, by subject and thread.

        Clear columns only: nothing is opened, and nothing of it is proved. Whoever claims one is told the truth.
        """
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(
                sql.SILENT,
                takeovers_max=TAKEOVERS_MAX,
                only_subject=scope.subject_id if isinstance(scope, Scope) else None,
                agent=agent,
                silent_seconds=silent_seconds,
                after_subject=after[0] if after else "",
                after_thread=after[1] if after else "",
                limit=limit + 1,
            )
        found = [SilentThread(**msgspec.structs.asdict(row)) for row in rows[:limit]]
        last = found[-1] if len(rows) > limit else None
        return Page(found, None if last is None else (last.subject_id, last.thread_id))

    async def _append(
        self,
        transaction: Transaction,
        scope: Scope,
        actor: str,
        thread_id: str,
        action: str,
        detail: Detail,
    ) -> None:
        target = f"thread:{thread_target(scope, thread_id)}"
        await self._audit.append(transaction, scope.tenant_id, actor, action, target, detail)


async def _own_row(transaction: Transaction, ledger: LockedLedger) -> ClaimRow | None:
    """The claim of a thread, as it was written.

    Raises:
        IntegrityFailure: It was altered, removed or put back outside the gateway.
    """
    row = await transaction.fetch_one(sql.ONE, thread_id=ledger.thread_id)
    ledger.check("claims", [] if row is None else [("claim", row.mac)])
    if row is not None:
        row.columns.check(ledger.sealer, ledger.opened_thread.incarnation, row.mac)
        if row.thread_fence != ledger.thread.fence or row.required != ledger.thread.claims_required:
            raise IntegrityFailure("the fence of this thread was altered outside the gateway")
    elif ledger.thread.claims_required:
        raise IntegrityFailure("the fence of this thread was altered outside the gateway")
    return row


def _note_of(sealer: Sealer, row: ClaimRow) -> str | None:
    """The note of a claim; None, too, if it is under a share that the sealer has not."""
    if row.client_share and not sealer.shared:
        return None
    return open_note(sealer if row.client_share else sealer.without_share, row.columns, row.note)


def _is_stuck(ledger: LockedLedger, row: ClaimColumns) -> bool:
    return row.takeovers >= TAKEOVERS_MAX and row.activity == ledger.thread.activity


def _status(ledger: LockedLedger, row: ClaimColumns, claimed_until: datetime | None) -> ClaimStatus:
    if row.status == "released":
        return "released"
    if claimed_until is not None and claimed_until > ledger.now:
        return "live"
    return "stuck" if _is_stuck(ledger, row) else "expired"


def _shown(ledger: LockedLedger, row: ClaimColumns, claimed_until: datetime | None, note: str | None) -> Claim:
    return Claim(
        thread_id=row.thread_id,
        fence=row.fence,
        holder=row.holder,
        run_id=row.run_id,
        claimed_at=row.claimed_at,
        claimed_until=claimed_until,
        lease_seconds=row.lease_seconds,
        status=_status(ledger, row, claimed_until),
        takeovers=row.takeovers,
        required=row.required,
        note=note,
    )


class _Change:
    """A change of a thread's claim, whose thread is locked."""

    def __init__(
        self, access: Access, scope: Scope, transaction: Transaction, ledger: LockedLedger, row: ClaimRow | None
    ) -> None:
        self._access = access
        self._scope = scope
        self._transaction = transaction
        self._ledger = ledger
        self.row = row

    @property
    def is_open(self) -> bool:
        """Whether there is a claim that nobody released."""
        return self.row is not None and self.row.status != "released"

    @property
    def is_live(self) -> bool:
        """Whether its holder renewed it in time."""
        until = self._ledger.thread.claimed_until
        return self.is_open and until is not None and until > self._ledger.now

    def is_under(self, fence: int) -> bool:
        """Whether there is a claim of that fence that nobody released."""
        return self.row is not None and self.is_open and self.row.fence == fence

    def is_of(self, request: ClaimRequest) -> bool:
        """Whether it is the same worker's, for the same run; who names the claim before is another one."""
        named = request.run_id is not None and request.if_fence is None
        return named and self.row is not None and (self.row.holder, self.row.run_id) == (request.holder, request.run_id)

    def refusal(self) -> StorageError | None:
        """Why the thread is not handed on now; None: it is."""
        if self.row is None or not self.is_open:
            return None
        until = self._ledger.thread.claimed_until or self._ledger.now
        if not self.is_live:
            if _is_stuck(self._ledger, self.row):
                return ThreadStuck()
            n = 0 if self._has_gone_on(self.row) else self.row.takeovers
            until += timedelta(seconds=min(self.row.lease_seconds * 2**n, BACK_OFF_SECONDS_MAX))
        left = (until - self._ledger.now).total_seconds()
        return ClaimHeld(until, left) if left > 0 else None

    def _has_gone_on(self, row: ClaimRow) -> bool:
        """Whether anything was written since the claim."""
        return row.activity != self._ledger.thread.activity

    async def tell_stuck(self) -> None:
        """Tell once that the thread is handed to nobody any more."""
        if self.row is None or self.row.status == "stuck":
            return
        await self._write(msgspec.structs.replace(self.row.columns, status="stuck"), self.row.note)
        await self._ledger.store(self._transaction, self._noted())
        said = OfThread(self._ledger.thread_id, run_id=self.row.run_id)
        await self._access.emitting.of_thread(self._transaction, self._scope, "thread.stuck", said)

    async def begun(self, request: ClaimRequest) -> Claim:
        """Begin another claim, in the place of the one before."""
        ledger = self._ledger
        fence = max(ledger.thread.fence + 1, (ledger.now - _EPOCH) // _MILLISECOND)
        takeovers = 0
        if self.row is not None and self.is_open and not self.is_live and not request.take_over:
            takeovers = 0 if self._has_gone_on(self.row) else self.row.takeovers + 1
        sealed = seal_note(ledger.sealer, request.thread_id, fence, request.note)
        columns = ClaimColumns(
            thread_id=request.thread_id,
            fence=fence,
            holder=request.holder,
            run_id=request.run_id,
            lease_seconds=request.lease_seconds,
            claimed_at=ledger.now,
            takeovers=takeovers,
            activity=ledger.thread.activity,
            status="held",
            required=ledger.thread.claims_required or request.exclusive,
            client_share=sealed.envelope is not None and ledger.sealer.shared,
            note_member=sealed.member,
        )
        if self.row is None:
            self._access.row_quotas.require_room(self._scope)
        await self._write(columns, sealed.envelope)
        ledger.set_fence(fence)
        until = await self._leased(columns)
        await ledger.store(self._transaction, self._noted())
        return _shown(ledger, columns, until, request.note)

    async def renewed(self, lease_seconds: int, note: str | None, *, exclusive: bool = False) -> Claim:
        """Renew it; ``note`` None: the one before stays."""
        assert self.row is not None  # noqa: S101  for the type checker: the caller looked
        ledger, row = self._ledger, self.row
        columns, envelope = row.columns, row.note
        if note is not None:
            sealed = seal_note(ledger.sealer, row.thread_id, row.fence, note)
            envelope = sealed.envelope
            columns = msgspec.structs.replace(columns, client_share=ledger.sealer.shared, note_member=sealed.member)
        columns = msgspec.structs.replace(
            columns, lease_seconds=lease_seconds, status="held", required=row.required or exclusive
        )
        if columns != row.columns:
            await self._write(columns, envelope)
            await ledger.store(self._transaction, self._noted())
        until = await self._leased(columns)
        shown = note if note is not None else _note_of(ledger.sealer, row)
        return _shown(ledger, columns, until, shown)

    async def released(self) -> Claim:
        """Release it, if it is not: the thread's fence rises, and nothing is written under the claim's any more."""
        assert self.row is not None  # noqa: S101  for the type checker: the caller looked
        columns = self.row.columns
        if columns.status != "released":
            columns = msgspec.structs.replace(columns, status="released")
            await self._write(columns, self.row.note)
            self._ledger.set_fence(columns.thread_fence)
            await self._say(columns, None)
            await self._ledger.store(self._transaction, self._noted())
        return _shown(self._ledger, columns, None, None)

    async def set_required(self, *, required: bool) -> None:
        """Say whether the thread takes no write without a claim."""
        assert self.row is not None  # noqa: S101  for the type checker: the caller looked
        columns = msgspec.structs.replace(self.row.columns, required=required)
        await self._write(columns, self.row.note)
        await self._say(columns, self._ledger.thread.claimed_until)
        await self._ledger.store(self._transaction, self._noted())

    async def _leased(self, columns: ClaimColumns) -> datetime:
        """Let it last from now."""
        until = self._ledger.now + timedelta(seconds=columns.lease_seconds)
        await self._say(columns, until)
        return until

    async def _say(self, columns: ClaimColumns, claimed_until: datetime | None) -> None:
        await self._transaction.run(
            sql.SET_THREAD,
            thread_id=columns.thread_id,
            fence=columns.thread_fence,
            claimed_until=claimed_until,
            claim_seconds=columns.lease_seconds,
            claims_required=columns.required,
        )

    async def _write(self, columns: ClaimColumns, note: bytes | None) -> None:
        """Write the row and count it."""
        ledger = self._ledger
        mac = columns.proof(ledger.sealer, ledger.opened_thread.incarnation)
        values = msgspec.structs.asdict(columns)
        if self.row is None:
            await self._transaction.run(sql.ADD, **values, note=note, mac=mac)
            ledger.add("claims", "claim", mac)
            return
        if not await self._transaction.run(sql.SET, **values, note=note, mac=mac, before=self.row.mac):
            raise IntegrityFailure("the claim of this thread was altered outside the gateway")
        ledger.change("claims", "claim", self.row.mac, mac)

    def _noted(self) -> Callable[[ThreadToken], None]:
        return self._access.note_ledger(self._scope, self._ledger.sealer, self._ledger.thread_id)
