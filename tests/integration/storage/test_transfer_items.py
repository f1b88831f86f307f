"""Items move with their subject from one deployment to another: values, revisions and times, to the byte."""

import math
import os
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from crypto import ExportOpener, ExportSealer
from storage.access.access import Access
from storage.administration.row_census import RowCounting
from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.errors import (
    FeatureOff,
    ImportConflict,
    ImportForOther,
    ImportRefused,
    IntegrityFailure,
    LegalHold,
    RowQuotaExceeded,
)
from storage.format import export
from storage.format.items.vectors import pack_vectors, quantized
from storage.items.model import Batch, ItemGet, ItemName, ItemSearch, ItemWrite, ModelVectors, Near
from storage.model import ApiKeyRecord, Tenant, Value
from storage.postgres.statement import Statement
from storage.retention.planner import Policy
from storage.scope import ClientShare, OperatorScope, Scope, TenantScope
from storage.transfer.items_in import ItemsIn, StagedPath
from tests.support.features import switch_on
from tests.support.interleaving import parts_of
from tests.support.states import save, state
from tests.support.transfers import ACTOR, deployment, exported, exported_tenant, imported

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
PATH = ("memories", "ada")
SHARE, OTHER_SHARE = ClientShare(b"s" * 32), ClientShare(b"t" * 32)
MODEL = "example-embed"


@pytest.fixture(scope="module")
async def here(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as store:
        await switch_on(store, ITEMS)
        yield store


@pytest.fixture(scope="module")
async def there(postgres, migrated_template):
    async with deployment(postgres, migrated_template) as store:
        await switch_on(store, ITEMS)
        yield store


@pytest.fixture
def scope():
    return Scope(uuid4(), "user-1")


@pytest.fixture
def target():
    return Scope(uuid4(), "user-1")


def put(key, value, path=PATH, **condition):
    return ItemWrite(ItemName(path, key), Value("msgpack", encode_msgpack(value)), **condition)


def delete(key, path=PATH):
    return ItemWrite(ItemName(path, key), None)


async def write(store, scope, *writes, share=None):
    return (await store.items.run(scope, Batch(writes=[*writes]), share=share)).writes


async def seen(store, scope, *, share=None, limit=1000):
    """Everything that a reader sees, newest first; nothing is kept alive by it."""
    batch = Batch(searches=[ItemSearch(limit=limit, refresh=False)])
    return (await store.items.run(scope, batch, share=share)).searches[0].items


def by_name(items):
    """In an order of their names; those of one moment come in one that depends on their names in rows."""
    return sorted(items, key=lambda each: each.name)


def of(*vectors, model=MODEL):
    return ModelVectors(model, tuple(map(quantized, vectors)))


def turned(angle):
    return (math.cos(angle), math.sin(angle), 0.25)


async def near(store, scope, values, *, model=MODEL, share=None, metric="cosine"):
    """What is found by what it means: names, revisions and scores, the best first."""
    batch = Batch(searches=[ItemSearch(limit=1000, refresh=False, near=Near(model, tuple(values), metric))])
    found = (await store.items.run(scope, batch, share=share)).searches[0].items
    return [(each.name, each.revision, each.score) for each in found]


async def sound(store, scope):
    return (await store.verification.subject(scope)).findings == []


async def get(store, scope, key, path=PATH):
    return (await store.items.run(scope, Batch(gets=[ItemGet(ItemName(path, key), refresh=False)]))).gets[0]


async def moved(here, there, scope, target, share=None, **options):
    """The report of everything of a tenant that was moved."""
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id, share)
    return await imported(there, target.tenant_id, file, share=share, **options)


async def job(store, scope, kind):
    jobs = (await store.jobs.list(TenantScope(scope.tenant_id))).items
    return next(each for each in jobs if each.kind == kind)


async def events(store, scope):
    found = await store.audit.page(TenantScope(scope.tenant_id), ACTOR)
    return [(each.event.action, each.event.target) for each in found.items]


async def edited(store, scope, text):
    """What somebody does to a subject's rows who has the database, and not the keys."""
    statement = Statement(f"{text} AND tenant_id = :tenant_id AND subject_id = :subject_id")
    async with store.unit_of_work.begin(scope) as transaction:
        assert await transaction.run(statement)


async def opened(file, store, tenant_id):
    """The records of a file, and what stands around them."""
    own = await store.transfer_keys.newest()
    opener = ExportOpener(lambda _: own, tenant_id, frozenset())
    frames = export.Frames()
    found = [*frames.take(opener.write(file)), *frames.take(opener.finish())]
    return [export.decode(each) for each in found]


