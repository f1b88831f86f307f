"""The life of a blob: each race shown with its protection removed, and absent with it.

Interleavings are held by gates and by PostgreSQL's own locks, never by time.
"""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
import contextlib
from itertools import count
from uuid import uuid4

import pytest
from sqlalchemy.engine import make_url

from crypto import MemoryRootKey
from crypto.blob import PART_BYTES
from storage.artifacts.model import Announced, NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable
from storage.clock import SystemClock
from storage.collection.sweep import FAILURES_MAX, REMOVALS_AT_ONCE
from storage.errors import LostRaceError, QuotaExceeded, UploadExpired, UploadNotFound
from storage.ledger.ledger import NewBlob, new_blob_id
from storage.model import ChannelValue, FullState
from storage.postgres.statement import Statement
from storage.scope import Scope
from storage.service import Store, StoreOptions
from storage.statements.objects import blobs as sql
from tests.support.blob_rows import Blobs, Upload
from tests.support.engines import create_database, drop_database
from tests.support.interleaving import WAIT_SECONDS, CancelAtAwait, Gate, Meeting, SteeredUnitOfWork, blocked, without
from tests.support.states import load, packed, save
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID

CONTENT = b"\x01" + b"c" * 16
# Marking a blob as referenced locks its row, too, but is only sent when a sweeper has marked it; here it must not help.
NOT_MARKED = {sql.MARK_REFERENCED.text: "SELECT $1::uuid, $2::text, $3::uuid[]"}


@pytest.fixture
def blobs():
    return MemoryBlobStore()


@pytest.fixture
def plain(store, blobs):
    return Blobs(store, blobs)


async def _go_on(_statement):
    return


def steered(store, blobs, *, variants=None, before=_go_on, **options):
    return Blobs(store, blobs, SteeredUnitOfWork(store._engine, variants or {}, before), **options)


class CommitAfter:
    """Holds the COMMIT of the first transaction in which a statement ran."""

    def __init__(self, statement):
        self.statement = statement
        self.seen = False
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, statement):
        self.seen = self.seen or statement == self.statement
        if statement == "COMMIT" and self.seen and not self.reached.is_set():
            self.reached.set()
            async with asyncio.timeout(WAIT_SECONDS):
                await self.opened.wait()

    async def arrival(self):
        async with asyncio.timeout(WAIT_SECONDS):
            await self.reached.wait()


