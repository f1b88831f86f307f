"""Imports: threads that another deployment sealed for this one, taken in under the keys of a tenant here.

1. A stream is opened chunk by chunk; what opens is authentic in its place. Records are checked one by one, and nothing
   of what they say is believed that can be computed: ids of pieces, sums, seals and digests are made anew.
2. A thread waits in a spool until all of it is here, its large pieces and files already in the object store behind
   intents. It becomes visible in one transaction, and only when what follows it in the stream has opened, too: the
   next thread, or the end of the file. So a file with one thread is imported whole or not at all, and of one that was
   cut no thread is there in part.
3. Then the thread is read back, everything in it opened, and its content digest compared with the export's.

Ids, parents, steps, times and statuses stay; what keys make (ids of pieces, seals, tokens, versions of keys) is new. A
thread that exists is never touched. One that an earlier run of the same import brought is known by a MAC in its row and
passed over, so that an import that was killed is run again from the start of the file.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from uuid import UUID

from crypto import (
    CryptoError,
    ExportForOther,
    ExportForOtherTenant,
    ExportOpener,
    ExportUnbound,
    OpenError,
    Sealer,
)
from crypto.blob import object_bytes
from storage.blobs.keyspace import BlobLocation
from storage.control.features import DECISIONS, LINKS
from storage.errors import (
    BlobsNotConfigured,
    CommitUnknown,
    ImportConflict,
    ImportForOther,
    ImportUnbound,
    IntegrityFailure,
    StateSchemaExists,
    StateSchemaInvalid,
    StateTooNewToSave,
    StorageError,
    ThreadExists,
)
from storage.event_queue.model import OfThread
from storage.format.export import (
    AdoptionRecord,
    ArtifactRecord,
    Beginning,
    Broken,
    CheckpointRecord,
    EffectRecord,
    End,
    Ending,
    FloorRecord,
    Frames,
    Head,
    LeftOut,
    LinkRecord,
    Opening,
    PathRecord,
    PathsLeftOut,
    PendingRecord,
    PieceRecord,
    PolicyRecord,
    Record,
    RunningDigest,
    SavePolicyRecord,
    Schema,
    decode,
    digested,
    encode,
)
from storage.format.pointer import BlobPointer
from storage.keys.keys import Keys
from storage.keys.transfer_keys import TransferKeys
from storage.ledger.ledger import NewBlob, Settlement, new_blob_id
from storage.ledger.streams import BlobWriter
from storage.model import SaveRule, ThreadLink
from storage.schemas.adoptions import Adoption
from storage.schemas.registry import decode_definition
from storage.schemas.save_policies import NOTHING
from storage.scope import ClientShare, Scope, TenantScope, check_id, check_subject
from storage.statements.deployment import transfer as sql
from storage.transfer.exporting import IMPORT_KIND, WHOLE_TENANT, Exporting, Progress, TransferParts
from storage.transfer.items_in import Arrived, ItemsIn, StagedPath
from storage.transfer.rows import GRACE_SECONDS, Staged, Staging, checked, origin_of, policy_of, refuse, settle
from storage.transfer.stream import Stream
from storage.transfer.unbound_imports import UNBOUND_FORMAT, UnboundImports

# How many threads a report names, and how many paths and items; it counts all.
NAMED_MAX = 1_000
_Steering = Schema | PolicyRecord | AdoptionRecord | SavePolicyRecord
# What may follow the opening, a thread or a path.
_Beginning = _Steering | LeftOut | PathsLeftOut | Beginning | PathRecord | FloorRecord


@dataclass(frozen=True, slots=True)
class Passed:
    """A thread that was not imported, and why: ``there`` (by an earlier run), ``exists``, or as the export says."""

    subject_id: str
    thread_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class PassedItems:
    """An item, or all of a path (``key`` None) or of some of a subject's paths (``path`` None), that was not imported.

    ``reason``: ``exists`` with another content, ``expired`` by now, or as the export says; ``damaged-vectors``: items
    of the path were imported without vectors that could not be read there. What is here already, the same, is counted
    and not named.
    """

    subject_id: str
    path: tuple[str, ...] | None
    key: str | None
    reason: str


@dataclass(slots=True)
class Imported:
    """The counts of an import.

    ``passed`` names the first `NAMED_MAX` threads of ``passed_over``, and ``passed_items`` as many of those of
    ``items_passed_over``, which counts a path of which nothing is known as one.
    """

    export_id: UUID
    job_id: UUID
    threads: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    artifacts: int = 0
    state_schemas: int = 0
    verified: int = 0
    passed_over: int = 0
    passed: list[Passed] = field(default_factory=list)
    items: int = 0
    items_verified: int = 0
    items_passed_over: int = 0
    passed_items: list[PassedItems] = field(default_factory=list)

    def pass_over(self, scope: Scope, thread_id: str, reason: str) -> None:
        """Count a thread that was not imported."""
        self.passed_over += 1
        if len(self.passed) < NAMED_MAX:
            self.passed.append(Passed(scope.subject_id, thread_id, reason))

    def pass_over_items(self, passed: PassedItems, count: int = 1) -> None:
        """Count items, or paths, that were not imported."""
        self.items_passed_over += count
        if len(self.passed_items) < NAMED_MAX:
            self.passed_items.append(passed)

    def add_path(self, staged: StagedPath, arrived: Arrived) -> None:
        """Count what became of a path."""
        self.items += arrived.items
        self.items_passed_over += arrived.there + arrived.passed_over - len(arrived.passed)
        for key, reason in arrived.passed:
            self.pass_over_items(PassedItems(staged.scope.subject_id, staged.labels, key, reason))
        if staged.ending is None:
            return
        damaged = {"damaged": staged.ending.damaged, "damaged-vectors": staged.ending.vectors_damaged}
        for why, count in damaged.items():
            if count:
                self.pass_over_items(PassedItems(staged.scope.subject_id, staged.labels, None, why), count)


class _BrokenThreadError(Exception):
    """The exporter could not read the thread to its end; nothing of it is taken."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class _Run:
    """One import, and what came of its file so far."""

    stream: Stream
    tenant: TenantScope
    actor: str
    imported: Imported
    progress: Progress
    skip_existing: bool
    share: ClientShare | None
    threads: int = 0
    left_out: int = 0
    paths: int = 0
    paths_left_out: int = 0

    def compare(self, end: End) -> None:
        """Compare what came with what the file says at its end.

        Raises:
            ImportRefused: It says something else.
        """
        if (end.threads, end.left_out) != (self.threads, self.left_out):
            refuse("the export has other threads than its end says")
        if (end.paths or 0, end.paths_left_out or 0) != (self.paths, self.paths_left_out):
            refuse("the export has other paths of items than its end says")


