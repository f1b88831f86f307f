"""What goes into the next segment: the rows of as many checkpoints as it may have, and the pieces that they add.

Owns the bounds of one segment but for the number of its checkpoints (`storage.archive.choosing`): its rows, their
bytes, those of its pieces, and what all of it takes of a reader's memory. A single checkpoint goes whole, however large
it is. It only reads.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final

import msgspec

from storage.archive.choosing import Volume
from storage.errors import IntegrityFailure
from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, TABLES, TAGS, ThreadRows
from storage.format.pieces import unpack_ids
from storage.postgres.unit_of_work import Transaction
from storage.statements.threads import archives as sql
from storage.statements.threads.archives import ENVELOPES, PieceSizeRow
from storage.threads.plans import Plan, columns_of
from storage.threads.thinning import CheckpointRef
from storage.tiers.views import ROW_BYTES

# One segment.
SEGMENT_ROWS_MAX: Final = 2000
SEGMENT_BYTES_MAX: Final = 4 * 1024 * 1024
# And of the pieces that it adds to its volume: a reader holds segments of one volume, and a flip writes one. A single
# checkpoint may have more.
SEGMENT_PIECES_BYTES_MAX: Final = 8 * 1024 * 1024
# And what all of it takes of a reader's memory, which is more where pieces and rows are small; likewise.
SEGMENT_READ_BYTES_MAX: Final = 16 * 1024 * 1024
# Checkpoints whose rows are read at a time.
_READ_ROWS: Final = 200
# What a row takes in the object beside its envelope, about.
_ROW_BYTES: Final = 512


class Draft(msgspec.Struct, frozen=True):
    """A segment that is about to be written.

    Attributes:
        rows: Its rows, in the order in which objects have them.
        refs: Its checkpoints, in the order of their ids.
    """

    rows: ThreadRows
    refs: list[CheckpointRef]

    @property
    def content_bytes(self) -> int:
        """What it will take in an object, about."""
        return sum(_bytes_of(self.rows, table) for table in TABLES)

    @property
    def memory_bytes(self) -> int:
        """What it will take of a reader's memory: `storage.tiers.views.memory_bytes`."""
        return sum(map(_memory_of, ENVELOPES, (self.rows.of(table) for table in ENVELOPES)))


async def drafted(
    transaction: Transaction,
    thread_id: str,
    plan: Plan,
    run: Sequence[CheckpointRef],
    volume: Volume,
    checkpoints_max: int,
) -> Draft:
    """Read the rows of as many of these checkpoints as one segment has, with the pieces that the volume lacks.

    Raises:
        IntegrityFailure: A piece is not stored.
    """
    rows, refs = ThreadRows.empty(), list[CheckpointRef]()
    pieces = _NewPieces(transaction, thread_id, volume.piece_ids)
    row_count = size = 0
    while len(refs) < min(len(run), checkpoints_max) and size < SEGMENT_BYTES_MAX:
        some: list[CheckpointRef] = []
        # What has one id, in several namespaces, goes together: ranges do not overlap.
        for _, same in groupby(islice(run, len(refs), None), key=lambda ref: ref[1]):
            own = list(same)
            row_count += len(own) + sum(len(plan.writes.get(ref, ())) for ref in own)
            if (refs or some) and row_count > SEGMENT_ROWS_MAX:
                break
            some += own
            if len(some) >= _READ_ROWS or len(refs) + len(some) >= checkpoints_max:
                break
        if not some:
            break
        names, ids = columns_of(some)
        found = {
            table: await transaction.fetch_all(statement, thread_id=thread_id, namespaces=names, checkpoint_ids=ids)
            for table, statement in sql.OF.items()
        }
        fitting = await pieces.take(some, found, bytes_max=SEGMENT_PIECES_BYTES_MAX, begun=bool(refs))
        taken = {*fitting}
        for table, those in found.items():
            stored = map(msgspec.structs.asdict, those)
            rows.of(table).extend(row for row in stored if (row["namespace"], row["checkpoint_id"]) in taken)
        refs += fitting
        size = sum(_bytes_of(rows, table) for table in (CHECKPOINTS, PENDING_WRITES))
        if row_count > SEGMENT_ROWS_MAX or len(fitting) < len(some):
            break
    for at in range(0, len(pieces.taken), _READ_ROWS):
        found_pieces = await transaction.fetch_all(
            sql.PIECES, thread_id=thread_id, piece_ids=pieces.taken[at : at + _READ_ROWS]
        )
        rows.chunks.extend(map(msgspec.structs.asdict, found_pieces))
    for table in (CHECKPOINTS, TAGS, PENDING_WRITES, CHUNKS):
        rows.of(table).sort(key=lambda row: tuple(row[name] for name in sql.ORDER[table]))
    return Draft(rows, refs)


