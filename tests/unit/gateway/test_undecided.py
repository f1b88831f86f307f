"""Waiting for decisions: one look for all who wait for an approval, one after the other, and nobody left behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from uuid import UUID, uuid4

import pytest

from gateway.admission.limits import Drain
from gateway.events import undecided
from gateway.events.undecided import Undecided
from storage.errors import NotFound, Unavailable

TENANT = UUID(int=1)


class Rows:
    """How approvals stand, and how often that was asked."""

    def __init__(self) -> None:
        self.decided: set[UUID] = set()
        self.gone: set[UUID] = set()
        self.away = False
        self.looks = Counter[UUID]()
        self.at_once = 0
        self.at_once_max = 0

    async def is_pending(self, tenant_id: UUID, approval_id: UUID) -> bool:
        self.looks[approval_id] += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.away:
            raise Unavailable("away")
        if approval_id in self.gone:
            raise NotFound
        return approval_id not in self.decided


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    monkeypatch.setattr(undecided, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(undecided, "LOOKS_PER_SECOND_MAX", 1000)
    return Rows()


@pytest.fixture
def drain() -> Drain:
    return Drain(0)


@pytest.fixture
async def waits(rows: Rows, drain: Drain) -> AsyncIterator[Undecided]:
    made = Undecided(rows.is_pending, drain)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert all(task.done() for task in made._looking)


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def _all(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)


async def test_who_waits_is_woken_by_a_look_and_many_cost_one(waits: Undecided, rows: Rows) -> None:
    approval = uuid4()
    tasks = [asyncio.create_task(waits.wait(TENANT, approval, 60)) for _ in range(50)]
    await _until(lambda: rows.looks[approval] >= 3)
    assert not any(task.done() for task in tasks)
    rows.decided.add(approval)
    looks = rows.looks[approval]
    await _all(*tasks)
    assert rows.looks[approval] <= looks + 2
    assert rows.at_once_max == 1


async def test_who_waits_is_woken_at_once_by_what_this_process_does(waits: Undecided, rows: Rows) -> None:
    approval, other = uuid4(), uuid4()
    task = asyncio.create_task(waits.wait(TENANT, approval, 60))
    still = asyncio.create_task(waits.wait(TENANT, other, 60))
    await asyncio.sleep(0)
    waits.wake(UUID(int=2), approval)  # another tenant's of this id, if there were one
    await asyncio.sleep(0.05)
    assert not task.done()
    waits.wake(TENANT, approval)
    await _all(task)
    assert not still.done()
    still.cancel()


async def test_an_end_of_patience_and_a_removed_approval_end_a_wait(waits: Undecided, rows: Rows) -> None:
    patience, gone = uuid4(), uuid4()
    rows.gone.add(gone)
    await _all(
        asyncio.create_task(waits.wait(TENANT, patience, 0.05)), asyncio.create_task(waits.wait(TENANT, gone, 60))
    )


async def test_a_database_that_is_away_ends_no_wait(waits: Undecided, rows: Rows) -> None:
    approval = uuid4()
    rows.away = True
    rows.decided.add(approval)
    task = asyncio.create_task(waits.wait(TENANT, approval, 60))
    await _until(lambda: rows.looks[approval] >= 3)
    assert not task.done()
    rows.away = False
    await _all(task)


async def test_nothing_is_looked_at_for_nobody_and_then_again_for_somebody(waits: Undecided, rows: Rows) -> None:
    approval = uuid4()
    await waits.wait(TENANT, approval, 0.05)
    await _until(lambda: not waits._looking)
    looks = rows.looks[approval]
    await asyncio.sleep(0.05)
    assert rows.looks[approval] == looks
    rows.decided.add(approval)
    await _all(asyncio.create_task(waits.wait(TENANT, approval, 60)))
    assert rows.looks[approval] > looks


async def test_a_process_that_drains_lets_all_go(waits: Undecided, drain: Drain) -> None:
    task = asyncio.create_task(waits.wait(TENANT, uuid4(), 60))
    await asyncio.sleep(0.02)
    drain.begin()
    await _all(task)
    await _all(asyncio.create_task(waits.wait(TENANT, uuid4(), 60)))
