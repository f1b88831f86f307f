"""Which of an application's own types a saver or a cache may rebuild.

A state's class says which types its values have, so naming it is enough: this module finds the types in its fields.
Only what the application named, or put into the fields of what it named, is ever found; nothing that is stored has a
part in it.
"""

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, NewType, cast

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


def serialiser(own: SerializerProtocol | None, allowed: Sequence[type | tuple[str, ...]] | None) -> SerializerProtocol:
    """An application's own serialiser, or LangGraph's with the types that it allowed.

    Raises:
        ValueError: It has its own, which nothing here configures.
    """
    if own is not None and allowed is not None:
        raise ValueError("allowed_msgpack_modules configures the default serialiser, not yours")
    return own or JsonPlusSerializer(allowed_msgpack_modules=with_field_types(allowed or ()) or None)


def with_field_types(named: Iterable[type | tuple[str, ...]]) -> list[type | tuple[str, ...]]:
    """What an application named, and the types in the fields of its classes, however deep.

    Args:
        named: Classes, and types as ``(module, name)``, which say nothing of their fields.

    Returns:
        The same, and every dataclass, pydantic model, named tuple and enumeration that a field may hold. A field whose
        annotation cannot be read says nothing.
    """
    allowed: list[type | tuple[str, ...]] = []
    seen: list[Any] = []  # annotations need not be hashable
    for each in named:
        allowed += [each] if isinstance(each, tuple) else [each, *_within(each, seen)]
    return allowed


def _within(annotation: Any, seen: list[Any]) -> Iterator[type]:
    if any(annotation is each for each in seen):
        return
    seen.append(annotation)
    if isinstance(annotation, NewType):
        yield from _within(annotation.__supertype__, seen)
    for argument in typing.get_args(annotation):
        yield from _within(argument, seen)
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        if _is_rebuilt(annotation):
            yield annotation
        for inner in _fields(annotation):
            yield from _within(inner, seen)


def _is_rebuilt(kind: type) -> bool:
    return (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, Enum)
        or hasattr(kind, "model_fields")
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def _fields(kind: type) -> list[Any]:
    if not (_is_rebuilt(kind) or typing.is_typeddict(kind)) or issubclass(kind, Enum):
        return []
    try:
        return list(typing.get_type_hints(kind).values())
    except (NameError, TypeError, AttributeError):
        fields = cast(Any, kind).model_fields.values() if hasattr(kind, "model_fields") else ()
        return [each.annotation for each in fields]
