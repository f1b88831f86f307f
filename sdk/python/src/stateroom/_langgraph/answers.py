"""What models answered in a step: by which model, and for how many tokens.

This module owns which messages a checkpoint adds, and what of them goes into its ``model`` and ``usage``. Only what
messages and configs say is taken, and only of messages that are certainly new: where it is not remembered what the
parent had, nothing is said. A list that was rewritten instead of growing tells nothing, either. What is remembered of a
checkpoint is a few words, of the last ones only.
"""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.base import ChannelVersions, Checkpoint

from stateroom._io.processes import PerProcess
from stateroom._remembered.growth import NamespaceKey
from stateroom.types import Model, Usage

_CHECKPOINTS_MAX = 4096
_NAME_BYTES_MAX = 255
_TOKENS_MAX = 2**53
_SEED_MIN, _SEED_MAX = -(2**63), 2**63 - 1
_INPUT_NODE = "__start__"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's message says of its making.

    Attributes:
        key: What tells it from other messages of its step.
        model: The model; ``None``: it names none.
        usage: The tokens; ``None``: it counts none.
    """

    key: str
    model: Model | None
    usage: Usage | None


class _Seen(msgspec.Struct):
    """What is remembered of a checkpoint.

    ``ends`` has of each list its length and what its last element was; ``None``: the checkpoint itself was not seen.
    ``writes`` has the answers among its pending writes, with their channel, by task and index.
    """

    ends: dict[str, tuple[int, str | None]] | None = None
    is_input: bool = False
    writes: dict[tuple[str, int], tuple[str, list[Answer]]] = {}


class Answers:
    """What the last checkpoints held, so that it can be told what the next ones add. Threads may share it."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.Lock)
        self._seen: OrderedDict[tuple[NamespaceKey, str], _Seen] = OrderedDict()

    def note(self, key: NamespaceKey, checkpoint_id: str, values: Mapping[str, Any], source: Any) -> None:
        """Remember a checkpoint that was loaded, or is about to be saved.

        Args:
            key: Its namespace.
            checkpoint_id: Its id.
            values: The values of its channels.
            source: What made it.
        """
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        ends = {name: (len(value), _mark(value[-1]) if value else None) for name, value in lists.items()}
        with self._lock.mine():
            seen = self._of(key, checkpoint_id)
            seen.ends, seen.is_input = ends, source == "input"

    def note_writes(
        self, key: NamespaceKey, checkpoint_id: str, task_id: str, writes: Sequence[tuple[str, Any]]
    ) -> None:
        """Remember the answers among a task's pending writes; arguments as those of a put."""
        found = {
            (task_id, idx): (name, answers)
            for idx, (name, value) in enumerate(writes)
            if (answers := answers_of(value if isinstance(value, list) else [value]))
        }
        if found:
            with self._lock.mine():
                self._of(key, checkpoint_id).writes.update(found)

    def added(
        self, key: NamespaceKey, parent_id: str | None, checkpoint: Checkpoint, changed: ChannelVersions
    ) -> list[Answer]:
        """The answers that a step added to channels, each once.

        Args:
            key: The step's thread and namespace.
            parent_id: The step's parent; ``None``: it has none, and so everything is new.
            checkpoint: The step.
            changed: The channels that it changed.
        """
        ends, is_input, writes = {}, False, list[tuple[str, list[Answer]]]()
        if parent_id is not None:
            with self._lock.mine():
                seen = self._seen.get((key, parent_id)) or _Seen()
                if seen.ends is None:
                    return []
                ends, is_input, writes = seen.ends, seen.is_input, [*seen.writes.values()]
        if is_input and _INPUT_NODE in (checkpoint.get("versions_seen") or {}):
            return []  # that node hands in what the caller gave
        found = dict[str, Answer]()
        for name in changed:
            value = checkpoint["channel_values"].get(name)
            if isinstance(value, list):
                new = answers_of(_grown(value, *ends.get(name, (0, None))))
            else:  # a delta channel has no value but writes, which LangGraph stores before the step
                new = [each for written, answers in writes if written == name for each in answers]
            found |= {each.key: each for each in new}
        return [*found.values()]

    def _of(self, key: NamespaceKey, checkpoint_id: str) -> _Seen:
        """What is remembered of a checkpoint, to be changed while the lock is held."""
        seen = self._seen.setdefault((key, checkpoint_id), _Seen())
        self._seen.move_to_end((key, checkpoint_id))
        while len(self._seen) > _CHECKPOINTS_MAX:
            self._seen.popitem(last=False)
        return seen


