"""Writers of items at once, and batches whose writes stand in each other's way: each write has one of its outcomes."""

import asyncio
from datetime import timedelta

import pytest

from storage.control.features import ITEMS
from storage.errors import ItemExists, ItemMoved, LegalHold
from storage.items.model import Written
from storage.retention.planner import Policy
from storage.scope import ClientShare, Scope, TenantScope
from storage.statements.items import items as sql
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.interleaving import CancelAtAwait, Gate
from tests.support.items import PATH, delete, get, paths, put, search, steered, write


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


@pytest.fixture
def items(store):
    return store.items


async def expired(items, scope):
    """Remove what is over."""
    async for _ in items.expiring.run(TenantScope(scope.tenant_id)):
        pass


def told(outcomes):
    return [each.status if isinstance(each, Written) else type(each) for each in outcomes]


async def test_what_is_put_and_deleted_in_one_batch_leaves_nothing(items, scope):
    assert told(await write(items, scope, put("a", {}), delete("a"))) == ["created", "deleted"]
    assert await get(items, scope, "a") == [None]
    assert await paths(items, scope) == []
    assert told(await write(items, scope, delete("a"), put("a", {}), delete("a"), delete("a"))) == [
        "absent", "created", "deleted", "absent",
    ]  # fmt: skip
    assert (await search(items, scope)).items == []


async def test_a_condition_on_what_the_same_batch_made_is_decided_by_it(items, scope):
    outcomes = await write(
        items, scope, put("a", {"n": 1}), put("a", {"n": 2}, if_revision=7), delete("a", if_revision=7), delete("b")
    )
    assert told(outcomes) == ["created", ItemMoved, ItemMoved, "absent"]
    assert outcomes[1].revision == outcomes[2].revision == outcomes[0].revision
    assert told(await write(items, scope, delete("a"), put("a", {}, if_absent=True))) == ["deleted", "created"]


@pytest.mark.parametrize(
    "late", [delete("k"), put("k", {"n": 2}, if_revision=1), delete("k", if_revision=1), put("k", {"n": 2})],
    ids=["delete", "put at a revision", "delete at a revision", "put"],
)  # fmt: skip
async def test_what_comes_to_a_path_that_somebody_makes_at_this_moment_finds_what_is_in_it(store, items, scope, late):
    await write(items, scope, put("other", {}, path=("elsewhere",)))  # the subject has keys
    gate = Gate(sql.FOUND)
    waiting = asyncio.create_task(write(steered(store, gate), scope, late))
    await gate.arrival()  # no path was found to lock
    (made,) = await write(items, scope, put("k", {"n": 1}))
    gate.opened.set()
    (outcome,) = await waiting
    if late.value is None:
        assert outcome.status == "deleted"
    else:
        assert (outcome.status, outcome.revision > made.revision) == ("replaced", True)
    assert made.revision == 1


async def test_of_two_who_make_a_path_both_have_made_their_item(store, items, scope):
    await write(items, scope, put("other", {}, path=("elsewhere",)))
    gate = Gate(sql.FOUND)
    first = asyncio.create_task(write(steered(store, gate), scope, put("a", {}, if_absent=True)))
    await gate.arrival()
    assert told(await write(items, scope, put("b", {}, if_absent=True))) == ["created"]
    gate.opened.set()
    assert told(await first) == ["created"]
    assert {each.name.key for each in (await search(items, scope)).items} == {"a", "b"}


async def test_of_two_who_make_an_item_one_is_told_that_it_is_there(store, items, scope):
    await write(items, scope, put("other", {}, path=("elsewhere",)))
    gate = Gate(sql.FOUND)
    first = asyncio.create_task(write(steered(store, gate), scope, put("a", {"by": 1}, if_absent=True)))
    await gate.arrival()
    assert told(await write(items, scope, put("a", {"by": 2}, if_absent=True))) == ["created"]
    gate.opened.set()
    assert told(await first) == [ItemExists]


async def test_no_revision_comes_back_however_a_path_went(store, items, scope, admin):
    seen = set()
    for round_ in range(4):
        outcomes = await write(
            items, scope, put("a", {"n": round_}, ttl_seconds=3600), put("b", {}, ttl_seconds=3600), put("a", {})
        )
        assert told(outcomes) == ["created", "created", "replaced"]
        revisions = {each.revision for each in outcomes}
        assert not revisions & seen
        seen |= revisions
        if round_ % 2:
            await write(items, scope, delete("a"), delete("b"))
        else:
            await write(items, scope, delete("a"))
            await admin.execute(
                "UPDATE stateroom.items SET expires_at = now() - interval '1 s' WHERE tenant_id = $1", scope.tenant_id
            )
            await expired(items, scope)
        assert await paths(items, scope) == []


