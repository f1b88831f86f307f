"""Make room for items: what agents remember beside their threads, under paths.

Nothing is written there before the feature is switched on (ADR 30), and builds before this one read the tables nowhere.
"""

from alembic import op

revision = "a43"
down_revision = "a42"
branch_labels = None
depends_on = None

_TENANT = "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"
_SUBJECT = f"{_TENANT} AND (subject_id = NULLIF(current_setting('app.subject_id', true), ''))"
_WHOLE_TENANT = f"{_TENANT} AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL)"
_TABLES = {
    "item_scopes": """
    sequence bigint NOT NULL,
    seal bytea NOT NULL,
    CONSTRAINT item_scopes_pkey PRIMARY KEY (tenant_id, subject_id)
) WITH (fillfactor='60')""",
    "item_paths": """
    path_id bytea NOT NULL,
    share_check bytea,
    sequence bigint NOT NULL,
    seal bytea NOT NULL,
    labels bytea NOT NULL,
    CONSTRAINT item_paths_path_id_check CHECK (length(path_id) = 16),
    CONSTRAINT item_paths_pkey PRIMARY KEY (tenant_id, subject_id, path_id)
) WITH (fillfactor='60')""",
    "items": """
    path_id bytea NOT NULL,
    key_id bytea NOT NULL,
    revision bigint NOT NULL,
    ttl_seconds integer,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz,
    member bytea NOT NULL,
    envelope bytea STORAGE EXTERNAL NOT NULL,
    CONSTRAINT items_expiry_check CHECK ((ttl_seconds IS NULL) = (expires_at IS NULL)),
    CONSTRAINT items_key_id_check CHECK (length(key_id) = 16),
    CONSTRAINT items_ttl_seconds_check CHECK (ttl_seconds > 0),
    CONSTRAINT items_pkey PRIMARY KEY (tenant_id, subject_id, path_id, key_id)
) WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02',
    toast.autovacuum_vacuum_threshold='1000')""",
}
_CLEAR = {
    "item_scopes": "sequence",
    "item_paths": "sequence",
    "items": "revision, ttl_seconds, created_at, updated_at, expires_at",
}


def upgrade() -> None:
    """Make the tables, the indexes that lists and expiry go by, and the policies."""
    for table, columns in _TABLES.items():
        op.execute(f"""
CREATE TABLE stateroom.{table} (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",{columns}
""")
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")
        op.execute(
            f"CREATE POLICY subject_rows ON stateroom.{table} TO gw_app USING ({_SUBJECT}) WITH CHECK ({_SUBJECT})"
        )
        op.execute(f"GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.{table} TO gw_app")
        op.execute(f"GRANT SELECT (tenant_id, subject_id, {_CLEAR[table]}) ON stateroom.{table} TO gw_ops")
    # Whose items are over is asked for a whole tenant at a time.
    op.execute(f"CREATE POLICY tenant_reads ON stateroom.items FOR SELECT TO gw_app USING ({_WHOLE_TENANT})")
    for name, columns in {
        # True of every item: only lists may use these (`storage.statements.items.items`).
        "items_by_update": "(tenant_id, subject_id, updated_at, path_id, key_id) WHERE (revision > 0)",
        "items_by_update_of_path": "(tenant_id, subject_id, path_id, updated_at, key_id) WHERE (revision > 0)",
        "items_by_expiry": "(tenant_id, expires_at, subject_id) WHERE (expires_at IS NOT NULL)",
    }.items():
        op.execute(f"CREATE INDEX {name} ON stateroom.items USING btree {columns}")


def downgrade() -> None:
    """Remove the tables, if nothing is remembered."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.items) THEN
        RAISE EXCEPTION 'items are stored: delete them before this revision is undone';
    END IF;
END $body$
""")
    for table in reversed(_TABLES):
        op.execute(f"DROP TABLE stateroom.{table}")
