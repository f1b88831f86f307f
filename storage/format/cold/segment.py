"""What stays in the database of checkpoints that moved into segments: a list for each segment, and one row of sums.

A **segment** is an archive (`storage.format.cold.archive`) of some checkpoints of a thread that stays hot: those of one
range of ids, of all namespaces. The seals of the thread and of its heads count them as before. So a thread with
segments has its **cold sums** beside its seal: hot rows and cold sums together are what the seals say. The **list** of
a segment says which checkpoints are in its object, and how much they count.

A namespace may be **cold** as a whole: its head's row is in the list of the segment that has the head's checkpoint, the
sums count it among the thread's namespaces, and the **directory** says which segment that is. docs/formats/segment.md
is the same in words.

Owns the encoding of both, and what each is bound to. It reads no rows; whether the sums are the lists' is for
verification to compare (`storage.verification`).
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, Protocol, TypeVar
from uuid import UUID

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.chain import NO_WRITES, LiveSet, Macs, namespace_mac

FORMAT: Final = 1
# Of a list and of sums with heads of namespaces.
HEADS_FORMAT: Final = 2
_SUM_BYTES: Final = 32
_NUMBER_BYTES: Final = 4
# In the directory: 64 bits of a keyed digest and the number of a segment.
_TAG_BYTES: Final = 8
_ENTRY_BYTES: Final = _TAG_BYTES + _NUMBER_BYTES


class Segment(Protocol):
    """Which object has which range of a thread's checkpoint ids; `storage.format.cold.archive.Stub` has the words."""

    @property
    def thread_id(self) -> str: ...  # noqa: D102
    @property
    def segment(self) -> int: ...  # noqa: D102
    @property
    def volume(self) -> int: ...  # noqa: D102
    @property
    def first_id(self) -> str: ...  # noqa: D102
    @property
    def last_id(self) -> str: ...  # noqa: D102
    @property
    def blob_id(self) -> UUID: ...  # noqa: D102


R = TypeVar("R", bound=msgspec.Struct)
# A live set as it is stored: the number of its members and their sum.
_Sum = tuple[int, bytes]


class ListedCheckpoint(msgspec.Struct, array_like=True, frozen=True):
    """A checkpoint of a segment.

    Attributes:
        namespace: The namespace of the checkpoint.
        checkpoint_id: The id of the checkpoint.
        member: The checkpoint's member of its namespace's live set.
        writes_count: The number of its pending writes.
        writes_total: The sum of what each of them adds to the thread's seal, 32 bytes big endian.
    """

    namespace: str
    checkpoint_id: str
    member: bytes
    writes_count: int
    writes_total: bytes

    @classmethod
    def of(cls, namespace: str, checkpoint_id: str, member: bytes, writes: LiveSet) -> "ListedCheckpoint":
        """With the sum of its pending writes."""
        return cls(namespace, checkpoint_id, member, *_stored(writes))

    @property
    def writes(self) -> LiveSet:
        """The sum of its pending writes."""
        return _live((self.writes_count, self.writes_total))


class MadeCheckpoint(msgspec.Struct, array_like=True, frozen=True):
    """What a checkpoint's member takes that whoever saves it again need not say.

    Attributes:
        parent_id: The checkpoint it was made from; None: there was none.
        step: Its step.
        created_at: The moment it was saved.
    """

    parent_id: str | None
    step: int
    created_at: datetime


class ListedHead(msgspec.Struct, array_like=True, frozen=True):
    """The head of a cold namespace, as its row was.

    Attributes:
        namespace: Its name, which is empty for the root.
        head_id: The id of the head, which is a checkpoint of this segment.
        sequence: The namespace's sequence.
        seal: The head's seal, as it was stored.
        mac: The namespace's member of the thread's seal (`storage.format.chain.namespace_mac`), which takes the share
            of a thread that has one: so that it comes back without.
        earlier_count: The number of the namespace's checkpoints that are in other segments.
        earlier_total: The sum of their members, 32 bytes big endian.
    """

    namespace: str
    head_id: str
    sequence: int
    seal: bytes
    mac: bytes
    earlier_count: int
    earlier_total: bytes

    @classmethod
    def of(cls, namespace: str, head_id: str, sequence: int, seal: bytes, mac: bytes, earlier: LiveSet) -> "ListedHead":
        """With the sum of the checkpoints that are in other segments."""
        return cls(namespace, head_id, sequence, seal, mac, *_stored(earlier))

    @property
    def earlier(self) -> LiveSet:
        """The checkpoints of the namespace that are in other segments."""
        return _live((self.earlier_count, self.earlier_total))


