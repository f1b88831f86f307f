"""What this process remembers of threads it saved to, so that the next save can begin with its write.

A save stands on the thread's seal, the namespace's head and the head's checkpoint. A process that just saved knows all
three: `RememberedHeads` keeps them for the next one, which then writes under the condition that the stored seals are,
byte for byte, the remembered ones (`storage.statements.threads.checkpoints`). Nothing is ever answered from here: when
the condition fails, or a save would be refused, it starts over by reading. So a stale entry costs a round trip and
never a wrong head.

Writers of one thread take turns, as they would for its row's lock: a graph puts a task's writes and saves its next
checkpoint at the same moment, and the second of them stands on what the first one leaves.

It also remembers which heads it acknowledged, by their tokens, for as long: a head that is older than that is what a
stale replica or a backup has, or an older thread that was put back.

Entries hold what was opened: manifests with their small values, and the open tails of lists. They are as safe as the
open keys beside them, few, small, and not kept for long; what is under a client-held share is not kept at all.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Final

import msgspec

from crypto import Sealer
from storage.access.save_rules import SaveRules
from storage.concurrency.queues import FairQueue
from storage.errors import Unavailable
from storage.format.chain import HeadSeal, LiveSet, ThreadSeal
from storage.format.pieces import Cutter, Piece, unpack_ids
from storage.format.record import OpenedCheckpoint
from storage.format.token import ThreadToken
from storage.scope import Scope

ENTRIES_MAX: Final = 2048
INLINE_BYTES_MAX: Final = 64 * 1024
# Inline values and tails of one entry; an entry above it is kept without its tails. And of all entries together.
ENTRY_BYTES_MAX: Final = 128 * 1024
BYTES_MAX: Final = 128 * 1024 * 1024
PIECES_MAX: Final = 1024
# Checkpoints to come that have writes already; a graph has one.
EARLY_MAX: Final = 16
KEPT_SECONDS: Final = 300.0
# As long as for the lock of the thread's row, which is what a turn stands for.
TURN_SECONDS_MAX: Final = 5.0
# Heads that were acknowledged: some 300 bytes each.
ACKNOWLEDGED_MAX: Final = 20_000

# A scope, the version of its active keys, a thread and a namespace.
_HeadKey = tuple[Scope, int, str, str]


class RememberedHead(msgspec.Struct, frozen=True):
    """A thread and one of its namespaces as they were after a save: authenticated, and as they are stored.

    Attributes:
        thread_created_at: Bound into the thread's seal.
        thread_seal: The stored bytes of `thread`.
        thread: What they say.
        strict: Whether a save must say what it stands on.
        rules: What save policies say.
        head_id: The namespace's head.
        head_seal: The stored bytes of `head`.
        head: What they say.
        base: The head's checkpoint.
        pieces: Pieces that the head consists of, so that they are there as long as it is the head, and their children.
        tails: Plaintexts of pieces in the open tails of the head's list channels: what appending to one re-cuts.
        early: Pending writes that were put since, before their checkpoints, by its id: `write_mac`. None has a status.
        seen: The thread token that was given for it.
        token: Its text.
    """

    thread_created_at: datetime
    thread_seal: bytes
    thread: ThreadSeal
    strict: bool
    rules: SaveRules
    head_id: str
    head_seal: bytes
    head: HeadSeal
    base: OpenedCheckpoint
    pieces: Mapping[bytes, bytes | None]
    tails: Mapping[bytes, bytes]
    early: Mapping[str, LiveSet]
    seen: ThreadToken
    token: str

    def covers(self, cutter: Cutter, is_large: Callable[[Piece], bool]) -> bool:
        """Whether all that was cut is there or can be written along: placeholders' pieces are, and large ones are."""
        fresh = (each for each in cutter.pieces.values() if each.piece_id not in self.pieces)
        return cutter.referenced.keys() <= self.pieces.keys() and not any(map(is_large, fresh))


def _busy() -> Unavailable:
    return Unavailable("other writes to this thread take too long")


