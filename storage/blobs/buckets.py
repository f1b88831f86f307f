"""Which object store a bucket is. Owns the mapping and nothing else: the life of the stores is the caller's."""

from storage.blobs.store import BlobStore
from storage.model import Bucket


class Buckets:
    """The object stores of a deployment, by bucket; a bucket without one is None.

    Both may be one in the object store: the names of objects tell them apart (`storage.blobs.keyspace`).
    """

    __slots__ = ("archive", "blobs")

    def __init__(self, blobs: BlobStore | None, archive: BlobStore | None = None) -> None:
        self.blobs = blobs
        self.archive = archive

    def of(self, bucket: Bucket) -> BlobStore | None:
        """The object store of a bucket, or None."""
        return self.archive if bucket == "archive" else self.blobs

    @property
    def in_use(self) -> tuple[tuple[Bucket, BlobStore], ...]:
        """The buckets that have an object store, with it."""
        every: tuple[tuple[Bucket, BlobStore | None], ...] = (("blobs", self.blobs), ("archive", self.archive))
        return tuple((bucket, store) for bucket, store in every if store is not None)
