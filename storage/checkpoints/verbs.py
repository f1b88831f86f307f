"""Save, load, history and pending writes: the verbs on checkpoints.

A save is one transaction: lock the thread and read what it stands on, seal what is new, write, commit. Nothing is
acknowledged before the commit; a lost race starts over on a fresh snapshot. Reads are one statement, or one snapshot,
and write nothing. Values are bytes to this module; only lists are cut, none are instantiated.

It promises neither that a caller may do this (the gateway's guards) nor that state is still meaningful to a newer
agent (state migrations).
"""

from collections.abc import Awaitable, Sequence
from datetime import datetime

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import (
    Listing,
    admit_reader,
    begin_listing,
    check_token,
    check_writes,
    end_listing,
    leaves_nothing_out,
)
from storage.access.offload import answering
from storage.access.storing import Beside
from storage.checkpoints import writing
from storage.checkpoints.loading import Wanted, at_once, load_in
from storage.checkpoints.piece_rows import open_writes, values_of
from storage.checkpoints.reading import (
    Fetching,
    ThreadSealers,
    Unjoined,
    filled,
    ids_of,
    read_pieces,
    removed_parents,
    scan,
    with_state,
)
from storage.checkpoints.saving import AtVersion, Saving
from storage.errors import CheckpointNotFound, InvalidState, RollbackDetected, ThreadNotFound
from storage.format.chain import ThreadSeal
from storage.format.record import OpenedCheckpoint, clear_checkpoint
from storage.model import (
    ChannelHistories,
    ChannelHistoryQuery,
    Checkpoint,
    HistoryQuery,
    ListedCheckpoint,
    Load,
    Loaded,
    Page,
    PendingWrite,
    Save,
    Saved,
    TaskWrites,
    TaskWritesQuery,
    WritesReceipt,
)
from storage.schemas.versions import WantedNames
from storage.scope import ClientShare, Scope, TenantListing, check_id
from storage.statements.threads import checkpoints as sql
from storage.tiers.snapshots import OpenSnapshot, Snapshot, SubjectSnapshot


