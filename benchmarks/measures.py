"""What is measured, and how one slice of it runs.

A *group* is one kind of work with its contenders; a *slice* is a contender's share of one round. Rounds are
interleaved: every contender has its slice in each round, in rotating order, so that a slow minute of the
machine meets all of them. What a slice needs is prepared before its clock starts.
"""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from benchmarks import artifacts, screenshots, sealing
from benchmarks.audit import AUDITED, UNRECORDED
from benchmarks.contenders import (
    HTTPX,
    INSERT,
    LANGGRAPH,
    MEMORY,
    SERIALISE,
    SOCKET,
    STATEROOM,
    WRITERS_MAX,
    Contenders,
    bodies_of,
    bodies_of_bytes,
    new_thread,
    saves_path,
)
from benchmarks.engines import GATEWAY_DATABASE, PEER_DATABASE, Cpu, Engines
from benchmarks.workload import Prose, chat, chat_graph, chat_saves, config_of, saves_of_10_kb

P50 = "p50 ms"
RATE = "per s"
SECONDS = "s"
SIZE = "MB"
SPEED = "MB per s"
CLIENT_CPU = "client CPU ms"
GATEWAY_CPU = "gateway CPU ms"
POSTGRES_CPU = "postgres CPU ms"

DELTA = ", DeltaChannel"
TURN_BYTES = 2000
SMALL_BYTES = 4096

_DATABASES = {STATEROOM: GATEWAY_DATABASE, LANGGRAPH: PEER_DATABASE}


class Effort(NamedTuple):
    """How much a run does.

    Attributes:
        rounds: Rounds of the short groups.
        long_rounds: Rounds of the chats; contenders with ``DeltaChannel`` run in the first of them only.
        saves: Sequential operations of a slice.
        saves_each: Operations of each of the 16 writers.
        loads: Loads of a slice.
        turns: Length of the chats.
        large_bytes: Size of the large artifact.
        small_files: Artifacts of 100 KB.
        screenshots: Of 1 MiB, in the messages of one thread.
    """

    rounds: int
    long_rounds: int
    saves: int
    saves_each: int
    loads: int
    turns: int
    large_bytes: int
    small_files: int
    screenshots: int


FULL = Effort(
    rounds=3,
    long_rounds=2,
    saves=100,
    saves_each=15,
    loads=20,
    turns=200,
    large_bytes=1 << 30,
    small_files=1000,
    screenshots=200,
)
QUICK = Effort(
    rounds=3,
    long_rounds=1,
    saves=60,
    saves_each=12,
    loads=10,
    turns=60,
    large_bytes=1 << 28,
    small_files=320,
    screenshots=40,
)


class Bench:
    """One run: the contenders, the effort, and what slices leave for each other."""

    def __init__(self, contenders: Contenders, engines: Engines, effort: Effort) -> None:
        self.contenders = contenders
        self.engines = engines
        self.effort = effort
        self.artifacts: artifacts.ArtifactBench | None = None  # where a group asks for it
        self.long_threads: dict[str, str] = {}  # contender to a thread with the whole chat in one channel


Slice = Callable[[Bench, str, Prose], Awaitable[dict[str, float]]]


class Group(NamedTuple):
    """One kind of work.

    Attributes:
        name: Its name in results.
        title: What is done, for people.
        user: On whose behalf the gateway does it; each kind of work has a user with their own threads.
        reference: The contender that others are compared with.
        contenders: All of them.
        is_long: Whether it gets the fewer rounds.
        slice: Runs a contender's share of a round and returns metrics.
    """

    name: str
    title: str
    user: str
    reference: str
    contenders: tuple[str, ...]
    is_long: bool
    slice: Slice


class _Meter:
    """The clock and the processor time of a slice."""

    def __init__(self, bench: Bench) -> None:
        self._engines = bench.engines
        gc.collect()  # of what was prepared, not of what is measured
        self._cpu = self._engines.cpu()
        self._started = time.perf_counter()

    def stop(self) -> tuple[float, Cpu]:
        elapsed = time.perf_counter() - self._started
        return elapsed, self._engines.cpu().since(self._cpu)


