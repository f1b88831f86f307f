"""Whether tables with many checkpoints make a save or a load slower.

For each number of checkpoints, each contender has a database of its own on the run's PostgreSQL, and Stateroom a
gateway process on it, so that all sizes are measured in turns within one run. The rows are copies, made in SQL, of one
thread that was really saved: of other tenants, subjects and threads, whose seals would therefore not open, and which
are never read. What is saved and loaded beside them is real.
"""

import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import asyncpg
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from benchmarks.bench import GATEWAY_CPU, P50, SIZE, Bench, in_turn
from benchmarks.contenders import LANGGRAPH, STATEROOM, new_thread, postgres_saver
from benchmarks.engines import Engines
from benchmarks.gateways import serving
from benchmarks.workload import Prose, chat_saves, config_of, saves_of_10_kb
from stateroom import acting_for
from stateroom.langgraph import StateroomSaver

MILLION = 1_000_000
SAVE_P50, LOAD_P50 = "save p50 ms", "load p50 ms"
SAVE_CPU, LOAD_CPU = "save gateway CPU ms", "load gateway CPU ms"
_TEMPLATE = "template"
_TEMPLATE_CHECKPOINTS = 20  # a thread of a chat with as many turns
_MESSAGE_BYTES = 250
_COPIES_EACH = 500  # threads that one statement makes
_CONNECTIONS = 4
_GATEWAY_TABLES = ("threads", "heads", "checkpoints", "chunks")
_PEER_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
_NEW = {
    "tenant_id": "md5('tenant' || n % 97)::uuid",
    "subject_id": "'s-' || md5('subject' || n)",
    "thread_id": "'t-' || md5('thread' || n)",
}


def contenders(table_rows: tuple[int, ...]) -> tuple[str, ...]:
    """Every contender at every size."""
    return tuple(named(contender, rows) for rows in table_rows for contender in (STATEROOM, LANGGRAPH))


def named(contender: str, rows: int) -> str:
    """A contender with so many checkpoints in its tables."""
    return f"{contender}, {rows:,} checkpoints"


class Tables:
    """The savers on filled databases, and the databases."""

    def __init__(self) -> None:
        self.savers: dict[str, BaseCheckpointSaver] = {}
        self.databases: dict[str, str] = {}


async def _copy(connection: asyncpg.Connection, schema: str, table: str, first: int, last: int) -> None:
    """Copy the template's rows of a table to threads ``first`` to ``last``."""
    columns = [
        row["column_name"]
        for row in await connection.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = $1 AND table_name = $2"
            " AND is_generated = 'NEVER' ORDER BY ordinal_position",
            schema,
            table,
        )
    ]
    values = ", ".join(_NEW.get(name, name) for name in columns)
    names = ", ".join(columns)
    await connection.execute(
        f"INSERT INTO {schema}.{table} ({names}) SELECT {values} FROM {schema}.{table},"  # noqa: S608  constants
        f" generate_series({first}, {last}) n WHERE thread_id = '{_TEMPLATE}'"
    )


async def _fill(dsn: str, schema: str, tables: tuple[str, ...], rows: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET synchronous_commit = off")
        threads = rows // _TEMPLATE_CHECKPOINTS
        for first in range(1, threads + 1, _COPIES_EACH):
            for table in tables:
                await _copy(connection, schema, table, first, min(first + _COPIES_EACH - 1, threads))
        for table in tables:
            await connection.execute(f"VACUUM (ANALYZE) {schema}.{table}")
        await connection.execute("CHECKPOINT")  # or the first slices would pay for what was just written
        found = await connection.fetchval(f"SELECT count(*) FROM {schema}.checkpoints")  # noqa: S608  constants
        assert found >= rows, found
    finally:
        await connection.close()


async def _save_template(saver: BaseCheckpointSaver) -> None:
    prose = Prose(_TEMPLATE)
    messages = [AIMessage(prose.take(_MESSAGE_BYTES), id=f"m-{number}") for number in range(2 * _TEMPLATE_CHECKPOINTS)]
    config = config_of(_TEMPLATE)
    for save in chat_saves(saver, messages):
        config = await saver.aput(config, *save)


@asynccontextmanager
async def filled(engines: Engines, table_rows: tuple[int, ...]) -> AsyncIterator[Tables]:
    """Make and fill the databases, start a gateway on each of Stateroom's, and stop them at the end."""
    tables = Tables()
    async with AsyncExitStack() as stack:
        for rows in table_rows:
            began = time.monotonic()
            ours, theirs = f"stateroom_{rows}", f"langgraph_{rows}"
            serves = serving(engines, 1, database=ours, connections_max=_CONNECTIONS)
            (url,) = await stack.enter_async_context(serves)
            saver = await stack.enter_async_context(StateroomSaver(url, engines.api_key))
            await engines.create_database(theirs)
            peer = await stack.enter_async_context(postgres_saver(engines.dsn(theirs)))
            for contender, each, database in ((STATEROOM, saver, ours), (LANGGRAPH, peer, theirs)):
                with acting_for(_TEMPLATE):
                    await _save_template(each)
                tables.savers[named(contender, rows)] = each
                tables.databases[named(contender, rows)] = database
            await _fill(engines.dsn(ours), "stateroom", _GATEWAY_TABLES, rows)
            await _fill(engines.dsn(theirs), "public", _PEER_TABLES, rows)
            sizes = [await engines.tables_size(database) / 1e6 for database in (ours, theirs)]
            print(
                f"Tables of {rows:,} checkpoints: {sizes[0]:,.0f} MB and {sizes[1]:,.0f} MB,"
                f" {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        yield tables


async def save_and_load(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """Saves of 10 KB to new threads, then a load of each of those threads."""
    assert bench.tables is not None
    saver = bench.tables.savers[contender]
    count = bench.effort.saves
    thread_ids = [new_thread() for _ in range(count)]
    made = [saves_of_10_kb(saver, prose, 1)[0] for _ in thread_ids]
    saved = await in_turn(
        bench,
        [
            lambda thread_id=thread_id, save=save: saver.aput(config_of(thread_id), *save)
            for thread_id, save in zip(thread_ids, made, strict=True)
        ],
    )
    loaded = await in_turn(
        bench, [lambda thread_id=thread_id: saver.aget_tuple(config_of(thread_id)) for thread_id in thread_ids]
    )
    size = await bench.engines.tables_size(bench.tables.databases[contender])
    return {
        SAVE_P50: saved[P50],
        LOAD_P50: loaded[P50],
        SAVE_CPU: saved[GATEWAY_CPU],
        LOAD_CPU: loaded[GATEWAY_CPU],
        SIZE: size / 1e6,
    }
