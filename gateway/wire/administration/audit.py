"""Bodies of the audit log."""

from datetime import datetime
from typing import Any

from gateway.wire.base import Response


class AuditEvent(Response):
    """An event of the audit log. ``hash`` covers ``previous``, ``sequence`` and ``body``; both are in hex.

    ``body`` is the canonical text that was hashed; the other members repeat what it says, and are null where it cannot
    be read.
    """

    sequence: int
    at: datetime | None
    actor: str | None
    action: str | None
    target: str | None
    detail: dict[str, Any] | None
    body: str
    previous: str
    hash: str


class AuditPage(Response):
    """Events, oldest first. ``origin`` names the chain; ``next_cursor`` is null on the last page."""

    origin: str
    events: list[AuditEvent]
    next_cursor: str | None


class AuditAnchor(Response):
    """A signed anchor: the chain ``origin`` had ``sequence`` events, the last with this ``hash`` (hex).

    ``note`` is the signed text (https://c2sp.org/signed-note); ``stored`` says whether the object store holds it.
    """

    origin: str
    sequence: int
    hash: str
    note: str
    stored: bool


class AuditKey(Response):
    """The public key that anchors of ``origin`` are signed with, as ``name+key id+base64``."""

    origin: str
    public_key: str
