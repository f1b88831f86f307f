import asyncio
import contextlib
import threading
from uuid import uuid4

import pytest

from gateway.admission import limits
from gateway.admission.limits import Admission, AnswerTooLarge, Commits, Drain, Overloaded, TenantBusy, ThreadBusy
from gateway.admission.slices import Work
from gateway.http.cursors import Cursors
from gateway.http.exchange import read_body
from gateway.problems import InvalidRequest
from storage.concurrency.turns import loop_turn
from storage.keys.key_seals import Pepper, Peppers

ADDRESS = (uuid4(), "ann", "t")


def test_a_full_process_refuses_and_recovers():
    admission = Admission(1)
    with admission.request(), pytest.raises(Overloaded), admission.request():
        pass
    for _ in range(3):
        with admission.request():
            pass


def test_one_tenant_cannot_take_the_others_share():
    admission = Admission(10, tenant_requests_max=1)
    one, other = uuid4(), uuid4()
    with admission.tenant(one):
        with pytest.raises(TenantBusy), admission.tenant(one):
            pass
        with admission.tenant(other):
            pass
    with admission.tenant(one):
        pass


def test_bodies_in_flight_are_bounded_for_a_tenant_and_for_the_process_and_given_back():
    admission = Admission(100)
    largest = limits.BODY_BYTES_MAX
    one, other, third = uuid4(), uuid4(), uuid4()
    of_one = limits.TENANT_HELD_BYTES_MAX // largest
    for _ in range(3):  # nothing stays counted
        with contextlib.ExitStack() as running:
            for tenant_id in (*[one] * of_one, *[other] * (limits.HELD_BYTES_MAX // largest - of_one)):
                running.enter_context(admission.tenant(tenant_id)).take(largest)
            with admission.tenant(one) as reservation, pytest.raises(Overloaded):
                reservation.take(1)
            with admission.tenant(third) as reservation, pytest.raises(Overloaded):
                reservation.take(1)
        with contextlib.ExitStack() as running:
            for _ in range(limits.TENANT_HELD_BYTES_MAX // largest):
                running.enter_context(admission.tenant(one)).take(largest)
            with admission.tenant(one) as reservation, pytest.raises(TenantBusy):
                reservation.take(1)
            with admission.tenant(other) as reservation:
                reservation.take(largest)


def test_a_body_that_is_refused_in_the_middle_gives_back_what_came_before():
    admission = Admission(100)
    tenant_id = uuid4()
    for _ in range(3):
        with admission.tenant(tenant_id) as reservation:
            for _ in range(16):
                reservation.take(limits.TENANT_HELD_BYTES_MAX // 16)
            with pytest.raises(TenantBusy):
                reservation.take(1)


def test_an_answer_takes_the_place_of_what_it_was_made_of():
    admission = Admission(100)
    with admission.tenant(uuid4()) as reservation:
        reservation.take(limits.TENANT_HELD_BYTES_MAX)
        reservation.hold(1_000_000)
        assert admission.held_bytes == 1_000_000
        with pytest.raises(AnswerTooLarge, match="TENANT_HELD_BYTES_MAX"):
            reservation.hold(limits.TENANT_HELD_BYTES_MAX + 1)
    assert admission.held_bytes == 0


def test_an_answer_that_says_what_was_stored_is_given_however_little_is_left():
    admission = Admission(100)
    tenant_id = uuid4()
    with admission.tenant(tenant_id) as crowding, admission.tenant(tenant_id) as saved:
        saved.take(100)
        crowding.take(limits.TENANT_HELD_BYTES_MAX - 100)
        saved.hold(limits.ANSWER_SLICE_BYTES)
        with pytest.raises(TenantBusy):
            saved.hold(limits.ANSWER_SLICE_BYTES + 1)


async def test_of_all_tenants_one_slice_is_done_in_each_turn_of_the_loop_and_one_piece_of_work_of_each():
    admission = Admission(100)
    turn, done = 0, []

    async def turning() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def work(name: str) -> Work[str]:
        for _ in range(5):
            done.append((turn, name))
            yield
        return name

    tenants = {"a": uuid4(), "b": uuid4()}
    ticker = asyncio.create_task(turning())
    with contextlib.ExitStack() as running:
        reservations = {
            (name, n): running.enter_context(admission.tenant(tenants[name])) for n in range(3) for name in "ab"
        }
        works = [each.run(work(f"{name}{n}"), limits.SLICED_BYTES_MIN) for (name, n), each in reservations.items()]
        assert await asyncio.gather(*works) == [f"{name}{n}" for name, n in reservations]
    ticker.cancel()
    turns = [at for at, _ in done]
    assert len(set(turns)) == len(turns) == 30  # no two slices in one turn
    names = [name for _, name in done]
    assert [name for name in names if name[0] == "a"] == ["a0"] * 5 + ["a1"] * 5 + ["a2"] * 5
    assert names[:6] == ["a0", "b0", "a0", "b0", "a0", "b0"]


async def test_writes_to_a_thread_run_a_few_at_a_time_in_order():
    admission = Admission(100)
    running, most, order = 0, 0, []

    async def write(number: int) -> None:
        nonlocal running, most
        async with admission.thread(ADDRESS):
            running += 1
            most = max(most, running)
            order.append(number)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(write(number) for number in range(20)))
    assert most == limits.THREAD_WRITES_ACTIVE_MAX
    assert order == list(range(20))
    assert len(admission._threads) == 0


async def test_the_queue_of_a_thread_is_bounded_and_cancellation_leaks_no_turn():
    admission = Admission(1000)
    release = asyncio.Event()

    async def write() -> None:
        async with admission.thread(ADDRESS):
            await release.wait()

    count = limits.THREAD_WRITES_ACTIVE_MAX + limits.THREAD_WRITES_WAITING_MAX
    tasks = [asyncio.create_task(write()) for _ in range(count)]
    await asyncio.sleep(0)
    with pytest.raises(ThreadBusy):
        async with admission.thread(ADDRESS):
            pass
    for task in tasks[::3]:
        task.cancel()
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(admission._threads) == 0
    async with admission.thread(ADDRESS):
        pass


async def test_a_turn_that_comes_while_its_waiter_is_cancelled_goes_to_the_next():
    admission = Admission(100)
    holders = [admission.thread(ADDRESS) for _ in range(limits.THREAD_WRITES_ACTIVE_MAX)]
    for holder in holders:
        await holder.__aenter__()
    done = []

    async def write(name: str) -> None:
        async with admission.thread(ADDRESS):
            done.append(name)

    first, second = asyncio.create_task(write("first")), asyncio.create_task(write("second"))
    await asyncio.sleep(0)
    await holders[0].__aexit__(None, None, None)
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert done == ["second"]
    for holder in holders[1:]:
        await holder.__aexit__(None, None, None)
    assert len(admission._threads) == 0


async def test_a_waiter_that_was_cancelled_before_a_turn_came_free_ends_as_cancelled_and_leaks_no_turn():
    admission = Admission(100)
    holders = [admission.thread(ADDRESS) for _ in range(limits.THREAD_WRITES_ACTIVE_MAX)]
    for holder in holders:
        await holder.__aenter__()

    async def write() -> None:
        async with admission.thread(ADDRESS):
            raise AssertionError("it was cancelled")

    waiter = asyncio.create_task(write())
    await asyncio.sleep(0)
    waiter.cancel()
    for holder in holders:  # who leaves skips it, before it hears of its end
        await holder.__aexit__(None, None, None)
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert len(admission._threads) == 0


async def test_a_write_outlives_its_caller_and_finish_waits_for_it():
    commits, gate, done = Commits(), asyncio.Event(), []

    async def write() -> None:
        await gate.wait()
        done.append(True)

    caller = asyncio.ensure_future(commits.run(write()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    await commits.finish()
    assert done == [True]


async def test_a_drain_serves_on_and_then_stops():
    drain, stopped = Drain(0.0), []
    running = asyncio.create_task(drain.run(lambda: stopped.append(True)))
    await asyncio.sleep(0)
    assert not drain.draining
    drain.begin()
    await running
    assert drain.stopped
    assert stopped == [True]


def test_a_cursor_is_good_for_its_own_list_only():
    cursors = Cursors(Peppers(Pepper(1, bytes(32))))
    cursor = cursors.write(b"list", ("a", "b"))
    assert cursors.read(b"list", cursor) == ("a", "b")
    assert cursors.read(b"list", None) is None
    altered = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    for binding, forged in ((b"other", cursor), (b"list", altered), (b"list", ""), (b"list", "é"), (b"list", "a===")):
        with pytest.raises(InvalidRequest):
            cursors.read(binding, forged)
    with pytest.raises(InvalidRequest):
        Cursors(Peppers(Pepper(1, bytes(31) + b"\x01"))).read(b"list", cursor)


@pytest.mark.parametrize("size_bytes", [1, limits.SLICED_BYTES_MIN])
async def test_what_work_yields_is_called_for_it_and_beside_the_loop_if_it_is_in_slices(size_bytes):
    def work() -> Work[list[int]]:
        found = []
        for _ in range(2):
            found.append((yield threading.get_ident))
            yield
        return found

    with Admission(100).tenant(uuid4()) as reservation:
        called_in = await reservation.run(work(), size_bytes)
    assert (threading.get_ident() in called_in) == (size_bytes == 1)


async def test_of_all_large_bodies_one_chunk_is_taken_in_each_turn_of_the_loop():
    admission, chunk = Admission(100), b"a" * limits.ANSWER_SLICE_BYTES

    async def read() -> int:
        left = 10

        async def receive():
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": chunk, "more_body": left > 0}

        with admission.tenant(uuid4()) as reservation:
            return len(await read_body({}, receive, reservation))

    await read()
    before = loop_turn().taken
    assert await asyncio.gather(*(read() for _ in range(5))) == [10 * len(chunk)] * 5
    assert loop_turn().taken - before == 5 * 9
