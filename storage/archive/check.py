"""Whether the rows of an archive are all that a thread has: compared with the seals that stay behind in the database.

The rows come a few at a time, in the order in which they stand in an archive, and are not kept; what is kept are sums
and ids. A caller that has fed all of them and called `end` knows: every checkpoint and pending write authenticates and
is one of those that the thread's seals say must be there, none is missing, each head is among them, every piece that
they name is there, too, and is what its id says. Of a thread under a client-held share, which only its client opens, it
knows less: that the seal is of this thread, that every namespace's head is there, and that no piece is missing that the
clear columns name; that the rows are those that were read is known by the archive's digest.

It also tells what of the rows the stub keeps: which key versions they need, by the headers of their envelopes, and how
long those are. It neither fetches nor writes.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from crypto import OpenError, Sealer
from crypto.envelope import peek_header
from storage.access.completeness import (
    Writes,
    compare_checkpoints,
    compare_listed,
    compare_namespaces,
    compare_writes,
    open_own_head,
)
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, TAGS, StoredRow, row_of
from storage.format.cold.segment import ColdSums
from storage.format.pieces import unpack_ids
from storage.format.record import (
    CheckpointRow,
    PieceReader,
    PieceRow,
    WriteRow,
    open_checkpoint,
    open_thread_seal,
    open_write,
)
from storage.ledger.ledger import pack_named_ids, unpack_named_ids
from storage.statements.threads.archives import ENVELOPES, SizedThreadRow
from storage.statements.threads.threads import HeadRow


class ArchiveContents:
    """Takes the rows of an archive or a segment, and knows what is in them.

    Attributes:
        counts: The number of rows of each table.
        hot_bytes: The sum of the lengths of their envelopes.
        key_versions: The versions that the envelopes name.
        blob_ids: The blobs of pieces whose content is in the object store.
        live: The live set of the checkpoints of each namespace, if they are opened.
        writes: The sums of the pending writes, likewise.
        newest: The newest checkpoint of each namespace.
        named: The pieces that the rows name.
        present: The pieces that are among them.
    """

    def __init__(self, sealer: Sealer, thread_id: str, *, opens: bool) -> None:
        """``opens``: the sealer fits the thread, so that every row is opened."""
        self._sealer = sealer
        self._thread_id = thread_id
        self._opens = opens
        self.live: dict[str, LiveSet] = {}
        self.newest: dict[str, str] = {}
        self._schemas: dict[str, str | None] = {}
        self._every_schema: set[str | None] = set()
        self.writes = Writes()
        self.named: set[bytes] = set()
        self.present: set[bytes] = set()
        self.blob_ids: set[UUID] = set()
        self._named_ids: set[bytes | None] = set()
        self._runs: set[str | None] = set()
        self._agents: set[str | None] = set()
        self.counts = dict.fromkeys((CHECKPOINTS, TAGS, PENDING_WRITES, CHUNKS), 0)
        self.hot_bytes = 0
        self.key_versions: set[int] = set()
        self._pauses = Pauses()

    # --- rows ------------------------------------------------------------------------------------------------------

    async def take(self, table: str, rows: Sequence[StoredRow]) -> None:
        """Take some rows of a table, and let other requests have their turn now and then.

        Raises:
            IntegrityFailure: One does not authenticate, or is of another thread.
            KeyDestroyed: One is sealed under a key that is gone.
        """
        take = {
            CHECKPOINTS: self._checkpoint, TAGS: self._tag, PENDING_WRITES: self._pending_write, CHUNKS: self._chunk,
        }[table]  # fmt: skip
        self.counts[table] += len(rows)
        for row in rows:
            if row["thread_id"] != self._thread_id:
                raise IntegrityFailure("a row is of another thread")
            await self._pauses.after(take(row))

    def _tag(self, row: StoredRow) -> int:
        del row
        return 0

    def _sealed(self, row: StoredRow, table: str) -> int:
        """Take what an envelope says in clear; returns its length."""
        envelope = row[ENVELOPES[table]]
        try:
            self.key_versions.add(peek_header(envelope).key_version)
        except OpenError:
            raise IntegrityFailure from None
        self.hot_bytes += len(envelope)
        self._named_ids.add(row["named_ids"])
        return len(envelope)

    def _checkpoint(self, row: StoredRow) -> int:
        size = self._sealed(row, CHECKPOINTS)
        namespace, checkpoint_id = row["namespace"], row["checkpoint_id"]
        self.named.update(unpack_ids(row["piece_ids"]))
        self._runs.add(row["run_id"])
        self._agents.add(row["agent"])
        self._every_schema.add(row["state_schema"])
        if checkpoint_id.encode() > self.newest.get(namespace, "").encode():
            self.newest[namespace] = checkpoint_id
            self._schemas[namespace] = row["state_schema"]
        if not self._opens:
            return size
        opened = open_checkpoint(self._sealer, row_of(CheckpointRow, row))
        self.live[namespace] = self.live.get(namespace, LiveSet()).add(opened.member)
        return opened.opened_bytes

    def _pending_write(self, row: StoredRow) -> int:
        size = self._sealed(row, PENDING_WRITES)
        self.named.update(unpack_ids(row["piece_ids"]))
        if self._opens:
            opened = open_write(self._sealer, row_of(WriteRow, row))
            self.writes.add(opened.columns.namespace, opened.columns.checkpoint_id, opened.mac)
        return size

    def _chunk(self, row: StoredRow) -> int:
        size = self._sealed(row, CHUNKS)
        self.present.add(row["piece_id"])
        self.blob_ids.update(unpack_named_ids(row["named_ids"]))
        if row["children"] is not None:
            self.named.update(unpack_ids(row["children"]))
        if self._opens:
            reader = PieceReader(self._sealer)
            reader.add([row_of(PieceRow, row)])
            reader.look_up(row["piece_id"])
        return size

    # --- what a stub keeps of them ----------------------------------------------------------------------------------

    @property
    def named_ids(self) -> bytes | None:
        """The blobs and artifacts that the rows name, packed."""
        return pack_named_ids(each for packed in self._named_ids for each in unpack_named_ids(packed))

    @property
    def run_ids(self) -> list[str]:
        """The runs of the checkpoints, each once, in order."""
        return _sorted(self._runs)

    @property
    def agents(self) -> list[str]:
        """The agents that saved the checkpoints, each once, in order."""
        return _sorted(self._agents)

    @property
    def every_schema(self) -> list[str]:
        """The schemas of the checkpoints, each once, in order."""
        return _sorted(self._every_schema)

    @property
    def state_schemas(self) -> list[str]:
        """The schemas of the heads, one for each that has one, in order."""
        return sorted(each for each in self._schemas.values() if each is not None)


class ArchiveCheck(ArchiveContents):
    """Takes the rows that a thread has in no segment.

    Attributes:
        client_share: Whether the thread was made under a client-held share.
    """

    def __init__(self, sealer: Sealer, thread_id: str, thread_row: SizedThreadRow, heads: Sequence[HeadRow]) -> None:
        self._heads = heads
        self._thread = open_thread_seal(sealer.without_share, thread_id, thread_row.created_at, thread_row.seal)
        self.client_share = self._thread.share_check is not None
        super().__init__(sealer.without_share, thread_id, opens=not self.client_share)
        incarnation = self._thread.incarnation
        self._sums = ColdSums.open(sealer, thread_id, thread_row.created_at, incarnation, thread_row.cold)
        compare_listed(self._thread, client_share=thread_row.client_share, parent_thread_id=thread_row.parent_thread_id)
        if not self.client_share:
            namespaces = [each.namespace for each in heads]
            compare_namespaces(self._sealer, self._thread, namespaces, self._sums.namespaces)

    def end(self) -> None:
        """Return if what was taken is all that the thread has.

        Raises:
            IntegrityFailure: Something is missing, or is there that should not be.
        """
        if not self.named <= self.present:
            raise IntegrityFailure("a stored piece is missing")
        if {row.namespace: row.head_id for row in self._heads} != self.newest:
            raise IntegrityFailure("the newest checkpoint is not the head")
        if self.client_share:
            return
        compare_writes(self.writes.total.join(self._sums.writes), self._thread.writes)
        for row in self._heads:
            head = open_own_head(self._sealer, self._thread_id, self._thread, row)
            live = self.live.get(row.namespace, LiveSet()).join(self._sums.of(row.namespace))
            compare_checkpoints(live, head.live)
            compare_writes(self.writes.of(row.namespace, row.head_id), head.writes)


def _sorted(found: Iterable[str | None]) -> list[str]:
    return sorted({each for each in found if each is not None})
