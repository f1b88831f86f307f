"""The many pieces of one record, sealed and opened so that others go first meanwhile."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from crypto import Sealer
from storage.concurrency.computing import compute
from storage.concurrency.turns import Pauses
from storage.format.pieces import Piece
from storage.format.record import OpenedCheckpoint, OpenedWrite, PieceReader, WriteRow, open_write, seal_piece
from storage.model import PendingWrite

# Bytes that are sealed or opened in the time in which one is decoded.
_BYTES_AS_ONE = 8
# As much is put together beside the event loop.
_BESIDE_BYTES_MIN = 1024 * 1024

T = TypeVar("T")


async def sealed_pieces(sealer: Sealer, pieces: Iterable[tuple[Piece, UUID | None]]) -> list[bytes]:
    """The envelopes of pieces, each with the blob that holds its content, if one does."""
    pauses = Pauses()
    envelopes = []
    for piece, blob_id in pieces:
        envelopes.append(seal_piece(sealer, piece, blob_id))
        await pauses.after(piece.size // _BYTES_AS_ONE)
    return envelopes


async def open_pieces(reader: PieceReader) -> None:
    """Open what a reader has, before values are put together from it.

    Raises:
        IntegrityFailure: a piece is not what its id names.
    """
    pauses = Pauses()
    for piece_id in reader.unopened():
        await pauses.after(reader.look_up(piece_id).size // _BYTES_AS_ONE)


async def open_writes(sealer: Sealer, rows: Iterable[WriteRow]) -> list[OpenedWrite]:
    """Pending writes, of their rows.

    Raises:
        IntegrityFailure: one does not authenticate.
    """
    pauses = Pauses()
    opened = []
    for row in rows:
        opened.append(open_write(sealer, row))
        await pauses.after(len(row.value))
    return opened


async def put_together(tenant_id: UUID, reader: PieceReader, opened: OpenedCheckpoint, work: Callable[[], T]) -> T:
    """Do ``work``, which puts the channels of a checkpoint together: beside the event loop, if they are large.

    Raises:
        IntegrityFailure, StateTooLarge: as `PieceReader.value`.
    """
    ids = opened.ids
    size_bytes = sum(reader.size_of(channel.body, ids, channel.leaves) for channel in opened.manifest.channels)
    if size_bytes < _BESIDE_BYTES_MIN:
        return work()
    reader.reserve(size_bytes)
    return await compute(tenant_id, work)


async def values_of(writes: Sequence[OpenedWrite], reader: PieceReader) -> list[PendingWrite]:
    """The values of pending writes, put together.

    Raises:
        IntegrityFailure, StateTooLarge: as `PieceReader.value`.
    """
    pauses = Pauses()
    values = []
    for each in writes:
        values.append(each.value(reader))
        await pauses.after(len(values[-1].value.data) // _BYTES_AS_ONE)
    return values
