import asyncpg

from gateway.cli.local.checks import _check_dead_rows
from storage.postgres.session import Session
from storage.statements.deployment import bloat
from tests.support.states import document, save, state

VACUUMED_EARLY = """
SELECT c.relname AS name, c.reloptions AS own, t.reloptions AS toast
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class t ON t.oid = c.reltoastrelid
WHERE n.nspname = 'stateroom' AND c.relname IN ('checkpoints', 'chunks', 'pending_writes')
"""


async def test_what_thinning_empties_is_vacuumed_before_it_is_a_fifth(admin):
    rows = await admin.fetch(VACUUMED_EARLY)
    assert len(rows) == 3
    for row in rows:
        assert "autovacuum_vacuum_scale_factor=0.02" in row["own"]
        assert "autovacuum_vacuum_scale_factor=0.02" in row["toast"]


async def dead(connection):
    await connection.execute("SELECT pg_stat_force_next_flush()")
    return {table.name: table.dead for table in await Session(connection).fetch_all(bloat.DEAD_ROWS)}


async def test_dead_rows_are_counted_by_table_with_their_toast_and_as_the_serving_role(store, scope, admin, database):
    for table in ("checkpoints", "chunks"):
        off = "autovacuum_enabled = false, toast.autovacuum_enabled = false"
        await admin.execute(f"ALTER TABLE stateroom.{table} SET ({off})")
    for number in range(20):
        await save(store, scope, content=state(a=document(str(number), 60_000)))
    serving = await asyncpg.connect(database.dsn(database.app_url))
    try:
        before = await dead(serving)
        await admin.execute("DELETE FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
        chunks = await admin.execute("DELETE FROM stateroom.chunks WHERE tenant_id = $1", scope.tenant_id)
        await admin.execute("SELECT pg_stat_force_next_flush()")
        after = await dead(serving)
        assert after["checkpoints"] - before["checkpoints"] == 20
        assert after["chunks"] - before["chunks"] >= int(chunks.rsplit(" ", 1)[-1])
        assert (await _check_dead_rows(serving)).outcome == "ok"
    finally:
        await serving.close()


def test_only_many_dead_rows_that_are_a_large_share_are_late():
    assert not bloat.is_late(10, 40_000)
    assert not bloat.is_late(10_000_000, 60_000)
    assert bloat.is_late(100_000, 60_000)
