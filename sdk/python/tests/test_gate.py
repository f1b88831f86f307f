"""Graphs that ask, wait and go on: nothing is done that was not approved exactly so.

Approvals are in a table that behaves as the gateway's does, which answers the calls that the client makes.
"""

import datetime as dt
import itertools
import json
import operator
from typing import Annotated, TypedDict

import msgspec
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from stateroom import (
    Action,
    ActionChanged,
    Answer,
    Approval,
    ApprovalAction,
    ApprovalActionState,
    ApprovalConsumed,
    ApprovalContent,
    ApprovalRequired,
    NotConfigured,
    action_hash,
)
from stateroom._langgraph.columns import ConfigIds
from stateroom._langgraph.decisions.deciding import Deciding
from stateroom._protocol.core import Endpoint
from stateroom.langgraph import StateroomSaver
from stateroom.langgraph.decisions import DecisionRules, adecided, aresume, decided, gated, resume, strict

NOW = dt.datetime(2026, 11, 27, 15, 48, tzinfo=dt.UTC)
CONFIG = {"configurable": {"thread_id": "t"}}


class Saver(InMemorySaver):
    """A saver that brings approvals to a table, and the table, as a gateway would answer for it."""

    def __init__(self):
        super().__init__()
        endpoint = Endpoint("http://localhost", "stk_x", "alice")
        self.pinned = endpoint.pin()
        self.decisions = Deciding(DecisionRules(), endpoint, self.drive, self.adrive, self)
        self.effects = {}
        self.table = {}
        self.asked = {}
        self.numbers = itertools.count()
        self.calls = []

    def put_writes(self, config, writes, task_id, task_path=""):
        ids = ConfigIds.of(config)
        for new in self.decisions.asked(ids, writes, "bank", self.pinned).approvals:
            self.create(ids, new)
        return super().put_writes(config, writes, task_id, task_path)

    def create(self, ids, new):
        namespace = ids.namespace.partition("|")[0]
        for approval_id, approval in self.table.items():
            same = (approval.namespace, self.asked[approval_id].external_id) == (namespace, new.external_id)
            if not same or approval.status == "superseded":
                continue
            if self.asked[approval_id].actions == new.actions:
                return
            self.change(approval_id, status="superseded")
        approval_id = f"p{next(self.numbers)}"
        self.asked[approval_id] = new
        self.table[approval_id] = Approval(
            approval_id=approval_id, status="pending", kind=new.kind, thread_id=ids.thread_id, subject_id="alice",
            namespace=namespace, checkpoint_id=ids.checkpoint_id, agent=new.agent, created_at=NOW,
            expires_at=NOW + dt.timedelta(1),
            actions=[ApprovalActionState(position=each, status="pending") for each in range(len(new.actions))],
        )  # fmt: skip

    def change(self, approval_id, **changes):
        before = self.table[approval_id]
        self.table[approval_id] = msgspec.structs.replace(before, revision=before.revision + 1, **changes)

    def decide(self, approval_id, status, *verdicts):
        asked, actions, states = self.asked[approval_id], [], []
        for position, (action, said) in enumerate(zip(asked.actions, verdicts, strict=True)):
            actions.append({"action": action, **said})
            states.append(
                ApprovalActionState(
                    position=position,
                    status={"reject": "rejected", "respond": "answered"}.get(said["verdict"], "approved"),
                )
            )
        self.change(approval_id, status=status, actions=states)
        self.said = {**getattr(self, "said", {}), approval_id: verdicts}

    @property
    def pending(self):
        return [each for each, approval in self.table.items() if approval.status == "pending"]

    def content(self, approval_id):
        approval, asked = self.table[approval_id], self.asked[approval_id]
        verdicts = getattr(self, "said", {}).get(approval_id) or [{}] * len(asked.actions)
        actions = []
        for action, said in zip(asked.actions, verdicts, strict=True):
            done = Action(
                tool=action.tool, tool_digest=action.tool_digest, args=said.get("edited_args", action.args),
                thread_id=approval.thread_id, subject_id="alice", agent=approval.agent,
            )  # fmt: skip
            actions.append(
                ApprovalAction(
                    tool=action.tool,
                    tool_digest=action.tool_digest,
                    args=action.args,
                    hide=list(action.hide),
                    action_hash=action_hash(done).hex(),
                    **said,
                )
            )
        return ApprovalContent(approval_id=approval_id, external_id=asked.external_id, action_hash="", actions=actions)

    def answered(self, call):
        self.calls.append(call.path)
        if call.path == "/approvals":
            query = dict(call.query)
            found = [each for each in reversed(self.table.values()) if query.get("status") in {None, each.status}]
            body = {"approvals": [each for each in found if each.thread_id == query["thread"]], "next_cursor": None}
        else:
            body = self.content(call.path.split("/")[2])
        return Answer(status=200, headers={"content-type": "application/json"}, body=msgspec.json.encode(body))

    def drive(self, steps, pinned):
        call = next(steps, None)
        try:
            while True:
                call = steps.send(self.answered(call))
        except StopIteration as ended:
            return ended.value

    async def adrive(self, steps, pinned):
        return self.drive(steps, pinned)

    def start(self, place, wanted):
        """What the ledger does: what was begun under a name is told again, and else an approved action is used up."""
        if place.name in self.effects:
            return False
        if wanted.approval_id is None:
            assert wanted.needs_approval
            raise ApprovalRequired("none is named")
        approval = self.table[wanted.approval_id]
        actions = list(approval.actions)
        if actions[wanted.approval_position].status == "consumed":
            raise ApprovalConsumed("used")
        actions[wanted.approval_position] = msgspec.structs.replace(
            actions[wanted.approval_position], status="consumed"
        )
        left = any(each.status == "approved" for each in actions)
        self.change(wanted.approval_id, status=approval.status if left else "consumed", actions=actions)
        return True

    def act(self, pinned, place, policy, called, wanted):
        if self.start(place, wanted):
            self.effects[place.name] = called.fn(**called.kwargs)
        return self.effects[place.name]

    async def aact(self, pinned, place, policy, called, wanted):
        if self.start(place, wanted):
            self.effects[place.name] = await called.fn(**called.kwargs)
        return self.effects[place.name]