def _cpu_each(cpu: Cpu, operations: int) -> dict[str, float]:
    names = (CLIENT_CPU, GATEWAY_CPU, POSTGRES_CPU)
    return {name: seconds * 1000 / operations for name, seconds in zip(names, cpu, strict=True)}


async def _in_turn(bench: Bench, operations: Sequence[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Run operations one after another."""
    lasted = []
    meter = _Meter(bench)
    for operation in operations:
        began = time.perf_counter()
        await operation()
        lasted.append(time.perf_counter() - began)
    elapsed, cpu = meter.stop()
    return {P50: statistics.median(lasted) * 1000, RATE: len(lasted) / elapsed, **_cpu_each(cpu, len(lasted))}


async def _side_by_side(bench: Bench, writers: Sequence[Sequence[Callable[[], Awaitable[object]]]]) -> dict[str, float]:
    """Run several writers at once, each one's operations one after another."""

    async def run(operations: Sequence[Callable[[], Awaitable[object]]]) -> None:
        for operation in operations:
            await operation()

    count = sum(map(len, writers))
    meter = _Meter(bench)
    await asyncio.gather(*map(run, writers))
    elapsed, cpu = meter.stop()
    return {RATE: count / elapsed, **_cpu_each(cpu, count)}


def _saves(bench: Bench, contender: str, prose: Prose, count: int) -> list[Callable[[], Awaitable[object]]]:
    """``count`` saves of 10 KB to a thread of their own, ready to run."""
    contenders = bench.contenders
    thread_id = new_thread()
    if contender in contenders.raw:
        saver, raw = contenders.savers[STATEROOM], contenders.raw[contender]
        bodies = bodies_of(saver, saves_of_10_kb(saver, prose, count))
        return [lambda body=body: raw.post(saves_path(thread_id), body) for body in bodies]
    saver = contenders.savers[contender]
    made = saves_of_10_kb(saver, prose, count)
    parents = [None, *(save.checkpoint["id"] for save in made)]
    return [
        lambda save=save, parent=parent: saver.aput(config_of(thread_id, parent), *save)
        for save, parent in zip(made, parents, strict=False)
    ]


def _small_saves(bench: Bench, contender: str, prose: Prose, count: int) -> list[Callable[[], Awaitable[object]]]:
    """``count`` saves, or plain rows, of 4 KB."""
    texts = [prose.take(SMALL_BYTES).encode() for _ in range(count)]
    if contender == INSERT:
        return [lambda text=text: bench.contenders.insert(text) for text in texts]
    path = saves_path(new_thread())
    raw = bench.contenders.raw[contender]
    return [lambda body=body: raw.post(path, body) for body in bodies_of_bytes(texts)]


async def _save_alone(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    return await _in_turn(bench, _saves(bench, contender, prose, bench.effort.saves))


async def _save_together(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    each = bench.effort.saves_each
    return await _side_by_side(bench, [_saves(bench, contender, prose, each) for _ in range(WRITERS_MAX)])


async def _small_alone(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    return await _in_turn(bench, _small_saves(bench, contender, prose, bench.effort.saves))


async def _small_together(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    each = bench.effort.saves_each
    return await _side_by_side(bench, [_small_saves(bench, contender, prose, each) for _ in range(WRITERS_MAX)])


async def _put_writes(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    saver = bench.contenders.savers[contender]
    thread_id = new_thread()
    (save,) = saves_of_10_kb(saver, prose, 1)
    config = await saver.aput(config_of(thread_id), *save)
    messages = [AIMessage(prose.take(1000), id=f"m-{number}") for number in range(bench.effort.saves)]
    return await _in_turn(
        bench,
        [
            lambda message=message: saver.aput_writes(
                config, [("messages", [message]), ("branch:to:tools", None)], str(uuid4()), "~__pregel_pull, agent"
            )
            for message in messages
        ],
    )


async def _load(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    if contender == HTTPX:
        path = f"{saves_path(bench.long_threads[STATEROOM])}/latest?view=channels"
        return await _in_turn(bench, [lambda: bench.contenders.httpx.get(path)] * bench.effort.loads)
    saver = bench.contenders.savers[contender]
    config = config_of(bench.long_threads[contender])
    return await _in_turn(bench, [lambda: saver.aget_tuple(config)] * bench.effort.loads)


async def _stored(bench: Bench, contender: str) -> int:
    """Bytes a contender occupies so far."""
    if contender not in _DATABASES:
        return 0
    tables = await bench.engines.tables_size(_DATABASES[contender])
    return tables + (bench.engines.s3_size() if contender == STATEROOM else 0)


async def _chat_saves(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    turns = bench.effort.turns
    messages = chat(prose, turns, TURN_BYTES)
    if contender == SERIALISE:
        serde = JsonPlusSerializer()
        meter = _Meter(bench)
        for turn in range(1, turns + 1):
            serde.dumps_typed(messages[: 2 * turn])
        elapsed, cpu = meter.stop()
        return {SECONDS: elapsed, CLIENT_CPU: cpu.client * 1000 / turns}
    saver = bench.contenders.savers[contender]
    bench.long_threads[contender] = thread_id = new_thread()
    saves = list(chat_saves(saver, messages))
    stored = await _stored(bench, contender)
    config = config_of(thread_id)
    meter = _Meter(bench)
    for save in saves:
        config = await saver.aput(config, *save)
    elapsed, cpu = meter.stop()
    size = await _stored(bench, contender) - stored
    loaded = await saver.aget_tuple(config_of(thread_id))
    assert loaded is not None
    assert loaded.checkpoint["channel_values"]["messages"] == messages
    return {SECONDS: elapsed, SIZE: size / 1e6, **_cpu_each(cpu, turns)}


async def _chat_graph(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    turns = bench.effort.turns
    messages = chat(prose, turns, TURN_BYTES)
    name = contender.removesuffix(DELTA)
    graph = chat_graph(bench.contenders.savers[name], messages, delta=contender.endswith(DELTA))
    config = config_of(new_thread())
    stored = await _stored(bench, name)
    meter = _Meter(bench)
    for question in messages[::2]:
        # A copy, because LangGraph writes ids into the messages it is given.
        await graph.ainvoke({"messages": [HumanMessage(question.content, id=question.id)]}, config)
    elapsed, cpu = meter.stop()
    metrics = {SECONDS: elapsed, **_cpu_each(cpu, turns)}
    if name in _DATABASES:
        metrics[SIZE] = (await _stored(bench, name) - stored) / 1e6
    kept = (await graph.aget_state(config)).values["messages"]
    assert [message.content for message in kept] == [message.content for message in messages]
    return metrics


def _filled(prose: Prose, count: int) -> list[bytes]:
    return bodies_of_bytes([prose.take(SMALL_BYTES).encode() for _ in range(count)])


async def _recorded_loads(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    desk = bench.contenders.desks[contender]
    path = saves_path(new_thread())
    await desk.request("POST", path, _filled(prose, 1)[0])
    each = [lambda: desk.request("GET", f"{path}/latest")] * (2 * bench.effort.saves_each)
    return await _side_by_side(bench, [each for _ in range(WRITERS_MAX)])


async def _recorded_saves(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    desk = bench.contenders.desks[contender]
    writers = []
    for _ in range(WRITERS_MAX):
        path = saves_path(new_thread())
        bodies = _filled(prose, bench.effort.saves_each)
        writers.append([lambda path=path, body=body: desk.request("POST", path, body) for body in bodies])
    return await _side_by_side(bench, writers)


async def _seal_records(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    work = sealing.record_work(contender, sealing.record(prose))
    lasted = sealing.timed(work, 20 * bench.effort.saves)
    return {P50: statistics.median(lasted) * 1000, RATE: len(lasted) / sum(lasted)}


async def _seal_blob(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    part = (prose.take(1 << 16).encode() * (sealing.BLOB_PART_BYTES >> 16))[: sealing.BLOB_PART_BYTES]
    lasted = sealing.timed(sealing.blob_work(contender, part), bench.effort.loads)
    return {SPEED: len(part) * len(lasted) / sum(lasted) / 1e6}


async def _large_artifact(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    assert bench.artifacts is not None
    return await artifacts.large_slice(bench.artifacts, contender)


async def _small_artifacts(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    assert bench.artifacts is not None
    return await artifacts.small_slice(bench.artifacts, contender)


async def _screenshots(bench: Bench, _contender: str, _prose: Prose) -> dict[str, float]:
    return await screenshots.measure(bench.engines, bench.effort.screenshots)


ARTIFACT_GROUPS = frozenset({"artifact", "artifact-16"})


def groups(effort: Effort) -> tuple[Group, ...]:
    """The groups of a run, in their order."""
    savers = (STATEROOM, LANGGRAPH)
    turns = effort.turns
    state = f"{turns * TURN_BYTES // 1000} KB of state"
    return (
        Group("save", "Save 10 KB, one writer", "saver", LANGGRAPH, (*savers, HTTPX, SOCKET), False, _save_alone),
        Group("save-16", "Save 10 KB, 16 writers", "team", LANGGRAPH, (*savers, HTTPX, SOCKET), False, _save_together),
        Group("small", "Save 4 KB, one writer", "note", INSERT, (INSERT, SOCKET), False, _small_alone),
        Group("small-16", "Save 4 KB, 16 writers", "notes", INSERT, (INSERT, SOCKET), False, _small_together),
        Group("writes", "Pending writes of a task, 1 KB", "worker", LANGGRAPH, savers, False, _put_writes),
        Group(
            "chat",
            f"Chat of {turns} turns of 2 KB, one save a turn",
            "talker",
            LANGGRAPH,
            (*savers, SERIALISE),
            True,
            _chat_saves,
        ),
        Group("load", f"Load the latest checkpoint, {state}", "talker", LANGGRAPH, (*savers, HTTPX), False, _load),
        Group(
            "graph",
            f"Chat of {turns} turns of 2 KB, as a graph runs it",
            "asker",
            LANGGRAPH,
            (*savers, STATEROOM + DELTA, LANGGRAPH + DELTA, MEMORY),
            True,
            _chat_graph,
        ),
        Group("audit", "Load 4 KB, 16 at once, in process", "-", UNRECORDED, AUDITED, False, _recorded_loads),
        Group("audit-save", "Save 4 KB, 16 at once, in process", "-", UNRECORDED, AUDITED, False, _recorded_saves),
        Group(
            "seal",
            "Seal and open 8 to 10 KB of JSON",
            "-",
            sealing.RAW,
            (sealing.RAW, sealing.PLAIN, sealing.COMPRESSED),
            False,
            _seal_records,
        ),
        Group("seal-blob", "Seal 8 MiB of a blob", "-", sealing.RAW, (sealing.RAW, sealing.PLAIN), False, _seal_blob),
        Group(
            "artifact",
            f"One artifact of {effort.large_bytes >> 20} MiB, up and down",
            "-",
            artifacts.BOTO3,
            (artifacts.BOTO3, artifacts.SEALED),
            False,
            _large_artifact,
        ),
        Group(
            "artifact-16",
            f"{effort.small_files} artifacts of 100 KB, 16 writers",
            "-",
            artifacts.BOTO3,
            (artifacts.BOTO3, artifacts.SEALED, artifacts.SEALED_OBSTORE),
            False,
            _small_artifacts,
        ),
        Group(
            "screenshots",
            f"{effort.screenshots} screenshots of 1 MiB in the messages of a graph",
            "screens",
            STATEROOM,
            (STATEROOM,),
            True,
            _screenshots,
        ),
    )
