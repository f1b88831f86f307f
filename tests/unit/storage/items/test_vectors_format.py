"""Vectors of items as they are sealed: with the name of their model, which must be the one that their row says."""

import struct
from uuid import UUID

import pytest

from crypto import Kind, Sealer, SecretKey, SubjectKeys
from crypto.context import Location
from storage.errors import IntegrityFailure
from storage.format.chain import MEMBER_BYTES
from storage.format.items.vectors import (
    VectorColumns,
    is_finite,
    model_id,
    open_vectors,
    pack_vectors,
    quantized,
    seal_vectors,
    unpack_vectors,
    vectors_mac,
)

MODEL = "example-☂"
VECTORS = [quantized((1.0, -0.5, 0.25)), quantized((0.0, 0.0, 0.0))]


def new_sealer():
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    return Sealer(UUID(int=1), UUID(int=2), "user-1", keys)


@pytest.fixture(scope="module")
def sealer():
    return new_sealer()


def columns_of(sealer, model=MODEL, dimensions=3, revision=7):
    return VectorColumns(b"p" * 16, b"k" * 16, model_id(sealer, model, dimensions), revision, 9)


def sealed_as(sealer, columns, plaintext):
    """A row with this content, and the member that it has then."""
    location = Location(columns.location())
    envelope = sealer.seal(Kind.ITEM_VECTORS, location, plaintext, compress=False)
    return envelope, sealer.mac(b"item-vectors", plaintext, location.encoded)[:MEMBER_BYTES]


def test_vectors_open_to_what_was_sealed_and_name_their_model(sealer):
    columns = columns_of(sealer)
    sealed = seal_vectors(sealer, columns, MODEL, VECTORS)
    assert open_vectors(sealer, columns, sealed.envelope, sealed.member) == (MODEL, VECTORS)
    with pytest.raises(IntegrityFailure):
        open_vectors(sealer, columns_of(sealer, revision=8), sealed.envelope, sealed.member)
    with pytest.raises(IntegrityFailure, match="member"):
        open_vectors(sealer, columns, sealed.envelope, bytes(MEMBER_BYTES))


def test_the_bytes_that_are_sealed_are_these(sealer):
    columns = columns_of(sealer, "m", 2)
    sealed = seal_vectors(sealer, columns, "m", [quantized((2.0, 0.0))])
    plaintext = sealer.open(Kind.ITEM_VECTORS, Location(columns.location()), sealed.envelope)
    assert plaintext[:8].hex(" ") == "01 00 01 00 02 00 01 6d"
    assert struct.unpack(">ff2b2e", plaintext[8:]) == (pytest.approx(2 / 127), 2.0, 127, 0, 1.0, 0.0)


@pytest.mark.parametrize("model", ["another", "", MODEL + "\0"])
def test_vectors_whose_model_is_not_the_one_of_their_row_do_not_open(sealer, model):
    columns = columns_of(sealer)
    sealed = seal_vectors(sealer, columns, model, VECTORS)
    with pytest.raises(IntegrityFailure, match="another model"):
        open_vectors(sealer, columns, sealed.envelope, sealed.member)


def test_vectors_of_other_dimensions_are_another_models(sealer):
    columns = columns_of(sealer, dimensions=4)
    sealed = seal_vectors(sealer, columns, MODEL, VECTORS)
    with pytest.raises(IntegrityFailure, match="another model"):
        open_vectors(sealer, columns, sealed.envelope, sealed.member)


HEAD = bytes.fromhex("01 0001 0002 0001 6d")
GARBLED = {
    "nothing": b"",
    "another format": b"\x02" + HEAD[1:] + bytes(14),
    "no vector": HEAD.replace(b"\0\1", b"\0\0", 1),
    "a vector too few": HEAD,
    "a vector too many": HEAD + bytes(28),
    "half a vector": HEAD + bytes(13),
    "a name that is no text": HEAD[:-1] + b"\xff" + bytes(14),
    "a name that is too long": HEAD[:5] + b"\xff\xff" + bytes(14),
}


@pytest.mark.parametrize("name", GARBLED)
def test_what_is_no_row_of_vectors_does_not_open(sealer, name):
    columns = columns_of(sealer, "m", 2)
    with pytest.raises(IntegrityFailure):
        open_vectors(sealer, columns, *sealed_as(sealer, columns, GARBLED[name]))
    whole = sealed_as(sealer, columns, HEAD + bytes(14))
    assert open_vectors(sealer, columns, *whole).model == "m"


def test_packed_vectors_are_whole_and_made_of_numbers():
    packed = pack_vectors(VECTORS)
    assert unpack_vectors(packed, 3) == VECTORS
    assert all(map(is_finite, VECTORS))
    with pytest.raises(ValueError, match="no whole vectors"):
        unpack_vectors(packed, 4)
    for number in (float("nan"), float("inf")):
        at_head = struct.pack(">ff1be", number, 1.0, 0, 0.0)
        in_direction = struct.pack(">ff1be", 1.0, 1.0, 0, number)
        assert not is_finite(*unpack_vectors(at_head, 1))
        assert not is_finite(*unpack_vectors(in_direction, 1))


def test_what_a_path_counts_of_vectors_depends_on_every_column(sealer):
    columns = columns_of(sealer)
    assert vectors_mac(sealer, columns, b"m") == vectors_mac(sealer, columns, b"m")
    assert vectors_mac(sealer, columns, b"m") != vectors_mac(sealer, columns_of(sealer, revision=8), b"m")
    assert vectors_mac(sealer, columns, b"m") != vectors_mac(sealer, columns, b"n")


def test_about_the_numbers_that_came_are_kept():
    assert quantized((3.0, 4.0)).values() == pytest.approx([3.0, 4.0], rel=0.001)
