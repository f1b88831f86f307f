"""A root key whose versions are in this process's memory: the part `file` and `memory` share.

Owns how a tenant key is wrapped without a service: an envelope of kind TENANT_KEY whose key_version is the
root key's version, sealed under the root key's purpose key "stateroom/v1/tenant-kek" at the location
(purpose, version).
"""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from crypto.context import Kind, encode_context
from crypto.envelope import KEY_VERSION_MAX, Flag, Header, KeyScope, open_body, peek_header, seal_body
from crypto.errors import KeyDenied, KeyDestroyed, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots.base import WrappedKey, checked_context
from crypto.suites import KEY_BYTES, Suite

_TENANT_KEK: Final = b"stateroom/v1/tenant-kek"


def _encode(header: bytes, context: Mapping[str, str]) -> bytes:
    named = checked_context(context)
    return encode_context(
        header,
        UUID(named["deployment"]),
        UUID(named["tenant"]),
        None,
        (named["purpose"], named["version"]),
    )


class LocalRootKey:
    """Versions of a root key held in memory, wrapping in process."""

    def __init__(self, provider: str, root_keys: Mapping[int, SecretKey], active_root_key_version: int) -> None:
        """Take the versions.

        Raises:
            RootKeyInvalid: There is no key of the active version, or a version is not 1 to 2^32 - 1.
        """
        if active_root_key_version not in root_keys:
            raise RootKeyInvalid("the root key has no key of its active version")
        if not all(1 <= number <= KEY_VERSION_MAX for number in root_keys):
            raise RootKeyInvalid("root key versions are 1 to 4294967295")
        self.provider = provider
        self._root_keys = dict(root_keys)
        self._active_root_key_version = active_root_key_version

    def __repr__(self) -> str:
        return f"{type(self).__name__}(active_root_key_version={self._active_root_key_version})"

    def recognises(self, wrapped: WrappedKey) -> bool:
        """See `RootKey.recognises`."""
        return wrapped.provider == self.provider and any(
            root_key.kcv().hex() == wrapped.root_key_id for root_key in self._root_keys.values()
        )

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap a key under the active version; see `RootKey.wrap`."""
        number = self._active_root_key_version
        root_key = self._root_keys[number]
        header = Header(Suite.COBBLESTONE_256, Flag(0), Kind.TENANT_KEY, KeyScope.TENANT, number).pack()
        wrapping_key = root_key.derive(_TENANT_KEK)
        ciphertext = seal_body(
            header,
            wrapping_key.borrow(),
            _encode(header, context),
            KEY_BYTES,
            bytes(key.borrow()),
        )
        return WrappedKey(self.provider, root_key.kcv().hex(), str(number), ciphertext)

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """Unwrap a key; see `RootKey.unwrap`."""
        header = peek_header(wrapped.ciphertext)
        if (
            header.kind is not Kind.TENANT_KEY
            or header.scope is not KeyScope.TENANT
            or header.suite is not Suite.COBBLESTONE_256
            or header.flags
            or str(header.key_version) != wrapped.root_key_version
        ):
            raise OpenError("authentication")
        if wrapped.provider != self.provider:
            raise KeyDenied("this key was wrapped by another root key provider")
        root_key = self._root_keys.get(header.key_version)
        if root_key is None:
            raise KeyDestroyed("the root key version that wrapped this key is not in the root key any more")
        if root_key.kcv().hex() != wrapped.root_key_id:
            raise KeyDenied("this key was wrapped by another root key")
        wrapping_key = root_key.derive(_TENANT_KEK)
        raw_bytes, body = open_body(
            wrapped.ciphertext,
            wrapping_key.borrow(),
            _encode(wrapped.ciphertext, context),
        )
        if raw_bytes != KEY_BYTES or len(body) != KEY_BYTES:
            raise OpenError("format")
        return SecretKey(body)

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap the same key under the active version; see `RootKey.rewrap`."""
        return await self.wrap(await self.unwrap(wrapped, context), context)

    async def health(self) -> None:
        """Return: keys in memory are always there."""

    async def aclose(self) -> None:
        """Return: there is nothing to give back."""
