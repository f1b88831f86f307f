"""State schemas: what a tenant says its agents' state looks like, version by version.

A schema is a name with versions 1, 2, 3... Each is written once: an optional JSON Schema that saves are checked
against, channels that are never stored, and the step that leads to it from the version before, which is either
declarative or one that the deployment ships (`migrations.state`). Because nothing registered ever changes, what was
read once stays true, and a process asks the database again only for a version it does not know.

Owns the rows, the checks at registration and the cache. A row that no gateway wrote is refused
(`storage.control.rows`): it would say what state becomes. Nothing that a tenant registers is compiled in this process
before a worker process has told what that costs (`storage.schemas.workers`). It converts no state, and reads none
(`storage.schemas.work`).
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any
from uuid import UUID

import msgspec

from migrations.state.json_schemas import JsonSchema, Part
from migrations.state.tasks import Invalid, Program, SchemaText, StepsText, StepText
from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.clock import Clock
from storage.concurrency.turns import Pauses
from storage.control.key import Row
from storage.control.rows import ControlRows, Proof, proof_of, schema_row
from storage.encoding import encode_json, json_decoder, json_encoder
from storage.errors import (
    IntegrityFailure,
    StateSchemaExists,
    StateSchemaInvalid,
    StateSchemaNotFound,
    StateTooNewToSave,
)
from storage.model import Page
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.schemas.tags import SEARCHABLE_KEY_BYTES_MAX, SEARCHABLE_KEYS_MAX, can_be_searchable
from storage.schemas.workers import Workers
from storage.scope import Scope, TenantScope
from storage.statements.rules import state_schemas as sql

VERSIONS_MAX = 1_000
DEFINITION_BYTES_MAX = 256 * 1024
# All versions of a schema together: they are read together.
SCHEMA_BYTES_MAX = 4 * 1024 * 1024
# Schemas that a process keeps compiled, over all tenants; more are read again.
CACHED_SCHEMAS_MAX = 1_000
# A definition may be large: a page of them takes some megabytes.
_PAGE_ROWS = 20
# Names of channels at other versions that are remembered of a schema.
NAMES_MAX = 1_000


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What is registered for one version.

    Attributes:
        label: The version as people call it, such as ``2.1.0``.
        json_schema: JSON Schema (draft 2020-12) of the state as an object of channels.
        ephemeral: Channels that are never stored.
        searchable: Keys of checkpoints' metadata by which they are found without opening others
            (`storage.schemas.tags`).
        up: Declarative operations from the version before (`migrations.state.declarative`).
        down: Operations back to it, so that older readers go on.
        deployment: Name of a schema that the deployment ships, whose step is used instead of ``up`` and ``down``.
    """

    label: str | None = None
    json_schema: dict[str, Any] | None = None
    ephemeral: tuple[str, ...] = ()
    searchable: tuple[str, ...] = ()
    up: list[dict[str, Any]] | None = None
    down: list[dict[str, Any]] | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A registered version of a state schema; a damaged one no gateway registered as it is, so that it says nothing."""

    schema: str
    number: int
    definition: Definition
    created_at: datetime
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it is used: its versions, and what has been learned of them.

    ``plain`` has for each program of a JSON Schema its validator, if it may be used in this process, and the
    comparisons that checking one value takes; ``names`` what channels are called at other versions, by the two versions
    and a name.
    """

    schema: str
    versions: Mapping[int, SchemaVersion]
    plain: dict[bytes, tuple[JsonSchema | None, int]] = field(default_factory=dict)
    names: dict[tuple[int, int, str], tuple[str, ...]] = field(default_factory=dict)
    _programs: dict[tuple[int, Part], Program] = field(default_factory=dict)
    _steps: list[Program] = field(default_factory=list)

    @property
    def newest(self) -> int:
        """The highest registered version."""
        return max(self.versions)

    def ephemeral(self, number: int) -> frozenset[str]:
        """Channels of a version that are never stored."""
        return frozenset(self.versions[number].definition.ephemeral)

    def searchable(self, number: int) -> tuple[str, ...]:
        """Keys of metadata that checkpoints of a version are tagged by."""
        return self.versions[number].definition.searchable

    def json_schema(self, number: int) -> dict[str, Any]:
        """The JSON Schema of a version; one that allows everything if it has none."""
        return self.versions[number].definition.json_schema or {}

    def has_json_schema(self, number: int) -> bool:
        """Whether saves at a version are checked."""
        return self.versions[number].definition.json_schema is not None

    def program(self, number: int, part: Part) -> Program | None:
        """The JSON Schema of a version as workers know it, as far as it goes for a part of a state, if it has one."""
        if not self.has_json_schema(number):
            return None
        found = self._programs.get((number, part))
        if found is None:
            text = SchemaText(encode_json(self.json_schema(number)), part)
            found = self._programs[number, part] = Program(text)
        return found

    @property
    def steps(self) -> Program:
        """The steps as workers know them."""
        if not self._steps:
            self._steps.append(_steps(self.schema, self.versions))
        return self._steps[0]


