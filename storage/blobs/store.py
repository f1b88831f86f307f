"""The seam to object storage: what storage asks of it, and what it can answer.

Owns the `BlobStore` protocol and its errors; `memory.py` and `s3.py` implement it and pass one contract
suite. A blob is opaque (sealed before it gets here) and written once. Nothing here knows which blobs are
referenced: intents, settling and sweeping belong to the database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol

from storage.blobs.keyspace import ObjectLocation
from storage.errors import Conflict, NotFound, Unavailable


class BlobNotFound(NotFound):
    """There is no such blob."""


class BlobExists(Conflict):
    """Another blob is stored at this location; locations are never reused."""


class BlobUnavailable(Unavailable):
    """The object store cannot serve this now; the operation may be repeated."""


class BucketElsewhere(BlobUnavailable):
    """The bucket is in another region than the one that was asked."""


class BlobFrozen(Conflict):
    """The blob is in a storage class that is not read before it was thawed (`BlobStore.thaw`)."""


class MultipartNotFound(NotFound):
    """There is no such multipart upload: it was aborted or completed, or never begun."""


class PartMismatch(Conflict):
    """The parts named to complete an upload are not the ones that are stored; send them again."""


BlobBytes = bytes | bytearray
"""What can be stored; the caller does not change a bytearray before the call returns."""

PARTS_MAX: Final = 10_000
"""Parts of one multipart upload; S3's own limit (Amazon S3 user guide, multipart upload limits)."""


STORAGE_CLASSES: Final = frozenset(
    {
        "STANDARD",
        "REDUCED_REDUNDANCY",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER",
        "DEEP_ARCHIVE",
        "OUTPOSTS",
        "GLACIER_IR",
        "SNOW",
        "EXPRESS_ONEZONE",
    }
)
"""What an upload may name (Amazon S3 API reference, PutObject, `x-amz-storage-class`)."""

THAW_SECONDS: Final[Mapping[str, float]] = {"GLACIER": 5 * 3600.0, "DEEP_ARCHIVE": 12 * 3600.0}
"""How long a standard retrieval takes at most (Amazon S3 user guide, archive retrieval options)."""

FROZEN_CLASSES: Final = frozenset(THAW_SECONDS)
"""Objects in these cannot be read from the moment they are stored, until they are thawed."""

READABLE_CLASS: Final = "STANDARD"
"""What is to be read back before it is frozen is stored in this one."""

ThawState = Literal["ready", "thawing", "frozen"]


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What the object store knows about a blob.

    Attributes:
        size_bytes: Its size.
        storage_class: One of `STORAGE_CLASSES`, or a server's own.
        state: Whether it can be read, by what S3 promises for its class. A server that knows the names of classes and
            freezes nothing, as SeaweedFS, gives what this calls frozen: ask it for the blob first.
        thawed_until: A thawed blob is frozen again at this time.
    """

    size_bytes: int
    storage_class: str = "STANDARD"
    state: ThawState = "ready"
    thawed_until: datetime | None = None


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

    @property
    def storage_class(self) -> str:
        """What blobs are stored in when nothing else is asked for; one of `STORAGE_CLASSES`."""
        ...

    async def put_if_absent(
        self, location: ObjectLocation, data: BlobBytes, *, storage_class: str | None = None
    ) -> None:
        """Store a blob; durable when this returns. Repeating it with the same bytes changes nothing.

        ``storage_class`` is one of `STORAGE_CLASSES`; None: the store's own.

        Raises:
            BlobExists: Other bytes are stored there.
            ValueError: There is no such class.
        """
        ...

    async def get(self, location: ObjectLocation) -> bytes:
        """Return the whole blob.

        Raises:
            BlobNotFound: Nothing is stored there.
            BlobFrozen: It must be thawed first.
        """
        ...

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """Return up to `length` bytes from offset `start`; fewer at the end, none past it.

        Raises:
            BlobNotFound: Nothing is stored there.
            BlobFrozen: It must be thawed first.
            ValueError: `start` is negative or `length` is below one.
        """
        ...

    async def head(self, location: ObjectLocation) -> BlobInfo:
        """Return the blob's size, class and whether it can be read, without reading it.

        Raises:
            BlobNotFound: Nothing is stored there.
        """
        ...

    async def thaw(self, location: ObjectLocation, days: int) -> None:
        """Begin to thaw a blob, so that it can be read for a while (S3: RestoreObject, retrieval tier Standard).

        Nothing happens to one that can be read because of its class, and to one that is being thawed; the time of one
        that is thawed already begins anew.

        ``days`` from now, rounded up to midnight UTC, it can be read; at least one.

        Raises:
            BlobNotFound: Nothing is stored there.
            ValueError: `days` is below one.
        """
        ...

    async def change_class(self, location: ObjectLocation, storage_class: str) -> None:
        """Move a blob to another storage class; the bytes stay, and repeating it changes nothing.

        So a blob that is read back before it is relied on can still end in a class that is frozen from the start.

        Raises:
            BlobNotFound: Nothing is stored there.
            BlobFrozen: It is in another class, and must be thawed first.
            BlobUnavailable: As everywhere; also if it is larger than 5 GiB, which S3 does not copy in one go.
            ValueError: There is no such class.
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
        """List what `list_keys` lists, with sizes and times.

        Multipart uploads that are not completed do not show.
        """
        ...

    async def begin_multipart(self, location: ObjectLocation, *, storage_class: str | None = None) -> str:
        """Begin an upload in parts.

        Returns:
            The id of the upload: opaque text, at most 1,024 characters.

        Raises:
            ValueError: There is no such class.
        """
        ...

    async def put_part(self, location: ObjectLocation, multipart_id: str, number: int, data: BlobBytes) -> str:
        """Store one part; durable when this returns. The same number again replaces the part.

        ``number`` is from 0 to `PARTS_MAX` - 1 (S3's own numbers are one more). All parts but the last have at least 5
        MiB.

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

        ``parts`` has every part as number and etag, numbers ascending, and at least one. ``size_bytes`` is the size of
        the whole object: one of this size that is already there counts as the answer that was lost, because no other
        upload ever writes to the same location.

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


def check_class(storage_class: str) -> str:
    """Refuse a storage class that S3 does not have; returns it.

    Raises:
        ValueError: It is none of `STORAGE_CLASSES`.
    """
    if storage_class not in STORAGE_CLASSES:
        raise ValueError(f"a storage class is one of {', '.join(sorted(STORAGE_CLASSES))}")
    return storage_class


def check_days(days: int) -> None:
    """Refuse a time that nothing is thawed for.

    Raises:
        ValueError: It is below one day.
    """
    if days < 1:
        raise ValueError("a blob is thawed for at least one day")


def check_range(start: int, length: int) -> None:
    """Refuse a byte range that no blob has.

    Raises:
        ValueError: `start` is negative or `length` is below one.
    """
    if start < 0 or length < 1:
        raise ValueError("a range starts at 0 or later and has at least one byte")
