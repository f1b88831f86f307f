"""Adoption: which schema and version an agent's unversioned state is, said after the fact.

An agent that began without versions has state that nothing says the shape of. A tenant says it once, for the agent (or
for what names none) and a pattern of namespaces, and that holds for checkpoints that were saved before the adoption's
own time, by the database's clock. From then on the agent's saves name a version or are refused, and an unversioned row
that comes later all the same is never interpreted. A checkpoint's agent and time are those under its seal, so whoever
edits rows moves nothing into an adoption.

An adoption is corrected by another one, as long as nothing was saved on top of what it holds for. A row that no gateway
wrote (`storage.control.rows`) interprets nothing: what it would hold for is refused, others' state is not.

Adoptions are written only once no older build runs (`storage.control.features`): that would hand out adopted state as
it was saved. A process may know of one `KNOWN_SECONDS` late; what an agent saves unversioned meanwhile is not
interpreted. It converts nothing (`storage.checkpoints.states`).
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.concurrency.turns import Pauses
from storage.control.features import ADOPTIONS
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, adoption_row, proof_of
from storage.errors import (
    AdoptionBuiltOn,
    AdoptionExists,
    IntegrityFailure,
    InvalidState,
    StateSchemaMismatch,
    StateVersionRequired,
)
from storage.postgres.clock import NOW
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.schemas.registry import StateSchemas
from storage.schemas.versions import Versioned
from storage.scope import Scope, TenantListing, TenantScope
from storage.statements.rules import adoptions as sql

# Patterns of a tenant: every process keeps them all.
ADOPTIONS_MAX = 1_000
KNOWN_SECONDS = 5.0
KNOWN_TENANTS_MAX = 10_000
UNVERSIONED_AGENTS_MAX = 100
_PAGE_ROWS = 500


class SavedState(Versioned, Protocol):
    """A checkpoint, as far as it matters what it was adopted as."""

    @property
    def agent(self) -> str | None:
        """Who saved it."""
        ...

    @property
    def namespace(self) -> str:
        """Where it is."""
        ...

    @property
    def created_at(self) -> datetime:
        """When it was saved."""
        ...


@dataclass(frozen=True, slots=True)
class Adoption:
    """What unversioned state is.

    Attributes:
        agent: The agent; None: checkpoints that name none.
        namespace: The namespaces, as one of them or its beginning and a star. The root alone is ``""``.
        number: The number for this agent and pattern, counted from 1; the newest counts.
        state_schema: The schema of the state.
        state_version: The version of that.
        adopted_at: The moment before which checkpoints were saved that it holds for.
    """

    agent: str | None
    namespace: str
    number: int
    state_schema: str
    state_version: int
    adopted_at: datetime

    def matches(self, namespace: str) -> bool:
        """Whether a namespace is one of the pattern's."""
        return _matches(self.namespace, namespace)


def _matches(pattern: str, namespace: str) -> bool:
    return pattern == namespace or (pattern.endswith("*") and namespace.startswith(pattern[:-1]))


class Adopted:
    """What a tenant has adopted. Pure."""

    def __init__(self, rows: Iterable[tuple[str | None, str, Adoption | None]] = ()) -> None:
        """``rows``: by agent and pattern; None: a row that no gateway wrote."""
        self._by_agent: dict[str | None, dict[str, Adoption | None]] = {}
        for agent, namespace, adoption in rows:
            self._by_agent.setdefault(agent, {})[namespace] = adoption

    def covering(self, agent: str | None, namespace: str) -> Adoption | None:
        """What holds for an agent's state in a namespace: the exact pattern before the longest.

        Raises:
            IntegrityFailure: what would hold was written or edited outside the gateway.
        """
        patterns = self._by_agent.get(agent)
        if patterns is None:
            return None
        fitting = [each for each in patterns if _matches(each, namespace)]
        if not fitting:
            return None
        best = max(fitting, key=lambda each: (each == namespace, len(each)))
        found = patterns[best]
        if found is None:
            raise _damaged(agent)
        return found

    def may_cover(self, namespace: str) -> bool:
        """Whether anybody's state in a namespace is covered."""
        return any(_matches(pattern, namespace) for patterns in self._by_agent.values() for pattern in patterns)

    def of(self, saved: SavedState) -> Adoption | None:
        """What a checkpoint was adopted as; None: it has a schema of its own, or it was not adopted.

        Raises:
            StateSchemaMismatch: it was saved without a version after its agent's state was adopted.
            IntegrityFailure: as `covering`.
        """
        if saved.state_schema is not None:
            return None
        found = self.covering(saved.agent, saved.namespace)
        if found is not None and saved.created_at >= found.adopted_at:
            raise StateSchemaMismatch(
                f"the state was saved without a version after that of {_whose(found.agent)} was adopted as"
                f" {found.state_schema!r} version {found.state_version}: nothing says what it is"
            )
        return found

    def at(self, saved: SavedState) -> Versioned:
        """What says at which version a checkpoint is: itself, or its adoption.

        Raises:
            StateSchemaMismatch, IntegrityFailure: as `of`.
        """
        return self.of(saved) or saved

    def require_version(self, agent: str | None, namespace: str) -> None:
        """Refuse state without a version where it is required.

        Raises:
            StateVersionRequired: it is.
            IntegrityFailure: as `covering`.
        """
        found = self.covering(agent, namespace)
        if found is not None:
            raise StateVersionRequired(
                f"state of {_whose(agent)} names its version since it was adopted as {found.state_schema!r} version"
                f" {found.state_version}"
            )


