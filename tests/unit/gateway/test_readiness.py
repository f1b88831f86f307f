import asyncio

import httpx
import pytest

from gateway.admission.limits import Drain
from gateway.admission.write_outcomes import WriteOutcomes
from gateway.readiness import Probes, Readiness
from gateway.settings import Address
from gateway.telemetry import Metrics, MetricsServer
from storage.service import Health
from tests.unit.gateway.doubles import MemoryStore


class FrozenStore(MemoryStore):
    """Whose database takes connections and says nothing."""

    async def health(self) -> Health:
        await asyncio.Event().wait()
        raise AssertionError


async def never() -> bool:
    await asyncio.Event().wait()
    raise AssertionError


def readiness(store: MemoryStore, **more) -> Readiness:
    made = Readiness(store, Drain(0.0), Metrics(), WriteOutcomes(), probe_seconds_max=0.01, **more)
    made.self_test_passed = True
    return made


async def test_a_database_that_says_nothing_is_not_ready():
    async with asyncio.timeout(30):
        report = await readiness(FrozenStore()).report()
    assert (report.ready, report.database, report.db_revision_fits) == (False, False, False)


async def test_what_does_not_count_and_says_nothing_is_shown_and_holds_nobody_up():
    async with asyncio.timeout(30):
        report = await readiness(MemoryStore(), probes=Probes(blobs=never, root_key=never)).report()
    assert (report.ready, report.database, report.blobs, report.root_key) == (True, True, False, False)


@pytest.fixture
def listener():
    server = MetricsServer(Metrics(), Address("127.0.0.1", 0))
    yield server
    server.close()


async def ask(listener, path):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
        return await client.get(path)


async def test_the_metrics_listener_answers_probes_and_nothing_else(listener):
    for path in ("/livez", "/readyz"):  # the process starts: it does not live yet, as far as anybody can tell
        early = await ask(listener, path)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")
    made = readiness(MemoryStore())
    listener.answer_probes(made.probe)
    assert (await ask(listener, "/livez")).status_code == 200
    ready = await ask(listener, "/readyz")
    assert (ready.status_code, ready.json()["database"]) == (200, True)
    shown = (await ask(listener, "/metrics")).text
    for path in ("/livez", "/readyz"):
        for status in (200, 503):
            assert f'stateroom_probes_total{{route="{path}",status="{status}"}} 1.0' in shown
    for path in ("/", "/nonsense", "/livez/", "/v1/whoami", "/metrics/x"):
        assert (await ask(listener, path)).status_code == 404


async def test_the_metrics_listener_says_when_to_ask_again(listener):
    listener.answer_probes(readiness(FrozenStore()).probe)
    refused = await ask(listener, "/readyz")
    assert (refused.status_code, refused.headers["retry-after"], refused.json()["ready"]) == (503, "1", False)
