"""Whether all of it is there: comparing what was read with what the seals say must be there.

Every row authenticates itself; this module answers for rows that are not there, or are there again. Its functions run
in the caller's snapshot, so that a save or a removal at the same time is seen whole or not at all and never looks like
damage. Nothing is written.
"""

import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from crypto import Sealer
from storage.concurrency.turns import Pauses
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure, RollbackDetected
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, write_mac
from storage.format.cold.segment import ColdSums, head_digest
from storage.format.record import (
    CheckpointRow,
    MemberRow,
    OpenedCheckpoint,
    check_share,
    open_checkpoint,
    open_head,
    open_thread,
    open_thread_seal,
)
from storage.format.token import ThreadToken, incarnation_tag, removal_mac, thread_tag
from storage.model import HistoryQuery
from storage.postgres.unit_of_work import Transaction
from storage.statements.threads import completeness as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.checkpoints import LoadedRows
from storage.statements.threads.threads import HeadRow
from storage.tiers.rows import Rows, WholeRows
from storage.tiers.segments import find_cold_head
from storage.tiers.snapshots import Snapshot, ThreadElsewhere

# Rows that are opened at a time while a namespace is walked.
STRETCH_ROWS = 500
_MARKER_CHARACTERS = 32
_CURSOR_PARTS = 3
_THREAD_REMOVED = "a thread was removed outside the gateway, but not what belongs to it"


def compare_namespaces(
    sealer: Sealer, thread: ThreadSeal, namespaces: Iterable[str], cold: LiveSet | None = None
) -> None:
    """Compare the namespaces that have a head with those the thread's seal counts.

    ``cold`` are those that ``namespaces`` leave out, because they are in segments with their heads.

    Raises:
        IntegrityFailure: they differ.
    """
    found = ThreadSeal(thread.incarnation, cold or LiveSet())
    for namespace in namespaces:
        found = found.with_namespace(sealer, namespace)
    if found.namespaces != thread.namespaces:
        raise IntegrityFailure("a namespace was added to or taken from this thread outside the gateway")


class RowSeals(msgspec.Struct, frozen=True):
    """The seals that a load finds beside a checkpoint, opened: of the thread's life of now."""

    head_id: str
    thread: ThreadSeal
    head: HeadSeal
    sums: ColdSums

    @classmethod
    def open(cls, sealer: Sealer, thread_id: str, namespace: str, rows: LoadedRows) -> "RowSeals":
        """Open them.

        Raises:
            IntegrityFailure: one does not authenticate, is missing, or is of another life of the thread; or there is
                a newer checkpoint than the head.
        """
        if rows.thread_seal is None or rows.thread_created_at is None:
            raise IntegrityFailure(_THREAD_REMOVED)
        thread = open_thread(sealer, thread_id, rows.thread_created_at, rows.thread_seal)
        head = open_head(sealer, thread_id, thread, namespace, rows.head_id, rows.sequence, rows.head_seal)
        if rows.is_newer:
            raise IntegrityFailure("a checkpoint is newer than the head")
        created_at = rows.thread_created_at
        sums = ColdSums.open(sealer, thread_id, created_at, thread.incarnation, rows.cold)
        return cls(rows.head_id, thread, head, sums)

    def checkpoint(self, sealer: Sealer, row: CheckpointRow) -> OpenedCheckpoint:
        """Open the checkpoint that was found with them.

        Raises:
            IntegrityFailure: it does not authenticate, or no head can have come before it.
        """
        if row.checkpoint_id.encode() > self.head_id.encode():
            raise IntegrityFailure("the checkpoint is newer than the head")
        return open_checkpoint(sealer, row)


def open_own_head(sealer: Sealer, thread_id: str, thread: ThreadSeal, row: HeadRow) -> HeadSeal:
    """Open a head row that must belong to this life of the thread.

    Raises:
        IntegrityFailure: it does not.
    """
    return open_head(sealer, thread_id, thread, row.namespace, row.head_id, row.sequence, row.seal)


def compare_listed(thread: ThreadSeal, *, client_share: bool, parent_thread_id: str | None) -> None:
    """Compare a thread's seal with the two clear columns that say what it says.

    Raises:
        IntegrityFailure: they differ.
    """
    if (thread.share_check is not None) != client_share:
        raise IntegrityFailure("whether the thread is under a client-held share was altered")
    if (None if thread.link is None else thread.link.thread_id) != parent_thread_id:
        raise IntegrityFailure("the thread that it is linked to was altered")


