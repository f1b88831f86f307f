"""Exports: threads opened here and sealed for another deployment, as one stream.

A thread is read into spools (`storage.transfer.spooling`), and sent from there at its reader's pace: what is exported
is one moment of it, and no connection waits for the client that downloads. It is compared with its seals on the way, as
a copy is; a thread that does not agree with them, or a piece that is gone, breaks the stream off before its last bytes,
and no deployment accepts a stream that was broken off; in the export of a tenant it is left out, and named, instead.

`Exporting.content_digest` runs the same walk and keeps nothing but the digest, which depends on the thread's content
alone: so an import is compared with what was exported.

A tenant's export has the items of each subject behind its threads (`storage.transfer.items_out`).

Nothing here asks who may export. What is exported lies open to the holder of the recipient's transfer key.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from uuid_utils import uuid7

from crypto import ExportSealer, KeyDestroyed, Kind, OpenError, Sealer, SecretKey, TransferKeyInvalid, TransferRecipient
from crypto.context import encode_fields
from storage.access.access import Access
from storage.access.completeness import (
    Writes,
    compare_checkpoints,
    compare_writes,
)
from storage.access.save_rules import EVERY_AGENT
from storage.administration.audit import Audit
from storage.administration.jobs import CANCELLED, LEASE_SECONDS, Jobs, Lease, Slice
from storage.administration.rounds import LeaseLostError
from storage.artifacts.rows import ArtifactRows
from storage.blobs.keyspace import BlobLocation
from storage.errors import (
    ClientShareRequired,
    ClientShareUnexpected,
    ClientShareWrong,
    IntegrityFailure,
    InvalidState,
    JobCancelled,
    StateSchemaNotFound,
    StorageError,
    ThreadArchived,
    ThreadNotFound,
)
from storage.format.chain import LiveSet, ThreadSeal
from storage.format.export import (
    FORMAT,
    SLICE_BYTES,
    AdoptionRecord,
    ArtifactRecord,
    Beginning,
    Broken,
    CheckpointRecord,
    Data,
    End,
    Ending,
    Head,
    LeftOut,
    LinkRecord,
    Opening,
    PathEnding,
    PathsLeftOut,
    PendingRecord,
    PieceRecord,
    PolicyRecord,
    Reason,
    Record,
    RunningDigest,
    SavePolicyRecord,
    Schema,
    digested,
    encode,
    frame,
    without_ids,
)
from storage.format.key_versions import check_key_version
from storage.format.manifest import chunk_location
from storage.format.pieces import BlobChunk, open_content, unpack_ids
from storage.format.pointer import BlobPointer
from storage.format.record import open_checkpoint, open_write
from storage.ledger.ledger import LiveBlob
from storage.postgres.unit_of_work import UnitOfWork
from storage.retention.policies import RetentionPolicies
from storage.schemas.adoptions import Adoption, Adoptions
from storage.schemas.registry import StateSchemas, encode_definition
from storage.schemas.save_policies import NOTHING, SavePolicies
from storage.scope import ClientShare, Scope, TenantScope
from storage.statements.deployment import transfer as sql
from storage.statements.threads.completeness import SUBJECTS
from storage.tiers.objects import ArchiveObjects
from storage.transfer.items_out import ItemsOut
from storage.transfer.spooling import NO_POLICY_JSON, SpooledThread, Spooling, encode_policy

EXPORT_KIND = "export"
IMPORT_KIND = "import"
WHOLE_TENANT = "*"
# How often a transfer's job row says how far it is, and keeps its lease.
PROGRESS_SECONDS = 2.0
_PAGE_ROWS = 500
# Rows that are opened before others have their turn.
_TURN_ROWS = 20
# Damaged threads, paths and items that the job of an export names; it counts all.
DAMAGED_NAMED_MAX = 20
_SOURCE = b"stateroom/v1/export-source\0"


# The deployment and tenant that shall be able to open an export; `recipient_of` reads its text.
Recipient = TransferRecipient


def recipient_of(text: str) -> Recipient:
    """The recipient that a transfer key, as the receiving tenant is shown it, stands for.

    Raises:
        InvalidState: it is none, or was damaged.
    """
    try:
        return TransferRecipient.parse(text)
    except TransferKeyInvalid as fault:
        raise InvalidState(str(fault)) from None


def transfer_target(scope: Scope, thread_id: str) -> str:
    """The job target, and in part the audit target, of one thread."""
    return f"{scope.subject_id}/{thread_id}"


class Progress:
    """The job row of a transfer: how many threads, and paths of items, are done.

    It lives as long as the request that made it.
    """

    def __init__(self, unit_of_work: UnitOfWork, jobs: Jobs, lease: Lease) -> None:
        self.job_id = lease.job_id
        self._unit_of_work = unit_of_work
        self._jobs = jobs
        self._lease: Lease | None = lease
        self._cancelled = False
        self._turn = asyncio.Lock()
        self._written_at = time.monotonic()
        self._unwritten = 0

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Keep the lease while the transfer is under way, however long a thread takes."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            with suppress(StorageError):
                await self.moved(now=True)

    async def moved(self, done: int = 0, *, now: bool = False) -> None:
        """Count threads and paths that are done, and write to the job's row every `PROGRESS_SECONDS`.

        Raises:
            JobCancelled: the transfer was cancelled.
        """
        self._unwritten += done
        if self._cancelled:
            raise JobCancelled
        if self._lease is None or (not now and time.monotonic() - self._written_at < PROGRESS_SECONDS):
            return
        async with self._turn:
            unwritten, self._unwritten, self._written_at = self._unwritten, 0, time.monotonic()
            try:
                async with self._unit_of_work.begin(TenantScope(self._lease.tenant_id)) as transaction:
                    await self._lease.advance(transaction, "", unwritten)
            except LeaseLostError:
                scope, self._lease = TenantScope(self._lease.tenant_id), None
                self._cancelled = (await self._jobs.get(scope, self.job_id)).error == CANCELLED
                if self._cancelled:
                    raise JobCancelled from None
                # Else it goes on, and only its row says that it broke off.

    async def end(self, error: str | None = None, note: str | None = None) -> None:
        """Say how it ended."""
        with suppress(JobCancelled):
            await self.moved(now=True)
        if self._lease is not None:
            await self._jobs.end(self._lease, error, note)


async def abandoned(_: Lease) -> Slice:
    """End the job of a transfer whose process is gone: with it went the connection, so the transfer has failed."""
    return Slice(ended=True, error="the connection that this was sent over is gone; begin again")


@dataclass(frozen=True, slots=True)
class Digested:
    """A thread's content digest, and how often the thread was written to when it was taken."""

    digest: bytes
    activity: int


