"""The few operations that agents call at every step, run without what the router does for each request.

Owns finding them and doing in order what the router does around their handlers: authentication, the tenant's cap, the
permission, the exchange, the scope, the handler, its answer. The router knows the same operations: it answers what is
not spelled plainly here (a path that ends in a slash, another method), and a test holds the two against each other.
Errors are left to the caller.
"""

import re
from collections.abc import Iterable

from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from gateway.authentication.principals import AuthenticationMiddleware, check_permission, enter_subject
from gateway.http.exchange import Exchange
from gateway.routing.operations import Operation
from gateway.services import Services

_PARAMETER = re.compile(r"\{(\w+)\}")


class HotPath:
    """Finds hot operations by method and path.

    Args:
        routes: All routes of the application.
        authentication: What refuses callers, here as around the router.
        services: What handlers work with.
    """

    def __init__(
        self, routes: Iterable[BaseRoute], authentication: AuthenticationMiddleware, services: Services
    ) -> None:
        self._found: dict[str, list[tuple[re.Pattern[str], _Hot]]] = {}
        for route in routes:
            for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
                operation = handler.opt.get("operation")
                if operation is not None and operation.hot:
                    hot = _Hot(operation, handler, route.path_format, services, authentication)
                    self._found.setdefault(operation.method, []).append((hot.pattern, hot))

    def find(self, scope: HTTPScope) -> ASGIApp | None:
        """What answers a request, whose scope is completed for it; None: the router does."""
        for pattern, hot in self._found.get(scope["method"], ()):
            match = pattern.fullmatch(scope["path"])
            if match is not None:
                scope["path_params"] = match.groupdict()
                scope["path_template"] = hot.path_template
                scope["route_handler"] = hot.handler
                return hot
        return None


class _Hot:
    """A hot operation, run for whoever may call it."""

    def __init__(
        self,
        operation: Operation,
        handler: HTTPRouteHandler,
        path_template: str,
        services: Services,
        authentication: AuthenticationMiddleware,
    ) -> None:
        assert operation.permission is not None  # noqa: S101  for the type checker: all that touch state have one
        self.handler = handler
        self.path_template = path_template
        self.pattern = re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path_template))
        self._permission = operation.permission
        self._services = services
        self._authentication = authentication

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it."""
        async with self._authentication.entered(scope):
            check_permission(scope["user"], self._permission)
            exchange = Exchange(scope, receive)
            subject_scope = enter_subject(scope)
            answer = await self.handler.fn(
                exchange=exchange, services=self._services, subject_scope=subject_scope, **scope["path_params"]
            )
            await answer(scope, receive, send)