async def rows(admin, table, scope):
    return await admin.fetch(f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1", scope.tenant_id)


# --- settling against sweeping -------------------------------------------------------------------------------------


async def settle_beside_a_sweep(store, blobs, scope, variants):
    """An upload whose intent has expired is settled; a sweeper comes between its last statement and its COMMIT."""
    gate = CommitAfter(sql.SETTLE_INTENTS.text)
    await save(store, scope)
    slow = steered(store, blobs, variants=variants, before=gate, intent_seconds=-1)
    upload = await Blobs(store, blobs, intent_seconds=-1).put(scope, Upload())
    settling = asyncio.create_task(slow.settle(scope, upload))
    await gate.arrival()
    await Blobs(store, blobs).sweeper().tenant(scope.tenant_id, now=True)
    gate.opened.set()
    await settling
    await Blobs(store, blobs).sweeper().tenant(scope.tenant_id, now=True)
    return upload


async def test_an_upload_that_is_being_settled_is_not_swept(store, blobs, plain, scope):
    upload = await settle_beside_a_sweep(store, blobs, scope, {})
    assert await plain.there(scope, upload.blob_id)
    assert (await plain.fsck(scope)).clean


async def test_without_the_intents_lock_a_settled_blob_loses_its_object(store, blobs, plain, scope, admin):
    # An UPDATE of the intent would wait for the settling DELETE; the sweep must come before that.
    gate = Gate(sql.ADD_BLOBS.text)
    await save(store, scope)
    slow = steered(store, blobs, variants=without(sql.LOCK_INTENTS.text, "FOR UPDATE"), before=gate, intent_seconds=-1)
    upload = await Blobs(store, blobs, intent_seconds=-1).put(scope, Upload())
    settling = asyncio.create_task(slow.settle(scope, upload))
    await gate.arrival()
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    gate.opened.set()
    await settling
    assert not await plain.there(scope, upload.blob_id)
    assert (await plain.fsck(scope)).faults["dangling"] == 1


async def test_a_swept_upload_cannot_be_settled(store, blobs, plain, scope, admin):
    await save(store, scope)
    upload = await Blobs(store, blobs, intent_seconds=-1).put(scope, Upload())
    swept = await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert (swept.expired, swept.removed) == (1, 1)
    with pytest.raises(UploadExpired):
        await plain.settle(scope, upload)
    assert await rows(admin, "blobs", scope) == []
    assert await rows(admin, "blob_refs", scope) == []
    assert (await plain.fsck(scope)).clean


class SweptWhileWritten(MemoryBlobStore):
    """Its first part arrives when somebody took the upload for one that was given up."""

    def __init__(self):
        super().__init__()
        self.sweep = None

    async def put_part(self, location, multipart_id, number, sealed):
        sweep, self.sweep = self.sweep, None
        if sweep is not None:
            assert (await sweep()).expired == 1
            await self.abort_multipart(location, multipart_id)  # of a piece, which the intent does not name: as a stray
        return await super().put_part(location, multipart_id, number, sealed)


@pytest.fixture
async def swept_while_written(database, root_key, admin, scope):
    """A store whose next upload of several parts is swept before its first part arrives."""
    bucket = SweptWhileWritten()
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(blobs=bucket),
    )
    by_hand = Blobs(opened, bucket)

    async def sweep():
        await admin.execute("UPDATE stateroom.blob_intents SET expires_at = now() - interval '1 second'")
        return await by_hand.sweeper().tenant(scope.tenant_id, now=True)

    bucket.sweep = sweep
    yield opened
    assert bucket.sweep is None
    assert await bucket.list_multiparts("") == []
    assert (await by_hand.fsck(scope)).clean
    await opened.close()


async def test_a_file_that_is_swept_while_it_is_written_is_an_upload_that_ended(swept_while_written, scope):
    async def body():
        yield b"x" * (PART_BYTES + 1)

    def create():
        new = NewArtifact(name="file", media_type="text/plain")
        return swept_while_written.artifacts.create(
            scope, "t1", new, body(), announced=Announced(size_bytes=PART_BYTES + 1)
        )

    with pytest.raises(UploadNotFound):
        await create()
    assert (await create()).size_bytes == PART_BYTES + 1


async def test_a_piece_that_is_swept_while_it_is_written_is_written_again(swept_while_written, scope):
    value = packed(b"x" * (PART_BYTES + 1))
    await save(swept_while_written, scope, content=FullState({"a": ChannelValue("1", value)}))
    assert (await load(swept_while_written, scope)).channels["a"].value == value


async def test_settling_without_an_open_intent_would_dangle(store, blobs, plain, scope):
    await save(store, scope)
    upload = await Blobs(store, blobs, intent_seconds=-1).put(scope, Upload())
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    await steered(store, blobs, variants=without(sql.LOCK_INTENTS.text, "AND state = 'open'")).settle(scope, upload)
    assert (await plain.fsck(scope)).faults["dangling"] == 1


async def test_an_object_that_arrives_after_its_sweep_goes_at_the_tombstones_end(store, blobs, plain, scope, admin):
    await save(store, scope)
    upload = Upload()
    reserved = NewBlob(upload.blob_id, "piece", len(upload.data))
    late = Blobs(store, blobs, intent_seconds=-1)
    await late.ledger.reserve(scope, await late.sealer(scope), [reserved], SystemClock().now())
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    await late.write(scope, upload)  # its PUT was under way all the time
    assert (await plain.fsck(scope)).clean
    assert (await plain.sweeper().tenant(scope.tenant_id, now=True)).tombstones == 0
    assert await plain.there(scope, upload.blob_id)
    await admin.execute(
        "UPDATE stateroom.blob_intents SET expires_at = now() - interval '1 second' WHERE tenant_id = $1",
        scope.tenant_id,
    )
    assert (await plain.sweeper().tenant(scope.tenant_id, now=True)).tombstones == 1
    assert not await plain.there(scope, upload.blob_id)
    assert await rows(admin, "blob_intents", scope) == []


