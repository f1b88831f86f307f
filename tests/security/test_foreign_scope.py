import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from gateway.app import create_app
from gateway.authentication.api_keys import SUBJECT_PERMISSIONS, tenant_permissions
from gateway.authentication.principals import INBOX
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
from gateway.problems import PathUnknown
from storage.control.features import (
    ADOPTIONS,
    CLEAR_VECTORS,
    DECISIONS,
    EVENTS,
    ITEMS,
    LINKS,
    READABLE_EXPORTS,
    SAVE_POLICIES,
)
from tests.support.events import events_on
from tests.support.features import finish_upgrade
from tests.support.gateway import Tenant
from tests.support.operations import (
    AUTHENTICATED,
    CANARY,
    DECLARED,
    NAMED,
    NO_ID,
    OF_SUBJECTS,
    Declared,
    Request,
    Tenancy,
    Thread,
    assert_problem,
    has_approvals,
    has_files,
    has_items,
    has_ledger,
    key_id,
    path_of,
    register_schema,
    request_of,
    save_approval,
    save_files,
    save_item,
    save_ledger,
    save_thread,
)
from tests.support.production import Deployment, Launcher, ProductionGateway, serving
from tests.unit.gateway.doubles import MemoryStore, settings
from tests.victims.rows import opened

OWNER = "owner"
EVERY = tenant_permissions(may_export=True, may_hear=True, may_decide=True)
# What a stranger gets who sends the owner's very request in a scope of his own, where nothing is.
ALONE: dict[str, int] = {
    "get_usage": 200,
    "claim_thread": 404,
    "renew_claim": 404,
    "release_claim": 404,
    "get_claim": 404,
    "require_claims": 404,
    "list_silent_threads": 200,
    "start_effect": 404,
    "finish_effect": 404,
    "resolve_effect": 404,
    "get_effect": 404,
    "list_effects": 404,
    "list_unknown_effects": 200,
    "put_item": 201,
    "get_item": 404,
    "delete_item": 404,
    "search_items": 200,
    "list_item_paths": 200,
    "run_item_batch": 200,
    "list_approvals": 200,
    "get_approval": 404,
    "open_approval": 404,
    "decide_approval": 404,
    "cancel_approval": 404,
    "list_approval_policies": 200,
    "put_approval_policy": 200,
    "delete_approval_policy": 200,
    "read_events": 200,
    "get_event_settings": 200,
    "put_event_settings": 200,
    "list_threads": 200,
    "get_thread": 404,
    "get_thread_retention": 404,
    "put_thread_retention": 404,
    "archive_thread": 404,
    "export_trajectory": 404,
    "restore_thread": 404,
    "compact_thread": 404,
    "update_thread": 201,
    "delete_thread": 404,
    "link_thread": 201,
    "unlink_thread": 404,
    "list_children": 200,
    "copy_thread": 404,
    "prune": 200,
    "delete_runs": 200,
    "save_checkpoint": 201,
    "load_checkpoint": 404,
    "list_checkpoints": 404,
    "search_checkpoints": 200,
    "channel_history": 404,
    "put_writes": 200,
    "get_writes": 404,
    "put_piece": 201,
    "get_piece": 404,
    "whoami": 200,
    "create_artifact": 201,
    "begin_upload": 201,
    "get_upload": 404,
    "put_upload_part": 404,
    "complete_upload": 404,
    "abort_upload": 404,
    "list_artifacts": 404,
    "get_artifact": 404,
    "delete_artifact": 404,
    "copy_artifact": 404,
    "get_artifact_content": 404,
    "create_artifact_url": 404,
    "revoke_artifact_urls": 404,
    "create_api_key": 201,
    "list_api_keys": 200,
    "revoke_api_key": 404,
    "verify": 404,
    "verify_tenant": 202,
    "read_audit": 200,
    "get_audit_anchor": 200,
    "anchor_audit": 200,
    "get_audit_key": 200,
    "list_subjects": 200,
    "get_retention": 200,
    "put_retention": 200,
    "get_save_policy": 200,
    "put_save_policy": 200,
    "get_vector_policy": 200,
    "put_vector_policy": 200,
    "preview_retention": 200,
    "get_retention_round": 200,
    "begin_retention_round": 202,
    "rotate_key": 404,
    "rewrap_subject_keys": 202,
    "get_keys": 404,
    "shred_subject": 404,
    "list_jobs": 200,
    "get_job": 404,
    "cancel_job": 404,
    "supersede_job": 404,
    "export_thread": 404,
    "export_tenant": 200,
    "import_threads": 422,
    "get_transfer_key": 200,
    "put_state_schema_version": 201,
    "list_state_schemas": 200,
    "get_state_schema": 404,
    "adopt_state": 404,
    "list_state_adoptions": 404,
    "plan_state_migration": 404,
    "migrate_state": 404,
    "roll_back_state": 404,
    "get_state_migration": 404,
}
NOTHING = {"threads": [], "checkpoints": [], "writes": []}
STRANGERS_AT_HOME = [
    "a subject of another tenant with the same name",
    "a service of another tenant that names the same subject",
    "another subject of the tenant",
    "a service of the tenant that names another subject",
]
REFUSED = {
    "a subject that names the owner": 403,
    "the operator": 403,
    "the operator who names the owner": 403,
    "nobody": 401,
    "a revoked key": 401,
    "an expired key": 401,
    "a key with a typo": 401,
    "a key of another scheme": 401,
    "half a key": 401,
}
OPERATORS = ["the operator", "the operator who names the owner"]


