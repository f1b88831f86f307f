"""API keys: how they look, and how a presented one is compared with a stored one.

``sr_live_<12 base62 key id>_<43 base62 secret><6 base62 CRC-32>``: the prefix and the checksum let secret
scanners find a leaked key offline and let a typo be refused before any database work; the id may be logged,
the rest never. Its secret says that this deployment made it: 190 bits are random, the rest is a MAC of them and of the
id, so that a key that is made up is told from one that was given out without any database work. That vouches for
nothing else: whether the key is one, and what it may do, is in the database. What is stored is an HMAC under the
pepper: the secret is random, so a slow hash would only be a lever for denial of service, and the pepper keeps a stolen
database from confirming a leaked key. The HMAC covers whose key it is, what it may do and until when, so that one who
writes to the database cannot give a key another tenant or one more permission. What may change without the secret (that
it was revoked) and what came later (what it may grant) is under a second MAC, the seal of `storage.keys.key_seals`.
This module does no I/O.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

import msgspec

from storage.encoding import encode_json
from storage.keys.key_seals import FIRST_PEPPER_VERSION, Peppers, microseconds
from storage.model import EXPORT_PERMISSION, ApiKeyRecord, KeySeal

EVENT_PERMISSION = "event:read"
DECISION_PERMISSION = "approval:decide"
OPERATOR_PERMISSIONS = frozenset({"operator", "decrypt-any"})
# To see what is asked, to open it, to decide it; and to name the person who does, which a backend of many people may.
APPROVAL_PERMISSIONS = frozenset({"approval:read", "approval:open", "approval:decide", "approval:assert"})
APPROVER = tuple(sorted(APPROVAL_PERMISSIONS - {"approval:assert"}))
SUBJECT_PERMISSIONS = frozenset({"state:read", "state:write", "state:delete", EXPORT_PERMISSION, *APPROVER})
_TENANT_PERMISSIONS = SUBJECT_PERMISSIONS | APPROVAL_PERMISSIONS | {EVENT_PERMISSION, "subject:act_as", "tenant:admin"}
# A founding or a recovered key administers, and opens no state; it makes keys that do. The two exceptions to "no key
# makes another that may do more than itself": an operator made it, who may do none of this.
ADMINISTRATION = ("tenant:admin",)
MAC_PURPOSE = "stateroom/v1/api-key"
Status = Literal["active", "revoked", "expired", "damaged"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX = "sr_live_"
_ID_DIGITS = 12
_RANDOM_DIGITS = 32  # 190 bits
_ORIGIN_DIGITS = 11  # 65 bits: of the secret's 43; a guess is right once in 5 * 10^19, and then it is looked up
_ORIGIN_PURPOSE = b"stateroom/v1/api-key-origin"
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


def tenant_permissions(*, may_export: bool, may_hear: bool, may_decide: bool) -> tuple[str, ...]:
    """What a tenant's keys may do at all.

    Args:
        may_export: Whether no build runs that cannot list keys that export.
        may_hear: Whether none runs that cannot list keys that hear a tenant's events.
        may_decide: Whether none runs that cannot list keys that decide about approvals.
    """
    unknown = {EXPORT_PERMISSION: may_export, EVENT_PERMISSION: may_hear}
    unknown |= dict.fromkeys(APPROVAL_PERMISSIONS, may_decide)
    return tuple(sorted(_TENANT_PERMISSIONS - {name for name, known in unknown.items() if not known}))


def key_id_of(digest: bytes) -> str:
    """The key id that at least 16 bytes of a digest spell."""
    return _base62(int.from_bytes(digest) % 62**_ID_DIGITS, _ID_DIGITS)


def generate(peppers: Peppers, key_id: str | None = None) -> PresentedKey:
    """Make a key with 190 random bits from the operating system; its id is random, too, where none is given."""
    if key_id is None:
        key_id = _random(_ID_DIGITS)
    drawn = _random(_RANDOM_DIGITS)
    return PresentedKey(key_id, drawn + _origin(peppers.derive(_ORIGIN_PURPOSE)[0], key_id, drawn))


def was_made_here(peppers: Peppers, presented: PresentedKey) -> bool:
    """Whether a gateway with one of these peppers made the key; older releases made keys that do not say so."""
    drawn, claimed = presented.secret[:_RANDOM_DIGITS], presented.secret[_RANDOM_DIGITS:]
    made = [_origin(each, presented.key_id, drawn) for each in peppers.derive(_ORIGIN_PURPOSE)]
    return any(hmac.compare_digest(each, claimed) for each in made)


def _random(digits: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(digits))


def _origin(key: bytes, key_id: str, drawn: str) -> str:
    made = hmac.digest(key, f"{key_id}_{drawn}".encode("ascii"), hashlib.sha256)
    return _base62(int.from_bytes(made) % 62**_ORIGIN_DIGITS, _ORIGIN_DIGITS)


def parse(text: str) -> PresentedKey | None:
    """Read a key; None when its form or its checksum is wrong."""
    match = _FORM.match(text)
    if match is None or not hmac.compare_digest(_checksum(text[:-_CHECKSUM_DIGITS]), match[3]):
        return None
    return PresentedKey(match[1], match[2])


def mac(pepper: bytes, secret: str, record: ApiKeyRecord) -> bytes:
    """What is stored in place of ``secret`` (RFC 2104, 32 bytes), bound to what ``record`` says the key may do."""
    bound = [
        MAC_PURPOSE,
        secret,
        record.key_id,
        record.kind,
        None if record.tenant_id is None else str(record.tenant_id),
        record.subject_id,
        list(record.permissions),
        microseconds(record.expires_at),
    ]
    return hmac.digest(pepper, encode_json(bound), hashlib.sha256)


def sealed(peppers: Peppers, secret: str, record: ApiKeyRecord, grants: tuple[str, ...] | None = None) -> ApiKeyRecord:
    """``record`` with both MACs, under the active pepper.

    Args:
        peppers: The deployment's.
        secret: The key's.
        record: What it may do.
        grants: What keys that it makes may be allowed; None: as the record says, which is at first what it may do.
    """
    active = peppers.active
    stamped = replace(record, mac=mac(active.secret, secret, record), pepper_version=active.version)
    return peppers.seal(stamped, grants)


_NOBODY = ApiKeyRecord(
    key_id="",
    kind="service",
    name="",
    tenant_id=None,
    subject_id=None,
    permissions=(),
    mac=bytes(32),
    pepper_version=FIRST_PEPPER_VERSION,
    created_at=_EPOCH,
    expires_at=None,
    revoked_at=None,
    last_used_at=None,
)


def matches(peppers: Peppers, presented: PresentedKey, stored: ApiKeyRecord | None) -> bool:
    """Whether ``presented`` is the key that ``stored`` was made for, and its seal, if it has one, is of this row.

    It is the same work when there is none.
    """
    record = stored or _NOBODY
    pepper = peppers.of_version(record.pepper_version)
    used = pepper or peppers.active
    equal = hmac.compare_digest(mac(used.secret, presented.secret, record), record.mac)
    vouched = peppers.is_authentic(record) or record.seal is None
    return equal and vouched and pepper is not None and stored is not None


def status_of(record: ApiKeyRecord, peppers: Peppers, now: datetime) -> Status:
    """Whether a key is of use, as far as that can be told without its secret."""
    # A gateway of the release before revokes without a seal.
    if record.seal is not None and not any(
        peppers.is_authentic(each) for each in (record, replace(record, revoked_at=None))
    ):
        return "damaged"
    if record.revoked_at is not None:
        return "revoked"
    return "active" if record.is_active(now) else "expired"


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that is to be made.

    Attributes:
        kind: The kind of caller it is for.
        permissions: The permissions it has.
        now: When it is made.
        grants: What keys that it makes may be allowed; None: what it may do itself.
        name: A note on what it is for.
        tenant_id: The tenant it belongs to; None: it is an operator's.
        subject_id: The one subject of a subject's key.
        expires_at: When it ends; None: never.
        principal: Who stands behind it; None: nothing is said of that, and it is one by itself.
        made_by: The id of the key that makes it; None: none does.
    """

    kind: Literal["subject", "service", "operator"]
    permissions: tuple[str, ...]
    now: datetime
    grants: tuple[str, ...] | None = None
    name: str = ""
    tenant_id: UUID | None = None
    subject_id: str | None = None
    expires_at: datetime | None = None
    principal: str | None = None
    made_by: str | None = None


def mint(peppers: Peppers, new: NewKey, key: PresentedKey | None = None) -> tuple[ApiKeyRecord, str]:
    """Make a key: the record to store, and the text to show once.

    Args:
        peppers: The peppers of the deployment.
        new: The kind, permissions and end of the key.
        key: The id and secret, where they are known already; None: new ones.
    """
    key = key or generate(peppers)
    record = ApiKeyRecord(
        key_id=key.key_id,
        kind=new.kind,
        name=new.name,
        tenant_id=new.tenant_id,
        subject_id=new.subject_id,
        permissions=new.permissions,
        mac=b"",
        pepper_version=peppers.active.version,
        created_at=new.now,
        expires_at=new.expires_at,
        revoked_at=None,
        last_used_at=None,
        seal=KeySeal(new.permissions, b"", peppers.active.version, new.principal, new.made_by),
    )
    return sealed(peppers, key.secret, record, new.grants), key.reveal()
