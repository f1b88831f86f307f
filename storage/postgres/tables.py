"""The tables as SQLAlchemy metadata: what cold statements are built from and what migrations are checked against.

Row-level security, roles and grants are not expressible here; they live in the migrations. Every PRIMARY KEY and
UNIQUE of a tenant's table begins with ``tenant_id``, and of a subject's with ``tenant_id, subject_id``, so that the
tables can be distributed by tenant (Citus) and no constraint crosses tenants. Identifiers collate bytewise.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

SCHEMA = "stateroom"
PIECE_ID_BYTES = 17

metadata = MetaData(schema=SCHEMA)


def _id(name: str, *, nullable: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=nullable)


def _moment(name: str, *, nullable: bool = False) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable)


def _moment_from_the_beginning(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=text("'-infinity'"))


def _by_the_database(name: str) -> Column[object]:
    """When the database got the row, by its own clock; NULL in rows from before revision a23."""
    return Column(name, DateTime(timezone=True), nullable=True, server_default=text("clock_timestamp()"))


def _tenant() -> Column[object]:
    return Column("tenant_id", UUID(as_uuid=True), nullable=False)


def _needed_by_threads(name: str, what: str) -> Table:
    """Which threads need a thing of their subject, found from either side."""
    return Table(
        name,
        metadata,
        _tenant(),
        _id("subject_id"),
        Column(what, UUID(as_uuid=True), nullable=False),
        _id("thread_id"),
        PrimaryKeyConstraint("tenant_id", "subject_id", what, "thread_id"),
        Index(f"{name}_by_thread", "tenant_id", "subject_id", "thread_id"),
    )


deployment = Table(
    "deployment",
    metadata,
    Column("singleton", Boolean, primary_key=True),
    Column("deployment_id", UUID(as_uuid=True), nullable=False),
)

processes = Table(
    "processes",
    metadata,
    Column("instance", UUID(as_uuid=True), primary_key=True),
    Column("place", Text, nullable=False),
    Column("build", Text, nullable=False),
    Column("features", ARRAY(Text), nullable=False),
    _moment("started_at"),
    _moment("seen_at"),
)

deployment_features = Table(
    "deployment_features",
    metadata,
    Column("feature", Text(collation="C"), primary_key=True),
    _moment("since"),
    Column("mac_format", SmallInteger, nullable=False),
    Column("mac", LargeBinary, nullable=False),
)

accepted_losses = Table(
    "accepted_losses",
    metadata,
    _tenant(),
    Column("loss_id", UUID(as_uuid=True), nullable=False),
    Column("lost", LargeBinary, nullable=False),
    _moment("accepted_at"),
    Column("mac", LargeBinary, nullable=False),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "loss_id"),
)

unbound_imports = Table(
    "unbound_imports",
    metadata,
    _tenant(),
    Column("export_id", UUID(as_uuid=True), nullable=False),
    _moment("accepted_at"),
    Column("mac", LargeBinary, nullable=False),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "export_id"),
)

tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", UUID(as_uuid=True), primary_key=True),
    Column("name", Text, nullable=False),
    _moment("created_at"),
    Column("root", Text, nullable=True),
    _moment("suspended_at", nullable=True),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text(collation="C"), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("tenant_id", UUID(as_uuid=True), nullable=True),
    _id("subject_id", nullable=True),
    Column("permissions", ARRAY(Text), nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("pepper_version", Integer, nullable=False),
    _moment("created_at"),
    _moment("expires_at", nullable=True),
    _moment("revoked_at", nullable=True),
    _moment("last_used_at", nullable=True),
    Index("api_keys_by_tenant", "tenant_id", "created_at", "key_id"),
)

api_key_seals = Table(
    "api_key_seals",
    metadata,
    Column(
        "key_id", Text(collation="C"), ForeignKey("stateroom.api_keys.key_id", ondelete="CASCADE"), primary_key=True
    ),
    Column("tenant_id", UUID(as_uuid=True), nullable=True),
    Column("grants", ARRAY(Text), nullable=False),
    Column("mac", LargeBinary, nullable=False),
    Column("pepper_version", Integer, nullable=False),
)

tenant_keys = Table(
    "tenant_keys",
    metadata,
    _tenant(),
    Column("key_version", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("root_key_id", Text, nullable=False),
    Column("root_key_version", Text, nullable=False),
    Column("wrapped", LargeBinary, nullable=True),
    Column("kcv", LargeBinary, nullable=False),
    _moment("created_at"),
    _moment("destroyed_at", nullable=True),
    PrimaryKeyConstraint("tenant_id", "key_version"),
    Index("tenant_keys_active", "tenant_id", unique=True, postgresql_where=text("state = 'active'")),
)

subject_keys = Table(
    "subject_keys",
    metadata,
    _tenant(),
    _id("subject_id"),
    Column("purpose", Text, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("tenant_key_version", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("wrapped", LargeBinary, nullable=True),
    Column("kcv", LargeBinary, nullable=False),
    _moment("created_at"),
    _moment("destroyed_at", nullable=True),
    _moment("shred_effective_at", nullable=True),
    PrimaryKeyConstraint("tenant_id", "subject_id", "purpose", "key_version"),
    Index(
        "subject_keys_active",
        "tenant_id",
        "subject_id",
        "purpose",
        unique=True,
        postgresql_where=text("state = 'active'"),
    ),
)

threads = Table(
    "threads",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    Column("agent", Text(collation="C"), nullable=True),
    Column("status", Text, nullable=False),
    Column("tier", Text, nullable=False),
    Column("strict", Boolean, nullable=False),
    Column("activity", BigInteger, nullable=False),
    _moment("created_at"),
    _moment("updated_at"),
    Column("seal", LargeBinary, nullable=False),
    Column("client_share", Boolean, nullable=False, server_default=text("false")),
    Column("searchable", ARRAY(Text(collation="C")), nullable=True),
    Column("origin", LargeBinary, nullable=True),
    _by_the_database("began_at"),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id"),
    Index(
        "threads_by_age",
        "tenant_id",
        "subject_id",
        "created_at",
        "thread_id",
        postgresql_where=text("created_at >= '-infinity'"),
    ),
    Index(
        "threads_by_searchable",
        "tenant_id",
        "subject_id",
        "searchable",
        postgresql_where=text("created_at >= '-infinity'"),
    ),
)

heads = Table(
    "heads",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    _id("namespace"),
    _id("head_id"),
    Column("sequence", BigInteger, nullable=False),
    Column("seal", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id", "namespace"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    _id("namespace"),
    _id("checkpoint_id"),
    _id("parent_id", nullable=True),
    Column("step", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("outcome", Text, nullable=True),
    Column("source", Text(collation="C"), nullable=True),
    Column("agent", Text(collation="C"), nullable=True),
    _id("run_id", nullable=True),
    Column("model", Text, nullable=True),
    Column("state_schema", Text(collation="C"), nullable=True),
    Column("state_version", Integer, nullable=True),
    Column("input_tokens", BigInteger, nullable=True),
    Column("output_tokens", BigInteger, nullable=True),
    Column("cost_micros", BigInteger, nullable=True),
    _moment("created_at"),
    Column("key_version", Integer, nullable=False),
    Column("piece_ids", LargeBinary, nullable=False),
    Column("manifest", LargeBinary, nullable=False),
    Column("named_ids", LargeBinary, nullable=True),
    Column("searchable", ARRAY(Text(collation="C")), nullable=True),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id", "namespace", "checkpoint_id"),
    Index(
        "checkpoints_by_age",
        "tenant_id",
        "subject_id",
        "checkpoint_id",
        postgresql_where=text("created_at >= '-infinity'"),
    ),
    Index("checkpoints_by_time", "created_at", postgresql_using="brin"),
    Index(
        "checkpoints_by_run",
        "tenant_id",
        "subject_id",
        "run_id",
        postgresql_where=text("run_id IS NOT NULL"),
    ),
    Index(
        "checkpoints_troubled",
        "tenant_id",
        "status",
        "created_at",
        "step",
        postgresql_where=text("status IN ('failed', 'waiting') OR outcome IS NOT NULL"),
    ),
)

checkpoint_tags = Table(
    "checkpoint_tags",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    _id("namespace"),
    _id("checkpoint_id"),
    Column("tag", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id", "namespace", "checkpoint_id", "tag"),
    ForeignKeyConstraint(
        ["tenant_id", "subject_id", "thread_id", "namespace", "checkpoint_id"],
        [
            "stateroom.checkpoints.tenant_id",
            "stateroom.checkpoints.subject_id",
            "stateroom.checkpoints.thread_id",
            "stateroom.checkpoints.namespace",
            "stateroom.checkpoints.checkpoint_id",
        ],
        ondelete="CASCADE",
    ),
    Index("checkpoint_tags_by_tag", "tenant_id", "subject_id", "tag", "checkpoint_id"),
)

chunks = Table(
    "chunks",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    Column("piece_id", LargeBinary, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("children", LargeBinary, nullable=True),
    Column("envelope", LargeBinary, nullable=False),
    Column("named_ids", LargeBinary, nullable=True),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id", "piece_id"),
)

pending_writes = Table(
    "pending_writes",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    _id("namespace"),
    _id("checkpoint_id"),
    _id("task_id"),
    Column("idx", Integer, nullable=False),
    _id("task_path"),
    Column("channel", Text(collation="C"), nullable=False),
    Column("status", Text, nullable=True),
    _moment("created_at"),
    Column("key_version", Integer, nullable=False),
    Column("piece_ids", LargeBinary, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("member", LargeBinary, nullable=False),
    Column("named_ids", LargeBinary, nullable=True),
    Column("state_schema", Text(collation="C"), nullable=True),
    Column("state_version", Integer, nullable=True),
    _by_the_database("stored_at"),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id", "namespace", "checkpoint_id", "task_id", "idx"),
)

idempotency = Table(
    "idempotency",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("idempotency_key"),
    Column("request_digest", LargeBinary, nullable=False),
    Column("receipt", LargeBinary, nullable=True),
    _moment("created_at"),
    PrimaryKeyConstraint("tenant_id", "subject_id", "idempotency_key"),
)

removed_threads = Table(
    "removed_threads",
    metadata,
    _tenant(),
    _id("subject_id"),
    Column("removal", LargeBinary, nullable=False),
    _moment("removed_at"),
    PrimaryKeyConstraint("tenant_id", "subject_id", "removal"),
)

deployment_keys = Table(
    "deployment_keys",
    metadata,
    Column("purpose", Text, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("provider", Text, nullable=False),
    Column("root_key_id", Text, nullable=False),
    Column("root_key_version", Text, nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
    Column("public", LargeBinary, nullable=False),
    _moment("created_at"),
    PrimaryKeyConstraint("purpose", "key_version"),
)

audit_log = Table(
    "audit_log",
    metadata,
    _tenant(),
    Column("sequence", BigInteger, nullable=False),
    _moment("at"),
    _id("actor"),
    _id("action"),
    _id("target"),
    Column("body", LargeBinary, nullable=False),
    Column("previous", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "sequence"),
)

audit_heads = Table(
    "audit_heads",
    metadata,
    Column("tenant_id", UUID(as_uuid=True), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("anchored", BigInteger, nullable=False, server_default=text("0")),
    Index("audit_heads_to_anchor", "tenant_id", postgresql_where=text("sequence > anchored")),
)

jobs = Table(
    "jobs",
    metadata,
    _tenant(),
    Column("job_id", UUID(as_uuid=True), nullable=False),
    Column("kind", Text, nullable=False),
    _id("target"),
    Column("state", Text, nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=True),
    _id("position"),
    Column("error", Text, nullable=True),
    _moment("lease_until", nullable=True),
    _moment("created_at"),
    _moment("updated_at"),
    Column("note", Text, nullable=True),
    Column("mac", LargeBinary, nullable=True),
    Column("mac_format", SmallInteger, nullable=True),
    Column("waits_for", Text, nullable=True),
    PrimaryKeyConstraint("tenant_id", "job_id"),
    Index("jobs_open", "tenant_id", "created_at", postgresql_where=text("state IN ('queued', 'running')")),
)

blobs = Table(
    "blobs",
    metadata,
    _tenant(),
    _id("subject_id"),
    Column("blob_id", UUID(as_uuid=True), nullable=False),
    Column("content_id", LargeBinary, nullable=True),
    Column("state", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("client_share", Boolean, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("pointer", LargeBinary, nullable=True),
    _moment("created_at"),
    _moment("unreferenced_at", nullable=True),
    _moment("condemned_at", nullable=True),
    Column("place", Text, nullable=False, server_default=text("'blobs'")),
    PrimaryKeyConstraint("tenant_id", "subject_id", "blob_id"),
    Index(
        "blobs_by_content",
        "tenant_id",
        "subject_id",
        "content_id",
        unique=True,
        postgresql_where=text("state = 'live' AND content_id IS NOT NULL"),
    ),
    Index("blobs_by_object", "tenant_id", "blob_id"),
    Index(
        "blobs_unreferenced",
        "tenant_id",
        "subject_id",
        "unreferenced_at",
        postgresql_where=text("state = 'live' AND unreferenced_at IS NOT NULL"),
    ),
    Index(
        "blobs_condemned",
        "tenant_id",
        "subject_id",
        "condemned_at",
        postgresql_where=text("state = 'condemned'"),
    ),
)

blob_intents = Table(
    "blob_intents",
    metadata,
    _tenant(),
    _id("subject_id"),
    Column("blob_id", UUID(as_uuid=True), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("content_id", LargeBinary, nullable=True),
    Column("multipart_id", Text, nullable=True),
    Column("state", Text, nullable=False),
    Column("reserved_bytes", BigInteger, nullable=False),
    Column("client_share", Boolean, nullable=False),
    Column("key_version", Integer, nullable=False),
    Column("record", LargeBinary, nullable=True),
    _moment("created_at"),
    _moment("expires_at"),
    _moment("removed_at", nullable=True),
    Column("place", Text, nullable=False, server_default=text("'blobs'")),
    PrimaryKeyConstraint("tenant_id", "subject_id", "blob_id"),
    Index("blob_intents_by_object", "tenant_id", "blob_id"),
    Index("blob_intents_by_expiry", "tenant_id", "subject_id", "expires_at"),
)

upload_parts = Table(
    "upload_parts",
    metadata,
    _tenant(),
    _id("subject_id"),
    Column("blob_id", UUID(as_uuid=True), nullable=False),
    Column("number", Integer, nullable=False),
    Column("etag", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "subject_id", "blob_id", "number"),
)

blob_refs = _needed_by_threads("blob_refs", "blob_id")

artifacts = Table(
    "artifacts",
    metadata,
    _tenant(),
    _id("subject_id"),
    Column("artifact_id", UUID(as_uuid=True), nullable=False),
    _id("thread_id"),
    Column("name_digest", LargeBinary, nullable=False),
    Column("number", Integer, nullable=False),
    Column("blob_id", UUID(as_uuid=True), nullable=False),
    Column("url_epoch", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("client_share", Boolean, nullable=False),
    Column("key_version", Integer, nullable=False),
    _moment("created_at"),
    Column("sealed", LargeBinary, nullable=False),
    PrimaryKeyConstraint("tenant_id", "subject_id", "artifact_id"),
    Index("artifacts_by_name", "tenant_id", "subject_id", "thread_id", "name_digest", "number", unique=True),
    Index("artifacts_by_thread", "tenant_id", "subject_id", "thread_id", "artifact_id"),
    Index("artifacts_by_blob", "tenant_id", "subject_id", "blob_id"),
)

artifact_refs = _needed_by_threads("artifact_refs", "artifact_id")

blob_usage = Table(
    "blob_usage",
    metadata,
    Column("tenant_id", UUID(as_uuid=True), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("quota_bytes", BigInteger, nullable=True),
    _moment_from_the_beginning("sweep_after"),
    _moment_from_the_beginning("walk_after"),
    Column("swept_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("due_since", DateTime(timezone=True), nullable=True),
    Column("census", JSONB, nullable=False, server_default=text("'{}'")),
    Index("blob_usage_by_sweep", "sweep_after"),
)

row_usage = Table(
    "row_usage",
    metadata,
    Column("tenant_id", UUID(as_uuid=True), primary_key=True),
    Column("bytes", BigInteger, nullable=True),
    Column("quota_bytes", BigInteger, nullable=True),
    _moment("counted_at", nullable=True),
    _moment_from_the_beginning("count_after"),
)

archives = Table(
    "archives",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    Column("blob_id", UUID(as_uuid=True), nullable=False),
    Column("activity", BigInteger, nullable=False),
    Column("key_versions", ARRAY(Integer), nullable=False),
    Column("client_share", Boolean, nullable=False),
    Column("checkpoints", Integer, nullable=False),
    Column("pending_writes", Integer, nullable=False),
    Column("chunks", Integer, nullable=False),
    Column("hot_bytes", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("run_ids", ARRAY(Text(collation="C")), nullable=False),
    Column("state_schemas", ARRAY(Text(collation="C")), nullable=False),
    Column("agents", ARRAY(Text(collation="C")), nullable=False),
    Column("named_ids", LargeBinary, nullable=True),
    Column("storage_class", Text(collation="C"), nullable=False),
    _moment("created_at"),
    Column("key_version", Integer, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    _by_the_database("stored_at"),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id"),
)

state_schemas = Table(
    "state_schemas",
    metadata,
    _tenant(),
    Column("schema", Text(collation="C"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("definition", LargeBinary, nullable=False),
    _moment("created_at"),
    Column("mac", LargeBinary, nullable=True),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "schema", "number"),
)

state_adoptions = Table(
    "state_adoptions",
    metadata,
    _tenant(),
    Column("agent", Text(collation="C"), nullable=False),
    Column("namespace", Text(collation="C"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state_schema", Text(collation="C"), nullable=False),
    Column("state_version", Integer, nullable=False),
    _moment("adopted_at"),
    Column("mac", LargeBinary, nullable=False),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "agent", "namespace", "number"),
)

save_policies = Table(
    "save_policies",
    metadata,
    _tenant(),
    _id("agent"),
    Column("strict", Boolean, nullable=False),
    _moment("updated_at"),
    Column("mac", LargeBinary, nullable=False),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "agent"),
)

retention = Table(
    "retention",
    metadata,
    _tenant(),
    Column("level", Text, nullable=False),
    _id("target"),
    Column("policy", LargeBinary, nullable=False),
    Column("legal_hold", Boolean, nullable=False),
    _moment("updated_at"),
    Column("mac", LargeBinary, nullable=True),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "level", "target"),
)

thread_retention = Table(
    "thread_retention",
    metadata,
    _tenant(),
    _id("subject_id"),
    _id("thread_id"),
    Column("policy", LargeBinary, nullable=False),
    Column("legal_hold", Boolean, nullable=False),
    _moment("updated_at"),
    Column("mac", LargeBinary, nullable=True),
    Column("mac_format", SmallInteger, nullable=True),
    PrimaryKeyConstraint("tenant_id", "subject_id", "thread_id"),
)

retention_rounds = Table(
    "retention_rounds",
    metadata,
    Column("tenant_id", UUID(as_uuid=True), primary_key=True),
    _moment_from_the_beginning("due_at"),
    _moment("lease_until", nullable=True),
    _moment("started_at", nullable=True),
    Column("progress", LargeBinary, nullable=True),
    _moment("thinned_until", nullable=True),
    Column("finished_at", DateTime(timezone=True), nullable=False, server_default=text("clock_timestamp()")),
    Column("census", JSONB, nullable=False, server_default=text("'{}'")),
    Index("retention_rounds_by_due", "due_at"),
)

TENANT_TABLES = (
    tenant_keys,
    audit_log,
    audit_heads,
    jobs,
    blob_usage,
    row_usage,
    state_schemas,
    state_adoptions,
    save_policies,
    retention,
    retention_rounds,
)
SUBJECT_TABLES = (
    subject_keys,
    threads,
    heads,
    checkpoints,
    checkpoint_tags,
    chunks,
    pending_writes,
    idempotency,
    removed_threads,
    blobs,
    blob_intents,
    upload_parts,
    blob_refs,
    artifacts,
    artifact_refs,
    archives,
    thread_retention,
)
