"""What is made of the lines of a trajectory: steps, plain values, messages."""

import base64
import json

import msgspec
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt

from stateroom import chat_form
from stateroom._threads.trajectories import Wanted, readable, step_lines
from stateroom.errors import GatewayUnavailable

STEP = {
    "type": "step", "checkpoint_id": "c1", "parent_id": None, "step": 1, "status": "active",
    "created_at": "2026-11-25T08:00:00Z", "delta_channels": [], "changes": {}, "writes": [], "of_a_newer_gateway": 1,
}  # fmt: skip
BEGIN = {
    "type": "begin", "format": "stateroom-trajectory/1", "view": "state", "thread_id": "t", "namespace": "",
    "checkpoint_id": "c1", "steps": 1,
}  # fmt: skip
END = {"type": "end", "checkpoint_id": "c1", "status": "active", "steps": 1}
CALL = {"name": "search", "args": {"to": "Oslo"}, "id": "call-1", "type": "tool_call"}
TALK = [
    HumanMessage("Find a flight"),
    AIMessage(
        "",
        tool_calls=[CALL],
        response_metadata={"model_name": "m-1"},
        usage_metadata={"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    ),
    ToolMessage("SK 4000", tool_call_id="call-1", name="search"),
]


def shown(value: object) -> object:
    """A value of LangGraph's as the API's JSON shows it."""
    _, data = JsonPlusSerializer().dumps_typed(value)

    def json_of(each: object) -> object:
        if isinstance(each, msgspec.msgpack.Ext):
            return {"$ext": [each.code, base64.b64encode(each.data).decode()]}
        return [json_of(inner) for inner in each] if isinstance(each, list) else each

    return json_of(msgspec.msgpack.decode(data))


def encoded(*lines: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def read(*lines: object) -> list:
    return list(step_lines(Wanted(namespace="")).accept(encoded(*lines)))


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_lines_are_read_however_they_are_cut(size):
    lines = step_lines(Wanted(namespace=""))
    content = encoded(BEGIN, STEP, STEP | {"checkpoint_id": "c2"}, END)
    steps = [each for start in range(0, len(content), size) for each in lines.accept(content[start : start + size])]
    assert [each.checkpoint_id for each in steps] == ["c1", "c2"]
    assert (lines.is_complete, lines.after, lines.wanted.checkpoint_id) == (True, "c2", "c1")


def test_half_a_line_of_an_answer_that_broke_off_is_let_go():
    lines = step_lines(Wanted(namespace=""))
    content = encoded(BEGIN, STEP)
    assert len(list(lines.accept(content + content[:20]))) == 1
    lines.begin()
    assert list(lines.accept(encoded(BEGIN, END))) == []
    assert lines.is_complete


def test_what_has_not_come_of_a_whole_thread_is_asked_for_with_its_namespaces():
    lines = step_lines(Wanted(namespace="any", all_namespaces=True))
    assert {name: value for name, value in lines.query() if value is not None} == {"namespaces": "all", "view": "state"}
    begin = BEGIN | {"format": "stateroom-trajectory/2", "namespaces": 2, "checkpoint_id": "c2"}
    steps = list(lines.accept(encoded(begin, STEP | {"namespace": "research"}, STEP | {"checkpoint_id": "c2"})))
    assert [each.namespace for each in steps] == ["research", ""]
    lines = step_lines(Wanted(namespace="", all_namespaces=True))
    list(lines.accept(encoded(begin, STEP | {"namespace": "research"})))
    assert dict(lines.query()) == {
        "namespace": "", "namespaces": "all", "checkpoint_id": "c2", "after": "c1", "after_namespace": "research",
        "view": "state",
    }  # fmt: skip


def test_steps_of_an_older_gateway_are_of_the_namespace_that_was_asked_for():
    lines = step_lines(Wanted(namespace="research"))
    [step] = lines.accept(encoded(BEGIN | {"namespace": "research"}, STEP))
    assert step.namespace == "research"
    assert dict(lines.query())["namespaces"] is None


@pytest.mark.parametrize("is_whole", [False, True])
def test_the_other_format_than_the_one_asked_for_is_refused(is_whole):
    lines = step_lines(Wanted(namespace="", all_namespaces=is_whole))
    begin = BEGIN if is_whole else BEGIN | {"format": "stateroom-trajectory/2", "namespaces": 1}
    with pytest.raises(GatewayUnavailable, match="format"):
        list(lines.accept(encoded(begin)))


@pytest.mark.parametrize("line", [b"{}\n", b"no json\n", encoded(BEGIN | {"format": "other/9"})])
def test_what_is_no_trajectory_is_refused(line):
    with pytest.raises(GatewayUnavailable):
        list(step_lines(Wanted(namespace="")).accept(line))


@pytest.mark.parametrize("value", [TALK, [message.model_dump() for message in TALK]])
def test_messages_of_langgraph_are_told_without_its_types(value):
    change = {"messages": {"kind": "set", "value": shown(value) if value is TALK else value}}
    [step] = read(BEGIN, STEP | {"changes": change}, END)
    user, model, tool = step.messages
    assert (user.role, user.content) == ("user", "Find a flight")
    assert (model.role, model.model, model.usage["total_tokens"]) == ("assistant", "m-1", 5)
    assert [(each.name, each.arguments, each.id) for each in model.tool_calls] == [("search", {"to": "Oslo"}, "call-1")]
    assert (tool.role, tool.content, tool.tool_call_id, tool.name) == ("tool", "SK 4000", "call-1", "search")


def test_the_chat_form_is_what_openai_takes():
    talk = [
        {"role": "system", "content": "Be brief"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "critic", "content": "left out"},
    ]
    steps = read(BEGIN, STEP | {"changes": {"messages": {"kind": "set", "value": talk}}}, END)
    assert chat_form(steps) == {"messages": talk[:3]}


def test_interrupts_and_writes_to_delta_channels_are_told():
    writes = [
        {"task_id": "t", "idx": -3, "channel": "__interrupt__", "value": shown([Interrupt("really?", id="i1")])},
        {"task_id": "t", "idx": 0, "channel": "messages", "value": shown([HumanMessage("hi")])},
    ]
    [step] = read(BEGIN, STEP | {"writes": writes, "delta_channels": ["messages"]}, END)
    [asked] = step.writes[0].value
    assert (asked["value"], asked["id"]) == ("really?", "i1")
    assert [(each.role, each.content) for each in step.messages] == [("user", "hi")]


@pytest.mark.parametrize(
    "value",
    [{"$ext": [5, "no base64"]}, {"$ext": [99, "AA=="]}, {"$ext": [5, "wQ=="]}, {"$ext": "x"}, {"$bytes": "AA=="}],
)
def test_what_is_unknown_stays_as_it_is(value):
    assert readable([value]) == [value]


def test_what_is_nested_beyond_reason_is_left_out():
    data = b"\x90"
    for _ in range(300):
        data = msgspec.msgpack.encode(["m", "N", msgspec.msgpack.Ext(0, data)])
    assert readable({"$ext": [0, base64.b64encode(data).decode()]}) is None
