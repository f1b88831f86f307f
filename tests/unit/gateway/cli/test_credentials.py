from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from gateway.authentication import api_keys
from gateway.cli.local.credentials import Census, examine_keys, shared_names, shown
from storage.model import ApiKeyRecord
from tests.unit.gateway.doubles import PEPPERS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = uuid4()
GRANTS = api_keys.tenant_permissions(may_export=True, may_hear=True, may_decide=True)


def key(*permissions: str, grants: tuple[str, ...] | None = None, **more) -> ApiKeyRecord:
    made = {"kind": "service", "tenant_id": TENANT, "now": NOW} | more
    return api_keys.mint(PEPPERS, api_keys.NewKey(permissions=permissions, grants=grants, **made))[0]


def examine(*keys: ApiKeyRecord, operators: tuple[ApiKeyRecord, ...] = (), seals_needed: bool = False) -> Census:
    return examine_keys(operators, {TENANT: keys}, PEPPERS, NOW, seals_needed=seals_needed)


def test_a_tenant_whose_administrators_can_make_no_agents_key_is_named():
    [note] = examine(key("tenant:admin"), key("state:read", "state:write")).notes
    assert str(TENANT) in note
    assert "no key for its agents" in note
    assert examine(key("tenant:admin", grants=GRANTS)).notes == []
    # Of the release before, which said nothing of grants.
    assert examine(replace(key("tenant:admin"), seal=None)).notes == [note]


def test_a_tenant_without_an_administrator_is_named_and_ended_keys_do_not_count():
    admin = key("tenant:admin", grants=GRANTS, expires_at=NOW)
    assert "has no key that administers it" in examine(admin, key("state:read")).notes[0]


def test_that_the_last_key_of_the_operators_ends_soon_is_said():
    admin = key("tenant:admin", grants=GRANTS)
    ends = [NOW + timedelta(days=days) for days in (13, 15)]
    soon, later = (key("operator", kind="operator", tenant_id=None, expires_at=each) for each in ends)
    [note] = examine(admin, operators=(soon,)).notes
    assert "the last key of the operators ends" in note
    assert examine(admin, operators=(soon, later)).notes == []


def test_a_key_that_was_edited_is_damaged_and_one_without_a_seal_once_all_have_one():
    admin = key("tenant:admin", grants=GRANTS)
    edited, unsealed = replace(admin, permissions=("state:read",)), replace(admin, seal=None)
    assert admin.key_id in examine(edited).damaged[0]
    assert examine(unsealed).damaged == []
    assert admin.key_id in examine(unsealed, seals_needed=True).damaged[0]


def test_names_of_more_than_one_are_named_and_many_are_counted():
    assert shared_names(["a", "b", "a", "c", "c"]) == ["a", "c"]
    assert shown([str(number) for number in range(12)]).endswith("9\nand 2 more")
