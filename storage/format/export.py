"""The content of an export: records one after another, in the clear inside the seal (docs/formats/export.md).

1. Every record is one msgpack array that begins with its number, in a frame with its length; long ones are compressed,
   each alone. Opening, then threads (or what was left out) one after another, a subject's paths of items behind its
   threads, then `End`; nothing follows it.
2. A thread comes in one order that depends on its content alone: artifacts by id, pending writes and checkpoints by
   their place, and each piece right before the first record that is made of it. Pieces are known by their number in
   the thread, so that nothing that a deployment's keys made is in it: two deployments that hold the same thread write
   the same bytes, and a digest over them compares the threads without any key.
3. What a record may say is bounded by its type. A reader that got past decoding has checked lengths, ranges and
   text; what records say of each other (numbers, counts, digests) is the reader's to check.

Nothing here reads rows, seals or opens.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct, structs

from crypto import OpenError
from crypto.compression import compress_if_smaller, inflate
from storage.encoding import encode_msgpack
from storage.errors import ImportRefused
from storage.format.leaves import PIECE_ID_BYTES, PLACEHOLDER_BYTES, placeholder, read_placeholder
from storage.format.manifest import ChannelRecord
from storage.format.pieces import COMPOSITE, INDEX, Body, read_composite, write_composite

FORMAT = 2
# A record that a sealer can seal; the longest are manifests with many small channels.
RECORD_BYTES_MAX = 64 * 1024 * 1024
# A piece is a part of one value of one save, whose body is bounded by half of that.
PIECE_BYTES_MAX = 64 * 1024 * 1024
# Longer content follows its record in slices of this length; the last one is shorter.
SLICE_BYTES = 1024 * 1024
DIGEST_BYTES = 32

_FRAME_BYTES = 8
_ZSTD = 1 << 31
_NO_PIECE = bytes(PIECE_ID_BYTES)
# MessagePack's arrays of up to 15 members, and numbers of one byte.
_SHORT_ARRAY = 0x90
_SHORT_NUMBER_MAX = 0x7F
_PENDING_TAG = 7
_END_TAG = 12
# The members that all builds write of a pending write and an end, with their tags, and of a channel; what came later
# follows them.
_PENDING_MEMBERS = 15
_CHANNEL_MEMBERS = 5
_END_MEMBERS = 4

Text = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00]*\Z")]
Identifier = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*\Z")]
Word = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00]*\Z")]
Namespace = Annotated[str, Meta(max_length=1024, pattern=r"^[^\x00]*\Z")]
Status = Literal["active", "waiting", "failed", "done"]
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Amount = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Moment = Annotated[datetime, Meta(tz=True)]
Slice = Annotated[bytes, Meta(min_length=1, max_length=SLICE_BYTES)]
NamedIds = Annotated[bytes, Meta(min_length=16, max_length=16 * 1024 * 1024)]
Kind = Literal["thread", "tenant"]
# Why a thread was left out.
Reason = Literal["client-share", "archived", "damaged"]


class Opening(Struct, array_like=True, tag=1, frozen=True):
    """The first record: what the export is of. ``export_id`` is the one that stands outside, too."""

    format: int
    export_id: UUID
    kind: Kind
    deployment_id: UUID
    tenant_id: UUID
    made_at: Moment


class Schema(Struct, array_like=True, tag=2, frozen=True):
    """A version of a state schema; its definition is JSON, as it was registered."""

    schema: Identifier
    number: Annotated[int, Meta(ge=1, lt=2**31)]
    definition: Annotated[bytes, Meta(max_length=1024 * 1024)]


class Beginning(Struct, array_like=True, tag=3, frozen=True):
    """A thread begins.

    Attributes:
        source: Which thread of which deployment this is, in its life of now: a keyless digest. No part of the
            thread's content digest.
        subject_id: The subject that the thread belongs to.
        thread_id: Its id.
        agent: As the thread's row has it, and what follows.
        status: Of the head.
        strict: Whether saves need a precondition.
        client_share: Whether it takes a share that only its client holds.
        created_at: When it was made.
        updated_at: When it last changed.
    """

    source: Annotated[bytes, Meta(max_length=DIGEST_BYTES)]
    subject_id: Identifier
    thread_id: Identifier
    agent: Word | None
    status: Status
    strict: bool
    client_share: bool
    created_at: Moment
    updated_at: Moment


class ArtifactRecord(Struct, array_like=True, tag=4, frozen=True):
    """A file that the thread owns, or that its state names; its content follows.

    Where another thread owns it, ``number`` is no part of the content digest: state names files by their id.
    """

    artifact_id: UUID
    thread_id: Identifier
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    number: Annotated[int, Meta(ge=1, lt=2**31)]
    media_type: Annotated[str, Meta(max_length=255)]
    metadata: Annotated[bytes, Meta(max_length=64 * 1024)]
    preview: Annotated[bytes, Meta(max_length=4096)] | None
    digest: Digest
    size_bytes: Count
    client_share: bool
    created_at: Moment


class PieceRecord(Struct, array_like=True, tag=5, frozen=True):
    """A piece; its number is how many came before it in the thread.

    Attributes:
        kind: As in `storage.format.pieces`.
        children: Numbers of an index piece's children, or of the leaves in a composite piece.
        size: Bytes of ``data``, or of what follows.
        data: The content, where it fits a slice: of a composite piece with empty placeholders, of an index none.
    """

    kind: Annotated[int, Meta(ge=0, le=4)]
    children: list[Count]
    size: Annotated[int, Meta(ge=0, le=PIECE_BYTES_MAX)]
    data: Annotated[bytes, Meta(max_length=SLICE_BYTES)] | None


class Data(Struct, array_like=True, tag=6, frozen=True):
    """The next slice of an artifact's or a piece's content."""

    data: Slice


class PendingRecord(Struct, array_like=True, tag=_PENDING_TAG, frozen=True):
    """A pending write. ``pieces``: its value's, by number."""

    namespace: Namespace
    checkpoint_id: Identifier
    task_id: Identifier
    idx: Int32
    task_path: Text
    channel: Word
    status: Status | None
    created_at: Moment
    pieces: list[Count]
    named_ids: NamedIds | None
    state_schema: Word | None
    state_version: Int32 | None
    encoding: Word
    body: Body
    leaves: Body | None = None


