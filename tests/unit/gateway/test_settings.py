from pathlib import Path

import pytest

from gateway.settings import VARIABLES, Address, Settings, SettingsError, owner_url, parse, read_secret

GIVEN = {
    "STATEROOM_DATABASE_URL": "postgresql://gw_app:hunter2@127.0.0.1/stateroom",
    "STATEROOM_ROOT_KEY": "file:root-secret",
    "STATEROOM_API_KEY_PEPPER": "ab" * 32,
    "STATEROOM_DEPLOYMENT_ID": "00000000-0000-0000-0000-000000000001",
}


def test_there_are_twenty():
    assert len(VARIABLES) == 20
    serving = {f"STATEROOM_{name.upper()}" for name in Settings.__struct_fields__}
    assert serving == set(VARIABLES) - {"STATEROOM_DATABASE_OWNER_URL"}


def test_the_required_ones_suffice():
    settings = Settings.from_environment(GIVEN)
    assert settings.api_key_pepper == b"\xab" * 32
    assert settings.listen == Address("127.0.0.1", 8080)


def test_new_tenants_have_quotas_unless_the_operator_says_that_they_have_none():
    settings = Settings.from_environment(GIVEN)
    assert (settings.default_blob_quota, settings.default_row_quota) == (100 * 2**30, 20 * 2**30)
    said = {"STATEROOM_DEFAULT_BLOB_QUOTA": "none", "STATEROOM_DEFAULT_ROW_QUOTA": "1.5 GB"}
    settings = Settings.from_environment(GIVEN | said)
    assert (settings.default_blob_quota, settings.default_row_quota) == (None, 1_500_000_000)


@pytest.mark.parametrize("missing", GIVEN)
def test_a_missing_one_is_named_with_what_to_do(missing):
    with pytest.raises(SettingsError, match=missing):
        Settings.from_environment({name: text for name, text in GIVEN.items() if name != missing})


def test_no_secret_is_shown():
    shown = repr(Settings.from_environment(GIVEN))
    assert not any(secret in shown for secret in ("hunter2", "root-secret", "abab", repr(b"\xab")[2:-1]))


def test_a_secret_may_come_from_a_file(tmp_path: Path):
    secret = tmp_path / "pepper"
    secret.write_text("cd" * 32 + "\n")
    given = {**GIVEN, "STATEROOM_API_KEY_PEPPER_FILE": str(secret)}
    with pytest.raises(SettingsError, match="both set"):
        Settings.from_environment(given)
    del given["STATEROOM_API_KEY_PEPPER"]
    assert Settings.from_environment(given).api_key_pepper == b"\xcd" * 32


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DATABASE_URL", "postgresql://gw_app:hunter2@host:hunter3/stateroom"),
        ("DATABASE_URL", "mysql://gw_app:hunter2@host/stateroom"),
        ("DATABASE_OWNER_URL", "nothing like a URL"),
        ("API_KEY_PEPPER", "ab" * 31),
        ("API_KEY_PEPPER", "not base64!"),
        ("API_KEY_PEPPER_VERSION", "0"),
        ("API_KEY_PEPPERS_ACCEPTED", "ab" * 32),
        ("API_KEY_PEPPERS_ACCEPTED", "2:" + "ab" * 31),
        ("API_KEY_PEPPERS_ACCEPTED", f"2:{'ab' * 32} 2:{'cd' * 32}"),
        ("API_KEY_PEPPERS_ACCEPTED", "1:" + "ab" * 32),
        ("DEPLOYMENT_ID", "not-one"),
        ("DATABASE_CONNECTIONS_MAX", "00000"),
        ("LISTEN", "8099"),
        ("LISTEN", "127.0.0.1:99999"),
        ("PUBLIC_URL", "gateway.internal"),
        ("DRAIN_SECONDS", "-1"),
        ("LOG_LEVEL", "chatty"),
        ("DEFAULT_BLOB_QUOTA", "lots"),
        ("DEFAULT_ROW_QUOTA", "0B"),
        ("DEFAULT_ROW_QUOTA", "9EiB"),
        ("REQUESTS_IN_FLIGHT_MAX", "1e3"),
    ],
)
def test_a_wrong_one_is_named_without_its_value(name, text):
    with pytest.raises(SettingsError, match=f"STATEROOM_{name}") as refused:
        Settings.from_environment({**GIVEN, f"STATEROOM_{name}": text})
    assert text not in str(refused.value)


def test_everything_that_is_wrong_is_said_at_once_and_the_rest_is_read():
    given, faults = parse({"STATEROOM_DEPLOYMENT_ID": "4", "STATEROOM_ROOT_KEY": "file:/k", "STATEROOM_LISTEN": "::1"})
    assert given == {"root_key": "file:/k"}
    named = [fault.split()[0] for fault in faults]
    assert sorted(named) == [
        f"STATEROOM_{name}" for name in ("API_KEY_PEPPER", "DATABASE_URL", "DEPLOYMENT_ID", "LISTEN")
    ]
    with pytest.raises(SettingsError) as refused:
        Settings.from_environment({"STATEROOM_ROOT_KEY": "file:/k"})
    assert len(str(refused.value).splitlines()) == 3


def test_a_fault_of_a_url_shows_no_part_of_it():
    for variable in ("DATABASE_URL", "DATABASE_OWNER_URL"):
        _, faults = parse({**GIVEN, f"STATEROOM_{variable}": "postgresql://gw_app:hunter2@host:hunter3/stateroom"})
        assert len(faults) == 1
        assert "hunter" not in faults[0]


def test_the_owners_url_needs_no_other_setting_and_follows_the_same_rules(tmp_path: Path):
    url = "postgresql://gw_migrate:hunter2@127.0.0.1/stateroom"
    assert owner_url({}) is None
    assert owner_url({"STATEROOM_DATABASE_OWNER_URL": url}) == url
    (tmp_path / "url").write_text(f"{url}\n")
    from_file = {"STATEROOM_DATABASE_OWNER_URL_FILE": str(tmp_path / "url")}
    assert owner_url(from_file) == url
    with pytest.raises(SettingsError, match="both set"):
        owner_url({"STATEROOM_DATABASE_OWNER_URL": url, **from_file})
    with pytest.raises(SettingsError, match="not a database URL"):
        owner_url({"STATEROOM_DATABASE_OWNER_URL": "postgresql://host:port/x"})
    assert Settings.from_environment({**GIVEN, **from_file}) == Settings.from_environment(GIVEN)


def test_a_database_url_may_say_what_libpq_says_of_tls_and_nothing_unknown():
    url = f"{GIVEN['STATEROOM_DATABASE_URL']}?sslmode=verify-full&sslrootcert=/etc/ca.crt&statement_cache_size=0"
    assert Settings.from_environment(GIVEN | {"STATEROOM_DATABASE_URL": url}).database_url == url
    for wrong in ("ssl=require", "sslmode=require&hunter2=1"):
        with pytest.raises(SettingsError, match="none of host, port, ssl_max_protocol_version") as caught:
            Settings.from_environment(GIVEN | {"STATEROOM_DATABASE_URL": f"{GIVEN['STATEROOM_DATABASE_URL']}?{wrong}"})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot be read"), (b"\xff", "cannot be read"), (b" \n", "empty")]
)
def test_a_file_without_a_secret_is_named_by_its_variable(tmp_path: Path, content, says):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=f"STATEROOM_API_KEY_FILE .*{says}"):
        read_secret({"STATEROOM_API_KEY_FILE": str(path)}, "STATEROOM_API_KEY")
