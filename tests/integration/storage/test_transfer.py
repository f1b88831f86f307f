"""Threads move from one deployment to another and are there what they were here, to the byte."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from storage.approvals.model import ApprovalQuery
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import COLD_NAMESPACES, DECISIONS, SEGMENTS
from storage.errors import ClaimNotFound, LegalHold, ThreadExists
from storage.model import (
    Asker,
    ChannelValue,
    FullState,
    HistoryQuery,
    NewAction,
    NewApproval,
    Precondition,
    TaskWritesQuery,
    Value,
)
from storage.retention.planner import Policy
from storage.schemas.registry import Definition
from storage.scope import ClientShare, Scope, TenantScope
from storage.threads.thinning import ThinningRule
from tests.support.features import switch_on
from tests.support.ledgers import claim, start
from tests.support.states import contents, document, history, load, patch, put, save, state, write, writes_of
from tests.support.transfers import ACTOR, deployment, exported, exported_tenant, imported

SCREEN = "data:image/png;base64," + "A" * 150_000


@pytest.fixture(scope="module")
async def here(postgres, migrated_template):
    async with deployment(postgres, migrated_template, archive=MemoryBlobStore()) as store:
        yield store


@pytest.fixture(scope="module")
async def there(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as store:
        yield store


@pytest.fixture
def target(scope):
    """The same subject of another tenant, in the other deployment."""
    return Scope(uuid4(), scope.subject_id)


async def whole(store, scope, thread_id="t1", share=None):
    """Everything that reading a thread gives, without what keys make."""
    found = []
    after = None
    while True:
        query = HistoryQuery(thread_id=thread_id, with_state=True, limit=50, after=after)
        page = await store.checkpoints.history(scope, query, share)
        found += page.items
        after = page.after
        if after is None:
            return found


async def same(here, scope, there, target, thread_id="t1", share=None):
    one = await whole(here, scope, thread_id, share)
    assert one
    assert await whole(there, target, thread_id, share) == one
    verified = await there.verification.thread(target, thread_id)
    assert not verified.findings


async def upload(store, scope, thread_id, name, content, share=None):
    async def body():
        yield content

    return await store.artifacts.create(
        scope, thread_id, NewArtifact(name=name, media_type="image/png"), body(), share=share
    )


async def test_an_export_takes_effects_along_and_no_claim_and_nothing_that_was_asked(here, there, scope, target):
    for store in (here, there):
        await switch_on(store, DECISIONS)
    asked = NewApproval("q", (NewAction("pay", b"\x80"),))
    await save(here, scope, approvals=(asked,), asker=Asker("key", "key"))
    await claim(here, scope)
    assert (await start(here, scope)).must_run
    await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    assert [each.status for each in (await there.effects.list(target, "t1")).items] == ["unknown"]
    assert (await there.approvals.list(target, ApprovalQuery())).approvals == []
    with pytest.raises(ClaimNotFound):
        await there.claims.get(target, "t1")
    assert (await there.verification.thread(target, "t1")).findings == []


async def test_a_thread_comes_over_to_the_byte(here, there, scope, target):
    first = await save(here, scope, content=state(messages=[document(f"m{n}", 900) for n in range(200)], note="x"))
    second = await save(
        here, scope, content=patch(append={"messages": [document("more")]}, put={"blob": os.urandom(20_000)}),
        precondition=Precondition(head_id=first.checkpoint_id), run_id="run", metadata={"k": [1, {"a": None}]},
        model={"name": "m", "seed": 3}, usage={"input_tokens": 5, "cost_micros": 7}, step=9, source="loop", agent="a",
    )  # fmt: skip
    await put(
        here, scope, second.checkpoint_id, write(0, "messages", document("w")), write(-1, "err", "e"), status="failed"
    )
    file = await exported(here, there, scope, target.tenant_id)
    report = await imported(there, target.tenant_id, file)
    assert (report.threads, report.checkpoints, report.pending_writes, report.verified) == (1, 2, 2, 1)
    await same(here, scope, there, target)
    there_now = await there.threads.get(target, "t1")
    assert there_now == replace(await here.threads.get(scope, "t1"), updated_at=there_now.updated_at)
    assert writes_of(await load(there, target)) == writes_of(await load(here, scope))
    after = await save(
        there,
        target,
        content=patch(append={"messages": ["on"]}),
        precondition=Precondition(head_id=second.checkpoint_id),
    )
    assert after.parent_id == second.checkpoint_id
    assert after.sequence > second.sequence
    assert len(contents(await load(there, target))["messages"]) == 202


async def test_large_pieces_and_files_come_over(here, there, scope, target):
    picture = await upload(here, scope, "t1", "shot.png", os.urandom(300_000))
    again = await upload(here, scope, "t1", "shot.png", b"")
    elsewhere = await upload(here, scope, "t2", "other.png", b"other")
    await save(
        here, scope,
        content=state(
            screens=[SCREEN + str(n) for n in range(5)], deep={"a": {"b": SCREEN + "deep"}}, pic=picture.pointer,
            other=elsewhere.pointer, opaque=os.urandom(400_000),
        ),
    )  # fmt: skip
    raw = FullState({"bytes": ChannelValue(3, Value("pickle", os.urandom(700_000)))})
    await save(here, scope, content=raw, namespace="sub")
    report = await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    assert (report.threads, report.artifacts, report.verified) == (1, 3, 1)
    await same(here, scope, there, target)
    for artifact in (picture, again, elsewhere):
        opened = await there.artifacts.open(target, artifact.artifact_id)
        assert (opened.artifact.name, opened.artifact.digest) == (artifact.name, artifact.digest)
        assert opened.artifact.created_at == artifact.created_at
        original = await here.artifacts.open(scope, artifact.artifact_id)
        size = artifact.size_bytes
        if size:
            given = b"".join([each async for each in opened.read(0, size)])
            assert given == b"".join([each async for each in original.read(0, size)])
    assert [each.number for each in (await there.artifacts.list(target, "t1")).items] == [2, 1]
    report = await there.fsck.run(target.tenant_id)
    assert report.findings == []


async def test_forks_namespaces_and_writes_without_their_checkpoint_come_over(here, there, scope, target):
    root = await save(here, scope, content=state(n=1))
    left = await save(here, scope, content=state(n=2))
    right = await save(here, scope, content=state(n=3), fork=True, parent=None)
    for namespace in ("", "a", "a|b"):
        await save(here, scope, content=state(space=namespace), namespace=namespace)
    await put(here, scope, "1fff0000-0000-6000-8000-000000000000", write(0, "early", document("early")), namespace="a")
    await put(here, scope, "not-yet", write(0, "early", 1), namespace="new")
    report = await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    assert report.verified == 1
    await same(here, scope, there, target)
    assert {root.checkpoint_id, left.checkpoint_id, right.checkpoint_id} <= {
        each.checkpoint_id for each in await whole(there, target)
    }
    for namespace, checkpoint_id in (("a", "1fff0000-0000-6000-8000-000000000000"), ("new", "not-yet")):
        one, other = [
            await store.checkpoints.task_writes(at, TaskWritesQuery("t1", namespace, checkpoint_id, "task"))
            for store, at in ((here, scope), (there, target))
        ]
        assert one == other != []


async def test_a_thread_of_writes_alone_comes_over(here, there, scope, target):
    await put(here, scope, "not-yet", write(0, "early", document("early")))
    report = await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    assert (report.threads, report.checkpoints, report.pending_writes, report.verified) == (1, 0, 1, 1)


async def test_exporting_again_from_the_other_deployment_gives_the_same_content(here, there, scope, target):
    await save(here, scope, content=state(messages=[document(f"m{n}", 3000) for n in range(50)], screen=SCREEN))
    await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    one = await here.exporting.content_digest(scope, "t1")
    written_at = (await here.threads.get(scope, "t1")).updated_at
    other = await there.exporting.content_digest(target, "t1", updated_at=written_at)
    assert one.digest == other.digest
    await save(there, target, content=state(messages=[]))
    assert (await there.exporting.content_digest(target, "t1")).digest != one.digest


async def test_a_thread_that_exists_is_never_touched(here, there, scope, target):
    await save(here, scope, content=state(n=1))
    await save(there, target, content=state(n=2))
    file = await exported(here, there, scope, target.tenant_id)
    before = await whole(there, target)
    with pytest.raises(ThreadExists, match="'t1'"):
        await imported(there, target.tenant_id, file)
    report = await imported(there, target.tenant_id, file, skip_existing=True)
    assert (report.threads, [each.reason for each in report.passed]) == (0, ["exists"])
    assert await whole(there, target) == before


async def test_an_import_that_is_run_again_passes_over_what_is_there(here, there, scope, target):
    for n in range(3):
        await save(here, scope, thread_id=f"t{n}", content=state(n=n))
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    assert (await imported(there, target.tenant_id, file)).threads == 3
    await save(there, target, thread_id="t1", content=state(n=10))  # an agent went on
    await there.threads.delete(target, "t2")
    report = await imported(there, target.tenant_id, file)
    assert (report.threads, report.verified) == (1, 1)
    assert sorted((each.thread_id, each.reason) for each in report.passed) == [("t0", "there"), ("t1", "there")]
    assert contents(await load(there, target, "t1")) == {"n": 10}


async def test_another_export_of_a_thread_that_went_on_is_a_conflict(here, there, scope, target):
    await save(here, scope, content=state(n=1))
    await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    await save(here, scope, content=state(n=2))
    with pytest.raises(ThreadExists):
        await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))


async def test_a_file_that_two_threads_name_is_brought_once(here, there, scope, target):
    await upload(here, scope, "t1", "a", b"zero")
    picture = await upload(here, scope, "t1", "a", b"one")
    for thread_id in ("t1", "t2"):
        await save(here, scope, thread_id=thread_id, content=state(pic=picture.pointer))
    for thread_id in ("t2", "t1"):  # first where it is only named
        await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id, thread_id))
    assert (await there.artifacts.get(target, picture.artifact_id)).digest == picture.digest
    for thread_id in ("t1", "t2"):
        await same(here, scope, there, target, thread_id)


async def test_threads_under_a_share_come_over_under_one_or_are_left_out(here, there, scope, target):
    share, wrong = (ClientShare(os.urandom(32)) for _ in range(2))
    await here.threads.put(scope, "sealed", share=share)
    await save_under(here, scope, "sealed", share)
    await save(here, scope, thread_id="plain", content=state(n=1))
    for given, names in ((None, {"sealed"}), (wrong, {"sealed"}), (share, set())):
        other = uuid4()
        file = await exported_tenant(here, there, scope.tenant_id, other, given)
        report = await imported(there, other, file)
        assert {each.thread_id for each in report.passed} == names | {"sealed"}
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id, share)
    report = await imported(there, target.tenant_id, file, share=share)
    assert (report.threads, report.verified, report.passed) == (2, 2, [])
    await same(here, scope, there, target, "sealed", share)


async def save_under(store, scope, thread_id, share):
    from storage.model import Save

    secret = await upload(store, scope, thread_id, "secret", b"secret", share)
    content = state(note=[document(f"n{n}") for n in range(10)], secret=secret.pointer, screen=SCREEN)
    await store.checkpoints.save(scope, Save(thread_id=thread_id, content=content), share)


async def test_state_schemas_come_with_the_threads(here, there, scope, target):
    tenant = TenantScope(scope.tenant_id)
    await here.state_schemas.put(tenant, "trip", 1, Definition(label="one"))
    await here.state_schemas.put(tenant, "trip", 2, Definition(up=[{"op": "rename", "from": "/a", "to": "/b"}]))
    await here.state_schemas.put(tenant, "unused", 1, Definition())
    await save(here, scope, content=state(b=1), state_schema="trip", state_version=2)
    report = await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    assert report.state_schemas == 2
    names = (await there.state_schemas.names(TenantScope(target.tenant_id))).items
    assert list(names) == [("trip", 2)]
    await same(here, scope, there, target)


async def test_a_tenant_of_fifty_threads_of_several_subjects_comes_over(here, there):
    tenant_id, target_id = uuid4(), uuid4()
    for n in range(50):
        subject = Scope(tenant_id, f"user-{n % 7}" if n % 10 else "~shared")
        first = await save(
            here, subject, thread_id=f"t{n}", content=state(messages=[document(f"{n}.{k}", 700) for k in range(20)])
        )
        await save(
            here, subject, thread_id=f"t{n}", content=patch(append={"messages": ["x"]}),
            precondition=Precondition(head_id=first.checkpoint_id),
        )  # fmt: skip
    report = await imported(there, target_id, await exported_tenant(here, there, tenant_id, target_id))
    assert (report.threads, report.checkpoints, report.verified) == (50, 100, 50)
    for n in range(50):
        subject = f"user-{n % 7}" if n % 10 else "~shared"
        await same(here, Scope(tenant_id, subject), there, Scope(target_id, subject), f"t{n}")


async def test_both_sides_are_in_the_audit_log_and_among_the_jobs(here, there, scope, target):
    await save(here, scope, content=state(n=1))
    await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
    for store, tenant_id, actions in (
        (here, scope.tenant_id, ["export.begin", "export.end"]),
        (there, target.tenant_id, ["import.begin", "import.thread", "import.end"]),
    ):
        events = await store.audit.page(TenantScope(tenant_id), ACTOR, 0, 100)
        assert [each.event.action for each in events.items][: len(actions)] == actions
        assert {each.event.actor for each in events.items} == {ACTOR}
        jobs = await store.jobs.list(TenantScope(tenant_id))
        assert [(each.state, each.done) for each in jobs.items] == [("done", 1)]


async def test_what_is_said_of_retention_comes_along_and_a_hold_holds_at_once(here, there, scope, target):
    await save(here, scope, content=state(n=1))
    await here.retention_policies.put_thread(scope, "t1", Policy(idle_ttl_seconds=86_400, legal_hold=True))
    await here.retention_policies.put(TenantScope(scope.tenant_id), None, Policy(checkpoints_max=50))
    await here.retention_policies.put(TenantScope(scope.tenant_id), "a", Policy(checkpoints_max=60))
    await there.retention_policies.put(TenantScope(target.tenant_id), "a", Policy(checkpoints_max=7))
    report = await imported(
        there, target.tenant_id, await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    )
    assert report.verified == 1
    said = await there.retention_policies.get(TenantScope(target.tenant_id))
    assert (said.tenant.policy.checkpoints_max, said.agents["a"].policy.checkpoints_max) == (50, 7)
    own = await there.retention_policies.get_thread(target, "t1")
    assert own.own.policy == Policy(idle_ttl_seconds=86_400, legal_hold=True)
    with pytest.raises(LegalHold):
        await there.threads.delete(target, "t1")


async def test_policies_that_come_along_do_nothing_until_somebody_begins_a_round(here, there, scope, target):
    for number in range(4):
        await save(here, scope, content=state(n=number))
    await here.retention_policies.put(TenantScope(scope.tenant_id), None, Policy(checkpoints_max=1))
    await imported(there, target.tenant_id, await exported_tenant(here, there, scope.tenant_id, target.tenant_id))
    tenant = TenantScope(target.tenant_id)
    assert await there.retaining.tenant(target.tenant_id) is None
    assert len(await history(there, target)) == 4
    status = await there.retaining.status(tenant)
    assert timedelta(hours=23) < status.due_at - datetime.now(UTC) <= timedelta(hours=24)
    await there.retaining.begin(tenant)
    assert (await there.retaining.tenant(target.tenant_id)).checkpoints == 3


async def test_a_thread_of_which_a_part_is_in_segments_comes_over(here, there, scope, target):
    await switch_on(here, SEGMENTS)
    for number in range(6):
        saved = await save(here, scope, content=state(n=number, text=document(f"t{number}", 3000)))
        await put(here, scope, saved.checkpoint_id, write(0, "c", number))
        if number in {2, 5}:
            await here.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor=ACTOR)
    assert (await here.archives.status(scope, "t1")).segments.segments == 2
    file = await exported(here, there, scope, target.tenant_id)
    report = await imported(there, target.tenant_id, file)
    assert (report.threads, report.checkpoints, report.pending_writes, report.verified) == (1, 6, 6, 1)
    await same(here, scope, there, target)
    assert not (await there.threads.get(target, "t1")).segmented


async def test_namespaces_that_left_with_their_heads_come_over(here, there, scope, target):
    await switch_on(here, SEGMENTS)
    await switch_on(here, COLD_NAMESPACES)
    for number in range(3):
        at = (await save(here, scope, content=state(n=number))).checkpoint_id
        for _ in range(2):
            parts = {"namespace": f"work:{number}", "metadata": {"parents": {"": at}}}
            saved = await save(here, scope, content=state(n=number, text=document(f"t{number}", 3000)), **parts)
        await put(here, scope, saved.checkpoint_id, write(0, "c", number), namespace=f"work:{number}")
    await save(here, scope, content=state(n=3))
    await here.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor=ACTOR)
    assert (await here.archives.status(scope, "t1")).segments.checkpoints == 9
    file = await exported(here, there, scope, target.tenant_id)
    report = await imported(there, target.tenant_id, file)
    assert (report.threads, report.checkpoints, report.pending_writes, report.verified) == (1, 10, 3, 1)
    await same(here, scope, there, target)
    assert not (await there.threads.get(target, "t1")).segmented
    assert contents(await load(there, target, namespace="work:1"))["n"] == 1
