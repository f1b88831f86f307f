"""Finishing an upgrade: what needs all processes is switched on once no older one is left, and stays on."""

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from storage.clock import ManualClock
from storage.control.features import CONTROL_ROW_FORMATS, KNOWN, LEAD_SECONDS, SEGMENTS
from storage.control.processes import FORGOTTEN_SECONDS, GONE_SECONDS
from storage.errors import BuildTooOld, FeatureOff, IntegrityFailure, OlderProcess, SetupError
from storage.postgres.engine import UNREGISTERED_APPLICATION_NAME
from storage.postgres.statement import Statement
from storage.scope import OperatorScope
from storage.service import Store, StoreOptions
from tests.support.interleaving import blocked
from tests.support.stores import DEPLOYMENT_ID

ENTER = """
INSERT INTO stateroom.processes (instance, place, build, features, started_at, seen_at)
VALUES ($1, $2, '0.0.9', '{}', now(), clock_timestamp() - make_interval(secs => $3))
"""


@pytest.fixture
def clock():
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def admin(own_database):
    return own_database.admin


@pytest.fixture
def url(own_database):
    return own_database.url(own_database.port)


@pytest.fixture
def opened(url, root_key, clock):
    """A process of the deployment that remembers nothing."""

    @asynccontextmanager
    async def another():
        made = await Store.open(
            url,
            root_key=root_key,
            deployment_id=DEPLOYMENT_ID,
            connections_max=4,
            durable=False,
            options=StoreOptions(clock=clock),
        )
        try:
            yield made
        finally:
            await made.close()

    return another


@pytest.fixture
async def store(opened):
    async with opened() as made:
        yield made


def after_the_lead(clock):
    clock.set(clock.now() + timedelta(seconds=LEAD_SECONDS))


async def test_an_upgrade_is_finished_once_and_on_the_record(store, clock):
    await store.features.ready()
    assert not store.features.is_on(CONTROL_ROW_FORMATS)
    done = await store.upgrades.finish()
    assert done.features == KNOWN
    assert not store.features.is_on(CONTROL_ROW_FORMATS)  # others have not heard of it yet
    after_the_lead(clock)
    assert store.features.is_on(CONTROL_ROW_FORMATS)
    assert (await store.upgrades.finish()).features == ()
    events = [each.event for each in (await store.audit.page(OperatorScope(), "local")).items]
    assert [each.target for each in events if each.action == "feature.on"] == [f"feature:{each.name}" for each in KNOWN]


async def test_another_process_hears_of_it(store, opened, clock):
    async with opened() as other:
        await store.upgrades.finish()
        after_the_lead(clock)
        await other.features.refresh()
        assert other.features.is_on(CONTROL_ROW_FORMATS)


async def test_who_comes_before_a_feature_is_on_everywhere_is_told_when_it_will_be(store, clock):
    with pytest.raises(FeatureOff, match="stateroom db finish-upgrade"):
        await store.features.require(SEGMENTS, "checkpoints move")
    await store.upgrades.finish()
    since = clock.now() + timedelta(seconds=LEAD_SECONDS)
    with pytest.raises(FeatureOff, match=f"checkpoints move from {since:%H:%M:%S} UTC on"):
        await store.features.require(SEGMENTS, "checkpoints move")
    after_the_lead(clock)
    await store.features.require(SEGMENTS, "checkpoints move")


async def test_an_older_process_is_waited_for_until_it_is_gone(store, admin):
    await admin.execute(ENTER, uuid4(), "web-1:17", GONE_SECONDS / 2)
    with pytest.raises(OlderProcess, match="web-1:17"):
        await store.upgrades.finish(no_older_process=True)
    await admin.execute("UPDATE stateroom.processes SET seen_at = seen_at - make_interval(secs => $1)", GONE_SECONDS)
    assert (await store.upgrades.finish()).features == KNOWN


