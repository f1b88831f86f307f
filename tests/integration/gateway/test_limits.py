"""Admission over real HTTP: whoever sends too much is told so, and nobody else notices."""

import asyncio
import contextlib
import json

import asyncpg
import httpx
import psutil
import pytest

from gateway.admission import limits
from storage.checkpoints.reading import HISTORY_MANIFESTS_BYTES_MAX
from tests.support.half_request import HalfRequest, held_open
from tests.support.metrics import free_port, until_in_flight
from tests.support.production import serving
from tests.support.tenants import new_tenant

GIBIBYTE = 1024**3


async def key_of_a_neighbour(gateway) -> str:
    return new_tenant(gateway.url, gateway.deployment.operator_key)["api_key"]


def assert_refused(answer, status: int, code: str) -> None:
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["code"] == code
    assert answer.json()["retryable"] is True


async def test_a_tenant_at_its_cap_is_refused_while_another_is_served(deployment, launcher):
    port = free_port()
    cap = limits.TENANT_REQUESTS_IN_FLIGHT_MAX
    async with serving(launcher, deployment, metrics_listen=f"127.0.0.1:{port}") as gateway:
        neighbour = await key_of_a_neighbour(gateway)
        async with (
            held_open(HalfRequest(gateway, f"cap-{number}") for number in range(cap)) as begun,
            gateway.client() as crowded,
            gateway.client(api_key=neighbour) as served,
        ):
            await until_in_flight(port, cap)
            async with asyncio.timeout(20):  # until the key of all of theirs has been looked up: they are its first use
                while (answer := await crowded.get("/v1/whoami")).status_code == 200:
                    pass
            assert_refused(answer, 429, "tenant-busy")
            saved = await served.post("/v1/threads/t/checkpoints", json={"state": {"n": 1}})
            assert saved.status_code == 201
            assert await asyncio.gather(*(each.finish() for each in begun)) == [201] * cap
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


async def test_a_tenant_whose_bodies_fill_its_share_of_memory_is_refused_and_another_one_is_served(
    deployment, launcher
):
    port = free_port()
    largest = limits.BODY_BYTES_MAX
    many = limits.TENANT_HELD_BYTES_MAX // largest
    async with serving(launcher, deployment, metrics_listen=f"127.0.0.1:{port}") as gateway:
        neighbour = await key_of_a_neighbour(gateway)
        held = [await HalfRequest(gateway, f"m-{number}", body_bytes=largest).begin() for number in range(many)]
        await until_in_flight(port, many)
        async with gateway.client() as crowded, gateway.client(api_key=neighbour) as served:
            body = json.dumps({"state": {"n": "x" * 1_000_000}})
            path, content = "/v1/threads/t/checkpoints", {"Content-Type": "application/json"}
            async with asyncio.timeout(20):  # until all of theirs has been read
                while (answer := await crowded.post(path, content=body, headers=content)).status_code == 201:
                    pass
            assert_refused(answer, 429, "tenant-busy")
            assert "MiB" in answer.json()["detail"]
            assert (await served.post(path, content=body, headers=content)).status_code == 201
            assert await asyncio.gather(*(each.finish() for each in held)) == [201] * many
            assert (await crowded.post(path, content=body, headers=content)).status_code == 201


