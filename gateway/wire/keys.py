"""Bodies of tenants', subjects' and root keys."""

from datetime import datetime
from typing import Literal

from gateway.wire.base import Name, Request, Response
from gateway.wire.jobs import Job


class RotateRequest(Request):
    """Which key to rotate: the tenant's, or a subject's data key (then name the subject).

    ``complete``, of a subject's: archives and segments are written again, too, so that the old version can go.
    """

    level: Literal["tenant", "subject"]
    subject_id: Name | None = None
    complete: bool = False


class TenantKey(Response):
    """One version of the tenant's key. ``subject_keys`` counts what it wraps."""

    key_version: int
    state: str
    provider: str
    root_key_version: str
    created_at: datetime
    destroyed_at: datetime | None
    subject_keys: int


class SubjectKey(Response):
    """One version of a subject's data or id key.

    ``archived_bytes`` are those of archives and segments that need it; ``shred_effective_at`` is when the last backup
    that holds a shredded key has expired.
    """

    purpose: str
    key_version: int
    tenant_key_version: int
    state: str
    archived_bytes: int
    created_at: datetime
    destroyed_at: datetime | None
    shred_effective_at: datetime | None


class KeyStatus(Response):
    """Key versions, oldest first; ``subject_keys`` is null when no subject was named."""

    tenant_keys: list[TenantKey]
    subject_keys: list[SubjectKey] | None


class RootKeyUse(Response):
    """How many tenant keys a version of a root key wraps."""

    provider: str
    root_key_id: str
    root_key_version: str
    tenant_keys: int


class RootKeyStatus(Response):
    """Every version of a root key that is still needed."""

    root_keys: list[RootKeyUse]


class ShredRequest(Request):
    """The confirmation: the id of what is to be shredded, once more."""

    confirm: Name


class Rotation(Job, kw_only=True):
    """The job that does the rest of a rotation; ``key_version`` is active now."""

    level: Literal["tenant", "subject"]
    key_version: int


class Shredded(Job, kw_only=True):
    """The keys are destroyed: every gateway refuses from its next request on. The job deletes the rows.

    ``shred_effective_at`` is when the last backup that holds the wrapped keys has expired; ``tombstone`` says whether
    the object store keeps a restored backup from bringing them back.
    """

    shred_effective_at: datetime
    tombstone: bool
