"""Cutting and joining is the identity, appending is the full value, and an edit re-synchronises."""

import hashlib
import hmac

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import IntegrityFailure, InvalidState
from storage.format.leaves import PLACEHOLDER_BYTES, placeholder, read_placeholder
from storage.format.pieces import (
    BLOB,
    COMPOSITE,
    HOLES_MAX,
    INLINE_BYTES_MAX,
    LEAF,
    BlobChunk,
    Cutter,
    Opened,
    Piece,
    join,
    join_holed,
    leaf_piece,
    list_bounds,
    list_count,
    list_header,
    open_piece,
    piece_of,
)
from storage.format.pieces import (
    ELEMENTS as ELEMENTS_KIND,
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


def look_up_in(digests, pieces):
    """Open pieces that were just cut, as `join` wants them."""

    def look_up(piece_id):
        if piece_id not in pieces:
            raise IntegrityFailure("a piece is missing")
        return open_piece(digests, piece_id, pieces[piece_id].plaintext, pieces[piece_id].children)

    return look_up


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
    look_up = look_up_in(cutter.digests, cutter.pieces if pieces is None else pieces)
    return join(body, cutter.listed.ids, look_up)


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
    second = Cutter(KeyedDigests(key))
    longer = list_header(len(before) + len(after))
    look_up = look_up_in(first.digests, first.pieces)
    appended = second.append(longer, body, first.listed.ids, look_up, b"".join(after))
    pieces = {**first.pieces, **second.pieces}
    assert joined(second, appended, pieces) == joined(whole, wanted)
    # Up to folding, both name the same pieces: the next save stores nothing twice.
    if len(wanted[1]) < 64 > len(appended[1]):
        assert (appended, second.listed.ids) == (wanted, whole.listed.ids)


class CountedDigests(KeyedDigests):
    """How many bytes were digested."""

    def __init__(self, key):
        super().__init__(key)
        self.counted = 0

    def content_id(self, kind, encoding, data):
        self.counted += len(data)
        return super().content_id(kind, encoding, data)

    def boundary(self, data):
        self.counted += len(data)
        return super().boundary(data)


def test_appending_to_an_open_tail_digests_what_is_added_and_not_the_tail():
    elements = [msgpack.packb({"n": number, "text": f"{number}" * 400}) for number in range(300)]
    digests = CountedDigests(b"k")
    closed_groups = appends = 0
    cutter = Cutter(digests)
    body = cutter.cut(Value("msgpack", list_header(20) + b"".join(elements[:20])))
    pieces = dict(cutter.pieces)
    for number in range(20, 300):
        before, digests.counted = cutter, 0
        closed_before = body[2]
        cutter = Cutter(digests)
        look_up = look_up_in(KeyedDigests(b"k"), pieces)
        body = cutter.append(list_header(number + 1), body, before.listed.ids, look_up, elements[number])
        pieces |= cutter.pieces
        if body[2] == closed_before:  # the new element, and the run that it completes
            assert digests.counted <= 3 * len(elements[number]) + 2048
            appends += 1
        else:
            closed_groups += 1
    assert appends > 200
    assert closed_groups >= 3
    assert join(body, cutter.listed.ids, look_up_in(digests, pieces)) == list_header(300) + b"".join(elements)


@given(KEY, ELEMENTS, ELEMENTS, st.integers(0, 40))
@settings(max_examples=40)
def test_elements_are_put_behind_a_tail_that_was_cut_in_another_way(key, before, after, inline):
    digests = KeyedDigests(key)
    made = [piece_of(digests, ELEMENTS_KIND, each, None) for each in before[:inline]]
    pieces = {each.piece_id: each for each in made}
    ids = list(pieces)
    rest = b"".join(before[inline:])
    leaves = [ids.index(each.piece_id) for each in made] + ([rest] if rest else [])
    cutter = Cutter(digests)
    longer = list_header(len(before) + len(after))
    body = cutter.append(
        longer, (list_header(len(before)), leaves, 0), ids, look_up_in(digests, pieces), b"".join(after)
    )
    assert joined(cutter, body, {**pieces, **cutter.pieces}) == longer + b"".join(before + after)


def test_short_neighbours_in_a_tail_share_a_piece_and_a_long_element_is_one_wherever_it_stands():
    short, long = (msgpack.packb(bytes(size)) for size in (1100, 5000))
    for elements, sizes in (
        ([short] * 5, [2 * len(short), 2 * len(short), None]),
        ([short, long, short], [len(short), len(long), None]),
        ([long, short, short], [len(long), 2 * len(short)]),
    ):
        # No group closes: an element's digest never ends one.
        cutter = Cutter(OpenDigests(b"k"))
        _, leaves, closed = cutter.cut(Value("msgpack", list_header(len(elements)) + b"".join(elements)))
        found = [None if isinstance(each, bytes) else cutter.pieces[cutter.listed.ids[each]].size for each in leaves]
        assert (found, closed) == (sizes, 0)


class OpenDigests(KeyedDigests):
    def boundary(self, data):
        return 1


class ClosingDigests(KeyedDigests):
    """Every group that may close does."""

    def boundary(self, data):
        return 0


@pytest.mark.parametrize("kind_of_digests", [OpenDigests, ClosingDigests])
@pytest.mark.parametrize("size", [500, 1100, 3000, 5000, 40_000])
def test_one_element_after_the_other_is_the_whole_list(kind_of_digests, size):
    elements = [msgpack.packb([number, bytes(size)]) for number in range(30)]
    digests = kind_of_digests(b"k")
    cutter = Cutter(digests)
    body = cutter.cut(Value("msgpack", list_header(10) + b"".join(elements[:10])))
    pieces = dict(cutter.pieces)
    for count in range(11, 31):
        ids, cutter = cutter.listed.ids, Cutter(digests)
        body = cutter.append(list_header(count), body, ids, look_up_in(digests, pieces), elements[count - 1])
        pieces |= cutter.pieces
        whole = Cutter(digests)
        assert body == whole.cut(Value("msgpack", list_header(count) + b"".join(elements[:count])))
        assert cutter.listed.ids == whole.listed.ids


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


# --- large leaves ---------------------------------------------------------------------------------

MIN = 300
LARGE = st.one_of(
    st.builds(lambda seed, size: seed * size, st.binary(min_size=1, max_size=3), st.integers(60, 900)),
    st.builds(lambda seed, size: seed * size, st.text(min_size=1, max_size=3), st.integers(60, 900)),
    st.builds(lambda code, size: msgpack.ExtType(code, bytes(size)), st.integers(0, 127), st.integers(60, 900)),
)
LOADED = st.recursive(
    st.one_of(ATOM, LARGE),
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(st.text(max_size=8), inner, max_size=6)),
    max_leaves=25,
)
LOADED_LISTS = st.lists(LOADED, max_size=60)


