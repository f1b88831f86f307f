"""Client-held shares: 32 bytes that a client adds to the keys of its threads, and that nobody else has.

A thread that is made with a share opens only with it: the gateway's database together with all of the gateway's keys
does not. A lost share is lost data; it cannot be recovered, replaced or added to a thread later. This module owns how
a share is made and checked; where it is kept is the caller's to decide, as for any key.
"""

import base64
import secrets
from collections.abc import Callable

from stateroom.errors import NotConfigured

SHARE_HEADER = "Stateroom-Client-Share"
SHARE_BYTES = 32

ClientShare = bytes | Callable[[], bytes] | None
"""A share, a callable that returns the one to use now, or ``None``: threads are made, and opened, without one."""


def new_client_share() -> bytes:
    """Make a share: 32 bytes of the operating system's random source.

    Keep it before the first save with it, and as long as anything saved with it matters: whoever has it and can call
    the gateway in the subject's name reads its threads, and without it nobody does.
    """
    return secrets.token_bytes(SHARE_BYTES)


def resolve_share(share: ClientShare) -> str | None:
    """The header's value for this moment, or ``None``.

    Raises:
        NotConfigured: What was given, or returned, is not 32 bytes; it is not shown.
    """
    material = share() if callable(share) else share
    if material is None:
        return None
    if not isinstance(material, (bytes, bytearray)) or len(material) != SHARE_BYTES:
        raise NotConfigured(f"a client share is {SHARE_BYTES} bytes, as new_client_share makes them")
    return base64.b64encode(material).decode("ascii")
