"""Between rows and values: seal a record into its row's columns, open a row into a value.

Rows come from an untrusted store. Everything here either authenticates under the caller's `Sealer` at the place the
row was asked for, or raises `IntegrityFailure`; nothing is guessed, skipped or partly returned.
"""

import hmac
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import msgspec

from crypto import Kind, OpenError, Sealer
from crypto.context import Location
from storage.errors import (
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    IntegrityFailure,
    StateTooLarge,
)
from storage.format.chain import (
    HeadSeal,
    ThreadSeal,
    head_location,
    manifest_digest,
    member_mac,
    share_check,
    thread_location,
    write_mac,
    write_member,
)
from storage.format.key_versions import check_key_version
from storage.format.leaf_notes import decode as decode_notes
from storage.format.leaf_notes import with_notes
from storage.format.manifest import (
    CheckpointColumns,
    Manifest,
    WriteColumns,
    WriteRecord,
    chunk_location,
    decode_manifest,
    decode_write,
    encode,
)
from storage.format.pieces import (
    COMPOSITE,
    LEAF,
    LEAF_SHOWN_BYTES,
    BlobChunk,
    Body,
    Opened,
    Piece,
    joined_bytes,
    open_content,
    open_piece,
    put_together,
    unpack_ids,
)
from storage.model import Channel, Checkpoint, PendingWrite, Value


class _Authenticated:
    """Damage by its name. A class, because it is entered for every envelope: a generator takes five times as long."""

    def __enter__(self) -> None:
        """Begin the block in which an envelope is opened."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Say what it means that an envelope does not open."""
        if kind is not None and issubclass(kind, OpenError):
            raise IntegrityFailure from None


_AUTHENTICATED = _Authenticated()


class CheckpointRow(CheckpointColumns, frozen=True):
    """A stored checkpoint: its immutable clear columns, and what they do not cover.

    Attributes:
        outcome: The status that a task's writes give it; advisory, until it is compared with them.
        manifest: The sealed column.
        key_version: The version that the row says it is sealed under.
    """

    outcome: str | None
    manifest: bytes
    key_version: int

    @property
    def columns(self) -> CheckpointColumns:
        """The clear columns by themselves."""
        return CheckpointColumns(*msgspec.structs.astuple(self)[: len(_COLUMNS)])


class WriteRow(WriteColumns, frozen=True):
    """A stored pending write: its immutable clear columns, and what they do not cover.

    Attributes:
        value: The sealed column.
        member: The write's member of the sums that the seals keep.
        key_version: The version that the row says it is sealed under.
    """

    value: bytes
    member: bytes
    key_version: int

    @property
    def columns(self) -> WriteColumns:
        """The clear columns by themselves."""
        return WriteColumns(*msgspec.structs.astuple(self)[: len(_WRITE_COLUMNS)])


class MemberRow(msgspec.Struct, frozen=True):
    """The place of a pending write, and its member of the sums that the seals keep."""

    namespace: str
    checkpoint_id: str
    task_id: str
    idx: int
    member: bytes


class PieceRow(msgspec.Struct, frozen=True):
    """A stored piece.

    Attributes:
        piece_id: Its keyed content id.
        children: The ids of the pieces that it is made of, packed.
        named_ids: The blob that holds its content, packed; None: the envelope does.
        envelope: The sealed column.
        key_version: The version that the row says it is sealed under.
    """

    piece_id: bytes
    children: bytes | None
    named_ids: bytes | None
    envelope: bytes
    key_version: int


_COLUMNS = CheckpointColumns.__struct_fields__
_WRITE_COLUMNS = WriteColumns.__struct_fields__


