"""Make room for the ledgers of threads: their seals, the fence of who may go on, and how many approvals are open.

Nothing is written there before the feature is switched on (ADR 30): builds before this one go on with the functions
that they call, which ask for no fence and know of no approval.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a47"
down_revision = "a46"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"
MADE = ("023_save_on_9", "024_put_writes_on_8")
_SUBJECT = (
    "(tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid)"
    " AND (subject_id = NULLIF(current_setting('app.subject_id', true), ''))"
)
_COLUMNS = {
    "fence": "bigint NOT NULL DEFAULT 0",
    "claimed_until": "timestamptz",
    "claim_seconds": "integer NOT NULL DEFAULT 0",
    "claims_required": "boolean NOT NULL DEFAULT false",
    "open_approvals": "integer NOT NULL DEFAULT 0",
}


def upgrade() -> None:
    """Add the columns, the table and the functions."""
    added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in _COLUMNS.items())
    op.execute(f"ALTER TABLE stateroom.threads {added}")
    op.execute(f"GRANT SELECT ({', '.join(_COLUMNS)}) ON stateroom.threads TO gw_ops")
    op.execute("""
CREATE TABLE stateroom.ledger_seals (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    sequence bigint NOT NULL,
    seal bytea NOT NULL,
    CONSTRAINT ledger_seals_pkey PRIMARY KEY (tenant_id, subject_id, thread_id)
) WITH (fillfactor='60')
""")
    op.execute("ALTER TABLE stateroom.ledger_seals ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY clear_columns ON stateroom.ledger_seals FOR SELECT TO gw_ops USING (true)")
    op.execute(
        f"CREATE POLICY subject_rows ON stateroom.ledger_seals TO gw_app USING ({_SUBJECT}) WITH CHECK ({_SUBJECT})"
    )
    op.execute("GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.ledger_seals TO gw_app")
    op.execute("GRANT SELECT (tenant_id, subject_id, thread_id, sequence) ON stateroom.ledger_seals TO gw_ops")
    for name in MADE:
        for statement in statements(FUNCTIONS / f"{name}.sql"):
            op.execute(statement)


def downgrade() -> None:
    """Remove them, if no thread has a ledger."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.ledger_seals) THEN
        RAISE EXCEPTION 'threads have ledgers: delete these threads before this revision is undone';
    END IF;
END $body$
""")
    for name in MADE:
        op.execute(f"DROP FUNCTION stateroom.{name[4:]}")
    op.execute("DROP TABLE stateroom.ledger_seals")
    op.execute(f"ALTER TABLE stateroom.threads {', '.join(f'DROP COLUMN {name}' for name in _COLUMNS)}")
