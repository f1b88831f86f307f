"""Verification of items: whatever is edited, swapped, put back or removed on raw rows is found, and nothing else is."""

import asyncio
from datetime import timedelta

import pytest
from msgspec import json

from storage.control.features import ITEMS
from storage.errors import IntegrityFailure
from storage.scope import Scope, TenantScope
from storage.verification.items import PAGE_ROWS
from storage.verification.jobs import TenantReport
from storage.verification.threads import Verification
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.item_rows import SHARE, TABLES, VECTORS, delete, end, get, put, restore, rows, write
from tests.support.states import save

OTHER = ("memories", "bob")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


@pytest.fixture
async def filled(store, scope):
    """A subject with three items in one path and two in another, one of which ends; one of each has vectors."""
    others = [put(f"k{number}", {"n": number}) for number in (1, 2)]
    await write(store, scope, put("k0", {"n": 0}, vectors=VECTORS), *others)
    ends = put("k1", {"n": 1}, path=OTHER, ttl_seconds=3600, vectors=VECTORS)
    await write(store, scope, put("k0", {"n": 0}, path=OTHER), ends)
    return scope


async def codes(store, scope):
    report = await store.verification.subject(scope)
    assert report.after is report.items_after is None
    return [each.code for each in report.findings]


async def verified(store, tenant):
    """What the tenant's job found."""
    job_id = await store.verifying.begin_tenant(tenant, "tester")
    async with asyncio.timeout(60):
        while (job := await store.jobs.get(tenant, job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
    assert job.error is None
    return json.decode(job.note, type=TenantReport)


def flipped(sealed):
    return sealed[:70] + bytes([sealed[70] ^ 1]) + sealed[71:]


def edit(column, change):
    """An edit of the first row."""

    def tamper(stored):
        stored[0][column] = change(stored[0][column])
        return stored

    return tamper


def swap(*columns, same_path=False):
    """An exchange of columns between two rows: of one path, or of two."""

    def tamper(stored):
        first = stored[0]
        second = next(each for each in stored[1:] if (each["path_id"] == first["path_id"]) is same_path)
        for column in columns:
            first[column], second[column] = second[column], first[column]
        return stored

    return tamper


def removed(stored):
    return stored[1:]


def everything_removed(_):
    return []


def moved_to_another_path(stored):
    stored[0]["path_id"] = next(each["path_id"] for each in stored if each["path_id"] != stored[0]["path_id"])
    stored[0]["key_id"] = bytes(16)
    return stored


def lives(seconds):
    def tamper(stored):
        row = next(each for each in stored if each["ttl_seconds"] is not None)
        row["expires_at"] += timedelta(seconds=seconds)
        return stored

    return tamper


TAMPERINGS = {
    "an edited envelope": ("items", edit("envelope", flipped), ["item"]),
    "an edited revision": ("items", edit("revision", lambda number: number + 1), ["item"]),
    "an edited moment": ("items", edit("updated_at", lambda moment: moment + timedelta(seconds=1)), ["item"]),
    "an edited member": ("items", edit("member", lambda member: bytes(len(member))), ["item", "items"]),
    "a shorter life": ("items", lives(-1800), ["item"]),
    "a longer life": ("items", lives(86_400), ["item"]),
    "an item swapped with one of another key": (
        "items", swap("key_id", "indexed", same_path=True), ["item", "item", "items"],
    ),
    "contents swapped between keys": ("items", swap("envelope", same_path=True), ["item", "item"]),
    "contents swapped between paths": ("items", swap("envelope"), ["item", "item"]),
    "a removed item": ("items", removed, ["items"]),
    "an item moved to another path": ("items", moved_to_another_path, ["items", "item", "items"]),
    "a path without its row": ("item_paths", removed, ["item-paths", "item-path"]),
    "labels swapped between paths": ("item_paths", swap("labels"), ["item-labels", "item-labels"]),
    "edited labels": ("item_paths", edit("labels", flipped), ["item-labels"]),
    "seals swapped between paths": ("item_paths", swap("seal"), ["item-path", "item-path"]),
    "an edited sequence of a path": ("item_paths", edit("sequence", lambda number: number + 1), ["item-path"]),
    "a path told to be under a share": (
        "item_paths", edit("share_check", lambda _: bytes(16)), ["item-paths", "item-path"],
    ),
    "edited vectors": ("item_vectors", edit("envelope", flipped), ["item-vector"]),
    "an edited member of vectors": (
        "item_vectors", edit("member", lambda member: bytes(len(member))), ["item-vector", "item-vectors"],
    ),
    "an edited revision of vectors": (
        "item_vectors", edit("revision", lambda number: number + 1), ["item-vector", "item-vectors"],
    ),
    "an edited sequence of vectors": (
        "item_vectors", edit("sequence", lambda number: number + 1), ["item-vector", "item-vectors"],
    ),
    "vectors swapped between paths": ("item_vectors", swap("envelope"), ["item-vector", "item-vector"]),
    "removed vectors": ("item_vectors", removed, ["item-vectors"]),
    "vectors that their item is not told of": (
        "items", lambda stored: [{**row, "indexed": False} for row in stored], ["item-vectors", "item-vectors"],
    ),
    "an edited sequence of the subject": ("item_scopes", edit("sequence", lambda number: number + 1), ["item-scope"]),
    "an edited seal of the subject": ("item_scopes", edit("seal", flipped), ["item-scope"]),
    "a removed seal of the subject": ("item_scopes", everything_removed, ["item-scope"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
async def test_what_is_done_to_rows_of_items_is_found(store, filled, admin, name):
    table, tamper, expected = TAMPERINGS[name]
    before = await rows(admin, filled, table)
    assert await codes(store, filled) == []
    await restore(admin, filled, table, tamper([dict(row) for row in before]))
    assert sorted(await codes(store, filled)) == sorted(expected)
    await restore(admin, filled, table, before)
    assert await codes(store, filled) == []


async def test_items_that_are_whole_are_counted_and_nothing_is_found(store, filled):
    await write(store, filled, *(put(f"k{number}", {}) for number in range(2 * PAGE_ROWS)), share=SHARE)
    await write(store, filled, *(put(f"m{number}", {}, path=("many",)) for number in range(2 * PAGE_ROWS)))
    report = await store.verification.subject(filled)
    assert report.findings == []
    assert (report.items_opened, report.items_skipped) == (5 + 2 * PAGE_ROWS, 2 * PAGE_ROWS)


async def test_an_older_row_that_was_put_back_is_found(store, filled, admin):
    before = await rows(admin, filled, "items")
    await write(store, filled, put("k1", {"n": 100}))
    after = await rows(admin, filled, "items")
    (old,) = [row for row in before if row not in after]
    mixed = [old if (row["path_id"], row["key_id"]) == (old["path_id"], old["key_id"]) else row for row in after]
    await restore(admin, filled, "items", mixed)
    assert (await get(store, filled, "k1"))[0].revision == old["revision"]  # one that is found proves nothing
    assert await codes(store, filled) == ["items"]


async def test_an_item_that_was_put_back_after_it_was_deleted_is_found(store, filled, admin):
    before = await rows(admin, filled, "items")
    await write(store, filled, delete("k1"))
    await restore(admin, filled, "items", before)
    assert await codes(store, filled) == ["items"]


async def test_a_path_that_was_removed_with_all_that_is_in_it_is_found(store, filled, admin):
    (gone, *_) = paths = await rows(admin, filled, "item_paths")
    await restore(admin, filled, "item_paths", paths[1:])
    items = await rows(admin, filled, "items")
    await restore(admin, filled, "items", [row for row in items if row["path_id"] != gone["path_id"]])
    assert await codes(store, filled) == ["item-paths", "item-path"]  # its vectors are still there
    vectors = await rows(admin, filled, "item_vectors")
    await restore(admin, filled, "item_vectors", [row for row in vectors if row["path_id"] != gone["path_id"]])
    assert await codes(store, filled) == ["item-paths"]


async def test_under_a_share_what_is_missing_is_found_without_it(store, scope, admin):
    await write(store, scope, put("a", {"n": 1}, vectors=VECTORS), put("b", {"n": 2}), share=SHARE)
    await write(store, scope, put("c", {}, path=OTHER, vectors=VECTORS), share=SHARE)
    before = {table: await rows(admin, scope, table) for table in TABLES}
    report = await store.verification.subject(scope)
    assert (report.items_opened, report.items_skipped, report.findings) == (0, 3, [])
    for table, tamper, expected in [
        ("items", removed, ["items"]),
        ("items", edit("member", lambda member: bytes(len(member))), ["items"]),
        ("items", moved_to_another_path, ["items", "items"]),
        ("item_paths", removed, ["item-path", "item-paths"]),
        ("item_paths", edit("sequence", lambda number: number + 1), ["item-path"]),
        (
            "item_paths",
            edit("share_check", lambda _: None),
            ["item", "item-labels", "item-path", "item-paths", "item-vector"],
        ),
        ("item_vectors", removed, ["item-vectors"]),
        ("item_vectors", edit("sequence", lambda number: number + 1), ["item-vectors"]),
        # What only its client opens, it alone can prove.
        ("items", edit("envelope", flipped), []),
        ("item_paths", edit("labels", flipped), []),
        ("item_vectors", edit("envelope", flipped), []),
    ]:
        await restore(admin, scope, table, tamper([dict(row) for row in before[table]]))
        assert sorted({*await codes(store, scope)}) == sorted({*expected}), (table, expected)
        await restore(admin, scope, table, before[table])
    assert await codes(store, scope) == []


async def test_what_is_over_is_no_damage_and_an_end_that_was_moved_is(store, filled, admin):
    await write(store, filled, put("soon", {}, ttl_seconds=1))
    assert await codes(store, filled) == []
    await end(admin, filled)
    assert await codes(store, filled) == ["item"]  # the one that had minutes left
    await write(store, filled, put("soon", {}), put("k1", {}, path=OTHER))
    assert await codes(store, filled) == []


async def test_a_tenant_is_verified_with_its_items(store, filled, admin):
    await save(store, filled, "t1")
    other = Scope(filled.tenant_id, "user-2")
    await write(store, other, put("a", {}), put("b", {}, path=OTHER), put("c", {}, path=("more",)))
    damaged = await rows(admin, other, "items")
    await restore(admin, other, "items", edit("envelope", flipped)(damaged))
    report = await verified(store, TenantScope(filled.tenant_id))
    assert report.found == {"item": 1}
    assert (report.threads, report.items_opened) == (1, 8)
    (finding,) = report.findings
    assert (finding.subject_id, finding.thread_id) == ("user-2", None)
    assert finding.detail.startswith(f"path {damaged[0]['path_id'].hex()}, key {damaged[0]['key_id'].hex()}: ")


async def test_a_subject_is_verified_a_stretch_at_a_time(store, filled):
    await save(store, filled, "t1")
    await write(store, filled, *(put("k", {}, path=(f"path-{number}",)) for number in range(4)))
    verification = Verification(store.verification._access, store.verification._losses, stretch_seconds=0.0)
    report = await verification.subject(filled)
    stretches = [report]
    while report.after is not None:
        report = await verification.subject(filled, report.after, items_after=report.items_after)
        stretches.append(report)
    # A thread, then the paths one by one, then the end.
    assert [each.threads for each in stretches] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert sorted(each.items_opened for each in stretches) == [0, 0, 1, 1, 1, 1, 2, 3]
    assert sum(len(each.findings) for each in stretches) == 0


async def test_keys_that_were_removed_are_missed_by_who_has_only_items(store, scope, admin, database, root_key):
    await write(store, scope, put("a", {}))
    await admin.execute("DELETE FROM stateroom.subject_keys WHERE tenant_id = $1", scope.tenant_id)
    async with opened(database, root_key) as other:
        with pytest.raises(IntegrityFailure, match="removed outside the gateway"):
            await get(other, scope, "a")
        with pytest.raises(IntegrityFailure, match="removed outside the gateway"):
            await write(other, scope, put("b", {}))
    report = await verified(store, TenantScope(scope.tenant_id))
    assert report.found == {"keys": 1}
