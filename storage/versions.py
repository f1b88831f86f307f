"""State at the version its reader knows: upcasting, in memory, of what was loaded.

Pure: a loaded checkpoint, its pending writes and its delta channels in, the same at another version out. Nothing is
written back, and a value that no step touches keeps its exact bytes. A pending write has a version of its own: an agent
of today may answer a checkpoint of last year.

It decides neither who may read nor which version is wanted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgpack

from migrations.state.chain import Chain
from migrations.state.document import Encoded
from migrations.state.errors import UpcastFailed
from storage.errors import InvalidState
from storage.format.pieces import list_bounds, list_header
from storage.model import Channel, ChannelValue, ChannelVersion, Checkpoint, FullState, Patch, PendingWrite, Value

# Channels of LangGraph's own and of adapters: control flow, not state.
_CONTROL = ("__", "~", "branch:")
_EMPTY_LIST = b"\x90"
# Values that a lone channel is tried with to learn what becomes of its name. None of them is a default that a step
# would set, which a step's result is compared with.
_PROBES = tuple(
    Encoded("msgpack", msgpack.packb(each))
    for each in (["stateroom probe"], "stateroom probe", {"stateroom probe": 0}, -7_405_926, None)
)


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
        """Whether something has to be converted: the one question that is asked of state that is current."""
        wanted = self.of(saved)
        return wanted is not None and wanted != saved.state_version


AS_SAVED = WantedVersions()


def is_control(name: str) -> bool:
    """Whether a channel belongs to a framework's control flow, which no step sees."""
    return name.startswith(_CONTROL)


class SchemaNotRead(Exception):
    """Names cannot be mapped before this process has read a schema."""

    def __init__(self, schema: str, number: int) -> None:
        super().__init__()
        self.schema = schema
        self.number = number


class OtherVersionError(Exception):
    """What is to be stored names another state version than the checkpoint that it applies to, or none at all.

    A patch of another version needs somebody to convert its parent. What names none is at its checkpoint's version, and
    has to be checked by that before it is stored.
    """

    def __init__(self, base_id: str, state_schema: str, state_version: int) -> None:
        super().__init__()
        self.base_id = base_id
        self.state_schema = state_schema
        self.state_version = state_version


class WantedNames:
    """Under which names a reader knows what was stored, for one request.

    Args of the constructor:
        wanted: What the reader knows.
        chain_of: The chain of a schema that leads from one version to another.
    """

    def __init__(self, wanted: WantedVersions, chain_of: Callable[[str, int, int], Chain]) -> None:
        self._wanted = wanted
        self._chain_of = chain_of
        self._found: dict[tuple[str, int, int, str], tuple[str, ...]] = {}

    def of(self, saved: Versioned, name: str) -> tuple[str, ...]:
        """The reader's names of a stored channel.

        Raises:
            SchemaNotRead: read the schema first, and begin again.
            StateTooNew: no steps lead to the reader's version.
        """
        if not self._wanted.differs(saved):
            return (name,)
        schema, before, after = saved.state_schema, saved.state_version, self._wanted.of(saved)
        assert schema is not None  # noqa: S101  for the type checker: `differs` said so
        assert before is not None  # noqa: S101  likewise
        assert after is not None  # noqa: S101  likewise
        place = (schema, before, after, name)
        if place not in self._found:
            self._found[place] = tuple(renamed(self._chain_of(schema, before, after), name, before, after))
        return self._found[place]

    def differs(self, saved: Versioned) -> bool:
        """Whether stored names may be others than the reader's."""
        return self._wanted.differs(saved)


def convert_checkpoint(chain: Chain, checkpoint: Checkpoint, wanted: int) -> Checkpoint:
    """The checkpoint at another version; its writes are left as they are (`convert_write`).

    Raises:
        StateTooNew: no steps lead there.
        UpcastFailed: a step cannot be applied to it.
    """
    saved = checkpoint.state_version
    assert saved is not None  # noqa: S101  for the type checker: `WantedVersions.differs` said so
    channels = checkpoint.channels
    return replace(
        checkpoint,
        state_version=wanted,
        delta_channels=tuple(
            after for name in checkpoint.delta_channels for after in renamed(chain, name, saved, wanted)
        ),
        channels=None if channels is None else _channels(chain, channels, saved, wanted),
    )


def convert_write(chain: Chain, write: PendingWrite, saved: int, wanted: int) -> list[PendingWrite]:
    """What a pending write is at another version: mostly one, several where its channel was split, none if removed.

    Raises:
        StateTooNew: no steps lead there.
        UpcastFailed: a step cannot be applied to it.
    """
    if is_control(write.channel) or saved == wanted:
        return [write]
    before = {write.channel: _encoded(write.value)}
    after = chain.convert(before, saved, wanted, partial=True)
    return [
        replace(
            write,
            channel=name,
            value=write.value if each is before[write.channel] else _value(each),
            state_version=None if write.state_version is None else wanted,
        )
        for name, each in after.items()
    ]


def renamed(chain: Chain, name: str, saved: int, wanted: int) -> list[str]:
    """Under which names a channel is found at another version; none if no value of it leads anywhere.

    Steps look at values, and this has none: it tries some, and believes the first that a step can be applied to. A
    channel that is renamed for some of its values only is not followed.

    Raises:
        StateTooNew: no steps lead there.
    """
    if is_control(name) or saved == wanted:
        return [name]
    chain.path(saved, wanted)
    for probe in _PROBES:
        try:
            return list(chain.convert({name: probe}, saved, wanted, partial=True))
        except UpcastFailed:
            continue
    return []


def _channels(chain: Chain, channels: Mapping[str, Channel], saved: int, wanted: int) -> dict[str, Channel]:
    state = {name: _encoded(each.value) for name, each in channels.items() if not is_control(name)}
    origin = {id(each): name for name, each in state.items()}
    after = chain.convert(state, saved, wanted)
    gone = [channels[name].version for name in state if name not in after]
    fallback = _newest(gone) or _newest(each.version for each in channels.values())
    converted = {name: each for name, each in channels.items() if is_control(name)}
    for name, each in after.items():
        source = origin.get(id(each))
        if source is not None:
            converted[name] = channels[source]
        else:
            known = channels.get(name)
            converted[name] = Channel(version=known.version if known else fallback, value=_value(each))
    return converted


def _newest(versions: Iterable[ChannelVersion]) -> ChannelVersion:
    """The greatest of an adapter's channel versions: what a channel that a step made goes by."""
    known = [each for each in versions if each is not None]
    return max(known, key=lambda each: (isinstance(each, str), each)) if known else None


def _encoded(value: Value) -> Encoded:
    return Encoded(value.encoding, value.data)


def _value(encoded: Encoded) -> Value:
    return Value(encoded.encoding, encoded.data)


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
        channels[name] = ChannelValue(None, Value("msgpack", data))
    return FullState(channels)
