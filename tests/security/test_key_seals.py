"""What whoever writes to the database can do to API keys, under gateways of this build and of the release before."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from gateway.authentication import api_keys
from gateway.authentication.principals import Authenticator, Principal
from gateway.problems import Unauthenticated
from storage.clock import SystemClock
from storage.errors import ApiKeyNotFound, LastAdminKey
from storage.keys.key_seals import Pepper, Peppers
from storage.model import ApiKeyRecord
from storage.scope import OperatorScope, TenantScope
from tests.unit.gateway.doubles import PEPPER, PEPPERS

ADMIN = ("tenant:admin",)
NEXT = Peppers(Pepper(2, bytes(range(1, 33))), [Pepper(1, PEPPER)])
ONLY_NEXT = Peppers(NEXT.active)


async def needed() -> bool:
    return True


@pytest.fixture
def scope() -> TenantScope:
    return TenantScope(uuid4())


@pytest.fixture
async def make(store, scope):
    async def make(*permissions: str, peppers: Peppers = PEPPERS, **more: Any) -> tuple[ApiKeyRecord, str]:
        made = {"tenant_id": scope.tenant_id, "kind": "service", "now": datetime.now(UTC)} | more
        record, text = api_keys.mint(peppers, api_keys.NewKey(permissions=permissions or ADMIN, **made))
        await store.tenants.add_key(OperatorScope() if record.tenant_id is None else scope, record)
        return record, text

    return make


@pytest.fixture
def opens(store):
    """Whether a key opens anything at a gateway that never saw it, and what it is then."""

    async def opens(text: str, peppers: Peppers = PEPPERS, seals_needed: Any = None) -> Principal | None:
        asked = seals_needed or store.tenants.seals_needed
        try:
            fresh = Authenticator(peppers, store.tenants.look_up_key, SystemClock(), asked)
            return await fresh.verify(b"Bearer " + text.encode())
        except Unauthenticated:
            return None

    return opens


async def test_a_revocation_that_is_taken_back_in_the_database_revives_nothing(store, scope, make, opens, admin):
    record, text = await make("state:read")
    assert await opens(text)
    await store.tenants.revoke_key(scope, record.key_id, PEPPERS)
    await admin.execute("UPDATE stateroom.api_keys SET revoked_at = NULL WHERE key_id = $1", record.key_id)
    assert await opens(text) is None
    # Nor together with the seal, while a gateway of the release before may have written a row without one.
    await admin.execute("DELETE FROM stateroom.api_key_seals WHERE key_id = $1", record.key_id)
    assert await opens(text) is None


async def test_a_first_mac_that_is_put_back_does_not_outlive_the_seal(store, scope, make, opens, admin):
    record, text = await make("state:read")
    await store.tenants.revoke_key(scope, record.key_id, PEPPERS)
    back = "UPDATE stateroom.api_keys SET revoked_at = NULL, mac = $2 WHERE key_id = $1"
    await admin.execute(back, record.key_id, record.mac)
    assert await opens(text) is None
    [shown] = (await store.tenants.list_keys(scope)).items
    assert api_keys.status_of(shown, PEPPERS, datetime.now(UTC)) == "damaged"
    await admin.execute("DELETE FROM stateroom.api_key_seals WHERE key_id = $1", record.key_id)
    assert await opens(text, seals_needed=needed) is None
    assert await opens(text)  # what `stateroom db finish-upgrade` ends


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE stateroom.api_key_seals SET grants = '{state:read,tenant:admin}' WHERE key_id = $1",
        "UPDATE stateroom.api_key_seals SET mac = decode(repeat('00', 32), 'hex') WHERE key_id = $1",
        "UPDATE stateroom.api_key_seals SET pepper_version = 7 WHERE key_id = $1",
        "UPDATE stateroom.api_keys SET pepper_version = 7 WHERE key_id = $1",
        "UPDATE stateroom.api_keys SET permissions = '{state:read,tenant:admin}' WHERE key_id = $1",
        "UPDATE stateroom.api_keys SET expires_at = now() + interval '1 year' WHERE key_id = $1",
        "UPDATE stateroom.api_key_seals SET principal = 'bob' WHERE key_id = $1",
        "UPDATE stateroom.api_key_seals SET principal = NULL WHERE key_id = $1",
        "UPDATE stateroom.api_key_seals SET made_by = NULL WHERE key_id = $1",
        "UPDATE stateroom.api_key_seals SET principal = NULL, made_by = NULL WHERE key_id = $1",
        "UPDATE stateroom.api_keys SET created_at = created_at - interval '1 day' WHERE key_id = $1",
    ],
)
async def test_a_key_whose_row_or_seal_was_edited_opens_nothing(make, opens, admin, edit):
    """So nobody is two, or older than a question, by writing to the database."""
    record, text = await make(principal="ann", made_by="0123456789ab")
    assert await opens(text)
    await admin.execute(edit, record.key_id)
    assert await opens(text) is None


async def test_a_key_of_the_release_before_works_and_grants_what_it_may_do(make, opens, admin, store):
    record, text = await make("state:read", "tenant:admin")
    await admin.execute("DELETE FROM stateroom.api_key_seals WHERE key_id = $1", record.key_id)
    found = await opens(text)
    assert found.grants == found.permissions == {"state:read", "tenant:admin"}
    # Its gateways look keys up by their own function, and refuse a column that they do not know.
    row = await admin.fetchrow("SELECT * FROM stateroom.look_up_api_key($1)", record.key_id)
    known = {name for name in ApiKeyRecord.__slots__ if name not in {"seal", "suspended"}}
    assert row.keys() == known if isinstance(row.keys(), set) else set(row.keys()) == known


async def test_a_revocation_by_the_release_before_counts_though_the_seal_says_nothing_of_it(make, opens, admin, store):
    record, text = await make("state:read")
    await admin.execute("UPDATE stateroom.api_keys SET revoked_at = now() WHERE key_id = $1", record.key_id)
    assert await opens(text) is None
    stored = await store.tenants.look_up_key(record.key_id)
    assert api_keys.status_of(stored, PEPPERS, datetime.now(UTC)) == "revoked"


async def test_finishing_an_upgrade_seals_what_the_release_before_left_revocations_included(
    make, opens, admin, store, scope
):
    (kept, kept_text), (revoked, revoked_text) = await make(), await make("state:read")
    await admin.execute("UPDATE stateroom.api_keys SET revoked_at = now() WHERE key_id = $1", revoked.key_id)
    for record in (kept, revoked):
        await admin.execute("DELETE FROM stateroom.api_key_seals WHERE key_id = $1", record.key_id)
    await admin.execute(
        "INSERT INTO stateroom.tenants (tenant_id, name, created_at) VALUES ($1, $2, now())",
        scope.tenant_id,
        uuid4().hex,
    )
    assert await opens(kept_text, seals_needed=needed) is None
    assert await store.tenants.adopt_keys(PEPPERS) >= 2
    assert await opens(kept_text, seals_needed=needed)
    await admin.execute("UPDATE stateroom.api_keys SET revoked_at = NULL WHERE key_id = $1", revoked.key_id)
    assert await opens(revoked_text) is None
    await admin.execute("DELETE FROM stateroom.api_key_seals WHERE key_id = $1", revoked.key_id)
    assert await opens(revoked_text) is None


async def test_keys_move_to_another_pepper_by_being_used(make, store):
    record, text = await make("state:read")
    _, unused = await make("state:write")
    moving = Authenticator(NEXT, store.tenants.look_up_key, SystemClock(), needed)
    await moving.verify(b"Bearer " + text.encode())
    await moving.flush_restamped(store.tenants.restamp_keys)
    after = Authenticator(ONLY_NEXT, store.tenants.look_up_key, SystemClock(), needed)
    assert (await after.verify(b"Bearer " + text.encode())).key_id == record.key_id
    with pytest.raises(Unauthenticated):
        await after.verify(b"Bearer " + unused.encode())


async def test_a_key_that_is_revoked_while_it_moves_stays_revoked(make, store, scope, opens, admin):
    record, text = await make("state:read")
    moving = Authenticator(NEXT, store.tenants.look_up_key, SystemClock(), needed)
    await moving.verify(b"Bearer " + text.encode())
    await store.tenants.revoke_key(scope, record.key_id, PEPPERS)
    await moving.flush_restamped(store.tenants.restamp_keys)
    assert (await store.tenants.look_up_key(record.key_id)).revoked_at is not None
    await admin.execute("UPDATE stateroom.api_keys SET revoked_at = NULL WHERE key_id = $1", record.key_id)
    assert await opens(text, NEXT) is None


async def test_the_last_key_that_administers_stays_unless_that_is_forced(make, store, scope, opens):
    (first, first_text), (second, _) = await make(), await make()
    await make(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await make("state:read")
    await store.tenants.revoke_key(scope, second.key_id, PEPPERS)
    with pytest.raises(LastAdminKey):
        await store.tenants.revoke_key(scope, first.key_id, PEPPERS)
    assert await opens(first_text)
    await store.tenants.revoke_key(scope, second.key_id, PEPPERS)  # again: nothing changes
    await store.tenants.revoke_key(scope, first.key_id, PEPPERS, force=True)
    assert await opens(first_text) is None


async def test_a_key_that_somebody_revived_does_not_count_as_one_that_administers(make, store, scope, admin):
    (first, _), (second, _) = await make(), await make()
    await store.tenants.revoke_key(scope, second.key_id, PEPPERS)
    await admin.execute("UPDATE stateroom.api_keys SET revoked_at = NULL WHERE key_id = $1", second.key_id)
    with pytest.raises(LastAdminKey):
        await store.tenants.revoke_key(scope, first.key_id, PEPPERS)


async def test_two_administrators_who_revoke_each_other_at_once_leave_one(make, store, scope):
    made = [(await make())[0] for _ in range(4)]

    async def revoke(record: ApiKeyRecord) -> bool:
        try:
            await store.tenants.revoke_key(scope, record.key_id, PEPPERS)
        except LastAdminKey:
            return False
        return True

    assert sorted(await asyncio.gather(*map(revoke, made))) == [False, True, True, True]


async def test_nobody_revokes_anothers_key(make, store):
    record, _ = await make()
    for other in (TenantScope(uuid4()), OperatorScope()):
        with pytest.raises(ApiKeyNotFound):
            await store.tenants.revoke_key(other, record.key_id, PEPPERS, force=True)


@pytest.mark.parametrize("named", [{}, {"principal": "ann"}, {"principal": "ann", "made_by": "0123456789ab"}])
def test_a_seal_covers_each_of_its_members(named):
    new = api_keys.NewKey(kind="service", permissions=ADMIN, now=datetime.now(UTC), tenant_id=uuid4(), **named)
    record, _ = api_keys.mint(PEPPERS, new)
    assert (record.principal, record.made_by) == (named.get("principal", record.key_id), named.get("made_by"))
    assert PEPPERS.is_authentic(record)
    assert record.seal is not None
    for edited in (
        {"key_id": "0" * 12}, {"kind": "subject"}, {"tenant_id": uuid4()}, {"tenant_id": None}, {"subject_id": "u"},
        {"permissions": ()}, {"expires_at": datetime.now(UTC)}, {"revoked_at": datetime.now(UTC)},
        {"seal": replace(record.seal, grants=())}, {"seal": None}, {"seal": replace(record.seal, principal="bob")},
        {"seal": replace(record.seal, made_by="ba9876543210")},
    ):  # fmt: skip
        assert not PEPPERS.is_authentic(replace(record, **edited)), edited
