"""Verification: open every row of a thread, or of all that a subject has, and compare what must be there.

A subject's items come after its threads (`storage.verification.items`).

A thread is read in one snapshot, so that writers and pruners at work never look like damage; a subject is verified a
bounded stretch at a time, which is also its progress. An archived thread's rows are read from its object, a few at a
time, and compared with the seals that stayed; the first damage there is one finding for the thread. Findings name
places, never values. Nothing is written, and damage is reported instead of raised: one bad row must not hide the next.
"""

import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.access.completeness import (
    STRETCH_ROWS,
    Writes,
    compare_listed,
    compare_namespaces,
    compare_writes,
    open_own_head,
    walk,
)
from storage.access.head_anchors import AnchoredHead, AnchoredHeads, namespace_tag
from storage.archive.check import ArchiveCheck, ArchiveContents
from storage.collection.accepted_losses import AcceptedLosses
from storage.collection.blobs import BlobDamage, damage_of_subject, damage_of_thread
from storage.errors import IntegrityFailure, ThreadArchived, ThreadNotFound
from storage.format.chain import HeadSeal, LiveSet, ThreadSeal, namespace_mac
from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, Stub
from storage.format.cold.segment import ColdSums, Directory, SegmentList
from storage.format.pieces import unpack_ids
from storage.format.record import OpenedWrite, PieceReader, open_head, open_thread_seal, open_write
from storage.format.thread_ledgers.seal import ANCHOR_NAMESPACE, LedgerSeal
from storage.format.token import incarnation_tag, removal_mac, thread_tag
from storage.ledger.ledger import BlobLedger
from storage.model import Page
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope, TenantListing, TenantScope
from storage.statements.thread_ledgers import seals as ledgers_sql
from storage.statements.thread_ledgers.seals import LedgerOfThreadRow
from storage.statements.threads import archives as archives_sql
from storage.statements.threads import completeness as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.archives import SizedThreadRow
from storage.statements.threads.completeness import HeadOfThreadRow
from storage.statements.threads.threads import HeadRow
from storage.tiers.hot import HotRows
from storage.tiers.objects import ArchiveObjects
from storage.tiers.rows import BEFORE_WRITES, write_key
from storage.tiers.segments import open_directory, open_list, open_segments
from storage.verification.approvals import verify_approvals
from storage.verification.items import verify_items
from storage.verification.ledgers import verify_ledger
from storage.verification.report import FINDINGS_MAX, Code, Finding, Report

# After so long a stretch of a subject's threads ends with the thread it is at: the operator watches its progress.
STRETCH_SECONDS = 2.0
_THREADS_PAGE = 100
_HEADS_PAGE = 1000


