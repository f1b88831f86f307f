"""What is done to threads, subjects and whole deployments, as it shows in their claims and effects."""

import asyncio
from copy import copy
from datetime import UTC, datetime

import msgpack
import msgspec
import pytest

from crypto import KeyDestroyed, peek_header
from storage.approvals.model import ApprovalQuery, Decision, Verdict, Voter
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import DECISIONS, SEGMENTS
from storage.errors import (
    ClaimNotFound,
    ClientShareRequired,
    EffectMismatch,
    EffectRepeats,
    EffectUnknown,
    FeatureOff,
    LegalHold,
    ThreadClaimed,
)
from storage.migration.jobs import STATE_MIGRATE_KIND, STATE_PLAN_KIND, STATE_ROLLBACK_KIND, read_position
from storage.model import Asker, Compaction, NewAction, NewApproval, Save
from storage.retention.planner import Policy
from storage.schemas.registry import Definition
from storage.scope import Scope, TenantScope
from storage.statements.threads import checkpoints as checkpoints_sql
from storage.thread_ledgers.resealing import BATCH_ROWS
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import fill, fsck, opened
from tests.support.features import switch_on
from tests.support.ledgers import ACTOR, SHARE, TABLES, claim, claim_over, finish, resolve, rows, start
from tests.support.states import put, save, state, write
from tests.support.transfers import deployment, exported, exported_tenant, imported

SEALED = [("effects", part) for part in ("asked", "args", "outcome", "result")] + [("claims", "note")]


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, DECISIONS)
        await switch_on(made, SEGMENTS)
        yield made


@pytest.fixture
async def other(database, root_key):
    """Another gateway, with caches of its own."""
    async with opened(database, root_key) as made:
        yield made


async def kept(admin, scope):
    return {table: await rows(admin, scope, table) for table in TABLES}


async def ledger(store, scope, thread_id="t1", share=None):
    """A claim with a note, and an effect of every status."""
    held = await claim(store, scope, thread_id=thread_id, run_id="run-1", note="half way", share=share)
    ends = {"done": {"result": {"id": 7}}, "failed": {"error": "Refused"}, "unknown": {"error": "Late"}}
    for status, parts in ends.items():
        begun = await start(store, scope, status, thread_id=thread_id, args=status, share=share, run_id="run-1")
        await finish(store, scope, begun, status, share=share, **parts)
    for mode in ("once", "idempotent"):
        name = f"started-{mode}"
        await start(store, scope, name, thread_id=thread_id, args=name, mode=mode, share=share, run_id="run-1")
    return held


async def told(store, scope, thread_id="t1", share=None):
    """All that is said of claims and effects, with what is sealed in each."""
    listed = (await store.effects.list(scope, thread_id, share=share)).items
    effects = [await store.effects.get(scope, thread_id, each.namespace, each.name, share=share) for each in listed]
    return await store.claims.get(scope, thread_id, share=share), effects


async def clean(store, scope):
    assert (await store.verification.subject(scope)).findings == []


async def worked(store, scope, job_id):
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(TenantScope(scope.tenant_id), job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    assert job.error is None
    return job


# --- verbs -----------------------------------------------------------------------------------------------------------


async def _archived(store, scope):
    before = await told(store, scope)
    await store.archives.archive(scope, "t1")
    assert await told(store, scope) == before
    await clean(store, scope)
    assert (await store.threads.get(scope, "t1")).tier == "archive"
    assert not (await start(store, scope, "done", args="done")).must_run  # it is brought back for who goes on
    assert (await store.threads.get(scope, "t1")).tier == "hot"


async def _segmented(store, scope):
    await store.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="test")


async def _pruned(store, scope):
    await store.threads.prune(scope, ["t1"], "keep_latest")


async def _runs_deleted(store, scope):
    await store.threads.delete_runs(scope, ["run-1"])


async def _thinned(store, scope):
    await store.pruning.thin(scope, "t1", ThinningRule(keep_last=1))


async def _compacted(store, scope):
    await store.compacting.compact(
        scope, Compaction(thread_id="t1", channel="messages", keep_last=1, summary=(msgpack.packb("so far"),))
    )


