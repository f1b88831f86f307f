"""Removing items whose time is over, with the paths in which nothing is left then.

What is over is never shown, whether or not it was removed; here its rows go, some of a path at a time, under the path's
lock and out of its live set. Nothing is opened for that, so what is under a client's share goes, too. Nothing goes of a
tenant that is held.
"""

from typing import Final

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.sealing import Sealing
from storage.errors import IntegrityFailure, LegalHold, NotFound
from storage.format.items.seals import item_mac
from storage.items.paths import lock_paths, store_paths
from storage.scope import Scope, TenantScope
from storage.statements.items import items as sql
from storage.statements.rules.retention import holds_lock
from storage.threads.holds import refuse_held_items

PAGE_ROWS: Final = 1_000


class Expired(msgspec.Struct, frozen=True):
    """What one pass over a tenant did.

    Attributes:
        items: How many were removed.
        damaged: Paths that were left as they are, because they were edited outside the gateway.
        held: Whether the tenant is held, so that nothing goes.
        ended: Whether nothing is left that could go.
    """

    items: int = 0
    damaged: int = 0
    held: bool = False
    ended: bool = True


class Expiring:
    """Removes what is over."""

    def __init__(self, access: Sealing) -> None:
        self._access = access

    async def run(self, tenant: TenantScope) -> Expired:
        """Remove some of what is over of a tenant.

        Raises:
            CryptoError: The root key cannot be asked now.
            Unavailable: The database cannot be reached.
        """
        async with self._access.unit_of_work.snapshot(tenant) as transaction:
            rows = await transaction.fetch_all(sql.EXPIRED, page_rows=PAGE_ROWS)
        items = damaged = 0
        await self._access.control.ready()
        for row in rows:
            scope = Scope(tenant.tenant_id, row.subject_id)
            try:
                items += await self._path(scope, row.path_id)
            except LegalHold:
                return Expired(items, damaged, held=True)
            except (IntegrityFailure, KeyDestroyed, NotFound):  # named by verification; a shred removes the rows
                damaged += 1
        return Expired(items, damaged, ended=len(rows) == damaged)

    async def _path(self, scope: Scope, path_id: bytes) -> int:
        """Remove some of what is over in a path; returns how many items."""

        async def attempt(sealer: Sealer) -> int:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                locked = await lock_paths(transaction, sealer, [path_id], holds_lock(scope.tenant_id))
                await refuse_held_items(transaction, self._access.control, scope.tenant_id)
                over = await transaction.fetch_all(sql.OVER_IN_PATH, of_path=path_id, page_rows=PAGE_ROWS)
                if not over:
                    return 0
                if not locked:
                    raise IntegrityFailure("a path of items was removed outside the gateway")
                path = locked[path_id]
                for row in over:
                    path.items = path.items.subtract(item_mac(sealer, path_id, row.key_id, row.member))
                path.sequence += 1
                await transaction.run_many(sql.DELETE, [{"path_id": path_id, "key_id": row.key_id} for row in over])
                await store_paths(transaction, sealer, [path])
                return len(over)

        return await self._access.run(scope, attempt, NotFound())