class State(TypedDict):
    paid: Annotated[list, operator.add]


APPROVE, REJECT = {"verdict": "approve"}, {"verdict": "reject", "message": "too much"}


def _pay(paid):
    @tool
    def pay(amount: int, to: str, currency: str = "EUR") -> str:
        """Pay somebody."""
        paid.append((amount, to, currency))
        return f"paid {amount}"

    return pay


def _graph(node, saver=None):
    builder = StateGraph(State)
    builder.add_node("n", node)
    builder.add_edge(START, "n")
    return builder.compile(saver)


@pytest.fixture
def saver():
    return Saver()


def test_what_was_approved_is_done(saver):
    paid = []
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": "1200", "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    assert paid == []
    [approval] = saver.pending
    assert saver.asked[approval].actions[0].args == {"amount": 1200, "to": "bob", "currency": "EUR"}
    assert resume(graph, saver, CONFIG) is None  # nobody has decided
    assert decided(graph, saver, CONFIG).waiting.keys() == {saver.asked[approval].external_id}
    saver.decide(approval, "approved", APPROVE)
    assert resume(graph, saver, CONFIG)["paid"] == ["paid 1200"]
    assert paid == [(1200, "bob", "EUR")]


def test_asked_about_1200_and_called_with_1500_is_refused(saver):
    paid, amounts = [], iter([1200, 1500])
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": next(amounts), "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    saver.decide(saver.pending[0], "approved", APPROVE)
    with pytest.raises(ActionChanged, match="other arguments"):
        resume(graph, saver, CONFIG)
    assert paid == []


def test_another_action_under_the_same_id_is_another_question(saver):
    paid, amounts = [], iter([1200, 1500, 1500])
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": next(amounts), "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    first = saver.pending[0]
    saver.decide(first, "approved", APPROVE)
    graph.invoke(None, CONFIG)  # asks anew, without the answer
    assert saver.table[first].status == "superseded"
    [second] = saver.pending
    assert saver.asked[first].external_id == saver.asked[second].external_id
    assert resume(graph, saver, CONFIG) is None
    saver.decide(second, "approved", APPROVE)
    resume(graph, saver, CONFIG)
    assert paid == [(1500, "bob", "EUR")]