def _mark(element: Any) -> str | None:
    """What tells the last element of a list from others; ``None``: it is no message."""
    if not isinstance(element, BaseMessage):
        return None
    return element.id or hashlib.sha256(repr((element.type, element.content)).encode("utf-8", "replace")).hexdigest()


def _grown(value: list[Any], count: int, mark: str | None) -> list[Any]:
    """The new elements of a list that had ``count``; none where it is not certain that it only grew."""
    if count and (mark is None or len(value) < count or _mark(value[count - 1]) != mark):
        return []
    return value[count:]


def answers_of(values: Iterable[Any]) -> list[Answer]:
    """What messages of models among values say of their making; one that says nothing is left out."""
    messages = (
        each for each in values if isinstance(each, AIMessage) and (each.response_metadata or each.usage_metadata)
    )
    return [Answer(key=each.id or str(id(each)), model=_model(each), usage=_usage(each)) for each in messages]


def _model(message: AIMessage) -> Model | None:
    metadata = message.response_metadata
    name = _text(metadata.get("model_name")) or _text(metadata.get("model"))
    if name is None:
        return None
    return Model(
        name=name,
        hash=_text(metadata.get("system_fingerprint")),
        temperature=_number(metadata.get("temperature")),
        top_p=_number(metadata.get("top_p")),
        seed=_whole(metadata.get("seed"), _SEED_MIN, _SEED_MAX),
    )


def _usage(message: AIMessage) -> Usage | None:
    counts: Mapping[str, Any] | None = message.usage_metadata
    if not counts:
        return None
    return Usage(
        input_tokens=_whole(counts.get("input_tokens"), 0, _TOKENS_MAX) or 0,
        output_tokens=_whole(counts.get("output_tokens"), 0, _TOKENS_MAX) or 0,
    )


def model_of(answers: Sequence[Answer], metadata: Mapping[str, Any]) -> Model | None:
    """The model that answered; ``None``: no answer names one, or they name several.

    Args:
        answers: The answers of a step.
        metadata: That of the graph's config: parameters that no answer says are taken from there, under the names that
            LangSmith has for them (``ls_temperature``).
    """
    models = [each.model for each in answers if each.model is not None]
    if not models or {each.name for each in models} != {models[0].name}:
        return None
    one = {part: _common([getattr(each, part) for each in models]) for part in Model.__struct_fields__}
    if one["temperature"] is None:
        one["temperature"] = _number(metadata.get("ls_temperature"))
    if one["top_p"] is None:
        one["top_p"] = _number(metadata.get("ls_top_p"))
    if one["seed"] is None:
        one["seed"] = _whole(metadata.get("ls_seed"), _SEED_MIN, _SEED_MAX)
    return Model(**one)


def usage_of(answers: Sequence[Answer]) -> Usage | None:
    """The tokens that answers took, together; ``None``: none of them counts any."""
    counted = [each.usage for each in answers if each.usage is not None]
    if not counted:
        return None
    return Usage(
        input_tokens=min(sum(each.input_tokens for each in counted), _TOKENS_MAX),
        output_tokens=min(sum(each.output_tokens for each in counted), _TOKENS_MAX),
    )


def _common(values: Sequence[Any]) -> Any:
    """The value that all of them have; ``None``: they differ."""
    return values[0] if all(each == values[0] for each in values) else None


# The gateway refuses a save for a name or number that is none, so what a message says is looked at before.


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    try:
        return value if len(value.encode()) <= _NAME_BYTES_MAX else None
    except UnicodeEncodeError:
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole(value: Any, least: int, most: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None
