"""Logs and metrics: what an operator may know about requests, and nothing of what they carry.

Owns the log format (JSON on stderr, each line with service, version and instance), the names of the metrics, and the
listener that shows them. No body, query value, tenant or subject is ever written: labels are routes, methods, statuses
and reasons, all from small fixed sets.
"""

import asyncio
import concurrent.futures
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from importlib.metadata import version
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)

from gateway.admission.limits import RETRY_AFTER_SECONDS
from gateway.settings import Address
from storage.administration.row_census import RowCensus
from storage.collection.sweep import STATES, Census, Swept
from storage.encoding import json_encoder
from storage.postgres.setup import db_revision_required
from storage.postgres.unit_of_work import NO_JOBS, OpenJobs
from storage.retention.planner import ACTIONS
from storage.retention.rounds import RetentionCensus, Round
from storage.schemas.workers import CAUSES

STATE_VERSIONS_NAMED_MAX = 50  # versions with a label of their own, over all schemas: what tenants register is theirs
UNCOUNTED = float("nan")  # what only a round counts, before the first one: 0 would say that all is well
UNMATCHED = "unmatched"  # one label value for all paths that no route matches
PROBE_PATHS = frozenset({"/livez", "/readyz"})
PROBE_ANSWER_SECONDS_MAX = 5.0  # an event loop that takes longer to say that it turns, does not
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SWEEP_STEPS = ("expired", "removed", "tombstones", "marked", "strays", "condemned", "deleted", "failed")
_RETAINED = ("archived", "deleted", "expired", "segmented", "segments_expired", "thinned")
_RETENTION_FAILURES = ("round", "act", "quota")
_ROW_COUNT_FAILURES = ("count", "refresh")
_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})


disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which says when it was begun


def build() -> str:
    """The version of this build, the one of the package."""
    return version("stateroom-gateway")


def _version_label(number: int) -> str:
    return str(number) if number <= STATE_VERSIONS_NAMED_MAX else f"{STATE_VERSIONS_NAMED_MAX}+"


