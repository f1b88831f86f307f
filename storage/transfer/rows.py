"""The rows of an imported thread: what waits for them, and the one transaction that writes them.

`Staged` holds a thread that is not visible yet. `Staging` takes its records, computes what can be computed without
I/O, and refuses what does not fit together; `settle` makes the rows, under whatever keys are active then, so that it
can be run again after a lost race or a rotation. Nothing here reads the stream or the object store.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from crypto import Kind, Sealer
from storage.access.access import Access
from storage.access.completeness import Writes
from storage.administration.audit import Audit
from storage.artifacts.model import NewArtifact, NewVersion
from storage.artifacts.rows import ArtifactRows
from storage.blobs.store import STORAGE_CLASSES
from storage.effects.moving import check_effect, effects_in, place_of
from storage.encoding import decode_json, json_decoder
from storage.errors import ImportConflict, ImportRefused, IntegrityFailure, InvalidState, LostRaceError, ThreadExists
from storage.format.chain import HeadSeal, LiveSet
from storage.format.export import (
    ArtifactRecord,
    Beginning,
    CheckpointRecord,
    EffectRecord,
    Ending,
    Head,
    PendingRecord,
    PieceRecord,
    encode,
    leaf_sizes,
    with_ids,
)
from storage.format.leaves import PIECE_ID_BYTES
from storage.format.manifest import FORMAT, CheckpointColumns, Manifest, WriteColumns, WriteRecord, chunk_location
from storage.format.pieces import COMPOSITE, INDEX, LEAF, BlobChunk, Body, Piece, piece_ids_of, piece_of
from storage.format.pointer import BlobPointer, artifact_name_digest
from storage.format.record import PieceRow, new_thread, seal_checkpoint, seal_head, seal_piece, seal_thread, seal_write
from storage.ledger.ledger import Settlement, unpack_named_ids
from storage.model import ThreadLink
from storage.postgres.statement import Statement
from storage.postgres.unit_of_work import Transaction
from storage.retention.planner import Policy, check_policy
from storage.retention.policies import put_own
from storage.scope import ClientShare, Scope, check_id
from storage.statements.deployment import transfer as sql
from storage.statements.rules import retention as retention_sql
from storage.statements.threads import pieces as pieces_sql
from storage.statements.threads import threads as threads_sql
from storage.thread_ledgers.locked import LockedLedger
from storage.transfer.spool import Spool

# Rows of one round trip.
_BATCH_ROWS = 50
# What a value may be made of, counted as often as it is put in: as many as a list of a gigabyte has. More is no value,
# but a few pieces that are made of each other many times. A list that grew by many appends is deep; a deeper one could
# not be put together either.
PIECES_OF_VALUE_MAX = 1 << 20
PIECES_DEEP_MAX = 400
_ORIGIN_BYTES = 16
# A policy that came with an import does nothing so long, so that there is time to see what it would do.
GRACE_SECONDS = 86_400.0

_pending = msgspec.msgpack.Decoder(PendingRecord)
_checkpoint = msgspec.msgpack.Decoder(CheckpointRecord)
_policy_decoder = json_decoder(Policy)
_artifact = msgspec.msgpack.Decoder(ArtifactRecord)
_effect = msgspec.msgpack.Decoder(EffectRecord)


def refuse(why: str) -> NoReturn:
    """Refuse the file.

    Raises:
        ImportRefused: always.
    """
    raise ImportRefused(why)


def checked(check: Callable[..., str], *arguments: str) -> None:
    """Refuse the file where an identifier cannot be one.

    Raises:
        ImportRefused: it cannot.
    """
    try:
        check(*arguments)
    except InvalidState as fault:
        refuse(f"the export names something that cannot be: {fault}")


def origin_of(sealer: Sealer, source: bytes, digest: bytes) -> bytes:
    """The MACs in a thread's row that say, under the keys, from where it was imported and what it then was."""
    macs = sealer.without_share
    return macs.mac(b"import-source", source)[:_ORIGIN_BYTES] + macs.mac(b"import", source, digest)[:_ORIGIN_BYTES]


