"""A subject's paths: their opened labels, their seals, and how they come and go.

Owns that the paths there are, are those that the subject's seal counts: whoever lists them compares. What was opened is
kept for as long as that seal's bytes stay the same, in memory that is bounded for the process, and not for long: never
what is under a client's share, and nothing of a subject whose keys are gone. It does not know what is in a path.
"""

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from crypto import Sealer
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, ItemPathsExceeded, LostRaceError
from storage.format.chain import LiveSet
from storage.format.items.item import open_labels, seal_labels, share_check
from storage.format.items.seals import PathSeal, ScopeSeal, path_mac
from storage.items.model import ITEM_PATHS_MAX, Labels
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.items import paths as sql
from storage.statements.rules.retention import SHARE_HOLDS

LISTS_BYTES_MAX: Final = 32 * 1024 * 1024
# About as long as keys are cached.
LIST_SECONDS: Final = 300.0
_PAGE_ROWS: Final = 1_000
_PATH_BYTES: Final = 200  # what a path takes in memory besides its labels
_NO_SEQUENCE: Final = 0
NOTHING: Final = LiveSet()


@dataclass(frozen=True, slots=True)
class PathList:
    """The paths of a subject that one sealer opens.

    Attributes:
        labels: By the path's name in rows, in the order of labels.
        seal: The subject's seal that they were compared with; None: it has none, hence no paths.
    """

    labels: Mapping[bytes, Labels]
    seal: bytes | None

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return _PATH_BYTES + sum(_PATH_BYTES + sum(map(len, each)) for each in self.labels.values())


