"""Vector policies: a tenant accepts that vectors of its items are in clear in the database, or takes that back."""

from gateway import wire
from gateway.authentication.principals import TENANT
from gateway.http.exchange import Answer
from gateway.routing.operations import Call, Operation
from storage.clear_vectors.policies import VectorPolicy
from storage.scope import TenantScope


def _shown(policy: VectorPolicy) -> wire.vector_policies.VectorPolicy:
    return wire.vector_policies.VectorPolicy(
        vectors=policy.vectors,
        accepted_leakage="content" if policy.accepted else None,
        complete=policy.complete,
        damaged=policy.damaged,
        updated_at=policy.updated_at,
    )


@Operation(
    "GET /v1/vector-policy",
    reach=TENANT,
    summary="Where the vectors of the tenant's items are kept.",
    permission="tenant:admin",
    returns=wire.vector_policies.VectorPolicy,
)
async def get_vector_policy(call: Call[TenantScope]) -> Answer:
    return call.exchange.reply(_shown(await call.store.vector_policies.get(call.scope)))


@Operation(
    "PUT /v1/vector-policy",
    reach=TENANT,
    summary="Say where the vectors of the tenant's items are kept: sealed, or in clear, too, for who accepts that"
    " their content can be read out of the database. It holds for every write that begins after the answer; a job"
    " brings along what is there already.",
    permission="tenant:admin",
    body=wire.vector_policies.VectorPolicyChange,
    returns=wire.vector_policies.VectorPolicy,
    problems=("clear-vectors-unavailable", "feature-off", "leakage-not-accepted", "commit-unknown"),
)
async def put_vector_policy(call: Call[TenantScope]) -> Answer:
    request, _, _ = await call.exchange.body(wire.vector_policies.VectorPolicyChange)
    work = call.store.vector_policies.put(call.scope, request.vectors, request.accept_leakage or "", call.actor)
    return call.exchange.reply(_shown(await call.commit(work)))
