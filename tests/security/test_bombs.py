"""Small requests that would become large work are refused, and leave the process as it was (threats 21 and 22)."""

from typing import Any

import msgpack
import psutil
import pytest

from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy, assert_problem

SAVE = "/v1/threads/t/checkpoints"
JSON, MSGPACK = "application/json", "application/msgpack"
DIGITS = b"7" * 1_000_000
GROWTH_BYTES_MAX = 96 << 20  # a body may have 32 MiB, and what the allocator keeps is not given back at once
BOMBS: dict[str, tuple[str, bytes]] = {
    "lists 200,000 deep": (JSON, b'{"state":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}"),
    "objects 200,000 deep": (JSON, b'{"state":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001),
    "packed lists 200,000 deep": (MSGPACK, b"\x81\xa5state\x81\xa1a" + b"\x91" * 200_000 + b"\xc0"),
    "an integer of a megabyte as a step": (JSON, b'{"state":{},"step":' + DIGITS + b"}"),
    "an integer of a megabyte in metadata": (JSON, b'{"state":{},"metadata":{"a":' + DIGITS + b"}}"),
    "an integer of a megabyte as a version": (JSON, b'{"channels":{"a":{"version":' + DIGITS + b',"data":""}}}'),
    "an exponent that has no float": (JSON, b'{"state":{},"metadata":{"a":1e999999999}}'),
    "a packed list that says it has 2^32 - 1 elements": (MSGPACK, b"\x81\xa5state\x81\xa1a\xdd\xff\xff\xff\xff"),
    "a packed map that says so": (MSGPACK, b"\x81\xa8metadata\xdf\xff\xff\xff\xff"),
    "packed bytes that say so": (MSGPACK, b"\x81\xa5state\x81\xa1a\xc6\xff\xff\xff\xff"),
    "2,000 channels": (JSON, b'{"state":{' + b",".join(b'"%d":0' % number for number in range(2000)) + b"}}"),
}  # fmt: skip


def _rss(gateway: GatewayProcess) -> int:
    return int(psutil.Process(gateway.pid).memory_info().rss)


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_a_client_error_and_takes_no_memory(running_gateway: GatewayProcess, name: str) -> None:
    media, body = BOMBS[name]
    tenancy = Tenancy(running_gateway)
    with tenancy.client(tenancy.tenant(), "user-1", **{"Content-Type": media}) as client:
        assert client.post(SAVE, content=body).status_code in {400, 413, 422}
        before = _rss(running_gateway)
        for _ in range(10):
            problem = assert_problem(client.post(SAVE, content=body))
            assert problem["status"] in {400, 413, 422}
        assert _rss(running_gateway) - before < GROWTH_BYTES_MAX
        assert client.get("/v1/threads").json()["threads"] == []


@pytest.mark.parametrize("depth", [65, 10_000])
def test_what_arrives_in_a_channel_unread_may_be_deep_and_harms_no_reader(
    running_gateway: GatewayProcess, depth: int
) -> None:
    """An adapter's bytes are opaque: too deep for us, they come back as they are and are never walked."""
    tenancy = Tenancy(running_gateway)
    data = b"\x91" * depth + b"\xc0"
    body: Any = {"channels": {"a": {"version": 1, "encoding": "msgpack", "data": data}}}
    with tenancy.client(tenancy.tenant(), "user-1", **{"Content-Type": MSGPACK, "Accept": MSGPACK}) as client:
        assert client.post(SAVE, content=msgpack.packb(body)).status_code == 201
        loaded = client.get(f"{SAVE}/latest?view=channels")
        assert msgpack.unpackb(loaded.content)["channels"]["a"]["data"] == data
        assert client.get(f"{SAVE}/latest", headers={"Accept": JSON}).status_code == 200
