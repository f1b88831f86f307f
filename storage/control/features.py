"""Features: what is done only once no process of an older build is left.

A build that stores something its predecessor would misread first ships it switched off. When every process of the
deployment knows it, ``stateroom db finish-upgrade`` (`storage.upgrades`) writes a row here that says since when it is
on. The row carries a MAC of the control key, no gateway may change or delete it, and it holds from a moment ahead, so
that every process has read it when the first one acts on it.

Owns the list of features this build knows, and the question whether one is on. It does not notice that somebody with
the rights of the tables' owner deleted a row while no process ran; one that runs does.
"""

import asyncio
import hmac
import time
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from crypto import KeyUnavailable
from storage.clock import Clock
from storage.control.key import FIRST_FORMAT, NEWEST_FORMAT, ControlKey, Row
from storage.errors import BuildTooOld, FeatureOff, IntegrityFailure
from storage.postgres.unit_of_work import Observer, Transaction, UnitOfWork
from storage.scope import OperatorScope
from storage.statements.deployment import features as sql

# How old what a process knows of the features may be when it acts on it.
REFRESH_SECONDS = 10.0
# A feature is on so long after it was switched on: longer than that, and than clocks may differ.
LEAD_SECONDS = 30.0
_DEPLOYMENT = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that needs all writers of a deployment.

    Attributes:
        name: The name, which never changes.
        does: The difference that it makes, for the person who switches it on.
    """

    name: str
    does: str


CONTROL_ROW_FORMATS = Feature(
    "control-row-formats", "schemas, policies, holds and jobs are written with a MAC that names its format"
)
ADOPTIONS = Feature("adoptions", "unversioned state of an agent can be adopted at a version")
SAVE_POLICIES = Feature("save-policies", "a tenant can have saves refused that do not name the head they follow")
SEALED_API_KEYS = Feature("sealed-api-keys", "an API key whose row has no seal is damaged, and opens nothing")
SEGMENTS = Feature("segments", "old checkpoints of threads that stay hot can be moved to the bucket of archives")
READABLE_EXPORTS = Feature("readable-exports", "API keys may be allowed to export threads in clear (state:export)")
LINKS = Feature("links", "threads can name the thread that they were begun from")
COLD_NAMESPACES = Feature(
    "cold-namespaces", "namespaces of finished calls can move to the bucket of archives whole, with their heads"
)
COMPACTION_POLICIES = Feature("compaction-policies", "a save policy can say when lists need compaction")
ITEMS = Feature("items", "agents can store items: what they remember across threads")
CLEAR_VECTORS = Feature("clear-vectors", "a tenant can have vectors of its items kept in clear, beside the sealed ones")
EVENTS = Feature("events", "tenants can have events told: what happens to their threads, jobs and keys")
DECISIONS = Feature(
    "decisions", "threads can be claimed, people can be asked for approval, and effects can be kept in a ledger"
)
# Every feature of this build. One that was released is never renamed and never taken out.
KNOWN = (
    CONTROL_ROW_FORMATS, ADOPTIONS, SEALED_API_KEYS, SAVE_POLICIES, SEGMENTS, READABLE_EXPORTS, LINKS, COLD_NAMESPACES,
    COMPACTION_POLICIES, ITEMS, CLEAR_VECTORS, EVENTS, DECISIONS,
)  # fmt: skip
KNOWN_NAMES = tuple(feature.name for feature in KNOWN)


def feature_row(name: str, since: datetime) -> Row:
    """A feature that is on."""
    return Row("feature", _DEPLOYMENT, (name,), (since,))


class Features:
    """What is on in this deployment. `ready` comes first, and outside of transactions.

    ``damaged`` names what was switched on or off outside the gateway.
    """

    def __init__(self, unit_of_work: UnitOfWork, key: ControlKey, clock: Clock, observer: Observer) -> None:
        self._unit_of_work = unit_of_work
        self._key = key
        self._clock = clock
        self._observer = observer
        self._since: dict[str, datetime] = {}
        self.damaged: frozenset[str] = frozenset()
        self._fresh_until = float("-inf")
        self._reading = asyncio.Lock()

    async def ready(self) -> None:
        """Have read what is on, at most `REFRESH_SECONDS` ago.

        Raises:
            BuildTooOld: something is on that this build does not know, by name.
            CryptoError: the root key cannot be asked whether a gateway switched on what is on.
            Unavailable: the database cannot be reached.
        """
        if time.monotonic() < self._fresh_until:
            return
        async with self._reading:
            if time.monotonic() >= self._fresh_until:
                await self.refresh()

    async def refresh(self) -> None:
        """Read what is on, now.

        Raises:
            BuildTooOld, CryptoError, Unavailable: as `ready`.
        """
        begun = time.monotonic()
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(sql.FEATURES)
        if unknown := unknown_to_this_build(rows):
            raise BuildTooOld(f"an upgrade was finished that this build does not know: {', '.join(unknown)}")
        await self._key.ready()
        since = {row.feature: row.since for row in rows}
        damaged = {row.feature for row in rows if not self._is_authentic(row)}
        # What was on cannot go, nor move: it was not a gateway that took it away.
        damaged |= {name for name, moment in self._since.items() if since.get(name) != moment}
        if damaged - self.damaged:
            self._observer.integrity_failure()
        self._since = self._since | {name: since[name] for name in since.keys() - damaged}
        self.damaged = frozenset(damaged)
        self._fresh_until = begun + REFRESH_SECONDS

    def is_on(self, feature: Feature) -> bool:
        """Whether all processes do now what this feature is about.

        Raises:
            IntegrityFailure: something other than a gateway says so, or took it away.
            KeyUnavailable: this was not made `ready`.
        """
        self._check(feature)
        since = self._since.get(feature.name)
        return since is not None and self._clock.now() >= since

    def is_switched_on(self, feature: Feature) -> bool:
        """Whether no process of a build runs that does not know this feature; perhaps not all act on it yet.

        It is for what such a build misreads and every process that knows the feature reads at any time.

        Raises:
            IntegrityFailure, KeyUnavailable: As `is_on`.
        """
        self._check(feature)
        return feature.name in self._since

    def _check(self, feature: Feature) -> None:
        if self._fresh_until == float("-inf"):
            raise KeyUnavailable(1.0)
        if feature.name in self.damaged:
            raise IntegrityFailure(f"feature {feature.name} was switched on, or off, outside the gateway")

    async def require(self, feature: Feature, done: str) -> None:
        """Return if a feature is on, which it may be since a moment ago. As `ready`, outside of transactions.

        Args:
            feature: What must be on.
            done: What is asked for, as a sentence without its end.

        Raises:
            FeatureOff: a process of an older build may run, or not all act on it yet.
            BuildTooOld, CryptoError, IntegrityFailure, Unavailable: as `ready` and `is_on`.
        """
        await self.ready()
        if not self.is_on(feature):
            await self.refresh()
        if self.is_on(feature):
            return
        if feature.name in self._since:
            since = f"{self._since[feature.name]:%H:%M:%S}"
            raise FeatureOff(f"{done} from {since} UTC on: it was switched on a moment ago; try again then")
        raise FeatureOff(f"{done} once no older gateway or worker runs: stateroom db finish-upgrade")

    def since(self) -> dict[str, datetime]:
        """What is switched on and since when, which may lie ahead; what is damaged is left out."""
        return {name: moment for name, moment in self._since.items() if name not in self.damaged}

    async def add(self, transaction: Transaction, feature: Feature, since: datetime) -> None:
        """Switch a feature on, in the transaction that found out that no older process is left."""
        mac = self._key.mac(feature_row(feature.name, since), NEWEST_FORMAT)
        await transaction.run(sql.ADD_FEATURE, feature=feature.name, since=since, mac_format=NEWEST_FORMAT, mac=mac)

    def _is_authentic(self, row: sql.FeatureRow) -> bool:
        expected = self._key.mac(feature_row(row.feature, row.since), row.mac_format)
        return row.mac_format > FIRST_FORMAT and hmac.compare_digest(expected, row.mac)


def unknown_to_this_build(rows: list[sql.FeatureRow]) -> list[str]:
    """The names of features that a newer build switched on."""
    return [row.feature for row in rows if row.feature not in KNOWN_NAMES or row.mac_format > NEWEST_FORMAT]
