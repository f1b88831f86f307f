"""Finishing an upgrade: switching on what needs every process of the deployment to know it.

Owns the decision that no older process is left, or that none ever was. It changes no stored row: what is on is acted on
by the next writer.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from storage.administration.audit import LOCAL_ACTOR, Audit
from storage.clock import Clock
from storage.control.features import KNOWN, LEAD_SECONDS, Feature, Features
from storage.control.processes import Processes, lock, seen, unregistered
from storage.errors import IntegrityFailure, OlderProcess
from storage.format.audit import OPERATOR_CHAIN
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import OperatorScope
from storage.statements.threads.verifying import COUNT_TENANTS


@dataclass(frozen=True, slots=True)
class Finished:
    """What finishing an upgrade switched on; nothing, if all was on already."""

    features: tuple[Feature, ...]
    since: datetime | None


_LEAD = timedelta(seconds=LEAD_SECONDS)


class Upgrades:
    """The end of an upgrade."""

    def __init__(self, unit_of_work: UnitOfWork, features: Features, audit: Audit, clock: Clock) -> None:
        self.processes = Processes(unit_of_work)
        self._unit_of_work = unit_of_work
        self._features = features
        self._audit = audit
        self._clock = clock

    async def pending(self) -> tuple[Feature, ...]:
        """What this build knows and is not switched on.

        Raises:
            BuildTooOld: something is on that this build does not know.
            CryptoError: the root key cannot be asked what is on.
            IntegrityFailure: some of it was switched on or off outside the gateway.
        """
        await self._features.refresh()
        if damaged := sorted(self._features.damaged):
            raise IntegrityFailure(f"switched on, or off, outside the gateway: {', '.join(damaged)}")
        on = self._features.since()
        return tuple(feature for feature in KNOWN if feature.name not in on)

    async def begin(self) -> Finished:
        """Switch on what this build knows, in a deployment that has no tenant yet: no older build stored anything.

        Where no process runs yet either, it holds at once: whoever comes reads what is on before it does anything.

        Raises:
            BuildTooOld, CryptoError, IntegrityFailure, OlderProcess, Unavailable: as `finish`.
        """
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            if await transaction.fetch_only(COUNT_TENANTS):
                return Finished((), None)
            alone = not any(each.running for each in await seen(transaction))
        return await self._finish(timedelta(0) if alone else _LEAD)

    async def finish(self, *, no_older_process: bool = False, actor: str = LOCAL_ACTOR) -> Finished:
        """Switch on what all processes know. Repeating it changes nothing.

        ``no_older_process``: the caller says that no process runs of a build from before the registry. Only people
        know, where a pooler hides whose sessions there are; what is in the registry counts all the same.

        Raises:
            OlderProcess: one runs that does not know all of it.
            BuildTooOld, CryptoError, IntegrityFailure: as `pending`.
            Unavailable: the database cannot be reached.
        """
        return await self._finish(_LEAD, no_older_process=no_older_process, actor=actor)

    async def _finish(self, lead: timedelta, *, no_older_process: bool = False, actor: str = LOCAL_ACTOR) -> Finished:
        pending = await self.pending()
        if not pending:
            return Finished((), None)
        since = self._clock.now() + lead
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await lock(transaction)
            await _refuse_older(transaction, pending, no_older_process=no_older_process)
            for feature in pending:
                await self._features.add(transaction, feature, since)
                detail = {"since": since.isoformat(), "no_older_process": no_older_process}
                await self._audit.append(
                    transaction, OPERATOR_CHAIN, actor, "feature.on", f"feature:{feature.name}", detail
                )
        await self._features.refresh()
        return Finished(pending, since)


async def _refuse_older(transaction: Transaction, pending: tuple[Feature, ...], *, no_older_process: bool) -> None:
    needed = {feature.name for feature in pending}
    older = [each for each in await seen(transaction) if each.running and needed - set(each.features)]
    if older:
        named = ", ".join(f"{each.place} ({each.build}, seen {each.age_seconds:.0f} s ago)" for each in older)
        raise OlderProcess(f"an older build runs: {named}")
    if not no_older_process and (sessions := await unregistered(transaction)):
        raise OlderProcess(f"a build that enters no registry has {sessions} sessions in the database")
