"""Pieces: how a value is cut so that only what changed is stored again.

1. A value shorter than 4 KiB stays inline in the manifest.
2. A msgpack list is cut at element boundaries. Elements collect in an open tail; an element whose keyed digest ends
   the group closes it, and the whole group is stored once as one packed piece. In the tail, an element too long to be
   inline is a piece of its own, and shorter neighbours share one; what is shorter than a piece at the very end stays
   inline. So an element is stored about twice in its life, and an edit in the middle re-synchronises at the next group.
3. Any other value is opaque bytes, cut by FastCDC.
4. Long sequences of pieces fold into index pieces, whose children are listed in the clear for garbage collection.
5. Large leaves (`storage.format.leaves`) are taken out before anything else, each a piece of its own, and a
   placeholder is cut in their place: a client that sends the placeholder itself gets the same pieces. What is stored
   together with a placeholder is a composite piece, whose children are listed as an index piece's are.

Values are never instantiated: what does not parse as a list is opaque. Concatenating what `leaves` names gives back
the exact bytes. Cutting hides nothing about sizes. Where pieces are kept, in the database or as blobs, is not decided
here; but a piece that is a blob has a chunk that says so, which is written and read here.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol
from uuid import UUID

import msgpack
import msgspec
from pyfastcdc import FastCDC

from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure, InvalidState, LimitExceeded
from storage.format.leaf_notes import notes_of
from storage.format.leaves import PIECE_ID_BYTES, PLACEHOLDER_BYTES, large_leaves, placeholder, read_placeholder
from storage.model import LargeLeaf, Value

INLINE_BYTES_MAX = 4 * 1024
# A piece costs a row and a seal; what is not one yet is sealed again in every manifest. With less than this the first
# costs more than it saves, with more the second does, measured for chats of short, long and mixed messages.
PIECE_BYTES_MIN = 2048
GROUP_BYTES_MIN = 1024
GROUP_BYTES_MAX = 64 * 1024
# One element in 32 ends a group: a load then touches about n/32 packed pieces and at most a group's worth of tail.
GROUP_ELEMENTS_AVERAGE = 32
# A manifest names at most this many pieces of one value itself; more fold into index pieces.
DIRECT_PIECES_MAX = 64
INDEX_CHILDREN_MAX = 128
# Placeholders that one value may have: at 28 bytes each they cost a client little, and a row each costs us much.
HOLES_MAX = 10_000
_COMPOSITE_HOLES_MAX = 64
# What an answer shows of a large leaf beside its value, without what is said of it, and what it takes to show it.
LEAF_SHOWN_BYTES = 256
# List elements that one save may cut together: each costs a digest and a number for where it is. No request brings as
# many; a list that grew by many saves can have them, when it is compacted or converted.
LIST_ELEMENTS_MAX = 1_000_000
# As many bytes, or elements of lists, are cut beside the event loop: a second of cutting is then not a second in which
# no request is answered. An element takes more than a microsecond, however short it is.
CUT_BESIDE_BYTES_MIN = 256 * 1024
CUT_BESIDE_ELEMENTS_MIN = 2000
# FastCDC's least, average and greatest segment; the second for bytes that only their own program can read, which rarely
# change in the middle and cost an object each where pieces go to the object store.
_SEGMENTS = (4 * 1024, 16 * 1024, GROUP_BYTES_MAX)
_LARGE_SEGMENTS = (64 * 1024, 256 * 1024, 1024 * 1024)

ELEMENTS, SEGMENT, INDEX, LEAF, COMPOSITE, BLOB = range(6)
# A blob's chunk is no content of its own: it stands for a piece of another kind.
_KIND_NAMES = {ELEMENTS: "elements", SEGMENT: "segment", INDEX: "index", LEAF: "leaf", COMPOSITE: "composite"}
_BLOB = struct.Struct(">BBQ16s")
_composite_decoder = msgspec.msgpack.Decoder(tuple[bytes, list[int]])

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


class Piece(msgspec.Struct, frozen=True):
    """A part of a value. ``plaintext`` begins with the kind; ``children`` are an index or composite piece's, packed."""

    piece_id: bytes
    plaintext: bytes
    children: bytes | None

    @property
    def kind(self) -> int:
        """`ELEMENTS` or another of them."""
        return self.plaintext[0]

    @property
    def size(self) -> int:
        """Bytes of content."""
        return len(self.plaintext) - 1


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
class Elements:
    """How many list elements were cut for one save, in all of its records."""

    count: int = 0

    def add(self, count: int) -> None:
        """Count a list before its elements are looked for.

        Raises:
            LimitExceeded: they are more than one save may have.
        """
        self.count += count
        if self.count > LIST_ELEMENTS_MAX:
            raise LimitExceeded("LIST_ELEMENTS_MAX", LIST_ELEMENTS_MAX, self.count)


