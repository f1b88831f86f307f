"""What an operation of the API is: one declaration makes the route, its guard and its documentation.

A route made any other way has no documentation and no permission, which a test refuses.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from litestar import Response
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.types import Guard

from gateway.authentication.principals import listing_requires, requires
from gateway.wire.administration.api_keys import Permission

Handler = Callable[..., Awaitable[Response[bytes]] | Awaitable[Response[None]]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation.

    Attributes:
        name: The operationId, and the anchor in the documentation.
        summary: What it does, in a sentence.
        permission: What the credential must have; None: any credential (or none, where ``public``).
        body: Shape of the request body.
        query: Shape of the query; its members are the parameters.
        returns: Shape of the answer.
        returns_otherwise: Its shape with any status but the first, where it is another one.
        statuses: Statuses of success.
        headers: Request headers beyond the common ones.
        etag: Whether the answer carries the head's ETag.
        token: Whether the answer carries a thread token.
        problems: Codes beyond the ones every operation of its sort has.
        subject: Whether it works on a subject's state (and so takes Stateroom-Subject).
        tenant_listing: Whether ``tenant:admin`` without a subject is another way to it; the handler decides what that
            gives.
        public: Whether it needs no credential.
        media_type: What a public operation answers, where it is not JSON.
        raw_body: Whether the body is bytes of any media type, read as a stream.
        content: Whether it answers with an artifact's content, in whatever media type that has.
        extra_headers: Response headers worth naming beyond the common ones.
        hot: Whether agents call it at every step, so that it is not left to the router (`gateway.routing.hot_path`). It
            works on a subject's state, and its handler takes nothing but what is in the path, the exchange, the
            services and the scope.
    """

    name: str
    method: HttpMethod
    path: str
    summary: str
    permission: Permission | None = None
    body: Any = None
    query: Any = None
    returns: Any = None
    returns_otherwise: Any = None
    statuses: tuple[int, ...] = (200,)
    headers: tuple[str, ...] = ()
    etag: bool = False
    token: bool = False
    problems: tuple[str, ...] = ()
    subject: bool = False
    tenant_listing: bool = False
    public: bool = False
    media_type: str = "application/json"
    raw_body: bool = False
    content: bool = False
    extra_headers: tuple[str, ...] = ()
    hot: bool = False


def _guard(operation: Operation) -> Guard:
    assert operation.permission is not None  # noqa: S101  for the type checker: the caller looked
    return listing_requires(operation.permission) if operation.tenant_listing else requires(operation.permission)


def route(operation: Operation) -> Callable[[Handler], HTTPRouteHandler]:
    """Make the decorated handler the route of ``operation``."""
    return HTTPRouteHandler(
        operation.path,
        http_method=operation.method,
        name=operation.name,
        status_code=operation.statuses[0],
        guards=[_guard(operation)] if operation.permission else None,
        opt={
            "operation": operation,
            "exclude_from_auth": operation.public,
            "any_accept": operation.content,
        },
        include_in_schema=False,
    )
