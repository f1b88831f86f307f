"""State schemas, version by version, and pending writes with versions of their own.

Expands only: the previous release keeps serving, and leaves the new columns null, which says that a write is at its
checkpoint's version. A definition is written once: there is no privilege to change or to remove one.
"""

from alembic import op

revision = "a10"
down_revision = "a8"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"

TABLE = """
CREATE TABLE stateroom.state_schemas (
    tenant_id  uuid NOT NULL,
    schema     text COLLATE "C" NOT NULL,
    number     integer NOT NULL CHECK (number > 0),
    definition bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, schema, number)
)
"""


def upgrade() -> None:
    """Add the table and the columns."""
    op.execute(TABLE)
    op.execute("ALTER TABLE stateroom.state_schemas ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.state_schemas FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT ON stateroom.state_schemas TO gw_app")
    op.execute(f"CREATE POLICY tenant_rows ON stateroom.state_schemas TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute("GRANT SELECT (tenant_id, schema, number, created_at) ON stateroom.state_schemas TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.state_schemas FOR SELECT TO gw_ops USING (true)")
    op.execute('ALTER TABLE stateroom.pending_writes ADD state_schema text COLLATE "C", ADD state_version integer')
    op.execute("GRANT SELECT (state_schema, state_version) ON stateroom.pending_writes TO gw_ops")


def downgrade() -> None:
    """Drop what upgrade added; writes that were sealed with a version cannot be read by the older build."""
    op.execute("ALTER TABLE stateroom.pending_writes DROP state_schema, DROP state_version")
    op.execute("DROP TABLE stateroom.state_schemas")
