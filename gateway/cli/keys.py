"""What is stored of an API key that the command line makes: never its secret."""

from datetime import datetime
from uuid import UUID

from gateway import api_keys
from storage.model import ApiKeyRecord


def operator_record(
    presented: api_keys.PresentedKey,
    pepper: bytes,
    *,
    name: str,
    now: datetime,
    permissions: tuple[str, ...] = ("operator",),
    expires_at: datetime | None = None,
) -> ApiKeyRecord:
    """Return the record of an operator's key."""
    record = ApiKeyRecord(
        key_id=presented.key_id,
        kind="operator",
        name=name,
        tenant_id=None,
        subject_id=None,
        permissions=permissions,
        mac=b"",
        pepper_version=api_keys.PEPPER_VERSION,
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
        last_used_at=None,
    )
    return api_keys.sealed(pepper, presented.secret, record)


def service_record(
    presented: api_keys.PresentedKey,
    pepper: bytes,
    tenant_id: UUID,
    *,
    permissions: tuple[str, ...],
    name: str,
    now: datetime,
) -> ApiKeyRecord:
    """Return the record of a tenant's service key."""
    record = ApiKeyRecord(
        key_id=presented.key_id,
        kind="service",
        name=name,
        tenant_id=tenant_id,
        subject_id=None,
        permissions=permissions,
        mac=b"",
        pepper_version=api_keys.PEPPER_VERSION,
        created_at=now,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
    )
    return api_keys.sealed(pepper, presented.secret, record)
