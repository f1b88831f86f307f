"""Whether the process lives, and whether it should get requests. Public; neither says anything of tenants."""

from litestar import Response
from litestar.di import NamedDependency
from litestar.enums import HttpMethod

from gateway import wire
from gateway.admission.limits import RETRY_AFTER_SECONDS
from gateway.readiness import Report
from gateway.routing.operations import Operation, route
from gateway.services import Services
from storage.encoding import encode_json


class Alive(wire.base.Response):
    """The process answers."""

    alive: bool = True


_ALIVE = encode_json(Alive())


@route(
    Operation(
        name="livez",
        method=HttpMethod.GET,
        path="/livez",
        summary="The process answers; no I/O.",
        returns=Alive,
        public=True,
    )
)
async def livez() -> Response[bytes]:
    """Say so."""
    return Response(_ALIVE, media_type="application/json")


@route(
    Operation(
        name="readyz",
        method=HttpMethod.GET,
        path="/readyz",
        summary="Whether to send requests here: 200, or 503 while draining or not fit.",
        returns=Report,
        statuses=(200, 503),
        public=True,
    )
)
async def readyz(services: NamedDependency[Services]) -> Response[bytes]:
    """Report."""
    ready, report = await services.readiness.probe()
    return Response(
        report,
        status_code=200 if ready else 503,
        headers={} if ready else {"retry-after": str(round(RETRY_AFTER_SECONDS))},
        media_type="application/json",
    )


ROUTES = [livez, readyz]
