"""What graphs ask becomes approvals, and what people decide becomes what graphs go on with; both without a gateway.

Shapes are written down as Agent Inbox, ``langgraph.prebuilt.interrupt`` and LangChain's human-in-the-loop middleware
have them. ``tests/integration/gateway/langgraph/test_decisions.py`` runs all of it against a gateway.
"""

import datetime as dt
import operator
from decimal import Decimal
from typing import Annotated, TypedDict

import msgspec
import pytest
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt
from pydantic import BaseModel, Field, field_validator

from sdk.python.tests.fakes import packed
from stateroom import Approval, ApprovalAction, ApprovalContent, NewAction
from stateroom._langgraph.columns import ConfigIds
from stateroom._langgraph.decisions.answering import WAITING, answer
from stateroom._langgraph.decisions.asking import DecisionRules, shape_of
from stateroom._langgraph.decisions.deciding import Deciding
from stateroom._langgraph.decisions.tools import ToolForm
from stateroom._protocol.core import Endpoint

NOW = dt.datetime(2026, 11, 27, 15, 48, tzinfo=dt.UTC)


@tool
def pay(
    amount: Decimal,
    to: str,
    call_id: Annotated[str, InjectedToolCallId],
    on: dt.date = dt.date(2026, 11, 27),
) -> str:
    """Pay somebody."""
    return f"{amount} {to} {on} {call_id}"


class Transfer(BaseModel):
    amount: int = Field(alias="Amount")
    to: str

    @field_validator("to")
    @classmethod
    def _lower(cls, to):
        return to.lower()


@tool(args_schema=Transfer)
def transfer(amount: int, to: str) -> str:
    """Transfer."""
    return f"{amount} {to}"


PAY = ToolForm.of(pay)
PAID = {"amount": "1200", "to": "bob", "on": "2026-11-27"}

# Tools


def test_asking_and_calling_have_arguments_in_one_form():
    assert PAY.arguments({"amount": "1200", "to": "bob"}) == PAID
    assert PAY.called({"amount": Decimal(1200), "to": "bob", "on": dt.date(2026, 11, 27), "call_id": "c-1"}) == PAID
    assert PAY.arguments(PAID) == PAID


def test_validators_and_aliases_of_a_tool_count():
    form = ToolForm.of(transfer)
    assert form.arguments({"Amount": "5", "to": "BOB"}) == {"Amount": 5, "to": "bob"}
    assert form.called({"amount": 5, "to": "bob"}) == {"Amount": 5, "to": "bob"}
    assert form.values({"Amount": 5, "to": "Eve"}) == {"amount": 5, "to": "eve"}


def test_a_tool_of_a_schema_keeps_its_arguments():
    form = ToolForm.of(pay.model_copy(update={"args_schema": {"type": "object"}}))
    assert form.arguments({"amount": "1200", "any": 1}) == {"amount": "1200", "any": 1}


def test_the_schema_wants_all_that_is_not_injected():
    assert sorted(PAY.args_schema["required"]) == ["amount", "on", "to"]
    assert ToolForm.of(Transfer).args_schema["required"] == ["Amount", "to"]


def test_the_digest_tells_forms_of_a_tool_apart():
    others = [
        pay.model_copy(update={"name": "pays"}),
        pay.model_copy(update={"metadata": {"version": 2}}),
        pay.model_copy(update={"args_schema": Transfer}),
    ]
    assert len({PAY.digest, *(ToolForm.of(each).digest for each in others)}) == 4
    assert ToolForm.of(pay.model_copy(update={"func": print})).digest == PAY.digest


def test_what_a_tool_does_not_take_is_refused():
    for wrong in ({"to": "bob"}, {"amount": "many", "to": "bob"}):
        with pytest.raises(ValueError, match="amount"):
            PAY.arguments(wrong)
    with pytest.raises(TypeError, match="neither"):
        ToolForm.of(print)


# Questions

INBOX = {
    "action_request": {"action": "pay", "args": {"amount": 1200, "to": "bob"}},
    "config": {"allow_ignore": True, "allow_respond": False, "allow_edit": True, "allow_accept": True},
    "description": "Pay Bob?",
}
BATCH = {
    "action_requests": [
        {"name": "pay", "args": {"amount": "1200", "to": "bob"}, "description": "Pay Bob?"},
        {"name": "mail", "args": {"to": "bob"}},
    ],
    "review_configs": [
        {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]},
        {"action_name": "mail", "allowed_decisions": ["approve", "reject", "respond"]},
    ],
}
CALL = {"type": "tool_approval", "tool_call_id": "c-1", "name": "pay", "args": {"amount": 1200, "to": "bob"},
        "description": "Pay Bob?"}  # fmt: skip