class Verification:
    """Verifies a thread, or a subject."""

    def __init__(
        self,
        access: Access,
        losses: AcceptedLosses,
        archives: ArchiveObjects | None = None,
        stretch_seconds: float = STRETCH_SECONDS,
    ) -> None:
        self._access = access
        self._stretch_seconds = stretch_seconds
        self._losses = losses
        self._archives = archives or ArchiveObjects(None, None)

    async def thread(self, scope: Scope, thread_id: str) -> Report:
        """Verify one thread and its artifacts, and compare it with the anchored heads.

        Raises:
            ThreadNotFound: there is no trace of it, neither in the database nor anchored.
            IntegrityFailure: the subject's keys do not authenticate, or are gone.
            BlobUnavailable: the object store does not answer.
        """

        async def with_sealer(sealer: Sealer) -> Report:
            report = Report()
            anchored = await self._anchored(sealer, report)
            tag = thread_tag(sealer, thread_id)
            own = [each for each in anchored if each.thread == tag]
            found = await self._verify(scope, sealer, thread_id, report)
            await _take(report, damage_of_thread(self._access, scope, sealer, thread_id))
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await _compare_anchored(transaction, sealer, own, report, thread_id)
            if not found and not report.findings:
                raise ThreadNotFound
            return report

        await self._access.check_stored_keys(scope)
        return self._counted(await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound()))

    async def subject(
        self, scope: Scope, after: str = "", known: AnchoredHeads | None = None, items_after: str | None = None
    ) -> Report:
        """Verify a stretch of a subject's threads, by id, and after them of its items.

        The last stretch opens what is sealed about the subject's objects, and compares with the anchored heads.

        ``known`` is what is anchored of the tenant, if it was read before; else it is read now. ``after`` and
        ``items_after`` are those of the stretch before.

        Raises:
            IntegrityFailure: as `thread`.
            BlobUnavailable: the object store does not answer.
        """

        async def with_sealer(sealer: Sealer) -> Report:
            report = Report(items_after=items_after)
            until = time.monotonic() + self._stretch_seconds
            if items_after is None and not await self._threads(scope, sealer, after, report, until):
                return report
            if not await verify_items(self._access, scope, sealer, report, until):
                report.after = after
                return report
            report.items_after = None
            await _take(report, damage_of_subject(self._access, scope, sealer))
            anchored = await self._anchored(sealer, report, known)
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await _compare_anchored(transaction, sealer, anchored, report)
            return report

        await self._access.check_stored_keys(scope)
        try:
            return self._counted(await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound()))
        except ThreadNotFound:
            return Report()

    async def _threads(self, scope: Scope, sealer: Sealer, after: str, report: Report, until: float) -> bool:
        """Verify threads until some time; returns whether those were all."""
        async for thread_id in self._access.unit_of_work.each(scope, sql.TRACES, after, _THREADS_PAGE):
            await self._verify(scope, sealer, thread_id, report)
            if time.monotonic() > until or len(report.findings) >= FINDINGS_MAX:
                report.after = thread_id
                return False
        return True

    async def lost_heads(self, scope: Scope, known: AnchoredHeads) -> list[AnchoredHead]:
        """Anchored heads of a subject that the database has not come to; counts no damage."""

        async def with_sealer(sealer: Sealer) -> list[AnchoredHead]:
            report = Report()
            anchored = await self._anchored(sealer, report, known)
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                return await _compare_anchored(transaction, sealer, anchored, report)

        return await self._access.with_existing_keys(scope, with_sealer, ThreadNotFound())

    async def subjects(self, scope: TenantScope, limit: int, after: tuple[str, ...] | None) -> Page[str]:
        """The tenant's subjects that have keys, by id: whose data there is to verify."""
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            found = await transaction.fetch_all(sql.SUBJECTS, after=after[0] if after else "", limit=limit)
        return Page(found, (found[-1],) if len(found) == limit else None)

    async def subjects_without_keys(self, scope: TenantScope) -> dict[str, bool]:
        """The tenant's subjects that have threads or items, and no key that opens them; True: destroyed ones are there.

        Only a shred that is under way leaves the latter, and nothing that a gateway does the former.
        """
        async with self._access.unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
            rows = await transaction.fetch_all(sql.SUBJECTS_WITHOUT_KEYS)
        return {row.subject_id: row.destroyed for row in rows}

    def _counted(self, report: Report) -> Report:
        for _ in report.findings:
            self._access.found_damage()
        return report

    def count_damage(self) -> None:
        """Count a finding that is no single subject's."""
        self._access.found_damage()

    async def _anchored(self, sealer: Sealer, report: Report, known: AnchoredHeads | None = None) -> list[AnchoredHead]:
        """What is anchored; read before the database, which therefore is never behind it."""
        if known is None:
            known = await self._losses.anchored(sealer.tenant_id)
        try:
            return known.of(sealer)
        except IntegrityFailure as error:
            report.findings.append(Finding(code="anchor", detail=str(error)))
            return []

    async def _verify(self, scope: Scope, sealer: Sealer, thread_id: str, report: Report) -> bool:
        """Verify a thread in one snapshot; returns whether there was any trace of it."""
        while True:
            damage: list[Finding] = []
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                has_ledger = await verify_ledger(
                    transaction,
                    sealer,
                    thread_id,
                    lambda code, detail: damage.append(Finding(code=code, detail=detail, thread_id=thread_id)),  # noqa: B023
                )
                has_approvals = await verify_approvals(
                    transaction,
                    sealer,
                    thread_id,
                    lambda code, detail: damage.append(Finding(code=code, detail=detail, thread_id=thread_id)),  # noqa: B023
                )
                archived = await _read_archived(transaction, thread_id)
                segmented = await _read_segmented(transaction, sealer, thread_id)
                if archived is None:
                    ledger = self._access.offload.ledger
                    found = await _Verifier(transaction, scope, sealer, thread_id, report, ledger).run()
            if archived is not None:
                if not await self._verify_archived(scope, sealer, thread_id, archived, report):
                    continue
                found = True
            if segmented is not None:
                await self._verify_segments(scope, sealer, segmented, report)
            report.findings += damage[:FINDINGS_MAX]
            return found or has_ledger or has_approvals

    async def _verify_segments(self, scope: Scope, sealer: Sealer, segmented: "_Segmented", report: Report) -> None:
        """Verify a thread's segments; what moved since the snapshot was as it should be when it moved."""
        thread_id, pieces = segmented.thread_id, dict[int, set[bytes]]()
        fault, frozen = segmented.fault, False
        for stub, listed in segmented.segments:
            if fault is not None:
                break
            known = pieces.setdefault(stub.volume, set())
            known.update(unpack_ids(listed.piece_ids))
            contents = ArchiveContents(sealer.without_share, thread_id, opens=not segmented.client_share)
            try:
                async with aclosing(self._archives.read(scope, sealer, stub)) as pages:
                    async for table, page in pages:
                        await contents.take(table, page)
                _compare_segment(contents, listed, known, opened=not segmented.client_share)
            except ThreadArchived:
                frozen = True
                continue
            except (IntegrityFailure, KeyDestroyed) as error:
                fault = f"segment {stub.segment}: {error}"
            report.checkpoints += contents.counts[CHECKPOINTS]
            report.pending_writes += contents.counts[PENDING_WRITES]
            report.pieces += contents.counts[CHUNKS]
        report.threads_frozen += frozen
        if fault is not None:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                now = await _read_segmented(transaction, sealer, thread_id)
            if now is not None and now.cold == segmented.cold:
                report.findings.append(Finding(code="archive", detail=fault, thread_id=thread_id))

    async def _verify_archived(
        self, scope: Scope, sealer: Sealer, thread_id: str, archived: "_Archived", report: Report
    ) -> bool:
        """Verify an archived thread, its object and the seals that stayed; False: it is somewhere else by now."""
        fault: str | None = None
        own = Report()
        try:
            await self._compare_archived(scope, sealer, thread_id, archived, own)
        except ThreadArchived:
            own.threads_frozen += 1
        except IntegrityFailure as error:
            fault = str(error)
        except KeyDestroyed:
            fault = "sealed under a key that does not exist any more"
        if fault is not None:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                if await _read_archived(transaction, thread_id) != archived:
                    return False  # restored, deleted or archived anew while its object was read
            report.findings.append(Finding(code="archive", detail=fault, thread_id=thread_id))
        report.threads += 1
        for name in ("threads_skipped", "threads_frozen", "checkpoints", "pending_writes", "pieces"):
            setattr(report, name, getattr(report, name) + getattr(own, name))
        return True

    async def _compare_archived(
        self, scope: Scope, sealer: Sealer, thread_id: str, archived: "_Archived", own: Report
    ) -> None:
        """Compare an archive with its thread's seals; ``own`` counts what was opened.

        Raises:
            ThreadArchived: The object has to be thawed first.
            IntegrityFailure: Something is not as it was written.
            KeyDestroyed: Something is sealed under a key that is gone.
        """
        stub = archived.proven_stub()
        check = ArchiveCheck(sealer, thread_id, archived.thread, archived.heads)
        async with aclosing(self._archives.read(scope, sealer, stub)) as pages:
            async for table, page in pages:
                await check.take(table, page)
        own.threads_skipped += check.client_share
        own.checkpoints += check.counts[CHECKPOINTS]
        own.pending_writes += check.counts[PENDING_WRITES]
        own.pieces += check.counts[CHUNKS]
        check.end()
        if not check.client_share:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.offload.ledger.pointers(transaction, sealer, check.blob_ids)


