"""Two gateways find the same background work at the same moment, and each step of it is done by one of them."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import asyncpg
import pytest

from tests.support.metrics import exposition, free_port
from tests.support.production import ProductionGateway, serving
from tests.support.states import document

SECONDS_MAX = 90
SUBJECTS = [f"rotated-{number}" for number in range(4)]
THREADS = 6  # of each of them
IDLE = 40  # threads of another subject, that nobody used for a week
DAY = 86_400
UP = [{"op": "rename", "from": "/user_pref", "to": "/user_profile"}]

# Effects that are committed, whoever made them: envelopes that were written anew, migrated heads, removed threads.
WATCH = """
CREATE TABLE public.effects (what text NOT NULL, place text NOT NULL);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE at jsonb := coalesce(to_jsonb(new), to_jsonb(old));
BEGIN
    INSERT INTO effects VALUES (tg_argv[0],
        concat_ws(' ', at->>'subject_id', at->>'thread_id', at->>'namespace',
            CASE WHEN tg_op = 'UPDATE' THEN concat(at->>'checkpoint_id', at->>'piece_id') END));
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER UPDATE ON stateroom.chunks FOR EACH ROW
    WHEN (old.envelope IS DISTINCT FROM new.envelope) EXECUTE FUNCTION public.note('resealed chunk');
CREATE TRIGGER note AFTER UPDATE ON stateroom.checkpoints FOR EACH ROW
    WHEN (old.manifest IS DISTINCT FROM new.manifest) EXECUTE FUNCTION public.note('resealed checkpoint');
CREATE TRIGGER note_migrated AFTER INSERT ON stateroom.checkpoints FOR EACH ROW
    WHEN (new.source = 'migrate') EXECUTE FUNCTION public.note('migrated head');
CREATE TRIGGER note AFTER DELETE ON stateroom.threads FOR EACH ROW EXECUTE FUNCTION public.note('removed thread');
"""


@pytest.fixture
async def admin(deployment, durable_postgres):
    connection = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", "", 1))
    yield connection
    await connection.close()


async def fill(gateway):
    """Threads at an old state version, and threads that nobody uses any more."""
    async with gateway.client() as client:
        for number, definition in ((1, {}), (2, {"up": UP})):
            (await client.put(f"/v1/state-schemas/travel/versions/{number}", json=definition)).raise_for_status()
    for subject in SUBJECTS:
        async with gateway.client(subject) as client:
            for number in range(THREADS):
                body = {
                    "state": {"user_pref": number, "text": document(f"{subject}/{number}")},
                    "state_schema": "travel",
                    "state_version": 1,
                }
                (await client.post(f"/v1/threads/t{number}/checkpoints", json=body)).raise_for_status()
    async with gateway.client("idle") as client:
        for number in range(IDLE):
            body = {"state": {"n": number}, "agent": "idle"}
            (await client.post(f"/v1/threads/t{number:02}/checkpoints", json=body)).raise_for_status()


async def ask(gateway):
    """Ask for what is then to be done in the background; returns how many jobs there are."""
    async with gateway.client() as client:
        for subject in SUBJECTS:
            body = {"level": "subject", "subject_id": subject}
            (await client.post("/v1/keys:rotate", json=body)).raise_for_status()
        how = {"idle_seconds": 0, "threads_per_second": 20}
        (await client.post("/v1/state-schemas/travel/migrate", json=how)).raise_for_status()
        policy = {"idle_ttl_seconds": DAY, "on_expiry": "delete"}
        (await client.put("/v1/retention?agent=idle", json=policy)).raise_for_status()
    return len(SUBJECTS) + 1


async def until_told(ports, name, least):
    """What the processes together say that they did, once it is ``least`` or more: they count after the commit."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            samples = [line.rpartition(" ") for port in ports for line in (await exposition(port)).splitlines()]
            told = sum(float(value) for sample, _, value in samples if sample.startswith(name))
            if told >= least:
                return told
            await asyncio.sleep(0.02)


async def until_done(admin):
    unfinished = (
        "SELECT (SELECT count(*) FROM stateroom.jobs WHERE state <> 'done')"
        " + (SELECT count(*) FROM stateroom.threads WHERE subject_id = 'idle')"
        " + (SELECT count(*) FROM stateroom.retention_rounds WHERE started_at IS NOT NULL OR lease_until IS NOT NULL)"
    )
    async with asyncio.timeout(SECONDS_MAX):
        while await admin.fetchval(unfinished):  # noqa: ASYNC110 - other processes, whose word is a row
            await asyncio.sleep(0.02)


async def test_what_two_gateways_find_to_do_at_the_same_moment_is_done_once(deployment, launcher, admin):
    async with serving(launcher, deployment, "--no-background") as quiet:
        await fill(quiet)
        jobs = await ask(quiet)
    await admin.execute(
        "SET session_replication_role = replica;"  # else the database says that they were written to now
        "UPDATE stateroom.threads"
        " SET updated_at = updated_at - interval '7 days', began_at = began_at - interval '7 days'"
        " WHERE subject_id = 'idle';"
        "RESET session_replication_role"
    )
    expected = {
        ("removed thread", f"idle t{number:02}") for number in range(IDLE)
    } | {
        ("migrated head", f"{subject} t{number} ") for subject in SUBJECTS for number in range(THREADS)
    }  # fmt: skip
    for what, table, name in (("chunk", "chunks", "piece_id"), ("checkpoint", "checkpoints", "checkpoint_id")):
        namespace = "namespace || ' ' ||" if table == "checkpoints" else ""
        rows = await admin.fetch(
            f"SELECT subject_id || ' ' || thread_id || ' ' || {namespace} {name} AS place"  # noqa: S608  names above
            f" FROM stateroom.{table} WHERE subject_id <> 'idle'"
        )
        expected |= {(f"resealed {what}", row["place"]) for row in rows}
    await admin.execute(WATCH)
    ports = [free_port(), free_port()]
    async with AsyncExitStack() as running:
        two = [ProductionGateway(launcher, deployment, metrics_listen=f"127.0.0.1:{port}") for port in ports]
        await asyncio.gather(*(each.start() for each in two))
        for each in two:
            running.push_async_callback(each.stop)
        await until_done(admin)
        ended = await until_told(ports, "stateroom_jobs_ended_total{", jobs)
        removed = await until_told(ports, 'stateroom_retained_total{action="deleted"}', IDLE)
        async with two[1].client() as client:
            [migration] = (await client.get("/v1/state-schemas/travel/status")).json()["jobs"]
    effects = Counter((row["what"], row["place"]) for row in await admin.fetch("SELECT what, place FROM effects"))
    assert effects == Counter(expected)
    assert (ended, removed) == (jobs, IDLE)
    assert (migration["progress"]["done"], migration["migration"]["heads"]) == (len(SUBJECTS) * THREADS,) * 2
    told = await admin.fetch(
        "SELECT action, target FROM stateroom.audit_log WHERE action IN ('thread.expire', 'key.destroy')"
    )
    assert Counter(row["action"] for row in told) == {"thread.expire": IDLE, "key.destroy": len(SUBJECTS)}
    assert len({(row["action"], row["target"]) for row in told}) == len(told)
    assert "Traceback" not in two[0].log + two[1].log
