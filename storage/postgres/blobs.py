"""Statements on blobs, intents, references and quotas; `storage.ledger.ledger` says in which order they are safe.

What expires goes by the database's clock: gateways need not agree on the time.
"""

# --- quota ---------------------------------------------------------------------------------------------------------

# No row: over the quota. One statement, so that two reservations cannot both take the last bytes.
RESERVE_BYTES = """
INSERT INTO stateroom.blob_usage AS u (tenant_id, bytes) VALUES ($1, $2)
ON CONFLICT (tenant_id) DO UPDATE SET bytes = u.bytes + excluded.bytes
WHERE u.quota_bytes IS NULL OR u.bytes + excluded.bytes <= u.quota_bytes
RETURNING bytes
"""
# For what is stored already, whatever the quota says. Negative: freed.
COUNT_BYTES = """
INSERT INTO stateroom.blob_usage AS u (tenant_id, bytes) VALUES ($1, greatest($2::bigint, 0))
ON CONFLICT (tenant_id) DO UPDATE SET bytes = greatest(u.bytes + $2::bigint, 0)
"""
USAGE = "SELECT bytes, quota_bytes FROM stateroom.blob_usage WHERE tenant_id = $1"
SET_QUOTA = """
INSERT INTO stateroom.blob_usage AS u (tenant_id, bytes, quota_bytes) VALUES ($1, 0, $2)
ON CONFLICT (tenant_id) DO UPDATE SET quota_bytes = excluded.quota_bytes
RETURNING bytes, quota_bytes
"""
# What the rows say, over all subjects, by the tenant's binding.
_COUNTED = """
(coalesce((SELECT sum(b.size_bytes) FROM stateroom.blobs b WHERE b.tenant_id = $1), 0)
    + coalesce((SELECT sum(i.reserved_bytes) FROM stateroom.blob_intents i WHERE i.tenant_id = $1), 0))::bigint
"""
COUNTED = f"SELECT {_COUNTED}"
RECOUNT = f"UPDATE stateroom.blob_usage SET bytes = {_COUNTED} WHERE tenant_id = $1"
# Across tenants, by an operator's binding.
TENANTS_AFTER = """
SELECT tenant_id FROM (SELECT tenant_id FROM stateroom.tenants UNION SELECT tenant_id FROM stateroom.blob_usage) known
WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2
"""

# --- intents -------------------------------------------------------------------------------------------------------

_INTENT = "tenant_id = $1 AND subject_id = $2 AND blob_id = $3"
_INTENT_COLUMNS = """
    blob_id, place, purpose, content_id, multipart_id, reserved_bytes, key_version, client_share, record, created_at,
    expires_at
"""

ADD_INTENT = """
INSERT INTO stateroom.blob_intents
    (tenant_id, subject_id, blob_id, purpose, content_id, state, reserved_bytes, key_version, client_share, record,
     created_at, expires_at, place)
VALUES ($1, $2, $3, $4, $5, 'open', $6, $7, $8, $9, $10, clock_timestamp() + make_interval(secs => $11), $12)
"""
OPEN_INTENT = f"""
SELECT {_INTENT_COLUMNS} FROM stateroom.blob_intents
WHERE {_INTENT} AND state = 'open' AND expires_at > clock_timestamp()
"""
RENEW_INTENT = f"""
UPDATE stateroom.blob_intents SET expires_at = clock_timestamp() + make_interval(secs => $4),
    reserved_bytes = reserved_bytes + $5
WHERE {_INTENT} AND state = 'open' RETURNING {_INTENT_COLUMNS}
"""
NAME_MULTIPART = f"""
UPDATE stateroom.blob_intents SET multipart_id = coalesce(multipart_id, $4)
WHERE {_INTENT} AND state = 'open' RETURNING multipart_id
"""
PUT_PART = """
INSERT INTO stateroom.upload_parts (tenant_id, subject_id, blob_id, number, etag, size_bytes, digest)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant_id, subject_id, blob_id, number) DO UPDATE
SET etag = excluded.etag, size_bytes = excluded.size_bytes, digest = excluded.digest
"""
PARTS = f"""
SELECT number, etag, size_bytes, digest FROM stateroom.upload_parts WHERE {_INTENT} ORDER BY number
"""
PART = f"""
SELECT number, etag, size_bytes, digest FROM stateroom.upload_parts WHERE {_INTENT} AND number = $4
"""
FORGET_PARTS = f"DELETE FROM stateroom.upload_parts WHERE {_INTENT} AND ($4::integer IS NULL OR number = $4)"
DELETE_PARTS = """
DELETE FROM stateroom.upload_parts WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[])
"""

