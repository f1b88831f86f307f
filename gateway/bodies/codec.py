"""Bodies to structs and back, and channel values between what clients send and what storage keeps.

Storage keeps a channel as bytes in an encoding. ``state`` bodies in MessagePack go through byte for byte; in
JSON each channel is converted to MessagePack, so that both views of a state are the same state. What JSON
cannot say:

===========================================  ========================================================
in MessagePack                               in JSON
===========================================  ========================================================
binary                                       ``{"$bytes": base64}``
extension value                              ``{"$ext": [code, base64]}``
NaN, infinities                              ``{"$float": "nan" | "inf" | "-inf"}``
integer, float, boolean or nil as map key    the key as a string (one way only)
any other map JSON cannot say, and a map     ``{"$map": [[key, value], ...]}``
whose only key is one of these words
a whole channel in another encoding          ``{"$encoded": [encoding, base64]}``; in MessagePack the
                                             same map with binary
===========================================  ========================================================

Integers beyond 64 bits do not exist in MessagePack: such a channel is kept as the JSON it came as. A JSON object
that names a member twice is refused, because two readers of it may believe different ones (RFC 8259, 4). So is a map in
MessagePack, as far as the body is the gateway's to read: its own members, names of channels and of metadata. Maps
inside values pass as they are, and are shown as ``$map`` if they name a key twice. Nothing here instantiates anything.

What takes long for large bodies and values is `Work`, done in slices by the caller. Nothing that a client can send as a
list or map is ever hashed: lists of a few numbers are easily made to have all the same hash.
"""

import base64
import binascii
import functools
import math
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeVar

import msgpack
import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from gateway.admission import limits
from gateway.admission.slices import Work, finish, joined
from gateway.bodies.faults import check_shape, decoder
from gateway.bodies.json_views import MARKERS, NotPlain, json_view
from gateway.bodies.long_texts import LONG_TEXT_BYTES_MIN, LongTexts, set_aside
from gateway.bodies.scanning import CONTAINERS, Format, NamedTwice, Values, scan
from gateway.bodies.validation import explain
from gateway.bodies.whole_numbers import with_integers
from gateway.problems import InvalidRequest, MalformedBody, NotAcceptable, UnsupportedMediaType, pointer
from gateway.wire.problems import Fault
from storage.encoding import encode_json, encode_msgpack, json_decoder
from storage.errors import InvalidState, LimitExceeded
from storage.model import Value

MEDIA_TYPES: dict[Format, str] = {"json": "application/json", "msgpack": "application/msgpack"}
LINES_MEDIA_TYPE: Final = "application/jsonl"  # https://jsonlines.org
EVENTS_MEDIA_TYPE: Final = "text/event-stream"  # https://html.spec.whatwg.org/multipage/server-sent-events.html
_FORMATS: dict[str, Format] = {media_type: name for name, media_type in MEDIA_TYPES.items()}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_ESCAPE = 'a map whose only key is a $ word is sent as {"$map": [["$...", value]]}'
_ENCODED_PREFIX = b"\x81\xa8$encoded"
_SLICE_CONTAINERS = 2_500  # looked into in one slice
_SLICE_TEXT = 256 * 1024  # of base64; a multiple of 4

T = TypeVar("T")

_json_any = json_decoder(Any)
_json_raw = json_decoder(Raw)
_msgpack_raw = msgspec.msgpack.Decoder(Raw)
_msgpack_members = msgspec.msgpack.Decoder(dict[str, Raw])
_msgpack_foreign = msgspec.msgpack.Decoder(dict[str, tuple[str, bytes]])


# --- media types ----------------------------------------------------------------------------------


def body_format(content_type: bytes | None, content_encoding: bytes | None) -> Format:
    """The format of a request body.

    Raises:
        UnsupportedMediaType: it is neither JSON nor MessagePack, or it is compressed.
    """
    name = (content_type or b"").split(b";", 1)[0].strip().lower().decode("latin-1")
    if name not in _FORMATS:
        raise UnsupportedMediaType("Content-Type must be application/json or application/msgpack")
    if content_encoding is not None and content_encoding.strip().lower() != b"identity":
        raise UnsupportedMediaType("Content-Encoding is not supported; send the body uncompressed")
    return _FORMATS[name]


def reply_format(accept: bytes | None) -> Format:
    """The format to answer in: the one with the greatest quality (RFC 9110, 12.5.1), JSON when equal.

    Raises:
        NotAcceptable: neither JSON nor MessagePack is acceptable, or the header is longer than
            `limits.ACCEPT_BYTES_MAX`, so that it is neither read nor remembered.
    """
    if accept is not None and len(accept) > limits.ACCEPT_BYTES_MAX:
        raise NotAcceptable(f"Accept may have {limits.ACCEPT_BYTES_MAX:,} bytes (ACCEPT_BYTES_MAX)")
    return _negotiated(accept)


