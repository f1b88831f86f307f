"""Control rows: proof that what steers the gateway was written by a gateway.

A row that decides what is done to state (a version of a state schema, a retention policy with its hold, a job) carries
a MAC over its identity and all columns that mean something. Whoever acts on it or shows it checks that first, so that a
row written or edited by somebody else converts nothing, removes nothing and starts nothing. The key is one of the
deployment, not of a tenant: the operators' jobs belong to no tenant, and a shred goes on when the tenant has no keys.

Owns that key, and what is under the MACs. It does not notice a row that was deleted, nor an older authentic one of the
same identity that was put back.
"""

import asyncio
import hmac
from dataclasses import dataclass
from datetime import datetime
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
_PURPOSE = "control"
_MAC = b"stateroom/v1/control-row"
_ENDED = frozenset({"done", "failed"})


@dataclass(frozen=True, slots=True)
class Row:
    """A row as its MAC proves it: what it is, whose, which, and what it says."""

    kind: str
    tenant_id: UUID
    name: tuple[Field, ...]
    says: tuple[Field, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(map(str, self.name))!r}"

    def encoded(self) -> bytes:
        """What is under the MAC: no two rows share their bytes."""
        return encode_fields((self.kind, self.tenant_id, len(self.name), *self.name, *self.says))


def schema_row(tenant_id: UUID, schema: str, number: int, definition: bytes, created_at: datetime) -> Row:
    """A version of a state schema."""
    return Row("state-schema", tenant_id, (schema, number), (definition, created_at))


def policy_row(
    tenant_id: UUID, level: str, target: tuple[str, ...], policy: bytes, legal_hold: bool, updated_at: datetime
) -> Row:
    """What one level says of retention.

    Args:
        tenant_id: Whose.
        level: ``tenant``, ``agent``, ``ceilings`` or ``thread``.
        target: The agent, or the thread with its subject before it.
        policy: What is said, as it is stored.
        legal_hold: The column that statements look at.
        updated_at: Since when.
    """
    return Row("retention", tenant_id, (level, *target), (policy, int(legal_hold), updated_at))


def job_row(
    tenant_id: UUID,
    job_id: UUID,
    kind: str,
    target: str,
    state: str,
    position: str,
    error: str | None,
    note: str | None,
) -> Row:
    """A job: what it is, where it is, and how it ended; whether it waits or somebody works on it is left out."""
    outcome = state if state in _ENDED else "open"
    return Row("job", tenant_id, (job_id,), (kind, target, outcome, position, error, note))


class ControlRows:
    """Makes and checks the MACs. `ready` comes first, and outside of transactions: it may have to ask the root key."""

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

    def mac(self, row: Row) -> bytes:
        """What is stored with a row.

        Raises:
            KeyUnavailable: nobody made this `ready`.
        """
        if self._subkey is None:
            raise KeyUnavailable(1.0)
        return keyed_digest(self._subkey.borrow(), row.encoded())

    def is_authentic(self, row: Row, mac: bytes | None) -> bool:
        """Whether a gateway of this deployment wrote a row as it is.

        Raises:
            KeyUnavailable: as `mac`.
        """
        return mac is not None and hmac.compare_digest(self.mac(row), mac)

    def check(self, row: Row, mac: bytes | None) -> None:
        """Refuse a row that no gateway of this deployment wrote as it is.

        Raises:
            IntegrityFailure: it is one; counted.
            KeyUnavailable: as `mac`.
        """
        if not self.is_authentic(row, mac):
            self._observer.integrity_failure()
            raise IntegrityFailure(f"{row} was written or edited outside the gateway")

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
