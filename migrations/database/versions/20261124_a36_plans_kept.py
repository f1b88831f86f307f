"""Let the functions that write on what a gateway remembers keep their plans.

Older builds that call them profit at once; nothing else changes for them.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a36"
down_revision = "a35"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"


def upgrade() -> None:
    """Have the two functions keep their plans."""
    for statement in statements(FUNCTIONS / "010_plans_kept.sql"):
        op.execute(statement)


def downgrade() -> None:
    """Leave plans to the server again."""
    op.execute("ALTER FUNCTION stateroom.save_on_6 RESET plan_cache_mode")
    op.execute("ALTER FUNCTION stateroom.put_writes_on_5 RESET plan_cache_mode")
