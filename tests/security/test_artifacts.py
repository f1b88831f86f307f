"""Artifacts against a client, a neighbour and whoever owns the bucket."""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator
from urllib.parse import quote, urlsplit
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from storage.blobs.keyspace import BlobLocation, tenant_prefix
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from tests.support.operations import assert_problem
from tests.support.production import Deployment, ProductionGateway, serving

PART = 8 * 1024 * 1024
MEAN = ["../../etc/passwd", "a/b\\c", "%2e%2e%2f", "\u202egnp.exe", "ﬁle\uff0e\uff0e", "名前.png", "v1/x", "x" * 255]


@pytest.fixture
async def gateway(deployment, launcher, s3_server) -> AsyncIterator[ProductionGateway]:
    environ = deployment.environ | {"STATEROOM_S3_URL": s3_server.url()}
    with_files = Deployment(deployment.database, environ, deployment.operator_key, deployment.api_key)
    async with serving(launcher, with_files) as running:
        yield running


@pytest.fixture
async def bucket(s3_server) -> AsyncIterator[S3BlobStore]:
    opened = S3BlobStore(S3Location.parse(s3_server.url()), threads=2)
    yield opened
    await opened.aclose()


@pytest.fixture
async def superuser(durable_postgres, deployment) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    yield connection
    await connection.close()


async def tenant_of(client: httpx.AsyncClient) -> UUID:
    return UUID((await client.get("/v1/whoami")).json()["tenant_id"])


async def store(client: httpx.AsyncClient, content: bytes, name: str = "a", thread: str = "t") -> dict:
    headers = {"Stateroom-Artifact-Name": "UTF-8''" + quote(name, safe="")}
    stored = await client.post(f"/v1/threads/{thread}/artifacts", content=content, headers=headers)
    assert stored.status_code == 201, stored.text
    return stored.json()


async def test_no_text_of_a_client_reaches_a_key_or_a_clear_column(gateway, bucket, superuser) -> None:
    async with gateway.client(subject="mean-subject") as client:
        tenant_id = await tenant_of(client)
        metadata = base64.urlsafe_b64encode(json.dumps({"note": "mean-metadata"}).encode()).decode()
        for name in MEAN:
            headers = {
                "Stateroom-Artifact-Name": "UTF-8''" + quote(name, safe=""),
                "Stateroom-Artifact-Metadata": metadata,
                "Content-Type": "image/x-mean",
            }
            stored = await client.post("/v1/threads/mean-thread/artifacts", content=b"mean-content", headers=headers)
            assert stored.status_code == 201, stored.text
            assert stored.json()["name"] == name
            answer = await client.get(f"/v1/artifacts/{stored.json()['artifact_id']}/content")
            assert answer.headers["content-disposition"].isascii()
            assert answer.headers["content-disposition"].count('"') == 2
    listed = await bucket.list_objects(tenant_prefix(tenant_id))
    assert len(listed) >= len(MEAN)
    for one in listed:
        assert BlobLocation.parse(one.object_key).object_key() == one.object_key
        assert b"mean-content" not in await bucket.get(BlobLocation.parse(one.object_key))
    for table in ("artifacts", "blobs", "blob_intents", "upload_parts"):
        rows = await superuser.fetch(f"SELECT t::text AS row FROM stateroom.{table} t")  # noqa: S608
        for row in rows:
            for text in ("passwd", "x-mean", "mean-metadata", hashlib.sha256(b"mean-content").hexdigest()):
                assert text not in row["row"]
                assert text.encode().hex() not in row["row"]


async def test_a_pointer_is_worth_nothing_to_another_subject(gateway) -> None:
    async with gateway.client(subject="owner") as owner, gateway.client(subject="other") as other:
        made = await store(owner, b"mine")
        path = f"/v1/artifacts/{made['artifact_id']}"
        for answer in (
            await other.get(path),
            await other.get(f"{path}/content"),
            await other.post(f"{path}/copy", json={"thread_id": "t"}),
            await other.post(f"{path}/urls", json={}),
            await other.delete(f"{path}/urls"),
            await other.delete(path),
        ):
            assert_problem(answer, 404, "artifact-not-found")
        assert (await owner.get(f"{path}/content")).content == b"mine"


@pytest.mark.parametrize("damage", ["lost", "cut", "altered late", "another's"])
async def test_a_damaged_object_is_never_answered_as_if_it_were_whole(gateway, bucket, damage: str) -> None:
    content = os.urandom(2 * PART + 1000)
    async with gateway.client() as client:
        made = await store(client, content)
        other = await store(client, os.urandom(len(content)))
        place = BlobLocation(await tenant_of(client), UUID(made["artifact_id"]))
        held = await bucket.get(place)
        await bucket.delete(place)
        late = bytearray(held)
        late[-500] ^= 1
        changed = {
            "cut": held[:-1],
            "altered late": bytes(late),
            "another's": await bucket.get(BlobLocation(place.tenant_id, UUID(other["artifact_id"]))),
        }
        if damage in changed:
            await bucket.put_if_absent(place, changed[damage])
        path = f"/v1/artifacts/{made['artifact_id']}/content"
        received = bytearray()
        if damage in {"lost", "another's"}:
            assert_problem(await client.get(path), 500, "integrity-failure")
        else:
            with pytest.raises(httpx.RemoteProtocolError):  # noqa: PT012  it fails while it is read
                async with client.stream("GET", path) as answer:
                    async for piece in answer.aiter_raw():
                        received += piece
            assert len(received) < len(content)
            assert content.startswith(received)
            ranged = await client.get(path, headers={"Range": "bytes=5-99"})
            assert (ranged.status_code, ranged.content) == (206, content[5:100])
    assert "Traceback" not in gateway.log


