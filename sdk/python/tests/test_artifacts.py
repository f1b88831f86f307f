"""Artifacts of both clients, against a server that speaks the wire format over real sockets."""

import asyncio
import contextlib
import hashlib
import inspect
import io
import os
import pickle  # noqa: TID251 - worker pools carry errors
import resource
import secrets
import subprocess
import sys
import threading
import zipfile
from random import Random  # noqa: TID251 - seeded

import httpx2
import pytest

from sdk.python.tests.artifact_server import PART_BYTES, ArtifactServer, Refused, digest_field
from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock, Script, packed
from stateroom import (
    ArtifactFile,
    ArtifactNotFound,
    Artifacts,
    AsyncArtifactFile,
    AsyncArtifacts,
    AsyncClient,
    Client,
    DigestMismatch,
    GatewayUnavailable,
    InvalidRequest,
    PermissionDenied,
    Timeouts,
    UploadNotFound,
    acting_for,
    current_subject,
)
from stateroom._artifacts.requests import PART_BYTES as ONE_REQUEST_BYTES
from stateroom._artifacts.sources import open_source
from stateroom._artifacts.transfers import WINDOW_BYTES_MAX, PieceBuffer, Window

MIB = 1024 * 1024
FILLING = hashlib.sha256(b"artifact").digest() * (MIB // 32)


def content_of(size):
    """Bytes in which no two MiB are the same."""
    numbered = (number.to_bytes(8, "big") + FILLING[8:] for number in range(size // MIB + 1))
    return b"".join(numbered)[:size]


BIG = content_of(4 * PART_BYTES + 12_345)
assert ONE_REQUEST_BYTES == 4 * PART_BYTES  # so that what is too large for one request ends with a part, or behind it
FILM = content_of(3 * MIB + 12_345)


@pytest.fixture
def server():
    with ArtifactServer() as running:
        yield running


class Either:
    """Calls the artifacts of a blocking or an asynchronous client in one way."""

    def __init__(self, client):
        self.client = client
        self.is_async = isinstance(client, AsyncClient)

    def __getattr__(self, name):
        method = getattr(self.client.artifacts, name)

        async def call(*args, **kwargs):
            if name == "list" and self.is_async:
                return [each async for each in method(*args, **kwargs)]
            if name == "list":
                return await asyncio.to_thread(lambda: list(method(*args, **kwargs)))
            if self.is_async:
                return await method(*args, **kwargs)
            return await asyncio.to_thread(method, *args, **kwargs)

        return call

    async def read(self, file, *args):
        return await file.read(*args) if self.is_async else await asyncio.to_thread(file.read, *args)

    async def seek(self, file, *args):
        return await file.seek(*args) if self.is_async else file.seek(*args)


@contextlib.asynccontextmanager
async def opened(kind, url, **options):
    if kind == "blocking":
        with Client(url, API_KEY, clock=FakeClock(), **options) as client:
            yield Either(client)
    else:
        async with AsyncClient(url, API_KEY, clock=FakeAsyncClock(), **options) as client:
            yield Either(client)


@pytest.fixture(params=["blocking", "on_loop"])
async def artifacts(request, server):
    async with opened(request.param, server.url) as either:
        yield either


def test_both_clients_artifacts_offer_the_same():
    names = {name for name in dir(Artifacts) if not name.startswith("_")}
    assert names == {name for name in dir(AsyncArtifacts) if not name.startswith("_")}
    for name in names:
        signatures = [inspect.signature(getattr(kind, name)).parameters for kind in (Artifacts, AsyncArtifacts)]
        blocking, on_loop = ([(each.name, each.kind, each.default) for each in one.values()] for one in signatures)
        assert blocking == on_loop, name


def test_both_files_read_seek_and_tell():
    for name in ("read", "seek", "tell", "close", "readable", "seekable"):
        assert callable(getattr(ArtifactFile, name))
        assert callable(getattr(AsyncArtifactFile, name))
    assert issubclass(ArtifactFile, io.RawIOBase)


# --- uploading ---


async def pieces_on_loop(content, size):
    for start in range(0, len(content), size):
        yield content[start : start + size]


def sources_of(content, folder):
    path = folder / "shot.png"
    path.write_bytes(content)
    yield "a path", path
    yield "a path as text", str(path)
    yield "bytes", content
    yield "a bytearray", bytearray(content)
    yield "a view", memoryview(content)
    yield "a file", io.BytesIO(content)
    shifted = io.BytesIO(b"skipped" + content)
    shifted.seek(7)
    yield "a file in the middle", shifted
    yield "an iterator", (content[start : start + 100_000] for start in range(0, len(content), 100_000))
    yield "an iterator with gaps", iter([b"", content[:10], b"", content[10:], b""])
    yield "one large piece", [content]


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 70_000, ONE_REQUEST_BYTES - 1, ONE_REQUEST_BYTES, ONE_REQUEST_BYTES + 1])
async def test_whatever_the_source_its_content_is_stored(artifacts, server, tmp_path, size):
    content = content_of(size)
    digest = digest_field(content)
    for what, source in sources_of(content, tmp_path):
        artifact = await artifacts.upload("t", source, name="shot.png")
        assert server.contents.pop(artifact.artifact_id) == content, what
        assert (artifact.size_bytes, artifact.digest, artifact.media_type) == (size, digest, "image/png")
    assert server.uploads == {}


@pytest.mark.parametrize("size", [70_000, ONE_REQUEST_BYTES, ONE_REQUEST_BYTES + 5])
async def test_an_asynchronous_iterator_is_a_source(server, size):
    content = content_of(size)
    async with opened("on_loop", server.url) as artifacts:
        artifact = await artifacts.upload("t", pieces_on_loop(content, 300_007), name="x")
        assert server.contents[artifact.artifact_id] == content


async def test_what_is_small_takes_one_request_and_says_all_about_itself(artifacts, server):
    artifact = await artifacts.upload(
        "päge|1",
        b"<html>",
        name="Übersicht 'für' 100% \u2028 \\ \".html",
        media_type="text/html; charset=utf-8",
        metadata={"step": 3, "ünï": ["code"]},
        preview=b"\x00\xffpreview",
    )
    assert [request[:2] for request in server.requests] == [("POST", "artifacts")]
    assert artifact.name == "Übersicht 'für' 100% \u2028 \\ \".html"
    assert artifact.media_type == "text/html; charset=utf-8"
    assert (artifact.metadata, artifact.preview) == ({"step": 3, "ünï": ["code"]}, b"\x00\xffpreview")
    assert artifact.pointer == f"stateroom:artifact:{artifact.artifact_id}"
    assert server.headers[0]["Content-Digest"] == digest_field(b"<html>")


async def test_a_long_description_travels_in_a_body(artifacts, server):
    artifact = await artifacts.upload("t", b"small", name="x", metadata={"text": "y" * 15_000}, preview=bytes(4096))
    assert server.count("POST", "uploads") == 1
    assert (artifact.metadata, artifact.preview) == ({"text": "y" * 15_000}, bytes(4096))
    assert max(len(text) for headers in server.headers for text in headers.values()) < 4096


async def test_a_name_comes_from_the_file_and_only_its_last_part(artifacts, tmp_path):
    path = tmp_path / "film.mp4"
    path.write_bytes(b"frames")
    with path.open("rb") as file:
        stored = [await artifacts.upload("t", source) for source in (path, str(path), file)]
    assert [(each.name, each.media_type, each.version) for each in stored] == [
        ("film.mp4", "video/mp4", number) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("source", "described"),
    [
        (b"x", {}),
        (b"x", {"name": ""}),
        (b"x", {"name": "\ud800"}),
        (b"x", {"name": "x", "media_type": "text/html\r\nX-Evil: 1"}),
        (b"x", {"name": "x", "media_type": "html"}),
        (b"x", {"name": "x", "metadata": {"x": object()}}),
        (7, {"name": "x"}),
        ([1, 2], {"name": "x"}),
        (["text"], {"name": "x"}),
        (io.StringIO("text"), {"name": "x"}),
    ],
)
async def test_what_cannot_be_an_artifact_is_refused_before_any_request(artifacts, server, source, described):
    with pytest.raises(InvalidRequest):
        await artifacts.upload("t", source, **described)
    assert server.requests == []


async def test_parts_go_up_side_by_side_but_never_more_than_allowed(artifacts, server):
    server.gate = threading.Barrier(2)
    artifact = await artifacts.upload("t", content_of(5 * PART_BYTES + 1), name="x", parallel=2)
    assert server.in_flight_max == 2
    assert server.contents[artifact.artifact_id] == content_of(5 * PART_BYTES + 1)


async def test_a_source_is_read_no_further_ahead_than_one_part(artifacts, server):
    ahead = []
    stored_first = threading.Event()

    class Gate:
        def wait(self, seconds):
            stored_first.wait(seconds)

    def pieces():
        for number in range(8):
            ahead.append(number - server.parts_stored.total())
            if number == 2:
                threading.Timer(0.3, stored_first.set).start()  # time enough to read on, if nothing held it back
            yield BIG[:ONE_REQUEST_BYTES]

    server.part_bytes = ONE_REQUEST_BYTES
    server.gate = Gate()
    await artifacts.upload("t", pieces(), name="x", parallel=2)
    assert max(ahead) == 2


async def test_progress_is_what_the_gateway_acknowledged(artifacts, server):
    told = []
    await artifacts.upload("t", BIG, name="x", progress=lambda *said: told.append(said))
    assert [total for _, total in told] == [len(BIG)] * 5
    assert [sent for sent, _ in told] == sorted(sent for sent, _ in told)
    assert told[-1] == (len(BIG), len(BIG))
    told.clear()
    await artifacts.upload("t", iter([BIG]), name="x", progress=lambda *said: told.append(said))
    assert told[-1] == (len(BIG), None)
    told.clear()
    await artifacts.upload("t", b"few", name="x", progress=lambda *said: told.append(said))
    assert told == [(3, 3)]


async def test_only_the_part_that_failed_is_sent_again(artifacts, server):
    server.faults["PUT", "parts"] = [None, Refused(503, "blob-store-unavailable", retryable=True), "lost"]
    artifact = await artifacts.upload("t", BIG, name="x", parallel=1)
    assert server.contents[artifact.artifact_id] == BIG
    assert "".join(path[-1] for method, kind, path in server.requests if kind == "parts") == "0111234"


@pytest.mark.parametrize(("content", "kind"), [(b"few", "artifacts"), (BIG, "uploads"), (BIG, "complete")])
async def test_a_lost_answer_leaves_one_artifact(artifacts, server, content, kind):
    server.faults["POST", kind] = ["lost"]
    artifact = await artifacts.upload("t", content, name="x")
    assert server.count("POST", kind) == 2
    assert list(server.contents) == [artifact.artifact_id]
    assert artifact.version == 1


async def test_damage_on_the_way_up_is_noticed(artifacts, server):
    server.faults["PUT", "parts"] = [Refused(400, "digest-mismatch")]
    with pytest.raises(DigestMismatch):
        await artifacts.upload("t", BIG, name="x")
    assert server.artifacts == {}


async def test_a_gateway_that_stored_something_else_is_not_believed(server):
    artifact = server.store("t", {"name": "x", "media_type": "a/b"}, b"other bytes")
    script = Script(packed(artifact, 201))
    with Client(URL, API_KEY, transport=script.transport) as client, pytest.raises(DigestMismatch):
        client.artifacts.upload("t", b"these bytes", name="x")


async def interrupted(artifacts, server, content):
    """An upload of which part 2 cannot be stored."""
    server.faults["PUT", "parts"] = [None, None, Refused(403, "permission-denied")]
    with pytest.raises(PermissionDenied) as caught:
        await artifacts.upload("t", content, name="film", parallel=1)
    assert pickle.loads(pickle.dumps(caught.value)).upload_id == caught.value.upload_id  # noqa: S301
    server.requests.clear()
    return caught.value.upload_id


async def test_an_interrupted_upload_goes_on_where_it_stopped(artifacts, server):
    upload_id = await interrupted(artifacts, server, BIG)
    assert [part.part_number for part in (await artifacts.show_upload(upload_id)).parts] == [0, 1]
    told = []
    artifact = await artifacts.upload(
        "t", io.BytesIO(BIG), resume=upload_id, progress=lambda sent, _: told.append(sent)
    )
    assert server.contents[artifact.artifact_id] == BIG
    assert artifact.name == "film"
    assert server.parts_stored == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}
    assert told[:2] == [PART_BYTES, 2 * PART_BYTES]


