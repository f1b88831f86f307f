"""Large leaves and pointers are found where they are, and looking for them is bounded."""

import json
import time
from uuid import UUID

import msgpack
import pytest

from storage.format.leaves import (
    LEAF_TOKENS_MAX,
    OFFLOAD_BYTES_MIN,
    PLACEHOLDER_BYTES,
    POINTER_TOKENS_MAX,
    find_pointer,
    find_pointers,
    large_leaves,
    may_point,
    names_artifacts,
    placeholder,
    read_placeholder,
)

ARTIFACT = UUID("0190b5a2-0000-7000-8000-000000000001")
OTHER = UUID("0190b5a2-0000-7000-8000-000000000002")
POINTER = f"stateroom:artifact:{ARTIFACT}"


def leaves(value, bytes_min=OFFLOAD_BYTES_MIN):
    data = msgpack.packb(value)
    return [msgpack.unpackb(data[start:end]) for start, end in large_leaves(data, 0, len(data), bytes_min)]


def pointers(value):
    return [(each.artifact_id, each.path) for each in find_pointers("msgpack", msgpack.packb(value))]


@pytest.mark.parametrize("name", [POINTER, POINTER + "/", "stateroom:artifact:", POINTER.upper(), "messages", ""])
def test_a_name_points_if_it_is_a_pointer_and_nothing_more(name):
    found = find_pointer(name, "/state")
    assert [(each.artifact_id, each.path) for each in found] == ([(ARTIFACT, "/state")] if name == POINTER else [])
    assert may_point(name) or not found


def test_strings_binaries_and_extensions_are_leaves_wherever_they_are():
    text, binary, extension = "t" * 70_000, b"b" * 100_000, msgpack.ExtType(5, b"e" * 65_536)
    tree = {"role": "user", "content": [{"text": text}, 1.5, None, True, [binary, -7, 2**40, "short"]], "x": extension}
    assert leaves(tree) == [text, binary, extension]
    assert leaves(text) == [text]


@pytest.mark.parametrize("size", [OFFLOAD_BYTES_MIN - 4, OFFLOAD_BYTES_MIN - 3, OFFLOAD_BYTES_MIN])
def test_a_leaf_counts_with_its_header(size):
    data = msgpack.packb(b"x" * size)
    assert len(leaves(b"x" * size)) == (len(data) >= OFFLOAD_BYTES_MIN)


def test_short_leaves_however_many_are_none():
    assert leaves([["x" * 60_000] * 10, {str(number): "y" * 100 for number in range(2000)}]) == []


def test_what_comes_after_the_bound_stays_where_it_is():
    large = b"x" * OFFLOAD_BYTES_MIN
    assert leaves([[0] * (LEAF_TOKENS_MAX - 10), large]) == [large]
    assert leaves([[0] * LEAF_TOKENS_MAX, large]) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xdb\xff\xff\xff\xff" + b"x" * 70_000,
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 70_000,
        b"\xc1" * 70_000,
        b"\x92\xdb\x00\x01\x11\x71" + b"x" * 70_000,
        b"\xdb\x00" + b"x" * 70_000,
    ],
    ids=["longer than it is", "more than there are", "no such object", "cut short", "a cut header"],
)
def test_what_does_not_parse_has_no_leaves_beyond_its_end(data):
    assert all(end <= len(data) for _, end in large_leaves(data, 0, len(data), 100))


def test_a_placeholder_is_an_object_that_any_reader_passes_over():
    data = placeholder(bytes(range(17)), 123_456)
    assert len(data) == PLACEHOLDER_BYTES
    assert read_placeholder(b"??" + data, 2) == (bytes(range(17)), 123_456)
    assert msgpack.unpackb(data).code == 0x68
    for at in (-1, 0, 1, 3):
        assert read_placeholder(b"??" + data, at) is None


