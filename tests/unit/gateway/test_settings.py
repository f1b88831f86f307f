from pathlib import Path

import pytest

from gateway.settings import VARIABLES, Address, Settings, SettingsError

GIVEN = {
    "STATEROOM_DATABASE_URL": "postgresql://gw_app:hunter2@127.0.0.1/stateroom",
    "STATEROOM_ROOT_KEY": "file:root-secret",
    "STATEROOM_API_KEY_PEPPER": "ab" * 32,
    "STATEROOM_DEPLOYMENT_ID": "00000000-0000-0000-0000-000000000001",
}


def test_there_are_fifteen():
    assert len(VARIABLES) == len(Settings.__struct_fields__) == 15


def test_the_required_ones_suffice():
    settings = Settings.from_environment(GIVEN)
    assert settings.api_key_pepper == b"\xab" * 32
    assert settings.listen == Address("127.0.0.1", 8080)


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
        ("API_KEY_PEPPER", "ab" * 31),
        ("API_KEY_PEPPER", "not base64!"),
        ("DEPLOYMENT_ID", "not-one"),
        ("DATABASE_CONNECTIONS_MAX", "00000"),
        ("LISTEN", "8099"),
        ("LISTEN", "127.0.0.1:99999"),
        ("PUBLIC_URL", "gateway.internal"),
        ("DRAIN_SECONDS", "-1"),
        ("LOG_LEVEL", "chatty"),
        ("REQUESTS_IN_FLIGHT_MAX", "1e3"),
    ],
)
def test_a_wrong_one_is_named_without_its_value(name, text):
    with pytest.raises(SettingsError, match=f"STATEROOM_{name}") as refused:
        Settings.from_environment({**GIVEN, f"STATEROOM_{name}": text})
    assert text not in str(refused.value)
