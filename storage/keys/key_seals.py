"""Seals of API keys' rows: what a gateway vouches for of a key without knowing its secret.

The first MAC of a key's row takes the secret, so that only the bearer of the key can have it checked, and nobody can
make it again when the key is revoked. A seal is the second one, under the pepper alone: it covers who the key is, what
it may do, what the keys that it makes may do, until when, and whether it was revoked; and, where that was said, who
stands behind it, which key made it, and when. So a revocation that somebody
takes back in the database is noticed, and so is a permission that was added, before anybody presents the key.

Owns the peppers, which are numbered: one makes MACs, the others still check them while keys move to it. A seal that was
deleted looks like one that was never made; whether that is damage is for the caller to say. It does not notice an older
authentic row that was put back. No I/O.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from storage.encoding import encode_json
from storage.model import ApiKeyRecord, KeySeal

SEAL_PURPOSE = "stateroom/v1/api-key-row"
# Of a seal that says who stands behind the key.
PRINCIPAL_PURPOSE = "stateroom/v2/api-key-row"
FIRST_PEPPER_VERSION = 1  # of a deployment that never changed its pepper
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime | None) -> int | None:
    """A moment as MACs cover it: whole microseconds since 1970."""
    return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Pepper:
    """What MACs of API keys are made with, and its number, which stands beside each of them."""

    version: int
    secret: bytes = field(repr=False)


class Peppers:
    """The peppers of a deployment.

    Attributes:
        active: Makes every new MAC.
    """

    def __init__(self, active: Pepper, accepted: Iterable[Pepper] = ()) -> None:
        self.active = active
        self._all = {each.version: each for each in (*accepted, active)}

    def derive(self, label: bytes) -> list[bytes]:
        """Keys of 32 bytes for another use, one from each pepper, the active one's first."""
        others = [each for each in self._all.values() if each is not self.active]
        return [hmac.digest(each.secret, label, hashlib.sha256) for each in (self.active, *others)]

    def of_version(self, version: int) -> Pepper | None:
        """The pepper of a version; None where this process was not given it."""
        return self._all.get(version)

    def seal(self, record: ApiKeyRecord, grants: tuple[str, ...] | None = None) -> ApiKeyRecord:
        """Return ``record`` with a seal of what it says, under the active pepper.

        ``grants``: what keys that it makes may be allowed; None: as the record says. Who stands behind the key, and
        what made it, stay as the record's seal says.
        """
        granted = record.grants if grants is None else grants
        before = record.seal or KeySeal(granted, b"", self.active.version)
        said = replace(before, grants=granted, pepper_version=self.active.version)
        return replace(record, seal=replace(said, mac=_mac(self.active, record, said)))

    def is_authentic(self, record: ApiKeyRecord) -> bool:
        """Whether a gateway of this deployment sealed the row as it is; a row without a seal is not.

        It takes the same time for every record.
        """
        seal = record.seal
        known = None if seal is None else self.of_version(seal.pepper_version)
        claimed = bytes(hashlib.sha256().digest_size) if seal is None else seal.mac
        said = seal or KeySeal(record.grants, b"", self.active.version)
        equal = hmac.compare_digest(_mac(known or self.active, record, said), claimed)
        return equal and known is not None


def _mac(pepper: Pepper, record: ApiKeyRecord, said: KeySeal) -> bytes:
    has_principal = said.principal is not None or said.made_by is not None
    bound = [
        PRINCIPAL_PURPOSE if has_principal else SEAL_PURPOSE,
        record.key_id,
        record.kind,
        None if record.tenant_id is None else str(record.tenant_id),
        record.subject_id,
        list(record.permissions),
        list(said.grants),
        microseconds(record.expires_at),
        microseconds(record.revoked_at),
    ]
    if has_principal:
        bound += [said.principal, said.made_by, microseconds(record.created_at)]
    return hmac.digest(pepper.secret, encode_json(bound), hashlib.sha256)
