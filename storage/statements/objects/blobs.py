"""Statements on blobs, intents, references and quotas; `storage.ledger.ledger` says in which order they are safe.

What expires goes by the database's clock: gateways need not agree on the time. The clock is `statement_timestamp()`,
which is one moment for the whole statement and may stand in an UPDATE on one server and on many. A statement that
waited for a lock is then at most the lock timeout (5 s) behind. That matters nowhere here: a lease, an open intent
(a day), a tombstone (a day) and the grace period (an hour) only begin so much earlier, and each is longer than what it
waits for by minutes. Nor is anything removed sooner than a backup needs it: `CONDEMN` comes after `LOCK_UNREFERENCED`
took the same locks, and so waits for none; `CONDEMN_SUBJECT` comes when the subject's keys are destroyed and every
transaction from before that has ended, so that a backup which could open a blob is older than both moments.
"""

from datetime import datetime
from uuid import UUID

from msgspec import Struct

from storage.model import Bucket, Purpose
from storage.postgres.statement import Statement, columns

# --- quota ---------------------------------------------------------------------------------------------------------

# No row: over the quota. One statement, so that two reservations cannot both take the last bytes.
RESERVE_BYTES = Statement(
    """
INSERT INTO stateroom.blob_usage AS u (tenant_id, bytes) VALUES (:tenant_id, :amount)
ON CONFLICT (tenant_id) DO UPDATE SET bytes = u.bytes + excluded.bytes
WHERE u.quota_bytes IS NULL OR u.bytes + excluded.bytes <= u.quota_bytes
RETURNING bytes
""",
    int,
)
# For what is stored already, whatever the quota says. Negative: freed.
COUNT_BYTES = Statement("""
INSERT INTO stateroom.blob_usage AS u (tenant_id, bytes) VALUES (:tenant_id, greatest(:amount::bigint, 0))
ON CONFLICT (tenant_id) DO UPDATE SET bytes = greatest(u.bytes + :amount::bigint, 0)
""")


class Usage(Struct, frozen=True):
    """What counts for a tenant's quota, and the quota, in bytes; None: there is none."""

    bytes: int
    quota_bytes: int | None


# For the tenant and for operators.
USAGE = Statement("SELECT bytes, quota_bytes FROM stateroom.blob_usage WHERE tenant_id = :owner", Usage)
SET_QUOTA = Statement("""
INSERT INTO stateroom.blob_usage AS u (tenant_id, bytes, quota_bytes) VALUES (:tenant_id, 0, :quota_bytes)
ON CONFLICT (tenant_id) DO UPDATE SET quota_bytes = excluded.quota_bytes
""")
# What the rows say, over all subjects, by the tenant's binding.
_COUNTED = """
(coalesce((SELECT sum(b.size_bytes) FROM stateroom.blobs b WHERE b.tenant_id = :tenant_id), 0)
    + coalesce((SELECT sum(i.reserved_bytes) FROM stateroom.blob_intents i WHERE i.tenant_id = :tenant_id), 0))::bigint
"""
COUNTED = Statement(f"SELECT {_COUNTED}", int)
RECOUNT = Statement(f"UPDATE stateroom.blob_usage SET bytes = {_COUNTED} WHERE tenant_id = :tenant_id")
# Across tenants, by an operator's binding.
TENANTS_AFTER = Statement(
    """
SELECT tenant_id FROM (SELECT tenant_id FROM stateroom.tenants UNION SELECT tenant_id FROM stateroom.blob_usage) known
WHERE tenant_id > :after ORDER BY tenant_id LIMIT :limit
""",
    UUID,
)

# --- intents -------------------------------------------------------------------------------------------------------


class Intent(Struct, frozen=True):
    """An open intent.

    Attributes:
        reserved_bytes: The bytes that count for the quota meanwhile.
        client_share: Whether ``record`` is sealed under the share that the client holds.
        record: What resuming needs, sealed; None for an upload that cannot be resumed.
    """

    blob_id: UUID
    place: Bucket
    purpose: Purpose
    content_id: bytes | None
    multipart_id: str | None
    reserved_bytes: int
    key_version: int
    client_share: bool
    record: bytes | None
    created_at: datetime
    expires_at: datetime


