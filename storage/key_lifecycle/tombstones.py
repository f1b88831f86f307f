"""Tombstones: what is kept of a shred outside of the database, where a restored backup does not reach.

Owns their bytes, and the proof that this deployment made one: it is authenticated by a key that only the root key
opens, and names no subject, because the subject's id is there as a keyed digest. Nothing here destroys a key or knows
whether the database applied a shred; without an object store there are no tombstones.
"""

import hmac
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec

from crypto import (
    TOMBSTONE_PURPOSE,
    CryptoError,
    KeyDenied,
    KeyDestroyed,
    KeyUnavailable,
    RootKeyInvalid,
    SecretKey,
    WrappedKey,
    keyed_digest,
    root_context,
)
from storage.blobs.keyspace import TombstoneLocation, tombstone_prefix
from storage.blobs.store import BlobExists, BlobNotFound, BlobStore
from storage.control.deployment_keys import Deployment
from storage.encoding import decode_json, encode_json
from storage.errors import IntegrityFailure

FORMAT = "stateroom-tombstone/1"
_MAC = b"stateroom/v1/tombstone"
_DIGEST = b"stateroom/v1/tombstone-subject"
_KEYS_PAGE = 1000

Level = Literal["subject", "tenant"]


@dataclass(frozen=True, slots=True)
class Explained:
    """Which anchored heads are left behind by shreds.

    Attributes:
        tags: Of shredded subjects; see `storage.access.head_anchors.subject_tag`.
        untagged: Shredded subjects of which the tag is not known, or not any more: the root key that wrapped their
            tombstones is gone. An attacker who can add objects can add such a one, and so excuse one subject.
        whole_tenant: The tenant was shredded, with every subject.
        whole_tenant_unproven: A tombstone says so that does not open any more, for the same reason.
    """

    tags: frozenset[bytes]
    untagged: int
    whole_tenant: bool
    whole_tenant_unproven: bool = False


class _WrappedRecord(msgspec.Struct, forbid_unknown_fields=True):
    provider: str
    root_key_id: str
    root_key_version: str
    ciphertext: bytes


