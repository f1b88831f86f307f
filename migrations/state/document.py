"""State as the steps see it: named channels, decoded only where a step looks.

Owns the way between a channel's stored bytes and a tree of dicts, lists and scalars. A channel that no step touches
keeps its exact bytes, also when it is renamed or copied. Inside a channel that is touched, extension values stay the
opaque `msgpack.ExtType` they were and single-precision floats stay single. It instantiates nothing. Beside ``msgpack``
and ``json`` it knows ``null`` and ``bytes``, in which LangGraph stores what their names say; channels of any other
encoding can be moved, but not looked into.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from migrations.state.errors import PathFault

DEPTH_MAX: Final = 64
# What a step may make of a state: more is refused before it is built. As large as a request's body.
BYTES_MAX: Final = 64 * 1024 * 1024
# What all declarative steps of one conversion may look at and build together, in values: some seconds of work.
WORK_MAX: Final = 4_000_000

ABSENT: Final = object()
_ENCODINGS: Final = frozenset({"msgpack", "json", "null", "bytes"})


class Single(float):
    """A float that was stored in 32 bits, and is again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A channel as it is stored."""

    encoding: str
    data: bytes


class Allowance:
    """How much work the declarative steps of one conversion may still do."""

    __slots__ = ("work_left",)

    def __init__(self) -> None:
        self.work_left = WORK_MAX


class Channel:
    """One channel: its bytes, its tree, or both. A tree is never changed in place; `Document.put` replaces it."""

    __slots__ = ("_encoded", "_tree")

    def __init__(self, encoded: Encoded | None = None, tree: Any = ABSENT) -> None:
        self._encoded = encoded
        self._tree = tree

    def tree(self, name: str) -> Any:
        """The decoded value.

        Raises:
            PathFault: the encoding is opaque, or the bytes are not of it.
        """
        if self._tree is ABSENT:
            assert self._encoded is not None  # noqa: S101  for the type checker: one of the two is there
            self._tree = _decode(self._encoded, name)
        return self._tree

    def whole(self, name: str) -> Any:
        """The decoded value, or the stored form where its encoding is opaque.

        Raises:
            PathFault: the bytes are not of the encoding.
        """
        if self._encoded is not None and self._encoded.encoding not in _ENCODINGS:
            return self._encoded
        return self.tree(name)

    def size_min(self, enough: int) -> int:
        """A size that the stored form does not fall below; counting ends beyond ``enough``.

        What occurs in several places is one object in a tree, but is written as often as it occurs.
        """
        return _size_min(self._tree, enough) if self._encoded is None else len(self._encoded.data)

    def encoded(self, name: str) -> Encoded:
        """The stored form: the original bytes if the channel was never replaced.

        Raises:
            PathFault: the value has no encoding.
        """
        if self._encoded is None:
            self._encoded = Encoded("msgpack", _encode(self._tree, name))
        return self._encoded


class Document:
    """The channels of one state, by name, in order."""

    __slots__ = ("_channels", "allowance")

    def __init__(self, channels: Mapping[str, Channel], allowance: Allowance | None = None) -> None:
        self._channels = dict(channels)
        self.allowance = allowance or Allowance()

    @classmethod
    def of(cls, state: Mapping[str, Encoded]) -> "Document":
        """A document of stored channels."""
        return cls({name: Channel(encoded=encoded) for name, encoded in state.items()})

    def encoded(self) -> dict[str, Encoded]:
        """All channels in their stored form.

        Raises:
            PathFault: a value has no encoding, or the state has grown out of bounds.
        """
        left = BYTES_MAX
        for channel in self._channels.values():
            left -= channel.size_min(left)
            if left < 0:
                raise PathFault(f"the state grew beyond {BYTES_MAX} bytes")
        state = {name: channel.encoded(name) for name, channel in self._channels.items()}
        if sum(len(each.data) for each in state.values()) > BYTES_MAX:
            raise PathFault(f"the state grew beyond {BYTES_MAX} bytes")
        return state

    def trees(self) -> dict[str, Any]:
        """All channels decoded: what a Python step gets. One that cannot be looked into is its `Encoded`, to be moved.

        Raises:
            PathFault: a channel's bytes are not of its encoding.
        """
        return {name: channel.whole(name) for name, channel in self._channels.items()}

    def replaced_by(self, state: Mapping[str, Any]) -> "Document":
        """The document that a Python step's result is; a value that is the same object keeps its bytes."""
        by_identity = {id(channel.whole(name)): channel for name, channel in self._channels.items()}
        return Document(
            {
                name: found
                if (found := by_identity.get(id(value))) is not None and isinstance(value, dict | list | Encoded)
                else _same_scalar(self._channels.get(name), name, value) or Channel(tree=value)
                for name, value in state.items()
            },
            self.allowance,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._channels)

    def get(self, name: str) -> Channel | None:
        """A channel, or None."""
        return self._channels.get(name)

    def put(self, name: str, channel: Channel) -> None:
        """Add or replace a channel."""
        self._channels[name] = channel

    def remove(self, name: str) -> None:
        """Remove a channel if it is there."""
        self._channels.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        """Rename a channel; it keeps its place in the order, and its bytes."""
        self._channels = {(new if name == old else name): each for name, each in self._channels.items()}

    def copy(self) -> "Document":
        """Another document of the same channels."""
        return Document(self._channels, self.allowance)


