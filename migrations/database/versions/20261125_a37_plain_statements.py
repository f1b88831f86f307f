"""Make the functions of a save and of a task's writes of plain statements, which mean the same on a distributed server.

Builds before this one go on with what they call.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a37"
down_revision = "a36"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"
MADE = ("011_save_on_7", "012_put_writes_on_6", "013_write_save", "014_put_writes")


def upgrade() -> None:
    """Make the functions of plain statements."""
    for name in MADE:
        for statement in statements(FUNCTIONS / f"{name}.sql"):
            op.execute(statement)


def downgrade() -> None:
    """Remove the functions that `upgrade` makes."""
    for name in MADE:
        op.execute(f"DROP FUNCTION stateroom.{name[4:]}")
