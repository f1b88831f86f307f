"""Save policies: a tenant asks every save, or those of an agent, to name the head it follows.

A thread asks for itself with ``strict`` of its settings; storage has the rule.
"""

from msgspec import Struct

from gateway import wire
from gateway.authentication.principals import TENANT
from gateway.http.exchange import Answer
from gateway.routing.operations import Call, Operation
from storage.schemas.save_policies import TenantSavePolicies
from storage.scope import TenantScope


class SavePolicyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose policy: an agent's, or without one the tenant's."""

    agent: wire.base.Name | None = None


def _shown(policies: TenantSavePolicies, agent: str | None) -> wire.retention.SavePolicies:
    here = policies.of(agent)
    return wire.retention.SavePolicies(
        agent=agent,
        policy=wire.retention.SavePolicy(strict=here.strict),
        strict=policies.effective(agent),
        agents=[*policies.agents],
        damaged=[name or None for name in sorted(policies.damaged)],
        updated_at=here.updated_at,
    )


@Operation(
    "GET /v1/save-policy",
    reach=TENANT,
    summary="Whether saves must name the head they follow: of the tenant, or of an agent.",
    permission="tenant:admin",
    query=SavePolicyQuery,
    returns=wire.retention.SavePolicies,
)
async def get_save_policy(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(SavePolicyQuery)
    return call.exchange.reply(_shown(await call.store.save_policies.get(call.scope), query.agent))


@Operation(
    "PUT /v1/save-policy",
    reach=TENANT,
    summary="Say whether saves must name the head they follow, for the tenant or for an agent. It replaces what was"
    " said there, and holds for every save that begins after the answer.",
    permission="tenant:admin",
    body=wire.retention.SavePolicy,
    query=SavePolicyQuery,
    returns=wire.retention.SavePolicies,
    problems=("conflict", "feature-off", "commit-unknown"),
)
async def put_save_policy(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(SavePolicyQuery)
    request, _, _ = await call.exchange.body(wire.retention.SavePolicy)
    work = call.store.save_policies.put(call.scope, query.agent, request.strict, call.actor)
    return call.exchange.reply(_shown(await call.commit(work), query.agent))
