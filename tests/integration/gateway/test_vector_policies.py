"""Vectors in clear over HTTP and by the operator's command: refused by name, then accepted, made and found."""

import asyncio
import time
from uuid import UUID

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from crypto.roots import create_root_key
from storage.control.features import CLEAR_VECTORS, ITEMS
from storage.service import Store
from tests.support.features import switch_on
from tests.support.gateway import Tenant
from tests.support.operations import Tenancy, assert_problem
from tests.support.production import serving

POLICY = "/v1/vector-policy"
CLEAR = {"vectors": "clear", "accept_leakage": "content"}
ITEM = {"key": "a", "path": ["m"], "value": {"k": 1}, "vectors": [{"model": "m", "vectors": [[1.0, 0.5]]}]}


@pytest.fixture(scope="module")
async def gateway(deployment, launcher):
    store = await Store.open(
        deployment.environ["STATEROOM_DATABASE_URL"],
        root_key=create_root_key(deployment.environ["STATEROOM_ROOT_KEY"]),
        deployment_id=UUID(deployment.environ["STATEROOM_DEPLOYMENT_ID"]),
        connections_max=2,
    )
    for feature in (ITEMS, CLEAR_VECTORS):
        await switch_on(store, feature)
    await store.close()
    async with serving(launcher, deployment) as running:
        yield running


@pytest.fixture(scope="module")
def command(launcher, deployment, durable_postgres):
    """`stateroom db enable-pgvector` as a superuser, who may make the extension."""
    url = make_url(durable_postgres.superuser_url(deployment.database)).set(drivername="postgresql")

    def run(*options):
        environ = {**deployment.environ, "STATEROOM_DATABASE_OWNER_URL": url.render_as_string(False)}
        return launcher.run(environ, "db", "enable-pgvector", *options)

    return run


@pytest.fixture
def database(deployment, durable_postgres):
    """Runs a statement as a superuser."""

    async def execute(statement):
        connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
        await connection.execute(statement)
        await connection.close()

    return lambda statement: asyncio.run(execute(statement))


def test_a_tenant_accepts_what_leaks_and_finds_what_is_in_clear(gateway, command, database):
    deployment = gateway.deployment
    tenancy = Tenancy(Tenant(gateway.url, deployment.api_key, deployment.operator_key))
    service_key = tenancy.tenant()
    with tenancy.client(service_key) as admin, tenancy.client(service_key, "user-1") as client:
        assert admin.get(POLICY).json() == {
            "vectors": "sealed", "accepted_leakage": None, "complete": True, "damaged": False, "updated_at": None,
        }  # fmt: skip
        refused = admin.put(POLICY, json={"vectors": "clear"})
        assert_problem(refused, 422, "leakage-not-accepted")
        assert "a backup, which a shred does not reach" in refused.text
        assert_problem(admin.put(POLICY, json={**CLEAR, "accept_leakage": "all"}), 422, "invalid-request")
        assert_problem(admin.put(POLICY, json=CLEAR), 409, "clear-vectors-unavailable")
        _put(client)
        made = command("--index-dimensions", "2")
        assert made.returncode == 0, made.stderr
        assert b"made the table stateroom.item_clear_vectors" in made.stderr
        assert b"backups of this database hold them" in command().stderr
        database("REVOKE INSERT ON stateroom.audit_log FROM gw_app")
        assert_problem(admin.put(POLICY, json=CLEAR), 500)  # no change without its record
        database("GRANT INSERT ON stateroom.audit_log TO gw_app")
        assert admin.get(POLICY).json()["vectors"] == "sealed"
        assert admin.put(POLICY, json=CLEAR).json()["accepted_leakage"] == "content"
        _until_complete(admin)
        (found,) = client.post("/v1/items:search", json={"near": {"model": "m", "vector": [1.0, 0.5]}}).json()["items"]
        assert (found["key"], found["score"]) == ("a", pytest.approx(1.0, abs=0.01))
        in_use = command("--remove")
        assert in_use.returncode == 1
        assert b"in use" in in_use.stderr
        assert command("--remove", "--index-dimensions", "2").returncode == 2
        assert admin.put(POLICY, json={"vectors": "sealed"}).status_code == 200
        _until_complete(admin)
        gone = command("--remove")
        assert gone.returncode == 0, gone.stderr
        assert b"is gone" in gone.stderr
        assert b"no table" in command("--remove").stderr
    with tenancy.client(tenancy.key(service_key, "user-1")) as subject:
        assert_problem(subject.put(POLICY, json=CLEAR), 403, "permission-denied")


def _put(client: httpx.Client) -> None:
    answer = client.post("/v1/items:batch", json={"writes": [ITEM]})
    assert answer.status_code == 200, answer.text


def _until_complete(admin: httpx.Client) -> None:
    until = time.monotonic() + 60
    while not admin.get(POLICY).json()["complete"]:
        assert time.monotonic() < until
