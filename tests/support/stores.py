"""A migrated database, cloned from a template for each module, and a `Store` on it as gw_app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from crypto import MemoryRootKey
from gateway.embedded.postgres import EmbeddedPostgres
from storage.postgres.engine import create_engine
from storage.postgres.setup import prepare
from storage.scope import Scope
from storage.service import Store
from tests.support.engines import drop_database, fresh_database

DEPLOYMENT_ID = UUID("5742e700-0000-4000-8000-000000000001")
OWNER_PASSWORD = "owner"
APP_PASSWORD = "app"


class MigratedDatabase(NamedTuple):
    superuser_url: str
    owner_url: str
    app_url: str

    @staticmethod
    def dsn(url: str) -> str:
        return url.replace("+asyncpg", "", 1)


@pytest.fixture(scope="session")
async def migrated_template(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """The name of a database with the schema, to clone from; nobody stays connected to it."""
    name = f"t_{uuid4().hex}"
    await prepare(postgres.superuser_url(), database=name, owner_password=OWNER_PASSWORD, app_password=APP_PASSWORD)
    yield name
    await drop_database(postgres, name)


@asynccontextmanager
async def _migrated(postgres: EmbeddedPostgres, template: str) -> AsyncIterator[MigratedDatabase]:
    async with fresh_database(postgres, template=template) as made:
        base = make_url(made.superuser_url)
        yield MigratedDatabase(
            made.superuser_url,
            base.set(username="gw_migrate", password=OWNER_PASSWORD).render_as_string(False),
            base.set(username="gw_app", password=APP_PASSWORD).render_as_string(False),
        )


@pytest.fixture(scope="module")
async def database(postgres: EmbeddedPostgres, migrated_template: str) -> AsyncIterator[MigratedDatabase]:
    async with _migrated(postgres, migrated_template) as made:
        yield made


@pytest.fixture
async def migrated_database(postgres: EmbeddedPostgres, migrated_template: str) -> AsyncIterator[MigratedDatabase]:
    """A database of a test's own: jobs of the deployment work on everything in it."""
    async with _migrated(postgres, migrated_template) as made:
        yield made


@pytest.fixture(scope="session")
def root_key() -> MemoryRootKey:
    return MemoryRootKey()


@pytest.fixture(scope="module")
async def connections(database: MigratedDatabase) -> AsyncIterator[AsyncEngine]:
    """Connections for each test's own stores: what a process remembers is of its store, and a connection is dear."""
    engine = create_engine(database.app_url, connections_max=12)
    yield engine
    await engine.dispose()


@pytest.fixture(scope="module")
async def store(database: MigratedDatabase, root_key: MemoryRootKey) -> AsyncIterator[Store]:
    opened = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=8,
        durable=False,
    )
    yield opened
    await opened.close()


@pytest.fixture
def scope() -> Scope:
    """A subject of a tenant that nobody else uses."""
    return Scope(uuid4(), "user-1")