class Metrics:
    """The metrics of a process, in a registry of their own; also storage's observer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counter = partial(Counter, registry=self.registry)
        self._gauge = partial(Gauge, registry=self.registry)
        self._histogram = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        ProcessCollector(registry=self.registry)
        self._gauge("stateroom_build_info", "1: this build runs.", ["version", "db_revision"]).labels(
            build(), db_revision_required()
        ).set(1)
        self._limit = self._gauge("stateroom_limit", "What this process admits at most at once.", ["limit"])
        self._limit_used = self._gauge("stateroom_limit_used", "What of a limit is in use now.", ["limit"])
        self._round_ended = self._gauge(
            "stateroom_round_success_timestamp_seconds",
            "When this process last ended a round of background work well, since 1970.",
            ["round"],
        )
        self.probes_total = self._counter(
            "stateroom_probes_total", "Questions to /livez and /readyz.", ["route", "status"]
        )
        self.request_seconds = self._histogram(
            "stateroom_request_seconds", "Time to answer.", ["route", "method", "status"]
        )
        self.commit_seconds = self._histogram("stateroom_commit_seconds", "Time of COMMIT.")
        self.pool_wait_seconds = self._histogram("stateroom_pool_wait_seconds", "Wait for a database connection.")
        self.in_flight = self._gauge("stateroom_in_flight", "Requests being served.")
        self.refused_total = self._counter("stateroom_refused_total", "Requests not admitted.", ["reason"])
        self.integrity_failures_total = self._counter(
            "stateroom_integrity_failures_total", "Stored state that did not verify."
        )
        self.root_key_refused_total = self._counter(
            "stateroom_root_key_refused_total",
            "Times the root key did not wrap or unwrap what it was asked to.",
            ["reason"],
        )
        self.clock_offset_seconds = self._gauge(
            "stateroom_clock_offset_seconds", "How far the database's clock is ahead."
        )
        self.audit_notes_dropped_total = self._counter(
            "stateroom_audit_notes_dropped_total", "Accesses the audit log only counted."
        )
        self.audit_failures_total = self._counter(
            "stateroom_audit_failures_total", "Rounds of writing or anchoring the audit log that failed.", ["round"]
        )
        self.jobs_open_now = self._gauge("stateroom_jobs_open", "Jobs of the deployment that have not ended.", ["kind"])
        self.jobs_oldest_seconds = self._gauge(
            "stateroom_jobs_oldest_seconds", "Since the oldest of those began.", ["kind"]
        )
        self.job_waits_total = self._counter(
            "stateroom_job_waits_total", "Times that a job was tried and could not go on.", ["kind", "waits_for"]
        )
        self.jobs_ended_total = self._counter(
            "stateroom_jobs_ended_total", "Jobs that ended in this process.", ["kind", "outcome"]
        )
        self._job_kinds: set[str] = set()
        self.swept_total = self._counter(
            "stateroom_swept_total", "Uploads and blobs the sweeper took a step.", ["step"]
        )
        self._swept_steps = {step: self.swept_total.labels(step) for step in _SWEEP_STEPS}
        self.swept_bytes_total = self._counter("stateroom_swept_bytes_total", "Bytes of objects the sweeper removed.")
        self.sweep_failures_total = self._counter(
            "stateroom_sweep_failures_total", "Rounds of the sweeper that failed."
        )
        self.blobs = self._gauge("stateroom_blobs", "Uploads and blobs of the deployment.", ["state"])
        self.blob_bytes = self._gauge(
            "stateroom_blob_bytes", "Bytes of uploads and blobs of the deployment.", ["state"]
        )
        for state in STATES:  # there from the start: an alert must not wait for a first count
            self.blobs.labels(state).set(UNCOUNTED)
            self.blob_bytes.labels(state).set(UNCOUNTED)
        self.blob_usage_bytes = self._gauge(
            "stateroom_blob_usage_bytes", "Bytes that count for quotas, of all tenants."
        )
        self.sweep_age_seconds = self._gauge("stateroom_sweep_age_seconds", "Since the last whole sweep of any tenant.")
        self.sweep_due_seconds = self._gauge(
            "stateroom_sweep_due_seconds", "How long what should be gone has been due."
        )
        self.dependency_up = self._gauge("stateroom_dependency_up", "1: the last probe succeeded.", ["dependency"])
        self._add_retention()
        self._add_row_counts()
        self._add_events()
        self._add_state_work()
        self._children: dict[tuple[str, str, int], Any] = {}

    def _add_retention(self) -> None:
        self.threads = self._gauge(
            "stateroom_threads",
            "Threads of tenants with a retention policy, as their last rounds counted them.",
            ["tier"],
        )
        self.threads_held = self._gauge("stateroom_threads_held", "Of those, under a legal hold.")
        self.retained_total = self._counter(
            "stateroom_retained_total", "Threads that rounds of retention acted on.", ["action"]
        )
        self.retained_bytes_total = self._counter(
            "stateroom_retained_bytes_total", "Bytes that rounds archived or expired."
        )
        self.items_expired_total = self._counter(
            "stateroom_items_expired_total", "Items that rounds of retention removed because their time was over."
        )
        self.retention_failures_total = self._counter(
            "stateroom_retention_failures_total", "Rounds, and acts of rounds, that failed.", ["what"]
        )
        self.retention_due = self._gauge(
            "stateroom_retention_due", "Acts that the last rounds left undone.", ["action"]
        )
        self.retention_late_seconds = self._gauge(
            "stateroom_retention_late_seconds", "How long the oldest of those has been due."
        )
        self.retention_age_seconds = self._gauge(
            "stateroom_retention_age_seconds", "Since the last whole round of any tenant."
        )
        self.retention_overdue = self._gauge(
            "stateroom_retention_overdue", "Tenants whose round should have begun long ago."
        )
        self._retained = {name: self.retained_total.labels(name) for name in _RETAINED}
        for what in _RETENTION_FAILURES:
            self.retention_failures_total.labels(what)
        for tier in ("hot", "archive"):
            self.threads.labels(tier).set(UNCOUNTED)
        for action in ACTIONS:
            self.retention_due.labels(action).set(UNCOUNTED)

    def _add_row_counts(self) -> None:
        self.row_usage_bytes = self._gauge(
            "stateroom_row_usage_bytes", "Bytes of rows that count for quotas, of all tenants, as last counted."
        )
        self.tenants_over_row_quota = self._gauge(
            "stateroom_tenants_over_row_quota", "Tenants that may store no more rows."
        )
        self.row_count_age_seconds = self._gauge(
            "stateroom_row_count_age_seconds", "Since the oldest count of a tenant that has a quota of rows."
        )
        self.row_counts_total = self._counter(
            "stateroom_row_counts_total", "Counts of a tenant's rows that this process ended."
        )
        self.row_count_failures_total = self._counter(
            "stateroom_row_count_failures_total", "Counts of rows, and readings of who is over, that failed.", ["what"]
        )
        for what in _ROW_COUNT_FAILURES:
            self.row_count_failures_total.labels(what)

    def _add_events(self) -> None:
        self.events_numbered_total = self._counter(
            "stateroom_events_numbered_total", "Events that this process numbered, so that they can be heard."
        )
        self.events_lag_seconds = self._gauge(
            "stateroom_events_lag_seconds", "How long the tenant's events have waited to be numbered that nobody is at."
        )
        self.events_lag_seconds.set(UNCOUNTED)
        self.events_failures_total = self._counter(
            "stateroom_events_failures_total", "Rounds of numbering events that failed."
        )

    def _add_state_work(self) -> None:
        self.state_reads_total = self._counter(
            "stateroom_state_reads_total",
            "Checkpoints shown with their state, by the version of their schema they were saved and shown at.",
            ["from_version", "to_version"],
        )
        for counted_by_a_round in (
            self.blob_usage_bytes, self.sweep_age_seconds, self.sweep_due_seconds, self.threads_held,
            self.retention_late_seconds, self.retention_age_seconds, self.retention_overdue,
            self.row_usage_bytes, self.tenants_over_row_quota, self.row_count_age_seconds,
        ):  # fmt: skip
            counted_by_a_round.set(UNCOUNTED)
        self._state_reads: dict[tuple[int, int], Any] = {}
        self.workers_busy_now = self._gauge("stateroom_workers_busy", "Worker processes that have a task.")
        self.workers_lost_total = self._counter(
            "stateroom_workers_lost_total", "Worker processes that ended in a task, by cause.", ["cause"]
        )
        for cause in CAUSES:
            self.workers_lost_total.labels(cause)
        self.too_costly_total = self._counter(
            "stateroom_too_costly_total", "Requests refused because what their tenant registered costs too much."
        )

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        address = (route, method if method in _METHODS else "other", status)
        child = self._children.get(address)
        if child is None:  # `labels` costs more than `observe`
            child = self._children[address] = self.request_seconds.labels(address[0], address[1], str(status))
        child.observe(seconds)

    def probed(self, route: str, status: int) -> None:
        """Count a question of a load balancer, apart from clients' requests."""
        self.probes_total.labels(route, str(status)).inc()

    def bounded(self, limit: str, allowed: float, used: Callable[[], float]) -> None:
        """Show a limit of this process, and what of it is in use at the moment of the scrape.

        Args:
            limit: The limit's name.
            allowed: How much there may be.
            used: How much there is; called in a thread of the metrics' listener.
        """
        self._limit.labels(limit).set(allowed)
        self._limit_used.labels(limit).set_function(used)

    def round_ended(self, name: str) -> None:
        """A round of background work ended well."""
        self._round_ended.labels(name).set_to_current_time()

    def refused(self, reason: str) -> None:
        """Count a request that was not admitted."""
        self.refused_total.labels(reason).inc()

    def up(self, dependency: str, state: bool) -> None:
        """Record a probe."""
        self.dependency_up.labels(dependency).set(int(state))

    def pool_wait(self, seconds: float) -> None:
        """Storage waited for a connection."""
        self.pool_wait_seconds.observe(seconds)

    def commit(self, seconds: float) -> None:
        """Storage waited so long for a commit."""
        self.commit_seconds.observe(seconds)

    def integrity_failure(self) -> None:
        """Storage found state that does not verify."""
        self.integrity_failures_total.inc()

    def root_key_refused(self, reason: str) -> None:
        """The root key was asked in vain."""
        self.root_key_refused_total.labels(reason).inc()

    def audit_note_dropped(self) -> None:
        """Storage only counted an access."""
        self.audit_notes_dropped_total.inc()

    def state_read(self, saved: int, shown: int) -> None:
        """Storage showed state that has a version."""
        versions = (min(saved, STATE_VERSIONS_NAMED_MAX + 1), min(shown, STATE_VERSIONS_NAMED_MAX + 1))
        child = self._state_reads.get(versions)
        if child is None:
            child = self._state_reads[versions] = self.state_reads_total.labels(*map(_version_label, versions))
        child.inc()

    def workers_busy(self, count: int) -> None:
        """Storage gave or took a task."""
        self.workers_busy_now.set(count)

    def worker_lost(self, cause: str) -> None:
        """Storage lost a worker."""
        self.workers_lost_total.labels(cause).inc()

    def too_costly(self) -> None:
        """Storage refused what costs too much."""
        self.too_costly_total.inc()

    def job_ended(self, kind: str, outcome: str) -> None:
        """Storage ended a job."""
        self.jobs_ended_total.labels(kind, outcome).inc()

    def job_waits(self, kind: str, waits_for: str) -> None:
        """Storage tried a job that cannot go on."""
        self.job_waits_total.labels(kind, waits_for).inc()

    def jobs_open(self, by_kind: Mapping[str, OpenJobs]) -> None:
        """Storage counted open jobs; kinds counted before and not now have none left."""
        self._job_kinds |= by_kind.keys()
        for kind in self._job_kinds:
            jobs, oldest_seconds = by_kind.get(kind, NO_JOBS)
            self.jobs_open_now.labels(kind).set(jobs)
            self.jobs_oldest_seconds.labels(kind).set(oldest_seconds)
        self.round_ended("jobs")

    def audit_failed(self, what: str) -> None:
        """A round failed that writes or anchors the audit log or heads, or looks at shreds; it is tried again."""
        self.audit_failures_total.labels(what).inc()

    def swept(self, swept: Swept) -> None:
        """A round of the sweeper ended."""
        for step, child in self._swept_steps.items():
            child.inc(getattr(swept, step))
        self.swept_bytes_total.inc(swept.freed_bytes)
        self.round_ended("sweep")

    def counted(self, census: Census) -> None:
        """The sweeper counted what the deployment keeps, and what waits."""
        for state, count in census.blobs.items():
            self.blobs.labels(state).set(count)
            self.blob_bytes.labels(state).set(census.bytes[state])
        self.blob_usage_bytes.set(census.used_bytes)
        self.sweep_age_seconds.set(census.age_seconds)
        self.sweep_due_seconds.set(census.due_seconds)

    def sweep_failed(self) -> None:
        """A round of the sweeper failed; it is tried again."""
        self.sweep_failures_total.inc()

    def events_numbered(self, count: int) -> None:
        """Events were numbered."""
        self.events_numbered_total.inc(count)

    def events_lag(self, seconds: float) -> None:
        """The relay looked at how long the oldest event has waited."""
        self.events_lag_seconds.set(seconds)
        self.round_ended("events")

    def relay_failed(self) -> None:
        """A round of numbering events failed; it is tried again."""
        self.events_failures_total.inc()

    def rows_counted(self, tenants: int) -> None:
        """A pass of counting rows ended."""
        self.row_counts_total.inc(tenants)
        self.round_ended("rows")

    def row_usage_read(self, census: RowCensus) -> None:
        """Storage read how many bytes tenants' rows take, as last counted."""
        self.row_usage_bytes.set(census.used_bytes)
        self.tenants_over_row_quota.set(census.over)
        self.row_count_age_seconds.set(census.age_seconds)

    def row_count_failed(self, what: str) -> None:
        """A pass of counting rows, or reading who is over, failed; it is tried again."""
        self.row_count_failures_total.labels(what).inc()

    def retained(self, done: Round) -> None:
        """A pass of retention ended."""
        for name, child in self._retained.items():
            child.inc(getattr(done, name))
        self.retained_bytes_total.inc(done.bytes)
        self.items_expired_total.inc(done.items_expired)
        self.retention_failures_total.labels("act").inc(done.failed)
        self.retention_failures_total.labels("quota").inc(done.over_quota)
        self.round_ended("retention")

    def retention_counted(self, census: RetentionCensus) -> None:
        """Retention counted what there is, and what waits."""
        self.threads.labels("hot").set(census.hot)
        self.threads.labels("archive").set(census.archive)
        self.threads_held.set(census.held)
        for action in ACTIONS:
            self.retention_due.labels(action).set(census.due[action])
        self.retention_late_seconds.set(census.late_seconds)
        self.retention_age_seconds.set(census.age_seconds)
        self.retention_overdue.set(census.overdue)

    def retention_failed(self) -> None:
        """A pass of retention failed; it is tried again."""
        self.retention_failures_total.labels("round").inc()