class RememberedHeads:
    """The heads that one process remembers, the least recently used of which go first."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kept: OrderedDict[_HeadKey, tuple[float, int, RememberedHead]] = OrderedDict()
        self._bytes = 0
        self._acknowledged: OrderedDict[tuple[Scope, str, str], tuple[float, ThreadToken]] = OrderedDict()
        # How many writers of a thread there are was counted where they were admitted.
        self._queue = FairQueue(1, None, TURN_SECONDS_MAX, _busy)

    def turn(self, scope: Scope, thread_id: str) -> AbstractAsyncContextManager[None]:
        """Be the only one of this process that writes to a thread, while the block runs.

        Raises:
            Unavailable: another write took too long.
        """
        return self._queue.turn((scope, thread_id))

    def take(self, scope: Scope, sealer: Sealer, thread_id: str, namespace: str) -> RememberedHead | None:
        """Take out what is remembered of a head; a save that succeeds remembers it again."""
        found = self._drop((scope, sealer.active_key_version, thread_id, namespace))
        if found is None or sealer.shared or self._monotonic() - found[0] > KEPT_SECONDS:
            return None
        return found[1]

    def _drop(self, key: _HeadKey) -> tuple[float, RememberedHead] | None:
        found = self._kept.pop(key, None)
        if found is None:
            return None
        since, size, head = found
        self._bytes -= size
        return since, head

    def remember(self, scope: Scope, sealer: Sealer, head: RememberedHead) -> None:
        """Keep what a committed write left, unless it is large; without its tails, if only they are."""
        bodies = (body for each in head.base.manifest.channels for body in (each.body, each.leaves))
        inline = sum(len(each) for each in bodies if isinstance(each, bytes))
        if sealer.shared or inline > INLINE_BYTES_MAX or len(head.pieces) > PIECES_MAX:
            return
        size = inline + sum(map(len, head.tails.values()))
        if size > ENTRY_BYTES_MAX:
            head, size = msgspec.structs.replace(head, tails={}), inline
        columns = head.base.columns
        key = (scope, sealer.active_key_version, columns.thread_id, columns.namespace)
        self._drop(key)
        self._kept[key] = (self._monotonic(), size, head)
        self._bytes += size
        while len(self._kept) > ENTRIES_MAX or self._bytes > BYTES_MAX:
            self._drop(next(iter(self._kept)))

    def acknowledge(self, scope: Scope, thread_id: str, token: ThreadToken) -> None:
        """Keep how far a committed write brought a namespace."""
        key = (scope, thread_id, token.namespace)
        before = self._acknowledged.pop(key, None)
        if before is not None and before[1].incarnation_tag == token.incarnation_tag:
            token = max(before[1], token, key=lambda each: each.sequence)
        self._acknowledged[key] = (self._monotonic(), token)
        while len(self._acknowledged) > ACKNOWLEDGED_MAX:
            self._acknowledged.popitem(last=False)

    def acknowledged(self, scope: Scope, thread_id: str, namespace: str) -> ThreadToken | None:
        """How far this process brought a namespace lately; ask before what is compared with it is read."""
        found = self._acknowledged.get((scope, thread_id, namespace))
        return None if found is None or self._monotonic() - found[0] > KEPT_SECONDS else found[1]

    def forget(self, scope: Scope) -> None:
        """Drop what belongs to a scope whose keys are gone."""
        for key in [each for each in self._kept if each[0] == scope]:
            self._drop(key)
        for other in [each for each in self._acknowledged if each[0] == scope]:
            del self._acknowledged[other]


def reachable(ids: Iterable[bytes], *known: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    """These pieces and their children, as far as their children are known."""
    found: dict[bytes, bytes | None] = {}
    open_ids = list(ids)
    while open_ids:
        piece_id = open_ids.pop()
        for pieces in known:
            if piece_id not in found and piece_id in pieces:
                children = found[piece_id] = pieces[piece_id]
                open_ids.extend(unpack_ids(children) if children is not None else ())
    return found
