"""Eager migration of state: a whole tenant's heads brought to a version, as jobs; loads need none of it.

1. A plan converts every head of a schema in memory and says what would become of it.
2. A migration saves what a head becomes as a new checkpoint on top of it, on the condition that nothing was written to
   the head meanwhile, not even a pending write. A head that moved is visited again at the end.
3. A rollback saves what a migrated head was made of as a new checkpoint on top of it; that stays until it is pruned.

Nothing is overwritten. Heads that wait for a person, hold pending writes or only the input of a run that no step has
taken up are left to the conversion at load, and so are those that an agent saved less long ago than asked for, because
it is probably at work on them, and those whose thread somebody claims. A migration tries these as its plan does, so
that both name the same heads as broken. A thread that asks for claims is migrated when nobody holds one: a job is no
run. Threads under a client-held share cannot be opened at all. A crash repeats at most a stretch of heads, which then
are found migrated; only numbers may count them twice. It promises no moment at which all state is at one version:
agents go on saving.
"""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal
from uuid import UUID

import msgpack
import msgspec
from msgspec import Struct

from crypto import KeyDestroyed
from migrations.state.errors import StateTooNew, UpcastFailed
from storage.administration.audit import Audit
from storage.administration.jobs import Job, Jobs, Lease, Slice
from storage.checkpoints.states import States
from storage.checkpoints.verbs import Checkpoints
from storage.encoding import decode_json, encode_json
from storage.errors import (
    CheckpointNotFound,
    ClaimHeld,
    ClientShareRequired,
    HeadMoved,
    IntegrityFailure,
    InvalidState,
    LimitExceeded,
    StateSchemaMismatch,
    StateTooLarge,
    StateTooNewToSave,
    TenantTooCostly,
    ThreadArchived,
    TooCostly,
)
from storage.format.token import ThreadToken
from storage.model import ChannelValue, Checkpoint, FullState, Load, Loaded, Precondition, Save, Value
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.schemas.checks import INPUT_SOURCE
from storage.schemas.registry import Schema, StateSchemas
from storage.schemas.versions import WantedVersions
from storage.scope import Scope, TenantListing, TenantScope
from storage.statements.threads import migrating as sql
from storage.statements.threads.completeness import SUBJECTS
from storage.statements.threads.migrating import MigratingHead

Kind = Literal["state-plan", "state-migrate", "state-rollback"]
STATE_PLAN_KIND: Kind = "state-plan"
STATE_MIGRATE_KIND: Kind = "state-migrate"
STATE_ROLLBACK_KIND: Kind = "state-rollback"
KINDS = (STATE_PLAN_KIND, STATE_MIGRATE_KIND, STATE_ROLLBACK_KIND)
MIGRATE_SOURCE, ROLLBACK_SOURCE = "migrate", "rollback"
HEADS_PER_SECOND = 50
IDLE_SECONDS = 60
SLICE_SECONDS = 2.0
# Heads that moved and are visited again, and how often; busier ones are migrated when they are loaded.
AGAIN_MAX = 1_000
AGAIN_ROUNDS_MAX = 10
FAILURES_MAX = 20
SAMPLES_MAX = 5
CHANGES_MAX = 50
_DEPTH_MAX = 16
_STRETCH_HEADS = 20

# What no repetition cures.
_FAILURES = (
    UpcastFailed, StateTooNew, StateTooNewToSave, StateSchemaMismatch, InvalidState, LimitExceeded, StateTooLarge,
    IntegrityFailure, TooCostly,
)  # fmt: skip

Outcome = Literal["current", "changed", "waiting", "recent", "shared", "archived", "moved", "gone", "failed"]


class Failure(Struct, kw_only=True):
    """Heads that cannot be converted, alike: at which step and place, and why."""

    step: str
    pointer: str
    detail: str
    heads: int = 1


class Change(Struct, kw_only=True):
    """A change of a step at one place, by type; null: nothing is there."""

    pointer: str
    before: str | None
    after: str | None


class Sample(Struct, kw_only=True):
    """The result that a migration would have for one head."""

    subject_id: str
    thread_id: str
    namespace: str
    checkpoint_id: str
    from_version: int
    changes: list[Change]


