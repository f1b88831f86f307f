"""Cases where LangGraph's own stores, in memory and on PostgreSQL, do not agree, and what is right.

Each is a difference that was seen with langgraph-checkpoint 4.3 and langgraph-checkpoint-postgres 3.2; the reference
run of this project notes which of the two does which.
"""

import math
from typing import Final

from stateroom.testing.stores.configs import FIELDS, TIMED
from stateroom.testing.stores.trials import Cases, Trial, holds, refused, same, there

cases: Final = Cases("differences")

_MINUTE: Final = 60.0


@cases.case()
async def the_last_changed_is_first(trial: Trial) -> None:
    """Without a query, what was changed last is found first."""
    await trial.fill("a", one={}, two={}, three={})
    await trial.fill("b", four={})
    await trial.fill("a", one={"again": True})
    same(await trial.keys(), ["one", "four", "three", "two"], "the order")
    same(await trial.keys(limit=2, offset=1), ["four", "three"], "a page of it")


@cases.case()
async def what_is_missing_is_not_greater(trial: Trial) -> None:
    """A member that is not there is neither greater nor less than anything."""
    await trial.fill("a", there={"n": 5}, missing={}, null={"n": None})
    same(await trial.matching({"n": {"$gt": 1}}), ["there"], "$gt")
    same(await trial.matching({"n": {"$lte": 9}}), ["there"], "$lte")


@cases.case()
async def numbers_are_compared_as_numbers(trial: Trial) -> None:
    """Numbers are compared with numbers, texts with texts, and neither with the other."""
    await trial.fill("a", nine={"n": 9}, ten={"n": 10}, half={"n": 9.5}, text={"n": "s"})
    same(await trial.matching({"n": {"$gt": 9}}), ["half", "ten"], "what is greater than 9")
    same(await trial.matching({"n": {"$lt": 10}}), ["half", "nine"], "what is less than 10")
    same(await trial.matching({"n": {"$gt": "a"}}), ["text"], "what is after a")


@cases.case()
async def what_is_missing_is_not_unequal(trial: Trial) -> None:
    """A member that is not there is not unequal to anything."""
    await trial.fill("a", same={"n": 1}, other={"n": 2}, missing={})
    same(await trial.matching({"n": {"$ne": 1}}), ["other"], "what is unequal")


@cases.case()
async def null_is_not_missing(trial: Trial) -> None:
    """A filter for None finds null, and not what has no such member."""
    await trial.fill("a", null={"n": None}, missing={}, one={"n": 1})
    same(await trial.matching({"n": None}), ["null"], "what is null")


@cases.case()
async def filters_look_into_maps(trial: Trial) -> None:
    """A filter of a filter looks into the member's own members, and at those that it names only."""
    await trial.fill("a", k={"m": {"n": 1, "more": 2}}, other={"m": {"n": 2}}, none={"m": 1}, missing={})
    same(await trial.matching({"m": {"n": 1}}), ["k"], "what is equal")
    same(await trial.matching({"m": {"n": {"$gte": 1}}}), ["k", "other"], "what is compared")


@cases.case(FIELDS)
async def queries_leave_out_what_has_no_vector(trial: Trial) -> None:
    """A search with a query does not find what was not indexed, or has no text in the index's fields."""
    await trial.put(trial.path(), "unindexed", {"title": "aaa"}, index=False)
    await trial.put(trial.path(), "without", {"other": "aaa"})
    await trial.put(trial.path(), "indexed", {"title": "zzz"})
    same(await trial.keys(query="aaa"), ["indexed"], "what is found")


@cases.case(FIELDS)
async def a_put_replaces_all_vectors(trial: Trial) -> None:
    """After a put without an index, or of fewer fields, an item is not found by what it said before."""
    await trial.put(trial.path(), "fewer", {"title": "aaa", "notes": [{"text": "zzz"}, {"text": "yyy"}]})
    await trial.put(trial.path(), "fewer", {"title": "bbb", "notes": [{"text": "yyy"}]}, index=["title"])
    await trial.put(trial.path(), "unindexed", {"title": "aaa"})
    await trial.put(trial.path(), "unindexed", {"title": "bbb"}, index=False)
    for text in ("aaa", "zzz", "yyy"):
        scores = [each.score or 0 for each in await trial.search(trial.path(), query=text)]
        holds(all(score < 0.5 for score in scores), f"nothing is found by {text}, which was replaced")
    same(await trial.keys(query="bbb", limit=1), ["fewer"], "what is found by what it says now")


