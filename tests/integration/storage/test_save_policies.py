"""Save policies: whoever forgets to name the head is refused, at once, in every process, and nobody else is."""

import asyncio
from uuid import uuid4

import pytest

from storage.control.features import COMPACTION_POLICIES, SAVE_POLICIES
from storage.errors import FeatureOff, HeadMoved, IntegrityFailure, PreconditionRequired, SavePoliciesExceeded
from storage.model import Compaction, Parent, Precondition, SaveRule
from storage.schemas.save_policies import AGENT_SAVE_POLICIES_MAX, SavePolicy, TenantSavePolicies
from storage.scope import Scope, TenantScope
from storage.statements.threads.checkpoints import OPEN
from storage.statements.threads.threads import LOCK
from tests.support.costs import CountedGateway
from tests.support.features import switch_on
from tests.support.interleaving import Steered, blocked
from tests.support.states import contents, load, patch, put, save, state, write
from tests.support.transfers import deployment, exported_tenant, imported

ID_1 = "1f0c0000-0000-6000-8000-000000000001"


@pytest.fixture
def scope():
    return Scope(uuid4(), "user-1")


@pytest.fixture
async def tenant(store, scope):
    await switch_on(store, SAVE_POLICIES)
    return TenantScope(scope.tenant_id)


@pytest.fixture
def gateway(store):
    return CountedGateway(store)


async def strict(store, tenant, agent=None, *, said=True):
    return await store.save_policies.put(tenant, agent, SaveRule(strict=said), "tester")


async def on_record(store, tenant):
    """What the audit log says of policies."""
    page = await store.audit.page(tenant, "tester", limit=1000)
    return [each.event for each in page.items if each.event.action == "save-policy.set"]


async def test_a_save_that_names_no_head_is_refused_and_one_that_does_is_not(store, scope, tenant):
    first = await save(store, scope)
    await strict(store, tenant)
    with pytest.raises(PreconditionRequired, match=r"save policy of the tenant.*If-Match.*strict=True"):
        await save(store, scope)
    second = await save(store, scope, precondition=Precondition(first.checkpoint_id))
    third = await save(store, scope, parent=Parent(second.checkpoint_id))
    with pytest.raises(HeadMoved) as moved:
        await save(store, scope, parent=Parent(second.checkpoint_id))
    assert moved.value.head_id == third.checkpoint_id
    with pytest.raises(HeadMoved):
        await save(store, scope, precondition=Precondition(first.checkpoint_id))
    with pytest.raises(HeadMoved):
        await save(store, scope, parent=Parent(None))
    assert (await load(store, scope)).checkpoint_id == third.checkpoint_id


async def test_what_loses_nothing_needs_no_head(store, scope, tenant):
    await strict(store, tenant)
    first = await save(store, scope)
    await save(store, scope, namespace="child")
    await put(store, scope, first.checkpoint_id, write(0, "a", 1))
    second = await save(store, scope, precondition=Precondition(first.checkpoint_id))
    forked = await save(store, scope, parent=Parent(first.checkpoint_id), fork=True)
    again = await save(
        store, scope, precondition=Precondition(max(second.checkpoint_id, forked.checkpoint_id)), checkpoint_id=None
    )
    repeated = await save(store, scope, checkpoint_id=again.checkpoint_id)
    assert repeated.created is False


async def test_a_save_that_calls_itself_a_fork_and_names_no_parent_is_refused(store, scope, tenant, gateway):
    """Its parent is the head, whichever that is."""
    await store.threads.put(scope, "asks", strict=True)
    for thread_id in ("t1", "asks"):
        first = await save(gateway, scope, thread_id, precondition=Precondition(absent=True))
        await strict(store, tenant, said=True if thread_id == "t1" else None)
        for named in (None, Precondition(exists=True)):
            with pytest.raises(PreconditionRequired):
                await save(gateway, scope, thread_id, fork=True, precondition=named)
        assert (await load(store, scope, thread_id)).checkpoint_id == first.checkpoint_id


