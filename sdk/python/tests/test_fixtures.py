"""How fixtures are read and written, and what is made of their channels."""

import json

import msgspec
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stateroom.testing import ChannelChange, Fixture, FixtureStep, FixtureUnreadable, FixtureWrite

BEGIN = {
    "type": "begin", "format": "stateroom-trajectory/1", "view": "channels", "thread_id": "t", "namespace": "",
    "checkpoint_id": "c2", "steps": 2,
}  # fmt: skip
END = {"type": "end", "checkpoint_id": "c2", "status": "active", "steps": 2}


def packed(value: object) -> bytes:
    return msgspec.msgpack.encode(value)


def step(checkpoint_id: str = "c1", parent_id: str | None = None, **changes: ChannelChange) -> FixtureStep:
    return FixtureStep(
        checkpoint_id=checkpoint_id,
        parent_id=parent_id,
        step=1,
        status="active",
        created_at="2026-11-25T08:00:00Z",
        changes=changes,
    )


def put(value: object, kind: str = "set", version: object = 1, encoding: str = "msgpack") -> ChannelChange:
    return ChannelChange(kind=kind, version=version, encoding=encoding, data=packed(value))


def lines(*steps: FixtureStep, begin: dict = BEGIN, end: dict | None = END) -> bytes:
    told = [json.dumps(begin).encode(), *map(msgspec.json.encode, steps)]
    return b"\n".join([*told, *([] if end is None else [json.dumps(end).encode()])]) + b"\n"


FIRST = step(n=put([1]), gone=put("x"), kept=put({"a": 1}), secret=ChannelChange(kind="set", encoding="own", data=b"!"))
SECOND = step(
    "c2",
    "c1",
    n=put([2, 3], "append", 2),
    gone=ChannelChange(kind="remove"),
    kept=ChannelChange(kind="version", version=7),
)


def test_states_are_what_the_changes_add_up_to():
    fixture = Fixture.parse(lines(FIRST, SECOND))
    secret = {"$encoded": ["own", "IQ=="]}
    assert [state for _, state in fixture.states()] == [
        {"n": [1], "gone": "x", "kept": {"a": 1}, "secret": secret},
        {"n": [1, 2, 3], "kept": {"a": 1}, "secret": secret},
    ]
    [_, (_, channels)] = fixture.checkpoints()
    assert {name: each.version for name, each in channels.items()} == {"n": 2, "kept": 7, "secret": None}


def test_values_of_all_encodings_are_readable_and_adapters_channels_are_left_out():
    encoding, data = JsonPlusSerializer().dumps_typed([HumanMessage("hi")])
    first = step(**{
        "messages": ChannelChange(kind="set", encoding=encoding, data=data),
        "text": ChannelChange(kind="set", encoding="json", data=b'{"big":123456789012345678901234567890}'),
        "nothing": ChannelChange(kind="set", encoding="null"),
        "raw": ChannelChange(kind="set", encoding="bytes", data=b"!"),
        "~langgraph": put({}),
    })  # fmt: skip
    [(_, state)] = Fixture.parse(lines(first, begin=BEGIN | {"steps": 1}, end=END | {"steps": 1})).states()
    assert state.keys() == {"messages", "text", "nothing", "raw"}
    assert (state["messages"][0]["content"], state["nothing"], state["raw"]) == ("hi", None, {"$bytes": "IQ=="})


def test_a_fixture_is_written_as_it_was_read(tmp_path):
    first = step(n=put([1], version="1.5"))
    first.writes = [FixtureWrite(task_id="t", idx=-3, channel="__interrupt__", encoding="msgpack", data=packed("?"))]
    fixture = Fixture.parse(lines(first, step("c2", "c1")))
    fixture.write(tmp_path / "f.jsonl")
    again = Fixture.read(tmp_path / "f.jsonl")
    assert again.steps == fixture.steps
    assert [*again.lines()] == [*fixture.lines()]


