"""The same content, at the same place, sealed under a subject's active data key.

Owns what sealing again is, of rows wherever they are, and of the few seals that each thread has. What does not
authenticate is damaged, and is told apart. Which rows need it, and when an older version may go, is not decided here.
"""

from typing import Protocol

from crypto import Field, KeyDestroyed, Kind, OpenError, Sealer
from storage.errors import IntegrityFailure
from storage.format.chain import head_location, thread_location
from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, StoredRow, row_of
from storage.format.cold.segment import cold_location
from storage.format.key_versions import check_key_version
from storage.format.manifest import chunk_location
from storage.format.record import CheckpointRow, WriteRow
from storage.postgres.unit_of_work import Transaction
from storage.statements.keys import rotation as sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.archives import ENVELOPES, SET_COLD

_KINDS = {CHUNKS: Kind.CHUNK, CHECKPOINTS: Kind.MANIFEST, PENDING_WRITES: Kind.WRITE}


def active_version(sealer: Sealer) -> bytes:
    """The active key version as it stands in an envelope's header."""
    return sealer.active_key_version.to_bytes(4)


def sealed_again(
    sealer: Sealer, kind: Kind, location: tuple[Field, ...], envelope: bytes, *, compress: bool = True
) -> bytes | None:
    """The same content at the same place under the active version, or None if it does not authenticate."""
    try:
        return sealer.seal(kind, location, sealer.open(kind, location, envelope), compress=compress)
    except (OpenError, KeyDestroyed):
        return None


def seal_row_again(sealer: Sealer, table: str, row: StoredRow) -> int:
    """Seal a row of an archive again, in place; returns the length of its envelope.

    Raises:
        IntegrityFailure: It does not authenticate, or names another key version than its envelope.
    """
    column = ENVELOPES[table]
    check_key_version(row["key_version"], row[column])
    again = sealed_again(sealer, _KINDS[table], _location(table, row), row[column])
    if again is None:
        raise IntegrityFailure
    row[column], row["key_version"] = again, sealer.active_key_version
    return len(again)


def _location(table: str, row: StoredRow) -> tuple[Field, ...]:
    if table == CHUNKS:
        return chunk_location(row["piece_id"], row["children"], row["named_ids"])
    if table == CHECKPOINTS:
        return row_of(CheckpointRow, row).columns.location()
    return row_of(WriteRow, row).columns.location()


class Head(Protocol):
    """A head, as its row or the list of a segment has it."""

    @property
    def namespace(self) -> str: ...  # noqa: D102
    @property
    def head_id(self) -> str: ...  # noqa: D102
    @property
    def sequence(self) -> int: ...  # noqa: D102
    @property
    def seal(self) -> bytes: ...  # noqa: D102


def head_sealed_again(sealer: Sealer, thread_id: str, head: Head) -> bytes | None:
    """A head's seal, as `sealed_again`."""
    location = head_location(thread_id, head.namespace, head.head_id, head.sequence)
    return sealed_again(sealer, Kind.HEAD, location, head.seal, compress=False)


async def seal_thread_again(transaction: Transaction, sealer: Sealer, thread_id: str, locked: sql.LockedThread) -> int:
    """Seal again what a thread has once: its heads in the database, its cold sums, and last its own seal.

    Returns how many of them; the thread is locked.
    """
    done = 0
    heads = await transaction.fetch_all(sql.STALE_HEADS, thread_id=thread_id, version=active_version(sealer))
    for row in heads:
        again = head_sealed_again(sealer, thread_id, row)
        if again is not None:
            done += await transaction.run(sql.RESEAL_HEAD, thread_id=thread_id, namespace=row.namespace, seal=again)
    if locked.cold is not None:
        location = cold_location(thread_id, locked.created_at)
        again = sealed_again(sealer, Kind.SEGMENT, location, locked.cold, compress=False)
        if again is not None:
            done += await transaction.run(SET_COLD, thread_id=thread_id, cold=again)
    if locked.stale:
        location = thread_location(thread_id, locked.created_at)
        again = sealed_again(sealer, Kind.THREAD, location, locked.seal, compress=False)
        if again is not None:
            done += await transaction.run(threads_sql.SEAL, thread_id=thread_id, seal=again)
    return done
