"""A graph of one node, whose payments add up, and decisions about what it asks."""

from operator import add
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from stateroom import Approval, ApprovalContent, Client, Verdict


class State(TypedDict):
    """What was paid."""

    paid: Annotated[list[Any], add]


def graph_of(node: Any, saver: Any = None) -> Any:
    """A graph that runs a node, or another graph, once."""
    builder = StateGraph(State)
    builder.add_node("n", node)
    builder.add_edge(START, "n")
    return builder.compile(saver)


def asked(person: Client, config: Any, status: Any = "pending") -> list[ApprovalContent]:
    """What was asked in a thread and stands so, opened, by the first amount."""
    thread = config["configurable"]["thread_id"]
    found = [person.approvals.open(each.approval_id) for each in person.approvals.list(status=status, thread=thread)]
    return sorted(found, key=lambda each: each.actions[0].args["amount"])


def decide(person: Client, content: ApprovalContent, *verdicts: Verdict) -> Approval:
    """Decide about what was shown."""
    return person.approvals.decide(content.approval_id, verdicts, action_hash=content.action_hash or "")
