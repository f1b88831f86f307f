"""Statements on what tenants' rows take in PostgreSQL: counting them, whose count is due, and who may have no more.

Counted are the rows of subjects, whatever table they are in: what a tenant can take away again. The statements are made
of the tables themselves, so that one that comes later counts, too. Timetables and leases go by the database's clock.
"""

from typing import Final

from sqlalchemy import Column, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from storage.postgres.tables import SCHEMA, SUBJECT_TABLES

# What a row takes besides its columns of varying length: its header, numbers and times, and its entries in indexes.
ROW_BYTES: Final = 160

_SCOPE: Final = ("tenant_id", "subject_id")


def _size(table: Table) -> str:
    """What a row of a table takes, as an expression; what is stored beside the row is asked for its size, not read."""
    varying = [each.name for each in table.columns if _varies(each)]
    return " + ".join([str(ROW_BYTES), *(f"coalesce(pg_column_size({name}), 0)" for name in varying)])


def _varies(column: Column[object]) -> bool:
    return isinstance(column.type, (Text, LargeBinary, ARRAY, JSONB))


def _key(table: Table) -> list[str]:
    """What tells a table's rows of one subject apart, in the order of its primary key."""
    return [each.name for each in table.primary_key.columns if each.name not in _SCOPE]


def _page(table: Table, *, first: bool) -> str:
    key = _key(table)
    after = "" if first else f"AND ({', '.join(key)}) > ({', '.join(f'${4 + n}' for n in range(len(key)))})"
    return f"""
SELECT {", ".join(key)}, count(*) OVER () AS rows, (sum(size) OVER ())::bigint AS bytes FROM (
    SELECT {", ".join(key)}, {_size(table)} AS size FROM {SCHEMA}.{table.name}
    WHERE tenant_id = $1 AND subject_id = $2 {after} ORDER BY {", ".join(key)} LIMIT $3
) page ORDER BY {", ".join(f"{name} DESC" for name in key)} LIMIT 1
"""


KEYS: Final = {table.name: _key(table) for table in SUBJECT_TABLES}
# The rows and bytes of a table's page, with the key of its last row; no row: the page is empty.
FIRST_PAGES: Final = {table.name: _page(table, first=True) for table in SUBJECT_TABLES}
NEXT_PAGES: Final = {table.name: _page(table, first=False) for table in SUBJECT_TABLES}
# All tables at once, up to so many rows of each: of most subjects that is everything.
BEGINNING: Final = " UNION ALL ".join(
    f"SELECT '{table.name}' AS name, count(*) AS rows, coalesce(sum(size), 0)::bigint AS bytes FROM ("
    f"SELECT {_size(table)} AS size FROM {SCHEMA}.{table.name} WHERE tenant_id = $1 AND subject_id = $2"
    f" ORDER BY {', '.join(_key(table))} LIMIT $3) page"
    for table in SUBJECT_TABLES
)
# Planning so many tables takes longer than looking up a subject's rows in them. All of it goes along primary keys,
# whatever the parameters are; the planner is told not to sort what is left of a table for every page.
AS_PLANNED: Final = "SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_sort = off"
# By the tenant's binding. Who has no key has no rows.
SUBJECTS_AFTER: Final = """
SELECT DISTINCT subject_id FROM stateroom.subject_keys WHERE tenant_id = $1 AND subject_id > $2
ORDER BY subject_id LIMIT $3
"""

# --- whose turn it is ------------------------------------------------------------------------------------------------

# Across tenants, by an operator's binding.
TENANTS_DUE: Final = """
SELECT t.tenant_id FROM stateroom.tenants t LEFT JOIN stateroom.row_usage u ON u.tenant_id = t.tenant_id
WHERE u.count_after IS NULL OR u.count_after < clock_timestamp()
ORDER BY u.count_after NULLS FIRST LIMIT $1
"""
# A lease and a timetable in one column: nobody else counts before it has passed. Whoever has it knows its exact end, so
# that a late owner changes nothing.
CLAIM: Final = """
INSERT INTO stateroom.row_usage AS u (tenant_id, count_after)
VALUES ($1, statement_timestamp() + make_interval(secs => $2))
ON CONFLICT (tenant_id) DO UPDATE SET count_after = excluded.count_after
WHERE $3 OR u.count_after < statement_timestamp()
RETURNING count_after, quota_bytes
"""
RENEW: Final = """
UPDATE stateroom.row_usage SET count_after = statement_timestamp() + make_interval(secs => $3)
WHERE tenant_id = $1 AND count_after = $2 RETURNING count_after
"""
FINISH: Final = """
UPDATE stateroom.row_usage SET count_after = statement_timestamp() + make_interval(secs => $3),
    bytes = $4, counted_at = statement_timestamp()
WHERE tenant_id = $1 AND count_after = $2
"""

# --- quotas ----------------------------------------------------------------------------------------------------------

USAGE: Final = "SELECT bytes, quota_bytes, counted_at FROM stateroom.row_usage WHERE tenant_id = $1"
SET_QUOTA: Final = """
INSERT INTO stateroom.row_usage AS u (tenant_id, quota_bytes) VALUES ($1, $2)
ON CONFLICT (tenant_id) DO UPDATE SET quota_bytes = excluded.quota_bytes
"""
# Across tenants, by an operator's binding. Who may have nothing is refused before anything was counted.
OVER: Final = "SELECT tenant_id FROM stateroom.row_usage WHERE coalesce(bytes, 0) >= quota_bytes"
# A tenant that has a quota and was never counted is as old as can be told: since it came.
CENSUS: Final = """
SELECT coalesce(sum(u.bytes), 0)::bigint AS used_bytes,
    count(*) FILTER (WHERE coalesce(u.bytes, 0) >= u.quota_bytes) AS over,
    coalesce(extract(epoch FROM clock_timestamp() - min(coalesce(u.counted_at, t.created_at))
        FILTER (WHERE u.quota_bytes IS NOT NULL)), 0)::float8 AS age_seconds
FROM stateroom.row_usage u JOIN stateroom.tenants t ON t.tenant_id = u.tenant_id
"""
