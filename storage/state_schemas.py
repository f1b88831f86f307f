"""State schemas: what a tenant says its agents' state looks like, version by version.

A schema is a name with versions 1, 2, 3... Each is written once: an optional JSON Schema that saves are checked
against, channels that are never stored, and the step that leads to it from the version before, which is either
declarative or one that the deployment ships (`migrations.state`). Because nothing registered ever changes, what was
read once stays true, and a process asks the database again only for a version it does not know.

Owns the rows, the checks at registration and the cache. A row that no gateway wrote is refused
(`storage.control_rows`): it would say what state becomes. It converts no state (`storage.versions`), and reads none.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from migrations.state.chain import Chain, Step
from migrations.state.declarative import compile_operations
from migrations.state.errors import ChainInvalid, StepInvalid
from storage.audit import LOCAL_ACTOR, Audit
from storage.clock import Clock
from storage.control_rows import ControlRows, Row, schema_row
from storage.errors import StateSchemaExists, StateSchemaInvalid, StateSchemaNotFound, StateTooNewToSave
from storage.json_schemas import check_json_schema, compile_json_schema
from storage.postgres import state_schemas as sql
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import Scope, TenantScope
from storage.tags import SEARCHABLE_KEY_BYTES_MAX, SEARCHABLE_KEYS_MAX, can_be_searchable

VERSIONS_MAX = 1_000
DEFINITION_BYTES_MAX = 256 * 1024
# All versions of a schema together: compiling a megabyte of steps takes about half a second, in a thread.
SCHEMA_BYTES_MAX = 4 * 1024 * 1024
# Schemas that a process keeps compiled, over all tenants; more are read again.
CACHED_SCHEMAS_MAX = 1_000
# Work beside the event loop, which it shares the interpreter's lock with: more threads would only make each slower.
THREADS = 8
THREADS_OF_A_TENANT = 4
# A definition may be large: a page of them takes some megabytes.
_PAGE_ROWS = 20
# These bind a whole state. A save that brings only some channels is checked against the rest.
_OF_THE_WHOLE = frozenset(
    {
        "required", "minProperties", "dependentRequired", "dependentSchemas",
        "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "unevaluatedProperties",
    }
)  # fmt: skip

T = TypeVar("T")

# What of a state is checked: all of it, some channels, or elements that are appended to lists.
Part = Literal["whole", "some", "elements"]


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What is registered for one version.

    Attributes:
        label: The version as people call it, such as ``2.1.0``.
        json_schema: JSON Schema (draft 2020-12) of the state as an object of channels.
        ephemeral: Channels that are never stored.
        searchable: Keys of checkpoints' metadata by which they are found without opening others (`storage.tags`).
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
    """A registered version of a state schema."""

    schema: str
    number: int
    definition: Definition
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Known:
    """A schema as it is used: its versions, compiled."""

    chain: Chain
    versions: Mapping[int, SchemaVersion]
    _validators: dict[tuple[int, Part], Any] = field(default_factory=dict)

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

    def has_json_schema(self, number: int) -> bool:
        """Whether saves at a version are checked."""
        return self.versions[number].definition.json_schema is not None

    def validator(self, number: int, part: Part) -> Any:
        """The compiled JSON Schema of a version, as far as it goes for a part of a state, or None if it has none."""
        schema = self.versions[number].definition.json_schema
        if schema is None:
            return None
        found = self._validators.get((number, part))
        if found is None:
            found = self._validators[number, part] = compile_json_schema(_OF_PART[part](schema))
        return found


def _of_some(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in schema.items() if name not in _OF_THE_WHOLE}


def _of_elements(schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema says directly of the elements of its lists; how many there may be is a matter of the whole list."""
    properties = schema.get("properties")
    kept = {name: each for name, each in schema.items() if name.startswith("$") and name not in _OF_THE_WHOLE}
    kept["properties"] = {
        name: {"items": each["items"]}
        for name, each in (properties if isinstance(properties, dict) else {}).items()
        if isinstance(each, dict) and "items" in each and "prefixItems" not in each
    }
    kept |= {"definitions": schema["definitions"]} if "definitions" in schema else {}
    return kept


_OF_PART: dict[Part, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "whole": dict,
    "some": _of_some,
    "elements": _of_elements,
}


_encoder = msgspec.json.Encoder(order="deterministic")
_decoder = msgspec.json.Decoder(Definition)


def encode_definition(definition: Definition) -> bytes:
    """A definition as it is stored: equal ones have equal bytes."""
    return _encoder.encode(definition)