# A sweeper that is at an intent makes this wait, and then find nothing; or it waits for us, and then finds nothing.
LOCK_INTENTS = """
SELECT blob_id, place, content_id, reserved_bytes, created_at FROM stateroom.blob_intents
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[]) AND state = 'open'
ORDER BY blob_id FOR UPDATE
"""
SETTLE_INTENTS = """
DELETE FROM stateroom.blob_intents
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[]) AND state = 'open'
"""
# Given up: by its owner, or because another upload of the same content was settled first.
ABANDON_INTENTS = """
UPDATE stateroom.blob_intents
SET state = 'swept', record = NULL, expires_at = clock_timestamp() + make_interval(secs => $4)
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[]) AND state = 'open'
RETURNING blob_id
"""

# --- blobs ---------------------------------------------------------------------------------------------------------

# In the order of content ids, so that two saves with the same pieces wait for each other in one direction only.
ADD_BLOBS = """
INSERT INTO stateroom.blobs
    (tenant_id, subject_id, blob_id, content_id, state, size_bytes, client_share, key_version, pointer, created_at,
     unreferenced_at, place)
SELECT $1, $2, x.blob_id, x.content_id, 'live', x.size_bytes, $3, $4, x.pointer, x.created_at,
    CASE WHEN $5 AND x.content_id IS NOT NULL THEN clock_timestamp() END, x.place
FROM unnest($6::uuid[], $7::bytea[], $8::bigint[], $9::bytea[], $10::timestamptz[], $11::text[])
    AS x(blob_id, content_id, size_bytes, pointer, created_at, place)
ORDER BY x.content_id, x.blob_id
ON CONFLICT (tenant_id, subject_id, content_id) WHERE state = 'live' AND content_id IS NOT NULL DO NOTHING
RETURNING blob_id
"""
KNOWN = """
SELECT content_id, blob_id FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND content_id = ANY($3::bytea[]) AND state = 'live'
"""
# The lock that a sweeper's conflicts with: what is referred to here cannot be condemned before we commit.
LOCK_LIVE = """
SELECT blob_id, unreferenced_at FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[]) AND state = 'live'
ORDER BY blob_id FOR KEY SHARE
"""
MARK_REFERENCED = """
WITH marked AS (
    SELECT blob_id FROM stateroom.blobs
    WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[]) AND state = 'live'
    ORDER BY blob_id FOR NO KEY UPDATE
)
UPDATE stateroom.blobs b SET unreferenced_at = NULL FROM marked
WHERE b.tenant_id = $1 AND b.subject_id = $2 AND b.blob_id = marked.blob_id
"""
ADD_REFS = """
INSERT INTO stateroom.blob_refs (tenant_id, subject_id, blob_id, thread_id)
SELECT $1, $2, x.blob_id, $3 FROM unnest($4::uuid[]) AS x(blob_id) ORDER BY x.blob_id ON CONFLICT DO NOTHING
"""
_POINTERS = """
SELECT blob_id, place, content_id, size_bytes, client_share, key_version, pointer, created_at FROM stateroom.blobs
"""
POINTERS = f"""
{_POINTERS} WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = ANY($3::uuid[]) AND pointer IS NOT NULL
"""

# --- what threads refer to -----------------------------------------------------------------------------------------

