"""Whoever writes to the database does not steer the gateway by schemas, policies, holds and jobs of their own."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import json

from crypto import KeyUnavailable
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.control_rows import schema_row
from storage.errors import IntegrityFailure, LegalHold
from storage.model import Save
from storage.postgres.unit_of_work import Silent
from storage.retention import Ceilings, Policy
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store
from storage.state_schemas import Definition
from storage.versions import WantedVersions
from tests.support.states import contents, history, load, save, state
from tests.support.stores import DEPLOYMENT_ID

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400
RENAME = [{"op": "rename", "from": "/payee", "to": "/recipient"}]
NEXT = [{"op": "rename", "from": "/recipient", "to": "/to"}]
V2 = WantedVersions(any_schema=2)
TENANT = "INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES ($1, 'x', now())"
TENANT_SAYS = "UPDATE stateroom.retention SET {} WHERE tenant_id = $1 AND level = 'tenant'"


class Watch(Silent):
    def __init__(self):
        self.failures = 0

    def integrity_failure(self):
        self.failures += 1


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def opened(database, root_key, clock, watch):
    """Another gateway of the same deployment, which remembers nothing."""
    blobs = MemoryBlobStore()

    @asynccontextmanager
    async def another():
        made = await Store.open(
            database.app_url,
            root_key=root_key,
            deployment_id=DEPLOYMENT_ID,
            connections_max=8,
            durable=False,
            blobs=blobs,
            clock=clock,
            observer=watch,
        )
        yield made
        await made.close()

    return another


@pytest.fixture
async def gateway(opened):
    async with opened() as made:
        yield made


@pytest.fixture
def tenant(scope):
    return TenantScope(scope.tenant_id)


def go_on(clock, seconds):
    clock.set(clock.now() + timedelta(seconds=seconds))


# --- state schemas -------------------------------------------------------------------------------------------------


@pytest.fixture
async def registered(gateway, scope, tenant):
    await gateway.state_schemas.put(tenant, "pay", 1, Definition())
    await gateway.state_schemas.put(tenant, "pay", 2, Definition(up=RENAME))
    content = state(payee="alice", attacker="mallory")
    await gateway.states.save(scope, Save(thread_id="t1", content=content, state_schema="pay", state_version=1))


@pytest.mark.parametrize(
    "edit",
    [
        """
        UPDATE stateroom.state_schemas
        SET definition = replace(convert_from(definition, 'UTF8'), '/payee', '/attacker')::bytea
        WHERE tenant_id = $1 AND number = 2
        """,
        "UPDATE stateroom.state_schemas SET mac = NULL WHERE tenant_id = $1",
        """
        UPDATE stateroom.state_schemas s SET definition = f.definition, mac = f.mac FROM stateroom.state_schemas f
        WHERE s.tenant_id = $1 AND f.tenant_id = $1 AND s.number = 1 AND f.number = 2
        """,
        """
        INSERT INTO stateroom.state_schemas (tenant_id, schema, number, definition, created_at, mac)
        SELECT tenant_id, schema, 3, definition, created_at, mac FROM stateroom.state_schemas
        WHERE tenant_id = $1 AND number = 2
        """,
    ],
    ids=["a step that names another field", "a row without a MAC", "another version's row", "a version of its own"],
)
async def test_a_step_that_no_gateway_registered_converts_nothing(
    opened, gateway, registered, scope, tenant, admin, watch, edit
):
    assert await admin.execute(edit, scope.tenant_id) != "UPDATE 0"
    async with opened() as cold:
        with pytest.raises(IntegrityFailure):
            await cold.states.load(scope, V2, "t1", "", None, with_state=True)
        assert watch.failures == 1
        with pytest.raises(IntegrityFailure):
            await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
        with pytest.raises(IntegrityFailure):
            await cold.states.save(scope, Save(thread_id="t2", content=state(a=1), state_schema="pay", state_version=1))


async def test_a_schema_of_another_tenant_is_none(gateway, opened, registered, scope, admin):
    elsewhere = Scope(DEPLOYMENT_ID, "user-1")
    copied = (
        "INSERT INTO stateroom.state_schemas (tenant_id, schema, number, definition, created_at, mac)"
        " SELECT $2, schema, number, definition, created_at, mac FROM stateroom.state_schemas WHERE tenant_id = $1"
    )
    await admin.execute(copied, scope.tenant_id, elsewhere.tenant_id)
    with pytest.raises(IntegrityFailure):
        await gateway.state_schemas.get(TenantScope(elsewhere.tenant_id), "pay")


async def test_another_gateway_converts_by_what_one_registered(opened, registered, scope):
    async with opened() as cold:
        loaded = await cold.states.load(scope, V2, "t1", "", None, with_state=True)
    assert contents(loaded.checkpoint)["recipient"] == "alice"


# --- policies ------------------------------------------------------------------------------------------------------

FORGED = (
    "INSERT INTO stateroom.retention (tenant_id, level, target, policy, legal_hold, updated_at)"
    " VALUES ($1, 'agent', 'travel', '{\"idle_ttl_seconds\":60,\"on_expiry\":\"delete\"}', false, now())"
)
FORGED_OF_THREAD = (
    "INSERT INTO stateroom.thread_retention (tenant_id, subject_id, thread_id, policy, legal_hold, updated_at)"
    " VALUES ($1, 'user-1', 't1', '{\"idle_ttl_seconds\":60,\"on_expiry\":\"delete\"}', false, now())"
)
SHORTENED = TENANT_SAYS.format('policy = \'{"idle_ttl_seconds":60,"on_expiry":"delete"}\'')


async def removals(admin, scope):
    return await admin.fetchval("SELECT count(*) FROM stateroom.removed_threads WHERE tenant_id = $1", scope.tenant_id)


@pytest.mark.parametrize("edit", [FORGED, FORGED_OF_THREAD, SHORTENED])
async def test_a_policy_that_no_gateway_wrote_deletes_nothing(
    opened, gateway, scope, tenant, admin, clock, watch, edit
):
    saved = await save(gateway, scope, "t1", agent="travel")
    await gateway.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=365 * DAY, on_expiry="delete"))
    await admin.execute(edit, scope.tenant_id)
    go_on(clock, DAY)
    async with opened() as cold:
        round_ = await cold.retaining.tenant(tenant.tenant_id, now=True)
        assert (round_.deleted, round_.failed) == (0, 1)
        assert watch.failures > 0
        assert (await load(cold, scope, "t1")).checkpoint_id == saved.checkpoint_id
        assert await removals(admin, scope) == 0
        if edit is not FORGED_OF_THREAD:
            with pytest.raises(IntegrityFailure):
                await cold.retention_policies.get(tenant)
        with pytest.raises(IntegrityFailure):
            await cold.retention_policies.get_thread(scope, "t1")
        with pytest.raises(IntegrityFailure):
            await cold.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))


async def test_a_thread_whose_policy_was_edited_does_not_stop_the_others(gateway, scope, tenant, admin, clock):
    for thread_id in ("t0", "t1", "t2"):
        await save(gateway, scope, thread_id)
    await gateway.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=60, on_expiry="delete"))
    await admin.execute(FORGED_OF_THREAD, scope.tenant_id)
    go_on(clock, DAY)
    round_ = await gateway.retaining.tenant(tenant.tenant_id, now=True)
    assert (round_.deleted, round_.failed, round_.tenants) == (2, 1, 1)
    assert [each.thread_id for each in (await gateway.threads.list(scope)).items] == ["t1"]


async def test_a_ceiling_that_no_gateway_wrote_is_none(gateway, scope, tenant, admin, clock):
    await save(gateway, scope, "t1")
    await admin.execute(TENANT, scope.tenant_id)
    await gateway.retention_policies.set_ceilings(scope.tenant_id, Ceilings(idle_ttl_seconds=365 * DAY))
    await admin.execute(
        "UPDATE stateroom.retention SET policy = '{\"idle_ttl_seconds\":60}' WHERE tenant_id = $1", scope.tenant_id
    )
    go_on(clock, DAY)
    assert (await gateway.retaining.tenant(tenant.tenant_id, now=True)).archived == 0
    with pytest.raises(IntegrityFailure):
        await gateway.retention_policies.ceilings(scope.tenant_id)


# --- holds ---------------------------------------------------------------------------------------------------------


async def place_hold(gateway, scope, tenant, level):
    held = Policy(legal_hold=True)
    if level == "thread":
        await gateway.retention_policies.put_thread(scope, "t1", held)
    else:
        await gateway.retention_policies.put(tenant, "travel" if level == "agent" else None, held)


@pytest.mark.parametrize("level", ["tenant", "agent", "thread"])
@pytest.mark.parametrize("edit", ["legal_hold = false", "legal_hold = false, policy = '{}'", "mac = NULL"])
async def test_a_hold_that_somebody_edited_away_still_keeps_everything(
    opened, gateway, scope, tenant, admin, clock, watch, level, edit
):
    for _ in range(2):
        await save(gateway, scope, "t1", agent="travel")
    await admin.execute(TENANT, scope.tenant_id)
    await place_hold(gateway, scope, tenant, level)
    table = "thread_retention" if level == "thread" else "retention"
    await admin.execute(f"UPDATE stateroom.{table} SET {edit} WHERE tenant_id = $1", scope.tenant_id)  # noqa: S608
    async with opened() as cold:
        for removing in (
            cold.threads.delete(scope, "t1"),
            cold.threads.prune(scope, ["t1"], "keep_latest"),
            cold.shred.subject(scope, scope.subject_id, "somebody"),
            cold.shred.tenant(scope.tenant_id, str(scope.tenant_id), "somebody"),
        ):
            with pytest.raises(IntegrityFailure):
                await removing
        assert watch.failures > 0
        await load(cold, scope, "t1")
        assert len(await history(cold, scope, thread_id="t1")) == 2
        assert await removals(admin, scope) == 0


@pytest.mark.parametrize("level", ["tenant", "agent", "thread"])
async def test_holds_that_gateways_placed_and_lifted_hold_and_do_not(opened, gateway, scope, tenant, watch, level):
    await save(gateway, scope, "t1", agent="travel")
    await place_hold(gateway, scope, tenant, level)
    async with opened() as cold:
        with pytest.raises(LegalHold):
            await cold.threads.delete(scope, "t1")
        with pytest.raises(LegalHold):
            await cold.shred.subject(scope, scope.subject_id, "somebody")
        free = Policy(legal_hold=False)
        if level == "thread":
            await cold.retention_policies.put_thread(scope, "t1", free)
        else:
            await cold.retention_policies.put(tenant, "travel" if level == "agent" else None, free)
        await gateway.threads.delete(scope, "t1")
    assert watch.failures == 0


# --- jobs ----------------------------------------------------------------------------------------------------------

ACTOR = "somebody"
ADD_JOB = """
INSERT INTO stateroom.jobs (tenant_id, job_id, kind, target, state, done, total, position, created_at, updated_at)
VALUES ($1, gen_random_uuid(), $2, $3, $4, 0, NULL, $5, now(), now())
"""


async def run_out(gateway):
    while await gateway.runner.run_due():
        pass


@pytest.fixture
async def verified(gateway, tenant):
    """What verifying the tenant finds, as codes and how often."""

    async def found():
        job_id = await gateway.verifying.begin_tenant(tenant, ACTOR)
        await run_out(gateway)
        job = await gateway.jobs.get(tenant, job_id)
        assert job.state == "done", job.error
        return json.decode(job.note)["found"]

    return found


@pytest.mark.parametrize(
    ("kind", "target"), [("shred-subject", "user-1"), ("shred-tenant", "tenant"), ("archive-thread", "user-1/t1")]
)
async def test_a_job_that_no_gateway_added_does_nothing(opened, gateway, scope, tenant, admin, watch, kind, target):
    await admin.execute(TENANT, scope.tenant_id)
    await save(gateway, scope, "t1")
    await admin.execute(ADD_JOB, scope.tenant_id, kind, target, "queued", '["intended"]')
    async with opened() as cold:
        assert await cold.runner.run_due() == 0
        assert watch.failures == 1
        assert await cold.runner.run_due() == 0
        assert watch.failures == 1, "it was put aside"
        assert (await load(cold, scope, "t1")).checkpoint_id
        assert await cold.shred.unapplied() == []
        with pytest.raises(IntegrityFailure):
            await cold.jobs.list(tenant)


async def test_a_job_sent_to_another_subject_destroys_nothing_of_it(gateway, scope, admin, watch):
    other = Scope(scope.tenant_id, "user-2")
    for each in (scope, other):
        await save(gateway, each, "t1")
    shredded = await gateway.shred.subject(scope, scope.subject_id, ACTOR)
    await admin.execute(
        "UPDATE stateroom.jobs SET target = 'user-2', position = '[\"purge\",\"\"]' WHERE job_id = $1", shredded.job_id
    )
    await run_out(gateway)
    assert watch.failures == 1
    assert (await load(gateway, other, "t1")).checkpoint_id


async def test_a_job_that_somebody_added_excuses_no_hold(gateway, scope, tenant, admin):
    await save(gateway, scope, "t1")
    await gateway.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
    await admin.execute(ADD_JOB, scope.tenant_id, "shred-subject", "user-1", "failed", '["intended"]')
    with pytest.raises(IntegrityFailure):
        await gateway.shred.subject(scope, scope.subject_id, ACTOR)
    await load(gateway, scope, "t1")


async def test_a_shred_that_waited_is_stopped_by_a_hold_that_came_meanwhile(gateway, scope, tenant):
    await save(gateway, scope, "t1")
    async with gateway.unit_of_work.begin(tenant) as transaction:
        await gateway.jobs.ready()
        job_id = await gateway.jobs.add(transaction, scope.tenant_id, "shred-subject", "user-1", '["intended"]')
    await gateway.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
    await run_out(gateway)
    assert (await gateway.jobs.get(tenant, job_id)).state == "failed"
    await load(gateway, scope, "t1")
    with pytest.raises(LegalHold):
        await gateway.shred.subject(scope, scope.subject_id, ACTOR)
    await gateway.retention_policies.put_thread(scope, "t1", Policy(legal_hold=False))
    assert (await gateway.shred.subject(scope, scope.subject_id, ACTOR)).job_id == job_id
    await run_out(gateway)
    assert (await gateway.jobs.get(tenant, job_id)).state == "done"


async def test_a_note_that_somebody_wrote_is_not_shown(gateway, opened, scope, tenant, admin, verified):
    saved = await save(gateway, scope, "t1")
    await admin.execute("DELETE FROM stateroom.heads WHERE tenant_id = $1", scope.tenant_id)
    assert await verified()
    (job,) = (await gateway.jobs.list(tenant)).items
    clean = json.encode({"found": {}, "findings": []}).decode()
    await admin.execute("UPDATE stateroom.jobs SET note = $2 WHERE job_id = $1", job.job_id, clean)
    async with opened() as cold:
        for asking in (cold.jobs.get(tenant, job.job_id), cold.jobs.list(tenant)):
            with pytest.raises(IntegrityFailure):
                await asking
    assert saved.checkpoint_id


# --- what tells of it, and what does not ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "count"),
    [
        (FORGED, 1),
        (FORGED_OF_THREAD, 1),
        ("UPDATE stateroom.state_schemas SET definition = '{}', mac = NULL WHERE tenant_id = $1", 2),
        ("UPDATE stateroom.retention SET legal_hold = true WHERE tenant_id = $1", 1),
        ("UPDATE stateroom.jobs SET note = 'nothing was found' WHERE tenant_id = $1", 1),
    ],
)
async def test_verifying_a_tenant_names_what_steers_it_and_no_gateway_wrote(
    gateway, registered, scope, tenant, admin, verified, edit, count
):
    await gateway.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    assert await verified() == {}
    await admin.execute(edit, scope.tenant_id)
    assert (await verified())["control-row"] == count


async def test_what_gateways_do_themselves_is_never_taken_for_forged(
    opened, gateway, registered, scope, tenant, admin, clock, watch, verified
):
    """Registering, migrating and back, holding and freeing, rotating every key, another gateway, shredding."""
    await admin.execute(TENANT, scope.tenant_id)
    await save(gateway, scope, "held", agent="travel")
    await save(gateway, scope, "free")
    policies = gateway.retention_policies
    await policies.put(tenant, None, Policy(idle_ttl_seconds=DAY, on_expiry="delete"))
    await policies.put(tenant, "travel", Policy(legal_hold=True))
    await policies.put(tenant, "travel", Policy(idle_ttl_seconds=10 * DAY))  # does not mention the hold
    await policies.put_thread(scope, "t1", Policy(idle_ttl_seconds=30 * DAY))
    await policies.set_ceilings(scope.tenant_id, Ceilings(idle_ttl_seconds=365 * DAY))
    for kind in ("state-plan", "state-migrate", "state-rollback"):
        version = 1 if kind == "state-rollback" else 2
        await gateway.migrating.begin(tenant, kind, "pay", ACTOR, target_version=version, idle_seconds=0)
        await run_out(gateway)
    await gateway.rotation.rotate_subject(scope, ACTOR)
    await gateway.rotation.rotate_tenant(tenant, ACTOR)
    await gateway.rotation.rewrap_root(ACTOR)
    await run_out(gateway)
    go_on(clock, 2 * DAY)
    async with opened() as cold:
        await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
        loaded = await cold.states.load(scope, V2, "t1", "", None, with_state=True)
        assert contents(loaded.checkpoint)["recipient"] == "alice"
        round_ = await cold.retaining.tenant(tenant.tenant_id, now=True)
        assert (round_.deleted, round_.failed, round_.held) == (1, 0, 1)
        assert {each.thread_id for each in (await cold.threads.list(scope)).items} == {"t1", "held"}
        assert {each.state for each in (await cold.jobs.list(tenant)).items} == {"done"}
        assert await verified() == {}
        await cold.retention_policies.put(tenant, "travel", Policy(legal_hold=False))
        shredded = await cold.shred.tenant(scope.tenant_id, str(scope.tenant_id), ACTOR)
        await run_out(cold)
        assert (await cold.jobs.get(tenant, shredded.job_id)).state == "done"
    assert watch.failures == 0


async def test_the_key_of_control_rows_is_one_for_all_gateways_and_follows_the_root_key(opened, scope, tenant):
    async with opened() as one, opened() as two:
        await asyncio.gather(one.control.ready(), two.control.ready())
        row = schema_row(scope.tenant_id, "pay", 1, b"{}", START)
        assert one.control.mac(row) == two.control.mac(row)
        job_id = await one.rotation.rewrap_root(ACTOR)
        await run_out(one)
        assert (await one.jobs.get(OperatorScope(), job_id)).state == "done"
    async with opened() as three:
        await three.control.ready()
        assert three.control.is_authentic(row, one.control.mac(row))


async def test_nothing_is_believed_before_the_key_is_there(opened, scope):
    async with opened() as cold:
        row = schema_row(scope.tenant_id, "pay", 1, b"{}", START)
        with pytest.raises(KeyUnavailable):
            cold.control.check(row, bytes(32))
