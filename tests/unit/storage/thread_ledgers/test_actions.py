"""An action has one form, whatever wrote it down, and two actions never share one."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.thread_ledgers.actions import canonical

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
