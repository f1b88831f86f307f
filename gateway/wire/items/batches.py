"""Several operations on items together."""

from typing import Annotated

from msgspec import Meta

from gateway.wire.base import Request, Response
from gateway.wire.items.items import Item, ItemGet, ItemWrite, WrittenItem
from gateway.wire.items.searches import ItemPage, ItemSearch, PathPage, PathSearch

_Operations = Meta(max_length=100)


class ItemBatch(Request):
    """Up to 100 operations together: reads, which see what was there before the writes, and writes in their order.

    A write that is refused fails alone, unless the batch is ``atomic``: then no write happens.
    """

    gets: Annotated[list[ItemGet], _Operations] = []
    writes: Annotated[list[ItemWrite], _Operations] = []
    searches: Annotated[list[ItemSearch], _Operations] = []
    paths: Annotated[list[PathSearch], _Operations] = []
    atomic: bool = False


class ItemBatchResults(Response):
    """What became of each operation of a batch, in the order of its list; null: there is no such item."""

    gets: list[Item | None]
    writes: list[WrittenItem]
    searches: list[ItemPage]
    paths: list[PathPage]
