"""Items: put, get, delete, search, list paths, and all of that in batches."""

import base64
import binascii
import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import Struct

from gateway.authentication.principals import SUBJECT, check_permission
from gateway.http.cursors import ListCursor
from gateway.http.exchange import Answer, Exchange, decode_id, encode_id
from gateway.problems import InvalidRequest
from gateway.routes.items.conversion import (
    items_out,
    map_in,
    name_in,
    page_out,
    path_search_in,
    paths_out,
    search_in,
    searches_in,
    vectors_in,
    writes_in,
    written_out,
)
from gateway.routing.operations import Call, Operation
from gateway.wire.items import batches, items, searches
from gateway.wire.problems import Fault
from storage.errors import InvalidState, ItemNotFound, LimitExceeded, StorageError
from storage.items import model
from storage.items.verbs import Results
from storage.items.writing import Outcome
from storage.scope import Scope

_SHARE: Final = ("Stateroom-Client-Share",)
_READING: Final = ("integrity-failure", "key-destroyed")
_WRITING: Final = (
    "clear-vectors-unavailable", "commit-unknown", "feature-off", "idempotency-key-reused", "integrity-failure",
    "item-moved", "item-exists", "item-paths-exceeded", "key-destroyed", "legal-hold", "limit-exceeded",
    "quota-exceeded",
)  # fmt: skip
# Labels are joined by what no encoded one contains; the empty key travels as nothing encoded.
_JOINT: Final = ","
_EMPTY: Final = "~"
_AS_IT_IS: Final = "as it is if it matches [A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}, or ~ and base64url"
# What is said of a write takes at most, refused or not.
_OUTCOME_BYTES: Final = 2 * 1024
_REVISION: Final = re.compile("[1-9][0-9]{0,18}")


class ItemQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How an item is read: ``refresh`` gives one with a time to live that time anew."""

    refresh: bool = True


def _name(path: str, key: str) -> model.ItemName:
    """An item's name from the path of a request.

    Raises:
        InvalidRequest: A part of it is no label, or no key.
    """
    fault = Fault(detail=f"is labels joined by commas, each {_AS_IT_IS}", parameter="path")
    labels = [_text(each, fault) for each in path.split(_JOINT)]
    named = "" if key == _EMPTY else _text(key, Fault(detail=f"is a key {_AS_IT_IS}", parameter="key"))
    try:
        return name_in(labels, named)
    except (InvalidState, LimitExceeded) as error:
        raise InvalidRequest(Fault(detail=str(error), parameter="path")) from None


def _text(coded: str, fault: Fault) -> str:
    """A label or key as it travels; unlike an id, it may be any text.

    Raises:
        InvalidRequest: with ``fault``, it is not encoded, or not in its one spelling.
    """
    if not coded.startswith("~"):
        return decode_id(coded, fault)
    try:
        content = coded[1:].encode("ascii")
        plain = base64.b64decode(content + b"=" * (-len(content) % 4), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise InvalidRequest(fault) from None
    if encode_id(plain) != coded:
        raise InvalidRequest(fault)
    return plain


def _place(name: model.ItemName) -> str:
    return f"/v1/items/{_JOINT.join(map(encode_id, name.path))}/{encode_id(name.key) if name.key else _EMPTY}"


def _revision(exchange: Exchange) -> int | None:
    """The revision that If-Match names, or None.

    Raises:
        InvalidRequest: It is no item's ETag.
    """
    condition = exchange.if_match()
    if condition is None:
        return None
    if condition.head_id is None or not _REVISION.fullmatch(condition.head_id) or condition.or_one_of:
        raise InvalidRequest(Fault(detail='must be one ETag of an item, such as "7"', header="If-Match"))
    return int(condition.head_id)


async def _one(call: Call[Scope], write: model.ItemWrite, name: str, body: bytes) -> model.Written:
    """Do one write, or raise what refuses it."""
    exchange = call.exchange
    results = await call.commit(
        call.store.items.run(
            call.scope,
            model.Batch(writes=[write]),
            idempotency=exchange.idempotency(_place(write.name), name, body),  # type: ignore[arg-type]
            share=exchange.client_share(),
        )
    )
    (outcome,) = results.writes
    if isinstance(outcome, StorageError):
        raise outcome
    assert outcome is not None  # noqa: S101  for the type checker: only a batch is atomic
    return outcome


@Operation(
    "PUT /v1/items/{path}/{key}",
    reach=SUBJECT,
    summary="Put an item: a map under a key of a path. 201: there was none.",
    permission="state:write",
    body=items.ItemPut,
    returns=items.WrittenItem,
    statuses=(201, 200),
    headers=("If-Match", "If-None-Match", "Idempotency-Key", *_SHARE),
    etag=True,
    problems=_WRITING,
)
async def put_item(call: Call[Scope], path: str, key: str) -> Answer:
    exchange = call.exchange
    named = _name(path, key)
    request, name, body = await exchange.body(items.ItemPut)
    value = await exchange.reservation.run(map_in(name, request.value, "/value"), len(body))
    vectors = await exchange.reservation.run(vectors_in(request.vectors, "/vectors"), len(body))
    revision, if_absent = _revision(exchange), exchange.if_none_match_any()
    write = model.ItemWrite(named, value, request.ttl_seconds, revision, if_absent, vectors)
    written = await _one(call, write, name, body)
    return exchange.reply(
        written_out(call, written),
        status=201 if written.status == "created" else 200,
        etag=str(written.revision),
        location=_place(named) if written.status == "created" else None,
    )


@Operation(
    "GET /v1/items/{path}/{key}",
    reach=SUBJECT,
    summary="Read an item; the ETag is its revision.",
    permission="state:read",
    query=ItemQuery,
    returns=items.Item,
    headers=_SHARE,
    etag=True,
    problems=("item-not-found", *_READING),
)
async def get_item(call: Call[Scope], path: str, key: str) -> Answer:
    query = call.exchange.query(ItemQuery)
    batch = model.Batch(gets=[model.ItemGet(_name(path, key), query.refresh)])
    (item,) = (await call.store.items.run(call.scope, batch, share=call.exchange.client_share())).gets
    if item is None:
        raise ItemNotFound
    (shown,) = await items_out(call.exchange, [item])
    return call.exchange.reply(shown, etag=str(item.revision))


@Operation(
    "DELETE /v1/items/{path}/{key}",
    reach=SUBJECT,
    summary="Delete an item.",
    permission="state:delete",
    returns=items.WrittenItem,
    headers=("If-Match", "Idempotency-Key", *_SHARE),
    problems=("item-not-found", *_WRITING),
)
async def delete_item(call: Call[Scope], path: str, key: str) -> Answer:
    write = model.ItemWrite(_name(path, key), None, if_revision=_revision(call.exchange))
    written = await _one(call, write, "json", b"")
    if written.status == "absent":
        raise ItemNotFound
    return call.exchange.reply(written_out(call, written))


@Operation(
    "POST /v1/items:search",
    reach=SUBJECT,
    summary="Find items by their paths and values, the last changed first.",
    permission="state:read",
    body=searches.ItemSearch,
    returns=searches.ItemPage,
    headers=_SHARE,
    problems=(*_READING, "clear-vectors-unavailable", "item-index-too-large"),
)
async def search_items(call: Call[Scope]) -> Answer:
    request, name, _ = await call.exchange.body(searches.ItemSearch)
    wanted, cursor = search_in(name, request, partial(_cursor, call))
    batch = model.Batch(searches=[wanted])
    (page,) = (await call.store.items.run(call.scope, batch, share=call.exchange.client_share())).searches
    return call.exchange.reply(await page_out(call.exchange, page, cursor.next(page.after)), compressed=True)


@Operation(
    "POST /v1/items:paths",
    reach=SUBJECT,
    summary="List the paths that have items.",
    permission="state:read",
    body=searches.PathSearch,
    returns=searches.PathPage,
    headers=_SHARE,
    problems=_READING,
)
async def list_item_paths(call: Call[Scope]) -> Answer:
    request, _, _ = await call.exchange.body(searches.PathSearch)
    wanted, cursor = path_search_in(request, partial(_cursor, call))
    batch = model.Batch(paths=[wanted])
    (page,) = (await call.store.items.run(call.scope, batch, share=call.exchange.client_share())).paths
    return call.exchange.reply(paths_out(page, cursor.next(page.after)))


@Operation(
    "POST /v1/items:batch",
    reach=SUBJECT,
    summary="Read and write up to 100 items together. A write that is refused fails alone, unless the batch is atomic.",
    permission="state:read",
    body=batches.ItemBatch,
    returns=batches.ItemBatchResults,
    headers=("Idempotency-Key", *_SHARE),
    problems=(*_WRITING, "item-index-too-large", "item-models-exceeded", "item-not-found"),
)
async def run_item_batch(call: Call[Scope]) -> Answer:
    exchange = call.exchange
    request, name, body = await exchange.body(batches.ItemBatch)
    count = len(request.gets) + len(request.writes) + len(request.searches) + len(request.paths)
    if count > model.ITEM_OPERATIONS_MAX:
        raise LimitExceeded("ITEM_OPERATIONS_MAX", model.ITEM_OPERATIONS_MAX, count)
    if any(not each.delete for each in request.writes):
        check_permission(call.principal, "state:write")
    if any(each.delete for each in request.writes):
        check_permission(call.principal, "state:delete")
    writes = await exchange.reservation.run(writes_in(request.writes, name), len(body))
    cursor_of = partial(_cursor, call)
    searches = await exchange.reservation.run(searches_in(name, request.searches, cursor_of), len(body))
    paths = [path_search_in(each, cursor_of, f"/paths/{n}") for n, each in enumerate(request.paths)]
    refused = any(isinstance(each, StorageError) for each in writes)
    reading = model.Batch(
        gets=[
            model.ItemGet(name_in(each.path, each.key, f"/gets/{n}"), each.refresh)
            for n, each in enumerate(request.gets)
        ],
        searches=[wanted for wanted, _ in searches],
        paths=[wanted for wanted, _ in paths],
    )
    share = exchange.client_share()
    # What is said has its room before anything is written: an answer that is refused must not hide that it was.
    exchange.reservation.take(_OUTCOME_BYTES * len(writes))
    read = await call.store.items.run(call.scope, reading, share=share)
    shown = await _reads_out(call, read, [cursor for _, cursor in searches], [cursor for _, cursor in paths])
    writing = model.Batch(
        writes=[each for each in writes if isinstance(each, model.ItemWrite) and not (refused and request.atomic)],
        atomic=request.atomic,
    )
    idempotency = exchange.idempotency("", name, body)
    outcomes: Iterator[Outcome | None] = iter([])
    if writing.writes:
        work = call.store.items.run(call.scope, writing, idempotency=idempotency, share=share)
        outcomes = iter((await call.commit(work)).writes)
    shown.writes = [
        written_out(call, each if isinstance(each, StorageError) else next(outcomes, None)) for each in writes
    ]
    return exchange.reply(shown, compressed=True)


async def _reads_out(
    call: Call[Scope], results: Results, searches: list[ListCursor], paths: list[ListCursor]
) -> batches.ItemBatchResults:
    return batches.ItemBatchResults(
        gets=await items_out(call.exchange, results.gets),
        writes=[],
        searches=[
            await page_out(call.exchange, page, cursor.next(page.after))
            for page, cursor in zip(results.searches, searches, strict=True)
        ],
        paths=[paths_out(page, cursor.next(page.after)) for page, cursor in zip(results.paths, paths, strict=True)],
    )


def _cursor(call: Call[Scope], sent: str | None, where: str, *what: object) -> ListCursor:
    """A cursor of a body, of this subject's items.

    Raises:
        InvalidRequest: It is forged, damaged or another search's.
    """
    try:
        return call.cursor(sent, call.scope.tenant_id, call.scope.subject_id, *what)
    except InvalidRequest as refused:
        detail = refused.faults[0].detail
        raise InvalidRequest(Fault(detail=detail, pointer=f"{where}/cursor")) from None
