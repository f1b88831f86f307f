"""The in-memory twin of the object store; it forgets everything with the process."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.store import (
    BlobBytes,
    BlobExists,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
    MultipartInfo,
    MultipartNotFound,
    ObjectInfo,
    PartMismatch,
    check_part_number,
    check_parts,
    check_range,
)


@dataclass(slots=True)
class _Multipart:
    object_key: str
    begun_at: datetime
    parts: dict[int, bytes] = field(default_factory=dict)


class MemoryBlobStore:
    """A `BlobStore` in a dictionary.

    Attributes:
        available: Set to False to make every operation raise `BlobUnavailable`.
    """

    def __init__(self) -> None:
        self.available = True
        self._objects: dict[str, bytes] = {}
        self._modified: dict[str, datetime] = {}
        self._multiparts: dict[str, _Multipart] = {}

    async def put_if_absent(self, location: ObjectLocation, data: BlobBytes) -> None:
        """See `BlobStore`."""
        await self.health()
        self._put(location.object_key(), bytes(data))

    async def get(self, location: ObjectLocation) -> bytes:
        """See `BlobStore`."""
        await self.health()
        try:
            return self._objects[location.object_key()]
        except KeyError:
            raise BlobNotFound from None

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        check_range(start, length)
        return (await self.get(location))[start : start + length]

    async def head(self, location: ObjectLocation) -> BlobInfo:
        """See `BlobStore`."""
        return BlobInfo(len(await self.get(location)))

    async def delete(self, location: ObjectLocation) -> None:
        """See `BlobStore`."""
        await self.health()
        self._objects.pop(location.object_key(), None)
        self._modified.pop(location.object_key(), None)

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See `BlobStore`."""
        return [found.object_key for found in await self.list_objects(prefix, after=after, limit=limit)]

    async def list_objects(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        """See `BlobStore`."""
        await self.health()
        names = sorted(found for found in self._objects if found.startswith(prefix) and found > after)
        return [ObjectInfo(name, len(self._objects[name]), self._modified[name]) for name in names[:limit]]

    async def begin_multipart(self, location: ObjectLocation) -> str:
        """See `BlobStore`."""
        await self.health()
        multipart_id = uuid4().hex
        self._multiparts[multipart_id] = _Multipart(location.object_key(), datetime.now(UTC))
        return multipart_id

    async def put_part(self, location: ObjectLocation, multipart_id: str, number: int, data: BlobBytes) -> str:
        """See `BlobStore`."""
        check_part_number(number)
        await self.health()
        self._multipart(location, multipart_id).parts[number] = bytes(data)
        return _etag(data)

    async def complete_multipart(
        self, location: ObjectLocation, multipart_id: str, parts: Sequence[tuple[int, str]], *, size_bytes: int
    ) -> None:
        """See `BlobStore`."""
        check_parts(parts)
        await self.health()
        stored = self._objects.get(location.object_key())
        if stored is not None:
            if len(stored) != size_bytes:
                raise BlobExists
            return
        received = self._multipart(location, multipart_id).parts
        if any(number not in received or _etag(received[number]) != etag for number, etag in parts):
            raise PartMismatch
        self._put(location.object_key(), b"".join(received[number] for number, _ in parts))
        del self._multiparts[multipart_id]

    async def abort_multipart(self, location: ObjectLocation, multipart_id: str) -> None:
        """See `BlobStore`."""
        await self.health()
        found = self._multiparts.get(multipart_id)
        if found is not None and found.object_key == location.object_key():
            del self._multiparts[multipart_id]

    async def list_multiparts(self, prefix: str) -> list[MultipartInfo]:
        """See `BlobStore`."""
        await self.health()
        found = [
            MultipartInfo(upload.object_key, multipart_id, upload.begun_at)
            for multipart_id, upload in self._multiparts.items()
            if upload.object_key.startswith(prefix)
        ]
        return sorted(found, key=lambda each: (each.object_key, each.multipart_id))

    async def health(self) -> None:
        """See `BlobStore`."""
        if not self.available:
            raise BlobUnavailable

    async def aclose(self) -> None:
        """See `BlobStore`."""
        self.available = False

    def _put(self, object_key: str, data: bytes) -> None:
        if self._objects.setdefault(object_key, data) != data:
            raise BlobExists
        self._modified.setdefault(object_key, datetime.now(UTC))

    def _multipart(self, location: ObjectLocation, multipart_id: str) -> _Multipart:
        found = self._multiparts.get(multipart_id)
        if found is None or found.object_key != location.object_key():
            raise MultipartNotFound
        return found


def _etag(data: BlobBytes) -> str:
    return hashlib.sha256(data).hexdigest()
