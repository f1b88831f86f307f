import asyncio
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from gateway.limits import Drain
from gateway.readiness import Readiness
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
    made = Readiness(store, Drain(0.0), Metrics(), probe_seconds_max=0.01, **more)
    made.self_test_passed = True
    return made


async def test_a_database_that_says_nothing_is_not_ready():
    async with asyncio.timeout(30):
        report = await readiness(FrozenStore()).report()
    assert (report.ready, report.database, report.db_revision_ok) == (False, False, False)


async def test_what_does_not_count_and_says_nothing_is_shown_and_holds_nobody_up():
    async with asyncio.timeout(30):
        report = await readiness(MemoryStore(), blob_health=never, root_key_health=never).report()
    assert (report.ready, report.database, report.blobs, report.root_key) == (True, True, False, False)


def test_a_worker_that_is_not_ready_says_when_to_ask_again():
    server = MetricsServer(Metrics(), Address("127.0.0.1", 0), lambda: (False, b"{}"))
    try:
        with pytest.raises(HTTPError) as refused:
            urlopen(f"http://127.0.0.1:{server.port}/readyz")
        assert (refused.value.code, refused.value.headers["retry-after"]) == (503, "1")
        refused.value.close()
    finally:
        server.close()
