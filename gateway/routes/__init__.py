"""The operations of API v1, one module for each group of resources."""

from litestar.handlers import HTTPRouteHandler

from gateway.routes import admin, checkpoints, docs, health, threads

V1: list[HTTPRouteHandler] = [*threads.ROUTES, *checkpoints.ROUTES, *admin.ROUTES]
PUBLIC: list[HTTPRouteHandler] = [*health.ROUTES, *docs.ROUTES]
