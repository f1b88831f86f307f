"""What the contenders are asked to keep: text, checkpoints, chats and graphs.

Everything comes from seeded generators, so that two runs get the same bytes. The text is made of words of a
fixed vocabulary with the frequencies of natural language (Zipf's law), because the cost of storing random
bytes or of one repeated letter says nothing about prose. Nothing here connects to anything.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

VOCABULARY_WORDS = 8000
_SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe qui ra se ti vo wa xe yo zu an er in on ur st ght ing tion".split()  # noqa: SIM905
_ROLES_PER_TURN = 2  # a question and an answer
TOOLS_PER_QUESTION = 2


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    """The words, the frequent ones first, and their cumulated frequencies; the same in all runs."""
    language = random.Random(0)  # noqa: S311 - text, not secrets
    words = ["".join(language.choices(_SYLLABLES, k=language.randint(1, 4))) for _ in range(VOCABULARY_WORDS)]
    return words, list(accumulate(1 / rank for rank in range(1, VOCABULARY_WORDS + 1)))


class Prose:
    """An endless text that compresses about as well as English does.

    Args:
        seed: The same seed, the same text.
    """

    def __init__(self, seed: str) -> None:
        self._words, self._weights = _vocabulary()
        self._random = random.Random(seed)  # noqa: S311 - text, not secrets

    def take(self, length: int) -> str:
        """The next ``length`` characters, which for this vocabulary is as many bytes."""
        text = ""
        while len(text) < length:
            text += " ".join(self._random.choices(self._words, cum_weights=self._weights, k=length // 6 + 8)) + " "
        return text[:length]


class Save(NamedTuple):
    """The arguments of one ``aput``, made before the clock starts."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: dict[str, Any]


def config_of(thread_id: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    """What LangGraph passes as ``config``: the thread and, to follow it, the parent."""
    configurable = {"thread_id": thread_id, "checkpoint_ns": ""}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def _save(saver: BaseCheckpointSaver, values: dict[str, Any], previous: Save | None, step: int) -> Save:
    """A checkpoint in which every value is new since ``previous``."""
    before = previous.checkpoint["channel_versions"] if previous else {}
    versions = {name: saver.get_next_version(before.get(name), None) for name in values}
    checkpoint = Checkpoint(
        v=4,
        id=str(uuid6(clock_seq=step & 0x3FFF)),
        ts="2026-11-21T10:00:00+00:00",
        channel_values=values,
        channel_versions=versions,
        versions_seen={"__input__": {}, "agent": dict(versions)},
        updated_channels=sorted(values),
    )
    return Save(checkpoint, {"source": "loop", "step": step, "parents": {}}, versions)


def saves_of_10_kb(saver: BaseCheckpointSaver, prose: Prose, count: int) -> list[Save]:
    """Checkpoints of one thread with about 10 KB of state each, all of it new in each.

    Nothing repeats, so that keeping equal values once helps nobody here.
    """
    made: list[Save] = []
    for step in range(count):
        values = {
            "messages": [
                HumanMessage(prose.take(1000), id=f"q-{step}"),
                AIMessage(prose.take(2500), id=f"a-{step}"),
                HumanMessage(prose.take(1000), id=f"r-{step}"),
            ],
            "documents": [
                {"title": prose.take(60), "score": 1 / (rank + 2), "text": prose.take(1200)} for rank in range(4)
            ],
            "plan": [prose.take(80) for _ in range(4)],
            "turn": step,
        }
        made.append(_save(saver, values, made[-1] if made else None, step))
    return made


def chat(prose: Prose, turns: int, turn_bytes: int) -> list[AnyMessage]:
    """The messages of a conversation: a question and an answer a turn, ``turn_bytes`` together."""
    kinds = (HumanMessage, AIMessage)
    return [
        kinds[number % _ROLES_PER_TURN](prose.take(turn_bytes // _ROLES_PER_TURN), id=f"m-{number}")
        for number in range(turns * _ROLES_PER_TURN)
    ]


def chat_saves(saver: BaseCheckpointSaver, messages: Sequence[AnyMessage]) -> Iterator[Save]:
    """One save a turn of a growing ``messages`` channel."""
    previous: Save | None = None
    for step in range(len(messages) // _ROLES_PER_TURN):
        known = list(messages[: (step + 1) * _ROLES_PER_TURN])
        previous = _save(saver, {"messages": known}, previous, step)
        yield previous


class _Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class _Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def chat_graph(saver: BaseCheckpointSaver, messages: Sequence[AnyMessage], *, delta: bool) -> CompiledStateGraph:
    """A chat bot of one node whose model answers from ``messages`` instead of thinking.

    Args:
        saver: Where it keeps its state.
        messages: The conversation; each answer follows its question.
        delta: Whether the channel is LangGraph's ``DeltaChannel`` instead of the usual ``add_messages``.
    """

    async def model(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [messages[len(state["messages"])]]}

    builder = StateGraph(_Delta if delta else _Plain)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    return builder.compile(checkpointer=saver)


def agent_graph(saver: BaseCheckpointSaver, prose: Prose, questions: int) -> CompiledStateGraph:
    """An agent as LangGraph's own pieces make it: a model, which is scripted, tools that run at once, and a loop.

    To each question the model answers with calls of two tools, and to their results of 1 KB each with 500 bytes.

    Args:
        saver: Where it keeps its state.
        prose: What tools and model say.
        questions: How many it can answer.
    """

    def search(query: str) -> str:
        """Look something up."""
        return f"{query}: {prose.take(1000)}"

    def script() -> Iterator[AIMessage]:
        for number in range(questions):
            calls = [
                {"name": "search", "args": {"query": prose.take(40)}, "id": f"call-{number}-{tool}"}
                for tool in range(TOOLS_PER_QUESTION)
            ]
            yield AIMessage("", tool_calls=calls, id=f"calls-{number}")
            yield AIMessage(prose.take(500), id=f"answer-{number}")

    model = GenericFakeChatModel(messages=script())

    async def think(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(_Plain)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)
