"""Named limits with their units and reasons, and the admission that enforces the ones about concurrency.

Owns how many requests run at once: per process, per tenant and, for writes, per thread; how many bytes of bodies and
answers they hold meanwhile; whose slice of work on them is next; and the promise that a write whose body was read runs
to COMMIT although its client hangs up. A request that is not admitted is refused at once, and who waits for a thread
does so in a line that is bounded. It does not limit rates over time, and it knows one process only: ten processes admit
ten times as much. How a tenant's requests share the database's connections with those of others is
`storage.postgres.unit_of_work`'s affair.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol, TypeVar
from uuid import UUID

import structlog

from gateway.admission.refusals import Refusals
from gateway.admission.slices import Slices, Work, finish
from gateway.admission.write_outcomes import WriteOutcomes
from storage import encoding
from storage.concurrency.queues import FairQueue
from storage.errors import StateTooLarge

HEADER_BYTES_MAX = 64 * 1024  # of a request with its target; an artifact's metadata and preview take 30
HEADERS_MAX = 100  # of a request; ours and those of two proxies are 40
HEADER_SECONDS_MAX = 10.0  # from a connection or a request's first byte to its last header: it is one packet
CONNECTIONS_MAX = 2048  # of a process: eight for each request it serves at once; an idle one takes some 10 KiB
BODY_BYTES_MAX = 32 * 1024 * 1024  # a large agent state; anything bigger belongs into an artifact
HELD_BYTES_MAX = 5 * BODY_BYTES_MAX  # of bodies and answers in a process; what is made of them is some five times that
TENANT_HELD_BYTES_MAX = 3 * BODY_BYTES_MAX  # of one tenant: the largest answer there is fits, and two tenants do
BODY_IDLE_SECONDS_MAX = 10.0  # a client that sends nothing this long holds a slot for nothing (slow loris)
BODY_SECONDS_MAX = 120.0  # 32 MiB at 280 KB/s
ARTIFACT_BYTES_MAX = 50 * 1024**3  # what a person still uploads; well within the 10,000 parts of an object
PREVIEW_BYTES_MAX = 4096  # sealed into every row of a listing
PREVIEWS_BYTES_MAX = 1024 * 1024  # of large values in one request: 256 of the longest, more than a step brings
STREAM_BYTES_PER_SECOND_MIN = 16 * 1024  # on average, after BODY_SECONDS_MAX; slower holds a slot for nothing
STREAM_IDLE_SECONDS_MAX = 60.0  # how long a reader of an answer may take nothing at all
ANSWER_SLICE_BYTES = 64 * 1024  # what is sent of an answer before its reader is waited for; most fit in one
ANSWER_SECONDS_MAX = 30.0  # for its first bytes; an answer is held in memory until the socket took it
ANSWER_BYTES_PER_SECOND_MIN = 64 * 1024  # on average, after that; a slow mobile line. Worst: 32 MiB in nine minutes
CHANNELS_MAX = 1000  # channels in one save; more is a list spelled as channels
WRITES_MAX = 1000  # pending writes in one request, as many as channels
BULK_ITEMS_MAX = 1000  # threads or runs that one request removes
# Of a request: containers, leaves, names of members; worst are a body of [] and one of {"a":0}.
VALUES_MAX = encoding.JSON_VALUES_MAX
TREE_BYTES_MAX = 8 * 1024 * 1024  # of a JSON body beside its texts: numbers, brackets, blanks; worst is one long number
SLICED_BYTES_MIN = 4 * 1024  # as large a body or state is worked on in slices, one in each turn of the event loop
FAULTS_MAX = 20  # of a request that its problem names: more than anybody mends at once
DEPTH_MAX = 64  # nesting of a body; deeper input only serves to exhaust a parser's stack
NAME_BYTES_MAX = 255  # the longest name PostgreSQL indexes without thinking, and a file name everywhere
METADATA_BYTES_MAX = 16 * 1024  # sealed into every checkpoint of a history page
INLINED_BYTES_EACH_MAX = 1024 * 1024  # a screenshot; what is larger is better fetched by range
INLINED_BYTES_MAX = 8 * 1024 * 1024  # of all contents of an answer: it is held in memory, a third more in JSON
INLINED_ARTIFACTS_MAX = 1000  # named by an answer and looked up: as many as a page of a listing
INLINED_AT_ONCE = 4  # contents of an answer that are fetched at once; the object store's connections are everybody's
PAGE_ITEMS_MAX = 1000  # a page is built in memory
PAGE_ITEMS_DEFAULT = 100
ACCEPT_BYTES_MAX = 1024  # several times what any browser sends; it is read range by range, and remembered
QUERY_FIELDS_MAX = 1100  # 1,000 channels and everything else a query may name
TENANT_REQUESTS_IN_FLIGHT_MAX = 128  # one tenant may fill half the default of 256, never all of it
THREAD_WRITES_ACTIVE_MAX = 2  # one commits (the thread's row lock allows no more), one prepares meanwhile
THREAD_WRITES_WAITING_MAX = 64  # a wide fan-out of tasks; beyond it the client should back off
THREAD_WAIT_SECONDS_MAX = 5.0  # well within a client's attempt timeout of 10 s
EXPORT_BYTES_MAX = 1024**4  # a tenant; one that has more moves it subject by subject
TRANSFERS_AT_ONCE = 4  # exports and imports of a process: each keeps a core busy as long as its peer is fast
TENANT_TRANSFERS_AT_ONCE = 1  # of one tenant: two of the same only wait for each other
REFUSED_SECONDS_MAX = 5.0  # how long the rest of an import that was refused is read, so that its client hears why
TRANSFER_RETRY_SECONDS = 30.0  # a transfer takes minutes
WAITERS_MAX = 1024  # who wait for events or decisions in a process: half of its connections, each a few KiB
TENANT_WAITERS_MAX = 256  # of one tenant: four of them fit
WAIT_SECONDS_MAX = 30  # of one request for events: proxies wait at least a minute
WAITER_BYTES_MAX = 64 * 1024  # of events that wait for a listener; what is more it reads by itself
RETRY_AFTER_SECONDS = 1.0  # what a refused request is told; load of this kind passes within a second

T = TypeVar("T")
ThreadAddress = tuple[UUID, str, str]  # tenant, subject, thread

_log = structlog.get_logger()


class Refused(Exception):
    """The request was not admitted; nothing was done and it may be repeated.

    Attributes:
        reason: The problem code, one of a few constants (it is a metric label).
        retry_after_seconds: When another try makes sense.
    """

    def __init__(self, reason: str, detail: str, retry_after_seconds: float = RETRY_AFTER_SECONDS) -> None:
        super().__init__(detail)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class HeadersTooLarge(Exception):
    """The headers of a request are larger, or more, than allowed.

    Attributes:
        limit: The name of the limit.
    """

    def __init__(self, limit: str, allowed: int, unit: str) -> None:
        super().__init__(f"the headers of a request, with its target, may have {allowed:,} {unit} ({limit})")
        self.limit = limit


class Overloaded(Refused):
    """The process serves as many requests or connections, or holds as much of their bodies, as it may."""

    def __init__(self, detail: str = "this process serves as many requests as REQUESTS_IN_FLIGHT_MAX allows") -> None:
        super().__init__("overloaded", detail)


class Draining(Refused):
    """The process is about to stop; another one answers at the same address."""

    def __init__(self) -> None:
        super().__init__("draining", "this process is shutting down; repeat the request")


class TenantBusy(Refused):
    """The tenant has as many requests in flight, or as much of their bodies, as it may."""

    def __init__(
        self, detail: str = f"the tenant has {TENANT_REQUESTS_IN_FLIGHT_MAX} requests in flight; send fewer at once"
    ) -> None:
        super().__init__("tenant-busy", detail)


class AnswerTooLarge(StateTooLarge):
    """The answer would take more than one tenant may hold; ask in MessagePack, or for less."""

    limit = "TENANT_HELD_BYTES_MAX"

    def __init__(self) -> None:
        super().__init__(TENANT_HELD_BYTES_MAX)


class TooManyFailures(Refused):
    """Too many keys that open nothing were tried; this one was not looked at."""

    def __init__(self) -> None:
        super().__init__(
            "too-many-failures", "too many keys that open nothing are tried here; this one was not looked at"
        )


class ThreadBusy(Refused):
    """Too many writes wait for the thread."""

    def __init__(self) -> None:
        super().__init__("thread-busy", "too many writes to this thread are waiting; send fewer at once")


class TransferBusy(Refused):
    """The tenant, or the process, exports and imports as much at once as it may."""

    def __init__(self) -> None:
        super().__init__(
            "transfer-busy",
            f"a tenant exports, imports or reads trajectories {TENANT_TRANSFERS_AT_ONCE} at once, "
            f"a process {TRANSFERS_AT_ONCE}",
            TRANSFER_RETRY_SECONDS,
        )


class InFlight(Protocol):
    """What counts in-flight work for the metrics."""

    def inc(self, amount: float = 1) -> None:
        """Add to what is in flight."""

    def dec(self, amount: float = 1) -> None:
        """Take from what is in flight."""


class _Load:
    """What one tenant or subject has in flight."""

    __slots__ = ("held_bytes", "requests", "slices")

    def __init__(self) -> None:
        self.requests = 0
        self.held_bytes = 0
        self.slices = Slices()


def _once(what: Callable[[], None]) -> Callable[[], None]:
    """``what``, which happens when it is called first."""
    done = False

    def do() -> None:
        nonlocal done
        if not done:
            done = True
            what()

    return do


class Reservation:
    """What one request holds of the memory for bodies and answers, until it ends; and its turns at working on them."""

    __slots__ = ("_bytes", "_leave", "_process", "_tenant")

    def __init__(self, process: _Load, tenant: _Load, leave: Callable[[], None]) -> None:
        self._process = process
        self._tenant = tenant
        self._bytes = 0
        self._leave = leave

    def leave(self) -> None:
        """Let go of everything, and of the tenant's place for a request: what is left to do is to wait."""
        self.give()
        self._leave()

    async def run(self, work: Work[T], size_bytes: int) -> T:
        """Do ``work`` on so many bytes, and return its result: at once, or in slices that take turns with others'."""
        if size_bytes < SLICED_BYTES_MIN:
            return finish(work)
        return await self._tenant.slices.run(work)

    def take(self, size: int) -> None:
        """Count ``size`` more bytes in.

        Raises:
            Overloaded: the process has no room for them.
            TenantBusy: the tenant has not.
        """
        if self._process.held_bytes + size > HELD_BYTES_MAX:
            raise Overloaded(f"this process holds {HELD_BYTES_MAX >> 20} MiB of bodies and answers (HELD_BYTES_MAX)")
        if self._tenant.held_bytes + size > TENANT_HELD_BYTES_MAX:
            raise TenantBusy(
                f"the tenant's bodies and answers in flight take {TENANT_HELD_BYTES_MAX >> 20} MiB "
                "(TENANT_HELD_BYTES_MAX); send and ask for less at once"
            )
        self._process.held_bytes += size
        self._tenant.held_bytes += size
        self._bytes += size

    def hold(self, size: int) -> None:
        """Hold an answer of ``size`` bytes, and nothing else any more: what it was made of is let go of.

        What fits `ANSWER_SLICE_BYTES` is never refused: it may say that something was stored.

        Raises:
            AnswerTooLarge: no tenant may hold as much.
            Overloaded, TenantBusy: as `take`.
        """
        if size > TENANT_HELD_BYTES_MAX:
            raise AnswerTooLarge
        before = self._bytes
        self.give()
        if size <= ANSWER_SLICE_BYTES:
            size = min(size, before)
        self.take(size)

    def give(self) -> None:
        """Count everything out again."""
        self._process.held_bytes -= self._bytes
        self._tenant.held_bytes -= self._bytes
        self._bytes = 0


