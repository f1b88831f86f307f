"""Vectors of items: what an embedding model made of their text, sealed as what they are: plaintext.

A vector is kept twice: as one signed byte for each dimension, with their scale, for the scan over all of a subject's;
and as its length and its direction in 16-bit floats (IEEE 754 binary16), for the scores of those that are found. All
vectors that an item has by one model are one row, which is bound to the item's revision and to the sequence that its
path had when they were put. The row keeps a **member**, a keyed digest, which the path's seal counts as it counts
items. It names the model by a MAC, and by its name inside the envelope: whoever moves vectors to other keys needs that.
"""

import functools
import hmac
import math
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from crypto.context import Location
from storage.errors import IntegrityFailure
from storage.format.chain import MEMBER_BYTES

_FORMAT = 1
# The format; how many vectors there are, and how many dimensions each has; how long the model's name is, which follows.
_HEAD = struct.Struct(">BHHH")
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


class OpenedVectors(NamedTuple):
    """What a row of vectors holds: the model's name, and what it made; all have the same dimensions."""

    model: str
    vectors: list[Vector]


def model_id(sealer: Sealer, model: str, dimensions: int) -> bytes:
    """The name of a model in rows: vectors of other dimensions are another model's."""
    return sealer.mac(b"item-model", model.encode(), dimensions.to_bytes(4))[:MEMBER_BYTES]


def vectors_mac(sealer: Sealer, columns: VectorColumns, member: bytes) -> bytes:
    """What a row of vectors adds to the live set of its path's vectors."""
    place = columns.path_id + columns.key_id + columns.model_id
    numbers = _NUMBER.pack(columns.revision) + _NUMBER.pack(columns.sequence)
    return sealer.without_share.mac(b"live-vectors", place + numbers + member)


def seal_vectors(sealer: Sealer, columns: VectorColumns, model: str, vectors: Sequence[Vector]) -> SealedVectors:
    """Vectors of one model, sealed under their row's columns. They all have the same dimensions."""
    named = model.encode()
    head = _HEAD.pack(_FORMAT, len(vectors), len(vectors[0].codes), len(named))
    plaintext = head + named + pack_vectors(vectors)
    location = Location(columns.location())
    envelope = sealer.seal(Kind.ITEM_VECTORS, location, plaintext, compress=False)
    return SealedVectors(envelope, _member(sealer, plaintext, location))


def open_vectors(sealer: Sealer, columns: VectorColumns, envelope: bytes, member: bytes) -> OpenedVectors:
    """Undo `seal_vectors`.

    Raises:
        IntegrityFailure: A column was edited, the row was moved, it holds no vectors, or its member or the name of its
            model is not its own.
    """
    location = Location(columns.location())
    try:
        plaintext = sealer.open(Kind.ITEM_VECTORS, location, envelope)
    except OpenError:
        raise IntegrityFailure from None
    if not hmac.compare_digest(_member(sealer, plaintext, location), member):
        raise IntegrityFailure("the member of an item's vectors was altered")
    try:
        number, count, dimensions, length = _HEAD.unpack_from(plaintext)
        model = plaintext[_HEAD.size : _HEAD.size + length].decode()
        vectors = unpack_vectors(plaintext[_HEAD.size + length :], dimensions)
    except (struct.error, ValueError):
        raise IntegrityFailure from None
    if number != _FORMAT or not vectors or len(vectors) != count:
        raise IntegrityFailure
    if not hmac.compare_digest(model_id(sealer, model, dimensions), columns.model_id):
        raise IntegrityFailure("an item's vectors are another model's")
    return OpenedVectors(model, vectors)


def pack_vectors(vectors: Sequence[Vector]) -> bytes:
    """Vectors one after the other, as they are kept."""
    parts: list[bytes] = []
    for each in vectors:
        parts += (_VECTOR.pack(each.scale, each.length), each.codes, each.direction)
    return b"".join(parts)


def unpack_vectors(packed: bytes, dimensions: int) -> list[Vector]:
    """Undo `pack_vectors`.

    Raises:
        ValueError: These are no whole vectors of so many dimensions.
    """
    size = sealed_bytes(dimensions)
    if len(packed) % size:
        raise ValueError("these are no whole vectors")
    found = []
    for at in range(0, len(packed), size):
        scale, length = _VECTOR.unpack_from(packed, at)
        codes = at + _VECTOR.size
        direction = codes + dimensions
        found.append(Vector(scale, length, packed[codes:direction], packed[direction : at + size]))
    return found


def sealed_bytes(dimensions: int) -> int:
    """About how many bytes a vector takes in a sealed row."""
    return _VECTOR.size + (1 + _HALF_BYTES) * dimensions


def is_finite(vector: Vector) -> bool:
    """Whether a vector that nobody quantized here is made of numbers: none of them is infinite, or none at all."""
    direction = _halves(len(vector.codes)).unpack(vector.direction)
    # A sum of so few numbers of 16 bits is finite, if all of them are.
    return all(map(math.isfinite, (vector.scale, vector.length, sum(direction))))


def _member(sealer: Sealer, plaintext: bytes, location: Location) -> bytes:
    return sealer.mac(b"item-vectors", plaintext, location.encoded)[:MEMBER_BYTES]
