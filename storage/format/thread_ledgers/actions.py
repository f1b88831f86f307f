"""Actions: the one form of what an agent wants to do, over which people decide and by which effects are compared.

`canonical` makes bytes of any value that a tool's arguments can be, the same in every language: RFC 8785 (JCS), with
tagged forms for what JSON cannot say. Its rules and vectors are in ``docs/formats/action-hash.md``; the SDK has its
own, because it imports nothing of the gateway. Values are bounded by whoever read them.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import rfc8785

_SAFE_MAX: Final = 2**53 - 1
_TAG: Final = "$"
_FORMAT: Final = 1
# An approval's hash begins with it, so that it is never the hash of an action.
_APPROVAL_PREFIX: Final = b"stateroom approval 1\0"


class Action(msgspec.Struct, frozen=True):
    """What an agent wants to do: all that a person's decision holds for.

    Attributes:
        tool: The tool's name.
        tool_digest: SHA-256 of what the tool takes, in hex, as the SDK makes it; None: not known.
        args: Its arguments, as the tool's schema leaves them, without what is injected.
        thread_id: Where it is done.
        agent: The program that does it, if it has a name.
        subject_id: For whom.
    """

    tool: str
    tool_digest: str | None
    args: Mapping[str, Any]
    thread_id: str
    agent: str | None
    subject_id: str


def tagged(value: Any) -> Any:
    """A value in the tagged form, which JSON can say.

    Args:
        value: What JSON or MessagePack can say: None, booleans, numbers, texts, bytes, lists, and maps of texts.

    Raises:
        ValueError: It holds a number that is not finite, a key that is no text, or something else.
    """
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -_SAFE_MAX <= value <= _SAFE_MAX else {"$int": str(value)}
        case float() if not math.isfinite(value):
            raise ValueError("a number is not finite")
        case float():  # as JCS has it, a whole one is the same number as the integer
            return value
        case bytes():
            return {"$bytes": {"sha256": hashlib.sha256(value).hexdigest(), "size": len(value)}}
        case list() | tuple():
            return [tagged(each) for each in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise ValueError("a key is no text")
            # A text that looks like a tag is told apart from one.
            return {(_TAG + key if key.startswith(_TAG) else key): tagged(each) for key, each in value.items()}
        case _:
            raise ValueError(f"a {type(value).__name__} has no canonical form")


def canonical(value: Any) -> bytes:
    """The canonical bytes of a value.

    Raises:
        ValueError: As `tagged`.
    """
    try:
        return rfc8785.dumps(tagged(value))
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        raise ValueError("a text is not valid Unicode, or a number is out of range") from None


def action_hash(action: Action) -> bytes:
    """The SHA-256 of an action's canonical form. It is stored only under a MAC: few arguments could be guessed.

    Raises:
        ValueError: As `tagged`.
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
    """The hash of an approval, by those of its actions in their order: what whoever decides must repeat."""
    return hashlib.sha256(_APPROVAL_PREFIX + b"".join(hashes)).digest()
