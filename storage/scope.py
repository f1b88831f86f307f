"""Scopes: where an operation may look, as types that cannot be skipped.

Every verb of storage takes a scope; there is no other way to a tenant's rows. A `Scope` is made from an
authenticated principal, never from a row. Values that reach SQL as literals are checked here.
"""

import re
from dataclasses import dataclass, field
from uuid import UUID

from storage.errors import InvalidState

SHARED_SUBJECT = "~shared"
ID_BYTES_MAX = 255
CLIENT_SHARE_BYTES = 32
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}\Z", re.ASCII)


def is_plain_id(text: str) -> bool:
    """Whether ``text`` travels in a path as it is; any other id travels as ``~`` + base64url."""
    return _PLAIN.match(text) is not None


def check_id(text: str, what: str) -> str:
    """Return ``text`` if it can be an identifier: 1-255 bytes of UTF-8, no NUL.

    Raises:
        InvalidState: it cannot.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidState(f"{what} is not valid Unicode") from None
    if not 1 <= size <= ID_BYTES_MAX or "\0" in text:
        raise InvalidState(f"{what} must have 1 to {ID_BYTES_MAX} bytes and no NUL")
    return text


def check_subject(text: str) -> str:
    """Return ``text`` if it can name a subject: an id that does not begin with ``~``, or ``~shared``.

    Raises:
        InvalidState: it cannot.
    """
    if text.startswith("~") and text != SHARED_SUBJECT:
        raise InvalidState("a subject id cannot begin with '~'")
    return check_id(text, "subject id")


@dataclass(frozen=True, slots=True)
class TenantScope:
    """One tenant's own records (API keys, settings), but no subject's state."""

    tenant_id: UUID


@dataclass(frozen=True, slots=True)
class Scope:
    """One subject of one tenant: where state lives."""

    tenant_id: UUID
    subject_id: str

    def __post_init__(self) -> None:
        check_subject(self.subject_id)


@dataclass(frozen=True, slots=True)
class OperatorScope:
    """The list of tenants and operator credentials. Opens no state: it has no subject.

    ``founding`` is the tenant an operator is working on at this moment: creating it, shredding it, or recording in its
    audit log that its state is about to be read. It reaches that tenant's records, no subject's rows.
    """

    founding: UUID | None = None


@dataclass(frozen=True, slots=True)
class TenantListing:
    """The clear columns of one tenant's checkpoints, over all of its subjects. Opens nothing."""

    tenant_id: UUID


@dataclass(frozen=True, slots=True)
class TenantRelay:
    """The queue and the numbers of one tenant's events, over all of its subjects. Opens nothing."""

    tenant_id: UUID


@dataclass(frozen=True, slots=True, eq=False)
class ClientShare:
    """What a client adds to the keys of its threads, for one request. It is no part of a scope, and never stored.

    Compared by identity, so that it serves as no cache's key, and not shown.
    """

    material: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.material) != CLIENT_SHARE_BYTES:
            raise InvalidState(f"a client-held share has {CLIENT_SHARE_BYTES} bytes")


AnyScope = Scope | TenantScope | TenantListing | TenantRelay | OperatorScope
