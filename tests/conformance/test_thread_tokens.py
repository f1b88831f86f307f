"""Clients that keep tokens notice what a restored or rewritten database hides from everybody else."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from gateway.cli.main import run
from stateroom import AsyncClient, Client, FileTokenStore, MemoryTokenStore, RollbackDetected
from stateroom.errors import IntegrityFailure, InvalidRequest
from stateroom.langgraph import StateroomSaver
from tests.support.production import serving

TABLES = ("threads", "heads", "checkpoints", "chunks", "pending_writes", "removed_threads")


@pytest.fixture
async def database(gateway_env):
    connection = await asyncpg.connect(gateway_env.database_dsn)
    yield connection
    await connection.close()


async def copy_rows(database, subject):
    return {
        table: await database.fetch(f"SELECT * FROM stateroom.{table} WHERE subject_id = $1", subject)  # noqa: S608
        for table in TABLES
    }


async def put_back(database, subject, copied):
    for table, rows in copied.items():
        await database.execute(f"DELETE FROM stateroom.{table} WHERE subject_id = $1", subject)  # noqa: S608
        for row in rows:
            places = ", ".join(f"${at + 1}" for at in range(len(row)))
            await database.execute(
                f"INSERT INTO stateroom.{table} ({', '.join(row.keys())}) VALUES ({places})",  # noqa: S608
                *row.values(),
            )


@pytest.fixture
async def yesterday(database, subject):
    """Call once to copy the subject's rows, once more to put the copy back."""
    copied = {}

    async def turn():
        if copied:
            await put_back(database, subject, copied)
        else:
            copied.update(await copy_rows(database, subject))

    return turn


@pytest.mark.parametrize("subject_key", [False, True])
async def test_a_rollback_is_noticed_by_the_next_process(gateway_env, subject, yesterday, tmp_path, subject_key):
    api_key = gateway_env.api_key
    if subject_key:
        async with AsyncClient(gateway_env.url, api_key) as admin:
            made = await admin.request("POST", "/api-keys", body={"kind": "subject", "subject_id": subject})
            api_key = made.decode()["api_key"]
    named = None if subject_key else subject

    def client():
        return AsyncClient(gateway_env.url, api_key, subject=named, token_store=FileTokenStore(tmp_path))

    async with client() as first:
        thread = first.thread("t")
        await thread.save({"n": 1})
        await yesterday()
        await thread.save({"n": 2})
    async with client() as second:
        assert (await second.thread("t").load()).state == {"n": 2}
        await yesterday()
        with pytest.raises(RollbackDetected) as caught:
            await second.thread("t").load()
        assert (caught.value.code, caught.value.status, caught.value.retryable) == ("rollback-detected", 409, False)
        with pytest.raises(RollbackDetected):
            await second.thread("t").save({"n": 3})
        with pytest.raises(RollbackDetected):
            [each async for each in second.thread("t").history()]
    # Without a token it is the gateway that acknowledged the save that notices, for as long as it remembers.
    async with AsyncClient(gateway_env.url, api_key, subject=named) as forgetful:
        with pytest.raises(RollbackDetected):
            await forgetful.thread("t").load()


async def test_pending_writes_taken_away_with_their_seals_are_noticed_by_a_saver_that_keeps_tokens(
    gateway_env, subject, yesterday, tmp_path
):
    def saver():
        return StateroomSaver(
            gateway_env.url, gateway_env.api_key, subject=subject, token_store=FileTokenStore(tmp_path)
        )

    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with saver() as first:
        config = await first.aput(config, empty_checkpoint(), {"source": "loop", "step": 0}, {})
        await yesterday()
        await first.aput_writes(config, [("a", 1), ("b", 2)], "task")
    async with saver() as second:
        assert len((await second.aget_tuple(config)).pending_writes) == 2
        await yesterday()
        with pytest.raises(RollbackDetected):
            await second.aget_tuple(config)
        with pytest.raises(RollbackDetected):
            await second.aput_writes(config, [("a", 1)], "other")
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as forgetful:
        with pytest.raises(RollbackDetected):
            await forgetful.aget_tuple(config)


