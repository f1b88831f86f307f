"""Gateways and sweepers are killed while files and large pieces come and go: nothing dangles, nothing is forgotten.

Real `stateroom serve` processes and two processes that sweep without grace, on one durable PostgreSQL and a real S3
server, ended with SIGKILL at seeded moments, while uploads expire under whoever writes them and everybody saves the
same few screenshots. What was acknowledged stays readable, byte for byte; what was not is the sweepers'.
"""

import asyncio
import hashlib
import os
import random  # noqa: TID251 - seeded: the same choices in every run
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from crypto.blob import PART_BYTES
from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import BlobStore, ObjectInfo
from storage.clock import SystemClock
from storage.collection.fsck import Fsck
from storage.collection.sweep import Sweep
from storage.ledger.ledger import BlobLedger
from storage.postgres.engine import create_engine
from storage.postgres.unit_of_work import Silent, UnitOfWork
from tests.support.production import Deployment, Launcher, ProductionGateway, serving

SEED = 20_261_122
GATEWAYS = 2
SWEEPERS = 2
WRITERS = 4
LIVES, SOAK_LIVES = 2, 60  # of each gateway and of each sweeper
UP_SECONDS_MAX = 0.3
EXPIRES = 0.02  # of the uploads under way, every few milliseconds
START_SECONDS_MAX = 30
# A gateway lives until it acknowledged one of them, each life another one, and a while longer.
STORING = ("save", "upload_in_parts", "upload")
SCREENS = [f"data:image/png;base64,{number}" + "A" * 90_000 for number in range(3)]


def seeded(stream: object) -> random.Random:
    return random.Random(f"{SEED}/{stream}")  # noqa: S311


@dataclass
class Bench:
    """What everybody works on; ``up`` are the addresses of gateways that live."""

    deployment: Deployment
    tenant_id: UUID
    admin: asyncpg.Connection
    bucket: BlobStore
    unit_of_work: UnitOfWork
    up: dict[str, dict[str, asyncio.Event]] = field(default_factory=dict)  # which verbs it acknowledged since its start
    gateways: list[ProductionGateway] = field(default_factory=list)
    done: bool = False

    def log_of(self, url: httpx.URL) -> str:
        return "".join(each.log for each in self.gateways if httpx.URL(each.url).port == url.port)

    async def expire(self, share: float, state: str = "open") -> None:
        """Let some of the uploads under way expire, or tombstones end."""
        await self.admin.execute(
            "UPDATE stateroom.blob_intents SET expires_at = now() - interval '1 second'"
            " WHERE state = $1 AND random() < $2",
            state,
            share,
        )

    async def sweep(self) -> None:
        """Sweep until nothing is left to be done, with a clock that has passed every grace."""
        sweeper = Sweep(self.unit_of_work, Buckets(self.bucket), 0, grace_seconds=0, stray_seconds=-60)
        for _ in range(3):
            await self.expire(1.0)
            await self.expire(1.0, "swept")
            done = await sweeper.tenant(self.tenant_id, now=True)
            assert done is not None
            assert done.failed == 0

    async def _objects(self) -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        while page := await self.bucket.list_objects(
            tenant_prefix(self.tenant_id), after=found[-1].object_key if found else ""
        ):
            found += page
        return found

    async def check(self) -> int:
        """Everything agrees and nothing waits; returns how many objects there are."""
        fsck = Fsck(
            self.unit_of_work, BlobLedger(self.unit_of_work), Buckets(self.bucket), SystemClock(), grace_seconds=-60
        )  # fmt: skip
        report = await fsck.run(self.tenant_id)
        assert (report.faults, report.young) == ({}, 0), report.findings
        assert await self.admin.fetchval("SELECT count(*) FROM stateroom.blob_intents") == 0
        assert await self.admin.fetchval("SELECT count(*) FROM stateroom.blobs WHERE state = 'condemned'") == 0
        objects = await self._objects()
        assert await self.admin.fetchval("SELECT bytes FROM stateroom.blob_usage") == sum(
            each.size_bytes for each in objects
        )
        assert await self.bucket.list_multiparts(tenant_prefix(self.tenant_id)) == []
        return len(objects)


