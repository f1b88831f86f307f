"""Notes of large leaves: what is said of them, from a caller's words by path, and remembered by piece.

A save names every large leaf that its state holds, and says of each what it is. What a caller said once, or what a load
showed, is therefore remembered with the piece and said again, as far as one request has room for it. Forgetting it
costs the preview and nothing else.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from stateroom._protocol.wire import Leaf, LeafOut
from stateroom.errors import InvalidRequest
from stateroom.types import LargeValue, Preview

PREVIEW_BYTES_MAX = 4096
REQUEST_BYTES_MAX = 1024 * 1024
_REMEMBERED_BYTES_MAX = 4 * 1024 * 1024
_NOTE_BYTES = 200  # of what is remembered of a piece, beside its preview
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}
_BINARY = {0xC4: 2, 0xC5: 3, 0xC6: 5}  # how long the header is
_STRINGS = frozenset({0xD9, 0xDA, 0xDB})

Piece = tuple[bytes, bytes]
Note = tuple[str | None, bytes | None]


class PieceNotes:
    """The notes of pieces: media types and previews, as far as a bound goes. Not for several threads at once."""

    def __init__(self, bytes_max: int = _REMEMBERED_BYTES_MAX) -> None:
        self._notes: OrderedDict[Piece, Note] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max

    def of(self, piece: Piece) -> Note:
        """The media type and the preview of a piece, as far as they are known."""
        note = self._notes.get(piece, (None, None))
        if piece in self._notes:
            self._notes.move_to_end(piece)
        return note

    def note(self, piece: Piece, media_type: str | None, preview: bytes | None) -> None:
        """Remember what was said of a piece, in the place of what was said before."""
        self._forget(piece)
        if media_type is None and preview is None:
            return
        self._notes[piece] = (media_type, preview)
        self._bytes += _NOTE_BYTES + len(preview or b"")
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._notes)))

    def _forget(self, piece: Piece) -> None:
        before = self._notes.pop(piece, None)
        if before is not None:
            self._bytes -= _NOTE_BYTES + len(before[1] or b"")


def media_type_of(leaf: bytes | memoryview) -> str:
    """What a large leaf is, by its MessagePack header and, of binary, its first bytes."""
    header = leaf[0]
    if header in _STRINGS:
        return "text/plain"
    if header not in _BINARY:
        return "application/msgpack"
    begin = bytes(leaf[_BINARY[header] : _BINARY[header] + 16])
    if begin[:4] == b"RIFF" and begin[8:12] == b"WEBP":
        return "image/webp"
    return next((name for magic, name in _MAGIC.items() if begin.startswith(magic)), "application/octet-stream")


def notes_by_channel(previews: Mapping[str, Preview | bytes | str] | None) -> dict[str, list[Leaf]]:
    """What a caller says, by top-level key and with the rest of each path.

    Raises:
        InvalidRequest: A path is no JSON pointer to a value.
    """
    notes: dict[str, list[Leaf]] = {}
    for path, sent in (previews or {}).items():
        if not isinstance(path, str) or not path.startswith("/"):
            raise InvalidRequest('a preview is named by the path of its value in the state, such as "/page/html"')
        channel, slash, rest = path[1:].partition("/")
        whole = sent if isinstance(sent, Preview) else Preview(sent)
        leaf = Leaf(path=slash + rest, media_type=whole.media_type, preview=_bytes_of(whole.data))
        notes.setdefault(_unescaped(channel), []).append(leaf)
    return notes


def _bytes_of(data: bytes | str | None) -> bytes | None:
    """A preview as it is sent; a text is cut to what fits, between two characters."""
    if not isinstance(data, str):
        return data
    return data[:PREVIEW_BYTES_MAX].encode(errors="replace")[:PREVIEW_BYTES_MAX].decode(errors="ignore").encode()


def value_at(tree: Any, path: str) -> Any:
    """What stands at a path in a plain tree; ``None``: nothing."""
    for step in path.split("/")[1:]:
        if isinstance(tree, dict):
            tree = tree.get(_unescaped(step))
        elif isinstance(tree, (list, tuple)) and step.isdecimal() and int(step) < len(tree):
            tree = tree[int(step)]
        else:
            return None
    return tree


def large_values(leaves: Mapping[str, Sequence[LeafOut]]) -> dict[str, LargeValue]:
    """What a load says of large values, by their paths in the state; of those whose path is known."""
    return {
        f"/{_escaped(channel)}{each.path}": LargeValue(
            piece=each.piece, size_bytes=each.size_bytes, media_type=each.media_type, preview=each.preview
        )
        for channel, own in leaves.items()
        for each in own
        if each.path is not None
    }


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")
