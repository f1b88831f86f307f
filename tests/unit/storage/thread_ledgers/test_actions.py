"""An action has one form, whatever wrote it down, and two actions never share one."""

import hashlib
import math
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.thread_ledgers.actions import Action, action_hash, approval_hash, canonical
from tests.support.action_vectors import VECTORS, received

TABLE = [
    ({"b": 1, "a": [True, None, "\u20ac"]}, '{"a":[true,null,"\u20ac"],"b":1}'),
    ({"amount": 1200.0}, '{"amount":1200}'),
    ({"rate": 1e-7}, '{"rate":1e-7}'),
    (2**53 - 1, "9007199254740991"),
    (2**53, '{"$int":"9007199254740992"}'),
    (-(2**64), '{"$int":"-18446744073709551616"}'),
    (b"", '{"$bytes":{"sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}}'),
    ({"$int": "5"}, '{"$$int":"5"}'),
    ({"$$int": 5}, '{"$$$int":5}'),
    ({}, "{}"),
    ({"missing": None}, '{"missing":null}'),
    ("e\u0301", '"e\u0301"'),  # is not made one with the composed letter
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.binary(max_size=4)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "$int", "$bytes", "a"]), inner),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.parametrize(("value", "text"), TABLE)
def test_a_value_has_this_form(value, text):
    assert canonical(value).decode() == text


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, Decimal(1), "\ud800", {"\ud800": 1}, [object()]])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(ValueError, match=r"\w"):
        canonical(value)


ACTION = Action("pay", "ab" * 32, {"amount": 1200}, "t-1", "bank", "alice")


def test_the_hash_of_an_action_is_of_all_of_it():
    text = (
        '{"agent":"bank","args":{"amount":1200},"subject":"alice","thread":"t-1","tool":"pay",'
        f'"tool_digest":"{"ab" * 32}","v":1}}'
    )
    assert action_hash(ACTION) == hashlib.sha256(text.encode()).digest()
    others = [
        {"tool": "pays"}, {"tool_digest": None}, {"args": {"amount": 1500}}, {"args": {}}, {"thread_id": "t-2"},
        {"agent": None}, {"agent": ""}, {"subject_id": "bob"},
    ]  # fmt: skip
    hashes = {action_hash(ACTION), *(action_hash(msgspec.structs.replace(ACTION, **each)) for each in others)}
    assert len(hashes) == 1 + len(others)


def test_the_hash_of_an_approval_is_of_its_actions_in_their_order():
    one, other = bytes(32), bytes([1]) * 32
    hashes = [approval_hash(each) for each in ([one], [one, other], [other, one], [one, one], [])]
    assert len({*hashes, one}) == 6
    assert hashes[0] == hashlib.sha256(b"stateroom approval 1\0" + one).digest()


@pytest.mark.parametrize("vector", VECTORS["actions"], ids=lambda each: each["name"])
def test_the_published_vectors_hold(vector):
    args = received(vector["args"])
    members = {"v": 1, "args": args} | {
        key: vector[key] for key in ("tool", "tool_digest", "thread", "agent", "subject")
    }
    assert canonical(members).decode() == vector["canonical"]
    action = Action(vector["tool"], vector["tool_digest"], args, vector["thread"], vector["agent"], vector["subject"])
    assert action_hash(action).hex() == vector["sha256"]


def test_the_published_vectors_of_approvals_hold():
    hashes = {each["name"]: bytes.fromhex(each["sha256"]) for each in VECTORS["actions"]}
    for each in VECTORS["approvals"]:
        assert approval_hash([hashes[name] for name in each["actions"]]).hex() == each["sha256"]


@given(values, values)
def test_values_share_a_form_only_if_they_are_equal(one, other):
    if canonical(one) == canonical(other):
        assert _plain(one) == _plain(other)


def _plain(value):
    """A value by type and content; whole floats are integers."""
    match value:
        case bool() | None:
            return (type(value).__name__, value)
        case float() if value.is_integer() and abs(value) < 2**53:
            return ("number", int(value))
        case int() | float():
            return ("number", value)
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return (type(value).__name__, value)
