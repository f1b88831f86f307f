"""What every verb on a subject's state goes through: its keys, a transaction, and the checks around them.

Owns the rule that a destroyed key refuses in the statement that reads the data, and that damage is counted. It knows
no verb.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from crypto import KeyDenied, KeyDestroyed, Sealer
from storage.blob_ledger import BlobLedger
from storage.clock import Clock
from storage.errors import IntegrityFailure, NotFound
from storage.head_anchors import HeadAnchors
from storage.keys import Keys
from storage.offload import Offload
from storage.postgres.checkpoints import KEY_STATE
from storage.postgres.unit_of_work import Observer, Transaction, UnitOfWork
from storage.scope import ClientShare, Scope

T = TypeVar("T")

# Rotations that may come one after another while a request is under way.
_SEALERS_MAX = 4


class Access:
    """The way to a subject's state."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        keys: Keys,
        clock: Clock,
        observer: Observer,
        head_anchors: HeadAnchors | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.unit_of_work = unit_of_work
        self.clock = clock
        self.offload = offload or Offload(unit_of_work, BlobLedger(unit_of_work), None, None, clock)
        self.head_anchors = head_anchors or HeadAnchors(None)
        self._keys = keys
        self._observer = observer

    async def writing(
        self, scope: Scope, work: Callable[[Sealer], Awaitable[T]], share: ClientShare | None = None
    ) -> T:
        """Run ``work`` with the scope's sealer, creating its keys if it has none; again when it lost a race.

        A cached sealer may not know a key version that a rotation made; then it is read again. With a ``share``,
        ``work`` gets a sealer that is mixed with it, which nobody keeps.

        Raises:
            KeyDestroyed: the subject or tenant was shredded.
            IntegrityFailure: something is sealed under a key version that was destroyed because nothing needed it:
                it was put back from outside.
        """
        for _ in range(_SEALERS_MAX):
            sealer = await self._keys.sealer(scope)
            if share is not None:
                sealer = sealer.with_share(share.material)
            try:
                return await self._watched(self.unit_of_work.retrying(functools.partial(work, sealer)))
            except KeyDestroyed:
                self._keys.evict(scope)
        self._observer.integrity_failure()
        raise IntegrityFailure("stored state is sealed under a key version that no longer exists")

    async def reading(
        self,
        scope: Scope,
        work: Callable[[Sealer], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure,
        share: ClientShare | None = None,
    ) -> T:
        """Run ``work`` with the scope's sealer; a scope without keys has no data, so ``otherwise`` is raised."""
        if await self._keys.existing_sealer(scope) is None:
            if isinstance(otherwise, IntegrityFailure):
                self._observer.integrity_failure()
            raise otherwise
        return await self.writing(scope, work, share)

    def found_damage(self) -> None:
        """Count damage that is reported instead of raised."""
        self._observer.integrity_failure()

    async def sealer_if_any(self, scope: Scope) -> Sealer | None:
        """The scope's sealer, or None when its keys were never made, are destroyed or refused: for removal.

        Raises:
            KeyUnavailable: the root key cannot be reached now and nothing is cached.
        """
        try:
            return await self._keys.existing_sealer(scope)
        except (KeyDestroyed, KeyDenied, IntegrityFailure):
            return None

    def check_key(self, scope: Scope, state: str | None) -> None:
        """Refuse a key that was destroyed after it was cached; ``state`` comes with the data.

        Raises:
            KeyDestroyed: the key the sealer would use is not active any more.
        """
        if state != "active":
            self._keys.evict(scope)
            raise KeyDestroyed

    async def check_key_in(self, transaction: Transaction, scope: Scope, sealer: Sealer) -> None:
        """As `check_key`, for verbs whose own statements do not bring the key's state along.

        Raises:
            KeyDestroyed: the key the sealer would use is not active any more.
        """
        state = await transaction.fetchval(KEY_STATE, scope.tenant_id, scope.subject_id, sealer.active_key_version)
        self.check_key(scope, state)

    async def _watched(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except IntegrityFailure:
            self._observer.integrity_failure()
            raise