async def test_a_note_of_a_read_waits_for_no_writer_and_keeps_nothing_that_was_written_since(
    store, items, scope, admin
):
    async def fade(key):
        await admin.execute(
            "UPDATE stateroom.items SET expires_at = now() + interval '60 s' WHERE tenant_id = $1", scope.tenant_id
        )
        (read,) = await get(items, scope, key)
        return read.expires_at

    await write(items, scope, put("a", {"n": 1}, ttl_seconds=3600), put("b", {"n": 1}, ttl_seconds=3600))
    await fade("a")
    await fade("b")
    gate = Gate("COMMIT")
    writing = asyncio.create_task(write(steered(store, gate), scope, put("b", {"n": 2}, ttl_seconds=100), delete("a")))
    await gate.arrival()  # both rows are locked
    async with asyncio.timeout(10):
        await items.keeping.flush()
    gate.opened.set()
    written = (await writing)[0]
    await items.keeping.flush()
    (b, a) = await get(items, scope, "b", "a", refresh=False)
    assert a is None
    assert b.expires_at == written.expires_at
    before = await fade("b")
    await items.keeping.flush()
    (after,) = await get(items, scope, "b", refresh=False)
    assert after.expires_at - before > timedelta(seconds=30)


async def test_keepers_and_writers_of_the_same_items_never_wait_for_each_other_in_a_circle(items, scope, admin):
    names = [f"k{number}" for number in range(10)]
    await write(items, scope, *(put(name, {}, ttl_seconds=3600) for name in names))

    async def keep():
        for _ in range(20):
            await admin.execute(
                "UPDATE stateroom.items SET expires_at = now() + interval '60 s' WHERE tenant_id = $1"
                " AND ttl_seconds IS NOT NULL AND key_id IN (SELECT key_id FROM stateroom.items WHERE tenant_id = $1"
                " ORDER BY path_id, key_id FOR UPDATE SKIP LOCKED)",
                scope.tenant_id,
            )
            await get(items, scope, *names)
            await items.keeping.flush()

    async def renew(order):
        for number in range(20):
            half = len(order) // 2
            await write(
                items, scope, *(put(name, {"n": number}, ttl_seconds=3600) for name in order[:half]),
                *(delete(name) for name in order[half:]),
            )  # fmt: skip

    async with asyncio.timeout(60):
        await asyncio.gather(keep(), renew(names), renew(names[::-1]))
    found = (await search(items, scope)).items  # its live set is right
    assert {each.name.key for each in found} <= {*names}


async def test_a_hold_that_is_set_while_a_writer_waits_is_kept(store, items, scope):
    await write(items, scope, put("a", {"n": 1}), put("b", {"n": 1}))
    first, second = Gate("COMMIT"), Gate(sql.FOUND)
    writing = asyncio.create_task(write(steered(store, first), scope, put("a", {"n": 2})))
    await first.arrival()
    holding = asyncio.create_task(_hold(store, scope, held=True))
    waiting = asyncio.create_task(write(steered(store, second), scope, put("b", {"n": 2}), put("c", {})))
    first.opened.set()
    assert told(await writing) == ["replaced"]
    await holding
    second.opened.set()
    outcomes = await waiting
    assert told(outcomes) in ([LegalHold, "created"], ["replaced", "created"])
    assert told(await write(items, scope, put("a", {"n": 3}), delete("b"), put("d", {}), delete("nothing"))) == [
        LegalHold, LegalHold, "created", "absent",
    ]  # fmt: skip
    assert told(await write(items, scope, put("a", {"n": 3}), put("e", {}), atomic=True)) == [LegalHold, type(None)]
    await _hold(store, scope, held=False)
    assert told(await write(items, scope, put("a", {"n": 3}))) == ["replaced"]


async def _hold(store, scope, *, held):
    await store.retention_policies.put(TenantScope(scope.tenant_id), None, Policy(legal_hold=held))


async def test_a_request_that_is_cancelled_anywhere_leaves_all_or_nothing(store, items, scope):
    await write(items, scope, put("other", {}, path=("elsewhere",)))
    for number in range(1, 40):
        attempt = CancelAtAwait(
            write(items, scope, put("a", {"n": number}), put("b", {"n": number}), delete("old"), path_of(number)),
            number,
        )
        await attempt.run()
        a, b = await get(items, scope, "a", "b")
        assert (a is None and b is None) or a.value == b.value
        await search(items, scope, ())  # every path is whole
        await paths(items, scope)
        if not attempt.cancelled:
            break
    assert not attempt.cancelled


def path_of(number):
    return put("k", {}, path=("one", str(number)))


async def test_who_deletes_from_nobody_makes_nobody(store, items, scope, admin):
    nobody = Scope(scope.tenant_id, "nobody")
    assert told(await write(items, nobody, delete("a"), delete("b", if_revision=1), put("c", {}, if_revision=1))) == [
        "absent", ItemMoved, ItemMoved,
    ]  # fmt: skip
    share = ClientShare(b"s" * 32)
    assert told(await write(items, nobody, delete("a", path=PATH), share=share)) == ["absent"]
    assert not await admin.fetchval("SELECT count(*) FROM stateroom.subject_keys WHERE tenant_id = $1", scope.tenant_id)
