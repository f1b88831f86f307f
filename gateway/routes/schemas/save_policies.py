"""Save policies: a tenant asks every save, or those of an agent, to name the head it follows.

A thread asks for itself with ``strict`` of its settings; storage has the rule.
"""

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from msgspec import Struct

from gateway import wire
from gateway.authentication.principals import Principal
from gateway.http.exchange import Exchange
from gateway.routing.operations import Operation, route
from gateway.services import Services
from storage.schemas.save_policies import TenantSavePolicies
from storage.scope import TenantScope


class SavePolicyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose policy: an agent's, or without one the tenant's."""

    agent: wire.base.Name | None = None


def _shown(said: TenantSavePolicies, agent: str | None) -> wire.retention.SavePolicies:
    here = said.of(agent)
    return wire.retention.SavePolicies(
        agent=agent,
        policy=wire.retention.SavePolicy(strict=here.strict),
        strict=said.effective(agent),
        agents=[*said.agents],
        damaged=[name or None for name in sorted(said.damaged)],
        updated_at=here.updated_at,
    )


@route(
    Operation(
        name="get_save_policy",
        method=HttpMethod.GET,
        path="/save-policy",
        summary="Whether saves must name the head they follow: of the tenant, or of an agent.",
        permission="tenant:admin",
        query=SavePolicyQuery,
        returns=wire.retention.SavePolicies,
    )
)
async def get_save_policy(
    exchange: NamedDependency[Exchange], services: NamedDependency[Services], tenant_scope: NamedDependency[TenantScope]
) -> Response[bytes]:
    """Show a policy."""
    query = exchange.query(SavePolicyQuery)
    return exchange.reply(_shown(await services.store.save_policies.get(tenant_scope), query.agent))


@route(
    Operation(
        name="put_save_policy",
        method=HttpMethod.PUT,
        path="/save-policy",
        summary="Say whether saves must name the head they follow, for the tenant or for an agent. It replaces what was"
        " said there, and holds for every save that begins after the answer.",
        permission="tenant:admin",
        body=wire.retention.SavePolicy,
        query=SavePolicyQuery,
        returns=wire.retention.SavePolicies,
        problems=("conflict", "feature-off", "commit-unknown"),
    )
)
async def put_save_policy(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    principal: NamedDependency[Principal],
    tenant_scope: NamedDependency[TenantScope],
) -> Response[bytes]:
    """Set a policy."""
    query = exchange.query(SavePolicyQuery)
    request, _, _ = await exchange.body(wire.retention.SavePolicy)
    work = services.store.save_policies.put(tenant_scope, query.agent, request.strict, principal.actor)
    return exchange.reply(_shown(await services.commits.run(work), query.agent))


ROUTES = [get_save_policy, put_save_policy]
