"""What counts as the same: of results of a step, and of prompts.

This module owns the plain form in which values are compared. Of messages that is what they say: who speaks, the
content, a name, the tools that are called with which arguments. Ids and what providers add differ between two runs that
said the same, so they are left out.
"""

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from stateroom._threads.plain import to_plain
from stateroom._threads.trajectories import Message, message_of


def prompt_hash(messages: Any) -> str:
    """The digest of what a model was asked, to be kept in a checkpoint's metadata as ``prompt_hash``.

    It is SHA-256 over canonical JSON: the keys of objects sorted, no white space, UTF-8. Messages of OpenAI's and of
    LangChain's form stand for what they say (``role``, ``content``, ``name``, and ``tool_calls`` by ``name`` and
    ``arguments``); anything else stands for itself.

    Args:
        messages: The messages, or whatever else the model was given.

    Returns:
        64 hexadecimal digits.

    Raises:
        InvalidRequest: It has no plain form.
        ValueError: It holds a text that is no Unicode.
    """
    return hashlib.sha256(canonical(comparable(messages))).hexdigest()


def canonical(value: Any) -> bytes:
    """A plain value as canonical JSON.

    Raises:
        ValueError: It holds a text that is no Unicode.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def comparable(value: Any) -> Any:
    """A value as it is compared, which is as trajectories tell values but for messages.

    Raises:
        InvalidRequest: It has no plain form.
    """
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    dump = getattr(value, "model_dump", None)
    if callable(dump):  # a message of LangChain's, or another model of pydantic's
        value = dump()
    if isinstance(value, Mapping):
        message = message_of("", value)
        return (
            {str(name): comparable(each) for name, each in value.items()}
            if message is None
            else _comparable_message(message)
        )
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    return comparable(to_plain(value))


def _comparable_message(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": comparable(message.content)}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_calls:
        shown["tool_calls"] = [
            {"name": each.name, "arguments": comparable(each.arguments)} for each in message.tool_calls
        ]
    return shown
