"""State schemas: registering versions of agents' state, and bringing stored state to a version eagerly."""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import TENANT
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer, place
from gateway.problems import InvalidRequest, pointer
from gateway.routes.jobs import begun, shown
from gateway.routing.operations import Call, Operation, Route
from gateway.wire.problems import Fault
from storage.encoding import encode_msgpack
from storage.errors import LimitExceeded
from storage.migration import jobs as migrating
from storage.schemas.adoptions import ADOPTIONS_MAX, Adoption
from storage.schemas.registry import Definition, SchemaVersion
from storage.scope import TenantScope

_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z", re.ASCII)
_words = msgspec.msgpack.Decoder(Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,64}\Z")])


def _schema(text: str) -> str:
    try:
        word: str = _words.decode(encode_msgpack(text))
    except msgspec.ValidationError:
        raise InvalidRequest(Fault(detail="must match [A-Za-z0-9._:-]{1,64}", parameter="state_schema")) from None
    return word


def _number(text: str) -> int:
    if not _NUMBER.match(text):
        raise InvalidRequest(Fault(detail="must be a positive integer", parameter="state_version"))
    return int(text)


def _definition(request: wire.schemas.StateSchemaDefinition) -> Definition:
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


def _version_out(version: SchemaVersion) -> wire.schemas.StateSchemaVersion:
    definition = version.definition
    return wire.schemas.StateSchemaVersion.of(
        definition,
        state_schema=version.schema,
        state_version=version.number,
        ephemeral=list(definition.ephemeral),
        searchable=list(definition.searchable),
        created_at=version.created_at,
        damaged=version.damaged,
    )


@Operation(
    "PUT /v1/state-schemas/{state_schema}/versions/{state_version}",
    reach=TENANT,
    summary="Register the next version of a state schema; versions are written once. 200: it was registered. One "
    "that is damaged is superseded.",
    permission="tenant:admin",
    body=wire.schemas.StateSchemaDefinition,
    returns=wire.schemas.StateSchemaVersion,
    statuses=(201, 200),
    problems=("state-schema-exists", "limit-exceeded", "too-costly", "tenant-too-costly", "commit-unknown"),
)
async def put_state_schema_version(call: Call[TenantScope], state_schema: str, state_version: str) -> Answer:
    name, version_number = _schema(state_schema), _number(state_version)
    request, _, _ = await call.exchange.body(wire.schemas.StateSchemaDefinition)
    work = call.store.state_schemas.put(call.scope, name, version_number, _definition(request), call.actor)
    version, added = await call.commit(work)
    location = place("state-schemas", name, "versions", state_version)
    return call.exchange.reply(_version_out(version), status=201, location=location, replayed=not added)


