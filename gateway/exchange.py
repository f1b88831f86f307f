"""One request and its answer: headers, identifiers in paths, query, body, reply.

Owns reading what a client sent, with limits applied while reading, and writing what it gets. It knows neither
who the client is nor what the request means.
"""

import asyncio
import base64
import binascii
import contextlib
import functools
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar
from urllib.parse import parse_qsl
from uuid import UUID

import msgspec
from litestar import Response
from litestar.types import Receive, Scope, Send
from msgspec import Struct

from gateway import limits
from gateway.codec import MEDIA_TYPES, Format, body_format, decode_body, encode_body, reply_format
from gateway.problems import (
    BodyTimeout,
    BodyTooLarge,
    InvalidRequest,
    MalformedBody,
    UnsupportedMediaType,
    explain,
)
from gateway.wire import Fault
from storage.errors import InvalidState
from storage.format.token import ThreadToken
from storage.model import Idempotency
from storage.scope import CLIENT_SHARE_BYTES, ClientShare, check_id, is_plain_id
from storage.versions import AS_SAVED, WantedVersions

SUBJECT_HEADER = "Stateroom-Subject"
KNOWN_HEADER = "Stateroom-Known-Token"
GIVEN_HEADER = "Stateroom-Thread-Token"
SHARE_HEADER = "Stateroom-Client-Share"
VERSION_HEADER = "Accept-State-Version"
VERSION_SCHEMAS_MAX = 100  # what one agent could possibly know
CLIENT_SHARE_CHARACTERS = 44  # so that a share has one spelling
COMMON_HEADERS = [
    (b"cache-control", b"private, no-store"),  # everything is somebody's state
    (b"x-content-type-options", b"nosniff"),
]
_FACTS = "stateroom"
_GIVEN_HEADER = GIVEN_HEADER.lower().encode()
_CONTENT_TYPES = {name: (b"content-type", media_type.encode()) for name, media_type in MEDIA_TYPES.items()}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")
_STATE_VERSION = re.compile(r"(?:(?P<schema>[A-Za-z0-9._:-]{1,64})=)?(?P<number>[1-9][0-9]{0,8})\Z", re.ASCII)
_ETAG = re.compile(r'"([\x21\x23-\x7e]{1,1024})"\Z')
# Twice is ambiguous for these: two parties on the way could read different ones.
_ONCE = frozenset(
    {
        b"authorization", b"content-type", b"content-length", b"content-encoding", b"if-match",
        b"if-none-match", b"idempotency-key", b"stateroom-subject", b"stateroom-known-token",
        b"stateroom-client-share", b"accept-state-version", b"range", b"if-range", b"content-digest",
        b"stateroom-artifact-name", b"stateroom-artifact-metadata", b"stateroom-artifact-preview",
    }
)  # fmt: skip

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q", bound=Struct)


@dataclass(slots=True)
class Facts:
    """What is known of a request from the first byte to the access log."""

    request_id: str
    headers: dict[bytes, bytes] = field(repr=False)
    duplicate: str | None = None
    credential_id: str | None = None
    status: int = 0
    access: tuple[UUID, str, str] | None = None  # what the audit log notes: chain, actor, whose rows
    body_share: limits.BodyShare | None = None  # of who was authenticated
    bodiless: bool = False  # a HEAD, which handlers see as a GET: its body need not be made

    @classmethod
    def of(cls, scope: Scope) -> "Facts":
        """The facts attached to ``scope``."""
        facts: Facts = scope[_FACTS]  # type: ignore[literal-required]
        return facts

    def attach(self, scope: Scope) -> None:
        """Attach to ``scope``."""
        scope[_FACTS] = self  # type: ignore[literal-required]

    @classmethod
    def read(cls, scope: Scope, minted_id: str) -> "Facts":
        """Read the headers once; ``minted_id`` stands in where X-Request-Id is absent or not usable."""
        pairs: list[tuple[bytes, bytes]] = list(scope["headers"])
        headers = dict(pairs)
        duplicate = None
        if len(headers) != len(pairs):
            names = [name for name, _ in pairs if name in _ONCE]
            duplicate = next((name.decode() for name in names if names.count(name) > 1), None)
            headers |= _lists_of_values(pairs)
        offered = headers.get(b"x-request-id")
        usable = offered is not None and _REQUEST_ID.match(offered)
        return cls(offered.decode() if offered and usable else minted_id, headers, duplicate)


