"""Large values through a gateway whose bucket is configured, slow, or away: what callers are told, and what is kept."""

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import httpx
import pytest

from tests.support.operations import assert_problem
from tests.support.production import ProductionGateway, serving
from tests.support.s3_faults import S3Fault, S3Faults
from tests.support.tenants import new_tenant


@pytest.fixture(scope="module")
async def faults(s3_server) -> AsyncIterator[S3Faults]:
    async with S3Faults(s3_server) as running:
        yield running


@pytest.fixture(scope="module")
async def gateway(deployment, launcher, faults) -> AsyncIterator[ProductionGateway]:
    url = f"{faults.url()}&offload_bytes_min=16384"
    with_bucket = replace(deployment, environ=deployment.environ | {"STATEROOM_S3_URL": url})
    async with serving(launcher, with_bucket) as running:
        yield running


@pytest.fixture
async def client(gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a new tenant."""
    made = new_tenant(gateway.url, gateway.deployment.operator_key)
    async with gateway.client(api_key=made["api_key"]) as opened:
        yield opened


@pytest.fixture
def path():
    return f"/v1/threads/{uuid4()}/checkpoints"


@pytest.fixture(autouse=True)
def healed(faults):
    yield
    faults.heal()


def state(size):
    return {"state": {"image": "A" * size, "n": 1}}


async def test_the_urls_threshold_decides_what_goes_to_the_bucket(client, faults, path):
    faults.requests.clear()
    assert (await client.post(path, json=state(16_000))).status_code == 201
    assert "put_object" not in faults.requests
    assert (await client.post(path, json=state(17_000))).status_code == 201
    assert faults.requests.count("put_object") == 1
    assert (await client.get(f"{path}/latest")).json()["state"] == state(17_000)["state"]


@pytest.mark.parametrize("fault", [S3Fault.SLOW_DOWN, S3Fault.LOST_REQUEST, S3Fault.LOST_ANSWER])
async def test_a_read_while_the_bucket_is_away_is_503_and_the_same_read_works_later(client, faults, path, fault):
    assert (await client.post(path, json=state(200_000))).status_code == 201
    faults.always("get_object", fault)
    for view in ("state", "channels"):
        problem = assert_problem(
            await client.get(f"{path}/latest", params={"view": view}), 503, "blob-store-unavailable"
        )
        assert problem["retryable"]
    assert_problem(await client.get(path, params={"view": "state"}), 503, "blob-store-unavailable")
    # What needs no piece is answered, and so is the same state by reference.
    assert (await client.get(f"{path}/latest", params={"view": "none"})).status_code == 200
    packed = {"Accept": "application/msgpack"}
    by_reference = await client.get(f"{path}/latest", params={"pieces": "refs"}, headers=packed)
    assert (by_reference.status_code, len(by_reference.content) < 2000) == (200, True)
    assert (await client.get("/readyz")).status_code == 200
    faults.heal()
    assert (await client.get(f"{path}/latest")).json()["state"] == state(200_000)["state"]


async def test_a_truncated_piece_is_never_given_as_if_it_were_whole(client, faults, path):
    assert (await client.post(path, json=state(200_000))).status_code == 201
    faults.always("get_object", S3Fault.TRUNCATED)
    assert (await client.get(f"{path}/latest")).status_code in {500, 503}
    faults.heal()
    assert (await client.get(f"{path}/latest")).json()["state"] == state(200_000)["state"]


async def test_a_save_while_the_bucket_is_away_is_503_and_stores_nothing(client, faults, path):
    faults.always("put_object", S3Fault.SLOW_DOWN)
    problem = assert_problem(await client.post(path, json=state(200_000)), 503, "blob-store-unavailable")
    assert problem["retryable"]
    assert (await client.get(f"{path}/latest")).status_code == 404
    assert (await client.post(path, json=state(10_000))).status_code == 201  # small states need no bucket
    faults.heal()
    assert (await client.post(path, json=state(200_000))).status_code == 201
