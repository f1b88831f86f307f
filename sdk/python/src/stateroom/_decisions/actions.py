"""Actions and their hashes, as whoever asks and whoever acts computes them.

A decision of a person holds for one hash, so that what is done is what was asked. The rules are in the project's
``docs/formats/action-hash.md``, where other languages find vectors; the gateway has an implementation of its own. This
module does not say which arguments a tool takes (``_langgraph.tools`` does).
"""

import datetime as dt
import hashlib
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import rfc8785

_SAFE_MAX: Final = 2**53 - 1
_TAG: Final = "$"
_FORMAT: Final = 1
_APPROVAL_PREFIX: Final = b"stateroom approval 1\0"
# What stands for values that neither JSON nor MessagePack has; a map that looks like one of them is refused.
_DECIMAL, _DATE, _DATETIME = "$decimal", "$date", "$datetime"


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent wants to do: all that a person's decision holds for.

    Attributes:
        tool: The tool's name.
        args: Its arguments, defaults included and what is injected left out.
        thread_id: The thread in which it is done.
        subject_id: The subject for which it is done.
        agent: The name of the program that does it, if it has one.
        tool_digest: What says which form of the tool it is, as ``tool_digest`` makes it.
    """

    tool: str
    args: Mapping[str, Any]
    thread_id: str
    subject_id: str
    agent: str | None = None
    tool_digest: str | None = None


def plain(value: Any) -> Any:
    """A value as it is sent to the gateway: decimals and dates as tagged texts, the rest as JSON or MessagePack has it.

    Args:
        value: None, booleans, numbers, texts, bytes, dates, times with their date, lists and maps of texts.

    Raises:
        ValueError: It holds a number that is not finite, a key that is no text, a map that looks like a tagged text,
            or something else.
    """
    match value:
        case None | bool():
            return value
        case str():  # of an enumeration's text, the text
            return str.__str__(value)
        case int() | float() | Decimal():
            return _plain_number(value)
        case dt.datetime():
            return {_DATETIME: value.isoformat()}
        case dt.date():
            return {_DATE: value.isoformat()}
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case list() | tuple():
            return [plain(each) for each in value]
        case Mapping():
            return _plain_map(value)
        case _:
            raise ValueError(f"a {type(value).__name__} has no canonical form")


def _plain_number(value: float | Decimal) -> int | float | dict[str, str]:
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        raise ValueError("a number is not finite")
    return {_DECIMAL: str(value)} if isinstance(value, Decimal) else float(value)


def _plain_map(value: Mapping[Any, Any]) -> dict[str, Any]:
    if not all(isinstance(key, str) for key in value):
        raise ValueError("a key is no text")
    if len(value) == 1 and next(iter(value)) in {_DECIMAL, _DATE, _DATETIME}:
        raise ValueError("a map looks like a tagged text")
    return {str.__str__(key): plain(each) for key, each in value.items()}


def canonical(value: Any) -> bytes:
    """The canonical bytes of a value.

    Raises:
        ValueError: As ``plain``; or a text is not valid Unicode.
    """
    try:
        return rfc8785.dumps(_tagged(plain(value)))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        raise ValueError("a text is not valid Unicode, or a number is out of range") from None


def action_hash(action: Action) -> bytes:
    """The hash of an action, which a decision holds for.

    Raises:
        ValueError: As ``canonical``.
    """
    members = {
        "v": _FORMAT,
        "tool": action.tool,
        "tool_digest": action.tool_digest,
        "args": action.args,
        "thread": action.thread_id,
        "agent": action.agent,
        "subject": action.subject_id,
    }
    return hashlib.sha256(canonical(members)).digest()


def approval_hash(hashes: Sequence[bytes]) -> bytes:
    """The hash of an approval, by those of its actions in their order: what whoever decides repeats, in hex."""
    return hashlib.sha256(_APPROVAL_PREFIX + b"".join(hashes)).digest()


def tool_digest(name: str, args_schema: Mapping[str, Any] | None, version: str | None = None) -> str:
    """What says which form of a tool an action is of.

    Args:
        name: Its name.
        args_schema: What arguments it takes, as a JSON Schema.
        version: What its maker calls this version of it.

    Returns:
        SHA-256 in hex.

    Raises:
        ValueError: The schema has no canonical form.
    """
    return hashlib.sha256(
        canonical({"v": _FORMAT, "name": name, "schema": args_schema, "version": version})
    ).hexdigest()


def _tagged(value: Any) -> Any:
    """A plain value in the form that JSON can say without loss, and no two values alike."""
    match value:
        case bool():
            return value
        case int() if not -_SAFE_MAX <= value <= _SAFE_MAX:
            return {"$int": str(value)}
        case bytes():
            return {"$bytes": {"sha256": hashlib.sha256(value).hexdigest(), "size": len(value)}}
        case list():
            return [_tagged(each) for each in value]
        case dict():
            return {(_TAG + key if key.startswith(_TAG) else key): _tagged(each) for key, each in value.items()}
        case _:
            return value
