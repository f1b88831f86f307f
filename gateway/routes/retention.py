"""Retention policies of a tenant, its agents and its threads; what they would do; the operator's ceilings."""

from datetime import datetime
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import OPERATORS, SUBJECT, TENANT
from gateway.bodies.codec import decode_body
from gateway.http.exchange import Answer, path_id, path_uuid
from gateway.problems import InvalidRequest, MalformedBody, PermissionDenied
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage.errors import InvalidState, LimitExceeded, TenantNotFound
from storage.retention import planner as retention
from storage.retention.examining import Capped, Stored, TenantPolicies
from storage.retention.policies import ThreadRetention
from storage.retention.preview import PreviewPage
from storage.retention.rounds import RoundStatus
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
        agents=[name for name, each in policies.agents.items() if each.policy != retention.NO_POLICY],
        damaged=[
            wire.retention.DamagedRetention(level=level, agent=target or None)  # type: ignore[arg-type]  # as the table allows
            for level, target in sorted(policies.damaged)
        ],
        updated_at=stored.updated_at,
    )


def _thread_retention(thread_id: str, retained: ThreadRetention) -> wire.retention.ThreadRetention:
    step = retained.next
    return wire.retention.ThreadRetention(
        thread_id=thread_id,
        policy=_as(wire.retention.RetentionPolicy, retained.own.policy),
        effective=None if retained.effective is None else _effective(retained.effective),
        damaged=retained.damaged,
        next=None if step is None else wire.retention.RetentionStep.of(step),
        updated_at=retained.own.updated_at,
    )


