"""Archived threads: the stub of each, and the bucket that an object is in.

Expands only: the previous release keeps serving, and what it uploads is in the bucket of blobs, which is the default of
the new columns. It does not know the other bucket: no thread is archived before every process is of this release, or
its sweeper forgets an archive whose object it looked for in the wrong place (fsck finds such objects).

A transaction that is bound to a tenant and to the listing by name may read the clear columns of the tenant's stubs, as
it may those of checkpoints: they are counts, sizes, ids and times.
"""

from alembic import op

revision = "a12"
down_revision = "a11"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
SUBJECT = f"{TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"
LISTING = f"{TENANT} AND current_setting('app.tenant_listing', true) = 'on'"

CLEAR_COLUMNS = (
    "tenant_id, subject_id, thread_id, blob_id, activity, key_versions, client_share, checkpoints, pending_writes,"
    " chunks, hot_bytes, size_bytes, run_ids, state_schemas, agents, storage_class, created_at, key_version"
)

TABLE = """
CREATE TABLE stateroom.archives (
    tenant_id      uuid NOT NULL,
    subject_id     text COLLATE "C" NOT NULL,
    thread_id      text COLLATE "C" NOT NULL,
    blob_id        uuid NOT NULL,
    activity       bigint NOT NULL,
    key_versions   integer[] NOT NULL,
    client_share   boolean NOT NULL,
    checkpoints    integer NOT NULL CHECK (checkpoints >= 0),
    pending_writes integer NOT NULL CHECK (pending_writes >= 0),
    chunks         integer NOT NULL CHECK (chunks >= 0),
    hot_bytes      bigint NOT NULL CHECK (hot_bytes >= 0),
    size_bytes     bigint NOT NULL CHECK (size_bytes >= 0),
    run_ids        text[] COLLATE "C" NOT NULL,
    state_schemas  text[] COLLATE "C" NOT NULL,
    agents         text[] COLLATE "C" NOT NULL,
    named_ids      bytea,
    storage_class  text COLLATE "C" NOT NULL,
    created_at     timestamptz NOT NULL,
    key_version    integer NOT NULL,
    sealed         bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, thread_id)
)
"""


def upgrade() -> None:
    """Add the table and the columns."""
    op.execute(TABLE)
    op.execute("ALTER TABLE stateroom.archives ALTER sealed SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE stateroom.archives ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE stateroom.archives FORCE ROW LEVEL SECURITY")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.archives TO gw_app")
    op.execute(f"CREATE POLICY subject_rows ON stateroom.archives TO gw_app USING ({SUBJECT}) WITH CHECK ({SUBJECT})")
    op.execute(f"CREATE POLICY tenant_listing ON stateroom.archives FOR SELECT TO gw_app USING ({LISTING})")
    op.execute(f"GRANT SELECT ({CLEAR_COLUMNS}) ON stateroom.archives TO gw_ops")
    op.execute("CREATE POLICY clear_columns ON stateroom.archives FOR SELECT TO gw_ops USING (true)")
    for table in ("blobs", "blob_intents"):
        op.execute(
            f"ALTER TABLE stateroom.{table}"
            " ADD place text NOT NULL DEFAULT 'blobs' CHECK (place IN ('blobs', 'archive'))"
        )
        op.execute(f"GRANT SELECT (place) ON stateroom.{table} TO gw_ops")
    op.execute("ALTER TABLE stateroom.blob_intents DROP CONSTRAINT blob_intents_purpose_check")
    op.execute(
        "ALTER TABLE stateroom.blob_intents ADD CONSTRAINT blob_intents_purpose_check"
        " CHECK (purpose IN ('piece', 'artifact', 'archive'))"
    )


def downgrade() -> None:
    """Drop what upgrade added. Restore archived threads before: the older build does not find their rows."""
    op.execute("DELETE FROM stateroom.blob_intents WHERE purpose = 'archive'")
    op.execute("ALTER TABLE stateroom.blob_intents DROP CONSTRAINT blob_intents_purpose_check")
    op.execute(
        "ALTER TABLE stateroom.blob_intents ADD CONSTRAINT blob_intents_purpose_check"
        " CHECK (purpose IN ('piece', 'artifact'))"
    )
    for table in ("blobs", "blob_intents"):
        op.execute(f"ALTER TABLE stateroom.{table} DROP place")
    op.execute("DROP TABLE stateroom.archives")