@dataclass(frozen=True, slots=True)
class _Archived:
    """What one snapshot shows of an archived thread."""

    thread: SizedThreadRow
    heads: list[HeadRow]
    stub: Stub | None

    def proven_stub(self) -> Stub:
        """The stub of a thread whose rows are in the archive and nowhere else.

        Raises:
            IntegrityFailure: There is none, or some are in the database.
        """
        if self.stub is None:
            raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
        if any(self.thread.counts.values()):
            raise IntegrityFailure("rows of an archived thread are in the database, too")
        return self.stub


class _Segmented(msgspec.Struct, frozen=True):
    """What one snapshot shows of a thread's segments; ``fault``: they are not what the cold sums say."""

    thread_id: str
    cold: bytes
    client_share: bool
    segments: list[tuple[Stub, SegmentList]]
    fault: str | None


async def _read_segmented(transaction: Transaction, sealer: Sealer, thread_id: str) -> _Segmented | None:
    """The segments of a thread, in the order of their numbers, or None if it has none."""
    row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
    if row is None or row.cold is None:
        return None
    found: list[tuple[Stub, SegmentList]] = []
    fault, client_share = None, False
    try:
        thread = open_thread_seal(sealer, thread_id, row.created_at, row.seal)
        client_share = thread.share_check is not None
        sums = ColdSums.open(sealer, thread_id, row.created_at, thread.incarnation, row.cold)
        total, directory = ColdSums(thread.incarnation), Directory()
        for each in (await open_segments(transaction, sealer, thread_id, sums)).all:
            stub = await transaction.fetch_only(archives_sql.SEGMENT_STUB, thread_id=thread_id, segment=each.segment)
            found.append((stub, await open_list(transaction, sealer, each)))
            total = total.with_segment(sealer.without_share, each, found[-1][1])
            directory = directory.with_segment(each, found[-1][1])
            if not client_share:
                _compare_cold_heads(sealer, thread, thread_id, found[-1][1])
        await open_directory(transaction, sealer, thread_id, sums)
        if total.with_directory(sealer.without_share, thread_id, directory) != sums:
            fault = "the lists of the thread's segments are not what its cold sums say"
    except (IntegrityFailure, KeyDestroyed) as error:
        fault = str(error) or "a segment does not authenticate"
    found.sort(key=lambda each: each[0].segment)
    return _Segmented(thread_id, row.cold, client_share, found, fault)


