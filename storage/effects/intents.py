"""What is meant by a call: its arguments, read, and what of them makes it the same as another one."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from storage.concurrency.computing import compute
from storage.effects.model import EFFECT_ARGS_VALUES_MAX, EffectStart
from storage.errors import InvalidState, LimitExceeded
from storage.format.thread_ledgers.actions import canonical
from storage.scope import Scope

# What is read on the event loop: for some milliseconds at most.
_INLINE_BYTES: Final = 16 * 1024
_ABSENT: Final = object()


async def identity_of(wanted: EffectStart, scope: Scope) -> bytes:
    """The canonical form of what makes a call the same.

    Raises:
        InvalidState: The arguments are no MessagePack of what JSON can say.
        LimitExceeded: They hold too many values.
    """
    return await identity_in(wanted.args, wanted.identity, scope)


async def identity_in(args: bytes, identity: Sequence[str], scope: Scope) -> bytes:
    """The same as `identity_of` gives, of arguments and the pointers into them."""
    if len(args) <= _INLINE_BYTES:
        return _identity(args, identity)
    return await compute(scope.tenant_id, lambda: _identity(args, identity))


async def action_of(wanted: EffectStart, scope: Scope, agent: str | None) -> bytes:
    """The canonical form of the action that somebody approved or not.

    Raises:
        InvalidState, LimitExceeded: As `identity_of`.
    """
    args = await compute(scope.tenant_id, lambda: _read(wanted.args))
    said = {
        "v": 1,
        "tool": wanted.tool,
        "tool_digest": wanted.tool_digest,
        "args": args,
        "thread": wanted.thread_id,
        "agent": agent,
        "subject": scope.subject_id,
    }
    return await compute(scope.tenant_id, lambda: _canonical(said))


def _identity(encoded: bytes, identity: Sequence[str]) -> bytes:
    args = _read(encoded)
    found = []
    for pointer in sorted({*identity}):
        value = _at(args, pointer)
        found.append([pointer] if value is _ABSENT else [pointer, value])  # what is absent is not null
    return _canonical(found)


def _canonical(value: Any) -> bytes:
    try:
        return canonical(value)
    except ValueError as error:
        raise InvalidState(f"the arguments have no canonical form: {error}", "/args") from None
    except RecursionError:
        raise InvalidState("the arguments are nested too deeply", "/args") from None


def _read(args: bytes) -> Any:
    try:
        value = msgspec.msgpack.decode(args)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        raise InvalidState("the arguments are no MessagePack", "/args") from None
    left = EFFECT_ARGS_VALUES_MAX
    stack = [value]
    while stack:
        each = stack.pop()
        left -= 1
        if left < 0:
            raise LimitExceeded("EFFECT_ARGS_VALUES_MAX", EFFECT_ARGS_VALUES_MAX, pointer="/args")
        if isinstance(each, dict):
            stack.extend(each.values())
        elif isinstance(each, list):
            stack.extend(each)
    return value


def _at(value: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) names."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name, _ABSENT)
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value
