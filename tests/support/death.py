"""A process that dies at a chosen point, in this process: its calls end with an exception that nothing catches."""

from storage.postgres.unit_of_work import Silent


class Died(BaseException):
    """The process is no more."""


class Death(Silent):
    """Ends a process at its ``point``-th point, counted from 1; also its store's observer."""

    def __init__(self) -> None:
        self.at(0)

    def at(self, point: int) -> None:
        """Begin a new life that ends there; 0: that does not end."""
        self.point, self.seen, self.dead = point, 0, False

    def pass_by(self) -> None:
        self.seen += 1
        self.dead = self.dead or self.seen == self.point
        if self.dead:
            raise Died

    def commit(self, seconds: float) -> None:
        self.pass_by()

    async def call(self, moment: str, operation: str) -> None:
        self.pass_by()

    def connect(self, *_: object) -> None:
        if self.dead:
            raise Died
