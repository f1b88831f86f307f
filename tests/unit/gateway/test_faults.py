"""A body or query with several faults is told all of them at once, and one that is as it should be none."""

import json
import re
from copy import deepcopy
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import wire
from gateway.admission import limits
from gateway.admission.slices import finish
from gateway.bodies import codec, faults
from gateway.bodies.scanning import Format, Values, scan
from gateway.bodies.validation import explain
from gateway.documents import examples
from gateway.http.exchange import parse_query
from gateway.problems import InvalidRequest, pointer
from gateway.routes import GROUPS
from gateway.routes.checkpoints.verbs import ChannelHistoryQuery, SearchFilter

SAVE = "/v1/threads/t/checkpoints"
SECRET = "s3cret"
MANY = limits.VALUES_MAX - 20
BODIES = {
    route.operation.name: route.operation.body
    for found in GROUPS.values()
    for route in found
    if route.operation.body is not None
}

# Everything that can be wrong with a save, each with the member that it is about.
WRONG: dict[str, Any] = {
    "status": SECRET,
    "step": SECRET,
    "fork": None,
    "source": f"{SECRET} {SECRET}",
    "agent": "",
    "run_id": SECRET * 100,
    "stae": SECRET,
    "usage": {"input_tokens": -1, "output_tokens": 1.5},
    "model": {"seed": SECRET, "color": SECRET},
    "delta_channels": ["a", 5, SECRET + "\0"],
    "state_holes": {"a": [0, -1]},
    "channels": {"a/b": {"version": [], "holes": [0, SECRET]}, "c": SECRET},
    "changes": {"append": {"x": SECRET}},
}
POINTERS = [
    "/status", "/step", "/fork", "/source", "/agent", "/run_id", "/stae", "/usage/input_tokens", "/usage/output_tokens",
    "/model/seed", "/model/color", "/model/name", "/delta_channels/1", "/delta_channels/2", "/state_holes/a/1",
    "/channels/a~1b/version", "/channels/a~1b/holes/1", "/channels/c", "/changes/append/x",
]  # fmt: skip


def packed(name: Format, tree: Any) -> bytes:
    return json.dumps(tree).encode() if name == "json" else msgpack.packb(tree)


