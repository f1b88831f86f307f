"""Where the gateway connects to is said by its operator's settings and by nothing else (threat 20)."""

import os
import socket
import threading
from typing import Any
from uuid import uuid4

import httpx
import pytest

from crypto.errors import RootKeyInvalid
from crypto.roots import create_root_key
from storage.blobs.keyspace import BlobLocation
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.blobs.store import BlobExists, BlobUnavailable
from tests.support.gateway import GatewayProcess

VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_KMS", "AWS_ENDPOINT_URL_STS")


class Listener:
    """Somebody else's server, which notes that it was connected to."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connected = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            accepted, _ = self._socket.accept()
            data = accepted.recv(4096)
            accepted.close()
            if data == b"stop":
                return
            self.connected.set()

    def close(self) -> None:
        with socket.create_connection(self._socket.getsockname()) as last:
            last.sendall(b"stop")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def listener():
    made = Listener()
    yield made
    made.close()


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("url", ["s3://bucket?region=eu-central-1", "s3://AK:SK@127.0.0.1:1/bucket?endpoint=http"])
async def test_the_object_store_is_not_taken_from_the_environment(monkeypatch, listener, name, url) -> None:
    monkeypatch.setenv(name, listener.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SK")
    store = S3BlobStore(S3Location.parse(url))
    try:
        endpoint = store._client.meta.endpoint_url
        assert endpoint in {"https://s3.eu-central-1.amazonaws.com", "http://127.0.0.1:1"}
        if endpoint.startswith("http:"):
            with pytest.raises(BlobUnavailable):
                await store.health()
    finally:
        await store.aclose()
    assert not listener.connected.is_set()


async def test_obstore_takes_nothing_from_the_environment_but_credentials(monkeypatch, listener, s3_server) -> None:
    hostile = {
        **dict.fromkeys((*VARIABLES, "AWS_ENDPOINT", "AWS_PROXY_URL", "AWS_METADATA_ENDPOINT"), listener.url),
        "AWS_BUCKET": "another",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_UNSIGNED_PAYLOAD": "true",
        "AWS_SESSION_TOKEN": "stolen",
        "AWS_ACCESS_KEY_ID": "stolen",
        "AWS_SECRET_ACCESS_KEY": "stolen",
        "AWS_SERVER_SIDE_ENCRYPTION": "sse-c",
        "AWS_SSE_CUSTOMER_KEY_BASE64": "AAAA",
        "AWS_ALLOW_INVALID_CERTIFICATES": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_CONDITIONAL_PUT": "disabled",
    }
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    store = S3BlobStore(S3Location.parse(s3_server.url()), threads=1)
    assert {name: os.environ[name] for name in hostile} == hostile  # hidden for a moment, and given back
    where = BlobLocation(uuid4(), uuid4())
    try:
        await store.put_if_absent(where, b"ours")
        with pytest.raises(BlobExists):
            await store.put_if_absent(where, b"other")
        assert await store.get(where) == b"ours"
    finally:
        await store.aclose()
    assert not listener.connected.is_set()


async def test_obstore_takes_credentials_that_the_url_does_not_carry_from_where_boto3_does(
    monkeypatch, tmp_path, s3_server
) -> None:
    profile = tmp_path / "credentials"
    profile.write_text(
        f"[ours]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = {s3_server.secret_key}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_PROFILE", "ours")
    url = s3_server.url().replace(f"{s3_server.access_key}:{s3_server.secret_key}@", "")
    store = S3BlobStore(S3Location.parse(url), threads=1)
    where = BlobLocation(uuid4(), uuid4())
    try:
        await store.put_if_absent(where, b"ours")
        assert await store.get(where) == b"ours"
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    "spec",
    [
        "vault:http://169.254.169.254/transit/key?token_file=/nobody",
        "vault:http://10.0.0.1/transit/key?token_file=/nobody",
        "vault:http://[fd00::1]/transit/key?token_file=/nobody",
        "vault:http://127.0.0.1.evil.example/transit/key?token_file=/nobody",
        "vault:file:///etc/passwd?token_file=/nobody",
        "vault:gopher://127.0.0.1/transit/key?token_file=/nobody",
        "aws-kms:alias/k?region=eu-central-1&endpoint=http://169.254.169.254",
        "aws-kms:alias/k?region=eu-central-1&endpoint=http://metadata.google.internal",
    ],
)
def test_keys_never_travel_to_a_service_in_the_clear(spec: str) -> None:
    with pytest.raises(RootKeyInvalid):
        create_root_key(spec)


def _members(schema: Any, schemas: dict[str, Any], seen: set[str]) -> set[str]:
    """Names of all members a schema can have, through references."""
    if isinstance(schema, list):
        return {name for each in schema for name in _members(each, schemas, seen)}
    if not isinstance(schema, dict):
        return set()
    names = set(schema.get("properties", {}))
    reference = schema.get("$ref", "").rpartition("/")[2]
    if reference and reference not in seen:
        seen.add(reference)
        names |= _members(schemas[reference], schemas, seen)
    return names | {name for value in schema.values() for name in _members(value, schemas, seen)}


def test_no_request_can_name_an_address(running_gateway: GatewayProcess) -> None:
    document = httpx.get(f"{running_gateway.url}/openapi.json").json()
    schemas = document["components"]["schemas"]
    named: set[str] = set()
    for methods in document["paths"].values():
        for one in methods.values():
            named |= _members(one.get("requestBody", {}), schemas, set())
            named |= {each["name"] for each in one["parameters"] if "name" in each}
    named |= {each["name"] for each in document["components"]["parameters"].values()}
    assert {"state", "thread_id", "cursor"} <= named
    words = ("url", "uri", "host", "endpoint", "callback", "webhook", "redirect", "proxy")
    assert [name for name in named if any(word in name.lower() for word in words)] == []