async def sealed(store, tenant_id, records):
    """A file of these records, with the digests that they have."""
    whole, path = export.RunningDigest(), export.RunningDigest()
    recipient = await store.transfer_keys.recipient(TenantScope(tenant_id))
    sealer = ExportSealer(recipient, records[0].export_id)
    parts = [sealer.start]
    for record in records:
        each = record
        if isinstance(record, export.PathRecord):
            path = export.RunningDigest()
        if isinstance(record, export.PathEnding):
            each = msgspec.structs.replace(record, digest=path.digest())
        if isinstance(record, export.End):
            each = msgspec.structs.replace(record, digest=whole.digest())
        encoded = export.encode(each)
        path.add(encoded)
        whole.add(encoded)
        parts.append(sealer.write(export.frame(encoded)))
    return b"".join([*parts, sealer.finish()])


# --- what comes over --------------------------------------------------------------------------------------------------


async def test_items_come_over_with_their_subject(here, there, scope, target):
    await save(here, scope, content=state(n=1))
    other = Scope(scope.tenant_id, "user-without-threads")
    for number in range(5):
        await write(here, scope, put(f"k{number}", {"n": number}, ttl_seconds=3600 * number or None))
    await write(here, scope, put("k1", {"n": "again"}, ttl_seconds=60), put("", {"text": "nul \x00 and ☂"}))
    await write(here, scope, put("k", {"n": 1}, path=("rules", "a\x00b")), delete("k2"))
    await write(here, other, put("theirs", {}))
    before = await seen(here, scope)
    report = await moved(here, there, scope, target)
    assert (report.threads, report.items, report.items_passed_over) == (1, 7, 0)
    assert report.items_verified == 7
    assert by_name(await seen(there, target)) == by_name(before)
    assert await seen(there, Scope(target.tenant_id, other.subject_id)) == await seen(here, other)
    assert {each.revision for each in before} == {1, 4, 5, 6, 7}
    assert (await there.verification.subject(target)).findings == []
    assert (await job(here, scope, "export")).note == "1 threads, 0 left out; 7 items, 0 of their paths left out"
    assert ("import.items", "subject:user-1") in await events(there, target)


async def test_a_tenant_that_says_nothing_of_retention_has_rounds_once_items_came_that_will_be_over(
    here, there, scope, target
):
    other = Scope(uuid4(), "user-1")
    await write(here, scope, put("a", {}, ttl_seconds=60))
    await write(here, other, put("a", {}))
    await moved(here, there, scope, target)
    assert await there.retaining.status(TenantScope(target.tenant_id)) is not None
    still = Scope(uuid4(), "user-1")
    assert (await moved(here, there, other, still)).items == 1
    assert await there.retaining.status(TenantScope(still.tenant_id)) is None


async def test_revisions_go_on_where_they_were_after_a_deletion_too(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}), put("b", {"n": 2}), delete("b"))
    await moved(here, there, scope, target)
    (again,) = await write(there, target, put("b", {"n": 3}))
    assert (again.status, again.revision) == ("created", 4)


async def test_a_path_that_had_a_history_here_has_its_revisions_raised_and_none_returns(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}), put("b", {"n": 2}))
    await write(there, target, put("a", {"n": "here"}), put("c", {}), delete("a"))
    await moved(here, there, scope, target)
    found = {each.name.key: each.revision for each in await seen(there, target)}
    assert found == {"c": 2, "a": 4, "b": 5}
    assert (await there.verification.subject(target)).findings == []
    (written,) = await write(there, target, put("a", {}, if_revision=1))
    assert written.revision == 4  # what it was here is not what it is now


async def test_a_path_that_was_removed_here_has_its_revisions_raised(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}))
    await write(there, target, put("a", {}))
    await write(there, target, delete("a"))
    await moved(here, there, scope, target)
    assert [each.revision for each in await seen(there, target)] == [3]


async def test_items_that_are_over_do_not_travel(here, there, scope, target):
    await write(here, scope, put("a", {}, ttl_seconds=60), put("b", {}, ttl_seconds=60), put("c", {}))
    await write(here, scope, put("a", {}, path=("all", "over"), ttl_seconds=60))
    in_flight = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    over = "UPDATE stateroom.items SET expires_at = now() - make_interval(secs => 1)"
    await edited(here, scope, f"{over} WHERE ttl_seconds IS NOT NULL AND revision <> 2")
    records = await opened(
        await exported_tenant(here, there, scope.tenant_id, target.tenant_id), there, target.tenant_id
    )
    assert [each.key for each in records if isinstance(each, export.ItemRecord)] == ["b", "c"]
    late = [
        msgspec.structs.replace(each, expires_at=each.expires_at - timedelta(days=1))
        if isinstance(each, export.ItemRecord) and each.key == "a" and each.expires_at
        else each
        for each in await opened(in_flight, there, target.tenant_id)
    ]
    report = await imported(there, target.tenant_id, await sealed(there, target.tenant_id, late))
    assert [(each.key, each.reason) for each in report.passed_items] == [("a", "expired"), ("a", "expired")]
    assert {each.name for each in await seen(there, target)} == {ItemName(PATH, "b"), ItemName(PATH, "c")}


