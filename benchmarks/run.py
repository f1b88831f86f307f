"""``python -m benchmarks.run``: Stateroom against LangGraph's own PostgreSQL saver.

Starts a gateway with its embedded PostgreSQL, lets every contender use that PostgreSQL in interleaved rounds,
prints medians and ratios, and writes and draws them below ``benchmarks/results/``. It promises nothing about other
machines: only ratios inside one run mean something.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import psutil

from benchmarks import gateways, measures, plots, report, saves, scale
from benchmarks.archiving import archiving_bench
from benchmarks.artifacts import artifact_bench
from benchmarks.audit import audited
from benchmarks.bench import FULL, QUICK, Bench, Effort, Group
from benchmarks.contenders import DELTA, connected
from benchmarks.engines import Engines, python_build, running
from benchmarks.neighbour import neighbour_bench
from benchmarks.pruning import pruning_bench
from benchmarks.workload import Prose
from stateroom import acting_for

RESULTS = Path(__file__).parent / "results"
_PACKAGES = (
    *("stateroom", "langgraph", "langgraph-checkpoint-postgres", "langgraph-checkpoint-sqlite", "pycryptodome"),
    *("psycopg", "asyncpg", "httpx2", "uvicorn"),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter chats: a look, not a result")
    parser.add_argument("--only", action="append", metavar="GROUP", help="only this group; repeatable")
    parser.add_argument(
        "--all",
        action="store_true",
        help="what takes long, too, as if it were asked for: a long chat in a graph, tables of a million checkpoints",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the numbers go")
    parser.add_argument("--folder", type=Path, help="whose disk is measured (default: the system's temporary folder)")
    return parser.parse_args()


def _disk(folder: Path) -> str:
    """The kind of file system a folder is on: fsync costs nothing on one that lives in memory."""
    mounts = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def _environment(folder: Path, *, quick: bool) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "effort": "quick" if quick else "full",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before": round(os.getloadavg()[0], 2),
        "disk": _disk(folder),
        "python": python_build(),
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
    }


@asynccontextmanager
async def _nothing(_bench: Bench) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def _artifacts(bench: Bench) -> AsyncIterator[None]:
    folder, effort = bench.engines.folder.parent, bench.effort
    async with artifact_bench(
        large_bytes=effort.large_bytes, small_count=effort.small_files, parent=folder
    ) as bench.artifacts:
        yield


@asynccontextmanager
async def _archiving(bench: Bench) -> AsyncIterator[None]:
    async with archiving_bench(bench.effort.archived, bench.engines.folder.parent) as bench.archiving:
        yield


@asynccontextmanager
async def _pruning(bench: Bench) -> AsyncIterator[None]:
    async with pruning_bench(bench.effort.checkpoints, bench.engines.folder.parent) as bench.pruning:
        yield


@asynccontextmanager
async def _audited(bench: Bench) -> AsyncIterator[None]:
    async with audited(bench.engines) as bench.desks:
        yield


@asynccontextmanager
async def _gateways(bench: Bench) -> AsyncIterator[None]:
    async with gateways.serving(bench.engines, max(saves.WORKERS.values())) as bench.gateways:
        yield


@asynccontextmanager
async def _neighbour(bench: Bench) -> AsyncIterator[None]:
    async with neighbour_bench(bench.engines, 3 * bench.effort.saves) as bench.neighbour:
        yield


@asynccontextmanager
async def _tables(bench: Bench) -> AsyncIterator[None]:
    async with scale.filled(bench.engines, bench.effort.table_rows) as bench.tables:
        yield


# What only some groups need; it is open while they run, so that it is in nobody else's way.
_NEEDS = {
    **dict.fromkeys(measures.ARTIFACT_GROUPS, _artifacts),
    **dict.fromkeys(measures.ARCHIVE_GROUPS, _archiving),
    measures.PRUNING_GROUP: _pruning,
    "audit": _audited,
    "audit-save": _audited,
    "gateways": _gateways,
    "neighbour": _neighbour,
    "large-tables": _tables,
}


async def _measure_group(bench: Bench, group: Group) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in group.contenders}
    rounds = bench.effort.long_rounds if group.is_long else bench.effort.rounds
    with acting_for(group.user):
        if not group.is_long:  # the first slice of each pays for connections, caches and plans
            for contender in group.contenders:
                await group.slice(bench, contender, Prose(f"{group.name}/warm/{contender}"))
        for number in range(min(rounds, group.rounds_max or rounds)):
            shift = number % len(group.contenders)
            for contender in group.contenders[shift:] + group.contenders[:shift]:
                if number and contender.endswith(DELTA):
                    continue
                metrics = await group.slice(bench, contender, Prose(f"{group.name}/{number}/{contender}"))
                for metric, value in metrics.items():
                    found[contender][metric].append(value)
    return found


async def _measure(engines: Engines, effort: Effort, groups: list[Group]) -> report.Rounds:
    rounds: dict[str, dict[str, dict[str, list[float]]]] = {}
    async with connected(engines) as contenders:
        bench = Bench(contenders, engines, effort)
        for needed, sharing in groupby(groups, lambda group: _NEEDS.get(group.name, _nothing)):
            async with needed(bench):
                for group in sharing:
                    began = time.monotonic()
                    rounds[group.name] = await _measure_group(bench, group)
                    print(f"{group.title}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rounds


def _chosen(effort: Effort, only: list[str] | None, *, everything: bool) -> list[Group]:
    groups = measures.groups(effort)
    if only is None:
        return [group for group in groups if everything or group.name not in measures.ASKED_FOR]
    unknown = set(only) - {group.name for group in groups}
    if unknown:
        sys.exit(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(group.name for group in groups)}")
    wanted = {*only, "chat"} if "load" in only else {*only}  # the chat leaves what is loaded
    return [group for group in groups if group.name in wanted]


def main() -> None:
    arguments = _arguments()
    effort = QUICK if arguments.quick else FULL
    # A quick look has neither long chats nor a million of anything.
    if not arguments.quick and (arguments.all or "large-tables" in (arguments.only or ())):
        effort = effort._replace(table_rows=(*effort.table_rows, scale.MILLION))
    groups = _chosen(effort, arguments.only, everything=arguments.all)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the gateway is stopped, too
    with running(arguments.folder) as engines:
        environment = _environment(engines.folder, quick=arguments.quick)
        environment["postgres"] = ", ".join(f"{name} {value}" for name, value in asyncio.run(engines.prepare()).items())
        rounds = asyncio.run(_measure(engines, effort, groups))
    environment["seconds"] = round(time.monotonic() - began)
    text = report.as_text(rounds, groups, environment)
    print(text, end="")
    numbers = arguments.json or RESULTS / time.strftime("%Y%m%d-%H%M%S.json", time.gmtime())
    numbers.parent.mkdir(parents=True, exist_ok=True)
    data = report.as_data(rounds, groups, environment)
    numbers.write_text(json.dumps(data, indent=1) + "\n")
    numbers.with_suffix(".txt").write_text(text)
    for name, drawing in plots.drawn(data).items():
        numbers.with_name(f"{numbers.stem}-{name}.svg").write_text(drawing)
    print(f"\nNumbers: {numbers}")


if __name__ == "__main__":
    main()
