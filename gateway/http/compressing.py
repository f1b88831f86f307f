"""Answers compressed for the way: which may be, and how much their length then tells.

Owns what Accept-Encoding allows, and compressing with gzip, which every client reads. A compressed length depends on
the content, so that who can write into an answer and watches lengths on the wire can guess at the rest of it (the
attacks CRIME and BREACH). Hence only operations that say so are compressed: reading state, and the documentation, that
is public; never answers that hold a secret of ours (new keys, signed URLs), nor artifacts' contents. A compressed
answer holds a random number of bytes that mean nothing, which makes guessing slow, not impossible: who shares a state
with an attacker who watches the wire asks for ``identity``.
"""

import gzip
import secrets
from typing import Final

CODING: Final = "gzip"
COMPRESSED_BYTES_MIN: Final = 1024  # what is smaller fits one packet anyway
PADDING_BYTES_MAX: Final = 256  # many times the difference that one right guess makes; Go reads no more than 512

_LEVEL = 1  # a third of the time of level 6 for a tenth more bytes
_COMMENT = 0x10  # a flag: a comment ends the header (RFC 1952, section 2.3)
_HEADER_BYTES = 10


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether gzip may be used, and is not liked less than the bytes as they are (RFC 9110, section 12.5.3)."""
    qualities: dict[str, float] = {}
    for part in (accept_encoding or b"").decode("latin-1").lower().split(","):
        name, _, parameter = part.partition(";")
        word, _, number = parameter.strip().partition("=")
        try:
            qualities[name.strip()] = float(number) if word.strip() == "q" else 1.0
        except ValueError:
            qualities[name.strip()] = 0.0
    quality = qualities.get(CODING, 0.0)  # not of "*": who does not name gzip may not have meant it
    return quality > 0 and quality >= qualities.get("identity", 0.0)


def compress(body: bytes) -> bytes:
    """``body`` in gzip, padded. The interpreter's lock is not held meanwhile."""
    packed = gzip.compress(body, _LEVEL, mtime=0)
    padding = b" " * secrets.randbelow(PADDING_BYTES_MAX) + b"\0"
    flags = bytes((packed[3] | _COMMENT,))
    return packed[:3] + flags + packed[4:_HEADER_BYTES] + padding + packed[_HEADER_BYTES:]
