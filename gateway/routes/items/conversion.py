"""Between bodies and the model of items: what is asked, and what is shown.

Owns the checks of a body that its shape cannot say. A write whose value cannot be stored is refused by itself.
"""

import sys
from array import array
from collections.abc import Callable, Sequence

import msgpack
import msgspec
from msgspec import UNSET, Raw

from gateway.admission import limits
from gateway.admission.slices import Work
from gateway.bodies.codec import value_in, value_out
from gateway.bodies.scanning import Format
from gateway.http.cursors import ListCursor
from gateway.http.exchange import Exchange
from gateway.problems import InvalidRequest, describe, pointer
from gateway.routing.operations import Call
from gateway.wire.items import items, searches
from gateway.wire.problems import Fault
from storage.encoding import decode_json
from storage.errors import InvalidState, LimitExceeded, StorageError
from storage.format.items.vectors import quantized
from storage.items import filters, model
from storage.items.filters import ITEM_FILTER_BYTES_MAX, Filter
from storage.items.writing import Outcome
from storage.model import Page, Value
from storage.scope import Scope

_SLICE_BYTES = 64 * 1024
_ITEM_BYTES = 2 * 1024  # what an item or a filter counts for beside its bytes
_ENVELOPE_BYTES = 512  # what an item that is shown takes at most beside its value and its name
_ESCAPED = 6  # what a character of a name takes at most
_FLOAT_BYTES = 4
_FLOAT_MAX = 3.4e38
# Opens the cursor of a search: as it was sent, where it stands, and what it is about.
CursorOf = Callable[..., ListCursor]
_MAPS = {0xDE, 0xDF}


# --- in -------------------------------------------------------------------------------------------------------------


def labels_in(labels: list[str], where: str, *, least: int = 0) -> model.Labels:
    """A path of a body; ``where`` is its pointer."""
    model.check_labels(tuple(labels), where, least=least)
    return tuple(labels)


def name_in(path: list[str], key: str, where: str = "") -> model.ItemName:
    """The name of an item of a body; ``where`` is the pointer of what has it."""
    model.check_key(key, f"{where}/key")
    return model.ItemName(labels_in(path, f"{where}/path", least=1), key)


def map_in(name: Format, raw: Raw, where: str) -> Work[Value]:
    """An item's value: a map, as storage keeps it.

    Raises:
        InvalidState: It is no map, or is in an encoding that the gateway does not read.
        LimitExceeded: It has more bytes than an item may.
    """
    value = yield from value_in(name, raw, where)
    if len(value.data) > model.ITEM_VALUE_BYTES_MAX:
        raise LimitExceeded("ITEM_VALUE_BYTES_MAX", model.ITEM_VALUE_BYTES_MAX, len(value.data), where)
    if not _is_map(value):
        raise InvalidState("an item's value is an object", where)
    return value


def _is_map(value: Value) -> bool:
    first = value.data[:1]
    if value.encoding == "json":
        return first == b"{"
    return value.encoding == "msgpack" and bool(first) and (first[0] & 0xF0 == 0x80 or first[0] in _MAPS)


def filter_in(name: Format, raw: Raw, where: str) -> Filter:
    """A filter of a body.

    Raises:
        LimitExceeded: It is longer than a filter may be.
        InvalidState: It is none.
    """
    if len(memoryview(raw)) > ITEM_FILTER_BYTES_MAX:
        raise LimitExceeded("ITEM_FILTER_BYTES_MAX", ITEM_FILTER_BYTES_MAX, len(memoryview(raw)), where)
    try:
        source = decode_json(raw) if name == "json" else msgpack.unpackb(raw, strict_map_key=True, timestamp=0)
    except (ValueError, msgspec.DecodeError, msgpack.UnpackException, RecursionError):
        raise InvalidState("a filter is an object whose keys are texts", where) from None
    return filters.parse(source, where)


class _Slice:
    """How much of a slice of work is done."""

    def __init__(self) -> None:
        self._bytes = 0

    def is_full_after(self, size_bytes: int) -> bool:
        """Whether others have their turn after so much."""
        self._bytes += size_bytes + _ITEM_BYTES
        if self._bytes < _SLICE_BYTES:
            return False
        self._bytes = 0
        return True


def searches_in(
    exchange_format: Format, sent: list[searches.ItemSearch], cursor_of: CursorOf
) -> Work[list[tuple[model.ItemSearch, ListCursor]]]:
    """The searches of a body, each with its cursor."""
    made = []
    part = _Slice()
    for number, each in enumerate(sent):
        made.append(search_in(exchange_format, each, cursor_of, pointer("searches", number)))
        if part.is_full_after(ITEM_FILTER_BYTES_MAX):
            yield
    return made


