"""Moving old checkpoints into segments whose sizes, and volumes, a test chooses."""

from dataclasses import dataclass, field

from storage.archive.choosing import SegmentBounds, Volume
from storage.archive.segmenting import Moved, Segmenting
from storage.scope import Scope
from storage.service import Store
from storage.threads.thinning import ThinningRule


@dataclass
class Volumes:
    """How many segments the next volumes have; those after them have one each."""

    counts: list[int] = field(default_factory=list)
    room: int = 0

    def is_next_full(self) -> bool:
        """Whether the next segment begins another volume."""
        if self.room:
            self.room -= 1
            return False
        self.room = self.counts.pop(0) - 1 if self.counts else 0
        return True


@dataclass(frozen=True)
class ChosenBounds(SegmentBounds):
    """The bounds of segments that go into chosen volumes."""

    volumes: Volumes = field(default_factory=Volumes)

    def is_full(self, volume: Volume) -> bool:
        """As of `SegmentBounds`, whatever the segments have."""
        del volume
        return self.volumes.is_next_full()

    def may_repeat(self, volume: Volume, repeated_bytes: int) -> bool:
        """As of `SegmentBounds`, whatever is repeated."""
        del volume, repeated_bytes
        return True


def segmenting_of(store: Store, bounds: SegmentBounds) -> Segmenting:
    """What moves checkpoints of a store into segments with these bounds."""
    parts = (store.pruning._access, store.archives.objects, store.archive_writer, store.audit)
    return Segmenting(*parts, store.archives.bringing_back, bounds=bounds)


async def move_within(
    bounds: SegmentBounds,
    store: Store,
    scope: Scope,
    rule: ThinningRule,
    *,
    thread_id: str = "t1",
    storage_class: str | None = None,
) -> Moved:
    """Move what a rule does not keep into segments with these bounds."""
    moving = segmenting_of(store, bounds)
    return await moving.move(scope, thread_id, rule, actor="test", storage_class=storage_class)
