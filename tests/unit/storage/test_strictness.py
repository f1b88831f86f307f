"""Whose save policy asks a save to name the head it follows, and what a damaged one does."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from storage.access.strictness import AgentUnsure, Strictness
from storage.control.rows import save_policy_row
from storage.errors import IntegrityFailure
from storage.schemas.save_policies import SavePolicy, TenantSavePolicies

TENANT = UUID("00000000-0000-4000-8000-000000000001")
MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("says", "thread", "named", "asking"),
    [
        ({}, "a", "a", None),
        ({"": True}, None, None, "the tenant"),
        ({"": True}, "a", "a", "the tenant"),
        ({"": False}, "a", "a", None),
        ({"": True, "a": False}, "a", "a", None),
        ({"a": True}, "a", None, "agent 'a'"),
        ({"a": True}, None, None, None),
        ({"a": True}, "b", "b", None),
        ({"a": True}, "a", "b", "agent 'a'"),
        ({"a": True}, "b", "a", "agent 'a'"),
        ({"": True, "a": False}, "a", "b", "the tenant"),
        ({"": True, "a": False}, None, "a", None),
    ],
)
def test_an_agents_policy_counts_before_the_tenants_and_of_two_agents_the_stricter_one(says, thread, named, asking):
    assert Strictness(says=says, agent=thread).asked_by(named) == asking


@pytest.mark.parametrize(
    ("says", "damaged", "refused"),
    [
        ({}, {""}, True),
        ({}, {"a"}, True),
        ({}, {"c"}, False),
        ({"a": False, "b": False}, {""}, False),
        ({"a": False}, {""}, True),
        ({"a": False}, {"b"}, True),
    ],
)
def test_a_damaged_policy_refuses_where_it_counts(says, damaged, refused):
    strictness = Strictness(says=says, damaged=frozenset(damaged), agent="a")
    if refused:
        with pytest.raises(IntegrityFailure, match=r"save policy of .* outside the gateway"):
            strictness.asked_by("b")
    else:
        assert strictness.asked_by("b") is None


def test_who_asks_for_certain_is_named_before_what_is_damaged():
    assert Strictness(says={"b": True}, damaged=frozenset({"a"}), agent="a").asked_by("b") == "agent 'b'"


def test_nobody_answers_while_the_thread_may_have_another_agent():
    with pytest.raises(AgentUnsure):
        Strictness(agent="a", unsure=True).asked_by("a")
    assert Strictness(agent="a", unsure=True).of_thread("b") == Strictness(agent="b")


def test_what_holds_for_an_agent_is_null_where_something_damaged_decides():
    said = TenantSavePolicies(SavePolicy(True, MOMENT), {"a": SavePolicy(False, MOMENT)}, frozenset({"b"}))
    assert [said.effective(each) for each in (None, "a", "b", "c")] == [True, False, None, True]


def test_the_bytes_under_the_mac_are_those_of_the_format():
    fields = b"\x02\x00\x00\x00\x0bsave-policy\x04\x00\x00\x00\x10" + TENANT.bytes + b"\x03\x00\x00\x00\x01\x01"
    second = b"\x05\x00\x00\x00\x08" + (1_000_000).to_bytes(8, "big")
    assert save_policy_row(TENANT, "a", True, MOMENT).encoded(1) == (
        fields + b"\x02\x00\x00\x00\x01a\x03\x00\x00\x00\x01\x01" + second
    )
    assert save_policy_row(TENANT, "", False, MOMENT).encoded(1) == (
        fields + b"\x02\x00\x00\x00\x00" + b"\x03\x00\x00\x00\x01\x00" + second
    )
