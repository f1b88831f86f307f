"""All three levels of keys rotate while agents work over HTTP, through two gateways: no request fails."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio

import asyncpg
import httpx
import pytest

from crypto import peek_header
from crypto.roots.file import FileRootKey
from tests.support.production import serving

# Rows that are written once: whatever else happens, rotating a root or tenant key leaves their bytes alone.
WRITTEN_ONCE = {"chunks": "envelope", "checkpoints": "manifest", "pending_writes": "value"}
ALL_SEALED = {**WRITTEN_ONCE, "heads": "seal", "threads": "seal"}
AGENTS = 4
# What every agent does at least, before, during and after each rotation.
TURNS_MIN = 3


class Agents:
    """Agents that save, write and load, in turns through both gateways; every answer must be the right one."""

    def __init__(self, gateways):
        self._gateways = gateways
        self._turns = [0] * AGENTS
        self._turned = asyncio.Event()
        self._over = asyncio.Event()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self):
        await self._group.__aenter__()
        for number in range(AGENTS):
            self._group.create_task(self._work(number))
        await self.turned()
        return self

    async def __aexit__(self, *reason):
        self._over.set()
        return await self._group.__aexit__(*reason)

    async def _work(self, number):
        async with self._gateways[0].client("busy") as one, self._gateways[1].client("busy") as two:
            path = f"/v1/threads/t{number}/checkpoints"
            while not self._over.is_set():
                turn = self._turns[number]
                here, there = (one, two) if turn % 2 else (two, one)
                state = {"n": turn, "text": f"{number}-{turn}-" * 700}
                saved = await here.post(path, json={"state": state})
                assert saved.status_code == 201, saved.text
                body = {"writes": [{"channel": "out", "idx": 0, "value": turn}]}
                written = await here.post(f"{path}/{saved.json()['checkpoint_id']}/writes/task", json=body)
                assert written.status_code == 200, written.text
                loaded = await there.get(f"{path}/latest")
                assert loaded.status_code == 200, loaded.text
                assert loaded.json()["state"] == state
                assert [each["value"] for each in loaded.json()["pending_writes"]] == [turn]
                older = await there.get(f"{path}?limit=2")
                assert older.status_code == 200, older.text
                self._turns[number] += 1
                self._turned.set()

    async def turned(self):
        """Wait until every agent has gone on."""
        before = list(self._turns)
        async with asyncio.timeout(60):
            while min(now - then for now, then in zip(self._turns, before, strict=True)) < TURNS_MIN:
                self._turned.clear()
                await self._turned.wait()


@pytest.fixture
async def attacker(deployment, durable_postgres):
    """Somebody who reads every byte of the database."""
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    yield connection
    await connection.close()


async def sealed(connection, columns, subject):
    return {
        (table, row[0])
        for table, column in columns.items()
        for row in await connection.fetch(f"SELECT {column} FROM stateroom.{table} WHERE subject_id = $1", subject)
    }


def _of_no_subject(client, path):
    """A request for a tenant's own: whoever names a subject follows that subject's jobs."""
    request = client.build_request("GET", path)
    request.headers.pop("Stateroom-Subject", None)
    return request


async def job(client, path, job_id):
    async with asyncio.timeout(120):
        while True:
            answer = await client.send(_of_no_subject(client, f"{path}/{job_id}"))
            assert answer.status_code == 200, answer.text
            found = answer.json()
            if found["state"] in {"done", "failed"}:
                return found
            await asyncio.sleep(0.05)  # a job in another process


async def test_every_level_rotates_while_agents_work_and_no_request_fails(deployment, launcher, attacker):
    async with (
        serving(launcher, deployment) as one,
        serving(launcher, deployment) as two,
        one.client("quiet") as quiet,
        httpx.AsyncClient(
            base_url=two.url, headers={"Authorization": f"Bearer {deployment.operator_key}"}, timeout=30
        ) as operator,
    ):
        for number in range(3):
            saved = await quiet.post(f"/v1/threads/q{number}/checkpoints", json={"state": {"n": number}})
            assert saved.status_code == 201, saved.text
        still = await sealed(attacker, ALL_SEALED, "quiet")
        assert len(still) > 6
        async with Agents((one, two)) as agents:
            written = await sealed(attacker, WRITTEN_ONCE, "busy")
            wrapped = await attacker.fetch("SELECT wrapped FROM stateroom.tenant_keys")
            FileRootKey.open(deployment.environ["STATEROOM_ROOT_KEY"].removeprefix("file:")).add_version()
            started = await operator.post("/v1/admin/keys:rewrap")
            assert started.status_code == 202, started.text
            ended = await job(operator, "/v1/admin/jobs", started.json()["job_id"])
            assert (ended["state"], ended["progress"]["done"]) == ("done", ended["progress"]["total"])
            assert ended["progress"]["total"] >= 1
            assert not set(wrapped) & set(await attacker.fetch("SELECT wrapped FROM stateroom.tenant_keys"))
            await agents.turned()
            assert await sealed(attacker, ALL_SEALED, "quiet") == still
            assert written <= await sealed(attacker, WRITTEN_ONCE, "busy")

            written = await sealed(attacker, WRITTEN_ONCE, "busy")
            wrapped = await attacker.fetch("SELECT wrapped FROM stateroom.subject_keys")
            rotated = await quiet.post("/v1/keys:rotate", json={"level": "tenant"})
            assert rotated.status_code in {200, 202}, rotated.text
            ended = await job(quiet, "/v1/jobs", rotated.json()["job_id"])
            assert (ended["state"], ended["progress"]["done"]) == ("done", ended["progress"]["total"])
            assert not set(wrapped) & set(await attacker.fetch("SELECT wrapped FROM stateroom.subject_keys"))
            await agents.turned()
            assert await sealed(attacker, ALL_SEALED, "quiet") == still
            assert written <= await sealed(attacker, WRITTEN_ONCE, "busy")

            rotated = await quiet.post("/v1/keys:rotate", json={"level": "subject", "subject_id": "busy"})
            assert rotated.status_code in {200, 202}, rotated.text
            ended = await job(quiet, "/v1/jobs", rotated.json()["job_id"])
            # What an agent's save sealed again meanwhile, the job need not.
            assert (ended["state"], 0 < ended["progress"]["done"] <= ended["progress"]["total"]) == ("done", True)
            await agents.turned()
            versions = {peek_header(data).key_version for _, data in await sealed(attacker, ALL_SEALED, "busy")}
            assert versions == {2}
            assert await sealed(attacker, ALL_SEALED, "quiet") == still
        keys = (await quiet.get("/v1/keys", params={"subject_id": "busy"})).json()
        data = [each for each in keys["subject_keys"] if each["purpose"] == "data"]
        assert [(each["key_version"], each["state"]) for each in data] == [(1, "destroyed"), (2, "active")]
        for number in range(3):
            loaded = await quiet.get(f"/v1/threads/q{number}/checkpoints/latest")
            assert loaded.json()["state"] == {"n": number}
