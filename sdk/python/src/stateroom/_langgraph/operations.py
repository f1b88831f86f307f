"""Between LangGraph's operations on a store and the gateway's on items.

This module owns what each operation asks and what its result is. An operation is a procedure of its own: it says what
it asks first, is sent what came of that, and asks for more where one page was not enough; several are carried out
together by `stateroom._langgraph.ticks`. LangGraph calls the path of an item its namespace.
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from langgraph.store.base import (
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)
from msgspec import UNSET, structs

from stateroom._items.shapes import (
    Item as StoredItem,
)
from stateroom._items.shapes import (
    ItemGet,
    ItemPage,
    ItemPathPage,
    ItemPathSearch,
    ItemSearch,
    ItemVectors,
    ItemWrite,
    ItemWritten,
    Metric,
    Near,
    Path,
)
from stateroom.errors import InvalidRequest

PAGE_MAX = 1000
_ANY_LABEL = "*"
_SECONDS_PER_MINUTE = 60
_COMPARING = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in"})
_JOINING = frozenset({"$and", "$or"})

Asked: TypeAlias = ItemGet | ItemWrite | ItemSearch | ItemPathSearch
Told: TypeAlias = StoredItem | ItemWritten | ItemPage | ItemPathPage | None
Procedure: TypeAlias = Generator[Asked, Told, Result]


class Embedded(NamedTuple):
    """What an embedding model made of an operation's texts.

    Attributes:
        model: The model's name.
        metric: How nearness is measured.
        vectors: Those of the texts of a put, or that of the query of a search.
    """

    model: str
    metric: Metric
    vectors: Sequence[Sequence[float]]


def check(op: Op) -> None:
    """Refuse what needs no gateway to be refused.

    Raises:
        ValueError: A filter has an operator that there is none of; or it is no operation.
        InvalidRequest: A limit or an offset is negative.
    """
    match op:
        case SearchOp():
            _check_filter(op.filter)
            _check_page(op.limit, op.offset)
        case ListNamespacesOp():
            _check_page(op.limit, op.offset)
        case GetOp() | PutOp():
            pass
        case _:
            raise ValueError(f"{type(op).__name__} is no operation of a store")


def procedure_of(op: Op, embedded: Embedded | None) -> Procedure:
    """What carries an operation out that was checked."""
    match op:
        case GetOp():
            return _get(op)
        case PutOp():
            return _put(op, embedded)
        case SearchOp():
            return _search(op, embedded)
        case _:
            return _list(op)


def _check_page(limit: int, offset: int) -> None:
    if limit < 0 or offset < 0:
        raise InvalidRequest("limit and offset are 0 or more")


def _check_filter(wanted: Any) -> None:
    """Refuse operators that there are none of. What is no filter at all is the gateway's to refuse."""
    for name, value in wanted.items() if isinstance(wanted, Mapping) else ():
        if name in _JOINING:
            for each in value if isinstance(value, Sequence) else ():
                _check_filter(each)
        elif isinstance(name, str) and name.startswith("$"):
            if name not in _COMPARING:
                raise ValueError(f"Unsupported operator: {name}")
        else:
            _check_filter(value)


def _get(op: GetOp) -> Procedure:
    found = yield ItemGet(path=tuple(op.namespace), key=str(op.key), refresh=op.refresh_ttl)
    return None if not isinstance(found, StoredItem) else Item(**_members(found))


def _put(op: PutOp, embedded: Embedded | None) -> Procedure:
    path, key = tuple(op.namespace), str(op.key)
    if op.value is None:
        yield ItemWrite(path=path, key=key, delete=True)
        return None
    ttl_seconds = None if op.ttl is None else max(1, math.ceil(op.ttl * _SECONDS_PER_MINUTE))
    vectors = [ItemVectors.of(embedded.model, embedded.vectors)] if embedded is not None else []
    yield ItemWrite(path=path, key=key, value=dict(op.value), ttl_seconds=ttl_seconds, vectors=vectors)
    return None


def _search(op: SearchOp, embedded: Embedded | None) -> Procedure:
    asked = ItemSearch(
        prefix=tuple(op.namespace_prefix),
        near=UNSET if embedded is None else Near.of(embedded.model, embedded.vectors[0], embedded.metric),
        filter=UNSET if not op.filter else op.filter,
        offset=op.offset,
        refresh=op.refresh_ttl,
    )
    found = yield from _pages(asked, op.limit)
    return [SearchItem(**_members(each), score=each.score) for each in found]


def _members(found: StoredItem) -> dict[str, Any]:
    return {
        "value": found.value,
        "key": found.key,
        "namespace": found.path,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
    }


def _list(op: ListNamespacesOp) -> Procedure:
    conditions = [*(op.match_conditions or ())]
    prefix, others = _taken(conditions, "prefix")
    suffix, others = _taken(others, "suffix")
    asked = ItemPathSearch(prefix=prefix, suffix=suffix)
    if not others:
        asked = structs.replace(asked, max_depth=op.max_depth, offset=op.offset)
        return (yield from _pages(asked, op.limit))
    # The gateway takes one of each sort: what more there is, is looked at here.
    found: list[Path] = yield from _pages(asked, None)
    left = (each for each in found if all(_meets(each, condition) for condition in others))
    cut = sorted({each[: op.max_depth] for each in left})
    return cut[op.offset : op.offset + op.limit]


def _taken(conditions: Iterable[MatchCondition], kind: str) -> tuple[Path, list[MatchCondition]]:
    """The path of the first condition of a kind, and the other conditions."""
    others = [*conditions]
    for number, each in enumerate(others):
        if each.match_type == kind:
            return tuple(each.path), others[:number] + others[number + 1 :]
    return (), others


def _meets(path: Path, condition: MatchCondition) -> bool:
    wanted = tuple(condition.path)
    size = len(wanted)
    labels = path[:size] if condition.match_type == "prefix" else path[max(len(path) - size, 0) :]
    return len(labels) == size and all(want in (_ANY_LABEL, label) for label, want in zip(labels, wanted, strict=True))


def _pages(asked: ItemSearch | ItemPathSearch, limit: int | None) -> Generator[Asked, Told, list[Any]]:
    """What is on the pages of a search, up to ``limit``."""
    found: list[Any] = []
    cursor: str | None = None
    while limit is None or len(found) < limit:
        size = PAGE_MAX if limit is None else min(limit - len(found), PAGE_MAX)
        page = yield structs.replace(asked, limit=size, cursor=cursor)
        assert isinstance(page, ItemPage | ItemPathPage)  # noqa: S101  for the type checker: a page answers a search
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    return found