@cases.case(FIELDS)
async def query_pages_are_full(trial: Trial) -> None:
    """Pages of a search with a query are as full as those without, and have everything once, by several texts, too."""
    notes = [{"text": text} for text in ("abb", "aabb", "aaabb")]
    await trial.fill("a", **{f"k{number}": {"title": "a" * number + "b", "notes": notes} for number in range(60)})
    pages = [await trial.keys("a", query="ab", limit=10, offset=offset) for offset in range(0, 70, 10)]
    same([len(each) for each in pages], [10, 10, 10, 10, 10, 10, 0], "the sizes of pages")
    same(len({key for page in pages for key in page}), 60, "how many there are")


@cases.case()
async def created_at_is_kept(trial: Trial) -> None:
    """A put in the place of another keeps when the item was created; one after a delete does not."""
    await trial.fill("a", k={"n": 1})
    first = there(await trial.get(trial.path("a"), "k"))
    await trial.fill("a", k={"n": 2})
    second = there(await trial.get(trial.path("a"), "k"))
    same(second.created_at, first.created_at, "when it was created")
    holds(second.updated_at > first.updated_at, "it was changed later")
    await trial.delete(trial.path("a"), "k")
    await trial.fill("a", k={"n": 3})
    holds(there(await trial.get(trial.path("a"), "k")).created_at > first.created_at, "it was created anew")


@cases.case()
async def negative_pages_are_refused(trial: Trial) -> None:
    """A limit or an offset below 0 is refused."""
    await trial.fill("a", one={}, two={})
    await refused(trial.search(trial.path("a"), limit=-1), what="a negative limit of a search")
    await refused(trial.search(trial.path("a"), offset=-1), what="a negative offset of a search")
    await refused(trial.namespaces(prefix=trial.path(), limit=-1), what="a negative limit of a list")
    await refused(trial.namespaces(prefix=trial.path(), offset=-1), what="a negative offset of a list")


@cases.case()
async def nul_is_a_character(trial: Trial) -> None:
    """A text with the character NUL comes back as it was."""
    await trial.fill("a", k={"text": "a\x00b", "\x00": [1]})
    same(there(await trial.get(trial.path("a"), "k")).value, {"text": "a\x00b", "\x00": [1]}, "the value")


@cases.case()
async def no_number_is_a_number(trial: Trial) -> None:
    """NaN and the infinities come back as they were."""
    await trial.fill("a", k={"nan": math.nan, "inf": [math.inf, -math.inf]})
    found = there(await trial.get(trial.path("a"), "k")).value
    holds(math.isnan(found["nan"]), "NaN is not a number")
    same(found["inf"], [math.inf, -math.inf], "the infinities")


@cases.case()
async def a_path_may_be_a_list(trial: Trial) -> None:
    """Where items are put, got and deleted, a path may be a list of labels; what is returned has a tuple."""
    path = [*trial.path("a")]
    await trial.put(path, "k", {"n": 1})
    found = there(await trial.get(path, "k"))
    same((found.namespace, found.value), (trial.path("a"), {"n": 1}), "what is got")
    await trial.delete(path, "k")
    same(await trial.get(trial.path("a"), "k"), None, "what was deleted")


@cases.case()
async def a_prefix_may_be_a_list(trial: Trial) -> None:
    """Where items are searched and paths are listed, a prefix may be a list of labels."""
    await trial.fill("a", k={"n": 1})
    found = await trial.search([*trial.path()])
    same([(each.namespace, each.key) for each in found], [(trial.path("a"), "k")], "what is found")
    same(await trial.namespaces(prefix=[*trial.path()]), [trial.path("a")], "what is listed")


@cases.case()
async def filters_are_joined(trial: Trial) -> None:
    """There are $and, $or and $in, as the Agent Server's filters have them; what is none of these is refused."""
    await trial.fill("a", one={"n": 1, "m": 1}, two={"n": 2, "m": 1}, three={"n": 3, "m": 2})
    same(await trial.matching({"$and": [{"n": {"$gt": 1}}, {"m": 1}]}), ["two"], "$and")
    same(await trial.matching({"$or": [{"n": 1}, {"m": 2}]}), ["one", "three"], "$or")
    same(await trial.matching({"n": {"$in": [1, 3, "x"]}}), ["one", "three"], "$in")
    same(await trial.matching({"m": 1, "$or": [{"n": 1}, {"$and": [{"n": 2}]}]}), ["one", "two"], "one in another")
    await refused(trial.matching({"$nor": [{"n": 1}]}), ValueError, "$nor")


@cases.case(TIMED, needs_time=True)
async def what_is_over_is_never_returned(trial: Trial) -> None:
    """What is over is not got, found or listed, whether or not anybody removed it."""
    await trial.put(trial.path("a"), "k", {"n": 1}, ttl=1)
    await trial.put(trial.path("b"), "k", {"n": 2}, ttl=None)
    await trial.advance(2 * _MINUTE)
    same(await trial.get(trial.path("a"), "k"), None, "what is got")
    same([each.value for each in await trial.search(trial.path())], [{"n": 2}], "what is found")
    same(await trial.listed(), [("b",)], "what is listed")