def cut_large(key, value):
    cutter = Cutter(KeyedDigests(key), offload_bytes_min=MIN)
    return cutter, cutter.cut(value)


def holed(cutter, body, pieces=None):
    return join_holed(body, cutter.listed.ids, look_up_in(cutter.digests, cutter.pieces if pieces is None else pieces))


def resolved(cutter, body, pieces):
    return join(body, cutter.listed.ids, look_up_in(cutter.digests, pieces))


@given(KEY, st.one_of(LOADED, LOADED_LISTS).map(msgpack.packb))
@settings(max_examples=150)
def test_values_with_large_leaves_come_back(key, data):
    cutter, body = cut_large(key, Value("msgpack", data))
    assert joined(cutter, body) == data
    content, holes = holed(cutter, body)
    assert list(holes) == sorted(set(holes))
    for at in reversed(holes):
        piece_id, size = read_placeholder(content, at)
        leaf = cutter.pieces[piece_id]
        assert (leaf.kind, leaf.size) == (LEAF, size)
        assert size >= MIN
        content = content[:at] + leaf.plaintext[1:] + content[at + PLACEHOLDER_BYTES :]
    assert content == data


@given(KEY, st.one_of(LOADED, LOADED_LISTS).map(msgpack.packb))
@settings(max_examples=150)
def test_a_client_that_sends_placeholders_names_the_same_pieces(key, data):
    whole, body = cut_large(key, Value("msgpack", data))
    content, holes = holed(whole, body)
    client, again = cut_large(key, Value("msgpack", content, holes))
    assert again == body
    assert client.listed.ids == whole.listed.ids
    assert client.pieces.keys() | client.referenced.keys() == whole.pieces.keys()
    assert all(whole.pieces[piece_id].size == size for piece_id, size in client.referenced.items())
    assert resolved(client, again, whole.pieces) == data


