"""Adoption: unversioned state gets a meaning once, for what was saved before, and never again."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from msgspec import json

from storage.control.features import ADOPTIONS
from storage.errors import (
    AdoptionBuiltOn,
    AdoptionExists,
    ChannelUnchangedUnknown,
    FeatureOff,
    IntegrityFailure,
    InvalidState,
    StateSchemaMismatch,
    StateTooNewToSave,
    StateVersionRequired,
)
from storage.format.ids import mint_checkpoint_id
from storage.migration.jobs import STATE_MIGRATE_KIND, STATE_PLAN_KIND, STATE_ROLLBACK_KIND, read_position
from storage.model import (
    ChannelHistoryQuery,
    ChannelValue,
    Compaction,
    FullState,
    HistoryQuery,
    Load,
    Precondition,
    Save,
    TaskWrites,
    TaskWritesQuery,
)
from storage.schemas.registry import Definition
from storage.schemas.versions import AS_SAVED, WantedVersions
from storage.scope import Scope, TenantScope
from tests.support.features import switch_on
from tests.support.states import contents, patch, state, write, writes_of
from tests.support.transfers import deployment, exported_tenant, imported

RENAME = [{"op": "rename", "from": "/user_pref", "to": "/user_profile"}]
BACK = [{"op": "rename", "from": "/user_profile", "to": "/user_pref"}]
V2 = WantedVersions(by_schema={"travel": 2})
OLD = {"user_pref": "aisle"}


@pytest.fixture
def scope():
    return Scope(uuid4(), "user-1")


@pytest.fixture
async def tenant(store, scope):
    await switch_on(store, ADOPTIONS)
    tenant = TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    await store.state_schemas.put(tenant, "travel", 2, Definition(up=RENAME, down=BACK))
    return tenant


async def save(store, scope, thread_id="t1", content=None, agent="travel", **parts):
    content = content or state(**OLD)
    return await store.states.save(scope, Save(thread_id=thread_id, content=content, agent=agent, **parts))


async def as_a_process_that_has_not_heard(store, scope, thread_id="t1", **parts):
    parts.setdefault("content", state(**OLD))
    return await store.checkpoints.save(scope, Save(thread_id=thread_id, agent="travel", **parts))


async def load(store, scope, wanted=V2, thread_id="t1", checkpoint_id=None, namespace=""):
    loaded = await store.states.load(scope, wanted, Load(thread_id, namespace, checkpoint_id, with_state=True))
    return loaded.checkpoint


async def adopt(store, tenant, agent="travel", namespace="", number=1, **how):
    return await store.adoptions.adopt(tenant, agent, namespace, "travel", number, **how)


async def run(store, tenant, kind):
    job_id = await store.migrating.begin(tenant, kind, "travel", "tester", idle_seconds=0, heads_per_second=1000)
    while (await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    job = next(each for each in await store.migrating.jobs(tenant, "travel") if each.job_id == job_id)
    return read_position(job.position)[1]


async def test_what_an_agent_saved_before_is_read_at_versions_everywhere(store, scope, tenant):
    first = await save(store, scope)
    second = await save(store, scope, content=state(user_pref="window"))
    place = ("t1", "", second.checkpoint_id)
    await store.states.put_writes(scope, TaskWrites(*place, "task", "", [write(0, "user_pref", "x")], None))
    assert contents(await load(store, scope)) == {"user_pref": "window"}, "nobody adopted it"
    await adopt(store, tenant)

    found = await load(store, scope)
    assert (contents(found), found.state_schema, found.state_version) == ({"user_profile": "window"}, "travel", 2)
    assert writes_of(found) == [("task", 0, "user_profile", "x")]
    page = await store.states.history(scope, V2, HistoryQuery(thread_id="t1", with_state=True))
    assert [contents(each) for each in page.items] == [{"user_profile": "window"}, {"user_profile": "aisle"}]
    assert [each.channel for each in await store.states.task_writes(scope, V2, TaskWritesQuery(*place, "task"))] == [
        "user_profile"
    ]
    third = await save(store, scope, content=state(user_profile="new"), state_schema="travel", state_version=2)
    told = await store.states.channel_history(
        scope, V2, ChannelHistoryQuery("t1", "", third.checkpoint_id, ["user_profile"])
    )
    history = told.channels["user_profile"]
    assert [each.channel for each in history.writes] == ["user_profile"]
    assert history.seed is not None
    older = await load(store, scope, WantedVersions(any_schema=1), checkpoint_id=first.checkpoint_id)
    assert (contents(older), older.state_version) == (OLD, 1)
    raw = await load(store, scope, AS_SAVED, checkpoint_id=first.checkpoint_id)
    assert (contents(raw), raw.state_schema) == (OLD, None), "without a version in mind it comes as it was saved"
    with pytest.raises(StateSchemaMismatch):
        await load(store, scope, WantedVersions(by_schema={"other": 1}), checkpoint_id=first.checkpoint_id)


async def test_from_then_on_the_agent_names_a_version_with_everything_it_saves(store, scope, tenant):
    saved = await save(store, scope)
    await adopt(store, tenant)
    head = Precondition(head_id=saved.head_id)
    with pytest.raises(StateVersionRequired, match=r"agent 'travel'.*'travel' version 1"):
        await save(store, scope)
    with pytest.raises(StateVersionRequired):
        await save(store, scope, "new-thread")
    with pytest.raises(StateVersionRequired):
        await save(store, scope, content=patch(put={"a": 1}), agent=None, precondition=head)
    with pytest.raises(StateVersionRequired):
        await store.states.put_writes(
            scope, TaskWrites("t1", "", saved.checkpoint_id, "t", "", [write(0, "a", 1)], None)
        )
    control = [write(0, "__error__", "x")]
    await store.states.put_writes(scope, TaskWrites("t1", "", saved.checkpoint_id, "t", "", control, None))
    await save(store, scope, namespace="inner:1")
    await save(store, scope, "of-another", agent="billing")
    await save(store, scope, "of-nobody", agent=None)
    await save(store, scope, state_schema="travel", state_version=1)


async def test_what_comes_later_without_a_version_is_never_interpreted(store, scope, tenant):
    await adopt(store, tenant)
    late = await as_a_process_that_has_not_heard(store, scope)
    for wanted in (V2, WantedVersions(any_schema=1)):
        with pytest.raises(StateSchemaMismatch, match="without a version after"):
            await load(store, scope, wanted)
        with pytest.raises(StateSchemaMismatch):
            await store.states.history(scope, wanted, HistoryQuery(thread_id="t1", with_state=True))
    changes, head = patch(put={"a": 1}), Precondition(head_id=late.head_id)
    with pytest.raises(StateSchemaMismatch):
        await save(store, scope, content=changes, precondition=head, state_schema="travel", state_version=2)
    assert contents(await load(store, scope, AS_SAVED)) == OLD
    await save(store, scope, content=state(user_profile="mended"), state_schema="travel", state_version=2)
    assert contents(await load(store, scope)) == {"user_profile": "mended"}


async def test_a_patch_that_names_a_version_applies_to_what_the_adopted_parent_is_at_it(store, scope, tenant):
    saved = await save(store, scope, content=state(user_pref="aisle", list=[1]))
    await adopt(store, tenant)
    unchanged = FullState({"user_profile": ChannelValue("1", None)})
    with pytest.raises(ChannelUnchangedUnknown):
        await save(store, scope, content=unchanged, state_schema="travel", state_version=2)
    changes, head = patch(append={"list": [2]}), Precondition(head_id=saved.head_id)
    await save(store, scope, content=changes, precondition=head, state_schema="travel", state_version=2)
    assert contents(await load(store, scope, AS_SAVED)) == {"user_profile": "aisle", "list": [1, 2]}


async def test_namespaces_and_checkpoints_without_an_agent_are_adopted_by_name_only(store, scope, tenant):
    for namespace in ("", "billing:1", "billing:1|inner:2"):
        await save(store, scope, namespace=namespace)
    await save(store, scope, "of-nobody", agent=None)
    await adopt(store, tenant)
    raw = await load(store, scope, namespace="billing:1")
    assert (contents(raw), raw.state_schema) == (OLD, None)
    assert (await load(store, scope, thread_id="of-nobody")).state_schema is None
    await adopt(store, tenant, namespace="billing:*")
    await adopt(store, tenant, namespace="billing:1|inner:2", number=2)
    await adopt(store, tenant, agent=None)
    assert contents(await load(store, scope, namespace="billing:1")) == {"user_profile": "aisle"}
    assert contents(await load(store, scope, namespace="billing:1|inner:2")) == OLD, "the exact pattern says 2 already"
    assert contents(await load(store, scope, thread_id="of-nobody")) == {"user_profile": "aisle"}
    with pytest.raises(InvalidState):
        await adopt(store, tenant, namespace="a*b")
    with pytest.raises(StateTooNewToSave):
        await adopt(store, tenant, agent="other", number=3)


async def test_an_adoption_is_written_once_and_corrected_only_before_somebody_built_on_it(store, scope, tenant, admin):
    saved = await save(store, scope)
    made, is_new = await adopt(store, tenant, number=2)
    assert is_new
    assert await adopt(store, tenant, number=2) == (made, False)
    with pytest.raises(AdoptionExists, match="version 2"):
        await adopt(store, tenant)
    corrected, is_new = await adopt(store, tenant, supersede=True)
    assert (is_new, corrected.number, corrected.state_version) == (True, 2, 1)
    assert contents(await load(store, scope)) == {"user_profile": "aisle"}
    versioned = {"content": state(user_profile="x"), "state_schema": "travel", "state_version": 2}
    await save(store, scope, "another", **versioned)
    await adopt(store, tenant, number=2, supersede=True)
    await save(store, scope, precondition=Precondition(head_id=saved.head_id), **versioned)
    with pytest.raises(AdoptionBuiltOn):
        await adopt(store, tenant, supersede=True)
    log = "SELECT count(*) FROM stateroom.audit_log WHERE tenant_id = $1 AND action = 'state-schema.adopt'"
    assert await admin.fetchval(log, scope.tenant_id) == 3
    assert [(each.state_version, good) for each, good in await store.adoptions.list(tenant)] == [(2, True)]


async def test_plans_migrations_rollbacks_and_counts_find_adopted_state(store, scope, tenant):
    first = await save(store, scope)
    await save(store, scope, "of-another", agent="billing")
    assert await store.adoptions.unversioned(tenant) == {"billing": 1, "travel": 1}
    assert (await run(store, tenant, STATE_PLAN_KIND)).heads == 0
    await adopt(store, tenant)
    assert await store.adoptions.unversioned(tenant) == {"billing": 1}
    assert await store.migrating.heads_by_version(tenant, "travel") == {1: 1}
    planned = await run(store, tenant, STATE_PLAN_KIND)
    assert (planned.heads, planned.changed, planned.samples[0].from_version) == (1, 1, 1)
    assert (await run(store, tenant, STATE_MIGRATE_KIND)).changed == 1
    migrated = await load(store, scope, AS_SAVED)
    assert (contents(migrated), migrated.state_version) == ({"user_profile": "aisle"}, 2)
    assert (await run(store, tenant, STATE_ROLLBACK_KIND)).changed == 1
    back = await load(store, scope, AS_SAVED)
    assert (contents(back), back.state_schema, back.state_version) == (OLD, "travel", 1), "never below the adopted one"
    assert (await load(store, scope, AS_SAVED, checkpoint_id=first.checkpoint_id)).state_schema is None


async def test_nothing_says_what_a_migrated_state_was_made_of_once_its_adoption_is_gone(store, scope, tenant, admin):
    await save(store, scope)
    await adopt(store, tenant)
    await run(store, tenant, STATE_MIGRATE_KIND)
    await admin.execute("DELETE FROM stateroom.state_adoptions WHERE tenant_id = $1", scope.tenant_id)
    store.adoptions.forget(tenant)
    report = await run(store, tenant, STATE_ROLLBACK_KIND)
    assert (report.changed, report.failed) == (0, 1)
    assert "nothing says any more" in report.failures[0].detail


async def test_pending_writes_that_name_no_version_are_not_taken_for_their_checkpoints(store, scope, tenant):
    at = {"content": state(user_profile="x"), "state_schema": "travel", "state_version": 2}
    for thread_id, first in (("new", None), ("unversioned", state(**OLD)), ("remembered", None)):
        if first is not None:
            await save(store, scope, thread_id, content=first, agent="billing")
        if thread_id == "remembered":
            await save(store, scope, thread_id, **at)
        checkpoint_id = mint_checkpoint_id(datetime.now(UTC), None)
        await store.states.put_writes(
            scope, TaskWrites(thread_id, "", checkpoint_id, "t", "", [write(0, "user_pref", "x")], None)
        )
        with pytest.raises(StateSchemaMismatch, match="pending writes that name no version"):
            await save(store, scope, thread_id, checkpoint_id=checkpoint_id, agent="billing", **at)
    checkpoint_id = mint_checkpoint_id(datetime.now(UTC), None)
    early = ("ok", "", checkpoint_id, "t", "", [write(0, "user_profile", "x")], None)
    await store.states.put_writes(scope, TaskWrites(*early, state_schema="travel", state_version=2))
    await store.states.put_writes(
        scope, TaskWrites("ok", "", checkpoint_id, "u", "", [write(0, "__error__", "x")], None)
    )
    await save(store, scope, "ok", checkpoint_id=checkpoint_id, **at)


@pytest.mark.parametrize(
    "edit",
    ["state_version = 2", "adopted_at = adopted_at + interval '1 day'", "mac = decode(repeat('00', 32), 'hex')"],
)
async def test_an_adoption_that_no_gateway_wrote_interprets_nothing_and_hides_no_other(
    store, scope, tenant, admin, edit
):
    await save(store, scope)
    await save(store, scope, "of-another", agent="billing")
    await adopt(store, tenant)
    await adopt(store, tenant, agent="billing")
    changed = f"UPDATE stateroom.state_adoptions SET {edit} WHERE tenant_id = $1 AND agent = 'travel'"  # noqa: S608
    await admin.execute(changed, scope.tenant_id)
    store.adoptions.forget(tenant)
    with pytest.raises(IntegrityFailure, match="adoption of agent 'travel'"):
        await load(store, scope)
    with pytest.raises(IntegrityFailure):
        await save(store, scope)
    assert contents(await load(store, scope, thread_id="of-another")) == {"user_profile": "aisle"}
    assert {each.agent: good for each, good in await store.adoptions.list(tenant)} == {"billing": True, "travel": False}
    with pytest.raises(IntegrityFailure):
        await adopt(store, tenant)
    await adopt(store, tenant, supersede=True)
    assert contents(await load(store, scope)) == {"user_profile": "aisle"}


async def test_nothing_is_adopted_while_an_older_build_may_run(own_store, scope):
    store, tenant = own_store, TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    with pytest.raises(FeatureOff, match="finish-upgrade"):
        await adopt(store, tenant)
    assert await store.adoptions.list(tenant) == []


async def test_an_adoption_moves_with_its_tenant_as_old_as_it_is(postgres, migrated_template, scope):
    async with deployment(postgres, migrated_template) as here, deployment(postgres, migrated_template) as there:
        tenant = TenantScope(scope.tenant_id)
        await switch_on(here, ADOPTIONS)
        await here.state_schemas.put(tenant, "travel", 1, Definition())
        await here.state_schemas.put(tenant, "travel", 2, Definition(up=RENAME, down=BACK))
        await save(here, scope)
        made, _ = await adopt(here, tenant)
        await as_a_process_that_has_not_heard(here, scope, "late")
        file = await exported_tenant(here, there, scope.tenant_id, scope.tenant_id)
        with pytest.raises(FeatureOff):
            await imported(there, scope.tenant_id, file)
        await switch_on(there, ADOPTIONS)
        assert (await imported(there, scope.tenant_id, file)).threads == 2
        assert await there.adoptions.list(tenant) == [(made, True)]
        assert contents(await load(there, scope)) == {"user_profile": "aisle"}
        with pytest.raises(StateSchemaMismatch):
            await load(there, scope, thread_id="late")
        again = await imported(there, scope.tenant_id, file, skip_existing=True)
        assert again.threads == 0
        other = TenantScope(uuid4())
        await there.state_schemas.put(other, "travel", 1, Definition())
        await there.state_schemas.put(other, "travel", 2, Definition(up=RENAME, down=BACK))
        await adopt(there, other, number=2)
        file = await exported_tenant(here, there, scope.tenant_id, other.tenant_id)
        with pytest.raises(AdoptionExists):
            await imported(there, other.tenant_id, file)


async def test_verifying_a_tenant_names_an_adoption_that_no_gateway_wrote(store, scope, tenant, admin):
    await save(store, scope)
    await adopt(store, tenant)
    await admin.execute("UPDATE stateroom.state_adoptions SET agent = 'billing' WHERE tenant_id = $1", scope.tenant_id)
    job_id = await store.verifying.begin_tenant(tenant, "tester")
    while (await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    job = await store.jobs.get(tenant, job_id)
    assert json.decode(job.note or "")["found"] == {"control-row": 1}


async def test_an_adopted_head_is_compacted_at_the_version_that_is_named(store, scope, tenant):
    renamed = [{"op": "for_each", "path": "/lines", "operations": [{"op": "rename", "from": "/said", "to": "/text"}]}]
    await store.state_schemas.put(tenant, "travel", 3, Definition(up=renamed))
    lines = [{"said": "a"}, {"said": "b"}]
    await save(store, scope, "only", content=state(lines=lines))
    await save(store, scope, "more", content=state(lines=lines, **OLD))
    await save(store, scope, "same", content=state(lines=lines, **OLD))
    await adopt(store, tenant)
    late = await as_a_process_that_has_not_heard(store, scope, "late", content=state(lines=lines))
    for thread_id, number, after in (
        ("only", 3, {"lines": [{"text": "b"}]}),
        ("more", 3, {"lines": [{"text": "b"}], "user_profile": "aisle"}),
        ("same", 1, {"lines": [{"said": "b"}], **OLD}),
    ):
        newest = Compaction(thread_id=thread_id, channel="lines", keep_last=1)
        with pytest.raises(StateVersionRequired):
            await store.compacting.compact(scope, newest)
        await store.compacting.compact(scope, replace(newest, state_schema="travel", state_version=number))
        head = await load(store, scope, AS_SAVED, thread_id)
        assert (contents(head), head.state_version) == (after, number)
    newest = Compaction(thread_id="late", channel="lines", keep_last=1, state_schema="travel", state_version=1)
    with pytest.raises(StateSchemaMismatch):
        await store.compacting.compact(scope, newest)
    assert (await load(store, scope, AS_SAVED, "late")).checkpoint_id == late.checkpoint_id
