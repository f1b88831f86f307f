"""The operations of API v1, one module for each group of resources."""

from litestar.handlers import HTTPRouteHandler

from gateway.routes import (
    admin,
    artifacts,
    audit,
    checkpoints,
    decrypt,
    docs,
    health,
    keys,
    pieces,
    state_schemas,
    threads,
    verify,
)

V1: list[HTTPRouteHandler] = [
    *threads.ROUTES,
    *checkpoints.ROUTES,
    *artifacts.ROUTES,
    *pieces.ROUTES,
    *admin.ROUTES,
    *audit.ROUTES,
    *verify.ROUTES,
    *keys.ROUTES,
    *decrypt.ROUTES,
    *state_schemas.ROUTES,
]
PUBLIC: list[HTTPRouteHandler] = [*health.ROUTES, *docs.ROUTES]
