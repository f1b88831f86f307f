"""Steps of a fixture that a function runs again, and what is said of them."""

import sys

import msgspec
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from stateroom import CheckpointNotFound, Model
from stateroom.testing import ChannelChange, Fixture, Made, check_run, prompt_hash

MODEL = Model(name="m-1", hash="h", temperature=0.5, top_p=0.9, seed=7)
ASKED = [{"role": "user", "content": "hi"}]
STATES = [{"n": 0}, {"n": 1, "said": [{"role": "assistant", "content": "one", "id": "x"}]}, {"n": 2}, {"n": 9}]


def fixture_of(*steps: dict) -> Fixture:
    lines = [
        {"type": "begin", "format": "stateroom-trajectory/1", "view": "channels", "thread_id": "t", "namespace": ""}
    ]
    lines[0] |= {"checkpoint_id": "c", "steps": len(steps)}
    before: dict = {}
    for number, step in enumerate(steps):
        state = step.pop("state")
        changes = {
            name: ChannelChange(kind="set", data=msgspec.msgpack.encode(value)) for name, value in state.items()
        } | {name: ChannelChange(kind="remove") for name in before if name not in state}
        before = state
        lines.append({
            "type": "step", "checkpoint_id": f"c{number}", "parent_id": f"c{number - 1}" if number else None,
            "step": number, "status": "active", "created_at": "2026-11-25T08:00:00Z", "changes": changes, **step,
        })  # fmt: skip
    lines.append({"type": "end", "checkpoint_id": "c", "status": "active", "steps": len(steps)})
    return Fixture.parse(b"\n".join(map(msgspec.json.encode, lines)))


def recorded() -> Fixture:
    return fixture_of(
        {"state": STATES[0]},
        {"state": STATES[1], "model": MODEL, "metadata": {"prompt_hash": prompt_hash(ASKED)}},
        {"state": STATES[2]},
        {"state": STATES[3], "source": "update"},
    )


def made(state: dict, **changes: object) -> Made:
    """What the second step made, or something else."""
    model = msgspec.structs.replace(MODEL, **{name: changes[name] for name in changes if name != "asked"})
    said = [{"role": "assistant", "content": "one", "id": "another"}]
    return Made(
        state={"n": state["n"] + 1, "said": said}, model=model, prompt_hash=prompt_hash(changes.get("asked", ASKED))
    )


def drifted(function, *steps: str) -> dict:
    report = check_run(recorded(), function, steps or ["c1"])
    [one] = report.steps
    assert (one.outcome == "drift") == (report.outcome == "drift")
    return {each.what: (each.recorded, each.now) for each in one.comparisons if each.outcome == "drift"}


def test_a_step_that_comes_out_as_it_was_does_not_drift():
    assert drifted(made) == {}
    report = check_run(recorded(), made, ["c1"])
    assert report.outcome == "same"
    assert {each.outcome for each in report.steps[0].comparisons} == {"same"}


@pytest.mark.parametrize(
    ("changed", "what", "pair"),
    [
        ({"name": "m-2"}, "model.name", ("m-1", "m-2")),
        ({"hash": "g"}, "model.hash", ("h", "g")),
        ({"temperature": 0.0}, "model.temperature", (0.5, 0.0)),
        ({"top_p": 1.0}, "model.top_p", (0.9, 1.0)),
        ({"seed": 8}, "model.seed", (7, 8)),
        ({"asked": "other"}, "prompt_hash", (prompt_hash(ASKED), prompt_hash("other"))),
    ],
)
def test_what_drifted_is_named(changed, what, pair):
    assert drifted(lambda state: made(state, **changed)) == {what: pair}


def test_a_result_that_is_another_one_missing_or_new_is_named_by_its_channel():
    assert drifted(lambda state: msgspec.structs.replace(made(state), state={"n": 5, "new": None})) == {
        "result.n": (1, 5),
        "result.said": ([{"role": "assistant", "content": "one"}], None),
        "result.new": (None, None),
    }


def test_what_is_not_known_is_neither_the_same_nor_drift():
    [one] = check_run(recorded(), lambda _: {"state": {"n": 2}, "model": {"name": "m-1"}}, ["c2"]).steps
    outcomes = {each.what: each.outcome for each in one.comparisons}
    assert (outcomes["model.name"], outcomes["prompt_hash"], outcomes["result.n"]) == (
        "not recorded",
        "not recorded",
        "same",
    )
    [one] = check_run(recorded(), lambda state: Made(state=made(state).state), ["c1"]).steps
    outcomes = {each.what: each.outcome for each in one.comparisons}
    assert (outcomes["model.name"], outcomes["prompt_hash"], one.outcome) == ("not reported", "not reported", "same")


async def nothing(state: dict) -> Made:
    return Made(state=state)


def test_all_steps_that_a_program_made_are_run_and_others_are_named():
    report = check_run(recorded(), nothing)
    assert [each.outcome for each in report.steps] == ["skipped", "drift", "drift", "skipped"]
    assert "not in the fixture" in report.steps[0].detail
    assert "update" in report.steps[3].detail
    assert report.outcome == "drift"
    assert check_run(recorded(), nothing, ["c3"]).outcome == "failed"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda _: sys.exit(3), "SystemExit: 3"),
        (lambda _: {"stat": {}}, "ValidationError"),
        (lambda _: {"state": {"n": float("nan").__class__}}, "InvalidRequest"),
    ],
)
def test_a_program_that_fails_is_reported_and_the_next_step_is_run(function, said):
    report = check_run(recorded(), function, ["c1", "c2"])
    assert [each.outcome for each in report.steps] == ["failed", "failed"]
    assert said in report.steps[0].detail
    assert report.outcome == "failed"


def test_a_step_that_is_not_in_the_fixture_is_said_so():
    with pytest.raises(CheckpointNotFound, match="c9"):
        check_run(recorded(), made, ["c1", "c9"])


def test_a_prompts_hash_is_of_what_messages_say_in_either_form():
    call = {"name": "f", "args": {"b": 1, "a": 2}, "id": "1"}
    chain = [HumanMessage("hi", id="x"), AIMessage("", tool_calls=[call]), ToolMessage("2", tool_call_id="1", name="f")]
    called = {"id": "other", "type": "function", "function": {"name": "f", "arguments": '{"a":2,"b":1}'}}
    plain = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "other", "content": "2", "name": "f"},
    ]
    assert prompt_hash(chain) == prompt_hash(plain)
    assert prompt_hash(chain[:2]) != prompt_hash(chain)


def test_the_hash_of_a_prompt_never_changes():
    asked = [{"role": "system", "content": "Sei knapp, für mich"}, {"role": "user", "content": "2+2?"}]
    assert prompt_hash(asked) == "e446398126290e9aba70f3f397a99a63d43de1882321daa89ac12a5881a4a196"
    assert prompt_hash("2+2?") == "ab8c9f78ab2d809091a677f59ea526b36cfafb12c2030216852000e154667741"


def test_a_text_that_is_no_unicode_has_no_hash():
    with pytest.raises(UnicodeEncodeError):
        prompt_hash(["\ud800"])


def test_bytes_and_odd_numbers_are_compared_as_a_fixture_has_them():
    packed = {"raw": b"!", "odd": float("nan"), "many": [float("-inf")]}
    report = check_run(fixture_of({"state": {}}, {"state": packed}), lambda _: {"state": packed})
    assert report.outcome == "same"
    told = {each.what: each.now for each in report.steps[1].comparisons}
    assert (told["result.raw"], told["result.odd"]) == ({"$bytes": "IQ=="}, {"$float": "nan"})
