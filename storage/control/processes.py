"""The registry of processes: which gateways and workers run on this database, and what they know.

Every one enters itself before it serves and says every few seconds that it is still there, so that a process that
finishes an upgrade finds out that a build is left which would misread what is switched on. Builds from before the
registry do not enter themselves; they are known by the name of their sessions in the database, unless a pooler hides
it.

It proves nothing against a writer to the database: it guards against a mistake, not against an attack.
"""

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from storage.control.features import KNOWN_NAMES
from storage.postgres.engine import BUILD
from storage.postgres.unit_of_work import Transaction, UnitOfWork
from storage.scope import OperatorScope
from storage.statements.deployment import processes as sql

BEAT_SECONDS = 10.0
# Who was not seen for so long has stopped.
GONE_SECONDS = 60.0
# For so long it is still shown which.
FORGOTTEN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Process:
    """A gateway or a worker.

    ``instance`` is of this run of it. ``place`` is the host and process id, ``build`` the version of the package.
    """

    instance: str
    place: str
    build: str
    features: tuple[str, ...]
    started_at: datetime
    seen_at: datetime
    age_seconds: float

    @property
    def running(self) -> bool:
        """Whether it has to be reckoned with."""
        return self.age_seconds < GONE_SECONDS


class Processes:
    """The registry, and this process's entry in it."""

    def __init__(self, unit_of_work: UnitOfWork) -> None:
        self._unit_of_work = unit_of_work
        self._instance = uuid4()

    async def beat(self) -> None:
        """Say that this process is there.

        Raises:
            Unavailable: the database cannot be reached.
        """
        place = f"{socket.gethostname()}:{os.getpid()}"
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await transaction.run(
                sql.BEAT,
                instance=self._instance,
                place=place,
                build=BUILD,
                features=list(KNOWN_NAMES),
                forgotten_seconds=FORGOTTEN_SECONDS,
            )

    async def leave(self) -> None:
        """Take this process out.

        Raises:
            Unavailable: the database cannot be reached.
        """
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await transaction.run(sql.LEAVE, instance=self._instance)

    async def all(self) -> list[Process]:
        """All that were there within the last hour, those that started first at the beginning."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            return await seen(transaction)

    async def unregistered(self) -> int:
        """How many sessions there are of builds from before the registry."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            return await unregistered(transaction)


async def seen(transaction: Transaction) -> list[Process]:
    """What the registry shows."""
    return [
        Process(
            str(row.instance), row.place, row.build, tuple(row.features), row.started_at, row.seen_at, row.age_seconds
        )
        for row in await transaction.fetch_all(sql.SEEN)
    ]


async def unregistered(transaction: Transaction) -> int:
    """Count the sessions of builds from before the registry."""
    return await transaction.fetch_only(sql.UNREGISTERED)


async def lock(transaction: Transaction) -> None:
    """Have processes that come, or say that they are there, wait for the end of the transaction."""
    await transaction.run(sql.LOCK)
