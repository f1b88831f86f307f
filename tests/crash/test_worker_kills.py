"""A worker that is killed in the middle of a round: another one goes on, and no thread is lost or archived twice.

Real `stateroom worker` processes beside a `stateroom serve --no-background`, on a durable PostgreSQL and an S3 server.
"""

import asyncio
from dataclasses import replace

import asyncpg
import httpx
import pytest

from tests.support.metrics import exposition, free_port, value_of
from tests.support.passing_time import PassingTime
from tests.support.production import ProductionWorker, serving

THREADS = 60
KILLED_AFTER = 8
SECONDS_MAX = 90.0
ARCHIVED = "SELECT count(*) FROM stateroom.threads WHERE tier = 'archive'"


@pytest.fixture
def archiving(deployment, s3_server):
    urls = {"STATEROOM_S3_URL": s3_server.url(), "STATEROOM_ARCHIVE_URL": s3_server.archive_url()}
    return replace(deployment, environ=deployment.environ | urls)


@pytest.fixture
async def admin(deployment, durable_postgres):
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "", 1))
    yield connection
    await connection.close()


async def until(admin, query, reached):
    async with asyncio.timeout(SECONDS_MAX):
        while not reached(await admin.fetchval(query)):  # noqa: ASYNC110 - other processes, whose word is a row
            await asyncio.sleep(0.02)


async def until_counted(port, threads):
    """Return once a worker's metrics say how many threads the last rounds saw."""
    tiers = [f'stateroom_threads{{tier="{tier}"}}' for tier in ("hot", "archive")]
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            text = await exposition(port)
            if sum(value_of(text, tier) for tier in tiers) == threads:
                return
            await asyncio.sleep(0.1)


async def latest(client):
    found = {}
    for number in range(THREADS):
        answer = await client.get(f"/v1/threads/t{number}/checkpoints/latest")
        assert answer.status_code == 200, answer.text
        found[number] = answer.content
    return found


async def test_a_worker_killed_in_a_round_is_followed_by_another_that_goes_on(archiving, launcher, admin):
    async with serving(launcher, archiving, "--no-background") as gateway, gateway.client() as client:
        for number in range(THREADS):
            saved = await client.post(f"/v1/threads/t{number}/checkpoints", json={"state": {"n": number}})
            assert saved.status_code == 201, saved.text
        before = await latest(client)
        assert (await client.put("/v1/retention", json={"idle_ttl_seconds": 86_400})).status_code == 200
        # A week passes.
        for row in await admin.fetch("SELECT DISTINCT tenant_id FROM stateroom.threads"):
            await PassingTime(admin, row["tenant_id"]).go_on(7 * 86_400)

        first = await ProductionWorker(launcher, archiving).start()
        await until(admin, ARCHIVED, lambda count: count >= KILLED_AFTER)
        await first.kill()
        left = await admin.fetchval(ARCHIVED)
        assert KILLED_AFTER <= left < THREADS
        # The round has an owner still, who is dead: nobody else takes it before the lease has ended.
        shown = (await client.get("/v1/retention/round")).json()
        assert (shown["state"], shown["lease_until"] is None) == ("running", False)
        assert await latest(client) == before

        # The lease ends.
        await admin.execute("UPDATE stateroom.retention_rounds SET lease_until = clock_timestamp()")
        port = free_port()
        second = await ProductionWorker(launcher, archiving, metrics_listen=f"127.0.0.1:{port}").start()
        third = await ProductionWorker(launcher, archiving).start()
        try:
            await until(admin, ARCHIVED, lambda count: count == THREADS)
            await until(admin, "SELECT started_at FROM stateroom.retention_rounds", lambda found: found is None)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as probe:
                ready = await probe.get("/readyz")
                assert (ready.status_code, ready.json()["ready"]) == (200, True)
                assert (await probe.get("/livez")).status_code == 200
                assert (await probe.get("/v1/whoami")).status_code == 404  # it serves nobody
            await until_counted(port, THREADS)
        finally:
            codes = [await second.stop(), await third.stop()]
        assert codes == [0, 0], second.log + third.log
        assert "Traceback" not in second.log + third.log

        assert await latest(client) == before
        events = await admin.fetch("SELECT target FROM stateroom.audit_log WHERE action = 'thread.archive'")
        targets = [row["target"] for row in events]
        assert (len(targets), len(set(targets))) == (THREADS, THREADS)
        # Written to, one of them comes back by itself; nobody else has to.
        saved = await client.post("/v1/threads/t0/checkpoints", json={"state": {"n": "again"}})
        assert saved.status_code == 201, saved.text
        assert await admin.fetchval(ARCHIVED) == THREADS - 1


async def test_a_gateway_without_background_leaves_jobs_to_workers_and_a_stopped_worker_leaves_no_lease(
    archiving, launcher, admin
):
    async with serving(launcher, archiving, "--no-background") as gateway, gateway.client("user-2") as client:
        saved = await client.post("/v1/threads/job/checkpoints", json={"state": {"n": 1}})
        assert saved.status_code == 201, saved.text
        begun = await client.post("/v1/threads/job/archive")
        assert begun.status_code == 202, begun.text
        job = f"/v1/jobs/{begun.json()['job_id']}"
        assert (await client.get(job)).json()["state"] == "queued"
        worker = await ProductionWorker(launcher, archiving).start()
        await until(admin, "SELECT count(*) FROM stateroom.jobs WHERE state <> 'done'", lambda count: count == 0)
        assert await worker.stop() == 0, worker.log
        assert (await client.get(job)).json()["state"] == "done"
        assert (await client.get("/v1/threads/job")).json()["archive"]["state"] == "ready"
        held = "SELECT count(*) FROM stateroom.jobs WHERE lease_until > clock_timestamp()"
        assert await admin.fetchval(held) == 0
