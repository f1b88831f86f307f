from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from storage.checkpoints.reading import HISTORY_BYTES_MAX
from storage.clock import ManualClock
from storage.model import ChannelValue, FullState, HistoryQuery, Parent, Value
from storage.scope import Scope
from storage.service import Store, StoreOptions
from tests.support.states import contents, history, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def steps(page):
    return [each.step for each in page]


@pytest.fixture
async def filled(database, root_key, scope):
    """Six checkpoints a minute apart, in two threads and a namespace."""
    clock = ManualClock(START)
    store = await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=2,
        durable=False,
        options=StoreOptions(clock=clock),
    )
    places = [("t1", ""), ("t1", ""), ("t1", "sub"), ("t2", ""), ("t2", ""), ("t1", "")]
    for number, (thread_id, namespace) in enumerate(places):
        await save(
            store,
            scope,
            thread_id,
            namespace=namespace,
            content=state(number=number),
            step=number,
            status="waiting" if number == 3 else "active",
            source="loop" if number % 2 else "input",
            agent="travel" if number < 3 else "other",
            run_id=f"run-{number // 2}",
            metadata={"user": {"plan": "pro", "n": number}, "tags": ["a", "b"]},
        )
        clock.set(clock.now() + timedelta(minutes=1))
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [5, 4, 3, 2, 1, 0]),
        ({"thread_id": "t1"}, [5, 2, 1, 0]),
        ({"thread_id": "t1", "namespace": ""}, [5, 1, 0]),
        ({"namespace": "sub"}, [2]),
        ({"status": "waiting"}, [3]),
        ({"step": 4}, [4]),
        ({"run_id": "run-1"}, [3, 2]),
        ({"source": "input"}, [4, 2, 0]),
        ({"agent": "travel"}, [2, 1, 0]),
        ({"since": START + timedelta(minutes=2)}, [5, 4, 3, 2]),
        ({"until": START + timedelta(minutes=2)}, [1, 0]),
        ({"metadata": {"user": {"plan": "pro"}}, "limit": 2}, [5, 4]),
        ({"metadata": {"user": {"n": 3}}}, [3]),
        ({"metadata": {"tags": ["a", "b"]}, "step": 1}, [1]),
        ({"metadata": {"tags": ["a"]}}, []),
        ({"metadata": {"user": "pro"}}, []),
        ({"metadata": {"none": None}}, []),
    ],
    ids=str,
)
async def test_filters_choose(filled, scope, query, expected):
    assert steps(await history(filled, scope, **query)) == expected


async def test_before_excludes_the_named_checkpoint_and_what_is_newer(filled, scope):
    page = await history(filled, scope)
    assert steps(await history(filled, scope, before=page[2].checkpoint_id)) == [2, 1, 0]


async def test_a_tasks_outcome_is_the_status_that_is_filtered(filled, scope):
    newest = (await history(filled, scope))[0]
    await put(filled, scope, newest.checkpoint_id, write(-1, "__error__", "x"), status="failed")
    assert steps(await history(filled, scope, status="failed")) == [5]
    assert 5 not in steps(await history(filled, scope, status="active"))


async def test_history_without_state_opens_no_channel(filled, scope):
    assert all(each.channels is None and each.writes is None for each in await history(filled, scope))


async def test_history_with_state_has_values_and_writes(filled, scope):
    newest = (await history(filled, scope))[0]
    await put(filled, scope, newest.checkpoint_id, write(0, "a", 1))
    page = await history(filled, scope, with_state=True)
    assert [contents(each)["number"] for each in page] == [5, 4, 3, 2, 1, 0]
    assert writes_of(page[0]) == [("task", 0, "a", 1)]
    assert writes_of(page[1]) == []


@pytest.mark.parametrize("query", [{}, {"metadata": {"user": {"plan": "pro"}}}, {"with_state": True}], ids=str)
async def test_cursors_reach_everything_once_while_others_write(filled, scope, query):
    seen, after = [], None
    while True:
        page = await filled.checkpoints.history(scope, HistoryQuery(limit=2, after=after, **query))
        seen += steps(page.items)
        await save(filled, scope, step=99, metadata={"user": {"plan": "pro"}})
        if page.after is None:
            break
        after = page.after
    assert seen == [5, 4, 3, 2, 1, 0]


async def test_one_id_in_several_threads_and_namespaces_is_paged_completely(store, scope):
    places = [(f"t{thread}", namespace) for thread in range(3) for namespace in ("", "a", "b")]
    for thread_id, namespace in places:
        await save(store, scope, thread_id, namespace=namespace, checkpoint_id="same", parent=Parent(None), step=0)
    seen, after = [], None
    while True:
        page = await store.checkpoints.history(scope, HistoryQuery(limit=2, after=after))
        seen += [(each.thread_id, each.namespace) for each in page.items]
        if (after := page.after) is None:
            break
    assert sorted(seen) == sorted(places)
    assert len(seen) == len(places)


async def test_a_page_ends_when_enough_bytes_were_opened(store, scope):
    # One value shared by all checkpoints: stored once, counted every time it is opened.
    big = Value("raw", bytes(HISTORY_BYTES_MAX // 3))
    await save(store, scope, content=FullState({"big": ChannelValue("1", big)}), step=0)
    for number in range(1, 5):
        await save(store, scope, content=FullState({"big": ChannelValue("1", None)}), step=number)
    first = await store.checkpoints.history(scope, HistoryQuery(with_state=True))
    assert 1 <= len(first.items) < 5
    assert first.after is not None
    rest = await store.checkpoints.history(scope, HistoryQuery(with_state=True, after=first.after, limit=1))
    assert steps(first.items + rest.items) == list(range(4, 3 - len(first.items), -1))


async def test_a_subject_without_data_has_an_empty_history(store):
    assert await history(store, Scope(uuid4(), "nobody")) == []
