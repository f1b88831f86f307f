"""Threads with something of everything, and what of a thread the database holds: for the suites on archives."""

# ruff: noqa: S608  table and column names are constants of these tests

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from crypto import MemoryRootKey
from storage.administration.tenants import UNLIMITED, DefaultQuotas
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobStore
from storage.clock import Clock, SystemClock
from storage.collection.fsck import FsckReport
from storage.model import ChannelHistoryQuery, HistoryQuery, Load, Save, TaskWrites
from storage.postgres.unit_of_work import Observer, Silent
from storage.scope import ClientShare, Scope
from storage.service import Store, StoreOptions
from tests.support.blob_rows import Blobs
from tests.support.states import document, state, write
from tests.support.stores import DEPLOYMENT_ID, MigratedDatabase

MOVED = ("checkpoints", "checkpoint_tags", "pending_writes", "chunks")
STAYS = ("threads", "heads", "blob_refs", "artifact_refs", "artifacts")


@asynccontextmanager
async def opened(
    database: MigratedDatabase,
    root_key: MemoryRootKey,
    *,
    blobs: BlobStore | None = None,
    archive: BlobStore | None = None,
    clock: Clock | None = None,
    observer: Observer | None = None,
    connections_max: int = 8,
    default_quotas: DefaultQuotas = UNLIMITED,
) -> AsyncIterator[Store]:
    """A store with two buckets in memory."""
    store = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=connections_max,
        durable=False,
        options=StoreOptions(
            blobs=MemoryBlobStore() if blobs is None else blobs,
            archive=archive,
            clock=clock or SystemClock(),
            observer=observer or Silent(),
            default_quotas=default_quotas,
        ),
    )
    try:
        yield store
    finally:
        await store.close()


async def fill(store: Store, scope: Scope, thread_id: str = "t1", share: ClientShare | None = None) -> list[str]:
    """Checkpoints in two namespaces, a fork, large and shared pieces, pending writes; returns the ids, oldest first."""
    ids = []
    options: dict[str, Any] = {"share": share} if share else {}

    async def add(**parts: Any) -> str:
        saved = await store.checkpoints.save(scope, Save(thread_id=thread_id, **parts), **options)
        ids.append(saved.checkpoint_id)
        return saved.checkpoint_id

    messages = [document(f"{thread_id}-message-{number}", 900) for number in range(40)]
    first = await add(content=state(messages=messages[:10], note="one"), run_id="run-1", agent="planner", step=0)
    await add(content=state(messages=messages[:25], note="two"), run_id="run-1", agent="planner", status="waiting")
    image = document("picture", 90_000)
    head = await add(content=state(messages=messages, image=image), run_id="run-2", agent="writer")
    await add(content=state(inner=document("inner", 3000)), namespace="sub|1")
    place = (thread_id, "", head, "task", "path")
    writes = [write(0, "messages", document("written", 2000)), write(-1, "__error__", "oops")]
    await store.checkpoints.put_writes(scope, TaskWrites(*place, writes), **options)
    place = (thread_id, "", "never-saved", "early", "")
    await store.checkpoints.put_writes(scope, TaskWrites(*place, [write(0, "c", 1)]), **options)
    ids.append(first)
    return ids


async def rows(admin: asyncpg.Connection, scope: Scope, thread_id: str, table: str) -> list[dict[str, Any]]:
    """Rows of a thread as they are stored, in order."""
    found = await admin.fetch(
        f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
        scope.tenant_id, scope.subject_id, thread_id,
    )  # fmt: skip
    return sorted((dict(row) for row in found), key=repr)


async def moved(admin: asyncpg.Connection, scope: Scope, thread_id: str = "t1") -> dict[str, list[dict[str, Any]]]:
    """All rows that archiving moves, without when the database got each: one that comes back is got anew."""
    found = {table: await rows(admin, scope, thread_id, table) for table in MOVED}
    return {table: [{n: row[n] for n in row if n != "stored_at"} for row in found[table]] for table in MOVED}


async def seen(store: Store, scope: Scope, thread_id: str = "t1", share: ClientShare | None = None) -> list[Any]:
    """What a reader sees of a thread: every checkpoint by id and all of the history, with state and writes."""
    options: dict[str, Any] = {"share": share} if share else {}
    query = HistoryQuery(thread_id=thread_id, with_state=True, limit=1000)
    page = await store.checkpoints.history(scope, query, **options)
    found: list[Any] = [page.items]
    for each in page.items:
        place = (each.thread_id, each.namespace, each.checkpoint_id)
        found.append(await store.checkpoints.load(scope, Load(*place, with_state=True), **options))
    names = ["messages", "inner"]
    for namespace in sorted({each.namespace for each in page.items}):
        written = await store.checkpoints.channel_history(
            scope, ChannelHistoryQuery(thread_id, namespace, None, names), **options
        )
        found.append(written)
    return found


async def fsck(store: Store, scope: Scope) -> FsckReport:
    """Check a tenant's objects in both buckets, without grace."""
    return await Blobs(store, store.blobs, archive=store.archive).fsck(scope)  # type: ignore[arg-type]
