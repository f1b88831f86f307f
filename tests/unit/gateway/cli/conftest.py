"""A gateway that answers from a script over real HTTP, so that the commands are tested as they run."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pytest

from gateway.cli.main import run

API_KEY = "sr_live_test_service"
OPERATOR_KEY = "sr_live_test_operator"


@dataclass
class Request:
    method: str
    path: str
    raw_path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class ScriptedGateway:
    """Answers in the order given; remembers what it was asked."""

    url: str = ""
    answers: deque[tuple[int, Any, str]] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)

    def answer(self, body: Any, status: int = 200) -> None:
        self.answers.append((status, body, "application/json"))

    def refuse(self, status: int, code: str, **members: Any) -> None:
        problem = {
            "type": f"https://stateroom.dev/problems/{code}",
            "title": code,
            "status": status,
            "code": code,
            "retryable": False,
            "detail": f"detail of {code}",
            "request_id": "r-77",
        }
        self.answers.append((status, problem | members, "application/problem+json"))

    @property
    def last(self) -> Request:
        return self.requests[-1]


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    script = ScriptedGateway()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer_next(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = urlsplit(self.path)
            script.requests.append(
                Request(
                    self.command,
                    unquote(parts.path),
                    parts.path,
                    dict(parse_qsl(parts.query, keep_blank_values=True)),
                    {name.lower(): value for name, value in self.headers.items()},
                    self.decoded(body) if body else None,
                )
            )
            status, answer, media_type = script.answers.popleft()
            encoded = b"" if answer is None else msgspec.json.encode(answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(encoded)))
            self.send_header("Content-Type", media_type)
            self.end_headers()
            self.wfile.write(encoded)

        def decoded(self, body: bytes) -> Any:
            is_json = self.headers["Content-Type"] == "application/json"
            return msgspec.json.decode(body) if is_json else msgspec.msgpack.decode(body)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer_next  # noqa: N815 - names of the standard library

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield script
        server.shutdown()
        thread.join()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No Stateroom variable of whoever runs the tests."""
    import os

    for name in list(os.environ):
        if name.startswith("STATEROOM_"):
            monkeypatch.delenv(name)
    return monkeypatch


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def command(gateway: ScriptedGateway, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line against the scripted gateway."""
    environment.setenv("STATEROOM_URL", gateway.url)
    environment.setenv("STATEROOM_API_KEY", API_KEY)
    environment.setenv("STATEROOM_OPERATOR_KEY", OPERATOR_KEY)

    def execute(*arguments: str) -> Outcome:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return execute
