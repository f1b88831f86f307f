"""Tamper evidence: the sealed rows that say what else must be there.

A **thread seal** holds the thread's random incarnation, a sum over its namespaces and one over its pending writes. A
**head seal** holds the same incarnation, the namespace's sequence, a *live set*: the number of its checkpoints and the
sum, modulo 2^256, of a MAC for each over (namespace, id, manifest digest), and another one of the head's own pending
writes. A save adds one MAC, legal removal subtracts, so neither needs to read the others; a reader of all of them can
compare. MACs cover plaintext digests, never envelope bytes, so re-sealing under a new key changes nothing.

A pending write's row keeps its **member**, a keyed digest of the write. What the sums add is a MAC of the member at its
place, so that they are compared without opening any write, and a row that was moved out of the way is missed.

Rolling back a whole thread, or the whole database, is not visible here: that takes a token kept elsewhere.

The thread seal also says whether the thread was made under a share that only its client holds, by a MAC that only this
share gives. It is sealed without the share, so that a missing or wrong one is told apart from damage. And it says which
thread this one was begun from, if that was ever said (`ThreadLink`); only then it has the third format.
"""

import secrets
import struct
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from crypto import Field
from crypto.context import Location
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.model import ThreadLink

INCARNATION_BYTES = 16
_SUM_BYTES = 32
_MODULUS = 1 << (8 * _SUM_BYTES)
MEMBER_BYTES = 16
SHARE_CHECK_BYTES = 16
# Incarnation, sequence; count and sum of checkpoints; count and sum of the head's pending writes.
_HEAD = struct.Struct(f">B{INCARNATION_BYTES}sQQ{_SUM_BYTES}sQ{_SUM_BYTES}s")
# Incarnation; count and sum of namespaces, and of pending writes; the floor.
# The last two: whether there is a client-held share (0 or 1), and its check value (zeros where there is none).
_THREAD = struct.Struct(f">B{INCARNATION_BYTES}sQ{_SUM_BYTES}sQ{_SUM_BYTES}sQB{SHARE_CHECK_BYTES}s")
_IDX_BYTES = 4
_NO_CHECK = bytes(SHARE_CHECK_BYTES)
_FORMAT = 2
# Of the seal of a thread with a link: the same, and the link after it.
_LINKED_FORMAT = 3
_link = msgspec.msgpack.Decoder(ThreadLink)


class Macs(Protocol):
    """The keyed digests of one subject, as a `Sealer` gives them."""

    def mac(self, purpose: bytes, *parts: bytes) -> bytes:
        """A 32-byte MAC over length-prefixed parts."""
        ...


class LiveSet(msgspec.Struct, frozen=True):
    """A multiset of MACs, as their number and their sum."""

    count: int = 0
    total: int = 0

    def add(self, mac: bytes) -> "LiveSet":
        """With one more member."""
        return LiveSet(self.count + 1, (self.total + int.from_bytes(mac)) % _MODULUS)

    def join(self, other: "LiveSet") -> "LiveSet":
        """With all members of another one."""
        return LiveSet(self.count + other.count, (self.total + other.total) % _MODULUS)

    def subtract(self, mac: bytes) -> "LiveSet":
        """With one member less.

        Raises:
            IntegrityFailure: the set is empty.
        """
        if self.count == 0:
            raise IntegrityFailure
        return LiveSet(self.count - 1, (self.total - int.from_bytes(mac)) % _MODULUS)

    def part(self, other: "LiveSet") -> "LiveSet":
        """Without the members of another one, which are all in it.

        Raises:
            IntegrityFailure: it has fewer.
        """
        if self.count < other.count:
            raise IntegrityFailure
        return LiveSet(self.count - other.count, (self.total - other.total) % _MODULUS)


NO_WRITES = LiveSet()


