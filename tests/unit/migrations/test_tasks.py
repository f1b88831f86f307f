"""What a worker does for who asks, in this process: programs are learned, named, and do to values what they say."""

import io
import json

import msgpack
import msgspec
import pytest

from migrations.state.chain import Chain, Step
from migrations.state.tasks import (
    PROGRAMS_MAX,
    Check,
    Checked,
    Convert,
    Converted,
    Failed,
    Invalid,
    Learn,
    Learned,
    NotLearned,
    Program,
    Rename,
    Renamed,
    SchemaText,
    StepsText,
    StepText,
    Tasks,
    TooNew,
)
from migrations.state.worker.messages import Ready, framed, read_head

RENAME = {"op": "rename", "from": "/a", "to": "/b"}
FIRST = msgspec.json.encode(StepText())


def steps(*texts, schema="travel"):
    given = {1: FIRST} | {number: msgspec.json.encode(each) for number, each in enumerate(texts, 2)}
    return Program(StepsText(schema, given))


def schema(**document):
    return Program(SchemaText(json.dumps(document).encode(), "whole"))


def taught(program, tasks=None, *, new=False):
    tasks = tasks or Tasks({})
    [answer, made] = tasks.perform(Learn(program.digest, program.text, new=new), [])
    assert made == []
    return tasks, answer


RENAMING = steps(StepText(up=[RENAME], down=[{"op": "rename", "from": "/b", "to": "/a"}]))


def test_channels_are_brought_to_the_other_version_and_what_no_step_touches_does_not_travel():
    tasks, learned = taught(RENAMING, new=True)
    assert learned == Learned()
    values = [msgpack.packb(1), msgpack.packb(2)]
    request = Convert(RENAMING.digest, 1, 2, [("a", "msgpack"), ("other", "msgpack")], names=["a"])
    answer, made = tasks.perform(request, values)
    assert answer.names == [["b"]]
    assert {name: origin for name, _, origin in answer.channels}["other"] == "other"
    assert {name for name, _, _ in answer.channels} == {"b", "other"}
    assert isinstance(answer, Converted)
    assert len(made) == sum(origin is None for _, _, origin in answer.channels)


def test_names_are_told_as_they_are_at_the_other_version():
    tasks, _ = taught(RENAMING)
    answer, _ = tasks.perform(Rename(RENAMING.digest, 2, 1, ["b", "c"]), [])
    assert answer == Renamed([["a"], ["c"]])


def test_what_leads_nowhere_and_what_cannot_be_applied_is_told():
    tasks, _ = taught(RENAMING)
    answer, _ = tasks.perform(Convert(RENAMING.digest, 1, 9, []), [])
    assert isinstance(answer, TooNew)
    answer, _ = tasks.perform(Convert(RENAMING.digest, 1, 2, [("a", "msgpack"), ("b", "msgpack")]), [b"\x01"] * 2)
    assert isinstance(answer, Failed)  # there is a b already


def test_a_program_that_is_not_there_is_to_be_taught_first_and_forgotten_ones_again():
    tasks, _ = taught(RENAMING)
    tasks.forget()
    assert tasks.perform(Rename(RENAMING.digest, 1, 2, []), []) == (NotLearned(), [])


def test_the_program_that_was_not_used_for_longest_is_forgotten_first():
    tasks, _ = taught(RENAMING)
    others = [steps(StepText(up=[RENAME]), schema=f"s{number}") for number in range(PROGRAMS_MAX)]
    for each in others:
        taught(each, tasks)
    assert tasks.perform(Rename(RENAMING.digest, 1, 2, []), [])[0] == NotLearned()
    assert tasks.perform(Rename(others[-1].digest, 1, 2, ["a"]), [])[0] == Renamed([["b"]])


def test_a_step_of_the_deployments_own_is_used_by_its_name():
    shipped = Chain("own", [Step(1, 2, lambda document, *, partial: document)])
    program = steps(StepText(deployment="own"))
    tasks, learned = taught(program, Tasks({"own": shipped}))
    assert learned == Learned()
    assert tasks.perform(Rename(program.digest, 1, 2, ["a"]), [])[0] == Renamed([["a"]])


