"""Retention: from a policy and the clear facts of a thread to what is due, as pure functions.

Policies stand at three levels, tenant, agent and thread. They are merged field by field, and the most specific level
that says something of a field wins; a legal hold at any level holds. What the operator's ceilings cap is capped after
that, also where no policy says anything. From the result and what is known of a thread without opening it, `plan` says
what to do with it now, and `outlook` what will come next.

Owns the vocabulary, the merging and the decisions. It reads no clock, no row and no key: the round
(`storage.retention.rounds`) and the preview (`storage.retention.preview`) ask the same functions, so that a preview
says what a round would do. What thinning spares within a thread is decided where the thread is open
(`storage.threads.pruning`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from storage.errors import InvalidState
from storage.model import Status, Tier
from storage.threads.thinning import HYSTERESIS

# A hundred years; no policy means more, and sums with it stay within what a date can be.
SECONDS_MAX = 100 * 366 * 86_400
COUNT_MAX = 1_000_000_000
# A thread that its absolute age archives has been left alone for so long: whoever came back to it goes on in peace, and
# it is not archived and restored in turns.
QUIET_SECONDS = 3600

OnExpiry = Literal["archive", "delete"]
Action = Literal["archive", "delete", "expire", "segment", "segment-expire", "thin"]
Reason = Literal[
    "idle_ttl", "absolute_ttl", "done_ttl", "archive_ttl", "checkpoints_idle_ttl", "segment_ttl", "checkpoints_max",
    "thinning", "pending_writes",
]  # fmt: skip
ACTIONS: tuple[Action, ...] = ("archive", "delete", "expire", "segment", "segment-expire", "thin")
# Checkpoints leave the database in groups of so many, or when one of them is twice as old as it may become.
SEGMENT_CHECKPOINTS_MIN = 500


class Thinning(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which checkpoints stay when a thread is thinned, or when its older ones leave the database; all others go.

    ``every`` keeps those whose step is a multiple of it, ``keep_first`` and ``keep_last`` so many of the oldest and of
    the newest of each namespace, and ``keep_statuses`` those with one of these statuses.
    """

    every: int | None = None
    keep_first: int = 0
    keep_last: int = 0
    keep_statuses: tuple[Status, ...] = ()


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one level says; None: nothing.

    Attributes:
        idle_ttl_seconds: Seconds since the last write or restore. Reads do not count: they write nothing.
        absolute_ttl_seconds: Seconds since the thread was made.
        done_ttl_seconds: Seconds since the last write of a thread whose status is ``done``.
        on_expiry: The act when one of those is over; ``archive`` where no level names one.
        checkpoints_max: The number of checkpoints that a thread with a quarter more is thinned down to, oldest first.
        thinning: The checkpoints that stay.
        pending_writes_seconds: The age at which pending writes go, of checkpoints that no run resumes from.
        checkpoints_idle_ttl_seconds: Seconds since a checkpoint was made and written to last, after which it moves into
            a segment while its thread stays hot.
        keep_hot: The checkpoints that stay in the database all the same.
        archive_storage_class: The storage class of archives and segments; None: the bucket's own.
        archive_ttl_seconds: Seconds since the thread was archived, after which it is deleted.
        segment_ttl_seconds: Seconds since checkpoints moved into a segment, after which they are deleted.
        legal_hold: Whether nothing is removed, whatever else is said and whoever asks.
    """

    idle_ttl_seconds: int | None = None
    absolute_ttl_seconds: int | None = None
    done_ttl_seconds: int | None = None
    on_expiry: OnExpiry | None = None
    checkpoints_max: int | None = None
    thinning: Thinning | None = None
    pending_writes_seconds: int | None = None
    checkpoints_idle_ttl_seconds: int | None = None
    keep_hot: Thinning | None = None
    archive_storage_class: str | None = None
    archive_ttl_seconds: int | None = None
    segment_ttl_seconds: int | None = None
    legal_hold: bool | None = None


class Ceilings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the operator allows a tenant at most; each caps the policy's field of the same name. None: as it likes."""

    idle_ttl_seconds: int | None = None
    absolute_ttl_seconds: int | None = None
    done_ttl_seconds: int | None = None
    checkpoints_max: int | None = None
    pending_writes_seconds: int | None = None
    checkpoints_idle_ttl_seconds: int | None = None
    archive_ttl_seconds: int | None = None
    segment_ttl_seconds: int | None = None


