"""Clients of the SDK whose answers are looked at, each attempt's: the SDK itself goes on after many of them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stateroom import AsyncClient, Client
from stateroom._io.transport import Reply

Seen = Callable[[str, str, int, str], None]


def _code_of(reply: Reply) -> str:
    """The code of a problem."""
    if reply.status < 400:
        return ""
    decode = msgspec.msgpack.decode if "msgpack" in reply.headers.get("content-type", "") else msgspec.json.decode
    try:
        return str(decode(reply.body)["code"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return "unexpected-answer"


class _Watched:
    """A transport that tells of each answer: its method, path, status and code.

    Attributes:
        sent: How many attempts were made.
    """

    def __init__(self, transport: Any, seen: Seen) -> None:
        self._transport, self._seen = transport, seen
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _told(self, method: str, url: str, reply: Reply) -> Reply:
        self._seen(method, url, reply.status, _code_of(reply))
        return reply


class _Blocking(_Watched):
    def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        self.sent += 1
        return self._told(method, url, self._transport.send(method, url, headers, body, waits))


class _OnLoop(_Watched):
    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, waits: tuple[float, float]
    ) -> Reply:
        self.sent += 1
        return self._told(method, url, await self._transport.send(method, url, headers, body, waits))


def watched(client: Client, seen: Seen) -> Client:
    """The same client, whose answers are told of."""
    client._transport = _Blocking(client._transport, seen)
    return client


def watched_on_loop(client: AsyncClient, seen: Seen) -> AsyncClient:
    """The same client, whose answers are told of."""
    client._transport = _OnLoop(client._transport, seen)
    return client


def sent_by(client: AsyncClient) -> int:
    """How many attempts a watched client made so far."""
    assert isinstance(client._transport, _OnLoop)
    return client._transport.sent