async def test_a_deleted_pending_write_fails_the_next_load(gateway_env, subject, database):
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver:
        config = await saver.aput(config, empty_checkpoint(), {"source": "loop", "step": 0}, {})
        await saver.aput_writes(config, [("a", 1), ("b", 2)], "task")
        assert len((await saver.aget_tuple(config)).pending_writes) == 2
        await database.execute("DELETE FROM stateroom.pending_writes WHERE subject_id = $1 AND idx = 1", subject)
        with pytest.raises(IntegrityFailure):
            await saver.aget_tuple(config)


async def test_tasks_in_parallel_keep_each_others_tokens_good(gateway_env, subject):
    store = MemoryTokenStore()
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    async with StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject, token_store=store) as saver:
        for step in range(3):
            config = await saver.aput(config, empty_checkpoint(), {"source": "loop", "step": step}, {})
            await asyncio.gather(*(saver.aput_writes(config, [("a", n)], f"task-{n}") for n in range(12)))
            assert len((await saver.aget_tuple(config)).pending_writes) == 12


def test_deleting_pruning_and_copying_over_raise_no_alarm(gateway_env, subject):
    store = MemoryTokenStore()
    with (
        Client(gateway_env.url, gateway_env.api_key, subject=subject, token_store=store) as client,
        Client(gateway_env.url, gateway_env.api_key, subject=subject, token_store=MemoryTokenStore()) as other,
    ):
        for number in range(3):
            client.thread("t").save({"n": number})
        assert other.thread("t").load().state == {"n": 2}
        client.prune(["t"])
        assert client.thread("t").load().state == other.thread("t").load().state == {"n": 2}
        client.thread("t").copy("u")
        assert client.thread("u").load().state == {"n": 2}
        client.thread("u").delete()
        client.thread("t").copy("u")
        client.thread("t").delete()
        assert other.thread("t").load() is None
        assert client.thread("t").load() is None
        client.thread("t").save({"n": 9})
        assert other.thread("t").load().state == {"n": 9}
        client.prune(["t"], strategy="delete")
        assert other.thread("t").load() is None


def test_what_is_no_token_is_an_invalid_request(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        client.thread("t").save({"n": 1})
        with pytest.raises(InvalidRequest) as caught:
            client.request("GET", "/threads/t/checkpoints/latest", headers={"Stateroom-Known-Token": "nonsense"})
        assert caught.value.errors[0].header == "Stateroom-Known-Token"


async def test_the_command_line_verifies_and_reports_damage(gateway_env, subject, database, monkeypatch, capsys):
    monkeypatch.setenv("STATEROOM_API_KEY", gateway_env.api_key)
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as client:
        for number in range(3):
            await client.thread("t").save({"n": number})
    address = ["--url", gateway_env.url]
    for command in (["thread", "t", "--subject", subject], ["subject", "--subject", subject]):
        assert run(["verify", *command, *address]) == 0
        assert "Verified 1 threads" in capsys.readouterr().err
    await database.execute("DELETE FROM stateroom.checkpoints WHERE subject_id = $1 AND step = 1", subject)
    assert run(["verify", "thread", "t", "--subject", subject, *address]) == 1
    shown = capsys.readouterr()
    assert "live-set" in shown.out
    assert "3 checkpoints expected, 2 found" in shown.out.replace("\n", " ")
    assert run(["verify", "tenant", "--json", *address]) == 1
    assert subject in capsys.readouterr().out


async def test_a_database_restored_to_before_an_anchor_is_reported_by_verification(
    deployment, durable_postgres, launcher, s3_server, subject
):
    anchoring = replace(deployment, environ=deployment.environ | {"STATEROOM_S3_URL": s3_server.url()})
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "", 1))
    try:
        async with (
            serving(launcher, anchoring) as gateway,
            AsyncClient(gateway.url, deployment.api_key, subject=subject) as client,
        ):
            await client.thread("t").save({"n": 1})
            copied = await copy_rows(connection, subject)
            await client.thread("t").save({"n": 2})
        # Its end anchored what had changed in its last minute.
        async with (
            serving(launcher, anchoring) as gateway,
            AsyncClient(gateway.url, deployment.api_key, subject=subject) as client,
        ):
            before = (await client.request("POST", "/threads:verify", body={})).decode()
            await put_back(connection, subject, copied)
            after = (await client.request("POST", "/threads:verify", body={"thread_id": "t"})).decode()
    finally:
        await connection.close()
    assert before["findings"] == []
    assert [(each["code"], each["detail"]) for each in after["findings"]] == [
        ("older-than-anchor", "at change 1, but 2 is anchored")
    ]
