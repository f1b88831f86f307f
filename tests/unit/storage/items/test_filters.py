"""Filters over values: what they mean, case by case, and what one costs at most."""

import json
import math
import time

import msgpack
import pytest

from storage.encoding import encode_json, encode_msgpack
from storage.errors import InvalidState
from storage.items import filters
from storage.items.filters import (
    ITEM_COMPARED_BYTES_MAX,
    ITEM_FILTER_DEPTH_MAX,
    ITEM_FILTER_VALUES_MAX,
)
from storage.model import Value

VALUE = {
    "kind": "fact", "age": 9, "score": 2.5, "old": True, "young": False, "nothing": None, "tags": ["a", "b"],
    "deep": {"er": {"est": 1}, "n": 10}, "empty": {}, "none": [], "text": "s", "$odd": 1, "a/b": 1, "zero": 0,
    "": "key",
}  # fmt: skip


def matches(wanted, value=VALUE):
    """Whether a value is like this, in both encodings that a map can be stored in; they agree."""
    parsed = filters.parse(wanted, "/filter")
    packed = parsed.matches(Value("msgpack", encode_msgpack(value)))
    assert parsed.matches(Value("json", encode_json(value))) == packed
    return packed


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        # Equality, by the value's kind.
        ({}, True),
        ({"kind": "fact"}, True),
        ({"kind": "fac"}, False),
        ({"age": 9}, True),
        ({"age": 9.0}, True),
        ({"age": "9"}, False),
        ({"score": 2.5}, True),
        ({"old": True}, True),
        ({"old": 1}, False),
        ({"zero": False}, False),
        ({"young": False}, True),
        ({"young": 0}, False),
        ({"tags": ["a", "b"]}, True),
        ({"tags": ["b", "a"]}, False),
        ({"tags": "a"}, False),
        ({"tags": ["a"]}, False),
        ({"none": []}, True),
        ({"none": {}}, False),
        ({"empty": {}}, True),
        ({"empty": []}, False),
        ({"": "key"}, True),
        ({"kind": "fact", "age": 9}, True),
        ({"kind": "fact", "age": 10}, False),
        # What is not there, and null: one of the fifteen differences between reference stores.
        ({"missing": None}, False),
        ({"nothing": None}, True),
        ({"kind": None}, False),
        ({"missing": {"$ne": 1}}, False),
        ({"missing": {"$gt": 1}}, False),
        ({"missing": {"$in": [None]}}, False),
        ({"nothing": {"$ne": 1}}, True),
        ({"nothing": {"$gt": 0}}, False),
        ({"nothing": {"$in": [None]}}, True),
        # Order: numbers with numbers and texts with texts.
        ({"age": {"$gt": 8}}, True),
        ({"age": {"$gt": 9}}, False),
        ({"age": {"$gte": 9}}, True),
        ({"age": {"$lt": 10}}, True),
        ({"age": {"$lt": 9.5}}, True),
        ({"age": {"$lte": 8.99}}, False),
        ({"age": {"$gt": "8"}}, False),
        ({"age": {"$lt": "a"}}, False),
        ({"text": {"$gt": 9}}, False),
        ({"text": {"$gt": "r"}}, True),
        ({"text": {"$lt": "r"}}, False),
        ({"old": {"$gt": 0}}, False),
        ({"old": {"$gte": 1}}, False),
        ({"tags": {"$gt": "a"}}, False),
        ({"deep": {"$gt": 1}}, False),
        ({"age": {"$gt": 8, "$lt": 10}}, True),
        ({"age": {"$gt": 8, "$lt": 9}}, False),
        # Other operators.
        ({"age": {"$eq": 9}}, True),
        ({"age": {"$eq": [9]}}, False),
        ({"age": {"$ne": 9}}, False),
        ({"age": {"$ne": "9"}}, True),
        ({"old": {"$ne": 1}}, True),
        ({"kind": {"$in": ["plan", "fact"]}}, True),
        ({"kind": {"$in": []}}, False),
        ({"tags": {"$in": ["a"]}}, False),
        ({"tags": {"$in": [["a", "b"]]}}, True),
        ({"deep": {"$eq": {"er": {"est": 1}, "n": 10}}}, True),
        ({"deep": {"$eq": {"n": 10}}}, False),
        ({"empty": {"$eq": {}}}, True),
        # Maps are looked into.
        ({"deep": {"n": 10}}, True),
        ({"deep": {"n": {"$gt": 9}}}, True),
        ({"deep": {"er": {"est": 1}}}, True),
        ({"deep": {"er": {"est": 2}}}, False),
        ({"deep": {"er": {"missing": None}}}, False),
        ({"kind": {"er": 1}}, False),
        ({"tags": {"0": "a"}}, False),
        # Joined.
        ({"$and": [{"kind": "fact"}, {"age": 9}]}, True),
        ({"$and": [{"kind": "fact"}, {"age": 8}]}, False),
        ({"$or": [{"kind": "plan"}, {"age": 9}]}, True),
        ({"$or": [{"kind": "plan"}, {"age": 8}]}, False),
        ({"$or": [{"kind": "plan"}, {"$and": [{"age": 9}, {"text": "s"}]}]}, True),
        ({"kind": "fact", "$or": [{"age": 1}]}, False),
        ({"$or": [{}]}, True),
        ({"deep": {"$or": [{"n": 10}]}}, None),
        ({"a/b": 1}, True),
    ],
    ids=json.dumps,
)  # fmt: skip
def test_what_a_filter_means(wanted, found):
    if found is None:
        with pytest.raises(InvalidState):
            matches(wanted)
    else:
        assert matches(wanted) is found


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ([], "/filter"),
        (None, "/filter"),
        ("x", "/filter"),
        ({"$odd": 1}, "/filter/$odd"),
        ({"$not": [{}]}, "/filter/$not"),
        ({"$and": {}}, "/filter/$and"),
        ({"$or": []}, "/filter/$or"),
        ({"$or": [1]}, "/filter/$or/0"),
        ({"$and": [{}, {"a": {"$lt": None}}]}, "/filter/$and/1/a/$lt"),
        ({"a": {"$gt": True}}, "/filter/a/$gt"),
        ({"a": {"$gt": []}}, "/filter/a/$gt"),
        ({"a": {"$in": "abc"}}, "/filter/a/$in"),
        ({"a": {"$regex": "x"}}, "/filter/a/$regex"),
        ({"a": {"$eq": 1, "b": 2}}, "/filter/a"),
        ({"a/b~c": {"$x": 1}}, "/filter/a~1b~0c/$x"),
        ({b"a": 1}, "/filter"),
        ({"a": {b"$gt": 1}}, "/filter"),
        ({"a": {"$eq": {b"b": 1}}}, "/filter"),
    ],
    ids=repr,
)
def test_what_is_no_filter_is_refused_where_it_is_wrong(wanted, pointer):
    with pytest.raises(InvalidState) as refused:
        filters.parse(wanted, "/filter")
    assert refused.value.pointer.startswith(pointer)


