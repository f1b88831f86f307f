"""`stateroom db wait`, as entry scripts use it: before there is a database, a role, a schema."""

import os
import subprocess
import sys
from collections.abc import Mapping
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from storage.postgres import setup
from tests.support.engines import drop_database
from tests.support.production import APP_PASSWORD, OWNER_PASSWORD

MAIN = [sys.executable, "-c", "from gateway.cli.main import main; main()", "db", "wait"]


def begun(environ: Mapping[str, str], *options: str) -> subprocess.Popen[str]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("STATEROOM_")}
    return subprocess.Popen([*MAIN, *options], stderr=subprocess.PIPE, text=True, env=plain | environ)


def ended(environ: Mapping[str, str], *options: str) -> tuple[int, str]:
    with begun(environ, *options) as process:
        shown = process.communicate(timeout=60)[1]
    return process.returncode, shown


def url_of(postgres, database, role="gw_app", password=APP_PASSWORD):
    url = make_url(postgres.superuser_url(database)).set(drivername="postgresql", username=role, password=password)
    return url.render_as_string(False)


@pytest.fixture
async def database(durable_postgres):
    """The name of a database that is not there yet."""
    name = f"t_{uuid4().hex}"
    yield name
    await drop_database(durable_postgres, name)


async def test_it_waits_for_the_database_its_role_and_its_schema(durable_postgres, database):
    environ = {"STATEROOM_DATABASE_URL": url_of(durable_postgres, database)}
    with begun(environ, "--revision") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for the database (0 s): it answers with Invalid")
        await setup.prepare(
            durable_postgres.superuser_url(),
            database=database,
            owner_password=OWNER_PASSWORD,
            app_password=APP_PASSWORD,
        )
        shown = process.communicate(timeout=60)[1]
    assert process.returncode == 0, shown
    assert shown.splitlines()[-1].startswith("The database is there (")
    # A pooler's URL is taken as it is; so is the owner's, where it is the only one.
    assert ended({"STATEROOM_DATABASE_URL": f"{environ['STATEROOM_DATABASE_URL']}?statement_cache_size=0"})[0] == 0
    owner = url_of(durable_postgres, database, "gw_migrate", OWNER_PASSWORD)
    assert ended({"STATEROOM_DATABASE_OWNER_URL": owner}, "--revision")[0] == 0


async def test_a_schema_that_is_missing_or_older_is_waited_for_only_when_asked(durable_postgres, database):
    await setup.prepare(
        durable_postgres.superuser_url(), database=database, owner_password=OWNER_PASSWORD, app_password=APP_PASSWORD
    )
    environ = {"STATEROOM_DATABASE_URL": url_of(durable_postgres, database)}
    admin = await asyncpg.connect(durable_postgres.superuser_url(database).replace("+asyncpg", ""))
    try:
        await admin.execute("UPDATE stateroom.db_revision SET version_num = 'a33'")
        code, shown = ended(environ, "--revision", "--timeout", "0")
        assert code == 7
        assert "is at revision a33, and this build requires" in shown
        assert ended(environ, "--timeout", "0")[0] == 0
        await admin.execute("UPDATE stateroom.db_revision SET version_num = 'z99'")  # of a newer build
        assert ended(environ, "--revision", "--timeout", "0")[0] == 0
        await admin.execute("DROP SCHEMA stateroom CASCADE")
    finally:
        await admin.close()
    code, shown = ended(environ, "--revision", "--timeout", "0")
    assert code == 7
    assert "its schema is missing" in shown


def test_what_does_not_come_in_time_is_said_without_a_secret(durable_postgres):
    away = "postgresql://gw_app:hunter2@127.0.0.1:1/stateroom"
    code, shown = ended({"STATEROOM_DATABASE_URL": away}, "--timeout", "0.6")
    assert code == 7
    assert shown.startswith("waiting for the database (0 s): it cannot be reached: ConnectionRefusedError\n")
    assert "error: the database is not there after 0.6 s" in shown
    assert "hunter2" not in shown
    wrong = url_of(durable_postgres, "postgres", "postgres", "hunter2")
    code, shown = ended({"STATEROOM_DATABASE_URL": wrong}, "--timeout", "0")
    assert code == 7
    assert "it answers with InvalidPasswordError" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        ({}, 2, "STATEROOM_DATABASE_URL is not set"),
        ({"STATEROOM_DATABASE_URL": "mysql://a@b/c"}, 2, "is not a database URL"),
        (
            {"STATEROOM_DATABASE_URL": "postgresql://a@b/c?target_session_attrs=what"},
            1,
            "the database URL cannot be used",
        ),
    ],
    ids=["none", "another kind", "an unknown wish"],
)
def test_what_no_waiting_mends_is_said_at_once(environ, code, said):
    found, shown = ended(environ)
    assert found == code, shown
    assert said in shown
