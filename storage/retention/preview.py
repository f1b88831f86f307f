"""What rounds of retention would do, before they do it.

A preview asks the planner about the same facts as a round does (`storage.retention.examining`), of one moment, with a
draft in the place of a policy if need be. It opens what would be thinned, removed with segments or moved into them, for
as long as a page may take. It changes nothing, and promises nothing of threads that change meanwhile.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from crypto import KeyDestroyed
from storage.archive.expiring import Expired
from storage.archive.moving import Archives
from storage.archive.segmenting import Moved
from storage.blobs.store import STORAGE_CLASSES
from storage.concurrency.turns import Pauses
from storage.control.rows import ControlRows
from storage.errors import IntegrityFailure, StorageError
from storage.model import Removal
from storage.postgres.unit_of_work import UnitOfWork
from storage.retention.examining import (
    BESIDES,
    Examined,
    besides,
    count,
    glance,
    own_of,
    read_policies,
    rule_of,
    segment_rule_of,
    segments_before,
)
from storage.retention.planner import Action, Plan, Policy, check_policy, plan
from storage.scope import Scope, TenantListing, TenantScope
from storage.statements.rules import retention as sql
from storage.threads.pruning import Pruning

# Threads of one page, and how long it may take: thinning opens what it would thin.
PREVIEW_ROWS = 500
PREVIEW_SECONDS = 5.0


@dataclass(slots=True)
class Foreseen:
    """What a round would do of one action.

    Attributes:
        threads: The number of threads it would do it to.
        bytes: The size of an archived thread's object, or of a hot one's envelopes. Of thinning it is an estimate: the
            part of a thread's envelopes that the checkpoints which go are of all.
        checkpoints: The number of checkpoints that would go, without those of threads that go wholly.
        pending_writes: The number of pending writes that would go, likewise.
    """

    threads: int = 0
    bytes: int = 0
    checkpoints: int = 0
    pending_writes: int = 0


@dataclass(slots=True)
class PreviewPage:
    """A stretch of a tenant's threads.

    Attributes:
        now: The moment that is asked about, the same for all pages.
        threads: The number of threads that were looked at.
        held: The number of those that only a legal hold keeps from what is due.
        damaged: The number of those that are left alone because something damaged applies to them.
        actions: The acts that would be done, by action.
        next: The thread to go on after; None: this was the last page.
    """

    now: datetime
    threads: int = 0
    held: int = 0
    damaged: int = 0
    actions: dict[Action, Foreseen] = field(default_factory=dict)
    next: tuple[str, str] | None = None


class RetentionPreview:
    """Foresees what rounds would do to a tenant's threads."""

    def __init__(self, unit_of_work: UnitOfWork, pruning: Pruning, archives: Archives, control: ControlRows) -> None:
        self._unit_of_work = unit_of_work
        self._pruning = pruning
        self._archives = archives
        self._control = control

    async def page(
        self,
        scope: TenantScope,
        *,
        now: datetime | None = None,
        after: tuple[str, str] | None = None,
        draft: tuple[str | None, Policy] | None = None,
        rows: int = PREVIEW_ROWS,
    ) -> PreviewPage:
        """Foresee what a round would do to some of a tenant's threads. It only reads, and all of it of one moment.

        ``now`` and ``after`` are what the page before said; None: this moment, and the beginning. ``draft`` is a policy
        of an agent's threads, or (None) of all, to take in the place of the stored one. At most ``rows`` threads are
        looked at.

        Raises:
            InvalidState: the draft makes no sense.
            CryptoError: the root key cannot be asked whether a gateway wrote a policy.
        """
        await self._control.ready()
        if draft is not None:
            check_policy(draft[1], STORAGE_CLASSES)
        until = time.monotonic() + PREVIEW_SECONDS
        async with self._unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
            await transaction.run(sql.IN_ORDER)
            now = await transaction.fetch_only(sql.PRESENT) if now is None else now
            after_subject, after_thread = after or ("", "")
            threads = await transaction.fetch_all(
                sql.PAGE, after_subject=after_subject, after_thread=after_thread, limit=rows
            )
            agents = {row.agent for row in threads} | {None if draft is None else draft[0]}
            policies = await read_policies(transaction, self._control, scope.tenant_id, agents)
        if draft is not None:
            policies = policies.with_draft(*draft, now)
        page = PreviewPage(now)
        hot: dict[str, list[Examined]] = {}
        pauses = Pauses()
        for row in threads:
            await pauses.after(len(row.policy or b""))
            subject = Scope(scope.tenant_id, row.subject_id)
            try:
                seen, counts = glance(policies, own_of(self._control, scope.tenant_id, row), row, None, now)
            except IntegrityFailure:
                page.threads += 1
                page.damaged += 1
                continue
            if counts:
                async with self._unit_of_work.snapshot(subject) as transaction:
                    seen = await count(transaction, self._control, seen, None, now)
            page.threads += 1
            page.held += seen.policy.legal_hold and _without_hold(seen, now) is not None and seen.plan is None
            if seen.plan is not None:
                if seen.facts.tier == "hot":
                    hot.setdefault(row.subject_id, []).append(seen)
                else:
                    _foresee(page, seen, seen.row.size_bytes or 0)
            if seen.plan is not None and seen.plan.action in BESIDES and time.monotonic() > until:
                break
        await self._weigh(page, scope, hot)
        if threads and (page.threads < len(threads) or len(threads) == rows):
            last = threads[page.threads - 1]
            page.next = (last.subject_id, last.thread_id)
        return page

    async def _weigh(self, page: PreviewPage, scope: TenantScope, hot: Mapping[str, list[Examined]]) -> None:
        """Add what is due of hot threads, by subject, with what their envelopes take."""
        for subject_id, seen in hot.items():
            subject = Scope(scope.tenant_id, subject_id)
            ids = [each.row.thread_id for each in seen]
            async with self._unit_of_work.snapshot(subject) as transaction:
                rows = await transaction.fetch_all(sql.HOT_BYTES, thread_ids=ids)
            size = {row.thread_id: row.bytes for row in rows}
            for each in seen:
                following = each
                while following.plan is not None:
                    await self._weigh_one(page, subject, following, size[each.row.thread_id])
                    following = besides(following, page.now)

    async def _weigh_one(self, page: PreviewPage, scope: Scope, seen: Examined, size: int) -> None:
        """Add one act that is due of a hot thread, whose envelopes have a size."""
        action = None if seen.plan is None else seen.plan.action
        if action == "segment-expire":
            expired = await self._expired(scope, seen, page.now)
            if expired.segments:
                removal = Removal(threads=0, checkpoints=expired.checkpoints, pending_writes=expired.pending_writes)
                _foresee(page, seen, expired.size_bytes, removal)
            return
        if action not in {"segment", "thin"}:
            _foresee(page, seen, size)
            return
        removal = await (self._segmented if action == "segment" else self._thinned)(scope, seen, page.now)
        if action == "segment" or removal.checkpoints or seen.facts.writes_due:
            part = removal.checkpoints / max(seen.facts.checkpoints or 0, 1)
            _foresee(page, seen, int(size * min(part, 1.0)), removal)

    async def _thinned(self, scope: Scope, seen: Examined, now: datetime) -> Removal:
        try:
            return await self._pruning.preview(scope, seen.row.thread_id, rule_of(seen.policy, now))
        except (StorageError, KeyDestroyed):  # it is damaged, or was removed meanwhile: a round would leave it, too
            return Removal(threads=0, checkpoints=0, pending_writes=0)

    async def _segmented(self, scope: Scope, seen: Examined, now: datetime) -> Removal:
        """What would leave the database; nothing of it would be removed."""
        try:
            moved = await self._archives.segmenting.preview(
                scope, seen.row.thread_id, segment_rule_of(seen.policy, now)
            )
        except (StorageError, KeyDestroyed):  # as `_thinned`
            moved = Moved()
        return Removal(threads=0, checkpoints=moved.checkpoints, pending_writes=moved.pending_writes)

    async def _expired(self, scope: Scope, seen: Examined, now: datetime) -> Expired:
        """What would be removed with segments."""
        try:
            return await self._archives.expiring.preview(scope, seen.row.thread_id, segments_before(seen.policy, now))
        except (StorageError, KeyDestroyed):  # as `_thinned`
            return Expired()


def _without_hold(seen: Examined, now: datetime) -> Plan | None:
    return plan(replace(seen.policy, legal_hold=False), seen.facts, now)


def _foresee(page: PreviewPage, seen: Examined, size: int, removal: Removal | None = None) -> None:
    if seen.plan is None:
        return
    total = page.actions.setdefault(seen.plan.action, Foreseen())
    total.threads += 1
    total.bytes += size
    if removal is not None:
        total.checkpoints += removal.checkpoints
        total.pending_writes += removal.pending_writes