def test_a_filter_has_bounds():
    deep = {"a": 1}
    for _ in range(ITEM_FILTER_DEPTH_MAX - 2):
        deep = {"a": deep}
    filters.parse(deep, "")
    with pytest.raises(InvalidState, match="deep"):
        filters.parse({"a": deep}, "")
    filters.parse({"a": {"$in": [0] * (ITEM_FILTER_VALUES_MAX - 3)}}, "")
    with pytest.raises(InvalidState, match="values"):
        filters.parse({"a": {"$in": [0] * (ITEM_FILTER_VALUES_MAX - 2)}}, "")


def test_numbers_that_only_one_encoding_has():
    assert filters.parse({"a": {"$gt": 1}}, "").matches(Value("msgpack", msgpack.packb({"a": math.inf})))
    for wanted in ({"a": {"$gt": 1}}, {"a": {"$lte": 1}}, {"a": math.nan}):
        assert not filters.parse(wanted, "").matches(Value("msgpack", msgpack.packb({"a": math.nan})))
    large = Value("json", b'{"a":123456789012345678901234567890}')
    assert filters.parse({"a": {"$gt": 2**63}}, "").matches(large)
    assert filters.parse({"a": 123456789012345678901234567890}, "").matches(large)


def test_binary_and_extensions_are_equal_to_themselves():
    value = Value("msgpack", msgpack.packb({"b": b"x", "e": msgpack.ExtType(5, b"y"), "t": msgpack.Timestamp(1)}))
    assert filters.parse({"b": b"x", "e": msgpack.ExtType(5, b"y"), "t": msgpack.Timestamp(1)}, "").matches(value)
    assert not filters.parse({"b": "x"}, "").matches(value)
    assert not filters.parse({"e": {"$gt": 1}}, "").matches(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x01", b"\x91\x80", b"\xc1", b"\x81\xa1a", b"\x82\xa1a\x01", b"\x81\x01\x01", b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a" + b"\x91" * 100_000, b"\x81\xa1a" + b"\x81\xa1a" * 100_000, b"\x81\xa1\xff\x01",
        b"\x81\xc4\x01a\x01",
    ],
    ids=lambda data: data[:8].hex(),
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["msgpack", "json", "pickle"])
def test_what_is_no_map_of_texts_matches_nothing_and_fails_nowhere(data, encoding):
    value = Value(encoding, data)
    for wanted in ({"a": 1}, {"a": {"b": 1}}, {"a": [1]}, {"a": {"$gt": "x"}}):
        assert not filters.parse(wanted, "").matches(value)


def test_of_two_members_of_one_name_the_last_counts():
    value = Value("msgpack", b"\x82\xa1a\x01\xa1a\x02")
    assert filters.parse({"a": 2}, "").matches(value)
    assert not filters.parse({"a": 1}, "").matches(value)


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_large_list_equals_nothing_but_a_large_map_is_looked_into(encoding):
    encode = encode_msgpack if encoding == "msgpack" else encode_json
    large = {"a": [0] * (ITEM_COMPARED_BYTES_MAX + 8), "b": {"c": 1, "d": "x" * ITEM_COMPARED_BYTES_MAX}}
    value = Value(encoding, encode(large))
    assert not filters.parse({"a": [0]}, "").matches(value)
    assert filters.parse({"a": {"$ne": [0]}}, "").matches(value)
    assert filters.parse({"b": {"c": 1}}, "").matches(value)
    assert filters.parse({"b": {"d": {"$gt": "w"}}}, "").matches(value)


def test_a_member_is_decoded_once_however_many_conditions_look_at_it():
    value = Value("msgpack", encode_msgpack({"a": [[]] * (ITEM_COMPARED_BYTES_MAX - 16)}))
    one = filters.parse({"a": {"$eq": [[], 0]}}, "")
    many = filters.parse({"$or": [{"a": {"$eq": [[], number]}} for number in range(160)]}, "")
    assert min(_seconds(many, value) for _ in range(3)) < 20 * min(_seconds(one, value) for _ in range(3))


def _seconds(wanted, value):
    begun = time.process_time()
    assert not wanted.matches(value)
    return time.process_time() - begun
