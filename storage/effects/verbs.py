"""The verbs on effects: the ledger of what tools did to the world.

That an effect is started is committed before its tool runs, and what became of it after; so whoever comes next, after
a crash, a second resume or a copy, is told what happened instead of doing it again. The rules are in
`storage.effects.deciding`; here is what they need to know, all of it read under the thread's lock.

It promises at most one start of what is to be done once. Whether what was started happened is known only from who did
it or looked; nobody knows of one whose worker died, and it is not done again before somebody says so.

What a start reads is compared with the seal: its own name's part, and those of the effects of the same intent. That one
of another part was removed outside the gateway is noticed by verification.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from uuid_utils import uuid7

from crypto import Sealer
from storage.access.access import Access
from storage.administration.audit import Audit
from storage.administration.jobs import thread_target
from storage.approvals.consuming import Consuming, Consumption
from storage.concurrency.turns import Pauses
from storage.control.features import DECISIONS, Features
from storage.effects.deciding import Current, Earlier, Repeats, decide_current, decide_new
from storage.effects.intents import action_of, identity_of
from storage.effects.lines import Line
from storage.effects.model import (
    EFFECT_EXECUTIONS_MAX,
    EFFECT_TOMBSTONE_DAYS,
    EFFECTS_MAX,
    REPEAT_WINDOW_SECONDS,
    Effect,
    EffectFinish,
    EffectResolve,
    EffectStart,
    EffectStarted,
    EffectStatus,
    Mode,
    UnknownEffect,
)
from storage.effects.older_records import OlderRecord, find_older
from storage.effects.rows import EffectChange, check_parts, check_row, shown
from storage.errors import (
    ActionChanged,
    ApprovalRequired,
    EffectInProgress,
    EffectMismatch,
    EffectNotFound,
    EffectNotUnknown,
    EffectRepeats,
    EffectResolverStarted,
    EffectsExceeded,
    EffectSuperseded,
    EffectUnknown,
    IntegrityFailure,
    StorageError,
    ThreadArchived,
    ThreadNotFound,
)
from storage.format.thread_ledgers.effect import Asked, EffectColumns, Outcome, open_outcome, part_member
from storage.format.thread_ledgers.names import effect_name_mac, intent_mac, root_of
from storage.format.thread_ledgers.seal import effect_part
from storage.format.token import ThreadToken
from storage.model import Page
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope, TenantListing
from storage.statements.thread_ledgers import effects as sql
from storage.statements.thread_ledgers.effects import EffectRow, PlacedEffectRow, WholeEffectRow
from storage.thread_ledgers.locked import LockedLedger, check_fence

# Effects of one intent that are looked at, the newest.
_OF_INTENT_MAX: Final = 100
_MODES: Final[tuple[Mode, ...]] = ("read", "idempotent", "once")
_WINDOW: Final = timedelta(seconds=REPEAT_WINDOW_SECONDS)
BY_CHECK: Final = "check"


class _Starting(NamedTuple):
    """What starts, in a transaction that locked its thread."""

    transaction: Transaction
    ledger: LockedLedger
    wanted: EffectStart
    scope: Scope
    key_id: str
    namespace: str
    name_mac: bytes
    intent: bytes

    @property
    def sealer(self) -> Sealer:
        """The subject's, with the client's share."""
        return self.ledger.sealer

    @property
    def now(self) -> datetime:
        """The database's time, after the lock."""
        return self.ledger.now


