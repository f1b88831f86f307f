"""The deployment's transfer key: what exports for its tenants are sealed for.

Owns making it, once, wrapped by the root key, and keeping it opened. As every key it is stored, read back, and only
then used or shown. It does not rotate by itself; versions are counted so that it can.
"""

from uuid import UUID

from crypto import RootKey, SecretKey, TransferKey, TransferRecipient, WrappedKey
from storage.clock import Clock
from storage.errors import IntegrityFailure, Unavailable
from storage.postgres import transfer as sql
from storage.postgres.unit_of_work import Observer, UnitOfWork
from storage.scope import OperatorScope, TenantScope

TRANSFER_KEY_VERSION = 1


class TransferKeys:
    """Gets or makes the transfer key."""

    def __init__(
        self, unit_of_work: UnitOfWork, root_key: RootKey, deployment_id: UUID, clock: Clock, observer: Observer
    ) -> None:
        self._unit_of_work = unit_of_work
        self._root_key = root_key
        self._deployment_id = deployment_id
        self._clock = clock
        self._observer = observer
        self._opened: dict[str, TransferKey] = {}
        self._newest: TransferKey | None = None

    async def newest(self) -> TransferKey:
        """The key to seal for, which is made if there is none.

        Raises:
            CryptoError: the root key does not wrap or open it now.
            IntegrityFailure: the stored public half is not the key's.
        """
        if self._newest is None and not await self._load():
            await self._create()
            await self._load()
        if self._newest is None:
            raise Unavailable("the transfer key was not stored")
        return self._newest

    async def recipient(self, scope: TenantScope) -> TransferRecipient:
        """What others seal for, so that a tenant takes it in and no other one.

        Raises:
            CryptoError, IntegrityFailure: as `newest`.
        """
        return TransferRecipient((await self.newest()).public_key, scope.tenant_id)

    async def of(self, fingerprint: str) -> TransferKey | None:
        """The key with a fingerprint, whatever its version, or None.

        Raises:
            CryptoError, IntegrityFailure: as `newest`.
        """
        if fingerprint not in self._opened:
            await self._load()
        return self._opened.get(fingerprint)

    async def _load(self) -> bool:
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch(sql.TRANSFER_KEYS)
        for row in rows:
            wrapped = WrappedKey(
                provider=row["provider"],
                root_key_id=row["root_key_id"],
                root_key_version=row["root_key_version"],
                ciphertext=row["wrapped"],
            )
            transfer_key = TransferKey(await self._root_key.unwrap(wrapped, self._root_context(row["key_version"])))
            if transfer_key.public_key.raw != row["public"]:
                self._observer.integrity_failure()
                raise IntegrityFailure("the stored public half of the transfer key is not the key's")
            self._opened[transfer_key.public_key.fingerprint] = transfer_key
            self._newest = transfer_key
        return bool(rows)

    async def _create(self) -> None:
        secret = SecretKey.generate()
        wrapped = await self._root_key.wrap(secret, self._root_context(TRANSFER_KEY_VERSION))
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await transaction.execute(
                sql.ADD_TRANSFER_KEY,
                TRANSFER_KEY_VERSION,
                wrapped.provider,
                wrapped.root_key_id,
                wrapped.root_key_version,
                wrapped.ciphertext,
                TransferKey(secret).public_key.raw,
                self._clock.now(),
            )

    def _root_context(self, key_version: int) -> dict[str, str]:
        return {
            "deployment": str(self._deployment_id),
            "tenant": str(UUID(int=0)),  # the deployment's own
            "purpose": "transfer",
            "version": str(key_version),
        }
