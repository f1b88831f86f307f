-- The tables of the schema at revision a34, with their indexes, row-level security and privileges; a later revision says
-- what it changes. @tenant@, @subject@, @listing@ and @operator@ stand for what the policies compare with (baseline.py).

GRANT USAGE ON SCHEMA stateroom TO gw_app;
GRANT USAGE ON SCHEMA stateroom TO gw_auth;
GRANT USAGE ON SCHEMA stateroom TO gw_worker;
GRANT USAGE ON SCHEMA stateroom TO gw_ops;
GRANT SELECT ON stateroom.db_revision TO gw_app;
GRANT SELECT ON stateroom.db_revision TO gw_worker;
GRANT SELECT ON stateroom.db_revision TO gw_ops;

-- The deployment: what it is, what its processes are and know

CREATE TABLE stateroom.deployment (
    singleton boolean NOT NULL,
    deployment_id uuid NOT NULL,
    CONSTRAINT deployment_singleton_check CHECK (singleton),
    CONSTRAINT deployment_pkey PRIMARY KEY (singleton)
);
GRANT SELECT, INSERT ON stateroom.deployment TO gw_app;
GRANT SELECT ON stateroom.deployment TO gw_worker;
GRANT SELECT ON stateroom.deployment TO gw_ops;

CREATE TABLE stateroom.deployment_keys (
    purpose text NOT NULL,
    key_version integer NOT NULL,
    provider text NOT NULL,
    root_key_id text NOT NULL,
    root_key_version text NOT NULL,
    wrapped bytea NOT NULL,
    public bytea NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT deployment_keys_key_version_check CHECK (key_version > 0),
    CONSTRAINT deployment_keys_purpose_check CHECK (purpose IN ('audit', 'transfer', 'control')),
    CONSTRAINT deployment_keys_pkey PRIMARY KEY (purpose, key_version)
);
GRANT SELECT, INSERT ON stateroom.deployment_keys TO gw_app;
GRANT UPDATE (provider, root_key_id, root_key_version, wrapped) ON stateroom.deployment_keys TO gw_app;

CREATE TABLE stateroom.deployment_features (
    feature text NOT NULL COLLATE "C",
    since timestamptz NOT NULL,
    mac_format smallint NOT NULL,
    mac bytea NOT NULL,
    CONSTRAINT deployment_features_mac_check CHECK (length(mac) = 32),
    CONSTRAINT deployment_features_pkey PRIMARY KEY (feature)
);
GRANT SELECT, INSERT ON stateroom.deployment_features TO gw_app;
GRANT SELECT (feature, since) ON stateroom.deployment_features TO gw_ops;

CREATE TABLE stateroom.processes (
    instance uuid NOT NULL,
    place text NOT NULL,
    build text NOT NULL,
    features text[] NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    CONSTRAINT processes_pkey PRIMARY KEY (instance)
);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.processes TO gw_app;
GRANT SELECT ON stateroom.processes TO gw_ops;

-- Tenants, their API keys, what their rows take

CREATE TABLE stateroom.tenants (
    tenant_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL,
    root text,
    suspended_at timestamptz,
    CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id)
);
ALTER TABLE stateroom.tenants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.tenants FOR SELECT TO gw_ops USING (true);
CREATE POLICY look_up ON stateroom.tenants FOR SELECT TO gw_auth USING (true);
CREATE POLICY operator_rows ON stateroom.tenants TO gw_app USING (@operator@) WITH CHECK (@operator@);
CREATE POLICY own_row ON stateroom.tenants FOR SELECT TO gw_app USING (@tenant@);
CREATE POLICY worker_rows ON stateroom.tenants FOR SELECT TO gw_worker USING (true);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.tenants TO gw_app;
GRANT SELECT (tenant_id) ON stateroom.tenants TO gw_worker;
GRANT SELECT (tenant_id, name, created_at, suspended_at) ON stateroom.tenants TO gw_ops;
GRANT SELECT (tenant_id, suspended_at) ON stateroom.tenants TO gw_auth;

CREATE TABLE stateroom.api_keys (
    key_id text NOT NULL COLLATE "C",
    kind text NOT NULL,
    name text NOT NULL,
    tenant_id uuid,
    subject_id text COLLATE "C",
    permissions text[] NOT NULL,
    mac bytea NOT NULL,
    pepper_version integer NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    CONSTRAINT api_keys_check CHECK ((kind = 'operator') = (tenant_id IS NULL)),
    CONSTRAINT api_keys_check1 CHECK ((kind = 'subject') = (subject_id IS NOT NULL)),
    CONSTRAINT api_keys_kind_check CHECK (kind IN ('subject', 'service', 'operator')),
    CONSTRAINT api_keys_mac_check CHECK (length(mac) = 32),
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_id)
);
CREATE INDEX api_keys_by_tenant ON stateroom.api_keys USING btree (tenant_id, created_at, key_id);
ALTER TABLE stateroom.api_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY look_up ON stateroom.api_keys FOR SELECT TO gw_auth USING (true);
CREATE POLICY operator_rows ON stateroom.api_keys TO gw_app USING (@operator@ AND (tenant_id IS NULL))
    WITH CHECK (@operator@ AND (tenant_id IS NULL));
