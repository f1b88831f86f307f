"""Tags: keyed digests by which checkpoints are found by the metadata that a tenant declares searchable.

Expands only. ``searchable`` says of a checkpoint by which keys it is tagged, and of a thread by which keys all of its
checkpoints are: null is none, so that what was saved before is opened and looked at, as ever. In a thread, an empty
array says that it holds no checkpoint yet. A build from before this leaves ``searchable`` of a thread as it is when it
saves; no schema may declare searchable keys until the last of them has stopped.

A tag goes with its checkpoint, whoever removes that: the foreign key sees to it.
"""

from alembic import op

revision = "a11"
down_revision = "a10"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
SUBJECT = f"{TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"

TABLE = """
CREATE TABLE stateroom.checkpoint_tags (
    tenant_id     uuid NOT NULL,
    subject_id    text COLLATE "C" NOT NULL,
    thread_id     text COLLATE "C" NOT NULL,
    namespace     text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    tag           bytea NOT NULL CHECK (length(tag) = 17),
    PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id, tag),
    FOREIGN KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id)
        REFERENCES stateroom.checkpoints ON DELETE CASCADE
)
"""


def upgrade() -> None:
    """Add the table and the columns."""
    op.execute('ALTER TABLE stateroom.threads ADD searchable text[] COLLATE "C"')
    op.execute('ALTER TABLE stateroom.checkpoints ADD searchable text[] COLLATE "C"')
    op.execute("CREATE INDEX threads_by_searchable ON stateroom.threads (tenant_id, subject_id, searchable)")
    op.execute(TABLE)
    op.execute(
        "CREATE INDEX checkpoint_tags_by_tag ON stateroom.checkpoint_tags (tenant_id, subject_id, tag, checkpoint_id)"
    )
    op.execute("ALTER TABLE stateroom.checkpoint_tags ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.checkpoint_tags FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.checkpoint_tags TO gw_app")
    op.execute(
        f"CREATE POLICY subject_rows ON stateroom.checkpoint_tags TO gw_app USING ({SUBJECT}) WITH CHECK ({SUBJECT})"
    )
    op.execute(
        "GRANT SELECT (tenant_id, subject_id, thread_id, namespace, checkpoint_id)"
        " ON stateroom.checkpoint_tags TO gw_ops"
    )
    op.execute("CREATE POLICY clear_columns ON stateroom.checkpoint_tags FOR SELECT TO gw_ops USING (true)")
    op.execute("GRANT SELECT (searchable) ON stateroom.threads TO gw_ops")
    op.execute("GRANT SELECT (searchable) ON stateroom.checkpoints TO gw_ops")


def downgrade() -> None:
    """Drop what upgrade added; nothing but speed is lost."""
    op.execute("DROP TABLE stateroom.checkpoint_tags")
    op.execute("DROP INDEX stateroom.threads_by_searchable")
    op.execute("ALTER TABLE stateroom.checkpoints DROP searchable")
    op.execute("ALTER TABLE stateroom.threads DROP searchable")
