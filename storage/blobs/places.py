"""Which object store a place is. Owns the mapping and nothing else: the life of the stores is the caller's."""

from storage.blobs.store import BlobStore
from storage.model import Bucket


class Places:
    """The object stores of a deployment, by place; a place without one is None.

    Both may be one bucket: the names of objects tell the places apart (`storage.blobs.keyspace`).
    """

    __slots__ = ("archive", "blobs")

    def __init__(self, blobs: BlobStore | None, archive: BlobStore | None = None) -> None:
        self.blobs = blobs
        self.archive = archive

    def of(self, place: Bucket) -> BlobStore | None:
        """The object store of a place, or None."""
        return self.archive if place == "archive" else self.blobs

    @property
    def in_use(self) -> tuple[tuple[Bucket, BlobStore], ...]:
        """The places that have an object store, with it."""
        every: tuple[tuple[Bucket, BlobStore | None], ...] = (("blobs", self.blobs), ("archive", self.archive))
        return tuple((place, store) for place, store in every if store is not None)