class SegmentList(msgspec.Struct, frozen=True):
    """What counts of a segment.

    Attributes:
        checkpoints: Its checkpoints, by id and namespace.
        piece_ids: The ids of the pieces in its object, packed.
        heads: The heads of the namespaces that left with it.
        rebuilt_from: The least and the greatest id outside of its range of what its checkpoints are rebuilt from by
            their delta channels; empty: there is nothing. None: it was written before this was said.
        made: Of each of the checkpoints, in the same order, what a save that is repeated is compared by. None: it was
            written before this was said.
    """

    checkpoints: list[ListedCheckpoint]
    piece_ids: bytes
    heads: list[ListedHead] = []
    rebuilt_from: list[str] | None = None
    made: list[MadeCheckpoint] | None = None

    def seal(self, sealer: Sealer, segment: Segment) -> bytes:
        """The ``listed`` column of the segment's stub; it takes no client-held share."""
        record: tuple[object, ...] = (self.checkpoints, self.piece_ids, HEADS_FORMAT if self.heads else FORMAT)
        more: list[object] = [self.heads or None, self.rebuilt_from, self.made]
        while more and more[-1] is None:
            more.pop()
        if more:
            record += (self.heads, *more[1:])
        return sealer.without_share.seal(Kind.SEGMENT, _list_location(segment), encode_msgpack(record))

    @classmethod
    def open(cls, sealer: Sealer, segment: Segment, envelope: bytes | None) -> "SegmentList":
        """Open what `seal` made.

        Raises:
            IntegrityFailure: It is missing, was edited or moved, or is of a newer format.
            KeyDestroyed: The key it was sealed under is gone.
        """
        if envelope is None:
            raise IntegrityFailure("a segment is there, but not what says which of its checkpoints count")
        opened = _opened(_List, sealer, _list_location(segment), envelope)
        if opened.format != (HEADS_FORMAT if opened.heads else FORMAT):
            raise IntegrityFailure("the list of a segment is of a newer format")
        if opened.made is not None and len(opened.made) != len(opened.checkpoints):
            raise IntegrityFailure("the list of a segment says of other checkpoints how they were made")
        return cls(opened.checkpoints, opened.piece_ids, opened.heads, opened.rebuilt_from, opened.made)

    def live_sets(self) -> dict[str, LiveSet]:
        """The live set of the checkpoints of each namespace."""
        found: dict[str, LiveSet] = {}
        for each in self.checkpoints:
            found[each.namespace] = found.get(each.namespace, LiveSet()).add(each.member)
        return found

    @property
    def writes(self) -> LiveSet:
        """The sum of the pending writes."""
        total = NO_WRITES
        for each in self.checkpoints:
            total = total.join(each.writes)
        return total


class _List(msgspec.Struct, array_like=True, frozen=True):
    checkpoints: list[ListedCheckpoint]
    piece_ids: bytes
    format: int
    heads: list[ListedHead] = []
    rebuilt_from: list[str] | None = None
    made: list[MadeCheckpoint] | None = None


