"""What every verb on a subject's state goes through: its keys, a transaction, and the checks around them.

Owns the rule that a destroyed key refuses in the statement that reads the data, and that damage is counted. It knows
no verb.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from crypto import KeyDestroyed, Sealer
from storage.clock import Clock
from storage.errors import IntegrityFailure, NotFound
from storage.keys import Keys
from storage.postgres.unit_of_work import Observer, UnitOfWork
from storage.scope import Scope

T = TypeVar("T")


class Access:
    """The way to a subject's state."""

    def __init__(self, unit_of_work: UnitOfWork, keys: Keys, clock: Clock, observer: Observer) -> None:
        self.unit_of_work = unit_of_work
        self.clock = clock
        self._keys = keys
        self._observer = observer

    async def writing(self, scope: Scope, work: Callable[[Sealer], Awaitable[T]]) -> T:
        """Run ``work`` with the scope's sealer, creating its keys if it has none; again when it lost a race.

        A cached sealer may not know a key version that another gateway made; then it is read again, once.
        """
        sealer = await self._keys.sealer(scope)
        try:
            return await self._watched(self.unit_of_work.retrying(lambda: work(sealer)))
        except KeyDestroyed:
            self._keys.evict(scope)
        fresh = await self._keys.sealer(scope)
        return await self._watched(self.unit_of_work.retrying(lambda: work(fresh)))

    async def reading(self, scope: Scope, work: Callable[[Sealer], Awaitable[T]], otherwise: NotFound) -> T:
        """Run ``work`` with the scope's sealer; a scope without keys has no data, so ``otherwise`` is raised."""
        if await self._keys.existing_sealer(scope) is None:
            raise otherwise
        return await self.writing(scope, work)

    def check_key(self, scope: Scope, state: str | None) -> None:
        """Refuse a key that was destroyed after it was cached; ``state`` comes with the data.

        Raises:
            KeyDestroyed: the key the sealer would use is not active any more.
        """
        if state != "active":
            self._keys.evict(scope)
            raise KeyDestroyed

    async def _watched(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except IntegrityFailure:
            self._observer.integrity_failure()
            raise