class CheckpointRecord(Struct, array_like=True, tag=8, frozen=True):
    """A checkpoint: its clear columns, and its manifest with the pieces by number."""

    namespace: Namespace
    checkpoint_id: Identifier
    parent_id: Identifier | None
    step: Int32
    status: Status
    outcome: Status | None
    source: Word | None
    agent: Word | None
    run_id: Word | None
    model_name: Word | None
    state_schema: Word | None
    state_version: Int32 | None
    input_tokens: Amount | None
    output_tokens: Amount | None
    cost_micros: Amount | None
    created_at: Moment
    pieces: list[Count]
    named_ids: NamedIds | None
    channels: list[ChannelRecord]
    metadata: dict[str, Any]
    model: dict[str, Any] | None
    delta_channels: tuple[str, ...]


class Head(Struct, array_like=True, tag=9, frozen=True):
    """A namespace's head: its greatest checkpoint. The sequence goes on in the other deployment."""

    namespace: Namespace
    head_id: Identifier
    sequence: Annotated[int, Meta(ge=1, le=2**62)]


class Ending(Struct, array_like=True, tag=10, frozen=True):
    """A thread ends. ``digest``: of its records from `Beginning` on, which is taken without its source."""

    artifacts: Count
    pieces: Count
    pending_writes: Count
    checkpoints: Count
    digest: Digest


class LeftOut(Struct, array_like=True, tag=11, frozen=True):
    """A thread that is not in the export, and why."""

    subject_id: Identifier
    thread_id: Identifier
    reason: Reason


class End(Struct, array_like=True, tag=_END_TAG, frozen=True):
    """The last record. ``digest``: of all records before it; ``paths``: of items, where there are any."""

    threads: Count
    left_out: Count
    digest: Digest
    paths: Count | None = None
    paths_left_out: Count | None = None


class Broken(Struct, array_like=True, tag=15, frozen=True):
    """The thread that began cannot be read to its end, and counts as left out: forget what came of it."""

    reason: Literal["damaged"]


class PolicyRecord(Struct, array_like=True, tag=13, frozen=True):
    """What a tenant, an agent or the thread that began says of retention, holds included; its policy is JSON.

    It is no part of a thread's content digest: it says what shall become of the content.
    """

    level: Literal["tenant", "agent", "thread"]
    target: Word
    policy: Annotated[bytes, Meta(max_length=64 * 1024)]