def _compare_cold_heads(sealer: Sealer, thread: ThreadSeal, thread_id: str, listed: SegmentList) -> None:
    """Compare the heads that left with a segment with what is listed of their namespaces.

    Raises:
        IntegrityFailure: One does not authenticate, or counts other checkpoints or pending writes.
    """
    live, writes = (
        listed.live_sets(),
        {(each.namespace, each.checkpoint_id): each.writes for each in listed.checkpoints},
    )
    for each in listed.heads:
        row = HeadRow(each.namespace, each.head_id, each.sequence, each.seal)
        head = open_own_head(sealer, thread_id, thread, row)
        own, written = live.get(each.namespace, LiveSet()), writes.get((each.namespace, each.head_id))
        if (head.live, head.writes, each.mac) != (
            each.earlier.join(own),
            written,
            namespace_mac(sealer, each.namespace),
        ):
            raise IntegrityFailure("a head in a segment counts other checkpoints or pending writes than are listed")


def _compare_segment(contents: ArchiveContents, listed: SegmentList, known: set[bytes], *, opened: bool) -> None:
    """Compare what is in a segment's object with its list; ``known``: the pieces of its volume until here.

    Raises:
        IntegrityFailure: They differ.
    """
    if not contents.named <= known or contents.present != {*unpack_ids(listed.piece_ids)}:
        raise IntegrityFailure("a stored piece is missing")
    if not opened:
        return
    if (contents.live, contents.writes.total) != (listed.live_sets(), listed.writes):
        raise IntegrityFailure("it has other checkpoints or pending writes than are listed")


