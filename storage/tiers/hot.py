"""The rows that are in the database, by the statements of a transaction."""

from collections.abc import Collection, Sequence

from storage.format.chain import NO_WRITES, LiveSet
from storage.format.record import CheckpointRow, MemberRow, PieceRow, WriteRow
from storage.model import HistoryQuery
from storage.postgres.unit_of_work import Transaction
from storage.statements.threads import checkpoints as checkpoints_sql
from storage.statements.threads import completeness as completeness_sql
from storage.statements.threads import pieces as pieces_sql
from storage.statements.threads import tags as tags_sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.tags import TagUse
from storage.tiers.rows import Reference, Search, WriteKey


class HotListing:
    """Checkpoints of a thread, or of all hot threads of a subject."""

    def __init__(self, transaction: Transaction, thread_id: str | None) -> None:
        self._transaction = transaction
        self._listed = thread_id

    async def tag_uses(self, names: Sequence[str], tags: Sequence[bytes]) -> list[TagUse]:
        """As `storage.tiers.rows.Listing.tag_uses`."""
        if self._listed is None:
            return await self._transaction.fetch_all(tags_sql.USES, names=names, tags=tags)
        return await self._transaction.fetch_all(
            tags_sql.USES_IN_THREAD, names=names, tags=tags, thread_id=self._listed
        )

    async def history(
        self, query: HistoryQuery, search: Search, after: Sequence[str] | None, limit: int
    ) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Listing.history`."""
        after_id, after_thread, after_namespace = after or (None, None, None)
        wanted: dict[str, object] = {
            "thread_id": self._listed,
            "namespace": query.namespace,
            "before": query.before,
            "status": query.status,
            "step": query.step,
            "run_id": query.run_id,
            "source": query.source,
            "agent": query.agent,
            "since": query.since,
            "until": query.until,
            "after_id": after_id,
            "after_thread": after_thread,
            "after_namespace": after_namespace,
            "limit": limit,
        }
        if not search.names:
            return await self._transaction.fetch_all(checkpoints_sql.HISTORY, **wanted)
        wanted.update(names=search.names, tags=search.tags)
        if search.untagged_threads is None:
            return await self._transaction.fetch_all(tags_sql.HISTORY_UNLESS_EXCLUDED, **wanted)
        return await self._transaction.fetch_all(
            tags_sql.HISTORY_BY_TAG, **wanted, untagged_threads=search.untagged_threads
        )

    async def stored(self, references: Collection[Reference]) -> set[Reference]:
        """As `storage.tiers.rows.Listing.stored`."""
        if not references:
            return set()
        thread_ids, namespaces, checkpoint_ids = (list(column) for column in zip(*references, strict=True))
        statement = checkpoints_sql.STORED_OR_COLD if self._listed is None else checkpoints_sql.STORED_OF
        rows = await self._transaction.fetch_all(
            statement, thread_ids=thread_ids, namespaces=namespaces, checkpoint_ids=checkpoint_ids
        )
        return {(row.thread_id, row.namespace, row.checkpoint_id) for row in rows}


class HotRows(HotListing):
    """The rows of one thread."""

    def __init__(self, transaction: Transaction, thread_id: str) -> None:
        super().__init__(transaction, thread_id)
        self._thread_id = thread_id

    async def checkpoint(self, namespace: str, checkpoint_id: str | None) -> CheckpointRow | None:
        """As `storage.tiers.rows.Rows.checkpoint`."""
        return await self._transaction.fetch_one(
            checkpoints_sql.ONE, thread_id=self._thread_id, namespace=namespace, checkpoint_id=checkpoint_id
        )

    async def checkpoints_after(self, namespace: str, after: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.checkpoints_after`."""
        return await self._transaction.fetch_all(
            checkpoints_sql.AFTER, thread_id=self._thread_id, namespace=namespace, after=after, limit=limit
        )

    async def next_checkpoint(self, namespace: str, after: str) -> str | None:
        """As `storage.tiers.rows.Rows.next_checkpoint`."""
        return await self._transaction.fetch_one(
            completeness_sql.NEXT_CHECKPOINT, thread_id=self._thread_id, namespace=namespace, after=after
        )

    async def ancestors(self, namespace: str, checkpoint_id: str, limit: int) -> list[CheckpointRow]:
        """As `storage.tiers.rows.Rows.ancestors`."""
        return await self._transaction.fetch_all(
            checkpoints_sql.ANCESTORS,
            thread_id=self._thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            limit=limit,
        )

    async def count(self, namespace: str) -> int:
        """As `storage.tiers.rows.Rows.count`."""
        return await self._transaction.fetch_only(
            completeness_sql.COUNT_CHECKPOINTS, thread_id=self._thread_id, namespace=namespace
        )

    async def namespaces(self) -> list[str]:
        """As `storage.tiers.rows.Rows.namespaces`."""
        return await self._transaction.fetch_all(completeness_sql.NAMESPACES, thread_id=self._thread_id)

    async def pieces(self, piece_ids: Sequence[bytes]) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces`."""
        return await self._transaction.fetch_all(pieces_sql.OF_IDS, thread_id=self._thread_id, piece_ids=piece_ids)

    async def pieces_after(self, after: bytes, limit: int) -> list[PieceRow]:
        """As `storage.tiers.rows.Rows.pieces_after`."""
        return await self._transaction.fetch_all(pieces_sql.AFTER, thread_id=self._thread_id, after=after, limit=limit)

    async def writes_of(
        self, namespace: str, checkpoint_ids: Sequence[str], task_id: str | None = None
    ) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_of`."""
        return await self._transaction.fetch_all(
            checkpoints_sql.WRITES_OF,
            thread_id=self._thread_id,
            namespace=namespace,
            checkpoint_ids=checkpoint_ids,
            task_id=task_id,
        )

    async def writes_after(self, after: WriteKey, limit: int) -> list[WriteRow]:
        """As `storage.tiers.rows.Rows.writes_after`."""
        namespace, checkpoint_id, task_id, idx = after
        return await self._transaction.fetch_all(
            threads_sql.WRITES_AFTER,
            thread_id=self._thread_id,
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            task_id=task_id,
            idx=idx,
            limit=limit,
        )

    async def members(self) -> list[MemberRow]:
        """As `storage.tiers.rows.Rows.members`."""
        return await self._transaction.fetch_all(completeness_sql.MEMBERS, thread_id=self._thread_id)

    @property
    def cold_writes(self) -> LiveSet:
        """As `storage.tiers.rows.Rows.cold_writes`: of none."""
        return NO_WRITES
