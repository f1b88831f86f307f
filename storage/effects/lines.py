"""Lines of a thread: whether what was done at a checkpoint was done before another one.

Parents are followed in the database, at most so many steps. Where that ends without an answer, because what lies behind
was pruned, thinned or moved into a segment, nobody knows; then it counts as done before, which is the safe side: what
was done is told again and not done again. So does what was done at a checkpoint that has no row, as of a run that
stores its last one only (LangGraph's ``durability="exit"``): it is on no line that anybody can walk, and would be taken
for another line's for ever.

Only what is certainly on another line is answered with no. To take what nobody knows for such would give a payment of
next week the provider key of this week's, so that the provider would do nothing.
"""

from collections.abc import Iterable
from typing import Final

from storage.postgres.unit_of_work import Transaction
from storage.statements.thread_ledgers import effects as sql

STEPS_MAX: Final = 1_000


class Line:
    """A checkpoint with its ancestors, as far as they are known."""

    def __init__(self, checkpoint_id: str | None, elsewhere: frozenset[str]) -> None:
        self.checkpoint_id = checkpoint_id
        self._elsewhere = elsewhere

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
            return cls(checkpoint_id, frozenset())
        thread_id, namespace = place
        rows = await transaction.fetch_all(
            sql.LINE, thread_id=thread_id, namespace=namespace, checkpoint_id=checkpoint_id, limit=STEPS_MAX
        )
        asked.difference_update(each.checkpoint_id for each in rows)
        is_whole = bool(rows) and rows[-1].parent_id is None
        if not is_whole or not asked:
            return cls(checkpoint_id, frozenset())
        stored = await transaction.fetch_all(
            sql.STORED, thread_id=thread_id, namespace=namespace, checkpoint_ids=sorted(asked)
        )
        return cls(checkpoint_id, frozenset(stored))

    def has(self, anchor: str | None) -> bool:
        """Whether something at ``anchor`` was done before, as far as anybody knows.

        Args:
            anchor: A checkpoint that `read` was told of; None: before there was any.
        """
        return anchor not in self._elsewhere
