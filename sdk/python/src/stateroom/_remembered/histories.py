"""Histories of delta channels: what the gateway gave last, so that it need only give what came since.

A graph with a ``DeltaChannel`` asks for the writes since its last snapshot whenever it is run, and nearly all of them
are those of the run before. They are kept as they came, together with the gateway's mark, and only the gateway says
whether they still hold: without its word nothing that is kept here is used. What is kept is bounded, and losing it
costs a longer answer and nothing else.

The history that was asked for last is asked for along with the next load of the head, and answers the next question for
it, once: it is of the same moment as the checkpoint. A gateway that is older than this cannot, and is asked apart.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from msgspec import UNSET, Struct
from msgspec.structs import replace

from stateroom._io.processes import PerProcess
from stateroom._protocol.wire import ChannelHistories, ChannelHistory
from stateroom._remembered.growth import NamespaceKey
from stateroom.errors import IntegrityFailure

BYTES_MAX = 32 * 1024 * 1024
# What a write takes beside its data, about.
_WRITE_BYTES = 500


class _Kept(Struct, frozen=True):
    """What was given, and about how much it takes; ``loaded_id``: the checkpoint it came with and was not asked for."""

    histories: ChannelHistories
    size_bytes: int
    loaded_id: str | None


class Histories:
    """The last histories of each thread and namespace; the least recently used go first. Threads may share it.

    Args:
        bytes_max: About how much is kept.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._lock = PerProcess(threading.Lock)
        self._namespaces: OrderedDict[NamespaceKey, _Kept] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._come_with_loads = True

    def at(self, key: NamespaceKey, channels: Iterable[str]) -> ChannelHistories | None:
        """What was given last, if it was of these channels; not to be changed."""
        with self._lock.mine():
            kept = self._namespaces.get(key)
            if kept is None or kept.histories.channels.keys() != {*channels}:
                return None
            self._namespaces.move_to_end(key)
            return kept.histories

    def for_load(self, key: NamespaceKey) -> ChannelHistories | None:
        """What was given last, if a load of the head can ask for what came since; not to be changed."""
        with self._lock.mine():
            kept = self._namespaces.get(key)
            return kept.histories if kept is not None and self._come_with_loads else None

    def refuse_loads(self) -> None:
        """Remember that the gateway gives no histories with loads."""
        self._come_with_loads = False

    def take(self, key: NamespaceKey, channels: Iterable[str], checkpoint_id: str | None) -> ChannelHistories | None:
        """What came with the load of this checkpoint, if it was of these channels, once; not to be changed."""
        with self._lock.mine():
            kept = self._namespaces.get(key)
            if kept is None or kept.loaded_id is None or kept.loaded_id != checkpoint_id:
                return None
            if kept.histories.channels.keys() != {*channels}:
                return None
            self._namespaces[key] = replace(kept, loaded_id=None)
            self._namespaces.move_to_end(key)
            return kept.histories

    def keep(self, key: NamespaceKey, histories: ChannelHistories, loaded_id: str | None = None) -> None:
        """Keep what was given, in place of what was given before; ``loaded_id``: with the load of this checkpoint."""
        size = sum(map(_size, histories.channels.values()))
        with self._lock.mine():
            before = self._namespaces.pop(key, None)
            self._bytes -= 0 if before is None else before.size_bytes
            if histories.mark is None or size > self._bytes_max:
                return
            self._namespaces[key] = _Kept(histories, size, loaded_id)
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._bytes -= self._namespaces.popitem(last=False)[1].size_bytes


def joined(before: ChannelHistories | None, answer: ChannelHistories) -> ChannelHistories:
    """An answer, put behind what was given before where it goes on from there.

    Raises:
        IntegrityFailure: It goes on from what was never given.
    """
    earlier: Mapping[str, ChannelHistory] = {} if before is None else before.channels
    channels = {}
    for name, each in answer.channels.items():
        if not each.continues:
            channels[name] = each
        elif name in earlier:
            channels[name] = ChannelHistory(writes=earlier[name].writes + each.writes, seed=earlier[name].seed)
        else:
            raise IntegrityFailure("a history goes on from one that was not given")
    return ChannelHistories(channels=channels, mark=answer.mark)


def _size(history: ChannelHistory) -> int:
    seed = 0 if history.seed is UNSET else len(history.seed.data)
    return seed + sum(_WRITE_BYTES + len(each.data) for each in history.writes)
