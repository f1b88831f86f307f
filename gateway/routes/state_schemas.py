"""State schemas: registering versions of agents' state, and bringing stored state to a version eagerly."""

import re
from typing import Annotated

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta

from gateway import limits, wire
from gateway.auth import Principal
from gateway.exchange import Exchange
from gateway.operations import Operation, route
from gateway.problems import InvalidRequest, pointer
from gateway.services import Services
from gateway.wire import Fault
from storage import migrating
from storage.errors import LimitExceeded
from storage.scope import TenantScope
from storage.state_schemas import Definition, SchemaVersion

_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z", re.ASCII)
_words = msgspec.msgpack.Decoder(Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")])


def _schema(text: str) -> str:
    try:
        word: str = _words.decode(msgspec.msgpack.encode(text))
    except msgspec.ValidationError:
        raise InvalidRequest(Fault(detail="must match [A-Za-z0-9._:-]{1,64}", parameter="schema")) from None
    return word


def _number(text: str) -> int:
    if not _NUMBER.match(text):
        raise InvalidRequest(Fault(detail="must be a positive integer", parameter="state_version"))
    return int(text)


def _definition(request: wire.StateSchemaDefinition) -> Definition:
    for index, channel in enumerate(request.ephemeral):
        size = len(channel.encode())
        if size > limits.NAME_BYTES_MAX:
            raise LimitExceeded("NAME_BYTES_MAX", limits.NAME_BYTES_MAX, size, pointer("ephemeral", index))
    return Definition(
        label=request.label,
        json_schema=request.json_schema,
        ephemeral=tuple(request.ephemeral),
        searchable=tuple(request.searchable),
        up=request.up,
        down=request.down,
        deployment=request.deployment,
    )


def _version_out(version: SchemaVersion) -> wire.StateSchemaVersion:
    given = version.definition
    return wire.StateSchemaVersion(
        schema=version.schema,
        number=version.number,
        label=given.label,
        json_schema=given.json_schema,
        ephemeral=list(given.ephemeral),
        searchable=list(given.searchable),
        up=given.up,
        down=given.down,
        deployment=given.deployment,
        created_at=version.created_at,
    )


@route(
    Operation(
        name="put_state_schema_version",
        method=HttpMethod.PUT,
        path="/state-schemas/{schema:str}/versions/{state_version:str}",
        summary="Register the next version of a state schema; versions are written once. 200: it was registered.",
        permission="tenant:admin",
        body=wire.StateSchemaDefinition,
        returns=wire.StateSchemaVersion,
        statuses=(201, 200),
        problems=("state-schema-exists", "limit-exceeded", "commit-unknown"),
    )
)
async def put_state_schema_version(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
    schema: FromPath[str],
    state_version: FromPath[str],
) -> Response[bytes]:
    """Register a version."""
    exchange.no_query()
    name, version_number = _schema(schema), _number(state_version)
    request, _, _ = await exchange.body(wire.StateSchemaDefinition)
    work = services.store.state_schemas.put(tenant_scope, name, version_number, _definition(request), principal.actor)
    version, added = await services.commits.run(work)
    return exchange.reply(_version_out(version), status=201 if added else 200)


@route(
    Operation(
        name="list_state_schemas",
        method=HttpMethod.GET,
        path="/state-schemas",
        summary="The tenant's state schemas.",
        permission="tenant:admin",
        returns=wire.StateSchemaList,
    )
)
async def list_state_schemas(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """List schemas."""
    exchange.no_query()
    names = await services.store.state_schemas.names(tenant_scope)
    return exchange.reply(
        wire.StateSchemaList(
            state_schemas=[wire.StateSchemaName(schema=schema, newest=newest) for schema, newest in names]
        )
    )


@route(
    Operation(
        name="get_state_schema",
        method=HttpMethod.GET,
        path="/state-schemas/{schema:str}",
        summary="A state schema with all its versions.",
        permission="tenant:admin",
        returns=wire.StateSchema,
        problems=("state-schema-not-found",),
    )
)
async def get_state_schema(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    tenant_scope: NamedDependency[TenantScope],
    schema: FromPath[str],
) -> Response[bytes]:
    """Show a schema."""
    exchange.no_query()
    versions = await services.store.state_schemas.get(tenant_scope, _schema(schema))
    return exchange.reply(
        wire.StateSchema(
            schema=versions[-1].schema,
            newest=versions[-1].number,
            versions=[_version_out(each) for each in versions],
        )
    )


def _job(name: str, word: str, kind: migrating.Kind, summary: str) -> HTTPRouteHandler:
    """The operation that begins one kind of job over a schema's state."""

    @route(
        Operation(
            name=name,
            method=HttpMethod.POST,
            path=f"/state-schemas/{{schema:str}}/{word}",
            summary=summary,
            permission="tenant:admin",
            body=wire.StateMigrationRequest,
            returns=wire.JobStarted,
            statuses=(202,),
            problems=("state-schema-not-found", "state-too-new", "commit-unknown"),
        )
    )
    async def begin(
        exchange: NamedDependency[Exchange],
        services: NamedDependency[Services],
        principal: NamedDependency[Principal],
        tenant_scope: NamedDependency[TenantScope],
        schema: FromPath[str],
    ) -> Response[bytes]:
        exchange.no_query()
        schema_name = _schema(schema)
        request, _, _ = await exchange.body(wire.StateMigrationRequest)
        job_id = await services.commits.run(
            services.store.migrating.begin(
                tenant_scope,
                kind,
                schema_name,
                principal.actor,
                target_version=request.target_version,
                heads_per_second=request.threads_per_second,
                idle_seconds=request.idle_seconds,
            )
        )
        return exchange.reply(wire.JobStarted(job_id=str(job_id)), status=202)

    return begin


plan_state_migration = _job(
    "plan_state_migration",
    "plan",
    migrating.STATE_PLAN_KIND,
    "Try on real heads what bringing them to a version would do, and change nothing; a job does it.",
)
migrate_state = _job(
    "migrate_state",
    "migrate",
    migrating.STATE_MIGRATE_KIND,
    "Bring heads to a version, each by a new checkpoint unless it moves meanwhile; a job does it. While it goes on, "
    "repeating this gives the same job.",
)
roll_back_state = _job(
    "roll_back_state",
    "rollback",
    migrating.STATE_ROLLBACK_KIND,
    "Save again what migrated heads were made of, where it is not pruned; a job does it.",
)


@route(
    Operation(
        name="get_state_migration",
        method=HttpMethod.GET,
        path="/state-schemas/{schema:str}/status",
        summary="How many heads are at which version, and what the last plan, migration and rollback came to.",
        permission="tenant:admin",
        returns=wire.StateMigrationStatus,
        problems=("state-schema-not-found",),
    )
)
async def get_state_migration(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    tenant_scope: NamedDependency[TenantScope],
    schema: FromPath[str],
) -> Response[bytes]:
    """Show how far a schema's state is."""
    exchange.no_query()
    name = _schema(schema)
    store = services.store
    newest = (await store.state_schemas.get(tenant_scope, name))[-1].number
    heads = await store.migrating.heads_by_version(tenant_scope, name)
    jobs = await store.migrating.jobs(tenant_scope, name)
    return exchange.reply(
        wire.StateMigrationStatus(
            schema=name,
            newest=newest,
            heads=[wire.StateHeads(number=number, heads=count) for number, count in heads.items()],
            jobs=[msgspec.convert(msgspec.to_builtins(each), wire.StateMigrationJob) for each in jobs],
        )
    )


ROUTES = [
    put_state_schema_version,
    list_state_schemas,
    get_state_schema,
    plan_state_migration,
    migrate_state,
    roll_back_state,
    get_state_migration,
]
