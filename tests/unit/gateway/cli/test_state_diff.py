import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.state_diff import ABSENT, Change, differences, same

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0]) | st.text("ab/~", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=4),
    max_leaves=12,
)


def changes(before: Any, after: Any) -> list[tuple[str, str]]:
    return [(change.kind, change.path) for change in differences(before, after)]


def lookup(document: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def test_an_appended_message_is_the_only_difference():
    before = {"messages": [{"text": "hi"}], "step": 1}
    after = {"messages": [{"text": "hi"}, {"text": "there"}], "step": 1}
    assert list(differences(before, after)) == [Change("/messages/1", "added", ABSENT, {"text": "there"})]


def test_an_element_inserted_in_front_does_not_change_the_others():
    assert changes(["b", "c", "d"], ["a", "b", "c", "d"]) == [("added", "/0")]


def test_an_element_removed_from_the_middle_is_the_only_difference():
    assert changes(["a", "b", "c"], ["a", "c"]) == [("removed", "/1")]


def test_a_change_deep_inside_is_named_by_its_own_path():
    assert changes({"a": [{"b": {"c": 1}}]}, {"a": [{"b": {"c": 2}}]}) == [("changed", "/a/0/b/c")]


def test_null_is_a_value_and_absence_is_not():
    assert changes({"a": None}, {}) == [("removed", "/a")]
    assert changes({}, {"a": None}) == [("added", "/a")]
    assert changes({"a": None}, {"a": 0}) == [("changed", "/a")]


def test_one_true_and_one_point_zero_are_three_values():
    assert changes({"a": 1}, {"a": True}) == [("changed", "/a")]
    assert changes({"a": 1}, {"a": 1.0}) == [("changed", "/a")]
    assert changes([0], [False]) == [("changed", "/0")]


def test_a_value_that_becomes_another_kind_is_one_change():
    assert changes({"a": {"b": 1}}, {"a": [1]}) == [("changed", "/a")]


def test_slashes_and_tildes_in_names_are_escaped():
    assert changes({}, {"a/b~c": 1}) == [("added", "/a~1b~0c")]


@given(JSON)
def test_equal_states_have_no_difference(state):
    assert list(differences(state, copy.deepcopy(state))) == []


@given(JSON, JSON)
def test_every_difference_holds_the_values_that_stand_at_its_path(before, after):
    found = list(differences(before, after))
    assert bool(found) == (not same(before, after))
    for change in found:
        if change.before is not ABSENT:
            assert same(lookup(before, change.path), change.before)
        if change.kind == "added":
            assert same(lookup(after, change.path), change.after)


@given(JSON, JSON)
def test_the_other_direction_has_the_mirrored_differences(before, after):
    mirrored = {"added": "removed", "removed": "added", "changed": "changed"}
    there = sorted(change.kind for change in differences(before, after))
    back = sorted(mirrored[change.kind] for change in differences(after, before))
    assert there == back
