"""A part of an upload that is sent again with other bytes: the artifact has the bytes that its digest is of, always.

Object stores differ here. S3 keeps the last bytes of a part and refuses the etag of earlier ones; SeaweedFS keeps both
and gives what the etag names. A part's etag is recorded after its bytes are stored, sealed together with their digest,
and forgotten before others are sent; so the same is true over both.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable

import pytest

from storage.artifacts.model import NewArtifact
from storage.blobs.keyspace import ObjectLocation
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import BlobBytes, BlobStore, BlobUnavailable
from storage.errors import ArtifactNotFound, IntegrityFailure, UploadIncomplete
from storage.service import Store, StoreOptions
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.stores import DEPLOYMENT_ID

PART = 8 << 20
OLD, NEW, TAIL = os.urandom(PART), os.urandom(PART), os.urandom(1000)
WHOLE = hashlib.sha256(NEW + TAIL).digest()


class Delayed(FaultyBlobStore):
    """Requests to store a part that their sender gave up may be held on the way, and arrive when `arrive` says so."""

    def __init__(self, inner: BlobStore) -> None:
        super().__init__(inner)
        self.holding = False
        self._held: list[tuple[ObjectLocation, str, int, bytes]] = []

    async def put_part(self, location: ObjectLocation, multipart_id: str, number: int, data: BlobBytes) -> str:
        if self.holding:
            self._held.append((location, multipart_id, number, bytes(data)))
            raise BlobUnavailable("the request is on its way")
        return await super().put_part(location, multipart_id, number, data)

    async def arrive(self) -> None:
        for each in self._held:
            await self.inner.put_part(*each)
        assert self._held


@pytest.fixture(params=["like S3", "SeaweedFS"])
def keeps_all(request) -> bool:
    return request.param == "SeaweedFS"


@pytest.fixture
async def bucket(keeps_all, request) -> AsyncIterator[Delayed]:
    inner: BlobStore = MemoryBlobStore()
    if keeps_all:
        inner = S3BlobStore(S3Location.parse(request.getfixturevalue("s3_server").url()), threads=4)
    yield Delayed(inner)
    await inner.aclose()


@pytest.fixture
async def process(database, root_key, bucket) -> AsyncIterator[Callable]:
    """Starts a gateway's store: each has the bucket and the database in common with the others, and no memory."""
    opened: list[Store] = []

    async def start() -> Store:
        store = await Store.open(
            database.app_url,
            root_key=root_key,
            deployment_id=DEPLOYMENT_ID,
            connections_max=4,
            durable=False,
            options=StoreOptions(blobs=bucket),
        )
        opened.append(store)
        return store

    yield start
    for each in opened:
        await each.close()


async def body(data: bytes) -> AsyncIterator[bytes]:
    for offset in range(0, len(data), 1 << 20):
        yield data[offset : offset + (1 << 20)]


async def begin(store: Store, scope):
    new = NewArtifact(name="file", media_type="application/octet-stream", metadata={}, preview=None)
    return (await store.artifacts.begin(scope, "t1", new)).upload_id


async def put(store: Store, scope, upload_id, number: int, data: bytes):
    return await store.artifacts.put_part(scope, upload_id, number, body(data))


async def content(store: Store, scope, artifact) -> bytes:
    """What the artifact gives, which is what its digest says."""
    opened = await store.artifacts.open(scope, artifact.artifact_id)
    data = b"".join([each async for each in opened.read(0, opened.artifact.size_bytes)])
    assert hashlib.sha256(data).digest() == opened.artifact.digest == artifact.digest
    return data


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("digest", [WHOLE, None], ids=["digest", "no digest"])
async def test_the_bytes_that_were_sent_last_are_the_artifacts(process, scope, restarted, digest) -> None:
    first = await process()
    upload_id = await begin(first, scope)
    for number, data in ((0, OLD), (1, TAIL), (0, NEW)):
        await put(first, scope, upload_id, number, data)
    ending = await process() if restarted else first
    artifact, _ = await ending.artifacts.complete(scope, upload_id, 2, digest=digest)
    assert await content(ending, scope, artifact) == NEW + TAIL


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("digest", [WHOLE, None], ids=["digest", "no digest"])
async def test_old_bytes_that_arrive_late_never_come_into_the_artifact(
    process, scope, bucket, keeps_all, restarted, digest
) -> None:
    first = await process()
    upload_id = await begin(first, scope)
    await put(first, scope, upload_id, 1, TAIL)
    bucket.holding = True
    with pytest.raises(BlobUnavailable):
        await put(first, scope, upload_id, 0, OLD)
    bucket.holding = False
    await put(first, scope, upload_id, 0, NEW)
    await bucket.arrive()  # after the bytes that replaced them, so that the last ones stored are old
    ending = await process() if restarted else first
    if not keeps_all:
        with pytest.raises(UploadIncomplete):
            await ending.artifacts.complete(scope, upload_id, 2, digest=digest)
        for number, data in ((0, NEW), (1, TAIL)):
            await put(ending, scope, upload_id, number, data)
    artifact, _ = await ending.artifacts.complete(scope, upload_id, 2, digest=digest)
    assert await content(ending, scope, artifact) == NEW + TAIL


async def test_when_two_processes_store_one_part_the_digest_is_of_the_bytes_that_are_kept(process, scope) -> None:
    one, two = await process(), await process()
    for _ in range(8):
        upload_id = await begin(one, scope)
        written = os.urandom(1000), os.urandom(1000)
        await asyncio.gather(put(one, scope, upload_id, 0, written[0]), put(two, scope, upload_id, 0, written[1]))
        try:
            artifact, _ = await one.artifacts.complete(scope, upload_id, 1)
        except UploadIncomplete:  # nobody knows whose is there: it is sent again
            await put(one, scope, upload_id, 0, written[0])
            artifact, _ = await one.artifacts.complete(scope, upload_id, 1)
        assert await content(two, scope, artifact) in written


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("digest", [hashlib.sha256(NEW[:1000]).digest(), None], ids=["digest", "no digest"])
async def test_a_row_that_names_the_old_bytes_again_does_not_bring_them_back(
    process, scope, admin, restarted, digest
) -> None:
    first = await process()
    upload_id = await begin(first, scope)
    await put(first, scope, upload_id, 0, OLD[:1000])
    stale = await admin.fetchval("SELECT etag FROM stateroom.upload_parts WHERE blob_id = $1", upload_id)
    await put(first, scope, upload_id, 0, NEW[:1000])
    await admin.execute("UPDATE stateroom.upload_parts SET etag = $2 WHERE blob_id = $1", upload_id, stale)
    ending = await process() if restarted else first
    with pytest.raises(IntegrityFailure):
        await ending.artifacts.complete(scope, upload_id, 1, digest=digest)
    with pytest.raises(ArtifactNotFound):
        await ending.artifacts.get(scope, upload_id)
