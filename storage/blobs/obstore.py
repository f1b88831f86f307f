"""Blobs in any S3, through the package `obstore` where it is cheaper; `client=obstore` in the URL of `s3` asks for it.

Owns the calls that are made for every blob: storing one, and reading one or a range of it. Those
run without threads, for about a quarter of the processor time that boto3 takes for 100 KB. Everything else (uploads in
parts, deletion, listings, storage classes of what is stored, health) is inherited from `S3BlobStore`: obstore keeps the
parts of an upload to itself, deletes with the bulk request only, lists by path segments instead of prefixes, and does
not tell an object's class.

Promises what `S3BlobStore` does, with three differences. A redirect to another region is not followed: name the
bucket's `region`. Uploads carry a SHA-256 instead of a CRC-32, except those in a class that is frozen, which go through
boto3. And a call that is cancelled is broken off, while a thread would finish it.
"""

import asyncio
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.s3 import (
    ATTEMPTS_MAX,
    BODY_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    READ_SECONDS_MAX,
    THREADS,
    S3BlobStore,
    S3Location,
)
from storage.blobs.store import (
    FROZEN_CLASSES,
    BlobBytes,
    BlobExists,
    BlobFrozen,
    BlobNotFound,
    BlobUnavailable,
    check_class,
    check_range,
)

_T = TypeVar("_T")

CALLS_MAX = 64  # at once; each holds a connection and its blob
_PAUSE_SECONDS = 0.1  # before the second attempt; doubled before each that follows
# obstore asks again five minutes before the end, and botocore's credentials live ten minutes longer than it hands out.
_CREDENTIALS_LIFETIME = timedelta(minutes=10)
_STATUS = re.compile(r"status code: (\d{3})")
_REPEATABLE = frozenset({408, 409, 429})  # of the refusals; 409 says that another conditional PUT is under way
_environment_lock = threading.Lock()


