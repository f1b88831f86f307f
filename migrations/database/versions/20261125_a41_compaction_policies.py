"""Make room for what save policies say of long lists.

Nothing is written there before the feature is switched on (ADR 30); until then every policy says whether saves are
strict, as builds before this one read it.
"""

from alembic import op

revision = "a41"
down_revision = "a40"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and let a policy say one thing without the other."""
    op.execute("""
ALTER TABLE stateroom.save_policies
    ADD COLUMN compact_elements bigint,
    ADD COLUMN compact_bytes bigint,
    ALTER COLUMN strict DROP NOT NULL
""")
    op.execute("GRANT SELECT (compact_elements, compact_bytes) ON stateroom.save_policies TO gw_ops")


def downgrade() -> None:
    """Remove them, if no policy says anything of lists: builds of the revision before would take it for damaged."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.save_policies WHERE coalesce(compact_elements, compact_bytes) IS NOT NULL) THEN
        RAISE EXCEPTION 'save policies say when lists are to be compacted: take that back before this is undone';
    END IF;
END $body$
""")
    op.execute("""
ALTER TABLE stateroom.save_policies
    DROP COLUMN compact_elements,
    DROP COLUMN compact_bytes,
    ALTER COLUMN strict SET NOT NULL
""")
