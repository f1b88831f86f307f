"""Statements on what finished upgrades switched on."""

FEATURES = "SELECT feature, since, mac_format, mac FROM stateroom.deployment_features ORDER BY feature"

ADD_FEATURE = """
INSERT INTO stateroom.deployment_features (feature, since, mac_format, mac) VALUES ($1, $2, $3, $4)
"""
