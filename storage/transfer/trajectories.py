"""Trajectories: the steps that led to a checkpoint, oldest first, each as what it changed in the one before.

Owns what of a step is told, and that the audit log says so before anything is. Which checkpoints are steps is decided
in `storage.transfer.lines`. It reads pages of the thread's history alone: what is shown was authenticated there, from
the database or from the archive, at the version that the reader knows. In memory are the ids of all steps, and of a few
the states; where these are large, of fewer. Of a whole thread one namespace is told after the other, so that only one
state is held to tell the next by, however many there are.

It does not promise one moment. Checkpoints are written once, so what is shown is true; but one that is removed before
it was reached breaks the trajectory off.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Literal

from storage.administration.audit import Audit
from storage.errors import CheckpointNotFound
from storage.format.leaf_notes import moved
from storage.format.pieces import list_count, list_header
from storage.model import Channel, Checkpoint, HistoryQuery, PendingWrite, Value
from storage.postgres.unit_of_work import UnitOfWork
from storage.schemas.versions import is_control
from storage.scope import Scope, TenantScope
from storage.transfer.lines import ABOVE, Line, ReadPage, TrajectoryQuery, find_lines

WINDOW_STEPS_MAX: Final = 32  # whose states are read at once; a page's check of pending writes is paid for once for all
WINDOW_BYTES_MAX: Final = 16 * 1024 * 1024  # of those states, before fewer are read at once
_COMMON_PAGES: Final = 2  # of the thread's history, for steps of several namespaces: half of it may be of other ones

CheckpointKey = tuple[str, str]
"""A namespace, and a checkpoint's id in it."""


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
        namespace: The namespace of the checkpoint that it leads to.
        namespaces: How many it tells; None: it is no trajectory of a whole thread.
        checkpoint_id: The checkpoint that it leads to.
        count: How many steps it has.
        steps: The steps: of each namespace oldest first.
    """

    namespace: str
    namespaces: int | None
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
        lines = await find_lines(query, read_page)
        last, is_resumed = lines[-1], query.after is not None
        count = sum(len(each.ids) for each in lines) - is_resumed
        target = f"subject:{scope.subject_id}/thread:{query.thread_id}"
        detail = {"namespace": last.namespace, "checkpoint_id": last.checkpoint_id, "steps": count}
        namespaces = len(lines) if query.all_namespaces else None
        if namespaces is not None:
            detail["namespaces"] = namespaces
        async with self._unit_of_work.begin(TenantScope(scope.tenant_id)) as transaction:
            await self._audit.append(transaction, scope.tenant_id, actor, "trajectory.export", target, detail)
        read = _checkpoints(query.thread_id, lines, read_page)
        steps = _steps(read, is_resumed=is_resumed, all_writes=query.all_writes)
        return Trajectory(last.namespace, namespaces, last.checkpoint_id, count, steps)


async def _checkpoints(thread_id: str, lines: Sequence[Line], read_page: ReadPage) -> AsyncIterator[Checkpoint]:
    """The checkpoints with their states, a few at a time."""
    left = ((line.namespace, each) for line in lines for each in line.ids)
    count, window = WINDOW_STEPS_MAX, list[CheckpointKey]()
    while True:
        window += islice(left, max(0, count - len(window)))
        if not window:
            return
        part = window[:count]
        found = await _window(thread_id, part, read_page)
        if found is None:
            count = max(1, len(part) // 4)
            continue
        del window[: len(part)]
        count = min(count * 2, WINDOW_STEPS_MAX)
        for each in found:
            yield each


async def _window(thread_id: str, keys: Sequence[CheckpointKey], read_page: ReadPage) -> list[Checkpoint] | None:
    """A few checkpoints with their states; None: they are too large to be held together.

    Those of several namespaces are mostly neighbours in the history of the thread, and are looked for there first: it
    is a page for all of them, and not one for each namespace, which would check all pending writes of the thread.

    Raises:
        CheckpointNotFound: one was removed meanwhile.
    """
    found, size_bytes = dict[CheckpointKey, Checkpoint](), 0
    namespaces: list[str | None] = [*dict.fromkeys(namespace for namespace, _ in keys)]
    for namespace in [None, *namespaces] if len(namespaces) > 1 else namespaces:
        missing = {each for each in keys if each not in found and namespace in {None, each[0]}}
        if not missing:
            continue
        asked = HistoryQuery(
            thread_id=thread_id,
            namespace=namespace,
            before=max(checkpoint_id for _, checkpoint_id in missing) + ABOVE,
            limit=len(missing),
            with_state=True,
        )
        pages = 0
        while missing:
            page = await read_page(asked)
            for each in page.items:
                key = each.namespace, each.checkpoint_id
                if key in missing:
                    missing.discard(key)
                    found[key] = each
                    size_bytes += _size_bytes(each)
            if size_bytes >= WINDOW_BYTES_MAX and 1 < len(keys) > len(found):
                return None
            pages += 1
            if page.after is None or (namespace is None and pages == _COMMON_PAGES):
                break
            asked = replace(asked, after=page.after)
    if len(found) < len(keys):
        raise CheckpointNotFound
    return [found[each] for each in keys]


def _size_bytes(checkpoint: Checkpoint) -> int:
    return sum(len(each.value.data) for each in (checkpoint.channels or {}).values())


async def _steps(
    checkpoints: AsyncIterator[Checkpoint], *, is_resumed: bool, all_writes: bool
) -> AsyncIterator[TrajectoryStep]:
    """Each checkpoint but the one to begin after as a step, when the next is read: its writes depend on that one.

    The first of a namespace changed nothing in another one, and the last shows its own writes.
    """
    before: dict[str, Channel] = {}
    held: Checkpoint | None = None
    is_told = is_resumed
    async for each in checkpoints:
        if held is not None:
            is_last = each.namespace != held.namespace
            if not is_told:
                yield _step(before, held, all_writes=all_writes or is_last)
            before, is_told = {} if is_last else held.channels or {}, False
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
                changes[name] = Change("append", replace(channel, value=new))
        elif held.version != channel.version:
            changes[name] = Change("version", channel)
    changes |= {name: Change("remove", None) for name in before if name not in after}
    return changes


def _appended(before: Value, after: Value) -> Value | None:
    """The elements that a list got at its end, as a list; None: it is no list, or changed otherwise.

    Whoever puts them behind those from before, under the shortest header, has the list byte by byte. What is known of
    large leaves among them is said as of that list of their own.
    """
    if before.encoding != "msgpack" or after.encoding != "msgpack":
        return None
    start, new_start = _header_bytes(before.data), _header_bytes(after.data)
    if not start or not new_start:
        return None
    count_before = list_count(before.data)
    count = list_count(after.data) - count_before
    kept = before.data[start:]
    if count <= 0 or not after.data.startswith(kept, new_start):
        return None
    if not after.data.startswith(list_header(list_count(after.data))):
        return None
    header, end = list_header(count), new_start + len(kept)
    added = [each for each in after.leaves if each.at is not None and each.at >= end]
    leaves = moved(added, -count_before, len(header) - end)
    return Value("msgpack", header + after.data[end:], leaves=leaves)


def _header_bytes(data: bytes) -> int:
    """The length of a list's header; 0: it is no list."""
    first = data[0] if data else 0
    return 1 if 0x90 <= first <= 0x9F else {0xDC: 3, 0xDD: 5}.get(first, 0)
