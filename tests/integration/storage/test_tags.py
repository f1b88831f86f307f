"""Searching by metadata that a state version declares: as fast as its tags, and never less than opening everything."""

# ruff: noqa: S608  names of tables are constants of these tests

import asyncio
import random  # noqa: TID251 - seeded: the same world in every run
from uuid import uuid4

import pytest

from storage.checkpoints.reading import _contains
from storage.errors import IntegrityFailure, StateSchemaInvalid
from storage.migration.jobs import STATE_MIGRATE_KIND, STATE_ROLLBACK_KIND
from storage.model import HistoryQuery, Parent, Save, TaskWrites
from storage.postgres.unit_of_work import Transaction
from storage.schemas import tags as tags_of_saves
from storage.schemas.registry import Definition
from storage.schemas.tags import SEARCHABLE_KEY_BYTES_MAX, SEARCHABLE_KEYS_MAX, tag_of
from storage.scope import ClientShare, Scope, TenantScope
from storage.statements.threads import tags as tags_sql
from storage.tiers.hot import HotListing
from tests.support.interleaving import Gate, Steered, blocked
from tests.support.states import state

TIER, REGION = "customer_tier", "region"
SHARE = ClientShare(b"s" * 32)
MANY = 20_000
NOBODY = b"\x01" + bytes(16)


@pytest.fixture
async def tenant(store, scope):
    """Version 1 declares nothing, 2 one key, 3 two, 4 the other one; another schema declares a third."""
    tenant = TenantScope(scope.tenant_id)
    declared = {1: (), 2: (TIER,), 3: (REGION, TIER), 4: (REGION,)}
    for number, keys in declared.items():
        up = None if number == 1 else [{"op": "set_default", "path": "/x", "value": 1}]
        down = None if number == 1 else [{"op": "remove", "path": "/x"}]
        await store.state_schemas.put(tenant, "travel", number, Definition(searchable=keys, up=up, down=down))
    await store.state_schemas.put(tenant, "other", 1, Definition(searchable=("third",)))
    return tenant


async def save(store, scope, thread_id="t1", at=("travel", 2), share=None, **parts):
    schema, number = at or (None, None)
    parts.setdefault("content", state(a=1))
    wanted = Save(thread_id=thread_id, state_schema=schema, state_version=number, **parts)
    return await store.states.save(scope, wanted, share)


async def found(store, scope, metadata, share=None, **query):
    """All pages of a search: the places in their order."""
    places, after = [], None
    while True:
        asked = HistoryQuery(metadata=metadata, after=after, **query)
        page = await store.checkpoints.history(scope, asked, share)
        places += [(each.checkpoint_id, each.thread_id, each.namespace) for each in page.items]
        if page.after is None:
            return places
        after = page.after


async def opened(store, scope, metadata, share=None, **query):
    """What a search must find: everything opened and compared."""
    page = await store.checkpoints.history(scope, HistoryQuery(limit=1000, **query), share)
    assert page.after is None
    return [
        (each.checkpoint_id, each.thread_id, each.namespace)
        for each in page.items
        if not each.withheld and _contains(each.metadata, metadata)
    ]


