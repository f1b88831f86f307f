"""Old checkpoints of a thread in segments: what history, saves and bytes are, against the same thread in the database.

``python -m benchmarks.segments [CHECKPOINTS [WINDOW]]`` saves a chat of so many turns, each a checkpoint with so many
messages (200; 0: all there were), twice: in one thread
everything stays hot, in the other all but the newest hundred moves into segments as it grows. It prints, for both:
the time of a whole listing of history and of one page with state near the beginning; what rows and objects take,
against the envelopes of the pieces that are there once (DESIGN 7: at most 1.6); and the saves of a writer to the very
thread, alone and while segments form. The last figure is how many checkpoints a second move while the thread is saved
to back to back: it must not starve. It crosses no HTTP; servers, store and writer share the machine.
"""

import asyncio
import statistics
import sys
import time
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import msgpack

from benchmarks.archiving import store_with_bucket
from benchmarks.workload import Prose
from storage.control.features import SEGMENTS
from storage.model import ChannelValue, FullState, HistoryQuery, Save, Value
from storage.scope import OperatorScope, Scope
from storage.service import Store
from storage.threads.thinning import ThinningRule

CHECKPOINTS = 2_000
# A chat forgets what is older: so long a window of messages goes into each checkpoint.
WINDOW = 200
KEPT = 100
_MESSAGE_BYTES = 400
_RULE = ThinningRule(keep_last=KEPT)
_PAGE = 100
_THREAD = "tenant_id = $1 AND subject_id = $2 AND thread_id = $3"


class Chat:
    """A thread that is saved to, a message a turn."""

    def __init__(self, store: Store, scope: Scope, thread_id: str, window: int) -> None:
        self._store = store
        self._scope = scope
        self.thread_id = thread_id
        self._window = window
        self._prose = Prose("chat")
        self._messages: list[dict[str, str]] = []
        self.turns = 0

    async def save(self) -> float:
        """Save one turn; returns the seconds it took."""
        self._messages.append({"id": f"m{self.turns}", "content": self._prose.take(_MESSAGE_BYTES)})
        self.turns += 1
        data = msgpack.packb(self._messages[-self._window :])
        content = FullState({"messages": ChannelValue(None, Value("msgpack", data))})
        began = time.perf_counter()
        await self._store.checkpoints.save(self._scope, Save(thread_id=self.thread_id, content=content))
        return time.perf_counter() - began


async def _listing(store: Store, scope: Scope, thread_id: str) -> float:
    began, after, found = time.perf_counter(), None, 0
    while True:
        query = HistoryQuery(thread_id=thread_id, limit=_PAGE, after=after)
        page = await store.checkpoints.history(scope, query)
        found += len(page.items)
        after = page.after
        if after is None:
            return (time.perf_counter() - began) / found * 1000


async def _old_page(store: Store, scope: Scope, thread_id: str, before: str) -> float:
    began = time.perf_counter()
    query = HistoryQuery(thread_id=thread_id, limit=10, before=before, with_state=True)
    await store.checkpoints.history(scope, query)
    return time.perf_counter() - began


async def _bytes(admin: asyncpg.Pool, scope: Scope, thread_id: str) -> tuple[int, int, int, int]:
    """Envelopes in the database, and lists of pieces; of segments: what their rows took there, and the objects."""
    place = (scope.tenant_id, scope.subject_id, thread_id)
    lists = await admin.fetchval(
        f"SELECT (SELECT coalesce(sum(octet_length(children)), 0) FROM stateroom.chunks WHERE {_THREAD})"  # noqa: S608
        f" + (SELECT coalesce(sum(octet_length(piece_ids)), 0) FROM stateroom.checkpoints WHERE {_THREAD})",
        *place,
    )
    hot = await admin.fetchval(
        f"SELECT (SELECT coalesce(sum(octet_length(envelope)), 0) FROM stateroom.chunks WHERE {_THREAD})"  # noqa: S608
        f" + (SELECT coalesce(sum(octet_length(manifest)), 0) FROM stateroom.checkpoints WHERE {_THREAD})",
        *place,
    )
    row = await admin.fetchrow(
        "SELECT coalesce(sum(hot_bytes), 0) AS envelopes, coalesce(sum(size_bytes), 0) AS objects"  # noqa: S608
        f" FROM stateroom.archives WHERE {_THREAD}",
        *place,
    )
    return int(hot), int(lists), int(row["envelopes"]), int(row["objects"])


