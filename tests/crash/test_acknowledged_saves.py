"""A save that was acknowledged is there, whole, whatever is killed; one that was not may be repeated.

Gateways are real `stateroom serve` processes on one durable PostgreSQL. Writers save as fast as they get
answers while the gateways, and in a test of its own PostgreSQL, are ended with SIGKILL at seeded moments.
"""

import asyncio
import random  # noqa: TID251 - seeded: the same moments in every run
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
from sqlalchemy.engine import make_url
from uuid_utils import uuid6

from gateway.embedded.postgres import EmbeddedPostgres
from tests.support.interruption import Interruption
from tests.support.production import Deployment, Launcher, ProductionGateway, deploy, migrated, serving

KILLS, SOAK_KILLS = 12, 201  # between three gateways
GATEWAYS = 3
WRITERS = 6
SEED = 20_261_121
UP_SECONDS_MAX = 0.12  # a gateway's life between its first acknowledged save and its end
POSTGRES_KILLS = 4

MSGPACK = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
Channels = dict[str, bytes]


def seeded(stream: int = -1) -> random.Random:
    return random.Random(f"{SEED}/{stream}")  # noqa: S311


@dataclass
class Writer:
    """One agent: saves to its thread, through whatever gateway is up, and remembers what it was told."""

    name: str
    thread_id: str
    rng: random.Random
    acknowledged: dict[str, Channels] = field(default_factory=dict)
    unknown: dict[str, Channels] = field(default_factory=dict)  # sent, never answered, given up
    refused: set[str] = field(default_factory=set)  # codes of the problems met
    repeated: int = 0
    stored_before_answer: int = 0  # a repetition found the save stored: the answer had been lost
    _log: bytes = b""

    def next_channels(self) -> Channels:
        """An append-only log, a value that changes whole, now and then one large enough for many pieces."""
        self._log += self.rng.randbytes(self.rng.randrange(20, 400))
        channels = {"log": self._log[-60_000:], "page": self.rng.randbytes(self.rng.randrange(0, 3_000))}
        if self.rng.random() < 0.05:
            channels["screenshot"] = self.rng.randbytes(self.rng.randrange(70_000, 200_000))
        return channels

    def body(self, checkpoint_id: str, channels: Channels) -> bytes:
        sent = {name: {"version": checkpoint_id, "encoding": "raw", "data": data} for name, data in channels.items()}
        return msgspec.msgpack.encode(
            {"checkpoint_id": checkpoint_id, "channels": sent, "metadata": {"thread": self.thread_id}}
        )

    async def save(self, client: httpx.AsyncClient, url: str, checkpoint_id: str, channels: Channels) -> bool | None:
        """Try once. Whether it was created, None when the outcome is not known."""
        content = self.body(checkpoint_id, channels)
        try:
            answer = await client.post(f"{url}/v1/threads/{self.thread_id}/checkpoints", content=content)
        except httpx.TransportError:
            return None
        if answer.status_code in {200, 201}:
            receipt = msgspec.msgpack.decode(answer.content)
            assert receipt["checkpoint_id"] == checkpoint_id
            assert receipt["created"] is (answer.status_code == 201)
            self.acknowledged[checkpoint_id] = channels
            self.unknown.pop(checkpoint_id, None)
            return bool(receipt["created"])
        problem = msgspec.json.decode(answer.content)
        assert problem["retryable"] is True, problem
        assert int(answer.headers["retry-after"]) >= 1
        self.refused.add(problem["code"])
        return None

    async def write(self, client: httpx.AsyncClient, fleet: "Fleet") -> None:
        """Save until the fleet is done; what got no answer is repeated, or given up for good."""
        while not fleet.done.is_set():
            checkpoint_id, channels = str(uuid6()), self.next_channels()
            self.unknown[checkpoint_id] = channels
            gives_up = self.rng.random() < 0.4
            while not fleet.done.is_set():
                url = await fleet.any_url(self.rng)
                created = await self.save(client, url, checkpoint_id, channels)
                if created is not None:
                    self.stored_before_answer += not created
                    fleet.acknowledged(url)
                    break
                if gives_up:
                    break
                self.repeated += 1


class Fleet:
    """The gateways that are up now."""

    def __init__(self) -> None:
        self.done = asyncio.Event()
        self._up: dict[str, asyncio.Event] = {}  # url: whether it acknowledged a save since its start
        self._change = asyncio.Event()

    def up(self, url: str) -> asyncio.Event:
        self._up[url] = asyncio.Event()
        self._change.set()
        return self._up[url]

    def acknowledged(self, url: str) -> None:
        if url in self._up:
            self._up[url].set()

    def down(self, url: str) -> None:
        self._up.pop(url, None)

    def end(self) -> None:
        self.done.set()
        self._change.set()

    async def any_url(self, rng: random.Random) -> str:
        while not self._up and not self.done.is_set():
            self._change.clear()
            await self._change.wait()
        return rng.choice(list(self._up)) if self._up else "http://127.0.0.1:9"  # done: nobody answers there