class ObstoreBlobStore(S3BlobStore):
    """A `BlobStore` in one bucket; one instance per process."""

    def __init__(
        self,
        bucket: S3Location,
        *,
        threads: int = THREADS,
        calls: int = CALLS_MAX,
        body_seconds_max: float = BODY_SECONDS_MAX,
    ) -> None:
        super().__init__(bucket, threads=threads, body_seconds_max=body_seconds_max)
        self._turns = asyncio.Semaphore(calls)
        self._store = self._open(bucket)

    async def put_if_absent(
        self, location: ObjectLocation, data: BlobBytes, *, storage_class: str | None = None
    ) -> None:
        """See `BlobStore`."""
        chosen = check_class(storage_class or self.storage_class)
        if chosen in FROZEN_CLASSES:  # what cannot be read back is told apart by the checksum that boto3 sends
            await super().put_if_absent(location, data, storage_class=chosen)
            return
        object_key = location.object_key()
        attributes: Any = None if chosen == "STANDARD" else {"Storage-Class": chosen}

        async def put() -> None:
            await obstore.put_async(
                self._store, object_key, data, attributes=attributes, mode="create", use_multipart=False
            )

        async with self._turn():
            try:
                await self._repeat(put)
            except BlobExists:
                # Also what a second attempt sees after the answer to a good PUT was lost: ours if the bytes are equal.
                try:
                    stored = await self._repeat(lambda: self._read(object_key))
                except BlobNotFound:
                    raise BlobUnavailable("the blob was removed while it was stored again") from None
                if stored != data:
                    raise

    async def get(self, location: ObjectLocation) -> bytes:
        """See `BlobStore`."""
        async with self._turn():
            return await self._repeat(lambda: self._read(location.object_key()))

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        check_range(start, length)
        async with self._turn():
            return await self._repeat(lambda: self._read(location.object_key(), (start, start + length)))

    async def _read(self, object_key: str, span: tuple[int, int] | None = None) -> bytes:
        try:
            answer = await obstore.get_async(self._store, object_key, options={} if span is None else {"range": span})
        except BaseError as error:
            if span is not None and _status(error) == 416:
                return b""  # a range that begins past the end
            raise
        return bytes(await answer.bytes_async())

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Let so many calls be under way, and none of them for ever."""
        async with self._turns:
            try:
                async with asyncio.timeout(self._body_seconds_max):
                    yield
            except TimeoutError:
                raise BlobUnavailable("the object store answers too slowly") from None

    async def _repeat(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something up to three times; its errors become ours, without the server's free text."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await work()
            except (BaseError, OSError) as error:
                refused = _translated(error)
                if attempt == ATTEMPTS_MAX or not isinstance(refused, _Passing):
                    raise refused from None
            await asyncio.sleep(_PAUSE_SECONDS * 2**attempt * secrets.SystemRandom().uniform(0.5, 1))
        raise AssertionError

    def _open(self, bucket: S3Location) -> S3Store:
        endpoint = urlsplit(self._client.meta.endpoint_url)
        authority, region = endpoint.netloc, self._client.meta.region_name
        # A name with dots fits no certificate of the form *.host; boto3 does the same.
        virtual = bucket.addressing == "virtual" and ("." not in bucket.bucket or endpoint.scheme == "http")
        config: dict[str, Any] = {
            "endpoint": f"{endpoint.scheme}://{f'{bucket.bucket}.' if virtual else ''}{authority}",
            "virtual_hosted_style_request": virtual,
            "region": "us-east-1" if region in {None, "aws-global"} else region,
            "checksum_algorithm": "SHA256",  # the signature needs it anyway
            "conditional_put": "etag",
        }
        if bucket.access_key is not None:
            config |= {"access_key_id": bucket.access_key, "secret_access_key": bucket.secret_key}
        if bucket.sse is not None:
            config["server_side_encryption"] = bucket.sse
        if bucket.kms_key_id is not None:
            config["sse_kms_key_id"] = bucket.kms_key_id
        with _no_aws_variables():
            return S3Store(
                bucket.bucket,
                config=config,  # type: ignore[arg-type]  # built piece by piece
                client_options={
                    "allow_http": endpoint.scheme == "http",
                    "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
                    "read_timeout": timedelta(seconds=READ_SECONDS_MAX),
                    "timeout": timedelta(seconds=self._body_seconds_max),
                },
                # It repeats neither a conditional PUT whose answer was lost nor all bodies that broke off; we do.
                retry_config={"max_retries": 0},
                credential_provider=None if bucket.access_key is not None else self._credentials,
            )

    def _credentials(self) -> Any:
        """What boto3's default chain finds; obstore's own chain knows neither profiles nor SSO."""
        found = self._client._get_credentials()  # noqa: SLF001  there is no public way to a client's credentials
        if found is None:
            raise PermissionError("no credentials")
        frozen = found.get_frozen_credentials()
        return {  # an obstore.store.S3Credential, a name that exists for type checkers only
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LIFETIME,
        }


class _Passing(BlobUnavailable):
    """Unavailable for a reason that may pass."""


def _translated(error: Exception) -> Exception:
    """Our error for one of obstore's, whose text holds the server's answer and is not repeated."""
    if isinstance(error, AlreadyExistsError):
        return BlobExists()
    if isinstance(error, FileNotFoundError):
        # A bucket that is not there must not look like blobs that are not there.
        return BlobNotFound() if "<Code>NoSuchKey</Code>" in str(error) else BlobUnavailable("there is no such bucket")
    if isinstance(error, PermissionDeniedError) and "<Code>InvalidObjectState</Code>" in str(error):
        return BlobFrozen()
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return BlobUnavailable("the object store refused the credentials")
    status = _status(error)
    if status is None:
        return _Passing(f"the object store cannot be reached: {type(error).__name__}")
    reason = f"the object store refused a call: HTTP {status}"
    return _Passing(reason) if status >= 500 or status in _REPEATABLE else BlobUnavailable(reason)


def _status(error: Exception) -> int | None:
    """The HTTP status of a refusal; obstore says it in its own part of the text, before the server's."""
    found = _STATUS.search(str(error))
    return None if found is None else int(found[1])


@contextmanager
def _no_aws_variables() -> Iterator[None]:
    """Hide AWS_* while a store is built: obstore lets them replace endpoint, signing, encryption and credentials.

    Where objects go is the setting's to say, not a variable's. It has no option for that. The variables come back at
    once, and only starting programs build stores.
    """
    with _environment_lock:
        hidden = {name: value for name, value in os.environ.items() if name.upper().startswith("AWS_")}
        for name in hidden:
            del os.environ[name]
        try:
            yield
        finally:
            os.environ.update(hidden)
