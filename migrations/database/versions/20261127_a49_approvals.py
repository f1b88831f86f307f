"""Make room for approvals: what people are asked, their votes, and what a tenant asks of both.

Nothing is written there before the feature is switched on (ADR 30).
"""

from alembic import op

revision = "a49"
down_revision = "a48"
branch_labels = None
depends_on = None

_TENANT = "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"
_SUBJECT = f"({_TENANT}) AND (subject_id = NULLIF(current_setting('app.subject_id', true), ''))"
_LISTING = f"({_TENANT}) AND (current_setting('app.tenant_listing', true) = 'on')"
_PLACE = """
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    approval_id uuid NOT NULL,"""
_TABLES = {
    "approvals": f"""{_PLACE}
    namespace text NOT NULL COLLATE "C",
    checkpoint_id text COLLATE "C",
    run_id text COLLATE "C",
    agent text COLLATE "C",
    kind text NOT NULL,
    external_mac bytea NOT NULL,
    asked_mac bytea NOT NULL,
    action_mac bytea NOT NULL,
    status text NOT NULL,
    allowed text[] NOT NULL,
    requested_by text NOT NULL COLLATE "C",
    requested_principal text NOT NULL COLLATE "C",
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    valid_until timestamptz,
    decided_at timestamptz,
    decisions_needed integer NOT NULL,
    requester_may_approve boolean NOT NULL,
    edit_allowed boolean NOT NULL,
    valid_seconds integer NOT NULL,
    asserted_count boolean NOT NULL,
    revision bigint NOT NULL,
    client_share boolean NOT NULL,
    has_display boolean NOT NULL,
    request bytea NOT NULL,
    request_member bytea NOT NULL,
    display bytea,
    display_member bytea,
    decision bytea,
    decision_member bytea,
    mac bytea NOT NULL,
    CONSTRAINT approvals_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, approval_id)
)""",
    "approval_actions": f"""{_PLACE}
    position integer NOT NULL,
    action_mac bytea NOT NULL,
    status text NOT NULL,
    verdict text,
    effect_name_mac bytea,
    edited boolean NOT NULL,
    mac bytea NOT NULL,
    CONSTRAINT approval_actions_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, approval_id, position)
)""",
    "approval_votes": f"""{_PLACE}
    principal text NOT NULL COLLATE "C",
    key_id text NOT NULL COLLATE "C",
    counts_as text NOT NULL COLLATE "C",
    verdicts text[] NOT NULL,
    digest bytea NOT NULL,
    at timestamptz NOT NULL,
    asserted boolean NOT NULL,
    mac bytea NOT NULL,
    CONSTRAINT approval_votes_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, approval_id, principal, asserted)
)""",
}
_INDEXES = (
    """CREATE UNIQUE INDEX approvals_asked ON stateroom.approvals
        (tenant_id, subject_id, thread_id, namespace, external_mac, asked_mac) WHERE status = 'pending'""",
    "CREATE INDEX approvals_by_age ON stateroom.approvals (tenant_id, approval_id)",
    "CREATE INDEX approvals_by_expiry ON stateroom.approvals (tenant_id, expires_at) WHERE status = 'pending'",
)
_HIDDEN = {"request", "display", "decision", "mac"}


def _columns(body: str) -> str:
    names = [line.split()[0] for line in body.strip().splitlines() if not line.strip().startswith(("CONSTRAINT", ")"))]
    return ", ".join(name for name in names if name not in _HIDDEN and not name.endswith(("_mac", "_member", "digest")))


def upgrade() -> None:
    """Make the tables, their indexes and policies."""
    for table, body in _TABLES.items():
        op.execute(f"CREATE TABLE stateroom.{table} ({body}")
        op.execute(f"ALTER TABLE stateroom.{table} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY clear_columns ON stateroom.{table} FOR SELECT TO gw_ops USING (true)")
        op.execute(
            f"CREATE POLICY subject_rows ON stateroom.{table} TO gw_app USING ({_SUBJECT}) WITH CHECK ({_SUBJECT})"
        )
        op.execute(f"CREATE POLICY tenant_listing ON stateroom.{table} FOR SELECT TO gw_app USING ({_LISTING})")
        op.execute(f"GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.{table} TO gw_app")
        op.execute(f"GRANT SELECT ({_columns(body)}) ON stateroom.{table} TO gw_ops")
    for index in _INDEXES:
        op.execute(index)
    op.execute("""
CREATE TABLE stateroom.approval_policies (
    tenant_id uuid NOT NULL,
    agent text NOT NULL COLLATE "C",
    tool text NOT NULL COLLATE "C",
    required boolean NOT NULL,
    decisions_needed integer NOT NULL,
    requester_may_approve boolean NOT NULL,
    edit_allowed boolean NOT NULL,
    expires_seconds integer NOT NULL,
    valid_seconds integer NOT NULL,
    asserted_count boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT approval_policies_mac_check CHECK (length(mac) = 32),
    CONSTRAINT approval_policies_pkey PRIMARY KEY (tenant_id, agent, tool)
)
""")
    op.execute("ALTER TABLE stateroom.approval_policies ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY clear_columns ON stateroom.approval_policies FOR SELECT TO gw_ops USING (true)")
    op.execute(
        f"CREATE POLICY tenant_rows ON stateroom.approval_policies TO gw_app USING ({_TENANT}) WITH CHECK ({_TENANT})"
    )
    op.execute("GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.approval_policies TO gw_app")
    op.execute(
        "GRANT SELECT (tenant_id, agent, tool, required, decisions_needed, requester_may_approve, edit_allowed,"
        " expires_seconds, valid_seconds, asserted_count, updated_at) ON stateroom.approval_policies TO gw_ops"
    )


def downgrade() -> None:
    """Remove them, if nobody was asked and no policy is set."""
    op.execute("""
DO $body$ BEGIN
    IF EXISTS (SELECT FROM stateroom.approvals) OR EXISTS (SELECT FROM stateroom.approval_policies) THEN
        RAISE EXCEPTION 'there are approvals, or policies of them: remove these before this revision is undone';
    END IF;
END $body$
""")
    for table in ("approval_votes", "approval_actions", "approvals", "approval_policies"):
        op.execute(f"DROP TABLE stateroom.{table}")
