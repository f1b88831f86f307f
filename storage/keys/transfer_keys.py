"""The deployment's transfer key: what exports for its tenants are sealed for.

Owns which of its versions opens a file. Making it and keeping it opened is
`storage.control.deployment_keys.DeploymentKey`'s affair.
"""

from crypto import TransferKey, TransferRecipient
from storage.control.deployment_keys import TRANSFER, Deployment, DeploymentKey
from storage.scope import TenantScope


class TransferKeys:
    """Gets or makes the transfer key."""

    def __init__(self, deployment: Deployment) -> None:
        self._stored = DeploymentKey(deployment, TRANSFER)
        self._opened: dict[str, TransferKey] = {}

    async def newest(self) -> TransferKey:
        """The key to seal for, which is made if there is none.

        Raises:
            CryptoError: The root key does not wrap or open it now.
            IntegrityFailure: The stored public half is not the key's.
            Unavailable: The database cannot be reached.
        """
        return await self._stored.newest()

    async def recipient(self, scope: TenantScope) -> TransferRecipient:
        """What others seal for, so that a tenant takes it in and no other one.

        Raises:
            CryptoError, IntegrityFailure, Unavailable: As `newest`.
        """
        return TransferRecipient((await self.newest()).public_key, scope.tenant_id)

    async def of(self, fingerprint: str) -> TransferKey | None:
        """The key with a fingerprint, whatever its version, or None.

        Raises:
            CryptoError, IntegrityFailure, Unavailable: As `newest`.
        """
        if fingerprint not in self._opened:
            self._opened.update({key.public_key.fingerprint: key for key in await self._stored.stored()})
        return self._opened.get(fingerprint)