async def _read_archived(transaction: Transaction, thread_id: str) -> _Archived | None:
    """An archived thread, or None if it is hot, or there is none."""
    tier = await transaction.fetch_one(sql.TIER, thread_id=thread_id)
    if tier is None or tier == "hot":
        return None
    thread = await transaction.fetch_only(archives_sql.SIZED_THREAD, thread_id=thread_id)
    stub = await transaction.fetch_one(archives_sql.STUB, thread_id=thread_id)
    heads = await transaction.fetch_all(threads_sql.HEADS, thread_id=thread_id)
    return _Archived(thread, heads, stub)


class _Verifier:
    """One thread in one snapshot."""

    def __init__(
        self,
        transaction: Transaction,
        scope: Scope,
        sealer: Sealer,
        thread_id: str,
        report: Report,
        ledger: BlobLedger,
    ) -> None:
        self._transaction = transaction
        self._scope = scope
        self._sealer = sealer
        self._thread_id = thread_id
        self._report = report
        self._rows = HotRows(transaction, thread_id)
        self._ledger = ledger
        self._sums = ColdSums(b"")
        self._named: set[bytes] = set()
        # Of checkpoints, by namespace and id; None when a write did not open.
        self._statuses: dict[tuple[str, str], set[str]] | None = {}
        self._found_before = len(report.findings)

    def _find(self, code: Code, detail: str, namespace: str | None = None, checkpoint_id: str | None = None) -> None:
        if len(self._report.findings) - self._found_before < FINDINGS_MAX:
            self._report.findings.append(
                Finding(
                    code=code,
                    detail=detail,
                    thread_id=self._thread_id,
                    namespace=namespace,
                    checkpoint_id=checkpoint_id,
                )
            )

    @contextmanager
    def _reporting(self, code: Code, namespace: str | None = None, checkpoint_id: str | None = None) -> Iterator[None]:
        try:
            yield
        except IntegrityFailure as error:
            self._find(code, str(error), namespace, checkpoint_id)
        except KeyDestroyed:
            self._find(code, "sealed under a key that does not exist any more", namespace, checkpoint_id)

    async def run(self) -> bool:
        row = await self._transaction.fetch_one(sql.THREAD, thread_id=self._thread_id)
        heads = await self._transaction.fetch_all(threads_sql.HEADS, thread_id=self._thread_id)
        namespaces = await self._rows.namespaces()
        thread: ThreadSeal | None = None
        if row is not None:
            with self._reporting("thread-seal"):
                thread = open_thread_seal(self._sealer, self._thread_id, row.created_at, row.seal)
                compare_listed(thread, client_share=row.client_share, parent_thread_id=row.parent_thread_id)
            if row.client_share if thread is None else thread.share_check is not None:
                self._report.threads_skipped += 1
                return True
        if row is not None and thread is not None:
            with self._reporting("archive"):
                incarnation = thread.incarnation
                self._sums = ColdSums.open(self._sealer, self._thread_id, row.created_at, incarnation, row.cold)
        if thread is not None:
            with self._reporting("namespaces"):
                hot = [each.namespace for each in heads]
                compare_namespaces(self._sealer, thread, hot, self._sums.namespaces)
        seen, writes = await self._writes()
        if thread is not None and writes is not None:
            with self._reporting("pending-writes"):
                compare_writes(writes.total.join(self._sums.writes), thread.writes)
        for head in heads:
            await self._namespace(head, thread, writes)
        for namespace in {*namespaces} - {each.namespace for each in heads}:
            self._find("head-missing", "the namespace has checkpoints but no head", namespace)
            await self._checkpoints(namespace)
        pieces = await self._pieces()
        stub = await self._transaction.fetch_one(archives_sql.STUB, thread_id=self._thread_id)
        if stub is not None:
            self._find("archive", "a thread that is not archived has the stub of one")
        found = row is not None or bool(heads or namespaces or seen or pieces or stub)
        if row is None and found:
            self._find("thread-missing", "the thread's row is gone, but not what belongs to it")
        self._report.threads += found
        return found

    async def _namespace(self, row: HeadRow, thread: ThreadSeal | None, writes: Writes | None) -> None:
        namespace = row.namespace
        read, newest = await self._checkpoints(namespace)
        if newest != row.head_id:
            self._find("head-checkpoint", "the newest checkpoint is not the head", namespace, row.head_id)
        if thread is None:
            return
        with self._reporting("head-seal", namespace):
            head = open_own_head(self._sealer, self._thread_id, thread, row)
            if read is not None and read.join(self._sums.of(namespace)) != head.live:
                expected = head.live.count - self._sums.of(namespace).count
                self._find("live-set", f"{expected} checkpoints expected, {read.count} found", namespace)
            if writes is not None:
                with self._reporting("pending-writes", namespace, row.head_id):
                    compare_writes(writes.of(namespace, row.head_id), head.writes)

    async def _checkpoints(self, namespace: str) -> tuple[LiveSet | None, str | None]:
        """The live set of a namespace (None when a row does not open) and the id of its newest checkpoint."""
        read: LiveSet | None = LiveSet()
        newest: str | None = None
        after = ""
        while True:
            try:
                async for opened in walk(self._rows, self._sealer, namespace, after):
                    self._report.checkpoints += 1
                    newest = after = opened.columns.checkpoint_id
                    self._named.update(opened.ids)
                    if self._statuses is not None:
                        with self._reporting("checkpoint", namespace, after):
                            opened.check_outcome(self._statuses.get((namespace, after), ()))
                    if read is not None:
                        read = read.add(opened.member)
            except (IntegrityFailure, KeyDestroyed) as error:
                # Name the row that did not open, pass over it, go on behind it.
                read = None
                newest = await self._rows.next_checkpoint(namespace, after)
                assert newest is not None  # noqa: S101  for the type checker: it is the one that did not open
                after = newest
                self._find("checkpoint", str(error), namespace, after)
            else:
                return read, newest

    async def _writes(self) -> tuple[int, Writes | None]:
        """The number of pending writes and their sums (None when a row does not open)."""
        seen = 0
        writes: Writes | None = Writes()
        after = BEFORE_WRITES
        while True:
            rows = await self._rows.writes_after(after, STRETCH_ROWS)
            for row in rows:
                seen += 1
                after = write_key(row)
                opened: OpenedWrite | None = None
                with self._reporting("pending-write", row.namespace, row.checkpoint_id):
                    opened = open_write(self._sealer, row)
                if opened is None:
                    writes = self._statuses = None
                    continue
                if opened.columns.status is not None and self._statuses is not None:
                    place = (row.namespace, row.checkpoint_id)
                    self._statuses.setdefault(place, set()).add(opened.columns.status)
                self._named.update(opened.ids)
                if writes is not None:
                    writes.add(row.namespace, row.checkpoint_id, opened.mac)
            if len(rows) < STRETCH_ROWS:
                self._report.pending_writes += seen
                return seen, writes

    async def _pieces(self) -> int:
        """Open every piece, and what opens those in the object store; that their objects are there is fsck's to say.

        What nothing names any more is no damage: the next prune collects it.
        """
        children: dict[bytes, list[bytes]] = {}
        after = b""
        while True:
            rows = await self._rows.pieces_after(after, STRETCH_ROWS)
            reader = PieceReader(self._sealer)
            for row in rows:
                after = row.piece_id
                children[after] = []
                with self._reporting("piece"):
                    reader.add([row])
                    if reader.look_up(after).data is None and row.named_ids is not None:
                        named = [UUID(bytes=row.named_ids)]
                        await self._ledger.pointers(self._transaction, self._sealer, named)
                    children[after] = [] if row.children is None else unpack_ids(row.children)
            if len(rows) < STRETCH_ROWS:
                break
        wanted = list(self._named)
        needed: set[bytes] = set()
        while wanted:
            piece_id = wanted.pop()
            if piece_id not in needed:
                needed.add(piece_id)
                wanted.extend(children.get(piece_id, ()))
        missing = len(needed - children.keys())
        if missing:
            self._find("piece-missing", f"{missing} of {len(needed)} pieces are missing")
        self._report.pieces += len(children)
        return len(children)


