"""The documentation of the API, from this process alone: no CDN, no script."""

import functools
import hashlib

from gateway.http.artifact_headers import none_match
from gateway.http.compressing import accepts_gzip
from gateway.http.exchange import Answer
from gateway.routing.operations import Operation, PublicCall

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@Operation(
    "GET /openapi.json",
    summary="This document.",
    statuses=(200, 304),
    headers=("If-None-Match-Tag",),
    extra_headers=("ETag",),
)
async def openapi(call: PublicCall) -> Answer:
    return _answer(call, call.services.openapi_document, b"application/json")


@Operation(
    "GET /docs",
    summary="The API as a page to read.",
    statuses=(200, 304),
    headers=("If-None-Match-Tag",),
    extra_headers=("ETag",),
    media_type="text/html",
)
async def docs(call: PublicCall) -> Answer:
    return _answer(
        call,
        call.services.documentation_page,
        b"text/html; charset=utf-8",
        (b"content-security-policy", _POLICY.encode()),
        (b"referrer-policy", b"no-referrer"),
    )


def _answer(call: PublicCall, body: bytes, media_type: bytes, *headers: tuple[bytes, bytes]) -> Answer:
    sent = call.exchange.facts.headers
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
