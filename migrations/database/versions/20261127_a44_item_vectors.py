"""Make room for vectors of items, by which they are found by what they mean.

Nothing is written there before the feature of items is switched on (ADR 30), and builds before a43 read it nowhere.
"""

from alembic import op

revision = "a44"
down_revision = "a43"
branch_labels = None
depends_on = None

_SUBJECT = (
    "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"
    " AND (subject_id = NULLIF(current_setting('app.subject_id', true), ''))"
)


def upgrade() -> None:
    """Make the table, and let an item say that it has vectors."""
    op.execute("ALTER TABLE stateroom.items ADD COLUMN indexed boolean NOT NULL DEFAULT false")
    op.execute("GRANT SELECT (indexed) ON stateroom.items TO gw_ops")
    op.execute("""
CREATE TABLE stateroom.item_vectors (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    path_id bytea NOT NULL,
    key_id bytea NOT NULL,
    model_id bytea NOT NULL,
    revision bigint NOT NULL,
    sequence bigint NOT NULL,
    member bytea NOT NULL,
    envelope bytea STORAGE EXTERNAL NOT NULL,
    CONSTRAINT item_vectors_model_id_check CHECK (length(model_id) = 16),
    CONSTRAINT item_vectors_pkey PRIMARY KEY (tenant_id, subject_id, path_id, key_id, model_id)
) WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02',
    toast.autovacuum_vacuum_threshold='1000')
""")
    op.execute("""
CREATE INDEX item_vectors_by_change ON stateroom.item_vectors
    USING btree (tenant_id, subject_id, path_id, model_id, sequence) WHERE (sequence > 0)
""")
    op.execute("ALTER TABLE stateroom.item_vectors ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY clear_columns ON stateroom.item_vectors FOR SELECT TO gw_ops USING (true)")
    op.execute(
        f"CREATE POLICY subject_rows ON stateroom.item_vectors TO gw_app USING ({_SUBJECT}) WITH CHECK ({_SUBJECT})"
    )
    op.execute("GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.item_vectors TO gw_app")
    op.execute("GRANT SELECT (tenant_id, subject_id, revision, sequence) ON stateroom.item_vectors TO gw_ops")


def downgrade() -> None:
    """Remove the table, if there are no vectors."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.item_vectors) THEN
        RAISE EXCEPTION 'items have vectors: put them without before this revision is undone';
    END IF;
END $body$
""")
    op.execute("DROP TABLE stateroom.item_vectors")
    op.execute("ALTER TABLE stateroom.items DROP COLUMN indexed")