class Grown(msgspec.Struct, frozen=True):
    """What became of the large leaves of a list that elements were put behind.

    Attributes:
        notes: Those of the leaves among the elements.
        follows: Whether these leaves come right after those that the list had: none was taken out of its open tail.
    """

    notes: Sequence[bytes] = ()
    follows: bool = True


@dataclass(slots=True)
class Cutter:
    """Cuts the values of one record. ``pieces`` collects every piece that the cut values are made of.

    ``offload_bytes_min`` None: leaves stay where they are and no segment is large. ``referenced`` collects the sizes of
    the leaves that came as placeholders, whose content is not here.
    """

    digests: Digests
    listed: PieceList = field(default_factory=PieceList)
    pieces: dict[bytes, Piece] = field(default_factory=dict)
    offload_bytes_min: int | None = None
    referenced: dict[bytes, int] = field(default_factory=dict)
    elements: Elements = field(default_factory=Elements)

    def beside(self) -> "Cutter":
        """A cutter for another record, which lists its own pieces and collects them with these."""
        return Cutter(self.digests, PieceList(), self.pieces, self.offload_bytes_min, self.referenced, self.elements)

    def cut(self, value: Value) -> Body:
        """Cut a value; small ones come back inline.

        Raises:
            InvalidState: the value says it has a placeholder where there is none.
            LimitExceeded: the lists of this save have too many elements together.
        """
        return self._cut(value)[0]

    def cut_noted(self, value: Value) -> tuple[Body, Body | None]:
        """Cut a value, and what is said of its large leaves, if it has some; raises as `cut`."""
        body, notes = self._cut(value)
        return body, self.cut_list(notes) if notes else None

    def cut_list(self, elements: Sequence[bytes]) -> Body:
        """Cut a list of these elements; raises as `cut`."""
        return self.cut(Value("msgpack", list_header(len(elements)) + b"".join(elements)))

    def _cut(self, value: Value) -> tuple[Body, list[bytes]]:
        """A value, cut, and the notes of its large leaves (`storage.format.leaf_notes`)."""
        data = value.data
        holes: Sequence[int] = value.holes
        if len(data) < INLINE_BYTES_MAX and not holes:
            return data, []
        if holes:
            self._admit(value)
        if value.encoding != "msgpack":
            return self._cut_opaque(data, self._large_segments(data)), []
        if _is_list(data):
            self.elements.add(min(list_count(data), len(data)))
        bounds = list_bounds(data)
        starts = holes
        noted = (value.data, value.holes, value.leaves, bounds)
        if self.offload_bytes_min is not None and len(data) >= self.offload_bytes_min:
            data, holes, bounds, starts = self._take_leaves(data, holes, bounds)
        if bounds is not None:
            body = self._cut_elements(data[: bounds[0]], data, bounds, holes=holes)
        elif holes:
            body = self._cut_around(data, holes)
        else:
            body = self._cut_opaque(data, _SEGMENTS)
        return body, notes_of(noted[0], starts, *noted[1:])

    def append(
        self,
        header: bytes,
        body: tuple[bytes, list[Leaf], int],
        ids: Sequence[bytes],
        look_up: Callable[[bytes], "Opened"],
        added: bytes,
    ) -> Body:
        """Put elements after those of a list: what cutting the longer list would give, without cutting it all again.

        Args:
            header: the list's new msgpack header.
            body: the list as it was cut.
            ids: the pieces of its record.
            look_up: gives those of its open tail. What is closed stays as it is.
            added: the elements, concatenated msgpack values.
        """
        return self.append_noted(header, body, ids, look_up, added, ())[0]

    def append_noted(
        self,
        header: bytes,
        body: tuple[bytes, list[Leaf], int],
        ids: Sequence[bytes],
        look_up: Callable[[bytes], "Opened"],
        added: bytes,
        client_notes: Sequence[LargeLeaf],
    ) -> "tuple[Body, Grown]":
        """Put elements after those of a list as `append` does; returns also what became of the list's large leaves.

        ``client_notes`` has the large leaves in ``added``, by their paths.
        """
        _, leaves, closed_before = body
        before, begun = leaves[:closed_before], leaves[closed_before:]
        piece_ids = piece_ids_of((b"", before, 0), ids)
        tail, holes = join_holed((b"", begun, 0), ids, look_up)
        bytes_min = self.offload_bytes_min
        if holes or (bytes_min is not None and len(added) >= bytes_min) or bytes in map(type, begun[:-1]):
            return self._cut_tail_anew(header, (tail, added), piece_ids, holes, (list_count(body[0]), client_notes))
        # No element of the tail closed a group, nor a run but those that are pieces: the whole tail counts as one.
        view = memoryview(tail + added)
        bounds = [len(tail) + at for at in element_bounds(added)]
        if tail:
            bounds.insert(0, 0)
        closed, open_from = self._close_groups(view, bounds, piece_ids, (), 1 if tail else 0)
        leaves = [self.listed.number(each) for each in self._fold(closed)]
        closed_after = len(leaves)
        if tail and not open_from:
            leaves += [self.listed.number(each) for each in piece_ids_of((b"", begun, 0), ids)]
            bounds[0] = len(tail) - (len(begun[-1]) if isinstance(begun[-1], bytes) else 0)
        leaves += self._cut_tail(view, bounds[open_from:], ())
        return (header, leaves, closed_after), Grown()

    def _cut_tail_anew(
        self,
        header: bytes,
        parts: tuple[bytes, bytes],
        kept: Sequence[bytes],
        holes: Sequence[int],
        noted: tuple[int, Sequence[LargeLeaf]],
    ) -> "tuple[Body, Grown]":
        """Cut a list's open tail with what is added to it; ``noted``: how many elements it had, and what is said."""
        tail, added = parts
        data, grown = tail + added, Grown()
        bounds = element_bounds(data)
        if self.offload_bytes_min is not None and len(data) >= self.offload_bytes_min:
            before = len(holes)
            data, holes, shifted, starts = self._take_leaves(data, holes, bounds)
            new = [at - len(tail) for at in starts if at >= len(tail)]
            own = [at - len(tail) for at in bounds if at >= len(tail)]
            count, client_notes = noted
            notes = notes_of(added, new, (), client_notes, own, count) if new else []
            grown = Grown(notes, follows=len(starts) - len(new) == before)
            bounds = bounds if shifted is None else shifted
        return self._cut_elements(header, data, bounds, kept, holes), grown

    def _large_segments(self, data: bytes) -> tuple[int, int, int]:
        if self.offload_bytes_min is None or len(data) < self.offload_bytes_min:
            return _SEGMENTS
        return _LARGE_SEGMENTS

    def _admit(self, value: Value) -> None:
        """Take a client's placeholders at their word about the sizes: joining compares them with the pieces."""
        if value.encoding != "msgpack" or len(value.holes) > HOLES_MAX:
            raise InvalidState(f"only MessagePack has placeholders, and at most {HOLES_MAX}", "/holes")
        free_from = 0
        for at in value.holes:
            found = read_placeholder(value.data, at) if at >= free_from else None
            if found is None or self.referenced.setdefault(*found) != found[1]:
                raise InvalidState("there is no placeholder at this offset", "/holes")
            free_from = at + PLACEHOLDER_BYTES

    def _take_leaves(
        self, data: bytes, holes: Sequence[int], bounds: list[int] | None
    ) -> tuple[bytes, Sequence[int], list[int] | None, Sequence[int]]:
        """Put placeholders in the place of large leaves; holes and bounds as they are afterwards.

        The last are where the leaves and holes were before.
        """
        bytes_min = self.offload_bytes_min or 0
        leaves: list[tuple[int, int]] = []
        for start, end in pairwise(bounds or (0, len(data))):
            if end - start >= bytes_min:
                leaves.extend(large_leaves(data, start, end, bytes_min))
        if holes:  # a placeholder is never inside a leaf of its own value, unless a caller says so
            leaves = [(start, end) for start, end in leaves if not _any_within(holes, start, end)]
        if not leaves:
            return data, holes, bounds, holes
        view = memoryview(data)
        parts: list[bytes | memoryview] = []
        at = 0
        for start, end in leaves:
            parts += (view[at:start], placeholder(self._piece(LEAF, view[start:end]), end - start))
            at = end
        parts.append(view[at:])
        starts = [start for start, _ in leaves]
        saved = [0]
        for start, end in leaves:
            saved.append(saved[-1] + end - start - PLACEHOLDER_BYTES)

        def moved(offset: int) -> int:
            return offset - saved[bisect_left(starts, offset)]

        return (
            b"".join(parts),
            sorted(moved(at) for at in (*holes, *starts)),
            None if bounds is None else [moved(at) for at in bounds],
            sorted((*holes, *starts)),
        )

    def _cut_elements(
        self, header: bytes, data: bytes, bounds: list[int], kept: Sequence[bytes] = (), holes: Sequence[int] = ()
    ) -> Body:
        view = memoryview(data)
        if holes:
            _check_inside(holes, bounds)
        closed, open_from = self._close_groups(view, bounds, kept, holes, 0)
        leaves: list[Leaf] = [self.listed.number(each) for each in self._fold(closed)]
        closed_leaves = len(leaves)
        leaves.extend(self._cut_tail(view, bounds[open_from:], holes))
        return header, leaves, closed_leaves

    def _close_groups(
        self, view: memoryview, bounds: Sequence[int], kept: Sequence[bytes], holes: Sequence[int], first: int
    ) -> tuple[list[bytes], int]:
        """The closed groups, and which element begins the open one; elements before ``first`` close none."""
        closed = list(kept)
        group_start = 0  # index into bounds of the open group's first element
        for number in range(first, len(bounds) - 1):
            start, end = bounds[number], bounds[number + 1]
            open_bytes = start - bounds[group_start]
            if open_bytes and open_bytes + (end - start) > GROUP_BYTES_MAX:
                closed.append(self._run(view, bounds[group_start], start, holes))
                group_start = number
            if end - bounds[group_start] >= GROUP_BYTES_MIN and (
                end - start > GROUP_BYTES_MAX or self.digests.boundary(view[start:end]) % GROUP_ELEMENTS_AVERAGE == 0
            ):
                closed.append(self._run(view, bounds[group_start], end, holes))
                group_start = number + 1
        return closed, group_start

    def _cut_tail(self, view: memoryview, bounds: list[int], holes: Sequence[int]) -> list[Leaf]:
        leaves: list[Leaf] = []
        run_start = bounds[0]
        for start, end in pairwise(bounds):
            if end - start >= INLINE_BYTES_MAX and run_start < start:
                leaves.append(self.listed.number(self._run(view, run_start, start, holes)))
                run_start = start
            if end - run_start >= PIECE_BYTES_MIN:
                leaves.append(self.listed.number(self._run(view, run_start, end, holes)))
                run_start = end
        if run_start < bounds[-1]:
            leaves.extend(self._around(view, run_start, bounds[-1], holes))
        return leaves

    def _cut_opaque(self, data: bytes, sizes: tuple[int, int, int]) -> Body:
        closed = self._fold(self._segments(data, sizes))
        return b"", [self.listed.number(each) for each in closed], len(closed)

    def _cut_around(self, data: bytes, holes: Sequence[int]) -> Body:
        """Cut a value that is no list around its placeholders; most have few, and then they stand in the record."""
        view = memoryview(data)
        ids: list[bytes] = []
        run_start = at = 0
        in_run = 0
        for hole in (*holes, len(data)):
            if hole - at >= INLINE_BYTES_MAX:
                if run_start < at:
                    ids.append(self._run(view, run_start, at, holes))
                ids.extend(self._segments(data[at:hole], _SEGMENTS))
                run_start, in_run = hole, 0
            elif in_run == _COMPOSITE_HOLES_MAX:
                ids.append(self._run(view, run_start, at, holes))
                run_start, in_run = at, 0
            at = hole + PLACEHOLDER_BYTES
            in_run += 1
        leaves: list[Leaf] = [self.listed.number(each) for each in self._fold(ids)]
        leaves.extend(self._around(view, run_start, len(data), holes))
        return b"", leaves, len(leaves)

    def _around(self, view: memoryview, start: int, end: int, holes: Sequence[int]) -> list[Leaf]:
        """Inline bytes, and between them the pieces that placeholders stand for."""
        leaves: list[Leaf] = []
        at = start
        for hole in _within(holes, start, end):
            if at < hole:
                leaves.append(bytes(view[at:hole]))
            leaves.append(self.listed.number(_placeholder_at(view, hole)[0]))
            at = hole + PLACEHOLDER_BYTES
        if at < end:
            leaves.append(bytes(view[at:end]))
        return leaves

    def _run(self, view: memoryview, start: int, end: int, holes: Sequence[int]) -> bytes:
        """Store neighbouring bytes together, with the placeholders among them if there are any."""
        inside = _within(holes, start, end) if holes else ()
        if not inside:
            return self._piece(ELEMENTS, view[start:end])
        children = b"".join(_placeholder_at(view, hole)[0] for hole in inside)
        content = write_composite(view[start:end], [hole - start for hole in inside])
        return self._piece(COMPOSITE, content, children)

    def _segments(self, data: bytes, sizes: tuple[int, int, int]) -> list[bytes]:
        min_size, avg_size, max_size = sizes
        chunker = FastCDC(avg_size=avg_size, min_size=min_size, max_size=max_size)
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

    def _index(self, run: list[bytes]) -> bytes:
        children = b"".join(run)
        return self._piece(INDEX, memoryview(children), children)

    def _piece(self, kind: int, data: bytes | memoryview, children: bytes | None = None) -> bytes:
        piece_id = self.digests.content_id(_KIND_NAMES[kind], "", data)
        if piece_id not in self.pieces:
            self.pieces[piece_id] = Piece(piece_id, bytes((kind,)) + data, children)
        return piece_id


