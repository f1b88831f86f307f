"""Whose save policy asks a save to name the head it follows, and what a damaged one does."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from storage.access.save_rules import AgentUnsure, SaveRules
from storage.control.rows import save_policy_row
from storage.errors import IntegrityFailure
from storage.model import SaveRule
from storage.schemas.save_policies import SavePolicy, TenantSavePolicies

TENANT = UUID("00000000-0000-4000-8000-000000000001")
MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def strict(says):
    return {agent: SaveRule(strict=each) for agent, each in says.items()}


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
    assert SaveRules(says=strict(says), agent=thread).asked_by(named) == asking


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
    rules = SaveRules(says=strict(says), damaged=frozenset(damaged), agent="a")
    if refused:
        with pytest.raises(IntegrityFailure, match=r"save policy of .* outside the gateway"):
            rules.asked_by("b")
    else:
        assert rules.asked_by("b") is None


def test_who_asks_for_certain_is_named_before_what_is_damaged():
    assert SaveRules(says=strict({"b": True}), damaged=frozenset({"a"}), agent="a").asked_by("b") == "agent 'b'"


def test_nobody_answers_while_the_thread_may_have_another_agent():
    with pytest.raises(AgentUnsure):
        SaveRules(agent="a", unsure=True).asked_by("a")
    assert SaveRules(agent="a", unsure=True).of_thread("b") == SaveRules(agent="b")


def test_what_holds_for_an_agent_is_null_where_something_damaged_decides():
    said = TenantSavePolicies(
        SavePolicy(SaveRule(True), MOMENT), {"a": SavePolicy(SaveRule(False), MOMENT)}, frozenset({"b"})
    )
    assert [said.effective(each).strict for each in (None, "a", "b", "c")] == [True, False, None, True]


def test_the_bytes_under_the_mac_are_those_of_the_format():
    fields = b"\x02\x00\x00\x00\x0bsave-policy\x04\x00\x00\x00\x10" + TENANT.bytes + b"\x03\x00\x00\x00\x01\x01"
    second = b"\x05\x00\x00\x00\x08" + (1_000_000).to_bytes(8, "big")
    assert save_policy_row(TENANT, "a", SaveRule(strict=True), MOMENT).encoded(1) == (
        fields + b"\x02\x00\x00\x00\x01a\x03\x00\x00\x00\x01\x01" + second
    )
    assert save_policy_row(TENANT, "", SaveRule(strict=False), MOMENT).encoded(1) == (
        fields + b"\x02\x00\x00\x00\x00" + b"\x03\x00\x00\x00\x01\x00" + second
    )
    strict_and_lists = save_policy_row(TENANT, "a", SaveRule(True, 500, None), MOMENT)
    assert strict_and_lists.encoded(1) == (
        fields
        + b"\x02\x00\x00\x00\x01a\x03\x00\x00\x00\x01\x01"
        + second
        + b"\x03\x00\x00\x00\x02\x01\xf4"
        + b"\x00\x00\x00\x00\x00"
    )


@pytest.mark.parametrize(
    ("says", "thread", "named", "lists"),
    [
        ({}, "a", "a", (None, None)),
        ({"": (10, None)}, None, None, (10, None)),
        ({"": (10, 100), "a": (20, None)}, "a", None, (20, 100)),
        ({"": (10, 100), "a": (None, 50)}, "b", "a", (10, 50)),
        ({"a": (20, None), "b": (30, None)}, "a", "b", (30, None)),
        ({"a": (20, None)}, None, None, (None, None)),
    ],
)
def test_which_lists_are_long_the_agent_says_that_saves_and_else_the_tenant(says, thread, named, lists):
    rules = SaveRules(says={agent: SaveRule(None, *each) for agent, each in says.items()}, agent=thread)
    assert rules.lists_of(named) == lists


@pytest.mark.parametrize("damaged", ["", "a"])
def test_nobody_is_told_of_lists_by_a_policy_that_is_damaged(damaged):
    rules = SaveRules(says={"": SaveRule(compact_elements=10)}, damaged=frozenset({damaged}), agent="a")
    assert rules.lists_of("a") == (None, None)


def test_a_policy_that_speaks_of_lists_only_leaves_strictness_to_the_tenants():
    says = {"": SaveRule(strict=True), "a": SaveRule(compact_elements=10)}
    assert SaveRules(says=says, agent="a").asked_by("a") == "the tenant"
