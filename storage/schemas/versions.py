"""State at the version its reader knows: upcasting, in memory, of what was loaded.

Pure: a loaded checkpoint, its pending writes and its delta channels in, the same at another version out. Nothing is
written back, and a value that no step touches keeps its exact bytes. A pending write has a version of its own: an agent
of today may answer a checkpoint of last year.

It decides neither who may read nor which version is wanted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from storage.errors import InvalidState, StateSchemaMismatch, Unfinished
from storage.format.leaf_notes import moved
from storage.format.manifest import CheckpointColumns
from storage.format.pieces import list_bounds, list_header
from storage.model import Channel, ChannelValue, ChannelVersion, Checkpoint, FullState, Patch, PendingWrite, Value

# Channels of LangGraph's own and of adapters: control flow, not state.
_CONTROL = ("__", "~", "branch:")
_EMPTY_LIST = b"\x90"


class Versioned(Protocol):
    """Something that was saved under a schema."""

    @property
    def state_schema(self) -> str | None:
        """Its schema; None: it has no versions."""
        ...

    @property
    def state_version(self) -> int | None:
        """The version it was saved at."""
        ...


@dataclass(frozen=True, slots=True)
class WantedVersions:
    """What a reader knows: one version for whatever schema it meets, or one for each schema it names."""

    any_schema: int | None = None
    by_schema: Mapping[str, int] | None = None

    def of(self, saved: Versioned) -> int | None:
        """The version to show something at; None: as it was saved."""
        if saved.state_schema is None or saved.state_version is None:
            return None
        return (self.by_schema or {}).get(saved.state_schema, self.any_schema)

    def differs(self, saved: Versioned) -> bool:
        """Whether something has to be converted: the one question that is asked of state that is current.

        Raises:
            StateSchemaMismatch: it is state of a schema that the reader does not know.
        """
        wanted = self.of(saved)
        if wanted is None and self.by_schema and saved.state_schema is not None:
            known = ", ".join(map(repr, self.by_schema))
            raise StateSchemaMismatch(
                f"the state was saved under schema {saved.state_schema!r}; the reader knows state of {known} only"
            )
        return wanted is not None and wanted != saved.state_version


AS_SAVED = WantedVersions()


def is_control(name: str) -> bool:
    """Whether a channel belongs to a framework's control flow, which no step sees."""
    return name.startswith(_CONTROL)


class OtherVersionError(Unfinished):
    """What is to be stored names another state version than the checkpoint that it applies to, or none at all.

    A patch of another version needs its parent converted. What names none is at its checkpoint's version, and has to be
    checked by that before it is stored. A checkpoint without a version may have been adopted at one.
    """

    def __init__(self, base_id: str, state_schema: str | None, state_version: int | None) -> None:
        super().__init__()
        self.base_id = base_id
        self.state_schema = state_schema
        self.state_version = state_version


class WantedNames:
    """Under which names a reader knows what was stored, for one request.

    Args of the constructor:
        wanted: What the reader knows.
        known: The names of a schema's channel that lead from one version to another, as far as they were learned.
        version_of: What says at which version a checkpoint is, which may be unversioned and adopted.
    """

    def __init__(
        self,
        wanted: WantedVersions,
        known: Callable[[str, int, int, str], tuple[str, ...] | None],
        version_of: Callable[[CheckpointColumns], Versioned],
    ) -> None:
        self.version_of = version_of
        self._wanted = wanted
        self._known = known
        self.missing: set[tuple[str, int, int, str]] = set()
        """What was asked for and is not known: what was made of it is worth nothing, and has to be done again."""

    def of(self, saved: Versioned, name: str) -> tuple[str, ...]:
        """The reader's names of a stored channel; its own where that is `missing`.

        Raises:
            StateSchemaMismatch: it is state of a schema that the reader does not know.
        """
        if is_control(name) or not self._wanted.differs(saved):
            return (name,)
        place = (*versions_of(self._wanted, saved), name)
        found = self._known(*place)
        if found is None:
            self.missing.add(place)
            return (name,)
        return found

    def differs(self, saved: Versioned) -> bool:
        """Whether stored names may be others than the reader's."""
        return self._wanted.differs(saved)


