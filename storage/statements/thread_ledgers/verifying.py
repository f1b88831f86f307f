"""Statements that read all of a thread's ledger."""

from storage.postgres.statement import Statement, column_names
from storage.statements.thread_ledgers.effects import WholeEffectRow

_THREAD = "tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id"

TRACES_OF = Statement(
    f"""
SELECT EXISTS (SELECT FROM stateroom.ledger_seals WHERE {_THREAD})
    OR EXISTS (SELECT FROM stateroom.claims WHERE {_THREAD}) OR EXISTS (SELECT FROM stateroom.effects WHERE {_THREAD})
""",
    bool,
)
EFFECTS_AFTER = Statement(
    f"""
SELECT {", ".join(column_names(WholeEffectRow))} FROM stateroom.effects
WHERE {_THREAD} AND (namespace, name_mac, execution) > (:after_namespace, :after_name, :after_execution)
ORDER BY namespace, name_mac, execution LIMIT :limit
""",
    WholeEffectRow,
)