_CONTAINERS: Final = (dict, list)
_SCALARS: Final = frozenset({str, int, float, bool, bytes, type(None), msgpack.ExtType})
_TEXTS: Final = (str, bytes)


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS)


def _same_scalar(channel: Channel | None, name: str, value: Any) -> Channel | None:
    """The channel itself, if a step left its scalar as it was."""
    if channel is None or _is_container(value):
        return None
    before = channel.whole(name)
    return channel if type(before) is type(value) and before == value else None


def _decode(encoded: Encoded, name: str) -> Any:
    pointer = "/" + escape(name)
    try:
        if encoded.encoding == "msgpack":
            return _check_depth(_Reader(encoded.data).read(), pointer)
        if encoded.encoding == "json":
            return _check_depth(json.loads(encoded.data), pointer)
        if encoded.encoding == "null":
            return None
        if encoded.encoding == "bytes":
            return encoded.data
    except (ValueError, RecursionError, msgpack.UnpackException, struct.error):
        raise PathFault("the channel's bytes are not what its encoding says", pointer) from None
    except TypeError:  # nothing that a client can make as a list or map is hashed
        raise PathFault(
            "a map in the channel has a list or a map as a key, which steps cannot look into", pointer
        ) from None
    raise PathFault(f"a channel of encoding {encoded.encoding!r} cannot be looked into", pointer)


class _Reader:
    """msgpack into trees; only single-precision floats need more than the library gives."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> Any:
        data = self._data
        tree = msgpack.unpackb(
            data, raw=False, strict_map_key=False, ext_hook=msgpack.ExtType, use_list=True, timestamp=0
        )
        # 0xca announces a single float, or is part of something else: then what was read is written as it stood.
        return tree if b"\xca" not in data or msgpack.packb(tree, use_bin_type=True) == data else _exact(data)


def _exact(data: bytes) -> Any:
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=False, ext_hook=msgpack.ExtType, max_buffer_size=max(len(data), 1)
    )
    unpacker.feed(data)

    def one() -> Any:
        at = unpacker.tell()
        first = data[at]
        if first == 0xCA:
            return Single(unpacker.unpack())
        if first & 0xF0 == 0x90 or first in {0xDC, 0xDD}:
            return [one() for _ in range(unpacker.read_array_header())]
        if first & 0xF0 == 0x80 or first in {0xDE, 0xDF}:
            return {one(): one() for _ in range(unpacker.read_map_header())}
        return unpacker.unpack()

    return one()


def _check_depth(tree: Any, pointer: str) -> Any:
    level = [tree] if isinstance(tree, _CONTAINERS) else []
    for _ in range(DEPTH_MAX):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return tree
    raise PathFault(f"nested deeper than {DEPTH_MAX} levels", pointer)


def _size_min(tree: Any, enough: int) -> int:
    size = 1 + (len(tree) if isinstance(tree, str | bytes) else 0)
    # No deeper than the tree, however often its parts occur in it.
    waiting: list[Iterator[Any]] = [iter((tree,))] if isinstance(tree, _CONTAINERS) else []
    while waiting and size <= enough:
        each = next(waiting[-1], None)
        if each is None:
            waiting.pop()
            continue
        values = each.values() if isinstance(each, dict) else each
        size += len(values)
        types = set(map(type, values))
        if not types.isdisjoint(_TEXTS):
            size += sum(len(value) for value in values if isinstance(value, str | bytes))
        if not types <= _SCALARS:
            waiting.append(iter([value for value in values if isinstance(value, _CONTAINERS)]))
    return size


def _default(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def _encode(tree: Any, name: str) -> bytes:
    pointer = "/" + escape(name)
    _check_depth(tree, pointer)
    try:
        if not _holds_single(tree):
            return msgpack.packb(tree, use_bin_type=True, default=_default)  # type: ignore[no-any-return]
        packer = msgpack.Packer(use_bin_type=True, autoreset=False, default=_default)
        parts = bytearray()
        _write(tree, parts, packer)
        return bytes(parts)
    except (TypeError, ValueError, OverflowError):
        raise PathFault("a step made a value that cannot be stored", pointer) from None


def _holds_single(tree: Any) -> bool:
    if isinstance(tree, Single):
        return True
    level = [tree] if isinstance(tree, _CONTAINERS) else []
    while level:
        after: list[Any] = []
        for each in level:
            values: Any = each
            if isinstance(each, dict):
                values = each.values()
                if Single in map(type, each):
                    return True
            types = set(map(type, values))
            if Single in types:
                return True
            if not types <= _SCALARS:
                after += [child for child in values if isinstance(child, _CONTAINERS)]
        level = after
    return False


def _write(tree: Any, parts: bytearray, packer: msgpack.Packer) -> None:
    if isinstance(tree, Single):
        parts += struct.pack(">Bf", 0xCA, tree)
        return
    if isinstance(tree, list | tuple) and not isinstance(tree, msgpack.ExtType):
        packer.pack_array_header(len(tree))
        parts += _taken(packer)
        for each in tree:
            _write(each, parts, packer)
        return
    if isinstance(tree, dict):
        packer.pack_map_header(len(tree))
        parts += _taken(packer)
        for key, each in tree.items():
            _write(key, parts, packer)
            _write(each, parts, packer)
        return
    packer.pack(tree)
    parts += _taken(packer)


def _taken(packer: msgpack.Packer) -> bytes:
    taken: bytes = packer.bytes()
    packer.reset()
    return taken


def escape(token: str) -> str:
    """A reference token of a JSON Pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")