NOTHING_ADOPTED = Adopted()


def _whose(agent: str | None) -> str:
    return "programs that name no agent" if agent is None else f"agent {agent!r}"


def _damaged(agent: str | None) -> IntegrityFailure:
    return IntegrityFailure(f"the adoption of {_whose(agent)} was written or edited outside the gateway")


class Adoptions:
    """The verbs on adoptions."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        control: ControlRows,
        schemas: StateSchemas,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind to the rows; ``monotonic`` is the clock, in seconds, that what is known goes out of date by."""
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._control = control
        self._schemas = schemas
        self._monotonic = monotonic
        self._known: dict[UUID, tuple[float, Adopted]] = {}

    async def known(self, scope: TenantScope | Scope) -> Adopted:
        """What a tenant has adopted, at most `KNOWN_SECONDS` ago.

        Raises:
            CryptoError: the root key cannot be asked whether a gateway wrote what is there.
            Unavailable: the database cannot be reached.
        """
        begun = self._monotonic()
        until, adopted = self._known.get(scope.tenant_id, (float("-inf"), NOTHING_ADOPTED))
        if begun < until:
            return adopted
        async with self._unit_of_work.snapshot(TenantScope(scope.tenant_id)) as transaction:
            rows = await transaction.fetch_all(sql.NEWEST)
        if rows:
            await self._control.ready()
        checked = await self._checked(scope, rows)
        adopted = Adopted((each.agent, each.namespace, each if authentic else None) for each, authentic in checked)
        self.forget(scope)
        if len(self._known) >= KNOWN_TENANTS_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[scope.tenant_id] = (begun + KNOWN_SECONDS, adopted)
        return adopted

    def forget(self, scope: TenantScope | Scope) -> None:
        """Ask the database again, the next time."""
        self._known.pop(scope.tenant_id, None)

    async def adopt(
        self,
        scope: TenantScope,
        agent: str | None,
        namespace: str,
        schema: str,
        number: int,
        *,
        supersede: bool = False,
        actor: str = LOCAL_ACTOR,
    ) -> tuple[Adoption, bool]:
        """Say what unversioned state is; the same again is a no-op. Returns it, and whether it is new.

        ``agent`` None: checkpoints that name none. ``namespace`` is a pattern. ``supersede``: correct an earlier
        adoption, and replace a damaged row.

        Raises:
            FeatureOff: an older build may run; finish the upgrade first.
            StateSchemaNotFound: the tenant has none of this name.
            StateTooNewToSave: it has not this version.
            AdoptionExists: it was adopted as something else, and ``supersede`` does not say to correct that.
            AdoptionBuiltOn: something was saved on top of what it was adopted as.
            InvalidState: the pattern is none, or there are too many.
            IntegrityFailure: the one before was written or edited outside the gateway.
            CryptoError: the root key cannot be asked whether it was.
        """
        if "*" in namespace[:-1]:
            raise InvalidState("a pattern is a namespace, or its beginning and one star at the end", "/namespace")
        await self._schemas.get(scope, schema)
        await self._schemas.known(scope, schema, number)
        await self._ready()
        async with self._unit_of_work.begin(TenantListing(scope.tenant_id)) as transaction:
            rows = await self._locked(transaction, scope)
            own = [row for row in rows if (row.agent, row.namespace) == (agent or "", namespace)]
            before = self._believed(scope, own[0]) if own else None
            if before is not None and (before.state_schema, before.state_version) == (schema, number):
                return before, False
            if own and not supersede:
                if before is None:
                    raise _damaged(agent)
                when = f"{before.adopted_at:%Y-%m-%d %H:%M:%S}"
                raise AdoptionExists(
                    f"it was adopted as {before.state_schema!r} version {before.state_version} on {when}"
                )
            if before is not None and await transaction.fetch_only(
                sql.BUILT_ON, agent=agent or "", pattern=namespace, since=before.adopted_at
            ):
                raise AdoptionBuiltOn
            if not own and len(rows) >= ADOPTIONS_MAX:
                raise InvalidState(f"a tenant has at most {ADOPTIONS_MAX:,} adoptions", "")
            last = own[0].number if own else 0
            now = await transaction.fetch_only(NOW)
            added = Adoption(agent, namespace, last + 1, schema, number, now)
            await self._add(transaction, scope, added, actor)
        self.forget(scope)
        return added, True

    async def bring(self, scope: TenantScope, adoption: Adoption, actor: str) -> bool:
        """Store an adoption that comes with an import, as old as it is; returns whether it is new here.

        Raises:
            FeatureOff, StateTooNewToSave, CryptoError: as `adopt`.
            AdoptionExists: something else was said here.
            IntegrityFailure: what was said here was written or edited outside the gateway.
        """
        await self._schemas.known(scope, adoption.state_schema, adoption.state_version)
        await self._ready()
        async with self._unit_of_work.begin(scope) as transaction:
            rows = await self._locked(transaction, scope)
            here = self._of(scope, rows, adoption.agent, adoption.namespace)
            if here is not None:
                if (here.state_schema, here.state_version) != (adoption.state_schema, adoption.state_version):
                    raise AdoptionExists(f"it was adopted as {here.state_schema!r} version {here.state_version}")
                return False
            await self._add(transaction, scope, adoption, actor)
        self.forget(scope)
        return True

    async def list(self, scope: TenantScope) -> Sequence[tuple[Adoption, bool]]:
        """What a tenant says now, by agent and pattern, and whether a gateway wrote it.

        Raises:
            CryptoError: the root key cannot be asked whether one did.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            return await self._checked(scope, await transaction.fetch_all(sql.NEWEST))

    async def unversioned(self, scope: TenantScope) -> dict[str | None, int]:
        """How many threads have a root without a version that was not adopted, by agent; the most first."""
        async with self._unit_of_work.snapshot(TenantListing(scope.tenant_id)) as transaction:
            rows = await transaction.fetch_all(sql.UNVERSIONED, page_rows=UNVERSIONED_AGENTS_MAX)
        return {row.agent: row.threads for row in rows}

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every adoption as it is proved, and its stored proof: for a check of all of them."""
        agent, namespace, number = "", "", 0
        while rows := await transaction.fetch_all(
            sql.EVERY, after_agent=agent, after_namespace=namespace, after_number=number, page_rows=_PAGE_ROWS
        ):
            for row in rows:
                agent, namespace, number = row.agent, row.namespace, row.number
                yield _row(tenant_id, row), proof_of(row)

    async def _ready(self) -> None:
        await self._control.ready()
        await self._control.features.require(ADOPTIONS, "state is adopted")

    async def _locked(self, transaction: Transaction, scope: TenantScope) -> Sequence[sql.AdoptionRow]:
        """What counts now; others who adopt wait."""
        await transaction.run(sql.LOCK, name=f"{scope.tenant_id}/state-adoptions")
        return await transaction.fetch_all(sql.NEWEST)

    def _of(
        self, scope: TenantScope, rows: Iterable[sql.AdoptionRow], agent: str | None, namespace: str
    ) -> Adoption | None:
        for row in rows:
            if (row.agent, row.namespace) == (agent or "", namespace):
                if not self._is_authentic(scope, row):
                    raise _damaged(agent)
                return _adoption(row)
        return None

    async def _add(self, transaction: Transaction, scope: TenantScope, added: Adoption, actor: str) -> None:
        columns = {**asdict(added), "agent": added.agent or ""}
        proof = self._control.proof(adoption_row(scope.tenant_id, **columns))
        await transaction.run(sql.ADD, **columns, **proof._asdict())
        detail = {"agent": added.agent, "namespace": added.namespace, "version": added.state_version}
        action, target = "state-schema.adopt", f"state-schema:{added.state_schema}"
        await self._audit.append(transaction, scope.tenant_id, actor, action, target, detail)

    async def _checked(
        self, scope: TenantScope | Scope, rows: Iterable[sql.AdoptionRow]
    ) -> Sequence[tuple[Adoption, bool]]:
        """Rows, and whether a gateway wrote each; others go first between them."""
        checked = []
        pauses = Pauses()
        for row in rows:
            checked.append((_adoption(row), self._is_authentic(scope, row)))
            await pauses.after(0)
        return checked

    def _is_authentic(self, scope: TenantScope | Scope, row: sql.AdoptionRow) -> bool:
        return self._control.is_authentic(_row(scope.tenant_id, row), proof_of(row))

    def _believed(self, scope: TenantScope | Scope, row: sql.AdoptionRow) -> Adoption | None:
        """A row as it is believed; None: no gateway wrote it."""
        return _adoption(row) if self._is_authentic(scope, row) else None


def _adoption(row: sql.AdoptionRow) -> Adoption:
    return Adoption(row.agent or None, row.namespace, row.number, row.state_schema, row.state_version, row.adopted_at)


def _row(tenant_id: UUID, row: sql.AdoptionRow) -> Row:
    return adoption_row(
        tenant_id, row.agent, row.namespace, row.number, row.state_schema, row.state_version, row.adopted_at
    )