async def _written(store, scope):
    saved = await save(store, scope)
    await put(store, scope, saved.checkpoint_id, write(0, "a", 1))


async def _copied(store, scope):
    await store.threads.copy(scope, "t1", "copy")
    await store.threads.delete(scope, "copy")


async def _swept(store, scope):
    await store.sweep.tenant(scope.tenant_id, now=True)
    assert (await fsck(store, scope)).faults == {}


async def _retained(store, scope):
    await store.retaining.begin(TenantScope(scope.tenant_id))
    await store.retaining.run_due()


VERBS = [
    _archived, _segmented, _pruned, _runs_deleted, _thinned, _compacted, _written, _copied, _swept, _retained,
]  # fmt: skip


APPROVALS = ("approvals", "approval_actions", "approval_votes", "ledger_seals")


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__[1:])
async def test_a_verb_leaves_what_was_asked_and_decided_as_it_is(store, scope, admin, verb):
    await fill(store, scope)
    await save(store, scope, content=state(messages=["a", "b", "c"]), run_id="run-1")
    await ledger(store, scope)
    ann = Voter("key-ann", "ann", datetime(2020, 1, 1, tzinfo=UTC))
    for number, verdict in enumerate(("approve", "reject", None)):
        asked = NewApproval(f"q-{number}", (NewAction("pay", msgpack.packb({"amount": number})),), message="Pay?")
        await save(
            store, scope, content=state(x=[1]), namespace="asking", approvals=(asked,), asker=Asker("agent", "agent")
        )
        [approval] = (await store.approvals.list(scope, ApprovalQuery(status="pending"))).approvals
        content = await store.approvals.open(scope, approval.approval_id, ann)
        if verdict is not None:
            decision = Decision(approval.approval_id, content.action_hash or "", (Verdict(verdict),))
            await store.approvals.decide(scope, decision, ann)
    before = {table: await rows(admin, scope, table) for table in APPROVALS}
    assert sorted(each["status"] for each in before["approvals"]) == ["approved", "pending", "rejected"]
    await verb(store, scope)
    assert {table: await rows(admin, scope, table) for table in APPROVALS} == before
    content = await store.approvals.open(scope, approval.approval_id, ann)
    assert (content.message, content.approval.status) == ("Pay?", "pending")
    await clean(store, scope)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__[1:])
async def test_a_verb_leaves_ledgers_as_they_are(store, scope, admin, verb):
    await fill(store, scope)
    await save(store, scope, content=state(messages=["a", "b", "c"]), run_id="run-1")
    await ledger(store, scope)
    await claim(store, scope, run_id="run-1", note="half way", lease_seconds=300)
    before, said = await kept(admin, scope), await told(store, scope)
    await verb(store, scope)
    assert await kept(admin, scope) == before
    after = await told(store, scope)
    assert after[1] == said[1]
    assert (after[0].fence, after[0].status, after[0].note) == (said[0].fence, "live", "half way")
    assert not (await start(store, scope, "done", args="done", run_id="run-2")).must_run
    with pytest.raises(EffectUnknown):
        await start(store, scope, "unknown", args="unknown")
    await clean(store, scope)


async def travels(store, scope, *thread_ids):
    """Threads whose state is at the version before the newest."""
    tenant = TenantScope(scope.tenant_id)
    rename = {"op": "rename", "from": "/before", "to": "/after"}
    await store.state_schemas.put(tenant, "travel", 1, Definition())
    down = {"op": "rename", "from": "/after", "to": "/before"}
    await store.state_schemas.put(tenant, "travel", 2, Definition(up=[rename], down=[down]))
    for thread_id in thread_ids:
        saved = Save(thread_id=thread_id, content=state(before=1), state_schema="travel", state_version=1)
        await store.states.save(scope, saved)


async def migrated(store, scope, kind):
    """Do a job on the state of a tenant to its end; returns what it found and did."""
    tenant = TenantScope(scope.tenant_id)
    job_id = await store.migrating.begin(tenant, kind, "travel", "tester", idle_seconds=0, heads_per_second=1000)
    await worked(store, scope, job_id)
    job = next(each for each in await store.migrating.jobs(tenant, "travel") if each.job_id == job_id)
    assert job.state == "done"
    found = msgspec.to_builtins(read_position(job.position)[1])
    return {name: count for name, count in found.items() if isinstance(count, int) and count}


