"""What every `BlobStore` promises, on the in-memory twin, on moto and on a real S3 server."""

import asyncio
import os
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from storage.blobs.keyspace import AnchorLocation, BlobLocation, anchor_prefix, tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore, S3Location
from storage.blobs.store import BlobExists, BlobNotFound, BlobStore, BlobUnavailable

TENANT = uuid4()


def somewhere() -> BlobLocation:
    return BlobLocation(TENANT, uuid4())


@pytest.fixture(scope="module")
def moto_url():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="access",
        aws_secret_access_key="secret",
    )
    client.create_bucket(Bucket="stateroom")
    client.close()
    yield f"s3://access:secret@127.0.0.1:{port}/stateroom?endpoint=http"
    server.stop()


@pytest.fixture(params=["memory", "moto", "real"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[BlobStore]:
    made: BlobStore
    if request.param == "memory":
        made = MemoryBlobStore()
    elif request.param == "moto":
        made = S3BlobStore(S3Location.parse(request.getfixturevalue("moto_url")), threads=4)
    else:
        made = S3BlobStore(S3Location.parse(request.getfixturevalue("s3_server").url()), threads=4)
    yield made
    await made.aclose()


@pytest.mark.parametrize("size", [0, 1, 70_000, 9_000_000])
async def test_what_was_put_comes_back_byte_for_byte(store: BlobStore, size: int) -> None:
    data = os.urandom(size)
    where = somewhere()
    await store.put_if_absent(where, data)
    assert await store.get(where) == data
    assert (await store.head(where)).size_bytes == size


async def test_a_repeated_put_of_the_same_bytes_changes_nothing(store: BlobStore) -> None:
    where = somewhere()
    await store.put_if_absent(where, b"same")
    await store.put_if_absent(where, b"same")
    assert await store.get(where) == b"same"


async def test_other_bytes_at_a_taken_location_are_refused_and_the_first_stay(store: BlobStore) -> None:
    where = somewhere()
    await store.put_if_absent(where, b"first")
    with pytest.raises(BlobExists):
        await store.put_if_absent(where, b"other")
    assert await store.get(where) == b"first"


async def test_of_eight_racing_writers_exactly_one_wins(store: BlobStore) -> None:
    where = somewhere()
    results = await asyncio.gather(
        *(store.put_if_absent(where, bytes([n]) * 1000) for n in range(8)), return_exceptions=True
    )
    winners = [n for n, result in enumerate(results) if result is None]
    assert len(winners) == 1
    assert await store.get(where) == bytes(winners) * 1000
    assert all(isinstance(r, BlobExists | BlobUnavailable) for r in results if r is not None)


async def test_what_was_never_put_is_not_found(store: BlobStore) -> None:
    where = somewhere()
    for read in (store.get(where), store.head(where), store.get_range(where, 0, 1)):
        with pytest.raises(BlobNotFound):
            await read


async def test_a_deleted_blob_is_gone_and_deleting_again_is_no_error(store: BlobStore) -> None:
    where = somewhere()
    await store.put_if_absent(where, b"x")
    await store.delete(where)
    await store.delete(where)
    with pytest.raises(BlobNotFound):
        await store.get(where)


@pytest.mark.parametrize(("start", "length"), [(0, 1), (3, 4), (8, 100), (0, 10), (10, 1), (99, 5)])
async def test_a_range_is_the_slice_of_the_blob(store: BlobStore, start: int, length: int) -> None:
    where = somewhere()
    await store.put_if_absent(where, b"0123456789")
    assert await store.get_range(where, start, length) == b"0123456789"[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 0), (0, -5)])
async def test_a_range_that_no_blob_has_is_refused(store: BlobStore, start: int, length: int) -> None:
    with pytest.raises(ValueError, match="range"):
        await store.get_range(somewhere(), start, length)


async def test_two_tenants_may_use_one_blob_id(store: BlobStore) -> None:
    blob_id = uuid4()
    first, second = BlobLocation(uuid4(), blob_id), BlobLocation(uuid4(), blob_id)
    await store.put_if_absent(first, b"first")
    await store.put_if_absent(second, b"second")
    assert (await store.get(first), await store.get(second)) == (b"first", b"second")


async def test_keys_list_in_order_by_prefix_and_from_a_place_on(store: BlobStore) -> None:
    tenant = uuid4()
    locations = [AnchorLocation(tenant, number) for number in (1, 2, 300, 2**40)]
    for where in locations:
        await store.put_if_absent(where, b"x")
    await store.put_if_absent(AnchorLocation(uuid4(), 7), b"x")
    await store.put_if_absent(BlobLocation(tenant, uuid4()), b"x")
    found = await store.list_keys(anchor_prefix(tenant))
    assert [AnchorLocation.parse(each) for each in found] == locations[::-1]  # the newest first
    assert await store.list_keys(anchor_prefix(tenant), limit=2) == found[:2]
    assert await store.list_keys(anchor_prefix(tenant), after=found[1], limit=2) == found[2:]
    assert await store.list_keys(anchor_prefix(tenant), after=found[3]) == []
    await store.delete(locations[3])
    assert await store.list_keys(anchor_prefix(tenant)) == found[1:]
    assert await store.list_keys(anchor_prefix(uuid4())) == []


