"""Large leaves of serialised values, sent once and fetched once.

A save repeats most of what the save before it held. A large string, binary or extension object inside MessagePack is
therefore uploaded once as a piece of its thread; afterwards a placeholder stands in its place, and offsets (*holes*)
say where. Loads come with placeholders, too, and pieces that were seen before are not fetched again.

This module owns which leaves are taken out, what is remembered of them, and how values are put together; it opens no
socket. What it remembers is bounded, and losing it costs a transfer and nothing else: the gateway says when it does not
know a piece any more. Leaves that may name an artifact stay, because the gateway must see them.
"""

import base64
import hashlib
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UnsetType

from stateroom._io.processes import PerProcess
from stateroom._protocol.core import Answer, Call, Pinned, Steps, encode_body, path
from stateroom._protocol.wire import (
    ChannelIn,
    ChannelOut,
    CheckpointWithState,
    HoledCheckpoint,
    Leaf,
    LeafOut,
    PieceContent,
    PieceReceipt,
    PieceRequest,
    SaveRequest,
    SerialisedWrite,
    WriteIn,
)
from stateroom._remembered.leaf_notes import REQUEST_BYTES_MAX, PieceNotes, media_type_of, value_at
from stateroom.errors import GatewayUnavailable, InvalidRequest, PieceUnknown
from stateroom.types import CheckpointInfo, PendingWrite

LEAF_BYTES_MIN = 64 * 1024
# Objects of one element of a list, or of any other value, that are searched: as many as the gateway searches.
_ELEMENT_TOKENS_MAX = 4096
_VALUE_TOKENS_MAX = 200_000
_SENT_PIECES_MAX = 50_000
_CONTENT_BYTES_MAX = 64 * 1024 * 1024
_TOGETHER = 8
_ROUNDS = 3

_PLACEHOLDER = struct.Struct(">3s17sQ")
_PLACEHOLDER_HEADER = b"\xc7\x19\x68"
_MAY_POINT = b"stateroom:artifact:"
# A value in another encoding than MessagePack, as a plain state has it.
_ENCODED = b"\x81\xa8$encoded"
_LARGE_HEADERS = (b"\xc6", b"\xc9", b"\xdb")

# Bytes of the length that follows the first byte, and bytes beside the content (an extension's code).
_SIZED = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1), 0xD9: (1, 0),
    0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
# Bytes that follow the first byte of an object of fixed size.
_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2,
    0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
# Bytes of the count that follows the first byte, and objects for each element.
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}

T = TypeVar("T")


class _Holed(Protocol):
    """A value on the wire that may have placeholders."""

    data: bytes
    holes: list[int]


def large_leaves(data: bytes) -> list[tuple[int, int]]:
    """Where the large leaves of a MessagePack value begin and end; none of what is no MessagePack.

    Args:
        data: The value.
    """
    # Every leaf of 64 KiB but the very least has one of these; most text has none.
    if len(data) < LEAF_BYTES_MIN or not any(header in data for header in _LARGE_HEADERS):
        return []
    try:
        return [leaf for start in _parts(data) for leaf in start]
    except (IndexError, KeyError):
        return []


def _parts(data: bytes) -> Iterator[list[tuple[int, int]]]:
    """The leaves of a list's elements, or of the whole of any other value."""
    first = data[0]
    budget = _VALUE_TOKENS_MAX
    if 0x90 <= first < 0xA0:
        at, count = 1, first & 0x0F
    elif first in {0xDC, 0xDD}:
        width = _CONTAINERS[first][0]
        at, count = 1 + width, int.from_bytes(data[1 : 1 + width], "big")
    else:
        at, count = 0, 1
    for _ in range(count):
        leaves, at, spent = _search(data, at, budget)
        budget -= spent
        yield leaves
        if budget <= 0:
            return


