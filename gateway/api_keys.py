"""API keys: how they look, and how a presented one is compared with a stored one.

``sr_live_<12 base62 key id>_<43 base62 secret><6 base62 CRC-32>``: the prefix and the checksum let secret
scanners find a leaked key offline and let a typo be refused before any database work; the id may be logged,
the rest never. What is stored is an HMAC under the pepper: the secret has 256 bits, so a slow hash would
only be a lever for denial of service, and the pepper keeps a stolen database from confirming a leaked key.
The HMAC covers whose key it is, what it may do and until when, so that whoever writes to the database cannot
give a key another tenant or one more permission; that it was revoked is not covered and can be undone there.
This module does no I/O.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from storage.model import ApiKeyRecord

PEPPER_VERSION = 1  # recorded with every key, so that a second pepper can be told apart
MAC_PURPOSE = "stateroom/v1/api-key"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX = "sr_live_"
_ID_DIGITS = 12
_SECRET_DIGITS = 43  # the fewest base62 digits that hold 256 bits
_CHECKSUM_DIGITS = 6  # the fewest that hold 32 bits
_FORM = re.compile(r"sr_live_([0-9A-Za-z]{12})_([0-9A-Za-z]{43})([0-9A-Za-z]{6})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A well-formed key: its public id and its secret."""

    key_id: str
    secret: str = field(repr=False)

    def __str__(self) -> str:
        return f"{_PREFIX}{self.key_id}_…"

    def reveal(self) -> str:
        """The whole key, for the one answer that shows it."""
        body = f"{_PREFIX}{self.key_id}_{self.secret}"
        return body + _checksum(body)


def _base62(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, 62)
        text = _ALPHABET[digit] + text
    return text


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CHECKSUM_DIGITS)


def key_id_of(digest: bytes) -> str:
    """The key id that at least 16 bytes of a digest spell."""
    return _base62(int.from_bytes(digest) % 62**_ID_DIGITS, _ID_DIGITS)


def generate(key_id: str | None = None) -> PresentedKey:
    """Make a key with a 256-bit secret from the operating system; its id is random, too, where none is given."""
    if key_id is None:
        key_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_DIGITS))
    return PresentedKey(key_id, _base62(secrets.randbits(256), _SECRET_DIGITS))


def parse(text: str) -> PresentedKey | None:
    """Read a key; None when its form or its checksum is wrong."""
    match = _FORM.match(text)
    if match is None or not hmac.compare_digest(_checksum(text[:-_CHECKSUM_DIGITS]), match[3]):
        return None
    return PresentedKey(match[1], match[2])


def mac(pepper: bytes, secret: str, record: ApiKeyRecord) -> bytes:
    """What is stored in place of ``secret`` (RFC 2104, 32 bytes), bound to what ``record`` says the key may do."""
    expires_at = None if record.expires_at is None else (record.expires_at - _EPOCH) // timedelta(microseconds=1)
    bound = [
        MAC_PURPOSE,
        secret,
        record.key_id,
        record.kind,
        None if record.tenant_id is None else str(record.tenant_id),
        record.subject_id,
        list(record.permissions),
        expires_at,
    ]
    return hmac.digest(pepper, msgspec.json.encode(bound), hashlib.sha256)


def sealed(pepper: bytes, secret: str, record: ApiKeyRecord) -> ApiKeyRecord:
    """``record`` with its MAC."""
    return replace(record, mac=mac(pepper, secret, record))


_NOBODY = ApiKeyRecord(
    key_id="",
    kind="service",
    name="",
    tenant_id=None,
    subject_id=None,
    permissions=(),
    mac=bytes(32),
    pepper_version=PEPPER_VERSION,
    created_at=_EPOCH,
    expires_at=None,
    revoked_at=None,
    last_used_at=None,
)


def matches(pepper: bytes, presented: PresentedKey, stored: ApiKeyRecord | None) -> bool:
    """Whether ``presented`` is the key that ``stored`` was made for; the same work when there is none."""
    record = stored or _NOBODY
    equal = hmac.compare_digest(mac(pepper, presented.secret, record), record.mac)
    return equal and stored is not None


def mint(
    pepper: bytes,
    *,
    kind: Literal["subject", "service", "operator"],
    permissions: tuple[str, ...],
    now: datetime,
    name: str = "",
    tenant_id: UUID | None = None,
    subject_id: str | None = None,
    expires_at: datetime | None = None,
    key_id: str | None = None,
) -> tuple[ApiKeyRecord, str]:
    """Make a key: the record to store, and the text to show once."""
    key = generate(key_id)
    record = ApiKeyRecord(
        key_id=key.key_id,
        kind=kind,
        name=name,
        tenant_id=tenant_id,
        subject_id=subject_id,
        permissions=permissions,
        mac=b"",
        pepper_version=PEPPER_VERSION,
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
        last_used_at=None,
    )
    return sealed(pepper, key.secret, record), key.reveal()