@given(KEY, LOADED_LISTS, LOADED_LISTS)
@settings(max_examples=60)
def test_appending_to_a_tail_with_placeholders_is_cutting_the_whole(key, before, after):
    first, body = cut_large(key, Value("msgpack", msgpack.packb(before)))
    whole, wanted = cut_large(key, Value("msgpack", msgpack.packb(before + after)))
    if isinstance(body, bytes):
        return
    second = Cutter(KeyedDigests(key), offload_bytes_min=MIN)
    longer = list_header(len(before) + len(after))
    look_up = look_up_in(first.digests, first.pieces)
    appended = second.append(longer, body, first.listed.ids, look_up, b"".join(map(msgpack.packb, after)))
    assert resolved(second, appended, {**first.pieces, **second.pieces}) == msgpack.packb(before + after)
    if len(wanted[1]) < 64 > len(appended[1]):
        assert (appended, second.listed.ids) == (wanted, whole.listed.ids)


@given(KEY, st.integers(0, 199), st.booleans())
@settings(max_examples=20)
def test_an_edit_among_large_leaves_stores_little_again(key, position, insert):
    elements = [{"role": "user", "content": [{"image": f"{number}" * 400}]} for number in range(200)]
    before, _ = cut_large(key, Value("msgpack", msgpack.packb(elements)))
    edited = list(elements)
    edited[position : position + (not insert)] = [{"role": "user", "content": "edited"}]
    after, body = cut_large(key, Value("msgpack", msgpack.packb(edited)))
    assert joined(after, body) == msgpack.packb(edited)
    new = [piece for piece_id, piece in after.pieces.items() if piece_id not in before.pieces]
    assert all(piece.kind != LEAF for piece in new)
    assert sum(piece.size for piece in new) < 40_000


@given(KEY, st.binary(min_size=17, max_size=17), st.integers(0, 1 << 40), st.integers(0, 60))
@settings(max_examples=60)
def test_data_that_looks_like_a_placeholder_is_data(key, piece_id, size, before):
    fake = placeholder(piece_id, size)
    tree = [["x"] * before, msgpack.ExtType(fake[2], fake[3:]), bytes(800), fake, bytes(5000)]
    data = msgpack.packb(tree)
    assert data.count(fake) == 2
    cutter, body = cut_large(key, Value("msgpack", data))
    assert joined(cutter, body) == data
    content, holes = holed(cutter, body)
    assert content.count(fake) == 2
    assert not {content.find(fake), content.rfind(fake)} & set(holes)
    assert piece_id not in cutter.pieces
    assert not cutter.referenced


@given(KEY, st.binary(max_size=400), st.lists(st.integers(-5, 400), min_size=1, max_size=4), st.integers(0, 400))
@settings(max_examples=200)
def test_offsets_that_hold_no_placeholder_are_refused_or_come_back(key, data, holes, at):
    data = data[:at] + placeholder(bytes(17), 1000) + data[at:]
    cutter = Cutter(KeyedDigests(key), offload_bytes_min=MIN)
    try:
        body = cutter.cut(Value("msgpack", data, tuple(holes)))
    except InvalidState:
        return
    leaf = Piece(bytes(17), b"", None)
    assert cutter.referenced == {leaf.piece_id: 1000}
    look_up = look_up_in(cutter.digests, cutter.pieces)
    content, again = join_holed(
        body,
        cutter.listed.ids,
        lambda piece_id: Opened(None, None, LEAF, 1000) if piece_id == leaf.piece_id else look_up(piece_id),
    )
    assert (content, again) == (data, tuple(holes))


def test_a_placeholder_across_two_elements_is_refused():
    stands = placeholder(bytes(17), 1000)
    data = b"\x92\xc4\x05abc" + stands[:2] + b"\xc4\x1a" + stands[2:]
    assert list_bounds(data) is not None
    for at in range(len(data)):
        with pytest.raises(InvalidState):
            cut_large(b"k", Value("msgpack", data, (at,)))
    inside = b"\x92\xc4\x1c" + stands + b"\x01"
    cut_large(b"k", Value("msgpack", inside, (3,)))
    # It reads as a placeholder, but ends in the next element.
    split = b"\x92\xc4\x0c" + stands[:12] + b"\xc4\x10" + stands[12:]
    with pytest.raises(InvalidState):
        cut_large(b"k", Value("msgpack", split, (3,)))


