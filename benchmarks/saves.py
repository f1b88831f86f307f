"""Slices that save: one writer and many, on threads of their own and on one hot thread, and pending writes."""

from uuid import uuid4

from langchain_core.messages import AIMessage

from benchmarks.bench import Bench, Operation, in_turn, side_by_side
from benchmarks.contenders import (
    BLOCKING,
    INSERT,
    STATEROOM,
    WRITERS,
    SocketSaves,
    bodies_of,
    bodies_of_bytes,
    new_thread,
    saves_path,
)
from benchmarks.workload import Prose, config_of, saves_of_10_kb

SMALL_BYTES = 4096


def saves(bench: Bench, contender: str, prose: Prose, count: int, thread_id: str | None = None) -> list[Operation]:
    """``count`` saves of 10 KB, each the child of the one before, ready to run.

    Args:
        bench: The run.
        contender: Who saves them.
        prose: What is saved.
        count: How many.
        thread_id: Where; a thread of their own when left out.
    """
    contenders = bench.contenders
    thread_id = thread_id or new_thread()
    if contender == INSERT or contender in contenders.raw:
        saver = contenders.savers[STATEROOM]
        bodies = bodies_of(saver, saves_of_10_kb(saver, prose, count))
        if contender == INSERT:
            return [lambda body=body: contenders.insert(body) for body in bodies]
        raw = contenders.raw[contender]
        return [lambda body=body: raw.post(saves_path(thread_id), body) for body in bodies]
    saver = contenders.savers[contender]
    made = saves_of_10_kb(saver, prose, count)
    parents = [None, *(save.checkpoint["id"] for save in made)]
    put = saver.put if contender in BLOCKING else saver.aput
    return [
        lambda save=save, parent=parent: put(config_of(thread_id, parent), *save)
        for save, parent in zip(made, parents, strict=False)
    ]


async def alone(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """One writer."""
    ready = saves(bench, contender, prose, bench.effort.saves)
    return await in_turn(bench, ready, blocks=contender in BLOCKING)


async def together(bench: Bench, contender: str, prose: Prose, *, writers: int = WRITERS) -> dict[str, float]:
    """Several writers, each on a thread of its own."""
    each = max(bench.effort.saves_each * WRITERS // writers, 4)
    ready = [saves(bench, contender, prose, each) for _ in range(writers)]
    return await side_by_side(bench, ready, blocks=contender in BLOCKING)


async def hot(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """Several writers on one thread, each with a branch of its own."""
    thread_id = new_thread()
    ready = [saves(bench, contender, prose, bench.effort.saves_each, thread_id) for _ in range(WRITERS)]
    return await side_by_side(bench, ready, blocks=contender in BLOCKING)


def _small(bench: Bench, contender: str, prose: Prose, count: int) -> list[Operation]:
    """``count`` saves, or plain rows, of 4 KB."""
    texts = [prose.take(SMALL_BYTES).encode() for _ in range(count)]
    if contender == INSERT:
        return [lambda text=text: bench.contenders.insert(text) for text in texts]
    path = saves_path(new_thread())
    raw = bench.contenders.raw[contender]
    return [lambda body=body: raw.post(path, body) for body in bodies_of_bytes(texts)]


async def small_alone(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """4 KB as one opaque value, one writer."""
    return await in_turn(bench, _small(bench, contender, prose, bench.effort.saves))


async def small_together(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """The same by several writers."""
    each = bench.effort.saves_each
    return await side_by_side(bench, [_small(bench, contender, prose, each) for _ in range(WRITERS)])


async def pending_writes(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """What a graph stores after each task: a message of 1 KB and a branch."""
    saver = bench.contenders.savers[contender]
    blocks = contender in BLOCKING
    thread_id = new_thread()
    (save,) = saves_of_10_kb(saver, prose, 1)
    config = await saver.aput(config_of(thread_id), *save)
    put_writes = saver.put_writes if blocks else saver.aput_writes
    messages = [AIMessage(prose.take(1000), id=f"m-{number}") for number in range(bench.effort.saves)]
    ready = [
        lambda message=message: put_writes(
            config, [("messages", [message]), ("branch:to:tools", None)], str(uuid4()), "~__pregel_pull, agent"
        )
        for message in messages
    ]
    return await in_turn(bench, ready, blocks=blocks)


WORKERS = {f"{count} gateway{'s' if count > 1 else ''}": count for count in (1, 2, 4)}


async def over_gateways(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """Saves of 4 KB by several writers, spread over the first so many gateway processes; without our SDK."""
    each = bench.effort.saves_each
    urls = bench.gateways[: WORKERS[contender]]
    sockets = [SocketSaves(bench.engines, url) for url in urls]
    writers = []
    for number in range(WRITERS):
        raw, path = sockets[number % len(sockets)], saves_path(new_thread())
        bodies = bodies_of_bytes([prose.take(SMALL_BYTES).encode() for _ in range(2 * each)])
        writers.append([lambda raw=raw, path=path, body=body: raw.post(path, body) for body in bodies])
    try:
        return await side_by_side(bench, writers)
    finally:
        for raw in sockets:
            raw.close()
