"""Graphs whose questions a real gateway keeps, people who decide there, and the page on them as it stands."""

import asyncio
import re
from pathlib import Path

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Interrupt, Send

from stateroom import (
    ActionChanged,
    ApprovalRequired,
    Client,
    EditInvalid,
    EffectUnknown,
    PermissionDenied,
    Verdict,
    acting_for,
)
from stateroom.langgraph import StateroomSaver
from stateroom.langgraph.decisions import DecisionRules, adecided, aresume, gated, resume
from tests.support.deciding_graphs import State, asked, decide, graph_of

PAGE = Path(__file__).parents[3] / "docs" / "langgraph-decisions.md"


def pay_of(paid):
    @tool
    def pay(amount: int, to: str, currency: str = "EUR") -> str:
        """Pay somebody."""
        paid.append((amount, to, currency))
        return f"paid {amount}"

    return pay


@pytest.fixture
def pay(saver, paid):
    return gated(pay_of(paid), saver)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_what_was_approved_is_done(saver, person, config, pay, paid, durability):
    """Asynchronously, what a task asks may be stored before the checkpoint that it asks at."""
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": "1200", "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, config, durability=durability)
    assert resume(graph, saver, config) is None
    [content] = asked(person, config)
    assert content.actions[0].args == {"amount": 1200, "to": "bob", "currency": "EUR"}
    decide(person, content, Verdict.approve())
    assert resume(graph, saver, config)["paid"] == ["paid 1200"]
    assert paid == [(1200, "bob", "EUR")]


def test_an_approval_is_used_up_by_one_call_which_is_told_again_and_not_made_again(saver, person, config, pay, paid):
    """The node fails behind its tool, runs again, and would then do the same once more without asking."""
    failures, unasked = iter([ZeroDivisionError]), gated(pay_of(paid), saver, asks=False)

    def node(state):
        said = [pay.invoke({"amount": 1200, "to": "bob"})]
        for error in failures:
            raise error
        return {"paid": said}

    graph = graph_of(node, saver)
    graph.invoke({"paid": []}, config)
    decide(person, *asked(person, config), Verdict.approve())
    with pytest.raises(ZeroDivisionError):
        resume(graph, saver, config)
    assert [each.actions[0].args["amount"] for each in asked(person, config, "consumed")] == [1200]
    assert graph.invoke(None, config)["paid"] == ["paid 1200"]
    again = graph_of(lambda state: {"paid": [unasked.invoke({"amount": 1200, "to": "bob"})]}, saver)
    with pytest.raises(ApprovalRequired):
        again.invoke({"paid": []}, config)
    assert paid == [(1200, "bob", "EUR")]


def test_an_approved_call_that_may_have_happened_is_not_made_again(saver, person, config):
    made = []

    @tool
    def pay(amount: int) -> str:
        """Pay somebody."""
        made.append(amount)
        raise TimeoutError

    guarded = gated(pay, saver)
    graph = graph_of(lambda state: {"paid": [guarded.invoke({"amount": 5})]}, saver)
    graph.invoke({"paid": []}, config)
    decide(person, *asked(person, config), Verdict.approve())
    with pytest.raises(TimeoutError):
        resume(graph, saver, config)
    with pytest.raises(EffectUnknown):
        graph.invoke(None, config)
    assert made == [5]


async def test_two_resumes_at_once_act_once(saver, person, config, paid):
    pay = gated(pay_of(paid), saver)

    async def node(state):
        return {"paid": [await pay.ainvoke({"amount": 7, "to": "bob"})]}

    graph = graph_of(node, saver)
    await graph.ainvoke({"paid": []}, config)
    decide(person, *asked(person, config), Verdict.approve())
    ended = await asyncio.gather(*(aresume(graph, saver, config) for _ in range(3)), return_exceptions=True)
    await saver.aclose()
    assert any(isinstance(each, dict) for each in ended)
    assert paid == [(7, "bob", "EUR")]


def test_a_question_may_be_stored_before_its_checkpoint_and_ends_with_the_next(saver, person, config):
    thread = config["configurable"]["thread_id"]
    first, second, third = (empty_checkpoint() for _ in range(3))
    there = {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": second["id"]}
    saver.put_writes({"configurable": there}, [("__interrupt__", (Interrupt("Go on?", "a" * 32),))], "task")

    def status():
        [approval] = person.approvals.list(thread=thread)
        return approval.status

    at = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for checkpoint in (first, second):
        at = saver.put(at, checkpoint, {}, {})
        assert status() == "pending"
    saver.put(at, third, {}, {})
    assert status() == "superseded"


def test_asked_about_1200_and_called_with_1500_is_refused(saver, person, config, pay, paid):
    amounts = iter([1200, 1500])
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": next(amounts), "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, config)
    decide(person, *asked(person, config), Verdict.approve())
    with pytest.raises(ActionChanged):
        resume(graph, saver, config)
    assert paid == []


def test_another_action_under_the_same_id_supersedes(saver, person, config, pay, paid):
    amounts = iter([1200, 1500, 1500])
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": next(amounts), "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, config)
    [first] = asked(person, config)
    decide(person, first, Verdict.approve())
    graph.invoke(None, config)
    assert person.approvals.get(first.approval_id).status == "superseded"
    [second] = asked(person, config)
    assert second.external_id == first.external_id
    assert resume(graph, saver, config) is None
    decide(person, second, Verdict.approve())
    resume(graph, saver, config)
    assert paid == [(1500, "bob", "EUR")]


