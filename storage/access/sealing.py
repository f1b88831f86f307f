"""A subject's keys, and the one loop that runs attempts with them.

A request makes attempts, each of which is one transaction, or some that belong together. An attempt that cannot finish
raises why: it lost a race, its keys are not the stored ones any more, its thread is archived, or one of the reasons
that `storage.errors.Unfinished` is the base of. `Sealing.run` answers the reason and makes another attempt; it is the
only place where a verb on what is sealed is tried again, and where it ends how often. What opens nothing is tried
again by `UnitOfWork.retrying`, after lost races alone.

Owns the rule that keys which are not the stored ones any more refuse in the statement that reads the data, and that
damage is counted. It knows no verb, and nothing of archives but that a thread may be in one (`storage.access.access`).
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Never, Protocol, TypeVar
from uuid import UUID

from crypto import KeyDenied, KeyDestroyed, Sealer
from storage.access.head_anchors import HeadAnchors
from storage.access.offload import Offload
from storage.access.remembered import RememberedHeads
from storage.access.row_quotas import RowQuotas
from storage.access.save_rules import ControlKeyNeeded
from storage.clock import Clock
from storage.control.rows import ControlRows
from storage.errors import (
    IntegrityFailure,
    LostRaceError,
    NotFound,
    RowQuotaExceeded,
    ThreadArchived,
    Unavailable,
    Unfinished,
)
from storage.event_queue.emitting import Emitting
from storage.format.token import ThreadToken
from storage.keys.keys import Keys
from storage.postgres.unit_of_work import RACES_MAX, Observer, Transaction, UnitOfWork
from storage.scope import ClientShare, Scope
from storage.statements.keys.keys import HASH_NOW

T = TypeVar("T")
Answer = Callable[[Sealer, Unfinished], Awaitable[None]]
BringBack = Callable[[Scope, ThreadArchived], Awaitable[None]]

# Attempts of one request, whatever ended them. A rotation of the scope's and the tenant's keys changes them six times.
ATTEMPTS_MAX: Final = 8
# How many of them may end for one reason that waiting does not cure; others only by `ATTEMPTS_MAX`.
_AGAIN_MAX: Final[dict[type[Exception], int]] = {
    LostRaceError: RACES_MAX,
    ThreadArchived: 4,  # three threads that one request brings back, or one that is archived again at once
}


class Records(Protocol):
    """The tenants' audit log, of which a change of state may write a record (`storage.administration.audit`)."""

    async def append(
        self,
        transaction: Transaction,
        tenant_id: UUID,
        actor: str,
        action: str,
        target: str,
        detail: dict[str, Any] | None = None,
    ) -> object:
        """Add a record in the caller's transaction, last of all."""


@dataclass(frozen=True)
class Parts:
    """What the ways to a subject's state share."""

    unit_of_work: UnitOfWork
    keys: Keys
    clock: Clock
    observer: Observer
    control: ControlRows
    offload: Offload
    row_quotas: RowQuotas
    emitting: Emitting
    records: Records
    head_anchors: HeadAnchors = field(default_factory=lambda: HeadAnchors(None))
    remembered_heads: RememberedHeads = field(default_factory=RememberedHeads)


async def unanswered(_: Sealer, reason: Unfinished) -> None:
    """Answer nothing: the reason goes to the caller."""
    raise reason


async def _stays_archived(_: Scope, archived: ThreadArchived) -> None:
    raise archived