def test_pointers_are_found_with_their_path():
    other = f"stateroom:artifact:{OTHER}"
    assert pointers({"a/b": [1, {"x~y": POINTER}], "c": other}) == [(ARTIFACT, "/a~1b/1/x~0y"), (OTHER, "/c")]
    assert pointers(POINTER) == [(ARTIFACT, "")]
    assert pointers([POINTER, POINTER]) == [(ARTIFACT, "/0")]
    assert pointers({POINTER: 1}) == [(ARTIFACT, f"/{POINTER}")]
    assert pointers({"name": "x", 5: {"y": [POINTER]}, "z": 0}) == [(ARTIFACT, "/5/y/0")]


def test_only_a_whole_string_is_a_pointer():
    for text in (POINTER + " ", " " + POINTER, POINTER.upper(), POINTER[:-1], POINTER.replace("-", "")):
        assert pointers({"a": text}) == []
    assert pointers({"a": POINTER.encode()}) == []
    assert pointers({"a": msgpack.packb(POINTER)}) == []


def test_an_extension_is_looked_into_and_is_where_the_path_ends():
    message = msgpack.ExtType(5, msgpack.packb(["langchain", "HumanMessage", {"content": [{"url": POINTER}]}]))
    assert pointers({"messages": [1, message]}) == [(ARTIFACT, "/messages/1")]
    nested = msgpack.ExtType(5, msgpack.packb([msgpack.ExtType(6, msgpack.packb(POINTER))]))
    assert pointers([nested]) == [(ARTIFACT, "/0")]
    text = msgpack.ExtType(5, msgpack.packb({"content": "see " + POINTER}))
    assert pointers([text]) == []


def test_in_an_extension_that_holds_something_else_whatever_looks_like_a_pointer_counts():
    assert pointers([msgpack.ExtType(5, b"\xc1" + POINTER.encode())]) == [(ARTIFACT, "/0")]
    assert pointers([msgpack.ExtType(5, msgpack.packb(1) + msgpack.packb(POINTER))]) == [(ARTIFACT, "/0")]


def test_pointers_in_json_are_whole_strings_too():
    value = {"a": [{"b": POINTER}], "c": f"see {POINTER}", "d": f'"{POINTER}', "n": 1 << 70}
    found = find_pointers("json", json.dumps(value).encode())
    assert [(each.artifact_id, each.path) for each in found] == [(ARTIFACT, "/a/0/b")]
    assert find_pointers("bytes", POINTER.encode()) == []


def test_a_pointer_in_json_cannot_hide_behind_escapes():
    for spelled in (POINTER.replace("s", "\\u0073", 1), "".join(f"\\u{ord(each):04X}" for each in POINTER)):
        data = f'{{"a":["{spelled}"]}}'.encode()
        assert json.loads(data) == {"a": [POINTER]}
        assert [(each.artifact_id, each.path) for each in find_pointers("json", data)] == [(ARTIFACT, "/a/0")]


def test_behind_the_bound_a_pointer_cannot_hide():
    assert pointers([[0] * (POINTER_TOKENS_MAX + 10), POINTER]) == [(ARTIFACT, "/0/199997")]


def test_finding_pointers_is_bounded_in_time_and_answer():
    deep = b"\x91" * 2_000_000 + msgpack.packb(POINTER)
    nested = msgpack.packb(POINTER)
    for _ in range(2000):
        nested = msgpack.packb(msgpack.ExtType(1, nested))
    wide = b"\xdd\x01\x00\x00\x00" + b"\xc0" * (1 << 24) + msgpack.packb(POINTER)
    begun = time.process_time()
    for data in (deep, nested, wide):
        for each in find_pointers("msgpack", data):
            assert each.artifact_id == ARTIFACT
            assert len(each.path) < 1000
    assert [each.artifact_id for each in find_pointers("msgpack", nested)] == [ARTIFACT]
    assert time.process_time() - begun < 5


def test_a_leaf_that_may_hold_a_pointer_is_told_apart():
    assert names_artifacts(msgpack.packb("x" * 70_000 + POINTER))
    assert not names_artifacts(msgpack.packb("x" * 70_000 + "stateroom:artifact:none"))
