"""Anchored heads: how far each thread was, kept in the object store, where a restored database cannot reach.

After each change of a namespace its name, incarnation and sequence are noted in memory; each minute what is new is
written to the tenant's prefix as one object. Entries are tags and MACs under the subject's keys: the object tells
nobody which threads there are, and without the keys none can be made up. Small objects are merged now and then.

What was saved less than a minute before a crash may not be anchored. An attacker who deletes the objects takes the
proof away, not the data; whoever alters them is found by `storage.verification.threads`.
"""

import contextlib
import hmac
import struct
from collections.abc import Iterable, KeysView
from dataclasses import dataclass
from uuid import UUID

from uuid_utils import uuid7

from crypto import Sealer
from storage.blobs.keyspace import HeadAnchorLocation, head_anchor_prefix
from storage.blobs.store import BlobNotFound, BlobStore
from storage.errors import IntegrityFailure, StorageError
from storage.format.token import TAG_BYTES, ThreadToken, thread_tag
from storage.scope import Scope

ANCHOR_SECONDS = 60.0
# Changed namespaces kept until they are written; beyond it the newest are not anchored this time.
NOTED_MAX = 100_000
# A tenant's objects before they are merged: a day has 1,440 minutes, and verification reads all of them.
OBJECTS_MAX = 64
_KEYS_PAGE = 1000
_MAGIC = b"SRHA\x01"
_FACTS = struct.Struct(f">{TAG_BYTES}s{TAG_BYTES}s{TAG_BYTES}s{TAG_BYTES}sQ")
ENTRY_BYTES = _FACTS.size + TAG_BYTES
# A scope, a thread, a namespace and the tag of an incarnation.
_NotedKey = tuple[Scope, str, str, bytes]


@dataclass(frozen=True, slots=True)
class AnchoredHead:
    """That a namespace had come to ``sequence`` in one life of its thread; ``entry`` is how it is kept."""

    thread: bytes
    namespace: bytes
    incarnation: bytes
    sequence: int
    entry: bytes = b""


def subject_tag(sealer: Sealer) -> bytes:
    """Whose an entry is."""
    return sealer.mac(b"anchor-subject", sealer.subject_id.encode())[:TAG_BYTES]


def namespace_tag(sealer: Sealer, thread_id: str, namespace: str) -> bytes:
    """A namespace's name where its text must not appear."""
    return sealer.mac(b"anchor-place", thread_id.encode(), namespace.encode())[:TAG_BYTES]


def _entry(sealer: Sealer, thread_id: str, token: ThreadToken) -> bytes:
    facts = _FACTS.pack(
        subject_tag(sealer),
        thread_tag(sealer, thread_id),
        namespace_tag(sealer, thread_id, token.namespace),
        token.incarnation_tag,
        token.sequence,
    )
    return facts + sealer.mac(b"anchor", facts)[:TAG_BYTES]


def _entries(data: bytes) -> list[bytes]:
    """The entries of an object, or none if it is not one: another store's object under our prefix proves nothing."""
    body = data[len(_MAGIC) :]
    if not data.startswith(_MAGIC) or len(body) % ENTRY_BYTES:
        return []
    return [body[at : at + ENTRY_BYTES] for at in range(0, len(body), ENTRY_BYTES)]


def _life(entry: bytes) -> bytes:
    """Which namespace an entry is about, in which life of its thread."""
    return entry[: 4 * TAG_BYTES]


def _come_to(entry: bytes) -> bytes:
    """How far it had come, in an order that bytes have: a sequence is big endian."""
    return entry[4 * TAG_BYTES : _FACTS.size]


def _newest(entries: Iterable[bytes]) -> dict[bytes, bytes]:
    newest: dict[bytes, bytes] = {}
    for entry in entries:
        newest[_life(entry)] = max(newest.get(_life(entry), entry), entry, key=_come_to)
    return newest


