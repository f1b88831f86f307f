# Generated from async_items.py by `make generate`: change that, not this.
"""Items of callers that block: what agents remember across threads.

This module owns the verbs on items. Writes are repeated safely where an answer was lost; it promises no order between
requests that are under way at the same time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, structs

from stateroom._io.blocking import finished
from stateroom._items import requests
from stateroom._items.requests import told
from stateroom._items.shapes import (
    Item,
    ItemBatch,
    ItemBatchResults,
    ItemPathSearch,
    ItemSearch,
    ItemVectors,
    ItemWrite,
    ItemWritten,
    Near,
    Path,
    Reindexed,
    labels,
)
from stateroom._protocol.core import Pinned, Steps
from stateroom._protocol.wire import Page

R = TypeVar("R")
Made = list[ItemVectors | None]


class Driver(Protocol):
    """What items need of a client."""

    def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure of calls."""

    def paged(self, page_of: Callable[[int, str | None], Steps[Page[R]]], limit: int | None) -> Iterator[R]:
        """The items of a list, page by page."""


class Items:
    """What the subject of a client remembers: values under paths.

    A path is a sequence of labels, such as ``("memories", "flights")``; a key names an item in it. Values are mappings
    of what MessagePack can say, up to 256 KiB each. Made by ``Client.items``.
    """

    def __init__(self, client: Driver) -> None:
        self._client = client

    def put(
        self,
        path: Iterable[str],
        key: str,
        value: Mapping[str, Any],
        *,
        ttl_seconds: int | None = None,
        vectors: Iterable[ItemVectors] = (),
        if_revision: int | None = None,
        if_absent: bool = False,
    ) -> ItemWritten:
        """Put an item, in the place of one that is there.

        Args:
            path: The labels that it stands under.
            key: Its name there.
            value: What to put.
            ttl_seconds: How long it lives after it was put or last read; left out: until it is deleted.
            vectors: By which it is found by what it means; they replace all that it had.
            if_revision: Only if this is its revision.
            if_absent: Only if there is none.

        Raises:
            ItemMoved: It is not at ``if_revision``.
            ItemExists: There is one, and ``if_absent`` was asked for.
            LegalHold: It would replace what must be kept.
        """
        write = ItemWrite(
            path=labels(path),
            key=key,
            value=value,
            ttl_seconds=ttl_seconds,
            vectors=list(vectors),
            if_revision=if_revision,
            if_absent=if_absent,
        )
        return self._client.drive(requests.put(write))

    def get(self, path: Iterable[str], key: str, *, refresh: bool = True) -> Item | None:
        """An item; ``None`` when there is none, or its time is over.

        Args:
            path: The labels that it stands under.
            key: Its name there.
            refresh: Whether one with a time to live gets that anew.
        """
        return self._client.drive(requests.get(labels(path), key, refresh=refresh))

    def delete(self, path: Iterable[str], key: str, *, if_revision: int | None = None) -> bool:
        """Delete an item; returns whether there was one.

        Args:
            path: The labels that it stands under.
            key: Its name there.
            if_revision: Only if this is its revision.

        Raises:
            ItemMoved: It is not at ``if_revision``.
            LegalHold: It must be kept.
        """
        return self._client.drive(requests.delete(labels(path), key, if_revision))

    def search(
        self,
        prefix: Iterable[str] = (),
        *,
        near: Near | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the field's word
        limit: int | None = None,
        offset: int = 0,
        refresh: bool = True,
    ) -> Iterator[Item]:
        """Items whose paths begin with ``prefix``, the last changed first or the nearest, page by page.

        Args:
            prefix: The labels that their paths begin with; left out: all of the subject's.
            near: The vector that theirs are near to; those without any are left out.
            filter: What members of their values must be, as ``ItemSearch`` says.
            limit: At most so many; left out: all.
            offset: How many to leave out first.
            refresh: Whether those with a time to live get that anew.
        """
        wanted = ItemSearch(
            prefix=labels(prefix),
            near=UNSET if near is None else near,
            filter=UNSET if filter is None else filter,
            offset=offset,
            refresh=refresh,
        )
        return self._client.paged(
            lambda size, cursor: requests.search(structs.replace(wanted, limit=size, cursor=cursor)), limit
        )

    def paths(
        self,
        prefix: Iterable[str] = (),
        *,
        suffix: Iterable[str] = (),
        max_depth: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[Path]:
        """Paths that have items, in the order of their labels, page by page.

        Args:
            prefix: The labels that they begin with; ``*`` stands for any one.
            suffix: The labels that they end with, likewise.
            max_depth: Longer ones are cut to so many labels, and told once.
            limit: At most so many; left out: all.
            offset: How many to leave out first.
        """
        wanted = ItemPathSearch(prefix=labels(prefix), suffix=labels(suffix), max_depth=max_depth, offset=offset)
        return self._client.paged(
            lambda size, cursor: requests.paths(structs.replace(wanted, limit=size, cursor=cursor)), limit
        )

    def reindex(
        self,
        vectors_of: Callable[[list[Item]], Made],
        prefix: Iterable[str] = (),
        *,
        cursor: str | None = None,
        progress: Callable[[Reindexed], object] = lambda _: None,
    ) -> Reindexed:
        """Give items vectors of another model, beside those they have: both are searched meanwhile, each by its name.

        Args:
            vectors_of: Makes the vectors of up to 100 items, in their order, ``None`` for one that gets none;
                a function.
            prefix: The labels that their paths begin with; left out: all of the subject's.
            cursor: Where an earlier one stopped, as ``progress`` was told.
            progress: Called after each 100 items.

        Returns:
            What was done. Items that are put meanwhile are not looked at: who puts them gives them vectors.

        Raises:
            StateroomError: The gateway refused; ``progress`` was told where to go on.
        """
        done = Reindexed(cursor=cursor)
        while True:
            wanted = ItemSearch(prefix=labels(prefix), limit=requests.OPERATIONS_MAX, cursor=done.cursor, refresh=False)
            page = self._client.drive(requests.search(wanted))
            made: Made = finished(vectors_of(page.items)) if page.items else []
            writes = [
                ItemWrite(path=each.path, key=each.key, vectors=[vectors], if_revision=each.revision)
                for each, vectors in zip(page.items, made, strict=True)
                if vectors is not None
            ]
            written = (self._client.drive(requests.batch(ItemBatch(writes=writes)))).writes if writes else []
            done = told(done, page, written)
            progress(done)
            if done.cursor is None:
                return done

    def batch(self, operations: ItemBatch) -> ItemBatchResults:
        """Up to 100 operations in one request: reads, which see what was there before, and writes.

        Args:
            operations: What to read and to write. A write that is refused fails alone, unless ``atomic`` is asked for.
        """
        return self._client.drive(requests.batch(operations))