CREATE POLICY tenant_rows ON stateroom.api_keys TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.api_keys TO gw_app;
GRANT SELECT ON stateroom.api_keys TO gw_auth;

CREATE TABLE stateroom.api_key_seals (
    key_id text NOT NULL COLLATE "C",
    tenant_id uuid,
    grants text[] NOT NULL,
    mac bytea NOT NULL,
    pepper_version integer NOT NULL,
    CONSTRAINT api_key_seals_mac_check CHECK (length(mac) = 32),
    CONSTRAINT api_key_seals_pkey PRIMARY KEY (key_id)
);
ALTER TABLE stateroom.api_key_seals ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY look_up ON stateroom.api_key_seals FOR SELECT TO gw_auth USING (true);
CREATE POLICY operator_rows ON stateroom.api_key_seals TO gw_app USING (@operator@ AND (tenant_id IS NULL))
    WITH CHECK (@operator@ AND (tenant_id IS NULL));
CREATE POLICY tenant_rows ON stateroom.api_key_seals TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.api_key_seals TO gw_app;
GRANT SELECT ON stateroom.api_key_seals TO gw_auth;

CREATE TABLE stateroom.row_usage (
    tenant_id uuid NOT NULL,
    bytes bigint,
    quota_bytes bigint,
    counted_at timestamptz,
    count_after timestamptz DEFAULT '-infinity'::timestamptz NOT NULL,
    CONSTRAINT row_usage_bytes_check CHECK (bytes >= 0),
    CONSTRAINT row_usage_quota_bytes_check CHECK (quota_bytes >= 0),
    CONSTRAINT row_usage_pkey PRIMARY KEY (tenant_id)
)
WITH (fillfactor='60');
ALTER TABLE stateroom.row_usage ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.row_usage FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_reads ON stateroom.row_usage FOR SELECT TO gw_app USING (@operator@);
CREATE POLICY tenant_rows ON stateroom.row_usage TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.row_usage TO gw_app;
GRANT SELECT (tenant_id, bytes, quota_bytes, counted_at, count_after) ON stateroom.row_usage TO gw_ops;

-- Keys of tenants and subjects

CREATE TABLE stateroom.tenant_keys (
    tenant_id uuid NOT NULL,
    key_version integer NOT NULL,
    state text NOT NULL,
    provider text NOT NULL,
    root_key_id text NOT NULL,
    root_key_version text NOT NULL,
    wrapped bytea,
    kcv bytea NOT NULL,
    created_at timestamptz NOT NULL,
    destroyed_at timestamptz,
    CONSTRAINT tenant_keys_check CHECK ((state = 'destroyed') = (wrapped IS NULL)),
    CONSTRAINT tenant_keys_key_version_check CHECK (key_version > 0),
    CONSTRAINT tenant_keys_state_check CHECK (state IN ('pending', 'active', 'decrypt_only', 'retired', 'destroyed')),
    CONSTRAINT tenant_keys_pkey PRIMARY KEY (tenant_id, key_version)
);
CREATE UNIQUE INDEX tenant_keys_active ON stateroom.tenant_keys USING btree (tenant_id) WHERE (state = 'active');
ALTER TABLE stateroom.tenant_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.tenant_keys FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_reads ON stateroom.tenant_keys FOR SELECT TO gw_app USING (@operator@);
CREATE POLICY tenant_rows ON stateroom.tenant_keys TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.tenant_keys TO gw_app;
GRANT SELECT (tenant_id, key_version, state, provider, created_at, destroyed_at) ON stateroom.tenant_keys TO gw_ops;

CREATE TABLE stateroom.subject_keys (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    purpose text NOT NULL,
    key_version integer NOT NULL,
    tenant_key_version integer NOT NULL,
    state text NOT NULL,
    wrapped bytea,
    kcv bytea NOT NULL,
    created_at timestamptz NOT NULL,
    destroyed_at timestamptz,
    shred_effective_at timestamptz,
    CONSTRAINT subject_keys_check CHECK ((state = 'destroyed') = (wrapped IS NULL)),
    CONSTRAINT subject_keys_key_version_check CHECK (key_version > 0),
    CONSTRAINT subject_keys_purpose_check CHECK (purpose IN ('data', 'id')),
    CONSTRAINT subject_keys_state_check CHECK (state IN ('pending', 'active', 'decrypt_only', 'retired', 'destroyed')),
    CONSTRAINT subject_keys_pkey PRIMARY KEY (tenant_id, subject_id, purpose, key_version)
);
CREATE UNIQUE INDEX subject_keys_active ON stateroom.subject_keys USING btree (tenant_id, subject_id, purpose)
    WHERE (state = 'active');
ALTER TABLE stateroom.subject_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.subject_keys FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.subject_keys TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_reads ON stateroom.subject_keys FOR SELECT TO gw_app
    USING (@tenant@ AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL));
CREATE POLICY tenant_rewraps ON stateroom.subject_keys FOR UPDATE TO gw_app
    USING (@tenant@ AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL))
    WITH CHECK (@tenant@ AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL));
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.subject_keys TO gw_app;
GRANT SELECT (tenant_id, subject_id, purpose, key_version, tenant_key_version, state, created_at, destroyed_at,
    shred_effective_at) ON stateroom.subject_keys TO gw_ops;

