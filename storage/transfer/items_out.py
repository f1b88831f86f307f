"""Items on their way out: a subject's paths one after another, each as it was at one moment.

A path is read into a spool in one snapshot, a few rows at a time, and its rows are compared with its seal there; so no
connection waits for whoever takes the records, and a path takes memory for the order of its items alone. What does not
agree with its seal, or does not open, is named and left out, and hides nothing else: an item by itself, a path whole.
What is over stays here. What is under another client's share than the one that was sent is counted.
"""

from array import array
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, NotFound
from storage.format.chain import LiveSet
from storage.format.export import (
    ItemRecord,
    PathEnding,
    PathRecord,
    PathsLeftOut,
    Record,
    RunningDigest,
    encode,
)
from storage.format.items.item import open_item, open_labels, share_check
from storage.format.items.seals import PathSeal, item_mac, path_mac
from storage.items.model import Labels
from storage.items.paths import check_scope
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope
from storage.statements.items import exporting as sql
from storage.statements.items import paths as paths_sql
from storage.transfer.spool import Spool

# Rows that are read at a time; each may have a quarter of a mebibyte.
_ITEM_ROWS: Final = 32
_PATH_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Listed:
    """A subject's paths in one snapshot.

    Attributes:
        open: The names of those that the share opens, and of those that need none.
        closed: How many are under another share.
        is_whole: Whether they are those that the subject's seal counts.
    """

    open: list[bytes]
    closed: int
    is_whole: bool


@dataclass(slots=True)
class _SpooledPath:
    """A path at one moment. Its items are as they are stored, sealed; those that are over are not among them.

    Attributes:
        sealer: What opens its items.
        row: Its own row.
        labels: Its labels.
        is_whole: Whether its items are those that its seal counts.
        items: Its items.
    """

    sealer: Sealer
    row: sql.ExportedPath
    labels: Labels
    is_whole: bool = False
    items: Spool = field(default_factory=Spool)
    _revisions: "array[int]" = field(default_factory=lambda: array("q"))
    _places: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, item: sql.ExportedItem) -> None:
        """Add an item, whatever its revision is."""
        self._revisions.append(item.revision)
        self._places.append(self.items.add(*msgspec.structs.astuple(item)))

    def by_revision(self) -> list[int]:
        """Where the items are in the spool, in the order of their revisions."""
        numbers = sorted(range(len(self._revisions)), key=self._revisions.__getitem__)
        return [self._places[number] for number in numbers]