class PieceReader:
    """The chunks of one read, opened when first needed and kept for the next checkpoint that shares them.

    ``refs``: values are put together with placeholders for their large leaves. ``bytes_max``: how long all values
    together may be, those that share pieces counted each. ``take`` counts them, before they are put together.
    """

    def __init__(
        self,
        sealer: Sealer,
        *,
        refs: bool = False,
        bytes_max: int | None = None,
        take: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.refs = refs
        self._bytes_max = bytes_max
        self._take = take
        self._taken = 0
        self._bytes = 0
        self._sealer = sealer
        self._sealed: dict[bytes, PieceRow] = {}
        self._opened: dict[bytes, Opened] = {}
        self._in_blobs: list[bytes] = []

    def add(self, rows: Iterable[PieceRow]) -> list[bytes]:
        """Take stored pieces; returns the children that are not here yet."""
        wanted: dict[bytes, None] = {}
        for row in rows:
            self._sealed[row.piece_id] = row
            if row.named_ids is not None:
                self._in_blobs.append(row.piece_id)
            if row.children is not None:
                wanted.update(dict.fromkeys(unpack_ids(row.children)))
        return [each for each in wanted if each not in self._sealed]

    def missing(self, ids: Iterable[bytes]) -> list[bytes]:
        """Which of these pieces are not here, each once."""
        return [each for each in dict.fromkeys(ids) if each not in self._sealed]

    def unopened(self) -> list[bytes]:
        """The pieces that are here and were not looked up yet."""
        return [each for each in self._sealed if each not in self._opened]

    def look_up(self, piece_id: bytes) -> Opened:
        """An opened piece.

        Raises:
            IntegrityFailure: it is missing or is not what its id names.
        """
        found = self._opened.get(piece_id)
        if found is not None:
            return found
        sealed = self._sealed.get(piece_id)
        if sealed is None:
            raise IntegrityFailure("a stored piece is missing")
        children = sealed.children
        plaintext = self._open(piece_id)
        chunk = BlobChunk.decode(plaintext)
        if sealed.named_ids != (None if chunk is None else chunk.blob_id.bytes):
            raise IntegrityFailure("a chunk names another blob than its own")
        if chunk is None:
            opened = open_piece(self._sealer, piece_id, plaintext, children)
        else:
            opened = Opened(None, None if children is None else tuple(unpack_ids(children)), chunk.kind, chunk.size)
        self._opened[piece_id] = opened
        return opened

    def _open(self, piece_id: bytes) -> bytes:
        row = self._sealed[piece_id]
        check_key_version(row.key_version, row.envelope)
        with _AUTHENTICATED:
            return self._sealer.open(Kind.CHUNK, chunk_location(piece_id, row.children, row.named_ids), row.envelope)

    def in_blobs(self) -> dict[bytes, BlobChunk]:
        """The pieces read so far whose content is needed and has to be fetched.

        Raises:
            IntegrityFailure: as `look_up`.
        """
        found: dict[bytes, BlobChunk] = {}
        for piece_id in self._in_blobs:
            opened = self.look_up(piece_id)
            if opened.data is None and not (self.refs and opened.kind == LEAF):
                chunk = BlobChunk.decode(self._open(piece_id))
                assert chunk is not None  # noqa: S101  for the type checker: `look_up` found that it is one
                found[piece_id] = chunk
        fetched = sum(chunk.size for chunk in found.values())
        if fetched > self._taken:  # what they are put together to is longer, and counted as it grows beyond this
            self._take(fetched - self._taken)
            self._taken = fetched
        return found

    def take(self, contents: Mapping[bytes, bytes]) -> None:
        """Take the content of pieces that `in_blobs` named.

        Raises:
            IntegrityFailure: one is not what its id names.
        """
        for piece_id, data in contents.items():
            children = self._sealed[piece_id].children
            kind = self.look_up(piece_id).kind
            self._opened[piece_id] = open_content(self._sealer, piece_id, kind, data, children)

    def plaintexts(self) -> dict[bytes, bytes]:
        """What was opened so far, as it was sealed: without what was not fetched."""
        opened = self._opened.items()
        return {each: bytes((found.kind,)) + found.data for each, found in opened if found.data is not None}

    def reserve(self, size_bytes: int) -> None:
        """Count about as much as values will take that are put together where nothing should be counted."""
        missing = self._bytes + size_bytes - self._taken
        if missing > 0:
            self._take(missing)
            self._taken += missing

    def size_of(self, body: Body, ids: Sequence[bytes], leaves: Body | None = None) -> int:
        """About how long a value will be, put together, with what is said of its large leaves."""
        noted = 0 if leaves is None else joined_bytes(leaves, ids, self.look_up, refs=self.refs)
        return noted + joined_bytes(body, ids, self.look_up, refs=self.refs)

    def value(self, encoding: str, body: Body, ids: Sequence[bytes], leaves: Body | None = None) -> Value:
        """A value, put together; ``leaves``: what is said of its large leaves.

        Raises:
            IntegrityFailure: as `join`.
            StateTooLarge: with those before it, it is longer than ``bytes_max``.
        """
        before = self._bytes
        look_up = self.look_up if self._bytes_max is None else self._counted
        joined = put_together(body, ids, look_up, refs=self.refs)
        notes = None if leaves is None else put_together(leaves, ids, look_up, refs=self.refs).data
        self._bytes = before
        self._count(len(joined.data) + len(notes or b"") + LEAF_SHOWN_BYTES * len(joined.leaves))
        known = with_notes(joined.leaves, () if notes is None else decode_notes(notes))
        return Value(encoding, joined.data, joined.holes, known)

    def _counted(self, piece_id: bytes) -> Opened:
        """Look up a piece for a value that is being put together: what is too long is not even gathered."""
        opened = self.look_up(piece_id)
        if opened.kind == LEAF:
            self._count(LEAF_SHOWN_BYTES + (0 if self.refs else opened.size))
        elif self.refs and opened.kind == COMPOSITE:
            self._count(LEAF_SHOWN_BYTES * len(opened.children or ()))
        elif opened.children is None:
            self._count(opened.size)
        return opened

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes_max is not None and self._bytes > self._bytes_max:
            raise StateTooLarge(self._bytes_max)
        if self._bytes > self._taken:
            self._take(self._bytes - self._taken)
            self._taken = self._bytes


def seal_piece(sealer: Sealer, piece: Piece, blob_id: UUID | None = None) -> bytes:
    """The envelope of a piece's chunk row; ``blob_id``: where its content is, if not in the row."""
    if blob_id is None:
        return sealer.seal(Kind.CHUNK, chunk_location(piece.piece_id, piece.children), piece.plaintext)
    location = chunk_location(piece.piece_id, piece.children, blob_id.bytes)
    return sealer.seal(Kind.CHUNK, location, BlobChunk(piece.kind, piece.size, blob_id).encode())


class SealedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint row's sealed column and the checkpoint's member of the live set."""

    envelope: bytes
    member: bytes


def seal_checkpoint(sealer: Sealer, columns: CheckpointColumns, manifest: Manifest) -> SealedCheckpoint:
    """Seal a manifest under its row's columns."""
    plaintext = encode(manifest)
    location = Location(columns.location())
    return SealedCheckpoint(
        sealer.seal(Kind.MANIFEST, location, plaintext), _member_of(sealer, columns, plaintext, location)
    )


def member_of(sealer: Sealer, columns: CheckpointColumns, manifest: Manifest) -> bytes:
    """The member of the live set that a checkpoint has, or would have."""
    return _member_of(sealer, columns, encode(manifest), Location(columns.location()))


def _member_of(sealer: Sealer, columns: CheckpointColumns, plaintext: bytes, location: Location) -> bytes:
    digest = manifest_digest(sealer, plaintext, location)
    return member_mac(sealer, columns.namespace, columns.checkpoint_id, digest)


class OpenedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint row, authenticated; ``outcome`` is advisory, until it is compared with the pending writes.

    ``opened_bytes``: what its manifest was decoded from; the row itself may be compressed to a fraction of that.
    """

    columns: CheckpointColumns
    manifest: Manifest
    member: bytes
    outcome: str | None
    opened_bytes: int = 0

    @property
    def place(self) -> tuple[str, str, str]:
        """Its id, thread and namespace, by which history is ordered."""
        return self.columns.checkpoint_id, self.columns.thread_id, self.columns.namespace

    @property
    def parent_id(self) -> str | None:
        """The checkpoint it was made from, which may have been removed."""
        return self.columns.parent_id

    @property
    def ids(self) -> list[bytes]:
        """The pieces its manifest names."""
        return unpack_ids(self.columns.piece_ids)

    def check_outcome(self, statuses: Collection[str]) -> None:
        """Compare the outcome with the statuses of the checkpoint's pending writes, authenticated.

        Raises:
            IntegrityFailure: it is none of them, or missing where there are some.
        """
        if self.outcome not in statuses and (statuses or self.outcome is not None):
            raise IntegrityFailure("the status of a checkpoint was altered")

    def channel(self, name: str, reader: PieceReader) -> Channel | None:
        """One channel's value, or None if the checkpoint does not hold it."""
        for channel in self.manifest.channels:
            if channel.name == name:
                value = reader.value(channel.encoding, channel.body, self.ids, channel.leaves)
                return Channel(version=channel.version, value=value)
        return None

    def value(self, reader: PieceReader | None, writes: list[PendingWrite] | None) -> Checkpoint:
        """The checkpoint as callers see it; ``reader`` None leaves the state out."""
        columns, manifest = self.columns, self.manifest
        channels: dict[str, Channel] | None = None
        if reader is not None:
            ids = self.ids
            channels = {
                each.name: Channel(version=each.version, value=reader.value(each.encoding, each.body, ids, each.leaves))
                for each in manifest.channels
            }
        return Checkpoint(
            thread_id=columns.thread_id,
            namespace=columns.namespace,
            checkpoint_id=columns.checkpoint_id,
            parent_id=columns.parent_id,
            step=columns.step,
            status=self.outcome or columns.status,  # type: ignore[arg-type]
            source=columns.source,
            agent=columns.agent,
            run_id=columns.run_id,
            created_at=columns.created_at,
            state_schema=columns.state_schema,
            state_version=columns.state_version,
            model=manifest.model,
            usage=_usage(columns.input_tokens, columns.output_tokens, columns.cost_micros),
            metadata=manifest.metadata,
            delta_channels=manifest.delta_channels,
            channels=channels,
            writes=writes,
        )


def _usage(input_tokens: int | None, output_tokens: int | None, cost_micros: int | None) -> dict[str, int] | None:
    amounts = {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost_micros": cost_micros}
    return {name: amount for name, amount in amounts.items() if amount is not None} or None


def clear_checkpoint(columns: CheckpointColumns, outcome: str | None) -> Checkpoint:
    """What the clear columns of a stored checkpoint say. Nothing is opened, so nothing vouches for it."""
    return Checkpoint(
        thread_id=columns.thread_id,
        namespace=columns.namespace,
        checkpoint_id=columns.checkpoint_id,
        parent_id=columns.parent_id,
        step=columns.step,
        status=outcome or columns.status,  # type: ignore[arg-type]
        source=columns.source,
        agent=columns.agent,
        run_id=columns.run_id,
        created_at=columns.created_at,
        state_schema=columns.state_schema,
        state_version=columns.state_version,
        model=None if columns.model is None else {"name": columns.model},
        usage=_usage(columns.input_tokens, columns.output_tokens, columns.cost_micros),
        metadata={},
        delta_channels=(),
        channels=None,
        writes=None,
        withheld=True,
    )


def open_checkpoint(sealer: Sealer, row: CheckpointRow) -> OpenedCheckpoint:
    """Open a checkpoint row at the place its key columns name, which the statement that found it asked for.

    Raises:
        IntegrityFailure: a column was edited, the row was moved, or it is not a manifest.
    """
    columns = row.columns
    location = Location(columns.location())
    with _AUTHENTICATED:
        plaintext = sealer.open(Kind.MANIFEST, location, row.manifest)
    check_key_version(row.key_version, row.manifest)
    member = _member_of(sealer, columns, plaintext, location)
    return OpenedCheckpoint(columns, decode_manifest(plaintext), member, row.outcome, len(plaintext))


class SealedWrite(msgspec.Struct, frozen=True):
    """A pending write row's sealed column, its member, and what the sums of its thread and checkpoint add for it."""

    envelope: bytes
    member: bytes
    mac: bytes


def seal_write(sealer: Sealer, columns: WriteColumns, record: WriteRecord) -> SealedWrite:
    """Seal a pending write's record under its row's columns."""
    plaintext = encode(record)
    location = Location(columns.location())
    member = write_member(sealer, plaintext, location)
    return SealedWrite(sealer.seal(Kind.WRITE, location, plaintext), member, mac_of_write(sealer, columns, member))


def mac_of_write(sealer: Sealer, columns: WriteColumns, member: bytes) -> bytes:
    """What a write adds to the sums of its thread and of its checkpoint."""
    return write_mac(sealer, columns.namespace, columns.checkpoint_id, columns.task_id, columns.idx, member)


@dataclass(frozen=True, slots=True)
class OpenedWrite:
    """A pending write row, authenticated; ``mac`` as in `SealedWrite`."""

    columns: WriteColumns
    record: WriteRecord
    mac: bytes

    @property
    def ids(self) -> list[bytes]:
        """The pieces its value names."""
        return unpack_ids(self.columns.piece_ids)

    def value(self, reader: PieceReader) -> PendingWrite:
        """The write as callers see it."""
        columns = self.columns
        return PendingWrite(
            task_id=columns.task_id,
            idx=columns.idx,
            task_path=columns.task_path,
            channel=columns.channel,
            state_schema=columns.state_schema,
            state_version=columns.state_version,
            value=reader.value(self.record.encoding, self.record.body, self.ids, self.record.leaves),
        )


def open_write(sealer: Sealer, row: WriteRow) -> OpenedWrite:
    """Open a pending write row at the place its key columns name.

    Raises:
        IntegrityFailure: a column was edited, the row was moved, it is not a write, or its member is not its own.
    """
    columns = row.columns
    location = Location(columns.location())
    with _AUTHENTICATED:
        plaintext = sealer.open(Kind.WRITE, location, row.value)
    check_key_version(row.key_version, row.value)
    member = write_member(sealer, plaintext, location)
    if not hmac.compare_digest(member, row.member):
        raise IntegrityFailure("a pending write's member was altered")
    return OpenedWrite(columns, decode_write(plaintext), mac_of_write(sealer, columns, member))


def seal_head(sealer: Sealer, thread_id: str, namespace: str, head_id: str, head: HeadSeal) -> bytes:
    """The envelope of a head row."""
    return sealer.seal(
        Kind.HEAD, head_location(thread_id, namespace, head_id, head.sequence), head.encode(), compress=False
    )


def open_head(
    sealer: Sealer, thread_id: str, thread: ThreadSeal, namespace: str, head_id: str, sequence: int, seal: bytes
) -> HeadSeal:
    """Open a head row, and compare it with its clear columns and with the thread that it must be a head of.

    Raises:
        IntegrityFailure: they do not belong together, or the head is of another life of the thread.
    """
    with _AUTHENTICATED:
        plaintext = sealer.open(Kind.HEAD, head_location(thread_id, namespace, head_id, sequence), seal)
    head = HeadSeal.decode(plaintext)
    if head.sequence != sequence:
        raise IntegrityFailure
    if head.incarnation != thread.incarnation:
        raise IntegrityFailure("the head belongs to another life of this thread")
    return head


def seal_thread(sealer: Sealer, thread_id: str, created_at: datetime, thread: ThreadSeal) -> bytes:
    """The envelope of a thread row: the one thing of a thread that never takes the client's share."""
    location = thread_location(thread_id, created_at)
    return sealer.without_share.seal(Kind.THREAD, location, thread.encode(), compress=False)


def new_thread(sealer: Sealer, thread_id: str) -> ThreadSeal:
    """The seal of a thread that is being created; one that is made with a share needs it from now on."""
    thread = ThreadSeal.new()
    if not sealer.shared:
        return thread
    return replace(thread, share_check=share_check(sealer, thread_id, thread.incarnation))


def open_thread_seal(sealer: Sealer, thread_id: str, created_at: datetime, seal: bytes) -> ThreadSeal:
    """Open a thread row, whether or not the sealer fits what else belongs to the thread.

    Raises:
        IntegrityFailure: it is not this thread's seal.
    """
    with _AUTHENTICATED:
        plaintext = sealer.without_share.open(Kind.THREAD, thread_location(thread_id, created_at), seal)
    return ThreadSeal.decode(plaintext)


def check_share(sealer: Sealer, thread_id: str, thread: ThreadSeal) -> None:
    """Compare the share that a sealer is mixed with, if any, with the one the thread was made under, if any.

    Raises:
        ClientShareRequired: the thread needs one.
        ClientShareWrong: it needs another one.
        ClientShareUnexpected: it was made without one.
    """
    if thread.share_check is None:
        if sealer.shared:
            raise ClientShareUnexpected
        return
    if not sealer.shared:
        raise ClientShareRequired
    if not hmac.compare_digest(thread.share_check, share_check(sealer, thread_id, thread.incarnation)):
        raise ClientShareWrong


def open_thread(sealer: Sealer, thread_id: str, created_at: datetime, seal: bytes) -> ThreadSeal:
    """Open a thread row, before anything else of the thread is opened: it says whether the sealer fits.

    Raises:
        IntegrityFailure: it is not this thread's seal.
        ClientShareRequired: the thread was made under a share, and the sealer has none.
        ClientShareWrong: the thread was made under another share.
        ClientShareUnexpected: the thread was made without one.
    """
    thread = open_thread_seal(sealer, thread_id, created_at, seal)
    check_share(sealer, thread_id, thread)
    return thread
