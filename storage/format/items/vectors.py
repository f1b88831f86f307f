"""Vectors of items: what an embedding model made of their text, sealed as what they are: plaintext.

A vector is kept twice: as one signed byte for each dimension, with their scale, for the scan over all of a subject's;
and as its length and its direction in 16-bit floats (IEEE 754 binary16), for the scores of those that are found. All
vectors that an item has by one model are one row, which is bound to the item's revision and to the sequence that its
path had when they were put. The row keeps a **member**, a keyed digest, which the path's seal counts as it counts
items.
"""

import functools
import hmac
import math
import struct
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from crypto.context import Location
from storage.errors import IntegrityFailure
from storage.format.chain import MEMBER_BYTES

_FORMAT = 1
# The format; how many vectors there are, and how many dimensions each has.
_HEAD = struct.Struct(">BHH")
# Of each: the scale and the length, before its codes and its direction.
_VECTOR = struct.Struct(">ff")
_CODE_MAX = 127
_HALF_BYTES = 2
_NUMBER = struct.Struct(">Q")


class Vector(msgspec.Struct, frozen=True):
    """A vector as it is kept.

    Attributes:
        scale: What each code is multiplied by.
        length: The Euclidean length of the vector that came.
        codes: A signed byte for each dimension.
        direction: The vector at length 1, each dimension a 16-bit float.
    """

    scale: float
    length: float
    codes: bytes
    direction: bytes

    def values(self) -> list[float]:
        """About the numbers that came."""
        return [self.length * each for each in self.directions()]

    def directions(self) -> tuple[float, ...]:
        """The numbers of the vector at length 1."""
        return _halves(len(self.codes)).unpack(self.direction)


def quantized(values: Sequence[float]) -> Vector:
    """A vector as it is kept; ``values`` are finite."""
    greatest = max(map(abs, values), default=0.0)
    scale = greatest / _CODE_MAX
    codes = array("b", [round(each / scale) for each in values] if scale else bytes(len(values)))
    # Of the greatest, so that the squares of very small and very large numbers are numbers, too.
    length = greatest * math.sqrt(math.fsum((each / greatest) ** 2 for each in values)) if greatest else 0.0
    direction = _halves(len(values)).pack(*(each / length if length else 0.0 for each in values))
    return Vector(_single(scale), _single(length), codes.tobytes(), direction)


@functools.cache
def _halves(count: int) -> struct.Struct:
    return struct.Struct(f">{count}e")


def _single(number: float) -> float:
    """The number that is stored of a number: one of 32 bits."""
    return array("f", [number])[0]


class VectorColumns(msgspec.Struct, frozen=True):
    """The clear columns of a row of vectors, which its envelope is bound to."""

    path_id: bytes
    key_id: bytes
    model_id: bytes
    revision: int
    sequence: int

    def location(self) -> tuple[Field, ...]:
        """The context fields of the envelope."""
        return msgspec.structs.astuple(self)


class SealedVectors(msgspec.Struct, frozen=True):
    """The sealed column of a row of vectors, and its member."""

    envelope: bytes
    member: bytes


def model_id(sealer: Sealer, model: str, dimensions: int) -> bytes:
    """The name of a model in rows: vectors of other dimensions are another model's."""
    return sealer.mac(b"item-model", model.encode(), dimensions.to_bytes(4))[:MEMBER_BYTES]


def vectors_mac(sealer: Sealer, columns: VectorColumns, member: bytes) -> bytes:
    """What a row of vectors adds to the live set of its path's vectors."""
    place = columns.path_id + columns.key_id + columns.model_id
    numbers = _NUMBER.pack(columns.revision) + _NUMBER.pack(columns.sequence)
    return sealer.without_share.mac(b"live-vectors", place + numbers + member)


def seal_vectors(sealer: Sealer, columns: VectorColumns, vectors: Sequence[Vector]) -> SealedVectors:
    """Vectors of one model, sealed under their row's columns. They all have the same dimensions."""
    parts: list[bytes] = [_HEAD.pack(_FORMAT, len(vectors), len(vectors[0].codes))]
    for each in vectors:
        parts += (_VECTOR.pack(each.scale, each.length), each.codes, each.direction)
    plaintext = b"".join(parts)
    location = Location(columns.location())
    envelope = sealer.seal(Kind.ITEM_VECTORS, location, plaintext, compress=False)
    return SealedVectors(envelope, _member(sealer, plaintext, location))


def open_vectors(sealer: Sealer, columns: VectorColumns, envelope: bytes, member: bytes) -> list[Vector]:
    """Undo `seal_vectors`.

    Raises:
        IntegrityFailure: A column was edited, the row was moved, it holds no vectors, or its member is not its own.
    """
    location = Location(columns.location())
    try:
        plaintext = sealer.open(Kind.ITEM_VECTORS, location, envelope)
    except OpenError:
        raise IntegrityFailure from None
    if not hmac.compare_digest(_member(sealer, plaintext, location), member):
        raise IntegrityFailure("the member of an item's vectors was altered")
    return list(_vectors(plaintext))


def _vectors(plaintext: bytes) -> Iterable[Vector]:
    try:
        number, count, dimensions = _HEAD.unpack_from(plaintext)
    except struct.error:
        raise IntegrityFailure from None
    size = _VECTOR.size + (1 + _HALF_BYTES) * dimensions
    if number != _FORMAT or len(plaintext) != _HEAD.size + count * size:
        raise IntegrityFailure
    for at in range(_HEAD.size, len(plaintext), size):
        scale, length = _VECTOR.unpack_from(plaintext, at)
        codes = at + _VECTOR.size
        direction = codes + dimensions
        yield Vector(scale, length, plaintext[codes:direction], plaintext[direction : at + size])


def _member(sealer: Sealer, plaintext: bytes, location: Location) -> bytes:
    return sealer.mac(b"item-vectors", plaintext, location.encoded)[:MEMBER_BYTES]
