"""Running steps of a LangGraph thread again, by the graph as it is now.

This module owns how the steps of a fixture become checkpoints of a saver in memory, how exactly one superstep is run
from one of them, and what its models were asked. Nothing of the fixture's thread is touched, and no gateway is asked;
what the graph's nodes do, they do.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast, runtime_checkable

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import RESUME

from stateroom._langgraph.answers import Answers, model_of
from stateroom._langgraph.field_types import with_field_types
from stateroom._langgraph.values import Values
from stateroom._protocol.wire import ChannelOut, CheckpointWithChannels, SerialisedWrite
from stateroom._threads.fixtures import Fixture, FixtureStep, FixtureWrite, plain_state, plain_value
from stateroom.langgraph import StateroomSaver
from stateroom.testing.comparing import prompt_hash
from stateroom.testing.replay import Case, Made, NotEndedError, Report, check

_THREAD = "replay"
_PLACE = (b"", _THREAD, "")
# Under this task LangGraph keeps what a caller gave: answers to interrupts, and updates along with them.
_CALLER = "00000000-0000-0000-0000-000000000000"


@runtime_checkable
class Graph(Protocol):
    """A compiled graph, as far as it is used here."""

    checkpointer: Any

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        """The same graph with other attributes."""


def check_graph(fixture: Fixture, graph: Graph, steps: Collection[str] = ()) -> Report:
    """Run steps of a fixture again by a compiled graph, one superstep each, and compare.

    Nodes are run whatever they do: a node that books a flight books one. Answers to interrupts are given as they were.
    Subgraphs begin anew.

    Args:
        fixture: The fixture of a thread that ``StateroomSaver`` saved.
        graph: The graph. Values are read by the serialiser of its own ``StateroomSaver``; where it has another saver or
            none, only the types in fields of its state are rebuilt, beside those that LangGraph calls safe.
        steps: Ids of checkpoints; none: all that can be run.

    Raises:
        CheckpointNotFound: The fixture has no such step.
    """
    serde = _serde_of(graph)
    values = Values(serde, is_own=isinstance(serde, JsonPlusSerializer))

    def run(case: Case) -> Made:
        saver = InMemorySaver(serde=serde)
        before = _loaded(saver, values, case)
        asked = _Asked()
        config: RunnableConfig = {"configurable": {"thread_id": _THREAD}, "callbacks": [asked]}
        copied = graph.copy({"checkpointer": saver, "cache": None})
        asyncio.run(_one_superstep(copied, config, case.parent.checkpoint_id))
        return _made(saver, serde, before, asked)

    return check(fixture, run, _recorded, steps)


def _serde_of(graph: Graph) -> SerializerProtocol:
    """What reads the values of a fixture, which may come from anywhere: it must make no object that a file names."""
    if isinstance(graph.checkpointer, StateroomSaver):
        return graph.checkpointer.serde
    schemas = getattr(getattr(graph, "builder", None), "schemas", {})
    return JsonPlusSerializer(allowed_msgpack_modules=with_field_types([*schemas]) or None)


def _recorded(case: Case) -> dict[str, Any]:
    """The channels that a step left, and what it wrote to delta channels."""
    written: dict[str, list[tuple[str, int, Any]]] = defaultdict(list)
    for write in case.parent.writes:
        if write.channel in case.step.delta_channels and write.task_id != _CALLER:
            written[write.channel].append((write.task_id, write.idx, plain_value(write)))
    told = {name: [each[2] for each in sorted(every, key=lambda it: it[:2])] for name, every in written.items()}
    return plain_state(case.after) | {f"{name} (writes)": every for name, every in told.items()}


def _loaded(saver: InMemorySaver, values: Values, case: Case) -> CheckpointTuple:
    """Put what a step began from into a saver; returns the checkpoint it began from."""
    known: dict[str, Any] = {}
    answered = {each.task_id for each in case.parent.writes if each.channel == RESUME} - {_CALLER}
    found: CheckpointTuple | None = None
    for step, channels in (*case.ancestors, (case.parent, case.before)):
        found = values.tuple_of(_as_loaded(step, channels))
        versions = found.checkpoint["channel_versions"]
        new = {name: version for name, version in versions.items() if known.get(name) != version}
        known.update(new)
        before = found.parent_config or {"configurable": {"thread_id": _THREAD, "checkpoint_ns": ""}}
        config = saver.put(before, found.checkpoint, found.metadata, new)
        tasks: dict[tuple[str, str], list[FixtureWrite]] = defaultdict(list)
        for write in step.writes:
            if step is not case.parent or _is_given(write, answered):
                tasks[write.task_id, write.task_path].append(write)
        for (task_id, task_path), writes in tasks.items():
            told = [(each.channel, values.value(_as_written(each))) for each in sorted(writes, key=lambda it: it.idx)]
            saver.put_writes(config, told, task_id, task_path)
    return cast(CheckpointTuple, found)


def _is_given(write: FixtureWrite, answered: Collection[str]) -> bool:
    """Whether a pending write is no result, but what a caller gave: a task would not run again that has results.

    A task that was answered keeps all of its answers, in their order; the caller's last one could answer what no one
    asked then.
    """
    if write.task_id == _CALLER:
        return write.channel != RESUME or not answered
    return write.channel == RESUME


def _as_loaded(step: FixtureStep, channels: Mapping[str, ChannelOut]) -> CheckpointWithChannels:
    return CheckpointWithChannels(
        thread_id=_THREAD,
        namespace="",
        checkpoint_id=step.checkpoint_id,
        parent_id=step.parent_id,
        step=step.step,
        status=step.status,
        created_at=step.created_at,
        source=step.source,
        metadata=dict(step.metadata),
        delta_channels=step.delta_channels,
        channels=dict(channels),
    )


def _as_written(write: FixtureWrite) -> SerialisedWrite:
    return SerialisedWrite(
        task_id=write.task_id, idx=write.idx, channel=write.channel, encoding=write.encoding, data=write.data
    )


async def _one_superstep(graph: Any, config: RunnableConfig, parent_id: str) -> None:
    """Run a graph from its newest checkpoint until there is another one.

    LangGraph tells of a checkpoint before it begins the tasks that come after it.
    """
    events = graph.astream(None, config, stream_mode="checkpoints", durability="sync")
    async with aclosing(events) as told:
        async for event in told:
            if event["config"]["configurable"]["checkpoint_id"] != parent_id:
                return


def _made(saver: InMemorySaver, serde: SerializerProtocol, before: CheckpointTuple, asked: "_Asked") -> Made:
    after = cast(CheckpointTuple, saver.get_tuple({"configurable": {"thread_id": _THREAD, "checkpoint_ns": ""}}))
    if after.checkpoint["id"] == before.checkpoint["id"]:
        raise NotEndedError("the step did not end: it waits for an answer, or there was nothing to do")
    parent = cast(CheckpointTuple, saver.get_tuple(before.config))
    written: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    deltas = {*(after.metadata.get("counters_since_delta_snapshot") or {})}
    answers = Answers()
    answers.note(_PLACE, "parent", before.checkpoint["channel_values"], None)
    for task_id, channel, value in parent.pending_writes or ():
        if channel in deltas and task_id != _CALLER:
            written[channel].append((task_id, value))
            answers.note_writes(_PLACE, "parent", f"{task_id} {len(written[channel])}", [(channel, value)])
    changed = {
        name: version
        for name, version in after.checkpoint["channel_versions"].items()
        if before.checkpoint["channel_versions"].get(name) != version
    }
    state = {name: _plain(serde, value) for name, value in after.checkpoint["channel_values"].items()}
    for name, every in written.items():
        state[f"{name} (writes)"] = [_plain(serde, value) for _, value in sorted(every, key=lambda it: it[0])]
    return Made(
        state=state,
        model=model_of(answers.added(_PLACE, "parent", after.checkpoint, changed), asked.parameters()),
        prompt_hash=asked.prompt_hash(),
    )


def _plain(serde: SerializerProtocol, value: Any) -> Any:
    """A value in the plain form that recorded ones have."""
    encoding, data = serde.dumps_typed(value)
    return plain_value(ChannelOut(encoding=encoding, data=bytes(data)))


class _Asked(BaseCallbackHandler):
    """What models were asked in a step, and with which parameters."""

    def __init__(self) -> None:
        self._hashes: list[str] = []
        self._parameters: list[Mapping[str, Any]] = []

    def on_chat_model_start(self, serialized: Any, messages: Sequence[Sequence[BaseMessage]], **more: Any) -> None:  # noqa: ARG002
        """Note the messages of a call."""
        self._hashes += [prompt_hash(each) for each in messages]
        self._parameters.append(more.get("metadata") or {})

    def on_llm_start(self, serialized: Any, prompts: Sequence[str], **more: Any) -> None:  # noqa: ARG002
        """Note the texts of a call."""
        self._hashes += [prompt_hash(each) for each in prompts]
        self._parameters.append(more.get("metadata") or {})

    def prompt_hash(self) -> str | None:
        """The hash of the only prompt; of several, that of the sorted list of theirs; ``None``: there was none."""
        if len(self._hashes) > 1:
            return prompt_hash(sorted(self._hashes))
        return self._hashes[0] if self._hashes else None

    def parameters(self) -> dict[str, Any]:
        """The parameters in which all calls agree."""
        if not self._parameters:
            return {}
        first, *others = self._parameters
        return {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}
