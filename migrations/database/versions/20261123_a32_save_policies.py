"""Save policies: a tenant, or one of its agents, asks every save to name the head it follows.

Expands only: the previous release looks at none of it and would let blind saves through, so rows are written only once
no process of it is left (`storage.control.features`). It calls the function of revision a20, which stays.
"""

from alembic import op

revision = "a32"
down_revision = "a31"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"

# An empty agent: all of the tenant's. Null: it says nothing any more.
TABLE = """
CREATE TABLE stateroom.save_policies (
    tenant_id  uuid NOT NULL,
    agent      text COLLATE "C" NOT NULL,
    strict     boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    mac        bytea NOT NULL CHECK (length(mac) = 32),
    mac_format smallint,
    PRIMARY KEY (tenant_id, agent)
)
"""
CLEAR_COLUMNS = "tenant_id, agent, strict, updated_at"

BIND = """EXECUTE format('SET LOCAL app.tenant_id = %L; SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L;'
        ' SET LOCAL app.tenant_listing = %L', $1, $2, '', '');"""
STALE = "RAISE serialization_failure USING MESSAGE = 'the thread is not as it was';"
STALE_UNLESS_FOUND = f"""IF NOT FOUND THEN
        {STALE}
    END IF;"""
SAVE_PARAMETERS = """
    uuid, text, text, integer, bytea[], bytea[], bytea[], text, text, text, integer, text, text, text, text, text, text,
    integer, bigint, bigint, bigint, timestamptz, bytea, bytea, text, bigint, bytea, text, bytea, boolean, bytea, bytea,
    bigint, text[]
"""
# As `save_on_4` of revision a20, which says why it is as it is, but for $34: the thread's agent, and what the policies
# of the tenant, of that agent and of the one that the save names must be; null: whatever they are.
SAVE_ON = f"""
CREATE FUNCTION stateroom.save_on_5({SAVE_PARAMETERS}) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off
AS $function$
BEGIN
    {BIND}
    UPDATE stateroom.threads t SET
        activity = t.activity + 1, updated_at = $22,
        agent = CASE WHEN $14 <> t.agent AND EXISTS (SELECT FROM stateroom.retention r
            WHERE r.tenant_id = $1 AND r.level = 'agent' AND r.target = t.agent AND r.legal_hold) THEN t.agent
            ELSE coalesce($14, t.agent) END,
        status = coalesce($28, t.status), searchable = NULL
    WHERE t.tenant_id = $1 AND t.subject_id = $2 AND t.thread_id = $3 AND t.tier = 'hot' AND t.seal = $29
      AND t.strict = $30
      AND ($34 IS NULL OR $34 = array_prepend(coalesce(t.agent, ''), (
        SELECT array_agg(p::text ORDER BY p.agent) FROM stateroom.save_policies p
        WHERE p.tenant_id = $1 AND p.agent IN ('', t.agent, $14))));
    {STALE_UNLESS_FOUND}
    IF cardinality($5) > 0 THEN
        INSERT INTO stateroom.chunks AS c (tenant_id, subject_id, thread_id, piece_id, key_version, children, envelope)
        SELECT $1, $2, $3, p.piece_id, $4, p.children, p.envelope
        FROM unnest($5, $6, $7) AS p(piece_id, children, envelope)
        ON CONFLICT (tenant_id, subject_id, thread_id, piece_id) DO UPDATE
            SET key_version = excluded.key_version, envelope = excluded.envelope, named_ids = NULL
            WHERE c.key_version <> excluded.key_version;
    END IF;
    INSERT INTO stateroom.checkpoints
        (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, source, agent, run_id,
         model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at, key_version,
         piece_ids, named_ids, manifest)
    SELECT $1, $2, $3, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $4, $23, $31, $24
    FROM (
        SELECT n.checkpoint_id FROM stateroom.checkpoints n
        WHERE n.tenant_id = $1 AND n.subject_id = $2 AND n.thread_id = $3 AND n.namespace = $8
        ORDER BY n.checkpoint_id DESC LIMIT 1) b
    WHERE b.checkpoint_id = $10
    ON CONFLICT DO NOTHING;
    {STALE_UNLESS_FOUND}
    UPDATE stateroom.heads h SET head_id = $25, sequence = $26, seal = $27
    WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $8
      AND h.head_id = $10 AND h.sequence = $26 - 1 AND h.seal = $32;
    {STALE_UNLESS_FOUND}
    IF (SELECT count(*) FROM stateroom.pending_writes w WHERE w.tenant_id = $1 AND w.subject_id = $2
        AND w.thread_id = $3 AND w.namespace = $8 AND w.checkpoint_id = $9) <> $33
      OR NOT EXISTS (SELECT FROM stateroom.subject_keys k
        WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.purpose = 'data' AND k.key_version = $4
          AND k.state = 'active') THEN
        {STALE}
    END IF;
END
$function$
"""
FUNCTION = f"stateroom.save_on_5({SAVE_PARAMETERS})"


def upgrade() -> None:
    """Add the table and the function."""
    op.execute(TABLE)
    op.execute("ALTER TABLE stateroom.save_policies ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.save_policies FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.save_policies TO gw_app")
    op.execute(f"CREATE POLICY tenant_rows ON stateroom.save_policies TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute(f"GRANT SELECT ({CLEAR_COLUMNS}) ON stateroom.save_policies TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.save_policies FOR SELECT TO gw_ops USING (true)")
    op.execute(SAVE_ON)
    op.execute(f"REVOKE ALL ON FUNCTION {FUNCTION} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {FUNCTION} TO gw_app")


def downgrade() -> None:
    """Drop both: blind saves are let through again."""
    op.execute(f"DROP FUNCTION {FUNCTION}")
    op.execute("DROP TABLE stateroom.save_policies")