@pytest.mark.parametrize(
    ("program", "pointer"),
    [
        (steps(StepText()), "/up"),
        (steps(StepText(up=[RENAME], deployment="own")), "/up"),
        (steps(StepText(deployment="own")), "/deployment"),
        (Program(StepsText("travel", {1: msgspec.json.encode(StepText(up=[RENAME]))})), "/up"),
        (steps(StepText(up=[{"op": "nothing"}])), "/up/0/op"),
    ],
)
def test_steps_that_cannot_be_used_are_refused_and_say_where(program, pointer):
    _, answer = taught(program, new=True)
    assert isinstance(answer, Invalid)
    assert answer.pointer == pointer


def test_an_old_step_that_cannot_be_used_any_more_fails_when_it_is_needed():
    program = steps(StepText(up=[{"op": "nothing"}]))
    tasks, learned = taught(program)
    assert learned == Learned()
    answer, _ = tasks.perform(Convert(program.digest, 1, 2, [("a", "msgpack")]), [msgpack.packb(1)])
    assert isinstance(answer, Failed)
    assert "cannot be used any more" in answer.why
    assert tasks.perform(Rename(program.digest, 1, 2, ["a"]), [])[0] == Renamed([[]])


def test_channels_are_checked_each_or_as_lists():
    program = schema(type="object", properties={"n": {"type": "integer"}, "many": {"type": "array", "maxItems": 2}})
    tasks, learned = taught(program, new=True)
    assert isinstance(learned, Learned)
    one = Check(program.digest, [("n", "msgpack")])
    assert tasks.perform(one, [msgpack.packb(1)])[0] == Checked()
    misfit, _ = tasks.perform(one, [msgpack.packb("x")])
    assert (misfit.rule, misfit.steps) == ("type", ["n"])
    three = Check(program.digest, [("many", "msgpack")] * 3, lists=[3])
    assert tasks.perform(three, [msgpack.packb(each) for each in range(3)])[0].rule == "maxItems"


@pytest.mark.parametrize("text", [b'{"type": 7}', b'{"type": "object", "$ref": "http://x.example/"}'])
def test_a_schema_that_cannot_be_used_is_refused(text):
    _, answer = taught(Program(SchemaText(text, "whole")), new=True)
    assert isinstance(answer, Invalid)


def test_an_old_schema_is_used_as_it_was_registered_and_one_that_cannot_be_is_refused():
    _, learned = taught(schema(type="object"))
    assert isinstance(learned, Learned)
    _, answer = taught(schema(type=7))
    assert answer == Invalid("the JSON Schema cannot be used", "/json_schema")


def test_versions_with_a_gap_are_refused_by_the_step_that_is_missing():
    later = msgspec.json.encode(StepText(up=[RENAME]))
    _, answer = taught(Program(StepsText("travel", {1: FIRST, 2: later, 4: later})))
    assert isinstance(answer, Invalid)
    assert answer.why.startswith("v3_to_v4: ")


def test_the_step_of_a_deployments_own_chain_is_the_one_between_these_versions():
    first = Step(1, 2, lambda document, *, partial: document)
    own = Chain("own", [first, Step(2, 3, lambda document, *, partial: document)])
    program = steps(StepText(up=[RENAME]), StepText(deployment="own"))
    tasks, _ = taught(program, Tasks({"own": own}))
    assert tasks.perform(Rename(program.digest, 1, 3, ["a"]), [])[0] == Renamed([["b"]])


def test_a_value_that_is_nested_too_deeply_to_be_checked_is_told():
    program = schema(additionalProperties={"type": "integer"})
    tasks, _ = taught(program)
    answer, _ = tasks.perform(Check(program.digest, [("a", "msgpack")]), [b"\x91" * 300 + b"\x01"])
    assert answer == Checked(too_deep=True)


def test_a_message_is_read_as_it_was_framed_and_none_is_where_the_other_end_is_gone():
    sent = framed(Ready("v1_to_v2", "why"))
    assert msgspec.msgpack.decode(read_head(io.BytesIO(sent)), type=Ready) == Ready("v1_to_v2", "why")
    assert read_head(io.BytesIO(sent[:3])) is None