def vectors_in(sent: list[items.ItemVectors], where: str) -> Work[tuple[model.ModelVectors, ...]]:
    """The vectors of a body, as storage keeps them.

    Raises:
        InvalidState: They are none, or not of one length; a model comes twice, or a number is not finite.
        LimitExceeded: They have too many dimensions, or there are too many.
    """
    made: list[model.ModelVectors] = []
    for number, each in enumerate(sent):
        here = f"{where}/{number}"
        if len(each.vectors) + len(each.packed) > model.ITEM_VECTORS_MAX:
            found = len(each.vectors) + len(each.packed)
            raise LimitExceeded("ITEM_VECTORS_MAX", model.ITEM_VECTORS_MAX, found, here)
        if any(other.model == each.model for other in made):
            raise InvalidState("a model comes once", f"{here}/model")
        kept = []
        for n, vector in enumerate(each.vectors):
            kept.append(quantized(numbers_in(vector, f"{here}/vectors/{n}")))
            yield
        for n, packed in enumerate(each.packed):
            kept.append(quantized(unpacked(packed, f"{here}/packed/{n}")))
            yield
        if len({len(vector.codes) for vector in kept}) != 1:
            raise InvalidState("vectors of a model are at least one, all of the same length", here)
        made.append(model.ModelVectors(each.model, tuple(kept)))
    return tuple(made)


def numbers_in(numbers: Sequence[float], where: str) -> Sequence[float]:
    """A vector of a body.

    Raises:
        InvalidState: A number is not finite, or is larger than a 32-bit float is.
        LimitExceeded: It has too many dimensions.
    """
    if len(numbers) > model.ITEM_DIMENSIONS_MAX:
        raise LimitExceeded("ITEM_DIMENSIONS_MAX", model.ITEM_DIMENSIONS_MAX, len(numbers), where)
    if not all(abs(each) <= _FLOAT_MAX for each in numbers):
        raise InvalidState("the numbers of a vector are finite, and no larger than a 32-bit float is", where)
    return numbers


