import asyncio
import os
import signal
import time
from uuid import uuid4

import pytest

from gateway.cli.local import serving
from gateway.cli.local.supervisor import Supervisor
from tests.support.notify_socket import NotifySocket
from tests.unit.gateway.cli.test_serving import Probe


@pytest.fixture(params=["path", "abstract"])
def notified(request, tmp_path):
    address = str(tmp_path / "notify") if request.param == "path" else f"@stateroom-{uuid4().hex}"
    with NotifySocket(address) as bound:
        yield bound


def told(notified: NotifySocket, **more: str) -> Supervisor:
    return Supervisor.of_environment({"NOTIFY_SOCKET": notified.address} | more)


async def test_it_is_told_of_start_readiness_and_stop(notified):
    supervisor = told(notified)
    supervisor.status("starting")
    supervisor.ready("ready on 127.0.0.1:8080")
    supervisor.stopping("draining for 10 s")
    assert notified.waiting() == [
        "STATUS=starting",
        "READY=1\nSTATUS=ready on 127.0.0.1:8080",
        "STOPPING=1\nSTATUS=draining for 10 s",
    ]


async def test_a_status_is_one_line_and_no_assignment_of_its_own(notified):
    told(notified).status("not ready yet:\nREADY=1")
    assert notified.waiting() == ["STATUS=not ready yet: READY=1"]


async def test_it_hears_twice_in_its_time_that_the_loop_turns_from_readiness_on(notified):
    supervisor = told(notified, WATCHDOG_USEC="200000", WATCHDOG_PID=str(os.getpid()))
    supervisor.status("starting")
    await asyncio.sleep(0.15)  # it does not count yet: what starts may keep the loop
    assert notified.waiting() == ["STATUS=starting"]
    begun = time.monotonic()
    supervisor.ready("working")
    assert await notified.next() == "READY=1\nSTATUS=working"
    for beat in range(3):
        assert await notified.next() == "WATCHDOG=1"
        assert time.monotonic() - begun >= 0.1 * beat


async def test_a_loop_that_hangs_is_not_vouched_for(notified):
    told(notified, WATCHDOG_USEC="40000").ready("working")
    await asyncio.sleep(0)
    notified.waiting()
    time.sleep(0.2)  # noqa: ASYNC251 - what is tested
    assert notified.waiting() == []


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}],
    ids=["none", "never", "no number", "of another process"],
)
async def test_without_a_watchdog_there_is_no_beat(notified, watchdog):
    told(notified, **watchdog).ready("working")
    await asyncio.sleep(0.02)
    assert notified.waiting() == ["READY=1\nSTATUS=working"]


async def test_nobody_is_told_where_nobody_asked():
    supervisor = Supervisor.of_environment({"WATCHDOG_USEC": "1000"})
    supervisor.status("starting")
    supervisor.ready("working")
    await asyncio.sleep(0.02)
    supervisor.stopping("finishing")


@pytest.mark.parametrize("address", ["/nowhere/notify", "@nobody-listens", "vsock:2:1234", "/" + "x" * 200])
async def test_a_supervisor_that_is_gone_is_nobodys_failure(address):
    supervisor = Supervisor.of_environment({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})
    supervisor.ready("working")
    await asyncio.sleep(0.02)
    supervisor.stopping("finishing")


async def test_a_supervisor_that_does_not_read_keeps_nobody_waiting(notified):
    supervisor = told(notified)
    begun = time.monotonic()
    for number in range(2000):  # more than any queue takes
        supervisor.status(f"still here, {number}")
    assert time.monotonic() - begun < 5
    assert 0 < len(notified.waiting()) < 2000


async def test_serving_tells_it_in_the_order_of_its_life(notified):
    probe = Probe()
    probe.ready = False
    supervisor = told(notified, WATCHDOG_USEC="100000")
    with serving.StopRequest() as stop, serving.bind("127.0.0.1", 0) as listener:
        running = probe.run(listener, stop, supervisor)
        assert notified.waiting() == []
        probe.ready = True
        assert await notified.next() == f"READY=1\nSTATUS=ready on 127.0.0.1:{listener.getsockname()[1]}"
        assert probe.announced.is_set()
        assert await notified.next() == "WATCHDOG=1"
        signal.raise_signal(signal.SIGTERM)
        assert await notified.until("STOPPING=1") == "STOPPING=1\nSTATUS=draining for 0 s"
        await running
    assert "STATUS=finishing the requests in flight" in notified.waiting()
