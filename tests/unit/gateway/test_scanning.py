"""What a body costs is found out before anything is made of it, in time that is linear in its bytes."""

import json
import time

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.admission import limits
from gateway.admission.slices import finish
from gateway.bodies import scanning
from gateway.bodies.scanning import NamedTwice, Values, scan
from storage.errors import LimitExceeded

TIMES_MAX = (
    9.0  # four times the bytes take four times as long; what is quadratic takes sixteen times, and more each time
)
FORMATS = pytest.mark.parametrize("name", ["json", "msgpack"])

trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.text('"\\[]{},: '),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)  # fmt: skip


def packed(name: str, tree: object) -> bytes:
    return msgspec.json.encode(tree) if name == "json" else msgspec.msgpack.encode(tree)


def counted(name: str, data: bytes, depth_max: int | None = limits.DEPTH_MAX) -> int:
    values = Values(limits.VALUES_MAX + 1)
    finish(scan(name, data, values, depth_max=depth_max))
    return values.count


def number_of_values(tree: object) -> int:
    if isinstance(tree, dict):
        return 1 + len(tree) + sum(map(number_of_values, tree.values()))
    return 1 + sum(map(number_of_values, tree)) if isinstance(tree, list) else 1


def depth_of(tree: object) -> int:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@FORMATS
@given(tree=trees)
def test_values_are_counted_as_a_parser_makes_them(name, tree):
    assert counted(name, packed(name, tree), depth_max=None) == number_of_values(tree)


@given(tree=trees, blanks=st.sampled_from([None, 1]), pad=st.integers(0, 40))
@example(tree=["\\" * 9], blanks=None, pad=3)
def test_a_text_is_counted_alike_wherever_its_slices_end(tree, blanks, pad):
    text = json.dumps([tree] * 3, indent=blanks).encode()
    filling = scanning.SLICE_BYTES - pad
    data = b'["' + b"a" * (filling - 5) + b'",' + text + b"]"
    assert counted("json", data, depth_max=None) == 2 + number_of_values([tree] * 3)


@FORMATS
@given(tree=trees, depth_max=st.integers(0, 6))
def test_depth_is_counted_exactly(name, tree, depth_max):
    if depth_of(tree) <= depth_max:
        counted(name, packed(name, tree), depth_max)
    else:
        with pytest.raises(LimitExceeded, match="DEPTH_MAX"):
            counted(name, packed(name, tree), depth_max)


@FORMATS
def test_as_many_values_as_allowed_pass_and_one_more_does_not(name):
    assert counted(name, packed(name, [[]] * (limits.VALUES_MAX - 1))) == limits.VALUES_MAX
    with pytest.raises(LimitExceeded, match="VALUES_MAX"):
        counted(name, packed(name, [[]] * limits.VALUES_MAX))


def test_what_is_in_texts_is_no_tree_and_what_is_beside_them_is_limited():
    counted("json", b'["' + b"1" * (2 * limits.TREE_BYTES_MAX) + b'"]')
    with pytest.raises(LimitExceeded, match="TREE_BYTES_MAX"):
        counted("json", b"[" + b"1" * limits.TREE_BYTES_MAX + b"]")


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'[{"b":{"a":[],"c":{},"a":2}}]',
        b'{"a":1,"\\u0061":2}',
        b'{"":0,"":0}',
        b'{"' + b"n" * 200_000 + b'":1,"' + b"n" * 200_000 + b'":2}',
    ],
    ids=lambda text: text[:20].decode(),
)
def test_an_object_that_names_a_member_twice_is_found(text):
    with pytest.raises(NamedTwice):
        counted("json", text)


def test_the_same_name_in_other_objects_and_as_a_value_is_none_twice():
    counted("json", b'[{"a":"a"},{"a":{"a":["a","a"],"b":"b"}},{"\\\\u0061":1,"a":1,"A":1}]')


HOSTILE = {
    "escaped quotes without an end": lambda size: b"[" * 60 + b'"' + b'\\"' * (size // 2),
    "backslashes": lambda size: b'["' + b"\\" * size,
    "texts that never end": lambda size: b"[" + (b'"a' + b" " * 28) * (size // 30),
    "short texts": lambda size: b"[" + b'"",' * (size // 30) + b'""]' + b" " * (size * 9 // 10),
    "names of one object": lambda size: b"{" + b",".join(b'"%d":0' % n for n in range(size // 20)) + b"}",
    "colons": lambda size: b"[" + b":" * size,
}


def seconds(data: bytes) -> float:
    best = float("inf")
    for _ in range(3):
        begun = time.process_time()
        finish(scan("json", data, Values(0)))
        best = min(best, time.process_time() - begun)
    return best


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_text_takes_time_in_proportion_to_its_length(hostile):
    short, long = hostile(250_000), hostile(1_000_000)
    assert seconds(long) < TIMES_MAX * seconds(short)


@pytest.mark.parametrize(
    ("name", "data", "much"),
    [
        ("json", b"[" + b"[]," * 60_000 + b"[]]", scanning.SLICE_BYTES),
        ("json", b'["' + b"a" * 2_000_000 + b'"]', scanning.TEXT_SLICE_BYTES),
        ("json", b'["' + b'\\"' * 1_000_000 + b'"]', scanning.TEXT_SLICE_BYTES),
        ("json", b"[" + b"1" * 2_000_000 + b"]", scanning.TEXT_SLICE_BYTES),
        ("msgpack", msgpack.packb([[]] * 190_000), scanning.SLICE_VALUES),
    ],
    ids=["containers", "a text", "escapes", "a number", "packed"],
)
def test_a_scan_yields_before_it_has_looked_at_much(name, data, much):
    assert sum(1 for _ in scan(name, data, Values(limits.VALUES_MAX + 1))) >= len(data) // much
