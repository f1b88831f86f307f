"""Both transports against a server on a socket that answers, delays and breaks off as a test says."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import httpx2
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sdk.python.tests.fakes import API_KEY
from stateroom import AsyncClient, BodyTooLarge, Client, ClientClosed, GatewayUnavailable, Timeouts
from stateroom._io.aiohttp_transport import AiohttpTransport
from stateroom._io.httpcore_transport import HttpcoreTransport
from stateroom._io.httpx_transport import AsyncHttpxTransport, HttpxTransport
from stateroom._io.transport import NoAnswer, proxied
from stateroom.langgraph import StateroomSaver

WAITS = (5.0, 5.0)
HEADERS = {"Authorization": "Bearer secret", "Accept": "application/msgpack"}
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Server:
    """Each connection is given to ``serve(self, connection)`` in a thread of its own."""

    def __init__(self, serve, tls=None):
        self._serve = serve
        self._listener = socket.create_server(("127.0.0.1", 0))
        if tls is not None:
            self._listener = tls.wrap_socket(self._listener, server_side=True, do_handshake_on_connect=False)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests = []  # (number of the connection, head, body)
        self.connections = 0
        self._open = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._run, args=(Connection(self, connection),)))
            self._threads[-1].start()

    def _run(self, connection):
        try:
            self._serve(connection)
        except (OSError, ValueError):  # the second: TLS that `close` ended under its reader
            pass
        finally:
            connection.close()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()
        for thread in self._threads:
            thread.join(10)


class Connection:
    def __init__(self, server, connected):
        self.number = server.connections
        self._requests = server.requests
        self._socket = connected
        self._file = connected.makefile("rb")

    def read_head(self):
        lines = []
        while (line := self._file.readline()) not in {b"", b"\r\n"}:
            lines.append(line.decode().strip())
        return lines

    def read(self):
        """One request: its head; ``None`` at the end."""
        lines = self.read_head()
        if not lines:
            return None
        sizes = [int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")]
        self._requests.append((self.number, lines, self._file.read(sizes[0]) if sizes else b""))
        return lines

    def drain(self):
        while self._file.read1():
            pass

    def say(self, raw):
        self._socket.sendall(raw)

    def answer(self, body, *more):
        head = ["HTTP/1.1 200 OK", "Content-Type: application/msgpack", f"Content-Length: {len(body)}", *more]
        self.say("\r\n".join([*head, "", ""]).encode() + body)

    def close(self):
        self._file.close()
        self._socket.close()


def answering(connection):
    while connection.read():
        connection.answer(b"answer")


@pytest.fixture
def server_of():
    servers = []

    def make(serve, tls=None):
        servers.append(Server(serve, tls))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


class OnLoop:
    """An asynchronous transport as the blocking one is used."""

    def __init__(self, _url, make=lambda: AiohttpTransport(AsyncHttpxTransport(None))):
        self._runner = asyncio.Runner()
        self._transport = make()

    def send(self, *request):
        return self._runner.run(self._transport.send(*request))

    def close(self):
        self._runner.run(self._transport.aclose())
        self._runner.close()


@pytest.fixture(params=[HttpcoreTransport, OnLoop], ids=["httpcore2", "aiohttp"])
def transport_of(request):
    made = []

    def make(url):
        made.append(request.param(url))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


EVERY_TRANSPORT = {
    "httpcore2": HttpcoreTransport,
    "aiohttp": OnLoop,
    "httpx2": lambda _url: HttpxTransport(None),
    "httpx2 on a loop": lambda url: OnLoop(url, lambda: AsyncHttpxTransport(None)),
}


@pytest.fixture(params=EVERY_TRANSPORT)
def any_transport_of(request):
    made = []

    def make(url):
        made.append(EVERY_TRANSPORT[request.param](url))
        return made[-1]

    make.name = request.param
    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def blocking_of():
    made = []

    def make(url, **options):
        made.append(HttpcoreTransport(url, **options))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def test_requests_share_a_connection_and_arrive_whole(server_of, transport_of):
    server = server_of(answering)
    transport = transport_of(server.url)
    for body in (b"first", b"", b"x" * 300_000):
        reply = transport.send("POST", server.url + "/v1/a%20b?c=d%20e", HEADERS, body, WAITS)
        assert (reply.status, reply.headers["content-type"], reply.body) == (200, "application/msgpack", b"answer")
    assert server.connections == 1
    assert [body for _, _, body in server.requests] == [b"first", b"", b"x" * 300_000]
    for _, head, _ in server.requests:
        assert head[0] == "POST /v1/a%20b?c=d%20e HTTP/1.1"
        assert {f"Host: 127.0.0.1:{server.port}", "Authorization: Bearer secret"} < set(head)


def test_a_path_before_the_api_and_a_scheme_in_capitals_are_kept(server_of, blocking_of):
    server = server_of(answering)
    url = f"HTTP://127.0.0.1:{server.port}/behind/a/proxy"
    blocking_of(url).send("GET", url + "/v1/whoami", HEADERS, None, WAITS)
    assert server.requests[0][1][0] == "GET /behind/a/proxy/v1/whoami HTTP/1.1"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nanswer\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nanswer",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer",
    ],
    ids=["chunked", "closed afterwards", "after an interim answer"],
)
def test_answers_are_read_whole_however_they_are_framed(server_of, transport_of, raw):
    def serve(connection):
        while connection.read():
            connection.say(raw)
            if b"close" in raw:
                return

    server = server_of(serve)
    transport = transport_of(server.url)
    for _ in range(2):
        assert transport.send("GET", server.url + "/v1/a", HEADERS, None, WAITS).body == b"answer"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\nanswer",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"no HTTP\r\n\r\n",
    ],
    ids=["nothing", "half a body", "half a head", "something else"],
)
def test_what_breaks_off_may_have_been_received_and_is_told_without_its_text(server_of, transport_of, raw):
    def serve(connection):
        connection.read()
        connection.say(raw)

    server = server_of(serve)
    with pytest.raises(NoAnswer) as caught:
        transport_of(server.url).send("POST", server.url + "/v1/a", HEADERS, b"body", WAITS)
    assert caught.value.received
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "secret" not in str(caught.value)


def test_an_answer_that_only_the_end_of_the_connection_ends_is_none(server_of, blocking_of):
    def serve(connection):
        connection.read()
        connection.say(b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\n\r\nans")

    server = server_of(serve)
    with pytest.raises(NoAnswer):
        blocking_of(server.url).send("GET", server.url + "/v1/a", HEADERS, None, WAITS)


def test_answers_without_a_body_need_no_length(server_of, transport_of):
    def serve(connection):
        while connection.read():
            connection.say(b"HTTP/1.1 204 No Content\r\n\r\n")

    server = server_of(serve)
    transport = transport_of(server.url)
    for _ in range(2):
        assert transport.send("DELETE", server.url + "/v1/a", HEADERS, None, WAITS)[::2] == (204, b"")
    assert server.connections == 1


def test_a_gateway_that_is_not_there_has_received_nothing(transport_of):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
    with pytest.raises(NoAnswer) as caught:
        transport_of(url).send("POST", url + "/v1/a", HEADERS, b"body", WAITS)
    assert not caught.value.received


def test_an_answer_that_came_too_late_is_not_taken_for_the_next_request(server_of, transport_of):
    gave_up = threading.Event()

    def serve(connection):
        if connection.number == 1:
            connection.read()
            gave_up.wait(10)
            connection.answer(b"late")
        else:
            answering(connection)

    server = server_of(serve)
    transport = transport_of(server.url)
    with pytest.raises(NoAnswer) as caught:
        transport.send("POST", server.url + "/v1/a", HEADERS, b"first", (60.0, 0.5))
    assert caught.value.received
    gave_up.set()
    assert transport.send("POST", server.url + "/v1/a", HEADERS, b"second", WAITS).body == b"answer"
    assert server.connections == 2


@pytest.mark.slow
def test_a_large_body_may_take_longer_than_one_wait(server_of, transport_of):
    body = bytes(24 * 1024 * 1024)  # more than socket buffers hold
    pace = threading.Event()

    def serve(connection):
        slow = Slow(connection, pace)
        connection._file = slow
        connection.read()
        connection.answer(b"answer")

    class Slow:
        """Reads a body in steps with a pause before each, together longer than the wait."""

        def __init__(self, connection, pace):
            self._file, self._pace = connection._file, pace

        def readline(self):
            return self._file.readline()

        def read(self, size):
            steps = 14
            for _ in range(steps):
                self._pace.wait(0.25)
                self._file.read(size // steps)
            return b""

        def close(self):
            self._file.close()

    server = server_of(serve)
    assert transport_of(server.url).send("PUT", server.url + "/v1/a", HEADERS, body, (0.5, 3.0)).body == b"answer"


def trickling(at_once, rest):
    """Answers whole in the end, but much later than the attempt of a test lasts, and without pausing so long."""
    never = threading.Event()

    def serve(connection):
        while connection.read():
            connection.say(at_once)
            for byte in rest:
                never.wait(0.02)
                connection.say(bytes([byte]))

    return serve


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: 100\r\n\r\n"


def test_an_attempt_ends_although_the_body_of_its_answer_still_trickles_in(server_of, any_transport_of):
    server = server_of(trickling(HEAD, bytes(100)))
    with pytest.raises(NoAnswer, match="Timeout") as caught:
        any_transport_of(server.url).send("GET", server.url + "/v1/a", HEADERS, None, (5.0, 0.5))
    assert caught.value.received


# httpx2 without a loop has no time limit for a head.
@pytest.mark.parametrize("any_transport_of", ["httpcore2", "aiohttp", "httpx2 on a loop"], indirect=True)
def test_an_attempt_ends_although_the_head_of_its_answer_still_trickles_in(server_of, any_transport_of):
    server = server_of(trickling(b"", HEAD + bytes(100)))
    with pytest.raises(NoAnswer, match="Timeout") as caught:
        any_transport_of(server.url).send("GET", server.url + "/v1/a", HEADERS, None, (5.0, 0.5))
    assert caught.value.received


QUICK = Timeouts(connect_seconds=5.0, attempt_seconds=0.3, total_seconds=0.5)


def test_a_call_ends_although_every_answer_trickles_in(server_of):
    server = server_of(trickling(HEAD, bytes(100)))

    async def on_loop():
        async with AsyncClient(server.url, API_KEY, timeouts=QUICK) as client:
            with pytest.raises(GatewayUnavailable):
                await client.request("GET", "/whoami")

    asyncio.run(on_loop())
    with Client(server.url, API_KEY, timeouts=QUICK) as client, pytest.raises(GatewayUnavailable):
        client.request("GET", "/whoami")


def too_large(connection):
    """Refuses every body before it is there, and hangs up, which resets the connection."""
    connection.read_head()
    body = b'{"type":"urn:x","title":"too large","status":413,"code":"body-too-large","retryable":false}'
    connection.say(
        b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/problem+json\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def too_large_for_long(connection):
    """As `too_large`, but hangs up after the client: what an event loop had received is lost with a reset."""
    too_large(connection)
    connection.drain()


# In one piece, and in slices that are more than socket buffers hold.
@pytest.mark.parametrize("size", [900_000, 16 * 1024 * 1024])
def test_an_answer_that_comes_before_the_body_was_sent_is_the_answer(server_of, any_transport_of, size):
    server = server_of(too_large if any_transport_of.name in {"httpcore2", "httpx2"} else too_large_for_long)
    transport = any_transport_of(server.url)
    for _ in range(2):
        reply = transport.send("POST", server.url + "/v1/a", HEADERS, bytes(size), WAITS)
        assert (reply.status, b"body-too-large" in reply.body) == (413, True)
    assert server.connections == 2


TOO_LARGE = ["x" * 1000] * 16 * 1024
PARENT = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "parent"}}
CHECKPOINT = {
    "v": 4,
    "id": "child",
    "ts": "2026-11-21T10:00:00+00:00",
    "channel_values": {"a": TOO_LARGE},
    "channel_versions": {"a": "1"},
    "versions_seen": {},
    "updated_channels": None,
}


def test_what_is_over_the_limit_is_refused_by_one_request_in_every_way_of_saving(server_of):
    server, patient = server_of(too_large), server_of(too_large_for_long)

    async def on_loop():
        async with AsyncClient(patient.url, API_KEY, subject="u") as client:
            with pytest.raises(BodyTooLarge):
                await client.thread("t").save({"a": TOO_LARGE})
        async with StateroomSaver(patient.url, API_KEY, subject="u") as saver:
            with pytest.raises(BodyTooLarge):
                await saver.aput(PARENT, CHECKPOINT, {}, {"a": "1"})
            with pytest.raises(BodyTooLarge):
                await saver.aput_writes(PARENT, [("a", TOO_LARGE)], "task")

    with Client(server.url, API_KEY, subject="u") as client, pytest.raises(BodyTooLarge):
        client.thread("t").save({"a": TOO_LARGE})
    with StateroomSaver(server.url, API_KEY, subject="u") as saver:
        with pytest.raises(BodyTooLarge):
            saver.put(PARENT, CHECKPOINT, {}, {"a": "1"})
        with pytest.raises(BodyTooLarge):
            saver.put_writes(PARENT, [("a", TOO_LARGE)], "task")
    asyncio.run(on_loop())
    assert (server.connections, patient.connections) == (3, 3)


def test_a_connection_that_the_gateway_ended_is_not_used_again(server_of, blocking_of):
    ended = threading.Event()

    def serve(connection):
        connection.read()
        connection.answer(b"answer")
        connection.close()
        ended.set()

    server = server_of(serve)
    transport = blocking_of(server.url)
    for _ in range(3):
        assert transport.send("POST", server.url + "/v1/a", HEADERS, b"body", WAITS).body == b"answer"
        assert ended.wait(10)
        ended.clear()
    assert server.connections == 3


def test_threads_have_connections_of_their_own_and_no_more_than_may_be(server_of, blocking_of):
    both_asked, go_on = threading.Barrier(3), threading.Event()

    def serve(connection):
        while connection.read():
            both_asked.wait(10)
            go_on.wait(10)
            connection.answer(b"%d" % connection.number)

    server = server_of(serve)
    transport = blocking_of(server.url, connections_max=2)
    replies = []

    def ask():
        replies.append(transport.send("GET", server.url + "/v1/a", HEADERS, None, WAITS).body)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    both_asked.wait(10)
    with pytest.raises(NoAnswer) as caught:
        transport.send("GET", server.url + "/v1/a", HEADERS, None, (5.0, 0.05))
    assert not caught.value.received
    assert server.connections == 2
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(replies) == [b"1", b"2"]


def test_closing_ends_idle_connections_now_and_the_others_with_their_answers(server_of, blocking_of):
    asked, go_on, ended = threading.Event(), threading.Event(), threading.Semaphore(0)

    def serve(connection):
        while head := connection.read():
            if "slow" in head[0]:
                asked.set()
                go_on.wait(10)
            connection.answer(b"answer")
        ended.release()

    server = server_of(serve)
    transport = blocking_of(server.url)
    replies = []
    slow = threading.Thread(
        target=lambda: replies.append(transport.send("GET", server.url + "/slow", HEADERS, None, WAITS).body)
    )
    slow.start()
    assert asked.wait(10)
    transport.send("GET", server.url + "/fast", HEADERS, None, WAITS)
    transport.close()
    assert ended.acquire(timeout=10)
    go_on.set()
    slow.join(10)
    assert replies == [b"answer"]
    assert ended.acquire(timeout=10)
    with pytest.raises(ClientClosed, match="closed"):
        transport.send("GET", server.url + "/fast", HEADERS, None, WAITS)


@pytest.fixture
def tls(tmp_path):
    """Two sides of TLS with a certificate for 127.0.0.1 that signs itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, private.public_key(), 1, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = tmp_path / "gateway.pem"
    pem.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    gateway = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    gateway.load_cert_chain(pem)
    client = httpx2.create_ssl_context()
    client.load_verify_locations(pem)
    return gateway, client