PAYING = NewAction(
    tool="pay", args=PAID, tool_digest=PAY.digest, args_schema=PAY.args_schema, hide=("/to",), description="Pay Bob?"
)
MAILING = NewAction(tool="mail", args={"to": "bob"})


def _value(value):
    return NewAction(tool="interrupt", args={"value": value})


@pytest.mark.parametrize(
    ("value", "schema", "shape", "actions", "allowed"),
    [
        ([INBOX], None, "inbox", [PAYING], ["approve", "edit", "reject"]),
        (INBOX, None, "inbox", [PAYING], ["approve", "edit", "reject"]),
        (BATCH, None, "batch", [PAYING, MAILING], ["approve", "reject"]),
        (CALL, None, "call", [PAYING], ["approve", "edit", "reject"]),
        (CALL, {"discriminator": {"mapping": {"approve": "", "respond": ""}}}, "call", [PAYING],
         ["approve", "respond"]),
        (CALL, {"properties": {"type": {"const": "reject"}}}, "call", [PAYING], ["reject"]),
        ("Go on?", None, "value", [_value("Go on?")], ["approve", "reject", "respond"]),
        ("How many?", {"type": "integer"}, "value", [_value("How many?")], ["respond"]),
        ([], None, "value", [_value([])], ["approve", "reject", "respond"]),
        ([INBOX, 5], None, "value", [_value([INBOX, 5])], ["approve", "reject", "respond"]),
        ({"type": "tool_approval"}, None, "value", [_value({"type": "tool_approval"})],
         ["approve", "reject", "respond"]),
        ({"on": NOW, 5: {1}}, None, "value", [_value({"on": {"$datetime": NOW.isoformat()}, "5": [1]})],
         ["approve", "reject", "respond"]),
        (float("nan"), None, "value", [_value("nan")], ["approve", "reject", "respond"]),
    ],
)  # fmt: skip
def test_an_interrupt_asks(value, schema, shape, actions, allowed):
    rules = DecisionRules([pay], hide={"pay": ["/to"]}, expires_seconds=600, display=lambda made: made.actions[0].tool)
    asked = rules.approval(Interrupt(value, "a" * 32, response_schema=schema), "bank")
    assert shape_of(value) == shape
    assert asked.actions == actions
    assert asked.allowed == allowed
    assert (asked.external_id, asked.agent, asked.expires_seconds) == ("a" * 32, "bank", 600)
    assert asked.display == actions[0].tool
    assert asked.kind == ("input" if shape == "value" else "tool_call")
    assert asked.response_schema == (schema if shape == "value" else None)


def test_what_have_nothing_in_common_can_be_left():
    configs = [{"action_name": "pay", "allowed_decisions": ["approve"]},
               {"action_name": "mail", "allowed_decisions": ["respond"]}]  # fmt: skip
    asked = DecisionRules().approval(Interrupt({**BATCH, "review_configs": configs}, "a" * 32), None)
    assert asked.allowed == ["reject"]


def test_arguments_that_the_tool_refuses_are_shown_as_they_are():
    wrong = {**CALL, "args": {"amount": "many"}}
    (action,) = DecisionRules([pay]).approval(Interrupt(wrong, "a" * 32), None).actions
    assert (action.args, action.tool_digest) == ({"amount": "many"}, PAY.digest)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two tools"):
        DecisionRules([pay, pay.model_copy(update={"metadata": {"version": 2}})])


# Answers


def _answer(value, approval, content, schema=None):
    return answer(Interrupt(value, "a" * 32, response_schema=schema), approval, content)


def _approval(status):
    return Approval(
        approval_id="p", status=status, kind="tool_call", thread_id="t", subject_id="s", namespace="",
        created_at=NOW, expires_at=NOW + dt.timedelta(1),
    )  # fmt: skip


def _said(*verdicts):
    names = ("pay", "mail")
    actions = [
        ApprovalAction(tool=tool, args={"amount": 1200}, action_hash="", **verdict)
        for tool, verdict in zip(names, verdicts, strict=False)
    ]
    return ApprovalContent(approval_id="p", action_hash="", actions=actions)