def _steps(schema: str, versions: Mapping[int, SchemaVersion]) -> Program:
    definitions = {number: each.definition for number, each in versions.items()}
    texts = {number: StepText(each.up, each.down, each.deployment) for number, each in definitions.items()}
    return Program(StepsText(schema, {number: encode_json(each) for number, each in texts.items()}))


_encoder = json_encoder(order="deterministic")
_decoder = json_decoder(Definition)


def encode_definition(definition: Definition) -> bytes:
    """A definition as it is stored: equal ones have equal bytes."""
    return _encoder(definition)


def decode_definition(encoded: bytes) -> Definition:
    """What `encode_definition` made.

    Raises:
        StateSchemaInvalid: it is none.
    """
    try:
        return _decoder(encoded)
    except msgspec.DecodeError:
        raise StateSchemaInvalid("this is no definition of a state schema", "") from None


class StateSchemas:
    """The verbs on state schemas."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        clock: Clock,
        control: ControlRows,
        workers: Workers,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._clock = clock
        self._control = control
        self._workers = workers
        self._known: dict[tuple[UUID, str], Schema] = {}

    async def put(
        self, scope: TenantScope, schema: str, number: int, definition: Definition, actor: str = LOCAL_ACTOR
    ) -> tuple[SchemaVersion, bool]:
        """Register the next version; the same again is a no-op. Returns it, and whether it is new.

        A damaged version is superseded by it, on the record, from the lowest damaged one up: say its definition as it
        was, because state may stand at it.

        Raises:
            StateSchemaExists: this version is registered with another definition.
            StateSchemaInvalid: what is wrong with it, and where; also a version that leaves a gap.
            TooCostly, TenantTooCostly: compiling it takes too much.
            IntegrityFailure: a version below it was registered or edited outside the gateway.
            CryptoError: the root key cannot be asked whether one was.
        """
        body = _encoder(definition)
        if len(body) > DEFINITION_BYTES_MAX:
            raise StateSchemaInvalid(f"a version's definition has at most {DEFINITION_BYTES_MAX} bytes", "")
        _check_searchable(definition.searchable)
        await self._control.ready()
        added = SchemaVersion(schema, number, definition, self._clock.now())
        await self._try(scope, added)
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.LOCK, name=f"{scope.tenant_id}/{schema}")
            rows = await transaction.fetch_all(sql.VERSIONS, schema=schema)
            versions = {each.number: each for each in await self._versions(scope, schema, rows)}
            there = versions.get(number)
            _check_next(versions, number)
            superseded = there is not None and there.damaged
            if there is not None and not superseded:
                if _encoder(there.definition) != body:
                    raise StateSchemaExists
                return there, False
            if len(body) + sum(len(row.definition) for row in rows) > SCHEMA_BYTES_MAX:
                raise StateSchemaInvalid(f"all versions of a schema together have at most {SCHEMA_BYTES_MAX} bytes", "")
            statement, action = (sql.SUPERSEDE, "supersede") if superseded else (sql.ADD, "register")
            proof = self._control.proof(schema_row(scope.tenant_id, schema, number, body, added.created_at))
            await transaction.run(
                statement,
                schema=schema,
                number=number,
                definition=body,
                created_at=added.created_at,
                **proof._asdict(),
            )
            await self._audit.append(
                transaction, scope.tenant_id, actor, f"state-schema.{action}", f"state-schema:{schema}/{number}"
            )
        self._known.pop((scope.tenant_id, schema), None)
        return added, True

    async def _try(self, scope: TenantScope, added: SchemaVersion) -> None:
        """Have a version compiled by a worker before any transaction, if it is the next one.

        What was registered never changes, so that it still holds when it is stored as the next version.

        Raises:
            StateSchemaInvalid: it cannot be used, or is not the next one.
            TooCostly, TenantTooCostly, Unavailable: as `Workers.ask`.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(sql.VERSIONS, schema=added.schema)
            before = {each.number: each for each in await self._versions(scope, added.schema, rows)}
        _check_next(before, added.number)
        if added.number in before and not before[added.number].damaged:
            return  # it is compared with what is stored
        chained = _sound([*(each for each in before.values() if each.number != added.number), added])
        programs = [_steps(added.schema, {each.number: each for each in chained})]
        if added.definition.json_schema is not None:
            programs.append(Program(SchemaText(encode_json(added.definition.json_schema), "whole")))
        for program in programs:
            learned = await self._workers.learn(scope.tenant_id, program)
            if isinstance(learned, Invalid):
                raise StateSchemaInvalid(learned.why, learned.pointer)

    async def get(self, scope: TenantScope | Scope, schema: str) -> Sequence[SchemaVersion]:
        """All versions of a schema, oldest first, each as a gateway registered it.

        Raises:
            StateSchemaNotFound: the tenant has none of this name.
            IntegrityFailure: one of them is damaged.
            CryptoError: as `put`.
        """
        versions = await self.list(scope, schema)
        for each in versions:
            if each.damaged:
                raise _damage(each)
        return versions

    async def list(self, scope: TenantScope | Scope, schema: str) -> Sequence[SchemaVersion]:
        """All versions of a schema, oldest first, damaged ones included.

        Raises:
            StateSchemaNotFound: the tenant has none of this name.
            CryptoError: as `put`.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(sql.VERSIONS, schema=schema)
            if not rows:
                raise StateSchemaNotFound
            # Within the transaction, so that no more of them are in memory than the tenant has connections.
            return await self._versions(scope, schema, rows)

    async def require(self, scope: TenantScope, schema: str) -> None:
        """Refuse a schema that is not there.

        Raises:
            StateSchemaNotFound: the tenant has none of this name.
        """
        async with self._unit_of_work.snapshot(scope) as transaction:
            if await transaction.fetch_one(sql.ANY, schema=schema) is None:
                raise StateSchemaNotFound

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, Proof]]:
        """Every version of every schema, as it is proved, and its stored proof: for a check of all of them."""
        schema, number = "", 0
        while rows := await transaction.fetch_all(
            sql.EVERY, after_schema=schema, after_number=number, page_rows=_PAGE_ROWS
        ):
            for row in rows:
                schema, number = row.schema, row.number
                yield schema_row(tenant_id, schema, number, row.definition, row.created_at), proof_of(row)

    async def _versions(
        self, scope: TenantScope | Scope, schema: str, rows: Sequence[sql.VersionRow]
    ) -> Sequence[SchemaVersion]:
        """Versions as a gateway registered them, or damaged; others go first between them."""
        versions = []
        pauses = Pauses()
        for row in rows:
            versions.append(self._version(scope, schema, row))
            await pauses.after(len(row.definition))
        return versions

    def _version(self, scope: TenantScope | Scope, schema: str, row: sql.VersionRow) -> SchemaVersion:
        proved = schema_row(scope.tenant_id, schema, row.number, row.definition, row.created_at)
        if not self._control.is_sound(proved, proof_of(row)):
            return SchemaVersion(schema, row.number, Definition(), row.created_at, damaged=True)
        return SchemaVersion(schema, row.number, _decoder(row.definition), row.created_at)

    async def names(
        self, scope: TenantScope, limit: int | None = None, after: tuple[str, ...] | None = None
    ) -> Page[tuple[str, int]]:
        """The tenant's schemas and their newest versions, by name; ``limit`` None: all."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch_all(sql.NAMES, after=after[0] if after else "", page_rows=limit)
        found = [(row.schema, row.newest) for row in rows]
        return Page(found, (found[-1][0],) if found and len(found) == limit else None)

    async def known(self, scope: TenantScope | Scope, schema: str, number: int) -> Schema:
        """A schema that has at least this version.

        Raises:
            StateTooNewToSave: that version is not registered.
            IntegrityFailure: it, or one below it, is damaged: it is not known what leads to it.
            CryptoError: as `put`.
        """
        place = (scope.tenant_id, schema)
        found = self.cached(scope, schema, (number,))
        if found is None:
            try:
                registered = await self.list(scope, schema)
            except StateSchemaNotFound:
                raise StateTooNewToSave(schema, number, None) from None
            versions = {each.number: each for each in _sound(registered)}
            if number not in versions and number <= registered[-1].number:
                raise _damage(next(each for each in registered if each.damaged))
            found = Schema(schema, versions)
            if len(self._known) >= CACHED_SCHEMAS_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[place] = found
        if number not in found.versions:
            raise StateTooNewToSave(schema, number, found.newest)
        return found

    def cached(self, scope: TenantScope | Scope, schema: str, numbers: Sequence[int]) -> Schema | None:
        """A schema that this process has read already and that has these versions, or None."""
        found = self._known.get((scope.tenant_id, schema))
        return found if found is not None and all(number in found.versions for number in numbers) else None