class ItemsOut:
    """The way out of items."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def of_subject(
        self, scope: Scope, share: ClientShare | None, damaged: list[str]
    ) -> AsyncGenerator[Record | bytes, None]:
        """The records of a subject's paths, those of items encoded; ``damaged`` gets the names of what is left out.

        Names are those in rows: what clients call their paths and keys is for nobody but them.
        """
        try:
            listed = await self._listed(scope, share)
        except (NotFound, KeyDestroyed):  # a subject without keys has no items
            return
        except IntegrityFailure:
            damaged.append(_named(scope))
            yield PathsLeftOut(scope.subject_id, "damaged", 0, None)
            return
        if listed.closed:
            yield PathsLeftOut(scope.subject_id, "client-share", listed.closed, None)
        if not listed.is_whole:
            damaged.append(_named(scope))
            yield PathsLeftOut(scope.subject_id, "damaged", 0, None)
        for path_id in listed.open:
            async with aclosing(self._path(scope, share, path_id, damaged)) as records:
                async for each in records:
                    yield each

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _listed(self, scope: Scope, share: ClientShare | None) -> _Listed:
        async def attempt(sealer: Sealer) -> _Listed:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                now = await transaction.fetch_only(paths_sql.SCOPE)
                wanted = {None, share_check(sealer)}
                found, closed, counted, after = list[bytes](), 0, LiveSet(), b""
                while True:
                    rows = await transaction.fetch_all(paths_sql.PATHS_AFTER, path_id=after, page_rows=_PATH_ROWS)
                    for row in rows:
                        after = row.path_id
                        counted = counted.add(path_mac(sealer, row.path_id, row.share_check))
                        if row.share_check in wanted:
                            found.append(row.path_id)
                        else:
                            closed += 1
                    if len(rows) < _PATH_ROWS:
                        break
            try:
                check_scope(sealer, now.sequence, now.seal, counted)
            except IntegrityFailure:
                self._access.found_damage()
                return _Listed(found, closed, is_whole=False)
            return _Listed(found, closed, is_whole=True)

        return await self._access.with_existing_keys(scope, attempt, NotFound(), share)

    async def _spooled(self, scope: Scope, share: ClientShare | None, path_id: bytes) -> _SpooledPath:
        """Read a path; the caller closes it.

        Raises:
            NotFound: It is gone by now.
            IntegrityFailure: Its seal or its labels do not open.
        """

        async def attempt(sealer: Sealer) -> _SpooledPath:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                row = await transaction.fetch_one(sql.EXPORTED_PATH, path_id=path_id)
                if row is None:
                    raise NotFound
                own = sealer if row.share_check is not None else sealer.without_share
                seal = PathSeal.open(own, row.path_id, row.share_check, row.sequence, row.seal)
                spooled = _SpooledPath(own, row, open_labels(own, row.path_id, row.labels))
                try:
                    spooled.is_whole = await _read(transaction, spooled) == seal.items
                except BaseException:
                    spooled.items.close()
                    raise
                return spooled

        return await self._access.with_existing_keys(scope, attempt, NotFound(), share)

    # --- sending -----------------------------------------------------------------------------------------------------

    async def _path(
        self, scope: Scope, share: ClientShare | None, path_id: bytes, damaged: list[str]
    ) -> AsyncGenerator[Record | bytes, None]:
        """A path, or that it is left out; nothing of one that is gone by now, or in which everything is over."""
        try:
            spooled = await self._spooled(scope, share, path_id)
        except IntegrityFailure:
            damaged.append(_named(scope, path_id))
            yield PathsLeftOut(scope.subject_id, "damaged", 1, None)
            return
        except (NotFound, KeyDestroyed):
            return
        try:
            if not spooled.is_whole:
                self._access.found_damage()
                damaged.append(_named(scope, path_id))
                yield PathsLeftOut(scope.subject_id, "damaged", 1, [*spooled.labels])
            elif spooled.items.count:
                async for each in self._items(scope, spooled, damaged):
                    yield each
        finally:
            spooled.items.close()

    async def _items(
        self, scope: Scope, spooled: _SpooledPath, damaged: list[str]
    ) -> AsyncGenerator[Record | bytes, None]:
        digest, pauses = RunningDigest(), Pauses()
        path_id = spooled.row.path_id
        items = left_out = 0

        def out(record: Record) -> bytes:
            encoded = encode(record)
            digest.add(encoded)
            return encoded

        row = spooled.row
        yield out(PathRecord(scope.subject_id, [*spooled.labels], row.share_check is not None, row.sequence))
        for place in spooled.by_revision():
            item = sql.ExportedItem(*spooled.items.get(place))
            await pauses.after(len(item.envelope))
            try:
                record = open_item(spooled.sealer, item.columns(path_id), item.envelope, item.member)
            except IntegrityFailure:
                self._access.found_damage()
                damaged.append(_named(scope, path_id, item.key_id))
                left_out += 1
                continue
            items += 1
            yield out(
                ItemRecord(
                    record.key, record.encoding, record.data, item.revision, item.ttl_seconds, item.created_at,
                    item.updated_at, item.expires_at,
                )
            )  # fmt: skip
        yield PathEnding(items, left_out, digest.digest())


async def _read(transaction: Transaction, spooled: _SpooledPath) -> LiveSet:
    """Read the items of a path; returns their live set, which has those that are over, too."""
    path_id, found, after = spooled.row.path_id, LiveSet(), b""
    while True:
        rows = await transaction.fetch_all(sql.ITEMS_AFTER, path_id=path_id, key_id=after, page_rows=_ITEM_ROWS)
        for row in rows:
            found = found.add(item_mac(spooled.sealer, path_id, row.key_id, row.member))
            after = row.key_id
            if not row.over:
                spooled.add(row)
        if len(rows) < _ITEM_ROWS:
            return found


def _named(scope: Scope, *names: bytes) -> str:
    """Where damage is, by its names in rows."""
    return "/".join([scope.subject_id, "items", *(each.hex() for each in names)])