def leaf_piece(digests: Digests, data: bytes) -> Piece:
    """The piece that a large leaf is, as a client sends it before it sends a placeholder.

    Raises:
        InvalidState: it is not exactly one MessagePack str, bin or extension object.
    """
    if not data or large_leaves(data, 0, len(data), len(data)) != [(0, len(data))]:
        raise InvalidState(
            "a piece must be exactly one MessagePack object in a str, bin or ext format of 8, 16 or 32 bits of length"
        )
    return Piece(digests.content_id(_KIND_NAMES[LEAF], "", data), bytes((LEAF,)) + data, None)


def piece_of(digests: Digests, kind: int, content: bytes, children: bytes | None) -> Piece:
    """The piece that content of a kind is; ``children``: an index or composite piece's, packed.

    Raises:
        IntegrityFailure: the content has other children.
    """
    if children != _children_of(kind, content):
        raise IntegrityFailure
    return Piece(digests.content_id(_KIND_NAMES[kind], "", content), bytes((kind,)) + content, children)


def _within(holes: Sequence[int], start: int, end: int) -> Sequence[int]:
    return holes[bisect_left(holes, start) : bisect_left(holes, end)]


def _any_within(holes: Sequence[int], start: int, end: int) -> bool:
    return bool(_within(holes, start, end))