async def _alive() -> tuple[bool, bytes]:
    return True, b'{"alive":true}'


class _Quiet(WSGIRequestHandler):
    """Logs nothing: what is asked here is asked every few seconds."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the base class's
        pass


Report = Callable[[], Coroutine[Any, Any, tuple[bool, bytes]]]  # whether a process is fit, and JSON that says so
Answer = tuple[str, list[tuple[str, str]], bytes]  # status line, headers, body


class MetricsServer:
    """Serves ``/metrics`` to Prometheus, and ``/livez`` and ``/readyz`` to probes, from a thread with its own listener.

    A process whose connections for the API are full still answers here. ``/livez`` says that the event loop turns.
    """

    def __init__(self, metrics: Metrics, address: Address) -> None:
        """Listen.

        Args:
            metrics: The metrics to show.
            address: The address to listen on.

        Raises:
            OSError: The address cannot be had.
        """
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)

        class _Server(ThreadingMixIn, WSGIServer):
            address_family = addresses[0][0]
            daemon_threads = True

        exposition = make_wsgi_app(metrics.registry)
        self._readiness: tuple[asyncio.AbstractEventLoop, Report] | None = None

        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            path = environ["PATH_INFO"]
            if path == "/metrics":
                return exposition(environ, start_response)
            status, headers, body = self._probed(path)
            if path in PROBE_PATHS:
                metrics.probed(path, int(status[:3]))
            start_response(status, [*headers, ("Cache-Control", "no-store")])
            return [body]

        self._server = make_server(address.host, address.port, answer, _Server, handler_class=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer_probes(self, report: Report) -> None:
        """From now on, tell how the running event loop's process is; until then it starts, and is not ready.

        Args:
            report: Whether the process is fit, and a JSON document that says so; called in the running loop.
        """
        self._readiness = (asyncio.get_running_loop(), report)

    def _probed(self, path: str) -> Answer:
        if path not in PROBE_PATHS:
            return "404 Not Found", [("Content-Type", "text/plain")], b"not here: /metrics, /livez, /readyz\n"
        later = [("Content-Type", "application/json"), ("Retry-After", str(round(RETRY_AFTER_SECONDS)))]
        if self._readiness is None:
            return "503 Service Unavailable", later, b'{"ready":false}'
        loop, report = self._readiness
        asked = asyncio.run_coroutine_threadsafe(_alive() if path == "/livez" else report(), loop)
        try:
            fit, body = asked.result(PROBE_ANSWER_SECONDS_MAX)
        except (TimeoutError, concurrent.futures.CancelledError):
            asked.cancel()
            return "503 Service Unavailable", later, b'{"ready":false}'
        return ("200 OK", later[:1], body) if fit else ("503 Service Unavailable", later, body)

    @property
    def port(self) -> int:
        """The port in use (of interest when port 0 was asked for)."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _StandardError:
    """The process's stderr of the moment: loggers are cached, and a redirection of stderr replaces the object."""

    name = "<stderr>"

    def write(self, text: bytes) -> int:
        """Write to the standard error of the moment."""
        return sys.stderr.buffer.write(text)

    def flush(self) -> None:
        """Flush the standard error of the moment."""
        sys.stderr.buffer.flush()