def client_of(deployment: Deployment, subject: str = "user-1") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {deployment.api_key}", "Stateroom-Subject": subject, **MSGPACK}
    return httpx.AsyncClient(headers=headers, timeout=30)


def writers() -> list[Writer]:
    """The last two share a thread."""
    threads = [f"t{number}" for number in range(WRITERS - 1)] + [f"t{WRITERS - 2}"]
    return [Writer(f"w{n}", thread, seeded(n)) for n, thread in enumerate(threads)]


async def stored_in(client: httpx.AsyncClient, url: str, thread_id: str) -> dict[str, dict]:
    """Every checkpoint of a thread by id, as history shows it."""
    found: dict[str, dict] = {}
    cursor: dict[str, str] = {}
    while True:
        answer = await client.get(f"{url}/v1/threads/{thread_id}/checkpoints", params={"limit": 500, **cursor})
        page = msgspec.msgpack.decode(answer.raise_for_status().content)
        found |= {checkpoint["checkpoint_id"]: checkpoint for checkpoint in page["checkpoints"]}
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


async def load(client: httpx.AsyncClient, url: str, thread_id: str, checkpoint_id: str) -> tuple[str, Channels]:
    path = f"{url}/v1/threads/{thread_id}/checkpoints/{checkpoint_id}"
    answer = await client.get(path, params={"view": "channels"})
    checkpoint = msgspec.msgpack.decode(answer.raise_for_status().content)
    return checkpoint["checkpoint_id"], {name: each["data"] for name, each in checkpoint["channels"].items()}


async def check_thread(client: httpx.AsyncClient, url: str, of_thread: list[Writer]) -> None:
    """All that was acknowledged is stored and nothing is stored that was not sent; each one loads as it was sent."""
    thread_id = of_thread[0].thread_id
    sent: dict[str, Channels] = {}
    for writer in of_thread:
        sent |= writer.acknowledged | writer.unknown
    stored = await stored_in(client, url, thread_id)
    acknowledged = {each for writer in of_thread for each in writer.acknowledged}
    assert acknowledged - stored.keys() == set(), "an acknowledged save is lost"
    assert stored.keys() - sent.keys() == set()

    for checkpoint_id in stored:
        assert await load(client, url, thread_id, checkpoint_id) == (checkpoint_id, sent[checkpoint_id])
    newest = max(stored)
    assert await load(client, url, thread_id, "latest") == (newest, sent[newest])
    parents = [checkpoint["parent_id"] for checkpoint in stored.values()]
    assert parents.count(None) == 1
    assert {parent for parent in parents if parent is not None} <= stored.keys()

    for writer in of_thread:
        for checkpoint_id, channels in list(writer.unknown.items()):
            created = await writer.save(client, url, checkpoint_id, channels)
            assert created is (checkpoint_id not in stored)
            assert await load(client, url, thread_id, checkpoint_id) == (checkpoint_id, channels)
    again = await of_thread[0].save(client, url, max(stored), sent[max(stored)])
    assert again is False
    receipt = await client.post(
        f"{url}/v1/threads/{thread_id}/checkpoints", content=of_thread[0].body(str(uuid6()), {"log": b"end"})
    )
    # The sealed head counts every checkpoint of the thread, so nothing of a killed save is left in it.
    assert msgspec.msgpack.decode(receipt.content)["sequence"] == len(stored.keys() | sent.keys()) + 1


async def check_everything(client: httpx.AsyncClient, url: str, all_writers: list[Writer]) -> None:
    for thread_id in sorted({writer.thread_id for writer in all_writers}):
        await check_thread(client, url, [writer for writer in all_writers if writer.thread_id == thread_id])


async def lives_and_dies(gateway: ProductionGateway, fleet: Fleet, kills: int, rng: random.Random) -> None:
    for _ in range(kills):
        await gateway.start()
        await fleet.up(gateway.url).wait()
        await asyncio.sleep(rng.uniform(0, UP_SECONDS_MAX))  # the moment is what varies here; it waits for nothing
        await gateway.kill()
        fleet.down(gateway.url)


