"""Two deployments that share nothing: databases, root keys, buckets and ids of their own; and files between them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.engine import make_url

from crypto import MemoryRootKey, RootKey
from gateway.cli.embedded import EmbeddedPostgres
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobStore
from storage.exporting import Export
from storage.importing import Imported
from storage.scope import Scope, TenantScope
from storage.service import Store
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
            blobs=MemoryBlobStore() if blobs is None else blobs,
            archive=archive,
            **options,
        )
        try:
            yield opened
        finally:
            await opened.close()


async def content(export: Export) -> bytes:
    """The whole file."""
    return b"".join([each async for each in export.content])


async def arriving(file: bytes, step: int = 60_000) -> AsyncIterator[bytes]:
    """A file as a server gives it to a handler."""
    for at in range(0, len(file), step):
        yield file[at : at + step]


async def exported(source: Store, target: Store, scope: Scope, thread_id: str = "t1", share: Any = None) -> bytes:
    """A thread, sealed for the target."""
    recipient = (await target.transfer_keys.newest()).public_key
    return await content(await source.exporting.thread(scope, thread_id, recipient, ACTOR, share))


async def exported_tenant(source: Store, target: Store, tenant_id: UUID, share: Any = None) -> bytes:
    """A tenant, sealed for the target."""
    recipient = (await target.transfer_keys.newest()).public_key
    return await content(await source.exporting.tenant(TenantScope(tenant_id), recipient, ACTOR, share))


async def imported(target: Store, tenant_id: UUID, file: bytes, **options: Any) -> Imported:
    """Take a file in."""
    return await target.importing.run(TenantScope(tenant_id), arriving(file), ACTOR, **options)