async def test_a_migration_of_state_leaves_ledgers_as_they_are(store, scope, admin):
    await travels(store, scope, "t1")
    await ledger(store, scope)
    await claim_over(admin, scope)
    before = await kept(admin, scope)
    assert await migrated(store, scope, STATE_MIGRATE_KIND) == {"heads": 1, "changed": 1}
    assert (await store.claims.get(scope, "t1")).status == "expired"
    assert await kept(admin, scope) == before
    assert not (await start(store, scope, "done", args="done")).must_run
    await clean(store, scope)


CLAIMED = ["live", "live-exclusive", "silent-exclusive", "released-exclusive"]


async def claims_of_each_kind(store, scope, admin):
    """One thread for each of ``CLAIMED``, with its claim."""
    held = {}
    for name in CLAIMED:
        lease = {"lease_seconds": 300} if name.startswith("live") else {}
        held[name] = await claim(store, scope, thread_id=name, exclusive=name.endswith("exclusive"), **lease)
    await claim_over(admin, scope, thread_id="silent-exclusive")
    await store.claims.release(scope, "released-exclusive", held["released-exclusive"].fence)
    return held


async def test_jobs_on_state_pass_over_threads_that_somebody_claims_and_over_no_other_that_asks_for_claims(
    store, scope, admin
):
    await travels(store, scope, *CLAIMED)
    held = await claims_of_each_kind(store, scope, admin)
    assert await migrated(store, scope, STATE_PLAN_KIND) == {"heads": 4, "changed": 2, "recent": 2}
    assert await migrated(store, scope, STATE_MIGRATE_KIND) == {"heads": 4, "changed": 2, "recent": 2}
    for name in CLAIMED:
        shown = await store.claims.get(scope, name)
        assert shown.status == {"silent": "expired"}.get(name.partition("-")[0], name.partition("-")[0])
        if name.startswith("live"):
            await store.claims.release(scope, name, held[name].fence)
    assert await migrated(store, scope, STATE_MIGRATE_KIND) == {"heads": 4, "changed": 2, "current": 2}
    await claim(store, scope, thread_id="live", lease_seconds=300)
    assert await migrated(store, scope, STATE_ROLLBACK_KIND) == {"heads": 4, "changed": 3, "recent": 1}
    with pytest.raises(ThreadClaimed):
        await save(store, scope, "live-exclusive")


async def test_a_claim_that_comes_between_read_and_save_keeps_a_job_on_state_off(store, scope, admin, monkeypatch):
    await travels(store, scope, "t1")
    adopted, claims = store.states.adopted, []

    async def claimed_then(*of):
        if not claims:
            claims.append(await claim(store, scope))
        return await adopted(*of)

    monkeypatch.setattr(store.states, "adopted", claimed_then)
    assert await migrated(store, scope, STATE_MIGRATE_KIND) == {"heads": 1, "recent": 1}
    assert await store.migrating.heads_by_version(TenantScope(scope.tenant_id), "travel") == {1: 1}
    await save(store, scope, fence=claims[0].fence)


# --- keys ------------------------------------------------------------------------------------------------------------


async def versions(admin, scope):
    found = {}
    for table, column in SEALED:
        stored = [row[column] for row in await rows(admin, scope, table)]
        found[table, column] = {peek_header(each).key_version for each in stored if each is not None}
    return found


