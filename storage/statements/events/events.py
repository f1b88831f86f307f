"""Statements on what was numbered of events: reading it, and taking it away when it is old or a subject goes."""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement


class SettingsRow(msgspec.Struct, frozen=True):
    """Whether a tenant has events, as it is stored."""

    is_on: bool
    since: datetime | None
    changed_at: datetime
    mac: bytes | None
    mac_format: int | None


class EventRow(msgspec.Struct, frozen=True):
    """An event as it is stored."""

    sequence: int
    event_id: UUID
    type: str
    at: datetime
    stream_kind: str
    stream_id: str
    incarnation: str
    stream_sequence: int
    subject_id: str
    thread_id: str | None
    namespace: str | None
    checkpoint_id: str | None
    run_id: str | None
    agent: str | None
    status: str | None
    job_id: UUID | None
    key_id: str | None
    subject_tag: str | None


class PageRow(msgspec.Struct, frozen=True):
    """A page of events, and what tells what the position means behind which it is.

    Attributes:
        settings: Whether the tenant has events; None: it never said so.
        newest: The number of its newest event.
        oldest: The number of the oldest that is kept.
        now: The time at which the page was read.
        at_id: The id of the event at the position; None: there is none.
        reached: The number up to which the page looked.
        reached_id: The id of the event there; None: there is none.
        events: The events of the page, in the order of their numbers.
    """

    settings: SettingsRow | None
    newest: int
    oldest: int
    now: datetime
    at_id: UUID | None
    reached: int
    reached_id: UUID | None
    events: list[EventRow]


SETTINGS = Statement(
    """
SELECT is_on, since, changed_at, mac, mac_format FROM stateroom.event_settings WHERE tenant_id = :tenant_id
""",
    SettingsRow,
)
PUT_SETTINGS = Statement("""
INSERT INTO stateroom.event_settings (tenant_id, is_on, since, changed_at, mac, mac_format)
VALUES (:tenant_id, :is_on, :since, :changed_at, :mac, :mac_format)
ON CONFLICT (tenant_id) DO UPDATE SET is_on = excluded.is_on, since = excluded.since,
    changed_at = excluded.changed_at, mac = excluded.mac, mac_format = excluded.mac_format
""")
LOCK = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")

# One function reads under two bindings: what there is of numbers is the tenant's, and events are the reader's. It binds
# what it needs by itself, and does not write.
READ = Statement(
    """
SELECT is_on, since, changed_at, mac, mac_format, newest, oldest, now, at_id, reached, reached_id, e_sequence,
    e_event_id, e_type, e_at, e_stream_kind, e_stream_id, e_incarnation, e_stream_sequence, e_subject_id, e_thread_id,
    e_namespace, e_checkpoint_id, e_run_id, e_agent, e_status, e_job_id, e_key_id, e_subject_tag
FROM stateroom.read_events(:tenant_id, :reader, :after, :types, :thread_id, :rows_max, :numbers_max)
""",
    PageRow,
)
NEWEST = Statement("SELECT stateroom.newest_event(:tenant_id)", int)

# Positions from before are not valid any more: the next number is one that no event gets, and all below it are too old.
BEGIN_ANEW = Statement("""
INSERT INTO stateroom.event_counters AS c (tenant_id, next_sequence, oldest_sequence) VALUES (:tenant_id, 1, 1)
ON CONFLICT (tenant_id) DO UPDATE SET next_sequence = c.next_sequence + 1, oldest_sequence = c.next_sequence + 1
""")


class ThereIs(msgspec.Struct, frozen=True):
    """Whether a tenant has events that wait, and numbered ones."""

    queued: bool
    numbered: bool


THERE_IS = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.event_queue WHERE tenant_id = :tenant_id) AS queued,
    EXISTS (SELECT FROM stateroom.events WHERE tenant_id = :tenant_id) AS numbered
""",
    ThereIs,
)

# The number up to which events are too old or too many, of the first ones that there are; NULL: none is.
OVER = Statement(
    """
SELECT max(sequence) FROM (
    SELECT f.sequence, bool_and(f.at < statement_timestamp() - make_interval(secs => :seconds_max)
        OR f.sequence <= f.newest - :rows_kept OR f.sequence < f.oldest_sequence) OVER (ORDER BY f.sequence) AS over
    FROM (
        SELECT e.sequence, e.at, c.next_sequence - 1 AS newest, c.oldest_sequence
        FROM stateroom.events e JOIN stateroom.event_counters c ON c.tenant_id = e.tenant_id
        WHERE e.tenant_id = :tenant_id ORDER BY e.sequence LIMIT :page_rows) f) over
WHERE over.over
""",
    int,
)
KEEP_FROM = Statement("""
UPDATE stateroom.event_counters SET oldest_sequence = greatest(oldest_sequence, :oldest) WHERE tenant_id = :tenant_id
""")
DELETE_BELOW = Statement("DELETE FROM stateroom.events WHERE tenant_id = :tenant_id AND sequence < :oldest")


# What is left of a page of a subject's events: that there were some.
REMOVE_OF_SUBJECT = Statement("""
UPDATE stateroom.events SET type = 'removed', subject_id = '', stream_kind = 'tenant', stream_id = '', incarnation = '',
    stream_sequence = 0, thread_id = NULL, namespace = NULL, checkpoint_id = NULL, run_id = NULL, agent = NULL,
    status = NULL, job_id = NULL, key_id = NULL, subject_tag = NULL
WHERE tenant_id = :tenant_id AND sequence > :after AND sequence <= :until AND subject_id = :gone
""")


class OfSubject(msgspec.Struct, frozen=True):
    """Whether events of a subject wait, and where numbered ones can be: from the oldest to the newest of its tenant."""

    waiting: bool
    oldest: int
    newest: int


# In one snapshot: what does not wait has its number.
OF_SUBJECT = Statement(
    """
SELECT EXISTS (SELECT FROM stateroom.event_queue WHERE tenant_id = :tenant_id AND subject_id = :gone) AS waiting,
    coalesce((SELECT min(sequence) FROM stateroom.events WHERE tenant_id = :tenant_id), 1) AS oldest,
    coalesce((SELECT max(sequence) FROM stateroom.events WHERE tenant_id = :tenant_id), 0) AS newest
""",
    OfSubject,
)

# All of a tenant, which is gone, too; what it said is removed with what else it said.
PURGE_PAGES = (
    Statement("""
DELETE FROM stateroom.event_queue WHERE tenant_id = :tenant_id AND event_id IN (
    SELECT event_id FROM stateroom.event_queue WHERE tenant_id = :tenant_id LIMIT :page_rows)
"""),
    Statement("""
DELETE FROM stateroom.events WHERE tenant_id = :tenant_id AND sequence IN (
    SELECT sequence FROM stateroom.events WHERE tenant_id = :tenant_id ORDER BY sequence LIMIT :page_rows)
"""),
    Statement("""
DELETE FROM stateroom.event_counters WHERE tenant_id = :tenant_id AND :page_rows::int > 0
"""),
)
OLDEST = Statement("SELECT oldest_sequence FROM stateroom.event_counters WHERE tenant_id = :tenant_id", int)