class AdoptionRecord(Struct, array_like=True, tag=14, frozen=True):
    """What unversioned state of an agent is that was saved before a moment; an empty agent: of what names none."""

    agent: Word
    namespace: Word
    number: Annotated[int, Meta(ge=1, lt=2**31)]
    state_schema: Identifier
    state_version: Annotated[int, Meta(ge=1, lt=2**31)]
    adopted_at: Moment


class SavePolicyRecord(Struct, array_like=True, tag=16, frozen=True):
    """What is asked of saves of an agent; an empty agent: of the whole tenant's."""

    agent: Word
    strict: bool | None
    compact_elements: Count | None = None
    compact_bytes: Count | None = None


class LinkRecord(Struct, array_like=True, tag=17, frozen=True):
    """What the thread that began was begun from; it need not be in the export."""

    thread_id: Identifier
    namespace: Namespace
    checkpoint_id: Identifier | None


# What clients call items may have any character, and is looked at where it is taken in (`storage.items.model`).
Label = Annotated[str, Meta(min_length=1, max_length=255)]
Labels = Annotated[list[Label], Meta(min_length=1, max_length=255)]


class PathRecord(Struct, array_like=True, tag=18, frozen=True):
    """A path of a subject's items begins.

    Attributes:
        subject_id: The subject that it belongs to.
        labels: Its labels.
        client_share: Whether it takes a share that only its client holds.
        sequence: How many changes it has had; none of its items has a greater revision.
    """

    subject_id: Identifier
    labels: Labels
    client_share: bool
    sequence: Annotated[int, Meta(ge=1, lt=2**62)]


class ItemRecord(Struct, array_like=True, tag=19, frozen=True):
    """An item of the path that began; those of a path come by their revisions.

    Attributes:
        key: The key that its value is under.
        encoding: Of its value.
        data: The value in that encoding.
        revision: No other state of a key of the path has it.
        ttl_seconds: How long it lives after it was put or last read; None: until it is deleted.
        created_at: When the key was first put.
        updated_at: When this value was put.
        expires_at: When it is over; a reader may have it live longer.
    """

    key: Annotated[str, Meta(max_length=255)]
    encoding: Word
    data: Annotated[bytes, Meta(min_length=1, max_length=SLICE_BYTES)]
    revision: Annotated[int, Meta(ge=1, lt=2**62)]
    ttl_seconds: Annotated[int, Meta(ge=1, lt=2**31)] | None
    created_at: Moment
    updated_at: Moment
    expires_at: Moment | None


class PathEnding(Struct, array_like=True, tag=20, frozen=True):
    """A path ends.

    Attributes:
        items: Its items that came.
        damaged: Its items that are not here, because they could not be opened.
        vectors: The `VectorsRecord`s that came.
        vectors_damaged: Those that are not here although their items may be; nobody may know how many, but it is not 0.
        digest: Of its records from `PathRecord` on.
    """

    items: Count
    damaged: Count
    vectors: Count
    vectors_damaged: Count
    digest: Digest


class PathsLeftOut(Struct, array_like=True, tag=21, frozen=True):
    """Paths of a subject that are not in the export, and why.

    ``labels`` are those of the only one, where they can be read. ``paths`` may be 0 where some are damaged: nobody
    knows which there were.
    """

    subject_id: Identifier
    reason: Literal["client-share", "damaged"]
    paths: Count
    labels: Labels | None


class VectorsRecord(Struct, array_like=True, tag=22, frozen=True):
    """Vectors of the item before, by one model; those of an item come by model and dimensions.

    Attributes:
        model: The name of the model.
        dimensions: How many each has.
        data: One after the other, as `storage.format.items.vectors` packs them.
    """

    model: Annotated[str, Meta(min_length=1, max_length=255)]
    dimensions: Annotated[int, Meta(ge=1, lt=2**16)]
    data: Annotated[bytes, Meta(min_length=1, max_length=SLICE_BYTES)]


class FloorRecord(Struct, array_like=True, tag=23, frozen=True):
    """Where the sequences of a subject's paths begin that are made later: none of what it removed had more."""

    subject_id: Identifier
    floor: Annotated[int, Meta(ge=1, lt=2**62)]


