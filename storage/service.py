"""The composition of storage: one object that holds the pool, the keys and the verbs.

Owns opening and closing. It decides nothing else; what each verb promises is said where the verb is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from crypto import RootKey
from migrations.state.chain import Chain
from storage.access import Access
from storage.anchors import Anchors, Restored
from storage.archive_objects import ArchiveObjects
from storage.archive_views import ArchiveViews
from storage.archives import ARCHIVE_KIND, RESTORE_KIND, Archives
from storage.artifact_rows import ArtifactRows
from storage.artifacts import Artifacts
from storage.audit import Audit
from storage.blob_io import ARCHIVE_BYTES_MAX, PIECE_BYTES_MAX, BlobReader, BlobWriter
from storage.blob_ledger import BlobLedger
from storage.blobs.places import Places
from storage.blobs.store import BlobStore
from storage.checkpoints import Checkpoints
from storage.clock import Clock, SystemClock
from storage.compacting import Compacting
from storage.control_rows import ControlRows
from storage.errors import SetupError, Unavailable
from storage.exporting import EXPORT_KIND, IMPORT_KIND, Exporting, abandoned
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.fsck import Fsck
from storage.head_anchors import HeadAnchors
from storage.importing import Importing
from storage.jobs import Jobs, Runner
from storage.keys import Keys
from storage.migrating import STATE_MIGRATE_KIND, STATE_PLAN_KIND, STATE_ROLLBACK_KIND, Migrating
from storage.offload import Offload
from storage.pieces import Pieces
from storage.postgres.engine import create_engine, speaks_to_a_pooler
from storage.postgres.setup import db_revision_required, guard, known_revisions
from storage.postgres.unit_of_work import Observer, Silent, UnitOfWork
from storage.pruning import Pruning
from storage.quiet import Quiet
from storage.reseal import PAUSE_RATIO, RESEAL_KIND, Reseal
from storage.retaining import Retaining
from storage.retention_policies import RetentionPolicies
from storage.rotation import REWRAP_ROOT_KIND, REWRAP_TENANT_KIND, Rotation
from storage.shred import SHRED_SUBJECT_KIND, SHRED_TENANT_KIND, Accepted, Shred
from storage.state_schemas import StateSchemas
from storage.states import States
from storage.sweep import Sweep
from storage.tenants import Tenants
from storage.threads import Threads
from storage.transfer_keys import TransferKeys
from storage.verify import Verification
from storage.verifying import VERIFY_DEPLOYMENT_KIND, VERIFY_TENANT_KIND, Verifying

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
        archive: BlobStore | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        backup_retention_days: int = BACKUP_RETENTION_DAYS,
        reseal_pause_ratio: float = PAUSE_RATIO,
        offload_bytes_min: int = OFFLOAD_BYTES_MIN,
        shipped: Mapping[str, Chain] | None = None,
    ) -> None:
        clock = clock or SystemClock()
        observer = observer or Silent()
        self._engine = engine
        self.unit_of_work = UnitOfWork(engine, observer)
        self.keys = Keys(self.unit_of_work, root_key, deployment_id, clock, observer)
        self.control = ControlRows(self.unit_of_work, root_key, deployment_id, clock, observer)
        self.head_anchors = HeadAnchors(blobs)
        self.ledger = BlobLedger(self.unit_of_work)
        self.blob_writer = None if blobs is None else BlobWriter(blobs)
        self.blob_reader = None if blobs is None else BlobReader(blobs)
        # Files come and go as slowly as their peers; saves and loads do not wait for memory that those hold.
        piece_writer = None if blobs is None else BlobWriter(blobs, bytes_max=PIECE_BYTES_MAX)
        piece_reader = None if blobs is None else BlobReader(blobs, bytes_max=PIECE_BYTES_MAX)
        offload = Offload(self.unit_of_work, self.ledger, piece_writer, piece_reader, clock, offload_bytes_min)
        self.archive = archive
        self.archive_writer = None if archive is None else BlobWriter(archive, bytes_max=ARCHIVE_BYTES_MAX)
        self.archive_reader = None if archive is None else BlobReader(archive, bytes_max=ARCHIVE_BYTES_MAX)
        objects = ArchiveObjects(archive, self.archive_reader)
        access = Access(
            self.unit_of_work, self.keys, clock, observer, self.head_anchors, offload,
            ArchiveViews(self.unit_of_work, objects), control=self.control,
        )  # fmt: skip
        self.checkpoints = Checkpoints(access)
        self.threads = Threads(access)
        self.pruning = Pruning(access)
        self.pieces = Pieces(access)
        self.verification = Verification(access, self.head_anchors, objects)
        self.blobs = blobs
        self.artifacts = Artifacts(access, self.ledger, blobs, self.blob_writer, self.blob_reader)
        self.places = Places(blobs, archive)
        self.sweep = Sweep(self.unit_of_work, self.places, backup_retention_days)
        self.fsck = Fsck(self.unit_of_work, self.ledger, self.places, clock)
        self.audit = Audit(self.unit_of_work, deployment_id, clock, observer)
        self.anchors = Anchors(self.unit_of_work, self.audit, root_key, blobs, deployment_id, clock)
        self.tenants = Tenants(self.unit_of_work, self.audit, clock)
        self.jobs = Jobs(self.unit_of_work, self.control)
        self.archives = Archives(access, objects, archive, self.archive_writer, self.jobs, self.audit)
        access.restorer, access.thaw_progress = self.archives.bring_back, self.archives.thaw_progress
        self.retention_policies = RetentionPolicies(self.unit_of_work, self.audit, clock, self.pruning, self.control)
        self.retaining = Retaining(
            self.unit_of_work, self.audit, clock, self.threads, self.pruning, self.archives, self.control
        )
        self.state_schemas = StateSchemas(self.unit_of_work, self.audit, clock, self.control, shipped)
        self.states = States(self.checkpoints, self.state_schemas, observer)
        self.compacting = Compacting(access, self.states)
        self.migrating = Migrating(
            self.unit_of_work, self.jobs, self.audit, self.checkpoints, self.states, self.state_schemas
        )
        self.transfer_keys = TransferKeys(self.unit_of_work, root_key, deployment_id, clock, observer)
        files = ArtifactRows(access, self.ledger, blobs, self.blob_writer, self.blob_reader)
        self.exporting = Exporting(
            access, files, self.state_schemas, self.retention_policies, self.jobs, self.audit, deployment_id
        )
        self.importing = Importing(
            access, self.keys, self.transfer_keys, files, piece_writer, self.exporting, self.state_schemas,
            self.retention_policies, self.jobs, self.audit,
        )  # fmt: skip
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
            self.control,
        )
        self.verifying = Verifying(
            self.unit_of_work,
            self.keys,
            self.jobs,
            self.audit,
            self.verification,
            self.head_anchors,
            self.shred,
            self.anchors,
            self.state_schemas,
            self.control,
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
                VERIFY_TENANT_KIND: self.verifying.perform_tenant,
                VERIFY_DEPLOYMENT_KIND: self.verifying.perform_deployment,
                STATE_PLAN_KIND: self.migrating.perform,
                STATE_MIGRATE_KIND: self.migrating.perform,
                STATE_ROLLBACK_KIND: self.migrating.perform,
                EXPORT_KIND: abandoned,
                IMPORT_KIND: abandoned,
                ARCHIVE_KIND: self.archives.perform_archive,
                RESTORE_KIND: self.archives.perform_restore,
            },
            observer,
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
        archive: BlobStore | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        durable: bool = True,
        backup_retention_days: int = BACKUP_RETENTION_DAYS,
        restored: bool = False,
        offload_bytes_min: int = OFFLOAD_BYTES_MIN,
        shipped: Mapping[str, Chain] | None = None,
    ) -> "Store":
        """Connect, and refuse a database that must not be served from.

        Args:
            database_url: credentials of gw_app.
            root_key: what unwraps tenant keys.
            deployment_id: bound into every seal.
            connections_max: the pool's size.
            blobs: the object store, whose life is the caller's; None: there is none.
            archive: the object store of archived threads, likewise; it may be the same bucket.
            clock: wall time.
            observer: where measurements go.
            durable: False only for tests and throw-away data: allows ``fsync=off``.
            backup_retention_days: when the last backup that holds a shredded key has expired.
            restored: open a restored database to accept it (`Anchors.accept_restored`, `Shred.accept`), not to serve
                from.
            offload_bytes_min: how large a piece of a value must be to live in the object store. It may be another one
                at each start: what is stored stays where it is.
            shipped: chains of Python steps, by the name that a state schema opts in by.

        Raises:
            SetupError: why not, and what to do, a line each.
            Unavailable: the database, or the object store with its tombstones and anchors, cannot be reached.
        """
        engine = create_engine(database_url, connections_max=connections_max)
        store = cls(
            engine,
            root_key=root_key,
            deployment_id=deployment_id,
            blobs=blobs,
            archive=archive,
            clock=clock,
            observer=observer,
            backup_retention_days=backup_retention_days,
            offload_bytes_min=offload_bytes_min,
            shipped=shipped,
        )
        try:
            pooled = speaks_to_a_pooler(database_url)
            await store.check(deployment_id, durable=durable, connections_max=None if pooled else connections_max)
            if not restored:
                await store.check_restored()
        except BaseException:
            await store.close()
            raise
        return store

    async def check(self, deployment_id: UUID, *, durable: bool, connections_max: int | None) -> None:
        """Refuse a database that must not be served from.

        Args:
            deployment_id: this deployment.
            durable: require that it commits durably.
            connections_max: how many connections it must be able to give; None: a pooler gives them.

        Raises:
            SetupError: why not, and what to do, a line each.
        """
        async with self.unit_of_work.connection() as connection:
            faults = await guard(
                connection, deployment_id=deployment_id, durable=durable, connections_max=connections_max
            )
        if faults:
            raise SetupError("\n".join(faults))

    async def check_restored(self) -> None:
        """Refuse a database that is older than what the object store says of it: a backup was restored.

        It would bring back what was shredded, and have its audit log go on as if nothing had been lost.

        Raises:
            SetupError: which shreds and how many audit events it does not know, and what to do.
            IntegrityFailure: something that is no anchor stands among the anchors.
            BlobUnavailable: the object store does not answer, so that nobody knows.
        """
        faults = []
        if unapplied := await self.shred.unapplied():
            faults.append(
                f"{len(unapplied)} shreds are not applied in this database, which was probably restored from a backup;"
                " run 'stateroom restore accept' to destroy those keys again before serving from it"
            )
        if behind := await self.anchors.behind():
            faults.append(
                f"{len(behind)} audit logs end before an event that was anchored in the object store; if a backup was"
                " restored, run 'stateroom restore accept' to put on record what they lost before serving from it"
            )
        if faults:
            raise SetupError("\n".join(faults))

    async def accept_restored(self, actor: str) -> tuple[list[Restored], list[Accepted]]:
        """Make a restored database one that may be served from. Repeating it changes nothing.

        Args:
            actor: Who accepts.

        Returns:
            The audit logs that go on behind a gap, and the shreds that were applied again.

        Raises:
            IntegrityFailure: an anchor or a tombstone is not authentic, or a log does not verify by itself.
            BlobUnavailable: the object store does not answer.
            CryptoError: the root key does not open what is needed now.
        """
        # First, so that a gap names what the backup held and not what is done to it now.
        restored = await self.anchors.accept_restored(actor)
        accepted = await self.shred.accept()
        # A shred of a tenant the backup does not have begins that tenant's log anew, which was anchored further.
        return restored + await self.anchors.accept_restored(actor), accepted

    async def close(self) -> None:
        """Close the pool. What is under way must have ended."""
        self.state_schemas.close()
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
