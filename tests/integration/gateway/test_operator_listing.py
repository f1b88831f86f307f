"""Operators of a tenant see which steps failed, over all subjects, and not one sealed byte."""

import asyncio
import base64
import secrets
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.support.operations import CANARY, Tenancy, assert_problem, save_thread
from tests.support.tenants import SERVICE

ADMIN = ["tenant:admin"]
SEALED = {"state", "channels", "pending_writes"}


@pytest.fixture(scope="module")
def tenancy(running_gateway):
    return Tenancy(running_gateway)


@pytest.fixture(scope="module")
def service_key(tenancy):
    """A tenant of three subjects; each has a failed, a waiting and a finished step 5, and a step 6."""
    made = tenancy.tenant()
    service_key = tenancy.key(made, None, SERVICE)
    for subject in ("alice", "bob", "odd / one"):
        with tenancy.client(service_key, subject) as client:
            for status in ("failed", "waiting", "done"):
                body = {"state": {"note": CANARY}, "metadata": {"note": CANARY}, "agent": f"agent-{status}"}
                for step in (5, 6):
                    path = f"/v1/threads/{status}/checkpoints"
                    saved = client.post(path, json={**body, "step": step, "status": status})
                    assert saved.status_code == 201, saved.text
    return service_key


@pytest.fixture(scope="module")
def admin_key(tenancy, service_key):
    return tenancy.key(service_key, None, ADMIN)


def found(answer):
    assert answer.status_code == 200, answer.text
    return [(each["subject_id"], each["agent"], each["step"]) for each in answer.json()["checkpoints"]]


def test_which_agents_failed_at_step_5_in_the_last_24_hours(tenancy, admin_key):
    since = (datetime.now(UTC) - timedelta(hours=24)).isoformat()
    with tenancy.client(admin_key) as client:
        asked = {"status": "failed", "step": 5, "since": since}
        answer = client.get("/v1/checkpoints", params=asked)
        assert found(answer) == [(subject, "agent-failed", 5) for subject in ("odd / one", "bob", "alice")]
        assert found(client.get("/v1/checkpoints", params={**asked, "agent": "agent-done"})) == []
        assert found(client.get("/v1/checkpoints", params={"status": "failed", "until": since})) == []


def test_the_listing_holds_clear_columns_and_nothing_of_the_state(tenancy, admin_key):
    with tenancy.client(admin_key) as client:
        answer = client.get("/v1/checkpoints", params={"limit": 1000})
    assert len(found(answer)) == 18
    assert CANARY not in answer.text
    for each in answer.json()["checkpoints"]:
        assert each["withheld"] is True
        assert each["metadata"] == {}
        assert not SEALED & each.keys()


def test_a_failure_that_a_task_reported_later_is_found_as_one(tenancy, service_key, admin_key):
    with tenancy.client(service_key, "carol") as client:
        thread = save_thread(client)
        path = f"/v1/threads/{thread.thread_id}/checkpoints/{thread.checkpoint_id}/writes/late"
        body = {"writes": [{"channel": "__error__", "idx": -1, "value": "x"}], "status": "failed"}
        assert client.post(path, json=body).status_code == 200
        with tenancy.client(admin_key) as admin:
            listed = admin.get("/v1/checkpoints", params={"status": "failed", "agent": "tester"}).json()["checkpoints"]
        assert [(each["subject_id"], each["checkpoint_id"]) for each in listed] == [("carol", thread.checkpoint_id)]
        assert client.delete(f"/v1/threads/{thread.thread_id}").status_code == 204