async def test_without_a_tombstone_a_late_object_would_be_an_orphan(store, blobs, plain, scope, admin):
    await save(store, scope)
    upload = Upload()
    late = Blobs(store, blobs, intent_seconds=-1)
    reserved = NewBlob(upload.blob_id, "piece", len(upload.data))
    await late.ledger.reserve(scope, await late.sealer(scope), [reserved], SystemClock().now())
    for _ in range(2):
        await plain.sweeper(tombstone_seconds=-1).tenant(scope.tenant_id, now=True)
    assert await rows(admin, "blob_intents", scope) == []
    await late.write(scope, upload)
    assert (await plain.fsck(scope)).faults == {"orphan": 1}


# --- referring against condemning ----------------------------------------------------------------------------------


async def refer_beside_a_sweep(store, blobs, scope, *, refer=None, sweep=None):
    """A thread comes to refer to a blob whose grace has ended; a sweeper comes before the COMMIT."""
    plain = Blobs(store, blobs)
    blob_id = await plain.stored(scope, Upload(CONTENT))
    await plain.forget(scope)
    gate = CommitAfter(sql.ADD_REFS.text)
    referring = asyncio.create_task(steered(store, blobs, variants=refer, before=gate).refer(scope, blob_id))
    await gate.arrival()
    sweeping = asyncio.create_task(
        steered(store, blobs, variants=sweep).sweeper(days=1).tenant(scope.tenant_id, now=True)
    )
    return blob_id, gate, referring, sweeping


async def test_a_blob_that_is_being_referred_to_is_not_condemned(store, blobs, plain, scope, admin):
    blob_id, gate, referring, sweeping = await refer_beside_a_sweep(store, blobs, scope)
    assert (await sweeping).condemned == 0
    gate.opened.set()
    await referring
    assert (await plain.sweeper(days=1).tenant(scope.tenant_id, now=True)).condemned == 0
    (row,) = await rows(admin, "blobs", scope)
    assert (row["blob_id"], row["state"], row["unreferenced_at"]) == (blob_id, "live", None)
    assert (await plain.fsck(scope)).clean


async def test_without_the_referrers_lock_the_blob_is_condemned_under_it(store, blobs, plain, scope):
    _, gate, referring, sweeping = await refer_beside_a_sweep(
        store,
        blobs,
        scope,
        refer=without(sql.LOCK_LIVE.text, "FOR KEY SHARE") | NOT_MARKED,
    )
    assert (await sweeping).condemned == 1
    gate.opened.set()
    await referring
    assert (await plain.fsck(scope)).faults["dangling"] == 1


async def test_without_the_sweepers_lock_the_blob_is_condemned_under_the_referrer(store, blobs, plain, scope):
    _, gate, referring, sweeping = await refer_beside_a_sweep(
        store,
        blobs,
        scope,
        refer=NOT_MARKED,
        sweep=without(sql.LOCK_UNREFERENCED.text, "FOR UPDATE SKIP LOCKED"),
    )
    assert (await sweeping).condemned == 1
    gate.opened.set()
    await referring
    assert (await plain.fsck(scope)).faults["dangling"] == 1


async def test_looking_for_references_in_the_locking_statement_would_look_too_early(store, blobs, plain, scope, admin):
    unreferenced = (
        "AND NOT EXISTS (SELECT FROM stateroom.blob_refs r WHERE r.tenant_id = $1 AND r.subject_id = $2"
        " AND r.blob_id = blobs.blob_id) ORDER BY"
    )
    locking = sql.LOCK_UNREFERENCED.text.replace("ORDER BY", unreferenced).replace("SKIP LOCKED", "")
    _, gate, referring, sweeping = await refer_beside_a_sweep(
        store,
        blobs,
        scope,
        refer=NOT_MARKED,
        sweep={sql.LOCK_UNREFERENCED.text: locking}
        | without(sql.CONDEMN.text, Statement(sql._UNREFERENCED).text, "true"),
    )
    await blocked(admin)
    gate.opened.set()
    await referring
    assert (await sweeping).condemned == 1
    assert (await plain.fsck(scope)).faults["dangling"] == 1


