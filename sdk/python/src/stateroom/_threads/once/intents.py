"""What a once-call was asked to do, as a digest: its name and its arguments, the same in every process and release.

The form is that of ``docs/formats/once-record.md``: RFC 8785 (JCS) with tags for what JSON cannot say. An argument that
has no plain form, a connection say, counts by its type alone; the others are still compared. Nothing but the digest is
kept.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

_DOMAIN = b"stateroom once intent 1\0"
_FORM = "1:"
_SAFE_INTEGER_MAX = 2**53 - 1


def intent_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The digest of a call.

    Args:
        name: The call's name.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        ``1:`` and 64 hexadecimal digits.
    """
    asked = _object(
        {
            "name": _text(name),
            "args": _array(map(_argument, args)),
            "kwargs": _object({key: _argument(value) for key, value in kwargs.items()}),
        }
    )
    return _FORM + hashlib.sha256(_DOMAIN + asked.encode("utf-8", "surrogatepass")).hexdigest()


def _argument(value: Any) -> str:
    try:
        return _canonical(value)
    except RecursionError:
        return _opaque(value)


def _canonical(value: Any) -> str:
    if isinstance(value, Enum):
        return _canonical(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return _json(value)
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, (list, tuple)):
        return _array(map(_canonical, value))
    if isinstance(value, AbstractSet):
        return _object({"$set": _array(sorted(map(_canonical, value)))})
    tag = _tag(value)
    if tag is not None:
        return _tagged(*tag)
    fields = _fields(value)
    return _opaque(value) if fields is None else _mapping(fields)


def _json(value: bool | float | str | None) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(int(value)) if abs(value) <= _SAFE_INTEGER_MAX else _tagged("int", str(int(value)))
    return _number(value) if math.isfinite(value) else _tagged("float", str(float(value)))


def _mapping(value: Mapping[Any, Any]) -> str:
    if all(isinstance(key, str) for key in value):
        return _object({_untagged(key): _canonical(inner) for key, inner in value.items()})
    pairs = sorted(_array((_canonical(key), _canonical(inner))) for key, inner in value.items())
    return _object({"$map": _array(pairs)})


def _tag(value: Any) -> tuple[str, str] | None:
    """How a scalar is written that JSON cannot say, ``None`` when it is none of them."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", hashlib.sha256(value).hexdigest()
    if isinstance(value, datetime):
        return "datetime", value.isoformat()
    if isinstance(value, (date, time)):
        return "date" if isinstance(value, date) else "time", value.isoformat()
    if isinstance(value, timedelta):
        return "timedelta", str(value // timedelta(microseconds=1))
    if isinstance(value, Decimal):
        return "decimal", str(value)
    return ("uuid", str(value)) if isinstance(value, UUID) else None


def _fields(value: Any) -> Mapping[str, Any] | None:
    """The fields of a dataclass, a ``Struct`` or a pydantic model."""
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    names = getattr(type(value), "__struct_fields__", None)
    if names is not None:
        return {name: getattr(value, name) for name in names}
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else None


def _opaque(value: Any) -> str:
    kind = type(value)
    return _tagged("type", f"{kind.__module__}.{kind.__qualname__}")


def _tagged(tag: str, text: str) -> str:
    return _object({f"${tag}": _text(text)})


def _untagged(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _array(items: Any) -> str:
    return f"[{','.join(items)}]"


def _object(members: Mapping[str, str]) -> str:
    ordered = sorted(members.items(), key=lambda member: member[0].encode("utf-16-be", "surrogatepass"))
    return f"{{{','.join(f'{_text(name)}:{value}' for name, value in ordered)}}}"


def _number(value: float) -> str:
    """A finite number as ECMAScript writes it (ECMA-262, Number::toString)."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if value == 0:
        return "0"
    written = "".join(map(str, digits))
    point = len(written) + int(exponent)
    if 0 < point <= 21:
        text = written[:point].ljust(point, "0") + ("." + written[point:] if point < len(written) else "")
    elif -6 < point <= 0:
        text = "0." + "0" * -point + written
    else:
        power = point - 1
        text = (
            written[0] + ("." + written[1:] if len(written) > 1 else "") + f"e{'+' if power > 0 else '-'}{abs(power)}"
        )
    return "-" * sign + text
