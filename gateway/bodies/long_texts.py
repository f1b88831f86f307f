"""The long texts of a JSON value, set aside while the rest of it is parsed, and written as MessagePack in slices.

Owns finding them, and the way of one from JSON to MessagePack without ever being looked at as a whole: a parser makes
an object of 32 MiB in one call, and no other request is answered meanwhile. Each stands in the rest as a random word,
which cannot be guessed and which is found again in what is made of the rest.
"""

import re
import secrets
from typing import Final

import msgspec

from gateway.admission.slices import Work, joined
from storage.encoding import json_decoder

LONG_TEXT_BYTES_MIN: Final = 256 * 1024
_SLICE_BYTES: Final = 64 * 1024
_BYTES_BEHIND_MAX: Final = 3  # of a character, behind its first

_TEXT = re.compile(rb'("(?:[^"\\]++|\\.)*+")|(")', re.DOTALL)
_BEGUN = 2  # the group of one that goes on behind a slice
_REST_OF_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# What can be decoded by itself: no escape is cut in two, nor a pair of them that is one character.
_WHOLE = re.compile(
    rb'(?:[^"\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*+',
    re.DOTALL,
)
_decode = json_decoder(str)


class LongTexts:
    """The long texts of a value.

    Attributes:
        rest: The value, with a word in the place of each.
    """

    def __init__(self, data: bytes, spans: list[tuple[int, int]]) -> None:
        self._data = data
        self._spans = spans
        nonce = secrets.token_hex(16)
        self._words = [f"{nonce}{number:08x}".encode() for number in range(len(spans))]
        parts = []
        at = 0
        for (start, end), word in zip(spans, self._words, strict=True):
            parts += [data[at:start], b'"', word, b'"']
            at = end
        self.rest = b"".join([*parts, data[at:]])

    def put_back(self, packed: bytes) -> Work[bytes]:
        """The MessagePack of the whole value, of that of the rest.

        Raises:
            UnicodeDecodeError, msgspec.DecodeError: a text is not valid.
        """
        places = []
        for span, word in zip(self._spans, self._words, strict=True):
            stored = b"\xd9" + bytes((len(word),)) + word
            places.append((packed.index(stored), len(stored), span))
        parts: list[bytes] = []
        at = 0
        for place, length, (start, end) in sorted(places):
            parts.append(packed[at:place])
            yield from self._written(start + 1, end - 1, parts)
            at = place + length
        parts.append(packed[at:])
        return (yield from joined(parts))

    def check(self) -> Work[None]:
        """Look at the texts of a value that is kept as it came.

        Raises:
            UnicodeDecodeError, msgspec.DecodeError: as `put_back`.
        """
        for start, end in self._spans:
            yield from self._written(start + 1, end - 1, [])

    def _written(self, start: int, end: int, parts: list[bytes]) -> Work[None]:
        data = self._data
        header = len(parts)
        parts.append(b"")
        size = 0
        at = start
        while at < end:
            stop = min(at + _SLICE_BYTES, end)
            if b"\\" in data[at:stop]:
                match = _WHOLE.match(data, at, stop)
                stop = at if match is None else match.end()
            if stop < end:
                behind = range(_BYTES_BEHIND_MAX + 1)
                stop -= next((back for back in behind if data[stop - back] & 0xC0 != 0x80), 0)
            if stop <= at:
                raise msgspec.DecodeError("an escape, or a character, does not end")
            parts.append(_decode(b'"' + data[at:stop] + b'"').encode())
            size += len(parts[-1])
            at = stop
            yield
        parts[header] = _header(size)


def set_aside(data: bytes) -> Work[LongTexts | None]:
    """Set the long texts of valid JSON aside; None: it has none."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        end = at + _SLICE_BYTES
        begun = None
        for match in _TEXT.finditer(data, at, end):
            if match.lastindex == _BEGUN:
                begun = match.start()
                break
        if begun is None:
            at = end
        elif begun > at:
            at = begun
        else:
            at = yield from _end(data, begun + 1)
            if at - begun >= LONG_TEXT_BYTES_MIN:
                spans.append((begun, at))
        yield
    return LongTexts(data, spans) if spans else None


def _end(data: bytes, at: int) -> Work[int]:
    """Where a text ends that is longer than a slice."""
    while at < len(data):
        match = _REST_OF_TEXT.match(data, at, at + _SLICE_BYTES)
        stop = at if match is None else match.end()
        if data[stop : stop + 1] == b'"':
            return stop + 1
        if stop == at:
            break
        at = stop
        yield
    return len(data)


def _header(size: int) -> bytes:
    if size < 1 << 5:
        return bytes((0xA0 | size,))
    if size < 1 << 8:
        return bytes((0xD9, size))
    return b"\xda" + size.to_bytes(2) if size < 1 << 16 else b"\xdb" + size.to_bytes(4)
