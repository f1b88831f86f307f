"""Admission over real HTTP: whoever sends too much is told so, and nobody else notices."""

import asyncio

import asyncpg
import pytest

from gateway import limits
from tests.support.half_request import HalfRequest
from tests.support.metrics import free_port, until_in_flight
from tests.support.production import serving


async def new_tenant(gateway) -> str:
    headers = {"Authorization": f"Bearer {gateway.deployment.operator_key}"}
    async with gateway.client() as client:
        made = await client.post("/v1/admin/tenants", json={"name": "neighbour"}, headers=headers)
    return made.json()["api_key"]


def assert_refused(answer, status: int, code: str) -> None:
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["code"] == code
    assert answer.json()["retryable"] is True


async def test_a_tenant_at_its_cap_is_refused_while_another_is_served(deployment, launcher):
    port = free_port()
    cap = limits.TENANT_REQUESTS_IN_FLIGHT_MAX
    async with serving(launcher, deployment, metrics_listen=f"127.0.0.1:{port}") as gateway:
        neighbour = await new_tenant(gateway)
        held = await asyncio.gather(*(HalfRequest(gateway, f"cap-{number}").begin() for number in range(cap)))
        await until_in_flight(port, cap)
        async with gateway.client() as crowded, gateway.client(api_key=neighbour) as served:
            assert_refused(await crowded.get("/v1/whoami"), 429, "tenant-busy")
            saved = await served.post("/v1/threads/t/checkpoints", json={"state": {"n": 1}})
            assert saved.status_code == 201
            assert await asyncio.gather(*(each.finish() for each in held)) == [201] * cap
            assert (await crowded.get("/v1/whoami")).status_code == 200


async def test_a_full_process_refuses_everybody_but_probes(deployment, launcher):
    port = free_port()
    settings = {"metrics_listen": f"127.0.0.1:{port}", "requests_in_flight_max": "4"}
    async with serving(launcher, deployment, **settings) as gateway, gateway.client() as client:
        held = [await HalfRequest(gateway, f"full-{number}").begin() for number in range(4)]
        await until_in_flight(port, 4)
        assert_refused(await client.get("/v1/whoami"), 503, "overloaded")
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert [await each.finish() for each in held] == [201] * 4
        assert (await client.get("/v1/whoami")).status_code == 200


@pytest.fixture
async def superuser(durable_postgres, deployment):
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    yield connection
    await connection.close()


async def test_a_hot_thread_queues_and_then_refuses_while_other_threads_are_written(deployment, launcher, superuser):
    port = free_port()
    admitted = limits.THREAD_WRITES_ACTIVE_MAX + limits.THREAD_WRITES_WAITING_MAX
    settings = {"metrics_listen": f"127.0.0.1:{port}", "database_connections_max": "4"}
    async with serving(launcher, deployment, **settings) as gateway, gateway.client() as client:

        async def save(thread_id: str, number: int):
            return await client.post(f"/v1/threads/{thread_id}/checkpoints", json={"state": {"n": number}})

        assert (await save("hot", 0)).status_code == 201
        async with superuser.transaction():  # somebody holds the thread's row
            await superuser.execute("SELECT FROM stateroom.threads WHERE thread_id = 'hot' FOR UPDATE")
            waiting = [asyncio.create_task(save("hot", number)) for number in range(admitted)]
            await until_in_flight(port, admitted)
            assert_refused(await save("hot", -1), 429, "thread-busy")
            assert (await save("cool", 0)).status_code == 201
        answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] == [201] * admitted
