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
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode
from uuid import UUID

import msgspec
from msgspec import Struct

from gateway.admission import limits
from gateway.admission.slices import JOINED_BESIDE_BYTES_MIN
from gateway.bodies import codec
from gateway.bodies.codec import MEDIA_TYPES, body_format, encode_body, reply_format
from gateway.bodies.scanning import Format, Values
from gateway.bodies.validation import A_TIME, explain, missing_member
from gateway.http.asgi import Receive, Scope, Send
from gateway.http.compressing import CODING, COMPRESSED_BYTES_MIN, accepts_gzip, compress
from gateway.problems import BodyTimeout, BodyTooLarge, InvalidRequest, MalformedBody, UnsupportedMediaType
from gateway.wire.base import alternatives
from gateway.wire.problems import Fault
from storage.concurrency.turns import loop_turn
from storage.errors import InvalidState
from storage.format.token import ThreadToken
from storage.model import Idempotency, Precondition
from storage.schemas.versions import AS_SAVED, WantedVersions
from storage.scope import CLIENT_SHARE_BYTES, ClientShare, check_id, is_plain_id

SUBJECT_HEADER = "Stateroom-Subject"
KNOWN_HEADER = "Stateroom-Known-Token"
GIVEN_HEADER = "Stateroom-Thread-Token"
SHARE_HEADER = "Stateroom-Client-Share"
PRINCIPAL_HEADER = "Stateroom-Principal"
VERSION_HEADER = "Accept-State-Version"
VERSION_SCHEMAS_MAX = 100  # what one agent could possibly know
CLIENT_SHARE_CHARACTERS = 44  # so that a share has one spelling
NO_FORM = "send the bytes as the body, with the file's own Content-Type; not as a form"
COMMON_HEADERS = [
    (b"cache-control", b"private, no-store"),  # everything is somebody's state
    (b"x-content-type-options", b"nosniff"),
]
_WITHOUT_LENGTH = frozenset({204, 304})
_PATH_SAFE = "~:@+"  # beside letters, digits and -._
_GIVEN_HEADER = GIVEN_HEADER.lower().encode()
_CONTENT_TYPES = {name: (b"content-type", media_type.encode()) for name, media_type in MEDIA_TYPES.items()}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")
_STATE_VERSION = re.compile(r"(?:(?P<schema>[A-Za-z0-9._:-]{1,64})=)?(?P<number>[1-9][0-9]{0,8})\Z", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]", re.ASCII)
_DAY_CHARACTERS = len("2026-03-01T")
_TAG = re.compile(r'(?P<weak>W/)?"(?P<opaque>[\x21\x23-\x7e\x80-\xff]*)"')
_TAGS = re.compile(r"[ \t,]*\0(?:[ \t]*,[ \t,]*\0)*[ \t,]*")  # each tag as NUL
# Twice is ambiguous for these: two parties on the way could read different ones.
_ONCE = frozenset(
    {
        b"authorization", b"content-type", b"content-length", b"content-encoding", b"if-match",
        b"if-none-match", b"idempotency-key", b"stateroom-subject", b"stateroom-known-token",
        b"stateroom-client-share", b"accept-state-version", b"range", b"if-range", b"content-digest",
        b"stateroom-artifact-name", b"stateroom-artifact-metadata", b"stateroom-artifact-preview", b"last-event-id",
        b"stateroom-principal",
    }
)  # fmt: skip

T = TypeVar("T")
Q = TypeVar("Q", bound=Struct)


@dataclass(slots=True)
class Facts:
    """What is known of a request from the first byte to the access log."""

    request_id: str
    headers: dict[bytes, bytes] = field(repr=False)
    query: bytes = field(default=b"", repr=False)
    duplicate: str | None = None
    key_id: str | None = None
    status: int = 0
    code: str | None = None  # of the problem it was answered with
    access: tuple[UUID, str, str] | None = None  # what the audit log notes: chain, actor, whose rows
    reservation: limits.Reservation | None = None  # of who was authenticated
    count_out: Callable[[], None] | None = None  # of the process's requests, sooner than at the end
    waited_seconds: float = 0.0  # for something to happen: no latency of the route
    bodiless: bool = False  # a HEAD, which handlers see as a GET: its body need not be made

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
        request_id = offered.decode() if offered and usable else minted_id
        return cls(request_id, headers, scope["query_string"], duplicate)


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


