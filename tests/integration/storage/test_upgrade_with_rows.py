"""A deployment that the build 871834a wrote, with rows of every kind, is upgraded and served by this build.

`tests/golden/rows_a34` holds it: its database, its buckets, its keys, and what that build answered at the end. The
tests go on from each other: what is read comes before what is written, and the upgrade is finished last.
"""

import asyncio
import json
import time
from typing import Any, NamedTuple

import asyncpg
import httpx
import pytest

from storage.control.features import KNOWN
from storage.postgres.setup import create_roles, current, db_revision_required
from tests.support.engines import create_database, drop_database
from tests.support.features import finish_upgrade
from tests.support.golden_rows import Answered, Document, Golden, body_of, restore, store
from tests.support.operations import encoded
from tests.support.production import (
    APP_PASSWORD,
    OWNER_PASSWORD,
    Deployment,
    ProductionGateway,
    ProductionWorker,
    serving,
)

ENDED_SECONDS_MAX = 120.0
# A process takes its row along when it ends.
EMPTY = {"processes"}
# What reading an answer changes in the next one.
MOVING = {"last_used_at"}
ADA, BOB, EVE, ZOE = "ada", "bob", "eve", "Zoë / 1"
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'stateroom'"


class Upgraded(NamedTuple):
    """The golden and the deployment that was made of it, with how many rows its tables had before and after."""

    document: Document
    deployment: Deployment
    owner_url: str
    before: dict[str, int]
    after: dict[str, int]


