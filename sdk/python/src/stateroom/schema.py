"""Which schema, and which version of it, an agent's state is of.

This module owns how a state version is written (``travel@2``), and what a reader tells the gateway it knows
(``Accept-State-Version``). It knows nothing of the steps between versions: the gateway takes them.
"""

import re
from collections.abc import Iterable
from typing import Self

import msgspec

from stateroom.errors import NotConfigured

ACCEPT_HEADER = "Accept-State-Version"

_SCHEMA = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_WRITTEN = re.compile(r"(?P<schema>.*)@(?P<number>[1-9][0-9]{0,9})", re.ASCII)
_NUMBER_MAX = 2**31 - 1


class StateVersion(msgspec.Struct, frozen=True):
    """A version of a state schema: what an agent of today writes, and understands.

    Attributes:
        schema: The state schema's name, as it is registered.
        number: The version, from 1.
    """

    schema: str
    number: int

    def __str__(self) -> str:
        return f"{self.schema}@{self.number}"

    @classmethod
    def of(cls, written: "StateVersion | str") -> Self:
        """A state version from how it is written, such as ``travel@2``.

        Raises:
            NotConfigured: It is not written like that.
        """
        if isinstance(written, StateVersion):
            written = str(written)
        match = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
        if match is None or not _SCHEMA.fullmatch(match["schema"]) or int(match["number"]) > _NUMBER_MAX:
            raise NotConfigured("a state version is written as its schema, @, and a number from 1, such as travel@2")
        return cls(match["schema"], int(match["number"]))


def accepted(versions: Iterable[StateVersion]) -> str | None:
    """The header's value for a reader that knows these; ``None`` when it knows none.

    Raises:
        NotConfigured: Two of them are of one schema.
    """
    numbers: dict[str, int] = {}
    for each in versions:
        if numbers.setdefault(each.schema, each.number) != each.number:
            raise NotConfigured(f"an agent knows one version of {each.schema}, not two")
    return ", ".join(f"{schema}={number}" for schema, number in sorted(numbers.items())) or None
