"""Trajectories: what a thread did, step by step, as plain data.

This module owns the shapes of steps, how values are made readable, and which of them are messages. The gateway tells
what each step changed and does not know any framework's types; here what LangGraph's serialiser wrote is taken apart,
as data: nothing is imported and no object of the program is made. It sends nothing.
"""

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from stateroom._protocol.wire import LeafOut
from stateroom.errors import GatewayUnavailable
from stateroom.types import LargeValue, Model, PendingWrite, Status, Usage

FORMAT = "stateroom-trajectory/1"
WHOLE_FORMAT = "stateroom-trajectory/2"
View = Literal["state", "channels"]
_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "function": "tool"}
_CHAT_ROLES = frozenset({"user", "assistant", "system", "developer", "tool"})
_DEPTH_MAX = 200
# LangGraph's serialiser writes these as (module, name, arguments, ...), in MessagePack again.
_OBJECTS = frozenset({0, 1, 2, 3, 4, 5})
_SNAPSHOT = 7


class ToolCall(msgspec.Struct, kw_only=True):
    """What a model asks a tool to do.

    Attributes:
        name: The tool.
        arguments: Its arguments: an object, or the text that the model wrote where that is none.
        id: The call's id, which the tool's message repeats.
    """

    name: str
    arguments: Any = None
    id: str | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message that a step added.

    Attributes:
        channel: The channel that it was added to.
        role: ``user``, ``assistant``, ``system``, ``tool`` or whatever else it says.
        content: Its text, or its parts.
        name: Who wrote it, or which tool.
        tool_calls: The tools that it asks for.
        tool_call_id: The call that it is the result of.
        model: The model that wrote it, where it says so.
        usage: The tokens it took, where it says so.
    """

    channel: str
    role: str
    content: Any = None
    name: str | None = None
    tool_calls: list[ToolCall] = []
    tool_call_id: str | None = None
    model: str | None = None
    usage: dict[str, Any] | None = None


class TrajectoryChange(msgspec.Struct, kw_only=True):
    """What a step did to a channel.

    Attributes:
        kind: ``set``, ``append`` (``value`` holds the new elements of a list), or ``remove``.
        value: The value, as plain data.
        large_values: What the large values in it are, by their paths (JSON pointers); of those whose path is known.
    """

    kind: Literal["set", "append", "remove"]
    value: Any = None
    large_values: dict[str, LargeValue] = {}


class TrajectoryWrite(PendingWrite, kw_only=True):
    """A pending write of a step.

    The other attributes are those of a ``PendingWrite``.

    Attributes:
        large_values: What the large values in its value are, by their paths (JSON pointers); of those whose path is
            known.
    """

    large_values: dict[str, LargeValue] = msgspec.field(default_factory=dict)


class RecordedStep(msgspec.Struct, kw_only=True):
    """A checkpoint as a step of a trajectory or a fixture.

    Attributes:
        namespace: The sub-agent's namespace; empty for the root.
        checkpoint_id: The checkpoint's id; ``trajectory(after=...)`` goes on behind it.
        parent_id: The checkpoint it follows; ``None`` for the first.
        step: The agent's step.
        status: The status it was saved with.
        created_at: When it was stored.
        source: What made it, for example ``input``, ``loop``, ``update`` or ``fork``.
        agent: The program's name.
        run_id: The run that made it.
        state_schema: Name of the state's schema.
        state_version: Version of the state within its schema.
        model: Which model produced the step, and its parameters.
        usage: What the step consumed.
        metadata: Whatever was saved with it.
        delta_channels: Channels whose value is rebuilt from pending writes, and which are in no change.
    """

    namespace: str = ""
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    created_at: datetime
    source: str | None = None
    agent: str | None = None
    run_id: str | None = None
    state_schema: str | None = None
    state_version: int | None = None
    model: Model | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = {}
    delta_channels: list[str] = []


class TrajectoryStep(RecordedStep, kw_only=True):
    """A step: a checkpoint, and what it changed in the one before.

    The other attributes are those of a ``RecordedStep``.

    Attributes:
        changes: What it changed, by channel.
        writes: What tasks wrote after it that the next step does not show: interrupts, resumes, errors, writes to delta
            channels; of the last step all.
        messages: The messages among its changes, and among its writes to delta channels.
    """

    changes: dict[str, TrajectoryChange] = {}
    writes: list[TrajectoryWrite] = []
    messages: list[Message] = []


class Begin(msgspec.Struct, tag_field="type", tag="begin", kw_only=True):
    """The first line; of a whole thread it says how many namespaces there are."""

    format: str
    view: View
    thread_id: str
    namespace: str
    namespaces: int | UnsetType = UNSET
    checkpoint_id: str
    steps: int

    @property
    def is_whole(self) -> bool:
        """Whether it is of a whole thread."""
        return self.format == WHOLE_FORMAT


class End(msgspec.Struct, tag_field="type", tag="end", kw_only=True):
    """The last line."""

    checkpoint_id: str
    status: Status | None
    steps: int


class _Change(TrajectoryChange, kw_only=True):
    leaves: list[LeafOut] = []


class _Write(TrajectoryWrite, kw_only=True):
    leaves: list[LeafOut] = msgspec.field(default_factory=list)


class _Step(RecordedStep, kw_only=True, tag_field="type", tag="step"):
    changes: dict[str, _Change] = {}
    writes: list[_Write] = []


class StepLine(Protocol):
    """A step as a line tells it."""

    namespace: str
    checkpoint_id: str


StepT = TypeVar("StepT", bound=StepLine)
_LINE = msgspec.json.Decoder(Begin | _Step | End)


class Wanted(msgspec.Struct, kw_only=True):
    """What is wanted of a thread, and then what has come of it.

    Attributes:
        namespace: The namespace; of a whole thread, that of ``checkpoint_id``.
        checkpoint_id: The checkpoint that it leads to; ``None``: the newest, which the first line names.
        after: The last step that is there already.
        after_namespace: The namespace of that.
        all_namespaces: Whether it is the whole thread.
    """

    namespace: str
    checkpoint_id: str | None = None
    after: str | None = None
    after_namespace: str = ""
    all_namespaces: bool = False

    def query(self, view: View) -> tuple[tuple[str, str | None], ...]:
        """The parameters that ask for what has not come."""
        is_whole = self.all_namespaces
        return (
            ("namespace", None if is_whole and self.checkpoint_id is None else self.namespace),
            ("namespaces", "all" if is_whole else None),
            ("checkpoint_id", self.checkpoint_id),
            ("after", self.after),
            ("after_namespace", self.after_namespace if is_whole and self.after is not None else None),
            ("view", view),
        )


def step_lines(wanted: Wanted) -> "Lines[TrajectoryStep]":
    """Lines of a trajectory whose values are made readable."""
    return Lines(_LINE, _readable_step, wanted, "state")


class Lines(Generic[StepT]):
    """A trajectory as it arrives, and how far it has come.

    Args:
        decoder: Reads a line: ``Begin``, a step or ``End``.
        finish: Makes of a step as it came what it is given as.
        wanted: Which trajectory.
        view: How values come.
    """

    def __init__(
        self,
        decoder: "msgspec.json.Decoder[Any]",
        finish: Callable[[Any], StepT],
        wanted: Wanted,
        view: View,
    ) -> None:
        self.wanted, self._view = wanted, view
        self.begun: Begin | None = None
        self.is_complete = False
        self._decoder, self._finish = decoder, finish
        self._parts: list[bytes] = []

    @property
    def after(self) -> str | None:
        """The last step that is there."""
        return self.wanted.after

    def query(self) -> tuple[tuple[str, str | None], ...]:
        """The parameters that ask for what has not come."""
        return self.wanted.query(self._view)

    def begin(self) -> None:
        """Let go of half a line: another answer begins."""
        self._parts = []

    def accept(self, piece: bytes) -> Iterator[StepT]:
        """The steps that a piece of the answer completes.

        Raises:
            GatewayUnavailable: It is no trajectory that this SDK knows.
        """
        *ended, rest = piece.split(b"\n")
        for each in ended:
            line, self._parts = b"".join([*self._parts, each]), []
            step = self._read(line)
            if step is not None:
                self.wanted.after, self.wanted.after_namespace = step.checkpoint_id, step.namespace
                yield step
        if rest:
            self._parts.append(rest)

    def _read(self, line: bytes) -> StepT | None:
        try:
            read = self._decoder.decode(line)
        except msgspec.DecodeError:
            raise GatewayUnavailable("a line is no step of a trajectory", code="unexpected-answer") from None
        if isinstance(read, Begin):
            if read.format != (WHOLE_FORMAT if self.wanted.all_namespaces else FORMAT):
                raise GatewayUnavailable("the trajectory has a newer format", code="unexpected-answer")
            self.begun = self.begun or read
            self.wanted.namespace, self.wanted.checkpoint_id = read.namespace, read.checkpoint_id
            return None
        if isinstance(read, End):
            self.is_complete = True
            return None
        if not self.wanted.all_namespaces:  # older gateways do not say it
            read.namespace = self.wanted.namespace
        return self._finish(read)


def _readable_step(read: _Step) -> TrajectoryStep:
    fields = {name: getattr(read, name) for name in RecordedStep.__struct_fields__}
    step = TrajectoryStep(**fields)
    for name, change in read.changes.items():
        step.changes[name] = TrajectoryChange(
            kind=change.kind, value=readable(change.value), large_values=_large_values(change.leaves)
        )
    for write in read.writes:
        shown = {name: getattr(write, name) for name in PendingWrite.__struct_fields__}
        shown["value"] = readable(write.value)
        step.writes.append(TrajectoryWrite(**shown, large_values=_large_values(write.leaves)))
    for name, told in step.changes.items():
        if told.kind != "remove":
            step.messages += _messages(name, told.value)
    for each in step.writes:
        if each.channel in step.delta_channels:
            step.messages += _messages(each.channel, each.value)
    return step


def _large_values(leaves: Iterable[LeafOut]) -> dict[str, LargeValue]:
    """What is known of large values, by their paths in a value."""
    return {
        each.path: LargeValue(
            piece=each.piece, size_bytes=each.size_bytes, media_type=each.media_type, preview=each.preview
        )
        for each in leaves
        if each.path is not None
    }


def readable_msgpack(data: bytes) -> Any:
    """A value that the serialiser wrote as MessagePack, as ``readable`` has it.

    Raises:
        ValueError: It is no MessagePack.
    """
    return _plain(msgspec.msgpack.decode(data), 0)


def readable(value: Any, depth: int = 0) -> Any:
    """A value of the API's JSON with the objects of LangGraph's serialiser as what they were made of.

    Bytes stay ``{"$bytes": ...}``, and what is unknown stays as it is. What is nested beyond all reason is left out.
    """
    if depth > _DEPTH_MAX:
        return value
    if isinstance(value, list):
        return [readable(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(extension := value.get("$ext"), list):
        try:
            code, text = extension
            inner = msgspec.msgpack.decode(base64.b64decode(text, validate=True))
        except (ValueError, TypeError, binascii.Error, RecursionError):
            return value
        if code == _SNAPSHOT:
            return _plain(inner, depth + 1)
        if code in _OBJECTS and isinstance(inner, list) and len(inner) > 2:
            return _plain(inner[2], depth + 1)
        return value
    return {name: readable(each, depth + 1) for name, each in value.items()}


def _plain(value: Any, depth: int) -> Any:
    """What the serialiser wrote, as the API's JSON would show it, made readable."""
    if depth > _DEPTH_MAX:
        return None
    match value:
        case dict():
            return {str(name): _plain(each, depth + 1) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each, depth + 1) for each in value]
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case msgspec.msgpack.Ext():
            return readable({"$ext": [value.code, base64.b64encode(value.data).decode()]}, depth + 1)
        case float() if not math.isfinite(value):
            return {"$float": str(value)}
        case datetime():
            return value.isoformat()
        case _:
            return value


