"""The protocol without I/O: requests, answers, retries and time budgets.

This module owns how a call becomes an HTTP request and how an answer becomes a value, an error or a delay
before the next attempt. It opens no socket, reads no clock and sleeps never; ``client`` and ``async_client``
do. It does not know what the calls mean; ``calls`` does.
"""

import base64
import copy
import math
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from secrets import SystemRandom
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from stateroom.errors import (
    CheckpointNotFound,
    Conflict,
    GatewayUnavailable,
    InvalidRequest,
    NotConfigured,
    Problem,
    StateroomError,
    ThreadNotFound,
    error_from_problem,
)
from stateroom.share import SHARE_HEADER, ClientShare, resolve_share
from stateroom.subject import Subject, resolve_subject

MSGPACK = "application/msgpack"
API_PREFIX = "/v1"
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 3.0

_ID_BYTES_MAX = 255
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}")
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")
_REPEATABLE_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})
_PROXY_STATUSES = frozenset({502, 503, 504})
_POSSIBLY_DONE = frozenset({"commit-unknown", "unexpected-answer"})
_JITTER = SystemRandom()

T = TypeVar("T")
Other = TypeVar("Other")


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take.

    Attributes:
        connect_seconds: Longest wait for a connection.
        attempt_seconds: Longest time that an attempt takes, until its answer is there whole. Where more than 1 MiB goes
            up, each 128 KiB may take so long; where an artifact's content comes down, each wait for more of it.
        total_seconds: Budget of a call with all of its retries; no attempt or wait begins that would overrun
            it.
    """

    connect_seconds: float = 2.0
    attempt_seconds: float = 10.0
    total_seconds: float = 30.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One logical request, whatever number of attempts it takes.

    Attributes:
        method: HTTP method.
        path: Path below ``/v1`` with encoded segments.
        query: Query parameters; ``None`` values are left out.
        body: Encoded body.
        headers: Additional headers.
        repeatable: Whether a second attempt is harmless when the first one's answer was lost.
        subject_optional: Whether the call makes sense without a subject.
        seen: Thread and namespace whose token travels with the call, where tokens are kept.
        forgets: Threads that end, or begin again, by this call.
        extra_seconds: How much longer than other calls it may take, because the gateway works before it answers.
        together: Calls to make at the same time, instead of this one; ``Answer.answers`` holds theirs, in order.
        after_seconds: How long to wait before the call is made.
        patient: Whether what is refused because of what another one does is asked again while there is time.
    """

    method: str
    path: str
    query: tuple[tuple[str, str | int | None], ...] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    repeatable: bool = False
    subject_optional: bool = False
    seen: tuple[str, str] | None = None
    forgets: tuple[str, ...] = ()
    extra_seconds: float = 0.0
    together: tuple["Call", ...] = ()
    after_seconds: float = 0.0
    patient: bool = True


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A successful response.

    Attributes:
        status: HTTP status, 2xx.
        headers: Headers with lower-case names.
        body: The undecoded body.
        answers: Of calls that were made together.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    answers: tuple["Answer", ...] = ()

    @property
    def etag(self) -> str | None:
        """The entity tag without quotes: the head's id."""
        tag = self.headers.get("etag")
        return tag.removeprefix("W/").strip('"') if tag else None

    def decode(self, kind: Any = Any) -> Any:
        """The body as ``kind``.

        Args:
            kind: A type msgspec can decode to; plain values when left out.

        Raises:
            GatewayUnavailable: The body is not what this API version promises (a proxy's page, for example).
        """
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if media_type == MSGPACK:
                return msgspec.msgpack.decode(self.body, type=kind)
            if media_type == "application/json" or media_type.endswith("+json"):
                return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise GatewayUnavailable("the answer could not be decoded", status=self.status) from None
        if not self.body and kind is Any:
            return None
        raise GatewayUnavailable("the answer has an unexpected content type", status=self.status)


Steps = Generator[Call, Answer, T]
"""A procedure that yields calls and is sent their answers; a client drives it."""


def asked(call: Call, kind: type[T]) -> Steps[T]:
    """The answer to a call."""
    answer = yield call
    content: T = answer.decode(kind)
    return content


def asked_or(call: Call, kind: type[T], otherwise: Other) -> Steps[T | Other]:
    """The answer to a call, or something else where there is no such thread or checkpoint."""
    try:
        return (yield from asked(call, kind))
    except (CheckpointNotFound, ThreadNotFound):
        return otherwise


def encode_id(identifier: str) -> str:
    """An id as it travels in a path or in ``Stateroom-Subject``.

    Args:
        identifier: Any non-empty text.

    Returns:
        The id itself when it matches the plain pattern, else ``~`` and its base64url without padding.

    Raises:
        InvalidRequest: The id is empty or not encodable as UTF-8.
    """
    if _PLAIN_ID.fullmatch(identifier):
        return identifier
    if not identifier:
        raise InvalidRequest("an id must not be empty")
    try:
        raw = identifier.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("an id must be valid Unicode text") from None
    return "~" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def path(*segments: str) -> str:
    """A path of fixed words and ids, each id encoded: ``path("threads", ":", thread_id)``.

    Args:
        segments: Words; the one after a ``":"`` is an id.

    Returns:
        The path with a leading slash.

    Raises:
        InvalidRequest: An id is empty, longer than 255 bytes of UTF-8, or not encodable as UTF-8.
    """
    parts: list[str] = []
    is_id = False
    for segment in segments:
        if segment == ":" and not is_id:
            is_id = True
            continue
        parts.append(quote(_checked(segment), safe="~._:@+-") if is_id else segment)
        is_id = False
    return "/" + "/".join(parts)