async def test_thousands_of_items_come_over(here, there, scope, target):
    for start in range(0, 5_000, 100):
        await write(here, scope, *(put(f"k{start + each}", {"n": start + each}) for each in range(100)))
    report = await moved(here, there, scope, target)
    assert report.items == 5_000
    assert {each.name.key for each in await seen(there, target, limit=100)} == {f"k{n}" for n in range(4_900, 5_000)}
    assert await get(there, target, "k4999") == await get(here, scope, "k4999")
    again = await moved(here, there, scope, target)
    assert (again.items, again.items_passed_over, again.passed_items) == (0, 5_000, [])


async def test_the_export_of_a_thread_has_no_items(here, there, scope, target):
    await save(here, scope, content=state(n=1))
    await write(here, scope, put("a", {}))
    file = await exported(here, there, scope, target.tenant_id)
    assert (await imported(there, target.tenant_id, file)).items == 0
    assert await seen(there, target) == []


# --- vectors ----------------------------------------------------------------------------------------------------------


async def test_vectors_come_over_and_find_the_same_with_the_same_scores(here, there, scope, target):
    for number in range(70):
        more = (of(turned(number), turned(-number), model="another"),) if number % 7 == 0 else ()
        await write(here, scope, put(f"k{number}", {"n": number}, vectors=(of(turned(number / 70)), *more)))
    await write(here, scope, put("k3", {"n": "without"}), put("elsewhere", {}, path=("rules",), vectors=(of((1, 2)),)))
    await write(here, scope, replace(put("k5", {}, vectors=(of(turned(1), model="später"),)), value=None))
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_verified, report.items_passed_over) == (71, 71, 0)
    assert await sound(there, target)
    for metric in ("cosine", "dot", "l2"):
        found = await near(here, scope, turned(0.3), metric=metric)
        assert len(found) == 69
        assert await near(there, target, turned(0.3), metric=metric) == found
    assert len(await near(here, scope, turned(9), model="another")) == 10
    assert await near(there, target, turned(9), model="another") == await near(here, scope, turned(9), model="another")
    assert await near(there, target, turned(9), model="später") == [
        (ItemName(PATH, "k5"), 6, pytest.approx(-0.08, abs=0.1))
    ]
    assert await near(there, target, (1, 2)) == await near(here, scope, (1, 2))
    await write(there, target, put("k5", {}), delete("k6"))
    assert await near(there, target, turned(9), model="später") == []
    assert await sound(there, target)


async def test_vectors_come_over_under_another_share(here, there, scope, target):
    anew = ClientShare(b"n" * 32)
    await write(here, scope, *(put(f"k{n}", {}, vectors=(of(turned(n)),)) for n in range(5)), share=SHARE)
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id, SHARE)
    report = await imported(there, target.tenant_id, file, share=anew)
    assert (report.items, report.items_verified) == (5, 5)
    found = await near(here, scope, turned(2), share=SHARE)
    assert found[0][0].key == "k2"
    assert await near(there, target, turned(2), share=anew) == found
    assert await near(there, target, turned(2), share=SHARE) == await near(there, target, turned(2)) == []
    assert await sound(there, target)


async def test_the_vectors_of_items_whose_revisions_are_raised_are_found(here, there, scope, target):
    await write(there, target, put("old", {}, vectors=(of(turned(1)),)), put("gone", {}), delete("gone"))
    assert [name.key for name, _, _ in await near(there, target, turned(0))] == ["old"]  # an index is open now
    await write(here, scope, put("a", {}, vectors=(of(turned(0)),)), put("b", {}, vectors=(of(turned(0.5)),)))
    assert (await moved(here, there, scope, target)).items_verified == 2
    found = [(name.key, revision) for name, revision, _ in await near(there, target, turned(0))]
    assert found == [("a", 4), ("b", 5), ("old", 1)]
    assert await sound(there, target)


async def test_the_most_vectors_that_an_item_may_have_come_over(here, there, scope, target):
    one = quantized([math.sin(n) for n in range(4096)])
    given = tuple(ModelVectors(f"model-{number}", (one,) * 64) for number in range(8))
    await write(here, scope, put("a", {}, vectors=given), put("b", {}, vectors=given[:1]))
    records = await opened(
        await exported_tenant(here, there, scope.tenant_id, target.tenant_id), there, target.tenant_id
    )
    vectors = [each for each in records if isinstance(each, export.VectorsRecord)]
    assert [(each.model, each.dimensions) for each in vectors[:8]] == [(f"model-{number}", 4096) for number in range(8)]
    assert {each.data for each in vectors} == {pack_vectors([one] * 64)}
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_verified) == (2, 2)
    assert await sound(there, target)


