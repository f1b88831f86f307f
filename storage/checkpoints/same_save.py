"""Whether a save that comes again is the one that is stored under its id, although its values are other pieces.

Pieces are how a value is stored, and no part of what it says. A release may cut values in another way than the one
that stored them; where only the pieces differ, the bytes decide. Large leaves are compared by their ids, which do not
depend on what is cut around them, so that they are not fetched.

Owns the comparison of values. Everything else about a checkpoint is compared by the caller, who also answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.access.offload import Offload
from storage.checkpoints.reading import read_pieces
from storage.errors import CheckpointExists, Unfinished
from storage.format.manifest import CheckpointColumns, Manifest
from storage.format.pieces import LEAF, Cutter, Opened, join_holed, open_piece, unpack_ids
from storage.format.record import OpenedCheckpoint, PieceReader
from storage.ledger.ledger import LiveBlob
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.tiers.hot import HotRows


class CutOtherwiseError(Unfinished):
    """A save is what is stored but for its pieces: `Comparison.compare` outside of a transaction, then save again."""

    def __init__(self, comparison: "Comparison") -> None:
        super().__init__()
        self.comparison = comparison


def same_but_for_pieces(stored: OpenedCheckpoint, columns: CheckpointColumns, manifest: Manifest) -> bool:
    """Whether a checkpoint has the same columns, channels and metadata as the stored one, whatever the values are.

    A size is a value's, and one that another build stored has none; what is said of large leaves only describes them,
    and stays as it was said first.
    """
    unsaid = {"body": b"", "size": None, "leaves": None}
    before, again = (
        (
            msgspec.structs.replace(clear, piece_ids=b""),
            msgspec.structs.replace(
                sealed, channels=[msgspec.structs.replace(each, **unsaid) for each in sealed.channels]
            ),
        )
        for clear, sealed in ((stored.columns, stored.manifest), (columns, manifest))
    )
    return before == again


@dataclass(frozen=True, slots=True)
class Comparison:
    """A save, what is stored under its id, and the stored pieces of both. Only `Comparison.read` makes one."""

    stored: OpenedCheckpoint
    manifest: Manifest
    cutter: Cutter
    reader: PieceReader
    blobs: Mapping[UUID, LiveBlob]

    @classmethod
    async def read(
        cls,
        transaction: Transaction,
        sealer: Sealer,
        offload: Offload,
        stored: OpenedCheckpoint,
        manifest: Manifest,
        cutter: Cutter,
    ) -> "Comparison":
        """Read what comparing needs, in the transaction that found the stored checkpoint.

        The transaction holds the thread's lock. ``manifest`` is the save's, composed again, and ``cutter`` has its
        pieces.

        Raises:
            StateTooLarge: too much of it is in the object store to be compared.
            IntegrityFailure: something is missing or does not authenticate.
        """
        wanted = [*stored.ids, *cutter.listed.ids]
        wanted += [each for own in cutter.pieces.values() for each in unpack_ids(own.children or b"")]
        brought = cutter.pieces.keys() | cutter.referenced.keys()
        reader = PieceReader(sealer, refs=True)
        before = {*stored.ids}
        ids = [each for each in wanted if each in before or each not in brought]
        await read_pieces(HotRows(transaction, stored.columns.thread_id), reader, ids)
        return cls(stored, manifest, cutter, reader, await offload.find(transaction, sealer, reader))

    async def compare(self, scope: Scope, sealer: Sealer, offload: Offload) -> bytes:
        """Compare the values; returns the stored checkpoint's member, which names what was compared.

        Raises:
            CheckpointExists: they are others.
            BlobUnavailable: the object store does not answer.
            IntegrityFailure: a piece is not what its id names.
        """
        await offload.fill(scope, sealer, self.reader, self.blobs)

        def look_up(piece_id: bytes) -> Opened:
            own = self.cutter.pieces.get(piece_id)
            if own is not None:
                return open_piece(sealer, piece_id, own.plaintext, own.children)
            size = self.cutter.referenced.get(piece_id)
            return self.reader.look_up(piece_id) if size is None else Opened(None, None, LEAF, size)

        before, again = self.stored.ids, self.cutter.listed.ids
        for old, new in zip(self.stored.manifest.channels, self.manifest.channels, strict=True):
            if join_holed(old.body, before, self.reader.look_up) != join_holed(new.body, again, look_up):
                raise CheckpointExists
        return self.stored.member
