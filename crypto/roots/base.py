"""The contract of a root key: wraps tenant keys and is itself never in the database.

Owns the `RootKey` protocol and `WrappedKey`. Every implementation passes one contract suite. The context of a
wrapping is visible to the operator of the root key (a KMS logs it), so it holds opaque ids only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from crypto.keyring import SecretKey

CONTEXT_NAMES: Final = frozenset({"deployment", "tenant", "purpose", "version"})


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A key that only its root key can open.

    Attributes:
        provider: Which implementation wrapped it, for example `file`.
        root_key_id: Which root key, without anything secret.
        root_key_version: Which version of it, as that provider writes versions.
        ciphertext: The wrapped bytes.
    """

    provider: str
    root_key_id: str
    root_key_version: str
    ciphertext: bytes = field(repr=False)


@runtime_checkable
class RootKey(Protocol):
    """Wraps and unwraps tenant keys under a context.

    The context has exactly the names `deployment`, `tenant` (UUIDs), `purpose` and `version`; unwrapping
    needs the same values.
    """

    @property
    def provider(self) -> str:
        """The word stored beside every wrapping."""
        ...

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap a key under the newest version of the root key.

        Raises:
            KeyUnavailable: The root key cannot be reached now.
            KeyDenied: It refuses.
            ValueError: The context has other names, or an id that is no UUID.
        """
        ...

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """Unwrap a key.

        Raises:
            KeyUnavailable: The root key cannot be reached now.
            KeyDenied: It refuses, or another root key made this wrapping.
            KeyDestroyed: The root key version that made it no longer exists.
            OpenError: The bytes or the context are not those of the wrapping.
            ValueError: The context has other names, or an id that is no UUID.
        """
        ...

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap the same key under the newest version of the root key, inside the service where it can.

        Raises:
            CryptoError: As `unwrap` and `wrap`.
            ValueError: As `unwrap`.
        """
        ...

    async def health(self) -> None:
        """Return if the root key could be used now.

        Raises:
            CryptoError: It could not.
        """
        ...
