"""The deployment's control key: what proves the rows that steer the gateway.

Owns making the key, once, wrapped by the root key, and keeping it opened; and the bytes that its MACs are over, in
every format. Which rows there are, and in which format they are written, is `storage.control.rows`'s affair.
"""

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from crypto import Field, KeyUnavailable, RootKey, SecretKey, WrappedKey, keyed_digest
from crypto.context import encode_fields
from storage.clock import Clock
from storage.errors import IntegrityFailure, Unavailable
from storage.postgres import control as sql
from storage.postgres.unit_of_work import Observer, UnitOfWork
from storage.scope import OperatorScope

CONTROL_KEY_VERSION = 1
# A MAC of the first format does not cover the format's number; those of all later ones do.
FIRST_FORMAT = 1
NEWEST_FORMAT = 2
_PURPOSE = "control"
_MAC = b"stateroom/v1/control-row"


@dataclass(frozen=True, slots=True)
class Row:
    """A row as its MAC proves it: what it is, whose, which, and what it says."""

    kind: str
    tenant_id: UUID
    name: tuple[Field, ...]
    says: tuple[Field, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(map(str, self.name))!r}"

    def encoded(self, mac_format: int) -> bytes:
        """What is under a MAC of this format: no two rows share their bytes."""
        fields = (self.kind, self.tenant_id, len(self.name), *self.name, *self.says)
        return encode_fields(fields if mac_format == FIRST_FORMAT else ("format", mac_format, *fields))


class ControlKey:
    """Makes MACs. `ready` comes first, and outside of transactions: it may have to ask the root key."""

    def __init__(
        self, unit_of_work: UnitOfWork, root_key: RootKey, deployment_id: UUID, clock: Clock, observer: Observer
    ) -> None:
        self._unit_of_work = unit_of_work
        self._root_key = root_key
        self._deployment_id = deployment_id
        self._clock = clock
        self._observer = observer
        self._subkey: SecretKey | None = None
        self._loading = asyncio.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether the key is at hand."""
        return self._subkey is not None

    async def ready(self) -> None:
        """Have the key at hand, which is made if there is none.

        Raises:
            CryptoError: the root key does not wrap or open it now.
            IntegrityFailure: the stored key does not match its check value.
            Unavailable: the database cannot be reached.
        """
        if self._subkey is not None:
            return
        async with self._loading:
            if self._subkey is None:
                opened = await self._load()
                if opened is None:
                    await self._create()
                    opened = await self._load()
                if opened is None:
                    raise Unavailable("the key of control rows was not stored")
                self._subkey = opened.derive(_MAC, self._deployment_id)

    def mac(self, row: Row, mac_format: int) -> bytes:
        """The MAC of a row in one of the formats this build knows.

        Raises:
            KeyUnavailable: nobody made this `ready`.
        """
        if self._subkey is None:
            raise KeyUnavailable(1.0)
        return keyed_digest(self._subkey.borrow(), row.encoded(mac_format))

    async def _load(self) -> SecretKey | None:
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            row: Any = await transaction.fetchrow(sql.CONTROL_KEY, CONTROL_KEY_VERSION)
        if row is None:
            return None
        wrapped = WrappedKey(
            provider=row["provider"],
            root_key_id=row["root_key_id"],
            root_key_version=row["root_key_version"],
            ciphertext=row["wrapped"],
        )
        opened = await self._root_key.unwrap(wrapped, self._root_context())
        if opened.kcv() != row["public"]:
            self._observer.integrity_failure()
            raise IntegrityFailure("the stored key of control rows does not match its check value")
        return opened

    async def _create(self) -> None:
        fresh = SecretKey.generate()
        wrapped = await self._root_key.wrap(fresh, self._root_context())
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await transaction.execute(
                sql.ADD_CONTROL_KEY,
                CONTROL_KEY_VERSION,
                wrapped.provider,
                wrapped.root_key_id,
                wrapped.root_key_version,
                wrapped.ciphertext,
                fresh.kcv(),
                self._clock.now(),
            )

    def _root_context(self) -> dict[str, str]:
        return {
            "deployment": str(self._deployment_id),
            "tenant": str(UUID(int=0)),  # the deployment's own
            "purpose": _PURPOSE,
            "version": str(CONTROL_KEY_VERSION),
        }
