"""Adoptions: which schema and version an agent's unversioned state is, said after the fact.

Expands only: the previous release looks at none of it. It would hand out adopted state as it was saved, so rows are
written only once no process of it is left (`storage.control.features`). An adoption is written once: there is no
privilege to change or to remove one; a newer one of the same pattern counts instead.
"""

from alembic import op

revision = "a25"
down_revision = "a24"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"

TABLE = """
CREATE TABLE stateroom.state_adoptions (
    tenant_id     uuid NOT NULL,
    agent         text COLLATE "C" NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    number        integer NOT NULL CHECK (number > 0),
    state_schema  text COLLATE "C" NOT NULL,
    state_version integer NOT NULL CHECK (state_version > 0),
    adopted_at    timestamptz NOT NULL,
    mac           bytea NOT NULL CHECK (length(mac) = 32),
    mac_format    smallint,
    PRIMARY KEY (tenant_id, agent, namespace, number)
)
"""


def upgrade() -> None:
    """Add the table."""
    op.execute(TABLE)
    op.execute("ALTER TABLE stateroom.state_adoptions ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.state_adoptions FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT ON stateroom.state_adoptions TO gw_app")
    op.execute(
        f"CREATE POLICY tenant_rows ON stateroom.state_adoptions TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})"
    )
    columns = "tenant_id, agent, namespace, number, state_schema, state_version, adopted_at"
    op.execute(f"GRANT SELECT ({columns}) ON stateroom.state_adoptions TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.state_adoptions FOR SELECT TO gw_ops USING (true)")


def downgrade() -> None:
    """Drop the table: what was adopted is unversioned again."""
    op.execute("DROP TABLE stateroom.state_adoptions")
