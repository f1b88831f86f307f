"""Loads in one round trip: a function that binds its scope, reads everything a checkpoint needs, and ends with it.

Binding and committing were two of three round trips. All is read in one statement, hence at one moment, as before in a
snapshot; rows that belong together come as parallel arrays. It runs with its caller's rights under row-level security,
which it binds as the functions of revision a16 do, and sets its transaction to read only. It expands only: the previous
release does not call it. A later release that needs another one makes it under another name.
"""

from alembic import op

revision = "a18"
down_revision = "a17"
branch_labels = None
depends_on = None

BIND = """EXECUTE format('SET LOCAL transaction_read_only = on; SET LOCAL app.tenant_id = %L;'
        ' SET LOCAL app.subject_id = %L; SET LOCAL app.operator = %L; SET LOCAL app.tenant_listing = %L',
        $1, $2, '', '');"""
ROW = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "parent_id": "text", "step": "integer",
    "status": "text", "outcome": "text", "source": "text", "agent": "text", "run_id": "text", "model": "text",
    "state_schema": "text", "state_version": "integer", "input_tokens": "bigint", "output_tokens": "bigint",
    "cost_micros": "bigint", "created_at": "timestamptz", "piece_ids": "bytea", "named_ids": "bytea",
    "manifest": "bytea",
}  # fmt: skip
STANDING = {
    "at_head_id": "text", "at_sequence": "bigint", "at_head_seal": "bytea", "at_thread_seal": "bytea",
    "at_thread_created_at": "timestamptz", "at_tier": "text", "key_state": "text",
}  # fmt: skip
WRITE = {
    "thread_id": "text", "namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer",
    "task_path": "text", "channel": "text", "status": "text", "created_at": "timestamptz", "piece_ids": "bytea",
    "named_ids": "bytea", "state_schema": "text", "state_version": "integer", "value": "bytea", "member": "bytea",
}  # fmt: skip
PIECE = {"piece_id": "bytea", "children": "bytea", "named_ids": "bytea", "envelope": "bytea"}
MEMBER = {"namespace": "text", "checkpoint_id": "text", "task_id": "text", "idx": "integer", "member": "bytea"}


def _arrays(columns: dict[str, str], letter: str, order: str = "") -> str:
    return ", ".join(f"array_agg({letter}.{name}{order}) AS {letter}_{name}" for name in columns)


PARAMETERS = "uuid, text, text, text, text, boolean, integer"
RESULT = ", ".join(
    f"{name} {kind}"
    for name, kind in (
        *ROW.items(),
        *STANDING.items(),
        *((f"{letter}_{name}", f"{kind}[]")
          for letter, columns in (("w", WRITE), ("p", PIECE), ("m", MEMBER))
          for name, kind in columns.items()),
    )
)  # fmt: skip
# The parameters are those of `storage.postgres.checkpoints.LOAD`, whose columns it has. Its own are the members (m_) of
# all of a thread's pending writes, where the checkpoint is not the head: only the thread's seal counts its writes then.
# Each of the thread and the checkpoint is looked up by itself, which a plan without statistics does not turn into a
# join; by CASE, because row-level security keeps the index from what coalesce() compares with; and without sequential
# scans, because plans that were made while tables were small are kept (revision a17).
LOAD = f"""
CREATE FUNCTION stateroom.load_checkpoint({PARAMETERS}) RETURNS TABLE ({RESULT}) LANGUAGE plpgsql ROWS 1
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    {BIND}
    RETURN QUERY
    WITH target AS MATERIALIZED (
        SELECT h.head_id AS at_head_id, h.sequence AS at_sequence, h.seal AS at_head_seal, t.*, c.*
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
        WHERE h.tenant_id = $1 AND h.subject_id = $2 AND h.thread_id = $3 AND h.namespace = $4
    ), written AS MATERIALIZED (
        SELECT * FROM stateroom.pending_writes
        WHERE $6 AND tenant_id = $1 AND subject_id = $2 AND thread_id = $3 AND namespace = $4
          AND checkpoint_id = (SELECT checkpoint_id FROM target)
    )
    SELECT {", ".join(ROW)}, at_head_id, at_sequence, at_head_seal, at_thread_seal, at_thread_created_at, at_tier,
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


def upgrade() -> None:
    """Add the function."""
    op.execute(LOAD)
    op.execute(f"REVOKE ALL ON FUNCTION stateroom.load_checkpoint({PARAMETERS}) FROM PUBLIC")
    op.execute(f"GRANT EXECUTE ON FUNCTION stateroom.load_checkpoint({PARAMETERS}) TO gw_app")


def downgrade() -> None:
    """Drop it."""
    op.execute(f"DROP FUNCTION stateroom.load_checkpoint({PARAMETERS})")
