"""A thread in spools: all of its rows as they were at one moment, wherever they are.

What is in the database is read in one snapshot. What is in the thread's archive and in its segments follows, an object
after the other and a few rows of it at a time, while no snapshot is open: an object never changes, and one whose rows
come back meanwhile is kept for the backups' sake. So a thread of any size takes a few pages of memory, and room on disk
for as much as it has.

Seals are opened here, rows are not. Whether these are all that the thread had is for their reader to compare. Nothing
is restored or thawed.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from crypto import Sealer
from storage.access.access import Access
from storage.access.completeness import compare_namespaces, open_own_head
from storage.artifacts.rows import ArtifactRows
from storage.control.rows import Proof
from storage.effects.moving import effects_out, place_of
from storage.encoding import encode_json, json_encoder
from storage.errors import IntegrityFailure, LostRaceError, ThreadNotFound
from storage.format.chain import HeadSeal, ThreadSeal
from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, StoredRow, Stub, row_of
from storage.format.cold.segment import ColdSums
from storage.format.export import encode
from storage.format.record import CheckpointRow, PieceRow, WriteRow, open_thread
from storage.ledger.ledger import LiveBlob
from storage.postgres.unit_of_work import Transaction
from storage.retention.planner import NO_POLICY, Policy
from storage.scope import ClientShare, Scope
from storage.statements.deployment import transfer as sql
from storage.statements.deployment.transfer import ExportedThread
from storage.statements.rules import retention as retention_sql
from storage.statements.threads import archives as archives_sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.threads import HeadRow
from storage.threads.holds import proved_thread_policy
from storage.tiers.hot import HotRows
from storage.tiers.objects import ArchiveObjects
from storage.tiers.rows import BEFORE_WRITES, write_key
from storage.tiers.segments import Lists, cold_heads, open_segments
from storage.transfer.spool import Spool

# Rows that are read at a time; each is a piece of some 64 KiB at most, or a manifest.
_CHUNK_ROWS = 64
_ROWS = 200

R = TypeVar("R", bound=msgspec.Struct)
_policy_encoder = json_encoder(order="deterministic")


def encode_policy(policy: Policy) -> bytes:
    """A policy as it is stored, and sent."""
    return _policy_encoder(policy)


NO_POLICY_JSON = encode_policy(NO_POLICY)


class _Sorted(Generic[R]):
    """Rows that were added in runs, each of them in order, and that come back all in order."""

    def __init__(self, kind: type[R], order: Callable[[R], Any]) -> None:
        self._kind = kind
        self._order = order
        self._spool = Spool()
        self._runs: list[int] = []

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._spool.count

    def begin_run(self) -> None:
        """What is added from now on is in order by itself."""
        self._runs.append(self._spool.size_bytes)

    def add(self, row: R) -> None:
        """Add a row."""
        self._spool.add(*msgspec.structs.astuple(row))

    def __iter__(self) -> Iterator[R]:
        ends = [*self._runs[1:], self._spool.size_bytes]
        runs = [self._run(start, end) for start, end in zip(self._runs, ends, strict=True)]
        return heapq.merge(*runs, key=self._order)

    def _run(self, start: int, end: int) -> Iterator[R]:
        for values in self._spool.between(start, end):
            yield self._kind(*values)

    def close(self) -> None:
        """Let everything go."""
        self._spool.close()


@dataclass(slots=True)
class SpooledThread:
    """One thread at one moment. Rows are as they are stored, sealed; artifacts are described.

    Attributes:
        sealer: What opens its rows.
        row: Its own row.
        thread: Its seal.
        policy: What it says of its retention, as it is stored; None: nothing.
        heads: Its namespaces, each with the head's id and seal.
        artifacts: Its artifacts, with what opens their content.
        writes: Its pending writes, by namespace, checkpoint, task and index.
        checkpoints: Its checkpoints, by namespace and id.
        effects: What its tools did, as it is sent; ``effect_order`` says in which order.
        chunks: Its pieces; ``places`` says where each is.
        places: The place in ``chunks`` of each piece.
    """

    sealer: Sealer
    row: ExportedThread
    thread: ThreadSeal
    policy: bytes | None
    heads: list[tuple[str, str, HeadSeal]]
    artifacts: Spool = field(default_factory=Spool)
    writes: _Sorted[WriteRow] = field(default_factory=lambda: _Sorted(WriteRow, write_key))
    checkpoints: _Sorted[CheckpointRow] = field(default_factory=lambda: _Sorted(CheckpointRow, _checkpoint_key))
    effects: Spool = field(default_factory=Spool)
    effect_order: list[int] = field(default_factory=list)
    chunks: Spool = field(default_factory=Spool)
    places: dict[bytes, int] = field(default_factory=dict)

    def close(self) -> None:
        """Let everything go."""
        for each in (self.artifacts, self.writes, self.checkpoints, self.effects, self.chunks):
            each.close()


class Spooling:
    """Reads threads into spools."""

    def __init__(self, access: Access, artifacts: ArtifactRows, objects: ArchiveObjects) -> None:
        self._access = access
        self._artifacts = artifacts
        self._objects = objects

    async def spool(self, scope: Scope, thread_id: str, share: ClientShare | None) -> SpooledThread:
        """Read a thread; the caller closes it.

        Raises:
            ThreadNotFound: There is none.
            ClientShareRequired, ClientShareWrong, ClientShareUnexpected: The share is not the thread's.
            ThreadArchived: An object has to be thawed first.
            ArchiveUnavailable: This process has no bucket of archives.
            IntegrityFailure: A seal, a stub or an object is not what it should be.
            BlobUnavailable: The object store does not answer.
        """
        await self._access.control.ready()

        async def attempt(sealer: Sealer) -> SpooledThread:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                spooled, namespaces = await self._described(transaction, scope, sealer, thread_id)
                try:
                    stubs = await self._stubs(transaction, thread_id, spooled)
                    if spooled.row.tier == "hot":
                        await self._add_hot(transaction, thread_id, spooled, namespaces)
                    await self._add_artifacts(transaction, thread_id, spooled)
                    await _add_effects(transaction, thread_id, spooled)
                except BaseException:
                    spooled.close()
                    raise
            try:
                for stub in stubs:
                    await self._add_cold(scope, stub, spooled)
            except BaseException:
                spooled.close()
                raise
            return spooled

        return await self._access.without_restore(scope, attempt, ThreadNotFound(), share)

    async def _described(
        self, transaction: Transaction, scope: Scope, sealer: Sealer, thread_id: str
    ) -> tuple[SpooledThread, list[str]]:
        """The thread without its rows, and the namespaces that are not cold as a whole."""
        await self._access.check_keys_in(transaction, scope, sealer)
        row = await transaction.fetch_one(sql.EXPORTED, thread_id=thread_id)
        if row is None:
            raise ThreadNotFound
        thread = open_thread(sealer, thread_id, row.created_at, row.seal)
        heads = await transaction.fetch_all(threads_sql.HEADS, thread_id=thread_id)
        sums = ColdSums.open(sealer, thread_id, row.created_at, thread.incarnation, row.cold)
        namespaces = [each.namespace for each in heads]
        compare_namespaces(sealer, thread, namespaces, sums.namespaces)
        if sums.segments.count:
            segments = await open_segments(transaction, sealer, thread_id, sums)
            heads = sorted([*heads, *await cold_heads(Lists(transaction, sealer), segments, sums)], key=_namespace)
        opened = [(each.namespace, each.head_id, open_own_head(sealer, thread_id, thread, each)) for each in heads]
        own = await transaction.fetch_one(retention_sql.THREAD_ONE, thread_id=thread_id)
        if own is not None:
            proof = Proof(own.mac, own.mac_format)
            self._access.control.check(proved_thread_policy(scope, thread_id, own), proof)
        policy = None if own is None or own.policy == NO_POLICY_JSON else own.policy
        return SpooledThread(sealer, row, thread, policy, opened), namespaces

    async def _stubs(self, transaction: Transaction, thread_id: str, spooled: SpooledThread) -> list[Stub]:
        """What says where the rows are that are not in the database: of its archive, and of each segment."""
        row, stubs = spooled.row, list[Stub]()
        if row.tier != "hot":
            archived = await self._objects.stub(transaction, thread_id)
            if archived is None:
                raise IntegrityFailure("a thread is in the archive tier, but what says where is gone")
            stubs.append(archived)
        if row.cold is not None:
            stubs += await transaction.fetch_all(archives_sql.SEGMENT_STUBS, thread_id=thread_id)
        return stubs

    async def _add_hot(
        self, transaction: Transaction, thread_id: str, spooled: SpooledThread, namespaces: Sequence[str]
    ) -> None:
        rows, after = HotRows(transaction, thread_id), BEFORE_WRITES
        spooled.writes.begin_run()
        spooled.checkpoints.begin_run()
        while True:
            writes = await rows.writes_after(after, _ROWS)
            for write in writes:
                spooled.writes.add(write)
                after = write_key(write)
            if len(writes) < _ROWS:
                break
        for namespace in namespaces:
            last = ""
            while True:
                checkpoints = await rows.checkpoints_after(namespace, last, _ROWS)
                for checkpoint in checkpoints:
                    spooled.checkpoints.add(checkpoint)
                    last = checkpoint.checkpoint_id
                if len(checkpoints) < _ROWS:
                    break
        piece_id = b""
        while True:
            pieces = await rows.pieces_after(piece_id, _CHUNK_ROWS)
            await self._add_pieces(transaction, pieces, spooled)
            if len(pieces) < _CHUNK_ROWS:
                break
            piece_id = pieces[-1].piece_id

    async def _add_cold(self, scope: Scope, stub: Stub, spooled: SpooledThread) -> None:
        """Add what an object has; it is of the moment of the snapshot, or it was given up since.

        Raises:
            LostRaceError: It was given up.
        """
        spooled.writes.begin_run()
        spooled.checkpoints.begin_run()
        try:
            async with aclosing(self._objects.read(scope, spooled.sealer, stub)) as pages:
                async for table, page in pages:
                    await self._add_page(scope, table, page, spooled)
        except IntegrityFailure:
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                place = {"thread_id": stub.thread_id, "segment": stub.segment}
                now = await transaction.fetch_one(archives_sql.SEGMENT_STUB, **place)
            if now != stub:
                raise LostRaceError from None
            raise

    async def _add_page(self, scope: Scope, table: str, page: Sequence[StoredRow], spooled: SpooledThread) -> None:
        if table == CHECKPOINTS:
            for row in page:
                spooled.checkpoints.add(row_of(CheckpointRow, row))
        elif table == PENDING_WRITES:
            for row in page:
                spooled.writes.add(row_of(WriteRow, row))
        elif table == CHUNKS:
            # Segments of several volumes, and rows in the database, may have the same pieces.
            pieces = [row_of(PieceRow, row) for row in page if row["piece_id"] not in spooled.places]
            async with self._access.unit_of_work.snapshot(scope) as transaction:
                await self._add_pieces(transaction, pieces, spooled)

    async def _add_pieces(self, transaction: Transaction, pieces: Sequence[PieceRow], spooled: SpooledThread) -> None:
        named = [UUID(bytes=row.named_ids) for row in pieces if row.named_ids is not None]
        blobs = await self._pointers(transaction, spooled.sealer, named)
        for row in pieces:
            blob = None if row.named_ids is None else blobs[UUID(bytes=row.named_ids)]
            pointer = (None, 0) if blob is None else (blob.pointer.blob_key, blob.pointer.size_bytes)
            at = spooled.chunks.add(row.children, row.named_ids, row.envelope, row.key_version, *pointer)
            spooled.places[row.piece_id] = at

    async def _pointers(
        self, transaction: Transaction, sealer: Sealer, blob_ids: Sequence[UUID]
    ) -> dict[UUID, LiveBlob]:
        if not blob_ids:
            return {}
        return await self._access.offload.ledger.pointers(transaction, sealer, blob_ids)

    async def _add_artifacts(self, transaction: Transaction, thread_id: str, spooled: SpooledThread) -> None:
        ids = await transaction.fetch_all(sql.ARTIFACT_IDS, thread_id=thread_id)
        ledger = self._access.offload.ledger
        for start in range(0, len(ids), _ROWS):
            found = await ledger.artifacts(transaction, ids[start : start + _ROWS])
            if len(found) != len(ids[start : start + _ROWS]):
                raise IntegrityFailure("a stored artifact is missing")
            blobs = await self._pointers(transaction, spooled.sealer, [row.blob_id for row in found.values()])
            for row in found.values():
                opener = spooled.sealer if row.client_share else spooled.sealer.without_share
                artifact = await self._artifacts.open(transaction, opener, row)
                pointer = blobs[row.blob_id].pointer
                if pointer.size_bytes != artifact.size_bytes:
                    raise IntegrityFailure("an artifact and its blob do not have the same length")
                spooled.artifacts.add(
                    row.artifact_id.bytes, artifact.thread_id, artifact.name, artifact.number, artifact.media_type,
                    encode_json(artifact.metadata), artifact.preview, artifact.digest, artifact.size_bytes,
                    artifact.client_share, artifact.created_at, row.blob_id.bytes, pointer.blob_key,
                )  # fmt: skip


async def _add_effects(transaction: Transaction, thread_id: str, spooled: SpooledThread) -> None:
    """Add what tools did: rows of the ledger stay in the database, wherever the thread is."""
    async with aclosing(effects_out(transaction, spooled.sealer, thread_id)) as records:
        places = [(place_of(record), spooled.effects.add(encode(record))) async for record in records]
    spooled.effect_order = [at for _, at in sorted(places)]


def _namespace(head: HeadRow) -> str:
    return head.namespace


def _checkpoint_key(row: CheckpointRow) -> tuple[str, str]:
    return row.namespace, row.checkpoint_id