async def tags(admin, scope):
    rows = await admin.fetch(
        "SELECT thread_id, checkpoint_id, tag FROM stateroom.checkpoint_tags WHERE tenant_id = $1 AND subject_id = $2",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip
    return [tuple(row) for row in rows]


async def searchable(admin, scope, thread_id="t1"):
    """By what all checkpoints of a thread are tagged."""
    text = "SELECT searchable FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3"
    return await admin.fetchval(text, scope.tenant_id, scope.subject_id, thread_id)


FILTERS = [
    {TIER: "gold"},
    {TIER: None},
    {TIER: True},
    {TIER: 1.0},
    {TIER: ["gold"]},
    {TIER: {"name": "gold"}},
    {TIER: {}},
    {REGION: "eu"},
    {TIER: "gold", REGION: "eu"},
    {"third": "x"},
    {"third": "x", TIER: "gold"},
    {"plain": 2},
    {"plain": 2, TIER: "silver"},
    {"nobody": 1},
    {TIER: "nobody's"},
    {"": 1, "\0": 2},
    {"": 1, TIER: "gold"},
    {"k" * 200: 1},
]


async def test_a_search_finds_exactly_what_opening_everything_finds(store, scope, tenant):
    """Saves of every sort: with schemas and without, before and after declarations, copied, pruned, under a share."""
    rng = random.Random(20261122)  # noqa: S311
    values = ["gold", "silver", None, 1, 1.0, True, 0, 1.5, ["gold"], {"name": "gold"}, "1"]
    versions = [None, ("travel", 1), ("travel", 2), ("travel", 3), ("travel", 4), ("other", 1)]
    for number in range(8):
        own = rng.sample(versions, rng.randint(1, 3)) if number % 2 else [("travel", number % 4 + 1)]
        if number == 3:
            await store.threads.put(scope, f"t{number}")
        for _ in range(8):
            metadata = {
                name: rng.choice(values if name == TIER else options)
                for name, options in ((TIER, values), (REGION, ["eu", "us"]), ("third", ["x", "y"]), ("plain", [1, 2]))
                if rng.random() < 0.8
            }
            namespace = rng.choice(["", "", "sub"])
            await save(store, scope, f"t{number}", rng.choice(own), namespace=namespace, metadata=metadata)
    await save(store, scope, "shared", share=SHARE, metadata={TIER: "gold", REGION: "eu", "plain": 2})
    await save(store, Scope(scope.tenant_id, "user-2"), metadata={TIER: "gold", REGION: "eu"})
    await store.threads.copy(scope, "t1", "copy-of-mixed")
    await store.threads.copy(scope, "t2", "copy-of-tagged")
    await store.threads.prune(scope, ["t4", "t5"], "keep_latest")
    await store.threads.delete(scope, "t6")
    found_some = 0
    for metadata in FILTERS:
        for query in (
            {},
            {"thread_id": "t1"},
            {"thread_id": "t2"},
            {"thread_id": "copy-of-tagged"},
            {"namespace": "sub"},
        ):
            for limit in (1000, 3):
                expected = await opened(store, scope, metadata, **query)
                assert await found(store, scope, metadata, limit=limit, **query) == expected, (metadata, query)
                found_some += len(expected)
        whole = await opened(store, scope, metadata, SHARE)
        assert await found(store, scope, metadata, SHARE, limit=7) == whole
    assert found_some > 400
    assert ("shared" in {place[1] for place in await found(store, scope, {TIER: "gold"}, SHARE)}) is True
    assert await found(store, scope, {TIER: "gold"}, SHARE, thread_id="shared") != []


async def spoil(admin, scope, tags_too, *, analyzed=True):
    """Many more checkpoints that nobody can open, tagged (or not) by another value."""
    await admin.execute(
        "INSERT INTO stateroom.checkpoints (tenant_id, subject_id, thread_id, namespace, checkpoint_id, step, status,"
        " created_at, key_version, piece_ids, manifest, searchable)"
        " SELECT $1, $2, 't1', '', 'a' || lpad(n::text, 6, '0'), n, 'active', now(), 1, '', 'spoilt', $3"
        f" FROM generate_series(1, {MANY}) n",
        scope.tenant_id, scope.subject_id, [TIER] if tags_too else None,
    )  # fmt: skip
    if tags_too:
        await admin.execute(
            "INSERT INTO stateroom.checkpoint_tags SELECT $1, $2, 't1', '', 'a' || lpad(n::text, 6, '0'), $3"
            f" FROM generate_series(1, {MANY}) n",
            scope.tenant_id, scope.subject_id, NOBODY,
        )  # fmt: skip
    if analyzed:
        await admin.execute("ANALYZE stateroom.checkpoints, stateroom.checkpoint_tags, stateroom.threads")


def rows_read(plan):
    """How many rows of checkpoints and tags a statement looked at, also those that it left out."""
    own = 0
    if plan.get("Relation Name") in {"checkpoints", "checkpoint_tags"}:
        left_out = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        own = (plan["Actual Rows"] + left_out) * plan["Actual Loops"]
    return own + sum(map(rows_read, plan.get("Plans", ())))


class Explaining(Transaction):
    """Has a statement explained, which finds nothing then."""

    async def fetch_all(self, statement, **values):
        arguments = statement.arguments(self._bound, values)
        told = await self._connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}", *arguments)
        self.looked_at = rows_read(told[0]["Plan"])
        return []


