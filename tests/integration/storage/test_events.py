"""Events: what a tenant's verbs tell, in which order it is read, and what a position means afterwards."""

import asyncio
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from storage.administration.jobs import MORE, Runner, Slice
from storage.artifacts.model import NewArtifact
from storage.blobs.memory import MemoryBlobStore
from storage.control.features import EVENTS
from storage.errors import EventsExpired, EventsOff, EventsRewound, FeatureOff, IntegrityFailure, StorageError
from storage.event_queue.model import OfThread
from storage.events.keeping import EventKeeping
from storage.events.model import EventPosition, EventQuery
from storage.events.verbs import LEAD_SECONDS
from storage.keys.key_seals import Pepper, Peppers
from storage.model import ApiKeyRecord, TaskWrites
from storage.scope import Scope, TenantScope
from storage.statements.events import events as events_sql
from storage.statements.threads import checkpoints as checkpoints_sql
from tests.support.archive_rows import opened
from tests.support.events import all_events, events_on, oldest
from tests.support.features import switch_on
from tests.support.states import put, save, state, write

PEPPERS = Peppers(Pepper(1, bytes(range(32))))


@pytest.fixture
async def listened(store, scope):
    """A scope whose tenant has events."""
    await events_on(store, scope.tenant_id)
    return scope


def tenant_of(scope):
    return TenantScope(scope.tenant_id)


def told(events):
    return [event.type for event in events]


async def test_nobody_has_events_before_the_feature_is_on(migrated_database, root_key, scope):
    async with opened(migrated_database, root_key) as store:
        with pytest.raises(FeatureOff):
            await store.events.set_settings(tenant_of(scope), "test", on=True)
        with pytest.raises(FeatureOff):
            await store.events.read(tenant_of(scope), EventQuery())


async def test_a_tenant_without_events_has_none_and_its_queue_stays_empty(store, scope):
    await switch_on(store, EVENTS)
    await save(store, scope)
    assert await store.event_relay.drain(scope.tenant_id) == 0
    with pytest.raises(EventsOff):
        await store.events.read(tenant_of(scope), EventQuery())


async def test_events_are_read_from_a_moment_after_they_were_switched_on_and_that_is_on_record(store, scope):
    await switch_on(store, EVENTS)
    said = await store.events.set_settings(tenant_of(scope), "key:1", on=True)
    assert said.on
    assert said.since is not None
    assert await store.events.settings(tenant_of(scope)) == said
    assert await store.events.set_settings(tenant_of(scope), "key:1", on=True) == said
    with pytest.raises(EventsOff, match=f"{said.since:%H:%M:%S}"):
        await store.events.read(tenant_of(scope), EventQuery())
    page = await store.audit.page(tenant_of(scope), "auditor")
    assert [each.event.action for each in page.items[:-1]] == ["event-settings.set"]
    assert LEAD_SECONDS > 8


async def test_saves_of_both_ways_tell_of_their_checkpoints_in_their_order(store, listened):
    saved = [await save(store, listened, "t1", agent="a", run_id=f"r{number}") for number in range(5)]
    created, *events = await all_events(store, tenant_of(listened))
    assert (created.type, created.thread_id, created.checkpoint_id) == ("thread.created", "t1", None)
    assert told(events) == ["checkpoint.saved"] * 5
    assert [each.checkpoint_id for each in events] == [each.checkpoint_id for each in saved]
    assert [each.run_id for each in events] == [f"r{number}" for number in range(5)]
    assert [each.sequence for each in events] == [*range(created.sequence + 1, created.sequence + 6)]
    assert {each.stream for each in events} == {created.stream}
    numbers = [each.stream_sequence for each in events]
    assert numbers == sorted(set(numbers))
    last = events[-1]
    assert (last.namespace, last.agent, last.status, last.subject_id) == ("", "a", "active", listened.subject_id)
    assert last.at - saved[-1].created_at < timedelta(seconds=60)


async def test_writes_tell_how_the_thread_stands_and_others_tell_nothing(store, listened):
    saved = await save(store, listened)
    before = len(await all_events(store, listened))
    await put(store, listened, saved.checkpoint_id, write(0, "a", 1))
    waits = TaskWrites("t1", "", saved.checkpoint_id, "task", "", [write(-3, "__interrupt__", 1)], "waiting")
    await store.checkpoints.put_writes(listened, waits)
    await store.checkpoints.put_writes(listened, replace(waits, task_id="later", checkpoint_id="zz"))
    events = (await all_events(store, listened))[before:]
    assert [(each.type, each.status, each.checkpoint_id) for each in events] == [
        ("thread.status", "waiting", saved.checkpoint_id),
        ("thread.status", "waiting", "zz"),
    ]