async def key_states(admin, scope):
    return await admin.fetchval(
        "SELECT array_agg(state ORDER BY key_version) FROM stateroom.subject_keys"
        " WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data'",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip


def unsealed(stored):
    sealed = {column for _, column in SEALED}
    return {table: [{n: row[n] for n in row if n not in sealed} for row in each] for table, each in stored.items()}


async def rotated(store, scope):
    return await worked(store, scope, (await store.rotation.rotate_subject(scope, ACTOR)).job_id)


@pytest.mark.parametrize("archived", [False, True])
async def test_ledgers_are_sealed_again_and_say_the_same(store, scope, admin, archived):
    threads = [f"t{number}" for number in range(BATCH_ROWS + 2)]
    for thread_id in threads:
        await save(store, scope, thread_id)
        await claim(store, scope, thread_id=thread_id, note=f"note of {thread_id}")
        for number in range(3):
            begun = await start(store, scope, f"call-{number}", thread_id=thread_id, args=number)
            await finish(store, scope, begun, result={"id": number}, result_digest=b"d" * 32)
    if archived:
        await store.archives.archive(scope, threads[1])
    before, said = await kept(admin, scope), [await told(store, scope, each) for each in threads]
    job = await rotated(store, scope)
    assert (job.state, job.note is None) == ("done", not archived)
    assert await versions(admin, scope) == {each: {2} for each in SEALED}
    # An archive has sealed rows of its own, which are sealed again when that is asked for.
    assert await key_states(admin, scope) == ["decrypt_only" if archived else "destroyed", "active"]
    assert unsealed(await kept(admin, scope)) == unsealed(before)
    assert [await told(store, scope, each) for each in threads] == said
    await clean(store, scope)


async def test_ledgers_under_a_share_keep_the_older_version(store, scope, admin):
    await store.checkpoints.save(scope, Save(thread_id="t1", content=state(note="x")), share=SHARE)
    await ledger(store, scope, share=SHARE)
    said = await told(store, scope, share=SHARE)
    before = await kept(admin, scope)
    job = await rotated(store, scope)
    assert job.state == "done"
    assert "under a client-held share" in job.note
    assert await key_states(admin, scope) == ["decrypt_only", "active"]
    assert await kept(admin, scope) == before
    assert await told(store, scope, share=SHARE) == said
    with pytest.raises(ClientShareRequired):
        await start(store, scope, "done", args="done")
    await clean(store, scope)


async def test_a_shred_leaves_nothing_of_ledgers_and_warm_gateways_refuse(store, other, scope, admin):
    neighbour = Scope(scope.tenant_id, "neighbour")
    for each in (scope, neighbour):
        await save(store, each, "gone")
        await finish(store, each, await start(store, each, thread_id="gone"))
        await store.threads.delete(each, "gone")
        await save(store, each)
        held = await ledger(store, each)
        for gateway in (store, other):
            await told(gateway, each)
    done = await store.effects.get(scope, "t1", "", "done")
    unknown = await store.effects.get(scope, "t1", "", "unknown")
    begun = await store.shred.subject(scope, scope.subject_id, ACTOR)
    for gateway in (store, other):
        for refused in (
            start(gateway, scope), start(gateway, scope, "done", args="done"), finish(gateway, scope, done),
            resolve(gateway, scope, unknown, happened=True), gateway.effects.get(scope, "t1", "", "done"),
            gateway.effects.list(scope, "t1"), claim(gateway, scope), gateway.claims.get(scope, "t1"),
            gateway.claims.renew(scope, "t1", held.fence), gateway.claims.release(scope, "t1", held.fence),
        ):  # fmt: skip
            with pytest.raises(KeyDestroyed):
                await refused
        await told(gateway, neighbour)
    await worked(store, scope, begun.job_id)
    for table in (*TABLES, "effect_tombstones"):
        assert await rows(admin, scope, table) == []
        assert await rows(admin, neighbour, table) != []
    await clean(store, neighbour)


# --- copies, moves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [None, SHARE], ids=["plain", "under a share"])
async def test_a_copy_has_what_was_done_and_what_nobody_knows_as_history(store, scope, share):
    await store.checkpoints.save(scope, Save(thread_id="t1", content=state(note="x")), share=share)
    await ledger(store, scope, share=share)
    before = {each.name: each for each in (await told(store, scope, share=share))[1]}
    for source, target in (("t1", "copy"), ("copy", "copy of it")):
        await store.threads.copy(scope, source, target, share=share)
        listed = (await store.effects.list(scope, target, share=share)).items
        assert {each.name: each.status for each in listed} == {
            "done": "done", "unknown": "unknown", "started-once": "unknown", "started-idempotent": "unknown",
        }  # fmt: skip
        for each in listed:
            found = await store.effects.get(scope, target, "", each.name, share=share)
            known = before[each.name]
            assert found.is_copy
            assert (found.provider_key, found.args, found.result) == (known.provider_key, known.args, known.result)
        with pytest.raises(ClaimNotFound):
            await store.claims.get(scope, target, share=share)
        again = await start(store, scope, "done", thread_id=target, args="done", share=share)
        assert not again.must_run
        for name in ("unknown", "started-once"):
            with pytest.raises(EffectUnknown):
                await start(store, scope, name, thread_id=target, args=name, share=share)
    assert (await start(store, scope, "failed", thread_id="copy", args="failed", share=share)).must_run
    found = {each.name: each.status for each in (await told(store, scope, share=share))[1]}
    assert found == {name: each.status for name, each in before.items()}  # the source is as it was
    await clean(store, scope)


@pytest.mark.parametrize("share", [None, SHARE], ids=["plain", "under a share"])
@pytest.mark.parametrize("take", [exported, exported_tenant], ids=["a thread", "its tenant"])
async def test_effects_move_to_another_deployment_as_history_and_claims_stay(
    store, scope, admin, postgres, migrated_template, take, share
):
    await store.checkpoints.save(scope, Save(thread_id="t1", content=state(note="x")), share=share)
    await ledger(store, scope, share=share)
    await store.claims.set_required(scope, "t1", required=True, actor=ACTOR)
    stays = await kept(admin, scope)
    before = {each.name: each for each in (await told(store, scope, share=share))[1]}
    async with deployment(postgres, migrated_template) as there, deployment(postgres, migrated_template) as third:
        for source, target in ((store, there), (there, third)):
            await switch_on(target, DECISIONS)
            at = scope if take is exported else scope.tenant_id
            file = await take(source, target, at, scope.tenant_id, share=share)
            report = await imported(target, scope.tenant_id, file, share=share)
            assert (report.threads, report.verified) == (1, 1)
            again = await imported(target, scope.tenant_id, file, share=share)
            assert [each.reason for each in again.passed] == ["there"]
            listed = (await target.effects.list(scope, "t1", share=share)).items
            assert {each.name: each.status for each in listed} == {
                "done": "done", "unknown": "unknown", "started-once": "unknown", "started-idempotent": "unknown",
            }  # fmt: skip
            for each in listed:
                found = await target.effects.get(scope, "t1", "", each.name, share=share)
                known = before[each.name]
                assert found.is_copy
                for name in (
                    "provider_key", "args", "result", "result_digest", "tool", "mode", "attempt", "execution", "error",
                    "anchor_checkpoint_id", "run_id", "started_at", "started_by",
                ):  # fmt: skip
                    assert getattr(found, name) == getattr(known, name), name
            with pytest.raises(ClaimNotFound):
                await target.claims.get(scope, "t1", share=share)
            await target.checkpoints.save(scope, Save(thread_id="t1", content=state(note="y")), share=share)
            assert not (await start(target, scope, "done", args="done", share=share)).must_run
            with pytest.raises(EffectMismatch):
                await start(target, scope, "done", args="other", share=share)
            for name in ("unknown", "started-once"):
                with pytest.raises(EffectUnknown):
                    await start(target, scope, name, args=name, share=share)
            with pytest.raises(EffectRepeats):  # the same is known for the same, whatever it is called now
                await start(target, scope, "call-9", args="done", share=share)
            await clean(target, scope)
    assert await kept(admin, scope) == stays


async def test_effects_are_not_taken_in_before_the_feature_is_on_there(store, scope, postgres, migrated_template):
    await save(store, scope)
    await finish(store, scope, await start(store, scope))
    async with deployment(postgres, migrated_template) as there:
        file = await exported(store, there, scope, scope.tenant_id)
        with pytest.raises(FeatureOff):
            await imported(there, scope.tenant_id, file)
        assert (await there.threads.list(scope)).items == []
        await switch_on(there, DECISIONS)
        assert (await imported(there, scope.tenant_id, file)).verified == 1


# --- what goes, and what stays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [29, 31])
async def test_names_of_what_was_done_once_outlive_their_thread_for_thirty_days(store, scope, admin, days):
    await save(store, scope)
    await ledger(store, scope)
    await store.threads.delete(scope, "t1")
    assert await kept(admin, scope) == {table: [] for table in TABLES}
    # What was done, what nobody knows, and what was not said to have ended.
    assert len(await rows(admin, scope, "effect_tombstones")) == 3
    await admin.execute(
        "UPDATE stateroom.effect_tombstones SET removed_at = removed_at - make_interval(days => $2)"
        " WHERE tenant_id = $1",
        scope.tenant_id, days,
    )  # fmt: skip
    await save(store, scope)
    for name in ("done", "unknown", "started-once"):
        if days < 30:
            with pytest.raises(EffectRepeats):
                await start(store, scope, name, args=name)
        else:
            assert (await start(store, scope, name, args=name)).must_run
    await save(store, scope, "nothing")
    await store.threads.delete(scope, "nothing")
    assert len(await rows(admin, scope, "effect_tombstones")) == (3 if days < 30 else 0)
    await clean(store, scope)


async def test_nothing_of_ledgers_is_removed_while_they_are_held(store, scope, admin):
    await fill(store, scope)
    await ledger(store, scope)
    before = await kept(admin, scope)
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=True))
    for remove in (
        store.threads.delete(scope, "t1"), store.threads.prune(scope, ["t1"], "delete"),
        store.threads.prune(scope, ["t1"], "keep_latest"), store.threads.delete_runs(scope, ["run-1"]),
        store.shred.subject(scope, scope.subject_id, ACTOR),
    ):  # fmt: skip
        with pytest.raises(LegalHold):
            await remove
    await store.archives.archive(scope, "t1")
    with pytest.raises(LegalHold):
        await store.archives.expire(scope, "t1")
    await store.archives.restore(scope, "t1")
    assert await kept(admin, scope) == before
    # Who works goes on, and what became of it is said.
    assert (await start(store, scope, "another", args="another")).must_run
    await claim(store, scope, "two", take_over=True)
    await store.retention_policies.put_thread(scope, "t1", Policy(legal_hold=False))
    await store.threads.delete(scope, "t1")
    assert await kept(admin, scope) == {table: [] for table in TABLES}


