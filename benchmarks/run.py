"""``python -m benchmarks.run``: Stateroom against LangGraph's own PostgreSQL saver.

Starts a gateway with its embedded PostgreSQL, lets every contender use that PostgreSQL in interleaved rounds,
prints medians and ratios, and writes them below ``benchmarks/results/``. It promises nothing about other
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
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks import measures, report
from benchmarks.artifacts import artifact_bench
from benchmarks.contenders import connected
from benchmarks.engines import Engines, running
from benchmarks.workload import Prose
from stateroom import acting_for

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("stateroom", "langgraph", "langgraph-checkpoint-postgres", "psycopg", "asyncpg", "httpx2", "litestar")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter chats: a look, not a result")
    parser.add_argument("--only", action="append", metavar="GROUP", help="only this group; repeatable")
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
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
    }


async def _measure(engines: Engines, effort: measures.Effort, groups: list[measures.Group]) -> report.Rounds:
    rounds: dict[str, dict[str, dict[str, list[float]]]] = {}
    async with AsyncExitStack() as stack:
        contenders = await stack.enter_async_context(connected(engines))
        bench = measures.Bench(contenders, engines, effort)
        if measures.ARTIFACT_GROUPS.intersection(group.name for group in groups):
            bench.artifacts = await stack.enter_async_context(
                artifact_bench(
                    large_bytes=effort.large_bytes, small_count=effort.small_files, parent=engines.folder.parent
                )
            )
        for group in groups:
            found = rounds[group.name] = {name: defaultdict(list) for name in group.contenders}
            began = time.monotonic()
            with acting_for(group.user):
                if not group.is_long:  # the first slice of each pays for connections, caches and plans
                    for contender in group.contenders:
                        await group.slice(bench, contender, Prose(f"{group.name}/warm/{contender}"))
                for number in range(effort.long_rounds if group.is_long else effort.rounds):
                    shift = number % len(group.contenders)
                    for contender in group.contenders[shift:] + group.contenders[:shift]:
                        if number and contender.endswith(measures.DELTA):
                            continue
                        metrics = await group.slice(bench, contender, Prose(f"{group.name}/{number}/{contender}"))
                        for metric, value in metrics.items():
                            found[contender][metric].append(value)
            print(f"{group.title}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return rounds


def _chosen(effort: measures.Effort, only: list[str] | None) -> list[measures.Group]:
    groups = measures.groups(effort)
    if only is None:
        return list(groups)
    unknown = set(only) - {group.name for group in groups}
    if unknown:
        sys.exit(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(group.name for group in groups)}")
    wanted = {*only, "chat"} if "load" in only else {*only}  # the chat leaves what is loaded
    return [group for group in groups if group.name in wanted]


def main() -> None:
    arguments = _arguments()
    effort = measures.QUICK if arguments.quick else measures.FULL
    groups = _chosen(effort, arguments.only)
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
    numbers.write_text(json.dumps(report.as_data(rounds, groups, environment), indent=1) + "\n")
    numbers.with_suffix(".txt").write_text(text)
    print(f"\nNumbers: {numbers}")


if __name__ == "__main__":
    main()