-- The audit log, and what a restore lost of it

CREATE TABLE stateroom.audit_heads (
    tenant_id uuid NOT NULL,
    sequence bigint NOT NULL,
    hash bytea NOT NULL,
    anchored bigint DEFAULT 0 NOT NULL,
    CONSTRAINT audit_heads_hash_check CHECK (length(hash) = 32),
    CONSTRAINT audit_heads_pkey PRIMARY KEY (tenant_id)
);
CREATE INDEX audit_heads_to_anchor ON stateroom.audit_heads USING btree (tenant_id) WHERE (sequence > anchored);
ALTER TABLE stateroom.audit_heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.audit_heads FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_chain ON stateroom.audit_heads TO gw_app
    USING (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid))
    WITH CHECK (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid));
CREATE POLICY operator_heads ON stateroom.audit_heads FOR SELECT TO gw_app USING (@operator@);
CREATE POLICY tenant_rows ON stateroom.audit_heads TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, UPDATE ON stateroom.audit_heads TO gw_app;
GRANT SELECT (tenant_id, sequence) ON stateroom.audit_heads TO gw_ops;

CREATE TABLE stateroom.audit_log (
    tenant_id uuid NOT NULL,
    sequence bigint NOT NULL,
    at timestamptz NOT NULL,
    actor text NOT NULL COLLATE "C",
    action text NOT NULL COLLATE "C",
    target text NOT NULL COLLATE "C",
    body bytea NOT NULL,
    previous bytea NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT audit_log_hash_check CHECK (length(hash) = 32),
    CONSTRAINT audit_log_previous_check CHECK (length(previous) = 32),
    CONSTRAINT audit_log_sequence_check CHECK (sequence > 0),
    CONSTRAINT audit_log_pkey PRIMARY KEY (tenant_id, sequence)
);
ALTER TABLE stateroom.audit_log ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.audit_log FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_chain ON stateroom.audit_log TO gw_app
    USING (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid))
    WITH CHECK (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid));
CREATE POLICY tenant_rows ON stateroom.audit_log TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT ON stateroom.audit_log TO gw_app;
GRANT SELECT (tenant_id, sequence, at, actor, action, target) ON stateroom.audit_log TO gw_ops;

CREATE TABLE stateroom.accepted_losses (
    tenant_id uuid NOT NULL,
    loss_id uuid NOT NULL,
    lost bytea NOT NULL,
    accepted_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT accepted_losses_mac_check CHECK (length(mac) = 32),
    CONSTRAINT accepted_losses_pkey PRIMARY KEY (tenant_id, loss_id)
);
ALTER TABLE stateroom.accepted_losses ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.accepted_losses FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_chain ON stateroom.accepted_losses TO gw_app
    USING (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid))
    WITH CHECK (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid));
CREATE POLICY tenant_rows ON stateroom.accepted_losses TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT ON stateroom.accepted_losses TO gw_app;
GRANT SELECT (tenant_id, loss_id, accepted_at) ON stateroom.accepted_losses TO gw_ops;

-- Threads: heads, checkpoints, pending writes, pieces (chunks)

CREATE TABLE stateroom.threads (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    agent text COLLATE "C",
    status text NOT NULL,
    tier text NOT NULL,
    strict boolean NOT NULL,
    activity bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    seal bytea NOT NULL,
    client_share boolean DEFAULT false NOT NULL,
    searchable text[] COLLATE "C",
    origin bytea,
    began_at timestamptz DEFAULT clock_timestamp(),
    CONSTRAINT threads_origin_check CHECK (length(origin) = 32),
    CONSTRAINT threads_status_check CHECK (status IN ('active', 'waiting', 'failed', 'done')),
    CONSTRAINT threads_tier_check CHECK (tier IN ('hot', 'archive')),
    CONSTRAINT threads_pkey PRIMARY KEY (tenant_id, subject_id, thread_id)
)
WITH (fillfactor='60');
CREATE INDEX threads_by_age ON stateroom.threads USING btree (tenant_id, subject_id, created_at, thread_id)
    WHERE (created_at >= '-infinity'::timestamp with time zone);
CREATE INDEX threads_by_searchable ON stateroom.threads USING btree (tenant_id, subject_id, searchable)
    WHERE (created_at >= '-infinity'::timestamp with time zone);
ALTER TABLE stateroom.threads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.threads FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.threads TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_listing ON stateroom.threads FOR SELECT TO gw_app USING (@listing@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.threads TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, agent, status, tier, strict, activity, created_at, updated_at,
    client_share, searchable) ON stateroom.threads TO gw_ops;

CREATE TABLE stateroom.heads (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    namespace text NOT NULL COLLATE "C",
    head_id text NOT NULL COLLATE "C",
    sequence bigint NOT NULL,
    seal bytea NOT NULL,
    CONSTRAINT heads_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, namespace)
)
WITH (fillfactor='60');
ALTER TABLE stateroom.heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.heads FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.heads TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.heads TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, namespace, head_id, sequence) ON stateroom.heads TO gw_ops;

