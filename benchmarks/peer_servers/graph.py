"""The graph that the peers serve: channels to save into, and a node that does nothing."""

from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


class State(TypedDict, total=False):
    """What an agent keeps."""

    messages: Annotated[list, add_messages]
    documents: list[dict[str, Any]]
    plan: list[str]
    turn: int


def _agent(_state: State) -> dict[str, Any]:
    return {}


graph = StateGraph(State).add_node("agent", _agent).add_edge(START, "agent").add_edge("agent", END).compile()
