"""Actions: the one form of what an agent wants to do, over which people decide and by which effects are compared.

`canonical` makes bytes of any value that a tool's arguments can be, the same in every language: RFC 8785 (JCS), with
tagged forms for what JSON cannot say. Its rules and vectors are in ``docs/formats/action-hash.md``; the SDK has its
own, because it imports nothing of the gateway. Values are bounded by whoever read them.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final

import rfc8785

_SAFE_MAX: Final = 2**53 - 1
_TAG: Final = "$"


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