async def test_items_that_are_passed_over_keep_the_vectors_that_they_have(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}, vectors=(of(turned(0)),)), put("b", {}, vectors=(of(turned(0)),)))
    await write(there, target, put("a", {"n": 1}, vectors=(of(turned(3)),)), put("b", {"n": "here"}))
    before = await near(there, target, turned(0))
    report = await moved(here, there, scope, target, skip_existing=True)
    assert (report.items, report.items_verified, report.items_passed_over) == (0, 0, 2)
    assert await near(there, target, turned(0)) == before
    assert await sound(there, target)


async def test_each_item_gets_its_own_vectors_though_others_are_passed_over(here, there, scope, target):
    given = {f"k{number:02}": of(turned(number / 9)) for number in range(70)}
    await write(here, scope, *(put(key, {"key": key}, vectors=(vectors,)) for key, vectors in given.items()))
    await write(here, scope, put("k08", {"key": "k08"}), put("k64", {"key": "k64"}))
    await write(there, target, *(put(f"k{number:02}", {"n": "here"}) for number in range(0, 70, 3)))
    report = await moved(here, there, scope, target, skip_existing=True)
    assert (report.items, report.items_verified, report.items_passed_over) == (46, 46, 24)
    expected = [each for each in await near(here, scope, turned(2)) if int(each[0].key[1:]) % 3]
    found = await near(there, target, turned(2))
    assert [(name, score) for name, _, score in found] == [(name, score) for name, _, score in expected]
    assert len(found) == 44
    assert await sound(there, target)


async def test_what_is_over_here_is_replaced_by_an_item_with_its_vectors(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}, vectors=(of(turned(0)),)))
    await write(there, target, put("a", {}, ttl_seconds=60, vectors=(of(turned(3)), of((1, 2), model="old"))))
    await edited(there, target, "UPDATE stateroom.items SET expires_at = now() WHERE ttl_seconds > 0")
    assert (await moved(here, there, scope, target)).items_verified == 1
    assert await near(there, target, turned(0)) == [(ItemName(PATH, "a"), 2, pytest.approx(1, abs=0.001))]
    assert await near(there, target, (1, 2), model="old") == []
    assert await sound(there, target)


async def test_damaged_vectors_are_named_and_their_item_and_others_come_over(here, there, scope, target):
    await write(here, scope, put("a", {}, vectors=(of(turned(0)), of(turned(0), model="another"))))
    await write(here, scope, put("b", {}, vectors=(of(turned(1)),)))
    damage = "UPDATE stateroom.item_vectors SET envelope = envelope || '\\x00'::bytea"
    first = "SELECT min(o.model_id) FROM stateroom.item_vectors o WHERE o.revision = 1 AND o.tenant_id = :tenant_id"
    await edited(here, scope, f"{damage} WHERE revision = 1 AND model_id = ({first})")
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_verified, report.items_passed_over) == (2, 2, 1)
    assert [(each.path, each.key, each.reason) for each in report.passed_items] == [(PATH, None, "damaged-vectors")]
    found = [*await near(there, target, turned(0)), *await near(there, target, turned(0), model="another")]
    assert sorted(name.key for name, _, _ in found) == ["a", "b"]
    note = (await job(here, scope, "export")).note
    assert note.startswith("0 threads, 0 left out; 2 items, 0 of their paths left out; 1 damaged: user-1/items/")
    assert len(note.rsplit("/items/", 1)[1].split("/")) == 3
    assert await sound(there, target)


VECTORS_DAMAGES = {
    "removed": ("DELETE FROM stateroom.item_vectors WHERE revision = 2", 4),
    "moved in the order of changes": ("UPDATE stateroom.item_vectors SET sequence = 9 WHERE revision = 2", 5),
    "of another state": ("UPDATE stateroom.item_vectors SET revision = 9 WHERE revision = 2", 5),
    "an altered member": ("UPDATE stateroom.item_vectors SET member = key_id WHERE revision = 2", 5),
    "of an item that is not there": ("UPDATE stateroom.item_vectors SET key_id = member WHERE revision = 2", 4),
    "of what can be no item": ("UPDATE stateroom.item_vectors SET key_id = 'x' WHERE revision = 2", 4),
}


@pytest.mark.parametrize("name", VECTORS_DAMAGES)
async def test_vectors_that_do_not_agree_with_the_seal_are_left_out_alone(here, there, scope, target, name):
    await write(here, scope, put("a", {}, vectors=(of(turned(0)),)), put("b", {}, vectors=(of(turned(1)),)))
    await write(here, scope, put("c", {}, path=("sound",), vectors=(of(turned(2)),)))
    damage, names = VECTORS_DAMAGES[name]
    await edited(here, scope, damage)
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_verified, report.items_passed_over) == (3, 3, 1)
    assert {(each.path, each.reason) for each in report.passed_items} == {(PATH, "damaged-vectors")}
    assert [found.key for found, _, _ in await near(there, target, turned(0))] == ["a", "c"]
    place = (await job(here, scope, "export")).note.rsplit("; 1 damaged: ", 1)[1].split("/")
    assert (len(place), place[-1] == "vectors") == (names, names == 4)
    assert await sound(there, target)


