"""Make room for claims and for the ledger of effects.

Nothing is written there before the feature is switched on (ADR 30), and builds before this one read the tables nowhere.
"""

from alembic import op

revision = "a48"
down_revision = "a47"
branch_labels = None
depends_on = None

_TENANT = "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"
_SUBJECT = f"({_TENANT}) AND (subject_id = NULLIF(current_setting('app.subject_id', true), ''))"
_LISTING = f"({_TENANT}) AND (current_setting('app.tenant_listing', true) = 'on')"
_BUSY = """WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05')"""
_TABLES = {
    "claims": """
    thread_id text NOT NULL COLLATE "C",
    fence bigint NOT NULL,
    holder text NOT NULL COLLATE "C",
    run_id text COLLATE "C",
    lease_seconds integer NOT NULL,
    claimed_at timestamptz NOT NULL,
    takeovers integer NOT NULL,
    activity bigint NOT NULL,
    status text NOT NULL,
    required boolean NOT NULL,
    client_share boolean NOT NULL,
    note bytea,
    note_member bytea,
    mac bytea NOT NULL,
    CONSTRAINT claims_mac_check CHECK (length(mac) = 32),
    CONSTRAINT claims_note_check CHECK ((note IS NULL) = (note_member IS NULL)),
    CONSTRAINT claims_status_check CHECK (status = ANY (ARRAY['held'::text, 'stuck'::text, 'released'::text])),
    CONSTRAINT claims_pkey PRIMARY KEY (tenant_id, subject_id, thread_id)
) WITH (fillfactor='60')""",
    "effects": f"""
    thread_id text NOT NULL COLLATE "C",
    namespace text NOT NULL COLLATE "C",
    name_mac bytea NOT NULL,
    execution integer NOT NULL,
    attempt integer NOT NULL,
    mode text NOT NULL,
    status text NOT NULL,
    intent_mac bytea NOT NULL,
    provider_key uuid NOT NULL,
    anchor_checkpoint_id text COLLATE "C",
    run_id text COLLATE "C",
    fence bigint NOT NULL,
    created_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    leased_until timestamptz NOT NULL,
    finished_at timestamptz,
    started_by text NOT NULL COLLATE "C",
    resolved_by text COLLATE "C",
    result_state text NOT NULL,
    result_bytes bigint,
    artifact_id uuid,
    approval_id uuid,
    approval_position integer,
    copied boolean NOT NULL,
    client_share boolean NOT NULL,
    asked bytea NOT NULL,
    asked_member bytea NOT NULL,
    args bytea STORAGE EXTERNAL NOT NULL,
    args_member bytea NOT NULL,
    outcome bytea,
    outcome_member bytea,
    result bytea STORAGE EXTERNAL,
    result_member bytea,
    mac bytea NOT NULL,
    CONSTRAINT effects_mac_check CHECK (length(mac) = 32),
    CONSTRAINT effects_mode_check CHECK (mode = ANY (ARRAY['read'::text, 'idempotent'::text, 'once'::text])),
    CONSTRAINT effects_name_mac_check CHECK (length(name_mac) = 16),
    CONSTRAINT effects_outcome_check CHECK ((outcome IS NULL) = (outcome_member IS NULL)),
    CONSTRAINT effects_result_check CHECK ((result IS NULL) = (result_member IS NULL)),
    CONSTRAINT effects_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, name_mac, execution)
) {_BUSY}""",
    "effect_tombstones": """
    tombstone bytea NOT NULL,
    removed_at timestamptz NOT NULL,
    CONSTRAINT effect_tombstones_tombstone_check CHECK (length(tombstone) = 16),
    CONSTRAINT effect_tombstones_pkey PRIMARY KEY (tenant_id, subject_id, tombstone)
)""",
}
_CLEAR = {
    "claims": "thread_id, fence, holder, run_id, lease_seconds, claimed_at, takeovers, activity, status, required,"
    " client_share",
    "effects": "thread_id, namespace, execution, attempt, mode, status, anchor_checkpoint_id, run_id, fence,"
    " created_at, started_at, leased_until, finished_at, started_by, resolved_by, result_state, result_bytes,"
    " artifact_id, approval_id, approval_position, copied, client_share",
    "effect_tombstones": "removed_at",
}
_LISTED = ("claims", "effects")


def upgrade() -> None:
    """Make the tables, the indexes that lists go by, and the policies."""
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
    for table in _LISTED:
        op.execute(f"CREATE POLICY tenant_listing ON stateroom.{table} FOR SELECT TO gw_app USING ({_LISTING})")
    op.execute("""
CREATE INDEX claims_open ON stateroom.claims USING btree (tenant_id, subject_id, thread_id)
WHERE (status <> 'released'::text)
""")
    op.execute("""
CREATE INDEX effects_by_intent ON stateroom.effects USING btree (tenant_id, subject_id, thread_id, intent_mac)
""")
    op.execute("""
CREATE INDEX effects_open ON stateroom.effects USING btree
    (tenant_id, subject_id, thread_id, namespace, name_mac, execution)
WHERE (status = ANY (ARRAY['started'::text, 'unknown'::text]))
""")


def downgrade() -> None:
    """Remove the tables, if no thread was claimed, no effect is kept, and none of a thread that went is remembered."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.claims) OR EXISTS (SELECT FROM stateroom.effects) THEN
        RAISE EXCEPTION 'threads have claims or effects: delete these threads before this revision is undone';
    END IF;
    IF EXISTS (SELECT FROM stateroom.effect_tombstones
        WHERE removed_at > statement_timestamp() - interval '30 days') THEN
        RAISE EXCEPTION 'what deleted threads did once is remembered for 30 days, so that threads of their ids do it'
            ' not again: wait, or empty stateroom.effect_tombstones, before this revision is undone';
    END IF;
END $body$
""")
    for table in reversed(_TABLES):
        op.execute(f"DROP TABLE stateroom.{table}")
