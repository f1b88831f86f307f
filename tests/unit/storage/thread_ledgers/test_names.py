"""Roots of namespaces, and what makes two calls the same."""

from uuid import UUID

import pytest

from storage.effects.intents import action_of, identity_of
from storage.effects.model import EFFECT_ARGS_VALUES_MAX, EffectStart
from storage.encoding import encode_msgpack
from storage.errors import InvalidState, LimitExceeded
from storage.format.thread_ledgers.names import root_of
from storage.scope import Scope

SCOPE = Scope(UUID(int=1), "user-1")


def wanted(args, *identity, raw=None):
    return EffectStart(
        thread_id="t1", namespace="", name="n", tool="pay", args=encode_msgpack(args) if raw is None else raw,
        identity=identity or ("",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("namespace", "root"),
    [
        ("", ""), ("planner", "planner"), ("node:1", ""), ("node:1|inner:2", ""), ("planner|node:1", "planner"),
        ("a|b", "a|b"), ("a|node:1|b", "a"),
    ],
)  # fmt: skip
def test_calls_count_for_their_root(namespace, root):
    assert root_of(namespace) == root


SAME = [
    ({"to": "bob", "n": 1}, {"n": 1.0, "to": "bob"}, ()),
    ({"to": "bob", "nonce": 1}, {"to": "bob", "nonce": 2}, ("/to",)),
    ({"to": "bob", "a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}, ("/a/0/b",)),
    ({"a/b": 1, "~": 2, "x": 1}, {"a/b": 1, "~": 2}, ("/a~1b", "/~0")),
    ({"to": "bob"}, {"to": "bob", "x": 1}, ("/to", "/cc")),
]
OTHER = [
    ({"to": "bob"}, {"to": "eve"}, ()),
    ({"to": "bob"}, {"to": "bob", "cc": None}, ("/to", "/cc")),  # absent is not null
    ({"to": "bob"}, {"to": "bob", "cc": None}, ()),
    ({"id": 2**53}, {"id": 2**53 + 1}, ("/id",)),
    ({"data": b"a"}, {"data": b"b"}, ()),
    ({"a": 1, "b": 2}, {"a": 2, "b": 1}, ("/a", "/b")),
]


@pytest.mark.parametrize(("one", "other", "identity"), SAME)
async def test_these_are_the_same(one, other, identity):
    assert await identity_of(wanted(one, *identity), SCOPE) == await identity_of(wanted(other, *identity), SCOPE)
    backwards = await identity_of(wanted(one, *reversed(identity or ("",))), SCOPE)
    assert backwards == await identity_of(wanted(one, *identity), SCOPE)


@pytest.mark.parametrize(("one", "other", "identity"), OTHER)
async def test_these_are_not(one, other, identity):
    assert await identity_of(wanted(one, *identity), SCOPE) != await identity_of(wanted(other, *identity), SCOPE)


async def test_other_pointers_are_another_identity():
    assert await identity_of(wanted({"a": 1}, "/a"), SCOPE) != await identity_of(wanted({"a": 1}), SCOPE)


async def test_what_has_no_form_or_too_many_values_is_refused():
    for args in (float("nan"), {1: 2}):
        with pytest.raises(InvalidState):
            await identity_of(wanted(args), SCOPE)
    for raw in (b"\xc1", b"", b"\x81", encode_msgpack({}) * 2):
        with pytest.raises(InvalidState):
            await identity_of(wanted(None, raw=raw), SCOPE)
    with pytest.raises(InvalidState):
        await identity_of(wanted(None, raw=b"\x91" * 900_000 + b"\xc0"), SCOPE)
    await identity_of(wanted([None] * (EFFECT_ARGS_VALUES_MAX - 1)), SCOPE)
    with pytest.raises(LimitExceeded):
        await identity_of(wanted([None] * EFFECT_ARGS_VALUES_MAX), SCOPE)
    with pytest.raises(LimitExceeded):
        await identity_of(wanted([None] * 1_000_000), SCOPE)


async def test_an_action_names_whose_it_is():
    assert await action_of(wanted({"n": 1}), SCOPE, None) == (
        b'{"agent":null,"args":{"n":1},"subject":"user-1","thread":"t1","tool":"pay","tool_digest":null,"v":1}'
    )