class Directory(msgspec.Struct, frozen=True):
    """Which segment has the head of which cold namespace, without naming one: ``threads.cold_namespaces``.

    Entries of 12 bytes in order: the beginning of the namespace's `namespace_mac` and the number of the segment.
    What is not in it is no cold namespace; what seems to be in it, the list of that segment tells.
    """

    entries: bytes = b""

    @classmethod
    def open(cls, macs: Macs, thread_id: str, sums: "ColdSums", stored: bytes | None) -> "Directory":
        """Take the stored directory, if it is the one that the sums are of.

        Raises:
            IntegrityFailure: It is another one, or missing.
        """
        found = cls(stored or b"")
        if (
            found.digest(macs, thread_id) != sums.directory
            or len(found.entries) != sums.namespaces.count * _ENTRY_BYTES
        ):
            raise IntegrityFailure("what says where heads of this thread are was edited outside the gateway")
        return found

    def digest(self, macs: Macs, thread_id: str) -> bytes:
        """What the sums keep of it; nothing of an empty one."""
        return macs.mac(b"cold-namespaces", thread_id.encode(), self.entries) if self.entries else b""

    def _tag(self, at: int) -> bytes:
        return self.entries[at * _ENTRY_BYTES : at * _ENTRY_BYTES + _TAG_BYTES]

    def segments_of(self, macs: Macs, namespace: str) -> Iterator[int]:
        """The numbers of segments that may have the head of a namespace; of almost every one that is not cold, none.

        ``macs`` are those of the thread's seal: they take its share.
        """
        tag, count = namespace_mac(macs, namespace)[:_TAG_BYTES], len(self.entries) // _ENTRY_BYTES
        for at in range(bisect_left(range(count), tag, key=self._tag), count):
            if self._tag(at) != tag:
                return
            end = (at + 1) * _ENTRY_BYTES
            yield int.from_bytes(self.entries[end - _NUMBER_BYTES : end])

    def _entry(self, at: int) -> bytes:
        return self.entries[at * _ENTRY_BYTES : (at + 1) * _ENTRY_BYTES]

    def _parts(self, entries: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, int]]:
        """For each of these, in order: what is before it, itself, and its place; then what is behind the last one."""
        at, count = 0, len(self.entries) // _ENTRY_BYTES
        for entry in sorted(entries):
            to = bisect_left(range(count), entry, lo=at, key=self._entry)
            yield self.entries[at * _ENTRY_BYTES : to * _ENTRY_BYTES], entry, to
            at = to
        yield self.entries[at * _ENTRY_BYTES :], b"", count

    def with_segment(self, segment: Segment, listed: SegmentList) -> "Directory":
        """With the heads of one more segment."""
        return Directory(b"".join(before + entry for before, entry, _ in self._parts(_entries(segment, listed))))

    def without_segment(self, segment: Segment, listed: SegmentList) -> "Directory":
        """Without the heads of one segment.

        Raises:
            IntegrityFailure: They are not among these.
        """
        left = bytearray()
        for number, (before, entry, at) in enumerate(self._parts(_entries(segment, listed))):
            left += before[_ENTRY_BYTES if number else 0 :]  # which begins with what was removed last
            if entry and self._entry(at) != entry:
                raise IntegrityFailure("what says where heads of this thread are does not know one")
        return Directory(bytes(left))


def _entries(segment: Segment, listed: SegmentList) -> Iterator[bytes]:
    number = segment.segment.to_bytes(_NUMBER_BYTES)
    return (each.mac[:_TAG_BYTES] + number for each in listed.heads)


class _Cold(msgspec.Struct, array_like=True, frozen=True):
    incarnation: bytes
    live: dict[str, _Sum]
    writes: _Sum
    segments: _Sum
    format: int
    namespaces: _Sum = (0, bytes(_SUM_BYTES))
    ended: _Sum = (0, bytes(_SUM_BYTES))
    heads: bytes = bytes(_SUM_BYTES)
    directory: bytes = b""


