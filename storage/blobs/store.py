"""The seam to object storage: what storage asks of it, and what it can answer.

Owns the `BlobStore` protocol and its errors; `memory.py` and `s3.py` implement it and pass one contract
suite. A blob is opaque (sealed before it gets here) and written once. Nothing here knows which blobs are
referenced: intents, settling and sweeping belong to the database.
"""

from dataclasses import dataclass
from typing import Protocol

from storage.blobs.keyspace import ObjectLocation
from storage.errors import Conflict, NotFound, Unavailable


class BlobNotFound(NotFound):
    """There is no such blob."""


class BlobExists(Conflict):
    """Another blob is stored at this location; locations are never reused."""


class BlobUnavailable(Unavailable):
    """The object store cannot serve this now; the operation may be repeated."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What the object store knows about a blob."""

    size_bytes: int


class BlobStore(Protocol):
    """Write-once opaque objects. Every method may raise `BlobUnavailable`; then the outcome is unknown."""

    async def put_if_absent(self, location: ObjectLocation, data: bytes) -> None:
        """Store a blob; durable when this returns. Repeating it with the same bytes changes nothing.

        Raises:
            BlobExists: Other bytes are stored there.
        """
        ...

    async def get(self, location: ObjectLocation) -> bytes:
        """Return the whole blob.

        Raises:
            BlobNotFound: Nothing is stored there.
        """
        ...

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """Return up to `length` bytes from offset `start`; fewer at the end, none past it.

        Raises:
            BlobNotFound: Nothing is stored there.
            ValueError: `start` is negative or `length` is below one.
        """
        ...

    async def head(self, location: ObjectLocation) -> BlobInfo:
        """Return the blob's size without reading it.

        Raises:
            BlobNotFound: Nothing is stored there.
        """
        ...

    async def delete(self, location: ObjectLocation) -> None:
        """Remove the blob; removing an absent one is no error."""
        ...

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return up to `limit` (1 to 1,000) keys of objects that begin with `prefix` and come after `after`, in order.

        What was stored or deleted before the call shows.
        """
        ...

    async def health(self) -> None:
        """Return if the bucket answers to our credentials; raise `BlobUnavailable` if not."""
        ...

    async def aclose(self) -> None:
        """Give connections and threads back; the store is unusable afterwards."""
        ...


def check_range(start: int, length: int) -> None:
    """Refuse a byte range that no blob has.

    Raises:
        ValueError: `start` is negative or `length` is below one.
    """
    if start < 0 or length < 1:
        raise ValueError("a range starts at 0 or later and has at least one byte")
