"""Blobs and artifacts: what is kept in the object store, who refers to it, and how much a tenant may keep.

What a row names is bound into its seal, so chunks, checkpoints and pending writes that were sealed before do not open
any more, and a database cannot seal them again. No release ever wrote those, so a database that holds some is
refused, by name, instead of being made unreadable.

A transaction that is bound to a tenant and to no subject sees the tenant's blobs and intents, whose columns are ids,
sizes and sealed bytes, so that the sweeper finds the subjects it has to work for, and a check the objects that no row
knows; it changes none of them. An operator sees how much every tenant keeps, so that one process finds the tenants
whose sweep is due.
"""

from alembic import op

revision = "a8"
down_revision = "a7"
branch_labels = None
depends_on = None

TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
SUBJECT = f"{TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"
WHOLE_TENANT = f"{TENANT} AND nullif(current_setting('app.subject_id', true), '') IS NULL"
OPERATOR = "current_setting('app.operator', true) = 'on'"

SUBJECT_TABLES = ("blobs", "blob_intents", "upload_parts", "blob_refs", "artifacts", "artifact_refs")
NAMING_TABLES = ("chunks", "checkpoints", "pending_writes")

CLEAR_COLUMNS = {
    "blobs": (
        "tenant_id, subject_id, blob_id, state, size_bytes, client_share, key_version, created_at, unreferenced_at,"
        " condemned_at"
    ),
    "blob_intents": (
        "tenant_id, subject_id, blob_id, purpose, state, reserved_bytes, client_share, key_version, created_at,"
        " expires_at, removed_at"
    ),
    "upload_parts": "tenant_id, subject_id, blob_id, number, size_bytes",
    "blob_refs": "tenant_id, subject_id, blob_id, thread_id",
    "artifacts": (
        "tenant_id, subject_id, artifact_id, thread_id, number, blob_id, url_epoch, size_bytes, client_share,"
        " key_version, created_at"
    ),
    "artifact_refs": "tenant_id, subject_id, artifact_id, thread_id",
    "blob_usage": "tenant_id, bytes, quota_bytes, sweep_after, walk_after, swept_at, due_since, census",
}

TABLES = """
CREATE TABLE stateroom.blobs (
    tenant_id       uuid NOT NULL,
    subject_id      text COLLATE "C" NOT NULL,
    blob_id         uuid NOT NULL,
    content_id      bytea CHECK (length(content_id) = 17),
    state           text NOT NULL CHECK (state IN ('live', 'condemned')),
    size_bytes      bigint NOT NULL CHECK (size_bytes >= 0),
    client_share    boolean NOT NULL,
    key_version     integer NOT NULL,
    pointer         bytea,
    created_at      timestamptz NOT NULL,
    unreferenced_at timestamptz,
    condemned_at    timestamptz,
    PRIMARY KEY (tenant_id, subject_id, blob_id),
    CHECK ((state = 'condemned') = (condemned_at IS NOT NULL)),
    CHECK (state = 'condemned' OR pointer IS NOT NULL)
);
-- Equal content is kept once for each subject.
CREATE UNIQUE INDEX blobs_by_content ON stateroom.blobs (tenant_id, subject_id, content_id)
    WHERE state = 'live' AND content_id IS NOT NULL;
CREATE INDEX blobs_by_object ON stateroom.blobs (tenant_id, blob_id);
CREATE INDEX blobs_unreferenced ON stateroom.blobs (tenant_id, subject_id, unreferenced_at)
    WHERE state = 'live' AND unreferenced_at IS NOT NULL;
CREATE INDEX blobs_condemned ON stateroom.blobs (tenant_id, subject_id, condemned_at) WHERE state = 'condemned';

CREATE TABLE stateroom.blob_intents (
    tenant_id      uuid NOT NULL,
    subject_id     text COLLATE "C" NOT NULL,
    blob_id        uuid NOT NULL,
    purpose        text NOT NULL CHECK (purpose IN ('piece', 'artifact')),
    content_id     bytea CHECK (length(content_id) = 17),
    multipart_id   text,
    state          text NOT NULL CHECK (state IN ('open', 'swept')),
    reserved_bytes bigint NOT NULL CHECK (reserved_bytes >= 0),
    client_share   boolean NOT NULL,
    key_version    integer NOT NULL,
    record         bytea,
    created_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    removed_at     timestamptz,
    PRIMARY KEY (tenant_id, subject_id, blob_id)
);
CREATE INDEX blob_intents_by_object ON stateroom.blob_intents (tenant_id, blob_id);
CREATE INDEX blob_intents_by_expiry ON stateroom.blob_intents (tenant_id, subject_id, expires_at);

CREATE TABLE stateroom.upload_parts (
    tenant_id  uuid NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    blob_id    uuid NOT NULL,
    number     integer NOT NULL CHECK (number >= 0),
    etag       text NOT NULL,
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    digest     bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, blob_id, number)
);

CREATE TABLE stateroom.blob_refs (
    tenant_id  uuid NOT NULL,
    subject_id text COLLATE "C" NOT NULL,
    blob_id    uuid NOT NULL,
    thread_id  text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, blob_id, thread_id)
);
CREATE INDEX blob_refs_by_thread ON stateroom.blob_refs (tenant_id, subject_id, thread_id);

CREATE TABLE stateroom.artifacts (
    tenant_id    uuid NOT NULL,
    subject_id   text COLLATE "C" NOT NULL,
    artifact_id  uuid NOT NULL,
    thread_id    text COLLATE "C" NOT NULL,
    name_digest  bytea NOT NULL,
    number       integer NOT NULL CHECK (number > 0),
    blob_id      uuid NOT NULL,
    url_epoch    integer NOT NULL,
    size_bytes   bigint NOT NULL CHECK (size_bytes >= 0),
    client_share boolean NOT NULL,
    key_version  integer NOT NULL,
    created_at   timestamptz NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, artifact_id)
);
CREATE UNIQUE INDEX artifacts_by_name
    ON stateroom.artifacts (tenant_id, subject_id, thread_id, name_digest, number);
CREATE INDEX artifacts_by_thread ON stateroom.artifacts (tenant_id, subject_id, thread_id, artifact_id);
CREATE INDEX artifacts_by_blob ON stateroom.artifacts (tenant_id, subject_id, blob_id);

CREATE TABLE stateroom.artifact_refs (
    tenant_id   uuid NOT NULL,
    subject_id  text COLLATE "C" NOT NULL,
    artifact_id uuid NOT NULL,
    thread_id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant_id, subject_id, artifact_id, thread_id)
);
CREATE INDEX artifact_refs_by_thread ON stateroom.artifact_refs (tenant_id, subject_id, thread_id);

-- Changes with every upload: room for HOT updates. The timetable of sweeps has an index, and changes once a sweep.
CREATE TABLE stateroom.blob_usage (
    tenant_id   uuid PRIMARY KEY,
    bytes       bigint NOT NULL CHECK (bytes >= 0),
    quota_bytes bigint CHECK (quota_bytes >= 0),
    sweep_after timestamptz NOT NULL DEFAULT '-infinity',
    walk_after  timestamptz NOT NULL DEFAULT '-infinity',
    swept_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_since   timestamptz,
    census      jsonb NOT NULL DEFAULT '{}'
) WITH (fillfactor = 60);
CREATE INDEX blob_usage_by_sweep ON stateroom.blob_usage (sweep_after);

-- Random bytes do not compress.
ALTER TABLE stateroom.blobs ALTER pointer SET STORAGE EXTERNAL;
ALTER TABLE stateroom.blob_intents ALTER record SET STORAGE EXTERNAL;
ALTER TABLE stateroom.artifacts ALTER sealed SET STORAGE EXTERNAL;
"""


