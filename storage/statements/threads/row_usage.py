"""Statements on what tenants' rows take in PostgreSQL: counting them, whose count is due, and who may have no more.

Counted are the rows of subjects, whatever table they are in: what a tenant can take away again. The statements are made
of the tables themselves, so that one that comes later counts, too. Timetables and leases go by the database's clock.
"""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from sqlalchemy import Column, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from storage.postgres.statement import Statement
from storage.postgres.tables import CLEAR_VECTORS, SCHEMA, SUBJECT_TABLES


class UsagePage(msgspec.Struct, frozen=True):
    """What a page of a table takes, and the key of its last row."""

    rows: int
    bytes: int
    key: tuple[object, ...]


class TableUsage(msgspec.Struct, frozen=True):
    """What the beginning of a table takes."""

    name: str
    rows: int
    bytes: int


class UsageClaim(msgspec.Struct, frozen=True):
    """The end of a lease to count a tenant's rows, and the tenant's quota."""

    count_after: datetime
    quota_bytes: int | None


class RowUsage(msgspec.Struct, frozen=True):
    """What a tenant's rows take, as they were last counted, and may take."""

    bytes: int | None
    quota_bytes: int | None
    counted_at: datetime | None


class CensusRow(msgspec.Struct, frozen=True):
    """What the rows of all tenants take, the number of tenants that are over their quota, and the oldest count."""

    used_bytes: int
    over: int
    age_seconds: float


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
    """What tells a table's rows of one subject apart, in the order of its primary key; the subject, if it has one."""
    return [each.name for each in table.primary_key.columns if each.name not in _SCOPE] or ["subject_id"]


def _page(table: Table, *, first: bool) -> Statement[UsagePage]:
    key = _key(table)
    after = "" if first else f"AND ({', '.join(key)}) > ({', '.join(f':after_{name}' for name in key)})"
    return Statement(
        f"""
SELECT count(*) OVER () AS rows, (sum(size) OVER ())::bigint AS bytes, ROW({", ".join(key)}) AS key FROM (
    SELECT {", ".join(key)}, {_size(table)} AS size FROM {SCHEMA}.{table.name}
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id {after} ORDER BY {", ".join(key)} LIMIT :page_rows
) page ORDER BY {", ".join(f"{name} DESC" for name in key)} LIMIT 1
""",
        UsagePage,
    )


_KEYS: Final = {table.name: _key(table) for table in SUBJECT_TABLES}
# The rows and bytes of a table's page, with the key of its last row; no row: the page is empty.
FIRST_PAGES: Final = {table.name: _page(table, first=True) for table in SUBJECT_TABLES}
NEXT_PAGES: Final = {table.name: _page(table, first=False) for table in SUBJECT_TABLES}


class ClearVectors:
    """The pages of a table that is only there where an operator made it."""

    FIRST_PAGE: Final = _page(CLEAR_VECTORS, first=True)
    NEXT_PAGE: Final = _page(CLEAR_VECTORS, first=False)


def after_clear_vectors(page: UsagePage) -> dict[str, object]:
    """Where the page after this one begins, as `ClearVectors.NEXT_PAGE` takes it."""
    return {f"after_{name}": value for name, value in zip(_key(CLEAR_VECTORS), page.key, strict=True)}


def after(table: str, page: UsagePage) -> dict[str, object]:
    """Where the page after this one of a table begins, as `NEXT_PAGES` takes it."""
    return {f"after_{name}": value for name, value in zip(_KEYS[table], page.key, strict=True)}


# All tables at once, up to so many rows of each: of most subjects that is everything.
BEGINNING: Final = Statement(
    " UNION ALL ".join(
        f"SELECT '{table.name}' AS name, count(*) AS rows, coalesce(sum(size), 0)::bigint AS bytes FROM ("
        f"SELECT {_size(table)} AS size FROM {SCHEMA}.{table.name}"
        f" WHERE tenant_id = :tenant_id AND subject_id = :subject_id"
        f" ORDER BY {', '.join(_key(table))} LIMIT :page_rows) page"
        for table in SUBJECT_TABLES
    ),
    TableUsage,
)
# Planning so many tables takes longer than looking up a subject's rows in them. All of it goes along primary keys,
# whatever the parameters are; the planner is told not to sort what is left of a table for every page.
AS_PLANNED: Final = Statement("SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_sort = off")
# By the tenant's binding. Who has no key has no rows.
SUBJECTS_AFTER: Final = Statement(
    """
SELECT DISTINCT subject_id FROM stateroom.subject_keys WHERE tenant_id = :tenant_id AND subject_id > :after
ORDER BY subject_id LIMIT :page_rows
""",
    str,
)

# --- whose turn it is ------------------------------------------------------------------------------------------------

# Across tenants, by an operator's binding.
TENANTS_DUE: Final = Statement(
    """
SELECT t.tenant_id FROM stateroom.tenants t LEFT JOIN stateroom.row_usage u ON u.tenant_id = t.tenant_id
WHERE u.count_after IS NULL OR u.count_after < statement_timestamp()
ORDER BY u.count_after NULLS FIRST LIMIT :page_rows
""",
    UUID,
)
# A lease and a timetable in one column: no other process counts before it has passed. Its holder knows its exact end,
# so that a late owner changes nothing.
CLAIM: Final = Statement(
    """
INSERT INTO stateroom.row_usage AS u (tenant_id, count_after)
VALUES (:tenant_id, statement_timestamp() + make_interval(secs => :lease_seconds))
ON CONFLICT (tenant_id) DO UPDATE SET count_after = excluded.count_after
WHERE :at_once OR u.count_after < statement_timestamp()
RETURNING count_after, quota_bytes
""",
    UsageClaim,
)
RENEW: Final = Statement(
    """
UPDATE stateroom.row_usage SET count_after = statement_timestamp() + make_interval(secs => :again_seconds)
WHERE tenant_id = :tenant_id AND count_after = :lease RETURNING count_after
""",
    datetime,
)
FINISH: Final = Statement("""
UPDATE stateroom.row_usage SET count_after = statement_timestamp() + make_interval(secs => :again_seconds),
    bytes = :bytes, counted_at = statement_timestamp()
WHERE tenant_id = :tenant_id AND count_after = :lease
""")

# --- quotas ----------------------------------------------------------------------------------------------------------

USAGE: Final = Statement(
    "SELECT bytes, quota_bytes, counted_at FROM stateroom.row_usage WHERE tenant_id = :wanted", RowUsage
)
SET_QUOTA: Final = Statement("""
INSERT INTO stateroom.row_usage AS u (tenant_id, quota_bytes) VALUES (:wanted, :quota_bytes)
ON CONFLICT (tenant_id) DO UPDATE SET quota_bytes = excluded.quota_bytes
""")
# Across tenants, by an operator's binding. Who may have nothing is refused before anything was counted.
OVER: Final = Statement("SELECT tenant_id FROM stateroom.row_usage WHERE coalesce(bytes, 0) >= quota_bytes", UUID)
# A tenant that has a quota and was never counted is as old as can be told: since it came.
CENSUS: Final = Statement(
    """
SELECT coalesce(sum(u.bytes), 0)::bigint AS used_bytes,
    count(*) FILTER (WHERE coalesce(u.bytes, 0) >= u.quota_bytes) AS over,
    coalesce(extract(epoch FROM clock_timestamp() - min(coalesce(u.counted_at, t.created_at))
        FILTER (WHERE u.quota_bytes IS NOT NULL)), 0)::float8 AS age_seconds
FROM stateroom.row_usage u JOIN stateroom.tenants t ON t.tenant_id = u.tenant_id
""",
    CensusRow,
)
