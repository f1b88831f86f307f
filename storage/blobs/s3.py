"""Blobs in any S3, through boto3 in a bounded pool of threads.

The server must honour `If-None-Match: *` on PUT (AWS S3, MinIO, SeaweedFS, Ceph and R2 do). Credentials that
the URL does not carry come from boto3's default chain. The URL, `STATEROOM_S3_URL`:

    s3://BUCKET?region=eu-central-1                                    AWS itself
    s3://ACCESS:SECRET@HOST:PORT/BUCKET?endpoint=http&region=us-east-1  any other server

A path makes the host the endpoint. `endpoint` is `https` (default) or `http`; `addressing` is `path` (default with an
endpoint) or `virtual`; `region` defaults to boto3's own, or to us-east-1 with an endpoint. `sse` asks the server to
encrypt what it stores, a second layer below our own: `AES256`, or `aws:kms` with an optional `kms_key_id`.
`storage_class` is what objects are stored in, one of S3's classes, STANDARD if it is left out; GLACIER and
DEEP_ARCHIVE are for the bucket of archived threads only. `client` is `boto3` (default) or `obstore`, which
`storage.blobs.obstore` describes. `offload_bytes_min` says how large a piece of a value must be to live in the bucket
instead of the database: 16384 to 16777216 bytes, 65536 if it is left out. Access, secret and parameters are
percent-encoded. There are no other parameters.

Every upload carries a CRC-32 of its bytes, which the server compares before it answers; what is read back is
authenticated above. A call that fails for a reason that may pass is made up to three times, and one that reads a
body gives up after `BODY_SECONDS_MAX` even if bytes keep dripping in.
"""