async def counted(dsn: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        names = [row["tablename"] for row in await connection.fetch(_TABLES)]
        return {name: await connection.fetchval(f"SELECT count(*) FROM stateroom.{name}") for name in names}  # noqa: S608
    finally:
        await connection.close()


@pytest.fixture(scope="module")
async def upgraded(durable_postgres, durable_template, s3_server, launcher, production_dir):
    """The golden, restored as an operator restores a backup, and upgraded by the command of this build."""
    golden = Golden.read()
    made = await create_database(durable_postgres, owner="gw_migrate")
    await asyncio.to_thread(restore, made.dsn, golden.database)
    await create_roles(made.superuser_url)
    await store(s3_server.url(), golden.objects["blobs"])
    await store(s3_server.archive_url(), golden.objects["archive"])
    root_key = production_dir / f"{made.name}.key"
    root_key.touch(0o600)
    root_key.write_bytes(golden.root_key)
    server = made.dsn.rsplit("@", 1)[1]
    environ = {f"STATEROOM_{name}": text for name, text in golden.document.environ.items()} | {
        "STATEROOM_DATABASE_URL": f"postgresql://gw_app:{APP_PASSWORD}@{server}",
        "STATEROOM_ROOT_KEY": f"file:{root_key}",
        "STATEROOM_S3_URL": s3_server.url(),
        "STATEROOM_ARCHIVE_URL": s3_server.archive_url(),
        "STATEROOM_LISTEN": "127.0.0.1:0",
        "STATEROOM_METRICS_LISTEN": "off",
        "STATEROOM_DRAIN_SECONDS": "0",
        "STATEROOM_LOG_LEVEL": "warning",
    }
    owner_url = f"postgresql://gw_migrate:{OWNER_PASSWORD}@{server}"
    before = await counted(made.dsn)
    done = await asyncio.to_thread(launcher.run, environ | {"STATEROOM_DATABASE_OWNER_URL": owner_url}, "db", "upgrade")
    assert done.returncode == 0, done.stderr
    keys = golden.document.keys
    deployment = Deployment(made.name, environ, keys["operator"], keys["service"])
    yield Upgraded(golden.document, deployment, owner_url, before, await counted(made.dsn))
    await drop_database(durable_postgres, made.name)


@pytest.fixture(scope="module")
async def gateway(upgraded, launcher):
    """This build as it serves the deployment; what it does in the background, only a worker does."""
    async with serving(launcher, upgraded.deployment, "--no-background") as running:
        yield running


def client_of(gateway: ProductionGateway, api_key: str, subject: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {api_key}"}
    if subject is not None:
        headers["Stateroom-Subject"] = encoded(subject)
    return httpx.Client(base_url=gateway.url, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def ada(gateway, upgraded):
    with client_of(gateway, upgraded.document.keys["service"], ADA) as client:
        yield client


@pytest.fixture(scope="module")
def service(gateway, upgraded):
    with client_of(gateway, upgraded.document.keys["service"]) as client:
        yield client


@pytest.fixture(scope="module")
def operator(gateway, upgraded):
    with client_of(gateway, upgraded.document.keys["operator"]) as client:
        yield client


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def lacks(said: Any, before: Any, place: str = "") -> list[str]:
    """Where an answer does not say what the earlier build said; members that are new may stand beside."""
    if isinstance(before, dict) and isinstance(said, dict):
        return [
            each for name in before.keys() - MOVING for each in (
                lacks(said[name], before[name], f"{place}/{name}") if name in said else [f"{place}/{name} is missing"]
            )
        ]  # fmt: skip
    if isinstance(before, list) and isinstance(said, list) and len(before) == len(said):
        return [each for n, pair in enumerate(zip(said, before, strict=True)) for each in lacks(*pair, f"{place}/{n}")]
    return [] if said == before else [f"{place}: {said!r:.200}, and not {before!r:.200}"]


def ended(client: httpx.Client, path: str) -> dict[str, Any]:
    """The job, once it ended: a worker is at it."""
    until = time.monotonic() + ENDED_SECONDS_MAX
    while (job := ok(client.get(path)))["state"] not in {"done", "failed"}:
        assert time.monotonic() < until, job
        time.sleep(0.05)  # a job of another process
    assert job["state"] == "done", job
    return job


def differences(gateway: ProductionGateway, document: Document, asked: list[Answered]) -> list[str]:
    """What this build answers otherwise than the earlier one did."""
    found = []
    with httpx.Client(base_url=gateway.url, timeout=30) as nobody:
        for each in asked:
            answer = each.question.ask(nobody, document.keys)
            said = [answer.status_code, body_of(answer)]
            found += [f"{each.question.path} {fault}" for fault in lacks(said, [each.status, each.body])]
    return found


def test_every_table_of_the_earlier_build_has_rows(upgraded):
    assert {name for name, rows in upgraded.before.items() if not rows} == EMPTY


async def test_the_upgrade_reaches_this_revision_and_keeps_every_row(upgraded):
    assert await current(upgraded.owner_url) == db_revision_required()
    assert {name: rows for name, rows in upgraded.after.items() if name in upgraded.before} == upgraded.before


def test_everything_that_the_earlier_build_answered_this_one_answers(gateway, upgraded):
    """States in each view, histories, pending writes, files, archives, keys, policies, and who is gone."""
    assert differences(gateway, upgraded.document, upgraded.document.answers) == []


def test_no_answer_of_the_earlier_build_is_an_empty_one(upgraded):
    """Otherwise equal answers would show nothing: each kind of state is among those that were answered with 200."""
    answered = [each for each in upgraded.document.answers if each.status == 200]
    states = [each.body["state"] for each in answered if isinstance(each.body, dict) and each.body.get("state")]
    assert len(states) > 100
    assert {each.status for each in upgraded.document.answers} == {200, 401, 403, 404, 410}


@pytest.mark.parametrize("key", ["service", "operator"])
def test_audit_logs_go_on_where_the_earlier_build_stopped(gateway, upgraded, key):
    path = "/v1/audit" if key == "service" else "/v1/admin/audit"
    with client_of(gateway, upgraded.document.keys[key]) as client:
        found = ok(client.get(path, params={"limit": "1000", "verify": "true"}))
    before = upgraded.document.events[key]
    assert lacks(found["events"][: len(before)], before) == []
    assert len(found["events"]) > len(before)


@pytest.fixture(scope="module")
async def worker(upgraded, gateway, launcher):
    """From its first use on, this build also does what is to be done in the background."""
    running = await ProductionWorker(launcher, upgraded.deployment).start()
    yield running
    await running.stop()


def test_jobs_that_the_earlier_build_began_are_ended_by_this_one(gateway, upgraded, ada, service, worker):
    document = upgraded.document
    for name in ("rotation", "shred", "archiving"):
        ended(service, f"/v1/jobs/{document.named[name]}")
    assert ok(ada.get("/v1/threads/archived-by-the-next-build"))["tier"] == "archive"
    part = "/v1/threads/archived-by-the-next-build/checkpoints"
    asked = [each for each in document.answers if each.question.path.startswith(part)]
    assert differences(gateway, document, asked) == []
    with client_of(gateway, document.keys["service"], ZOE) as shredded:
        assert shredded.get("/v1/threads/theirs/checkpoints/latest").json()["code"] == "key-destroyed"


def test_a_thread_that_the_earlier_build_archived_comes_back_as_it_was(gateway, upgraded, ada, worker):
    document = upgraded.document
    assert ok(ada.get("/v1/threads/archived"))["tier"] == "archive"
    job_id = ok(ada.post("/v1/threads/archived/restore"))["job_id"]
    ended(ada, f"/v1/jobs/{job_id}")
    assert ok(ada.get("/v1/threads/archived"))["tier"] == "hot"
    asked = [each for each in document.answers if each.question.path.startswith("/v1/threads/archived/checkpoints")]
    assert len(asked) > 6
    assert differences(gateway, document, asked) == []


LISTS = [(ADA, name) for name in ("growing", "forked", "copied", "compacted", "of-the-sdk", "archived")]


@pytest.mark.parametrize(("subject", "thread"), [*LISTS, (BOB, "theirs")])
def test_a_list_that_the_earlier_build_saved_grows(gateway, upgraded, subject, thread):
    path = f"/v1/threads/{thread}/checkpoints"
    with client_of(gateway, upgraded.document.keys["service"], subject) as client:
        head = client.get(f"{path}/latest")
        body = {"changes": {"append": {"long": ["one more"]}}, "agent": "writer"}
        saved = ok(client.post(path, json=body, headers={"If-Match": head.headers["etag"]}))
        found = ok(client.get(f"{path}/latest"))
        assert found["checkpoint_id"] == saved["checkpoint_id"]
        assert found["parent_id"] == ok(head)["checkpoint_id"]
        before = ok(head)["state"]
        assert found["state"] == before | {"long": [*before["long"], "one more"]}


def test_each_policy_of_the_earlier_build_still_holds(ada):
    unguarded = ada.post("/v1/threads/strict/checkpoints", json={"state": {"n": 2}})
    assert unguarded.status_code in {409, 412, 428}, unguarded.text
    held = ada.delete("/v1/threads/held")
    assert (held.status_code, held.json()["code"]) == (409, "legal-hold")
    unversioned = ada.post("/v1/threads/adopted/checkpoints", json={"state": {"payee": "x"}, "agent": "unversioned"})
    assert (unversioned.status_code, unversioned.json()["code"]) == (422, "state-version-required")


def test_a_thread_that_the_earlier_build_deleted_begins_again(ada):
    for thread in ("deleted", "of-a-run"):
        ok(ada.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"again": thread}}))
        assert ok(ada.get(f"/v1/threads/{thread}/checkpoints/latest"))["state"] == {"again": thread}