def _groups(declared: Declared) -> list[list[str]]:
    """The strangers after each of whom it is looked at what they reach for: after all of them, where all only ask.

    Else everybody whom there is a home for is alone, and whoever is refused in any case comes with the others.
    """
    if declared.operation.method.value == "GET":
        return [[*STRANGERS_AT_HOME, *REFUSED]]
    return [*([each] for each in STRANGERS_AT_HOME), [*REFUSED]]


def _named(strangers: list[str]) -> str:
    return strangers[0] if len(strangers) == 1 else "whoever is refused" if REFUSED.keys() >= {*strangers} else "all"


class Caller(NamedTuple):
    api_key: str | None
    subject: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class Target(NamedTuple):
    """What one operation's strangers are sent at, once the owner showed that the operation works on another like it."""

    thread: Thread
    seen: list[bytes]  # all the owner can read of it


class World(NamedTuple):
    tenancy: Tenancy
    tenant_id: str
    foreign_tenant_id: str
    service_key: str
    owner_key: str
    decrypting_key: str
    callers: dict[str, Caller]
    client_of: dict[str, httpx.Client]  # of each caller: one for the whole module
    another_operator: Callable[[], str]  # makes a key
    targets: dict[str, Target]  # by operation, or of all; taken out by a test, put back by one that found it unchanged
    keys: dict[tuple[str | None, tuple[str, ...]], str]  # of the tenant, by subject and permissions

    def operating_key(self, permission: str) -> str | None:
        """The key of the operator who has ``permission``, where it is one of operators."""
        return {"operator": self.tenancy.gateway.operator_key, "decrypt-any": self.decrypting_key}.get(permission)

    def key_of(self, subject: str | None, *permissions: str) -> str:
        """A key of the tenant with these permissions only: the same for all who ask."""
        if (made := self.keys.get((subject, permissions))) is None:
            made = self.keys[subject, permissions] = self.tenancy.key(self.service_key, subject, [*permissions])
        return made


async def _expire(dsn: str, api_key: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        moment = datetime.now(UTC) - timedelta(seconds=1)
        done = await connection.execute(
            "UPDATE stateroom.api_keys SET expires_at = $2 WHERE key_id = $1", key_id(api_key), moment
        )
        assert done == "UPDATE 1"
    finally:
        await connection.close()


@pytest.fixture(scope="module")
async def own_gateway(
    launcher: Launcher, deployment: Deployment, s3_server: EmbeddedS3
) -> AsyncIterator[ProductionGateway]:
    """At a deployment of this module's own: what is begun on all of a deployment goes over its tenants only."""
    async with serving(launcher, deployment.with_buckets(s3_server.url(), s3_server.archive_url())) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def database_dsn(durable_postgres: EmbeddedPostgres, deployment: Deployment) -> str:
    return durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "", 1)