async def test_a_repeat_of_what_is_stored_is_no_new_save(store, scope, tenant):
    saved = await save(store, scope, checkpoint_id=ID_1)
    await strict(store, tenant)
    assert (await save(store, scope, checkpoint_id=ID_1)).checkpoint_id == saved.checkpoint_id


async def test_it_holds_at_once_for_a_process_that_remembers_the_thread_and_ends_as_fast(store, scope, tenant, gateway):
    await save(gateway, scope)
    await save(gateway, scope)
    await strict(store, tenant)
    for named in (None, Precondition(exists=True)):
        with pytest.raises(PreconditionRequired):
            await save(gateway, scope, precondition=named)
    await strict(store, tenant, said=None)
    await save(gateway, scope)
    await save(gateway, scope)
    await strict(store, tenant)
    with pytest.raises(PreconditionRequired):
        await save(gateway, scope, precondition=Precondition(exists=True))


@pytest.mark.parametrize("said", [None, True, False])
async def test_a_policy_costs_a_save_no_round_trip(store, scope, tenant, gateway, said):
    """The first one reads the policies with the head; the next one has the database compare them."""
    await strict(store, tenant, said=said)
    await strict(store, tenant, "b", said=True)
    saved = await save(gateway, scope, agent="a")
    assert gateway.counted() == 4
    for _ in range(2):
        named = {} if not said else {"precondition": Precondition(saved.checkpoint_id)}
        saved = await save(gateway, scope, agent="a", **named)
        assert gateway.counted() == 0
    saved = await save(gateway, scope, agent="a", parent=Parent(saved.checkpoint_id))
    assert gateway.counted() == 0


async def test_an_agents_policy_concerns_its_threads_and_its_saves_only(store, scope, tenant, gateway):
    for thread_id, agent in (("careful", "careful"), ("other", "other"), ("nobody's", None)):
        await save(gateway, scope, thread_id, agent=agent)
    await strict(store, tenant, "careful")
    for thread_id, agent in (("careful", "careful"), ("careful", None), ("careful", "other"), ("other", "careful")):
        with pytest.raises(PreconditionRequired, match="agent 'careful'"):
            await save(gateway, scope, thread_id, agent=agent)
    await save(gateway, scope, "other", agent="other")
    await save(gateway, scope, "nobody's")


async def test_an_agent_can_be_excepted(store, scope, tenant, gateway):
    await strict(store, tenant)
    await strict(store, tenant, "logger", said=False)
    for _ in range(3):
        await save(gateway, scope, agent="logger")
    with pytest.raises(PreconditionRequired, match="the tenant"):
        await save(gateway, scope, agent="other")
    await strict(store, tenant, "logger", said=None)
    with pytest.raises(PreconditionRequired, match="the tenant"):
        await save(gateway, scope, agent="logger")


async def test_what_is_remembered_of_an_exception_holds_for_no_other_agent(store, scope, tenant, gateway):
    await strict(store, tenant)
    await strict(store, tenant, "logger", said=False)
    await save(gateway, scope, agent="logger")
    await store.threads.put(scope, "t1", agent="other", agent_given=True)
    with pytest.raises(PreconditionRequired, match="the tenant"):
        await save(gateway, scope, agent="logger")


async def test_a_neighbour_is_not_concerned(store, scope, tenant):
    neighbour = Scope(uuid4(), scope.subject_id)
    await save(store, neighbour)
    await strict(store, tenant)
    await strict(store, tenant, "a")
    await save(store, neighbour, agent="a")
    assert (await store.save_policies.get(TenantScope(neighbour.tenant_id))).agents == {}