async def _take(report: Report, damage: AsyncGenerator[BlobDamage, None]) -> None:
    """Add what is damaged of a subject's objects to a report, up to `FINDINGS_MAX`."""
    async with aclosing(damage) as found:
        left = FINDINGS_MAX
        async for each in found:
            report.findings.append(Finding(code=each.code, detail=each.detail, thread_id=each.thread_id))
            left -= 1
            if not left:
                return


async def _compare_anchored(
    transaction: Transaction,
    sealer: Sealer,
    anchored: Iterable[AnchoredHead],
    report: Report,
    thread_id: str | None = None,
) -> list[AnchoredHead]:
    """Compare anchored heads with the heads there are, or with proof that a request removed them.

    Returns:
        Those that the database has not come to, which are findings of the report.
    """
    comparison = _Comparison(sealer, anchored, report)
    after = ("", "")
    while comparison.unmatched:
        rows = await transaction.fetch_all(
            sql.HEADS_AFTER,
            thread_id=thread_id,
            after_thread=after[0],
            after_namespace=after[1],
            limit=_HEADS_PAGE,
        )
        for row in rows:
            after = (row.thread_id, row.namespace or "")
            comparison.take(row)
        if len(rows) < _HEADS_PAGE:
            break
    if comparison.unmatched:
        await _compare_ledgers(transaction, comparison, thread_id)
    if comparison.unmatched:
        await _compare_cold(transaction, sealer, comparison, thread_id)
    lost = comparison.lost
    for known in comparison.unexplained():
        removal = removal_mac(sealer, known.thread, known.incarnation)
        if not await transaction.fetch_only(sql.WAS_REMOVED, removal=removal):
            report.findings.append(
                Finding(
                    code="missing-since-anchor",
                    detail="a thread that was anchored is not there, and no request removed it",
                    thread_id=thread_id,
                )
            )
            lost.append(known)
    return lost


