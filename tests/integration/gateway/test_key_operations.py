"""Rotation, shredding and a restore as an operator does them: two gateways, the command line, a real bucket."""

import asyncio
import json
import os
from uuid import uuid4

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from tests.support.engines import create_database, drop_database
from tests.support.production import Deployment, ProductionGateway, deploy, serving


@pytest.fixture
async def deployment(durable_postgres, durable_template, production_dir, s3_server):
    made = await deploy(durable_postgres, production_dir, durable_template)
    yield Deployment(
        made.database,
        made.environ | {"STATEROOM_S3_URL": s3_server.url(), "STATEROOM_BACKUP_RETENTION_DAYS": "7"},
        made.operator_key,
        made.api_key,
    )
    await drop_database(durable_postgres, made.database)


@pytest.fixture
def stateroom(launcher):
    """Run a command; returns what it printed, each line as JSON, and its remarks."""

    async def execute(deployment, url, *arguments, code=0):
        own = {
            "STATEROOM_URL": url or "",
            "STATEROOM_API_KEY": deployment.api_key,
            "STATEROOM_OPERATOR_KEY": deployment.operator_key,
        }
        environ = {"PATH": os.environ["PATH"], **deployment.environ, **own}
        done = await asyncio.to_thread(launcher.run, environ, *arguments, "--json")
        assert done.returncode == code, done.stderr.decode()
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()

    return execute


async def saved(client, thread="t1", number=1):
    answer = await client.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"n": number}})
    assert answer.status_code == 201, answer.text


async def loaded(client, thread="t1"):
    return await client.get(f"/v1/threads/{thread}/checkpoints/latest")


def admin(gateway, api_key):
    return httpx.AsyncClient(base_url=gateway.url, headers={"Authorization": f"Bearer {api_key}"}, timeout=30)


async def test_keys_rotate_by_command_line(deployment, launcher, stateroom):
    async with (
        serving(launcher, deployment) as one,
        serving(launcher, deployment) as two,
        one.client("user-1") as first,
        two.client("user-1") as second,
    ):
        for number in range(3):
            await saved(first, f"t{number}", number)
        (rotated,), remarks = await stateroom(deployment, one.url, "key", "rotate", "--subject", "user-1")
        assert (rotated["level"], rotated["key_version"], rotated["state"]) == ("subject", 2, "done")
        assert "reseal: " in remarks
        (rotated,), _ = await stateroom(deployment, two.url, "key", "rotate")
        assert (rotated["level"], rotated["key_version"], rotated["state"]) == ("tenant", 2, "done")
        (rewrapped,), _ = await stateroom(deployment, one.url, "key", "rewrap", "--operator")
        assert rewrapped["progress"]["done"] == rewrapped["progress"]["total"] >= 1
        (status,), _ = await stateroom(deployment, one.url, "key", "status", "--subject", "user-1")
        assert [(each["key_version"], each["state"]) for each in status["tenant_keys"]] == [
            (1, "destroyed"),
            (2, "active"),
        ]
        assert [(each["purpose"], each["key_version"], each["state"]) for each in status["subject_keys"]] == [
            ("data", 1, "destroyed"),
            ("data", 2, "active"),
            ("id", 1, "active"),
        ]
        for client in (first, second):
            for number in range(3):
                assert (await loaded(client, f"t{number}")).json()["state"] == {"n": number}
        jobs, _ = await stateroom(deployment, two.url, "job", "list")
        assert [job["kind"] for job in jobs] == ["rewrap-subject-keys", "reseal"]
        arguments = ("key", "rotate", "--subject", "user-1", "--complete")
        (rotated,), remarks = await stateroom(deployment, one.url, *arguments)
        assert (rotated["kind"], rotated["key_version"], rotated["state"]) == ("reseal-complete", 3, "done")
        (status,), _ = await stateroom(deployment, one.url, "key", "status", "--subject", "user-1")
        assert [each["archived_bytes"] for each in status["subject_keys"]] == [0] * 4
        _, remarks = await stateroom(deployment, one.url, "key", "rotate", "--complete", code=2)
        assert "name it with --subject" in remarks