def test_an_edit_is_what_is_done(saver):
    paid = []
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    edited = {"amount": 12, "to": "bob", "currency": "USD"}
    saver.decide(saver.pending[0], "approved", {"verdict": "edit", "edited_args": edited})
    resume(graph, saver, CONFIG)
    assert paid == [(12, "bob", "USD")]


@pytest.mark.parametrize(
    ("status", "said", "returned"),
    [
        ("rejected", REJECT, "A person rejected this call of pay. It was not made. too much"),
        ("answered", {"verdict": "respond", "response": "paid by cheque"}, "paid by cheque"),
        (
            "expired",
            {"verdict": "approve"},
            "A person rejected this call of pay. It was not made. Nobody decided in time.",
        ),
    ],
)
def test_a_no_or_an_answer_is_returned_in_place_of_a_call(saver, status, said, returned):
    paid = []
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    saver.decide(saver.pending[0], status, said)
    assert resume(graph, saver, CONFIG)["paid"] == [returned]
    assert paid == []


def test_an_approval_lets_one_call_through_and_that_is_told_again(saver):
    """A node that fails behind its tool runs again, and a second one of the same action needs its own approval."""
    paid, failures = [], iter([ZeroDivisionError])
    pay = gated(_pay(paid), saver, asks=False)

    def node(state):
        said = pay.invoke({"amount": 1200, "to": "bob"})
        for error in failures:
            raise error
        return {"paid": [said]}

    asking = gated(_pay([]), saver)
    graph = _graph(lambda state: {"paid": [asking.invoke({"amount": 1200, "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    saver.decide(saver.pending[0], "approved", APPROVE)
    acting = _graph(node, saver)
    with pytest.raises(ZeroDivisionError):
        acting.invoke({"paid": []}, CONFIG)
    assert acting.invoke(None, CONFIG)["paid"] == ["paid 1200"]
    with pytest.raises(ApprovalRequired):
        acting.invoke({"paid": []}, CONFIG)
    assert paid == [(1200, "bob", "EUR")]


def test_an_answer_by_hand_does_not_open_the_gate(saver):
    paid = []
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    with pytest.raises(ApprovalRequired, match="nobody approved"):
        graph.invoke(Command(resume={"type": "approve"}), CONFIG)
    assert paid == []


def test_of_two_sends_the_answered_one_goes_on(saver):
    paid = []
    pay = gated(_pay(paid), saver)
    builder = StateGraph(State)
    builder.add_node("n", lambda state: {"paid": [pay.invoke({"amount": state["amount"], "to": "bob"})]})
    builder.add_conditional_edges(START, lambda _: [Send("n", {"amount": 1}), Send("n", {"amount": 2})], ["n"])
    graph = builder.compile(saver)
    graph.invoke({"paid": []}, CONFIG)
    one, two = sorted(saver.pending, key=lambda each: saver.asked[each].actions[0].args["amount"])
    saver.decide(one, "approved", APPROVE)
    resume(graph, saver, CONFIG)
    assert paid == [(1, "bob", "EUR")]
    assert saver.pending == [two]  # written again, and the same question
    saver.decide(two, "rejected", REJECT)
    assert len(resume(graph, saver, CONFIG)["paid"]) == 2
    assert paid == [(1, "bob", "EUR")]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_subgraphs_question_is_one_approval(saver, depth):
    paid = []
    pay = gated(_pay(paid), saver)
    node = lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}  # noqa: E731
    for _ in range(depth):
        node = _graph(node)
    graph = _graph(node, saver)
    graph.invoke({"paid": []}, CONFIG)
    [approval] = saver.table
    saver.decide(approval, "approved", APPROVE)
    resume(graph, saver, CONFIG)
    assert paid == [(1200, "bob", "EUR")]
    assert [*saver.table] == [approval]


def test_a_batch_that_something_else_asked_about_is_done_as_approved(saver):
    """As LangChain's middleware asks: all calls of a turn at once, with what the model said."""
    paid = []
    pay = gated(_pay(paid), saver, asks=False)
    calls = [{"name": "pay", "args": {"amount": "1200", "to": "bob"}, "id": "c1"},
             {"name": "pay", "args": {"amount": 5, "to": "eve"}, "id": "c2"}]  # fmt: skip

    def ask(state):
        config = {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]}
        request = {"action_requests": [{"name": each["name"], "args": each["args"]} for each in calls],
                   "review_configs": [config, config]}  # fmt: skip
        verdicts = interrupt(request)["decisions"]
        kept = [call for call, said in zip(calls, verdicts, strict=True) if said["type"] == "approve"]
        return {"messages": [AIMessage("", tool_calls=kept)]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_node("tools", ToolNode([pay]))
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "tools")
    graph = builder.compile(saver)
    graph.invoke({"messages": []}, CONFIG)
    saver.decide(saver.pending[0], "approved", APPROVE, REJECT)
    last = resume(graph, saver, CONFIG)["messages"][-1]
    assert (last.content, last.status) == ("paid 1200", "success")
    assert paid == [(1200, "bob", "EUR")]


def test_what_nobody_asked_about_is_refused(saver):
    paid = []
    pay = gated(_pay(paid), saver, asks=False)
    with pytest.raises(ApprovalRequired):
        _graph(lambda state: {"paid": [pay.invoke({"amount": 1, "to": "eve"})]}, saver).invoke({"paid": []}, CONFIG)
    assert paid == []


async def test_tools_of_coroutines_are_gated_and_injected_values_come_along(saver):
    paid = []

    @tool(response_format="content_and_artifact")
    async def pay(amount: int, call_id: Annotated[str, InjectedToolCallId]) -> tuple[str, int]:
        """Pay."""
        paid.append((amount, call_id))
        return f"paid {amount}", amount

    guarded = gated(pay, saver)

    async def call(state):
        request = {"name": "pay", "args": {"amount": state["amount"]}, "id": "c1", "type": "tool_call"}
        return {"paid": [(await guarded.ainvoke(request)).content]}

    builder = StateGraph(State)
    builder.add_node("n", call)
    builder.add_conditional_edges(START, lambda _: [Send("n", {"amount": 1}), Send("n", {"amount": 2})], ["n"])
    graph = builder.compile(saver)
    await graph.ainvoke({"paid": []}, CONFIG)
    assert len((await adecided(graph, saver, CONFIG)).waiting) == 2
    assert await aresume(graph, saver, CONFIG) is None
    one, two = sorted(saver.pending, key=lambda each: saver.asked[each].actions[0].args["amount"])
    assert saver.asked[one].actions[0].args == {"amount": 1}
    saver.decide(one, "approved", APPROVE)
    saver.decide(two, "rejected", {"verdict": "reject"})
    said = (await aresume(graph, saver, CONFIG))["paid"]
    assert said == ["paid 1", "A person rejected this call of pay. It was not made."]
    assert paid == [(1, "c1")]


def test_an_answer_to_what_does_not_wait_is_refused(saver):
    graph = _graph(lambda state: {"paid": [interrupt("Go on?")]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    saver.decide(saver.pending[0], "approved", APPROVE)
    command = Command(resume=decided(graph, saver, CONFIG).values)
    assert graph.invoke(command, strict(CONFIG))["paid"] == [True]
    with pytest.raises(UnknownInterruptError):
        graph.invoke(command, strict(CONFIG))


def test_an_approval_is_opened_once_for_each_state_of_it(saver):
    paid = []
    pay = gated(_pay(paid), saver)
    graph = _graph(lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, CONFIG)
    saver.decide(saver.pending[0], "approved", APPROVE)
    resume(graph, saver, CONFIG)
    assert saver.calls.count("/approvals/p0/content") == 1
    assert json.dumps(saver.calls).count("content") == 1


def test_a_gate_needs_a_saver_with_decisions_and_a_tool_of_a_function(saver):
    with StateroomSaver("http://localhost", "stk_x", subject="alice") as without:
        with pytest.raises(NotConfigured, match="decisions"):
            gated(_pay([]), without)
        with pytest.raises(NotConfigured, match="decisions"):
            resume(None, without, CONFIG)
    gated(_pay([]), saver)
    other = _pay([]).model_copy(update={"metadata": {"version": 2}})
    with pytest.raises(ValueError, match="two tools"):
        gated(other, saver)
    with pytest.raises(TypeError, match="no tool"):
        gated(ToolNode, saver)
