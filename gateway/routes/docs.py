"""The documentation of the API, from this process alone: no CDN, no script."""

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod

from gateway.documentation import Documentation
from gateway.operations import Operation, route

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@route(
    Operation(
        name="openapi",
        method=HttpMethod.GET,
        path="/openapi.json",
        summary="This document.",
        public=True,
    )
)
async def openapi(documentation: NamedDependency[Documentation]) -> Response[bytes]:
    """Give the OpenAPI document."""
    return Response(documentation.openapi, media_type="application/json")


@route(
    Operation(
        name="docs",
        method=HttpMethod.GET,
        path="/docs",
        summary="The API as a page to read.",
        public=True,
        media_type="text/html",
    )
)
async def docs(documentation: NamedDependency[Documentation]) -> Response[bytes]:
    """Give the page."""
    return Response(
        documentation.page,
        media_type="text/html",
        headers={"content-security-policy": _POLICY, "referrer-policy": "no-referrer"},
    )


ROUTES = [openapi, docs]