_THREAD = "tenant_id = $1 AND subject_id = $2 AND thread_id = $3"
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
KEEP_BLOB_REFS = f"""
WITH named AS ({NAMED_IDS})
DELETE FROM stateroom.blob_refs r
WHERE r.tenant_id = $1 AND r.subject_id = $2 AND r.thread_id = $3
  AND NOT EXISTS (SELECT FROM named WHERE named.named_id = r.blob_id)
RETURNING r.blob_id
"""
DROP_BLOB_REFS = f"DELETE FROM stateroom.blob_refs WHERE {_THREAD} RETURNING blob_id"
REFERRED_BLOBS = f"SELECT blob_id FROM stateroom.blob_refs WHERE {_THREAD} ORDER BY blob_id"
_UNREFERENCED = """
    NOT EXISTS (SELECT FROM stateroom.blob_refs r
        WHERE r.tenant_id = $1 AND r.subject_id = $2 AND r.blob_id = b.blob_id)
    AND NOT EXISTS (SELECT FROM stateroom.artifacts a
        WHERE a.tenant_id = $1 AND a.subject_id = $2 AND a.blob_id = b.blob_id)
    AND (b.place <> 'archive' OR NOT EXISTS (SELECT FROM stateroom.archives v
        WHERE v.tenant_id = $1 AND v.subject_id = $2 AND v.blob_id = b.blob_id))
"""
# A hint that spares the sweeper its walk: it checks again before it believes it.
MARK_UNREFERENCED = f"""
WITH marked AS (
    SELECT b.blob_id FROM stateroom.blobs b
    WHERE b.tenant_id = $1 AND b.subject_id = $2 AND b.blob_id = ANY($3::uuid[]) AND b.state = 'live'
      AND b.unreferenced_at IS NULL AND {_UNREFERENCED}
    ORDER BY b.blob_id FOR NO KEY UPDATE
)
UPDATE stateroom.blobs b SET unreferenced_at = clock_timestamp() FROM marked
WHERE b.tenant_id = $1 AND b.subject_id = $2 AND b.blob_id = marked.blob_id
"""

# --- shredding -----------------------------------------------------------------------------------------------------

CONDEMN_SUBJECT = """
UPDATE stateroom.blobs SET state = 'condemned', condemned_at = clock_timestamp()
WHERE tenant_id = $1 AND subject_id = $2 AND state = 'live'
"""
ABANDON_SUBJECT = """
UPDATE stateroom.blob_intents
SET state = 'swept', record = NULL, expires_at = clock_timestamp() + make_interval(secs => $3)
WHERE tenant_id = $1 AND subject_id = $2 AND state = 'open'
"""
FORGET_SUBJECT = tuple(
    f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2"
    for table in ("artifact_refs", "artifacts", "blob_refs", "upload_parts")
)

# --- sweeping ------------------------------------------------------------------------------------------------------

