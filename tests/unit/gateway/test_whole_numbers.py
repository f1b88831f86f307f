"""``5.0`` is an integer wherever a body has one, and stays what it is wherever the value is somebody else's."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway import wire
from gateway.admission.slices import finish
from gateway.bodies import codec
from gateway.bodies.scanning import Values
from gateway.documents import examples
from gateway.problems import InvalidRequest
from gateway.routes import GROUPS
from gateway.routing.operations import Operation
from gateway.wire.items.batches import ItemBatch

BODIES = {
    route.operation.name: route.operation
    for found in GROUPS.values()
    for route in found
    if route.operation.body is not None
}


def read(text: str, shape: Any = wire.checkpoints.SaveRequest) -> tuple[Any, bytes]:
    body = text.encode()
    return finish(codec.read_body("json", body, shape, Values(len(body))))


@pytest.mark.parametrize("written", ["5", "5.0", "5e0", "5.000", "50e-1", "0.5E+1"])
def test_a_whole_number_is_the_integer_however_it_is_written(written: str) -> None:
    request, body = read(f'{{"state":{{}},"step":{written},"usage":{{"input_tokens":{written}}}}}')
    assert (request.step, request.usage.input_tokens) == (5, 5)
    # What makes a repeat the same request is the same, too.
    assert body == b'{"state":{},"step":5,"usage":{"input_tokens":5}}'


@pytest.mark.parametrize(
    "written", ["5.5", "1e-1", "9007199254740993.0", "9007199254740992.5", "1e300", "5." + "0" * 100, "1e-999999999"]
)
def test_what_is_no_whole_number_or_not_exact_is_refused(written: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(f'{{"state":{{}},"step":{written}}}')
    assert refused.value.faults == [
        wire.problems.Fault(
            detail="step must be an integer, not a float; in JSON, a whole number up to 2^53 may have a point or an "
            "exponent",
            pointer="/step",
        )
    ]


@pytest.mark.parametrize("written", ["1e400", "1e99999999999999999999"])
def test_a_number_that_nothing_holds_is_refused(written: str) -> None:
    with pytest.raises(InvalidRequest, match="step must be within the range of a 64-bit float"):
        read(f'{{"state":{{}},"step":{written}}}')


def test_the_largest_that_is_exact_is_taken() -> None:
    assert read('{"state":{},"usage":{"input_tokens":9007199254740992.0}}')[0].usage.input_tokens == 2**53


def test_values_of_a_state_and_members_that_are_numbers_stay_as_they_came() -> None:
    state = '{"a" : 5.0, "step":1e0,"deep":[{"seed": 2.0}]}'
    request, _ = read(
        f'{{"state":{state},"step":1.0,"model":{{"name":"m","temperature":1.0,"seed":-0.0}},"metadata":{{"n":5.0}}}}'
    )
    assert {name: bytes(value) for name, value in request.state.items()} == {
        "a": b"5.0", "step": b"1e0", "deep": b'[{"seed": 2.0}]',
    }  # fmt: skip
    assert (request.step, request.model.seed) == (1, 0)
    assert isinstance(request.model.temperature, float)
    assert isinstance(request.metadata["n"], float)


def test_a_channels_version_stays_the_float_that_its_program_counts_in() -> None:
    request, _ = read('{"channels":{"c":{"version":5.0,"data":"kQE=","holes":[0.0, 1e0]}},"step":2.0}')
    assert isinstance(request.channels["c"].version, float)
    assert (request.channels["c"].holes, request.step) == ([0, 1], 2)


def test_messagepack_has_two_kinds_of_numbers() -> None:
    body = msgspec.msgpack.encode({"state": {}, "step": 5.0})
    with pytest.raises(InvalidRequest, match="step must be an integer, not a float"):
        codec.decode_body("msgpack", body, wire.checkpoints.SaveRequest)


@pytest.mark.parametrize(
    ("text", "pointer"),
    [('{"state":{},"step":5.0,"stae":1}', "/stae"), ('{"state":{},"step":5.0,"usage":{"input_tokens":-1.0}}', None)],
)
def test_whatever_else_is_wrong_is_still_refused(text: str, pointer: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(text)
    assert refused.value.faults[0].pointer == (pointer or "/usage/input_tokens")


@pytest.mark.parametrize("text", ['{"step":5.0', '{"step":5.0}x', '{"step":5.0}\x0b', '{"step":5.0,"step":6}'])
def test_a_body_that_is_no_json_is_not_made_one(text: str) -> None:
    with pytest.raises(codec.MalformedBody):
        read(text)


def _with_points(text: str) -> str:
    """The same JSON, as who has floats only might write it."""
    return json.dumps(json.loads(text, parse_int=float))


def _integers(kind: Any) -> Iterator[Any]:
    for each in get_args(kind):
        yield from _integers(each)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from _integers(field.type)
    elif kind is int:
        yield kind


@pytest.mark.parametrize("name", [name for name, one in BODIES.items() if [*_integers(one.body)]])
def test_every_body_with_integers_takes_them_with_a_point(name: str) -> None:
    operation: Operation = BODIES[name]
    example = examples.body_of(name)
    plain = json.dumps(example)
    wanted = codec.decode_body("json", plain.encode(), operation.body)
    found = codec.decode_body("json", _with_points(plain).encode(), operation.body)
    if name in {"save_checkpoint", "put_writes", "compact_thread"}:  # their values are raw
        assert found.__struct_fields__ == wanted.__struct_fields__
    else:
        assert _comparable(found) == _comparable(wanted)


def _comparable(content: Any) -> Any:
    """A body whose raw values, which are somebody else's and stay as they came, are compared as what they say."""
    if isinstance(content, Raw):
        return json.loads(bytes(content))
    if isinstance(content, msgspec.Struct):
        return {name: _comparable(getattr(content, name)) for name in content.__struct_fields__}
    if isinstance(content, list):
        return [_comparable(each) for each in content]
    return content


def test_a_value_in_a_struct_of_a_list_stays_as_it_came() -> None:
    text = (
        '{"writes":[{"path":["p"],"key":"k","value":{"n":5.0,"ttl_seconds":1e0},"ttl_seconds":60.0}],'
        '"searches":[{"filter":{"limit":{"$gt":1.0}},"limit":2.0}]}'
    )
    batch = codec.decode_body("json", text.encode(), ItemBatch)
    (write,), (search,) = batch.writes, batch.searches
    assert (bytes(write.value), write.ttl_seconds) == (b'{"n":5.0,"ttl_seconds":1e0}', 60)
    assert (bytes(search.filter), search.limit) == (b'{"limit":{"$gt":1.0}}', 2)


@given(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
def test_only_numbers_that_are_integers_are_taken_for_them(whole: int, number: float) -> None:
    if -(2**31) <= whole < 2**31:
        assert read(f'{{"state":{{}},"step":{float(whole)!r}}}')[0].step == whole
    if number.is_integer() and -(2**31) <= number < 2**31:
        assert read(f'{{"state":{{}},"step":{number!r}}}')[0].step == int(number)
    else:
        with pytest.raises(InvalidRequest):
            read(f'{{"state":{{}},"step":{number!r}}}')


def test_a_body_of_many_numbers_is_worked_on_in_slices() -> None:
    holes = ",".join(["0.0"] * 9_000)
    body = ('{"channels":{' + ",".join(f'"c{n}":{{"holes":[{holes}]}}' for n in range(10)) + "}}").encode()
    work = codec.read_body("json", body, wire.checkpoints.SaveRequest, Values(len(body)))
    scanned = len(body) // (64 * 1024) + 1
    assert sum(1 for _ in work) >= scanned + 90_000 // 5_000
