"""The composition root: parts are made and wired here and nowhere else; also what surrounds every request.

Owns the order of things: request id, refusal when full, metrics and access log around everything (so that
paths of no operation count too); problems for every exception; startup and shutdown. What surrounds one operation is
`gateway.routing.operations`'s affair, and the server's own life (sockets, signals) belongs to the program that runs it.
"""

import asyncio
import contextlib
import functools
import gc
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from uuid import UUID

import structlog
from uuid_utils import uuid7

from crypto import selftest
from crypto.roots import RootKey, create_root_key
from gateway import routes
from gateway.admission.limits import (
    HELD_BYTES_MAX,
    Admission,
    Commits,
    Drain,
    Draining,
    Refused,
    TenantBusy,
    TooManyFailures,
)
from gateway.admission.waiting import TooManyWaiters, Waiters
from gateway.allocation import give_large_buffers_back
from gateway.authentication.principals import Authenticator
from gateway.background import in_the_background
from gateway.documents.openapi import api_document
from gateway.documents.page import page
from gateway.events.hub import Hub
from gateway.events.on_record import OnRecord
from gateway.events.positions import Positions
from gateway.events.undecided import Undecided
from gateway.http.artifact_urls import ArtifactUrls
from gateway.http.asgi import Message, Receive, Scope, Send
from gateway.http.cursors import Cursors
from gateway.http.exchange import COMMON_HEADERS, Facts, header_lines, travels_as_id
from gateway.problems import INTERNAL, OVERLOADED, Unauthenticated, describe, frames, kind_of
from gateway.readiness import NO_PROBES, Probe, Probes, Readiness
from gateway.routing.operations import Route
from gateway.routing.router import Router
from gateway.services import Services
from gateway.settings import Settings, SettingsError
from gateway.telemetry import PROBE_PATHS, UNMATCHED, Metrics
from migrations.state.errors import ChainInvalid
from migrations.state.loading import ships_steps
from storage.administration.tenants import DefaultQuotas
from storage.blobs.store import FROZEN_CLASSES, BlobStore
from storage.clock import Clock, SystemClock
from storage.concurrency.turns import loop_turn
from storage.encoding import encode_json
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.model import Bucket
from storage.scope import TenantListing
from storage.service import DEFAULT_OPTIONS, Store, StoreOptions

# With gc.freeze(): twice the requests a second as by default, a seventh of the p99 (measured). The second number bounds
# how much garbage of refused requests, whose exceptions are cycles, one pass of the collector finds: 20 made it 0.3 s.
GC_THRESHOLDS = (10_000, 3, 300)
# How long the event loop waits for a thread that computes, each time it comes back from waiting for something else.
SWITCH_SECONDS = 0.001
LONG_HEAD_BYTES_MIN = 8 * 1024  # of a request that waits for its turn; others have a tenth

_STRANGERS = (Unauthenticated, TooManyFailures)
_TOO_MANY = (TenantBusy, TooManyWaiters)

_log = structlog.get_logger()


