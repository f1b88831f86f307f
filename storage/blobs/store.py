"""The seam to object storage: what storage asks of it, and what it can answer.

Owns the `BlobStore` protocol and its errors; `memory.py` and `s3.py` implement it and pass one contract
suite. A blob is opaque (sealed before it gets here) and written once. Nothing here knows which blobs are
referenced: intents, settling and sweeping belong to the database.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from storage.blobs.keyspace import ObjectLocation
from storage.errors import Conflict, NotFound, Unavailable


class BlobNotFound(NotFound):
    """There is no such blob."""


class BlobExists(Conflict):
    """Another blob is stored at this location; locations are never reused."""


class BlobUnavailable(Unavailable):
    """The object store cannot serve this now; the operation may be repeated."""


class MultipartNotFound(NotFound):
    """There is no such multipart upload: it was aborted or completed, or never begun."""


class PartMismatch(Conflict):
    """The parts named to complete an upload are not the ones that are stored; send them again."""


BlobBytes = bytes | bytearray
"""What can be stored; the caller does not change a bytearray before the call returns."""

PARTS_MAX: Final = 10_000
"""Parts of one multipart upload; S3's own limit (Amazon S3 user guide, multipart upload limits)."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What the object store knows about a blob."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as a listing shows it.

    Attributes:
        object_key: Its name; `storage.blobs.keyspace` parses it.
        size_bytes: Its size.
        modified_at: When it was stored, by the object store's clock, to the second at best.
    """

    object_key: str
    size_bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class MultipartInfo:
    """A multipart upload that was begun and neither completed nor aborted.

    Attributes:
        object_key: The name its object would get.
        multipart_id: The object store's id of the upload.
        begun_at: When it was begun, by the object store's clock.
    """

    object_key: str
    multipart_id: str
    begun_at: datetime


class BlobStore(Protocol):
    """Write-once opaque objects. Every method may raise `BlobUnavailable`; then the outcome is unknown.

    Every method may be repeated after `BlobUnavailable`, except that a repeated `begin_multipart` begins another
    upload: the first is found by `list_multiparts`.
    """

    async def put_if_absent(self, location: ObjectLocation, data: BlobBytes) -> None:
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

    async def list_objects(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        """As `list_keys`, with sizes and times.

        Multipart uploads that are not completed do not show.
        """
        ...

    async def begin_multipart(self, location: ObjectLocation) -> str:
        """Begin an upload in parts.

        Returns:
            The id of the upload: opaque text, at most 1,024 characters.
        """
        ...

    async def put_part(self, location: ObjectLocation, multipart_id: str, number: int, data: BlobBytes) -> str:
        """Store one part; durable when this returns. The same number again replaces the part.

        Args:
            location: As given to `begin_multipart`.
            multipart_id: What it returned.
            number: The part's place, from 0 to `PARTS_MAX` - 1 (S3's own numbers are one more).
            data: All parts but the last have at least 5 MiB.

        Returns:
            The etag: opaque text, at most 200 characters, that `complete_multipart` takes.

        Raises:
            MultipartNotFound: The upload was aborted or completed.
            ValueError: `number` is out of range.
        """
        ...

    async def complete_multipart(
        self, location: ObjectLocation, multipart_id: str, parts: Sequence[tuple[int, str]], *, size_bytes: int
    ) -> None:
        """Make the object out of its parts; durable when this returns. Repeating it changes nothing.

        Args:
            location: As given to `begin_multipart`.
            multipart_id: What it returned.
            parts: Every part as number and etag, numbers ascending; at least one.
            size_bytes: Size of the whole object. An object of this size that is already there counts as the answer
                that was lost: no other upload ever writes to the same location.

        Raises:
            BlobExists: An object of another size is stored there.
            MultipartNotFound: The upload was aborted, and no object is there.
            PartMismatch: A part is missing or has another etag. A part that is replaced during this call may escape:
                keep uploads of one part apart.
            ValueError: There are no parts, or their numbers do not ascend.
        """
        ...

    async def abort_multipart(self, location: ObjectLocation, multipart_id: str) -> None:
        """Drop an upload and its parts; an unknown, completed or aborted one is no error, and no object is removed.

        A part that is being stored meanwhile may survive (S3): abort again later.
        """
        ...

    async def list_multiparts(self, prefix: str) -> list[MultipartInfo]:
        """Return all open uploads whose object keys begin with `prefix`, by object key.

        All at once, because servers page through them in orders of their own; a tenant has few.

        Args:
            prefix: Also the whole key of one location.
        """
        ...

    async def health(self) -> None:
        """Return if the bucket answers to our credentials; raise `BlobUnavailable` if not."""
        ...

    async def aclose(self) -> None:
        """Give connections and threads back; the store is unusable afterwards."""
        ...


def check_parts(parts: Sequence[tuple[int, str]]) -> None:
    """Refuse a list of parts that no upload has.

    Raises:
        ValueError: It is empty, too long, or its numbers do not ascend from 0 on.
    """
    numbers = [number for number, _ in parts]
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError("an upload has at least one part, and the numbers of parts ascend")
    check_part_number(numbers[0])
    check_part_number(numbers[-1])


def check_part_number(number: int) -> None:
    """Refuse a number that no part has.

    Raises:
        ValueError: It is not from 0 to `PARTS_MAX` - 1.
    """
    if not 0 <= number < PARTS_MAX:
        raise ValueError(f"a part's number is 0 to {PARTS_MAX - 1}")


def check_range(start: int, length: int) -> None:
    """Refuse a byte range that no blob has.

    Raises:
        ValueError: `start` is negative or `length` is below one.
    """
    if start < 0 or length < 1:
        raise ValueError("a range starts at 0 or later and has at least one byte")
