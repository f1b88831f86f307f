"""Vacuum what thinning empties before it is a fifth of a table (docs/adr/0020-bloat.md).

Changes storage parameters only; readers and writers go on meanwhile.
"""

from alembic import op

revision = "a15"
down_revision = "a14"
branch_labels = None
depends_on = None

TABLES = ("checkpoints", "chunks", "pending_writes")
# A fiftieth of the rows, and never for less than a batch or ten of a removal. Envelopes of some size are in TOAST,
# whose table has parameters of its own.
PARAMETERS = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.05",
    "toast.autovacuum_vacuum_scale_factor": "0.02",
    "toast.autovacuum_vacuum_threshold": "1000",
}


def upgrade() -> None:
    """Set the parameters."""
    for table in TABLES:
        settings = ", ".join(f"{name} = {value}" for name, value in PARAMETERS.items())
        op.execute(f"ALTER TABLE stateroom.{table} SET ({settings})")


def downgrade() -> None:
    """Go by the server's again."""
    for table in TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} RESET ({', '.join(PARAMETERS)})")
