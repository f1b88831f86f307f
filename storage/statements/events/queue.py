"""Statements that add events to the queue, and those of the relay, which takes them from there."""

from datetime import datetime
from uuid import UUID

import msgspec

from storage.postgres.statement import Statement

IS_ON = Statement("SELECT is_on FROM stateroom.event_settings WHERE tenant_id = :tenant_id", bool)

# An event of a stream whose number the caller knows. Operators write for a tenant, too: which one is always said.
ADD = Statement("""
SELECT stateroom.queue_event(:owner, :owner_subject, :event_id, :type, :stream_kind, :stream_id, :incarnation,
    :stream_sequence, :thread_id, :namespace, :checkpoint_id, :run_id, :agent, :status, :job_id, :key_id, :subject_tag)
""")
# An event of a thread, whose row is locked, if it was not before: its stream is the thread as it was made then, its
# number the thread's activity, and ``step`` more for what ends it. By its microseconds a thread differs from one of its
# id that was there before.
ADD_OF_THREAD = Statement("""
SELECT stateroom.queue_event(t.tenant_id, t.subject_id, :event_id, :type, 'thread', t.thread_id,
    (extract(epoch FROM t.created_at) * 1000000)::bigint::text, t.activity + :step, t.thread_id, :namespace,
    :checkpoint_id, :run_id, coalesce(:agent, t.agent), coalesce(:status, t.status), NULL, NULL, NULL)
FROM (
    SELECT tenant_id, subject_id, thread_id, created_at, activity, agent, status FROM stateroom.threads
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id FOR UPDATE) t
""")
# The number of the next event of the tenant itself. Its row is locked last of all.
NEXT_OF_TENANT = Statement(
    """
INSERT INTO stateroom.tenant_streams AS s (tenant_id, next) VALUES (:owner, 2)
ON CONFLICT (tenant_id) DO UPDATE SET next = s.next + 1 RETURNING next - 1
""",
    int,
)


class RelayedRow(msgspec.Struct, frozen=True):
    """What a call of the relay did.

    Attributes:
        held_until: The end of the lease, by which its holder is known.
        taken: The number of events that left the queue.
        newest: The number of the tenant's newest event.
        last_kind: The kind of the stream of the last one; None: there was none.
        last_id: The stream's id.
        last_incarnation: The stream's incarnation.
        rests: Whether nothing is due of the tenant any more, and the lease was given back.
    """

    held_until: datetime
    taken: int
    newest: int
    last_kind: str | None
    last_id: str | None
    last_incarnation: str | None
    rests: bool


# No row: another process has the lease.
RELAY = Statement(
    """
SELECT held_until, taken, newest, last_kind, last_id, last_incarnation, rests FROM stateroom.relay_events(
    :tenant_id, :after_kind, :after_id, :after_incarnation, :rows_max, :lease_seconds, :held_until, :may_rest)
""",
    RelayedRow,
)
RELEASE = Statement("""
UPDATE stateroom.event_relays SET leased_until = NULL WHERE tenant_id = :tenant_id AND leased_until = :held_until
""")
# Across tenants, by an operator's binding: whose events wait to be numbered, the longest first.
TENANTS_DUE = Statement(
    """
SELECT tenant_id FROM stateroom.event_relays
WHERE due_at IS NOT NULL AND (leased_until IS NULL OR leased_until < statement_timestamp())
ORDER BY due_at LIMIT :limit
""",
    UUID,
)
# How long the tenant has waited that nobody is at, and that waits the longest.
LAG_SECONDS = Statement(
    """
SELECT coalesce(extract(epoch FROM max(statement_timestamp() - due_at)), 0)::float8 FROM stateroom.event_relays
WHERE due_at IS NOT NULL AND (leased_until IS NULL OR leased_until < statement_timestamp())
""",
    float,
)
# What a transaction that sees one moment cannot say by itself.
MARK_DUE = Statement("""
UPDATE stateroom.event_relays SET due_at = coalesce(due_at, statement_timestamp()) WHERE tenant_id = :tenant_id
""")
# There is a row from the moment on at which a tenant switches its events on.
BEGIN_RELAY = Statement("""
INSERT INTO stateroom.event_relays (tenant_id, due_at) VALUES (:tenant_id, statement_timestamp())
ON CONFLICT (tenant_id) DO UPDATE SET due_at = excluded.due_at
""")
