"""Cases about items that are found by what they mean, by an embedding model that counts characters."""

from typing import Any, Final

from langgraph.store.base import PutOp

from stateroom.testing.stores.configs import ASKING, ASYNC_FUNCTION, FIELDS, FUNCTION, PLAIN, WHOLE
from stateroom.testing.stores.trials import Cases, Trial, holds, same

cases: Final = Cases("meaning")

_NEAR: Final = 1e-2  # what a store may lose where it keeps shorter numbers


async def _scores(trial: Trial, query: str, *labels: str, **options: Any) -> dict[str, float | None]:
    return {each.key: each.score for each in await trial.search(trial.path(*labels), query=query, **options)}


async def _is_found(trial: Trial, query: str, key: str) -> bool:
    """Whether an item has exactly the text of the query, which the score of its nearest vector tells."""
    score = (await _scores(trial, query)).get(key)
    return score is not None and score > 1 - _NEAR


@cases.case(FIELDS)
async def the_nearest_is_first(trial: Trial) -> None:
    """What is found comes in the order of its score, which is 1 for the same text and less for any other."""
    await trial.fill("a", exact={"title": "aaab"}, near={"title": "aabb"}, far={"title": "bbbc"}, no={"title": "zz"})
    found = await trial.search(trial.path("a"), query="aaab")
    same([each.key for each in found], ["exact", "near", "far", "no"], "the order")
    scores = [each.score for each in found if each.score is not None]
    same(len(scores), 4, "how many have a score")
    holds(abs(scores[0] - 1) < _NEAR, f"the score of the same text is 1, not {scores[0]}")
    holds(abs(scores[3]) < _NEAR, f"the score of what has nothing in common is 0, not {scores[3]}")
    holds(abs(scores[1] - 8 / (10 * 8) ** 0.5) < _NEAR, f"the score is the cosine, not {scores[1]}")


@cases.case(WHOLE)
async def whole_values_are_indexed(trial: Trial) -> None:
    """An index without fields is over each value as a whole."""
    await trial.fill("a", one={"any": "aaaaaaaaaaaaaaa"}, two={"thing": ["zzzzzzzzzzzzzzz"]})
    same(await trial.keys("a", query="aaaaaaaaaaaaaaa", limit=1), ["one"], "the nearest of one")
    same(await trial.keys("a", query="zzzzzzzzzzzzzzz", limit=1), ["two"], "the nearest of the other")


@cases.case(WHOLE)
async def whole_values_are_json(trial: Trial) -> None:
    """A value as a whole is its JSON with sorted names, and nothing escaped."""
    await trial.fill("a", k={"b": "é", "a": 1})
    holds(await _is_found(trial, '{"a": 1, "b": "é"}', "k"), "the value's JSON is what is embedded")


@cases.case(FIELDS)
async def fields_of_the_index_are_found(trial: Trial) -> None:
    """The fields that the index names are embedded, each element of a list by itself, and nothing else."""
    await trial.fill("a", k={"title": "aaa", "notes": [{"text": "bbb"}, {"text": "ccc"}], "other": "zzz"})
    for text in ("aaa", "bbb", "ccc"):
        holds(await _is_found(trial, text, "k"), f"{text} is found")
    holds(not await _is_found(trial, "zzz", "k"), "what is in no field is not found")


@cases.case(FIELDS)
async def fields_of_a_put_are_found(trial: Trial) -> None:
    """A put names its own fields, in every way that LangGraph has, in the place of the index's."""
    value = {"title": "ttt", "a": {"b": "abab"}, "list": ["first", "mid", "xyz"], "m": {"p": "ppp", "q": "qqq"}}
    wanted = {
        "a.b": ["abab"],
        "list[0]": ["first"],
        "list[-1]": ["xyz"],
        "list[*]": ["first", "mid", "xyz"],
        "m.*": ["ppp", "qqq"],
        "{title,m.p}": ["ttt", "ppp"],
    }
    for number, (field, texts) in enumerate(wanted.items()):
        key = f"k{number}"
        await trial.put(trial.path(), key, value, index=[field])
        for text in texts:
            holds(await _is_found(trial, text, key), f"{text} is found by {field}")
        for text in {"ttt", "abab", "first", "mid", "xyz", "ppp", "qqq"} - {*texts}:
            holds(not await _is_found(trial, text, key), f"{text} is not found by {field}")


@cases.case(FIELDS)
async def the_whole_is_a_field(trial: Trial) -> None:
    """A put may name $, the value as a whole."""
    await trial.put(trial.path(), "k", {"a": 1}, index=["$"])
    holds(await _is_found(trial, '{"a": 1}', "k"), "the value's JSON is found")


