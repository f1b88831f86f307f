"""Links of threads: which thread another one was begun from, and what a family of threads is.

A link is a name, kept in the child's seal and in a clear column that children are found by. It is not kept true: the
parent may be deleted, come later, or never be there. Owns that linking makes no circle, that a held thread keeps its
link, and that a family is removed whole or, where it may not be, not at all.

It does not promise that there are no circles: a copy or an import keeps the link it has, by which a name that nothing
had may close one. So whatever follows links is bounded, and ends where it has been.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import compare_listed
from storage.concurrency.turns import Pauses
from storage.control.features import LINKS
from storage.errors import IntegrityFailure, LimitExceeded, LinkCircular, ThreadNotFound
from storage.event_queue.model import OfThread
from storage.format.chain import ThreadSeal
from storage.format.record import new_thread, open_thread, open_thread_seal, seal_thread
from storage.model import Page, Removal, Thread, ThreadLink
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, check_id
from storage.statements.threads import links as sql
from storage.statements.threads import threads as threads_sql
from storage.threads.holds import refuse_any_held, refuse_held
from storage.threads.listed import page_of, shown_in
from storage.threads.pruning import NOTHING, sum_of_removals
from storage.threads.verbs import Threads

ANCESTORS_MAX = 32
"""Ancestors of a thread that is linked."""
FAMILY_THREADS_MAX = 1_000
"""Threads that are removed with their family: the one that is named, and its descendants."""
_LATEST = datetime.max.replace(tzinfo=UTC)


class _LeftFamilyError(Exception):
    """The thread has another parent by now, or none."""


@dataclass(frozen=True, slots=True)
class _LockedChild:
    """A thread whose link changes, and whose lock is held."""

    transaction: Transaction
    scope: Scope
    sealer: Sealer
    thread_id: str
    created_at: datetime


class Links:
    """The verbs on links and families."""

    def __init__(self, access: Access, threads: Threads) -> None:
        self._access = access
        self._threads = threads

    async def link(
        self, scope: Scope, thread_id: str, link: ThreadLink, share: ClientShare | None = None
    ) -> tuple[Thread, bool]:
        """Say which thread this one was begun from, creating it if need be; another one is replaced.

        Returns:
            The thread, and whether it was created.

        Raises:
            FeatureOff: a process of an older build may run.
            LinkCircular: the thread would be its own ancestor.
            LimitExceeded: it would have more than `ANCESTORS_MAX` ancestors.
            LegalHold: the thread is held, and has another link.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
            RowQuotaExceeded: there is no such thread, and the tenant may store no more rows.
            IntegrityFailure: the thread or an ancestor is damaged.
        """
        check_id(thread_id, "thread id")
        check_id(link.thread_id, "parent's thread id")
        await self._access.control.ready()
        await self._access.control.features.require(LINKS, "threads are linked")

        async def with_sealer(sealer: Sealer) -> tuple[Thread, bool]:
            now = self._access.clock.now()
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                # Before the thread's own, which other verbs take without it.
                await transaction.run(sql.LOCK, lock=sql.links_lock(scope.tenant_id, scope.subject_id))
                row = await transaction.fetch_only(
                    threads_sql.PUT,
                    thread_id=thread_id,
                    agent=None,
                    strict=None,
                    now=now,
                    seal=seal_thread(sealer, thread_id, now, new_thread(sealer, thread_id)),
                    client_share=sealer.shared,
                )
                created = row.activity == 1
                thread = open_thread(sealer, thread_id, row.created_at, row.seal)
                if created:
                    self._access.row_quotas.require_room(scope)
                if thread.link != link:
                    await self._check_ancestors(transaction, sealer, thread_id, link)
                    child = _LockedChild(transaction, scope, sealer, thread_id, row.created_at)
                    await self._store(child, thread, link)
                shown = await shown_in(transaction, sealer, thread_id)
                if created:
                    said = OfThread(thread_id)
                    await self._access.emitting.of_thread(transaction, scope, "thread.created", said)
                return shown, created

        return await self._access.with_keys(scope, with_sealer, share)

    async def unlink(self, scope: Scope, thread_id: str, share: ClientShare | None = None) -> None:
        """Take a thread's link away, if it has one.

        Raises:
            ThreadNotFound: there is no such thread.
            LegalHold: the thread is held, and has a link.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
            IntegrityFailure: the thread is damaged.
        """
        await self._access.control.ready()

        async def with_sealer(sealer: Sealer) -> None:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                row = await transaction.fetch_one(threads_sql.LOCK, thread_id=thread_id)
                if row is None:
                    raise ThreadNotFound
                thread = open_thread(sealer, thread_id, row.created_at, row.seal)
                if thread.link is not None:
                    await self._store(_LockedChild(transaction, scope, sealer, thread_id, row.created_at), thread, None)

        await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound(), share)

    async def children(
        self, scope: Scope, thread_id: str, *, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[Thread]:
        """The threads that name this one as their parent, newest first, whether or not it is there.

        As a list of threads: a damaged one is told to be, and hides no other.

        Raises:
            IntegrityFailure: the subject's keys are gone.
        """
        until, before = (datetime.fromisoformat(after[0]), after[1]) if after else (_LATEST, "")

        async def with_sealer(sealer: Sealer) -> Page[Thread]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                rows = await transaction.fetch_all(
                    sql.CHILDREN, parent_thread_id=thread_id, until_at=until, before=before, limit=limit
                )
            return await page_of(rows, sealer, limit, self._access.found_damage)

        try:
            return await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound())
        except ThreadNotFound:
            return Page([], None)

    async def delete_family(self, scope: Scope, thread_id: str) -> Removal:
        """Remove a thread, if it is there, and its descendants: leaves first, each in a transaction of its own.

        Who is of the family, and whether one is held, is looked at before anything is removed. What was removed stays
        removed if a later one is refused; repeat to finish. A thread that is linked elsewhere meanwhile stays.

        Raises:
            ThreadNotFound: there is neither the thread nor a child.
            LimitExceeded: the family has more than `FAMILY_THREADS_MAX` threads; nothing was removed.
            LegalHold: one is held; nothing was removed, unless the hold came meanwhile.
            IntegrityFailure: nothing proves of a thread that it is of the family; nothing was removed.
            KeyDestroyed: the subject was shredded.
        """
        await self._access.control.ready()

        async def with_sealer(sealer: Sealer) -> tuple[Sealer, dict[str, str | None]]:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                found = await self._family(transaction, sealer, thread_id)
                await refuse_any_held(transaction, self._access.control, scope, [*found])
            return sealer, found

        sealer, family = await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound())
        removed = NOTHING
        for name, parent in reversed(family.items()):
            removed = sum_of_removals(removed, await self._delete_member(scope, sealer, name, parent))
        return removed

    async def _delete_member(self, scope: Scope, sealer: Sealer, thread_id: str, parent: str | None) -> Removal:
        async def still_a_child(transaction: Transaction) -> None:
            row = await transaction.fetch_only(sql.ONE, thread_id=thread_id)
            if _parent_of(sealer, row) != parent:
                raise _LeftFamilyError

        try:
            return await self._threads.delete(scope, thread_id, guard=None if parent is None else still_a_child)
        except (ThreadNotFound, _LeftFamilyError):
            return NOTHING

    async def _family(self, transaction: Transaction, sealer: Sealer, thread_id: str) -> dict[str, str | None]:
        """The thread and its descendants, as far as they are there, each with its parent and after it."""
        family: dict[str, str | None] = {thread_id: None}
        level = [thread_id]
        pauses = Pauses()
        while level:
            rows = await transaction.fetch_all(sql.CHILDREN_OF, parents=level, limit=FAMILY_THREADS_MAX + 1)
            more = [row for row in rows if row.thread_id not in family]
            if len(family) + len(more) > FAMILY_THREADS_MAX:
                raise LimitExceeded("FAMILY_THREADS_MAX", FAMILY_THREADS_MAX)
            for row in more:
                family[row.thread_id] = _parent_of(sealer, row)
                await pauses.after(0)
            level = [row.thread_id for row in more]
        if await transaction.fetch_one(sql.ONE, thread_id=thread_id) is None:
            del family[thread_id]
        if not family:
            raise ThreadNotFound
        return family

    async def _check_ancestors(
        self, transaction: Transaction, sealer: Sealer, thread_id: str, link: ThreadLink
    ) -> None:
        """Look for the thread among those that it would descend from; no other link is made meanwhile."""
        rows = await transaction.fetch_all(sql.ANCESTORS, thread_id=link.thread_id, limit=ANCESTORS_MAX + 1)
        # What is not there has no parent.
        for name in (link.thread_id, *_parents_of(sealer, rows)):
            if name == thread_id:
                raise LinkCircular
        if len(rows) > ANCESTORS_MAX:
            raise LimitExceeded("ANCESTORS_MAX", ANCESTORS_MAX)

    async def _store(self, child: _LockedChild, thread: ThreadSeal, link: ThreadLink | None) -> None:
        """Change what the thread's seal says of its link, under the thread's lock."""
        if thread.link is not None:
            await refuse_held(child.transaction, self._access.control, child.scope, child.thread_id)
        await child.transaction.run(
            sql.LINK,
            thread_id=child.thread_id,
            parent_thread_id=None if link is None else link.thread_id,
            seal=seal_thread(child.sealer, child.thread_id, child.created_at, replace(thread, link=link)),
            now=self._access.clock.now(),
        )


def _parent_of(sealer: Sealer, row: sql.LinkedRow) -> str | None:
    """The parent that a thread has by its seal.

    Raises:
        IntegrityFailure: it does not authenticate, or does not say what the columns say; by the thread's name.
    """
    try:
        thread = open_thread_seal(sealer, row.thread_id, row.created_at, row.seal)
        compare_listed(thread, client_share=row.client_share, parent_thread_id=row.parent_thread_id)
    except IntegrityFailure:
        raise IntegrityFailure(f"nothing proves whose child thread {row.thread_id!r} is") from None
    return row.parent_thread_id


def _parents_of(sealer: Sealer, rows: Iterable[sql.LinkedRow]) -> Iterable[str]:
    return (parent for row in rows if (parent := _parent_of(sealer, row)) is not None)