# Across tenants, by an operator's binding.
TENANTS_DUE = """
SELECT tenant_id FROM stateroom.blob_usage WHERE sweep_after < clock_timestamp() ORDER BY sweep_after LIMIT $1
"""
# A lease and a timetable in one column: nobody else sweeps the tenant before it has passed.
CLAIM_TENANT = """
UPDATE stateroom.blob_usage SET sweep_after = clock_timestamp() + make_interval(secs => $2)
WHERE tenant_id = $1 AND sweep_after < clock_timestamp()
RETURNING walk_after < clock_timestamp() AS walk
"""
RENEW_SWEEP = """
UPDATE stateroom.blob_usage SET sweep_after = clock_timestamp() + make_interval(secs => $2) WHERE tenant_id = $1
"""
WALKED = """
UPDATE stateroom.blob_usage SET walk_after = clock_timestamp() + make_interval(secs => $2) WHERE tenant_id = $1
"""
# What is due and still there when a sweep ends, since when it is due; and, after a walk, what there is of each state.
# A tenant that has nothing comes again later.
FINISH_SWEEP = """
UPDATE stateroom.blob_usage u SET
    sweep_after = clock_timestamp() + make_interval(secs => CASE
        WHEN u.bytes > 0 OR EXISTS (SELECT FROM stateroom.blobs b WHERE b.tenant_id = $1)
            OR EXISTS (SELECT FROM stateroom.blob_intents i WHERE i.tenant_id = $1)
        THEN $2::float8 ELSE $7::float8 END),
    swept_at = clock_timestamp(),
    due_since = (
        SELECT min(due.since) FROM (
            SELECT min(i.expires_at) AS since FROM stateroom.blob_intents i
            WHERE i.tenant_id = $1 AND i.expires_at < clock_timestamp()
              AND (i.state = 'open' OR i.removed_at IS NOT NULL)
            UNION ALL
            SELECT min(i.expires_at - make_interval(secs => $4)) FROM stateroom.blob_intents i
            WHERE i.tenant_id = $1 AND i.state = 'swept' AND i.removed_at IS NULL
            UNION ALL
            SELECT min(b.unreferenced_at) + make_interval(secs => $3) FROM stateroom.blobs b
            WHERE b.tenant_id = $1 AND b.state = 'live'
              AND b.unreferenced_at < clock_timestamp() - make_interval(secs => $3)
            UNION ALL
            SELECT min(b.condemned_at) + make_interval(secs => $5) FROM stateroom.blobs b
            WHERE b.tenant_id = $1 AND b.state = 'condemned'
              AND b.condemned_at < clock_timestamp() - make_interval(secs => $5)
        ) due
    ),
    census = CASE WHEN $6 THEN (
        SELECT coalesce(jsonb_object_agg(found.state, jsonb_build_array(found.rows, found.bytes)), '{}') FROM (
            SELECT CASE WHEN b.state = 'live' AND b.unreferenced_at IS NOT NULL THEN 'unreferenced' ELSE b.state END
                AS state, count(*) AS rows, sum(b.size_bytes) AS bytes
            FROM stateroom.blobs b WHERE b.tenant_id = $1 GROUP BY 1
            UNION ALL
            SELECT i.state, count(*), sum(i.reserved_bytes)
            FROM stateroom.blob_intents i WHERE i.tenant_id = $1 GROUP BY 1
        ) found
    ) ELSE u.census END
WHERE u.tenant_id = $1
"""
# Across tenants, by an operator's binding. Who never kept anything and was never swept has a quota and no more: without
# an object store nobody sweeps it.
CENSUS = """
SELECT coalesce(sum(bytes), 0)::bigint AS used_bytes,
    coalesce(extract(epoch FROM clock_timestamp() - min(swept_at)
        FILTER (WHERE bytes > 0 OR walk_after > '-infinity')), 0)::float8 AS age_seconds,
    coalesce(extract(epoch FROM clock_timestamp() - min(due_since)), 0)::float8 AS due_seconds,
    coalesce(bool_or(swept_at < clock_timestamp() - interval '15 minutes'
        AND sweep_after > clock_timestamp() - interval '5 minutes'), false) AS tried
FROM stateroom.blob_usage
"""
CENSUS_BY_STATE = """
SELECT c.key AS state, sum((c.value ->> 0)::bigint)::bigint AS blobs, sum((c.value ->> 1)::numeric)::bigint AS bytes
FROM stateroom.blob_usage u, jsonb_each(u.census) c GROUP BY 1
"""
# By the tenant's binding, over its subjects.
SUBJECTS_DUE = """
SELECT subject_id FROM (
    SELECT subject_id FROM stateroom.blob_intents
    WHERE tenant_id = $1 AND (expires_at < clock_timestamp() OR (state = 'swept' AND removed_at IS NULL))
    UNION
    SELECT subject_id FROM stateroom.blobs
    WHERE tenant_id = $1 AND state = 'live' AND unreferenced_at < clock_timestamp() - make_interval(secs => $2)
    UNION
    SELECT subject_id FROM stateroom.blobs
    WHERE tenant_id = $1 AND state = 'condemned' AND condemned_at < clock_timestamp() - make_interval(secs => $3)
) due WHERE subject_id > $4 ORDER BY subject_id LIMIT $5
"""
SUBJECTS_TO_WALK = """
SELECT DISTINCT subject_id FROM stateroom.blobs WHERE tenant_id = $1 AND subject_id > $2 AND state = 'live'
ORDER BY subject_id LIMIT $3
"""
SUBJECTS_AFTER = """
SELECT subject_id FROM (
    (SELECT DISTINCT subject_id FROM stateroom.blobs WHERE tenant_id = $1 AND subject_id > $2
     ORDER BY subject_id LIMIT $3)
    UNION
    (SELECT DISTINCT subject_id FROM stateroom.blob_intents WHERE tenant_id = $1 AND subject_id > $2
     ORDER BY subject_id LIMIT $3)
    UNION
    (SELECT DISTINCT subject_id FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id > $2
     ORDER BY subject_id LIMIT $3)
) known ORDER BY subject_id LIMIT $3
"""