@cases.case(FIELDS)
async def the_best_of_several_texts_counts(trial: Trial) -> None:
    """An item with several texts is found once, by the nearest of them."""
    await trial.fill("a", many={"notes": [{"text": "aaa"}, {"text": "zzz"}]}, one={"notes": [{"text": "aaz"}]})
    found = await _scores(trial, "aaa", "a")
    same([*found], ["many", "one"], "what is found, once each")
    holds(abs((found["many"] or 0) - 1) < _NEAR, "its score is that of its nearest text")


@cases.case(FIELDS)
async def texts_may_repeat(trial: Trial) -> None:
    """The same text twice in an item, or in two puts of a batch, is no matter."""
    await trial.fill("a", k={"title": "aaa", "notes": [{"text": "aaa"}, {"text": "aaa"}]})
    await trial.batch([PutOp(trial.path("a"), key, {"title": "bbb"}) for key in ("one", "two")])
    same(await trial.keys("a", query="aaa", limit=1), ["k"], "the nearest of one")
    same(sorted(await trial.keys("a", query="bbb", limit=2)), ["one", "two"], "the nearest of the other")


@cases.case(FIELDS)
async def index_false_is_not_found(trial: Trial) -> None:
    """What was put with index=False has no score in a search with a query, and is found without one."""
    await trial.put(trial.path(), "unindexed", {"title": "aaa"}, index=False)
    await trial.put(trial.path(), "indexed", {"title": "aab"})
    same((await _scores(trial, "aaa")).get("unindexed"), None, "the score of what is not indexed")
    same(sorted(await trial.keys()), ["indexed", "unindexed"], "what is found without a query")


@cases.case(FIELDS)
async def queries_are_filtered(trial: Trial) -> None:
    """A filter and a prefix hold beside a query, however near anything else is."""
    await trial.fill("a", one={"title": "aaa", "n": 1}, two={"title": "aab", "n": 2}, three={"title": "abb", "n": 2})
    await trial.fill("b", four={"title": "aaa", "n": 2})
    same(await trial.keys("a", query="aaa", filter={"n": 2}), ["two", "three"], "what is found")
    same(await trial.keys("a", query="aaa", filter={"n": {"$gt": 1}}, limit=1), ["two"], "the nearest of them")
    same(await trial.keys("c", query="aaa"), [], "what is found where nothing is")


@cases.case(FIELDS)
async def what_was_deleted_is_not_found(trial: Trial) -> None:
    """What was deleted, or put with another text, is not found by the text it had."""
    await trial.fill("a", gone={"title": "aaa"}, changed={"title": "aaa"})
    await trial.delete(trial.path("a"), "gone")
    await trial.fill("a", changed={"title": "zzz"})
    found = await _scores(trial, "aaa", "a")
    same([*found], ["changed"], "what is found")
    holds(abs(found["changed"] or 0) < _NEAR, "the score is that of the text it has now")


@cases.case(FIELDS)
async def texts_of_any_script_are_found(trial: Trial) -> None:
    """Texts of any script are embedded as they are."""
    await trial.fill("a", one={"title": "日本語"}, two={"title": "🗝🗝"})
    same(await trial.keys("a", query="日本語", limit=1), ["one"], "the nearest of one")
    same(await trial.keys("a", query="🗝🗝", limit=1), ["two"], "the nearest of the other")


@cases.case(FUNCTION)
async def the_model_may_be_a_function(trial: Trial) -> None:
    """A function of texts is a model."""
    await trial.fill("a", one={"text": "aaa"}, two={"text": "bbb"})
    same(await trial.keys("a", query="bbb", limit=1), ["two"], "the nearest")


@cases.case(ASYNC_FUNCTION)
async def the_model_may_be_an_asynchronous_function(trial: Trial) -> None:
    """An asynchronous function of texts is a model of the asynchronous methods."""
    if trial.calls.name == "blocking":
        await trial.put(trial.path("a"), "unindexed", {"text": "aaa"}, index=False)
        same(await trial.keys("a"), ["unindexed"], "what needs no model")
        return
    await trial.fill("a", one={"text": "aaa"}, two={"text": "bbb"})
    same(await trial.keys("a", query="bbb", limit=1), ["two"], "the nearest")


@cases.case(ASKING)
async def queries_are_embedded_as_queries(trial: Trial) -> None:
    """A query is embedded by what the model has for queries, which may be another vector than of a text."""
    await trial.fill("a", question={"text": "ABC?"}, answer={"text": "cba"})
    same(await trial.keys("a", query="ABC?", limit=1), ["answer"], "the nearest")


@cases.case(PLAIN)
async def without_an_index_queries_are_passed_over(trial: Trial) -> None:
    """A store without an index finds the same with a query and without, and no scores."""
    await trial.fill("a", one={"title": "aaa"}, two={"title": "bbb"})
    await trial.put(trial.path("a"), "three", {"title": "ccc"}, index=["title"])
    found = await _scores(trial, "aaa", "a", filter={"title": {"$ne": "bbb"}})
    same(dict(sorted(found.items())), {"one": None, "three": None}, "what is found")
