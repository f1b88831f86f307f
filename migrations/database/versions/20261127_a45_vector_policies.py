"""Make room for what tenants say of their vectors: that they may be kept in clear beside the sealed ones.

Nothing is written there before the feature is switched on (ADR 30), and builds before this one read the table nowhere.
The table of clear vectors itself is no revision's: an operator makes it, with ``stateroom db enable-pgvector``.
"""

from alembic import op

revision = "a45"
down_revision = "a44"
branch_labels = None
depends_on = None

_TENANT = "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"


def upgrade() -> None:
    """Make the table."""
    op.execute("""
CREATE TABLE stateroom.vector_policies (
    tenant_id uuid NOT NULL,
    vectors text NOT NULL,
    accepted text NOT NULL,
    complete boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT vector_policies_mac_check CHECK (length(mac) = 32),
    CONSTRAINT vector_policies_vectors_check CHECK (vectors IN ('clear', 'sealed')),
    CONSTRAINT vector_policies_pkey PRIMARY KEY (tenant_id)
)
""")
    op.execute("ALTER TABLE stateroom.vector_policies ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY clear_columns ON stateroom.vector_policies FOR SELECT TO gw_ops USING (true)")
    op.execute(
        f"CREATE POLICY tenant_rows ON stateroom.vector_policies TO gw_app USING ({_TENANT}) WITH CHECK ({_TENANT})"
    )
    op.execute("GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.vector_policies TO gw_app")
    op.execute(
        "GRANT SELECT (tenant_id, vectors, accepted, complete, updated_at) ON stateroom.vector_policies TO gw_ops"
    )


def downgrade() -> None:
    """Remove the table, if no tenant says anything of its vectors."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.vector_policies) THEN
        RAISE EXCEPTION 'tenants have policies of vectors: set them to sealed before this revision is undone';
    END IF;
END $body$
""")
    op.execute("DROP TABLE stateroom.vector_policies")
