"""Items put, read and deleted in a line, and what of them the database holds."""

# ruff: noqa: S608  table and column names are constants of these tests

from collections.abc import Sequence
from typing import Any

import asyncpg

from storage.encoding import encode_msgpack
from storage.format.items.vectors import quantized
from storage.items.model import (
    Batch,
    Item,
    ItemGet,
    ItemName,
    ItemSearch,
    ItemWrite,
    Labels,
    ModelVectors,
    PathSearch,
)
from storage.items.writing import Outcome
from storage.model import Value
from storage.scope import ClientShare, Scope
from storage.service import Store

PATH: Labels = ("memories", "ada")
SHARE = ClientShare(b"s" * 32)
# The sealed columns of the tables of items.
SEALED = (
    ("items", "envelope"), ("item_vectors", "envelope"), ("item_paths", "labels"), ("item_paths", "seal"),
    ("item_scopes", "seal"),
)  # fmt: skip
TABLES = ("item_scopes", "item_paths", "items", "item_vectors")
VECTORS = (ModelVectors("example-embed", (quantized((1.0, 0.0)), quantized((0.5, -0.5)))),)


def put(key: str, value: Any, path: Labels = PATH, **condition: Any) -> ItemWrite:
    """A write that puts an item."""
    return ItemWrite(ItemName(path, key), Value("msgpack", encode_msgpack(value)), **condition)


def delete(key: str, path: Labels = PATH, **condition: Any) -> ItemWrite:
    """A write that deletes an item."""
    return ItemWrite(ItemName(path, key), None, **condition)


async def write(
    store: Store, scope: Scope, *writes: ItemWrite, share: ClientShare | None = None
) -> Sequence[Outcome | None]:
    """Do some writes at once; returns what became of each."""
    return (await store.items.run(scope, Batch(writes=[*writes]), share=share)).writes


async def get(
    store: Store, scope: Scope, *keys: str, path: Labels = PATH, share: ClientShare | None = None
) -> list[Item | None]:
    """The items of some keys of a path."""
    gets = [ItemGet(ItemName(path, key)) for key in keys]
    return (await store.items.run(scope, Batch(gets=gets), share=share)).gets


async def values(store: Store, scope: Scope, *keys: str, **place: Any) -> list[bytes | None]:
    """The values of some keys of a path, as MessagePack."""
    return [None if each is None else each.value.data for each in await get(store, scope, *keys, **place)]


async def found(store: Store, scope: Scope, share: ClientShare | None = None) -> list[tuple[Labels, str, int]]:
    """Path, key and revision of every item that a reader sees, in order."""
    searched = await store.items.run(scope, Batch(searches=[ItemSearch(limit=1000)]), share=share)
    return sorted((each.name.path, each.name.key, each.revision) for each in searched.searches[0].items)


async def paths(store: Store, scope: Scope, share: ClientShare | None = None) -> list[Labels]:
    """The subject's paths."""
    return (await store.items.run(scope, Batch(paths=[PathSearch(limit=1000)]), share=share)).paths[0].items


async def rows(admin: asyncpg.Connection, scope: Scope, table: str) -> list[dict[str, Any]]:
    """A subject's rows of a table as they are stored, in order."""
    stored = await admin.fetch(
        f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2", scope.tenant_id, scope.subject_id
    )
    return sorted((dict(row) for row in stored), key=repr)


async def restore(admin: asyncpg.Connection, scope: Scope, table: str, stored: list[dict[str, Any]]) -> None:
    """Put a subject's rows of a table back to what they were."""
    await admin.execute(
        f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2", scope.tenant_id, scope.subject_id
    )
    for row in stored:
        numbers = ", ".join(f"${number}" for number in range(1, len(row) + 1))
        names = ", ".join(row)
        await admin.execute(f"INSERT INTO stateroom.{table} ({names}) VALUES ({numbers})", *row.values())


async def end(admin: asyncpg.Connection, scope: Scope, *keys: bytes) -> None:
    """Let the time of items be over, as the database's clock will say one day: of all that have one, or of these."""
    await admin.execute(
        "UPDATE stateroom.items SET expires_at = clock_timestamp() - make_interval(secs => 1)"
        " WHERE tenant_id = $1 AND subject_id = $2 AND expires_at IS NOT NULL"
        " AND ($3::bytea[] = '{}' OR key_id = ANY($3))",
        scope.tenant_id, scope.subject_id, [*keys],
    )  # fmt: skip