CREATE TABLE stateroom.checkpoints (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    namespace text NOT NULL COLLATE "C",
    checkpoint_id text NOT NULL COLLATE "C",
    parent_id text COLLATE "C",
    step integer NOT NULL,
    status text NOT NULL,
    outcome text,
    source text COLLATE "C",
    agent text COLLATE "C",
    run_id text COLLATE "C",
    model text,
    state_schema text COLLATE "C",
    state_version integer,
    input_tokens bigint,
    output_tokens bigint,
    cost_micros bigint,
    created_at timestamptz NOT NULL,
    key_version integer NOT NULL,
    piece_ids bytea STORAGE EXTERNAL NOT NULL,
    manifest bytea STORAGE EXTERNAL NOT NULL,
    named_ids bytea STORAGE EXTERNAL,
    searchable text[] COLLATE "C",
    CONSTRAINT checkpoints_outcome_check CHECK (outcome IN ('active', 'waiting', 'failed', 'done')),
    CONSTRAINT checkpoints_status_check CHECK (status IN ('active', 'waiting', 'failed', 'done')),
    CONSTRAINT checkpoints_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id)
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02',
    toast.autovacuum_vacuum_threshold='1000');
CREATE INDEX checkpoints_by_age ON stateroom.checkpoints USING btree (tenant_id, subject_id, checkpoint_id)
    WHERE (created_at >= '-infinity'::timestamp with time zone);
CREATE INDEX checkpoints_by_run ON stateroom.checkpoints USING btree (tenant_id, subject_id, run_id)
    WHERE (run_id IS NOT NULL);
CREATE INDEX checkpoints_by_time ON stateroom.checkpoints USING brin (created_at);
CREATE INDEX checkpoints_troubled ON stateroom.checkpoints USING btree (tenant_id, status, created_at, step)
    WHERE ((status IN ('failed', 'waiting')) OR (outcome IS NOT NULL));
ALTER TABLE stateroom.checkpoints ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.checkpoints FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.checkpoints TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_listing ON stateroom.checkpoints FOR SELECT TO gw_app USING (@listing@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.checkpoints TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status, outcome, source,
    agent, run_id, model, state_schema, state_version, input_tokens, output_tokens, cost_micros, created_at,
    key_version, searchable) ON stateroom.checkpoints TO gw_ops;

CREATE TABLE stateroom.pending_writes (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    namespace text NOT NULL COLLATE "C",
    checkpoint_id text NOT NULL COLLATE "C",
    task_id text NOT NULL COLLATE "C",
    idx integer NOT NULL,
    task_path text NOT NULL COLLATE "C",
    channel text NOT NULL COLLATE "C",
    status text,
    created_at timestamptz NOT NULL,
    key_version integer NOT NULL,
    piece_ids bytea STORAGE EXTERNAL NOT NULL,
    value bytea STORAGE EXTERNAL NOT NULL,
    member bytea NOT NULL,
    named_ids bytea STORAGE EXTERNAL,
    state_schema text COLLATE "C",
    state_version integer,
    stored_at timestamptz DEFAULT clock_timestamp(),
    CONSTRAINT pending_writes_member_check CHECK (length(member) = 16),
    CONSTRAINT pending_writes_status_check CHECK (status IN ('active', 'waiting', 'failed', 'done')),
    CONSTRAINT pending_writes_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id,
    idx)
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02',
    toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE stateroom.pending_writes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.pending_writes FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.pending_writes TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.pending_writes TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, channel, status, created_at,
    key_version, state_schema, state_version) ON stateroom.pending_writes TO gw_ops;

CREATE TABLE stateroom.chunks (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    piece_id bytea NOT NULL,
    key_version integer NOT NULL,
    children bytea STORAGE EXTERNAL,
    envelope bytea STORAGE EXTERNAL NOT NULL,
    named_ids bytea STORAGE EXTERNAL,
    CONSTRAINT chunks_piece_id_check CHECK (length(piece_id) = 17),
    CONSTRAINT chunks_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, piece_id)
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000',
    autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02',
    toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE stateroom.chunks ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.chunks FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.chunks TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.chunks TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, key_version) ON stateroom.chunks TO gw_ops;

CREATE TABLE stateroom.checkpoint_tags (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    namespace text NOT NULL COLLATE "C",
    checkpoint_id text NOT NULL COLLATE "C",
    tag bytea NOT NULL,
    CONSTRAINT checkpoint_tags_tag_check CHECK (length(tag) = 17),
    CONSTRAINT checkpoint_tags_pkey PRIMARY KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id, tag)
);
CREATE INDEX checkpoint_tags_by_tag ON stateroom.checkpoint_tags USING btree (tenant_id, subject_id, tag,
    checkpoint_id);
ALTER TABLE stateroom.checkpoint_tags ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.checkpoint_tags FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.checkpoint_tags TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.checkpoint_tags TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, namespace, checkpoint_id) ON stateroom.checkpoint_tags TO gw_ops;