@pytest.mark.parametrize(
    "text", ["", "anchors/v1/x/0", f"v1/{'0' * 32}/00/{'0' * 32}", f"anchors/v1/{'0' * 32}/{'0' * 15}"]
)
def test_a_key_that_is_no_anchors_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the key of an anchor"):
        AnchorLocation.parse(text)


async def test_a_bucket_that_answers_is_healthy(store: BlobStore) -> None:
    await store.health()


async def test_a_missing_bucket_is_unavailable_never_not_found(s3_server) -> None:
    url = s3_server.url().replace("/stateroom?", "/absent?")
    store = S3BlobStore(S3Location.parse(url), threads=1)
    where = somewhere()
    for call in (store.health(), store.get(where), store.put_if_absent(where, b"x")):
        with pytest.raises(BlobUnavailable):
            await call
    await store.aclose()


async def test_wrong_credentials_are_unavailable_and_the_error_names_no_secret(s3_server) -> None:
    store = S3BlobStore(S3Location.parse(s3_server.url().replace(s3_server.secret_key, "wr0ng")), threads=1)
    for call in (store.health(), store.put_if_absent(somewhere(), b"x")):
        with pytest.raises(BlobUnavailable) as caught:
            await call
        assert "wr0ng" not in str(caught.value)
        assert s3_server.access_key not in str(caught.value)
    await store.aclose()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = S3BlobStore(S3Location.parse("s3://a:b@127.0.0.1:1/bucket?endpoint=http"), threads=1)
    with pytest.raises(BlobUnavailable):
        await store.get(somewhere())
    await store.aclose()


async def test_the_twin_made_unavailable_refuses_everything() -> None:
    store = MemoryBlobStore()
    store.available = False
    for call in (store.health(), store.get(somewhere()), store.put_if_absent(somewhere(), b"x")):
        with pytest.raises(BlobUnavailable):
            await call


def test_an_object_key_names_tenant_and_blob_and_nothing_else() -> None:
    where = BlobLocation(UUID(int=0xA), UUID(int=0xBEEF))
    assert where.object_key() == f"v1/{'0' * 31}a/ef/{'0' * 28}beef"
    assert BlobLocation.parse(where.object_key()) == where
    assert where.object_key().startswith(tenant_prefix(where.tenant_id))


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        f"v2/{0:032}/00/{0:032}",
        f"v1/{0:032}/01/{0:032}",
        f"v1/{0:032}/00/{0:032}\n",
        f"v1/{'A' * 32}/00/{0:032}",
        "v1/../00/x",
    ],
)
def test_a_foreign_object_key_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="not an object key"):
        BlobLocation.parse(wrong)


def test_an_s3_url_names_aws_or_any_other_server() -> None:
    assert S3Location.parse("s3://my.bucket?region=eu-central-1") == S3Location(
        bucket="my.bucket", region="eu-central-1"
    )
    url = "s3://a%2Fb:c%40d@[::1]:9000/bucket?endpoint=http&addressing=virtual"
    assert S3Location.parse(url) == S3Location(
        bucket="bucket",
        endpoint_url="http://[::1]:9000",
        region="us-east-1",
        addressing="virtual",
        access_key="a/b",
        secret_key="c@d",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "http://bucket",
        "s3://",
        "s3:///bucket",
        "s3://h:99999/b",
        "s3://h/a/b",
        "s3://h/b?what=1",
        "s3://h:1",
        "s3://h/b?endpoint=ftp",
        "s3://only-access@h/b",
        "s3://h/b?region=x&region=y",
        "s3://b?endpoint=http",
    ],
)
def test_an_s3_url_of_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="S3 URL"):
        S3Location.parse(wrong)


@pytest.mark.parametrize("rest", ["h:99999/b", "h/a/b", "h/b?what=1", "h/b?endpoint=ftp", "[h/b", "h/b?x"])
def test_a_refused_s3_url_does_not_reach_the_error(rest: str) -> None:
    with pytest.raises(ValueError, match="S3 URL") as caught:
        S3Location.parse(f"s3://access:hush@{rest}")
    assert "hush" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_the_secret_is_not_in_the_repr() -> None:
    assert "hush" not in repr(S3Location.parse("s3://a:hush@h/b"))
