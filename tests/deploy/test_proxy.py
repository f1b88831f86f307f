"""The proxies of ``deploy/proxy`` before real gateways: TLS, streams, who is let in, gateways that come and go."""

import asyncio
import functools
import hashlib
import inspect
import json
import os
import re
import signal
import ssl
import warnings
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx
import httpx2
import psutil
import pytest
from msgspec import structs

import stateroom
from gateway.admission import limits
from gateway.cli.local.serving import FINISH_SECONDS_MAX, KEEP_ALIVE_SECONDS
from gateway.readiness import PROBE_SECONDS_MAX
from gateway.settings import Settings
from tests.support.metrics import exposition, until_in_flight, value_of
from tests.support.proxies import FOLDER, Certificate, HAProxy, Nginx
from tests.support.rotation import Rotation, under_load

deployed = pytest.mark.deployed
FILE_BYTES = 200 * 2**20
MEBIBYTE = bytes(range(256)) * 4096
DRAIN_SECONDS = "10"  # as where nothing is said
KINDS = {"haproxy": HAProxy, "nginx": Nginx}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return Certificate(folder)


@pytest.fixture(params=list(KINDS))
def kind(request, tool):
    """How to begin a proxy of one kind."""

    def begin(folder, certificate, gateways, **more):
        return KINDS[request.param](tool(request.param), folder, certificate, gateways, **more)

    return begin


@pytest.fixture
def haproxy(tool):
    def begin(folder, certificate, gateways, **more):
        return HAProxy(tool("haproxy"), folder, certificate, gateways, **more)

    return begin


@pytest.fixture(scope="module")
async def rotation(deployment, launcher, s3_server):
    async with Rotation(launcher, deployment.with_buckets(s3_server.url()), drain_seconds=DRAIN_SECONDS) as running:
        yield running


def client(proxy, headers=(), **options):
    context = proxy.certificate.context()
    return httpx.AsyncClient(base_url=proxy.url, headers=dict(headers), verify=context, timeout=90, **options)


