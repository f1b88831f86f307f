"""Moving old checkpoints into segments whose sizes, and volumes, a test chooses."""

from dataclasses import dataclass, field

from storage.archive.choosing import SegmentBounds
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

    def is_full(self, first_bytes: int, more_bytes: int) -> bool:
        """As of `SegmentBounds`, whatever the segments have."""
        del first_bytes, more_bytes
        return self.volumes.is_next_full()


async def move_within(
    bounds: SegmentBounds, store: Store, scope: Scope, rule: ThinningRule, *, thread_id: str = "t1"
) -> Moved:
    """Move what a rule does not keep into segments with these bounds."""
    parts = (store.pruning._access, store.archives.objects, store.archive_writer, store.audit)
    return await Segmenting(*parts, bounds=bounds).move(scope, thread_id, rule, actor="test")
