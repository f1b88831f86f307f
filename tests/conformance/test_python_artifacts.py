"""Artifacts through the Python client, kept by a real gateway and a real object store."""

import asyncio
import hashlib
import io
import subprocess
import sys
import zipfile
from random import Random  # noqa: TID251 - seeded

import httpx2
import pytest

from stateroom import (
    ArtifactNotFound,
    ArtifactShared,
    AsyncClient,
    Client,
    ClientShareRequired,
    DigestMismatch,
    InlinedArtifact,
    UploadIncomplete,
    UploadNotFound,
    new_client_share,
)
from stateroom._artifacts import requests, transfers

MIB = 1024 * 1024
PART_BYTES = 8 * MIB
FILLING = hashlib.sha256(b"artifact").digest() * (MIB // 32)


def content_of(size):
    numbered = (number.to_bytes(8, "big") + FILLING[8:] for number in range(size // MIB + 1))
    return b"".join(numbered)[:size]


BIG = content_of(2 * PART_BYTES + 12_345)


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, len(BIG)])
def test_content_comes_back_whatever_its_size(client, thread_id, size, tmp_path):
    content = content_of(size)
    artifact = client.artifacts.upload(thread_id, content, name="x")
    assert artifact.digest == transfers.digest_field(hashlib.sha256(content).digest())
    assert (artifact.size_bytes, artifact.thread_id, artifact.version) == (size, thread_id, 1)
    assert client.artifacts.download(artifact) == content
    client.artifacts.download(artifact.pointer, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == content
    assert client.artifacts.get(artifact.artifact_id) == artifact


def test_a_load_brings_along_what_the_state_names(client, thread_id):
    small = client.artifacts.upload(thread_id, b"small", name="a.txt", media_type="text/plain")
    large = client.artifacts.upload(thread_id, content_of(MIB + 1), name="b.bin")
    thread = client.thread(thread_id)
    state = {"shots": [small.pointer, large.pointer]}
    saved = thread.save(state)
    assert thread.load().artifacts == {}
    expected = {
        small.artifact_id: InlinedArtifact(name="a.txt", media_type="text/plain", size_bytes=5, data=b"small"),
        large.artifact_id: InlinedArtifact(
            name="b.bin", media_type="application/octet-stream", size_bytes=MIB + 1, too_large=True
        ),
    }
    for head in (thread.load(resolve_artifacts=True), thread.at(saved.checkpoint_id, resolve_artifacts=True)):
        assert head.artifacts == expected
        assert head.state == state
    previewed = client.artifacts.upload(thread_id, b"third", name="c.txt", media_type="text/plain", preview=b"3rd")
    saved = thread.save({"shot": previewed.pointer})
    described = InlinedArtifact(name="c.txt", media_type="text/plain", size_bytes=5, preview=b"3rd")
    for head in (
        thread.load(resolve_artifacts="previews"),
        thread.at(saved.checkpoint_id, resolve_artifacts="previews"),
    ):
        assert head.artifacts == {previewed.artifact_id: described}


async def test_an_asynchronous_load_brings_them_along_as_well(gateway_env, subject, thread_id):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        small = await client.artifacts.upload(thread_id, b"small", name="a.txt", media_type="text/plain")
        thread = client.thread(thread_id)
        saved = await thread.save({"shot": small.pointer})
        expected = InlinedArtifact(name="a.txt", media_type="text/plain", size_bytes=5, data=b"small")
        for head in (
            await thread.load(resolve_artifacts=True),
            await thread.at(saved.checkpoint_id, resolve_artifacts=True),
        ):
            assert head.artifacts == {small.artifact_id: expected}
        assert (await thread.load()).artifacts == {}


def test_what_was_said_of_an_artifact_comes_back(client, thread_id):
    said = {
        "name": "Übersicht 'für' 100% \\ \".html",
        "media_type": "text/html; charset=utf-8",
        "metadata": {"step": 3, "ünï": ["code", None]},
        "preview": b"\x00\xffpreview",
    }
    large = said | {"metadata": {"text": "y" * 15_000}, "preview": bytes(4096)}
    for content, described in ((b"<html>", said), (BIG, said), (b"<html>", large)):
        artifact = client.artifacts.upload(thread_id, content, **described)
        shown = {name: getattr(client.artifacts.get(artifact), name) for name in described}
        assert shown == described
    assert [each.version for each in client.artifacts.list(thread_id)] == [3, 2, 1]
    assert [each.version for each in client.artifacts.list(thread_id, name=said["name"], limit=2)] == [3, 2]
    assert list(client.artifacts.list(thread_id, name="other")) == []


async def test_the_asynchronous_client_does_the_same(gateway_env, subject, thread_id, tmp_path):
    async def pieces():
        for start in range(0, len(BIG), 1_000_003):
            yield BIG[start : start + 1_000_003]

    told = []
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        artifact = await client.artifacts.upload(
            thread_id, pieces(), name="film.mp4", progress=lambda *said: told.append(said)
        )
        assert told[-1] == (len(BIG), None)
        assert await client.artifacts.download(artifact) == BIG
        await client.artifacts.download(artifact, tmp_path / "film")
        assert (tmp_path / "film").read_bytes() == BIG
        async with await client.artifacts.open(artifact) as file:
            await file.seek(-1000, io.SEEK_END)
            assert await file.read() == BIG[-1000:]
        assert [each.name async for each in client.artifacts.list(thread_id)] == ["film.mp4"]
        small = await asyncio.gather(*(client.artifacts.upload(thread_id, b"x", name="same") for _ in range(8)))
        assert sorted(each.version for each in small) == list(range(1, 9))


def test_random_ranges_are_the_sources_slices(client, thread_id):
    random = Random(4)  # noqa: S311 - positions, not secrets
    with client.artifacts.open(client.artifacts.upload(thread_id, BIG, name="x")) as file:
        for _ in range(100):
            start, size = random.randrange(len(BIG)), random.choice([1, 100, 70_000, 3_000_000])
            file.seek(start)
            assert file.read(size) == BIG[start : start + size]


def test_a_zip_is_read_in_place(client, thread_id):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("large", BIG)
        archive.writestr("small.txt", "found")
    artifact = client.artifacts.upload(thread_id, packed.getvalue(), name="x.zip")
    with client.artifacts.open(artifact) as file, zipfile.ZipFile(file) as archive:
        assert archive.read("small.txt") == b"found"


CRASHING = """
import os, signal, sys
from stateroom import Client
url, api_key, subject, upload_id, path = sys.argv[1:]
def crash(sent, total):
    os.kill(os.getpid(), signal.SIGKILL)
with Client(url, api_key, subject=subject) as client:
    client.artifacts.upload("unused", path, resume=upload_id, parallel=1, progress=crash)
"""


@pytest.fixture
def interrupted(client, gateway_env, subject, thread_id, tmp_path):
    """An upload whose process was killed after its first part, and the file it was made of."""
    path = tmp_path / "film.mp4"
    path.write_bytes(BIG)
    upload = client.artifacts.begin(thread_id, name="film.mp4", size_bytes=len(BIG))
    command = [
        sys.executable,
        "-c",
        CRASHING,
        gateway_env.url,
        gateway_env.api_key,
        subject,
        upload.upload_id,
        str(path),
    ]
    assert subprocess.run(command, check=False).returncode == -9
    assert 0 in [part.part_number for part in client.artifacts.show_upload(upload.upload_id).parts]
    return upload.upload_id, path


def test_an_upload_goes_on_after_a_crash(client, thread_id, interrupted):
    upload_id, path = interrupted
    artifact = client.artifacts.upload(thread_id, path, resume=upload_id)
    assert client.artifacts.download(artifact) == BIG
    with pytest.raises(UploadNotFound):
        client.artifacts.show_upload(upload_id)


def test_an_upload_goes_on_after_a_crash_with_changed_bytes(client, thread_id, interrupted):
    upload_id, path = interrupted
    changed = BIG[:100] + b"changed" + BIG[107:]
    path.write_bytes(changed)
    artifact = client.artifacts.upload(thread_id, path, resume=upload_id)
    assert client.artifacts.download(artifact) == changed


def test_completing_again_is_the_same_artifact_and_too_early_is_refused(client, thread_id):
    upload = client.artifacts.begin(thread_id, name="x")
    plan = transfers.UploadPlan(upload, None, None)
    part = plan.take(b"content")
    with pytest.raises(UploadIncomplete):
        client.drive(requests.complete(upload.upload_id, plan))
    client.drive(requests.put_part(upload.upload_id, part))
    first = client.drive(requests.complete(upload.upload_id, plan))
    assert client.drive(requests.complete(upload.upload_id, plan)) == first
    assert [each.version for each in client.artifacts.list(thread_id)] == [1]


def test_damage_on_the_way_up_is_refused(client, thread_id):
    upload = client.artifacts.begin(thread_id, name="x")
    part = transfers.Part(0, b"damaged", hashlib.sha256(b"content").digest())
    with pytest.raises(DigestMismatch):
        client.drive(requests.put_part(upload.upload_id, part))
    assert client.artifacts.show_upload(upload.upload_id).parts == []
    assert client.artifacts.abort(upload.upload_id)
    assert not client.artifacts.abort(upload.upload_id)


def test_a_copy_outlives_what_it_was_copied_from(client, thread_id):
    artifact = client.artifacts.upload(thread_id, BIG, name="x")
    copy = client.artifacts.copy(artifact, f"{thread_id}-copy", name="y")
    assert (copy.name, copy.thread_id, copy.digest) == ("y", f"{thread_id}-copy", artifact.digest)
    assert client.artifacts.delete(artifact)
    assert not client.artifacts.delete(artifact)
    with pytest.raises(ArtifactNotFound):
        client.artifacts.download(artifact)
    assert client.artifacts.download(copy) == BIG


def test_a_pointer_means_nothing_to_another_subject(gateway_env, client, thread_id):
    artifact = client.artifacts.upload(thread_id, b"mine", name="x")
    with Client(gateway_env.url, gateway_env.api_key, subject="somebody-else") as other:
        for use in (other.artifacts.get, other.artifacts.download, other.artifacts.open, other.artifacts.url):
            with pytest.raises(ArtifactNotFound):
                use(artifact.pointer)
        with pytest.raises(ArtifactNotFound):
            other.artifacts.download(artifact)
        assert not other.artifacts.delete(artifact)
    assert client.artifacts.download(artifact) == b"mine"


def test_a_url_shows_an_artifact_without_a_credential_until_it_is_revoked(client, thread_id):
    artifact = client.artifacts.upload(thread_id, b"\x89PNG", name="shot.png")
    url = client.artifacts.url(artifact, ttl_seconds=60, disposition="inline")
    shown = httpx2.get(url.url)
    assert (shown.status_code, shown.content, shown.headers["content-type"]) == (200, b"\x89PNG", "image/png")
    client.artifacts.revoke_urls(artifact)
    assert httpx2.get(url.url).status_code == 403


def test_artifacts_of_a_thread_with_a_share_open_only_with_it(gateway_env, subject, client, thread_id):
    share = new_client_share()
    with Client(gateway_env.url, gateway_env.api_key, subject=subject, client_share=share) as sharing:
        for content in (b"few", BIG):
            artifact = sharing.artifacts.upload(thread_id, content, name="x")
            assert sharing.artifacts.download(artifact) == content
            with pytest.raises(ClientShareRequired):
                client.artifacts.download(artifact)
            with pytest.raises(ArtifactShared):
                sharing.artifacts.url(artifact)
