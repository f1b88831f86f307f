"""Whoever can edit the database cannot change, cut or replace an audit log that was anchored (threats 10 and 19).

Each attack runs twice: on the rows as they are, which the gateway itself notices, and again with every hash computed
anew, which only an anchor kept elsewhere can tell. An anchor, an export and the public key are all the verifier has.
"""

import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from storage.administration.anchors import Anchor
from storage.blobs.keyspace import AnchorLocation, anchor_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.errors import AnchorNotFound, ApiKeyNotFound, IdempotencyKeyReused, IntegrityFailure
from storage.format.audit import (
    OPERATOR_CHAIN,
    decode_body,
    encode_body,
    export_lines,
    link,
    start_of,
    verify_export,
)
from storage.model import ApiKeyRecord, Tenant
from storage.postgres.unit_of_work import bindings
from storage.scope import OperatorScope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS

WHEN = datetime(2026, 11, 21, tzinfo=UTC)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def blobs():
    return MemoryBlobStore()


@pytest.fixture(scope="module")
async def store(database, root_key, blobs) -> AsyncIterator[Store]:
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=4,
        durable=False,
        options=StoreOptions(blobs=blobs),
    )
    yield opened
    await opened.close()


def record(tenant_id, **changes):
    return ApiKeyRecord(
        **{
            "key_id": f"k{next(NUMBERS)}",
            "kind": "operator" if tenant_id is None else "service",
            "name": "n",
            "tenant_id": tenant_id,
            "subject_id": None,
            "permissions": ("state:read",),
            "mac": bytes(32),
            "pepper_version": 1,
            "created_at": WHEN,
            "expires_at": None,
            "revoked_at": None,
            "last_used_at": None,
        }
        | changes
    )


class Log:
    """A tenant with six audited events, of which the first four are anchored."""

    def __init__(self, store: Store, admin: asyncpg.Connection, root_key) -> None:
        self.store, self.admin = store, admin
        self.scope = TenantScope(uuid4())
        self.anchor: Anchor
        self.public_key = ""

    async def fill(self):
        for _ in range(4):
            await self.store.tenants.add_key(self.scope, record(self.scope.tenant_id), "api-key:boss")
        self.anchor = await self.store.anchors.anchor(self.scope)
        self.public_key = str(await self.store.anchors.public_key(self.scope))
        for _ in range(2):
            await self.store.tenants.add_key(self.scope, record(self.scope.tenant_id), "api-key:boss")
        return self

    async def rows(self):
        return [dict(row) for row in await self.admin.fetch(
            "SELECT * FROM stateroom.audit_log WHERE tenant_id = $1 ORDER BY sequence", self.scope.tenant_id
        )]  # fmt: skip

    async def replace(self, events):
        """Write this history instead, consistent with itself to the last byte, head included."""
        tenant_id, previous = self.scope.tenant_id, start_of(DEPLOYMENT_ID, self.scope.tenant_id)
        await self.admin.execute("DELETE FROM stateroom.audit_log WHERE tenant_id = $1", tenant_id)
        for number, event in enumerate(events, 1):
            body = encode_body(
                type(event)(**{name: getattr(event, name) for name in event.__slots__} | {"sequence": number})
            )
            digest = link(previous, number, body)
            await self.admin.execute(
                "INSERT INTO stateroom.audit_log VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                tenant_id, number, event.at, event.actor, event.action, event.target, body, previous, digest,
            )  # fmt: skip
            previous = digest
        await self.admin.execute(
            "UPDATE stateroom.audit_heads SET sequence = $2, hash = $3 WHERE tenant_id = $1",
            tenant_id, len(events), previous,
        )  # fmt: skip

    async def events(self):
        return [decode_body(row["body"]) for row in await self.rows()]

    async def change(self, statement, *arguments):
        await self.admin.execute(statement.format(log="stateroom.audit_log"), self.scope.tenant_id, *arguments)

    async def findings(self):
        """What an auditor finds, with the anchor from the bucket and the key from the wall."""
        pages, after = [], 0
        while True:
            page = await self.store.audit.page(self.scope, "api-key:auditor", after, 3, verify=False)
            pages += [each.entry for each in page.items]
            if page.after is None:
                break
            after = int(page.after[0])
        lines = export_lines(self.anchor.text.origin, pages)
        return {each.kind for each in verify_export(lines, [self.anchor.note], self.public_key).findings}

    async def read(self):
        after = 0
        while True:
            page = await self.store.audit.page(self.scope, "api-key:auditor", after, 3)
            if page.after is None:
                return
            after = int(page.after[0])

    async def gateway_refuses(self):
        with pytest.raises(IntegrityFailure):
            await self.read()

    async def nothing_is_signed(self):
        with pytest.raises(IntegrityFailure):
            await self.store.anchors.anchor(self.scope)


