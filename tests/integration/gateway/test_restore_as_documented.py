"""The commands of docs/operations/backup.md, run as they stand, against a database with state in it."""

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from gateway.embedded.postgres import postgres_programs
from storage.control.features import DECISIONS, ITEMS
from tests.support.engines import drop_database
from tests.support.features import finish_upgrade
from tests.support.production import APP_PASSWORD, OWNER_PASSWORD, serving

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "backup.md"
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[:4]
NEW = "restored_as_documented"
CREATOR = "restores_databases"
EFFECT = {"tool": "pay", "args": {"to": "bob"}, "mode": "once"}


@pytest.fixture
async def bucketed(deployment, production_dir, s3_server):
    return deployment.with_buckets(s3_server.url())


@pytest.fixture
async def creator_url(durable_postgres):
    """Of a role that may create databases for gw_migrate, and is no superuser."""
    superuser_url = durable_postgres.superuser_url()
    connection = await asyncpg.connect(superuser_url.replace("+asyncpg", ""))
    await connection.execute(f"CREATE ROLE {CREATOR} LOGIN CREATEDB PASSWORD 'creates'")
    await connection.execute(f"GRANT gw_migrate TO {CREATOR}")
    yield make_url(superuser_url).set(username=CREATOR, password="creates", drivername="postgresql")
    await drop_database(durable_postgres, NEW)
    await connection.execute(f"DROP ROLE {CREATOR}")
    await connection.close()


async def shell(script, environ, folder):
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", script, env=environ, cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_backup_is_restored_by_the_commands_of_the_page_and_by_nobody_with_more_rights(
    bucketed, creator_url, launcher, tmp_path
):
    await finish_upgrade(bucketed, ITEMS, DECISIONS)
    async with serving(launcher, bucketed) as gateway, gateway.client() as client:
        assert (await client.post("/v1/threads/t/checkpoints", json={"state": {"n": 1}})).status_code == 201
        assert (await client.put("/v1/items/memories/k", json={"value": {"n": 2}})).status_code == 201
        claim = (await client.post("/v1/threads/t/resume-claim", json={"holder": "worker", "note": "half way"})).json()
        begun = (await client.put("/v1/threads/t/effects/call", json=EFFECT)).json()
        assert begun["must_run"]
        place = {name: begun["effect"][name] for name in ("execution", "attempt")}
        ended = await client.post("/v1/threads/t/effects/call/finish", json={**place, "status": "done", "result": 3})
        assert ended.status_code == 200

    def url(role, password, database):
        changed = creator_url.set(username=role, password=password, database=database)
        return changed.render_as_string(hide_password=False)

    binaries = [postgres_programs(), Path(os.sys.executable).parent]
    environ = bucketed.environ | {
        "PATH": ":".join([*map(str, binaries), os.environ["PATH"]]),
        "OWNER_URL": url("gw_migrate", OWNER_PASSWORD, bucketed.database),
    }
    dump, *rest = COMMANDS
    code, output = await shell(dump, environ, tmp_path)
    assert code == 0, output
    environ |= {
        "DATABASE": NEW,
        "ADMIN_URL": creator_url.set(database="postgres").render_as_string(hide_password=False),
        "OWNER_URL": url("gw_migrate", OWNER_PASSWORD, NEW),
        "STATEROOM_DATABASE_OWNER_URL": url("gw_migrate", OWNER_PASSWORD, NEW),
        "STATEROOM_DATABASE_URL": url("gw_app", APP_PASSWORD, NEW),
    }
    for script in rest:
        code, output = await shell(script, environ, tmp_path)
        assert code == 0, output
        assert "ERROR" not in output, output
    assert "functions           each does what it was made to do" in output
    restored = replace(bucketed, database=NEW, environ=bucketed.environ | {
        "STATEROOM_DATABASE_URL": environ["STATEROOM_DATABASE_URL"]
    })  # fmt: skip
    async with serving(launcher, restored) as gateway, gateway.client() as client:
        assert (await client.get("/v1/threads/t/checkpoints/latest")).json()["state"] == {"n": 1}
        assert (await client.get("/v1/items/memories/k")).json()["value"] == {"n": 2}
        found = (await client.get("/v1/threads/t/resume-claim")).json()
        assert (found["fence"], found["note"]) == (claim["fence"], "half way")
        again = (await client.put("/v1/threads/t/effects/call", json=EFFECT)).json()
        assert (again["must_run"], again["effect"]["result"]) == (False, 3)
