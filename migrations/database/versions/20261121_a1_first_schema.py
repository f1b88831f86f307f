"""First schema: tenants, credentials, keys, threads, checkpoints, chunks and pending writes.

Every tenant table has row-level security enabled and forced. The policies compare with plain ``current_setting``
expressions because sub-SELECTs in policies do not work on Citus; ``nullif`` makes an unbound connection see nothing.
"""

from alembic import op

revision = "a1"
down_revision = None
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
SUBJECT = f"{TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"
OPERATOR = "current_setting('app.operator', true) = 'on'"

SUBJECT_TABLES = (
    "subject_keys",
    "threads",
    "heads",
    "checkpoints",
    "chunks",
    "pending_writes",
    "idempotency",
)

# Columns that gw_ops may read: what operators ask about. No sealed byte, no key material.
CLEAR_COLUMNS = {
    "tenants": "tenant_id, name, created_at",
    "threads": "tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at",
    "heads": "tenant_id, subject_id, thread_id, namespace, head_id, sequence",
    "checkpoints": (
        "tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source, agent,"
        " run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at,"
        " key_version"
    ),
    "chunks": "tenant_id, subject_id, thread_id, key_version",
    "pending_writes": (
        "tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, channel, status, created_at,"
        " key_version"
    ),
    "tenant_keys": "tenant_id, key_version, state, provider, created_at, destroyed_at",
    "subject_keys": (
        "tenant_id, subject_id, purpose, key_version, tenant_key_version, state, created_at, destroyed_at,"
        " shred_effective_at"
    ),
}