@pytest.fixture
async def log(store, admin, root_key):
    return await Log(store, admin, root_key).fill()


async def test_a_log_that_nobody_touched_verifies(log):
    assert await log.findings() == set()
    assert [each.action for each in await log.events()] == ["api-key.create"] * 6 + ["audit.read"]
    assert (await log.store.audit.page(log.scope, "api-key:auditor", 0, 100)).after is None
    assert (await log.store.anchors.anchor(log.scope)).text.sequence == 8


async def test_an_edited_event_is_detected(log):
    await log.change(
        "UPDATE {log} SET body = convert_to(replace(convert_from(body, 'UTF8'), 'boss', 'mole'), 'UTF8')"
        " WHERE tenant_id = $1 AND sequence = 2"
    )
    assert (await log.events())[1].actor == "api-key:mole"
    assert await log.findings() == {"edited"}
    await log.gateway_refuses()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("actor", "'mole'"),
        ("action", "'nothing'"),
        ("target", "'x'"),
        ("at", "now()"),
        ("previous", "hash"),
        ("hash", "previous"),
    ],
)
async def test_an_edited_column_is_detected(log, column, value):
    text = "UPDATE {log} SET " + column + " = " + value + " WHERE tenant_id = $1 AND sequence = 6"  # noqa: S608
    await log.change(text)
    await log.gateway_refuses()
    await log.nothing_is_signed()
    # The export does not carry the clear columns: they only repeat what the body says.
    if column in {"previous", "hash"}:
        assert "edited" in await log.findings()
    else:
        assert await log.findings() == set()


async def test_an_edit_with_the_chain_computed_anew_is_detected(log):
    events = await log.events()
    events[1] = type(events[1])(**{name: getattr(events[1], name) for name in events[1].__slots__} | {"actor": "mole"})
    await log.replace(events)
    assert await log.findings() == {"forked"}
    await log.nothing_is_signed()


async def test_a_deleted_event_is_detected(log):
    await log.change("DELETE FROM {log} WHERE tenant_id = $1 AND sequence = 3")
    assert "missing" in await log.findings()
    await log.gateway_refuses()


async def test_a_deletion_with_the_chain_computed_anew_is_detected(log):
    events = await log.events()
    await log.replace(events[:2] + events[3:])
    assert await log.findings() == {"forked"}
    await log.nothing_is_signed()


async def test_a_truncated_log_is_detected(log):
    await log.change("DELETE FROM {log} WHERE tenant_id = $1 AND sequence > 2")
    await log.nothing_is_signed()
    await log.replace((await log.events())[:2])
    # Reading leaves an event of its own at the end; what was anchored is still missing.
    assert await log.findings() == {"truncated"}


async def test_a_log_emptied_with_its_head_is_detected(log):
    await log.change("DELETE FROM {log} WHERE tenant_id = $1")
    await log.change("DELETE FROM stateroom.audit_heads WHERE tenant_id = $1")
    assert await log.findings() == {"truncated"}
    await log.nothing_is_signed()


async def test_events_cut_off_behind_the_anchor_are_detected_by_the_head(log):
    await log.change("DELETE FROM {log} WHERE tenant_id = $1 AND sequence = 6")
    await log.nothing_is_signed()
    await log.gateway_refuses()


