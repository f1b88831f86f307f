"""What a transit engine is asked, and what it may answer, by a server that says what a test tells it to."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from crypto.errors import KeyDenied, KeyUnavailable, OpenError, RootKeyInvalid
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
        self.asked: list[tuple[str, Any]] = []


class _Exchange(BaseHTTPRequestHandler):
    server: Transit

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        verb = self.path.split("/")[3]
        given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((verb, json.loads(given) if given else None))
        answer = self.server.answers[verb]
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


async def test_a_key_is_wrapped_opened_and_moved_under_its_context(root_key: VaultRootKey, transit: Transit) -> None:
    key = SecretKey.generate()
    plaintext = base64.b64encode(key.borrow()).decode()
    transit.answers["encrypt"] = {"data": {"ciphertext": "vault:v3:AAAA"}}
    transit.answers["rewrap"] = {"data": {"ciphertext": "vault:v4:BBBB"}}
    transit.answers["decrypt"] = {"data": {"plaintext": plaintext}}
    wrapped = await root_key.wrap(key, CONTEXT)
    address = f"http://127.0.0.1:{transit.server_port}/transit/app"
    assert wrapped == WrappedKey(root_key.provider, address, "3", b"vault:v3:AAAA")
    moved = await root_key.rewrap(wrapped, CONTEXT)
    assert moved == WrappedKey("vault", address, "4", b"vault:v4:BBBB")
    assert (await root_key.unwrap(moved, CONTEXT)).kcv() == key.kcv()
    bound = transit.asked[1][1]["context"]
    assert transit.asked == [
        ("keys", None),
        ("encrypt", {"plaintext": plaintext, "context": bound}),
        ("rewrap", {"ciphertext": "vault:v3:AAAA", "context": bound}),
        ("decrypt", {"ciphertext": "vault:v4:BBBB", "context": bound}),
    ]
    await root_key.wrap(key, {**CONTEXT, "version": "2"})
    assert transit.asked[-1][1]["context"] != bound
    assert root_key.recognises(moved)
    assert not root_key.recognises(replace(moved, root_key_id=f"{address}2"))
    await root_key.aclose()


async def test_what_it_did_not_wrap_is_refused_before_the_server_is_asked(
    root_key: VaultRootKey, transit: Transit
) -> None:
    wrapped = WrappedKey("vault", "id", "1", b"vault:v1:AAAA")
    for changes, refusal in (
        ({"provider": "file"}, KeyDenied),
        ({"ciphertext": b"vault:v1:"}, OpenError),
        ({"root_key_version": "2"}, OpenError),
    ):
        for act in (root_key.unwrap, root_key.rewrap):
            with pytest.raises(refusal):
                await act(replace(wrapped, **changes), CONTEXT)
    assert transit.asked == []
    await root_key.aclose()


@pytest.mark.parametrize("key", [{**KEY, "derived": False}, {**KEY, "type": "rsa-2048"}, {}])
async def test_under_a_key_that_would_ignore_the_context_nothing_is_wrapped(
    root_key: VaultRootKey, transit: Transit, key: dict[str, Any]
) -> None:
    transit.answers["keys"] = {"data": key}
    with pytest.raises(RootKeyInvalid, match="derived=true"):
        await root_key.wrap(SecretKey.generate(), CONTEXT)
    assert [verb for verb, _ in transit.asked] == ["keys"]
    await root_key.aclose()


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_is_none_that_passes(root_key: VaultRootKey, transit: Transit, status: int) -> None:
    transit.answers["keys"] = status
    with pytest.raises(KeyDenied, match="refused"):
        await root_key.health()
    await root_key.aclose()


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
