"""What a client can take without a credential, or by not reading: raw bytes to a gateway on a real socket."""

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.admission import limits
from gateway.app import Gateway
from gateway.http.connections import BoundedConnection, Connections
from gateway.http.exchange import Answer, Facts, Reader
from tests.unit.gateway.conftest import Caller, OneApp
from tests.unit.gateway.doubles import MemoryStore

PATIENCE_SECONDS = 30  # of a test whose claim is that something ends at all
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
SAVE = b"POST /v1/threads/t/checkpoints HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = SAVE + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE_BYTES = 24 * 1024 * 1024  # more than the kernel keeps for both ends of a connection


async def until(condition: Callable[[], Any]) -> Any:
    """What `condition` gives as soon as it gives something."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := condition()):  # noqa: ASYNC110 - sockets, which have no event
            await asyncio.sleep(0)
        return found


class Timers:
    """The running loop, but that time stands still until `pass_by`."""

    def __init__(self) -> None:
        self._set: list[tuple[asyncio.TimerHandle, Callable[[], None]]] = []
        self.ever = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def call_later(self, _: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        handle = asyncio.get_running_loop().call_later(3600, callback)
        self._set.append((handle, callback))
        self.ever += 1
        return handle

    def pass_by(self) -> int:
        """Let everything happen that is waited for; how much that is."""
        due, self._set = [timer for timer in self._set if not timer[0].cancelled()], []
        for handle, callback in due:
            handle.cancel()
            callback()
        return len(due)


class Listening:
    """A gateway that listens, and what it knows of its connections."""

    def __init__(self, app: Gateway, state: ServerState, port: int) -> None:
        self.app = app
        self.state = state
        self.port = port
        self._refused = self._refused_ever()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, sent: bytes) -> bytes:
        """Everything that is answered to `sent`, until the gateway closes the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await self.connect()
            writer.write(sent)
            answer = await reader.read()
            writer.close()
            return answer

    @property
    def in_flight(self) -> float | None:
        return self.app.services.metrics.registry.get_sample_value("stateroom_in_flight")

    @property
    def refused(self) -> Counter[str]:
        """How many connections and requests, by reason."""
        return self._refused_ever() - self._refused

    def _refused_ever(self) -> Counter[str]:
        samples = (sample for metric in self.app.services.metrics.registry.collect() for sample in metric.samples)
        return Counter(
            {each.labels["reason"]: int(each.value) for each in samples if each.name == "stateroom_refused_total"}
        )

    async def until_nothing_is_left(self) -> None:
        await until(lambda: not self.state.connections and not self.in_flight)


@contextlib.asynccontextmanager
async def listening(app: Gateway, timers: Timers | None = None, **bounds: Any) -> AsyncIterator[Listening]:
    config = uvicorn.Config(
        app, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False, server_header=False
    )
    state = ServerState()
    connections = Connections(app.services.metrics, "http://test", **bounds)

    def accept() -> BoundedConnection:
        return BoundedConnection(connections, config=config, server_state=state, app_state={}, _loop=timers)

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    try:
        made = Listening(app, state, server.sockets[0].getsockname()[1])
        yield made
    finally:
        server.close()
        for connection in [*state.connections]:
            connection.transport.abort()
        await made.until_nothing_is_left()


@pytest.fixture
def app(one: OneApp) -> Gateway:
    return one.app


@pytest.fixture
def store(one: OneApp) -> MemoryStore:
    """The application's, without what earlier tests saved."""
    one.store.empty()
    return one.store


@pytest.fixture
def call(call_one_app: Caller) -> Caller:
    return call_one_app


@pytest.fixture
async def gateway(app: Gateway) -> AsyncIterator[Listening]:
    async with listening(app) as made:
        yield made


