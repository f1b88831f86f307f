"""What a tenant's rows take in PostgreSQL is counted truly, by one process at a time, and bounded by a quota."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
import os
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from storage.administration.row_census import COUNT_SECONDS_MAX, LEASE_SECONDS, UNLIMITED_COUNT_SECONDS_MIN, RowCounting
from storage.administration.tenants import DefaultQuotas, Usage
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.checkpoints.compacting import SUMMARY_OVER_QUOTA_BYTES_MAX
from storage.control.features import DECISIONS, ITEMS, LINKS
from storage.errors import QuotaExceeded, RowQuotaExceeded
from storage.model import ApiKeyRecord, Compaction, Idempotency, Precondition, TaskWrites, Tenant, ThreadLink
from storage.postgres.statement import Statement
from storage.postgres.tables import SUBJECT_TABLES
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.threads import row_usage
from tests.support import item_rows as items
from tests.support import ledgers
from tests.support.archive_rows import fill, opened
from tests.support.features import switch_on
from tests.support.states import document, load, packed, put, save, state, write
from tests.support.transfers import ACTOR, deployment, exported, imported

WHEN = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = 3600


@pytest.fixture
async def store(database, root_key):
    quotas = DefaultQuotas(bytes=1_000_000, rows_bytes=500_000)
    async with opened(database, root_key, archive=MemoryBlobStore(), default_quotas=quotas) as made:
        yield made


@pytest.fixture
async def tenant(store):
    return await new_tenant(store)


@pytest.fixture
def scope(tenant):
    return Scope(tenant, "user-1")


@pytest.fixture
def counting(store):
    return RowCounting(store.unit_of_work, store.row_quotas, pause_ratio=0)


async def new_tenant(store):
    tenant_id = uuid4()
    key = ApiKeyRecord(
        key_id=uuid4().hex, kind="service", name="k", tenant_id=tenant_id, subject_id=None,
        permissions=("tenant:admin",), mac=b"m" * 32, pepper_version=1, created_at=WHEN, expires_at=None,
        revoked_at=None, last_used_at=None,
    )  # fmt: skip
    made = Tenant(tenant_id=tenant_id, name=tenant_id.hex, created_at=WHEN)
    await store.tenants.create(OperatorScope(founding=tenant_id), made, key)
    return tenant_id


async def usage(store, tenant_id) -> Usage:
    return await store.tenants.usage(TenantScope(tenant_id), tenant_id)


async def let_nothing_more_in(store, tenant_id):
    await store.tenants.set_quota(tenant_id, rows_quota_bytes=0)


async def due(admin, tenant_id):
    """Seconds until the next count may begin."""
    return await admin.fetchval(
        "SELECT extract(epoch FROM count_after - clock_timestamp()) FROM stateroom.row_usage WHERE tenant_id = $1",
        tenant_id,
    )


async def make_due(admin, tenant_id):
    await admin.execute("UPDATE stateroom.row_usage SET count_after = '-infinity' WHERE tenant_id = $1", tenant_id)


# --- defaults --------------------------------------------------------------------------------------------------------


async def test_a_new_tenant_begins_with_both_default_quotas(store, tenant):
    assert await usage(store, tenant) == Usage(0, 1_000_000, None, 500_000, None)


async def test_a_tenant_that_was_there_before_has_as_much_as_it_likes(store, counting, admin, scope):
    before = Scope(uuid4(), "user-1")
    await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, $2, now())", before.tenant_id, uuid4().hex)
    assert await usage(store, before.tenant_id) == Usage()
    await save(store, before, content=state(big=document("b", 300_000)))
    assert await counting.tenant(before.tenant_id)
    await store.row_quotas.refresh()
    await save(store, before)
    found = await usage(store, before.tenant_id)
    assert (found.rows_quota_bytes, found.quota_bytes) == (None, None)
    assert await due(admin, before.tenant_id) > UNLIMITED_COUNT_SECONDS_MIN - 60


async def test_a_repeated_creation_leaves_the_quotas_that_an_operator_set(store, tenant, admin):
    await store.tenants.set_quota(tenant, 7, rows_quota_bytes=None)
    row = await admin.fetchrow("SELECT * FROM stateroom.tenants WHERE tenant_id = $1", tenant)
    again = Tenant(tenant_id=tenant, name=row["name"], created_at=WHEN)
    key = ApiKeyRecord(
        key_id=uuid4().hex, kind="service", name="k", tenant_id=tenant, subject_id=None, permissions=(),
        mac=b"m" * 32, pepper_version=1, created_at=WHEN, expires_at=None, revoked_at=None, last_used_at=None,
    )  # fmt: skip
    assert await store.tenants.create(OperatorScope(founding=tenant), again, key) is not again
    found = await usage(store, tenant)
    assert (found.quota_bytes, found.rows_quota_bytes) == (7, None)


async def test_one_quota_is_set_without_the_other_and_both_logs_say_which(store, tenant):
    await store.tenants.set_quota(tenant, rows_quota_bytes=5)
    found = await usage(store, tenant)
    assert (found.quota_bytes, found.rows_quota_bytes) == (1_000_000, 5)
    page = await store.audit.page(TenantScope(tenant), "api-key:auditor", 0, 1000)
    (said,) = [each.event.detail for each in page.items if each.event.action == "tenant.quota"]
    assert said == {"rows_quota_bytes": 5}


# --- counting --------------------------------------------------------------------------------------------------------


async def independent(admin, tenant_id):
    """What the rows of a tenant take, asked of the tables one by one as a superuser."""
    total = 0
    for table in SUBJECT_TABLES:
        columns = await admin.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'stateroom' AND table_name = $1"
            " AND data_type IN ('text', 'bytea', 'ARRAY', 'jsonb')",
            table.name,
        )
        sizes = " + ".join(f"coalesce(pg_column_size(x.{row['column_name']}), 0)" for row in columns)
        total += await admin.fetchval(
            f"SELECT coalesce(sum({row_usage.ROW_BYTES} + {sizes}), 0)::bigint FROM stateroom.{table.name} x"
            " WHERE tenant_id = $1",
            tenant_id,
        )
    return total


@pytest.mark.parametrize("page_rows", [1, 3, 5000])
async def test_the_count_is_what_the_tables_hold(store, admin, tenant, page_rows):
    scopes = [Scope(tenant, "user-1"), Scope(tenant, "user-2"), Scope(tenant, "~shared")]
    for each in scopes:
        await fill(store, each)
        await save(store, each, "t2", idempotency=Idempotency("k", b"d" * 32), searchable=("k",), metadata={"k": 1})
    await fill(store, scopes[0], "archived")
    await store.archives.archive(scopes[0], "archived")
    counting = RowCounting(store.unit_of_work, store.row_quotas, page_rows=page_rows, pause_ratio=0)
    counted = await counting.tenant(tenant)
    assert counted == await independent(admin, tenant)
    assert counted > 30_000
    found = await usage(store, tenant)
    assert found.rows_bytes == counted
    assert found.rows_counted_at is not None
    await store.threads.delete(scopes[1], "t1")
    assert await counting.tenant(tenant, now=True) == await independent(admin, tenant) < counted


async def test_every_table_of_subjects_is_counted():
    assert set(row_usage.FIRST_PAGES) == {table.name for table in SUBJECT_TABLES}


async def test_claims_and_effects_count_and_over_the_quota_what_was_begun_still_ends(
    store, counting, admin, tenant, scope
):
    await switch_on(store, DECISIONS)
    await save(store, scope)
    before = await counting.tenant(tenant, now=True)
    held = await ledgers.claim(store, scope, note="half way")
    begun = await ledgers.start(store, scope, args=document("args", 50_000))
    counted = await counting.tenant(tenant, now=True)
    assert counted == await independent(admin, tenant) > before
    await save(store, scope, "other")
    await let_nothing_more_in(store, tenant)
    await store.row_quotas.refresh()
    for refused in (
        ledgers.start(store, scope, "another", args="another"), ledgers.claim(store, scope, thread_id="other"),
        store.threads.copy(scope, "t1", "copy"),
    ):  # fmt: skip
        with pytest.raises(RowQuotaExceeded):
            await refused
    assert (await ledgers.finish(store, scope, begun, result={"id": 7})).status == "done"
    await store.claims.renew(scope, "t1", held.fence, note="nearly there")
    await store.claims.release(scope, "t1", held.fence)
    assert not (await ledgers.start(store, scope, args=document("args", 50_000))).must_run
    await store.threads.delete(scope, "t1")
    assert await counting.tenant(tenant, now=True) == await independent(admin, tenant) < counted


async def test_the_next_count_comes_the_later_the_longer_one_took(store, counting, admin, tenant, scope):
    await save(store, scope)
    await counting.tenant(tenant)
    assert 50 < await due(admin, tenant) <= 60 + 100
    assert await counting.tenant(tenant) is None  # not yet
    assert await due(admin, tenant) < COUNT_SECONDS_MAX


async def test_of_two_processes_one_counts(store, database, root_key, admin, tenant, scope):
    await fill(store, scope)
    async with opened(database, root_key) as other:
        both = [
            RowCounting(each.unit_of_work, each.row_quotas, page_rows=1, pause_ratio=0).tenant(tenant)
            for each in (store, other)
        ]
        counted = await asyncio.gather(*both)
    assert sorted(each is None for each in counted) == [False, True]


async def test_the_count_of_a_process_that_died_is_taken_over_and_a_late_one_changes_nothing(
    store, counting, admin, tenant, scope
):
    await save(store, scope)
    async with store.unit_of_work.begin(TenantScope(tenant)) as transaction:
        claim = await transaction.fetch_only(row_usage.CLAIM, lease_seconds=LEASE_SECONDS, at_once=False)
    assert await counting.tenant(tenant) is None
    await make_due(admin, tenant)  # the lease has ended
    counted = await counting.tenant(tenant)
    assert counted
    async with store.unit_of_work.begin(TenantScope(tenant)) as transaction:
        late = await transaction.run(row_usage.FINISH, lease=claim.count_after, again_seconds=60.0, bytes=1)
        assert late == 0
    assert (await usage(store, tenant)).rows_bytes == counted


async def test_a_process_that_stops_in_a_count_gives_it_back(store, admin, tenant, scope):
    await fill(store, scope)
    slow = RowCounting(store.unit_of_work, store.row_quotas, page_rows=1, pause_ratio=1e9)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):  # which cancels it in the pause after its first page
            await slow.tenant(tenant)
    assert -HOUR < await due(admin, tenant) <= 0  # it was begun, and is due again
    assert (await usage(store, tenant)).rows_bytes is None


async def test_a_pass_counts_whoever_is_due_without_an_object_store_and_tells_who_is_over(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as alone:
        alone.blobs = None
        first, second = await new_tenant(alone), await new_tenant(alone)
        await save(alone, Scope(first, "u"), content=state(big=os.urandom(30_000).hex()))
        await alone.tenants.set_quota(first, rows_quota_bytes=10_000)
        counting = RowCounting(alone.unit_of_work, alone.row_quotas, pause_ratio=0)
        before = await counting.census()
        assert (before.used_bytes, before.over) == (0, 0)
        assert before.age_seconds > 0  # never counted
        assert await counting.run_due() == 2
        assert await counting.run_due() == 0
        after = await counting.census()
        assert after.over == 1
        assert after.used_bytes > 1_000
        assert 0 <= after.age_seconds < 60
        with pytest.raises(RowQuotaExceeded):  # of this process's set, which the pass read again
            await save(alone, Scope(first, "u"))
        await save(alone, Scope(second, "u"))


def new_artifact():
    return NewArtifact(name="file", media_type="text/plain")


async def artifact(store, scope):
    async def body():
        yield b"content"

    return await store.artifacts.create(scope, "files", new_artifact(), body())


async def test_a_tenant_with_many_rows_keeps_no_other_one_waiting(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as alone:
        many, few = await new_tenant(alone), await new_tenant(alone)
        for n in range(20):
            await save(alone, Scope(many, f"user-{n}"))
        await save(alone, Scope(few, "user-1"))
        async with alone.unit_of_work.begin(TenantScope(few)) as transaction:  # the other one's turn comes first
            await transaction.run(
                Statement("UPDATE stateroom.row_usage SET count_after = clock_timestamp() WHERE tenant_id = :tenant_id")
            )
        counting = RowCounting(alone.unit_of_work, alone.row_quotas, page_rows=1, pause_ratio=0)
        assert await counting.run_due() == 2
        first, second = await usage(alone, few), await usage(alone, many)
    assert first.rows_counted_at < second.rows_counted_at


# --- refusing --------------------------------------------------------------------------------------------------------


async def test_whoever_is_counted_over_is_refused_until_it_made_room(store, counting, tenant, scope):
    saved = await save(store, scope, content=state(big=os.urandom(30_000).hex()))
    await save(store, scope, "small")
    await store.tenants.set_quota(tenant, rows_quota_bytes=20_000)
    await save(store, scope, content=state(big="more"))  # between two counts it goes on
    await counting.tenant(tenant, now=True)
    await store.row_quotas.refresh()
    for thread_id in ("t1", "small", "new"):
        with pytest.raises(RowQuotaExceeded):
            await save(store, scope, thread_id)
    assert (await load(store, scope, checkpoint_id=saved.checkpoint_id)).checkpoint_id == saved.checkpoint_id
    await store.threads.prune(scope, ["t1"], "keep_latest")
    await counting.tenant(tenant, now=True)
    await store.row_quotas.refresh()
    await save(store, scope)


async def test_what_would_store_rows_is_refused_and_nothing_of_it_stays(
    store, admin, scope, postgres, migrated_template
):
    saved = await save(store, scope, content=state(a=[document("a")]))
    kept = await save(store, scope, "remembered")
    await put(store, scope, kept.checkpoint_id, write(0, "a", 1), thread_id="remembered")
    await fill(store, scope, "archived")
    await store.archives.archive(scope, "archived")
    file = await artifact(store, scope)
    async with deployment(postgres, migrated_template) as elsewhere:
        there = Scope(uuid4(), "user-1")
        await save(elsewhere, there, "brought")
        brought = await exported(elsewhere, store, there, scope.tenant_id, "brought")
    await switch_on(store, LINKS)
    await let_nothing_more_in(store, scope.tenant_id)
    before = await independent(admin, scope.tenant_id)
    head = Precondition(head_id=saved.checkpoint_id)
    refused = {
        "save": lambda: save(store, scope, precondition=head),
        "save a new thread": lambda: save(store, scope, "new"),
        "save on what is remembered": lambda: save(store, scope, "remembered"),
        "save of a new subject": lambda: save(store, Scope(scope.tenant_id, "new")),
        "save to an archived thread": lambda: save(store, scope, "archived"),
        "pending writes": lambda: put(store, scope, saved.checkpoint_id, write(0, "a", 1)),
        "pending writes on what is remembered": lambda: put(
            store, scope, kept.checkpoint_id, write(1, "a", 1), thread_id="remembered"
        ),
        "piece": lambda: store.pieces.put(scope, "t1", b"\xc4\x10" + b"p" * 16),
        "create a thread": lambda: store.threads.put(scope, "new"),
        "link a new thread": lambda: store.links.link(scope, "new", ThreadLink("t1")),
        "copy": lambda: store.threads.copy(scope, "t1", "new"),
        "restore": lambda: store.archives.restore(scope, "archived"),
        "begin to restore": lambda: store.archives.begin_restore(scope, "archived", ACTOR),
        "artifact": lambda: artifact(store, scope),
        "artifact in parts": lambda: store.artifacts.begin(scope, "t1", new_artifact()),
        "copy of an artifact": lambda: store.artifacts.copy(scope, file.artifact_id, "t1", "another"),
        "import": lambda: imported(store, scope.tenant_id, brought),
    }
    for name, verb in refused.items():
        with pytest.raises(QuotaExceeded) as reason:
            await verb()
        assert (name, reason.value.limit) == (name, "rows_quota_bytes")
    assert await independent(admin, scope.tenant_id) == before
    neighbour = Scope(await new_tenant(store), "user-1")
    await save(store, neighbour)
    await store.threads.copy(neighbour, "t1", "new")


async def test_items_count_and_a_tenant_over_its_quota_may_only_delete_them(store, counting, tenant, scope):
    await switch_on(store, ITEMS)
    await counting.tenant(tenant, now=True)
    before = (await usage(store, tenant)).rows_bytes
    large = os.urandom(20_000).hex()
    await items.write(store, scope, items.put("large", {"text": large}), items.put("small", {}))
    await counting.tenant(tenant, now=True)
    assert (await usage(store, tenant)).rows_bytes > before + 20_000
    await store.tenants.set_quota(tenant, rows_quota_bytes=20_000)
    await store.row_quotas.refresh()
    new, other, gone = await items.write(
        store, scope, items.put("new", {}), items.put("new", {}, path=("new",)), items.delete("small")
    )
    assert [type(new), type(other), gone.status] == [RowQuotaExceeded, RowQuotaExceeded, "deleted"]
    with pytest.raises(RowQuotaExceeded):
        await items.write(store, Scope(tenant, "somebody-new"), items.put("new", {}))
    assert [key for _, key, _ in await items.found(store, scope)] == ["large"]
    await items.write(store, scope, items.delete("large"))
    await counting.tenant(tenant, now=True)
    await store.row_quotas.refresh()
    (put_again,) = await items.write(store, scope, items.put("new", {}))
    assert put_again.status == "created"


async def test_what_reads_or_makes_room_goes_on(store, scope, postgres, migrated_template):
    first = await save(store, scope, content=state(a=[document("a")]), run_id="r")
    second = await save(store, scope, content=state(a=[document("b")]))
    await put(store, scope, second.checkpoint_id, write(0, "a", 1))
    for thread_id in ("deleted", "archived", "shredded"):
        await fill(store, scope, thread_id)
    file = await artifact(store, scope)
    upload = await store.artifacts.begin(scope, "t1", new_artifact())
    other = Scope(scope.tenant_id, "shredded")
    await save(store, other)
    await let_nothing_more_in(store, scope.tenant_id)

    assert (await load(store, scope)).checkpoint_id == second.checkpoint_id
    repeated = await store.checkpoints.put_writes(
        scope, TaskWrites("t1", "", second.checkpoint_id, "task", "", [write(0, "a", 1)], None)
    )
    assert (repeated.stored, repeated.unchanged) == (0, 1)
    thread, created = await store.threads.put(scope, "t1", strict=True)
    assert (thread.strict, created) == (True, False)
    async with deployment(postgres, migrated_template) as elsewhere:
        assert await exported(store, elsewhere, scope, uuid4())
    await store.archives.archive(scope, "archived")
    assert (await load(store, scope, "archived")).channels
    assert (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints == 1
    await store.threads.delete(scope, "deleted")
    await store.threads.delete(scope, "archived")
    await store.artifacts.delete(scope, file.artifact_id)
    await store.artifacts.abort(scope, upload.upload_id)
    await store.threads.delete_runs(scope, [first.checkpoint_id])
    assert not (await store.verification.thread(scope, "t1")).findings
    await store.shred.subject(other, other.subject_id, ACTOR)


async def test_a_compaction_that_leaves_less_than_half_lets_a_prune_make_room(store, counting, tenant, scope):
    await save(store, scope, content=state(messages=[os.urandom(1000).hex() for _ in range(40)]))
    await store.tenants.set_quota(tenant, rows_quota_bytes=40_000)

    async def compact(keep_last, *summary):
        parts = [packed(each).data for each in summary]
        return await store.compacting.compact(
            scope, Compaction(thread_id="t1", channel="messages", keep_last=keep_last, summary=tuple(parts))
        )

    async def recount():
        await counting.tenant(tenant, now=True)
        await store.row_quotas.refresh()
        return (await usage(store, tenant)).rows_bytes

    assert await recount() > 40_000
    for keep_last, *summary in (40, "more"), (20,), (19, "summary"), (1, "s" * SUMMARY_OVER_QUOTA_BYTES_MAX):
        with pytest.raises(RowQuotaExceeded):
            await compact(keep_last, *summary)
    await compact(18, "summary")
    with pytest.raises(RowQuotaExceeded):  # the list is shorter now
        await compact(18, "summary")
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert await recount() < 40_000
    await save(store, scope)


async def test_what_is_stored_already_is_answered_as_before(store, scope):
    idempotency = Idempotency("k", b"d" * 32)
    saved = await save(store, scope, checkpoint_id="c1", content=state(a=1))
    keyed = await save(store, scope, "t2", idempotency=idempotency)
    piece = await store.pieces.put(scope, "t1", b"\xc4\x10" + b"p" * 16)
    await let_nothing_more_in(store, scope.tenant_id)
    again = await save(store, scope, checkpoint_id="c1", content=state(a=1))
    assert (again.checkpoint_id, again.created) == (saved.checkpoint_id, False)
    assert (await save(store, scope, "t2", idempotency=idempotency)).checkpoint_id == keyed.checkpoint_id
    assert (await store.pieces.put(scope, "t1", b"\xc4\x10" + b"p" * 16)).piece_id == piece.piece_id


async def test_a_larger_quota_lets_on_at_once(store, scope):
    await save(store, scope)
    await let_nothing_more_in(store, scope.tenant_id)
    with pytest.raises(RowQuotaExceeded):
        await save(store, scope)
    await store.tenants.set_quota(scope.tenant_id, rows_quota_bytes=None)
    await save(store, scope)


async def test_another_process_learns_of_it_when_it_reads_the_set_again(store, database, root_key, scope):
    async with opened(database, root_key) as other:
        await save(store, scope)
        await let_nothing_more_in(store, scope.tenant_id)
        await save(other, scope, "t2")
        await other.row_quotas.refresh()
        with pytest.raises(RowQuotaExceeded):
            await save(other, scope, "t2")
    async with opened(database, root_key) as restarted:
        await restarted.enter()
        with pytest.raises(RowQuotaExceeded):
            await save(restarted, scope, "t2")
        await restarted.processes.leave()
