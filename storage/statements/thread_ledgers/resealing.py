"""Statements that find what another key version sealed in ledgers, and put the same under the active one.

Rows are found by the headers of their envelopes, whatever tier their thread is in; what takes a client's share is left.
No MAC covers an envelope, so that no seal and no thread is touched.
"""

import msgspec

from storage.postgres.statement import Statement, column_names
from storage.statements.thread_ledgers.claims import ClaimRow
from storage.statements.thread_ledgers.effects import WholeEffectRow

_SUBJECT = "tenant_id = :tenant_id AND subject_id = :subject_id AND NOT client_share"


def _other(column: str) -> str:
    return f"substring({column} FROM 9 FOR 4) <> :version"


STALE_EFFECTS = Statement(
    f"""
SELECT {", ".join(column_names(WholeEffectRow))} FROM stateroom.effects
WHERE {_SUBJECT} AND (thread_id, namespace, name_mac, execution) > (:thread_id, :namespace, :name_mac, :execution)
  AND ({_other("asked")} OR {_other("args")} OR {_other("outcome")} OR {_other("result")})
ORDER BY thread_id, namespace, name_mac, execution LIMIT :page_rows
""",
    WholeEffectRow,
)
RESEAL_EFFECT = Statement("""
UPDATE stateroom.effects SET asked = :asked, args = :args, outcome = :outcome, result = :result
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND namespace = :namespace
  AND name_mac = :name_mac AND execution = :execution AND mac = :mac
""")
STALE_CLAIMS = Statement(
    f"""
SELECT {", ".join(column_names(ClaimRow))} FROM stateroom.claims
WHERE {_SUBJECT} AND thread_id > :thread_id AND {_other("note")} ORDER BY thread_id LIMIT :page_rows
""",
    ClaimRow,
)
RESEAL_CLAIM = Statement("""
UPDATE stateroom.claims SET note = :note
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id AND mac = :mac
""")


class LedgerPlace(msgspec.Struct, frozen=True):
    """A row of a ledger among those of a subject; of a claim only its thread."""

    thread_id: str = ""
    namespace: str = ""
    name_mac: bytes = b""
    execution: int = 0
