"""The in-memory twin of the object store; it forgets everything with the process.

Storage classes are S3's: what is stored in a frozen one cannot be read at once, thawing takes as long as the twin was
told, by its clock, and what was thawed freezes again at the midnight (UTC) after its days.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from uuid import uuid4

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.store import (
    FROZEN_CLASSES,
    THAW_SECONDS,
    BlobBytes,
    BlobExists,
    BlobFrozen,
    BlobInfo,
    BlobNotFound,
    BlobUnavailable,
    MultipartInfo,
    MultipartNotFound,
    ObjectInfo,
    PartMismatch,
    check_class,
    check_days,
    check_part_number,
    check_parts,
    check_range,
)
from storage.clock import Clock, SystemClock


@dataclass(slots=True)
class _Multipart:
    object_key: str
    begun_at: datetime
    storage_class: str
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _ObjectState:
    """What is known of an object beside its bytes; a thaw has an end and, before, a moment when it can be read."""

    modified_at: datetime
    storage_class: str
    thawed_at: datetime | None = None
    thawed_until: datetime | None = None


class MemoryBlobStore:
    """A `BlobStore` in a dictionary.

    ``available`` False makes every operation raise `BlobUnavailable`. ``thaw_seconds`` None: as long as S3's take at
    most.
    """

    def __init__(
        self, *, clock: Clock | None = None, storage_class: str = "STANDARD", thaw_seconds: float | None = None
    ) -> None:
        self.available = True
        self.storage_class = check_class(storage_class)
        self._clock = clock or SystemClock()
        self._thaw_seconds = thaw_seconds
        self._objects: dict[str, bytes] = {}
        self._states: dict[str, _ObjectState] = {}
        self._multiparts: dict[str, _Multipart] = {}

    async def put_if_absent(
        self, location: ObjectLocation, data: BlobBytes, *, storage_class: str | None = None
    ) -> None:
        """See `BlobStore`."""
        chosen = check_class(storage_class or self.storage_class)
        await self.health()
        self._put(location.object_key(), bytes(data), chosen)

    async def get(self, location: ObjectLocation) -> bytes:
        """See `BlobStore`."""
        info = await self.head(location)
        if info.state != "ready":
            raise BlobFrozen
        return self._objects[location.object_key()]

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        """See `BlobStore`."""
        check_range(start, length)
        return (await self.get(location))[start : start + length]

    async def head(self, location: ObjectLocation) -> BlobInfo:
        """See `BlobStore`."""
        await self.health()
        state = self._state(location)
        info = BlobInfo(len(self._objects[location.object_key()]), state.storage_class)
        if state.storage_class not in FROZEN_CLASSES:
            return info
        now = self._clock.now()
        if state.thawed_at is None or state.thawed_until is None or now >= state.thawed_until:
            return replace(info, state="frozen")
        if now < state.thawed_at:
            return replace(info, state="thawing")
        return replace(info, thawed_until=state.thawed_until)

    async def thaw(self, location: ObjectLocation, days: int) -> None:
        """See `BlobStore`."""
        check_days(days)
        info = await self.head(location)
        if info.storage_class not in FROZEN_CLASSES or info.state == "thawing":
            return
        state, now = self._state(location), self._clock.now()
        if info.state == "frozen":
            seconds = THAW_SECONDS[info.storage_class] if self._thaw_seconds is None else self._thaw_seconds
            state.thawed_at = now + timedelta(seconds=seconds)
        state.thawed_until = datetime.combine((now + timedelta(days=days + 1)).date(), time(), UTC)

    async def change_class(self, location: ObjectLocation, storage_class: str) -> None:
        """See `BlobStore`."""
        check_class(storage_class)
        info = await self.head(location)
        if info.storage_class == storage_class:
            return
        if info.state != "ready":
            raise BlobFrozen
        self._states[location.object_key()] = _ObjectState(self._clock.now(), storage_class)

    async def delete(self, location: ObjectLocation) -> None:
        """See `BlobStore`."""
        await self.health()
        self._objects.pop(location.object_key(), None)
        self._states.pop(location.object_key(), None)

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See `BlobStore`."""
        return [found.object_key for found in await self.list_objects(prefix, after=after, limit=limit)]

    async def list_objects(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        """See `BlobStore`."""
        await self.health()
        names = sorted(found for found in self._objects if found.startswith(prefix) and found > after)
        return [ObjectInfo(name, len(self._objects[name]), self._states[name].modified_at) for name in names[:limit]]

    async def begin_multipart(self, location: ObjectLocation, *, storage_class: str | None = None) -> str:
        """See `BlobStore`."""
        chosen = check_class(storage_class or self.storage_class)
        await self.health()
        multipart_id = uuid4().hex
        self._multiparts[multipart_id] = _Multipart(location.object_key(), self._clock.now(), chosen)
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
        upload = self._multipart(location, multipart_id)
        received = upload.parts
        if any(number not in received or _etag(received[number]) != etag for number, etag in parts):
            raise PartMismatch
        self._put(location.object_key(), b"".join(received[number] for number, _ in parts), upload.storage_class)
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

    def _put(self, object_key: str, data: bytes, storage_class: str) -> None:
        if self._objects.setdefault(object_key, data) != data:
            raise BlobExists
        self._states.setdefault(object_key, _ObjectState(self._clock.now(), storage_class))

    def _state(self, location: ObjectLocation) -> _ObjectState:
        try:
            return self._states[location.object_key()]
        except KeyError:
            raise BlobNotFound from None

    def _multipart(self, location: ObjectLocation, multipart_id: str) -> _Multipart:
        found = self._multiparts.get(multipart_id)
        if found is None or found.object_key != location.object_key():
            raise MultipartNotFound
        return found


def _etag(data: BlobBytes) -> str:
    return hashlib.sha256(data).hexdigest()
