"""Several root keys as one: the active one wraps, and those before it still unwrap what they made.

Owns which root key a wrapping belongs to, so that a deployment can move to another root key while it serves: list the
new one second in every process, then first, rewrap every tenant key, then take the old one off the list. Until then
a holder of the old one can still make wrappings this process accepts. A tenant may have root keys of its own; no other
tenant's wrapping is ever taken to them. Its tombstones are the deployment's: a tenant that takes its key away can be
erased.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from crypto.errors import RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots.base import TOMBSTONE_PURPOSE, RootKey, WrappedKey, checked_context


class RootKeys:
    """A `RootKey` made of others. The first of a list is active; those after it only unwrap."""

    def __init__(self, deployment_roots: Sequence[RootKey], tenant_roots: Mapping[UUID, Sequence[RootKey]]) -> None:
        """Take the root keys.

        Args:
            deployment_roots: For every tenant without its own. A tenant with its own comes from here, so these
                unwrap its earlier keys, too.
            tenant_roots: By tenant.

        Raises:
            RootKeyInvalid: A list is empty.
        """
        if not deployment_roots or not all(tenant_roots.values()):
            raise RootKeyInvalid("a deployment needs a root key besides those of single tenants")
        self._deployment_roots = tuple(deployment_roots)
        self._tenant_roots = {tenant_id: tuple(roots) for tenant_id, roots in tenant_roots.items()}

    @property
    def provider(self) -> str:
        """The deployment's active root key's; a wrapping names the one that really made it."""
        return self._deployment_roots[0].provider

    def recognises(self, wrapped: WrappedKey) -> bool:
        """See `RootKey.recognises`."""
        return any(root.recognises(wrapped) for root in self._all())

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap a key under the tenant's active root key; see `RootKey.wrap`."""
        return await self._roots(context)[0].wrap(key, context)

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """Unwrap a key under the root key that made it; see `RootKey.unwrap`."""
        return await self._maker(wrapped, context).unwrap(wrapped, context)

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap the same key under the tenant's active root key; see `RootKey.rewrap`."""
        active, maker = self._roots(context)[0], self._maker(wrapped, context)
        if maker is active:
            return await active.rewrap(wrapped, context)
        return await active.wrap(await maker.unwrap(wrapped, context), context)

    async def health(self) -> None:
        """Ask every root key of the deployment. A tenant's own is its owner's to withdraw, and is not asked."""
        for root in self._deployment_roots:
            await root.health()

    async def aclose(self) -> None:
        """Close every root key."""
        for root in self._all():
            await root.aclose()

    def _all(self) -> tuple[RootKey, ...]:
        return sum(self._tenant_roots.values(), self._deployment_roots)

    def _roots(self, context: Mapping[str, str]) -> tuple[RootKey, ...]:
        named = checked_context(context)
        own = self._tenant_roots.get(UUID(named["tenant"]), ())
        if named["purpose"] == TOMBSTONE_PURPOSE:
            return self._deployment_roots + own  # its own, too, wrapped those of earlier releases
        return own + self._deployment_roots

    def _maker(self, wrapped: WrappedKey, context: Mapping[str, str]) -> RootKey:
        roots = self._roots(context)
        # What nobody recognises is for the active one to refuse, or to know after a look at its service.
        return next((root for root in roots if root.recognises(wrapped)), roots[0])