async def test_a_fork_is_detected(log):
    events = await log.events()
    other = [type(each)(**{name: getattr(each, name) for name in each.__slots__} | {"target": "x"}) for each in events]
    await log.replace(other + other)
    assert await log.findings() == {"forked"}
    await log.nothing_is_signed()


async def test_reordered_events_are_detected(log):
    await log.change("UPDATE {log} SET sequence = -sequence + 100 WHERE tenant_id = $1 AND sequence IN (2, 3)")
    await log.change("UPDATE {log} SET sequence = sequence - 95 WHERE tenant_id = $1 AND sequence = 97")
    await log.change("UPDATE {log} SET sequence = sequence - 95 WHERE tenant_id = $1 AND sequence = 98")
    assert [decode_body(row["body"]).sequence for row in await log.rows()][:4] == [1, 3, 2, 4]
    assert {"reordered", "edited"} <= await log.findings()
    await log.gateway_refuses()


async def test_reordered_events_with_the_chain_computed_anew_are_detected(log):
    events = await log.events()
    await log.replace([events[0], events[2], events[1], *events[3:]])
    assert await log.findings() == {"forked"}


async def test_another_tenants_log_in_its_place_is_detected(log, store, admin, root_key):
    other = await Log(store, admin, root_key).fill()
    await log.change("DELETE FROM {log} WHERE tenant_id = $1")
    await log.change("UPDATE {log} SET tenant_id = $1 WHERE tenant_id = $2", other.scope.tenant_id)
    assert "foreign" in await log.findings()
    await log.gateway_refuses()


async def test_a_new_process_compares_with_the_bucket_and_not_with_the_database(log, store, root_key, blobs):
    """The rewritten log also says that it was never anchored; a process that remembers nothing is not taken in."""
    await log.replace((await log.events())[:1] * 6)
    await log.change("UPDATE stateroom.audit_heads SET anchored = 0 WHERE tenant_id = $1")
    fresh = Store(store._engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=blobs))
    with pytest.raises(IntegrityFailure):
        await fresh.anchors.anchor(log.scope)
    log.store = fresh
    assert await log.findings() == {"forked"}


async def test_an_anchor_that_was_replaced_in_the_bucket_is_refused(log, blobs, root_key, store):
    where = AnchorLocation(log.scope.tenant_id, 4)
    assert await blobs.list_keys(anchor_prefix(log.scope.tenant_id)) == [where.object_key()]
    genuine = await blobs.get(where)
    for forged in (genuine.replace(b"\n4\n", b"\n3\n"), b"", b"\xff", genuine[:-10]):
        await blobs.delete(where)
        await blobs.put_if_absent(where, forged)
        fresh = Store(store._engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=blobs))
        with pytest.raises(IntegrityFailure):
            await fresh.anchors.latest(log.scope)
        with pytest.raises(IntegrityFailure):
            await fresh.anchors.anchor(log.scope)


async def test_a_signing_key_that_was_exchanged_is_refused(log, store, admin, root_key, blobs):
    await admin.execute("UPDATE stateroom.deployment_keys SET public = $1 WHERE purpose = 'audit'", bytes(32))
    try:
        fresh = Store(store._engine, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=StoreOptions(blobs=blobs))
        with pytest.raises(IntegrityFailure):
            await fresh.anchors.public_key(log.scope)
    finally:
        await admin.execute(
            "UPDATE stateroom.deployment_keys SET public = $1 WHERE purpose = 'audit'",
            (await store.anchors.public_key(log.scope)).public_key,
        )


@pytest.fixture
async def app(database):
    """A connection as gw_app; whatever it does is rolled back."""
    connection = await asyncpg.connect(database.dsn(database.app_url))
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    "text",
    ["UPDATE stateroom.audit_log SET actor = 'x'", "DELETE FROM stateroom.audit_log", "TRUNCATE stateroom.audit_log",
     "DELETE FROM stateroom.audit_heads", "DELETE FROM stateroom.deployment_keys",
     "UPDATE stateroom.deployment_keys SET public = ''"],
)  # fmt: skip
async def test_the_serving_role_can_only_add(log, app, text):
    await app.execute(bindings(log.scope))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await app.execute(text)


