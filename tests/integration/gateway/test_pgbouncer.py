"""Two gateways behind a real PgBouncer in transaction mode, whose few connections all tenants share."""

import asyncio
import os
import pwd
import shutil
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from storage.errors import SetupError
from storage.postgres.engine import create_engine
from tests.support.metrics import free_port
from tests.support.production import APP_PASSWORD, Deployment, ProductionGateway, serving
from tests.support.tenants import new_tenant

PGBOUNCER = shutil.which("pgbouncer", path=os.pathsep.join((os.environ["PATH"], "/usr/sbin")))
SERVER_CONNECTIONS = 3
GATEWAY_CONNECTIONS = 8
ROUNDS = 12
SOAK_ROUNDS = 556  # times 3 requests of 6 workers: a little over 10,000
SUBJECTS = ("user-1", "user-2", "user-3")
IGNORED = "jit, lock_timeout, statement_timeout, idle_in_transaction_session_timeout"
ROLE_SETTINGS = {
    "jit": "off",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "30s",
}

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PGBOUNCER ABSENT: no executable named pgbouncer")


@asynccontextmanager
async def pooler(folder, server_port, ignored=IGNORED):
    """PgBouncer in transaction mode on a free port, which is yielded. As root it runs as nobody."""
    assert PGBOUNCER is not None
    port = free_port()
    users, config = folder / f"pgbouncer-{port}.users", folder / f"pgbouncer-{port}.ini"
    users.write_text(f'"gw_app" "{APP_PASSWORD}"\n')
    config.write_text(
        f"""
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
default_pool_size = {SERVER_CONNECTIONS}
max_client_conn = 100
ignore_startup_parameters = {ignored}
log_connections = 0
log_disconnections = 0
log_stats = 0
"""
    )
    account = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    for path in (users, config):
        path.chmod(0o600)
        if account:
            os.chown(path, account["user"], account["group"])
    process = await asyncio.create_subprocess_exec(
        PGBOUNCER, str(config), stderr=asyncio.subprocess.PIPE, cwd="/", **account
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(10):
            while b"process up" not in (line := await process.stderr.readline()):
                assert line, "PgBouncer did not start"
        log = asyncio.create_task(process.stderr.read())
        yield port
    finally:
        process.terminate()
        await process.wait()
    await log


class Pooled(NamedTuple):
    gateways: tuple[ProductionGateway, ProductionGateway]
    direct: Deployment
    dsn: str  # of gw_app, through the pooler

    def client(self, number: int, subject: str, api_key: str) -> httpx.AsyncClient:
        return self.gateways[number].client(subject, api_key)


def through(deployment, port):
    pooled = deployment.at_port(port)
    url = make_url(pooled.environ["STATEROOM_DATABASE_URL"])
    text = url.update_query_dict({"statement_cache_size": "0"}).render_as_string(False)
    environ = pooled.environ | {"STATEROOM_DATABASE_URL": text}
    return Deployment(pooled.database, environ, pooled.operator_key, pooled.api_key)


async def as_superuser(postgres, database, *statements):
    connection = await asyncpg.connect(postgres.superuser_url(database).replace("+asyncpg", "", 1))
    try:
        return [await connection.fetch(statement) for statement in statements]
    finally:
        await connection.close()


@pytest.fixture
async def pooled(deployment, launcher, durable_postgres, production_dir):
    # In this database only: the role is the whole cluster's.
    await as_superuser(
        durable_postgres,
        deployment.database,
        *(
            f"ALTER ROLE gw_app IN DATABASE {deployment.database} SET {name} = '{value}'"
            for name, value in (ROLE_SETTINGS | {"track_functions": "pl"}).items()
        ),
    )
    settings = {"database_connections_max": str(GATEWAY_CONNECTIONS)}
    server_port = make_url(durable_postgres.superuser_url()).port
    async with pooler(production_dir, server_port) as port:
        behind = through(deployment, port)
        dsn = make_url(deployment.environ["STATEROOM_DATABASE_URL"]).set(drivername="postgresql", port=port)
        async with (
            serving(launcher, behind, **settings) as one,
            serving(launcher, behind, **settings) as other,
        ):
            yield Pooled((one, other), deployment, dsn.render_as_string(False))


async def api_keys_of_two_tenants(pooled):
    return pooled.direct.api_key, new_tenant(pooled.gateways[0].url, pooled.direct.operator_key)["api_key"]


async def save(client, thread, state):
    answer = await client.post(f"/v1/threads/{thread}/checkpoints", json={"state": state})
    assert answer.status_code == 201, answer.text


async def load(client, thread):
    answer = await client.get(f"/v1/threads/{thread}/checkpoints/latest")
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


async def refusal(request):
    answer = await request
    return answer.status_code, answer.json()["code"]


async def work(pooled, owner, api_key, subject, rounds):
    """Save through one gateway and load through the other, in turns; the thread's name is everybody's."""
    async with pooled.client(0, subject, api_key) as here, pooled.client(1, subject, api_key) as there:
        await save(here, f"of-{owner}-{subject}", {})
        for number in range(rounds):
            foreign = f"of-{1 - owner}-{SUBJECTS[number % len(SUBJECTS)]}"
            state = {"owner": owner, "subject": subject, "n": number}
            first, second = (here, there) if number % 2 else (there, here)
            await save(first, "same", state)
            assert await load(second, "same") == state
            refused = await refusal(first.get(f"/v1/threads/{foreign}/checkpoints/latest"))
            assert refused == (404, "checkpoint-not-found")
        threads = await there.get("/v1/threads")
        found = {thread["thread_id"] for thread in threads.json()["threads"]}
        assert found == {"same", f"of-{owner}-{subject}"}


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(SOAK_ROUNDS, marks=pytest.mark.soak)])
async def test_tenants_that_share_the_poolers_connections_see_only_their_own(pooled, durable_postgres, rounds):
    keys = await api_keys_of_two_tenants(pooled)
    async with asyncio.TaskGroup() as tasks:
        for owner, api_key in enumerate(keys):
            for subject in SUBJECTS:
                tasks.create_task(work(pooled, owner, api_key, subject, rounds))
    ((row,),) = await as_superuser(
        durable_postgres,
        pooled.direct.database,
        "SELECT count(*) AS connections FROM pg_stat_activity"
        " WHERE usename = 'gw_app' AND datname = current_database()",
    )
    assert 1 <= row["connections"] <= SERVER_CONNECTIONS < len(keys) * len(SUBJECTS)
    assert [gateway.log for gateway in pooled.gateways if "ERROR" in gateway.log.upper()] == []
    strangers = [await asyncpg.connect(pooled.dsn, statement_cache_size=0) for _ in range(SERVER_CONNECTIONS)]
    try:
        pids = set()
        for stranger in strangers:
            await stranger.execute("BEGIN")  # each keeps its server connection, so that all of them are seen
            pids.add(await stranger.fetchval("SELECT pg_backend_pid()"))
            for name in ("tenant_id", "subject_id", "operator", "tenant_listing"):
                assert not await stranger.fetchval(f"SELECT current_setting('app.{name}', true)")
            assert await stranger.fetchval("SELECT count(*) FROM stateroom.checkpoints") == 0
        assert len(pids) == SERVER_CONNECTIONS
    finally:
        for stranger in strangers:
            await stranger.close()