@pytest.mark.parametrize("encoding", ["json", "bytes"])
def test_only_messagepack_has_placeholders(encoding):
    with pytest.raises(InvalidState):
        cut_large(b"k", Value(encoding, placeholder(bytes(17), 1000), (0,)))


def test_a_value_cannot_have_any_number_of_placeholders():
    stands = placeholder(bytes(17), 1000)
    count = HOLES_MAX + 1
    offsets = tuple(5 + number * len(stands) for number in range(count))
    with pytest.raises(InvalidState):
        cut_large(b"k", Value("msgpack", header(count, 5) + stands * count, offsets))


@pytest.mark.parametrize("count", [20, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize("nested", [False, True])
def test_a_map_with_many_large_leaves_comes_back_and_its_record_stays_short(count, nested):
    leaves = {f"screen {number}": bytes([number % 256]) * (MIN + number) for number in range(count)}
    data = msgpack.packb({"screens": [*leaves.values()], "text": "t" * 9000} if nested else leaves)
    cutter, body = cut_large(b"k", Value("msgpack", data))
    assert joined(cutter, body) == data
    assert len(cutter.listed.ids) <= 130
    assert sum(len(leaf) for leaf in body[1] if isinstance(leaf, bytes)) < 9000


def test_another_size_than_the_piece_has_is_found_when_it_is_resolved():
    data = msgpack.packb([bytes(3000)] * 2 + ["x" * 200] * 10)
    whole, body = cut_large(b"k", Value("msgpack", data))
    content, holes = holed(whole, body)
    piece_id, size = read_placeholder(content, holes[0])
    lie = b"".join(
        (
            content[: holes[0]],
            placeholder(piece_id, size + 1),
            placeholder(piece_id, size + 1),
            content[holes[1] + 28 :],
        )
    )
    liar, again = cut_large(b"k", Value("msgpack", lie, holes))
    with pytest.raises(IntegrityFailure):
        resolved(liar, again, {**whole.pieces, **liar.pieces})


def test_a_composite_piece_with_other_children_than_its_own_is_refused():
    data = msgpack.packb([{"image": bytes([number]) * 3000, "text": ["x" * 200] * 8} for number in range(3)])
    cutter, _ = cut_large(b"k", Value("msgpack", data))
    composite = next(each for each in cutter.pieces.values() if each.kind == COMPOSITE)
    for children in (None, b"", composite.children[::-1], composite.children * 2):
        with pytest.raises(IntegrityFailure):
            open_piece(cutter.digests, composite.piece_id, composite.plaintext, children)
    leaf = next(each for each in cutter.pieces.values() if each.kind == LEAF)
    with pytest.raises(IntegrityFailure):
        open_piece(cutter.digests, leaf.piece_id, leaf.plaintext, composite.children)


@given(st.binary(max_size=40))
def test_any_chunk_of_a_blob_opens_or_is_refused(data):
    plaintext = bytes((BLOB,)) + data
    try:
        chunk = BlobChunk.decode(plaintext)
    except IntegrityFailure:
        return
    assert chunk.encode() == plaintext


def test_a_piece_that_a_client_uploads_has_the_id_of_the_leaf_it_stands_for():
    digests = KeyedDigests(b"k")
    for content in (bytes(70_000), "x" * 70_000, msgpack.ExtType(5, bytes(70_000))):
        data = msgpack.packb(content)
        cutter = Cutter(digests, offload_bytes_min=MIN)
        cutter.cut(Value("msgpack", msgpack.packb([content])))
        assert leaf_piece(digests, data).piece_id in cutter.pieces
        for odd in (data + b"\x00", data[:-1], b"\x91" + data, b""):
            with pytest.raises(InvalidState):
                leaf_piece(digests, odd)


def test_bytes_that_nobody_reads_are_cut_in_few_large_segments():
    data = hashlib.shake_256(b"x").digest(3_000_000)
    cutter, body = cut_large(b"k", Value("bytes", data))
    assert joined(cutter, body) == data
    assert 3 <= len(cutter.pieces) <= 30
    small, _ = cut(b"k", data, "bytes")
    assert len(small.pieces) > 100
