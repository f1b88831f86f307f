"""The whole way on real engines: act, anchor, export, verify offline; then falsify the log and verify again."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from gateway.cli.main import run
from storage.control.features import ITEMS
from storage.format.audit import verify_export
from tests.support.features import finish_upgrade
from tests.support.gateway import GatewayProcess
from tests.support.operations import encoded
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


@contextmanager
def falsified_log(gateway: GatewayProcess, tenant_id: str) -> Iterator[None]:
    """Take an event out of an audit log, and put it back: a gateway that other tests use is not ready without it."""

    async def execute(statement: str, *arguments: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(gateway.database_dsn)
        try:
            return await connection.fetch(statement, *arguments)
        finally:
            await connection.close()

    taken = "DELETE FROM stateroom.audit_log WHERE tenant_id = $1 AND action = 'api-key.revoke' RETURNING *"
    rows = asyncio.run(execute(taken, UUID(tenant_id)))
    try:
        yield
    finally:
        for row in rows:
            values = ", ".join(f"${number}" for number in range(1, len(row) + 1))
            asyncio.run(execute(f"INSERT INTO stateroom.audit_log VALUES ({values})", *row))  # noqa: S608  numbers


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

    with falsified_log(running_gateway, tenant["tenant_id"]):
        assert client.get("/audit").json()["code"] == "integrity-failure"
        assert command("audit", "export", falsified)[0] == 0
    assert command("audit", "verify", falsified, *checked)[0] == 1
    lines = falsified.read_bytes().splitlines(keepends=True)
    kinds = {each.kind for each in verify_export(lines, [note], public_key).findings}
    assert "missing" in kinds
    assert client.get("/audit").status_code == 200


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


SECRETS = ("their-path", "and-its-end", "their-key", "their-value", "Zo\u00eb / key")


async def test_reads_and_writes_of_items_are_on_record_without_a_word_of_them(launcher, deployment):
    """Who did what to whose items, and how it ended; what a client calls a path or a key is as secret as the value."""
    path, key, value, odd = ["their-path", "and-its-end"], "their-key", {"note": "their-value"}, SECRETS[-1]
    place = f"/v1/items/{','.join(path)}/"
    await finish_upgrade(deployment, ITEMS)
    async with serving(launcher, deployment) as gateway:
        async with gateway.client("user-8") as client:
            first = await client.put(place + key, json={"value": value}, headers={"Idempotency-Key": "their-key"})
            assert first.status_code == 201, first.text
            assert (await client.put(place + encoded(odd), json={"value": value})).status_code == 201
            assert (await client.put(place + key, json={"value": [1]})).status_code == 422
            assert (
                await client.put(place + key, json={"value": value}, headers={"If-Match": '"7"'})
            ).status_code == 412
            assert (await client.get(place + key)).json()["value"] == value
            assert (await client.get(f"{place}their-key-too")).status_code == 404
            wanted = {"prefix": path[:1], "filter": value}
            assert len((await client.post("/v1/items:search", json=wanted)).json()["items"]) == 2
            assert (await client.post("/v1/items:paths", json={"suffix": path[1:]})).json()["paths"] == [path]
            batch = {"gets": [{"path": path, "key": key}], "writes": [{"path": path, "key": key, "delete": True}]}
            assert (await client.post("/v1/items:batch", json=batch)).status_code == 200
            assert (await client.delete(place + encoded(odd))).status_code == 200
        assert await gateway.stop() == 0
        log = gateway.log
        await gateway.start()
        async with gateway.client() as client:
            found = await client.get("/v1/audit")
    accesses = [
        each
        for event in found.json()["events"] if event["action"] == "access"
        for each in event["detail"]["accesses"] if each["target"].startswith("subject/user-8")
    ]  # fmt: skip
    assert {each["target"] for each in accesses} == {"subject/user-8"}
    counts = {(each["action"], each["status"]): each["count"] for each in accesses}
    assert counts == {
        ("put_item", 201): 2, ("put_item", 422): 1, ("put_item", 412): 1, ("get_item", 200): 1, ("get_item", 404): 1,
        ("search_items", 200): 1, ("list_item_paths", 200): 1, ("run_item_batch", 200): 1, ("delete_item", 200): 1,
    }  # fmt: skip
    for text in (*SECRETS, encoded(odd)):
        assert text not in found.text
        assert text not in log
