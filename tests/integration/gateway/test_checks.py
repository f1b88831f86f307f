"""What the doctor finds at engines that answer."""

import pytest

from tests.unit.gateway.cli.test_checks import SETTINGS, outcomes


@pytest.mark.parametrize(("parameter", "shown"), [("", "65,536"), ("&offload_bytes_min=16384", "16,384")])
async def test_the_doctor_says_from_which_size_on_pieces_live_in_the_bucket(s3_server, parameter, shown):
    url = s3_server.url() + parameter
    found = await outcomes(SETTINGS | {"STATEROOM_ROOT_KEY": "file:/nowhere", "STATEROOM_S3_URL": url})
    assert found["object storage"].outcome == "ok"
    assert f"pieces of {shown} bytes or more" in found["object storage"].detail


async def test_the_doctor_looks_at_both_buckets_and_says_what_the_archive_is_stored_in(s3_server):
    urls = {"STATEROOM_S3_URL": s3_server.url(), "STATEROOM_ARCHIVE_URL": s3_server.archive_url()}
    found = await outcomes(SETTINGS | urls | {"STATEROOM_ROOT_KEY": "file:/nowhere"})
    assert (found["object storage"].outcome, found["archive"].outcome) == ("ok", "ok")
    assert "stateroom-archive" in found["archive"].detail
    cold = {name: f"{url}&storage_class=GLACIER" for name, url in urls.items()}
    found = await outcomes(SETTINGS | cold | {"STATEROOM_ROOT_KEY": "file:/nowhere"})
    assert (found["object storage"].outcome, found["archive"].outcome) == ("failed", "ok")
    assert "stored in GLACIER" in found["archive"].detail
    gone = {"STATEROOM_ARCHIVE_URL": s3_server.archive_url().replace("stateroom-archive?", "absent?")}
    found = await outcomes(SETTINGS | gone | {"STATEROOM_ROOT_KEY": "file:/nowhere"})
    assert found["archive"].outcome == "failed"


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
