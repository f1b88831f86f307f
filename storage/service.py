"""The composition of storage: one object that holds the pool, the keys and the verbs.

Owns opening and closing. It decides nothing else; what each verb promises is said where the verb is.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from crypto import RootKey
from storage.access import Access
from storage.checkpoints import Checkpoints
from storage.clock import Clock, SystemClock
from storage.errors import SetupError, Unavailable
from storage.keys import Keys
from storage.postgres.engine import create_engine
from storage.postgres.setup import db_revision_required, guard, known_revisions
from storage.postgres.unit_of_work import Observer, Silent, UnitOfWork
from storage.tenants import Tenants
from storage.threads import Threads


@dataclass(frozen=True, slots=True)
class Health:
    """What the database says of itself."""

    writable: bool
    db_revision: str | None
    revision_ok: bool


class Store:
    """Everything storage can do, for whoever has a scope."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        root_key: RootKey,
        deployment_id: UUID,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        clock = clock or SystemClock()
        observer = observer or Silent()
        self._engine = engine
        self.unit_of_work = UnitOfWork(engine, observer)
        self.keys = Keys(self.unit_of_work, root_key, deployment_id, clock, observer)
        access = Access(self.unit_of_work, self.keys, clock, observer)
        self.checkpoints = Checkpoints(access)
        self.threads = Threads(access)
        self.tenants = Tenants(self.unit_of_work, clock)

    @classmethod
    async def open(
        cls,
        database_url: str,
        *,
        root_key: RootKey,
        deployment_id: UUID,
        connections_max: int,
        clock: Clock | None = None,
        observer: Observer | None = None,
        durable: bool = True,
    ) -> "Store":
        """Connect, and refuse a database that must not be served from.

        Args:
            database_url: credentials of gw_app.
            root_key: what unwraps tenant keys.
            deployment_id: bound into every seal.
            connections_max: the pool's size.
            clock: wall time.
            observer: where measurements go.
            durable: False only for tests and throw-away data: allows ``fsync=off``.

        Raises:
            SetupError: why not, and what to do, a line each.
            Unavailable: the database cannot be reached.
        """
        engine = create_engine(database_url, connections_max=connections_max)
        store = cls(engine, root_key=root_key, deployment_id=deployment_id, clock=clock, observer=observer)
        try:
            await store.check(deployment_id, durable=durable)
        except BaseException:
            await store.close()
            raise
        return store

    async def check(self, deployment_id: UUID, *, durable: bool) -> None:
        """Refuse a database that must not be served from.

        Raises:
            SetupError: why not, and what to do, a line each.
        """
        async with self.unit_of_work.connection() as connection:
            faults = await guard(connection, deployment_id=deployment_id, durable=durable)
        if faults:
            raise SetupError("\n".join(faults))

    async def close(self) -> None:
        """Close the pool. What is under way must have ended."""
        await self._engine.dispose()

    async def health(self) -> Health:
        """Whether the database takes writes and has this build's schema. Never raises."""
        try:
            async with self.unit_of_work.connection() as connection:
                writable = not await connection.fetchval("SELECT pg_is_in_recovery()")
                read_only = await connection.fetchval("SHOW default_transaction_read_only")
                revision = await connection.fetchval("SELECT version_num FROM stateroom.db_revision")
        except Unavailable:
            return Health(writable=False, db_revision=None, revision_ok=False)
        current = revision == db_revision_required() or revision not in known_revisions()
        return Health(writable=writable and read_only == "off", db_revision=revision, revision_ok=current)
