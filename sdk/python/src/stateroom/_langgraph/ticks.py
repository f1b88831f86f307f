"""Carrying out operations on items together, so that those of one moment are few requests.

This module owns how procedures share requests: each round asks for what all of them want next, at most 100 operations
and some megabytes a request. What a call writes waits until the last page of what it searches was read. A procedure
that fails does not end the others: what the gateway refuses as a whole is asked again one by one, so that only what is
at fault is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from langgraph.store.base import Op, Result

from stateroom._items import requests
from stateroom._items.shapes import (
    ItemBatch,
    ItemBatchResults,
    ItemGet,
    ItemPathSearch,
    ItemSearch,
    ItemWrite,
)
from stateroom._langgraph.embedding import Embedding
from stateroom._langgraph.operations import Asked, Embedded, Procedure, Told, procedure_of
from stateroom._protocol.core import Pinned, Steps, encode_body
from stateroom.errors import Conflict, InvalidRequest, LimitExceeded, PermissionDenied, StateroomError

# What refuses a request because of one of its operations.
_REFUSALS: Final = (InvalidRequest, LimitExceeded, PermissionDenied, Conflict)

Outcome = Result | Exception


def together(procedures: Sequence[Procedure], calls: Sequence[object]) -> Steps[list[Outcome]]:
    """Carry procedures out together; in the place of one that failed, why.

    Args:
        procedures: What to carry out.
        calls: Of each, by what call it was asked for: reads of a call see what was there before its writes.
    """
    outcomes: list[Outcome] = [None] * len(procedures)
    waiting: dict[int, Asked] = {}
    for number, each in enumerate(procedures):
        _advance(number, each, lambda each=each: next(each), waiting, outcomes)  # type: ignore[misc]
    while waiting:
        asked, waiting = _now_and_later(waiting, calls)
        for part in _parts(asked):
            told = yield from _told([asked[number] for number in part])
            for number, answer in zip(part, told, strict=True):
                procedure = procedures[number]
                if isinstance(answer, Exception):
                    outcomes[number] = answer
                    procedure.close()
                else:
                    _advance(number, procedure, _sending(procedure, answer), waiting, outcomes)
    return outcomes


def _now_and_later(waiting: dict[int, Asked], calls: Sequence[object]) -> tuple[dict[int, Asked], dict[int, Asked]]:
    """What is asked in a round, and what waits: writes of calls that may have to read another page."""
    reading = {calls[number] for number, each in waiting.items() if isinstance(each, ItemSearch | ItemPathSearch)}
    now: dict[int, Asked] = {}
    later: dict[int, Asked] = {}
    for number, each in waiting.items():
        (later if isinstance(each, ItemWrite) and calls[number] in reading else now)[number] = each
    return now, later


def _sending(procedure: Procedure, answer: Told) -> Callable[[], Asked]:
    return lambda: procedure.send(answer)


def _advance(
    number: int,
    procedure: Procedure,
    step: Callable[[], Asked],
    waiting: dict[int, Asked],
    outcomes: list[Outcome],
) -> None:
    try:
        waiting[number] = step()
    except StopIteration as finished:
        outcomes[number] = finished.value
    except Exception as failure:  # noqa: BLE001  whatever it is, it is this procedure's alone
        outcomes[number] = failure
        procedure.close()


def _parts(asked: dict[int, Asked]) -> list[list[int]]:
    """What is asked in parts that are a request each. The reads come first: they see what is there before."""
    in_order = sorted(asked, key=lambda each: isinstance(asked[each], ItemWrite))
    return requests.in_parts(in_order, lambda each: _bytes(asked[each]))


def _bytes(asked: Asked) -> int:
    if not isinstance(asked, ItemWrite):
        return 0
    try:
        return len(encode_body(asked))
    except InvalidRequest:
        return 0  # it fails by itself when it is asked


def _told(asked: Sequence[Asked]) -> Steps[list[Told | Exception]]:
    try:
        results = yield from requests.batch(_batch(asked))
    except _REFUSALS as refusal:
        if len(asked) == 1:
            return [refusal]
        half = len(asked) // 2
        first = yield from _told(asked[:half])
        return [*first, *(yield from _told(asked[half:]))]
    except StateroomError as failure:
        return [failure] * len(asked)
    return _in_order(asked, results)


def _batch(asked: Sequence[Asked]) -> ItemBatch:
    return ItemBatch(
        gets=[each for each in asked if isinstance(each, ItemGet)],
        writes=[each for each in asked if isinstance(each, ItemWrite)],
        searches=[each for each in asked if isinstance(each, ItemSearch)],
        paths=[each for each in asked if isinstance(each, ItemPathSearch)],
    )


def _in_order(asked: Sequence[Asked], results: ItemBatchResults) -> list[Told | Exception]:
    """What came of each operation, in the order they were asked."""
    told: dict[type, Any] = {
        ItemGet: iter(results.gets),
        ItemWrite: (each.error or each for each in results.writes),
        ItemSearch: iter(results.searches),
        ItemPathSearch: iter(results.paths),
    }
    return [next(told[type(each)]) for each in asked]


def all_of(outcomes: Sequence[Outcome | BaseException]) -> list[Result]:
    """The results of operations.

    Raises:
        Exception: What the first of them failed with that did.
    """
    results: list[Result] = []
    for each in outcomes:
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results


Drive = Callable[[Steps[list[Outcome]], Pinned], Awaitable[list[Outcome]]]


def prepared(ops: Sequence[Op], embedded: Sequence[Embedded | Exception | None]) -> list[Procedure]:
    """What carries operations out; one whose texts could not be embedded fails when it is asked."""
    return [
        _failing(each) if isinstance(each, Exception) else procedure_of(op, each)
        for op, each in zip(ops, embedded, strict=True)
    ]


def _failing(failure: Exception) -> Procedure:
    raise failure
    yield  # a procedure, because it may ask; it never does


class _Waiting(NamedTuple):
    """An operation, who waits for it, and the call that asked for it."""

    op: Op
    future: "asyncio.Future[Result]"
    call: object


class Ticks:
    """Operations of one event loop that were asked for at the same moment, carried out together.

    Args:
        embedding: What makes vectors of texts; ``None``: there is no index.
    """

    def __init__(self, embedding: Embedding | None) -> None:
        self._embedding = embedding
        self._waiting: dict[Pinned, list[_Waiting]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, ops: Sequence[Op], pinned: Pinned, drive: Drive) -> list[Result]:
        """Carry operations out with all others of this moment that are for the same subject.

        Args:
            ops: What to carry out.
            pinned: The subject to act for.
            drive: Carries out a procedure of calls.

        Raises:
            Exception: What the first of them failed with; the others were carried out.
        """
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._begin, drive)
        call = object()
        asked = [_Waiting(op, loop.create_future(), call) for op in ops]
        self._waiting.setdefault(pinned, []).extend(asked)
        return all_of(await asyncio.gather(*(each.future for each in asked), return_exceptions=True))

    def _begin(self, drive: Drive) -> None:
        waiting, self._waiting = self._waiting, {}
        for pinned, asked in waiting.items():
            task = asyncio.ensure_future(self._carry_out(asked, pinned, drive))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _carry_out(self, asked: Sequence[_Waiting], pinned: Pinned, drive: Drive) -> None:
        outcomes: Sequence[Outcome | BaseException]
        ops = [each.op for each in asked]
        try:
            embedded = [None] * len(ops) if self._embedding is None else await self._embedding.aof(ops)
            outcomes = await drive(together(prepared(ops, embedded), [each.call for each in asked]), pinned)
        except asyncio.CancelledError:
            for each in asked:
                each.future.cancel()
            raise
        except Exception as failure:  # noqa: BLE001  whoever asked is told
            outcomes = [failure] * len(asked)
        for (_, future, _), outcome in zip(asked, outcomes, strict=True):
            if future.done():
                continue  # who asked was cancelled
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
