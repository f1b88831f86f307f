"""Leave the time of an imported thread to whoever imports it.

A build from before revision a23 stores an imported thread with the time that its file says, reads it back, and
compares: since the trigger of a23 put the present in its place, each such import ended in 500 while an upgrade rolled.
This build writes the present itself, so that the trigger need not. A time that is still to come is nobody's: it would
keep the thread from ever being idle.

A thread that such a build imported is idle since its import all the same: rounds of retention go by `began_at` where
that is later, and the database says it.

Expands only: the trigger is replaced in one transaction, and no row is written.
"""

from alembic import op

revision = "a33"
down_revision = "a32"
branch_labels = None
depends_on = None

FORMER = """
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
TOUCH = """
CREATE FUNCTION stateroom.touch_thread_2() RETURNS trigger LANGUAGE plpgsql
AS $function$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.origin IS NULL OR NEW.updated_at > clock_timestamp() THEN
            NEW.updated_at := clock_timestamp();
        END IF;
    ELSIF NEW.updated_at IS DISTINCT FROM OLD.updated_at THEN
        NEW.updated_at := greatest(OLD.updated_at, clock_timestamp());
    END IF;
    RETURN NEW;
END
$function$
"""


def _touch_by(function: str) -> None:
    op.execute(f"REVOKE ALL ON FUNCTION stateroom.{function}() FROM PUBLIC")
    op.execute(
        "CREATE OR REPLACE TRIGGER touched BEFORE INSERT OR UPDATE OF updated_at ON stateroom.threads"
        f" FOR EACH ROW EXECUTE FUNCTION stateroom.{function}()"
    )


def upgrade() -> None:
    """Replace the trigger's function."""
    op.execute(TOUCH)
    _touch_by("touch_thread_2")
    op.execute("DROP FUNCTION stateroom.touch_thread()")


def downgrade() -> None:
    """Put the former one back."""
    op.execute(FORMER)
    _touch_by("touch_thread")
    op.execute("DROP FUNCTION stateroom.touch_thread_2()")
