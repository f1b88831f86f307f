"""Approval policies: what a tenant asks of approvals, of all or of an agent or a tool; storage has the rule."""

from dataclasses import asdict

import msgspec
from msgspec import Struct

from gateway.authentication.principals import TENANT
from gateway.http.exchange import Answer
from gateway.routing.operations import Call, Operation
from gateway.wire import base
from gateway.wire.thread_ledgers import approval_policies as wire
from storage.approvals import model
from storage.scope import TenantScope


class ApprovalPolicyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose policy: a tool's of an agent, an agent's, a tool's, or without both the tenant's."""

    agent: base.Name | None = None
    tool: base.Name | None = None


def _shown(entries: list[model.PolicyEntry]) -> wire.ApprovalPolicies:
    return wire.ApprovalPolicies(
        policies=[
            wire.ApprovalPolicyEntry.of(
                each, policy=None if each.policy is None else wire.ApprovalPolicy(**asdict(each.policy))
            )
            for each in entries
        ]
    )


@Operation(
    "GET /v1/approval-policies",
    reach=TENANT,
    summary="What the tenant asks of approvals, by agent and tool.",
    permission="tenant:admin",
    returns=wire.ApprovalPolicies,
)
async def list_approval_policies(call: Call[TenantScope]) -> Answer:
    return call.exchange.reply(_shown(await call.store.approval_policies.list(call.scope)), compressed=True)


@Operation(
    "PUT /v1/approval-policies",
    reach=TENANT,
    summary="Say what is asked of approvals: of a tool of an agent, of an agent, of a tool, or of all. It replaces "
    "what was said there, and holds for what is asked from then on.",
    permission="tenant:admin",
    body=wire.ApprovalPolicy,
    query=ApprovalPolicyQuery,
    returns=wire.ApprovalPolicies,
    problems=("conflict", "feature-off", "commit-unknown"),
)
async def put_approval_policy(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(ApprovalPolicyQuery)
    request, _, _ = await call.exchange.body(wire.ApprovalPolicy)
    policy = model.ApprovalPolicy(**msgspec.structs.asdict(request))
    work = call.store.approval_policies.put(call.scope, query.agent, query.tool, policy, call.actor)
    return call.exchange.reply(_shown(await call.commit(work)))


@Operation(
    "DELETE /v1/approval-policies",
    reach=TENANT,
    summary="Take back what was said there; the next less specific policy holds for what is asked from then on.",
    permission="tenant:admin",
    query=ApprovalPolicyQuery,
    returns=wire.ApprovalPolicies,
    problems=("feature-off", "commit-unknown"),
)
async def delete_approval_policy(call: Call[TenantScope]) -> Answer:
    query = call.exchange.query(ApprovalPolicyQuery)
    work = call.store.approval_policies.put(call.scope, query.agent, query.tool, None, call.actor)
    return call.exchange.reply(_shown(await call.commit(work)))
