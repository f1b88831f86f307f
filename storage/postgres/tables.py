"""The tables as SQLAlchemy metadata: statements on many tables are made of it, and revisions are checked against it.

Row-level security, roles and grants are not expressible here; they live in the migrations. Every PRIMARY KEY and
UNIQUE of a tenant's table begins with ``tenant_id``, and of a subject's with ``tenant_id, subject_id``, so that no
constraint crosses tenants, which is one of the conditions for tables distributed by tenant. Identifiers collate
bytewise.
"""

from collections.abc import Iterator
from typing import Any

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
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

SCHEMA = "stateroom"
ID = Text(collation="C")
MOMENT = DateTime(timezone=True)

metadata = MetaData(schema=SCHEMA)


def _columns(
    kind: type[TypeEngine[Any]] | TypeEngine[Any],
    *names: str,
    nullable: bool = False,
    default: str | None = None,
) -> Iterator[Column[object]]:
    """Columns of one type."""
    for name in names:
        yield Column(name, kind, nullable=nullable, server_default=None if default is None else text(default))


def _index(name: str, columns: str, *, where: str | None = None, unique: bool = False) -> Index:
    return Index(name, *columns.split(), unique=unique, postgresql_where=None if where is None else text(where))


def _table(name: str, key: str, *items: SchemaItem) -> Table:
    """A table with its primary key, the names of its columns."""
    return Table(name, metadata, *items, PrimaryKeyConstraint(*key.split()))


def _tenant_table(name: str, key: str, *items: SchemaItem) -> Table:
    """A table of tenants; ``key`` is what tells a tenant's rows apart."""
    return _table(name, f"tenant_id {key}", *_columns(UUID, "tenant_id"), *items)


def _subject_table(name: str, key: str, *items: SchemaItem) -> Table:
    return _tenant_table(name, f"subject_id {key}", *_columns(ID, "subject_id"), *items)


def _thread_table(name: str, key: str, *items: SchemaItem) -> Table:
    return _subject_table(name, f"thread_id {key}", *_columns(ID, "thread_id"), *items)


def _event() -> Iterator[Column[object]]:
    """What an event says. It may be of no subject, so that the subject, which is empty then, is in no key."""
    yield from _columns(ID, "subject_id")
    yield from _columns(UUID, "event_id")
    yield from _columns(Text, "type")
    yield from _columns(MOMENT, "at", default="clock_timestamp()")
    yield from _columns(Text, "stream_kind")
    yield from _columns(ID, "stream_id", "incarnation")
    yield from _columns(BigInteger, "stream_sequence")
    yield from _columns(ID, "thread_id", "namespace", "checkpoint_id", "run_id", "agent", nullable=True)
    yield from _columns(Text, "status", nullable=True)
    yield from _columns(UUID, "job_id", nullable=True)
    yield from _columns(ID, "key_id", nullable=True)
    yield from _columns(Text, "subject_tag", nullable=True)


_table(
    "deployment",
    "singleton",
    *_columns(Boolean, "singleton"),
    *_columns(UUID, "deployment_id"),
)

_table(
    "processes",
    "instance",
    *_columns(UUID, "instance"),
    *_columns(Text, "place", "build"),
    *_columns(ARRAY(Text), "features"),
    *_columns(MOMENT, "started_at", "seen_at"),
)

_table(
    "deployment_features",
    "feature",
    *_columns(ID, "feature"),
    *_columns(MOMENT, "since"),
    *_columns(SmallInteger, "mac_format"),
    *_columns(LargeBinary, "mac"),
)