def test_pages_follow_each_other_without_a_gap(tenancy, admin_key):
    with tenancy.client(admin_key) as client:
        whole = client.get("/v1/checkpoints", params={"limit": 1000, "status": "waiting"}).json()["checkpoints"]
        paged, cursor = [], None
        while True:
            asked = {"limit": 2, "status": "waiting"} | ({"cursor": cursor} if cursor else {})
            page = client.get("/v1/checkpoints", params=asked).json()
            paged += page["checkpoints"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert paged == whole
        assert len(whole) == 6
        first = client.get("/v1/checkpoints", params={"limit": 2}).json()["next_cursor"]
        answer = client.get("/v1/checkpoints", params={"limit": 2, "cursor": first, "status": "done"})
        assert_problem(answer, 422, "invalid-request")


@pytest.mark.parametrize(("parameter", "text"), [("view", "state"), ("view", "channels"), ("filter", "{}")])
def test_state_and_metadata_are_refused(tenancy, admin_key, parameter, text):
    with tenancy.client(admin_key) as client:
        problem = assert_problem(client.get("/v1/checkpoints", params={parameter: text}), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == parameter


def test_only_an_administrator_of_the_tenant_lists_it(tenancy, service_key, admin_key):
    stranger = tenancy.key(tenancy.tenant(), None, ADMIN)
    acting = tenancy.key(service_key, None, ["state:read", "subject:act_as"])
    reader = tenancy.key(service_key, None, ["subject:act_as"])
    subject = tenancy.key(service_key, "alice", ["state:read"])
    with tenancy.client(stranger) as client:
        assert found(client.get("/v1/checkpoints")) == []
    with tenancy.client(acting) as client:
        assert_problem(client.get("/v1/checkpoints"), 400, "subject-required")
    with tenancy.client(reader) as client:
        assert_problem(client.get("/v1/checkpoints"), 403, "permission-denied")
    with tenancy.client(tenancy.gateway.operator_key) as client:
        assert_problem(client.get("/v1/checkpoints"), 403, "permission-denied")
    with tenancy.client(subject) as client:
        listed = client.get("/v1/checkpoints").json()["checkpoints"]
        assert len(listed) == 6
        assert not any("subject_id" in each for each in listed)
    with tenancy.client(admin_key, "alice") as client:  # who names a subject asks for that subject's state
        assert_problem(client.get("/v1/checkpoints"), 403, "permission-denied")
    with tenancy.client(admin_key) as client:
        assert_problem(client.get("/v1/threads"), 403, "permission-denied")


def test_threads_under_a_clients_share_are_listed_like_all_others(tenancy, service_key, admin_key):
    share = base64.b64encode(secrets.token_bytes(32)).decode()
    with tenancy.client(service_key, "dave") as client:
        body = {"state": {"note": CANARY}, "agent": "shy", "status": "failed", "step": 5}
        saved = client.post("/v1/threads/s/checkpoints", json=body, headers={"Stateroom-Client-Share": share})
        assert saved.status_code == 201
    with tenancy.client(admin_key) as client:
        assert found(client.get("/v1/checkpoints", params={"agent": "shy"})) == [("dave", "shy", 5)]


async def _as(dsn, role, *statements):
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL ROLE {role}")
            return [await connection.fetch(statement) for statement in statements]
    finally:
        await connection.close()


def test_an_operator_in_sql_asks_the_same_and_reads_no_sealed_byte(running_gateway, service_key):
    dsn = running_gateway.database_dsn
    asked = """
        SELECT DISTINCT agent FROM stateroom.checkpoints
        WHERE step = 5 AND coalesce(outcome, status) = 'failed' AND created_at > now() - interval '24 hours'
    """
    (rows,) = asyncio.run(_as(dsn, "gw_ops", asked))
    assert "agent-failed" in {row["agent"] for row in rows}
    for column, table in (("manifest", "checkpoints"), ("value", "pending_writes"), ("envelope", "chunks")):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            asyncio.run(_as(dsn, "gw_ops", f"SELECT {column} FROM stateroom.{table}"))  # noqa: S608


def test_the_listing_binding_reads_one_tenants_checkpoints_and_threads_and_changes_nothing(
    running_gateway, tenancy, service_key
):
    with tenancy.client(service_key) as client:
        tenant_id = client.get("/v1/whoami").json()["tenant_id"]
    bound = f"SET LOCAL app.tenant_id = '{tenant_id}'"
    listing = "SET LOCAL app.tenant_listing = 'on'"
    count = "SELECT count(*) AS n, count(DISTINCT tenant_id) AS tenants FROM stateroom.checkpoints"
    dsn = running_gateway.database_dsn
    *_, (mine,) = asyncio.run(_as(dsn, "gw_app", bound, listing, count))
    assert (mine["n"] >= 18, mine["tenants"]) == (True, 1)
    *_, (unlisted,) = asyncio.run(_as(dsn, "gw_app", bound, count))
    assert unlisted["n"] == 0
    *_, (unbound,) = asyncio.run(_as(dsn, "gw_app", listing, count))
    assert unbound["n"] == 0
    for table in ("heads", "chunks", "pending_writes", "idempotency"):
        *_, (row,) = asyncio.run(_as(dsn, "gw_app", bound, listing, f"SELECT count(*) AS n FROM stateroom.{table}"))  # noqa: S608
        assert row["n"] == 0, table
    # Threads and stubs of archives are there for retention's rounds, which page through a tenant.
    for table in ("threads", "archives"):
        tenants = f"SELECT count(DISTINCT tenant_id) AS n FROM stateroom.{table} WHERE tenant_id <> '{tenant_id}'"  # noqa: S608
        *_, (others,) = asyncio.run(_as(dsn, "gw_app", bound, listing, tenants))
        assert others["n"] == 0, table
    for table in ("checkpoints", "threads", "archives"):
        *_, changed = asyncio.run(_as(dsn, "gw_app", bound, listing, f"DELETE FROM stateroom.{table} RETURNING 1"))  # noqa: S608
        assert changed == [], table
