"""``python -m benchmarks.peers``: Stateroom against the servers that one would run instead of it.

Aegra keeps threads in PostgreSQL behind HTTP, `langgraph dev` in its own memory; each has an environment of its own
below ``.cache/peers``, which ``make bench-peers`` installs, and serves the graph of ``benchmarks/peer_servers``. Both
are asked through LangGraph's SDK to update the state of a thread and to read it, Stateroom through its own to save and
load the same values. Aegra uses the PostgreSQL of the run. All take turns: only ratios inside one run mean something.

Neither peer encrypts, or proves that what it reads is what was saved; `langgraph dev` keeps nothing when it is killed.
With each call they do more than a store does: they make a graph of it. Runs of graphs are not measured.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

import httpx2
import psutil
from langgraph_sdk import get_client

from benchmarks.engines import GATEWAY_DATABASE, START_SECONDS_MAX, STOP_SECONDS_MAX, Engines, python_build, running
from benchmarks.workload import Prose
from gateway.embedded.ports import free_ports
from stateroom import AsyncClient

STATEROOM, AEGRA, DEV = "Stateroom", "Aegra", "langgraph dev"
WRITERS = 16
SAVE, LOAD, RATE, SAVE_CPU, LOAD_CPU, CHAT = (
    "save p50, ms", "load p50, ms", "saves per s, 16 writers", "CPU of a save, ms", "CPU of a load, ms", "a chat, KB",
)  # fmt: skip
_AEGRA_DATABASE = "aegra"
_SERVERS = Path(__file__).parent / "peer_servers"
_ENVIRONMENTS = Path(__file__).parent.parent / ".cache" / "peers"
_MESSAGE_BYTES = 250


class Peer(Protocol):
    """A server of threads, and a client of it."""

    def cpu_seconds(self) -> float:
        """What the server and its database have used so far."""
        ...

    async def save(self, thread_id: str, values: dict[str, Any]) -> None:
        """Store a state."""
        ...

    async def load(self, thread_id: str) -> dict[str, Any]:
        """The newest state."""
        ...

    async def say(self, thread_id: str, said: list[dict[str, str]], added: list[dict[str, str]]) -> None:
        """Store a conversation to which messages were added."""
        ...

    async def stored_bytes(self) -> int:
        """What it has stored."""
        ...


class Ours:
    """The gateway of the run."""

    def __init__(self, engines: Engines, client: AsyncClient) -> None:
        self._engines, self._client = engines, client

    def cpu_seconds(self) -> float:
        """See `Peer`."""
        used = self._engines.cpu()
        return used.gateway + used.postgres

    async def save(self, thread_id: str, values: dict[str, Any]) -> None:
        """See `Peer`."""
        await self._client.thread(thread_id).save(values)

    async def load(self, thread_id: str) -> dict[str, Any]:
        """See `Peer`."""
        head = await self._client.thread(thread_id).load()
        assert head is not None
        return head.state

    async def say(self, thread_id: str, said: list[dict[str, str]], added: list[dict[str, str]]) -> None:
        """See `Peer`."""
        await self.save(thread_id, {"messages": said + added})

    async def stored_bytes(self) -> int:
        """See `Peer`."""
        return await self._engines.tables_size(GATEWAY_DATABASE) + self._engines.s3_size()


class LangGraphServer:
    """A server that speaks LangGraph's API.

    Args:
        engines: Whose PostgreSQL it uses.
        process: The server.
        url: Where it answers.
        database: Its database. None: it keeps everything in memory.
    """

    def __init__(self, engines: Engines, process: psutil.Process, url: str, database: str | None) -> None:
        self._engines, self._process, self._database = engines, process, database
        self._threads = get_client(url=url).threads
        self._known: set[str] = set()

    def cpu_seconds(self) -> float:
        """See `Peer`."""
        processes = [self._process, *self._process.children(recursive=True)]
        own = sum(sum(each.cpu_times()[:2]) for each in processes)
        return own + (0 if self._database is None else self._engines.cpu().postgres)

    async def save(self, thread_id: str, values: dict[str, Any]) -> None:
        """See `Peer`."""
        if thread_id not in self._known:
            await self._threads.create(thread_id=thread_id, graph_id="agent", if_exists="do_nothing")
            self._known.add(thread_id)
        await self._threads.update_state(thread_id, values, as_node="agent")

    async def load(self, thread_id: str) -> dict[str, Any]:
        """See `Peer`."""
        state = await self._threads.get_state(thread_id)
        return dict(state["values"])

    async def say(self, thread_id: str, said: list[dict[str, str]], added: list[dict[str, str]]) -> None:
        """See `Peer`; the graph's reducer appends."""
        del said
        await self.save(thread_id, {"messages": added})

    async def stored_bytes(self) -> int:
        """See `Peer`."""
        return 0 if self._database is None else await self._engines.tables_size(self._database)