class Effects:
    """The verbs on effects."""

    def __init__(self, access: Access, features: Features, audit: Audit, consuming: Consuming) -> None:
        self._access = access
        self._features = features
        self._audit = audit
        self._consuming = consuming

    async def start(
        self, scope: Scope, wanted: EffectStart, *, key_id: str, share: ClientShare | None = None
    ) -> EffectStarted:
        """Ask whether a tool is to run; if so, that it was started is committed before this returns.

        Args:
            scope: The tenant and subject.
            wanted: What is about to happen. A checkpoint that the root of its namespace does not have is one of which
                nobody knows the ancestors: what was done under that name counts as done.
            key_id: The id of the API key that asks; kept in clear as ``started_by``.
            share: The client's share of the thread's keys.

        Raises:
            FeatureOff: A process of an older build may run.
            ThreadNotFound: There is no such thread.
            InvalidState: The arguments have no canonical form.
            ClaimLost: Its fence is not the thread's (412).
            ThreadClaimed: The thread takes no write without a claim (409).
            EffectMismatch: The name was used for something else (422 `effect-mismatch`).
            EffectInProgress: Somebody does it now (409 `effect-in-progress`).
            EffectUnknown: Nobody knows whether it happened (409 `effect-unknown`).
            EffectRepeats: The same was done before (409 `effect-repeats`).
            EffectsExceeded: The thread has too many (409 `effects-exceeded`).
            ApprovalNotFound, ApprovalRequired: As `storage.approvals.consuming.Consuming.consume`.
            IntegrityFailure: What is said of effects was altered outside the gateway.
        """
        wanted.check()
        await self._features.require(DECISIONS, "effects are kept")
        identity = await identity_of(wanted, scope)
        await self._consuming.ready()

        async def attempt(sealer: Sealer) -> EffectStarted | OlderRecord | StorageError:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.lock(transaction, sealer, wanted.thread_id)
                check_fence(wanted.fence, ledger.thread.fence, claims_required=ledger.thread.claims_required)
                if ledger.thread.tier != "hot":
                    raise ThreadArchived(wanted.thread_id)
                namespace = root_of(wanted.namespace)
                starting = _Starting(
                    transaction,
                    ledger,
                    wanted,
                    scope,
                    key_id,
                    namespace,
                    effect_name_mac(sealer, wanted.thread_id, namespace, wanted.name),
                    intent_mac(sealer, wanted.tool, identity),
                )
                return await self._started(starting)

        answer = await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)
        if isinstance(answer, StorageError):
            raise answer
        if isinstance(answer, OlderRecord):
            return EffectStarted(await answer.effect(scope, wanted), must_run=False)
        return answer

    async def _started(self, starting: _Starting) -> EffectStarted | OlderRecord | StorageError:
        transaction, ledger, wanted = starting.transaction, starting.ledger, starting.wanted
        named = await transaction.fetch_all(
            sql.NAMED,
            thread_id=wanted.thread_id,
            namespace=starting.namespace,
            name_mac=starting.name_mac,
            limit=EFFECT_EXECUTIONS_MAX,
        )
        await check_parts(transaction, ledger, [effect_part(starting.name_mac)])
        for each in named:
            check_row(ledger, each)
        same: list[PlacedEffectRow] = []
        if wanted.mode != "read":
            same = await self._of_intent(starting)
        checkpoint_id = wanted.checkpoint_id or await transaction.fetch_one(
            sql.HEAD, thread_id=wanted.thread_id, namespace=starting.namespace
        )
        anchors = [each.anchor_checkpoint_id for each in (*named, *same)]
        line = await Line.read(transaction, (wanted.thread_id, starting.namespace), checkpoint_id, anchors)
        current = next((each for each in named if line.has(each.anchor_checkpoint_id)), None)
        if current is not None:
            return await self._of_current(starting, current)
        if wanted.mode == "once":
            older = await find_older(self._access, transaction, starting.sealer, wanted)
            if older is not None:
                return older
            if (
                not named
                and not wanted.repeat
                and await transaction.fetch_only(sql.BURIED, tombstone=starting.name_mac, days=EFFECT_TOMBSTONE_DAYS)
            ):
                return EffectRepeats(None)
        return await self._of_new(starting, line, same, named[0].execution + 1 if named else 1)

    async def _of_intent(self, starting: _Starting) -> list[PlacedEffectRow]:
        """The newest effects of the same intent, in the same root, compared with the seal."""
        found = await starting.transaction.fetch_all(
            sql.OF_INTENT,
            thread_id=starting.wanted.thread_id,
            namespace=starting.namespace,
            intent_mac=starting.intent,
            limit=_OF_INTENT_MAX,
        )
        parts = {effect_part(each.name_mac) for each in found} - {effect_part(starting.name_mac)}
        if parts:
            await check_parts(starting.transaction, starting.ledger, parts)
        for each in found:
            check_row(starting.ledger, each)
        return found

    async def _of_current(self, starting: _Starting, row: EffectRow) -> EffectStarted | StorageError:
        """Answer a start whose name has an execution on this line."""
        ledger, wanted = starting.ledger, starting.wanted
        fence = ledger.thread.fence
        answer = decide_current(
            Current(
                mode=_stricter(row.mode, wanted.mode),
                status=row.status,  # type: ignore[arg-type]
                same_intent=row.intent_mac == starting.intent,
                own_fence=wanted.fence is not None and wanted.fence == row.fence,
                lease_over=row.leased_until <= ledger.now,
                fence_lost=row.fence not in {0, fence},
                was_repeated=row.mode != "once" and row.attempt > 1,
            )
        )
        match answer:
            case "mismatch":
                return EffectMismatch()
            case "in-progress":
                return EffectInProgress((row.leased_until - ledger.now).total_seconds())
            case "unknown":
                return EffectUnknown(row.execution, row.attempt)
            case "became-unknown":
                await self._change(starting).set(row, status="unknown", finished_at=ledger.now)
                return EffectUnknown(row.execution, row.attempt)
            case "replay":
                whole = await _whole(starting.transaction, row)
                return EffectStarted(shown(starting.sealer, whole), must_run=False)
        approval = await self._approved(starting, row)
        # What the attempt before left is nothing that this one did.
        await self._change(starting).end(
            row,
            Outcome(),
            None,
            attempt=row.attempt + 1,
            mode=_stricter(row.mode, wanted.mode),
            status="started",
            run_id=wanted.run_id,
            fence=wanted.fence or 0,
            started_at=ledger.now,
            leased_until=ledger.now + timedelta(seconds=wanted.lease_seconds),
            finished_at=None,
            started_by=starting.key_id,
            resolved_by=None,
            result_state="none",
            result_bytes=None,
            artifact_id=None,
            approval_id=approval[0],
            approval_position=approval[1],
            copied=False,
        )
        return EffectStarted(shown(starting.sealer, await _whole(starting.transaction, row)), must_run=True)

    async def _of_new(
        self, starting: _Starting, line: Line, same: list[PlacedEffectRow], execution: int
    ) -> EffectStarted | StorageError:
        """Answer a start whose name has none on this line."""
        ledger, wanted = starting.ledger, starting.wanted
        earlier = [
            Earlier(
                number,
                each.status,  # type: ignore[arg-type]
                line.has(each.anchor_checkpoint_id),
                each.started_at + _WINDOW > ledger.now,
            )
            for number, each in enumerate(same)
            if each.namespace == starting.namespace
        ]
        decided = decide_new(wanted.mode, repeat=wanted.repeat, earlier=earlier)
        if isinstance(decided, Repeats):
            before = shown(starting.sealer, same[decided.number])
            return EffectRepeats(before.name, before.execution, before.status)
        found = None if decided.repeats is None else same[decided.repeats]
        if execution > EFFECT_EXECUTIONS_MAX or sum(each.count for each in ledger.seal.effects) >= EFFECTS_MAX:
            return EffectsExceeded()
        self._access.row_quotas.require_room(starting.scope)
        approval = await self._approved(starting, None)
        repeats_name = None
        if found is not None and found.name_mac != starting.name_mac:
            repeats_name = shown(starting.sealer, found).name
        asked = Asked(
            wanted.name,
            wanted.tool,
            wanted.identity,
            wanted.tool_digest,
            None if found is None else found.execution,
            repeats_name,
        )
        fresh = UUID(int=uuid7().int)
        columns = EffectColumns(
            thread_id=wanted.thread_id,
            namespace=starting.namespace,
            name_mac=starting.name_mac,
            execution=execution,
            attempt=1,
            mode=wanted.mode,
            status="started",
            intent_mac=starting.intent,
            provider_key=found.provider_key if found is not None and decided.keeps_key else fresh,
            anchor_checkpoint_id=line.checkpoint_id,
            run_id=wanted.run_id,
            fence=wanted.fence or 0,
            created_at=ledger.now,
            started_at=ledger.now,
            leased_until=ledger.now + timedelta(seconds=wanted.lease_seconds),
            finished_at=None,
            started_by=starting.key_id,
            resolved_by=None,
            result_state="none",
            result_bytes=None,
            artifact_id=None,
            approval_id=approval[0],
            approval_position=approval[1],
            copied=False,
            client_share=starting.sealer.shared,
            asked_member=b"",
            args_member=b"",
            outcome_member=None,
            result_member=None,
        )
        row = await self._change(starting).add(columns, asked, wanted.args)
        return EffectStarted(shown(starting.sealer, row), must_run=True)

    async def _approved(self, starting: _Starting, before: EffectRow | None) -> tuple[UUID | None, int | None]:
        """Use up the approval that the start names; an attempt before this one has used it up for both.

        Raises:
            ApprovalRequired: None is named, and the start or a policy asks for one.
            StorageError: As `storage.approvals.consuming.Consuming.consume`.
        """
        wanted = starting.wanted
        used = None if before is None else before.approval_id
        args = part_member(starting.sealer, "args", wanted.args)
        if before is not None and used is not None and args != before.args_member:
            raise ActionChanged  # what was approved once is done again only as it was approved
        if wanted.approval_id is None:
            if used is None and (
                wanted.needs_approval
                or await self._consuming.required(starting.transaction, starting.ledger.thread.agent, wanted.tool)
            ):
                raise ApprovalRequired
            return used, None if before is None else before.approval_position
        if before is None or (used, before.approval_position) != (wanted.approval_id, wanted.approval_position):
            consumption = Consumption(
                wanted.approval_id,
                wanted.approval_position,
                lambda agent: action_of(wanted, starting.scope, agent),
                starting.name_mac,
                starting.key_id,
            )
            await self._consuming.consume(starting.scope, starting.transaction, starting.ledger, consumption)
        return wanted.approval_id, wanted.approval_position

    def _change(self, starting: _Starting) -> EffectChange:
        noted = self._noted(starting.scope, starting.sealer, starting.wanted.thread_id)
        return EffectChange(starting.transaction, starting.ledger, noted)

    def _noted(self, scope: Scope, sealer: Sealer, thread_id: str) -> Callable[[ThreadToken], None]:
        return self._access.note_ledger(scope, sealer, thread_id)

    async def finish(self, scope: Scope, ended: EffectFinish, *, share: ClientShare | None = None) -> Effect:
        """Say what became of a call; the same again changes nothing. No fence is asked for: what happened, happened.

        Whoever was taken for dead and was not may still say so, before somebody else did or began again. What was said
        to be done without its result may be said once more with it: the digest tells that it is that.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
            EffectSuperseded: It is another attempt's, or it ended otherwise (409 `effect-superseded`).
            RowQuotaExceeded: Never: what was started may end.
            IntegrityFailure: What is said of effects was altered outside the gateway.
        """
        ended.check()
        outcome = Outcome(ended.result_digest, ended.error)
        size = ended.result_bytes if ended.result is None else len(ended.result)
        if ended.artifact_id is not None:
            state = "artifact"
        elif ended.result is not None:
            state = "stored"
        else:
            state = "none" if ended.result_bytes is None else "missing"

        async def attempt(sealer: Sealer) -> Effect:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.lock(transaction, sealer, ended.thread_id)
                row = await _one(transaction, ledger, ended.namespace, ended.name, ended.execution)
                said = None if ended.result is None else part_member(sealer, "result", ended.result)
                same = (row.status, row.result_state, row.result_bytes, row.artifact_id, row.result_member) == (
                    ended.status, state, size, ended.artifact_id, said,
                )  # fmt: skip
                if row.attempt != ended.attempt or row.resolved_by is not None:
                    raise EffectSuperseded
                said_before = open_outcome(sealer, row.columns, row.outcome)
                if same and said_before == outcome:
                    return shown(sealer, row)
                is_later = row.status == ended.status == "done" and row.result_state == "missing"
                is_its_result = is_later and state != "missing" and said_before == outcome and row.result_bytes == size
                if row.status not in {"started", "unknown"} and not (is_its_result and ended.result_digest):
                    raise EffectSuperseded
                if row.status == "unknown" == ended.status:
                    return shown(sealer, row)
                change = EffectChange(transaction, ledger, self._noted(scope, sealer, ended.thread_id))
                columns, sealed = await change.end(
                    row,
                    outcome,
                    ended.result,
                    status=ended.status,
                    finished_at=ledger.now,
                    # Nobody is at it any more: a program that looks may believe what it sees (`resolve`).
                    leased_until=min(row.leased_until, ledger.now),
                    result_state=state,
                    result_bytes=size,
                    artifact_id=ended.artifact_id,
                )
                return shown(sealer, _with(row, columns, sealed.outcome, sealed.result))

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)

    async def resolve(
        self,
        scope: Scope,
        found: EffectResolve,
        *,
        principal: str,
        actor: str,
        share: ClientShare | None = None,
    ) -> Effect:
        """Say whether an effect happened of which nobody knew; the same again changes nothing. It is audited.

        Args:
            scope: The tenant and subject.
            found: What was found out.
            principal: Who says so: the id of the API key. Unless a program looked, not the one that started it; whose
                other keys are the same person's is for the caller to know.
            actor: ``api-key:<id>``, for the audit log.
            share: The client's share of the thread's keys; needed to keep a result of a thread under one.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
            EffectNotUnknown: It is known (409 `effect-not-unknown`).
            EffectSuperseded: What was looked at is another attempt than the newest.
            EffectInProgress: A program found nothing, and whoever started it may still be at it.
            EffectResolverStarted: The principal started it (403 `effect-own-key`).
            IntegrityFailure: What is said of effects was altered outside the gateway.
        """
        found.check()
        status = "done" if found.happened else "voided"
        resolver = BY_CHECK if found.by_check else principal

        async def attempt(sealer: Sealer) -> Effect:
            async with self._access.unit_of_work.begin(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                without_share = found.result is None and not sealer.shared
                ledger = await LockedLedger.lock(transaction, sealer, found.thread_id, without_share=without_share)
                row = await _one(transaction, ledger, found.namespace, found.name, found.execution)
                if row.attempt != found.attempt:
                    raise EffectSuperseded
                if row.status == status and row.resolved_by is not None:
                    return shown(sealer, row, name=found.name)
                is_dead = (
                    row.status == "started"
                    and row.mode == "once"
                    and (row.leased_until <= ledger.now or row.fence not in {0, ledger.thread.fence})
                )
                if row.status != "unknown" and not is_dead:
                    raise EffectNotUnknown
                if not found.by_check and principal == row.started_by:
                    raise EffectResolverStarted
                if found.by_check and not found.happened and row.leased_until > ledger.now:
                    raise EffectInProgress((row.leased_until - ledger.now).total_seconds())
                change = EffectChange(transaction, ledger, self._noted(scope, sealer, found.thread_id))
                changes = {"status": status, "resolved_by": resolver, "finished_at": ledger.now}
                outcome, result = row.outcome, row.result
                if found.result is None:
                    columns = await change.set(row, **changes)
                else:
                    size = len(found.result)
                    columns, sealed = await change.end(
                        row, Outcome(), found.result, result_state="stored", result_bytes=size, **changes
                    )
                    outcome, result = sealed.outcome, sealed.result
                target = f"thread:{thread_target(scope, found.thread_id)}"
                detail = {
                    "effect": row.name_mac.hex(),
                    "execution": row.execution,
                    "happened": found.happened,
                    "by_check": found.by_check,
                }
                await self._audit.append(transaction, scope.tenant_id, actor, "effect.resolved", target, detail)
                return shown(sealer, _with(row, columns, outcome, result), name=found.name)

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)

    async def get(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        name: str,
        *,
        execution: int | None = None,
        share: ClientShare | None = None,
    ) -> Effect:
        """One execution of a named effect with its arguments and result; None: the newest.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
            IntegrityFailure: What is said of effects was altered outside the gateway.
        """

        async def attempt(sealer: Sealer) -> Effect:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.read(transaction, sealer, thread_id)
                return shown(sealer, await _one(transaction, ledger, namespace, name, execution))

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)

    async def started_by(self, scope: Scope, thread_id: str, namespace: str, name: str, execution: int) -> str:
        """The id of the key that started the newest attempt at an execution; nothing is opened, and no share needed.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
            IntegrityFailure: What is said of effects was altered outside the gateway.
        """

        async def attempt(sealer: Sealer) -> str:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.read(transaction, sealer, thread_id, without_share=True)
                return (await _one(transaction, ledger, namespace, name, execution)).started_by

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound())

    async def list(
        self,
        scope: Scope,
        thread_id: str,
        *,
        status: EffectStatus | None = None,
        checkpoint_id: str | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
        share: ClientShare | None = None,
    ) -> Page[Effect]:
        """Effects of a thread without arguments and results, in the order in which they began.

        Each is what a gateway wrote; that none is missing is for verification to say.

        Args:
            scope: The tenant and subject.
            thread_id: The id of the thread.
            status: Only those that stand so.
            checkpoint_id: Only those that were started at this one.
            limit: How many at most.
            after: Where an earlier page ended.
            share: The client's share of the thread's keys.

        Raises:
            ThreadNotFound: There is none.
            IntegrityFailure: One was altered outside the gateway.
        """

        async def attempt(sealer: Sealer) -> Page[Effect]:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._access.check_keys_in(transaction, scope, sealer)
                ledger = await LockedLedger.read(transaction, sealer, thread_id)
                rows = await transaction.fetch_all(
                    sql.LISTED,
                    thread_id=thread_id,
                    status=status,
                    checkpoint_id=checkpoint_id,
                    after_at=datetime.fromisoformat(after[0]) if after else None,
                    after_namespace=after[1] if after else "",
                    after_name=bytes.fromhex(after[2]) if after else b"",
                    after_execution=int(after[3]) if after else 0,
                    limit=limit + 1,
                )
            effects, pauses = [], Pauses()
            for row in rows[:limit]:
                await pauses.after(len(row.asked))
                check_row(ledger, row)
                effects.append(shown(sealer, row))
            if len(rows) <= limit:
                return Page(effects, None)
            last = rows[limit - 1]
            place = (last.created_at.isoformat(), last.namespace, last.name_mac.hex(), str(last.execution))
            return Page(effects, place)

        return await self._access.with_existing_keys(scope, attempt, ThreadNotFound(), share)

    async def unknown(
        self, scope: TenantListing | Scope, *, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[UnknownEffect]:
        """Effects of which nobody knows whether they happened, by subject and thread: clear columns, nothing opened.

        Among them is what is to be done once and whose worker said nothing before its lease was over.
        """
        async with self._access.unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(
                sql.UNKNOWN,
                only_subject=scope.subject_id if isinstance(scope, Scope) else None,
                after_subject=after[0] if after else "",
                after_thread=after[1] if after else "",
                after_namespace=after[2] if after else "",
                after_name=bytes.fromhex(after[3]) if after else b"",
                after_execution=int(after[4]) if after else 0,
                limit=limit + 1,
            )
        found = []
        for row in rows[:limit]:
            said = msgspec.structs.asdict(row)
            found.append(UnknownEffect(name_tag=said.pop("name_mac").hex(), **said))
        if len(rows) <= limit:
            return Page(found, None)
        last = rows[limit - 1]
        return Page(found, (last.subject_id, last.thread_id, last.namespace, last.name_mac.hex(), str(last.execution)))


def _stricter(before: str, wanted: Mode) -> Mode:
    """The mode that allows less: what was begun as something that may be repeated is not, once it must not be."""
    return _MODES[max(_MODES.index(before), _MODES.index(wanted))]


async def _whole(transaction: Transaction, row: EffectRow) -> WholeEffectRow:
    whole = await transaction.fetch_one(
        sql.WHOLE,
        thread_id=row.thread_id,
        namespace=row.namespace,
        name_mac=row.name_mac,
        execution=row.execution,
    )
    if whole is None:
        raise IntegrityFailure("an effect of this thread was removed outside the gateway")
    return whole


async def _one(
    transaction: Transaction, ledger: LockedLedger, namespace: str, name: str, execution: int | None
) -> WholeEffectRow:
    """One execution, which is what the seal counts; None: the newest.

    Raises:
        EffectNotFound: There is none.
        IntegrityFailure: It was edited, removed or put back.
    """
    root = root_of(namespace)
    name_mac = effect_name_mac(ledger.sealer, ledger.thread_id, root, name)
    await check_parts(transaction, ledger, [effect_part(name_mac)])
    named = await transaction.fetch_all(
        sql.NAMED,
        thread_id=ledger.thread_id,
        namespace=root,
        name_mac=name_mac,
        limit=EFFECT_EXECUTIONS_MAX,
    )
    row = next((each for each in named if execution in {None, each.execution}), None)
    if row is None:
        raise EffectNotFound
    check_row(ledger, row)
    return await _whole(transaction, row)


def _with(row: WholeEffectRow, columns: EffectColumns, outcome: bytes | None, result: bytes | None) -> WholeEffectRow:
    """The row as it is after a change."""
    return msgspec.structs.replace(row, **msgspec.structs.asdict(columns), outcome=outcome, result=result)
