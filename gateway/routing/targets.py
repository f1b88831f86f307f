"""What a request names: a path in its one spelling, at one host; and which methods a path has.

The router decodes and tidies paths, so that many spellings reach one operation, and a rule of a proxy (no ``/v1/admin``
from outside) holds for one of them only. Here every other spelling names nothing: a slash too many, one at the end, a
percent sign in a word of the API or before a character that needs none. In an id, what RFC 3986 reserves may be encoded
or not. It does not look at what ids mean.
"""

import re
from collections.abc import Iterable
from typing import Any

from litestar.routes import BaseRoute, HTTPRoute

from gateway.problems import HostInvalid, PathUnknown

_PARAMETER = re.compile(r"\{\w+\}")
_ESCAPE = re.compile(rb"%(?![0-9A-F]{2})|%(?:2[DEF]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])")


class Targets:
    """Refuses what names nothing, and knows the methods of what does.

    Args:
        routes: All routes of the application.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._words: set[bytes] = set()
        self._methods: list[tuple[re.Pattern[str], set[str]]] = []
        for route in routes:
            if not isinstance(route, HTTPRoute):
                continue
            path = route.path_format
            self._words |= {word.encode() for word in path.split("/") if not _PARAMETER.fullmatch(word)}
            methods = {handler.opt["operation"].method.value for handler in route.route_handlers if _declared(handler)}
            pattern = "".join(
                "[^/]+" if _PARAMETER.fullmatch(part) else re.escape(part) for part in re.split(r"(\{\w+\})", path)
            )
            self._methods.append((re.compile(pattern), methods))

    def check_path(self, scope: Any) -> None:
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

    def allowed(self, path: str) -> str:
        """The methods of a path, as Allow lists them.

        Raises:
            PathUnknown: it has none.
        """
        found = set().union(*(methods for pattern, methods in self._methods if pattern.fullmatch(path)))
        if not found:
            raise PathUnknown
        return ", ".join(sorted(found | {"OPTIONS"} | ({"HEAD"} if "GET" in found else set())))


def _declared(handler: Any) -> bool:
    return "operation" in handler.opt


def _decoded(segment: bytes) -> bytes:
    return re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), segment)