async def test_a_shred_is_felt_at_the_next_request_in_another_gateway_and_survives_a_restore(
    deployment, launcher, durable_postgres, stateroom
):
    async with serving(launcher, deployment) as one:
        for subject in ("gone", "stays"):
            async with one.client(subject) as client:
                await saved(client)
    backup = (await create_database(durable_postgres, deployment.database)).name
    try:
        async with (
            serving(launcher, deployment) as one,
            serving(launcher, deployment) as two,
            two.client("gone") as gone,
            two.client("stays") as stays,
        ):
            assert (await loaded(gone)).status_code == 200
            _, remarks = await stateroom(deployment, one.url, "subject", "shred", "gone", "--confirm", "stays", code=2)
            assert "nothing happened" in remarks
            (answer,), _ = await stateroom(deployment, one.url, "subject", "shred", "gone", "--confirm", "gone")
            assert answer["tombstone"] is True
            assert answer["state"] == "done"
            for refused in (await loaded(gone), await gone.post("/v1/threads/t/checkpoints", json={"state": {}})):
                assert (refused.status_code, refused.json()["code"]) == (410, "key-destroyed")
            assert (await loaded(stays)).status_code == 200
        url = make_url(deployment.environ["STATEROOM_DATABASE_URL"]).set(database=backup).render_as_string(False)
        restored = Deployment(
            backup,
            deployment.environ | {"STATEROOM_DATABASE_URL": url},
            deployment.operator_key,
            deployment.api_key,
        )
        refused = ProductionGateway(launcher, restored)
        with pytest.raises(AssertionError, match="stateroom restore accept"):
            await refused.start()
        assert await refused.wait() == 1
        (accepted,), _ = await stateroom(restored, None, "restore", "accept")
        assert (accepted["level"], accepted["keys_destroyed"]) == ("subject", 2)
        assert (await stateroom(restored, None, "restore", "accept"))[0] == []
        async with (
            serving(launcher, restored) as again,
            again.client("gone") as gone,
            again.client("stays") as stays,
        ):
            assert (await loaded(gone)).json()["code"] == "key-destroyed"
            assert (await loaded(stays)).json()["state"] == {"n": 1}
    finally:
        await drop_database(durable_postgres, backup)


async def anchored(gateway):
    async with gateway.client() as client:
        answer = await client.post("/v1/audit/anchor")
        assert answer.status_code in {200, 201}, answer.text
        assert answer.json()["stored"] is True


async def test_a_backup_that_lost_anchored_audit_events_is_served_only_after_somebody_accepts(
    deployment, launcher, durable_postgres, stateroom
):
    async with serving(launcher, deployment) as gateway:
        async with gateway.client("user-1") as client:
            await saved(client)
        await anchored(gateway)
    backup = (await create_database(durable_postgres, deployment.database)).name
    try:
        async with serving(launcher, deployment) as gateway:
            for _ in range(2):
                await stateroom(deployment, gateway.url, "key", "rotate")
            await anchored(gateway)
        async with serving(launcher, deployment):
            pass  # the database that knows its events is served from
        url = make_url(deployment.environ["STATEROOM_DATABASE_URL"]).set(database=backup).render_as_string(False)
        environ = deployment.environ | {"STATEROOM_DATABASE_URL": url}
        restored = Deployment(backup, environ, deployment.operator_key, deployment.api_key)
        refused = ProductionGateway(launcher, restored)
        with pytest.raises(AssertionError, match="audit logs lack an event that was anchored"):
            await refused.start()
        assert await refused.wait() == 1
        (report,), _ = await stateroom(restored, None, "doctor", code=1)
        failed = {each["check"]: each for each in report["checks"] if each["outcome"] == "failed"}
        assert failed.keys() == {"history"}
        assert "audit logs lack an event that was anchored" in failed["history"]["detail"]
        assert "backup.md" in failed["history"]["fix"]
        (gap,), _ = await stateroom(restored, None, "restore", "accept")
        (report,), _ = await stateroom(restored, None, "doctor")
        assert "failed" not in {each["outcome"] for each in report["checks"]}
        assert gap["sequence"] > gap["anchored"] > gap["found"] >= gap["kept"] > 0
        assert (await stateroom(restored, None, "restore", "accept"))[0] == []
        async with serving(launcher, restored) as again:
            events, _ = await stateroom(restored, again.url, "audit", "list")
            assert "audit.restored" in {each["action"] for each in events}
    finally:
        await drop_database(durable_postgres, backup)


