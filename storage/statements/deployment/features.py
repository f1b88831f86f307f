"""Statements on what finished upgrades switched on."""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class FeatureRow(msgspec.Struct, frozen=True):
    """A feature that is switched on, and its proof."""

    feature: str
    since: datetime
    mac_format: int
    mac: bytes


FEATURES = Statement(
    "SELECT feature, since, mac_format, mac FROM stateroom.deployment_features ORDER BY feature", FeatureRow
)

ADD_FEATURE = Statement("""
INSERT INTO stateroom.deployment_features (feature, since, mac_format, mac) VALUES (:feature, :since, :mac_format, :mac)
""")