class Report(Struct, kw_only=True):
    """The counts of what was found and done; ``changed`` is what a plan would change."""

    heads: int = 0
    current: int = 0
    changed: int = 0
    waiting: int = 0
    recent: int = 0
    shared: int = 0
    archived: int = 0
    moved: int = 0
    gone: int = 0
    failed: int = 0
    failures: list[Failure] = []
    samples: list[Sample] = []


class _HeadRef(Struct, array_like=True, frozen=True):
    subject_id: str
    thread_id: str
    namespace: str


class _Position(Struct, kw_only=True):
    """Where a job is. ``after`` None: the subject is finished; ``round`` counts the visits of those that moved.

    ``refused_seconds``: how long its tenant is refused what takes worker processes (`TenantTooCostly`), and it waits.
    """

    target_version: int
    heads_per_second: int
    idle_seconds: int
    report: Report
    subject_id: str = ""
    after: tuple[str, str] | None = None
    walked: bool = False
    round: int = 0
    again: list[_HeadRef] = []
    moved: list[_HeadRef] = []
    refused_seconds: float = 0.0


def read_position(position: str) -> tuple[int, Report]:
    """The version that a job brings heads to, and what it found so far."""
    at = decode_json(position, _Position)
    return at.target_version, at.report


class Migrating:
    """Starts and performs the jobs."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        jobs: Jobs,
        audit: Audit,
        checkpoints: Checkpoints,
        states: States,
        schemas: StateSchemas,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind to the stores; ``monotonic`` is the clock, in seconds, that a job's rate goes by."""
        self._monotonic = monotonic
        self._unit_of_work = unit_of_work
        self._jobs = jobs
        self._audit = audit
        self._checkpoints = checkpoints
        self._states = states
        self._schemas = schemas

    async def begin(
        self,
        scope: TenantScope,
        kind: Kind,
        schema: str,
        actor: str,
        *,
        target_version: int | None = None,
        heads_per_second: int = HEADS_PER_SECOND,
        idle_seconds: int = IDLE_SECONDS,
    ) -> UUID:
        """Begin to plan, migrate or roll back; while a job of the kind goes on for the schema, this is the same job.

        Args:
            scope: The tenant whose state it is.
            kind: What to do.
            schema: The schema's name.
            actor: Who begins it, for the audit log.
            target_version: The version to migrate to; None: the newest.
            heads_per_second: The number of heads to look at in a second, at most.
            idle_seconds: Heads that an agent saved less long ago are not migrated; a rollback asks only whether an
                agent has saved since the migration.

        Raises:
            StateSchemaNotFound: the tenant has none of this name.
            StateTooNewToSave: it has not this version.
        """
        newest = (await self._schemas.get(scope, schema))[-1].number
        target = newest if target_version is None else target_version
        await self._schemas.known(scope, schema, target)
        position = _Position(
            target_version=target, heads_per_second=heads_per_second, idle_seconds=idle_seconds, report=Report()
        )
        await self._jobs.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            running = await self._jobs.open(transaction, scope.tenant_id, kind, schema)
            if running is not None:
                return running
            job_id = await self._jobs.add(transaction, scope.tenant_id, kind, schema, encode_json(position).decode())
            detail = {"job_id": str(job_id), "target_version": target}
            action = f"state-schema.{kind.removeprefix('state-')}"
            await self._audit.append(transaction, scope.tenant_id, actor, action, f"state-schema:{schema}", detail)
        return job_id

    async def heads_by_version(self, scope: TenantScope, schema: str) -> dict[int, int]:
        """How many heads of a schema are at each version now."""
        async with self._unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
            rows = await transaction.fetch_all(sql.HEADS_BY_VERSION, state_schema=schema)
        return {row.number: row.heads for row in rows}

    async def jobs(self, scope: TenantScope, schema: str) -> list[Job]:
        """The last job of each kind, newest first; a damaged one is left out (`Jobs.list` shows it).

        Raises:
            CryptoError: as `Jobs.get`.
        """
        await self._jobs.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(sql.LAST_JOBS, schema=schema, kinds=list(KINDS))
        found = (self._jobs.read(row) for row in rows)
        return [job for job in found if not job.damaged]

    # --- the job -------------------------------------------------------------------------------------------------

    async def perform(self, lease: Lease) -> Slice:
        """A slice of a job: as many heads as its rate allows in two seconds."""
        at = decode_json(lease.position, _Position)
        scope = TenantScope(lease.tenant_id)
        started = self._monotonic()
        left = math.ceil(at.heads_per_second * SLICE_SECONDS)
        at.refused_seconds = 0.0
        while left > 0 and self._monotonic() - started < SLICE_SECONDS:
            seen, ended = await self._stretch(lease, scope, at, min(left, _STRETCH_HEADS))
            left -= seen
            async with self._unit_of_work.begin(scope) as transaction:
                await lease.advance(transaction, encode_json(at).decode(), seen)
            if ended:
                return Slice(ended=True)
            if at.refused_seconds:
                return Slice(ended=False, again_seconds=at.refused_seconds, waits_for="tenant-refused")
        spare = SLICE_SECONDS - (self._monotonic() - started)
        return Slice(ended=False, again_seconds=max(0.0, spare) if left <= 0 else 0.0)

    async def _stretch(self, lease: Lease, scope: TenantScope, at: _Position, limit: int) -> tuple[int, bool]:
        """Visit some heads; returns how many, and whether there is nothing left to do."""
        if at.walked:
            return await self._visit_again(lease, scope, at, limit)
        if at.after is None:
            async with self._unit_of_work.snapshot(scope) as transaction:
                subjects = await transaction.fetch_all(SUBJECTS, after=at.subject_id, limit=1)
            if not subjects:
                at.walked = True
                return await self._visit_again(lease, scope, at, limit)
            at.subject_id, at.after = subjects[0], ("", "")
            # The empty namespace of the empty thread does not exist: no head is left out.
            await self._count_archived(Scope(scope.tenant_id, at.subject_id), at, lease.target)
        subject = Scope(scope.tenant_id, at.subject_id)
        async with self._unit_of_work.snapshot(subject) as transaction:
            rows = await _heads(transaction, at, at.after, lease.target, limit)
        for row in rows:
            at.after = (row.thread_id, row.namespace)
            at.report.heads += 1
            await self._visit(lease, subject, at, row)
        if len(rows) < limit:
            at.after = None
        return len(rows), False

    async def _count_archived(self, scope: Scope, at: _Position, schema: str) -> None:
        """Pass over what is in the archive: it is converted when it is loaded, there or restored."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            archived = await transaction.fetch_only(sql.ARCHIVED_HEADS, state_schema=schema)
        at.report.heads += archived
        at.report.archived += archived

    async def _visit_again(self, lease: Lease, scope: TenantScope, at: _Position, limit: int) -> tuple[int, bool]:
        if not at.again:
            if not at.moved or at.round >= AGAIN_ROUNDS_MAX:
                return 0, True
            at.again, at.moved, at.round = at.moved, [], at.round + 1
        places, at.again = at.again[:limit], at.again[limit:]
        for place in places:
            subject = Scope(scope.tenant_id, place.subject_id)
            at.report.moved -= 1
            async with self._unit_of_work.snapshot(subject) as transaction:
                rows = await _heads(transaction, at, (place.thread_id, place.namespace), lease.target, None)
            if not rows:
                at.report.gone += 1
            for row in rows:
                await self._visit(lease, subject, at, row)
        return len(places), not (at.again or at.moved)

    async def _visit(self, lease: Lease, scope: Scope, at: _Position, row: MigratingHead) -> None:
        try:
            outcome = await self._outcome(lease, scope, at, row)
        except TenantTooCostly as refused:
            outcome, at.refused_seconds = "moved", refused.retry_after_seconds
        setattr(at.report, outcome, getattr(at.report, outcome) + 1)
        if outcome == "moved" and len(at.moved) + len(at.again) < AGAIN_MAX:
            at.moved.append(_HeadRef(scope.subject_id, row.thread_id, row.namespace))

    async def _outcome(self, lease: Lease, scope: Scope, at: _Position, row: MigratingHead) -> Outcome:
        """Do with one head what the job is for; what cannot be done now by anybody is left alone, and counted."""
        due = row.source == MIGRATE_SOURCE if lease.kind == STATE_ROLLBACK_KIND else _below(row, at)
        waiting = row.written or row.status == "waiting" or row.source == INPUT_SOURCE
        aside: list[tuple[bool, Outcome]] = [
            (not due, "current"), (row.client_share, "shared"), (row.tier != "hot", "archived"),
            (waiting, "waiting"), (row.recent, "recent"),
        ]  # fmt: skip
        left = next((outcome for holds, outcome in aside if holds), None)
        # What is left to the conversion at load is tried, too: that must work.
        if left is not None and (lease.kind == STATE_ROLLBACK_KIND or left in {"current", "shared", "archived"}):
            return left
        try:
            loaded = await self._checkpoints.load(scope, Load(row.thread_id, row.namespace, None, with_state=True))
            if lease.kind == STATE_ROLLBACK_KIND:
                return await self._roll_back(scope, lease.target, loaded)
            done = await self._migrate(lease, scope, at, loaded, only_try=lease.kind == STATE_PLAN_KIND or bool(left))
        except _FAILURES as fault:
            await self._note_failure(scope, lease.target, at, fault)
            return "failed"
        except HeadMoved:
            return "moved"
        except ClaimHeld:
            return "recent"
        except ThreadArchived:
            return "archived"
        except ClientShareRequired:
            return "shared"
        except (CheckpointNotFound, KeyDestroyed):
            return "gone"
        return done if left is None else left

    async def _migrate(self, lease: Lease, scope: Scope, at: _Position, loaded: Loaded, *, only_try: bool) -> Outcome:
        saved = await self._states.adopted(scope, loaded.checkpoint)
        if saved.state_schema != lease.target or saved.state_version is None:
            return "moved"
        if saved.state_version >= at.target_version:
            return "current"
        wanted = WantedVersions(by_schema={lease.target: at.target_version})
        if only_try:
            # Writes are not carried, but they will be read.
            shown = await self._states.at(scope, wanted, saved)
            await self._states.checked(scope, _save(shown, loaded, saved.source or MIGRATE_SOURCE))
            if lease.kind == STATE_PLAN_KIND and len(at.report.samples) < SAMPLES_MAX:
                known = await self._schemas.known(scope, lease.target, at.target_version)
                at.report.samples.append(_sample(known, scope, saved, shown))
            return "changed"
        if saved.writes or saved.status == "waiting":
            return "waiting"
        shown = await self._states.at(scope, wanted, saved)
        await self._states.save(scope, _save(shown, loaded, MIGRATE_SOURCE))
        return "changed"

    async def _roll_back(self, scope: Scope, schema: str, loaded: Loaded) -> Outcome:
        head = loaded.checkpoint
        if head.source != MIGRATE_SOURCE or head.state_schema != schema or head.parent_id is None:
            return "moved"
        if head.writes or head.status == "waiting":
            return "waiting"
        before = await self._checkpoints.load(
            scope, Load(head.thread_id, head.namespace, head.parent_id, with_state=True)
        )
        made_of = await self._states.adopted(scope, before.checkpoint)
        if made_of.state_schema is None:
            raise StateSchemaMismatch("nothing says any more what the state was that was migrated")
        # What was saved once is not checked again.
        save = await self._states.tagged(scope, _save(made_of, loaded, ROLLBACK_SOURCE))
        await self._checkpoints.save(scope, save)
        return "changed"

    async def _note_failure(self, scope: Scope, schema: str, at: _Position, fault: Exception) -> None:
        pointer = getattr(fault, "pointer", "")
        words: frozenset[str] = frozenset()
        if pointer:
            words = _words(await self._schemas.known(scope, schema, at.target_version))
        failure = Failure(
            step=getattr(fault, "step", ""),
            pointer=_masked_pointer(pointer.split("/")[1:], words),
            # An upcast's own text repeats the pointer as it is.
            detail=fault.why if isinstance(fault, UpcastFailed) else str(fault),
        )
        for each in at.report.failures:
            if (each.step, each.pointer, each.detail) == (failure.step, failure.pointer, failure.detail):
                each.heads += 1
                return
        if len(at.report.failures) < FAILURES_MAX:
            at.report.failures.append(failure)


async def _heads(
    transaction: Transaction, at: _Position, place: tuple[str, str], schema: str, limit: int | None
) -> list[MigratingHead]:
    """Heads after a place, or, without a limit, the one at it."""
    thread_id, namespace = place
    return await transaction.fetch_all(
        sql.HEADS,
        after_thread=thread_id,
        after_namespace=namespace,
        state_schema=schema,
        idle_seconds=float(at.idle_seconds),
        limit=limit or 1,
        only_this=limit is None,
    )


def _below(row: MigratingHead, at: _Position) -> bool:
    return row.state_version is not None and row.state_version < at.target_version


def _save(shown: Checkpoint, on: Loaded, source: str) -> Save:
    """A new checkpoint of this state on top of a head, if nothing was written to it meanwhile."""
    head = on.checkpoint
    channels = {name: ChannelValue(each.version, each.value) for name, each in (shown.channels or {}).items()}
    return Save(
        thread_id=head.thread_id,
        namespace=head.namespace,
        content=FullState(channels),
        precondition=Precondition(head_id=head.checkpoint_id, sequence=ThreadToken.parse(on.token).sequence),
        status=head.status,
        step=head.step,
        source=source,
        agent=head.agent,
        run_id=head.run_id,
        model=shown.model,
        metadata=shown.metadata,
        state_schema=shown.state_schema,
        state_version=shown.state_version,
        delta_channels=shown.delta_channels,
        between_claims=True,
    )


# --- what a plan shows -------------------------------------------------------------------------------------------


def _sample(known: Schema, scope: Scope, saved: Checkpoint, shown: Checkpoint) -> Sample:
    before = {name: each.value for name, each in (saved.channels or {}).items()}
    after = {name: each.value for name, each in (shown.channels or {}).items()}
    words = _words(known)
    changes: list[Change] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            _compare(
                [name], _ABSENT if old is None else _tree(old), _ABSENT if new is None else _tree(new), changes, words
            )
    return Sample(
        subject_id=scope.subject_id,
        thread_id=saved.thread_id,
        namespace=saved.namespace,
        checkpoint_id=saved.checkpoint_id,
        from_version=saved.state_version or 0,
        changes=changes,
    )


class _Opaque(Struct, frozen=True):
    encoding: str
    data: bytes


_ABSENT = object()


def _tree(value: Value) -> Any:
    try:
        if value.encoding == "msgpack":
            return msgpack.unpackb(
                value.data, raw=False, strict_map_key=False, use_list=True, timestamp=0, ext_hook=msgpack.ExtType
            )
        if value.encoding == "json":
            return decode_json(value.data)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, msgspec.DecodeError):
        pass
    return None if value.encoding == "null" else _Opaque(value.encoding, value.data)


def _compare(steps: list[str], before: Any, after: Any, changes: list[Change], words: frozenset[str]) -> None:
    if len(changes) >= CHANGES_MAX:
        return
    if isinstance(before, dict) and isinstance(after, dict) and len(steps) < _DEPTH_MAX:
        for name in dict.fromkeys([*before, *after]):
            old, new = before.get(name, _ABSENT), after.get(name, _ABSENT)
            if old != new:
                _compare([*steps, str(name)], old, new, changes, words)
        return
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after) and len(steps) < _DEPTH_MAX:
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if old != new:
                _compare([*steps, str(index)], old, new, changes, words)
        return
    tokens = [each.replace("~", "~0").replace("/", "~1") for each in steps]
    changes.append(Change(pointer=_masked_pointer(tokens, words), before=_type_of(before), after=_type_of(after)))


_TYPES: dict[type, str] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "text", bytes: "binary",
}  # fmt: skip


def _type_of(tree: Any) -> str | None:
    match tree:
        case msgpack.ExtType():
            return f"extension {tree.code}"
        case list():
            return f"list of {len(tree)}"
        case dict():
            return f"object of {len(tree)}"
        case _Opaque():
            return f"encoded as {tree.encoding}"
        case _:
            return None if tree is _ABSENT else _TYPES.get(type(tree), "other")


def _masked_pointer(tokens: Iterable[str], words: frozenset[str]) -> str:
    """A pointer without what may be data: below the channel, only indexes and names that the tenant registered."""
    return "".join(
        f"/{token if position == 0 or token.isdecimal() or token in words else '*'}"
        for position, token in enumerate(tokens)
    )


def _words(known: Schema) -> frozenset[str]:
    """Every name in what was registered: of members in JSON Schemas, and in the pointers of steps."""
    words: set[str] = set()
    level: list[Any] = [msgspec.to_builtins(each.definition) for each in known.versions.values()]
    while level:
        after: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                words.update(str(name) for name in each)
                after += each.values()
            elif isinstance(each, list | tuple):
                after += each
            elif isinstance(each, str) and each.startswith("/"):
                words.update(each.split("/"))
        level = after
    return frozenset(words)
