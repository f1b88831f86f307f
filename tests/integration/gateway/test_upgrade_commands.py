"""What ends an upgrade, on the command line: who still runs, switching on what all know, and adopting old rows."""

import asyncio
import json
import os
from uuid import uuid4

import asyncpg
import pytest

from storage.control.features import KNOWN_NAMES
from storage.postgres.engine import UNREGISTERED_APPLICATION_NAME
from tests.support.production import serving


@pytest.fixture
async def db(launcher, deployment):
    """Runs a command of `stateroom db` with the deployment's settings; a setting of its own comes by name."""

    async def execute(*arguments, **settings):
        environ = {"PATH": os.environ["PATH"], **deployment.environ, **settings}
        done = await asyncio.to_thread(launcher.run, environ, "db", *arguments)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return execute


@pytest.fixture
async def admin(durable_postgres, deployment):
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    yield connection
    await connection.execute("DELETE FROM stateroom.processes")
    await connection.execute("DELETE FROM stateroom.deployment_features")
    await connection.close()


def documents(text):
    return [json.loads(line) for line in text.splitlines()]


async def enter_older(admin):
    await admin.execute(
        "INSERT INTO stateroom.processes VALUES ($1, 'web-1:17', '0.0.9', '{}', now(), clock_timestamp())", uuid4()
    )


async def test_an_upgrade_is_finished_once_and_what_comes_is_told_before(db, admin):
    for _ in range(2):
        code, out, err = await db("finish-upgrade", "--dry-run")
        assert (code, [line.split(":")[0] for line in out.splitlines()]) == (0, [*KNOWN_NAMES])
        assert "Nothing was switched on." in err
    code, out, err = await db("finish-upgrade")
    assert (code, [line.split(":")[0] for line in out.splitlines()]) == (0, [*KNOWN_NAMES])
    assert "On from " in err
    code, out, err = await db("finish-upgrade", "--json")
    assert (code, out) == (0, "")
    assert await admin.fetchval("SELECT count(*) FROM stateroom.deployment_features") == len(KNOWN_NAMES)


async def test_what_is_switched_on_is_told_to_programs_with_its_moment(db, admin):
    code, out, _ = await db("finish-upgrade", "--json", "--dry-run")
    assert (code, [each["since"] for each in documents(out)]) == (0, [None] * len(KNOWN_NAMES))
    code, out, _ = await db("finish-upgrade", "--json")
    assert (code, [each["feature"] for each in documents(out)]) == (0, [*KNOWN_NAMES])
    assert all(each["since"] for each in documents(out))


async def test_an_upgrade_is_not_finished_while_an_older_build_runs(db, admin, deployment):
    await enter_older(admin)
    code, _, err = await db("finish-upgrade")
    assert code == 6
    assert "web-1:17 (0.0.9" in err
    await admin.execute("DELETE FROM stateroom.processes")
    url = deployment.environ["STATEROOM_DATABASE_URL"].replace("+asyncpg", "")
    older = await asyncpg.connect(url, server_settings={"application_name": UNREGISTERED_APPLICATION_NAME})
    try:
        code, _, err = await db("finish-upgrade")
        assert code == 6
        assert "enters no registry" in err
        _, out, err = await db("processes")
        assert "has 1 sessions in the database" in out + err
        assert (await db("finish-upgrade", "--no-older-process"))[0] == 0
    finally:
        await older.close()


async def test_behind_a_pooler_nobody_is_believed_to_be_gone(db, admin, deployment):
    pooled = deployment.environ["STATEROOM_DATABASE_URL"] + "?statement_cache_size=0"
    code, _, err = await db("finish-upgrade", STATEROOM_DATABASE_URL=pooled)
    assert code == 6
    assert "--no-older-process" in err
    assert await admin.fetchval("SELECT count(*) FROM stateroom.deployment_features") == 0


async def test_who_runs_and_what_they_do_not_know_is_listed(db, admin, launcher, deployment):
    code, out, err = await db("processes")
    assert (code, "No process is entered." in out + err) == (0, True)
    async with serving(launcher, deployment):
        await enter_older(admin)
        code, out, _ = await db("processes", "--json")
        assert code == 0
        by_build = {each["build"]: each for each in documents(out)}
        assert (by_build["0.0.9"]["place"], by_build["0.0.9"]["features"]) == ("web-1:17", [])
        [ours] = [each for build, each in by_build.items() if build != "0.0.9"]
        assert ({*ours["features"]}, ours["running"]) == ({*KNOWN_NAMES}, True)
        _, out, _ = await db("processes")
        [older] = [line for line in out.splitlines() if "web-1:17" in line]
        assert KNOWN_NAMES[0] in older


async def test_rows_from_before_macs_are_listed_then_adopted_and_then_there_are_none(db, admin, launcher, deployment):
    async with serving(launcher, deployment) as gateway, gateway.client() as client:
        policy = {"idle_ttl_seconds": 86_400}
        assert (await client.put("/v1/retention", json=policy)).status_code == 200
        await admin.execute("UPDATE stateroom.retention SET mac = NULL")
        assert (await client.get("/v1/retention")).json()["damaged"] == [{"level": "tenant", "agent": None}]
        code, out, err = await db("adopt-control-rows", "--dry-run", "--json")
        assert code == 0
        [listed] = documents(out)
        assert '"idle_ttl_seconds":86400' in str(listed["says"]).replace(" ", "")
        assert "1 rows have no MAC." in err
        code, out, err = await db("adopt-control-rows")
        assert (code, out.startswith(f"tenant {listed['tenant_id']}: ")) == (0, True)
        assert "1 rows were adopted." in err
        said = (await client.get("/v1/retention")).json()
        assert (said["damaged"], said["policy"]["idle_ttl_seconds"]) == ([], 86_400)
        code, out, err = await db("adopt-control-rows")
        assert (code, out) == (0, "")
        assert "0 rows were adopted." in err