def place(*segments: str, **query: str) -> str:
    """The path of a resource, as Location gives it; ids are encoded here, what of ``query`` is empty is left out."""
    path = "/".join(quote(encode_id(segment), safe=_PATH_SAFE) for segment in segments)
    parameters = {name: value for name, value in query.items() if value}
    return f"/v1/{path}?{urlencode(parameters)}" if parameters else f"/v1/{path}"


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
    return _members(shape, lambda kind: isinstance(kind, msgspec.inspect.ListType))


@functools.cache
def _nullables(shape: type[Struct]) -> frozenset[str]:
    """Parameters whose text ``null`` the validator would take for no value; of plain text it is a text like others."""
    plain = (msgspec.inspect.StrType, msgspec.inspect.NoneType)
    return _members(
        shape,
        lambda kind: (
            isinstance(kind, msgspec.inspect.UnionType) and not all(isinstance(each, plain) for each in kind.types)
        ),
    )


@functools.cache
def _moments(shape: type[Struct]) -> frozenset[str]:
    """Parameters that are times: of a number the validator would make one, too, by a unit that it guesses."""
    return _members(
        shape, lambda kind: any(isinstance(each, msgspec.inspect.DateTimeType) for each in alternatives(kind))
    )


def _members(shape: type[Struct], is_one: Callable[[msgspec.inspect.Type], bool]) -> frozenset[str]:
    fields = msgspec.structs.fields(shape)
    return frozenset(field.encode_name for field in fields if is_one(msgspec.inspect.type_info(field.type)))


def parse_query(query: bytes, shape: type[Q]) -> Q:
    """Read a query string; every parameter must be a member of ``shape`` and only lists may repeat.

    Raises:
        InvalidRequest: naming every parameter that is wrong.
    """
    if not query:
        return _convert({}, shape, {})
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
    faults: dict[str, str] = {}  # by parameter
    for name, text in pairs:
        if name not in members:
            faults[name[:64]] = f"unknown parameter; known here: {', '.join(members) or 'none'}"
        elif name in lists:
            values.setdefault(name, []).append(text)
        elif name in values:
            faults[name] = "the parameter is given twice"
        else:
            values[name] = text
            if text.lower() == "null" and name in _nullables(shape):
                faults[name] = "must be a value; leave it out to filter by none"
            elif name in _moments(shape) and not _DATE.match(text):
                faults[name] = f"{name} {A_TIME}"
            elif name in _moments(shape) and " " in text[_DAY_CHARACTERS:]:
                faults[name] = f"{name} has a blank before its zone: in a query, + is a blank, so write it %2B"
    return _convert(values, shape, faults)


def _convert(values: dict[str, str | list[str]], shape: type[Q], faults: dict[str, str]) -> Q:
    """Parameters as a ``shape``; ``faults``, by parameter, are what was found wrong before, and told with the rest."""
    try:
        if not faults:
            return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError:  # it names one parameter
        pass
    limit = None
    for member in msgspec.structs.fields(shape):
        name = member.encode_name
        if name not in values:
            if member.required:
                faults[name] = missing_member(name, ()).what
        elif name not in faults:
            try:
                msgspec.convert(values[name], member.type, strict=False)
            except msgspec.ValidationError as error:
                difference = explain(error, member.type, (name,))
                faults[name] = difference.what
                limit = limit or difference.limit
    raise InvalidRequest(*(Fault(detail=what, parameter=name) for name, what in faults.items()), limit=limit)


async def read_body(headers: dict[bytes, bytes], receive: Receive, reservation: limits.Reservation) -> bytes:
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
                reservation.take(len(chunk))
                chunks.append(chunk)
                if not message["more_body"]:
                    return await _whole(chunks)
                if size >= limits.ANSWER_SLICE_BYTES:  # of all that are as large, one chunk in a turn of the loop
                    await loop_turn().take()
                patience.reschedule(min(end, loop.time() + limits.BODY_IDLE_SECONDS_MAX))
    except TimeoutError:
        raise BodyTimeout("the body did not arrive in time") from None


async def _whole(chunks: list[bytes]) -> bytes:
    if sum(map(len, chunks)) < JOINED_BESIDE_BYTES_MIN:
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)
    return await asyncio.to_thread(b"".join, chunks)


