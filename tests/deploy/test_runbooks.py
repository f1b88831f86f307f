"""Runbooks: a page an alert, and commands that work as they stand."""

import asyncio
import json
import re
import secrets
import subprocess
import tempfile
from pathlib import Path

import asyncpg
import pytest

from tests.support.promql import DEPLOY, rules
from tests.support.watched import job_that_waits, used, watched_deployment

PAGES = sorted((DEPLOY / "runbooks").glob("*.md"))
SEVERITIES = {rule["alert"]: rule["labels"]["severity"] for rule in rules("alert")}
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = "# Not run by a test: "
NOT_RUN_BLOCKS = {"README": 2, "full-disk": 1, "region-loss": 2, "restore": 1, "stuck-job": 1}
DISK_BYTES = 400 * 1024 * 1024
OF_CHANGES = (
    "restart",
    "stop",
    "revoke",
    "rotate",
    "rewrap",
    "shred",
    "accept",
    "suspend",
    "upgrade\n",
    "stateroom sweep",
    "--repair",
    "--set",
    "ALTER",
    "pg_terminate",
)


def test_every_alert_has_a_page_and_every_such_page_an_alert():
    assert {page.stem for page in PAGES if page.stem.startswith("Stateroom")} == SEVERITIES.keys()


@pytest.mark.parametrize("alert", SEVERITIES)
def test_a_page_says_how_urgent_it_is_where_to_look_what_to_decide_and_when_it_is_over(alert):
    text = (DEPLOY / "runbooks" / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n\n**{SEVERITIES[alert].capitalize()}.** ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["First look", "Decide", "Over when"]
    assert BLOCK.search(text.split("## Decide")[0])
    assert text.split("## Decide")[1].count("\n| ") >= 2


def test_the_index_lists_every_page_and_how_urgent_it_is():
    text = (DEPLOY / "runbooks" / "README.md").read_text()
    listed = dict(re.findall(r"^\| \[(Stateroom\w+)\]\(\1\.md\) \| (\w+) \|$", text, re.MULTILINE))
    assert listed == SEVERITIES
    for page in PAGES:
        assert page.stem == "README" or f"({page.name})" in text, page.name


def test_pages_say_of_each_block_that_no_test_runs_why_and_there_are_few():
    found = {}
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            first = block.partition("\n")[0]
            if first.startswith(NOT_RUN):
                assert len(first) > len(NOT_RUN) + 20
                found[page.stem] = found.get(page.stem, 0) + 1
            assert NOT_RUN not in block[len(NOT_RUN) :], page.name
    assert found == NOT_RUN_BLOCKS


def test_a_first_look_changes_nothing():
    for page in PAGES:
        look = page.read_text().partition("## First look")[2].partition("\n## ")[0]
        for block in BLOCK.findall(look):
            assert [word for word in OF_CHANGES if word in block] == [], page.name


@pytest.fixture(scope="module")
async def ids(watched, prometheus):
    """What the ids are that pages say an earlier command named: by the section that asks for them, or for all."""
    await prometheus.ready()
    await used(watched)
    code, made = await watched.shell("stateroom init --another --name leaked --json")
    assert code == 0, made
    operator_key = json.loads(made)["key_id"]
    code, made = await watched.shell("stateroom api-key create --name leaked --permission state:read --json")
    assert code == 0, made
    async with watched.gateways[0].client() as client:
        job = (await client.get("/v1/jobs")).json()["jobs"][0]
    return {
        "": {"JOB_ID": job["job_id"]},
        "An operator's key": {"KEY_ID": operator_key},
        "A tenant's key": {"KEY_ID": json.loads(made)["key_id"]},
    }


@pytest.mark.deployed
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_commands_of_a_page_work_as_they_stand(watched, prometheus, ids, page):
    for section in page.read_text().split("\n## "):
        watched.environ |= ids[""] | ids.get(section.partition("\n")[0], {})
        for block in BLOCK.findall(section):
            if block.startswith(NOT_RUN):
                continue
            stopped = "restore accept" in block
            if stopped:  # as the page says
                await watched.stop()
            code, output = await watched.shell(block)
            if stopped:
                await watched.start()
            assert code == 0, f"{block}\n{output}"
            assert "ERROR" not in output, f"{block}\n{output}"


def section(page, title):
    """The blocks of a section of a page."""
    return BLOCK.findall((DEPLOY / "runbooks" / f"{page}.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0])


@pytest.mark.deployed
async def test_who_holds_a_lock_that_saves_wait_for_is_found_as_the_page_says(watched):
    await used(watched)
    holder = await asyncpg.connect(watched.environ["ADMIN_URL"])
    async with watched.gateways[0].client() as client:
        async with holder.transaction():
            await holder.execute("LOCK TABLE stateroom.threads, stateroom.heads IN ACCESS EXCLUSIVE MODE")
            pid = await holder.fetchval("SELECT pg_backend_pid()")
            saving = asyncio.create_task(client.post("/v1/threads/trip-9/checkpoints", json={"state": {"n": 1}}))
            who, _ = section("slow-database", "A lock")
            async with asyncio.timeout(30):
                output = ""
                while f"{{{pid}}}" not in output:  # somebody waits for it
                    _, output = await watched.shell(who)
        assert (await saving).status_code in (201, 503)  # as it had waited by then
    await holder.close()
    assert re.search(rf"^ *{pid} \|.*idle in transaction", output, re.MULTILINE), output


@pytest.mark.deployed
async def test_a_job_that_does_not_end_says_what_it_waits_for_as_the_page_says(watched):
    await used(watched)
    [look] = section("stuck-job", "First look")
    async with job_that_waits(watched) as job_id, asyncio.timeout(60):
        output = ""
        while "older-transactions" not in output:
            _, output = await watched.shell(look)
        assert job_id in output
        assert '"event":"job waits"' in output


@pytest.fixture
def small_disk():
    """A folder on a file system of its own, which is soon full."""
    folder = Path(tempfile.mkdtemp(prefix="stateroom-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.fail(f"a file system of its own takes root: {mounted.stderr}", pytrace=False)
    yield folder
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()


@pytest.mark.deployed
async def test_a_full_disk_looks_as_the_page_says_and_is_over_when_there_is_room(small_disk, launcher, tool):
    page = (DEPLOY / "runbooks" / "full-disk.md").read_text()
    [look] = BLOCK.findall(page.partition("## Decide")[0])
    async with watched_deployment(launcher, tool, disk=small_disk) as watched, watched.gateways[0].client() as client:

        async def save():
            return await client.post("/v1/threads/t/checkpoints", json={"state": {"text": secrets.token_hex(200_000)}})

        async def ready():
            return (await client.get(f"{watched.environ['METRICS']}/readyz")).json()

        assert (await save()).status_code == 201
        filler = small_disk / "filler"
        done = await watched.shell(f"dd if=/dev/zero of={filler} bs=64k 2>&1 || true")
        assert "No space left on device" in done[1]
        async with asyncio.timeout(60):
            refused = await save()
            while refused.status_code == 201:  # what PostgreSQL had reserved
                refused = await save()
        assert (refused.status_code, refused.json()["code"]) == (503, "database-read-only")
        for _ in range(2):
            assert (await save()).status_code == 503
        shown = await ready()
        assert (shown["ready"], shown["database"], shown["writes"]) == (False, True, False)
        code, output = await watched.shell(look)
        assert code == 0, output
        assert "checkpoints" in output

        filler.unlink()
        saved = await save()
        assert saved.status_code == 201, saved.text
        assert (await ready())["ready"]