class UploadedPart(Struct, frozen=True):
    """A part of a resumable upload that the object store has.

    Attributes:
        number: Its number, counted from 0, as in the sealed format.
        etag: The object store's name for it.
        size_bytes: The size of its content.
        digest: Bytes of the caller's that tell its content from another one, sealed.
    """

    number: int
    etag: str
    size_bytes: int
    digest: bytes


_INTENT = "tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :blob_id"
_INTENT_COLUMNS = columns(Intent)

ADD_INTENT = Statement("""
INSERT INTO stateroom.blob_intents
    (tenant_id, subject_id, blob_id, purpose, content_id, state, reserved_bytes, key_version, client_share, record,
     created_at, expires_at, place)
VALUES (:tenant_id, :subject_id, :blob_id, :purpose, :content_id, 'open', :reserved_bytes, :key_version,
    :client_share, :record, :created_at, statement_timestamp() + make_interval(secs => :intent_seconds), :place)
""")
OPEN_INTENT = Statement(
    f"""
SELECT {_INTENT_COLUMNS} FROM stateroom.blob_intents
WHERE {_INTENT} AND state = 'open' AND expires_at > statement_timestamp()
""",
    Intent,
)
RENEW_INTENT = Statement(
    f"""
UPDATE stateroom.blob_intents SET expires_at = statement_timestamp() + make_interval(secs => :intent_seconds),
    reserved_bytes = reserved_bytes + :more_bytes
WHERE {_INTENT} AND state = 'open' RETURNING {_INTENT_COLUMNS}
""",
    Intent,
)
NAME_MULTIPART = Statement(
    f"""
UPDATE stateroom.blob_intents SET multipart_id = coalesce(multipart_id, :multipart_id)
WHERE {_INTENT} AND state = 'open' RETURNING multipart_id
""",
    str,
)
PUT_PART = Statement("""
INSERT INTO stateroom.upload_parts (tenant_id, subject_id, blob_id, number, etag, size_bytes, digest)
VALUES (:tenant_id, :subject_id, :blob_id, :number, :etag, :size_bytes, :digest)
ON CONFLICT (tenant_id, subject_id, blob_id, number) DO UPDATE
SET etag = excluded.etag, size_bytes = excluded.size_bytes, digest = excluded.digest
""")
PARTS = Statement(
    f"""
SELECT number, etag, size_bytes, digest FROM stateroom.upload_parts WHERE {_INTENT} ORDER BY number
""",
    UploadedPart,
)
PART = Statement(
    f"""
SELECT number, etag, size_bytes, digest FROM stateroom.upload_parts WHERE {_INTENT} AND number = :number
""",
    UploadedPart,
)
FORGET_PARTS = Statement(
    f"DELETE FROM stateroom.upload_parts WHERE {_INTENT} AND (:number::integer IS NULL OR number = :number)"
)
DELETE_PARTS = Statement("""
DELETE FROM stateroom.upload_parts WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND blob_id = ANY(:blob_ids::uuid[])
""")


class LockedIntent(Struct, frozen=True):
    """An open intent that is being settled."""

    blob_id: UUID
    place: Bucket
    content_id: bytes | None
    reserved_bytes: int
    created_at: datetime


# A sweeper that is at an intent makes this wait, and then find nothing; or it waits for us, and then finds nothing.
LOCK_INTENTS = Statement(
    """
SELECT blob_id, place, content_id, reserved_bytes, created_at FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = ANY(:blob_ids::uuid[]) AND state = 'open'
ORDER BY blob_id FOR UPDATE
""",
    LockedIntent,
)
SETTLE_INTENTS = Statement("""
DELETE FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = ANY(:blob_ids::uuid[]) AND state = 'open'
""")
# Given up by its owner before the object store got anything of it.
WITHDRAW_INTENT = Statement(
    f"DELETE FROM stateroom.blob_intents WHERE {_INTENT} AND state = 'open' RETURNING reserved_bytes", int
)
# Given up: by its owner, or because another upload of the same content was settled first.
ABANDON_INTENTS = Statement("""
UPDATE stateroom.blob_intents
SET state = 'swept', record = NULL, expires_at = statement_timestamp() + make_interval(secs => :tombstone_seconds)
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = ANY(:blob_ids::uuid[]) AND state = 'open'
""")

# --- blobs ---------------------------------------------------------------------------------------------------------

