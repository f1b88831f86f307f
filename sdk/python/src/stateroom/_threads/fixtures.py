"""Fixtures: the steps of a thread as a file, byte by byte as they are stored, and back into a thread.

This module owns how such a file is read and written, how the channels of each step are put together from what steps
changed, and how they are saved again. A fixture is a trajectory in the channels view, and nothing else: the line of
checkpoints of one namespace, or of each namespace of a thread, without branches that were left and without the content
of artifacts. It sends nothing itself.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec
from msgspec import UNSET

from stateroom._protocol import calls
from stateroom._protocol.core import Pinned, Steps
from stateroom._protocol.wire import (
    ChannelIn,
    ChannelOut,
    Leaf,
    LeafOut,
    SaveRequest,
    Version,
    WriteIn,
    WritesRequest,
)
from stateroom._remembered.growth import joined_lists, list_header
from stateroom._remembered.pieces import PieceCache, large_leaves, sending
from stateroom._threads.plain import RESERVED_PREFIX
from stateroom._threads.trajectories import (
    FORMAT,
    WHOLE_FORMAT,
    Begin,
    End,
    Lines,
    RecordedStep,
    Wanted,
    readable,
    readable_msgpack,
)
from stateroom.errors import ChannelUnchangedUnknown, FixtureUnreadable, InvalidRequest, ThreadExists
from stateroom.types import SaveReceipt

R_co = TypeVar("R_co", covariant=True)


class FixtureLeaf(LeafOut, kw_only=True, omit_defaults=True):
    """What was known of a large value in ``data``, whose content is there, too.

    Attributes:
        piece: The keyed digest that it had; of no use elsewhere.
        size_bytes: Its size, with its MessagePack header.
        at: The byte of ``data`` at which it begins.
        path: Where it stands in ``data``: a JSON pointer.
        media_type: What it is.
        preview: A thumbnail or a summary of it.
    """


class ChannelChange(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a step did to a channel.

    Attributes:
        kind: ``set``, ``append`` (``data`` is a list of the new elements), ``version`` (the value is the same, and its
            version another one) or ``remove``.
        version: The channel's version, as its adapter counts.
        encoding: How ``data`` is serialised.
        data: The bytes, as they are stored.
        leaves: What is known of large values in them.
    """

    kind: Literal["set", "append", "version", "remove"]
    version: Version | None = None
    encoding: str = "msgpack"
    data: bytes = b""
    leaves: list[FixtureLeaf] = []


