"""What a deployment keeps, and what should be gone and is not, can be seen: nothing grows without a name."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
import os
from contextlib import suppress
from uuid import uuid4

import asyncpg
import pytest

from gateway.cli.local import checks
from gateway.telemetry import Metrics
from storage.blobs.memory import MemoryBlobStore
from storage.collection.sweep import STATES
from storage.postgres.statement import Statement
from storage.scope import Scope, TenantScope
from tests.support.blob_rows import Blobs, Upload
from tests.support.interleaving import WAIT_SECONDS
from tests.support.stores import MigratedDatabase

HOUR = 3600


@pytest.fixture
async def connection(database):
    """As the serving role, as the doctor connects."""
    opened = await asyncpg.connect(MigratedDatabase.dsn(database.app_url))
    yield opened
    await opened.close()


@pytest.fixture
async def empty(admin):
    await admin.execute("DELETE FROM stateroom.blob_usage")


async def age(admin, scope, table, column, seconds=2 * HOUR):
    await admin.execute(
        f"UPDATE stateroom.{table} SET {column} = {column} - make_interval(secs => $2) WHERE tenant_id = $1",
        scope.tenant_id, seconds,
    )  # fmt: skip


async def test_every_state_a_blob_can_be_in_is_counted_over_all_tenants(store, admin, empty):
    blobs = MemoryBlobStore()
    plain, sweeper = Blobs(store, blobs), Blobs(store, blobs).sweeper(grace_seconds=HOUR, days=1)
    for scope in (Scope(uuid4(), "user-1"), Scope(uuid4(), "user-2")):
        for n in range(3):
            await plain.stored(scope, Upload(data=b"x" * 10), thread_id=f"t{n}")
        await plain.put(scope, Upload(data=b"x" * 100))
        await Blobs(store, blobs, intent_seconds=-1).put(scope, Upload(data=b"x" * 1000))
        await plain.forget(scope, "t0")
        await age(admin, scope, "blobs", "unreferenced_at")
        await sweeper.tenant(scope.tenant_id, now=True)
        await plain.forget(scope, "t1")
        await sweeper.tenant(scope.tenant_id, now=True)
    census = await sweeper.census()
    assert census.blobs == {"open": 2, "swept": 2, "live": 2, "unreferenced": 2, "condemned": 2}
    # A swept upload's object is gone, and with it what was reserved.
    assert census.bytes == {"open": 200, "swept": 0, "live": 20, "unreferenced": 20, "condemned": 20}
    assert census.used_bytes == sum(census.bytes.values())
    assert (census.due_seconds, census.tried) == (0, False)
    assert 0 <= census.age_seconds < 60


@pytest.mark.parametrize("what", ["expired upload", "swept upload", "tombstone", "unreferenced", "condemned"])
async def test_what_should_be_gone_and_is_not_shows_for_how_long(store, admin, empty, scope, connection, what):
    blobs = MemoryBlobStore()
    plain = Blobs(store, blobs)
    sweeper = plain.sweeper(grace_seconds=60, tombstone_seconds=60, days=0)
    if what in {"unreferenced", "condemned"}:
        await plain.stored(scope)
        await plain.forget(scope)
        await age(admin, scope, "blobs", "unreferenced_at", 3 * HOUR)
        if what == "condemned":
            blobs.available = False
            await sweeper.tenant(scope.tenant_id, now=True)
            await age(admin, scope, "blobs", "condemned_at", 3 * HOUR)
    else:
        await plain.put(scope, Upload())
        await age(admin, scope, "blob_intents", "expires_at", 4 * HOUR)
        if what != "expired upload":
            blobs.available = what == "tombstone"
            await sweeper.tenant(scope.tenant_id, now=True)
            await age(admin, scope, "blob_intents", "expires_at", 3 * HOUR)
    blobs.available = False
    # Somebody else's lock keeps the sweeper from what does not need the object store.
    async with admin.transaction():
        await admin.execute("SELECT FROM stateroom.blobs WHERE tenant_id = $1 FOR UPDATE", scope.tenant_id)
        await admin.execute("SELECT FROM stateroom.blob_intents WHERE tenant_id = $1 FOR UPDATE", scope.tenant_id)
        await sweeper.tenant(scope.tenant_id, now=True)
    assert 2 * HOUR < (await sweeper.census()).due_seconds < 4 * HOUR
    finding = await checks._check_sweeper(connection)
    assert (finding.outcome, bool(finding.fix)) == ("failed", True)

    blobs.available = True
    for _ in range(2):  # a swept upload's object goes first, its tombstone with the next sweep
        await sweeper.tenant(scope.tenant_id, now=True)
    assert (await sweeper.census()).due_seconds == 0
    assert (await checks._check_sweeper(connection)).outcome == "ok"


async def test_sweeps_that_do_not_end_show_and_differ_from_gateways_that_do_not_run(
    store, admin, empty, scope, connection
):
    plain = Blobs(store, MemoryBlobStore())
    await plain.stored(scope)
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert (await checks._check_sweeper(connection)).outcome == "ok"
    for column in ("swept_at", "sweep_after"):
        await age(admin, scope, "blob_usage", column)
    assert 2 * HOUR <= (await plain.sweeper().census()).age_seconds < 3 * HOUR
    assert (await checks._check_sweeper(connection)).outcome == "skipped"

    async with store.unit_of_work.begin(TenantScope(scope.tenant_id)) as transaction:  # taken, and never ended
        await transaction.run(
            Statement("UPDATE stateroom.blob_usage SET sweep_after = clock_timestamp() WHERE tenant_id = :tenant_id")
        )
    finding = await checks._check_sweeper(connection)
    assert finding.outcome == "failed"
    await plain.sweeper().tenant(scope.tenant_id, now=True)
    assert (await checks._check_sweeper(connection)).outcome == "ok"


async def test_metrics_tell_what_there_is_after_every_round_also_after_one_that_failed(store, admin, empty, scope):
    class Broken(MemoryBlobStore):
        async def delete(self, location):
            raise RuntimeError(os.fsdecode(b"broken"))

    plain = Blobs(store, Broken(), intent_seconds=-1)
    await plain.put(scope, Upload(data=b"x" * 500))
    metrics, failures, counted = Metrics(), [], asyncio.Event()

    def told(census):
        metrics.counted(census)
        counted.set()

    sweeping = asyncio.create_task(plain.sweeper().keep_running(metrics.swept, failures.append, told))
    async with asyncio.timeout(WAIT_SECONDS):
        await counted.wait()
    sweeping.cancel()
    with suppress(asyncio.CancelledError):
        await sweeping
    assert [type(each) for each in failures] == [RuntimeError]
    registry = metrics.registry
    assert registry.get_sample_value("stateroom_blob_usage_bytes") == 500
    assert {registry.get_sample_value("stateroom_blobs", {"state": state}) for state in STATES} == {0}  # no walk ended
    assert registry.get_sample_value("stateroom_sweep_age_seconds") >= 0
    assert registry.get_sample_value("stateroom_sweep_due_seconds") == 0
