"""The whole way on real engines: act, anchor, export, verify offline; then falsify the log and verify again."""

import asyncio
import json
from uuid import UUID

import asyncpg
import httpx
import pytest

from gateway.cli.main import run
from storage.format.audit import verify_export
from tests.support.gateway import GatewayProcess
from tests.support.production import serving
from tests.support.tenants import new_tenant


@pytest.fixture(scope="module")
def tenant(running_gateway: GatewayProcess):
    return new_tenant(running_gateway.url, running_gateway.operator_key)


@pytest.fixture
def client(running_gateway: GatewayProcess, tenant):
    headers = {"Authorization": f"Bearer {tenant['api_key']}", "Stateroom-Subject": "user-1"}
    with httpx.Client(base_url=f"{running_gateway.url}/v1", headers=headers) as made:
        yield made


@pytest.fixture
def command(running_gateway: GatewayProcess, tenant, monkeypatch, capsys):
    monkeypatch.setenv("STATEROOM_URL", running_gateway.url)
    monkeypatch.setenv("STATEROOM_API_KEY", tenant["api_key"])
    monkeypatch.setenv("STATEROOM_OPERATOR_KEY", running_gateway.operator_key)

    def execute(*arguments):
        code = run([str(each) for each in arguments])
        captured = capsys.readouterr()
        return code, captured.out

    return execute


def events(client):
    found, cursor = [], None
    while True:
        page = client.get("/audit", params={} if cursor is None else {"cursor": cursor}).json()
        found += page["events"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def test_a_log_is_made_anchored_exported_verified_falsified_and_found_out(
    client, command, running_gateway, tenant, tmp_path
):
    made = client.post("/api-keys", json={"kind": "service", "name": "ci"}).json()
    assert client.post("/threads/t1/checkpoints", json={"state": {"secret": "canary"}}).status_code == 201
    assert client.delete(f"/api-keys/{made['key_id']}").status_code == 204
    code, note = command("audit", "anchor")
    assert code == 0
    (tmp_path / "anchor").write_text(note, encoding="utf-8")
    assert client.get("/audit/anchor").json()["note"] == note  # the embedded bucket holds it
    code, public_key = command("audit", "key")
    assert code == 0
    genuine, falsified = tmp_path / "genuine", tmp_path / "falsified"
    assert command("audit", "export", genuine)[0] == 0
    checked = ("--anchor", tmp_path / "anchor", "--public-key", public_key.strip())
    code, out = command("audit", "verify", genuine, *checked, "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert "canary" not in genuine.read_text()
    assert made["api_key"] not in genuine.read_text()
    actions = [each["action"] for each in events(client)]
    assert actions[:3] == ["tenant.create", "api-key.create", "api-key.create"]
    assert "api-key.revoke" in actions

    async def falsify():
        connection = await asyncpg.connect(running_gateway.database_dsn)
        try:
            await connection.execute(
                "DELETE FROM stateroom.audit_log WHERE tenant_id = $1 AND action = 'api-key.revoke'",
                UUID(tenant["tenant_id"]),
            )
        finally:
            await connection.close()

    asyncio.run(falsify())
    assert client.get("/audit").json()["code"] == "integrity-failure"
    assert command("audit", "export", falsified)[0] == 0
    assert command("audit", "verify", falsified, *checked)[0] == 1
    lines = falsified.read_bytes().splitlines(keepends=True)
    kinds = {each.kind for each in verify_export(lines, [note], public_key).findings}
    assert "missing" in kinds


async def test_accesses_are_on_record_when_the_gateway_was_stopped(launcher, deployment):
    async with serving(launcher, deployment) as gateway:
        async with gateway.client("user-7") as client:
            for _ in range(3):
                saved = await client.post("/v1/threads/t9/checkpoints", json={"state": {}})
                assert saved.status_code == 201
        assert await gateway.stop() == 0
        await gateway.start()
        async with gateway.client() as client:
            found = (await client.get("/v1/audit")).json()
            assert found["next_cursor"] is None
            operator = {"Authorization": f"Bearer {deployment.operator_key}"}
            of_operators = (await client.get("/v1/admin/audit", headers=operator)).json()["events"]
    batches = [each["detail"]["accesses"] for each in found["events"] if each["action"] == "access"]
    saves = [each for batch in batches for each in batch if each["action"] == "save_checkpoint"]
    assert sum(each["count"] for each in saves) == 3
    assert {each["target"] for each in saves} == {"subject/user-7/thread/t9"}
    assert {each["action"] for each in of_operators} >= {"api-key.create", "tenant.create"}
