"""The way to a subject's state for every verb: as `storage.access.sealing`, wherever a thread's rows are.

Owns the rule that writing to what is in an archive or a segment brings it back first, and that reading it does not. It
knows no verb.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

import msgspec

from crypto import Sealer
from storage.access.sealing import Answer, Parts, Sealing, unanswered
from storage.errors import IntegrityFailure, NotFound, ThreadArchived
from storage.postgres.statement import Statement
from storage.scope import ClientShare, Scope
from storage.tiers.segments import SegmentsNeeded
from storage.tiers.snapshots import OpenSnapshot, Snapshot, ThreadElsewhere
from storage.tiers.views import ArchiveViews

T = TypeVar("T")
R = TypeVar("R")


class Restorer(Protocol):
    """Brings threads back from the archive."""

    async def bring_back(self, scope: Scope, thread_id: str, segment: int | None, *, needs_room: bool) -> None:
        """Bring a thread back, or what the segment of this number needs, if the objects can be read.

        Raises:
            ThreadArchived: an object has to be thawed first.
            RowQuotaExceeded: it ``needs_room``, and the tenant may store no more rows.
        """

    async def thaw_progress(self, scope: Scope, thread_id: str) -> float | None:
        """How far the thaw of a thread is, from 0 to 1; None where that is not known."""


class AtOnce(msgspec.Struct, Generic[T, R], frozen=True):
    """A read that one statement answers, as a transaction of its own.

    Attributes:
        statement: The call of a function that binds the scope.
        values: The statement's values.
        opened: Makes the answer of its row, or None if only a snapshot can tell; raises `ThreadElsewhere` if the rows
            are not there.
    """

    statement: Statement[R]
    values: Mapping[str, object]
    opened: Callable[[Sealer, R | None], Awaitable[T | None]]


class Access(Sealing):
    """The way to a subject's state."""

    def __init__(self, parts: Parts, restorer: Restorer | None = None, views: ArchiveViews | None = None) -> None:
        super().__init__(parts)
        self._restorer = restorer
        self._views = views

    def with_keys(
        self,
        scope: Scope,
        attempt: Callable[[Sealer], Awaitable[T]],
        share: ClientShare | None = None,
        answer: Answer = unanswered,
    ) -> Awaitable[T]:
        """Make attempts as `Sealing.run` does, and create the scope's keys if it has none.

        This is the one place where writing to an archived thread restores it: ``attempt`` raises `ThreadArchived` with
        the thread, which is brought back if its object can be read, and another attempt is made.

        Raises:
            ThreadArchived: its object has to be thawed first, or it was archived again each time; nothing changed.
        """
        return self.run(scope, attempt, share=share, answer=answer, bring_back=self._bring_back)

    def with_existing_keys(
        self,
        scope: Scope,
        attempt: Callable[[Sealer], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure,
        share: ClientShare | None = None,
    ) -> Awaitable[T]:
        """Make attempts as `with_keys` does, but for a scope without keys, which has no data, raise ``otherwise``."""
        return self.run(scope, attempt, otherwise, share, bring_back=self._bring_back)

    def without_restore(
        self,
        scope: Scope,
        attempt: Callable[[Sealer], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure,
        share: ClientShare | None = None,
    ) -> Awaitable[T]:
        """Make attempts of what reads archives and segments itself: nothing is restored or thawed.

        Raises:
            ThreadArchived: An object has to be thawed first.
        """
        return self.run(scope, attempt, otherwise, share, bring_back=self._tell_progress)

    def with_thread_snapshots(
        self,
        scope: Scope,
        thread_id: str,
        work: Callable[[Sealer, OpenSnapshot], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure,
        share: ClientShare | None = None,
        *,
        at_once: "AtOnce[T, R] | None" = None,
    ) -> Awaitable[T]:
        """Read one thread wherever its rows are, in snapshots of that: nothing is restored or thawed.

        Args:
            scope: The tenant and subject whose thread it is.
            thread_id: The id of the thread to read.
            work: Opens its snapshots by what it is given, and checks the tier in them
                (`storage.tiers.snapshots.Snapshot.check_tier`) before it relies on the thread's rows. It runs again, on
                the archive, if some are there, and on more segments, if it needs those.
            otherwise: What to raise if the scope has no keys.
            share: The client's share of the thread's keys.
            at_once: Tried before ``work``, in one round trip.

        Raises:
            ThreadArchived: What is read is in an archive or a segment, whose object has to be thawed first.
            RestoreNeeded: It is larger than a read may hold.
        """

        @asynccontextmanager
        async def hot() -> AsyncIterator[Snapshot]:
            async with self.unit_of_work.snapshot(scope) as transaction:
                yield Snapshot.hot(transaction, thread_id)

        async def attempt(sealer: Sealer) -> T:
            try:
                if at_once is not None:
                    row = await self.unit_of_work.ask(at_once.statement, scope, **at_once.values)
                    found = await at_once.opened(sealer, row)
                    if found is not None:
                        return found
                return await work(sealer, hot)
            except ThreadElsewhere:
                if self._views is None:
                    raise ThreadArchived(thread_id) from None
            async with self._views.opened(scope, sealer, thread_id) as view:
                while True:
                    try:
                        return await work(sealer, lambda: view.snapshot(thread_id))
                    except SegmentsNeeded as needed:
                        await view.fetch(needed)

        return self.run(scope, attempt, otherwise, share, bring_back=self._tell_progress)

    async def _bring_back(self, scope: Scope, archived: ThreadArchived) -> None:
        if self._restorer is None or archived.thread_id is None or archived.state != "archived":
            await self._tell_progress(scope, archived)
            return
        try:
            await self._restorer.bring_back(scope, archived.thread_id, archived.segment, needs_room=archived.needs_room)
        except ThreadArchived as frozen:
            await self._tell_progress(scope, frozen)

    async def _tell_progress(self, scope: Scope, archived: ThreadArchived) -> None:
        """Refuse, and say how far the thaw is, which only the restore that waits for it knows.

        Raises:
            ThreadArchived: always.
        """
        if self._restorer is not None and archived.thread_id is not None and archived.state == "thawing":
            archived.progress = await self._restorer.thaw_progress(scope, archived.thread_id)
        raise archived
