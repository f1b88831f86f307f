"""The audit log on a real database: what is recorded, batches of accesses, concurrency, anchors each minute."""

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from crypto import KeyUnavailable, MemoryRootKey, NoteKey
from storage.administration.audit import ACCESSES_PER_EVENT, NOTES_MAX, Audit
from storage.blobs.keyspace import AnchorLocation
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import BlobUnavailable
from storage.clock import ManualClock
from storage.errors import AnchorNotFound, IntegrityFailure
from storage.format.audit import OPERATOR_CHAIN, AnchorText, AuditInvalid
from storage.model import ApiKeyRecord, Tenant
from storage.postgres.engine import create_engine
from storage.postgres.unit_of_work import Silent, UnitOfWork
from storage.scope import OperatorScope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS

WHEN = datetime(2026, 11, 21, tzinfo=UTC)


class Counting(Silent):
    def __init__(self):
        self.dropped = 0
        self.damaged = 0

    def audit_note_dropped(self):
        self.dropped += 1

    def integrity_failure(self):
        self.damaged += 1


@pytest.fixture
def blobs():
    return MemoryBlobStore()


@pytest.fixture
def observer():
    return Counting()


@pytest.fixture
def other(store, root_key, blobs, observer):
    """Another gateway on the same database, with a bucket; ``store`` has none."""
    return Store(
        store._engine,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        options=StoreOptions(blobs=blobs, clock=ManualClock(WHEN), observer=observer),
    )


def record(tenant_id, key_id, kind="service", **changes):
    return ApiKeyRecord(
        **{
            "key_id": key_id, "kind": kind, "name": "secret name", "tenant_id": tenant_id, "subject_id": None,
            "permissions": ("state:read",), "mac": b"m" * 32, "pepper_version": 1, "created_at": WHEN,
            "expires_at": None, "revoked_at": None, "last_used_at": None,
        } | changes
    )  # fmt: skip


async def events(store, scope):
    page = await store.audit.page(scope, "api-key:auditor", 0, 1000)
    return [each.event for each in page.items[:-1]]  # without the reading itself


async def test_credentials_and_tenants_leave_events_with_who_and_what(store):
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=WHEN)
    scope = TenantScope(tenant.tenant_id)
    first = uuid4().hex
    await store.tenants.create(
        OperatorScope(founding=tenant.tenant_id), tenant, record(tenant.tenant_id, first), "api-key:op"
    )
    bound = record(tenant.tenant_id, uuid4().hex, "subject", subject_id="user-1")
    await store.tenants.add_key(scope, bound, "api-key:admin")
    await store.tenants.revoke_key(scope, first, PEPPERS, "api-key:admin")
    found = await events(store, scope)
    assert [(each.actor, each.action, each.target) for each in found] == [
        ("api-key:op", "tenant.create", f"tenant:{tenant.tenant_id}"),
        ("api-key:op", "api-key.create", f"api-key:{first}"),
        ("api-key:admin", "api-key.create", f"api-key:{bound.key_id}"),
        ("api-key:admin", "api-key.revoke", f"api-key:{first}"),
    ]
    assert found[2].detail == {
        "kind": "subject", "subject_id": "user-1", "permissions": ["state:read"], "grants": ["state:read"],
        "expires_at": None,
        "principal": bound.key_id,
    }  # fmt: skip
    operators = await events(store, OperatorScope())
    assert (operators[-1].action, operators[-1].target) == ("tenant.create", f"tenant:{tenant.tenant_id}")
    assert operators[-1].tenant_id == OPERATOR_CHAIN


async def test_a_readers_page_goes_on_where_the_last_one_ended(store):
    scope = TenantScope(uuid4())
    for _ in range(7):
        await store.tenants.add_key(scope, record(scope.tenant_id, uuid4().hex))
    seen, after = [], 0
    while True:
        page = await store.audit.page(scope, "api-key:auditor", after, 3)
        seen += [each.entry.sequence for each in page.items]
        if page.after is None:
            break
        after = int(page.after[0])
    assert seen == list(range(1, 9))  # 7 and one reading, which only its beginning records


async def test_concurrent_writers_of_one_chain_leave_no_gap(store, other):
    scope = TenantScope(uuid4())
    await asyncio.gather(
        *(
            each.tenants.add_key(scope, record(scope.tenant_id, uuid4().hex))
            for each in (store, other)
            for _ in range(20)
        )
    )
    assert [each.sequence for each in await events(store, scope)] == list(range(1, 41))


