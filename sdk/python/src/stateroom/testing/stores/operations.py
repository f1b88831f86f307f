"""Cases about single items: what is put is there, as it was put and where it was put, until it is deleted."""

import asyncio
from datetime import datetime
from typing import Any, Final

from langgraph.store.base import InvalidNamespaceError, Item, PutOp, SearchItem

from stateroom.testing.stores.trials import Cases, Trial, holds, refused, same, there

cases: Final = Cases("operations")

_ODD_NAMES: Final = ("a b", "a/b", "a,b", "%", "_", "*", "~", "'; --", "ключ", "鍵", "🗝", "e\u0301")


@cases.case()
async def put_is_got(trial: Trial) -> None:
    """What was put is got, with its path, its key and two times that have a zone."""
    await trial.put(trial.path("a", "b"), "k", {"text": "hello"})
    found = there(await trial.get(trial.path("a", "b"), "k"))
    holds(isinstance(found, Item), "an item is an Item")
    same((found.namespace, found.key, found.value), (trial.path("a", "b"), "k", {"text": "hello"}), "the item")
    for moment in (found.created_at, found.updated_at):
        holds(isinstance(moment, datetime) and moment.tzinfo is not None, "its times have a zone")
    holds(found.created_at <= found.updated_at, "it was created before it was changed")


@cases.case()
async def nothing_is_none(trial: Trial) -> None:
    """A key or a path that nothing was put under has None."""
    await trial.fill("a", k={})
    there(await trial.get(trial.path("a"), "k"))
    same(await trial.get(trial.path("a"), "other"), None, "another key")
    same(await trial.get(trial.path("b"), "k"), None, "another path")
    same(await trial.get(trial.path(), "k"), None, "the path above")
    same(await trial.search(trial.path("b")), [], "a search in another path")


@cases.case()
async def put_replaces_the_whole_value(trial: Trial) -> None:
    """A second put replaces the value whole, and later says so."""
    await trial.fill("a", k={"one": 1, "two": 2})
    before = there(await trial.get(trial.path("a"), "k")).updated_at
    await trial.fill("a", k={"two": 3})
    found = there(await trial.get(trial.path("a"), "k"))
    same(found.value, {"two": 3}, "the value")
    holds(found.updated_at > before, "it was changed later")
    same(await trial.keys("a"), ["k"], "the keys")


@cases.case()
async def deleted_is_gone(trial: Trial) -> None:
    """What was deleted is got, searched and listed no more; and can be put anew."""
    await trial.fill("a", k={"n": 1}, other={"n": 2})
    await trial.delete(trial.path("a"), "k")
    same(await trial.get(trial.path("a"), "k"), None, "what was deleted")
    same(await trial.keys("a"), ["other"], "what is found")
    await trial.fill("a", k={"n": 3})
    same(there(await trial.get(trial.path("a"), "k")).value, {"n": 3}, "what was put anew")


@cases.case()
async def nothing_is_deleted_without_an_error(trial: Trial) -> None:
    """Deleting what is not there is no error."""
    await trial.delete(trial.path("a"), "k")
    await trial.delete(trial.path("a"), "k")
    same(await trial.get(trial.path("a"), "k"), None, "what was never there")


@cases.case()
async def put_of_none_deletes(trial: Trial) -> None:
    """A put operation without a value deletes."""
    await trial.fill("a", k={"n": 1})
    there(await trial.get(trial.path("a"), "k"))
    same(await trial.batch([PutOp(trial.path("a"), "k", None)]), [None], "its result")
    same(await trial.get(trial.path("a"), "k"), None, "what was deleted")


@cases.case()
async def one_key_in_two_paths_is_two_items(trial: Trial) -> None:
    """Items of one key in two paths do not know each other."""
    await trial.fill("a", k={"in": "a"})
    await trial.fill("a", "b", k={"in": "a, b"})
    await trial.delete(trial.path("a"), "k")
    same(await trial.get(trial.path("a"), "k"), None, "what was deleted")
    same(there(await trial.get(trial.path("a", "b"), "k")).value, {"in": "a, b"}, "the other")


@cases.case()
async def keys_become_text(trial: Trial) -> None:
    """A key that is no text is what str() makes of it."""
    await trial.put(trial.path("a"), 7, {"n": 7})
    same(there(await trial.get(trial.path("a"), "7")).key, "7", "the key")
    same(there(await trial.get(trial.path("a"), 7)).value, {"n": 7}, "the value")
    await trial.delete(trial.path("a"), 7)
    same(await trial.get(trial.path("a"), "7"), None, "what was deleted")


@cases.case()
async def the_empty_key_is_a_key(trial: Trial) -> None:
    """The empty text is a key like others."""
    await trial.fill("a", other={"n": 2})
    await trial.put(trial.path("a"), "", {"n": 1})
    same(there(await trial.get(trial.path("a"), "")).value, {"n": 1}, "the value")
    same(sorted(await trial.keys("a")), ["", "other"], "the keys")
    await trial.delete(trial.path("a"), "")
    same(await trial.keys("a"), ["other"], "the keys that are left")


