"""Which kinds of work are measured: the groups of a run, in their order.

The slices of most are in modules of their own; here are those that only pass a question on.
"""

import statistics
from functools import partial

from benchmarks import archiving, artifacts, chats, loads, neighbour, pruning, saves, scale, screenshots, sealing
from benchmarks.audit import AUDITED, UNRECORDED
from benchmarks.bench import P50, RATE, SPEED, Bench, Effort, Group, side_by_side
from benchmarks.contenders import (
    DELTA,
    HTTPX,
    INSERT,
    LANGGRAPH,
    MEMORY,
    SEALED,
    SERIALISE,
    SOCKET,
    SQLITE,
    STATEROOM,
    STATEROOM_SYNC,
    WRITERS,
    bodies_of_bytes,
    new_thread,
    saves_path,
)
from benchmarks.workload import Prose


def _filled(prose: Prose, count: int) -> list[bytes]:
    return bodies_of_bytes([prose.take(saves.SMALL_BYTES).encode() for _ in range(count)])


async def _recorded_loads(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    desk = bench.desks[contender]
    path = saves_path(new_thread())
    await desk.request("POST", path, _filled(prose, 1)[0])
    each = [lambda: desk.request("GET", f"{path}/latest")] * (2 * bench.effort.saves_each)
    return await side_by_side(bench, [each for _ in range(WRITERS)])


async def _recorded_saves(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    desk = bench.desks[contender]
    writers = []
    for _ in range(WRITERS):
        path = saves_path(new_thread())
        bodies = _filled(prose, bench.effort.saves_each)
        writers.append([lambda path=path, body=body: desk.request("POST", path, body) for body in bodies])
    return await side_by_side(bench, writers)


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


async def _prune(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    assert bench.pruning is not None
    return await bench.pruning.slice(contender)


async def _save_beside_a_neighbour(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    assert bench.neighbour is not None
    return await bench.neighbour.slice(contender, prose)


async def _move_threads(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    assert bench.archiving is not None
    return await bench.archiving.move_slice(contender)


async def _save_beside_archiver(bench: Bench, contender: str, _prose: Prose) -> dict[str, float]:
    assert bench.archiving is not None
    return await bench.archiving.writer_slice(contender)


async def _screenshots(bench: Bench, _contender: str, _prose: Prose) -> dict[str, float]:
    return await screenshots.measure(bench.engines, bench.effort.screenshots)


PRUNING_GROUP = "prune"
ASKED_FOR = frozenset({"graph-long"})  # minutes each: LangGraph itself takes time that grows with the square
ARCHIVE_GROUPS = frozenset({"archive", "archive-beside"})
ARTIFACT_GROUPS = frozenset({"artifact", "artifact-16"})


def groups(effort: Effort) -> tuple[Group, ...]:
    """The groups of a run, in their order."""
    savers = (STATEROOM, LANGGRAPH)
    all_savers = (STATEROOM, STATEROOM_SYNC, LANGGRAPH, SEALED, SQLITE)
    chatting = (STATEROOM, LANGGRAPH, SEALED, SQLITE)
    raw = (HTTPX, SOCKET, INSERT)
    turns, long_turns = effort.turns, effort.long_turns
    state = f"{turns * chats.TURN_BYTES // 1000} KB of state"
    return (
        Group("memory", "Resident memory, the greatest", "-memory", loads.IDLE, loads.MEMORY, True, loads.memory, 1),
        Group("save", "Save 10 KB, one writer", "saver", LANGGRAPH, (*all_savers, *raw), False, saves.alone),
        Group("save-16", "Save 10 KB, 16 writers", "team", LANGGRAPH, (*all_savers, *raw), False, saves.together),
        Group(
            "save-64",
            "Save 10 KB, 64 writers",
            "crowd",
            LANGGRAPH,
            (*all_savers, SOCKET, INSERT),
            False,
            partial(saves.together, writers=64),
        ),
        Group("save-hot", "Save 10 KB, 16 writers, one thread", "hot", LANGGRAPH, all_savers, False, saves.hot),
        Group("small", "Save 4 KB, one writer", "note", INSERT, (INSERT, SOCKET), False, saves.small_alone),
        Group("small-16", "Save 4 KB, 16 writers", "notes", INSERT, (INSERT, SOCKET), False, saves.small_together),
        Group(
            "gateways",
            "Save 4 KB, 16 writers, over several gateway processes",
            "spread",
            next(iter(saves.WORKERS)),
            tuple(saves.WORKERS),
            False,
            saves.over_gateways,
        ),
        Group(
            "neighbour",
            "Save 10 KB, one writer, beside another tenant that sends as much as it may",
            "quiet",
            neighbour.ALONE,
            (neighbour.ALONE, neighbour.BESIDE, neighbour.ELSEWHERE),
            False,
            _save_beside_a_neighbour,
        ),
        Group("writes", "Pending writes of a task, 1 KB", "worker", LANGGRAPH, all_savers, False, saves.pending_writes),
        Group(
            "chat",
            f"Chat of {turns} turns of 2 KB, one save a turn",
            "talker",
            LANGGRAPH,
            (*chatting, SERIALISE),
            True,
            partial(chats.growing, turns=turns),
        ),
        Group(
            "load-10kb",
            "Load the latest checkpoint, 10 KB of state",
            "reader",
            LANGGRAPH,
            (*all_savers, HTTPX),
            False,
            loads.small,
        ),
        Group(
            "load",
            f"Load the latest checkpoint, {state}",
            "talker",
            LANGGRAPH,
            (*all_savers, HTTPX),
            False,
            loads.of_chat,
        ),
        Group(
            "load-4mb",
            "Load the latest checkpoint, 4 MB of state",
            "reader",
            LANGGRAPH,
            (*all_savers, HTTPX),
            False,
            loads.large,
        ),
        Group(
            "history",
            f"Read {effort.history:,} checkpoints of 10 KB",
            "reader",
            LANGGRAPH,
            chatting,
            False,
            loads.history,
        ),
        Group(
            "graph",
            f"Chat of {turns} turns of 2 KB, as a graph runs it",
            "asker",
            LANGGRAPH,
            (*chatting, STATEROOM + DELTA, LANGGRAPH + DELTA, MEMORY),
            True,
            partial(chats.in_graph, turns=turns),
        ),
        Group(
            "agent",
            f"An agent with tools, {effort.questions} questions",
            "agent",
            LANGGRAPH,
            (*chatting, MEMORY),
            True,
            chats.with_tools,
        ),
        *(
            (
                Group(
                    "chat-long",
                    f"Chat of {long_turns:,} turns of 2 KB, one save a turn",
                    "long-talker",
                    LANGGRAPH,
                    savers,
                    True,
                    partial(chats.growing, turns=long_turns),
                    1,
                ),
                Group(
                    "graph-long",
                    f"Chat of {long_turns:,} turns of 2 KB, as a graph runs it",
                    "long-asker",
                    LANGGRAPH,
                    (*savers, LANGGRAPH + DELTA),
                    True,
                    partial(chats.in_graph, turns=long_turns),
                    1,
                ),
            )
            if long_turns
            else ()
        ),
        Group(
            "large-tables",
            "Save and load 10 KB in tables with many checkpoints",
            "late",
            scale.named(STATEROOM, effort.table_rows[0]),
            scale.contenders(effort.table_rows),
            False,
            scale.save_and_load,
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
            (artifacts.BOTO3, artifacts.SEALED),
            False,
            _small_artifacts,
        ),
        Group(
            "archive",
            f"Move {effort.archived} threads of {archiving.CHECKPOINTS} checkpoints out and back,"
            f" {archiving.MOVERS} at once",
            "-",
            archiving.SQL,
            (archiving.SQL, archiving.ARCHIVE),
            True,
            _move_threads,
        ),
        Group(
            "archive-beside",
            f"Save 10 to 50 KB while {effort.archived} threads are archived in the same process",
            "-",
            archiving.ALONE,
            (archiving.ALONE, archiving.BESIDE, archiving.BESIDE_HALF),
            True,
            _save_beside_archiver,
        ),
        Group(
            PRUNING_GROUP,
            f"Prune a thread of {effort.checkpoints:,} checkpoints that is saved to, in process",
            "-",
            pruning.AT_ONCE,
            (pruning.SQL, pruning.AT_ONCE, pruning.BATCHES),
            True,
            _prune,
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