class AnchoredHeads:
    """Everything that is anchored of a tenant, as it was read."""

    def __init__(self, entries: Iterable[bytes]) -> None:
        self._entries: dict[bytes, list[bytes]] = {}
        for entry in entries:
            self._entries.setdefault(entry[:TAG_BYTES], []).append(entry)

    left_out = 0

    def leave_out(self, entries: Iterable[bytes]) -> None:
        """Forget heads that are known to be lost, and what was anchored of their lives before."""
        lost: dict[bytes, dict[bytes, bytes]] = {}
        for entry in entries:
            lives = lost.setdefault(entry[:TAG_BYTES], {})
            lives[_life(entry)] = max(lives.get(_life(entry), b""), _come_to(entry))
        for tag, lives in lost.items():
            entries_here = self._entries.pop(tag, [])
            left = [entry for entry in entries_here if _come_to(entry) > lives.get(_life(entry), b"")]
            self.left_out += len({_life(entry) for entry in entries_here} - {_life(entry) for entry in left})
            if left:
                self._entries[tag] = left

    def newest_of(self, tag: bytes) -> list[bytes]:
        """The newest entry of each life under a tag, whose MACs cannot be checked: of subjects that are not there."""
        return list(_newest(self._entries.get(tag, ())).values())

    @property
    def tags(self) -> KeysView[bytes]:
        """Whose heads there are, see `subject_tag`; whether they are genuine only a subject's own keys tell."""
        return self._entries.keys()

    def of(self, sealer: Sealer) -> list[AnchoredHead]:
        """What is anchored of a subject: for each life of each namespace, the newest.

        Raises:
            IntegrityFailure: an entry was altered.
        """
        newest: dict[tuple[bytes, bytes], AnchoredHead] = {}
        for entry in self._entries.get(subject_tag(sealer), ()):
            facts, mac = entry[: _FACTS.size], entry[_FACTS.size :]
            _, thread, namespace, incarnation, sequence = _FACTS.unpack(facts)
            if not hmac.compare_digest(mac, sealer.mac(b"anchor", facts)[:TAG_BYTES]):
                raise IntegrityFailure("an anchored head was altered")
            known = newest.get((namespace, incarnation))
            if known is None or known.sequence < sequence:
                newest[namespace, incarnation] = AnchoredHead(thread, namespace, incarnation, sequence, entry)
        return list(newest.values())


class HeadAnchors:
    """Notes changed heads and writes them to the object store; does nothing where there is none."""

    def __init__(self, blobs: BlobStore | None) -> None:
        self._blobs = blobs
        self._noted: dict[_NotedKey, tuple[Sealer, ThreadToken]] = {}

    def note(self, scope: Scope, sealer: Sealer, thread_id: str, token: ThreadToken) -> None:
        """Remember a head that was committed."""
        if self._blobs is None:
            return
        key = (scope, thread_id, token.namespace, token.incarnation_tag)
        known = self._noted.get(key)
        if known is None and len(self._noted) >= NOTED_MAX:
            return
        if known is None or known[1].sequence < token.sequence:
            self._noted[key] = (sealer.without_share, token)  # what a share makes of the keys is not kept

    async def flush(self) -> int:
        """Write what was noted since the last time; returns how many heads. What cannot be written is kept.

        Raises:
            BlobUnavailable: the object store does not answer.
        """
        if self._blobs is None:
            return 0
        noted, self._noted = self._noted, {}
        tenants: dict[UUID, list[tuple[Scope, str, Sealer, ThreadToken]]] = {}
        for (scope, thread_id, _, _), (sealer, token) in noted.items():
            tenants.setdefault(scope.tenant_id, []).append((scope, thread_id, sealer, token))
        written = 0
        while tenants:
            tenant_id, heads = tenants.popitem()
            body = b"".join(_entry(sealer, thread_id, token) for _, thread_id, sealer, token in heads)
            try:
                await self._put(self._blobs, tenant_id, body)
            except StorageError:
                for scope, thread_id, sealer, token in [*heads, *(late for some in tenants.values() for late in some)]:
                    self.note(scope, sealer, thread_id, token)
                raise
            written += len(heads)
            await self._merge(self._blobs, tenant_id)
        return written

    async def load(self, tenant_id: UUID) -> AnchoredHeads:
        """Everything that is anchored of a tenant.

        Raises:
            BlobUnavailable: the object store does not answer.
        """
        objects = {} if self._blobs is None else await self._objects(self._blobs, tenant_id)
        return AnchoredHeads(entry for data in objects.values() for entry in _entries(data))

    async def _put(self, blobs: BlobStore, tenant_id: UUID, body: bytes) -> None:
        await blobs.put_if_absent(HeadAnchorLocation(tenant_id, UUID(str(uuid7()))), _MAGIC + body)

    async def _objects(self, blobs: BlobStore, tenant_id: UUID) -> dict[HeadAnchorLocation, bytes]:
        prefix = head_anchor_prefix(tenant_id)
        found: dict[HeadAnchorLocation, bytes] = {}
        after = ""
        while True:
            keys = await blobs.list_keys(prefix, after=after, limit=_KEYS_PAGE)
            for object_key in keys:
                after = object_key
                with contextlib.suppress(BlobNotFound, ValueError):  # merged meanwhile; or not ours
                    location = HeadAnchorLocation.parse(object_key)
                    found[location] = await blobs.get(location)
            if len(keys) < _KEYS_PAGE:
                return found

    async def _merge(self, blobs: BlobStore, tenant_id: UUID) -> None:
        """Make one object of many. Two processes may do so at once: both write all, then both delete the same."""
        keys = await blobs.list_keys(head_anchor_prefix(tenant_id), limit=OBJECTS_MAX)
        if len(keys) < OBJECTS_MAX:
            return
        objects = await self._objects(blobs, tenant_id)
        newest = _newest(entry for data in objects.values() for entry in _entries(data))
        await self._put(blobs, tenant_id, b"".join(newest.values()))
        for location in objects:
            await blobs.delete(location)