class Sealing:
    """Runs attempts with a scope's sealer."""

    def __init__(self, parts: Parts) -> None:
        self.unit_of_work = parts.unit_of_work
        self.clock = parts.clock
        self.control = parts.control
        self.head_anchors = parts.head_anchors
        self.offload = parts.offload
        self.row_quotas = parts.row_quotas
        self.emitting = parts.emitting
        self.records = parts.records
        self.remembered_heads = parts.remembered_heads
        self._keys = parts.keys
        self._observer = parts.observer

    async def run(
        self,
        scope: Scope,
        attempt: Callable[[Sealer], Awaitable[T]],
        otherwise: NotFound | IntegrityFailure | None = None,
        share: ClientShare | None = None,
        answer: Answer = unanswered,
        bring_back: BringBack = _stays_archived,
    ) -> T:
        """Make attempts until one finishes, each with the scope's sealer as it then is.

        Args:
            scope: The tenant and subject whose keys are used.
            attempt: Opens its own transactions; nothing is kept of one that raises.
            otherwise: What to raise for a scope without keys, which has no data; None: keys are created.
            share: The client's share of the thread's keys; ``attempt`` gets a sealer that is mixed with it, which
                is not kept.
            answer: Does what an attempt said it needs, while no transaction is open.
            bring_back: Restores an archived thread, or raises.

        Raises:
            KeyDestroyed: the subject or tenant was shredded.
            RowQuotaExceeded: the scope has no keys, and its tenant may store no more rows.
            IntegrityFailure: as ``attempt``; or something is sealed under a key version that was destroyed because
                nothing needed it: it was put back from outside.
            Unavailable: every attempt ended for a reason that could be answered.
        """
        await self.emitting.ready(scope.tenant_id)
        if (otherwise is not None or not self.row_quotas.has_room(scope)) and (
            await self._keys.existing_sealer(scope) is None
        ):
            self._refuse_unkeyed(otherwise)
        reasons: Counter[type[Exception]] = Counter()
        while reasons.total() < ATTEMPTS_MAX:
            sealer = await self._keys.sealer(scope)
            if share is not None:
                sealer = sealer.with_share(share.material)
            try:
                try:
                    return await attempt(sealer)
                except (Unfinished, LostRaceError, KeyDestroyed, ThreadArchived) as unfinished:
                    reason = unfinished
                kind = _kind(reason)
                reasons[kind] += 1
                if reasons[kind] >= _AGAIN_MAX.get(kind, ATTEMPTS_MAX):
                    break
                with suppress(LostRaceError):  # what was done for the attempt was undone: the next one will say so
                    await self._answer(scope, sealer, reason, answer, bring_back)
            except IntegrityFailure as damage:
                self._count(damage)
                raise
        raise self._given_up(reasons, reason)

    def _count(self, damage: IntegrityFailure) -> None:
        """Count damage once, however many requests within requests it ends."""
        if not damage.counted:
            damage.counted = True
            self._observer.integrity_failure()

    async def _answer(
        self, scope: Scope, sealer: Sealer, reason: Exception, answer: Answer, bring_back: BringBack
    ) -> None:
        """Do what an attempt needs that ended for ``reason``; a lost race needs nothing but another one."""
        match reason:
            case KeyDestroyed():
                self._keys.evict(scope)
                self.remembered_heads.forget(scope)
            case ThreadArchived():
                await bring_back(scope, reason)
            case ControlKeyNeeded():
                await self.control.ready_to_check()
            case Unfinished():
                await answer(sealer, reason)

    def _given_up(self, reasons: Counter[type[Exception]], last: Exception) -> Exception:
        """What is raised when no attempt finished."""
        if isinstance(last, ThreadArchived):
            return last
        if reasons[KeyDestroyed] == reasons.total():
            damage = IntegrityFailure("stored state is sealed under a key version that no longer exists")
            self._count(damage)
            return damage
        return Unavailable("what the request stands on was changed at the same moment, each time it was tried")

    def _refuse_unkeyed(self, otherwise: NotFound | IntegrityFailure | None) -> Never:
        """Refuse a scope without keys."""
        if otherwise is None:
            raise RowQuotaExceeded  # a new subject's keys are rows, too
        if isinstance(otherwise, IntegrityFailure):
            self._count(otherwise)
        raise otherwise

    def acknowledge(self, scope: Scope, sealer: Sealer, thread_id: str, token: ThreadToken) -> None:
        """Remember a head that was committed: this process is told when a later one is older, and it is anchored."""
        self.remembered_heads.acknowledge(scope, thread_id, token)
        self.head_anchors.note(scope, sealer, thread_id, token)

    def note_ledger(self, scope: Scope, sealer: Sealer, thread_id: str) -> Callable[[ThreadToken], None]:
        """What takes how far a thread's ledger is, to anchor it."""
        return lambda token: self.head_anchors.note(scope, sealer, thread_id, token)

    async def check_stored_keys(self, scope: Scope) -> None:
        """Look whether the stored keys of a scope contradict each other: a cached sealer would not tell.

        Raises:
            KeyDestroyed: the subject was shredded.
            IntegrityFailure: they do.
        """
        await self._keys.check_stored(scope)

    def found_damage(self) -> None:
        """Count damage that is reported instead of raised."""
        self._observer.integrity_failure()

    async def sealer_if_any(self, scope: Scope) -> Sealer | None:
        """The scope's sealer, or None when its keys were never made, are destroyed or refused: for removal.

        What a removal asks for legal holds is ready then, too.

        Raises:
            CryptoError: the root key cannot be reached now and nothing is cached, or refuses the key of control rows.
        """
        await self.control.ready()
        try:
            return await self._keys.existing_sealer(scope)
        except (KeyDestroyed, KeyDenied, IntegrityFailure):
            return None

    def check_keys(self, scope: Scope, sealer: Sealer, keys_hash: int | None) -> None:
        """Refuse keys that are not the stored ones any more; ``keys_hash`` comes with the data: what these make.

        Raises:
            KeyDestroyed: keys were added, rewrapped, given up, edited or removed since the sealer was made.
        """
        if keys_hash != sealer.keys_hash:
            self._keys.evict(scope)
            self.remembered_heads.forget(scope)
            raise KeyDestroyed

    async def check_keys_in(self, transaction: Transaction, scope: Scope, sealer: Sealer) -> None:
        """Refuse as `check_keys` does, for verbs whose own statements do not bring along what the stored keys make.

        Raises:
            KeyDestroyed: as `check_keys`.
        """
        self.check_keys(scope, sealer, await transaction.fetch_only(HASH_NOW))


def _kind(reason: Exception) -> type[Exception]:
    """What a reason counts as."""
    return next((kind for kind in (LostRaceError, KeyDestroyed) if isinstance(reason, kind)), type(reason))
