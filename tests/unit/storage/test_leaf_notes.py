"""Notes of large leaves: how they are stored, where a leaf is said to be, and what damage is."""

from uuid import UUID

import msgpack
import msgspec
import pytest

from crypto import Sealer, SecretKey, SubjectKeys
from storage.errors import StateTooLarge
from storage.format.leaf_notes import PATH_BYTES_MAX, Note, decode, encode, moved, notes_of, paths_at, with_notes
from storage.format.leaves import LEAF_TOKENS_MAX
from storage.format.manifest import ChannelRecord, WriteRecord, decode_write
from storage.format.pieces import Cutter, holds_list, list_bounds, to_cut
from storage.format.record import PieceReader, PieceRow, seal_piece
from storage.model import LargeLeaf, Value

LEAF = "leaf-" + "x" * 300
NOTE = Note("/a", "image/png", b"\x89PNG")
NOTE_BYTES = bytes.fromhex("93a22f61a9696d6167652f706e67c40489504e47")
# What releases wrote, and what this build writes: a reader understands all of it.
CHANNELS = {
    "94a16e04a76d73677061636bc40107": ChannelRecord("n", 4, "msgpack", b"\x07"),
    "95a16e04a76d73677061636bc40107c0": ChannelRecord("n", 4, "msgpack", b"\x07"),
    "96a16e04a76d73677061636bc40107c001": ChannelRecord("n", 4, "msgpack", b"\x07", None, 1),
    "97a16e04a76d73677061636bc40107c001c0": ChannelRecord("n", 4, "msgpack", b"\x07", None, 1),
    "97a16e04a76d73677061636bc40107c001c41591" + NOTE_BYTES.hex(): ChannelRecord(
        "n", 4, "msgpack", b"\x07", None, 1, b"\x91" + NOTE_BYTES
    ),
    "97a16e04a76d73677061636bc40107c00193c40191910000": ChannelRecord(
        "n", 4, "msgpack", b"\x07", None, 1, (b"\x91", [0], 0)
    ),
}
WRITES = {
    "9301a76d73677061636bc40107": WriteRecord(1, "msgpack", b"\x07"),
    "9401a76d73677061636bc40107c41591" + NOTE_BYTES.hex(): WriteRecord(1, "msgpack", b"\x07", b"\x91" + NOTE_BYTES),
}


@pytest.mark.parametrize(("encoded", "record"), CHANNELS.items())
def test_channels_of_every_build_are_read(encoded, record):
    assert msgspec.msgpack.decode(bytes.fromhex(encoded), type=ChannelRecord) == record


@pytest.mark.parametrize(("encoded", "record"), WRITES.items())
def test_writes_of_every_build_are_read(encoded, record):
    assert decode_write(bytes.fromhex(encoded)) == record


def test_a_note_has_one_form():
    assert encode(NOTE) == NOTE_BYTES
    assert decode(b"\x92" + NOTE_BYTES + encode(Note(None, None, None))) == [NOTE, Note(None, None, None)]


@pytest.mark.parametrize("data", [b"", b"\x91", b"\x07", b"\x91\x07", b"\x91\x92\xc0\xc0", b"\x91\x93\xa1\xff\xc0\xc0"])
def test_what_is_no_list_of_notes_says_nothing(data):
    assert decode(data) == []


def test_notes_are_of_the_last_leaves_and_of_no_more_than_there_are():
    leaves = [LargeLeaf(at=1), LargeLeaf(at=2)]
    assert with_notes(leaves, [NOTE]) == (
        LargeLeaf(at=1),
        LargeLeaf(at=2, path="/a", media_type="image/png", preview=b"\x89PNG"),
    )
    other = Note("/b", None, None)
    assert [each.path for each in with_notes(leaves, [NOTE, other, NOTE])] == ["/b", "/a"]
    assert with_notes([], [NOTE]) == ()


@pytest.mark.parametrize("leaves", [b"", b"junk", b"\x93\x01", (b"", [0], 1), (b"\x91", [0], 1), (b"\x91", [b"x"], 0)])
@pytest.mark.parametrize("refs", [True, False])
def test_notes_that_another_deployment_forged_say_nothing_and_hide_nothing(leaves, refs):
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    sealer = Sealer(UUID(int=1), UUID(int=2), "user-1", keys)
    cutter = Cutter(sealer, offload_bytes_min=64 * 1024)
    data = msgpack.packb({"x": "l" * 70_000})
    body = cutter.cut(Value("msgpack", data))
    reader = PieceReader(sealer, refs=refs)
    reader.add(
        PieceRow(each.piece_id, each.children, None, seal_piece(sealer, each), 1) for each in cutter.pieces.values()
    )
    shown = reader.value("msgpack", body, cutter.listed.ids, leaves)
    assert refs or shown.data == data
    [leaf] = shown.leaves
    assert (leaf.path, leaf.preview, leaf.size_bytes) == (None, None, 70_005)


def _cutter_and_sealer():
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    sealer = Sealer(UUID(int=1), UUID(int=2), "user-1", keys)
    return Cutter(sealer, offload_bytes_min=64 * 1024), sealer


def _reader(sealer, cutter, **limits):
    reader = PieceReader(sealer, **limits)
    reader.add(
        PieceRow(each.piece_id, each.children, None, seal_piece(sealer, each), 1) for each in cutter.pieces.values()
    )
    return reader