async def test_a_resumed_upload_of_changed_bytes_stores_the_changed_ones(artifacts, server):
    upload_id = await interrupted(artifacts, server, BIG)
    changed = BIG[:100] + b"changed" + BIG[107:]
    artifact = await artifacts.upload("t", changed, resume=upload_id)
    assert server.contents[artifact.artifact_id] == changed
    assert server.parts_stored == {0: 2, 1: 1, 2: 1, 3: 1, 4: 1}


async def test_parts_whose_digest_is_not_told_are_sent_again(artifacts, server):
    upload_id = await interrupted(artifacts, server, BIG)
    server.tells_part_digests = False
    artifact = await artifacts.upload("t", BIG, resume=upload_id)
    assert server.contents[artifact.artifact_id] == BIG
    assert server.parts_stored == {0: 2, 1: 2, 2: 1, 3: 1, 4: 1}


async def test_an_upload_that_was_begun_can_be_kept_resumed_or_given_up(artifacts, server):
    upload = await artifacts.begin("t", name="film.mp4", metadata={"n": 1}, size_bytes=3)
    assert await artifacts.abort(upload.upload_id)
    assert not await artifacts.abort(upload.upload_id)
    with pytest.raises(UploadNotFound):
        await artifacts.upload("t", b"few", resume=upload.upload_id)
    for content in (b"few", b""):
        upload = await artifacts.begin("t", name="film.mp4", metadata={"n": 1})
        artifact = await artifacts.upload("t", content, resume=upload.upload_id)
        assert (artifact.media_type, artifact.metadata) == ("video/mp4", {"n": 1})
        assert server.contents[artifact.artifact_id] == content