APPROVED, REJECTED = {"verdict": "approve"}, {"verdict": "reject", "message": "too much"}
EDITED, RESPONDED = {"verdict": "edit", "edited_args": {"amount": 12}}, {"verdict": "respond", "response": {"n": 1}}
EDITED_BEFORE = {"verdict": "approve", "edited_args": {"amount": 12}}


@pytest.mark.parametrize(
    ("value", "verdicts", "resumed"),
    [
        ([INBOX], [APPROVED], [{"type": "accept", "args": None}]),
        (INBOX, [REJECTED], [{"type": "ignore", "args": None}]),
        ([INBOX], [EDITED], [{"type": "edit", "args": {"action": "pay", "args": {"amount": 12}}}]),
        ([INBOX], [RESPONDED], [{"type": "response", "args": '{"n": 1}'}]),
        (BATCH, [APPROVED, REJECTED], {"decisions": [{"type": "approve"}, {"type": "reject", "message": "too much"}]}),
        (BATCH, [EDITED, {"verdict": "respond", "response": "done"}],
         {"decisions": [{"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 12}}},
                        {"type": "respond", "message": "done"}]}),
        (CALL, [APPROVED], {"type": "approve"}),
        (CALL, [EDITED_BEFORE], {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 12}}}),
        (CALL, [{"verdict": "reject"}], {"type": "reject"}),
        (CALL, [{"verdict": "respond", "message": "so"}], {"type": "respond", "message": "so"}),
        ("Go on?", [APPROVED], True),
        ("Go on?", [REJECTED], False),
        ("Go on?", [RESPONDED], {"n": 1}),
    ],
)  # fmt: skip
def test_a_decision_is_what_the_graph_waits_for(value, verdicts, resumed):
    for status in ("approved", "answered", "rejected", "consumed"):
        assert _answer(value, _approval(status), _said(*verdicts)) == resumed


def test_what_was_hidden_from_whoever_edited_is_as_it_was_asked():
    masked = {"amount": 12, "card": "hidden, 4 bytes", "to": [{"a/b": "hidden, 1 bytes"}, "eve"], "pin": "hidden"}
    hide = ["/card", "/to/0/a~1b", "/pin", "/gone/deeper", "/to/9/x"]
    said = _said({"verdict": "edit", "edited_args": masked, "hide": hide})
    value = {**CALL, "args": {"amount": 1200, "card": "4242", "to": [{"a/b": "bob"}]}}
    resumed = _answer(value, _approval("approved"), said)["edited_action"]["args"]
    assert resumed == {"amount": 12, "card": "4242", "to": [{"a/b": "bob"}, "eve"]}
    assert masked["pin"] == "hidden"


@pytest.mark.parametrize("status", ["expired", "cancelled", "lapsed"])
def test_what_nobody_answered_is_a_no(status):
    assert _answer([INBOX], _approval(status), _said(APPROVED)) == [{"type": "ignore", "args": None}]
    for said in _answer(BATCH, _approval(status), _said(APPROVED, APPROVED))["decisions"]:
        assert said["type"] == "reject"
        assert said["message"].endswith(".")
    assert _answer(CALL, _approval(status), _said(APPROVED))["type"] == "reject"
    assert _answer("Go on?", _approval(status), _said(APPROVED)) is False


def test_a_no_is_no_answer_where_that_has_a_form():
    for status, said in (("rejected", REJECTED), ("expired", APPROVED)):
        assert _answer("How many?", _approval(status), _said(said), {"type": "integer"}) is WAITING
    assert _answer("How many?", _approval("answered"), _said(RESPONDED), {"type": "integer"}) == {"n": 1}


@pytest.mark.parametrize("status", ["pending", "superseded", "something newer"])
def test_what_is_not_decided_waits(status):
    assert _answer(CALL, _approval(status), _said(APPROVED)) is WAITING


# Where it is asked