async def looked_at(store, scope, search, thread_id=None):
    async with store.unit_of_work.snapshot(scope) as transaction:
        explaining = Explaining(transaction._connection, scope)
        await HotListing(explaining, thread_id).history(HistoryQuery(), search, None, 500)
    return explaining.looked_at


async def search_for(store, scope, metadata, thread_id=None):
    sealer = await store.keys.sealer(scope)
    async with store.unit_of_work.snapshot(scope) as transaction:
        listing = HotListing(transaction, thread_id)
        return await tags_of_saves.search_for(listing, sealer, HistoryQuery(metadata=metadata, thread_id=thread_id))


@pytest.mark.parametrize("analyzed", [True, False])
@pytest.mark.parametrize("thread_id", [None, "t1"])
async def test_a_declared_key_over_many_checkpoints_opens_and_reads_only_what_it_finds(
    store, scope, tenant, admin, thread_id, analyzed
):
    wanted = [await save(store, scope, metadata={TIER: "gold", "plain": 1}) for _ in range(3)]
    await save(store, scope, metadata={TIER: "silver", "plain": 2})
    await spoil(admin, scope, tags_too=True, analyzed=analyzed)
    ids = [each.checkpoint_id for each in reversed(wanted)]
    assert [place[0] for place in await found(store, scope, {TIER: "gold"}, thread_id=thread_id)] == ids
    assert await found(store, scope, {TIER: "nobody's"}, thread_id=thread_id) == []
    # Whoever opens the others notices that nobody could.
    if thread_id is None:
        assert len(await found(store, scope, {"plain": 3}, limit=1000)) == MANY
    else:
        with pytest.raises(IntegrityFailure):
            await found(store, scope, {"plain": 3}, thread_id=thread_id)
    declared = await search_for(store, scope, {TIER: "gold"}, thread_id)
    assert await looked_at(store, scope, declared, thread_id) < 50
    undeclared = await search_for(store, scope, {"plain": 3}, thread_id)
    assert await looked_at(store, scope, undeclared, thread_id) >= 500


async def test_one_thread_without_tags_does_not_make_others_be_looked_through(store, scope, tenant, admin):
    await save(store, scope, metadata={TIER: "gold"})
    await save(store, scope, "plain", None, metadata={TIER: "gold"})
    await spoil(admin, scope, tags_too=True)
    assert [place[1] for place in await found(store, scope, {TIER: "gold"})] == ["plain", "t1"]
    assert await looked_at(store, scope, await search_for(store, scope, {TIER: "gold"})) < 50


async def test_with_many_threads_without_tags_only_what_no_tag_excludes_is_opened(store, scope, tenant, admin):
    await save(store, scope, metadata={TIER: "gold"})
    for number in range(tags_sql.OPEN_THREADS_MAX + 1):
        await save(store, scope, f"plain-{number}", None, metadata={TIER: "gold"} if number == 7 else {})
    await spoil(admin, scope, tags_too=True)
    search = await search_for(store, scope, {TIER: "gold"})
    assert search.untagged_threads is None  # all rows are looked through, unless a tag excludes them
    assert [place[1] for place in await found(store, scope, {TIER: "gold"})] == ["plain-7", "t1"]


async def test_the_rarest_of_several_keys_leads(store, scope, tenant):
    for number in range(5):
        await save(store, scope, at=("travel", 3), metadata={TIER: "gold", REGION: f"r{number}"})
    search = await search_for(store, scope, {"plain": 1, TIER: "gold", REGION: "r3"})
    assert search.names[0] == REGION
    assert search.untagged_threads == []


