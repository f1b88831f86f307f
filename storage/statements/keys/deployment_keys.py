"""Statements on the deployment's own keys, which are bound to no tenant."""

import msgspec

from storage.postgres.statement import Statement


class DeploymentKeyRow(msgspec.Struct, frozen=True):
    """A version of one of the deployment's own keys as it is stored."""

    purpose: str
    key_version: int
    provider: str
    root_key_id: str
    root_key_version: str
    wrapped: bytes
    public: bytes


_COLUMNS = "purpose, key_version, provider, root_key_id, root_key_version, wrapped, public"

EVERY_KEY = Statement(
    f"SELECT {_COLUMNS} FROM stateroom.deployment_keys ORDER BY purpose, key_version", DeploymentKeyRow
)
KEYS_OF_PURPOSE = Statement(
    f"SELECT {_COLUMNS} FROM stateroom.deployment_keys WHERE purpose = :purpose ORDER BY key_version", DeploymentKeyRow
)
# Another gateway may have stored its key first; what is stored is then read again, and only that is ever used.
ADD_KEY = Statement("""
INSERT INTO stateroom.deployment_keys
    (purpose, key_version, provider, root_key_id, root_key_version, wrapped, public, created_at)
VALUES (:purpose, :key_version, :provider, :root_key_id, :root_key_version, :wrapped, :public, :now)
ON CONFLICT DO NOTHING
""")
REWRAP_KEY = Statement("""
UPDATE stateroom.deployment_keys SET provider = :provider, root_key_id = :root_key_id,
    root_key_version = :root_key_version, wrapped = :wrapped
WHERE purpose = :purpose AND key_version = :key_version AND wrapped = :wrapped_before
""")
