"""No change of a tenant or of the deployment happens without its record: one that cannot be written refuses the change.

The operations come from the routes themselves, so that one that is added later is tried as well.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
from storage.control.features import KNOWN
from tests.security.test_foreign_scope import DEPLOYMENT, _settled, _stored
from tests.support.features import finish_upgrade
from tests.support.gateway import Tenant
from tests.support.operations import (
    AUTHENTICATED,
    Tenancy,
    assert_problem,
    key_id,
    register_schema,
    request_of,
    save_thread,
)
from tests.support.production import Deployment, Launcher, serving

# Anchors are written to the object store and say what the log says already.
RECORDS_NOTHING = {"anchor_audit", "anchor_operator_audit"}
# Starting a verification changes nothing that could be anybody's policy.
CHANGES_NOTHING = {"verify_tenant", "verify_deployment", "begin_retention_round"}
# What these change is not there: each has a test of its own that looks for its record.
NOTHING_THERE = {
    "adopt_state", "revoke_operator_key", "supersede_job", "supersede_deployment_job", "cancel_deployment_job",
    "put_vector_policy",
}  # fmt: skip
ADMINISTRATIVE = {
    name
    for name, one in AUTHENTICATED.items()
    if one.operation.permission in {"tenant:admin", "operator", "decrypt-any"}
    and one.operation.method.value != "GET"
    and name not in RECORDS_NOTHING | CHANGES_NOTHING | NOTHING_THERE
}


class Administration:
    """A tenant of its own, with everything that administrative requests name."""

    def __init__(self, gateway: Tenant, reading_any: str) -> None:
        self.tenancy = Tenancy(gateway)
        self.service_key = self.tenancy.tenant()
        self.subject_id = f"user-{uuid4()}"
        with self.tenancy.client(self.service_key, self.subject_id) as client:
            self.thread = save_thread(client)
            self.tenant_id = client.get("/v1/whoami").json()["tenant_id"]
        with self.tenancy.client(self.service_key) as service:
            self.schema = register_schema(service)
            service.put("/v1/approval-policies", json={"required": True}).raise_for_status()
        self.key_id = key_id(self.tenancy.key(self.service_key, self.subject_id))
        self.keys = {"operator": gateway.operator_key, "decrypt-any": reading_any}

    def send(self, name: str) -> httpx.Response:
        declared = AUTHENTICATED[name]
        named = {"tenant_id": self.tenant_id, "subject_id": self.subject_id, "key_id": self.key_id}
        named |= {"job_id": str(uuid4()), "thread_id": self.thread.thread_id, "state_schema": self.schema}
        if name == "put_state_schema_version":
            named["state_schema"] = f"schema-{uuid4()}"
        with self.tenancy.client(self.keys.get(str(declared.operation.permission), self.service_key)) as client:
            return request_of(declared, **named).send(client)


@pytest.fixture(scope="module")
async def gateway(launcher: Launcher, deployment: Deployment, s3_server: EmbeddedS3) -> AsyncIterator[Tenant]:
    await finish_upgrade(deployment, *KNOWN)
    async with serving(launcher, deployment.with_buckets(s3_server.url())) as serves:
        yield Tenant(serves.url, deployment.api_key, deployment.operator_key)


@pytest.fixture(scope="module")
def reading_any(launcher: Launcher, deployment: Deployment) -> str:
    environ = {"PATH": os.environ["PATH"], **deployment.environ}
    made = launcher.run(environ, "init", "--another", "--json", "--decrypt-any")
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["api_key"])


@pytest.fixture
def administration(gateway: Tenant, reading_any: str) -> Administration:
    return Administration(gateway, reading_any)


@pytest.fixture
async def superuser(durable_postgres: EmbeddedPostgres, deployment: Deployment) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "", 1))
    yield connection
    await connection.close()


@asynccontextmanager
async def unwritable(superuser: asyncpg.Connection) -> AsyncIterator[None]:
    await superuser.execute("REVOKE INSERT ON stateroom.audit_log FROM gw_app")
    try:
        yield
    finally:
        await superuser.execute("GRANT INSERT ON stateroom.audit_log TO gw_app")


async def _events(superuser: asyncpg.Connection, *tenant_ids: str) -> int:
    counting = (
        "SELECT count(*) FROM stateroom.audit_log WHERE tenant_id = ANY($1) AND action NOT LIKE 'access%'"
        " AND actor <> 'gateway'"
    )
    return int(await superuser.fetchval(counting, [UUID(one) for one in tenant_ids]))


async def _keys_in_use(superuser: asyncpg.Connection, tenant_id: str) -> list[str]:
    """Every stored key of a tenant but those that wait to become active, and which other tenants have keys.

    Other tenants' keys may change meanwhile: what an earlier test rotated becomes active a while later.
    """
    keys = (
        "SELECT DISTINCT CASE WHEN tenant_id = $1 THEN t::text ELSE tenant_id::text END AS row FROM stateroom.{} t"
        " WHERE state <> 'pending'"
    )
    rows = [await superuser.fetch(keys.format(table), UUID(tenant_id)) for table in ("tenant_keys", "subject_keys")]
    return sorted(row["row"] for some in rows for row in some)


@pytest.mark.parametrize("name", sorted(ADMINISTRATIVE))
async def test_a_change_whose_record_cannot_be_written_does_not_happen(
    administration: Administration, superuser: asyncpg.Connection, name: str
) -> None:
    chains = (administration.tenant_id, DEPLOYMENT)
    await _settled(superuser, *chains)
    async with unwritable(superuser):
        before = await _stored(superuser, *chains), await _keys_in_use(superuser, administration.tenant_id)
        refused = administration.send(name)
        assert_problem(refused, 500)
        found = await _stored(superuser, *chains), await _keys_in_use(superuser, administration.tenant_id)
        for stored in (before[0], found[0]):
            for table in ("tenant_keys", "subject_keys"):  # a rotation stores its key first, which nobody uses yet
                del stored[table]
        assert found == before
    events = await _events(superuser, *chains)
    done = administration.send(name)
    assert done.status_code in AUTHENTICATED[name].operation.statuses, done.text
    made = done.json().get("tenant_id") if name == "create_tenant" else None
    assert await _events(superuser, *chains, *([made] if made else [])) > events


def test_the_administrative_operations_are_these_at_least() -> None:
    known = {"create_api_key", "revoke_api_key", "create_tenant", "rotate_key", "rewrap_subject_keys",
             "rewrap_tenant_keys", "shred_subject", "shred_tenant", "decrypt"}  # fmt: skip
    assert known <= ADMINISTRATIVE