async def test_an_operator_sees_where_chains_end_and_none_of_their_events(log, app):
    await app.execute(bindings(OperatorScope()))
    heads = {row["tenant_id"] for row in await app.fetch("SELECT tenant_id FROM stateroom.audit_heads")}
    assert log.scope.tenant_id in heads
    logs = {row["tenant_id"] for row in await app.fetch("SELECT DISTINCT tenant_id FROM stateroom.audit_log")}
    assert logs <= {OPERATOR_CHAIN}
    assert (
        await app.execute("UPDATE stateroom.audit_heads SET anchored = 0 WHERE tenant_id <> $1", OPERATOR_CHAIN)
        == "UPDATE 0"
    )


async def test_a_tenant_neither_sees_nor_extends_the_operators_chain(log, store, app):
    await store.tenants.add_key(OperatorScope(), record(None))
    await app.execute(bindings(log.scope))
    assert await app.fetchval("SELECT count(*) FROM stateroom.audit_log WHERE tenant_id = $1", OPERATOR_CHAIN) == 0
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await app.execute(
            "INSERT INTO stateroom.audit_log VALUES ($1, 99, now(), 'a', 'a', 'a', '', $2, $2)",
            OPERATOR_CHAIN,
            bytes(32),
        )


@pytest.fixture
async def unwritable(admin):
    """The audit log cannot be written: as a full disk, a dropped table or a revoked grant would have it."""
    await admin.execute("REVOKE INSERT ON stateroom.audit_log FROM gw_app")
    yield
    await admin.execute("GRANT INSERT ON stateroom.audit_log TO gw_app")


async def test_nothing_changes_when_the_audit_log_cannot_be_written(log, store, admin, unwritable):
    kept = record(log.scope.tenant_id)
    before = await log.rows()
    keys = await admin.fetch("SELECT * FROM stateroom.api_keys ORDER BY key_id")
    tenants = await admin.fetch("SELECT * FROM stateroom.tenants ORDER BY tenant_id")
    head = await admin.fetch("SELECT * FROM stateroom.audit_heads ORDER BY tenant_id")
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=WHEN)
    revoked = before[0]["target"].removeprefix("api-key:")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await store.tenants.add_key(log.scope, kept)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await store.tenants.add_key(OperatorScope(), record(None))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await store.tenants.revoke_key(log.scope, revoked, PEPPERS)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, record(tenant.tenant_id))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await store.audit.page(log.scope, "api-key:auditor")
    assert await admin.fetch("SELECT * FROM stateroom.api_keys ORDER BY key_id") == keys
    assert await admin.fetch("SELECT * FROM stateroom.tenants ORDER BY tenant_id") == tenants
    assert await admin.fetch("SELECT * FROM stateroom.audit_heads ORDER BY tenant_id") == head
    assert await log.rows() == before


async def test_what_did_not_happen_is_not_recorded(log, store):
    before = await log.rows()
    with pytest.raises(ApiKeyNotFound):
        await store.tenants.revoke_key(log.scope, "nobody", PEPPERS)
    there = before[0]["target"].removeprefix("api-key:")
    await store.tenants.add_key(log.scope, record(log.scope.tenant_id, key_id=there))
    with pytest.raises(IdempotencyKeyReused):
        await store.tenants.add_key(log.scope, record(log.scope.tenant_id, key_id=there, name="another"))
    assert await log.rows() == before


async def test_an_empty_chain_has_no_anchor(store):
    nobody = TenantScope(UUID(int=0xABC))
    with pytest.raises(AnchorNotFound):
        await store.anchors.anchor(nobody)
    with pytest.raises(AnchorNotFound):
        await store.anchors.latest(nobody)
