"""A gateway that the system gives no more memory: large requests are refused, and it goes on."""

import resource
from pathlib import Path

import msgspec

from tests.support.production import ProductionGateway, serving

JSON, MSGPACK = "application/json", "application/msgpack"
STATE = {"text": "A" * 4_000_000, "list": ["y" * 1000] * 12_000}  # one long text goes another way than many
BODIES = {JSON: msgspec.json.encode({"state": STATE}), MSGPACK: msgspec.msgpack.encode({"state": STATE})}


def give_room(gateway: ProductionGateway, mib: int) -> None:
    """Let the gateway have so much more address space than now."""
    pages = int(Path(f"/proc/{gateway.pid}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (mib << 20)
    resource.prlimit(gateway.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


async def test_without_memory_large_requests_are_refused_and_the_gateway_goes_on(deployment, launcher):
    path = "/v1/threads/large/checkpoints"
    statuses = set()
    async with serving(launcher, deployment) as gateway, gateway.client() as client:
        assert (await client.post(path, json={"state": STATE})).status_code == 201
        for mib in (4, 24, 32, 40, 100):
            for media_type, body in BODIES.items():
                headers = {"Content-Type": media_type, "Accept": media_type}
                give_room(gateway, mib)
                for answer in (
                    await client.post(path, content=body, headers=headers),
                    await client.get(f"{path}/latest", headers=headers),
                ):
                    statuses.add(answer.status_code)
                    assert answer.status_code in {200, 201} or b"overloaded" in answer.content
        give_room(gateway, 1024)
        assert (await client.get(f"{path}/latest")).json()["state"] == STATE
    assert statuses == {200, 201, 503}
