"""Statements on effects, and on the line of checkpoints that they are compared with."""

from datetime import datetime

import msgspec

from storage.format.thread_ledgers.effect import EffectColumns
from storage.postgres.statement import Statement, column_names

_CLEAR = EffectColumns.__struct_fields__


class EffectRow(EffectColumns, frozen=True):
    """An effect as it is stored, without what is sealed in it."""

    mac: bytes

    @property
    def columns(self) -> EffectColumns:
        """The columns that the MAC covers."""
        return EffectColumns(*msgspec.structs.astuple(self)[: len(_CLEAR)])


class PlacedEffectRow(EffectRow, frozen=True):
    """An effect with what is sealed in it and small."""

    asked: bytes
    outcome: bytes | None


class WholeEffectRow(PlacedEffectRow, frozen=True):
    """An effect with all that is sealed in it."""

    args: bytes
    result: bytes | None


class EffectMac(msgspec.Struct, frozen=True):
    """What a seal counts of an effect, and where that is."""

    namespace: str
    name_mac: bytes
    execution: int
    mac: bytes


_ROW = ", ".join(column_names(EffectRow))
_PLACED = ", ".join(column_names(PlacedEffectRow))
_WHOLE = ", ".join(column_names(WholeEffectRow))
_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"
_PLACE = f"{_THREAD} AND namespace = :namespace AND name_mac = :name_mac"
_KEY = {"thread_id", "namespace", "name_mac", "execution"}

# All executions of a name, the newest first.
NAMED = Statement(
    f"SELECT {_ROW} FROM stateroom.effects WHERE {_PLACE} ORDER BY execution DESC LIMIT :limit",
    EffectRow,
)
# Effects of an intent, the newest first.
OF_INTENT = Statement(
    f"""
SELECT {_PLACED} FROM stateroom.effects WHERE {_THREAD} AND intent_mac = :intent_mac
  AND namespace = :namespace AND status NOT IN ('failed', 'voided')
ORDER BY created_at DESC, name_mac, execution DESC LIMIT :limit
""",
    PlacedEffectRow,
)
WHOLE = Statement(
    f"SELECT {_WHOLE} FROM stateroom.effects WHERE {_PLACE} AND execution = :execution",
    WholeEffectRow,
)
# What the seal counts of some parts (`storage.format.thread_ledgers.seal.effect_part`).
MACS = Statement(
    f"""
SELECT namespace, name_mac, execution, mac FROM stateroom.effects
WHERE {_THREAD} AND get_byte(name_mac, 0) % 16 = ANY(:parts::integer[])
""",
    EffectMac,
)
LISTED = Statement(
    f"""
SELECT {_PLACED} FROM stateroom.effects
WHERE {_THREAD} AND (:status::text IS NULL OR status = :status)
  AND (:checkpoint_id::text IS NULL OR anchor_checkpoint_id = :checkpoint_id)
  AND (:after_at::timestamptz IS NULL
    OR (created_at, namespace, name_mac, execution) > (:after_at, :after_namespace, :after_name, :after_execution))
ORDER BY created_at, namespace, name_mac, execution LIMIT :limit
""",
    PlacedEffectRow,
)
_COLUMNS = column_names(WholeEffectRow)
ADD = Statement(f"""
INSERT INTO stateroom.effects (tenant_id, subject_id, {_WHOLE})
VALUES (:tenant_id, :subject_id, {", ".join(f":{name}" for name in _COLUMNS)})
""")
# Another attempt, an end, or what was found out; what was asked stays.
_CHANGED = [name for name in column_names(EffectRow) if name not in _KEY]
SET = Statement(f"""
UPDATE stateroom.effects SET {", ".join(f"{name} = :{name}" for name in _CHANGED)}
WHERE {_PLACE} AND execution = :execution AND mac = :before
""")
SET_ENDED = Statement(f"""
UPDATE stateroom.effects SET {", ".join(f"{name} = :{name}" for name in (*_CHANGED, "outcome", "result"))}
WHERE {_PLACE} AND execution = :execution AND mac = :before
""")

HEAD = Statement(
    f"SELECT head_id FROM stateroom.heads WHERE {_THREAD} AND namespace = :namespace",
    str,
)


