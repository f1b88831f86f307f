"""Items for tests: what is put, deleted, read and searched, and the rows of a subject."""

# ruff: noqa: S608  table names are constants of these tests

from typing import Any

import asyncpg

from storage.access.access import Access
from storage.encoding import encode_msgpack
from storage.items import filters
from storage.items.model import Batch, Item, ItemGet, ItemName, ItemSearch, ItemWrite, Labels, PathSearch
from storage.items.verbs import Items
from storage.items.writing import Outcome
from storage.model import Page, Value
from storage.scope import ClientShare, Scope
from storage.service import Store
from tests.support.interleaving import Gate, SteeredUnitOfWork, parts_of

PATH = ("memories", "ada")
TABLES = ("item_scopes", "item_paths", "items")


def put(key: str, value: Any, path: Labels = PATH, **condition: Any) -> ItemWrite:
    return ItemWrite(ItemName(path, key), Value("msgpack", encode_msgpack(value)), **condition)


def delete(key: str, path: Labels = PATH, **condition: Any) -> ItemWrite:
    return ItemWrite(ItemName(path, key), None, **condition)


async def write(
    items: Items, scope: Scope, *writes: ItemWrite, atomic: bool = False, **options: Any
) -> list[Outcome | None]:
    return (await items.run(scope, Batch(writes=[*writes], atomic=atomic), **options)).writes


async def get(
    items: Items, scope: Scope, *keys: str, path: Labels = PATH, share: ClientShare | None = None, refresh: bool = True
) -> list[Item | None]:
    gets = [ItemGet(ItemName(path, key), refresh) for key in keys]
    return (await items.run(scope, Batch(gets=gets), share=share)).gets


async def search(
    items: Items, scope: Scope, prefix: Labels = PATH, like: Any = None, share: ClientShare | None = None, **wanted: Any
) -> Page[Item]:
    made = ItemSearch(prefix=prefix, filter=None if like is None else filters.parse(like, ""), **wanted)
    return (await items.run(scope, Batch(searches=[made]), share=share)).searches[0]


async def paths(items: Items, scope: Scope, share: ClientShare | None = None, **wanted: Any) -> list[Labels]:
    found = await items.run(scope, Batch(paths=[PathSearch(**wanted)]), share=share)
    return [*found.paths[0].items]


def steered(store: Store, gate: Gate) -> Items:
    """The verbs of another process on the same rows, held at a statement."""
    return Items(Access(parts_of(store, SteeredUnitOfWork(store._engine, {}, gate))), store.features)


async def copied(admin: asyncpg.Connection, scope: Scope) -> dict[str, list[asyncpg.Record]]:
    """The rows of a subject's items."""
    return {
        table: await admin.fetch(
            f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2",
            scope.tenant_id, scope.subject_id,
        )
        for table in TABLES
    }  # fmt: skip


async def put_back(admin: asyncpg.Connection, scope: Scope, table: str, rows: list[asyncpg.Record]) -> None:
    """Write rows as they were, in the place of those that have their names."""
    names = {"item_scopes": (), "item_paths": ("path_id",), "items": ("path_id", "key_id")}[table]
    for row in rows:
        where = " AND ".join(
            f"{name} = ${number}" for number, name in enumerate(("tenant_id", "subject_id", *names), 1)
        )
        await admin.execute(
            f"DELETE FROM stateroom.{table} WHERE {where}", *(row[name] for name in ("tenant_id", "subject_id", *names))
        )
        holes = ", ".join(f"${number}" for number in range(1, len(row) + 1))
        await admin.execute(f"INSERT INTO stateroom.{table} ({', '.join(row.keys())}) VALUES ({holes})", *row.values())
