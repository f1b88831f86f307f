"""The difference of two states, path by path. Pure: no I/O, no printing.

Objects are compared member by member. Lists are compared after their equal beginning and end are set aside,
since agents mostly append: an element inserted in front does not make every later one "changed". It does not
promise the shortest possible difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal


class Absent:
    """The side of a change that holds no value (null is a value)."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Attributes:
        path: JSON pointer (RFC 6901). For what was removed or changed its indices count in the older state,
            for what was added in the newer one.
        kind: The kind of difference.
        before: The older value, `ABSENT` when added.
        after: The newer value, `ABSENT` when removed.
    """

    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


def same(before: Any, after: Any) -> bool:
    """Whether two JSON values are equal, telling ``1`` from ``true`` and from ``1.0``."""
    if type(before) is not type(after):
        return False
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(value, after[name]) for name, value in before.items())
    if isinstance(before, list):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after)


def differences(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yield what turns ``before`` into ``after``, in the order of the older state."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _objects(before, after, path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _lists(before, after, path)
    elif not same(before, after):
        yield Change(path, "changed", before, after)


def _objects(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Change]:
    for name, value in before.items():
        inner = f"{path}/{_token(name)}"
        if name in after:
            yield from differences(value, after[name], inner)
        else:
            yield Change(inner, "removed", value, ABSENT)
    for name, value in after.items():
        if name not in before:
            yield Change(f"{path}/{_token(name)}", "added", ABSENT, value)


def _lists(before: list[Any], after: list[Any], path: str) -> Iterator[Change]:
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and same(before[head], after[head]):
        head += 1
    tail = 0
    while tail < shorter - head and same(before[-1 - tail], after[-1 - tail]):
        tail += 1
    before_end, after_end = len(before) - tail, len(after) - tail
    paired_end = min(before_end, after_end)
    for index in range(head, paired_end):
        yield from differences(before[index], after[index], f"{path}/{index}")
    for index in range(paired_end, before_end):
        yield Change(f"{path}/{index}", "removed", before[index], ABSENT)
    for index in range(paired_end, after_end):
        yield Change(f"{path}/{index}", "added", ABSENT, after[index])


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