async def test_a_reference_that_waited_for_a_condemning_sweeper_is_refused(store, blobs, plain, scope, admin):
    blob_id = await plain.stored(scope, Upload(CONTENT))
    await plain.forget(scope)
    gate = CommitAfter(sql.CONDEMN.text)
    sweeping = asyncio.create_task(steered(store, blobs, before=gate).sweeper(days=1).tenant(scope.tenant_id, now=True))
    await gate.arrival()
    referring = asyncio.create_task(plain.refer(scope, blob_id))
    await blocked(admin)
    gate.opened.set()
    assert (await sweeping).condemned == 1
    with pytest.raises(LostRaceError):
        await referring
    again = await plain.put(scope, Upload(CONTENT))
    assert await plain.settle(scope, again) == [again.blob_id]  # under a new id: the condemned one does not revive
    assert (await plain.fsck(scope)).clean


# --- two settles of one content ------------------------------------------------------------------------------------


async def settle_twice(store, blobs, scope, variants=None):
    barrier = asyncio.Barrier(2)
    uploads = []
    for thread_id in ("t1", "t2"):
        await save(store, scope, thread_id)
        uploads.append(await Blobs(store, blobs).put(scope, Upload(CONTENT)))
    outcomes = await asyncio.gather(
        *(
            steered(store, blobs, variants=variants, before=Meeting(sql.ADD_BLOBS.text, barrier)).settle(
                scope, upload, thread_id=thread_id
            )
            for upload, thread_id in zip(uploads, ("t1", "t2"), strict=True)
        ),
        return_exceptions=True,
    )
    return uploads, outcomes


async def test_two_settles_of_one_content_keep_one_blob(store, blobs, plain, scope, admin):
    uploads, outcomes = await settle_twice(store, blobs, scope)
    assert outcomes[0] == outcomes[1]
    kept = outcomes[0][0]
    (lost,) = {each.blob_id for each in uploads} - {kept}
    assert {row["thread_id"] for row in await rows(admin, "blob_refs", scope)} == {"t1", "t2"}
    assert (await plain.fsck(scope)).clean
    swept = await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert (swept.removed, swept.freed_bytes) == (1, len(uploads[0].data))
    assert await plain.there(scope, kept)
    assert not await plain.there(scope, lost)
    assert (await plain.fsck(scope)).clean


async def test_without_the_way_out_of_the_conflict_one_of_two_settles_fails(store, blobs, scope):
    clause = (
        "ON CONFLICT (tenant_id, subject_id, content_id) WHERE state = 'live' AND content_id IS NOT NULL DO NOTHING"
    )
    _, outcomes = await settle_twice(store, blobs, scope, without(sql.ADD_BLOBS.text, clause))
    assert sorted(type(each).__name__ for each in outcomes) == ["UniqueViolationError", "list"]


# --- several sweepers ----------------------------------------------------------------------------------------------


async def two_sweepers(store, blobs, scope, admin, variants=None):
    """Two sweepers remove the object of one expired intent; the second is at the row before the first commits."""
    await save(store, scope)
    expired = Blobs(store, blobs, intent_seconds=-1)
    await expired.put(scope, Upload(data=b"x" * 100))
    await Blobs(store, blobs).put(scope, Upload(data=b"y" * 1000))
    first, second = Gate(sql.REMOVED.text), Gate(sql.REMOVED.text)
    end = CommitAfter(sql.REMOVED.text)

    async def first_and_end(statement):
        await first(statement)
        await end(statement)

    def sweep(before):
        sweeper = steered(store, blobs, variants=variants, before=before).sweeper()
        return asyncio.create_task(sweeper.tenant(scope.tenant_id, now=True))

    # One after the other, up to the same row: a sweeper passes over what another one is expiring at that moment, and
    # waits where another one has counted bytes.
    sweeping = [sweep(first_and_end)]
    await first.arrival()
    sweeping.append(sweep(second))
    await second.arrival()
    first.opened.set()
    await end.arrival()
    second.opened.set()
    await blocked(admin)
    end.opened.set()
    return await asyncio.gather(*sweeping)


