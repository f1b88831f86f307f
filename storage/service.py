"""The composition of storage: one object that holds the pool, the keys and the verbs.

Owns opening and closing. It decides nothing else; what each verb promises is said where the verb is.
"""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from crypto import RootKey
from storage.access.access import Access
from storage.access.head_anchors import HeadAnchors
from storage.access.offload import Offload
from storage.access.row_quotas import RowQuotas
from storage.access.sealing import Parts, Sealing
from storage.administration.anchors import Anchors, Restored
from storage.administration.audit import Audit
from storage.administration.jobs import ARCHIVE_KIND, RESTORE_KIND, Jobs, Runner
from storage.administration.row_census import RowCounting
from storage.administration.tenants import UNLIMITED, DefaultQuotas, Tenants
from storage.approvals.consuming import Consuming
from storage.approvals.expiring import Expiring
from storage.approvals.policies import ApprovalPolicies
from storage.approvals.verbs import Approvals
from storage.archive.moving import Archives
from storage.artifacts.rows import ArtifactRows
from storage.artifacts.verbs import Artifacts
from storage.blobs.buckets import Buckets
from storage.blobs.store import BlobStore
from storage.checkpoints.compacting import Compacting
from storage.checkpoints.single_pieces import Pieces
from storage.checkpoints.states import States
from storage.checkpoints.verbs import Checkpoints
from storage.claims.verbs import Claims
from storage.clear_vectors.filling import Filling
from storage.clear_vectors.policies import CLEAR_KIND, SEAL_KIND, VectorPolicies
from storage.clock import Clock, SystemClock
from storage.collection.accepted_losses import AcceptedLosses
from storage.collection.fsck import Fsck
from storage.collection.sweep import Sweep
from storage.control.clock_check import ClockOffset, measure_offset
from storage.control.deployment_keys import Deployment
from storage.control.features import unknown_to_this_build
from storage.control.rows import ControlRows
from storage.control_repair import ControlRepair
from storage.effects.verbs import Effects
from storage.errors import SetupError, Unavailable
from storage.event_queue.emitting import Emitting
from storage.events.keeping import EventKeeping
from storage.events.relay import EventRelay
from storage.events.verbs import Events
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.items.verbs import Items
from storage.job_cancelling import JobCancelling
from storage.key_lifecycle.parts import Parts as KeyParts
from storage.key_lifecycle.reseal import COMPLETE_KIND, PAUSE_RATIO, RESEAL_KIND, Reseal
from storage.key_lifecycle.rewriting import Rewriting
from storage.key_lifecycle.rotation import REWRAP_ROOT_KIND, REWRAP_TENANT_KIND, Rotation
from storage.key_lifecycle.shred import SHRED_SUBJECT_KIND, SHRED_TENANT_KIND, Accepted, EventParts, Shred
from storage.key_lifecycle.tombstones import Tombstones
from storage.keys.keys import Keys
from storage.keys.observed_root_key import ObservedRootKey
from storage.keys.older_transactions import OlderTransactions
from storage.keys.transfer_keys import TransferKeys
from storage.ledger.ledger import BlobLedger
from storage.ledger.streams import ARCHIVE_BYTES_MAX, PIECE_BYTES_MAX, BlobReader, BlobWriter
from storage.migration.jobs import STATE_MIGRATE_KIND, STATE_PLAN_KIND, STATE_ROLLBACK_KIND, Migrating
from storage.postgres import server
from storage.postgres.engine import create_engine, speaks_to_a_pooler
from storage.postgres.session import Session
from storage.postgres.setup import db_revision_required, guard, known_revisions
from storage.postgres.unit_of_work import Observer, Silent, UnitOfWork
from storage.retention.policies import RetentionPolicies
from storage.retention.preview import RetentionPreview
from storage.retention.rounds import Acts, Retaining
from storage.schemas.adoptions import Adoptions
from storage.schemas.edits import EditWork
from storage.schemas.registry import StateSchemas
from storage.schemas.save_policies import SavePolicies
from storage.schemas.work import StateWork
from storage.schemas.workers import Workers
from storage.statements.deployment.features import FEATURES
from storage.statements.threads.checkpoints import WAIT_AS_SAVES
from storage.threads.holds import every_policy
from storage.threads.links import Links
from storage.threads.pruning import Pruning
from storage.threads.verbs import Threads
from storage.tiers.objects import ArchiveObjects
from storage.tiers.views import ArchiveViews
from storage.transfer.exporting import EXPORT_KIND, IMPORT_KIND, Exporting, TransferParts, abandoned
from storage.transfer.importing import Importing
from storage.transfer.trajectories import Trajectories
from storage.transfer.unbound_imports import UnboundImports
from storage.upgrades import Upgrades
from storage.verification.jobs import VERIFY_DEPLOYMENT_KIND, VERIFY_TENANT_KIND, SteeringRows, Verifying, Witnesses
from storage.verification.threads import Verification

