"""Retention policies of a tenant, its agents and its threads; what they would do; the operator's ceilings."""

from datetime import datetime
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import Principal
from gateway.bodies.codec import decode_body
from gateway.http.exchange import Exchange, path_id, path_uuid
from gateway.problems import InvalidRequest, MalformedBody, PermissionDenied
from gateway.routing.operations import Operation, route
from gateway.services import Services
from gateway.wire.problems import Fault
from storage.encoding import encode_msgpack
from storage.errors import InvalidState, LimitExceeded, TenantNotFound
from storage.retention import planner as retention
from storage.retention.policies import Capped, PreviewPage, Stored, TenantPolicies, ThreadRetention
from storage.retention.rounds import RoundStanding
from storage.scope import OperatorScope, Scope, TenantScope

# Threads of one page of a preview: it is cut shorter when thinning has to open much.
PREVIEW_THREADS_DEFAULT = 500

T = TypeVar("T")


class RetentionQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose policy: an agent's, or without one the tenant's."""

    agent: wire.base.Name | None = None


class PreviewQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to preview: what is said now, or ``draft`` (a policy as JSON) for the tenant or for ``agent`` instead."""

    draft: Annotated[str, Meta(max_length=4096)] | None = None
    agent: wire.base.Name | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = PREVIEW_THREADS_DEFAULT
    cursor: str | None = None


def _as(shape: type[T], value: object) -> T:
    """The same, as another package's shape: the fields have the same names."""
    return msgspec.convert(msgspec.to_builtins(value), shape)


def _effective(policy: retention.Effective) -> wire.retention.EffectiveRetention:
    return _as(wire.retention.EffectiveRetention, policy)


def _retention(policies: TenantPolicies, agent: str | None) -> wire.retention.Retention:
    stored = policies.tenant if agent is None else policies.agents.get(agent, Stored())
    return wire.retention.Retention(
        agent=agent,
        policy=_as(wire.retention.RetentionPolicy, stored.policy),
        effective=None if policies.damages(agent) else _effective(policies.effective(agent)),
        ceilings=_as(wire.retention.RetentionCeilings, policies.capped.ceilings),
        agents=[name for name, each in policies.agents.items() if each.policy != retention.NOTHING_SAID],
        damaged=[
            wire.retention.DamagedRetention(level=level, agent=target or None)  # type: ignore[arg-type]  # as the table allows
            for level, target in sorted(policies.damaged)
        ],
        updated_at=stored.updated_at,
    )


def _thread_retention(thread_id: str, found: ThreadRetention) -> wire.retention.ThreadRetention:
    step = found.next
    return wire.retention.ThreadRetention(
        thread_id=thread_id,
        policy=_as(wire.retention.RetentionPolicy, found.own.policy),
        effective=None if found.effective is None else _effective(found.effective),
        damaged=found.damaged,
        next=None if step is None else wire.retention.RetentionStep(action=step.action, reason=step.reason, at=step.at),
        updated_at=found.own.updated_at,
    )


