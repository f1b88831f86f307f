"""Lines of checkpoints: which checkpoints are the steps of a trajectory.

Owns what a line is: the way from one checkpoint of a namespace back over its parents, and so no branch that was left.
Of a whole thread there is one for each namespace, which leads to its newest checkpoint. It reads pages of the thread's
history, without states, and holds ids alone.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from storage.errors import CheckpointNotFound, LimitExceeded
from storage.model import Checkpoint, HistoryQuery, Page

# Checkpoints that one trajectory looks through, those of branches too: the ids of its steps are held, some 10 MB.
TRAJECTORY_STEPS_MAX: Final = 100_000
ABOVE: Final = "+"
"""The least character that an id can have: behind an id, and before every greater one."""
_PAGE: Final = 1000

ReadPage = Callable[[HistoryQuery], Awaitable[Page[Checkpoint]]]
"""Reads a page of a thread's history as the reader of the trajectory may see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQuery:
    """Which trajectory is wanted.

    Attributes:
        thread_id: The id of the thread to read.
        namespace: The namespace; of a whole thread, that of ``checkpoint_id``.
        checkpoint_id: The checkpoint that it leads to; None: the newest. Of a whole thread, the newest that is told.
        after: The step that it begins after; None: at the first.
        after_namespace: The namespace of that step, of a whole thread.
        all_namespaces: Whether the whole thread is told.
        all_writes: Whether steps have all of their pending writes, not only those that the next one does not show.
    """

    thread_id: str
    namespace: str = ""
    checkpoint_id: str | None = None
    after: str | None = None
    after_namespace: str = ""
    all_namespaces: bool = False
    all_writes: bool = False


@dataclass(slots=True)
class Line:
    """The ids of a line of checkpoints: newest first while it is followed, oldest first when it is given."""

    namespace: str
    ids: list[str] = field(default_factory=list)
    _wanted: str | None = None

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint that it leads to."""
        return self.ids[-1]

    @property
    def is_whole(self) -> bool:
        """Whether it has come to a step without a parent, or whose parent was removed: history tells both alike."""
        return bool(self.ids) and self._wanted is None

    def follow(self, checkpoint: Checkpoint) -> None:
        """Take the next older checkpoint of the namespace, unless it is of a branch that was left."""
        if not self.ids or checkpoint.checkpoint_id == self._wanted:
            self.ids.append(checkpoint.checkpoint_id)
            self._wanted = checkpoint.parent_id


async def find_lines(query: TrajectoryQuery, read_page: ReadPage) -> list[Line]:
    """The lines of a trajectory, from the step to begin after; at least one.

    Raises:
        CheckpointNotFound: there is no such checkpoint, or the step to begin after is not before it.
        LimitExceeded: there are too many checkpoints.
        StorageError: the history cannot be read.
    """
    if query.all_namespaces:
        return await _whole_thread(query, read_page)
    return [await _one_namespace(query, read_page)]


async def _one_namespace(query: TrajectoryQuery, read_page: ReadPage) -> Line:
    line = Line(query.namespace)
    async with aclosing(_newest_first(query, query.namespace, read_page)) as checkpoints:
        async for each in checkpoints:
            line.follow(each)
            if line.is_whole or each.checkpoint_id == query.after == line.ids[-1]:
                break
    line.ids.reverse()
    if not line.ids or query.after not in {None, line.ids[0]}:
        raise CheckpointNotFound
    return line


async def _whole_thread(query: TrajectoryQuery, read_page: ReadPage) -> list[Line]:
    """The lines of all namespaces, by where they lead to: the last leads to the newest checkpoint."""
    lines: dict[str, Line] = {}
    async with aclosing(_newest_first(query, None, read_page)) as checkpoints:
        async for each in checkpoints:
            lines.setdefault(each.namespace, Line(each.namespace)).follow(each)
    for line in lines.values():
        line.ids.reverse()
    # Namespaces may have checkpoints of one id: what is led to is last then, too.
    found = sorted(
        lines.values(), key=lambda each: (each.checkpoint_id, each.namespace == query.namespace, each.namespace)
    )
    if not found or query.checkpoint_id not in {None, found[-1].checkpoint_id}:
        raise CheckpointNotFound
    if query.checkpoint_id is not None and found[-1].namespace != query.namespace:
        raise CheckpointNotFound
    return found if query.after is None else _behind(found, query.after_namespace, query.after)


def _behind(lines: list[Line], namespace: str, checkpoint_id: str) -> list[Line]:
    """What of the lines begins with a step."""
    for number, line in enumerate(lines):
        if line.namespace == namespace and checkpoint_id in line.ids:
            return [Line(namespace, line.ids[line.ids.index(checkpoint_id) :]), *lines[number + 1 :]]
    raise CheckpointNotFound


async def _newest_first(
    query: TrajectoryQuery, namespace: str | None, read_page: ReadPage
) -> AsyncGenerator[Checkpoint]:
    """The checkpoints up to the one that is led to, which is the first or not there; ``namespace`` None: of all."""
    before = None if query.checkpoint_id is None else query.checkpoint_id + ABOVE
    asked = HistoryQuery(thread_id=query.thread_id, namespace=namespace, before=before, limit=_PAGE)
    looked_at = 0
    while True:
        page = await read_page(asked)
        for each in page.items:
            looked_at += 1
            if looked_at == 1 and query.checkpoint_id not in {None, each.checkpoint_id}:
                raise CheckpointNotFound
            if looked_at > TRAJECTORY_STEPS_MAX:
                raise LimitExceeded("TRAJECTORY_STEPS_MAX", TRAJECTORY_STEPS_MAX)
            yield each
        if page.after is None:
            return
        asked = replace(asked, after=page.after)
