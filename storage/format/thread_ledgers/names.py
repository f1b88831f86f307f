"""Keyed tags of what a client wrote, by which rows of a ledger are found and compared without being opened.

All are MACs of the subject's id key without a client's share, so that a rotation does not change them and whoever may
not open a row can still verify it.
"""

from typing import Final

from crypto import Sealer
from crypto.context import encode_fields

TAG_BYTES: Final = 16
_SEGMENTS: Final = "|"
_CALL: Final = ":"


def root_of(namespace: str) -> str:
    """The root of a namespace: what is left of it without the calls (``node:task``) that it is in.

    A graph that is called in a graph has a namespace of its own each time, and what it does counts for the root's line.
    """
    kept = []
    for segment in namespace.split(_SEGMENTS):
        if _CALL in segment:
            break
        kept.append(segment)
    return _SEGMENTS.join(kept)


def member_of(sealer: Sealer, purpose: bytes, plaintext: bytes) -> bytes:
    """The tag of what a row seals, which the row's MAC covers instead of an envelope."""
    return sealer.without_share.mac(b"ledger-member", purpose, plaintext)[:TAG_BYTES]


def effect_name_mac(sealer: Sealer, thread_id: str, namespace: str, name: str) -> bytes:
    """The tag of an effect's name: the same for every thread of this id, so that it is a tombstone, too."""
    return sealer.without_share.mac(b"effect-name", encode_fields((thread_id, namespace, name)))[:TAG_BYTES]


def intent_mac(sealer: Sealer, tool: str, identity: bytes) -> bytes:
    """The tag of what is meant: a tool, and the canonical form of what makes it the same; in any thread."""
    return sealer.without_share.mac(b"effect-intent", encode_fields((tool,)), identity)[:TAG_BYTES]