async def walk(rows: WholeRows, sealer: Sealer, namespace: str, after: str = "") -> AsyncIterator[OpenedCheckpoint]:
    """All checkpoints of a namespace with greater ids than ``after``, opened, oldest first."""
    pauses = Pauses()
    while True:
        found = await rows.checkpoints_after(namespace, after, STRETCH_ROWS)
        for row in found:
            opened = open_checkpoint(sealer, row)
            yield opened
            await pauses.after(opened.opened_bytes)
        if len(found) < STRETCH_ROWS:
            return
        after = found[-1].checkpoint_id


class Writes:
    """The pending writes of one thread as its seals see them: sums, by checkpoint and of all."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, namespace: str, checkpoint_id: str, mac: bytes) -> None:
        """Take one more write, by its `write_mac`."""
        place = (namespace, checkpoint_id)
        count, total = self._of.get(place, (0, 0))
        self._of[place] = (count + 1, total + int.from_bytes(mac))

    def of(self, namespace: str, checkpoint_id: str) -> LiveSet:
        """Those of one checkpoint."""
        return NO_WRITES.join(LiveSet(*self._of.get((namespace, checkpoint_id), (0, 0))))

    @property
    def total(self) -> LiveSet:
        """All of them."""
        counts, totals = zip(*self._of.values(), strict=True) if self._of else ((), ())
        return NO_WRITES.join(LiveSet(sum(counts), sum(totals)))


def compare_checkpoints(found: LiveSet, expected: LiveSet) -> None:
    """Compare the checkpoints of a namespace, or of some, with what their heads say of them.

    Raises:
        IntegrityFailure: one is missing, or was put back.
    """
    if found != expected:
        raise IntegrityFailure("checkpoints were added to or taken from this thread outside the gateway")


def compare_writes(found: LiveSet, expected: LiveSet) -> None:
    """Compare pending writes with what a seal says of them.

    Raises:
        IntegrityFailure: one is missing, was put back, or is not the newest at its place.
    """
    if found != expected:
        raise IntegrityFailure(
            "pending writes were added to, replaced in or taken from this thread outside the gateway"
        )


async def check_writes(
    sealer: Sealer, rows: Iterable[MemberRow], thread: ThreadSeal | None, cold: LiveSet = NO_WRITES
) -> Writes:
    """Compare all pending writes of a thread with its seal, by their members and places. Opens none.

    ``rows`` are those that are in no segment, ``cold`` the sum of all others.

    Raises:
        IntegrityFailure: they differ, or there are some but no thread.
    """
    writes = Writes()
    pauses = Pauses()
    for row in rows:
        mac = write_mac(sealer, row.namespace, row.checkpoint_id, row.task_id, row.idx, row.member)
        writes.add(row.namespace, row.checkpoint_id, mac)
        await pauses.after(0)
    compare_writes(writes.total.join(cold), NO_WRITES if thread is None else thread.writes)
    return writes


async def admit(transaction: Transaction, sealer: Sealer, thread_id: str) -> ThreadSeal | None:
    """The thread's seal if the sealer fits the thread, None if there is none: before what belongs to it is opened.

    Raises:
        ClientShareRequired: the thread was made under a share, and the sealer has none.
        ClientShareWrong: the thread was made under another share.
        ClientShareUnexpected: the thread was made without one.
        IntegrityFailure: the thread's seal does not authenticate.
    """
    row = await transaction.fetch_one(threads_sql.READ, thread_id=thread_id)
    return None if row is None else open_thread(sealer, thread_id, row.created_at, row.seal)


async def admit_reader(snapshot: Snapshot, sealer: Sealer) -> ThreadSeal | None:
    """Check as `admit` does, before the thread's checkpoints, pending writes or pieces are read in this snapshot.

    Raises:
        ThreadElsewhere: They are in its archive.
        ClientShareRequired, ClientShareWrong, ClientShareUnexpected, IntegrityFailure: As `admit`.
    """
    row = await snapshot.thread()
    if row is None:
        return None
    thread = open_thread(sealer, snapshot.thread_id, row.created_at, row.seal)
    snapshot.check_tier(row.tier, row.cold)
    return thread


async def check_absent(snapshot: Snapshot, sealer: Sealer, namespace: str) -> None:
    """Return if a namespace may be without a head.

    Raises:
        IntegrityFailure: the thread counts the namespace, or something is left of it.
        ThreadElsewhere: the thread's checkpoints are in its archive, where something may be left, or the namespace left
            with its head.
    """
    row = await snapshot.thread()
    sums = None
    if row is not None:
        thread = open_thread(sealer, snapshot.thread_id, row.created_at, row.seal)
        sums = ColdSums.open(sealer, snapshot.thread_id, row.created_at, thread.incarnation, row.cold)
    if await snapshot.unsegmented.count(namespace) or (sums is not None and sums.of(namespace).count):
        raise IntegrityFailure("the namespace has checkpoints but no head")
    if row is None or sums is None:
        return
    if row.tier != "hot" and not snapshot.is_archived:
        raise ThreadElsewhere
    # A reader that sees into segments has looked there for its head; others need to see into them only if it is there.
    if snapshot.sums is None and await find_cold_head(
        snapshot.transaction, sealer, snapshot.thread_id, sums, namespace
    ):
        raise ThreadElsewhere
    compare_namespaces(sealer, thread, [each.namespace for each in await snapshot.heads()], sums.namespaces)


async def check_count(rows: Rows, namespace: str, head: HeadSeal, cold: LiveSet | None = None) -> None:
    """Compare the number of a namespace's checkpoints with its live set: what a miss costs, without opening any.

    ``cold``: those that ``rows`` leave out, because they are in segments.

    Raises:
        IntegrityFailure: there are more or fewer.
    """
    if await rows.count(namespace) + (0 if cold is None else cold.count) != head.live.count:
        raise IntegrityFailure("checkpoints were added to or taken from this thread outside the gateway")


async def check_token(transaction: Transaction, sealer: Sealer, thread_id: str, text: str) -> None:
    """Compare a namespace with what a client has seen of it.

    Raises:
        InvalidState: ``text`` is no token.
        RollbackDetected: the namespace is older than the token, or of another life of the thread, and no request
            removed what the token was given for.
        IntegrityFailure: a seal does not authenticate.
    """
    macs = sealer.without_share  # a removal, too, is remembered without the share
    token = ThreadToken.decode(macs, thread_id, text)
    row = await transaction.fetch_one(sql.SEALS, thread_id=thread_id, namespace=token.namespace)
    thread = None
    if row is not None and row.thread_seal is not None and row.thread_created_at is not None:
        thread = open_thread_seal(sealer, thread_id, row.thread_created_at, row.thread_seal)
    if row is not None and thread is not None and incarnation_tag(macs, thread.incarnation) == token.incarnation_tag:
        check_share(sealer, thread_id, thread)
        at: HeadRow | None = None
        if row.head_id is not None and row.sequence is not None and row.seal is not None:
            at = HeadRow(token.namespace, row.head_id, row.sequence, row.seal)
        elif row.cold is not None and row.thread_created_at is not None:
            sums = ColdSums.open(macs, thread_id, row.thread_created_at, thread.incarnation, row.cold)
            cold = await find_cold_head(transaction, sealer, thread_id, sums, token.namespace)
            at = None if cold is None else cold.row
        if at is None:
            admitted = thread.floor >= token.sequence
        else:
            admitted = token.admits(macs, at.head_id, open_own_head(sealer, thread_id, thread, at))
        if not admitted:
            raise RollbackDetected
        return
    removal = removal_mac(macs, thread_tag(macs, thread_id), token.incarnation_tag)
    if not await transaction.fetch_only(sql.WAS_REMOVED, removal=removal):
        raise RollbackDetected


async def check_acknowledged(
    transaction: Transaction,
    sealer: Sealer,
    thread_id: str,
    acknowledged: ThreadToken | None,
    head_id: str | None,
    head: HeadSeal | None,
) -> None:
    """Compare a namespace with what this process acknowledged of it, at no cost if it went on since.

    Raises:
        RollbackDetected, IntegrityFailure: as `check_token`.
    """
    if acknowledged is None:
        return
    macs = sealer.without_share
    if head is None or head_id is None or not acknowledged.admits(macs, head_id, head):
        await check_token(transaction, sealer, thread_id, acknowledged.encode(macs, thread_id))


@dataclass(frozen=True, slots=True)
class Listing:
    """What a listing that leaves nothing out has read so far, on whichever page it is.

    ``marker`` says between which changes of the thread it began; after another change the sum says nothing, and the
    last page reads the namespaces once more, in its own snapshot.
    """

    marker: str
    read: LiveSet

    @classmethod
    def resume(cls, after: tuple[str, ...]) -> "Listing | None":
        """Take up the listing that the cursor of the page before has; None if it began without a sum."""
        if len(after) == _CURSOR_PARTS:
            return None
        marker, count, total = after[_CURSOR_PARTS:]
        return cls(marker, LiveSet(int(count), int(total, 16)))

    def cursor(self) -> tuple[str, ...]:
        """What to add to the cursor of the next page."""
        return (self.marker, str(self.read.count), f"{self.read.total:x}")

    def take(self, page: Iterable[OpenedCheckpoint]) -> "Listing":
        """With one more page."""
        read = self.read
        for opened in page:
            read = read.add(opened.member)
        return Listing(self.marker, read)


def leaves_nothing_out(query: HistoryQuery) -> bool:
    """Whether reading all pages of a query reads a thread, or a namespace of it, whole."""
    return (
        query.thread_id is not None
        and not query.metadata
        and all(
            each is None
            for each in (
                query.before, query.status, query.step, query.run_id, query.source, query.agent, query.since,
                query.until,
            )
        )
    )  # fmt: skip


def _marker(heads: Sequence[HeadRow], cold: LiveSet) -> str:
    """Of the heads of a listing; ``cold``: of those that are in segments, by `storage.format.cold.segment.head_digest`.

    So it is the same wherever they are.
    """
    total = cold
    for row in heads:
        total = total.add(head_digest(row.namespace, row.head_id, row.sequence))
    return hashlib.sha256(encode_msgpack((total.count, f"{total.total:x}"))).hexdigest()[:_MARKER_CHARACTERS]


def _cold_of(snapshot: Snapshot, namespace: str | None) -> tuple[LiveSet, LiveSet]:
    """Where namespaces stand that are cold as a whole, and their checkpoints: of a listing over all namespaces."""
    if snapshot.sums is None or namespace is not None:
        return LiveSet(), LiveSet()
    return snapshot.sums.heads, snapshot.sums.ended


async def _wanted(snapshot: Snapshot, namespace: str | None) -> list[HeadRow]:
    """The head of a namespace, or all that are in the database: the newest of a thread is always one of those."""
    heads = await snapshot.heads()
    if namespace is None:
        return heads
    found = [row for row in heads if row.namespace == namespace]
    cold = None if found else await snapshot.cold_head(namespace)
    return found if cold is None else [cold]


async def begin_listing(
    snapshot: Snapshot,
    sealer: Sealer,
    query: HistoryQuery,
    thread: ThreadSeal | None,
    first: OpenedCheckpoint | None,
) -> Listing:
    """Start a listing of a thread, whose newest checkpoint must be a head.

    Raises:
        IntegrityFailure: it is not: newer ones were taken away, or older ones put back.
    """
    heads = await _wanted(snapshot, query.namespace)
    newest = max(heads, key=lambda row: row.head_id.encode(), default=None)
    if newest is not None:
        if thread is None:
            raise IntegrityFailure(_THREAD_REMOVED)
        open_own_head(sealer, snapshot.thread_id, thread, newest)
    if (newest and newest.head_id) != (first and first.columns.checkpoint_id):
        raise IntegrityFailure("the newest checkpoint is not the head")
    return Listing(_marker(heads, _cold_of(snapshot, query.namespace)[0]), LiveSet())


async def end_listing(snapshot: Snapshot, sealer: Sealer, query: HistoryQuery, listing: Listing) -> None:
    """Compare a listing that came to its end with the seals.

    Raises:
        IntegrityFailure: a checkpoint or a namespace is missing, or there is one that should not be.
    """
    row, wanted = await snapshot.thread(), await _wanted(snapshot, query.namespace)
    cold, ended = _cold_of(snapshot, query.namespace)
    marker = _marker(wanted, cold)
    if row is None:
        if wanted or (listing.read.count and listing.marker == marker):
            raise IntegrityFailure(_THREAD_REMOVED)
        return
    thread = open_thread(sealer, snapshot.thread_id, row.created_at, row.seal)
    hot = {each.namespace for each in await snapshot.heads()}
    compare_namespaces(sealer, thread, hot, snapshot.cold_namespaces)
    expected = ended
    for each in wanted:
        expected = expected.join(open_own_head(sealer, snapshot.thread_id, thread, each).live)
    found = listing.read
    if listing.marker != marker:
        found = ended
        for each in wanted:
            if each.namespace not in hot:  # nothing of it is in the database, or it would be missed elsewhere
                found = found.join(open_own_head(sealer, snapshot.thread_id, thread, each).live)
            elif snapshot.sums is not None:
                found = found.join(snapshot.sums.of(each.namespace))
            async for opened in walk(snapshot.unsegmented, sealer, each.namespace):
                found = found.add(opened.member)
    compare_checkpoints(found, expected)