async def _compare_ledgers(transaction: Transaction, comparison: "_Comparison", thread_id: str | None) -> None:
    """Account for ledgers of threads that are there."""
    after = ""
    while True:
        rows = await transaction.fetch_all(ledgers_sql.AFTER, thread_id=thread_id, after=after, limit=_HEADS_PAGE)
        for row in rows:
            after = row.thread_id
            comparison.take_ledger(row)
        if len(rows) < _HEADS_PAGE:
            return


async def _compare_cold(
    transaction: Transaction, sealer: Sealer, comparison: "_Comparison", thread_id: str | None
) -> None:
    """Account for heads that left the database with their namespaces; what is damaged was found with its thread."""
    after = ""
    while True:
        rows = await transaction.fetch_all(sql.SEGMENTED_AFTER, thread_id=thread_id, after=after, limit=_THREADS_PAGE)
        for row in rows:
            after = row.thread_id
            with suppress(IntegrityFailure, KeyDestroyed):
                thread = open_thread_seal(sealer, after, row.created_at, row.thread_seal)
                sums = ColdSums.open(sealer, after, row.created_at, thread.incarnation, row.cold)
                if not sums.namespaces.count:
                    continue
                for segment in (await open_segments(transaction, sealer, after, sums)).all:
                    for each in (await open_list(transaction, sealer, segment)).heads:
                        at = (each.namespace, each.head_id, each.sequence, each.seal)
                        place = (after, row.created_at, row.thread_seal, row.client_share)
                        comparison.take(HeadOfThreadRow(*place, *at))
        if len(rows) < _THREADS_PAGE:
            return


