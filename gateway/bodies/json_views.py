"""A stored MessagePack value as JSON text, in slices and without a tree.

Owns the way from tokens to text: each value is written when it is met, and only where a map begins and where its keys
stand is decided when the map ends, because only then is it known whether JSON can say it (see `gateway.bodies.codec`).
No key is hashed but as the text that it becomes. Time and memory are linear in the value's bytes and values.
"""

import base64
import math
import struct
from typing import Final

from gateway.admission import limits
from gateway.admission.slices import Work, joined
from gateway.bodies.scanning import CONTAINERS, FIXED, SIZED
from storage.encoding import SMALL_BYTES, encode_json, encode_small_json

MARKERS: Final = frozenset({"$bytes", "$ext", "$float", "$map", "$encoded"})
NESTING_MAX: Final = 500  # what is nested deeper, no JSON parser of a client need read

_SLICE_COST: Final = 4096  # in values; so that a slice takes some 5 ms
_SLICE_PARTS: Final = 16_384  # put together in one slice
_BYTES_AS_A_VALUE: Final = 128
_LEAF_SLICE_BYTES: Final = 192 * 1024  # of a leaf in one call; a multiple of 3, so that base64 can go on

_MARKERS_JSON = frozenset(encode_json(each) for each in MARKERS)
_UNSIGNED = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_SIGNED = {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_WORDS = {0xC0: b"null", 0xC2: b"false", 0xC3: b"true"}
_FLOATS = {0xCA: struct.Struct(">f"), 0xCB: struct.Struct(">d")}
_BINARY = frozenset({0xC4, 0xC5, 0xC6})


class NotPlain(Exception):
    """The bytes are not one MessagePack value, or one that JSON cannot show even with words."""


class _Open:
    """A container whose end was not reached yet."""

    __slots__ = ("begins_at", "is_map", "keys", "left", "of_key")

    def __init__(self, left: int, begins_at: int, *, is_map: bool, of_key: bool) -> None:
        self.left = left  # values to come; a member of a map is two
        self.begins_at = begins_at  # the part that begins it
        self.is_map = is_map
        self.of_key = of_key  # whether it is in a key of a map
        self.keys: list[tuple[int, bytes | None, bytes]] = []  # which part, as a name if it can be one, as a value


def json_view(data: bytes) -> Work[bytes]:
    """``data`` as JSON.

    Raises:
        NotPlain: it cannot be shown so.
        AnswerTooLarge: its texts take more than an answer may.
    """
    writer = _Writer(data)
    try:
        yield from writer.run()
    except (IndexError, KeyError, UnicodeDecodeError, struct.error):
        raise NotPlain from None
    return (yield from _joined(writer.parts))


def _joined(parts: list[bytes]) -> Work[bytes]:
    """All parts as one; the parts are let go of meanwhile, because that takes as long."""
    while len(parts) > _SLICE_PARTS:
        together: list[bytes] = []
        while parts:
            together.append(b"".join(parts[-_SLICE_PARTS:]))
            del parts[-_SLICE_PARTS:]
            yield
        parts = together[::-1]
    return (yield from joined(parts))


class _Writer:
    def __init__(self, data: bytes) -> None:
        self.parts: list[bytes] = []
        self._data = data
        self._at = 0
        self._cost = 0
        self._room_bytes = limits.TENANT_HELD_BYTES_MAX

    def run(self) -> Work[None]:  # noqa: C901, PLR0912  one loop over tokens; a call for each would double its time
        """Write all parts."""
        data, parts = self._data, self.parts
        level = _Open(1, -1, is_map=False, of_key=False)
        outer: list[_Open] = []
        while True:
            if not level.left:
                if not outer:
                    break
                yield from self._close(level)
                level = outer.pop()
                if level.is_map and level.left % 2:
                    parts.append(b",")  # that was a key
                continue
            self._cost += 1
            if self._cost > _SLICE_COST:
                self._cost = 0
                yield
            level.left -= 1
            is_key = level.is_map and level.left % 2 == 1
            first = data[self._at]
            opened = self._opened(first)
            if opened is None:
                if is_key:
                    name, text = self._scalar(first)
                    level.keys.append((len(parts), name, text))
                    parts.append(b"")
                    continue
                if not level.is_map and len(parts) > level.begins_at + 1:
                    parts.append(b",")
                start, end = self._extent(first)
                if end - start > _LEAF_SLICE_BYTES:
                    yield from self._large(first, start, end)
                else:
                    parts.append(self._scalar(first)[1])
                continue
            of_key = is_key or level.of_key
            is_map, members = opened
            if (is_map and of_key) or len(outer) > NESTING_MAX:
                raise NotPlain
            if is_key:
                parts.append(b"],[" if len(parts) > level.begins_at + 1 else b"[")
                level.keys.append((-1, None, b""))
            elif not level.is_map and len(parts) > level.begins_at + 1:
                parts.append(b",")
            outer.append(level)
            level = _Open(members, len(parts), is_map=is_map, of_key=of_key)
            parts.append(b"" if is_map else b"[")
        if self._at != len(data):
            raise NotPlain

    def _opened(self, first: int) -> tuple[bool, int] | None:
        """Whether a container is a map, and how many values are in it; None: it is none."""
        if 0x80 <= first < 0xA0:
            self._at += 1
            return (True, 2 * (first & 0x0F)) if first < 0x90 else (False, first & 0x0F)
        if first not in CONTAINERS:
            return None
        width, each = CONTAINERS[first]
        count = int.from_bytes(self._data[self._at + 1 : self._at + 1 + width])
        self._at += 1 + width
        return each == 2, each * count

    def _close(self, level: _Open) -> Work[None]:
        """Write the end of a container, and what of a map was left open."""
        parts = self.parts
        if not level.is_map:
            parts.append(b"]")
            return
        names = {name for _, name, _ in level.keys}
        plain = None not in names and len(names) == len(level.keys)
        if len(names) == 1 and not names.isdisjoint(_MARKERS_JSON):
            plain = False
        parts[level.begins_at] = b"{" if plain else b'{"$map":['
        for number, (at, name, text) in enumerate(level.keys):
            if plain and name is not None:
                parts[at] = (b"," if number else b"") + name + b":"
            elif at >= 0:
                parts[at] = (b"],[" if number else b"[") + text + b","
            if number % _SLICE_COST == _SLICE_COST - 1:
                yield
        parts.append(b"}" if plain else b"]]}")

    def _extent(self, first: int) -> tuple[int, int]:
        """Where the content of a leaf begins, and where it ends.

        Raises:
            NotPlain: the data ends before.
        """
        at = self._at + 1
        if first < 0x80 or first >= 0xE0:
            return at, at
        if first < 0xC0:
            start, size = at, first & 0x1F
        elif first in SIZED:
            width, more = SIZED[first]
            start, size = at + width + more, int.from_bytes(self._data[at : at + width])
        else:
            extension = 0xD4 <= first <= 0xD8
            start, size = at + extension, FIXED[first] - extension
        if start + size > len(self._data):
            raise NotPlain
        return start, start + size

    def _scalar(self, first: int) -> tuple[bytes | None, bytes]:
        """A leaf as the name of a member, if it can be one, and as a value."""
        data = self._data
        start, end = self._extent(first)
        self._at = end
        self._cost += (end - start) // _BYTES_AS_A_VALUE
        if 0xA0 <= first < 0xC0 or 0xD9 <= first <= 0xDB:
            encode = encode_small_json if end - start < SMALL_BYTES else encode_json
            text = encode(data[start:end].decode())
            return text, text
        if first < 0x80 or first >= 0xE0:
            return _number(first if first < 0x80 else first - 256)
        if first in _UNSIGNED or first in _SIGNED:
            return _number(int.from_bytes(data[start:end], signed=first in _SIGNED))
        if first in _WORDS:
            return b'"%b"' % _WORDS[first], _WORDS[first]
        if first in _FLOATS:
            return _float(_FLOATS[first].unpack(data[start:end])[0])
        before, after = self._words(first, start)
        return None, before + base64.b64encode(data[start:end]) + after

    def _large(self, first: int, start: int, end: int) -> Work[None]:
        """Write a leaf that is too large for one call."""
        parts, data = self.parts, self._data
        self._at = end
        if first in SIZED and first < 0xD9:  # binary, or an extension's content
            before, after = self._words(first, start)
            parts.append(before)
            for at in range(start, end, _LEAF_SLICE_BYTES):
                parts.append(base64.b64encode(data[at : min(at + _LEAF_SLICE_BYTES, end)]))
                yield
            parts.append(after)
            return
        parts.append(b'"')
        at = start
        while at < end:
            stop = min(at + _LEAF_SLICE_BYTES, end)
            while stop < end and stop > at and data[stop] & 0xC0 == 0x80:
                stop -= 1  # not in the middle of a character
            if stop == at:
                raise NotPlain
            parts.append(encode_json(data[at:stop].decode())[1:-1])
            self._room_bytes -= len(parts[-1])  # one byte can be written as six
            if self._room_bytes < 0:
                raise limits.AnswerTooLarge
            at = stop
            yield
        parts.append(b'"')

    def _words(self, first: int, start: int) -> tuple[bytes, bytes]:
        """What is written around the base64 of a binary or of an extension's content."""
        if first in _BINARY:
            return b'{"$bytes":"', b'"}'
        code = int.from_bytes(self._data[start - 1 : start], signed=True)
        return b'{"$ext":[%d,"' % code, b'"]}'


def _number(number: int) -> tuple[bytes, bytes]:
    text = b"%d" % number
    return b'"%b"' % text, text


def _float(number: float) -> tuple[bytes, bytes]:
    name = f'"{number!r}"'.encode()
    if math.isfinite(number):
        return name, encode_small_json(number)
    word = "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"
    return name, f'{{"$float":"{word}"}}'.encode()