def _lists_of_values(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """What came in several lines and may, as the one line it is the same as (RFC 9110, section 5.3)."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        if name not in _ONCE:
            values.setdefault(name, []).append(value)
    return {name: b", ".join(lines) for name, lines in values.items()}


def encode_id(text: str) -> str:
    """``text`` as it travels in a path or header: as it is, or ``~`` + base64url without padding."""
    if is_plain_id(text):
        return text
    return "~" + base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode("ascii")


def decode_id(text: str, fault: Fault) -> str:
    """Undo `encode_id`, accepting only what it writes, so that one id has one spelling.

    Raises:
        InvalidRequest: with ``fault``, the text is not an encoded id.
    """
    if is_plain_id(text):
        return text
    if not text.startswith("~"):
        raise InvalidRequest(fault)
    try:
        coded = text[1:].encode("ascii")
        plain = base64.b64decode(coded + b"=" * (-len(coded) % 4), altchars=b"-_", validate=True).decode("utf-8")
        check_id(plain, "id")
    except (ValueError, binascii.Error, InvalidState):
        raise InvalidRequest(fault) from None
    if encode_id(plain) != text:
        raise InvalidRequest(fault)
    return plain


def travels_as_id(text: str) -> bool:
    """Whether `decode_id` takes ``text``."""
    try:
        decode_id(text, Fault(detail=""))
    except InvalidRequest:
        return False
    return True


def path_id(text: str, parameter: str) -> str:
    """An identifier from the path.

    Raises:
        InvalidRequest: it is neither a plain nor an encoded id.
    """
    return decode_id(
        text,
        Fault(
            detail="must match [A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}, or be ~ and base64url of any other id",
            parameter=parameter,
        ),
    )


def path_uuid(text: str, otherwise: type[Exception]) -> UUID:
    """A UUID from the path; what is none in its one spelling (lower case, hyphens) names nothing: ``otherwise``."""
    try:
        wanted = UUID(text)
    except ValueError:
        raise otherwise from None
    if str(wanted) != text:
        raise otherwise
    return wanted


@functools.cache
def _lists(shape: type[Struct]) -> frozenset[str]:
    return frozenset(
        member.encode_name
        for member in msgspec.structs.fields(shape)
        if isinstance(msgspec.inspect.type_info(member.type), msgspec.inspect.ListType)
    )


def parse_query(query: bytes, shape: type[Q]) -> Q:
    """Read a query string; every parameter must be a member of ``shape`` and only lists may repeat.

    Raises:
        InvalidRequest: naming the parameter.
    """
    if not query:
        return _convert({}, shape)
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=limits.QUERY_FIELDS_MAX,
        )
    except ValueError:
        raise InvalidRequest(Fault(detail="the query is not UTF-8 or has too many fields", parameter="?")) from None
    members = shape.__struct_fields__
    lists = _lists(shape)
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in members:
            known = ", ".join(members) or "none"
            raise InvalidRequest(Fault(detail=f"unknown parameter; known here: {known}", parameter=name[:64]))
        if name in lists:
            values.setdefault(name, []).append(text)
        elif name in values:
            raise InvalidRequest(Fault(detail="the parameter is given twice", parameter=name))
        else:
            values[name] = text
    return _convert(values, shape)


def _convert(values: dict[str, Any], shape: type[Q]) -> Q:
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        what, steps = explain(error)
        missing = re.search(r"missing required field `(\w+)`", what)
        name = missing[1] if missing else str(steps[0]) if steps else "?"
        raise InvalidRequest(Fault(detail=what, parameter=name)) from None


async def beside(size: int, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Do what looks at each value of ``size`` bytes: at once, or in a thread so that others are answered meanwhile."""
    if size < limits.BESIDE_BYTES_MIN:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


async def read_body(headers: dict[bytes, bytes], receive: Receive, share: limits.BodyShare) -> bytes:
    """Read a body without ever holding more than `limits.BODY_BYTES_MAX`, nor more than is left for all of them.

    Raises:
        Overloaded, TenantBusy: nothing is left. What was only announced takes nothing from anybody.
        BodyTooLarge: announced or found to be larger.
        BodyTimeout: it paused for `limits.BODY_IDLE_SECONDS_MAX` or took `limits.BODY_SECONDS_MAX`.
        MalformedBody: the client hung up.
    """
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limits.BODY_BYTES_MAX):
        raise BodyTooLarge
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.BODY_SECONDS_MAX
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.BODY_IDLE_SECONDS_MAX) as patience:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise MalformedBody("the client hung up before the body was complete")
                chunk = message["body"]
                size += len(chunk)
                if size > limits.BODY_BYTES_MAX:
                    raise BodyTooLarge
                share.take(len(chunk))
                chunks.append(chunk)
                if not message["more_body"]:
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
                patience.reschedule(min(end, loop.time() + limits.BODY_IDLE_SECONDS_MAX))
    except TimeoutError:
        raise BodyTimeout("the body did not arrive in time") from None