TABLES = """
CREATE TABLE stateroom.deployment (
    singleton     boolean PRIMARY KEY CHECK (singleton),
    deployment_id uuid NOT NULL
);

CREATE TABLE stateroom.tenants (
    tenant_id  uuid PRIMARY KEY,
    name       text NOT NULL,
    created_at timestamptz NOT NULL
);

-- Read before a tenant is known; on Citus a reference table, hence no tenant_id in its key.
CREATE TABLE stateroom.api_keys (
    key_id         text COLLATE "C" PRIMARY KEY,
    kind           text NOT NULL CHECK (kind IN ('subject', 'service', 'operator')),
    name           text NOT NULL,
    tenant_id      uuid,
    subject_id     text COLLATE "C",
    permissions    text[] NOT NULL,
    mac            bytea NOT NULL CHECK (length(mac) = 32),
    pepper_version integer NOT NULL,
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz,
    revoked_at     timestamptz,
    last_used_at   timestamptz,
    CHECK ((kind = 'operator') = (tenant_id IS NULL)),
    CHECK ((kind = 'subject') = (subject_id IS NOT NULL))
);
CREATE INDEX api_keys_by_tenant ON stateroom.api_keys (tenant_id, created_at, key_id);

CREATE TABLE stateroom.tenant_keys (
    tenant_id        uuid NOT NULL,
    key_version      integer NOT NULL CHECK (key_version > 0),
    state            text NOT NULL CHECK (state IN ('pending', 'active', 'decrypt_only', 'retired', 'destroyed')),
    provider         text NOT NULL,
    root_key_id      text NOT NULL,
    root_key_version text NOT NULL,
    wrapped          bytea,
    kcv              bytea NOT NULL,
    created_at       timestamptz NOT NULL,
    destroyed_at     timestamptz,
    PRIMARY KEY (tenant_id, key_version),
    CHECK ((state = 'destroyed') = (wrapped IS NULL))
);
CREATE UNIQUE INDEX tenant_keys_active ON stateroom.tenant_keys (tenant_id) WHERE state = 'active';

CREATE TABLE stateroom.subject_keys (
    tenant_id          uuid NOT NULL,
    subject_id         text COLLATE "C" NOT NULL,
    purpose            text NOT NULL CHECK (purpose IN ('data', 'id')),
    key_version        integer NOT NULL CHECK (key_version > 0),
    tenant_key_version integer NOT NULL,
    state              text NOT NULL CHECK (state IN ('pending', 'active', 'decrypt_only', 'retired', 'destroyed')),
    wrapped            bytea,
    kcv                bytea NOT NULL,
    created_at         timestamptz NOT NULL,
    destroyed_at       timestamptz,
    shred_effective_at timestamptz,
    PRIMARY KEY (tenant_id, subject_id, purpose, key_version),
    CHECK ((state = 'destroyed') = (wrapped IS NULL))
);
CREATE UNIQUE INDEX subject_keys_active ON stateroom.subject_keys (tenant_id, subject_id, purpose)
    WHERE state = 'active';

-- threads and heads change on every save: room for HOT updates, and no index on a column that changes.
CREATE TABLE stateroom.threads (
    tenant_id  uuid NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    thread_id  text COLLATE "C" NOT NULL,
    agent      text COLLATE "C",
    status     text NOT NULL CHECK (status IN ('active', 'waiting', 'failed', 'done')),
    tier       text NOT NULL CHECK (tier IN ('hot', 'archive')),
    strict     boolean NOT NULL,
    activity   bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    seal       bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id)
) WITH (fillfactor = 60);
CREATE INDEX threads_by_age ON stateroom.threads (tenant_id, subject_id, created_at, thread_id);

CREATE TABLE stateroom.heads (
    tenant_id  uuid NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    thread_id  text COLLATE "C" NOT NULL,
    namespace  text COLLATE "C" NOT NULL,
    head_id    text COLLATE "C" NOT NULL,
    sequence   bigint NOT NULL,
    seal       bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id, namespace)
) WITH (fillfactor = 60);

CREATE TABLE stateroom.checkpoints (
    tenant_id     uuid NOT NULL,
    subject_id    text COLLATE "C" NOT NULL,
    thread_id     text COLLATE "C" NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    parent_id     text COLLATE "C",
    step          integer NOT NULL,
    status        text NOT NULL CHECK (status IN ('active', 'waiting', 'failed', 'done')),
    outcome       text CHECK (outcome IN ('active', 'waiting', 'failed', 'done')),
    source        text COLLATE "C",
    agent         text COLLATE "C",
    run_id        text COLLATE "C",
    model         text,
    state_schema  text COLLATE "C",
    state_version integer,
    input_tokens  bigint,
    output_tokens bigint,
    cost_micros   bigint,
    created_at    timestamptz NOT NULL,
    key_version   integer NOT NULL,
    piece_ids     bytea NOT NULL,
    manifest      bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id)
);
CREATE INDEX checkpoints_by_age ON stateroom.checkpoints (tenant_id, subject_id, checkpoint_id);
CREATE INDEX checkpoints_by_run ON stateroom.checkpoints (tenant_id, subject_id, run_id) WHERE run_id IS NOT NULL;
CREATE INDEX checkpoints_troubled ON stateroom.checkpoints (tenant_id, status, created_at, step)
    WHERE status IN ('failed', 'waiting') OR outcome IS NOT NULL;

CREATE TABLE stateroom.chunks (
    tenant_id   uuid NOT NULL,
    subject_id  text COLLATE "C" NOT NULL,
    thread_id   text COLLATE "C" NOT NULL,
    piece_id    bytea NOT NULL CHECK (length(piece_id) = 17),
    key_version integer NOT NULL,
    children    bytea,
    envelope    bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id, piece_id)
);

-- No foreign key to checkpoints: a task's writes may arrive before the checkpoint they belong to.
CREATE TABLE stateroom.pending_writes (
    tenant_id     uuid NOT NULL,
    subject_id    text COLLATE "C" NOT NULL,
    thread_id     text COLLATE "C" NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    task_id       text COLLATE "C" NOT NULL,
    idx           integer NOT NULL,
    task_path     text COLLATE "C" NOT NULL,
    channel       text COLLATE "C" NOT NULL,
    status        text CHECK (status IN ('active', 'waiting', 'failed', 'done')),
    created_at    timestamptz NOT NULL,
    key_version   integer NOT NULL,
    piece_ids     bytea NOT NULL,
    value         bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx)
);

CREATE TABLE stateroom.idempotency (
    tenant_id       uuid NOT NULL,
    subject_id      text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    request_digest  bytea NOT NULL,
    receipt         bytea,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, idempotency_key)
);

-- Envelopes are compressed before they are sealed; PostgreSQL need not try again.
ALTER TABLE stateroom.checkpoints ALTER manifest SET STORAGE EXTERNAL, ALTER piece_ids SET STORAGE EXTERNAL;
ALTER TABLE stateroom.chunks ALTER envelope SET STORAGE EXTERNAL, ALTER children SET STORAGE EXTERNAL;
ALTER TABLE stateroom.pending_writes ALTER value SET STORAGE EXTERNAL, ALTER piece_ids SET STORAGE EXTERNAL;
"""

