"""What was reported of other frameworks' approvals, each on a real graph and a real gateway: none of it happens here.

The reports are public issues; what they are about is in the tests' names.
"""

import asyncio
from contextlib import suppress

import pytest
from langchain_core.tools import tool
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from stateroom import (
    ApprovalRequired,
    AsyncClient,
    Client,
    Conflict,
    EditInvalid,
    EffectUnknown,
    PermissionDenied,
    StateroomError,
    Verdict,
)
from stateroom.langgraph.decisions import aresume, decided, gated, resume, strict
from tests.support.deciding_graphs import State, asked, decide, graph_of


@pytest.fixture
def tool_that_pays(paid):
    @tool
    def pay(amount: int, to: str = "bob") -> str:
        """Pay somebody."""
        paid.append(amount)
        return f"paid {amount}"

    return pay


@pytest.fixture
def pay(saver, tool_that_pays):
    return gated(tool_that_pays, saver)


def batch(*amounts):
    """A question about several calls, as LangChain's middleware asks it, decided by position."""
    return {
        "action_requests": [{"name": "pay", "args": {"amount": each}, "description": "Pay."} for each in amounts],
        "review_configs": [{"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject"]}],
    }


async def test_decisions_at_once_and_resumes_at_once_do_each_step_once(keys, saver, person, config, paid):
    @tool
    async def pay(amount: int, to: str = "bob") -> str:
        """Pay somebody."""
        paid.append(amount)
        return f"paid {amount}"

    guarded = gated(pay, saver)

    async def node(state):
        return {"paid": [await guarded.ainvoke({"amount": state["amount"]})]}

    builder = StateGraph(State)
    builder.add_node("n", node)
    builder.add_conditional_edges(START, lambda _: [Send("n", {"amount": 1}), Send("n", {"amount": 2})], ["n"])
    graph = builder.compile(saver)
    await graph.ainvoke({"paid": []}, config)
    one, two = asked(person, config)
    async with AsyncClient(keys["STATEROOM_URL"], keys["STATEROOM_APPROVER_KEY"]) as people:
        said = [
            people.approvals.decide(each.approval_id, verdict, action_hash=each.action_hash)
            for each in (one, two)
            for verdict in (Verdict.approve(), Verdict.approve(), Verdict.reject())
        ]
        heard = await asyncio.gather(*said, return_exceptions=True)
    statuses = {person.approvals.get(each.approval_id).status for each in (one, two)}
    assert statuses <= {"approved", "rejected"}
    assert all(not isinstance(each, BaseException) or isinstance(each, Conflict) for each in heard), heard
    ended = await asyncio.gather(*(aresume(graph, saver, config) for _ in range(4)), return_exceptions=True)
    # Each of them may have met another one at one of the two steps; none does what another one does.
    assert all(not isinstance(each, BaseException) or isinstance(each, StateroomError) for each in ended), ended
    allowed = [each.actions[0].args["amount"] for each in (one, two) if is_approved(person, each)]
    assert sorted(paid) == sorted({*paid} & {*allowed})
    # A step that LangGraph cancelled in the middle, because its sibling met another run, is for somebody to look at.
    with suppress(EffectUnknown):
        await aresume(graph, saver, config)
        assert (await graph.aget_state(config)).next == ()
        assert sorted(paid) == allowed
    await saver.aclose()
    assert sorted(paid) == sorted({*paid} & {*allowed})


def is_approved(person, content):
    return person.approvals.get(content.approval_id).status in {"approved", "consumed"}


def test_a_node_that_asks_twice_does_each_once(saver, person, config, pay, paid):
    """It runs again from its start, and the second question takes the first one's place in the same checkpoint."""
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": each}) for each in (1, 2)]}, saver)
    graph.invoke({"paid": []}, config)
    for amount in (1, 2):
        [content] = asked(person, config)
        assert content.actions[0].args["amount"] == amount
        decide(person, content, Verdict.approve())
        resume(graph, saver, config)
    assert graph.get_state(config).values["paid"] == ["paid 1", "paid 2"]
    assert paid == [1, 2]