@pytest.mark.parametrize("kills", [KILLS, pytest.param(SOAK_KILLS, marks=pytest.mark.soak)])
async def test_no_acknowledged_save_is_lost_or_half_there_whatever_gateway_is_killed(
    deployment: Deployment, launcher: Launcher, kills: int
) -> None:
    fleet, all_writers = Fleet(), writers()
    gateways = [ProductionGateway(launcher, deployment, database_connections_max="4") for _ in range(GATEWAYS)]
    async with client_of(deployment, f"user-{kills}") as client:
        async with asyncio.TaskGroup() as running:
            for writer in all_writers:
                running.create_task(writer.write(client, fleet))
            async with asyncio.TaskGroup() as dying:
                for number, gateway in enumerate(gateways):
                    dying.create_task(lives_and_dies(gateway, fleet, kills // GATEWAYS, seeded(number)))
            fleet.end()
        async with serving(launcher, deployment) as gateway:
            interrupted = sum(len(writer.unknown) + writer.repeated for writer in all_writers)
            await check_everything(client, gateway.url, all_writers)
    assert interrupted > kills // 4, "the kills hit nothing: this run proved nothing"
    assert sum(len(writer.acknowledged) for writer in all_writers) > kills


@pytest.fixture
async def own_postgres(production_dir: Path) -> AsyncIterator[EmbeddedPostgres]:
    folder = production_dir / "killed"
    folder.mkdir(mode=0o711)
    with EmbeddedPostgres(folder) as engine:
        yield engine


def port_of(postgres: EmbeddedPostgres) -> int:
    port = make_url(postgres.superuser_url()).port
    assert port is not None
    return port


def kill_and_restart(postgres: EmbeddedPostgres) -> None:
    """SIGKILL for the postmaster, then for whatever of its children is left; crash recovery; another port."""
    assert postgres.pid is not None
    postmaster = psutil.Process(postgres.pid)
    children = postmaster.children(recursive=True)
    for process in [postmaster, *children]:
        process.kill()
    psutil.wait_procs(children, timeout=30)
    postgres.stop()
    postgres.start()


async def test_no_acknowledged_save_is_lost_when_postgresql_is_killed(
    own_postgres: EmbeddedPostgres, production_dir: Path, launcher: Launcher
) -> None:
    deployment = await deploy(own_postgres, production_dir, await migrated(own_postgres))
    fleet, all_writers = Fleet(), writers()
    rng = seeded()
    async with (
        Interruption(port_of(own_postgres)) as between,
        client_of(deployment) as client,
        serving(launcher, deployment.at_port(between.port)) as gateway,
    ):
        async with asyncio.TaskGroup() as running:
            for writer in all_writers:
                running.create_task(writer.write(client, fleet))
            for _ in range(POSTGRES_KILLS):
                await fleet.up(gateway.url).wait()
                await asyncio.sleep(rng.uniform(0, UP_SECONDS_MAX))  # as above
                await asyncio.to_thread(kill_and_restart, own_postgres)
                between.target_port = port_of(own_postgres)
            await fleet.up(gateway.url).wait()
            fleet.end()
        await check_everything(client, gateway.url, all_writers)
    met = {code for writer in all_writers for code in writer.refused}
    assert met, "no save was under way when PostgreSQL was killed: this run proved nothing"
    assert met <= {"database-unavailable", "commit-unknown", "thread-busy"}


@pytest.mark.parametrize("reads", [False, True], ids=["in one round trip", "after reading"])
@pytest.mark.parametrize(("cut", "stored"), [("before", False), ("after", True)])
async def test_a_lost_answer_to_commit_is_unknown_and_safe_to_repeat(
    durable_postgres: EmbeddedPostgres, deployment: Deployment, launcher: Launcher, cut, stored, reads
) -> None:
    writer = Writer("w", f"commit-{cut}-{reads}", seeded())
    async with (
        Interruption(port_of(durable_postgres)) as between,
        client_of(deployment) as client,
        serving(launcher, deployment.at_port(between.port)) as gateway,
    ):
        absent, first, second = (str(uuid6()) for _ in range(3))
        assert await writer.save(client, gateway.url, first, {"log": b"1"}) is True
        if reads:  # writes of a checkpoint before the head make the gateway forget what the thread was like
            late = f"{gateway.url}/v1/threads/{writer.thread_id}/checkpoints/{absent}/writes/task"
            content = {"writes": [{"idx": 0, "channel": "log", "encoding": "raw", "data": b"late"}]}
            (await client.post(late, content=msgspec.msgpack.encode(content))).raise_for_status()
        between.at_commit = cut
        writer.unknown[second] = {"log": b"2"}
        assert await writer.save(client, gateway.url, second, {"log": b"2"}) is None
        assert writer.refused == {"commit-unknown"}
        assert between.cut_a_function is not reads
        assert (second in await stored_in(client, gateway.url, writer.thread_id)) is stored
        assert await writer.save(client, gateway.url, second, {"log": b"2"}) is not stored
        await check_thread(client, gateway.url, [writer])