def _check_inside(holes: Sequence[int], bounds: list[int]) -> None:
    """Refuse placeholders that do not lie in one element each: only a client that cannot count makes them."""
    for hole in holes:
        after = bisect_left(bounds, hole + 1)
        if not 0 < after < len(bounds) or hole + PLACEHOLDER_BYTES > bounds[after]:
            raise InvalidState("a placeholder must be a whole object", "/holes")


def _placeholder_at(data: bytes | memoryview, at: int) -> tuple[bytes, int]:
    found = read_placeholder(data, at)
    if found is None:
        raise IntegrityFailure
    return found


@dataclass(frozen=True, slots=True)
class BlobChunk:
    """What the chunk of a piece that lives in a blob says."""

    kind: int
    size: int
    blob_id: UUID

    def encode(self) -> bytes:
        """The plaintext to seal in the piece's place."""
        return _BLOB.pack(BLOB, self.kind, self.size, self.blob_id.bytes)

    @classmethod
    def decode(cls, plaintext: bytes) -> "BlobChunk | None":
        """Read a chunk's plaintext; None: the piece is in the chunk itself.

        Raises:
            IntegrityFailure: it says that it is a blob's, and is not.
        """
        if plaintext[:1] != bytes((BLOB,)):
            return None
        try:
            _, kind, size, blob_id = _BLOB.unpack(plaintext)
        except struct.error:
            raise IntegrityFailure from None
        if kind not in _KIND_NAMES:
            raise IntegrityFailure
        return cls(kind, size, UUID(bytes=blob_id))


