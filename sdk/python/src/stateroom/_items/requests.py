"""The calls on items, as steps without I/O.

Both clients and the LangGraph store drive the same steps. Whatever writes carries an Idempotency-Key, so that a repeat
gets the first one's result, also where a condition would not hold any more.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import quote
from uuid import uuid4

from stateroom._items.shapes import (
    Item,
    ItemBatch,
    ItemBatchResults,
    ItemPage,
    ItemPathPage,
    ItemPathSearch,
    ItemSearch,
    ItemWrite,
    ItemWritten,
    Path,
    Reindexed,
)
from stateroom._protocol.core import Call, Steps, asked, encode_body, encode_id
from stateroom.errors import InvalidRequest, ItemMoved, ItemNotFound

T = TypeVar("T")

OPERATIONS_MAX: Final = 100
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
_SAFE = "~._:@+-,"
_EMPTY_KEY = "~"


def _place(path: Path, key: str) -> str:
    if not path:
        raise InvalidRequest("the path of an item has at least one label")
    labels = ",".join(map(encode_id, path))
    return f"/items/{quote(labels, safe=_SAFE)}/{quote(encode_id(key) if key else _EMPTY_KEY, safe=_SAFE)}"


def put(write: ItemWrite) -> Steps[ItemWritten]:
    """Put an item."""
    headers = _repeatable()
    if write.if_absent:
        headers["If-None-Match"] = "*"
    if write.if_revision is not None:
        headers["If-Match"] = f'"{write.if_revision}"'
    body = encode_body({"value": write.value, "ttl_seconds": write.ttl_seconds, "vectors": write.vectors})
    place = _place(write.path, write.key)
    return asked(Call(method="PUT", path=place, body=body, headers=headers, repeatable=True), ItemWritten)


def get(path: Path, key: str, *, refresh: bool) -> Steps[Item | None]:
    """Read an item; ``None`` when there is none."""
    query = () if refresh else (("refresh", "false"),)
    try:
        return (yield from asked(Call(method="GET", path=_place(path, key), query=query, repeatable=True), Item))
    except ItemNotFound:
        return None


def delete(path: Path, key: str, if_revision: int | None) -> Steps[bool]:
    """Delete an item; whether there was one."""
    headers = _repeatable()
    if if_revision is not None:
        headers["If-Match"] = f'"{if_revision}"'
    call = Call(method="DELETE", path=_place(path, key), headers=headers, repeatable=True)
    try:
        yield call
    except ItemNotFound:
        return False
    return True


def search(wanted: ItemSearch) -> Steps[ItemPage]:
    """A page of items that a search finds."""
    return asked(Call(method="POST", path="/items:search", body=encode_body(wanted), repeatable=True), ItemPage)


def paths(wanted: ItemPathSearch) -> Steps[ItemPathPage]:
    """A page of paths that have items."""
    return asked(Call(method="POST", path="/items:paths", body=encode_body(wanted), repeatable=True), ItemPathPage)


def batch(operations: ItemBatch) -> Steps[ItemBatchResults]:
    """Several operations in one request."""
    headers = _repeatable() if operations.writes else {}
    call = Call(method="POST", path="/items:batch", body=encode_body(operations), headers=headers, repeatable=True)
    return asked(call, ItemBatchResults)


def in_parts(things: Sequence[T], size_bytes: Callable[[T], int]) -> list[list[T]]:
    """Things in parts that are a request each."""
    if len(things) == 1:
        return [[*things]]
    parts: list[list[T]] = []
    size = 0
    for each in things:
        own = size_bytes(each)
        size += own
        if not parts or size > BATCH_BYTES_MAX or len(parts[-1]) == OPERATIONS_MAX:
            parts.append([])
            size = own
        parts[-1].append(each)
    return parts


def told(before: Reindexed, page: ItemPage, written: Sequence[ItemWritten]) -> Reindexed:
    """How far giving items vectors has come after another page.

    Raises:
        StateroomError: An item was refused for another reason than that somebody changed it.
    """
    moved = 0
    for each in written:
        if each.error is not None:
            if not isinstance(each.error, (ItemMoved, ItemNotFound)):
                raise each.error
            moved += 1
    return Reindexed(
        items=before.items + len(page.items),
        indexed=before.indexed + len(written) - moved,
        moved=before.moved + moved,
        cursor=page.next_cursor,
    )


def _repeatable() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid4())}
