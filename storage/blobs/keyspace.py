"""The names of objects in the bucket.

Blobs live at `v1/{tenant hex}/{aa}/{blob hex}`, archived threads at the same names below `archive/`, anchors of audit
chains at `anchors/v1/{tenant hex}/{number}`, tombstones of shreds at
`tombstones/v1/{deployment hex}/{tenant hex}/{shred hex}`.

The only builder and the only parser of object keys. A key is made of UUIDs and numbers, so no text of a client, no
subject and no thread ever reaches a bucket listing or an access log. `aa` is the last byte of the blob's UUID: the
first bytes of a UUIDv7 are its time and would send all writes to one partition.
"""

import re
from dataclasses import dataclass
from typing import Final, Protocol, Self
from uuid import UUID

from storage.model import Bucket

BUCKETS: Final[tuple[Bucket, ...]] = ("blobs", "archive")

# Of the anchors of all audit chains, of every deployment that shares the bucket.
ANCHORS_PREFIX = "anchors/v1/"

_SEQUENCE_MAX = 2**63 - 1
_ANCHOR_KEY = re.compile(r"anchors/v1/([0-9a-f]{32})/([0-9a-f]{16})", re.ASCII)
_HEAD_ANCHOR_KEY = re.compile(r"head-anchors/v1/([0-9a-f]{32})/([0-9a-f]{32})", re.ASCII)
_TOMBSTONE_KEY = re.compile(r"tombstones/v1/([0-9a-f]{32})/([0-9a-f]{32})/([0-9a-f]{32})", re.ASCII)
_OBJECT_KEY = re.compile(r"(archive/)?v1/([0-9a-f]{32})/([0-9a-f]{2})/([0-9a-f]{30}\3)", re.ASCII)


class ObjectLocation(Protocol):
    """Where one object lives."""

    def object_key(self) -> str:
        """Return the S3 object key."""
        ...


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """Where one blob lives."""

    tenant_id: UUID
    blob_id: UUID
    place: Bucket = "blobs"

    def object_key(self) -> str:
        """Return the S3 object key."""
        blob = self.blob_id.hex
        return f"{tenant_prefix(self.tenant_id, self.place)}{blob[-2:]}/{blob}"

    @classmethod
    def parse(cls, object_key: str) -> Self:
        """Return the location an object key names.

        Raises:
            ValueError: This keyspace does not make such a key.
        """
        match = _OBJECT_KEY.fullmatch(object_key)
        if match is None:
            raise ValueError("not an object key of this keyspace")
        return cls(UUID(match[2]), UUID(match[4]), "blobs" if match[1] is None else "archive")


def tenant_prefix(tenant_id: UUID, bucket: Bucket = "blobs") -> str:
    """Return the prefix that holds all blobs of a tenant in one bucket and no others."""
    return f"{'archive/' if bucket == 'archive' else ''}v1/{tenant_id.hex}/"


@dataclass(frozen=True, slots=True)
class AnchorLocation:
    """Where the anchor of an audit chain's event lives; its number counts down, so that the newest lists first."""

    tenant_id: UUID
    sequence: int

    def object_key(self) -> str:
        """Return the S3 object key."""
        return f"{anchor_prefix(self.tenant_id)}{_SEQUENCE_MAX - self.sequence:016x}"

    @classmethod
    def parse(cls, object_key: str) -> Self:
        """Return the location an object key names.

        Raises:
            ValueError: This keyspace does not make such a key.
        """
        match = _ANCHOR_KEY.fullmatch(object_key)
        if match is None:
            raise ValueError("not the key of an anchor")
        return cls(UUID(match[1]), _SEQUENCE_MAX - int(match[2], 16))


@dataclass(frozen=True, slots=True)
class HeadAnchorLocation:
    """Where anchored heads live."""

    tenant_id: UUID
    anchor_id: UUID

    def object_key(self) -> str:
        """Return the S3 object key."""
        return f"{head_anchor_prefix(self.tenant_id)}{self.anchor_id.hex}"

    @classmethod
    def parse(cls, object_key: str) -> Self:
        """Return the location an object key names.

        Raises:
            ValueError: This keyspace does not make such a key.
        """
        match = _HEAD_ANCHOR_KEY.fullmatch(object_key)
        if match is None:
            raise ValueError("not the key of anchored heads")
        return cls(UUID(match[1]), UUID(match[2]))


@dataclass(frozen=True, slots=True)
class TombstoneLocation:
    """Where the tombstone of a shred lives."""

    deployment_id: UUID
    tenant_id: UUID
    shred_id: UUID

    def object_key(self) -> str:
        """Return the S3 object key."""
        return f"{tombstone_prefix(self.deployment_id)}{self.tenant_id.hex}/{self.shred_id.hex}"

    @classmethod
    def parse(cls, object_key: str) -> Self:
        """Return the location an object key names.

        Raises:
            ValueError: This keyspace does not make such a key.
        """
        match = _TOMBSTONE_KEY.fullmatch(object_key)
        if match is None:
            raise ValueError("not the key of a tombstone")
        return cls(UUID(match[1]), UUID(match[2]), UUID(match[3]))


def tombstone_prefix(deployment_id: UUID) -> str:
    """Return the prefix that holds all tombstones of a deployment and no others: a bucket may be shared."""
    return f"tombstones/v1/{deployment_id.hex}/"


def head_anchor_prefix(tenant_id: UUID) -> str:
    """Return the prefix that holds all anchored heads of a tenant and nothing else."""
    return f"head-anchors/v1/{tenant_id.hex}/"


def anchor_prefix(tenant_id: UUID) -> str:
    """Return the prefix that holds all anchors of a tenant's audit chain and no others."""
    return f"{ANCHORS_PREFIX}{tenant_id.hex}/"