CREATE TABLE stateroom.removed_threads (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    removal bytea NOT NULL,
    removed_at timestamptz NOT NULL,
    CONSTRAINT removed_threads_removal_check CHECK (length(removal) = 32),
    CONSTRAINT removed_threads_pkey PRIMARY KEY (tenant_id, subject_id, removal)
);
ALTER TABLE stateroom.removed_threads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.removed_threads FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.removed_threads TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.removed_threads TO gw_app;
GRANT SELECT (tenant_id, subject_id, removed_at) ON stateroom.removed_threads TO gw_ops;

CREATE TABLE stateroom.archives (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    blob_id uuid NOT NULL,
    activity bigint NOT NULL,
    key_versions integer[] NOT NULL,
    client_share boolean NOT NULL,
    checkpoints integer NOT NULL,
    pending_writes integer NOT NULL,
    chunks integer NOT NULL,
    hot_bytes bigint NOT NULL,
    size_bytes bigint NOT NULL,
    run_ids text[] NOT NULL COLLATE "C",
    state_schemas text[] NOT NULL COLLATE "C",
    agents text[] NOT NULL COLLATE "C",
    named_ids bytea,
    storage_class text NOT NULL COLLATE "C",
    created_at timestamptz NOT NULL,
    key_version integer NOT NULL,
    sealed bytea STORAGE EXTERNAL NOT NULL,
    stored_at timestamptz DEFAULT clock_timestamp(),
    CONSTRAINT archives_checkpoints_check CHECK (checkpoints >= 0),
    CONSTRAINT archives_chunks_check CHECK (chunks >= 0),
    CONSTRAINT archives_hot_bytes_check CHECK (hot_bytes >= 0),
    CONSTRAINT archives_pending_writes_check CHECK (pending_writes >= 0),
    CONSTRAINT archives_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT archives_pkey PRIMARY KEY (tenant_id, subject_id, thread_id)
);
ALTER TABLE stateroom.archives ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.archives FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.archives TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_listing ON stateroom.archives FOR SELECT TO gw_app USING (@listing@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.archives TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, blob_id, activity, key_versions, client_share, checkpoints,
    pending_writes, chunks, hot_bytes, size_bytes, run_ids, state_schemas, agents, storage_class, created_at,
    key_version) ON stateroom.archives TO gw_ops;

CREATE TABLE stateroom.idempotency (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    idempotency_key text NOT NULL COLLATE "C",
    request_digest bytea NOT NULL,
    receipt bytea,
    created_at timestamptz NOT NULL,
    CONSTRAINT idempotency_pkey PRIMARY KEY (tenant_id, subject_id, idempotency_key)
);
ALTER TABLE stateroom.idempotency ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY subject_rows ON stateroom.idempotency TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.idempotency TO gw_app;

-- Objects in the object store, and files that name them

CREATE TABLE stateroom.blobs (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    blob_id uuid NOT NULL,
    content_id bytea,
    state text NOT NULL,
    size_bytes bigint NOT NULL,
    client_share boolean NOT NULL,
    key_version integer NOT NULL,
    pointer bytea STORAGE EXTERNAL,
    created_at timestamptz NOT NULL,
    unreferenced_at timestamptz,
    condemned_at timestamptz,
    place text DEFAULT 'blobs' NOT NULL,
    CONSTRAINT blobs_check CHECK ((state = 'condemned') = (condemned_at IS NOT NULL)),
    CONSTRAINT blobs_check1 CHECK ((state = 'condemned') OR (pointer IS NOT NULL)),
    CONSTRAINT blobs_content_id_check CHECK (length(content_id) = 17),
    CONSTRAINT blobs_place_check CHECK (place IN ('blobs', 'archive')),
    CONSTRAINT blobs_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT blobs_state_check CHECK (state IN ('live', 'condemned')),
    CONSTRAINT blobs_pkey PRIMARY KEY (tenant_id, subject_id, blob_id)
);
CREATE UNIQUE INDEX blobs_by_content ON stateroom.blobs USING btree (tenant_id, subject_id, content_id)
    WHERE ((state = 'live') AND (content_id IS NOT NULL));
CREATE INDEX blobs_by_object ON stateroom.blobs USING btree (tenant_id, blob_id);
CREATE INDEX blobs_condemned ON stateroom.blobs USING btree (tenant_id, subject_id, condemned_at)
    WHERE (state = 'condemned');
CREATE INDEX blobs_unreferenced ON stateroom.blobs USING btree (tenant_id, subject_id, unreferenced_at)
    WHERE ((state = 'live') AND (unreferenced_at IS NOT NULL));
ALTER TABLE stateroom.blobs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.blobs FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.blobs TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_reads ON stateroom.blobs FOR SELECT TO gw_app
    USING (@tenant@ AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL));
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.blobs TO gw_app;
GRANT SELECT (tenant_id, subject_id, blob_id, state, size_bytes, client_share, key_version, created_at,
    unreferenced_at, condemned_at, place) ON stateroom.blobs TO gw_ops;