class Checkpoints:
    """The verbs on checkpoints and their pending writes."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def save(self, scope: Scope, save: Save, share: ClientShare | None = None) -> Saved:
        """Save a checkpoint; when this returns, it is durable. A thread that is made with a ``share`` keeps needing it.

        Raises:
            ClientShareRequired: the thread was made under a share (and so for every verb that takes one).
            ClientShareWrong: the thread was made under another share.
            ClientShareUnexpected: the thread was made without one.
            CheckpointExists: the id is stored with other content.
            StateTooLarge: the id is stored in other pieces, too many of them in the object store to be compared.
            ChannelUnchangedUnknown: an unchanged channel is not in the parent at that version.
            HeadMoved: the precondition does not hold.
            PreconditionRequired: the thread or a save policy is strict, or the save is a patch, and there is no
                precondition.
            IdempotencyKeyReused: the key belongs to another request.
            InvalidState: an id or a patch cannot be applied.
            ThreadArchived: the thread is not in the hot tier.
            IntegrityFailure: what the save stands on does not authenticate.
            Unavailable: nothing was saved; or, as CommitUnknown, perhaps.
        """
        async with self.saving(scope, save) as saving:
            return await saving.stored(share)

    def saving(
        self, scope: Scope, save: Save, at_version: AtVersion | None = None, beside: Beside | None = None
    ) -> Saving:
        """Begin what `save` does, for a caller that deals with a parent of another version, or writes more with it."""
        check_id(save.thread_id, "thread id")
        if save.checkpoint_id is not None:
            check_id(save.checkpoint_id, "checkpoint id")
        return Saving(self._access, scope, save, at_version, beside)

    def load(self, scope: Scope, load: Load, share: ClientShare | None = None) -> Awaitable[Loaded]:
        """Load a checkpoint with its pending writes, and the histories of channels that it names.

        Raises:
            CheckpointNotFound: there is none.
            StateTooLarge: its values, with those of histories, do not fit one answer; ask for ``refs``.
            BlobUnavailable: the object store does not answer.
            ThreadArchived: the thread is in the archive tier, and has to be thawed before it can be read.
            RestoreNeeded: its archive is larger than what is read without restoring.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
            RollbackDetected: the thread is older than ``known_token``, or another one.
            IntegrityFailure: it does not authenticate, or something is missing that should be there.
        """
        acknowledged = self._access.remembered_heads.acknowledged(scope, load.thread_id, load.namespace)
        return self._loaded(scope, Wanted(load, acknowledged), share)

    def _loaded(self, scope: Scope, wanted: Wanted, share: ClientShare | None) -> Awaitable[Loaded]:
        access, load = self._access, wanted.load
        return access.with_thread_snapshots(
            scope,
            load.thread_id,
            lambda sealer, snapshots: load_in(snapshots, access, scope, sealer, wanted),
            _without_keys(load.known_token),
            share,
            at_once=at_once(access, scope, wanted),
        )

    async def history(self, scope: Scope, query: HistoryQuery, share: ClientShare | None = None) -> Page[Checkpoint]:
        """Checkpoints, newest first: one page.

        Over all threads, ``share`` opens those that were made under it; of those under another one, or under one when
        none was sent, only the clear columns come (``withheld``), and no metadata of theirs ever matches. Checkpoints
        of archived threads are not among them: each is read by asking for its thread.

        A page may be shorter than the limit (opened bytes, rows looked at) and still have a successor. Whoever reads
        all pages of a thread, or of a namespace of it, without a filter, knows at the end that nothing was missing.
        The parent of what pruning left is None. Over all threads a damaged checkpoint is told to be ``damaged``, and
        hides no other.

        Raises:
            ThreadNotFound: one thread is asked for, and there is none.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`, where one thread is asked for.
            ThreadArchived, RestoreNeeded: as `load`, likewise.
            RollbackDetected: the thread is older than ``query.known_token``, or another one.
            IntegrityFailure: a row of the thread that is asked for does not authenticate, or a whole listing is not
                what the seals say.
        """
        thread_id, otherwise = query.thread_id, _without_keys(query.known_token)
        if thread_id is None:

            async def of_subject(sealer: Sealer) -> Page[Checkpoint]:
                async with self._access.unit_of_work.snapshot(scope) as transaction:
                    await self._access.check_keys_in(transaction, scope, sealer)
                    page, fetching = await self._page(SubjectSnapshot(transaction), sealer, query, None)
                return await self._shown(scope, query, page, fetching)

            try:
                return await self._access.with_existing_keys(scope, of_subject, otherwise, share)
            except CheckpointNotFound:
                return Page([], None)

        async def of_thread(sealer: Sealer, open_snapshot: OpenSnapshot) -> Page[Checkpoint]:
            async with open_snapshot() as snapshot:
                await self._access.check_keys_in(snapshot.transaction, scope, sealer)
                if query.known_token is not None:
                    await check_token(snapshot.transaction, sealer, thread_id, query.known_token)
                thread = await admit_reader(snapshot, sealer)
                page, fetching = await self._page(snapshot, sealer, query, thread)
            return await self._shown(scope, query, page, fetching)

        try:
            return await self._access.with_thread_snapshots(scope, thread_id, of_thread, otherwise, share)
        except CheckpointNotFound:
            raise ThreadNotFound from None

    async def _page(
        self,
        snapshot: Snapshot | SubjectSnapshot,
        sealer: Sealer,
        query: HistoryQuery,
        thread: ThreadSeal | None,
    ) -> tuple[Page[Unjoined], list[Fetching]]:
        """Read a page; ``thread``: the seal of the thread that is asked for, if it is one."""
        sealers = ThreadSealers(snapshot.transaction, sealer, query.thread_id, thread)
        found = await scan(snapshot.listing, sealers, query)
        page = Page([Unjoined(each, [], None) for each in found.items], found.after)
        fetching: list[Fetching] = []
        if query.with_state:
            page, fetching = await with_state(snapshot, self._access.offload, sealers, found, refs=query.refs)
        if isinstance(snapshot, Snapshot):
            opened = [each for each in found.items if isinstance(each, OpenedCheckpoint)]
            page = await _compared(snapshot, sealer, thread, query, page, opened)
            if thread is None:
                raise ThreadNotFound
        removed = await removed_parents(snapshot.listing, [each.matched for each in page.items])
        return Page([each.without_parent_in(removed) for each in page.items], page.after), fetching

    async def _shown(
        self, scope: Scope, query: HistoryQuery, page: Page[Unjoined], fetching: Sequence[Fetching]
    ) -> Page[Checkpoint]:
        """A page as callers see it, once its snapshot has ended."""
        one_thread = query.thread_id is not None
        page = await filled(page, fetching, self._access.offload, scope, one_thread=one_thread)
        shown = [await each.value(scope.tenant_id) for each in page.items]
        if any(each.damaged for each in shown):
            self._access.found_damage()
        return Page(shown, page.after)

    async def tenant_listing(self, scope: TenantListing, query: HistoryQuery) -> Page[ListedCheckpoint]:
        """Checkpoints of all subjects of a tenant, newest first, by clear columns only: one page. Opens nothing.

        Checkpoints of archived threads are not in it; the threads are in the listing of threads.

        Raises:
            InvalidState: the query asks for state or metadata, or for one thread.
        """
        if query.with_state or query.metadata or query.thread_id is not None:
            raise InvalidState("a listing of a whole tenant has neither state nor metadata")
        troubled = query.status in {"failed", "waiting"}
        after_at, after_subject, after_thread, after_namespace, after_id = query.after or (None,) * 5
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(
                sql.TENANT_LISTING_TROUBLED if troubled else sql.TENANT_LISTING,
                namespace=query.namespace,
                before=query.before,
                status=query.status,
                step=query.step,
                run_id=query.run_id,
                source=query.source,
                agent=query.agent,
                since=query.since,
                until=query.until,
                after_at=datetime.fromisoformat(after_at) if after_at else None,
                after_subject=after_subject,
                after_thread=after_thread,
                after_namespace=after_namespace,
                after_id=after_id,
                limit=query.limit,
            )
        listed = [
            ListedCheckpoint(subject_id=row.subject_id, checkpoint=clear_checkpoint(row, row.outcome)) for row in rows
        ]
        if len(rows) < query.limit:
            return Page(listed, None)
        last = rows[-1]
        place = (last.subject_id, last.thread_id, last.namespace, last.checkpoint_id)
        return Page(listed, (last.created_at.isoformat(), *place))

    async def put_writes(self, scope: Scope, new: TaskWrites, share: ClientShare | None = None) -> WritesReceipt:
        """Store a task's writes against a checkpoint that may not exist yet; when this returns, they are durable.

        A write at ``idx`` >= 0 is kept as first written, one below is replaced. Without a state version of their own
        the writes are at their checkpoint's, if that is not saved yet.

        Raises:
            OtherVersionError: they have none, but their checkpoint has; see `States.put_writes`.
            InvalidState: an id cannot be stored, or an ``idx`` occurs twice.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
            ThreadArchived: the thread is not in the hot tier.
            RollbackDetected: the thread is older than what the caller has seen, or another one; nothing was stored.
            IntegrityFailure: what the writes stand on does not authenticate.
            Unavailable: nothing was stored; or, as CommitUnknown, perhaps.
        """
        async with self.writing(scope, new) as request:
            return await request.stored(share)

    def writing(self, scope: Scope, new: TaskWrites, at_version: writing.AtVersion | None = None) -> writing.Writing:
        """Begin what `put_writes` does, for a caller that deals with a checkpoint at a version itself."""
        check_id(new.thread_id, "thread id")
        check_id(new.checkpoint_id, "checkpoint id")
        check_id(new.task_id, "task id")
        if len({write.idx for write in new.writes}) != len(new.writes):
            raise InvalidState("an idx occurs twice in one request", "/writes")
        return writing.Writing(self._access, scope, new, at_version)

    async def task_writes(
        self, scope: Scope, query: TaskWritesQuery, share: ClientShare | None = None
    ) -> list[PendingWrite]:
        """What one task wrote against a checkpoint, which need not be there; empty if nothing.

        Raises:
            ThreadNotFound: there is none.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
            ThreadArchived, RestoreNeeded: as `load`.
            StateTooLarge: as `load`.
            IntegrityFailure: a write does not authenticate, or the thread's are not what its seal says.
        """

        async def with_sealer(sealer: Sealer, open_snapshot: OpenSnapshot) -> list[PendingWrite]:
            async with open_snapshot() as snapshot:
                await self._access.check_keys_in(snapshot.transaction, scope, sealer)
                thread = await admit_reader(snapshot, sealer)
                rows = snapshot.rows
                await check_writes(sealer, await rows.members(), thread, rows.cold_writes)
                if thread is None:
                    raise ThreadNotFound
                written = await rows.writes_of(query.namespace, [query.checkpoint_id], query.task_id)
                opened = await open_writes(sealer, written)
                reader = answering(sealer, refs=query.refs)
                await read_pieces(rows, reader, ids_of(opened))
                blobs = await self._access.offload.find(snapshot.transaction, sealer, reader)
            await self._access.offload.fill(scope, sealer, reader, blobs)
            return await values_of(opened, reader)

        return await self._access.with_thread_snapshots(scope, query.thread_id, with_sealer, ThreadNotFound(), share)

    async def channel_history(
        self,
        scope: Scope,
        query: ChannelHistoryQuery,
        share: ClientShare | None = None,
        names: WantedNames | None = None,
    ) -> ChannelHistories:
        """For each channel: its value at the nearest ancestor that holds one, and the writes since, oldest first.

        The target's own value and writes are left out; those of the ancestor that holds the value are included.
        This is how LangGraph rebuilds a DeltaChannel. With ``names``, channels go by a reader's names, and what has to
        be converted to be theirs is not: writes say their version, and a seed where it is (``seed_at``).

        With the ``mark`` of an earlier answer, only what came since is given, where the rest of that answer still
        holds (`storage.checkpoints.channel_histories`); any other text gives the whole.

        Raises:
            CheckpointNotFound: there is no such checkpoint.
            ThreadArchived, RestoreNeeded: as `load`.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: as `save`.
        """
        load = Load(
            query.thread_id,
            query.namespace,
            query.checkpoint_id,
            with_state=False,
            known_token=query.known_token,
            refs=query.refs,
            history=query.channels,
            mark=query.mark,
        )
        loaded = await self._loaded(scope, Wanted(load, names=names), share)
        assert loaded.histories is not None  # noqa: S101  for the type checker: they were asked for
        return loaded.histories


def _without_keys(known_token: str | None) -> CheckpointNotFound | RollbackDetected:
    """What it means that a subject has no keys: no data yet, unless the caller has seen some."""
    return CheckpointNotFound() if known_token is None else RollbackDetected()


async def _compared(
    snapshot: Snapshot,
    sealer: Sealer,
    thread: ThreadSeal | None,
    query: HistoryQuery,
    page: Page[Unjoined],
    matches: Sequence[OpenedCheckpoint],
) -> Page[Unjoined]:
    """A page of a listing, compared with the seals as far as it goes."""
    if not leaves_nothing_out(query):
        return page
    if query.after is None:
        first = matches[0] if matches else None
        listing: Listing | None = await begin_listing(snapshot, sealer, query, thread, first)
    else:
        listing = Listing.resume(query.after)
    if listing is None:
        return page
    listing = listing.take(matches[: len(page.items)])
    if page.after is not None:
        return Page(page.items, (*page.after, *listing.cursor()))
    await end_listing(snapshot, sealer, query, listing)
    return page
