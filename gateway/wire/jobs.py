"""Bodies of jobs: one shape, whatever began them."""

from datetime import datetime
from typing import Literal

from msgspec import UNSET, UnsetType

from gateway.wire.base import Response
from gateway.wire.schemas import StateHeads, StateMigrationReport, UnversionedThreads


class JobTarget(Response, omit_defaults=True):
    """What a job works on: only the members that narrow it are there; with none, all of the tenant or deployment."""

    subject_id: str | UnsetType = UNSET
    thread_id: str | UnsetType = UNSET
    state_schema: str | UnsetType = UNSET
    state_version: int | UnsetType = UNSET


class JobProgress(Response):
    """How much is done; ``total`` is an estimate, null before it is known."""

    done: int
    total: int | None


class VerificationFinding(Response, omit_defaults=True):
    """Damage that a job found, by place; of a deployment's job, how often a tenant's job found it."""

    code: str
    detail: str | UnsetType = UNSET
    subject_id: str | None = None
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    tenant_id: str | UnsetType = UNSET
    job_id: str | UnsetType = UNSET
    count: int | UnsetType = UNSET


class Verification(Response):
    """What a job verified, how often it found each code, and where, up to a hundred places.

    ``known_losses``: anchored heads, and of the deployment's job tenants, that an accepted restore lost; no damage.
    """

    threads: int = 0
    threads_skipped: int = 0
    threads_frozen: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    pieces: int = 0
    items_opened: int = 0
    items_skipped: int = 0
    found: dict[str, int] = {}
    findings: list[VerificationFinding] = []
    known_losses: int = 0


class Job(Response):
    """A long operation, as every answer that begins or shows one has it.

    ``error`` says why it failed, ``note`` what was left out and why. ``migration`` is there of ``state-plan``,
    ``state-migrate`` and ``state-rollback``, ``verification`` when ``verify-tenant`` or ``verify-deployment`` ended.
    ``waits_for`` is why an open one does not go on, as a code such as ``root-key-refused``; null: it goes on, or has
    not begun. ``damaged``: its row was edited outside the gateway; what it said is not shown, and nothing is done by
    it.
    """

    job_id: str
    kind: str
    state: Literal["queued", "running", "done", "failed"]
    target: JobTarget
    progress: JobProgress
    error: str | None
    note: str | None
    waits_for: str | None
    created_at: datetime
    updated_at: datetime
    damaged: bool
    migration: StateMigrationReport | UnsetType = UNSET
    verification: Verification | UnsetType = UNSET


class StateMigrationStatus(Response):
    """Heads of a schema by version, as they are now, and the last job of each kind, newest first.

    ``unversioned`` are the tenant's threads that belong to no schema, by agent, the most first: adopt what is state of
    this one. A thread in the archive is not among them.
    """

    state_schema: str
    newest_version: int
    heads: list[StateHeads]
    unversioned: list[UnversionedThreads]
    jobs: list[Job]


class JobPage(Response):
    """Jobs, newest first."""

    jobs: list[Job]
    next_cursor: str | None
