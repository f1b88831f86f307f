"""A save is told which lists its save policy finds too long, and what it is told is what is stored.

Every way of storing a list is here: whole, appended to what is remembered, to what is read, by a patch, carried on
unchanged, and compacted.
"""

import dataclasses

import msgpack
import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import COMPACTION_POLICIES, SAVE_POLICIES, SEGMENTS
from storage.errors import FeatureOff
from storage.model import (
    ChannelValue,
    Compaction,
    FullState,
    Idempotency,
    LongList,
    Parent,
    Precondition,
    SaveRule,
)
from storage.scope import TenantScope
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.states import contents, document, load, packed, patch, save, state

NOTES = [f"note {number}: {'n' * 200}" for number in range(30)]
LARGE = "l" * 200_000


@pytest.fixture
async def tenant(store, scope):
    await switch_on(store, SAVE_POLICIES)
    await switch_on(store, COMPACTION_POLICIES)
    return TenantScope(scope.tenant_id)


async def ask(store, tenant, agent=None, *, elements=None, size=None):
    await store.save_policies.put(tenant, agent, SaveRule(compact_elements=elements, compact_bytes=size))


def versioned(number: int, content, *, append_to=None) -> FullState:
    return FullState({"notes": ChannelValue(number, packed(content), append_to=append_to)})


async def stored_sizes(store, scope):
    """Each list of the head as a load gives it: elements, and bytes."""
    channels = (await load(store, scope)).channels
    return [(name, len(msgpack.unpackb(each.value.data)), len(each.value.data)) for name, each in channels.items()]


def told(saved):
    return [dataclasses.astuple(each) for each in saved.needs_compaction]


async def test_a_list_is_long_with_one_element_more_than_the_policy_says(store, scope, tenant):
    await ask(store, tenant, elements=3)
    assert told(await save(store, scope, content=state(notes=[1, 2, 3], other="text", map={"a": [1] * 9}))) == []
    saved = await save(store, scope, content=state(notes=[1, 2, 3, 4], other="text"))
    assert saved.needs_compaction == (LongList("notes", 4, 5),)


async def test_without_a_policy_nobody_is_told_anything(store, scope):
    assert told(await save(store, scope, content=state(notes=NOTES))) == []


async def test_what_is_told_is_what_is_stored_however_the_list_grew(store, scope, tenant, database, root_key):
    await ask(store, tenant, size=1)
    first = await save(store, scope, content=versioned(1, NOTES))
    assert told(first) == await stored_sizes(store, scope)
    on_remembered = await save(store, scope, content=versioned(2, ["a", "b" * 5000], append_to=1))
    assert told(on_remembered) == await stored_sizes(store, scope)
    async with opened(database, root_key) as another:
        on_read = await save(another, scope, content=versioned(3, NOTES, append_to=2))
    assert told(on_read) == await stored_sizes(store, scope)
    unchanged = await save(store, scope, content=FullState({"notes": ChannelValue(3, None)}))
    assert told(unchanged) == await stored_sizes(store, scope)
    compacted = await store.compacting.compact(
        scope, Compaction(thread_id="t1", channel="notes", keep_last=40, summary=[msgpack.packb("so far")])
    )
    assert told(compacted) == await stored_sizes(store, scope)
    assert compacted.needs_compaction[0].elements == 41


@pytest.mark.parametrize("before", [None, [], ["a"] * 20, NOTES], ids=["new", "empty", "inline", "pieces"])
async def test_a_patch_says_the_size_of_the_list_it_appended_to(store, scope, tenant, before):
    await ask(store, tenant, size=1)
    first = await save(store, scope, content=state(other="x", **({} if before is None else {"notes": before})))
    content = patch(append={"notes": ["z" * 300] * 20}, put={"other": "y"})
    patched = await save(store, scope, content=content, precondition=Precondition(first.checkpoint_id))
    assert told(patched) == [each for each in await stored_sizes(store, scope) if each[0] == "notes"]


async def test_large_leaves_count_with_their_bytes_wherever_they_are(database, root_key, scope):
    async with opened(database, root_key, blobs=MemoryBlobStore()) as store:
        await switch_on(store, SAVE_POLICIES)
        await switch_on(store, COMPACTION_POLICIES)
        await ask(store, TenantScope(scope.tenant_id), size=len(LARGE))
        assert told(await save(store, scope, content=state(notes=["short", LARGE]))) == [
            ("notes", 2, 1 + 6 + 5 + len(LARGE))
        ]


