"""Pieces: how a value is cut so that only what changed is stored again.

1. A value shorter than 4 KiB stays inline in the manifest.
2. A msgpack list is cut at element boundaries. Elements collect in an open tail; an element whose keyed digest ends
   the group closes it, and the whole group is stored once as one packed piece. In the tail, a large element is a
   piece of its own and short neighbours share one; what is shorter than a piece at the very end stays inline. So an
   element is stored about twice in its life, and an edit in the middle re-synchronises at the next group.
3. Any other value is opaque bytes, cut by FastCDC.
4. Long sequences of pieces fold into index pieces, whose children are listed in the clear for garbage collection.

Values are never instantiated: what does not parse as a list is opaque. Concatenating what `leaves` names gives back
the exact bytes. Cutting hides nothing about sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgpack
from pyfastcdc import FastCDC

from storage.errors import IntegrityFailure
from storage.model import Value

PIECE_ID_BYTES = 17
INLINE_BYTES_MAX = 4 * 1024
PIECE_BYTES_MIN = 1024
GROUP_BYTES_MAX = 64 * 1024
# One element in 32 ends a group: a load then touches about n/32 packed pieces and at most a group's worth of tail.
GROUP_ELEMENTS_AVERAGE = 32
# A manifest names at most this many pieces of one value itself; more fold into index pieces.
DIRECT_PIECES_MAX = 64
INDEX_CHILDREN_MAX = 128

ELEMENTS, SEGMENT, INDEX = 0, 1, 2
_KIND_NAMES = {ELEMENTS: "elements", SEGMENT: "segment", INDEX: "index"}

Leaf = bytes | int
"""Inline bytes, or the number of a piece in the manifest's list of pieces."""

Body = bytes | tuple[bytes, list[Leaf], int]
"""Inline bytes; or a prefix (a list's msgpack header), leaves, and how many of the leaves are closed for good."""


class Digests(Protocol):
    """The keyed digests of one subject, as a `Sealer` gives them."""

    def content_id(self, kind: str, encoding: str, data: bytes | memoryview) -> bytes:
        """The 17-byte content id."""
        ...

    def boundary(self, data: bytes | memoryview) -> int:
        """A 64-bit number that decides where groups end."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a value. ``plaintext`` begins with the kind; ``children`` are an index piece's, packed."""

    piece_id: bytes
    plaintext: bytes
    children: bytes | None


@dataclass(slots=True)
class PieceList:
    """The pieces a record refers to, each numbered once, in order of first use."""

    ids: list[bytes] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def number(self, piece_id: bytes) -> int:
        """The number of a piece in this list, adding it if it is new."""
        found = self._numbers.get(piece_id)
        if found is None:
            found = self._numbers[piece_id] = len(self.ids)
            self.ids.append(piece_id)
        return found

    def pack(self) -> bytes:
        """The ids, concatenated: a record's ``piece_ids`` column."""
        return b"".join(self.ids)


def unpack_ids(packed: bytes) -> list[bytes]:
    """The ids in a packed column.

    Raises:
        IntegrityFailure: the length is not a multiple of an id's.
    """
    if len(packed) % PIECE_ID_BYTES:
        raise IntegrityFailure
    return [packed[at : at + PIECE_ID_BYTES] for at in range(0, len(packed), PIECE_ID_BYTES)]