CREATE TABLE stateroom.blob_intents (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    blob_id uuid NOT NULL,
    purpose text NOT NULL,
    content_id bytea,
    multipart_id text,
    state text NOT NULL,
    reserved_bytes bigint NOT NULL,
    client_share boolean NOT NULL,
    key_version integer NOT NULL,
    record bytea STORAGE EXTERNAL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    removed_at timestamptz,
    place text DEFAULT 'blobs' NOT NULL,
    CONSTRAINT blob_intents_content_id_check CHECK (length(content_id) = 17),
    CONSTRAINT blob_intents_place_check CHECK (place IN ('blobs', 'archive')),
    CONSTRAINT blob_intents_purpose_check CHECK (purpose IN ('piece', 'artifact', 'archive')),
    CONSTRAINT blob_intents_reserved_bytes_check CHECK (reserved_bytes >= 0),
    CONSTRAINT blob_intents_state_check CHECK (state IN ('open', 'swept')),
    CONSTRAINT blob_intents_pkey PRIMARY KEY (tenant_id, subject_id, blob_id)
);
CREATE INDEX blob_intents_by_expiry ON stateroom.blob_intents USING btree (tenant_id, subject_id, expires_at);
CREATE INDEX blob_intents_by_object ON stateroom.blob_intents USING btree (tenant_id, blob_id);
ALTER TABLE stateroom.blob_intents ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.blob_intents FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.blob_intents TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_reads ON stateroom.blob_intents FOR SELECT TO gw_app
    USING (@tenant@ AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL));
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.blob_intents TO gw_app;
GRANT SELECT (tenant_id, subject_id, blob_id, purpose, state, reserved_bytes, client_share, key_version, created_at,
    expires_at, removed_at, place) ON stateroom.blob_intents TO gw_ops;

CREATE TABLE stateroom.blob_refs (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    blob_id uuid NOT NULL,
    thread_id text NOT NULL COLLATE "C",
    CONSTRAINT blob_refs_pkey PRIMARY KEY (tenant_id, subject_id, blob_id, thread_id)
);
CREATE INDEX blob_refs_by_thread ON stateroom.blob_refs USING btree (tenant_id, subject_id, thread_id);
ALTER TABLE stateroom.blob_refs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.blob_refs FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.blob_refs TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.blob_refs TO gw_app;
GRANT SELECT (tenant_id, subject_id, blob_id, thread_id) ON stateroom.blob_refs TO gw_ops;

CREATE TABLE stateroom.blob_usage (
    tenant_id uuid NOT NULL,
    bytes bigint NOT NULL,
    quota_bytes bigint,
    sweep_after timestamptz DEFAULT '-infinity'::timestamptz NOT NULL,
    walk_after timestamptz DEFAULT '-infinity'::timestamptz NOT NULL,
    swept_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    due_since timestamptz,
    census jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT blob_usage_bytes_check CHECK (bytes >= 0),
    CONSTRAINT blob_usage_quota_bytes_check CHECK (quota_bytes >= 0),
    CONSTRAINT blob_usage_pkey PRIMARY KEY (tenant_id)
)
WITH (fillfactor='60');
CREATE INDEX blob_usage_by_sweep ON stateroom.blob_usage USING btree (sweep_after);
ALTER TABLE stateroom.blob_usage ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.blob_usage FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_reads ON stateroom.blob_usage FOR SELECT TO gw_app USING (@operator@);
CREATE POLICY tenant_rows ON stateroom.blob_usage TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.blob_usage TO gw_app;
GRANT SELECT (tenant_id, bytes, quota_bytes, sweep_after, walk_after, swept_at, due_since,
    census) ON stateroom.blob_usage TO gw_ops;

CREATE TABLE stateroom.artifacts (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    artifact_id uuid NOT NULL,
    thread_id text NOT NULL COLLATE "C",
    name_digest bytea NOT NULL,
    number integer NOT NULL,
    blob_id uuid NOT NULL,
    url_epoch integer NOT NULL,
    size_bytes bigint NOT NULL,
    client_share boolean NOT NULL,
    key_version integer NOT NULL,
    created_at timestamptz NOT NULL,
    sealed bytea STORAGE EXTERNAL NOT NULL,
    CONSTRAINT artifacts_number_check CHECK (number > 0),
    CONSTRAINT artifacts_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT artifacts_pkey PRIMARY KEY (tenant_id, subject_id, artifact_id)
);
CREATE INDEX artifacts_by_blob ON stateroom.artifacts USING btree (tenant_id, subject_id, blob_id);
CREATE UNIQUE INDEX artifacts_by_name ON stateroom.artifacts USING btree (tenant_id, subject_id, thread_id,
    name_digest, number);
CREATE INDEX artifacts_by_thread ON stateroom.artifacts USING btree (tenant_id, subject_id, thread_id, artifact_id);
ALTER TABLE stateroom.artifacts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.artifacts FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.artifacts TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.artifacts TO gw_app;
GRANT SELECT (tenant_id, subject_id, artifact_id, thread_id, number, blob_id, url_epoch, size_bytes, client_share,
    key_version, created_at) ON stateroom.artifacts TO gw_ops;

CREATE TABLE stateroom.artifact_refs (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    artifact_id uuid NOT NULL,
    thread_id text NOT NULL COLLATE "C",
    CONSTRAINT artifact_refs_pkey PRIMARY KEY (tenant_id, subject_id, artifact_id, thread_id)
);
CREATE INDEX artifact_refs_by_thread ON stateroom.artifact_refs USING btree (tenant_id, subject_id, thread_id);
ALTER TABLE stateroom.artifact_refs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.artifact_refs FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.artifact_refs TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.artifact_refs TO gw_app;
GRANT SELECT (tenant_id, subject_id, artifact_id, thread_id) ON stateroom.artifact_refs TO gw_ops;

