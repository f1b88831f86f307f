"""Whoever holds the database edits, moves, puts back or removes items: readers to the end, and writers, notice."""

# ruff: noqa: S608  table and column names are constants of these tests

import pytest

from storage.control.features import ITEMS
from storage.errors import IntegrityFailure
from storage.items.finding.searching import ITEM_OPENED_BYTES_MAX
from storage.items.model import Batch, ItemSearch
from storage.items.paths import PathLists
from storage.items.writing import Written
from storage.scope import ClientShare, Scope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.items import PATH, TABLES, copied, delete, get, paths, put, put_back, search, write

SHARE = ClientShare(b"s" * 32)
OTHER_PATH = ("memories", "bob")


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, ITEMS)
        yield made


@pytest.fixture
def items(store):
    return store.items


@pytest.fixture
async def filled(items, scope):
    """Three items in a path, one in another, and one under a share."""
    await write(items, scope, *(put(key, {"n": key}) for key in "abc"))
    await write(items, scope, put("a", {"n": "bob"}, path=OTHER_PATH))
    await write(items, scope, put("a", {"n": "shared"}), share=SHARE)
    return scope


@pytest.fixture
def attack(admin, filled):
    async def execute(sql, *arguments):
        done = await admin.execute(sql, filled.tenant_id, filled.subject_id, *arguments)
        assert not done.endswith(" 0"), done

    return execute


OURS = "tenant_id = $1 AND subject_id = $2"


async def noticed(items, scope, *, prefix=PATH, share=None):
    """A fresh process that reads paths to their end is told."""
    with pytest.raises(IntegrityFailure):
        await search(items, scope, prefix, share=share)


async def fine(items, scope, *, prefix=OTHER_PATH):
    """Who reads what was left alone is not disturbed."""
    assert len((await search(items, scope, prefix)).items) == 1


async def key_ids(admin, scope, items, *keys):
    """The names of keys in rows, found by what only the gateway can open: the revision of each."""
    found = await get(items, scope, *keys)
    return [
        await admin.fetchval(
            f"SELECT key_id FROM stateroom.items WHERE {OURS} AND revision = $3 AND updated_at = $4",
            scope.tenant_id, scope.subject_id, each.revision, each.updated_at,
        )
        for each in found
    ]  # fmt: skip


ADDED = (
    "INSERT INTO stateroom.item_paths SELECT tenant_id, subject_id, decode(repeat('ab', 16), 'hex'), share_check,"
    f" sequence, seal, labels FROM stateroom.item_paths WHERE {OURS} AND share_check IS NOT NULL"
)
EDITS = {
    "revision": "revision = revision + 100",
    "created_at": "created_at = created_at - interval '1 d'",
    "updated_at": "updated_at = updated_at - interval '1 d'",
    "ttl_seconds": "ttl_seconds = 1000000, expires_at = now() + interval '10 d'",
    "member": "member = decode(repeat('00', 16), 'hex')",
    "envelope": "envelope = set_byte(envelope, 60, 255 - get_byte(envelope, 60))",
    "version in the header": "envelope = set_byte(envelope, 11, 7)",
    "flags in the header": "envelope = set_byte(envelope, 6, get_byte(envelope, 6) # 2)",
    "nothing left": "envelope = ''",
}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_item_is_refused_to_every_reader(items, admin, filled, attack, edit):
    (key,) = await key_ids(admin, filled, items, "b")
    await attack(f"UPDATE stateroom.items SET {EDITS[edit]} WHERE {OURS} AND key_id = $3", key)
    with pytest.raises((IntegrityFailure, Exception)) as refused:
        await get(items, filled, "b")
    assert type(refused.value).__name__ in {"IntegrityFailure", "KeyDestroyed"}
    with pytest.raises((IntegrityFailure, Exception)):
        await search(items, filled, PATH)
    assert (await get(items, filled, "a"))[0] is not None
    await fine(items, filled)


async def test_two_items_that_were_swapped_are_refused(items, admin, filled, attack):
    a, b = await key_ids(admin, filled, items, "a", "b")
    for old, new in ((a, b"x" * 16), (b, a), (b"x" * 16, b)):
        await attack(f"UPDATE stateroom.items SET key_id = $4 WHERE {OURS} AND key_id = $3", old, new)
    for key in "ab":
        with pytest.raises(IntegrityFailure):
            await get(items, filled, key)
    await noticed(items, filled)


async def test_an_item_that_was_moved_to_another_path_is_refused_there_and_missed_here(items, admin, filled, attack):
    rows = (await copied(admin, filled))["items"]
    (key,) = await key_ids(admin, filled, items, "c")
    theirs = {row["path_id"] for row in rows if [each["path_id"] for each in rows].count(row["path_id"]) == 1}
    for path_id in theirs:
        await attack(f"UPDATE stateroom.items SET path_id = $4 WHERE {OURS} AND key_id = $3", key, path_id)
        await noticed(items, filled)
        assert await get(items, filled, "c") == [None]
        own = next(row["path_id"] for row in rows if row["key_id"] == key)
        await attack(f"UPDATE stateroom.items SET path_id = $4 WHERE {OURS} AND key_id = $3", key, own)