import asyncio
import base64
import functools
import hashlib
import re
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader, create_loader
from urllib3.exceptions import HTTPError, IncompleteRead

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.store import (
    FROZEN_CLASSES,
    STORAGE_CLASSES,
    BlobBytes,
    BlobExists,
    BlobFrozen,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
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
CONNECT_SECONDS_MAX = 2.0
READ_SECONDS_MAX = 20.0
ATTEMPTS_MAX = 3
BODY_SECONDS_MAX = 120.0  # a part of 8 MiB at 70 KB/s
_BODY_SLICE_BYTES = 1 << 18
_EXPIRY = re.compile(r'expiry-date="([^"]*)"', re.ASCII)
# Below, an object costs more than the row it spares; above, rows become what PostgreSQL is slow at.
OFFLOAD_BYTES_BOUNDS = (16 * 1024, 16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket, how to reach it, and from which size on pieces of values go there; `parse` reads the URL form above."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    addressing: str = "virtual"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    sse: str | None = None
    kms_key_id: str | None = None
    client: str = "boto3"
    offload_bytes_min: int | None = None
    storage_class: str | None = None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL.

        Raises:
            ValueError: It is not of the form above. The message never repeats the URL: it holds a secret.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise ValueError("the S3 URL cannot be parsed") from None
        options = dict(pairs)
        path = parts.path.strip("/")
        if parts.scheme != "s3" or not host or "/" in path or parts.fragment or len(options) != len(pairs):
            raise ValueError("the S3 URL must look like s3://bucket or s3://access:secret@host:port/bucket")
        if (parts.username is None) != (parts.password is None):
            raise ValueError("the S3 URL has an access key without a secret, or the reverse")
        scheme, addressing = options.pop("endpoint", "https"), options.pop("addressing", None)
        region = options.pop("region", None)
        sse, kms_key_id = options.pop("sse", None), options.pop("kms_key_id", None)
        if sse not in {None, "AES256", "aws:kms"} or (kms_key_id is not None and (sse != "aws:kms" or not kms_key_id)):
            raise ValueError("the S3 URL takes sse=AES256, or sse=aws:kms with or without kms_key_id")
        storage_class = options.pop("storage_class", None)
        if storage_class is not None and storage_class not in STORAGE_CLASSES:
            raise ValueError(f"the S3 URL takes storage_class={'|'.join(sorted(STORAGE_CLASSES))}")
        client = options.pop("client", "boto3")
        if client not in {"boto3", "obstore"}:
            raise ValueError("the S3 URL takes client=boto3 or client=obstore")
        offload_bytes_min = _offload_bytes_min(options.pop("offload_bytes_min", None))
        if options or scheme not in {"http", "https"} or addressing not in {None, "path", "virtual"}:
            raise ValueError(
                "the S3 URL takes endpoint=http|https, addressing=path|virtual, region, sse, kms_key_id, storage_class,"
                " client and offload_bytes_min only"
            )
        if not path and (port is not None or scheme != "https"):
            raise ValueError("the S3 URL names an endpoint but no bucket: add /bucket")
        authority = f"[{host}]" if ":" in host else host
        return cls(
            bucket=path or host,
            endpoint_url=f"{scheme}://{authority}{f':{port}' if port else ''}" if path else None,
            region=region or ("us-east-1" if path else None),
            addressing=addressing or ("path" if path else "virtual"),
            access_key=unquote(parts.username) if parts.username is not None else None,
            secret_key=unquote(parts.password) if parts.password is not None else None,
            sse=sse,
            kms_key_id=kms_key_id,
            client=client,
            offload_bytes_min=offload_bytes_min,
            storage_class=storage_class,
        )


def _offload_bytes_min(text: str | None) -> int | None:
    low, high = OFFLOAD_BYTES_BOUNDS
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
        raise ValueError(f"the S3 URL takes offload_bytes_min={low} to {high}")
    return int(text)


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
        self, bucket: S3Location, *, threads: int = THREADS, body_seconds_max: float = BODY_SECONDS_MAX
    ) -> None:
        self.storage_class = bucket.storage_class or "STANDARD"
        self._bucket = bucket.bucket
        self._body_seconds_max = body_seconds_max
        self._encryption: dict[str, str] = {}
        if bucket.sse is not None:
            self._encryption["ServerSideEncryption"] = bucket.sse
        if bucket.kms_key_id is not None:
            self._encryption["SSEKMSKeyId"] = bucket.kms_key_id
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        session = botocore.session.get_session()
        session.register_component("data_loader", _descriptions())
        self._client = boto3.session.Session(botocore_session=session).client(
            "s3",
            endpoint_url=bucket.endpoint_url,
            region_name=bucket.region,
            aws_access_key_id=bucket.access_key,
            aws_secret_access_key=bucket.secret_key,
            config=Config(
                connect_timeout=CONNECT_SECONDS_MAX,
                read_timeout=READ_SECONDS_MAX,
                max_pool_connections=threads,
                retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
                s3={"addressing_style": bucket.addressing},
                # Where objects go is the setting's to say, not a variable's.
                ignore_configured_endpoint_urls=True,
            ),
        )

    async def put_if_absent(
        self, location: ObjectLocation, data: BlobBytes, *, storage_class: str | None = None
    ) -> None:
        """See `BlobStore`."""
        await self._run(self._put_if_absent, location.object_key(), data, self._class(storage_class))

    async def get(self, location: ObjectLocation) -> bytes:
        """See `BlobStore`."""
        return await self._run(self._get, location.object_key())

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        check_range(start, length)
        return await self._run(self._get, location.object_key(), Range=f"bytes={start}-{start + length - 1}")

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
        if http_status == 416:
            return None  # a range that begins past the end
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

    def _put_if_absent(self, object_key: str, data: BlobBytes, storage_class: dict[str, str]) -> None:
        try:
            self._call(
                "put_object",
                Key=object_key,
                Body=data,
                IfNoneMatch="*",
                ChecksumCRC32=_crc32(data),
                **self._encryption,
                **storage_class,
            )
        except BlobExists:
            # Also what a retry sees after the answer to a good PUT was lost: ours if the bytes are equal.
            try:
                same = self._get(object_key) == data
            except BlobNotFound:
                raise BlobUnavailable("the blob was removed while it was stored again") from None
            except BlobFrozen:
                same = self._looks_like(object_key, data)
            if not same:
                raise

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

    def _get(self, object_key: str, **arguments: Any) -> bytes:
        """Read an object or a range of it; botocore repeats requests, but not bodies that break off."""
        deadline = time.monotonic() + self._body_seconds_max
        for attempt in range(1, ATTEMPTS_MAX + 1):
            answer = self._call("get_object", Key=object_key, **arguments)
            if answer is None:
                return b""
            try:
                return self._body(answer["Body"], int(answer["ContentLength"]), deadline)
            except (HTTPError, OSError) as error:
                if attempt == ATTEMPTS_MAX:
                    reason = f"the object store stopped answering: {type(error).__name__}"
                    raise BlobUnavailable(reason) from None
        raise AssertionError

    def _body(self, body: Any, size_bytes: int, deadline: float) -> bytes:
        """Read a whole body.

        Below botocore's own wrapper, whose `read` returns when so many bytes are there: a body that drips would hold
        this thread for days.

        Raises:
            IncompleteRead: It is shorter than its head said.
        """
        # Its value is its own memory: joining slices would hold the body twice.
        whole = BytesIO()
        missing = size_bytes
        with body:
            while data := body._raw_stream.read1(_BODY_SLICE_BYTES):  # noqa: SLF001  what arrived, and no more
                whole.write(data)
                missing -= len(data)
                if time.monotonic() > deadline:
                    raise BlobUnavailable("the object store answers too slowly")
        if missing:
            raise IncompleteRead(size_bytes - missing, missing)
        return whole.getvalue()


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
