"""An agent with two tools at once, as the front page has it; its process dies in the second when the first is stored.

Run in a process of its own: ``parallel_tools_agent.py SUBJECT EFFECTS``, with what a client reads in the environment.
Each effect is a line of the file EFFECTS. A second run of the same command resumes.
"""

import os
import signal
import sys
import time
from pathlib import Path

from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

from stateroom import acting_for
from stateroom.langgraph import StateroomSaver

CONFIG = {"configurable": {"thread_id": "trip"}}
STORED_SECONDS_MAX = 20

subject, effects = sys.argv[1], Path(sys.argv[2])
saver = StateroomSaver.from_env(agent="trip")


def note(effect: str) -> None:
    with effects.open("a") as file:
        file.write(f"{effect}\n")


def is_stored(result: str) -> bool:
    found = saver.get_tuple(CONFIG)
    return found is not None and any(result in repr(value) for _, _, value in found.pending_writes or ())


@tool
def charge(amount: int) -> str:
    """Charge the card."""
    note("charged")
    return f"charged {amount}"


@tool
def book(hotel: str) -> str:
    """Book a hotel."""
    note("booking")
    if effects.read_text().count("booking") == 1:
        deadline = time.monotonic() + STORED_SECONDS_MAX
        while not is_stored("charged 50"):
            if time.monotonic() > deadline:
                raise TimeoutError("what the other tool returned was not stored")
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"booked {hotel}"


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    calls = [
        ToolCall(name="charge", args={"amount": 50}, id="charge"),
        ToolCall(name="book", args={"hotel": "Ritz"}, id="book"),
    ]
    return {"messages": [AIMessage("", id="ask", tool_calls=calls)]}


builder = StateGraph(MessagesState)
builder.add_node("model", model)
builder.add_node("tools", ToolNode([charge, book]))
builder.add_edge(START, "model")
builder.add_conditional_edges(
    "model", lambda state: [Send("tools", [call]) for call in state["messages"][-1].tool_calls], ["tools"]
)
graph = builder.compile(checkpointer=saver)

with acting_for(subject):
    begun = bool(graph.get_state(CONFIG).next)
    done = graph.invoke(None if begun else {"messages": [("user", "go")]}, CONFIG)
    sys.stdout.writelines(f"{message.content}\n" for message in done["messages"] if message.type == "tool")