@contextmanager
def _serving(command: list[str], folder: Path, environ: dict[str, str], name: str) -> Iterator[psutil.Process]:
    """Run a server until the end; its words go to a file."""
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environ}, stdout=log, stderr=log)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _ready(url: str, process: psutil.Process) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    async with httpx2.AsyncClient() as client:
        while True:
            try:
                if (await client.get(url)).status_code == httpx2.codes.OK:
                    return
            except httpx2.TransportError:
                pass
            if time.monotonic() > deadline or not process.is_running():
                raise RuntimeError(f"{url} does not answer")
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _peers(engines: Engines) -> AsyncIterator[dict[str, Peer]]:
    folder = engines.folder.parent
    (folder / "aegra.json").write_text(json.dumps({"graphs": {"agent": f"{_SERVERS / 'graph.py'}:graph"}}))
    configuration = {"graphs": {"agent": f"{_SERVERS / 'graph.py'}:graph"}, "dependencies": [str(_SERVERS)]}
    (folder / "langgraph.json").write_text(json.dumps(configuration))
    await engines.create_database(_AEGRA_DATABASE)
    address = urlsplit(engines.dsn(_AEGRA_DATABASE))
    ports = free_ports(2)
    aegra, dev = _ENVIRONMENTS / "aegra" / "bin", _ENVIRONMENTS / "langgraph-dev" / "bin"
    commands = {
        AEGRA: (
            [str(aegra / "uvicorn"), "aegra_api.main:app", "--port", str(ports[0])],
            {
                "DATABASE_URL": address.geturl(), "AEGRA_CONFIG": "aegra.json", "AUTH_TYPE": "noop",
                "LOG_LEVEL": "WARNING", "ENV_MODE": "PRODUCTION",
            },
            f"http://127.0.0.1:{ports[0]}", "/health", _AEGRA_DATABASE,
        ),
        DEV: (
            [str(dev / "langgraph"), "dev", "--no-browser", "--no-reload", "--port", str(ports[1])],
            {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"},
            f"http://127.0.0.1:{ports[1]}", "/ok", None,
        ),
    }  # fmt: skip
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(engines.url, engines.api_key, subject="bench"))
        found: dict[str, Peer] = {STATEROOM: Ours(engines, client)}
        for name, (command, environ, url, health, database) in commands.items():
            process = stack.enter_context(_serving(command, folder, environ, name.replace(" ", "-")))
            try:
                await _ready(f"{url}{health}", process)
            except RuntimeError:
                print((folder / f"{name.replace(' ', '-')}.log").read_text()[-3000:], file=sys.stderr)
                raise
            found[name] = LangGraphServer(engines, process, url, database)
        yield found


def _values(prose: Prose, turn: int) -> dict[str, Any]:
    """About 10 KB, all of it new."""
    return {
        "documents": [{"title": prose.take(60), "text": prose.take(1200)} for _ in range(7)],
        "plan": [prose.take(80) for _ in range(4)],
        "turn": turn,
    }


class _Timed(NamedTuple):
    p50_ms: float
    cpu_ms: float