FIRST_CALL = """
import asyncio, gc, ssl, sys
from stateroom import StateroomError
from stateroom.langgraph import StateroomSaver

def contexts():
    return sum(isinstance(each, ssl.SSLContext) for each in gc.get_objects())

async def on_a_loop(saver, config):
    await saver.aget_tuple(config)

before, modules = contexts(), set(sys.modules)
with StateroomSaver(sys.argv[1], sys.argv[2], subject="user-42") as saver:
    config = {"configurable": {"thread_id": "t"}}
    try:
        saver.get_tuple(config) if sys.argv[3] == "blocking" else asyncio.run(on_a_loop(saver, config))
    except StateroomError as error:
        print("told", error.code)
    print(contexts() - before, *sorted({name.partition(".")[0] for name in set(sys.modules) - modules}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["blocking", "loop"])
def test_the_first_call_to_an_http_gateway_imports_nothing_and_makes_no_tls_context(server_of, mode):
    server = server_of(answering)
    command = [sys.executable, "-c", FIRST_CALL, server.url, API_KEY, mode]
    environ = {name: text for name, text in os.environ.items() if name.lower() not in PROXY_VARIABLES}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr
    assert len(server.requests) == 1


# On one loop, so that the answer and the end of TLS come to the client together.
ANSWERED_ONCE = """
import asyncio, ssl, sys
from stateroom._io.aiohttp_transport import AiohttpTransport
from stateroom._io.httpx_transport import AsyncHttpxTransport