async def test_functions_that_are_a_transaction_of_their_own_work_and_leave_no_binding_behind(pooled, durable_postgres):
    """Outside a transaction the pooler may send every message elsewhere; whose save and whose load it is goes along."""
    keys = await api_keys_of_two_tenants(pooled)

    async def run(owner, api_key, subject):
        async with pooled.client(owner, subject, api_key) as client:  # each at one gateway, which remembers its threads
            for number in range(ROUNDS):
                await save(client, f"run-{subject}", {"of": [owner, subject], "n": number})
                assert await load(client, f"run-{subject}") == {"of": [owner, subject], "n": number}

    async with asyncio.TaskGroup() as tasks:
        for owner, api_key in enumerate(keys):
            for subject in SUBJECTS:
                tasks.create_task(run(owner, api_key, subject))
    stranger = await asyncpg.connect(pooled.dsn, statement_cache_size=0)
    try:
        for _ in range(4 * SERVER_CONNECTIONS):
            assert not await stranger.fetchval("SELECT current_setting('app.tenant_id', true)")
            assert await stranger.fetchval("SELECT count(*) FROM stateroom.checkpoints") == 0
    finally:
        await stranger.close()
    assert [gateway.log for gateway in pooled.gateways if "ERROR" in gateway.log.upper()] == []
    for gateway in pooled.gateways:
        await gateway.stop()
    runs = len(keys) * len(SUBJECTS)
    async with asyncio.timeout(30):  # sessions say what they counted when they idle
        while True:
            ((row,),) = await as_superuser(
                durable_postgres,
                pooled.direct.database,
                "SELECT coalesce(sum(calls), 0) AS calls FROM pg_stat_user_functions WHERE funcname LIKE 'save_on%'",
            )
            if row["calls"] >= runs * (ROUNDS - 1):
                break
            await asyncio.sleep(0.05)


