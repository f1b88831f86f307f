"""A damaged thread is named in listings, and hides and blocks no other thread of its subject."""

# ruff: noqa: S608  table and column names are constants of these tests

import pytest

from storage.errors import IntegrityFailure
from storage.model import HistoryQuery
from tests.support.states import document, put, save, state, write

THREADS = ("one", "hurt", "two")
AFTER = "thread_id = 'hurt' AND tenant_id = $1"
# What somebody with the database does to a thread, and which listings cannot but see it.
DAMAGE = {
    "thread seal": (f"UPDATE stateroom.threads SET seal = reverse(seal) WHERE {AFTER}", {"threads", "none", "state"}),
    "thread's time": (
        f"UPDATE stateroom.threads SET created_at = created_at - interval '1 day' WHERE {AFTER}",
        {"threads", "none", "state"},
    ),
    "checkpoint": (f"UPDATE stateroom.checkpoints SET manifest = reverse(manifest) WHERE {AFTER}", {"none", "state"}),
    "step": (f"UPDATE stateroom.checkpoints SET step = step + 7 WHERE {AFTER}", {"none", "state"}),
    "write": (f"UPDATE stateroom.pending_writes SET value = reverse(value) WHERE {AFTER}", {"state"}),
    "write removed": (f"DELETE FROM stateroom.pending_writes WHERE {AFTER}", {"state"}),
    "piece": (f"UPDATE stateroom.chunks SET envelope = reverse(envelope) WHERE {AFTER}", {"state"}),
    "piece removed": (f"DELETE FROM stateroom.chunks WHERE {AFTER}", {"state"}),
}


@pytest.fixture
async def threads(store, scope):
    for thread_id in THREADS:
        saved = await save(store, scope, thread_id, content=state(a=document(thread_id)))
        await put(store, scope, saved.checkpoint_id, write(0, "a", "w"), thread_id=thread_id)


async def listings(store, scope):
    """What each listing says is damaged, and what it shows of the others."""
    page = await store.threads.list(scope)
    found = {"threads": ({each.thread_id for each in page.items}, {e.thread_id for e in page.items if e.damaged})}
    for view, with_state in (("none", False), ("state", True)):
        history = await store.checkpoints.history(scope, HistoryQuery(limit=100, with_state=with_state))
        for each in history.items:
            assert (each.channels is None) == (each.withheld or not with_state)
        found[view] = (
            {each.thread_id for each in history.items},
            {each.thread_id for each in history.items if each.damaged},
        )
    return found


@pytest.mark.parametrize("what", DAMAGE)
async def test_a_damaged_thread_is_named_and_hides_no_other(store, scope, admin, threads, what):
    assert await listings(store, scope) == dict.fromkeys(("threads", "none", "state"), (set(THREADS), set()))
    sql, seen_in = DAMAGE[what]
    await admin.execute(sql, scope.tenant_id)
    for listing, (shown, damaged) in (await listings(store, scope)).items():
        assert shown == set(THREADS), listing
        assert damaged == ({"hurt"} if listing in seen_in else set()), listing
    if "none" in seen_in:  # it might have matched
        found = await store.checkpoints.history(scope, HistoryQuery(metadata={"no": "such"}))
        assert [each.thread_id for each in found.items] == ["hurt"]
    with pytest.raises(IntegrityFailure):
        await store.checkpoints.history(scope, HistoryQuery(thread_id="hurt", with_state=True))
    for thread_id in ("one", "two"):
        assert len((await store.checkpoints.history(scope, HistoryQuery(thread_id=thread_id))).items) == 1


async def test_a_damaged_thread_is_told_of_once_the_others_are_pruned(store, scope, admin, threads):
    for thread_id in THREADS:
        await save(store, scope, thread_id, content=state(a=document(f"{thread_id} again")))
    await admin.execute(DAMAGE["step"][0], scope.tenant_id)
    with pytest.raises(IntegrityFailure):
        await store.threads.prune(scope, ["hurt", *THREADS], "keep_latest")
    for thread_id, count in (("one", 1), ("two", 1)):
        found = await store.checkpoints.history(scope, HistoryQuery(thread_id=thread_id))
        assert len(found.items) == count
    assert (await store.threads.prune(scope, THREADS, "delete")).threads == len(THREADS)