# --- what was removed -------------------------------------------------------------------------------------------------


async def test_no_revision_of_a_path_that_was_removed_there_returns_here(here, there, scope, target):
    await write(here, scope, put("a", {}, path=("gone",)), put("a", {}, path=("gone",)), put("kept", {}))
    await write(here, scope, delete("a", path=("gone",)))
    assert (await moved(here, there, scope, target)).items == 1
    assert (await get(there, target, "kept")).revision == 1  # the floor is for those that are made later
    (again,) = await write(there, target, put("a", {}, path=("gone",)))
    assert again.revision == 4
    assert await sound(there, target)


async def test_a_subject_that_removed_everything_brings_its_floor_and_lowers_none(here, there, scope, target):
    await write(here, scope, put("a", {}), delete("a"))
    await write(there, target, *(put("a", {}) for _ in range(6)), delete("a"))
    await moved(here, there, scope, target)
    assert (await write(there, target, put("a", {})))[0].revision == 8
    other = Scope(uuid4(), scope.subject_id)
    report = await moved(here, there, scope, other)
    assert (report.items, report.items_passed_over) == (0, 0)
    assert (await write(there, other, put("a", {})))[0].revision == 3
    assert await sound(there, other)


async def test_the_revisions_of_a_path_in_which_everything_is_over_do_not_return_either(here, there, scope, target):
    await write(here, scope, *(put("a", {}, ttl_seconds=60) for _ in range(3)))
    await edited(here, scope, "UPDATE stateroom.items SET expires_at = now() - make_interval(secs => 1) WHERE true")
    assert (await moved(here, there, scope, target)).items == 0
    assert (await write(there, target, put("a", {})))[0].revision == 4


async def test_no_floor_comes_in_before_the_feature_is_on(here, scope, target, postgres, migrated_template):
    await write(here, scope, put("a", {}), delete("a"))
    async with deployment(postgres, migrated_template) as earlier:
        file = await exported_tenant(here, earlier, scope.tenant_id, target.tenant_id)
        with pytest.raises(FeatureOff):
            await imported(earlier, target.tenant_id, file)


# --- what is read back ------------------------------------------------------------------------------------------------


async def stored(store, scope):
    """The way in, and a path with two items that it stored."""
    items_in = ItemsIn(Access(parts_of(store, store.unit_of_work)), store.audit)
    staged = StagedPath(scope, None, export.PathRecord(scope.subject_id, [*PATH], client_share=False, sequence=2))
    for revision in (1, 2):
        data = encode_msgpack({"n": revision})
        staged.add(export.ItemRecord(f"k{revision}", "msgpack", data, revision, None, WHEN, WHEN, None))
        staged.add_vectors(export.VectorsRecord(MODEL, 3, pack_vectors([quantized(turned(revision))])))
    return items_in, staged, await items_in.settle(staged, ACTOR, skip_existing=False)


ALTERED = {
    "an item": "UPDATE stateroom.items SET envelope = envelope || '\\x00'::bytea WHERE revision = 2",
    "an item removed": "DELETE FROM stateroom.items WHERE revision = 2",
    "vectors": "UPDATE stateroom.item_vectors SET envelope = envelope || '\\x00'::bytea WHERE revision = 2",
    "vectors removed": "DELETE FROM stateroom.item_vectors WHERE revision = 2",
    "the seal": "UPDATE stateroom.item_paths SET seal = labels WHERE true",
}


@pytest.mark.parametrize("name", ALTERED)
async def test_items_that_do_not_read_back_as_they_were_exported_are_told(there, target, name):
    await write(there, target, put("before", {}))
    await edited(there, target, "UPDATE stateroom.items SET envelope = envelope || '\\x00'::bytea WHERE revision = 1")
    items_in, staged, arrived = await stored(there, target)
    assert await items_in.read_back(staged, arrived)  # what was damaged before is nothing that came
    await edited(there, target, ALTERED[name].replace("revision = 2", "revision = 3"))
    with pytest.raises(IntegrityFailure, match="of subject 'user-1' were imported, but do not read back") as caught:
        await items_in.read_back(staged, arrived)
    assert "memories" not in str(caught.value)


async def test_a_path_that_somebody_writes_to_meanwhile_is_not_compared(there, target):
    items_in, staged, arrived = await stored(there, target)
    await write(there, target, put("k1", {}))
    assert not await items_in.read_back(staged, arrived)
    await write(there, target, delete("k1"), delete("k2"))
    assert not await items_in.read_back(staged, arrived)


# --- what is here -----------------------------------------------------------------------------------------------------


