"""What the database keeps of a thread's archive and segments, as everybody in this room reads and writes it.

Owns no rule: who changes stubs and cold sums holds the thread's lock, and knows why.
"""

from datetime import datetime
from typing import Any

from crypto import Sealer
from storage.administration.jobs import thread_target
from storage.errors import LostRaceError
from storage.format.cold.archive import Stub
from storage.format.cold.segment import ColdSums, Directory
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.threads import archives as sql
from storage.statements.threads.archives import SegmentRow


async def stub_of(transaction: Transaction, segment: Stub | SegmentRow) -> Stub:
    """The stub of a segment.

    Raises:
        LostRaceError: It is not there any more.
    """
    found = await transaction.fetch_one(sql.SEGMENT_STUB, thread_id=segment.thread_id, segment=segment.segment)
    if found is None:
        raise LostRaceError
    return found


async def set_cold(
    transaction: Transaction,
    sealer: Sealer,
    thread_id: str,
    created_at: datetime,
    sums: ColdSums,
    directory: Directory | None,
) -> tuple[bytes | None, ColdSums]:
    """Store cold sums, with the directory if it is another one now; returns them as they are stored, and opened."""
    if directory is not None:
        sums = sums.with_directory(sealer.without_share, thread_id, directory)
        packed = directory.entries or None
        await transaction.run(sql.SET_COLD_NAMESPACES, thread_id=thread_id, cold_namespaces=packed)
    cold = sums.seal(sealer, thread_id, created_at)
    await transaction.run(sql.SET_COLD, thread_id=thread_id, cold=cold)
    return cold, sums


def audit_target(scope: Scope, thread_id: str) -> str:
    """A thread as the audit log names it: by its subject's id and its own."""
    return f"thread:{thread_target(scope, thread_id)}"


def told(stub: Stub) -> dict[str, Any]:
    """What the audit log says of an object."""
    said: dict[str, Any] = {"segment": stub.segment} if stub.segment else {"hot_bytes": stub.hot_bytes}
    return said | {
        "blob_id": str(stub.blob_id),
        "checkpoints": stub.checkpoints,
        "pending_writes": stub.pending_writes,
        "size_bytes": stub.size_bytes,
        "storage_class": stub.storage_class,
    }