NO_POLICY = Policy()
NO_CEILINGS = Ceilings()
_TIMES = (
    "idle_ttl_seconds", "absolute_ttl_seconds", "done_ttl_seconds", "pending_writes_seconds",
    "checkpoints_idle_ttl_seconds", "archive_ttl_seconds", "segment_ttl_seconds",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds for a thread: policies merged and capped. None: never, or without a bound."""

    idle_ttl_seconds: int | None = None
    absolute_ttl_seconds: int | None = None
    done_ttl_seconds: int | None = None
    on_expiry: OnExpiry = "archive"
    checkpoints_max: int | None = None
    thinning: Thinning | None = None
    pending_writes_seconds: int | None = None
    checkpoints_idle_ttl_seconds: int | None = None
    keep_hot: Thinning | None = None
    archive_storage_class: str | None = None
    archive_ttl_seconds: int | None = None
    segment_ttl_seconds: int | None = None
    legal_hold: bool = False

    @property
    def thins(self) -> bool:
        """Whether it takes anything from threads that stay."""
        return not (self.checkpoints_max is None and self.thinning is None and self.pending_writes_seconds is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a thread without opening it; its moments are the database's.

    Attributes:
        updated_at: The moment of the last write to it, or of its being restored.
        client_share: Whether its checkpoints open only under a share that its client holds.
        changed: Whether it, or what holds for it, changed since it was last thinned.
        checkpoints: The number that it has; None: they were not counted.
        writes_due: Whether it has pending writes that are older than the policy wants to keep.
        old_checkpoints: The number of checkpoints behind its newest segment that are older than they may be and no
            head that has to stay.
        has_overdue: Whether one of those is twice as old as it may be, and was not when it was last looked at.
        segmented: Whether it has segments.
        volume_at: The moment since which the oldest volume of its segments has been what it is, of those that were not
            looked at since they were old enough; None: there is none, or they were not counted.
    """

    tier: Tier
    status: Status
    created_at: datetime
    updated_at: datetime
    client_share: bool = False
    archived_at: datetime | None = None
    changed: bool = True
    checkpoints: int | None = None
    writes_due: bool = False
    old_checkpoints: int = 0
    has_overdue: bool = False
    segmented: bool = False
    volume_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """An act that is due, or will be, from the moment ``at`` on; ``reason`` is the policy's field that says so.

    ``delete`` is for a hot thread, ``expire`` for an archived one; ``segment-expire`` is for some of the segments of a
    thread that stays.
    """

    action: Action
    reason: Reason
    at: datetime


def check_policy(policy: Policy, storage_classes: frozenset[str]) -> Policy:
    """Return a policy that means something.

    ``storage_classes`` are the names that ``archive_storage_class`` may be.

    Raises:
        InvalidState: what is wrong, and where.
    """
    _check_bounds(policy)
    for field in ("thinning", "keep_hot"):
        kept: Thinning | None = getattr(policy, field)
        if kept is None:
            continue
        if kept == Thinning():
            raise InvalidState("keeping nothing in particular means nothing: name what stays", f"/{field}")
        for name in ("every", "keep_first", "keep_last"):
            count = getattr(kept, name)
            if count is not None and not (1 if name == "every" else 0) <= count <= COUNT_MAX:
                raise InvalidState("a count is a whole number that makes sense", f"/{field}/{name}")
    wanted = policy.archive_storage_class
    if wanted is not None and wanted not in storage_classes:
        known = ", ".join(sorted(storage_classes))
        raise InvalidState(f"must be one of {known}", "/archive_storage_class")
    return policy


def check_ceilings(ceilings: Ceilings) -> Ceilings:
    """Return ceilings that mean something.

    Raises:
        InvalidState: what is wrong, and where.
    """
    _check_bounds(ceilings)
    return ceilings


def _check_bounds(bounds: Policy | Ceilings) -> None:
    for name in _TIMES:
        seconds = getattr(bounds, name)
        if seconds is not None and not 1 <= seconds <= SECONDS_MAX:
            raise InvalidState("is a whole number of seconds from 1 to a hundred years", f"/{name}")
    count = bounds.checkpoints_max
    if count is not None and not 1 <= count <= COUNT_MAX:
        raise InvalidState(f"is a whole number from 1 to {COUNT_MAX:,}", "/checkpoints_max")


def removes(policy: Policy) -> bool:
    """Whether a policy can remove state by itself, so that setting it takes the permission to delete."""
    ends = (policy.idle_ttl_seconds, policy.absolute_ttl_seconds, policy.done_ttl_seconds)
    return (
        policy.on_expiry == "delete"
        or (policy.on_expiry is None and any(seconds is not None for seconds in ends))
        or policy.archive_ttl_seconds is not None
        or policy.segment_ttl_seconds is not None
        or policy.checkpoints_max is not None
        or policy.thinning is not None
        or policy.pending_writes_seconds is not None
    )


def removes_sooner(before: Effective, after: Effective) -> bool:
    """Whether what holds for a thread would remove anything of it that it would not have, or earlier.

    That a thread is archived earlier is no removal: who may write it may archive it.
    """

    def terms(policy: Effective) -> Iterator[int | None]:
        deletes = policy.on_expiry == "delete"
        for seconds in (policy.idle_ttl_seconds, policy.absolute_ttl_seconds, policy.done_ttl_seconds):
            yield seconds if deletes else None
        yield from (policy.archive_ttl_seconds, policy.segment_ttl_seconds)
        yield from (policy.checkpoints_max, policy.pending_writes_seconds)

    return (after.thinning is not None and after.thinning != before.thinning) or any(
        new is not None and (old is None or new < old) for old, new in zip(terms(before), terms(after), strict=True)
    )


def _capped(seconds: int | None, ceiling: int | None) -> int | None:
    if seconds is None or ceiling is None:
        return seconds if ceiling is None else ceiling
    return min(seconds, ceiling)


def resolve(levels: Sequence[Policy], ceilings: Ceilings = NO_CEILINGS) -> Effective:
    """Merge what the levels say, and cap it.

    ``levels`` go from the most general (tenant) to the most specific (thread).
    """
    merged: dict[str, object] = {}
    for level in levels:
        merged |= {name: said for name, said in asdict(level).items() if said is not None}
    merged["legal_hold"] = any(level.legal_hold for level in levels)
    for name, ceiling in asdict(ceilings).items():
        said = merged.get(name)
        merged[name] = _capped(said if isinstance(said, int) else None, ceiling)
    return Effective(**merged)  # type: ignore[arg-type]


def _after(moment: datetime, seconds: int) -> datetime:
    return moment + timedelta(seconds=seconds)


def _ends(policy: Effective, facts: Facts) -> Iterator[Plan]:
    """What the passing of time does to a thread as it is, in no order."""
    deletes = policy.on_expiry == "delete"
    if facts.tier == "archive":
        if facts.archived_at is not None and policy.archive_ttl_seconds is not None:
            yield Plan("expire", "archive_ttl", _after(facts.archived_at, policy.archive_ttl_seconds))
        if not deletes:
            return
    action: Action = "archive" if not deletes else "delete" if facts.tier == "hot" else "expire"
    if policy.idle_ttl_seconds is not None:
        yield Plan(action, "idle_ttl", _after(facts.updated_at, policy.idle_ttl_seconds))
    if policy.absolute_ttl_seconds is not None:
        at = _after(facts.created_at, policy.absolute_ttl_seconds)
        yield Plan(action, "absolute_ttl", at if deletes else max(at, _after(facts.updated_at, QUIET_SECONDS)))
    if policy.done_ttl_seconds is not None and facts.status == "done":
        yield Plan(action, "done_ttl", _after(facts.updated_at, policy.done_ttl_seconds))


def _segment_end(policy: Effective, facts: Facts) -> Plan | None:
    """When the oldest volume of a thread's segments has been there for long enough."""
    seconds = policy.segment_ttl_seconds
    if seconds is None or facts.volume_at is None or not may_expire_segments(policy, facts):
        return None
    return Plan("segment-expire", "segment_ttl", _after(facts.volume_at, seconds))


def outlook(policy: Effective, facts: Facts) -> Plan | None:
    """What time alone will do to a thread next, and when; None: nothing. A legal hold leaves only archiving."""
    of_segments = _segment_end(policy, facts)
    ends = _standing_ends(policy, facts)
    if of_segments is not None:
        ends.append(of_segments)
    return min(ends, key=lambda each: each.at, default=None)


def _standing_ends(policy: Effective, facts: Facts) -> list[Plan]:
    """The ends of a thread that a hold does not forbid."""
    return [each for each in _ends(policy, facts) if each.action == "archive" or not policy.legal_hold]


def may_thin(policy: Effective, facts: Facts) -> bool:
    """Whether `plan` may say ``thin`` when it is known what a thread has."""
    return policy.thins and not policy.legal_hold and facts.tier == "hot" and not facts.client_share


def may_segment(policy: Effective, facts: Facts) -> bool:
    """Whether `plan` may say ``segment`` when it is known what a thread has. A hold does not keep it from that."""
    return policy.checkpoints_idle_ttl_seconds is not None and facts.tier == "hot" and not facts.client_share


def may_expire_segments(policy: Effective, facts: Facts) -> bool:
    """Whether `plan` may say ``segment-expire`` when it is known what a thread has."""
    return (
        policy.segment_ttl_seconds is not None
        and not policy.legal_hold
        and facts.tier == "hot"
        and facts.segmented
        and not facts.client_share
    )


def too_many(policy: Effective, checkpoints: int | None) -> bool:
    """Whether a thread has more checkpoints than its policy and the hysteresis allow."""
    most = policy.checkpoints_max
    return most is not None and checkpoints is not None and checkpoints > most * HYSTERESIS


def plan(policy: Effective, facts: Facts, now: datetime) -> Plan | None:
    """What to do with a thread now; None: nothing.

    ``now`` is by the database's clock, which the times of ``facts`` are from.
    """
    due = min(_standing_ends(policy, facts), key=lambda each: each.at, default=None)
    if due is not None and due.at <= now:
        return due
    due = _segment_end(policy, facts)
    if due is not None and due.at <= now:
        return due
    return _thinned(policy, facts) or _segmented(policy, facts)


def plan_besides(policy: Effective, facts: Facts, due: Plan, now: datetime) -> Plan | None:
    """What is to be done with a thread after what was due; None: nothing now.

    What goes of its segments leaves the rest of it as it was.
    """
    return plan(policy, replace(facts, volume_at=None), now) if due.action == "segment-expire" else None


def _segmented(policy: Effective, facts: Facts) -> Plan | None:
    """What moves into segments."""
    seconds = policy.checkpoints_idle_ttl_seconds
    if seconds is None or not may_segment(policy, facts):
        return None
    kept = 0 if policy.keep_hot is None else policy.keep_hot.keep_first + policy.keep_hot.keep_last
    if facts.old_checkpoints < SEGMENT_CHECKPOINTS_MIN + kept and not facts.has_overdue:
        return None
    return Plan("segment", "checkpoints_idle_ttl", _after(facts.created_at, seconds))


def _thinned(policy: Effective, facts: Facts) -> Plan | None:
    """What is removed of a thread that stays."""
    if not may_thin(policy, facts):
        return None
    if facts.changed and too_many(policy, facts.checkpoints):
        return Plan("thin", "checkpoints_max", facts.updated_at)
    if policy.thinning is not None and facts.changed:
        return Plan("thin", "thinning", facts.updated_at)
    if policy.pending_writes_seconds is not None and facts.writes_due:
        return Plan("thin", "pending_writes", _after(facts.created_at, policy.pending_writes_seconds))
    return None