# As the setting's default; see `gateway.settings`.
BACKUP_RETENTION_DAYS = 30


@dataclass(frozen=True, slots=True)
class Health:
    """What the database says of itself.

    ``unlocked``: whether no session holds a lock on tables that keeps saves out.
    """

    writable: bool
    db_revision: str | None
    revision_ok: bool
    clock: ClockOffset | None
    history: bool = True
    unknown_features: tuple[str, ...] = ()
    unlocked: bool = True


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What a store has and does besides what every one needs.

    Attributes:
        blobs: The object store, whose life is the caller's; None: there is none.
        archive: The object store of archived threads, likewise; it may be the same bucket.
        clock: The wall time.
        observer: The receiver of measurements.
        backup_retention_days: The days after which the last backup that holds a shredded key has expired.
        reseal_pause_ratio: The pauses of re-sealing, in multiples of its work.
        offload_bytes_min: The bytes that a piece of a value must have to live in the object store. They may be others
            at each start: what is stored stays where it is.
        steps_folder: The folder of the deployment's own steps of state schemas in Python.
        traceable: Whether debuggers may look into worker processes.
        default_quotas: The quotas that new tenants begin with.
    """

    blobs: BlobStore | None = None
    archive: BlobStore | None = None
    clock: Clock = field(default_factory=SystemClock)
    observer: Observer = field(default_factory=Silent)
    backup_retention_days: int = BACKUP_RETENTION_DAYS
    reseal_pause_ratio: float = PAUSE_RATIO
    offload_bytes_min: int = OFFLOAD_BYTES_MIN
    steps_folder: Path | None = None
    traceable: bool = False
    default_quotas: DefaultQuotas = UNLIMITED


DEFAULT_OPTIONS = StoreOptions()


class Store:
    """Everything storage can do, for a caller that has a scope."""

    def __init__(  # noqa: PLR0915  one statement a part
        self,
        engine: AsyncEngine,
        *,
        root_key: RootKey,
        deployment_id: UUID,
        options: StoreOptions = DEFAULT_OPTIONS,
    ) -> None:
        clock, observer, blobs, archive = options.clock, options.observer, options.blobs, options.archive
        self._engine = engine
        self.unit_of_work = UnitOfWork(engine, observer)
        self.keys = Keys(self.unit_of_work, root_key, deployment_id, clock, observer)
        deployment = self._deployment = Deployment(self.unit_of_work, root_key, deployment_id, clock, observer)
        self.control = ControlRows(deployment)
        self.features = self.control.features
        self.emitting = Emitting(self.unit_of_work, self.features)
        self.event_relay = EventRelay(self.unit_of_work, self.features, self.emitting)
        self.event_keeping = EventKeeping(self.unit_of_work, self.event_relay)
        self.row_quotas = RowQuotas(self.unit_of_work)
        self.row_counting = RowCounting(self.unit_of_work, self.row_quotas)
        self.head_anchors = HeadAnchors(blobs)
        self.ledger = BlobLedger(self.unit_of_work)
        self.blob_writer = None if blobs is None else BlobWriter(blobs)
        self.blob_reader = None if blobs is None else BlobReader(blobs)
        # Files come and go as slowly as their peers; saves and loads do not wait for memory that those hold.
        piece_writer = None if blobs is None else BlobWriter(blobs, bytes_max=PIECE_BYTES_MAX)
        self.archive = archive
        self.archive_writer = None if archive is None else BlobWriter(archive, bytes_max=ARCHIVE_BYTES_MAX)
        self.archive_reader = None if archive is None else BlobReader(archive, bytes_max=ARCHIVE_BYTES_MAX)
        objects = ArchiveObjects(archive, self.archive_reader)
        self.audit = Audit(self.unit_of_work, deployment_id, clock, observer)
        parts = Parts(
            self.unit_of_work, self.keys, clock, observer, self.control,
            Offload(
                self.unit_of_work, self.ledger, piece_writer,
                None if blobs is None else BlobReader(blobs, bytes_max=PIECE_BYTES_MAX), clock,
                options.offload_bytes_min,
            ),
            self.row_quotas, self.emitting, self.audit, self.head_anchors,
        )  # fmt: skip
        self.jobs = Jobs(self.unit_of_work, self.control, self.emitting)
        self.archives = Archives(Sealing(parts), objects, self.archive_writer, self.jobs, self.audit)
        access = Access(parts, self.archives, ArchiveViews(self.unit_of_work, objects))
        self.workers = Workers(observer, steps_folder=options.steps_folder, traceable=options.traceable)
        self.approvals = Approvals(access, EditWork(self.workers))
        self.approval_policies = ApprovalPolicies(self.unit_of_work, self.audit, self.control)
        self.consuming = Consuming(access)
        self.approvals_expiring = Expiring(access)
        self.checkpoints = Checkpoints(access)
        self.threads = Threads(access)
        self.claims = Claims(access, self.features, self.audit)
        self.effects = Effects(access, self.features, self.audit, self.consuming)
        self.links = Links(access, self.threads)
        self.pruning = Pruning(access)
        self.pieces = Pieces(access)
        self.verification = Verification(
            access, losses := AcceptedLosses(self.unit_of_work, self.control, self.head_anchors, clock), objects
        )
        self.blobs = blobs
        self.artifacts = Artifacts(access, self.ledger, blobs, self.blob_writer, self.blob_reader)
        self.items = Items(access, self.features)
        self.events = Events(self.unit_of_work, self.audit, self.control, self.emitting, self.event_relay)
        self.buckets = Buckets(blobs, archive)
        self.sweep = Sweep(self.unit_of_work, self.buckets, options.backup_retention_days, clock=clock)
        self.fsck = Fsck(self.unit_of_work, self.ledger, self.buckets, clock)
        self.anchors = Anchors(deployment, self.audit, blobs)
        self.tenants = Tenants(
            self.unit_of_work,
            self.audit,
            self.features,
            clock,
            self.row_quotas,
            self.emitting,
            options.default_quotas,
        )
        self.upgrades = Upgrades(self.unit_of_work, self.features, self.audit, clock)
        self.processes = self.upgrades.processes
        self.retention_policies = RetentionPolicies(self.unit_of_work, self.audit, self.control)
        self.retention_preview = RetentionPreview(self.unit_of_work, self.pruning, self.archives, self.control)
        acts = Acts(
            self.threads, self.pruning, self.archives, self.items.expiring, self.event_keeping, self.approvals_expiring
        )
        self.retaining = Retaining(self.unit_of_work, self.audit, clock, acts, self.control)
        self.state_schemas = StateSchemas(self.unit_of_work, self.audit, clock, self.control, self.workers)
        self.adoptions = Adoptions(self.unit_of_work, self.audit, self.control, self.state_schemas)
        self.states = States(self.checkpoints, self.state_schemas, self.adoptions, StateWork(self.workers), observer)
        self.compacting = Compacting(access, self.states)
        self.migrating = Migrating(
            self.unit_of_work, self.jobs, self.audit, self.checkpoints, self.states, self.state_schemas
        )
        self.trajectories = Trajectories(self.unit_of_work, self.audit)
        self.transfer_keys = TransferKeys(deployment)
        self.save_policies = SavePolicies(self.unit_of_work, self.audit, self.control)
        self.vector_policies = VectorPolicies(self.unit_of_work, self.audit, self.control, self.jobs)
        transferring = TransferParts(
            access=access,
            artifacts=ArtifactRows(access, self.ledger, blobs, self.blob_writer, self.blob_reader),
            objects=self.archives.objects,
            state_schemas=self.state_schemas,
            adoptions=self.adoptions,
            policies=self.retention_policies,
            save_policies=self.save_policies,
            jobs=self.jobs,
            audit=self.audit,
            deployment_id=deployment_id,
        )
        self.exporting = Exporting(transferring)
        self.importing = Importing(
            transferring,
            self.exporting,
            self.keys,
            self.transfer_keys,
            UnboundImports(self.unit_of_work, self.control, self.audit, clock),
            piece_writer,
        )
        of_keys = KeyParts(deployment, self.keys, self.jobs, self.audit, OlderTransactions(self.unit_of_work))
        tombstones = Tombstones(deployment, blobs)
        self.rotation = Rotation(of_keys)
        self.shred = Shred(
            of_keys, self.control, self.ledger, tombstones, EventParts(self.emitting, self.event_keeping),
            options.backup_retention_days,
        )  # fmt: skip
        self.verifying = Verifying(
            access,
            self.jobs,
            self.audit,
            self.verification,
            Witnesses(self.keys, losses, tombstones, self.anchors),
            SteeringRows(
                self.control,
                (
                    self.state_schemas.rows, self.adoptions.rows, self.save_policies.rows, every_policy,
                    self.jobs.rows, losses.rows, self.vector_policies.rows, self.events.rows,
                    self.approval_policies.rows,
                ),
            ),
        )  # fmt: skip
        self.job_cancelling = JobCancelling(self.unit_of_work, self.control, self.jobs, self.audit)
        self.control_repair = ControlRepair(self.unit_of_work, self.control, self.jobs, self.state_schemas, self.audit)
        self.rewriting = Rewriting(access, objects, self.archive_writer, self.audit)
        filling = Filling(access, self.vector_policies, self.audit, OlderTransactions(self.unit_of_work))
        resealing = Reseal(access, of_keys, self.rewriting, options.reseal_pause_ratio)
        self.runner = Runner(
            self.jobs,
            {
                REWRAP_ROOT_KIND: self.rotation.perform_root,
                REWRAP_TENANT_KIND: self.rotation.perform_tenant,
                RESEAL_KIND: resealing.perform,
                COMPLETE_KIND: resealing.perform,
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
                CLEAR_KIND: filling.perform,
                SEAL_KIND: filling.perform,
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
        durable: bool = True,
        restored: bool = False,
        options: StoreOptions = DEFAULT_OPTIONS,
    ) -> "Store":
        """Connect, and refuse a database that must not be served from.

        Args:
            database_url: The credentials of gw_app.
            root_key: The key that unwraps tenant keys.
            deployment_id: The id that is bound into every seal.
            connections_max: The number of connections in the pool.
            durable: False only for tests and throw-away data: allows ``fsync=off``.
            restored: Whether a restored database is opened to be accepted (`Anchors.accept_restored`, `Shred.accept`),
                and not to serve from.
            options: The options, which all have defaults.

        Raises:
            SetupError: why not, and what to do, a line each.
            Unavailable: the database, or the object store with its tombstones and anchors, cannot be reached.
        """
        engine = create_engine(database_url, connections_max=connections_max)
        store = cls(
            engine,
            root_key=ObservedRootKey(root_key, options.observer),
            deployment_id=deployment_id,
            options=options,
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
        await self.check_features()

    async def check_features(self) -> None:
        """Refuse a database in which something is switched on that this build does not know.

        Raises:
            SetupError: what, by name.
        """
        async with self.unit_of_work.connection() as connection:
            unknown = unknown_to_this_build(await Session(connection).fetch_all(FEATURES))
        if unknown:
            raise SetupError(
                f"a newer build finished an upgrade: this one does not know {', '.join(unknown)};"
                " serve from this database with the newer build"
            )

    async def enter(self) -> None:
        """Enter this process in the registry, before it serves or works; and leave with `leave`.

        Raises:
            SetupError: an upgrade was finished just now that this build does not know.
            Unavailable: the database cannot be reached.
        """
        await self.row_quotas.refresh()  # a tenant that is over stays refused when this process begins anew
        await self.processes.beat()
        try:
            # Afterwards: a process that finishes an upgrade sees this one, or this one sees what was finished.
            await self.check_features()
        except SetupError:
            await self.processes.leave()
            raise

    async def check_restored(self) -> None:
        """Refuse a database that is older than what the object store says of it: a backup was restored.

        It would bring back what was shredded, and have its audit log go on as if nothing had been lost.

        Raises:
            SetupError: which shreds and how many audit events it does not know, and what to do.
            IntegrityFailure: something that is no anchor stands among the anchors.
            BlobUnavailable: the object store does not answer, so that this is not known.
        """
        faults = []
        if unapplied := await self.shred.unapplied():
            faults.append(
                f"{len(unapplied)} shreds are not applied in this database, which was probably restored from a backup;"
                " run 'stateroom restore accept' to destroy those keys again before serving from it"
            )
        if behind := await self.anchors.behind():
            faults.append(
                f"{len(behind)} audit logs lack an event that was anchored in the object store; if a backup was"
                " restored or a replica promoted, run 'stateroom restore accept' to put on record what they lost before"
                " serving from it"
            )
        if faults:
            raise SetupError("\n".join(faults))

    async def accept_restored(self, actor: str) -> tuple[list[Restored], list[Accepted]]:
        """Make a restored database one that may be served from. Repeating it changes nothing.

        Returns:
            The audit logs that go on behind a gap, and the shreds that were applied again.

        Raises:
            IntegrityFailure: an anchor or a tombstone is not authentic, or a log does not verify by itself.
            BlobUnavailable: the object store does not answer.
            CryptoError: the root key does not open what is needed now.
        """
        if await self.anchors.behind():
            await self.verifying.accept_losses()
        # First, so that a gap names what the backup held and not what is done to it now.
        restored = await self.anchors.accept_restored(actor)
        accepted = await self.shred.accept()
        # A shred of a tenant the backup does not have begins that tenant's log anew, which was anchored further.
        return restored + await self.anchors.accept_restored(actor), accepted

    async def close(self) -> None:
        """Close the pools. What is under way must have ended."""
        await self.workers.close()
        await self._engine.dispose()

    async def health(self) -> Health:
        """Whether the database takes writes and has this build's schema. Never raises."""
        try:
            async with self.unit_of_work.connection() as connection:
                session = Session(connection)
                writable = await session.fetch_only(server.TAKES_WRITES)
                revision = await session.fetch_one(server.REVISION)
                unknown = unknown_to_this_build(await session.fetch_all(FEATURES))
                clock = await measure_offset(connection, self._deployment.clock)
        except Unavailable:
            return Health(writable=False, db_revision=None, revision_ok=False, clock=None)
        current = revision == db_revision_required() or revision not in known_revisions()
        return Health(
            writable=writable,
            db_revision=revision,
            revision_ok=current,
            unknown_features=tuple(unknown),
            clock=clock,
            history=not self.anchors.lost,
            unlocked=await self._is_unlocked(),
        )

    async def _is_unlocked(self) -> bool:
        try:
            async with self.unit_of_work.connection() as connection, connection.transaction():
                await connection.execute(WAIT_AS_SAVES)
        except Unavailable:
            return False
        return True
