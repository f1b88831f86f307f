"""A resumed agent is told what it wanted and knew, and what happened while it was away."""

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stateroom import AgentState, AsyncClient, Client, Fact, ItemMoved, ItemVectors, Near, SaveReceipt

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def client(gateway_env, subject):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
def thread(client, thread_id):
    return client.thread(thread_id, agent="travel", state_type=AgentState)


def state(**members):
    return AgentState(goal="book a trip to Lisbon", plan=["book the hotel"], done=["book the flight"], **members)


async def test_a_thread_that_was_never_saved_has_an_empty_context(thread):
    context = await thread.resume_context()
    assert (context.checkpoint_id, context.goal, context.changes) == (None, "", [])
    assert context.text() == ""


async def test_the_context_has_the_goal_the_plan_what_is_done_and_the_newest_messages(thread):
    messages = [{"role": "user", "content": f"message {number}"} for number in range(30)]
    saved = await thread.save(state(messages=messages, summary="so far", facts=[Fact(text="Ada is vegan")]))
    context = await thread.resume_context(messages=5)
    assert context.checkpoint_id == saved.checkpoint_id
    assert (context.goal, context.plan, context.done) == (
        "book a trip to Lisbon", ["book the hotel"], ["book the flight"],
    )  # fmt: skip
    assert [each["content"] for each in context.messages] == [f"message {number}" for number in range(25, 30)]
    assert context.left_out == ["messages"]
    text = context.text()
    for part in ("Goal: book a trip to Lisbon", "- book the hotel", "- Ada is vegan", "user: message 29", "so far"):
        assert part in text


async def test_facts_that_are_to_be_kept_become_items_with_the_last_save(client, thread):
    facts = [Fact(text="Ada is vegan", key="diet", source="Ada", keep=True), Fact(text="it rains")]
    receipt = await thread.complete(state(facts=facts))
    assert isinstance(receipt, SaveReceipt)
    assert receipt.status == "done"
    (item,) = [each async for each in client.items.search(("facts",))]
    assert (item.path, item.key, item.value["text"], item.value["source"]) == (
        ("facts",), "diet", "Ada is vegan", "Ada",
    )  # fmt: skip
    assert (item.value["thread_id"], item.value["agent"]) == (thread.thread_id, "travel")


async def test_a_fact_that_somebody_else_changed_refuses_the_last_save_and_is_told_as_a_conflict(client, thread):
    written = await client.items.put(("facts",), "diet", {"text": "Ada is vegan"})
    item = await client.items.get(("facts",), "diet")
    believed = Fact.of(item)
    assert (believed.revision, believed.text) == (written.revision, "Ada is vegan")
    await thread.save(state(facts=[believed]))
    assert (await thread.resume_context()).conflicts == []
    await client.items.put(("facts",), "diet", {"text": "Ada eats fish"})
    believed.keep = True
    with pytest.raises(ItemMoved):
        await thread.complete(state(facts=[believed]))
    assert (await thread.load()).status == "active"
    (conflict,) = (await thread.resume_context()).conflicts
    assert (conflict.kind, conflict.fact.text, conflict.item.value["text"]) == (
        "changed", "Ada is vegan", "Ada eats fish",
    )  # fmt: skip
    assert "you believed: Ada is vegan; now it is: Ada eats fish" in (await thread.resume_context()).text()


async def test_what_a_thread_itself_remembered_is_no_conflict_and_it_may_complete_again(client, thread):
    await client.items.put(("facts",), "diet", {"text": "Ada is vegan"})
    held = Fact.of(await client.items.get(("facts",), "diet"))
    held.keep, held.text = True, "Ada is vegan and sleeps late"
    await thread.complete(state(facts=[held, Fact(text="it rains", key="weather", keep=True)]))
    context = await thread.resume_context()
    assert context.changes == []
    assert [each.revision for each in context.facts] == [
        each.revision for each in [await client.items.get(("facts",), key) for key in ("diet", "weather")]
    ]
    await thread.complete(state(facts=context.facts))
    assert (await thread.resume_context()).conflicts == []
    await client.items.put(("facts",), "weather", {"text": "the sun shines"})  # what was never read is compared, too
    (conflict,) = (await thread.resume_context()).conflicts
    assert (conflict.kind, conflict.fact.key, conflict.item.value["text"]) == ("changed", "weather", "the sun shines")


