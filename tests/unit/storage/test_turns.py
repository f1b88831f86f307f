"""So many at once for each name, fewer while several names ask; nobody overtakes, and no turn is lost."""

import asyncio
from contextlib import suppress
from random import Random  # noqa: TID251  seeded

import pytest

from storage.concurrency.turns import (
    COMPANY_SECONDS,
    PAUSE_BYTES,
    PAUSE_ROW_BYTES,
    LoopTurn,
    Pauses,
    Turns,
    take_turns_as,
)


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
def turns(clock):
    return Turns(5, None, 30.0, TooMany, company_max=2, clock=clock)


class Crowd:
    """Tasks that have a turn each until they are told to leave."""

    def __init__(self, turns, name):
        self.turns = turns
        self.name = name
        self.having = []
        self.order = []
        self.tasks = []

    async def _have(self, number):
        async with self.turns.of(self.name):
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


async def test_a_name_that_asks_alone_has_as_many_as_there_may_be(turns):
    crowd = Crowd(turns, "a")
    await crowd.come(9)
    assert len(crowd.having) == 5
    while crowd.having:
        await crowd.leave()
    assert crowd.order == list(range(9))
    assert len(turns) == 0


async def test_beside_another_name_it_has_fewer_as_soon_as_its_own_leave(turns):
    crowd, other = Crowd(turns, "a"), Crowd(turns, "b")
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
    assert len(turns) == 0


async def test_when_the_other_name_is_gone_a_while_it_has_as_many_again_and_nobody_overtakes(turns, clock):
    crowd, other = Crowd(turns, "a"), Crowd(turns, "b")
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
    assert len(turns) == 0


async def test_one_name_asking_again_and_again_is_no_company(turns, clock):
    crowd = Crowd(turns, "a")
    for _ in range(20):
        await crowd.come(5)
        assert len(crowd.having) == 5
        await crowd.leave(5)
        clock.now += COMPANY_SECONDS / 10


async def test_however_they_come_wait_and_are_cancelled_no_turn_is_lost_and_none_is_had_twice(turns, clock):
    rng = Random(20_261_122)  # noqa: S311
    for _ in range(60):
        crowds = [Crowd(turns, name) for name in "abc"]
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
        assert len(turns) == 0


async def test_who_waits_too_long_or_behind_too_many_is_refused(clock):
    turns = Turns(1, 1, 0.01, TooMany, clock=clock)
    async with turns.of("a"):
        waiting = asyncio.create_task(turns.enter("a"))
        await asyncio.sleep(0)
        with pytest.raises(TooMany):
            await turns.enter("a")
        with pytest.raises(TooMany):
            await waiting
    assert len(turns) == 0


class Ticks:
    """Counts the turns of the event loop."""

    def __init__(self):
        self.count = 0
        self._ticking = asyncio.create_task(self._tick())

    async def _tick(self):
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def stop(self):
        self._ticking.cancel()


@pytest.fixture
async def ticks():
    made = Ticks()
    yield made
    made.stop()


async def test_in_one_turn_of_the_loop_one_slice_is_done_whoever_asks(ticks):
    turn, done = LoopTurn(), []

    async def work(name):
        for _ in range(5):
            await turn.take()
            done.append((ticks.count, name))
            await asyncio.sleep(0)

    await asyncio.gather(*map(work, "abc"))
    turns = [at for at, _ in done]
    assert len({*turns}) == len(turns) == 15
    assert [name for _, name in done[:6]] == ["a", "b", "c"] * 2


async def test_work_without_company_does_not_wait_for_a_turn_of_the_loop(ticks):
    turn = LoopTurn()
    await asyncio.sleep(0)
    before = ticks.count
    await turn.take()
    assert ticks.count == before


async def test_a_turn_of_the_loop_is_not_lost_when_somebody_who_waits_gives_up():
    turn = LoopTurn()
    await turn.take()
    waiting = [asyncio.create_task(turn.take()) for _ in range(9)]
    await asyncio.sleep(0)
    for each in waiting[::3]:
        each.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting, return_exceptions=True)
        await turn.take()


@pytest.mark.parametrize(("size_bytes", "rows"), [(0, 1000), (PAUSE_BYTES, 10), (1000, 100)])
async def test_whoever_opens_rows_pauses_by_their_bytes_and_by_their_number(ticks, size_bytes, rows):
    pauses = Pauses()
    await asyncio.sleep(0)
    before = ticks.count
    for _ in range(rows):
        await pauses.after(size_bytes)
    each = size_bytes + PAUSE_ROW_BYTES
    assert ticks.count - before >= rows * each // (PAUSE_BYTES + each)


async def test_many_who_open_rows_do_so_one_in_a_turn_of_the_loop(ticks):
    opened = []

    async def read():
        pauses = Pauses()
        for _ in range(6):
            await pauses.after(PAUSE_BYTES)
            opened.append(ticks.count)

    await asyncio.gather(*(read() for _ in range(20)))
    assert len({*opened}) == len(opened) == 120


async def test_who_has_one_slice_to_do_waits_for_one_of_each_other_name():
    turn, done = LoopTurn(), []

    async def work(name):
        take_turns_as(name)
        await turn.take()
        done.append(name)

    await asyncio.gather(*map(work, ["a"] * 100 + ["b"] * 2 + ["c"]))
    assert done[:6] == ["a", "a", "b", "c", "a", "b"]
    assert len(done) == 103


async def test_of_a_name_what_began_first_is_ended_first_while_the_rest_goes_on():
    turn, ended = LoopTurn(), []

    async def work(number):
        take_turns_as("a")
        for _ in range(20):
            await turn.take()
            await asyncio.sleep(0)
        ended.append(number)

    async def short():
        take_turns_as("a")
        await turn.take()
        ended.append("short")

    works = [asyncio.create_task(work(number)) for number in range(10)]
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.gather(short(), *works)
    assert ended[0] == "short"
    assert ended[1:] == sorted(ended[1:])


async def test_many_turns_that_were_taken_in_order_leave_nothing_behind():
    turn = LoopTurn()

    async def work(count):
        take_turns_as("a")
        for _ in range(count):
            await turn.take()
            await asyncio.sleep(0)

    old = asyncio.create_task(work(2000))
    await asyncio.sleep(0)
    await asyncio.gather(*(work(5) for _ in range(300)))
    assert all(len(line._by_age) <= 100 for line in turn._lines.values())
    await old
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not turn._lines