class Admission:
    """Counters of this process, which decide what may run now.

    Args:
        requests_max: Requests at once in the whole process.
        tenant_requests_max: Requests at once of one tenant.

    Attributes:
        refusals: The answers to those whose tenant has as much under way as it may.
    """

    def __init__(self, requests_max: int, *, tenant_requests_max: int = TENANT_REQUESTS_IN_FLIGHT_MAX) -> None:
        self.requests_max = requests_max
        self.tenant_requests_max = tenant_requests_max
        self.refusals = Refusals()
        self._transfers: dict[UUID, int] = {}
        self._process = _Load()
        self._tenants: dict[UUID | None, _Load] = {}
        self._threads = FairQueue(
            THREAD_WRITES_ACTIVE_MAX, THREAD_WRITES_WAITING_MAX, THREAD_WAIT_SECONDS_MAX, ThreadBusy
        )

    @property
    def held_bytes(self) -> int:
        """How much memory for bodies and answers is in use."""
        return self._process.held_bytes

    @property
    def requests(self) -> int:
        """How many requests are in flight."""
        return self._process.requests

    @contextmanager
    def request(self) -> Iterator[Callable[[], None]]:
        """Count a request in; yields what counts it out sooner than at its end.

        Raises:
            Overloaded: as many as allowed are running.
        """
        if self._process.requests >= self.requests_max:
            raise Overloaded

        def count_out() -> None:
            self._process.requests -= 1

        self._process.requests += 1
        leave = _once(count_out)
        try:
            yield leave
        finally:
            leave()

    @contextmanager
    def tenant(self, tenant_id: UUID | None) -> Iterator[Reservation]:
        """Count a request of a tenant in, and give it what its body and answer are counted with.

        Operators (None) may send as many as there is room for; what they hold is counted together, as a tenant's.

        Raises:
            TenantBusy: the tenant has as many as allowed.
        """
        load = self._tenants.get(tenant_id)
        if load is None:
            load = self._tenants[tenant_id] = _Load()
        if tenant_id is not None and load.requests >= self.tenant_requests_max:
            raise TenantBusy

        def count_out() -> None:
            load.requests -= 1
            if not load.requests:
                del self._tenants[tenant_id]

        load.requests += 1
        reservation = Reservation(self._process, load, _once(count_out))
        try:
            yield reservation
        finally:
            reservation.leave()

    @contextmanager
    def transfer(self, tenant_id: UUID) -> Iterator[None]:
        """Count an export or an import in.

        Raises:
            TransferBusy: there are as many as allowed.
        """
        own = self._transfers.get(tenant_id, 0)
        if own >= TENANT_TRANSFERS_AT_ONCE or sum(self._transfers.values()) >= TRANSFERS_AT_ONCE:
            raise TransferBusy
        self._transfers[tenant_id] = own + 1
        try:
            yield
        finally:
            self._transfers[tenant_id] -= 1
            if not self._transfers[tenant_id]:
                del self._transfers[tenant_id]

    def thread(self, address: ThreadAddress) -> AbstractAsyncContextManager[None]:
        """Wait for a turn to write to a thread, first come first served, before a connection is taken.

        Raises:
            ThreadBusy: too many wait already, or the turn did not come in time.
        """
        return self._threads.turn(address)