@dataclass(frozen=True, slots=True)
class ThreadSeal:
    """What a thread's sealed column says: which incarnation it is, its namespaces, and all of its pending writes."""

    incarnation: bytes
    namespaces: LiveSet
    # The greatest sequence of a namespace that was removed: one made later begins above it, so that a sequence never
    # returns within the thread's life.
    floor: int = 0
    # Made under this client-held share: `share_check` of it. None: made without one.
    share_check: bytes | None = None
    # Of all namespaces, whether or not the checkpoint of a write is there: `write_mac`.
    writes: LiveSet = NO_WRITES
    # What the thread was begun from, if that was said.
    link: ThreadLink | None = None

    @classmethod
    def new(cls) -> "ThreadSeal":
        """Of a thread that is being created: a random incarnation and no namespace."""
        return cls(secrets.token_bytes(INCARNATION_BYTES), LiveSet())

    def encode(self) -> bytes:
        """The plaintext to seal."""
        sums = _THREAD.pack(
            _FORMAT if self.link is None else _LINKED_FORMAT,
            self.incarnation,
            self.namespaces.count,
            self.namespaces.total.to_bytes(_SUM_BYTES),
            self.writes.count,
            self.writes.total.to_bytes(_SUM_BYTES),
            self.floor,
            self.share_check is not None,
            self.share_check or _NO_CHECK,
        )
        return sums if self.link is None else sums + encode_msgpack(self.link)

    @classmethod
    def decode(cls, plaintext: bytes) -> "ThreadSeal":
        """Read what `encode` wrote.

        Raises:
            IntegrityFailure: it is something else.
        """
        sums, linked = plaintext[: _THREAD.size], plaintext[_THREAD.size :]
        try:
            layout, incarnation, count, total, written, written_total, floor, shared, check = _THREAD.unpack(sums)
            link = _link.decode(linked) if linked else None
        except (struct.error, msgspec.DecodeError):
            raise IntegrityFailure from None
        if layout != (_FORMAT if link is None else _LINKED_FORMAT) or shared not in {0, 1}:
            raise IntegrityFailure
        namespaces = LiveSet(count, int.from_bytes(total))
        writes = LiveSet(written, int.from_bytes(written_total))
        return cls(incarnation, namespaces, floor, check if shared else None, writes, link)

    def with_namespace(self, macs: Macs, namespace: str) -> "ThreadSeal":
        """With one more namespace."""
        return replace(self, namespaces=self.namespaces.add(namespace_mac(macs, namespace)))

    def without_namespace(self, macs: Macs, namespace: str, sequence: int) -> "ThreadSeal":
        """With one namespace less, which had come to ``sequence``."""
        left = self.namespaces.subtract(namespace_mac(macs, namespace))
        return replace(self, namespaces=left, floor=max(self.floor, sequence))


class HeadSeal(msgspec.Struct, frozen=True):
    """What a head's sealed column says of its namespace."""

    incarnation: bytes
    sequence: int
    live: LiveSet
    # The pending writes of the head itself, which a load of it has before it anyway.
    writes: LiveSet = NO_WRITES

    def encode(self) -> bytes:
        """The plaintext to seal."""
        return _HEAD.pack(
            _FORMAT,
            self.incarnation,
            self.sequence,
            self.live.count,
            self.live.total.to_bytes(_SUM_BYTES),
            self.writes.count,
            self.writes.total.to_bytes(_SUM_BYTES),
        )

    @classmethod
    def decode(cls, plaintext: bytes) -> "HeadSeal":
        """Read what `encode` wrote.

        Raises:
            IntegrityFailure: it is something else.
        """
        try:
            layout, incarnation, sequence, count, total, written, written_total = _HEAD.unpack(plaintext)
        except struct.error:
            raise IntegrityFailure from None
        if layout != _FORMAT:
            raise IntegrityFailure
        live = LiveSet(count, int.from_bytes(total))
        return cls(incarnation, sequence, live, LiveSet(written, int.from_bytes(written_total)))


def share_check(macs: Macs, thread_id: str, incarnation: bytes) -> bytes:
    """The check value of the client-held share that ``macs`` are mixed with, for one life of one thread."""
    return macs.mac(b"client-share", thread_id.encode(), incarnation)[:SHARE_CHECK_BYTES]


def namespace_mac(macs: Macs, namespace: str) -> bytes:
    """A namespace's member of the thread's live set."""
    return macs.mac(b"namespace", namespace.encode())


def manifest_digest(macs: Macs, plaintext: bytes, location: Location) -> bytes:
    """A digest of what a checkpoint is: its manifest and its bound columns."""
    return macs.mac(b"manifest", plaintext, location.encoded)


def member_mac(macs: Macs, namespace: str, checkpoint_id: str, digest: bytes) -> bytes:
    """A checkpoint's member of its namespace's live set."""
    return macs.mac(b"live", namespace.encode(), checkpoint_id.encode(), digest)


def write_member(macs: Macs, plaintext: bytes, location: Location) -> bytes:
    """A keyed digest of what a pending write is: its record and its bound columns."""
    return macs.mac(b"write", plaintext, location.encoded)[:MEMBER_BYTES]


def write_mac(macs: Macs, namespace: str, checkpoint_id: str, task_id: str, idx: int, member: bytes) -> bytes:
    """A pending write's part of the sums of its thread and of its checkpoint."""
    # One part, because all writes of a thread are summed at once; no text in PostgreSQL holds the byte between them.
    place = f"{namespace}\0{checkpoint_id}\0{task_id}\0".encode()
    return macs.mac(b"live-write", place + idx.to_bytes(_IDX_BYTES, signed=True) + member)


def thread_location(thread_id: str, created_at: Field) -> tuple[Field, ...]:
    """The context fields of a thread seal."""
    return (thread_id, created_at)


def head_location(thread_id: str, namespace: str, head_id: str, sequence: int) -> tuple[Field, ...]:
    """The context fields of a head seal: the head row's clear columns."""
    return (thread_id, namespace, head_id, sequence)
