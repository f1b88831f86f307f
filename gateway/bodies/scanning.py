"""What a body would cost, found out before anything is made of it.

Owns the one look at a client's bytes that comes before every parser: how deep containers nest, how many values there
are, how much of a JSON text is not in strings, and whether a JSON object names a member twice. Each function is a
generator that yields whenever it has looked at a slice, so that its caller can let others go first. The time is linear
in the bytes: no pattern here gives back what it matched. Memory is what names the open objects have.

It does not promise that the bytes are valid: the parser says so. What it counts is exact for those that are.
"""

import re
from collections.abc import Generator, Iterator
from typing import Final, Literal

import msgspec
from msgspec import Raw

from gateway.admission import limits
from storage.encoding import encode_json, json_decoder
from storage.errors import LimitExceeded

Format = Literal["json", "msgpack"]

SLICE_BYTES: Final = 16 * 1024  # of JSON text looked at in one go: a token may be a byte
SLICE_VALUES: Final = 12_000  # of MessagePack in one slice
_SLICE_COST: Final = 8_000  # of JSON in one slice, some 5 ms: two for a value, one for `_BYTES_AS_ONE` of text
_BYTES_AS_ONE: Final = 64
TEXT_SLICE_BYTES: Final = 64 * 1024  # of one text or number

_TEXT, _BEGUN_TEXT, _OPENS, _CLOSES = range(1, 5)  # groups of the pattern; none of them: a number or a word
_TOKEN = re.compile(rb'("(?:[^"\\]++|\\.)*+")|(")|([\[{])|([\]}])|[^\s,:"\[\]{}]++', re.DOTALL)
_decode_text = json_decoder(str)
_REST_OF_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_REST_OF_WORD = re.compile(rb'[^\s,:"\[\]{}]*+')

# Bytes that follow the first byte of a MessagePack value of fixed size.
FIXED: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2,
    0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
# Bytes of the length that follows the first byte, and bytes beside the content (an extension's code).
SIZED: Final = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0),
    0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
# Bytes of the count that follows the first byte, and values for each element.
CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_NOT_CONTAINERS = bytes(set(range(256)) - set(range(0x80, 0xA0)) - set(CONTAINERS))


class NamedTwice(Exception):
    """A JSON object names a member twice."""


class Values:
    """How many values were counted in all parts of one request.

    A value is whatever a parser makes an object of: a container, a leaf, the name of a member. Each takes a byte.

    Args:
        size_bytes: How long the parts are together. Where that is no more than there may be values, MessagePack is not
            counted.
    """

    __slots__ = ("can_be_too_many", "count")

    def __init__(self, size_bytes: int) -> None:
        self.can_be_too_many = size_bytes > limits.VALUES_MAX
        self.count = 0

    def add(self, count: int) -> None:
        """Count ``count`` more.

        Raises:
            LimitExceeded: they are more than `limits.VALUES_MAX`.
        """
        self.count += count
        if self.count > limits.VALUES_MAX:
            raise LimitExceeded("VALUES_MAX", limits.VALUES_MAX)


def scan(
    name: Format, data: bytes | Raw, values: Values, *, depth_max: int | None = limits.DEPTH_MAX
) -> Iterator[None]:
    """Look at ``data``, and yield after each slice of it.

    Args:
        name: The text's format.
        data: One value.
        values: The counter of its values.
        depth_max: How deep containers may nest. None: as they like, and JSON may name members twice.

    Raises:
        LimitExceeded: it nests too deep (``DEPTH_MAX``), has too many values (``VALUES_MAX``), or too much of it is
            neither text nor binary (``TREE_BYTES_MAX``).
        NamedTwice: a JSON object names a member twice.
    """
    return _JsonScan(bytes(data), values, depth_max).run() if name == "json" else _scan_msgpack(data, values, depth_max)


# --- JSON ---------------------------------------------------------------------------------------------------------


