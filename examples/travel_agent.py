"""A travel agent on LangGraph whose memory is a Stateroom gateway, so that it survives its own process.

Owns a graph of one model and four tools. The model is offline and deterministic: it decides by what the conversation
holds already. A tool's effect is a line in a file, so that a repeated effect is a repeated line. It needs
``STATEROOM_URL`` and ``STATEROOM_API_KEY``:

    set -a; . .stateroom/env; set +a
    python examples/travel_agent.py start trip-7 "Three days in Lisbon, please."
    python examples/travel_agent.py resume trip-7
    python examples/travel_agent.py fork trip-7 CHECKPOINT_ID "Three days in Porto, please."

Every event is one line of JSON on stdout.
"""

import argparse
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from stateroom.langgraph import StateroomSaver

REQUEST_ID = "request"  # the user's message; a fork replaces it
BROCHURE_LINES = 4000  # a tool result of some 200 KB, as agents meet them


class OfflineModel(BaseChatModel):
    """A chat model without a network: the same conversation always gives the same answer."""

    @property
    def _llm_type(self) -> str:
        return "offline"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=decide(messages))])


def decide(messages: list[BaseMessage]) -> AIMessage:
    """What the model says next: the tools that are still to be called, or the answer."""
    request = next(each.text for each in messages if isinstance(each, HumanMessage))
    found = re.search(r"\bin (\w+)", request)
    city = found[1] if found else "Lisbon"
    results = {each.name: each.text for each in messages if isinstance(each, ToolMessage)}
    for step in (["find_flights"], ["book_hotel", "book_flight"], ["send_itinerary"]):
        calls = [ToolCall(name=name, args={"city": city}, id=f"{name}:{city}") for name in step]
        if not results.keys() >= set(step):
            return AIMessage(f"For {city} I still have to {' and '.join(step)}.", tool_calls=calls)
    return AIMessage(f"Your trip is booked: {results['book_flight']} {results['book_hotel']}")


def make_tools(act: Callable[[str, str], None]) -> dict[str, BaseTool]:
    """The agent's tools, by name.

    Args:
        act: Makes a tool's effect: told the tool and the city.
    """

    @tool
    def find_flights(city: str) -> str:
        """Look for flights."""
        act("find_flights", city)
        return "".join(f"Flight {n:04}: to {city}, seat by the window\n" for n in range(BROCHURE_LINES))

    @tool
    def book_hotel(city: str) -> str:
        """Book a room."""
        act("book_hotel", city)
        return f"A quiet room above the river in {city}."

    @tool
    def book_flight(city: str) -> str:
        """Book a flight."""
        act("book_flight", city)
        return f"Flight 0042 to {city}, a window seat."

    @tool
    def send_itinerary(city: str) -> str:
        """Send the traveller an itinerary."""
        act("send_itinerary", city)
        return f"Sent the plan for {city}."

    return {each.name: each for each in (find_flights, book_hotel, book_flight, send_itinerary)}


def build(tools: dict[str, BaseTool], saver: BaseCheckpointSaver[Any]) -> CompiledStateGraph[Any]:
    """The graph: the model decides, each tool call runs as a task of its own, the model decides again."""
    model = OfflineModel()

    def think(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    def use(call: ToolCall) -> dict[str, list[AnyMessage]]:
        return {"messages": [tools[call["name"]].invoke(call)]}

    def route(state: MessagesState) -> list[Send] | str:
        calls = getattr(state["messages"][-1], "tool_calls", [])
        # A task for each call: what one of them finished is kept even if another never does.
        return [Send("use", call) for call in calls] or END

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("use", use)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", route, ["use", END])
    graph.add_edge("use", "think")
    return graph.compile(checkpointer=saver, name="travel")


def say(event: str, **facts: Any) -> None:
    """Report an event."""
    print(json.dumps({"event": event, **facts}), flush=True)


def report(event: str, graph: CompiledStateGraph[Any], config: RunnableConfig) -> None:
    """Report where the thread stands."""
    standing = graph.get_state(config)
    messages = standing.values["messages"]
    say(
        event,
        checkpoint_id=standing.config["configurable"]["checkpoint_id"],
        step=(standing.metadata or {}).get("step"),
        unfinished=[task.name for task in standing.tasks if not task.result],
        finished=[task.name for task in standing.tasks if task.result],
        last=messages[-1].text[:200] if messages else "",
    )


def main() -> None:
    """Run one command of the agent."""
    parser = argparse.ArgumentParser(description="A travel agent that survives its own process.")
    parser.add_argument("--subject", default="user-42", help="whose trip it is")
    parser.add_argument("--effects", type=Path, default=Path("effects.log"), help="where tools act")
    parser.add_argument("--pause-before", default="", metavar="TOOL", help="stop there, as if the tool hung")
    parser.add_argument("--pause-fd", type=int, default=2, help="descriptor that is told of the pause")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, *texts in (("start", "request"), ("resume",), ("fork", "checkpoint_id", "request")):
        command = commands.add_parser(name)
        command.add_argument("thread_id")
        for text in texts:
            command.add_argument(text)
    chosen = parser.parse_args()

    def act(name: str, city: str) -> None:
        if name == chosen.pause_before:
            os.write(chosen.pause_fd, f"{name}\n".encode())
            threading.Event().wait()
        with chosen.effects.open("a", encoding="utf-8") as file:
            file.write(f"{name} {city}\n")

    config: RunnableConfig = {"configurable": {"thread_id": chosen.thread_id}}
    with StateroomSaver.from_env(subject=chosen.subject, agent="travel") as saver:
        graph = build(make_tools(act), saver)
        if chosen.command == "start":
            state = {"messages": [HumanMessage(chosen.request, id=REQUEST_ID)]}
            # Durable before the next step begins, not some time after.
            graph.invoke(state, config, durability="sync")
        elif chosen.command == "resume":
            report("resumed", graph, config)
            graph.invoke(None, config, durability="sync")
        else:
            config["configurable"]["checkpoint_id"] = chosen.checkpoint_id
            replaced = {"messages": [HumanMessage(chosen.request, id=REQUEST_ID)]}
            config = graph.update_state(config, replaced, as_node=START)
            report("forked", graph, config)
            graph.invoke(None, config, durability="sync")
            config["configurable"].pop("checkpoint_id")
        report("finished", graph, config)


if __name__ == "__main__":
    main()