class EffectRecord(Struct, array_like=True, tag=24, frozen=True):
    """What a tool did for the thread that began, or may have done; as history, so that it is not done again.

    Attributes:
        namespace: The root of the namespace that it counts for.
        name: The name of the call.
        execution: The number of the execution under that name.
        attempt: How often it was started.
        mode: What may be repeated.
        status: Whether it was done, or nobody knows.
        tool: The name of the tool.
        identity: JSON pointers into the arguments that say what is the same.
        tool_digest: A digest of what the tool is.
        repeats: The number of the earlier execution of the same intent.
        repeats_name: The name of that one, if it is another.
        provider_key: What a provider tells repetitions by.
        anchor_checkpoint_id: The checkpoint that it was started at.
        run_id: The id of the run.
        created_at: When its first attempt was started.
        started_at: When its newest attempt was started.
        finished_at: When it ended, or would have at the latest.
        started_by: The id of the key that started it, in the deployment where it was.
        resolved_by: Who said there whether it happened.
        result_state: Whether there is a result, and where.
        result_bytes: The size of the result.
        artifact_id: The artifact that holds it.
        result_digest: The digest of the result that its finish named.
        error: The short name of the error's class.
        args: The arguments, as MessagePack.
        result: The result, as MessagePack; None: it is not here.
    """

    namespace: Namespace
    name: Identifier
    execution: Annotated[int, Meta(ge=1, lt=2**31)]
    attempt: Annotated[int, Meta(ge=1, lt=2**31)]
    mode: Literal["read", "idempotent", "once"]
    status: Literal["done", "unknown"]
    tool: Identifier
    identity: Annotated[list[Text], Meta(min_length=1, max_length=32)]
    tool_digest: Word | None
    repeats: Annotated[int, Meta(ge=1, lt=2**31)] | None
    repeats_name: Word | None
    provider_key: UUID
    anchor_checkpoint_id: Identifier | None
    run_id: Word | None
    created_at: Moment
    started_at: Moment
    finished_at: Moment
    started_by: Word
    resolved_by: Word | None
    result_state: Literal["none", "stored", "artifact", "missing"]
    result_bytes: Count | None
    artifact_id: UUID | None
    result_digest: Digest | None
    error: Word | None
    args: Annotated[bytes, Meta(min_length=1, max_length=SLICE_BYTES)]
    result: Annotated[bytes, Meta(min_length=1, max_length=SLICE_BYTES)] | None


Record = (
    Opening | Schema | Beginning | ArtifactRecord | PieceRecord | Data | PendingRecord | CheckpointRecord | Head
    | Ending | LeftOut | End | PolicyRecord | AdoptionRecord | Broken | SavePolicyRecord | LinkRecord
    | PathRecord | ItemRecord | PathEnding | PathsLeftOut | VectorsRecord | FloorRecord | EffectRecord
)  # fmt: skip
_NEWEST_TAG = 24

_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """A record's bytes, which digests are taken of.

    Members that came later are left out where they say nothing: so what an older build exported has the same digest
    when it is exported again.
    """
    if isinstance(record, CheckpointRecord):
        channels = [_without_unsaid(structs.astuple(each), _CHANNEL_MEMBERS) for each in record.channels]
        return encode_msgpack(structs.replace(record, channels=channels))
    if isinstance(record, PendingRecord):
        return encode_msgpack(_without_unsaid((_PENDING_TAG, *structs.astuple(record)), _PENDING_MEMBERS))
    if isinstance(record, End):
        return encode_msgpack(_without_unsaid((_END_TAG, *structs.astuple(record)), _END_MEMBERS))
    return encode_msgpack(record)