async def test_a_quota_is_kept_and_what_was_refused_takes_none_of_it(gateway, superuser) -> None:
    async with gateway.client(subject="quota") as client:
        tenant_id = await tenant_of(client)
        await store(client, b"first")
        used = await superuser.fetchval("SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1", tenant_id)
        await superuser.execute(
            "UPDATE stateroom.blob_usage SET quota_bytes = bytes + 200000 WHERE tenant_id = $1", tenant_id
        )
        try:
            headers = {"Stateroom-Artifact-Name": "a"}
            for content in (b"x" * 300_000, _chunked(b"x" * 300_000), _chunked(*[b"x" * 5_000] * 60)):
                refused = await client.post("/v1/threads/t/artifacts", content=content, headers=headers)
                assert_problem(refused, 403, "quota-exceeded")
            refused = await client.post("/v1/threads/t/uploads", json={"name": "u", "size_bytes": 300_000})
            assert_problem(refused, 403, "quota-exceeded")
            begun = (await client.post("/v1/threads/t/uploads", json={"name": "u"})).json()
            path = f"/v1/uploads/{begun['upload_id']}/parts/0"
            assert_problem(await client.put(path, content=b"x" * 300_000), 403, "quota-exceeded")
            await store(client, b"x" * 100_000)
            assert (
                await superuser.fetchval("SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1", tenant_id)
                >= used + 100_000
            )
        finally:
            await superuser.execute(
                "UPDATE stateroom.blob_usage SET quota_bytes = NULL WHERE tenant_id = $1", tenant_id
            )


async def _chunked(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_a_client_that_hangs_up_in_the_middle_leaves_only_what_the_sweeper_finds(gateway, superuser) -> None:
    subject = f"gone-{uuid4()}"
    address = urlsplit(gateway.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"POST /v1/threads/t/artifacts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.deployment.api_key}\r\n"
        f"Stateroom-Subject: {subject}\r\nStateroom-Artifact-Name: a\r\nContent-Length: {4 * PART}\r\n\r\n"
    )
    writer.write(head.encode() + os.urandom(2 * PART + 5))
    await writer.drain()

    async def intents(state: str) -> int:
        return await superuser.fetchval(
            "SELECT count(*) FROM stateroom.blob_intents WHERE subject_id = $1 AND state = $2", subject, state
        )

    async def until(state: str) -> None:
        async with asyncio.timeout(20):
            while not await intents(state):  # noqa: ASYNC110  another process: only its rows tell
                await asyncio.sleep(0.02)

    await until("open")
    writer.transport.abort()
    await until("swept")
    async with gateway.client(subject=subject) as client:
        assert (await client.get("/v1/threads/t/artifacts")).json()["artifacts"] == []
    assert await superuser.fetchval("SELECT count(*) FROM stateroom.blobs WHERE subject_id = $1", subject) == 0


async def test_a_revocation_that_is_taken_back_in_the_database_opens_nothing(gateway, superuser) -> None:
    """A row of before, whose description knows no revocations, and one that an older gateway revoked, go on."""
    edit = "UPDATE stateroom.artifacts SET url_epoch = $2 WHERE artifact_id = $1"
    async with gateway.client(subject="revoker") as client, httpx.AsyncClient(base_url=gateway.url) as browser:

        async def url() -> str:
            made = await client.post(f"{path}/urls", json={})
            assert made.status_code == 200, made.text
            return urlsplit(made.json()["url"]).path

        made = await store(client, b"mine")
        path, artifact_id = f"/v1/artifacts/{made['artifact_id']}", UUID(made["artifact_id"])
        first = await url()
        assert (await browser.get(first)).status_code == 200
        await superuser.execute(edit, artifact_id, 1)  # as a gateway does that counts in the row alone
        assert_problem(await browser.get(first), 403, "artifact-url-invalid")
        second = await url()
        assert (await browser.get(second)).content == b"mine"
        assert (await client.delete(f"{path}/urls")).status_code == 204
        third = await url()
        assert_problem(await browser.get(second), 403, "artifact-url-invalid")
        assert (await browser.get(third)).content == b"mine"
        for lower in (0, 1):
            await superuser.execute(edit, artifact_id, lower)
            for each in (first, second, third):
                assert_problem(await browser.get(each), 500, "integrity-failure")
        assert (await client.delete(f"{path}/urls")).status_code == 204  # revoked again: the row is as it should be
        for each in (first, second, third):
            assert_problem(await browser.get(each), 403, "artifact-url-invalid")
        assert (await browser.get(await url())).content == b"mine"
