"""Expiring: what nobody decided in time is stored as that, with an event and a record.

Reads show it from the moment on at which it is over; this only makes it known, soon. When the next one of a tenant is
over is noted by whoever asks (`storage.approvals.asking`), so that a look costs nothing where nothing is; a round of
retention finds what that missed. Threads are done one by one under their locks, and compared with the database's clock
then, so that two at once, or a decision in the last moment, do no harm.
"""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from crypto import CryptoError, Sealer
from storage.access.access import Access
from storage.administration.audit import GATEWAY_ACTOR
from storage.approvals.rows import ThreadApprovals
from storage.approvals.telling import draft_of, record
from storage.errors import ApprovalNotFound, NotFound, StorageError
from storage.scope import OperatorScope, Scope, TenantListing, TenantScope
from storage.statements.rules import retention as rounds_sql
from storage.statements.thread_ledgers import approvals as sql
from storage.statements.thread_ledgers.approvals import OverRow
from storage.thread_ledgers.locked import LockedLedger

# What is over is stored within about so long.
LOOK_SECONDS: Final = 15.0
TENANTS_MAX: Final = 100
# Approvals of a page; and pages of a tenant before the others' turn.
PAGE_ROWS: Final = 200
PAGES_MAX: Final = 10
# The tenant of a process that died is another one's after so long.
_LEASE_SECONDS: Final = 120.0
# Of a tenant with more to do the next look comes at once.
_AT_ONCE: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Expiring:
    """Stores what is over."""

    def __init__(self, access: Access, *, page_rows: int = PAGE_ROWS, pages_max: int = PAGES_MAX) -> None:
        self._access = access
        self._page_rows = page_rows
        self._pages_max = pages_max
        # Where a look ended that did not come to the end of a tenant.
        self._after: dict[UUID, OverRow] = {}

    async def run_once(self) -> int:
        """Store what is over of all tenants of which something is; returns how many approvals."""
        async with self._access.unit_of_work.snapshot(OperatorScope()) as transaction:
            tenants = await transaction.fetch_all(rounds_sql.APPROVALS_OVER, limit=TENANTS_MAX)
        done = 0
        for tenant_id in tenants:
            async with self._access.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
                taken = await transaction.fetch_one(rounds_sql.TAKE_APPROVALS, lease_seconds=_LEASE_SECONDS)
            if taken:
                done += await self.tenant(tenant_id)
        return done

    async def tenant(self, tenant_id: UUID) -> int:
        """Store what is over of a tenant, the longest first and so many at once; returns how many approvals.

        A thread that is damaged, or cannot be opened now, is passed over, and comes again with a round of retention.
        """
        await self._access.emitting.ready(tenant_id)
        done, seen = 0, set[tuple[str, str]]()
        after: OverRow | None = self._after.pop(tenant_id, None)
        for _ in range(self._pages_max):
            page = await self._page(tenant_id, after)
            for row in page:
                place = (row.subject_id, row.thread_id)
                if place in seen:
                    continue
                seen.add(place)
                try:
                    done += await self._thread(Scope(tenant_id, row.subject_id), row.thread_id)
                except (StorageError, CryptoError):
                    continue
            after = page[-1] if len(page) == self._page_rows else None
            if after is None:
                break
        if after is not None:
            self._after[tenant_id] = after
        async with self._access.unit_of_work.snapshot(TenantListing(tenant_id)) as transaction:
            due_at = await transaction.fetch_one(sql.NEXT_OVER)
        async with self._access.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            await transaction.run(rounds_sql.SET_APPROVALS_DUE, due_at=due_at if after is None else _AT_ONCE)
        return done

    async def _page(self, tenant_id: UUID, after: OverRow | None) -> list[OverRow]:
        async with self._access.unit_of_work.snapshot(TenantListing(tenant_id)) as transaction:
            return await transaction.fetch_all(
                sql.OVER,
                after_at=None if after is None else after.expires_at,
                after_id=None if after is None else after.approval_id,
                limit=self._page_rows,
            )

    async def _thread(self, scope: Scope, thread_id: str) -> int:
        async def attempt(sealer: Sealer) -> int:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                try:
                    ledger = await LockedLedger.lock(transaction, sealer, thread_id, without_share=True)
                except NotFound:
                    return 0
                held = await ThreadApprovals.read(transaction, ledger)
                over = [
                    each
                    for each in held.approvals.values()
                    if each.status == "pending" and each.expires_at <= ledger.now
                ]
                if not over:
                    return 0
                for each in over:
                    await held.change(each, status="expired")
                await held.store_open_count()
                await ledger.store(transaction, self._access.note_ledger(scope, sealer, thread_id))
                for each in over:
                    draft = draft_of("approval.expired", scope, thread_id, held.approvals[each.approval_id])
                    await self._access.emitting.of_approval(transaction, scope.tenant_id, draft)
                for each in over:
                    said = ("approval.expired", thread_id, each)
                    await record(self._access, transaction, scope, GATEWAY_ACTOR, said)
                return len(over)

        return await self._access.with_existing_keys(scope, attempt, ApprovalNotFound())