def versions_of(wanted: WantedVersions, saved: Versioned) -> tuple[str, int, int]:
    """The schema of something that `WantedVersions.differs`, the version it was saved at, and the wanted one."""
    schema, before, after = saved.state_schema, saved.state_version, wanted.of(saved)
    assert schema is not None  # noqa: S101  for the type checker: `differs` said so
    assert before is not None  # noqa: S101  likewise
    assert after is not None  # noqa: S101  likewise
    return schema, before, after


Made = Mapping[str, tuple[Value, str | None]]
"""Converted channels: what each is now, and which stored one it is unchanged, or None (`storage.schemas.work`)."""


def convertible(checkpoint: Checkpoint) -> dict[str, Value]:
    """The channels that steps see."""
    return {name: each.value for name, each in (checkpoint.channels or {}).items() if not is_control(name)}


def converted_checkpoint(checkpoint: Checkpoint, made: Made, delta_channels: Iterable[str], wanted: int) -> Checkpoint:
    """The checkpoint at another version, its writes as they were.

    ``made`` are the channels that became of the stored ones, ``delta_channels`` the names that became of those.
    """
    channels = checkpoint.channels or {}
    gone = [each.version for name, each in channels.items() if not is_control(name) and name not in made]
    fallback = _newest(gone) or _newest(each.version for each in channels.values())
    converted = {name: each for name, each in channels.items() if is_control(name)}
    for name, (value, origin) in made.items():
        if origin is not None:
            converted[name] = channels[origin]
        else:
            known = channels.get(name)
            converted[name] = Channel(version=known.version if known else fallback, value=value)
    return replace(checkpoint, state_version=wanted, delta_channels=tuple(delta_channels), channels=converted)


def converted_write(write: PendingWrite, made: Made, wanted: int) -> list[PendingWrite]:
    """What a pending write is at another version: mostly one, several where its channel was split, none if removed."""
    number = None if write.state_version is None else wanted
    return [replace(write, channel=name, value=value, state_version=number) for name, (value, _) in made.items()]


def _newest(versions: Iterable[ChannelVersion]) -> ChannelVersion:
    """The greatest of an adapter's channel versions: what a channel that a step made goes by."""
    known = [each for each in versions if each is not None]
    return max(known, key=lambda each: (isinstance(each, str), each)) if known else None


def patched(checkpoint: Checkpoint, patch: Patch) -> FullState:
    """The state that a patch makes of a checkpoint that was loaded, and perhaps converted.

    Raises:
        InvalidState: there is nothing to remove, or what is appended to is no list.
    """
    held = checkpoint.channels or {}
    for position, name in enumerate(patch.remove):
        if name not in held:
            raise InvalidState(f"there is no channel {name!r} to remove", f"/changes/remove/{position}")
    channels = {name: ChannelValue(each.version, each.value) for name, each in held.items() if name not in patch.remove}
    for name, value in patch.set.items():
        channels[name] = ChannelValue(None, value)
    for name, elements in patch.append.items():
        before = held[name].value if name in held else Value("msgpack", _EMPTY_LIST)
        bounds = list_bounds(before.data) if before.encoding == "msgpack" else None
        if bounds is None:
            raise InvalidState(f"channel {name!r} is not a list", f"/changes/append/{name}")
        data = list_header(len(bounds) - 1 + len(elements)) + before.data[bounds[0] :] + b"".join(elements)
        # Where they stand is the same; the elements' count is not, and so not the bytes before them.
        client_notes = tuple(replace(each, at=None) for each in before.leaves)
        client_notes += moved(patch.leaves.get(name, ()), len(bounds) - 1, 0)
        channels[name] = ChannelValue(None, Value("msgpack", data, leaves=client_notes))
    return FullState(channels)
