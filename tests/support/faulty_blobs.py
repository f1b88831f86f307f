"""A `BlobStore` around another one that fails by script.

    faults = FaultyBlobStore(MemoryBlobStore())
    faults.plan("put_part", None, Fault.LOST_RESPONSE)        # the second put_part is done, but nobody hears of it
    faults.plan("get_range", Fault.TRUNCATED, Fault.UNAVAILABLE)
    faults.hook = kill_point                                  # awaited with ("before" | "after", operation)

Calls that no plan covers go through. What a plan still holds is in `planned`; every call that was made is in `calls`.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Literal

from storage.blobs.keyspace import ObjectLocation
from storage.blobs.store import BlobBytes, BlobInfo, BlobStore, BlobUnavailable, MultipartInfo, ObjectInfo

Moment = Literal["before", "after"]
Hook = Callable[[Moment, str], Awaitable[None]]


class Fault(Enum):
    """What goes wrong; to the caller all but the last two are `BlobUnavailable`: the outcome is unknown."""

    UNAVAILABLE = "the server answers 503 and does nothing"
    TIMEOUT_BEFORE = "the request never arrives"
    TIMEOUT_AFTER = "the request is done, later than the caller waits"
    LOST_RESPONSE = "the request is done, the connection breaks"
    TRUNCATED = "half of the bytes arrive, and the connection ends as if that were all"
    SLOW = "the answer comes when `release` is set"


class FaultyBlobStore:
    """See the module.

    Attributes:
        inner: The store that does the work.
        hook: Awaited before and after every call of the inner store.
        release: Slow calls wait for it.
        waiting: Set when a slow call begins to wait.
        calls: Names of the operations that were called, in order.
    """

    def __init__(self, inner: BlobStore, hook: Hook | None = None) -> None:
        self.inner = inner
        self.hook = hook
        self.release = asyncio.Event()
        self.waiting = asyncio.Event()
        self.calls: list[str] = []
        self._plans: defaultdict[str, deque[Fault | None]] = defaultdict(deque)

    def plan(self, operation: str, *faults: Fault | None) -> None:
        """Let the next calls of an operation fail so, one after another; None lets one through.

        Raises:
            AttributeError: No store has such an operation.
        """
        getattr(self.inner, operation)
        self._plans[operation].extend(faults)

    def heal(self) -> None:
        """Let every call through from now on."""
        self._plans.clear()

    @property
    def planned(self) -> int:
        """How many planned calls were not made yet."""
        return sum(map(len, self._plans.values()))

    @property
    def storage_class(self) -> str:
        return self.inner.storage_class

    async def put_if_absent(
        self, location: ObjectLocation, data: BlobBytes, *, storage_class: str | None = None
    ) -> None:
        await self._call("put_if_absent", location, data, storage_class=storage_class)

    async def thaw(self, location: ObjectLocation, days: int) -> None:
        await self._call("thaw", location, days)

    async def change_class(self, location: ObjectLocation, storage_class: str) -> None:
        await self._call("change_class", location, storage_class)

    async def get(self, location: ObjectLocation) -> bytes:
        return await self._call("get", location)

    async def get_range(self, location: ObjectLocation, start: int, length: int) -> bytes:
        return await self._call("get_range", location, start, length)

    async def head(self, location: ObjectLocation) -> BlobInfo:
        return await self._call("head", location)

    async def delete(self, location: ObjectLocation) -> None:
        await self._call("delete", location)

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return await self._call("list_keys", prefix, after=after, limit=limit)

    async def list_objects(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        return await self._call("list_objects", prefix, after=after, limit=limit)

    async def begin_multipart(self, location: ObjectLocation, *, storage_class: str | None = None) -> str:
        return await self._call("begin_multipart", location, storage_class=storage_class)

    async def put_part(self, location: ObjectLocation, multipart_id: str, number: int, data: BlobBytes) -> str:
        return await self._call("put_part", location, multipart_id, number, data)

    async def complete_multipart(
        self, location: ObjectLocation, multipart_id: str, parts: Sequence[tuple[int, str]], *, size_bytes: int
    ) -> None:
        await self._call("complete_multipart", location, multipart_id, parts, size_bytes=size_bytes)

    async def abort_multipart(self, location: ObjectLocation, multipart_id: str) -> None:
        await self._call("abort_multipart", location, multipart_id)

    async def list_multiparts(self, prefix: str) -> list[MultipartInfo]:
        return await self._call("list_multiparts", prefix)

    async def health(self) -> None:
        await self._call("health")

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def _call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(operation)
        plans = self._plans[operation]
        fault = plans.popleft() if plans else None
        if fault in {Fault.UNAVAILABLE, Fault.TIMEOUT_BEFORE}:
            raise BlobUnavailable(fault.value)
        if self.hook is not None:
            await self.hook("before", operation)
        if fault is Fault.SLOW:
            self.waiting.set()
            await self.release.wait()
        answer = await getattr(self.inner, operation)(*args, **kwargs)
        if self.hook is not None:
            await self.hook("after", operation)
        if fault in {Fault.TIMEOUT_AFTER, Fault.LOST_RESPONSE}:
            raise BlobUnavailable(fault.value)
        if fault is Fault.TRUNCATED:
            return answer[: len(answer) // 2]
        return answer
