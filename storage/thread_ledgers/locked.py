"""A thread's ledger under the thread's lock: what everything that writes approvals, effects or claims goes through.

Owns the order of locks, which is thread, then rows of its ledger, and that each change of a row changes the seal in the
same transaction. It does not know what the rows say; whoever reads them compares them with the part of the seal that
they belong to, by `LockedLedger.check`. No save takes this way, unless it asks a person something or answers that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from crypto import Sealer
from storage.errors import ClaimHeld, ClaimLost, IntegrityFailure, ThreadClaimed, ThreadNotFound
from storage.format.chain import LiveSet, ThreadSeal
from storage.format.record import check_share, open_thread_seal
from storage.format.thread_ledgers.seal import LedgerSeal, RowKind, ledger_token, member
from storage.format.token import ThreadToken
from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import seals as sql
from storage.statements.thread_ledgers.seals import LedgerThreadRow

# The part of a seal that rows are counted in: approvals with actions and votes, claims, or one part of effects.
Part = Literal["approvals", "claims"] | int


def check_fence(given: int | None, current: int, *, claims_required: bool) -> None:
    """Return if whoever writes to a thread may go on with it.

    Args:
        given: The fence of the writer's claim; None: it has none.
        current: The thread's, which is that of its newest claim until that is released.
        claims_required: Whether nobody goes on without one.

    Raises:
        ClaimLost: The claim was released, or somebody else has the thread since.
        ThreadClaimed: The thread asks for a claim.
    """
    if given is not None and given != current:
        raise ClaimLost
    if given is None and claims_required:
        raise ThreadClaimed


def check_unclaimed(live_until: datetime | None) -> None:
    """Return if nobody goes on with a thread now: for what changes it for an administrator, and not in a run.

    Args:
        live_until: When the claim of the thread is over, read under the thread's lock; None: none is live.

    Raises:
        ClaimHeld: One is.
    """
    if live_until is not None:
        raise ClaimHeld(live_until, 0.0)


@dataclass(slots=True)
class LockedLedger:
    """A thread's ledger, whose thread is locked, as it will be written.

    Attributes:
        thread: The thread's row.
        seal: What is counted.
        sequence: How many changes it has had.
        now: The database's time, taken after the lock was granted: what decides whether something is over.
    """

    sealer: Sealer
    thread_id: str
    thread: LedgerThreadRow
    opened_thread: ThreadSeal
    seal: LedgerSeal
    sequence: int
    is_stored: bool
    now: datetime

    @classmethod
    async def lock(
        cls, transaction: Transaction, sealer: Sealer, thread_id: str, *, without_share: bool = False
    ) -> "LockedLedger":
        """Lock a thread, and then read its ledger's seal and the time, so that neither is older than the lock.

        Args:
            transaction: The one that writes.
            sealer: The subject's.
            thread_id: The thread to lock.
            without_share: Whether the caller need not have the share that the thread was made under, because nothing
                that is sealed with it is opened.

        Raises:
            ThreadNotFound: There is no such thread.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: It was made under another share.
            IntegrityFailure: A seal does not authenticate, or the fence is not the sealed one.
        """
        thread = await transaction.fetch_one(sql.LOCK_THREAD, thread_id=thread_id)
        return await cls._of(transaction, sealer, thread_id, thread, without_share=without_share)

    @classmethod
    async def read(
        cls, transaction: Transaction, sealer: Sealer, thread_id: str, *, without_share: bool = False
    ) -> "LockedLedger":
        """Read a ledger as `lock` does, in a snapshot and without locking anything; it is not to be stored."""
        thread = await transaction.fetch_one(sql.THREAD, thread_id=thread_id)
        return await cls._of(transaction, sealer, thread_id, thread, without_share=without_share)

    @classmethod
    async def _of(
        cls,
        transaction: Transaction,
        sealer: Sealer,
        thread_id: str,
        thread: LedgerThreadRow | None,
        *,
        without_share: bool,
    ) -> "LockedLedger":
        if thread is None:
            raise ThreadNotFound
        opened = open_thread_seal(sealer, thread_id, thread.created_at, thread.seal)
        if not without_share:
            check_share(sealer, thread_id, opened)
        row = await transaction.fetch_only(sql.READ, thread_id=thread_id)
        seal = LedgerSeal()
        if row.seal is not None and row.sequence is not None:
            seal = LedgerSeal.open(sealer, thread_id, opened.incarnation, row.sequence, row.seal)
        if seal.fence != thread.fence:
            raise IntegrityFailure("the fence of this thread was altered outside the gateway")
        return cls(sealer, thread_id, thread, opened, seal, row.sequence or 0, row.seal is not None, row.now)

    def check(self, part: Part, kind_and_macs: Iterable[tuple[RowKind, bytes]]) -> None:
        """Compare all rows of a part, by their kinds and MACs, with the seal.

        Raises:
            IntegrityFailure: One was edited, removed, or put back.
        """
        found = LiveSet()
        for kind, mac in kind_and_macs:
            found = found.add(member(self.sealer, kind, mac))
        if found != self._part(part):
            raise IntegrityFailure("the ledger of this thread was changed outside the gateway")

    def add(self, part: Part, kind: RowKind, mac: bytes) -> None:
        """Count a new row."""
        self._set(part, self._part(part).add(member(self.sealer, kind, mac)))

    def remove(self, part: Part, kind: RowKind, mac: bytes) -> None:
        """Count a row no more.

        Raises:
            IntegrityFailure: The part has none.
        """
        self._set(part, self._part(part).subtract(member(self.sealer, kind, mac)))

    def change(self, part: Part, kind: RowKind, before: bytes, after: bytes) -> None:
        """Count a row as it is after a change.

        Raises:
            IntegrityFailure: The part has none.
        """
        self.remove(part, kind, before)
        self.add(part, kind, after)

    def set_fence(self, fence: int) -> None:
        """Take another fence; the thread's column is the caller's to write."""
        self.seal = msgspec.structs.replace(self.seal, fence=fence)

    def _part(self, part: Part) -> LiveSet:
        if part == "approvals":
            return self.seal.approvals
        return self.seal.claims if part == "claims" else self.seal.effects[part]

    def _set(self, part: Part, to: LiveSet) -> None:
        if part == "approvals":
            self.seal = msgspec.structs.replace(self.seal, approvals=to)
        elif part == "claims":
            self.seal = msgspec.structs.replace(self.seal, claims=to)
        else:
            effects = (*self.seal.effects[:part], to, *self.seal.effects[part + 1 :])
            self.seal = msgspec.structs.replace(self.seal, effects=effects)

    async def store(self, transaction: Transaction, noted: Callable[[ThreadToken], None]) -> None:
        """Write the seal, last of the rows of the thread.

        Args:
            transaction: The one that locked the thread.
            noted: Takes what is to be anchored (`storage.access.sealing.Sealing.note_ledger`), once it is committed.
        """
        self.sequence += 1
        incarnation = self.opened_thread.incarnation
        seal = self.seal.seal(self.sealer, self.thread_id, incarnation, self.sequence)
        statement = sql.SET if self.is_stored else sql.ADD
        await transaction.run(statement, thread_id=self.thread_id, sequence=self.sequence, seal=seal)
        self.is_stored = True
        token = ledger_token(self.sealer, incarnation, self.sequence)
        transaction.when_committed(lambda: noted(token))