def test_an_old_checkpoint_that_is_resumed_again_does_nothing_again(saver, person, config, pay, paid):
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": 1200})]}, saver)
    graph.invoke({"paid": []}, config)
    asked_at = graph.get_state(config).config
    [question] = graph.get_state(config).interrupts
    decide(person, *asked(person, config), Verdict.approve())
    resume(graph, saver, config)
    for _ in range(2):
        told = graph.invoke(Command(resume={question.id: {"type": "approve"}}), asked_at)
        assert told["paid"] == ["paid 1200"]
    assert paid == [1200]


def test_an_answer_to_a_question_that_nobody_asked_is_refused(saver, person, config, pay, paid):
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": 1200})]}, saver)
    graph.invoke({"paid": []}, config)
    with pytest.raises(UnknownInterruptError):
        graph.invoke(Command(resume={"f" * 32: {"type": "approve"}}), strict(config))
    assert [*decided(graph, saver, config).waiting] == [each.id for each in graph.get_state(config).interrupts]
    assert paid == []


def test_one_wrong_answer_in_a_batch_runs_no_other_one_twice(saver, person, config, tool_that_pays, paid):
    pay = gated(tool_that_pays, saver, asks=False)

    def node(state):
        decisions = interrupt(batch(1, 2))["decisions"]
        assert [each["type"] for each in decisions] == ["approve", "edit"]
        return {"paid": [pay.invoke({"amount": 1}), pay.invoke(decisions[1]["edited_action"]["args"])]}

    graph = graph_of(node, saver)
    graph.invoke({"paid": []}, config)
    [content] = asked(person, config)
    with pytest.raises(EditInvalid):
        decide(person, content, Verdict.approve(), Verdict.edit({"amount": "many", "to": "bob"}))
    assert resume(graph, saver, config) is None
    assert paid == []
    decide(person, content, Verdict.approve(), Verdict.edit({"amount": 3, "to": "bob"}))
    resume(graph, saver, config)
    assert paid == [1, 3]


def test_a_rejected_call_is_not_made_by_a_program_that_thinks_otherwise_when_it_runs_again(
    saver, person, config, tool_that_pays, paid
):
    pay, runs = gated(tool_that_pays, saver, asks=False), iter([True, False])

    def node(state):
        if next(runs):  # as a middleware's condition that is looked at again
            interrupt(batch(1200))
        return {"paid": [pay.invoke({"amount": 1200})]}

    graph = graph_of(node, saver)
    graph.invoke({"paid": []}, config)
    decide(person, *asked(person, config), Verdict.reject("not now"))
    with pytest.raises(ApprovalRequired):
        resume(graph, saver, config)
    assert paid == []


def test_nobody_says_of_himself_that_he_is_an_approver(saver, keys, subject, person, config, pay, paid):
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": 1200})]}, saver)
    graph.invoke({"paid": []}, config)
    [content] = asked(person, config)
    with Client(keys["STATEROOM_URL"], keys["STATEROOM_API_KEY"], subject=subject) as agent:
        for client in (agent, person):  # neither key may name anybody
            with pytest.raises(PermissionDenied):
                client.approvals.decide(
                    content.approval_id, Verdict.approve(), action_hash=content.action_hash, principal="the boss"
                )
    assert resume(graph, saver, config) is None
    assert paid == []


def test_what_was_taken_back_between_its_decision_and_its_call_is_not_done(
    saver, keys, subject, person, config, pay, paid
):
    """Approved, and then the agent asked something else under the same name: what was approved holds no more."""
    amounts = iter([1200, 7, 1200])
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": next(amounts)})]}, saver)
    graph.invoke({"paid": []}, config)
    [content] = asked(person, config)
    decide(person, content, Verdict.approve())
    found = decided(graph, saver, config)  # a process reads the answer, and stands still
    graph.invoke(None, config)  # another one asks anew
    with pytest.raises(StateroomError):
        graph.invoke(Command(resume=found.values), config)
    assert person.approvals.get(content.approval_id).status == "superseded"
    assert paid == []


def test_a_question_that_nobody_answers_ends_by_itself(saver, person, config, pay):
    graph = graph_of(lambda state: {"paid": [pay.invoke({"amount": 1200})]}, saver)
    graph.invoke({"paid": []}, config)
    [content] = asked(person, config)
    approval = person.approvals.get(content.approval_id)
    assert 0 < (approval.expires_at - approval.created_at).total_seconds() <= 30 * 86_400
