"""Whether a process says that it is ready follows what becomes of saves, on a real server."""

import asyncio

import asyncpg

from tests.support.production import serving

SECONDS_MAX = 60


async def until(client, status, writes):
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            answer = await client.get("/readyz")
            if (answer.status_code, answer.json()["writes"]) == (status, writes):
                return answer.json()
            await asyncio.sleep(0.1)  # the database is asked once a second: there is nothing to await


async def test_a_lock_that_keeps_saves_out_is_not_ready_and_ready_again_when_it_is_gone(
    deployment, launcher, durable_postgres
):
    locker = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    try:
        async with serving(launcher, deployment) as gateway, gateway.client("locked") as client:
            for table in ("threads", "pending_writes"):
                await until(client, 200, True)
                async with locker.transaction():
                    await locker.execute(f"LOCK TABLE stateroom.{table} IN ACCESS EXCLUSIVE MODE")
                    refused = await until(client, 503, False)
                    assert refused["database"]  # it answers, and is writable
            await until(client, 200, True)
            saved = await client.post("/v1/threads/t/checkpoints", json={"state": {"n": 1}})
            assert saved.status_code == 201, saved.text
    finally:
        await locker.close()