class Commits:
    """Writes under way. Each is a task of its own, so that a client that hangs up does not cancel it.

    Attributes:
        outcomes: The outcomes of the last ones.
    """

    def __init__(self) -> None:
        self.outcomes = WriteOutcomes()
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, write: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Begin ``write``, which runs to its end even if its caller is cancelled; gives what it returns."""
        task = asyncio.create_task(write)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        self.outcomes.note(error)
        if error is not None:
            # The class only: messages of unknown errors could carry a payload.
            _log.debug("write ended with an error", error=type(error).__name__)

    async def finish(self) -> None:
        """Wait until no write is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))


class Drain:
    """The way out: ready, draining (``/readyz`` says 503, requests are served), stopped (refused).

    Args:
        drain_seconds: How long to keep serving after `begin`, so that load balancers notice.
    """

    def __init__(self, drain_seconds: float) -> None:
        self.drain_seconds = drain_seconds
        self.draining = False
        self.stopped = False
        self._begun = asyncio.Event()

    async def begun(self) -> None:
        """Wait for `begin`."""
        await self._begun.wait()

    def begin(self) -> None:
        """Answer ``/readyz`` with 503 from now on. May be called twice, and from a signal handler."""
        self.draining = True
        self._begun.set()

    async def run(self, stop: Callable[[], None]) -> None:
        """Wait for `begin`, keep serving ``drain_seconds``, then call ``stop`` (the server's shutdown)."""
        await self._begun.wait()
        await asyncio.sleep(self.drain_seconds)
        self.stopped = True
        stop()
