"""A gateway that is killed in the middle of an import has whole threads only, and the next run brings the others."""

import asyncio
import json
import os
import signal

import httpx2
import pytest

import stateroom
from tests.support.gateway import Tenant, new_tenant
from tests.support.production import serving

THREADS = 30


@pytest.fixture
async def mortal(launcher, deployment, s3_server):
    """The gateway that is killed."""
    async with serving(launcher, deployment.with_buckets(s3_server.url())) as gateway:
        yield gateway


def at(gateway):
    """Where it is now, and its tenant."""
    return Tenant(gateway.url, gateway.deployment.api_key, gateway.deployment.operator_key)


@pytest.fixture
def run(launcher):
    def execute(gateway, *arguments):
        environ = {
            "STATEROOM_URL": gateway.url,
            "STATEROOM_API_KEY": gateway.api_key,
            "STATEROOM_OPERATOR_KEY": gateway.operator_key,
        }
        done = launcher.run(environ, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return execute


def killed_after(mortal, file, share):
    """Send a share of a file and kill the gateway."""
    content = file.read_bytes()
    headers = {"Authorization": f"Bearer {at(mortal).api_key}", "Content-Length": str(len(content))}

    def body():
        end = int(len(content) * share)
        for at in range(0, end, 65_536):
            yield content[at : min(at + 65_536, end)]
        mortal.send(signal.SIGKILL)
        yield content[end:]

    with (
        httpx2.Client(base_url=mortal.url + "/v1", headers=headers, timeout=60) as client,
        pytest.raises(httpx2.RequestError),
    ):
        client.post("/import", content=body())


def threads_of(gateway):
    with stateroom.Client(gateway.url, gateway.api_key, subject="user") as client:
        return {each.thread_id: client.thread(each.thread_id).load().state for each in client.threads()}


async def test_an_import_that_is_killed_again_and_again_ends_whole(running_gateway, mortal, run, tmp_path):
    here, there = new_tenant(running_gateway), at(mortal)
    with stateroom.Client(here.url, here.api_key, subject="user") as client:
        for n in range(THREADS):
            client.thread(f"t{n:02}").save(
                {"n": n, "data": os.urandom(30_000).hex(), "large": os.urandom(100_000).hex()}
            )
            client.artifacts.upload(f"t{n:02}", os.urandom(150_000), name="file")
    expected = threads_of(here)
    recipient = json.loads(run(there, "transfer-key", "show", "--json"))["public_key"]
    file = tmp_path / "tenant.srx"
    run(here, "export", "tenant", "--to", recipient, "-o", file)
    before = 0
    for share in (0.35, 0.7):
        await asyncio.to_thread(killed_after, mortal, file, share)
        assert await mortal.wait() == -signal.SIGKILL
        there = at(await mortal.start())
        found = threads_of(there)
        assert before <= len(found) < THREADS
        assert found == {name: expected[name] for name in found}
        before = len(found)
    assert before > 0
    report = json.loads(run(there, "import", file, "--json"))
    assert report["threads"] == report["verified"] == THREADS - before
    assert {each["reason"] for each in report["passed"]} == {"there"}
    assert threads_of(there) == expected
    run(there, "verify", "tenant")
