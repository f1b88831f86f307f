import asyncio
import signal
import socket
from contextlib import asynccontextmanager

import pytest

from gateway.admission.limits import Drain
from gateway.cli.failure import Failure
from gateway.cli.local import serving
from gateway.cli.local.supervisor import Supervisor
from gateway.cli.main import run
from gateway.http.connections import Connections
from gateway.telemetry import Metrics

NOBODY = Supervisor()


class Probe:
    """An application that says ready when it is told to, and records its life."""

    def __init__(self, drain_seconds: float = 0.0) -> None:
        self.drain = Drain(drain_seconds)
        self.ready = True
        self.life: list[str] = []
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.announced = asyncio.Event()

    @asynccontextmanager
    async def lifespan(self):
        self.life.append("start")
        yield
        self.life.append("stop")

    async def __call__(self, scope, receive, send):
        status, body = 200, b""
        if scope["path"] == "/slow":
            self.asked.set()
            await self.release.wait()
            body = b"finished"
        elif not self.ready or self.drain.draining:
            status = 503
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def run(
        self, listener: socket.socket, stop: serving.StopRequest, supervisor: Supervisor = NOBODY
    ) -> asyncio.Task[None]:
        return asyncio.create_task(
            serving.serve(
                self,
                listener,
                stop=stop,
                drain=self.drain,
                connections=Connections(Metrics(), ""),
                on_ready=self.announced.set,
                supervisor=supervisor,
            )
        )


async def fetch(listener_port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener_port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def until_it_no_longer_listens(port: int) -> None:
    while True:
        try:
            await fetch(port, "/readyz")
        except ConnectionError:
            return


async def test_a_request_in_flight_is_finished_before_the_process_stops():
    probe = Probe()
    with serving.StopRequest() as stop, serving.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        running = probe.run(listener, stop)
        await probe.announced.wait()
        request = asyncio.create_task(fetch(port, "/slow"))
        await probe.asked.wait()
        signal.raise_signal(signal.SIGTERM)
        await until_it_no_longer_listens(port)
        probe.release.set()
        assert (await request).endswith(b"finished")
        await running
    assert probe.life == ["start", "stop"]


async def test_while_draining_requests_are_served_and_readyz_says_503():
    probe = Probe(drain_seconds=60.0)
    with serving.StopRequest() as stop, serving.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        running = probe.run(listener, stop)
        await probe.announced.wait()
        signal.raise_signal(signal.SIGINT)
        while not (await fetch(port, "/readyz")).startswith(b"HTTP/1.1 503"):
            pass
        probe.release.set()
        assert (await fetch(port, "/slow")).startswith(b"HTTP/1.1 200")
        signal.raise_signal(signal.SIGINT)  # a second one does not wait a minute
        await asyncio.wait_for(running, 10)


async def test_nothing_is_announced_before_readyz_says_200():
    probe = Probe()
    probe.ready = False
    with serving.StopRequest() as stop, serving.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        running = probe.run(listener, stop)
        while True:
            try:
                assert (await fetch(port, "/readyz")).startswith(b"HTTP/1.1 503")
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0)
        assert not probe.announced.is_set()
        probe.ready = True
        await asyncio.wait_for(probe.announced.wait(), 10)
        signal.raise_signal(signal.SIGTERM)
        await running


async def test_a_stop_asked_for_before_the_loop_ran_is_not_lost():
    probe = Probe()
    with serving.StopRequest() as stop, serving.bind("127.0.0.1", 0) as listener:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(probe.run(listener, stop), 10)
    assert probe.life == ["start", "stop"]


async def test_an_application_that_refuses_to_start_is_heard():
    class RefusedError(Exception):
        pass

    class Refusing(Probe):
        @asynccontextmanager
        async def lifespan(self):
            raise RefusedError
            yield

    app = Refusing()
    with (
        serving.StopRequest() as stop,
        serving.bind("127.0.0.1", 0) as listener,
        pytest.raises(RefusedError),
    ):
        await serving.serve(
            app,
            listener,
            stop=stop,
            drain=Drain(0),
            connections=Connections(Metrics(), ""),
            on_ready=lambda: None,
            supervisor=NOBODY,
        )


async def test_what_cannot_be_announced_ends_the_serving_with_the_reason():
    probe = Probe()

    def announce():
        raise Failure("cannot write the file")

    with serving.StopRequest() as stop, serving.bind("127.0.0.1", 0) as listener:
        running = serving.serve(
            probe,
            listener,
            stop=stop,
            drain=probe.drain,
            connections=Connections(Metrics(), ""),
            on_ready=announce,
            supervisor=NOBODY,
        )
        with pytest.raises(Failure, match="cannot write the file"):
            await asyncio.wait_for(running, 20)
    assert probe.life == ["start", "stop"]


async def test_a_signal_after_the_loop_stopped_listening_does_not_end_the_process():
    with serving.StopRequest() as stop:
        with stop.notifying(lambda: None):
            pass
        signal.raise_signal(signal.SIGTERM)
        assert stop.count == 1


def test_signals_are_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with serving.StopRequest():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_port_in_use_is_refused_with_advice():
    with serving.bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(Failure) as refused:
            serving.bind("127.0.0.1", taken.getsockname()[1])
    assert "--port 0" in refused.value.hint


def test_an_embedded_gateway_listens_where_the_environment_says(tmp_path, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("STATEROOM_LISTEN", address)
        code = run(["serve", "--embedded", "--data-dir", str(tmp_path / "data")])
        told = capsys.readouterr().err
        assert (code, f"cannot listen on {address}" in told) == (1, True), told
    monkeypatch.setenv("STATEROOM_LISTEN", "nowhere")
    assert run(["serve", "--embedded", "--data-dir", str(tmp_path / "data")]) == 2
