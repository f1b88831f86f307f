"""The operations of API v1, one module for each group of resources."""

from litestar.handlers import HTTPRouteHandler

from gateway.routes import (
    admin,
    archives,
    artifacts,
    audit,
    checkpoints,
    decrypt,
    docs,
    health,
    keys,
    pieces,
    retention,
    save_policies,
    state_schemas,
    tenants,
    threads,
    transfer,
    verify,
)

V1: list[HTTPRouteHandler] = [
    *threads.ROUTES,
    *archives.ROUTES,
    *checkpoints.ROUTES,
    *artifacts.ROUTES,
    *pieces.ROUTES,
    *admin.ROUTES,
    *tenants.ROUTES,
    *audit.ROUTES,
    *verify.ROUTES,
    *keys.ROUTES,
    *decrypt.ROUTES,
    *retention.ROUTES,
    *save_policies.ROUTES,
    *state_schemas.ROUTES,
    *transfer.ROUTES,
]
PUBLIC: list[HTTPRouteHandler] = [*health.ROUTES, *docs.ROUTES]