async def stream_body(
    headers: dict[bytes, bytes], receive: Receive, bytes_max: int, limit: str
) -> AsyncIterator[bytes]:
    """Give a body as it arrives, holding one chunk of it. Time is counted only while the client is waited for.

    Args:
        headers: The request's.
        receive: Where it arrives.
        bytes_max: How long it may be.
        limit: The name of that limit.

    Raises:
        BodyTooLarge: announced or found to be larger.
        BodyTimeout: it paused for `limits.BODY_IDLE_SECONDS_MAX`, or came slower than
            `limits.STREAM_BYTES_PER_SECOND_MIN` for longer than `limits.BODY_SECONDS_MAX`.
        MalformedBody: the client hung up.
    """
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > bytes_max):
        raise BodyTooLarge(limit, bytes_max)
    clock = asyncio.get_running_loop().time
    size = 0
    waited = 0.0
    while True:
        patience = limits.BODY_SECONDS_MAX + size / limits.STREAM_BYTES_PER_SECOND_MIN - waited
        begun = clock()
        try:
            async with asyncio.timeout(min(limits.BODY_IDLE_SECONDS_MAX, patience)):
                message = await receive()
        except TimeoutError:
            raise BodyTimeout("the body did not arrive in time") from None
        waited += clock() - begun
        if message["type"] != "http.request":
            raise MalformedBody("the client hung up before the body was complete")
        size += len(message["body"])
        if size > bytes_max:
            raise BodyTooLarge(limit, bytes_max)
        if message["body"]:
            yield message["body"]
        if not message["more_body"]:
            return