@pytest.mark.parametrize("how", ["blind", "precondition", "parent"])
async def test_of_two_writers_at_once_exactly_one_wins(store, scope, tenant, how):
    first = await save(store, scope)
    await strict(store, tenant)
    named = {
        "blind": {},
        "precondition": {"precondition": Precondition(first.checkpoint_id)},
        "parent": {"parent": Parent(first.checkpoint_id)},
    }[how]
    processes = [CountedGateway(store) for _ in range(2)]
    done = await asyncio.gather(
        save(processes[0], scope, content=state(who="first"), precondition=Precondition(first.checkpoint_id)),
        save(processes[1], scope, content=state(who="second"), **named),
        return_exceptions=True,
    )
    won = [each for each in done if not isinstance(each, Exception)]
    assert len(won) == 1
    assert {type(each) for each in done} - {HeadMoved, PreconditionRequired} == {type(won[0])}
    assert (await load(store, scope)).checkpoint_id == won[0].checkpoint_id


async def test_two_first_saves_at_once_do_not_overwrite_each_other(store, scope, tenant):
    await strict(store, tenant)
    done = await asyncio.gather(
        *(save(CountedGateway(store), scope, content=state(who=who)) for who in "ab"), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in done) == ["PreconditionRequired", "Saved"]
    assert contents(await load(store, scope))["who"] in "ab"


async def test_a_save_that_waits_while_the_thread_gets_a_strict_agent_is_refused(store, scope, tenant, admin):
    """The policies that count are those of the agent that the thread has, not of the one it had."""
    first = await save(store, scope, agent="careless")
    await strict(store, tenant, "careful")
    async with admin.transaction():
        await admin.execute(
            "UPDATE stateroom.threads SET agent = 'careful', activity = activity + 1 WHERE tenant_id = $1",
            scope.tenant_id,
        )
        waiting = asyncio.create_task(save(CountedGateway(store), scope, agent="careless"))
        await blocked(admin)
    with pytest.raises(PreconditionRequired, match="agent 'careful'"):
        await waiting
    assert (await load(store, scope)).checkpoint_id == first.checkpoint_id


