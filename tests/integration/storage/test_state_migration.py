"""Eager migration of a tenant's state: what a plan says, what a job does, and that it loses nothing it races."""

import asyncio
import os
import time

import msgspec
import pytest

from storage.errors import HeadMoved, StateSchemaNotFound
from storage.migration.jobs import STATE_MIGRATE_KIND, STATE_PLAN_KIND, STATE_ROLLBACK_KIND, Migrating, read_position
from storage.model import HistoryQuery, Load, Precondition, Save, TaskWrites
from storage.schemas.registry import Definition
from storage.schemas.versions import AS_SAVED, WantedVersions
from storage.schemas.workers import KILLS_MAX
from storage.scope import ClientShare, Scope, TenantScope
from tests.support.states import contents, state, write

UP = [
    {"op": "rename", "from": "/user_pref", "to": "/user_profile"},
    {"op": "convert", "path": "/age", "type": "integer"},
]
DOWN = [{"op": "rename", "from": "/user_profile", "to": "/user_pref"}]
# How long a job races live saves; the full minute is for whoever asks.
RACE_SECONDS = float(os.environ.get("STATEROOM_RACE_SECONDS", "5"))
END_SECONDS_MAX = 60


@pytest.fixture
async def tenant(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    await store.state_schemas.put(tenant, "travel", 2, Definition(up=UP, down=DOWN))
    return tenant


async def save(store, scope, thread_id, number=1, content=None, **parts):
    content = content or state(user_pref={"seat": "aisle", "jane@example.org": 1})
    return await store.states.save(
        scope, Save(thread_id=thread_id, content=content, state_schema="travel", state_version=number, **parts)
    )


async def run(store, tenant, kind, **how):
    """Begin a job and do its slices; returns it, ended."""
    how.setdefault("idle_seconds", 0)
    how.setdefault("heads_per_second", 1000)
    job_id = await store.migrating.begin(tenant, kind, "travel", "tester", **how)
    async with asyncio.timeout(END_SECONDS_MAX):
        while (await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
            await store.runner.run_due()
    return next(each for each in await store.migrating.jobs(tenant, "travel") if each.job_id == job_id)


def report(job):
    return read_position(job.position)[1]


def counted(found):
    return {name: count for name, count in msgspec.to_builtins(found).items() if isinstance(count, int) and count}


async def world(store, scope):
    """One head of every sort; returns those of two subjects that can be migrated."""
    other = Scope(scope.tenant_id, "user-2")
    first = await save(store, scope, "plain", status="done", agent="tester", metadata={"note": 1}, step=4)
    await save(store, other, "of-another")
    await save(store, scope, "there-already", 2, state(user_profile={}))
    await save(store, scope, "for-somebody", status="waiting")
    written = await save(store, scope, "written-to")
    await store.states.put_writes(
        scope, TaskWrites("written-to", "", written.checkpoint_id, "t", "", [write(0, "a", 1)], None)
    )
    await save(store, scope, "broken", content=state(user_pref={}, age="secret"))
    await store.states.save(
        scope,
        Save(thread_id="shared", content=state(user_pref={}), state_schema="travel", state_version=1),
        ClientShare(b"s" * 32),
    )
    await store.states.save(scope, Save(thread_id="of-no-schema", content=state(a=1)))
    return first, other


async def rows(admin, tenant):
    count = "SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1"
    return await admin.fetchval(count, tenant.tenant_id)


async def test_a_plan_says_what_would_happen_and_changes_nothing(store, scope, tenant, admin):
    await world(store, scope)
    before = await rows(admin, tenant)
    job = await run(store, tenant, STATE_PLAN_KIND)
    assert job.state == "done"
    assert counted(report(job)) == {"heads": 7, "changed": 2, "current": 1, "waiting": 2, "failed": 1, "shared": 1}
    [failure] = report(job).failures
    assert (failure.step, failure.pointer, failure.heads) == ("v1_to_v2", "/age", 1)
    assert {each.thread_id for each in report(job).samples} >= {"plain", "of-another"}
    sample = next(each for each in report(job).samples if each.thread_id == "plain")
    assert [(each.pointer, each.before, each.after) for each in sample.changes] == [
        ("/user_pref", "object of 2", None), ("/user_profile", None, "object of 2")
    ]  # fmt: skip
    told = msgspec.json.encode(report(job))
    assert b"secret" not in told
    assert b"jane" not in told
    assert await rows(admin, tenant) == before


async def test_a_migration_leaves_out_who_waits_and_a_rollback_brings_back_what_was(store, scope, tenant, admin):
    first, other = await world(store, scope)
    assert await store.migrating.heads_by_version(tenant, "travel") == {1: 6, 2: 1}
    job = await run(store, tenant, STATE_MIGRATE_KIND)
    assert (job.state, read_position(job.position)[0]) == ("done", 2)
    assert counted(report(job)) == {"heads": 7, "changed": 2, "current": 1, "waiting": 2, "failed": 1, "shared": 1}
    assert await store.migrating.heads_by_version(tenant, "travel") == {1: 4, 2: 3}
    head = (await store.checkpoints.load(scope, Load("plain", "", None, with_state=True))).checkpoint
    assert contents(head) == {"user_profile": {"seat": "aisle", "jane@example.org": 1}}
    assert (head.parent_id, head.source, head.status, head.agent) == (first.checkpoint_id, "migrate", "done", "tester")
    assert (head.state_version, head.metadata, head.step) == (2, {"note": 1}, 4)
    # Again, there is nothing left to do; what was sealed before is still there.
    assert counted(report(await run(store, tenant, STATE_MIGRATE_KIND)))["current"] == 3
    old = await store.checkpoints.load(scope, Load("plain", "", first.checkpoint_id, with_state=True))
    assert "user_pref" in contents(old.checkpoint)

    await save(store, other, "of-another", 2, state(user_profile="newer"))
    back = await run(store, tenant, STATE_ROLLBACK_KIND)
    assert counted(report(back))["changed"] == 1, "only what nobody built on"
    head = (await store.checkpoints.load(scope, Load("plain", "", None, with_state=True))).checkpoint
    assert contents(head) == {"user_pref": {"seat": "aisle", "jane@example.org": 1}}
    assert (head.state_version, head.source) == (1, "rollback")
    newer = (await store.checkpoints.load(other, Load("of-another", "", None, with_state=True))).checkpoint
    assert contents(newer) == {"user_profile": "newer"}
    log = "SELECT action FROM stateroom.audit_log WHERE tenant_id = $1 AND action LIKE 'state-schema.%'"
    actions = [row["action"] for row in await admin.fetch(log, tenant.tenant_id)]
    assert {"state-schema.register", "state-schema.migrate", "state-schema.rollback"} <= {*actions}


async def test_young_heads_are_left_alone_and_the_same_job_is_not_begun_twice(store, scope, tenant):
    await save(store, scope, "t1")
    job_id = await store.migrating.begin(tenant, STATE_MIGRATE_KIND, "travel", "tester", idle_seconds=3600)
    assert await store.migrating.begin(tenant, STATE_MIGRATE_KIND, "travel", "tester") == job_id
    while (await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    [job] = await store.migrating.jobs(tenant, "travel")
    assert counted(report(job)) == {"heads": 1, "recent": 1}
    await run(store, tenant, STATE_MIGRATE_KIND)
    back = await run(store, tenant, STATE_ROLLBACK_KIND, idle_seconds=3600)
    assert counted(report(back)) == {"heads": 1, "changed": 1}, "a migration's own save is no recent use"
    again = await run(store, tenant, STATE_MIGRATE_KIND, idle_seconds=3600)
    assert counted(report(again)) == {"heads": 1, "changed": 1}, "nor is a rollback's"
    with pytest.raises(StateSchemaNotFound):
        await store.migrating.begin(tenant, STATE_PLAN_KIND, "nobody", "tester")


async def test_a_migration_names_the_broken_heads_that_its_plan_named_also_where_it_would_leave_them(
    store, scope, tenant, admin
):
    await save(store, scope, "in-use")
    await save(store, scope, "broken-in-use", content=state(user_pref={}, age="secret"))
    await save(store, scope, "broken-waiting", content=state(user_pref={}, age="secret"), status="waiting")
    before = await rows(admin, tenant)
    planned = await run(store, tenant, STATE_PLAN_KIND, idle_seconds=3600)
    done = await run(store, tenant, STATE_MIGRATE_KIND, idle_seconds=3600)
    assert counted(report(planned)) == counted(report(done)) == {"heads": 3, "recent": 1, "failed": 2}
    assert report(planned).failures == report(done).failures
    assert await rows(admin, tenant) == before


async def test_the_input_of_a_run_is_left_to_the_conversion_at_load_and_not_held_to_required(store, scope, tenant):
    complete = Definition(up=[{"op": "remove", "path": "/old"}], json_schema={"required": ["user_profile"]})
    await store.state_schemas.put(tenant, "travel", 3, complete)
    await save(store, scope, "t1", 2, state(__start__={"user_profile": {}}), source="input")
    job = await run(store, tenant, STATE_MIGRATE_KIND)
    assert counted(report(job)) == {"heads": 1, "waiting": 1}


async def test_a_pending_write_that_comes_between_read_and_save_stops_the_save(store, scope, tenant):
    saved = await save(store, scope, "t1")
    loaded = await store.checkpoints.load(scope, Load("t1", "", None, with_state=True))
    await store.states.put_writes(
        scope, TaskWrites("t1", "", saved.checkpoint_id, "task", "", [write(0, "a", 1)], None)
    )
    from storage.migration.jobs import _save

    shown = await store.states.at(scope, WantedVersions(any_schema=2), loaded.checkpoint)
    with pytest.raises(HeadMoved):
        await store.states.save(scope, _save(shown, loaded, "migrate"))


async def test_a_job_that_races_live_saves_loses_no_update(store, scope, tenant):
    """Clients of versions 1 and 2 count upwards on the same threads while job after job migrates them."""
    threads = [f"t{number}" for number in range(4)]
    for thread_id in threads:
        await save(store, scope, thread_id, content=state(user_pref=0))
    until = time.monotonic() + RACE_SECONDS
    done = dict.fromkeys(threads, 0)

    async def client(number):
        name = {1: "user_pref", 2: "user_profile"}[number]
        wanted = WantedVersions(any_schema=number)
        while time.monotonic() < until:
            for thread_id in threads:
                loaded = await store.states.load(scope, wanted, Load(thread_id, "", None, with_state=True))
                count = contents(loaded.checkpoint)[name]
                head = Precondition(head_id=loaded.head_id)
                try:
                    await save(store, scope, thread_id, number, state(**{name: count + 1}), precondition=head)
                    done[thread_id] += 1
                except HeadMoved:
                    pass  # somebody was first: again

    async def migrate():
        changed = 0
        while time.monotonic() < until:
            for kind in (STATE_MIGRATE_KIND, STATE_ROLLBACK_KIND):
                changed += report(await run(store, tenant, kind)).changed
        return changed

    *_, changed = await asyncio.gather(client(1), client(2), client(1), migrate())
    assert changed, "nothing was raced"
    for thread_id in threads:
        loaded = await store.states.load(
            scope, WantedVersions(any_schema=2), Load(thread_id, "", None, with_state=True)
        )
        assert contents(loaded.checkpoint)["user_profile"] == done[thread_id]
        page = await store.states.history(scope, AS_SAVED, HistoryQuery(thread_id=thread_id, limit=1000))
        saves = [each for each in page.items if each.source is None]
        assert len(saves) == min(done[thread_id] + 1, len(saves))


class Seconds:
    """A clock that only moves when it is told to, or by so much at every look."""

    def __init__(self, at_a_look=0.0):
        self.now = 0.0
        self._at_a_look = at_a_look

    def __call__(self):
        self.now += self._at_a_look
        return self.now


async def slices(store, tenant, seconds, rate, count):
    """What each of the first slices of a migration at a rate looks at, and when the next one may begin."""
    migrating = Migrating(
        store.unit_of_work, store.jobs, store.audit, store.checkpoints, store.states, store.state_schemas, seconds
    )
    job_id = await migrating.begin(
        tenant, STATE_MIGRATE_KIND, "travel", "tester", heads_per_second=rate, idle_seconds=0
    )
    done = []
    for _ in range(count):
        lease = await store.jobs.claim(tenant.tenant_id, job_id)
        before = (await store.jobs.get(tenant, job_id)).done
        ended = await migrating.perform(lease)
        done.append(((await store.jobs.get(tenant, job_id)).done - before, ended.again_seconds, ended.ended))
        await store.jobs.release(lease, 0)
    return done


async def test_a_job_looks_at_no_more_heads_than_its_rate_allows(store, scope, tenant):
    for number in range(13):
        await save(store, scope, f"t{number:02}")
    # However fast it is, 3 a second are 6 in two seconds, and the rest of those it waits.
    assert await slices(store, tenant, Seconds(), 3, 3) == [(6, 2.0, False), (6, 2.0, False), (1, 0.0, True)]


async def test_a_job_waits_for_what_its_work_leaves_of_two_seconds(store, scope, tenant):
    for number in range(5):
        await save(store, scope, f"t{number}")
    # Half a second passes at each look at the clock: at the beginning, before the work and after it.
    assert (await slices(store, tenant, Seconds(0.5), 2, 1))[0] == (4, 1.0, False)


async def test_a_job_that_is_slower_than_its_rate_gives_way_after_two_seconds(store, scope, tenant):
    for number in range(45):
        await save(store, scope, f"t{number:02}")
    # A second passes at each look: there is time for one stretch of 20 heads, and none to wait for.
    assert (await slices(store, tenant, Seconds(1.0), 1000, 2))[:2] == [(20, 0.0, False), (20, 0.0, False)]


async def test_heads_that_take_too_much_are_named_and_the_rest_waits_until_the_tenant_may_again(store, scope):
    tenant = TenantScope(scope.tenant_id)
    heavy = [{"op": "copy", "from": "/list", "to": f"/copies/{number}"} for number in range(15)]
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    await store.state_schemas.put(tenant, "travel", 2, Definition(up=heavy))
    for number in range(KILLS_MAX + 1):
        await save(store, scope, f"t{number}", content=state(list=[[]] * 50_000))
    job_id = await store.migrating.begin(tenant, STATE_MIGRATE_KIND, "travel", "tester", idle_seconds=0)
    await store.runner.run_due()
    [job] = await store.migrating.jobs(tenant, "travel")
    assert (job.job_id, job.state) == (job_id, "running")
    assert counted(report(job)) == {"heads": KILLS_MAX + 1, "failed": KILLS_MAX, "moved": 1}
    [failure] = report(job).failures
    assert "more time or memory" in failure.detail
