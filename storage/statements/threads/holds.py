"""What writes to threads must know of legal holds; what removes state asks `storage.statements.rules.retention`."""

# A legal hold on a thread's agent holds the thread: while it stands, naming another agent does not free it. Of the
# thread `t`, where `:tenant_id` is the tenant.
AGENT_HELD = """EXISTS (SELECT FROM stateroom.retention r
            WHERE r.tenant_id = :tenant_id AND r.level = 'agent' AND r.target = t.agent AND r.legal_hold)"""
