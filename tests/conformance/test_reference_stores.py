"""LangGraph's own stores, held against the suite that ours passes: a case on which they change their mind is noticed.

What is written here is what they do, not what is right. Those on PostgreSQL come from packages that the default
environment does not have: ``make ecosystem``.
"""

from contextlib import asynccontextmanager

import asyncpg
import pytest
from langgraph.store.memory import InMemoryStore

from stateroom.testing.stores import CASES, validate_store

TIMES = {each.name for each in CASES if each.needs_time}
UNSUPPORTED = "time-is-refused-where-it-is-not-supported"

# Each says how the two differ from the suite; in brackets, what was reported to LangGraph.
IN_MEMORY = {
    "what-was-got-is-the-callers",  # what is returned is what is stored
    "reads-see-what-was-before",  # a get makes an empty path that is listed
    "paths-without-items-are-not-listed",  # likewise; and a path whose last item was deleted stays
    "the-whole-is-a-field",  # $ is a field of the index, but none of a put
    "texts-may-repeat",  # ValueError
    "the-last-changed-is-first",  # the first that was put is first
    "what-is-missing-is-not-greater",  # TypeError (#8365)
    "numbers-are-compared-as-numbers",  # ValueError where there is a text
    "what-is-missing-is-not-unequal",  # (#8366)
    "null-is-not-missing",
    "queries-leave-out-what-has-no-vector",  # it stands at the end, without a score
    "a-put-replaces-all-vectors",  # (#8214)
    "created-at-is-kept",
    "negative-pages-are-refused",  # it slices from the end (#8696)
    "a-path-may-be-a-list",  # TypeError
    "a-prefix-may-be-a-list",  # nothing is found
    "filters-are-joined",  # nothing is found
}
ON_POSTGRES = {
    "numbers-may-be-large",  # 1.5e300 comes back as a whole number
    "the-whole-is-a-field",
    "queries-are-embedded-as-queries",  # as texts
    "parts-of-minutes-count",  # a minute that was begun anew has no seconds
    "numbers-are-compared-as-numbers",  # as texts (#7684)
    "filters-look-into-maps",  # ValueError
    "a-put-replaces-all-vectors",  # (#8214)
    "query-pages-are-full",
    "nul-is-a-character",  # an error of PostgreSQL's
    "no-number-is-a-number",  # likewise
    "a-path-may-be-a-list",  # TypeError
    "filters-are-joined",
}
BESIDE_THE_LOOP = {
    "keys-become-text",  # the asynchronous methods pass keys as they are
    "one-that-fails-fails-alone",  # a call that is refused fails all of its tick
}
UNTIL_SWEPT = "what-is-over-is-never-returned"


def names(results):
    return {each.name for each in results}


async def test_the_store_in_memory_differs_where_it_did():
    @asynccontextmanager
    async def in_memory(config):
        yield InMemoryStore(index=config.index)

    for half in ("async", "blocking"):
        report = await validate_store(in_memory, halves=[half])
        assert names(report.failed) == IN_MEMORY, report.failures()
        assert names(report.skipped) == TIMES


@pytest.fixture
async def admin(empty_database):
    connection = await asyncpg.connect(empty_database.dsn)
    yield connection
    await connection.close()


@pytest.fixture
def pass_time(admin):
    async def go_on(seconds):
        await admin.execute("UPDATE store SET expires_at = expires_at - make_interval(secs => $1)", float(seconds))

    return go_on


@pytest.fixture
def pass_time_and_sweep(admin, pass_time):
    async def go_on(seconds):
        await pass_time(seconds)
        await admin.execute("DELETE FROM store WHERE expires_at < now()")  # as its sweeper does every five minutes

    return go_on


def exact(config):
    """What a store is made with, without an index of PostgreSQL's: those are approximate, so results would vary."""
    return config.index and {**config.index, "ann_index_config": {"kind": "flat", "vector_type": "vector"}}


@pytest.fixture
def blocking(empty_database):
    from langgraph.store.postgres import PostgresStore

    @asynccontextmanager
    async def made(config):
        with PostgresStore.from_conn_string(empty_database.dsn, index=exact(config), ttl=config.ttl) as store:
            store.setup()
            yield store

    return made


@pytest.fixture
def on_loop(empty_database, blocking):
    from langgraph.store.postgres import AsyncPostgresStore

    @asynccontextmanager
    async def made(config):
        async with (
            blocking(config),  # sets up: the asynchronous setup fails without an approximate index
            AsyncPostgresStore.from_conn_string(empty_database.dsn, index=exact(config), ttl=config.ttl) as store,
        ):
            yield store

    return made


@pytest.mark.ecosystem
async def test_the_blocking_store_on_postgres_differs_where_it_did(blocking, pass_time_and_sweep):
    report = await validate_store(blocking, advance=pass_time_and_sweep, halves=["blocking"])
    assert names(report.failed) == ON_POSTGRES, report.failures()
    assert names(report.skipped) == {UNSUPPORTED}


@pytest.mark.ecosystem
async def test_the_asynchronous_store_on_postgres_differs_where_it_did(on_loop, pass_time_and_sweep):
    report = await validate_store(on_loop, advance=pass_time_and_sweep, halves=["async"])
    assert names(report.failed) == ON_POSTGRES | BESIDE_THE_LOOP, report.failures()
    assert names(report.skipped) == {UNSUPPORTED}


@pytest.mark.ecosystem
async def test_the_store_on_postgres_returns_what_is_over_until_it_is_swept(blocking, pass_time):
    report = await validate_store(blocking, advance=pass_time, only=[UNTIL_SWEPT], halves=["blocking"])
    assert names(report.failed) == {UNTIL_SWEPT}
