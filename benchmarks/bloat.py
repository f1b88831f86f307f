"""What removal leaves behind in PostgreSQL: ``python -m benchmarks.bloat``.

Fills the real tables with rows of the usual sizes (no seals; PostgreSQL does not look inside), then

1. removes half of all checkpoints, chunks and pending writes, vacuums, and writes as much again: does it fit into the
   space that became free, in tables, TOAST and indexes?
2. goes on removing and writing as much, vacuuming when a share of the rows is dead, as autovacuum does by its scale
   factor: how much larger than its live rows is a table then? With PostgreSQL's 0.2 and with 0.02.
3. updates rows of ``threads`` and ``heads`` as saves do: how many updates are HOT, which leaves no dead index entry?

Only sizes are looked at, and ratios of them; nothing is timed.
"""

# ruff: noqa: S608  what is put into statements are constants of this file

import asyncio
import tempfile
from pathlib import Path

import asyncpg

from gateway.embedded.postgres import EmbeddedPostgres
from storage.postgres.setup import prepare

THREADS = 1000
PER_THREAD = 100
CHURN_ROUNDS = 40
CHURN_SHARE = 0.05
SAVES = 50_000
_OWNER = "'00000000-0000-0000-0000-000000000001'::uuid, 'user'"
_TABLES = ("checkpoints", "chunks", "pending_writes")

# $1 and $2: the first and the last of the numbers to write. Ids grow with them, as those of new checkpoints do.
_FILL = {
    "checkpoints": f"""
INSERT INTO stateroom.checkpoints (tenant_id, subject_id, thread_id, namespace, checkpoint_id, parent_id, step, status,
    source, agent, run_id, created_at, key_version, piece_ids, manifest)
SELECT {_OWNER}, 't' || n % {THREADS}, '', '1f0c0000-0000-6000-8000-' || lpad(n::text, 12, '0'), NULL, n, 'active',
    'loop', 'agent', 'run-' || n / 20, now(), 1, '\\x00', decode(repeat(md5(n::text), 25), 'hex')
FROM generate_series($1::int, $2::int) n""",
    # Every second one is large enough for TOAST.
    "chunks": f"""
INSERT INTO stateroom.chunks (tenant_id, subject_id, thread_id, piece_id, key_version, envelope)
SELECT {_OWNER}, 't' || n % {THREADS}, decode('00' || md5(n::text), 'hex'), 1,
    decode(repeat(md5(n::text), CASE WHEN n / {THREADS} % 2 = 0 THEN 60 ELSE 300 END), 'hex')
FROM generate_series($1::int, $2::int) n""",
    "pending_writes": f"""
INSERT INTO stateroom.pending_writes (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx,
    task_path, channel, created_at, key_version, piece_ids, value, member)
SELECT {_OWNER}, 't' || n % {THREADS}, '', '1f0c0000-0000-6000-8000-' || lpad(n::text, 12, '0'), md5(n::text), 0, '',
    'messages', now(), 1, '\\x00', decode(repeat(md5(n::text), 20), 'hex'), decode(md5(n::text), 'hex')
FROM generate_series($1::int, $2::int) n""",
}
# The older half of what was written between $1 and $2: thinning takes from every thread.
_REMOVE = {
    "checkpoints": """DELETE FROM stateroom.checkpoints
        WHERE right(checkpoint_id, 12)::bigint BETWEEN $1::int AND $2::int""",
    "chunks": f"""DELETE FROM stateroom.chunks WHERE (tenant_id, subject_id, thread_id, piece_id) IN (
        SELECT {_OWNER}, 't' || n % {THREADS}, decode('00' || md5(n::text), 'hex')
        FROM generate_series($1::int, $2::int) n)""",
    "pending_writes": """DELETE FROM stateroom.pending_writes
        WHERE right(checkpoint_id, 12)::bigint BETWEEN $1::int AND $2::int""",
}


class _Tables:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def sizes(self, table: str) -> tuple[float, float, float]:
        """Megabytes of the table itself, of its TOAST table with that one's index, and of its indexes."""
        row = await self._connection.fetchrow(
            "SELECT pg_relation_size(c.oid) AS own, coalesce(pg_total_relation_size(nullif(c.reltoastrelid, 0)), 0) AS"
            " toast, pg_indexes_size(c.oid) AS indexes FROM pg_class c WHERE c.oid = $1::regclass",
            f"stateroom.{table}",
        )
        return row["own"] / 1e6, row["toast"] / 1e6, row["indexes"] / 1e6

    async def fill(self, table: str, first: int, last: int) -> None:
        await self._connection.execute(_FILL[table], first, last)

    async def remove(self, table: str, first: int, last: int) -> None:
        await self._connection.execute(_REMOVE[table], first, last)

    async def vacuum(self, table: str) -> None:
        await self._connection.execute(f"VACUUM (ANALYZE, TRUNCATE false) stateroom.{table}")


