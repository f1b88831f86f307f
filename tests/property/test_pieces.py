"""Cutting and joining is the identity, appending is the full value, and an edit re-synchronises."""

import hashlib
import hmac

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.format.pieces import (
    INLINE_BYTES_MAX,
    Cutter,
    Opened,
    check_piece,
    join,
    list_bounds,
    list_count,
    list_header,
    piece_ids_of,
    unpack_ids,
)
from storage.model import Value


class KeyedDigests:
    """The digests a sealer gives, under a key of this test."""

    def __init__(self, key):
        self._key = key

    def content_id(self, kind, encoding, data):
        message = b"".join(
            len(each).to_bytes(8, "big") + each for each in (kind.encode(), encoding.encode(), bytes(data))
        )
        return b"\x01" + hmac.digest(self._key, message, "sha256")[:16]

    def boundary(self, data):
        return int.from_bytes(hashlib.blake2b(bytes(data), digest_size=8, key=self._key).digest(), "big")


KEY = st.binary(min_size=1, max_size=8)
ATOM = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.binary(max_size=40),
    st.text(max_size=40),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    st.builds(msgpack.Timestamp, st.integers(0, 1 << 60), st.integers(0, 999_999_999)),
)
TREE = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=8), inner, max_size=4),
        st.builds(lambda code, content: msgpack.ExtType(code, msgpack.packb(content)), st.integers(0, 127), inner),
    ),
    max_leaves=12,
)
PADDED = st.builds(
    lambda content, size: [content, bytes(size)], TREE, st.sampled_from([0, 10, 300, 1100, 5000, 70_000])
)
ELEMENTS = st.lists(st.builds(msgpack.packb, PADDED), max_size=40)


def header(count, width):
    """Every way msgpack can write a list's header, also longer than it must be."""
    if width == 1 and count < 16:
        return bytes((0x90 | count,))
    if width <= 3 and count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


LISTS = st.builds(
    lambda elements, width: header(len(elements), width) + b"".join(elements), ELEMENTS, st.sampled_from([1, 3, 5])
)


def cut(key, data, encoding="msgpack"):
    cutter = Cutter(KeyedDigests(key))
    return cutter, cutter.cut(Value(encoding, data))


def joined(cutter, body, pieces=None):
    pieces = cutter.pieces if pieces is None else pieces

    def look_up(piece_id):
        piece = pieces[piece_id]
        data = check_piece(cutter.digests, piece_id, piece.plaintext, piece.children)
        return Opened(data, None if piece.children is None else tuple(unpack_ids(piece.children)))

    return join(body, unpack_ids(cutter.listed.pack()), look_up)


@given(KEY, st.binary(max_size=40_000), st.sampled_from(["msgpack", "json", "null"]))
@settings(max_examples=60)
def test_any_bytes_come_back(key, data, encoding):
    cutter, body = cut(key, data, encoding)
    assert joined(cutter, body) == data


@given(KEY, st.binary(min_size=1, max_size=200), st.integers(1, 600))
@settings(max_examples=40)
def test_long_repetitive_bytes_come_back(key, seed, times):
    cutter, body = cut(key, seed * times)
    assert joined(cutter, body) == seed * times


@given(KEY, LISTS)
@settings(max_examples=80)
def test_lists_come_back_whatever_their_header_and_elements(key, data):
    cutter, body = cut(key, data)
    assert joined(cutter, body) == data
    assert isinstance(body, bytes) == (len(data) < INLINE_BYTES_MAX)
    bounds = list_bounds(data)
    assert bounds is not None
    assert bounds[-1] == len(data)
    assert len(bounds) - 1 == list_count(data[: bounds[0]])


@given(KEY, LISTS, st.binary(min_size=1, max_size=9))
@settings(max_examples=40)
def test_a_list_with_trailing_or_missing_bytes_is_opaque_and_comes_back(key, data, extra):
    assert list_bounds(data + extra) is None
    for odd in (data + extra, data[:-1]):
        cutter, body = cut(key, odd)
        assert joined(cutter, body) == odd


@given(st.binary(max_size=2000))
@settings(max_examples=200)
def test_no_bytes_break_the_reader_of_lists(data):
    bounds = list_bounds(data)
    assert bounds is None or (bounds == sorted(bounds) and bounds[-1] == len(data))


@given(KEY, ELEMENTS, ELEMENTS, st.sampled_from([1, 3, 5]))
@settings(max_examples=60)
def test_appending_to_the_tail_is_cutting_the_whole(key, before, after, width):
    first, body = cut(key, header(len(before), width) + b"".join(before))
    whole, wanted = cut(key, list_header(len(before) + len(after)) + b"".join(before + after))
    if isinstance(body, bytes):
        return  # an inline list is cut anew, as a whole
    _, leaves, closed = body
    kept = piece_ids_of((b"", leaves[:closed], 0), first.listed.ids)
    tail = joined(first, (b"", leaves[closed:], 0))
    second = Cutter(KeyedDigests(key))
    appended = second.append(list_header(len(before) + len(after)), kept, tail + b"".join(after))
    pieces = {**first.pieces, **second.pieces}
    assert joined(second, appended, pieces) == joined(whole, wanted)
    # Up to folding, both name the same pieces: the next save stores nothing twice.
    if len(wanted[1]) < 64 > len(appended[1]):
        assert (appended, second.listed.ids) == (wanted, whole.listed.ids)


@given(KEY, st.integers(0, 2999), st.binary(max_size=3000), st.booleans())
@settings(max_examples=25)
def test_an_edit_in_the_middle_of_a_long_list_resynchronises(key, position, content, insert):
    elements = [msgpack.packb({"n": number, "text": f"{number * 7919}" * 30}) for number in range(3000)]
    before, _ = cut(key, list_header(3000) + b"".join(elements))
    edited = list(elements)
    edited[position : position + (not insert)] = [msgpack.packb(content)]
    after, body = cut(key, list_header(len(edited)) + b"".join(edited))
    assert joined(after, body) == list_header(len(edited)) + b"".join(edited)
    new = [piece for piece_id, piece in after.pieces.items() if piece_id not in before.pieces]
    groups = [piece for piece in new if piece.children is None]
    assert len(before.pieces) > 60
    # Groups close by content, or at 64 KiB; from the next content boundary on, everything is as it was.
    assert sum(len(piece.plaintext) for piece in groups) <= 12 * 64 * 1024
    assert len(groups) <= 48


@given(KEY, KEY, LISTS)
@settings(max_examples=20)
def test_pieces_have_other_names_under_another_key(key, other, data):
    if hashlib.sha256(key).digest() == hashlib.sha256(other).digest():
        return
    one, _ = cut(key, data)
    two, _ = cut(other, data)
    assert not one.pieces.keys() & two.pieces.keys()