class Exchange:
    """A request as handlers see it, and the way to answer it. Made before the handler runs.

    Raises:
        InvalidRequest: a header that must come once came twice.
        NotAcceptable: the answer could not be written in an accepted format.
    """

    __slots__ = ("_body_ended", "_receive", "facts", "format", "query_string", "route")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._body_ended = False
        self.facts = Facts.of(scope)
        if self.facts.duplicate is not None:
            raise InvalidRequest(Fault(detail="the header is given twice", header=self.facts.duplicate))
        # An artifact's content comes in the media type it has, whatever is accepted.
        any_accept = scope["route_handler"].opt.get("any_accept", False)
        self.format: Format = "json" if any_accept else reply_format(self.facts.headers.get(b"accept"))
        self.query_string: bytes = scope["query_string"]
        self.route: str = scope["path_template"]

    def header(self, name: str) -> str | None:
        """A header's text, or None."""
        found = self.facts.headers.get(name.lower().encode("ascii"))
        return None if found is None else found.decode("latin-1")

    def query(self, shape: type[Q]) -> Q:
        """The query as a ``shape``; see `parse_query`."""
        return parse_query(self.query_string, shape)

    async def body(self, shape: type[T]) -> tuple[T, Format, bytes]:
        """The body as a ``shape``, its format and its bytes; see `read_body` and `decode_body`."""
        headers = self.facts.headers
        name = body_format(headers.get(b"content-type"), headers.get(b"content-encoding"))
        assert self.facts.body_share is not None  # noqa: S101  for the type checker: no public route takes a body
        content = await read_body(headers, self._receive, self.facts.body_share)
        return await beside(len(content), decode_body, name, content, shape), name, content

    def announced_bytes(self) -> int | None:
        """What Content-Length says, if it is there."""
        text = self.facts.headers.get(b"content-length", b"")
        return int(text) if text.isdigit() and len(text) <= 18 else None

    def content(self, bytes_max: int, limit: str) -> AsyncIterator[bytes]:
        """The body as it arrives, whatever it is; see `stream_body`.

        Raises:
            UnsupportedMediaType: it is compressed; only the content itself has a digest.
        """
        if self.facts.headers.get(b"content-encoding", b"identity").strip().lower() not in {b"", b"identity"}:
            raise UnsupportedMediaType("send the content uncompressed")
        return stream_body(self.facts.headers, self._more, bytes_max, limit)

    async def _more(self) -> Any:
        message = await self._receive()
        self._body_ended = message["type"] != "http.request" or not message["more_body"]
        return message

    async def drain(self, seconds_max: float) -> None:
        """Let go of the rest of a body that was refused, for a while: a client that still sends reads no answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while not self._body_ended:
                    await self._more()

    def no_query(self) -> None:
        """Refuse any query parameter."""
        if self.query_string:
            self.query(_Nothing)

    def if_match(self) -> str | None:
        """The head id of If-Match, or None.

        Raises:
            InvalidRequest: it is not one strong entity tag.
        """
        text = self.header("if-match")
        if text is None:
            return None
        fault = Fault(detail='must be one ETag as it was given: "<head id>"', header="If-Match")
        match = _ETAG.match(text.strip())
        if match is None:
            raise InvalidRequest(fault)
        return decode_id(match[1], fault)

    def if_none_match_any(self) -> bool:
        """Whether If-None-Match is ``*``.

        Raises:
            InvalidRequest: it is anything else.
        """
        text = self.header("if-none-match")
        if text is None:
            return False
        if text.strip() != "*":
            raise InvalidRequest(Fault(detail="only * is supported when saving", header="If-None-Match"))
        return True

    def known_token(self) -> str | None:
        """The thread token of Stateroom-Known-Token, or None; whether it is ours is not asked here.

        Raises:
            InvalidRequest: it is no thread token.
        """
        text = self.header(KNOWN_HEADER)
        if text is not None:
            try:
                ThreadToken.parse(text)
            except InvalidState as error:
                raise InvalidRequest(Fault(detail=str(error), header=KNOWN_HEADER)) from None
        return text

    def state_versions(self) -> WantedVersions:
        """What Accept-State-Version says that the reader knows; absent: state comes as it was saved.

        Raises:
            InvalidRequest: it is neither a version nor a list of them, or says two things of one schema.
        """
        text = self.header(VERSION_HEADER)
        if text is None:
            return AS_SAVED
        any_schema: int | None = None
        by_schema: dict[str, int] = {}
        parts = text.split(",")
        for part in parts:
            match = _STATE_VERSION.match(part.strip())
            schema = match["schema"] if match else None
            twice = any_schema is not None if schema is None else schema in by_schema
            if match is None or twice or len(parts) > VERSION_SCHEMAS_MAX:
                detail = "must be a version, such as 2, or versions by schema, such as travel=2, billing=3"
                raise InvalidRequest(Fault(detail=detail, header=VERSION_HEADER))
            if schema is None:
                any_schema = int(match["number"])
            else:
                by_schema[schema] = int(match["number"])
        return WantedVersions(any_schema, by_schema)

    def client_share(self) -> ClientShare | None:
        """The client's share of Stateroom-Client-Share, or None; it goes to storage and nowhere else.

        Raises:
            InvalidRequest: it is not the base64 of 32 bytes; what it is is not said.
        """
        text = self.header(SHARE_HEADER)
        if text is None:
            return None
        fault = Fault(detail=f"must be the base64 of {CLIENT_SHARE_BYTES} bytes", header=SHARE_HEADER)
        try:
            material = base64.b64decode(text, validate=True)
            if len(text) != CLIENT_SHARE_CHARACTERS:
                raise InvalidRequest(fault)
            return ClientShare(material)
        except (ValueError, InvalidState):
            raise InvalidRequest(fault) from None

    def idempotency(self, thread_id: str, name: Format, body: bytes) -> Idempotency | None:
        """The Idempotency-Key with a digest of everything that makes this request what it is, or None.

        Raises:
            InvalidRequest: it is not 1 to 255 visible ASCII characters.
        """
        text = self.header("idempotency-key")
        if text is None:
            return None
        if not _IDEMPOTENCY_KEY.match(text):
            raise InvalidRequest(Fault(detail="must be 1 to 255 visible ASCII characters", header="Idempotency-Key"))
        conditions = (self.header("if-match") or "", self.header("if-none-match") or "")
        digest = hashlib.sha256()
        for part in (*(each.encode() for each in (self.route, thread_id, name, *conditions)), body):
            digest.update(len(part).to_bytes(8, "big") + part)
        return Idempotency(text, digest.digest())

    def reply(
        self, content: Any, *, status: int = 200, etag: str | None = None, token: str | None = None
    ) -> Response[bytes]:
        """Answer with ``content`` in the negotiated format."""
        headers = [(b"vary", b"accept"), _CONTENT_TYPES[self.format]]
        if etag:
            headers.append((b"etag", f'"{encode_id(etag)}"'.encode()))
        if token:
            headers.append((_GIVEN_HEADER, token.encode("latin-1")))
        return Answer(status, headers, encode_body(self.format, content))


class Answer(Response[bytes]):
    """An answer that is complete: what the framework would put together again for each request is constant here."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._status = status
        self._headers = headers
        self._body = body

    def to_asgi_response(self, *_: Any, **__: Any) -> "Answer":  # type: ignore[override]
        """What sends it: itself."""
        return self

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Send it."""
        body = self._body
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": self._status, "headers": [*self._headers, length]})
        if len(body) > limits.ANSWER_SLICE_BYTES:
            await send_slices(body, send)
            body = b""  # the end is said when the last slice has been taken, too
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_slices(body: bytes, send: Send, idle_seconds_max: float = limits.STREAM_IDLE_SECONDS_MAX) -> None:
    """Send ``body`` as fast as it is read, and no faster: what is not read yet stays with the request that holds it.

    Raises:
        TimeoutError: its reader took nothing for ``idle_seconds_max``.
    """
    for start in range(0, len(body), limits.ANSWER_SLICE_BYTES):
        part = body[start : start + limits.ANSWER_SLICE_BYTES]
        async with asyncio.timeout(idle_seconds_max):
            await send({"type": "http.response.body", "body": part, "more_body": True})


class _Nothing(Struct):
    pass