async def test_what_is_here_already_is_passed_over_when_an_import_is_run_again(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}), put("b", {"n": 2}, path=("other",), ttl_seconds=60))
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    await imported(there, target.tenant_id, file)
    before = await seen(there, target)
    await write(there, target, put("c", {}))
    again = await imported(there, target.tenant_id, file)
    assert (again.items, again.items_passed_over, again.passed_items) == (0, 2, [])
    assert [each for each in await seen(there, target) if each.name.key != "c"] == before


async def test_an_item_with_another_content_is_a_conflict_and_nothing_of_its_path_is_changed(
    here, there, scope, target
):
    await write(here, scope, put("a", {"n": 1}), put("b", {"n": 2}))
    await write(there, target, put("b", {"n": "here"}))
    with pytest.raises(ImportConflict, match="subject 'user-1' exists here with another content") as caught:
        await moved(here, there, scope, target)
    assert "memories" not in str(caught.value)
    assert [each.name.key for each in await seen(there, target)] == ["b"]
    report = await moved(here, there, scope, target, skip_existing=True)
    assert (report.items, report.items_passed_over) == (1, 1)
    assert [(each.path, each.key, each.reason) for each in report.passed_items] == [(PATH, "b", "exists")]
    assert (await get(there, target, "b")).value.data == encode_msgpack({"n": "here"})
    assert (await get(there, target, "a")).value.data == encode_msgpack({"n": 1})


async def test_what_is_over_here_is_replaced_with_its_vectors(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}))
    vectors = (ModelVectors("m", (quantized([0.5] * 8),)),)
    await write(there, target, put("a", {"n": "here"}, ttl_seconds=60, vectors=vectors), put("b", {}, vectors=vectors))
    await edited(there, target, "UPDATE stateroom.items SET expires_at = now() WHERE ttl_seconds > 0")
    assert (await moved(here, there, scope, target)).items == 1
    assert (await get(there, target, "a")).value.data == encode_msgpack({"n": 1})
    assert (await there.verification.subject(target)).findings == []


async def test_a_hold_on_the_tenant_keeps_what_is_over_here(here, there, scope, target):
    await write(here, scope, put("a", {"n": 1}))
    await write(there, target, put("a", {"n": "here"}, ttl_seconds=60), put("c", {}))
    await edited(there, target, "UPDATE stateroom.items SET expires_at = now() WHERE ttl_seconds > 0")
    await there.retention_policies.put(TenantScope(target.tenant_id), None, Policy(legal_hold=True), ACTOR)
    with pytest.raises(LegalHold):
        await moved(here, there, scope, target)
    await there.retention_policies.put(TenantScope(target.tenant_id), None, Policy(legal_hold=False), ACTOR)
    assert (await moved(here, there, scope, target)).items == 1
    assert (await get(there, target, "a")).value.data == encode_msgpack({"n": 1})


# --- shares, and damage -----------------------------------------------------------------------------------------------


async def test_items_under_a_share_come_over_under_one_or_are_left_out(here, there, scope, target):
    await write(here, scope, put("open", {}))
    await write(here, scope, put("closed", {"n": 1}), share=SHARE)
    await write(here, scope, put("closed", {"n": 2}, path=("more",)), share=SHARE)
    await write(here, scope, put("others", {}), share=OTHER_SHARE)
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_passed_over) == (1, 3)
    assert [(each.path, each.key, each.reason) for each in report.passed_items] == [(None, None, "client-share")]
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id, SHARE)
    without = await imported(there, target.tenant_id, file)
    assert (without.items, without.items_passed_over) == (0, 1 + 1 + 2)
    anew = ClientShare(b"n" * 32)
    assert (await imported(there, target.tenant_id, file, share=anew)).items == 2
    assert by_name(await seen(there, target, share=anew)) == by_name(await seen(here, scope, share=SHARE))
    assert await seen(there, target, share=SHARE) == []
    assert [each.name.key for each in await seen(there, target)] == ["open"]


async def test_a_damaged_item_is_named_and_its_neighbours_come_over(here, there, scope, target):
    await write(here, scope, put("a", {}), put("b", {}), put("c", {}))
    damage = "UPDATE stateroom.items SET updated_at = updated_at + make_interval(secs => 1)"
    await edited(here, scope, f"{damage} WHERE revision = 2")
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_passed_over) == (2, 1)
    assert [(each.path, each.key, each.reason) for each in report.passed_items] == [(PATH, None, "damaged")]
    assert {each.name.key for each in await seen(there, target)} == {"a", "c"}
    note = (await job(here, scope, "export")).note
    assert note.startswith("0 threads, 0 left out; 2 items, 0 of their paths left out; 1 damaged: user-1/items/")
    assert "memories" not in note


