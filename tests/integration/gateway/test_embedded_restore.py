"""A backup of an embedded gateway's database that is put back beside its newer object store."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.integration.gateway.test_black_box_entry import folder
from tests.support.production import EmbeddedGateway

__all__ = ["folder"]  # a fixture


@pytest.fixture
def begun(launcher, folder):
    """Begins a gateway on the folder, which may refuse."""
    return lambda: EmbeddedGateway(launcher, folder / "data")


@pytest.fixture
def agent(begun):
    """A client of a gateway on the folder, which is stopped in the end."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[httpx.AsyncClient]:
        gateway = await begun().start()
        try:
            async with gateway.client() as client:
                yield client
        finally:
            code = await gateway.stop()
        assert code == 0, gateway.log

    return serving


@pytest.fixture
def accept(launcher):
    return lambda data_dir: launcher.run(
        {"PATH": os.environ["PATH"]}, "restore", "accept", "--json", "--data-dir", data_dir
    )


async def test_what_was_shredded_since_is_shredded_again_before_the_folder_is_served_from(folder, begun, agent, accept):
    data_dir, backup = folder / "data", folder / "backup"
    async with agent() as client:
        saved = await client.post("/v1/threads/t1/checkpoints", json={"state": {"a": 1}})
        assert saved.status_code == 201, saved.text
    copying = ["cp", "-a", data_dir / "postgres", backup]  # with its owner
    await asyncio.to_thread(subprocess.run, copying, check=True)
    async with agent() as client:
        shredded = await client.post("/v1/subjects/user-1/shred", json={"confirm": "user-1"})
        assert shredded.status_code == 202, shredded.text
    shutil.rmtree(data_dir / "postgres")
    backup.rename(data_dir / "postgres")
    restored = begun()
    with pytest.raises(AssertionError, match="stateroom restore accept"):
        await restored.start()
    assert await restored.wait() != 0
    accepted = accept(data_dir)
    assert accepted.returncode == 0, accepted.stderr
    assert [each.get("keys_destroyed") for each in map(json.loads, accepted.stdout.splitlines())][-1] == 2
    again = accept(data_dir)
    assert (again.returncode, again.stdout) == (0, b"")
    async with agent() as client:
        assert (await client.get("/v1/threads/t1/checkpoints/latest")).status_code == 410


def test_a_folder_that_is_none_is_refused_and_not_made_one(folder, accept):
    refused = accept(folder / "typo")
    assert refused.returncode == 1
    assert b"not the folder of an embedded gateway" in refused.stderr
    assert not (folder / "typo").exists()
