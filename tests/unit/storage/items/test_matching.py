"""Which paths a search is about, and the pages of what was found."""

import pytest

from storage.items import matching
from storage.items.model import PathSearch


@pytest.mark.parametrize(
    ("labels", "prefix", "suffix", "found"),
    [
        (("a", "b", "c"), (), (), True),
        (("a", "b", "c"), ("a",), (), True),
        (("a", "b", "c"), ("a", "b", "c"), (), True),
        (("a", "b", "c"), ("b",), (), False),
        (("a", "b", "c"), ("a", "b", "c", "d"), (), False),
        (("a", "b", "c"), ("ab",), (), False),
        (("a", "b", "c"), (), ("c",), True),
        (("a", "b", "c"), (), ("b", "c"), True),
        (("a", "b", "c"), (), ("b",), False),
        (("a", "b", "c"), (), ("z", "a", "b", "c"), False),
        (("a", "b", "c"), ("a", "b"), ("b", "c"), True),
        (("a", "b", "c"), ("a", "b"), ("a", "c"), False),
        (("a", "b", "c"), ("*",), (), True),
        (("a", "b", "c"), ("*", "b"), (), True),
        (("a", "b", "c"), ("a", "*", "c"), (), True),
        (("a", "b", "c"), (), ("*", "c"), True),
        (("a", "b", "c"), ("*", "*", "*"), (), True),
        (("a", "b", "c"), ("*", "*", "*", "*"), (), False),
        (("a", "b", "c"), (), ("*", "*", "*", "*"), False),
        (("a*", "b"), ("*",), (), True),
        (("ab", "c"), ("a*",), (), False),
        (("a*", "c"), ("a*",), (), True),
        (("a.b",), ("a",), (), False),
        (("a/b",), ("a",), (), False),
    ],
)
def test_a_path_begins_and_ends_as_it_should(labels, prefix, suffix, found):
    assert matching.matcher(PathSearch(prefix=prefix, suffix=suffix))(labels) is found


@pytest.mark.parametrize(
    ("prefix", "found"), [((), True), (("a",), True), (("a", "b"), True), (("*",), False), (("a", "b", "c"), False)]
)
def test_in_a_search_of_items_every_label_is_itself(prefix, found):
    assert matching.begins_with(("a", "b"), prefix) is found


PATHS = [("b",), ("a", "b"), ("a",), ("a", "a")]


@pytest.mark.parametrize(
    ("wanted", "shown", "after"),
    [
        ({}, [("a",), ("a", "a"), ("a", "b"), ("b",)], None),
        ({"limit": 3}, [("a",), ("a", "a"), ("a", "b")], ("a", "b")),
        ({"limit": 4}, [("a",), ("a", "a"), ("a", "b"), ("b",)], None),
        ({"limit": 2, "offset": 1}, [("a", "a"), ("a", "b")], ("a", "b")),
        ({"offset": 4}, [], None),
        ({"offset": 5}, [], None),
        ({"after": ("a", "a")}, [("a", "b"), ("b",)], None),
        ({"after": ("a", "a"), "limit": 1, "offset": 3}, [("a", "b")], ("a", "b")),  # it left out what it should
        ({"after": ("b",)}, [], None),
        ({"after": ("a", "0")}, [("a", "a"), ("a", "b"), ("b",)], None),  # what it names may be gone
    ],
)
def test_a_page_goes_on_where_the_one_before_ended(wanted, shown, after):
    page = matching.PathsPage(PathSearch(**wanted))
    for each in sorted(PATHS):
        if page.may_show(each):
            page.add(each)
    assert page.end() == (shown, after)


def test_paths_that_are_cut_are_told_once():
    page = matching.PathsPage(PathSearch(max_depth=1, limit=2))
    for each in [("a",), ("a", "a"), ("a", "b"), ("b", "x"), ("b", "y"), ("c",), ("d",)]:
        page.add(each)
    assert page.end() == ([("a",), ("b",)], ("b",))
    rest = matching.PathsPage(PathSearch(max_depth=1, limit=2, after=("b",)))
    assert [rest.may_show(each) for each in [("a", "z"), ("b", "z"), ("c", "a")]] == [False, False, True]
