"""Blobs in any S3, through boto3 in a bounded pool of threads.

The server must honour `If-None-Match: *` on PUT (AWS S3, MinIO, SeaweedFS, Ceph and R2 do). Credentials that
the URL does not carry come from boto3's default chain. The URL, `STATEROOM_S3_URL`:

    s3://BUCKET?region=eu-central-1                                    AWS itself
    s3://ACCESS:SECRET@HOST:PORT/BUCKET?endpoint=http&region=us-east-1  any other server

A path makes the host the endpoint. `endpoint` is `https` (default) or `http`; `addressing` is `path` (default
with an endpoint) or `virtual`; `region` defaults to boto3's own, or to us-east-1 with an endpoint. Access and
secret are percent-encoded. There are no other parameters.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.store import BlobExists, BlobInfo, BlobNotFound, BlobUnavailable, check_range

_T = TypeVar("_T")

THREADS = 16  # two busy cores' worth; each waits for the network most of its time
CONNECT_SECONDS_MAX = 2.0
READ_SECONDS_MAX = 20.0
ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and how to reach it; `parse` reads the URL form above."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    addressing: str = "virtual"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)

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
        if options or scheme not in {"http", "https"} or addressing not in {None, "path", "virtual"}:
            raise ValueError("the S3 URL takes endpoint=http|https, addressing=path|virtual and region only")
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
        )


class S3BlobStore:
    """A `BlobStore` in one bucket; one instance per process (a client costs 190 ms to build)."""

    def __init__(self, bucket: S3Location, *, threads: int = THREADS) -> None:
        self._bucket = bucket.bucket
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="s3")
        self._client = boto3.session.Session().client(
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
            ),
        )

    async def put_if_absent(self, location: ObjectLocation, data: bytes) -> None:
        """See `BlobStore`."""
        await self._run(self._put_if_absent, location.object_key(), data)

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
        return BlobInfo(int(answer["ContentLength"]))

    async def delete(self, location: ObjectLocation) -> None:
        """See `BlobStore`."""
        await self._run(self._call, "delete_object", Key=location.object_key())

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See `BlobStore`."""
        return await self._run(self._list_keys, prefix, after, limit)

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
        if http_status == 412:
            raise BlobExists
        if http_status == 416:
            return None  # a range that begins past the end
        raise BlobUnavailable(f"the object store refused {operation}: HTTP {http_status}")

    def _put_if_absent(self, object_key: str, data: bytes) -> None:
        try:
            self._call("put_object", Key=object_key, Body=data, IfNoneMatch="*")
        except BlobExists:
            # Also what a retry sees after the answer to a good PUT was lost: ours if the bytes are equal.
            try:
                stored = self._get(object_key)
            except BlobNotFound:
                raise BlobUnavailable("the blob was removed while it was stored again") from None
            if stored != data:
                raise

    def _list_keys(self, prefix: str, after: str, limit: int) -> list[str]:
        position = {"StartAfter": after} if after else {}
        answer = self._call("list_objects_v2", Prefix=prefix, MaxKeys=limit, **position)
        return [found["Key"] for found in answer.get("Contents", [])]

    def _get(self, object_key: str, **arguments: Any) -> bytes:
        try:
            answer = self._call("get_object", Key=object_key, **arguments)
            if answer is None:
                return b""
            with answer["Body"] as body:
                return bytes(body.read())
        except BotoCoreError as error:
            raise BlobUnavailable(f"the object store stopped answering: {type(error).__name__}") from None
