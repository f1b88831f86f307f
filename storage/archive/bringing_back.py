"""Bringing segments back: the rows of one are read while nothing is open, and one transaction puts them back.

The segments that a volume got later go first, because their pieces may be in this one, and so does the one that has the
head of a namespace of which a checkpoint comes back: no namespace has checkpoints in the database and its head
elsewhere. No seal changes. A process that dies in between leaves the segment, or its rows; its object loses its
reference with it, and the sweeper frees it after the backup window.

Whether the caller may do this is not decided here.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from crypto import Sealer
from storage.access.sealing import Sealing
from storage.administration.audit import Audit
from storage.archive.stubs import audit_target, set_cold, stub_of, told
from storage.errors import IntegrityFailure, LostRaceError, ThreadArchived, ThreadNotFound
from storage.format.cold.archive import TABLES, Stub, ThreadRows
from storage.format.cold.segment import ColdSums, Directory, SegmentList
from storage.format.pieces import unpack_ids
from storage.ledger.streams import Budget
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.threads import archives as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.archives import SegmentRow
from storage.statements.threads.threads import HeadRow
from storage.threads.plans import columns_of
from storage.tiers.objects import ArchiveObjects
from storage.tiers.segments import Lists, Segments, open_directory, open_list, open_segments
from storage.tiers.views import cold_sums, memory_bytes

# What is brought back at once, together in one process.
RESTORING_BYTES_MAX: Final = 128 * 1024 * 1024
# Rows that are put back with one statement.
_ROWS: Final = 200


class BringingBack:
    """Brings segments back."""

    def __init__(self, sealing: Sealing, objects: ArchiveObjects, audit: Audit) -> None:
        self._sealing = sealing
        self._objects = objects
        self._audit = audit
        self._restoring = Budget(RESTORING_BYTES_MAX)

    async def bring_back(
        self, scope: Scope, thread_id: str, number: int | None = None, *, actor: str, needs_room: bool = True
    ) -> int:
        """Bring a segment back with those that need its pieces, or all of them; returns how many checkpoints came.

        ``number`` None: all. One that is not there any more is back already. ``needs_room``: only to a tenant that may
        store rows.

        Raises:
            ThreadNotFound: There is no such thread.
            ThreadArchived: The thread is archived as a whole, or an object has to be thawed first.
            ArchiveUnavailable: This process has no bucket of archives.
            RowQuotaExceeded: Rows would come back, for which there has to be room, to a tenant that may store no more.
            IntegrityFailure: An object is missing, damaged, or another one.
            BlobUnavailable: The object store does not answer.
        """
        brought = 0
        while True:
            restored = await self._sealing.run(
                scope, lambda sealer: self._one(scope, sealer, thread_id, number, actor, needs_room), ThreadNotFound()
            )
            if restored is None:
                return brought
            brought += restored.checkpoints
            if restored.segment == number:
                return brought

    async def _one(
        self, scope: Scope, sealer: Sealer, thread_id: str, number: int | None, actor: str, needs_room: bool
    ) -> Stub | None:
        """Bring back one segment, whose pieces no other segment needs; None: there is none to bring back."""
        async with self._sealing.unit_of_work.snapshot(scope) as transaction:
            await self._sealing.check_keys_in(transaction, scope, sealer)
            row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
            if row is None:
                raise ThreadNotFound
            if row.cold is None:
                return None
            if row.tier != "hot":
                raise ThreadArchived(thread_id)
            sums = cold_sums(sealer, thread_id, row)
            segments = await open_segments(transaction, sealer, thread_id, sums)
            lists = Lists(transaction, sealer)
            chosen = await _next_back(transaction, lists, sums, segments, number)
            if chosen is None:
                return None
            stubs = [await stub_of(transaction, each) for each in segments.of_volume(chosen)]
            listed = {each.segment: await lists.piece_ids(each) for each in segments.of_volume(chosen)}
        if needs_room:
            self._sealing.row_quotas.require_room(scope)
        async with self._restoring.holding(memory_bytes(stubs[-1]), scope.tenant_id):
            rows = await self._rows(scope, sealer, stubs, listed)
            await self._flip_back(scope, sealer, stubs[-1], rows, actor)
        return stubs[-1]

    async def _rows(
        self, scope: Scope, sealer: Sealer, stubs: Sequence[Stub], listed: Mapping[int, frozenset[bytes]]
    ) -> ThreadRows:
        """The rows of the last of these segments, with the pieces that it has in those before it."""
        rows = await self._objects.rows(scope, sealer, stubs[-1])
        missing = {each for row in (*rows.checkpoints, *rows.writes) for each in unpack_ids(row["piece_ids"])}
        here = list(rows.chunks)
        rows.chunks.clear()
        for at in range(len(stubs) - 1, -1, -1):
            if at < len(stubs) - 1:
                if missing.isdisjoint(listed[stubs[at].segment]):
                    continue
                here = (await self._objects.rows(scope, sealer, stubs[at])).chunks
            by_id = {row["piece_id"]: row for row in here}
            while found := [by_id.pop(each) for each in missing & by_id.keys()]:
                rows.chunks.extend(found)
                missing -= {row["piece_id"] for row in found}
                for row in found:
                    missing.update(unpack_ids(row["children"] or b""))
                missing -= {row["piece_id"] for row in rows.chunks}
        if missing:
            raise IntegrityFailure("a stored piece is missing")
        return rows

    async def _flip_back(self, scope: Scope, sealer: Sealer, stub: Stub, rows: ThreadRows, actor: str) -> None:
        thread_id = stub.thread_id
        async with self._sealing.unit_of_work.begin(scope) as transaction:
            locked = await transaction.fetch_one(threads_sql.LOCK, thread_id=thread_id)
            if locked is None or locked.tier != "hot" or locked.cold is None:
                raise LostRaceError
            if await stub_of(transaction, stub) != stub:
                raise LostRaceError
            await self._sealing.check_keys_in(transaction, scope, sealer)
            sums = cold_sums(sealer, thread_id, locked)
            listed = await open_list(transaction, sealer, stub)
            names, ids = columns_of([(each.namespace, each.checkpoint_id) for each in listed.checkpoints])
            for statement in sql.OF.values():
                if await transaction.fetch_all(statement, thread_id=thread_id, namespaces=names, checkpoint_ids=ids):
                    raise IntegrityFailure("rows of a segment are in the database, too")
            directory = await self._add_heads(transaction, sealer, stub, listed, sums)
            for table in TABLES:
                for at in range(0, len(rows.of(table)), _ROWS):
                    await transaction.run_many(sql.ADD[table], rows.of(table)[at : at + _ROWS])
            await transaction.fetch_one(sql.DELETE_STUB, thread_id=thread_id, segment=stub.segment)
            sums = sums.without_segment(sealer.without_share, stub, listed)
            await set_cold(transaction, sealer, thread_id, locked.created_at, sums, directory)
            # The rows are back, and name what they named: only the object loses its reference.
            await self._sealing.offload.ledger.keep(transaction, thread_id)
            await self._audit.append(
                transaction, scope.tenant_id, actor, "segment.restore", audit_target(scope, thread_id), told(stub)
            )

    async def _add_heads(
        self, transaction: Transaction, sealer: Sealer, stub: Stub, listed: SegmentList, sums: ColdSums
    ) -> Directory | None:
        """Put the heads of a segment back; returns what is left of the directory, or None if there were none.

        Raises:
            LostRaceError: A checkpoint would come back to a namespace whose head is in another segment by now.
            IntegrityFailure: A head is in the database, too.
        """
        thread_id, names = stub.thread_id, {each.namespace for each in listed.checkpoints}
        hot = {*await transaction.fetch_all(sql.WITH_HEAD, thread_id=thread_id, namespaces=sorted(names))}
        back = {each.namespace for each in listed.heads}
        if hot & back:
            raise IntegrityFailure("a head of a segment is in the database, too")
        if hot | back != names:
            raise LostRaceError
        if not listed.heads:
            return None
        heads = [
            {"thread_id": thread_id, **{name: getattr(each, name) for name in HeadRow.__struct_fields__}}
            for each in listed.heads
        ]
        for at in range(0, len(heads), _ROWS):
            await transaction.run_many(threads_sql.ADD_HEAD, heads[at : at + _ROWS])
        return (await open_directory(transaction, sealer, thread_id, sums)).without_segment(stub, listed)


async def _next_back(
    transaction: Transaction, lists: Lists, sums: ColdSums, segments: Segments, number: int | None
) -> SegmentRow | None:
    """The segment to bring back next, so that this one, or all can be; None: it is back already, or all are.

    Raises:
        IntegrityFailure: There is a checkpoint whose namespace has no head.
    """
    chosen = _last_of(segments, number)
    while chosen is not None:
        names = {name for name, _ in await lists.checkpoints(chosen)} - (await lists.heads(chosen)).keys()
        if sums.namespaces.count:
            where = {"thread_id": chosen.thread_id, "namespaces": sorted(names)}
            names -= {*await transaction.fetch_all(sql.WITH_HEAD, **where)}
        else:
            return chosen
        if not names:
            return chosen
        # A head left last, in a segment of a greater number. Where it is the directory says only to who has the share.
        before = chosen
        for each in sorted(segments.all, key=lambda segment: segment.segment):
            if each.segment > before.segment and not names.isdisjoint(await lists.heads(each)):
                chosen = _last_of(segments, each.segment)
                break
        else:
            raise IntegrityFailure("the namespace has checkpoints but no head")
    return None


def _last_of(segments: Segments, number: int | None) -> SegmentRow | None:
    """The segment to bring back next, so that this one can be: the last one of its volume, or of all."""
    if number is None:
        return max(segments.all, key=lambda each: each.segment, default=None)
    wanted = next((each for each in segments.all if each.segment == number), None)
    if wanted is None:
        return None
    volume = [each for each in segments.all if each.volume == wanted.volume]
    return max(volume, key=lambda each: each.segment)