DAMAGES = {
    "its sequence": "UPDATE stateroom.item_paths SET sequence = 9 WHERE sequence = 2",
    "its labels": "UPDATE stateroom.item_paths SET labels = seal WHERE sequence = 2",
    "an item removed": "DELETE FROM stateroom.items WHERE revision = 2",
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_path_is_left_out_whole_and_others_come_over(here, there, scope, target, name):
    await write(here, scope, put("a", {}), put("b", {}))
    await write(here, scope, put("c", {}, path=("sound",)))
    await edited(here, scope, DAMAGES[name])
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_passed_over) == (1, 1)
    assert [each.reason for each in report.passed_items] == ["damaged"]
    assert [each.name.path for each in await seen(there, target)] == [("sound",)]
    assert "1 of their paths left out; 1 damaged: user-1/items/" in (await job(here, scope, "export")).note


async def test_a_path_that_was_removed_is_missed_and_the_others_come_over(here, there, scope, target):
    await write(here, scope, put("a", {}), put("b", {}))
    await write(here, scope, put("c", {}, path=("sound",)))
    items = "DELETE FROM stateroom.items WHERE path_id IN (SELECT path_id FROM stateroom.item_paths WHERE sequence = 2)"
    await edited(here, scope, items)
    await edited(here, scope, "DELETE FROM stateroom.item_paths WHERE sequence = 2")
    report = await moved(here, there, scope, target)
    assert (report.items, report.items_passed_over) == (1, 1)
    assert [(each.path, each.reason) for each in report.passed_items] == [(None, "damaged")]
    assert (await job(here, scope, "export")).note.endswith("1 damaged: user-1/items")


# --- what is refused --------------------------------------------------------------------------------------------------


async def test_a_file_of_another_tenant_or_that_was_cut_brings_nothing(here, there, scope, target):
    for number in range(40):
        await write(here, scope, put("a", {"text": os.urandom(100_000)}, path=("p", str(number))))
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    other = Scope(uuid4(), scope.subject_id)
    with pytest.raises(ImportForOther):
        await imported(there, other.tenant_id, file)
    assert await seen(there, other) == []
    with pytest.raises(ImportRefused):
        await imported(there, target.tenant_id, file[:-1])
    assert len(await seen(there, target)) == 39  # what follows the last has not opened
    assert (await imported(there, target.tenant_id, file)).items == 1


def changed(records, kind, **members):
    return [msgspec.structs.replace(each, **members) if isinstance(each, kind) else each for each in records]