async def test_the_largest_bodies_and_unread_answers_of_two_tenants_take_less_than_a_gibibyte(deployment, launcher):
    path, latest = "/v1/threads/big/checkpoints", "/v1/threads/big/checkpoints/latest"
    large = b'{"state":{"a":"' + b"a" * 31_000_000 + b'"}}'
    dense = b'{"state":{"a":[' + b'{"a":0},' * (31_000_000 // 8) + b"[]]}}"
    headers = {"Content-Type": "application/json"}
    async with serving(launcher, deployment) as gateway:
        neighbour = await key_of_a_neighbour(gateway)
        process = psutil.Process(gateway.pid)
        peak_bytes = 0

        async def watch() -> None:
            nonlocal peak_bytes
            with contextlib.suppress(psutil.NoSuchProcess):
                while True:
                    peak_bytes = max(peak_bytes, process.memory_info().rss)
                    await asyncio.sleep(0.01)

        async with gateway.client() as one, gateway.client(api_key=neighbour) as other:
            one.timeout = other.timeout = httpx.Timeout(60)
            watching = asyncio.create_task(watch())
            dense_ones = await asyncio.gather(
                *(client.post(path, content=dense, headers=headers) for client in (one, other) for _ in range(2))
            )
            assert [each.status_code for each in dense_ones] == [422] * 4
            large_ones = await asyncio.gather(
                *(client.post(path, content=large, headers=headers) for client in (one, other) for _ in range(2))
            )
            assert {each.status_code for each in large_ones} <= {201, 429, 503}
            assert (await one.post(path, content=large, headers=headers)).status_code == 201
            async with contextlib.AsyncExitStack() as unread:
                plain = {"Accept-Encoding": "identity"}
                answers = [await unread.enter_async_context(one.stream("GET", latest, headers=plain)) for _ in range(5)]
                assert sorted({each.status_code for each in answers}) == [200, 429]
                assert (await other.get("/v1/whoami")).status_code == 200
            watching.cancel()
    assert peak_bytes < GIBIBYTE


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


async def sessions_waiting(superuser) -> tuple[int, int]:
    """Sessions of the gateway's role in this database, and those of them that wait for a lock."""
    row = await superuser.fetchrow(
        "SELECT count(*) AS open, count(*) FILTER (WHERE cardinality(pg_blocking_pids(pid)) > 0) AS blocked"
        " FROM pg_stat_activity WHERE usename = 'gw_app' AND datname = current_database()"
    )
    return row["open"], row["blocked"]


async def until_blocked(superuser, count: int) -> None:
    async with asyncio.timeout(20):
        while (await sessions_waiting(superuser))[1] < count:
            pass


async def test_a_stuck_database_holds_as_many_requests_as_are_admitted_and_refuses_the_rest_at_once(
    deployment, launcher, superuser
):
    port = free_port()
    in_flight, connections = 12, 4
    settings = {
        "metrics_listen": f"127.0.0.1:{port}",
        "database_connections_max": str(connections),
        "requests_in_flight_max": str(in_flight),
    }
    async with serving(launcher, deployment, **settings) as gateway, gateway.client() as client:
        other_key = await key_of_a_neighbour(gateway)
        async with gateway.client(api_key=other_key) as other:
            clients = (client, other)

            async def save(number: int):
                path = f"/v1/threads/stuck-{number}/checkpoints"
                return await clients[number % 2].post(path, json={"state": {"n": number}})

            for number in (in_flight, in_flight + 1):  # who they are is known, and has keys: that takes no connection
                assert (await save(number)).status_code == 201
            async with superuser.transaction():
                await superuser.execute("LOCK stateroom.threads IN ACCESS EXCLUSIVE MODE")
                waiting = [asyncio.create_task(save(number)) for number in range(in_flight)]
                await until_in_flight(port, in_flight)
                await until_blocked(superuser, connections)
                for number in range(3):
                    assert_refused(await save(number), 503, "overloaded")
                assert not any(task.done() for task in waiting)  # they were not in its way
                assert await sessions_waiting(superuser) == (connections, connections)
            answers = await asyncio.gather(*waiting)
            assert [answer.status_code for answer in answers] == [201] * in_flight


async def test_who_gets_no_connection_within_the_roles_limit_is_refused_at_once_and_the_others_go_on(
    deployment, launcher, superuser
):
    """PostgreSQL keeps the sum of all processes: a pool may have places left for which there are no connections."""
    # Without the rounds of the background, which want a connection now and then, too.
    quiet = serving(launcher, deployment, "--no-background", database_connections_max="10")
    async with quiet as gateway, gateway.client() as client:

        async def save(name: str):
            return await client.post(f"/v1/threads/{name}/checkpoints", json={"state": {"n": 1}})

        assert (await save("budget")).status_code == 201
        taken, _ = await sessions_waiting(superuser)
        await superuser.execute(f"ALTER ROLE gw_app CONNECTION LIMIT {taken}")
        try:
            async with superuser.transaction():
                await superuser.execute("LOCK stateroom.threads IN ACCESS EXCLUSIVE MODE")
                waiting = {asyncio.create_task(save(f"budget-{number}")) for number in range(taken + 2)}
                refused = set()
                while len(refused) < 2:
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    refused |= done
                for task in refused:
                    assert_refused(task.result(), 503, "database-unavailable")
                assert (await sessions_waiting(superuser))[0] == taken
            answers = await asyncio.gather(*waiting)
            assert {answer.status_code for answer in answers} == {201}
        finally:
            await superuser.execute("ALTER ROLE gw_app CONNECTION LIMIT -1")
        assert (await save("after")).status_code == 201


async def test_a_page_of_the_heaviest_metadata_ends_early_and_the_next_ones_have_the_rest(deployment, launcher):
    heavy = {"a": [[]] * ((limits.METADATA_BYTES_MAX - 100) // 3)}
    path = "/v1/threads/heavy/checkpoints"
    async with serving(launcher, deployment) as gateway, gateway.client() as client:
        saved = [
            (await client.post(path, json={"state": {"a": number}, "metadata": heavy})).json()["checkpoint_id"]
            for number in range(HISTORY_MANIFESTS_BYTES_MAX // len(heavy["a"]) + 10)
        ]
        pages, cursor = [], ""
        while cursor is not None:
            page = (await client.get(f"{path}?limit={limits.PAGE_ITEMS_MAX}{cursor}")).json()
            pages.append([each["checkpoint_id"] for each in page["checkpoints"]])
            cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert len(pages) == 2
    assert [each for page in pages for each in page] == saved[::-1]