# In the order of content ids, so that two saves with the same pieces wait for each other in one direction only.
ADD_BLOBS = Statement(
    """
INSERT INTO stateroom.blobs
    (tenant_id, subject_id, blob_id, content_id, state, size_bytes, client_share, key_version, pointer, created_at,
     unreferenced_at, place)
SELECT :tenant_id, :subject_id, x.blob_id, x.content_id, 'live', x.size_bytes, :client_share, :key_version, x.pointer,
    x.created_at,
    CASE WHEN :unreferenced AND x.content_id IS NOT NULL THEN statement_timestamp() END, x.place
FROM unnest(:blob_ids::uuid[], :content_ids::bytea[], :sizes_bytes::bigint[], :pointers::bytea[],
    :created::timestamptz[], :places::text[])
    AS x(blob_id, content_id, size_bytes, pointer, created_at, place)
ORDER BY x.content_id, x.blob_id
ON CONFLICT (tenant_id, subject_id, content_id) WHERE state = 'live' AND content_id IS NOT NULL DO NOTHING
RETURNING blob_id
""",
    UUID,
)


class KnownContent(Struct, frozen=True):
    """The live blob that holds a content."""

    content_id: bytes
    blob_id: UUID


KNOWN = Statement(
    """
SELECT content_id, blob_id FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND content_id = ANY(:content_ids::bytea[]) AND state = 'live'
""",
    KnownContent,
)


class LockedBlob(Struct, frozen=True):
    """A live blob that cannot be condemned meanwhile."""

    blob_id: UUID
    unreferenced_at: datetime | None


# The lock that a sweeper's conflicts with: what is referred to here cannot be condemned before we commit.
LOCK_LIVE = Statement(
    """
SELECT blob_id, unreferenced_at FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = ANY(:blob_ids::uuid[]) AND state = 'live'
ORDER BY blob_id FOR KEY SHARE
""",
    LockedBlob,
)
MARK_REFERENCED = Statement("""
WITH marked AS (
    SELECT blob_id FROM stateroom.blobs
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = ANY(:blob_ids::uuid[]) AND state = 'live'
    ORDER BY blob_id FOR NO KEY UPDATE
)
UPDATE stateroom.blobs b SET unreferenced_at = NULL FROM marked
WHERE b.tenant_id = :tenant_id AND b.subject_id = :subject_id AND b.blob_id = marked.blob_id
""")
ADD_REFS = Statement("""
INSERT INTO stateroom.blob_refs (tenant_id, subject_id, blob_id, thread_id)
SELECT :tenant_id, :subject_id, x.blob_id, :thread_id FROM unnest(:blob_ids::uuid[]) AS x(blob_id)
ORDER BY x.blob_id ON CONFLICT DO NOTHING
""")


class PointerRow(Struct, frozen=True):
    """A blob, and what opens it: ``pointer``, sealed. ``size_bytes`` is the object's."""

    blob_id: UUID
    place: Bucket
    content_id: bytes | None
    size_bytes: int
    client_share: bool
    key_version: int
    pointer: bytes | None
    created_at: datetime


_POINTERS = f"SELECT {columns(PointerRow)} FROM stateroom.blobs"
POINTERS = Statement(
    f"""
{_POINTERS} WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = ANY(:blob_ids::uuid[])
  AND pointer IS NOT NULL
""",
    PointerRow,
)

# --- what threads refer to -----------------------------------------------------------------------------------------