async def _in_turn(peer: Peer, calls: list[Any]) -> _Timed:
    """Make calls one after another."""
    took = []
    before = peer.cpu_seconds()
    for call in calls:
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    cpu = peer.cpu_seconds() - before
    return _Timed(statistics.median(took) * 1e3, cpu / len(calls) * 1e3)


async def _round(peer: Peer, prose: Prose, count: int) -> dict[str, float]:
    thread_id = str(uuid4())
    await peer.save(thread_id, _values(prose, 0))
    values = [_values(prose, turn) for turn in range(1, count + 1)]
    saved = await _in_turn(peer, [lambda each=each: peer.save(thread_id, each) for each in values])
    assert (await peer.load(thread_id))["turn"] == count
    loaded = await _in_turn(peer, [lambda: peer.load(thread_id)] * count)
    threads = [str(uuid4()) for _ in range(WRITERS)]
    await asyncio.gather(*(peer.save(each, _values(prose, 0)) for each in threads))
    waiting = iter([_values(prose, turn) for turn in range(4 * count)])

    async def write(thread_id: str) -> None:
        for each in waiting:
            await peer.save(thread_id, each)

    began = time.perf_counter()
    await asyncio.gather(*map(write, threads))
    rate = 4 * count / (time.perf_counter() - began)
    return {SAVE: saved.p50_ms, LOAD: loaded.p50_ms, RATE: rate, SAVE_CPU: saved.cpu_ms, LOAD_CPU: loaded.cpu_ms}


async def _chat(peer: Peer, prose: Prose, turns: int) -> float:
    """What a conversation takes, in KB."""
    before = await peer.stored_bytes()
    thread_id, said = str(uuid4()), []
    for _ in range(turns):
        added = [
            {"role": role, "content": prose.take(_MESSAGE_BYTES), "id": str(uuid4())} for role in ("user", "assistant")
        ]
        await peer.say(thread_id, said, added)
        said += added
    return (await peer.stored_bytes() - before) / 1e3


async def measure(rounds: int, count: int, turns: int) -> str:
    """The report."""
    with running() as engines:
        await engines.prepare()
        async with _peers(engines) as peers:
            proses = {name: Prose(name) for name in peers}
            found: dict[str, dict[str, list[float]]] = {name: {} for name in peers}
            for number in range(rounds + 1):
                for name, peer in list(peers.items())[:: -1 if number % 2 else 1]:
                    for what, each in (await _round(peer, proses[name], count)).items():
                        if number:  # the first one warms up
                            found[name].setdefault(what, []).append(each)
            for name, peer in peers.items():
                found[name][CHAT] = [await _chat(peer, proses[name], turns)]
    return _report(found, rounds, count, turns)


def _report(found: dict[str, dict[str, list[float]]], rounds: int, count: int, turns: int) -> str:
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        f"The client and Stateroom: Python {python_build()}.",
        f"{rounds} rounds of {count} saves and loads of 10 KB, {4 * count} saves by {WRITERS} writers; {turns} turns.",
        "Medians, least and greatest; CPU is of the server with its PostgreSQL. Ratio: Stateroom against the peer.",
        "",
        f"{'':26}" + "".join(f"{name:>30}" for name in found),
    ]
    for what in (SAVE, LOAD, RATE, SAVE_CPU, LOAD_CPU, CHAT):
        row = f"{what:26}"
        for name, measured in found.items():
            values = measured[what]
            ratio = [ours / theirs for ours, theirs in zip(found[STATEROOM][what], values, strict=True) if theirs]
            text = f"{statistics.median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"
            if not any(values):
                text = "-"
            elif name != STATEROOM:
                text += f" {statistics.median(ratio):.2f}"
            row += f"{text:>30}"
        lines.append(row)
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--turns", type=int, default=200)
    given = parser.parse_args()
    print(asyncio.run(measure(given.rounds, given.count, given.turns)))


if __name__ == "__main__":
    main()
