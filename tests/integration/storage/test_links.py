"""Links of threads: a thread names the one that it was begun from, and every verb on either leaves that as it is."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from datetime import datetime
from uuid import uuid4

import pytest

from crypto import KeyDestroyed
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import LINKS, SEGMENTS
from storage.errors import (
    ClientShareRequired,
    FeatureOff,
    IntegrityFailure,
    InvalidState,
    LegalHold,
    LimitExceeded,
    LinkCircular,
    ThreadNotFound,
    Unavailable,
)
from storage.model import Idempotency, ThreadLink
from storage.retention.planner import Policy
from storage.scope import ClientShare, Scope, TenantScope
from storage.statements.threads import links as links_sql
from storage.threads.links import ANCESTORS_MAX, FAMILY_THREADS_MAX, Links
from storage.threads.pruning import NOTHING
from storage.threads.thinning import ThinningRule
from storage.threads.verbs import Threads
from tests.support.archive_rows import fill, fsck, opened, rows
from tests.support.features import switch_on
from tests.support.interleaving import Gate, Steered, blocked
from tests.support.states import load, put, save, state, write
from tests.support.transfers import deployment, exported, exported_tenant, imported

LINK = ThreadLink("parent", "sub|1", "checkpoint-9")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key, archive=MemoryBlobStore()) as made:
        await switch_on(made, LINKS)
        await switch_on(made, SEGMENTS)
        yield made


async def children(store, scope, thread_id="parent"):
    return [each.thread_id for each in (await store.links.children(scope, thread_id)).items]


async def hold(store, scope, thread_id, *, held=True):
    await store.retention_policies.put_thread(scope, thread_id, Policy(legal_hold=held))


async def findings(store, scope):
    return {(each.thread_id, each.code) for each in (await store.verification.subject(scope)).findings}


# --- saying it -------------------------------------------------------------------------------------------------------


async def test_a_thread_is_made_linked_and_shows_its_parent_there_or_not(store, scope):
    made, created = await store.links.link(scope, "child", LINK)
    assert (created, made.link, made.parent_absent) == (True, LINK, True)
    await save(store, scope, "parent")
    shown = await store.threads.get(scope, "child")
    assert (shown.link, shown.parent_absent) == (LINK, False)
    assert [(each.thread_id, each.link) for each in (await store.threads.list(scope)).items] == [
        ("parent", None),
        ("child", LINK),
    ]
    assert await children(store, scope) == ["child"]
    assert await children(store, scope, "child") == await children(store, scope, "nobody") == []


async def test_a_link_is_said_again_replaced_and_taken_away(store, scope):
    await save(store, scope, "child")
    for _ in range(2):
        shown, created = await store.links.link(scope, "child", LINK)
        assert (shown.link, created) == (LINK, False)
    other = ThreadLink("other")
    assert (await store.links.link(scope, "child", other))[0].link == other
    assert (await children(store, scope), await children(store, scope, "other")) == ([], ["child"])
    for _ in range(2):
        await store.links.unlink(scope, "child")
    assert (await store.threads.get(scope, "child")).link is None
    assert await children(store, scope, "other") == []
    with pytest.raises(ThreadNotFound):
        await store.links.unlink(scope, "nobody")
    with pytest.raises(ThreadNotFound):
        await store.links.unlink(Scope(uuid4(), "user-1"), "child")


async def test_a_thread_that_was_unlinked_is_sealed_as_if_it_had_never_been_linked(store, scope, admin):
    await save(store, scope, "child")
    (before,) = await rows(admin, scope, "child", "threads")
    await store.links.link(scope, "child", LINK)
    (linked,) = await rows(admin, scope, "child", "threads")
    await store.links.unlink(scope, "child")
    (after,) = await rows(admin, scope, "child", "threads")
    assert len(after["seal"]) == len(before["seal"]) < len(linked["seal"])
    assert [each["parent_thread_id"] for each in (before, linked, after)] == [None, "parent", None]


async def test_a_thread_under_a_share_is_linked_with_it_and_listed_without(store, scope):
    share = ClientShare(b"s" * 32)
    await store.links.link(scope, "child", LINK, share)
    with pytest.raises(ClientShareRequired):
        await store.links.link(scope, "child", ThreadLink("other"))
    with pytest.raises(ClientShareRequired):
        await store.links.unlink(scope, "child")
    assert await children(store, scope) == ["child"]
    await store.links.unlink(scope, "child", share)
    assert await children(store, scope) == []


async def test_links_are_seen_by_their_subject_only(store, scope):
    others = (Scope(scope.tenant_id, "user-2"), Scope(uuid4(), scope.subject_id))
    await save(store, scope, "parent")
    await store.links.link(scope, "child", LINK)
    for other in others:
        made, _ = await store.links.link(other, "child of another", LINK)
        assert made.parent_absent  # the parent of that name is somebody else's
        assert await children(store, other) == ["child of another"]
        with pytest.raises(ThreadNotFound):
            await store.links.unlink(other, "child")
        assert (await store.links.delete_family(other, "parent")).threads == 1
    assert await children(store, scope) == ["child"]
    assert await names(store, scope) == ["child", "parent"]


async def test_what_cannot_be_an_id_is_no_parent(store, scope):
    for link in (ThreadLink(""), ThreadLink("a\0b"), ThreadLink("x" * 256)):
        with pytest.raises(InvalidState):
            await store.links.link(scope, "child", link)


# --- circles ---------------------------------------------------------------------------------------------------------


async def test_no_thread_becomes_its_own_ancestor(store, scope):
    with pytest.raises(LinkCircular):
        await store.links.link(scope, "a", ThreadLink("a"))
    for child, parent in ("ba", "cb", "dc"):
        await store.links.link(scope, child, ThreadLink(parent))
    for parent in "abcd":  # a is not there, only named
        with pytest.raises(LinkCircular):
            await store.links.link(scope, "a", ThreadLink(parent))
    with pytest.raises(ThreadNotFound):
        await store.threads.get(scope, "a")
    await store.links.unlink(scope, "c")
    await store.links.link(scope, "a", ThreadLink("d"))


async def test_a_thread_has_a_bounded_number_of_ancestors(store, scope):
    for number in range(1, ANCESTORS_MAX + 2):
        await store.links.link(scope, f"t{number}", ThreadLink(f"t{number - 1}"))
    with pytest.raises(LimitExceeded, match="ANCESTORS_MAX is 32"):
        await store.links.link(scope, "one more", ThreadLink(f"t{ANCESTORS_MAX + 1}"))


async def test_two_who_link_in_a_circle_at_once_make_none(store, scope, admin):
    for thread_id in "ab":
        await save(store, scope, thread_id)
    gate = Gate(links_sql.LINK)
    steered = Steered(store, before=gate)
    held = Links(steered.threads._access, steered.threads)
    first = asyncio.create_task(held.link(scope, "a", ThreadLink("b")))
    await gate.arrival()
    second = asyncio.create_task(store.links.link(scope, "b", ThreadLink("a")))
    await blocked(admin)
    gate.opened.set()
    await first
    with pytest.raises(LinkCircular):
        await second
    assert (await children(store, scope, "a"), await children(store, scope, "b")) == ([], ["a"])


async def test_a_save_and_a_link_at_once_lose_neither(store, scope):
    await save(store, scope, "child")
    for number in range(8):
        link = ThreadLink("parent", checkpoint_id=f"c{number}")
        await asyncio.gather(
            store.links.link(scope, "child", link),
            save(store, scope, "child", content=state(n=number)),
            save(store, scope, "child", namespace=f"sub-{number}"),
        )
        assert (await store.threads.get(scope, "child")).link == link
    assert await findings(store, scope) == set()


# --- what other verbs do ---


async def _saved(store, scope):
    await save(store, scope, "child", content=state(n=1))
    await save(store, scope, "child", content=state(n=2))  # on what is remembered


async def _namespaces(store, scope):
    await save(store, scope, "child", namespace="another")


async def _written(store, scope):
    head = (await load(store, scope, "child")).checkpoint_id
    await put(store, scope, head, write(0, "c", "x"), thread_id="child")
    await put(store, scope, head, write(0, "c", "y"), thread_id="child", task_id="other")
    await put(store, scope, "not-saved-yet", write(0, "c", "y"), thread_id="child")


async def _settings(store, scope):
    await store.threads.put(scope, "child", strict=True)
    await store.threads.put(scope, "child", strict=False, agent="another", agent_given=True)


async def _pruned(store, scope):
    await store.threads.prune(scope, ["child"], "keep_latest")


async def _runs_deleted(store, scope):
    await store.threads.delete_runs(scope, ["run-1"])


async def _thinned(store, scope):
    await store.pruning.thin(scope, "child", ThinningRule(keep_last=1))


async def _archived(store, scope):
    await store.archives.archive(scope, "child")
    assert await children(store, scope) == ["child"]
    assert (await store.threads.get(scope, "child")).tier == "archive"
    again, _ = await store.links.link(scope, "child", replace_checkpoint(LINK, "while archived"))
    assert again.tier == "archive"
    await store.links.link(scope, "child", LINK)
    assert await findings(store, scope) == set()
    await store.archives.restore(scope, "child")


async def _segmented(store, scope):
    await store.archives.segmenting.move(scope, "child", ThinningRule(keep_last=1), actor="test")
    assert await children(store, scope) == ["child"]
    assert await findings(store, scope) == set()
    await save(store, scope, "child")
    await store.archives.restore(scope, "child")


async def _rotated(store, scope):
    rotated = await store.rotation.rotate_subject(scope, "test")
    while (await store.jobs.get(TenantScope(scope.tenant_id), rotated.job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()


async def _parent_deleted(store, scope):
    await save(store, scope, "parent")
    await store.threads.delete(scope, "parent")


def replace_checkpoint(link, checkpoint_id):
    return ThreadLink(link.thread_id, link.namespace, checkpoint_id)


VERBS = (
    _saved, _namespaces, _written, _settings, _pruned, _runs_deleted, _thinned, _archived, _segmented, _rotated,
    _parent_deleted,
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__[1:])
async def test_a_verb_leaves_the_link_as_it_is(store, scope, verb):
    await fill(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    await verb(store, scope)
    assert (await store.threads.get(scope, "child")).link == LINK
    assert await children(store, scope) == ["child"]
    assert await findings(store, scope) == set()
    assert (await fsck(store, scope)).faults == {}


async def test_all_verbs_one_after_another_leave_the_link_as_it_is(store, scope):
    await fill(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    for verb in (*VERBS, *reversed(VERBS)):
        await verb(store, scope)
        assert (await store.threads.get(scope, "child")).link == LINK, verb
    assert await findings(store, scope) == set()


async def test_a_copy_is_a_sibling_and_children_stay_with_their_parent(store, scope):
    await fill(store, scope, "middle")
    await store.links.link(scope, "middle", LINK)
    await store.links.link(scope, "leaf", ThreadLink("middle"))
    key = Idempotency("once", bytes(32))
    for _ in range(2):
        await store.threads.copy(scope, "middle", "copy", key)
    assert (await store.threads.get(scope, "copy")).link == LINK
    assert await children(store, scope) == ["copy", "middle"]
    assert (await children(store, scope, "middle"), await children(store, scope, "copy")) == (["leaf"], [])
    assert await findings(store, scope) == set()


async def test_a_copy_that_takes_a_name_of_its_ancestors_harms_nothing(store, scope):
    """A name that nothing had: the only way by which links become a circle."""
    await store.links.link(scope, "b", ThreadLink("a"))
    await store.links.link(scope, "c", ThreadLink("b"))
    await save(store, scope, "c")
    await store.threads.copy(scope, "c", "a")
    assert [await children(store, scope, each) for each in "abc"] == [["b"], ["a", "c"], []]
    with pytest.raises(LinkCircular):
        await store.links.link(scope, "b", ThreadLink("c"))
    with pytest.raises(LimitExceeded):
        await store.links.link(scope, "d", ThreadLink("c"))
    assert await findings(store, scope) == set()
    assert (await store.links.delete_family(scope, "b")).threads == 3
    assert (await store.threads.list(scope)).items == []


# --- families ---


async def family(store, scope, *links):
    """Threads with something in them: ``"ba"`` is b, a child of a."""
    for child, parent in links:
        await save(store, scope, child)
        await store.links.link(scope, child, ThreadLink(parent))


async def names(store, scope):
    return sorted(each.thread_id for each in (await store.threads.list(scope)).items)


async def test_deleting_a_thread_leaves_its_children_which_show_that_it_is_gone(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba")
    await store.threads.delete(scope, "a")
    assert (await store.threads.get(scope, "b")).parent_absent
    assert await children(store, scope, "a") == ["b"]


async def test_a_family_is_deleted_and_nobody_else(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba", "ca", "db", "ed", "xy")
    removed = await store.links.delete_family(scope, "a")
    assert (removed.threads, removed.checkpoints) == (5, 5)
    assert await names(store, scope) == ["x"]
    with pytest.raises(ThreadNotFound):
        await store.links.delete_family(scope, "a")
    with pytest.raises(ThreadNotFound):
        await store.links.delete_family(Scope(uuid4(), "user-1"), "x")


async def test_what_an_earlier_deletion_left_of_a_family_is_deleted_by_its_name(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba", "cb")
    await store.threads.delete(scope, "a")
    assert (await store.links.delete_family(scope, "a")).threads == 2


async def test_a_family_of_which_one_is_held_is_not_deleted_at_all(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba", "ca", "db")
    await hold(store, scope, "c")
    with pytest.raises(LegalHold):
        await store.links.delete_family(scope, "a")
    assert await names(store, scope) == ["a", "b", "c", "d"]
    assert (await store.links.delete_family(scope, "b")).threads == 2
    await hold(store, scope, "c", held=False)
    await store.retention_policies.put(TenantScope(scope.tenant_id), None, Policy(legal_hold=True))
    with pytest.raises(LegalHold):
        await store.links.delete_family(scope, "a")
    assert await names(store, scope) == ["a", "c"]


async def test_a_held_thread_keeps_its_link_and_gets_one(store, scope):
    await save(store, scope, "child")
    await hold(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    await store.links.link(scope, "child", LINK)
    for change in (store.links.link(scope, "child", ThreadLink("other")), store.links.unlink(scope, "child")):
        with pytest.raises(LegalHold):
            await change
    assert (await store.threads.get(scope, "child")).link == LINK
    await hold(store, scope, "child", held=False)
    await store.links.unlink(scope, "child")


async def test_a_family_that_is_too_large_is_not_deleted_at_all(store, scope, admin):
    await save(store, scope, "a")
    await family(store, scope, "ba")
    (row,) = await rows(admin, scope, "b", "threads")
    columns = ", ".join(each for each in row if each != "thread_id")
    await admin.execute(
        f"INSERT INTO stateroom.threads (thread_id, {columns}) SELECT 'b' || n, {columns} FROM stateroom.threads,"
        f" generate_series(1, {FAMILY_THREADS_MAX}) n WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = 'b'",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip
    with pytest.raises(LimitExceeded, match="FAMILY_THREADS_MAX"):
        await store.links.delete_family(scope, "a")
    assert await count(admin, scope) == FAMILY_THREADS_MAX + 2


async def count(admin, scope):
    return await admin.fetchval(
        "SELECT count(*) FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip


async def test_a_thread_that_is_linked_elsewhere_meanwhile_stays(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba", "ca")

    class Meanwhile(Threads):
        """Links b elsewhere when the first of the family goes."""

        async def delete(self, scope, thread_id, *, guard=None):
            if thread_id != "a" and "b" in await children(store, scope, "a"):
                await store.links.link(scope, "b", ThreadLink("elsewhere"))
            return await super().delete(scope, thread_id, guard=guard)

    access = store.threads._access
    assert (await Links(access, Meanwhile(access)).delete_family(scope, "a")).threads == 2
    assert await names(store, scope) == ["b"]


async def test_leaves_go_first_and_a_deletion_that_broke_off_goes_on_where_it_was(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba", "cb", "dc")

    class Ending(Threads):
        """Deletes the leaf, and nothing after it."""

        async def delete(self, scope, thread_id, *, guard=None):
            if thread_id != "d":
                raise Unavailable
            return await super().delete(scope, thread_id, guard=guard)

    access = store.threads._access
    with pytest.raises(Unavailable):
        await Links(access, Ending(access)).delete_family(scope, "a")
    assert await names(store, scope) == ["a", "b", "c"]
    assert (await store.links.delete_family(scope, "a")).threads == 3


async def test_one_that_is_gone_meanwhile_ends_nothing(store, scope):
    await save(store, scope, "a")
    await family(store, scope, "ba", "ca")

    class Meanwhile(Threads):
        """Deletes each before it is asked to."""

        async def delete(self, scope, thread_id, *, guard=None):
            await super().delete(scope, thread_id)
            return await super().delete(scope, thread_id, guard=guard)

    access = store.threads._access
    assert await Links(access, Meanwhile(access)).delete_family(scope, "a") == NOTHING
    assert await names(store, scope) == []


# --- listing ---


async def test_children_come_page_by_page_newest_first(store, scope):
    made = [f"child-{number:02}" for number in range(7)]
    for thread_id in made:
        await store.links.link(scope, thread_id, ThreadLink("parent"))
    found, after = [], None
    while True:
        page = await store.links.children(scope, "parent", limit=3, after=after)
        found += [each.thread_id for each in page.items]
        after = page.after
        if after is None:
            break
    assert found == made[::-1]


async def test_children_of_one_moment_are_listed_once_each(store, scope, admin):
    """An import keeps the times, which may be equal."""
    for number in range(5):
        await store.links.link(scope, f"child-{number}", ThreadLink("parent"))
    await admin.execute(
        "UPDATE stateroom.threads SET created_at = $3 WHERE tenant_id = $1 AND subject_id = $2",
        scope.tenant_id, scope.subject_id, datetime.fromisoformat("2026-01-01T00:00:00Z"),
    )  # fmt: skip
    found, after = [], None
    while len(found) < 5:
        page = await store.links.children(scope, "parent", limit=2, after=after)
        found += [each.thread_id for each in page.items]
        after = page.after
    assert found == [f"child-{number}" for number in reversed(range(5))]


# --- whoever edits rows ---


async def edit(admin, scope, column, thread_id="child"):
    await admin.execute(
        f"UPDATE stateroom.threads SET {column} WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
        scope.tenant_id, scope.subject_id, thread_id,
    )  # fmt: skip


@pytest.mark.parametrize("column", ["parent_thread_id = 'other'", "parent_thread_id = NULL"])
async def test_a_parent_that_was_edited_is_noticed(store, scope, admin, column):
    await save(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    await edit(admin, scope, column)
    with pytest.raises(IntegrityFailure, match="linked to was altered"):
        await store.threads.get(scope, "child")
    assert [each.damaged for each in (await store.threads.list(scope)).items] == [True]
    with pytest.raises(IntegrityFailure):
        await store.links.link(scope, "grandchild", ThreadLink("child"))
    assert await findings(store, scope) == {("child", "thread-seal")}


async def test_a_thread_that_was_put_below_a_parent_is_listed_as_damaged_and_not_deleted_with_it(store, scope, admin):
    await save(store, scope, "parent")
    await save(store, scope, "victim")
    await store.links.link(scope, "child", ThreadLink("parent"))
    await edit(admin, scope, "parent_thread_id = 'parent'", "victim")
    listed = (await store.links.children(scope, "parent")).items
    assert [(each.thread_id, each.damaged, each.link) for each in listed] == [
        ("child", False, ThreadLink("parent")),
        ("victim", True, None),
    ]
    with pytest.raises(IntegrityFailure, match="'victim'"):
        await store.links.delete_family(scope, "parent")
    assert await names(store, scope) == ["child", "parent", "victim"]
    assert await findings(store, scope) == {("victim", "thread-seal")}


async def test_an_archived_thread_whose_parent_was_edited_is_found(store, scope, admin):
    await fill(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    await store.archives.archive(scope, "child")
    await edit(admin, scope, "parent_thread_id = NULL")
    assert ("child", "archive") in await findings(store, scope)


async def test_the_seal_of_an_earlier_link_is_noticed_once_the_sums_went_on(store, scope, admin):
    await save(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    (before,) = await rows(admin, scope, "child", "threads")
    head = (await load(store, scope, "child")).checkpoint_id
    await store.links.link(scope, "child", ThreadLink("other"))
    await put(store, scope, head, write(0, "c", 1), thread_id="child")
    await admin.execute(
        "UPDATE stateroom.threads SET seal = $4, parent_thread_id = 'parent'"
        " WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
        scope.tenant_id, scope.subject_id, "child", before["seal"],
    )  # fmt: skip
    assert await findings(store, scope) == {("child", "pending-writes")}


async def test_a_link_of_another_thread_does_not_open(store, scope, admin):
    await store.links.link(scope, "one", LINK)
    await store.links.link(scope, "two", ThreadLink("other"))
    (one,) = await rows(admin, scope, "one", "threads")
    await admin.execute(
        "UPDATE stateroom.threads SET seal = $4, parent_thread_id = 'parent', created_at = $5"
        " WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
        scope.tenant_id, scope.subject_id, "two", one["seal"], one["created_at"],
    )  # fmt: skip
    assert [(each.thread_id, each.damaged) for each in (await store.links.children(scope, "parent")).items] == [
        ("two", True),
        ("one", False),
    ]


# --- elsewhere ---


@pytest.fixture(scope="module")
async def there(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as made:
        yield made


async def test_no_thread_is_linked_before_the_feature_is_on(there, scope):
    await save(there, scope, "child")
    with pytest.raises(FeatureOff, match="finish-upgrade"):
        await there.links.link(scope, "child", LINK)
    await there.links.unlink(scope, "child")
    assert await children(there, scope) == []


async def test_a_link_comes_over_with_its_thread_once_the_feature_is_on_there(store, there, scope):
    await fill(store, scope, "child")
    await store.links.link(scope, "child", LINK)
    target = Scope(uuid4(), scope.subject_id)
    file = await exported(store, there, scope, target.tenant_id, "child")
    with pytest.raises(FeatureOff):
        await imported(there, target.tenant_id, file)
    assert await names(there, target) == []
    await switch_on(there, LINKS)
    assert (await imported(there, target.tenant_id, file)).verified == 1
    shown = await there.threads.get(target, "child")
    assert (shown.link, shown.parent_absent) == (LINK, True)
    assert await children(there, target) == ["child"]
    assert await findings(there, target) == set()
    assert (await imported(there, target.tenant_id, file)).passed_over == 1


async def test_a_tenants_families_come_over_whole(store, there, scope):
    await switch_on(there, LINKS)
    await save(store, scope, "a")
    await family(store, scope, "ba", "cb")
    to = uuid4()
    file = await exported_tenant(store, there, scope.tenant_id, to)
    assert (await imported(there, to, file)).threads == 3
    target = Scope(to, scope.subject_id)
    assert [await children(there, target, each) for each in "abc"] == [["b"], ["c"], []]


async def test_a_shredded_subjects_links_are_gone_with_its_keys(store, scope):
    await store.links.link(scope, "child", LINK)
    await store.shred.subject(scope, scope.subject_id, "test")
    for verb in (children(store, scope), store.links.link(scope, "child", LINK), store.links.unlink(scope, "child"),
                 store.links.delete_family(scope, "parent")):  # fmt: skip
        with pytest.raises(KeyDestroyed):
            await verb
