"""Verification of a subject's items: open every one with its vectors, compare paths and their set with their seals.

A path is read in one snapshot, a page at a time, so that writers at work never look like damage; after a path a stretch
may end. What is under a client's share cannot be opened: its items are counted by their members, and compared with the
live set in the path's seal, which takes no share. What is in clear beside is compared with what is sealed. Findings
name rows by their ids, never by labels or keys.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from crypto import KeyDestroyed, Sealer
from storage.access.sealing import Sealing
from storage.clear_vectors.policies import VectorsNow, vectors_now
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.items.item import open_item, open_labels
from storage.format.items.seals import PathSeal, ScopeSeal, item_mac, path_mac
from storage.format.items.vectors import open_vectors, vectors_mac
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.items import clear_vectors as clear_sql
from storage.statements.items import items as items_sql
from storage.statements.items import paths as paths_sql
from storage.statements.items import verifying as sql
from storage.statements.items.vectors import VectorsMember, VectorsRow
from storage.statements.rules.retention import PRESENT
from storage.verification.clear_vectors import ClearPath
from storage.verification.report import FINDINGS_MAX, Code, Finding, Report

# Rows that one statement brings: with their envelopes, of at most a quarter of a MiB each, and without.
PAGE_ROWS: Final = 32
BARE_PAGE_ROWS: Final = 1_000
VECTORS_PAGE_ROWS: Final = 8  # of at most 800 KB
_PATHS_PAGE: Final = 1_000
# By so much two servers of one database, or the one that an item was imported from, may have told the time differently.
_CLOCKS_SECONDS: Final = 300


async def verify_items(access: Sealing, scope: Scope, sealer: Sealer, report: Report, until: float) -> bool:
    """Verify a stretch of a subject's items, from where ``report`` stands; returns whether that was all.

    Raises:
        KeyDestroyed: The sealer's keys are not the stored ones.
    """
    await access.control.ready_to_check()
    if report.items_after is None:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await access.check_keys_in(transaction, scope, sealer)
            in_clear = await vectors_now(transaction, access.control, scope.tenant_id)
            await _Verifier(transaction, sealer, report, in_clear).scope()
        report.items_after = ""
    while True:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await access.check_keys_in(transaction, scope, sealer)
            path_id = await transaction.fetch_one(sql.NEXT_PATH, path_id=bytes.fromhex(report.items_after))
            if path_id is None:
                return True
            in_clear = await vectors_now(transaction, access.control, scope.tenant_id)
            await _Verifier(transaction, sealer, report, in_clear).path(path_id)
        report.items_after = path_id.hex()
        if time.monotonic() > until or len(report.findings) >= FINDINGS_MAX:
            return False


class _Verifier:
    """A subject's set of paths, or one path, in one snapshot."""

    def __init__(self, transaction: Transaction, sealer: Sealer, report: Report, in_clear: VectorsNow) -> None:
        self._in_clear = in_clear
        self._transaction = transaction
        self._sealer = sealer
        self._report = report
        self._pauses = Pauses()
        self._found_before = len(report.findings)

    def _find(self, code: Code, detail: str) -> None:
        if len(self._report.findings) - self._found_before < FINDINGS_MAX:
            self._report.findings.append(Finding(code=code, detail=detail))

    @contextmanager
    def _reporting(self, code: Code, place: str) -> Iterator[None]:
        try:
            yield
        except IntegrityFailure as error:
            self._find(code, f"{place}: {str(error) or 'it does not authenticate'}")
        except KeyDestroyed:
            self._find(code, f"{place}: sealed under a key that does not exist any more")

    async def scope(self) -> None:
        """Compare the paths that are there with those that the subject's seal counts."""
        await self._strays()
        row = await self._transaction.fetch_only(paths_sql.SCOPE)
        counted = LiveSet()
        after = b""
        while True:
            rows = await self._transaction.fetch_all(paths_sql.PATHS_AFTER, path_id=after, page_rows=_PATHS_PAGE)
            for each in rows:
                after = each.path_id
                counted = counted.add(path_mac(self._sealer, after, each.share_check))
                await self._pauses.after(0)
            if len(rows) < _PATHS_PAGE:
                break
        if row.seal is None or row.sequence is None:
            if counted != LiveSet():
                self._find("item-scope", "the subject has paths of items, but what counts them is gone")
            return
        with self._reporting("item-scope", "the seal of the subject's paths"):
            expected = ScopeSeal.open(self._sealer, row.sequence, row.seal).paths
            if expected != counted:
                self._find("item-paths", f"{expected.count} paths of items expected, {counted.count} found")

    async def _strays(self) -> None:
        """Look for clear vectors where there can be none."""
        if self._in_clear.schema is None or self._in_clear.damaged:
            return
        statements = clear_sql.of(self._in_clear.schema)
        if not self._in_clear.has_policy:
            if await self._transaction.fetch_only(statements.any):
                self._find("item-clear-vectors", "vectors are in clear, and the tenant does not say that they may be")
        elif self._in_clear.clear and await self._transaction.fetch_only(statements.strays):
            self._find("item-clear-vectors", "vectors are in clear that are of no path of items")

    async def path(self, path_id: bytes) -> None:
        """Open a path, and all that is in it, and compare that with what its seal counts."""
        place = f"path {path_id.hex()}"
        row = await self._transaction.fetch_one(sql.PATH, path_id=path_id)
        if row is None:
            self._find("item-path", f"{place}: it is gone, but not what is in it")
            return
        expected: PathSeal | None = None
        with self._reporting("item-path", place):
            expected = PathSeal.open(self._sealer, path_id, row.share_check, row.sequence, row.seal)
        if row.share_check is None:
            with self._reporting("item-labels", place):
                open_labels(self._sealer, path_id, row.labels)
            counted = await self._opened(path_id)
        else:
            counted = await self._counted(path_id)
        vectors = await self._vectors(path_id, opened=row.share_check is None)
        if expected is not None and expected.items != counted:
            self._find("items", f"{place}: {expected.items.count} items expected, {counted.count} found")
        if expected is not None and expected.vectors != vectors:
            detail = f"{place}: {expected.vectors.count} rows of vectors expected, {vectors.count} found"
            self._find("item-vectors", detail)
        if untold := await self._transaction.fetch_only(sql.UNTOLD_VECTORS, path_id=path_id):
            self._find("item-vectors", f"{place}: {untold} items have vectors, but their rows say that they have none")

    async def _opened(self, path_id: bytes) -> LiveSet:
        """Open the items of a path; returns what is there."""
        now = await self._transaction.fetch_only(PRESENT)
        counted = LiveSet()
        after = b""
        while True:
            rows = await self._transaction.fetch_all(
                items_sql.OF_PATH, of_path=path_id, key_id=after, page_rows=PAGE_ROWS
            )
            for row in rows:
                after = row.key_id
                counted = counted.add(item_mac(self._sealer, path_id, after, row.member))
                with self._reporting("item", f"path {path_id.hex()}, key {after.hex()}"):
                    open_item(self._sealer, row.columns, row.envelope, row.member)
                    _check_end(row, now)
                await self._pauses.after(len(row.envelope))
            self._report.items_opened += len(rows)
            if len(rows) < PAGE_ROWS:
                return counted

    async def _counted(self, path_id: bytes) -> LiveSet:
        """What is there of a path that only its client opens."""
        counted = LiveSet()
        after = b""
        while True:
            rows = await self._transaction.fetch_all(
                items_sql.MEMBERS_OF_PATH, of_path=path_id, key_id=after, page_rows=BARE_PAGE_ROWS
            )
            for row in rows:
                after = row.key_id
                counted = counted.add(item_mac(self._sealer, path_id, after, row.member))
                await self._pauses.after(0)
            self._report.items_skipped += len(rows)
            if len(rows) < BARE_PAGE_ROWS:
                return counted

    async def _vectors(self, path_id: bytes, *, opened: bool) -> LiveSet:
        """Open the vectors of a path's items, unless only its client does; returns what is there."""
        counted = LiveSet()
        after = (b"", b"")
        page_rows = VECTORS_PAGE_ROWS if opened else BARE_PAGE_ROWS
        in_clear = ClearPath(self._transaction, self._in_clear, path_id, opened=opened)
        while True:
            place = {"path_id": path_id, "key_id": after[0], "model_id": after[1], "page_rows": page_rows}
            rows: Sequence[VectorsRow | VectorsMember] = await self._transaction.fetch_all(
                sql.VECTORS_OF_PATH if opened else sql.MEMBERS_OF_PATH, **place
            )
            for row in rows:
                after = (row.key_id, row.model_id)
                counted = counted.add(vectors_mac(self._sealer, row, row.member))
                numbers = 0
                if isinstance(row, VectorsRow):
                    with self._reporting("item-vector", f"path {path_id.hex()}, key {row.key_id.hex()}"):
                        _, opened_vectors = open_vectors(self._sealer, row.columns, row.envelope, row.member)
                        numbers = len(opened_vectors)
                await in_clear.sealed(row, numbers)
                await self._pauses.after(len(row.envelope) if isinstance(row, VectorsRow) else 0)
            if len(rows) < page_rows:
                break
        await in_clear.end()
        if in_clear.wrong and self._in_clear.has_policy:
            detail = f"path {path_id.hex()}: {in_clear.wrong} rows of vectors in clear are not as the sealed ones"
            self._find("item-clear-vectors", detail)
        return counted


def _check_end(row: items_sql.ItemRow, now: datetime) -> None:
    """Compare when an item is over, which nothing seals, with its time to live, which is sealed.

    Raises:
        IntegrityFailure: It is over sooner than it was put for, or later than a read of this moment would have it.
    """
    if row.ttl_seconds is None:
        good = row.expires_at is None
    else:
        lives, apart = timedelta(seconds=row.ttl_seconds), timedelta(seconds=_CLOCKS_SECONDS)
        earliest, latest = row.updated_at + lives - apart, now + lives + apart
        good = row.expires_at is not None and earliest <= row.expires_at <= latest
    if not good:
        raise IntegrityFailure("when it is over was altered")