_tenant_table(
    "accepted_losses",
    "loss_id",
    *_columns(UUID, "loss_id"),
    *_columns(LargeBinary, "lost"),
    *_columns(MOMENT, "accepted_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "unbound_imports",
    "export_id",
    *_columns(UUID, "export_id"),
    *_columns(MOMENT, "accepted_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "tenants",
    "",
    *_columns(Text, "name"),
    *_columns(MOMENT, "created_at"),
    *_columns(Text, "root", nullable=True),
    *_columns(MOMENT, "suspended_at", nullable=True),
)

_table(
    "api_keys",
    "key_id",
    *_columns(ID, "key_id"),
    *_columns(Text, "kind", "name"),
    *_columns(UUID, "tenant_id", nullable=True),
    *_columns(ID, "subject_id", nullable=True),
    *_columns(ARRAY(Text), "permissions"),
    *_columns(LargeBinary, "mac"),
    *_columns(Integer, "pepper_version"),
    *_columns(MOMENT, "created_at"),
    *_columns(MOMENT, "expires_at", "revoked_at", "last_used_at", nullable=True),
    _index("api_keys_by_tenant", "tenant_id created_at key_id"),
)

_table(
    "api_key_seals",
    "key_id",
    Column("key_id", ID, ForeignKey("stateroom.api_keys.key_id", ondelete="CASCADE")),
    *_columns(UUID, "tenant_id", nullable=True),
    *_columns(ARRAY(Text), "grants"),
    *_columns(LargeBinary, "mac"),
    *_columns(Integer, "pepper_version"),
)

_tenant_table(
    "tenant_keys",
    "key_version",
    *_columns(Integer, "key_version"),
    *_columns(Text, "state", "provider", "root_key_id", "root_key_version"),
    *_columns(LargeBinary, "wrapped", nullable=True),
    *_columns(LargeBinary, "kcv"),
    *_columns(MOMENT, "created_at"),
    *_columns(MOMENT, "destroyed_at", nullable=True),
    _index("tenant_keys_active", "tenant_id", where="state = 'active'", unique=True),
)

_subject_table(
    "subject_keys",
    "purpose key_version",
    *_columns(Text, "purpose"),
    *_columns(Integer, "key_version", "tenant_key_version"),
    *_columns(Text, "state"),
    *_columns(LargeBinary, "wrapped", nullable=True),
    *_columns(LargeBinary, "kcv"),
    *_columns(MOMENT, "created_at"),
    *_columns(MOMENT, "destroyed_at", "shred_effective_at", nullable=True),
    _index("subject_keys_active", "tenant_id subject_id purpose", where="state = 'active'", unique=True),
)

_thread_table(
    "threads",
    "",
    *_columns(ID, "agent", nullable=True),
    *_columns(Text, "status", "tier"),
    *_columns(Boolean, "strict"),
    *_columns(BigInteger, "activity"),
    *_columns(MOMENT, "created_at", "updated_at"),
    *_columns(LargeBinary, "seal"),
    *_columns(Boolean, "client_share", default="false"),
    *_columns(ARRAY(ID), "searchable", nullable=True),
    *_columns(LargeBinary, "origin", nullable=True),
    *_columns(MOMENT, "began_at", nullable=True, default="clock_timestamp()"),
    *_columns(LargeBinary, "cold", "cold_namespaces", nullable=True),
    *_columns(ID, "parent_thread_id", nullable=True),
    *_columns(BigInteger, "fence", default="0"),
    *_columns(MOMENT, "claimed_until", nullable=True),
    *_columns(Integer, "claim_seconds", default="0"),
    *_columns(Boolean, "claims_required", default="false"),
    *_columns(Integer, "open_approvals", default="0"),
    _index("threads_by_age", "tenant_id subject_id created_at thread_id", where="created_at >= '-infinity'"),
    _index("threads_by_searchable", "tenant_id subject_id searchable", where="created_at >= '-infinity'"),
    _index(
        "threads_by_parent",
        "tenant_id subject_id parent_thread_id created_at thread_id",
        where="parent_thread_id IS NOT NULL",
    ),
)

_thread_table(
    "ledger_seals",
    "",
    *_columns(BigInteger, "sequence"),
    *_columns(LargeBinary, "seal"),
)

_thread_table(
    "claims",
    "",
    *_columns(BigInteger, "fence"),
    *_columns(ID, "holder"),
    *_columns(ID, "run_id", nullable=True),
    *_columns(Integer, "lease_seconds"),
    *_columns(MOMENT, "claimed_at"),
    *_columns(Integer, "takeovers"),
    *_columns(BigInteger, "activity"),
    *_columns(Text, "status"),
    *_columns(Boolean, "required", "client_share"),
    *_columns(LargeBinary, "note", "note_member", nullable=True),
    *_columns(LargeBinary, "mac"),
    _index("claims_open", "tenant_id subject_id thread_id", where="status <> 'released'"),
)

_thread_table(
    "effects",
    "namespace name_mac execution",
    *_columns(ID, "namespace"),
    *_columns(LargeBinary, "name_mac"),
    *_columns(Integer, "execution", "attempt"),
    *_columns(Text, "mode", "status"),
    *_columns(LargeBinary, "intent_mac"),
    *_columns(UUID, "provider_key"),
    *_columns(ID, "anchor_checkpoint_id", "run_id", nullable=True),
    *_columns(BigInteger, "fence"),
    *_columns(MOMENT, "created_at", "started_at", "leased_until"),
    *_columns(MOMENT, "finished_at", nullable=True),
    *_columns(ID, "started_by"),
    *_columns(ID, "resolved_by", nullable=True),
    *_columns(Text, "result_state"),
    *_columns(BigInteger, "result_bytes", nullable=True),
    *_columns(UUID, "artifact_id", "approval_id", nullable=True),
    *_columns(Integer, "approval_position", nullable=True),
    *_columns(Boolean, "copied", "client_share"),
    *_columns(LargeBinary, "asked", "asked_member", "args", "args_member"),
    *_columns(LargeBinary, "outcome", "outcome_member", "result", "result_member", nullable=True),
    *_columns(LargeBinary, "mac"),
    _index("effects_by_intent", "tenant_id subject_id thread_id intent_mac"),
    _index(
        "effects_open",
        "tenant_id subject_id thread_id namespace name_mac execution",
        where="status IN ('started', 'unknown')",
    ),
)

_subject_table(
    "effect_tombstones",
    "tombstone",
    *_columns(LargeBinary, "tombstone"),
    *_columns(MOMENT, "removed_at"),
)

_thread_table(
    "approvals",
    "approval_id",
    *_columns(UUID, "approval_id"),
    *_columns(ID, "namespace"),
    *_columns(ID, "checkpoint_id", "run_id", "agent", nullable=True),
    *_columns(Text, "kind"),
    *_columns(LargeBinary, "external_mac", "asked_mac", "action_mac"),
    *_columns(Text, "status"),
    *_columns(ARRAY(Text), "allowed"),
    *_columns(ID, "requested_by", "requested_principal"),
    *_columns(MOMENT, "created_at", "expires_at"),
    *_columns(MOMENT, "valid_until", "decided_at", nullable=True),
    *_columns(Integer, "decisions_needed"),
    *_columns(Boolean, "requester_may_approve", "edit_allowed"),
    *_columns(Integer, "valid_seconds"),
    *_columns(Boolean, "asserted_count"),
    *_columns(BigInteger, "revision"),
    *_columns(Boolean, "client_share", "has_display"),
    *_columns(LargeBinary, "request", "request_member"),
    *_columns(LargeBinary, "display", "display_member", "decision", "decision_member", nullable=True),
    *_columns(LargeBinary, "mac"),
    _index(
        "approvals_asked",
        "tenant_id subject_id thread_id namespace external_mac asked_mac",
        where="status = 'pending'",
        unique=True,
    ),
    _index("approvals_by_age", "tenant_id approval_id"),
    _index("approvals_pending", "tenant_id approval_id", where="status = 'pending'"),
    _index("approvals_by_expiry", "tenant_id expires_at", where="status = 'pending'"),
)

_thread_table(
    "approval_actions",
    "approval_id position",
    *_columns(UUID, "approval_id"),
    *_columns(Integer, "position"),
    *_columns(LargeBinary, "action_mac"),
    *_columns(Text, "status"),
    *_columns(Text, "verdict", nullable=True),
    *_columns(LargeBinary, "effect_name_mac", nullable=True),
    *_columns(Boolean, "edited"),
    *_columns(LargeBinary, "mac"),
)

_thread_table(
    "approval_votes",
    "approval_id principal asserted",
    *_columns(UUID, "approval_id"),
    *_columns(ID, "principal", "key_id", "counts_as"),
    *_columns(ARRAY(Text), "verdicts"),
    *_columns(LargeBinary, "digest"),
    *_columns(MOMENT, "at"),
    *_columns(Boolean, "asserted"),
    *_columns(LargeBinary, "mac"),
)

_tenant_table(
    "approval_policies",
    "agent tool",
    *_columns(ID, "agent", "tool"),
    *_columns(Boolean, "required"),
    *_columns(Integer, "decisions_needed"),
    *_columns(Boolean, "requester_may_approve", "edit_allowed"),
    *_columns(Integer, "expires_seconds", "valid_seconds"),
    *_columns(Boolean, "asserted_count"),
    *_columns(MOMENT, "updated_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_thread_table(
    "heads",
    "namespace",
    *_columns(ID, "namespace", "head_id"),
    *_columns(BigInteger, "sequence"),
    *_columns(LargeBinary, "seal"),
)

_thread_table(
    "checkpoints",
    "namespace checkpoint_id",
    *_columns(ID, "namespace", "checkpoint_id"),
    *_columns(ID, "parent_id", nullable=True),
    *_columns(Integer, "step"),
    *_columns(Text, "status"),
    *_columns(Text, "outcome", nullable=True),
    *_columns(ID, "source", "agent", "run_id", nullable=True),
    *_columns(Text, "model", nullable=True),
    *_columns(ID, "state_schema", nullable=True),
    *_columns(Integer, "state_version", nullable=True),
    *_columns(BigInteger, "input_tokens", "output_tokens", "cost_micros", nullable=True),
    *_columns(MOMENT, "created_at"),
    *_columns(Integer, "key_version"),
    *_columns(LargeBinary, "piece_ids", "manifest"),
    *_columns(LargeBinary, "named_ids", nullable=True),
    *_columns(ARRAY(ID), "searchable", nullable=True),
    _index("checkpoints_by_age", "tenant_id subject_id checkpoint_id", where="created_at >= '-infinity'"),
    _index("checkpoints_by_run", "tenant_id subject_id run_id", where="run_id IS NOT NULL"),
    Index("checkpoints_by_time", "created_at", postgresql_using="brin"),
    _index(
        "checkpoints_troubled",
        "tenant_id status created_at step",
        where="status IN ('failed', 'waiting') OR outcome IS NOT NULL",
    ),
)

_thread_table(
    "checkpoint_tags",
    "namespace checkpoint_id tag",
    *_columns(ID, "namespace", "checkpoint_id"),
    *_columns(LargeBinary, "tag"),
    ForeignKeyConstraint(
        (key := ["tenant_id", "subject_id", "thread_id", "namespace", "checkpoint_id"]),
        [f"{SCHEMA}.checkpoints.{each}" for each in key],
        ondelete="CASCADE",
    ),
    _index("checkpoint_tags_by_tag", "tenant_id subject_id tag checkpoint_id"),
)

_thread_table(
    "chunks",
    "piece_id",
    *_columns(LargeBinary, "piece_id"),
    *_columns(Integer, "key_version"),
    *_columns(LargeBinary, "children", nullable=True),
    *_columns(LargeBinary, "envelope"),
    *_columns(LargeBinary, "named_ids", nullable=True),
)

_thread_table(
    "pending_writes",
    "namespace checkpoint_id task_id idx",
    *_columns(ID, "namespace", "checkpoint_id", "task_id"),
    *_columns(Integer, "idx"),
    *_columns(ID, "task_path", "channel"),
    *_columns(Text, "status", nullable=True),
    *_columns(MOMENT, "created_at"),
    *_columns(Integer, "key_version"),
    *_columns(LargeBinary, "piece_ids", "value", "member"),
    *_columns(LargeBinary, "named_ids", nullable=True),
    *_columns(ID, "state_schema", nullable=True),
    *_columns(Integer, "state_version", nullable=True),
    *_columns(MOMENT, "stored_at", nullable=True, default="clock_timestamp()"),
)

_subject_table(
    "idempotency",
    "idempotency_key",
    *_columns(ID, "idempotency_key"),
    *_columns(LargeBinary, "request_digest"),
    *_columns(LargeBinary, "receipt", nullable=True),
    *_columns(MOMENT, "created_at"),
)

_subject_table(
    "removed_threads",
    "removal",
    *_columns(LargeBinary, "removal"),
    *_columns(MOMENT, "removed_at"),
)

_table(
    "deployment_keys",
    "purpose key_version",
    *_columns(Text, "purpose"),
    *_columns(Integer, "key_version"),
    *_columns(Text, "provider", "root_key_id", "root_key_version"),
    *_columns(LargeBinary, "wrapped", "public"),
    *_columns(MOMENT, "created_at"),
)

_tenant_table(
    "audit_log",
    "sequence",
    *_columns(BigInteger, "sequence"),
    *_columns(MOMENT, "at"),
    *_columns(ID, "actor", "action", "target"),
    *_columns(LargeBinary, "body", "previous", "hash"),
)

_tenant_table(
    "audit_heads",
    "",
    *_columns(BigInteger, "sequence"),
    *_columns(LargeBinary, "hash"),
    *_columns(BigInteger, "anchored", default="0"),
    _index("audit_heads_to_anchor", "tenant_id", where="sequence > anchored"),
)

_tenant_table(
    "jobs",
    "job_id",
    *_columns(UUID, "job_id"),
    *_columns(Text, "kind"),
    *_columns(ID, "target"),
    *_columns(Text, "state"),
    *_columns(BigInteger, "done"),
    *_columns(BigInteger, "total", nullable=True),
    *_columns(ID, "position"),
    *_columns(Text, "error", nullable=True),
    *_columns(MOMENT, "lease_until", nullable=True),
    *_columns(MOMENT, "created_at", "updated_at"),
    *_columns(Text, "note", nullable=True),
    *_columns(LargeBinary, "mac", nullable=True),
    *_columns(SmallInteger, "mac_format", nullable=True),
    *_columns(Text, "waits_for", nullable=True),
    _index("jobs_open", "tenant_id created_at", where="state IN ('queued', 'running')"),
)

_subject_table(
    "blobs",
    "blob_id",
    *_columns(UUID, "blob_id"),
    *_columns(LargeBinary, "content_id", nullable=True),
    *_columns(Text, "state"),
    *_columns(BigInteger, "size_bytes"),
    *_columns(Boolean, "client_share"),
    *_columns(Integer, "key_version"),
    *_columns(LargeBinary, "pointer", nullable=True),
    *_columns(MOMENT, "created_at"),
    *_columns(MOMENT, "unreferenced_at", "condemned_at", nullable=True),
    *_columns(Text, "place", default="'blobs'"),
    _index(
        "blobs_by_content",
        "tenant_id subject_id content_id",
        where="state = 'live' AND content_id IS NOT NULL",
        unique=True,
    ),
    _index("blobs_by_object", "tenant_id blob_id"),
    _index("blobs_condemned", "tenant_id subject_id condemned_at", where="state = 'condemned'"),
    _index(
        "blobs_unreferenced",
        "tenant_id subject_id unreferenced_at",
        where="state = 'live' AND unreferenced_at IS NOT NULL",
    ),
)

_subject_table(
    "blob_intents",
    "blob_id",
    *_columns(UUID, "blob_id"),
    *_columns(Text, "purpose"),
    *_columns(LargeBinary, "content_id", nullable=True),
    *_columns(Text, "multipart_id", nullable=True),
    *_columns(Text, "state"),
    *_columns(BigInteger, "reserved_bytes"),
    *_columns(Boolean, "client_share"),
    *_columns(Integer, "key_version"),
    *_columns(LargeBinary, "record", nullable=True),
    *_columns(MOMENT, "created_at", "expires_at"),
    *_columns(MOMENT, "removed_at", nullable=True),
    *_columns(Text, "place", default="'blobs'"),
    _index("blob_intents_by_expiry", "tenant_id subject_id expires_at"),
    _index("blob_intents_by_object", "tenant_id blob_id"),
)

_subject_table(
    "upload_parts",
    "blob_id number",
    *_columns(UUID, "blob_id"),
    *_columns(Integer, "number"),
    *_columns(Text, "etag"),
    *_columns(BigInteger, "size_bytes"),
    *_columns(LargeBinary, "digest"),
)

_subject_table(
    "blob_refs",
    "blob_id thread_id",
    *_columns(UUID, "blob_id"),
    *_columns(ID, "thread_id"),
    _index("blob_refs_by_thread", "tenant_id subject_id thread_id"),
)

_subject_table(
    "artifacts",
    "artifact_id",
    *_columns(UUID, "artifact_id"),
    *_columns(ID, "thread_id"),
    *_columns(LargeBinary, "name_digest"),
    *_columns(Integer, "number"),
    *_columns(UUID, "blob_id"),
    *_columns(Integer, "url_epoch"),
    *_columns(BigInteger, "size_bytes"),
    *_columns(Boolean, "client_share"),
    *_columns(Integer, "key_version"),
    *_columns(MOMENT, "created_at"),
    *_columns(LargeBinary, "sealed"),
    _index("artifacts_by_blob", "tenant_id subject_id blob_id"),
    _index("artifacts_by_name", "tenant_id subject_id thread_id name_digest number", unique=True),
    _index("artifacts_by_thread", "tenant_id subject_id thread_id artifact_id"),
)

_subject_table(
    "artifact_refs",
    "artifact_id thread_id",
    *_columns(UUID, "artifact_id"),
    *_columns(ID, "thread_id"),
    _index("artifact_refs_by_thread", "tenant_id subject_id thread_id"),
)

_subject_table(
    "item_scopes",
    "",
    *_columns(BigInteger, "sequence"),
    *_columns(LargeBinary, "seal"),
)

_subject_table(
    "item_paths",
    "path_id",
    *_columns(LargeBinary, "path_id"),
    *_columns(LargeBinary, "share_check", nullable=True),
    *_columns(BigInteger, "sequence"),
    *_columns(LargeBinary, "seal", "labels"),
)

_subject_table(
    "items",
    "path_id key_id",
    *_columns(LargeBinary, "path_id", "key_id"),
    *_columns(BigInteger, "revision"),
    *_columns(Integer, "ttl_seconds", nullable=True),
    *_columns(MOMENT, "created_at", "updated_at"),
    *_columns(MOMENT, "expires_at", nullable=True),
    *_columns(LargeBinary, "member", "envelope"),
    *_columns(Boolean, "indexed", default="false"),
    _index("items_by_update", "tenant_id subject_id updated_at path_id key_id", where="revision > 0"),
    _index("items_by_update_of_path", "tenant_id subject_id path_id updated_at key_id", where="revision > 0"),
    _index("items_by_expiry", "tenant_id expires_at subject_id", where="expires_at IS NOT NULL"),
)

_subject_table(
    "item_vectors",
    "path_id key_id model_id",
    *_columns(LargeBinary, "path_id", "key_id", "model_id"),
    *_columns(BigInteger, "revision", "sequence"),
    *_columns(LargeBinary, "member", "envelope"),
    _index("item_vectors_by_change", "tenant_id subject_id path_id model_id sequence", where="sequence > 0"),
)

_tenant_table(
    "blob_usage",
    "",
    *_columns(BigInteger, "bytes"),
    *_columns(BigInteger, "quota_bytes", nullable=True),
    *_columns(MOMENT, "sweep_after", "walk_after", default="'-infinity'"),
    *_columns(MOMENT, "swept_at", default="clock_timestamp()"),
    *_columns(MOMENT, "due_since", nullable=True),
    *_columns(JSONB, "census", default="'{}'"),
    _index("blob_usage_by_sweep", "sweep_after"),
)

_tenant_table(
    "row_usage",
    "",
    *_columns(BigInteger, "bytes", "quota_bytes", nullable=True),
    *_columns(MOMENT, "counted_at", nullable=True),
    *_columns(MOMENT, "count_after", default="'-infinity'"),
)

_thread_table(
    "archives",
    "segment",
    *_columns(UUID, "blob_id"),
    *_columns(BigInteger, "activity"),
    *_columns(ARRAY(Integer), "key_versions"),
    *_columns(Boolean, "client_share"),
    *_columns(Integer, "checkpoints", "pending_writes", "chunks"),
    *_columns(BigInteger, "hot_bytes", "size_bytes"),
    *_columns(ARRAY(ID), "run_ids", "state_schemas", "agents"),
    *_columns(LargeBinary, "named_ids", nullable=True),
    *_columns(ID, "storage_class"),
    *_columns(MOMENT, "created_at"),
    *_columns(Integer, "key_version"),
    *_columns(LargeBinary, "sealed"),
    *_columns(MOMENT, "stored_at", nullable=True, default="clock_timestamp()"),
    *_columns(Integer, "segment", "volume", default="0"),
    *_columns(ID, "first_id", "last_id", default="''::text"),
    *_columns(LargeBinary, "listed", nullable=True),
)

_tenant_table(
    "state_schemas",
    "schema number",
    *_columns(ID, "schema"),
    *_columns(Integer, "number"),
    *_columns(LargeBinary, "definition"),
    *_columns(MOMENT, "created_at"),
    *_columns(LargeBinary, "mac", nullable=True),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "state_adoptions",
    "agent namespace number",
    *_columns(ID, "agent", "namespace"),
    *_columns(Integer, "number"),
    *_columns(ID, "state_schema"),
    *_columns(Integer, "state_version"),
    *_columns(MOMENT, "adopted_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "save_policies",
    "agent",
    *_columns(ID, "agent"),
    *_columns(Boolean, "strict", nullable=True),
    *_columns(BigInteger, "compact_elements", "compact_bytes", nullable=True),
    *_columns(MOMENT, "updated_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "vector_policies",
    "",
    *_columns(Text, "vectors", "accepted"),
    *_columns(Boolean, "complete"),
    *_columns(MOMENT, "updated_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "event_settings",
    "",
    *_columns(Boolean, "is_on"),
    *_columns(MOMENT, "since", nullable=True),
    *_columns(MOMENT, "changed_at"),
    *_columns(LargeBinary, "mac"),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "event_queue",
    "event_id",
    *_event(),
    _index("event_queue_by_stream", "tenant_id stream_kind stream_id incarnation stream_sequence at"),
)

_tenant_table("events", "sequence", *_columns(BigInteger, "sequence"), *_event())

_tenant_table("event_counters", "", *_columns(BigInteger, "next_sequence", "oldest_sequence"))

_tenant_table(
    "event_relays",
    "",
    *_columns(MOMENT, "due_at", "leased_until", nullable=True),
    _index("event_relays_due", "due_at", where="due_at IS NOT NULL"),
)

_tenant_table("tenant_streams", "", *_columns(BigInteger, "next"))

_tenant_table(
    "retention",
    "level target",
    *_columns(Text, "level"),
    *_columns(ID, "target"),
    *_columns(LargeBinary, "policy"),
    *_columns(Boolean, "legal_hold"),
    *_columns(MOMENT, "updated_at"),
    *_columns(LargeBinary, "mac", nullable=True),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_thread_table(
    "thread_retention",
    "",
    *_columns(LargeBinary, "policy"),
    *_columns(Boolean, "legal_hold"),
    *_columns(MOMENT, "updated_at"),
    *_columns(LargeBinary, "mac", nullable=True),
    *_columns(SmallInteger, "mac_format", nullable=True),
)

_tenant_table(
    "retention_rounds",
    "",
    *_columns(MOMENT, "due_at", default="'-infinity'"),
    *_columns(MOMENT, "lease_until", "started_at", nullable=True),
    *_columns(LargeBinary, "progress", nullable=True),
    *_columns(MOMENT, "thinned_until", nullable=True),
    *_columns(MOMENT, "finished_at", default="clock_timestamp()"),
    *_columns(JSONB, "census", default="'{}'"),
    *_columns(MOMENT, "approvals_due_at", nullable=True),
    _index("retention_rounds_by_due", "due_at"),
    _index("retention_rounds_by_approvals", "approvals_due_at", where="approvals_due_at IS NOT NULL"),
)


# Whose rows belong to a subject.
SUBJECT_TABLES = tuple(each for each in metadata.tables.values() if "subject_id" in each.primary_key.columns)

# What an operator may have made beside the revisions (`storage.postgres.pgvector`); of subjects, too.
CLEAR_VECTORS = Table(
    "item_clear_vectors",
    MetaData(schema=SCHEMA),
    *_columns(UUID, "tenant_id"),
    *_columns(ID, "subject_id"),
    *_columns(LargeBinary, "path_id", "key_id", "model_id"),
    *_columns(SmallInteger, "number"),
    *_columns(BigInteger, "revision", "sequence"),
    *_columns(LargeBinary, "embedding"),  # of a type of the extension
    PrimaryKeyConstraint("tenant_id", "subject_id", "path_id", "key_id", "model_id", "number"),
)