_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"
# The ids of blobs and artifacts, 16 bytes each, that a thread's remaining rows name; those of an archived thread are in
# its object, whose own id counts, too.
NAMED_IDS = f"""
    SELECT encode(substring(r.named_ids FROM 1 + 16 * n FOR 16), 'hex')::uuid AS named_id
    FROM (
        SELECT named_ids FROM stateroom.checkpoints WHERE {_THREAD} AND named_ids IS NOT NULL
        UNION SELECT named_ids FROM stateroom.pending_writes WHERE {_THREAD} AND named_ids IS NOT NULL
        UNION SELECT named_ids FROM stateroom.chunks WHERE {_THREAD} AND named_ids IS NOT NULL
        UNION SELECT uuid_send(blob_id) || coalesce(named_ids, '') FROM stateroom.archives WHERE {_THREAD}
    ) r, LATERAL generate_series(0, length(r.named_ids) / 16 - 1) n
"""
KEEP_BLOB_REFS = Statement(
    f"""
WITH named AS ({NAMED_IDS})
DELETE FROM stateroom.blob_refs r
WHERE r.tenant_id = :tenant_id AND r.subject_id = :subject_id AND r.thread_id = :thread_id
  AND NOT EXISTS (SELECT FROM named WHERE named.named_id = r.blob_id)
RETURNING r.blob_id
""",
    UUID,
)
DROP_BLOB_REFS = Statement(f"DELETE FROM stateroom.blob_refs WHERE {_THREAD} RETURNING blob_id", UUID)
REFERRED_BLOBS = Statement(f"SELECT blob_id FROM stateroom.blob_refs WHERE {_THREAD} ORDER BY blob_id", UUID)
_UNREFERENCED = """
    NOT EXISTS (SELECT FROM stateroom.blob_refs r
        WHERE r.tenant_id = :tenant_id AND r.subject_id = :subject_id AND r.blob_id = b.blob_id)
    AND NOT EXISTS (SELECT FROM stateroom.artifacts a
        WHERE a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.blob_id = b.blob_id)
    AND (b.place <> 'archive' OR NOT EXISTS (SELECT FROM stateroom.archives v
        WHERE v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.blob_id = b.blob_id))
"""
# A hint that spares the sweeper its walk: it checks again before it believes it.
MARK_UNREFERENCED = Statement(f"""
WITH marked AS (
    SELECT b.blob_id FROM stateroom.blobs b
    WHERE b.tenant_id = :tenant_id AND b.subject_id = :subject_id AND b.blob_id = ANY(:blob_ids::uuid[])
      AND b.state = 'live'
      AND b.unreferenced_at IS NULL AND {_UNREFERENCED}
    ORDER BY b.blob_id FOR NO KEY UPDATE
)
UPDATE stateroom.blobs b SET unreferenced_at = statement_timestamp() FROM marked
WHERE b.tenant_id = :tenant_id AND b.subject_id = :subject_id AND b.blob_id = marked.blob_id
""")

# --- shredding -----------------------------------------------------------------------------------------------------

CONDEMN_SUBJECT = Statement("""
UPDATE stateroom.blobs SET state = 'condemned', condemned_at = statement_timestamp()
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'live'
""")
ABANDON_SUBJECT = Statement("""
UPDATE stateroom.blob_intents
SET state = 'swept', record = NULL, expires_at = statement_timestamp() + make_interval(secs => :tombstone_seconds)
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'open'
""")
FORGET_SUBJECT = tuple(
    Statement(f"DELETE FROM stateroom.{table} WHERE tenant_id = :tenant_id AND subject_id = :subject_id")
    for table in ("artifact_refs", "artifacts", "blob_refs", "upload_parts")
)

# --- sweeping ------------------------------------------------------------------------------------------------------

# Across tenants, by an operator's binding.
TENANTS_DUE = Statement(
    """
SELECT tenant_id FROM stateroom.blob_usage WHERE sweep_after < statement_timestamp() ORDER BY sweep_after LIMIT :limit
""",
    UUID,
)


class SweepClaim(Struct, frozen=True):
    """A tenant leased until ``sweep_after``. Its blobs are walked over after ``walk_after``; None: they never were."""

    walk_after: datetime | None
    sweep_after: datetime