async def test_what_was_saved_before_the_declaration_is_still_found_in_the_same_thread(store, scope, tenant, admin):
    before = await save(store, scope, at=("travel", 1), metadata={TIER: "gold"})
    assert await searchable(admin, scope) is None
    after = await save(store, scope, metadata={TIER: "gold"})
    assert await searchable(admin, scope) is None
    assert len(await tags(admin, scope)) == 1
    for thread_id in (None, "t1"):
        ids = [place[0] for place in await found(store, scope, {TIER: "gold"}, thread_id=thread_id)]
        assert ids == [after.checkpoint_id, before.checkpoint_id]


@pytest.mark.parametrize(
    ("versions", "left"),
    [
        ([2, 2], [TIER]),
        ([2, 3], [TIER]),
        ([3, 2], [TIER]),
        ([3, 4, 3], [REGION]),
        ([2, 4], None),
        ([2, 1], None),
        ([2, None], None),
        ([None, 2], None),
    ],
)
async def test_a_thread_is_tagged_by_what_all_its_checkpoints_are(store, scope, tenant, admin, versions, left):
    for number in versions:
        await save(store, scope, at=None if number is None else ("travel", number))
    assert await searchable(admin, scope) == left


async def test_a_thread_that_begins_with_settings_or_writes_is_tagged_by_its_first_checkpoint(
    store, scope, tenant, admin
):
    await store.threads.put(scope, "t1")
    await store.checkpoints.put_writes(scope, TaskWrites("t2", "", "early", "task", "", [], None))
    for thread_id in ("t1", "t2"):
        assert await searchable(admin, scope, thread_id) == []
        await save(store, scope, thread_id, metadata={TIER: "gold"})
        assert await searchable(admin, scope, thread_id) == [TIER]
    await store.threads.put(scope, "t3")
    await save(store, scope, "t3", None)
    assert await searchable(admin, scope, "t3") is None


async def test_a_first_save_without_tags_is_not_overlooked_by_one_that_waited_for_it(store, scope, tenant, admin):
    await store.threads.put(scope, "t1")
    gate = Gate("COMMIT")
    held = asyncio.create_task(
        Steered(store, before=gate).checkpoints.save(
            scope, Save(thread_id="t1", content=state(a=1), metadata={TIER: "gold"})
        )
    )
    await gate.arrival()
    waiting = asyncio.create_task(save(store, scope, metadata={TIER: "gold"}))
    await blocked(admin)
    gate.opened.set()
    await asyncio.gather(held, waiting)
    assert await searchable(admin, scope) is None
    assert len(await found(store, scope, {TIER: "gold"})) == 2


async def test_patches_forks_and_migrations_are_tagged_by_their_version(store, scope, tenant, admin):
    first = await save(store, scope, at=("travel", 1), metadata={TIER: "gold"})
    await save(store, scope, at=("travel", 3), parent=Parent(first.checkpoint_id), fork=True, metadata={REGION: "eu"})
    assert len(await tags(admin, scope)) == 1
    await save(store, scope, "old", ("travel", 2), metadata={TIER: "gold"})
    for kind, count in ((STATE_MIGRATE_KIND, 2), (STATE_ROLLBACK_KIND, 3)):
        job_id = await store.migrating.begin(
            tenant, kind, "travel", "tester", target_version=3, idle_seconds=0, heads_per_second=1000
        )
        while (await store.jobs.get(tenant, job_id)).state not in {"done", "failed"}:
            await store.runner.run_due()
        assert len([each for each in await tags(admin, scope) if each[0] == "old"]) == count
        assert len(await found(store, scope, {TIER: "gold"}, thread_id="old")) == count
    assert await searchable(admin, scope, "old") == [TIER]


