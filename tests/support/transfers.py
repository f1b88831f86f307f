"""Two deployments that share nothing: databases, root keys, buckets and ids of their own; and files between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import msgspec
import msgspec.structs
from sqlalchemy.engine import make_url

from crypto import MemoryRootKey, RootKey, SecretKey, TransferPublicKey
from crypto.ciphers import cobblestone
from gateway.embedded.postgres import EmbeddedPostgres
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobStore
from storage.format import export
from storage.scope import Scope, TenantScope
from storage.service import Store, StoreOptions
from storage.transfer.exporting import Export, Recipient
from storage.transfer.importing import Imported
from tests.support.engines import fresh_database
from tests.support.stores import APP_PASSWORD

ACTOR = "api-key:test"


@asynccontextmanager
async def deployment(
    postgres: EmbeddedPostgres,
    template: str,
    *,
    blobs: BlobStore | None = None,
    archive: BlobStore | None = None,
    root_key: RootKey | None = None,
    deployment_id: UUID | None = None,
    **options: Any,
) -> AsyncIterator[Store]:
    """A deployment of its own."""
    async with fresh_database(postgres, template=template) as made:
        url = make_url(made.superuser_url).set(username="gw_app", password=APP_PASSWORD).render_as_string(False)
        opened = await Store.open(
            url,
            root_key=root_key or MemoryRootKey(),
            deployment_id=deployment_id or uuid4(),
            connections_max=8,
            durable=False,
            options=StoreOptions(blobs=MemoryBlobStore() if blobs is None else blobs, archive=archive, **options),
        )
        try:
            yield opened
        finally:
            await opened.close()


async def content(made: Export) -> bytes:
    """The whole file."""
    return b"".join([each async for each in made.content])


async def arriving(file: bytes, step: int = 60_000) -> AsyncIterator[bytes]:
    """A file as a server gives it to a handler."""
    for at in range(0, len(file), step):
        yield file[at : at + step]


async def recipient(target: Store, tenant_id: UUID) -> Recipient:
    """What is sealed for, so that a tenant of the target takes it in."""
    return await target.transfer_keys.recipient(TenantScope(tenant_id))


async def exported(
    source: Store, target: Store, scope: Scope, to: UUID, thread_id: str = "t1", share: Any = None
) -> bytes:
    """A thread, sealed for a tenant of the target."""
    made = await source.exporting.thread(scope, thread_id, await recipient(target, to), ACTOR, share)
    return await content(made)


async def exported_tenant(source: Store, target: Store, tenant_id: UUID, to: UUID, share: Any = None) -> bytes:
    """A tenant, sealed for one of the target."""
    made = await source.exporting.tenant(TenantScope(tenant_id), await recipient(target, to), ACTOR, share)
    return await content(made)


async def imported(target: Store, tenant_id: UUID, file: bytes, **options: Any) -> Imported:
    """Take a file in."""
    return await target.importing.run(TenantScope(tenant_id), arriving(file), ACTOR, **options)


def unbound(public_key: TransferPublicKey, records: list[export.Record]) -> bytes:
    """A file of format 1, as releases made it that named no tenant."""
    opening = records[0]
    assert isinstance(opening, export.Opening)
    encoded, digest, thread, thread_id = [], export.RunningDigest(), export.RunningDigest(), ""
    for record in [msgspec.structs.replace(opening, format=1), *records[1:-1]]:
        if isinstance(record, export.Beginning):
            thread, thread_id = export.RunningDigest(), record.thread_id
        if isinstance(record, export.Ending):
            each = export.encode(msgspec.structs.replace(record, digest=thread.digest()))
        else:
            each = export.encode(record)
        thread.add(export.digested(record, each, thread_id))
        digest.add(each)
        encoded.append(each)
    encoded.append(export.encode(msgspec.structs.replace(records[-1], digest=digest.digest())))
    content = b"".join(map(export.frame, encoded))
    header = msgspec.json.encode({"recipient": public_key.fingerprint, "export_id": opening.export_id})
    clear = b"\xc1SRX\x01" + len(header).to_bytes(2, "big") + header
    info, file_key = b"stateroom/v1/export\0" + clear, SecretKey.generate()
    sealed_key = public_key.seal(bytes(file_key.borrow()), info)
    chunks = cobblestone.ChunkSealer(file_key.borrow(), info)
    cut = len(content) // cobblestone.CHUNK_BYTES * cobblestone.CHUNK_BYTES
    sealed = [
        chunks.seal_next(content[at : at + cobblestone.CHUNK_BYTES]) for at in range(0, cut, cobblestone.CHUNK_BYTES)
    ]
    body = b"".join([*sealed, chunks.seal_next(content[cut:])])
    return clear + len(sealed_key).to_bytes(2, "big") + sealed_key + chunks.prefix + body
