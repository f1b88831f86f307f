"""The embedded engines keep their data and their folder through every way of dying."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import boto3
import psutil
import pytest
from botocore.exceptions import ClientError

from gateway.embedded.engine import EmbeddedEngineError
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3

OWNER = """
import sys
from pathlib import Path
from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3
engines = EmbeddedPostgres(Path(sys.argv[1])), EmbeddedS3(Path(sys.argv[1]))
for engine in engines:
    engine.start()
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="stateroom-tests-"))
    yield path
    shutil.rmtree(path)


def client(server: EmbeddedS3):
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )


async def run(postgres: EmbeddedPostgres, sql: str):
    connection = await asyncpg.connect(postgres.superuser_url().replace("+asyncpg", ""))
    try:
        return await connection.fetch(sql)
    finally:
        await connection.close()


def owner_of(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("also_killed", ["nothing else", "the supervisors", "the engines"])
async def test_after_sigkill_of_the_owner_the_next_start_has_the_data(folder: Path, also_killed: str) -> None:
    with EmbeddedPostgres(folder) as postgres, EmbeddedS3(folder) as server:
        await run(postgres, "CREATE TABLE kept AS SELECT 42 AS answer")
        client(server).put_object(Bucket=server.bucket, Key="kept", Body=b"42")
    with owner_of(folder) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        engines = [psutil.Process(int((folder / f"{name}.pid").read_text())) for name in ("postgres", "s3")]
        if also_killed != "nothing else":
            for engine in engines:
                (engine if also_killed == "the engines" else engine.parent()).kill()
        owner.kill()
    with EmbeddedPostgres(folder) as postgres, EmbeddedS3(folder) as server:
        assert not any(engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE for engine in engines)
        assert [row["answer"] for row in await run(postgres, "SELECT answer FROM kept")] == [42]
        assert client(server).get_object(Bucket=server.bucket, Key="kept")["Body"].read() == b"42"


async def test_the_engines_end_with_the_owner_even_when_it_is_killed(folder: Path) -> None:
    with owner_of(folder) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        engines = [psutil.Process(int((folder / f"{name}.pid").read_text())) for name in ("postgres", "s3")]
        owner.kill()
    _, alive = psutil.wait_procs(engines, timeout=30)
    assert [engine for engine in alive if engine.status() != psutil.STATUS_ZOMBIE] == []


async def test_a_folder_has_one_owner_and_a_second_folder_runs_beside_it(folder: Path) -> None:
    with EmbeddedPostgres(folder / "one", fsync=False) as one:
        with pytest.raises(EmbeddedEngineError, match="another process"):
            EmbeddedPostgres(folder / "one", fsync=False).start()
        with EmbeddedPostgres(folder / "two", fsync=False) as two:
            await run(two, "CREATE TABLE mine ()")
            assert one.pid != two.pid
            assert await run(one, "SELECT to_regclass('mine') AS found") == [(None,)]


def test_a_pid_file_that_names_a_stranger_harms_nobody(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (folder / "postgres.pid").write_text(str(stranger.pid))
        with EmbeddedPostgres(folder, fsync=False):
            assert stranger.poll() is None
        stranger.kill()


async def test_an_interrupted_first_start_is_done_again(folder: Path) -> None:
    (folder / "postgres.new" / "base").mkdir(parents=True)
    (folder / "postgres").mkdir()
    with EmbeddedPostgres(folder, fsync=False) as postgres:
        assert await run(postgres, "SELECT 1 AS one") == [(1,)]
    assert not (folder / "postgres.new").exists()


async def test_the_engines_ask_for_their_secrets_and_keep_them_to_the_owner(folder: Path) -> None:
    with EmbeddedPostgres(folder) as postgres, EmbeddedS3(folder) as server:
        wrong = postgres.superuser_url().replace("+asyncpg", "").replace("postgres:", "postgres:x", 1)
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(wrong)
        stranger = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            region_name=server.region,
            aws_access_key_id=server.access_key,
            aws_secret_access_key="x",
        )
        with pytest.raises(ClientError):
            stranger.list_objects_v2(Bucket=server.bucket)
        assert [tuple(row) for row in await run(postgres, "SHOW fsync")] == [("on",)]
    secrets = ["postgres.password", "s3.secret-key", "s3.access-key", "s3.identities.json"]
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in secrets} == {0o600}


async def test_a_failing_statement_leaves_no_payload_in_the_log(folder: Path) -> None:
    with EmbeddedPostgres(folder, fsync=False) as postgres:
        connection = await asyncpg.connect(postgres.superuser_url().replace("+asyncpg", ""))
        await connection.execute("CREATE TABLE one (word text PRIMARY KEY)")
        for _ in range(2):
            try:
                await connection.execute("INSERT INTO one VALUES ($1)", "hush-parameter")
            except asyncpg.UniqueViolationError as error:
                refused = error
        with pytest.raises(asyncpg.UndefinedColumnError):
            await connection.execute("SELECT absent, 'hush-literal'")
        await connection.close()
    log = (folder / "postgres.log").read_text()
    assert "hush" in str(refused.detail)
    assert "duplicate key" in log
    assert "hush" not in log


def test_an_engine_gets_none_of_the_gateways_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEROOM_API_KEY_PEPPER", "hush")
    with EmbeddedPostgres(folder, fsync=False) as postgres:
        environment = Path(f"/proc/{postgres.pid}/environ")
        if not os.access(environment, os.R_OK):
            pytest.skip("this system has no readable /proc")
        assert b"hush" not in environment.read_bytes()


def sockets_of(server: EmbeddedS3) -> set[Path]:
    ports = json.loads((server.data_dir / "s3.ports.json").read_text())
    found = {path for port in ports for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")}
    return found | set((server.data_dir / "s3").glob("*.sock"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_s3_server_leaves_no_socket_behind_however_it_ends(folder: Path, how: signal.Signals) -> None:
    deep = folder / ("a-folder-whose-path-is-longer-than-that-of-a-socket-may-be-" * 2)
    of_others = set(Path("/tmp").glob("seaweedfs-*.sock"))
    with EmbeddedS3(deep) as server:
        made = sockets_of(server) - of_others
        assert {path.name for path in made if path.parent != Path("/tmp")} == {"s3.sock", "filer.sock"}
        # The rest cannot be put elsewhere.
        assert [path for path in made if path.parent == Path("/tmp") and "-grpc-" not in path.name] == []
        assert server.pid is not None
        os.kill(server.pid, how)
    assert sockets_of(server) - of_others == set()


def test_a_socket_of_somebody_else_in_the_way_is_evaded_on_other_ports(folder: Path) -> None:
    with EmbeddedS3(folder) as server:
        before = json.loads((folder / "s3.ports.json").read_text())
    in_the_way = Path(f"/tmp/seaweedfs-master-grpc-{before[3]}.sock")
    in_the_way.mkdir()  # root could remove a socket, whoever owns it
    try:
        with EmbeddedS3(folder) as server:
            assert json.loads((folder / "s3.ports.json").read_text()) != before
            client(server).put_object(Bucket=server.bucket, Key="kept", Body=b"42")
    finally:
        in_the_way.rmdir()


def test_an_engine_is_reached_without_the_proxy_that_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with EmbeddedS3(folder) as server:
        assert server.pid is not None
