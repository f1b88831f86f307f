"""A tenant's quota: set by the operator over HTTP and on the command line, seen by the tenant, kept, on record."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest

from tests.support.operations import assert_problem
from tests.support.production import ProductionGateway, ProductionWorker, deploy, serving
from tests.support.tenants import new_tenant


@pytest.fixture(scope="module")
async def gateway(deployment, launcher, s3_server) -> AsyncIterator[ProductionGateway]:
    with_files = replace(deployment, environ=deployment.environ | {"STATEROOM_S3_URL": s3_server.url()})
    async with serving(launcher, with_files) as running:
        yield running


@pytest.fixture
async def operator(gateway) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {gateway.deployment.operator_key}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=30) as client:
        yield client


@pytest.fixture
async def tenant(gateway) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of a new tenant, and the path of its usage."""
    made = new_tenant(gateway.url, gateway.deployment.operator_key)
    async with gateway.client(api_key=made["api_key"]) as client:
        yield client, f"/v1/admin/tenants/{made['tenant_id']}/usage"


async def store(client: httpx.AsyncClient, size_bytes: int) -> httpx.Response:
    headers = {"Stateroom-Artifact-Name": "file"}
    return await client.post(f"/v1/threads/{uuid4()}/artifacts", content=os.urandom(size_bytes), headers=headers)


async def test_a_quota_refuses_what_is_over_it_until_it_is_raised(tenant, operator):
    client, path = tenant
    assert (await operator.get(path)).json() == (await client.get("/v1/usage")).json()
    assert (await client.get("/v1/usage")).json()["quota_bytes"] == 100 * 2**30
    assert (await store(client, 50_000)).status_code == 201
    used = (await client.get("/v1/usage")).json()["used_bytes"]
    assert used > 50_000
    limited = await operator.patch(path, json={"quota_bytes": used + 10_000})
    assert (limited.status_code, limited.json()["quota_bytes"]) == (200, used + 10_000)
    assert (await client.get("/v1/usage")).json() == limited.json()
    refused = await store(client, 20_000)
    assert_problem(refused, 403, "quota-exceeded")
    assert refused.json()["limit"] == "quota_bytes"
    piece = await client.post(
        f"/v1/threads/{uuid4()}/checkpoints", json={"state": {"screen": os.urandom(100_000).hex()}}
    )
    assert_problem(piece, 403, "quota-exceeded")
    assert (await operator.patch(path, json={"quota_bytes": None})).json()["quota_bytes"] is None
    assert (await store(client, 20_000)).status_code == 201


async def test_a_quota_below_what_is_kept_removes_nothing(tenant, operator):
    client, path = tenant
    made = (await store(client, 1_000)).json()
    assert (await operator.patch(path, json={"quota_bytes": 0})).json()["quota_bytes"] == 0
    assert (await client.get(f"/v1/artifacts/{made['artifact_id']}/content")).status_code == 200
    assert_problem(await store(client, 1), 403, "quota-exceeded")


@pytest.mark.parametrize("quota", [-1, 2**63, "10GiB", 1.5])
async def test_a_quota_is_a_number_of_bytes_or_null(tenant, operator, quota):
    _, path = tenant
    assert_problem(await operator.patch(path, json={"quota_bytes": quota}), 422)
    assert_problem(await operator.patch(path, json={"rows_quota_bytes": quota}), 422)
    assert_problem(await operator.patch(path, json={}), 422)


async def test_only_an_operator_sets_a_quota_and_only_of_a_tenant_that_is_there(tenant, operator):
    client, path = tenant
    assert_problem(await client.patch(path, json={"quota_bytes": None}), 403, "permission-denied")
    assert_problem(await operator.get("/v1/usage"), 403)
    nobody = f"/v1/admin/tenants/{uuid4()}/usage"
    assert_problem(await operator.get(nobody), 404)
    assert_problem(await operator.patch(nobody, json={"quota_bytes": 1}), 404)


async def test_setting_a_quota_is_on_record_for_the_tenant_and_for_the_operators(tenant, operator):
    client, path = tenant
    assert (await operator.patch(path, json={"quota_bytes": 12_345})).status_code == 200
    tenant_id = path.split("/")[4]
    for reader, log in ((client, "/v1/audit"), (operator, "/v1/admin/audit")):
        events = (await reader.get(f"{log}?limit=1000")).json()["events"]
        (event,) = [one for one in events if one["action"] == "tenant.quota" and tenant_id in one["target"]]
        assert event["detail"] == {"quota_bytes": 12_345}
        assert event["actor"].startswith("api-key:")