@dataclass(slots=True)
class Cutter:
    """Cuts the values of one record. ``pieces`` collects every piece that the cut values are made of."""

    digests: Digests
    listed: PieceList = field(default_factory=PieceList)
    pieces: dict[bytes, Piece] = field(default_factory=dict)

    def cut(self, value: Value) -> Body:
        """Cut a value; small ones come back inline."""
        if len(value.data) < INLINE_BYTES_MAX:
            return value.data
        view = memoryview(value.data)
        if value.encoding == "msgpack":
            bounds = list_bounds(value.data)
            if bounds is not None:
                return self._cut_elements(bytes(view[: bounds[0]]), view, bounds)
        closed = self._fold(self._cut_segments(value.data))
        return b"", [self.listed.number(each) for each in closed], len(closed)

    def append(self, header: bytes, kept: Sequence[bytes], tail: bytes) -> Body:
        """Re-cut a list's open tail behind closed groups that stay as they are.

        Args:
            header: the list's new msgpack header.
            kept: ids of the pieces before the tail (closed groups and index pieces), unchanged.
            tail: the elements after them, concatenated msgpack values.
        """
        return self._cut_elements(header, memoryview(tail), element_bounds(tail), kept)

    def _cut_elements(self, header: bytes, view: memoryview, bounds: list[int], kept: Sequence[bytes] = ()) -> Body:
        closed = list(kept)
        group_start = 0  # index into bounds of the open group's first element
        for number in range(len(bounds) - 1):
            start, end = bounds[number], bounds[number + 1]
            open_bytes = start - bounds[group_start]
            if open_bytes and open_bytes + (end - start) > GROUP_BYTES_MAX:
                closed.append(self._piece(ELEMENTS, view[bounds[group_start] : start]))
                group_start = number
            if end - bounds[group_start] >= PIECE_BYTES_MIN and (
                end - start > GROUP_BYTES_MAX or self.digests.boundary(view[start:end]) % GROUP_ELEMENTS_AVERAGE == 0
            ):
                closed.append(self._piece(ELEMENTS, view[bounds[group_start] : end]))
                group_start = number + 1
        leaves: list[Leaf] = [self.listed.number(each) for each in self._fold(closed)]
        closed_leaves = len(leaves)
        leaves.extend(self._cut_tail(view, bounds[group_start:]))
        return header, leaves, closed_leaves

    def _cut_tail(self, view: memoryview, bounds: list[int]) -> list[Leaf]:
        leaves: list[Leaf] = []
        run_start = bounds[0]
        for start, end in pairwise(bounds):
            if end - start >= PIECE_BYTES_MIN:
                if run_start < start:
                    leaves.append(self._leaf(ELEMENTS, view[run_start:start]))
                leaves.append(self._leaf(ELEMENTS, view[start:end]))
                run_start = end
            elif end - run_start >= PIECE_BYTES_MIN:
                leaves.append(self._leaf(ELEMENTS, view[run_start:end]))
                run_start = end
        if run_start < bounds[-1]:
            leaves.append(bytes(view[run_start : bounds[-1]]))
        return leaves

    def _cut_segments(self, data: bytes) -> list[bytes]:
        chunker = FastCDC(avg_size=16 * 1024, min_size=4 * 1024, max_size=GROUP_BYTES_MAX)
        return [self._piece(SEGMENT, chunk.data) for chunk in chunker.cut_buf(data)]

    def _fold(self, ids: list[bytes]) -> list[bytes]:
        """Replace runs of ids by index pieces until few remain; which runs depends on the ids, not on positions."""
        while len(ids) > DIRECT_PIECES_MAX:
            folded: list[bytes] = []
            run: list[bytes] = []
            for each in ids:
                run.append(each)
                if len(run) >= 2 and (each[-1] % GROUP_ELEMENTS_AVERAGE == 0 or len(run) == INDEX_CHILDREN_MAX):
                    folded.append(self._index(run))
                    run = []
            if not folded:
                break
            ids = folded + run
        return ids

    def _leaf(self, kind: int, data: memoryview) -> int:
        return self.listed.number(self._piece(kind, data))

    def _index(self, run: list[bytes]) -> bytes:
        children = b"".join(run)
        return self._piece(INDEX, memoryview(children), children)

    def _piece(self, kind: int, data: bytes | memoryview, children: bytes | None = None) -> bytes:
        piece_id = self.digests.content_id(_KIND_NAMES[kind], "", data)
        if piece_id not in self.pieces:
            self.pieces[piece_id] = Piece(piece_id, bytes((kind,)) + bytes(data), children)
        return piece_id