async def test_a_session_of_a_build_without_a_registry_is_noticed(store, url):
    settings = {"application_name": UNREGISTERED_APPLICATION_NAME}
    older = await asyncpg.connect(url, server_settings=settings)
    try:
        with pytest.raises(OlderProcess, match="1 sessions"):
            await store.upgrades.finish()
        assert (await store.upgrades.finish(no_older_process=True)).features == KNOWN
    finally:
        await older.close()


async def test_the_registry_shows_who_runs_and_forgets_who_does_not(store, opened, admin):
    await admin.execute(ENTER, uuid4(), "web-1:17", FORGOTTEN_SECONDS + 1)
    async with opened() as other:
        await other.enter()
        await store.enter()
        first, second = await store.processes.all()
        assert first.running
        assert set(first.features) == {each.name for each in KNOWN}
        assert first.instance != second.instance
        await other.processes.leave()
        assert [each.instance for each in await store.processes.all()] == [second.instance]


async def test_who_comes_while_an_upgrade_is_finished_waits_and_sees_it(store, opened, admin):
    """Else a process of an older build could start between the look at the registry and the switch."""
    async with opened() as newcomer:
        async with admin.transaction():
            await admin.execute("LOCK TABLE stateroom.processes IN SHARE MODE")
            coming = asyncio.create_task(newcomer.enter())
            await blocked(admin)
            await admin.execute("INSERT INTO stateroom.deployment_features VALUES ('later', now(), 2, $1)", bytes(32))
        with pytest.raises(SetupError, match="later"):
            await coming
    assert await store.processes.all() == []


async def test_a_build_that_does_not_know_a_feature_neither_starts_nor_goes_on(store, opened, admin):
    await store.features.ready()
    await admin.execute("INSERT INTO stateroom.deployment_features VALUES ('later', now(), 2, $1)", bytes(32))
    with pytest.raises(SetupError, match="later"):
        async with opened():
            pass
    with pytest.raises(BuildTooOld, match="later"):
        await store.features.refresh()
    assert (await store.health()).unknown_features == ("later",)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE stateroom.deployment_features SET since = since - interval '1 day'",
        "UPDATE stateroom.deployment_features SET mac = decode(repeat('00', 32), 'hex')",
        "UPDATE stateroom.deployment_features SET mac_format = 1",
        "DELETE FROM stateroom.deployment_features",
    ],
    ids=["another moment", "another MAC", "another format", "deleted"],
)
async def test_a_feature_that_was_changed_outside_is_neither_on_nor_off(store, admin, clock, damage):
    await store.upgrades.finish()
    after_the_lead(clock)
    await admin.execute(damage)
    await store.features.refresh()
    with pytest.raises(IntegrityFailure, match="control-row-formats"):
        store.features.is_on(CONTROL_ROW_FORMATS)
    with pytest.raises(IntegrityFailure, match="control-row-formats"):
        await store.upgrades.finish()


async def test_a_feature_that_somebody_else_switched_on_is_not_on(opened, admin):
    insert = "INSERT INTO stateroom.deployment_features VALUES ('control-row-formats', now(), 2, $1)"
    await admin.execute(insert, bytes(32))
    async with opened() as store:
        await store.features.ready()
        with pytest.raises(IntegrityFailure, match="control-row-formats"):
            store.features.is_on(CONTROL_ROW_FORMATS)


async def test_no_gateway_switches_a_feature_off(store):
    await store.upgrades.finish()
    for statement in (
        "DELETE FROM stateroom.deployment_features",
        "UPDATE stateroom.deployment_features SET since = now()",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with store.unit_of_work.begin(OperatorScope()) as transaction:
                await transaction.run(Statement(statement))


async def test_a_deployment_without_a_tenant_begins_with_everything_on(store, admin, clock):
    begun = await store.upgrades.begin()
    assert begun.features == KNOWN
    assert await store.upgrades.pending() == ()
    assert (await store.upgrades.begin()).features == ()


async def test_a_deployment_that_has_tenants_is_not_taken_for_a_new_one(store, admin):
    await admin.execute(
        "INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES ($1, 'before', now())", uuid4()
    )
    assert (await store.upgrades.begin()).features == ()
    assert await store.upgrades.pending() == KNOWN
