"""`db`, `init` and `doctor` against a real, durable PostgreSQL."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from crypto import SecretKey
from crypto.roots import FileRootKey
from gateway.authentication import api_keys
from gateway.cli.local import serving
from gateway.cli.main import run
from storage.control.features import KNOWN
from storage.postgres import setup
from storage.postgres.engine import UNREGISTERED_APPLICATION_NAME
from tests.support.production import APP_PASSWORD, OWNER_PASSWORD

TENANT = UUID(int=5)


@pytest.fixture(scope="module")
async def urls(durable_postgres):
    return await setup.prepare(
        durable_postgres.superuser_url(),
        database="production",
        owner_password=OWNER_PASSWORD,
        app_password=APP_PASSWORD,
    )


@pytest.fixture
def environment(monkeypatch):
    """No Stateroom variable of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("STATEROOM_"):
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture(scope="module")
def root_key_file(tmp_path_factory):
    """One for all tests of the module, as they share a database whose own keys it wraps."""
    path = tmp_path_factory.mktemp("root-key") / "root.key"
    FileRootKey.create(path)
    return path


@pytest.fixture
def production(urls, environment, root_key_file, capsys):
    owner_url, app_url = urls
    environment.setenv("STATEROOM_DATABASE_URL", app_url)
    environment.setenv("STATEROOM_DATABASE_OWNER_URL", owner_url)
    environment.setenv("STATEROOM_ROOT_KEY", f"file:{root_key_file}")
    environment.setenv("STATEROOM_API_KEY_PEPPER", "ab" * 32)
    environment.setenv("STATEROOM_DEPLOYMENT_ID", "00000000-0000-4000-8000-000000000001")
    return environment


