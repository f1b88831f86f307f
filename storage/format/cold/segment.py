"""What stays in the database of checkpoints that moved into segments: a list for each segment, and one row of sums.

A **segment** is an archive (`storage.format.cold.archive`) of some checkpoints of a thread that stays hot: those of one
range of ids, of all namespaces. The seals of the thread and of its heads count them as before. So a thread with
segments has its **cold sums** beside its seal: hot rows and cold sums together are what the seals say. The **list** of
a segment says which checkpoints are in its object, and how much they count. docs/formats/segment.md is the same in
words.

Owns the encoding of both, and what each is bound to. It reads no rows; whether the sums are the lists' is for
verification to compare (`storage.verification`).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol, TypeVar
from uuid import UUID

import msgspec

from crypto import Field, Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.chain import NO_WRITES, LiveSet, Macs

FORMAT: Final = 1
_SUM_BYTES: Final = 32
_NUMBER_BYTES: Final = 4


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


class SegmentList(msgspec.Struct, array_like=True, frozen=True):
    """What counts of a segment.

    Attributes:
        checkpoints: Its checkpoints, by id and namespace.
        piece_ids: The ids of the pieces in its object, packed.
        format: Of this record.
    """

    checkpoints: list[ListedCheckpoint]
    piece_ids: bytes
    format: int = FORMAT

    def seal(self, sealer: Sealer, segment: Segment) -> bytes:
        """The ``listed`` column of the segment's stub; it takes no client-held share."""
        return sealer.without_share.seal(Kind.SEGMENT, _list_location(segment), encode_msgpack(self))

    @classmethod
    def open(cls, sealer: Sealer, segment: Segment, envelope: bytes | None) -> "SegmentList":
        """Open what `seal` made.

        Raises:
            IntegrityFailure: It is missing, was edited or moved, or is of a newer format.
            KeyDestroyed: The key it was sealed under is gone.
        """
        if envelope is None:
            raise IntegrityFailure("a segment is there, but not what says which of its checkpoints count")
        opened = _opened(cls, sealer, _list_location(segment), envelope)
        if opened.format != FORMAT:
            raise IntegrityFailure("the list of a segment is of a newer format")
        return opened


class _Cold(msgspec.Struct, array_like=True, frozen=True):
    incarnation: bytes
    live: dict[str, _Sum]
    writes: _Sum
    segments: _Sum
    format: int = FORMAT


class ColdSums(msgspec.Struct, frozen=True):
    """What is in the segments of a thread, as sums.

    Attributes:
        incarnation: The thread's.
        live: The live set of the cold checkpoints of each namespace that has some.
        writes: The sum of their pending writes.
        segments: The segments, by `segment_mac`.
    """

    incarnation: bytes
    live: Mapping[str, LiveSet] = {}
    writes: LiveSet = NO_WRITES
    segments: LiveSet = LiveSet()

    def of(self, namespace: str) -> LiveSet:
        """The cold checkpoints of a namespace."""
        return self.live.get(namespace, LiveSet())

    def with_segment(self, macs: Macs, segment: Segment, listed: SegmentList) -> "ColdSums":
        """With one more segment."""
        return msgspec.structs.replace(self.with_list(listed), segments=self.segments.add(segment_mac(macs, segment)))

    def with_list(self, listed: SegmentList) -> "ColdSums":
        """With the checkpoints of one more segment."""
        live = {name: self.of(name).join(own) for name, own in _live_sets(listed.checkpoints).items()}
        writes = self.writes.join(_writes(listed.checkpoints))
        return msgspec.structs.replace(self, live={**self.live, **live}, writes=writes)

    def without_segment(self, macs: Macs, segment: Segment, listed: SegmentList) -> "ColdSums":
        """With one segment less.

        Raises:
            IntegrityFailure: It is not among these.
        """
        live = dict(self.live)
        for name, own in _live_sets(listed.checkpoints).items():
            left = self.of(name).part(own)
            live[name] = left
            if not left.count:
                del live[name]
        return msgspec.structs.replace(
            self,
            live=live,
            writes=self.writes.part(_writes(listed.checkpoints)),
            segments=self.segments.subtract(segment_mac(macs, segment)),
        )

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
        record = _Cold(
            self.incarnation,
            {name: _stored(each) for name, each in self.live.items()},
            _stored(self.writes),
            _stored(self.segments),
        )
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
        if record.format != FORMAT:
            raise IntegrityFailure("the sums of a thread's segments are of a newer format")
        if record.incarnation != incarnation:
            raise IntegrityFailure("the sums of a thread's segments are of another life of it")
        live = {name: _live(each) for name, each in record.live.items()}
        return cls(incarnation, live, _live(record.writes), _live(record.segments))


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


def _live_sets(listed: Iterable[ListedCheckpoint]) -> dict[str, LiveSet]:
    found: dict[str, LiveSet] = {}
    for each in listed:
        found[each.namespace] = found.get(each.namespace, LiveSet()).add(each.member)
    return found


def _writes(listed: Iterable[ListedCheckpoint]) -> LiveSet:
    total = NO_WRITES
    for each in listed:
        total = total.join(each.writes)
    return total
