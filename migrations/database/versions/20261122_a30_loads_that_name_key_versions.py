"""A load that says which key version a row names and whether its parent is there, and is planned once a connection.

The key version of a checkpoint or a pending write stands beside its envelope, too, where anybody who writes to the
table may alter it: a load now gives it, so that it is compared with the envelope's own.

A prune leaves rows whose parent it removed. Nothing can be read at that name, so that a load does not give it: it looks
whether the parent is there.

The statement takes four times as long to plan as to run. Once `pending_writes` has statistics, PostgreSQL took a plan
for each call, because a generic one seems to cost more by what it would read of writes behind a condition that is
nearly always false. All its scans are by primary key, whatever the parameters are.

It expands only: the previous release calls the function of a20, which stays.
"""

from alembic import op

revision = "a30"
down_revision = "a29"
branch_labels = None
depends_on = None

BIND_READER = """EXECUTE format('SET LOCAL transaction_read_only = on; SET LOCAL app.tenant_id = %L;'
        ' SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L; SET LOCAL app.tenant_listing = %L',
        $1, $2, '', '');"""
ROW = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "parent_id": "text", "step": "integer",
    "status": "text", "outcome": "text", "source": "text", "agent": "text", "run_id": "text", "model": "text",
    "state_schema": "text", "state_version": "integer", "input_tokens": "bigint", "output_tokens": "bigint",
    "cost_micros": "bigint", "created_at": "timestamptz", "piece_ids": "bytea", "named_ids": "bytea",
    "manifest": "bytea", "key_version": "integer",
}  # fmt: skip
STANDING = {
    "at_head_id": "text", "at_sequence": "bigint", "at_head_seal": "bytea", "at_thread_seal": "bytea",
    "at_thread_created_at": "timestamptz", "at_tier": "text", "at_newer": "boolean", "at_parent": "boolean",
    "key_state": "text",
}  # fmt: skip
WRITE = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer",
    "task_path": "text", "channel": "text", "status": "text", "created_at": "timestamptz", "piece_ids": "bytea",
    "named_ids": "bytea", "state_schema": "text", "state_version": "integer", "value": "bytea", "member": "bytea",
    "key_version": "integer",
}  # fmt: skip
PIECE = {"piece_id": "bytea", "children": "bytea", "named_ids": "bytea", "envelope": "bytea"}
MEMBER = {"namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer", "member": "bytea"}


def _arrays(columns: dict[str, str], letter: str, order: str = "") -> str:
    return ", ".join(f"array_agg({letter}.{name}{order}) AS {letter}_{name}" for name in columns)


LOAD_PARAMETERS = "uuid, text, text, text, text, boolean, integer"
LOAD_RESULT = ", ".join(
    f"{name} {kind}"
    for name, kind in (
        *ROW.items(),
        *STANDING.items(),
        *((f"{letter}_{name}", f"{kind}[]")
          for letter, columns in (("w", WRITE), ("p", PIECE), ("m", MEMBER))
          for name, kind in columns.items()),
    )
)  # fmt: skip
# As `load_checkpoint_2` of revision a20, which says why it is as it is, but for key versions, the parent and the plan.
LOAD = f"""
CREATE FUNCTION stateroom.load_checkpoint_3({LOAD_PARAMETERS}) RETURNS TABLE ({LOAD_RESULT}) LANGUAGE plpgsql ROWS 1
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $function$
#variable_conflict use_column
BEGIN
    {BIND_READER}
    RETURN QUERY
    WITH target AS MATERIALIZED (
        SELECT h.head_id AS at_head_id, h.sequence AS at_sequence, h.seal AS at_head_seal, t.*, c.*,
            coalesce(n.newest_id > h.head_id, false) AS at_newer
        FROM stateroom.heads h
        LEFT JOIN LATERAL (
            SELECT seal AS at_thread_seal, created_at AS at_thread_created_at, tier AS at_tier
            FROM stateroom.threads
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3
            LIMIT 1) t ON true
        LEFT JOIN LATERAL (
            SELECT {", ".join(ROW)}
            FROM stateroom.checkpoints
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
              AND checkpoint_id = CASE WHEN $5 IS NULL THEN h.head_id ELSE $5 END
            LIMIT 1) c ON true
        LEFT JOIN LATERAL (
            SELECT checkpoint_id AS newest_id
            FROM stateroom.checkpoints
            WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
            ORDER BY checkpoint_id DESC LIMIT 1) n ON true
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $4
    ), written AS MATERIALIZED (
        SELECT * FROM stateroom.pending_writes
        WHERE $6 AND tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
          AND checkpoint_id = (SELECT checkpoint_id FROM target)
    )
    SELECT {", ".join(ROW)}, at_head_id, at_sequence, at_head_seal, at_thread_seal, at_thread_created_at, at_tier,
        at_newer,
        (SELECT true FROM stateroom.checkpoints a
         WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.thread_id = $3 AND a.namespace = $4
           AND a.checkpoint_id = target.parent_id LIMIT 1) AS at_parent,
        (SELECT k.state FROM stateroom.subject_keys k
         WHERE k.tenant_id = $1 AND k.subject_id = $2 AND k.purpose = 'data' AND k.key_version = $7) AS key_state,
        writes.*, pieces.*, members.*
    FROM target
    LEFT JOIN LATERAL (
        SELECT {_arrays(WRITE, "w", " ORDER BY w.task_path, w.task_id, w.idx")} FROM written w) writes ON true
    LEFT JOIN LATERAL (
        SELECT {_arrays(PIECE, "p")}
        FROM stateroom.chunks p
        WHERE p.tenant_id = $1 AND p.subject_id = $2 AND p.thread_id = $3
          AND p.piece_id = ANY(ARRAY(
            SELECT substring(target.piece_ids FROM 1 + 17 * n FOR 17)
            FROM generate_series(0, length(target.piece_ids) / 17 - 1) n WHERE $6
            UNION ALL
            SELECT substring(w.piece_ids FROM 1 + 17 * n FOR 17)
            FROM written w, generate_series(0, length(w.piece_ids) / 17 - 1) n))) pieces ON true
    LEFT JOIN LATERAL (
        SELECT {_arrays(MEMBER, "m")}
        FROM stateroom.pending_writes m
        WHERE $6 AND target.checkpoint_id <> target.at_head_id
          AND m.tenant_id = $1 AND m.subject_id = $2 AND m.thread_id = $3) members ON true;
END
$function$
"""
FUNCTION = f"stateroom.load_checkpoint_3({LOAD_PARAMETERS})"


def upgrade() -> None:
    """Add the function."""
    op.execute(LOAD)
    op.execute(f"REVOKE ALL ON FUNCTION {FUNCTION} FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION {FUNCTION} TO gw_app")


def downgrade() -> None:
    """Drop the function."""
    op.execute(f"DROP FUNCTION {FUNCTION}")
