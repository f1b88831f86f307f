"""Pruning a long thread while it is saved to: what its writer notices.

One thread of `CHECKPOINTS` checkpoints is made once and copied for every slice. A writer saves to the copy without a
pause: first alone, then while everything but the head is pruned. "In batches" is `storage.threads.pruning`, in the
writer's own process, so that what it computes is in the writer's way, too. "One transaction" is the way in which this
was done before: lock the thread, open all of its checkpoints to compare them with the seals, delete, collect. "Plain
SQL" deletes the same rows under one lock and neither opens nor seals anything: it leaves the tamper evidence false, and
is a floor.

It crosses no HTTP. What counts is the writer's longest wait, and the ratio of its p99 to its own p99 alone, a moment
before; where one save of many waits for all of the removal, the p99 does not show it.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import msgpack

from crypto import MemoryRootKey
from gateway.embedded.postgres import EmbeddedPostgres
from storage.access.completeness import walk
from storage.model import ChannelValue, FullState, Patch, Precondition, Save, Value
from storage.postgres.setup import prepare
from storage.postgres.statement import Statement
from storage.scope import Scope
from storage.service import Store
from storage.statements.threads.threads import LOCK
from storage.tiers.hot import HotRows

BATCHES = "in batches"
AT_ONCE = "one transaction"
SQL = "plain SQL"
PRUNE_SECONDS = "prune s"
ALONE, MEANWHILE, WORST = "p99 ms alone", "p99 ms meanwhile", "longest ms meanwhile"
TIMES = "p99 over alone"
_SOURCE = "source"
_ALONE_SAVES = 500
# At least so many saves are timed from the moment a prune begins: one that stalls them gets no better figure for it.
_MEANWHILE_SAVES_MIN = 200
_MESSAGE_BYTES = 600

_DELETE_WRITES = Statement("""
DELETE FROM stateroom.pending_writes
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
""")
_DELETE_CHECKPOINTS = Statement("""
DELETE FROM stateroom.checkpoints
WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
AND checkpoint_id <> (SELECT head_id FROM stateroom.heads h
    WHERE h.tenant_id = :tenant_id AND h.subject_id = :subject_id AND h.thread_id = :thread_id AND h.namespace = '')
""")
_COLLECT = Statement("""
WITH RECURSIVE roots AS (
    SELECT piece_ids AS packed FROM stateroom.checkpoints
    WHERE tenant_id = :tenant_id AND subject_id = :subject_id AND thread_id = :thread_id
), live AS (
    SELECT substring(r.packed FROM 1 + 17 * n FOR 17) AS piece_id
    FROM roots r, LATERAL generate_series(0, length(r.packed) / 17 - 1) n
    UNION
    SELECT substring(c.children FROM 1 + 17 * n FOR 17)
    FROM live JOIN stateroom.chunks c ON c.tenant_id = :tenant_id AND c.subject_id = :subject_id
        AND c.thread_id = :thread_id AND c.piece_id = live.piece_id,
        LATERAL generate_series(0, length(c.children) / 17 - 1) n
    WHERE c.children IS NOT NULL
)
DELETE FROM stateroom.chunks c
WHERE c.tenant_id = :tenant_id AND c.subject_id = :subject_id AND c.thread_id = :thread_id
  AND NOT EXISTS (SELECT FROM live WHERE live.piece_id = c.piece_id)