class PathLists:
    """Lists of paths that were opened, the last opened of all subjects."""

    def __init__(self, bytes_max: int = LISTS_BYTES_MAX, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bytes_max = bytes_max
        self._monotonic = monotonic
        # By subject, in the order of when they were opened; never used longer than their keys.
        self._lists: OrderedDict[Scope, tuple[float, PathList]] = OrderedDict()
        self._bytes = 0

    @property
    def subjects(self) -> int:
        """The number of subjects of which paths are kept."""
        return len(self._lists)

    async def read(self, transaction: Transaction, scope: Scope, sealer: Sealer, now: sql.ScopeNow) -> PathList:
        """The paths of a subject in a snapshot, which also gave ``now``.

        Raises:
            IntegrityFailure: A path was removed, added or edited outside the gateway.
        """
        self.forget_old()
        known = None if sealer.shared else self._lists.get(scope)
        if known is not None and known[1].seal == now.seal:
            return known[1]
        opened = await _opened(transaction, sealer, now)
        if not sealer.shared:
            self._keep(scope, opened)
        return opened

    def _keep(self, scope: Scope, opened: PathList) -> None:
        self.forget(scope)
        if opened.bytes > self._bytes_max:
            return
        self._lists[scope] = self._monotonic(), opened
        self._bytes += opened.bytes
        while self._bytes > self._bytes_max:
            self.forget(next(iter(self._lists)))

    def forget(self, scope: Scope) -> None:
        """Forget a subject's paths: its keys are gone, or others are known now."""
        known = self._lists.pop(scope, None)
        self._bytes -= 0 if known is None else known[1].bytes

    def forget_old(self) -> None:
        """Forget what was opened a while ago: nobody may come to say that its keys are gone."""
        oldest = self._monotonic() - LIST_SECONDS
        while self._lists and next(iter(self._lists.values()))[0] <= oldest:
            self.forget(next(iter(self._lists)))


async def _opened(transaction: Transaction, sealer: Sealer, now: sql.ScopeNow) -> PathList:
    labels: dict[bytes, Labels] = {}
    counted = LiveSet()
    wanted = share_check(sealer)
    pauses = Pauses()
    after = b""
    while True:
        rows = await transaction.fetch_all(sql.LABELS_AFTER, path_id=after, page_rows=_PAGE_ROWS)
        for row in rows:
            after = row.path_id
            counted = counted.add(path_mac(sealer, row.path_id, row.share_check))
            if row.share_check == wanted:
                labels[row.path_id] = open_labels(sealer, row.path_id, row.labels)
                await pauses.after(len(row.labels))
        if len(rows) < _PAGE_ROWS:
            break
    check_scope(sealer, now.sequence, now.seal, counted)
    return PathList(await _in_order(labels, pauses), now.seal)


async def _in_order(labels: Mapping[bytes, Labels], pauses: Pauses) -> dict[bytes, Labels]:
    """The same in the order of labels: sorted in parts, because all of them at once take a tenth of a second."""
    unsorted = [(each, name) for name, each in labels.items()]
    parts = []
    for start in range(0, len(unsorted), _PAGE_ROWS):
        parts.append(sorted(unsorted[start : start + _PAGE_ROWS]))
        await pauses.now()
    ordered: dict[bytes, Labels] = {}
    for each, name in heapq.merge(*parts):
        ordered[name] = each
        if len(ordered) % _PAGE_ROWS == 0:
            await pauses.now()
    return ordered


def check_scope(sealer: Sealer, sequence: int | None, seal: bytes | None, counted: LiveSet) -> None:
    """Compare the paths that are there with those that the subject's seal counts.

    Raises:
        IntegrityFailure: They are others.
    """
    known = LiveSet() if seal is None or sequence is None else ScopeSeal.open(sealer, sequence, seal).paths
    if known != counted:
        raise IntegrityFailure("paths of items were removed or added outside the gateway")


@dataclass(slots=True)
class LockedPath:
    """A path whose row is locked, as it will be written.

    Attributes:
        path_id: Its name in rows.
        share_check: What tells the client's share that its labels are under; None: none.
        sequence: How many changes it has had.
        items: The live set of its items.
        vectors: The live set of the rows of their vectors.
    """

    path_id: bytes
    share_check: bytes | None
    sequence: int
    items: LiveSet
    vectors: LiveSet = NOTHING

    @classmethod
    def of(cls, sealer: Sealer, row: sql.PathRow) -> "LockedPath":
        """Open a path's row.

        Raises:
            IntegrityFailure: It was edited outside the gateway.
        """
        seal = PathSeal.open(sealer, row.path_id, row.share_check, row.sequence, row.seal)
        return cls(row.path_id, row.share_check, row.sequence, seal.items, seal.vectors)

    def columns(self, sealer: Sealer) -> dict[str, object]:
        """What is stored of it when it changed."""
        seal = PathSeal(self.items, self.vectors).seal(sealer, self.path_id, self.share_check, self.sequence)
        return {"path_id": self.path_id, "sequence": self.sequence, "seal": seal}


async def lock_paths(
    transaction: Transaction, sealer: Sealer, path_ids: Iterable[bytes], holds: str
) -> dict[bytes, LockedPath]:
    """Lock those of some paths that are there, in one order for everybody, and after them what holds the tenant's rows.

    Whoever sets a legal hold waits for removals that are under way: what is put may replace something. Where no path is
    there is nothing to replace. The lock of holds is a statement of its own, because it belongs to no table, and what
    holds is read after it.

    Args:
        transaction: The transaction that writes.
        sealer: The scope's sealer.
        path_ids: The names of the paths in rows.
        holds: The name of the tenant's lock of holds.

    Raises:
        IntegrityFailure: One was edited outside the gateway.
    """
    rows = await transaction.fetch_all(sql.LOCK_PATHS, path_ids=sorted(path_ids))
    if rows:
        await transaction.run(SHARE_HOLDS, lock=holds)
    return {row.path_id: LockedPath.of(sealer, row) for row in rows}


async def add_paths(
    transaction: Transaction, sealer: Sealer, missing: Mapping[bytes, Labels]
) -> dict[bytes, LockedPath]:
    """Make paths that are not there yet, which are locked then.

    Raises:
        ItemPathsExceeded: The subject has as many as it may.
        LostRaceError: Another transaction made one of them at this moment.
        IntegrityFailure: The subject's seal was edited outside the gateway.
    """
    sequence, scope = await _locked_scope(transaction, sealer)
    if scope.paths.count + len(missing) > ITEM_PATHS_MAX:
        raise ItemPathsExceeded
    made = {}
    counted = scope.paths
    for path_id in sorted(missing):
        path = made[path_id] = LockedPath(path_id, share_check(sealer), scope.floor, LiveSet())
        labels = seal_labels(sealer, path_id, missing[path_id])
        columns = path.columns(sealer)
        if not await transaction.fetch_one(sql.ADD_PATH, **columns, share_check=path.share_check, labels=labels):
            raise LostRaceError
        counted = counted.add(path_mac(sealer, path_id, path.share_check))
    await _set_scope(transaction, sealer, sequence + 1, ScopeSeal(counted, scope.floor))
    return made


async def raise_floor(transaction: Transaction, sealer: Sealer, floor: int) -> None:
    """Let paths that are made later begin at no less, as those of a subject that removed some elsewhere.

    Raises:
        IntegrityFailure: The subject's seal was edited outside the gateway.
    """
    sequence, scope = await _locked_scope(transaction, sealer)
    if scope.floor < floor:
        await _set_scope(transaction, sealer, sequence + 1, ScopeSeal(scope.paths, floor))


async def _locked_scope(transaction: Transaction, sealer: Sealer) -> tuple[int, ScopeSeal]:
    """The subject's row, which is made if there is none."""
    await transaction.run(sql.ADD_SCOPE, sequence=_NO_SEQUENCE, seal=ScopeSeal().seal(sealer, _NO_SEQUENCE))
    row = await transaction.fetch_only(sql.LOCK_SCOPE)
    return row.sequence, ScopeSeal.open(sealer, row.sequence, row.seal)


async def store_paths(transaction: Transaction, sealer: Sealer, changed: Sequence[LockedPath]) -> None:
    """Store paths that are locked and changed; one in which nothing is left goes.

    Raises:
        IntegrityFailure: One has no items by its seal, but some by its rows; or the subject's seal was edited.
    """
    kept = [each for each in changed if each.items.count]
    if kept:
        await transaction.run_many(sql.SET_PATH, [path.columns(sealer) for path in kept])
    empty = [each for each in changed if not each.items.count]
    if not empty:
        return
    row = await transaction.fetch_one(sql.LOCK_SCOPE)
    if row is None or any(each.items.total or each.vectors != LiveSet() for each in empty):
        raise IntegrityFailure("what is in paths of items was changed outside the gateway")
    scope = ScopeSeal.open(sealer, row.sequence, row.seal)
    paths, floor = scope.paths, scope.floor
    for path in empty:
        paths, floor = paths.subtract(path_mac(sealer, path.path_id, path.share_check)), max(floor, path.sequence)
    await transaction.run_many(sql.REMOVE_PATH, [{"path_id": path.path_id} for path in empty])
    await _set_scope(transaction, sealer, row.sequence + 1, ScopeSeal(paths, floor))


async def _set_scope(transaction: Transaction, sealer: Sealer, sequence: int, scope: ScopeSeal) -> None:
    await transaction.run(sql.SET_SCOPE, sequence=sequence, seal=scope.seal(sealer, sequence))