@dataclass(frozen=True, slots=True)
class Export:
    """An export that may begin: it was recorded, and what it is about is there.

    ``content`` gives the file. A caller that does not read it to its end closes it.
    """

    export_id: UUID
    job_id: UUID
    content: AsyncGenerator[bytes, None]


def _adoption_record(adoption: Adoption) -> AdoptionRecord:
    return AdoptionRecord(
        adoption.agent or "", adoption.namespace, adoption.number, adoption.state_schema, adoption.state_version,
        adoption.adopted_at,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransferParts:
    """What exports and imports of a deployment share."""

    access: Access
    artifacts: ArtifactRows
    objects: ArchiveObjects
    state_schemas: StateSchemas
    adoptions: Adoptions
    policies: RetentionPolicies
    save_policies: SavePolicies
    jobs: Jobs
    audit: Audit
    deployment_id: UUID


@dataclass(frozen=True, slots=True)
class _Sending:
    """An export on its way out.

    ``damaged`` are the threads, paths and items of a tenant that were left out so far.
    """

    recipient: TransferRecipient
    export_id: UUID
    kind: Literal["thread", "tenant"]
    tenant_id: UUID
    actor: str
    progress: Progress
    damaged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Sent:
    """What is on its way so far."""

    threads: int = 0
    left_out: int = 0
    paths: int = 0
    items: int = 0
    paths_left_out: int = 0

    def add(self, each: Record | bytes) -> int:
        """Count a record; returns how many threads or paths ended with it."""
        match each:
            case bytes():
                ended = int(_is_ending(each))
                self.threads += ended
                return ended
            case LeftOut() | Broken():
                self.left_out += 1
            case PathsLeftOut():
                self.paths_left_out += each.paths
            case PathEnding():
                self.paths += 1
                self.items += each.items
                return 1
        return 0

    def end(self, digest: bytes) -> End:
        """The last record."""
        return End(self.threads, self.left_out, digest, self.paths or None, self.paths_left_out or None)

    def counts(self) -> dict[str, int]:
        """What the audit log says of it; of items, where there are any."""
        of_items = {"items": self.items, "paths_left_out": self.paths_left_out}
        return {"threads": self.threads, "left_out": self.left_out} | {
            name: count for name, count in of_items.items() if count
        }

    def note(self) -> str:
        """What its job says of it; of items, where there are any."""
        note = f"{self.threads} threads, {self.left_out} left out"
        if self.paths or self.paths_left_out:
            note += f"; {self.items} items, {self.paths_left_out} of their paths left out"
        return note


class Exporting:
    """The way out."""

    def __init__(self, parts: TransferParts) -> None:
        self._access = parts.access
        self._unit_of_work = parts.access.unit_of_work
        self._artifacts = parts.artifacts
        self._spooling = Spooling(parts.access, parts.artifacts, parts.objects)
        self._items = ItemsOut(parts.access)
        self._schemas = parts.state_schemas
        self._adoptions = parts.adoptions
        self._policies = parts.policies
        self._save_policies = parts.save_policies
        self._jobs = parts.jobs
        self._audit = parts.audit
        self._deployment_id = parts.deployment_id

    async def thread(
        self,
        scope: Scope,
        thread_id: str,
        recipient: TransferRecipient,
        actor: str,
        share: ClientShare | None = None,
    ) -> Export:
        """Export one thread.

        Raises:
            ThreadNotFound: there is none.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: the share is not the thread's.
            ThreadArchived: its archive has to be thawed first.
            TransferKeyInvalid: nothing can be sealed for the recipient.
            IntegrityFailure: the thread does not agree with its seals; if that shows later, the content raises it.
        """
        spooled = await self._spooling.spool(scope, thread_id, share)
        try:
            export_id, progress = await self._begin(TenantScope(scope.tenant_id), recipient, actor, scope, thread_id)
        except BaseException:
            spooled.close()
            raise
        sending = _Sending(recipient, export_id, "thread", scope.tenant_id, actor, progress)

        async def records() -> AsyncGenerator[Record | bytes, None]:
            async for each in self._schemas_of(scope, spooled):
                yield each
            async for encoded in self._emitted(scope, thread_id, spooled):
                yield encoded

        return Export(export_id, progress.job_id, self._content(sending, records, spooled.close))

    async def tenant(
        self, scope: TenantScope, recipient: TransferRecipient, actor: str, share: ClientShare | None = None
    ) -> Export:
        """Export all threads and items of a tenant, of all its subjects, and its state schemas.

        Adoptions go along, but for those that no gateway wrote, which interpret nothing here either.

        Threads under a client-held share that was not sent, or is another one's, archived threads that cannot be read
        now, and damaged ones are left out, and the export says so; its job names those that are damaged. So are paths
        of items, and items by themselves; those that are over stay here.

        Raises:
            TransferKeyInvalid: nothing can be sealed for the recipient.
        """
        export_id, progress = await self._begin(scope, recipient, actor, None, None)
        sending = _Sending(recipient, export_id, "tenant", scope.tenant_id, actor, progress)

        async def records() -> AsyncGenerator[Record | bytes, None]:
            async for record in self._steering_of(scope):
                yield record
            async for subject in self._subjects(scope):
                async for thread_id, shared in self._threads(subject):
                    async for each in self._of_tenant(subject, thread_id, share if shared else None):
                        if isinstance(each, LeftOut | Broken) and each.reason == "damaged":
                            sending.damaged.append(transfer_target(subject, thread_id))
                        yield each
                async with aclosing(self._items.of_subject(subject, share, sending.damaged)) as items:
                    async for each in items:
                        yield each

        return Export(export_id, progress.job_id, self._content(sending, records, lambda: None))

    async def content_digest(
        self, scope: Scope, thread_id: str, share: ClientShare | None = None, *, updated_at: datetime | None = None
    ) -> Digested:
        """What `Ending.digest` would be if the thread were exported now: everything of it is read and opened.

        ``updated_at`` is taken as the moment of the last write, since an import is a write; None: the stored one.

        Raises:
            StorageError: as `thread`.
        """
        spooled = await self._spooling.spool(scope, thread_id, share)
        try:
            digest = b""
            async for encoded in self._emitted(scope, thread_id, spooled, updated_at):
                digest = encoded
            ending = msgspec.msgpack.decode(digest, type=Ending)
            return Digested(ending.digest, spooled.row.activity)
        finally:
            spooled.close()

    # --- the file --------------------------------------------------------------------------------------------------

    async def _begin(
        self, tenant: TenantScope, recipient: TransferRecipient, actor: str, scope: Scope | None, thread_id: str | None
    ) -> tuple[UUID, Progress]:
        """Record the export, before anything of it is sent."""
        export_id = UUID(str(uuid7()))
        target = WHOLE_TENANT if scope is None or thread_id is None else transfer_target(scope, thread_id)
        await self._jobs.ready()
        async with self._unit_of_work.begin(tenant) as transaction:
            lease = await self._jobs.add_claimed(transaction, tenant.tenant_id, EXPORT_KIND, target)
            detail = {
                "export_id": str(export_id), "recipient": recipient.public_key.fingerprint, "job_id": str(lease.job_id),
            }  # fmt: skip
            named = "tenant" if scope is None else f"subject:{scope.subject_id}/thread:{thread_id}"
            await self._audit.append(transaction, tenant.tenant_id, actor, "export.begin", named, detail)
        return export_id, Progress(self._unit_of_work, self._jobs, lease)

    async def _content(
        self,
        sending: _Sending,
        records: Callable[[], AsyncGenerator[Record | bytes, None]],
        close: Callable[[], None],
    ) -> AsyncGenerator[bytes, None]:
        """The file; how it ended is recorded even if the client stops reading it."""
        export_id, tenant_id, progress, damaged = (
            sending.export_id, sending.tenant_id, sending.progress, sending.damaged,
        )  # fmt: skip
        digest, sent = RunningDigest(), _Sent()
        error: str | None = "the download was broken off"
        try:
            sealer = ExportSealer(sending.recipient, export_id)
            opening = Opening(FORMAT, export_id, sending.kind, self._deployment_id, tenant_id, self._access.clock.now())
            yield sealer.start
            async with progress.going_on(), aclosing(_with_opening(opening, records())) as content:
                async for each in content:
                    encoded = each if isinstance(each, bytes) else encode(each)
                    digest.add(encoded)
                    await progress.moved(sent.add(each))
                    if sealed := sealer.write(frame(encoded)):
                        yield sealed
            yield sealer.write(frame(encode(sent.end(digest.digest())))) + sealer.finish()
            error = None
        except Exception as reason:
            error = str(reason) if isinstance(reason, StorageError) else f"broken off: {type(reason).__name__}"
            raise
        finally:
            close()
            with suppress(StorageError):
                async with self._unit_of_work.begin(TenantScope(tenant_id)) as transaction:
                    detail = {"export_id": str(export_id), "complete": error is None, **sent.counts()}
                    await self._audit.append(transaction, tenant_id, sending.actor, "export.end", "tenant", detail)
                note = sent.note() if error is None else None
                if damaged:
                    named = ", ".join(damaged[:DAMAGED_NAMED_MAX])
                    note = f"{note or 'broken off'}; {len(damaged)} damaged: {named}"
                await progress.end(error, note)

    async def _schemas_of(self, scope: Scope, spooled: SpooledThread) -> AsyncIterator[Schema]:
        """The schemas that one thread's state is at."""
        names: set[str] = set()
        for rows in (spooled.checkpoints, spooled.writes):
            names.update(row.state_schema for row in rows if row.state_schema is not None)
        for name in sorted(names):
            try:
                versions = await self._schemas.get(scope, name)
            except StateSchemaNotFound:
                continue
            for each in versions:
                yield Schema(each.schema, each.number, encode_definition(each.definition))

    async def _steering_of(self, scope: TenantScope) -> AsyncIterator[Record]:
        """The records of what steers all threads of a tenant."""
        for name, _ in (await self._schemas.names(scope)).items:
            for version in await self._schemas.get(scope, name):
                yield Schema(version.schema, version.number, encode_definition(version.definition))
        for record in await self._policies_of(scope):
            yield record
        for adoption, authentic in await self._adoptions.list(scope):
            if authentic:
                yield _adoption_record(adoption)
        for each in await self._save_policies_of(scope):
            yield each

    async def _policies_of(self, scope: TenantScope) -> list[PolicyRecord]:
        """The retention policies of the tenant and its agents; the operator's ceilings stay here.

        Raises:
            IntegrityFailure: some of it is damaged: where the export goes, nothing would tell that it was a hold.
        """
        policies = await self._policies.get(scope)
        if policies.damaged:
            raise IntegrityFailure("retention policies were edited outside the gateway: say them again first")
        records = [PolicyRecord("tenant", "", encode_policy(policies.tenant.policy))]
        records += [PolicyRecord("agent", agent, encode_policy(each.policy)) for agent, each in policies.agents.items()]
        return [each for each in records if each.policy != NO_POLICY_JSON]

    async def _save_policies_of(self, scope: TenantScope) -> list[SavePolicyRecord]:
        """The save policies of the tenant and its agents, where they say anything.

        Raises:
            IntegrityFailure: some of it is damaged: where the export goes, saves could lose updates unnoticed.
        """
        policies = await self._save_policies.get(scope)
        if policies.damaged:
            raise IntegrityFailure("save policies were edited outside the gateway: say them again first")
        levels = [(EVERY_AGENT, policies.tenant), *policies.agents.items()]
        return [SavePolicyRecord(agent, *astuple(each.rule)) for agent, each in levels if each.rule != NOTHING]

    async def _subjects(self, scope: TenantScope) -> AsyncIterator[Scope]:
        async for subject_id in self._unit_of_work.each(scope, SUBJECTS, "", _PAGE_ROWS):
            yield Scope(scope.tenant_id, subject_id)

    async def _threads(self, scope: Scope) -> AsyncIterator[tuple[str, bool]]:
        after = ""
        while True:
            async with self._unit_of_work.snapshot(scope) as transaction:
                rows = await transaction.fetch_all(sql.THREADS_AFTER, after=after, limit=_PAGE_ROWS)
            for row in rows:
                yield row.thread_id, row.client_share
            if len(rows) < _PAGE_ROWS:
                return
            after = rows[-1].thread_id

    async def _of_tenant(
        self, scope: Scope, thread_id: str, share: ClientShare | None
    ) -> AsyncIterator[Record | bytes]:
        """A thread, or that it is left out; nothing of one that was deleted meanwhile."""
        reason: Reason
        try:
            spooled = await self._spooling.spool(scope, thread_id, share)
        except (ClientShareRequired, ClientShareWrong, ClientShareUnexpected):
            reason = "client-share"
        except ThreadArchived:
            reason = "archived"
        except IntegrityFailure:
            reason = "damaged"
        except (ThreadNotFound, KeyDestroyed):
            return
        else:
            try:
                async for encoded in self._emitted(scope, thread_id, spooled):
                    yield encoded
            except IntegrityFailure:
                yield Broken("damaged")  # some of it is out already
            finally:
                spooled.close()
            return
        yield LeftOut(scope.subject_id, thread_id, reason)

    # --- sending ---------------------------------------------------------------------------------------------------

    async def _emitted(
        self, scope: Scope, thread_id: str, spooled: SpooledThread, updated_at: datetime | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The records of a thread, encoded; the last one is its `Ending`."""
        emission = _Emission(self._access, scope, thread_id, spooled)
        row = spooled.row
        yield emission.out(
            Beginning(
                self._source(scope, thread_id, spooled.thread), scope.subject_id, thread_id, row.agent, row.status,
                row.strict, spooled.thread.share_check is not None, row.created_at,
                updated_at or row.updated_at,
            )
        )  # fmt: skip
        if spooled.policy is not None:
            yield emission.out(PolicyRecord("thread", "", spooled.policy))
        if spooled.thread.link is not None:
            link = spooled.thread.link
            yield emission.out(LinkRecord(link.thread_id, link.namespace, link.checkpoint_id))
        for values in spooled.artifacts:
            async for encoded in self._artifact(scope, spooled.sealer, emission, values):
                yield encoded
        async for encoded in emission.writes():
            yield encoded
        async for encoded in emission.checkpoints():
            yield encoded
        emission.compare()
        for namespace, head_id, head in spooled.heads:
            yield emission.out(Head(namespace, head_id, head.sequence))
        for at in spooled.effect_order:
            await asyncio.sleep(0)
            yield emission.sent(*spooled.effects.get(at))
        yield encode(
            Ending(
                spooled.artifacts.count, len(emission.numbers), spooled.writes.count, spooled.checkpoints.count,
                emission.digest.digest(),
            )
        )  # fmt: skip

    async def _artifact(
        self, scope: Scope, sealer: Sealer, emission: "_Emission", values: list[Any]
    ) -> AsyncIterator[bytes]:
        artifact_id, *described = values
        *described, blob_id, blob_key = described
        record = ArtifactRecord(UUID(bytes=artifact_id), *described)
        yield emission.out(record)
        cipher = sealer.blob_cipher(UUID(bytes=blob_id), SecretKey(blob_key))
        location = BlobLocation(scope.tenant_id, UUID(bytes=blob_id))
        hashing = hashlib.sha256()
        slices = self._artifacts.ends().reader.read(location, cipher, record.size_bytes)
        async with aclosing(slices):
            async for each in slices:
                hashing.update(each)
                yield emission.out(Data(each))
        if hashing.digest() != record.digest:
            raise IntegrityFailure("an artifact's content is not what its digest says")

    def _source(self, scope: Scope, thread_id: str, thread: ThreadSeal) -> bytes:
        fields = (self._deployment_id, scope.tenant_id, scope.subject_id, thread_id, thread.incarnation)
        return hashlib.sha256(_SOURCE + encode_fields(fields)).digest()


class _Emission:
    """One thread on its way out: which pieces are sent, and what its seals must say of what was sent."""

    def __init__(self, access: Access, scope: Scope, thread_id: str, spooled: SpooledThread) -> None:
        self._thread_id = thread_id
        self.digest = RunningDigest()
        self.numbers: dict[bytes, int] = {}
        self._access = access
        self._scope = scope
        self._spooled = spooled
        self._written = Writes()
        self._live: dict[str, LiveSet] = {}

    def out(self, record: Record) -> bytes:
        """A record of the thread."""
        encoded = encode(record)
        self.digest.add(digested(record, encoded, self._thread_id))
        return encoded

    def sent(self, encoded: bytes) -> bytes:
        """A record of the thread that is encoded already, and wholly part of its digest."""
        self.digest.add(encoded)
        return encoded

    async def writes(self) -> AsyncIterator[bytes]:
        """Pending writes, each after its pieces."""
        for number, row in enumerate(self._spooled.writes):
            if number % _TURN_ROWS == 0:
                await asyncio.sleep(0)
            opened = open_write(self._spooled.sealer, row)
            columns = opened.columns
            self._written.add(columns.namespace, columns.checkpoint_id, opened.mac)
            async for encoded in self._pieces(opened.ids):
                yield encoded
            yield self.out(
                PendingRecord(
                    columns.namespace, columns.checkpoint_id, columns.task_id, columns.idx, columns.task_path,
                    columns.channel, columns.status, columns.created_at, self._numbered(opened.ids),  # type: ignore[arg-type]
                    columns.named_ids, columns.state_schema, columns.state_version, opened.record.encoding,
                    opened.record.body, opened.record.leaves,
                )
            )  # fmt: skip

    async def checkpoints(self) -> AsyncIterator[bytes]:
        """Checkpoints, each after its pieces."""
        for number, row in enumerate(self._spooled.checkpoints):
            if number % _TURN_ROWS == 0:
                await asyncio.sleep(0)
            opened = open_checkpoint(self._spooled.sealer, row)
            columns, manifest = opened.columns, opened.manifest
            self._live[columns.namespace] = self._live.get(columns.namespace, LiveSet()).add(opened.member)
            async for encoded in self._pieces(opened.ids):
                yield encoded
            yield self.out(
                CheckpointRecord(
                    columns.namespace, columns.checkpoint_id, columns.parent_id, columns.step, columns.status,  # type: ignore[arg-type]
                    opened.outcome, columns.source, columns.agent, columns.run_id, columns.model,  # type: ignore[arg-type]
                    columns.state_schema, columns.state_version, columns.input_tokens, columns.output_tokens,
                    columns.cost_micros, columns.created_at, self._numbered(opened.ids), columns.named_ids,
                    manifest.channels, manifest.metadata, manifest.model, manifest.delta_channels,
                )
            )  # fmt: skip

    def compare(self) -> None:
        """Compare what was sent with the seals.

        Raises:
            IntegrityFailure: something is missing, or should not be there.
        """
        compare_writes(self._written.total, self._spooled.thread.writes)
        for namespace, head_id, head in self._spooled.heads:
            compare_writes(self._written.of(namespace, head_id), head.writes)
            compare_checkpoints(self._live.get(namespace, LiveSet()), head.live)

    def _numbered(self, ids: Sequence[bytes]) -> list[int]:
        return [self.numbers[each] for each in ids]

    async def _pieces(self, ids: Sequence[bytes]) -> AsyncIterator[bytes]:
        """Send those of these pieces that were not sent, children first."""
        for root in ids:
            waiting = [root]
            entered: set[bytes] = set()
            while waiting:
                piece_id = waiting[-1]
                if piece_id in self.numbers:
                    waiting.pop()
                    continue
                at = self._spooled.places.get(piece_id)
                if at is None:
                    raise IntegrityFailure("a stored piece is missing")
                children, named_ids, envelope, key_version, blob_key, size = self._spooled.chunks.get(at)
                below = [] if children is None else unpack_ids(children)
                missing = [each for each in below if each not in self.numbers]
                if missing and piece_id not in entered:
                    entered.add(piece_id)
                    waiting.extend(reversed(missing))
                    continue
                if missing:
                    raise IntegrityFailure("a stored piece is made of itself")
                waiting.pop()
                check_key_version(key_version, envelope)
                async for encoded in self._piece(piece_id, below, children, named_ids, envelope, blob_key, size):
                    yield encoded

    async def _piece(
        self,
        piece_id: bytes,
        below: Sequence[bytes],
        children: bytes | None,
        named_ids: bytes | None,
        envelope: bytes,
        blob_key: bytes | None,
        size: int,
    ) -> AsyncIterator[bytes]:
        sealer = self._spooled.sealer
        try:
            plaintext = sealer.open(Kind.CHUNK, chunk_location(piece_id, children, named_ids), envelope)
        except OpenError:
            raise IntegrityFailure from None
        chunk = BlobChunk.decode(plaintext)
        if named_ids != (None if chunk is None else chunk.blob_id.bytes) or (chunk is None) != (blob_key is None):
            raise IntegrityFailure("a chunk names another blob than its own")
        if chunk is None:
            if not plaintext:
                raise IntegrityFailure
            kind, content = plaintext[0], plaintext[1:]
        else:
            blob = LiveBlob(chunk.blob_id, 0, BlobPointer(blob_key or b"", size))
            fetched = await self._access.offload.fetch(self._scope, sealer, {piece_id: chunk}, {chunk.blob_id: blob})
            kind, content = chunk.kind, fetched[piece_id]
        try:
            open_content(sealer, piece_id, kind, content, children)
        except KeyError:
            raise IntegrityFailure from None
        bare = without_ids(kind, content)
        fits = len(bare) <= SLICE_BYTES
        record = PieceRecord(kind, [self.numbers[each] for each in below], len(bare), bare if fits else None)
        self.numbers[piece_id] = len(self.numbers)
        yield self.out(record)
        for start in range(0, 0 if fits else len(bare), SLICE_BYTES):
            await asyncio.sleep(0)
            yield self.out(Data(bare[start : start + SLICE_BYTES]))


async def _with_opening(
    opening: Opening, records: AsyncGenerator[Record | bytes, None]
) -> AsyncGenerator[Record | bytes, None]:
    yield opening
    async with aclosing(records) as content:
        async for each in content:
            yield each


def _is_ending(encoded: bytes) -> bool:
    """Whether encoded bytes are an `Ending`: an array whose first member is its number."""
    return encoded[1:2] == bytes((10,)) and encoded[0] & 0xF0 == 0x90