CREATE TABLE stateroom.upload_parts (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    blob_id uuid NOT NULL,
    number integer NOT NULL,
    etag text NOT NULL,
    size_bytes bigint NOT NULL,
    digest bytea NOT NULL,
    CONSTRAINT upload_parts_number_check CHECK (number >= 0),
    CONSTRAINT upload_parts_size_bytes_check CHECK (size_bytes >= 0),
    CONSTRAINT upload_parts_pkey PRIMARY KEY (tenant_id, subject_id, blob_id, number)
);
ALTER TABLE stateroom.upload_parts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.upload_parts FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.upload_parts TO gw_app USING (@subject@) WITH CHECK (@subject@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.upload_parts TO gw_app;
GRANT SELECT (tenant_id, subject_id, blob_id, number, size_bytes) ON stateroom.upload_parts TO gw_ops;

-- Versions of state, policies, retention

CREATE TABLE stateroom.state_schemas (
    tenant_id uuid NOT NULL,
    schema text NOT NULL COLLATE "C",
    number integer NOT NULL,
    definition bytea NOT NULL,
    created_at timestamptz NOT NULL,
    mac bytea,
    mac_format smallint,
    CONSTRAINT state_schemas_mac_check CHECK (length(mac) = 32),
    CONSTRAINT state_schemas_number_check CHECK (number > 0),
    CONSTRAINT state_schemas_pkey PRIMARY KEY (tenant_id, schema, number)
);
ALTER TABLE stateroom.state_schemas ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.state_schemas FOR SELECT TO gw_ops USING (true);
CREATE POLICY tenant_rows ON stateroom.state_schemas TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT ON stateroom.state_schemas TO gw_app;
GRANT SELECT (tenant_id, schema, number, created_at) ON stateroom.state_schemas TO gw_ops;
GRANT UPDATE (definition, created_at, mac, mac_format) ON stateroom.state_schemas TO gw_app;

CREATE TABLE stateroom.state_adoptions (
    tenant_id uuid NOT NULL,
    agent text NOT NULL COLLATE "C",
    namespace text NOT NULL COLLATE "C",
    number integer NOT NULL,
    state_schema text NOT NULL COLLATE "C",
    state_version integer NOT NULL,
    adopted_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT state_adoptions_mac_check CHECK (length(mac) = 32),
    CONSTRAINT state_adoptions_number_check CHECK (number > 0),
    CONSTRAINT state_adoptions_state_version_check CHECK (state_version > 0),
    CONSTRAINT state_adoptions_pkey PRIMARY KEY (tenant_id, agent, namespace, number)
);
ALTER TABLE stateroom.state_adoptions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.state_adoptions FOR SELECT TO gw_ops USING (true);
CREATE POLICY tenant_rows ON stateroom.state_adoptions TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT ON stateroom.state_adoptions TO gw_app;
GRANT SELECT (tenant_id, agent, namespace, number, state_schema, state_version,
    adopted_at) ON stateroom.state_adoptions TO gw_ops;

CREATE TABLE stateroom.save_policies (
    tenant_id uuid NOT NULL,
    agent text NOT NULL COLLATE "C",
    strict boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT save_policies_mac_check CHECK (length(mac) = 32),
    CONSTRAINT save_policies_pkey PRIMARY KEY (tenant_id, agent)
);
ALTER TABLE stateroom.save_policies ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.save_policies FOR SELECT TO gw_ops USING (true);
CREATE POLICY tenant_rows ON stateroom.save_policies TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.save_policies TO gw_app;
GRANT SELECT (tenant_id, agent, strict, updated_at) ON stateroom.save_policies TO gw_ops;

CREATE TABLE stateroom.retention (
    tenant_id uuid NOT NULL,
    level text NOT NULL,
    target text NOT NULL COLLATE "C",
    policy bytea NOT NULL,
    legal_hold boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    mac bytea,
    mac_format smallint,
    CONSTRAINT retention_check CHECK ((level = 'agent') = (target <> '')),
    CONSTRAINT retention_level_check CHECK (level IN ('tenant', 'agent', 'ceilings')),
    CONSTRAINT retention_mac_check CHECK (length(mac) = 32),
    CONSTRAINT retention_pkey PRIMARY KEY (tenant_id, level, target)
);
ALTER TABLE stateroom.retention ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.retention FOR SELECT TO gw_ops USING (true);
CREATE POLICY tenant_rows ON stateroom.retention TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.retention TO gw_app;
GRANT SELECT (tenant_id, level, target, legal_hold, updated_at) ON stateroom.retention TO gw_ops;

CREATE TABLE stateroom.thread_retention (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    thread_id text NOT NULL COLLATE "C",
    policy bytea NOT NULL,
    legal_hold boolean NOT NULL,
    updated_at timestamptz NOT NULL,
    mac bytea,
    mac_format smallint,
    CONSTRAINT thread_retention_mac_check CHECK (length(mac) = 32),
    CONSTRAINT thread_retention_pkey PRIMARY KEY (tenant_id, subject_id, thread_id)
);
ALTER TABLE stateroom.thread_retention ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.thread_retention FOR SELECT TO gw_ops USING (true);
CREATE POLICY subject_rows ON stateroom.thread_retention TO gw_app USING (@subject@) WITH CHECK (@subject@);
CREATE POLICY tenant_reads ON stateroom.thread_retention FOR SELECT TO gw_app
    USING (@tenant@ AND (NULLIF(current_setting('app.subject_id', true), '') IS NULL));
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.thread_retention TO gw_app;
GRANT SELECT (tenant_id, subject_id, thread_id, legal_hold, updated_at) ON stateroom.thread_retention TO gw_ops;

CREATE TABLE stateroom.retention_rounds (
    tenant_id uuid NOT NULL,
    due_at timestamptz DEFAULT '-infinity'::timestamptz NOT NULL,
    lease_until timestamptz,
    started_at timestamptz,
    progress bytea,
    thinned_until timestamptz,
    finished_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    census jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT retention_rounds_pkey PRIMARY KEY (tenant_id)
)
WITH (fillfactor='60');
CREATE INDEX retention_rounds_by_due ON stateroom.retention_rounds USING btree (due_at);
ALTER TABLE stateroom.retention_rounds ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.retention_rounds FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_reads ON stateroom.retention_rounds FOR SELECT TO gw_app USING (@operator@);
CREATE POLICY tenant_rows ON stateroom.retention_rounds TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.retention_rounds TO gw_app;
GRANT SELECT (tenant_id, due_at, lease_until, started_at, finished_at, census) ON stateroom.retention_rounds TO gw_ops;

-- Long operations, and imports that were accepted unbound

CREATE TABLE stateroom.jobs (
    tenant_id uuid NOT NULL,
    job_id uuid NOT NULL,
    kind text NOT NULL,
    target text NOT NULL COLLATE "C",
    state text NOT NULL,
    done bigint NOT NULL,
    total bigint,
    "position" text NOT NULL COLLATE "C",
    error text,
    lease_until timestamptz,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    note text,
    mac bytea,
    mac_format smallint,
    waits_for text,
    CONSTRAINT jobs_mac_check CHECK (length(mac) = 32),
    CONSTRAINT jobs_state_check CHECK (state IN ('queued', 'running', 'done', 'failed')),
    CONSTRAINT jobs_pkey PRIMARY KEY (tenant_id, job_id)
);
CREATE INDEX jobs_open ON stateroom.jobs USING btree (tenant_id, created_at) WHERE (state IN ('queued', 'running'));
ALTER TABLE stateroom.jobs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.jobs FOR SELECT TO gw_ops USING (true);
CREATE POLICY operator_jobs ON stateroom.jobs TO gw_app
    USING (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid))
    WITH CHECK (@operator@ AND (tenant_id = '00000000-0000-0000-0000-000000000000'::uuid));
