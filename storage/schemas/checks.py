"""What a state schema says of a save, checked before anything of it is stored: pure.

1. Ephemeral channels are left out, from states, patches and pending writes.
2. A save that brings every channel is checked against the version's JSON Schema; one that brings some is checked as far
   as they go (`storage.schemas.registry`), and so is the input of a run: no step has made a state of it yet.

Channels of frameworks and adapters are not shown to it (`migrations.state.json_schemas` says how the others are), and
neither is one whose large parts are stored apart already: the others are checked as a save that brings some.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrations.state.json_schemas import Misfit, Part, shown
from storage.errors import InvalidState
from storage.model import FullState, NewWrite, Patch, Save, Value
from storage.schemas.versions import is_control

# LangGraph's source of a checkpoint of what a run was given, before a step has taken it up.
INPUT_SOURCE = "input"


def check_pair(state_schema: str | None, state_version: int | None) -> None:
    """A schema without a version means nothing, and neither does a version without a schema.

    Raises:
        InvalidState: one of the two is missing.
    """
    if (state_schema is None) != (state_version is None):
        missing = "state_schema" if state_schema is None else "state_version"
        raise InvalidState("state_schema and state_version go together", f"/{missing}")


def without_ephemeral(save: Save, ephemeral: frozenset[str]) -> Save:
    """The save without channels that are never stored."""
    if not ephemeral:
        return save
    content: FullState | Patch
    if isinstance(save.content, FullState):
        lasting = {name: each for name, each in save.content.channels.items() if name not in ephemeral}
        content = replace(save.content, channels=lasting)
    else:
        content = Patch(
            set={name: each for name, each in save.content.set.items() if name not in ephemeral},
            append={name: each for name, each in save.content.append.items() if name not in ephemeral},
            remove=[name for name in save.content.remove if name not in ephemeral],
        )
    return replace(
        save, content=content, delta_channels=tuple(name for name in save.delta_channels if name not in ephemeral)
    )


def writes_without_ephemeral(writes: Sequence[NewWrite], ephemeral: frozenset[str]) -> Sequence[NewWrite]:
    """The writes without those to channels that are never stored."""
    return [each for each in writes if each.channel not in ephemeral] if ephemeral else writes


@dataclass(frozen=True, slots=True)
class Checkable:
    """What a save brings, as far as one part of a JSON Schema is about it.

    Attributes:
        part: That part of the JSON Schema.
        channels: The channels' values: one each, or the elements that are appended to lists.
        prefix: The place in the request at which they stand (JSON Pointer).
    """

    part: Part
    channels: Mapping[str, Sequence[Value]]
    prefix: str

    @property
    def size_bytes(self) -> int:
        """How many bytes of values it is."""
        return sum(len(each.data) for several in self.channels.values() for each in several)

    def shown(self) -> dict[str, Any]:
        """It, as a JSON Schema sees it."""
        trees = {name: [shown(each.encoding, each.data) for each in several] for name, several in self.channels.items()}
        return trees if self.part == "elements" else {name: tree for name, (tree,) in trees.items()}


def checkables(content: FullState | Patch, *, complete: bool = True) -> list[Checkable]:
    """What a save brings that a JSON Schema is about.

    ``complete``: a state with all its channels is all that there is, so that ``required`` holds of it.
    """
    if isinstance(content, FullState):
        values = {name: each.value for name, each in content.channels.items() if not is_control(name)}
        looked_into = {name: [value] for name, value in values.items() if value is not None and not value.holes}
        is_whole = complete and len(looked_into) == len(values)
        return [Checkable("whole" if is_whole else "some", looked_into, content.root)]
    looked_into = {name: [each] for name, each in content.set.items() if not is_control(name) and not each.holes}
    appended = {
        name: [Value("msgpack", element) for element in elements]
        for name, elements in content.append.items()
        if not is_control(name)
    }
    return [Checkable("some", looked_into, "/changes/set"), Checkable("elements", appended, "/changes/append")]


def refuse(misfit: Misfit, number: int, prefix: str) -> InvalidState:
    """What is told of a save that does not fit the JSON Schema of a version, without what is there."""
    where = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in misfit.steps)
    return InvalidState(f"the JSON Schema of version {number} does not allow this ({misfit.rule})", prefix + where)
