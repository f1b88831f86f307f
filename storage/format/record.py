"""Between rows and values: seal a record into its row's columns, open a row into a value.

Rows come from an untrusted store. Everything here either authenticates under the caller's `Sealer` at the place the
row was asked for, or raises `IntegrityFailure`; nothing is guessed, skipped or partly returned.
"""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from crypto import Kind, OpenError, Sealer
from storage.errors import ClientShareRequired, ClientShareUnexpected, ClientShareWrong, IntegrityFailure
from storage.format.chain import (
    HeadSeal,
    ThreadSeal,
    head_location,
    manifest_digest,
    member_mac,
    share_check,
    thread_location,
)
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
from storage.format.pieces import Opened, Piece, check_piece, join, unpack_ids
from storage.model import Channel, Checkpoint, PendingWrite, Value

Row = Mapping[str, Any]


@contextmanager
def _authenticated() -> Iterator[None]:
    try:
        yield
    except OpenError:
        raise IntegrityFailure from None


class PieceReader:
    """The chunks of one read, opened when first needed and kept for the next checkpoint that shares them."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._sealed: dict[bytes, tuple[bytes | None, bytes]] = {}
        self._opened: dict[bytes, Opened] = {}

    def add(self, rows: Iterable[tuple[bytes, bytes | None, bytes]]) -> list[bytes]:
        """Take (piece id, children, envelope) rows; returns the children that are not here yet."""
        wanted: dict[bytes, None] = {}
        for piece_id, children, envelope in rows:
            self._sealed[piece_id] = (children, envelope)
            if children is not None:
                wanted.update(dict.fromkeys(unpack_ids(children)))
        return [each for each in wanted if each not in self._sealed]

    def missing(self, ids: Iterable[bytes]) -> list[bytes]:
        """Which of these pieces are not here, each once."""
        return [each for each in dict.fromkeys(ids) if each not in self._sealed]

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
        children, envelope = sealed
        with _authenticated():
            plaintext = self._sealer.open(Kind.CHUNK, chunk_location(piece_id, children), envelope)
        data = check_piece(self._sealer, piece_id, plaintext, children)
        opened = Opened(data, None if children is None else tuple(unpack_ids(children)))
        self._opened[piece_id] = opened
        return opened

    def forget(self) -> None:
        """Drop everything read so far."""
        self._sealed.clear()
        self._opened.clear()


def seal_piece(sealer: Sealer, piece: Piece) -> bytes:
    """The envelope of a piece's chunk row."""
    return sealer.seal(Kind.CHUNK, chunk_location(piece.piece_id, piece.children), piece.plaintext)


@dataclass(frozen=True, slots=True)
class SealedCheckpoint:
    """A checkpoint row's sealed column and the checkpoint's member of the live set."""

    envelope: bytes
    member: bytes


def seal_checkpoint(sealer: Sealer, columns: CheckpointColumns, manifest: Manifest) -> SealedCheckpoint:
    """Seal a manifest under its row's columns."""
    plaintext = encode(manifest)
    location = columns.location()
    digest = manifest_digest(sealer, plaintext, location)
    return SealedCheckpoint(
        sealer.seal(Kind.MANIFEST, location, plaintext),
        member_mac(sealer, columns.namespace, columns.checkpoint_id, digest),
    )


