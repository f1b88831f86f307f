"""The row-level security policies that bind the serving role, as the revisions made them.

Owns what `storage.postgres.setup` and `stateroom doctor` compare the catalog with: permissive policies add up, so one
that somebody adds opens a table to everybody however strict the others are. Restrictive ones only take away and are
no concern here; nor are policies of roles that the serving role is not a member of.
"""

import re

import msgspec

from storage.postgres.statement import Statement

_TENANT = "tenant_id = nullif(current_setting('app.tenant_id', true), '')::uuid"
_SUBJECT = f"{_TENANT} AND subject_id = nullif(current_setting('app.subject_id', true), '')"
_WHOLE_TENANT = f"{_TENANT} AND nullif(current_setting('app.subject_id', true), '') IS NULL"
_LISTING = f"{_TENANT} AND current_setting('app.tenant_listing', true) = 'on'"
_OPERATOR = "current_setting('app.operator', true) = 'on'"
_RELAY = f"{_TENANT} AND current_setting('app.relay', true) = 'on'"
_ADDED = f"{_TENANT} AND (subject_id = nullif(current_setting('app.subject_id', true), '') OR subject_id = '')"
_OPERATORS_OWN = f"{_OPERATOR} AND tenant_id = '00000000-0000-0000-0000-000000000000'::uuid"

# By name, for which command, and the condition; one with writes has the same as its check, or it alone.
_POLICIES: dict[str, tuple[str, str]] = {
    "subject_rows": ("ALL", _SUBJECT),
    "tenant_rows": ("ALL", _TENANT),
    "tenant_reads": ("SELECT", _WHOLE_TENANT),
    "tenant_rewraps": ("UPDATE", _WHOLE_TENANT),
    "tenant_listing": ("SELECT", _LISTING),
    "subject_reads": ("SELECT", _SUBJECT),
    "subject_adds": ("INSERT", _ADDED),
    "relay_rows": ("ALL", _RELAY),
    "relay_reads": ("SELECT", _RELAY),
    "relay_takes": ("DELETE", _RELAY),
    "own_row": ("SELECT", _TENANT),
    "operator_rows": ("ALL", _OPERATOR),
    "operator_reads": ("SELECT", _OPERATOR),
    "operator_heads": ("SELECT", _OPERATOR),
    "operator_chain": ("ALL", _OPERATORS_OWN),
    "operator_jobs": ("ALL", _OPERATORS_OWN),
}
_SUBJECT_TABLES = (
    "approval_actions approval_votes approvals archives artifact_refs artifacts blob_intents blob_refs blobs"
    " checkpoint_tags checkpoints chunks claims effect_tombstones effects heads idempotency item_paths item_scopes"
    " item_vectors items ledger_seals pending_writes removed_threads subject_keys thread_retention threads upload_parts"
)
_TENANT_TABLES = (
    "accepted_losses api_key_seals api_keys approval_policies"
    " audit_heads audit_log blob_usage event_relays event_settings jobs retention"
    " retention_rounds row_usage save_policies state_adoptions state_schemas tenant_keys tenant_streams unbound_imports"
    " vector_policies"
)
_TABLES: dict[str, str] = {
    "subject_rows": _SUBJECT_TABLES,
    "tenant_rows": _TENANT_TABLES,
    "tenant_reads": "blob_intents blobs items subject_keys thread_retention",
    "tenant_rewraps": "subject_keys",
    "tenant_listing": ("approval_actions approval_votes approvals archives checkpoints claims effects events threads"),
    "subject_reads": "events",
    "subject_adds": "event_queue",
    "relay_rows": "event_counters events",
    "relay_reads": "event_queue",
    "relay_takes": "event_queue",
    "own_row": "tenants",
    "operator_rows": "api_key_seals api_keys tenants",
    "operator_reads": "blob_usage event_relays jobs retention_rounds row_usage tenant_keys",
    "operator_heads": "audit_heads",
    "operator_chain": "accepted_losses audit_heads audit_log",
    "operator_jobs": "jobs",
}
# What an operator may have made beside the revisions (`storage.postgres.pgvector`).
_OPTIONAL_TABLES = {"item_clear_vectors": ("subject_rows",)}
_OPERATORS_KEYS = ("ALL", f"{_OPERATOR} AND tenant_id IS NULL")
_EXCEPTIONS = {(table, "operator_rows"): _OPERATORS_KEYS for table in ("api_keys", "api_key_seals")}


class PolicyRow(msgspec.Struct, frozen=True):
    """A policy as the catalog has it; an absent ``condition`` or ``check`` is null."""

    table: str
    policy: str
    command: bytes
    condition: str | None
    check: str | None


# What holds for the role that asks: policies of everybody, its own, and those of roles that it can become.
OF_THIS_ROLE = Statement(
    """
SELECT c.relname AS table, p.polname AS policy, p.polcmd AS command, pg_get_expr(p.polqual, p.polrelid) AS condition,
    pg_get_expr(p.polwithcheck, p.polrelid) AS check
FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'stateroom' AND p.polpermissive AND EXISTS (
    SELECT FROM unnest(p.polroles) AS role WHERE role = 0 OR pg_has_role(current_user, role, 'MEMBER'))
ORDER BY 1, 2
""",
    PolicyRow,
)
_COMMANDS = {b"*": "ALL", b"r": "SELECT", b"a": "INSERT", b"w": "UPDATE", b"d": "DELETE"}


def _plain(expression: str | None) -> str:
    """An expression without what PostgreSQL adds when it shows one: casts, parentheses, spaces."""
    return re.sub(r"::\w+|[()\s]", "", expression or "").lower()


def _expected() -> dict[tuple[str, str], tuple[str, str, str]]:
    found = {}
    optional = {policy: " ".join(table for table, of in _OPTIONAL_TABLES.items() if policy in of) for policy in _TABLES}
    for policy, tables in _TABLES.items():
        for table in f"{tables} {optional[policy]}".split():
            command, condition = _EXCEPTIONS.get((table, policy), _POLICIES[policy])
            said = _plain(condition)
            using = "" if command == "INSERT" else said
            found[table, policy] = (command, using, "" if command in {"SELECT", "DELETE"} else said)
    return found


def faults(rows: list[PolicyRow], *, newer: bool) -> list[str]:
    """What is wrong with the policies that hold for a role, a line each.

    ``newer``: the schema is of a later release, which may have policies that this one does not know, as long as they
    bind to the transaction's scope.
    """
    expected = _expected()
    optional = {(table, policy) for table, named in _OPTIONAL_TABLES.items() for policy in named}
    found = {
        (row.table, row.policy): (_COMMANDS[row.command], _plain(row.condition), _plain(row.check)) for row in rows
    }
    wrong = []
    for (table, policy), what in found.items():
        if what == expected.get((table, policy)):
            continue
        if newer and all("current_setting'app." in condition for condition in what[1:] if condition):
            continue
        wrong.append(
            f"policy {policy} on table {table} is not one of this release's; drop it, or restore what it was, and find"
            " out who changed it"
        )
    if not newer:
        wrong += [
            f"table {table} has lost its policy {policy}; restore it from a dump of the schema, and find out who"
            " dropped it"
            for table, policy in expected.keys() - found.keys() - optional
        ]
    return sorted(wrong)
