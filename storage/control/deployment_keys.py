"""The deployment's own keys: of each purpose one, made once, wrapped by the root key, and kept opened.

Owns making them and reading them back: as every key, one is stored, read again, and only then used or shown, so that
processes that make it at the same moment use the same. Beside the wrapped key stands its public half, or its check
value, by which a stored key that was exchanged is noticed. Keys are wrapped again when the root key is replaced
(`storage.key_lifecycle.rotation`); they do not rotate by themselves, and versions are counted so that they can.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from crypto import RootKey, SecretKey, SigningKey, TransferKey, WrappedKey, root_context
from storage.clock import Clock
from storage.errors import IntegrityFailure, Unavailable
from storage.postgres.unit_of_work import Observer, UnitOfWork
from storage.scope import OperatorScope
from storage.statements.keys import deployment_keys as sql
from storage.statements.keys.keys import wrapping_columns

K = TypeVar("K")

# Wrappings of the deployment's own keys are bound to no tenant.
NO_TENANT: Final = UUID(int=0)
_FIRST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Deployment:
    """What everything that keys of a deployment are made and opened with has in common."""

    unit_of_work: UnitOfWork
    root_key: RootKey
    deployment_id: UUID
    clock: Clock
    observer: Observer


@dataclass(frozen=True, slots=True)
class Purpose(Generic[K]):
    """What one of the deployment's keys is for.

    Attributes:
        name: The word that the key is stored under, and that its wrapping is bound to.
        opened: The function that makes the key of its secret.
        public_of: The function that tells what stands beside the wrapped key.
        has_later_versions: Whether a version after the first is one of its keys, and not a row that was edited.
    """

    name: str
    opened: Callable[[SecretKey], K]
    public_of: Callable[[K], bytes]
    has_later_versions: bool = False


AUDIT: Final = Purpose("audit", SigningKey, lambda key: key.public_key)
TRANSFER: Final = Purpose("transfer", TransferKey, lambda key: key.public_key.raw, has_later_versions=True)
CONTROL: Final[Purpose[SecretKey]] = Purpose("control", lambda secret: secret, SecretKey.kcv)
PURPOSES: Final[Mapping[str, Purpose[Any]]] = {each.name: each for each in (AUDIT, TRANSFER, CONTROL)}


class DeploymentKey(Generic[K]):
    """The key of one purpose."""

    def __init__(self, deployment: Deployment, purpose: Purpose[K]) -> None:
        self._deployment = deployment
        self._purpose = purpose
        self._newest: K | None = None
        self._making = asyncio.Lock()

    async def newest(self) -> K:
        """The key to use, which is made if there is none.

        Raises:
            CryptoError: The root key does not wrap or open it now.
            IntegrityFailure: What stands beside the stored key is not the key's.
            Unavailable: The database cannot be reached.
        """
        if self._newest is None:
            async with self._making:
                if self._newest is None and not await self.stored():
                    await self._make()
                    await self.stored()
        if self._newest is None:
            raise Unavailable(f"the deployment's key of purpose {self._purpose.name} was not stored")
        return self._newest

    async def stored(self) -> list[K]:
        """Every version that is stored, opened, the newest last.

        Raises:
            CryptoError, IntegrityFailure, Unavailable: As `newest`.
        """
        opened = [await self._opened(row) for row in await self._rows()]
        if opened:
            self._newest = opened[-1]
        return opened

    async def stored_public(self) -> bytes | None:
        """What stands beside the newest stored version, or None where there is none: the root key is not asked.

        Raises:
            Unavailable: The database cannot be reached.
        """
        rows = await self._rows()
        return rows[-1].public if rows else None

    async def _rows(self) -> list[sql.DeploymentKeyRow]:
        async with self._deployment.unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(sql.KEYS_OF_PURPOSE, purpose=self._purpose.name)
        return [row for row in rows if self._purpose.has_later_versions or row.key_version == _FIRST_VERSION]

    async def _opened(self, row: sql.DeploymentKeyRow) -> K:
        wrapped = WrappedKey(row.provider, row.root_key_id, row.root_key_version, row.wrapped)
        secret = await self._deployment.root_key.unwrap(wrapped, self._context(row.key_version))
        opened = self._purpose.opened(secret)
        if self._purpose.public_of(opened) != row.public:
            self._deployment.observer.integrity_failure()
            raise IntegrityFailure(
                f"what stands beside the stored key of purpose {self._purpose.name} is not the key's"
            )
        return opened

    async def _make(self) -> None:
        secret = SecretKey.generate()
        wrapped = await self._deployment.root_key.wrap(secret, self._context(_FIRST_VERSION))
        async with self._deployment.unit_of_work.begin(OperatorScope()) as transaction:
            await transaction.run(
                sql.ADD_KEY,
                purpose=self._purpose.name,
                key_version=_FIRST_VERSION,
                **wrapping_columns(wrapped),
                public=self._purpose.public_of(self._purpose.opened(secret)),
                now=self._deployment.clock.now(),
            )

    def _context(self, key_version: int) -> dict[str, str]:
        return root_context(self._deployment.deployment_id, NO_TENANT, self._purpose.name, key_version)
