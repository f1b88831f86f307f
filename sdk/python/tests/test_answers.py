"""What is remembered of checkpoints, and what is certainly new in the next ones."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from stateroom import Model, Usage
from stateroom._langgraph import answers
from stateroom._langgraph.answers import Answers, answers_of, model_of, usage_of

PLACE = (b"", "t", "")


def said(message_id: str | None, tokens: int = 1) -> AIMessage:
    usage = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
    return AIMessage(f"text {message_id}", id=message_id, usage_metadata=usage)


def checkpoint(**values: object) -> dict:
    return {"channel_values": values, "versions_seen": {}}


def new(memory: Answers, parent_id: str | None, **values: object) -> int | None:
    usage = usage_of(memory.added(PLACE, parent_id, checkpoint(**values), dict.fromkeys(values, 1)))
    return usage and usage.input_tokens


def test_nothing_is_said_after_a_checkpoint_that_nobody_saw():
    memory = Answers()
    assert new(memory, "unseen", messages=[said("a")]) is None
    memory.note_writes(PLACE, "unseen", "task", [("deltas", [said("a")])])
    assert memory.added(PLACE, "unseen", checkpoint(), {"deltas": 1}) == []


@pytest.mark.parametrize("first", [[HumanMessage("hi")], [HumanMessage("hi", id="h")], []])
def test_new_elements_of_a_list_that_only_grew_are_told(first):
    memory = Answers()
    memory.note(PLACE, "p", {"messages": first}, "loop")
    assert new(memory, "p", messages=[*first, said("a", 2), said(None, 3)]) == 5


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([HumanMessage("hi")], [HumanMessage("other"), said("a")]),
        ([HumanMessage("1"), HumanMessage("2")], [said("a")]),
        ([{"role": "user"}], [{"role": "user"}, said("a")]),
    ],
)
def test_a_list_of_which_it_is_not_certain_tells_nothing(before, after):
    memory = Answers()
    memory.note(PLACE, "p", {"messages": before}, "loop")
    assert new(memory, "p", messages=after) is None


def test_a_channel_that_did_not_change_and_a_message_in_two_channels_are_not_counted_twice():
    memory = Answers()
    memory.note(PLACE, "p", {}, "loop")
    message = said("a", 2)
    step = checkpoint(messages=[message], copies=[message], kept=[said("b", 90)])
    [answer] = memory.added(PLACE, "p", step, {"messages": 1, "copies": 1})
    assert answer.usage == Usage(input_tokens=2)


def test_writes_that_a_task_repeats_are_counted_once():
    memory = Answers()
    memory.note(PLACE, "p", {}, "loop")
    for _ in range(2):
        memory.note_writes(PLACE, "p", "task", [("other", 1), ("deltas", said("a", 2)), ("deltas", [said("b", 3)])])
    assert usage_of(memory.added(PLACE, "p", checkpoint(), {"deltas": 1, "gone": 1})) == Usage(input_tokens=5)


def test_what_is_remembered_is_bounded_and_holds_no_content():
    memory = Answers()
    for number in range(answers._CHECKPOINTS_MAX + 10):
        memory.note(PLACE, str(number), {"messages": [said("a")]}, "loop")
    assert len(memory._seen) == answers._CHECKPOINTS_MAX
    memory.note_writes(PLACE, "p", "task", [("deltas", [said("secret")])])
    assert "text" not in repr(memory._seen[PLACE, "p"])


def test_odd_counts_are_no_tokens():
    message = said("a")
    message.usage_metadata = {"input_tokens": -3, "output_tokens": True}
    assert usage_of(answers_of([message])) == Usage()
    message.usage_metadata["output_tokens"] = 2**60
    assert usage_of(answers_of([message] * 3)) == Usage()


def test_parameters_in_which_answers_differ_are_left_out():
    told = [
        AIMessage("", response_metadata={"model": "m", "temperature": number, "top_p": 1, "seed": 2**70})
        for number in (0, 1)
    ]
    assert model_of(answers_of(told), {}) == Model(name="m", top_p=1.0)
    assert model_of([], {"ls_temperature": 1}) is None
    told[0].response_metadata["temperature"] = 10**400
    assert model_of(answers_of(told[:1]), {}) == Model(name="m", top_p=1.0)