# A lease and a timetable in one column: no other process sweeps the tenant before it has passed.
CLAIM_TENANT = Statement(
    """
UPDATE stateroom.blob_usage SET sweep_after = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE tenant_id = :tenant_id AND sweep_after < statement_timestamp()
RETURNING nullif(walk_after, '-infinity') AS walk_after, sweep_after
""",
    SweepClaim,
)
RENEW_SWEEP = Statement("""
UPDATE stateroom.blob_usage SET sweep_after = statement_timestamp() + make_interval(secs => :lease_seconds)
WHERE tenant_id = :tenant_id
""")
WALKED = Statement("""
UPDATE stateroom.blob_usage SET walk_after = statement_timestamp() + make_interval(secs => :walk_seconds)
WHERE tenant_id = :tenant_id
""")
# What is due and still there when a sweep ends, since when it is due; and, after a walk, what there is of each state.
# A tenant that has nothing comes again later.
FINISH_SWEEP = Statement("""
UPDATE stateroom.blob_usage u SET
    sweep_after = statement_timestamp() + make_interval(secs => CASE
        WHEN u.bytes > 0 OR EXISTS (SELECT FROM stateroom.blobs b WHERE b.tenant_id = :tenant_id)
            OR EXISTS (SELECT FROM stateroom.blob_intents i WHERE i.tenant_id = :tenant_id)
        THEN :sweep_seconds::float8 ELSE :empty_sweep_seconds::float8 END),
    swept_at = statement_timestamp(),
    due_since = (
        SELECT min(due.since) FROM (
            SELECT min(i.expires_at) AS since FROM stateroom.blob_intents i
            WHERE i.tenant_id = :tenant_id AND i.expires_at < statement_timestamp()
              AND (i.state = 'open' OR i.removed_at IS NOT NULL)
            UNION ALL
            SELECT min(i.expires_at - make_interval(secs => :tombstone_seconds)) FROM stateroom.blob_intents i
            WHERE i.tenant_id = :tenant_id AND i.state = 'swept' AND i.removed_at IS NULL
            UNION ALL
            SELECT min(b.unreferenced_at) + make_interval(secs => :grace_seconds) FROM stateroom.blobs b
            WHERE b.tenant_id = :tenant_id AND b.state = 'live'
              AND b.unreferenced_at < statement_timestamp() - make_interval(secs => :grace_seconds)
            UNION ALL
            SELECT min(b.condemned_at) + make_interval(secs => :retention_seconds) FROM stateroom.blobs b
            WHERE b.tenant_id = :tenant_id AND b.state = 'condemned'
              AND b.condemned_at < statement_timestamp() - make_interval(secs => :retention_seconds)
        ) due
    ),
    census = CASE WHEN :walked THEN (
        SELECT coalesce(jsonb_object_agg(found.state, jsonb_build_array(found.rows, found.bytes)), '{}') FROM (
            SELECT CASE WHEN b.state = 'live' AND b.unreferenced_at IS NOT NULL THEN 'unreferenced' ELSE b.state END
                AS state, count(*) AS rows, sum(b.size_bytes) AS bytes
            FROM stateroom.blobs b WHERE b.tenant_id = :tenant_id GROUP BY 1
            UNION ALL
            SELECT i.state, count(*), sum(i.reserved_bytes)
            FROM stateroom.blob_intents i WHERE i.tenant_id = :tenant_id GROUP BY 1
        ) found
    ) ELSE u.census END
WHERE u.tenant_id = :tenant_id
""")


class SweepCensus(Struct, frozen=True):
    """What the sweeps of all tenants left on record.

    Attributes:
        used_bytes: The bytes that count for the tenants' quotas now.
        age_seconds: The time since the last whole sweep of the tenant that waits longest for one.
        due_seconds: How long the oldest object that should be gone has been due, as the last sweeps left it; 0: none.
        tried: Whether a tenant is taken again and again, and none of its sweeps comes to an end.
    """

    used_bytes: int
    age_seconds: float
    due_seconds: float
    tried: bool


class StateTotal(Struct, frozen=True):
    """How many blobs and intents are in a state, and their bytes."""

    state: str
    blobs: int
    bytes: int


