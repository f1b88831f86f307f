"""The composition root: parts are made and wired here and nowhere else; also what surrounds every request.

Owns the order of things: request id, refusal when full, metrics and access log around everything (so that
paths no route matches count too); authentication and the tenant's cap around routes; problems for every
exception; startup and shutdown. The server's own life (sockets, signals) belongs to whoever runs it.
"""

import asyncio
import contextlib
import functools
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
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

from crypto import CryptoError, selftest
from crypto.roots import RootKey, create_root_key
from gateway import auth, routes
from gateway.allocation import give_large_buffers_back
from gateway.artifact_urls import ArtifactUrls
from gateway.auth import AuthenticationMiddleware, Authenticator, ListingScope, Principal
from gateway.cursors import Cursors
from gateway.documentation import Documentation
from gateway.exchange import Exchange, Facts, encode_id
from gateway.limits import Admission, Commits, Drain, Draining, Refused
from gateway.openapi import api_document
from gateway.operations import Operation
from gateway.problems import INTERNAL, describe, frames, kind_of
from gateway.readiness import Probe, Readiness
from gateway.services import Services
from gateway.settings import Settings, SettingsError
from gateway.telemetry import UNMATCHED, Metrics
from migrations.state.loading import shipped_chains
from storage import head_anchors
from storage.anchors import ANCHOR_SECONDS
from storage.audit import FLUSH_SECONDS
from storage.blobs.store import BlobStore
from storage.clock import Clock, SystemClock
from storage.errors import StorageError
from storage.format.audit import OPERATOR_CHAIN
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.scope import OperatorScope, TenantListing, TenantScope
from storage.scope import Scope as SubjectScope
from storage.service import Store

GC_THRESHOLDS = (
    10_000,
    20,
    50,
)  # with gc.freeze(): twice the requests a second, a seventh of the p99 (measured)
TARGET_CHARACTERS_MAX = 400  # the longest id, as it travels in base64url
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

    async def _serve(  # noqa: C901  the order of things around a request is one story
        self, scope: HTTPScope, receive: Receive, send: Send
    ) -> None:
        started = time.perf_counter()
        services = self.services
        facts = Facts.read(scope, str(uuid7()))
        method: str = scope["method"]
        bodiless = method == "HEAD"
        if bodiless:
            # A HEAD is a GET whose body stays here. The server keeps its own scope: with a GET in it, it would miss
            # the announced body and cut the connection.
            scope = {**scope, "method": "GET"}
            facts.bodiless = True
        facts.attach(scope)

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
                raise Draining  # noqa: TRY301  refused like everything else
            else:
                with services.admission.request():
                    await super().__call__(scope, receive, answer)
        except Refused as refusal:
            await self._refuse(refusal, scope, answer)
        except Exception as reason:
            if not facts.status:
                raise
            # Half an answer is out. Returning now makes the server cut the connection; its log gets no traceback.
            _log.warning("answer cut", error=type(reason).__name__, request_id=facts.request_id)
        finally:
            services.metrics.in_flight.dec()
            seconds = time.perf_counter() - started
            route = scope.get("path_template") or UNMATCHED
            services.metrics.request(route, method, facts.status, seconds)
            if facts.access is not None:
                self._note(facts, scope)
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

    def _note(self, facts: Facts, scope: HTTPScope) -> None:
        """Note an access of somebody's rows for the audit log; ordinary access and act-as alike."""
        assert facts.access is not None  # noqa: S101  for the type checker: the caller looked
        chain, actor, target = facts.access
        operation: Operation = scope["route_handler"].opt["operation"]
        thread = scope["path_params"].get("thread_id")
        if thread is not None:
            target = f"{target}/thread/{thread[:TARGET_CHARACTERS_MAX]}"  # as it travels; longer ones were refused
        self.services.store.audit.note(chain, actor, operation.name, target, facts.status)

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
    principal = _caller(request)
    scope = auth.subject_scope(principal, auth.named_subject(request.scope))
    Facts.of(request.scope).access = (scope.tenant_id, principal.actor, f"subject/{encode_id(scope.subject_id)}")
    return scope


def _listing_scope(
    request: Request[Any, Any, Any],
    services: NamedDependency[Services],  # noqa: ARG001
) -> ListingScope:
    principal = _caller(request)
    listing = auth.listing_scope(principal, auth.named_subject(request.scope))
    scope = listing.scope
    whose = "tenant" if isinstance(scope, TenantListing) else f"subject/{encode_id(scope.subject_id)}"
    Facts.of(request.scope).access = (scope.tenant_id, principal.actor, whose)
    return listing


def _tenant_scope(
    request: Request[Any, Any, Any],
    services: NamedDependency[Services],  # noqa: ARG001
) -> TenantScope:
    principal = _caller(request)
    scope = auth.tenant_scope(principal)
    Facts.of(request.scope).access = (scope.tenant_id, principal.actor, "tenant")
    return scope


