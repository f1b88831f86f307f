"""The registry of processes, what a finished upgrade switched on, and the format of control rows' MACs.

Expands only: the previous release looks at none of it. ``mac_format`` is null where a row's MAC is of the first format,
which is all that the previous release writes and verifies.
"""

from alembic import op

revision = "a22"
down_revision = "a21"
branch_labels = None
depends_on = None

CONTROL_TABLES = ("state_schemas", "retention", "thread_retention", "jobs")


def upgrade() -> None:
    """Create the tables and add the columns."""
    op.execute("""
        CREATE TABLE stateroom.processes (
            instance uuid PRIMARY KEY,
            place text NOT NULL,
            build text NOT NULL,
            features text[] NOT NULL,
            started_at timestamptz NOT NULL,
            seen_at timestamptz NOT NULL
        )
    """)
    op.execute("""
        CREATE TABLE stateroom.deployment_features (
            feature text COLLATE "C" PRIMARY KEY,
            since timestamptz NOT NULL,
            mac_format smallint NOT NULL,
            mac bytea NOT NULL CHECK (length(mac) = 32)
        )
    """)
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.processes TO gw_app")
    # What is on stays on: no gateway can switch it off, whoever holds its credentials.
    op.execute("GRANT SELECT, INSERT ON stateroom.deployment_features TO gw_app")
    op.execute("GRANT SELECT ON stateroom.processes TO gw_ops")
    op.execute("GRANT SELECT (feature, since) ON stateroom.deployment_features TO gw_ops")
    for table in CONTROL_TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} ADD mac_format smallint")


def downgrade() -> None:
    """Drop what upgrade added. Control rows with a MAC of a later format prove nothing from then on."""
    for table in CONTROL_TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} DROP mac_format")
    op.execute("DROP TABLE stateroom.deployment_features")
    op.execute("DROP TABLE stateroom.processes")
