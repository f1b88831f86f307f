import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from crypto.roots.file import FileRootKey
from gateway.cli.local import checks

SETTINGS = {
    "STATEROOM_DATABASE_URL": "postgresql://gw_app:hunter2@127.0.0.1:1/stateroom",
    "STATEROOM_DEPLOYMENT_ID": "00000000-0000-4000-8000-000000000001",
    "STATEROOM_API_KEY_PEPPER": "ab" * 32,
}


async def outcomes(environ):
    found = await checks.examine(environ)
    return {finding.check: finding for finding in found}


async def test_missing_settings_are_named_and_the_rest_is_skipped():
    found = await outcomes({})
    assert found["settings"].outcome == "failed"
    assert "STATEROOM_DATABASE_URL" in found["settings"].detail
    assert {found[name].outcome for name in ("root key", "database", "object storage")} == {"skipped"}


async def test_one_wrong_setting_does_not_hide_what_else_is_wrong(tmp_path):
    FileRootKey.create(tmp_path / "root.key")
    (tmp_path / "root.key").chmod(0o640)
    environ = {name: value for name, value in SETTINGS.items() if name != "STATEROOM_DEPLOYMENT_ID"}
    environ |= {
        "STATEROOM_ROOT_KEY": f"file:{tmp_path / 'root.key'}",
        "STATEROOM_S3_URL": "nothing",
        "STATEROOM_LISTEN": "x",
    }
    found = await outcomes(environ)
    assert {check for check, finding in found.items() if finding.outcome == "failed"} == {
        "settings", "root key", "database", "object storage",
    }  # fmt: skip
    assert "STATEROOM_LISTEN" in found["settings"].detail
    assert "STATEROOM_DEPLOYMENT_ID" in found["settings"].detail


@pytest.mark.parametrize(
    ("before", "needed"),
    [
        (checks.failed("database", "it does not answer", ""), "a database that answers"),
        (checks.failed("PostgreSQL version", "15.18", ""), "a server that is new enough"),
    ],
)
async def test_a_history_that_nobody_can_ask_for_is_no_restore(before, needed, tmp_path, monkeypatch):
    async def found(*_):
        return [before]

    FileRootKey.create(tmp_path / "root.key")
    monkeypatch.setattr(checks, "_check_database", found)
    bucket = "s3://a:b@127.0.0.1:1/bucket?endpoint=http&region=r"
    environ = SETTINGS | {"STATEROOM_ROOT_KEY": f"file:{tmp_path / 'root.key'}", "STATEROOM_S3_URL": bucket}
    assert (await outcomes(environ))["history"] == checks.skipped("history", f"needs {needed}")


async def test_a_home_that_is_closed_to_the_driver_is_no_matter_of_password_and_network(monkeypatch):
    async def connect(*_, **__):
        raise PermissionError(13, "Permission denied", "/root/.postgresql/postgresql.key")

    monkeypatch.setattr(checks.asyncpg, "connect", connect)
    found = (await outcomes(SETTINGS))["database"]
    assert found.outcome == "failed"
    assert "HOME" in found.fix
    assert "password" not in found.fix


async def test_a_root_key_others_can_read_fails_with_the_remedy(tmp_path):
    path = tmp_path / "root.key"
    FileRootKey.create(path)
    environ = SETTINGS | {"STATEROOM_ROOT_KEY": f"file:{path}"}
    assert (await outcomes(environ))["root key"].outcome == "ok"
    path.chmod(0o644)
    finding = (await outcomes(environ))["root key"]
    assert finding.outcome == "failed"
    assert f"chmod 600 {path}" in finding.detail


def kms_that_answers(name, status):
    """AWS KMS as far as a dry run goes: moto ignores `DryRun`, and the real one answers it with an error."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"__type": name}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Answer), asked


@pytest.mark.parametrize(
    ("name", "status", "outcome"),
    [
        ("DryRunOperationException", 412, "ok"),
        ("AccessDeniedException", 400, "failed"),
        ("DisabledException", 400, "failed"),
    ],
)
async def test_kms_is_asked_by_a_dry_run(monkeypatch, name, status, outcome):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    server, asked = kms_that_answers(name, status)
    with server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            arn = "arn:aws:kms:eu-central-1:111122223333:key/00000000-0000-4000-8000-000000000001"
            spec = f"aws-kms:{arn}?endpoint=http://127.0.0.1:{server.server_address[1]}"
            finding = (await outcomes(SETTINGS | {"STATEROOM_ROOT_KEY": spec}))["root key"]
        finally:
            server.shutdown()
            serving.join()
    assert finding.outcome == outcome, finding
    assert asked
    assert all(each["DryRun"] is True for each in asked)
    if outcome == "ok":
        assert "dry run" in finding.detail
    else:
        assert "policy" in finding.fix


async def test_an_unreachable_database_fails_without_showing_the_password():
    found = await outcomes(SETTINGS | {"STATEROOM_ROOT_KEY": "file:/nowhere/root.key"})
    assert found["database"].outcome == "failed"
    assert found["database"].fix
    assert "hunter2" not in str(found)


async def test_an_s3_url_that_is_none_fails_without_showing_it():
    found = await outcomes(
        SETTINGS | {"STATEROOM_ROOT_KEY": "file:/nowhere", "STATEROOM_S3_URL": "http://a:hunter3@host"}
    )
    assert found["object storage"].outcome == "failed"
    assert "hunter3" not in str(found)
