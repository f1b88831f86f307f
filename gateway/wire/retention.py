"""Bodies of retention and save policies."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from gateway.wire.base import Request, Response, Status, Word


class RetentionRound(Response):
    """How far the tenant's round of retention is; one process has it at a time.

    ``state``: ``running``, a process has its lease, until ``lease_until`` if it does not renew it; ``waiting``, for
    ``due_at`` or, after that, for a process; ``none``, nobody said how long threads are kept, and no item was put that
    ends. ``looked_at`` are the threads that the round under way has looked at. ``done`` and ``due`` count acts of the
    round under way, or of the last one: what was done, and what was left, the oldest of which has been due since
    ``late_since``. Of what was left ``over_quota`` acts would have moved rows to the object store, where the tenant's
    quota has no room.
    """

    state: Literal["running", "waiting", "none"]
    lease_until: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    looked_at: int = 0
    hot: int = 0
    archive: int = 0
    held: int = 0
    done: dict[str, int] = {}
    due: dict[str, int] = {}
    over_quota: int = 0
    late_since: datetime | None = None


_RetentionSeconds = Annotated[int, Meta(ge=1, le=100 * 366 * 86_400)]
_RetentionCount = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class RetentionThinning(Request, omit_defaults=True):
    """Which checkpoints stay when a thread is thinned, or its older ones move into segments. Name at least one.

    ``every``: those whose step is a multiple of it; ``keep_first`` and ``keep_last``: so many of the oldest and newest
    of each namespace; ``keep_statuses``: those with one of these statuses.
    """

    every: _RetentionCount | None = None
    keep_first: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    keep_last: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    keep_statuses: Annotated[list[Status], Meta(max_length=4)] = []


class RetentionPolicy(Request, omit_defaults=True):
    """What one level says of its threads; absent or null: nothing, and a more general level decides.

    A thread ends when it was idle for ``idle_ttl_seconds`` (reads do not count), is ``absolute_ttl_seconds`` old, or
    has been ``done`` for ``done_ttl_seconds``: then it is archived, or with ``on_expiry`` ``delete`` deleted. An
    archive is deleted after ``archive_ttl_seconds``. A thread with a quarter more checkpoints than ``checkpoints_max``
    is thinned down to it; ``thinning`` says what else goes; pending writes that nobody resumes from go after
    ``pending_writes_seconds``. Checkpoints of a thread that stays move into segments when they were made, and written
    to last, longer ago than ``checkpoints_idle_ttl_seconds``, but those that ``keep_hot`` names; they are deleted
    ``segment_ttl_seconds`` after that. ``legal_hold`` keeps everything, whatever else is said; absent, it stays as it
    is.
    """

    idle_ttl_seconds: _RetentionSeconds | None = None
    absolute_ttl_seconds: _RetentionSeconds | None = None
    done_ttl_seconds: _RetentionSeconds | None = None
    on_expiry: Literal["archive", "delete"] | None = None
    checkpoints_max: _RetentionCount | None = None
    thinning: RetentionThinning | None = None
    pending_writes_seconds: _RetentionSeconds | None = None
    checkpoints_idle_ttl_seconds: _RetentionSeconds | None = None
    keep_hot: RetentionThinning | None = None
    archive_storage_class: Word | None = None
    archive_ttl_seconds: _RetentionSeconds | None = None
    segment_ttl_seconds: _RetentionSeconds | None = None
    legal_hold: bool | None = None


class RetentionCeilings(Request, omit_defaults=True):
    """What an operator allows a tenant at most, also where no policy says anything; absent or null: as it likes."""

    idle_ttl_seconds: _RetentionSeconds | None = None
    absolute_ttl_seconds: _RetentionSeconds | None = None
    done_ttl_seconds: _RetentionSeconds | None = None
    checkpoints_max: _RetentionCount | None = None
    pending_writes_seconds: _RetentionSeconds | None = None
    checkpoints_idle_ttl_seconds: _RetentionSeconds | None = None
    archive_ttl_seconds: _RetentionSeconds | None = None
    segment_ttl_seconds: _RetentionSeconds | None = None


class EffectiveRetention(Response):
    """What holds after all levels were merged, the most specific first, and capped; null: never, or without bound."""

    idle_ttl_seconds: int | None
    absolute_ttl_seconds: int | None
    done_ttl_seconds: int | None
    on_expiry: Literal["archive", "delete"]
    checkpoints_max: int | None
    thinning: RetentionThinning | None
    pending_writes_seconds: int | None
    checkpoints_idle_ttl_seconds: int | None
    keep_hot: RetentionThinning | None
    archive_storage_class: str | None
    archive_ttl_seconds: int | None
    segment_ttl_seconds: int | None
    legal_hold: bool


class DamagedRetention(Response):
    """What was said at a level and is damaged; ``agent`` at the level of agents."""

    level: Literal["tenant", "agent", "ceilings"]
    agent: str | None


class Retention(Response):
    """What is said for all threads of the tenant, or for those of ``agent``, and what that comes to.

    ``agents`` are those that have a policy of their own. ``updated_at`` null: nothing was ever said here. ``damaged``
    are those that were written or edited outside the gateway: nothing is removed that they could apply to, and
    ``effective`` is null where one of them applies. A PUT that says ``legal_hold`` supersedes one; of the ceilings, the
    operator's.
    """

    agent: str | None
    policy: RetentionPolicy
    effective: EffectiveRetention | None
    ceilings: RetentionCeilings
    agents: list[str]
    damaged: list[DamagedRetention]
    updated_at: datetime | None


class SavePolicy(Request, omit_defaults=True):
    """What is asked of saves; absent or null: nothing is said here.

    ``strict``: whether a save must name the head it follows. ``compact_elements`` and ``compact_bytes``: a save whose
    answer is the newest checkpoint is told in ``needs_compaction`` of lists that have more.
    """

    strict: bool | None = None
    compact_elements: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    compact_bytes: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None


class SavePolicies(Response):
    """What is said for all saves of the tenant, or for those of ``agent``, and what that comes to.

    ``strict`` is what holds: an agent's policy counts before the tenant's; null: something damaged decides, and a save
    that names no head is refused as ``integrity-failure``. ``compact_elements`` and ``compact_bytes`` are what holds
    likewise; null: nothing. ``agents`` are those that have a policy of their own;
    ``updated_at`` null: nothing is said here. ``damaged`` are those whose policy was written or edited outside
    the gateway; null among them is the tenant. A PUT supersedes one.
    """

    agent: str | None
    policy: SavePolicy
    strict: bool | None
    compact_elements: int | None
    compact_bytes: int | None
    agents: list[str]
    damaged: list[str | None]
    updated_at: datetime | None


class RetentionStep(Response):
    """What becomes of a thread next: at ``at``, or as soon as a round comes by if that is past."""

    action: Literal["archive", "delete", "expire", "segment", "segment-expire", "thin"]
    reason: Literal[
        "idle_ttl",
        "absolute_ttl",
        "done_ttl",
        "archive_ttl",
        "checkpoints_idle_ttl",
        "segment_ttl",
        "checkpoints_max",
        "thinning",
        "pending_writes",
    ]
    at: datetime


class ThreadRetention(Response):
    """What a thread's own policy says, what holds for it, and what becomes of it next if nobody writes to it.

    ``damaged``: its own policy was written or edited outside the gateway; a PUT by tenant:admin that says
    ``legal_hold`` supersedes it. ``effective`` null: something damaged applies to it, and nothing of it is removed.
    """

    thread_id: str
    policy: RetentionPolicy
    effective: EffectiveRetention | None
    damaged: bool
    next: RetentionStep | None
    updated_at: datetime | None


class RetentionForeseen(Response):
    """What a round would do of one sort.

    ``bytes``: what leaves the database sealed, or of ``expire`` and ``segment-expire`` the objects' sizes. Of ``thin``
    it is an estimate, and ``checkpoints`` and ``pending_writes`` say how many would go.
    """

    action: Literal["archive", "delete", "expire", "segment", "segment-expire", "thin"]
    threads: int
    bytes: int
    checkpoints: int
    pending_writes: int


class RetentionPreview(Response):
    """What a round would do at ``at`` to a stretch of the tenant's threads: add up the pages.

    ``held`` threads would be acted on but for a legal hold; ``damaged`` ones are left alone because a policy that could
    apply to them was written or edited outside the gateway.
    """

    at: datetime
    threads: int
    held: int
    damaged: int
    actions: list[RetentionForeseen]
    next_cursor: str | None


class TenantRetentionCeilings(Response):
    """The operator's ceilings for a tenant. ``updated_at`` null: there never were any."""

    tenant_id: str
    ceilings: RetentionCeilings
    updated_at: datetime | None
