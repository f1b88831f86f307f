import base64
import math
import sys

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway import wire
from gateway.admission import limits
from gateway.admission.slices import finish
from gateway.bodies import codec
from gateway.problems import InvalidRequest, MalformedBody, NotAcceptable, UnsupportedMediaType
from storage.errors import InvalidState, LimitExceeded
from storage.model import Value


def shown(name, value: Value) -> Raw:
    return finish(codec.value_out(name, value))


def stored_as(name, raw: Raw, where: str) -> Value:
    return finish(codec.value_in(name, raw, where))


def as_json(value: Value):
    return msgspec.json.decode(bytes(shown("json", value)))


def from_json(tree) -> Value:
    return stored_as("json", Raw(msgspec.json.encode(tree)), "/state/a")


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary())
)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(codec.MARKERS)), inner),
    max_leaves=20,
)


@given(trees)
def test_a_msgpack_value_survives_the_way_through_json(tree):
    packed = msgpack.packb(tree)
    back = stored_as("json", shown("json", Value("msgpack", packed)), "")
    assert back.encoding == "msgpack"
    assert msgpack.unpackb(back.data) == msgpack.unpackb(packed)


@given(st.binary(max_size=64))
def test_any_bytes_in_any_encoding_can_be_shown_and_come_back(data):
    for name in ("json", "msgpack"):
        for encoding in ("msgpack", "json", "foreign"):
            view = bytes(shown(name, Value(encoding, data)))
            if name == "json":
                msgspec.json.decode(view)
            else:
                assert stored_as(name, Raw(view), "").data in {data, view}


def test_msgpack_passes_byte_for_byte():
    data = b"\xcd\x00\x01"  # 1, not spelled as shortly as it could be
    stored = stored_as("msgpack", Raw(data), "")
    assert stored == Value("msgpack", data)
    assert bytes(shown("msgpack", stored)) == data


def test_integers_beyond_64_bits_stay_json():
    stored = from_json([2**70])
    assert stored == Value("json", b"[1180591620717411303424]")
    assert as_json(stored) == [2**70]
    assert msgspec.msgpack.decode(bytes(shown("msgpack", stored))) == {"$encoded": ["json", stored.data]}


def test_what_json_cannot_say_is_said_with_words():
    tree = {1: b"\x00", "n": math.nan, "i": -math.inf, "e": msgpack.ExtType(5, b"x"), "t": msgpack.Timestamp(1)}
    assert as_json(Value("msgpack", msgpack.packb(tree))) == {
        "1": {"$bytes": "AA=="},
        "n": {"$float": "nan"},
        "i": {"$float": "-inf"},
        "e": {"$ext": [5, "eA=="]},
        "t": {"$ext": [-1, base64.b64encode(b"\x00\x00\x00\x01").decode()]},
    }


def test_keys_that_would_collide_as_strings_come_as_a_list_of_pairs():
    assert as_json(Value("msgpack", msgpack.packb({1: "a", "1": "b"}))) == {"$map": [[1, "a"], ["1", "b"]]}


def test_a_key_that_comes_twice_is_shown_twice():
    assert as_json(Value("msgpack", b"\x82\xa1a\x01\xa1a\x02")) == {"$map": [["a", 1], ["a", 2]]}


@pytest.mark.parametrize("member", ["metadata", "json_schema", "up", "down"])
def test_maps_that_are_read_as_they_are_have_names_only(member):
    keyed = {member: [{(-1, -2): 0}]} if member in {"up", "down"} else {member: {"a": {(-1, -2): 0}}}
    with pytest.raises(InvalidRequest) as refused:
        codec.decode_body("msgpack", msgpack.packb(keyed), wire.checkpoints.SaveRequest)
    assert refused.value.faults[0].pointer == f"/{member}"


def test_foreign_encodings_come_and_go_in_both_formats():
    foreign = Value("pickle-not", b"\x80\x04")
    assert as_json(foreign) == {"$encoded": ["pickle-not", "gAQ="]}
    for name in ("json", "msgpack"):
        assert stored_as(name, shown(name, foreign), "") == foreign


