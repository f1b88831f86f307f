"""The pool of worker processes, in which runs whatever tenants can make expensive; no key ever gets there.

1. A worker is a process of its own (`migrations.state.worker`): started by ``exec``, with an empty environment and one
   socket, so that it holds nothing of what this process knows. It gets the plaintext of one task at a time.
2. As many work at once as `active_max` says, one for each tenant: tenants take turns, and none has more than half of
   what there is, unless that is one. `SPARES` more have started already.
3. A tenant that overruns the limits of a task loses the worker, is told so by name, and after `KILLS_MAX` of them
   within `KILLS_SECONDS` is refused for `REFUSED_SECONDS`: killing is no way to work. A worker that was lost counts
   again when another has started, and they start one after the other.
4. A task goes on to its end when its caller has gone, and counts until then.

Workers start when there is work for the first time, and end when this is closed or this process is gone.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal
from uuid import UUID

import msgspec

from migrations.state.errors import ChainInvalid
from migrations.state.tasks import Answer, Invalid, Learn, Learned, NotLearned, Program, Request
from migrations.state.worker.messages import CPU_SECONDS_MAX, Answered, Asked, Begin, Ready, framed
from storage.concurrency.queues import FairQueue
from storage.errors import PlaceInLineRefused, TenantTooCostly, TooCostly, WorkersBusy
from storage.postgres.unit_of_work import Observer

SPARES: Final = 2
# The worst legal requests: a load at a version whose step copies a list of 50,000 lists fifteen times, a save of 4,000
# objects that an `enum` of 1,000 objects is asked about, both for ever again (`migrations.state.worker`).
WALL_SECONDS_MAX: Final = 2.0  # of a task; ten times what it may take of a processor
START_SECONDS_MAX: Final = 30.0  # a quarter of a second on a machine that rests
IDLE_SECONDS_MAX: Final = 10.0  # how long a task waits for a worker, when its tenant's turn has come
WAITING_MAX: Final = 128  # tasks of a tenant in line: as many conversions as it may have requests in flight
WAITING_SECONDS_MAX: Final = 10.0
KILLS_MAX: Final = 3
KILLS_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 60.0
_SLICE_BYTES: Final = 256 * 1024
_MODULE: Final = "migrations.state.worker"

Cause = Literal["cpu", "wall", "failed", "gone"]
"""Why a worker was lost: ``failed``: memory, or a fault in native code; ``gone``: something else ended it."""
CAUSES: Final[tuple[Cause, ...]] = ("cpu", "wall", "failed", "gone")


class _LostError(Exception):
    """The worker has ended, or, if it ``is_late``, does not answer."""

    def __init__(self, *, is_late: bool = False) -> None:
        super().__init__()
        self.is_late = is_late


class _Worker:
    """One process, and the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], near: socket.socket) -> None:
        self._process = process
        self._near = near
        self.learned: set[bytes] = set()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._decoder = msgspec.msgpack.Decoder(Answered)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """What the process has taken of processors, or 0 when it has ended."""
        try:
            return time.clock_gettime(~self._process.pid << 3 | 2)  # clock_getcpuclockid(3)
        except OSError:
            return 0.0

    async def begin(self, begin: Begin) -> Ready:
        """Tell it what it needs to know, and wait until it has started.

        Raises:
            _LostError: it has not.
        """
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._near)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                self._writer.write(framed(begin))
                return msgspec.msgpack.decode(await self._head(), type=Ready)
        except TimeoutError:
            raise _LostError(is_late=True) from None
        except (OSError, EOFError):
            raise _LostError from None

    async def ask(self, request: Request, values: Sequence[bytes]) -> tuple[Answered, list[bytes]]:
        """The answer to a request.

        Raises:
            _LostError: the process ended, or did not answer in time.
        """
        try:
            async with asyncio.timeout(WALL_SECONDS_MAX):
                self._writer.write(framed(Asked(request, [len(each) for each in values])))
                for each in values:
                    for at in range(0, len(each), _SLICE_BYTES):
                        self._writer.write(each[at : at + _SLICE_BYTES])
                        await self._writer.drain()
                answered = self._decoder.decode(await self._head())
                return answered, [await self._reader.readexactly(size) for size in answered.sizes]
        except TimeoutError:
            raise _LostError(is_late=True) from None
        except (OSError, EOFError):
            raise _LostError from None

    async def _head(self) -> bytes:
        return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(4)))

    async def end(self, *, is_late: bool = False) -> Cause:
        """End the process, if it has not ended by itself, and say why it did."""
        if not is_late:  # its socket closes a moment before it can be waited for
            await asyncio.to_thread(self._wait)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await self._close()
        code = self._process.returncode
        if is_late:
            return "wall"
        if code == -signal.SIGPROF:
            return "cpu"
        return "gone" if code in {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT} else "failed"

    def _wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    async def stop(self) -> None:
        """Let it go: it ends when its socket is closed."""
        await self._close()
        await asyncio.to_thread(self._wait)
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def _close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Workers:
    """The pool of worker processes, which tenants share."""

    def __init__(
        self,
        observer: Observer,
        *,
        steps_folder: Path | None = None,
        traceable: bool = False,
        active_max: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the pool; no process starts yet.

        Args:
            observer: The receiver of reports.
            steps_folder: The folder of the deployment's own steps in Python.
            traceable: Whether debuggers may look into workers.
            active_max: The number of workers at once; None: one less than there are processors, and one at least.
            monotonic: Seconds that only go forward.
        """
        self._observer = observer
        here = [os.path.abspath(each) for each in sys.path if each]  # noqa: PTH100  as Python writes it
        self._begin = Begin(here, None if steps_folder is None else str(steps_folder.absolute()), traceable)
        self._active_max = active_max or max(1, (os.cpu_count() or 1) - 1)
        self._monotonic = monotonic
        self._queue = FairQueue(1, WAITING_MAX, WAITING_SECONDS_MAX, PlaceInLineRefused)
        self._places = asyncio.Semaphore(self._active_max)
        self._idle: list[_Worker] = []
        self._arrived = asyncio.Event()
        self._all: set[_Worker] = set()
        self._busy = 0
        self._starting: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[tuple[Answer, list[bytes]]]] = set()
        self._kills: dict[UUID, deque[float]] = {}
        self._refused_until: dict[UUID, float] = {}
        self._closed = False

    async def start(self) -> None:
        """Start a worker, to see that the deployment's steps can be used.

        Raises:
            ChainInvalid: they cannot.
            WorkersBusy: no worker starts.
        """
        try:
            self._idle.append(await self._started())
        except _LostError:
            raise WorkersBusy from None

    async def learn(self, tenant_id: UUID, program: Program) -> Learned | Invalid:
        """See whether what a tenant registers can be used, and what that costs.

        Raises:
            TooCostly, TenantTooCostly, PlaceInLineRefused, WorkersBusy: as `ask`.
        """
        answer, _ = await self.ask(tenant_id, program, Learn(program.digest, program.text, new=True))
        assert isinstance(answer, Learned | Invalid)  # noqa: S101  for the type checker: nothing else answers this
        return answer

    async def ask(
        self, tenant_id: UUID, program: Program, request: Request, values: Sequence[bytes] = ()
    ) -> tuple[Answer, list[bytes]]:
        """Have a task done when the tenant's turn comes.

        ``program`` is the one that the request names; ``values`` travel beside the request.

        Raises:
            TooCostly: it takes more time or memory than a task may.
            TenantTooCostly: the tenant's tasks did so several times just now.
            PlaceInLineRefused: too many tasks of the tenant wait, or its turn did not come in time.
            WorkersBusy: the machine is too slow now, or no worker starts.
        """
        self._check_refused(tenant_id)
        await self._queue.enter(tenant_id)
        task = asyncio.create_task(self._performed(tenant_id, program, request, values))
        self._under_way.add(task)

        def over(task: asyncio.Task[tuple[Answer, list[bytes]]]) -> None:
            self._under_way.discard(task)
            self._queue.leave(tenant_id)
            if not task.cancelled():
                task.exception()  # the caller may have gone

        task.add_done_callback(over)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Begin nothing more, wait for what is under way, and end the workers."""
        self._closed = True
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        if self._starting is not None:
            await asyncio.wait({self._starting})
        idle, self._idle = self._idle, []
        for worker in idle:
            self._all.discard(worker)
            await worker.stop()

    def pids(self) -> list[int]:
        """The processes that have started."""
        return [each.pid for each in self._all]

    # --- one task ------------------------------------------------------------------------------------------------

    async def _performed(
        self, tenant_id: UUID, program: Program, request: Request, values: Sequence[bytes]
    ) -> tuple[Answer, list[bytes]]:
        self._check_refused(tenant_id)
        async with self._places:  # first come first served, and one place a tenant: tenants take turns
            worker = await self._taken(program)
            self._count(1)
            before = worker.cpu_seconds()
            try:
                answered, made = await self._answered(worker, program, request, values)
            except _LostError as lost:
                took = worker.cpu_seconds() - before
                self._all.discard(worker)
                cause = await worker.end(is_late=lost.is_late)
                self._replenish()
                self._observer.worker_lost(cause)
                if cause == "gone" or (cause == "wall" and took < CPU_SECONDS_MAX / 2):
                    raise WorkersBusy from None  # not the tenant's doing
                raise self._overrun(tenant_id) from None
            except BaseException:
                self._all.discard(worker)
                await worker.end(is_late=True)
                raise
            finally:
                self._count(-1)
            if answered.is_full or self._closed:
                self._all.discard(worker)
                await worker.stop()
                self._replenish()
            else:
                self._idle.append(worker)
                self._arrived.set()
            return answered.answer, made

    async def _answered(
        self, worker: _Worker, program: Program, request: Request, values: Sequence[bytes]
    ) -> tuple[Answered, list[bytes]]:
        if isinstance(request, Learn):
            return await worker.ask(request, values)
        # A task of its own: what compiling takes is not taken from the time of the work.
        teach = Learn(program.digest, program.text)
        for _ in range(2):
            if program.digest not in worker.learned:
                learned, _ = await worker.ask(teach, ())
                if isinstance(learned.answer, Invalid):
                    return learned, []
                worker.learned.add(program.digest)
            answered, made = await worker.ask(request, values)
            if not isinstance(answered.answer, NotLearned):
                return answered, made
            worker.learned.clear()
        raise _LostError

    def _count(self, change: int) -> None:
        self._busy += change
        self._observer.workers_busy(self._busy)

    # --- who may -------------------------------------------------------------------------------------------------

    def _check_refused(self, tenant_id: UUID) -> None:
        left = self._refused_until.get(tenant_id, 0.0) - self._monotonic()
        if left > 0:
            self._observer.too_costly()
            raise TenantTooCostly(left)
        self._refused_until.pop(tenant_id, None)

    def _overrun(self, tenant_id: UUID) -> TooCostly:
        now = self._monotonic()
        for each in [each for each, kills in self._kills.items() if kills[-1] < now - KILLS_SECONDS]:
            del self._kills[each]
        kills = self._kills.setdefault(tenant_id, deque(maxlen=KILLS_MAX))
        kills.append(now)
        if len(kills) == KILLS_MAX and kills[0] >= now - KILLS_SECONDS:
            self._refused_until[tenant_id] = now + REFUSED_SECONDS
        self._observer.too_costly()
        return TooCostly()

    # --- the processes -------------------------------------------------------------------------------------------

    async def _taken(self, program: Program) -> _Worker:
        """An idle worker, one that knows the program if there is one.

        Raises:
            WorkersBusy: none came in time.
        """
        deadline = self._monotonic() + IDLE_SECONDS_MAX
        while True:
            dead = [each for each in self._idle if not each.is_alive()]
            for worker in dead:  # all before the first one is waited for: others look here meanwhile
                self._idle.remove(worker)
                self._all.discard(worker)
            for worker in dead:
                await worker.end()
            self._replenish()
            if self._idle:
                knowing = (each for each in reversed(self._idle) if program.digest in each.learned)
                found = next(knowing, self._idle[-1])
                self._idle.remove(found)
                return found
            self._arrived.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - self._monotonic())):
                    await self._arrived.wait()
            except TimeoutError:
                raise WorkersBusy from None

    def _replenish(self) -> None:
        """See to it that as many workers as there should be are there, or are being started."""
        if not self._closed and self._starting is None and len(self._all) < self._active_max + SPARES:
            self._starting = asyncio.create_task(self._start_missing())
            self._starting.add_done_callback(self._started_all)

    def _started_all(self, task: asyncio.Task[None]) -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # who waits for a worker asks for others in time

    async def _start_missing(self) -> None:
        with contextlib.suppress(_LostError, ChainInvalid, OSError):
            while not self._closed and len(self._all) < self._active_max + SPARES:
                self._idle.append(await self._started())
                self._arrived.set()

    async def _started(self) -> _Worker:
        near, far = socket.socketpair()
        near.setblocking(False)
        try:
            process = await asyncio.to_thread(_spawned, far)
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        worker = _Worker(process, near)
        try:
            ready = await worker.begin(self._begin)
        except BaseException:
            await worker.end()
            raise
        if ready.fault is not None:
            await worker.end()
            raise ChainInvalid(ready.fault, ready.step)
        self._all.add(worker)
        return worker


def _spawned(far: socket.socket) -> subprocess.Popen[bytes]:
    """The process, by vfork and exec: nothing of this one is copied into it.

    A session of its own keeps a terminal's Ctrl-C from it: this process decides when it ends.
    """
    return subprocess.Popen(  # noqa: S603  our own module, by our own interpreter
        [sys.executable, "-I", "-m", _MODULE],
        stdin=far.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        close_fds=True,
        start_new_session=True,
    )