class BrokenError(Exception):
    pass


async def test_an_upload_whose_source_breaks_is_given_up(artifacts, server):
    def pieces():
        yield BIG
        raise BrokenError

    with pytest.raises(BrokenError):
        await artifacts.upload("t", pieces(), name="x")
    assert server.count("POST", "uploads") == 1
    assert (server.uploads, server.artifacts) == ({}, {})


async def test_progress_that_raises_gives_the_upload_up(artifacts, server):
    def stop(sent, total):
        raise BrokenError

    with pytest.raises(BrokenError):
        await artifacts.upload("t", BIG, name="x", progress=stop)
    assert (server.uploads, server.artifacts) == ({}, {})


async def test_a_resumed_upload_outlives_a_source_that_breaks(artifacts, server):
    upload = await artifacts.begin("t", name="x")

    def pieces():
        yield BIG
        raise BrokenError

    with pytest.raises(BrokenError):
        await artifacts.upload("t", pieces(), resume=upload.upload_id)
    assert await artifacts.abort(upload.upload_id)


async def test_a_file_that_shrinks_or_grows_meanwhile_is_no_artifact(artifacts, server, tmp_path):
    path = tmp_path / "log"
    for size in (PART_BYTES + 1, len(BIG) + 1):
        path.write_bytes(BIG)

        def change(sent, total, size=size):
            os.truncate(path, size)

        with pytest.raises(InvalidRequest):
            await artifacts.upload("t", path, progress=change, parallel=1)
    assert server.artifacts == {}


