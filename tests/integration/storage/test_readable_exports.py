"""Credentials may name the permission to export in clear only once no older build runs, which could not list them."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest

from storage.control.features import READABLE_EXPORTS
from storage.errors import FeatureOff
from storage.model import EXPORT_PERMISSION, ApiKeyRecord, KeySeal, Tenant
from storage.scope import OperatorScope, TenantScope
from tests.support.features import switch_on

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SEAL = KeySeal(grants=(EXPORT_PERMISSION, "tenant:admin"), mac=b"s" * 32, pepper_version=1)
NAMING = [
    {"permissions": (EXPORT_PERMISSION, "state:read")},
    {"permissions": ("tenant:admin",), "seal": SEAL},
]


def record(tenant_id, **changes):
    return ApiKeyRecord(
        **{
            "key_id": uuid4().hex, "kind": "service", "name": "a key", "tenant_id": tenant_id, "subject_id": None,
            "permissions": ("state:read",), "mac": b"m" * 32, "pepper_version": 1, "created_at": NOW,
            "expires_at": None, "revoked_at": None, "last_used_at": None,
        } | changes
    )  # fmt: skip


def new_tenant():
    return Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=NOW)


async def found(store, first_key_of):
    tenant = new_tenant()
    return await store.tenants.create(
        OperatorScope(founding=tenant.tenant_id), tenant, record(tenant.tenant_id, **first_key_of)
    )


async def keys_and_events(store, tenant_id):
    scope = TenantScope(tenant_id)
    keys = (await store.tenants.list_keys(scope, 1000, None)).items
    events = (await store.audit.page(scope, "an auditor", 0, 1000)).items
    return [each.key_id for each in keys], [each.event.action for each in events if each.event.actor != "an auditor"]


@pytest.mark.parametrize("naming", NAMING, ids=["permissions", "grants"])
async def test_none_is_stored_that_names_it_while_an_older_build_may_run(own_store, naming):
    tenant = await found(own_store, {})
    before = await keys_and_events(own_store, tenant.tenant_id)
    with pytest.raises(FeatureOff, match="finish-upgrade"):
        await own_store.tenants.add_key(TenantScope(tenant.tenant_id), record(tenant.tenant_id, **naming))
    with pytest.raises(FeatureOff, match="finish-upgrade"):
        await own_store.tenants.recover(record(tenant.tenant_id, **naming), "lost its keys")
    assert await keys_and_events(own_store, tenant.tenant_id) == before
    refused = new_tenant()
    with pytest.raises(FeatureOff, match="finish-upgrade"):
        await own_store.tenants.create(
            OperatorScope(founding=refused.tenant_id), refused, record(refused.tenant_id, **naming)
        )
    assert refused.name not in {each.name for each in (await own_store.tenants.list(OperatorScope(), 1000, None)).items}


@pytest.mark.parametrize("naming", NAMING, ids=["permissions", "grants"])
async def test_all_are_stored_that_name_it_once_it_is_switched_on(own_store, naming):
    await switch_on(own_store, READABLE_EXPORTS)
    tenant = await found(own_store, naming)
    added = await own_store.tenants.add_key(TenantScope(tenant.tenant_id), record(tenant.tenant_id, **naming))
    recovered = await own_store.tenants.recover(record(tenant.tenant_id, **naming), "lost its keys")
    for each in (added, recovered):
        stored = await own_store.tenants.look_up_key(each.key_id)
        assert EXPORT_PERMISSION in {*stored.permissions, *stored.grants}