async def test_what_happens_to_whole_threads_is_told(database, root_key, scope):
    async with opened(database, root_key, archive=MemoryBlobStore()) as store:
        await events_on(store, scope.tenant_id)
        await store.threads.put(scope, "empty")
        await save(store, scope, "t1")
        await store.threads.copy(scope, "t1", "copy")
        await store.archives.archive(scope, "t1")
        await store.archives.restore(scope, "t1")
        await store.threads.delete(scope, "t1")
        events = await all_events(store, scope)
    assert [(each.type, each.thread_id) for each in events if each.type != "checkpoint.saved"] == [
        ("thread.created", "empty"), ("thread.created", "t1"), ("thread.created", "copy"), ("thread.archived", "t1"),
        ("thread.restored", "t1"), ("thread.deleted", "t1"),
    ]  # fmt: skip


async def test_an_event_never_makes_a_copy_fail_that_began_before_others_wrote(store, listened):
    """A copy sees one moment; whether its tenant is due may have changed since."""
    await save(store, listened, "t1")
    await store.event_relay.drain(listened.tenant_id)
    said = OfThread("t1")
    async with store.unit_of_work.frozen(listened) as transaction:
        await transaction.fetch_one(events_sql.SETTINGS)  # from here on it sees this moment
        await save(store, listened, "t2")
        await store.event_relay.drain(listened.tenant_id)
        await store.emitting.of_thread(transaction, listened, "thread.created", said)
    await store.emitting.mark_due(listened.tenant_id)
    newest = (await all_events(store, listened))[-1]
    assert (newest.type, newest.thread_id) == ("thread.created", "t1")


async def test_a_thread_that_an_upload_makes_is_told(database, root_key, scope):
    async def content():
        yield b"content"

    async with opened(database, root_key, blobs=MemoryBlobStore()) as store:
        await events_on(store, scope.tenant_id)
        for name in ("a.png", "b.png"):
            await store.artifacts.create(scope, "t1", NewArtifact(name=name, media_type="image/png"), content())
        await save(store, scope, "t1")
        events = await all_events(store, scope)
    assert [(each.type, each.thread_id) for each in events] == [("thread.created", "t1"), ("checkpoint.saved", "t1")]


async def test_a_thread_deleted_and_made_again_begins_another_stream_and_never_fails_a_save(store, listened):
    for _ in range(3):
        await save(store, listened, "again")
        await save(store, listened, "again")
        await store.threads.delete(listened, "again")
    events = await all_events(store, listened)
    assert told(events).count("thread.deleted") == 3
    streams = [each.stream for each in events if each.type == "thread.created"]
    assert len({*streams}) == 3
    for stream in streams:
        numbers = [each.stream_sequence for each in events if each.stream == stream]
        assert numbers == sorted(numbers)


async def test_the_end_of_a_job_is_told(store, listened):
    await store.jobs.ready()

    async def perform(lease):
        return Slice(ended=True, error="no" if lease.target == "bad" else None)

    for target in ("good", "bad"):
        async with store.unit_of_work.begin(tenant_of(listened)) as transaction:
            await store.jobs.add(transaction, listened.tenant_id, "test", target, "")
    while await Runner(store.jobs, {"test": perform}).run_due():
        pass
    events = await all_events(store, tenant_of(listened))
    assert sorted((each.type, each.status) for each in events) == [("job.ended", "done"), ("job.ended", "failed")]
    assert all(each.stream.id == str(each.job_id) for each in events)
    assert MORE.ended is False


async def test_a_subject_sees_its_own_events_only_and_positions_lead_it_past_others(store, listened):
    other = Scope(listened.tenant_id, "user-2")
    for who in (listened, other, other, listened):
        await save(store, who)
    mine, others = await all_events(store, listened), await all_events(store, other)
    assert {each.subject_id for each in mine} == {"user-1"}
    assert {each.subject_id for each in others} == {"user-2"}
    assert {each.sequence for each in mine}.isdisjoint(each.sequence for each in others)
    assert len(await all_events(store, tenant_of(listened))) == len(mine) + len(others)
    page = await store.events.read(other, EventQuery(EventPosition(others[-1].sequence, others[-1].event_id)))
    assert (page.events, page.more) == ([], False)
    newest = await store.events.newest(listened.tenant_id)
    assert page.position.sequence == newest == max(mine[-1].sequence, others[-1].sequence)


