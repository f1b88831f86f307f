"""Stored MessagePack is shown as JSON in slices, without a tree, and in time that is linear in its values."""

import itertools
import time

import msgpack
import msgspec
import pytest
from msgspec import Raw

from gateway.admission.slices import Work, finish
from gateway.bodies import codec, json_views
from gateway.bodies.json_views import NotPlain, json_view
from storage.model import Value

DOUBLED_TIMES_MAX = 3.0  # twice the keys take twice the time, where colliding ones in a table take four times


def colliding_keys(count: int) -> list[list[int]]:
    """Different lists that all have one hash as tuples: Python's hash of -1 is that of -2."""
    return [list(key) for key in itertools.islice(itertools.product((-1, -2), repeat=16), count)]


def seconds(work: Work[object]) -> float:
    begun = time.process_time()
    finish(work)
    return time.process_time() - begun


def keyed(count: int) -> bytes:
    pairs = b"".join(msgpack.packb(key) + b"\x00" for key in colliding_keys(count))
    return b"\xdf" + count.to_bytes(4) + pairs


def as_words(count: int) -> Raw:
    return Raw(msgspec.json.encode({"$map": [[key, 0] for key in colliding_keys(count)]}))


@pytest.mark.slow
def test_keys_whose_hashes_collide_are_shown_in_linear_time():
    assert len({hash(tuple(key)) for key in colliding_keys(64)}) == 1
    once, twice = (min(seconds(json_view(keyed(count))) for _ in range(3)) for count in (8_192, 16_384))
    assert twice < DOUBLED_TIMES_MAX * once


@pytest.mark.slow
def test_keys_whose_hashes_collide_are_read_in_linear_time():
    once, twice = (
        min(seconds(codec.value_in("json", as_words(count), "")) for _ in range(3)) for count in (8_192, 16_384)
    )
    assert twice < DOUBLED_TIMES_MAX * once


def test_a_map_with_lists_as_keys_survives_the_way_through_json():
    data = keyed(100)
    shown = Raw(finish(json_view(data)))
    assert msgspec.json.decode(bytes(shown))["$map"][1] == [colliding_keys(2)[1], 0]
    back = finish(codec.value_in("json", shown, ""))
    assert back == Value("msgpack", b"\xde\x00\x64" + data[5:])


@pytest.mark.parametrize(
    ("tree", "shown"),
    [
        ({}, "{}"),
        ([], "[]"),
        ([[], {}, [{}]], "[[],{},[{}]]"),
        ({"a": [1, -1, 2.5, None, True, False, "\n\u2028"], "b": {"c": {}}},
         '{"a":[1,-1,2.5,null,true,false,"\\n\u2028"],"b":{"c":{}}}'),
        ({None: 1, True: 2, 1.5: 3, -7: 4}, '{"null":1,"true":2,"1.5":3,"-7":4}'),
        ({(1, (2, "x")): {"y": 0}, "z": []}, '{"$map":[[[1,[2,"x"]],{"y":0}],["z",[]]]}'),
        ({"$bytes": "x"}, '{"$map":[["$bytes","x"]]}'),
        ({"$bytes": "x", "a": 1}, '{"$bytes":"x","a":1}'),
        ({b"k": 1}, '{"$map":[[{"$bytes":"aw=="},1]]}'),
        (2**64 - 1, "18446744073709551615"),
        (-(2**63), "-9223372036854775808"),
    ],
)  # fmt: skip
def test_what_json_can_say_is_said_plainly_and_the_rest_with_words(tree, shown):
    assert finish(json_view(msgpack.packb(tree))).decode() == shown


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x01\x01", b"\x92\x01", b"\xa2a", b"\xa1\xff", b"\xdd\xff\xff\xff\xff\x01",
     b"\xc6\xff\xff\xff\xff", b"\xcb\x00", b"\x81\x80\x01", b"\x81\x91\x80\x01", b"\x91" * 600 + b"\x90"],
    ids=lambda data: data[:6].hex() or "nothing",
)  # fmt: skip
def test_what_is_no_value_or_has_a_map_in_a_key_is_not_plain(data):
    with pytest.raises(NotPlain):
        finish(json_view(data))


@pytest.mark.parametrize("leaf", ["\u00e9\u2028\U0001f600\x01" * 100_000, b"\x00\xff\x10" * 300_001])
def test_a_large_leaf_is_shown_in_slices_and_whole(leaf):
    slices = json_view(msgpack.packb([leaf, msgpack.ExtType(5, bytes(700_000))]))
    assert sum(1 for _ in slices) > 5
    text, extension = msgpack.unpackb(finish(codec.value_in("json", Raw(
        finish(json_view(msgpack.packb([leaf, msgpack.ExtType(5, bytes(700_000))])))
    ), "")).data)  # fmt: skip
    assert (text, extension) == (leaf, msgpack.ExtType(5, bytes(700_000)))


def test_many_values_are_shown_in_slices():
    data = msgpack.packb([{"a": 0}] * 50_000)
    assert sum(1 for _ in json_view(data)) >= 150_000 // json_views._SLICE_COST


def test_a_map_of_many_names_is_ended_in_slices():
    data = msgpack.packb({str(number): 0 for number in range(50_000)})
    written = sum(1 for _ in json_view(data))
    assert written >= 100_000 // json_views._SLICE_COST + 50_000 // json_views._SLICE_COST


def test_what_was_written_is_put_together_in_slices():
    parts = [b"%d," % number for number in range(5 * json_views._SLICE_PARTS)]
    whole = b"".join(parts)
    work = json_views._joined(parts)
    assert sum(1 for _ in work) == 5
    assert finish(json_views._joined([whole, b"!"])) == whole + b"!"