def _search(data: bytes, at: int, budget: int) -> tuple[list[tuple[int, int]], int, int]:
    """The leaves of one object, where it ends, and how many objects were looked at."""
    leaves: list[tuple[int, int]] = []
    left, spent = 1, 0
    while left and spent < budget:
        left -= 1
        spent += 1
        first = data[at]
        if 0xA0 <= first < 0xC0:
            at += 1 + (first & 0x1F)
        elif first < 0x80 or first >= 0xE0:
            at += 1
        elif first < 0xA0:
            at += 1
            left += (first & 0x0F) * (1 if first >= 0x90 else 2)
        elif first in _SIZED:
            width, more = _SIZED[first]
            after = at + 1 + width + more + int.from_bytes(data[at + 1 : at + 1 + width], "big")
            if after > len(data):
                raise IndexError
            if after - at >= LEAF_BYTES_MIN and spent <= _ELEMENT_TOKENS_MAX:
                leaves.append((at, after))
            at = after
        elif first in _FIXED:
            at += 1 + _FIXED[first]
        else:
            width, each = _CONTAINERS[first]
            left += each * int.from_bytes(data[at + 1 : at + 1 + width], "big")
            at += 1 + width
    return leaves, at, spent


def owner_tag(pinned: Pinned) -> bytes:
    """Whose pieces: what one subject sent is nothing another one can name."""
    parts = [(each or "").encode() for each in (pinned.subject, pinned.share)]
    return hashlib.sha256(b"".join(len(each).to_bytes(4, "big") + each for each in parts)).digest()


class PieceCache:
    """Which leaves the gateway has, by their SHA-256, and the content of some pieces. Threads may share it.

    Args:
        content_bytes_max: How much content is kept.
    """

    def __init__(self, content_bytes_max: int = _CONTENT_BYTES_MAX) -> None:
        self._lock = PerProcess(threading.Lock)
        self._sent: OrderedDict[bytes, bytes] = OrderedDict()
        self._content: OrderedDict[tuple[bytes, bytes], bytes] = OrderedDict()
        self._content_bytes = 0
        self._content_bytes_max = content_bytes_max
        self._notes = PieceNotes()
        # Whether the gateway knows what may be said of leaves; it is asked by the first save that says something.
        self.says = True

    def sent(self, name: bytes) -> bytes | None:
        """The piece id of a leaf that was sent."""
        with self._lock.mine():
            piece_id = self._sent.get(name)
            if piece_id is not None:
                self._sent.move_to_end(name)
            return piece_id

    def note_sent(self, name: bytes, piece_id: bytes) -> None:
        """Remember that a leaf was sent."""
        with self._lock.mine():
            self._sent[name] = piece_id
            while len(self._sent) > _SENT_PIECES_MAX:
                self._sent.popitem(last=False)

    def forget_sent(self, names: Iterable[bytes]) -> None:
        """Forget that leaves were sent: the gateway does not know them."""
        with self._lock.mine():
            for name in names:
                self._sent.pop(name, None)

    def content(self, owner: bytes, piece_id: bytes) -> bytes | None:
        """The content of a piece, if it is here."""
        with self._lock.mine():
            content = self._content.get((owner, piece_id))
            if content is not None:
                self._content.move_to_end((owner, piece_id))
            return content

    def note_of(self, owner: bytes, piece_id: bytes) -> tuple[str | None, bytes | None]:
        """The media type and the preview that a caller said a piece has."""
        with self._lock.mine():
            return self._notes.of((owner, piece_id))

    def keep_note(self, owner: bytes, piece_id: bytes, media_type: str | None, preview: bytes | None) -> None:
        """Remember what was said of a piece."""
        with self._lock.mine():
            self._notes.note((owner, piece_id), media_type, preview)

    def keep_content(self, owner: bytes, piece_id: bytes, content: bytes) -> None:
        """Keep the content of a piece for a while."""
        with self._lock.mine():
            if len(content) > self._content_bytes_max or (owner, piece_id) in self._content:
                return
            self._content[owner, piece_id] = content
            self._content_bytes += len(content)
            while self._content_bytes > self._content_bytes_max:
                self._content_bytes -= len(self._content.popitem(last=False)[1])