async def stream_body(
    headers: dict[bytes, bytes], receive: Receive, bytes_max: int, limit: str
) -> AsyncIterator[bytes]:
    """Give a body as it arrives, holding one chunk of it. Time is counted only while the client is waited for.

    Args:
        headers: The request's.
        receive: The channel that it arrives on.
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

    Args:
        facts: The facts of the request.
        receive: The channel that the body arrives on.
        path: The operation's path, with its parameters in braces.
        any_accept: Whether the answer has a media type of its own, whatever is accepted.

    Raises:
        NotAcceptable: the answer could not be written in an accepted format.
    """

    __slots__ = ("_body_ended", "_idempotency", "_receive", "facts", "format", "route", "values")

    def __init__(self, facts: Facts, receive: Receive, path: str, *, any_accept: bool) -> None:
        self._receive = receive
        self.route = path
        self._body_ended = False
        self.values = Values(0)  # of the body, once it was read
        self._idempotency: Idempotency | None = None
        self.facts = facts
        self.format: Format = "json" if any_accept else reply_format(facts.headers.get(b"accept"))

    def leave(self) -> None:
        """Give back the places of the process and of the tenant among requests: what is left to do is to wait."""
        self.reservation.leave()
        if self.facts.count_out is not None:
            self.facts.count_out()

    async def hung_up(self) -> None:
        """Return when the client has gone; what it still sends is let go of."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def header(self, name: str) -> str | None:
        """A header's text, or None."""
        value = self.facts.headers.get(name.lower().encode("ascii"))
        return None if value is None else value.decode("latin-1")

    def query(self, shape: type[Q]) -> Q:
        """The query as a ``shape``; see `parse_query`."""
        return parse_query(self.facts.query, shape)

    @property
    def reservation(self) -> limits.Reservation:
        """What the request holds of the process's memory and time."""
        assert self.facts.reservation is not None  # noqa: S101  for the type checker: no public route takes or gives much
        return self.facts.reservation

    async def body(self, shape: type[T]) -> tuple[T, Format, bytes]:
        """The body as a ``shape``, its format, and its bytes as they were read; see `codec.read_body`."""
        headers = self.facts.headers
        announced = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        if b"content-type" not in headers and not announced:
            raise MalformedBody("a body is required; its Content-Type is application/json or application/msgpack")
        name = body_format(headers.get(b"content-type"), headers.get(b"content-encoding"))
        content = await read_body(headers, self._receive, self.reservation)
        self.values = Values(len(content))
        shown, content = await self.reservation.run(codec.read_body(name, content, shape, self.values), len(content))
        return shown, name, content

    def announced_bytes(self) -> int | None:
        """What Content-Length says, if it is there."""
        text = self.facts.headers.get(b"content-length", b"")
        return int(text) if text.isdigit() and len(text) <= 18 else None

    def content(self, bytes_max: int, limit: str) -> AsyncIterator[bytes]:
        """The body as it arrives, whatever it is; see `stream_body`.

        Raises:
            UnsupportedMediaType: it is compressed; only the content itself has a digest. Or it is a form, whose
                boundaries would be stored with the file.
        """
        media_type = self.facts.headers.get(b"content-type", b"").strip().lower()
        if media_type.startswith(b"multipart/"):
            raise UnsupportedMediaType(NO_FORM)
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
        if self.facts.query:
            self.query(_Nothing)

    def if_match(self) -> Precondition | None:
        """What If-Match says of the head (RFC 9110, section 13.1.1), or None.

        The comparison is strong: a weak tag is no head's, and neither is one that was never given.

        Raises:
            InvalidRequest: it is neither ``*`` nor entity tags.
        """
        text = self.header("if-match")
        if text is None:
            return None
        if text.strip() == "*":
            return Precondition(exists=True)
        if not _TAGS.fullmatch(_TAG.sub("\0", text)):
            detail = 'must be *, or ETags as they were given: "<head id>"'
            raise InvalidRequest(Fault(detail=detail, header="If-Match"))
        strong = dict.fromkeys(tag["opaque"] for tag in _TAG.finditer(text) if tag["weak"] is None)
        heads = [decode_id(tag, Fault(detail="")) for tag in strong if travels_as_id(tag)]
        return Precondition(heads[0] if heads else None, or_one_of=tuple(heads[1:]))

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
        self._idempotency = Idempotency(text, digest.digest())
        return self._idempotency

    def not_modified(self, *, etag: str, token: str) -> "Answer":
        """Say that what the client has is what there is."""
        return Answer(304, self._head(etag, token), b"")

    def reply(
        self,
        content: Any,
        *,
        status: int = 200,
        etag: str | None = None,
        token: str | None = None,
        compressed: bool = False,
        location: str | None = None,
        replayed: bool = False,
    ) -> "Answer":
        """Answer with ``content`` in the negotiated format.

        Args:
            content: The content, of any shape.
            status: The status of success; 201 and 202 say where what was made or begun is.
            etag: The head's id.
            token: The thread's token.
            compressed: Whether it is compressed for who accepts that; see `gateway.http.compressing` for what may be.
            location: The `place` of what was made or begun.
            replayed: Whether nothing was done, because an equal request had done it: then 201 is 200. Where a request
                has an Idempotency-Key, storage says so.
        """
        headers = [_CONTENT_TYPES[self.format], *self._head(etag, token)]
        if replayed or (self._idempotency is not None and self._idempotency.replay.happened):
            status = 200 if status == 201 else status
            headers.append((b"idempotency-replayed", b"true"))
        if location is not None:
            headers.append((b"location", location.encode("ascii")))
        body = encode_body(self.format, content)
        if self.facts.reservation is not None:
            self.facts.reservation.hold(len(body))
        return Answer(
            status, headers, body, packed=compressed and accepts_gzip(self.facts.headers.get(b"accept-encoding"))
        )

    def _head(self, etag: str | None, token: str | None) -> list[tuple[bytes, bytes]]:
        headers = [(b"vary", b"accept, accept-encoding")]
        if etag:
            headers.append((b"etag", f'"{encode_id(etag)}"'.encode()))
        if token:
            headers.append((_GIVEN_HEADER, token.encode("latin-1")))
        return headers


