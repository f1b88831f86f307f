"""Trajectories: the steps that led to a checkpoint, oldest first, each as what it changed in the one before.

Owns which checkpoints belong to a trajectory (the line from one checkpoint back over its parents, and so no branch that
was left), what of a step is told, and that the audit log says so before anything is. It reads pages of the thread's
history alone: what is shown was authenticated there, from the database or from the archive, at the version that the
reader knows. In memory are the ids of all steps, and of a few the states; where these are large, of fewer.

It does not promise one moment. Checkpoints are written once, so what is shown is true; but one that is removed before
it was reached breaks the trajectory off.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from storage.administration.audit import Audit
from storage.errors import CheckpointNotFound, LimitExceeded
from storage.format.pieces import list_count, list_header
from storage.model import Channel, Checkpoint, HistoryQuery, Page, PendingWrite, Value
from storage.postgres.unit_of_work import UnitOfWork
from storage.schemas.versions import is_control
from storage.scope import Scope, TenantScope

# Checkpoints that one trajectory looks through, those of branches too: the ids of its steps are held, some 10 MB.
TRAJECTORY_STEPS_MAX: Final = 100_000
WINDOW_STEPS_MAX: Final = 32  # whose states are read at once; a page's check of pending writes is paid for once for all
WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024  # of those states, before fewer are read at once
_PAGE: Final = 1000
_ABOVE: Final = "+"  # the least character that an id can have: behind an id, and before every greater one

ReadPage = Callable[[HistoryQuery], Awaitable[Page[Checkpoint]]]
"""Reads a page of a thread's history as the reader of the trajectory may see it."""


@dataclass(frozen=True, slots=True)
class TrajectoryQuery:
    """Which trajectory is wanted.

    Attributes:
        thread_id: The id of the thread to read.
        namespace: The namespace of it.
        checkpoint_id: The checkpoint that it leads to; None: the newest.
        after: The step that it begins after; None: at the first.
        all_writes: Whether steps have all of their pending writes, not only those that the next one does not show.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str | None = None
    after: str | None = None
    all_writes: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a step did to a channel.

    Attributes:
        kind: ``set``, ``append`` (to a list, which is otherwise the same), ``version`` (its value is the same, and its
            version another one) or ``remove``.
        channel: The channel, as it is after it; of ``append`` with the new elements alone; None: it is gone.
    """

    kind: Literal["set", "append", "version", "remove"]
    channel: Channel | None


