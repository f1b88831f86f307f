"""Whether this process should get requests (``/readyz``).

Ready means: the cryptographic self-test passed, the process is not draining, the database is writable and
migrated at least as far as this build needs. S3, the archive and the root key are reported but do not count: a key
service that stutters must not take down processes that still serve from their caches.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from msgspec import UNSET, UnsetType

from gateway.limits import Drain
from gateway.telemetry import Metrics
from gateway.wire import Response
from storage.service import Store

PROBE_SECONDS_MAX = 3.0  # a dependency that takes longer is of no use to a request either; balancers wait 5 s
PROBE_SECONDS = 1.0  # the endpoint is public: however often it is asked, the database is asked once a second

Probe = Callable[[], Awaitable[bool]]
_log = structlog.get_logger()


class Report(Response, omit_defaults=True):
    """What `/readyz` says. ``blobs``, ``archive`` and ``root_key`` are absent where they are not probed."""

    ready: bool
    self_test: bool
    draining: bool
    database: bool
    db_revision: str | None
    db_revision_ok: bool
    blobs: bool | UnsetType = UNSET
    archive: bool | UnsetType = UNSET
    root_key: bool | UnsetType = UNSET


class Readiness:
    """Probes the dependencies, at most once a second.

    Args:
        store: Whose database is asked.
        drain: Whether the process is on its way out.
        metrics: Where probes are recorded.
        blob_health: Probe of S3, or None.
        archive_health: Probe of the bucket of archived threads, or None.
        root_key_health: Probe of the root key, or None.
        probe_seconds_max: How long a probe may take; then what it asks is down.
    """

    def __init__(
        self,
        store: Store,
        drain: Drain,
        metrics: Metrics,
        *,
        blob_health: Probe | None = None,
        archive_health: Probe | None = None,
        root_key_health: Probe | None = None,
        probe_seconds_max: float = PROBE_SECONDS_MAX,
    ) -> None:
        self._store = store
        self._drain = drain
        self._metrics = metrics
        self._probes = {"blobs": blob_health, "archive": archive_health, "root_key": root_key_health}
        self._probe_seconds_max = probe_seconds_max
        self._database = False
        self._revision: str | None = None
        self._revision_ok = False
        self._others: dict[str, bool] = {}
        self._until = 0.0
        self.self_test_passed = False

    async def report(self) -> Report:
        """The state of things, not older than `PROBE_SECONDS`."""
        if time.monotonic() >= self._until:
            self._until = time.monotonic() + PROBE_SECONDS
            await self._probe()
        return Report(
            ready=(
                self.self_test_passed
                and not self._drain.draining
                and self._database
                and self._revision_ok  # newer than this build's is fine: expand, then contract
            ),
            self_test=self.self_test_passed,
            draining=self._drain.draining,
            database=self._database,
            db_revision=self._revision,
            db_revision_ok=self._revision_ok,
            blobs=self._others.get("blobs", UNSET),
            archive=self._others.get("archive", UNSET),
            root_key=self._others.get("root_key", UNSET),
        )

    async def _probe(self) -> None:
        others = {name: probe for name, probe in self._probes.items() if probe is not None}
        self._database, *found = await asyncio.gather(
            self._is_up("database", self._ask_database), *(self._is_up(*other) for other in others.items())
        )
        self._others = dict(zip(others, found, strict=True))

    async def _ask_database(self) -> bool:
        found = await self._store.health()
        self._revision, self._revision_ok = found.db_revision, found.revision_ok
        return found.writable

    async def _is_up(self, name: str, probe: Probe) -> bool:
        try:
            async with asyncio.timeout(self._probe_seconds_max):
                up = await probe()
        except Exception as reason:  # noqa: BLE001  whatever it is, the answer is "not ready", not an error
            _log.warning("probe failed", dependency=name, error=type(reason).__name__)
            up = False
        self._metrics.up(name, up)
        return up