def header_lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers as they travel."""
    return [(name.encode("ascii"), text.encode("latin-1")) for name, text in headers.items()]


class Answer:
    """An answer that is complete.

    Args:
        status: The HTTP status.
        headers: The headers but Content-Length.
        body: All of its body.
        packed: Whether it is sent compressed, if that is worth it.
        size_bytes: The Content-Length of a body that stays away; None: the body is here.
    """

    def __init__(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        packed: bool = False,
        size_bytes: int | None = None,
    ) -> None:
        self._status = status
        self._headers = headers
        self._body = body
        self._packed = packed and len(body) >= COMPRESSED_BYTES_MIN
        self._size_bytes = size_bytes

    async def give(self, facts: Facts, receive: Receive, send: Send) -> None:  # noqa: ARG002  it is all here
        """Send the answer; the body is compressed if it is ``packed``."""
        body = self._body
        headers = self._headers
        bodiless = facts.bodiless
        if self._packed:
            headers = [*headers, (b"content-encoding", CODING.encode())]
            if not bodiless:
                beside = len(body) >= limits.SLICED_BYTES_MIN
                body = await asyncio.to_thread(compress, body) if beside else compress(body)
        # A length in a 304 would be that of the answer it stands for, and the padding gives each GET another.
        if self._status not in _WITHOUT_LENGTH and not (bodiless and self._packed):
            size_bytes = len(body) if self._size_bytes is None else self._size_bytes
            headers = [*headers, (b"content-length", str(size_bytes).encode())]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        if len(body) <= limits.ANSWER_SLICE_BYTES:
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        # What is not read yet stays with the request that holds it, and is counted as long.
        reader = Reader(send)
        for start in range(0, len(body), limits.ANSWER_SLICE_BYTES):
            await reader.give(body[start : start + limits.ANSWER_SLICE_BYTES])
        await reader.give(b"", more=False)  # the end is said when the last slice has been taken, too


@dataclass(slots=True)
class Reader:
    """The reader of an answer, and the time that it may take.

    Attributes:
        seconds_max: For its first bytes.
        bytes_per_second_min: On average, after that.
        idle_seconds_max: How long it may take nothing at all.
    """

    send: Send
    seconds_max: float = limits.ANSWER_SECONDS_MAX
    bytes_per_second_min: float = limits.ANSWER_BYTES_PER_SECOND_MIN
    idle_seconds_max: float = limits.STREAM_IDLE_SECONDS_MAX
    _taken_bytes: int = 0
    _waited_seconds: float = 0.0

    def patience_seconds(self, *, taken_bytes: int, waited_seconds: float) -> float:
        """How long to wait for a reader that has taken so much in that time."""
        allowed = self.seconds_max + taken_bytes / self.bytes_per_second_min
        return min(self.idle_seconds_max, allowed - waited_seconds)

    async def give(self, part: bytes, *, more: bool = True) -> None:
        """Send ``part`` when what went before was taken.

        Raises:
            TimeoutError: the reader took nothing for too long, or takes too little.
        """
        clock = asyncio.get_running_loop().time
        patience = self.patience_seconds(taken_bytes=self._taken_bytes, waited_seconds=self._waited_seconds)
        begun = clock()
        async with asyncio.timeout(patience):
            await self.send({"type": "http.response.body", "body": part, "more_body": more})
        self._waited_seconds += clock() - begun
        self._taken_bytes += len(part)


class _Nothing(Struct):
    pass
