"""Make room for events: their queue, what the relay makes of it, and whether a tenant has them.

Nothing is written there before the feature is switched on (ADR 30) and a tenant switched its events on; builds before
this one read the tables nowhere and go on with the functions that they call.
"""

from pathlib import Path

from alembic import op

from migrations.sql_files import statements

revision = "a46"
down_revision = "a45"
branch_labels = None
depends_on = None

FUNCTIONS = Path(__file__).parents[1] / "functions"
MADE = (
    "016_queue_event", "017_save_on_8", "018_put_writes_on_7", "019_look_up_api_key_3", "020_relay_events",
    "021_read_events", "022_newest_event",
)  # fmt: skip
_TENANT = "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"
_OF_SUBJECT = "subject_id = NULLIF(current_setting('app.subject_id', true), '')"
_LISTING = "current_setting('app.tenant_listing', true) = 'on'"
_OPERATOR = "current_setting('app.operator', true) = 'on'"
_RELAY = f"{_TENANT} AND (current_setting('app.relay', true) = 'on')"

_SAYS = """
    subject_id text NOT NULL COLLATE "C",
    event_id uuid NOT NULL,
    type text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    stream_kind text NOT NULL,
    stream_id text NOT NULL COLLATE "C",
    incarnation text NOT NULL COLLATE "C",
    stream_sequence bigint NOT NULL,
    thread_id text COLLATE "C",
    namespace text COLLATE "C",
    checkpoint_id text COLLATE "C",
    run_id text COLLATE "C",
    agent text COLLATE "C",
    status text,
    job_id uuid,
    key_id text COLLATE "C",
    subject_tag text,"""
# Rows come and go, or are written again and again.
_BUSY = """WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05')"""
_TABLES = {
    "event_settings": """
    is_on boolean NOT NULL,
    since timestamptz,
    changed_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT event_settings_mac_check CHECK (length(mac) = 32),
    CONSTRAINT event_settings_since_check CHECK (is_on = (since IS NOT NULL)),
    CONSTRAINT event_settings_pkey PRIMARY KEY (tenant_id)
)""",
    "event_queue": f"""{_SAYS}
    CONSTRAINT event_queue_pkey PRIMARY KEY (tenant_id, event_id)
) {_BUSY}""",
    "events": f"""
    sequence bigint NOT NULL,{_SAYS}
    CONSTRAINT events_pkey PRIMARY KEY (tenant_id, sequence)
) {_BUSY}""",
    "event_counters": """
    next_sequence bigint NOT NULL,
    oldest_sequence bigint NOT NULL,
    CONSTRAINT event_counters_pkey PRIMARY KEY (tenant_id)
) WITH (fillfactor='60')""",
    "event_relays": """
    due_at timestamptz,
    leased_until timestamptz,
    CONSTRAINT event_relays_pkey PRIMARY KEY (tenant_id)
) WITH (fillfactor='60')""",
    "tenant_streams": """
    next bigint NOT NULL,
    CONSTRAINT tenant_streams_pkey PRIMARY KEY (tenant_id)
) WITH (fillfactor='60')""",
}
# By table: the policies of gw_app, each with its command, its condition and its check.
_POLICIES: dict[str, dict[str, tuple[str, str | None, str | None]]] = {
    "event_settings": {"tenant_rows": ("ALL", _TENANT, _TENANT)},
    "event_queue": {
        "relay_reads": ("SELECT", _RELAY, None),
        "relay_takes": ("DELETE", _RELAY, None),
        "subject_adds": ("INSERT", None, f"{_TENANT} AND ({_OF_SUBJECT} OR subject_id = '')"),
    },
    "events": {
        "relay_rows": ("ALL", _RELAY, _RELAY),
        "subject_reads": ("SELECT", f"{_TENANT} AND ({_OF_SUBJECT})", None),
        "tenant_listing": ("SELECT", f"{_TENANT} AND ({_LISTING})", None),
    },
    "event_counters": {"relay_rows": ("ALL", _RELAY, _RELAY)},
    "event_relays": {"operator_reads": ("SELECT", _OPERATOR, None), "tenant_rows": ("ALL", _TENANT, _TENANT)},
    "tenant_streams": {"tenant_rows": ("ALL", _TENANT, _TENANT)},
}
_GRANTS = {"event_queue": "SELECT, INSERT, DELETE"}
_SAID = ", ".join(line.split()[0] for line in _SAYS.strip().splitlines())
_CLEAR = {
    "event_settings": "is_on, since, changed_at",
    "event_queue": _SAID,
    "events": f"sequence, {_SAID}",
    "event_counters": "next_sequence, oldest_sequence",
    "event_relays": "due_at, leased_until",
    "tenant_streams": "next",
}


def upgrade() -> None:
    """Make the tables, their indexes and policies, and the functions."""
    for table, columns in _TABLES.items():
        op.execute(f"CREATE TABLE stateroom.{table} (\n    tenant_id uuid NOT NULL,{columns}")
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")
        for name, (command, condition, check) in _POLICIES[table].items():
            using = "" if condition is None else f" USING ({condition})"
            checked = "" if check is None else f" WITH CHECK ({check})"
            op.execute(f"CREATE POLICY {name} ON stateroom.{table} FOR {command} TO gw_app{using}{checked}")
        granted = _GRANTS.get(table, "SELECT, INSERT, DELETE, UPDATE")
        op.execute(f"GRANT {granted} ON stateroom.{table} TO gw_app")
        op.execute(f"GRANT SELECT (tenant_id, {_CLEAR[table]}) ON stateroom.{table} TO gw_ops")
    op.execute("CREATE POLICY look_up ON stateroom.event_settings FOR SELECT TO gw_auth USING (true)")
    op.execute("GRANT SELECT (tenant_id, is_on) ON stateroom.event_settings TO gw_auth")
    op.execute("""
CREATE INDEX event_queue_by_stream ON stateroom.event_queue
    USING btree (tenant_id, stream_kind, stream_id, incarnation, stream_sequence, at)
""")
    op.execute(
        "CREATE INDEX event_relays_due ON stateroom.event_relays USING btree (due_at) WHERE (due_at IS NOT NULL)"
    )
    for name in MADE:
        for statement in statements(FUNCTIONS / f"{name}.sql"):
            op.execute(statement)


def downgrade() -> None:
    """Remove the tables and the functions, if no tenant has events and none are kept."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.event_settings WHERE is_on) OR EXISTS (SELECT FROM stateroom.events)
        OR EXISTS (SELECT FROM stateroom.event_queue) THEN
        RAISE EXCEPTION 'tenants have events: switch them off and let them expire before this revision is undone';
    END IF;
END $body$
""")
    for name in MADE:
        op.execute(f"DROP FUNCTION stateroom.{name[4:]}")
    for table in reversed(_TABLES):
        op.execute(f"DROP TABLE stateroom.{table}")