@pytest.mark.parametrize(
    "tree",
    [
        {"$bytes": "?"},
        {"$bytes": 1},
        {"$ext": [1]},
        {"$ext": [300, ""]},
        {"$float": "x"},
        {"$map": [[{}, 1]]},
        {"$map": [[[{"$map": []}], 1]]},
        {"$map": [[[-1], 1], [[-1], 2]]},
    ],
)
def test_a_misused_word_is_refused_where_it_stands(tree):
    with pytest.raises(InvalidState) as refused:
        from_json([tree])
    assert refused.value.pointer == "/state/a"


def nested(depth: int, name: str) -> bytes:
    return b"[" * depth + b"]" * depth if name == "json" else b"\x91" * (depth - 1) + b"\x90"


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize("depth", [65, 5_000, 200_000])
def test_deep_bodies_exceed_a_limit_and_are_not_internal(name, depth):
    with pytest.raises(LimitExceeded, match="DEPTH_MAX"):
        codec.decode_body(name, nested(depth, name), wire.checkpoints.SaveRequest)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"state":NaN}', b'{"agent":"\xff"}', b'{"state":{}} x', b'{"agent":"\\ud800"}']
)
def test_bodies_that_do_not_parse_are_malformed(body):
    with pytest.raises(MalformedBody):
        codec.decode_body("json", body, wire.checkpoints.SaveRequest)


def test_invalid_utf8_inside_a_channel_is_malformed():
    with pytest.raises(MalformedBody):
        stored_as(
            "json",
            codec.decode_body("json", b'{"state":{"a":"\xff"}}', wire.checkpoints.SaveRequest).state["a"],
            "/state/a",
        )


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"step":"secret"}', "/step"),
        (b'{"status":"secret"}', "/status"),
        (b'{"model":{"name":"m","seed":"secret"}}', "/model/seed"),
        (b'{"channels":{"a":{"data":1}}}', "/channels/a/data"),
        (b'{"surprise":1}', "/surprise"),
    ],
)
def test_a_wrong_member_is_pointed_at_without_its_value(body, pointer):
    with pytest.raises(InvalidRequest) as refused:
        codec.decode_body("json", body, wire.checkpoints.SaveRequest)
    (fault,) = refused.value.faults
    assert fault.pointer == pointer
    assert "secret" not in fault.detail


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "json"),
        (b"*/*", "json"),
        (b"application/msgpack", "msgpack"),
        (b"application/json;q=0.5, application/msgpack", "msgpack"),
        (b"application/*", "json"),
        (b"text/html, */*;q=0.1", "json"),
        (b"application/json;q=0, */*", "msgpack"),
    ],
)
def test_the_best_acceptable_format_answers(accept, expected):
    assert codec.reply_format(accept) == expected


@pytest.mark.parametrize("accept", [b"text/html", b"application/json;q=0", b"application/json;q=high"])
def test_nothing_acceptable_is_refused(accept):
    with pytest.raises(NotAcceptable):
        codec.reply_format(accept)


def test_an_accept_header_that_is_too_long_is_neither_read_nor_remembered():
    longest = b"application/msgpack," + b"a," * ((limits.ACCEPT_BYTES_MAX - 20) // 2)
    assert len(longest) == limits.ACCEPT_BYTES_MAX
    assert codec.reply_format(longest) == "msgpack"
    for accept in (longest + b",", b"*/*" + b" " * limits.ACCEPT_BYTES_MAX):
        held = sys.getrefcount(accept)
        with pytest.raises(NotAcceptable, match="ACCEPT_BYTES_MAX"):
            codec.reply_format(accept)
        assert sys.getrefcount(accept) == held


@pytest.mark.parametrize(("kind", "coding"), [(None, None), (b"text/plain", None), (b"application/json", b"gzip")])
def test_other_media_types_and_compressed_bodies_are_refused(kind, coding):
    with pytest.raises(UnsupportedMediaType):
        codec.body_format(kind, coding)


def test_parameters_of_a_media_type_are_allowed():
    assert codec.body_format(b"Application/JSON; charset=utf-8", None) == "json"
