"""Pieces: large leaves of values, uploaded before a save names them and fetched where a load left them out."""

import base64
import binascii

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath

from gateway import wire
from gateway.http.exchange import Exchange, path_id, place
from gateway.routing.operations import Operation, route
from gateway.services import Services
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


@route(
    Operation(
        name="put_piece",
        method=HttpMethod.POST,
        path="/threads/{thread_id:str}/pieces",
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
        subject=True,
    )
)  # fmt: skip
async def put_piece(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
) -> Response[bytes]:
    """Store a leaf."""
    exchange.no_query()
    request, _, _ = await exchange.body(wire.checkpoints.PieceRequest)
    thread = path_id(thread_id, "thread_id")
    stored = await services.write(
        subject_scope,
        thread,
        services.store.pieces.put(subject_scope, thread, request.data, exchange.client_share()),
    )
    receipt = wire.checkpoints.PieceReceipt(piece=stored.piece_id, size_bytes=stored.size_bytes)
    piece = base64.urlsafe_b64encode(stored.piece_id).rstrip(b"=").decode("ascii")
    location = place("threads", thread, "pieces", piece)
    return exchange.reply(receipt, status=201, location=location, replayed=not stored.created)


@route(
    Operation(
        name="get_piece",
        method=HttpMethod.GET,
        path="/threads/{thread_id:str}/pieces/{piece:str}",
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
        subject=True,
    )
)
async def get_piece(
    exchange: NamedDependency[Exchange],
    services: NamedDependency[Services],
    subject_scope: NamedDependency[Scope],
    thread_id: FromPath[str],
    piece: FromPath[str],
) -> Response[bytes]:
    """Give a leaf."""
    exchange.no_query()
    thread = path_id(thread_id, "thread_id")
    piece_id = _piece_id(path_id(piece, "piece"))
    data = await services.store.pieces.get(subject_scope, thread, piece_id, exchange.client_share())
    return exchange.reply(wire.checkpoints.PieceContent(data=data))


ROUTES = [put_piece, get_piece]
