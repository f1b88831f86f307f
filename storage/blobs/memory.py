"""The in-memory twin of the object store; it forgets everything with the process."""

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.store import BlobExists, BlobInfo, BlobNotFound, BlobUnavailable, check_range


class MemoryBlobStore:
    """A `BlobStore` in a dictionary.

    Attributes:
        available: Set to False to make every operation raise `BlobUnavailable`.
    """

    def __init__(self) -> None:
        self.available = True
        self._objects: dict[str, bytes] = {}

    async def put_if_absent(self, location: ObjectLocation, data: bytes) -> None:
        """See `BlobStore`."""
        await self.health()
        if self._objects.setdefault(location.object_key(), bytes(data)) != data:
            raise BlobExists

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

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See `BlobStore`."""
        await self.health()
        return sorted(found for found in self._objects if found.startswith(prefix) and found > after)[:limit]

    async def health(self) -> None:
        """See `BlobStore`."""
        if not self.available:
            raise BlobUnavailable

    async def aclose(self) -> None:
        """See `BlobStore`."""
        self.available = False