def _shown(sizes: tuple[float, float, float]) -> str:
    return " | ".join(f"{each:.1f}" for each in sizes)


async def _halves(tables: _Tables) -> None:
    rows = THREADS * PER_THREAD
    print("| table | when | rows MB | TOAST MB | indexes MB |\n|---|---|---|---|---|")
    for table in _TABLES:
        await tables.fill(table, 1, rows)
        await tables.vacuum(table)
        print(f"| {table} | {rows:,} rows | {_shown(await tables.sizes(table))} |")
        await tables.remove(table, 1, rows // 2)
        await tables.vacuum(table)
        print(f"| {table} | half removed, vacuumed | {_shown(await tables.sizes(table))} |")
        await tables.fill(table, rows + 1, rows + rows // 2)
        print(f"| {table} | as many written again | {_shown(await tables.sizes(table))} |")


async def _churn(tables: _Tables, connection: asyncpg.Connection) -> None:
    rows = THREADS * PER_THREAD // 2
    each = int(rows * CHURN_SHARE)
    print("\n| table | vacuumed when dead | rows, TOAST, indexes over the same just written |\n|---|---|---|")
    for scale_factor in (0.2, 0.02):
        for table in _TABLES:
            await connection.execute(f"TRUNCATE stateroom.{table} CASCADE")
            await tables.fill(table, 1, rows)
            before = await tables.sizes(table)
            dead = 0
            for number in range(CHURN_ROUNDS):
                await tables.remove(table, number * each + 1, (number + 1) * each)
                dead += each
                if dead >= 50 + scale_factor * rows:
                    await tables.vacuum(table)
                    dead = 0
                await tables.fill(table, rows + number * each + 1, rows + (number + 1) * each)
            after = await tables.sizes(table)
            grown = ", ".join(f"{now / was:.2f}" if was else "-" for now, was in zip(after, before, strict=True))
            print(f"| {table} | {scale_factor:.0%} | {grown} |")


async def _hot(connection: asyncpg.Connection) -> None:
    await connection.execute(f"""
INSERT INTO stateroom.threads (tenant_id, subject_id, thread_id, status, tier, strict, activity, created_at, updated_at,
    seal) SELECT {_OWNER}, 't' || n, 'active', 'hot', false, 1, now(), now(), decode(repeat('ab', 220), 'hex')
FROM generate_series(1, {THREADS}) n;
INSERT INTO stateroom.heads (tenant_id, subject_id, thread_id, namespace, head_id, sequence, seal)
SELECT {_OWNER}, 't' || n, '', '1f0c0000-0000-6000-8000-000000000000', 1, decode(repeat('ab', 220), 'hex')
FROM generate_series(1, {THREADS}) n""")
    for number in range(SAVES):
        thread_id = f"t{number % THREADS + 1}"
        await connection.execute(
            "UPDATE stateroom.threads SET activity = activity + 1, updated_at = now() WHERE thread_id = $1", thread_id
        )
        await connection.execute(
            "UPDATE stateroom.heads SET sequence = sequence + 1, head_id = head_id || '' WHERE thread_id = $1",
            thread_id,
        )
    await connection.execute("SELECT pg_stat_force_next_flush()")
    print("\n| table | updates | HOT |\n|---|---|---|")
    for table in ("threads", "heads"):
        row = await connection.fetchrow(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = $1::regclass", f"stateroom.{table}"
        )
        print(f"| {table} | {row['n_tup_upd']:,} | {row['n_tup_hot_upd'] / row['n_tup_upd']:.1%} |")


async def measure() -> None:
    """Print all three tables."""
    with tempfile.TemporaryDirectory(prefix="stateroom-bloat-") as folder:
        Path(folder).chmod(0o711)  # noqa: ASYNC240  once; engines run as an unprivileged user where this is root
        postgres = EmbeddedPostgres(Path(folder))
        await asyncio.to_thread(postgres.start)
        try:
            await prepare(postgres.superuser_url(), database="bloat", owner_password="o" * 20, app_password="a" * 20)
            dsn = postgres.superuser_url("bloat").replace("+asyncpg", "", 1)
            connection = await asyncpg.connect(dsn)
            try:
                await connection.execute("SET synchronous_commit = off")
                for table in (*_TABLES, "threads", "heads"):
                    await connection.execute(f"ALTER TABLE stateroom.{table} SET (autovacuum_enabled = false)")
                tables = _Tables(connection)
                await _halves(tables)
                await _churn(tables, connection)
                await _hot(connection)
            finally:
                await connection.close()
        finally:
            await asyncio.to_thread(postgres.stop)


if __name__ == "__main__":
    asyncio.run(measure())