def test_of_two_sends_the_answered_one_goes_on(saver, person, config, pay, paid):
    builder = StateGraph(State)
    builder.add_node("n", lambda state: {"paid": [pay.invoke({"amount": state["amount"], "to": "bob"})]})
    builder.add_conditional_edges(START, lambda _: [Send("n", {"amount": 1}), Send("n", {"amount": 2})], ["n"])
    graph = builder.compile(saver)
    graph.invoke({"paid": []}, config)
    one, two = asked(person, config)
    decide(person, one, Verdict.approve())
    resume(graph, saver, config)  # the other one is written again
    assert paid == [(1, "bob", "EUR")]
    [still] = asked(person, config)
    assert still.approval_id == two.approval_id
    decide(person, two, Verdict.reject("no"))
    assert resume(graph, saver, config)["paid"][1:] == ["A person rejected this call of pay. It was not made. no"]
    assert paid == [(1, "bob", "EUR")]


def test_an_edit_is_what_is_done_if_the_tool_takes_it(saver, person, config, pay, paid):
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}, saver)
    graph.invoke({"paid": []}, config)
    [content] = asked(person, config)
    for wrong in ({"amount": "many", "to": "bob", "currency": "EUR"}, {"amount": 9, "to": "bob"}):
        with pytest.raises(EditInvalid, match="not what the tool takes"):
            decide(person, content, Verdict.edit(wrong))
    decide(person, content, Verdict.edit({"amount": 9, "to": "bob", "currency": "USD"}))
    resume(graph, saver, config)
    assert paid == [(9, "bob", "USD")]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_subgraphs_question_is_one_approval(saver, person, config, pay, paid, depth):
    node = lambda state: {"paid": [pay.invoke({"amount": 1200, "to": "bob"})]}  # noqa: E731
    for _ in range(depth):
        node = graph_of(node)
    graph = graph_of(node, saver)
    graph.invoke({"paid": []}, config)
    thread = config["configurable"]["thread_id"]
    assert len([*person.approvals.list(thread=thread)]) == 1
    decide(person, *asked(person, config), Verdict.approve())
    resume(graph, saver, config)
    assert paid == [(1200, "bob", "EUR")]


def test_who_asks_does_not_decide_and_an_answer_by_hand_opens_nothing(saver, keys, subject, config, pay, paid):
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": 1, "to": "eve"})]}, saver)
    graph.invoke({"paid": []}, config)
    with Client(keys["STATEROOM_URL"], keys["STATEROOM_API_KEY"], subject=subject) as agent:
        [approval] = agent.approvals.list(thread=config["configurable"]["thread_id"])
        content = agent.approvals.open(approval.approval_id)
        with pytest.raises(PermissionDenied):
            agent.approvals.decide(approval.approval_id, Verdict.approve(), action_hash=content.action_hash)
    with pytest.raises(ApprovalRequired):
        graph.invoke(Command(resume={"type": "approve"}), config)
    assert paid == []


def test_a_shared_saver_asks_for_whoever_it_acts_for(keys, subject, person, config, paid):
    with StateroomSaver(keys["STATEROOM_URL"], keys["STATEROOM_API_KEY"], decisions=DecisionRules()) as shared:

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            paid.append(amount)
            return f"paid {amount}"

        guarded = gated(pay, shared)
        graph = graph_of(lambda state: {"paid": [guarded.invoke({"amount": 1200})]}, shared)
        with acting_for(subject):
            graph.invoke({"paid": []}, config)
        [approval] = person.approvals.list(status="pending", thread=config["configurable"]["thread_id"])
        assert approval.subject_id == subject
        decide(person, *asked(person, config), Verdict.approve())
        with acting_for(subject):
            assert resume(graph, shared, config)["paid"] == ["paid 1200"]
    assert paid == [1200]


async def test_the_same_on_an_event_loop(saver, person, config, paid):
    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    guarded = gated(pay, saver)

    async def call(state):
        return {"paid": [await guarded.ainvoke({"amount": 1200})]}

    graph = graph_of(call, saver)
    await graph.ainvoke({"paid": []}, config)
    assert len((await adecided(graph, saver, config)).waiting) == 1
    decide(person, *asked(person, config), Verdict.approve())
    assert (await aresume(graph, saver, config))["paid"] == ["paid 1200"]
    assert paid == [1200]
    await saver.aclose()


def test_the_page_does_what_it_says(keys, monkeypatch, capsys):
    for name in ("STATEROOM_URL", "STATEROOM_API_KEY", "STATEROOM_APPROVER_KEY"):
        monkeypatch.setenv(name, keys[name])
    program, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(program, PAGE.name, "exec"), {"__name__": "langgraph_decisions"})  # noqa: S102
    assert capsys.readouterr().out.splitlines() == [
        "None",
        "pay {'amount': 1200, 'to': 'Bob', 'currency': 'EUR'}",
        "['paid 1200 EUR to Bob']",
    ]
