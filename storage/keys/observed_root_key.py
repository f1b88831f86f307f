"""A root key whose refusals are seen: counted for metrics and logged, whatever asked.

Owns nothing of how keys are wrapped. What is answered from a cache of refusals (`crypto.keyring`) is not asked again,
so it counts once: a count that grows says that the root key goes on refusing, not how many requests that cost.
"""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

import structlog

from crypto import CryptoError, KeyDenied, KeyDestroyed, KeyUnavailable, RootKey, RootKeyInvalid, SecretKey, WrappedKey
from storage.postgres.unit_of_work import Observer

_REASONS: dict[type[CryptoError], str] = {
    KeyUnavailable: "unavailable",
    KeyDenied: "denied",
    KeyDestroyed: "destroyed",
    RootKeyInvalid: "invalid",
}
_REFUSALS = tuple(_REASONS)

T = TypeVar("T")
_log = structlog.get_logger()


class ObservedRootKey:
    """A `RootKey` that reports each refusal.

    The reasons are ``unavailable``, ``denied``, ``destroyed`` and ``invalid``.
    """

    def __init__(self, root_key: RootKey, observer: Observer) -> None:
        self._root_key = root_key
        self._observer = observer

    @property
    def provider(self) -> str:
        """See `RootKey.provider`."""
        return self._root_key.provider

    def recognises(self, wrapped: WrappedKey) -> bool:
        """See `RootKey.recognises`."""
        return self._root_key.recognises(wrapped)

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """See `RootKey.wrap`."""
        return await self._asked("wrap", self._root_key.wrap(key, context))

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """See `RootKey.unwrap`."""
        return await self._asked("unwrap", self._root_key.unwrap(wrapped, context), wrapped)

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """See `RootKey.rewrap`."""
        return await self._asked("rewrap", self._root_key.rewrap(wrapped, context), wrapped)

    async def health(self) -> None:
        """See `RootKey.health`; a probe tells for itself how it went."""
        await self._root_key.health()

    async def aclose(self) -> None:
        """See `RootKey.aclose`."""
        await self._root_key.aclose()

    async def _asked(self, what: str, answer: Awaitable[T], wrapped: WrappedKey | None = None) -> T:
        try:
            return await answer
        except _REFUSALS as refusal:
            reason = next(name for kind, name in _REASONS.items() if isinstance(refusal, kind))
            self._observer.root_key_refused(reason)
            made_by = {}
            if wrapped is not None:
                # Another process may list a root key that this one does not: then no service is at fault.
                made_by = {
                    "provider": wrapped.provider,
                    "root_key_id": wrapped.root_key_id,
                    "root_key_version": wrapped.root_key_version,
                    "recognised": self._root_key.recognises(wrapped),
                }
            _log.warning("root key refused", asked_to=what, reason=reason, **made_by)
            raise