class ColdSums(msgspec.Struct, frozen=True):
    """What is in the segments of a thread, as sums.

    Attributes:
        incarnation: The thread's.
        live: The live set of the cold checkpoints of each namespace that has some, and a head in the database.
        writes: The sum of the pending writes of all cold checkpoints.
        segments: The segments, by `segment_mac`.
        namespaces: The cold namespaces, by `storage.format.chain.namespace_mac`.
        ended: All of their checkpoints.
        heads: Where each of them stands, by `head_digest`.
        directory: What `Directory.digest` says of where their heads are.
    """

    incarnation: bytes
    live: Mapping[str, LiveSet] = {}
    writes: LiveSet = NO_WRITES
    segments: LiveSet = LiveSet()
    namespaces: LiveSet = LiveSet()
    ended: LiveSet = LiveSet()
    heads: LiveSet = LiveSet()
    directory: bytes = b""

    def of(self, namespace: str) -> LiveSet:
        """The cold checkpoints of a namespace that has a head in the database."""
        return self.live.get(namespace, LiveSet())

    def with_segment(self, macs: Macs, segment: Segment, listed: SegmentList) -> "ColdSums":
        """With one more segment, whose heads came with it; `with_directory` is for the caller.

        Raises:
            IntegrityFailure: A head counts other checkpoints in other segments than there are.
        """
        live, namespaces, ended, heads = dict(self.live), self.namespaces, self.ended, self.heads
        for name, own in listed.live_sets().items():
            live[name] = self.of(name).join(own)
        for head in listed.heads:
            if self.of(head.namespace) != head.earlier:
                raise IntegrityFailure("a head counts other checkpoints in segments than there are")
            namespaces = namespaces.add(head.mac)
            heads = heads.add(head_digest(head.namespace, head.head_id, head.sequence))
            ended = ended.join(live.pop(head.namespace, LiveSet()))
        return msgspec.structs.replace(
            self,
            live=live,
            writes=self.writes.join(listed.writes),
            segments=self.segments.add(segment_mac(macs, segment)),
            namespaces=namespaces,
            ended=ended,
            heads=heads,
        )

    def without_segment(self, macs: Macs, segment: Segment, listed: SegmentList) -> "ColdSums":
        """With one segment less, and its heads back in the database; `with_directory` is for the caller.

        Raises:
            IntegrityFailure: It is not among these.
        """
        live, ended, own = dict(self.live), self.ended, listed.live_sets()
        for head in listed.heads:
            live[head.namespace] = head.earlier.join(own.get(head.namespace, LiveSet()))
            ended = ended.part(live[head.namespace])
        for name, some in own.items():
            live[name] = live.get(name, LiveSet()).part(some)
        return self._without(macs, segment, listed, live, ended)

    def without_checkpoints(self, macs: Macs, segment: Segment, listed: SegmentList) -> "ColdSums":
        """With one segment less, and nothing of it anywhere else; `with_directory` is for the caller.

        The namespaces whose heads are in it are gone; `with_head` says what became of those that have theirs in
        another segment.

        Raises:
            IntegrityFailure: It is not among these.
        """
        live, ended = dict(self.live), self.ended
        for name, some in listed.live_sets().items():
            if name in live:
                live[name] = live[name].part(some)
            else:
                ended = ended.part(some)
        return self._without(macs, segment, listed, live, ended)

    def _without(
        self, macs: Macs, segment: Segment, listed: SegmentList, live: Mapping[str, LiveSet], ended: LiveSet
    ) -> "ColdSums":
        """With one segment less, and these checkpoints left of namespaces with a head in the database, and without."""
        namespaces, heads = self.namespaces, self.heads
        for head in listed.heads:
            namespaces = namespaces.subtract(head.mac)
            heads = heads.subtract(head_digest(head.namespace, head.head_id, head.sequence))
        return msgspec.structs.replace(
            self,
            live={name: each for name, each in live.items() if each.count},
            writes=self.writes.part(listed.writes),
            segments=self.segments.subtract(segment_mac(macs, segment)),
            namespaces=namespaces,
            ended=ended,
            heads=heads,
        )

    def with_head(self, before: ListedHead, after: ListedHead) -> "ColdSums":
        """With a head in a segment that went on, because some of its checkpoints in other segments are gone."""
        heads = self.heads.subtract(head_digest(before.namespace, before.head_id, before.sequence))
        return msgspec.structs.replace(
            self, heads=heads.add(head_digest(after.namespace, after.head_id, after.sequence))
        )

    def with_object(self, macs: Macs, before: Segment, after: Segment) -> "ColdSums":
        """With a segment's object exchanged for another one that has the same checkpoints.

        Raises:
            IntegrityFailure: The former is not among these.
        """
        segments = self.segments.subtract(segment_mac(macs, before)).add(segment_mac(macs, after))
        return msgspec.structs.replace(self, segments=segments)

    def with_directory(self, macs: Macs, thread_id: str, directory: Directory) -> "ColdSums":
        """With what says where heads are."""
        return msgspec.structs.replace(self, directory=directory.digest(macs, thread_id))

    def compare(self, macs: Macs, segments: Iterable[Segment]) -> None:
        """Return if these are the thread's segments.

        Raises:
            IntegrityFailure: One is missing, was edited, or should not be there.
        """
        found = LiveSet()
        for segment in segments:
            found = found.add(segment_mac(macs, segment))
        if found != self.segments:
            raise IntegrityFailure("segments were added to or taken from this thread outside the gateway")

    def seal(self, sealer: Sealer, thread_id: str, created_at: datetime) -> bytes | None:
        """The thread's ``cold`` column, which takes no client-held share; None: there is no segment."""
        if not self.segments.count:
            return None
        record: tuple[object, ...] = (
            self.incarnation,
            {name: _stored(each) for name, each in self.live.items()},
            _stored(self.writes),
            _stored(self.segments),
            HEADS_FORMAT if self.namespaces.count else FORMAT,
        )
        if self.namespaces.count:
            record += (_stored(self.namespaces), _stored(self.ended), _stored(self.heads)[1], self.directory)
        location = cold_location(thread_id, created_at)
        return sealer.without_share.seal(Kind.SEGMENT, location, encode_msgpack(record), compress=False)

    @classmethod
    def open(
        cls, sealer: Sealer, thread_id: str, created_at: datetime, incarnation: bytes, envelope: bytes | None
    ) -> "ColdSums":
        """Open what `seal` made; of a thread without segments, nothing.

        Raises:
            IntegrityFailure: It was edited or moved, is of another life of the thread, or of a newer format.
            KeyDestroyed: The key it was sealed under is gone.
        """
        if envelope is None:
            return cls(incarnation)
        record = _opened(_Cold, sealer, cold_location(thread_id, created_at), envelope)
        if record.format != (HEADS_FORMAT if record.namespaces[0] else FORMAT):
            raise IntegrityFailure("the sums of a thread's segments are of a newer format")
        if record.incarnation != incarnation:
            raise IntegrityFailure("the sums of a thread's segments are of another life of it")
        live = {name: _live(each) for name, each in record.live.items()}
        namespaces, ended = _live(record.namespaces), _live(record.ended)
        heads = _live((namespaces.count, record.heads))
        writes, segments = _live(record.writes), _live(record.segments)
        return cls(incarnation, live, writes, segments, namespaces, ended, heads, record.directory)


