"""Statements whose parameters have names and whose rows have types.

Owns how a name becomes a position and how a record becomes a row. Who runs a statement gives each value its name; a
value that is missing or unknown is an error before anything is sent. The tenant and the subject are never given: the
transaction has them from its scope (`storage.postgres.unit_of_work`).

It does not know what a statement means. That the columns of each are the fields of its row, in their order, is shown by
a test which prepares all of them (`tests/integration/storage/test_statements.py`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, get_args, get_origin, overload

import msgspec

R_co = TypeVar("R_co", covariant=True)

_NAMED = re.compile(r"(?<![:\w]):([a-z]\w*)")


class Statement(Generic[R_co]):
    """A statement with ``:name`` for each parameter.

    Args:
        text: The statement. Fragments that several share have the same names in all of them.
        row: What a record becomes: a struct whose fields are the statement's columns in their order, as `column_names`
            has them, or the type of the only column. None: the statement returns nothing that is looked at.

    Attributes:
        text: The statement as the driver takes it, its parameters numbered by where each occurs first.
        names: The parameters, in the order of their numbers.
        row: What a record becomes; None: the statement returns nothing that is looked at.
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


def column_names(row: type[msgspec.Struct]) -> list[str]:
    """The columns that a row is made of.

    A field that is a row itself stands for that one's columns; where it may be None, it is if all of them are NULL. A
    list of rows stands for their columns as parallel arrays, which are NULL if there is none and are named after the
    list's first letter: ``p_size`` for the field ``size`` of the list ``pieces``.
    """
    return [column for field in msgspec.structs.fields(row) for column in _columns(field)]


def columns(row: type[msgspec.Struct]) -> str:
    """The columns that a row is made of, as a SELECT names them."""
    return ", ".join(column_names(row))


def _columns(field: msgspec.structs.FieldInfo) -> list[str]:
    row = _row_in(field.type)
    if row is None:
        return [field.name]
    prefix = f"{field.name[0]}_" if get_origin(field.type) is list else ""
    return [prefix + column for column in row.__struct_fields__]


def _row_in(kind: Any) -> type[msgspec.Struct] | None:
    """The row that a field is, may be or has a list of."""
    kinds = (kind, *get_args(kind))
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)


def _made(row: type[Any] | None) -> Callable[[Sequence[Any]], Any]:
    if row is None or not issubclass(row, msgspec.Struct):
        return lambda record: record[0]
    kinds = [field.type for field in msgspec.structs.fields(row)]
    if all(_row_in(kind) is None for kind in kinds):
        return lambda record: row(*record)
    parts = [_part(kind) for kind in kinds]

    def made(record: Sequence[Any]) -> Any:
        values = iter(record)
        return row(*[part(values) for part in parts])

    return made


def _part(kind: Any) -> Callable[[Iterator[Any]], Any]:
    """What takes one field's columns from those of a record."""
    row = _row_in(kind)
    if row is None:
        return next
    count = len(row.__struct_fields__)
    if get_origin(kind) is list:
        return lambda values: [row(*each) for each in zip(*(own or () for own in islice(values, count)), strict=True)]

    def part(values: Iterator[Any]) -> Any:
        own = tuple(islice(values, count))
        return row(*own) if kind is row or any(value is not None for value in own) else None

    return part