@dataclass
class _Outgoing:
    """A value that is being saved: its bytes, and its leaves with the names under which they are remembered.

    ``said``: what its sender says of them, by where they begin.
    """

    target: ChannelIn | WriteIn
    data: bytes
    leaves: list[tuple[int, int]]
    said: dict[int | UnsetType, Leaf]
    names: list[bytes] = field(default_factory=list)


def sending(
    cache: PieceCache,
    pinned: Pinned,
    thread_id: str,
    values: Sequence[ChannelIn | WriteIn],
    send: Callable[[], Steps[T]],
    preview_bytes: int = 0,
) -> Steps[T]:
    """Send values that may be large: upload the leaves that were not sent before, put placeholders in their place.

    What the values say of them is said of them, or what is remembered, or else what they look like.

    Args:
        cache: What is remembered.
        pinned: For whom.
        thread_id: The thread the values go to.
        values: Of the body that ``send`` sends; changed in place.
        send: Makes the request.
        preview_bytes: Of previews that ``send`` sends beside.
    """
    outgoing = [each for each in map(_outgoing, values) if each is not None]
    if not outgoing:
        return (yield from send())
    place = _place(pinned, thread_id)
    leaves: dict[bytes, memoryview] = {}
    for each in outgoing:
        view = memoryview(each.data)
        for start, end in each.leaves:
            each.names.append(_name(place, view[start:end]))
            leaves[each.names[-1]] = view[start:end]
    for _ in range(_ROUNDS - 1):
        piece_ids = yield from _upload(cache, thread_id, leaves)
        for each in outgoing:
            _punch(each, piece_ids)
        if cache.says:
            _say(cache, owner_tag(pinned), outgoing, piece_ids, REQUEST_BYTES_MAX - preview_bytes)
        try:
            return (yield from _sent(cache, outgoing, send))
        except PieceUnknown:
            cache.forget_sent(leaves)
    for each in outgoing:  # pieces go as often as they come: send everything
        each.target.data, each.target.holes, each.target.leaves = each.data, [], []
    return (yield from send())


def _sent(cache: PieceCache, outgoing: Sequence[_Outgoing], send: Callable[[], Steps[T]]) -> Steps[T]:
    """Send, and to a gateway that is too old to know what is said of leaves, without that."""
    try:
        return (yield from send())
    except InvalidRequest as refused:
        unknown = {(each.pointer or "").rpartition("/")[2] for each in refused.errors} & {"leaves", "state_leaves"}
        if not unknown or not any(each.target.leaves for each in outgoing):
            raise
    cache.says = False
    for each in outgoing:
        each.target.leaves = []
    return (yield from send())


def _say(
    cache: PieceCache, owner: bytes, outgoing: Sequence[_Outgoing], piece_ids: Mapping[bytes, bytes], room: int
) -> None:
    """Say of each placeholder what is known of its leaf; previews as far as there is room, those of the last first."""
    for each in reversed(outgoing):
        view = memoryview(each.data)
        notes: list[Leaf] = []
        for (start, end), name, hole in reversed(list(zip(each.leaves, each.names, each.target.holes, strict=True))):
            media_type, preview = cache.note_of(owner, piece_ids[name])
            if (own := each.said.get(start)) is not None:
                media_type, preview = own.media_type, own.preview
            room -= len(preview or b"")
            if room < 0:
                preview = None
            notes.append(Leaf(at=hole, media_type=media_type or media_type_of(view[start:end]), preview=preview))
        each.target.leaves = notes[::-1]


def _place(pinned: Pinned, thread_id: str) -> bytes:
    return owner_tag(pinned) + hashlib.sha256(thread_id.encode()).digest()


def _name(place: bytes, leaf: bytes | memoryview) -> bytes:
    """Under what a leaf of a thread is remembered."""
    name = hashlib.sha256(place)
    name.update(leaf)
    return name.digest()


def _outgoing(value: ChannelIn | WriteIn) -> _Outgoing | None:
    data = value.data
    said, value.leaves = {each.at: each for each in value.leaves}, []
    if value.encoding != "msgpack" or not isinstance(data, bytes) or len(data) < LEAF_BYTES_MIN:
        return None
    leaves = [(start, end) for start, end in large_leaves(data) if data.find(_MAY_POINT, start, end) < 0]
    return _Outgoing(value, data, leaves, said) if leaves else None