# Read before a tenant is known. Its owner can read api_keys and do nothing else.
LOOK_UP = """
CREATE FUNCTION stateroom.look_up_api_key(wanted text) RETURNS SETOF stateroom.api_keys
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog
    AS 'SELECT * FROM stateroom.api_keys WHERE key_id = wanted';
REVOKE ALL ON FUNCTION stateroom.look_up_api_key(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION stateroom.look_up_api_key(text) TO gw_app;
GRANT CREATE ON SCHEMA stateroom TO gw_auth;
ALTER FUNCTION stateroom.look_up_api_key(text) OWNER TO gw_auth;
REVOKE CREATE ON SCHEMA stateroom FROM gw_auth;
"""


def run(script: str) -> None:
    """Run a script a statement at a time: the driver takes only one."""
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def upgrade() -> None:
    """Create everything, in one transaction."""
    run(TABLES)
    op.execute("GRANT USAGE ON SCHEMA stateroom TO gw_app, gw_auth, gw_worker, gw_ops")
    op.execute("GRANT SELECT ON stateroom.db_revision, stateroom.deployment TO gw_app, gw_worker, gw_ops")
    op.execute("GRANT INSERT ON stateroom.deployment TO gw_app")

    for table in ("tenants", "api_keys", "tenant_keys", *SUBJECT_TABLES):
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE stateroom.{table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.{table} TO gw_app")
    for table in SUBJECT_TABLES:
        op.execute(
            f"CREATE POLICY subject_rows ON stateroom.{table} TO gw_app USING ({SUBJECT}) WITH CHECK ({SUBJECT})"
        )
    op.execute(f"CREATE POLICY tenant_rows ON stateroom.tenant_keys TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute(f"CREATE POLICY own_row ON stateroom.tenants FOR SELECT TO gw_app USING ({TENANT})")
    op.execute(f"CREATE POLICY operator_rows ON stateroom.tenants TO gw_app USING ({OPERATOR}) WITH CHECK ({OPERATOR})")
    op.execute(f"CREATE POLICY tenant_rows ON stateroom.api_keys TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    operator_keys = f"{OPERATOR} AND tenant_id IS NULL"
    op.execute(
        f"CREATE POLICY operator_rows ON stateroom.api_keys TO gw_app"
        f" USING ({operator_keys}) WITH CHECK ({operator_keys})"
    )

    op.execute("GRANT SELECT ON stateroom.api_keys TO gw_auth")
    op.execute("CREATE POLICY look_up ON stateroom.api_keys FOR SELECT TO gw_auth USING (true)")
    run(LOOK_UP)

    op.execute("GRANT SELECT (tenant_id) ON stateroom.tenants TO gw_worker")
    op.execute("CREATE POLICY worker_rows ON stateroom.tenants FOR SELECT TO gw_worker USING (true)")

    for table, columns in CLEAR_COLUMNS.items():
        op.execute(f"GRANT SELECT ({columns}) ON stateroom.{table} TO gw_ops")
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")


def downgrade() -> None:
    """Drop everything that upgrade created; all stored state is lost."""
    op.execute("DROP FUNCTION stateroom.look_up_api_key(text)")
    for table in ("idempotency", "pending_writes", "chunks", "checkpoints", "heads", "threads", "subject_keys",
                  "tenant_keys", "api_keys", "tenants", "deployment"):  # fmt: skip
        op.execute(f"DROP TABLE stateroom.{table}")
