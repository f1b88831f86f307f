"""Chains: the steps of one state schema as a single line of versions, and running them.

1. A chain is checked when it is made: every step goes up, no two begin or end at the same version, none is missing.
2. State goes from the version it was saved at to the one that is asked for, step by step, in memory.
3. A step that cannot be applied stops it with `UpcastFailed`; there is no partial result.

Steps never see ids, clock, tenant or network. That they are pure is a contract which `stateroom state test` checks;
this module relies on it and does not enforce it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from migrations.state.document import Document, Encoded
from migrations.state.errors import ChainInvalid, PathFault, StateTooNew, UpcastFailed

SchemaName = str


class Direction(Protocol):
    """One direction of a step."""

    def __call__(self, document: Document, *, partial: bool) -> Document:
        """The state after the step; the given one is left as it is.

        ``partial``: the document is the one channel of a pending write, and nothing may appear that does not come from
        it.

        Raises:
            PathFault: the step cannot be applied to it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """From one version to a later one, and, if there is a ``down``, back."""

    source: int
    target: int
    up: Direction
    down: Direction | None = None

    @property
    def name(self) -> str:
        """The step's name, such as ``v1_to_v2``."""
        return f"v{self.source}_to_v{self.target}"


class Chain:
    """The steps of one schema."""

    def __init__(self, schema: SchemaName, steps: Iterable[Step]) -> None:
        """Check that the steps form one line.

        Raises:
            ChainInvalid: which step is a duplicate, a fork, a cycle or leaves a gap.
        """
        self.schema = schema
        self._from: dict[int, Step] = {}
        into: dict[int, Step] = {}
        for step in sorted(steps, key=lambda each: (each.source, each.target)):
            _check(step, self._from.get(step.source), into.get(step.target))
            self._from[step.source] = into[step.target] = step
        self._into = into
        previous: Step | None = None
        for step in self._from.values():
            if previous is not None and step.source != previous.target:
                raise ChainInvalid(f"there is no step from version {previous.target} to {step.source}", step.name)
            previous = step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, oldest first."""
        return tuple(self._from.values())

    def path(self, saved: int, wanted: int) -> list[tuple[str, Direction]]:
        """The directions that lead from one version to another, with their names; empty if they are the same.

        Raises:
            StateTooNew: the wanted version is older and some step on the way has no way back, or no steps lead there.
        """
        path: list[tuple[str, Direction]] = []
        at = saved
        while at < wanted:
            step = self._from.get(at)
            if step is None or step.target > wanted:
                raise StateTooNew(self.schema, saved, wanted, f"no step leads on from version {at}")
            path.append((step.name, step.up))
            at = step.target
        while at > wanted:
            step = self._into.get(at)
            if step is None or step.down is None or step.source < wanted:
                raise StateTooNew(self.schema, saved, wanted, f"no step leads back from version {at}")
            path.append((f"{step.name} (down)", step.down))
            at = step.source
        return path

    def convert(
        self, state: Mapping[str, Encoded], saved: int, wanted: int, *, partial: bool = False
    ) -> dict[str, Encoded]:
        """The state at another version.

        ``partial``: the state is the one channel of a pending write.

        Raises:
            StateTooNew: as `path`.
            UpcastFailed: a step cannot be applied.
        """
        path = self.path(saved, wanted)
        if not path:
            return dict(state)
        document = Document.of(state)
        for name, direction in path:
            try:
                document = direction(document, partial=partial)
            except PathFault as fault:
                raise UpcastFailed(self.schema, name, fault.why, fault.pointer) from None
        try:
            return document.encoded()
        except PathFault as fault:
            raise UpcastFailed(self.schema, path[-1][0], fault.why, fault.pointer) from None


def _check(step: Step, same_source: Step | None, same_target: Step | None) -> None:
    if step.target <= step.source:
        raise ChainInvalid("a step goes from a version to a later one; this would be a cycle", step.name)
    if step.source < 1:
        raise ChainInvalid("versions begin at 1", step.name)
    if same_source is not None and same_source.target == step.target:
        raise ChainInvalid("this step occurs twice", step.name)
    if same_source is not None:
        raise ChainInvalid(f"{same_source.name} begins at version {step.source}, too: versions would fork", step.name)
    if same_target is not None:
        raise ChainInvalid(f"{same_target.name} ends at version {step.target}, too: versions would fork", step.name)


class PythonDirection:
    """A direction that operators wrote in Python.

    Args of the constructor:
        convert: a dict of decoded channels in, a new dict out; it must change nothing it is given.
        convert_write: one channel of a pending write and its value in, channels and values out. Without it, what a
            write becomes is what ``convert`` makes of it beyond what it makes of an empty state. A scalar that equals
            the default which a step sets is not told from that default.
    """

    __slots__ = ("_convert", "_convert_write")

    def __init__(
        self,
        convert: Callable[[dict[str, Any]], dict[str, Any]],
        convert_write: Callable[[str, Any], dict[str, Any]] | None = None,
    ) -> None:
        self._convert = convert
        self._convert_write = convert_write

    def __call__(self, document: Document, *, partial: bool) -> Document:
        """See `Direction`."""
        trees = document.trees()
        if not partial:
            return document.replaced_by(_result(self._convert, dict(trees)))
        if self._convert_write is not None:
            [(channel, value)] = trees.items()
            return document.replaced_by(_result(self._convert_write, channel, value))
        try:
            nothing = _result(self._convert, {})
            after = _result(self._convert, dict(trees))
        except PathFault as fault:
            hint = "a pending write is a state of one channel: give the step an upcast_write"
            raise PathFault(f"{fault.why}; {hint}") from None
        containers = {id(value) for value in trees.values() if isinstance(value, dict | list)}
        return document.replaced_by(
            {
                name: value
                for name, value in after.items()
                if name not in nothing or nothing[name] != value or id(value) in containers
            }
        )


def _result(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    try:
        result = function(*arguments)
    except (PathFault, MemoryError):  # a process that has no memory left is no place to go on in
        raise
    except Exception as error:  # noqa: BLE001  operators' code may raise anything; its text may hold state
        raise PathFault(f"the step raised {type(error).__name__}") from None
    if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
        raise PathFault("the step did not return a dict of channels")
    return result
