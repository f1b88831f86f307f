"""The bytes of an archive: the rows of one thread, verbatim, in a format that says what it holds.

    archive = "stateroom-archive/1" 0A || frame(header) || frame(rows) ... || frame(trailer)
    frame   = length u32 big endian || MessagePack
    header  = {"tables": [{"name": ..., "columns": [...], "rows": n}, ...]}
    rows    = [[value, ...], ...]     of the first table until it has its n, then of the next
    trailer = {"sha256": of every byte before this frame}

What is sealed in a row stays sealed as it is: archiving opens nothing and seals no row again. docs/formats/archive.md
is the same in words. The whole is the content of a blob (`crypto.blob`), which is what keeps its clear columns from the
object store. Owns the encoding, both ways, a piece at a time, and the sealed record that a thread's stub keeps of its
archive; it knows no database and no bucket, and does not say whether the rows are complete: the thread's seals do.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import msgpack

from crypto import Field, Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.key_versions import check_key_version

FORMAT: Final = 1
MAGIC: Final = b"stateroom-archive/1\n"
CHECKPOINTS: Final = "checkpoints"
TAGS: Final = "checkpoint_tags"
PENDING_WRITES: Final = "pending_writes"
CHUNKS: Final = "chunks"
# In the order in which they stand: a reader that has seen those before the last knows which chunks must come.
TABLES: Final = (CHECKPOINTS, TAGS, PENDING_WRITES, CHUNKS)

_LENGTH: Final = struct.Struct(">I")
_DIGEST_BYTES: Final = 32

Columns = Mapping[str, Sequence[str]]
StoredRow = dict[str, Any]
R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class ThreadRows:
    """The rows of a thread that moved into its archive, each with every column but the tenant's and the subject's.

    Values are what the database's driver gives: text, bytes, whole numbers, moments, lists of texts, None. Nobody
    changes them.
    """

    checkpoints: list[StoredRow]
    writes: list[StoredRow]
    chunks: list[StoredRow]
    tags: list[StoredRow] = field(default_factory=list)

    def of(self, table: str) -> list[StoredRow]:
        """The rows of one of `TABLES`."""
        return {
            CHECKPOINTS: self.checkpoints, TAGS: self.tags, PENDING_WRITES: self.writes, CHUNKS: self.chunks,
        }[table]  # fmt: skip

    @classmethod
    def empty(cls) -> "ThreadRows":
        """Of no thread, to be filled."""
        return cls([], [], [])


def row_of(kind: type[R], row: StoredRow) -> R:
    """The columns of a stored row that a struct has."""
    return kind(*(row[name] for name in kind.__struct_fields__))


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    columns: list[str]
    rows: int


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    tables: list[_Table]


class _Trailer(msgspec.Struct, forbid_unknown_fields=True):
    sha256: bytes


_decode_header = msgpack.Decoder(_Header)
_decode_rows = msgpack.Decoder(list[list[Any]])
_decode_trailer = msgpack.Decoder(_Trailer)


class ArchiveEncoder:
    """Writes an archive, a piece at a time; every method returns the bytes that come next.

    ``digest`` is the SHA-256 of all bytes that were returned.
    """

    def __init__(self, columns: Columns) -> None:
        """``columns``: of each of `TABLES`, in the order in which their values are written."""
        self._columns = columns
        self._sha256 = hashlib.sha256()

    def header(self, counts: Mapping[str, int]) -> bytes:
        """The beginning; ``counts``: how many rows of each table will follow."""
        tables = [_Table(name, [*self._columns[name]], counts[name]) for name in TABLES]
        return self._taken(MAGIC + _frame(_Header(tables)))

    def rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> bytes:
        """Some rows of a table; tables follow each other in the order of `TABLES`."""
        columns = self._columns[table]
        return self._taken(_frame([[row[name] for name in columns] for row in rows]))

    def end(self) -> bytes:
        """The trailer, with the SHA-256 of all bytes before it."""
        return self._taken(_frame(_Trailer(self._sha256.digest())))

    @property
    def digest(self) -> bytes:
        """SHA-256 of all bytes that were returned; of the whole archive after `end`."""
        return self._sha256.digest()

    def _taken(self, data: bytes) -> bytes:
        self._sha256.update(data)
        return data


def _frame(content: Any) -> bytes:
    encoded = encode_msgpack(content)
    return _LENGTH.pack(len(encoded)) + encoded


@dataclass(slots=True)
class _Expected:
    """A table whose rows come, and how many are still to come."""

    name: str
    columns: list[str]
    missing: list[str]
    left: int


@dataclass(slots=True)
class ArchiveDecoder:
    """Reads an archive that arrives in pieces of any size.

    A column that the archive was written without is None in its rows; one that this build does not know is refused,
    because dropping it would lose what a newer release wrote.

    Attributes:
        known: Columns of each table in this build.
        digest: SHA-256 of what was read.
    """

    known: Columns
    _sha256: Any = field(default_factory=hashlib.sha256)
    _before_trailer: bytes = b""
    _buffer: bytearray = field(default_factory=bytearray)
    _magic: bool = False
    _tables: list[_Expected] | None = None
    _ended: bool = False

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole archive, after `close`."""
        digest: bytes = self._sha256.digest()
        return digest

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[tuple[str, list[StoredRow]]]:
        """Take the bytes that come next, and give the rows that are whole with them, by table.

        Raises:
            IntegrityFailure: This is no archive, or one of a newer format.
        """
        self._buffer += data
        if not self._magic:
            if len(self._buffer) < len(MAGIC):
                return
            if not self._buffer.startswith(MAGIC):
                raise IntegrityFailure("an archive is of another format than this build reads")
            self._take(len(MAGIC))
            self._magic = True
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < _LENGTH.size + length:
                return
            if self._ended:
                break
            self._before_trailer = self._sha256.digest()
            content = self._take(_LENGTH.size + length)[_LENGTH.size :]
            try:
                yield from self._content(content)
            except (msgspec.DecodeError, ValueError, TypeError):
                raise IntegrityFailure("an archive cannot be read") from None

    def close(self) -> None:
        """Return if the archive has come to its end.

        Raises:
            IntegrityFailure: Something is missing, or something follows.
        """
        if not self._ended or self._buffer:
            raise IntegrityFailure("an archive does not end where it should")

    def _take(self, length: int) -> bytes:
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._sha256.update(taken)
        return taken

    def _content(self, content: bytes) -> Iterator[tuple[str, list[StoredRow]]]:
        if self._tables is None:
            self._tables = [self._expected(each) for each in _decode_header.decode(content).tables]
            self._skip_whole()
            return
        if not self._tables:
            trailer = _decode_trailer.decode(content)
            if trailer.sha256 != self._before_trailer:
                raise IntegrityFailure("an archive is not what its end says")
            self._ended = True
            return
        table = self._tables[0]
        rows = _decode_rows.decode(content)
        table.left -= len(rows)
        if table.left < 0:
            raise IntegrityFailure("an archive has more rows than its beginning says")
        without = dict.fromkeys(table.missing)
        yield table.name, [dict(zip(table.columns, row, strict=True), **without) for row in rows]
        self._skip_whole()

    def _skip_whole(self) -> None:
        while self._tables and not self._tables[0].left:
            self._tables.pop(0)

    def _expected(self, table: _Table) -> _Expected:
        known = self.known.get(table.name)
        if known is None or not {*table.columns} <= {*known} or len({*table.columns}) != len(table.columns):
            raise IntegrityFailure("an archive holds what this build does not know; a newer release wrote it")
        if table.rows < 0:
            raise IntegrityFailure("an archive cannot be read")
        missing = [name for name in known if name not in table.columns]
        return _Expected(table.name, table.columns, missing, table.rows)


