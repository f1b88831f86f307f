"""Keep who stands behind an API key, and which key made it, under the seal of its row.

Seals without them stay what they are, so that a build before this one goes on with the keys that it knows; keys with
them are made once no such build runs.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a51"
down_revision = "a50"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"
LOOK_UP = "025_look_up_api_key_4"


def upgrade() -> None:
    """Add the columns, and a look-up that gives them."""
    op.execute("""
ALTER TABLE stateroom.api_key_seals ADD COLUMN principal text COLLATE "C", ADD COLUMN made_by text COLLATE "C"
""")
    for statement in statements(FUNCTIONS / f"{LOOK_UP}.sql"):
        op.execute(statement)


def downgrade() -> None:
    """Remove them, if no key has them: a build before this one would refuse it."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.api_key_seals WHERE principal IS NOT NULL) THEN
        RAISE EXCEPTION 'API keys have principals: replace these keys before this revision is undone';
    END IF;
END $body$
""")
    op.execute(f"DROP FUNCTION stateroom.{LOOK_UP[4:]}")
    op.execute("ALTER TABLE stateroom.api_key_seals DROP COLUMN principal, DROP COLUMN made_by")