@pytest.fixture(scope="module")
async def world(own_gateway: ProductionGateway, launcher: Launcher, database_dsn: str) -> AsyncIterator[World]:
    deployment = own_gateway.deployment
    environ = {"PATH": os.environ["PATH"], **deployment.environ}

    # What is done only once an upgrade was finished must keep to its tenant, too.
    await finish_upgrade(
        deployment, ADOPTIONS, READABLE_EXPORTS, SAVE_POLICIES, LINKS, ITEMS, CLEAR_VECTORS, EVENTS, DECISIONS
    )

    def operator_key(*options: str) -> str:
        made = launcher.run(environ, "init", "--another", "--json", *options)
        assert made.returncode == 0, made.stderr
        return str(json.loads(made.stdout)["api_key"])

    tenancy = Tenancy(Tenant(own_gateway.url, deployment.api_key, deployment.operator_key))
    service_key, foreign_key = tenancy.tenant(), tenancy.tenant()
    owner_key = tenancy.key(service_key, OWNER)
    revoked, expired = tenancy.key(service_key, OWNER), tenancy.key(service_key, OWNER)
    tenancy.revoke(service_key, revoked)
    await _expire(database_dsn, expired)
    typo = owner_key[:-10] + ("a" if owner_key[-10] != "a" else "b") + owner_key[-9:]
    callers = {
        STRANGERS_AT_HOME[0]: Caller(tenancy.key(foreign_key, OWNER)),
        STRANGERS_AT_HOME[1]: Caller(foreign_key, OWNER),
        STRANGERS_AT_HOME[2]: Caller(tenancy.key(service_key, "other")),
        STRANGERS_AT_HOME[3]: Caller(service_key, "another"),
        "a subject that names the owner": Caller(tenancy.key(service_key, "other"), OWNER),
        "the operator": Caller(deployment.operator_key),
        "the operator who names the owner": Caller(deployment.operator_key, OWNER),
        "nobody": Caller(None, OWNER),
        "a revoked key": Caller(revoked),
        "an expired key": Caller(expired),
        "a key with a typo": Caller(typo),
        "a key of another scheme": Caller(None, None, {"Authorization": f"Basic {owner_key}"}),
        "half a key": Caller(owner_key[: len(owner_key) // 2]),
    }
    assert callers.keys() == {*STRANGERS_AT_HOME, *REFUSED}
    tenant_ids = []
    for one in (service_key, foreign_key):
        with tenancy.client(one) as service:
            tenant_ids.append(service.get("/v1/whoami").json()["tenant_id"])
    async with opened(deployment) as store:  # what happens must be told to nobody else
        for tenant_id in tenant_ids:
            await events_on(store, UUID(tenant_id))
    for one in (service_key, foreign_key, deployment.operator_key):  # so that everybody has an anchor of his own
        with tenancy.client(one) as client:
            path = "/v1/admin/audit/anchor" if one == deployment.operator_key else "/v1/audit/anchor"
            anchored = client.post(path)
        assert (anchored.status_code, anchored.json()["stored"]) == (200, True), anchored.text
    reading_any = operator_key("--decrypt-any")
    with ExitStack() as clients:
        client_of = {
            name: clients.enter_context(tenancy.client(caller.api_key, caller.subject, **caller.headers))
            for name, caller in callers.items()
        }
        yield World(tenancy, *tenant_ids, service_key, owner_key, reading_any, callers, client_of, operator_key, {}, {})


@pytest.fixture(scope="module")
async def connection(database_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """The gateway's database, as its superuser, who sees every row."""
    opened = await asyncpg.connect(database_dsn)
    yield opened
    await opened.close()


def _seen(owner: httpx.Client, thread: Thread) -> list[bytes]:
    """All the owner can read of a thread, byte for byte."""
    base = f"/v1/threads/{thread.thread_id}"
    paths = [
        base,
        f"{base}/checkpoints?view=channels",
        f"{base}/checkpoints/latest?view=channels",
        f"{base}/checkpoints/{thread.checkpoint_id}/writes/{thread.task_id}?view=channels",
        f"{base}/checkpoints/latest/channel-history?channel=note",
        f"/v1/checkpoints?run_id={thread.run_id}&view=channels",
    ]
    if thread.artifact_id != NO_ID:
        paths += [
            f"{base}/artifacts",
            f"/v1/artifacts/{thread.artifact_id}",
            f"/v1/artifacts/{thread.artifact_id}/content",
            f"/v1/uploads/{thread.upload_id}",
        ]
    if thread.path != Thread._field_defaults["path"]:
        paths.append(f"/v1/items/{thread.path}/{thread.key}")
    if thread.approval_id != NO_ID:
        paths += [f"/v1/approvals/{thread.approval_id}", f"/v1/approvals/{thread.approval_id}/content"]
    answers = [owner.get(path) for path in paths]
    assert all(answer.status_code == 200 for answer in answers)
    return [answer.content for answer in answers]


def _refused_or_alone(answer: httpx.Response, declared: Declared, stranger: str, secrets: list[str]) -> None:
    if stranger in STRANGERS_AT_HOME:
        assert answer.status_code == ALONE[declared.name], (stranger, answer.text[:300])
    else:
        assert answer.status_code == REFUSED[stranger], (stranger, answer.text[:300])
    if answer.status_code >= 400:
        assert_problem(answer)
    for secret in [CANARY, *secrets]:
        assert secret not in answer.text
    if answer.status_code == 200 and declared.name in {"prune", "delete_runs"}:
        assert set(answer.json().values()) == {0}
    for name, content in NOTHING.items():
        if declared.operation.method.value == "GET" and answer.status_code == 200 and name in answer.json():
            ours = [found for found in answer.json()[name] if name != "writes" and found["agent"] == "tester"]
            assert ours == content


def _thread_to_reach_for(owner: httpx.Client, declared: Declared) -> Target:
    """A thread of the owner, after the operation succeeded on its twin."""
    twin, thread = save_thread(owner), save_thread(owner)
    if has_files(declared):
        twin, thread = save_files(owner, twin), save_files(owner, thread)
    if has_items(declared):
        twin, thread = save_item(owner, twin), save_item(owner, thread)
    if has_ledger(declared):
        is_unknown = declared.name == "resolve_effect"
        twin, thread = (save_ledger(owner, each, unknown=is_unknown) for each in (twin, thread))
    if has_approvals(declared):
        twin, thread = save_approval(owner, twin), save_approval(owner, thread)
    if declared.name in {"get_job", "cancel_job"}:
        begun = owner.post(f"/v1/threads/{save_thread(owner).thread_id}/archive")
        assert begun.status_code == 202, begun.text
        twin, thread = (each._replace(job_id=begun.json()["job_id"]) for each in (twin, thread))
    proof = request_of(declared, twin).send(owner)
    assert proof.status_code in declared.operation.statuses, proof.text
    if declared.name in {"prune", "delete_runs", "verify"}:
        assert proof.json()["checkpoints"] == 2
    return Target(thread, _seen(owner, thread))


class Records(NamedTuple):
    """What an operation on a tenant's or the operators' records may name; all of it exists."""

    tenant_id: str
    service_key: str
    subject_id: str
    key_id: str
    job_id: str
    state_schema: str
    thread: Thread

    @property
    def named(self) -> dict[str, str]:
        records = {
            name: getattr(self, name) for name in ("tenant_id", "subject_id", "key_id", "job_id", "state_schema")
        }
        return {**records, "thread_id": self.thread.thread_id}


DEPLOYMENT = str(UUID(int=0))  # the tenant column of what is the operators'
JOB_SECONDS_MAX = 240
# What happened is numbered in the background, a moment after what made it true was stored.
NUMBERED = frozenset({"event_counters", "event_queue", "event_relays", "events"})
# What the owner's own answer must hold, so that a stranger's answer without it says something.
SHOWN = {
    "export_thread": '"recipient"',
    "export_tenant": '"recipient"',
    "import_threads": "passed_over",
    "get_transfer_key": "fingerprint",
    "whoami": '"tenant_id":"{tenant_id}"',
    "create_api_key": '"api_key":"',
    "list_api_keys": '"{key_id}"',
    "revoke_api_key": "",
    "list_operator_keys": '"kind":"operator"',
    "revoke_operator_key": "",
    "create_tenant": '"api_key":"',
    "list_tenants": '"tenant_id":"',
    "get_tenant": '"tenant_id":"{tenant_id}"',
    "rename_tenant": '"tenant_id":"{tenant_id}"',
    "suspend_tenant": '"tenant_id":"{tenant_id}"',
    "resume_tenant": '"suspended_at":null',
    "recover_tenant": '"tenant_id":"{tenant_id}"',
    "read_audit": '/{tenant_id}","events":[{{"sequence":1,',
    "get_audit_anchor": '/{tenant_id}","sequence":',
    "anchor_audit": '/{tenant_id}","sequence":',
    "get_audit_key": '/{tenant_id}"',
    "read_operator_audit": f'/{DEPLOYMENT}","events":[{{{{"sequence":1,',
    "get_operator_audit_anchor": f'/{DEPLOYMENT}","sequence":',
    "anchor_operator_audit": f'/{DEPLOYMENT}","sequence":',
    "get_operator_audit_key": f'/{DEPLOYMENT}"',
    "list_subjects": CANARY,
    "verify_tenant": '"job_id":"',
    "verify_deployment": '"job_id":"',
    "rotate_key": '"key_version":',
    "rewrap_subject_keys": '"job_id":"',
    "get_keys": '"purpose":"data"',
    "rewrap_tenant_keys": '"job_id":"',
    "get_root_keys": '"root_key_version":',
    "shred_subject": '"shred_effective_at":"',
    "shred_tenant": '"shred_effective_at":"',
    "put_state_schema_version": '"state_schema":"{state_schema}"',
    "list_state_schemas": '"state_schema":"{state_schema}"',
    "get_state_schema": '"state_schema":"{state_schema}"',
    "adopt_state": '"state_schema":"{state_schema}"',
    "list_state_adoptions": '"adoptions":[',
    "plan_state_migration": '"job_id":"',
    "migrate_state": '"job_id":"',
    "roll_back_state": '"job_id":"',
    "get_state_migration": '"state_schema":"{state_schema}"',
    "list_jobs": '"{job_id}"',
    "get_tenant_job": '"{job_id}"',
    "list_deployment_jobs": '"{job_id}"',
    "get_deployment_job": '"{job_id}"',
    "supersede_job": '"{job_id}"',
    "cancel_deployment_job": '"{job_id}"',
    "supersede_deployment_job": '"{job_id}"',
    "decrypt": CANARY,
    "get_usage": '"tenant_id":"{tenant_id}"',
    "get_tenant_usage": '"tenant_id":"{tenant_id}"',
    "set_tenant_quota": '"tenant_id":"{tenant_id}"',
    "get_retention": '"effective":',
    "put_retention": '"idle_ttl_seconds":3600',
    "get_save_policy": '"strict":',
    "put_save_policy": '"strict":false',
    "get_vector_policy": '"vectors":"sealed"',
    "put_vector_policy": '"vectors":"sealed"',
    "list_approval_policies": '"policies":',
    "put_approval_policy": '"decisions_needed":2',
    "delete_approval_policy": '"policies":',
    "get_event_settings": '"on":true',
    "put_event_settings": '"on":true',
    "preview_retention": '"threads":',
    "get_retention_round": '"state":"',
    "begin_retention_round": '"state":"',
    "get_retention_ceilings": '"tenant_id":"{tenant_id}"',
    "put_retention_ceilings": '"tenant_id":"{tenant_id}"',
    "accept_unbound_import": "",
}


def _records(world: World, declared: Declared) -> Records:
    """Records of their own for one request, in a tenant of their own where the request ends a tenant."""
    subject_id = f"owner-{CANARY}-{uuid4()}"
    tenant_id, service_key = world.tenant_id, world.service_key
    if declared.name in {"shred_tenant", "suspend_tenant"}:
        service_key = world.tenancy.tenant()
        with world.tenancy.client(service_key) as service:
            tenant_id = service.get("/v1/whoami").json()["tenant_id"]
    with world.tenancy.client(service_key, subject_id) as client:
        thread = save_thread(client)
    job_id = ""
    if declared.name == "get_tenant_job":
        with world.tenancy.client(world.tenancy.tenant()) as service:
            tenant_id = service.get("/v1/whoami").json()["tenant_id"]
        with world.tenancy.client(world.tenancy.gateway.operator_key) as operator:
            shredded = operator.post(f"/v1/admin/tenants/{tenant_id}/shred", json={"confirm": tenant_id})
        assert shredded.status_code == 202, shredded.text
        job_id = shredded.json()["job_id"]
    if declared.name in {"list_jobs", "supersede_job"}:
        with world.tenancy.client(service_key) as service:
            rotated = service.post("/v1/keys:rotate", json={"level": "subject", "subject_id": subject_id})
        assert rotated.status_code == 202, rotated.text
        job_id = rotated.json()["job_id"]
    if declared.name in {"list_deployment_jobs", "get_deployment_job", "supersede_deployment_job"}:
        with world.tenancy.client(world.tenancy.gateway.operator_key) as operator:
            rewrapped = operator.post("/v1/admin/keys:rewrap")
        assert rewrapped.status_code == 202, rewrapped.text
        job_id = rewrapped.json()["job_id"]
    if declared.name == "cancel_deployment_job":
        with world.tenancy.client(world.tenancy.gateway.operator_key) as operator:
            verifying = operator.post("/v1/admin/verify")
        assert verifying.status_code == 202, verifying.text
        job_id = verifying.json()["job_id"]
    with world.tenancy.client(service_key) as service:
        schema = register_schema(service)
    ends_operator = declared.name == "revoke_operator_key"
    api_key = world.another_operator() if ends_operator else world.tenancy.key(service_key, subject_id)
    return Records(tenant_id, service_key, subject_id, key_id(api_key), job_id, schema, thread)


async def _settled(connection: asyncpg.Connection, *tenant_ids: str) -> None:
    """Wait until no job is under way that would change rows later."""
    open_jobs = "SELECT count(*) FROM stateroom.jobs WHERE state IN ('queued', 'running') AND tenant_id = ANY($1)"
    async with asyncio.timeout(JOB_SECONDS_MAX):
        while await connection.fetchval(open_jobs, [UUID(one) for one in tenant_ids]):  # noqa: ASYNC110
            # Another process works on them; nothing here could tell when it is done.
            await asyncio.sleep(0.02)


async def _stored(connection: asyncpg.Connection, *tenant_ids: str) -> dict[str, str]:
    """A digest of all rows of some tenants and of those that are no tenant's, by table.

    Of the row's place and of the transaction that wrote it, which every change gives it anew. Without what the gateway
    does in the background: when a key was last used, when a tenant was swept, and the record of requests with the head
    that moves with it.
    """
    columns = await connection.fetch(
        "SELECT c.relname, bool_or(a.attname = 'tenant_id') AS of_tenants FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE c.relnamespace = 'stateroom'::regnamespace AND c.relkind IN ('r', 'p') GROUP BY 1"
    )
    digests = []
    for table, of_tenants in columns:
        if table in {"audit_heads", "processes"} or table in NUMBERED:  # the second says every few seconds who runs
            continue
        where = "(tenant_id = ANY($1) OR tenant_id IS NULL)" if of_tenants else "$1::uuid[] IS NOT NULL"
        where += " AND action NOT IN ('access', 'access.dropped')" if table == "audit_log" else ""
        swept = "- 'sweep_after' - 'walk_after' - 'swept_at' - 'due_since' - 'census' - 'bytes'"
        rounds = "- 'due_at' - 'lease_until' - 'started_at' - 'progress' - 'finished_at' - 'census' - 'thinned_until'"
        gone = "- 'removed_at' - 'reserved_bytes'"  # of an upload that was given up, when its object is
        moving = {
            "api_keys": "- 'last_used_at'",
            "processes": "- 'seen_at'",
            "blob_usage": swept,
            "row_usage": "- 'bytes' - 'counted_at' - 'count_after'",
            "blob_intents": gone,
            "retention_rounds": rounds,
        }
        row = f"(to_jsonb(t) {moving[table]})::text" if table in moving else "t.ctid::text || ' ' || t.xmin::text"
        digest = "count(*) || ' ' || md5(coalesce(string_agg(row, ',' ORDER BY row), ''))"
        digests.append(
            f"SELECT '{table}', {digest} FROM (SELECT {row} AS row FROM stateroom.{table} t WHERE {where}) AS rows"  # noqa: S608
        )
    # One statement: hundreds of tests ask twice.
    found = dict(await connection.fetch(" UNION ALL ".join(digests), [UUID(one) for one in tenant_ids]))
    assert {"api_keys", "tenants", "tenant_keys", "subject_keys", "jobs", "audit_log", "checkpoints"} <= found.keys()
    return found


async def _damaged(records: Records, declared: Declared, connection: asyncpg.Connection) -> Records:
    """The same, with the job edited where the operation is about jobs that somebody edited."""
    if declared.name in {"supersede_job", "supersede_deployment_job"}:
        await _settled(connection, records.tenant_id, DEPLOYMENT)
        edit = "UPDATE stateroom.jobs SET note = 'edited' WHERE job_id = $1"
        assert await connection.execute(edit, UUID(records.job_id)) == "UPDATE 1"
    return records


async def _shown_records(world: World, declared: Declared, connection: asyncpg.Connection) -> Records:
    """Records on which the operation succeeded for whoever they belong to."""
    twin = await _damaged(_records(world, declared), declared, connection)
    with world.tenancy.client(world.operating_key(declared.operation.permission) or world.service_key) as owner:
        proof = request_of(declared, **twin.named).send(owner)
    assert proof.status_code in declared.operation.statuses, proof.text
    assert SHOWN[declared.name].format(**twin.named) in proof.text
    return twin


def _may(stranger: str, permission: str | None) -> bool:
    """Whether a stranger to the owner is one who does what asks for this permission."""
    if permission == "operator":
        return stranger in OPERATORS
    return permission == "tenant:admin" and stranger == STRANGERS_AT_HOME[3]


def _expected(declared: Declared, stranger: str, *, of_operator: bool) -> int:
    """The status of the answer to a stranger who may not do what he asks for."""
    if REFUSED.get(stranger) == 401:
        return 401
    if declared.operation.permission is None:  # whoami: everybody is somebody
        return 200
    return ALONE[declared.name] if not of_operator and stranger == STRANGERS_AT_HOME[1] else 403


# First what goes over all that a tenant or the deployment has: every other case leaves them with more.
OVER_ALL = frozenset(
    {
        "cancel_deployment_job",
        "export_tenant",
        "migrate_state",
        "plan_state_migration",
        "roll_back_state",
        "verify_deployment",
        "verify_tenant",
    }
)
OF_RECORDS = sorted(AUTHENTICATED.keys() - OF_SUBJECTS.keys(), key=lambda name: (name not in OVER_ALL, name))


@pytest.mark.parametrize("name", OF_RECORDS)
async def test_a_tenants_and_the_operators_records_are_out_of_reach(
    world: World, connection: asyncpg.Connection, name: str
) -> None:
    declared = DECLARED[name]
    permission = declared.operation.permission
    of_operator = world.operating_key(permission) is not None
    twin = await _shown_records(world, declared, connection)
    ours = await _damaged(_records(world, declared), declared, connection)
    await _settled(connection, world.tenant_id, world.foreign_tenant_id, ours.tenant_id, DEPLOYMENT)
    before = await _stored(connection, world.tenant_id, ours.tenant_id, DEPLOYMENT)
    for stranger in world.callers:
        if _may(stranger, permission):
            continue
        answer = request_of(declared, **ours.named).send(world.client_of[stranger])
        assert answer.status_code == _expected(declared, stranger, of_operator=of_operator), (stranger, answer.text)
        if answer.status_code >= 400:
            assert_problem(answer)
        assert CANARY not in answer.text
        if permission is not None:
            secrets = {world.tenant_id, *twin.named.values(), *ours.named.values(), key_id(world.service_key)} - {""}
            if name == "put_state_schema_version" and answer.status_code == 201:
                secrets.remove(ours.state_schema)  # his own, of the same name
            assert not [secret for secret in secrets if secret in answer.text]
    await _settled(connection, world.tenant_id, world.foreign_tenant_id, ours.tenant_id, DEPLOYMENT)
    assert await _stored(connection, world.tenant_id, ours.tenant_id, DEPLOYMENT) == before
    untouched = True
    for stranger in world.callers:
        if not _may(stranger, permission):
            continue
        if not untouched:  # the one before did it
            ours = await _damaged(_records(world, declared), declared, connection)
        answer = request_of(declared, **ours.named).send(world.client_of[stranger])
        assert answer.status_code in declared.operation.statuses, answer.text
        untouched = declared.operation.method.value == "GET"


# After those of records, where jobs and comparisons go over all that a tenant has: this one leaves it with much more.
@pytest.mark.parametrize(
    ("name", "strangers"),
    [(name, each) for name, one in OF_SUBJECTS.items() for each in _groups(one)],
    ids=lambda value: value if isinstance(value, str) else _named(value),
)
def test_a_subjects_state_is_out_of_reach(world: World, name: str, strangers: list[str]) -> None:
    declared = DECLARED[name]
    with world.tenancy.client(world.owner_key) as owner:
        target = world.targets.pop(name, None)
        if target is None or (STRANGERS_AT_HOME[1] in strangers and declared.operation.method.value != "GET"):
            # His home is the first stranger's, who may have made something of the same name there.
            target = _thread_to_reach_for(owner, declared)
        thread = target.thread
        request = request_of(declared, thread)
        secrets = [] if thread.checkpoint_id in request.path else [thread.checkpoint_id]
        secrets += [
            each for each in (thread.artifact_id, thread.upload_id) if each not in (NO_ID, *request.path.split("/"))
        ]
        for stranger in strangers:
            client = world.client_of[stranger]
            if request.method == "GET":
                headed = request.send(client, "HEAD")
                answer = request.send(client)
                assert (headed.status_code, headed.content) == (answer.status_code, b"")
            else:
                answer = request.send(client)
            _refused_or_alone(answer, declared, stranger, secrets)
        assert _seen(owner, thread) == target.seen
    world.targets[name] = target


async def test_what_a_tenant_does_to_its_own_subject_leaves_the_one_of_the_same_name_alone(
    world: World, connection: asyncpg.Connection
) -> None:
    foreign_key, subject_id = world.tenancy.tenant(), f"twin-{uuid4()}"
    with (
        world.tenancy.client(world.service_key, subject_id) as ours,
        world.tenancy.client(foreign_key, subject_id) as theirs,
        world.tenancy.client(foreign_key) as foreigner,
    ):
        our_thread, their_thread = save_thread(ours), save_thread(theirs)
        seen = _seen(ours, our_thread)
        _seen(theirs, their_thread)
        await _settled(connection, world.tenant_id, DEPLOYMENT)
        before = await _stored(connection, world.tenant_id, DEPLOYMENT)
        for name in ("rotate_key", "shred_subject"):
            answer = request_of(DECLARED[name], subject_id=subject_id).send(foreigner)
            assert answer.status_code in DECLARED[name].operation.statuses, answer.text
        assert foreigner.post("/v1/keys:rotate", json={"level": "tenant"}).status_code == 202
        gone = theirs.get(f"/v1/threads/{their_thread.thread_id}/checkpoints/latest")
        assert_problem(gone, 410, "key-destroyed")
        await _settled(connection, foreigner.get("/v1/whoami").json()["tenant_id"])
        assert await _stored(connection, world.tenant_id, DEPLOYMENT) == before
        assert _seen(ours, our_thread) == seen


def test_a_listing_of_a_whole_tenant_is_of_nobody_elses(world: World) -> None:
    with world.tenancy.client(world.owner_key) as owner:
        thread = save_thread(owner)
    path = f"/v1/checkpoints?run_id={thread.run_id}"
    with world.tenancy.client(world.service_key) as service:
        shown = service.get(path).json()["checkpoints"]
    assert {each["subject_id"] for each in shown} == {OWNER}
    assert {each["namespace"]: each["checkpoint_id"] for each in shown}[""] == thread.checkpoint_id
    with world.tenancy.client(world.callers[STRANGERS_AT_HOME[1]].api_key) as foreigner:
        assert foreigner.get(path).json() == {"checkpoints": [], "next_cursor": None}
        assert thread.checkpoint_id not in foreigner.get("/v1/checkpoints?limit=1000").text
    with world.tenancy.client(world.callers[STRANGERS_AT_HOME[2]].api_key) as other:
        assert other.get(path).json() == {"checkpoints": [], "next_cursor": None}
    acting = world.tenancy.key(world.service_key, None, [*SUBJECT_PERMISSIONS, "subject:act_as"])
    for stranger, status in ((acting, 400), (world.tenancy.gateway.operator_key, 403), (None, 401)):
        with world.tenancy.client(stranger) as client:
            answer = client.get(path)
        assert_problem(answer, status)
        assert thread.checkpoint_id not in answer.text


def test_a_verification_of_all_a_subject_has_is_of_nobody_elses(world: World) -> None:
    subject_id = f"verified-{uuid4()}"
    foreign_key = world.callers[STRANGERS_AT_HOME[1]].api_key
    with world.tenancy.client(world.service_key, subject_id) as ours:
        save_thread(ours)
        report = ours.post("/v1/threads:verify", json={}).json()
    assert (report["threads"], report["checkpoints"], report["findings"]) == (1, 2, [])
    for api_key, subject in ((foreign_key, subject_id), (world.service_key, f"{subject_id}-not")):
        with world.tenancy.client(api_key, subject) as theirs:
            report = theirs.post("/v1/threads:verify", json={}).json()
        assert (report["threads"], report["checkpoints"], report["pending_writes"], report["pieces"]) == (0, 0, 0, 0)


def test_every_declared_operation_has_a_case() -> None:
    of_operators = {"operator", "decrypt-any"}
    cases = ALONE.keys() | {name for name, one in AUTHENTICATED.items() if one.operation.permission in of_operators}
    assert cases == AUTHENTICATED.keys()
    assert SHOWN.keys() == AUTHENTICATED.keys() - OF_SUBJECTS.keys()
    for declared in AUTHENTICATED.values():
        assert "{" not in request_of(declared, **dict.fromkeys(NAMED, "x")).path


def test_the_application_has_no_route_that_is_not_declared() -> None:
    router = create_app(settings(), store=MemoryStore()).router
    of_paths: dict[str, set[str]] = {}
    for one in DECLARED.values():
        of_paths.setdefault(one.path, set()).add(one.operation.method.value)
    # What is allowed at a path, and at any path that begins or goes on as one, is what is declared there.
    for path in {"/".join(path.split("/")[:end]) for path in of_paths for end in range(1, 12)} | {"/none"}:
        if path in of_paths:
            assert {*router.allowed(path).split(", ")} - {"OPTIONS", "HEAD"} == of_paths[path]
        else:
            with pytest.raises(PathUnknown):
                router.allowed(path)


def test_exactly_five_routes_are_public_and_one_of_them_asks_for_a_signed_token(world: World) -> None:
    signed = "/v1/artifact-urls/{token}"
    public = {"/livez", "/readyz", "/docs", "/openapi.json", signed}
    assert {one.path for one in DECLARED.values() if one.operation.public} == public
    with world.tenancy.client(None) as client:
        for one in DECLARED.values():
            answer = client.request(one.operation.method.value, path_of(one))
            if one.path == signed:
                assert_problem(answer, 403, "artifact-url-invalid")
                continue
            assert (answer.status_code == 200) == (one.path in public), one.path
            if one.path not in public:
                assert_problem(answer, 401, "unauthenticated")
                assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("public", ["livez", "readyz", "docs", "openapi.json"])
@pytest.mark.parametrize("path", ["/v1/threads/{}", "/v1/threads/{}/checkpoints", "/v1/threads/t/checkpoints/{}"])
def test_an_id_that_looks_like_a_public_path_opens_nothing(world: World, public: str, path: str) -> None:
    with world.tenancy.client(None) as client:
        for spelling in ("//v1/threads", "/v1//threads", "/v1/threads/", f"/{public}/%2E%2E/v1/threads"):
            assert client.get(spelling).status_code == 404
        for spelling, status in ((public, 401), (f"%2F{public}", 404), (f"{public}%3F", 401)):
            assert client.get(path.format(spelling)).status_code == status


@pytest.mark.parametrize("path", sorted({one.path for one in DECLARED.values()}))
def test_every_other_method_is_refused_without_a_word_about_data(world: World, path: str) -> None:
    here = [one for one in DECLARED.values() if one.path == path]
    allowed = {one.operation.method.value for one in here}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    with world.tenancy.client(world.owner_key) as client:
        for method in sorted({"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "TRACE"} - allowed):
            answer = client.request(method, path_of(here[0]))
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) == allowed | {"OPTIONS"}
            if method != "HEAD":
                assert_problem(answer, 405, "method-not-allowed")


@pytest.mark.parametrize("path", sorted({one.path for one in DECLARED.values()}))
def test_options_tells_all_methods_of_a_path_to_everybody_and_nothing_else(world: World, path: str) -> None:
    here = [one for one in DECLARED.values() if one.path == path]
    allowed = {one.operation.method.value for one in here} | {"OPTIONS"}
    with world.tenancy.client(None) as client:
        answer = client.options(path_of(here[0]), headers={"Origin": "https://a.test"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert set(answer.headers["allow"].split(", ")) == allowed | ({"HEAD"} if "GET" in allowed else set())
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("name", [name for name, one in AUTHENTICATED.items() if one.operation.permission])
def test_a_key_without_the_permission_is_refused(world: World, name: str) -> None:
    declared = DECLARED[name]
    permission = declared.operation.permission
    # Who decides opens what is decided about, too.
    without = {permission, "approval:decide"} if permission == "approval:open" else {permission}
    service_key = world.key_of(None, *(one for one in EVERY if one not in without))
    with world.tenancy.client(world.owner_key) as owner:
        target = world.targets.pop(OWNER, None)
        if target is None:
            thread = save_thread(owner)
            target = Target(thread, _seen(owner, thread))
        thread = target.thread
        named = {"key_id": "k", "tenant_id": world.tenant_id, "subject_id": OWNER, "job_id": str(uuid4())}
        request = request_of(declared, thread, **named)
        with world.tenancy.client(service_key, OWNER) as client:
            problem = assert_problem(request.send(client), 403, "permission-denied")
        assert str(permission) in problem["detail"]
        if permission in SUBJECT_PERMISSIONS:
            subject_key = world.key_of(OWNER, *(one for one in SUBJECT_PERMISSIONS if one not in without))
            with world.tenancy.client(subject_key) as client:
                assert_problem(request.send(client), 403, "permission-denied")
        assert _seen(owner, thread) == target.seen
    world.targets[OWNER] = target


@pytest.mark.parametrize("name", OF_SUBJECTS)
def test_a_service_acts_for_nobody_without_permission_or_without_a_name(world: World, name: str) -> None:
    thread = Thread("t", "c", "w", "r")
    request = request_of(DECLARED[name], thread)
    with world.tenancy.client(world.key_of(None, *SUBJECT_PERMISSIONS), OWNER) as client:
        assert_problem(request.send(client), 403, "permission-denied")
    if DECLARED[name].operation.reach is INBOX:  # approvals are a tenant's for whoever names nobody
        return
    # Without tenant:admin, with which some operations list the whole tenant.
    with world.tenancy.client(world.key_of(None, *SUBJECT_PERMISSIONS, "subject:act_as")) as client:
        assert_problem(request.send(client), 400, "subject-required")


def test_a_cursor_is_worth_nothing_to_anybody_else(world: World) -> None:
    with world.tenancy.client(world.owner_key) as owner:
        for _ in range(2):
            save_thread(owner)
        pages = ["/v1/threads?limit=1", "/v1/checkpoints?limit=1"]
        cursors = [owner.get(page).json()["next_cursor"] for page in pages]
        for page, cursor in zip(pages, cursors, strict=True):
            assert owner.get(f"{page}&cursor={cursor}").status_code == 200
        assert_problem(owner.get(f"{pages[1]}&cursor={cursors[0]}"), 422)
        assert_problem(owner.get(f"{pages[1]}&agent=x&cursor={cursors[1]}"), 422)
    for stranger in STRANGERS_AT_HOME:
        caller = world.callers[stranger]
        with world.tenancy.client(caller.api_key, caller.subject) as client:
            for page, cursor in zip(pages, cursors, strict=True):
                problem = assert_problem(client.get(f"{page}&cursor={cursor}"), 422, "invalid-request")
                assert problem["errors"][0]["parameter"] == "cursor"


def test_a_revoked_key_stops_at_once_even_while_it_is_in_use(world: World) -> None:
    api_key = world.tenancy.key(world.service_key, OWNER)
    with world.tenancy.client(api_key) as client:
        assert client.get("/v1/threads").status_code == 200
        world.tenancy.revoke(world.service_key, api_key)
        assert_problem(client.get("/v1/threads"), 401, "unauthenticated")


def test_the_four_ways_a_key_can_be_wrong_look_alike(world: World) -> None:
    def shown(caller: Caller) -> Any:
        with world.tenancy.client(caller.api_key, None, **caller.headers) as client:
            answer = client.get("/v1/whoami", headers={"X-Request-Id": "same"})
        return answer.status_code, json.loads(answer.text), answer.headers["www-authenticate"]

    refusals = [shown(world.callers[name]) for name, status in REFUSED.items() if status == 401]
    assert all(refusal == refusals[0] for refusal in refusals)


async def test_racing_strangers_never_meet_the_owners_state(world: World) -> None:
    """Interleaved requests of many scopes on the same ids, over the same pool of connections."""
    scopes = [(world.service_key, f"racer-{number}") for number in range(6)]
    url = world.tenancy.gateway.url

    async def race(api_key: str, subject: str) -> None:
        headers = {"Authorization": f"Bearer {api_key}", "Stateroom-Subject": subject}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
            for step in range(8):
                body = {"state": {"who": subject, "step": step}}
                assert (await client.post("/v1/threads/shared-id/checkpoints", json=body)).status_code == 201
                loaded = (await client.get("/v1/threads/shared-id/checkpoints/latest")).json()
                assert loaded["state"] == {"who": subject, "step": step}
                history = (await client.get("/v1/checkpoints?view=state")).json()["checkpoints"]
                assert {found["state"]["who"] for found in history} == {subject}

    await asyncio.gather(*(race(*scope) for scope in scopes))


def test_the_request_without_a_body_is_still_authenticated_first(world: World) -> None:
    for declared in AUTHENTICATED.values():
        with world.tenancy.client(None) as client:
            answer = Request(declared.operation.method.value, path_of(declared)).send(client)
        assert_problem(answer, 401, "unauthenticated")