REFUSED = {
    "a value that is no map": (lambda r: changed(r, export.ItemRecord, data=b"\x01"), "value none can have"),
    "a long value": (
        lambda r: changed(r, export.ItemRecord, data=encode_msgpack({"x": "y" * 300_000})), "value none can have"
    ),
    "a time and no time to live": (lambda r: changed(r, export.ItemRecord, ttl_seconds=None), "the contrary"),
    "a long life": (lambda r: changed(r, export.ItemRecord, ttl_seconds=2**30), "longer than any may"),
    "one key twice": (lambda r: changed(r, export.ItemRecord, key="a"), "a key twice"),
    "equal revisions": (lambda r: changed(r, export.ItemRecord, revision=1), "not in order"),
    "a revision beyond the path's": (lambda r: changed(r, export.PathRecord, sequence=1), "not in order"),
    "labels that cannot be": (lambda r: changed(r, export.PathRecord, labels=["a"] * 17), "path or a key"),
    "a key that cannot be": (lambda r: changed(r, export.ItemRecord, key="\u20ac" * 255), "path or a key"),
    "a subject that cannot be": (lambda r: changed(r, export.PathRecord, subject_id="~a"), "cannot be"),
    "fewer items than said": (lambda r: changed(r, export.PathEnding, items=1), "other items than its end says"),
    "fewer paths than said": (lambda r: changed(r, export.End, paths=2), "other paths of items"),
    "an item outside of a path": (
        lambda r: [r[0], *(each for each in r if isinstance(each, export.ItemRecord | export.End))],
        "where it cannot be",
    ),
    "a path within a path": (lambda r: [*r[:2], *r[1:]], "where it cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_file_that_says_what_none_may_say_is_refused(here, there, scope, target, name):
    await write(here, scope, put("a", {}, ttl_seconds=600), put("b", {}, ttl_seconds=600))
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    change, why = REFUSED[name]
    records = change(await opened(file, there, target.tenant_id))
    with pytest.raises(ImportRefused, match=why) as caught:
        await imported(there, target.tenant_id, await sealed(there, target.tenant_id, records))
    assert "memories" not in str(caught.value)
    assert await seen(there, target) == []


def nine_models(record):
    return [msgspec.structs.replace(record, model=f"{record.model}-{number}") for number in range(9)]


VECTORS_REFUSED = {
    "no number": (lambda r: changed(r, export.VectorsRecord, data=pack_with(math.nan)), "other vectors than an item"),
    "no finite number": (lambda r: changed(r, export.VectorsRecord, data=pack_with(math.inf)), "other vectors than"),
    "a negative length": (lambda r: changed(r, export.VectorsRecord, data=pack_with(-1.0)), "other vectors than an"),
    "half a vector": (lambda r: changed(r, export.VectorsRecord, data=bytes(16)), "other vectors than an item can"),
    "too many": (lambda r: changed(r, export.VectorsRecord, data=pack_with(1.0) * 65), "other vectors than an item"),
    "too many dimensions": (
        lambda r: changed(r, export.VectorsRecord, dimensions=4097, data=bytes(8 + 3 * 4097)), "other vectors than"
    ),
    "a model twice": (lambda r: changed(r, export.VectorsRecord, model="m"), "not in order"),
    "many models": (
        lambda r: [
            by_model
            for each in r
            for by_model in (nine_models(each) if getattr(each, "model", "") == MODEL else [each])
        ],
        "more models than any may",
    ),
    "fewer than said": (lambda r: changed(r, export.PathEnding, vectors=1), "other items than its end says"),
    "of no item": (
        lambda r: [each for each in r if not isinstance(each, export.ItemRecord)], "where it cannot be"
    ),
    "in no path": (lambda r: [r[0], *(each for each in r if isinstance(each, export.VectorsRecord))], "it cannot be"),
}  # fmt: skip


def pack_with(number):
    """One vector of three dimensions, whose length is this."""
    return struct.pack(">ff", 1.0, number) + bytes(9)


@pytest.mark.parametrize("name", VECTORS_REFUSED)
async def test_a_file_with_vectors_that_none_can_have_is_refused(here, there, scope, target, name):
    await write(here, scope, put("a", {}, vectors=(of(turned(0)), of(turned(1), model="another"))))
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    change, why = VECTORS_REFUSED[name]
    records = change(await opened(file, there, target.tenant_id))
    with pytest.raises(ImportRefused, match=why):
        await imported(there, target.tenant_id, await sealed(there, target.tenant_id, records))
    assert await seen(there, target) == []


async def test_revisions_that_no_path_may_have_are_refused(here, there, scope, target):
    await write(here, scope, put("a", {}))
    await write(there, target, put("b", {}))
    records = changed(
        await opened(await exported_tenant(here, there, scope.tenant_id, target.tenant_id), there, target.tenant_id),
        export.PathRecord,
        sequence=2**62 - 1,
    )
    with pytest.raises(ImportRefused, match="too great for what is here"):
        await imported(there, target.tenant_id, await sealed(there, target.tenant_id, records))
    assert [each.name.key for each in await seen(there, target)] == ["b"]


async def test_an_altered_digest_of_a_path_is_refused(here, there, scope, target):
    await write(here, scope, put("a", {}))
    records = await opened(
        await exported_tenant(here, there, scope.tenant_id, target.tenant_id), there, target.tenant_id
    )
    assert [type(each) for each in records[1:]] == [
        export.PathRecord, export.ItemRecord, export.PathEnding, export.End,
    ]  # fmt: skip
    assert (records[-1].paths, records[-1].paths_left_out) == (1, None)
    damaged = await sealed(there, target.tenant_id, [*records[:2], export.Broken("damaged"), *records[2:]])
    with pytest.raises(ImportRefused, match="where it cannot be"):
        await imported(there, target.tenant_id, damaged)


async def test_no_item_comes_in_before_the_feature_is_on(here, scope, target, postgres, migrated_template):
    await write(here, scope, put("a", {}))
    async with deployment(postgres, migrated_template) as earlier:
        file = await exported_tenant(here, earlier, scope.tenant_id, target.tenant_id)
        with pytest.raises(FeatureOff, match="items are stored once no older gateway"):
            await imported(earlier, target.tenant_id, file)
        assert await seen(earlier, target) == []


async def test_a_tenant_that_may_store_no_more_rows_takes_no_items_in(here, there, scope, target):
    key = ApiKeyRecord(
        key_id=uuid4().hex, kind="service", name="k", tenant_id=target.tenant_id, subject_id=None,
        permissions=("tenant:admin",), mac=b"m" * 32, pepper_version=1, created_at=WHEN, expires_at=None,
        revoked_at=None, last_used_at=None,
    )  # fmt: skip
    tenant = Tenant(tenant_id=target.tenant_id, name=target.tenant_id.hex, created_at=WHEN)
    await there.tenants.create(OperatorScope(founding=target.tenant_id), tenant, key)
    await write(here, scope, put("a", {}))
    await write(there, target, put("b", {}))
    file = await exported_tenant(here, there, scope.tenant_id, target.tenant_id)
    await there.tenants.set_quota(target.tenant_id, rows_quota_bytes=0)
    assert await RowCounting(there.unit_of_work, there.row_quotas, pause_ratio=0).tenant(target.tenant_id, now=True)
    await there.row_quotas.refresh()
    with pytest.raises(RowQuotaExceeded):
        await imported(there, target.tenant_id, file)
    assert [each.name.key for each in await seen(there, target)] == ["b"]
