"""How much goes into one segment, which segments are a volume, and which come back to be made anew. Pure.

A volume is bounded twice. By its bytes, and never so that the next one repeats much of it: pieces that are still named
are in both, and a conversation that only grows would be in each of them. And by what a reader of one checkpoint holds
of it: the segment that has the checkpoint, and the pieces of those before it, which is more where pieces and rows are
many and small.

A segment has a range of ids, of all namespaces, and what is kept in that range becomes free one day: the twentieth of
the newest of a namespace that is seldom saved to. It would stay in the database for ever, because ranges do not
overlap. Waiting for it would let one slow namespace keep everything of the others. So a few may stay, and where they
are more, the segments around them come back and are made anew, with them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.format.cold.archive import Stub
from storage.statements.threads.archives import SegmentRow
from storage.threads.thinning import CheckpointRef
from storage.tiers.segments import Segments
from storage.tiers.views import pieces_bytes

# One segment: a page of history asks for few, and a flip holds the thread's lock for as many rows.
SEGMENT_CHECKPOINTS_MAX: Final = 1000
# A volume is closed when so much was added after its first segment, and the next segment repeats at most this part of
# it: what all volumes repeat is less than 0.375 / (1 - 0.375) = 0.6 of what is in them once.
VOLUME_BYTES_MIN: Final = 8 * 1024 * 1024
REPEATED_PART_MAX: Final = 0.375
# What a reader of a checkpoint holds of its volume: less than it may, because that of an archived thread holds the
# archive, too.
VOLUME_READ_BYTES_MAX: Final = 48 * 1024 * 1024
# So many free checkpoints of a thread may be in the ranges of segments, and in the database.
STUCK_MAX: Final = 100


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
    stuck_max: int = STUCK_MAX

    def is_full(self, volume: Volume) -> bool:
        """Whether the next segment begins another volume, if that one does not repeat too much."""
        return volume.more_bytes >= VOLUME_BYTES_MIN

    def may_repeat(self, volume: Volume, repeated_bytes: int) -> bool:
        """Whether another volume may repeat so much of what this one has."""
        return repeated_bytes <= REPEATED_PART_MAX * (volume.first_bytes + volume.more_bytes)

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

    def coming_back(self, stuck: Mapping[int, int]) -> list[int]:
        """The segments that are made anew, of those that have so many free checkpoints in their ranges.

        As few as leave half of what may stay, so that it is some time until the next; the newest comes first, with
        which the others of its volume need not come back twice.
        """
        left, chosen = sum(stuck.values()), list[int]()
        if left <= self.stuck_max:
            return chosen
        for number, count in sorted(stuck.items(), key=lambda each: each[1], reverse=True):
            if left <= self.stuck_max // 2:
                break
            chosen.append(number)
            left -= count
        return sorted(chosen, reverse=True)


def stuck_in(doomed: Mapping[str, Collection[str]], segments: Segments) -> Counter[int]:
    """How many of the checkpoints that may go are in the range of which segment, but not in it."""
    around = (segments.around(each) for some in doomed.values() for each in some)
    return Counter(segment.segment for segment in around if segment is not None)


def runs_of(doomed: Mapping[str, Collection[str]], segments: Segments) -> Iterator[list[CheckpointRef]]:
    """What may go, in the order of ids, in parts of which none has the range of a segment inside it."""
    ordered = sorted((each, name) for name, some in doomed.items() for each in some)
    run: list[CheckpointRef] = []
    before: SegmentRow | None = None
    for checkpoint_id, name in ordered:
        if segments.around(checkpoint_id) is not None:
            continue  # it came back, or was kept, inside a range that a segment has
        at = segments.before(checkpoint_id)
        if run and at is not before:
            yield run
            run = []
        before = at
        run.append((name, checkpoint_id))
    if run:
        yield run
