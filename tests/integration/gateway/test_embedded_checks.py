"""`stateroom fsck` and `sweep` on the folder of an embedded gateway, while it runs and while it does not."""

import json
import os
from uuid import UUID, uuid4

import httpx
import pytest

from crypto.roots import FileRootKey
from gateway.embedded.s3 import EmbeddedS3
from storage.blobs.keyspace import BlobLocation
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from tests.integration.gateway.test_black_box_entry import folder
from tests.support.production import EmbeddedGateway

__all__ = ["folder"]  # a fixture


@pytest.fixture
def stateroom(launcher):
    return lambda *arguments: launcher.run({"PATH": os.environ["PATH"]}, *arguments)


@pytest.fixture
def check(stateroom):
    def run(data_dir):
        done = stateroom("fsck", "--all", "--json", "--data-dir", data_dir)
        return done, [json.loads(line) for line in done.stdout.splitlines()]

    return run


async def plant(url, location):
    bucket = S3BlobStore(S3Location.parse(url), threads=1)
    try:
        await bucket.put_if_absent(location, b"of nobody")
    finally:
        await bucket.aclose()


async def test_a_folder_is_checked_whether_its_gateway_runs_or_not(folder, check, launcher, stateroom):
    data_dir = folder / "data"
    gateway = await EmbeddedGateway(launcher, data_dir).start()
    try:
        async with gateway.client("user-42") as client:
            assert (await client.get("/readyz")).json()["archive"] is True
            named = {"Stateroom-Artifact-Name": "a"}
            stored = await client.post("/v1/threads/t1/artifacts", content=b"kept", headers=named)
            assert stored.status_code == 201, stored.text
            tenant_id = UUID((await client.get("/v1/whoami")).json()["tenant_id"])
        done, reports = check(data_dir)
        assert done.returncode == 0, done.stderr
        assert [(each["blobs"], each["objects"], each["faults"]) for each in reports] == [(1, 1, {})]
        assert not gateway._is_over()
        made = stateroom("init", "--another", "--decrypt-any", "--expires", "1h", "--json", "--data-dir", data_dir)
        assert made.returncode == 0, made.stderr
        key = json.loads(made.stdout)["api_key"]
        operator = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=gateway.url, headers=operator, timeout=30) as client:
            assert "decrypt-any" in (await client.get("/v1/whoami")).text
        doctor = stateroom("doctor", "--json", "--data-dir", data_dir)
        found = {check["check"]: check for check in json.loads(doctor.stdout)["checks"]}
        assert doctor.returncode == 0, found
        assert {check["outcome"] for check in found.values()} == {"ok"}
        assert found["history"]["detail"] == "the database has every event that was anchored, and every shred"
        assert "STATEROOM_OPERATOR_KEY verifies" in found["API key pepper"]["detail"]
        swept = stateroom("sweep", "--all", "--json", "--data-dir", data_dir)
        assert (swept.returncode, json.loads(swept.stdout)["failed"]) == (0, 0)
    finally:
        code = await gateway.stop()
    assert code == 0, gateway.log
    with EmbeddedS3(data_dir) as server:
        await plant(server.archive_url(), BlobLocation(tenant_id, uuid4(), "archive"))
        await plant(server.url(), BlobLocation(tenant_id, uuid4()))
    done, reports = check(data_dir)
    assert done.returncode == 0, done.stderr
    assert [(each["blobs"], each["objects"], each["young"]) for each in reports] == [(1, 3, 2)]
    # The key of the folder's tenant is under the folder's root key, and no other one will do.
    FileRootKey.create(folder / "other.key")
    (folder / "other.key").replace(data_dir / "root.key")
    doctor = stateroom("doctor", "--json", "--data-dir", data_dir)
    assert doctor.returncode == 1
    failed = {each["check"]: each for each in json.loads(doctor.stdout)["checks"] if each["outcome"] == "failed"}
    assert list(failed) == ["wrapped keys"]
    assert "tenant keys under file " in failed["wrapped keys"]["detail"]
    assert "root-keys.md" in failed["wrapped keys"]["fix"]
    for engine in ("postgres", "s3"):
        assert not (data_dir / f"{engine}.pid").exists()


@pytest.mark.parametrize("command", ["fsck --all", "sweep --all", "doctor"])
def test_a_folder_that_is_none_is_refused_and_not_made_one(folder, stateroom, command):
    done = stateroom(*command.split(), "--data-dir", folder / "typo")
    assert done.returncode == 1
    assert b"not the folder of an embedded gateway" in done.stderr
    assert not (folder / "typo").exists()
