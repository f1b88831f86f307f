from gateway.cli import checks

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


async def test_a_root_key_others_can_read_fails_with_the_remedy(tmp_path):
    from crypto.roots.file import FileRootKey

    path = tmp_path / "root.key"
    FileRootKey.create(path)
    environ = SETTINGS | {"STATEROOM_ROOT_KEY": f"file:{path}"}
    assert (await outcomes(environ))["root key"].outcome == "ok"
    path.chmod(0o644)
    finding = (await outcomes(environ))["root key"]
    assert finding.outcome == "failed"
    assert f"chmod 600 {path}" in finding.detail


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


async def test_a_database_without_schema_is_told_to_upgrade(empty_database):
    found = await outcomes(
        SETTINGS | {"STATEROOM_ROOT_KEY": "file:/nowhere", "STATEROOM_DATABASE_URL": empty_database.dsn}
    )
    assert found["PostgreSQL version"].outcome == "ok"
    assert found["clock"].outcome == "ok"
    assert found["writable"].outcome == "ok"
    assert found["durability"].outcome == "failed"  # tests run with fsync off
    assert "fsync" in found["durability"].fix
    assert found["serving role"].outcome == "failed"
    assert "superuser" in found["serving role"].detail
    assert found["row-level security"].outcome == "failed"
    assert found["database schema"].outcome == "failed"
    assert "db upgrade" in found["database schema"].fix
