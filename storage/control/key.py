"""The deployment's control key: what proves the rows that steer the gateway.

Owns what its MACs are made with, and the bytes that they are over, in every format. Which rows there are, and in which
format they are written, is `storage.control.rows`'s affair.
"""

from dataclasses import dataclass
from uuid import UUID

from crypto import Field, KeyUnavailable, SecretKey, keyed_digest
from crypto.context import encode_fields
from storage.control.deployment_keys import CONTROL, Deployment, DeploymentKey

# A MAC of the first format does not cover the format's number; those of all later ones do.
FIRST_FORMAT = 1
NEWEST_FORMAT = 2
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

    def __init__(self, deployment: Deployment) -> None:
        self._deployment_id = deployment.deployment_id
        self._stored = DeploymentKey(deployment, CONTROL)
        self._subkey: SecretKey | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the key is at hand."""
        return self._subkey is not None

    async def ready(self) -> None:
        """Have the key at hand, which is made if there is none.

        Raises:
            CryptoError: The root key does not wrap or open it now.
            IntegrityFailure: The stored key does not match its check value.
            Unavailable: The database cannot be reached.
        """
        if self._subkey is None:
            self._subkey = (await self._stored.newest()).derive(_MAC, self._deployment_id)

    def mac(self, row: Row, mac_format: int) -> bytes:
        """The MAC of a row in one of the formats this build knows.

        Raises:
            KeyUnavailable: This is not `ready`.
        """
        if self._subkey is None:
            raise KeyUnavailable(1.0)
        return keyed_digest(self._subkey.borrow(), row.encoded(mac_format))
