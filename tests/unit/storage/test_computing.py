"""Work beside the event loop: one piece at a time, names in turn, errors for whoever asked."""

import asyncio
import threading

import pytest

from storage.concurrency.computing import compute


async def test_work_is_done_one_piece_at_a_time_and_names_take_turns():
    begin = threading.Event()
    done = []
    held = asyncio.create_task(compute("a", begin.wait))
    await asyncio.sleep(0)
    others = [asyncio.create_task(compute(name, lambda name=name: done.append(name))) for name in ["a"] * 5 + ["b"]]
    await asyncio.sleep(0)
    begin.set()
    await asyncio.gather(held, *others)
    assert done == ["b"] + ["a"] * 5  # all of the first one's wait for its own piece


async def test_who_asked_gets_the_error_and_the_next_one_has_its_turn():
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await compute("a", fail)
    assert await compute("a", threading.get_ident) != threading.get_ident()