def _few(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(names), _TOGETHER):
        yield names[start : start + _TOGETHER]


def _upload(cache: PieceCache, thread_id: str, leaves: dict[bytes, memoryview]) -> Steps[dict[bytes, bytes]]:
    """Upload what was not sent; returns the piece id of every leaf."""
    piece_ids = {name: piece_id for name in leaves if (piece_id := cache.sent(name)) is not None}
    for names in _few([name for name in leaves if name not in piece_ids]):
        calls = tuple(
            Call(
                method="POST",
                path=path("threads", ":", thread_id, "pieces"),
                body=encode_body(PieceRequest(data=leaves[name])),
                repeatable=True,
            )
            for name in names
        )
        answer = yield Call(method="POST", path="", together=calls)
        for name, each in zip(names, answer.answers, strict=True):
            piece_ids[name] = each.decode(PieceReceipt).piece
            cache.note_sent(name, piece_ids[name])
    return piece_ids


def _punch(value: _Outgoing, piece_ids: dict[bytes, bytes]) -> None:
    parts: list[bytes | memoryview] = []
    holes: list[int] = []
    view = memoryview(value.data)
    at = length = 0
    for (start, end), name in zip(value.leaves, value.names, strict=True):
        length += start - at
        holes.append(length)
        parts += (view[at:start], _PLACEHOLDER.pack(_PLACEHOLDER_HEADER, piece_ids[name], end - start))
        length += _PLACEHOLDER.size
        at = end
    parts.append(view[at:])
    value.target.data, value.target.holes = b"".join(parts), holes


def receiving(
    cache: PieceCache, pinned: Pinned, thread_id: str, values: Iterable[ChannelOut | SerialisedWrite]
) -> Steps[None]:
    """Put the leaves back into values that came with placeholders.

    Args:
        cache: What is remembered.
        pinned: For whom.
        thread_id: The thread the values come from.
        values: Changed in place.
    """
    owner, place = owner_tag(pinned), _place(pinned, thread_id)
    holed = []
    for value in values:
        _note(cache, owner, value.leaves)
        if value.holes:
            holed.append(value)
    if not holed:
        return
    wanted = dict(_placeholder(each, at) for each in holed for at in each.holes)
    contents: dict[bytes, bytes] = {}
    for piece_id in wanted:
        content = cache.content(owner, piece_id)
        if content is not None:
            contents[piece_id] = content
    for batch in _few([each for each in wanted if each not in contents]):
        calls = tuple(
            Call(method="GET", path=path("threads", ":", thread_id, "pieces", ":", piece_name(each)), repeatable=True)
            for each in batch
        )
        answer = yield Call(method="GET", path="", together=calls)
        for piece_id, each in zip(batch, answer.answers, strict=True):
            contents[piece_id] = _content(each, wanted[piece_id])
            cache.note_sent(_name(place, contents[piece_id]), piece_id)  # it need not go back with the next save
            cache.keep_content(owner, piece_id, contents[piece_id])
    for value in holed:
        parts: list[bytes | memoryview] = []
        view = memoryview(value.data)
        at = 0
        for hole in value.holes:
            parts += (view[at:hole], contents[_placeholder(value, hole)[0]])
            at = hole + _PLACEHOLDER.size
        parts.append(view[at:])
        value.data, value.holes = b"".join(parts), []


def _note(cache: PieceCache, owner: bytes, leaves: Iterable[LeafOut]) -> None:
    """Remember what a load says of leaves."""
    for each in leaves:
        cache.keep_note(owner, each.piece, each.media_type, each.preview)