class Importing:
    """The way in.

    Attributes:
        unbound: Which exports that name no tenant may be taken in.
    """

    def __init__(
        self,
        parts: TransferParts,
        exporting: Exporting,
        keys: Keys,
        transfer_keys: TransferKeys,
        unbound: UnboundImports,
        piece_writer: BlobWriter | None,
    ) -> None:
        self.unbound = unbound
        self._access = parts.access
        self._unit_of_work = parts.access.unit_of_work
        self._ledger = parts.access.offload.ledger
        self._keys = keys
        self._transfer_keys = transfer_keys
        self._artifacts = parts.artifacts
        self._piece_writer = piece_writer
        self._exporting = exporting
        self._schemas = parts.state_schemas
        self._adoptions = parts.adoptions
        self._policies = parts.policies
        self._save_policies = parts.save_policies
        self._jobs = parts.jobs
        self._audit = parts.audit
        self._items = ItemsIn(parts.access, parts.audit)

    async def run(
        self,
        tenant: TenantScope,
        body: AsyncIterator[bytes],
        actor: str,
        *,
        skip_existing: bool = False,
        share: ClientShare | None = None,
    ) -> Imported:
        """Take an export in.

        Subjects and threads keep their ids. ``skip_existing``: pass over threads and items that exist here instead of
        stopping at the first. Threads and items that take a client-held share are put under ``share``, and passed over
        without one.

        Raises:
            ImportForOther: it is sealed for another deployment, or another tenant of this one.
            ImportUnbound: it names no tenant, and no operator has accepted it for this one.
            ImportRefused: it was altered or cut, or is no export that this release reads. Threads that came before
                stay; none is there in part.
            ThreadExists: a thread exists here, and was not brought by this import before; likewise.
            ImportConflict: a file exists here under the same id with another content, or an item under the same path
                and key; likewise.
            StateSchemaExists: a state schema's version is registered here with another definition; likewise.
            AdoptionExists: unversioned state was adopted here as something else; likewise.
            FeatureOff: unversioned state was adopted there, saves have a policy, threads a link or a ledger of
                effects, or subjects items, and an older build may run here; likewise.
            ItemPathsExceeded, LegalHold: as for putting items; likewise.
            QuotaExceeded, BlobsNotConfigured, BlobUnavailable, KeyDestroyed: as for saving; likewise.
            IntegrityFailure: what was imported does not read back as it was exported.
        """
        progress: Progress | None = None
        imported: Imported | None = None
        error: str | None = "the upload was broken off"
        try:
            async with aclosing(self._opened(tenant, body)) as records:
                stream = Stream(records)
                opening = await stream.next()
                if not isinstance(opening, Opening):
                    refuse("the export does not begin with its first record")
                progress = await self._begin(tenant, opening, actor)
                imported = Imported(opening.export_id, progress.job_id)
                async with progress.going_on():
                    await self._take(
                        _Run(stream, tenant, actor, imported, progress, skip_existing=skip_existing, share=share)
                    )
                if opening.format == UNBOUND_FORMAT:
                    await self.unbound.use_up(tenant, opening.export_id)
            error = None
        except ExportForOther as reason:
            own = (await self._transfer_keys.newest()).public_key.fingerprint
            raise ImportForOther(
                f"the export is sealed for the transfer key {reason.recipient}; this deployment's is {own}"
            ) from None
        except ExportForOtherTenant:
            raise ImportForOther("the export is sealed for another tenant of this deployment") from None
        except ExportUnbound as reason:
            raise ImportUnbound(reason.export_id) from None
        except OpenError as reason:
            error = type(reason).__name__
            refuse("the export was altered, cut or spliced, or is none")
        except (StorageError, CryptoError) as reason:
            error = str(reason) or type(reason).__name__
            raise
        finally:
            if progress is not None and imported is not None:
                await self._end(tenant, imported, actor, progress, error)
        return imported

    async def _opened(
        self, tenant: TenantScope, body: AsyncIterator[bytes]
    ) -> AsyncGenerator[tuple[Record, bytes], None]:
        """The records, as they open."""
        # The header names its key before anything of it is opened; keys are looked for outside of the opener.
        own = await self._transfer_keys.newest()
        opener = ExportOpener(
            lambda fingerprint: own if fingerprint == own.public_key.fingerprint else None,
            tenant.tenant_id,
            await self.unbound.accepted(tenant),
        )
        frames = Frames()
        async for data in body:
            for encoded in frames.take(opener.write(data)):
                yield _of_this(opener, decode(encoded)), encoded
        for encoded in frames.take(opener.finish()):
            yield _of_this(opener, decode(encoded)), encoded
        if frames.held_bytes:
            refuse("the export ends within a record")

    async def _begin(self, tenant: TenantScope, opening: Opening, actor: str) -> Progress:
        await self._jobs.ready()
        async with self._unit_of_work.begin(tenant) as transaction:
            lease = await self._jobs.add_claimed(transaction, tenant.tenant_id, IMPORT_KIND, WHOLE_TENANT)
            detail = {
                "export_id": str(opening.export_id), "job_id": str(lease.job_id),
                "from_deployment": str(opening.deployment_id), "from_tenant": str(opening.tenant_id),
            }  # fmt: skip
            await self._audit.append(transaction, tenant.tenant_id, actor, "import.begin", "tenant", detail)
        return Progress(self._unit_of_work, self._jobs, lease)

    async def _end(
        self, tenant: TenantScope, imported: Imported, actor: str, progress: Progress, error: str | None
    ) -> None:
        counts = {
            "threads": imported.threads, "checkpoints": imported.checkpoints, "artifacts": imported.artifacts,
            "passed_over": imported.passed_over, "verified": imported.verified,
        }  # fmt: skip
        of_items = {"items": imported.items, "items_passed_over": imported.items_passed_over}
        counts |= {name: count for name, count in of_items.items() if count}
        # Each thread was recorded in its own transaction: this only sums up, and must not hide how it ended.
        with suppress(StorageError):
            async with self._unit_of_work.begin(tenant) as transaction:
                detail = {"export_id": str(imported.export_id), "complete": error is None, **counts}
                await self._audit.append(transaction, tenant.tenant_id, actor, "import.end", "tenant", detail)
            note = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
            await progress.end(error, note)

    # --- the stream ------------------------------------------------------------------------------------------------

    async def _take(self, run: "_Run") -> None:
        staged: Staged | StagedPath | None = None
        try:
            while True:
                record = await run.stream.next()
                if isinstance(record, End):
                    run.compare(record)
                    await run.stream.end()
                elif not isinstance(record, _Beginning):
                    refuse("the export has a record where it cannot be")
                # What follows a thread, or a path, has opened: it is whole.
                ready, staged = staged, None
                await self._store(run, ready)
                if isinstance(record, End):
                    return
                staged = await self._begun(run, record)
        except BaseException:
            if staged is not None:
                await self._give_up(staged)
            raise

    async def _store(self, run: "_Run", ready: Staged | StagedPath | None) -> None:
        """Make visible what is whole."""
        match ready:
            case Staged():
                await self._settle(ready, run.actor, run.imported, run.progress)
            case StagedPath():
                arrived = await self._items.settle(ready, run.actor, skip_existing=run.skip_existing)
                run.imported.add_path(ready, arrived)
                if await self._items.read_back(ready, arrived):
                    run.imported.items_verified += arrived.items
                await run.progress.moved(1)

    async def _begun(self, run: "_Run", record: Record) -> Staged | StagedPath | None:
        """Take what begins with a record, up to its end; returns what waits for what follows it."""
        match record:
            case Schema() | PolicyRecord() | AdoptionRecord() | SavePolicyRecord():
                await self._steer(run.tenant, record, run.actor, run.imported)
            case LeftOut():
                run.left_out += 1
                run.imported.pass_over(_scope(run.tenant, record), record.thread_id, record.reason)
            case PathsLeftOut():
                run.paths_left_out += record.paths
                labels = None if record.labels is None else tuple(record.labels)
                passed = PassedItems(_subject(run.tenant, record).subject_id, labels, None, record.reason)
                run.imported.pass_over_items(passed, max(1, record.paths))
            case Beginning():
                try:
                    staged = await self._thread(run, record)
                except _BrokenThreadError as broken:
                    run.left_out += 1
                    run.imported.pass_over(_scope(run.tenant, record), record.thread_id, broken.reason)
                    return None
                run.threads += 1
                return staged
            case PathRecord():
                run.paths += 1
                scope = _subject(run.tenant, record)
                path = await self._items.stage(run.stream, scope, record, run.progress, run.share)
                if path is None:
                    run.imported.pass_over_items(
                        PassedItems(scope.subject_id, tuple(record.labels), None, "client-share")
                    )
                return path
            case FloorRecord():
                await self._items.raise_floor(_subject(run.tenant, record), record.floor)
        return None

    async def _steer(self, tenant: TenantScope, record: _Steering, actor: str, imported: Imported) -> None:
        """Say for the tenant what the export says of all threads."""
        match record:
            case Schema():
                await self._schema(tenant, record, actor, imported)
            case PolicyRecord():
                await self._policy(tenant, record, actor)
            case AdoptionRecord():
                await self._adopt(tenant, record, actor)
            case SavePolicyRecord():
                await self._save_policy(tenant, record, actor)

    async def _schema(self, tenant: TenantScope, record: Schema, actor: str, imported: Imported) -> None:
        try:
            definition = decode_definition(record.definition)
            _, is_new = await self._schemas.put(tenant, record.schema, record.number, definition, actor)
        except StateSchemaExists:
            raise StateSchemaExists(
                f"version {record.number} of state schema {record.schema!r} is registered here with another definition"
            ) from None
        except StateSchemaInvalid as fault:
            refuse(f"version {record.number} of state schema {record.schema!r}: {fault}")
        imported.state_schemas += is_new

    async def _adopt(self, tenant: TenantScope, record: AdoptionRecord, actor: str) -> None:
        """Say what the export says unversioned state is; it holds for what was saved before it was said there."""
        try:
            await self._adoptions.bring(
                tenant,
                Adoption(
                    record.agent or None,
                    record.namespace,
                    record.number,
                    record.state_schema,
                    record.state_version,
                    record.adopted_at,
                ),
                actor,
            )
        except StateTooNewToSave as fault:
            refuse(str(fault))

    async def _policy(self, tenant: TenantScope, record: PolicyRecord, actor: str) -> None:
        """Set a retention policy of the export where there is none here; one that is here stays."""
        if (record.level == "agent") != bool(record.target) or record.level == "thread":
            refuse("the export has a retention policy where it cannot be")
        agent = record.target or None
        policies = await self._policies.get(tenant)
        here = policies.tenant if agent is None else policies.agents.get(agent)
        policy = policy_of(record.policy)
        damaged = (record.level, record.target) in policies.damaged
        if not damaged and (here is None or here.updated_at is None):
            await self._policies.put(tenant, agent, policy, actor)
            await self._policies.delay(tenant, GRACE_SECONDS)

    async def _save_policy(self, tenant: TenantScope, record: SavePolicyRecord, actor: str) -> None:
        """Set a save policy of the export where there is none here; one that is here stays."""
        policies = await self._save_policies.get(tenant)
        if policies.of(record.agent or None).rule == NOTHING and record.agent not in policies.damaged:
            rule = SaveRule(record.strict, record.compact_elements, record.compact_bytes)
            await self._save_policies.put(tenant, record.agent or None, rule, actor)

    async def _thread(self, run: "_Run", beginning: Beginning) -> Staged | None:
        """Take a thread to its end; None: it is passed over."""
        stream, imported, progress, share = run.stream, run.imported, run.progress, run.share
        scope = _scope(run.tenant, beginning)
        stream.thread, stream.thread_id = RunningDigest(), beginning.thread_id
        stream.thread.add(digested(beginning, b"", beginning.thread_id))
        try:
            if beginning.client_share and share is None:
                await _drain(stream)
                imported.pass_over(scope, beginning.thread_id, "client-share")
                return None
            self._access.row_quotas.require_room(scope)
            sealer = await self._keys.sealer(scope)
            origin = await self._origin(scope, beginning.thread_id)
            if origin is not None:
                ending = await _drain(stream)
                reason = "there" if origin == origin_of(sealer, beginning.source, ending.digest) else "exists"
                if reason == "exists" and not run.skip_existing:
                    raise ThreadExists(
                        f"thread {beginning.thread_id!r} of subject {scope.subject_id!r} exists here; nothing of it was"
                        " changed"
                    )
                imported.pass_over(scope, beginning.thread_id, reason)
                await progress.moved(1)
                return None
            own_share = share if beginning.client_share else None
            staged = Staged(
                scope, sealer if own_share is None else sealer.with_share(own_share.material), own_share, beginning
            )
            try:
                await self._stage(stream, staged, progress)
            except BaseException:
                await self._give_up(staged)
                raise
            return staged
        finally:
            stream.thread = None

    async def _origin(self, scope: Scope, thread_id: str) -> bytes | None:
        """Read where a thread came from; b"": it was not imported. None: there is no such thread."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            thread = await transaction.fetch_one(sql.ORIGIN, thread_id=thread_id)
        return None if thread is None else thread.origin or b""

    async def _give_up(self, staged: Staged | StagedPath) -> None:
        """Let go of what waits, and of what was uploaded for a thread; what this cannot reach expires."""
        staged.close()
        if isinstance(staged, StagedPath):
            return
        for blob_id in staged.reserved:
            with suppress(StorageError):
                await self._ledger.abandon(staged.scope, blob_id)

    # --- staging ---------------------------------------------------------------------------------------------------

    async def _stage(  # noqa: C901  what a thread is made of
        self, stream: Stream, staged: Staged, progress: Progress
    ) -> None:
        staging = Staging(staged)
        while staged.ending is None:
            record = await stream.next()
            await progress.moved()
            match record:
                case ArtifactRecord():
                    await self._artifact(stream, staged, record)
                case PieceRecord():
                    await self._piece(stream, staged, staging, record)
                case PendingRecord():
                    staging.write(record)
                case CheckpointRecord():
                    staging.checkpoint(record)
                case Head():
                    staged.heads.append(record)
                case PolicyRecord(level="thread"):
                    staged.policy = policy_of(record.policy)
                case LinkRecord() if staged.link is None:
                    await self._link(staged, record)
                case EffectRecord():
                    await self._access.control.features.require(DECISIONS, "effects are kept")
                    staging.effect(record)
                case Broken():
                    raise _BrokenThreadError(record.reason)
                case Ending():
                    assert stream.thread is not None  # noqa: S101  for the type checker: the caller set it
                    staging.end(record, stream.thread.digest())
                case _:
                    refuse("the export has a record where it cannot be")

    async def _link(self, staged: Staged, record: LinkRecord) -> None:
        for each in (record.thread_id, record.checkpoint_id):
            if each is not None:
                checked(check_id, each, "id")
        await self._access.control.features.require(LINKS, "threads are linked")
        staged.link = ThreadLink(record.thread_id, record.namespace, record.checkpoint_id)

    async def _piece(self, stream: Stream, staged: Staged, staging: "Staging", record: PieceRecord) -> None:
        if record.data is not None:
            content = record.data
        else:
            content = b"".join([each async for each in stream.data(record.size)])
        piece = staging.piece(record, content)
        if piece is None or not self._access.offload.is_large(piece):
            if piece is not None:
                staged.chunks.add(piece.piece_id, piece.plaintext, piece.children)
            return
        staged.large.add(piece.piece_id, piece.children, piece.kind, piece.size)
        async with self._unit_of_work.snapshot(staged.scope) as transaction:
            known = await self._ledger.live_blobs(transaction, [piece.piece_id])
        if known:
            staged.known.update(known)
            return
        writer = self._piece_writer
        if writer is None:
            raise BlobsNotConfigured
        blob_id, blob_key = new_blob_id(), staged.sealer.new_blob_key()
        reservation = NewBlob(blob_id, "piece", object_bytes(piece.size), piece.piece_id)
        staged.reserved.add(blob_id)
        await self._ledger.reserve(staged.scope, staged.sealer, [reservation], self._access.clock.now())
        written = await writer.write_bytes(
            BlobLocation(staged.scope.tenant_id, blob_id),
            staged.sealer.blob_cipher(blob_id, blob_key),
            memoryview(piece.plaintext)[1:].tobytes(),
        )
        pointer = BlobPointer(bytes(blob_key.borrow()), written.size_bytes)
        staged.settlements.append(Settlement(blob_id, written.object_bytes, pointer, piece.piece_id))

    async def _artifact(  # noqa: C901  one that is there, or one that is not
        self, stream: Stream, staged: Staged, record: ArtifactRecord
    ) -> None:
        """Bring a file into the object store, unless it is there already."""
        if record.client_share and staged.share is None:
            refuse("a thread without a client-held share names a file that takes one")
        checked(check_id, record.thread_id, "thread id")
        ends = self._artifacts.ends()
        hashing = hashlib.sha256()

        async def body() -> AsyncIterator[bytes]:
            async for each in stream.data(record.size_bytes):
                hashing.update(each)
                yield each

        async with self._unit_of_work.snapshot(staged.scope) as transaction:
            found = await self._ledger.artifacts(transaction, [record.artifact_id])
            there = found.get(record.artifact_id)
            if there is not None:
                opener = staged.sealer if there.client_share else staged.sealer.without_share
                described = await self._artifacts.open(transaction, opener, there)
        if there is not None:
            async for _ in body():
                pass
            if hashing.digest() != record.digest:
                refuse("a file of the export is not what its digest says")
            if described.digest != record.digest:
                raise ImportConflict(f"artifact {record.artifact_id} exists here with another content")
            if described.number != record.number and record.thread_id == staged.beginning.thread_id:
                raise ImportConflict(f"artifact {record.artifact_id} exists here as another version of its name")
            staged.artifacts.add(encode(record), None)
            return
        blob_id, blob_key = new_blob_id(), staged.sealer.new_blob_key()
        opener = staged.sealer if record.client_share else staged.sealer.without_share
        reservation = NewBlob(blob_id, "artifact", object_bytes(record.size_bytes))
        staged.reserved.add(blob_id)
        await self._ledger.reserve(staged.scope, opener, [reservation], self._access.clock.now())

        async def name_multipart(multipart_id: str) -> None:
            await self._ledger.name_multipart(staged.scope, blob_id, multipart_id)

        written = await ends.writer.write(
            BlobLocation(staged.scope.tenant_id, blob_id),
            opener.blob_cipher(blob_id, blob_key),
            body(),
            size_bytes=record.size_bytes,
            on_multipart=name_multipart,
        )
        if hashing.digest() != record.digest:
            refuse("a file of the export is not what its digest says")
        staged.artifacts.add(encode(record), (blob_id.bytes, bytes(blob_key.borrow()), written.object_bytes))

    # --- settling --------------------------------------------------------------------------------------------------

    async def _settle(self, staged: Staged, actor: str, imported: Imported, progress: Progress) -> None:
        """Make a thread visible, and compare it with its export."""
        assert staged.ending is not None  # noqa: S101  for the type checker: staging ended with it
        thread_id = staged.beginning.thread_id

        async def attempt(sealer: Sealer) -> None:
            async with self._unit_of_work.begin(staged.scope) as transaction:
                await settle(self._access, self._artifacts, self._audit, transaction, sealer, staged, actor)
                said = OfThread(thread_id)
                await self._access.emitting.of_thread(transaction, staged.scope, "thread.created", said)

        try:
            await self._access.with_keys(staged.scope, attempt, staged.share)
        except CommitUnknown:
            staged.close()
            raise  # perhaps it is there: running the import again finds out
        except BaseException:
            await self._give_up(staged)
            raise
        staged.close()
        imported.threads += 1
        imported.checkpoints += staged.ending.checkpoints
        imported.pending_writes += staged.ending.pending_writes
        imported.artifacts += staged.ending.artifacts
        found = await self._exporting.content_digest(
            staged.scope, thread_id, staged.share, updated_at=staged.beginning.updated_at
        )
        if found.digest == staged.ending.digest:
            imported.verified += 1
        elif found.activity == 1:  # otherwise an agent goes on with it already
            self._access.found_damage()
            raise IntegrityFailure(
                f"thread {thread_id!r} of subject {staged.scope.subject_id!r} was imported, but does not read back as"
                " it was exported"
            )
        await progress.moved(1)


def _subject(tenant: TenantScope, record: PathRecord | PathsLeftOut | FloorRecord) -> Scope:
    checked(check_subject, record.subject_id)
    return Scope(tenant.tenant_id, record.subject_id)


def _scope(tenant: TenantScope, record: Beginning | LeftOut) -> Scope:
    checked(check_subject, record.subject_id)
    checked(check_id, record.thread_id, "thread id")
    return Scope(tenant.tenant_id, record.subject_id)


async def _drain(stream: Stream) -> Ending:
    """Read a thread that is passed over, to its end."""
    while True:
        record = await stream.next()
        if isinstance(record, Ending):
            if stream.thread is None or stream.thread.digest() != record.digest:
                refuse("a thread of the export is not what its digest says")
            return record
        if isinstance(record, Broken):
            raise _BrokenThreadError(record.reason)
        if isinstance(record, Opening | Schema | Beginning | LeftOut | PathRecord | PathsLeftOut | FloorRecord | End):
            refuse("the export has a record where it cannot be")


def _of_this(opener: ExportOpener, record: Record) -> Record:
    """The record, if it is not another export's opening."""
    if isinstance(record, Opening):
        if opener.header is None or record.export_id != opener.header.export_id:
            refuse("the export's content is another one's")
        if record.format != opener.file_format:
            refuse("the export is of a format that this release does not read")
    return record