async def test_pages_are_whole_filtered_and_lead_on(store, listened):
    first = (await store.events.read(tenant_of(listened), EventQuery())).position
    for number in range(7):
        await save(store, listened, f"t{number % 2}")
    everything = await all_events(store, tenant_of(listened))
    assert await all_events(store, tenant_of(listened), limit=2) == everything
    created = EventQuery(first, types=frozenset({"thread.created"}))
    page = await store.events.read(tenant_of(listened), created)
    assert [each.thread_id for each in page.events] == ["t0", "t1"]
    assert page.position == (everything[-1].sequence, everything[-1].event_id)
    page = await store.events.read(tenant_of(listened), EventQuery(first, thread_id="t1", limit=2))
    assert {each.thread_id for each in page.events} == {"t1"}
    assert (len(page.events), page.more) == (2, True)


async def test_a_position_whose_number_went_to_another_event_or_to_none_yet_is_rewound(store, listened):
    await save(store, listened)
    events = await all_events(store, tenant_of(listened))
    last = events[-1]
    for position in (
        EventPosition(last.sequence, uuid4()),
        EventPosition(last.sequence, None),
        EventPosition(last.sequence + 1, uuid4()),
        EventPosition(last.sequence + 1, None),
    ):
        with pytest.raises(EventsRewound):
            await store.events.read(tenant_of(listened), EventQuery(position))


async def test_after_a_restored_counter_no_event_is_passed_over_in_silence(store, database, listened):
    await save(store, listened)
    kept = (await all_events(store, tenant_of(listened)))[-1]
    await save(store, listened)
    lost = (await all_events(store, tenant_of(listened)))[-1]
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "DELETE FROM stateroom.events WHERE tenant_id = $1 AND sequence > $2", listened.tenant_id, kept.sequence
    )
    await connection.execute(
        "UPDATE stateroom.event_counters SET next_sequence = $2 WHERE tenant_id = $1",
        listened.tenant_id, kept.sequence + 1,
    )  # fmt: skip
    await connection.close()
    with pytest.raises(EventsRewound):
        await store.events.read(tenant_of(listened), EventQuery(EventPosition(lost.sequence, lost.event_id)))
    await save(store, listened)
    page = await store.events.read(tenant_of(listened), EventQuery(EventPosition(kept.sequence, kept.event_id)))
    await store.event_relay.drain(listened.tenant_id)
    page = await store.events.read(tenant_of(listened), EventQuery(EventPosition(kept.sequence, kept.event_id)))
    assert [each.sequence for each in page.events] == [lost.sequence]
    with pytest.raises(EventsRewound):
        await store.events.read(tenant_of(listened), EventQuery(EventPosition(lost.sequence, lost.event_id)))


async def test_old_and_too_many_events_go_by_pages_and_positions_before_them_are_expired(store, database, listened):
    for _ in range(12):
        await save(store, listened)
    events = await all_events(store, tenant_of(listened))
    keeping = EventKeeping(store.unit_of_work, store.event_relay, page_rows=3, events_max=8)
    assert [removed async for removed in keeping.expire(listened.tenant_id)] == [3, 2]
    kept = await all_events(store, tenant_of(listened))
    assert kept == events[5:]
    at_the_end = EventPosition(events[4].sequence, events[4].event_id)
    assert (await store.events.read(tenant_of(listened), EventQuery(at_the_end))).events == kept
    with pytest.raises(EventsExpired):
        await store.events.read(tenant_of(listened), EventQuery(EventPosition(events[3].sequence, events[3].event_id)))
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "UPDATE stateroom.events SET at = at - interval '8 days' WHERE tenant_id = $1 AND sequence <= $2",
        listened.tenant_id, kept[1].sequence,
    )  # fmt: skip
    await connection.close()
    await store.retaining.tenant(listened.tenant_id, now=True)
    assert await all_events(store, tenant_of(listened)) == kept[2:]


async def test_what_waits_and_nobody_knows_to_be_due_is_numbered_by_the_round_of_retention(store, database, listened):
    await save(store, listened)
    store.emitting.waiting.pop(listened.tenant_id, None)
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute("UPDATE stateroom.event_relays SET due_at = NULL WHERE tenant_id = $1", listened.tenant_id)
    await connection.close()
    await store.retaining.tenant(listened.tenant_id, now=True)
    assert await store.events.newest(listened.tenant_id) >= 2


