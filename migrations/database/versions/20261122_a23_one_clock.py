"""One clock for what decides a removal: the database's.

`threads.updated_at` was what the saving gateway's clock said, and a round of retention compared it with the clock of
whoever did the round: a gateway an hour behind, or a worker an hour ahead, had removed what was saved a moment ago. Now
the database says when a thread was written to, whoever writes, also a gateway of the release before: by a trigger, and
never less than it said before. Who sets the column to what it is does not touch the thread.

`created_at` of a thread, of a pending write and of an archive are sealed as they were sent; beside them stands when the
database got them: `began_at` and `stored_at`. Rows from before have none, and go by `created_at` until they are gone.

Expands only: the columns are nullable, their defaults are for new rows, and no table is written again.
"""

from alembic import op

revision = "a23"
down_revision = "a22"
branch_labels = None
depends_on = None

COLUMNS = {"threads": "began_at", "pending_writes": "stored_at", "archives": "stored_at"}
TOUCH = """
CREATE FUNCTION stateroom.touch_thread() RETURNS trigger LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.updated_at := clock_timestamp();
    ELSIF NEW.updated_at IS DISTINCT FROM OLD.updated_at THEN
        NEW.updated_at := greatest(OLD.updated_at, clock_timestamp());
    END IF;
    RETURN NEW;
END
$function$
"""


def upgrade() -> None:
    """Add the columns and the trigger."""
    for table, column in COLUMNS.items():
        # The default comes second: with the column, every row would be written again.
        op.execute(f"ALTER TABLE stateroom.{table} ADD {column} timestamptz")
        op.execute(f"ALTER TABLE stateroom.{table} ALTER {column} SET DEFAULT clock_timestamp()")
    op.execute(TOUCH)
    op.execute("REVOKE ALL ON FUNCTION stateroom.touch_thread() FROM PUBLIC")
    op.execute(
        "CREATE TRIGGER touched BEFORE INSERT OR UPDATE OF updated_at ON stateroom.threads"
        " FOR EACH ROW EXECUTE FUNCTION stateroom.touch_thread()"
    )


def downgrade() -> None:
    """Drop what upgrade added."""
    op.execute("DROP TRIGGER touched ON stateroom.threads")
    op.execute("DROP FUNCTION stateroom.touch_thread()")
    for table, column in COLUMNS.items():
        op.execute(f"ALTER TABLE stateroom.{table} DROP {column}")