def _operator_scope(
    request: Request[Any, Any, Any],
    services: NamedDependency[Services],  # noqa: ARG001
) -> OperatorScope:
    principal = _caller(request)
    scope = auth.operator_scope(principal)
    Facts.of(request.scope).access = (OPERATOR_CHAIN, principal.actor, "operators")
    return scope


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
        artifact_urls=ArtifactUrls(settings.api_key_pepper),
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
            "listing_scope": Provide(_listing_scope, sync_to_thread=False),
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
    store = services.store
    flushing = asyncio.create_task(services.authenticator.keep_flushing(store.tenants.touch_keys))
    ended = asyncio.Event()
    noting = asyncio.create_task(_repeat("flush", FLUSH_SECONDS, store.audit.flush, ended, services.metrics))
    heads = asyncio.create_task(
        _repeat("heads", head_anchors.ANCHOR_SECONDS, store.head_anchors.flush, ended, services.metrics)
    )
    anchoring = asyncio.create_task(_anchor(store, ended, services.metrics))
    working = asyncio.create_task(store.runner.keep_running(_job_round_failed))
    sweeping = asyncio.create_task(
        store.sweep.keep_running(
            services.metrics.swept, functools.partial(_sweep_failed, services.metrics), services.metrics.counted
        )
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        services.drain.begin()
        services.drain.stopped = True
        await services.commits.finish()
        ended.set()
        for task in (noting, heads):  # not cancelled: they may hold notes; their last round writes what is left
            await task
        # An anchor that was not written is by the next process; a job, or a sweep, goes on when its lease has ended.
        for task in (flushing, anchoring, working, sweeping):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _job_round_failed(reason: Exception) -> None:
    _log.warning("job round failed", error=type(reason).__name__)


def _sweep_failed(metrics: Metrics, reason: Exception) -> None:
    metrics.sweep_failed()
    _log.warning("sweep failed", error=type(reason).__name__)


async def _anchor(store: Store, ended: asyncio.Event, metrics: Metrics) -> None:
    """Anchor audit logs every minute; the key for it is made before anything that a backup could miss is anchored."""
    try:
        await store.anchors.ensure_signing_key()
    except (StorageError, CryptoError) as reason:
        _log.warning("audit round failed", round="anchor", error=type(reason).__name__)
    await _repeat("anchor", ANCHOR_SECONDS, store.anchors.anchor_due, ended, metrics)


async def _repeat(
    what: str, seconds: float, work: Callable[[], Awaitable[object]], ended: asyncio.Event, metrics: Metrics
) -> None:
    """Do ``work`` every ``seconds`` until ``ended``, and once more then; what fails is tried again."""
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
        last = ended.is_set()
        try:
            await work()
        except Exception as reason:  # noqa: BLE001  whatever it is, the next round must come
            metrics.audit_failed(what)
            _log.warning("audit round failed", round=what, error=type(reason).__name__)
        if last:
            return


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    metrics: Metrics | None = None,
    embedded: bool = False,
) -> AsyncIterator[Gateway]:
    """Open the root key, the object store and the store, wire an application around them, and close them in the end.

    Args:
        settings: What the process was told.
        metrics: The registry to observe into, or None for a new one.
        embedded: Whether a database that does not fsync is accepted.

    Raises:
        SetupError: the database is not set up as it must be.
        RootKeyInvalid: the root key cannot be used.
        SettingsError: the object store's URL is wrong.
        ChainInvalid: what the deployment ships for a state schema is no chain of steps.
    """
    give_large_buffers_back()
    metrics = metrics or Metrics()
    async with contextlib.AsyncExitStack() as stack:
        root_key = create_root_key(settings.root_key)
        stack.push_async_callback(root_key.aclose)
        blobs = await stack.enter_async_context(open_blobs(settings.s3_url))
        store = await Store.open(
            settings.database_url,
            root_key=root_key,
            deployment_id=settings.deployment_id,
            connections_max=settings.database_connections_max,
            blobs=blobs,
            durable=not embedded,
            observer=metrics,
            backup_retention_days=settings.backup_retention_days,
            offload_bytes_min=offload_bytes_min(settings.s3_url),
            shipped=shipped_chains(),
        )
        stack.push_async_callback(store.close)
        yield create_app(
            settings,
            store=store,
            blob_health=None if blobs is None else _blobs_healthy(blobs),
            root_key_health=_healthy(root_key),
            metrics=metrics,
        )


@asynccontextmanager
async def open_blobs(url: str | None) -> AsyncIterator[BlobStore | None]:
    """The object store that a URL names, while it is in use. Nothing is asked of it yet."""
    if url is None:
        yield None
        return
    # A deployment without S3 need not load boto3.
    from storage.blobs.opening import open_bucket  # noqa: PLC0415
    from storage.blobs.s3 import S3Location  # noqa: PLC0415

    try:
        blobs = open_bucket(S3Location.parse(url))
    except ValueError as error:
        raise SettingsError(f"STATEROOM_S3_URL is wrong: {error}") from None
    try:
        yield blobs
    finally:
        await blobs.aclose()


def offload_bytes_min(url: str | None) -> int:
    """How large a piece of a value must be to live in the object store that a URL names.

    Args:
        url: As for `open_blobs`, which has accepted it.
    """
    if url is None:
        return OFFLOAD_BYTES_MIN
    from storage.blobs.s3 import S3Location  # noqa: PLC0415

    return S3Location.parse(url).offload_bytes_min or OFFLOAD_BYTES_MIN


def _blobs_healthy(blobs: BlobStore) -> Probe:
    async def probe() -> bool:
        await blobs.health()  # raises when it is not
        return True

    return probe


def _healthy(root_key: RootKey) -> Probe:
    async def probe() -> bool:
        await root_key.health()  # raises when it is not
        return True

    return probe