class _JsonScan:
    """One look at one text."""

    def __init__(self, data: bytes, values: Values, depth_max: int | None) -> None:
        self._data = data
        self._values = values
        self._depth_max = depth_max
        self._outer: list[set[bytes] | None] = []  # what the containers around have named; None: a list names nothing
        self._names: set[bytes] | None = None  # and the one at hand
        self._is_name = False  # whether the next token is a name
        self._count = 0
        self._text_bytes = 0
        self._cost = 0

    def run(self) -> Iterator[None]:
        data, at = self._data, 0
        while at < len(data):
            end = at + SLICE_BYTES
            begun = None
            for token in _TOKEN.finditer(data, at, end):
                kind = token.lastindex
                start, stop = token.span()
                if kind == _BEGUN_TEXT or (kind is None and stop == end):
                    begun = start
                    break
                self._take(kind, start, stop)
            if begun is None:
                at = end
            elif begun > at:
                at = begun  # it goes on behind this slice: the next one begins with it
            else:
                at = yield from self._end(_REST_OF_TEXT if kind == _BEGUN_TEXT else _REST_OF_WORD, begun + 1)
                self._take(_TEXT if kind == _BEGUN_TEXT else None, begun, at)
            self._values.add(self._count)
            self._cost += 2 * self._count + SLICE_BYTES // _BYTES_AS_ONE
            self._count = 0
            if min(at, len(data)) - self._text_bytes > limits.TREE_BYTES_MAX:
                raise LimitExceeded("TREE_BYTES_MAX", limits.TREE_BYTES_MAX)
            if self._cost >= _SLICE_COST:
                self._cost = 0
                yield

    def _take(self, kind: int | None, start: int, stop: int) -> None:
        if kind == _OPENS:
            self._count += 1
            self._outer.append(self._names)
            if self._depth_max is not None and len(self._outer) > self._depth_max:
                raise LimitExceeded("DEPTH_MAX", self._depth_max)
            self._names = set() if self._data[start] == 0x7B else None
        elif kind == _CLOSES:
            self._names = self._outer.pop() if self._outer else None
        else:
            self._count += 1
            if kind == _TEXT:
                self._text_bytes += stop - start
                if self._is_name:
                    self._name(self._data[start:stop])
                    self._is_name = False
                    return
        self._is_name = self._names is not None

    def _name(self, token: bytes) -> None:
        assert self._names is not None  # noqa: S101  for the type checker: names are in objects
        if b"\\" in token:  # one name has many spellings
            try:
                token = encode_json(_decode_text(token))
            except (msgspec.DecodeError, UnicodeDecodeError):
                return
        before = len(self._names)
        self._names.add(token)
        if len(self._names) == before and self._depth_max is not None:
            raise NamedTwice

    def _end(self, rest: re.Pattern[bytes], at: int) -> Generator[None, None, int]:
        """Where the token ends that is longer than a slice."""
        data = self._data
        while at < len(data):
            match = rest.match(data, at, at + TEXT_SLICE_BYTES)
            stop = at if match is None else match.end()
            if stop < min(at + TEXT_SLICE_BYTES - 1, len(data)):  # the last byte can be half of an escape
                return stop + 1 if data[stop] == 0x22 else stop
            if stop == at:
                break
            at = stop
            yield
        return len(data)


# --- MessagePack --------------------------------------------------------------------------------------------------


def _scan_msgpack(  # noqa: C901, PLR0912  one branch a row of the format
    body: bytes | Raw, values: Values, depth_max: int | None
) -> Iterator[None]:
    data = bytes(body)
    deep_max = len(data) if depth_max is None else depth_max
    if not values.can_be_too_many and len(data.translate(None, _NOT_CONTAINERS)) <= deep_max:
        return
    levels: list[int] = []  # values still to come at each outer level
    left = 1  # and at this one
    at = 0
    count = 0
    try:
        while True:
            if not left:
                if not levels:
                    break
                left = levels.pop()
                continue
            left -= 1
            first = data[at]
            at += 1
            count += 1
            if count == SLICE_VALUES:
                values.add(count)
                count = 0
                yield
            if 0xA0 <= first < 0xC0:  # the commonest first: short strings, small integers
                at += first & 0x1F
                continue
            if first < 0x80 or first >= 0xE0:
                continue
            if first < 0xA0:
                members = (first & 0x0F) * (1 if first >= 0x90 else 2)
            elif first in FIXED:
                at += FIXED[first]
                continue
            elif first in SIZED:
                width, more = SIZED[first]
                at += width + more + int.from_bytes(data[at : at + width])
                continue
            else:
                width, each = CONTAINERS[first]
                members = each * int.from_bytes(data[at : at + width])
                at += width
            levels.append(left)
            left = members
            if len(levels) > deep_max:
                raise LimitExceeded("DEPTH_MAX", deep_max)
    except (IndexError, KeyError):
        pass
    values.add(count)