@dataclass
class Writer:
    """A user's program; remembers what it was told, and tries nothing twice."""

    name: str
    bench: Bench
    client: httpx.AsyncClient
    rng: random.Random
    files: dict[str, bytes] = field(default_factory=dict)  # artifact id: digest, acknowledged and not deleted
    maybe_deleted: set[str] = field(default_factory=set)
    states: dict[str, list[dict[str, str]]] = field(default_factory=dict)  # thread: states it may have now
    interrupted: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)

    async def work(self) -> None:
        """Do one thing after another until the bench is done."""
        verbs = (self.save, self.save, self.upload, self.upload_in_parts, self.delete_file, self.delete_thread)
        while not self.bench.done:
            if not self.bench.up:
                await asyncio.sleep(0.01)  # all are down; nothing tells when one is up but its process
                continue
            verb = self.rng.choice(verbs)
            try:
                url = self.rng.choice(sorted(self.bench.up))
                if await verb(url) and url in self.bench.up and verb.__name__ in self.bench.up[url]:
                    self.bench.up[url][verb.__name__].set()
            except httpx.TransportError:
                self.interrupted[verb.__name__] = self.interrupted.get(verb.__name__, 0) + 1

    def _ok(self, answer: httpx.Response) -> bool:
        if answer.is_success:
            return True
        problem = answer.json()
        # Only what a retry, or beginning anew, puts right: an upload that expired is not found any more.
        expected = problem["retryable"] or problem["code"] in {"upload-not-found", "artifact-not-found"}
        assert expected, f"{problem}\n{self.bench.log_of(answer.url)}"
        self.refused.add(problem["code"])
        return False

    async def save(self, url: str) -> bool:
        thread_id = f"{self.name}-{self.rng.randrange(3)}"
        state = {"screen": self.rng.choice(SCREENS), "own": f"{self.name}{self.rng.random()}" + "B" * 70_000}
        known = self.states.setdefault(thread_id, [{}])
        known.append(state)
        answer = await self.client.post(f"{url}/v1/threads/{thread_id}/checkpoints", json={"state": state})
        if self._ok(answer):
            self.states[thread_id] = [state]
        return answer.is_success

    async def upload(self, url: str) -> bool:
        content = self.rng.randbytes(self.rng.choice((1_000, 300_000, PART_BYTES + 50_000)))
        path = f"{url}/v1/threads/{self.name}-files/artifacts"
        answer = await self.client.post(path, content=content, headers={"Stateroom-Artifact-Name": "file"})
        if self._ok(answer):
            self.files[answer.json()["artifact_id"]] = hashlib.sha256(content).digest()
        return answer.is_success

    async def upload_in_parts(self, url: str) -> bool:
        parts = [self.rng.randbytes(PART_BYTES)] * self.rng.randrange(2) + [self.rng.randbytes(20_000)]
        begun = await self.client.post(f"{url}/v1/threads/{self.name}-files/uploads", json={"name": "file"})
        if not self._ok(begun):
            return False
        upload = f"{url}/v1/uploads/{begun.json()['upload_id']}"
        for number, content in enumerate(parts):
            if not self._ok(await self.client.put(f"{upload}/parts/{number}", content=content)):
                return False
        answer = await self.client.post(f"{upload}/complete", json={"parts": len(parts)})
        if self._ok(answer):
            self.files[answer.json()["artifact_id"]] = hashlib.sha256(b"".join(parts)).digest()
        return answer.is_success

    async def delete_file(self, url: str) -> None:
        if self.files:
            artifact_id = self.rng.choice(sorted(self.files))
            self.maybe_deleted.add(artifact_id)
            if self._ok(await self.client.delete(f"{url}/v1/artifacts/{artifact_id}")):
                del self.files[artifact_id]

    async def delete_thread(self, url: str) -> None:
        if self.states:
            thread_id = self.rng.choice(sorted(self.states))
            self.states[thread_id].append({})
            answer = await self.client.delete(f"{url}/v1/threads/{thread_id}")
            if answer.status_code in {204, 404}:
                self.states[thread_id] = [{}]
            else:
                self._ok(answer)

    async def check(self, url: str) -> None:
        """What was acknowledged is there, whole."""
        for artifact_id, digest in self.files.items():
            answer = await self.client.get(f"{url}/v1/artifacts/{artifact_id}/content")
            if answer.status_code == 404 and artifact_id in self.maybe_deleted:
                continue
            assert answer.status_code == 200, answer.text
            assert hashlib.sha256(answer.content).digest() == digest
        for thread_id, known in self.states.items():
            answer = await self.client.get(f"{url}/v1/threads/{thread_id}/checkpoints/latest")
            assert (answer.json()["state"] if answer.status_code == 200 else {}) in known, answer.text[:300]

    async def delete_everything(self, url: str) -> None:
        for artifact_id in self.files:
            await self.client.delete(f"{url}/v1/artifacts/{artifact_id}")
        for thread_id in (*self.states, f"{self.name}-files"):
            await self.client.delete(f"{url}/v1/threads/{thread_id}")