SO_LONG_AGO = "SELECT clock_timestamp() - make_interval(secs => $1)"
EXPIRE_INTENTS = """
WITH due AS (
    SELECT blob_id FROM stateroom.blob_intents
    WHERE tenant_id = $1 AND subject_id = $2 AND state = 'open' AND expires_at < clock_timestamp()
    ORDER BY blob_id LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE stateroom.blob_intents i
SET state = 'swept', record = NULL, expires_at = clock_timestamp() + make_interval(secs => $3)
FROM due WHERE i.tenant_id = $1 AND i.subject_id = $2 AND i.blob_id = due.blob_id AND i.state = 'open'
RETURNING i.blob_id
"""
# Swept intents whose object was not removed yet, and tombstones at their end.
SWEPT_INTENTS = """
SELECT blob_id, place, multipart_id, removed_at IS NOT NULL AND expires_at < clock_timestamp() AS ends
FROM stateroom.blob_intents
WHERE tenant_id = $1 AND subject_id = $2 AND state = 'swept' AND blob_id > $3
  AND (removed_at IS NULL OR expires_at < clock_timestamp())
ORDER BY blob_id LIMIT $4
"""
REMOVED = """
WITH removed AS (
    SELECT blob_id, reserved_bytes FROM stateroom.blob_intents
    WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = $3 AND state = 'swept' AND removed_at IS NULL
    FOR UPDATE
)
UPDATE stateroom.blob_intents i SET removed_at = clock_timestamp(), reserved_bytes = 0 FROM removed
WHERE i.tenant_id = $1 AND i.subject_id = $2 AND i.blob_id = removed.blob_id
RETURNING removed.reserved_bytes
"""
END_TOMBSTONE = """
DELETE FROM stateroom.blob_intents
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = $3 AND state = 'swept' AND removed_at IS NOT NULL
  AND expires_at < clock_timestamp()
RETURNING reserved_bytes
"""
WALK = """
SELECT blob_id FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id > $3 AND state = 'live' ORDER BY blob_id LIMIT $4
"""
# `FOR UPDATE` conflicts with `LOCK_LIVE`: nobody is about to refer to what this returns. Who referred and committed
# is seen by the next statement, whose snapshot is newer; a condition in this one would still look at the older.
LOCK_UNREFERENCED = """
SELECT blob_id FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND state = 'live'
  AND unreferenced_at < clock_timestamp() - make_interval(secs => $3)
ORDER BY blob_id LIMIT $4 FOR UPDATE SKIP LOCKED
"""
CONDEMN = f"""
UPDATE stateroom.blobs b SET state = 'condemned', condemned_at = clock_timestamp()
WHERE b.tenant_id = $1 AND b.subject_id = $2 AND b.blob_id = ANY($3::uuid[]) AND b.state = 'live'
  AND {_UNREFERENCED}
RETURNING b.blob_id
"""
CONDEMNED = """
SELECT blob_id, place FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND state = 'condemned' AND blob_id > $3
  AND condemned_at < clock_timestamp() - make_interval(secs => $4)
ORDER BY blob_id LIMIT $5
"""
FORGET_BLOB = """
DELETE FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = $3 AND state = 'condemned'
RETURNING size_bytes
"""

# --- checking ------------------------------------------------------------------------------------------------------

