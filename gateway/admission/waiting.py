"""How many may wait for events or decisions at once: they hold neither a place among requests nor a connection.

Owns the two counts. What they wait for, and for how long, is `gateway.events`'s affair.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from gateway.admission.limits import TENANT_WAITERS_MAX, WAITERS_MAX, Refused

RETRY_SECONDS = 5.0  # one that waits lasts at least half a minute


class TooManyWaiters(Refused):
    """The tenant, or the process, has as many who wait as it may."""

    def __init__(self, detail: str) -> None:
        super().__init__("too-many-waiters", detail, RETRY_SECONDS)


class Waiters:
    """Counts who waits in this process.

    Args:
        waiters_max: Waiters of the whole process.
        tenant_waiters_max: Waiters of one tenant.
    """

    def __init__(self, waiters_max: int = WAITERS_MAX, tenant_waiters_max: int = TENANT_WAITERS_MAX) -> None:
        self.waiters_max = waiters_max
        self.tenant_waiters_max = tenant_waiters_max
        self.count = 0
        self._by_tenant: dict[UUID, int] = {}

    @contextmanager
    def enter(self, tenant_id: UUID) -> Iterator[None]:
        """Count one in.

        Raises:
            TooManyWaiters: as many wait as may, of the tenant or of the process.
        """
        own = self._by_tenant.get(tenant_id, 0)
        if own >= self.tenant_waiters_max:
            raise TooManyWaiters(
                f"{self.tenant_waiters_max} of the tenant wait here; wait with fewer, and hand on what they are told"
            )
        if self.count >= self.waiters_max:
            raise TooManyWaiters(f"{self.waiters_max:,} wait in this process; retry, or ask without waiting")
        self.count += 1
        self._by_tenant[tenant_id] = own + 1
        try:
            yield
        finally:
            self.count -= 1
            self._by_tenant[tenant_id] -= 1
            if not self._by_tenant[tenant_id]:
                del self._by_tenant[tenant_id]
