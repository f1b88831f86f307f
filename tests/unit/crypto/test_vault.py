"""What a transit engine may answer that is no answer, by a server that says what a test tells it to."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from crypto.errors import KeyUnavailable, OpenError
from crypto.keyring import SecretKey
from crypto.roots import WrappedKey
from crypto.roots.vault import VaultRootKey

CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "tenant", "version": "1"}
KEY = {"type": "aes256-gcm96", "derived": True}


class Transit(ThreadingHTTPServer):
    """Answers by the verb of the transit engine; a number is a status without a body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.answers: dict[str, Any] = {"keys": {"data": KEY}}


class _Exchange(BaseHTTPRequestHandler):
    server: Transit

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.server.answers[self.path.split("/")[3]]
        status, body = (answer, b"") if isinstance(answer, int) else (200, json.dumps(answer).encode())
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _answer  # noqa: N815  the standard library calls them so


@pytest.fixture
def transit() -> Iterator[Transit]:
    with Transit() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("t")
    return path


@pytest.fixture
def root_key(transit: Transit, token_file: Path) -> VaultRootKey:
    return VaultRootKey.open(f"http://127.0.0.1:{transit.server_port}/transit/app", {"token_file": str(token_file)})


def test_it_shows_no_token(root_key: VaultRootKey) -> None:
    assert repr(root_key).startswith("VaultRootKey('http://127.0.0.1:")


async def test_what_is_no_ciphertext_is_an_outage(root_key: VaultRootKey, transit: Transit) -> None:
    for answer in ({"ciphertext": "x"}, {"ciphertext": "vault:v0:AAAA"}, {}):
        transit.answers["encrypt"] = {"data": answer}
        with pytest.raises(KeyUnavailable):
            await root_key.wrap(SecretKey.generate(), CONTEXT)
    await root_key.aclose()


async def test_what_is_no_key_is_damage(root_key: VaultRootKey, transit: Transit) -> None:
    wrapped = WrappedKey("vault", "id", "1", b"vault:v1:AAAA")
    for plaintext in ("ä", "AAAA", "", 7):
        transit.answers["decrypt"] = {"data": {"plaintext": plaintext}}
        with pytest.raises(OpenError) as caught:
            await root_key.unwrap(wrapped, CONTEXT)
        assert caught.value.code == "format"
    await root_key.aclose()


async def test_a_server_that_fails_or_answers_something_else_may_pass(root_key: VaultRootKey, transit: Transit) -> None:
    for answer in (500, 503, [], {"data": []}):
        transit.answers["keys"] = answer
        with pytest.raises(KeyUnavailable):
            await root_key.health()
    await root_key.aclose()


async def test_a_token_file_that_holds_no_token_may_pass(root_key: VaultRootKey, token_file: Path) -> None:
    for content in (b"", b"\xff", b"two words"):
        token_file.write_bytes(content)  # noqa: ASYNC240  a few bytes
        with pytest.raises(KeyUnavailable):
            await root_key.health()
    await root_key.aclose()
