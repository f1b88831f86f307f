"""`stateroom artifact`, `fsck` and `sweep` as a person runs them."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from storage.blobs.keyspace import BlobLocation, tenant_prefix
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from tests.support.production import Command, Deployment, ProductionGateway, serving


@pytest.fixture
async def gateway(deployment, launcher, s3_server) -> AsyncIterator[ProductionGateway]:
    with_files = Deployment(
        deployment.database,
        deployment.environ | {"STATEROOM_S3_URL": s3_server.url()},
        deployment.operator_key,
        deployment.api_key,
    )
    async with serving(launcher, with_files) as running:
        yield running


async def test_a_file_goes_up_and_comes_down(gateway: ProductionGateway, stateroom: Command, tmp_path: Path) -> None:
    file, back = tmp_path / "screen shot.png", tmp_path / "back.png"
    file.write_bytes(os.urandom(9 * 1024 * 1024))
    thread = str(uuid4())
    up = await stateroom(gateway, "artifact", "upload", thread, file, "--json")
    assert up.returncode == 0, up.stderr
    made = json.loads(up.stdout)
    assert (made["name"], made["media_type"], made["version"]) == ("screen shot.png", "image/png", 1)
    for named in (made["artifact_id"], made["pointer"]):
        down = await stateroom(gateway, "artifact", "download", named, back)
        assert (down.returncode, back.read_bytes() == file.read_bytes()) == (0, True), down.stderr
        shown = await stateroom(gateway, "artifact", "show", named, "--json")
        assert json.loads(shown.stdout) == made
    piped = await stateroom(gateway, "artifact", "download", made["artifact_id"], "-")
    assert piped.stdout == file.read_bytes()
    listed = await stateroom(gateway, "artifact", "list", thread, "--json")
    assert [json.loads(each) for each in listed.stdout.splitlines()] == [made]
    table = await stateroom(gateway, "artifact", "list", thread)
    assert made["artifact_id"].encode() in table.stdout
    url = json.loads((await stateroom(gateway, "artifact", "url", made["artifact_id"], "--json")).stdout)["url"]
    token = url.rpartition("/")[2]
    async with httpx.AsyncClient(base_url=gateway.url) as browser:
        path = f"/v1/artifact-urls/{token}"
        assert (await browser.get(path)).status_code == 200
        assert (await stateroom(gateway, "artifact", "url", made["artifact_id"], "--revoke")).returncode == 0
        assert (await browser.get(path)).status_code == 403
    assert (await stateroom(gateway, "artifact", "delete", made["artifact_id"], "--yes")).returncode == 0
    gone = await stateroom(gateway, "artifact", "show", made["artifact_id"])
    assert (gone.returncode, b"--subject" in gone.stderr) == (3, True)


async def test_a_folder_is_kept_with_a_thread_and_comes_back(
    gateway: ProductionGateway, stateroom: Command, tmp_path: Path
) -> None:
    work, back, thread = tmp_path / "work", tmp_path / "back", str(uuid4())
    work.mkdir()
    (work / ".gitignore").write_text("*.log")
    (work / "a.log").write_text("ignored")
    (work / "b.tmp").write_text("ignored, too")
    (work / "draft").write_text("first")
    (work / "out").symlink_to("/etc/passwd")
    first = await stateroom(gateway, "workspace", "store", thread, work, "--ignore", "*.tmp", "--json")
    assert first.returncode == 0, first.stderr
    (work / "draft").write_text("second")
    second = await stateroom(gateway, "workspace", "store", thread, work, "--ignore", "*.tmp", "--json")
    assert json.loads(second.stdout)["stored_bytes"] == len("second")
    unsaved = await stateroom(gateway, "workspace", "store", thread, work, "--no-save", "--ignore", "*.tmp", "--json")
    assert json.loads(unsaved.stdout) == {"value": json.loads(second.stdout)["value"], "stored_bytes": 0}

    restored = await stateroom(gateway, "workspace", "restore", thread, back, "--json")
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout) == {"files": 2, "written": 2, "written_bytes": 11, "removed": []}
    assert b"out: the link leads out of the folder" in restored.stderr
    assert {each.name: each.read_text() for each in back.iterdir()} == {".gitignore": "*.log", "draft": "second"}
    (back / "more").write_text("more")
    earlier = json.loads(first.stdout)["checkpoint_id"]
    words = ("--checkpoint", earlier, "--remove-others", "--yes")
    at_first = await stateroom(gateway, "workspace", "restore", thread, back, *words)
    assert at_first.returncode == 0, at_first.stderr
    assert {each.name: each.read_text() for each in back.iterdir()} == {".gitignore": "*.log", "draft": "first"}

    no_key = await stateroom(gateway, "workspace", "restore", thread, back, "--key", "other")
    assert (no_key.returncode, b"'other'" in no_key.stderr) == (3, True)
    (tmp_path / "file").write_text("")
    no_folder = await stateroom(gateway, "workspace", "restore", thread, tmp_path / "file" / "below")
    assert (no_folder.returncode, b"cannot use" in no_folder.stderr) == (1, True), no_folder.stderr


async def test_fsck_is_clean_beside_uploads_and_says_what_is_lost(
    gateway: ProductionGateway, stateroom: Command, s3_server
) -> None:
    async with gateway.client() as client:
        tenant_id = UUID((await client.get("/v1/whoami")).json()["tenant_id"])
        headers = {"Stateroom-Artifact-Name": "a"}
        stored = await client.post(f"/v1/threads/{uuid4()}/artifacts", content=b"kept", headers=headers)
        begun = await client.post(f"/v1/threads/{uuid4()}/uploads", json={"name": "u"})
        await client.put(f"/v1/uploads/{begun.json()['upload_id']}/parts/0", content=b"part")
        clean = await stateroom(gateway, "fsck", "--all", "--json")
        assert clean.returncode == 0, clean.stdout + clean.stderr
        (report,) = [one for one in map(json.loads, clean.stdout.splitlines()) if one["tenant_id"] == str(tenant_id)]
        assert (report["clean"], report["faults"]) == (True, {})
        assert report["blobs"] >= 1
        assert b"objects" in clean.stderr  # progress

        bucket = S3BlobStore(S3Location.parse(s3_server.url()), threads=1)
        try:
            await bucket.delete(BlobLocation(tenant_id, UUID(stored.json()["artifact_id"])))
        finally:
            await bucket.aclose()
        lost = await stateroom(gateway, "fsck", "--tenant", tenant_id)
        assert lost.returncode == 1
        assert b"dangling" in lost.stdout
        assert stored.json()["artifact_id"].encode() in lost.stdout


async def test_sweep_removes_an_upload_that_was_given_up(
    gateway: ProductionGateway, stateroom: Command, s3_server
) -> None:
    async with gateway.client() as client:
        tenant_id = UUID((await client.get("/v1/whoami")).json()["tenant_id"])
        begun = await client.post(f"/v1/threads/{uuid4()}/uploads", json={"name": "u"})
        upload_id = begun.json()["upload_id"]
        await client.put(f"/v1/uploads/{upload_id}/parts/0", content=b"part")
        bucket = S3BlobStore(S3Location.parse(s3_server.url()), threads=1)
        try:
            location = BlobLocation(tenant_id, UUID(upload_id)).object_key()
            assert [one.object_key for one in await bucket.list_multiparts(tenant_prefix(tenant_id))].count(location)
            assert (await client.delete(f"/v1/uploads/{upload_id}")).status_code == 204
            swept = await stateroom(gateway, "sweep", "--tenant", tenant_id, "--json")
            assert swept.returncode == 0, swept.stderr
            assert json.loads(swept.stdout)["failed"] == 0
            left = [one.object_key for one in await bucket.list_multiparts(tenant_prefix(tenant_id))]
            assert location not in left
        finally:
            await bucket.aclose()


async def test_one_tenant_or_all_must_be_named(gateway: ProductionGateway, stateroom: Command) -> None:
    for command in ("fsck", "sweep"):
        assert (await stateroom(gateway, command)).returncode == 2
        assert (await stateroom(gateway, command, "--all", "--tenant", uuid4())).returncode == 2