class Opened(msgspec.Struct, frozen=True):
    """An opened piece. ``children``: an index or composite piece's. ``data`` None: a blob that was not fetched."""

    data: bytes | None
    children: tuple[bytes, ...] | None
    kind: int = ELEMENTS
    size: int = 0


def open_piece(digests: Digests, piece_id: bytes, plaintext: bytes, children: bytes | None) -> Opened:
    """An opened piece, after its id was computed again.

    Raises:
        IntegrityFailure: the content is not what the id names.
    """
    kind, data = plaintext[:1], plaintext[1:]
    if not kind or kind[0] not in _KIND_NAMES:
        raise IntegrityFailure
    return open_content(digests, piece_id, kind[0], data, children)


def open_content(digests: Digests, piece_id: bytes, kind: int, data: bytes, children: bytes | None) -> Opened:
    """An opened piece of a known kind, after its id was computed again.

    Raises:
        IntegrityFailure: the content is not what the id names.
    """
    if digests.content_id(_KIND_NAMES[kind], "", data) != piece_id or children != _children_of(kind, data):
        raise IntegrityFailure
    return Opened(data, None if children is None else tuple(unpack_ids(children)), kind, len(data))


def joined_bytes(body: Body, ids: Sequence[bytes], look_up: Callable[[bytes], Opened], *, refs: bool) -> int:
    """About how long a value is once it is put together, with what is shown of its large leaves.

    It is not put together for that.
    """
    if isinstance(body, bytes):
        return len(body)
    total = len(body[0])
    for leaf in body[1]:
        total += len(leaf) if isinstance(leaf, bytes) else _piece_bytes(_nth(ids, leaf), look_up, refs=refs)
    return total