async def test_more_facts_than_are_compared_are_told_as_left_out(client, thread):
    facts = [Fact(text=f"fact {number}", key=f"k{number}", revision=1) for number in range(130)]
    await thread.save(state(facts=facts))
    context = await thread.resume_context()
    assert len(context.facts) == 130
    assert [each.kind for each in context.changes] == ["gone"] * 99
    assert "facts" in context.left_out


async def test_a_completion_takes_what_a_context_takes_for_facts(client, thread_id):
    thread = client.thread(thread_id)
    await thread.complete({"facts": ["a text", {"text": "b", "key": "k", "keep": True}, 7]})
    assert [each.key async for each in client.items.search(("facts",))] == ["k"]


async def test_what_was_taken_back_and_what_others_learned_since_is_told(client, thread):
    await client.items.put(("facts",), "gate", {"text": "the gate is 7"})
    await thread.save(state(facts=[Fact.of(await client.items.get(("facts",), "gate"))]))
    await client.items.delete(("facts",), "gate")
    other = client.thread(f"other-{uuid4()}", agent="hotels", state_type=AgentState)
    await other.complete(AgentState(facts=[Fact(text="the hotel is full", key="hotel", keep=True)]))
    context = await thread.resume_context()
    assert [(each.kind, (each.fact or each.item).key) for each in context.changes] == [
        ("gone", "gate"),
        ("new", "hotel"),
    ]
    assert [each.kind for each in context.conflicts] == ["gone"]
    assert [each.key for each in context.items] == ["hotel"]


async def test_items_near_to_a_vector_come_first(client, thread):
    for key, vector in (("far", [0.0, 1.0]), ("near", [1.0, 0.1])):
        vectors = [ItemVectors.of("example", [vector])]
        await client.items.put(("memories",), key, {"text": key}, vectors=vectors)
    await thread.save(state())
    context = await thread.resume_context(paths=[("memories",)], near=Near.of("example", [1.0, 0.0]), items=1)
    assert [each.key for each in context.items] == ["near"]
    assert "items" in context.left_out


async def test_threads_that_were_begun_from_it_are_told_with_their_status(client, thread):
    await thread.save(state())
    child = client.thread(f"child-{uuid4()}")
    await child.save({"n": 1}, status="waiting")
    await child.link(thread.thread_id)
    assert [(each.thread_id, each.status) for each in (await thread.resume_context()).children] == [
        (child.thread_id, "waiting")
    ]


async def test_a_state_of_ones_own_is_read_by_the_names_of_its_members(client, thread_id):
    thread = client.thread(thread_id)
    await thread.save({"goal": "x", "facts": ["a text", {"text": "b", "key": "k"}, 7], "other": [1]})
    context = await thread.resume_context()
    assert (context.goal, [each.text for each in context.facts]) == ("x", ["a text", "b"])


async def test_the_text_ends_where_it_must_and_says_so(thread):
    await thread.save(state(facts=[Fact(text="f" * 2000) for _ in range(20)]))
    text = (await thread.resume_context()).text(characters_max=1000)
    assert len(text) <= 1000
    assert text.endswith("(cut here)")
    assert text.startswith("Goal: book a trip to Lisbon")


def test_the_blocking_client_does_the_same(gateway_env, subject, thread_id):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        thread = client.thread(thread_id, state_type=AgentState)
        thread.complete(state(facts=[Fact(text="Ada is vegan", key="diet", keep=True)]))
        context = thread.resume_context()
        assert (context.status, [each.key for each in client.items.search(("facts",))]) == ("done", ["diet"])


def test_the_page_runs_from_its_beginning_to_its_end(gateway_env, subject, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "resuming.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.setenv("STATEROOM_URL", gateway_env.url)
    monkeypatch.setenv("STATEROOM_API_KEY", gateway_env.api_key)
    program = "\n".join(blocks).replace("user-42", subject)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, "resuming.md", "exec"), names)  # noqa: S102
    names["client"].close()
    told = capsys.readouterr().out
    assert "Ada is vegan - Ada\nchanged - Ada is vegan -> Ada eats fish now\n" in told
    assert "you believed: Ada is vegan; now it is: Ada eats fish now" in told
