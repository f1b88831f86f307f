"""What a record's body says of a value without putting it together, and which of its pieces."""

from uuid import UUID

import msgpack
import pytest

from crypto import Sealer, SecretKey, SubjectKeys
from storage.errors import IntegrityFailure
from storage.format.leaves import PIECE_ID_BYTES, placeholder
from storage.format.pieces import (
    CUT_BESIDE_BYTES_MIN,
    CUT_BESIDE_ELEMENTS_MIN,
    LEAF,
    LEAF_SHOWN_BYTES,
    SEGMENT,
    Cutter,
    Opened,
    PieceList,
    is_long_to_cut,
    join,
    joined_bytes,
    list_header,
    look_up_own,
    piece_ids_of,
    tail_ids,
    unpack_ids,
)
from storage.model import Value

IDS = [bytes([n]) * PIECE_ID_BYTES for n in range(3)]
LIST = (list_header(3), [0, b"\x01", 2], 1)


def test_a_list_of_pieces_numbers_each_once_and_is_read_back():
    listed = PieceList()
    assert [listed.number(each) for each in (*IDS, IDS[1])] == [0, 1, 2, 1]
    assert unpack_ids(listed.pack()) == IDS


def test_a_body_names_the_pieces_of_its_list_and_of_its_open_tail():
    assert piece_ids_of(LIST, IDS) == [IDS[0], IDS[2]]
    assert tail_ids(LIST, IDS) == [IDS[2]]
    assert tail_ids((b"", [0, 1], 0), IDS) == []
    assert (piece_ids_of(b"inline", IDS), tail_ids(b"inline", IDS)) == ([], [])


@pytest.mark.parametrize("number", [-1, 3])
def test_a_piece_that_the_record_does_not_list_is_damage(number):
    body = (b"\x91", [number], 0)
    for read in (piece_ids_of, lambda body, ids: join(body, ids, look_up_own({}))):
        with pytest.raises(IntegrityFailure):
            read(body, IDS)


def test_pieces_that_are_at_hand_are_taken_as_they_are():
    look_up = look_up_own({IDS[0]: bytes((SEGMENT,)) + b"content"})
    assert look_up(IDS[0]) == Opened(b"content", None, SEGMENT, 7)
    assert join((b"", [b"some ", 0], 0), IDS, look_up) == b"some content"


def test_how_long_a_value_will_be_is_known_before_it_is_put_together():
    look_up = look_up_own({IDS[0]: bytes((SEGMENT,)) + b"content", IDS[2]: bytes((LEAF,)) + b"x" * 1000})
    assert joined_bytes(b"inline", IDS, look_up, refs=False) == 6
    assert joined_bytes(LIST, IDS, look_up, refs=False) == 1 + 7 + 1 + 1000 + LEAF_SHOWN_BYTES
    assert joined_bytes(LIST, IDS, look_up, refs=True) == 1 + 7 + 1 + len(placeholder(IDS[2], 1000)) + LEAF_SHOWN_BYTES


@pytest.mark.parametrize(
    ("values", "long"),
    [
        ([], False),
        ([bytes(CUT_BESIDE_BYTES_MIN - 1)], False),
        ([bytes(CUT_BESIDE_BYTES_MIN - 1), b"\0"], True),
        ([list_header(CUT_BESIDE_ELEMENTS_MIN - 1)], False),
        ([list_header(CUT_BESIDE_ELEMENTS_MIN - 15), list_header(15)], True),
        ([b""], False),
    ],
)
def test_what_takes_long_to_cut_has_many_bytes_or_elements_together(values, long):
    assert is_long_to_cut(values) is long


def test_elements_that_follow_a_placeholder_are_cut_as_in_the_whole_list():
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    sealer = Sealer(UUID(int=1), UUID(int=2), "user-1", keys)
    hole, begun, added = placeholder(IDS[0], 70_000), msgpack.packb("begun"), msgpack.packb("added") * 2
    holed = Value("msgpack", list_header(2) + begun + hole, (1 + len(begun),))
    cutter = Cutter(sealer)
    body = cutter.cut(holed)

    def look_up(_piece_id):
        return Opened(None, None, LEAF, 70_000)

    longer = Cutter(sealer)
    after = longer.append(list_header(4), body, cutter.listed.ids, look_up, added)
    whole = Cutter(sealer)
    assert after == whole.cut(Value("msgpack", list_header(4) + begun + hole + added, holed.holes))
    assert longer.listed.ids == whole.listed.ids == [IDS[0]]
