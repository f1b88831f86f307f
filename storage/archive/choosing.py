"""How much goes into one segment, and which segments are a volume. Pure: it takes what is known of them.

A volume is bounded twice. By its bytes, because pieces that a volume has once are in the next one, too: one that closed
too early would repeat them too often. And by what a reader of one checkpoint holds of it: the segment that has the
checkpoint, and the pieces of those before it, which is more where pieces and rows are many and small.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from storage.format.cold.archive import Stub
from storage.statements.threads.archives import SegmentRow
from storage.tiers.views import pieces_bytes

# One segment: a page of history asks for few, and a flip holds the thread's lock for as many rows.
SEGMENT_CHECKPOINTS_MAX: Final = 1000
# A volume is closed when so much was added after its first segment, and twice as much as that has.
VOLUME_BYTES_MIN: Final = 8 * 1024 * 1024
# What a reader of a checkpoint holds of its volume: less than it may, because that of an archived thread holds the
# archive, too.
VOLUME_READ_BYTES_MAX: Final = 48 * 1024 * 1024


class Volume(msgspec.Struct, frozen=True):
    """The volume that the next segment belongs to.

    Attributes:
        number: The number of its first segment; 0: the next one begins a volume.
        first_bytes: What its first segment has.
        more_bytes: What the others have.
        pieces_bytes: What its pieces take of a reader's memory.
        piece_ids: The pieces in its objects.
    """

    number: int = 0
    first_bytes: int = 0
    more_bytes: int = 0
    pieces_bytes: int = 0
    piece_ids: frozenset[bytes] = frozenset()

    def with_segment(self, stub: Stub | SegmentRow, piece_ids: frozenset[bytes]) -> "Volume":
        """After one more segment, which has these pieces."""
        if stub.volume == stub.segment:
            return Volume(stub.segment, stub.hot_bytes, 0, pieces_bytes(stub), piece_ids)
        more_bytes, held = self.more_bytes + stub.hot_bytes, self.pieces_bytes + pieces_bytes(stub)
        return Volume(self.number, self.first_bytes, more_bytes, held, self.piece_ids | piece_ids)


@dataclass(frozen=True)
class SegmentBounds:
    """How much goes into one segment, and into one volume."""

    checkpoints_max: int = SEGMENT_CHECKPOINTS_MAX
    volume_read_bytes_max: int = VOLUME_READ_BYTES_MAX

    def is_full(self, first_bytes: int, more_bytes: int) -> bool:
        """Whether the next segment begins another volume than the one whose segments have so many bytes."""
        return more_bytes >= max(VOLUME_BYTES_MIN, 2 * first_bytes)

    def has_room(self, volume: Volume, segment_bytes: int) -> bool:
        """Whether a reader may hold a segment that takes so much, with the pieces that the volume has without it."""
        return volume.pieces_bytes + segment_bytes <= self.volume_read_bytes_max

    def repays(self, volume: Volume, segment_bytes: int, apart_bytes: int) -> bool:
        """Whether another volume is worth the pieces that it repeats, where this one has no room.

        Where a checkpoint alone takes nearly what a reader may hold, every next one would begin a volume otherwise,
        with all of its pieces.

        Args:
            volume: The one that has no room.
            segment_bytes: What the next segment takes of a reader's memory, in it.
            apart_bytes: And what it takes as the first segment of another.
        """
        return 2 * volume.more_bytes >= volume.first_bytes or 2 * segment_bytes >= apart_bytes
