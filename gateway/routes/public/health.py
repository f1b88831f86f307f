"""Whether the process lives, and whether it should get requests. Public; neither says anything of tenants."""

from gateway import wire
from gateway.admission.limits import RETRY_AFTER_SECONDS
from gateway.http.exchange import Answer
from gateway.readiness import Report
from gateway.routing.operations import Operation, PublicCall
from storage.encoding import encode_json


class Alive(wire.base.Response):
    """The process answers."""

    alive: bool = True


_JSON = (b"content-type", b"application/json")
_ALIVE = encode_json(Alive())


@Operation(
    "GET /livez",
    summary="The process answers; no I/O.",
    returns=Alive,
)
async def livez(_: PublicCall) -> Answer:
    return Answer(200, [_JSON], _ALIVE)


@Operation(
    "GET /readyz",
    summary="Whether to send requests here: 200, or 503 while draining or not fit.",
    returns=Report,
    statuses=(200, 503),
)
async def readyz(call: PublicCall) -> Answer:
    ready, report = await call.services.readiness.probe()
    later = (b"retry-after", str(round(RETRY_AFTER_SECONDS)).encode())
    return Answer(200 if ready else 503, [_JSON] if ready else [_JSON, later], report)