ITEM = "/v1/items/memories/seat"


def test_items_wait_for_the_upgrade_to_be_finished_and_are_none_until_then(ada, service):
    refused = ada.put(ITEM, json={"value": {"row": 7}})
    assert (refused.status_code, refused.json()["code"]) == (409, "feature-off")
    missing = ada.get(ITEM)
    assert (missing.status_code, missing.json()["code"]) == (404, "item-not-found")
    assert ok(ada.post("/v1/items:search", json={}))["items"] == []
    assert ok(ada.post("/v1/items:paths", json={}))["paths"] == []


async def test_a_finished_upgrade_links_what_the_earlier_build_saved(upgraded, launcher):
    await finish_upgrade(upgraded.deployment, *KNOWN)
    async with serving(launcher, upgraded.deployment, "--no-background") as finished:
        with client_of(finished, upgraded.document.keys["service"], ADA) as client:
            ok(client.put("/v1/threads/growing/parent", json={"thread_id": "spread"}))
            children = ok(client.get("/v1/threads/spread/children"))
            assert "growing" in json.dumps(children)


async def test_a_finished_upgrade_keeps_items_of_a_subject_that_the_earlier_build_knew(upgraded, launcher):
    """Beside its threads, under its keys, which the earlier build made."""
    async with serving(launcher, upgraded.deployment, "--no-background") as finished:
        with client_of(finished, upgraded.document.keys["service"], ADA) as client:
            ok(client.put(ITEM, json={"value": {"row": 7}}))
            assert ok(client.get(ITEM))["value"] == {"row": 7}
            assert [each["key"] for each in ok(client.post("/v1/items:search", json={}))["items"]] == ["seat"]


def test_all_that_is_left_is_sound(upgraded, ada, service, operator, worker):
    """The tenant's threads, one by one and as a whole; and the deployment's, of which a restore lost some on record."""
    for thread in ok(ada.get("/v1/threads?limit=1000"))["threads"]:
        found = ok(ada.post("/v1/threads:verify", json={"thread_id": thread["thread_id"]}))
        assert found["findings"] == [], thread
    for client, path in ((service, "/v1"), (operator, "/v1/admin")):
        job_id = ok(client.post(f"{path}/verify"))["job_id"]
        found = ended(client, f"{path}/jobs/{job_id}")["verification"]
        assert found["findings"] == []
        assert found["checkpoints"] > 50
        assert found["known_losses"] > 0


@pytest.mark.parametrize("command", ["sweep --all", "fsck --all --json", "doctor --json"])
async def test_the_database_and_the_buckets_agree(upgraded, launcher, command):
    done = await asyncio.to_thread(launcher.run, upgraded.deployment.environ, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr
