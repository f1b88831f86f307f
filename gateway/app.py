"""The composition root: parts are made and wired here and nowhere else; also what surrounds every request.

Owns the order of things: request id, refusal when full, metrics and access log around everything (so that
paths no route matches count too); authentication and the tenant's cap around routes; problems for every
exception; startup and shutdown. The server's own life (sockets, signals) belongs to whoever runs it.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import structlog
from litestar import Litestar, Request, Response, Router
from litestar.di import NamedDependency, Provide
from litestar.enums import ScopeType
from litestar.types import (
    HTTPScope,
    LifeSpanReceive,
    LifeSpanScope,
    LifeSpanSend,
    Message,
    Receive,
    Scope,
    Send,
)
from uuid_utils import uuid7

from crypto import selftest
from crypto.roots import RootKey, create_root_key
from gateway import auth, routes
from gateway.auth import AuthenticationMiddleware, Authenticator, Principal
from gateway.cursors import Cursors
from gateway.documentation import Documentation
from gateway.exchange import SUBJECT_HEADER, Exchange, Facts
from gateway.limits import Admission, Commits, Drain, Draining, Refused
from gateway.openapi import api_document
from gateway.problems import INTERNAL, describe, frames, kind_of
from gateway.readiness import Probe, Readiness
from gateway.services import Services
from gateway.settings import Settings
from gateway.telemetry import UNMATCHED, Metrics
from storage.clock import Clock, SystemClock
from storage.scope import OperatorScope, TenantScope
from storage.scope import Scope as SubjectScope
from storage.service import Store

GC_THRESHOLDS = (
    10_000,
    20,
    50,
)  # with gc.freeze(): twice the requests a second, a seventh of the p99 (measured)
_PROBE_PATHS = frozenset({"/livez", "/readyz"})  # answered even when full: a full process is alive
_COMMON_HEADERS = [
    (b"cache-control", b"private, no-store"),  # everything is somebody's state
    (b"x-content-type-options", b"nosniff"),
]

_log = structlog.get_logger()


class Gateway(Litestar):
    """The ASGI application.

    Attributes:
        services: Its parts, for whoever runs it (`services.drain`, `services.metrics`).
    """

    services: Services

    async def __call__(
        self,
        scope: Scope | LifeSpanScope,
        receive: Receive | LifeSpanReceive,
        send: Send | LifeSpanSend,
    ) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == ScopeType.HTTP:
            await self._serve(scope, receive, send)  # type: ignore[arg-type]
        else:
            await super().__call__(scope, receive, send)

    async def _serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        services = self.services
        facts = Facts.read(scope, str(uuid7()))
        facts.attach(scope)
        method: str = scope["method"]
        bodiless = method == "HEAD"
        if bodiless:
            scope["method"] = "GET"  # a HEAD is a GET whose body stays here

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts.status = message["status"]
                message["headers"] = [
                    *message["headers"], *_COMMON_HEADERS, (b"x-request-id", facts.request_id.encode())
                ]  # fmt: skip
            elif bodiless and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        services.metrics.in_flight.inc()
        try:
            if scope["path"] in _PROBE_PATHS:
                await super().__call__(scope, receive, answer)
            elif services.drain.stopped:
                raise Draining
            else:
                with services.admission.request():
                    await super().__call__(scope, receive, answer)
        except Refused as refusal:
            await self._refuse(refusal, scope, answer)
        finally:
            services.metrics.in_flight.dec()
            seconds = time.perf_counter() - started
            route = scope.get("path_template") or UNMATCHED
            services.metrics.request(route, method, facts.status, seconds)
            log = _log.debug if scope["path"] in _PROBE_PATHS else _log.info  # probes come every few seconds
            log(
                "request",
                method=method if method.isascii() and len(method) <= 16 else "other",
                route=route,
                status=facts.status,
                seconds=round(seconds, 6),
                request_id=facts.request_id,
                credential_id=facts.credential_id,
            )

    async def _refuse(self, refusal: Refused, scope: HTTPScope, send: Send) -> None:
        body, status, headers = _problem(refusal, scope, self.services)
        raw = [(name.encode(), text.encode("latin-1")) for name, text in headers.items()]
        raw.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _problem(error: Exception, scope: Scope, services: Services) -> tuple[bytes, int, dict[str, str]]:
    facts = Facts.of(scope)
    problem, headers = describe(
        error,
        public_url=services.settings.public_url,
        instance=scope.get("path_template") or "",  # the template: the path could hold what must not be repeated
        request_id=facts.request_id,
    )
    if isinstance(error, Refused):
        services.metrics.refused(error.reason)
    if kind_of(error) is INTERNAL:
        _log.error(
            "internal error",
            error=type(error).__qualname__,
            frames=frames(error),
            request_id=facts.request_id,
        )
    return msgspec.json.encode(problem), problem.status, headers


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    app: Any = request.app
    body, status, headers = _problem(error, request.scope, app.services)
    media_type = headers.pop("content-type")
    return Response(body, status_code=status, headers=headers, media_type=media_type)


# Dependencies form a chain, each naming the one before: Litestar starts a task group for those it could run side by
# side, which costs more than all of them together.


def _exchange(request: Request[Any, Any, Any]) -> Exchange:
    return Exchange(request.scope, request.receive)


def _services(request: Request[Any, Any, Any], exchange: NamedDependency[Exchange]) -> Services:  # noqa: ARG001
    app: Any = request.app
    services: Services = app.services
    return services


def _caller(request: Request[Any, Any, Any]) -> Principal:
    principal: Principal = request.scope["user"]
    return principal


def _principal(request: Request[Any, Any, Any], exchange: NamedDependency[Exchange]) -> Principal:  # noqa: ARG001
    return _caller(request)


def _subject_scope(
    request: Request[Any, Any, Any],
    services: NamedDependency[Services],  # noqa: ARG001
) -> SubjectScope:
    named = Facts.of(request.scope).headers.get(SUBJECT_HEADER.lower().encode())
    return auth.subject_scope(_caller(request), None if named is None else named.decode("latin-1"))


def _tenant_scope(
    request: Request[Any, Any, Any],
    services: NamedDependency[Services],  # noqa: ARG001
) -> TenantScope:
    return auth.tenant_scope(_caller(request))


def _operator_scope(
    request: Request[Any, Any, Any],
    services: NamedDependency[Services],  # noqa: ARG001
) -> OperatorScope:
    return auth.operator_scope(_caller(request))


def create_app(
    settings: Settings,
    *,
    store: Store,
    blob_health: Probe | None = None,
    root_key_health: Probe | None = None,
    metrics: Metrics | None = None,
    clock: Clock | None = None,
) -> Gateway:
    """Wire an application around an open store. The store's life is the caller's (see `open_app`).

    Args:
        settings: What the process was told.
        store: The open store.
        blob_health: Probe of S3, shown by ``/readyz``.
        root_key_health: Probe of the root key, shown by ``/readyz``.
        metrics: The registry that storage observes into already, or None for a new one.
        clock: What the expiry of keys is compared with.
    """
    metrics = metrics or Metrics()
    clock = clock or SystemClock()
    drain = Drain(settings.drain_seconds)
    admission = Admission(settings.requests_in_flight_max)
    authenticator = Authenticator(settings.api_key_pepper, store.tenants.look_up_key, clock)
    services = Services(
        settings=settings,
        store=store,
        authenticator=authenticator,
        admission=admission,
        commits=Commits(),
        cursors=Cursors(settings.api_key_pepper),
        drain=drain,
        metrics=metrics,
        readiness=Readiness(store, drain, metrics, blob_health=blob_health, root_key_health=root_key_health),
        clock=clock,
    )
    documentation = Documentation.render(api_document(settings.public_url))
    app = Gateway(
        route_handlers=[Router("/v1", route_handlers=list(routes.V1)), *routes.PUBLIC],
        middleware=[AuthenticationMiddleware(authenticator, admission)],
        dependencies={
            "exchange": Provide(_exchange, sync_to_thread=False),
            "principal": Provide(_principal, sync_to_thread=False),
            "subject_scope": Provide(_subject_scope, sync_to_thread=False),
            "tenant_scope": Provide(_tenant_scope, sync_to_thread=False),
            "operator_scope": Provide(_operator_scope, sync_to_thread=False),
            "services": Provide(_services, sync_to_thread=False),
            "documentation": Provide(lambda: documentation, sync_to_thread=False),
        },
        exception_handlers={Exception: _answer_error},
        lifespan=[_lifespan],
        openapi_config=None,
        logging_config=None,
        request_max_body_size=None,  # `gateway.exchange.read_body` is the one place that reads bodies
        debug=False,
    )
    app.services = services
    return app


@asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    assert isinstance(app, Gateway)  # noqa: S101  for the type checker: no other class has this lifespan
    services = app.services
    selftest.run()
    services.readiness.self_test_passed = True
    touch = services.store.tenants.touch_keys
    flushing = asyncio.create_task(services.authenticator.keep_flushing(touch))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        services.drain.begin()
        services.drain.stopped = True
        await services.commits.finish()
        flushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flushing


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    metrics: Metrics | None = None,
    blob_health: Probe | None = None,
    embedded: bool = False,
) -> AsyncIterator[Gateway]:
    """Open the root key and the store, wire an application around them, and close them in the end.

    Args:
        settings: What the process was told.
        metrics: The registry to observe into, or None for a new one.
        blob_health: Probe of S3.
        embedded: Whether a database that does not fsync is accepted.

    Raises:
        SetupError: the database is not set up as it must be.
        RootKeyInvalid: the root key cannot be used.
    """
    metrics = metrics or Metrics()
    root_key = create_root_key(settings.root_key)
    store = await Store.open(
        settings.database_url,
        root_key=root_key,
        deployment_id=settings.deployment_id,
        connections_max=settings.database_connections_max,
        durable=not embedded,
        observer=metrics,
    )
    try:
        yield create_app(
            settings,
            store=store,
            blob_health=blob_health,
            root_key_health=_healthy(root_key),
            metrics=metrics,
        )
    finally:
        await store.close()


def _healthy(root_key: RootKey) -> Probe:
    async def probe() -> bool:
        await root_key.health()  # raises when it is not
        return True

    return probe
