"""Cases about several operations that are asked for together."""

from typing import Any, Final

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, Result, SearchOp

from stateroom.testing.stores.trials import Cases, Trial, holds, same, there

cases: Final = Cases("batches")


def _listing(trial: Trial, *labels: str, **options: Any) -> ListNamespacesOp:
    return ListNamespacesOp(match_conditions=(MatchCondition("prefix", trial.path(*labels)),), **options)


def _values(found: Result) -> list[Any]:
    return sorted(each.value["n"] for each in found) if isinstance(found, list) else []  # type: ignore[union-attr]


@cases.case()
async def results_are_in_the_order_of_operations(trial: Trial) -> None:
    """Each result stands where its operation stood, whatever kinds are mixed."""
    await trial.fill("a", k={"n": 1}, other={"n": 2})
    got, put, found, none, listed, deleted, last = await trial.batch(
        [
            GetOp(trial.path("a"), "k"),
            PutOp(trial.path("b"), "k", {"n": 3}),
            SearchOp(trial.path("a"), filter={"n": 2}),
            GetOp(trial.path("a"), "missing"),
            _listing(trial),
            PutOp(trial.path("b"), "missing", None),
            GetOp(trial.path("a"), "other"),
        ]
    )
    holds(isinstance(got, Item) and got.value == {"n": 1}, "the first is what the first asked for")
    same((put, none, deleted), (None, None, None), "what has no result")
    same(_values(found), [2], "what was found")
    same(listed, [trial.path("a")], "what was listed")
    holds(isinstance(last, Item) and last.value == {"n": 2}, "the last is what the last asked for")


@cases.case()
async def reads_see_what_was_before(trial: Trial) -> None:
    """Reads of a batch see what was there before its puts and deletes, wherever they stand."""
    await trial.fill("a", k={"n": 1}, gone={"n": 2})
    found = await trial.batch(
        [
            PutOp(trial.path("a"), "k", {"n": 10}),
            PutOp(trial.path("a"), "gone", None),
            PutOp(trial.path("a", "new"), "k", {"n": 20}),
            GetOp(trial.path("a"), "k"),
            GetOp(trial.path("a"), "gone"),
            GetOp(trial.path("a", "new"), "k"),
            SearchOp(trial.path("a")),
            _listing(trial),
        ]
    )
    same([each.value if isinstance(each, Item) else each for each in found[3:6]], [{"n": 1}, {"n": 2}, None], "gets")
    same(_values(found[6]), [1, 2], "what was found")
    same(found[7], [trial.path("a")], "what was listed")
    same(sorted(each.value["n"] for each in await trial.search(trial.path("a"))), [10, 20], "what is there now")


@cases.case()
async def the_last_put_wins(trial: Trial) -> None:
    """Of several puts and deletes of one key in a batch, the last counts."""
    await trial.fill("a", gone={"n": 0})
    await trial.batch(
        [
            PutOp(trial.path("a"), "k", {"n": 1}),
            PutOp(trial.path("a"), "gone", {"n": 1}),
            PutOp(trial.path("a"), "back", None),
            PutOp(trial.path("a"), "k", {"n": 2}),
            PutOp(trial.path("a"), "gone", None),
            PutOp(trial.path("a"), "back", {"n": 3}),
        ]
    )
    same(there(await trial.get(trial.path("a"), "k")).value, {"n": 2}, "the last of two")
    same(await trial.get(trial.path("a"), "gone"), None, "what was deleted last")
    same(there(await trial.get(trial.path("a"), "back")).value, {"n": 3}, "what was put last")


@cases.case()
async def a_batch_may_be_empty(trial: Trial) -> None:
    """A batch of nothing has no results."""
    same(await trial.batch([]), [], "its results")


@cases.case()
async def a_batch_may_be_any_iterable(trial: Trial) -> None:
    """Operations may come from a generator."""
    await trial.batch(PutOp(trial.path("a"), f"k{number}", {"n": number}) for number in range(3))
    found = await trial.batch(GetOp(trial.path("a"), f"k{number}") for number in range(3))
    same([each.value["n"] for each in found if isinstance(each, Item)], [0, 1, 2], "what was got")


@cases.case()
async def a_batch_may_be_long(trial: Trial) -> None:
    """A batch of hundreds of operations is carried out whole."""
    same(
        await trial.batch([PutOp(trial.path("a"), f"k{number}", {"n": number}) for number in range(250)]),
        [None] * 250,
        "the results of puts",
    )
    ops: list[Op] = [GetOp(trial.path("a"), f"k{number}") for number in range(250)]
    found = await trial.batch([SearchOp(trial.path("a"), limit=1000), *ops])
    same(_values(found[0]), [*range(250)], "what was found")
    same([each.value["n"] for each in found[1:] if isinstance(each, Item)], [*range(250)], "what was got")


@cases.case()
async def a_batch_may_ask_twice(trial: Trial) -> None:
    """The same operation twice has its result twice."""
    await trial.fill("a", k={"n": 1})
    found = await trial.batch([GetOp(trial.path("a"), "k"), SearchOp(trial.path("a"))] * 2)
    same([each.value["n"] for each in found[::2] if isinstance(each, Item)], [1, 1], "what was got")
    same([_values(each) for each in found[1::2]], [[1], [1]], "what was found")
