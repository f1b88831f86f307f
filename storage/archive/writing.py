"""Archives and segments on their way to the object store: in one request if they are small, else a part at a time.

A multipart upload is named in its intent, so that the sweeper finds it if the process dies. What is in an object, and
that it was reserved, is the caller's affair (`storage.ledger.ledger.BlobLedger.reserving`).
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from crypto import BlobCipher
from crypto.blob import PART_BYTES
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import FROZEN_CLASSES, READABLE_CLASS
from storage.concurrency.turns import Pauses
from storage.format.cold.archive import TABLES, ArchiveEncoder, ThreadRows
from storage.ledger.ledger import BlobLedger
from storage.ledger.streams import BlobWriter, Written
from storage.scope import Scope

# Rows of one table in one frame of an object: what is encoded, or decoded, in one turn.
FRAME_ROWS = 256


async def write_object(
    ledger: BlobLedger,
    writer: BlobWriter,
    scope: Scope,
    target: tuple[BlobLocation, BlobCipher, str],
    content: AsyncGenerator[bytes, None],
    *,
    bytes_expected: int,
) -> Written:
    """Write an object, so that it can be read back; `freeze` is for afterwards.

    Args:
        ledger: Where its intent is.
        writer: Of the bucket of archives.
        scope: Whose it is.
        target: The object's place, what seals it, and the storage class that it shall have.
        content: Its bytes, some at a time.
        bytes_expected: About how many: less than a part of them are held in memory.

    Raises:
        BlobUnavailable: The object store does not answer.
    """
    location, cipher, wanted = target
    # S3 freezes at once what is stored in such a class, and then it could not be read back for hours.
    storage_class = READABLE_CLASS if wanted in FROZEN_CLASSES else wanted

    async def on_multipart(multipart_id: str) -> None:
        await ledger.name_multipart(scope, location.blob_id, multipart_id)

    if bytes_expected < PART_BYTES:
        data = b"".join([each async for each in content])
        if len(data) < PART_BYTES:
            return await writer.write_bytes(location, cipher, data, storage_class=storage_class)
        content = _one(data)
    async with aclosing(content) as stream:
        return await writer.write(location, cipher, stream, on_multipart=on_multipart, storage_class=storage_class)


async def freeze(writer: BlobWriter, location: BlobLocation, storage_class: str) -> None:
    """Move an object that was read back into its storage class, if it could not be written there.

    Raises:
        BlobUnavailable: The object store does not answer.
    """
    if storage_class in FROZEN_CLASSES:
        await writer.store.change_class(location, storage_class)


async def encoded(rows: ThreadRows, encoder: ArchiveEncoder) -> AsyncGenerator[bytes, None]:
    """The bytes of an object with these rows; other requests of this process have their turn in between."""
    pauses = Pauses()
    yield encoder.header({table: len(rows.of(table)) for table in TABLES})
    for table in TABLES:
        for at in range(0, len(rows.of(table)), FRAME_ROWS):
            yield encoder.rows(table, rows.of(table)[at : at + FRAME_ROWS])
            await pauses.now()
    yield encoder.end()


async def _one(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data
