"""Long texts of JSON become what a parser and an encoder would make of them at once, in slices."""

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from gateway.admission.slices import finish
from gateway.bodies import codec
from gateway.bodies.long_texts import LONG_TEXT_BYTES_MIN, set_aside
from gateway.problems import MalformedBody
from storage.errors import InvalidState

LONG = LONG_TEXT_BYTES_MIN

UNITS = [
    b"a", "é".encode(), "€".encode(), "😀".encode(), rb"\"", rb"\\", rb"\/", rb"\n", rb"\u0041", rb"\u00e9", rb"\u20ac",
    rb"\ud83d\ude00", b" ", b"$", b"[", rb"\u0000",
]  # fmt: skip


def value_in(text):
    return finish(codec.value_in("json", Raw(text), "/a"))


def at_once(text):
    return msgspec.msgpack.encode(msgspec.json.decode(text))


def long(unit, shift=0):
    return b'"' + b"x" * shift + unit * (LONG // len(unit) + 1) + b'"'


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("shift", [0, 1, 2, 3, 5, 7])
def test_a_long_text_is_cut_nowhere_else_than_between_characters(unit, shift):
    text = long(unit, shift)
    assert value_in(text).data == at_once(text)


def test_long_texts_are_found_wherever_they_stand():
    one, other, name = long(rb"\u0041"), long("é".encode()), long(b"n")
    text = b'[1, "short", {"a": ' + one + b', "b": [' + other + b"], " + name + b': {"c":"\\"' + b'"}}, ' + one + b"]"
    assert len(finish(set_aside(text)).rest) < 500
    assert value_in(text).data == at_once(text)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.integers(-5, 5) | st.text(max_size=5) | st.sampled_from(["\x01", "é", "😀", '"\\']).map(lambda u: u * LONG),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\é', max_size=3), inner, max_size=3),
        max_leaves=6,
    )
)  # fmt: skip
def test_any_value_is_what_it_is_at_once(content):
    text = msgspec.json.encode(content)
    assert value_in(text).data == at_once(text)


def test_no_slice_is_long():
    text = long(b"a" * 1000) + b" "
    work = codec.value_in("json", Raw(b"[" + b",".join([text] * 8) + b"]"), "/a")
    assert sum(1 for _ in work) >= 2 * 8 * LONG // (64 * 1024)


@pytest.mark.parametrize(
    "unit",
    [b"\xff", b"\x80" * 8, b"\xc3", rb"\ud83d", rb"\ude00", rb"\ud83dx", "é".encode()[:1] + b"a", b"\xed\xa0\x80"],
)
def test_what_is_no_text_is_refused(unit):
    with pytest.raises(MalformedBody):
        value_in(b"[" + long(unit) + b"]")


def test_a_value_beyond_64_bits_beside_a_long_text_is_kept_as_it_came():
    text = b"[" + long(b"a") + b", 123456789012345678901234567890]"
    assert (value_in(text).encoding, value_in(text).data) == ("json", text)


@pytest.mark.parametrize("unit", [b"\xff", b"\xc3", rb"\ud83d"])
def test_what_is_no_text_is_refused_beside_a_value_beyond_64_bits_too(unit):
    with pytest.raises(MalformedBody):
        value_in(b"[" + long(unit) + b", 123456789012345678901234567890]")


def test_words_beside_a_long_text_still_mean_what_they_say():
    binary = bytes(range(256)) * (LONG // 128)
    text = msgspec.json.encode([{"$bytes": binary}, "t" * LONG, {"$float": "inf"}])
    assert msgpack.unpackb(value_in(text).data) == [binary, "t" * LONG, float("inf")]


@pytest.mark.parametrize("base64", [b"QUJD" * LONG + b"Q", b"QUI=" * LONG, b"QU!D" * LONG, b"QUJD" * LONG + b"===="])
def test_long_binary_that_is_no_base64_is_refused(base64):
    with pytest.raises(InvalidState):
        value_in(b'{"$bytes":"' + base64 + b'"}')


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_long_binary_may_end_with_padding(count):
    text = msgspec.json.encode({"$bytes": b"a" * (LONG * 3 + count)})
    assert msgpack.unpackb(value_in(text).data) == b"a" * (LONG * 3 + count)
