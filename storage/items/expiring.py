"""Removing items whose time is over, with the paths in which nothing is left then.

What is over is never shown, whether or not it was removed; here its rows go, some of a path at a time, under the path's
lock and out of its live set. Nothing is opened for that, so what is under a client's share goes, too. Nothing goes of a
tenant that is held. A path that was edited is left as it is, and hides no other.
"""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Final

import msgspec

from crypto import KeyDenied, KeyDestroyed, Sealer
from storage.access.sealing import Sealing
from storage.errors import IntegrityFailure, LegalHold, NotFound
from storage.format.items.seals import item_mac
from storage.items.paths import lock_paths, store_paths
from storage.items.vector_writes import remove_vectors
from storage.scope import Scope, TenantScope
from storage.statements.items import items as sql
from storage.statements.rules.retention import holds_lock
from storage.threads.holds import refuse_held_items

PAGE_ROWS: Final = 1_000
_FIRST: Final = sql.ExpiredRow(datetime.min.replace(tzinfo=UTC), "", b"", b"")
# Damaged paths that one pass remembers, so that it tries each once; more are tried again.
_DAMAGED_MAX: Final = 10_000


class Expired(msgspec.Struct, frozen=True):
    """What a step of a pass did.

    Attributes:
        items: How many were removed.
        damaged: Paths that were left as they are, because they were edited outside the gateway.
        held: Whether the tenant is held, so that nothing goes; the pass ends with it.
    """

    items: int = 0
    damaged: int = 0
    held: bool = False


class Expiring:
    """Removes what is over."""

    def __init__(self, access: Sealing, page_rows: int = PAGE_ROWS) -> None:
        self._access = access
        self._page_rows = page_rows

    async def run(self, tenant: TenantScope) -> AsyncGenerator[Expired, None]:
        """Remove what is over of a tenant, the first that was over first.

        What each step did is committed when it is given; the caller may stop after any, and begin anew later.

        Raises:
            CryptoError: The root key cannot be asked now.
            Unavailable: The database cannot be reached.
        """
        await self._access.control.ready()
        damaged: set[tuple[str, bytes]] = set()
        after = _FIRST
        while True:
            async with self._access.unit_of_work.snapshot(tenant) as transaction:
                rows = await transaction.fetch_all(
                    sql.EXPIRED,
                    expires_at=after.expires_at,
                    subject_id=after.subject_id,
                    path_id=after.path_id,
                    key_id=after.key_id,
                    page_rows=self._page_rows,
                )
            for place in sorted({(row.subject_id, row.path_id) for row in rows} - damaged):
                scope = Scope(tenant.tenant_id, place[0])
                try:
                    removed = self._page_rows
                    while removed == self._page_rows:
                        removed = await self._path(scope, place[1])
                        yield Expired(items=removed)
                except LegalHold:
                    yield Expired(held=True)
                    return
                except (IntegrityFailure, KeyDestroyed, KeyDenied, NotFound):  # verification names it; a shred goes on
                    if len(damaged) < _DAMAGED_MAX:
                        damaged.add(place)
                    yield Expired(damaged=1)
            if len(rows) < self._page_rows:
                return
            after = rows[-1]

    async def _path(self, scope: Scope, path_id: bytes) -> int:
        """Remove some of what is over in a path; returns how many items."""

        async def attempt(sealer: Sealer) -> int:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                # Paths come before holds, as for whoever writes: two orders could wait for each other.
                locked = await lock_paths(transaction, sealer, [path_id], holds_lock(scope.tenant_id))
                await refuse_held_items(transaction, self._access.control, scope.tenant_id)
                over = await transaction.fetch_all(sql.OVER_IN_PATH, of_path=path_id, page_rows=self._page_rows)
                if not over:
                    return 0
                if not locked:
                    raise IntegrityFailure("a path of items was removed outside the gateway")
                path = locked[path_id]
                for row in over:
                    path.items = path.items.subtract(item_mac(sealer, path_id, row.key_id, row.member))
                await remove_vectors(transaction, sealer, [(path_id, row.key_id) for row in over], locked)
                path.sequence += 1
                await transaction.run_many(sql.DELETE, [{"path_id": path_id, "key_id": row.key_id} for row in over])
                await store_paths(transaction, sealer, [path])
                return len(over)

        return await self._access.run(scope, attempt, NotFound())
