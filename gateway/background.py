"""What a process does beside answering: notes of its own that must be written, and work that any process may do.

Everything that is anybody's work has one owner at a time, by a lease in the database (jobs, sweeps, rounds of
retention, counts of rows) or because it is written once (anchors). Who is asked to stop gives its leases back, so that
another process goes on at once; of who is killed they end by themselves. Owns no order between the loops, and no moment
at which something is done.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from crypto import CryptoError
from gateway.services import Services
from gateway.telemetry import Metrics
from storage.access import head_anchors
from storage.administration.anchors import ANCHOR_SECONDS
from storage.administration.audit import FLUSH_SECONDS
from storage.approvals.expiring import LOOK_SECONDS as APPROVALS_SECONDS
from storage.control.processes import BEAT_SECONDS
from storage.errors import StorageError
from storage.key_lifecycle.shred import UPHOLD_SECONDS
from storage.service import Store

_log = structlog.get_logger()


@asynccontextmanager
async def in_the_background(services: Services, *, for_all: bool) -> AsyncIterator[None]:
    """Run the loops while the block runs.

    Args:
        services: The parts of the process.
        for_all: Also what any process may do for all of them; without: only what this process noted down itself.
    """
    store, metrics = services.store, services.metrics
    ended = asyncio.Event()
    await store.enter()
    # Not cancelled: they may hold notes; their last round writes what is left.
    noting = [
        asyncio.create_task(_repeat("flush", FLUSH_SECONDS, store.audit.flush, ended, metrics)),
        asyncio.create_task(_repeat("items", FLUSH_SECONDS, store.items.flush, ended, metrics)),
        asyncio.create_task(_repeat("heads", head_anchors.ANCHOR_SECONDS, store.head_anchors.flush, ended, metrics)),
    ]
    # What is left of these is done by the next process, or by another one.
    tenants = store.tenants
    flushing = services.authenticator.keep_flushing(tenants.touch_keys, tenants.restamp_keys)
    working = [
        asyncio.create_task(flushing),
        asyncio.create_task(_beat(store)),
        asyncio.create_task(services.readiness.keep_watching()),
        asyncio.create_task(services.hub.run()),
        asyncio.create_task(services.undecided.run()),
        asyncio.create_task(store.row_quotas.keep_fresh(functools.partial(_row_quotas_failed, metrics))),
        asyncio.create_task(_repeat("history", ANCHOR_SECONDS, store.anchors.watch, ended, metrics)),
    ]
    if for_all:
        working += [
            asyncio.create_task(_anchor(store, ended, metrics)),
            asyncio.create_task(_repeat("shreds", UPHOLD_SECONDS, store.shred.uphold, ended, metrics)),
            asyncio.create_task(store.runner.keep_running(_job_round_failed)),
            asyncio.create_task(
                _repeat("approvals", APPROVALS_SECONDS, store.approvals_expiring.run_once, ended, metrics)
            ),
            asyncio.create_task(
                store.event_relay.keep_running(
                    functools.partial(_relay_failed, metrics), metrics.events_numbered, metrics.events_lag
                )
            ),
            asyncio.create_task(
                store.sweep.keep_running(metrics.swept, functools.partial(_sweep_failed, metrics), metrics.counted)
            ),
            asyncio.create_task(
                store.row_counting.keep_running(
                    metrics.rows_counted, functools.partial(_row_count_failed, metrics), metrics.row_usage_read
                )
            ),
            asyncio.create_task(
                store.retaining.keep_running(
                    metrics.retained, functools.partial(_retention_failed, metrics), metrics.retention_counted
                )
            ),
        ]
    try:
        yield
    finally:
        ended.set()
        for task in noting:
            await task
        for task in working:
            task.cancel()
        for task in working:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        with contextlib.suppress(StorageError):  # the registry forgets by itself
            await store.processes.leave()


async def _beat(store: Store) -> None:
    """Say every few seconds that this process is there, and look at what was switched on meanwhile."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            await store.processes.beat()
            await store.features.refresh()
        except (StorageError, CryptoError) as reason:
            _log.warning("beat failed", error=type(reason).__name__, detail=str(reason))


def _job_round_failed(reason: Exception) -> None:
    _log.warning("job round failed", error=type(reason).__name__)


def _relay_failed(metrics: Metrics, reason: Exception) -> None:
    metrics.relay_failed()
    _log.warning("events not numbered", error=type(reason).__name__)


def _sweep_failed(metrics: Metrics, reason: Exception) -> None:
    metrics.sweep_failed()
    _log.warning("sweep failed", error=type(reason).__name__)


def _row_count_failed(metrics: Metrics, reason: Exception) -> None:
    metrics.row_count_failed("count")
    _log.warning("row count failed", error=type(reason).__name__)


def _row_quotas_failed(metrics: Metrics, reason: Exception) -> None:
    metrics.row_count_failed("refresh")
    _log.warning("row quotas not read", error=type(reason).__name__)


def _retention_failed(metrics: Metrics, reason: Exception) -> None:
    metrics.retention_failed()
    _log.warning("retention round failed", error=type(reason).__name__)


async def _anchor(store: Store, ended: asyncio.Event, metrics: Metrics) -> None:
    """Anchor audit logs every minute; the key for it is made before anything that a backup could miss is anchored."""
    try:
        await store.anchors.ensure_signing_key()
    except (StorageError, CryptoError) as reason:
        _log.warning("round failed", round="anchor", error=type(reason).__name__)
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
            _log.warning("round failed", round=what, error=type(reason).__name__)
        else:
            metrics.round_ended(what)
        if last:
            return
