"""Expiring: what nobody decided in time is stored as that, with an event and a record.

Reads show it from the moment on at which it is over; this only makes it known. A round does a tenant's threads one by
one under their locks and compares with the database's clock then, so that two rounds at once, or a decision in the last
moment, do no harm.
"""

from uuid import UUID

from crypto import CryptoError, Sealer
from storage.access.access import Access
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.approvals.events import draft_of
from storage.approvals.rows import ThreadApprovals
from storage.errors import ApprovalNotFound, NotFound, StorageError
from storage.scope import Scope, TenantListing
from storage.statements.thread_ledgers import approvals as sql
from storage.thread_ledgers.locked import LockedLedger

THREADS_MAX = 200


class Expiring:
    """Stores what is over."""

    def __init__(self, access: Access, audit: Audit) -> None:
        self._access = access
        self._audit = audit

    async def tenant(self, tenant_id: UUID) -> int:
        """Store what is over of a tenant, of so many threads at once; returns how many approvals.

        A thread that is damaged, or cannot be opened now, is passed over.
        """
        await self._access.emitting.ready(tenant_id)
        async with self._access.unit_of_work.snapshot(TenantListing(tenant_id)) as transaction:
            places = await transaction.fetch_all(sql.OVER, limit=THREADS_MAX)
        done = 0
        for place in places:
            try:
                done += await self._thread(Scope(tenant_id, place.subject_id), place.thread_id)
            except (StorageError, CryptoError):
                continue
        return done

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
                    target, detail = f"approval:{each.approval_id}", {"thread": thread_id, "mac": each.action_mac.hex()}
                    await self._audit.append(
                        transaction, scope.tenant_id, GATEWAY_ACTOR, "approval.expired", target, detail
                    )
                for each in over:
                    draft = draft_of("approval.expired", scope, thread_id, held.approvals[each.approval_id])
                    await self._access.emitting.of_approval(transaction, scope.tenant_id, draft)
                return len(over)

        return await self._access.with_existing_keys(scope, attempt, ApprovalNotFound())
