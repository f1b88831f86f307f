"""Bodies of tenants, their subjects and their quotas."""

from datetime import datetime
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from gateway.wire.base import Name, Reason, Request, Response


class TenantRequest(Request):
    """A tenant's name, which no other tenant has."""

    name: Name


class TenantSuspension(Request):
    """Why a tenant is suspended: recorded in its audit log, where it reads it once it is resumed."""

    reason: Reason


class TenantRecovery(Request):
    """Why an operator makes a key for a tenant: recorded in its audit log, where the tenant reads it."""

    reason: Reason
    expires_at: datetime | None = None


class Tenant(Response):
    """A tenant. ``suspended_at``: since when its keys are refused; null: they are not."""

    tenant_id: str
    name: str
    created_at: datetime
    suspended_at: datetime | None


class TenantCreated(Tenant):
    """A tenant with its first key, shown this once: it has ``tenant:admin``, and grants all that a tenant's key may do.

    It is null where an Idempotency-Key says that it is a repeat.
    """

    api_key: str | None


class TenantPage(Response):
    """Tenants, newest first."""

    tenants: list[Tenant]
    next_cursor: str | None


class Subject(Response):
    """A subject that has data."""

    subject_id: str


class SubjectPage(Response):
    """Subjects, by id."""

    subjects: list[Subject]
    next_cursor: str | None


QuotaBytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Quota(Request):
    """How many bytes a tenant may keep, at least one of both; null: as many as it likes, left out: as before."""

    quota_bytes: QuotaBytes | UnsetType | None = UNSET
    rows_quota_bytes: QuotaBytes | UnsetType | None = UNSET


class TenantUsage(Response):
    """What a tenant keeps, and what it may keep: in the object store, and as rows in the database.

    In the object store objects count sealed, with what is reserved for uploads; what was deleted counts until its
    object is gone, which is when the last backup that names it has expired. Rows are counted now and then: at
    ``rows_counted_at``, null before the first time. A null quota means as much as it likes.
    """

    tenant_id: str
    used_bytes: int
    quota_bytes: int | None
    rows_bytes: int | None
    rows_quota_bytes: int | None
    rows_counted_at: datetime | None