def _piece_bytes(piece_id: bytes, look_up: Callable[[bytes], Opened], *, refs: bool) -> int:
    opened = look_up(piece_id)
    if opened.kind == LEAF:
        return LEAF_SHOWN_BYTES + (PLACEHOLDER_BYTES if refs else opened.size)
    own = 0 if opened.kind == INDEX else opened.size
    if opened.children is None:
        return own
    if refs and opened.kind == COMPOSITE:
        return own + LEAF_SHOWN_BYTES * len(opened.children)
    return own + sum(_piece_bytes(child, look_up, refs=refs) for child in opened.children)


def _children_of(kind: int, data: bytes) -> bytes | None:
    if kind == INDEX:
        return data
    if kind != COMPOSITE:
        return None
    content, holes = read_composite(data)
    return b"".join(_placeholder_at(content, at)[0] for at in holes)


def read_composite(data: bytes) -> tuple[bytes, list[int]]:
    """The content of a composite piece, and where placeholders stand in it.

    Raises:
        IntegrityFailure: it is none.
    """
    try:
        content, holes = _composite_decoder.decode(data)
    except msgspec.DecodeError:
        raise IntegrityFailure from None
    if any(after - at < PLACEHOLDER_BYTES for at, after in pairwise(holes)):
        raise IntegrityFailure
    return content, holes


