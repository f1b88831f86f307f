"""Checkpoint ids: UUIDv6 (RFC 9562 section 5.6), which sort by time as text.

LangGraph mints the same kind, so ids of both sources order together; UUIDv7 would not. An id minted here is greater
than the head it was minted on, whatever the clocks say.
"""

import secrets
from datetime import UTC, datetime
from uuid import UUID

from storage.errors import InvalidState

_GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)
_TICKS_MAX = (1 << 60) - 1


def mint_checkpoint_id(now: datetime, head_id: str | None) -> str:
    """A new UUIDv6 that is bytewise greater than ``head_id``.

    Raises:
        InvalidState: the head is not a UUIDv6, or is the last one there can be; the caller must name an id.
    """
    elapsed = now - _GREGORIAN
    ticks = (elapsed.days * 86_400 + elapsed.seconds) * 10_000_000 + elapsed.microseconds * 10
    if head_id is not None:
        ticks = max(ticks, _ticks(head_id) + 1)
    if ticks > _TICKS_MAX:
        raise InvalidState("no UUIDv6 is greater than this namespace's head; name an id", "/id")
    high, low = ticks >> 12, ticks & 0xFFF
    variant_and_node = (0b10 << 62) | secrets.randbits(62)
    return str(UUID(int=(high << 80) | (6 << 76) | (low << 64) | variant_and_node))


def _ticks(checkpoint_id: str) -> int:
    try:
        parsed = UUID(checkpoint_id)
    except ValueError:
        parsed = UUID(int=0)
    if parsed.version != 6 or str(parsed) != checkpoint_id:
        raise InvalidState("this namespace's head is not a UUIDv6, so its successor needs an explicit id", "/id")
    return (parsed.int >> 80) << 12 | (parsed.int >> 64) & 0xFFF
