"""A database of a test's own that nobody vacuums or analyzes, and what a process with one connection does in it.

Counted are rows, as PostgreSQL counts them, and bytes on the wire: neither depends on how fast anything is.
"""

from collections.abc import AsyncIterator, Awaitable
from typing import Any, NamedTuple

import asyncpg
import pytest

from crypto import MemoryRootKey
from gateway.embedded.postgres import EmbeddedPostgres
from storage.service import Store
from tests.support.engines import fresh_database
from tests.support.interruption import Interruption
from tests.support.stores import APP_PASSWORD, DEPLOYMENT_ID

_TELL = "SELECT pg_stat_force_next_flush()"
_ROWS = """
SELECT CASE WHEN o.oid IS NULL THEN s.relname ELSE 'toast of ' || o.relname END AS name,
    s.seq_tup_read AS scanned, coalesce(s.idx_tup_fetch, 0) AS fetched,
    s.n_tup_ins AS added, s.n_tup_upd AS changed, s.n_tup_del AS removed
FROM pg_stat_all_tables s
LEFT JOIN pg_class o ON o.reltoastrelid = s.relid
LEFT JOIN pg_namespace n ON n.oid = o.relnamespace
WHERE s.schemaname = 'stateroom' OR n.nspname = 'stateroom'
"""


class OwnDatabase(NamedTuple):
    """A superuser's connection, the port of the server, and gw_app's URL."""

    admin: asyncpg.Connection
    port: int
    name: str

    def url(self, port: int) -> str:
        """Gw_app's, by way of a port."""
        return f"postgresql://gw_app:{APP_PASSWORD}@127.0.0.1:{port}/{self.name}"


class Rows(NamedTuple):
    """Of one table: read by scans of the whole table and by look-ups, and written."""

    scanned: int = 0
    fetched: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0


async def rows(store: Store, admin: asyncpg.Connection) -> dict[str, Rows]:
    """What happened to each table, and to its large values (``toast of``), since the database was made."""
    async with store.unit_of_work.connection() as connection:
        await connection.execute(_TELL)
    await admin.execute(_TELL)  # what a test itself looked at, lest it is told in the middle of what is measured
    await admin.execute("SELECT pg_stat_clear_snapshot()")
    return {name: Rows(*counted) for name, *counted in await admin.fetch(_ROWS)}


class Cost(NamedTuple):
    """What one call did: rows of tables where there were any, bytes to the database, bytes from it, and its result."""

    rows: dict[str, Rows]
    asked: int
    answered: int
    result: Any

    @property
    def read(self) -> dict[str, int]:
        """How many rows of each table were looked at."""
        return {name: each.scanned + each.fetched for name, each in self.rows.items() if each.scanned + each.fetched}

    @property
    def written(self) -> dict[str, tuple[int, int, int]]:
        """How many rows of each table were added, changed and removed."""
        return {name: each[2:] for name, each in self.rows.items() if any(each[2:])}


class Meter:
    """Measures what a store that has one connection, along a wire, does."""

    def __init__(self, store: Store, admin: asyncpg.Connection, wire: Interruption) -> None:
        self.store = store
        self._admin = admin
        self._wire = wire

    async def cost(self, call: Awaitable[Any]) -> Cost:
        """Of a call that was made before, so that the driver and the database have prepared what they need."""
        before = await rows(self.store, self._admin)
        asked, answered = self._wire.asked_bytes, self._wire.answered_bytes
        result = await call
        asked, answered = self._wire.asked_bytes - asked, self._wire.answered_bytes - answered
        after = await rows(self.store, self._admin)
        moved = {
            name: Rows(*(now - then for now, then in zip(each, before.get(name, Rows()), strict=True)))
            for name, each in after.items()
        }
        return Cost({name: each for name, each in moved.items() if any(each)}, asked, answered, result)


@pytest.fixture
async def own_database(postgres: EmbeddedPostgres, migrated_template: str) -> AsyncIterator[OwnDatabase]:
    async with fresh_database(postgres, template=migrated_template) as made:
        admin = await asyncpg.connect(made.dsn)
        for row in await admin.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'stateroom'"):
            await admin.execute(f"ALTER TABLE stateroom.{row['tablename']} SET (autovacuum_enabled = off)")
        port = int(made.dsn.rsplit(":", 1)[1].split("/")[0])
        yield OwnDatabase(admin, port, made.name)
        await admin.close()


@pytest.fixture
async def own_store(own_database: OwnDatabase, root_key: MemoryRootKey) -> AsyncIterator[Store]:
    """A store with one connection, so that all its statements are counted together."""
    url = own_database.url(own_database.port)
    opened = await Store.open(url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=1, durable=False)
    yield opened
    await opened.close()


@pytest.fixture
async def meter(own_database: OwnDatabase, root_key: MemoryRootKey) -> AsyncIterator[Meter]:
    """A store with one connection along a wire whose bytes are counted."""
    async with Interruption(own_database.port) as wire:
        opened = await Store.open(
            own_database.url(wire.port),
            root_key=root_key,
            deployment_id=DEPLOYMENT_ID,
            connections_max=1,
            durable=False,
        )
        yield Meter(opened, own_database.admin, wire)
        await opened.close()