class Gateway:
    """The ASGI application.

    Args:
        services: The parts of the process (`services.drain`, `services.metrics`).
        background: Whether it also does what any process may do for all of them (`gateway.background`).
    """

    def __init__(self, services: Services, *, background: bool) -> None:
        self.services = services
        self.router = Router(chain.from_iterable(routes.GROUPS.values()))
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan; there is nothing else here."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 4404})

    async def _live(self, receive: Receive, send: Send) -> None:
        begun = False
        try:
            await receive()
            async with self.lifespan():
                await send({"type": "lifespan.startup.complete"})
                begun = True
                await receive()
        except BaseException as reason:
            await send({"type": f"lifespan.{'shutdown' if begun else 'startup'}.failed", "message": str(reason)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Let the process serve in the block, and finish writes in the end."""
        services = self.services
        selftest.run()
        services.readiness.self_test_passed = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        sys.setswitchinterval(SWITCH_SECONDS)
        async with in_the_background(services, for_all=self._background):
            try:
                yield
            finally:
                services.drain.begin()
                services.drain.stopped = True
                await services.commits.finish()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        services = self.services
        facts = Facts.read(scope, str(uuid7()))
        method: str = scope["method"]
        facts.bodiless = bodiless = method == "HEAD"
        route: Route | None = None
        parameters: dict[str, str] = {}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts.status = message["status"]
                message["headers"] = [
                    *message["headers"], *COMMON_HEADERS, (b"x-request-id", facts.request_id.encode())
                ]  # fmt: skip
            elif bodiless and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        services.metrics.in_flight.inc()
        try:
            await _turn_of_strangers(scope, facts)
            self.router.check_path(scope)
            wanted, path = "GET" if bodiless else method, scope["path"]  # a HEAD is a GET whose body stays here
            if path in PROBE_PATHS and method != "OPTIONS":  # answered even when full: a full process is alive
                route, parameters = self.router.find(wanted, path)
                await route.run(services, facts, parameters, receive, answer)
            elif services.drain.stopped:
                raise Draining  # noqa: TRY301  refused like everything else
            elif method == "OPTIONS":
                # Without a credential, as browsers ask: which methods a path has is in the public documentation.
                await _say_allowed(self.router.allowed(path), answer)
            else:
                self.router.check_host(scope["headers"])
                with services.admission.request() as facts.count_out:
                    route, parameters = self.router.find(wanted, path)
                    await route.run(services, facts, parameters, receive, answer)
        except Exception as reason:  # noqa: BLE001  what was not answered further in
            if facts.status:
                # Half an answer is out. Returning now makes the server cut the connection; its log gets no traceback.
                _log.warning("answer cut", error=type(reason).__name__, request_id=facts.request_id)
            else:
                started += await self._delay(reason)  # it is no latency of the route
                await self._refuse(reason, facts, answer)
        finally:
            services.metrics.in_flight.dec()
            if facts.access is not None and route is not None:
                self._note(facts, route, parameters)
            self._tell(scope, route, facts, time.perf_counter() - started - facts.waited_seconds)

    async def _delay(self, reason: Exception) -> float:
        """Let who is refused wait when there are many, where it takes no place of others; how many seconds."""
        if isinstance(reason, _STRANGERS):
            refusals = self.services.authenticator.strangers.refusals
        elif isinstance(reason, _TOO_MANY):
            refusals = self.services.admission.refusals
        else:
            return 0.0
        await loop_turn().take()
        delay_seconds = refusals.delay_seconds()
        await asyncio.sleep(delay_seconds)
        return delay_seconds

    def _tell(self, scope: Scope, route: Route | None, facts: Facts, seconds: float) -> None:
        """Count and log an answered request."""
        metrics = self.services.metrics
        method: str = scope["method"]
        path = UNMATCHED if route is None else route.operation.path
        if scope["path"] in PROBE_PATHS:  # they come every few seconds, and say nothing of what clients get
            metrics.probed(path, facts.status)
            log = _log.debug
        else:
            metrics.request(path, method, facts.status, seconds)
            log = _log.info if facts.status < 500 else _log.error if facts.status == 500 else _log.warning
        log(
            "request",
            method=method if method.isascii() and len(method) <= 16 else "other",
            route=path,
            status=facts.status,
            code=facts.code,
            seconds=round(seconds, 6),
            request_id=facts.request_id,
            key_id=facts.key_id,
        )

    def _note(self, facts: Facts, route: Route, parameters: dict[str, str]) -> None:
        """Note an access of a subject's rows for the audit log; ordinary access and act-as alike."""
        assert facts.access is not None  # noqa: S101  for the type checker: the caller looked
        of_chain, actor, target = facts.access
        thread = parameters.get("thread_id")
        if thread is not None and travels_as_id(thread):  # what is no id was refused, and can be any text
            target = f"{target}/thread/{thread}"
        self.services.store.audit.note(of_chain, actor, route.operation.name, target, facts.status)

    async def _refuse(self, reason: Exception, facts: Facts, send: Send) -> None:
        body, status, headers = _problem(reason, facts, self.services)
        lines = [*header_lines(headers), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _problem(error: Exception, facts: Facts, services: Services) -> tuple[bytes, int, dict[str, str]]:
    facts.code = kind_of(error).code
    problem, headers = describe(
        error,
        public_url=services.settings.public_url,
        request_id=facts.request_id,
    )
    kind = kind_of(error)
    if isinstance(error, Refused) or kind is OVERLOADED:
        services.metrics.refused(problem.code)
    if kind is OVERLOADED and not isinstance(error, Refused):
        _log.warning("out of memory", frames=frames(error), request_id=facts.request_id)
    if kind is INTERNAL:
        _log.error(
            "internal error",
            error=type(error).__qualname__,
            frames=frames(error),
            request_id=facts.request_id,
        )
    return encode_json(problem), problem.status, headers


async def _turn_of_strangers(scope: Scope, facts: Facts) -> None:
    """Let requests begin one after the other whose tenant's turn is not waited for, or is too late.

    Those without a key; and those whose headers and a thousand parameters take milliseconds to read.
    """
    if scope["path"] in PROBE_PATHS:
        return
    head_bytes = len(scope["query_string"]) + sum(map(len, facts.headers.values()))
    if b"authorization" not in facts.headers or head_bytes > LONG_HEAD_BYTES_MIN:
        await loop_turn().take()


async def _say_allowed(allowed: str, send: Send) -> None:
    headers = [(b"allow", allowed.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@functools.cache
def documentation_page() -> bytes:
    """The page of every operation there is; where the gateway is, it does not say."""
    return page(api_document("")).encode()


async def _is_pending(store: Store, tenant_id: UUID, approval_id: UUID) -> bool:
    """Whether an approval still waits for a decision; NotFound where there is none any more."""
    approval = await store.approvals.get(TenantListing(tenant_id), approval_id)
    return approval.status == "pending"


def create_app(
    settings: Settings,
    *,
    store: Store,
    probes: Probes = NO_PROBES,
    metrics: Metrics | None = None,
    clock: Clock | None = None,
    background: bool = True,
) -> Gateway:
    """Wire an application around an open store. The store's life is the caller's (see `open_app`).

    Args:
        settings: The settings of the process.
        store: The open store.
        probes: Probes of what ``/readyz`` shows beside the database.
        metrics: The registry that storage observes into already, or None for a new one.
        clock: The clock that the expiry of keys is compared with.
        background: Whether it does what any process may do for all of them.
    """
    metrics = metrics or Metrics()
    clock = clock or SystemClock()
    drain = Drain(settings.drain_seconds)
    commits = Commits()
    admission = Admission(settings.requests_in_flight_max)
    metrics.bounded("requests", admission.requests_max, lambda: admission.requests)
    waiters = Waiters()
    metrics.bounded("waiters", waiters.waiters_max, lambda: waiters.count)
    metrics.bounded("held_bytes", HELD_BYTES_MAX, lambda: admission.held_bytes)
    peppers = settings.peppers
    authenticator = Authenticator(peppers, store.tenants.look_up_key, clock, store.tenants.seals_needed)
    services = Services(
        settings=settings,
        store=store,
        authenticator=authenticator,
        admission=admission,
        commits=commits,
        cursors=Cursors(peppers),
        waiters=waiters,
        hub=Hub(store.events, authenticator, store.keys.check_stored, drain),
        undecided=Undecided(functools.partial(_is_pending, store), drain),
        event_positions=Positions(peppers),
        listeners_on_record=OnRecord(),
        artifact_urls=ArtifactUrls(peppers),
        drain=drain,
        metrics=metrics,
        readiness=Readiness(store, drain, metrics, commits.outcomes, probes=probes),
        clock=clock,
        openapi_document=encode_json(api_document(settings.public_url)),
        documentation_page=documentation_page(),
    )
    return Gateway(services, background=background)


@asynccontextmanager
async def open_app(
    settings: Settings,
    *,
    metrics: Metrics | None = None,
    state_schemas: Path | None = None,
    background: bool = True,
) -> AsyncIterator[Gateway]:
    """Open the root key, the object store and the store, wire an application around them, and close them in the end.

    Args:
        settings: The settings of the process.
        metrics: The registry to observe into, or None for a new one.
        state_schemas: A folder of the deployment's own steps in Python, beside those that are installed.
        background: As for `create_app`.

    Raises:
        SetupError: the database is not set up as it must be.
        RootKeyInvalid: the root key cannot be used.
        SettingsError: the object store's URL is wrong, or what the deployment ships for a state schema is no chain of
            steps, or can be changed by another user.
    """
    give_large_buffers_back()
    metrics = metrics or Metrics()
    options = StoreOptions(
        observer=metrics,
        offload_bytes_min=offload_bytes_min(settings.s3_url),
        steps_folder=state_schemas,
        traceable=settings.traceable,
        default_quotas=DefaultQuotas(settings.default_blob_quota, settings.default_row_quota),
    )
    opening = open_store(settings, settings.database_connections_max, options=options)
    async with opening as (store, probes):
        if ships_steps(state_schemas):
            await _try_steps(store)
        connections = store.unit_of_work
        metrics.bounded("database_connections", connections.connections_max, lambda: connections.connections_used)
        yield create_app(settings, store=store, probes=probes, metrics=metrics, background=background)


@asynccontextmanager
async def open_store(
    settings: Settings,
    connections_max: int,
    *,
    options: StoreOptions = DEFAULT_OPTIONS,
    restored: bool = False,
) -> AsyncIterator[tuple[Store, Probes]]:
    """Open the root key, the object stores and the store that the settings name, and close them in the end.

    Args:
        settings: The settings of the process.
        connections_max: The number of connections in the pool.
        options: The options of the store that the settings do not give.
        restored: As for `Store.open`.

    Raises:
        SetupError: the database is not set up as it must be.
        RootKeyInvalid: the root key cannot be used.
        SettingsError: an object store's URL is wrong.
    """
    async with contextlib.AsyncExitStack() as stack:
        root_key = create_root_key(settings.root_key)
        stack.push_async_callback(root_key.aclose)
        blobs = await stack.enter_async_context(open_blobs(settings.s3_url))
        archive = await stack.enter_async_context(open_blobs(settings.archive_url, "archive"))
        store = await Store.open(
            settings.database_url,
            root_key=root_key,
            deployment_id=settings.deployment_id,
            connections_max=connections_max,
            restored=restored,
            options=replace(
                options, blobs=blobs, archive=archive, backup_retention_days=settings.backup_retention_days
            ),
        )
        stack.push_async_callback(store.close)
        yield (
            store,
            Probes(
                blobs=None if blobs is None else _healthy(blobs),
                archive=None if archive is None else _healthy(archive),
                root_key=_healthy(root_key),
            ),
        )


async def _try_steps(store: Store) -> None:
    try:
        await store.workers.start()
    except ChainInvalid as fault:
        raise SettingsError(f"the steps of a state schema cannot be used: {fault.step}: {fault}") from None


@asynccontextmanager
async def open_blobs(url: str | None, bucket: Bucket = "blobs") -> AsyncIterator[BlobStore | None]:
    """The object store that a URL names, while it is in use. Nothing is asked of it yet.

    Args:
        url: ``STATEROOM_S3_URL``, or ``STATEROOM_ARCHIVE_URL``.
        bucket: What it is for.

    Raises:
        SettingsError: it is not of the form, or blobs would be frozen as soon as they are stored.
    """
    variable = "STATEROOM_ARCHIVE_URL" if bucket == "archive" else "STATEROOM_S3_URL"
    if url is None:
        yield None
        return
    # A deployment without S3 need not load boto3.
    from storage.blobs.s3 import S3BlobStore  # noqa: PLC0415
    from storage.blobs.s3_location import S3Location  # noqa: PLC0415

    try:
        location = S3Location.parse(url)
        if bucket == "blobs" and location.storage_class in FROZEN_CLASSES:
            raise ValueError(f"what is stored in {location.storage_class} cannot be read again at once")  # noqa: TRY301
        blobs = S3BlobStore(location)
    except ValueError as error:
        raise SettingsError(f"{variable} is wrong: {error}") from None
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
    from storage.blobs.s3_location import S3Location  # noqa: PLC0415

    return S3Location.parse(url).offload_bytes_min or OFFLOAD_BYTES_MIN


def _healthy(part: BlobStore | RootKey) -> Probe:
    async def probe() -> bool:
        await part.health()  # raises when it is not
        return True

    return probe
