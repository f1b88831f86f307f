"""Statements whose parameters have names.

Owns how a name becomes a position: whoever runs a statement gives each value its name, and a value that is missing or
unknown is an error before anything is sent.
"""

import re
from collections.abc import Sequence

_NAMED = re.compile(r"(?<![:\w]):([a-z]\w*)")
_THREAD = ("tenant_id", "subject_id", "thread_id")


class Statement:
    """A statement with ``:name`` for each parameter.

    The tenant, the subject and the thread are ``$1``, ``$2`` and ``$3`` in all statements, and in the fragments that
    they share; what comes after has names.

    Args:
        text: The statement.
        names: The parameters from the fourth on, in the order of their positions.

    Attributes:
        text: The statement as the driver takes it.

    Raises:
        ValueError: The text names another parameter, or not one of them.
    """

    def __init__(self, text: str, names: str) -> None:
        order = names.split()
        differ = {*_NAMED.findall(text)} ^ {*order}
        if differ:
            raise ValueError(f"the statement and its parameters differ by {sorted(differ)}")
        positions = {name: f"${number}" for number, name in enumerate(order, len(_THREAD) + 1)}
        self.text = _NAMED.sub(lambda found: positions[found[1]], text)
        self._names = (*_THREAD, *order)

    @classmethod
    def of_function(cls, function: str, names: str) -> "Statement":
        """A call of a function of the database: its first two parameters are the scope that it binds."""
        parameters = ", ".join(f":{name}" for name in names.split())
        return cls(f"SELECT stateroom.{function}($1, $2, $3, {parameters})", names)

    def arguments(self, **values: object) -> list[object]:
        """The values in the order of their positions.

        Raises:
            TypeError: One is missing, or there is no such parameter.
        """
        return _ordered(self._names, values)

    def after_scope(self, **values: object) -> list[object]:
        """As `arguments`, where whoever runs the statement binds the scope.

        Raises:
            TypeError: As `arguments`.
        """
        return _ordered(self._names[2:], values)


def _ordered(names: Sequence[str], values: dict[str, object]) -> list[object]:
    if values.keys() != {*names}:
        raise TypeError(f"the values and the parameters differ by {sorted(values.keys() ^ {*names})}")
    return [values[name] for name in names]
