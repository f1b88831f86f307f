"""Slices that load: the newest checkpoint of small and large states, a whole history; and the memory this takes."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.bench import Bench, in_turn
from benchmarks.chats import TURN_BYTES
from benchmarks.contenders import BLOCKING, HTTPX, STATEROOM, new_thread, saves_path
from benchmarks.saves import saves
from benchmarks.workload import Prose, chat, chat_saves, config_of, saves_of_10_kb

LARGE_TURNS = 2000  # of 2 KB: 4 MB
# So many times more loads of 10 KB: twenty take little more than a tick of those that processor time is counted in.
SMALL_TIMES = 5
AT_ONCE = 16
SAMPLE_SECONDS = 0.005
GATEWAY_MB = "gateway MB"
CLIENT_MB = "client MB"
IDLE, SAVING, LOADING = "idle", "16 saves of 10 KB at once", "16 loads of 4 MB at once"
MEMORY = (IDLE, SAVING, LOADING)


async def _one_save(bench: Bench, contender: str, prose: Prose) -> str:
    """A thread with one checkpoint of 10 KB."""
    saver, thread_id = bench.contenders.savers[contender], new_thread()
    (save,) = saves_of_10_kb(saver, prose, 1)
    await saver.aput(config_of(thread_id), *save)
    return thread_id


async def _large_save(bench: Bench, contender: str, prose: Prose) -> str:
    """A thread with one checkpoint of 4 MB: a long conversation, saved at once."""
    saver, thread_id = bench.contenders.savers[contender], new_thread()
    *_, save = chat_saves(saver, chat(prose, LARGE_TURNS, TURN_BYTES))
    await saver.aput(config_of(thread_id), *save)
    return thread_id


async def _load(bench: Bench, contender: str, thread_id: str, times: int = 1) -> dict[str, float]:
    """Load the latest checkpoint ``times`` as often as the effort says."""
    count = bench.effort.loads * times
    if contender == HTTPX:
        path = f"{saves_path(thread_id)}/latest?view=channels"
        return await in_turn(bench, [lambda: bench.contenders.httpx.get(path)] * count)
    saver, config = bench.contenders.savers[contender], config_of(thread_id)
    blocks = contender in BLOCKING
    get = saver.get_tuple if blocks else saver.aget_tuple
    return await in_turn(bench, [lambda: get(config)] * count, blocks=blocks)


def _owner(contender: str) -> str:
    """Whose thread a contender loads: all ways to Stateroom load the same."""
    return STATEROOM if contender == HTTPX or contender in BLOCKING else contender


async def small(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """10 KB of state."""
    thread_id = await _one_save(bench, _owner(contender), prose)
    return await _load(bench, contender, thread_id, SMALL_TIMES)


async def of_chat(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    """The chat that was saved before."""
    return await _load(bench, contender, bench.threads["chat", _owner(contender)])


async def large(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """4 MB of state; saved in the first slice, loaded in all."""
    place = ("load-4mb", _owner(contender))
    if place not in bench.threads:
        bench.threads[place] = await _large_save(bench, _owner(contender), prose)
    return await _load(bench, contender, bench.threads[place])


async def history(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """All checkpoints of a thread, newest first, with their values; saved in the first slice."""
    saver = bench.contenders.savers[contender]
    place = ("history", contender)
    count = bench.effort.history
    if place not in bench.threads:
        thread_id = bench.threads[place] = new_thread()
        config = config_of(thread_id)
        for save in saves_of_10_kb(saver, prose, count):
            config = await saver.aput(config, *save)
    config = config_of(bench.threads[place])

    async def read() -> None:
        found = [each async for each in saver.alist(config)]
        assert len(found) == count, len(found)
        assert len(found[-1].checkpoint["channel_values"]["documents"]) == 4

    return await in_turn(bench, [read] * max(bench.effort.loads // 5, 2))


@contextmanager
def _peak(bench: Bench) -> Iterator[dict[str, float]]:
    """Sample the resident memory of gateway and client during the block; the greatest of each."""
    metrics = {GATEWAY_MB: 0.0, CLIENT_MB: 0.0}
    over = threading.Event()

    def sample() -> None:
        while True:
            now = bench.engines.memory()
            metrics[GATEWAY_MB] = max(metrics[GATEWAY_MB], now.gateway / 1e6)
            metrics[CLIENT_MB] = max(metrics[CLIENT_MB], now.client / 1e6)
            if over.wait(SAMPLE_SECONDS):
                return

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield metrics
    finally:
        over.set()
        sampler.join()


async def memory(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """The greatest resident memory during some work; of the gateway before all work, for the first contender."""
    if contender == IDLE:
        return {GATEWAY_MB: bench.idle_bytes / 1e6}
    if contender == SAVING:
        writers = [saves(bench, STATEROOM, prose, bench.effort.saves_each) for _ in range(AT_ONCE)]

        async def write(operations: list) -> None:
            for operation in operations:
                await operation()

        with _peak(bench) as metrics:
            await asyncio.gather(*map(write, writers))
        return metrics
    saver = bench.contenders.savers[STATEROOM]
    config = config_of(await _large_save(bench, STATEROOM, prose))
    with _peak(bench) as metrics:
        await asyncio.gather(*(saver.aget_tuple(config) for _ in range(AT_ONCE)))
    return metrics