def test_upgrading_again_changes_nothing_and_current_agrees(production, capsys):
    assert run(["db", "upgrade"]) == 0
    capsys.readouterr()
    assert run(["db", "current", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["db_revision"] == found["db_revision_required"]
    assert found["upgrade_due"] is False


def test_an_empty_database_is_due_for_an_upgrade(production, durable_postgres, capsys):
    production.setenv("STATEROOM_DATABASE_OWNER_URL", durable_postgres.superuser_url())
    assert run(["db", "current"]) == 1
    assert "stateroom db upgrade" in capsys.readouterr().err


def test_a_wrong_password_is_no_stack_trace_and_is_not_shown(production, urls, capsys):
    production.setenv("STATEROOM_DATABASE_OWNER_URL", urls[0].replace(OWNER_PASSWORD, "hunter2"))
    for arguments in (["db", "upgrade"], ["db", "current"]):
        assert run(arguments) == 1
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        assert "hunter2" not in errors


def test_the_first_operator_key_is_printed_once_and_a_second_needs_to_be_asked_for(production, capsys):
    assert run(["init"]) == 0
    captured = capsys.readouterr()
    first = dict(line.split(maxsplit=1) for line in captured.out.splitlines())
    for next_command in ("stateroom doctor", "stateroom serve", "stateroom tenant create"):
        assert next_command in captured.err
    presented = api_keys.parse(first["api_key"])
    assert presented is not None
    assert presented.key_id == first["key_id"]
    assert run(["init"]) == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--another" in captured.err
    assert run(["init", "--another", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["api_key"] != first["api_key"]
    assert captured.err == ""


def test_an_operators_key_ends_after_90_days_unless_something_else_is_said(production, capsys):
    ends = []
    for options in ([], ["--expires", "8h"], ["--expires", "never"]):
        assert run(["init", "--another", "--json", *options]) == 0
        expires_at = json.loads(capsys.readouterr().out)["expires_at"]
        ends.append(expires_at and round((datetime.fromisoformat(expires_at) - datetime.now(UTC)) / timedelta(hours=1)))
    assert ends == [90 * 24, 8, None]


def test_another_deployments_database_is_refused(production, capsys):
    assert run(["init", "--another"]) == 0
    capsys.readouterr()
    production.setenv("STATEROOM_DEPLOYMENT_ID", "00000000-0000-4000-8000-000000000002")
    assert run(["init", "--another"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "deployment" in captured.err
    assert run(["doctor"]) == 1
    assert "belongs to another deployment" in capsys.readouterr().out


def test_the_doctor_finds_nothing_wrong_with_a_right_setup(production, capsys):
    assert run(["init", "--another"]) == 0
    capsys.readouterr()
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    outcomes = {check["check"]: check["outcome"] for check in found["checks"]}
    # There is no object storage, and so no anchors to compare the history with.
    assert [outcomes.pop(check) for check in ("object storage", "history")] == ["skipped"] * 2
    assert set(outcomes.values()) == {"ok"}
    assert {"root key", "durability", "roles", "serving role", "row-level security", "deployment id"} <= set(outcomes)


@pytest.mark.parametrize(
    ("damage", "repair", "check"),
    [
        (
            "ALTER TABLE stateroom.threads NO FORCE ROW LEVEL SECURITY",
            "ALTER TABLE stateroom.threads FORCE ROW LEVEL SECURITY",
            "row-level security",
        ),
        (
            "CREATE POLICY oops ON stateroom.chunks USING (true)",
            "DROP POLICY oops ON stateroom.chunks",
            "row-level security",
        ),
        ("ALTER ROLE gw_app BYPASSRLS", "ALTER ROLE gw_app NOBYPASSRLS", "serving role"),
        ("ALTER ROLE gw_worker BYPASSRLS", "ALTER ROLE gw_worker NOBYPASSRLS", "roles"),
        (
            "ALTER ROLE gw_app SET synchronous_commit = off",
            "ALTER ROLE gw_app RESET synchronous_commit",
            "durability",
        ),
    ],
    ids=lambda value: value,
)
async def test_the_doctor_names_what_was_weakened(production, durable_postgres, damage, repair, check):
    from gateway.cli.local import checks

    owner = durable_postgres.superuser_url("production").replace("+asyncpg", "")
    connection = await asyncpg.connect(owner)
    try:
        await connection.execute(damage)
        findings = {finding.check: finding for finding in await checks.examine(os.environ)}
        await connection.execute(repair)
    finally:
        await connection.close()
    assert findings[check].outcome == "failed"
    assert findings[check].fix


async def test_the_doctor_names_an_older_build_that_runs_after_the_upgrade_was_finished(production, durable_postgres):
    from gateway.cli.local import checks

    async def found():
        return {finding.check: finding for finding in await checks.examine(os.environ)}["processes"]

    admin = await asyncpg.connect(durable_postgres.superuser_url("production").replace("+asyncpg", ""))
    app_url = os.environ["STATEROOM_DATABASE_URL"].replace("+asyncpg", "")
    older = await asyncpg.connect(app_url, server_settings={"application_name": UNREGISTERED_APPLICATION_NAME})
    enter = "INSERT INTO stateroom.processes VALUES ($1, 'web-1:17', '0.0.9', '{}', now(), clock_timestamp())"
    try:
        await admin.execute("DELETE FROM stateroom.deployment_features")
        await admin.execute(enter, uuid4())
        assert (await found()).outcome == "ok"  # the upgrade rolls
        await admin.execute(
            "INSERT INTO stateroom.deployment_features VALUES ($1, now(), 2, $2)", KNOWN[0].name, bytes(32)
        )
        named = await found()
        assert named.outcome == "failed"
        assert "web-1:17 (build 0.0.9), one that enters no registry (1 sessions from " in named.detail
    finally:
        await admin.execute("DELETE FROM stateroom.processes")
        await admin.execute("DELETE FROM stateroom.deployment_features")
        await older.close()
        await admin.close()


async def test_only_the_owner_of_a_database_makes_temporary_tables(production, durable_postgres):
    from gateway.cli.local import checks

    app = await asyncpg.connect(os.environ["STATEROOM_DATABASE_URL"].replace("+asyncpg", ""))
    admin = await asyncpg.connect(durable_postgres.superuser_url("production").replace("+asyncpg", ""))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="temporary"):
            await app.execute("CREATE TEMP TABLE threads (thread_id text)")
        await admin.execute("GRANT TEMPORARY ON DATABASE production TO PUBLIC")  # as PostgreSQL makes databases
        before = {finding.check: finding for finding in await checks.examine(os.environ)}
        await admin.execute(setup.roles_script())
        after = {finding.check: finding for finding in await checks.examine(os.environ)}
    finally:
        await app.close()
        await admin.close()
    assert (before["serving role"].outcome, after["serving role"].outcome) == ("warning", "ok")
    assert "stateroom db roles" in before["serving role"].fix


def test_the_doctor_tells_by_a_key_that_the_pepper_is_another_one(production, capsys):
    assert run(["init", "--another", "--json"]) == 0
    production.setenv("STATEROOM_OPERATOR_KEY", json.loads(capsys.readouterr().out)["api_key"])

    def pepper():
        run(["doctor", "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next(check for check in checks if check["check"] == "API key pepper")

    assert pepper()["outcome"] == "ok"
    assert "STATEROOM_OPERATOR_KEY verifies" in pepper()["detail"]
    production.setenv("STATEROOM_API_KEY_PEPPER", "cd" * 32)
    assert pepper()["outcome"] == "failed"
    assert "STATEROOM_API_KEY_PEPPER" in pepper()["fix"]
    production.delenv("STATEROOM_OPERATOR_KEY")
    assert pepper()["outcome"] == "ok"
    assert "whether keys verify shows with one in" in pepper()["detail"]


@pytest.mark.parametrize("arguments", [["serve", "--port", "0"], ["worker"]], ids=" ".join)
@pytest.mark.parametrize("secret", ["away", "wrong"])
def test_an_object_store_that_does_not_answer_is_not_called_the_database(
    production, s3_server, capsys, arguments, secret
):
    url = "s3://key:secret@127.0.0.1:1/stateroom?endpoint=http&region=us-east-1"
    if secret == "wrong":
        url = s3_server.url().replace(s3_server.secret_key, "wrong")
    production.setenv("STATEROOM_S3_URL", url)
    production.setenv("STATEROOM_METRICS_LISTEN", "off")
    assert run(arguments) == 5
    assert capsys.readouterr().err.startswith("error: the object store is not available\n")


def test_a_database_that_is_away_is_unavailable(production, capsys):
    production.setenv("STATEROOM_DATABASE_URL", "postgresql://gw_app:hunter2@127.0.0.1:1/stateroom")
    assert run(["serve", "--port", "0"]) == 5
    shown = capsys.readouterr().err
    assert shown.startswith("error: the database is not available\n")
    assert "hunter2" not in shown


@pytest.fixture
async def other_root_key(production, durable_postgres, tmp_path):
    """A root key that wrapped the one tenant's key that is stored."""
    root_key = FileRootKey.create(tmp_path / "other.key")
    named = {"deployment": os.environ["STATEROOM_DEPLOYMENT_ID"], "tenant": str(TENANT), "purpose": "tenant"}
    by = await root_key.wrap(SecretKey.generate(), named | {"version": "1"})
    connection = await asyncpg.connect(durable_postgres.superuser_url("production").replace("+asyncpg", ""))
    await connection.execute(
        "INSERT INTO stateroom.tenant_keys (tenant_id, key_version, state, provider, root_key_id, root_key_version,"
        " wrapped, kcv, created_at) VALUES ($1, 1, 'active', $2, $3, $4, $5, '', now())",
        *(TENANT, by.provider, by.root_key_id, by.root_key_version, by.ciphertext),
    )
    # Nothing of the deployment's own is under the root key that is refused.
    await connection.execute("DELETE FROM stateroom.deployment_keys")
    await connection.execute("DELETE FROM stateroom.deployment_features")
    yield tmp_path / "other.key"
    await connection.execute("DELETE FROM stateroom.tenant_keys WHERE tenant_id = $1", TENANT)
    await connection.execute("DELETE FROM stateroom.deployment_keys")
    await connection.execute("DELETE FROM stateroom.deployment_features")
    await connection.close()


@pytest.mark.parametrize("arguments", [["serve", "--port", "0"], ["worker"], ["init", "--another"]], ids=" ".join)
def test_a_root_key_that_wrapped_nothing_of_what_is_stored_is_refused(production, other_root_key, capsys, arguments):
    production.setenv("STATEROOM_METRICS_LISTEN", "off")
    assert run(arguments) == 1
    assert "the root key does not open 1 tenant keys under file " in capsys.readouterr().err
    assert run(["doctor"]) == 1
    assert "the root key does not open 1 tenant keys under file " in capsys.readouterr().out
    # As in the middle of a rotation: a new one first, the old one behind it.
    production.setenv("STATEROOM_ROOT_KEY", f"{os.environ['STATEROOM_ROOT_KEY']} file:{other_root_key}")
    assert run(["init", "--another"]) == 0
    assert run(["doctor"]) == 0


def test_a_configured_gateway_serves_until_sigterm_and_says_no_secret(production, urls):
    production.setenv("STATEROOM_METRICS_LISTEN", "off")
    production.setenv("STATEROOM_DRAIN_SECONDS", "0")
    production.setenv("STATEROOM_LISTEN", "127.0.0.1:1")
    with subprocess.Popen(
        [sys.executable, "-c", "from gateway.cli.main import main; main()", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = ""
        while '"ready"' not in shown:
            line = process.stderr.readline()
            assert line, shown
            shown += line
        ready = json.loads(shown.splitlines()[-1])
        assert ready["public_url"] == f"http://{ready['listen']}"  # as nothing else was said
        with urllib.request.urlopen(f"http://{ready['listen']}/readyz", timeout=10) as answer:
            assert json.load(answer)["ready"] is True
        process.send_signal(signal.SIGTERM)
        shown += process.stderr.read()
        assert process.stdout.read() == ""
        assert process.wait(40) == 0
    for line in shown.splitlines():
        assert {"event", "level", "timestamp", "service", "version", "instance"} <= json.loads(line).keys()
    assert APP_PASSWORD not in shown
    assert "ab" * 32 not in shown


def test_a_port_for_metrics_that_is_taken_is_named(production, capsys):
    with serving.bind("127.0.0.1", 0) as taken:
        taken.listen()
        production.setenv("STATEROOM_METRICS_LISTEN", f"127.0.0.1:{taken.getsockname()[1]}")
        assert run(["serve", "--port", "0"]) == 1
    assert "STATEROOM_METRICS_LISTEN" in capsys.readouterr().err
