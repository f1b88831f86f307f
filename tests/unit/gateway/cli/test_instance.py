"""What an embedded gateway takes from the environment of whoever starts it."""

from gateway.cli.local.instance import chosen


def test_an_embedded_gateway_keeps_for_backups_as_long_as_it_is_told_and_its_own_engines() -> None:
    said = {"STATEROOM_BACKUP_RETENTION_DAYS": "7", "STATEROOM_LOG_LEVEL": "", "STATEROOM_DATABASE_URL": "elsewhere"}
    assert chosen(said) == {"STATEROOM_BACKUP_RETENTION_DAYS": "7"}
