"""Vector policies: a tenant says that vectors of its items may be kept in clear, beside the sealed ones.

Texts can be got back from their embeddings, so that whoever reads the table, a copy of it or a backup reads about what
the items say: a policy is set only by who accepts that (`LEAKAGE`), and the audit log has what was accepted. Sealed
rows stay as they are: they are the truth, and what a change back needs.

A policy holds for every write that begins after it was set. What is there already is put into the table, or removed
from it, by a job (`storage.clear_vectors.filling`), which says in the row when it is done (``complete``); searches use
the table only then. So a row goes from none, over clear and clear in whole, and sealed, back to none.

A row that no gateway wrote as it is (`storage.control.rows`) says nothing: no vector is put in clear by it, and
searches open what is sealed. Owns the rows.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.administration.jobs import Jobs
from storage.control.features import CLEAR_VECTORS
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, proof_of, vector_policy_row
from storage.errors import ClearVectorsUnavailable, LeakageNotAccepted
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import TenantScope
from storage.statements.rules import vector_policies as sql

Vectors = Literal["sealed", "clear"]
# What must be accepted, by name: the content of items.
LEAKAGE: Final = "content"
CLEAR_KIND: Final = "clear-vectors"
SEAL_KIND: Final = "seal-vectors"
BEGUN: Final = "begun"


@dataclass(frozen=True, slots=True)
class VectorPolicy:
    """What a tenant says of its vectors.

    Attributes:
        vectors: Where they are kept.
        accepted: What was accepted that leaks; empty: nothing.
        complete: Whether all vectors are where the policy has them; until then a job is at it.
        damaged: Whether the row was written or edited outside the gateway, so that it says nothing.
        updated_at: When it was said; None: never.
    """

    vectors: Vectors = "sealed"
    accepted: str = ""
    complete: bool = True
    damaged: bool = False
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class VectorsNow:
    """Where a tenant's vectors are, as a transaction finds it.

    Attributes:
        clear: Whether they are put in clear.
        complete: Whether all of them are there, so that searches may look there.
        schema: Where the table's extension is; None: there is no table.
        has_policy: Whether the tenant says anything; if not, there can be nothing in it.
        damaged: Whether what it says was written or edited outside the gateway.
    """

    clear: bool = False
    complete: bool = False
    schema: str | None = None
    has_policy: bool = True
    damaged: bool = False

    def required(self) -> str:
        """Where the extension is, for who needs the table.

        Raises:
            ClearVectorsUnavailable: There is no table.
        """
        if self.schema is None:
            raise ClearVectorsUnavailable
        return self.schema


async def vectors_now(transaction: Transaction, control: ControlRows, tenant_id: UUID) -> VectorsNow:
    """Where a tenant's vectors are; `ControlRows.ready_to_check` came before, outside of the transaction."""
    now = await transaction.fetch_only(sql.NOW)
    if now.policy is None:
        return VectorsNow(schema=now.extension_schema, has_policy=False)
    damaged = not control.is_sound(_row(tenant_id, now.policy), proof_of(now.policy))
    if damaged or now.policy.vectors != "clear":
        return VectorsNow(schema=now.extension_schema, damaged=damaged)
    return VectorsNow(True, now.policy.complete, now.extension_schema)


async def table(transaction: Transaction) -> str | None:
    """Where the extension is, if there may be clear vectors of the tenant, whatever its policy says."""
    now = await transaction.fetch_only(sql.NOW)
    return None if now.policy is None else now.extension_schema


