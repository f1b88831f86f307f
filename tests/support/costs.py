"""A gateway process whose statements are counted."""

from storage.service import Store
from tests.support.interleaving import Steered


class CountedGateway:
    """The verbs of one process on its own connections: what it remembers is its own.

    Counted are the statements of its transactions, and their COMMITs. A function that is a transaction of its own
    counts nothing: no statement ran beside it.
    """

    def __init__(self, store: Store) -> None:
        self._statements: list[str] = []
        steered = Steered(store, before=self._before)
        self.checkpoints, self.threads = steered.checkpoints, steered.threads

    async def _before(self, statement: str) -> None:
        self._statements.append(statement)

    def counted(self) -> int:
        """How many statements ran since it was asked."""
        count = len(self._statements)
        self._statements.clear()
        return count