async def test_a_cancelled_upload_stops_sending(server):
    server.gate = threading.Barrier(3)  # two parts and the test
    async with opened("on_loop", server.url) as artifacts:
        uploading = asyncio.create_task(artifacts.upload("t", BIG, name="x", parallel=2))
        await asyncio.to_thread(server.both_in_flight.wait, 30)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        assert {task for task in asyncio.all_tasks() if "drive" in repr(task)} == set()
    await asyncio.to_thread(server.gate.wait, 30)
    assert server.count("PUT", "parts") == 2


@pytest.mark.parametrize("kind", ["blocking", "on_loop"])
async def test_all_parts_go_up_for_the_subject_of_the_call(server, kind):
    async with opened(kind, server.url, subject=current_subject) as artifacts:
        with acting_for("user-42"):
            artifact = await artifacts.upload("t", BIG, name="x")
            file = await artifacts.open(artifact)
        await artifacts.read(file, 10)
    assert {headers["Stateroom-Subject"] for headers in server.headers} == {"user-42"}
    assert len(server.headers) == 8


MEASURED = """
import hashlib, resource, sys
from stateroom import Client
url, api_key, size, folder = sys.argv[1:]
def pieces():
    for number in range(int(size) >> 20):
        yield number.to_bytes(8, "big") * (1 << 17)
with Client(url, api_key) as client:
    client.artifacts.upload("t", b"warm", name="warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    artifact = client.artifacts.upload("t", pieces(), name="big")
    after_upload = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client.artifacts.download(artifact, folder + "/big")
    after_download = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(after_upload - before, after_download - before)
"""


