"""What an operation of the API is: one declaration makes its route, its guard and its documentation.

A route made any other way has no documentation and no permission, which a test refuses.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, replace
from http import HTTPMethod
from typing import Any, Concatenate, Generic, TypeVar

from msgspec import Struct

from gateway.authentication.principals import (
    HEARING,
    INBOX,
    LISTING,
    SUBJECT,
    Principal,
    Reach,
    check_permission,
    named_subject,
)
from gateway.bodies.codec import accepts_events
from gateway.http.asgi import Receive, Send
from gateway.http.cursors import ListCursor
from gateway.http.exchange import Answer, Exchange, Facts
from gateway.problems import InvalidRequest, Unauthenticated
from gateway.services import Services
from gateway.wire.administration.api_keys import Permission
from gateway.wire.problems import Fault
from storage.concurrency.room import count_with
from storage.concurrency.turns import loop_turn, take_turns_as
from storage.encoding import encode_msgpack
from storage.service import Store

T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Operation(Generic[S]):
    """An operation; as a decorator it makes a function its handler.

    Attributes:
        pattern: The method and the path it answers, with the path's parameters in braces: ``GET /v1/threads/{id}``.
        summary: A sentence that says what it does.
        reach: The rows it works on; None: it is public and needs no credential.
        permission: The permission that the credential must have; None: any credential will do.
        body: Shape of the request body.
        query: Shape of the query, whose members are the parameters; None: a query is refused.
        returns: Shape of the answer.
        returns_otherwise: Shape of the answer with any status but the first, where it is another one.
        statuses: Statuses of success.
        headers: Request headers beyond the common ones.
        etag: Whether the answer carries the head's ETag.
        token: Whether the answer carries a thread token.
        problems: Codes beyond the ones every operation of its sort has.
        media_type: The media type of what a public operation answers.
        raw_body: Whether the body is bytes of any media type, read as a stream.
        content: Whether it answers with an artifact's content, in whatever media type that has.
        lines: Shapes of the lines that it answers with, in JSON Lines; none: it answers otherwise.
        stream: Whether it answers with server-sent events who accepts text/event-stream.
        extra_headers: Response headers worth naming beyond the common ones.
        name: The operationId, and the anchor in the documentation: the handler's name, unless another one is given.
    """

    pattern: str
    _: KW_ONLY
    summary: str
    reach: Reach[S] | None = None
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
    media_type: str = "application/json"
    raw_body: bool = False
    content: bool = False
    lines: tuple[Any, ...] = ()
    stream: bool = False
    extra_headers: tuple[str, ...] = ()
    name: str = ""

    def __call__(self, handler: Callable[Concatenate["Call[S]", ...], Awaitable[Answer]]) -> "Route":
        """The route of the operation, which ``handler`` answers."""
        return Route(replace(self, name=self.name or handler.__name__), handler)

    @property
    def method(self) -> HTTPMethod:
        """The method it answers."""
        return HTTPMethod(self.pattern.partition(" ")[0])

    @property
    def path(self) -> str:
        """The path it answers, with its parameters in braces."""
        return self.pattern.partition(" ")[2]

    @property
    def public(self) -> bool:
        """Whether it needs no credential."""
        return self.reach is None

    @property
    def subject(self) -> bool:
        """Whether it works on a subject's state, and so takes Stateroom-Subject."""
        return self.reach in (SUBJECT, LISTING, HEARING, INBOX)

    @property
    def plain(self) -> bool:
        """Whether its path is all that is read of a request, as of probes and the documentation."""
        return self.public and not self.content


class PublicCall(Struct, frozen=True):
    """An operation under way that needs no credential.

    Attributes:
        exchange: The request, and the way to answer it.
        services: The parts of the process.
    """

    exchange: Exchange
    services: Services

    @property
    def store(self) -> Store:
        """Storage, which does what the operation is for."""
        return self.services.store


class Call(PublicCall, Generic[S_co], frozen=True):
    """An operation under way.

    Attributes:
        principal: The caller.
        scope: The rows that the caller reaches by this operation.
    """

    principal: Principal
    scope: S_co

    @property
    def actor(self) -> str:
        """The caller's name in the audit log."""
        return self.principal.actor

    def commit(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run what writes, to COMMIT even if the client hangs up."""
        return self.services.commits.run(work)

    def cursor(self, sent: str | None, *filters: object) -> ListCursor:
        """Where the page that was asked for begins, in the list that this operation makes with ``filters``.

        Raises:
            InvalidRequest: the cursor is forged, damaged or another list's.
        """
        return ListCursor(self.services.cursors, encode_msgpack((self.exchange.route, *filters)), sent)

    def on(self, scope: S) -> "Call[S]":
        """The same call on other rows that the caller reaches by it."""
        return Call(self.exchange, self.services, self.principal, scope)


class Route:
    """An operation with what answers it.

    Attributes:
        operation: The declaration.
        handler: The function that answers it, given a call and the path's parameters by name.
    """

    __slots__ = ("handler", "operation")

    def __init__(self, operation: Operation[Any], handler: Callable[..., Awaitable[Answer]]) -> None:
        self.operation = operation
        self.handler = handler

    async def run(
        self, services: Services, facts: Facts, parameters: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Let the caller in and count it, run the operation, and answer.

        Args:
            services: The parts of the process.
            facts: The facts of the request.
            parameters: The texts of the path's parameters, by name.
            receive: The channel that the body arrives on.
            send: The channel that the answer goes to.

        Raises:
            Unauthenticated: the caller is not known.
            GatewayError: the caller may not call this, or has too many requests under way.
            Exception: what the operation raised.
        """
        operation = self.operation
        reach = operation.reach
        if reach is None:
            exchange = self._exchange(facts, receive)
            if not operation.plain:
                exchange.no_query()
            answer = await self.handler(PublicCall(exchange, services), **parameters)
            await answer.give(facts, receive, send)
            return
        if facts.duplicate == "authorization":
            raise Unauthenticated
        authorization = facts.headers.get(b"authorization")
        # Of a key that is looked up again the tenant is known: who sends too many holds no more places meanwhile.
        tenant_id = services.authenticator.tenant_of(authorization)
        principal = None if tenant_id is not None else await services.authenticator.verify(authorization)
        if principal is not None:
            tenant_id = principal.tenant_id
        with services.admission.tenant(tenant_id) as reservation:
            if principal is None:
                principal = await services.authenticator.verify(authorization)
            facts.key_id = principal.key_id
            facts.reservation = reservation
            count_with(reservation.take)
            take_turns_as(principal.tenant_id)
            await loop_turn().take()  # so that many at once, each of which is quick, are not one long turn
            whole = reach.whole_tenant is not None and reach.whole_tenant(principal, named_subject(facts))
            if operation.permission is not None and not whole:
                check_permission(principal, operation.permission)
            exchange = self._exchange(facts, receive)
            call = Call(exchange, services, principal, reach.enter(principal, facts))
            if operation.query is None:
                exchange.no_query()
            answer = await self.handler(call, **parameters)
            await answer.give(facts, receive, send)

    def _exchange(self, facts: Facts, receive: Receive) -> Exchange:
        operation = self.operation
        if facts.duplicate is not None and not operation.plain:
            raise InvalidRequest(Fault(detail="the header is given twice", header=facts.duplicate))
        # An artifact's content comes in the media type it has, and lines are JSON, whatever is accepted.
        any_accept = operation.content or bool(operation.lines) or operation.plain
        if operation.stream and accepts_events(facts.headers.get(b"accept")):
            any_accept = True
        return Exchange(facts, receive, operation.path, any_accept=any_accept)
