"""Statements whose parameters have names and whose rows have types.

Owns how a name becomes a position and how a record becomes a row. Who runs a statement gives each value its name; a
value that is missing or unknown is an error before anything is sent. The tenant and the subject are never given: the
transaction has them from its scope (`storage.postgres.unit_of_work`).

It does not know what a statement means. That the columns of each are the fields of its row, in their order, is shown by
a test which prepares all of them (`tests/integration/storage/test_statements.py`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

R_co = TypeVar("R_co", covariant=True)

_NAMED = re.compile(r"(?<![:\w]):([a-z]\w*)")


class Statement(Generic[R_co]):
    """A statement with ``:name`` for each parameter.

    Args:
        text: The statement. Fragments that several share have the same names in all of them.
        row: What a record becomes: a struct whose fields are the statement's columns in their order, or the type of
            the only column. None: the statement returns nothing that is looked at.

    Attributes:
        text: The statement as the driver takes it, its parameters numbered by where each occurs first.
        names: The parameters, in the order of their numbers.
        row: As given.
    """

    @overload
    def __init__(self: "Statement[None]", text: str) -> None: ...

    @overload
    def __init__(self, text: str, row: type[R_co]) -> None: ...

    def __init__(self, text: str, row: type[Any] | None = None) -> None:
        self.names = tuple(dict.fromkeys(_NAMED.findall(text)))
        numbers = {name: f"${number}" for number, name in enumerate(self.names, 1)}
        self.text = _NAMED.sub(lambda found: numbers[found[1]], text)
        self.row = row
        self._made: Callable[[Sequence[Any]], Any] = _made(row)

    def arguments(self, bound: Mapping[str, object], values: Mapping[str, object]) -> list[object]:
        """The values in the order of their numbers.

        Args:
            bound: What the transaction's scope says, as far as the statement names it.
            values: Everything else that the statement names, and nothing more.

        Raises:
            TypeError: A value is missing, is not of the statement, or is the scope's to say.
        """
        if bound.keys() & values.keys():
            raise TypeError(f"the scope says {sorted(bound.keys() & values.keys())}, not the caller")
        wanted = {name for name in self.names if name not in bound}
        if values.keys() != wanted:
            raise TypeError(f"the values and the parameters differ by {sorted(values.keys() ^ wanted)}")
        return [bound[name] if name in bound else values[name] for name in self.names]

    def made(self, record: Sequence[Any]) -> R_co:
        """The row that a record becomes."""
        return self._made(record)  # type: ignore[no-any-return]  # of the type that `row` says


def _made(row: type[Any] | None) -> Callable[[Sequence[Any]], Any]:
    if row is not None and issubclass(row, msgspec.Struct):
        return lambda record: row(*record)
    return lambda record: record[0]
