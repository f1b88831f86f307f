"""Rows that are dead and still take space: what the server's statistics say of each table, for operators.

Estimates of the whole deployment; no tenant is told apart.
"""

from datetime import datetime

import msgspec

from storage.postgres.statement import Statement


class TableRows(msgspec.Struct, frozen=True):
    """The numbers of a table's rows that are live and dead, and when they were last vacuumed."""

    name: str
    live: int
    dead: int
    vacuumed_at: datetime | None


# Less is gone with the next vacuum, whatever its share.
DEAD_ROWS_MIN = 50_000
DEAD_SHARE_MAX = 0.25

# With the table itself, the parts of its large values, each of which is a row of its TOAST table.
DEAD_ROWS = Statement(
    """
SELECT c.relname AS name, s.n_live_tup + coalesce(t.n_live_tup, 0) AS live,
    s.n_dead_tup + coalesce(t.n_dead_tup, 0) AS dead,
    greatest(s.last_autovacuum, s.last_vacuum) AS vacuumed_at
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_stat_all_tables s ON s.relid = c.oid
LEFT JOIN pg_stat_all_tables t ON t.relid = c.reltoastrelid
WHERE n.nspname = 'stateroom' AND c.relkind = 'r'
ORDER BY c.relname
""",
    TableRows,
)


def is_late(live: int, dead: int) -> bool:
    """Whether so many dead rows say that autovacuum does not keep up (docs/adr/0020-bloat.md)."""
    return dead > DEAD_ROWS_MIN and dead > DEAD_SHARE_MAX * (live + dead)