def _checked(identifier: str) -> str:
    encoded = encode_id(identifier)
    size = len(identifier.encode())
    if size > _ID_BYTES_MAX:
        raise InvalidRequest(f"an id has at most {_ID_BYTES_MAX} bytes of UTF-8, and one has {size}")
    return encoded


class Pinned(msgspec.Struct, frozen=True):
    """A subject and its client share, decided once for several requests; a ``None`` subject is the credential's own."""

    subject: str | None
    share: str | None = None

    def __repr__(self) -> str:
        return f"Pinned({self.subject!r})"


class Endpoint:
    """Where a client talks to and as whom.

    Args:
        url: The gateway's URL, with or without ``/v1``.
        api_key: The API key; never shown by ``repr``.
        subject: A subject, a callable that returns one, or ``None`` for the key's own.
        client_share: A client-held share, a callable that returns one, or ``None``; never shown by ``repr``.

    Raises:
        NotConfigured: The URL is not http or https, the key cannot be an HTTP header, or the share is not one.
    """

    def __init__(self, url: str, api_key: str, subject: Subject, client_share: ClientShare = None) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port  # read here only to be refused here
        except ValueError:
            raise NotConfigured("the gateway's URL is malformed: is its port a number up to 65535?") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise NotConfigured("the gateway's URL must begin with http:// or https:// and name a host")
        if parts.username or parts.query or parts.fragment:
            raise NotConfigured("the gateway's URL must not hold credentials, a query or a fragment")
        if not _HEADER_SAFE.fullmatch(api_key):
            raise NotConfigured("the API key is empty or has characters that no key has")
        self.url = url.rstrip("/").removesuffix(API_PREFIX)
        self._api_key = api_key
        self.subject = subject
        if not callable(client_share):
            resolve_share(client_share)  # refused now, not at the first request
        self._client_share = client_share

    @staticmethod
    def read_env() -> tuple[str, str]:
        """The URL and the API key from ``STATEROOM_URL`` and ``STATEROOM_API_KEY``.

        Raises:
            NotConfigured: A variable is missing.
        """
        url, api_key = (_required_env(name) for name in ("STATEROOM_URL", "STATEROOM_API_KEY"))
        return url, api_key

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    def target(self, call: Call) -> str:
        """The call's absolute URL."""
        query = [(name, str(text)) for name, text in call.query if text is not None]
        tail = "?" + urlencode(query, quote_via=quote) if query else ""
        return f"{self.url}{API_PREFIX}{call.path}{tail}"

    def pin(self) -> "Pinned":
        """The subject of this moment, for a listing whose later pages must not act for another subject.

        Raises:
            SubjectRequired: No subject to act for was given.
            NotConfigured: The client share is not one.
        """
        return Pinned(resolve_subject(self.subject), resolve_share(self._client_share))

    def bound_to(self, subject: str) -> "Endpoint":
        """The same place for one subject."""
        bound = copy.copy(self)
        bound.subject = subject
        return bound

    def headers(self, call: Call, pinned: "Pinned | None" = None) -> dict[str, str]:
        """The call's headers.

        Args:
            call: The call that is made.
            pinned: The subject decided earlier; decided now when left out.

        Raises:
            SubjectRequired: No subject to act for was given.
            NotConfigured: The client share is not one.
        """
        # Between an agent and its gateway, compressing takes longer than what it saves.
        headers = {"Authorization": f"Bearer {self._api_key}", "Accept": MSGPACK, "Accept-Encoding": "identity"}
        if call.body is not None:
            headers["Content-Type"] = MSGPACK
        try:
            subject = resolve_subject(self.subject) if pinned is None else pinned.subject
        except StateroomError:
            if not call.subject_optional:
                raise
            subject = None
        if subject is not None:
            # The one name that begins with a tilde and is meant literally: the tenant's own subject.
            headers["Stateroom-Subject"] = subject if subject == "~shared" else encode_id(subject)
        if not call.subject_optional:  # what is about no subject's threads has no use for a secret
            share = resolve_share(self._client_share) if pinned is None else pinned.share
            if share is not None:
                headers[SHARE_HEADER] = share
        headers.update(call.headers)
        return headers


def _required_env(name: str) -> str:
    text = os.environ.get(name, "").strip()
    if not text:
        raise NotConfigured(f"the environment variable {name} is not set")
    return text


def _full_jitter(ceiling_seconds: float) -> float:
    return _JITTER.uniform(0.0, ceiling_seconds)


