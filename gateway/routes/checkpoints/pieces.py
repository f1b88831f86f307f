"""Pieces: large leaves of values, uploaded before a save names them and fetched where a load left them out."""

import base64
import binascii

from gateway import wire
from gateway.authentication.principals import SUBJECT
from gateway.http.exchange import Answer, path_id, place
from gateway.routing.operations import Call, Operation
from storage.errors import PieceNotFound
from storage.format.leaves import PIECE_ID_BYTES
from storage.scope import Scope


def _piece_id(text: str) -> bytes:
    """A piece's id from a path; what is none names nothing."""
    try:
        piece_id = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise PieceNotFound from None
    if len(piece_id) != PIECE_ID_BYTES:
        raise PieceNotFound
    return piece_id


@Operation(
    "POST /v1/threads/{thread_id}/pieces",
    reach=SUBJECT,
    summary="Upload a large leaf of a value, so that saves can name it. 200: the thread had it before.",
    permission="state:write",
    body=wire.checkpoints.PieceRequest,
    returns=wire.checkpoints.PieceReceipt,
    statuses=(201, 200),
    headers=("Stateroom-Client-Share",),
    problems=(
        "thread-busy", "thread-archived", "commit-unknown", "quota-exceeded", "blob-store-unavailable",
        "key-destroyed",
    ),
)  # fmt: skip
async def put_piece(call: Call[Scope], thread_id: str) -> Answer:
    request, _, _ = await call.exchange.body(wire.checkpoints.PieceRequest)
    thread = path_id(thread_id, "thread_id")
    stored = await call.services.write(
        call.scope,
        thread,
        call.store.pieces.put(call.scope, thread, request.data, call.exchange.client_share()),
    )
    receipt = wire.checkpoints.PieceReceipt(piece=stored.piece_id, size_bytes=stored.size_bytes)
    piece = base64.urlsafe_b64encode(stored.piece_id).rstrip(b"=").decode("ascii")
    location = place("threads", thread, "pieces", piece)
    return call.exchange.reply(receipt, status=201, location=location, replayed=not stored.created)


@Operation(
    "GET /v1/threads/{thread_id}/pieces/{piece}",
    reach=SUBJECT,
    summary="A large leaf of a value, by the id in its placeholder (base64url without padding).",
    permission="state:read",
    returns=wire.checkpoints.PieceContent,
    headers=("Stateroom-Client-Share",),
    problems=(
        "piece-not-found",
        "thread-archived",
        "restore-needed",
        "integrity-failure",
        "blob-store-unavailable",
        "key-destroyed",
    ),
)
async def get_piece(call: Call[Scope], thread_id: str, piece: str) -> Answer:
    thread = path_id(thread_id, "thread_id")
    piece_id = _piece_id(path_id(piece, "piece"))
    data = await call.store.pieces.get(call.scope, thread, piece_id, call.exchange.client_share())
    return call.exchange.reply(wire.checkpoints.PieceContent(data=data))