def refusal(name: Format, body: bytes, shape: Any = wire.checkpoints.SaveRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        codec.decode_body(name, body, shape)
    return refused.value


def pointers(refused: InvalidRequest) -> list[Any]:
    return [fault.pointer for fault in refused.faults]


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_every_fault_of_a_body_is_told_with_its_member_in_our_words(name: Format) -> None:
    refused = refusal(name, packed(name, WRONG))
    assert pointers(refused) == POINTERS
    assert str(refused).endswith(f"; errors has all {len(POINTERS)} faults")
    assert refused.limit == "NAME_BYTES_MAX"  # of /run_id
    for fault in refused.faults:
        assert not re.search(rf"`|Expected|encoded|{SECRET}", fault.detail), fault
        assert re.search(r" must | is required$|^unknown member$", fault.detail), fault


def test_one_fault_is_told_as_the_detail_itself() -> None:
    refused = refusal("json", b'{"state":{},"step":"x"}')
    assert str(refused) == refused.faults[0].detail == "step must be an integer, not text"


def test_what_is_in_a_map_is_called_by_the_maps_name_and_pointed_at_by_its_own() -> None:
    [fault] = refusal("json", b'{"channels":{"agent":"secret"}}').faults
    assert fault == wire.problems.Fault(
        detail="what is in channels must be an object, not text", pointer="/channels/agent"
    )
    [fault] = refusal("json", b'{"channels":{"":{}}}').faults
    assert fault == wire.problems.Fault(detail="a name in channels must have 1 to 255 characters", pointer="/channels")


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_name_that_may_be_content_is_in_no_pointer(name: Format) -> None:
    long = SECRET * 100
    refused = refusal(name, packed(name, {long: 1, "ä": 1, "model": {long: 1}, "channels": {long: 5}}))
    assert pointers(refused) == ["", "/model", "/model/name", "/channels"]
    assert SECRET not in "".join(fault.detail for fault in refused.faults)


@pytest.mark.parametrize("count", [limits.FAULTS_MAX, limits.FAULTS_MAX + 1, 10_000])
def test_no_more_faults_are_told_than_the_limit_says_and_it_is_said_that_there_are_more(count: int) -> None:
    refused = refusal("json", packed("json", {"delta_channels": [""] * count}))
    assert pointers(refused) == [f"/delta_channels/{index}" for index in range(limits.FAULTS_MAX)]
    assert ("and there are more" in str(refused)) == (count > limits.FAULTS_MAX)


def test_a_list_that_is_too_long_is_told_beside_what_is_wrong_in_it() -> None:
    refused = refusal("json", packed("json", {"searchable": ["a"] * 16 + [""]}), wire.schemas.StateSchemaDefinition)
    assert pointers(refused) == ["/searchable", "/searchable/16"]


def test_whole_numbers_with_a_point_are_no_faults_beside_others() -> None:
    refused = refusal("json", b'{"step":5.0,"usage":{"input_tokens":1e2,"cost_micros":1.5},"fork":1}')
    assert pointers(refused) == ["/usage/cost_micros", "/fork"]


def test_maps_whose_keys_are_no_text_are_told_with_the_rest() -> None:
    refused = refusal("msgpack", msgpack.packb({"metadata": {"a": {1: 2}}, "channels": {"a": {1: 2}}, "step": SECRET}))
    assert pointers(refused) == ["/metadata", "/channels/a", "/step"]


def test_what_the_walk_does_not_see_is_told_all_the_same() -> None:
    """A map of MessagePack that names a member twice: the validator refuses the first one, the walk sees the last."""
    model = b"\x83" + b"".join(msgpack.packb(each) for each in ("seed", "x", "seed", 1, "name", "m"))
    assert pointers(refusal("msgpack", b"\x81" + msgpack.packb("model") + model)) == ["/model/seed"]


def test_a_body_that_names_a_member_twice_is_malformed_before_anything_is_made_of_it() -> None:
    """Of two members that are hashed, a check that sees one of them says nothing."""
    twice = b"\x83" + b"".join(msgpack.packb(each) for each in ("metadata", {"a": {1: 2}}, "step", "x", "metadata", {}))
    with pytest.raises(codec.MalformedBody):
        codec.decode_body("msgpack", twice, wire.checkpoints.SaveRequest)


@pytest.mark.parametrize("body", [b'{"step":"x"', b'{"step":"x"}}', b'{"step":"x","agent":"\xff"}', b'{"step":"x",}'])
def test_a_body_that_does_not_parse_behind_its_first_fault_is_malformed(body: bytes) -> None:
    with pytest.raises(codec.MalformedBody):
        codec.decode_body("json", body, wire.checkpoints.SaveRequest)


# --- the validator and the walk agree ------------------------------------------------------------------------------

_JUNK = st.sampled_from(
    [None, True, -1, 0, 2**70, 1.5, "", SECRET, "x" * 300, "\0", [], [""], [1.5], {}, {"": 1}, {"a": 1}]
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """A body of an operation, with some of its members taken away, put in or replaced."""
    operation = draw(st.sampled_from(sorted(BODIES)))
    tree = deepcopy(examples.body_of(operation))
    for _ in range(draw(st.integers(0, 5))):
        place = tree
        while True:
            steps = [*place] if isinstance(place, dict) else [*range(len(place))]
            step = draw(st.sampled_from([*steps, "unknown"])) if steps else "unknown"
            if step == "unknown":
                place.update({step: 1}) if isinstance(place, dict) else place.append(deepcopy(draw(_JUNK)))
            elif isinstance(place[step], (dict, list)) and draw(st.booleans()):
                place = place[step]
                continue
            elif draw(st.integers(0, 3)):
                place[step] = deepcopy(draw(_JUNK))
            else:
                del place[step]
            break
    return operation, tree


@pytest.mark.parametrize("name", ["json", "msgpack"])
@given(bodies())
def test_what_the_validator_tells_first_is_among_all_faults_and_a_valid_body_has_none(
    name: Format, drawn: tuple[str, Any]
) -> None:
    operation, tree = drawn
    shape = BODIES[operation]
    try:
        body = packed(name, tree)
    except OverflowError:  # MessagePack has no such integer
        return
    decode = (msgspec.json if name == "json" else msgspec.msgpack).decode
    try:
        decode(body, type=shape)
    except msgspec.ValidationError as error:
        first = explain(error, shape)
        with pytest.raises(InvalidRequest) as refused:
            finish(faults.check_shape(name, body, shape))
        told = pointers(refused.value)
        if "[...]" in str(error):  # then the validator's path ends at the map
            assert any(each.startswith(pointer(*first.steps)) for each in told)
        else:
            assert (pointer(*first.steps), first.what) in [
                (fault.pointer, fault.detail) for fault in refused.value.faults
            ]
        return
    finish(faults.check_shape(name, body, shape))


@pytest.mark.parametrize("operation", BODIES)
def test_the_example_of_every_operation_has_no_fault(operation: str) -> None:
    finish(faults.check_shape("json", packed("json", examples.body_of(operation)), BODIES[operation]))


# --- the worst -----------------------------------------------------------------------------------------------------

# As many values as there may be, and the only fault at the end.
WORST: dict[str, tuple[Any, bytes]] = {
    "numbers": (wire.checkpoints.SaveRequest, b'{"channels":{"a":{"holes":[' + b"0," * MANY + b"-1]}}}"),
    "whole numbers": (wire.checkpoints.SaveRequest, b'{"channels":{"a":{"holes":[' + b"5.0," * MANY + b"-1]}}}"),
    "names": (wire.checkpoints.SaveRequest, b'{"delta_channels":[' + b'"a",' * MANY + b'""]}'),
    "maps": (
        wire.checkpoints.SaveRequest,
        b'{"channels":{' + b",".join(b'"%d":{}' % each for each in range(MANY // 2)) + b'},"x":1}',
    ),
    "writes": (wire.checkpoints.WritesRequest, b'{"writes":[' + b'{"channel":"a","idx":0},' * (MANY // 5) + b"{}]}"),
    "unknown members": (
        wire.checkpoints.SaveRequest,
        ("{" + ",".join(f'"ä{each}":0' for each in range(MANY // 2)) + "}").encode(),
    ),
}


def slices_of(shape: Any, body: bytes) -> int:
    """How often others may go first until a body is refused."""
    slices: list[None] = []
    with pytest.raises(InvalidRequest):
        slices.extend(faults.check_shape("json", body, shape))
    return len(slices)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORST)
def test_as_many_values_as_allowed_are_looked_at_in_slices(name: str) -> None:
    shape, body = WORST[name]
    finish(scan("json", body, Values(len(body))))  # it is legal
    assert slices_of(shape, body) >= MANY // 5 // 4_000 * 2


def test_nothing_is_looked_at_behind_one_fault_more_than_are_told() -> None:
    body = b'{"delta_channels":[' + b'"",' * MANY + b'""]}'
    work = faults.check_shape("json", body, wire.checkpoints.SaveRequest)
    with pytest.raises(InvalidRequest):
        next(work)
    assert list(work) == []


def test_large_values_are_each_a_slice_of_their_own() -> None:
    data = b"A" * (4 * 1024 * 1024)
    body = b'{"channels":{' + b",".join(b'"%d":{"data":"%b"}' % (each, data) for each in range(7)) + b'},"x":1}'
    assert slices_of(wire.checkpoints.SaveRequest, body) >= 7


# --- over HTTP -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["json", "msgpack"])
async def test_one_answer_names_every_fault_of_a_body(call, store, name) -> None:
    async with call() as client:
        answer = await client.post(SAVE, content=packed(name, WRONG), headers={"Content-Type": codec.MEDIA_TYPES[name]})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid-request")
    assert [error["pointer"] for error in problem["errors"]] == POINTERS
    assert SECRET not in answer.text
    assert store.checkpoints.saves == []


async def test_one_answer_names_every_parameter_that_is_wrong(call) -> None:
    query = "limit=0&view=all&since=1700000000&step=x&step=1&status=null&nonsense=1&run_id=r"
    async with call() as client:
        answer = await client.get(f"/v1/checkpoints?{query}")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid-request")
    assert {error["parameter"]: error["detail"] for error in problem["errors"]} == {
        "since": "since must be a time as RFC 3339 has it, with a zone, such as 2026-03-01T09:00:00Z",
        "step": "the parameter is given twice",
        "status": "must be a value; leave it out to filter by none",
        "nonsense": problem["errors"][3]["detail"],
        "limit": "limit must be 1 to 1,000",
        "view": "view must be one of channels, none, state",
    }
    assert problem["detail"].endswith("; errors has all 6 faults")


def test_a_parameter_that_is_missing_is_told_with_the_others() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_query(b"pieces=x", ChannelHistoryQuery)
    assert [(fault.parameter, fault.detail) for fault in refused.value.faults] == [
        ("channel", "channel is required"),
        ("pieces", "pieces must be one of refs, resolved"),
    ]


def test_of_parameters_that_nobody_knows_no_more_are_told_than_the_limit_says() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_query("&".join(f"p{each}=1" for each in range(1000)).encode(), SearchFilter)
    assert len(refused.value.faults) == limits.FAULTS_MAX
    assert str(refused.value).endswith(f"the first {limits.FAULTS_MAX} faults, and there are more")
