"""Statements on wrapped keys, and the number that all rows of a scope's keys make."""

import msgspec

from crypto import WrappedKey
from crypto.keyring import SubjectKeyPurpose
from storage.postgres.statement import Statement


def wrapping_columns(wrapped: WrappedKey) -> dict[str, object]:
    """What a root key wrapped, by the parameters of the statements that store it."""
    return {
        "provider": wrapped.provider,
        "root_key_id": wrapped.root_key_id,
        "root_key_version": wrapped.root_key_version,
        "wrapped": wrapped.ciphertext,
    }


class StoredSubjectKey(msgspec.Struct, frozen=True):
    """A version of one of a subject's keys, as far as it takes to open it."""

    purpose: SubjectKeyPurpose
    key_version: int
    tenant_key_version: int
    wrapped: bytes | None
    kcv: bytes


class TenantKeyRow(msgspec.Struct, frozen=True):
    """A version of a tenant's key as it is stored; ``tenant_hash`` is what all of its versions make."""

    key_version: int
    state: str
    provider: str
    root_key_id: str
    root_key_version: str
    wrapped: bytes | None
    kcv: bytes
    tenant_hash: int


class SubjectKeyRow(StoredSubjectKey, frozen=True):
    """A version of one of a subject's keys as it is stored, with what all of its and of the tenant's keys make."""

    state: str
    keys_hash: int
    tenant_hash: int


# Rows that are not destroyed, hashed and summed by XOR, so that no order matters. Edited rows, rows that were put back
# and rows that were removed make another number: whoever keeps opened keys compares it. How a tenant key
# is wrapped is left out, because exchanging a root key would make every process open every subject's keys again.
_SUBJECT_HASH = """coalesce((SELECT bit_xor(hash_record_extended(
            ROW(k.purpose, k.key_version, k.tenant_key_version, k.state, k.wrapped, k.kcv), 0))
         FROM stateroom.subject_keys k
         WHERE k.tenant_id = :tenant_id AND k.subject_id = :subject_id AND k.state <> 'destroyed'), 0)"""
_TENANT_HASH = """coalesce((SELECT bit_xor(hash_record_extended(ROW(v.key_version, v.state, v.kcv), 1))
         FROM stateroom.tenant_keys v WHERE v.tenant_id = :tenant_id AND v.state <> 'destroyed'), 0)"""

# Of the scope's subject, in a statement of any kind.
KEYS_HASH = f"({_SUBJECT_HASH} # {_TENANT_HASH})"

HASH_NOW = Statement(f"SELECT {KEYS_HASH} AS keys_hash", int)

TENANT_KEYS = Statement(
    f"""
SELECT key_version, state, provider, root_key_id, root_key_version, wrapped, kcv, {_TENANT_HASH} AS tenant_hash
FROM stateroom.tenant_keys WHERE tenant_id = :tenant_id ORDER BY key_version
""",
    TenantKeyRow,
)

# Beside each row, what all of them make, and the tenant's alone.
SUBJECT_KEYS = Statement(
    f"""
SELECT purpose, key_version, tenant_key_version, wrapped, kcv, state, {KEYS_HASH} AS keys_hash,
    {_TENANT_HASH} AS tenant_hash
FROM stateroom.subject_keys WHERE tenant_id = :tenant_id AND subject_id = :subject_id ORDER BY purpose, key_version
""",
    SubjectKeyRow,
)

# Whether a subject has anything. By order, because a statement that only asks whether there is a row may scan the table
# for it.
HAS_ANYTHING = Statement(
    """
SELECT coalesce(
        (SELECT true FROM stateroom.threads WHERE tenant_id = :tenant_id AND subject_id = :subject_id
         ORDER BY thread_id LIMIT 1),
        (SELECT true FROM stateroom.checkpoints WHERE tenant_id = :tenant_id AND subject_id = :subject_id
         ORDER BY thread_id, namespace, checkpoint_id LIMIT 1),
        (SELECT true FROM stateroom.heads WHERE tenant_id = :tenant_id AND subject_id = :subject_id
         ORDER BY thread_id, namespace LIMIT 1),
        (SELECT true FROM stateroom.pending_writes WHERE tenant_id = :tenant_id AND subject_id = :subject_id
         ORDER BY thread_id, namespace, checkpoint_id, task_id, idx LIMIT 1),
        (SELECT true FROM stateroom.item_scopes WHERE tenant_id = :tenant_id AND subject_id = :subject_id
         ORDER BY tenant_id, subject_id LIMIT 1),
        (SELECT true FROM stateroom.items WHERE tenant_id = :tenant_id AND subject_id = :subject_id
         ORDER BY path_id, key_id LIMIT 1),
        false)
""",
    bool,
)

# Another gateway may have stored its key first; what is stored is then read again, and only that is ever used.
ADD_TENANT_KEY = Statement("""
INSERT INTO stateroom.tenant_keys
    (tenant_id, key_version, state, provider, root_key_id, root_key_version, wrapped, kcv, created_at)
VALUES (:tenant_id, :key_version, :state, :provider, :root_key_id, :root_key_version, :wrapped, :kcv, :now)
ON CONFLICT DO NOTHING
""")

ADD_SUBJECT_KEY = Statement("""
INSERT INTO stateroom.subject_keys
    (tenant_id, subject_id, purpose, key_version, tenant_key_version, state, wrapped, kcv, created_at)
VALUES (:tenant_id, :subject_id, :purpose, :key_version, :tenant_key_version, :state, :wrapped, :kcv, :now)
ON CONFLICT DO NOTHING
""")

# Held to the end of the transaction that wraps a key under it: a rotation or a shred of the tenant key waits, and
# a transaction that comes after one sees another state. So no subject key is ever wrapped under a version that was
# given up.
HOLD_TENANT_KEY = Statement(
    """
SELECT state FROM stateroom.tenant_keys WHERE tenant_id = :tenant_id AND key_version = :key_version FOR SHARE
""",
    str,
)
