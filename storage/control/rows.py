"""Control rows: proof that what steers the gateway was written by a gateway.

A row that decides what is done to state (a version of a state schema, an adoption, a save policy, an approval policy, a
vector policy, a retention policy with its hold, a job), or what is told of it (a tenant's settings of events), carries
a MAC over its identity and all columns that mean something. Code that acts on it or shows it checks that first, so that
a row written or edited outside of the gateway converts nothing, removes nothing and starts nothing. The key is one of
the deployment, not of a tenant: the operators' jobs belong to no tenant, and a shred goes on when the tenant has no
keys.

Owns what is under the MACs, and in which format rows are written. It does not notice a row that was deleted, nor an
older authentic one of the same identity that was put back.
"""

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from storage.control.deployment_keys import Deployment
from storage.control.features import CONTROL_ROW_FORMATS, Features
from storage.control.key import FIRST_FORMAT, NEWEST_FORMAT, ControlKey, Row
from storage.errors import IntegrityFailure
from storage.model import SaveRule
from storage.statements.deployment.jobs import JobRow

_ENDED = frozenset({"done", "failed"})


def schema_row(tenant_id: UUID, schema: str, number: int, definition: bytes, created_at: datetime) -> Row:
    """A version of a state schema."""
    return Row("state-schema", tenant_id, (schema, number), (definition, created_at))


def adoption_row(
    tenant_id: UUID,
    agent: str,
    namespace: str,
    number: int,
    state_schema: str,
    state_version: int,
    adopted_at: datetime,
) -> Row:
    """What an agent's unversioned state is; an empty ``agent``: that of checkpoints that name none."""
    return Row("state-adoption", tenant_id, (agent, namespace, number), (state_schema, state_version, adopted_at))


def save_policy_row(tenant_id: UUID, agent: str, rule: SaveRule, updated_at: datetime) -> Row:
    """What is asked of saves; an empty ``agent``: of all of the tenant's.

    A policy that says nothing of lists is as builds wrote it that knew nothing of them.
    """
    strict = None if rule.strict is None else int(rule.strict)
    lists = (rule.compact_elements, rule.compact_bytes)
    return Row("save-policy", tenant_id, (agent,), (strict, updated_at, *(() if lists == (None, None) else lists)))


def vector_policy_row(tenant_id: UUID, vectors: str, accepted: str, complete: bool, updated_at: datetime) -> Row:
    """Whether a tenant's vectors may be in clear, what it accepted that leaks, and whether all of them are."""
    return Row("vector-policy", tenant_id, (), (vectors, accepted, int(complete), updated_at))


def approval_policy_row(tenant_id: UUID, target: tuple[str, str], says: tuple[int, ...], updated_at: datetime) -> Row:
    """What is asked of approvals; ``target`` is the agent and the tool, each empty for all of them."""
    return Row("approval-policy", tenant_id, target, (*says, updated_at))


def event_settings_row(tenant_id: UUID, is_on: bool, since: datetime | None, changed_at: datetime) -> Row:
    """Whether a tenant has events, and since when none is left out."""
    return Row("event-settings", tenant_id, (), (int(is_on), since, changed_at))


def policy_row(
    tenant_id: UUID, level: str, target: tuple[str, ...], policy: bytes, legal_hold: bool, updated_at: datetime
) -> Row:
    """What one level says of retention.

    ``level`` is ``tenant``, ``agent``, ``ceilings`` or ``thread``; ``target`` is the agent, or the thread with its
    subject before it.
    """
    return Row("retention", tenant_id, (level, *target), (policy, int(legal_hold), updated_at))


@dataclass(frozen=True, slots=True)
class JobDraft:
    """What a job's row is about to say; see `job_row`."""

    tenant_id: UUID
    job_id: UUID
    kind: str
    target: str
    state: str = "queued"
    position: str = ""
    error: str | None = None
    note: str | None = None