class _Comparison:
    """Anchored heads that no head has accounted for yet."""

    def __init__(self, sealer: Sealer, anchored: Iterable[AnchoredHead], report: Report) -> None:
        self._sealer = sealer
        self._report = report
        self.lost: list[AnchoredHead] = []
        self.unmatched = {(each.namespace, each.incarnation): each for each in anchored}
        self._threads: dict[tuple[bytes, bytes], tuple[str, int]] = {}
        self._passed_over: set[bytes] = set()

    def take(self, row: HeadOfThreadRow) -> None:
        """Account for a thread, and a head of it if the row has one."""
        thread_id, namespace = row.thread_id, row.namespace
        tag = thread_tag(self._sealer, thread_id)
        head: HeadSeal | None = None
        try:
            thread = open_thread_seal(self._sealer, thread_id, row.created_at, row.thread_seal)
            if thread.share_check is not None:
                self._passed_over.add(tag)
                return
            if row.head_id is not None and row.sequence is not None and row.seal is not None:
                place = (namespace or "", row.head_id, row.sequence, row.seal)
                head = open_head(self._sealer, thread_id, thread, *place)
        except (IntegrityFailure, KeyDestroyed):
            self._passed_over.add(tag)  # found when the thread itself was verified
            return
        life = incarnation_tag(self._sealer, thread.incarnation)
        self._threads[tag, life] = (thread_id, thread.floor)
        if head is None or namespace is None:
            return
        known = self.unmatched.pop((namespace_tag(self._sealer, thread_id, namespace), life), None)
        if known is not None and head.sequence < known.sequence:
            detail = f"at change {head.sequence}, but {known.sequence} is anchored"
            self._find(known, detail, thread_id, namespace)

    def take_ledger(self, row: LedgerOfThreadRow) -> None:
        """Account for the ledger of a thread."""
        with suppress(IntegrityFailure, KeyDestroyed):  # found when the thread itself was verified
            thread = open_thread_seal(self._sealer, row.thread_id, row.created_at, row.thread_seal)
            LedgerSeal.open(self._sealer, row.thread_id, thread.incarnation, row.sequence, row.seal)
            place = namespace_tag(self._sealer, row.thread_id, ANCHOR_NAMESPACE)
            known = self.unmatched.pop((place, incarnation_tag(self._sealer, thread.incarnation)), None)
            if known is not None and row.sequence < known.sequence:
                detail = f"its ledger is at change {row.sequence}, but {known.sequence} is anchored"
                self._find(known, detail, row.thread_id)

    def unexplained(self) -> Iterator[AnchoredHead]:
        """Anchored heads whose thread, or that life of it, is not there."""
        for known in self.unmatched.values():
            found = self._threads.get((known.thread, known.incarnation))
            if found is None:
                if known.thread not in self._passed_over:
                    yield known
            elif known.namespace == namespace_tag(self._sealer, found[0], ANCHOR_NAMESPACE):
                self._find(known, f"a ledger that had come to change {known.sequence} is not there", found[0])
            elif found[1] < known.sequence:  # else a request removed the namespace
                self._find(known, f"a namespace that had come to change {known.sequence} is not there", found[0])

    def _find(self, known: AnchoredHead, detail: str, thread_id: str, namespace: str | None = None) -> None:
        self.lost.append(known)
        self._report.findings.append(
            Finding(code="older-than-anchor", detail=detail, thread_id=thread_id, namespace=namespace)
        )