async def test_two_sweepers_free_the_quota_once(store, blobs, scope, admin):
    swept = await two_sweepers(store, blobs, scope, admin)
    assert sorted(each.freed_bytes for each in swept) == [0, 100]
    assert [row["bytes"] for row in await rows(admin, "blob_usage", scope)] == [1000]


async def test_two_sweepers_would_free_twice_without_the_lock_on_the_row(store, blobs, plain, scope, admin):
    variant = sql.REMOVED.text.replace("FOR UPDATE", "").replace("AND removed_at IS NULL", "")
    assert variant != sql.REMOVED.text
    swept = await two_sweepers(store, blobs, scope, admin, {sql.REMOVED.text: variant})
    assert [each.freed_bytes for each in swept] == [100, 100]
    assert [row["bytes"] for row in await rows(admin, "blob_usage", scope)] == [900]
    assert (await plain.fsck(scope)).faults == {"miscounted": 1}


async def test_sweepers_beside_saves_with_the_same_content_leave_a_clean_store(store, blobs, plain, scope):
    """Uploads, dedup hits, prunes and two sweepers at once, with no grace, until some blobs were condemned."""
    contents = [b"\x01" + bytes([n]) * 16 for n in range(2)]
    threads = [f"t{n}" for n in range(3)]
    for thread_id in threads:
        await save(store, scope, thread_id)
    ended, condemned, hits = asyncio.Event(), 0, 0

    async def work(thread_id):
        nonlocal hits
        while not ended.is_set():
            for content in contents:
                with contextlib.suppress(LostRaceError):
                    async with store.unit_of_work.snapshot(scope) as transaction:
                        known = await plain.ledger.live_blobs(transaction, [content])
                    if known:
                        await plain.refer(scope, known[content], thread_id=thread_id)
                        hits += 1
                    else:
                        await plain.settle(scope, await plain.put(scope, Upload(content)), thread_id=thread_id)
            await plain.forget(scope, thread_id)

    async def sweep():
        nonlocal condemned
        while not ended.is_set():
            swept = await plain.sweeper().tenant(scope.tenant_id, now=True)
            condemned += swept.condemned
            assert "dangling" not in (await plain.fsck(scope)).faults
            if condemned > 3 and hits > 3:
                ended.set()

    async with asyncio.timeout(3 * WAIT_SECONDS), asyncio.TaskGroup() as group:
        for each in (*(work(thread_id) for thread_id in threads), sweep(), sweep()):
            group.create_task(each)
    report = await plain.fsck(scope)
    assert report.faults == {}


async def test_a_tenant_is_swept_by_one_process_at_a_time_and_not_before_its_time(store, blobs, plain, scope, admin):
    await plain.stored(scope)
    assert (await plain.sweeper().tenant(scope.tenant_id)).tenants == 1
    assert await plain.sweeper().tenant(scope.tenant_id) is None
    await admin.execute(
        "UPDATE stateroom.blob_usage SET sweep_after = now() - interval '1 hour' WHERE tenant_id = $1", scope.tenant_id
    )
    assert (await plain.sweeper().run_due()).tenants >= 1
    assert await plain.sweeper().tenant(scope.tenant_id) is None


# --- faults --------------------------------------------------------------------------------------------------------


async def end_tombstones(scope, admin):
    await admin.execute(
        "UPDATE stateroom.blob_intents SET expires_at = now() - interval '1 second' WHERE tenant_id = $1",
        scope.tenant_id,
    )


async def a_full_round(plain, scope, admin):
    """Something for every step of a sweep: an expired upload, an ended tombstone, a loose blob and a condemned one."""
    await Blobs(plain.store, plain.blobs, intent_seconds=-1).put(scope, Upload())
    for n in range(2):
        await plain.stored(scope, thread_id=f"loose-{n}")
    await plain.stored(scope, thread_id="kept")
    await plain.forget(scope, "loose-0")
    await plain.sweeper(days=1).tenant(scope.tenant_id, now=True)
    await plain.forget(scope, "loose-1")
    await Blobs(plain.store, plain.blobs, intent_seconds=-1).put(scope, Upload())
    await end_tombstones(scope, admin)