async def test_switched_off_and_on_again_positions_from_before_are_too_old(store, listened):
    await save(store, listened)
    last = (await all_events(store, tenant_of(listened)))[-1]
    await store.events.set_settings(tenant_of(listened), "test", on=False)
    await save(store, listened, "missed")
    with pytest.raises(EventsOff):
        await store.events.read(tenant_of(listened), EventQuery())
    await events_on(store, listened.tenant_id)
    with pytest.raises(EventsExpired):
        await store.events.read(tenant_of(listened), EventQuery(EventPosition(last.sequence, last.event_id)))
    await save(store, listened, "told")
    assert {each.thread_id for each in await all_events(store, tenant_of(listened))} == {"told"}


async def test_settings_that_no_gateway_wrote_are_named_and_can_be_set_again(store, database, listened):
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "UPDATE stateroom.event_settings SET since = since - interval '1 day' WHERE tenant_id = $1", listened.tenant_id
    )
    await connection.close()
    assert (await store.events.settings(tenant_of(listened))).damaged
    with pytest.raises(IntegrityFailure):
        await store.events.read(tenant_of(listened), EventQuery())
    assert not (await store.events.set_settings(tenant_of(listened), "test", on=True)).damaged
    assert not (await store.events.settings(tenant_of(listened))).damaged


async def test_who_waits_is_woken_by_the_relay_of_the_same_process(store, listened):
    failed = []
    relaying = asyncio.create_task(store.event_relay.keep_running(failed.append))
    woken = store.events.woken(listened.tenant_id)
    assert store.events.woken(listened.tenant_id) is woken
    newest = await store.events.newest(listened.tenant_id)
    await save(store, listened)
    await asyncio.wait_for(woken.wait(), 10)
    assert await store.events.newest(listened.tenant_id) > newest
    relaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying
    assert not failed


async def test_a_tenant_that_another_process_wrote_to_and_died_is_found_and_rests_afterwards(
    store, listened, database, root_key
):
    await save(store, listened)
    store.emitting.waiting.pop(listened.tenant_id, None)
    async with opened(database, root_key) as other:
        await other.features.refresh()
        failed = []
        relaying = asyncio.create_task(other.event_relay.keep_running(failed.append))
        while not await store.events.newest(listened.tenant_id):  # noqa: ASYNC110  another process
            await asyncio.sleep(0.02)
        connection = await asyncpg.connect(database.dsn(database.superuser_url))
        relay = "SELECT due_at IS NULL AND leased_until IS NULL FROM stateroom.event_relays WHERE tenant_id = $1"
        async with asyncio.timeout(30):
            while not await connection.fetchval(relay, listened.tenant_id):  # noqa: ASYNC110  likewise
                await asyncio.sleep(0.02)
        await save(store, listened)
        assert not await connection.fetchval(relay, listened.tenant_id)
        await connection.close()
        relaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relaying
    assert not failed


async def test_keys_are_told_of_when_they_are_made_and_when_they_are_revoked_once(store, listened):
    record = ApiKeyRecord(
        key_id=uuid4().hex, kind="service", name="a", tenant_id=listened.tenant_id, subject_id=None,
        permissions=("state:read",), mac=b"m" * 32, pepper_version=1, created_at=datetime.now(UTC), expires_at=None,
        revoked_at=None, last_used_at=None,
    )  # fmt: skip
    await store.tenants.add_key(tenant_of(listened), record)
    await store.tenants.add_key(tenant_of(listened), record)
    for _ in range(2):
        await store.tenants.revoke_key(tenant_of(listened), record.key_id, PEPPERS)
    events = await all_events(store, tenant_of(listened))
    assert [(each.type, each.key_id, each.subject_id) for each in events] == [
        ("key.created", record.key_id, None), ("key.revoked", record.key_id, None),
    ]  # fmt: skip
    assert [each.stream_sequence for each in events] == [1, 2]
    assert await all_events(store, listened) == []