# --- older builds ----------------------------------------------------------------------------------------------------


def of_before(statement, name, before):
    """The call of the function that it was before: without the fence."""
    older = copy(statement)
    older.text = statement.text.replace(name, before).rsplit(",", 1)[0] + ")"
    assert older.text != statement.text
    older.arguments = lambda bound, values: statement.arguments(bound, values)[:-1]
    return older


async def test_the_functions_before_fences_write_on_and_leave_ledgers_as_they_are(store, scope, admin, monkeypatch):
    """As a gateway of the release before does until the upgrade is finished."""
    await save(store, scope)
    await ledger(store, scope)
    before = await kept(admin, scope)
    monkeypatch.setattr(checkpoints_sql, "SAVE_ON", of_before(checkpoints_sql.SAVE_ON, "save_on_9", "save_on_8"))
    monkeypatch.setattr(
        checkpoints_sql, "PUT_WRITES_ON", of_before(checkpoints_sql.PUT_WRITES_ON, "put_writes_on_8", "put_writes_on_7")
    )
    for thread_id in ("t1", "new"):
        saved = await save(store, scope, thread_id)
        await put(store, scope, saved.checkpoint_id, write(-3, "__interrupt__", 1), thread_id=thread_id)
    assert await kept(admin, scope) == before
    monkeypatch.undo()
    assert (await store.claims.get(scope, "t1")).status == "live"
    assert not (await start(store, scope, "done", args="done")).must_run
    await clean(store, scope)


async def test_nothing_of_ledgers_is_written_before_the_feature_is_on(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as before:
        await save(before, scope)
        for refused in (
            start(before, scope), claim(before, scope),
            before.claims.set_required(scope, "t1", required=True, actor=ACTOR),
        ):  # fmt: skip
            with pytest.raises(FeatureOff):
                await refused
        await before.threads.copy(scope, "t1", "copy")
        await before.threads.delete(scope, "copy")
        async with before.unit_of_work.begin(scope) as transaction:
            for table in (*TABLES, "effect_tombstones"):
                count = f"SELECT count(*) FROM stateroom.{table}"  # noqa: S608  constants of these tests
                assert await transaction._connection.fetchval(count) == 0