@route(
    Operation(
        name="get_retention",
        method=HttpMethod.GET,
        path="/retention",
        summary="What is said of how long threads are kept: for the tenant, or for an agent.",
        permission="tenant:admin",
        query=RetentionQuery,
        returns=wire.retention.Retention,
    )
)
async def get_retention(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Show a policy."""
    query = exchange.query(RetentionQuery)
    return exchange.reply(_retention(await services.store.retention_policies.get(tenant_scope), query.agent))


@route(
    Operation(
        name="put_retention",
        method=HttpMethod.PUT,
        path="/retention",
        summary="Say how long threads are kept, for the tenant or for an agent. It replaces what was said there; a "
        "legal hold stays unless it is mentioned.",
        permission="tenant:admin",
        body=wire.retention.RetentionPolicy,
        query=RetentionQuery,
        returns=wire.retention.Retention,
        problems=("conflict", "commit-unknown"),
    )
)
async def put_retention(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Set a policy."""
    query = exchange.query(RetentionQuery)
    request, _, _ = await exchange.body(wire.retention.RetentionPolicy)
    policy = _as(retention.Policy, request)
    work = services.store.retention_policies.put(tenant_scope, query.agent, policy, principal.actor)
    return exchange.reply(_retention(await services.commits.run(work), query.agent))


@route(
    Operation(
        name="get_thread_retention",
        method=HttpMethod.GET,
        path="/threads/{thread_id:str}/retention",
        summary="What holds for a thread, and what becomes of it next.",
        permission="state:read",
        returns=wire.retention.ThreadRetention,
        problems=("thread-not-found",),
        subject=True,
    )
)
async def get_thread_retention(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Show what holds for a thread."""
    exchange.no_query()
    name = path_id(thread_id, "thread_id")
    return exchange.reply(
        _thread_retention(name, await services.store.retention_policies.get_thread(subject_scope, name))
    )


@route(
    Operation(
        name="put_thread_retention",
        method=HttpMethod.PUT,
        path="/threads/{thread_id:str}/retention",
        summary="Say how long one thread is kept. What can remove state also takes state:delete, and a legal hold "
        "tenant:admin.",
        permission="state:write",
        body=wire.retention.RetentionPolicy,
        returns=wire.retention.ThreadRetention,
        problems=("thread-not-found", "thread-busy", "commit-unknown"),
        subject=True,
    )
)
async def put_thread_retention(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Set a thread's policy."""
    exchange.no_query()
    name = path_id(thread_id, "thread_id")
    request, _, _ = await exchange.body(wire.retention.RetentionPolicy)
    policy = _as(retention.Policy, request)
    if policy.legal_hold is not None and "tenant:admin" not in principal.permissions:
        raise PermissionDenied("a legal hold takes the permission tenant:admin")
    may_delete = "state:delete" in principal.permissions
    supersede = may_delete and "tenant:admin" in principal.permissions

    def check(before: retention.Effective, after: retention.Effective) -> None:
        # Taking a thread's own policy back can remove state, too, by what is said above it.
        if not may_delete and retention.removes_sooner(before, after):
            raise PermissionDenied("a policy that can remove state takes the permission state:delete")

    if retention.removes(policy) and not may_delete:
        raise PermissionDenied("a policy that can remove state takes the permission state:delete")
    work = services.store.retention_policies.put_thread(
        subject_scope, name, policy, principal.actor, check=None if may_delete else check, supersede=supersede
    )
    return exchange.reply(_thread_retention(name, await services.write(subject_scope, name, work)))


def _draft(query: PreviewQuery) -> tuple[str | None, retention.Policy] | None:
    if query.draft is None:
        return None
    try:
        return query.agent, _as(
            retention.Policy, decode_body("json", query.draft.encode(), wire.retention.RetentionPolicy)
        )
    except (MalformedBody, LimitExceeded):
        raise InvalidRequest(Fault(detail="must be a policy as JSON", parameter="draft")) from None
    except InvalidRequest as error:
        faults = (Fault(detail=f"is no policy: {each.detail}", parameter="draft") for each in error.faults)
        raise InvalidRequest(*faults, limit=error.limit) from None


def _preview(page: PreviewPage, cursor: str | None) -> wire.retention.RetentionPreview:
    return wire.retention.RetentionPreview(
        at=page.now,
        threads=page.threads,
        held=page.held,
        damaged=page.damaged,
        actions=[
            wire.retention.RetentionForeseen(
                action=action,
                threads=found.threads,
                bytes=found.bytes,
                checkpoints=found.checkpoints,
                pending_writes=found.pending_writes,
            )
            for action, found in sorted(page.actions.items())
        ],
        next_cursor=cursor,
    )


@route(
    Operation(
        name="preview_retention",
        method=HttpMethod.GET,
        path="/retention/preview",
        summary="What would happen now, to how many threads and bytes, by what is said or by a draft. Changes nothing.",
        permission="tenant:admin",
        query=PreviewQuery,
        returns=wire.retention.RetentionPreview,
    )
)
async def preview_retention(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Preview a round."""
    query = exchange.query(PreviewQuery)
    if query.agent is not None and query.draft is None:
        raise InvalidRequest(
            Fault(detail="says whose draft it is; without a draft it means nothing", parameter="agent")
        )
    draft = _draft(query)
    binding = encode_msgpack((exchange.route, tenant_scope.tenant_id, query.agent, query.draft))
    after = services.cursors.read(binding, query.cursor)
    try:
        page = await services.store.retention_policies.preview(
            tenant_scope,
            now=None if after is None else datetime.fromisoformat(after[0]),
            after=None if after is None else (after[1], after[2]),
            draft=draft,
            rows=query.limit,
        )
    except InvalidState as error:  # it was not in the body
        raise InvalidRequest(Fault(detail=f"{error.pointer}: {error}", parameter="draft")) from None
    following = None if page.next is None else (page.now.isoformat(), *page.next)
    return exchange.reply(_preview(page, services.cursors.write(binding, following)))


@route(
    Operation(
        name="get_retention_round",
        method=HttpMethod.GET,
        path="/retention/round",
        summary="How far the round is that acts on what is said, and what the last one left.",
        permission="tenant:admin",
        returns=wire.retention.RetentionRound,
    )
)
async def get_retention_round(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Show the round."""
    exchange.no_query()
    return exchange.reply(_round(await services.store.retaining.standing(tenant_scope)))


@route(
    Operation(
        name="begin_retention_round",
        method=HttpMethod.POST,
        path="/retention/round",
        summary="Have the round begin as soon as a process is free, instead of when it is due.",
        permission="tenant:admin",
        returns=wire.retention.RetentionRound,
        statuses=(202,),
        problems=("commit-unknown",),
    )
)
async def begin_retention_round(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Begin the round."""
    exchange.no_query()
    found = await services.commits.run(services.store.retaining.begin(tenant_scope))
    return exchange.reply(_round(found), status=202)


def _round(found: RoundStanding | None) -> wire.retention.RetentionRound:
    if found is None:
        return wire.retention.RetentionRound(state="none")
    counts = found.counts
    by_action: dict[str, dict[str, int]] = {
        what: {action: counts[name] for action in retention.ACTIONS if (name := f"{what}_{action}") in counts}
        for what in ("done", "due")
    }
    return wire.retention.RetentionRound(
        state=found.state,
        lease_until=found.lease_until,
        due_at=found.due_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
        looked_at=found.looked_at,
        hot=counts.get("hot", 0),
        archive=counts.get("archive", 0),
        held=counts.get("held", 0),
        done=by_action["done"],
        due=by_action["due"],
        late_since=found.late_since,
    )


def _ceilings(tenant_id: UUID, capped: Capped) -> wire.retention.TenantRetentionCeilings:
    return wire.retention.TenantRetentionCeilings(
        tenant_id=str(tenant_id),
        ceilings=_as(wire.retention.RetentionCeilings, capped.ceilings),
        updated_at=capped.updated_at,
    )


@route(
    Operation(
        name="get_retention_ceilings",
        method=HttpMethod.GET,
        path="/admin/tenants/{tenant_id:str}/retention-ceilings",
        summary="How long a tenant may keep threads at most.",
        permission="operator",
        returns=wire.retention.TenantRetentionCeilings,
        problems=("not-found",),
    )
)
async def get_retention_ceilings(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  so that it is checked and noted who asks
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Show ceilings."""
    exchange.no_query()
    wanted = path_uuid(tenant_id, TenantNotFound)
    return exchange.reply(_ceilings(wanted, await services.store.retention_policies.ceilings(wanted)))


@route(
    Operation(
        name="put_retention_ceilings",
        method=HttpMethod.PUT,
        path="/admin/tenants/{tenant_id:str}/retention-ceilings",
        summary="Say how long a tenant may keep threads at most. What is beyond it is due at once.",
        permission="operator",
        body=wire.retention.RetentionCeilings,
        returns=wire.retention.TenantRetentionCeilings,
        problems=("not-found", "commit-unknown"),
    )
)
async def put_retention_ceilings(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    operator_scope: NamedDependency[OperatorScope],  # noqa: ARG001  so that it is checked and noted who asks
    tenant_id: FromPath[str],
) -> Response[bytes]:
    """Set ceilings."""
    exchange.no_query()
    request, _, _ = await exchange.body(wire.retention.RetentionCeilings)
    wanted = path_uuid(tenant_id, TenantNotFound)
    ceilings = _as(retention.Ceilings, request)
    work = services.store.retention_policies.set_ceilings(wanted, ceilings, principal.actor)
    return exchange.reply(_ceilings(wanted, await services.commits.run(work)))


ROUTES = [
    get_retention,
    put_retention,
    preview_retention,
    get_retention_round,
    begin_retention_round,
    get_thread_retention,
    put_thread_retention,
    get_retention_ceilings,
    put_retention_ceilings,
]
