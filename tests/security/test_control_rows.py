"""Whoever writes to the database does not steer the gateway by schemas, policies, holds and jobs of their own."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import json

from crypto import KeyUnavailable
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.control.features import LEAD_SECONDS
from storage.control.rows import Proof, schema_row
from storage.errors import IntegrityFailure, InvalidState, JobNotDamaged, LegalHold
from storage.model import Load, Save
from storage.postgres.unit_of_work import Silent
from storage.retention.planner import Ceilings, Policy
from storage.schemas.registry import Definition
from storage.schemas.versions import WantedVersions
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.passing_time import PassingTime
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
def clock(admin, scope):
    return PassingTime(admin, scope.tenant_id)


@pytest.fixture
async def opened(connections, root_key, clock, watch):
    """Another gateway of the same deployment, which remembers nothing."""
    blobs = MemoryBlobStore()
    gateways = []

    def another(clock=clock):
        options = StoreOptions(blobs=blobs, clock=clock, observer=watch)
        gateways.append(Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options))
        return gateways[-1]

    yield another
    for each in gateways:
        await each.workers.close()


@pytest.fixture
def gateway(opened):
    return opened()


@pytest.fixture
def tenant(scope):
    return TenantScope(scope.tenant_id)


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
    ],
    ids=["a step that names another field", "a row without a MAC", "another version's row"],
)
async def test_a_step_that_no_gateway_registered_converts_nothing(
    opened, gateway, registered, scope, tenant, admin, watch, edit
):
    assert await admin.execute(edit, scope.tenant_id) != "UPDATE 0"
    cold = opened()
    with pytest.raises(IntegrityFailure):
        await cold.states.load(scope, V2, Load("t1", "", None, with_state=True))
    assert watch.failures > 0
    with pytest.raises(IntegrityFailure):
        await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    with pytest.raises(IntegrityFailure):
        await cold.states.save(scope, Save(thread_id="t2", content=state(a=1), state_schema="pay", state_version=2))


async def test_a_version_that_somebody_added_is_none_and_gives_way_to_a_registered_one(
    opened, registered, scope, tenant, admin, watch
):
    await admin.execute(
        "INSERT INTO stateroom.state_schemas (tenant_id, schema, number, definition, created_at, mac)"
        " SELECT tenant_id, schema, 3, definition, created_at, mac FROM stateroom.state_schemas"
        " WHERE tenant_id = $1 AND number = 2",
        scope.tenant_id,
    )
    cold = opened()
    loaded = await cold.states.load(scope, V2, Load("t1", "", None, with_state=True))
    assert contents(loaded.checkpoint)["recipient"] == "alice"
    assert watch.failures > 0
    later = Save(thread_id="t2", content=state(a=1), state_schema="pay", state_version=3)
    with pytest.raises(IntegrityFailure):
        await cold.states.save(scope, later)
    await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    await cold.states.save(scope, later)


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
    cold = opened()
    loaded = await cold.states.load(scope, V2, Load("t1", "", None, with_state=True))
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
    await clock.go_on(DAY)
    cold = opened()
    round_ = await cold.retaining.tenant(tenant.tenant_id, now=True)
    assert (round_.deleted, round_.failed) == (0, 1)
    assert watch.failures > 0
    assert (await load(cold, scope, "t1")).checkpoint_id == saved.checkpoint_id
    assert await removals(admin, scope) == 0
    damaged = (await cold.retention_policies.get(tenant)).damaged
    assert damaged == {FORGED: {("agent", "travel")}, SHORTENED: {("tenant", "")}}.get(edit, set())
    found = await cold.retention_policies.get_thread(scope, "t1")
    assert (found.effective, found.next, found.damaged) == (None, None, edit is FORGED_OF_THREAD)


async def test_a_thread_whose_policy_was_edited_does_not_stop_the_others(gateway, scope, tenant, admin, clock):
    for thread_id in ("t0", "t1", "t2"):
        await save(gateway, scope, thread_id)
    await gateway.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=60, on_expiry="delete"))
    await admin.execute(FORGED_OF_THREAD, scope.tenant_id)
    await clock.go_on(DAY)
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
    await clock.go_on(DAY)
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
    cold = opened()
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
    cold = opened()
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
    cold = opened()
    assert await cold.runner.run_due() == 0
    assert watch.failures == 1
    assert await cold.runner.run_due() == 0
    assert watch.failures == 1, "it was put aside"
    assert (await load(cold, scope, "t1")).checkpoint_id
    assert await cold.shred.unapplied() == []
    (shown,) = (await cold.jobs.list(tenant)).items
    assert (shown.damaged, shown.state, shown.kind, shown.target) == (True, "failed", "", "")


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
    with pytest.raises(LegalHold):
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
    cold = opened()
    (listed,) = (await cold.jobs.list(tenant)).items
    for shown in (await cold.jobs.get(tenant, job.job_id), listed):
        assert (shown.damaged, shown.note) == (True, None)
    assert saved.checkpoint_id


# --- superseding and adopting ---------------------------------------------------------------------------------------


async def actions(gateway, scope):
    return [each.event.action for each in (await gateway.audit.page(scope, ACTOR, limit=1000)).items]


async def test_a_damaged_version_hides_no_lower_one_and_is_registered_again(
    opened, gateway, registered, scope, tenant, admin
):
    await gateway.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    edit = "UPDATE stateroom.state_schemas SET definition = '{}' WHERE tenant_id = $1 AND number >= 2"
    await admin.execute(edit, scope.tenant_id)
    cold = opened()
    shown = await cold.state_schemas.list(tenant, "pay")
    assert [each.damaged for each in shown] == [False, True, True]
    content = state(payee="bob")
    await cold.states.save(scope, Save(thread_id="t2", content=content, state_schema="pay", state_version=1))
    with pytest.raises(IntegrityFailure, match="version 2 of state schema 'pay'"):
        await cold.states.load(scope, V2, Load("t1", "", None, with_state=True))
    with pytest.raises(IntegrityFailure, match="version 2"):  # what leads to the third is not known yet
        await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    await cold.state_schemas.put(tenant, "pay", 2, Definition(up=RENAME))
    loaded = await cold.states.load(scope, V2, Load("t1", "", None, with_state=True))
    assert contents(loaded.checkpoint)["recipient"] == "alice"
    await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    assert not any(each.damaged for each in await cold.state_schemas.list(tenant, "pay"))
    assert (await actions(cold, tenant)).count("state-schema.supersede") == 2


@pytest.mark.parametrize("level", ["tenant", "agent", "thread"])
async def test_a_damaged_policy_protects_what_it_could_hold_and_nothing_else(
    opened, gateway, scope, tenant, admin, level
):
    await save(gateway, scope, "t1", agent="travel")
    await save(gateway, scope, "t2", agent="other")
    await gateway.retention_policies.put(tenant, "other", Policy(idle_ttl_seconds=DAY))
    await place_hold(gateway, scope, tenant, level)
    table, which = (
        ("thread_retention", "true") if level == "thread" else ("retention", f"level = '{level}' AND legal_hold")
    )
    edit = f"UPDATE stateroom.{table} SET legal_hold = false WHERE tenant_id = $1 AND {which}"  # noqa: S608
    await admin.execute(edit, scope.tenant_id)
    cold = opened()
    policies = cold.retention_policies
    said = await policies.get(tenant)
    assert said.agents["other"].policy == Policy(idle_ttl_seconds=DAY)
    if level == "tenant":
        with pytest.raises(IntegrityFailure):
            await cold.threads.delete(scope, "t2")
    else:
        await cold.threads.delete(scope, "t2")
    with pytest.raises(IntegrityFailure):
        await cold.threads.delete(scope, "t1")
    # Nobody knows any more whether it held: who supersedes it says so.
    agent = "travel" if level == "agent" else None
    for policy in (Policy(idle_ttl_seconds=DAY), Policy(legal_hold=True)):
        if level == "thread":
            again = policies.put_thread(scope, "t1", policy, ACTOR, supersede=True)
        else:
            again = policies.put(tenant, agent, policy, ACTOR)
        if policy.legal_hold is None:
            with pytest.raises(InvalidState, match="legal hold"):
                await again
        else:
            await again
    with pytest.raises(LegalHold):
        await cold.threads.delete(scope, "t1")
    assert (await actions(cold, tenant))[-2:] == ["legal-hold.set", "audit.read"]


async def test_a_thread_whose_policy_is_damaged_is_said_again_by_an_administrator_only(gateway, scope, tenant, admin):
    await save(gateway, scope, "t1")
    await admin.execute(FORGED_OF_THREAD, scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await gateway.retention_policies.put_thread(scope, "t1", Policy(legal_hold=False))
    await gateway.retention_policies.put_thread(scope, "t1", Policy(legal_hold=False), supersede=True)
    await gateway.threads.delete(scope, "t1")


async def test_damaged_ceilings_are_set_again_and_keep_nobody_from_deleting(gateway, scope, tenant, admin):
    await save(gateway, scope, "t1")
    await admin.execute(TENANT, scope.tenant_id)
    await gateway.retention_policies.set_ceilings(scope.tenant_id, Ceilings(idle_ttl_seconds=DAY))
    await admin.execute("UPDATE stateroom.retention SET policy = '{}' WHERE tenant_id = $1", scope.tenant_id)
    assert (await gateway.retention_policies.get(tenant)).damaged == {("ceilings", "")}
    await gateway.threads.delete(scope, "t1")
    await gateway.retention_policies.set_ceilings(scope.tenant_id, Ceilings(idle_ttl_seconds=DAY))
    assert not (await gateway.retention_policies.get(tenant)).damaged


async def test_a_damaged_job_hides_no_other_stops_no_new_one_and_is_put_aside(gateway, scope, tenant, admin):
    await save(gateway, scope, "t1")
    await admin.execute(ADD_JOB, scope.tenant_id, "rewrap-subject-keys", "tenant", "running", "somewhere")
    fresh = await gateway.rotation.rewrap_tenant(tenant, ACTOR)
    shown = {each.job_id: each.damaged for each in (await gateway.jobs.list(tenant)).items}
    assert shown.pop(fresh) is False
    (damaged,) = shown
    await run_out(gateway)
    assert (await gateway.jobs.get(tenant, fresh)).state == "done"
    with pytest.raises(JobNotDamaged):
        await gateway.control_repair.supersede_job(tenant, fresh, ACTOR)
    aside = await gateway.control_repair.supersede_job(tenant, damaged, ACTOR)
    assert (aside.damaged, aside.kind, aside.state) == (False, "superseded", "failed")
    assert "job.supersede" in await actions(gateway, tenant)


async def test_rows_from_before_macs_are_listed_and_adopted_as_they_are(
    opened, gateway, registered, scope, tenant, admin, verified
):
    """As a gateway of the release before MACs left them; a row whose MAC is wrong is none of them."""
    await admin.execute(TENANT, scope.tenant_id)
    await save(gateway, scope, "t1")
    await gateway.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    await gateway.retention_policies.put(tenant, "travel", Policy(idle_ttl_seconds=DAY))
    await gateway.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
    await gateway.rotation.rewrap_tenant(tenant, ACTOR)
    operators = await gateway.rotation.rewrap_root(ACTOR)
    await run_out(gateway)
    for table in ("state_schemas", "retention", "thread_retention", "jobs"):
        await admin.execute(f"UPDATE stateroom.{table} SET mac = NULL")  # noqa: S608
    edit = "UPDATE stateroom.retention SET mac = decode(repeat('00', 32), 'hex') WHERE level = 'agent'"
    await admin.execute(edit)
    cold = opened()
    listed = {(each.tenant_id, str(each.row)) async for each in cold.control_repair.without_mac()}
    assert {name for whose, name in listed if whose == scope.tenant_id and "job" not in name} == {
        "state-schema 'pay/1'", "state-schema 'pay/2'", "retention 'tenant/'", "retention 'thread/user-1/t1'"
    }  # fmt: skip
    assert (await cold.jobs.get(OperatorScope(), operators)).damaged
    adopted = {(each.tenant_id, str(each.row)) async for each in cold.control_repair.adopt(ACTOR)}
    assert adopted == listed
    assert not (await cold.jobs.get(OperatorScope(), operators)).damaged
    assert (await cold.retention_policies.get(tenant)).damaged == {("agent", "travel")}
    assert await verified() == {"control-row": 1}
    with pytest.raises(LegalHold):
        await cold.threads.delete(scope, "t1")
    own = [name for whose, name in adopted if whose == scope.tenant_id]
    assert (await actions(cold, tenant)).count("control-row.adopt") == len(own)
    assert [each async for each in cold.control_repair.adopt(ACTOR)] == []


# --- formats ---------------------------------------------------------------------------------------------------------


def after_the_lead():
    return ManualClock(datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS))


async def test_rows_name_their_format_once_all_processes_know_it_and_those_from_before_stay(
    opened, gateway, registered, scope, tenant, admin, watch, verified
):
    formats = "SELECT number, mac_format FROM stateroom.state_schemas WHERE tenant_id = $1 ORDER BY number"
    await gateway.upgrades.finish()
    other = opened(after_the_lead())
    await other.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    assert [tuple(row) for row in await admin.fetch(formats, scope.tenant_id)] == [(1, None), (2, None), (3, 2)]
    await gateway.retention_policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    assert not (await other.retention_policies.get(tenant)).damaged
    assert len(await gateway.state_schemas.get(tenant, "pay")) == 3
    assert await verified() == {}
    assert watch.failures == 0


@pytest.mark.parametrize("unknown", [-1, 0, 3, 32767])
async def test_a_version_of_an_unknown_format_is_damaged_hides_no_other_and_is_registered_again(
    opened, gateway, registered, scope, tenant, admin, watch, verified, unknown
):
    """A newer build writes none before a feature is on, and this one serves nothing then."""
    edit = "UPDATE stateroom.state_schemas SET mac_format = $2 WHERE tenant_id = $1 AND number = 2"
    await admin.execute(edit, scope.tenant_id, unknown)
    cold = opened()
    assert [each.damaged for each in await cold.state_schemas.list(tenant, "pay")] == [False, True]
    assert watch.failures > 0
    assert await verified() == {"control-row": 1}
    await cold.state_schemas.put(tenant, "pay", 2, Definition(up=RENAME))
    assert not any(each.damaged for each in await cold.state_schemas.list(tenant, "pay"))
    assert "state-schema.supersede" in await actions(cold, tenant)
    assert await verified() == {}


async def test_policies_holds_and_jobs_of_an_unknown_format_are_damaged_and_give_way(
    gateway, scope, tenant, admin, verified
):
    policies, said = gateway.retention_policies, Policy(legal_hold=False)
    await save(gateway, scope, "t1")
    await policies.put(tenant, None, Policy(idle_ttl_seconds=DAY))
    await policies.put_thread(scope, "t1", Policy(idle_ttl_seconds=DAY))
    job_id = await gateway.rotation.rewrap_tenant(tenant, ACTOR)
    for table in ("retention", "thread_retention", "jobs"):
        await admin.execute(f"UPDATE stateroom.{table} SET mac_format = 3")  # noqa: S608
    assert (await policies.get(tenant)).damaged == {("tenant", "")}
    assert (await policies.get_thread(scope, "t1")).damaged
    assert (await gateway.jobs.get(tenant, job_id)).damaged
    assert await verified() == {"control-row": 3}
    await policies.put(tenant, None, said)
    await policies.put_thread(scope, "t1", said, supersede=True)
    await gateway.control_repair.supersede_job(tenant, job_id, ACTOR)
    assert await verified() == {}
    await gateway.threads.delete(scope, "t1")


async def test_no_row_is_made_an_older_one_by_its_format(opened, gateway, registered, tenant, admin):
    await gateway.upgrades.finish()
    other = opened(after_the_lead())
    await other.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    await admin.execute("UPDATE stateroom.state_schemas SET mac_format = NULL WHERE number = 3")
    cold = opened()
    assert [each.damaged for each in await cold.state_schemas.list(tenant, "pay")] == [False, False, True]


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
    await clock.go_on(2 * DAY)
    cold = opened()
    await cold.state_schemas.put(tenant, "pay", 3, Definition(up=NEXT))
    loaded = await cold.states.load(scope, V2, Load("t1", "", None, with_state=True))
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
    one = opened()
    two = opened()
    await asyncio.gather(one.control.ready(), two.control.ready())
    row = schema_row(scope.tenant_id, "pay", 1, b"{}", START)
    assert one.control.proof(row) == two.control.proof(row)
    job_id = await one.rotation.rewrap_root(ACTOR)
    await run_out(one)
    assert (await one.jobs.get(OperatorScope(), job_id)).state == "done"
    three = opened()
    await three.control.ready()
    assert three.control.is_authentic(row, one.control.proof(row))


async def test_nothing_is_believed_before_the_key_is_there(opened, scope):
    cold = opened()
    row = schema_row(scope.tenant_id, "pay", 1, b"{}", START)
    with pytest.raises(KeyUnavailable):
        cold.control.check(row, Proof(bytes(32), None))
