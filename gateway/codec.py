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
inside values pass as they are. Nothing here instantiates anything.
"""

import base64
import binascii
import functools
import math
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, TypeVar

import msgpack
import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext

from gateway import limits
from gateway.problems import (
    InvalidRequest,
    MalformedBody,
    NotAcceptable,
    UnsupportedMediaType,
    explain,
    pointer,
)
from gateway.wire import Fault
from storage.errors import InvalidState, LimitExceeded
from storage.model import Value

Format = Literal["json", "msgpack"]
MEDIA_TYPES: dict[Format, str] = {"json": "application/json", "msgpack": "application/msgpack"}
MARKERS = frozenset({"$bytes", "$ext", "$float", "$map", "$encoded"})
_FORMATS: dict[str, Format] = {media_type: name for name, media_type in MEDIA_TYPES.items()}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_ENCODED_PREFIX = b"\x81\xa8$encoded"

T = TypeVar("T")

_json_any = msgspec.json.Decoder()
_msgpack_raw = msgspec.msgpack.Decoder(Raw)
_msgpack_members = msgspec.msgpack.Decoder(dict[str, Raw])
_msgpack_foreign = msgspec.msgpack.Decoder(dict[str, tuple[str, bytes]])
_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode


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


@functools.lru_cache(maxsize=256)
def _negotiated(accept: bytes | None) -> Format:
    if accept is None or accept.strip() in {b"", b"*/*"}:
        return "json"
    ranges: dict[str, float] = {}
    for part in accept.decode("latin-1").lower().split(","):
        media_range, *parameters = (piece.strip() for piece in part.split(";"))
        quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        ranges[media_range] = float(quality) if re.fullmatch(r"[01](\.\d{0,3})?", quality) else 0.0
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


@functools.cache
def _decoder(name: Format, shape: Hashable) -> Callable[[bytes], Any]:
    if name == "json":
        return msgspec.json.Decoder(shape).decode
    return msgspec.msgpack.Decoder(shape).decode


def decode_body(name: Format, body: bytes, shape: type[T]) -> T:
    """Read a body.

    Raises:
        MalformedBody: it is empty, does not parse, is not UTF-8, or names a member of an object twice (in MessagePack
            only where this module looks: see above).
        LimitExceeded: it is nested more than `limits.DEPTH_MAX` deep.
        InvalidRequest: it parses but is not a ``shape``; the fault points at the first difference.
    """
    if not body:
        raise MalformedBody("the body is empty")
    if too_deep(name, body):
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX)
    try:
        decoded: T = _decoder(name, shape)(body)  # type: ignore[arg-type]  # a class is hashable
        if _names_twice(body) if name == "json" else _names_twice_packed(body, _LOOKED_INTO):
            raise MalformedBody("an object of the body names a member twice")
    except msgspec.ValidationError as error:
        what, steps = explain(error)
        raise InvalidRequest(Fault(detail=what, pointer=pointer(*steps))) from None
    except UnicodeDecodeError:
        raise MalformedBody("the body is not valid UTF-8") from None
    except msgspec.DecodeError:
        raise MalformedBody(f"the body is not valid {'JSON' if name == 'json' else 'MessagePack'}") from None
    except RecursionError:
        raise LimitExceeded("DEPTH_MAX", limits.DEPTH_MAX) from None
    return decoded


def _names_twice(body: bytes) -> bool:
    """Whether an object of valid JSON has fewer members than the text names."""
    try:
        return _STRINGS.sub(b"", body).count(b":") > _members(_json_any.decode(body))
    except msgspec.ValidationError:  # a number out of range in a part not read yet: whoever reads it says where
        return False


# Members of a body whose names are the gateway's to read, and members of those. What is below is somebody's value.
_LOOKED_INTO: dict[str, Any] = {
    "state": {}, "state_holes": {}, "metadata": {}, "model": {}, "usage": {},
    "channels": None, "changes": {"set": {}, "append": {}},
}  # fmt: skip


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
    return int.from_bytes(view[1 : 1 + _CONTAINERS[first][0]]) if first in {0xDE, 0xDF} else None


def _members(tree: Any) -> int:
    if isinstance(tree, dict):
        return len(tree) + sum(map(_members, tree.values()))
    return sum(map(_members, tree)) if isinstance(tree, list) else 0


def encode_body(name: Format, content: Any) -> bytes:
    """Write a body."""
    return _encode_json(content) if name == "json" else _encode_msgpack(content)


_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NOT_CONTAINERS = bytes(set(range(256)) - set(range(0x80, 0xA0)) - set(range(0xDC, 0xE0)))
# Bytes that follow the first byte of a MessagePack value of fixed size.
_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2,
    0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
# Bytes of the length that follows the first byte, and bytes beside the content (an extension's code).
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0),
    0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
# Bytes of the count that follows the first byte, and values for each element.
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def too_deep(name: Format, body: bytes, depth_max: int = limits.DEPTH_MAX) -> bool:
    """Whether containers nest more than ``depth_max`` deep; False for what does not parse."""
    return _json_too_deep(body, depth_max) if name == "json" else _msgpack_too_deep(body, depth_max)


def _json_too_deep(body: bytes, depth_max: int) -> bool:
    if body.count(b"[") + body.count(b"{") <= depth_max:
        return False
    brackets = _STRINGS.sub(b"", body).translate(_TO_SQUARE, _NOT_BRACKETS)
    if b"[" * (depth_max + 1) in brackets:
        return True
    for _ in range(depth_max):  # each pass removes exactly the innermost level of every branch
        if b"[]" not in brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets


def _msgpack_too_deep(body: bytes, depth_max: int) -> bool:  # noqa: C901  one branch a row of the format
    if len(body.translate(None, _NOT_CONTAINERS)) <= depth_max:
        return False
    levels: list[int] = []  # values still to come at each outer level
    left = 1  # and at this one
    at = 0
    try:
        while True:
            if not left:
                if not levels:
                    return False
                left = levels.pop()
                continue
            left -= 1
            first = body[at]
            at += 1
            if 0xA0 <= first < 0xC0:  # the commonest first: short strings, small integers
                at += first & 0x1F
                continue
            if first < 0x80 or first >= 0xE0:
                continue
            if first < 0xA0:
                count = (first & 0x0F) * (1 if first >= 0x90 else 2)
            elif first in _FIXED:
                at += _FIXED[first]
                continue
            elif first in _SIZED:
                width, more = _SIZED[first]
                at += width + more + int.from_bytes(body[at : at + width], "big")
                continue
            else:
                width, each = _CONTAINERS[first]
                count = each * int.from_bytes(body[at : at + width], "big")
                at += width
            levels.append(left)
            left = count
            if len(levels) > depth_max:
                return True
    except (IndexError, KeyError):
        pass
    return False


# --- channel values: in ---------------------------------------------------------------------------


def value_in(name: Format, raw: Raw, where: str) -> Value:
    """A channel as storage keeps it.

    Raises:
        InvalidState: a ``$`` word is misused; ``where`` is the JSON pointer it names.
        MalformedBody: the JSON is not valid UTF-8.
        InvalidRequest: a number is out of range.
    """
    data = bytes(raw)
    if name == "msgpack":
        return _foreign_in(data, where) if data.startswith(_ENCODED_PREFIX) else Value("msgpack", data)
    tree = _json_tree(data, where)
    if b"$" in data or rb"\u0024" in data:
        if isinstance(tree, dict) and tree.keys() == {"$encoded"}:
            encoding, content = _pair(tree["$encoded"], str, where)
            return Value(encoding, content)
        tree = _from_markers(tree, where)
    try:
        return Value("msgpack", _encode_msgpack(tree))
    except OverflowError:  # an integer beyond 64 bits
        return Value("json", data)


def holed_in(name: Format, raw: Raw, holes: Sequence[int], where: str) -> Value:
    """A channel with placeholders, as storage keeps it. That they stand where it says is seen when it is cut.

    Raises:
        InvalidState: only plain MessagePack has placeholders.
    """
    value = value_in(name, raw, where)
    if holes and (name != "msgpack" or len(value.data) != len(raw)):
        raise InvalidState("only plain MessagePack has placeholders", where)
    return Value(value.encoding, value.data, tuple(holes))


def element_in(name: Format, raw: Raw, where: str) -> bytes:
    """An element to append to a list channel, as MessagePack.

    Raises:
        InvalidState: it cannot be MessagePack.
        MalformedBody: the JSON is not valid UTF-8.
        InvalidRequest: a number is out of range.
    """
    value = value_in(name, raw, where)
    if value.encoding != "msgpack":
        raise InvalidState("an appended element must fit MessagePack (integers have 64 bits)", where)
    return value.data


def _json_tree(data: bytes, where: str) -> Any:
    try:
        return _json_any.decode(data)
    except msgspec.ValidationError as error:
        raise InvalidRequest(Fault(detail=explain(error)[0], pointer=where)) from None
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
        raise InvalidState("a $ word holds text that is not base64", where) from None


def _pair(content: Any, first_type: type[T], where: str) -> tuple[T, bytes]:
    if not (isinstance(content, list) and len(content) == 2 and isinstance(content[0], first_type)):
        raise InvalidState("$ext must be [code, base64] and $encoded [encoding, base64]", where)
    return content[0], _base64(content[1], where)


def _from_markers(tree: Any, where: str) -> Any:
    if isinstance(tree, list):
        return [_from_markers(item, where) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((word, content),) = tree.items()
        if word in MARKERS:
            return _from_marker(word, content, where)
    return {name: _from_markers(item, where) for name, item in tree.items()}


def _from_marker(word: str, content: Any, where: str) -> Any:
    match word:
        case "$bytes":
            return _base64(content, where)
        case "$ext":
            code, data = _pair(content, int, where)
            if not -128 <= code <= 127 or isinstance(code, bool):
                raise InvalidState("the code of $ext must be -128 to 127", where)
            return Ext(code, data)
        case "$float" if isinstance(content, str) and content in _FLOATS:
            return _FLOATS[content]
        case "$map" if isinstance(content, list) and all(isinstance(p, list) and len(p) == 2 for p in content):
            pairs = [(_frozen(_from_markers(key, where)), _from_markers(item, where)) for key, item in content]
            try:
                return dict(pairs)
            except TypeError:
                raise InvalidState("a map cannot be the key of a map", where) from None
        case _:
            raise InvalidState(f"{word} is reserved and does not hold what it should here", where)


def _frozen(tree: Any) -> Any:
    return tuple(_frozen(item) for item in tree) if isinstance(tree, list) else tree


# --- channel values: out --------------------------------------------------------------------------


def value_out(name: Format, value: Value) -> Raw:
    """A channel as the ``state`` view shows it; what cannot be shown plainly comes as ``$encoded``."""
    plain = _json_out(value) if name == "json" else _msgpack_out(value)
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
            return _encode_msgpack(_json_any.decode(value.data))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError):
        pass
    return None


def _json_out(value: Value) -> bytes | None:
    try:
        if value.encoding == "msgpack":
            tree = msgpack.unpackb(
                value.data,
                raw=False,
                strict_map_key=False,
                use_list=False,
                timestamp=0,
                ext_hook=msgpack.ExtType,
            )
            return _encode_json(_to_json(tree))
        if value.encoding == "json":
            _json_any.decode(value.data)
            return value.data
    except (
        msgspec.DecodeError,
        msgpack.UnpackException,
        ValueError,
        TypeError,
        OverflowError,
        RecursionError,
    ):
        pass
    return None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _to_json(tree: Any) -> Any:
    match tree:
        case None | bool() | int() | str():
            return tree
        case float():
            if math.isfinite(tree):
                return tree
            return {"$float": "nan" if math.isnan(tree) else "inf" if tree > 0 else "-inf"}
        case bytes():
            return {"$bytes": _text(tree)}
        case msgpack.ExtType():
            return {"$ext": [tree.code, _text(tree.data)]}
        case msgpack.Timestamp():
            return {"$ext": [-1, _text(tree.to_bytes())]}
        case tuple():
            return [_to_json(item) for item in tree]
        case dict():
            return _map_to_json(tree)
        case _:
            raise TypeError


def _map_to_json(tree: dict[Any, Any]) -> Any:
    names = {_name(key): _to_json(item) for key, item in tree.items()}
    if None in names or len(names) < len(tree) or (len(names) == 1 and not names.keys().isdisjoint(MARKERS)):
        return {"$map": [[_to_json(key), _to_json(item)] for key, item in tree.items()]}
    return names


def _name(key: Any) -> str | None:
    match key:
        case str():
            return key
        case None:
            return "null"
        case bool():
            return "true" if key else "false"
        case int() | float():
            return repr(key)
        case _:
            return None