class Tombstone(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A tombstone as it is stored."""

    format: str
    tenant_id: UUID
    shred_id: UUID
    level: Level
    at: datetime
    subject: bytes | None
    wrapped: _WrappedRecord
    mac: bytes
    # Whose anchored heads are left behind; None where the subject's keys did not open any more.
    anchor: bytes | None = None


class _TombstoneDeniedError(IntegrityFailure):
    """The root key refuses a tombstone: it was wrapped by one that was replaced since, or is none of ours."""

    def __init__(self, location: TombstoneLocation, level: Level) -> None:
        super().__init__(f"the tombstone {location.object_key()} cannot be opened")
        self.level = level


def _mac(tombstone_key: SecretKey, tombstone: Tombstone) -> bytes:
    parts: tuple[bytes, ...] = (
        tombstone.format.encode(),
        tombstone.tenant_id.bytes,
        tombstone.shred_id.bytes,
        tombstone.level.encode(),
        tombstone.at.isoformat().encode(),
        tombstone.subject or b"",
    )
    if tombstone.anchor is not None:
        parts = (*parts, tombstone.anchor)
    return keyed_digest(tombstone_key.derive(_MAC).borrow(), *parts)


def subject_digest(tombstone_key: SecretKey, subject_id: str) -> bytes:
    """What stands for a subject in its tombstone."""
    return keyed_digest(tombstone_key.derive(_DIGEST).borrow(), subject_id.encode())


class Tombstones:
    """The tombstones of a deployment."""

    def __init__(self, deployment: Deployment, blobs: BlobStore | None) -> None:
        self._root_key = deployment.root_key
        self._deployment_id = deployment.deployment_id
        self._clock = deployment.clock
        self._blobs = blobs

    @property
    def are_kept(self) -> bool:
        """Whether there is an object store to keep them."""
        return self._blobs is not None

    async def is_kept(self, tenant_id: UUID, shred_id: UUID) -> bool:
        """Whether a shred has its tombstone.

        Raises:
            BlobUnavailable: The object store does not answer.
        """
        if self._blobs is None:
            return False
        try:
            await self._blobs.head(TombstoneLocation(self._deployment_id, tenant_id, shred_id))
        except BlobNotFound:
            return False
        return True

    async def locations(self, tenant_id: UUID | None = None) -> AsyncIterator[TombstoneLocation]:
        """Where the tombstones of all tenants are, or of one.

        Raises:
            BlobUnavailable: The object store does not answer.
        """
        prefix, after = tombstone_prefix(self._deployment_id), ""
        if tenant_id is not None:
            prefix = f"{prefix}{tenant_id.hex}/"
        while self._blobs is not None:
            object_keys = await self._blobs.list_keys(prefix, after=after, limit=_KEYS_PAGE)
            for after in object_keys:
                yield TombstoneLocation.parse(after)
            if len(object_keys) < _KEYS_PAGE:
                return

    async def bury(
        self, tenant_id: UUID, shred_id: UUID, level: Level, subject_id: str | None, anchor: bytes | None = None
    ) -> None:
        """Keep a tombstone outside the database. One that is there already must be ours.

        Unless it cannot be told any more, because the root key that wrapped it is gone: erasing does not wait for that.
        """
        if self._blobs is None:
            return
        location = TombstoneLocation(self._deployment_id, tenant_id, shred_id)
        fresh = SecretKey.generate()
        context = self._context(tenant_id)
        wrapped = await self._root_key.wrap(fresh, context)
        if (await self._root_key.unwrap(wrapped, context)).kcv() != fresh.kcv():
            raise IntegrityFailure("the root key does not open what it wrapped")
        record = _WrappedRecord(wrapped.provider, wrapped.root_key_id, wrapped.root_key_version, wrapped.ciphertext)
        digest = None if subject_id is None else subject_digest(fresh, subject_id)
        tombstone = Tombstone(FORMAT, tenant_id, shred_id, level, self._clock.now(), digest, record, b"", anchor)
        tombstone.mac = _mac(fresh, tombstone)
        try:
            await self._blobs.put_if_absent(location, encode_json(tombstone))
        except BlobExists:
            with suppress(_TombstoneDeniedError):
                await self.open(location)

    async def open(self, location: TombstoneLocation) -> tuple[Tombstone, SecretKey]:
        """A tombstone and its key.

        Raises:
            IntegrityFailure: it is none, or not made by this deployment.
            KeyUnavailable: the root key cannot be reached.
            RootKeyInvalid: its file is away.
        """
        if self._blobs is None:
            raise IntegrityFailure("there is no object store that could have the tombstone")
        try:
            tombstone = decode_json(await self._blobs.get(location), Tombstone)
            if tombstone.format != FORMAT:
                raise IntegrityFailure(f"the tombstone {location.object_key()} is of a newer format")
            wrapped = WrappedKey(
                tombstone.wrapped.provider,
                tombstone.wrapped.root_key_id,
                tombstone.wrapped.root_key_version,
                tombstone.wrapped.ciphertext,
            )
            tombstone_key = await self._root_key.unwrap(wrapped, self._context(location.tenant_id))
        except (KeyUnavailable, RootKeyInvalid):
            raise
        except (KeyDenied, KeyDestroyed):
            raise _TombstoneDeniedError(location, tombstone.level) from None
        except (msgspec.DecodeError, CryptoError):
            raise IntegrityFailure(f"the tombstone {location.object_key()} cannot be opened") from None
        named = (tombstone.tenant_id, tombstone.shred_id) == (location.tenant_id, location.shred_id)
        if not named or not hmac.compare_digest(tombstone.mac, _mac(tombstone_key, tombstone)):
            raise IntegrityFailure(f"the tombstone {location.object_key()} is not authentic")
        return tombstone, tombstone_key

    def _context(self, tenant_id: UUID) -> dict[str, str]:
        return root_context(self._deployment_id, tenant_id, TOMBSTONE_PURPOSE, 1)

    async def explained(self, tenant_id: UUID) -> Explained:
        """Which anchored heads of a tenant are left behind by shreds, going by their tombstones.

        Raises:
            IntegrityFailure: a tombstone is not authentic: no gateway wrote it.
            BlobUnavailable: the object store does not answer.
            KeyUnavailable: the root key cannot be reached.
        """
        tags, untagged, whole_tenant, unproven = set(), 0, False, False
        async for location in self.locations(tenant_id):
            try:
                tombstone, _ = await self.open(location)
            except _TombstoneDeniedError as denied:
                # Root keys are replaced, tombstones stay: it is of a subject, and it cannot be told any more of which.
                untagged += denied.level == "subject"
                unproven = unproven or denied.level == "tenant"
                continue
            if tombstone.level == "tenant":
                whole_tenant = True
            elif tombstone.anchor is None:
                untagged += 1
            else:
                tags.add(tombstone.anchor)
        return Explained(frozenset(tags), untagged, whole_tenant, unproven)