@pytest.mark.slow
async def test_memory_is_a_few_parts_whatever_the_size(server, tmp_path):
    server.part_bytes = ONE_REQUEST_BYTES
    size = 128 * MIB
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", MEASURED, server.url, API_KEY, str(size), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    grown = [int(text) * 1024 for text in done.stdout.split()]
    assert max(grown) < 96 * MIB, [each // MIB for each in grown]
    assert (tmp_path / "big").stat().st_size == size
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > size  # the measure is not blind


# --- downloading ---


@pytest.fixture
async def stored(artifacts):
    return await artifacts.upload("t", FILM, name="film.mp4")


async def test_content_comes_back_as_bytes_in_a_file_and_under_a_path(artifacts, stored, tmp_path):
    assert await artifacts.download(stored) == FILM
    assert await artifacts.download(stored.pointer) == FILM
    held = io.BytesIO()
    assert await artifacts.download(stored.artifact_id, held) == stored
    assert held.getvalue() == FILM
    for target in (tmp_path / "film", str(tmp_path / "film")):
        assert await artifacts.download(stored, target) == stored
        assert (tmp_path / "film").read_bytes() == FILM
    assert [path.name for path in tmp_path.iterdir()] == ["film"]


async def test_nothing_is_an_artifact_too(artifacts, tmp_path):
    empty = await artifacts.upload("t", b"", name="x")
    assert await artifacts.download(empty) == b""
    await artifacts.download(empty, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b""
    assert await artifacts.read(await artifacts.open(empty)) == b""


async def test_a_broken_download_goes_on_where_it_broke(artifacts, server, stored, tmp_path):
    server.cut_after = [1_000_000, 0, 1, 2_000_000]
    told = []
    await artifacts.download(stored, tmp_path / "film", progress=lambda *said: told.append(said))
    assert (tmp_path / "film").read_bytes() == FILM
    ranges = [headers.get("Range") for headers in server.headers if headers.get("Accept") == "*/*"]
    last = len(FILM) - 1
    assert ranges == [
        None,
        f"bytes=1000000-{last}",
        f"bytes=1000000-{last}",
        f"bytes=1000001-{last}",
        f"bytes=3000001-{last}",
    ]
    assert told == sorted(told)
    assert told[-1] == (len(FILM), len(FILM))


@pytest.mark.parametrize("kind", ["blocking", "on_loop"])
async def test_every_progress_renews_the_budget_and_standing_still_ends_it(server, kind):
    async with opened(kind, server.url, timeouts=Timeouts(total_seconds=0.5)) as artifacts:
        stored = await artifacts.upload("t", FILM, name="film.mp4")
        server.cut_after = [10_000] * 60  # waits for several seconds in all
        assert await artifacts.download(stored) == FILM
        assert server.cut_after == []
        server.cut_after = [10_000] + [0] * 60
        with pytest.raises(GatewayUnavailable):
            await artifacts.download(stored)
        assert len(server.cut_after) > 30


async def test_a_way_that_knows_no_ranges_still_leads_home(artifacts, server, stored):
    server.knows_ranges = False
    server.cut_after = [1_000_000, 2_500_000]
    assert await artifacts.download(stored) == FILM
    file = await artifacts.open(stored)
    await artifacts.seek(file, 900_000)
    assert await artifacts.read(file, 1000) == FILM[900_000:901_000]


def partials(folder):
    return [path for path in folder.iterdir() if path.name.endswith(".partial")]


async def test_another_process_goes_on_with_what_an_interrupted_one_left(artifacts, server, stored, tmp_path):
    target = tmp_path / "film"
    target.write_bytes(b"before")
    server.cut_after = [2_500_000] + [0] * 100
    with pytest.raises(GatewayUnavailable):
        await artifacts.download(stored, target)
    assert target.read_bytes() == b"before"
    [partial] = partials(tmp_path)
    assert partial.read_bytes() == FILM[:2_500_000]
    server.cut_after, server.headers = [], []
    await artifacts.download(stored, target)
    assert target.read_bytes() == FILM
    assert partials(tmp_path) == []
    assert [headers.get("Range") for headers in server.headers] == [f"bytes=2500000-{len(FILM) - 1}"]
    assert "If-Range" not in server.headers[0]  # it knows no tag yet; the digest of the whole tells in the end


@pytest.mark.parametrize("left", [b"damaged" * 1000, FILM[:-1] + b"?", FILM + b"more", FILM])
@pytest.mark.parametrize("resume", [True, False])
async def test_whatever_was_left_the_target_holds_the_artifact(artifacts, server, stored, tmp_path, left, resume):
    server.cut_after = [1] + [0] * 100
    with pytest.raises(GatewayUnavailable):
        await artifacts.download(stored, tmp_path / "film")
    [partial] = partials(tmp_path)
    partial.write_bytes(left)
    server.cut_after, server.headers = [], []
    await artifacts.download(stored, tmp_path / "film", resume=resume)
    assert (tmp_path / "film").read_bytes() == FILM
    assert partials(tmp_path) == []
    asked = [headers.get("Range") for headers in server.headers]
    if not resume:
        assert asked == [None]
    elif left == FILM:
        assert asked == []


async def test_content_that_is_not_the_artifacts_is_never_left_in_place(artifacts, server, stored, tmp_path):
    server.content_served = FILM[:-1] + b"?"
    (tmp_path / "film").write_bytes(b"before")
    for target in (tmp_path / "film", io.BytesIO(), None):
        with pytest.raises(DigestMismatch):
            await artifacts.download(stored, target)
    assert (tmp_path / "film").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["film"]
    small = await artifacts.upload("t", b"small", name="x")
    server.content_served = b"smell"
    with pytest.raises(DigestMismatch):
        await artifacts.read(await artifacts.open(small))


async def test_another_artifacts_content_is_refused_by_its_digest(artifacts, server, stored):
    other = await artifacts.upload("t", FILM[::-1], name="x")
    server.contents[stored.artifact_id] = server.contents[other.artifact_id]
    with pytest.raises(DigestMismatch):
        await artifacts.download(stored)


async def test_downloads_of_one_artifact_to_one_path_at_once_do_not_disturb_each_other(artifacts, stored, tmp_path):
    await asyncio.gather(*(artifacts.download(stored, tmp_path / "film") for _ in range(4)))
    assert (tmp_path / "film").read_bytes() == FILM
    assert [path.name for path in tmp_path.iterdir()] == ["film"]


async def test_a_target_that_takes_a_little_at_a_time_gets_everything(artifacts, stored):
    class Slow(io.RawIOBase):
        held = bytearray()

        def write(self, piece):
            self.held += piece[:50_000]
            return min(len(piece), 50_000)

    slow = Slow()
    await artifacts.download(stored, slow)
    assert slow.held == FILM


async def test_a_folder_is_no_target_and_costs_no_download(artifacts, server, stored, tmp_path):
    with pytest.raises(IsADirectoryError):
        await artifacts.download(stored, tmp_path)
    assert server.count("GET", "content") == 0


async def test_a_refusal_ends_a_download_at_once(artifacts, server, stored):
    server.faults["GET", "content"] = [Refused(403, "permission-denied")]
    with pytest.raises(PermissionDenied):
        await artifacts.download(stored)
    server.faults["GET", "content"] = [Refused(503, "blob-store-unavailable", retryable=True)] * 3
    assert await artifacts.download(stored) == FILM


# --- reading as a file ---


LONG = content_of(3 * WINDOW_BYTES_MAX + 12_345)


@pytest.fixture
async def long(artifacts, server):
    return await artifacts.get(server.store("t", {"name": "long", "media_type": "a/b"}, LONG)["artifact_id"])


async def test_random_ranges_are_the_sources_slices(artifacts, server, long):
    file = await artifacts.open(long)
    random = Random(4)  # noqa: S311 - positions, not secrets
    for _ in range(40):
        start, size = random.randrange(len(LONG)), random.choice([1, 100, 70_000, 9_000_000])
        await artifacts.seek(file, start)
        assert await artifacts.read(file, size) == LONG[start : start + size]


async def test_reading_through_takes_few_requests(artifacts, server, long):
    file = await artifacts.open(long.pointer)
    read = []
    while piece := await artifacts.read(file, 100_000):
        read.append(piece)
    assert b"".join(read) == LONG
    assert server.count("GET", "content") < 12
    await artifacts.seek(file, -5, io.SEEK_END)
    assert await artifacts.read(file) == LONG[-5:]
    await artifacts.seek(file, 10, io.SEEK_END)
    assert await artifacts.read(file) == b""
    with pytest.raises(ValueError, match="negative"):
        await artifacts.seek(file, -1)


def test_a_zip_is_read_without_fetching_it_all(server):
    packed_zip = io.BytesIO()
    with zipfile.ZipFile(packed_zip, "w") as archive:
        archive.writestr("large", secrets.token_bytes(12 * MIB))
        archive.writestr("small.txt", "found")
    with Client(server.url, API_KEY) as client:
        artifact = client.artifacts.upload("t", packed_zip.getvalue(), name="x.zip")
        with client.artifacts.open(artifact) as file, zipfile.ZipFile(file) as archive:
            assert archive.read("small.txt") == b"found"
        assert file.closed
        with pytest.raises(ValueError, match="closed"):
            file.read(1)
    assert server.bytes_given < 2 * MIB


async def test_an_asynchronous_file_is_closed_by_its_block(server):
    async with opened("on_loop", server.url) as artifacts:
        artifact = await artifacts.upload("t", b"content", name="x")
        async with await artifacts.open(artifact) as file:
            assert await file.read(3) == b"con"
            assert await file.tell() == 3
            assert file.readable()
            assert file.seekable()
        with pytest.raises(ValueError, match="closed"):
            await file.read()


def test_windows_stay_small_after_a_jump_and_bounded_while_reading_on():
    window = Window(10**12)
    spans = []
    for _ in range(8):
        start, stop = window.missing(1)
        spans.append(stop - start)
        window.fill(start, bytes(8))
        window.take(8)
    assert spans == sorted(spans)
    assert spans[-1] == WINDOW_BYTES_MAX
    window.seek(10**9, io.SEEK_SET)
    assert window.missing(1) == (10**9, 10**9 + 256 * 1024)
    assert window.missing(10**11) == (10**9, 10**9 + WINDOW_BYTES_MAX)


# --- the rest ---


async def test_versions_are_listed_page_by_page_and_by_name(artifacts, server):
    for number in range(5):
        await artifacts.upload("t", b"%d" % number, name="a" if number % 2 else "b")
    await artifacts.upload("other", b"x", name="a")
    listed = await artifacts.list("t")
    assert [(each.name, each.version) for each in listed] == [("b", 3), ("a", 2), ("b", 2), ("a", 1), ("b", 1)]
    assert [each.version for each in await artifacts.list("t", name="a")] == [2, 1]
    assert len(await artifacts.list("t", limit=3)) == 3
    assert await artifacts.list("unknown") == []


async def test_artifacts_are_shown_copied_and_deleted(artifacts, server):
    artifact = await artifacts.upload("t", b"content", name="x", preview=b"p")
    assert await artifacts.get(artifact.pointer) == artifact
    copy = await artifacts.copy(artifact, "other")
    renamed = await artifacts.copy(artifact, "other", name="y")
    assert [(each.thread_id, each.name) for each in (copy, renamed)] == [("other", "x"), ("other", "y")]
    assert await artifacts.delete(artifact)
    assert not await artifacts.delete(artifact)
    with pytest.raises(ArtifactNotFound):
        await artifacts.get(artifact)
    assert await artifacts.download(copy) == b"content"


async def test_urls_are_made_and_revoked_and_not_shown_by_accident(artifacts, server):
    artifact = await artifacts.upload("t", b"content", name="x")
    url = await artifacts.url(artifact, ttl_seconds=60, disposition="inline")
    assert url.url == "https://gateway.test/v1/artifact-urls/1-60-inline"
    assert url.url not in repr(url)
    await artifacts.revoke_urls(artifact)
    assert server.count("DELETE", "urls") == 1


@pytest.mark.parametrize("named", ["", "../x", "stateroom:artifact:", "0190b36b7a3c7e11a8b2d64f9e2f1c55", "x" * 36])
async def test_what_names_no_artifact_makes_no_request(artifacts, server, named):
    for method in (artifacts.get, artifacts.download, artifacts.open, artifacts.delete, artifacts.url):
        with pytest.raises(InvalidRequest):
            await method(named)
    assert server.requests == []


def test_pieces_of_any_size_become_parts_of_one():
    content, random, buffer, parts = content_of(300_000), Random(1), PieceBuffer(), []  # noqa: S311 - sizes
    start = 0
    while start < len(content):
        size = random.randrange(20_000)
        buffer.add(content[start : start + size])
        start += size
        while len(buffer) >= 7000:
            parts.append(buffer.take(7000))
    parts.append(buffer.take(7000))
    assert b"".join(parts) == content
    assert {len(part) for part in parts[:-1]} == {7000}


@pytest.mark.parametrize("size", [1000, 1234])
def test_what_was_read_can_be_given_back_and_read_in_other_sizes(size):
    content = content_of(10_000)
    for pieces in (content, io.BytesIO(content), iter([content[:1], content[1:1500], content[1500:]])):
        with open_source(pieces) as reader:
            reader.unread(reader.read(1000))
            assert b"".join(iter(lambda reader=reader: reader.read(size), b"")) == content


def test_a_slow_body_is_handed_over_in_slices_with_its_length():
    seen = []

    def answer(request):
        seen.append((request.headers["content-length"], "transfer-encoding" in request.headers, len(request.content)))
        return packed({"part_number": 0, "size_bytes": 1, "digest": None})

    with Client(URL, API_KEY, transport=httpx2.MockTransport(answer)) as client:
        client.request("POST", "/x", body={"large": bytes(3 * MIB)})
    [(announced, is_chunked, received)] = seen
    assert int(announced) == received > 3 * MIB
    assert not is_chunked