@pytest.fixture
async def bench(deployment, durable_postgres, s3_server) -> AsyncIterator[Bench]:
    with_files = replace(deployment, environ=deployment.environ | {"STATEROOM_S3_URL": s3_server.url()})
    superuser = durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "", 1)
    admin = await asyncpg.connect(superuser)
    tenant_id = await admin.fetchval("SELECT tenant_id FROM stateroom.tenants")
    bucket = S3BlobStore(S3Location.parse(s3_server.url()))
    engine = create_engine(deployment.environ["STATEROOM_DATABASE_URL"], connections_max=8)
    yield Bench(with_files, tenant_id, admin, bucket, UnitOfWork(engine, Silent()))
    await engine.dispose()
    await bucket.aclose()
    await admin.close()


async def gateway_lives(bench: Bench, launcher: Launcher, lives: int, rng: random.Random) -> None:
    gateway = ProductionGateway(launcher, bench.deployment, database_connections_max="6")
    bench.gateways.append(gateway)
    for life in range(lives):
        await gateway.start()
        bench.up[gateway.url] = {name: asyncio.Event() for name in STORING}
        async with asyncio.timeout(START_SECONDS_MAX):
            await bench.up[gateway.url][STORING[life % len(STORING)]].wait()
        await asyncio.sleep(rng.uniform(0, UP_SECONDS_MAX))  # the moment is what varies; it waits for nothing
        await gateway.kill()
        del bench.up[gateway.url]


async def sweeper_lives(bench: Bench, launcher: Launcher, rng: random.Random) -> int:
    """Lives and dies until the gateways have; returns how many rounds ended."""
    environ = bench.deployment.environ | {"TENANT_ID": str(bench.tenant_id), "TOMBSTONE_SECONDS": "1"}
    rounds = 0
    while not bench.done:
        log = launcher.folder / f"{uuid4().hex}.log"
        pid = await asyncio.to_thread(launcher.order, sweep=environ, log=str(log))
        async with asyncio.timeout(START_SECONDS_MAX):
            while not log.exists() or b"sweeping" not in log.read_bytes():  # noqa: ASYNC110
                await asyncio.sleep(0.005)  # another process, whose word is a line in a file
        await asyncio.sleep(rng.uniform(0, UP_SECONDS_MAX))
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(launcher.order, wait=pid) == -9, log.read_text()
        text = log.read_text()
        assert "Traceback" not in text, text
        rounds += text.count("Swept(")
    return rounds


async def time_flies(bench: Bench) -> None:
    while not bench.done:
        await bench.expire(EXPIRES)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "lives", [LIVES, pytest.param(SOAK_LIVES, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
async def test_killed_gateways_and_sweepers_leave_nothing_dangling_and_nothing_forgotten(
    bench: Bench, launcher: Launcher, lives: int
) -> None:
    headers = {"Authorization": f"Bearer {bench.deployment.api_key}", "Stateroom-Subject": "user-1"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as client:
        writers = [Writer(f"w{number}", bench, client, seeded(number)) for number in range(WRITERS)]
        async with asyncio.TaskGroup() as running:
            working = [running.create_task(each.work()) for each in writers]
            flying = running.create_task(time_flies(bench))
            sweepers = [
                running.create_task(sweeper_lives(bench, launcher, seeded(f"sweeper {number}")))
                for number in range(SWEEPERS)
            ]
            async with asyncio.TaskGroup() as dying:
                for number in range(GATEWAYS):
                    dying.create_task(gateway_lives(bench, launcher, lives, seeded(f"gateway {number}")))
            bench.done = True
        assert all(each.done() for each in (*working, flying))
        async with serving(launcher, bench.deployment) as gateway:
            for each in writers:
                await each.check(gateway.url)
            await bench.sweep()
            await bench.check()
            for each in writers:
                await each.check(gateway.url)
                await each.delete_everything(gateway.url)
            await bench.sweep()
            assert await bench.check() == 0
            assert "Traceback" not in gateway.log
    interrupted = sum(sum(each.interrupted.values()) for each in writers)
    assert interrupted >= lives, "the kills hit nothing: this run proved nothing"
    assert sum(task.result() for task in sweepers) > 0
