"""Statements whose parameters have names.

Owns how a name becomes a position: whoever runs a statement gives each value its name, and a value that is missing,
unknown or given twice is an error before anything is sent. The text that the driver gets is what it is to everybody
else, too: a string.
"""

import re
from collections.abc import Sequence
from typing import Self

_NAMED = re.compile(r"(?<![:\w]):([a-z]\w*)")
_SCOPE = ("tenant_id", "subject_id")


class Statement(str):
    """The text of a statement, with ``:name`` for each parameter, as the driver takes it.

    Args of the constructor:
        text: The statement. Fragments that many statements share name the scope by its positions, ``$1`` and ``$2``.
        names: The parameters, in the order of their positions.

    Raises:
        ValueError: The text names another parameter, or never one of them.
    """

    __slots__ = ("names",)
    names: tuple[str, ...]

    def __new__(cls, text: str, names: str) -> Self:
        order = tuple(names.split())
        positions = {name: f"${number}" for number, name in enumerate(order, 1)}
        unknown = {*_NAMED.findall(text)} ^ {*order}
        if unknown:
            raise ValueError(f"the statement and its parameters differ by {sorted(unknown)}")
        made = super().__new__(cls, _NAMED.sub(lambda found: positions[found[1]], text))
        made.names = order
        return made

    @classmethod
    def of_function(cls, function: str, names: str) -> Self:
        """A call of a function of the database, whose first two parameters are the scope that it binds."""
        order = (*_SCOPE, *names.split())
        parameters = ", ".join(f":{name}" for name in order)
        return cls(f"SELECT stateroom.{function}({parameters})", " ".join(order))

    def arguments(self, **values: object) -> list[object]:
        """The values in the order of their positions.

        Raises:
            TypeError: One is missing, or there is no such parameter.
        """
        return self._ordered(self.names, values)

    def after_scope(self, **values: object) -> list[object]:
        """As `arguments`, where the scope is bound by whoever runs the statement.

        Raises:
            TypeError: As `arguments`.
        """
        return self._ordered(self.names[len(_SCOPE) :], values)

    @staticmethod
    def _ordered(names: Sequence[str], values: dict[str, object]) -> list[object]:
        if values.keys() != {*names}:
            raise TypeError(f"the values and the parameters differ by {sorted(values.keys() ^ {*names})}")
        return [values[name] for name in names]
