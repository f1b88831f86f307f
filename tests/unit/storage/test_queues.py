"""So many at once for each name, fewer while several names ask; nobody overtakes, and no turn is lost."""

import asyncio
from contextlib import suppress
from random import Random  # noqa: TID251  seeded

import pytest

from storage.concurrency.queues import COMPANY_SECONDS, FairQueue


class TooMany(Exception):
    pass


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    return FairQueue(5, None, 30.0, TooMany, company_max=2, clock=clock)


class Crowd:
    """Tasks that have a turn each until they are told to leave."""

    def __init__(self, queue, name):
        self.queue = queue
        self.name = name
        self.having = []
        self.order = []
        self.tasks = []

    async def _have(self, number):
        async with self.queue.turn(self.name):
            over = asyncio.Event()
            self.having.append(over)
            self.order.append(number)
            try:
                await over.wait()
            finally:
                self.having.remove(over)

    async def come(self, count):
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._have(len(self.tasks))))
        await settled()

    async def leave(self, count=1):
        for each in self.having[:count]:
            each.set()
        await settled()


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_name_that_asks_alone_has_as_many_as_there_may_be(queue):
    crowd = Crowd(queue, "a")
    await crowd.come(9)
    assert len(crowd.having) == 5
    while crowd.having:
        await crowd.leave()
    assert crowd.order == list(range(9))
    assert len(queue) == 0


async def test_beside_another_name_it_has_fewer_as_soon_as_its_own_leave(queue):
    crowd, other = Crowd(queue, "a"), Crowd(queue, "b")
    await crowd.come(12)
    await other.come(1)
    assert len(other.having) == 1  # at once, whatever the crowd has
    for left in (4, 3, 2, 2, 2):
        await crowd.leave()
        assert len(crowd.having) == left
    await other.come(4)
    assert len(other.having) == 2
    for each in (crowd, other):
        while each.having:
            await each.leave()
    assert crowd.order == list(range(12))
    assert other.order == list(range(5))
    assert len(queue) == 0


async def test_when_the_other_name_is_gone_a_while_it_has_as_many_again_and_nobody_overtakes(queue, clock):
    crowd, other = Crowd(queue, "a"), Crowd(queue, "b")
    await other.come(1)
    await crowd.come(12)
    assert len(crowd.having) == 2
    await other.leave()
    clock.now += COMPANY_SECONDS * 0.99
    await crowd.leave()
    assert len(crowd.having) == 2
    clock.now += COMPANY_SECONDS * 0.02
    await crowd.come(1)
    assert len(crowd.having) == 2  # who comes now stands behind those who wait
    await crowd.leave()
    assert len(crowd.having) == 5
    while crowd.having:
        await crowd.leave()
    assert crowd.order == list(range(13))
    assert len(queue) == 0


async def test_one_name_asking_again_and_again_is_no_company(queue, clock):
    crowd = Crowd(queue, "a")
    for _ in range(20):
        await crowd.come(5)
        assert len(crowd.having) == 5
        await crowd.leave(5)
        clock.now += COMPANY_SECONDS / 10


async def test_however_they_come_wait_and_are_cancelled_no_turn_is_lost_and_none_is_had_twice(queue, clock):
    rng = Random(20_261_122)  # noqa: S311
    for _ in range(60):
        crowds = [Crowd(queue, name) for name in "abc"]
        for _ in range(60):
            crowd = rng.choice(crowds)
            match rng.randrange(4):
                case 0 | 1:
                    await crowd.come(rng.randrange(4))
                case 2:
                    await crowd.leave(rng.randrange(4))
                case _ if crowd.tasks:
                    gone = rng.choice(crowd.tasks)
                    gone.cancel()
                    if rng.randrange(2) and crowd.having:
                        crowd.having[0].set()  # a turn is passed on in the same moment
                    with suppress(asyncio.CancelledError):
                        await gone
                    await settled()
            clock.now += rng.random() * COMPANY_SECONDS
            assert all(len(each.having) <= 5 for each in crowds)
        for crowd in crowds:
            while crowd.having:
                await crowd.leave()
            await asyncio.gather(*crowd.tasks, return_exceptions=True)
            assert crowd.order == sorted(crowd.order)
        assert len(queue) == 0


async def test_who_waits_too_long_or_behind_too_many_is_refused(clock):
    queue = FairQueue(1, 1, 0.01, TooMany, clock=clock)
    async with queue.turn("a"):
        waiting = asyncio.create_task(queue.enter("a"))
        await asyncio.sleep(0)
        with pytest.raises(TooMany):
            await queue.enter("a")
        with pytest.raises(TooMany):
            await waiting
    assert len(queue) == 0