@Operation(
    "GET /v1/retention",
    reach=TENANT,
    summary="What is said of how long threads are kept: for the tenant, or for an agent.",
    permission="tenant:admin",
    query=RetentionQuery,
    returns=wire.retention.Retention,
)
async def get_retention(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(RetentionQuery)
    return call.exchange.reply(_retention(await call.store.retention_policies.get(call.scope), query.agent))


@Operation(
    "PUT /v1/retention",
    reach=TENANT,
    summary="Say how long threads are kept, for the tenant or for an agent. It replaces what was said there; a "
    "legal hold stays unless it is mentioned.",
    permission="tenant:admin",
    body=wire.retention.RetentionPolicy,
    query=RetentionQuery,
    returns=wire.retention.Retention,
    problems=("conflict", "feature-off", "commit-unknown"),
)
async def put_retention(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(RetentionQuery)
    request, _, _ = await call.exchange.body(wire.retention.RetentionPolicy)
    policy = _as(retention.Policy, request)
    work = call.store.retention_policies.put(call.scope, query.agent, policy, call.actor)
    return call.exchange.reply(_retention(await call.commit(work), query.agent))


@Operation(
    "GET /v1/threads/{thread_id}/retention",
    reach=SUBJECT,
    summary="What holds for a thread, and what becomes of it next.",
    permission="state:read",
    returns=wire.retention.ThreadRetention,
    problems=("thread-not-found",),
)
async def get_thread_retention(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    return call.exchange.reply(
        _thread_retention(name, await call.store.retention_policies.get_thread(call.scope, name))
    )


@Operation(
    "PUT /v1/threads/{thread_id}/retention",
    reach=SUBJECT,
    summary="Say how long one thread is kept. What can remove state also takes state:delete, and a legal hold "
    "tenant:admin.",
    permission="state:write",
    body=wire.retention.RetentionPolicy,
    returns=wire.retention.ThreadRetention,
    problems=("thread-not-found", "thread-busy", "feature-off", "commit-unknown"),
)
async def put_thread_retention(call: Call[Scope], thread_id: str) -> Answer:
    name = path_id(thread_id, "thread_id")
    request, _, _ = await call.exchange.body(wire.retention.RetentionPolicy)
    policy = _as(retention.Policy, request)
    if policy.legal_hold is not None and "tenant:admin" not in call.principal.permissions:
        raise PermissionDenied("a legal hold takes the permission tenant:admin")
    may_delete = "state:delete" in call.principal.permissions
    supersede = may_delete and "tenant:admin" in call.principal.permissions

    def check(before: retention.Effective, after: retention.Effective) -> None:
        # Taking a thread's own policy back can remove state, too, by what is said above it.
        if not may_delete and retention.removes_sooner(before, after):
            raise PermissionDenied("a policy that can remove state takes the permission state:delete")

    if retention.removes(policy) and not may_delete:
        raise PermissionDenied("a policy that can remove state takes the permission state:delete")
    work = call.store.retention_policies.put_thread(
        call.scope, name, policy, call.actor, check=None if may_delete else check, supersede=supersede
    )
    return call.exchange.reply(_thread_retention(name, await call.services.write(call.scope, name, work)))


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
    actions = [
        wire.retention.RetentionForeseen.of(foreseen, action=action)
        for action, foreseen in sorted(page.actions.items())
    ]
    return wire.retention.RetentionPreview.of(page, at=page.now, actions=actions, next_cursor=cursor)


@Operation(
    "GET /v1/retention/preview",
    reach=TENANT,
    summary="What would happen now, to how many threads and bytes, by what is said or by a draft. Changes nothing.",
    permission="tenant:admin",
    query=PreviewQuery,
    returns=wire.retention.RetentionPreview,
)
async def preview_retention(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(PreviewQuery)
    if query.agent is not None and query.draft is None:
        raise InvalidRequest(
            Fault(detail="says whose draft it is; without a draft it means nothing", parameter="agent")
        )
    draft = _draft(query)
    cursor = call.cursor(query.cursor, call.scope.tenant_id, query.agent, query.draft)
    after = cursor.after
    try:
        page = await call.store.retention_preview.page(
            call.scope,
            now=None if after is None else datetime.fromisoformat(after[0]),
            after=None if after is None else (after[1], after[2]),
            draft=draft,
            rows=query.limit,
        )
    except InvalidState as error:  # it was not in the body
        raise InvalidRequest(Fault(detail=f"{error.pointer}: {error}", parameter="draft")) from None
    following = None if page.next is None else (page.now.isoformat(), *page.next)
    return call.exchange.reply(_preview(page, cursor.next(following)))


@Operation(
    "GET /v1/retention/round",
    reach=TENANT,
    summary="How far the round is that acts on what is said, and what the last one left.",
    permission="tenant:admin",
    returns=wire.retention.RetentionRound,
)
async def get_retention_round(call: Call[TenantScope]) -> Answer:
    return call.exchange.reply(_round(await call.store.retaining.status(call.scope)))


@Operation(
    "POST /v1/retention/round",
    reach=TENANT,
    summary="Have the round begin as soon as a process is free, instead of when it is due.",
    permission="tenant:admin",
    returns=wire.retention.RetentionRound,
    statuses=(202,),
    problems=("commit-unknown",),
)
async def begin_retention_round(call: Call[TenantScope]) -> Answer:
    status = await call.commit(call.store.retaining.begin(call.scope))
    return call.exchange.reply(_round(status), status=202)


def _round(status: RoundStatus | None) -> wire.retention.RetentionRound:
    if status is None:
        return wire.retention.RetentionRound(state="none")
    counts = status.counts
    by_action: dict[str, dict[str, int]] = {
        what: {action: counts[name] for action in retention.ACTIONS if (name := f"{what}_{action}") in counts}
        for what in ("done", "due")
    }
    return wire.retention.RetentionRound.of(
        status,
        hot=counts.get("hot", 0),
        archive=counts.get("archive", 0),
        held=counts.get("held", 0),
        done=by_action["done"],
        due=by_action["due"],
        over_quota=counts.get("over_quota", 0),
    )


def _ceilings(tenant_id: UUID, capped: Capped) -> wire.retention.TenantRetentionCeilings:
    return wire.retention.TenantRetentionCeilings(
        tenant_id=str(tenant_id),
        ceilings=_as(wire.retention.RetentionCeilings, capped.ceilings),
        updated_at=capped.updated_at,
    )


@Operation(
    "GET /v1/admin/tenants/{tenant_id}/retention-ceilings",
    reach=OPERATORS,
    summary="How long a tenant may keep threads at most.",
    permission="operator",
    returns=wire.retention.TenantRetentionCeilings,
    problems=("not-found",),
)
async def get_retention_ceilings(call: Call[OperatorScope], tenant_id: str) -> Answer:
    wanted = path_uuid(tenant_id, TenantNotFound)
    return call.exchange.reply(_ceilings(wanted, await call.store.retention_policies.ceilings(wanted)))


@Operation(
    "PUT /v1/admin/tenants/{tenant_id}/retention-ceilings",
    reach=OPERATORS,
    summary="Say how long a tenant may keep threads at most. What is beyond it is due at once.",
    permission="operator",
    body=wire.retention.RetentionCeilings,
    returns=wire.retention.TenantRetentionCeilings,
    problems=("not-found", "feature-off", "commit-unknown"),
)
async def put_retention_ceilings(call: Call[OperatorScope], tenant_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.retention.RetentionCeilings)
    wanted = path_uuid(tenant_id, TenantNotFound)
    ceilings = _as(retention.Ceilings, request)
    work = call.store.retention_policies.set_ceilings(wanted, ceilings, call.actor)
    return call.exchange.reply(_ceilings(wanted, await call.commit(work)))
