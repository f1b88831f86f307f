"""Lines of a thread: whether what was done at a checkpoint was done before another one.

Parents are followed in the database, at most so many steps. Where that ends without an answer, because what lies behind
was pruned, thinned or moved into a segment, nobody knows; then it counts as done before, which is the safe side: what
was done is told again and not done again.
"""

from collections.abc import Iterable
from typing import Final

from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import effects as sql

STEPS_MAX: Final = 1_000


class Line:
    """A checkpoint with its ancestors, as far as they are known."""

    def __init__(self, checkpoint_id: str | None, known: frozenset[str], *, is_whole: bool) -> None:
        self.checkpoint_id = checkpoint_id
        self._known = known
        self._is_whole = is_whole

    @classmethod
    async def read(
        cls, transaction: Transaction, place: tuple[str, str], checkpoint_id: str | None, anchors: Iterable[str | None]
    ) -> "Line":
        """Read as much of a line as answers for some anchors.

        Args:
            transaction: The one that locked the thread.
            place: The thread, and the root of the namespace.
            checkpoint_id: Where the line ends; None: there is no checkpoint.
            anchors: What will be asked for.
        """
        asked = {each for each in anchors if each is not None and each != checkpoint_id}
        if checkpoint_id is None or not asked:
            return cls(checkpoint_id, frozenset(), is_whole=False)
        thread_id, namespace = place
        rows = await transaction.fetch_all(
            sql.LINE, thread_id=thread_id, namespace=namespace, checkpoint_id=checkpoint_id, limit=STEPS_MAX
        )
        is_whole = bool(rows) and rows[-1].parent_id is None
        return cls(checkpoint_id, frozenset(each.checkpoint_id for each in rows), is_whole=is_whole)

    def has(self, anchor: str | None) -> bool:
        """Whether something at ``anchor`` was done before; None: before there was any checkpoint."""
        return anchor is None or anchor == self.checkpoint_id or anchor in self._known or not self._is_whole