def unpacked(packed: bytes, where: str) -> Sequence[float]:
    """A packed vector of a body.

    Raises:
        InvalidState, LimitExceeded: As `numbers_in`; or it has no whole number of floats.
    """
    if not packed or len(packed) % _FLOAT_BYTES:
        raise InvalidState("a packed vector has four bytes for each dimension", where)
    numbers = array("f", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers_in(numbers, where)


def near_in(sent: searches.Near, where: str) -> model.Near:
    """What a body searches by.

    Raises:
        InvalidState, LimitExceeded: As `numbers_in`; or the vector comes in no form, or in both.
    """
    if (sent.vector is UNSET) == (sent.packed is UNSET):
        raise InvalidState("send either vector or packed", where)
    if sent.vector is not UNSET:
        values = numbers_in(sent.vector, f"{where}/vector")
    else:
        values = unpacked(b"" if sent.packed is UNSET else sent.packed, f"{where}/packed")
    return model.Near(sent.model, tuple(values), sent.metric)


def search_in(
    exchange_format: Format, sent: searches.ItemSearch, cursor_of: CursorOf, where: str = ""
) -> tuple[model.ItemSearch, ListCursor]:
    """A search of a body, with its cursor."""
    prefix = labels_in(sent.prefix, f"{where}/prefix")
    near = None if sent.near is UNSET else near_in(sent.near, f"{where}/near")
    what = (b"" if sent.filter is UNSET else bytes(sent.filter), near and (near.model, near.metric, near.values))
    cursor = cursor_of(sent.cursor, where, "search", prefix, *what)
    wanted = model.ItemSearch(
        prefix=prefix,
        filter=None if sent.filter is UNSET else filter_in(exchange_format, sent.filter, f"{where}/filter"),
        limit=sent.limit,
        offset=sent.offset,
        after=cursor.after,
        refresh=sent.refresh,
        near=near,
    )
    return wanted, cursor


def path_search_in(
    sent: searches.PathSearch, cursor_of: CursorOf, where: str = ""
) -> tuple[model.PathSearch, ListCursor]:
    """A search of paths of a body, with its cursor."""
    prefix, suffix = labels_in(sent.prefix, f"{where}/prefix"), labels_in(sent.suffix, f"{where}/suffix")
    cursor = cursor_of(sent.cursor, where, "paths", prefix, suffix, sent.max_depth)
    wanted = model.PathSearch(
        prefix=prefix,
        suffix=suffix,
        max_depth=sent.max_depth,
        limit=sent.limit,
        offset=sent.offset,
        after=cursor.after,
    )
    return wanted, cursor


def puts_in(writes: list[items.ItemWrite], name: Format) -> Work[list[model.ItemWrite]]:
    """The items that are put with a checkpoint.

    Raises:
        InvalidRequest: One is to be deleted; or as `writes_in`.
        InvalidState, LimitExceeded: One cannot be stored.
    """
    made: list[model.ItemWrite] = []
    for number, sent in enumerate(writes):
        if sent.delete:
            raise InvalidRequest(Fault(detail="a save puts items, and deletes none", pointer=f"/items/{number}/delete"))
        _check_write(sent, pointer("items", number))
        made.append((yield from _write_in(sent, name, pointer("items", number))))
        yield
    return made


def _check_write(sent: items.ItemWrite, where: str) -> None:
    if sent.delete + (sent.value is not UNSET or bool(sent.vectors)) != 1:
        detail = "send a value, or delete: true, or vectors of an item that is there"
        raise InvalidRequest(Fault(detail=detail, pointer=where))
    if sent.if_absent and (sent.delete or sent.if_revision is not None):
        detail = "if_absent goes with a value, and not with if_revision"
        raise InvalidRequest(Fault(detail=detail, pointer=f"{where}/if_absent"))


def writes_in(writes: list[items.ItemWrite], name: Format) -> Work[list[model.ItemWrite | StorageError]]:
    """The writes of a body; in the place of one whose value cannot be stored, what refuses it."""
    made: list[model.ItemWrite | StorageError] = []
    part = _Slice()
    for number, sent in enumerate(writes):
        where = pointer("writes", number)
        _check_write(sent, where)
        try:
            made.append((yield from _write_in(sent, name, where)))
        except (InvalidState, LimitExceeded) as refusal:
            made.append(refusal)
        if part.is_full_after(0 if sent.value is UNSET else len(sent.value)):
            yield
    return made


def _write_in(sent: items.ItemWrite, name: Format, where: str) -> Work[model.ItemWrite]:
    return model.ItemWrite(
        name_in(sent.path, sent.key, where),
        None if sent.value is UNSET else (yield from map_in(name, sent.value, f"{where}/value")),
        sent.ttl_seconds,
        sent.if_revision,
        sent.if_absent,
        (yield from vectors_in(sent.vectors, f"{where}/vectors")),
    )


# --- out ------------------------------------------------------------------------------------------------------------


def item_out(item: model.Item, name: Format) -> Work[items.Item]:
    """An item as it is shown."""
    value = yield from value_out(name, item.value)
    return items.Item(
        path=list(item.name.path),
        key=item.name.key,
        value=value,
        revision=item.revision,
        created_at=item.created_at,
        updated_at=item.updated_at,
        ttl_seconds=UNSET if item.ttl_seconds is None else item.ttl_seconds,
        expires_at=UNSET if item.expires_at is None else item.expires_at,
        score=UNSET if item.score is None else item.score,
    )


async def items_out(exchange: Exchange, found: list[model.Item | None]) -> list[items.Item | None]:
    """Items as they are shown, made in slices if they are large, and counted as what the request holds.

    Raises:
        AnswerTooLarge: No tenant may hold as much.
        Overloaded, TenantBusy: The process or the tenant has no room for them.
    """
    size_bytes = sum(len(each.value.data) + _ITEM_BYTES for each in found if each is not None)
    return await exchange.reservation.run(_items_out(exchange, found), size_bytes)


def _items_out(exchange: Exchange, found: list[model.Item | None]) -> Work[list[items.Item | None]]:
    shown: list[items.Item | None] = []
    part, size_bytes = _Slice(), sum(len(each.value.data) for each in found if each is not None)
    for item in found:
        if item is not None:
            made = yield from item_out(item, exchange.format)
            more = len(made.value) + _ENVELOPE_BYTES + _ESCAPED * (len(made.key) + sum(map(len, made.path)))
            size_bytes += more
            if size_bytes > limits.TENANT_HELD_BYTES_MAX:
                raise limits.AnswerTooLarge
            exchange.reservation.take(more)
        shown.append(None if item is None else made)
        if part.is_full_after(0 if item is None else len(item.value.data)):
            yield
    return shown


async def page_out(exchange: Exchange, page: Page[model.Item], next_cursor: str | None) -> searches.ItemPage:
    """A page of a search as it is shown."""
    shown = await items_out(exchange, [*page.items])
    return searches.ItemPage(items=[each for each in shown if each is not None], next_cursor=next_cursor)


def paths_out(page: Page[model.Labels], next_cursor: str | None) -> searches.PathPage:
    """A page of paths as it is shown."""
    return searches.PathPage(paths=[list(each) for each in page.items], next_cursor=next_cursor)


def written_out(call: Call[Scope], outcome: Outcome | None) -> items.WrittenItem:
    """What became of a write, as it is shown."""
    if outcome is None:
        return items.WrittenItem(status="undone")
    if isinstance(outcome, StorageError):
        facts = call.exchange.facts
        public_url = call.services.settings.public_url
        problem, _ = describe(outcome, public_url=public_url, request_id=facts.request_id)
        return items.WrittenItem(status="refused", problem=problem)
    return items.WrittenItem(
        status=outcome.status,
        revision=UNSET if outcome.revision is None else outcome.revision,
        created_at=UNSET if outcome.created_at is None else outcome.created_at,
        updated_at=UNSET if outcome.updated_at is None else outcome.updated_at,
        expires_at=UNSET if outcome.expires_at is None else outcome.expires_at,
    )