class LineRow(msgspec.Struct, frozen=True):
    """A checkpoint on a line."""

    checkpoint_id: str
    parent_id: str | None


# A checkpoint and its ancestors in the database, nearest first, as `storage.statements.threads.checkpoints.ANCESTORS`.
LINE = Statement(
    """
WITH RECURSIVE line AS (
    SELECT 1 AS depth, c.checkpoint_id, c.parent_id FROM stateroom.checkpoints c
    WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
      AND c.namespace = :namespace AND c.checkpoint_id = :checkpoint_id
    UNION ALL
    SELECT line.depth + 1, c.checkpoint_id, c.parent_id FROM line
    CROSS JOIN LATERAL (
        SELECT p.checkpoint_id, p.parent_id FROM stateroom.checkpoints p
        WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.thread_id = :thread_id
          AND p.namespace = :namespace AND p.checkpoint_id = line.parent_id
        LIMIT 1) c
    WHERE line.depth < :limit
)
SELECT checkpoint_id, parent_id FROM line ORDER BY depth
""",
    LineRow,
)


# Those of some checkpoints that have a row: not what a program kept to itself, nor what was pruned or moved.
STORED = Statement(
    """
SELECT checkpoint_id FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
  AND namespace = :namespace AND checkpoint_id = ANY(:checkpoint_ids::text[])
""",
    str,
)


class UnknownRow(msgspec.Struct, frozen=True):
    """An effect of which nobody knows whether it happened."""

    subject_id: str
    thread_id: str
    namespace: str
    name_mac: bytes
    execution: int
    attempt: int
    mode: str
    anchor_checkpoint_id: str | None
    run_id: str | None
    started_at: datetime
    started_by: str


# By the index of what has no end yet. Whoever started something that may not be repeated and said nothing in time is
# taken for dead, as the next start of it will find.
UNKNOWN = Statement(
    f"""
SELECT {", ".join(column_names(UnknownRow))} FROM stateroom.effects
WHERE tenant_id = :tenant_id AND status IN ('started', 'unknown')
  AND (status = 'unknown' OR mode = 'once' AND leased_until <= statement_timestamp())
  AND (:only_subject::text IS NULL OR subject_id = :only_subject)
  AND (subject_id, thread_id, namespace, name_mac, execution)
    > (:after_subject, :after_thread, :after_namespace, :after_name, :after_execution)
ORDER BY subject_id, thread_id, namespace, name_mac, execution LIMIT :limit
""",
    UnknownRow,
)

# Whether a thread has a live claim, an effect that is under way, or one that may not be repeated and did not end: then
# no policy deletes or archives it.
BUSY = Statement(
    f"""
SELECT EXISTS (SELECT FROM stateroom.effects WHERE {_THREAD} AND status IN ('started', 'unknown')
    AND (mode = 'once' OR status = 'started' AND leased_until > statement_timestamp()))
    OR EXISTS (
        SELECT FROM stateroom.claims c JOIN stateroom.threads t ON t.tenant_id = :tenant_id
            AND t.subject_id = :subject_id AND t.thread_id = c.thread_id
        WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
          AND c.status <> 'released' AND t.claimed_until > statement_timestamp())
""",
    bool,
)

# Names of a thread that goes, for whoever makes a thread of this id again.
BURY = Statement(f"""
INSERT INTO stateroom.effect_tombstones (tenant_id, subject_id, tombstone, removed_at)
SELECT DISTINCT tenant_id, subject_id, name_mac, clock_timestamp() FROM stateroom.effects
WHERE {_THREAD} AND mode = 'once' AND status IN ('started', 'done', 'unknown')
ON CONFLICT (tenant_id, subject_id, tombstone) DO UPDATE SET removed_at = excluded.removed_at
""")
FORGET_BURIED = Statement("""
DELETE FROM stateroom.effect_tombstones
WHERE tenant_id = :tenant_id AND subject_id = :subject_id
  AND removed_at < clock_timestamp() - make_interval(days => :days)
""")
BURIED = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.effect_tombstones WHERE tenant_id = :tenant_id AND subject_id = :subject_id
    AND tombstone = :tombstone AND removed_at > clock_timestamp() - make_interval(days => :days))
""",
    bool,
)