@Operation(
    "GET /v1/state-schemas",
    reach=TENANT,
    summary="The tenant's state schemas, by name.",
    permission="tenant:admin",
    query=PageQuery,
    returns=wire.schemas.StateSchemaPage,
)
async def list_state_schemas(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(PageQuery)
    cursor = call.cursor(query.cursor, call.scope.tenant_id)
    page = await call.store.state_schemas.names(call.scope, query.limit, cursor.after)
    names = [wire.schemas.StateSchemaName(state_schema=name, newest_version=newest) for name, newest in page.items]
    return call.exchange.reply(wire.schemas.StateSchemaPage(state_schemas=names, next_cursor=cursor.next(page.after)))


@Operation(
    "GET /v1/state-schemas/{state_schema}",
    reach=TENANT,
    summary="A state schema with all its versions.",
    permission="tenant:admin",
    returns=wire.schemas.StateSchema,
    problems=("state-schema-not-found",),
)
async def get_state_schema(call: Call[TenantScope], state_schema: str) -> Answer:
    versions = await call.store.state_schemas.list(call.scope, _schema(state_schema))
    return call.exchange.reply(
        wire.schemas.StateSchema(
            state_schema=versions[-1].schema,
            newest_version=versions[-1].number,
            versions=[_version_out(each) for each in versions],
        )
    )


def _adoption_out(adoption: Adoption, *, authentic: bool = True) -> wire.schemas.StateAdoption:
    return wire.schemas.StateAdoption.of(adoption, damaged=not authentic)


@Operation(
    "POST /v1/state-schemas/{state_schema}/adoptions",
    reach=TENANT,
    summary="Say at which version an agent's unversioned state is that was saved until now, once; from then on the "
    "agent's saves name a version. 200: it was said.",
    permission="tenant:admin",
    body=wire.schemas.StateAdoptionRequest,
    returns=wire.schemas.StateAdoption,
    statuses=(201, 200),
    problems=(
        "state-schema-not-found", "state-too-new", "adoption-exists", "adoption-built-on", "feature-off",
        "integrity-failure", "key-unavailable", "commit-unknown",
    ),
)  # fmt: skip
async def adopt_state(call: Call[TenantScope], state_schema: str) -> Answer:
    name = _schema(state_schema)
    request, _, _ = await call.exchange.body(wire.schemas.StateAdoptionRequest)
    work = call.store.adoptions.adopt(
        call.scope,
        request.agent,
        request.namespace,
        name,
        request.state_version,
        supersede=request.supersede,
        actor=call.actor,
    )
    adoption, added = await call.commit(work)
    location = place("state-schemas", name, "adoptions")
    return call.exchange.reply(_adoption_out(adoption), status=201, location=location, replayed=not added)


@Operation(
    "GET /v1/state-schemas/{state_schema}/adoptions",
    reach=TENANT,
    summary="Which unversioned state was adopted under a schema, all of it: a tenant has at most "
    f"{ADOPTIONS_MAX:,} adoptions.",
    permission="tenant:admin",
    returns=wire.schemas.StateAdoptionList,
    problems=("state-schema-not-found", "key-unavailable"),
)
async def list_state_adoptions(call: Call[TenantScope], state_schema: str) -> Answer:
    name = _schema(state_schema)
    await call.store.state_schemas.require(call.scope, name)
    adoptions = await call.store.adoptions.list(call.scope)
    shown = [_adoption_out(each, authentic=authentic) for each, authentic in adoptions if each.state_schema == name]
    return call.exchange.reply(wire.schemas.StateAdoptionList(adoptions=shown))


def _job(
    name: str,
    word: str,
    kind: migrating.Kind,
    summary: str,
    body: type[
        wire.schemas.StateMigrationRequest | wire.schemas.StateRollbackRequest
    ] = wire.schemas.StateMigrationRequest,
) -> Route:
    """The operation that begins one kind of job over a schema's state."""

    @Operation(
        f"POST /v1/state-schemas/{{state_schema}}/{word}",
        name=name,
        summary=summary,
        reach=TENANT,
        permission="tenant:admin",
        body=body,
        returns=wire.jobs.Job,
        statuses=(202,),
        problems=("state-schema-not-found", "state-too-new", "commit-unknown"),
    )
    async def begin(call: Call[TenantScope], state_schema: str) -> Answer:
        schema_name = _schema(state_schema)
        request, _, _ = await call.exchange.body(body)
        how = msgspec.structs.asdict(request)
        how["heads_per_second"] = how.pop("threads_per_second")
        job_id = await call.commit(call.store.migrating.begin(call.scope, kind, schema_name, call.actor, **how))
        return await begun(call, job_id)

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
    "Save again what migrated heads were made of, where nobody has saved since and it is not pruned; a job does it.",
    wire.schemas.StateRollbackRequest,
)


@Operation(
    "GET /v1/state-schemas/{state_schema}/status",
    reach=TENANT,
    summary="How many heads are at which version, and what the last plan, migration and rollback came to.",
    permission="tenant:admin",
    returns=wire.jobs.StateMigrationStatus,
    problems=("state-schema-not-found",),
)
async def get_state_migration(call: Call[TenantScope], state_schema: str) -> Answer:
    name = _schema(state_schema)
    store = call.store
    newest = (await store.state_schemas.list(call.scope, name))[-1].number
    heads = await store.migrating.heads_by_version(call.scope, name)
    unversioned = await store.adoptions.unversioned(call.scope)
    jobs = await store.migrating.jobs(call.scope, name)
    return call.exchange.reply(
        wire.jobs.StateMigrationStatus(
            state_schema=name,
            newest_version=newest,
            heads=[wire.schemas.StateHeads(state_version=number, heads=count) for number, count in heads.items()],
            unversioned=[
                wire.schemas.UnversionedThreads(agent=agent, threads=count) for agent, count in unversioned.items()
            ],
            jobs=[shown(each) for each in jobs],
        )
    )