async def repeated_bytes(transaction: Transaction, thread_id: str, draft: Draft, volume: Volume) -> int:
    """What a segment with these rows would repeat of a volume, if it were the first of another, in bytes.

    Raises:
        IntegrityFailure: A piece is not stored.
    """
    rows = (row for table in (CHECKPOINTS, PENDING_WRITES) for row in draft.rows.of(table))
    named = {each for row in rows for each in unpack_ids(row["piece_ids"])}
    return await _NewPieces(transaction, thread_id, frozenset()).bytes_in(named, volume.piece_ids)


class _NewPieces:
    """The pieces that a segment adds to its volume, by their sizes: they are read when it is known which they are."""

    def __init__(self, transaction: Transaction, thread_id: str, in_volume: frozenset[bytes]) -> None:
        self._transaction = transaction
        self._thread_id = thread_id
        self._in_volume = in_volume
        self._known: dict[bytes, PieceSizeRow] = {}
        self._taken: dict[bytes, None] = {}
        self._bytes = 0
        self._memory = 0

    @property
    def taken(self) -> list[bytes]:
        """The ids of the pieces."""
        return [*self._taken]

    async def take(
        self, refs: Sequence[CheckpointRef], rows: Mapping[str, Sequence[Any]], *, bytes_max: int, begun: bool
    ) -> list[CheckpointRef]:
        """Take the pieces of the first of these checkpoints, as many as there is room for; returns those.

        ``begun``: there are others already. Otherwise those with the first id are taken however large they are.

        Raises:
            IntegrityFailure: A piece is not stored.
        """
        named: dict[CheckpointRef, list[bytes]] = {}
        memory: Counter[CheckpointRef] = Counter()
        for table in (CHECKPOINTS, PENDING_WRITES):
            for row in rows[table]:
                ref = row.namespace, row.checkpoint_id
                named.setdefault(ref, []).extend(unpack_ids(row.piece_ids))
                memory[ref] += ROW_BYTES + len(getattr(row, ENVELOPES[table]))
        await self._learn({each for ids in named.values() for each in ids})
        fitting: list[CheckpointRef] = []
        for _, same in groupby(refs, key=lambda ref: ref[1]):
            own = list(same)
            new = self._new({each for ref in own for each in named.get(ref, ())})
            size = sum(self._known[each].size for each in new)
            held = size + ROW_BYTES * len(new) + sum(memory[ref] for ref in own)
            if (begun or fitting) and (self._bytes + size > bytes_max or self._memory + held > SEGMENT_READ_BYTES_MAX):
                break
            self._taken.update(dict.fromkeys(new))
            self._bytes += size
            self._memory += held
            fitting += own
        return fitting

    async def bytes_in(self, piece_ids: set[bytes], among: frozenset[bytes]) -> int:
        """What those of some pieces, and of what they consist of, take that are among others.

        Raises:
            IntegrityFailure: A piece is not stored.
        """
        await self._learn(piece_ids)
        return sum(self._known[each].size for each in self._new(piece_ids) & among)

    async def _learn(self, piece_ids: set[bytes]) -> None:
        """Ask for the sizes of pieces, and of those that they consist of."""
        wanted = piece_ids - self._in_volume - self._known.keys()
        while wanted:
            found = await self._transaction.fetch_all(
                sql.PIECE_SIZES, thread_id=self._thread_id, piece_ids=sorted(wanted)
            )
            if len(found) != len(wanted):
                raise IntegrityFailure("a stored piece is missing")
            self._known.update((row.piece_id, row) for row in found)
            children = {each for row in found for each in unpack_ids(row.children or b"")}
            wanted = children - self._in_volume - self._known.keys()

    def _new(self, piece_ids: set[bytes]) -> set[bytes]:
        """Those of these pieces, and of what they consist of, that were not taken."""
        new: set[bytes] = set()
        while piece_ids := piece_ids - self._in_volume - self._taken.keys() - new:
            new |= piece_ids
            piece_ids = {each for known in piece_ids for each in unpack_ids(self._known[known].children or b"")}
        return new


def _bytes_of(rows: ThreadRows, table: str) -> int:
    envelope = ENVELOPES.get(table)
    own = rows.of(table)
    return len(own) * _ROW_BYTES + (0 if envelope is None else sum(len(row[envelope]) for row in own))


def _memory_of(table: str, rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(ROW_BYTES + len(row[ENVELOPES[table]]) for row in rows)