# Across tenants, by an operator's binding. Who never kept anything and was never swept has a quota and no more: without
# an object store nobody sweeps it.
CENSUS = Statement(
    """
SELECT coalesce(sum(bytes), 0)::bigint AS used_bytes,
    coalesce(extract(epoch FROM statement_timestamp() - min(swept_at)
        FILTER (WHERE bytes > 0 OR walk_after > '-infinity')), 0)::float8 AS age_seconds,
    coalesce(extract(epoch FROM statement_timestamp() - min(due_since)), 0)::float8 AS due_seconds,
    coalesce(bool_or(swept_at < statement_timestamp() - interval '15 minutes'
        AND sweep_after > statement_timestamp() - interval '5 minutes'), false) AS tried
FROM stateroom.blob_usage
""",
    SweepCensus,
)
CENSUS_BY_STATE = Statement(
    """
SELECT c.key AS state, sum((c.value ->> 0)::bigint)::bigint AS blobs, sum((c.value ->> 1)::numeric)::bigint AS bytes
FROM stateroom.blob_usage u, jsonb_each(u.census) c GROUP BY 1
""",
    StateTotal,
)
# By the tenant's binding, over its subjects.
SUBJECTS_DUE = Statement(
    """
SELECT subject_id FROM (
    SELECT subject_id FROM stateroom.blob_intents
    WHERE tenant_id = :tenant_id AND (expires_at < statement_timestamp() OR (state = 'swept' AND removed_at IS NULL))
    UNION
    SELECT subject_id FROM stateroom.blobs
    WHERE tenant_id = :tenant_id AND state = 'live'
      AND unreferenced_at < statement_timestamp() - make_interval(secs => :grace_seconds)
    UNION
    SELECT subject_id FROM stateroom.blobs
    WHERE tenant_id = :tenant_id AND state = 'condemned'
      AND condemned_at < statement_timestamp() - make_interval(secs => :retention_seconds)
) due WHERE subject_id > :after ORDER BY subject_id LIMIT :limit
""",
    str,
)
SUBJECTS_TO_WALK = Statement(
    """
SELECT DISTINCT subject_id FROM stateroom.blobs WHERE tenant_id = :tenant_id AND subject_id > :after AND state = 'live'
ORDER BY subject_id LIMIT :limit
""",
    str,
)
SUBJECTS_AFTER = Statement(
    """
SELECT subject_id FROM (
    (SELECT DISTINCT subject_id FROM stateroom.blobs WHERE tenant_id = :tenant_id AND subject_id > :after
     ORDER BY subject_id LIMIT :limit)
    UNION
    (SELECT DISTINCT subject_id FROM stateroom.blob_intents WHERE tenant_id = :tenant_id AND subject_id > :after
     ORDER BY subject_id LIMIT :limit)
    UNION
    (SELECT DISTINCT subject_id FROM stateroom.subject_keys WHERE tenant_id = :tenant_id AND subject_id > :after
     ORDER BY subject_id LIMIT :limit)
) known ORDER BY subject_id LIMIT :limit
""",
    str,
)

SO_LONG_AGO = Statement("SELECT statement_timestamp() - make_interval(secs => :seconds)", datetime)
EXPIRE_INTENTS = Statement(
    """
WITH due AS (
    SELECT blob_id FROM stateroom.blob_intents
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'open' AND expires_at < statement_timestamp()
    ORDER BY blob_id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE stateroom.blob_intents i
SET state = 'swept', record = NULL, expires_at = statement_timestamp() + make_interval(secs => :tombstone_seconds)
FROM due WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.blob_id = due.blob_id AND i.state = 'open'
RETURNING i.blob_id
""",
    UUID,
)


class SweptIntent(Struct, frozen=True):
    """An intent that was given up. ``ends``: it was removed before, and its tombstone is at its end."""

    blob_id: UUID
    place: Bucket
    multipart_id: str | None
    ends: bool


# Swept intents whose object was not removed yet, and tombstones at their end.
SWEPT_INTENTS = Statement(
    """
SELECT blob_id, place, multipart_id, removed_at IS NOT NULL AND expires_at < statement_timestamp() AS ends
FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'swept' AND blob_id > :after
  AND (removed_at IS NULL OR expires_at < statement_timestamp())
ORDER BY blob_id LIMIT :limit
""",
    SweptIntent,
)
REMOVED = Statement(
    """
WITH removed AS (
    SELECT blob_id, reserved_bytes FROM stateroom.blob_intents
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :blob_id AND state = 'swept'
      AND removed_at IS NULL
    FOR UPDATE
)
UPDATE stateroom.blob_intents i SET removed_at = statement_timestamp(), reserved_bytes = 0 FROM removed
WHERE i.tenant_id = :tenant_id AND i.subject_id = :subject_id AND i.blob_id = removed.blob_id
RETURNING removed.reserved_bytes
""",
    int,
)
END_TOMBSTONE = Statement(
    """
DELETE FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :blob_id AND state = 'swept'
  AND removed_at IS NOT NULL
  AND expires_at < statement_timestamp()
RETURNING reserved_bytes
""",
    int,
)
WALK = Statement(
    """
SELECT blob_id FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id > :after AND state = 'live'
ORDER BY blob_id LIMIT :limit
""",
    UUID,
)
# `FOR UPDATE` conflicts with `LOCK_LIVE`: no transaction is about to refer to what this returns. Who referred and
# committed is seen by the next statement, whose snapshot is newer; a condition in this one would still look at the
# older.
LOCK_UNREFERENCED = Statement(
    """
SELECT blob_id FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'live'
  AND unreferenced_at < statement_timestamp() - make_interval(secs => :grace_seconds)
ORDER BY blob_id LIMIT :limit FOR UPDATE SKIP LOCKED
""",
    UUID,
)
CONDEMN = Statement(
    f"""
UPDATE stateroom.blobs b SET state = 'condemned', condemned_at = statement_timestamp()
WHERE b.tenant_id = :tenant_id AND b.subject_id = :subject_id AND b.blob_id = ANY(:blob_ids::uuid[])
  AND b.state = 'live'
  AND {_UNREFERENCED}
RETURNING b.blob_id
""",
    UUID,
)