@pytest.mark.parametrize("refs", [True, False])
def test_what_a_long_list_with_large_leaves_takes_is_known_before_it_is_put_together(refs):
    """Its elements are in pieces that say where the leaves are; without leaves, they count as placeholders."""
    cutter, sealer = _cutter_and_sealer()
    data = msgpack.packb([{"x": "l" * 70_000, "n": number, "t": "s" * 3_000} for number in range(40)])
    body, notes = cutter.cut_noted(Value("msgpack", data))
    assert notes is not None
    size = _reader(sealer, cutter, refs=refs).size_of(body, cutter.listed.ids, notes)
    assert size < 400_000 if refs else size > len(data)
    shown = _reader(sealer, cutter, refs=refs, bytes_max=size).value("msgpack", body, cutter.listed.ids, notes)
    assert len(shown.leaves) == 40
    assert len(shown.holes) == (40 if refs else 0)
    with pytest.raises(StateTooLarge):
        _reader(sealer, cutter, refs=refs, bytes_max=2_000).value("msgpack", body, cutter.listed.ids, notes)


def test_a_body_is_a_list_if_it_was_cut_as_one_or_is_one_to_its_end():
    cutter, _ = _cutter_and_sealer()
    for value, is_list in (([1, 2], True), ({"a": [1]}, False), (["x" * 100] * 4_000, True), ("x" * 400_000, False)):
        body = cutter.cut(Value("msgpack", msgpack.packb(value)))
        assert holds_list(body) is is_list, type(body)
    assert not holds_list(msgpack.packb([1]) + b"\x01")
    assert not holds_list(b"")


def test_a_value_whose_placeholders_have_to_be_found_counts_as_longer_to_cut():
    assert list(to_cut(Value("msgpack", b"12"))) == [b"12"]
    assert list(to_cut(Value("msgpack", b"12", (0,)))) == [b"12"] * 8


def leaves_in(data):
    """Where the leaves begin, by looking for their bytes."""
    found, at, packed = [], -1, msgpack.packb(LEAF)
    while (at := data.find(packed, at + 1)) >= 0:
        found.append(at)
    return found


def paths(content, packed=None):
    data = packed if packed is not None else msgpack.packb(content)
    return paths_at(data, leaves_in(data), list_bounds(data))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (LEAF, [""]),
        ([LEAF], ["/0"]),
        ([0, [], {}, LEAF, LEAF, [[LEAF]]], ["/3", "/4", "/5/0/0"]),
        ({"a": LEAF, "b": {"c/d~e": [1, LEAF]}}, ["/a", "/b/c~1d~0e/1"]),
        ({1: LEAF, -3: LEAF}, ["/1", "/-3"]),
        ({1.5: LEAF, b"b": LEAF, 1000: [LEAF], "x": LEAF}, [None, None, None, "/x"]),
        ({LEAF: 1, "x": LEAF}, [None, "/x"]),
        ({LEAF: LEAF}, [None, None]),
        ([{"m": {"é": LEAF}}, LEAF], ["/0/m/é", "/1"]),
        ({"": {"": LEAF}}, ["//"]),
        ([b"x" * 300, msgpack.ExtType(1, b"e" * 17), None, 1.5, 2**40, LEAF], ["/5"]),
        ({"n" * PATH_BYTES_MAX: LEAF}, [None]),
        ({"n" * (PATH_BYTES_MAX - 1): LEAF}, ["/" + "n" * (PATH_BYTES_MAX - 1)]),
        ([[0] * LEAF_TOKENS_MAX + [LEAF], LEAF], [None, "/1"]),
        ({"n" * 300: [LEAF], "x": LEAF}, [None, "/x"]),
    ],
)
def test_a_leaf_is_found_by_its_path(content, expected):
    assert paths(content) == expected


def test_paths_below_many_levels_are_left_out():
    content = LEAF
    for _ in range(200):
        content = {"a": content}
    assert paths(content) == [None]


@pytest.mark.parametrize("cut", [1, 3, 10, 40])
def test_what_does_not_parse_has_no_paths(cut):
    data = msgpack.packb({"a": [1, {"b": LEAF}]})
    assert paths_at(data[:cut], [len(data)], None) == [None]
    assert paths_at(b"\xc1" + data, [9], None) == [None]


def test_what_is_said_by_path_goes_before_what_is_said_by_offset():
    data = msgpack.packb([LEAF, LEAF])
    offsets, bounds = leaves_in(data), list_bounds(data)
    said = [
        LargeLeaf(path="/0", media_type="image/png", preview=b"path"),
        LargeLeaf(at=offsets[0], media_type="image/webp"),
        LargeLeaf(path="/7", preview=b"nowhere"),
    ]
    found = [msgspec.msgpack.decode(each, type=Note) for each in notes_of(data, offsets, offsets[1:], said, bounds, 5)]
    assert found == [Note("/5", "image/webp", None), Note("/6", None, None)]  # what is said at /0 is of no leaf here
    found = [msgspec.msgpack.decode(each, type=Note) for each in notes_of(data, offsets, (), said, bounds)]
    assert found == [Note("/0", "image/png", b"path"), Note("/1", "text/plain", None)]


def test_what_is_said_of_elements_moves_with_them():
    said = [LargeLeaf(path="/0/a"), LargeLeaf(path="/2"), LargeLeaf(path="/x"), LargeLeaf(at=3), LargeLeaf(path="")]
    assert [(each.path, each.at) for each in moved(said, 10, 7)] == [
        ("/10/a", None), ("/12", None), ("/x", None), (None, 10), ("", None),
    ]  # fmt: skip
