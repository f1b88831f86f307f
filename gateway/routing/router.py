"""What a request names: a path in its one spelling, at one host, and the operation that has it.

A server decodes paths, so that many spellings could reach one operation, and a rule of a proxy (no ``/v1/admin`` from
outside) would hold for one of them only. Here every other spelling names nothing: a slash too many, one at the end, a
percent sign in a word of the API or before a character that needs none. In an id, what RFC 3986 reserves may be encoded
or not. It does not look at what ids mean, and knows nothing of callers.
"""

import re
from collections.abc import Iterable

from gateway.http.asgi import Scope
from gateway.problems import HostInvalid, MethodUnknown, OperationUnknown, PathUnknown
from gateway.routing.operations import Route

_ESCAPE = re.compile(rb"%(?![0-9A-F]{2})|%(?:2[DEF]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])")


class _Node:
    """What may follow at one place of a path: words, or any text that is a parameter's, and what ends here."""

    __slots__ = ("any_text", "parameters", "routes", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.any_text: _Node | None = None
        self.parameters: list[str] = []  # of a path that ends here, in order
        self.routes: dict[str, Route] = {}  # by method


class Router:
    """Finds operations. A word stands before a parameter at the same place.

    Args:
        routes: Every operation there is.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._words: set[bytes] = set()
        for route in routes:
            node, parameters = self._root, []
            for part in route.operation.path.split("/")[1:]:
                if part.startswith("{"):
                    parameters.append(part[1:-1])
                    node.any_text = node.any_text or _Node()
                    node = node.any_text
                else:
                    self._words.add(part.encode())
                    node = node.words.setdefault(part, _Node())
            node.parameters = parameters
            node.routes[route.operation.method.value] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The operation of a method and a path, and what the path has for its parameters.

        Raises:
            OperationUnknown: no operation has the path.
            MethodUnknown: none of those that have it has the method.
        """
        match = self._at(path)
        if match is None:
            raise OperationUnknown
        node, texts = match
        route = node.routes.get(method)
        if route is None:
            raise MethodUnknown(_allowed(node))
        return route, dict(zip(node.parameters, texts, strict=True))

    def allowed(self, path: str) -> str:
        """The methods of a path, as Allow lists them.

        Raises:
            PathUnknown: it has none.
        """
        match = self._at(path)
        if match is None:
            raise PathUnknown
        return _allowed(match[0])

    def _at(self, path: str) -> tuple[_Node, list[str]] | None:
        node, texts = self._root, []
        before, *parts = path.split("/")
        for part in parts:
            below = node.words.get(part)
            if below is None:
                below = node.any_text
                if below is None or not part:
                    return None
                texts.append(part)
            node = below
        return (node, texts) if node.routes and not before else None

    def check_path(self, scope: Scope) -> None:
        """Let only a path in its one spelling pass.

        Raises:
            PathUnknown: it is another spelling.
        """
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        if b"//" in raw or (raw.endswith(b"/") and raw != b"/"):
            raise PathUnknown
        if b"%" not in raw:
            return
        for segment in raw.split(b"/"):
            if b"%" in segment and (_ESCAPE.search(segment) or _decoded(segment) in self._words):
                raise PathUnknown

    def check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let only a request with one Host pass (RFC 9112, section 3.2).

        Raises:
            HostInvalid: there is none, or there are several.
        """
        if sum(name == b"host" for name, _ in headers) != 1:
            raise HostInvalid


def _allowed(node: _Node) -> str:
    return ", ".join(sorted({*node.routes, "OPTIONS"} | ({"HEAD"} if "GET" in node.routes else set())))


def _decoded(segment: bytes) -> bytes:
    return re.sub(rb"%([0-9A-F]{2})", lambda escape: bytes([int(escape[1], 16)]), segment)