@dataclass(slots=True)
class Staged:
    """A thread that is here but not visible: what its rows will be made of, and what is in the object store for it."""

    scope: Scope
    sealer: Sealer
    share: ClientShare | None
    beginning: Beginning
    chunks: Spool = field(default_factory=Spool)
    large: Spool = field(default_factory=Spool)
    writes: Spool = field(default_factory=Spool)
    checkpoints: Spool = field(default_factory=Spool)
    artifacts: Spool = field(default_factory=Spool)
    effects: Spool = field(default_factory=Spool)
    heads: list[Head] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    known: dict[bytes, UUID] = field(default_factory=dict)
    named: set[UUID] = field(default_factory=set)
    reserved: set[UUID] = field(default_factory=set)
    policy: Policy | None = None
    link: ThreadLink | None = None
    ending: Ending | None = None

    def close(self) -> None:
        """Let everything go."""
        for each in (self.chunks, self.large, self.writes, self.checkpoints, self.artifacts, self.effects):
            each.close()


class Staging:
    """Takes the records of one thread."""

    def __init__(self, staged: Staged) -> None:
        self._staged = staged
        self._ids = bytearray()
        self._kinds = bytearray()
        self._sizes = array("Q")
        self._made_of = array("Q")
        self._depths = array("H")
        self._seen: set[bytes] = set()
        self._last_write: tuple[Any, ...] | None = None
        self._last_checkpoint: tuple[bytes, bytes] | None = None
        self._newest: dict[str, str] = {}
        self._last_effect: tuple[bytes, bytes, int] | None = None

    def piece(self, record: PieceRecord, content: bytes) -> Piece | None:
        """A piece as it is here; None: it is here already.

        Raises:
            ImportRefused: it is not made of what came before it, or of too much.
        """
        children = [self._id(each) for each in record.children]
        if len(content) != record.size:
            refuse("a piece of the export has another length than it says")
        made_of = 1 + sum(self._made_of[each] for each in record.children)
        depth = 1 + max((self._depths[each] for each in record.children), default=0)
        if made_of > PIECES_OF_VALUE_MAX or depth > PIECES_DEEP_MAX:
            refuse("a piece of the export is made of more pieces than a value has")
        try:
            if record.kind == COMPOSITE:
                self._check_leaves(record, content)
            data = with_ids(record.kind, content, children)
            packed = b"".join(children) if record.kind in {INDEX, COMPOSITE} else None
            piece = piece_of(self._staged.sealer, record.kind, data, packed)
        except IntegrityFailure:
            refuse("a piece of the export cannot be read")
        self._ids += piece.piece_id
        self._kinds.append(record.kind)
        self._sizes.append(piece.size)
        self._made_of.append(made_of)
        self._depths.append(depth)
        if piece.piece_id in self._seen:
            return None
        self._seen.add(piece.piece_id)
        return piece

    def _check_leaves(self, record: PieceRecord, content: bytes) -> None:
        for number, size in zip(record.children, leaf_sizes(content), strict=False):
            if self._kinds[number] != LEAF or self._sizes[number] != size:
                refuse("a piece of the export has other leaves than it says")

    def _id(self, number: int) -> bytes:
        if not 0 <= number < len(self._kinds):
            refuse("the export names a piece that did not come before")
        return bytes(self._ids[number * PIECE_ID_BYTES : (number + 1) * PIECE_ID_BYTES])

    def _packed(self, numbers: Sequence[int], bodies: Sequence[Body | None]) -> bytes:
        """The ``piece_ids`` of a row, after its values were compared with them."""
        ids = [self._id(each) for each in numbers]
        try:
            for body in bodies:
                piece_ids_of(b"" if body is None else body, ids)
        except IntegrityFailure:
            refuse("a value of the export names a piece that it does not have")
        return b"".join(ids)

    def _named(self, *packed: bytes | None) -> None:
        try:
            for each in packed:
                self._staged.named.update(unpack_named_ids(each))
        except IntegrityFailure:
            refuse("a record of the export names files that none can be")

    def write(self, record: PendingRecord) -> None:
        """Stage a pending write.

        Raises:
            ImportRefused: it does not fit in.
        """
        at = (record.namespace.encode(), record.checkpoint_id.encode(), record.task_id.encode(), record.idx)
        if self._last_write is not None and at <= self._last_write:
            refuse("the pending writes of the export are not in order")
        self._last_write = at
        for name in (record.checkpoint_id, record.task_id):
            checked(check_id, name, "id")
        self._named(record.named_ids)
        self._staged.writes.add(encode(record), self._packed(record.pieces, [record.body, record.leaves]))

    def checkpoint(self, record: CheckpointRecord) -> None:
        """Stage a checkpoint.

        Raises:
            ImportRefused: it does not fit in.
        """
        at = (record.namespace.encode(), record.checkpoint_id.encode())
        if self._last_checkpoint is not None and at <= self._last_checkpoint:
            refuse("the checkpoints of the export are not in order")
        self._last_checkpoint = at
        for name in (record.checkpoint_id, record.parent_id):
            if name is not None:
                checked(check_id, name, "checkpoint id")
        self._newest[record.namespace] = record.checkpoint_id
        self._named(record.named_ids, *(each.artifacts for each in record.channels))
        self._staged.checkpoints.add(
            encode(record),
            self._packed(record.pieces, [body for each in record.channels for body in (each.body, each.leaves)]),
        )

    def effect(self, record: EffectRecord) -> None:
        """Stage what a tool did.

        Raises:
            ImportRefused: it does not fit in.
        """
        at = place_of(record)
        if self._last_effect is not None and at <= self._last_effect:
            refuse("the effects of the export are not in order")
        self._last_effect = at
        check_effect(record, self._staged.effects.count)
        self._staged.effects.add(encode(record))

    def end(self, record: Ending, digest: bytes) -> None:
        """The end of the thread.

        Raises:
            ImportRefused: it is not what was said.
        """
        staged = self._staged
        found = (staged.artifacts.count, len(self._kinds), staged.writes.count, staged.checkpoints.count)
        if found != (record.artifacts, record.pieces, record.pending_writes, record.checkpoints):
            refuse("a thread of the export has other records than its end says")
        if digest != record.digest:
            refuse("a thread of the export is not what its digest says")
        heads = {each.namespace: each.head_id for each in staged.heads}
        if heads != self._newest or len(heads) != len(staged.heads):
            refuse("a thread of the export has other heads than its checkpoints make")
        staged.ending = record