async def test_tags_go_with_their_checkpoints(store, scope, tenant, admin):
    async def fill(thread_id, count=4):
        for number in range(count):
            await save(store, scope, thread_id, metadata={TIER: "gold"}, run_id=f"run-{number}")

    await fill("t1")
    await store.threads.copy(scope, "t1", "t2")
    assert sorted(each[0] for each in await tags(admin, scope)) == ["t1"] * 4 + ["t2"] * 4
    assert await searchable(admin, scope, "t2") == [TIER]
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert sorted(each[0] for each in await tags(admin, scope)) == ["t1"] + ["t2"] * 4
    await store.threads.delete_runs(scope, ["run-0"])
    assert sorted(each[0] for each in await tags(admin, scope)) == ["t1"] + ["t2"] * 3
    await store.threads.delete(scope, "t2")
    assert sorted(each[0] for each in await tags(admin, scope)) == ["t1"]
    shredded = await store.shred.subject(scope, scope.subject_id, "tester")
    while (await store.jobs.get(tenant, shredded.job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    assert await tags(admin, scope) == []


async def test_a_thread_under_a_share_has_no_tags(store, scope, tenant, admin):
    await save(store, scope, share=SHARE, metadata={TIER: "gold"})
    assert await tags(admin, scope) == []
    assert await searchable(admin, scope) is None
    assert len(await found(store, scope, {TIER: "gold"}, SHARE, thread_id="t1")) == 1
    assert await found(store, scope, {TIER: "gold"}) == []


async def test_saves_without_a_declaration_write_no_tags(store, scope, tenant, admin):
    for at in (None, ("travel", 1)):
        await save(store, scope, at=at, metadata={TIER: "gold"})
    count = "SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1 AND searchable IS NOT NULL"
    assert await admin.fetchval(count, scope.tenant_id) == 0
    assert await tags(admin, scope) == []


async def test_a_tag_says_nothing_to_whoever_has_no_keys(store, scope, tenant, admin):
    other = Scope(scope.tenant_id, "user-2")
    elsewhere = TenantScope(uuid4())
    await store.state_schemas.put(elsewhere, "travel", 2 - 1, Definition(searchable=(TIER,)))
    for each, at in ((scope, 2), (other, 2), (Scope(elsewhere.tenant_id, scope.subject_id), 1)):
        await save(store, each, at=("travel", at), metadata={TIER: "gold"})
    everybody = [
        tag
        for each in (scope, other, Scope(elsewhere.tenant_id, scope.subject_id))
        for _, _, tag in await tags(admin, each)
    ]
    assert len(everybody) == len({*everybody}) == 3
    assert {len(tag) for tag in everybody} == {17}
    sealer = await store.keys.sealer(scope)
    assert tag_of(sealer, TIER, "gold") == everybody[0]
    assert tag_of(sealer, REGION, "gold") != everybody[0]
    different = ["gold", "Gold", "", "1", 1, 0, 1.5, None, "n", "i1"]
    assert len({tag_of(sealer, TIER, each) for each in different}) == len(different)
    assert tag_of(sealer, TIER, 1) == tag_of(sealer, TIER, 1.0) == tag_of(sealer, TIER, True)
    assert tag_of(sealer, "a", "b") != tag_of(sealer, "as", "b")
    assert [tag_of(sealer, TIER, each) for each in ([], {}, float("inf"), b"gold")] == [None] * 4


@pytest.mark.parametrize(
    ("keys", "pointer"),
    [
        ([f"k{number}" for number in range(SEARCHABLE_KEYS_MAX + 1)], "/searchable"),
        (["ä" * (SEARCHABLE_KEY_BYTES_MAX // 2) + "x"], "/searchable/0"),
        (["a", ""], "/searchable/1"),
        (["a\0b"], "/searchable/0"),
        (["a", "b", "a"], "/searchable/2"),
    ],
)
async def test_a_declaration_is_bounded(store, scope, keys, pointer):
    with pytest.raises(StateSchemaInvalid) as refused:
        await store.state_schemas.put(TenantScope(scope.tenant_id), "travel", 1, Definition(searchable=tuple(keys)))
    assert refused.value.pointer == pointer


async def test_the_largest_declaration_can_be_saved_under(store):
    scope = Scope(uuid4(), "u" * 255)
    keys = tuple(f"{number:02}" + "k" * (SEARCHABLE_KEY_BYTES_MAX - 2) for number in range(SEARCHABLE_KEYS_MAX))
    await store.state_schemas.put(TenantScope(scope.tenant_id), "wide", 1, Definition(searchable=keys))
    await save(store, scope, at=("wide", 1), metadata=dict.fromkeys(keys, "x"))
    assert len(await found(store, scope, dict.fromkeys(keys, "x"))) == 1