class FixtureWrite(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pending write of a step, as it is stored.

    Attributes:
        task_id: The id of the task that wrote.
        idx: Its position among the task's writes.
        channel: The channel it is meant for.
        task_path: Where the task stands in the agent's plan.
        encoding: How ``data`` is serialised.
        data: The bytes.
        leaves: What is known of large values in them.
        state_schema: Name of the schema that it is at, where that is not its step's.
        state_version: The version that it is at, where that is not its step's.
    """

    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    encoding: str = "msgpack"
    data: bytes = b""
    leaves: list[FixtureLeaf] = []
    state_schema: str | None = None
    state_version: int | None = None


class FixtureStep(RecordedStep, kw_only=True, tag_field="type", tag="step"):
    """A step: a checkpoint, what it changed in the one before, and all of its pending writes.

    The other attributes are those of a ``RecordedStep``.

    Attributes:
        changes: What it changed, by channel, those of adapters (``~...``) included.
        writes: Its pending writes.
    """

    changes: dict[str, ChannelChange] = msgspec.field(default_factory=dict)
    writes: list[FixtureWrite] = msgspec.field(default_factory=list)


class LoadsFixtures(Protocol[R_co]):
    """A thread that fixtures are loaded into: ``Thread``, or ``AsyncThread``, whose result is to be awaited."""

    def load_fixture(self, fixture: "Fixture", /) -> R_co:
        """Save the steps of a fixture."""


_LINE = msgspec.json.Decoder(Begin | FixtureStep | End)


def fixture_lines(wanted: Wanted) -> Lines[FixtureStep]:
    """The lines of a fixture as they arrive."""
    return Lines(_LINE, lambda step: step, wanted, "channels")


class Fixture:
    """A thread as a file: what led to one of its checkpoints, byte by byte as it is stored, in clear.

    Attributes:
        thread_id: The thread it was made of.
        namespace: The sub-agent's namespace it was made of; empty for the root. Of a whole thread, that of the
            checkpoint it leads to.
        is_whole: Whether it was made of the whole thread, with all of its namespaces.
        steps: The steps, of each namespace oldest first; at least one.
    """

    def __init__(self, begin: Begin, steps: list[FixtureStep]) -> None:
        self.thread_id, self.namespace, self.is_whole = begin.thread_id, begin.namespace, begin.is_whole
        self.steps = steps

    def __repr__(self) -> str:
        place = f"namespaces={len(self.namespaces)}" if self.is_whole else f"namespace={self.namespace!r}"
        return f"Fixture(thread_id={self.thread_id!r}, {place}, steps={len(self.steps)})"

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of its steps, in their order."""
        return list(dict.fromkeys(each.namespace for each in self.steps))

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file.

        Args:
            path: The file.

        Raises:
            FixtureUnreadable: It is no fixture, only a part of one, or of a newer format.
            OSError: The file cannot be read.
        """
        return cls.parse(Path(path).read_bytes())

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read the content of a file.

        Args:
            content: The lines.

        Raises:
            FixtureUnreadable: It is no fixture, only a part of one, or of a newer format.
        """
        read = [_read_line(line, number) for number, line in enumerate(content.splitlines(), start=1)]
        match read:
            case [Begin() as begin, *steps, End() as end]:
                pass
            case [Begin(), *_]:
                raise FixtureUnreadable("it ends before its last line: it was cut off")
            case _:
                raise FixtureUnreadable("its first line is not that of a fixture")
        if begin.format not in {FORMAT, WHOLE_FORMAT}:
            raise FixtureUnreadable("it has a format that this version of the SDK does not know")
        if begin.view != "channels":
            raise FixtureUnreadable("it is a trajectory without what is stored: make it with thread.fixture()")
        kept = [each for each in steps if isinstance(each, FixtureStep)]
        if not kept or not len(kept) == len(steps) == begin.steps == end.steps:
            raise FixtureUnreadable("it has not the lines that it says")
        if not begin.is_whole:
            for each in kept:
                each.namespace = begin.namespace  # older files do not say it
        made = cls(begin, kept)
        runs = sum(one.namespace != other.namespace for one, other in pairwise(kept)) + 1
        if begin.is_whole and not begin.namespaces == len(made.namespaces) == runs:
            raise FixtureUnreadable("it has not the namespaces that it says")
        for _ in made.checkpoints():  # whether the changes fit each other
            pass
        return made

    def write(self, path: str | Path) -> None:
        """Write the file, which holds everything in clear.

        Args:
            path: The file; one that is there is replaced.

        Raises:
            OSError: The file cannot be written.
        """
        with Path(path).open("wb") as file:
            file.writelines(self.lines())

    def lines(self) -> Iterator[bytes]:
        """The lines of the file."""
        last, count = self.steps[-1], len(self.steps)
        begin = Begin(
            format=WHOLE_FORMAT if self.is_whole else FORMAT,
            view="channels",
            thread_id=self.thread_id,
            namespace=last.namespace,
            namespaces=len(self.namespaces) if self.is_whole else UNSET,
            checkpoint_id=last.checkpoint_id,
            steps=count,
        )
        for line in (begin, *self.steps, End(checkpoint_id=last.checkpoint_id, status=last.status, steps=count)):
            yield msgspec.json.encode(line) + b"\n"

    def states(self) -> Iterator[tuple[FixtureStep, dict[str, Any]]]:
        """Each step with the state it left, as plain data; objects of LangGraph as what they were made of."""
        for step, channels in self.checkpoints():
            yield step, plain_state(channels)

    def checkpoints(self) -> Iterator[tuple[FixtureStep, dict[str, ChannelOut]]]:
        """Each step with all of its channels, as they are stored.

        Raises:
            FixtureUnreadable: What a step changed does not fit the one before.
        """
        channels: dict[str, ChannelOut] = {}
        parent_id = namespace = None
        for step in self.steps:
            if step.namespace != namespace:
                channels, parent_id, namespace = {}, None, step.namespace
            if step.parent_id != parent_id:
                raise FixtureUnreadable(f"step {step.checkpoint_id} does not follow the one before it")
            parent_id = step.checkpoint_id
            channels = dict(channels)
            for name, change in step.changes.items():
                _apply(channels, name, change, step)
            yield step, channels

    def load_into(self, thread: LoadsFixtures[R_co]) -> R_co:
        """Save all steps into a thread that has none, with their own ids; doing it again changes nothing.

        Args:
            thread: The thread, which may belong to any gateway, tenant and subject; of an ``AsyncClient``, await what
                is returned. A whole thread comes with its own namespaces: load it into a thread's root.

        Returns:
            How many steps were new there.

        Raises:
            ThreadExists: The thread has other checkpoints.
            CheckpointExists: It has one of these, but with another content.
            InvalidRequest: It is a fixture of a whole thread, and ``thread`` one of a sub-agent's namespace.
        """
        return thread.load_fixture(self)


def _read_line(line: bytes, number: int) -> Begin | FixtureStep | End:
    try:
        read: Begin | FixtureStep | End = _LINE.decode(line)
    except msgspec.DecodeError:
        raise FixtureUnreadable(f"line {number} is none of a fixture, or damaged") from None
    return read


def _apply(channels: dict[str, ChannelOut], name: str, change: ChannelChange, step: FixtureStep) -> None:
    """Change a channel as a step did."""
    held = channels.get(name)
    if change.kind == "set":
        channels[name] = ChannelOut(
            version=change.version, encoding=change.encoding, data=change.data, leaves=[*change.leaves]
        )
        return
    if held is not None and change.kind == "remove":
        del channels[name]
        return
    if held is not None and change.kind == "version":
        channels[name] = msgspec.structs.replace(held, version=change.version)
        return
    whole = None if held is None else joined_lists(held.data, change.data)
    if held is None or whole is None or {held.encoding, change.encoding} != {"msgpack"}:
        raise FixtureUnreadable(f"step {step.checkpoint_id} changes {name!r}, which was something else before it")
    begin = len(whole) - len(change.data)  # what is added ends where it ended
    leaves = [*_moved(held.leaves, len(whole) - len(held.data) - _elements_bytes(change.data))]
    leaves += _moved(change.leaves, begin)
    channels[name] = ChannelOut(version=change.version, encoding="msgpack", data=whole, leaves=leaves)


def _elements_bytes(data: bytes) -> int:
    """How long a MessagePack list is without its header."""
    header = list_header(data)
    return 0 if header is None else len(data) - header[1]


def _moved(leaves: Sequence[LeafOut], offset: int) -> Iterator[LeafOut]:
    """What is known of large values once so many bytes more stand before them, without their paths."""
    for each in leaves:
        yield msgspec.structs.replace(each, at=None if each.at is None else each.at + offset, path=None)


def plain_state(channels: Mapping[str, ChannelOut]) -> dict[str, Any]:
    """A state as plain data, without adapters' own channels.

    Raises:
        FixtureUnreadable: A channel is not what its encoding says.
    """
    own = {name: each for name, each in channels.items() if not name.startswith(RESERVED_PREFIX)}
    return {name: plain_value(each) for name, each in own.items()}


def plain_value(kept: ChannelOut | FixtureWrite) -> Any:
    """A channel's or a pending write's value as plain data, as a trajectory tells it.

    Raises:
        FixtureUnreadable: It is not what its encoding says.
    """
    try:
        if kept.encoding == "msgpack":
            return readable_msgpack(kept.data)
        if kept.encoding == "json":
            return readable(msgspec.json.decode(kept.data))
    except (ValueError, RecursionError):
        raise FixtureUnreadable(f"a value is no {kept.encoding}") from None
    if kept.encoding == "null":
        return None
    text = base64.b64encode(kept.data).decode()
    return {"$bytes": text} if kept.encoding in {"bytes", "bytearray"} else {"$encoded": [kept.encoding, text]}


# Steps without I/O


def loading(fixture: Fixture, thread_id: str, namespace: str, pieces: PieceCache, pinned: Pinned) -> Steps[int]:
    """Save the steps of a fixture into a thread; returns how many were new.

    The pending writes of a step go before its checkpoint, so that where that is, they are.

    Args:
        fixture: The steps to save.
        thread_id: The id of the thread to save them into.
        namespace: The sub-agent's namespace.
        pieces: What is remembered of large leaves.
        pinned: For whom.

    Raises:
        ThreadExists: The thread has other checkpoints.
        InvalidRequest: A whole thread has no one namespace that it could be loaded into.
    """
    if fixture.is_whole and namespace:
        raise InvalidRequest("a fixture of a whole thread is loaded into a thread's root, with its own namespaces")
    there = yield from _ids(thread_id, None if fixture.is_whole else namespace)
    places = [each.namespace if fixture.is_whole else namespace for each in fixture.steps]
    firsts: dict[str, str] = {}
    for place, step in zip(places, fixture.steps, strict=True):
        firsts.setdefault(place, step.checkpoint_id)
    _check_same(firsts, there)
    begun = {each for each, _ in there}
    created = 0
    before: dict[str, ChannelOut] = {}
    for place, (step, channels) in zip(places, fixture.checkpoints(), strict=True):
        if (place, step.checkpoint_id) not in there:
            for task in _tasks(step, place):
                yield from _write(thread_id, step.checkpoint_id, task, pieces, pinned)
        request = _request(step, place)
        is_first = step.parent_id is None and place not in begun
        try:
            request.channels = _changed(step, channels, before)
            receipt = yield from _save(thread_id, request, pieces, pinned, is_first=is_first)
        except ChannelUnchangedUnknown:  # where a state version's JSON Schema wants whole values
            request.channels = _whole(channels)
            receipt = yield from _save(thread_id, request, pieces, pinned, is_first=is_first)
        created += receipt.created
        before = channels
    return created


def _check_same(firsts: Mapping[str, str], there: set[tuple[str, str]]) -> None:
    """Whether what a thread has was begun by loading the fixture, whose namespaces begin with these steps.

    Raises:
        ThreadExists: It was not.
    """
    begun = {namespace for namespace, _ in there}
    missing = [place for place in firsts.items() if place not in there]
    # The first of all was loaded before any other one.
    if there and missing and (missing[0] == next(iter(firsts.items())) or any(each in begun for each, _ in missing)):
        raise ThreadExists("the thread has other checkpoints than the fixture: load it into one that has none")


def _ids(thread_id: str, namespace: str | None) -> Steps[set[tuple[str, str]]]:
    """The checkpoints that a thread has, with their namespaces; ``namespace`` ``None``: of all."""
    selection, found, cursor = calls.Selection(thread_id=thread_id, namespace=namespace), set[tuple[str, str]](), None
    while True:
        page = yield from calls.list_infos(selection, calls.PAGE_MAX, cursor)
        found.update((each.namespace, each.checkpoint_id) for each in page.items)
        cursor = page.next_cursor
        if cursor is None:
            return found


def _request(step: FixtureStep, namespace: str) -> SaveRequest:
    return SaveRequest(
        checkpoint_id=step.checkpoint_id,
        parent_id=step.parent_id,
        namespace=namespace,
        status=step.status,
        step=step.step,
        source=step.source,
        agent=step.agent,
        run_id=step.run_id,
        model=step.model,
        usage=step.usage,
        metadata=step.metadata,
        state_schema=step.state_schema,
        state_version=step.state_version,
        delta_channels=step.delta_channels,
    )


def _whole(channels: Mapping[str, ChannelOut]) -> dict[str, ChannelIn]:
    return {
        name: ChannelIn(version=each.version, encoding=each.encoding, data=each.data, leaves=_said(each.leaves))
        for name, each in channels.items()
    }


def _said(leaves: Sequence[LeafOut]) -> list[Leaf]:
    """What is said of large values of a save."""
    return [
        Leaf(at=each.at, media_type=each.media_type, preview=each.preview) for each in leaves if each.at is not None
    ]


def _changed(
    step: FixtureStep, channels: Mapping[str, ChannelOut], before: Mapping[str, ChannelOut]
) -> dict[str, ChannelIn]:
    """The channels of a save, without what the parent has of those that have versions."""
    sent = _whole(channels)
    for name, channel in sent.items():
        held, change = before.get(name), step.changes.get(name)
        if held is None or held.version is None or channel.version is None:
            continue
        if change is None:
            channel.data, channel.leaves = UNSET, []
        elif change.kind == "append" and not large_leaves(change.data):
            channel.data, channel.append_to, channel.leaves = change.data, held.version, []
    return sent


def _save(
    thread_id: str, request: SaveRequest, pieces: PieceCache, pinned: Pinned, *, is_first: bool
) -> Steps[SaveReceipt]:
    values = list(request.channels.values()) if isinstance(request.channels, dict) else []
    return sending(pieces, pinned, thread_id, values, lambda: calls.save(thread_id, request, if_new=is_first))


def _tasks(step: FixtureStep, namespace: str) -> Iterator[tuple[str, WritesRequest]]:
    """The pending writes of a step, by task."""
    tasks: dict[tuple[str, str, str | None, int | None], list[WriteIn]] = {}
    for each in step.writes:
        task = each.task_id, each.task_path, each.state_schema, each.state_version
        write = WriteIn(
            channel=each.channel, idx=each.idx, encoding=each.encoding, data=each.data, leaves=_said(each.leaves)
        )
        tasks.setdefault(task, []).append(write)
    for (task_id, task_path, state_schema, state_version), writes in tasks.items():
        yield (
            task_id,
            WritesRequest(
                writes=writes,
                namespace=namespace,
                task_path=task_path,
                # Their checkpoint, which says what they are at otherwise, is not there yet.
                state_schema=state_schema or step.state_schema,
                state_version=state_version or step.state_version,
            ),
        )


def _write(
    thread_id: str, checkpoint_id: str, task: tuple[str, WritesRequest], pieces: PieceCache, pinned: Pinned
) -> Steps[None]:
    task_id, request = task
    yield from sending(
        pieces, pinned, thread_id, request.writes, lambda: calls.write(thread_id, checkpoint_id, task_id, request)
    )