""")


class PruningBench:
    """A PostgreSQL of its own with one long thread in it.

    Attributes:
        checkpoints: How long the thread is.
    """

    def __init__(self, store: Store, checkpoints: int) -> None:
        self.checkpoints = checkpoints
        self._store = store
        self._scope = Scope(uuid4(), "user")
        self._number = 0

    async def fill(self) -> None:
        """Make the thread: a chat that grows, and a draft that every step writes anew."""
        head = None
        for number in range(self.checkpoints):
            head = await self._save(_SOURCE, number, head)

    async def _save(self, thread_id: str, number: int, head_id: str | None) -> str:
        note = msgpack.packb(f"{number}:{thread_id}:" + "d" * 4096)
        message = msgpack.packb({"id": f"{thread_id}-{number}", "content": "m" * _MESSAGE_BYTES})
        content: FullState | Patch
        if head_id is None or number % 50 == 0:
            messages = msgpack.packb([])
            content = FullState(
                {
                    name: ChannelValue(None, Value("msgpack", data))
                    for name, data in (("messages", messages), ("note", note))
                }
            )
            saved = await self._store.checkpoints.save(self._scope, Save(thread_id=thread_id, content=content))
        else:
            content = Patch(set={"note": Value("msgpack", note)}, append={"messages": [message]}, remove=[])
            precondition = Precondition(head_id=head_id)
            saved = await self._store.checkpoints.save(
                self._scope, Save(thread_id=thread_id, content=content, precondition=precondition)
            )
        return saved.checkpoint_id

    async def _prune(self, contender: str, thread_id: str) -> None:
        if contender == BATCHES:
            removal = await self._store.pruning.keep_latest(self._scope, thread_id)
            assert removal.checkpoints >= self.checkpoints
            return
        async with self._store.unit_of_work.begin(self._scope) as transaction:
            await transaction.fetch_one(LOCK, thread_id=thread_id)
            if contender == AT_ONCE:
                sealer = await self._store.keys.sealer(self._scope)
                opened = 0
                async for _ in walk(HotRows(transaction, thread_id), sealer, ""):
                    opened += 1
                assert opened >= self.checkpoints
            for statement in (_DELETE_WRITES, _DELETE_CHECKPOINTS, _COLLECT):
                await transaction.run(statement, thread_id=thread_id)

    async def slice(self, contender: str) -> dict[str, float]:
        """Save alone, then during a prune; what the writer saw."""
        self._number += 1
        thread_id = f"copy-{self._number}"
        copied = await self._store.threads.copy(self._scope, _SOURCE, thread_id)
        assert copied.checkpoints == self.checkpoints
        head: str | None = (await self._store.threads.get(self._scope, thread_id)).head_id
        number = self.checkpoints

        async def saves(goes_on: Callable[[int], bool]) -> list[float]:
            nonlocal head, number
            lasted: list[float] = []
            while goes_on(len(lasted)):
                number += 1
                began = time.perf_counter()
                head = await self._save(thread_id, number, head)
                lasted.append(time.perf_counter() - began)
            return lasted

        gc.collect()
        alone = await saves(lambda done: done < _ALONE_SAVES)
        began = time.perf_counter()
        pruning = asyncio.create_task(self._prune(contender, thread_id))
        lasted = 0.0

        def ended(_: object) -> None:
            nonlocal lasted
            lasted = time.perf_counter() - began

        pruning.add_done_callback(ended)
        meanwhile = await saves(lambda done: done < _MEANWHILE_SAVES_MIN or not pruning.done())
        await pruning
        if contender == BATCHES:
            report = await self._store.verification.thread(self._scope, thread_id)
            assert not report.findings
        await self._store.threads.delete(self._scope, thread_id)
        p99_alone, p99 = (statistics.quantiles(each, n=100)[98] * 1000 for each in (alone, meanwhile))
        return {
            PRUNE_SECONDS: lasted,
            ALONE: p99_alone,
            MEANWHILE: p99,
            TIMES: p99 / p99_alone,
            WORST: max(meanwhile) * 1000,
        }


@asynccontextmanager
async def pruning_bench(checkpoints: int, parent: Path | None = None) -> AsyncIterator[PruningBench]:
    """Start PostgreSQL, make the thread, and stop and remove all of it."""
    with tempfile.TemporaryDirectory(prefix="stateroom-pruning-", dir=parent) as folder:
        Path(folder).chmod(0o711)  # noqa: ASYNC240  once; engines run as an unprivileged user where this is root
        postgres = EmbeddedPostgres(Path(folder))
        await asyncio.to_thread(postgres.start)
        try:
            _, app_url = await prepare(
                postgres.superuser_url(), database="pruning", owner_password="o" * 20, app_password="a" * 20
            )
            store = await Store.open(
                app_url, root_key=MemoryRootKey(), deployment_id=UUID(int=1), connections_max=4, durable=True
            )
            try:
                bench = PruningBench(store, checkpoints)
                await bench.fill()
                yield bench
            finally:
                await store.close()
        finally:
            await asyncio.to_thread(postgres.stop)


async def look(checkpoints: int, rounds: int) -> None:
    """Print rounds of both: ``python -m benchmarks.pruning``."""
    async with pruning_bench(checkpoints) as bench:
        for _ in range(rounds):
            for contender in (SQL, AT_ONCE, BATCHES):
                found = await bench.slice(contender)
                print(f"{contender}: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)


if __name__ == "__main__":
    import sys

    asyncio.run(look(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000, 3))
