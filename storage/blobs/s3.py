"""Blobs in any S3: whole objects through obstore (`storage.blobs.s3_objects`), all else through boto3 in few threads.

The server must honour `If-None-Match: *` on PUT (AWS S3, MinIO, SeaweedFS, Ceph and R2 do). Credentials that
the URL (`storage.blobs.s3_location`) does not carry come from boto3's default chain, for both clients.

Every upload carries a checksum of its bytes, which the server compares before it answers; what is read back is
authenticated above. A call that fails for a reason that may pass is made up to three times, and one that stores or
reads a whole object gives up after `BODY_SECONDS_MAX` even if bytes keep dripping in.
"""

import asyncio
import base64
import functools
import hashlib
import re
import zlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader, create_loader

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.s3_location import S3Location
from storage.blobs.s3_objects import (
    ATTEMPTS_MAX,
    BODY_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    READ_SECONDS_MAX,
    S3Objects,
)
from storage.blobs.store import (
    FROZEN_CLASSES,
    BlobBytes,
    BlobExists,
    BlobFrozen,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
    BucketElsewhere,
    MultipartInfo,
    MultipartNotFound,
    ObjectInfo,
    PartMismatch,
    ThawState,
    check_class,
    check_days,
    check_part_number,
    check_parts,
    check_range,
)

_T = TypeVar("_T")

THREADS = 16  # two busy cores' worth; each waits for the network most of its time
_EXPIRY = re.compile(r'expiry-date="([^"]*)"', re.ASCII)


@functools.cache
def _descriptions() -> Loader:
    """Reads what botocore knows of S3, once for all clients of a process: it is most of what a client costs."""
    return create_loader()