async def settle(  # the order of locks: thread, intents, blobs, references, usage
    access: Access,
    artifacts: ArtifactRows,
    audit: Audit,
    transaction: Transaction,
    sealer: Sealer,
    staged: Staged,
    actor: str,
) -> None:
    """Write a staged thread, whole, in the caller's transaction.

    Raises:
        ThreadExists: there is one of this id by now.
        ImportConflict: a file cannot have its id or number here.
        ImportRefused: the state names a file that is neither here nor in the export.
        LostRaceError: what it refers to is being removed at this moment; run it again.
    """
    beginning, ending, scope = staged.beginning, staged.ending, staged.scope
    assert ending is not None  # noqa: S101  for the type checker: only what ended is settled
    thread_id = beginning.thread_id
    await access.check_keys_in(transaction, scope, sealer)
    thread = replace(new_thread(sealer, thread_id), link=staged.link)
    for head in staged.heads:
        thread = thread.with_namespace(sealer, head.namespace)
    created = await transaction.fetch_one(
        sql.ADD_THREAD,
        thread_id=thread_id,
        agent=beginning.agent,
        status=beginning.status,
        strict=beginning.strict,
        created_at=beginning.created_at,
        seal=seal_thread(sealer, thread_id, beginning.created_at, thread),
        client_share=sealer.shared,
        origin=origin_of(sealer, beginning.source, ending.digest),
        parent_thread_id=None if staged.link is None else staged.link.thread_id,
    )
    if created is None:
        raise ThreadExists(f"thread {thread_id!r} of subject {scope.subject_id!r} exists here; nothing was changed")
    await _add_pieces(access, transaction, sealer, staged)
    await _add_artifacts(artifacts, transaction, sealer, staged)
    written = await _add_writes(transaction, sealer, staged)
    await _add_checkpoints(transaction, sealer, staged, thread.incarnation, written)
    if written.total.count:
        seal = seal_thread(sealer, thread_id, beginning.created_at, replace(thread, writes=written.total))
        await transaction.run(threads_sql.SEAL, thread_id=thread_id, seal=seal)
    await _add_effects(access, transaction, sealer, staged)
    if staged.policy is not None:
        await _add_policy(access, audit, transaction, staged, staged.policy, actor)
    detail = {"checkpoints": ending.checkpoints, "artifacts": ending.artifacts, "digest": ending.digest.hex()}
    target = f"subject:{scope.subject_id}/thread:{thread_id}"
    await audit.append(transaction, scope.tenant_id, actor, "import.thread", target, detail)


