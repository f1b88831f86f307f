"""Bodies of API keys."""

from datetime import datetime
from typing import Literal

from gateway.wire.base import Name, Request, Response, Title

Permission = Literal[
    "state:read",
    "state:write",
    "state:delete",
    "state:export",
    "event:read",
    "approval:read",
    "approval:open",
    "approval:decide",
    "approval:assert",
    "subject:act_as",
    "tenant:admin",
    "operator",
    "decrypt-any",
]


class WhoAmI(Response):
    """Who the credential is. ``grants``: what keys that it makes may be allowed, where it has ``tenant:admin``."""

    key_id: str
    kind: Literal["subject", "service", "operator"]
    tenant_id: str | None
    subject_id: str | None
    permissions: list[Permission]
    grants: list[Permission]
    expires_at: datetime | None
    principal: str


class ApiKeyRequest(Request):
    """A new API key. ``subject`` keys are bound to ``subject_id``; ``service`` keys to the tenant.

    Neither ``permissions`` nor ``grants`` can exceed what the key that asks grants. ``grants`` is what keys that the
    new one makes may be allowed; absent: its permissions. ``principal`` is who stands behind it, by whom votes on
    approvals are counted; absent: the new key itself, or the principal of the key that asks, if that one decides.
    """

    kind: Literal["subject", "service"]
    name: Title = ""
    subject_id: str | None = None
    permissions: tuple[Permission, ...] = ("state:read", "state:write", "state:delete")
    grants: tuple[Permission, ...] | None = None
    expires_at: datetime | None = None
    principal: Name | None = None


class ApiKey(Response):
    """An API key without its secret.

    ``damaged``: somebody edited its row in the database, or sealed it under a pepper that this gateway was not given;
    it opens nothing. ``principal``: who stands behind it, by whom votes on approvals are counted; ``made_by``: the key
    that made it, where that is known.
    """

    key_id: str
    kind: Literal["subject", "service", "operator"]
    name: str
    tenant_id: str | None
    subject_id: str | None
    permissions: list[Permission]
    grants: list[Permission]
    status: Literal["active", "revoked", "expired", "damaged"]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    principal: str
    made_by: str | None


class ApiKeyCreated(ApiKey):
    """An API key with its secret, which is shown this once: null where an Idempotency-Key says that it is a repeat."""

    api_key: str | None


class ApiKeyPage(Response):
    """API keys, newest first."""

    api_keys: list[ApiKey]
    next_cursor: str | None
