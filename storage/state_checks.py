"""What a state schema says of a save, checked before anything of it is stored: pure.

1. Ephemeral channels are left out, from states, patches and pending writes.
2. A save that brings every channel is checked against the version's JSON Schema; one that brings some is checked as far
   as they go (`storage.state_schemas`).

A state is shown to a JSON Schema as an object of channels. Extension values appear as ``{"$ext": code}``, binary as
text in base64, floats that JSON cannot say as text, channels in encodings that the gateway does not read as
``{"$encoded": name}``. Channels of frameworks and adapters are not shown, and neither is one whose large parts are
stored apart already: the others are checked as a save that brings some. It reads values and instantiates nothing.
"""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jsonschema_rs
import msgpack

from storage.errors import InvalidState
from storage.model import FullState, NewWrite, Patch, Save, Value
from storage.state_schemas import Known, Part
from storage.versions import is_control

_NULL, _BYTES = "null", frozenset({"bytes", "bytearray"})  # LangGraph's serialisers


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
        kept = {name: each for name, each in save.content.channels.items() if name not in ephemeral}
        content = replace(save.content, channels=kept)
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


def size_of(content: FullState | Patch) -> int:
    """How many bytes of values a save brings."""
    if isinstance(content, FullState):
        return sum(len(each.value.data) for each in content.channels.values() if each.value is not None)
    appended = sum(len(element) for elements in content.append.values() for element in elements)
    return appended + sum(len(each.data) for each in content.set.values())


def check_content(known: Known, number: int, content: FullState | Patch) -> None:
    """Check what a save brings against the JSON Schema of its version, if it has one.

    Args:
        known: The schema.
        number: The version of the save.
        content: What it brings, without ephemeral channels.
        form: How a complete state was sent, for the pointer.

    Raises:
        InvalidState: where it differs, without what is there.
    """
    if not known.has_json_schema(number):
        return
    if isinstance(content, FullState):
        given = {name: each.value for name, each in content.channels.items() if not is_control(name)}
        shown = {name: _shown(value) for name, value in given.items() if value is not None and not value.holes}
        _check(known, number, "whole" if len(shown) == len(given) else "some", shown, content.root)
        return
    shown = {name: _shown(value) for name, value in content.set.items() if not is_control(name) and not value.holes}
    _check(known, number, "some", shown, "/changes/set")
    appended = {
        name: [_shown(Value("msgpack", element)) for element in elements]
        for name, elements in content.append.items()
        if not is_control(name)
    }
    _check(known, number, "elements", appended, "/changes/append")


def _check(known: Known, number: int, part: Part, shown: dict[str, Any], prefix: str) -> None:
    validator = known.validator(number, part)
    if validator is None:
        return
    fault: jsonschema_rs.ValidationError | None = None
    try:
        if not validator.is_valid(shown):
            validator.validate(shown)  # only the first fault, found again: a list of all takes seconds
    except jsonschema_rs.ValidationError as found:
        fault = found
    except ValueError:
        raise InvalidState("the state is nested too deeply for its JSON Schema", prefix) from None
    if fault is not None:
        steps: Iterable[str | int] = fault.instance_path
        where = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)
        rule = str(fault.schema_path[-1]) if fault.schema_path else "false"
        raise InvalidState(f"the JSON Schema of version {number} does not allow this ({rule})", prefix + where)


def _shown(value: Value) -> Any:
    """A channel's value as a JSON Schema sees it."""
    try:
        if value.encoding == "msgpack":
            tree = msgpack.unpackb(
                value.data, raw=False, strict_map_key=False, use_list=True, timestamp=0, ext_hook=msgpack.ExtType
            )
            return _plain(tree)
        if value.encoding == "json":
            return _plain(json.loads(value.data))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return {"$encoded": value.encoding}
    if value.encoding == _NULL:
        return None
    if value.encoding in _BYTES:
        return _text(value.data)
    return {"$encoded": value.encoding}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name if isinstance(name, str) else str(name): _plain(each) for name, each in tree.items()}
    if isinstance(tree, list):
        return [_plain(each) for each in tree]
    if isinstance(tree, msgpack.ExtType):
        return {"$ext": tree.code}
    if isinstance(tree, msgpack.Timestamp):
        return {"$ext": -1}
    if isinstance(tree, bytes):
        return _text(tree)
    if isinstance(tree, float) and not math.isfinite(tree):
        return str(tree)
    return tree
