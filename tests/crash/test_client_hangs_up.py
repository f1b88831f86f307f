"""A client that hangs up: a save whose body was read commits, one whose body was not leaves nothing."""

import asyncio

import asyncpg
import pytest

from tests.support.half_request import HalfRequest
from tests.support.metrics import free_port, until_in_flight
from tests.support.production import serving

CLIENTS = 20
CONNECTIONS = 2


@pytest.fixture
async def superuser(durable_postgres, deployment):
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def metrics_port():
    return free_port()


@pytest.fixture
def settings(metrics_port):
    return {"metrics_listen": f"127.0.0.1:{metrics_port}", "database_connections_max": str(CONNECTIONS)}


async def assert_nothing_leaked(superuser, client, metrics_port) -> None:
    await until_in_flight(metrics_port, 0)
    left_open = await superuser.fetchval(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name LIKE 'stateroom%' AND datname = current_database()"
        " AND state LIKE 'idle in transaction%'"
    )
    assert left_open == 0
    saves = (client.post(f"/v1/threads/after-{n}/checkpoints", json={"state": {}}) for n in range(4 * CONNECTIONS))
    assert {answer.status_code for answer in await asyncio.gather(*saves)} == {201}


async def test_a_save_whose_client_is_gone_after_its_body_is_committed(
    deployment, launcher, superuser, settings, metrics_port
):
    async with serving(launcher, deployment, **settings) as gateway, gateway.client() as client:
        for number in range(CONNECTIONS):
            made = await client.post(f"/v1/threads/gone-{number}/checkpoints", json={"state": {"n": "first"}})
            assert made.status_code == 201
        async with superuser.transaction():  # so that no save can be over before its client is
            await superuser.execute("SELECT FROM stateroom.threads WHERE thread_id LIKE 'gone-%' FOR UPDATE")
            requests = [HalfRequest(gateway, f"gone-{number % CONNECTIONS}") for number in range(CLIENTS)]
            for request in requests:
                await request.begin()
                await request.send_rest()
            await until_in_flight(metrics_port, CLIENTS)
            for request in requests:
                request.hang_up()
        await assert_nothing_leaked(superuser, client, metrics_port)
        for number in range(CONNECTIONS):
            history = await client.get(f"/v1/threads/gone-{number}/checkpoints")
            assert len(history.json()["checkpoints"]) == 1 + CLIENTS // CONNECTIONS


async def test_a_save_whose_client_is_gone_in_the_middle_of_its_body_leaves_nothing(
    deployment, launcher, superuser, settings, metrics_port
):
    async with serving(launcher, deployment, **settings) as gateway, gateway.client() as client:
        requests = [HalfRequest(gateway, f"half-{number}") for number in range(CLIENTS)]
        for request in requests:
            await request.begin()
        await until_in_flight(metrics_port, CLIENTS)
        for request in requests:
            request.hang_up()
        await assert_nothing_leaked(superuser, client, metrics_port)
    left = await superuser.fetchval("SELECT count(*) FROM stateroom.threads WHERE thread_id LIKE 'half-%'")
    assert left == 0
