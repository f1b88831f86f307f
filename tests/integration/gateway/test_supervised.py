"""What supervises a process hears of its life in order: ready, alive again and again, stopping."""

import signal

import pytest

from tests.support.notify_socket import NotifySocket
from tests.support.production import Deployment, ProductionGateway, ProductionWorker


@pytest.fixture
def notified(tmp_path):
    with NotifySocket(str(tmp_path / "notify")) as bound:
        yield bound


def supervised(deployment: Deployment, notified: NotifySocket) -> Deployment:
    environ = deployment.environ | {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "500000"}
    return Deployment(deployment.database, environ, deployment.operator_key, deployment.api_key)


async def test_a_gateway_is_ready_when_it_serves_and_stopping_when_it_drains(deployment, launcher, notified):
    gateway = ProductionGateway(launcher, supervised(deployment, notified), drain_seconds="2")
    await gateway.start()
    try:
        assert await notified.next() == "STATUS=starting"
        assert await notified.next() == f"READY=1\nSTATUS=ready on {gateway.url.removeprefix('http://')}"
        async with gateway.client() as client:
            assert (await client.get("/readyz")).status_code == 200
            assert await notified.next() == "WATCHDOG=1"
            assert await notified.next() == "WATCHDOG=1"
            gateway.send(signal.SIGTERM)
            assert await notified.until("STOPPING=1") == "STOPPING=1\nSTATUS=draining for 2 s"
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/v1/whoami")).status_code == 200
        assert await notified.next() == "WATCHDOG=1"
        assert await notified.until("STATUS=finishing the requests in flight")
    finally:
        assert await gateway.wait() == 0


async def test_a_worker_is_ready_when_it_works_and_stopping_when_it_is_told_to(deployment, launcher, notified):
    worker = await ProductionWorker(launcher, supervised(deployment, notified)).start()
    try:
        assert await notified.next() == "STATUS=starting"
        assert await notified.next() == "READY=1\nSTATUS=working"
        assert await notified.next() == "WATCHDOG=1"
        worker.send(signal.SIGTERM)
        assert await notified.until("STOPPING=1") == "STOPPING=1\nSTATUS=finishing what was begun"
    finally:
        assert await worker.wait() == 0


async def test_a_process_that_refuses_to_start_is_never_ready(deployment, launcher, notified):
    told = supervised(deployment, notified)
    nowhere = {"STATEROOM_DATABASE_URL": "postgresql://gw_app:a@127.0.0.1:1/none"}
    refusing = Deployment("none", told.environ | nowhere, told.operator_key, told.api_key)
    gateway = ProductionGateway(launcher, refusing)
    with pytest.raises(AssertionError, match="the database is not available"):
        await gateway.start()
    assert await gateway.wait() == 5
    assert notified.waiting() == ["STATUS=starting"]


async def test_a_supervisor_that_went_away_takes_nothing_along(deployment, launcher, notified):
    gateway = await ProductionGateway(launcher, supervised(deployment, notified)).start()
    await notified.until("READY=1")
    notified.close()
    async with gateway.client() as client:
        assert (await client.get("/readyz")).status_code == 200
    assert await gateway.stop() == 0
