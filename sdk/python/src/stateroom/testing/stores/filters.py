"""Cases about filters: which items a search finds by the members of their values.

Where LangGraph's own stores disagree, the cases are in ``differences``.
"""

from typing import Any, Final

from stateroom.testing.stores.trials import Cases, Trial, refused, same

cases: Final = Cases("filters")

_OPERATORS: Final[tuple[tuple[str, int, list[str]], ...]] = (
    ("$eq", 5, ["k5"]),
    ("$ne", 5, ["k1", "k9"]),
    ("$gt", 5, ["k9"]),
    ("$gte", 5, ["k5", "k9"]),
    ("$lt", 5, ["k1"]),
    ("$lte", 5, ["k1", "k5"]),
)


@cases.case()
async def members_must_be_equal(trial: Trial) -> None:
    """A filter finds what has the member with that value, of whatever kind."""
    values: dict[str, Any] = {
        "text": "x",
        "whole": 3,
        "broken": 0.5,
        "yes": True,
        "list": [1, 2],
        "odd": 'it\'s "100%" \\ _',
        "unicode": "日本語",
    }
    await trial.fill("a", **{name: {"v": value} for name, value in values.items()})
    for name, value in values.items():
        same(await trial.matching({"v": value}), [name], f"what has {value!r}")
    same(await trial.matching({"v": "nothing has this"}), [], "what has another value")
    same(await trial.matching({"w": "x"}), [], "what has another member")


@cases.case()
async def all_members_must_be_equal(trial: Trial) -> None:
    """Of several members, each must be so."""
    await trial.fill("a", one={"n": 1, "m": 1}, two={"n": 1, "m": 2}, three={"n": 2, "m": 1})
    same(await trial.matching({"n": 1}), ["one", "two"], "one member")
    same(await trial.matching({"n": 1, "m": 2}), ["two"], "both members")
    same(await trial.matching({"n": 2, "m": 2}), [], "members of two items")
    same(await trial.matching({}), ["one", "three", "two"], "no member")


@cases.case()
async def members_are_compared(trial: Trial) -> None:
    """There are $eq, $ne, $gt, $gte, $lt and $lte, and they compare numbers."""
    await trial.fill("a", k1={"n": 1}, k5={"n": 5}, k9={"n": 9})
    for operator, number, keys in _OPERATORS:
        same(await trial.matching({"n": {operator: number}}), keys, f"{operator} {number}")


@cases.case()
async def conditions_are_joined(trial: Trial) -> None:
    """Several operators of a member must all be met, beside other members."""
    await trial.fill("a", k1={"n": 1, "m": 1}, k5={"n": 5, "m": 1}, k9={"n": 9, "m": 2})
    same(await trial.matching({"n": {"$gt": 1, "$lt": 9}}), ["k5"], "between")
    same(await trial.matching({"n": {"$gte": 1, "$ne": 5}, "m": 1}), ["k1"], "with another member")


@cases.case()
async def unknown_operators_are_refused(trial: Trial) -> None:
    """An operator that there is none of is refused with ValueError, also where nothing would be compared."""
    await trial.fill("a", k={"n": 1})
    await refused(trial.matching({"n": {"$like": 1}}), ValueError, "$like")
    await refused(trial.matching({"n": {"$gt": 0, "$regex": "x"}}), ValueError, "$regex beside $gt")


@cases.case()
async def pages_are_of_what_matches(trial: Trial) -> None:
    """Limit and offset count what matches."""
    await trial.fill("a", **{f"k{number:02}": {"even": number % 2 == 0} for number in range(24)})
    pages = [await trial.keys("a", filter={"even": True}, limit=5, offset=offset) for offset in (0, 5, 10, 15)]
    same([len(each) for each in pages], [5, 5, 2, 0], "the sizes of pages")
    same(sorted(key for page in pages for key in page), [f"k{number:02}" for number in range(0, 24, 2)], "all pages")


@cases.case()
async def filters_stay_below_their_prefix(trial: Trial) -> None:
    """A filter finds only what stands below the path that is searched."""
    await trial.fill("a", one={"n": 1})
    await trial.fill("b", two={"n": 1})
    same(await trial.keys("a", filter={"n": 1}), ["one"], "what is found")


@cases.case()
async def names_of_members_mean_nothing(trial: Trial) -> None:
    """No character of a member's name means anything, but a first $."""
    names = ("a.b", "a b", "a'b", 'a"b', "a%b", "a\\b", "ключ", "", "*")
    await trial.fill("a", **{f"k{number}": {name: 1} for number, name in enumerate(names)})
    for number, name in enumerate(names):
        same(await trial.matching({name: 1}), [f"k{number}"], f"what has {name!r}")
