"""Retention: policies of tenants, agents and threads, legal holds, and the rounds that act on them.

Expands only: the previous release keeps serving. It knows no legal hold, and so removes what is held: no hold is safe
before every process is of this release.

A transaction that is bound to a tenant and to the listing by name may read the tenant's threads, so that a round pages
through them without knowing their subjects; the statements that use it select clear columns only. One that is bound to
the tenant and to no subject sees the policies of threads, and so which are held, so that the tenant is not shredded.
"""

from alembic import op

revision = "a13"
down_revision = "a12"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
SUBJECT = f"{TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"
LISTING = f"{TENANT} AND current_setting('app.tenant_listing', true) = 'on'"
WHOLE_TENANT = f"{TENANT} AND nullif(current_setting('app.subject_id', true), '') IS NULL"
OPERATOR = "current_setting('app.operator', true) = 'on'"

CLEAR_COLUMNS = {
    "retention": "tenant_id, level, target, legal_hold, updated_at",
    "thread_retention": "tenant_id, subject_id, thread_id, legal_hold, updated_at",
    "retention_rounds": "tenant_id, due_at, lease_until, started_at, finished_at, census",
}

TABLES = (
    """
CREATE TABLE stateroom.retention (
    tenant_id  uuid NOT NULL,
    level      text NOT NULL CHECK (level IN ('tenant', 'agent', 'ceilings')),
    target     text COLLATE "C" NOT NULL,
    policy     bytea NOT NULL,
    legal_hold boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, level, target),
    CHECK ((level = 'agent') = (target <> ''))
)
""",
    """
CREATE TABLE stateroom.thread_retention (
    tenant_id  uuid NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    thread_id  text COLLATE "C" NOT NULL,
    policy     bytea NOT NULL,
    legal_hold boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id)
)
""",
    # A row for each tenant that has a policy; it changes with every page of a round, so there is room for HOT updates.
    """
CREATE TABLE stateroom.retention_rounds (
    tenant_id     uuid PRIMARY KEY,
    due_at        timestamptz NOT NULL DEFAULT '-infinity',
    lease_until   timestamptz,
    started_at    timestamptz,
    progress      bytea,
    thinned_until timestamptz,
    finished_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    census        jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 60)
""",
    "CREATE INDEX retention_rounds_by_due ON stateroom.retention_rounds (due_at)",
)


def upgrade() -> None:
    """Add the tables, and the policies that rounds read by."""
    for statement in TABLES:
        op.execute(statement)
    for table, columns in CLEAR_COLUMNS.items():
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE stateroom.{table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.{table} TO gw_app")
        op.execute(f"GRANT SELECT ({columns}) ON stateroom.{table} TO gw_ops")
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")
    for table in ("retention", "retention_rounds"):
        op.execute(f"CREATE POLICY tenant_rows ON stateroom.{table} TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute(
        f"CREATE POLICY subject_rows ON stateroom.thread_retention TO gw_app USING ({SUBJECT}) WITH CHECK ({SUBJECT})"
    )
    op.execute(f"CREATE POLICY tenant_reads ON stateroom.thread_retention FOR SELECT TO gw_app USING ({WHOLE_TENANT})")
    op.execute(f"CREATE POLICY operator_reads ON stateroom.retention_rounds FOR SELECT TO gw_app USING ({OPERATOR})")
    op.execute(f"CREATE POLICY tenant_listing ON stateroom.threads FOR SELECT TO gw_app USING ({LISTING})")


def downgrade() -> None:
    """Drop what upgrade added: policies and holds are forgotten."""
    op.execute("DROP POLICY tenant_listing ON stateroom.threads")
    for table in reversed(CLEAR_COLUMNS):
        op.execute(f"DROP TABLE stateroom.{table}")
