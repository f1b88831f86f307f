"""The operators' own audit chain, and which chains wait for an anchor.

Expands only: the previous release keeps serving. Operators' events are kept under the nil UUID, which is no tenant's.
An operator may see where every chain ends (a number and a digest), so that one process can anchor all of them.
"""

from alembic import op

revision = "a5"
down_revision = "a3"
branch_labels = None
depends_on = None

OPERATOR = "current_setting('app.operator', true) = 'on'"
OPERATOR_CHAIN = f"{OPERATOR} AND tenant_id = '00000000-0000-0000-0000-000000000000'::uuid"


def upgrade() -> None:
    """Add the policies, and the column that says how far a chain is anchored."""
    op.execute("ALTER TABLE stateroom.audit_heads ADD anchored bigint NOT NULL DEFAULT 0")
    op.execute("CREATE INDEX audit_heads_to_anchor ON stateroom.audit_heads (tenant_id) WHERE sequence > anchored")
    for table in ("audit_log", "audit_heads"):
        op.execute(
            f"CREATE POLICY operator_chain ON stateroom.{table} TO gw_app"
            f" USING ({OPERATOR_CHAIN}) WITH CHECK ({OPERATOR_CHAIN})"
        )
    op.execute(f"CREATE POLICY operator_heads ON stateroom.audit_heads FOR SELECT TO gw_app USING ({OPERATOR})")


def downgrade() -> None:
    """Drop what upgrade added."""
    op.execute("DROP POLICY operator_heads ON stateroom.audit_heads")
    for table in ("audit_log", "audit_heads"):
        op.execute(f"DROP POLICY operator_chain ON stateroom.{table}")
    op.execute("DROP INDEX stateroom.audit_heads_to_anchor")
    op.execute("ALTER TABLE stateroom.audit_heads DROP anchored")
