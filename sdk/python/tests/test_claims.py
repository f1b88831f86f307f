"""The life of a claim where things go wrong beside it: renewals that fail, and cancellations while it ends."""

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from stateroom._io.on_loop import AsyncBeat
from stateroom._protocol.core import Pinned
from stateroom._thread_ledgers.async_claims import AsyncClaim
from stateroom._thread_ledgers.claims import Claim
from stateroom._thread_ledgers.held import Held
from stateroom._thread_ledgers.shapes import ClaimInfo, ClaimRequest

WANTED = ClaimRequest(holder="w1", run_id="r")
SECONDS = 30


class Gateway:
    """Answers what a claim asks: ``asked`` has the last part of each path."""

    def __init__(self, lease_seconds=60):
        self.asked = []
        self.lease_seconds = lease_seconds
        self.renewed_twice = threading.Event()

    def answer(self, steps):
        verb = next(steps).path.rpartition("/")[2]
        self.asked.append(verb)
        if verb == "renew":
            if self.asked.count("renew") == 1:
                raise OSError("a file is missing")
            self.renewed_twice.set()
        status = "released" if verb == "release" else "live"
        return ClaimInfo(
            thread_id="t", fence=7, holder="w1", status=status, claimed_at=datetime.now(UTC),
            lease_seconds=self.lease_seconds, run_id="r",
        )  # fmt: skip


class BlockingGateway(Gateway):
    def drive(self, steps, pinned=None):
        return self.answer(steps)


class LoopGateway(Gateway):
    async def drive(self, steps, pinned=None):
        return self.answer(steps)


def test_a_renewal_that_fails_is_not_the_last_one(caplog):
    gateway = BlockingGateway(lease_seconds=0.03)
    with Claim(gateway, Pinned("s"), "t", WANTED, Held()):
        assert gateway.renewed_twice.wait(SECONDS)
    assert gateway.asked[-1] == "release"
    assert [each.message for each in caplog.records] == ["a claim was not renewed, because of OSError"]


async def test_a_renewal_that_fails_on_an_event_loop_is_not_the_last_one(caplog):
    gateway = LoopGateway(lease_seconds=0.03)
    async with AsyncClaim(gateway, Pinned("s"), "t", WANTED, Held()):
        assert await asyncio.to_thread(gateway.renewed_twice.wait, SECONDS)
    assert gateway.asked[-1] == "release"
    assert [each.message for each in caplog.records] == ["a claim was not renewed, because of OSError"]


class Slow:
    """Something that takes its time to end when it is cancelled, as a connection that is closed does."""

    def __init__(self):
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
        return True


async def test_a_task_that_is_cancelled_while_it_waits_for_a_beat_is_told():
    slow = Slow()
    beat = AsyncBeat(0, SECONDS, slow)
    await slow.begun.wait()
    ending = asyncio.create_task(beat.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    slow.may_end.set()
    await beat.end()


async def test_a_task_that_is_cancelled_while_its_claim_ends_releases_it_and_is_told():
    slow = Slow()

    class SlowGateway(LoopGateway):
        async def drive(self, steps, pinned=None):
            if self.asked == ["resume-claim"]:
                self.asked.append("renew")
                await slow()
            return self.answer(steps)

    gateway, held = SlowGateway(lease_seconds=0.03), Held()
    claim = AsyncClaim(gateway, Pinned("s"), "t", WANTED, held)
    await claim.begin()
    await slow.begun.wait()
    ending = asyncio.create_task(claim.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert (gateway.asked, held.fence) == (["resume-claim", "renew", "release"], None)
    slow.may_end.set()