async def _add_effects(access: Access, transaction: Transaction, sealer: Sealer, staged: Staged) -> None:
    if not staged.effects.count:
        return
    scope, thread_id = staged.scope, staged.beginning.thread_id
    ledger = await LockedLedger.lock(transaction, sealer, thread_id)
    await effects_in(transaction, scope, ledger, (_effect.decode(encoded) for (encoded,) in staged.effects))
    await ledger.store(transaction, access.note_ledger(scope, sealer, thread_id))


async def _add_policy(
    access: Access, audit: Audit, transaction: Transaction, staged: Staged, policy: Policy, actor: str
) -> None:
    """Store the thread's policy, which holds from the moment at which the thread is visible."""
    scope, thread_id = staged.scope, staged.beginning.thread_id
    if policy.legal_hold is not None:
        await transaction.run(retention_sql.TAKE_HOLDS, lock=retention_sql.holds_lock(scope.tenant_id))
    await put_own(transaction, access.control, scope, thread_id, policy)
    await transaction.run(retention_sql.DELAY_ROUND, seconds=GRACE_SECONDS)
    detail = {"before": {}, "after": msgspec.to_builtins(policy)}
    target = f"thread:{scope.subject_id}/{thread_id}"
    await audit.append(transaction, scope.tenant_id, actor, "retention.set", target, detail)


def policy_of(encoded: bytes) -> Policy:
    """Read the policy in a record.

    Raises:
        ImportRefused: it makes no sense.
    """
    try:
        return check_policy(_policy_decoder(encoded), STORAGE_CLASSES)
    except (msgspec.DecodeError, InvalidState) as fault:
        refuse(f"a retention policy of the export makes no sense: {fault}")


async def _add_pieces(access: Access, transaction: Transaction, sealer: Sealer, staged: Staged) -> None:
    thread_id = staged.beginning.thread_id
    ledger = access.offload.ledger
    named = await ledger.settle(transaction, sealer, staged.settlements, thread_id)
    await ledger.refer(transaction, thread_id, staged.known.values())
    blobs = {**staged.known}
    for each in staged.settlements:
        if each.content_id is not None:
            blobs[each.content_id] = named[each.blob_id]
    batch: list[dict[str, object]] = []

    async def add(row: PieceRow) -> None:
        batch.append({"thread_id": thread_id, **msgspec.structs.asdict(row)})
        await _flush(transaction, pieces_sql.ADD, batch)

    for piece_id, plaintext, children in staged.chunks:
        envelope = seal_piece(sealer, Piece(piece_id, plaintext, children))
        await add(PieceRow(piece_id, children, None, envelope, sealer.active_key_version))
    for piece_id, children, kind, size in staged.large:
        blob_id = blobs[piece_id]
        location = chunk_location(piece_id, children, blob_id.bytes)
        envelope = sealer.seal(Kind.CHUNK, location, BlobChunk(kind, size, blob_id).encode())
        await add(PieceRow(piece_id, children, blob_id.bytes, envelope, sealer.active_key_version))
    await _flush(transaction, pieces_sql.ADD, batch, last=True)


async def _flush(
    transaction: Transaction, statement: Statement[None], batch: list[dict[str, object]], *, last: bool = False
) -> None:
    """Write a batch and empty it, if it is full, or the last one."""
    if len(batch) >= _BATCH_ROWS or last:
        await transaction.run_many(statement, batch)
        batch.clear()


