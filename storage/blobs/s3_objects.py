"""Whole objects of a bucket through the package `obstore`: what is done for every blob, without threads.

Owns storing an object, and reading one or a range of it; `storage.blobs.s3` does everything else and puts both
together. obstore takes a third of the processor time of boto3 for 100 KB, but repeats no conditional PUT whose answer
was lost, follows no redirect to another region, takes its options from AWS_* variables, too, and says what went wrong
in text. So attempts are counted here, a bucket elsewhere is an error of its own, the variables are hidden while a store
is opened, and errors are made of what obstore itself puts before the server's words, which go no further.

A PUT carries a SHA-256 of its bytes, which the server compares before it answers. A call that is cancelled is broken
off; whether its PUT was done is found out by the next one.
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
from botocore.credentials import Credentials
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from storage.blobs.s3_location import S3Location
from storage.blobs.store import BlobBytes, BlobExists, BlobFrozen, BlobNotFound, BlobUnavailable, BucketElsewhere

_T = TypeVar("_T")

CALLS_MAX = 64  # at once; each holds a connection and its blob
CONNECT_SECONDS_MAX = 2.0
READ_SECONDS_MAX = 20.0
ATTEMPTS_MAX = 3
BODY_SECONDS_MAX = 120.0  # a part of 8 MiB at 70 KB/s
_PAUSE_SECONDS = 0.1  # before the second attempt; doubled before each that follows
# obstore asks again five minutes before the end, and botocore's credentials live ten minutes longer than it hands out.
_CREDENTIALS_LIFETIME = timedelta(minutes=10)
_STATUS = re.compile(r"status code: (\d{3})")
_REPEATABLE = frozenset({408, 409, 429})  # of the refusals; 409 says that another conditional PUT is under way
# A redirect that names no address, as S3's to another region; and a signature for a region that is not the bucket's.
_ELSEWHERE = (
    "redirect without LOCATION",
    "<Code>PermanentRedirect</Code>",
    "<Code>AuthorizationHeaderMalformed</Code>",
)
_environment_lock = threading.Lock()


class S3Objects:
    """Stores and reads the objects of one bucket, so many at once.

    Args:
        location: The bucket, which may carry its own credentials.
        endpoint_url: The server, as boto3 finds it.
        region: The region, as boto3 finds it.
        credentials: What boto3's chain finds, asked where the location carries none.
        body_seconds_max: How long a call may take, attempts included.
    """

    def __init__(
        self,
        location: S3Location,
        endpoint_url: str,
        region: str | None,
        credentials: Callable[[], Credentials | None],
        *,
        body_seconds_max: float = BODY_SECONDS_MAX,
    ) -> None:
        self._seconds_max = body_seconds_max
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._find_credentials = credentials
        self._store = self._open(location, endpoint_url, region)

    async def put(self, object_key: str, data: BlobBytes, storage_class: str) -> None:
        """Store an object where none is.

        Raises:
            BlobExists: There is one, perhaps by an earlier attempt of this call whose answer was lost.
        """
        # Servers without classes understand S3's own default when nothing is said.
        attributes: Any = None if storage_class == "STANDARD" else {"Storage-Class": storage_class}

        async def put() -> None:
            await obstore.put_async(
                self._store, object_key, data, attributes=attributes, mode="create", use_multipart=False
            )

        async with self._turn():
            await _repeated(put)

    async def get(self, object_key: str, span: tuple[int, int] | None = None) -> bytes:
        """Read an object, or its bytes from a place to another; of a range that begins past the end, nothing.

        Raises:
            BlobNotFound: Nothing is stored there.
            BlobFrozen: It must be thawed first.
        """
        async with self._turn():
            return await _repeated(lambda: self._read(object_key, span))

    async def _read(self, object_key: str, span: tuple[int, int] | None) -> bytes:
        try:
            answer = await obstore.get_async(self._store, object_key, options={} if span is None else {"range": span})
        except BaseError as error:
            if span is not None and _status(error) == 416:
                return b""
            raise
        return bytes(await answer.bytes_async())

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Let so many calls be under way, and none of them for ever."""
        async with self._turns:
            try:
                async with asyncio.timeout(self._seconds_max):
                    yield
            except TimeoutError:
                raise BlobUnavailable("the object store answers too slowly") from None

    def _open(self, location: S3Location, endpoint_url: str, region: str | None) -> S3Store:
        endpoint = urlsplit(endpoint_url)
        # A name with dots fits no certificate of the form *.host; boto3 does the same.
        virtual = location.addressing == "virtual" and ("." not in location.bucket or endpoint.scheme == "http")
        config: dict[str, Any] = {
            "endpoint": f"{endpoint.scheme}://{f'{location.bucket}.' if virtual else ''}{endpoint.netloc}",
            "virtual_hosted_style_request": virtual,
            "region": "us-east-1" if region in {None, "aws-global"} else region,
            "checksum_algorithm": "SHA256",  # the signature needs it anyway
            "conditional_put": "etag",
        }
        if location.access_key is not None:
            config |= {"access_key_id": location.access_key, "secret_access_key": location.secret_key}
        if location.sse is not None:
            config["server_side_encryption"] = location.sse
        if location.kms_key_id is not None:
            config["sse_kms_key_id"] = location.kms_key_id
        with _no_aws_variables():
            return S3Store(
                location.bucket,
                config=config,  # type: ignore[arg-type]  # built piece by piece
                client_options={
                    "allow_http": endpoint.scheme == "http",
                    "connect_timeout": timedelta(seconds=CONNECT_SECONDS_MAX),
                    "read_timeout": timedelta(seconds=READ_SECONDS_MAX),
                    "timeout": timedelta(seconds=self._seconds_max),
                },
                # It repeats neither a conditional PUT whose answer was lost nor all bodies that broke off; we do.
                retry_config={"max_retries": 0},
                credential_provider=None if location.access_key is not None else self._credentials,
            )

    async def _credentials(self) -> Any:
        """What boto3's default chain finds; obstore's own chain knows neither profiles nor SSO."""
        found = await asyncio.to_thread(self._find_credentials)
        if found is None:
            raise PermissionError("no credentials")
        frozen = await asyncio.to_thread(found.get_frozen_credentials)
        return {  # an obstore.store.S3Credential, a name that exists for type checkers only
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LIFETIME,
        }


class _Passing(BlobUnavailable):
    """Unavailable for a reason that may pass."""


async def _repeated(work: Callable[[], Awaitable[_T]]) -> _T:
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


def _translated(error: Exception) -> Exception:
    """Our error for one of obstore's, whose text holds the server's answer and is not repeated."""
    text = str(error)
    if isinstance(error, AlreadyExistsError):
        return BlobExists()
    if any(sign in text for sign in _ELSEWHERE):
        return BucketElsewhere("the bucket is in another region: name it in the URL")
    if isinstance(error, FileNotFoundError):
        # A bucket that is not there must not look like blobs that are not there.
        return BlobNotFound() if "<Code>NoSuchKey</Code>" in text else BlobUnavailable("there is no such bucket")
    if isinstance(error, PermissionDeniedError) and "<Code>InvalidObjectState</Code>" in text:
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
    """Hide AWS_* while a store is opened: obstore lets them replace endpoint, signing, encryption and credentials.

    Where objects go is the setting's to say, not a variable's. It has no option for that. The variables come back at
    once, and stores are opened when a program starts, and when a bucket turns out to be in another region.
    """
    with _environment_lock:
        hidden = {name: value for name, value in os.environ.items() if name.upper().startswith("AWS_")}
        for name in hidden:
            del os.environ[name]
        try:
            yield
        finally:
            os.environ.update(hidden)