def accepts_events(accept: bytes | None) -> bool:
    """Whether server-sent events are asked for by name, and nothing else is liked more; see `reply_format`."""
    if accept is None or len(accept) > limits.ACCEPT_BYTES_MAX:
        return False
    ranges = _ranges(accept)
    quality = ranges.get(EVENTS_MEDIA_TYPE, 0.0)
    return quality > 0 and quality >= max(ranges.get(each, 0.0) for each in _FORMATS)


def _ranges(accept: bytes) -> dict[str, float]:
    """The media ranges of Accept, with the quality of each."""
    ranges: dict[str, float] = {}
    for part in accept.decode("latin-1").lower().split(","):
        media_range, *parameters = (piece.strip() for piece in part.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        ranges[media_range] = float(quality) if re.fullmatch(r"[01](\.\d{0,3})?", quality) else 0.0
    return ranges


@functools.lru_cache(maxsize=256)
def _negotiated(accept: bytes | None) -> Format:
    if accept is None or accept.strip() in {b"", b"*/*"}:
        return "json"
    ranges = _ranges(accept)
    best: Format | None = None
    best_quality = 0.0
    for media_type, name in _FORMATS.items():
        quality_here = ranges.get(media_type, ranges.get("application/*", ranges.get("*/*", 0.0)))
        if quality_here > best_quality:
            best, best_quality = name, quality_here
    if best is None:
        raise NotAcceptable("Accept must admit application/json or application/msgpack")
    return best


# --- bodies ---------------------------------------------------------------------------------------


def read_body(name: Format, body: bytes, shape: type[T], values: Values) -> Work[tuple[T, bytes]]:
    """Read a body; returns what it says, and the body as it was read (`gateway.bodies.whole_numbers`).

    Args:
        name: The body's format.
        body: The bytes that came.
        shape: The shape they must have.
        values: The counter of values, which counts before anything is made of them.

    Raises:
        MalformedBody: it is empty, does not parse, is not UTF-8, or names a member of an object twice (in MessagePack
            only where this module looks: see above).
        LimitExceeded: it is nested more than `limits.DEPTH_MAX` deep, or as `scan`.
        InvalidRequest: it parses but is not a ``shape``; the faults point at all differences (`gateway.bodies.faults`).
    """
    if not body:
        raise MalformedBody("the body is empty")
    try:
        yield from scan(name, body, values)
        decoded, body = yield from _decoded(name, body, shape)
        twice = name == "msgpack" and _names_twice_packed(body, _LOOKED_INTO)
    except NamedTwice:
        twice = True
    except msgspec.ValidationError as error:
        difference = explain(error, shape)
        raise InvalidRequest(
            Fault(detail=difference.what, pointer=pointer(*difference.steps)), limit=difference.limit
        ) from None
    except UnicodeDecodeError:
        raise MalformedBody("the body is not valid UTF-8") from None
    except msgspec.DecodeError:
        raise MalformedBody(f"the body is not valid {'JSON' if name == 'json' else 'MessagePack'}") from None
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    if twice:
        raise MalformedBody("an object of the body names a member twice")
    return decoded, body


def _decoded(name: Format, body: bytes, shape: type[T]) -> Work[tuple[T, bytes]]:
    decode: Callable[[bytes], T] = decoder(name, shape)  # type: ignore[arg-type]  # a class is hashable
    not_text = _not_text(body) if name == "msgpack" else frozenset()
    try:
        if not not_text:
            return decode(body), body
    except msgspec.ValidationError:
        yield  # what follows takes as long again
    yield from check_shape(name, body, shape, not_text)
    if name == "json":
        body = yield from with_integers(body, shape)
    return decode(body), body


def decode_body(name: Format, body: bytes, shape: type[T]) -> T:
    """Read a small body at once; see `read_body`."""
    return finish(read_body(name, body, shape, Values(len(body))))[0]


# Members of a body whose names are the gateway's to read, and members of those. What is below is a caller's value.
_LOOKED_INTO: dict[str, Any] = {
    "state": {}, "state_holes": {}, "state_leaves": {}, "metadata": {}, "model": {}, "usage": {},
    "channels": None, "changes": {"set": {}, "append": {}, "leaves": {}},
}  # fmt: skip
# Members that are read as whatever they are, so that their maps are hashed: a key of theirs must be text.
_PLAIN = frozenset({"metadata", "json_schema", "up", "down"})


def _not_text(body: bytes) -> frozenset[str]:
    """Members that would be hashed and have a map with a key that is no text.

    Raises:
        NamedTwice: a member came twice: only one of both was looked at.
    """
    count = _map_count(body)
    if count is None:
        return frozenset()
    members = _msgpack_members.decode(body)
    if len(members) < count:
        raise NamedTwice
    return frozenset(name for name in _PLAIN & members.keys() if not _is_text(members[name]))


def _is_text(content: Raw) -> bool:
    try:
        msgpack.unpackb(content, raw=False, strict_map_key=True, timestamp=0)
    except (ValueError, msgpack.UnpackException):
        return False
    return True


def _names_twice_packed(body: bytes | Raw, below: dict[str, Any] | None) -> bool:
    """Whether a map of valid MessagePack has fewer members than it says, or one of those in it that ``below`` names.

    None: all of those in it.
    """
    count = _map_count(body)
    if count is None:
        return False
    members = _msgpack_members.decode(body)
    if len(members) < count:
        return True
    if below is None:
        return any(_names_twice_packed(member, {}) for member in members.values())
    return any(_names_twice_packed(members[name], deeper) for name, deeper in below.items() if name in members)


def _map_count(data: bytes | Raw) -> int | None:
    """How many members a MessagePack map says that it has; None: it is no map."""
    view = memoryview(data)
    first = view[0]
    if first & 0xF0 == 0x80:
        return first & 0x0F
    return int.from_bytes(view[1 : 1 + CONTAINERS[first][0]]) if first in {0xDE, 0xDF} else None


def encode_body(name: Format, content: Any) -> bytes:
    """Write a body."""
    return encode_json(content) if name == "json" else encode_msgpack(content)


# --- channel values: in ---------------------------------------------------------------------------


def value_in(name: Format, raw: Raw, where: str) -> Work[Value]:
    """A channel as storage keeps it.

    Raises:
        InvalidState: a ``$`` word is misused; ``where`` is the JSON pointer it names.
        MalformedBody: the JSON is not valid UTF-8.
        InvalidRequest: a number is out of range.
    """
    data = bytes(raw)
    if name == "msgpack":
        return _foreign_in(data, where) if data.startswith(_ENCODED_PREFIX) else Value("msgpack", data)
    sliced = len(data) >= limits.SLICED_BYTES_MIN
    if len(data) >= LONG_TEXT_BYTES_MIN:
        aside = yield from set_aside(data)
        if aside is not None and b"$" not in aside.rest and rb"\u0024" not in aside.rest:
            return (yield from _long_value_in(aside, data, where))
    tree = _json_tree(data, where)
    if sliced:
        yield
    try:
        if b"$" in data or rb"\u0024" in data:
            if isinstance(tree, dict) and tree.keys() == {"$encoded"}:
                encoding, content = _pair(tree["$encoded"], str, where)
                return Value(encoding, content)
            tree = yield from _Unmarking(where).of(tree)
            if sliced:
                yield
        return Value("msgpack", encode_msgpack(tree))
    except OverflowError:  # an integer beyond 64 bits
        return Value("json", data)


def _long_value_in(aside: LongTexts, data: bytes, where: str) -> Work[Value]:
    """Do what `value_in` does, for a value without words that has long texts."""
    try:
        packed = encode_msgpack(_json_tree(aside.rest, where))
    except OverflowError:
        packed = None
    yield
    try:
        if packed is None:
            yield from aside.check()
            return Value("json", data)
        return Value("msgpack", (yield from aside.put_back(packed)))
    except (UnicodeDecodeError, msgspec.DecodeError):
        raise MalformedBody("the body is not valid UTF-8 JSON") from None


def holed_in(name: Format, raw: Raw, holes: Sequence[int], where: str) -> Work[Value]:
    """A channel with placeholders, as storage keeps it. That they stand where it says is seen when it is cut.

    Raises:
        InvalidState: only plain MessagePack has placeholders.
    """
    value = yield from value_in(name, raw, where)
    if holes and (name != "msgpack" or len(value.data) != len(raw)):
        raise InvalidState("only plain MessagePack has placeholders", where)
    return Value(value.encoding, value.data, tuple(holes))


def element_in(name: Format, raw: Raw, where: str) -> Work[bytes]:
    """An element to append to a list channel, as MessagePack.

    Raises:
        InvalidState: it cannot be MessagePack.
        MalformedBody: the JSON is not valid UTF-8.
        InvalidRequest: a number is out of range.
    """
    value = yield from value_in(name, raw, where)
    if value.encoding != "msgpack":
        raise InvalidState("an appended element must fit MessagePack (integers have 64 bits)", where)
    return value.data


def _json_tree(data: bytes, where: str) -> Any:
    try:
        return _json_any(data)
    except msgspec.ValidationError as error:
        raise InvalidRequest(Fault(detail=explain(error).what, pointer=where)) from None
    except (UnicodeDecodeError, msgspec.DecodeError):
        raise MalformedBody("the body is not valid UTF-8 JSON") from None


def _foreign_in(data: bytes, where: str) -> Value:
    try:
        encoding, content = _msgpack_foreign.decode(data)["$encoded"]
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidState("$encoded must be [encoding, bytes]", where) from None
    return Value(encoding, content)


def _base64(text: Any, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise InvalidState(f"a $ word holds text that is not base64; {_ESCAPE}", where) from None


def _binary(text: Any, where: str) -> Work[bytes]:
    """Do what `_base64` does, in slices."""
    if not isinstance(text, str) or len(text) <= _SLICE_TEXT:
        return _base64(text, where)
    parts = []
    for at in range(0, len(text), _SLICE_TEXT):
        part = text[at : at + _SLICE_TEXT]
        if "=" in part and at + _SLICE_TEXT < len(text):
            part = "="  # padding ends a text
        parts.append(_base64(part, where))
        yield
    return (yield from joined(parts))


def _pair(content: Any, first_type: type[T], where: str) -> tuple[T, bytes]:
    if not (isinstance(content, list) and len(content) == 2 and isinstance(content[0], first_type)):
        raise InvalidState(f"$ext must be [code, base64] and $encoded [encoding, base64]; {_ESCAPE}", where)
    return content[0], _base64(content[1], where)


class _Unmarking:
    """Puts what ``$`` words stand for in their place, in slices."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._done = 0

    def of(self, tree: Any) -> Generator[None, None, Any]:
        """``tree`` without words."""
        if not isinstance(tree, (list, dict)):
            return tree
        self._done += 1
        if self._done % _SLICE_CONTAINERS == 0:
            yield
        if isinstance(tree, list):
            for index, item in enumerate(tree):  # in place: it is ours
                if isinstance(item, (list, dict)):
                    tree[index] = yield from self.of(item)
            return tree
        if len(tree) == 1:
            ((word, content),) = tree.items()
            if word in MARKERS:
                return (yield from self._word(word, content))
        for name, item in tree.items():
            if isinstance(item, (list, dict)):
                tree[name] = yield from self.of(item)
        return tree

    def _word(self, word: str, content: Any) -> Generator[None, None, Any]:
        where = self._where
        match word:
            case "$bytes":
                return (yield from _binary(content, where))
            case "$ext":
                code, data = _pair(content, int, where)
                if not -128 <= code <= 127 or isinstance(code, bool):
                    raise InvalidState("the code of $ext must be -128 to 127", where)
                return Ext(code, data)
            case "$float" if isinstance(content, str) and content in _FLOATS:
                return _FLOATS[content]
            case "$map" if isinstance(content, list) and all(isinstance(p, list) and len(p) == 2 for p in content):
                keys: list[bytes] = []
                parts = [_map_header(len(content))]
                for key, item in content:
                    keys.append(self._key((yield from self.of(key))))
                    parts += (keys[-1], encode_msgpack((yield from self.of(item))))
                if len(set(keys)) < len(keys):  # bytes have hashes that a client cannot choose
                    raise InvalidState("a map names a key twice", where)
                return Raw(b"".join(parts))
            case _:
                raise InvalidState(f"{word} is reserved and does not hold what it should here; {_ESCAPE}", where)

    def _key(self, key: Any) -> bytes:
        parts = [key]
        for part in parts:
            if isinstance(part, (dict, Raw)):
                raise InvalidState("a map cannot be the key of a map", self._where)
            if isinstance(part, list):
                parts += part
        return encode_msgpack(key)


def _map_header(count: int) -> bytes:
    if count < 1 << 4:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2) if count < 1 << 16 else b"\xdf" + count.to_bytes(4)


# --- channel values: out --------------------------------------------------------------------------


def value_out(name: Format, value: Value) -> Work[Raw]:
    """A channel as the ``state`` view shows it; what cannot be shown plainly comes as ``$encoded``."""
    plain = (yield from _json_out(value)) if name == "json" else _msgpack_out(value)
    if plain is not None:
        return Raw(plain)
    foreign = base64.b64encode(value.data).decode("ascii") if name == "json" else value.data
    return Raw(encode_body(name, {"$encoded": [value.encoding, foreign]}))


def holes_out(value: Value, raw: Raw) -> list[int]:
    """Where a value's placeholders stand in what `value_out` made of it, for MessagePack."""
    before = len(raw) - len(value.data)  # of a value that came as `$encoded`: its bytes are the last
    return [before + at for at in value.holes]


def _msgpack_out(value: Value) -> bytes | None:
    try:
        if value.encoding == "msgpack":
            _msgpack_raw.decode(value.data)
            return value.data
        if value.encoding == "json":
            return encode_msgpack(_json_any(value.data))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        pass
    return None


def _json_out(value: Value) -> Work[bytes | None]:
    try:
        if value.encoding == "msgpack":
            return (yield from json_view(value.data))
        if value.encoding == "json":
            _json_raw(value.data)
            value.data.decode()
            return value.data
    except (NotPlain, msgspec.DecodeError, ValueError, RecursionError):
        pass
    return None
