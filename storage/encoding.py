"""MessagePack and JSON by msgspec, where having no memory left is a `MemoryError` and not the end of the process.

Owns every call of msgspec in gateway and storage that, as of 0.22, ends the process with SIGSEGV when the system gives
no more memory (RLIMIT_AS, vm.overcommit_memory=2):

- ``encode`` lets go of its bytes object twice when that cannot grow. ``encode_into`` grows a bytearray, which stays
  whole, so everything is encoded so. The copy at its end costs no time at 10 KB: a bytearray grows faster.
- Decoding JSON writes ASCII texts without asking whether there was room for them. So room for all that the text can
  become is taken and given back before; no other thread makes objects in between, as the interpreter's lock is kept.

Decoding MessagePack, ``convert``, ``to_builtins`` and ``msgspec.json.format`` raise what they should. How much memory
is used is not bounded here.
"""

import mmap
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, overload

import msgspec
from msgspec import Raw

T = TypeVar("T")

JSON_VALUES_MAX: Final = 200_000
"""How many values one text has at most: containers, leaves, names of members."""

# The most that CPython took: 85 bytes a value ({"a":{}}, and lists and maps that had just grown), and 6.5 for each byte
# of a text with an escape whose last character widens all others.
_VALUE_BYTES: Final = 128
_ASCII_BYTES: Final = 3
_UNICODE_BYTES: Final = 8
# What threads take meanwhile that do not hold the lock, and the steps in which the system gives memory.
_BESIDE_BYTES: Final = 8 * 1024 * 1024
SMALL_BYTES: Final = 16 * 1024
"""Of fewer bytes come small objects, for which there is room between others; so the system is not asked."""

_OWN: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def _encoder(encode_into: Callable[[Any, bytearray], None]) -> Callable[[Any], bytes]:
    def encode(content: Any) -> bytes:
        buffer = bytearray()
        encode_into(content, buffer)
        return bytes(buffer)

    return encode


def json_encoder(
    *, enc_hook: Callable[[Any], Any] | None = None, order: Literal["deterministic"] | None = None
) -> Callable[[Any], bytes]:
    """What writes values as JSON; the arguments are those of `msgspec.json.Encoder`."""
    return _encoder(msgspec.json.Encoder(enc_hook=enc_hook, order=order).encode_into)


encode_json: Final = json_encoder()
encode_msgpack: Final = _encoder(msgspec.msgpack.Encoder().encode_into)
encode_small_json: Final = msgspec.json.Encoder().encode
"""As `encode_json`, for what is written value by value, each of less than `SMALL_BYTES`."""


def json_decoder(shape: type[T]) -> Callable[[bytes | Raw | str], T]:
    """What reads JSON as a ``shape``. It raises what msgspec does, and `MemoryError`."""
    decode = msgspec.json.Decoder(shape).decode

    def decode_with_room(text: bytes | Raw | str) -> T:
        _make_room(text)
        return decode(text)

    return decode_with_room


@overload
def decode_json(text: bytes | Raw | str) -> Any: ...


@overload
def decode_json(text: bytes | Raw | str, shape: type[T]) -> T: ...


def decode_json(text: bytes | Raw | str, shape: Any = Any) -> Any:
    """Read JSON once as a ``shape``; see `json_decoder`."""
    _make_room(text)
    return msgspec.json.decode(text, type=shape)


def _make_room(text: bytes | Raw | str) -> None:
    """Make sure that the system gives what decoding ``text`` takes at most.

    Raises:
        MemoryError: it does not.
    """
    size = len(text)
    if size < SMALL_BYTES:
        return
    each = _ASCII_BYTES if not isinstance(text, Raw) and text.isascii() else _UNICODE_BYTES
    room_bytes = size * each + min(size, JSON_VALUES_MAX) * _VALUE_BYTES + _BESIDE_BYTES
    try:
        # A mapping that is never touched takes one or two microseconds, however large; a bytearray would be written.
        mmap.mmap(-1, room_bytes, _OWN)
    except OSError:
        raise MemoryError from None
