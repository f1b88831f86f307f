"""A fault, an alert, a page, its commands, and the end of it: with real processes from the first to the last."""

import asyncio
import json
import os
import stat
import subprocess
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import asyncpg
import pytest

from tests.support.promql import DEPLOY
from tests.support.watched import Alertmanager, Prometheus, Server, used

pytestmark = pytest.mark.deployed
ALERT = "StateroomRootKeyDown"
# Pending ones, too; but how fast the machine of the tests is, is not the question.
RAISED = 'ALERTS{alertname!~"StateroomCommitSlow|StateroomPoolWaits|StateroomLatency.+"}'
FIRES_SECONDS_MAX = 240.0  # two minutes of `for`, and what it takes to notice


@pytest.fixture
def told():
    """Who is told: by receiver, name and state of an alert, how often."""
    heard = Counter()

    class Told(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.update((self.path[1:], alert["labels"]["alertname"], alert["status"]) for alert in body["alerts"])
            heard.update((alert["annotations"].get("runbook"),) for alert in body["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Told)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    server.server_close()


@pytest.fixture
async def alertmanager(watched, tool, told):
    made = Alertmanager(tool("prometheus-alertmanager"), watched.folder, told[0])
    await made.ready()
    yield made
    made.stop()


@pytest.fixture
async def prometheus(watched, tool, alertmanager: Server):
    made = Prometheus(tool("prometheus"), watched.folder, watched.metrics, alertmanager.url.removeprefix("http://"))
    watched.environ["PROMETHEUS"] = made.url
    await made.ready()
    yield made
    made.stop()


async def until(so, seconds=60.0):
    async with asyncio.timeout(seconds):
        while True:
            if await so():
                return
            await asyncio.sleep(0.2)


async def test_a_deployment_that_is_well_raises_nothing(watched, prometheus):
    await used(watched)
    await prometheus.until('stateroom:round_age_seconds{round="jobs"} < 120')
    await used(watched)  # what only grew before it was scraped has no rate
    await prometheus.until("stateroom:requests_failed:ratio_rate5m == 0")

    async def silent():
        return not await prometheus.ask(RAISED)

    await until(silent)


async def test_a_root_key_that_cannot_be_used_pages_somebody_and_its_runbook_ends_it(
    watched, prometheus, alertmanager, told, tool
):
    _, heard = told
    await used(watched)
    firing = f'ALERTS{{alertname="{ALERT}",alertstate="firing"}}'
    await prometheus.until('stateroom_dependency_up{dependency="root_key"} == 1')
    assert await prometheus.ask(firing) == []

    key_file = watched.deployment.environ["STATEROOM_ROOT_KEY"].removeprefix("file:")
    os.chmod(key_file, 0o644)  # noqa: PTH101 - as after a restore by somebody in a hurry
    await prometheus.until(firing, seconds=FIRES_SECONDS_MAX)

    async def paged():
        return heard["pages", ALERT, "firing"]

    await until(paged)
    assert heard[(f"deploy/runbooks/{ALERT}.md",)]
    # What else is told meanwhile follows from it: a ticket waits until the page is over.
    ticket = [
        tool("amtool"),
        "alert",
        "add",
        "alertname=Other",
        "severity=ticket",
        f"--alertmanager.url={alertmanager.url}",
    ]
    await asyncio.to_thread(subprocess.run, ticket, check=True, capture_output=True)

    async def suppressed():
        return (await alertmanager.alerts()).get("Other") == "suppressed"

    await until(suppressed)
    assert not heard["tickets", "Other", "firing"]

    page = (DEPLOY / "runbooks" / f"{ALERT}.md").read_text()
    look, mend = (part.split("```sh\n")[1].split("```")[0] for part in page.split("## Decide"))
    code, output = await watched.shell(look, stops=False)
    assert code == 0, output
    assert "root key" in output
    assert "-rw-r--r--" in output
    code, output = await watched.shell(mend)
    assert code == 0, output
    assert stat.S_IMODE(os.stat(key_file).st_mode) == 0o400  # noqa: PTH116

    async def over():
        return not await prometheus.ask(firing) and heard["pages", ALERT, "resolved"]

    await until(over)
    async with watched.gateways[0].client() as client:
        assert (await client.get("/v1/threads/trip-1/checkpoints/latest")).status_code == 200

    async def told_at_last():
        return heard["tickets", "Other", "firing"]

    await until(told_at_last)


async def test_a_row_that_somebody_edited_pages_at_once_and_its_runbook_says_whose_it_is(watched, prometheus, told):
    _, heard = told
    await used(watched)
    await prometheus.until("stateroom_integrity_failures_total == 0")
    attacker = await asyncpg.connect(watched.environ["ADMIN_URL"])
    await attacker.execute("UPDATE stateroom.checkpoints SET step = coalesce(step, 0) + 1 WHERE thread_id = 'trip-1'")
    await attacker.close()
    async with watched.gateways[0].client() as client:
        refused = await client.get("/v1/threads/trip-1/checkpoints/latest")
    assert (refused.status_code, refused.json()["code"]) == (500, "integrity-failure")

    async def paged():
        return heard["pages", "StateroomIntegrityFailure", "firing"]

    await until(paged)
    page = (DEPLOY / "runbooks" / "StateroomIntegrityFailure.md").read_text()
    look, extent = (part.split("```sh\n")[1].split("```")[0] for part in page.split("## Decide"))
    code, output = await watched.shell(look, stops=False)
    assert (code, '"code":"integrity-failure"' in output) == (0, True), output
    code, output = await watched.shell(extent, stops=False)
    assert watched.environ["TENANT_ID"] in output
