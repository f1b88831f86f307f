"""What a gateway's metrics listener says."""

import asyncio
import socket

import httpx

_PATIENCE_SECONDS = 20.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def exposition(port: int) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"http://127.0.0.1:{port}/metrics")).text


def value_of(text: str, name: str) -> float:
    """The sample called `name`, labels included as they are written."""
    samples = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}
    assert name in samples, text
    return samples[name]


async def until_in_flight(port: int, count: int) -> None:
    """Return once the gateway serves exactly `count` requests."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while value_of(await exposition(port), "stateroom_in_flight") != count:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)
