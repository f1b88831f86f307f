import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import httpx
import pytest

from gateway.app import Gateway, create_app
from tests.unit.gateway.doubles import MemoryStore, settings


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@contextlib.asynccontextmanager
async def living(store: MemoryStore) -> AsyncIterator[Gateway]:
    made = create_app(settings(), store=store, clock=store.clock)
    started, ended = asyncio.Event(), asyncio.Event()

    async def live() -> None:  # a task of its own: a lifespan must end in the task it began in
        async with made.lifespan():
            started.set()
            await ended.wait()

    life = asyncio.create_task(live())
    await started.wait()
    yield made
    ended.set()
    await life


@pytest.fixture
async def app(store: MemoryStore) -> AsyncIterator[Gateway]:
    async with living(store) as made:
        yield made


Caller = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


def caller(app: Gateway, store: MemoryStore) -> Caller:
    @contextlib.asynccontextmanager
    async def as_caller(kind: str | None = "subject", **more) -> AsyncIterator[httpx.AsyncClient]:
        headers = {} if kind is None else {"Authorization": f"Bearer {store.mint(kind, **more)}"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            yield client

    return as_caller


@pytest.fixture
def call(app: Gateway, store: MemoryStore) -> Caller:
    return caller(app, store)


class OneApp(NamedTuple):
    """An application for a whole module: it is dearer than what most tests do with it."""

    app: Gateway
    store: MemoryStore


@pytest.fixture(scope="module")
async def one() -> AsyncIterator[OneApp]:
    store = MemoryStore()
    async with living(store) as made:
        yield OneApp(made, store)


@pytest.fixture
def call_one_app(one: OneApp) -> Caller:
    """As `call`, of one application for a whole module: for requests that leave nothing behind."""
    return caller(one.app, one.store)