@dataclass(frozen=True, slots=True)
class TrajectoryStep:
    """A checkpoint, what it changed, and those of its pending writes that are told."""

    checkpoint: Checkpoint
    changes: dict[str, Change]
    writes: list[PendingWrite]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A trajectory that is about to be read.

    Attributes:
        checkpoint_id: The checkpoint that it leads to.
        count: How many steps it has.
        steps: The steps, oldest first.
    """

    checkpoint_id: str
    count: int
    steps: AsyncIterator[TrajectoryStep]


class Trajectories:
    """Reads trajectories.

    Args:
        unit_of_work: Opens the transactions.
        audit: The log that says who read one.
    """

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit) -> None:
        self._unit_of_work, self._audit = unit_of_work, audit

    async def begin(self, scope: Scope, query: TrajectoryQuery, actor: str, read_page: ReadPage) -> Trajectory:
        """Find the steps, and record that they are read.

        Args:
            scope: The tenant and subject whose thread it is.
            query: Which trajectory.
            actor: The reader's name in the audit log.
            read_page: Reads pages of the thread's history.

        Raises:
            CheckpointNotFound: there is no such checkpoint, or the step to begin after is not before it.
            LimitExceeded: it has too many steps.
            StorageError: the history cannot be read, or the audit log not be written.
        """
        ids = await _line(query, read_page)
        target = f"subject:{scope.subject_id}/thread:{query.thread_id}"
        is_resumed = query.after is not None
        detail = {"namespace": query.namespace, "checkpoint_id": ids[-1], "steps": len(ids) - is_resumed}
        async with self._unit_of_work.begin(TenantScope(scope.tenant_id)) as transaction:
            await self._audit.append(transaction, scope.tenant_id, actor, "trajectory.export", target, detail)
        steps = _steps(_checkpoints(query, ids, read_page), is_resumed=is_resumed, all_writes=query.all_writes)
        return Trajectory(ids[-1], len(ids) - is_resumed, steps)


async def _line(query: TrajectoryQuery, read_page: ReadPage) -> list[str]:
    """The ids from the first step, or the one to begin after, to the last.

    The first step is one without a parent, or whose parent was removed: history tells both alike.
    """
    ids = list[str]()
    wanted, looked_at = query.checkpoint_id, 0
    before = None if wanted is None else wanted + _ABOVE
    asked = HistoryQuery(thread_id=query.thread_id, namespace=query.namespace, before=before, limit=_PAGE)
    while True:
        page = await read_page(asked)
        for each in page.items:
            looked_at += 1
            if looked_at > TRAJECTORY_STEPS_MAX:
                raise LimitExceeded("TRAJECTORY_STEPS_MAX", TRAJECTORY_STEPS_MAX)
            if wanted not in {None, each.checkpoint_id}:
                if not ids:  # the newest that is not behind the wanted one is another one
                    raise CheckpointNotFound
                continue  # of a branch that was left
            ids.append(each.checkpoint_id)
            wanted = each.parent_id
            if each.checkpoint_id == query.after:
                return ids[::-1]
            if wanted is None:
                break
        if page.after is None or (ids and wanted is None):
            break
        asked = replace(asked, after=page.after)
    if not ids or query.after is not None:
        raise CheckpointNotFound
    return ids[::-1]


async def _checkpoints(query: TrajectoryQuery, ids: Sequence[str], read_page: ReadPage) -> AsyncIterator[Checkpoint]:
    """The checkpoints with their states, a few at a time."""
    count, at = WINDOW_STEPS_MAX, 0
    while at < len(ids):
        window = ids[at : at + count]
        found = await _window(query, window, read_page)
        if found is None:
            count = max(1, len(window) // 4)
            continue
        at += len(window)
        count = min(count * 2, WINDOW_STEPS_MAX)
        for each in found:
            yield each


async def _window(query: TrajectoryQuery, ids: Sequence[str], read_page: ReadPage) -> list[Checkpoint] | None:
    """A few checkpoints with their states; None: they are too large to be held together.

    Raises:
        CheckpointNotFound: one was removed meanwhile.
    """
    asked = HistoryQuery(
        thread_id=query.thread_id,
        namespace=query.namespace,
        before=ids[-1] + _ABOVE,
        limit=len(ids),
        with_state=True,
    )
    missing, found, size_bytes = set(ids), list[Checkpoint](), 0
    while True:
        page = await read_page(asked)
        for each in page.items:
            if each.checkpoint_id in missing:
                missing.discard(each.checkpoint_id)
                found.append(each)
                size_bytes += _size_bytes(each)
        if not missing:
            return found[::-1]
        if size_bytes >= WINDOW_BYTES_MAX and len(ids) > 1:
            return None
        if page.after is None:
            raise CheckpointNotFound
        asked = replace(asked, after=page.after)


def _size_bytes(checkpoint: Checkpoint) -> int:
    return sum(len(each.value.data) for each in (checkpoint.channels or {}).values())


async def _steps(
    checkpoints: AsyncIterator[Checkpoint], *, is_resumed: bool, all_writes: bool
) -> AsyncIterator[TrajectoryStep]:
    """Each checkpoint but the one to begin after as a step, when the next is read: its writes depend on that one."""
    before: dict[str, Channel] = {}
    held: Checkpoint | None = None
    is_told = is_resumed
    async for each in checkpoints:
        if held is not None:
            if not is_told:
                yield _step(before, held, all_writes=all_writes)
            before, is_told = held.channels or {}, False
        held = each
    if held is not None and not is_told:
        yield _step(before, held, all_writes=True)


def _step(before: dict[str, Channel], checkpoint: Checkpoint, *, all_writes: bool) -> TrajectoryStep:
    deltas, writes = set(checkpoint.delta_channels), checkpoint.writes or []
    if not all_writes:
        writes = [each for each in writes if is_control(each.channel) or each.channel in deltas]
    return TrajectoryStep(checkpoint, changes_between(before, checkpoint.channels or {}), writes)


def changes_between(before: dict[str, Channel], after: dict[str, Channel]) -> dict[str, Change]:
    """What led from one state to another, by channel; a channel that is the same is not in it."""
    changes: dict[str, Change] = {}
    for name, channel in after.items():
        held = before.get(name)
        if held is None:
            changes[name] = Change("set", channel)
        elif (held.value.encoding, held.value.data) != (channel.value.encoding, channel.value.data):
            new = _appended(held.value, channel.value)
            if new is None:
                changes[name] = Change("set", channel)
            else:
                changes[name] = Change("append", replace(channel, value=Value("msgpack", new)))
        elif held.version != channel.version:
            changes[name] = Change("version", channel)
    changes |= {name: Change("remove", None) for name in before if name not in after}
    return changes


def _appended(before: Value, after: Value) -> bytes | None:
    """The elements that a list got at its end, as a list; None: it is no list, or changed otherwise.

    Whoever puts them behind those from before, under the shortest header, has the list byte by byte.
    """
    if before.encoding != "msgpack" or after.encoding != "msgpack":
        return None
    start, new_start = _header_bytes(before.data), _header_bytes(after.data)
    if not start or not new_start:
        return None
    count = list_count(after.data) - list_count(before.data)
    kept = before.data[start:]
    if count <= 0 or not after.data.startswith(kept, new_start):
        return None
    if not after.data.startswith(list_header(list_count(after.data))):
        return None
    return list_header(count) + after.data[new_start + len(kept) :]


def _header_bytes(data: bytes) -> int:
    """The length of a list's header; 0: it is no list."""
    first = data[0] if data else 0
    return 1 if 0x90 <= first <= 0x9F else {0xDC: 3, 0xDD: 5}.get(first, 0)