async def swept_clean(plain, scope, admin):
    """After another sweep or two only what is named is left, and everything agrees."""
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    await end_tombstones(scope, admin)
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert len(await rows(admin, "blobs", scope)) == 1
    assert await rows(admin, "blob_intents", scope) == []
    report = await plain.fsck(scope)
    return (report.objects, report.faults) == (1, {})


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_sweep_cancelled_at_any_await_loses_nothing_and_leaves_nothing(store, blobs, scope, admin, step):
    for number in count(1, step):
        own = Scope(uuid4(), "user-1")
        plain = Blobs(store, blobs)
        await a_full_round(plain, own, admin)
        sweeping = CancelAtAwait(plain.sweeper(days=0).tenant(own.tenant_id, now=True), number)
        await sweeping.run()
        assert (await plain.fsck(own)).faults == {}
        assert await swept_clean(plain, own, admin)
        if not sweeping.cancelled:
            break
    assert number > 20


async def test_an_upload_cancelled_at_every_await_leaves_nothing(store, blobs, admin):
    number = 0
    while True:
        number += 1
        own = Scope(uuid4(), "user-1")
        plain = Blobs(store, blobs, intent_seconds=-1)
        await plain.stored(own)

        async def upload(plain=plain, own=own):
            await plain.settle(own, await plain.put(own, Upload()))

        uploading = CancelAtAwait(upload(), number)
        await uploading.run()
        assert (await plain.fsck(own)).faults == {}
        await plain.forget(own)
        blob_id = await plain.stored(own, thread_id="kept")
        assert await swept_clean(plain, own, admin)
        assert await plain.there(own, blob_id)
        if not uploading.cancelled:
            break
    assert number > 5


async def test_a_sweep_goes_on_when_the_object_store_is_back(store, blobs, plain, scope, admin):
    await a_full_round(plain, scope, admin)
    blobs.available = False
    swept = await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert swept.failed >= 1
    assert swept.freed_bytes == swept.deleted == swept.removed == 0
    blobs.available = True
    assert (await plain.fsck(scope)).faults == {}
    assert await swept_clean(plain, scope, admin)


async def test_an_object_store_that_is_away_is_not_asked_for_ever(store, blobs, plain, scope):
    late = Blobs(store, blobs, intent_seconds=-1)
    for _ in range(3 * FAILURES_MAX):
        await late.put(scope, Upload())
    blobs.available = False
    swept = await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert FAILURES_MAX <= swept.failed < 2 * FAILURES_MAX + REMOVALS_AT_ONCE


async def test_a_removal_whose_answer_was_lost_is_repeated(store, scope, admin):
    class LosesAnswers(MemoryBlobStore):
        lost = 0

        async def delete(self, location):
            await super().delete(location)
            if self.lost < 1:
                self.lost += 1
                raise BlobUnavailable

    blobs = LosesAnswers()
    plain = Blobs(store, blobs)
    await a_full_round(plain, scope, admin)
    assert blobs.lost == 1
    assert (await plain.fsck(scope)).faults == {}
    assert await swept_clean(plain, scope, admin)


async def test_rounds_go_on_after_one_that_failed(store, blobs, scope):
    await Blobs(store, blobs, intent_seconds=-1).put(scope, Upload())
    told, counted, done = [], [], asyncio.Event()

    def swept(round_):
        told.append(round_)
        done.set()

    sweeping = asyncio.create_task(Blobs(store, blobs).sweeper().keep_running(swept, told.append, counted.append))
    async with asyncio.timeout(WAIT_SECONDS):
        await done.wait()
    sweeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sweeping
    assert [each.removed >= 1 for each in told] == [True]


# --- backups -------------------------------------------------------------------------------------------------------


