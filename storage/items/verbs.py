"""Items: what agents remember across threads. The verbs on them, and the way in.

A request has one scope. What it reads comes from one snapshot, and sees what was there before what it writes; what it
writes is one transaction. Writes are decided one by one (`storage.items.writing`), so that one that is refused fails
alone. It promises no order between requests, and that nothing is missing only to who reads paths to their end: an item
that is not found proves nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.access.idempotency import claim, keep, replayed, settle
from storage.access.storing import Beside
from storage.clear_vectors.policies import vectors_now
from storage.clock import Clock
from storage.control.features import ITEMS, Features
from storage.errors import (
    ItemExists,
    ItemModelsExceeded,
    ItemMoved,
    ItemNotFound,
    ItemPathsExceeded,
    LegalHold,
    LostRaceError,
    NotFound,
    RowQuotaExceeded,
    StorageError,
)
from storage.items.expiring import Expiring
from storage.items.finding.index import Indexes
from storage.items.finding.nearest import nearest, nearest_in_clear
from storage.items.finding.searching import Budget, search
from storage.items.keeping import Keeping
from storage.items.model import Batch, Item, ItemSearch, ItemWrite, Labels, Written
from storage.items.paths import PathLists
from storage.items.reading import Reading
from storage.items.writing import Outcome, Writing
from storage.model import Idempotency, Page
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope

_REFUSALS: dict[str, type[StorageError]] = {
    "not-found": ItemNotFound,
    "moved": ItemMoved,
    "exists": ItemExists,
    "held": LegalHold,
    "models": ItemModelsExceeded,
    "paths": ItemPathsExceeded,
    "room": RowQuotaExceeded,
}
_WORDS = {kind: word for word, kind in _REFUSALS.items()}


@dataclass(frozen=True, slots=True)
class Results:
    """What became of a batch, each in the order of its operations.

    Attributes:
        gets: The items; None where there is none.
        writes: What became of each write, or why it did not happen; None: it was undone, because the request is all or
            nothing and another one was refused.
        searches: A page for each search.
        paths: A page for each search of paths.
    """

    gets: list[Item | None] = field(default_factory=list)
    writes: list[Outcome | None] = field(default_factory=list)
    searches: list[Page[Item]] = field(default_factory=list)
    paths: list[Page[Labels]] = field(default_factory=list)


class _Receipt(msgspec.Struct, frozen=True, array_like=True):
    """A write as the receipt of its request has it: what `Written` says, or the word of what refused it."""

    status: str
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> "_Receipt":
        """Of what became of a write."""
        if isinstance(outcome, StorageError):
            return cls(_WORDS[type(outcome)], outcome.revision if isinstance(outcome, ItemMoved) else None)
        return cls(outcome.status, outcome.revision, outcome.created_at, outcome.updated_at, outcome.expires_at)

    def outcome(self) -> Outcome:
        """Undo `of`."""
        refusal = _REFUSALS.get(self.status)
        if refusal is None:
            return Written(
                self.status,  # type: ignore[arg-type]  # a gateway wrote it
                self.revision,
                self.created_at,
                self.updated_at,
                self.expires_at,
            )
        return refusal(self.revision) if issubclass(refusal, ItemMoved) else refusal()


class _UndoneError(Exception):
    """A request that is all or nothing had a write that was refused: its transaction is rolled back."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


