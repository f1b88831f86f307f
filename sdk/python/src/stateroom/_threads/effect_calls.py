"""What of a tool's call goes into the ledger: its arguments in a plain form, what is the same intent, its result.

This module owns the forms, and makes no call. An argument that has no plain form, a connection say, counts by its type
alone; the others are still compared.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypedDict

import msgspec

from stateroom._protocol.core import encode_body
from stateroom._thread_ledgers.shapes import (
    ALL_ARGUMENTS,
    EFFECT_LEASE_SECONDS,
    Effect,
    EffectFinish,
    EffectMode,
    EffectOutcome,
    EffectStart,
)
from stateroom._threads.plain import from_plain, result_type, to_plain
from stateroom.errors import InvalidRequest

RESULT_BYTES_MAX = 1024 * 1024
RESULT_MEDIA_TYPE = "application/msgpack"
PROVIDER_KEY = "provider_key"
_current: ContextVar[Effect | None] = ContextVar("stateroom_effect", default=None)


class EffectPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How a tool's effects are kept.

    Attributes:
        mode: What may be repeated.
        identity: Names of arguments, or JSON pointers into them, that say what is the same intent; none: all.
        check: Asks the service whether an effect of unknown outcome happened.
        definite: Exceptions that prove that nothing happened.
        tool: The tool's name; the function's when left out.
        lease_seconds: After how long whoever started it is taken for dead.
        repeat: Whether it is meant to happen once more.
    """

    mode: EffectMode = "once"
    identity: Sequence[str] = ()
    check: Callable[..., Any] | None = None
    definite: tuple[type[BaseException], ...] = ()
    tool: str | None = None
    lease_seconds: int = EFFECT_LEASE_SECONDS
    repeat: bool = False


class EffectOptions(TypedDict, total=False):
    """How the effects of a function are kept; each may be left out.

    Attributes:
        mode: What may be repeated; ``once`` when left out.
        identity: Names of arguments that say what is the same intent, so that it is noticed under another name; all of
            them when left out.
        check: Called with the same arguments before ``EffectUnknown`` is raised: asks the service whether it happened.
            Returns ``True``, ``False``, an ``EffectOutcome``, or ``None``: it cannot tell.
        definite: Exceptions that prove that nothing happened.
        tool: The tool's name; the function's when left out.
        lease_seconds: After how long whoever does it is taken for dead, 300 when left out; longer than the call takes.
        repeat: Whether it is meant to happen once more, although the same was done a moment ago under another name.
    """

    mode: EffectMode
    identity: Sequence[str]
    check: Callable[..., Any] | None
    definite: tuple[type[BaseException], ...]
    tool: str | None
    lease_seconds: int
    repeat: bool


class EffectPlace(NamedTuple):
    """Where an effect stands: in which thread, under which name, and behind which checkpoint."""

    thread_id: str
    name: str
    namespace: str = ""
    checkpoint_id: str | None = None
    run_id: str | None = None
    fence: int | None = None


class ToolCall(NamedTuple):
    """A function with the arguments that it is called with."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def start(self, place: EffectPlace, policy: EffectPolicy) -> EffectStart:
        """What is to be started.

        Raises:
            TypeError: The arguments are none that the function takes.
        """
        return EffectStart(
            tool=policy.tool or str(getattr(self.fn, "__name__", "tool")),
            args=self._plain_arguments(),
            mode=policy.mode,
            namespace=place.namespace,
            identity=tuple(map(_pointer, policy.identity)) or ALL_ARGUMENTS,
            checkpoint_id=place.checkpoint_id,
            run_id=place.run_id,
            fence=place.fence,
            lease_seconds=policy.lease_seconds,
            repeat=policy.repeat,
        )

    def _plain_arguments(self) -> dict[str, Any]:
        signature = inspect.signature(self.fn)
        given = signature.bind_partial(*self.args, **self.kwargs)
        given.apply_defaults()
        return {name: _plain_argument(value) for name, value in given.arguments.items() if name != PROVIDER_KEY}

    def run(self, effect: Effect) -> Any:
        """Call it; it gets the provider key if it takes one. A coroutine function has begun nothing yet."""
        keyed = {PROVIDER_KEY: effect.provider_key} if self._takes_key() else {}
        return self.fn(*self.args, **{**self.kwargs, **keyed})

    def _takes_key(self) -> bool:
        return PROVIDER_KEY in inspect.signature(self.fn).parameters

    def typed(self, plain: Any) -> Any:
        """A plain result as the function says that it returns it."""
        return from_plain(plain, result_type(self.fn))


def _plain_argument(value: Any) -> Any:
    try:
        return to_plain(value)
    except InvalidRequest:
        kind = type(value)
        return {"$type": f"{kind.__module__}.{kind.__qualname__}"}


def _pointer(text: str) -> str:
    """The JSON pointer of an argument, or one as it is."""
    if not text or text.startswith("/"):
        return text
    return "/" + text.replace("~", "~0").replace("/", "~1")


class Result(NamedTuple):
    """A result as it is kept: its bytes, or ``None`` where it has no plain form."""

    plain: Any
    encoded: bytes | None

    @classmethod
    def of(cls, value: Any) -> "Result":
        """What a function returned; its own types may fail in any way, and it happened all the same."""
        with suppress(Exception):
            plain = to_plain(value)
            return cls(plain, encode_body(plain))
        return cls(value, None)

    @property
    def is_large(self) -> bool:
        """Whether it goes into an artifact."""
        return self.encoded is not None and len(self.encoded) > RESULT_BYTES_MAX

    def finish(self, effect: Effect, artifact_id: str | None = None) -> EffectFinish:
        """That the effect is done, with its result as far as it can be kept."""
        ended = EffectFinish(
            execution=effect.execution, attempt=effect.attempt, status="done", namespace=effect.namespace
        )
        if self.encoded is None:
            ended.result_bytes = 0
            return ended
        ended.result_digest, ended.result_bytes = hashlib.sha256(self.encoded).digest(), len(self.encoded)
        ended.artifact_id = artifact_id
        if not self.is_large:
            ended.result = msgspec.Raw(self.encoded)
        return ended

    def finish_without(self, effect: Effect) -> EffectFinish:
        """That the effect is done, and its result is missing."""
        ended = self.finish(effect)
        ended.result = msgspec.UNSET
        return ended


def ended_by(effect: Effect, error: BaseException, definite: tuple[type[BaseException], ...]) -> EffectFinish:
    """That the effect failed for certain, or may have happened."""
    return EffectFinish(
        execution=effect.execution,
        attempt=effect.attempt,
        status="failed" if isinstance(error, definite) else "unknown",
        namespace=effect.namespace,
        error=type(error).__name__[:255],
    )


def outcome_of(found: Any) -> EffectOutcome | None:
    """What a check found out; ``None``: nothing.

    Raises:
        TypeError: It is nothing that a check returns.
    """
    if found is None or isinstance(found, EffectOutcome):
        return found
    if isinstance(found, bool):
        return EffectOutcome(found)
    raise TypeError("a check returns True, False, None or an EffectOutcome")


@contextmanager
def running(effect: Effect) -> Iterator[None]:
    """Within, ``current_effect`` gives the effect."""
    token = _current.set(effect)
    try:
        yield
    finally:
        _current.reset(token)


def current_effect() -> Effect | None:
    """The effect whose function runs now; ``None`` outside of one. Its ``provider_key`` is for the service called."""
    return _current.get()
