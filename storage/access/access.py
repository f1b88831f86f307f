"""What every verb on a subject's state goes through: its keys, a transaction, and the checks around them.

Owns the rule that keys which are not the stored ones any more refuse in the statement that reads the data, and that
damage is counted. It knows no verb.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from crypto import KeyDenied, KeyDestroyed, Sealer
from storage.access.archive_views import ArchiveViews, Snapshot
from storage.access.archived import ThreadElsewhere
from storage.access.head_anchors import HeadAnchors
from storage.access.offload import Offload
from storage.access.row_quotas import RowQuotas
from storage.access.standings import Standings
from storage.clock import Clock
from storage.control.rows import ControlRows
from storage.errors import IntegrityFailure, NotFound, RowQuotaExceeded, ThreadArchived
from storage.format.token import ThreadToken
from storage.keys.keys import Keys
from storage.ledger.ledger import BlobLedger
from storage.postgres.keys import HASH_NOW
from storage.postgres.unit_of_work import Observer, Transaction, UnitOfWork
from storage.scope import ClientShare, Scope

T = TypeVar("T")
Restorer = Callable[[Scope, str], Awaitable[None]]
ThawProgress = Callable[[Scope, str], Awaitable[float | None]]

# Changes of the scope's and the tenant's keys that may come one after another while a request is under way: a rotation
# of both is some six of them.
_SEALERS_MAX = 12
# Threads that one request may bring back, or how often one that is archived again at once.
_RESTORES_MAX = 3


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
        views: ArchiveViews | None = None,
        *,
        control: ControlRows,
        row_quotas: RowQuotas | None = None,
    ) -> None:
        self.unit_of_work = unit_of_work
        # Says whether a tenant may store more rows: asked by whatever stores some, before it does.
        self.row_quotas = row_quotas or RowQuotas(unit_of_work)
        # Says which rows that steer the gateway one wrote.
        self.control = control
        self.clock = clock
        self._views = views
        # Brings a thread back from the archive; set once, by whoever puts storage together.
        self.restorer: Restorer | None = None
        # Knows how far a thaw is; likewise.
        self.thaw_progress: ThawProgress | None = None
        self.offload = offload or Offload(unit_of_work, BlobLedger(unit_of_work), None, None, clock)
        self.head_anchors = head_anchors or HeadAnchors(None)
        self.standings = Standings()
        self._keys = keys
        self._observer = observer

    async def writing(
        self, scope: Scope, work: Callable[[Sealer], Awaitable[T]], share: ClientShare | None = None
    ) -> T:
        """Run ``work`` with the scope's sealer, creating its keys if it has none; again when it lost a race.

        A cached sealer may not know what a rotation made of the keys; then they are read again. With a ``share``,
        ``work`` gets a sealer that is mixed with it, which nobody keeps.

        This is the one place where writing to an archived thread restores it: ``work`` raises `ThreadArchived` with the
        thread, which is brought back if its object can be read, and ``work`` runs again.

        Raises:
            KeyDestroyed: the subject or tenant was shredded.
            RowQuotaExceeded: the scope has no keys, and its tenant may store no more rows.
            ThreadArchived: its object has to be thawed first, or it was archived again each time; nothing changed.
            IntegrityFailure: something is sealed under a key version that was destroyed because nothing needed it:
                it was put back from outside.
        """
        for _ in range(_RESTORES_MAX):
            try:
                return await self._with_sealer(scope, work, share)
            except ThreadArchived as archived:
                if self.restorer is None or archived.thread_id is None or archived.state != "archived":
                    await self._tell_progress(scope, archived)
                    raise
                try:
                    await self.restorer(scope, archived.thread_id)
                except ThreadArchived as frozen:
                    await self._tell_progress(scope, frozen)
                    raise
        return await self._with_sealer(scope, work, share)

    async def _tell_progress(self, scope: Scope, archived: ThreadArchived) -> None:
        """Complete a refusal by how far the thaw is, which only the restore that waits for it knows."""
        if self.thaw_progress is not None and archived.thread_id is not None and archived.state == "thawing":
            archived.progress = await self.thaw_progress(scope, archived.thread_id)

    async def moving(
        self, scope: Scope, work: Callable[[Sealer], Awaitable[T]], otherwise: NotFound | IntegrityFailure
    ) -> T:
        """As `reading`, for what moves threads between the tiers itself: nothing is restored for it."""
        await self._check_keyed(scope, otherwise)
        return await self._with_sealer(scope, work, None)

    async def _with_sealer(self, scope: Scope, work: Callable[[Sealer], Awaitable[T]], share: ClientShare | None) -> T:
        if not self.row_quotas.has_room(scope) and await self._keys.existing_sealer(scope) is None:
            raise RowQuotaExceeded  # a new subject's keys are rows, too
        for _ in range(_SEALERS_MAX):
            sealer = await self._keys.sealer(scope)
            if share is not None:
                sealer = sealer.with_share(share.material)
            try:
                return await self.unit_of_work.retrying(functools.partial(work, sealer))
            except IntegrityFailure:
                self._observer.integrity_failure()
                raise
            except KeyDestroyed:
                self._keys.evict(scope)
                self.standings.forget(scope)
        self._observer.integrity_failure()
        raise IntegrityFailure("stored state is sealed under a key version that no longer exists")

    async def reading(
        self,
        scope: Scope,
        work: Callable[[Sealer], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure,
        share: ClientShare | None = None,
    ) -> T:
        """Run ``work`` with the scope's sealer; a scope without keys has no data, so ``otherwise`` is raised.

        Raises:
            IntegrityFailure: it has data.
        """
        await self._check_keyed(scope, otherwise)
        return await self.writing(scope, work, share)

    async def reading_thread(
        self,
        scope: Scope,
        thread_id: str | None,
        work: Callable[[Sealer, Snapshot], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure,
        share: ClientShare | None = None,
        *,
        at_once: Callable[[Sealer], Awaitable[T | None]] | None = None,
    ) -> T:
        """As `reading`, for what only reads one thread: wherever its rows are, and nothing is restored or thawed.

        Args:
            scope: Whose thread.
            thread_id: The thread; None: no single one, and archives are not looked into.
            work: Opens its snapshots by what it is given, and checks the tier in them
                (`storage.access.archived.check_tier`) before it relies on the thread's rows. It runs again, on the
                archive, if they are there.
            otherwise: What to raise if the scope has no keys.
            share: The client's share of the thread's keys.
            at_once: Tried before ``work`` in the database itself, without a snapshot; raises `ThreadElsewhere` if the
                rows are not there, and returns None if only ``work`` can tell.

        Raises:
            ThreadArchived: The thread is in the archive tier, and its object has to be thawed first.
            RestoreNeeded: Its archive is larger than a read may hold.
        """
        await self._check_keyed(scope, otherwise)

        async def attempt(sealer: Sealer) -> T:
            try:
                found = None if at_once is None else await at_once(sealer)
                if found is not None:
                    return found
                return await work(sealer, functools.partial(self.unit_of_work.snapshot, scope))
            except ThreadElsewhere:
                if self._views is None or thread_id is None:
                    raise ThreadArchived(thread_id) from None
            async with self._views.opened(scope, sealer, thread_id) as snapshot:
                return await work(sealer, snapshot)

        try:
            return await self._with_sealer(scope, attempt, share)
        except ThreadArchived as archived:
            await self._tell_progress(scope, archived)
            raise

    async def _check_keyed(self, scope: Scope, otherwise: NotFound | IntegrityFailure) -> None:
        """Return if the scope has keys; else it has no data, and ``otherwise`` is raised.

        Raises:
            IntegrityFailure: it has data.
        """
        if await self._keys.existing_sealer(scope) is not None:
            return
        if isinstance(otherwise, IntegrityFailure):
            self._observer.integrity_failure()
        raise otherwise

    def acknowledge(self, scope: Scope, sealer: Sealer, thread_id: str, token: ThreadToken) -> None:
        """Remember a head that was committed: this process is told when a later one is older, and it is anchored."""
        self.standings.acknowledge(scope, thread_id, token)
        self.head_anchors.note(scope, sealer, thread_id, token)

    async def check_stored_keys(self, scope: Scope) -> None:
        """Look whether the stored keys of a scope contradict each other: a cached sealer would not tell.

        Raises:
            KeyDestroyed: the subject was shredded.
            IntegrityFailure: they do.
        """
        await self._keys.check_stored(scope)

    def found_damage(self) -> None:
        """Count damage that is reported instead of raised."""
        self._observer.integrity_failure()

    async def sealer_if_any(self, scope: Scope) -> Sealer | None:
        """The scope's sealer, or None when its keys were never made, are destroyed or refused: for removal.

        What a removal asks for legal holds is ready then, too.

        Raises:
            CryptoError: the root key cannot be reached now and nothing is cached, or refuses the key of control rows.
        """
        await self.control.ready()
        try:
            return await self._keys.existing_sealer(scope)
        except (KeyDestroyed, KeyDenied, IntegrityFailure):
            return None

    def check_keys(self, scope: Scope, sealer: Sealer, keys_hash: int | None) -> None:
        """Refuse keys that are not the stored ones any more; ``keys_hash`` comes with the data: what these make.

        Raises:
            KeyDestroyed: keys were added, rewrapped, given up, edited or removed since the sealer was made.
        """
        if keys_hash != sealer.keys_hash:
            self._keys.evict(scope)
            self.standings.forget(scope)
            raise KeyDestroyed

    async def check_keys_in(self, transaction: Transaction, scope: Scope, sealer: Sealer) -> None:
        """As `check_keys`, for verbs whose own statements do not bring along what the stored keys make.

        Raises:
            KeyDestroyed: as `check_keys`.
        """
        keys_hash = await transaction.fetchval(HASH_NOW, scope.tenant_id, scope.subject_id)
        self.check_keys(scope, sealer, keys_hash)
