"""Reading items in one snapshot: those of some names, and paths.

Reads note what they keep alive (`storage.items.keeping`); they write nothing themselves. An item that is not found by
its name is not looked for further: only who reads a path to its end learns that nothing is missing there.
"""

from collections.abc import Callable, Sequence
from typing import Final

from crypto import Sealer
from storage.concurrency.room import taking
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure
from storage.format.items.item import key_id, open_item, path_id
from storage.items import matching
from storage.items.keeping import Keeping
from storage.items.model import Item, ItemGet, ItemName, Labels, PathSearch
from storage.items.paths import PathList, PathLists
from storage.model import Page, Value
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.items import items as sql
from storage.statements.items import paths as paths_sql

_GETS_AT_ONCE: Final = 8  # items of 256 KiB
Place = tuple[bytes, bytes]


def size_bytes(item: Item) -> int:
    """About how long an item is when it is shown. What is stored may be shorter: it is compressed."""
    return len(item.value.data) + len(item.name.key) + sum(map(len, item.name.path))


class Reading:
    """Reads of one request, in its snapshot."""

    def __init__(
        self, transaction: Transaction, scope: Scope, sealer: Sealer, lists: PathLists, keeping: Keeping
    ) -> None:
        self.transaction = transaction
        self.sealer = sealer
        self.pauses = Pauses()
        self._scope = scope
        self._lists = lists
        self._keeping = keeping
        self._paths: PathList | None = None
        self._take = taking()

    async def gets(self, gets: Sequence[ItemGet]) -> list[Item | None]:
        """The items of some names; None where there is none, or one that is over.

        Raises:
            IntegrityFailure: One is not as it was put.
            GatewayError: The request's tenant, or the process, has no room for them.
        """
        found: list[Item | None] = []
        for start in range(0, len(gets), _GETS_AT_ONCE):
            part = gets[start : start + _GETS_AT_ONCE]
            places = [self._place(each.name) for each in part]
            rows = await self.rows([*dict.fromkeys(places)])
            for get, place in zip(part, places, strict=True):
                row = rows.get(place)
                found.append(None if row is None or row.over else await self._got(get, row))
        return found

    async def _got(self, get: ItemGet, row: sql.ItemRow) -> Item:
        item = await self.opened(row, get.name.path)
        if item.name != get.name:
            raise IntegrityFailure
        self.show(item, row, keep=get.refresh)
        return item

    def show(self, item: Item, row: sql.ItemRow, *, keep: bool) -> None:
        """Count an item that is shown, which keeps it alive.

        Raises:
            GatewayError: The request's tenant, or the process, has no room for it.
        """
        self._take(size_bytes(item))
        if keep:
            self.keep(row)

    def keep(self, row: sql.ItemRow) -> None:
        """Note that an item was shown, which keeps it alive."""
        self._keeping.note(self._scope, row)

    def _place(self, name: ItemName) -> Place:
        in_path = path_id(self.sealer, name.path)
        return in_path, key_id(self.sealer, in_path, name.key)

    async def rows(self, places: Sequence[Place]) -> dict[Place, sql.ItemRow]:
        """The rows at some places; of places at which nothing is, there is none."""
        if not places:
            return {}
        path_ids, key_ids = zip(*places, strict=True)
        rows = await self.transaction.fetch_all(sql.NAMED, path_ids=list(path_ids), key_ids=list(key_ids))
        return {(row.path_id, row.key_id): row for row in rows}

    async def opened(self, row: sql.ItemRow, labels: Labels) -> Item:
        """Open an item of a path; others have their turn now and then.

        Raises:
            IntegrityFailure: It is not as it was put.
        """
        record = open_item(self.sealer, row.columns, row.envelope, row.member)
        await self.pauses.after(max(len(row.envelope), len(record.data)))
        return Item(
            ItemName(labels, record.key),
            Value(record.encoding, record.data),
            row.revision,
            row.created_at,
            row.updated_at,
            row.ttl_seconds,
            row.expires_at,
        )

    # --- paths -----------------------------------------------------------------------------------------------------

    async def all_paths(self) -> PathList:
        """The paths of the subject, as far as the share opens them.

        Raises:
            IntegrityFailure: Paths were removed or added outside the gateway.
        """
        if self._paths is None:
            now = await self.transaction.fetch_only(paths_sql.SCOPE)
            self._paths = await self._lists.read(self.transaction, self._scope, self.sealer, now)
        return self._paths

    async def paths_like(self, choose: Callable[[Labels], bool]) -> dict[bytes, Labels]:
        """The paths that are chosen by their labels, by their names in rows; others have their turn now and then.

        Raises:
            IntegrityFailure: Paths were removed or added outside the gateway.
        """
        found: dict[bytes, Labels] = {}
        for number, (name, labels) in enumerate((await self.all_paths()).labels.items(), 1):
            if choose(labels):
                found[name] = labels
            if number % matching.SLICE_PATHS == 0:
                await self.pauses.now()
        return found

    async def paths(self, wanted: PathSearch) -> Page[Labels]:
        """The paths that a search is about and in which something is.

        Raises:
            IntegrityFailure: Paths were removed or added outside the gateway.
        """
        matches, page = matching.matcher(wanted), matching.PathsPage(wanted)
        names = [*(await self.all_paths()).labels.items()]  # in the order of labels
        for start in range(0, len(names), matching.SLICE_PATHS):
            part = {
                name: labels
                for name, labels in names[start : start + matching.SLICE_PATHS]
                if matches(labels) and page.may_show(labels)
            }
            if part:
                found = {*await self.transaction.fetch_all(paths_sql.WITH_ITEMS, path_ids=[*part])}
                for name, labels in part.items():
                    if name in found:
                        page.add(labels)
            if page.is_full:
                break
            await self.pauses.now()
        shown, after = page.end()
        self._take(sum(len(label) for each in shown for label in each))
        return Page(shown, after)