async def test_a_policy_counts_for_the_next_save_of_a_process_that_remembers_the_head(store, scope, tenant):
    first = await save(store, scope, content=state(notes=NOTES))
    second = await save(store, scope, content=state(notes=NOTES), parent=Parent(first.checkpoint_id))
    assert told(second) == []
    await ask(store, tenant, elements=10)
    third = await save(store, scope, content=state(notes=NOTES), parent=Parent(second.checkpoint_id))
    assert [each.elements for each in third.needs_compaction] == [30]
    await ask(store, tenant)
    assert told(await save(store, scope, content=state(notes=NOTES), parent=Parent(third.checkpoint_id))) == []


async def test_the_agent_that_saves_says_what_is_long_and_else_the_tenant(store, scope, tenant):
    await ask(store, tenant, elements=10)
    await ask(store, tenant, "patient", elements=100)
    assert told(await save(store, scope, content=state(notes=NOTES), agent="patient")) == []
    assert told(await save(store, scope, content=state(notes=NOTES))) == []  # the thread is its
    assert told(await save(store, scope, content=state(notes=NOTES), agent="hasty"))


async def test_what_cannot_be_compacted_is_never_long(store, scope, tenant):
    await ask(store, tenant, elements=1, size=1)
    channels = {
        "~adapter": ChannelValue(None, packed(NOTES)),
        "delta": ChannelValue(None, packed(NOTES)),
        "text": ChannelValue(None, packed(document("text"))),
        "empty": ChannelValue(None, packed([])),
    }
    assert told(await save(store, scope, content=FullState(channels), delta_channels=("delta",))) == []


async def test_a_receipt_names_no_channel(store, scope, tenant, admin):
    await ask(store, tenant, elements=1)
    key = Idempotency("key", b"d" * 32)
    assert told(await save(store, scope, content=state(notes=NOTES), idempotency=key))
    again = await save(store, scope, content=state(notes=NOTES), idempotency=key)
    assert (again.created, told(again)) == (False, [])


async def test_nothing_is_asked_of_lists_before_no_older_build_runs(own_store, scope):
    await switch_on(own_store, SAVE_POLICIES)
    tenant = TenantScope(scope.tenant_id)
    await own_store.save_policies.put(tenant, None, SaveRule(strict=True))
    for rule in (SaveRule(strict=True, compact_elements=5), SaveRule(compact_bytes=5)):
        with pytest.raises(FeatureOff, match=r"when lists need compaction .*finish-upgrade"):
            await own_store.save_policies.put(tenant, None, rule)
    assert (await own_store.save_policies.get(tenant)).tenant.rule == SaveRule(strict=True)


async def test_nobody_is_told_by_a_policy_that_was_edited(store, scope, tenant, admin):
    await ask(store, tenant, elements=100)
    await admin.execute("UPDATE stateroom.save_policies SET compact_elements = 1")
    head = await save(store, scope, content=state(notes=NOTES), precondition=Precondition(None, absent=True))
    assert told(head) == []
    assert (await store.save_policies.get(tenant)).damaged == {""}


async def test_what_left_the_head_goes_to_a_segment_when_it_is_idle(store, scope, tenant, database, root_key):
    """The raw messages are archived: the head keeps the summary, and they are read where they are."""
    await ask(store, tenant, elements=10)
    async with opened(database, root_key, archive=MemoryBlobStore()) as archiving:
        await switch_on(archiving, SEGMENTS)
        raw = await save(archiving, scope, content=state(notes=NOTES))
        assert [each.channel for each in raw.needs_compaction] == ["notes"]
        compaction = Compaction(thread_id="t1", channel="notes", keep_last=2, summary=[msgpack.packb("so far")])
        assert told(await archiving.compacting.compact(scope, compaction)) == []
        done = await archiving.archives.segmenting.move(scope, "t1", ThinningRule(keep_last=1), actor="round")
        assert (done.segments, done.checkpoints) == (1, 1)
        old = await load(archiving, scope, checkpoint_id=raw.checkpoint_id)
        assert contents(old) == {"notes": NOTES}
