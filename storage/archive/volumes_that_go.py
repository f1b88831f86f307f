"""Which volumes of segments go when they are old, with which others and in which order: the rule, without I/O.

The segments of a volume need each other's pieces, so it goes as a whole. What stays needs none of them
(docs/formats/segment.md), but it may need checkpoints: a volume stays while

- something that stays may be rebuilt from a checkpoint of it. What is in the database is asked as the plan has opened
  it (`storage.threads.plans`); what is in a segment has it said in its list, and where a list does not, every other
  volume stays.
- it has the head of a cold namespace of which a volume that stays has checkpoints.

Volumes go in an order in which what is left is whole at any moment; those of which neither can go first go together.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from storage.format.cold.segment import may_need
from storage.statements.threads.archives import SegmentRow


class Kept(msgspec.Struct, frozen=True):
    """What of a segment says whether its volume may go, and what goes with it.

    Attributes:
        segment: The segment's row.
        moved_at: When it was made.
        size_bytes: The size of its object.
        rebuilt_from: As in its list.
        parted: Namespaces with their heads in it, of which other segments have checkpoints.
        strays: Namespaces with their heads in other segments, of which it has checkpoints.
    """

    segment: SegmentRow
    moved_at: datetime
    size_bytes: int = 0
    rebuilt_from: list[str] | None = []
    parted: frozenset[str] = frozenset()
    strays: frozenset[str] = frozenset()


class _Volume:
    """The segments of a volume."""

    def __init__(self, number: int, segments: Sequence[Kept]) -> None:
        self.number = number
        self.segments = segments
        self.moved_at = max(each.moved_at for each in segments)
        self.parted = frozenset().union(*(each.parted for each in segments))
        self.strays = frozenset().union(*(each.strays for each in segments))
        self._needs = [each.rebuilt_from for each in segments if each.rebuilt_from != []]

    def may_need(self, other: "_Volume") -> bool:
        """Whether something of it may be rebuilt from something of another one."""
        return any(
            may_need(needs, each.segment.first_id, each.segment.last_id)
            for needs in self._needs
            for each in other.segments
        )

    def begins_before(self, ids: Collection[str]) -> bool:
        """Whether one of these checkpoints is in it or behind its beginning."""
        return any(each.segment.first_id <= checkpoint_id for each in self.segments for checkpoint_id in ids)


def volumes_that_go(kept: Sequence[Kept], before: datetime, hot_needs: Collection[str]) -> list[list[Kept]]:
    """The segments that go, in the order in which they go, those together that go in one transaction.

    ``before``: a volume goes when all of it moved there before. ``hot_needs`` are checkpoints in segments that
    something in the database is rebuilt from, with whatever is before them.
    """
    by_number: dict[int, list[Kept]] = {}
    for segment in kept:
        by_number.setdefault(segment.segment.volume, []).append(segment)
    going = {number: _Volume(number, own) for number, own in by_number.items()}
    stays = [each for each in going.values() if each.moved_at >= before or each.begins_before(hot_needs)]
    while stays:
        for each in stays:
            going.pop(each.number, None)
        fresh, stays = stays, []
        for volume in going.values():
            if any(each.may_need(volume) or not each.strays.isdisjoint(volume.parted) for each in fresh):
                stays.append(volume)
    groups: list[list[_Volume]] = []
    # A head leaves last, so that what its namespace has elsewhere is in volumes of smaller numbers: those go first.
    for number in sorted(going):
        volume, at = going[number], len(groups)
        for earlier in range(len(groups) - 1, -1, -1):
            if any(volume.may_need(each) or not volume.strays.isdisjoint(each.parted) for each in groups[earlier]):
                at = earlier
        groups[at:] = [[each for group in groups[at:] for each in group] + [volume]]
    return [[each for volume in group for each in volume.segments] for group in groups]