CREATE POLICY operator_reads ON stateroom.jobs FOR SELECT TO gw_app USING (@operator@);
CREATE POLICY tenant_rows ON stateroom.jobs TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
CREATE POLICY worker_rows ON stateroom.jobs FOR SELECT TO gw_worker USING (true);
GRANT SELECT, INSERT, UPDATE ON stateroom.jobs TO gw_app;
GRANT SELECT (tenant_id, job_id, kind, state, lease_until, created_at) ON stateroom.jobs TO gw_worker;
GRANT SELECT (tenant_id, job_id, kind, target, state, done, total, "position", error, lease_until, created_at,
    updated_at, note, waits_for) ON stateroom.jobs TO gw_ops;

CREATE TABLE stateroom.unbound_imports (
    tenant_id uuid NOT NULL,
    export_id uuid NOT NULL,
    accepted_at timestamptz NOT NULL,
    mac bytea NOT NULL,
    mac_format smallint,
    CONSTRAINT unbound_imports_mac_check CHECK (length(mac) = 32),
    CONSTRAINT unbound_imports_pkey PRIMARY KEY (tenant_id, export_id)
);
ALTER TABLE stateroom.unbound_imports ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clear_columns ON stateroom.unbound_imports FOR SELECT TO gw_ops USING (true);
CREATE POLICY tenant_rows ON stateroom.unbound_imports TO gw_app USING (@tenant@) WITH CHECK (@tenant@);
GRANT SELECT, INSERT, DELETE ON stateroom.unbound_imports TO gw_app;
GRANT SELECT (tenant_id, export_id, accepted_at) ON stateroom.unbound_imports TO gw_ops;

ALTER TABLE stateroom.api_key_seals ADD CONSTRAINT api_key_seals_key_id_fkey FOREIGN KEY (key_id)
    REFERENCES stateroom.api_keys(key_id) ON DELETE CASCADE;
ALTER TABLE stateroom.checkpoint_tags ADD CONSTRAINT checkpoint_tags_tenant_id_subject_id_thread_id_namespace_c_fkey
    FOREIGN KEY (tenant_id, subject_id, thread_id, namespace, checkpoint_id)
    REFERENCES stateroom.checkpoints(tenant_id, subject_id, thread_id, namespace, checkpoint_id) ON DELETE CASCADE;