def decode_definition(encoded: bytes) -> Definition:
    """What `encode_definition` made.

    Raises:
        StateSchemaInvalid: it is none.
    """
    try:
        return _decoder.decode(encoded)
    except msgspec.DecodeError:
        raise StateSchemaInvalid("this is no definition of a state schema", "") from None


class _Threads:
    """Threads for work on tenants' schemas and states: their own few, so that nothing else waits for them.

    One tenant has at most half of them at a time.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "state-schemas")
        self._shares: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, tenant_id: UUID, work: Callable[[], T]) -> T:
        """Do ``work`` in one of them, after what the tenant asked for before."""
        share = self._shares.get(tenant_id)
        if share is None:
            share = self._shares[tenant_id] = asyncio.Semaphore(THREADS_OF_A_TENANT)
        await share.acquire()
        loop = asyncio.get_running_loop()

        def ended(_work: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(share.release)

        # Whoever waits for it may be cancelled; the thread goes on, and counts until it ends.
        begun = self._pool.submit(work)
        begun.add_done_callback(ended)
        return await asyncio.wrap_future(begun)

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class StateSchemas:
    """The verbs on state schemas."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        clock: Clock,
        control: ControlRows,
        shipped: Mapping[str, Chain] | None = None,
    ) -> None:
        """Bind to the database and to what the deployment ships.

        Args:
            unit_of_work: The way to the rows.
            audit: Every registration is recorded.
            clock: When it happened.
            control: Tells rows that a gateway wrote.
            shipped: Chains of Python steps by schema; a tenant's version opts in by ``deployment``.
        """
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._clock = clock
        self._control = control
        self._shipped = dict(shipped or {})
        self._known: dict[tuple[UUID, str], Known] = {}
        self._threads = _Threads()

    def close(self) -> None:
        """Begin no more work beside the event loop."""
        self._threads.close()

    async def beside(self, scope: TenantScope | Scope, work: Callable[[], T]) -> T:
        """Do ``work`` on a tenant's schemas or state beside the event loop.

        Args:
            scope: Whose.
            work: What may take long; pure, as it cannot be stopped.
        """
        return await self._threads.run(scope.tenant_id, work)

    async def put(
        self, scope: TenantScope, schema: str, number: int, definition: Definition, actor: str = LOCAL_ACTOR
    ) -> tuple[SchemaVersion, bool]:
        """Register the next version; the same again is a no-op. Returns it, and whether it is new.

        Raises:
            StateSchemaExists: this version is registered with another definition.
            StateSchemaInvalid: what is wrong with it, and where; also a version that leaves a gap.
            IntegrityFailure: a version was registered or edited outside the gateway.
            CryptoError: the root key cannot be asked whether one was.
        """
        body = _encoder.encode(definition)
        if len(body) > DEFINITION_BYTES_MAX:
            raise StateSchemaInvalid(f"a version's definition has at most {DEFINITION_BYTES_MAX} bytes", "")
        _check_searchable(definition.searchable)
        if definition.json_schema is not None:
            await self.beside(scope, partial(check_json_schema, definition.json_schema))
        await self._control.ready()
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.execute(sql.LOCK, f"{scope.tenant_id}/{schema}")
            rows = await transaction.fetch(sql.VERSIONS, scope.tenant_id, schema)
            versions = {row["number"]: self._version(scope, schema, row) for row in rows}
            there = versions.get(number)
            if there is not None:
                if _encoder.encode(there.definition) != body:
                    raise StateSchemaExists
                return there, False
            if number > VERSIONS_MAX or (versions and number != max(versions) + 1):
                due = max(versions, default=0) + 1
                why = f"v{number - 1}_to_v{number}: the next version is {due}: versions leave no gap"
                raise StateSchemaInvalid(why, parameter="state_version")
            if len(body) + sum(len(row["definition"]) for row in rows) > SCHEMA_BYTES_MAX:
                raise StateSchemaInvalid(f"all versions of a schema together have at most {SCHEMA_BYTES_MAX} bytes", "")
            added = SchemaVersion(schema, number, definition, self._clock.now())
            await self.beside(scope, lambda: self._chain(schema, {**versions, number: added}))
            columns = (scope.tenant_id, schema, number, body, added.created_at)
            await transaction.execute(sql.ADD, *columns, self._control.mac(schema_row(*columns)))
            await self._audit.append(
                transaction, scope.tenant_id, actor, "state-schema.register", f"state-schema:{schema}/{number}"
            )
        self._known.pop((scope.tenant_id, schema), None)
        return added, True

    async def get(self, scope: TenantScope | Scope, schema: str) -> Sequence[SchemaVersion]:
        """All versions of a schema, oldest first.

        Raises:
            StateSchemaNotFound: the tenant has none of this name.
            IntegrityFailure, CryptoError: as `put`.
        """
        await self._control.ready()
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.VERSIONS, scope.tenant_id, schema)
        if not rows:
            raise StateSchemaNotFound
        return [self._version(scope, schema, row) for row in rows]

    async def rows(self, transaction: Transaction, tenant_id: UUID) -> AsyncIterator[tuple[Row, bytes | None]]:
        """Every version of every schema, as it is proved, and its stored MAC: for whoever checks all of them."""
        at = ("", 0)
        while rows := await transaction.fetch(sql.EVERY, tenant_id, *at, _PAGE_ROWS):
            for row in rows:
                at = (row["schema"], row["number"])
                yield schema_row(tenant_id, *at, row["definition"], row["created_at"]), row["mac"]

    def _version(self, scope: TenantScope | Scope, schema: str, row: Any) -> SchemaVersion:
        number, definition, created_at = row["number"], row["definition"], row["created_at"]
        self._control.check(schema_row(scope.tenant_id, schema, number, definition, created_at), row["mac"])
        return SchemaVersion(schema, number, _decoder.decode(definition), created_at)

    async def names(self, scope: TenantScope) -> Sequence[tuple[str, int]]:
        """The tenant's schemas and their newest versions, by name."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            rows = await transaction.fetch(sql.NAMES, scope.tenant_id)
        return [(row["schema"], row["newest"]) for row in rows]

    async def known(self, scope: TenantScope | Scope, schema: str, number: int) -> Known:
        """A schema that has at least this version.

        Raises:
            StateTooNewToSave: nobody registered that version.
            IntegrityFailure, CryptoError: as `put`.
        """
        place = (scope.tenant_id, schema)
        found = self.cached(scope, schema, (number,))
        if found is None:
            try:
                versions = {each.number: each for each in await self.get(scope, schema)}
            except StateSchemaNotFound:
                raise StateTooNewToSave(schema, number, None) from None
            found = Known(await self.beside(scope, partial(self._chain, schema, versions)), versions)
            if len(self._known) >= CACHED_SCHEMAS_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[place] = found
        if number not in found.versions:
            raise StateTooNewToSave(schema, number, found.newest)
        return found

    def cached(self, scope: TenantScope | Scope, schema: str, numbers: Sequence[int]) -> Known | None:
        """A schema that this process has read already and that has these versions, or None."""
        found = self._known.get((scope.tenant_id, schema))
        return found if found is not None and all(number in found.versions for number in numbers) else None

    def _chain(self, schema: str, versions: Mapping[int, SchemaVersion]) -> Chain:
        first = versions[min(versions)]
        if first.definition.up is not None or first.definition.deployment is not None:
            raise StateSchemaInvalid("the first version has no step: nothing leads to it", "/up")
        steps = [self._step(each) for each in versions.values() if each is not first]
        try:
            return Chain(schema, steps)
        except ChainInvalid as fault:
            raise StateSchemaInvalid(f"{fault.step}: {fault}", "") from None

    def _step(self, version: SchemaVersion) -> Step:
        given = version.definition
        source = version.number - 1
        if (given.up is None) == (given.deployment is None):
            why = "a version after the first has either up or deployment"
            raise StateSchemaInvalid(f"v{source}_to_v{version.number}: {why}", "/up")
        if given.deployment is not None:
            return self._shipped_step(given.deployment, source, version.number)
        try:
            up = compile_operations(given.up, "/up")
            down = None if given.down is None else compile_operations(given.down, "/down")
        except StepInvalid as fault:
            raise StateSchemaInvalid(f"v{source}_to_v{version.number}: {fault}", fault.pointer) from None
        return Step(source, version.number, up, down)

    def _shipped_step(self, name: str, source: int, target: int) -> Step:
        chain = self._shipped.get(name)
        for step in () if chain is None else chain.steps:
            if (step.source, step.target) == (source, target):
                return step
        raise StateSchemaInvalid(f"this deployment ships no step v{source}_to_v{target} of {name!r}", "/deployment")


def _check_searchable(names: Sequence[str]) -> None:
    if len(names) > SEARCHABLE_KEYS_MAX:
        raise StateSchemaInvalid(f"a version declares at most {SEARCHABLE_KEYS_MAX} searchable keys", "/searchable")
    for index, name in enumerate(names):
        if not can_be_searchable(name):
            why = f"a searchable key has 1 to {SEARCHABLE_KEY_BYTES_MAX} bytes, and none of them is zero"
            raise StateSchemaInvalid(why, f"/searchable/{index}")
        if name in names[:index]:
            raise StateSchemaInvalid("a searchable key is declared twice", f"/searchable/{index}")
