"""A breaker before a root key: while its service does not answer, calls fail at once instead of waiting for it.

Owns how many failures in a row open it and for how long. Each root key has its own, so that the outage of one
tenant's does not touch the others. It knows nothing of what was wrapped, keeps no key, and is no cache: a key that
is not held elsewhere stays unavailable. `health` always asks the service.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from crypto.errors import KeyUnavailable
from crypto.keyring import SecretKey
from crypto.roots.base import RootKey, WrappedKey

T = TypeVar("T")

FAILURES_MAX: Final = 5
OPEN_SECONDS: Final = 5.0


class GuardedRootKey:
    """A `RootKey` that stops asking another one which does not answer.

    After `FAILURES_MAX` calls in a row that raised `KeyUnavailable`, every call raises it at once for `OPEN_SECONDS`.
    Then one call at a time is let through: when it is answered, all are; when not, the time begins again. Any answer
    counts, a refusal too: the service is there.

    Not thread safe: one instance belongs to one event loop.
    """

    def __init__(self, root_key: RootKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._root_key = root_key
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._probing = False

    @property
    def provider(self) -> str:
        """The root key's own."""
        return self._root_key.provider

    def recognises(self, wrapped: WrappedKey) -> bool:
        """See `RootKey.recognises`."""
        return self._root_key.recognises(wrapped)

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """See `RootKey.wrap`."""
        return await self._guarded(lambda: self._root_key.wrap(key, context))

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """See `RootKey.unwrap`."""
        return await self._guarded(lambda: self._root_key.unwrap(wrapped, context))

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """See `RootKey.rewrap`."""
        return await self._guarded(lambda: self._root_key.rewrap(wrapped, context))

    async def health(self) -> None:
        """See `RootKey.health`; opens and closes nothing."""
        await self._root_key.health()

    async def aclose(self) -> None:
        """See `RootKey.aclose`."""
        await self._root_key.aclose()

    async def _guarded(self, call: Callable[[], Awaitable[T]]) -> T:
        if self._failures < FAILURES_MAX:
            return await self._watched(call)
        left = self._open_until - self._clock()
        if left > 0 or self._probing:
            raise KeyUnavailable(max(left, 1.0))
        self._probing = True
        try:
            return await self._watched(call)
        finally:
            self._probing = False

    async def _watched(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            answer = await call()
        except KeyUnavailable:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._open_until = self._clock() + OPEN_SECONDS
            raise
        except Exception:
            self._failures = 0
            raise
        self._failures = 0
        return answer