@cases.case()
async def keys_mean_nothing(trial: Trial) -> None:
    """No character of a key means anything, and keys are told apart exactly."""
    names = (*_ODD_NAMES, "a.b", ".", "..", "K", "k", " k", "k" * 255)
    for number, key in enumerate(names):
        await trial.put(trial.path("a"), key, {"n": number})
    for number, key in enumerate(names):
        found = there(await trial.get(trial.path("a"), key), repr(key))
        same((found.key, found.value), (key, {"n": number}), repr(key))


@cases.case()
async def labels_mean_nothing(trial: Trial) -> None:
    """No character of a label means anything where items are put and searched."""
    for number, label in enumerate(_ODD_NAMES):
        await trial.put(trial.path(label, "x"), "k", {"n": number})
    for number, label in enumerate(_ODD_NAMES):
        same(there(await trial.get(trial.path(label, "x"), "k"), repr(label)).value, {"n": number}, repr(label))
        found = await trial.search(trial.path(label))
        same([(each.namespace, each.value["n"]) for each in found], [(trial.path(label, "x"), number)], repr(label))


@cases.case()
async def prefixes_are_labels_and_not_text(trial: Trial) -> None:
    """A search finds what stands at its path and below, and not what merely begins with the same text."""
    for labels in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a b",), ("b", "a"), ("A",)):
        await trial.put(trial.path(*labels), ".".join(labels), {})
    same(sorted(await trial.keys("a")), ["a", "a.b", "a.b.c"], "below a")
    same(sorted(await trial.keys("a", "b")), ["a.b", "a.b.c"], "below a, b")
    same(await trial.keys("a", "b", "c", "d"), [], "below nothing")
    same(len(await trial.search(trial.path())), 7, "below all")


@cases.case()
async def paths_may_be_deep(trial: Trial) -> None:
    """A path has as many labels as it needs; twelve at least."""
    labels = [f"l{number}" for number in range(11)]
    await trial.fill(*labels, k={"n": 1})
    same(there(await trial.get(trial.path(*labels), "k")).namespace, trial.path(*labels), "the path")
    same(await trial.keys(*labels[:6]), ["k"], "what is found above")


@cases.case()
async def bad_paths_are_refused(trial: Trial) -> None:
    """A label that is empty, no text or has a dot is refused, as is an empty path or LangGraph's own to put to."""
    bad: tuple[Any, ...] = (trial.path("a.b"), trial.path(""), (trial.root, 1))
    for path in bad:
        await refused(trial.put(path, "k", {}), InvalidNamespaceError, f"a put to {path[1:]}")
        await refused(trial.get(path, "k"), InvalidNamespaceError, f"a get of {path[1:]}")
        await refused(trial.delete(path, "k"), InvalidNamespaceError, f"a delete in {path[1:]}")
        await refused(trial.search(path), InvalidNamespaceError, f"a search in {path[1:]}")
        await refused(trial.namespaces(prefix=path), InvalidNamespaceError, f"a list below {path[1:]}")
    await refused(trial.put((), "k", {}), InvalidNamespaceError, "a put to no path")
    await refused(trial.put(("langgraph", trial.root), "k", {}), InvalidNamespaceError, "a put to LangGraph's path")


@cases.case()
async def found_items_are_whole(trial: Trial) -> None:
    """What a search finds is a SearchItem with all that a get has, and no score."""
    await trial.fill("a", "b", k={"n": 1})
    (found,) = await trial.search(trial.path("a"))
    got = there(await trial.get(trial.path("a", "b"), "k"))
    holds(isinstance(found, SearchItem), "what is found is a SearchItem")
    same(
        (found.namespace, found.key, found.value, found.created_at, found.updated_at, found.score),
        (got.namespace, got.key, got.value, got.created_at, got.updated_at, None),
        "what is found",
    )


@cases.case()
async def searches_have_pages(trial: Trial) -> None:
    """A search finds 10 unless it says how many; pages by offset have everything once."""
    names = [f"k{number:02}" for number in range(25)]
    await trial.fill("a", **{name: {} for name in names})
    same(len(await trial.search(trial.path("a"))), 10, "how many are found by default")
    same(await trial.search(trial.path("a"), limit=0), [], "how many of none")
    pages = [await trial.keys("a", limit=10, offset=offset) for offset in (0, 10, 20, 25, 100)]
    same([len(each) for each in pages], [10, 10, 5, 0, 0], "the sizes of pages")
    same(sorted(key for page in pages for key in page), names, "what is on the pages")
    same(len(await trial.search(trial.path("a"), limit=1000)), 25, "how many there are")