async def test_two_operators_founding_tenants_at_once_do_not_block_each_other_for_ever(store, other):
    async def found(which):
        tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=WHEN)
        scope = OperatorScope(founding=tenant.tenant_id)
        await which.tenants.create(scope, tenant, record(tenant.tenant_id, uuid4().hex))

    await asyncio.gather(*(found(each) for each in (store, other) for _ in range(10)))


async def test_accesses_are_counted_together_and_written_in_batches(other):
    scope = TenantScope(uuid4())
    for number in range(ACCESSES_PER_EVENT + 5):
        for _ in range(3):
            other.audit.note(scope.tenant_id, "api-key:k", "save_checkpoint", f"subject/u{number}/thread/t", 201)
    other.audit.note(OPERATOR_CHAIN, "api-key:op", "list_tenants", "operators", 200)
    await other.audit.flush()
    found = await events(other, scope)
    assert [(each.actor, each.action) for each in found] == [("gateway", "access")] * 2
    accesses = [each for event in found for each in event.detail["accesses"]]
    assert len(accesses) == ACCESSES_PER_EVENT + 5
    assert accesses[0] == {
        "actor": "api-key:k", "action": "save_checkpoint", "target": "subject/u0/thread/t", "status": 201, "count": 3
    }  # fmt: skip
    assert (await events(other, OperatorScope()))[-1].detail["accesses"][0]["action"] == "list_tenants"
    before = len(found)
    await other.audit.flush()  # nothing is left
    assert len([each for each in await events(other, scope) if each.action == "access"]) == before


async def test_what_exceeds_the_buffer_is_counted_and_recorded_and_nobody_waits(other, observer):
    scope = TenantScope(uuid4())
    for number in range(NOTES_MAX + 7):
        other.audit.note(scope.tenant_id, "api-key:k", "load", f"subject/{number}", 200)
    other.audit.note(scope.tenant_id, "api-key:k", "load", "subject/0", 200)  # a known one still counts
    assert observer.dropped == 7
    await other.audit.flush()
    page = await other.audit.page(scope, "api-key:auditor", 0, 1000)
    dropped = [each.event.detail["count"] for each in page.items if each.event.action == "access.dropped"]
    assert dropped == [7]
    other.audit.note(scope.tenant_id, "api-key:k", "load", "subject/new", 200)  # there is room again
    assert observer.dropped == 7


async def test_notes_survive_a_database_that_is_away_and_come_in_once(database, store, root_key):
    scope = TenantScope(uuid4())
    away = create_engine(database.app_url.replace("gw_app:app", "gw_app:wrong"), connections_max=1)
    audit = Audit(UnitOfWork(away, Silent()), DEPLOYMENT_ID, ManualClock(WHEN), Silent())
    audit.note(scope.tenant_id, "api-key:k", "load", "subject/u", 200)
    for _ in range(3):
        with pytest.raises(Exception):  # noqa: B017,PT011  whichever error the driver has for a wrong password
            await audit.flush()
    audit.note(scope.tenant_id, "api-key:k", "load", "subject/u", 200)
    audit._unit_of_work = store.unit_of_work
    await audit.flush()
    (found,) = await events(store, scope)
    assert [each["count"] for each in found.detail["accesses"]] == [2]
    await away.dispose()


async def test_an_event_holds_no_floats_bytes_or_endless_text(store):
    scope = TenantScope(uuid4())
    for detail in ({"x": 1.5}, {"x": b"secret"}, {"x": "y" * 300_000}):
        async with store.unit_of_work.begin(scope) as transaction:
            with pytest.raises(AuditInvalid):
                await store.audit.append(transaction, scope.tenant_id, "a", "b", "c", detail)
    assert await events(store, scope) == []


# --- anchors ---------------------------------------------------------------------------------------------


async def grow(store, scope, count=1):
    for _ in range(count):
        await store.tenants.add_key(scope, record(scope.tenant_id, uuid4().hex))


async def test_an_anchor_is_stored_once_and_reads_back(other, blobs):
    scope = TenantScope(uuid4())
    await grow(other, scope, 3)
    made = await other.anchors.anchor(scope)
    assert made.stored
    assert made.text.sequence == 3
    assert (await blobs.get(AnchorLocation(scope.tenant_id, 3))).decode() == made.note
    assert await other.anchors.anchor(scope) == made == await other.anchors.latest(scope)
    note_key = await other.anchors.public_key(scope)
    assert AnchorText.open(made.note, NoteKey.parse(str(note_key))) == made.text
    await grow(other, scope)
    assert (await other.anchors.anchor(scope)).text.sequence == 4
    assert (await other.anchors.latest(scope)).text.sequence == 4  # the newest, not the first


