"""An agent on LangGraph that pays only what a person approved, and once, however often it dies.

Owns a graph of one node, whose tool is gated. The same command goes on where it stopped: it asks, waits for the answer,
and pays. A payment is a line in a file, so that a second payment is a second line. It needs ``STATEROOM_URL`` and
``STATEROOM_API_KEY``, and decides nothing itself:

    set -a; . .stateroom/env; set +a
    python examples/paying_agent.py invoice-9 1200 Bob
    STATEROOM_API_KEY=$STATEROOM_APPROVER_KEY stateroom approvals list --status pending  # in another terminal

Every event is one line of JSON on stdout.
"""

import argparse
import json
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from stateroom import Client, StateroomError
from stateroom.langgraph import StateroomSaver
from stateroom.langgraph.decisions import DecisionRules, decided, gated, resume


class State(TypedDict):
    """What the agent knows: the invoice, and what it paid."""

    amount: int
    to: str
    done: Annotated[list[str], add]


def make_tool(payments: Path) -> BaseTool:
    """The tool that pays, into a file."""

    @tool
    def pay(amount: int, to: str) -> str:
        """Pay an invoice."""
        with payments.open("a", encoding="utf-8") as file:
            file.write(f"{amount} EUR to {to}\n")
        return f"paid {amount} EUR to {to}"

    return pay


def build(pay: BaseTool, saver: StateroomSaver) -> CompiledStateGraph[Any]:
    """The graph: one node, which pays."""
    builder = StateGraph(State)
    builder.add_node("pay", lambda state: {"done": [pay.invoke({"amount": state["amount"], "to": state["to"]})]})
    builder.add_edge(START, "pay")
    return builder.compile(checkpointer=saver, name="paying")


def say(event: str, **facts: Any) -> None:
    """Report an event."""
    print(json.dumps({"event": event, **facts}), flush=True)


def main() -> None:
    """Ask, wait and pay, or go on with what is left of it."""
    parser = argparse.ArgumentParser(description="An agent that pays what a person approved, once.")
    parser.add_argument("thread_id")
    parser.add_argument("amount", type=int)
    parser.add_argument("to")
    parser.add_argument("--subject", default="user-42", help="who pays")
    parser.add_argument("--payments", type=Path, default=Path("payments.log"), help="where payments are made")
    chosen = parser.parse_args()
    config: RunnableConfig = {"configurable": {"thread_id": chosen.thread_id}}
    rules = DecisionRules()
    with (
        StateroomSaver.from_env(subject=chosen.subject, agent="paying", decisions=rules) as saver,
        Client.from_env(subject=chosen.subject) as client,
    ):
        graph = build(gated(make_tool(chosen.payments), saver), saver)
        if not graph.get_state(config).values:
            graph.invoke({"amount": chosen.amount, "to": chosen.to, "done": []}, config)  # asks, and ends
        for approval in decided(graph, saver, config).waiting.values():
            if approval is not None:
                say("waiting", approval_id=approval.approval_id)
                say("answered", status=client.approvals.wait(approval.approval_id).status)
        try:
            resume(graph, saver, config)
        # Another process of this agent was faster: the question is not open any more, or the call is on its way.
        except (UnknownInterruptError, StateroomError) as error:
            say("refused", error=type(error).__name__)
        say("finished", done=graph.get_state(config).values["done"])


if __name__ == "__main__":
    main()