async def _add_artifacts(artifacts: ArtifactRows, transaction: Transaction, sealer: Sealer, staged: Staged) -> None:
    thread_id = staged.beginning.thread_id
    ledger = artifacts.ledger
    wanted = set(staged.named)
    for encoded, upload in staged.artifacts:
        record = _artifact.decode(encoded)
        if record.thread_id != thread_id:
            wanted.add(record.artifact_id)
        if upload is None:
            continue
        opener = sealer if record.client_share else sealer.without_share
        blob_id = UUID(bytes=upload[0])
        settlement = Settlement(blob_id, upload[2], BlobPointer(upload[1], record.size_bytes))
        await ledger.settle(transaction, opener, [settlement], None)
        described = NewArtifact(
            name=record.name, media_type=record.media_type, metadata=_metadata(record), preview=record.preview
        )
        number: int | None = record.number
        if record.thread_id != thread_id:
            name_digest = artifact_name_digest(opener, record.thread_id, record.name)
            free = await ledger.next_number(transaction, record.thread_id, name_digest)
            number = record.number if record.number >= free else None
        version = NewVersion(
            artifact_id=record.artifact_id,
            thread_id=record.thread_id,
            new=described,
            blob_id=blob_id,
            size_bytes=record.size_bytes,
            digest=record.digest,
            number=number,
            created_at=record.created_at,
        )
        try:
            await artifacts.add(transaction, opener, version)
        except LostRaceError:
            raise ImportConflict(
                f"artifact {record.artifact_id} cannot be stored: its id, or its number among those of its name, is"
                " taken here"
            ) from None
    if await ledger.refer_artifacts(transaction, thread_id, wanted):
        refuse("the state of a thread names a file that is neither in the export nor here")


def _metadata(record: ArtifactRecord) -> dict[str, Any]:
    try:
        return decode_json(record.metadata, dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        refuse("the metadata of a file of the export is no JSON object")


async def _add_writes(transaction: Transaction, sealer: Sealer, staged: Staged) -> Writes:
    written = Writes()
    batch: list[dict[str, object]] = []
    for encoded, piece_ids in staged.writes:
        record = _pending.decode(encoded)
        columns = WriteColumns(
            thread_id=staged.beginning.thread_id,
            namespace=record.namespace,
            checkpoint_id=record.checkpoint_id,
            task_id=record.task_id,
            idx=record.idx,
            task_path=record.task_path,
            channel=record.channel,
            status=record.status,
            created_at=record.created_at,
            piece_ids=piece_ids,
            named_ids=record.named_ids,
            state_schema=record.state_schema,
            state_version=record.state_version,
        )
        sealed = seal_write(sealer, columns, WriteRecord(FORMAT, record.encoding, record.body, record.leaves))
        written.add(columns.namespace, columns.checkpoint_id, sealed.mac)
        values = {"value": sealed.envelope, "member": sealed.member, "key_version": sealer.active_key_version}
        batch.append({**msgspec.structs.asdict(columns), **values})
        await _flush(transaction, threads_sql.ADD_WRITE, batch)
    await _flush(transaction, threads_sql.ADD_WRITE, batch, last=True)
    return written


async def _add_checkpoints(
    transaction: Transaction, sealer: Sealer, staged: Staged, incarnation: bytes, written: Writes
) -> None:
    thread_id = staged.beginning.thread_id
    live: dict[str, LiveSet] = {}
    batch: list[dict[str, object]] = []
    for encoded, piece_ids in staged.checkpoints:
        record = _checkpoint.decode(encoded)
        columns = CheckpointColumns(
            thread_id=thread_id,
            namespace=record.namespace,
            checkpoint_id=record.checkpoint_id,
            parent_id=record.parent_id,
            step=record.step,
            status=record.status,
            source=record.source,
            agent=record.agent,
            run_id=record.run_id,
            model=record.model_name,
            state_schema=record.state_schema,
            state_version=record.state_version,
            input_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            cost_micros=record.cost_micros,
            created_at=record.created_at,
            piece_ids=piece_ids,
            named_ids=record.named_ids,
        )
        manifest = Manifest(FORMAT, record.channels, record.metadata, record.model, record.delta_channels)
        sealed = seal_checkpoint(sealer, columns, manifest)
        live[columns.namespace] = live.get(columns.namespace, LiveSet()).add(sealed.member)
        values = {"outcome": record.outcome, "manifest": sealed.envelope, "key_version": sealer.active_key_version}
        batch.append({**msgspec.structs.asdict(columns), **values})
        await _flush(transaction, threads_sql.ADD_CHECKPOINT, batch)
    await _flush(transaction, threads_sql.ADD_CHECKPOINT, batch, last=True)
    for head in staged.heads:
        after = HeadSeal(incarnation, head.sequence, live[head.namespace], written.of(head.namespace, head.head_id))
        seal = seal_head(sealer, thread_id, head.namespace, head.head_id, after)
        await transaction.run(
            threads_sql.ADD_HEAD,
            thread_id=thread_id,
            namespace=head.namespace,
            head_id=head.head_id,
            sequence=head.sequence,
            seal=seal,
        )
