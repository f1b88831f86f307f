"""Running the suite against a store.

This module owns the order of cases, which stores are made for them, and how a case that fails is told. One case that
fails or hangs does not end the others.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from typing import Final

from langgraph.store.base import BaseStore

from stateroom.testing.stores import batches, differences, filters, meaning, namespaces, operations, times
from stateroom.testing.stores.configs import MakeStore, StoreConfig
from stateroom.testing.stores.report import CaseResult, HalfName, Outcome, StoreReport
from stateroom.testing.stores.trials import (
    Advance,
    AsyncCalls,
    BlockingCalls,
    Calls,
    Case,
    Trial,
    UnsupportedError,
)

CASES: Final[tuple[Case, ...]] = tuple(
    case
    for group in (operations, batches, filters, namespaces, meaning, times, differences)
    for case in group.cases.all
)
HALVES: Final[dict[HalfName, Callable[[BaseStore], Calls]]] = {"async": AsyncCalls, "blocking": BlockingCalls}
CASE_SECONDS_MAX: Final = 120.0


async def validate_store(
    make_store: MakeStore,
    *,
    advance: Advance | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    halves: Iterable[HalfName] = ("async", "blocking"),
    progress: Callable[[CaseResult], None] | None = None,
    case_seconds_max: float = CASE_SECONDS_MAX,
) -> StoreReport:
    """Run the suite against a store.

    Args:
        make_store: Makes a store of what it is told, as an asynchronous context manager. It is called once for each
            ``StoreConfig`` that a case asks for. All that it makes may keep their items in one place; the suite leaves
            items in it, each below a label that begins with ``suite-``.
        advance: Lets time pass for all stores that were made, by so many seconds; it returns when items whose time is
            over by then are over. It may really wait. Left out: cases about time are skipped.
        only: Names of cases or of groups to run; none: all.
        skip: Names of cases or of groups to leave out.
        halves: Which methods to use: the asynchronous ones, the blocking ones (in worker threads), or both.
        progress: Is told of each case as it ends.
        case_seconds_max: A case that takes longer has failed. What blocks a worker thread is not ended by it.

    Returns:
        What came of each case in each half, in the order of ``CASES``.

    Raises:
        ValueError: ``only``, ``skip`` or ``halves`` names what there is none of.
    """
    _refuse_unknown("case or group", {*only, *skip}, {each for case in CASES for each in (case.name, case.group)})
    _refuse_unknown("half", {*halves}, {*HALVES})
    chosen = [
        case
        for case in CASES
        if (not only or {case.name, case.group} & {*only}) and not {case.name, case.group} & {*skip}
    ]
    results: list[CaseResult] = []
    async with AsyncExitStack() as opened:
        stores = _Stores(make_store, opened)
        for half in halves:
            for case in chosen:
                try:
                    async with asyncio.timeout(case_seconds_max):
                        outcome, reason = await _outcome(case, half, stores, advance)
                except TimeoutError:
                    outcome, reason = "failed", f"it took more than {case_seconds_max:g} s"
                result = CaseResult(case.name, case.group, half, case.claim, outcome, reason)
                results.append(result)
                if progress is not None:
                    progress(result)
        return StoreReport(stores.name, tuple(results))


def _refuse_unknown(what: str, named: set[str], known: set[str]) -> None:
    unknown = sorted(named - known)
    if unknown:
        raise ValueError(f"there is no {what} {', '.join(unknown)}; there are {', '.join(sorted(known))}")


class _Stores:
    """The stores of a run, each made when the first case asks for it, and closed at the end."""

    def __init__(self, make_store: MakeStore, opened: AsyncExitStack) -> None:
        self._make_store = make_store
        self._opened = opened
        self._made: list[tuple[StoreConfig, BaseStore]] = []
        self.name = ""

    async def of(self, config: StoreConfig) -> BaseStore:
        for own, store in self._made:
            if own is config:
                return store
        store = await self._opened.enter_async_context(self._make_store(config))
        self._made.append((config, store))
        self.name = type(store).__name__
        return store


async def _outcome(case: Case, half: HalfName, stores: _Stores, advance: Advance | None) -> tuple[Outcome, str]:
    if case.needs_time and advance is None:
        return "skipped", "no advance() was given"
    try:
        store = await stores.of(case.config)
        if case.needs_time and not store.supports_ttl:
            return "skipped", "the store supports no time to live"
        await case.run(Trial(HALVES[half](store), advance or _no_time))
    except UnsupportedError as reason:
        return "skipped", str(reason)
    except Exception as failure:  # noqa: BLE001  whatever a store raises, the other cases are run
        return "failed", f"{type(failure).__name__}: {failure}"
    return "passed", ""


async def _no_time(seconds: float) -> None:
    raise UnsupportedError(f"{seconds} seconds cannot pass")