# --- what a stub keeps sealed --------------------------------------------------------------------------------------


class ArchiveRecord(msgspec.Struct, array_like=True, frozen=True):
    """What opens a thread's archive, sealed in its stub.

    Attributes:
        blob_key: 32 random bytes, of this object alone.
        content_bytes: Size of the archive; the object is longer by what sealing adds.
        digest: SHA-256 of the archive.
        format: Of this record.
    """

    blob_key: bytes
    content_bytes: int
    digest: bytes
    format: int = FORMAT

    def __repr__(self) -> str:
        return f"ArchiveRecord(content_bytes={self.content_bytes})"


class Stub(msgspec.Struct, frozen=True):
    """A thread's row of ``archives``: every column but the last two is bound into the seal.

    Attributes:
        activity: The thread's when its rows were read.
        key_versions: Every data key version that an envelope of the archive, or ``sealed``, needs.
        client_share: Whether the thread was made under a client-held share.
        hot_bytes: The sum of the lengths of the envelopes that moved.
        size_bytes: The size of the object.
        run_ids: The runs of the checkpoints that moved, each once; ``agents`` likewise.
        state_schemas: The schemas of the heads, one for each that has one; of a segment those of its checkpoints, each
            once.
        named_ids: The blobs and artifacts that the rows name, as `storage.ledger.ledger.pack_named_ids` packs them.
        key_version: The version that ``sealed`` takes; it is not bound, but compared with it.
        sealed: An `ArchiveRecord`.
        segment: The number of a segment in its thread, from 1; 0: the stub is of an archived thread.
        volume: The number of the segment that its volume begins with; 0 of an archived thread.
        first_id: The least checkpoint id of a segment; empty of an archived thread.
        last_id: The greatest one; likewise.
    """

    thread_id: str
    blob_id: UUID
    activity: int
    key_versions: list[int]
    client_share: bool
    checkpoints: int
    pending_writes: int
    chunks: int
    hot_bytes: int
    size_bytes: int
    run_ids: list[str]
    state_schemas: list[str]
    agents: list[str]
    named_ids: bytes | None
    storage_class: str
    created_at: datetime
    key_version: int
    sealed: bytes
    segment: int = 0
    volume: int = 0
    first_id: str = ""
    last_id: str = ""

    def __repr__(self) -> str:
        return f"Stub(thread_id={self.thread_id!r}, blob_id={self.blob_id})"

    @property
    def location(self) -> tuple[Field, ...]:
        """Where the record stands: every column that never changes."""
        place: tuple[Field, ...] = ("archive",)
        if self.segment:
            place = ("segment", self.segment, self.volume, self.first_id, self.last_id)
        return (
            *place,
            self.thread_id,
            self.blob_id,
            self.activity,
            b"".join(each.to_bytes(4) for each in self.key_versions),
            int(self.client_share),
            self.checkpoints,
            self.pending_writes,
            self.chunks,
            self.hot_bytes,
            self.size_bytes,
            len(self.run_ids),
            *self.run_ids,
            len(self.state_schemas),
            *self.state_schemas,
            len(self.agents),
            *self.agents,
            self.named_ids,
            self.storage_class,
            self.created_at,
        )

    def sealing(self, sealer: Sealer, record: ArchiveRecord) -> bytes:
        """The ``sealed`` column; it never takes a client-held share, so that nothing but the stub's keys is needed."""
        encoded = encode_msgpack(record)
        return sealer.without_share.seal(Kind.POINTER, self.location, encoded, compress=False)

    def record(self, sealer: Sealer) -> ArchiveRecord:
        """What opens the archive.

        Raises:
            IntegrityFailure: A column of the stub was edited, it was moved, or it is of a newer format.
            KeyDestroyed: The key it was sealed under is gone.
        """
        try:
            record = msgpack.decode(
                sealer.without_share.open(Kind.POINTER, self.location, self.sealed), type=ArchiveRecord
            )
        except OpenError:
            raise IntegrityFailure("a thread's archive does not authenticate") from None
        except (msgspec.DecodeError, OverflowError, ValueError):
            raise IntegrityFailure("a thread's archive cannot be read") from None
        check_key_version(self.key_version, self.sealed)
        if not self.segment and (self.volume, self.first_id, self.last_id) != (0, "", ""):
            raise IntegrityFailure("the stub of an archived thread names a range of checkpoints")
        if record.format != FORMAT or len(record.digest) != _DIGEST_BYTES:
            raise IntegrityFailure("a thread's archive is of a newer format")
        return record