def may_need(rebuilt_from: list[str] | None, first_id: str, last_id: str) -> bool:
    """Whether what is rebuilt from that (`SegmentList.rebuilt_from`) may need a checkpoint between these ids."""
    if rebuilt_from is None:
        return True
    return bool(rebuilt_from) and rebuilt_from[0] <= last_id and first_id <= rebuilt_from[-1]


def head_digest(namespace: str, head_id: str, sequence: int) -> bytes:
    """Where a namespace stands, for sums that tell whether any of several went on."""
    return hashlib.sha256(encode_msgpack((namespace, head_id, sequence))).digest()


def cold_location(thread_id: str, created_at: datetime) -> tuple[Field, ...]:
    """Where a thread's cold sums stand."""
    return "cold", thread_id, created_at


def segment_mac(macs: Macs, segment: Segment) -> bytes:
    """A segment's member of the cold sums: which object has which range of ids."""
    number, volume = segment.segment.to_bytes(_NUMBER_BYTES), segment.volume.to_bytes(_NUMBER_BYTES)
    ends = segment.first_id.encode(), segment.last_id.encode()
    return macs.mac(b"segment", segment.thread_id.encode(), number, volume, segment.blob_id.bytes, *ends)


def _list_location(segment: Segment) -> tuple[Field, ...]:
    return "segment-list", segment.thread_id, segment.segment, segment.blob_id


def _opened(kind: type[R], sealer: Sealer, location: tuple[Field, ...], envelope: bytes) -> R:
    try:
        return msgspec.msgpack.decode(sealer.without_share.open(Kind.SEGMENT, location, envelope), type=kind)
    except OpenError:
        raise IntegrityFailure("what is said of a thread's segments does not authenticate") from None
    except (msgspec.DecodeError, OverflowError, ValueError):
        raise IntegrityFailure("what is said of a thread's segments cannot be read") from None


def _stored(live: LiveSet) -> _Sum:
    return live.count, live.total.to_bytes(_SUM_BYTES)


def _live(stored: _Sum) -> LiveSet:
    count, total = stored
    return LiveSet(count, int.from_bytes(total))
