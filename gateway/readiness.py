"""Whether this process should get requests (``/readyz``).

Ready means: the cryptographic self-test passed, the process is not draining, the database is writable, no lock keeps
saves out, the last writes of this process were not all refused (`gateway.admission.write_outcomes`), the database is
migrated at least as far as this build needs, no newer build has finished an upgrade that this one does not know, and
the database has what was anchored of its audit logs. S3, the archive and the root key are reported but do not count: a
key service that stutters must not take down processes that still serve from their caches. Nor does a clock that is not
the database's: such a process serves, and removes nothing by time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog
from msgspec import UNSET, UnsetType

from gateway.admission.limits import Drain
from gateway.admission.write_outcomes import WriteOutcomes
from gateway.telemetry import Metrics
from gateway.wire.base import Response
from storage.control.clock_check import OFFSET_SECONDS_MAX, ClockOffset
from storage.encoding import encode_json
from storage.service import Store

PROBE_SECONDS_MAX = 3.0  # a dependency that takes longer is of no use to a request either; balancers wait 5 s
WATCH_SECONDS = 10.0  # how often a process looks by itself
PROBE_SECONDS = 1.0  # the endpoint is public: however often it is asked, the database is asked once a second

Probe = Callable[[], Awaitable[bool]]
_log = structlog.get_logger()


class Report(Response, omit_defaults=True):
    """What `/readyz` says. ``blobs``, ``archive`` and ``root_key`` are absent where they are not probed.

    ``writes``: whether the database takes saves now: no lock keeps them out, and it did not refuse the last ones here,
    as it does without room. ``history``: whether the database has what this process knows to have been anchored of its
    audit logs. ``clock``: whether this process's clock and the database's agree; ``clock_offset_seconds``: how far the
    database's is ahead, null while nobody could ask.
    """

    ready: bool
    self_test: bool
    draining: bool
    database: bool
    writes: bool
    db_revision: str | None
    db_revision_fits: bool
    features_known: bool
    history: bool
    clock: bool
    clock_offset_seconds: float | None
    blobs: bool | UnsetType = UNSET
    archive: bool | UnsetType = UNSET
    root_key: bool | UnsetType = UNSET


class Probes(NamedTuple):
    """Probes of what a process works with beside its database; None: it has none.

    Attributes:
        blobs: The probe of the object store.
        archive: The probe of the bucket of archived threads.
        root_key: The probe of the root key.
    """

    blobs: Probe | None = None
    archive: Probe | None = None
    root_key: Probe | None = None


NO_PROBES: Final = Probes()


class Readiness:
    """Probes the dependencies, at most once a second.

    Args:
        store: The store whose database is asked.
        drain: Whether the process is on its way out.
        metrics: The metrics that record probes.
        outcomes: The outcomes of the last writes of the process.
        probes: Probes of what is reported and does not count.
        probe_seconds_max: How long a probe may take; then what it asks is down.
    """

    def __init__(
        self,
        store: Store,
        drain: Drain,
        metrics: Metrics,
        outcomes: WriteOutcomes,
        *,
        probes: Probes = NO_PROBES,
        probe_seconds_max: float = PROBE_SECONDS_MAX,
    ) -> None:
        self._store = store
        self._drain = drain
        self._metrics = metrics
        self._outcomes = outcomes
        self._probes = probes._asdict()
        self._probe_seconds_max = probe_seconds_max
        self._database = False
        self._unlocked = False
        self._revision: str | None = None
        self._revision_ok = False
        self._features_known = False
        self._history = True
        self._clock: ClockOffset | None = None
        self._others: dict[str, bool] = {}
        self._until = 0.0
        self._probing = asyncio.Lock()  # who asks meanwhile waits for what is found
        self.self_test_passed = False

    async def report(self) -> Report:
        """The state of things, not older than `PROBE_SECONDS`."""
        async with self._probing:
            if time.monotonic() >= self._until:
                await self._probe()
                self._until = time.monotonic() + PROBE_SECONDS
        writes = self._database and self._unlocked and not self._outcomes.are_refused
        return Report(
            ready=(
                self.self_test_passed
                and not self._drain.draining
                and writes
                and self._features_known
                and self._history
                and self._revision_ok  # newer than this build's is fine: expand, then contract
            ),
            self_test=self.self_test_passed,
            draining=self._drain.draining,
            database=self._database,
            writes=writes,
            db_revision=self._revision,
            db_revision_fits=self._revision_ok,
            features_known=self._features_known,
            history=self._history,
            clock=self._clock is None or self._clock.agrees,
            clock_offset_seconds=None if self._clock is None else round(self._clock.seconds, 3),
            blobs=self._others.get("blobs", UNSET),
            archive=self._others.get("archive", UNSET),
            root_key=self._others.get("root_key", UNSET),
        )

    async def probe(self) -> tuple[bool, bytes]:
        """Whether the process is ready, and the report as JSON."""
        report = await self.report()
        return report.ready, encode_json(report)

    async def _probe(self) -> None:
        others = {name: probe for name, probe in self._probes.items() if probe is not None}
        self._database, *states = await asyncio.gather(
            self._is_up("database", self._ask_database), *(self._is_up(*other) for other in others.items())
        )
        self._others = dict(zip(others, states, strict=True))

    async def _ask_database(self) -> bool:
        health = await self._store.health()
        self._revision, self._revision_ok = health.db_revision, health.revision_ok
        self._features_known = health.writable and not health.unknown_features
        self._unlocked = health.unlocked
        self._history = health.history
        self._note_clock(health.clock)
        return health.writable

    def _note_clock(self, offset: ClockOffset | None) -> None:
        before, self._clock = self._clock, offset
        if offset is None:
            return
        self._metrics.clock_offset_seconds.set(offset.seconds)
        if not offset.agrees and (before is None or before.agrees):
            _log.error("clock is off", offset_seconds=round(offset.seconds, 3), bound_seconds=OFFSET_SECONDS_MAX)

    async def keep_watching(self) -> None:
        """Probe again and again, until cancelled, also where no one asks: what is found is measured and logged."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.report()

    async def _is_up(self, name: str, probe: Probe) -> bool:
        try:
            async with asyncio.timeout(self._probe_seconds_max):
                up = await probe()
        except Exception as reason:  # noqa: BLE001  whatever it is, the answer is "not ready", not an error
            _log.warning("probe failed", dependency=name, error=type(reason).__name__)
            up = False
        self._metrics.up(name, up)
        return up