def check_piece(digests: Digests, piece_id: bytes, plaintext: bytes, children: bytes | None) -> bytes:
    """The content of an opened piece, after its id was computed again.

    Raises:
        IntegrityFailure: the content is not what the id names.
    """
    kind, data = plaintext[:1], plaintext[1:]
    if not kind or kind[0] not in _KIND_NAMES:
        raise IntegrityFailure
    if digests.content_id(_KIND_NAMES[kind[0]], "", data) != piece_id:
        raise IntegrityFailure
    if (kind[0] == INDEX) != (children is not None) or (children is not None and children != data):
        raise IntegrityFailure
    return data


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened piece: an index piece has ``children``, any other ``data``."""

    data: bytes
    children: tuple[bytes, ...] | None


def join(body: Body, ids: Sequence[bytes], look_up: Callable[[bytes], Opened]) -> bytes:
    """The exact bytes of a cut value.

    Args:
        body: what `Cutter` returned.
        ids: the record's list of pieces.
        look_up: gives an opened piece by id, or raises.

    Raises:
        IntegrityFailure: the body names a piece the record does not list.
    """
    if isinstance(body, bytes):
        return body
    prefix, leaves, _ = body
    parts = [prefix]
    for leaf in leaves:
        if isinstance(leaf, bytes):
            parts.append(leaf)
        else:
            _join_piece(_nth(ids, leaf), look_up, parts)
    return b"".join(parts)


def _join_piece(piece_id: bytes, look_up: Callable[[bytes], Opened], parts: list[bytes]) -> None:
    opened = look_up(piece_id)
    if opened.children is None:
        parts.append(opened.data)
        return
    for child in opened.children:
        _join_piece(child, look_up, parts)


def _nth(ids: Sequence[bytes], number: int) -> bytes:
    if not 0 <= number < len(ids):
        raise IntegrityFailure
    return ids[number]


def piece_ids_of(body: Body, ids: Sequence[bytes]) -> list[bytes]:
    """The ids of the pieces a body names directly."""
    if isinstance(body, bytes):
        return []
    return [_nth(ids, leaf) for leaf in body[1] if isinstance(leaf, int)]


def list_count(header: bytes) -> int:
    """How many elements a msgpack list header announces."""
    unpacker = _unpacker(header)
    return unpacker.read_array_header()  # type: ignore[no-any-return]


def list_header(count: int) -> bytes:
    """The msgpack header of a list of ``count`` elements."""
    return msgpack.Packer().pack_array_header(count)  # type: ignore[no-any-return]


def list_bounds(data: bytes) -> list[int] | None:
    """Offsets of a msgpack list's elements and of its end, or None if ``data`` is not exactly one list."""
    first = data[0] if data else 0
    if not (0x90 <= first <= 0x9F or first in {0xDC, 0xDD}):
        return None
    try:
        unpacker = _unpacker(data)
        count = unpacker.read_array_header()
        bounds = [unpacker.tell()]
        for _ in range(count):
            unpacker.skip()
            bounds.append(unpacker.tell())
    except (ValueError, msgpack.UnpackException, RecursionError):
        return None
    return bounds if bounds[-1] == len(data) else None


def element_bounds(data: bytes) -> list[int]:
    """Offsets of concatenated msgpack values and of their end.

    Raises:
        IntegrityFailure: ``data`` is not a sequence of msgpack values.
    """
    unpacker = _unpacker(data)
    bounds = [0]
    try:
        while bounds[-1] < len(data):
            unpacker.skip()
            bounds.append(unpacker.tell())
    except (ValueError, msgpack.UnpackException, RecursionError):
        raise IntegrityFailure from None
    return bounds


def _unpacker(data: bytes) -> "msgpack.Unpacker":
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1))
    unpacker.feed(data)
    return unpacker