async def test_the_command_line_shows_sets_and_lifts_a_quota(gateway, stateroom, tenant):
    client, path = tenant
    tenant_id = path.split("/")[4]
    gateway.deployment.environ["STATEROOM_OPERATOR_KEY"] = gateway.deployment.operator_key
    for said, quota_bytes in (("10GiB", 10 * 2**30), ("1.5MB", 1_500_000), ("2048", 2048), ("none", None)):
        done = await stateroom(gateway, "tenant", "quota", tenant_id, "--set", said, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["quota_bytes"] == quota_bytes
        assert (await client.get("/v1/usage")).json() == json.loads(done.stdout)
    rows = await stateroom(gateway, "tenant", "quota", tenant_id, "--set-rows", "3GiB", "--json")
    assert (rows.returncode, json.loads(rows.stdout)["rows_quota_bytes"]) == (0, 3 * 2**30)
    assert json.loads(rows.stdout)["quota_bytes"] is None
    shown = await stateroom(gateway, "tenant", "quota", tenant_id)
    assert (shown.returncode, b"none" in shown.stdout, b"0 bytes" in shown.stdout) == (0, True, True)
    for nonsense in ("much", "10XB", "9EiB", "-1"):
        assert (await stateroom(gateway, "tenant", "quota", tenant_id, f"--set={nonsense}")).returncode == 2
    assert (await stateroom(gateway, "tenant", "quota", uuid4())).returncode == 3


async def test_a_tenant_over_its_quota_of_rows_is_told_which_quota_and_its_neighbour_goes_on(gateway, tenant, operator):
    client, path = tenant
    thread = f"/v1/threads/{uuid4()}"
    shown = (await client.get("/v1/usage")).json()
    assert shown["rows_quota_bytes"] == 20 * 2**30
    assert (await client.post(f"{thread}/checkpoints", json={"state": {"n": 1}})).status_code == 201
    limited = await operator.patch(path, json={"rows_quota_bytes": 0})
    assert (limited.status_code, limited.json()["rows_quota_bytes"]) == (200, 0)
    assert limited.json()["quota_bytes"] == shown["quota_bytes"]
    refused = await client.post(f"{thread}/checkpoints", json={"state": {"n": 2}})
    assert_problem(refused, 403, "quota-exceeded")
    assert refused.json()["limit"] == "rows_quota_bytes"
    assert (await client.get(f"{thread}/checkpoints")).status_code == 200
    other = new_tenant(gateway.url, gateway.deployment.operator_key)
    async with gateway.client(api_key=other["api_key"]) as neighbour:
        assert (await neighbour.post(f"{thread}/checkpoints", json={"state": {"n": 1}})).status_code == 201
    assert (await client.delete(thread)).status_code in {200, 204}
    await operator.patch(path, json={"rows_quota_bytes": None})
    assert (await client.post(f"{thread}/checkpoints", json={"state": {"n": 2}})).status_code == 201


async def test_a_deployment_says_what_its_new_tenants_begin_with(launcher, deployment):
    quotas = {"STATEROOM_DEFAULT_BLOB_QUOTA": "none", "STATEROOM_DEFAULT_ROW_QUOTA": "5MiB"}
    async with serving(launcher, replace(deployment, environ=deployment.environ | quotas)) as running:
        made = new_tenant(running.url, deployment.operator_key)
        async with running.client(api_key=made["api_key"]) as client:
            shown = (await client.get("/v1/usage")).json()
    assert (shown["quota_bytes"], shown["rows_quota_bytes"]) == (None, 5 * 2**20)


async def test_a_worker_counts_rows_and_needs_no_bucket(launcher, durable_postgres, durable_template, tmp_path):
    alone = await deploy(durable_postgres, tmp_path, durable_template)
    async with serving(launcher, alone, "--no-background") as quiet, quiet.client() as client:
        saved = await client.post(f"/v1/threads/{uuid4()}/checkpoints", json={"state": {"n": os.urandom(9000).hex()}})
        assert saved.status_code == 201
        before = (await client.get("/v1/usage")).json()
        assert (before["rows_bytes"], before["rows_counted_at"]) == (None, None)
        worker = await ProductionWorker(launcher, alone).start()
        try:
            async with asyncio.timeout(60):
                while not (shown := (await client.get("/v1/usage")).json())["rows_counted_at"]:
                    assert worker.pid
        finally:
            await worker.stop()
    assert shown["rows_bytes"] > 9000