def test_the_innermost_write_brings_an_approval_and_the_outer_ones_name_it(saver_to):
    bodies = []

    def gateway(request):
        bodies.append(msgspec.msgpack.decode(request.content))
        return packed({"stored": 1, "unchanged": 0}, 201)

    inner, outer = "n:7d66234c-ad73-ffc8-9c75-911a90b8fa77", ""
    raised = [("__interrupt__", (Interrupt("Go on?", "a" * 32), Interrupt("And then?", "b" * 32)))]
    for saver in (saver_to(gateway, decisions=DecisionRules(), agent="bank"), saver_to(gateway)):
        for namespace in (inner, outer, inner):
            there = {"thread_id": "t", "checkpoint_ns": namespace, "checkpoint_id": "c"}
            saver.put_writes({"configurable": there}, raised, "7d66234c-ad73-ffc8-9c75-911a90b8fa77")
    asked, named, again, *without = bodies
    brought = [(each["external_id"], each["agent"]) for each in asked["approvals"]]
    assert brought == [("a" * 32, "bank"), ("b" * 32, "bank")]
    assert asked["approvals"][0]["actions"] == [{"tool": "interrupt", "args": {"value": "Go on?"}}]
    assert asked["approvals"] == again["approvals"]
    assert "approval_refs" not in asked
    assert (named["approval_refs"], "approvals" in named) == (["a" * 32, "b" * 32], False)
    assert len(without) == 3
    assert not any({"approvals", "approval_refs"} & body.keys() for body in without)


class State(TypedDict):
    said: Annotated[list, operator.add]


class Recording(InMemorySaver):
    """Notes what the writes of a graph ask, as a saver of ours sends it."""

    def __init__(self):
        super().__init__()
        endpoint = Endpoint("http://localhost", "stk_x", "alice")
        self.deciding = Deciding(DecisionRules(), endpoint, None, None, acting=None)
        self.pinned = endpoint.pin()
        self.asked = []
        self.named = []

    def put_writes(self, config, writes, task_id, task_path=""):
        ids = ConfigIds.of(config)
        asked = self.deciding.asked(ids, writes, "bank", self.pinned)
        self.asked += [
            (ids.namespace.count(":"), each.external_id, each.actions[0].args["value"]) for each in asked.approvals
        ]
        self.named += [(ids.namespace.count(":"), each) for each in asked.refs]
        return super().put_writes(config, writes, task_id, task_path)


def _graph(node, saver=None):
    builder = StateGraph(State)
    builder.add_node("n", node)
    builder.add_edge(START, "n")
    return builder.compile(saver)


def _ask(state):
    return {"said": [interrupt("Go on?")]}


CONFIG = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_question_of_a_subgraph_is_asked_once_in_the_innermost_namespace(depth, durability):
    saver, node = Recording(), _ask
    for _ in range(depth):
        node = _graph(node)
    graph = _graph(node, saver)
    (asked,) = graph.invoke({"said": []}, CONFIG, durability=durability)["__interrupt__"]
    assert {each[1:] for each in saver.asked} == {(asked.id, "Go on?")}
    assert {each[0] for each in saver.asked} == {depth}
    assert sorted(saver.named) == [(level, asked.id) for level in range(depth)]
    graph.invoke(None, CONFIG, durability=durability)  # asks again, and the same
    assert {each[0] for each in saver.asked} == {depth}
    graph.invoke(Command(resume="yes"), CONFIG)
    assert graph.get_state(CONFIG).values["said"][-1] == "yes"


def test_of_two_sends_each_asks_for_itself():
    def ask(state):
        return {"said": [interrupt(state["number"])]}

    saver = Recording()
    builder = StateGraph(State)
    builder.add_node("n", ask)
    builder.add_conditional_edges(START, lambda state: [Send("n", {"number": 1}), Send("n", {"number": 2})], ["n"])
    graph = builder.compile(saver)
    one, two = graph.invoke({"said": []}, CONFIG)["__interrupt__"]
    assert sorted(saver.asked) == sorted([(0, one.id, 1), (0, two.id, 2)])
    graph.invoke(Command(resume={one.id: "yes"}), CONFIG)
    assert saver.asked[2:] == [(0, two.id, 2)]  # written again, and the same
    assert saver.named == []


def test_a_subgraph_that_keeps_no_state_asks_in_its_callers_namespace():
    inner = StateGraph(State)
    inner.add_node("n", _ask)
    inner.add_edge(START, "n")
    without = inner.compile(checkpointer=False)
    saver = Recording()
    _graph(lambda state: without.invoke({"said": []}), saver).invoke({"said": []}, CONFIG)
    assert [each[0] for each in saver.asked] == [0]
    assert saver.named == []