async def test_an_item_that_was_removed_is_missed_by_who_reads_to_the_end(items, admin, filled, attack):
    (key,) = await key_ids(admin, filled, items, "b")
    await attack(f"DELETE FROM stateroom.items WHERE {OURS} AND key_id = $3", key)
    await noticed(items, filled)
    await noticed(items, filled, prefix=())
    with pytest.raises(IntegrityFailure):
        await search(items, filled, PATH, {"n": "a"})
    await fine(items, filled)


async def test_an_item_that_was_put_back_is_noticed(items, admin, filled, attack):
    before = (await copied(admin, filled))["items"]
    await write(items, filled, put("a", {"n": 2}), delete("b"))
    await put_back(
        admin, filled, "items", [row for row in before if row["revision"] == 1 and row["ttl_seconds"] is None]
    )
    await noticed(items, filled)


async def test_a_path_whose_items_are_all_gone_or_put_back_is_noticed(database, root_key, items, admin, filled):
    before = await copied(admin, filled)
    await write(items, filled, *(delete(key) for key in "abc"))
    await admin.execute(f"DELETE FROM stateroom.items WHERE {OURS}", filled.tenant_id, filled.subject_id)
    await noticed(items, filled, prefix=OTHER_PATH)
    for table in ("items", "item_paths"):
        await put_back(admin, filled, table, before[table])
    async with opened(database, root_key) as fresh:  # who knows the paths already sees none that came back
        with pytest.raises(IntegrityFailure):
            await paths(fresh.items, filled)
        await noticed(fresh.items, filled, prefix=())


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE stateroom.item_paths SET share_check = decode(repeat('ab', 16), 'hex') WHERE {ours} AND {plain}",
        "UPDATE stateroom.item_paths SET share_check = NULL WHERE {ours} AND share_check IS NOT NULL",
        "DELETE FROM stateroom.item_paths WHERE {ours} AND share_check IS NULL",
        "DELETE FROM stateroom.item_paths WHERE {ours} AND share_check IS NOT NULL",
        "UPDATE stateroom.item_paths SET labels = set_byte(labels, 40, 255 - get_byte(labels, 40)) WHERE {ours}",
        "UPDATE stateroom.item_paths SET path_id = decode(repeat('ab', 16), 'hex') WHERE {ours} AND NOT {plain}",
        "UPDATE stateroom.item_scopes SET sequence = sequence + 1 WHERE {ours}",
        "UPDATE stateroom.item_scopes SET seal = set_byte(seal, 40, 255 - get_byte(seal, 40)) WHERE {ours}",
        "DELETE FROM stateroom.item_scopes WHERE {ours}",
        "{added}",
    ],
    ids=["hidden", "shown", "removed", "shared removed", "labels", "renamed", "sequence", "seal", "no seal", "added"],
)  # fmt: skip
async def test_whoever_lists_paths_notices_that_others_are_there(database, root_key, filled, attack, edit):
    await attack(edit.format(ours=OURS, plain="(share_check IS NULL)", added=ADDED))
    async with opened(database, root_key) as fresh:
        for share in (None, SHARE):
            if "labels, 40" in edit and share is not None:
                continue  # labels under a share are opened with it only, and the last row edited decides
            with pytest.raises(IntegrityFailure):
                await paths(fresh.items, filled, share)
            with pytest.raises(IntegrityFailure):
                await search(fresh.items, filled, (), share=share)


@pytest.mark.parametrize(
    "edit",
    ["sequence = sequence + 1", "sequence = 0", "seal = set_byte(seal, 40, 255 - get_byte(seal, 40))", "seal = ''"],
)
async def test_an_edited_path_is_refused_to_writers_and_readers(items, filled, attack, edit):
    await attack(f"UPDATE stateroom.item_paths SET {edit} WHERE {OURS}")
    await noticed(items, filled)
    for change in (put("a", {"n": 2}), put("new", {}), delete("a")):
        with pytest.raises(IntegrityFailure):
            await write(items, filled, change)
    assert len(await get(items, filled, "a", "b", "c")) == 3


async def test_a_path_that_was_removed_takes_no_item_with_it_unnoticed(items, filled, attack):
    await attack(f"DELETE FROM stateroom.item_paths WHERE {OURS}")
    for change in (put("a", {"n": 2}), put("a", {"n": 2}, if_revision=1), delete("a")):
        with pytest.raises(IntegrityFailure):
            await write(items, filled, change)


async def test_a_revision_that_was_edited_makes_no_stale_write_true(items, admin, filled, attack):
    (read,) = await get(items, filled, "a")
    await write(items, filled, put("a", {"n": "newer"}))
    (key,) = await key_ids(admin, filled, items, "a")
    await attack(f"UPDATE stateroom.items SET revision = $4 WHERE {OURS} AND key_id = $3", key, read.revision)
    for change in (put("a", {"n": "stale"}, if_revision=read.revision), delete("a", if_revision=read.revision)):
        with pytest.raises(IntegrityFailure):
            await write(items, filled, change)