def _messages(channel: str, value: Any) -> Iterator[Message]:
    """The messages in a value that is one, or a list of some."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, Mapping):
            message = message_of(channel, each)
            if message is not None:
                yield message


def message_of(channel: str, value: Mapping[str, Any]) -> Message | None:
    """A message as OpenAI's or LangChain's programs write them; ``None``: it is none."""
    role, kind = value.get("role"), value.get("type")
    if "content" not in value:
        return None
    if not isinstance(role, str):
        if not isinstance(kind, str) or kind not in {*_ROLES, "system", "tool", "chat", "remove"} or kind == "remove":
            return None
        role = _ROLES.get(kind, kind)
    said, usage = value.get("response_metadata"), value.get("usage_metadata")
    model = (said.get("model_name") or said.get("model")) if isinstance(said, Mapping) else None
    return Message(
        channel=channel,
        role=role,
        content=value["content"],
        name=_text(value.get("name")),
        tool_calls=[call for each in value.get("tool_calls") or () if (call := _tool_call(each)) is not None],
        tool_call_id=_text(value.get("tool_call_id")),
        model=_text(model),
        usage=dict(usage) if isinstance(usage, Mapping) else None,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _tool_call(value: Any) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    called = value.get("function")
    if isinstance(called, Mapping):  # as OpenAI has it: the arguments are a text
        arguments = called.get("arguments")
        with suppress(msgspec.DecodeError):
            arguments = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        name = called.get("name")
    else:
        name, arguments = value.get("name"), value.get("args")
    if not isinstance(name, str):
        return None
    return ToolCall(name=name, arguments=arguments, id=_text(value.get("id")))


def chat_form(steps: Iterable[TrajectoryStep]) -> dict[str, Any]:
    """The messages of steps as one line of a file for fine-tuning: ``{"messages": [...]}``, as OpenAI's API has it.

    Args:
        steps: All steps of a trajectory, oldest first.

    Returns:
        The object; a message of another role than such files know is left out.
    """
    return {"messages": [_chat(each) for step in steps for each in step.messages if each.role in _CHAT_ROLES]}


def _chat(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": _arguments(each)}}
            for each in message.tool_calls
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _arguments(call: ToolCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
