"""The schema of version 0.1.0: its tables, and the functions that save, load, look up keys and keep time.

Four of the functions are what builds before 0.1.0 call, which may still run while an upgrade rolls.

It has the id of the last of the 34 revisions that made this schema before, so that a database that they brought to a34
goes on from here. Their ids are retired (`storage.postgres.setup`): no release had them.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a34"
down_revision = None
branch_labels = None
depends_on = None

FOLDER = Path(__file__).parents[1]
TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
# What row-level security compares with; `storage.postgres.unit_of_work` binds it for each transaction.
CONDITIONS = {
    "tenant": f"({TENANT})",
    "subject": f"({TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), ''))",
    "listing": f"({TENANT} AND current_setting('app.tenant_listing', true) = 'on')",
    "operator": "(current_setting('app.operator', true) = 'on')",
}
FUNCTIONS = (
    "001_look_up_api_key",
    "002_save_on_4",
    "003_put_writes_on_4",
    "004_load_checkpoint_2",
    "005_touch_thread_2",
    "006_look_up_api_key_2",
    "007_save_on_6",
    "008_put_writes_on_5",
    "009_load_checkpoint_4",
)


def upgrade() -> None:
    """Make the schema."""
    for statement in statements(FOLDER / "baseline" / "tables.sql", CONDITIONS):
        op.execute(statement)
    for name in FUNCTIONS:
        for statement in statements(FOLDER / "functions" / f"{name}.sql"):
            op.execute(statement)


def downgrade() -> None:
    """Remove everything but the schema itself."""
    for name in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION stateroom.{name[4:]} CASCADE")
    for statement in statements(FOLDER / "baseline" / "tables.sql", CONDITIONS):
        if statement.startswith("CREATE TABLE"):
            op.execute(f"DROP TABLE {statement.split()[2]} CASCADE")
