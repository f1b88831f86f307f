"""The operations of API v1, one module for each group of resources."""

from litestar.handlers import HTTPRouteHandler

from gateway.routes import admin, audit, checkpoints, docs, health, keys, threads, verify

V1: list[HTTPRouteHandler] = [
    *threads.ROUTES,
    *checkpoints.ROUTES,
    *admin.ROUTES,
    *audit.ROUTES,
    *verify.ROUTES,
    *keys.ROUTES,
]
PUBLIC: list[HTTPRouteHandler] = [*health.ROUTES, *docs.ROUTES]