class Attempts:
    """Decides, for one call, about every further attempt.

    Only what the gateway calls ``retryable`` is repeated, and what got no answer if the call is repeatable or
    cannot have been received. The wait is exponential with full jitter and never shorter than
    ``Retry-After``.

    Args:
        call: The call that is made.
        timeouts: Its budget.
        monotonic: A clock in seconds.
        jitter: Picks a wait between 0 and its argument, in seconds.
        now: Wall clock, for a ``Retry-After`` that is a date.
    """

    def __init__(
        self,
        call: Call,
        timeouts: Timeouts,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[float], float] = _full_jitter,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._call = call
        self._timeouts = timeouts
        self._monotonic = monotonic
        self._jitter = jitter
        self._now = now
        self._began = monotonic()
        self._last_refusal: StateroomError | None = None  # one that was worth another attempt
        self.count = 0

    def begin(self) -> tuple[float, float]:
        """Start an attempt.

        Returns:
            Seconds for connecting and for the whole attempt.
        """
        self.count += 1
        left = max(self._remaining_seconds(), 0.001)
        patience_seconds = self._timeouts.attempt_seconds + self._call.extra_seconds
        return min(self._timeouts.connect_seconds, left), min(patience_seconds, left)

    def renew(self) -> None:
        """Something lasting was achieved; the budget begins anew."""
        self._began = self._monotonic()
        self._last_refusal = None
        self.count = 1

    def failed(self, reason: str, *, received: bool) -> float:
        """The attempt got no answer.

        Args:
            reason: What happened, without any payload.
            received: Whether the gateway may have received the request.

        Returns:
            Seconds to wait before the next attempt.

        Raises:
            GatewayUnavailable: There is no next attempt.
            StateroomError: The budget cut this attempt short: what the gateway said to an earlier one.
        """
        error = GatewayUnavailable(f"{reason} (attempt {self.count})", retryable=True)
        if received and not self._call.repeatable:
            raise error
        if self._last_refusal is not None and self._remaining_seconds() <= 0:
            raise self._last_refusal from error
        return self._wait_seconds(error, None)

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> Answer | float:
        """The attempt got an answer.

        Args:
            status: HTTP status.
            headers: Headers with lower-case names.
            body: The answer's body.

        Returns:
            The answer, or seconds to wait before the next attempt.

        Raises:
            StateroomError: The gateway refused and there is no next attempt.
        """
        if 200 <= status < 300:
            return Answer(status=status, headers=headers, body=body)
        error = _error_from_response(status, headers, body, self._now)
        if not error.retryable or (not self._call.patient and isinstance(error, Conflict)):
            raise error
        if not self._call.repeatable and error.code in _POSSIBLY_DONE:
            raise error
        self._last_refusal = error
        return self._wait_seconds(error, headers.get("retry-after"))

    def _remaining_seconds(self) -> float:
        total_seconds = self._timeouts.total_seconds + self._call.extra_seconds
        return total_seconds - (self._monotonic() - self._began)

    def _wait_seconds(self, error: StateroomError, retry_after: str | None) -> float:
        ceiling = min(BACKOFF_SECONDS_MAX, BACKOFF_FIRST_SECONDS * 2.0 ** (self.count - 1))
        wait = self._jitter(ceiling)
        if retry_after is not None:
            wait = max(wait, retry_after_seconds(retry_after, self._now))
        if wait >= self._remaining_seconds():
            raise error
        return wait


def retry_after_seconds(text: str, now: Callable[[], datetime]) -> float:
    """Seconds that a ``Retry-After`` (RFC 9110, 10.2.3) asks for; 0 when it cannot be read.

    Args:
        text: The header's value.
        now: Wall clock.
    """
    try:
        seconds = float(text)
    except ValueError:
        try:
            until = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        seconds = (until - now()).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, now: Callable[[], datetime]
) -> StateroomError:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    problem: Problem | None = None
    try:
        if media_type.endswith("json"):
            problem = msgspec.json.decode(body, type=Problem)
        elif media_type.endswith("msgpack"):
            problem = msgspec.msgpack.decode(body, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = None
    if problem is None or not problem.code:
        # Something between the client and the gateway answered; only a gateway's code may be believed.
        return GatewayUnavailable(
            f"unexpected answer with status {status}",
            code="unexpected-answer",
            status=status,
            retryable=status in _PROXY_STATUSES,
            request_id=headers.get("x-request-id", ""),
        )
    error = error_from_problem(problem, status)
    error.request_id = error.request_id or headers.get("x-request-id", "")
    if "retry-after" in headers:
        error.retry_after_seconds = retry_after_seconds(headers["retry-after"], now)
    return error


def is_repeatable(method: str) -> bool:
    """Whether the method is idempotent by definition (RFC 9110, 9.2.2)."""
    return method in _REPEATABLE_METHODS


def encode_body(body: Any) -> bytes:
    """A body as MessagePack.

    Raises:
        InvalidRequest: It holds something that has no MessagePack form; the value itself is not shown.
    """
    try:
        return msgspec.msgpack.encode(body)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the request cannot be encoded: {type(error).__name__}") from None
