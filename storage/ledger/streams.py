"""Plaintext streams in and out of the object store, sealed, with bounded memory.

Owns the way between an async stream of plaintext and the sealed object of `crypto.blob`: how much is held in memory,
how much goes on at once, and that the event loop stays fair (sealing holds the interpreter lock: 0.35 ms a MiB). A
blob smaller than a part is one conditional PUT; a larger one is a multipart upload of parts sealed one by one. It
knows no database: the intent is committed before anything here is called, and settled after it returned.

What it does not promise: a stream that is read may fail after it gave bytes. All bytes it gave are authentic, but only
a stream that ended without an error is complete; a caller that passes it on must break off, never end cleanly.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from crypto.blob import (
    BLOB_BYTES_MAX,
    COALESCED_BYTES_MAX,
    PART_BYTES,
    PREFIX_BYTES,
    SEALED_PART_BYTES,
    BlobCipher,
    PartSealer,
    Span,
    object_bytes,
    open_span,
    spans,
)
from crypto.ciphers.cobblestone import ChunkOpener
from crypto.errors import OpenError
from storage.blobs.keyspace import BlobLocation
from storage.blobs.store import BlobBytes, BlobNotFound, BlobStore, BlobUnavailable, MultipartNotFound
from storage.errors import StorageError, UploadExpired

SLICE_BYTES: Final = 1 << 20
SPAN_BYTES: Final = PART_BYTES  # of plaintext in one request: halves cost a third of the speed
PARTS_AT_ONCE: Final = 4  # of one upload; the next one is sealed meanwhile
SPANS_AHEAD: Final = 2  # of one download, fetched while another is given, if memory is free
# Of one process: together with `PIECE_BYTES_MAX`, twice, less than the 128 MiB that files may add to it.
WRITE_BYTES_MAX: Final = 5 * SEALED_PART_BYTES
READ_BYTES_MAX: Final = 5 * SEALED_PART_BYTES
PIECE_BYTES_MAX: Final = 2 * SEALED_PART_BYTES  # a budget of its own, so that no slow peer's file stops a save
ARCHIVE_BYTES_MAX: Final = 2 * SEALED_PART_BYTES  # likewise: a thread that comes back waits for no file
WAIT_SECONDS_MAX: Final = 20.0
ABANDON_SECONDS_MAX: Final = 5.0


class BlobDamaged(StorageError):
    """A blob is not what its pointer says: missing, cut, longer, altered, or another one."""


class BlobTooLarge(StorageError):
    """A blob has no room for so many bytes."""


class _Waiter(NamedTuple):
    number: int  # in the order of asking
    wanted: int
    turn: asyncio.Future[None]


class Budget:
    """A number of bytes that all streams of a process share, fairly between tenants.

    A tenant that holds some gets more only as long as it then holds no more than what was free before: alone about
    half of all, so that another tenant always finds some. A tenant that holds none gets what it asks for as soon as
    that is free. Streams that wait are served by what their tenants hold, least first, and then in the order of asking.
    So peers that send or read slowly delay those of their own tenant, and as many tenants as there are parts in the
    budget must do so to delay another's. A stream that waits for longer than `wait_seconds_max` is refused.
    """

    def __init__(self, bytes_max: int, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        """Begin with all bytes free."""
        self._free = self.bytes_max = bytes_max
        self._wait_seconds_max = wait_seconds_max
        self._held: dict[UUID, int] = {}
        self._waiters: dict[UUID, deque[_Waiter]] = {}
        self._asked = 0

    @property
    def held_bytes(self) -> int:
        """How many bytes are given out now."""
        return self.bytes_max - self._free

    async def take(self, size_bytes: int, tenant_id: UUID) -> int:
        """Wait for bytes; more than there are in all count as all.

        Returns:
            How many to `give` back.

        Raises:
            BlobUnavailable: They did not come free in time.
        """
        waiter = self._ask(size_bytes, tenant_id)
        if waiter.turn.done():
            return waiter.wanted
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await waiter.turn
        except BaseException as error:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.give(waiter.wanted, tenant_id)  # it was granted in the moment we stopped waiting
            else:
                self._withdraw(waiter, tenant_id)
            if isinstance(error, TimeoutError):
                raise BlobUnavailable("too many blobs are under way") from None
            raise
        return waiter.wanted

    def take_now(self, size_bytes: int, tenant_id: UUID) -> int | None:
        """Take bytes if there is no need to wait for them; None: they are not to be had."""
        waiter = self._ask(size_bytes, tenant_id)
        if waiter.turn.done():
            return waiter.wanted
        self._withdraw(waiter, tenant_id)
        return None

    def give(self, size_bytes: int, tenant_id: UUID) -> None:
        """Give bytes back."""
        self._free += size_bytes
        left = self._held.get(tenant_id, 0) - size_bytes
        if left > 0:
            self._held[tenant_id] = left
        else:
            self._held.pop(tenant_id, None)
        self._grant()

    @asynccontextmanager
    async def holding(self, size_bytes: int, tenant_id: UUID) -> AsyncIterator[None]:
        """Hold bytes for a while.

        Raises:
            BlobUnavailable: As `take`.
        """
        taken = await self.take(size_bytes, tenant_id)
        try:
            yield
        finally:
            self.give(taken, tenant_id)

    def _ask(self, size_bytes: int, tenant_id: UUID) -> _Waiter:
        self._asked += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(self._asked, min(size_bytes, self.bytes_max), turn)
        self._waiters.setdefault(tenant_id, deque()).append(waiter)
        self._grant()
        return waiter

    def _withdraw(self, waiter: _Waiter, tenant_id: UUID) -> None:
        self._remove(waiter, tenant_id)
        self._grant()

    def _remove(self, waiter: _Waiter, tenant_id: UUID) -> None:
        waiting = self._waiters[tenant_id]
        waiting.remove(waiter)
        if not waiting:
            del self._waiters[tenant_id]

    def _grant(self) -> None:
        while (chosen := self._choose()) is not None:
            tenant_id, waiter = chosen
            self._remove(waiter, tenant_id)
            self._free -= waiter.wanted
            self._held[tenant_id] = self._held.get(tenant_id, 0) + waiter.wanted
            waiter.turn.set_result(None)

    def _choose(self) -> tuple[UUID, _Waiter] | None:
        """Whose turn it is, if there are bytes for it."""
        first = [
            (self._held.get(tenant_id, 0), waiting[0].number, tenant_id, waiting[0])
            for tenant_id, waiting in self._waiters.items()
        ]
        for held, _, tenant_id, waiter in sorted(first, key=lambda each: each[:2]):
            if waiter.wanted > self._free:
                return None  # small ones behind it would keep it waiting for ever
            # It was cancelled, and its waiter withdraws it in a moment; or its tenant has its share.
            if waiter.turn.done() or (held and held + waiter.wanted > self._free):
                continue
            return tenant_id, waiter
        return None


@dataclass(frozen=True, slots=True)
class Written:
    """What was stored.

    ``size_bytes`` is the plaintext's, which the sealed pointer keeps.
    """

    size_bytes: int
    object_bytes: int


async def seal_part(cipher: BlobCipher, number: int, plaintext: BlobBytes, *, last: bool) -> bytearray:
    """Seal a whole part under a new salt, in slices that leave the event loop time.

    Raises:
        ValueError: As `BlobCipher.seal_part`.
    """
    part = cipher.part_sealer(number)
    source = memoryview(plaintext)
    if len(source) > PART_BYTES:
        raise ValueError("a part is not longer than PART_BYTES")
    for offset in range(0, len(source), SLICE_BYTES):
        part.write(source[offset : offset + SLICE_BYTES])
        await asyncio.sleep(0)
    return part.finish(last=last)


class BlobWriter:
    """Seals and stores; one for each process, because it owns the process's memory for uploads."""

    def __init__(self, store: BlobStore, *, bytes_max: int = WRITE_BYTES_MAX) -> None:
        """Use a store, whose life is the caller's."""
        self.store = store
        self.budget = Budget(bytes_max)

    async def write(
        self,
        location: BlobLocation,
        cipher: BlobCipher,
        body: AsyncIterator[BlobBytes],
        *,
        size_bytes: int | None = None,
        size_bytes_max: int = BLOB_BYTES_MAX,
        on_multipart: Callable[[str], Awaitable[None]] | None = None,
        storage_class: str | None = None,
    ) -> Written:
        """Store a stream as one blob; durable when this returns.

        After an error or a cancellation nothing is stored, except where the object store does not answer: an upload
        or an object may then remain, which the intent remembers. Not to be repeated at the same location, because
        the stream is gone and other bytes are sealed under another salt: take a new blob id.

        Args:
            location: The place of the object; nothing was ever stored there.
            cipher: The cipher of a new blob key.
            body: The plaintext in chunks of any size, the caller's to end and to close.
            size_bytes: How long the stream is at most, if that is known; what is shorter than a part then takes less
                memory.
            size_bytes_max: Refuse longer streams.
            on_multipart: Awaited with the id of a multipart upload before its first part is stored.
            storage_class: The storage class, as for `BlobStore.put_if_absent`.

        Raises:
            BlobTooLarge: The stream is longer than `size_bytes` or `size_bytes_max`.
            BlobUnavailable: The object store does not answer, or too many blobs are under way.
            BlobExists: Something is stored there.
            UploadExpired: It took so long that a sweeper removed its first parts.
        """
        if size_bytes is not None:
            size_bytes_max = min(size_bytes, size_bytes_max)
        upload = _Upload(self.store, self.budget, location, cipher, size_bytes_max, on_multipart, storage_class)
        try:
            async for data in body:
                await upload.write(data)
            await upload.finish()
        except MultipartNotFound:
            await upload.abandon()
            raise UploadExpired from None
        except BaseException:
            await upload.abandon()
            raise
        return Written(upload.size_bytes, object_bytes(upload.size_bytes))

    async def write_bytes(
        self, location: BlobLocation, cipher: BlobCipher, data: BlobBytes, *, storage_class: str | None = None
    ) -> Written:
        """Store bytes as one blob; otherwise as `write`.

        Raises:
            BlobUnavailable, BlobExists, UploadExpired: As `write`.
        """

        async def body() -> AsyncIterator[BlobBytes]:
            yield data

        if len(data) >= PART_BYTES:
            return await self.write(location, cipher, body(), storage_class=storage_class)
        async with self.budget.holding(object_bytes(len(data)), location.tenant_id):
            sealed = await seal_part(cipher, 0, data, last=True)
            await self.store.put_if_absent(location, sealed, storage_class=storage_class)
        return Written(len(data), len(sealed))

    async def put_part(
        self,
        location: BlobLocation,
        cipher: BlobCipher,
        multipart_id: str,
        number: int,
        plaintext: BlobBytes,
        *,
        last: bool,
    ) -> str:
        """Seal one part of a multipart upload, under a new salt each time, and store it.

        For uploads that go on after a crash; completing them needs the etags, in the object store's
        `complete_multipart` with `size_bytes=crypto.blob.object_bytes(...)`.

        Returns:
            The part's etag.

        Raises:
            MultipartNotFound: The upload was aborted or completed.
            BlobUnavailable: As `write`.
            ValueError: A last part is full, or another is not, or no part has this number.
        """
        taken = SEALED_PART_BYTES if not last else object_bytes(len(plaintext))
        async with self.budget.holding(taken, location.tenant_id):
            sealed = await seal_part(cipher, number, plaintext, last=last)
            return await self.store.put_part(location, multipart_id, number, sealed)


