"""The contract of a root key: wraps tenant keys and is itself never in the database.

Owns the `RootKey` protocol and `WrappedKey`. Every implementation passes one contract suite. The context of a
wrapping is visible to the operator of the root key (a KMS logs it), so it holds opaque ids only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

from crypto.keyring import SecretKey

CONTEXT_NAMES: Final = ("deployment", "tenant", "purpose", "version")
# The purpose of what keeps erased data from coming back; it must not depend on a key that a tenant takes away.
TOMBSTONE_PURPOSE: Final = "tombstone"


def root_context(deployment_id: UUID, tenant_id: UUID, purpose: str, key_version: int) -> dict[str, str]:
    """What a wrapping under the root key is bound to; the nil tenant stands for the deployment itself."""
    return {
        "deployment": str(deployment_id),
        "tenant": str(tenant_id),
        "purpose": purpose,
        "version": str(key_version),
    }


def checked_context(context: Mapping[str, str]) -> dict[str, str]:
    """Return a wrapping's context with its ids in their one canonical form.

    Raises:
        ValueError: It has other names, or an id that is no UUID.
    """
    if context.keys() != set(CONTEXT_NAMES):
        raise ValueError("a wrapping's context has deployment, tenant, purpose and version")
    return {
        "deployment": str(UUID(context["deployment"])),
        "tenant": str(UUID(context["tenant"])),
        "purpose": context["purpose"],
        "version": context["version"],
    }


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A key that only its root key can open.

    Attributes:
        provider: Which implementation wrapped it, for example `file`.
        root_key_id: Which root key, without anything secret.
        root_key_version: Which version of it, as that provider writes versions; `-` where it tells none.
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

    def recognises(self, wrapped: WrappedKey) -> bool:
        """Whether this root key certainly made a wrapping, going by what is written beside it; no request is made.

        False says nothing: a root key may be known to its service under another name.
        """
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
            KeyDenied: It refuses, or another root key made this wrapping. A service that gives one answer to
                this and to a changed wrapping or another context means all of them.
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

    async def aclose(self) -> None:
        """Give back threads and connections; the root key is not used afterwards."""
        ...
