"""States between an agent's own types and plain trees.

This module owns which types a state may have: ``dict``, dataclass, msgspec ``Struct``, ``TypedDict``, and
anything with pydantic's ``model_dump`` and ``model_validate``. It does not promise that a plain tree keeps
more than JSON and bytes can say: tuples and sets become lists, dates become ISO 8601 texts, and the declared
type brings them back.
"""

import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from stateroom.errors import InvalidRequest

_SCALARS = (type(None), bool, int, float, str, bytes, Ext)
RESERVED_PREFIX = "~"
"""Channels whose names begin so belong to adapters and are no part of an agent's own state."""


def _encode_foreign(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump()
    raise TypeError(type(value).__name__)


def _decode_foreign(kind: Any, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(getattr(kind, "__name__", "unknown type"))


def _walk(value: Any) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Mapping):
        return {name: _walk(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_walk(inner) for inner in value]
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_encode_foreign)


def to_plain(value: Any) -> Any:
    """A value as a plain tree of None, bool, int, float, str, bytes, list and dict.

    Args:
        value: Anything the module's first paragraph names.

    Returns:
        The tree. MessagePack extension values pass through unchanged.

    Raises:
        InvalidRequest: A type inside has no plain form; the message names the type, not the value.
    """
    try:
        return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_encode_foreign)
    except (TypeError, RecursionError):
        # Extension values, which another program's state may hold, are known to the slow walk only.
        try:
            return _walk(value)
        except (TypeError, RecursionError) as error:
            raise InvalidRequest(f"the value has no plain form: {error}") from None


def state_to_plain(state: Any) -> dict[str, Any]:
    """A state as a plain object.

    Raises:
        InvalidRequest: The state is not an object with text keys, or a key begins with ``~``.
    """
    plain = to_plain(state)
    if not isinstance(plain, dict) or not all(isinstance(name, str) for name in plain):
        raise InvalidRequest("a state must be an object whose keys are texts")
    if any(name.startswith(RESERVED_PREFIX) for name in plain):
        raise InvalidRequest("top-level keys of a state must not begin with ~")
    return plain


def from_plain(plain: Any, kind: Any) -> Any:
    """A plain tree as ``kind``.

    Args:
        plain: The tree.
        kind: The wanted type; ``dict`` or ``Any`` leave the tree as it is.

    Raises:
        msgspec.ValidationError: The tree does not fit the type; raised for the caller's own types only.
    """
    if kind is None or kind is dict or kind is Any:
        return plain
    return msgspec.convert(plain, kind, dec_hook=_decode_foreign)


def state_from_plain(plain: dict[str, Any], kind: Any) -> Any:
    """A loaded state as ``kind``, without adapters' own channels."""
    own = {name: value for name, value in plain.items() if not name.startswith(RESERVED_PREFIX)}
    return from_plain(own, kind)


def result_type(fn: Callable[..., Any]) -> Any:
    """The annotated return type of a function, or ``Any``."""
    target = fn if hasattr(fn, "__annotations__") else getattr(fn, "__call__", fn)  # noqa: B004
    try:
        return typing.get_type_hints(target).get("return", Any)
    except (NameError, TypeError, AttributeError):
        return Any
