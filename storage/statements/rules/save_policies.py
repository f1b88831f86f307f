"""Statements on save policies; whether one counts for a save, `storage.statements.threads.checkpoints.OPEN` tells."""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class SavePolicyRow(msgspec.Struct, frozen=True):
    """A save policy as it is stored; an empty ``agent`` stands for the whole tenant."""

    agent: str
    strict: bool | None
    compact_elements: int | None
    compact_bytes: int | None
    updated_at: datetime
    mac: bytes | None
    mac_format: int | None


LOCK = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

_COLUMNS = "agent, strict, compact_elements, compact_bytes, updated_at, mac, mac_format"
EVERY = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.save_policies WHERE tenant_id = :tenant_id ORDER BY agent
""",
    SavePolicyRow,
)
ONE = Statement(
    f"""
SELECT {_COLUMNS} FROM stateroom.save_policies WHERE tenant_id = :tenant_id AND agent = :agent
""",
    SavePolicyRow,
)
AGENTS = Statement("SELECT count(*) FROM stateroom.save_policies WHERE tenant_id = :tenant_id AND agent <> ''", int)

PUT = Statement("""
INSERT INTO stateroom.save_policies
    (tenant_id, agent, strict, compact_elements, compact_bytes, updated_at, mac, mac_format)
VALUES (:tenant_id, :agent, :strict, :compact_elements, :compact_bytes, :updated_at, :mac, :mac_format)
ON CONFLICT (tenant_id, agent) DO UPDATE SET strict = excluded.strict, compact_elements = excluded.compact_elements,
    compact_bytes = excluded.compact_bytes, updated_at = excluded.updated_at, mac = excluded.mac,
    mac_format = excluded.mac_format
""")
TAKE_BACK = Statement("DELETE FROM stateroom.save_policies WHERE tenant_id = :tenant_id AND agent = :agent")