def write_composite(content: bytes | memoryview, holes: Sequence[int]) -> bytes:
    """The content of a composite piece whose placeholders stand at these offsets, as `read_composite` reads it."""
    return encode_msgpack((content, holes))


def join(body: Body, ids: Sequence[bytes], look_up: Callable[[bytes], Opened]) -> bytes:
    """The exact bytes of a cut value.

    ``body`` is what `Cutter` returned and ``ids`` the record's list of pieces; ``look_up`` gives an opened piece by id,
    or raises.

    Raises:
        IntegrityFailure: the body names a piece the record does not list, or a piece is not what a placeholder says.
    """
    if isinstance(body, bytes):
        return body
    return _Joiner(look_up, resolves=True).run(body, ids).data


class Joined(msgspec.Struct, frozen=True):
    """A value, put together; ``holes`` and ``leaves`` are where its placeholders and large leaves stand."""

    data: bytes
    holes: tuple[int, ...] = ()
    leaves: Sequence[LargeLeaf] = ()


def put_together(body: Body, ids: Sequence[bytes], look_up: Callable[[bytes], Opened], *, refs: bool) -> Joined:
    """Put a value together as `join` does or, with ``refs``, as `join_holed` does.

    The result names the large leaves, whether or not they are in their place.
    """
    if isinstance(body, bytes):
        return Joined(body)
    return _Joiner(look_up, resolves=not refs).run(body, ids)


def join_holed(body: Body, ids: Sequence[bytes], look_up: Callable[[bytes], Opened]) -> tuple[bytes, tuple[int, ...]]:
    """A cut value with placeholders for its large leaves, and where they stand; otherwise as `join`."""
    if isinstance(body, bytes):
        return body, ()
    joined = _Joiner(look_up, resolves=False).run(body, ids)
    return joined.data, joined.holes


