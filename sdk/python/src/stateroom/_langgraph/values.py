"""Between LangGraph's values and the wire's.

This module owns how a LangGraph checkpoint becomes channels of a Stateroom checkpoint and back, and what of its
metadata travels as plain data. It sends nothing, and which channels changed it is told.
"""

import math
import re
from collections.abc import Container, Mapping
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from stateroom._langgraph.columns import ConfigIds
from stateroom._protocol.wire import ChannelIn, ChannelOut, CheckpointWithChannels, SerialisedWrite
from stateroom.errors import IntegrityFailure, InvalidRequest

SKELETON = "~langgraph"
"""The channel that holds what a LangGraph checkpoint has besides its channels' values."""

_RICH_METADATA = "metadata"
_OWN_ENCODINGS = frozenset({"null", "bytes", "bytearray", "msgpack"})
_CREDENTIAL_NAME = re.compile(
    r"(api[_-]?key|secret|passw(or)?d|passphrase|token|authorization|credentials?|cookie|private[_-]?key)\Z",
    re.IGNORECASE,
)
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1


class Values:
    """Checkpoints, values and metadata by one serialiser.

    Args:
        serde: The serialiser.
        is_own: Whether it is the saver's own, so that what has other encodings than it writes is refused.
    """

    def __init__(self, serde: SerializerProtocol, *, is_own: bool) -> None:
        self._serde = serde
        self._is_own = is_own

    def channels(
        self, checkpoint: Checkpoint, changed: ChannelVersions | None, rich: dict[str, Any]
    ) -> dict[str, ChannelIn]:
        """The channels of a save; those not in ``changed`` go without data, unless it is ``None``.

        Metadata that is no plain data, ``rich``, goes into the skeleton, where the serialiser keeps its types.
        """
        values = checkpoint["channel_values"]
        versions = checkpoint["channel_versions"]
        if SKELETON in values:
            raise InvalidRequest(f"a graph cannot have a channel named {SKELETON}")
        skeleton: dict[str, Any] = {
            name: part for name, part in checkpoint.items() if name not in {"id", "channel_values"}
        }
        skeleton["channel_versions"] = {name: version for name, version in versions.items() if name not in values}
        if rich:
            skeleton[_RICH_METADATA] = rich
        encoding, data = self._serde.dumps_typed(skeleton)
        channels = {SKELETON: ChannelIn(encoding=encoding, data=bytes(data))}
        for name, value in values.items():
            version = versions.get(name)
            if changed is not None and version is not None and name not in changed:
                channels[name] = ChannelIn(version=version)
            else:
                encoding, data = self._serde.dumps_typed(value)
                channels[name] = ChannelIn(version=version, encoding=encoding, data=bytes(data))
        return channels

    def tuple_of(self, loaded: CheckpointWithChannels) -> CheckpointTuple:
        """A checkpoint as LangGraph knows it.

        Raises:
            IntegrityFailure: It holds what no saver writes.
        """
        ids = ConfigIds(loaded.thread_id, loaded.namespace, loaded.checkpoint_id)
        kept = loaded.channels.get(SKELETON)
        skeleton = {} if kept is None else self.value(kept)
        if not isinstance(skeleton, dict):
            raise IntegrityFailure("the checkpoint was not saved by LangGraph")
        values: dict[str, Any] = {}
        versions: ChannelVersions = dict(skeleton.get("channel_versions") or {})
        for name, channel in loaded.channels.items():
            if name == SKELETON:
                continue
            values[name] = self.value(channel)
            if channel.version is not None:
                versions[name] = channel.version
        metadata = _with_delta_channels(loaded, versions) | (skeleton.pop(_RICH_METADATA, None) or {})
        if kept is None:
            # LangGraph counts on from here, where a plain client saved into the thread.
            metadata = {"source": loaded.source or "update", "step": loaded.step, "parents": {}} | metadata
        checkpoint = {
            # What a checkpoint lacks that a plain client saved into the thread.
            "v": 4,
            "ts": loaded.created_at.isoformat(),
            "versions_seen": {},
            "updated_channels": None,
            **skeleton,
            "id": loaded.checkpoint_id,
            "channel_values": values,
            "channel_versions": versions,
        }
        return CheckpointTuple(
            config=ids.config(loaded.checkpoint_id),
            checkpoint=cast(Checkpoint, checkpoint),
            metadata=cast(CheckpointMetadata, metadata),
            parent_config=None if loaded.parent_id is None else ids.config(loaded.parent_id),
            pending_writes=[self.write(kept) for kept in loaded.pending_writes],
        )

    def write(self, kept: SerialisedWrite) -> tuple[str, str, Any]:
        """A pending write: its task, its channel, its value."""
        return kept.task_id, kept.channel, self.value(kept)

    def value(self, kept: ChannelOut | SerialisedWrite) -> Any:
        """A channel's or a pending write's value.

        Raises:
            IntegrityFailure: This saver does not write its encoding.
        """
        if self._is_own and kept.encoding not in _OWN_ENCODINGS:
            # The serialiser would also read its legacy encoding, which constructs objects by name.
            raise IntegrityFailure("a value has an encoding that this saver does not write")
        return self._serde.loads_typed((kept.encoding, kept.data))

    def metadata(
        self, config: RunnableConfig, metadata: CheckpointMetadata, excluded: Container[str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The checkpoint's own metadata, and what LangGraph copies from the config, less secrets.

        Args:
            config: The graph's config.
            metadata: The checkpoint's own.
            excluded: Names of config entries that must not become metadata.

        Returns:
            Plain metadata, which can be filtered by, and the entries that lose something by being plain, whole. What no
            serialiser writes, a live object, is in neither.
        """
        bare: dict[str, Any] = {**config}
        for part in ("metadata", "configurable"):
            bare[part] = {
                name: value
                for name, value in (cast(dict[str, Any], config).get(part) or {}).items()
                if name not in EXCLUDED_METADATA_KEYS and not (name in excluded or _CREDENTIAL_NAME.search(name))
            }
        merged = get_serializable_checkpoint_metadata(cast(RunnableConfig, bare), metadata)
        rich = {name: value for name, value in merged.items() if not is_plain(value) and self._is_serialisable(value)}
        return cast(dict[str, Any], plain(merged)), rich

    def _is_serialisable(self, value: Any) -> bool:
        try:
            self._serde.dumps_typed(value)
        except Exception:  # noqa: BLE001 - a serialiser may raise anything
            return False
        return True


def _with_delta_channels(loaded: CheckpointWithChannels, versions: ChannelVersions) -> dict[str, Any]:
    """The metadata, after giving delta channels their versions.

    A delta channel that a step of the state schema renamed has its new name in ``delta_channels`` only: its version is
    in the skeleton and its counters are in the metadata, which are LangGraph's own and which no step sees. A channel
    without a version would be taken for one that was never written, and load empty. One that was never written has
    none, and a version that it never had would make the tasks it triggers run again.

    Args:
        loaded: The checkpoint as it was loaded.
        versions: Versions by channel; those of renamed channels are added.
    """
    counters = loaded.metadata.get("counters_since_delta_snapshot")
    if not isinstance(counters, dict):
        return loaded.metadata
    missing = [name for name in loaded.delta_channels if name not in versions and name not in counters]
    if not missing:
        return loaded.metadata
    # A save lists the counted channels in this order, and each step keeps it.
    before = sorted(counters)
    if len(before) == len(loaded.delta_channels):
        renamed = dict(zip(before, loaded.delta_channels, strict=True))
        for old, new in renamed.items():
            if new in missing and old in versions:
                versions[new] = versions.pop(old)
        return {
            **loaded.metadata,
            "counters_since_delta_snapshot": {renamed[name]: counters[name] for name in counters},
        }
    # Versions are texts, or numbers from before another saver; as `get_next_version` has it, a text is newer.
    newest = max(versions.values(), key=lambda each: (isinstance(each, str), each), default=None)
    if newest is not None:
        for name in missing:
            versions[name] = newest
    return loaded.metadata


_NOTHING = object()


def is_plain(value: Any) -> bool:
    """Whether nothing of a value is lost in its plain form."""
    if isinstance(value, (dict, Mapping)):
        return all(isinstance(name, str) and is_plain(inner) for name, inner in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return plain(value) is not _NOTHING


def plain(value: Any) -> Any:
    """A value without whatever is no plain data: live objects in a config must not travel."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # As the serialiser does with values: a lone surrogate has no UTF-8.
        return value.encode("utf-8", "replace").decode() if not value.isascii() else value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOTHING
    if isinstance(value, int):
        return value if _INTEGER_MIN <= value <= _INTEGER_MAX else _NOTHING
    if isinstance(value, (dict, Mapping)):  # a dict is told at once, another mapping is not
        pairs = ((name, plain(inner)) for name, inner in value.items() if isinstance(name, str))
        return {name: inner for name, inner in pairs if inner is not _NOTHING}
    if isinstance(value, (list, tuple)):
        return [inner for inner in map(plain, value) if inner is not _NOTHING]
    return _NOTHING
