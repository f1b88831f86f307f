"""Remove the functions that no build calls any more which may still run.

A database that the retired revisions made has them; one that was made by the baseline never had.
"""

from alembic import op

revision = "a35"
down_revision = "a34"
branch_labels = None
depends_on = None

NOBODYS = (
    "load_checkpoint", "load_checkpoint_3", "put_writes_on", "put_writes_on_2", "put_writes_on_3",
    "save_on", "save_on_2", "save_on_3", "save_on_5",
)  # fmt: skip


def upgrade() -> None:
    """Drop them, where they are."""
    for name in NOBODYS:
        op.execute(f"DROP FUNCTION IF EXISTS stateroom.{name}")


def downgrade() -> None:
    """Nobody calls them, so that nothing has to come back."""