WHOLE = lines(FIRST, SECOND)
NO_VIEW = lines(FIRST, SECOND, begin=BEGIN | {"view": "state"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "first line"),
        (b"\xff\xfe", "line 1"),
        (b"{}\n", "line 1"),
        (WHOLE[:-1][:-10], "line 4"),
        (lines(FIRST, SECOND, end=None), "cut off"),
        (WHOLE.split(b"\n", 1)[1], "first line"),
        (lines(FIRST), "has not the lines"),
        (lines(begin=BEGIN | {"steps": 0}, end=END | {"steps": 0}), "has not the lines"),
        (WHOLE + WHOLE, "has not the lines"),
        (lines(FIRST, SECOND, begin=BEGIN | {"format": "stateroom-trajectory/3"}), "does not know"),
        (NO_VIEW, "without what is stored"),
        (lines(SECOND, FIRST), "does not follow"),
        (lines(FIRST, step("c2", "c1", new=put([1], "append"))), "was something else"),
        (lines(FIRST, step("c2", "c1", gone=put([1], "append"))), "was something else"),
        (lines(FIRST, step("c2", "c1", new=ChannelChange(kind="remove"))), "was something else"),
        (lines(FIRST, step("c2", "c1", new=ChannelChange(kind="version"))), "was something else"),
        (WHOLE.replace(b'"kind":"append"', b'"kind":"prepend"'), "line 3"),
    ],
)
def test_what_is_no_whole_fixture_is_refused_by_what_is_wrong(content, said):
    with pytest.raises(FixtureUnreadable, match=said):
        Fixture.parse(content)


WHOLE_BEGIN = BEGIN | {"format": "stateroom-trajectory/2", "namespaces": 2}


def of(namespace: str, each: FixtureStep) -> FixtureStep:
    return msgspec.structs.replace(each, namespace=namespace)


def test_a_whole_thread_is_read_namespace_by_namespace_and_written_as_it_was_read(tmp_path):
    content = lines(of("research", step(n=put([7]))), of("", step(n=put([1]))), begin=WHOLE_BEGIN)
    fixture = Fixture.parse(content)
    assert (fixture.is_whole, fixture.namespaces) == (True, ["research", ""])
    assert [(each.namespace, state) for each, state in fixture.states()] == [("research", {"n": [7]}), ("", {"n": [1]})]
    fixture.write(tmp_path / "f.jsonl")
    written = (tmp_path / "f.jsonl").read_bytes()
    assert b"".join(Fixture.parse(written).lines()) == written
    assert "namespaces=2" in repr(fixture)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((of("", FIRST), of("", SECOND)), "namespaces that it says"),
        ((of("a", FIRST), of("b", SECOND)), "does not follow"),
    ],
)
def test_a_whole_thread_whose_namespaces_do_not_fit_is_refused(steps, said):
    with pytest.raises(FixtureUnreadable, match=said):
        Fixture.parse(lines(*steps, begin=WHOLE_BEGIN))


def test_a_namespace_that_comes_twice_is_refused():
    steps = (of("a", FIRST), of("b", FIRST), of("a", FIRST))
    content = lines(*steps, begin=WHOLE_BEGIN | {"steps": 3}, end=END | {"steps": 3})
    with pytest.raises(FixtureUnreadable, match="namespaces that it says"):
        Fixture.parse(content)


def test_a_file_from_before_steps_said_their_namespace_is_read():
    """As this project wrote them at first, byte by byte."""
    content = (
        b'{"type":"begin","format":"stateroom-trajectory/1","view":"channels","thread_id":"trip","namespace":"research",'
        b'"checkpoint_id":"c1","steps":1}\n'
        b'{"type":"step","checkpoint_id":"c1","parent_id":null,"step":0,"status":"done",'
        b'"created_at":"2026-11-25T08:00:00Z","source":null,"agent":null,"run_id":null,"state_schema":null,'
        b'"state_version":null,"model":null,"usage":null,"metadata":{},"delta_channels":[],'
        b'"changes":{"n":{"kind":"set","version":1,"data":"Bw=="}},"writes":[]}\n'
        b'{"type":"end","checkpoint_id":"c1","status":"done","steps":1}\n'
    )
    fixture = Fixture.parse(content)
    assert (fixture.namespace, fixture.namespaces, fixture.is_whole) == ("research", ["research"], False)
    assert [state for _, state in fixture.states()] == [{"n": 7}]


def test_a_value_that_is_not_what_its_encoding_says_is_refused():
    damaged = step(n=ChannelChange(kind="set", data=b"\xc1"))
    fixture = Fixture.parse(lines(damaged, begin=BEGIN | {"steps": 1}, end=END | {"steps": 1}))
    with pytest.raises(FixtureUnreadable, match="no msgpack"):
        list(fixture.states())


def test_members_of_a_newer_gateway_are_passed_over():
    newer = lines(FIRST, SECOND).replace(b'{"type": "begin"', b'{"new": 1, "type": "begin"')
    assert len(Fixture.parse(newer).steps) == 2
