"""The operations of API v1, by the domains of storage."""

from types import ModuleType

from gateway.routes import archive, artifacts, events, keys, retention, threads, trajectories, transfer, verification
from gateway.routes.administration import audit, break_glass, credentials, tenants
from gateway.routes.checkpoints import pieces, verbs
from gateway.routes.items import vector_policies
from gateway.routes.items import verbs as items
from gateway.routes.public import docs, health
from gateway.routes.schemas import registry, save_policies
from gateway.routes.thread_ledgers import approval_policies, approvals, claims, effects
from gateway.routing.operations import Route


def _of(module: ModuleType) -> list[Route]:
    """The routes that a module defines, in their order."""
    return [each for each in vars(module).values() if isinstance(each, Route)]


GROUPS: dict[str, list[Route]] = {
    "threads": _of(threads),
    "archives": _of(archive),
    "checkpoints": _of(verbs),
    "artifacts": _of(artifacts),
    "pieces": _of(pieces),
    "claims": _of(claims),
    "effects": _of(effects),
    "items": _of(items),
    "events": _of(events),
    "approvals": _of(approvals),
    "approval_policies": _of(approval_policies),
    "admin": _of(credentials),
    "tenants": _of(tenants),
    "audit": audit.ROUTES,
    "verify": _of(verification),
    "keys": _of(keys),
    "decrypt": _of(break_glass),
    "retention": _of(retention),
    "save_policies": _of(save_policies),
    "vector_policies": _of(vector_policies),
    "state_schemas": _of(registry),
    "transfer": _of(transfer),
    "trajectories": _of(trajectories),
    "health": _of(health),
    "docs": _of(docs),
}
"""Every operation, by its group in the documentation."""