def _check_next(versions: Mapping[int, SchemaVersion], number: int) -> None:
    """Refuse a version that is none of those that are there, nor the next one, or has a damaged one below it."""
    damaged = next((each for each in versions.values() if each.damaged), None)
    if damaged is not None and number > damaged.number:
        raise _damage(damaged)
    due = max(versions, default=0) + 1
    if number not in versions and (number > VERSIONS_MAX or (versions and number != due)):
        why = f"v{number - 1}_to_v{number}: the next version is {due}: versions leave no gap"
        raise StateSchemaInvalid(why, parameter="state_version")


def _damage(version: SchemaVersion) -> IntegrityFailure:
    named = f"version {version.number} of state schema {version.schema!r}"
    return IntegrityFailure(f"{named} was registered or edited outside the gateway; register it again")


def _sound(versions: Iterable[SchemaVersion]) -> Sequence[SchemaVersion]:
    """Those below the lowest damaged one, in their order: what is above may lead through it."""
    return [*takewhile(lambda each: not each.damaged, sorted(versions, key=lambda each: each.number))]


def _check_searchable(names: Sequence[str]) -> None:
    if len(names) > SEARCHABLE_KEYS_MAX:
        raise StateSchemaInvalid(f"a version declares at most {SEARCHABLE_KEYS_MAX} searchable keys", "/searchable")
    for index, name in enumerate(names):
        if not can_be_searchable(name):
            why = f"a searchable key has 1 to {SEARCHABLE_KEY_BYTES_MAX} bytes, and none of them is zero"
            raise StateSchemaInvalid(why, f"/searchable/{index}")
        if name in names[:index]:
            raise StateSchemaInvalid("a searchable key is declared twice", f"/searchable/{index}")