@cases.case()
async def values_are_json(trial: Trial) -> None:
    """Whatever JSON can say comes back as it was, of the same type."""
    value: dict[str, Any] = {
        "text": "",
        "whole": [0, -1, 2**31, 2**53, -(2**53)],
        "broken": [0.5, -0.1, 1e-9, 2.0],
        "yes": True,
        "no": False,
        "null": None,
        "empty": {"list": [], "map": {}},
        "nested": [[[{"a": [{"b": None}]}]]],
        "": "an empty name",
        "a.b": {"$gt": 1, "*": 2},
    }
    await trial.fill("a", k=value)
    found = there(await trial.get(trial.path("a"), "k")).value
    same(found, value, "the value")
    same([type(each) for each in found["broken"]], [float] * 4, "the types of broken numbers")
    same([type(found[each]) for each in ("yes", "no")], [bool] * 2, "the types of truths")
    same([type(each) for each in found["whole"]], [int] * 5, "the types of whole numbers")


@cases.case()
async def numbers_may_be_large(trial: Trial) -> None:
    """Whole numbers of 64 bits and fractions of any size come back as they were, of the same type."""
    numbers = [2**63 - 1, -(2**63), 2**53 + 1, 1.5e300, -1e-300, 5e-324, 1.7976931348623157e308]
    await trial.fill("a", k={"numbers": numbers})
    found = there(await trial.get(trial.path("a"), "k")).value["numbers"]
    same(found, numbers, "the numbers")
    same([type(each) for each in found], [type(each) for each in numbers], "their types")


@cases.case()
async def the_empty_value_is_a_value(trial: Trial) -> None:
    """A map of nothing is a value."""
    await trial.fill("a", k={})
    same(there(await trial.get(trial.path("a"), "k")).value, {}, "the value")
    same(await trial.keys("a"), ["k"], "the keys")


@cases.case()
async def texts_are_unicode(trial: Trial) -> None:
    """Texts of any script come back as they were, code point by code point."""
    texts = [
        "Grüße",
        "日本語",
        "עברית",
        "🧠👩‍👩‍👧",
        "e\u0301 \u00e9",
        "\u202eright to left",
        '\\ " \n \t \x01',
        "\U0010ffff",
    ]
    await trial.fill("a", k={"texts": texts, "ключ": {"鍵": "🗝"}})
    found = there(await trial.get(trial.path("a"), "k")).value
    same(found, {"texts": texts, "ключ": {"鍵": "🗝"}}, "the value")
    same(await trial.keys("a", filter={"ключ": {"$eq": {"鍵": "🗝"}}}), ["k"], "what a filter finds")


@cases.case()
async def values_may_be_large(trial: Trial) -> None:
    """A value of 200 KB comes back whole, as do many members and many levels."""
    text = "".join(chr(33 + number % 90) for number in range(200_000))
    deep: dict[str, Any] = {}
    for _ in range(30):
        deep = {"below": deep}
    await trial.fill("a", text={"text": text}, wide={f"m{number}": number for number in range(2_000)}, deep=deep)
    same(there(await trial.get(trial.path("a"), "text")).value["text"] == text, True, "the text is whole")
    same(len(there(await trial.get(trial.path("a"), "wide")).value), 2_000, "the members")
    same(there(await trial.get(trial.path("a"), "deep")).value, deep, "the levels")


@cases.case()
async def what_was_got_is_the_callers(trial: Trial) -> None:
    """Changing a value that was got, found or put changes nothing that is stored."""
    mine: dict[str, Any] = {"list": [1]}
    await trial.put(trial.path("a"), "k", mine)
    mine["list"].append(2)
    there(await trial.get(trial.path("a"), "k")).value["list"].append(3)
    (await trial.search(trial.path("a")))[0].value["list"].append(4)
    same(there(await trial.get(trial.path("a"), "k")).value, {"list": [1]}, "what is stored")


@cases.case()
async def many_write_at_once(trial: Trial) -> None:
    """Puts of many keys at once are all there, and of one key one is there whole."""
    await asyncio.gather(*(trial.put(trial.path("a"), f"k{number}", {"n": number}) for number in range(40)))
    await asyncio.gather(*(trial.put(trial.path("b"), "k", {"n": number, "m": number}) for number in range(20)))
    found = await asyncio.gather(*(trial.get(trial.path("a"), f"k{number}") for number in range(40)))
    same([there(each).value["n"] for each in found], [*range(40)], "what is there")
    one = there(await trial.get(trial.path("b"), "k")).value
    holds(one["n"] == one["m"], "the value is one of those that were put")
    same(len(await trial.search(trial.path("b"))), 1, "how many there are of one key")


@cases.case()
async def one_that_fails_fails_alone(trial: Trial) -> None:
    """Of calls at the same moment, one that is refused does not fail the others."""
    await trial.fill("a", k={"n": 1})
    got, searched, put = await asyncio.gather(
        trial.get(trial.path("a"), "k"),
        trial.search(trial.path("a"), filter={"n": {"$like": 1}}),
        trial.put(trial.path("a"), "other", {"n": 2}),
        return_exceptions=True,
    )
    holds(isinstance(searched, ValueError), "an operator that there is none of is refused with ValueError")
    holds(isinstance(got, Item), f"a get beside it is carried out, and not {got!r}")
    same(put, None, "a put beside it")
    same(sorted(await trial.keys("a")), ["k", "other"], "what is there")
