"""Save policies: a tenant asks saves to name the head they follow, and has them told of lists that are long.

A thread asks for the former by itself with ``strict`` of its settings; storage has the rule.
"""

from dataclasses import asdict

from msgspec import Struct

from gateway import wire
from gateway.authentication.principals import TENANT
from gateway.http.exchange import Answer
from gateway.routing.operations import Call, Operation
from storage.model import SaveRule
from storage.schemas.save_policies import TenantSavePolicies
from storage.scope import TenantScope


class SavePolicyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose policy: an agent's, or without one the tenant's."""

    agent: wire.base.Name | None = None


def _shown(policies: TenantSavePolicies, agent: str | None) -> wire.retention.SavePolicies:
    here, effective = policies.of(agent), policies.effective(agent)
    return wire.retention.SavePolicies(
        agent=agent,
        policy=wire.retention.SavePolicy(**asdict(here.rule)),
        **asdict(effective),
        agents=[*policies.agents],
        damaged=[name or None for name in sorted(policies.damaged)],
        updated_at=here.updated_at,
    )


@Operation(
    "GET /v1/save-policy",
    reach=TENANT,
    summary="What is asked of saves: of the tenant's, or of those of an agent.",
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
    summary="Say whether saves must name the head they follow, and when lists need compaction, for the tenant or for an"
    " agent. It replaces what was said there, and holds for every save that begins after the answer.",
    permission="tenant:admin",
    body=wire.retention.SavePolicy,
    query=SavePolicyQuery,
    returns=wire.retention.SavePolicies,
    problems=("conflict", "feature-off", "commit-unknown"),
)
async def put_save_policy(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(SavePolicyQuery)
    request, _, _ = await call.exchange.body(wire.retention.SavePolicy)
    rule = SaveRule(request.strict, request.compact_elements, request.compact_bytes)
    work = call.store.save_policies.put(call.scope, query.agent, rule, call.actor)
    return call.exchange.reply(_shown(await call.commit(work), query.agent))
