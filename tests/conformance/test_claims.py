"""Claims and effects from Python, against a real gateway: who goes on with a thread, and what is done once."""

import asyncio
import threading
import time
from uuid import uuid4

import pytest

from stateroom import AsyncClient, ClaimHeld, ClaimLost, ClaimNotFound, ClaimSuperseded, Client, ThreadClaimed


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


def test_another_run_of_the_same_thread_object_is_refused_and_the_first_stays_fenced(client):
    thread = client.thread("t")
    held, taken = thread.claim(exclusive=True), thread.claim(take_over=True)
    held.begin()
    for _ in range(2):
        with pytest.raises(ClaimHeld), thread.claim():
            pass
    thread.save({"n": 1})
    with taken:
        assert taken.fence > held.fence
        thread.save({"n": 2})
    with pytest.raises(ClaimLost):
        thread.save({"n": 3})
    held.end()
    assert held.is_lost
    with pytest.raises(ThreadClaimed):
        thread.save({"n": 3})
    assert (thread.load().state, thread.claim_info().run_id) == ({"n": 2}, taken.info.run_id)
    assert {each.run_id for each in thread.history()} == {None}


@pytest.mark.parametrize("objects", [1, 2])
def test_blocks_of_one_run_share_its_claim_and_the_last_one_releases_it(client, objects):
    threads = [client.thread("t") for _ in range(objects)]
    first, second = threads[0].claim(run_id="r", exclusive=True), threads[-1].claim(run_id="r")
    first.begin()
    second.begin()
    assert first.fence == second.fence
    first.end()
    threads[-1].save({"n": 1})
    assert threads[-1].claim_info().status == "live"
    second.end()
    second.end()
    assert threads[-1].claim_info().status == "released"
    with pytest.raises(ThreadClaimed):
        threads[-1].save({"n": 2})
    with first:
        threads[0].load()
        threads[0].save({"n": 3})
    assert threads[0].claim_info().status == "released"


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


def test_what_was_recovered_or_deleted_since_the_page_was_read_is_not_handed_out(client):
    names = {"a", "b", "c"}
    for name in names:
        client.thread(name).save({"n": 1})
        die(client.thread(name))
    until = time.monotonic() + 60
    while {each.thread_id for each in client.silent_threads(silent_seconds=5)} != names:
        assert time.monotonic() < until
        time.sleep(0.2)  # the database's clock goes on
    dead = {each.thread_id: each.fence for each in client.silent_threads()}
    handed = []
    for run in client.recover(holder="w1", follow=False):
        with run as thread:
            handed.append(thread.thread_id)
            deleted, again = sorted(names - {*handed}) if len(handed) == 1 else (None, None)
            if deleted and again:
                client.thread(deleted).delete()
                for other in client.recover(holder="w1", follow=False):
                    with other as found:
                        assert found.thread_id == again
                    with pytest.raises(ClaimSuperseded), other:
                        pass
    assert len(handed) == 1
    assert client.thread(deleted).info() is None
    with pytest.raises(ClaimSuperseded), client.thread(again).claim(if_fence=dead[again]):
        pass


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