async def test_every_gateway_signs_the_same_anchor_with_the_same_key(other, store, root_key, blobs):
    scope = TenantScope(uuid4())
    await grow(store, scope)
    third = Store(store._engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=blobs))
    made = await asyncio.gather(*(each.anchors.anchor(scope) for each in (other, third) for _ in range(3)))
    assert len({each.note for each in made}) == 1


async def test_without_a_bucket_an_anchor_is_made_but_not_kept(store):
    scope = TenantScope(uuid4())
    await grow(store, scope)
    assert not (await store.anchors.anchor(scope)).stored
    assert await store.anchors.anchor_due() == 0
    with pytest.raises(AnchorNotFound):
        await store.anchors.latest(scope)


async def test_each_round_anchors_what_grew_and_only_that(other, blobs):
    scopes = [TenantScope(uuid4()) for _ in range(3)]
    for each in scopes:
        await grow(other, each)
    await grow_operators(other)
    await other.anchors.anchor_due()
    for each in (*scopes, OperatorScope()):
        assert (await other.anchors.latest(each)).stored
    assert await other.anchors.anchor_due() == 0
    await grow(other, scopes[1])
    assert await other.anchors.anchor_due() == 1


async def grow_operators(store):
    await store.tenants.add_key(OperatorScope(), record(None, uuid4().hex, "operator", permissions=("operator",)))


async def test_what_a_process_did_not_live_to_anchor_the_next_one_anchors(store, other):
    scope = TenantScope(uuid4())
    await grow(store, scope)  # by a process without a bucket, as good as dead
    await other.anchors.anchor_due()
    assert (await other.anchors.latest(scope)).text.sequence == 1


async def test_a_database_that_claims_everything_is_anchored_is_not_believed(other, admin):
    scope = TenantScope(uuid4())
    await other.anchors.anchor_due()
    await grow(other, scope)
    await admin.execute("UPDATE stateroom.audit_heads SET anchored = 1000000")
    await other.anchors.anchor_due()
    assert (await other.anchors.latest(scope)).text.sequence == 1


async def test_a_bucket_that_is_away_delays_anchors_and_loses_none(other, blobs):
    scopes = [TenantScope(uuid4()) for _ in range(2)]
    for each in scopes:
        await grow(other, each)
    blobs.available = False
    with pytest.raises(BlobUnavailable):
        await other.anchors.anchor_due()
    blobs.available = True
    await other.anchors.anchor_due()
    for each in scopes:
        assert (await other.anchors.latest(each)).text.sequence == 1


async def test_one_damaged_chain_does_not_keep_the_others_from_their_anchors(other, admin, observer):
    bad, good = sorted((TenantScope(uuid4()) for _ in range(2)), key=lambda each: each.tenant_id)
    for each in (bad, good):
        await grow(other, each, 2)
    await admin.execute("DELETE FROM stateroom.audit_log WHERE tenant_id = $1 AND sequence = 2", bad.tenant_id)
    with pytest.raises(IntegrityFailure):
        await other.anchors.anchor_due()
    assert observer.damaged >= 1
    assert (await other.anchors.latest(good)).text.sequence == 2
    with pytest.raises(AnchorNotFound):
        await other.anchors.latest(bad)
    await admin.execute("DELETE FROM stateroom.audit_heads WHERE tenant_id = $1", bad.tenant_id)
    await admin.execute("DELETE FROM stateroom.audit_log WHERE tenant_id = $1", bad.tenant_id)


class Unreachable(MemoryRootKey):
    async def unwrap(self, wrapped, context):
        raise KeyUnavailable(5.0)

    async def wrap(self, key, context):
        raise KeyUnavailable(5.0)


async def test_without_the_root_key_nothing_is_signed_and_the_log_goes_on(store, other, blobs):
    scope = TenantScope(uuid4())
    cut_off = Store(
        store._engine, root_key=Unreachable(), deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=blobs)
    )
    await grow(cut_off, scope)
    with pytest.raises(KeyUnavailable):
        await cut_off.anchors.anchor_due()
    await grow(cut_off, scope)
    await other.anchors.anchor_due()
    assert (await other.anchors.latest(scope)).text.sequence == 2


async def test_anchors_on_a_real_s3_server(store, root_key, s3_server):
    bucket = S3BlobStore(S3Location.parse(s3_server.url()), threads=2)
    try:
        here = Store(store._engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=bucket))
        scope = TenantScope(uuid4())
        for number in range(1, 4):
            await grow(here, scope)
            made = await here.anchors.anchor(scope)
            assert (await here.anchors.latest(scope)) == made
            assert made.text.sequence == number
        fresh = Store(store._engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=bucket))
        assert (await fresh.anchors.anchor(scope)) == made
    finally:
        await bucket.aclose()