class CondemnedBlob(Struct, frozen=True):
    """A blob whose object no backup names any more."""

    blob_id: UUID
    place: Bucket


CONDEMNED = Statement(
    """
SELECT blob_id, place FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'condemned' AND blob_id > :after
  AND condemned_at < statement_timestamp() - make_interval(secs => :retention_seconds)
ORDER BY blob_id LIMIT :limit
""",
    CondemnedBlob,
)
FORGET_BLOB = Statement(
    """
DELETE FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :blob_id AND state = 'condemned'
RETURNING size_bytes
""",
    int,
)

# --- checking ------------------------------------------------------------------------------------------------------


class LiveObject(Struct, frozen=True):
    """A live blob, and how large its object must be."""

    blob_id: UUID
    place: Bucket
    size_bytes: int


LIVE_AFTER = Statement(
    """
SELECT blob_id, place, size_bytes FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id > :after AND state = 'live'
ORDER BY blob_id LIMIT :limit
""",
    LiveObject,
)
LIVE_POINTERS_AFTER = Statement(
    f"""
{_POINTERS} WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id > :after AND state = 'live'
ORDER BY blob_id LIMIT :limit
""",
    PointerRow,
)
OPEN_INTENTS_AFTER = Statement(
    f"""
SELECT {_INTENT_COLUMNS} FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id > :after AND state = 'open' AND record IS NOT NULL
ORDER BY blob_id LIMIT :limit
""",
    Intent,
)
IS_LIVE = Statement(
    """
SELECT size_bytes FROM stateroom.blobs
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :blob_id AND state = 'live'
""",
    int,
)
# By the tenant's binding: which of these ids any row knows at this place.
KNOWN_OBJECTS = Statement(
    """
SELECT blob_id FROM stateroom.blobs WHERE tenant_id = :tenant_id AND blob_id = ANY(:blob_ids::uuid[]) AND place = :place
UNION SELECT blob_id FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND blob_id = ANY(:blob_ids::uuid[]) AND place = :place
""",
    UUID,
)
THREADS_NAMING = Statement(
    """
SELECT thread_id FROM (
    (SELECT DISTINCT thread_id FROM stateroom.blob_refs
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after
     ORDER BY thread_id LIMIT :limit)
    UNION
    (SELECT DISTINCT thread_id FROM stateroom.artifact_refs WHERE tenant_id = :tenant_id AND subject_id = :subject_id
     AND thread_id > :after ORDER BY thread_id LIMIT :limit)
    UNION
    (SELECT thread_id FROM stateroom.threads
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id > :after
     ORDER BY thread_id LIMIT :limit)
) naming ORDER BY thread_id LIMIT :limit
""",
    str,
)


class NamedId(Struct, frozen=True):
    """An id of a thread that is not as it should be.

    ``named``: a row of the thread names it. ``blob_ref`` and ``artifact_ref``: the thread refers to it as such.
    ``blob_state`` is that of the blob of this id, if there is one.
    """

    id: UUID
    named: bool
    blob_ref: bool
    artifact_ref: bool
    blob_state: str | None
    artifact: bool