class BlobReader:
    """Fetches and opens; one for each process, because it owns the process's memory for downloads."""

    def __init__(self, store: BlobStore, *, bytes_max: int = READ_BYTES_MAX) -> None:
        """Use a store, whose life is the caller's."""
        self._store = store
        self.budget = Budget(bytes_max)

    async def read_bytes(self, location: BlobLocation, cipher: BlobCipher, size_bytes: int) -> bytes:
        """Return a whole blob; releases nothing unless all of it is authentic.

        Raises:
            BlobDamaged: As `read`.
            BlobUnavailable: As `read`.
        """
        parts = [part async for part in self.read(location, cipher, size_bytes)]
        return parts[0] if len(parts) == 1 else await asyncio.to_thread(b"".join, parts)

    async def read(
        self,
        location: BlobLocation,
        cipher: BlobCipher,
        size_bytes: int,
        start: int = 0,
        length: int | None = None,
        *,
        span_bytes: int = SPAN_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        """Give a range of a blob's plaintext in slices of at most 1 MiB, each authentic.

        A range that ends where the blob ends also proves that the object ends there. Close the generator when it is
        not read to its end (`contextlib.aclosing`). What does not authenticate is
        fetched once more before it is damage.

        The cipher and ``size_bytes``, the size of the whole plaintext, are from the opened pointer. ``length`` None:
        all that follows ``start``. One request to the object store is for at most ``span_bytes`` of plaintext, a
        multiple of 16,384.

        Raises:
            BlobDamaged: The object is not what the pointer says; possibly after some slices were given.
            BlobUnavailable: The object store does not answer, or too many blobs are under way; likewise.
            BlobFrozen: The object must be thawed first.
            ValueError: The range is not inside the blob.
        """
        if length is None:
            length = size_bytes - start
        if not length and 0 <= start <= size_bytes and size_bytes:
            return
        given, read_again = 0, False
        while True:
            # From the last byte that was given: what ends its part has no bytes of its own, and must be there, too.
            known = min(given, 1)
            wanted = spans(size_bytes, start + given - known, length - given + known, span_bytes_max=span_bytes)
            download = _Download(self._store, self.budget, location, cipher, wanted)
            try:
                async for piece in download.run():
                    fresh, known = piece[known:], 0
                    given += len(fresh)
                    if fresh:
                        yield fresh
            except OpenError:  # perhaps it was spoiled on the way only
                if read_again or given == length:
                    raise BlobDamaged from None
            except BlobNotFound:
                raise BlobDamaged from None
            else:
                return
            finally:
                download.stop()
            read_again = True


class _Upload:
    """One stream on its way: the part that is being sealed, and those that are being stored."""

    def __init__(
        self,
        store: BlobStore,
        budget: Budget,
        location: BlobLocation,
        cipher: BlobCipher,
        size_bytes_max: int,
        on_multipart: Callable[[str], Awaitable[None]] | None,
        storage_class: str | None,
    ) -> None:
        self.size_bytes = 0
        self._size_bytes_max = min(size_bytes_max, BLOB_BYTES_MAX)
        self._store = store
        self._budget = budget
        self._location = location
        self._cipher = cipher
        self._on_multipart = on_multipart
        self._storage_class = storage_class
        self._multipart_id: str | None = None
        self._number = 0
        self._part: PartSealer | None = None
        self._part_taken = 0
        self._storing: deque[asyncio.Task[tuple[int, str]]] = deque()
        self._stored: list[tuple[int, str]] = []

    async def write(self, data: BlobBytes) -> None:
        source = memoryview(data)
        if self.size_bytes + len(source) > self._size_bytes_max:
            raise BlobTooLarge
        while source:
            part = self._part or await self._begin_part()
            taken = part.write(source[:SLICE_BYTES])
            source = source[taken:]
            self.size_bytes += taken
            if not part.room_bytes:
                # A full part is never the last one, so it can go at once.
                await self._store_part(part.finish(last=False))
            elif source:
                await asyncio.sleep(0)

    async def finish(self) -> None:
        sealed = (self._part or await self._begin_part()).finish(last=True)
        if self._multipart_id is None:
            await self._store.put_if_absent(self._location, sealed, storage_class=self._storage_class)
            self._give_part()
            return
        await self._store_part(sealed)
        await self._settle(0)
        await self._store.complete_multipart(
            self._location, self._multipart_id, self._stored, size_bytes=object_bytes(self.size_bytes)
        )

    async def abandon(self) -> None:
        """Stop, give memory back, and drop what the object store has of it, if it answers."""
        self._give_part()
        if self._storing:
            # A request cannot be called back, and a part that arrives after the abort survives it.
            await asyncio.wait(self._storing, timeout=ABANDON_SECONDS_MAX)
        if self._multipart_id is not None:
            with suppress(BlobUnavailable):
                await self._store.abort_multipart(self._location, self._multipart_id)

    async def _begin_part(self) -> PartSealer:
        left = self._size_bytes_max - self.size_bytes
        needed = object_bytes(left) if left < PART_BYTES else SEALED_PART_BYTES
        self._part_taken = await self._budget.take(needed, self._location.tenant_id)
        self._part = self._cipher.part_sealer(self._number)
        return self._part

    def _give_part(self) -> None:
        if self._part_taken:
            self._budget.give(self._part_taken, self._location.tenant_id)
        self._part, self._part_taken = None, 0

    async def _store_part(self, sealed: bytearray) -> None:
        if self._multipart_id is None:
            self._multipart_id = await self._store.begin_multipart(self._location, storage_class=self._storage_class)
            if self._on_multipart is not None:
                await self._on_multipart(self._multipart_id)
        taken, self._part, self._part_taken = self._part_taken, None, 0
        task = asyncio.create_task(self._put(self._multipart_id, self._number, sealed))
        task.add_done_callback(_Giving(self._budget, taken, self._location.tenant_id))
        self._storing.append(task)
        self._number += 1
        await self._settle(PARTS_AT_ONCE)

    async def _put(self, multipart_id: str, number: int, sealed: bytearray) -> tuple[int, str]:
        return number, await self._store.put_part(self._location, multipart_id, number, sealed)

    async def _settle(self, storing_max: int) -> None:
        """Wait until at most ``storing_max`` parts are being stored, the oldest first."""
        while len(self._storing) > storing_max or (self._storing and self._storing[0].done()):
            self._stored.append(await asyncio.shield(self._storing[0]))
            self._storing.popleft()


class _Download:
    """One range on its way: requests under way, in order, and the opener of the part that is read."""

    def __init__(
        self, store: BlobStore, budget: Budget, location: BlobLocation, cipher: BlobCipher, wanted: Iterator[Span]
    ) -> None:
        self._store = store
        self._budget = budget
        self._location = location
        self._cipher = cipher
        self._wanted = wanted
        self._next = next(wanted, None)
        self._fetching: deque[_Fetch] = deque()
        self._fetched_part = -1

    async def run(self) -> AsyncGenerator[bytes, None]:
        opener: ChunkOpener | None = None
        while self._next is not None or self._fetching:
            if not self._fetching and self._next is not None:
                # Only who holds nothing waits for memory: two that hold some could wait for each other.
                self._begin(self._next, await self._take(self._next))
            self._look_ahead()
            fetch = self._fetching[0]
            prefix, sealed = await asyncio.shield(fetch.task)
            if prefix is not None:
                opener = self._cipher.opener(fetch.span.part, prefix)
            if opener is None:  # the first span of a part always fetches its prefix
                raise OpenError("format")
            for piece in open_span(opener, fetch.span, sealed, slice_bytes_max=SLICE_BYTES):
                yield piece
                await asyncio.sleep(0)
            del sealed
            self._fetching.popleft()
            self._budget.give(fetch.taken, self._location.tenant_id)

    async def _take(self, span: Span) -> int:
        return await self._budget.take(_span_memory(span), self._location.tenant_id)

    def stop(self) -> None:
        """Give memory back; that of requests under way when they end, because they cannot be called back."""
        for fetch in self._fetching:
            giving = _Giving(self._budget, fetch.taken, self._location.tenant_id)
            if fetch.task.done():
                giving(fetch.task)
            else:
                fetch.task.add_done_callback(giving)
        self._fetching.clear()

    def _look_ahead(self) -> None:
        while self._next is not None and len(self._fetching) <= SPANS_AHEAD:
            taken = self._budget.take_now(_span_memory(self._next), self._location.tenant_id)
            if taken is None:
                return
            self._begin(self._next, taken)

    def _begin(self, span: Span, taken: int) -> None:
        fetching = self._fetch(span, with_prefix=span.part != self._fetched_part)
        self._fetching.append(_Fetch(span, asyncio.create_task(fetching), taken))
        self._fetched_part = span.part
        self._next = next(self._wanted, None)

    async def _fetch(self, span: Span, *, with_prefix: bool) -> tuple[memoryview | None, memoryview]:
        # One byte more than the object should have: so something that was appended is found out.
        length = span.sealed_bytes + (1 if span.ends_object else 0)
        if with_prefix and span.coalesced:
            before = span.offset - span.prefix_offset
            data = memoryview(await self._store.get_range(self._location, span.prefix_offset, before + length))
            return data[:PREFIX_BYTES], data[before:]
        if with_prefix:
            prefix, chunks = await asyncio.gather(
                self._store.get_range(self._location, span.prefix_offset, PREFIX_BYTES),
                self._store.get_range(self._location, span.offset, length),
            )
            return memoryview(prefix), memoryview(chunks)
        return None, memoryview(await self._store.get_range(self._location, span.offset, length))


class _Fetch(NamedTuple):
    span: Span
    task: "asyncio.Task[tuple[memoryview | None, memoryview]]"
    taken: int


class _Giving:
    """Gives memory back when a task ends, and hears its error, which nothing else waits for."""

    def __init__(self, budget: Budget, taken: int, tenant_id: UUID) -> None:
        self._budget = budget
        self._taken = taken
        self._tenant_id = tenant_id

    def __call__(self, task: "asyncio.Task[Any]") -> None:
        self._budget.give(self._taken, self._tenant_id)
        if not task.cancelled():
            task.exception()


def _span_memory(span: Span) -> int:
    return span.sealed_bytes + (min(span.offset - span.prefix_offset, COALESCED_BYTES_MAX))
