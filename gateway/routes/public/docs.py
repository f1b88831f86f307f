"""The documentation of the API, from this process alone: no CDN, no script."""

import functools
import hashlib
from typing import Any

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod

from gateway.http.artifact_headers import none_match
from gateway.http.compressing import accepts_gzip
from gateway.http.exchange import Answer, Facts
from gateway.routes.public.documentation import Documentation
from gateway.routing.operations import Operation, route

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@route(
    Operation(
        name="openapi",
        method=HttpMethod.GET,
        path="/openapi.json",
        summary="This document.",
        statuses=(200, 304),
        headers=("If-None-Match-Tag",),
        extra_headers=("ETag",),
        public=True,
    )
)
async def openapi(request: Request[Any, Any, Any], documentation: NamedDependency[Documentation]) -> Response[bytes]:
    """Give the OpenAPI document."""
    return _answer(request, documentation.openapi, b"application/json")


@route(
    Operation(
        name="docs",
        method=HttpMethod.GET,
        path="/docs",
        summary="The API as a page to read.",
        statuses=(200, 304),
        headers=("If-None-Match-Tag",),
        extra_headers=("ETag",),
        public=True,
        media_type="text/html",
    )
)
async def docs(request: Request[Any, Any, Any], documentation: NamedDependency[Documentation]) -> Response[bytes]:
    """Give the page."""
    return _answer(
        request,
        documentation.page,
        b"text/html; charset=utf-8",
        (b"content-security-policy", _POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
    )


def _answer(
    request: Request[Any, Any, Any], body: bytes, media_type: bytes, *headers: tuple[bytes, bytes]
) -> Response[bytes]:
    sent = Facts.of(request.scope).headers
    tag = _tag(body)
    common = [(b"vary", b"accept-encoding"), (b"etag", f"W/{tag}".encode()), *headers]
    if none_match(sent.get(b"if-none-match", b"").decode("latin-1"), tag):
        return Answer(304, common, b"")
    common.append((b"content-type", media_type))
    return Answer(200, common, body, packed=accepts_gzip(sent.get(b"accept-encoding")))


@functools.lru_cache(maxsize=2)
def _tag(body: bytes) -> str:
    """The opaque part of a weak ETag: compressed, the same page has other bytes each time."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


ROUTES = [openapi, docs]