async def test_a_shred_through_one_is_felt_by_both_at_the_next_request_and_by_nobody_else(pooled):
    own, neighbour = await api_keys_of_two_tenants(pooled)
    others = [(own, "stays"), (neighbour, "stays"), (neighbour, "gone")]
    async with pooled.client(0, "gone", own) as here, pooled.client(1, "gone", own) as there:
        for api_key, subject in [(own, "gone"), *others]:
            for number in range(2):
                async with pooled.client(number, subject, api_key) as client:  # now both know its keys
                    await save(client, f"t{number}", {"n": number})
                    assert await load(client, f"t{number}") == {"n": number}
        shredded = await here.post("/v1/subjects/gone/shred", json={"confirm": "gone"})
        assert shredded.status_code == 202, shredded.text
        for client in (there, here):
            for request in (
                client.get("/v1/threads/t0/checkpoints/latest"),
                client.post("/v1/threads/t0/checkpoints", json={"state": {}}),
            ):
                assert await refusal(request) == (410, "key-destroyed")
    for api_key, subject in others:
        for number in range(2):
            async with pooled.client(number, subject, api_key) as client:
                for thread in range(2):
                    assert await load(client, f"t{thread}") == {"n": thread}
                await save(client, f"after-{number}", {"after": number})
                assert await load(client, f"after-{number}") == {"after": number}


async def test_time_outs_of_the_role_hold_behind_the_pooler(pooled):
    connection = await asyncpg.connect(pooled.dsn, statement_cache_size=0)
    try:
        found = {name: await connection.fetchval(f"SHOW {name}") for name in ROLE_SETTINGS}
    finally:
        await connection.close()
    assert found == ROLE_SETTINGS


async def test_the_doctor_says_whether_the_role_has_the_time_outs_that_the_pooler_drops(pooled, durable_postgres):
    from gateway.cli.local import checks

    async def said():
        findings = await checks.examine(pooled.gateways[0].deployment.environ)
        return {each.check: each for each in findings}["connections"]

    assert (await said()).outcome == "ok"
    database = pooled.direct.database
    await as_superuser(durable_postgres, database, f"ALTER ROLE gw_app IN DATABASE {database} RESET lock_timeout")
    server_port = make_url(durable_postgres.superuser_url()).port
    async with pooler(pooled.gateways[0].log_file.parent, server_port) as port:
        environ = through(pooled.direct, port).environ  # its connections are new
        findings = {each.check: each for each in await checks.examine(environ)}
    assert findings["connections"].outcome == "failed"
    assert "lock_timeout" in findings["connections"].detail


async def test_a_gateway_does_not_start_behind_a_pooler_that_refuses_its_settings(
    deployment, launcher, durable_postgres, production_dir
):
    server_port = make_url(durable_postgres.superuser_url()).port
    async with pooler(production_dir, server_port, ignored="extra_float_digits") as port:
        refused = ProductionGateway(launcher, through(deployment, port))
        with pytest.raises(AssertionError):
            await refused.start()
        assert await refused.wait() > 0


@pytest.mark.parametrize("query", ["=-1", "=many", "=0&statement_cache_size=1"])
def test_a_cache_size_that_is_no_number_is_refused(query):
    with pytest.raises(SetupError, match="statement_cache_size"):
        create_engine(f"postgresql://gw_app@localhost/x?statement_cache_size{query}", connections_max=1)
