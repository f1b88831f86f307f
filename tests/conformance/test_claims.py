"""Claims and effects from Python, against a real gateway: who goes on with a thread, and what is done once."""

import asyncio
import threading
from uuid import uuid4

import pytest

from stateroom import AsyncClient, ClaimHeld, ClaimLost, ClaimNotFound, Client, ThreadClaimed


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
async def async_client(gateway_env, subject):
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


def test_writes_name_the_claim_while_it_is_held_and_only_then(client):
    thread = client.thread("t")
    with thread.claim(holder="w1", run_id="r1", exclusive=True, note="begun") as claim:
        first = thread.save({"n": 1, "m": ["a", "b"]})
        thread.patch(set={"n": 2})
        thread.compact("m", keep_last=1)
        assert thread.once("x", lambda: 3) == 3
        fork = thread.fork(first.checkpoint_id)
        fork.save({"n": 4})
        claim.note("half")
        assert (thread.claim_info().note, thread.claim_info().status) == ("half", "live")
        assert next(thread.history()).run_id == "r1"
        with pytest.raises(ThreadClaimed):
            client.thread("t").save({"n": 9})
    assert thread.claim_info().status == "released"
    thread.load()
    for writer in (thread, fork):
        with pytest.raises(ThreadClaimed):
            writer.save({"n": 5})
    thread.require_claims(required=False)
    thread.save({"n": 6})


def test_a_second_worker_waits_and_one_that_takes_over_ends_the_first(client):
    first, second = client.thread("t"), client.thread("t")
    first.save({"n": 0})
    with pytest.raises(ClaimNotFound):
        first.claim_info()

    def run():
        with first.claim(holder="w1") as held:
            first.save({"n": 1})
            with pytest.raises(ClaimHeld) as refused, second.claim(holder="w2"):
                pass
            assert refused.value.claimed_until is not None
            assert refused.value.claimed_until > held.info.claimed_at
            second.load()
            with second.claim(holder="w2", take_over=True) as taken:
                assert taken.fence > held.fence
                second.save({"n": 2})
            first.save({"n": 3})

    with pytest.raises(ClaimLost):
        run()
    assert client.thread("t").load().state == {"n": 2}


def test_a_claim_is_renewed_while_its_run_lives(client):
    thread = client.thread("t")
    with thread.claim(holder="w1", lease_seconds=5) as claim:
        begun = claim.info.claimed_until
        assert begun is not None
        renewed = threading.Event()
        for _ in range(100):
            if claim.info.claimed_until > begun:
                break
            renewed.wait(0.1)
        assert claim.info.claimed_until > begun
    with thread.claim(holder="w1", run_id="a") as outer:
        with thread.claim(holder="w1", run_id="a") as inner:
            assert inner.fence == outer.fence
        assert thread.claim_info().status == "live"


async def test_a_run_that_is_cancelled_releases_its_claim(async_client):
    thread = async_client.thread("t")
    begun = asyncio.Event()

    async def run():
        async with thread.claim(holder="w1"):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await thread.claim_info()).status == "released"


def die(thread, **more):
    """Claim a thread, as a worker that dies does: nobody renews or releases it."""
    claim = thread.claim(holder=f"dead-{uuid4()}", lease_seconds=5, run_seconds_max=0, **more)
    claim.begin()
    return claim


def test_threads_whose_run_died_are_handed_to_one_worker_and_those_that_live_are_not(client):
    dead, alive = client.thread("dead", agent="travel"), client.thread("alive", agent="travel")
    dead.save({"n": 1})
    alive.save({"n": 1})
    lost = die(dead, run_id="r1")
    with alive.claim(holder="w1"):
        for run in client.recover(holder="w2", agent="travel", idle_seconds_max=0.5):
            assert (run.silent.thread_id, run.silent.run_id) == ("dead", "r1")
            assert list(client.recover(holder="w3", follow=False)) == []
            with run as thread:
                head = thread.load()
                thread.save({"n": head.state["n"] + 1})
            break
    with pytest.raises(ClaimLost):
        dead.save({"n": 7})
    assert lost.fence < dead.claim_info().fence
    assert (dead.claim_info().status, dead.load().state) == ("released", {"n": 2})


async def test_a_run_that_fails_counts_as_dead_and_is_handed_out_again(async_client):
    thread = async_client.thread("t")
    await thread.save({"n": 1})
    claim = thread.claim(holder="dead", lease_seconds=5, run_seconds_max=0)
    await claim.begin()

    async def work():
        async for run in async_client.recover(holder="w2", lease_seconds=5, idle_seconds_max=0.5):
            async with run:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    info = await thread.claim_info()
    assert (info.holder, info.takeovers) == ("w2", 1)
    assert info.status in {"live", "expired"}


def test_a_worker_of_the_tenant_recovers_threads_of_any_subject(gateway_env, client, subject):
    thread = client.thread("t")
    thread.save({"n": 1})
    die(thread)
    with Client(gateway_env.url, gateway_env.api_key) as tenant:
        for run in tenant.recover(holder="w2", whole_tenant=True, idle_seconds_max=0.5):
            if run.silent.subject_id == subject:
                with run as found:
                    found.load()
                    found.save({"n": 2})
                break
    assert thread.load().state == {"n": 2}