async def test_who_looks_a_key_up_knows_whether_its_tenant_has_events(store, listened, database, root_key):
    record = ApiKeyRecord(
        key_id=uuid4().hex, kind="service", name="a", tenant_id=listened.tenant_id, subject_id=None,
        permissions=("state:read",), mac=b"m" * 32, pepper_version=1, created_at=datetime.now(UTC), expires_at=None,
        revoked_at=None, last_used_at=None,
    )  # fmt: skip
    await store.tenants.add_key(tenant_of(listened), record)
    async with opened(database, root_key) as other:
        assert not other.emitting.is_on(listened.tenant_id)
        await other.tenants.look_up_key(record.key_id)
        assert other.emitting.is_on(listened.tenant_id)
        await store.events.set_settings(tenant_of(listened), "test", on=False)
        await other.tenants.look_up_key(record.key_id)
        assert not other.emitting.is_on(listened.tenant_id)


async def test_of_a_shredded_subject_events_say_only_that_there_were_some(store, listened):
    stays = Scope(listened.tenant_id, "stays")
    for who in (listened, stays, listened):
        await save(store, who, "secret-thread")
    before = await all_events(store, tenant_of(listened))
    await save(store, listened, "secret-thread")  # it waits in the queue while the shred begins
    begun = await store.shred.subject(listened, listened.subject_id, "api-key:test")
    async with asyncio.timeout(60):
        while (await store.jobs.get(tenant_of(listened), begun.job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    after = await all_events(store, tenant_of(listened))
    assert [each.event_id for each in after[: len(before)]] == [each.event_id for each in before]
    assert {each.type for each, was in zip(after, before, strict=False) if was.subject_id == "user-1"} == {"removed"}
    assert [each for each in after if each.subject_id == "stays"] == [
        each for each in before if each.subject_id == "stays"
    ]
    assert not any("user-1" in repr(each) for each in after)
    assert all(each.thread_id is None for each in after if each.subject_id != "stays")
    *_, shredded, ended = after
    assert (shredded.type, shredded.job_id, shredded.subject_id) == ("subject.shredded", begun.job_id, None)
    assert shredded.subject_tag
    assert (ended.type, ended.job_id) == ("job.ended", begun.job_id)


async def test_a_shred_ends_although_another_process_is_at_the_tenants_queue_all_the_time(store, database, listened):
    await save(store, listened)
    await all_events(store, listened)
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "UPDATE stateroom.event_relays SET leased_until = now() + interval '1 hour' WHERE tenant_id = $1",
        listened.tenant_id,
    )
    begun = await store.shred.subject(listened, listened.subject_id, "api-key:test")
    async with asyncio.timeout(60):
        while (await store.jobs.get(tenant_of(listened), begun.job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    found = "SELECT count(*) FROM stateroom.events WHERE tenant_id = $1 AND subject_id <> ''"
    assert await connection.fetchval(found, listened.tenant_id) == 0
    await connection.close()


async def test_a_shredded_tenant_leaves_no_event_and_no_settings(store, database, listened):
    await save(store, listened)
    await all_events(store, tenant_of(listened))
    await save(store, listened)
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "INSERT INTO stateroom.tenants VALUES ($1, $2, now())", listened.tenant_id, str(listened.tenant_id)
    )
    begun = await store.shred.tenant(listened.tenant_id, str(listened.tenant_id), "api-key:operator")
    async with asyncio.timeout(60):
        while (await store.jobs.get(tenant_of(listened), begun.job_id)).state in {"queued", "running"}:
            await store.runner.run_due()
            await asyncio.sleep(0)
    for table in ("event_settings", "event_queue", "events", "event_counters", "event_relays", "tenant_streams"):
        count = f"SELECT count(*) FROM stateroom.{table} WHERE tenant_id = $1"  # noqa: S608
        assert await connection.fetchval(count, listened.tenant_id) == 0, table
    await connection.close()


async def test_the_functions_of_the_release_before_write_on_and_tell_nothing(store, database, listened, monkeypatch):
    """As an older gateway does until the upgrade is finished, after which there is none."""
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    names = await connection.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'stateroom'::regnamespace")
    await connection.close()
    assert {"save_on_7", "put_writes_on_6", "look_up_api_key_2"} <= {each["proname"] for each in names}
    await save(store, listened)
    told_before = len(await all_events(store, listened))
    monkeypatch.setattr(checkpoints_sql, "SAVE_ON", of_before(checkpoints_sql.SAVE_ON, "save_on_9", "save_on_7"))
    monkeypatch.setattr(
        checkpoints_sql, "PUT_WRITES_ON", of_before(checkpoints_sql.PUT_WRITES_ON, "put_writes_on_8", "put_writes_on_6")
    )
    saved = await save(store, listened)
    await put(store, listened, saved.checkpoint_id, write(-3, "__interrupt__", 1), status="waiting")
    assert len(await all_events(store, listened)) == told_before


async def test_an_event_never_makes_a_save_wait_for_the_relay_nor_fail(store, database, listened):
    """The relay holds the counter, its lease and queued rows of the thread in a transaction that does not end."""
    await save(store, listened)
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    async with asyncio.timeout(30):
        transaction = connection.transaction()
        await transaction.start()
        for table in ("event_counters", "event_relays"):
            locked = f"SELECT FROM stateroom.{table} WHERE tenant_id = $1 FOR UPDATE"
            await connection.execute(locked, listened.tenant_id)
        await connection.execute("DELETE FROM stateroom.event_queue WHERE tenant_id = $1", listened.tenant_id)
        for _ in range(3):
            await save(store, listened)
        await transaction.rollback()
    await connection.close()
    assert told(await all_events(store, listened)) == ["thread.created", *["checkpoint.saved"] * 4]


def of_before(statement, name, before):
    """The call of the function that it was before: without the id of an event, and the fence behind it."""
    older = copy(statement)
    older.text = statement.text.replace(name, before).rsplit(",", 2)[0] + ")"
    older.arguments = lambda bound, values: statement.arguments(bound, values)[:-2]
    return older


WRITERS, SAVES = 8, 120


@pytest.mark.parametrize(
    ("writers", "saves", "kills"),
    [(WRITERS, SAVES, 0), pytest.param(32, 3200, 40, marks=pytest.mark.soak)],
)
async def test_of_many_writers_two_relays_lose_no_event_number_none_twice_and_keep_each_streams_order(
    store, scope, database, root_key, writers, saves, kills
):
    """``kills`` end the connections of everybody at some moments, as a server that fails over does."""
    await events_on(store, scope.tenant_id)
    async with opened(database, root_key, connections_max=6) as one, opened(database, root_key) as two:
        relaying = []
        for each in (one, two):
            await each.features.refresh()
            relaying.append(asyncio.create_task(each.event_relay.keep_running(lambda _: None)))
        wanted: set[str] = set()

        async def writer(number):
            who = Scope(scope.tenant_id, f"user-{number % 3}")
            for turn in range(saves):
                store.emitting.learn(scope.tenant_id, is_on=True)
                with suppress(StorageError):
                    saved = await save(store, who, f"t{number % 5}", namespace=f"n{number}", content=state(turn=turn))
                    wanted.add(saved.checkpoint_id)

        async def killer():
            connection = await asyncpg.connect(database.dsn(database.superuser_url))
            for _ in range(kills):
                await asyncio.sleep(2)
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE usename = 'gw_app' AND datname = current_database()"
                )
            await connection.close()

        await asyncio.gather(killer(), *map(writer, range(writers)))
        async with asyncio.timeout(120):
            await numbered(database, scope.tenant_id)
        for each in relaying:
            each.cancel()
        await asyncio.gather(*relaying, return_exceptions=True)
    events = await read_all(store, scope.tenant_id)
    saved = [each for each in events if each.type == "checkpoint.saved"]
    assert {each.checkpoint_id for each in saved} >= wanted
    assert len({each.event_id for each in events}) == len(events)
    assert [each.sequence for each in events] == [*range(events[0].sequence, events[0].sequence + len(events))]
    if not kills:
        assert len(saved) == writers * saves == len(wanted)
    for stream in {each.stream for each in events}:
        numbers = [each.stream_sequence for each in events if each.stream == stream]
        assert numbers == sorted(numbers)


async def numbered(database, tenant_id):
    """Return when nothing waits in a tenant's queue."""
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    waiting = "SELECT count(*) FROM stateroom.event_queue WHERE tenant_id = $1"
    while await connection.fetchval(waiting, tenant_id):  # noqa: ASYNC110  processes of their own
        await asyncio.sleep(0.05)
    await connection.close()


async def read_all(store, tenant_id):
    """All events as they are numbered, whoever has the relay's lease."""
    query, found = EventQuery(EventPosition(await oldest(store, tenant_id) - 1, None), limit=500), []
    while True:
        page = await store.events.read(TenantScope(tenant_id), query)
        found += page.events
        if not page.more:
            return found
        query = EventQuery(page.position, limit=500)