def sending_state(
    cache: PieceCache,
    pinned: Pinned,
    thread_id: str,
    state: dict[str, Any],
    request: SaveRequest,
    send: Callable[[], Steps[T]],
    notes: Mapping[str, list[Leaf]] | None = None,
) -> Steps[T]:
    """Send a plain state that may be large, as `sending` does.

    A state of a schema goes whole: its JSON Schema sees no placeholders.

    Args:
        cache: What is remembered.
        pinned: For whom.
        thread_id: The thread the state goes to.
        state: The state to send.
        request: What ``send`` sends; given the state here.
        send: Makes the request.
        notes: What the caller says of large leaves, by channel and path.
    """
    notes = notes or {}
    encoded = {name: encode_body(value) for name, value in state.items()}
    large: dict[str, ChannelIn] = {}
    if request.state_schema is None:
        large = {
            name: ChannelIn(data=data)
            for name, data in encoded.items()
            if len(data) >= LEAF_BYTES_MIN and not data.startswith(_ENCODED)
        }

    def send_state() -> Steps[T]:
        request.state = {name: msgspec.Raw(data) for name, data in encoded.items()}
        sent = {name: each.data for name, each in large.items() if isinstance(each.data, bytes)}
        request.state.update((name, msgspec.Raw(data)) for name, data in sent.items())
        request.state_holes = {name: each.holes for name, each in large.items() if each.holes}
        leaves = {name: [*notes.get(name, ()), *(large[name].leaves if name in large else ())] for name in encoded}
        request.state_leaves = {name: each for name, each in leaves.items() if each}
        return send()

    preview_bytes = sum(len(each.preview or b"") for own in notes.values() for each in own)
    sent = yield from sending(cache, pinned, thread_id, list(large.values()), send_state, preview_bytes)
    for channel, own in notes.items():
        for each in own:
            value = value_at(state.get(channel), each.path or "")
            name = _name(_place(pinned, thread_id), encode_body(value)) if isinstance(value, (str, bytes)) else b""
            if (piece_id := cache.sent(name)) is not None:
                cache.keep_note(owner_tag(pinned), piece_id, each.media_type, each.preview)
    return sent


def receiving_state(cache: PieceCache, pinned: Pinned, holed: HoledCheckpoint) -> Steps[CheckpointWithState]:
    """A checkpoint with its state, as `receiving` puts it together.

    Args:
        cache: What is remembered.
        pinned: For whom.
        holed: What the gateway answered.
    """
    state = {
        name: ChannelOut(
            encoding="msgpack",
            data=bytes(raw),
            holes=holed.state_holes.get(name, []),
            leaves=holed.state_leaves.get(name, []),
        )
        for name, raw in holed.state.items()
    }
    writes = [ChannelOut(encoding="msgpack", data=bytes(each.value), holes=each.holes) for each in holed.pending_writes]
    yield from receiving(cache, pinned, holed.thread_id, [*state.values(), *writes])
    info = {name: getattr(holed, name) for name in CheckpointInfo.__struct_fields__}
    return CheckpointWithState(
        **info,
        state_leaves=holed.state_leaves,
        state={name: _plain(each) for name, each in state.items()},
        pending_writes=[
            PendingWrite(
                task_id=each.task_id,
                idx=each.idx,
                channel=each.channel,
                task_path=each.task_path,
                value=_plain(value),
            )
            for each, value in zip(holed.pending_writes, writes, strict=True)
        ],
    )


def _plain(value: ChannelOut) -> Any:
    """The value as the gateway shows it whole: what cannot be read comes as its bytes."""
    try:
        return msgspec.msgpack.decode(value.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"$encoded": [value.encoding, value.data]}


def _content(answer: Answer, size: int) -> bytes:
    content = answer.decode(PieceContent).data
    if len(content) != size:
        raise GatewayUnavailable("a piece has another length than was announced", code="unexpected-answer")
    return content  # type: ignore[no-any-return]


def _placeholder(value: _Holed, at: int) -> tuple[bytes, int]:
    header = b""
    if 0 <= at <= len(value.data) - _PLACEHOLDER.size:
        header, piece_id, size = _PLACEHOLDER.unpack_from(value.data, at)
    if header != _PLACEHOLDER_HEADER:
        raise GatewayUnavailable("the answer announces a piece where there is none", code="unexpected-answer")
    return piece_id, size


def piece_name(piece_id: bytes) -> str:
    """A piece's id as it stands in a path."""
    return base64.urlsafe_b64encode(piece_id).rstrip(b"=").decode("ascii")