class _Joiner:
    """Puts one value together."""

    def __init__(self, look_up: Callable[[bytes], Opened], *, resolves: bool) -> None:
        self._look_up = look_up
        self._resolves = resolves
        self._parts: list[bytes | memoryview] = []
        self._length = 0
        self._leaves: list[LargeLeaf] = []

    def run(self, body: tuple[bytes, list[Leaf], int], ids: Sequence[bytes]) -> Joined:
        self._add(body[0])
        for leaf in body[1]:
            if isinstance(leaf, bytes):
                self._add(leaf)
            else:
                self._piece(_nth(ids, leaf))
        holes = () if self._resolves else tuple(each.at for each in self._leaves if each.at is not None)
        return Joined(b"".join(self._parts), holes, self._leaves)

    def _leaf(self, at: int, piece_id: bytes, size: int) -> None:
        self._leaves.append(LargeLeaf(at=at, piece_id=piece_id, size_bytes=size))

    def _add(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._length += len(data)

    def _piece(self, piece_id: bytes) -> None:
        opened = self._look_up(piece_id)
        if opened.kind == COMPOSITE:
            self._composite(opened)
        elif opened.children is not None:
            for child in opened.children:
                self._piece(child)
        elif opened.kind == LEAF:
            self._leaf(self._length, piece_id, opened.size)
            self._add(_content(opened) if self._resolves else placeholder(piece_id, opened.size))
        else:
            self._add(_content(opened))

    def _composite(self, opened: Opened) -> None:
        content, holes = read_composite(_content(opened))
        if not self._resolves:
            for at in holes:
                self._leaf(self._length + at, *_placeholder_at(content, at))
            self._add(content)
            return
        view = memoryview(content)
        at = 0
        for hole in holes:
            piece_id, size = _placeholder_at(view, hole)
            leaf = self._look_up(piece_id)
            if leaf.kind != LEAF or leaf.size != size:
                raise IntegrityFailure("a piece is not what its placeholder says")
            self._add(view[at:hole])
            self._leaf(self._length, piece_id, size)
            self._add(_content(leaf))
            at = hole + PLACEHOLDER_BYTES
        self._add(view[at:])


def _content(opened: Opened) -> bytes:
    if opened.data is None:
        raise IntegrityFailure("a piece was not fetched")
    return opened.data


def look_up_own(plaintexts: Mapping[bytes, bytes]) -> Callable[[bytes], Opened]:
    """Pieces of list tails that this process cut or opened, as `join_holed` wants them: not computed again."""

    def look_up(piece_id: bytes) -> Opened:
        plaintext = plaintexts.get(piece_id)
        if plaintext is None:
            raise IntegrityFailure("a piece is missing")
        return Opened(plaintext[1:], None, plaintext[0], len(plaintext) - 1)

    return look_up


def tail_ids(body: Body, ids: Sequence[bytes]) -> list[bytes]:
    """The ids of the pieces in the open tail of a list; none of any other value."""
    if isinstance(body, bytes) or not body[0]:
        return []
    prefix, leaves, closed = body
    return piece_ids_of((prefix, leaves[closed:], 0), ids)


def _nth(ids: Sequence[bytes], number: int) -> bytes:
    if not 0 <= number < len(ids):
        raise IntegrityFailure
    return ids[number]


def piece_ids_of(body: Body, ids: Sequence[bytes]) -> list[bytes]:
    """The ids of the pieces a body names directly."""
    if isinstance(body, bytes):
        return []
    return [_nth(ids, leaf) for leaf in body[1] if isinstance(leaf, int)]


def holds_list(body: Body) -> bool:
    """Whether a body was cut as a msgpack list, or is exactly one."""
    return list_bounds(body) is not None if isinstance(body, bytes) else _is_list(body[0])


def list_count(header: bytes) -> int:
    """How many elements the msgpack list header at the beginning announces."""
    first = header[0]
    return first & 0x0F if first < 0xA0 else int.from_bytes(header[1:3] if first == 0xDC else header[1:5])


def list_header(count: int) -> bytes:
    """The msgpack header of a list of ``count`` elements."""
    if count < 1 << 4:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def _is_list(data: bytes) -> bool:
    first = data[0] if data else 0
    return 0x90 <= first <= 0x9F or first in {0xDC, 0xDD}


def to_cut(value: Value) -> Iterator[bytes]:
    """A value as `is_long_to_cut` takes it: eight times, where the places of its placeholders have to be found."""
    yield from [value.data] * (8 if value.holes else 1)


def is_long_to_cut(values: Iterable[bytes]) -> bool:
    """Whether values are too much together to be cut on the event loop; a list's header may come by itself."""
    size_bytes = elements = 0
    for data in values:
        size_bytes += len(data)
        if _is_list(data):
            elements += list_count(data)
    return size_bytes >= CUT_BESIDE_BYTES_MIN or elements >= CUT_BESIDE_ELEMENTS_MIN


def list_bounds(data: bytes) -> list[int] | None:
    """Offsets of a msgpack list's elements and of its end, or None if ``data`` is not exactly one list."""
    if not _is_list(data):
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
