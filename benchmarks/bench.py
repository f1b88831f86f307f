"""What a run is made of: its effort, its groups, and the meters that time their slices.

A *group* is one kind of work with its contenders; a *slice* is a contender's share of one round. Rounds are
interleaved: every contender has its slice in each round, in rotating order, so that a slow minute of the
machine meets all of them. What a slice needs is prepared before its clock starts.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.contenders import Contenders
from benchmarks.engines import Cpu, Engines
from benchmarks.workload import Prose

if TYPE_CHECKING:
    from benchmarks.archiving import ArchivingBench
    from benchmarks.artifacts import ArtifactBench
    from benchmarks.audit import Desk
    from benchmarks.neighbour import NeighbourBench
    from benchmarks.pruning import PruningBench
    from benchmarks.scale import Tables

P50 = "p50 ms"
RATE = "per s"
SECONDS = "s"
SIZE = "MB"
WAL = "WAL MB"
SPEED = "MB per s"
CLIENT_CPU = "client CPU ms"
GATEWAY_CPU = "gateway CPU ms"
POSTGRES_CPU = "postgres CPU ms"


class Effort(NamedTuple):
    """How much a run does.

    Attributes:
        rounds: Rounds of the short groups.
        long_rounds: Rounds of the chats; contenders with ``DeltaChannel`` run in the first of them only.
        saves: Sequential operations of a slice.
        saves_each: Operations of each of several writers.
        loads: Loads of a slice.
        turns: Length of the chats.
        long_turns: Length of the long chats; 0 leaves them out.
        history: Checkpoints in the history that is read.
        questions: What the agent with tools is asked.
        table_rows: Checkpoints in the tables of ``large-tables``, one table for each number.
        large_bytes: Size of the large artifact.
        small_files: Artifacts of 100 KB.
        screenshots: Of 1 MiB, in the messages of one thread.
        archived: Threads that are moved into the archive and back.
        checkpoints: In the thread that is pruned.
    """

    rounds: int
    long_rounds: int
    saves: int
    saves_each: int
    loads: int
    turns: int
    long_turns: int
    history: int
    questions: int
    table_rows: tuple[int, ...]
    large_bytes: int
    small_files: int
    screenshots: int
    archived: int
    checkpoints: int


FULL = Effort(
    rounds=3,
    long_rounds=3,
    saves=100,
    saves_each=15,
    loads=20,
    turns=200,
    long_turns=1000,
    history=1000,
    questions=30,
    table_rows=(10_000, 100_000),
    large_bytes=1 << 30,
    small_files=1000,
    screenshots=200,
    archived=100,
    checkpoints=10_000,
)
QUICK = Effort(
    rounds=3,
    long_rounds=1,
    saves=60,
    saves_each=12,
    loads=10,
    turns=60,
    long_turns=0,
    history=200,
    questions=10,
    table_rows=(1_000, 10_000),
    large_bytes=1 << 28,
    small_files=320,
    screenshots=40,
    archived=30,
    checkpoints=2_000,
)


class Bench:
    """One run: the contenders, the effort, and what slices leave for each other.

    Attributes:
        contenders: Everything that is compared.
        engines: The processes.
        effort: How much is done.
        idle_bytes: Resident memory of the gateway before anybody asked it for anything.
        threads: Group and contender to a thread that was filled for that group's loads.
    """

    def __init__(self, contenders: Contenders, engines: Engines, effort: Effort) -> None:
        self.contenders = contenders
        self.engines = engines
        self.effort = effort
        self.idle_bytes = engines.memory().gateway
        self.threads: dict[tuple[str, str], str] = {}
        self.artifacts: ArtifactBench | None = None  # these while a group that asks for it runs
        self.pruning: PruningBench | None = None
        self.archiving: ArchivingBench | None = None
        self.desks: dict[str, Desk] = {}
        self.gateways: list[str] = []
        self.neighbour: NeighbourBench | None = None
        self.tables: Tables | None = None


Slice = Callable[[Bench, str, Prose], Awaitable[dict[str, float]]]
Operation = Callable[[], Any]
"""Runs one operation: returns an awaitable, or does it at once where the contender's methods block."""


class Group(NamedTuple):
    """One kind of work.

    Attributes:
        name: Its name in results.
        title: What is done, for people.
        user: On whose behalf the gateway does it; each kind of work has a user with their own threads.
        reference: The contender that others are compared with.
        contenders: All of them.
        is_long: Whether it gets the fewer rounds, and no warm-up.
        slice: Runs a contender's share of a round and returns metrics.
        rounds_max: At most so many rounds.
    """

    name: str
    title: str
    user: str
    reference: str
    contenders: tuple[str, ...]
    is_long: bool
    slice: Slice
    rounds_max: int | None = None


class Meter:
    """The clock and the processor time of a slice, from its creation."""

    def __init__(self, bench: Bench) -> None:
        self._engines = bench.engines
        gc.collect()  # of what was prepared, not of what is measured
        self._cpu = self._engines.cpu()
        self._started = time.perf_counter()

    def stop(self) -> tuple[float, Cpu]:
        """Seconds, and what was used meanwhile."""
        elapsed = time.perf_counter() - self._started
        return elapsed, self._engines.cpu().since(self._cpu)


def cpu_each(cpu: Cpu, operations: int) -> dict[str, float]:
    """Processor time of one of ``operations``."""
    names = (CLIENT_CPU, GATEWAY_CPU, POSTGRES_CPU)
    return {name: seconds * 1000 / operations for name, seconds in zip(names, cpu, strict=True)}


async def in_turn(bench: Bench, operations: Sequence[Operation], *, blocks: bool = False) -> dict[str, float]:
    """Run operations one after another; those that block, in one thread."""
    lasted: list[float] = []

    def run_blocking() -> tuple[float, Cpu]:
        meter = Meter(bench)
        for operation in operations:
            began = time.perf_counter()
            operation()
            lasted.append(time.perf_counter() - began)
        return meter.stop()

    if blocks:
        elapsed, cpu = await asyncio.to_thread(run_blocking)
    else:
        meter = Meter(bench)
        for operation in operations:
            began = time.perf_counter()
            await operation()
            lasted.append(time.perf_counter() - began)
        elapsed, cpu = meter.stop()
    return {P50: statistics.median(lasted) * 1000, RATE: len(lasted) / elapsed, **cpu_each(cpu, len(lasted))}


async def side_by_side(
    bench: Bench, writers: Sequence[Sequence[Operation]], *, blocks: bool = False
) -> dict[str, float]:
    """Run several writers at once, each one's operations one after another; those that block, in a thread each."""

    async def run(operations: Sequence[Operation]) -> None:
        for operation in operations:
            await operation()

    def run_blocking(operations: Sequence[Operation]) -> None:
        for operation in operations:
            operation()

    count = sum(map(len, writers))
    with ThreadPoolExecutor(len(writers)) as threads:
        loop = asyncio.get_running_loop()
        meter = Meter(bench)
        if blocks:
            # Each with the context of whoever acts for a user here.
            runs = [loop.run_in_executor(threads, copy_context().run, run_blocking, writer) for writer in writers]
            await asyncio.gather(*runs)
        else:
            await asyncio.gather(*map(run, writers))
        elapsed, cpu = meter.stop()
    return {RATE: count / elapsed, **cpu_each(cpu, count)}
