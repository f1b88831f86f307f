"""A LangGraph agent in three releases over the same threads: what was saved by one is gone on with by the next.

Owns one travel agent as it was released three times; only the shape of its state differs. ``state_schemas/travel``
says how one shape becomes the next, and back:

    release 1    user_pref, name, city, msgs
    release 2    user_profile, first_name and last_name, city, msgs       (a rename, a split)
    release 3    user_profile, first_name and last_name, trip, messages   (a channel moved into another, a rename)

``msgs`` is a DeltaChannel: its value is not stored, but rebuilt from what was written to it. The agent stops in the
middle to ask somebody, while a task beside it has finished. It needs ``STATEROOM_URL`` and ``STATEROOM_API_KEY`` of a
key that has ``tenant:admin`` (for ``register``, once):

    set -a; . .stateroom/env; set +a
    python examples/state_upgrade_agent.py register
    python examples/state_upgrade_agent.py --release 1 start trip-7 "Ada Lovelace" Lisbon
    python examples/state_upgrade_agent.py --release 3 answer trip-7 yes
    python examples/state_upgrade_agent.py --release 1 show trip-7
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

from stateroom import Client
from stateroom.langgraph import StateroomSaver

SCHEMA = "travel"
STEPS = Path(__file__).parent / "state_schemas" / SCHEMA


def extend(lines: list[str], writes: Sequence[list[str]]) -> list[str]:
    """What a DeltaChannel's value becomes by writes to it."""
    return [*lines, *(line for written in writes for line in written)]


Lines = Annotated[list[str], DeltaChannel(extend)]


class Travel1(TypedDict, total=False):
    """The state of release 1."""

    user_pref: dict[str, str]
    name: str
    city: str
    msgs: Lines


class Travel2(TypedDict, total=False):
    """The state of release 2."""

    user_profile: dict[str, str]
    first_name: str
    last_name: str
    city: str
    msgs: Lines


class Travel3(TypedDict, total=False):
    """The state of release 3."""

    user_profile: dict[str, str]
    first_name: str
    last_name: str
    trip: dict[str, str]
    messages: Lines


@dataclass(frozen=True)
class Release:
    """What differs between the releases: the state, and how the agent reads and begins it."""

    state: type
    profile: str
    lines: str
    begin: Callable[[str, str], dict[str, Any]]
    traveller: Callable[[Any], str]
    city: Callable[[Any], str]


def _begin2(name: str, city: str) -> dict[str, Any]:
    first, _, last = name.partition(" ")
    return {"user_profile": {"language": "pt"}, "first_name": first, "last_name": last, "city": city}


def _begin3(name: str, city: str) -> dict[str, Any]:
    begun = _begin2(name, city)
    return {**begun, "trip": {"city": begun.pop("city")}}


RELEASES = {
    1: Release(
        state=Travel1,
        profile="user_pref",
        lines="msgs",
        begin=lambda name, city: {"user_pref": {"language": "pt"}, "name": name, "city": city},
        traveller=lambda state: str(state["name"]),
        city=lambda state: str(state["city"]),
    ),
    2: Release(
        state=Travel2,
        profile="user_profile",
        lines="msgs",
        begin=_begin2,
        traveller=lambda state: f"{state['first_name']} {state['last_name']}",
        city=lambda state: str(state["city"]),
    ),
    3: Release(
        state=Travel3,
        profile="user_profile",
        lines="messages",
        begin=_begin3,
        traveller=lambda state: f"{state['first_name']} {state['last_name']}",
        city=lambda state: str(state["trip"]["city"]),
    ),
}


def build(
    number: int, saver: BaseCheckpointSaver[Any], act: Callable[[str], None] = lambda _: None
) -> CompiledStateGraph[Any]:
    """The graph of a release: learn about the traveller and ask at once, then book.

    Args:
        number: The release.
        saver: Where its state is kept; made for the state version of the same number.
        act: Told which node runs.
    """
    release = RELEASES[number]

    def learn(_state: Any) -> dict[str, Any]:
        act("learn")
        return {release.profile: {"language": "pt", "seat": "window"}, release.lines: ["learned: a window seat"]}

    def ask(state: Any) -> dict[str, Any]:
        answer = interrupt(f"Shall I book {release.city(state)} for {release.traveller(state)}?")
        act("ask")
        return {release.lines: [f"answered: {answer}"]}

    def book(state: Any) -> dict[str, Any]:
        act("book")
        seat = state[release.profile]["seat"]
        return {release.lines: [f"booked: {release.city(state)}, {seat} seat, for {release.traveller(state)}"]}

    graph: StateGraph[Any] = StateGraph(release.state)
    for node in (learn, ask, book):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "learn")
    graph.add_edge(START, "ask")
    graph.add_edge(["learn", "ask"], "book")
    graph.add_edge("book", END)
    return graph.compile(checkpointer=saver, name=SCHEMA)


def begin(number: int, name: str, city: str) -> dict[str, Any]:
    """A release's state of a new trip."""
    release = RELEASES[number]
    return {**release.begin(name, city), release.lines: [f"asked: a trip to {city}"]}


def register(client: Client, schema: str = SCHEMA, numbers: Iterable[int] = RELEASES) -> None:
    """Register versions of the state, oldest first; done before, it does nothing."""
    for number in sorted(numbers):
        definition = json.loads((STEPS / f"v{number}.json").read_text(encoding="utf-8"))
        client.request("PUT", f"/state-schemas/{schema}/versions/{number}", body=definition)


def main() -> None:
    """Run one command of the agent."""
    parser = argparse.ArgumentParser(description="One agent in three releases over the same threads.")
    parser.add_argument("--subject", default="user-42", help="whose trip it is")
    parser.add_argument("--release", type=int, choices=sorted(RELEASES), default=max(RELEASES))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("register")
    for name, *words in (("start", "name", "city"), ("answer", "answer"), ("show",)):
        command = commands.add_parser(name)
        command.add_argument("thread_id")
        for word in words:
            command.add_argument(word)
    chosen = parser.parse_args()
    if chosen.command == "register":
        with Client.from_env() as client:
            register(client)
        return
    config: RunnableConfig = {"configurable": {"thread_id": chosen.thread_id}}
    with StateroomSaver.from_env(subject=chosen.subject, state_version=f"{SCHEMA}@{chosen.release}") as saver:
        graph = build(chosen.release, saver, lambda node: print(f"{node} runs in release {chosen.release}"))
        if chosen.command == "start":
            graph.invoke(begin(chosen.release, chosen.name, chosen.city), config, durability="sync")
        elif chosen.command == "answer":
            graph.invoke(Command(resume=chosen.answer), config, durability="sync")
        standing = graph.get_state(config)
        print(json.dumps({"state": standing.values, "asks": [each.value for each in standing.interrupts]}))


if __name__ == "__main__":
    main()
