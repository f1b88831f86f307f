"""Logs and metrics: what an operator may know about requests, and nothing of what they carry.

Owns the log format (JSON on stderr), the access log and the names of the metrics. No body, query value,
tenant or subject is ever written: labels are routes, methods, statuses and reasons, all from small fixed
sets.
"""

import logging
import sys
import threading
from typing import Any
from wsgiref.simple_server import WSGIServer

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from gateway.settings import Address

UNMATCHED = "unmatched"  # one label value for all paths that no route matches
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})


class Metrics:
    """The metrics of a process, in a registry of their own; also storage's observer."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.request_seconds = Histogram(
            "stateroom_request_seconds", "Time to answer.", ["route", "method", "status"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.commit_seconds = Histogram(
            "stateroom_commit_seconds", "Time of COMMIT.", buckets=_SECONDS, registry=self.registry
        )
        self.pool_wait_seconds = Histogram(
            "stateroom_pool_wait_seconds",
            "Wait for a database connection.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge("stateroom_in_flight", "Requests being served.", registry=self.registry)
        self.refused_total = Counter(
            "stateroom_refused_total", "Requests not admitted.", ["reason"], registry=self.registry
        )
        self.integrity_failures_total = Counter(
            "stateroom_integrity_failures_total", "Stored state that did not verify.", registry=self.registry
        )
        self.key_unavailable_total = Counter(
            "stateroom_key_unavailable_total", "Keys that could not be had.", registry=self.registry
        )
        self.audit_notes_dropped_total = Counter(
            "stateroom_audit_notes_dropped_total", "Accesses the audit log only counted.", registry=self.registry
        )
        self.audit_failures_total = Counter(
            "stateroom_audit_failures_total",
            "Rounds of writing or anchoring the audit log that failed.",
            ["round"],
            registry=self.registry,
        )
        self.dependency_up = Gauge(
            "stateroom_dependency_up", "1: the last probe succeeded.", ["dependency"], registry=self.registry
        )
        self._children: dict[tuple[str, str, int], Any] = {}

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        address = (route, method if method in _METHODS else "other", status)
        child = self._children.get(address)
        if child is None:  # `labels` costs more than `observe`
            child = self._children[address] = self.request_seconds.labels(address[0], address[1], str(status))
        child.observe(seconds)

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
        """Storage committed."""
        self.commit_seconds.observe(seconds)

    def integrity_failure(self) -> None:
        """Storage found state that does not verify."""
        self.integrity_failures_total.inc()

    def key_unavailable(self) -> None:
        """Storage could not have a key."""
        self.key_unavailable_total.inc()

    def audit_note_dropped(self) -> None:
        """Storage only counted an access."""
        self.audit_notes_dropped_total.inc()

    def audit_failed(self, what: str) -> None:
        """A round of the audit log failed; it is tried again."""
        self.audit_failures_total.labels(what).inc()


class MetricsServer:
    """Serves a registry to Prometheus from a thread, on a listener of its own."""

    def __init__(self, metrics: Metrics, address: Address) -> None:
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(address.port, addr=address.host, registry=metrics.registry)

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
    """The process's stderr of the moment: loggers are cached, and whoever redirects stderr replaces the object."""

    name = "<stderr>"

    def write(self, text: bytes) -> int:
        """Write."""
        return sys.stderr.buffer.write(text)

    def flush(self) -> None:
        """Flush."""
        sys.stderr.buffer.flush()


def configure_logging(level: str) -> None:
    """Write our events, and what libraries log, as JSON lines to stderr."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(  # our own events do not pass through `logging`: the access log is on the hot path
        processors=[*shared, _without_exception_text, _render],
        logger_factory=structlog.BytesLoggerFactory(_StandardError()),  # type: ignore[arg-type]
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
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


def _render(_: Any, __: str, event: Any) -> bytes:
    return msgspec.json.encode(event, enc_hook=lambda unknown: type(unknown).__name__)


def _without_exception_text(_: Any, __: str, event: Any) -> Any:
    """Replace a traceback by its class: the text of an exception may carry what a client sent."""
    info = event.pop("exc_info", None)
    if info:
        error = info[1] if isinstance(info, tuple) else info if isinstance(info, BaseException) else None
        event["error"] = type(error).__name__ if error is not None else "unknown"
    event.pop("exception", None)
    event.pop("stack", None)
    return event
