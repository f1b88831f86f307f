"""The names of objects in the bucket: `v1/{tenant hex}/{aa}/{blob hex}`.

The only builder and the only parser of object keys. A key is made of two UUIDs, so no text of a client, no
subject and no thread ever reaches a bucket listing or an access log. `aa` is the last byte of the blob's
UUID: the first bytes of a UUIDv7 are its time and would send all writes to one partition.
"""

import re
from dataclasses import dataclass
from typing import Self
from uuid import UUID

_OBJECT_KEY = re.compile(r"v1/([0-9a-f]{32})/([0-9a-f]{2})/([0-9a-f]{30}\2)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BlobLocation:
    """Where one blob lives."""

    tenant_id: UUID
    blob_id: UUID

    def object_key(self) -> str:
        """Return the S3 object key."""
        blob = self.blob_id.hex
        return f"{tenant_prefix(self.tenant_id)}{blob[-2:]}/{blob}"

    @classmethod
    def parse(cls, object_key: str) -> Self:
        """Return the location an object key names.

        Raises:
            ValueError: This keyspace does not make such a key.
        """
        match = _OBJECT_KEY.fullmatch(object_key)
        if match is None:
            raise ValueError("not an object key of this keyspace")
        return cls(UUID(match[1]), UUID(match[3]))


def tenant_prefix(tenant_id: UUID) -> str:
    """Return the prefix that holds all blobs of a tenant and no others."""
    return f"v1/{tenant_id.hex}/"
