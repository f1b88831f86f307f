"""The ways to keep state that are compared.

The savers do the same work through the same LangGraph interface. The others are floors that show where time
goes: HTTP without the SDK, and PostgreSQL without anything. The client runs on asyncio's own event loop for
all of them, as most programs do; the blocking methods run in a thread for each writer.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import aiosqlite
import asyncpg
import httpx2
import msgspec
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.engines import FLOOR_DATABASE, PEER_DATABASE, SEALED_PEER_DATABASE, Engines
from benchmarks.workload import Save
from stateroom import current_subject
from stateroom.langgraph import StateroomSaver

STATEROOM = "Stateroom"
STATEROOM_SYNC = "Stateroom, blocking"
LANGGRAPH = "LangGraph"
SEALED = "LangGraph, encrypted"
SQLITE = "LangGraph, SQLite"
MEMORY = "in memory"
HTTPX = "raw HTTP, httpx2"
SOCKET = "raw HTTP, socket"
INSERT = "raw insert"
SERIALISE = "serialising only"

DELTA = ", DeltaChannel"
BLOCKING = frozenset({STATEROOM_SYNC})
WRITERS = 16
POOL_MAX = 20


def new_thread() -> str:
    """A thread nobody used before."""
    return f"t-{uuid4().hex}"


def _on_behalf() -> dict[str, str]:
    """The header that names the user of the innermost ``acting_for``."""
    return {"Stateroom-Subject": current_subject() or ""}


class HttpxSaves:
    """Saves over HTTP with httpx2, bodies encoded beforehand: the gateway without our SDK."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def post(self, path: str, body: bytes) -> None:
        """Save one encoded checkpoint."""
        answer = await self._client.post(path, content=body, headers=_on_behalf())
        assert answer.status_code == 201, answer.text

    async def get(self, path: str) -> bytes:
        """Load one checkpoint, left as it came."""
        answer = await self._client.get(path, headers=_on_behalf())
        assert answer.status_code == 200, answer.text
        return answer.content


class SocketSaves:
    """Saves over HTTP on bare sockets, because a full HTTP client costs more than the gateway it talks to."""

    def __init__(self, engines: Engines, url: str | None = None) -> None:
        address = urlsplit(url or engines.url)
        self._host, self._port = address.hostname, address.port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._headers = (
            f" HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {engines.api_key}\r\n"
            f"Content-Type: application/msgpack\r\nAccept: application/msgpack\r\n"
        )

    async def post(self, path: str, body: bytes) -> None:
        """Save one encoded checkpoint on an idle connection, or on a new one."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(
            f"POST {path}{self._headers}Stateroom-Subject: {current_subject()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        assert head.startswith(b"http/1.1 201 "), answer
        self._idle.append((reader, writer))

    def close(self) -> None:
        """Close the connections, none of which is in use."""
        for _, writer in self._idle:
            writer.close()


class Contenders:
    """Everything that is compared, connected."""

    def __init__(
        self,
        savers: dict[str, BaseCheckpointSaver],
        httpx_saves: HttpxSaves,
        socket_saves: SocketSaves,
        inserts: asyncpg.Pool,
        sqlite: aiosqlite.Connection,
    ) -> None:
        self.savers = savers
        self.raw: dict[str, HttpxSaves | SocketSaves] = {HTTPX: httpx_saves, SOCKET: socket_saves}
        self.httpx = httpx_saves
        self.inserts = inserts
        self.sqlite = sqlite

    async def insert(self, body: bytes) -> None:
        """Commit one row; the least that durable storage in PostgreSQL can cost from Python."""
        await self.inserts.execute("INSERT INTO kept (body) VALUES ($1)", body)


def sqlite_path(engines: Engines) -> Path:
    """The file of the saver for SQLite, on the disk that PostgreSQL uses."""
    return engines.folder.parent / "langgraph.sqlite"


@asynccontextmanager
async def postgres_saver(dsn: str, serde: SerializerProtocol | None = None) -> AsyncIterator[AsyncPostgresSaver]:
    """LangGraph's saver on a pool in autocommit, as its documentation says."""
    pool = AsyncConnectionPool(
        dsn,
        min_size=4,  # it holds a lock around each statement
        max_size=POOL_MAX,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    )
    async with pool:
        saver = AsyncPostgresSaver(pool, serde=serde)
        await saver.setup()
        yield saver


@asynccontextmanager
async def connected(engines: Engines) -> AsyncIterator[Contenders]:
    """Connect every contender as its own documentation says, and close them at the end."""
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(StateroomSaver(engines.url, engines.api_key))
        theirs = await stack.enter_async_context(postgres_saver(engines.dsn(PEER_DATABASE)))
        cipher = EncryptedSerializer.from_pycryptodome_aes(key=os.urandom(32))
        sealed = await stack.enter_async_context(postgres_saver(engines.dsn(SEALED_PEER_DATABASE), cipher))
        sqlite = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(sqlite_path(engines))))
        await sqlite.setup()
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                base_url=engines.url,
                limits=httpx2.Limits(max_connections=100, max_keepalive_connections=100),
                headers={
                    "Authorization": f"Bearer {engines.api_key}",
                    "Content-Type": "application/msgpack",
                    "Accept": "application/msgpack",
                },
            )
        )
        inserts = await stack.enter_async_context(
            asyncpg.create_pool(engines.dsn(FLOOR_DATABASE), min_size=WRITERS, max_size=WRITERS)
        )
        await inserts.execute("CREATE TABLE kept (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea)")
        sockets = SocketSaves(engines)
        stack.callback(sockets.close)
        blocking = stack.enter_context(StateroomSaver(engines.url, engines.api_key))
        savers = {
            STATEROOM: ours,
            STATEROOM_SYNC: blocking,
            LANGGRAPH: theirs,
            SEALED: sealed,
            SQLITE: sqlite,
            MEMORY: InMemorySaver(),
        }
        yield Contenders(savers, HttpxSaves(client), sockets, inserts, sqlite.conn)


def saves_path(thread_id: str) -> str:
    """Where a thread's saves go."""
    return f"/v1/threads/{thread_id}/checkpoints"


def bodies_of(saver: BaseCheckpointSaver, saves: list[Save]) -> list[bytes]:
    """What the SDK would send for ``saves`` of one thread: every channel serialised on its own."""
    bodies = []
    parent_id: str | None = None
    for save in saves:
        channels = {}
        for name, value in save.checkpoint["channel_values"].items():
            encoding, data = saver.serde.dumps_typed(value)
            channels[name] = {"version": save.checkpoint["channel_versions"][name], "encoding": encoding, "data": data}
        bodies.append(_body(save.checkpoint["id"], parent_id, save.metadata["step"], channels))
        parent_id = save.checkpoint["id"]
    return bodies


def bodies_of_bytes(texts: list[bytes]) -> list[bytes]:
    """Saves of one thread with one opaque channel each."""
    bodies = []
    parent_id: str | None = None
    for step, text in enumerate(texts):
        checkpoint_id = str(uuid6(clock_seq=step & 0x3FFF))
        channels = {"text": {"version": step + 1, "encoding": "bytes", "data": text}}
        bodies.append(_body(checkpoint_id, parent_id, step, channels))
        parent_id = checkpoint_id
    return bodies


def _body(checkpoint_id: str, parent_id: str | None, step: int, channels: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(
        {"checkpoint_id": checkpoint_id, "parent_id": parent_id, "step": step, "source": "loop", "channels": channels}
    )