# Of one thread: each id that its rows name or its references hold, and what there is of it.
NAMES_AT_FAULT = Statement(
    f"""
WITH named AS (SELECT DISTINCT named_id FROM ({NAMED_IDS}) n), everything AS (
    SELECT named_id AS id FROM named
    UNION SELECT blob_id FROM stateroom.blob_refs WHERE {_THREAD}
    UNION SELECT artifact_id FROM stateroom.artifact_refs WHERE {_THREAD}
)
SELECT e.id, n.named_id IS NOT NULL AS named, br.blob_id IS NOT NULL AS blob_ref,
    ar.artifact_id IS NOT NULL AS artifact_ref, b.state AS blob_state, a.artifact_id IS NOT NULL AS artifact
FROM everything e
LEFT JOIN named n ON n.named_id = e.id
LEFT JOIN stateroom.blob_refs br ON br.tenant_id = :tenant_id AND br.subject_id = :subject_id AND br.blob_id = e.id
    AND br.thread_id = :thread_id
LEFT JOIN stateroom.artifact_refs ar ON ar.tenant_id = :tenant_id AND ar.subject_id = :subject_id
  AND ar.artifact_id = e.id
    AND ar.thread_id = :thread_id
LEFT JOIN stateroom.blobs b ON b.tenant_id = :tenant_id AND b.subject_id = :subject_id AND b.blob_id = e.id
LEFT JOIN stateroom.artifacts a ON a.tenant_id = :tenant_id AND a.subject_id = :subject_id AND a.artifact_id = e.id
WHERE e.id > :after AND (n.named_id IS NULL
    OR NOT coalesce((b.state = 'live' AND br.blob_id IS NOT NULL)
        OR (a.artifact_id IS NOT NULL AND ar.artifact_id IS NOT NULL), false))
ORDER BY e.id LIMIT :limit
""",
    NamedId,
)
ADD_ORPHAN = Statement(
    """
INSERT INTO stateroom.blobs
    (tenant_id, subject_id, blob_id, state, size_bytes, client_share, key_version, created_at, condemned_at, place)
VALUES (:tenant_id, :subject_id, :blob_id, 'condemned', :size_bytes, false, 0, statement_timestamp(),
    statement_timestamp(), :place)
ON CONFLICT DO NOTHING RETURNING blob_id
""",
    UUID,
)
INTENTS_OF_OBJECTS = Statement(
    """
SELECT blob_id FROM stateroom.blob_intents
WHERE tenant_id = :tenant_id AND blob_id = ANY(:blob_ids::uuid[]) AND place = :place
""",
    UUID,
)

# --- re-sealing ----------------------------------------------------------------------------------------------------

_STALE_TABLE = """
FROM stateroom.{table} WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND NOT client_share
  AND {column} IS NOT NULL
    AND substring({column} FROM 9 FOR 4) <> :version::bytea
"""


class StalePointer(Struct, frozen=True):
    """A pointer that another key version sealed."""

    blob_id: UUID
    content_id: bytes | None
    size_bytes: int
    created_at: datetime
    key_version: int
    pointer: bytes


STALE_POINTERS = Statement(
    f"""
SELECT blob_id, content_id, size_bytes, created_at, key_version, pointer
{_STALE_TABLE.format(table="blobs", column="pointer")} AND state = 'live' AND blob_id > :after
ORDER BY blob_id LIMIT :limit
""",
    StalePointer,
)
RESEAL_POINTER = Statement("""
UPDATE stateroom.blobs SET key_version = :key_version, pointer = :sealed
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :row_id AND pointer = :was
""")
# A condemned blob is never read again: its pointer need not follow a rotation, and must not keep an old key.
FORGET_CONDEMNED_POINTERS = Statement("""
UPDATE stateroom.blobs SET pointer = NULL
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND state = 'condemned' AND pointer IS NOT NULL
  AND substring(pointer FROM 9 FOR 4) <> :version::bytea
""")


class StaleIntent(Struct, frozen=True):
    """A record of an upload that another key version sealed."""

    blob_id: UUID
    purpose: Purpose
    content_id: bytes | None
    created_at: datetime
    key_version: int
    record: bytes


STALE_INTENTS = Statement(
    f"""
SELECT blob_id, purpose, content_id, created_at, key_version, record
{_STALE_TABLE.format(table="blob_intents", column="record")} AND blob_id > :after
ORDER BY blob_id LIMIT :limit
""",
    StaleIntent,
)
RESEAL_INTENT = Statement("""
UPDATE stateroom.blob_intents SET key_version = :key_version, record = :sealed
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND blob_id = :row_id AND record = :was
""")

# For `storage.statements.keys.rotation.COUNT_STALE`: what another version (4 bytes) sealed, and whether it is aside.
STALE_BLOBS = " UNION ALL ".join(
    f"SELECT x.client_share AS aside, 1 AS rows FROM stateroom.{table} x"
    f" WHERE x.tenant_id = :tenant_id AND x.subject_id = :subject_id AND x.{column} IS NOT NULL"
    f" AND substring(x.{column} FROM 9 FOR 4) <> :version::bytea"
    for table, column in (("blobs", "pointer"), ("blob_intents", "record"), ("artifacts", "sealed"))
)
