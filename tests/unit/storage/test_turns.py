"""One slice of work in each turn of the event loop, and readers pause so that others have theirs."""

import asyncio

import pytest

from storage.concurrency.turns import PAUSE_BYTES, PAUSE_ROW_BYTES, LoopTurn, Pauses, take_turns_as


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
