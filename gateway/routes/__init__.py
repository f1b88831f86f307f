"""The operations of API v1, by the domains of storage."""

from gateway.routes import archive, artifacts, keys, retention, threads, transfer, verification
from gateway.routes.administration import audit, break_glass, credentials, tenants
from gateway.routes.checkpoints import pieces, verbs
from gateway.routes.public import docs, health
from gateway.routes.schemas import registry, save_policies
from gateway.routing.operations import Route

GROUPS: dict[str, list[Route]] = {
    "threads": threads.ROUTES,
    "archives": archive.ROUTES,
    "checkpoints": verbs.ROUTES,
    "artifacts": artifacts.ROUTES,
    "pieces": pieces.ROUTES,
    "admin": credentials.ROUTES,
    "tenants": tenants.ROUTES,
    "audit": audit.ROUTES,
    "verify": verification.ROUTES,
    "keys": keys.ROUTES,
    "decrypt": break_glass.ROUTES,
    "retention": retention.ROUTES,
    "save_policies": save_policies.ROUTES,
    "state_schemas": registry.ROUTES,
    "transfer": transfer.ROUTES,
    "health": health.ROUTES,
    "docs": docs.ROUTES,
}
"""Every operation, by its group in the documentation."""