@dataclass(frozen=True, slots=True)
class OpenedCheckpoint:
    """A checkpoint row, authenticated. ``outcome`` is advisory."""

    columns: CheckpointColumns
    manifest: Manifest
    member: bytes
    outcome: str | None

    @property
    def place(self) -> tuple[str, str, str]:
        """Its id, thread and namespace, by which history is ordered."""
        return self.columns.checkpoint_id, self.columns.thread_id, self.columns.namespace

    @property
    def ids(self) -> list[bytes]:
        """The pieces its manifest names."""
        return unpack_ids(self.columns.piece_ids)

    def channel(self, name: str, look_up: Callable[[bytes], Opened]) -> Channel | None:
        """One channel's value, or None if the checkpoint does not hold it."""
        for channel in self.manifest.channels:
            if channel.name == name:
                data = join(channel.body, self.ids, look_up)
                return Channel(version=channel.version, value=Value(channel.encoding, data))
        return None

    def value(self, look_up: Callable[[bytes], Opened] | None, writes: list[PendingWrite] | None) -> Checkpoint:
        """The checkpoint as callers see it; ``look_up`` None leaves the state out."""
        columns, manifest = self.columns, self.manifest
        channels: dict[str, Channel] | None = None
        if look_up is not None:
            ids = self.ids
            channels = {
                each.name: Channel(version=each.version, value=Value(each.encoding, join(each.body, ids, look_up)))
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


def clear_checkpoint(row: Row) -> Checkpoint:
    """What the clear columns of a checkpoint row say. Nothing is opened, so nothing vouches for it."""
    return Checkpoint(
        thread_id=row["thread_id"],
        namespace=row["namespace"],
        checkpoint_id=row["checkpoint_id"],
        parent_id=row["parent_id"],
        step=row["step"],
        status=row["outcome"] or row["status"],
        source=row["source"],
        agent=row["agent"],
        run_id=row["run_id"],
        created_at=row["created_at"],
        state_schema=row["state_schema"],
        state_version=row["state_version"],
        model=None if row["model"] is None else {"name": row["model"]},
        usage=_usage(row["input_tokens"], row["output_tokens"], row["cost_micros"]),
        metadata={},
        delta_channels=(),
        channels=None,
        writes=None,
        withheld=True,
    )


_COLUMNS = CheckpointColumns.__struct_fields__
_WRITE_COLUMNS = WriteColumns.__struct_fields__


def open_checkpoint(sealer: Sealer, row: Row) -> OpenedCheckpoint:
    """Open a checkpoint row at the place its key columns name, which the statement that found it asked for.

    Raises:
        IntegrityFailure: a column was edited, the row was moved, or it is not a manifest.
    """
    columns = CheckpointColumns(**{name: row[name] for name in _COLUMNS})
    location = columns.location()
    with _authenticated():
        plaintext = sealer.open(Kind.MANIFEST, location, row["manifest"])
    member = member_mac(sealer, columns.namespace, columns.checkpoint_id, manifest_digest(sealer, plaintext, location))
    return OpenedCheckpoint(columns, decode_manifest(plaintext), member, row["outcome"])


def seal_write(sealer: Sealer, columns: WriteColumns, record: WriteRecord) -> bytes:
    """The envelope of a pending write's value."""
    return sealer.seal(Kind.WRITE, columns.location(), encode(record))


@dataclass(frozen=True, slots=True)
class OpenedWrite:
    """A pending write row, authenticated."""

    columns: WriteColumns
    record: WriteRecord

    @property
    def ids(self) -> list[bytes]:
        """The pieces its value names."""
        return unpack_ids(self.columns.piece_ids)

    def value(self, look_up: Callable[[bytes], Opened]) -> PendingWrite:
        """The write as callers see it."""
        columns = self.columns
        return PendingWrite(
            task_id=columns.task_id,
            idx=columns.idx,
            task_path=columns.task_path,
            channel=columns.channel,
            value=Value(self.record.encoding, join(self.record.body, self.ids, look_up)),
        )


def open_write(sealer: Sealer, row: Row) -> OpenedWrite:
    """Open a pending write row at the place its key columns name.

    Raises:
        IntegrityFailure: a column was edited, the row was moved, or it is not a write.
    """
    columns = WriteColumns(**{name: row[name] for name in _WRITE_COLUMNS})
    with _authenticated():
        plaintext = sealer.open(Kind.WRITE, columns.location(), row["value"])
    return OpenedWrite(columns, decode_write(plaintext))


def seal_head(sealer: Sealer, thread_id: str, namespace: str, head_id: str, head: HeadSeal) -> bytes:
    """The envelope of a head row."""
    return sealer.seal(
        Kind.HEAD, head_location(thread_id, namespace, head_id, head.sequence), head.encode(), compress=False
    )


def open_head(sealer: Sealer, thread_id: str, namespace: str, head_id: str, sequence: int, seal: bytes) -> HeadSeal:
    """Open a head row and compare it with its clear columns.

    Raises:
        IntegrityFailure: they do not belong together.
    """
    with _authenticated():
        plaintext = sealer.open(Kind.HEAD, head_location(thread_id, namespace, head_id, sequence), seal)
    head = HeadSeal.decode(plaintext)
    if head.sequence != sequence:
        raise IntegrityFailure
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
    with _authenticated():
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