REFUSE = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM stateroom.checkpoints) OR EXISTS (SELECT FROM stateroom.chunks)
        OR EXISTS (SELECT FROM stateroom.pending_writes) THEN
        RAISE EXCEPTION 'this database holds checkpoints, chunks or pending writes whose seals are of an unreleased'
            ' format, which this build cannot read; start with an empty database';
    END IF;
END $$
"""


def run(script: str) -> None:
    """Run a script a statement at a time: the driver takes only one."""
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(statement)


def upgrade() -> None:
    """Add the tables, and the columns that say which blobs and artifacts a row names; refuse rows without them."""
    op.execute(REFUSE)
    run(TABLES)
    for table in NAMING_TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} ADD named_ids bytea")
        op.execute(f"ALTER TABLE stateroom.{table} ALTER named_ids SET STORAGE EXTERNAL")
    for table in (*SUBJECT_TABLES, "blob_usage"):
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE stateroom.{table} FORCE ROW LEVEL SECURITY")
        op.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON stateroom.{table} TO gw_app")
    for table in SUBJECT_TABLES:
        op.execute(
            f"CREATE POLICY subject_rows ON stateroom.{table} TO gw_app USING ({SUBJECT}) WITH CHECK ({SUBJECT})"
        )
    for table in ("blobs", "blob_intents"):
        op.execute(f"CREATE POLICY tenant_reads ON stateroom.{table} FOR SELECT TO gw_app USING ({WHOLE_TENANT})")
    op.execute(f"CREATE POLICY tenant_rows ON stateroom.blob_usage TO gw_app USING ({TENANT}) WITH CHECK ({TENANT})")
    op.execute(f"CREATE POLICY operator_reads ON stateroom.blob_usage FOR SELECT TO gw_app USING ({OPERATOR})")
    for table, columns in CLEAR_COLUMNS.items():
        op.execute(f"GRANT SELECT ({columns}) ON stateroom.{table} TO gw_ops")
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")


def downgrade() -> None:
    """Drop what upgrade added; what is in the object store stays there, and nothing knows of it any more.

    What was sealed meanwhile cannot be read by the older build, and is refused when this is upgraded again.
    """
    for table in NAMING_TABLES:
        op.execute(f"ALTER TABLE stateroom.{table} DROP named_ids")
    for table in ("blob_usage", *reversed(SUBJECT_TABLES)):
        op.execute(f"DROP TABLE stateroom.{table}")