async def test_a_database_restored_to_before_a_sweep_still_finds_its_blobs(postgres, migrated_template, scope):
    root_key, blobs = MemoryRootKey(), MemoryBlobStore()

    async def opened(name):
        url = make_url(postgres.superuser_url(name)).set(username="gw_app", password=APP_PASSWORD)
        return await Store.open(
            url.render_as_string(False),
            root_key=root_key,
            deployment_id=DEPLOYMENT_ID,
            connections_max=4,
            durable=False,
        )

    live = await create_database(postgres, migrated_template)
    names = [live.name]
    try:
        store = await opened(live.name)
        before = Blobs(store, blobs)
        blob_id = await before.stored(scope)
        await store.close()
        backup = await create_database(postgres, live.name)
        names.append(backup.name)

        store = await opened(live.name)
        after = Blobs(store, blobs)
        await after.forget(scope)
        for _ in range(2):
            await after.sweeper(days=30).tenant(scope.tenant_id, now=True)
        later = await after.stored(scope, thread_id="t2")  # the backup does not know this one
        assert (await after.fsck(scope)).clean
        await store.close()

        store = await opened(backup.name)
        restored = Blobs(store, blobs)
        assert await restored.there(scope, blob_id)
        report = await restored.fsck(scope)
        assert report.faults == {"orphan": 1}
        assert [each.what for each in report.findings] == [str(later)]
        # A sweep that held nothing back would have taken it from the backup.
        await restored.forget(scope)
        await restored.sweeper(days=0).tenant(scope.tenant_id, now=True)
        assert not await restored.there(scope, blob_id)
        await store.close()
    finally:
        for each in names:
            await drop_database(postgres, each)


# --- quota ---------------------------------------------------------------------------------------------------------


async def reserve_twice(store, blobs, scope, admin, variants=None):
    """Two reservations of 60 bytes under a quota of 100; the second begins before the first commits."""
    await admin.execute(
        "INSERT INTO stateroom.blob_usage (tenant_id, bytes, quota_bytes) VALUES ($1, 0, 100)", scope.tenant_id
    )
    gate = CommitAfter(sql.RESERVE_BYTES.text)

    async def reserve(before):
        by = steered(store, blobs, variants=variants, before=before)
        reserved = NewBlob(new_blob_id(), "piece", 60)
        await by.ledger.reserve(scope, await by.sealer(scope), [reserved], SystemClock().now())

    first = asyncio.create_task(reserve(gate))
    await gate.arrival()
    second = asyncio.create_task(reserve(_go_on))
    await blocked(admin)
    gate.opened.set()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    (usage,) = await rows(admin, "blob_usage", scope)
    return sorted(type(each).__name__ for each in outcomes), usage["bytes"]


async def test_two_reservations_cannot_both_take_the_last_bytes(store, blobs, scope, admin):
    assert await reserve_twice(store, blobs, scope, admin) == (["NoneType", "QuotaExceeded"], 60)
    assert len(await rows(admin, "blob_intents", scope)) == 1


async def test_a_quota_that_is_looked_at_before_would_let_both_in(store, blobs, scope, admin):
    looked_at_before = """
        WITH free AS (SELECT quota_bytes - bytes AS bytes FROM stateroom.blob_usage WHERE tenant_id = $1)
        UPDATE stateroom.blob_usage u SET bytes = u.bytes + $2 FROM free WHERE tenant_id = $1 AND $2 <= free.bytes
        RETURNING u.bytes
    """
    outcome = await reserve_twice(store, blobs, scope, admin, {sql.RESERVE_BYTES.text: looked_at_before})
    assert outcome == (["NoneType", "NoneType"], 120)


async def test_a_resumable_upload_reserves_as_it_grows(store, blobs, plain, scope, admin):
    await admin.execute(
        "INSERT INTO stateroom.blob_usage (tenant_id, bytes, quota_bytes) VALUES ($1, 0, 100)", scope.tenant_id
    )
    upload = await plain.put(scope, Upload(data=b"x" * 60, purpose="artifact"))
    with pytest.raises(QuotaExceeded):
        await plain.ledger.renew(scope, upload.blob_id, 60)
    assert (await plain.ledger.renew(scope, upload.blob_id, 40)).reserved_bytes == 100
    await save(store, scope)
    await plain.settle(scope, upload)  # what was reserved and not used is given back
    assert [row["bytes"] for row in await rows(admin, "blob_usage", scope)] == [60]
    assert (await plain.fsck(scope)).clean
