"""Real engines for tests: one PostgreSQL and one S3 a session, started when first asked for.

A database made here is empty and dropped again; a template makes the migrated ones cheap. PostgreSQL runs
with fsync off: these tests end processes, not the machine's power.
"""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import asyncpg
import pytest

from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3


class Database(NamedTuple):
    name: str
    superuser_url: str  # postgresql+asyncpg://, for SQLAlchemy

    @property
    def dsn(self) -> str:
        """For asyncpg itself."""
        return self.superuser_url.replace("+asyncpg", "", 1)


async def _statement(postgres: EmbeddedPostgres, sql: str) -> None:
    connection = await asyncpg.connect(postgres.superuser_url().replace("+asyncpg", "", 1))
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def create_database(postgres: EmbeddedPostgres, template: str = "template0", owner: str = "postgres") -> Database:
    """A new database, empty or a copy of `template` (which nobody may be connected to)."""
    name = f"t_{uuid4().hex}"
    # Where nothing is flushed, copying files takes less than half of what logging every page does.
    strategy = "WAL_LOG" if postgres.fsync else "FILE_COPY"
    await _statement(postgres, f'CREATE DATABASE "{name}" TEMPLATE "{template}" OWNER {owner} STRATEGY {strategy}')
    return Database(name, postgres.superuser_url(name))


async def drop_database(postgres: EmbeddedPostgres, name: str) -> None:
    await _statement(postgres, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@asynccontextmanager
async def fresh_database(postgres: EmbeddedPostgres, template: str = "template0") -> AsyncIterator[Database]:
    database = await create_database(postgres, template)
    try:
        yield database
    finally:
        await drop_database(postgres, database.name)


@pytest.fixture(scope="session")
def engines_dir() -> Iterator[Path]:
    # Not pytest's own folder: its parents are closed to the unprivileged user PostgreSQL runs as.
    path = Path(tempfile.mkdtemp(prefix="stateroom-tests-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def postgres(engines_dir: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(engines_dir, fsync=False) as engine:
        yield engine


@pytest.fixture(scope="session")
def s3_server(engines_dir: Path) -> Iterator[EmbeddedS3]:
    with EmbeddedS3(engines_dir) as engine:
        yield engine


@pytest.fixture(scope="module")
async def empty_database(postgres: EmbeddedPostgres) -> AsyncIterator[Database]:
    """An empty database of this test module."""
    async with fresh_database(postgres) as database:
        yield database