def problem(answer: bytes) -> dict[str, Any]:
    """The body of a problem that ends a connection, its head checked."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    told: dict[str, Any] = json.loads(body)
    assert status.startswith(f"HTTP/1.1 {told['status']} ")
    assert headers["content-type"] == "application/problem+json"
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"
    assert headers["cache-control"] == "private, no-store"
    assert headers["x-request-id"] == told["request_id"]
    assert ("retry-after" in headers) == told["retryable"]
    return told


def fields(count: int, size: int = 1) -> bytes:
    return b"".join(b"X-%d: %b\r\n" % (number, b"a" * size) for number in range(count))


# --- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "limit"),
    [
        (b"GET /livez HTTP/1.1\r\nX: " + b"a" * limits.HEADER_BYTES_MAX + b"\r\n\r\n", "HEADER_BYTES_MAX"),
        (b"GET /" + b"a" * limits.HEADER_BYTES_MAX + b" HTTP/1.1\r\n\r\n", "HEADER_BYTES_MAX"),
        (b"GET /livez?" + b"a" * 60_000 + b" HTTP/1.1\r\n" + fields(60, 100) + b"\r\n", "HEADER_BYTES_MAX"),
        (b"GET /livez HTTP/1.1\r\n" + fields(limits.HEADERS_MAX + 1) + b"\r\n", "HEADERS_MAX"),
    ],
)
async def test_a_head_that_is_too_large_is_refused_before_anybody_is_asked_for_a_credential(gateway, head, limit):
    told = problem(await gateway.exchange(head))
    assert (told["status"], told["code"], told["limit"]) == (431, "headers-too-large", limit)
    assert told["retryable"] is False
    assert gateway.refused == {"headers-too-large": 1}
    assert gateway.in_flight == 0.0


@pytest.mark.parametrize(
    "begun", [b"GET /livez HTTP/1.1\r\nX: ", b"GET /", b"\r\n", LIVEZ + b"GET /livez HTTP/1.1\r\nX: "]
)
async def test_a_head_without_an_end_is_not_read_on(gateway, begun):
    filler = b"\r\n" if begun == b"\r\n" else b"a"
    answer = await gateway.exchange(begun + filler * (5 * limits.HEADER_BYTES_MAX))
    assert problem(answer[answer.rindex(b"HTTP/1.1 431") :])["limit"] == "HEADER_BYTES_MAX"
    assert answer.startswith(b"HTTP/1.1 200") == (LIVEZ in begun)


async def test_a_head_as_large_as_allowed_is_read_and_so_is_the_large_body_behind_it(gateway, store):
    own = b"Host: x\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\n" % store.mint().encode()
    body = b'{"state":{"a":"%b"}}' % (b"a" * 4 * limits.HEADER_BYTES_MAX)
    more = fields(limits.HEADERS_MAX - 5, 600) + b"Connection: close\r\n"
    target = b"POST /v1/threads/t/checkpoints HTTP/1.1\r\n"
    answer = await gateway.exchange(target + own + more + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 201"), answer


async def test_what_comes_behind_a_chunked_body_is_bounded_too(gateway):
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.connect()
        writer.write(b"GET /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        assert (await reader.readuntil(b'{"alive":true}')).startswith(b"HTTP/1.1 200")
        writer.write(b"X: " + b"a" * (2 * limits.HEADER_BYTES_MAX))
        assert problem(await reader.read())["limit"] == "HEADER_BYTES_MAX"
        writer.close()


async def test_what_comes_behind_a_chunked_body_is_no_header_of_the_request(gateway, store):
    key = store.mint("service")
    body = b'{"state":{}}'
    head = CHUNKED.replace(
        b"Host: x\r\n", b"Host: x\r\nConnection: close\r\nAuthorization: Bearer %b\r\n" % key.encode()
    )
    answer = await gateway.exchange(head + b"%x\r\n%b\r\n0\r\nStateroom-Subject: eve\r\n\r\n" % (len(body), body))
    assert b'"code":"subject-required"' in answer


# --- what is no HTTP -------------------------------------------------------------------------------------------------

MALFORMED = {
    "request line": b"GARBAGE\r\n\r\n",
    "method": b"F@O / HTTP/1.1\r\n\r\n",
    "version": b"GET / HTTP/1.1.1\r\n\r\n",
    "version without a minor one": b"GET / HTTP/2\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 50,
    "raw byte in the path": b"GET /v1/threads/\xff HTTP/1.1\r\n\r\n",
    "header without a colon": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "NUL": b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
    "two lengths": SAVE + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a negative length": SAVE + b"Content-Length: -2\r\n\r\n{}",
    "a huge length": SAVE + b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "length and chunks": SAVE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
    "unknown coding": SAVE + b"Transfer-Encoding: gzip\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "coding beside chunked": SAVE + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "coding in a line of its own": SAVE + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": SAVE + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_request_is_refused_with_a_problem(gateway, name):
    told = problem(await gateway.exchange(MALFORMED[name]))
    assert (told["status"], told["code"], told["retryable"]) == (400, "bad-request", False)
    assert gateway.refused == {"bad-request": 1}


@pytest.mark.parametrize("behind", [b"GARBAGE\r\n\r\n", CHUNKED + b"zz\r\n"])
@pytest.mark.parametrize("before", [LIVEZ, LIVEZ * 3])
async def test_requests_that_were_read_are_answered_before_what_came_behind_them_is_refused(gateway, before, behind):
    answer = await gateway.exchange(before + behind)
    served, refused = answer[: answer.index(b"HTTP/1.1 400")], answer[answer.index(b"HTTP/1.1 400") :]
    assert served.count(b"HTTP/1.1 200") == served.count(b"HTTP/1.1 ") == before.count(LIVEZ)
    assert problem(refused)["code"] == "bad-request"


async def test_a_save_whose_body_goes_wrong_on_the_way_stores_nothing(gateway, store):
    head = CHUNKED.replace(b"Host: x\r\n", b"Host: x\r\nAuthorization: Bearer %b\r\n" % store.mint().encode())
    async with asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.connect()
        writer.write(head + b'c\r\n{"state":{}}\r\n')
        await until(lambda: gateway.in_flight)
        writer.write(b"zz\r\n")
        assert problem(await reader.read())["code"] == "bad-request"
        writer.close()
        await gateway.until_nothing_is_left()
    assert store.checkpoints.saves == []


# --- time and number -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"GET /livez HTTP/1.1\r\nX: a", b"\r\n"])
async def test_a_connection_that_brings_no_whole_request_is_closed(app, begun):
    timers = Timers()
    async with asyncio.timeout(PATIENCE_SECONDS), listening(app, timers) as gateway:
        _, writer = await gateway.connect()
        writer.write(begun)
        await until(timers.pass_by)
        await gateway.until_nothing_is_left()
        writer.close()


@pytest.mark.parametrize("begun", [b"G", b"\r\n"])
async def test_a_connection_that_brings_no_other_whole_request_is_closed(app, begun):
    timers = Timers()
    async with asyncio.timeout(PATIENCE_SECONDS), listening(app, timers) as gateway:
        reader, writer = await gateway.connect()
        writer.write(LIVEZ)
        await reader.readuntil(b'{"alive":true}')
        (connection,) = gateway.state.connections
        writer.write(begun)
        await until(lambda: connection.timeout_keep_alive_task is None)
        await until(timers.pass_by)
        assert await reader.read() == b""
        writer.close()


async def test_a_client_is_not_given_up_while_it_is_answered(app, store):
    store.checkpoints.gate = asyncio.Event()
    timers = Timers()
    body = b'{"state":{}}'
    own = b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n" % (store.mint().encode(), len(body))
    async with asyncio.timeout(PATIENCE_SECONDS), listening(app, timers) as gateway:
        reader, writer = await gateway.connect()
        writer.write(SAVE + own + body + b"G")  # the beginning of another one, which is waited for
        await store.checkpoints.reached.wait()
        assert timers.pass_by() == 1
        store.checkpoints.gate.set()
        assert (await reader.readuntil(b'"c1"')).startswith(b"HTTP/1.1 201")
        await until(timers.pass_by)
        await reader.read()
        writer.close()


async def test_no_timer_is_set_for_a_request_whose_head_comes_in_one_piece(app):
    timers = Timers()
    async with asyncio.timeout(PATIENCE_SECONDS), listening(app, timers) as gateway:
        reader, writer = await gateway.connect()
        for _ in range(5):
            writer.write(LIVEZ)
            await reader.readuntil(b'{"alive":true}')
        assert timers.ever == 1 + 5  # for the connection; and uvicorn's, behind each answer
        writer.close()


async def test_one_connection_more_than_allowed_is_refused_and_there_is_room_when_another_one_ends(app):
    async with asyncio.timeout(PATIENCE_SECONDS), listening(app, connections_max=1) as gateway:
        reader, writer = await gateway.connect()
        writer.write(LIVEZ)
        await reader.readuntil(b'{"alive":true}')
        told = problem(await gateway.exchange(b""))
        assert (told["status"], told["code"], told["retryable"]) == (503, "overloaded", True)
        assert "CONNECTIONS_MAX" in told["detail"]
        assert gateway.refused == {"overloaded": 1}
        writer.write(LIVEZ)  # whoever was there is served on
        await reader.readuntil(b'{"alive":true}')
        writer.close()
        await gateway.until_nothing_is_left()
        answer = await gateway.exchange(LIVEZ.replace(b"Host: x", b"Connection: close"))
        assert answer.startswith(b"HTTP/1.1 200")


# --- answers that are not read ---------------------------------------------------------------------------------------


class Unread:
    """A client that asks for a large state, on a socket that nothing reads until `read` does."""

    def __init__(self, gateway: Listening, key: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._gateway = gateway
        head = b"GET /v1/threads/t/checkpoints/latest HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        self._request = head + b"Authorization: Bearer %b\r\n\r\n" % key.encode()
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def ask(self) -> None:
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._gateway.port))
        await self._loop.sock_sendall(self._socket, self._request)

    async def until_waited_for(self) -> BoundedConnection:
        state = self._gateway.state
        (connection,) = await until(lambda: [each for each in state.connections if each.flow.write_paused])
        assert isinstance(connection, BoundedConnection)
        return connection

    async def read(self) -> bytes:
        read = bytearray()
        while some := await self._loop.sock_recv(self._socket, 1 << 20):
            read += some
        return bytes(read)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
async def large(call, store) -> None:
    """A head of thread `t` that is larger than what the kernel keeps for both ends of a connection."""
    async with call() as client:
        await client.post("/v1/threads/t/checkpoints", json={"state": {"a": "a" * LARGE_BYTES}})


@pytest.mark.usefixtures("large")
async def test_an_answer_that_is_not_read_stays_with_its_request_and_is_whole_when_it_is(gateway, store):
    with contextlib.closing(Unread(gateway, store.mint())) as unread:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await unread.ask()
            connection = await unread.until_waited_for()
            assert connection.transport.get_write_buffer_size() <= 2 * limits.ANSWER_SLICE_BYTES
            assert gateway.in_flight == 1.0
            head, _, body = (await unread.read()).partition(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % len(body) in head
            assert len(json.loads(body)["state"]["a"]) == LARGE_BYTES
            await gateway.until_nothing_is_left()


@pytest.mark.usefixtures("large")
async def test_a_client_that_does_not_read_loses_its_connection_and_its_request_ends(app, store):
    timers = Timers()
    async with listening(app, timers) as gateway:
        with contextlib.closing(Unread(gateway, store.mint())) as unread:
            await unread.ask()
            await unread.until_waited_for()
            assert timers.pass_by() == 1
            await gateway.until_nothing_is_left()


@pytest.mark.slow
@pytest.mark.usefixtures("large")
async def test_answers_that_nobody_reads_fill_what_their_tenant_may_hold_and_no_more(gateway, store, call):
    many = limits.TENANT_HELD_BYTES_MAX // LARGE_BYTES - 1
    key = store.mint()
    async with contextlib.AsyncExitStack() as unread, call() as client:
        for _ in range(many):
            each = unread.enter_context(contextlib.closing(Unread(gateway, key)))
            await each.ask()
        await until(lambda: sum(each.flow.write_paused for each in gateway.state.connections) == many)
        latest = "/v1/threads/t/checkpoints/latest"
        refused = await client.get(latest)
        assert (refused.status_code, refused.json()["code"]) == (429, "tenant-busy")
        assert "TENANT_HELD_BYTES_MAX" in refused.json()["detail"]
        assert (await client.get(latest, params={"view": "none"})).status_code == 200
        await unread.aclose()
        await gateway.until_nothing_is_left()
        assert (await client.get(latest)).status_code == 200


def test_who_has_taken_more_may_take_longer_and_who_waits_too_long_has_no_time_left():
    reader = Reader(send=None, seconds_max=30.0, bytes_per_second_min=1000.0, idle_seconds_max=60.0)  # type: ignore[arg-type]
    assert reader.patience_seconds(taken_bytes=0, waited_seconds=0.0) == 30.0
    assert reader.patience_seconds(taken_bytes=20_000, waited_seconds=10.0) == 40.0
    assert reader.patience_seconds(taken_bytes=20_000, waited_seconds=60.0) <= 0.0
    assert reader.patience_seconds(taken_bytes=10**9, waited_seconds=60.0) == 60.0


async def test_an_answer_whose_reader_takes_nothing_is_given_up():
    async def send(_: object) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await Reader(send, idle_seconds_max=0.01).give(b"a")


@pytest.mark.parametrize(("size", "parts"), [(limits.ANSWER_SLICE_BYTES, 1), (limits.ANSWER_SLICE_BYTES + 1, 3)])
async def test_only_a_large_answer_is_sent_in_slices(size, parts):
    sent = []

    async def send(message: Any) -> None:
        sent.append(message)

    await Answer(200, [], b"a" * size).give(Facts("request", {}), None, send)  # type: ignore[arg-type]
    start, *rest = sent
    assert start["headers"] == [(b"content-length", str(size).encode())]
    assert [each["more_body"] for each in rest] == [True] * (parts - 1) + [False]
    assert sum(len(each["body"]) for each in rest) == size


# --- memory ----------------------------------------------------------------------------------------------------------


async def test_a_body_that_memory_cannot_hold_is_overloaded_and_stores_nothing(gateway, store, monkeypatch):
    def no_room(_connection: HttpToolsProtocol, _body: bytes) -> None:
        raise MemoryError

    save = b"POST /v1/threads/t/checkpoints HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n" % store.mint().encode()
    with monkeypatch.context() as starved:
        starved.setattr(HttpToolsProtocol, "on_body", no_room)
        told = problem(await gateway.exchange(save + b"Content-Length: 12\r\n\r\n" + b'{"state":{}}'))
    assert (told["status"], told["code"], told["retryable"]) == (503, "overloaded", True)
    assert store.checkpoints.saves == []


# --- which version ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [b" HTTP/2.0", b" HTTP/0.9", b"", b" HTTP/1.2", b" HTTP/3.0", b" HTTP/9.9"])
@pytest.mark.parametrize("line", [b"GET /livez", b"GET /v1/whoami", b"POST /v1/threads/t/checkpoints"])
async def test_another_version_of_http_is_refused_whatever_is_asked_for_in_it(gateway, store, line, version):
    own = b"Host: x\r\nAuthorization: Bearer %b\r\nContent-Length: 12\r\n" % store.mint().encode()
    body = b'{"state":{}}'
    told = problem(
        await gateway.exchange(line + version + b"\r\n" + own + b"Content-Type: application/json\r\n\r\n" + body)
    )
    assert (told["status"], told["code"], told["retryable"]) == (505, "http-version-unsupported", False)
    assert gateway.refused == {"http-version-unsupported": 1}
    assert store.checkpoints.saves == []


async def test_a_client_that_begins_with_http_2_is_told_which_version_is_served(gateway):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    told = problem(await gateway.exchange(preface))
    assert (told["status"], told["code"]) == (505, "http-version-unsupported")


async def test_what_comes_behind_a_request_of_another_version_is_not_read(gateway):
    answer = await gateway.exchange(LIVEZ + LIVEZ.replace(b"1.1", b"2.0") + LIVEZ)
    served, refused = answer[: answer.index(b"HTTP/1.1 505")], answer[answer.index(b"HTTP/1.1 505") :]
    assert served.count(b"HTTP/1.1 200") == served.count(b"HTTP/1.1 ") == 1
    assert problem(refused)["code"] == "http-version-unsupported"


# --- which host ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("hosts", [b"", b"Host: a\r\nHost: a\r\n", b"Host: a\r\nHost: b\r\n"])
async def test_a_request_says_its_host_once(gateway, store, version, hosts):
    key = b"Authorization: Bearer %b\r\n" % store.mint().encode()
    for line in (b"GET /v1/whoami", b"GET /v1/threads/t/checkpoints/latest"):
        answer = await gateway.exchange(line + b" HTTP/%b\r\n" % version + hosts + key + b"Connection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400"), answer
        assert b"send the header Host, once" in answer


async def test_a_probe_need_not_say_a_host(gateway):
    answer = await gateway.exchange(b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