async def until(holds):
    """Wait until something in another process holds."""
    async with asyncio.timeout(30):
        while not (found := holds()) or (inspect.isawaitable(found) and not await found):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def read_head(reader):
    """The status and the headers of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(head.split(" ", 2)[1]), head


# --- what needs no tool -----------------------------------------------------------------------------------------------


def test_time_limits_fit_those_of_the_gateway():
    texts = {name: (FOLDER / name).read_text() for name in ("haproxy.cfg", "nginx.conf")}

    def number(name, pattern):
        (found,) = re.findall(pattern, texts[name])
        return int(found)

    def haproxy(pattern):
        return number("haproxy.cfg", pattern)

    drain_seconds = next(each.default for each in structs.fields(Settings) if each.name == "drain_seconds")
    until_out_of_rotation = haproxy(r" inter (\d+)s ") * (haproxy(r" fall (\d+) ") + 1)
    assert until_out_of_rotation < drain_seconds
    assert haproxy(r"timeout check (\d+)s") > PROBE_SECONDS_MAX
    assert haproxy(r"pool-purge-delay (\d+)s") < KEEP_ALIVE_SECONDS
    assert haproxy(r"timeout http-request (\d+)s") == limits.HEADER_SECONDS_MAX
    assert haproxy(r"tune.bufsize (\d+)") > limits.HEADER_BYTES_MAX + 1024
    assert haproxy(r"tune.http.maxhdr (\d+)") > limits.HEADERS_MAX
    assert haproxy(r" maxconn (\d+) ") < limits.CONNECTIONS_MAX
    assert haproxy(r"hard-stop-after (\d+)s") > FINISH_SECONDS_MAX
    assert haproxy(r"timeout server (\d+)s") > limits.ANSWER_SECONDS_MAX
    assert number("nginx.conf", r" keepalive_timeout (\d+)s;\n    }") < KEEP_ALIVE_SECONDS
    assert number("nginx.conf", r"client_header_timeout (\d+)s") == limits.HEADER_SECONDS_MAX
    assert number("nginx.conf", r"proxy_read_timeout (\d+)s") > limits.ANSWER_SECONDS_MAX


def test_the_readme_lists_the_variables_that_haproxy_reads():
    read = set(re.findall(r"STATEROOM_[A-Z0-9_]+", (FOLDER / "haproxy.cfg").read_text()))
    told = set(re.findall(r"STATEROOM_[A-Z0-9_]+", (FOLDER / "README.md").read_text()))
    assert {re.sub(r"GATEWAY_\d", "GATEWAY_N", each) for each in read} <= told


# --- the files themselves ---------------------------------------------------------------------------------------------


@deployed
def test_the_program_finds_no_fault_with_its_file(kind, certificate, tmp_path):
    checked = kind(tmp_path, certificate, [(8080, 9080), (8081, 9081), (8082, 9082), (8083, 9083)]).check()
    said = checked.stdout + checked.stderr
    assert checked.returncode == 0, said
    assert "WARNING" not in said
    assert "[warn]" not in said


@deployed
def test_gateways_whose_names_are_not_known_yet_keep_nothing_from_starting(haproxy, certificate, tmp_path):
    checked = haproxy(tmp_path, certificate, []).check()
    assert checked.returncode == 0, checked.stderr
    said = [line for line in checked.stderr.splitlines() if "WARNING" in line]
    assert [line for line in said if "could not resolve address 'gateway-" not in line] == []


@deployed
def test_the_line_of_the_readme_for_addresses_from_dns_alone_fits_the_file(haproxy, certificate, tmp_path):
    (template,) = re.findall(r"`(server-template [^`]+)`", (FOLDER / "README.md").read_text())

    def from_dns(text):
        text, replaced = re.subn(r"    server gateway-1 .*\n    server gateway-2 .*\n", f"    {template}\n", text)
        assert replaced == 1
        return text

    assert haproxy(tmp_path, certificate, [], edit=from_dns).check().returncode == 0


@deployed
async def test_haproxy_gives_up_being_root_and_the_file_system(haproxy, certificate, rotation, tmp_path):
    begun = haproxy(tmp_path, certificate, rotation.ports, STATEROOM_PROXY_USER="haproxy")
    async with begun as proxy, client(proxy) as asking:
        assert (await asking.get("/livez")).status_code == 200
        process = psutil.Process(proxy.pid)
        assert process.username() == "haproxy"
        root = f"/proc/{proxy.pid}/root"
        assert await asyncio.to_thread(os.readlink, root) == "/var/lib/haproxy"


# --- TLS and who is let in --------------------------------------------------------------------------------------------


@deployed
async def test_tls_is_1_2_or_1_3_and_nothing_older(kind, certificate, rotation, tmp_path):
    async with kind(tmp_path, certificate, rotation.ports) as proxy:
        async with client(proxy) as trusting:
            answer = await trusting.get("/livez")
            assert answer.status_code == 200
            assert answer.headers["strict-transport-security"] == "max-age=31536000"
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            assert (await shake_hands(proxy, version)).version() == name
        assert (await shake_hands(proxy, ssl.TLSVersion.TLSv1_3, "h2", "http/1.1")).selected_alpn_protocol() == "h2"
        for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                await shake_hands(proxy, version)


async def shake_hands(proxy, version, *protocols):
    context = proxy.certificate.context()
    context.set_ciphers("ALL:@SECLEVEL=0")  # as a client that speaks anything
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = version
    if protocols:
        context.set_alpn_protocols(protocols)
    _, writer = await asyncio.open_connection("localhost", proxy.port, ssl=context)
    writer.close()
    return writer.get_extra_info("ssl_object")


@deployed
async def test_operators_are_served_in_their_own_networks_only(kind, certificate, rotation, tmp_path):
    def from_elsewhere(text):
        return text.replace("127.0.0.0/8 ::1", "10.0.0.0/8 fd00::/8").replace("allow 127.0.0.0/8", "allow 10.0.0.0/8")

    operator = {"Authorization": f"Bearer {rotation.deployment.operator_key}"}
    async with kind(tmp_path, certificate, rotation.ports) as inside, client(inside, operator) as asking:
        assert (await asking.get("/v1/admin/tenants")).status_code == 200
    async with kind(tmp_path, certificate, rotation.ports, edit=from_elsewhere) as outside:
        async with client(outside, operator) as asking:
            refused = await asking.get("/v1/admin/tenants")
            assert refused.status_code == 403
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["code"] == "permission-denied"
            assert (await asking.get("/livez")).status_code == 200
        for target in (
            "/v1/admin/tenants",
            "/v1/%61dmin/tenants",
            "/v1%2fadmin/tenants",
            "//v1/admin/tenants",
            "/v1//admin/tenants",
            "/v1/./admin/tenants",
            "/v1/x/../admin/tenants",
            "/V1/Admin/tenants",
            "/v1/admin;x/tenants",
            f"https://localhost:{outside.port}/v1/admin/tenants",
            "http://elsewhere/v1/admin/tenants",
        ):
            reader, writer = await outside.connect()
            key = operator["Authorization"]
            request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\nConnection: close\r\n\r\n"
            writer.write(request.encode())
            status, _ = await read_head(reader)
            assert status in {400, 403, 404}, target
            writer.close()


@deployed
async def test_haproxy_takes_its_own_networks_from_the_environment(haproxy, certificate, rotation, tmp_path):
    operator = {"Authorization": f"Bearer {rotation.deployment.operator_key}"}
    for networks, status in (("10.0.0.0/8 127.0.0.0/8", 200), ("10.0.0.0/8 192.168.0.0/16", 403)):
        begun = haproxy(tmp_path, certificate, rotation.ports, STATEROOM_PROXY_ADMIN_NETWORKS=networks)
        async with begun as proxy, client(proxy, operator) as asking:
            assert (await asking.get("/v1/admin/tenants")).status_code == status


@deployed
async def test_one_address_gets_so_many_connections_and_no_more(haproxy, certificate, rotation, tmp_path):
    limit = {"STATEROOM_PROXY_CONNECTIONS_PER_ADDRESS": "5"}
    async with haproxy(tmp_path, certificate, rotation.ports, **limit) as proxy:
        kept = [await proxy.connect() for _ in range(5)]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await proxy.connect()
        for _, writer in kept:
            writer.close()
        async with client(proxy) as later:
            await until(functools.partial(_answers, later))


async def _answers(asking):
    try:
        return (await asking.get("/livez")).status_code == 200
    except httpx.TransportError:
        return False


@deployed
async def test_a_head_that_is_too_large_is_refused_by_name(kind, certificate, rotation, tmp_path):
    async with kind(tmp_path, certificate, rotation.ports) as proxy, client(proxy, rotation.headers()) as asking:
        fits = await asking.get("/v1/whoami", headers={"X-Long": "x" * 60_000})
        assert fits.status_code == 200
        refused = await asking.get("/v1/whoami", headers={"X-Long": "x" * 70_000})
        assert (refused.status_code, refused.json()["code"]) == (431, "headers-too-large")
        assert "x-request-id" in refused.headers
        # Beyond what it reads, a proxy refuses by itself; HAProxy has one word for everything that it cannot read.
        refused = await asking.get("/v1/whoami", headers={"X-Long": "x" * 200_000})
        assert refused.status_code in {400, 431}


@deployed
async def test_what_a_client_says_of_where_it_comes_from_reaches_nobody(kind, certificate, tmp_path):
    async with stub(echo) as ports, kind(tmp_path, certificate, [ports]) as proxy, client(proxy) as asking:
        sent = {
            "Forwarded": "for=1.2.3.4",
            "X-Forwarded-For": "1.2.3.4",
            "X-Forwarded-Host": "elsewhere",
            "X-Forwarded-Proto": "http",
            "Stateroom-Subject": "user-1",
        }
        seen = (await asking.get("/v1/whoami", headers=sent)).json()["head"].lower()
        assert "stateroom-subject: user-1" in seen
        assert "forwarded" not in seen


# --- what passes through ----------------------------------------------------------------------------------------------


@deployed
async def test_a_file_of_200_mib_is_on_its_way_through_before_it_is_there(kind, certificate, rotation, tmp_path):
    async with kind(tmp_path, certificate, rotation.ports) as proxy:
        reader, writer = await proxy.connect()
        lines = [f"{name}: {text}" for name, text in rotation.headers().items()]
        head = [
            f"POST /v1/threads/large-{uuid4().hex}/artifacts HTTP/1.1",
            f"Host: localhost:{proxy.port}",
            *lines,
            "Content-Type: application/octet-stream",
            "Stateroom-Artifact-Name: large.bin",
            f"Content-Length: {FILE_BYTES}",
        ]
        writer.write("\r\n".join([*head, "", ""]).encode())
        pieces = FILE_BYTES // len(MEBIBYTE)
        for _ in range(pieces // 2):
            writer.write(MEBIBYTE)
            await writer.drain()
        # Half of it is sent. A proxy that kept it would not have spoken to a gateway yet.
        in_flight = [asyncio.create_task(until_in_flight(port, 1)) for _, port in rotation.ports]
        done, others = await asyncio.wait(in_flight, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in others:
            task.cancel()
        for _ in range(pieces - pieces // 2):
            writer.write(MEBIBYTE)
            await writer.drain()
        status, _ = await read_head(reader)
        assert status == 201
        length = int(re.findall(rb"content-length: (\d+)", _.lower().encode())[0])
        artifact_id = json.loads(await reader.readexactly(length))["artifact_id"]
        writer.close()
        digest, size = hashlib.sha256(), 0
        async with (
            client(proxy, rotation.headers()) as asking,
            asking.stream("GET", f"/v1/artifacts/{artifact_id}/content") as answer,
        ):
            assert answer.status_code == 200
            async for piece in answer.aiter_bytes():
                digest.update(piece)
                size += len(piece)
        assert size == FILE_BYTES
        assert digest.digest() == hashlib.sha256(MEBIBYTE * pieces).digest()
        family = [psutil.Process(proxy.pid), *psutil.Process(proxy.pid).children(recursive=True)]
        assert sum(each.memory_info().rss for each in family) < FILE_BYTES / 2


@deployed
async def test_a_reader_that_takes_nothing_is_cut(kind, certificate, rotation, tmp_path):
    content = MEBIBYTE * 64
    async with kind(tmp_path, certificate, rotation.ports) as proxy, client(proxy, rotation.headers()) as asking:
        named = {"Stateroom-Artifact-Name": "film", "Content-Type": "video/mp4"}
        thread = f"/v1/threads/slow-{uuid4().hex}/artifacts"
        artifact_id = (await asking.post(thread, content=content, headers=named)).json()["artifact_id"]
        reader, writer = await proxy.connect(receive_bytes=4096)
        lines = [f"{name}: {text}" for name, text in rotation.headers().items()]
        request = [f"GET /v1/artifacts/{artifact_id}/content HTTP/1.1", "Host: localhost", *lines]
        writer.write("\r\n".join([*request, "", ""]).encode())
        assert (await read_head(reader))[0] == 200
        assert [await in_flight_at(port) for _, port in rotation.ports].count(1) == 1
        # Its connections with the gateways end while it takes nothing, within the minute that both allow, and a little.
        async with asyncio.timeout(limits.STREAM_IDLE_SECONDS_MAX + 30):
            for _, port in rotation.ports:
                await patiently_until_idle(port)
        writer.transport.abort()


async def in_flight_at(metrics_port):
    return value_of(await exposition(metrics_port), "stateroom_in_flight")


async def patiently_until_idle(metrics_port):
    while True:
        try:
            return await until_in_flight(metrics_port, 0)
        except TimeoutError:
            continue


@deployed
async def test_events_may_be_silent_for_longer_than_other_answers(kind, certificate, tmp_path):
    def impatient(text):
        text = re.sub(r"(timeout (?:client|server) +)\d+s", r"\g<1>1s", text)
        return re.sub(r"(proxy_read_timeout) \d+s", r"\1 1s", text)

    async with (
        stub(silent_for_three_seconds) as ports,
        kind(tmp_path, certificate, [ports], edit=impatient) as proxy,
        client(proxy) as asking,
    ):
        events = {"Accept": "text/event-stream"}
        async with asking.stream("GET", "/v1/events?since=1", headers=events) as stream:
            assert stream.status_code == 200
            assert [line async for line in stream.aiter_lines() if line] == ["data: first", "data: second"]
        assert (await asking.get("/v1/threads")).status_code == 504


@deployed
async def test_haproxy_repeats_what_changes_nothing_and_nothing_else(haproxy, certificate, tmp_path):
    anew = httpx.Limits(max_keepalive_connections=0)
    async with (
        stub(hang_up) as dying,
        stub(echo) as living,
        haproxy(tmp_path, certificate, [dying, living]) as proxy,
        client(proxy, limits=anew) as asking,
    ):
        assert {(await asking.get("/v1/whoami")).status_code for _ in range(8)} == {200}
        assert {(await asking.post("/v1/threads/t/checkpoints", json={})).status_code for _ in range(8)} == {200, 502}


@deployed
async def test_a_line_of_the_log_has_no_id_no_query_and_no_key(kind, certificate, rotation, tmp_path):
    async with kind(tmp_path, certificate, rotation.ports) as proxy:
        async with client(proxy, rotation.headers("secret-subject")) as asking:
            answer = await asking.get("/v1/threads/secret-thread/checkpoints?status=secret-query")
            await asking.get("/docs")
            await asking.get('/v1/"quoted"')
        reader, writer = await proxy.connect()
        writer.write(b"GET /v1/secret-path?secret-query HTTP/9\r\nX-Secret: secret\r\n\r\n")
        await reader.read()
        writer.close()
        await until(lambda: len(proxy.requests) >= 4)
        lines = proxy.requests
    assert "secret" not in proxy.log
    assert rotation.deployment.api_key.partition(".")[0] not in proxy.log
    first = lines[0]
    assert (first["method"], first["route"], first["status"]) == ("GET", "/v1/threads", answer.status_code)
    assert first["request_id"] == answer.headers["x-request-id"]
    assert first["tls"] == "TLSv1.3"
    assert lines[1]["route"] == "/docs"


# --- gateways that come and go ----------------------------------------------------------------------------------------


@deployed
async def test_haproxy_loses_no_request_of_anybody_while_gateways_restart_in_turn(
    haproxy, certificate, rotation, tmp_path
):
    async with haproxy(tmp_path, certificate, rotation.ports) as proxy:
        headers = rotation.headers()
        async with under_load(lambda: client(proxy, headers), "rolling") as load:
            for gateway in rotation.gateways:
                assert await gateway.stop() == 0
                await gateway.start()
                enough = len(load.answers) + 100
                await until(lambda enough=enough: len(load.answers) >= enough)
        assert load.failed == []
        async with client(proxy, headers) as asking:
            for thread_id, saved in load.saved.items():
                listed = await asking.get(f"/v1/threads/{thread_id}/checkpoints/latest")
                assert listed.json()["state"] == {"n": saved - 1}
        assert {each["server"] for each in proxy.requests} == {"gateway-1", "gateway-2"}


@deployed
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_the_client_notices_nothing_of_a_gateway_that_goes(kind, certificate, rotation, tmp_path, how):
    saved, over = {}, asyncio.Event()

    async def use(number):
        trusting = httpx2.AsyncHTTPTransport(verify=certificate.context())
        api_key = rotation.deployment.api_key
        async with stateroom.AsyncClient(proxy.url, api_key, subject=f"user-{number}", transport=trusting) as speaking:
            thread = speaking.thread(f"kept-{uuid4().hex}")
            while not over.is_set():
                await thread.save({"n": saved.get(number, 0)})
                saved[number] = saved.get(number, 0) + 1
                head = await thread.load()
                assert head is not None
                assert head.state == {"n": saved[number] - 1}

    async def more(count):
        until = {number: saved.get(number, 0) + count for number in range(4)}
        while any(saved.get(number, 0) < wanted for number, wanted in until.items()):
            assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
            await asyncio.sleep(0.02)

    leaving = rotation.gateways[0]
    async with kind(tmp_path, certificate, rotation.ports) as proxy:
        tasks = [asyncio.create_task(use(number)) for number in range(4)]
        try:
            async with asyncio.timeout(120):
                await more(5)
                if how == "killed":
                    await leaving.kill()
                else:
                    assert await leaving.stop() == 0
                await more(40)
                await leaving.start()
                await more(40)
        finally:
            over.set()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            if not leaving.pid:
                await leaving.start()
        assert ended == [None] * 4


@deployed
async def test_haproxy_that_is_told_to_leave_ends_what_is_under_way(haproxy, certificate, tmp_path):
    asked = asyncio.Event()

    async def answer(head, writer):
        asked.set()
        await silent_for_three_seconds(head, writer)

    async with stub(answer) as ports, haproxy(tmp_path, certificate, [ports]) as proxy, client(proxy) as asking:
        under_way = asyncio.create_task(asking.get("/v1/threads"))
        await asked.wait()
        os.kill(proxy.pid, signal.SIGUSR1)
        assert (await under_way).text == "data: first\n\ndata: second\n\n"
        await until(lambda: not proxy.runs)


@deployed
async def test_haproxy_shows_itself_to_prometheus_and_to_what_balances_it(
    haproxy, certificate, launcher, deployment, tmp_path
):
    async with Rotation(launcher, deployment, count=1) as alone:
        begun = haproxy(tmp_path, certificate, alone.ports, STATEROOM_GATEWAY_2="127.0.0.1:1")
        async with begun as proxy, httpx.AsyncClient(base_url=f"http://127.0.0.1:{proxy.metrics_port}") as asking:
            assert (await asking.get("/livez")).json() == {"alive": True}
            assert (await asking.get("/readyz")).json() == {"ready": True}
            assert (await asking.get("/anything")).status_code == 404
            text = (await asking.get("/metrics")).text
            assert 'haproxy_server_status{proxy="gateways",server="gateway-1",state="UP"} 1' in text
            assert 'haproxy_backend_active_servers{proxy="gateways"} 1' in text  # what an alert goes by
            await alone.gateways[0].kill()
            await until(functools.partial(_is_out, asking))
            assert (await asking.get("/readyz")).json() == {"ready": False}


async def _is_out(asking):
    return (await asking.get("/readyz")).status_code == 503


# --- stand-ins for gateways -------------------------------------------------------------------------------------------


@asynccontextmanager
async def stub(answer):
    """Something that is ready and answers everything else with ``answer``; yields its port twice."""

    async def serve(reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if head.startswith("GET /readyz "):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                else:
                    length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                    await reader.readexactly(int(length[1]) if length else 0)
                    await answer(head, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield port, port
    finally:
        server.close()


async def echo(head, writer):
    body = json.dumps({"head": head}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


async def hang_up(_, writer):
    writer.transport.abort()
    raise ConnectionError


async def silent_for_three_seconds(_, writer):
    await asyncio.sleep(3)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for event in (b"data: first\n\n", b"data: second\n\n"):
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(3)
    writer.write(b"0\r\n\r\n")