class VectorPolicies:
    """The verbs on vector policies."""

    def __init__(self, unit_of_work: UnitOfWork, audit: Audit, control: ControlRows, jobs: Jobs) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control
        self._jobs = jobs

    async def get(self, scope: TenantScope) -> VectorPolicy:
        """What a tenant says.

        Raises:
            CryptoError: The root key cannot be asked whether a gateway wrote it.
        """
        await self._control.ready_to_check()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return self._read(scope.tenant_id, await transaction.fetch_one(sql.EVERY))

    async def put(
        self, scope: TenantScope, vectors: Vectors, accepted: str = "", actor: str = LOCAL_ACTOR
    ) -> VectorPolicy:
        """Say where vectors are kept; the same again changes nothing. Returns what holds now.

        Args:
            scope: The tenant.
            vectors: Where they are kept from now on.
            accepted: What is accepted that leaks.
            actor: Who says so.

        Raises:
            LeakageNotAccepted: They shall be in clear, and what leaks was not accepted.
            ClearVectorsUnavailable: They shall be in clear, and no operator made the table.
            FeatureOff: An older build may run; finish the upgrade first.
            CryptoError: As `get`; nothing changed.
        """
        if vectors == "clear" and accepted != LEAKAGE:
            raise LeakageNotAccepted
        await self._control.ready()
        await self._control.features.require(CLEAR_VECTORS, "vectors are kept in clear")
        accepted = LEAKAGE if vectors == "clear" else ""
        tenant_id = scope.tenant_id
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.LOCK, name=f"{tenant_id}/vector-policy")
            now = await transaction.fetch_only(sql.NOW)
            before = self._read(tenant_id, now.policy)
            if before.vectors == vectors and not before.damaged:
                return before
            if vectors == "clear" and now.extension_schema is None:
                raise ClearVectorsUnavailable
            said = VectorPolicy(vectors, accepted, complete=False, updated_at=await transaction.fetch_only(NOW))
            await self.store(transaction, tenant_id, said)
            assert said.updated_at is not None  # noqa: S101  for the type checker: it was asked for
            kind = CLEAR_KIND if vectors == "clear" else SEAL_KIND
            await self._jobs.add(transaction, tenant_id, kind, said.updated_at.isoformat(), BEGUN)
            said_before = "damaged" if before.damaged else before.vectors
            detail = {"before": said_before, "after": vectors, "accepted": accepted or None}
            target = f"tenant:{tenant_id}"
            await self._audit.append(transaction, tenant_id, actor, "vector-policy.set", target, detail)
            return said

    async def store(self, transaction: Transaction, tenant_id: UUID, said: VectorPolicy) -> None:
        """Store what is said, with its proof."""
        assert said.updated_at is not None  # noqa: S101  for the type checker: whoever stores it knows when it was said
        row = vector_policy_row(tenant_id, said.vectors, said.accepted, said.complete, said.updated_at)
        await transaction.run(
            sql.PUT,
            vectors=said.vectors,
            accepted=said.accepted,
            complete=said.complete,
            updated_at=said.updated_at,
            **self._control.proof(row)._asdict(),
        )

    async def lock(self, transaction: Transaction, tenant_id: UUID) -> VectorPolicy:
        """What is said, and stays said until the transaction ends."""
        await transaction.run(sql.LOCK, name=f"{tenant_id}/vector-policy")
        return self._read(tenant_id, await transaction.fetch_one(sql.EVERY))

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every policy as it is proved, and its stored proof: for a check of all of them."""
        for row in await transaction.fetch_all(sql.EVERY):
            yield _row(tenant_id, row), proof_of(row)

    def _read(self, tenant_id: UUID, row: sql.VectorPolicyRow | None) -> VectorPolicy:
        if row is None:
            return VectorPolicy()
        if not self._control.is_sound(_row(tenant_id, row), proof_of(row)):
            return VectorPolicy(complete=False, damaged=True, updated_at=row.updated_at)
        vectors: Vectors = "clear" if row.vectors == "clear" else "sealed"
        return VectorPolicy(vectors, row.accepted, row.complete, updated_at=row.updated_at)


def _row(tenant_id: UUID, row: sql.VectorPolicyRow) -> Row:
    return vector_policy_row(tenant_id, row.vectors, row.accepted, row.complete, row.updated_at)