def configure_logging(level: str) -> None:
    """Write our events, and what libraries log, as JSON lines to stderr.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``; what is below is not written, but for `announce`.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    process = {"service": "stateroom", "version": build(), "instance": f"{socket.gethostname()}:{os.getpid()}"}

    def name_process(_: Any, __: str, event: Any) -> Any:
        return event | process

    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_process,
    ]
    structlog.configure(  # our own events do not pass through `logging`: the access log is on the hot path
        processors=[*shared, _without_exception_text, _render],
        logger_factory=structlog.BytesLoggerFactory(_StandardError()),  # type: ignore[arg-type]
        wrapper_class=structlog.make_filtering_bound_logger(number),
    )
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_exception_text,
                lambda *event: _render(*event).decode(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(number)
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # it writes query values; ours does not


def announce(event: str, **fields: object) -> None:
    """Write an event of the process's own life, such as that it is ready, whatever the level says."""
    structlog.get_logger(wrapper_class=structlog.BoundLogger).info(event, **fields)


_encode_event = json_encoder(enc_hook=lambda unknown: type(unknown).__name__)


def _render(_: Any, __: str, event: Any) -> bytes:
    return _encode_event(event)


def _without_exception_text(_: Any, __: str, event: Any) -> Any:
    """Replace a traceback by its class: the text of an exception may carry what a client sent."""
    info = event.pop("exc_info", None)
    if info:
        error = info[1] if isinstance(info, tuple) else info if isinstance(info, BaseException) else None
        event["error"] = type(error).__name__ if error is not None else "unknown"
    event.pop("exception", None)
    event.pop("stack", None)
    return event
