"""The composition of storage: one object that holds the pool, the keys and the verbs.

Owns opening and closing. It decides nothing else; what each verb promises is said where the verb is.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from crypto import RootKey
from storage.access import Access
from storage.anchors import Anchors
from storage.audit import Audit
from storage.blobs.store import BlobStore
from storage.checkpoints import Checkpoints
from storage.clock import Clock, SystemClock
from storage.errors import SetupError, Unavailable
from storage.head_anchors import HeadAnchors
from storage.jobs import Jobs, Runner
from storage.keys import Keys
from storage.postgres.engine import create_engine
from storage.postgres.setup import db_revision_required, guard, known_revisions
from storage.postgres.unit_of_work import Observer, Silent, UnitOfWork
from storage.quiet import Quiet
from storage.reseal import PAUSE_RATIO, RESEAL_KIND, Reseal
from storage.rotation import REWRAP_ROOT_KIND, REWRAP_TENANT_KIND, Rotation
from storage.shred import SHRED_SUBJECT_KIND, SHRED_TENANT_KIND, Shred
from storage.tenants import Tenants
from storage.threads import Threads
from storage.verify import Verification

# As the setting's default; see `gateway.settings`.
BACKUP_RETENTION_DAYS = 30


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
        blobs: BlobStore | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        backup_retention_days: int = BACKUP_RETENTION_DAYS,
        reseal_pause_ratio: float = PAUSE_RATIO,
    ) -> None:
        clock = clock or SystemClock()
        observer = observer or Silent()
        self._engine = engine
        self.unit_of_work = UnitOfWork(engine, observer)
        self.keys = Keys(self.unit_of_work, root_key, deployment_id, clock, observer)
        self.head_anchors = HeadAnchors(blobs)
        access = Access(self.unit_of_work, self.keys, clock, observer, self.head_anchors)
        self.checkpoints = Checkpoints(access)
        self.threads = Threads(access)
        self.verification = Verification(access, self.head_anchors)
        self.blobs = blobs
        self.audit = Audit(self.unit_of_work, deployment_id, clock, observer)
        self.anchors = Anchors(self.unit_of_work, self.audit, root_key, blobs, deployment_id, clock)
        self.tenants = Tenants(self.unit_of_work, self.audit, clock)
        self.jobs = Jobs(self.unit_of_work)
        quiet = Quiet(self.unit_of_work)
        self.rotation = Rotation(self.unit_of_work, self.keys, self.jobs, self.audit, root_key, deployment_id, clock)
        self.shred = Shred(
            self.unit_of_work,
            self.keys,
            self.jobs,
            self.audit,
            quiet,
            root_key,
            blobs,
            deployment_id,
            clock,
            backup_retention_days,
        )
        reseal = Reseal(access, quiet, self.audit, reseal_pause_ratio)
        self.runner = Runner(
            self.jobs,
            {
                REWRAP_ROOT_KIND: self.rotation.perform_root,
                REWRAP_TENANT_KIND: self.rotation.perform_tenant,
                RESEAL_KIND: reseal.perform,
                SHRED_SUBJECT_KIND: self.shred.perform,
                SHRED_TENANT_KIND: self.shred.perform,
            },
        )

    @classmethod
    async def open(
        cls,
        database_url: str,
        *,
        root_key: RootKey,
        deployment_id: UUID,
        connections_max: int,
        blobs: BlobStore | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        durable: bool = True,
        backup_retention_days: int = BACKUP_RETENTION_DAYS,
        restored: bool = False,
    ) -> "Store":
        """Connect, and refuse a database that must not be served from.

        Args:
            database_url: credentials of gw_app.
            root_key: what unwraps tenant keys.
            deployment_id: bound into every seal.
            connections_max: the pool's size.
            blobs: the object store, whose life is the caller's; None: there is none.
            clock: wall time.
            observer: where measurements go.
            durable: False only for tests and throw-away data: allows ``fsync=off``.
            backup_retention_days: when the last backup that holds a shredded key has expired.
            restored: open a restored database to apply shreds again (`Shred.accept`), not to serve from.

        Raises:
            SetupError: why not, and what to do, a line each.
            Unavailable: the database, or the object store with its tombstones, cannot be reached.
        """
        engine = create_engine(database_url, connections_max=connections_max)
        store = cls(
            engine,
            root_key=root_key,
            deployment_id=deployment_id,
            blobs=blobs,
            clock=clock,
            observer=observer,
            backup_retention_days=backup_retention_days,
        )
        try:
            await store.check(deployment_id, durable=durable)
            if not restored:
                await store.check_tombstones()
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

    async def check_tombstones(self) -> None:
        """Refuse a database that was restored from before a shred: it would bring back what was shredded.

        Raises:
            SetupError: which shreds it does not know, and what to do.
            BlobUnavailable: the object store does not answer, so that nobody knows.
        """
        unapplied = await self.shred.unapplied()
        if unapplied:
            raise SetupError(
                f"{len(unapplied)} shreds are not applied in this database, which was probably restored from a backup;"
                " run 'stateroom restore accept' to destroy those keys again before serving from it"
            )

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