class S3BlobStore:
    """A `BlobStore` in one bucket; one instance per process and bucket.

    Attributes:
        storage_class: What blobs are stored in when nothing else is asked for.
    """

    def __init__(
        self, location: S3Location, *, threads: int = THREADS, body_seconds_max: float = BODY_SECONDS_MAX
    ) -> None:
        self.storage_class = location.storage_class or "STANDARD"
        self._location = location
        self._bucket = location.bucket
        self._body_seconds_max = body_seconds_max
        self._encryption: dict[str, str] = {}
        if location.sse is not None:
            self._encryption["ServerSideEncryption"] = location.sse
        if location.kms_key_id is not None:
            self._encryption["SSEKMSKeyId"] = location.kms_key_id
        self._threads_max = threads
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        session = botocore.session.get_session()
        session.register_component("data_loader", _descriptions())
        self._session = boto3.session.Session(botocore_session=session)
        self._connect(location.region)

    def _connect(self, region: str | None) -> None:
        """Make both clients for a region; nothing is asked of the server yet."""
        self._client = self._session.client(
            "s3",
            endpoint_url=self._location.endpoint_url,
            region_name=region,
            aws_access_key_id=self._location.access_key,
            aws_secret_access_key=self._location.secret_key,
            config=Config(
                connect_timeout=CONNECT_SECONDS_MAX,
                read_timeout=READ_SECONDS_MAX,
                max_pool_connections=self._threads_max,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
                s3={"addressing_style": self._location.addressing},
                # Where objects go is the setting's to say, not a variable's.
                ignore_configured_endpoint_urls=True,
            ),
        )
        meta = self._client.meta
        self._objects = S3Objects(
            self._location, meta.endpoint_url, meta.region_name, self._session.get_credentials,
            body_seconds_max=self._body_seconds_max,
        )  # fmt: skip

    async def put_if_absent(
        self, location: ObjectLocation, data: BlobBytes, *, storage_class: str | None = None
    ) -> None:
        """See `BlobStore`."""
        chosen = check_class(storage_class or self.storage_class)
        object_key = location.object_key()
        try:
            if chosen in FROZEN_CLASSES:
                await self._run(self._put_frozen, object_key, data, chosen)
            else:
                await self._with_objects(lambda objects: objects.put(object_key, data, chosen))
        except BlobExists:
            # Also what a second attempt sees after the answer to a good PUT was lost: ours if the bytes are equal.
            try:
                same = await self.get(location) == data
            except BlobNotFound:
                raise BlobUnavailable("the blob was removed while it was stored again") from None
            except BlobFrozen:
                same = await self._run(self._looks_like, object_key, data)
            if not same:
                raise

    async def get(self, location: ObjectLocation) -> bytes:
        """See `BlobStore`."""
        return await self._with_objects(lambda objects: objects.get(location.object_key()))

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        check_range(start, length)
        return await self._with_objects(lambda objects: objects.get(location.object_key(), (start, start + length)))

    async def _with_objects(self, work: Callable[[S3Objects], Awaitable[_T]]) -> _T:
        """Do something with whole objects, in the region where the bucket turns out to be, and from then on there.

        boto3 follows a server that sends it to another region, so it finds out which one that is.
        """
        try:
            return await work(self._objects)
        except BucketElsewhere:
            region = (await self._run(self._call, "head_bucket")).get("BucketRegion")
            if region is None or region == self._client.meta.region_name:
                raise
            self._connect(region)
        return await work(self._objects)

    async def head(self, location: ObjectLocation) -> BlobInfo:
        """See `BlobStore`."""
        answer = await self._run(self._call, "head_object", Key=location.object_key())
        storage_class = answer.get("StorageClass", "STANDARD")
        # The classes that are frozen from the start, and what intelligent tiering has put aside.
        freezes = storage_class in FROZEN_CLASSES or "ArchiveStatus" in answer
        state, thawed_until = _thaw_state(answer.get("Restore")) if freezes else ("ready", None)
        return BlobInfo(int(answer["ContentLength"]), storage_class, state, thawed_until)

    async def thaw(self, location: ObjectLocation, days: int) -> None:
        """See `BlobStore`."""
        check_days(days)
        await self._run(self._thaw, location.object_key(), days)

    async def change_class(self, location: ObjectLocation, storage_class: str) -> None:
        """See `BlobStore`."""
        check_class(storage_class)
        await self._run(self._change_class, location.object_key(), storage_class)

    async def delete(self, location: ObjectLocation) -> None:
        """See `BlobStore`."""
        await self._run(self._call, "delete_object", Key=location.object_key())

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See `BlobStore`."""
        return [found.object_key for found in await self.list_objects(prefix, after=after, limit=limit)]

    async def list_objects(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        """See `BlobStore`."""
        return await self._run(self._list_objects, prefix, after, limit)

    async def begin_multipart(self, location: ObjectLocation, *, storage_class: str | None = None) -> str:
        """See `BlobStore`."""
        answer = await self._run(
            self._call,
            "create_multipart_upload",
            Key=location.object_key(),
            ChecksumAlgorithm="CRC32",
            **self._encryption,
            **self._class(storage_class),
        )
        return str(answer["UploadId"])

    async def put_part(self, location: ObjectLocation, multipart_id: str, number: int, data: BlobBytes) -> str:
        """See `BlobStore`."""
        check_part_number(number)
        return await self._run(self._put_part, location.object_key(), multipart_id, number, data)

    async def complete_multipart(
        self, location: ObjectLocation, multipart_id: str, parts: Sequence[tuple[int, str]], *, size_bytes: int
    ) -> None:
        """See `BlobStore`."""
        check_parts(parts)
        await self._run(self._complete, location.object_key(), multipart_id, parts, size_bytes)

    async def abort_multipart(self, location: ObjectLocation, multipart_id: str) -> None:
        """See `BlobStore`."""
        await self._run(self._abort, location.object_key(), multipart_id)

    async def list_multiparts(self, prefix: str) -> list[MultipartInfo]:
        """See `BlobStore`."""
        return await self._run(self._list_multiparts, prefix)

    async def health(self) -> None:
        """See `BlobStore`."""
        await self._run(self._call, "head_bucket")

    async def aclose(self) -> None:
        """See `BlobStore`; waits for the operations under way."""
        await asyncio.to_thread(self._threads.shutdown)
        self._client.close()

    async def _run(self, work: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def _call(self, operation: str, **arguments: Any) -> Any:
        """Make one call of the client; its errors become ours, without the server's free text."""
        try:
            return getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            http_status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        except BotoCoreError as error:
            raise BlobUnavailable(f"the object store cannot be reached: {type(error).__name__}") from None
        if code == "NoSuchKey" or (operation == "head_object" and http_status == 404):
            raise BlobNotFound
        if code == "NoSuchUpload":
            raise MultipartNotFound
        if code in {"InvalidObjectState", "ObjectNotInActiveTierError"}:
            raise BlobFrozen
        if code in {"RestoreAlreadyInProgress", "MethodNotAllowed", "NotImplemented"} and operation == "restore_object":
            return None  # what was asked for happens already; or the server freezes nothing
        if code in {"InvalidPart", "InvalidPartOrder"}:
            raise PartMismatch
        if http_status == 412:
            raise BlobExists
        raise BlobUnavailable(f"the object store refused {operation}: HTTP {http_status}")

    def _class(self, storage_class: str | None) -> dict[str, str]:
        """The argument of an upload; none for S3's own default, which servers without classes understand."""
        chosen = check_class(storage_class or self.storage_class)
        return {} if chosen == "STANDARD" else {"StorageClass": chosen}

    def _thaw(self, object_key: str, days: int) -> None:
        found = self._call("head_object", Key=object_key)
        request: dict[str, Any] = {"GlacierJobParameters": {"Tier": "Standard"}}
        if found.get("StorageClass") in FROZEN_CLASSES:
            request["Days"] = days
        elif "ArchiveStatus" not in found:
            return
        self._call("restore_object", Key=object_key, RestoreRequest=request)

    def _change_class(self, object_key: str, storage_class: str) -> None:
        found = self._call("head_object", Key=object_key)
        if found.get("StorageClass", "STANDARD") == storage_class:
            return
        self._call(
            "copy_object",
            Key=object_key,
            CopySource={"Bucket": self._bucket, "Key": object_key},
            # If it was removed and is another one now, there is nothing to move.
            CopySourceIfMatch=found["ETag"],
            # Ours have no metadata to lose, and SeaweedFS refuses a copy onto itself that says COPY.
            MetadataDirective="REPLACE",
            StorageClass=storage_class,
            **self._encryption,
        )

    def _put_frozen(self, object_key: str, data: BlobBytes, storage_class: str) -> None:
        """Store what cannot be read back, and is told apart by the CRC-32 that goes with it."""
        self._call(
            "put_object",
            Key=object_key,
            Body=data,
            IfNoneMatch="*",
            ChecksumCRC32=_crc32(data),
            StorageClass=storage_class,
            **self._encryption,
        )

    def _looks_like(self, object_key: str, data: BlobBytes) -> bool:
        """Whether what cannot be read has the size and the checksum of these bytes."""
        found = self._call("head_object", Key=object_key, ChecksumMode="ENABLED")
        if int(found["ContentLength"]) != len(data):
            return False
        if "ChecksumCRC32" in found:
            return bool(found["ChecksumCRC32"] == _crc32(data))
        # A server that keeps no checksums; the ETag of one PUT is the MD5, unless a key service encrypted it.
        return bool(found["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest())

    def _put_part(self, object_key: str, multipart_id: str, number: int, data: BlobBytes) -> str:
        checksum = _crc32(data)
        answer = self._call(
            "upload_part",
            Key=object_key,
            UploadId=multipart_id,
            PartNumber=number + 1,
            Body=data,
            ChecksumCRC32=checksum,
        )
        # S3 asks for the checksum of every part again when the upload is completed.
        return f"{answer['ETag']} {checksum}"

    def _complete(self, object_key: str, multipart_id: str, parts: Sequence[tuple[int, str]], size_bytes: int) -> None:
        listed = []
        for number, etag in parts:
            server_etag, _, checksum = etag.rpartition(" ")
            listed.append({"PartNumber": number + 1, "ETag": server_etag, "ChecksumCRC32": checksum})
        try:
            self._check_parts(object_key, multipart_id, listed)
            self._call(
                "complete_multipart_upload",
                Key=object_key,
                UploadId=multipart_id,
                MultipartUpload={"Parts": listed},
                IfNoneMatch="*",
            )
        except (BlobExists, MultipartNotFound) as refused:
            # Also what a retry sees after the answer to a good call was lost.
            try:
                stored = int(self._call("head_object", Key=object_key)["ContentLength"])
            except BlobNotFound:
                raise refused from None
            if stored != size_bytes:
                raise BlobExists from None

    def _check_parts(self, object_key: str, multipart_id: str, listed: Sequence[dict[str, Any]]) -> None:
        """Refuse parts that are not stored: SeaweedFS makes the object out of those that are."""
        stored: set[tuple[int, str]] = set()
        position: dict[str, int] = {}
        while True:
            answer = self._call("list_parts", Key=object_key, UploadId=multipart_id, **position)
            stored |= {(int(part["PartNumber"]), part["ETag"]) for part in answer.get("Parts", [])}
            if not answer.get("IsTruncated"):
                break
            position = {"PartNumberMarker": int(answer["NextPartNumberMarker"])}
        if any((part["PartNumber"], part["ETag"]) not in stored for part in listed):
            raise PartMismatch

    def _abort(self, object_key: str, multipart_id: str) -> None:
        try:
            self._call("abort_multipart_upload", Key=object_key, UploadId=multipart_id)
        except (MultipartNotFound, BlobNotFound):
            return

    def _list_objects(self, prefix: str, after: str, limit: int) -> list[ObjectInfo]:
        position = {"StartAfter": after} if after else {}
        answer = self._call("list_objects_v2", Prefix=prefix, MaxKeys=limit, **position)
        return [
            ObjectInfo(found["Key"], int(found["Size"]), found["LastModified"]) for found in answer.get("Contents", [])
        ]

    def _list_multiparts(self, prefix: str) -> list[MultipartInfo]:
        found: list[MultipartInfo] = []
        position: dict[str, str] = {}
        while True:
            answer = self._call("list_multipart_uploads", Prefix=prefix, **position)
            found += (
                MultipartInfo(each["Key"], each["UploadId"], each["Initiated"]) for each in answer.get("Uploads", [])
            )
            # SeaweedFS gives the second marker only, and in its own order: repeat what the server said.
            markers = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
            following = {name: str(answer[source]) for name, source in markers.items() if answer.get(source)}
            if not answer.get("IsTruncated") or not following or following == position:
                return sorted(found, key=lambda each: (each.object_key, each.multipart_id))
            position = following


def _thaw_state(restore: str | None) -> tuple[ThawState, datetime | None]:
    """What `x-amz-restore` says (Amazon S3 API reference, HeadObject): none before a thaw, then how far it is."""
    if restore is None:
        return "frozen", None
    if 'ongoing-request="true"' in restore:
        return "thawing", None
    expiry = _EXPIRY.search(restore)
    try:
        return "ready", None if expiry is None else parsedate_to_datetime(expiry[1])
    except ValueError:
        return "ready", None


def _crc32(data: BlobBytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