def _without_unsaid(members: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The first ``count`` members, and those after them up to the last one that is not None."""
    while len(members) > count and members[-1] is None:
        members = members[:-1]
    return members


def decode(encoded: bytes) -> Record:
    """Read a record.

    Raises:
        ImportRefused: it is none of this format, or says something that no record may.
    """
    try:
        record: Record = _decoder.decode(encoded)
    except (msgspec.DecodeError, RecursionError):
        if (number := _number(encoded)) > _NEWEST_TAG:
            raise ImportRefused(f"the export has records of kind {number}, which a newer release writes") from None
        raise ImportRefused("a record of the export cannot be read, or says what none may say") from None
    return record


def _number(encoded: bytes) -> int:
    """The number of a record's kind, where it is one of a single byte; else 0."""
    is_short = encoded[:1] and encoded[0] & 0xF0 == _SHORT_ARRAY
    return encoded[1] if is_short and len(encoded) > 1 and encoded[1] <= _SHORT_NUMBER_MAX else 0


def frame(encoded: bytes) -> bytes:
    """A record as it stands in the stream: length of what follows and length of the record, then the record."""
    compressed = compress_if_smaller(encoded) if len(encoded) <= RECORD_BYTES_MAX else None
    body = encoded if compressed is None else compressed
    flags = 0 if compressed is None else _ZSTD
    return (len(body) | flags).to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + body


class Frames:
    """Takes a stream apart. It holds at most one record."""

    def __init__(self) -> None:
        self._pending = bytearray()

    @property
    def held_bytes(self) -> int:
        """How much of a record is here."""
        return len(self._pending)

    def take(self, content: bytes) -> Iterator[bytes]:
        """Take more of the stream; gives the records that are complete.

        Raises:
            ImportRefused: there is a frame that none can be.
        """
        self._pending += content
        at = 0
        while len(self._pending) - at >= _FRAME_BYTES:
            lengths = int.from_bytes(self._pending[at : at + _FRAME_BYTES], "big")
            body_bytes, raw_bytes = (lengths >> 32) & ~_ZSTD, lengths & 0xFFFFFFFF
            is_compressed = bool(lengths >> 32 & _ZSTD)
            if raw_bytes > RECORD_BYTES_MAX or body_bytes > raw_bytes or (body_bytes != raw_bytes) != is_compressed:
                raise ImportRefused("a record of the export is longer than any may be")
            end = at + _FRAME_BYTES + body_bytes
            if len(self._pending) < end:
                break
            body = bytes(self._pending[at + _FRAME_BYTES : end])
            at = end
            try:
                yield inflate(body, raw_bytes) if is_compressed else body
            except OpenError:
                raise ImportRefused("a record of the export cannot be inflated") from None
        del self._pending[:at]


class RunningDigest:
    """A digest over records, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, encoded: bytes | None) -> None:
        """Take one more record; None is passed over."""
        if encoded is None:
            return
        self._hash.update(len(encoded).to_bytes(8, "big"))
        self._hash.update(encoded)

    def digest(self) -> bytes:
        """Of what was taken so far; 32 bytes."""
        return self._hash.digest()


def digested(record: Record, encoded: bytes, thread_id: str) -> bytes | None:
    """What a thread's content digest takes of a record, if anything; ``encoded``: the record as it is sent."""
    if isinstance(record, PolicyRecord):
        return None
    if isinstance(record, Beginning):
        return encode(msgspec.structs.replace(record, source=b""))
    if isinstance(record, ArtifactRecord) and record.thread_id != thread_id:
        return encode(msgspec.structs.replace(record, number=1))
    return encoded


# --- pieces without keys ---------------------------------------------------------------------------------------------


def without_ids(kind: int, content: bytes) -> bytes:
    """A piece's content without the ids of its children."""
    if kind == INDEX:
        return b""
    if kind != COMPOSITE:
        return content
    data, holes = read_composite(content)
    return write_composite(_replaced(data, holes, [_NO_PIECE] * len(holes)), holes)


def with_ids(kind: int, content: bytes, children: list[bytes]) -> bytes:
    """The piece's content again, with the ids that its children have here.

    Raises:
        ImportRefused: the content does not have as many children.
    """
    if kind == INDEX:
        if content or not children:
            raise ImportRefused("an index piece of the export is nothing but its children")
        return b"".join(children)
    if kind != COMPOSITE:
        if children:
            raise ImportRefused("a piece of the export has children that its kind does not have")
        return content
    data, holes = read_composite(content)
    if len(holes) != len(children):
        raise ImportRefused("a piece of the export has other children than it says")
    return write_composite(_replaced(data, holes, children), holes)


def leaf_sizes(content: bytes) -> list[int]:
    """How long the leaves of a composite piece are, by its placeholders."""
    data, holes = read_composite(content)
    return [_read(data, at)[1] for at in holes]


def _read(data: bytes, at: int) -> tuple[bytes, int]:
    found = read_placeholder(data, at)
    if found is None:
        raise ImportRefused("a piece of the export has no placeholder where it says")
    return found


def _replaced(data: bytes, holes: list[int], ids: list[bytes]) -> bytes:
    changed = bytearray(data)
    for at, piece_id in zip(holes, ids, strict=True):
        changed[at : at + PLACEHOLDER_BYTES] = placeholder(piece_id, _read(data, at)[1])
    return bytes(changed)