async def test_a_save_whose_thread_never_rests_is_not_refused_for_what_other_agents_are_asked(
    store, scope, tenant, admin
):
    """Each time that it has waited for the thread, somebody else has written to it meanwhile."""
    await save(store, scope, agent="busy")
    await strict(store, tenant, "careful")
    asked, written = asyncio.Semaphore(0), asyncio.Semaphore(0)
    locked = False

    async def before(statement):
        nonlocal locked
        if statement in {OPEN.text, LOCK.text} and not locked:
            asked.release()
            await written.acquire()
        locked = statement == LOCK.text

    waiting = asyncio.create_task(save(Steered(store, before=before), scope, agent="busy"))
    rounds = 0
    while True:
        arrived = asyncio.create_task(asked.acquire())
        await asyncio.wait({arrived, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            arrived.cancel()
            break
        rounds += 1
        async with admin.transaction():
            await admin.execute(
                "UPDATE stateroom.threads SET activity = activity + 1 WHERE tenant_id = $1", scope.tenant_id
            )
            written.release()
            await blocked(admin)
    assert (await waiting).created
    assert rounds == 2, "it had the lock first when it began again"


async def test_a_compaction_names_its_head_and_a_patch_needs_one_anyway(store, scope, tenant):
    first = await save(store, scope, content=state(messages=[1, 2, 3]))
    await strict(store, tenant)
    compaction = {"thread_id": "t1", "namespace": "", "channel": "messages", "keep_last": 1, "summary": (b"\x00",)}
    for named in (None, Precondition(exists=True)):
        with pytest.raises(PreconditionRequired, match="the tenant"):
            await store.compacting.compact(scope, Compaction(**compaction, precondition=named))
    await store.compacting.compact(scope, Compaction(**compaction, precondition=Precondition(first.checkpoint_id)))
    assert contents(await load(store, scope)) == {"messages": [0, 3]}
    with pytest.raises(PreconditionRequired):
        await save(store, scope, content=patch(put={"a": 1}))


async def test_what_is_said_is_told_with_its_time_and_goes_on_the_record(store, scope, tenant):
    assert (await store.save_policies.get(tenant)).tenant.updated_at is None
    said = await strict(store, tenant)
    assert (said.tenant.rule.strict, said.effective(None).strict, said.effective("a").strict) == (True, True, True)
    again = await strict(store, tenant)
    assert again.tenant.updated_at == said.tenant.updated_at
    said = await strict(store, tenant, "a", said=False)
    assert (said.effective(None).strict, said.effective("a").strict, list(said.agents)) == (True, False, ["a"])
    said = await strict(store, tenant, said=None)
    assert (said.tenant, said.effective(None).strict) == (SavePolicy(), False)
    events = [(each.actor, each.target, each.detail) for each in await on_record(store, tenant)]
    whole = f"tenant:{scope.tenant_id}"
    assert events == [
        ("tester", whole, {"before": None, "after": True}),
        ("tester", "agent:a", {"before": None, "after": False}),
        ("tester", whole, {"before": True, "after": None}),
    ]


async def test_a_tenant_has_so_many_agents_with_a_policy(store, scope, tenant, admin):
    await admin.execute(
        "INSERT INTO stateroom.save_policies (tenant_id, agent, strict, updated_at, mac)"
        " SELECT $1, n::text, true, now(), decode(repeat('00', 32), 'hex') FROM generate_series(2, $2::int) n",
        scope.tenant_id,
        AGENT_SAVE_POLICIES_MAX,
    )
    await strict(store, tenant, "a")
    with pytest.raises(SavePoliciesExceeded):
        await strict(store, tenant, "b")
    await strict(store, tenant, "a", said=None)
    await strict(store, tenant, "b")
    await strict(store, tenant)


async def test_what_is_taken_back_leaves_nothing_behind(store, scope, tenant, admin):
    for number in range(5):
        await strict(store, tenant, f"agent-{number}", said=number % 2 == 0)
        await strict(store, tenant, f"agent-{number}", said=None)
    await strict(store, tenant, said=None)
    assert (
        await admin.fetchval("SELECT count(*) FROM stateroom.save_policies WHERE tenant_id = $1", scope.tenant_id) == 0
    )
    assert await store.save_policies.get(tenant) == TenantSavePolicies()


async def test_none_is_set_while_an_older_build_may_run(own_store, scope):
    tenant = TenantScope(scope.tenant_id)
    with pytest.raises(FeatureOff, match="finish-upgrade"):
        await strict(own_store, tenant)
    assert (await own_store.save_policies.get(tenant)).tenant.updated_at is None


async def test_policies_move_with_their_tenant_and_what_was_said_there_stays(postgres, migrated_template, scope):
    async with deployment(postgres, migrated_template) as here, deployment(postgres, migrated_template) as there:
        tenant = TenantScope(scope.tenant_id)
        await switch_on(here, SAVE_POLICIES)
        await save(here, scope, agent="a")
        await strict(here, tenant)
        await strict(here, tenant, "a")
        await strict(here, tenant, "b", said=False)
        await strict(here, tenant, "c", said=None)
        await switch_on(here, COMPACTION_POLICIES)
        lists = SaveRule(None, 500, 1_000_000)
        await here.save_policies.put(tenant, "d", lists)
        file = await exported_tenant(here, there, scope.tenant_id, scope.tenant_id)
        with pytest.raises(FeatureOff):
            await imported(there, scope.tenant_id, file)
        await switch_on(there, SAVE_POLICIES)
        await switch_on(there, COMPACTION_POLICIES)
        await strict(there, tenant, said=False)
        assert (await imported(there, scope.tenant_id, file)).threads == 1
        said = await there.save_policies.get(tenant)
        assert said.tenant.rule.strict is False
        assert {agent: each.rule.strict for agent, each in said.agents.items()} == {"a": True, "b": False, "d": None}
        assert said.agents["d"].rule == lists
        with pytest.raises(PreconditionRequired):
            await save(there, scope, agent="a")


# --- written by somebody else ----------------------------------------------------------------------------------------

TURNED_ROUND = "strict = false"
FORGED = "mac = decode(repeat('00', 32), 'hex')"


async def edit(admin, scope, agent, change):
    done = await admin.execute(
        f"UPDATE stateroom.save_policies SET {change} WHERE tenant_id = $1 AND agent = $2",  # noqa: S608
        scope.tenant_id,
        agent,
    )
    assert done == "UPDATE 1"


@pytest.mark.parametrize("change", [TURNED_ROUND, FORGED])
@pytest.mark.parametrize("agent", [None, "a"])
async def test_a_policy_that_no_gateway_wrote_lets_nothing_through_blindly_and_stops_nobody_else(
    store, scope, tenant, admin, gateway, agent, change
):
    first = await save(gateway, scope, agent="a")
    other = await save(gateway, scope, "other", agent="b")
    await strict(store, tenant, agent)
    await edit(admin, scope, agent or "", change)
    named = "the tenant" if agent is None else "agent 'a'"
    with pytest.raises(IntegrityFailure, match=f"save policy of {named} was written or edited"):
        await save(gateway, scope, agent="a")
    assert (await load(store, scope)).checkpoint_id == first.checkpoint_id
    await save(gateway, scope, agent="a", precondition=Precondition(first.checkpoint_id))
    await save(gateway, scope, "new", agent="a")
    blind = {} if agent else {"precondition": Precondition(other.checkpoint_id)}
    await save(gateway, scope, "other", agent="b", **blind)
    said = await store.save_policies.get(tenant)
    assert (said.damaged, said.effective("a").strict) == ({agent or ""}, None)
    said = await strict(store, tenant, agent, said=None)
    assert (said.damaged, said.effective("a").strict) == (frozenset(), False)
    await save(gateway, scope, agent="a")
    [event] = [each for each in await on_record(store, tenant) if each.detail["before"] == "damaged"]
    assert event.detail == {"before": "damaged", "after": None}


async def test_a_remembered_policy_that_somebody_edited_is_looked_at_again(store, scope, tenant, admin, gateway):
    await strict(store, tenant, said=False)
    await save(gateway, scope)
    await save(gateway, scope)
    await edit(admin, scope, "", "strict = true")
    with pytest.raises(IntegrityFailure, match="save policy of the tenant"):
        await save(gateway, scope)


async def test_verifying_a_tenant_names_it_and_no_export_leaves_without_it(store, scope, tenant, admin):
    await save(store, scope)
    await strict(store, tenant, "a")
    await edit(admin, scope, "a", TURNED_ROUND)
    job_id = await store.verifying.begin_tenant(tenant, "tester")
    while (job := await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    assert '"control-row":1' in (job.note or "")
    assert "save-policy 'a'" in (job.note or "")
    with pytest.raises(IntegrityFailure, match="say them again"):
        await exported_tenant(store, store, scope.tenant_id, scope.tenant_id)


async def test_another_tenants_policy_does_not_fit(store, scope, tenant, admin):
    """A row that was copied from another tenant is as damaged as any."""
    other = Scope(uuid4(), "user-1")
    await save(store, other)
    await strict(store, tenant)
    await admin.execute(
        "INSERT INTO stateroom.save_policies SELECT $2, agent, strict, updated_at, mac, mac_format"
        " FROM stateroom.save_policies WHERE tenant_id = $1",
        scope.tenant_id,
        other.tenant_id,
    )
    with pytest.raises(IntegrityFailure, match="save policy of the tenant"):
        await save(store, other)


async def test_a_shredded_tenant_has_none(store, scope, tenant, admin):
    await save(store, scope)
    await strict(store, tenant, "a")
    founded = "INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES ($1, 'x', now())"
    await admin.execute(founded, scope.tenant_id)
    begun = await store.shred.tenant(scope.tenant_id, str(scope.tenant_id), "tester")
    while (await store.jobs.get(tenant, begun.job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    left = "SELECT count(*) FROM stateroom.save_policies WHERE tenant_id = $1"
    assert await admin.fetchval(left, scope.tenant_id) == 0
