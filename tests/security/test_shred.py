"""What was shredded is gone at the next request, everywhere, and no restored backup brings it back."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
from msgspec import json
from sqlalchemy.engine import make_url

from crypto import KeyDenied, KeyDestroyed, KeyUnavailable, MemoryRootKey, RootKeyInvalid, RootKeys
from storage.access.head_anchors import subject_tag
from storage.blobs.keyspace import TombstoneLocation, tombstone_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable
from storage.errors import CheckpointNotFound, IntegrityFailure, InvalidState, SetupError, SubjectNotFound
from storage.model import ApiKeyRecord, Tenant
from storage.postgres.tables import SUBJECT_TABLES
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.engines import create_database, drop_database
from tests.support.root_keys import UnsteadyRootKey
from tests.support.states import contents, document, history, load, put, save, state, write
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID, OWNER_PASSWORD, MigratedDatabase

ACTOR = "api-key:test"
RETENTION_DAYS = 35


def migrated(made):
    base = make_url(made.superuser_url)
    return MigratedDatabase(
        made.superuser_url,
        base.set(username="gw_migrate", password=OWNER_PASSWORD).render_as_string(False),
        base.set(username="gw_app", password=APP_PASSWORD).render_as_string(False),
    )


class MeetingBlobStore(MemoryBlobStore):
    """A `MemoryBlobStore` in which something happens when a tombstone is kept, before whoever kept it goes on."""

    def __init__(self):
        super().__init__()
        self.meanwhile = None

    async def put_if_absent(self, location, data, **how):
        await super().put_if_absent(location, data, **how)
        if isinstance(location, TombstoneLocation) and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()


class World:
    """A database, an object store and a root key; gateways on them, and what a backup of the database gives back."""

    def __init__(self, postgres, name):
        self._postgres = postgres
        self._databases = [name]
        self._stores = []
        self.database = migrated(_Named(postgres.superuser_url(name)))
        self.blobs = MeetingBlobStore()
        self.root_key = MemoryRootKey()

    async def gateway(self, database=None, *, restored=False):
        store = await Store.open(
            (database or self.database).app_url,
            root_key=self.root_key,
            deployment_id=DEPLOYMENT_ID,
            connections_max=4,
            durable=False,
            restored=restored,
            options=StoreOptions(blobs=self.blobs, backup_retention_days=RETENTION_DAYS),
        )
        self._stores.append(store)
        return store

    async def backup(self):
        """A copy of the database as it is now; nobody may be connected to it meanwhile."""
        for store in self._stores:
            await store.close()
        self._stores.clear()
        made = await create_database(self._postgres, self._databases[0])
        self._databases.append(made.name)
        return migrated(made)

    async def close(self):
        for store in self._stores:
            await store.close()
        for name in self._databases:
            await drop_database(self._postgres, name)


class _Named:
    def __init__(self, superuser_url):
        self.superuser_url = superuser_url


@pytest.fixture
async def world(postgres, migrated_template):
    made = World(postgres, (await create_database(postgres, migrated_template)).name)
    yield made
    await made.close()


@pytest.fixture
async def connect():
    connections = []

    async def to(database):
        connections.append(await asyncpg.connect(database.dsn(database.superuser_url)))
        return connections[-1]

    yield to
    for connection in connections:
        await connection.close()


async def found_tenant(store, tenant_id):
    now = store.checkpoints._access.clock.now()
    key = ApiKeyRecord(
        key_id=uuid4().hex[:12],
        kind="service",
        name="",
        tenant_id=tenant_id,
        subject_id=None,
        permissions=("tenant:admin",),
        mac=bytes(32),
        pepper_version=1,
        created_at=now,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
    )
    await store.tenants.create(
        OperatorScope(founding=tenant_id), Tenant(tenant_id=tenant_id, name=uuid4().hex, created_at=now), key
    )


async def finished(store, scope, job_id):
    async with asyncio.timeout(60):
        while True:
            worked = await store.runner.run_due()
            job = await store.jobs.get(scope, job_id)
            if job.state in {"done", "failed"}:
                return job
            if not worked:
                await asyncio.sleep(0.02)  # somebody who began before is still at work


async def fill(store, scope):
    for number in range(3):
        saved = await save(store, scope, f"t{number}", content=state(text=document(str(number), 9000)))
        await put(store, scope, saved.checkpoint_id, write(0, "out", number), thread_id=f"t{number}")


async def rows(admin, tenant_id, subject_id=None):
    """How many rows of state there are."""
    found = 0
    for table in SUBJECT_TABLES:
        if table.name != "subject_keys":
            found += await admin.fetchval(
                f"SELECT count(*) FROM stateroom.{table.name}"
                " WHERE tenant_id = $1 AND ($2::text IS NULL OR subject_id = $2)",
                tenant_id,
                subject_id,
            )
    return found


async def refuses(store, scope):
    for verb in (
        lambda: load(store, scope, "t0"),
        lambda: save(store, scope, "t0"),
        lambda: history(store, scope),
        lambda: store.threads.copy(scope, "t0", "copy"),
        lambda: put(store, scope, "c", write(0, "x", 1), thread_id="t0"),
    ):
        with pytest.raises(KeyDestroyed):
            await verb()


async def test_a_shredded_subject_is_refused_by_every_warm_gateway_and_nobody_else_is(world, connect):
    tenant_id = uuid4()
    gone, stays, stranger = Scope(tenant_id, "gone"), Scope(tenant_id, "stays"), Scope(uuid4(), "gone")
    gateways = [await world.gateway() for _ in range(2)]
    for scope in (gone, stays, stranger):
        await fill(gateways[0], scope)
        for gateway in gateways:
            await load(gateway, scope, "t0")
    shredded = await gateways[0].shred.subject(gone, "gone", ACTOR)
    for gateway in gateways:
        await refuses(gateway, gone)
        for scope in (stays, stranger):
            assert contents(await load(gateway, scope, "t0")) == {"text": document("0", 9000)}
            await save(gateway, scope, "t1")
    admin = await connect(world.database)
    keys = await admin.fetch(
        "SELECT state, wrapped, destroyed_at, shred_effective_at FROM stateroom.subject_keys"
        " WHERE tenant_id = $1 AND subject_id = 'gone'",
        tenant_id,
    )
    assert {(row["state"], row["wrapped"]) for row in keys} == {("destroyed", None)}
    assert {row["shred_effective_at"] - row["destroyed_at"] for row in keys} == {timedelta(days=RETENTION_DAYS)}
    assert shredded.shred_effective_at == keys[0]["shred_effective_at"]
    job = await finished(gateways[1], TenantScope(tenant_id), shredded.job_id)
    assert (job.state, job.done) == ("done", 3)
    assert await rows(admin, tenant_id, "gone") == 0
    assert await rows(admin, tenant_id, "stays") > 0
    for gateway in gateways:
        with pytest.raises(KeyDestroyed):  # for ever: the id does not come back as somebody new
            await save(gateway, gone)


async def test_a_shredded_tenant_takes_all_of_its_subjects(world, connect):
    tenant_id, other_id = uuid4(), uuid4()
    gateways = [await world.gateway() for _ in range(2)]
    scopes = [Scope(tenant_id, f"user-{number}") for number in range(3)]
    for each in (tenant_id, other_id):
        await found_tenant(gateways[0], each)
    for scope in (*scopes, Scope(other_id, "user-0")):
        await fill(gateways[0], scope)
        await load(gateways[1], scope, "t0")
    shredded = await gateways[0].shred.tenant(tenant_id, str(tenant_id), ACTOR)
    for gateway in gateways:
        for scope in scopes:
            await refuses(gateway, scope)
        with pytest.raises(KeyDestroyed):
            await save(gateway, Scope(tenant_id, "born later"))
        await load(gateway, Scope(other_id, "user-0"), "t0")
    job = await finished(gateways[1], TenantScope(tenant_id), shredded.job_id)
    assert (job.state, job.done) == ("done", 9)
    admin = await connect(world.database)
    assert await rows(admin, tenant_id) == 0
    assert await rows(admin, other_id) > 0
    assert {
        tuple(row)
        for row in await admin.fetch("SELECT state, wrapped FROM stateroom.tenant_keys WHERE tenant_id = $1", tenant_id)
    } == {("destroyed", None)}


async def test_a_shred_needs_its_confirmation(world):
    store = await world.gateway()
    scope = Scope(uuid4(), "user-1")
    await fill(store, scope)
    for wrong in ("", "user-2", "USER-1"):
        with pytest.raises(InvalidState):
            await store.shred.subject(scope, wrong, ACTOR)
    with pytest.raises(InvalidState):
        await store.shred.tenant(scope.tenant_id, "yes", ACTOR)
    with pytest.raises(SubjectNotFound):
        await store.shred.subject(Scope(scope.tenant_id, "nobody"), "nobody", ACTOR)
    assert await world.blobs.list_keys(tombstone_prefix(DEPLOYMENT_ID)) == []
    await load(store, scope, "t0")


async def test_a_shred_is_audited_with_it_and_repeating_it_answers_the_same(world):
    store = await world.gateway()
    scope = Scope(uuid4(), "user-1")
    await fill(store, scope)
    first = await store.shred.subject(scope, "user-1", ACTOR)
    assert await store.shred.subject(scope, "user-1", "api-key:again") == first
    page = await store.audit.page(TenantScope(scope.tenant_id), ACTOR)
    events = [record.event for record in page.items]
    assert [(each.actor, each.action, each.target) for each in events[:2]] == [
        (ACTOR, "shred.begin", "subject:user-1"),
        (ACTOR, "key.shred", "subject:user-1"),
    ]
    assert events[1].detail["shred_effective_at"] == first.shred_effective_at.isoformat()
    assert len([each for each in events if each.action == "key.shred"]) == 1


async def test_no_key_is_destroyed_before_its_tombstone_is_kept(world):
    store = await world.gateway()
    scope = Scope(uuid4(), "user-1")
    await fill(store, scope)
    world.blobs.available = False
    with pytest.raises(BlobUnavailable):
        await store.shred.subject(scope, "user-1", ACTOR)
    await load(store, scope, "t0")
    world.blobs.available = True
    # The intent is kept: the shred comes to its end although nobody asks again.
    jobs = (await store.jobs.list(TenantScope(scope.tenant_id))).items
    assert (await finished(store, TenantScope(scope.tenant_id), jobs[0].job_id)).state == "done"
    await refuses(store, scope)
    assert len(await world.blobs.list_keys(tombstone_prefix(DEPLOYMENT_ID))) == 1


async def test_a_tombstone_names_nobody(world):
    store = await world.gateway()
    scope = Scope(uuid4(), "person@example.com")
    await fill(store, scope)
    shredded = await store.shred.subject(scope, "person@example.com", ACTOR)
    (object_key,) = await world.blobs.list_keys(tombstone_prefix(DEPLOYMENT_ID))
    assert TombstoneLocation.parse(object_key) == TombstoneLocation(DEPLOYMENT_ID, scope.tenant_id, shredded.job_id)
    assert b"person" not in await world.blobs.get(TombstoneLocation.parse(object_key))


async def test_a_restored_backup_is_not_served_from_until_its_shreds_are_applied_again(world, connect):
    tenant_id, whole_id = uuid4(), uuid4()
    gone, stays = Scope(tenant_id, "gone"), Scope(tenant_id, "stays")
    store = await world.gateway()
    await found_tenant(store, whole_id)
    for scope in (gone, stays, Scope(whole_id, "user-1")):
        await fill(store, scope)
    backup = await world.backup()
    store = await world.gateway()
    late = Scope(tenant_id, "unknown to the backup")
    await fill(store, late)
    await store.shred.subject(gone, "gone", ACTOR)
    await store.shred.subject(late, late.subject_id, ACTOR)
    await store.shred.tenant(whole_id, str(whole_id), ACTOR)
    await world.gateway()  # this database knows its own shreds
    with pytest.raises(SetupError, match=r"3 shreds .* 'stateroom restore accept'"):
        await world.gateway(backup)
    local = await world.gateway(backup, restored=True)
    assert {(each.level, each.keys_destroyed > 0) for each in await local.shred.accept()} == {
        ("subject", True),
        ("subject", False),
        ("tenant", True),
    }
    assert await local.shred.accept() == []
    restored = await world.gateway(backup)
    await refuses(restored, gone)
    await refuses(restored, Scope(whole_id, "user-1"))
    assert contents(await load(restored, stays, "t0")) == {"text": document("0", 9000)}
    for tenant in (tenant_id, whole_id):
        for job in (await restored.jobs.list(TenantScope(tenant))).items:
            assert (await finished(restored, TenantScope(tenant), job.job_id)).state == "done"
    admin = await connect(backup)
    assert await rows(admin, tenant_id, "gone") == 0
    assert await rows(admin, whole_id) == 0
    page = await restored.audit.page(TenantScope(tenant_id), ACTOR)
    assert ("local", "key.shred", "subject:gone") in {
        (record.event.actor, record.event.action, record.event.target) for record in page.items
    }


async def test_a_backup_that_never_knew_a_shredded_tenant_is_accepted_in_one_go(world):
    await (await world.gateway()).anchors.ensure_signing_key()
    backup = await world.backup()
    store = await world.gateway()
    whole, part = uuid4(), uuid4()
    for tenant_id in (whole, part):
        await found_tenant(store, tenant_id)
        await fill(store, Scope(tenant_id, "user-1"))
    await store.shred.tenant(whole, str(whole), ACTOR)
    await store.shred.subject(Scope(part, "user-1"), "user-1", ACTOR)
    assert await store.anchors.anchor_due() == 3
    with pytest.raises(SetupError, match=r"2 shreds .*\n1 audit logs "):
        await world.gateway(backup)
    local = await world.gateway(backup, restored=True)
    restored, accepted = await local.accept_restored(ACTOR)
    assert {each.tenant_id for each in restored} == {UUID(int=0), whole, part}
    assert {(each.tenant_id, each.level) for each in accepted} == {(whole, "tenant"), (part, "subject")}
    assert await local.accept_restored(ACTOR) == ([], [])
    served = await world.gateway(backup)
    with pytest.raises(KeyDestroyed):
        await save(served, Scope(whole, "user-1"))
    assert set(await served.anchors.missing_tenants()) == {whole, part}
    job_id = await served.verifying.begin_deployment(ACTOR)
    report = json.decode((await finished(served, OperatorScope(), job_id)).note)
    assert (report["findings"], report["known_losses"]) == ([], 1)  # accepted: the tenant without a tombstone


async def test_what_an_accepted_restore_lost_is_known_and_no_damage_from_then_on(world, connect):
    store = await world.gateway()
    tenant_id, later_id = uuid4(), uuid4()
    here, gone = Scope(tenant_id, "user-1"), Scope(tenant_id, "user-2")
    await found_tenant(store, tenant_id)
    for thread_id in ("kept", "removed", "moved"):
        await save(store, here, thread_id)
    await store.head_anchors.flush()
    await store.anchors.anchor_due()
    backup = await world.backup()

    store = await world.gateway()
    await save(store, here, "moved")
    await save(store, here, "new")
    await save(store, gone, "t")
    await found_tenant(store, later_id)
    async with store.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
        await store.audit.append(transaction, tenant_id, ACTOR, "noise", "audit")
    await store.head_anchors.flush()
    await store.anchors.anchor_due()

    local = await world.gateway(backup, restored=True)
    await local.accept_restored(ACTOR)
    served = await world.gateway(backup)

    async def verified():
        job_id = await served.verifying.begin_deployment(ACTOR)
        report = json.decode((await finished(served, OperatorScope(), job_id)).note)
        return report["found"], report["known_losses"]

    # Two heads of the subject that is there, one of the one that is not, and a tenant.
    assert await verified() == ({}, 4)
    assert await verified() == ({}, 4)
    await local.accept_restored(ACTOR)
    assert await verified() == ({}, 4)

    admin = await connect(backup)
    for table in ("threads", "heads", "checkpoints"):
        await admin.execute(f"DELETE FROM stateroom.{table} WHERE thread_id = 'removed'")
    assert await verified() == ({"missing-since-anchor": 1}, 4)
    # Whoever writes to the database excuses nothing by it.
    await served.head_anchors.flush()
    tag = subject_tag(await served.keys.existing_sealer(here))
    entries = (await served.head_anchors.load(tenant_id)).newest_of(tag)
    await admin.execute(
        "INSERT INTO stateroom.accepted_losses SELECT tenant_id, gen_random_uuid(), $2, accepted_at, mac, mac_format"
        " FROM stateroom.accepted_losses WHERE tenant_id = $1 LIMIT 1",
        tenant_id,
        b"".join(entries),
    )
    assert await verified() == ({"missing-since-anchor": 1, "control-row": 1}, 4)


async def test_keys_that_somebody_put_back_are_found_at_the_next_start(world, connect):
    scope = Scope(uuid4(), "user-1")
    store = await world.gateway()
    await fill(store, scope)
    admin = await connect(world.database)
    stolen = await admin.fetch("SELECT * FROM stateroom.subject_keys WHERE tenant_id = $1", scope.tenant_id)
    shredded = await store.shred.subject(scope, "user-1", ACTOR)
    await finished(store, TenantScope(scope.tenant_id), shredded.job_id)
    for row in stolen:
        await admin.execute(
            "UPDATE stateroom.subject_keys SET state = 'active', wrapped = $3 WHERE tenant_id = $1 AND purpose = $2",
            scope.tenant_id,
            row["purpose"],
            row["wrapped"],
        )
    with pytest.raises(SetupError):
        await world.gateway()
    local = await world.gateway(restored=True)
    assert [each.keys_destroyed for each in await local.shred.accept()] == [2]
    await refuses(await world.gateway(), scope)


@pytest.mark.parametrize(
    ("edit", "refused"),
    [("position = '[\"intended\"]'", True), ("target = '~nobody'", False), ("kind = 'reseal'", False)],
)
async def test_keys_put_back_behind_an_edited_job_are_found_by_verification(world, connect, edit, refused):
    """The start believes the rows of jobs, which whoever writes to the database can edit; tombstones do not lie."""
    tenant_id = uuid4()
    scope, other = Scope(tenant_id, "user-1"), Scope(tenant_id, "user-2")
    store = await world.gateway()
    await found_tenant(store, tenant_id)
    for each in (scope, other):
        await fill(store, each)
    await store.head_anchors.flush()
    admin = await connect(world.database)
    tables = ("subject_keys", *(each.name for each in SUBJECT_TABLES if each.name != "subject_keys"))
    stolen = {
        table: await admin.fetch(
            f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = 'user-1'", tenant_id
        )
        for table in tables
    }
    shredded = await store.shred.subject(scope, "user-1", ACTOR)
    assert (await finished(store, TenantScope(tenant_id), shredded.job_id)).state == "done"
    job_id = await store.verifying.begin_tenant(TenantScope(tenant_id), ACTOR)
    assert json.decode((await finished(store, TenantScope(tenant_id), job_id)).note)["found"] == {}
    await admin.execute("DELETE FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id = 'user-1'", tenant_id)
    for table, rows_of_table in stolen.items():
        for row in rows_of_table:
            places = ", ".join(f"${at + 1}" for at in range(len(row)))
            names = ", ".join(row.keys())
            await admin.execute(f"INSERT INTO stateroom.{table} ({names}) VALUES ({places})", *row.values())
    await admin.execute(f"UPDATE stateroom.jobs SET {edit} WHERE job_id = $1", shredded.job_id)
    if refused:
        with pytest.raises(SetupError):
            await world.gateway()
    fooled = await world.gateway(restored=refused)
    job_id = await fooled.verifying.begin_tenant(TenantScope(tenant_id), ACTOR)
    report = json.decode((await finished(fooled, TenantScope(tenant_id), job_id)).note)
    assert report["found"]["shred-undone"] == 1
    assert [each["subject_id"] for each in report["findings"] if each["code"] == "shred-undone"] == ["user-1"]


async def test_a_root_key_that_is_replaced_makes_no_alarm_of_earlier_shreds(world, connect):
    """Tombstones are written once: those that the old root key wrapped do not open any more when it is gone."""
    tenant_id, whole_id = uuid4(), uuid4()
    store = await world.gateway()
    for each in (tenant_id, whole_id):
        await found_tenant(store, each)
        for number in (1, 2):
            await fill(store, Scope(each, f"user-{number}"))
    await store.head_anchors.flush()
    await store.shred.subject(Scope(tenant_id, "user-1"), "user-1", ACTOR)
    await store.shred.tenant(whole_id, str(whole_id), ACTOR)
    world.root_key.rotate()
    job_id = await store.rotation.rewrap_root(ACTOR)
    assert (await finished(store, OperatorScope(), job_id)).state == "done"
    world.root_key._root_keys = {2: world.root_key._root_keys[2]}
    fresh = await world.gateway()

    async def found():
        job_id = await fresh.verifying.begin_deployment(ACTOR)
        return json.decode((await finished(fresh, OperatorScope(), job_id)).note)["found"]

    assert await found() == {}
    admin = await connect(world.database)
    for table in SUBJECT_TABLES:
        await admin.execute(f"DELETE FROM stateroom.{table.name} WHERE subject_id = 'user-2'")
    fresh.keys.evict(Scope(tenant_id, "user-2"))
    assert await found() == {"subject-missing": 1}


async def test_a_tombstone_that_somebody_else_wrote_shreds_nobody(world):
    scope = Scope(uuid4(), "user-1")
    store = await world.gateway()
    await fill(store, scope)
    await store.shred.subject(scope, "user-1", ACTOR)
    (object_key,) = await world.blobs.list_keys(tombstone_prefix(DEPLOYMENT_ID))
    body = await world.blobs.get(TombstoneLocation.parse(object_key))
    forged = TombstoneLocation(DEPLOYMENT_ID, scope.tenant_id, UUID(int=7))
    await world.blobs.put_if_absent(forged, body)
    with pytest.raises(SetupError):
        await world.gateway()
    local = await world.gateway(restored=True)
    with pytest.raises(IntegrityFailure, match="not authentic"):
        await local.shred.accept()


async def test_a_start_without_the_object_store_is_refused_because_nobody_knows(world):
    await world.gateway()
    world.blobs.available = False
    with pytest.raises(BlobUnavailable):
        await world.gateway()


async def test_a_save_that_began_before_the_shred_leaves_no_row_behind(world, connect):
    scope = Scope(uuid4(), "user-1")
    store = await world.gateway()
    await fill(store, scope)
    late = await asyncpg.connect(world.database.dsn(world.database.app_url))
    await late.execute(f"BEGIN; SET LOCAL app.tenant_id = '{scope.tenant_id}'; SET LOCAL app.subject_id = 'user-1'")
    await late.execute(
        "INSERT INTO stateroom.chunks SELECT tenant_id, subject_id, 'late', piece_id, key_version, children, envelope"
        " FROM stateroom.chunks"
    )
    shredded = await store.shred.subject(scope, "user-1", ACTOR)
    for _ in range(4):
        await store.runner.run_due()
    job = await store.jobs.get(TenantScope(scope.tenant_id), shredded.job_id)
    assert job.state == "running"
    await late.execute("COMMIT")
    await late.close()
    assert (await finished(store, TenantScope(scope.tenant_id), shredded.job_id)).state == "done"
    admin = await connect(world.database)
    assert await rows(admin, scope.tenant_id) == 0


async def test_rotations_and_shreds_at_once_leave_no_living_key(world, connect):
    tenant_id = uuid4()
    gateways = [await world.gateway() for _ in range(2)]
    await found_tenant(gateways[0], tenant_id)
    scopes = [Scope(tenant_id, f"user-{number}") for number in range(4)]
    for scope in scopes:
        await fill(gateways[0], scope)

    async def attempt(work):
        try:
            await work
        except (KeyDestroyed, KeyUnavailable, CheckpointNotFound, IntegrityFailure) as reason:
            return reason

    await asyncio.gather(
        *(attempt(gateways[1].rotation.rotate_subject(scope, ACTOR)) for scope in scopes),
        *(attempt(gateways[1].rotation.rotate_tenant(TenantScope(tenant_id), ACTOR)) for _ in range(2)),
        *(attempt(save(gateways[1], Scope(tenant_id, f"born-{number}"))) for number in range(4)),
        gateways[0].shred.tenant(tenant_id, str(tenant_id), ACTOR),
    )
    admin = await connect(world.database)
    for table in ("tenant_keys", "subject_keys"):
        alive = await admin.fetch(
            f"SELECT state FROM stateroom.{table} WHERE tenant_id = $1 AND state NOT IN ('destroyed', 'pending')",
            tenant_id,
        )
        assert alive == []
    for gateway in gateways:
        for scope in scopes:
            with pytest.raises(KeyDestroyed):
                await load(gateway, scope, "t0")


async def begun(world, connect, scope, *, as_it_was):
    """A backup of a database in which a shred could not keep its tombstone; it was carried out after the backup."""
    store = await world.gateway()
    await fill(store, scope)
    world.blobs.available = False
    with pytest.raises(BlobUnavailable):
        await store.shred.subject(scope, scope.subject_id, ACTOR)
    world.blobs.available = True
    if as_it_was == "running":
        (job,) = (await store.jobs.list(TenantScope(scope.tenant_id))).items
        assert await store.jobs.claim(scope.tenant_id, job.job_id)
    elif as_it_was == "failed":
        (job,) = (await store.jobs.list(TenantScope(scope.tenant_id))).items
        await store.jobs.end(await store.jobs.claim(scope.tenant_id, job.job_id), error="as earlier releases did")
    backup = await world.backup()
    store = await world.gateway()
    shredded = await store.shred.subject(scope, scope.subject_id, ACTOR)
    return backup, shredded.job_id


@pytest.mark.parametrize("as_it_was", ["queued", "running", "failed"])
async def test_a_shred_that_a_backup_knows_as_begun_is_finished_before_it_is_served_from(world, connect, as_it_was):
    scope = Scope(uuid4(), "user-1")
    backup, job_id = await begun(world, connect, scope, as_it_was=as_it_was)
    restored = await world.gateway(backup)
    await refuses(restored, scope)
    admin = await connect(backup)
    await admin.execute("UPDATE stateroom.jobs SET lease_until = NULL")
    assert (await finished(restored, TenantScope(scope.tenant_id), job_id)).state == "done"
    assert await rows(admin, scope.tenant_id) == 0
    await world.gateway(backup)


@pytest.mark.parametrize("as_it_was", ["queued", "running", "failed"])
async def test_accepting_a_restored_backup_applies_a_shred_that_it_knows_as_begun(world, connect, as_it_was):
    scope = Scope(uuid4(), "user-1")
    backup, job_id = await begun(world, connect, scope, as_it_was=as_it_was)
    local = await world.gateway(backup, restored=True)
    assert [(each.shred_id, each.keys_destroyed) for each in await local.shred.accept()] == [(job_id, 2)]
    restored = await world.gateway(backup)
    await refuses(restored, scope)
    assert (await finished(restored, TenantScope(scope.tenant_id), job_id)).state == "done"
    assert await rows(await connect(backup), scope.tenant_id) == 0


async def test_a_gateway_may_start_while_another_one_shreds(world):
    tenant_id = uuid4()
    scope = Scope(tenant_id, "user-1")
    store = await world.gateway()
    await found_tenant(store, tenant_id)
    for each in (scope, Scope(tenant_id, "user-2")):
        await fill(store, each)
    started = []

    async def start():
        started.append(await world.gateway())
        await refuses(started[-1], scope)

    world.blobs.meanwhile = start
    shredded = await store.shred.subject(scope, "user-1", ACTOR)
    world.blobs.meanwhile = start
    whole = await store.shred.tenant(tenant_id, str(tenant_id), ACTOR)
    assert len(started) == 2
    for job_id in (shredded.job_id, whole.job_id):
        assert (await finished(started[0], TenantScope(tenant_id), job_id)).state == "done"
    page = await store.audit.page(TenantScope(tenant_id), ACTOR)
    events = [record.event.target for record in page.items if record.event.action == "key.shred"]
    assert events == ["subject:user-1", f"tenant:{tenant_id}"]  # once each, whoever of both destroyed the keys


@pytest.mark.parametrize("refusal", [KeyDenied(), RootKeyInvalid()], ids=lambda each: type(each).__name__)
async def test_a_shred_waits_for_a_root_key_that_refuses_and_takes_the_rows_then(world, connect, refusal):
    world.root_key = UnsteadyRootKey()
    scope = Scope(uuid4(), "user-1")
    store = await world.gateway()
    await fill(store, scope)
    await store.control.ready()  # else nothing is begun
    world.root_key.refusal = refusal
    with pytest.raises(type(refusal)):
        await store.shred.subject(scope, "user-1", ACTOR)
    assert await store.runner.run_due() == 1
    (job,) = (await store.jobs.list(TenantScope(scope.tenant_id))).items
    assert (job.state, job.error) == ("running", None)
    assert await store.runner.run_due() == 0  # it is not asked again at once
    world.root_key.refusal = None
    admin = await connect(world.database)
    await admin.execute("UPDATE stateroom.jobs SET lease_until = NULL")
    assert (await finished(store, TenantScope(scope.tenant_id), job.job_id)).state == "done"
    await refuses(store, scope)
    assert await rows(admin, scope.tenant_id) == 0


@pytest.mark.parametrize("level", ["subject", "tenant"])
async def test_repeating_a_shred_that_failed_takes_it_up_again(world, connect, level):
    tenant_id = uuid4()
    store = await world.gateway()
    await found_tenant(store, tenant_id)
    await fill(store, Scope(tenant_id, "user-1"))

    async def shred():
        if level == "tenant":
            return await store.shred.tenant(tenant_id, str(tenant_id), ACTOR)
        return await store.shred.subject(Scope(tenant_id, "user-1"), "user-1", ACTOR)

    first = await shred()
    failed = await store.jobs.claim(tenant_id, first.job_id)
    assert await store.jobs.end(failed, error="a root key that refused ended it, in earlier releases")
    admin = await connect(world.database)
    assert await rows(admin, tenant_id) > 0
    assert await shred() == first
    job = await finished(store, TenantScope(tenant_id), first.job_id)
    assert (job.state, job.error) == ("done", None)
    assert await rows(admin, tenant_id) == 0


async def test_a_tenant_that_took_its_own_root_key_away_can_be_shredded_and_restored(world, connect):
    tenant_id = uuid4()
    shared, own = MemoryRootKey(), UnsteadyRootKey()
    world.root_key = RootKeys([shared], {tenant_id: [own]})
    store = await world.gateway()
    await found_tenant(store, tenant_id)
    for number in range(2):
        await fill(store, Scope(tenant_id, f"user-{number}"))
    backup = await world.backup()
    own.refusal = KeyDenied()
    store = await world.gateway()
    subject = await store.shred.subject(Scope(tenant_id, "user-0"), "user-0", ACTOR)
    whole = await store.shred.tenant(tenant_id, str(tenant_id), ACTOR)
    for job_id in (subject.job_id, whole.job_id):
        assert (await finished(store, TenantScope(tenant_id), job_id)).state == "done"
    assert await rows(await connect(world.database), tenant_id) == 0
    local = await world.gateway(backup, restored=True)
    assert len(await local.shred.accept()) == 2
    await refuses(await world.gateway(backup), Scope(tenant_id, "user-1"))


@pytest.mark.parametrize("level", ["subject", "tenant"])
@pytest.mark.parametrize("job", ["there", "deleted"])
async def test_keys_put_back_under_a_serving_gateway_are_destroyed_again(world, connect, level, job):
    tenant_id = uuid4()
    scope, other = Scope(tenant_id, "user-1"), Scope(uuid4(), "user-1")
    store = await world.gateway()
    await found_tenant(store, tenant_id)
    for each in (scope, other):
        await fill(store, each)
    admin = await connect(world.database)
    tables = ["tenant_keys", *(each.name for each in SUBJECT_TABLES)]
    stolen = {
        table: await admin.fetch(f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1", tenant_id) for table in tables
    }
    if level == "tenant":
        shredded = await store.shred.tenant(tenant_id, str(tenant_id), ACTOR)
    else:
        shredded = await store.shred.subject(scope, "user-1", ACTOR)
    assert (await finished(store, TenantScope(tenant_id), shredded.job_id)).state == "done"
    assert await store.shred.uphold() == 0
    for table, rows_of_table in stolen.items():
        await admin.execute(f"DELETE FROM stateroom.{table} WHERE tenant_id = $1", tenant_id)
        for row in rows_of_table:
            places = ", ".join(f"${at + 1}" for at in range(len(row)))
            names = ", ".join(row.keys())
            await admin.execute(f"INSERT INTO stateroom.{table} ({names}) VALUES ({places})", *row.values())
    if job == "deleted":
        await admin.execute("DELETE FROM stateroom.jobs WHERE tenant_id = $1", tenant_id)
    store.keys.evict(scope)
    store.keys.evict_tenant(tenant_id)
    await load(store, scope, "t0")  # in the minutes until somebody looks, they serve
    assert await store.shred.uphold() == 1
    await refuses(store, scope)
    await load(store, other, "t0")
    assert (await finished(store, TenantScope(tenant_id), shredded.job_id)).state == "done"
    assert await rows(admin, tenant_id) == 0
    assert await store.shred.uphold() == 0


async def test_a_forged_tombstone_keeps_no_other_from_being_upheld(world, connect):
    tenant_id = uuid4()
    scope, other = Scope(tenant_id, "user-1"), Scope(tenant_id, "user-2")
    store = await world.gateway()
    for each in (scope, other):
        await fill(store, each)
    admin = await connect(world.database)
    stolen = await admin.fetch("SELECT * FROM stateroom.subject_keys WHERE tenant_id = $1", tenant_id)
    shredded = await store.shred.subject(scope, "user-1", ACTOR)
    body = await world.blobs.get(TombstoneLocation(DEPLOYMENT_ID, tenant_id, shredded.job_id))
    await world.blobs.put_if_absent(TombstoneLocation(DEPLOYMENT_ID, tenant_id, UUID(int=7)), body)
    for row in stolen:
        await admin.execute(
            "UPDATE stateroom.subject_keys SET state = 'active', wrapped = $4"
            " WHERE tenant_id = $1 AND subject_id = $2 AND purpose = $3",
            tenant_id,
            row["subject_id"],
            row["purpose"],
            row["wrapped"],
        )
    store.keys.evict(scope)
    with pytest.raises(IntegrityFailure, match="not authentic"):
        await store.shred.uphold()
    await refuses(store, scope)
    await load(store, other, "t0")


async def test_a_forged_object_in_the_place_of_a_begun_shreds_tombstone_stops_the_start(world):
    scope = Scope(uuid4(), "user-1")
    store = await world.gateway()
    await fill(store, scope)
    world.blobs.available = False
    with pytest.raises(BlobUnavailable):
        await store.shred.subject(scope, "user-1", ACTOR)
    world.blobs.available = True
    (job,) = (await store.jobs.list(TenantScope(scope.tenant_id))).items
    forged = TombstoneLocation(DEPLOYMENT_ID, scope.tenant_id, job.job_id)
    await world.blobs.put_if_absent(forged, b"{}")
    with pytest.raises(SetupError):
        await world.gateway()
    with pytest.raises(IntegrityFailure):
        await store.shred.subject(scope, "user-1", ACTOR)
    await load(store, scope, "t0")


async def test_repeating_a_shred_does_not_need_the_root_key_that_wrapped_its_tombstone(world):
    scope = Scope(uuid4(), "user-1")
    store = await world.gateway()
    await found_tenant(store, scope.tenant_id)
    await fill(store, scope)
    first = await store.shred.subject(scope, "user-1", ACTOR)
    world.root_key.rotate()
    job_id = await store.rotation.rewrap_root(ACTOR)
    assert (await finished(store, OperatorScope(), job_id)).state == "done"
    world.root_key._root_keys = {2: world.root_key._root_keys[2]}
    assert await store.shred.subject(scope, "user-1", ACTOR) == first
    assert (await finished(store, TenantScope(scope.tenant_id), first.job_id)).state == "done"


async def test_an_id_that_a_backup_never_knew_is_free_in_it_and_is_somebody_new(world):
    tenant_id = uuid4()
    scope = Scope(tenant_id, "user-1")
    store = await world.gateway()
    await found_tenant(store, tenant_id)
    backup = await world.backup()
    store = await world.gateway()
    await fill(store, scope)
    await store.shred.subject(scope, "user-1", ACTOR)
    assert [each.keys_destroyed for each in await (await world.gateway(backup, restored=True)).shred.accept()] == [0]
    restored = await world.gateway(backup)
    with pytest.raises(CheckpointNotFound):
        await load(restored, scope, "t0")
    await save(restored, scope, "t0", content=state(a="somebody new"))
    assert await restored.shred.uphold() == 0
    again = await world.gateway(backup)
    assert contents(await load(again, scope, "t0")) == {"a": "somebody new"}