async def test_requests_that_are_not_confirmed_or_not_allowed_change_nothing(deployment, launcher):
    async with serving(launcher, deployment) as gateway:
        async with gateway.client("user-1") as client:
            await saved(client)
            wrong = await client.post("/v1/subjects/user-1/shred", json={"confirm": "user-2"})
            assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/confirm")
            for body in ({}, {"confirm": ""}, {"confirm": "user-1", "force": True}):
                assert (await client.post("/v1/subjects/user-1/shred", json=body)).status_code == 422
            unknown = await client.post("/v1/subjects/nobody/shred", json={"confirm": "nobody"})
            assert unknown.status_code == 404
            for body in (
                {"level": "root"}, {"level": "subject"}, {"level": "tenant", "subject_id": "user-1"},
                {"level": "tenant", "complete": True}, {"level": "subject", "subject_id": "user-1", "complete": "yes"},
            ):  # fmt: skip
                assert (await client.post("/v1/keys:rotate", json=body)).status_code == 422
            assert (await client.get(f"/v1/jobs/{uuid4()}")).status_code == 404
            me = (await client.get("/v1/whoami")).json()
            tenant = f"/v1/admin/tenants/{me['tenant_id']}/shred"
            for path in (tenant, "/v1/admin/keys:rewrap"):
                denied = await client.post(path, json={"confirm": me["tenant_id"]})
                assert denied.status_code == 403
            body = {"kind": "subject", "subject_id": "user-1", "name": "n", "permissions": ["state:read"]}
            own = (await client.post("/v1/api-keys", json=body)).json()["api_key"]
        async with gateway.client("user-1", own) as weak:
            for path, body in (
                ("/v1/subjects/user-1/shred", {"confirm": "user-1"}),
                ("/v1/keys:rotate", {"level": "tenant"}),
                ("/v1/keys:rewrap", None),
            ):
                assert (await weak.post(path, json=body)).status_code == 403
            for path in ("/v1/keys", "/v1/jobs"):
                assert (await weak.get(path)).status_code == 403
            assert (await loaded(weak)).status_code == 200
        async with admin(gateway, deployment.operator_key) as operator:
            assert (await operator.post(tenant, json={"confirm": "yes"})).status_code == 422
            done = await operator.post(tenant, json={"confirm": me["tenant_id"]})
            assert done.status_code == 202
            assert (await operator.get(done.headers["Location"])).json()["kind"] == "shred-tenant"
        async with gateway.client("user-1") as client:
            assert (await loaded(client)).json()["code"] == "key-destroyed"
            jobs = (await client.get("/v1/jobs")).json()["jobs"]
            assert [job["kind"] for job in jobs] == ["shred-tenant"]


async def test_a_tenant_and_all_tenants_are_verified_by_command_line(deployment, launcher, durable_postgres, stateroom):
    async with serving(launcher, deployment) as gateway, gateway.client("user-1") as client:
        await saved(client, "t1")
        await saved(client, "t2")
        (counts,), remarks = await stateroom(deployment, gateway.url, "verify", "tenant")
        assert (counts["threads"], counts["findings"]) == (2, 0)
        assert "verify-tenant: 1 of 1" in remarks
        (counts,), _ = await stateroom(deployment, gateway.url, "verify", "all")
        assert (counts["threads"], counts["findings"]) == (2, 0)

        attacker = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
        await attacker.execute("UPDATE stateroom.checkpoints SET step = 9 WHERE thread_id = 't2'")
        await attacker.close()
        printed, remarks = await stateroom(deployment, gateway.url, "verify", "tenant", code=1)
        assert {(each["subject"], each["thread_id"]) for each in printed[:-1]} == {("user-1", "t2")}
        assert "checkpoint" in {each["code"] for each in printed[:-1]}
        assert "changed outside the gateway" in remarks
        printed, _ = await stateroom(deployment, gateway.url, "verify", "all", code=1)
        assert "t2" not in json.dumps(printed)
        assert ("checkpoint", 1) in {(each["code"], each["count"]) for each in printed[:-1]}
        jobs, _ = await stateroom(deployment, gateway.url, "job", "list", "--operator")
        assert [job["kind"] for job in jobs] == ["verify-deployment"] * 2
