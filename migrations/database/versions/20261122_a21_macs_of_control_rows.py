"""MACs of control rows: state schemas, retention policies with their holds, jobs; and the key that makes them.

Expands only. A row without a MAC is refused as one that somebody edited, so the rows that were there before have to be
written again: whoever may write as the tables' owner deletes the policies and the schemas, from the version that is
refused on, and their owners say and register them again; jobs that were open end as failed, and are begun again.
"""

from alembic import op

revision = "a21"
down_revision = "a20"
branch_labels = None
depends_on = None

TABLES = ("state_schemas", "retention", "thread_retention", "jobs")
# What operators saw of jobs by a privilege on the whole table: all but the MAC.
JOB_COLUMNS = (
    "tenant_id, job_id, kind, target, state, done, total, position, error, note, lease_until, created_at, updated_at"
)


def allow(*purposes: str) -> None:
    """Say which keys a deployment may have."""
    op.execute("ALTER TABLE stateroom.deployment_keys DROP CONSTRAINT deployment_keys_purpose_check")
    named = ", ".join(f"'{each}'" for each in purposes)
    op.execute(
        "ALTER TABLE stateroom.deployment_keys ADD CONSTRAINT deployment_keys_purpose_check"
        f" CHECK (purpose IN ({named}))"
    )


def upgrade() -> None:
    """Allow the key's purpose and add the columns."""
    allow("audit", "transfer", "control")
    for table in TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} ADD mac bytea CHECK (length(mac) = 32)")
    op.execute("REVOKE SELECT ON stateroom.jobs FROM gw_ops")
    op.execute(f"GRANT SELECT ({JOB_COLUMNS}) ON stateroom.jobs TO gw_ops")


def downgrade() -> None:
    """Drop what upgrade added."""
    op.execute(f"REVOKE SELECT ({JOB_COLUMNS}) ON stateroom.jobs FROM gw_ops")
    op.execute("GRANT SELECT ON stateroom.jobs TO gw_ops")
    for table in TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} DROP mac")
    op.execute("DELETE FROM stateroom.deployment_keys WHERE purpose = 'control'")
    allow("audit", "transfer")
