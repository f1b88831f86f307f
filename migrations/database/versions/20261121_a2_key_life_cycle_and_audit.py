"""Key life cycle, audit log, jobs and client-held shares.

Expands only: the previous release keeps serving. gw_app may add to the audit log but neither change nor remove what
is there; only the row that says where the chain ends changes.
"""

from alembic import op

revision = "a2"
down_revision = "a1"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"

TABLES = """
-- Keys of the deployment itself (the audit log's signing key), wrapped by the root key.
CREATE TABLE stateroom.deployment_keys (
    purpose          text NOT NULL CHECK (purpose IN ('audit')),
    key_version      integer NOT NULL CHECK (key_version > 0),
    provider         text NOT NULL,
    root_key_id      text NOT NULL,
    root_key_version text NOT NULL,
    wrapped          bytea NOT NULL,
    public           bytea NOT NULL,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (purpose, key_version)
);

-- body is canonical bytes, not jsonb: jsonb reorders keys and the chain would not verify.
CREATE TABLE stateroom.audit_log (
    tenant_id uuid NOT NULL,
    sequence  bigint NOT NULL CHECK (sequence > 0),
    at        timestamptz NOT NULL,
    actor     text COLLATE "C" NOT NULL,
    action    text COLLATE "C" NOT NULL,
    target    text COLLATE "C" NOT NULL,
    body      bytea NOT NULL,
    previous  bytea NOT NULL CHECK (length(previous) = 32),
    hash      bytea NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (tenant_id, sequence)
);

CREATE TABLE stateroom.audit_heads (
    tenant_id uuid PRIMARY KEY,
    sequence  bigint NOT NULL,
    hash      bytea NOT NULL CHECK (length(hash) = 32)
);

-- One row a long operation: how far it is, and who works on it until when.
CREATE TABLE stateroom.jobs (
    tenant_id   uuid NOT NULL,
    job_id      uuid NOT NULL,
    kind        text NOT NULL,
    target      text COLLATE "C" NOT NULL,
    state       text NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed')),
    done        bigint NOT NULL,
    total       bigint,
    position    text COLLATE "C" NOT NULL,
    error       text,
    lease_until timestamptz,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, job_id)
);
CREATE INDEX jobs_open ON stateroom.jobs (tenant_id, created_at) WHERE state IN ('queued', 'running');

ALTER TABLE stateroom.threads ADD client_share boolean NOT NULL DEFAULT false;
ALTER TABLE stateroom.tenants ADD root text;
"""


def run(script: str) -> None:
    """Run a script a statement at a time: the driver takes only one."""
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def upgrade() -> None:
    """Create the tables, their policies and grants."""
    run(TABLES)
    op.execute("GRANT SELECT, INSERT ON stateroom.deployment_keys TO gw_app")
    op.execute("GRANT UPDATE (provider, root_key_id, root_key_version, wrapped) ON stateroom.deployment_keys TO gw_app")
    for table in ("audit_log", "audit_heads", "jobs"):
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE stateroom.{table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY tenant_rows ON stateroom.{table} TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute("GRANT SELECT, INSERT ON stateroom.audit_log TO gw_app")
    op.execute("GRANT SELECT, INSERT, UPDATE ON stateroom.audit_heads, stateroom.jobs TO gw_app")

    op.execute("GRANT SELECT (tenant_id, sequence, at, actor, action, target) ON stateroom.audit_log TO gw_ops")
    op.execute("GRANT SELECT (tenant_id, sequence) ON stateroom.audit_heads TO gw_ops")
    op.execute("GRANT SELECT ON stateroom.jobs TO gw_ops")
    for table in ("audit_log", "audit_heads", "jobs"):
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")
    op.execute("GRANT SELECT (client_share) ON stateroom.threads TO gw_ops")

    op.execute("GRANT SELECT (tenant_id, job_id, kind, state, lease_until, created_at) ON stateroom.jobs TO gw_worker")
    op.execute("CREATE POLICY worker_rows ON stateroom.jobs FOR SELECT TO gw_worker USING (true)")


def downgrade() -> None:
    """Drop what upgrade created; the audit log is lost."""
    op.execute("ALTER TABLE stateroom.tenants DROP root")
    op.execute("ALTER TABLE stateroom.threads DROP client_share")
    for table in ("jobs", "audit_heads", "audit_log", "deployment_keys"):
        op.execute(f"DROP TABLE stateroom.{table}")
