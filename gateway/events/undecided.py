"""Who waits for an approval to be decided: each approval is looked at once, however many wait for it.

Whoever waits holds neither a place among requests nor a connection. A decision that comes through this process wakes
them at once; of others, and of what ran out meanwhile, a look tells. The looks of a tenant come one after the other,
not more than so many in a second, so that a tenant that waits for hundreds waits a little longer, and nobody else does.

Owns no answer: whoever was woken, or has waited long enough, reads the approval as itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import structlog

from crypto import CryptoError
from gateway.admission.limits import Drain
from storage.errors import NotFound, StorageError

LOOK_SECONDS: Final = 0.5
LOOKS_PER_SECOND_MAX: Final = 40

_log = structlog.get_logger()

# Whether the approval of an id still waits for a decision; NotFound where there is none any more.
IsPending = Callable[[UUID, UUID], Awaitable[bool]]


class _Waited:
    """An approval that somebody waits for.

    Attributes:
        count: The number of those who wait.
        changed: Set when it is to be read again.
    """

    __slots__ = ("changed", "count")

    def __init__(self) -> None:
        self.count = 0
        self.changed = asyncio.Event()


class Undecided:
    """The approvals that somebody waits for in this process.

    Args:
        is_pending: The way to how one stands, by its tenant's and its own id.
        drain: The process's way out, at which nobody waits on.
    """

    def __init__(self, is_pending: IsPending, drain: Drain) -> None:
        self._is_pending = is_pending
        self._drain = drain
        self._by_tenant: dict[UUID, dict[UUID, _Waited]] = {}
        self._looking: set[asyncio.Task[None]] = set()

    async def wait(self, tenant_id: UUID, approval_id: UUID, seconds: float) -> None:
        """Return when an approval is to be read again: it may be decided, or the time is over."""
        if self._drain.draining:
            return
        waited = self._join(tenant_id, approval_id)
        waited.count += 1
        try:
            async with asyncio.timeout(seconds):
                await waited.changed.wait()
        except TimeoutError:
            return
        finally:
            waited.count -= 1
            if not waited.count:
                self._leave(tenant_id, approval_id, waited)

    def wake(self, tenant_id: UUID, approval_id: UUID) -> None:
        """Let those who wait for an approval read it, which changed by this process."""
        waited = self._by_tenant.get(tenant_id, {}).get(approval_id)
        if waited is not None:
            self._leave(tenant_id, approval_id, waited)
            waited.changed.set()

    def _join(self, tenant_id: UUID, approval_id: UUID) -> _Waited:
        own = self._by_tenant.get(tenant_id)
        if own is None:
            own = self._by_tenant[tenant_id] = {}
            task = asyncio.create_task(self._look(tenant_id, own))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)
        return own.setdefault(approval_id, _Waited())

    def _leave(self, tenant_id: UUID, approval_id: UUID, waited: _Waited) -> None:
        own = self._by_tenant.get(tenant_id, {})
        if own.get(approval_id) is waited:
            del own[approval_id]

    async def _look(self, tenant_id: UUID, own: dict[UUID, _Waited]) -> None:
        try:
            await asyncio.sleep(LOOK_SECONDS)  # whoever came first has just read it
            while own:
                for approval_id in list(own):
                    if approval_id in own and not await self._is_still_pending(tenant_id, approval_id):
                        self.wake(tenant_id, approval_id)
                    await asyncio.sleep(1 / LOOKS_PER_SECOND_MAX)
                await asyncio.sleep(LOOK_SECONDS)
        finally:  # nothing waits between the last look at who waits and this
            if self._by_tenant.get(tenant_id) is own:
                del self._by_tenant[tenant_id]

    async def _is_still_pending(self, tenant_id: UUID, approval_id: UUID) -> bool:
        try:
            return await self._is_pending(tenant_id, approval_id)
        except NotFound:
            return False
        except (StorageError, CryptoError) as reason:  # whoever waits reads it in the end, and is told
            _log.warning("approval not looked at", error=type(reason).__name__)
            return True

    async def run(self) -> None:
        """Let all go when the process drains; until cancelled."""
        try:
            await self._drain.begun()
            for tenant_id, own in list(self._by_tenant.items()):
                for approval_id in list(own):
                    self.wake(tenant_id, approval_id)
            await asyncio.Event().wait()
        finally:
            for task in self._looking:
                task.cancel()
            await asyncio.gather(*self._looking, return_exceptions=True)
