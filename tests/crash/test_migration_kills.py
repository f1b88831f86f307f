"""A migration of state whose gateway is killed in the middle goes on where it was, and loses nobody's save.

The gateway is a real `stateroom serve` process on a durable PostgreSQL. It is ended with SIGKILL while a job is in the
middle of a stretch of heads: some are migrated, and the position in the job's row does not say so yet.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import asyncpg
import httpx
import msgspec
import pytest
from sqlalchemy.engine import make_url

from gateway.embedded.postgres import EmbeddedPostgres
from tests.support.production import Deployment, Launcher, ProductionGateway

HEADS = 240
BUSY = 6  # threads that an agent goes on saving to
# Migrated heads at which the gateway is killed. A stretch has 20, so none of these is where one ends.
KILLS = (7, 65, 131, 198)
STRETCH_HEADS = 20
WAIT_SECONDS = 60
UP = [{"op": "rename", "from": "/user_pref", "to": "/user_profile"}]


@pytest.fixture
async def admin(durable_postgres: EmbeddedPostgres, deployment: Deployment) -> AsyncIterator[asyncpg.Connection]:
    url = make_url(durable_postgres.superuser_url(deployment.database)).set(drivername="postgresql")
    connection = await asyncpg.connect(url.render_as_string(False))
    yield connection
    await connection.close()


async def migrated(admin: asyncpg.Connection) -> int:
    count = "SELECT count(DISTINCT thread_id) FROM stateroom.checkpoints WHERE source = 'migrate'"
    return int(await admin.fetchval(count))


async def until_migrated(admin: asyncpg.Connection, count: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await migrated(admin) < count:  # noqa: ASYNC110 - another process, whose word is a row
            await asyncio.sleep(0.002)


@dataclass
class Agent:
    """Saves to its thread at the version it knows, through whatever gateway is up, and remembers what it was told."""

    thread_id: str
    acknowledged: list[str] = field(default_factory=list)

    async def save(self, client: httpx.AsyncClient, number: int) -> None:
        body = {"state": {"user_profile": number}, "state_schema": "travel", "state_version": 2}
        answer = await client.post(f"/v1/threads/{self.thread_id}/checkpoints", json=body)
        self.acknowledged.append(answer.raise_for_status().json()["checkpoint_id"])


async def go_on(agents: list[Agent], gateway: ProductionGateway, numbers: itertools.count) -> None:
    """Save in turn until the gateway is gone."""
    async with gateway.client() as client:
        for agent in itertools.cycle(agents):
            try:
                await agent.save(client, next(numbers))
            except httpx.HTTPError:
                return


async def test_a_migration_that_is_killed_goes_on_where_it_was_and_loses_no_save(
    deployment: Deployment, launcher: Launcher, admin: asyncpg.Connection
) -> None:
    first: dict[str, str] = {}
    agents = [Agent(f"t{number * HEADS // BUSY:03}") for number in range(BUSY)]
    numbers = itertools.count()
    gateway = await ProductionGateway(launcher, deployment).start()
    async with gateway.client() as client:
        for number, definition in ((1, {}), (2, {"up": UP})):
            answer = await client.put(f"/v1/state-schemas/travel/versions/{number}", json=definition)
            answer.raise_for_status()
        for number in range(HEADS):
            body = {"state": {"user_pref": number}, "state_schema": "travel", "state_version": 1}
            answer = await client.post(f"/v1/threads/t{number:03}/checkpoints", json=body)
            first[f"t{number:03}"] = answer.raise_for_status().json()["checkpoint_id"]
        how = {"idle_seconds": 0, "threads_per_second": 1000}
        answer = await client.post("/v1/state-schemas/travel/migrate", json=how)
        job_id = answer.raise_for_status().json()["job_id"]

    cut_off = 0
    for count in KILLS:
        saving = asyncio.create_task(go_on(agents, gateway, numbers))
        await until_migrated(admin, count)
        await gateway.kill()
        await saving
        row = await admin.fetchrow("SELECT state, done, position FROM stateroom.jobs WHERE job_id = $1", job_id)
        assert row["state"] == "running", "the job was over before it was killed"
        told = msgspec.json.decode(row["position"])["report"]
        cut_off += await migrated(admin) - told["changed"]
        # The dead owner's lease runs out; here, at once.
        await admin.execute("UPDATE stateroom.jobs SET lease_until = clock_timestamp() WHERE job_id = $1", job_id)
        gateway = await ProductionGateway(launcher, deployment).start()

    try:
        async with gateway.client() as client:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    answer = await client.get("/v1/state-schemas/travel/status")
                    [job] = answer.raise_for_status().json()["jobs"]
                    if job["state"] != "running":
                        break
                    await asyncio.sleep(0.05)
            assert (job["state"], job["error"], job["job_id"]) == ("done", None, job_id)
            assert cut_off > 0, "no kill hit a stretch that was begun: this run proved nothing"
            # It went on where it was: at most the stretch that was cut off is looked at again.
            assert HEADS <= job["migration"]["heads"] <= HEADS + len(KILLS) * STRETCH_HEADS
            assert job["migration"]["failed"] == 0
            busy = {agent.thread_id: agent for agent in agents}
            assert sum(len(agent.acknowledged) for agent in agents) > BUSY
            for thread_id, before in first.items():
                await check_thread(client, thread_id, before, busy.get(thread_id))
    finally:
        await gateway.stop()


async def check_thread(client: httpx.AsyncClient, thread_id: str, before: str, agent: Agent | None) -> None:
    """Everything acknowledged is there, migrated at most once, and the newest is what was last saved."""
    path = f"/v1/threads/{thread_id}/checkpoints"
    page = (await client.get(path, params={"limit": 1000})).raise_for_status().json()
    found = {each["checkpoint_id"]: each for each in page["checkpoints"]}
    steps = [each for each in found.values() if each["source"] == "migrate"]
    saved = set() if agent is None else {*agent.acknowledged}
    assert {before, *saved} <= found.keys(), "an acknowledged save is lost"
    assert len(steps) <= 1, "a head was migrated twice"
    assert all(step["parent_id"] == before for step in steps), "a migration came over somebody's save"
    head = (await client.get(f"{path}/latest")).raise_for_status().json()
    assert head["state_version"] == 2
    if saved:
        assert head["checkpoint_id"] >= max(saved)
        assert head["source"] != "migrate"
        # A save whose answer the kill took may be stored on top.
        assert len(found.keys() - saved - {before} - {step["checkpoint_id"] for step in steps}) <= len(KILLS)
    else:
        assert head["state"] == {"user_profile": int(thread_id[1:])}
        assert [step["checkpoint_id"] for step in steps] == [head["checkpoint_id"]]
