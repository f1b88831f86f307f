"""Cases about listing the paths that there are items under."""

from typing import Final

from langgraph.store.base import ListNamespacesOp, MatchCondition

from stateroom.testing.stores.trials import Cases, Path, Trial, same

cases: Final = Cases("namespaces")

_PATHS: Final[tuple[Path, ...]] = (
    ("a",),
    ("a", "b", "c"),
    ("a", "b", "d", "e"),
    ("a", "b", "d", "i"),
    ("a", "b", "f"),
    ("a", "c", "f"),
    ("ab", "b"),
    ("b", "b", "f"),
)


async def _filled(trial: Trial) -> None:
    for each in _PATHS:
        await trial.fill(*each, k={}, other={})


@cases.case()
async def every_path_is_listed_once(trial: Trial) -> None:
    """Each path that has items is listed once, in one order."""
    await _filled(trial)
    same(await trial.listed(), [*_PATHS], "the paths")


@cases.case()
async def prefixes_are_labels(trial: Trial) -> None:
    """A prefix is compared label by label, and the path that is the prefix is listed, too."""
    await _filled(trial)
    same(await trial.listed(prefix=("a",)), [each for each in _PATHS if each[0] == "a"], "below a")
    same(await trial.listed(prefix=("a", "b", "f")), [("a", "b", "f")], "the path itself")
    same(await trial.listed(prefix=("a", "b", "f", "g")), [], "below nothing")


@cases.case()
async def suffixes_are_labels(trial: Trial) -> None:
    """A suffix is compared label by label from the end, and joined with a prefix."""
    await _filled(trial)
    same(await trial.listed(suffix=("f",)), [each for each in _PATHS if each[-1] == "f"], "what ends with f")
    same(await trial.listed(suffix=("b", "f")), [("a", "b", "f"), ("b", "b", "f")], "what ends with b, f")
    same(await trial.listed(prefix=("a",), suffix=("f",)), [("a", "b", "f"), ("a", "c", "f")], "in a, with f")
    same(await trial.listed(suffix=("x", "a", "b", "c", "d", "e")), [], "what ends with more than there is")


@cases.case()
async def a_star_is_one_label(trial: Trial) -> None:
    """In a prefix or a suffix, * stands for exactly one label, whichever."""
    await _filled(trial)
    same(await trial.listed(prefix=("a", "*", "f")), [("a", "b", "f"), ("a", "c", "f")], "in the middle of a prefix")
    same(await trial.listed(prefix=("*", "b")), [each for each in _PATHS if each[1:2] == ("b",)], "at its beginning")
    same(await trial.listed(prefix=("a", "*", "*", "*")), [each for each in _PATHS if len(each) == 4], "three of them")
    same(await trial.listed(suffix=("d", "*")), [("a", "b", "d", "e"), ("a", "b", "d", "i")], "at the end of a suffix")
    same(await trial.listed(suffix=("b", "*")), [("a", "b", "c"), ("a", "b", "f"), ("b", "b", "f")], "exactly one")


@cases.case()
async def longer_paths_are_cut(trial: Trial) -> None:
    """Paths are cut to as many labels as are asked for, and told once then."""
    await _filled(trial)
    same(await trial.listed(max_depth=2), [("a",), ("ab",), ("b",)], "one label and the run's own")
    same(
        await trial.listed(prefix=("a", "b"), max_depth=4),
        [("a", "b", "c"), ("a", "b", "d"), ("a", "b", "f")],
        "three labels",
    )
    same(await trial.listed(max_depth=10), [*_PATHS], "more labels than there are")


@cases.case()
async def lists_have_pages(trial: Trial) -> None:
    """Limit and offset count paths as they are told, in one order for all pages."""
    await _filled(trial)
    pages = [await trial.listed(limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    same([len(each) for each in pages], [3, 3, 2, 0], "the sizes of pages")
    same([path for page in pages for path in page], [*_PATHS], "all pages")
    same(await trial.listed(limit=2, offset=1, max_depth=2), [("ab",), ("b",)], "a page of cut paths")


@cases.case()
async def conditions_on_paths_are_joined(trial: Trial) -> None:
    """A path must meet all conditions of an operation, also several of one kind."""
    await _filled(trial)
    conditions = (
        MatchCondition("prefix", trial.path("a")),
        MatchCondition("prefix", ("*", "*", "b")),
        MatchCondition("suffix", ("f",)),
        MatchCondition("suffix", ("*", "*")),
    )
    same(await trial.batch([ListNamespacesOp(conditions)]), [[trial.path("a", "b", "f")]], "what meets all")
    both = (MatchCondition("prefix", trial.path("a")), MatchCondition("prefix", trial.path("b")))
    same(await trial.batch([ListNamespacesOp(both)]), [[]], "what would have to begin with two labels")


@cases.case()
async def paths_without_items_are_not_listed(trial: Trial) -> None:
    """A path whose last item was deleted, or that has items only below it, is not listed."""
    await trial.fill("a", k={})
    await trial.fill("a", "b", k={}, other={})
    await trial.delete(trial.path("a"), "k")
    await trial.delete(trial.path("a", "b"), "k")
    same(await trial.listed(), [("a", "b")], "what has items")
    await trial.get(trial.path("read", "only"), "k")
    same(await trial.listed(), [("a", "b")], "what was read, but never put")