async def answer(reader, writer):
    await reader.readuntil(b"body")
    writer.write(b"HTTP/1.1 201 Created\\r\\nConnection: close\\r\\nContent-Length: 6\\r\\n\\r\\nanswer")
    writer.close()

async def main():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[1])
    server = await asyncio.start_server(answer, "127.0.0.1", ssl=tls)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/a"
    transport = AiohttpTransport(AsyncHttpxTransport(None))
    for _ in range(2):
        reply = await transport.send("POST", url, {}, b"body", (5.0, 5.0))
        print(reply.status, reply.body)
    await transport.aclose()
    server.close()

asyncio.run(main())
"""


@pytest.mark.usefixtures("tls")
def test_an_answer_over_tls_that_ends_its_connection_is_an_answer(tmp_path):
    pem = str(tmp_path / "gateway.pem")
    command = [sys.executable, "-c", ANSWERED_ONCE, pem]
    environ = {**os.environ, "SSL_CERT_FILE": pem}  # aiohttp reads it when it is imported
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    assert done.stdout == "201 b'answer'\n" * 2, done.stdout + done.stderr


def test_a_target_that_fails_while_content_is_read_is_not_told_as_a_gateway_that_does_not_answer(
    server_of, blocking_of
):
    server = server_of(answering)
    transport = blocking_of(server.url)

    def copy():
        with transport.stream("GET", server.url + "/v1/a", HEADERS, WAITS) as answer:
            assert next(answer.pieces()) == b"answer"
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        copy()
    assert transport.send("GET", server.url + "/v1/a", HEADERS, None, WAITS).body == b"answer"


def test_content_that_breaks_off_is_told_after_what_had_arrived(server_of, blocking_of):
    def serve(connection):
        connection.read()
        connection.say(HEAD + b"half")

    server = server_of(serve)
    arrived = []
    with (
        pytest.raises(NoAnswer) as caught,
        blocking_of(server.url).stream("GET", server.url + "/v1/a", HEADERS, WAITS) as answer,
    ):
        arrived.extend(answer.pieces())
    assert b"".join(arrived) == b"half"
    assert caught.value.received


def test_the_connections_that_a_fork_inherits_are_closed_in_it(server_of, blocking_of):
    ended = threading.Event()

    def serve(connection):
        answering(connection)
        ended.set()

    server = server_of(serve)
    transport = blocking_of(server.url)
    transport.send("GET", server.url + "/v1/a", HEADERS, None, WAITS)
    transport._pool.mine().leave()  # here in the process that opened them, so that the server sees the end
    assert ended.wait(10)


def test_a_client_that_was_closed_opens_no_connection_for_content(server_of):
    server = server_of(answering)
    client = Client(server.url, API_KEY, subject="user-42")
    client.close()
    with pytest.raises(ClientClosed, match="closed"), client._transport.stream("GET", server.url, HEADERS, WAITS):
        pass
    assert server.connections == 0


def test_only_a_gateway_with_a_trusted_certificate_is_sent_anything(server_of, blocking_of, tls):
    gateway, trusting = tls
    server = server_of(answering, gateway)
    url = server.url.replace("http:", "https:")
    with pytest.raises(NoAnswer, match="SSLCertVerificationError") as caught:
        blocking_of(url, tls=httpx2.create_ssl_context).send("POST", url + "/v1/a", HEADERS, b"body", WAITS)
    assert not caught.value.received
    assert server.requests == []
    with pytest.raises(NoAnswer, match="SSLCertVerificationError"):
        blocking_of(url).send("POST", url + "/v1/a", HEADERS, b"body", WAITS)
    named = url.replace("127.0.0.1", "localhost")
    with pytest.raises(NoAnswer, match="SSLCertVerificationError"):
        blocking_of(named, tls=lambda: trusting).send("POST", named + "/v1/a", HEADERS, b"body", WAITS)
    assert server.requests == []
    transport = blocking_of(url, tls=lambda: trusting)
    for body in (b"first", bytes(2 * 1024 * 1024)):
        assert transport.send("POST", url + "/v1/a", HEADERS, body, WAITS).body == b"answer"
    assert [body for _, _, body in server.requests] == [b"first", bytes(2 * 1024 * 1024)]
    assert len({number for number, _, _ in server.requests}) == 1


@contextmanager
def environment(monkeypatch, **variables):
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    yield


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({}, "https://gateway.test", False),
        ({"HTTPS_PROXY": "http://proxy.test:3128"}, "https://gateway.test:8443/under", True),
        ({"HTTPS_PROXY": "http://proxy.test:3128"}, "http://gateway.test", False),
        ({"ALL_PROXY": "socks5://proxy.test"}, "https://gateway.test", True),
        ({"HTTPS_PROXY": "http://proxy.test", "NO_PROXY": "gateway.test"}, "https://gateway.test:8443", False),
        ({"HTTPS_PROXY": "http://proxy.test", "NO_PROXY": ".test,localhost"}, "https://gateway.test", False),
        ({"HTTPS_PROXY": "http://proxy.test", "NO_PROXY": "other.test"}, "https://gateway.test", True),
        ({"HTTPS_PROXY": "http://proxy.test", "NO_PROXY": "*"}, "https://gateway.test", False),
    ],
)
def test_the_environment_says_whether_there_is_a_proxy(monkeypatch, variables, url, expected):
    with environment(monkeypatch, **variables):
        assert proxied(url) is expected


def who(connection):
    while connection.read():
        connection.answer(msgspec.msgpack.encode({"kind": "subject", "subject_id": "user-1", "permissions": []}))


def ask_who(url):
    with Client(url, API_KEY) as client:
        client.request("GET", "/whoami")


async def ask_who_on_loop(url):
    async with AsyncClient(url, API_KEY) as client:
        await client.request("GET", "/whoami")


@pytest.mark.parametrize("ask", [ask_who, lambda url: asyncio.run(ask_who_on_loop(url))], ids=["Client", "AsyncClient"])
def test_clients_go_through_the_proxy_of_the_environment_and_past_it_where_it_says_so(monkeypatch, server_of, ask):
    proxy, gateway = server_of(who), server_of(who)
    with environment(monkeypatch, HTTP_PROXY=proxy.url):
        ask("http://gateway.test")
    assert [head[0] for _, head, _ in proxy.requests] == ["GET http://gateway.test/v1/whoami HTTP/1.1"]
    with environment(monkeypatch, HTTP_PROXY=proxy.url, NO_PROXY="127.0.0.1"):
        ask(gateway.url)
    assert [head[0] for _, head, _ in gateway.requests] == ["GET /v1/whoami HTTP/1.1"]
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("ask", [ask_who, lambda url: asyncio.run(ask_who_on_loop(url))], ids=["Client", "AsyncClient"])
def test_a_netrc_file_with_the_gateways_host_changes_nothing(monkeypatch, tmp_path, server_of, ask):
    server = server_of(who)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password wrong\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with environment(monkeypatch):
        ask(server.url)
    credentials = [line for line in server.requests[0][1] if line.lower().startswith("authorization:")]
    assert credentials == [f"Authorization: Bearer {API_KEY}"]
