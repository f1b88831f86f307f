"""A damaged version of a state schema may be registered again in its place.

Expands only: what proves a row is its MAC, not that nobody may write it.
"""

from alembic import op

revision = "a26"
down_revision = "a25"
branch_labels = None
depends_on = None

COLUMNS = "definition, created_at, mac, mac_format"


def upgrade() -> None:
    """Let the gateway change what a version says, and not which one it is."""
    op.execute(f"GRANT UPDATE ({COLUMNS}) ON stateroom.state_schemas TO gw_app")


def downgrade() -> None:
    """Take back what upgrade gave."""
    op.execute(f"REVOKE UPDATE ({COLUMNS}) ON stateroom.state_schemas FROM gw_app")