async def test_an_item_of_another_subject_or_tenant_opens_nowhere(items, admin, filled):
    rows = await copied(admin, filled)
    for other in (Scope(filled.tenant_id, "user-2"), Scope(type(filled.tenant_id)(int=1), filled.subject_id)):
        await write(items, other, put("z", {}))
        for table in TABLES:
            await admin.execute(f"DELETE FROM stateroom.{table} WHERE {OURS}", other.tenant_id, other.subject_id)
            for row in rows[table]:
                moved = {**row, "tenant_id": other.tenant_id, "subject_id": other.subject_id}
                holes = ", ".join(f"${number}" for number in range(1, len(row) + 1))
                await admin.execute(
                    f"INSERT INTO stateroom.{table} ({', '.join(moved)}) VALUES ({holes})", *moved.values()
                )
        assert await get(items, other, "a") == [None]  # even names are others there
        with pytest.raises(IntegrityFailure):
            await paths(items, other)
        with pytest.raises(IntegrityFailure):
            await search(items, other, ())
        with pytest.raises(IntegrityFailure):
            await write(items, other, put("new", {}))


async def test_whoever_edits_the_end_of_an_items_time_moves_that_and_nothing_else(items, admin, scope):
    """Reads move it, so it is bound to nothing: `docs` say so."""
    await write(items, scope, put("a", {"n": 1}, ttl_seconds=60), put("b", {"n": 2}, ttl_seconds=60))
    await admin.execute(
        f"UPDATE stateroom.items SET expires_at = now() - interval '1 s' WHERE {OURS}",
        scope.tenant_id,
        scope.subject_id,
    )
    assert await get(items, scope, "a", "b") == [None, None]
    assert (await search(items, scope)).items == []  # its row is counted all the same
    assert await paths(items, scope) == []
    assert [each.status for each in await write(items, scope, put("a", {"n": 3}, if_absent=True))] == ["created"]
    await admin.execute(
        f"UPDATE stateroom.items SET expires_at = now() + interval '9 d' WHERE {OURS} AND ttl_seconds IS NOT NULL",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip
    assert [each.name.key for each in (await search(items, scope)).items] == ["a", "b"]


async def test_what_is_under_a_share_is_seen_with_that_share_only(items, filled):
    wrong = ClientShare(b"t" * 32)
    for share, found in ((None, 3), (SHARE, 1), (wrong, 0)):
        assert len((await search(items, filled, PATH, share=share)).items) == found
    assert await paths(items, filled, SHARE) == [PATH]
    assert await paths(items, filled, wrong) == []
    assert [each.status for each in await write(items, filled, delete("a"), share=wrong)] == ["absent"]


async def test_rows_name_no_label_no_key_and_no_value(items, admin, scope):
    canary = "canary-of-items"
    await write(items, scope, put(canary, {canary: [canary] * 20}, path=(canary, "x")))
    for share in (SHARE,):
        await write(items, scope, put(canary, {canary: canary}, path=(canary,)), share=share)
    for rows in (await copied(admin, scope)).values():
        assert rows
        for row in rows:
            for cell in row.values():
                assert canary.encode() not in (cell if isinstance(cell, bytes) else str(cell).encode())


async def test_lists_of_paths_take_bounded_memory_whoever_asks(items, scope, store):
    lists = PathLists(bytes_max=2_000)
    for number in range(100):
        other = Scope(scope.tenant_id, f"s{number}")
        await write(items, other, put("a", {}), delete("a"))  # it has keys and no path
    items.lists, before = lists, items.lists
    try:
        for number in range(100):
            assert await paths(items, Scope(scope.tenant_id, f"s{number}")) == []
            assert lists.subjects <= 10
    finally:
        items.lists = before


async def test_a_page_of_what_was_compressed_well_is_as_long_as_any(items, scope):
    size = 250 * 1024
    for start in range(0, 100, 20):
        await write(items, scope, *(put(f"k{number}", {"a": "a" * size}) for number in range(start, start + 20)))
    shown, after, pages = [], None, 0
    while True:
        page = await search(items, scope, limit=1000, after=after)
        shown += [each.name.key for each in page.items]
        assert sum(len(each.value.data) for each in page.items) <= ITEM_OPENED_BYTES_MAX + size + 100
        after, pages = page.after, pages + 1
        if after is None:
            break
    assert sorted(shown) == sorted(f"k{number}" for number in range(100))
    assert pages > 1
    wanted = [ItemSearch(prefix=PATH, limit=1000, refresh=False)] * 3
    first, *others = (await items.run(scope, Batch(searches=wanted))).searches
    assert first.after is not None
    for other in others:  # what one request opens is bounded for all of its searches
        assert (other.items, other.after) == ([], ("", "", "", "0"))
        (beginning,) = (
            await items.run(scope, Batch(searches=[ItemSearch(prefix=PATH, limit=1, after=other.after)]))
        ).searches
        assert beginning.items[0].name == first.items[0].name
    assert isinstance((await write(items, scope, delete("k0")))[0], Written)