LIVE_AFTER = """
SELECT blob_id, place, size_bytes FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id > $3 AND state = 'live' ORDER BY blob_id LIMIT $4
"""
LIVE_POINTERS_AFTER = f"""
{_POINTERS} WHERE tenant_id = $1 AND subject_id = $2 AND blob_id > $3 AND state = 'live' ORDER BY blob_id LIMIT $4
"""
OPEN_INTENTS_AFTER = f"""
SELECT {_INTENT_COLUMNS} FROM stateroom.blob_intents
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id > $3 AND state = 'open' AND record IS NOT NULL
ORDER BY blob_id LIMIT $4
"""
IS_LIVE = """
SELECT size_bytes FROM stateroom.blobs
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = $3 AND state = 'live'
"""
# By the tenant's binding: which of these ids any row knows at this place.
KNOWN_OBJECTS = """
SELECT blob_id FROM stateroom.blobs WHERE tenant_id = $1 AND blob_id = ANY($2::uuid[]) AND place = $3
UNION SELECT blob_id FROM stateroom.blob_intents WHERE tenant_id = $1 AND blob_id = ANY($2::uuid[]) AND place = $3
"""
THREADS_NAMING = """
SELECT thread_id FROM (
    (SELECT DISTINCT thread_id FROM stateroom.blob_refs WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3
     ORDER BY thread_id LIMIT $4)
    UNION
    (SELECT DISTINCT thread_id FROM stateroom.artifact_refs WHERE tenant_id = $1 AND subject_id = $2
     AND thread_id > $3 ORDER BY thread_id LIMIT $4)
    UNION
    (SELECT thread_id FROM stateroom.threads WHERE tenant_id = $1 AND subject_id = $2 AND thread_id > $3
     ORDER BY thread_id LIMIT $4)
) naming ORDER BY thread_id LIMIT $4
"""
# Of one thread: each id that its rows name or its references hold, and what there is of it.
STANDING_OF_NAMES = f"""
WITH named AS (SELECT DISTINCT named_id FROM ({NAMED_IDS}) n), everything AS (
    SELECT named_id AS id FROM named
    UNION SELECT blob_id FROM stateroom.blob_refs WHERE {_THREAD}
    UNION SELECT artifact_id FROM stateroom.artifact_refs WHERE {_THREAD}
)
SELECT e.id, n.named_id IS NOT NULL AS named, br.blob_id IS NOT NULL AS blob_ref,
    ar.artifact_id IS NOT NULL AS artifact_ref, b.state AS blob_state, a.artifact_id IS NOT NULL AS artifact
FROM everything e
LEFT JOIN named n ON n.named_id = e.id
LEFT JOIN stateroom.blob_refs br ON br.tenant_id = $1 AND br.subject_id = $2 AND br.blob_id = e.id
    AND br.thread_id = $3
LEFT JOIN stateroom.artifact_refs ar ON ar.tenant_id = $1 AND ar.subject_id = $2 AND ar.artifact_id = e.id
    AND ar.thread_id = $3
LEFT JOIN stateroom.blobs b ON b.tenant_id = $1 AND b.subject_id = $2 AND b.blob_id = e.id
LEFT JOIN stateroom.artifacts a ON a.tenant_id = $1 AND a.subject_id = $2 AND a.artifact_id = e.id
WHERE e.id > $4 AND (n.named_id IS NULL
    OR NOT coalesce((b.state = 'live' AND br.blob_id IS NOT NULL)
        OR (a.artifact_id IS NOT NULL AND ar.artifact_id IS NOT NULL), false))
ORDER BY e.id LIMIT $5
"""
ADD_ORPHAN = """
INSERT INTO stateroom.blobs
    (tenant_id, subject_id, blob_id, state, size_bytes, client_share, key_version, created_at, condemned_at, place)
VALUES ($1, $2, $3, 'condemned', $4, false, 0, clock_timestamp(), clock_timestamp(), $5)
ON CONFLICT DO NOTHING RETURNING blob_id
"""
INTENTS_OF_OBJECTS = """
SELECT blob_id FROM stateroom.blob_intents WHERE tenant_id = $1 AND blob_id = ANY($2::uuid[]) AND place = $3
"""

# --- re-sealing ----------------------------------------------------------------------------------------------------

_STALE_TABLE = """
FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2 AND NOT client_share AND {column} IS NOT NULL
    AND substring({column} FROM 9 FOR 4) <> $3::bytea
"""
STALE_POINTERS = f"""
SELECT blob_id, content_id, size_bytes, created_at, key_version, pointer
{_STALE_TABLE.format(table="blobs", column="pointer")} AND state = 'live' AND blob_id > $4
ORDER BY blob_id LIMIT $5
"""
RESEAL_POINTER = """
UPDATE stateroom.blobs SET key_version = $4, pointer = $5
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = $3 AND pointer = $6
"""
# A condemned blob is never read again: its pointer need not follow a rotation, and must not keep an old key.
FORGET_CONDEMNED_POINTERS = """
UPDATE stateroom.blobs SET pointer = NULL
WHERE tenant_id = $1 AND subject_id = $2 AND state = 'condemned' AND pointer IS NOT NULL
  AND substring(pointer FROM 9 FOR 4) <> $3::bytea
"""
STALE_INTENTS = f"""
SELECT blob_id, purpose, content_id, created_at, key_version, record
{_STALE_TABLE.format(table="blob_intents", column="record")} AND blob_id > $4
ORDER BY blob_id LIMIT $5
"""
RESEAL_INTENT = """
UPDATE stateroom.blob_intents SET key_version = $4, record = $5
WHERE tenant_id = $1 AND subject_id = $2 AND blob_id = $3 AND record = $6
"""

# For `storage.postgres.rotation.COUNT_STALE`: what another version than $3 (4 bytes) sealed, and whether it is aside.
STALE_BLOBS = " UNION ALL ".join(
    f"SELECT x.client_share AS aside, 1 AS rows FROM stateroom.{table} x"
    f" WHERE x.tenant_id = $1 AND x.subject_id = $2 AND x.{column} IS NOT NULL"
    f" AND substring(x.{column} FROM 9 FOR 4) <> $3::bytea"
    for table, column in (("blobs", "pointer"), ("blob_intents", "record"), ("artifacts", "sealed"))
)
