"""Cursors of events: where a listener goes on, sealed, and good only for what it listens to.

A cursor of a list shows its holder what the holder has seen. A position among events would show more: the number of a
tenant's newest event says how much happens there, also to a subject that hears nothing of it. So these are sealed
(XAES-256-GCM under a key derived from the pepper), and two of the same position differ. Like a cursor of a list, one
grants nothing, and every process of the deployment reads it.
"""

import base64
import binascii
import struct
from typing import Final
from uuid import UUID

from crypto.ciphers import xaes
from crypto.errors import OpenError
from storage.events.model import EventPosition
from storage.keys.key_seals import Peppers

CURSOR_CHARACTERS: Final = 86
_POSITION: Final = struct.Struct(">Q16s")
_NO_EVENT: Final = bytes(16)


class Positions:
    """Seals and opens positions."""

    def __init__(self, peppers: Peppers) -> None:
        self._sealing, *self._accepted = peppers.derive(b"stateroom/event-cursor/v1")

    def write(self, binding: bytes, position: EventPosition) -> str:
        """The cursor of a position, for who listens to what ``binding`` says."""
        event_id = _NO_EVENT if position.event_id is None else position.event_id.bytes
        sealed = xaes.seal(self._sealing, binding, _POSITION.pack(position.sequence, event_id))
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    def read(self, binding: bytes, cursor: str) -> EventPosition | None:
        """The position of a cursor; None: it is forged, damaged, or of another who listens to something else."""
        if len(cursor) != CURSOR_CHARACTERS:
            return None
        try:
            sealed = base64.b64decode(cursor.encode("ascii") + b"==", altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        for key in (self._sealing, *self._accepted):
            try:
                sequence, event_id = _POSITION.unpack(xaes.open_(key, binding, sealed))
            except OpenError:
                continue
            return EventPosition(sequence, None if event_id == _NO_EVENT else UUID(bytes=event_id))
        return None


class Place:
    """Positions of one listener.

    Args:
        positions: Seals and opens.
        binding: Everything that decides what is heard: route, tenant, subject, filters.
    """

    def __init__(self, positions: Positions, binding: bytes) -> None:
        self._positions = positions
        self._binding = binding

    def write(self, position: EventPosition) -> str:
        """The cursor of a position."""
        return self._positions.write(self._binding, position)

    def read(self, cursor: str) -> EventPosition | None:
        """The position of a cursor; None: it is none of this listener's."""
        return self._positions.read(self._binding, cursor)
