"""What every `BlobStore` promises, on the in-memory twin, and with both clients on moto and on a real S3 server."""

import asyncio
import os
import traceback
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import quote
from uuid import UUID, uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from storage.blobs.keyspace import AnchorLocation, BlobLocation, anchor_prefix, tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import (
    PARTS_MAX,
    BlobExists,
    BlobFrozen,
    BlobInfo,
    BlobNotFound,
    BlobStore,
    BlobUnavailable,
    MultipartNotFound,
    PartMismatch,
)
from storage.clock import ManualClock
from tests.support.faulty_blobs import FaultyBlobStore

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


@pytest.fixture(params=["memory", "moto", "real", "faulty"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
async def clients() -> AsyncIterator[dict[str, BlobStore]]:
    """Stores on servers, by kind: to build a client takes longer than most tests."""
    made: dict[str, BlobStore] = {}
    yield made
    for each in made.values():
        await each.aclose()


@pytest.fixture
def store(kind: str, clients: dict[str, BlobStore], request: pytest.FixtureRequest) -> BlobStore:
    if kind == "memory":
        return MemoryBlobStore()
    if kind == "faulty":
        return FaultyBlobStore(MemoryBlobStore())  # without a script it is a store like any other
    if kind not in clients:
        url = request.getfixturevalue("moto_url") if kind == "moto" else request.getfixturevalue("s3_server").url()
        clients[kind] = S3BlobStore(S3Location.parse(url), threads=4)
    return clients[kind]


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


# moto looks whether there is one, and writes, in two steps: it has two winners now and then.
@pytest.mark.parametrize("kind", ["memory", "real", "faulty"], indirect=True)
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


async def test_a_listing_says_size_and_time(store: BlobStore) -> None:
    tenant = uuid4()
    locations = sorted((BlobLocation(tenant, uuid4()) for _ in range(3)), key=BlobLocation.object_key)
    before = datetime.now(UTC) - timedelta(seconds=2)  # listings round to seconds
    for number, where in enumerate(locations):
        await store.put_if_absent(where, bytes(number))
    found = await store.list_objects(tenant_prefix(tenant))
    assert [(each.object_key, each.size_bytes) for each in found] == [
        (where.object_key(), number) for number, where in enumerate(locations)
    ]
    assert all(before <= each.modified_at <= datetime.now(UTC) for each in found)
    rest = await store.list_objects(tenant_prefix(tenant), after=found[0].object_key, limit=1)
    assert rest == found[1:2]


PART = 5 << 20


async def begun(store: BlobStore, *sizes: int) -> tuple[BlobLocation, str, list[bytes], list[tuple[int, str]]]:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    data = [os.urandom(size) for size in sizes]
    etags = [(number, await store.put_part(where, multipart_id, number, part)) for number, part in enumerate(data)]
    return where, multipart_id, data, etags


async def test_an_upload_in_parts_becomes_one_object_when_it_is_completed(store: BlobStore) -> None:
    where, multipart_id, data, etags = await begun(store, PART, PART, 72)
    with pytest.raises(BlobNotFound):
        await store.head(where)
    assert await store.list_objects(where.object_key()) == []
    await store.complete_multipart(where, multipart_id, etags, size_bytes=2 * PART + 72)
    assert await store.get(where) == b"".join(data)
    assert (await store.head(where)).size_bytes == 2 * PART + 72
    assert await store.get_range(where, PART - 2, 4) == data[0][-2:] + data[1][:2]
    assert len(multipart_id) <= 1024
    assert all(len(etag) <= 200 for _, etag in etags)


async def test_a_part_may_arrive_out_of_order_and_again_with_other_bytes(store: BlobStore) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    last = await store.put_part(where, multipart_id, 1, bytearray(b"last"))
    await store.put_part(where, multipart_id, 0, bytes(PART))
    data = os.urandom(PART)
    fresh = await store.put_part(where, multipart_id, 0, data)
    await store.complete_multipart(where, multipart_id, [(0, fresh), (1, last)], size_bytes=PART + 4)
    assert await store.get(where) == data + b"last"


async def test_the_etag_of_a_replaced_part_never_gives_the_bytes_that_replaced_it(store: BlobStore, kind: str) -> None:
    where = somewhere()
    multipart_id = await store.begin_multipart(where)
    stale = await store.put_part(where, multipart_id, 0, b"stale")
    await store.put_part(where, multipart_id, 0, b"fresh")
    if kind.startswith("real"):  # it keeps both and takes what the etag names
        await store.complete_multipart(where, multipart_id, [(0, stale)], size_bytes=5)
        assert await store.get(where) == b"stale"
        return
    with pytest.raises(PartMismatch):
        await store.complete_multipart(where, multipart_id, [(0, stale)], size_bytes=5)


async def test_a_part_that_never_arrived_is_a_mismatch(store: BlobStore) -> None:
    where, multipart_id, _, etags = await begun(store, PART, 1)
    with pytest.raises(PartMismatch):
        await store.complete_multipart(where, multipart_id, [*etags, (2, etags[1][1])], size_bytes=PART + 2)


async def test_completing_again_changes_nothing(store: BlobStore) -> None:
    where, multipart_id, data, etags = await begun(store, 10)
    for _ in range(2):
        await store.complete_multipart(where, multipart_id, etags, size_bytes=10)
    assert await store.get(where) == data[0]
    await store.abort_multipart(where, multipart_id)
    assert await store.get(where) == data[0]


async def test_completing_never_replaces_an_object(store: BlobStore) -> None:
    where, multipart_id, _, etags = await begun(store, 10)
    await store.put_if_absent(where, b"first")
    with pytest.raises(BlobExists):
        await store.complete_multipart(where, multipart_id, etags, size_bytes=10)
    assert await store.get(where) == b"first"


async def test_of_two_uploads_to_one_location_one_wins(store: BlobStore) -> None:
    where, first, _, first_parts = await begun(store, 10)
    second = await store.begin_multipart(where)
    second_parts = [(0, await store.put_part(where, second, 0, bytes(11)))]
    await store.complete_multipart(where, second, second_parts, size_bytes=11)
    with pytest.raises(BlobExists):
        await store.complete_multipart(where, first, first_parts, size_bytes=10)
    assert await store.get(where) == bytes(11)


async def test_an_aborted_upload_is_gone_and_aborting_again_is_no_error(store: BlobStore, kind: str) -> None:
    where, multipart_id, _, etags = await begun(store, 10)
    await store.abort_multipart(where, multipart_id)
    await store.abort_multipart(where, multipart_id)
    await store.abort_multipart(where, "00000000000000000000000000000000")
    with pytest.raises(BlobUnavailable if kind.startswith("moto") else MultipartNotFound):  # moto answers 500
        await store.put_part(where, multipart_id, 1, b"late")
    with pytest.raises(MultipartNotFound):
        await store.complete_multipart(where, multipart_id, etags, size_bytes=10)
    with pytest.raises(BlobNotFound):
        await store.head(where)


async def test_open_uploads_are_listed_until_they_end(store: BlobStore, kind: str) -> None:
    tenant = uuid4()
    locations = sorted((BlobLocation(tenant, uuid4()) for _ in range(3)), key=BlobLocation.object_key)
    before = datetime.now(UTC) - timedelta(seconds=2)
    begun_ids = [await store.begin_multipart(where) for where in locations]
    found = await store.list_multiparts(tenant_prefix(tenant))
    assert [(each.object_key, each.multipart_id) for each in found] == [
        (where.object_key(), multipart_id) for where, multipart_id in zip(locations, begun_ids, strict=True)
    ]
    if not kind.startswith("moto"):  # its uploads all began in 2010
        assert all(before <= each.begun_at <= datetime.now(UTC) for each in found)
    assert await store.list_multiparts(locations[2].object_key()) == found[2:]
    await store.abort_multipart(locations[0], begun_ids[0])
    etag = await store.put_part(locations[1], begun_ids[1], 0, b"x")
    await store.complete_multipart(locations[1], begun_ids[1], [(0, etag)], size_bytes=1)
    assert await store.list_multiparts(tenant_prefix(tenant)) == found[2:]


@pytest.mark.parametrize("parts", [[], [(1, "b"), (0, "a")], [(0, "a"), (0, "b")], [(-1, "a")], [(PARTS_MAX, "a")]])
async def test_a_list_of_parts_that_no_upload_has_is_refused(store: BlobStore, parts: list[tuple[int, str]]) -> None:
    with pytest.raises(ValueError, match="part"):
        await store.complete_multipart(somewhere(), "x", parts, size_bytes=1)


@pytest.mark.parametrize("number", [-1, PARTS_MAX])
async def test_a_number_that_no_part_has_is_refused(store: BlobStore, number: int) -> None:
    with pytest.raises(ValueError, match="part's number"):
        await store.put_part(somewhere(), "x", number, b"x")


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
    url = s3_server.url().replace(s3_server.secret_key, "wr0ng")
    store = S3BlobStore(S3Location.parse(url), threads=1)
    where = somewhere()
    for call in (store.health(), store.put_if_absent(where, b"x"), store.get(where), store.head(where)):
        with pytest.raises(BlobUnavailable) as caught:
            await call
        told = "".join(traceback.format_exception(caught.value))
        for secret in ("wr0ng", s3_server.access_key, "127.0.0.1", str(where.blob_id.hex), "<Code>"):
            assert secret not in told
    await store.aclose()


@pytest.mark.parametrize(
    ("asked", "kms_key_id"), [("AES256", None), ("aws:kms", "arn:aws:kms:us-east-1:111122223333:key/k")]
)
async def test_the_server_is_asked_to_encrypt_what_it_stores(moto_url: str, asked: str, kms_key_id: str | None) -> None:
    url = f"{moto_url}&sse={quote(asked)}" + (f"&kms_key_id={kms_key_id}" if kms_key_id else "")
    store = S3BlobStore(S3Location.parse(url), threads=1)
    where = somewhere()
    await store.put_if_absent(where, b"x")
    stored = store._client.head_object(Bucket="stateroom", Key=where.object_key())
    assert stored["ServerSideEncryption"] == asked
    assert stored.get("SSEKMSKeyId") == kms_key_id
    await store.aclose()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    url = "s3://a:b@127.0.0.1:1/bucket?endpoint=http"
    store = S3BlobStore(S3Location.parse(url), threads=1)
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


def test_an_s3_url_may_ask_for_server_side_encryption() -> None:
    assert S3Location.parse("s3://b?sse=AES256") == S3Location(bucket="b", sse="AES256")
    arn = "arn:aws:kms:eu-central-1:111122223333:key/k"
    assert S3Location.parse(f"s3://b?sse=aws%3Akms&kms_key_id={arn}") == S3Location(
        bucket="b", sse="aws:kms", kms_key_id=arn
    )


@pytest.mark.parametrize("size", [16_384, 65_536, 16_777_216])
def test_an_s3_url_may_say_from_which_size_on_pieces_live_in_the_bucket(size: int) -> None:
    assert S3Location.parse(f"s3://b?offload_bytes_min={size}") == S3Location(bucket="b", offload_bytes_min=size)
    assert S3Location.parse("s3://b").offload_bytes_min is None


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
        "s3://b?sse=none",
        "s3://b?sse=AES256&kms_key_id=k",
        "s3://b?kms_key_id=k",
        "s3://b?client=obstore",
        "s3://b?offload_bytes_min=16383",
        "s3://b?offload_bytes_min=16777217",
        "s3://b?offload_bytes_min=64KiB",
        "s3://b?offload_bytes_min=-65536",
        "s3://b?offload_bytes_min=",
        "s3://b?offload_bytes_min=65536&offload_bytes_min=65536",
        "s3://b?offload_bytes_min=" + "9" * 5000,
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


# --- storage classes -----------------------------------------------------------------------------------------------

COLD = ("GLACIER", "DEEP_ARCHIVE")


def freezes(kind: str) -> bool:
    """SeaweedFS knows the names of classes, and freezes nothing: what it says of one that S3 would freeze is a name."""
    return not kind.startswith("real")


async def put_whole(store: BlobStore, where: BlobLocation, data: bytes, storage_class: str) -> None:
    await store.put_if_absent(where, data, storage_class=storage_class)


async def put_in_parts(store: BlobStore, where: BlobLocation, data: bytes, storage_class: str) -> None:
    multipart_id = await store.begin_multipart(where, storage_class=storage_class)
    etag = await store.put_part(where, multipart_id, 0, data)
    await store.complete_multipart(where, multipart_id, [(0, etag)], size_bytes=len(data))


@pytest.mark.parametrize("put", [put_whole, put_in_parts])
@pytest.mark.parametrize("storage_class", ["STANDARD", "STANDARD_IA", "GLACIER_IR"])
async def test_a_blob_is_stored_in_the_class_that_is_asked_for(store: BlobStore, put, storage_class: str) -> None:
    where = somewhere()
    await put(store, where, b"sealed", storage_class)
    assert await store.head(where) == BlobInfo(6, storage_class)
    assert await store.get(where) == b"sealed"
    await store.thaw(where, 1)  # there is nothing to thaw
    assert await store.head(where) == BlobInfo(6, storage_class)


@pytest.mark.parametrize("put", [put_whole, put_in_parts])
@pytest.mark.parametrize("storage_class", COLD)
async def test_what_is_stored_in_a_cold_class_is_frozen_until_it_is_thawed(
    store: BlobStore, kind: str, put, storage_class: str
) -> None:
    where = somewhere()
    await put(store, where, b"sealed", storage_class)
    assert await store.head(where) == BlobInfo(6, storage_class, "frozen")
    if not freezes(kind):
        await store.thaw(where, 1)
        assert await store.get(where) == b"sealed"
        return
    for read in (store.get(where), store.get_range(where, 0, 1)):
        with pytest.raises(BlobFrozen):
            await read
    before = datetime.now(UTC)
    await store.thaw(where, 2)
    if kind in {"memory", "faulty"}:
        assert await store.head(where) == replace(await store.head(where), state="thawing")
        with pytest.raises(BlobFrozen):
            await store.get(where)
        return  # the next test holds the clock
    found = await store.head(where)
    assert (found.state, found.storage_class) == ("ready", storage_class)
    assert found.thawed_until is not None
    assert before + timedelta(days=2, minutes=-1) <= found.thawed_until <= before + timedelta(days=3, minutes=1)
    assert await store.get(where) == b"sealed"
    assert await store.get_range(where, 1, 2) == b"ea"
    await store.thaw(where, 5)  # longer
    assert (await store.head(where)).thawed_until > found.thawed_until


async def test_the_twin_thaws_as_s3_does() -> None:
    clock = ManualClock(datetime(2026, 1, 1, 22, 30, tzinfo=UTC))
    store = MemoryBlobStore(clock=clock, storage_class="GLACIER", thaw_seconds=3 * 3600)
    where = somewhere()
    await store.put_if_absent(where, b"sealed")
    await store.thaw(where, 1)
    clock.set(datetime(2026, 1, 2, 1, 29, tzinfo=UTC))
    await store.thaw(where, 1)  # is no error, and begins nothing anew
    assert (await store.head(where)).state == "thawing"
    clock.set(datetime(2026, 1, 2, 1, 30, tzinfo=UTC))
    until = datetime(2026, 1, 3, tzinfo=UTC)  # a day after the request, rounded up to midnight
    assert await store.head(where) == BlobInfo(6, "GLACIER", "ready", until)
    assert await store.get(where) == b"sealed"
    clock.set(until - timedelta(hours=1))
    await store.thaw(where, 1)
    clock.set(until)
    assert await store.get(where) == b"sealed"
    clock.set(until + timedelta(days=1))
    assert (await store.head(where)).state == "frozen"
    with pytest.raises(BlobFrozen):
        await store.get(where)


async def test_a_blob_that_was_read_back_can_be_moved_to_a_cold_class(store: BlobStore, kind: str) -> None:
    for put in (put_whole, put_in_parts):
        where = somewhere()
        await put(store, where, b"sealed", "STANDARD")
        assert await store.get(where) == b"sealed"
        for _ in range(2):
            await store.change_class(where, "GLACIER")
            assert await store.head(where) == BlobInfo(6, "GLACIER", "frozen")
        if freezes(kind):
            with pytest.raises(BlobFrozen):
                await store.get(where)
            with pytest.raises(BlobFrozen):
                await store.change_class(where, "STANDARD")
        else:
            assert await store.get(where) == b"sealed"
        await store.delete(where)  # also what is frozen
        with pytest.raises(BlobNotFound):
            await store.head(where)


async def test_storing_frozen_bytes_again_changes_nothing_and_other_bytes_are_refused(store: BlobStore) -> None:
    where = somewhere()
    await store.put_if_absent(where, b"sealed", storage_class="DEEP_ARCHIVE")
    await store.put_if_absent(where, b"sealed", storage_class="DEEP_ARCHIVE")
    for other in (b"SEALED", b"sealed, and longer"):
        with pytest.raises(BlobExists):
            await store.put_if_absent(where, other, storage_class="DEEP_ARCHIVE")


async def test_what_is_not_there_is_neither_thawed_nor_moved(store: BlobStore) -> None:
    where = somewhere()
    for call in (store.thaw(where, 1), store.change_class(where, "GLACIER")):
        with pytest.raises(BlobNotFound):
            await call


async def test_classes_and_days_that_there_are_not_are_refused(store: BlobStore) -> None:
    where = somewhere()
    for call in (
        store.put_if_absent(where, b"x", storage_class="COLD"),
        store.begin_multipart(where, storage_class="glacier"),
        store.change_class(where, ""),
        store.thaw(where, 0),
    ):
        with pytest.raises(ValueError, match=r"storage class|day"):
            await call
    assert await store.list_keys(where.object_key()) == []


@pytest.mark.parametrize("storage_class", ["STANDARD_IA", "GLACIER"])
async def test_the_url_says_the_class_of_what_is_stored(moto_url: str, storage_class: str) -> None:
    location = S3Location.parse(f"{moto_url}&storage_class={storage_class}")
    store = S3BlobStore(location, threads=2)
    try:
        assert store.storage_class == storage_class
        for put in (store.put_if_absent, None):
            where = somewhere()
            if put is None:
                multipart_id = await store.begin_multipart(where)
                etag = await store.put_part(where, multipart_id, 0, b"sealed")
                await store.complete_multipart(where, multipart_id, [(0, etag)], size_bytes=6)
            else:
                await put(where, b"sealed")
            assert (await store.head(where)).storage_class == storage_class
        where = somewhere()
        await store.put_if_absent(where, b"sealed", storage_class="STANDARD")
        assert await store.head(where) == BlobInfo(6)
    finally:
        await store.aclose()


@pytest.mark.parametrize("wrong", ["", "COLD", "glacier", "GLACIER&storage_class=STANDARD"])
def test_an_s3_url_with_another_class_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="S3 URL"):
        S3Location.parse(f"s3://bucket?storage_class={wrong}")


class _Answers(BaseHTTPRequestHandler):
    """A server of one cold object that answers a thaw as it is told."""

    restore: ClassVar[str | None] = None
    answer: ClassVar[tuple[int, str]] = (202, "")
    asked: ClassVar[list[tuple[str, bytes]]] = []

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.send_header("x-amz-storage-class", "GLACIER")
        if self.restore is not None:
            self.send_header("x-amz-restore", self.restore)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path.partition("?")[2], body))
        status, code = self.answer
        text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def answering():
    kind = type("Answers", (_Answers,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    kind.url = f"s3://access:secret@127.0.0.1:{server.server_port}/stateroom?endpoint=http"
    yield kind
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("restore", "expected"),
    [
        (None, ("frozen", None)),
        ('ongoing-request="true"', ("thawing", None)),
        (
            'ongoing-request="false", expiry-date="Fri, 21 Dec 2012 00:00:00 GMT"',
            ("ready", datetime(2012, 12, 21, tzinfo=UTC)),
        ),
        ('ongoing-request="false", expiry-date="soon"', ("ready", None)),
    ],
)
async def test_how_far_a_thaw_is_is_read_as_s3_writes_it(answering, restore, expected) -> None:
    answering.restore = restore
    store = S3BlobStore(S3Location.parse(answering.url), threads=1)
    found = await store.head(somewhere())
    await store.aclose()
    assert (found.state, found.thawed_until) == expected


@pytest.mark.parametrize(
    "answer",
    [(202, ""), (200, ""), (409, "RestoreAlreadyInProgress"), (405, "MethodNotAllowed"), (501, "NotImplemented")],
)
async def test_a_thaw_that_goes_on_already_is_no_error(answering, answer) -> None:
    answering.answer = answer
    store = S3BlobStore(S3Location.parse(answering.url), threads=1)
    await store.thaw(somewhere(), 3)
    await store.aclose()
    query, body = answering.asked[0]
    assert query == "restore"
    assert b"<Days>3</Days>" in body
    assert b"<Tier>Standard</Tier>" in body


async def test_a_thaw_that_is_refused_is_unavailable(answering) -> None:
    answering.answer = (403, "AccessDenied")
    store = S3BlobStore(S3Location.parse(answering.url), threads=1)
    with pytest.raises(BlobUnavailable):
        await store.thaw(somewhere(), 3)
    await store.aclose()


def test_an_archived_threads_object_has_a_name_of_its_own() -> None:
    blob = BlobLocation(TENANT, uuid4())
    archived = replace(blob, place="archive")
    assert archived.object_key() == f"archive/{blob.object_key()}"
    assert BlobLocation.parse(archived.object_key()) == archived
    assert archived.object_key().startswith(tenant_prefix(TENANT, "archive"))
    assert not archived.object_key().startswith(tenant_prefix(TENANT))
