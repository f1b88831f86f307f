"""The SDK's hash of an action is the one of the format page, and what it sends has it at the gateway, too."""

import datetime as dt
import enum
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateroom import Action, action_hash, approval_hash, tool_digest
from stateroom._decisions.actions import canonical, plain
from storage.format.thread_ledgers import actions as gateways
from tests.support.action_vectors import VECTORS, read

AT = dt.datetime(2026, 11, 27, 15, 48, tzinfo=dt.UTC)
texts = st.sampled_from(["", "$int", "$bytes", "$decimal", "a", "\u20ac"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False) | st.decimals(allow_nan=False, allow_infinity=False)
    | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, min_size=2),
    max_leaves=6,
)  # fmt: skip


class Currency(enum.StrEnum):
    EUR = "EUR"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize("vector", VECTORS["actions"], ids=lambda each: each["name"])
def test_the_published_vectors_hold(vector):
    action = Action(
        tool=vector["tool"], args=read(vector["args"]), thread_id=vector["thread"], subject_id=vector["subject"],
        agent=vector["agent"], tool_digest=vector["tool_digest"],
    )  # fmt: skip
    assert action_hash(action).hex() == vector["sha256"]


def test_the_published_vectors_of_approvals_hold():
    hashes = {each["name"]: bytes.fromhex(each["sha256"]) for each in VECTORS["actions"]}
    for each in VECTORS["approvals"]:
        assert approval_hash([hashes[name] for name in each["actions"]]).hex() == each["sha256"]


@given(values)
def test_what_is_sent_has_the_same_form_at_the_gateway(value):
    assert gateways.canonical(plain(value)) == canonical(value)


def test_what_is_sent_is_plain():
    value = {
        "price": Decimal("12.50"),
        "on": AT.date(),
        "at": AT,
        "to": Currency.EUR,
        "level": Level.HIGH,
        "body": bytearray(b"x"),
        "rows": (1, 2),
    }
    sent = plain(value)
    assert sent == {
        "price": {"$decimal": "12.50"},
        "on": {"$date": "2026-11-27"},
        "at": {"$datetime": "2026-11-27T15:48:00+00:00"},
        "to": "EUR",
        "level": 3,
        "body": b"x",
        "rows": [1, 2],
    }
    assert [type(each) for each in (sent["to"], sent["level"], sent["body"])] == [str, int, bytes]


@pytest.mark.parametrize(
    "value",
    [math.nan, -math.inf, Decimal("NaN"), Decimal("Infinity"), {1: 2}, "\ud800", {"\ud800": 1}, [object()], {1, 2},
     {"$decimal": "1"}, {"$date": 5}, {"deeper": [{"$datetime": ""}]}],
)  # fmt: skip
def test_what_has_no_form_is_refused(value):
    with pytest.raises(ValueError, match=r"\w"):
        canonical(value)


def test_the_digest_of_a_tool_is_of_its_name_its_schema_and_its_version():
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    digests = {
        tool_digest("pay", schema),
        tool_digest("pays", schema),
        tool_digest("pay", {**schema, "required": ["amount"]}),
        tool_digest("pay", None),
        tool_digest("pay", schema, "2"),
        tool_digest("pay", schema, ""),
    }
    assert len(digests) == 6
    assert tool_digest("pay", dict(reversed(schema.items()))) in digests
