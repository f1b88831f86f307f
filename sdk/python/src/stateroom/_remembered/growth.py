"""Lists that only grew: what was sent of them before need not be sent again.

After a save that the gateway acknowledged, this module remembers of each long list how many elements it had and the
digest of their bytes. When the next value of the list begins with exactly these bytes, only the elements after them are
sent, and which version of the parent's channel they follow. Nothing else is kept of a value. Losing what is remembered,
or being wrong about it, costs a transfer and nothing else: the gateway compares the version and says when it cannot
append.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping

from msgspec import Struct

from stateroom._io.processes import PerProcess
from stateroom._protocol.core import Pinned
from stateroom._protocol.wire import ChannelIn, Version
from stateroom._remembered.pieces import large_leaves, owner_tag

# A shorter list is stored inside its checkpoint anyway.
LIST_BYTES_MIN = 4 * 1024
NAMESPACES_MAX = 1024

NamespaceKey = tuple[bytes, str, str]


class Sent(Struct, frozen=True):
    """A list as the gateway has it: the channel's version, and how many elements of how many bytes with what digest."""

    version: Version
    count: int
    length: int
    digest: bytes


class _Checkpoint(Struct, frozen=True):
    """Lists by channel. ``refused``: the gateway did not append to one although its parent was saved from here."""

    checkpoint_id: str
    lists: dict[str, Sent]
    refused: bool = False


class Growth:
    """What was sent last to each thread and namespace; the least recently used go first. Threads may share it.

    Args:
        namespaces_max: How many threads and namespaces are remembered.
    """

    def __init__(self, namespaces_max: int = NAMESPACES_MAX) -> None:
        self._lock = PerProcess(threading.Lock)
        self._namespaces: OrderedDict[NamespaceKey, _Checkpoint] = OrderedDict()
        self._namespaces_max = namespaces_max

    def at(self, key: NamespaceKey, checkpoint_id: str | None) -> Mapping[str, Sent]:
        """The lists of a checkpoint, if it is the one that was saved last."""
        with self._lock.mine():
            growth = self._namespaces.get(key)
            if growth is None or growth.refused or growth.checkpoint_id != checkpoint_id:
                return {}
            return growth.lists

    def note(self, key: NamespaceKey, checkpoint_id: str, lists: dict[str, Sent], *, first: bool) -> None:
        """Remember an acknowledged save; ``first``: it has no parent, so what was refused before does not count."""
        with self._lock.mine():
            growth = self._namespaces.get(key)
            if growth is None or first or not growth.refused:
                self._keep(key, _Checkpoint(checkpoint_id, lists))

    def refuse(self, key: NamespaceKey, checkpoint_id: str) -> None:
        """Remember that the gateway does not append here: its state version's JSON Schema wants whole lists, say."""
        with self._lock.mine():
            self._keep(key, _Checkpoint(checkpoint_id, {}, refused=True))

    def _keep(self, key: NamespaceKey, kept: _Checkpoint) -> None:
        self._namespaces[key] = kept
        self._namespaces.move_to_end(key)
        while len(self._namespaces) > self._namespaces_max:
            self._namespaces.popitem(last=False)


def namespace_key(pinned: Pinned, thread_id: str, namespace: str) -> NamespaceKey:
    """Under what a thread's namespace is remembered: what one subject sent is nothing another one appends to."""
    return owner_tag(pinned), thread_id, namespace


def grown(channel: ChannelIn, before: Sent | None) -> Sent | None:
    """Leave out of a channel what the gateway has of it.

    Args:
        channel: The channel with its whole value; changed in place if the value only grew.
        before: What is remembered of it in the parent.

    Returns:
        What to remember once the save is acknowledged. None: it is no long list, or has no version.
    """
    data, version = channel.data, channel.version
    if channel.encoding != "msgpack" or not isinstance(data, bytes) or version is None:
        return None
    header = list_header(data)
    if header is None or len(data) - header[1] < LIST_BYTES_MIN:
        return None
    count, start = header
    view = memoryview(data)
    digest = hashlib.sha256()  # processors have instructions for it
    end = start
    if before is not None and before.count <= count and before.length <= len(data) - start:
        end = start + before.length
        digest.update(view[start:end])
        if digest.digest() == before.digest:
            added = _write_header(count - before.count) + data[end:]
            # Elements with large leaves go as references, and those stand in whole values.
            if data.startswith(_write_header(count)) and not large_leaves(added):
                channel.data, channel.append_to = added, before.version
    digest.update(view[end:])
    return Sent(version, count, len(data) - start, digest.digest())


def joined_lists(data: bytes, more: bytes) -> bytes | None:
    """A MessagePack list with the elements of another one behind its own; ``None``: one of them is no list."""
    first, second = list_header(data), list_header(more)
    if first is None or second is None:
        return None
    return _write_header(first[0] + second[0]) + data[first[1] :] + more[second[1] :]


def list_header(data: bytes) -> tuple[int, int] | None:
    """How many elements a MessagePack list has, and where the first begins."""
    first = data[0] if data else 0
    if 0x90 <= first < 0xA0:
        return first & 0x0F, 1
    width = {0xDC: 2, 0xDD: 4}.get(first)
    if width is None or len(data) <= width:
        return None
    return int.from_bytes(data[1 : 1 + width], "big"), 1 + width


def _write_header(count: int) -> bytes:
    """The shortest header of a list, which the gateway writes, too."""
    if count < 1 << 4:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