class Items:
    """The verbs on items."""

    def __init__(self, access: Access, features: Features) -> None:
        self._access = access
        self._features = features
        self.lists = PathLists()
        self.indexes = Indexes()
        self.keeping = Keeping(access.unit_of_work)
        self.expiring = Expiring(access)

    async def run(
        self,
        scope: Scope,
        batch: Batch,
        *,
        idempotency: Idempotency | None = None,
        share: ClientShare | None = None,
    ) -> Results:
        """Do what a batch says.

        Args:
            scope: The tenant and subject.
            batch: What to read and to write. Its parts were checked where they were made (`storage.items.model`).
            idempotency: For a batch with writes: one that is repeated gets the same results, and writes nothing.
            share: The client's share; what is under it has names of its own, and is not seen without it.

        Raises:
            ClearVectorsUnavailable: The tenant's vectors are to be in clear, and there is no table of them.
            FeatureOff: A process of an older build may run, which knows no items.
            IdempotencyKeyReused: The key was another request's.
            KeyDestroyed: The subject was shredded.
            IntegrityFailure: Something is not as it was put, or was removed or added outside the gateway.
        """
        reads = Results()
        if batch.gets or batch.searches or batch.paths:
            reads = await self._read(scope, batch, share)
        if not batch.writes:
            return reads
        await self._features.require(ITEMS, "items are stored")
        await self._access.control.ready()
        return Results(reads.gets, await self._write(scope, batch, idempotency, share), reads.searches, reads.paths)

    async def beside(self, scope: Scope, writes: Sequence[ItemWrite]) -> Beside:
        """What writes items in the transaction of something else, such as a save; all of them, or that fails with them.

        Raises:
            FeatureOff: A process of an older build may run, which knows no items.
        """
        await self._features.require(ITEMS, "items are stored")
        await self._access.control.ready()

        async def write(transaction: Transaction, sealer: Sealer) -> None:
            for outcome in await Writing(self._access, transaction, scope, sealer).run(writes):
                if isinstance(outcome, StorageError):
                    raise outcome

        return write

    async def flush(self) -> None:
        """Write what was read lately and lives on, and forget paths that were opened a while ago.

        Raises:
            StorageError: As `Keeping.flush`.
        """
        self.lists.forget_old()
        self.indexes.forget_old()
        await self.keeping.flush()

    async def _search(self, scope: Scope, reading: Reading, budget: Budget, wanted: ItemSearch) -> Page[Item]:
        if wanted.near is None:
            return await search(reading, budget, wanted)
        if not reading.sealer.shared:  # what is under a client's share is never in clear
            in_clear = await vectors_now(reading.transaction, self._access.control, scope.tenant_id)
            if in_clear.clear and in_clear.required() and in_clear.complete:
                return await nearest_in_clear(reading, in_clear.required(), budget, wanted)
        return await nearest(reading, scope, self.indexes, budget, wanted)

    async def _read(self, scope: Scope, batch: Batch, share: ClientShare | None) -> Results:
        async def attempt(sealer: Sealer) -> Results:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                reading, budget = Reading(transaction, scope, sealer, self.lists, self.keeping), Budget()
                return Results(
                    gets=await reading.gets(batch.gets),
                    searches=[await self._search(scope, reading, budget, each) for each in batch.searches],
                    paths=[await reading.paths(each) for each in batch.paths],
                )

        if any(each.near is not None for each in batch.searches):
            await self._access.control.ready_to_check()  # where the tenant's vectors are, is proved
        try:
            return await self._access.with_existing_keys(scope, attempt, NotFound(), share)
        except KeyDestroyed:
            self.lists.forget(scope)
            self.indexes.forget(scope)
            raise
        except NotFound:  # a subject without keys has no items
            nothing: list[Item | None] = [None] * len(batch.gets)
            return Results(nothing, [], [Page([], None) for _ in batch.searches], [Page([], None) for _ in batch.paths])

    async def _write(
        self, scope: Scope, batch: Batch, idempotency: Idempotency | None, share: ClientShare | None
    ) -> list[Outcome | None]:
        once = _Once(idempotency, batch, self._access.clock)

        async def attempt(sealer: Sealer) -> Sequence[Outcome]:
            async with self._access.unit_of_work.begin_step(scope) as transaction:
                before = await once.begin(transaction, sealer)
                if before is not None:
                    return before
                outcomes = await Writing(self._access, transaction, scope, sealer).run(batch.writes)
                if batch.atomic and any(isinstance(each, StorageError) for each in outcomes):
                    raise _UndoneError(outcomes)
                await once.end(transaction, sealer, outcomes)
                return outcomes

        try:
            if idempotency is None and not any(map(_makes, batch.writes)):  # nobody gets keys by this
                return [*await self._access.with_existing_keys(scope, attempt, NotFound(), share)]
            return [*await self._access.with_keys(scope, attempt, share)]
        except NotFound:
            return _of_nobody(batch)
        except KeyDestroyed:
            self.lists.forget(scope)
            self.indexes.forget(scope)
            raise
        except _UndoneError as undone:
            return [each if isinstance(each, StorageError) else None for each in undone.outcomes]


class _Once:
    """That a batch of writes happens once, however often its request comes.

    Writes under conditions are decided once, so their key is claimed before. Others may be decided again and rolled
    back: their receipt is written in one statement, which finds out whether there was one.
    """

    def __init__(self, idempotency: Idempotency | None, batch: Batch, clock: Clock) -> None:
        self._idempotency = idempotency
        self._claims = batch.atomic or any(each.if_absent or each.if_revision is not None for each in batch.writes)
        self._clock = clock
        self._is_repeated = False

    async def begin(self, transaction: Transaction, sealer: Sealer) -> list[Outcome] | None:
        """What became of the writes, if they happened before."""
        before = None
        if self._idempotency is not None and self._claims:
            before = await claim(transaction, sealer, self._idempotency, self._clock.now(), list[_Receipt])
        elif self._idempotency is not None and self._is_repeated:
            before = await replayed(transaction, sealer, self._idempotency, list[_Receipt])
        return None if before is None else [each.outcome() for each in before]

    async def end(self, transaction: Transaction, sealer: Sealer, outcomes: Sequence[Outcome]) -> None:
        """Keep what became of the writes.

        Raises:
            LostRaceError: They happened before: roll back and begin again.
        """
        if self._idempotency is None:
            return
        receipt = [_Receipt.of(each) for each in outcomes]
        if self._claims:
            await settle(transaction, sealer, self._idempotency, receipt)
        elif not await keep(transaction, sealer, self._idempotency, self._clock.now(), receipt):
            self._is_repeated = True
            raise LostRaceError


def _makes(write: ItemWrite) -> bool:
    """Whether a write puts what need not be there before."""
    return write.value is not None and write.if_revision is None


def _of_nobody(batch: Batch) -> list[Outcome | None]:
    """What becomes of writes that make nothing, in a scope that has nothing."""
    outcomes = [
        ItemMoved(None) if each.if_revision is not None else ItemNotFound() if each.vectors else Written("absent")
        for each in batch.writes
    ]
    is_undone = batch.atomic and any(isinstance(each, StorageError) for each in outcomes)
    return [None if is_undone and isinstance(each, Written) else each for each in outcomes]
