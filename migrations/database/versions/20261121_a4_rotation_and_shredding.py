"""Rotation and shredding: who may see and rewrap a tenant's subject keys, and jobs of the whole deployment.

Expands only: the previous release keeps serving. A transaction bound to a tenant and to no subject sees all of the
tenant's *wrapped* subject keys and may rewrap or destroy them; one bound to a subject sees that subject's only, as
before. An operator sees which root key wraps which tenant key, and which jobs are open; jobs of the deployment itself
are kept under the nil UUID, which is no tenant's.
"""

from alembic import op

revision = "a4"
down_revision = "a5"
branch_labels = None
depends_on = None

OPERATOR = "current_setting('app.operator', true) = 'on'"
OPERATOR_JOBS = f"{OPERATOR} AND tenant_id = '00000000-0000-0000-0000-000000000000'::uuid"
WHOLE_TENANT = (
    "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
    " AND nullif(current_setting('app.subject_id', true), '') IS NULL"
)


def upgrade() -> None:
    """Add the policies, and a job's remark."""
    op.execute("ALTER TABLE stateroom.jobs ADD note text")
    op.execute(f"CREATE POLICY tenant_reads ON stateroom.subject_keys FOR SELECT TO gw_app USING ({WHOLE_TENANT})")
    op.execute(
        f"CREATE POLICY tenant_rewraps ON stateroom.subject_keys FOR UPDATE TO gw_app"
        f" USING ({WHOLE_TENANT}) WITH CHECK ({WHOLE_TENANT})"
    )
    op.execute(f"CREATE POLICY operator_reads ON stateroom.tenant_keys FOR SELECT TO gw_app USING ({OPERATOR})")
    op.execute(f"CREATE POLICY operator_reads ON stateroom.jobs FOR SELECT TO gw_app USING ({OPERATOR})")
    op.execute(
        f"CREATE POLICY operator_jobs ON stateroom.jobs TO gw_app USING ({OPERATOR_JOBS}) WITH CHECK ({OPERATOR_JOBS})"
    )


def downgrade() -> None:
    """Drop what upgrade added."""
    op.execute("DROP POLICY operator_jobs ON stateroom.jobs")
    op.execute("DROP POLICY operator_reads ON stateroom.jobs")
    op.execute("DROP POLICY operator_reads ON stateroom.tenant_keys")
    op.execute("DROP POLICY tenant_rewraps ON stateroom.subject_keys")
    op.execute("DROP POLICY tenant_reads ON stateroom.subject_keys")
    op.execute("ALTER TABLE stateroom.jobs DROP note")