def job_row(job: JobDraft | JobRow) -> Row:
    """A job: what it is, where it is, and how it ended; a lease, and what it waits for, are left out."""
    outcome = job.state if job.state in _ENDED else "open"
    says = (job.kind, job.target, outcome, job.position, job.error, job.note)
    return Row("job", job.tenant_id, (job.job_id,), says)


class Proof(NamedTuple):
    """What is stored with a row to prove it.

    Attributes:
        mac: Null in a row from before MACs.
        mac_format: Null for the first format, which is all that older builds write and look for.
    """

    mac: bytes | None
    mac_format: int | None


class Proved(Protocol):
    """A stored row with its proof."""

    @property
    def mac(self) -> bytes | None:
        """The MAC over the row; None in a row from before MACs."""

    @property
    def mac_format(self) -> int | None:
        """The MAC's format; None for the first."""


def proof_of(row: Proved) -> Proof:
    """What proves a row that was read."""
    return Proof(row.mac, row.mac_format)


class ControlRows:
    """Makes and checks proofs. `ready` comes first, and outside of transactions: it may have to ask the root key."""

    def __init__(self, deployment: Deployment) -> None:
        self._key = ControlKey(deployment)
        self.features = Features(deployment.unit_of_work, self._key, deployment.clock, deployment.observer)
        self._observer = deployment.observer

    async def ready(self) -> None:
        """Have at hand what proofs need.

        Raises:
            CryptoError: the root key does not wrap or open the control key now.
            IntegrityFailure: the stored key does not match its check value.
            BuildTooOld: a newer build finished an upgrade.
            Unavailable: the database cannot be reached.
        """
        await self._key.ready()
        await self.features.ready()

    @property
    def can_check(self) -> bool:
        """Whether this was made `ready`, or `ready_to_check`."""
        return self._key.is_ready

    async def ready_to_check(self) -> None:
        """Have at hand what checking takes, and no more: of one process only the first asks for anything.

        Raises:
            CryptoError, IntegrityFailure, Unavailable: as `ready`.
        """
        await self._key.ready()

    def proof(self, row: Row) -> Proof:
        """What is stored with a row: in the format that every process of the deployment knows.

        Raises:
            KeyUnavailable: this was not made `ready`.
            IntegrityFailure: it is not known which format that is.
        """
        if self.features.is_on(CONTROL_ROW_FORMATS):
            return Proof(self._key.mac(row, NEWEST_FORMAT), NEWEST_FORMAT)
        return Proof(self._key.mac(row, FIRST_FORMAT), None)

    def subject_tag(self, tenant_id: UUID, subject_id: str) -> str:
        """A name for a subject of which nothing is left, by which nobody finds its id who does not know it.

        Raises:
            KeyUnavailable: as `proof`.
        """
        return self._key.mac(Row("subject-tag", tenant_id, (subject_id,), ()), FIRST_FORMAT)[:16].hex()

    def is_authentic(self, row: Row, proof: Proof) -> bool:
        """Whether a gateway of this deployment wrote a row as it is.

        A format that this build does not know is no newer build's: that one writes it once a feature is on, and `ready`
        refuses a feature that this build does not know.

        Raises:
            KeyUnavailable: as `proof`.
        """
        mac_format = FIRST_FORMAT if proof.mac_format is None else proof.mac_format
        return (
            proof.mac is not None
            and FIRST_FORMAT <= mac_format <= NEWEST_FORMAT
            and hmac.compare_digest(self._key.mac(row, mac_format), proof.mac)
        )

    def is_sound(self, row: Row, proof: Proof) -> bool:
        """Whether a row `is_authentic`; the observer is told of one that is not.

        Raises:
            KeyUnavailable: as `is_authentic`.
        """
        sound = self.is_authentic(row, proof)
        if not sound:
            self._observer.integrity_failure()
        return sound

    def check(self, row: Row, proof: Proof) -> None:
        """Refuse a row that no gateway of this deployment wrote as it is.

        Raises:
            IntegrityFailure: it is one.
            KeyUnavailable: as `is_authentic`.
        """
        if not self.is_sound(row, proof):
            raise IntegrityFailure(f"{row} was written or edited outside the gateway")