def _percentile(lasted: list[float]) -> str:
    return f"p50 {statistics.median(lasted) * 1000:.2f} ms, p99 {statistics.quantiles(lasted, n=100)[98] * 1000:.2f} ms"


async def look(checkpoints: int, window: int) -> None:
    """Print all of it."""
    async with store_with_bucket() as (store, admin):
        await _switch_on(store)
        scope = Scope(uuid4(), "user")
        segmenting = store.archives.segmenting
        hot, cold = (Chat(store, scope, each, window) for each in ("hot", "cold"))
        alone = [await hot.save() for _ in range(checkpoints)]
        _say("saves, nothing moves", _percentile(alone[checkpoints // 2 :]))
        beside: list[float] = []
        moved: dict[str, float] = {"checkpoints": 0, "seconds": 0.0, "segments": 0}

        async def move() -> None:
            began = time.perf_counter()
            done = await segmenting.move(scope, "cold", _RULE, actor="benchmark")
            moved["seconds"] += time.perf_counter() - began
            moved["checkpoints"] += done.checkpoints
            moved["segments"] += done.segments

        for _ in range(checkpoints // 2):
            await cold.save()
        mover: asyncio.Task[None] | None = None
        while cold.turns < checkpoints:
            if mover is None or (mover.done() and cold.turns % 250 == 0):
                if mover is not None:
                    mover.result()
                mover = asyncio.create_task(move())
            lasted = await cold.save()
            if not mover.done():
                beside.append(lasted)
        if mover is not None:
            await mover
        _say("saves to the thread of which segments form", _percentile(beside) if len(beside) > 1 else "too few")
        await move()
        _say("checkpoints moved a second", f"{moved['checkpoints'] / moved['seconds']:.0f}, in {moved['segments']:.0f}")
        for chat in (hot, cold):
            _say(
                f"{chat.thread_id}: whole history",
                f"{await _listing(store, scope, chat.thread_id):.3f} ms a checkpoint",
            )
            old = await _old_id(admin, scope, chat.thread_id)
            _say(
                f"{chat.thread_id}: an old page with state",
                f"{await _old_page(store, scope, chat.thread_id, old):.3f} s",
            )
        rows, lists, _, _ = await _bytes(admin, scope, "hot")
        left, _, envelopes, objects = await _bytes(admin, scope, "cold")
        _say("cold: in the database, against hot", f"{left / rows:.3f}")
        _say("cold: envelopes in segments, against all of hot", f"{envelopes / rows:.3f}")
        _say("cold: objects, against envelopes and lists of pieces of hot", f"{objects / (rows + lists):.3f}")


async def _old_id(admin: asyncpg.Pool, scope: Scope, thread_id: str) -> str:
    """An id near the beginning of a thread."""
    place = (scope.tenant_id, scope.subject_id, thread_id)
    found: Any = await admin.fetchval(f"SELECT min(last_id) FROM stateroom.archives WHERE {_THREAD}", *place)  # noqa: S608
    if found is None:
        found = await admin.fetchval(
            f"SELECT checkpoint_id FROM stateroom.checkpoints WHERE {_THREAD}"  # noqa: S608
            " ORDER BY checkpoint_id OFFSET 900 LIMIT 1",
            *place,
        )
    return str(found)


async def _switch_on(store: Store) -> None:
    await store.features.refresh()
    async with store.unit_of_work.begin(OperatorScope()) as transaction:
        await store.features.add(transaction, SEGMENTS, datetime(2020, 1, 1, tzinfo=UTC))
    await store.features.refresh()


def _say(what: str, found: str) -> None:
    print(f"{what}: {found}", flush=True)


if __name__ == "__main__":
    checkpoints, window = (*map(int, sys.argv[1:]), *(CHECKPOINTS, WINDOW)[len(sys.argv) - 1 :])
    asyncio.run(look(checkpoints, window))
