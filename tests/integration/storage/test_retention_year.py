"""A year of threads that come, are written to, read, archived, restored, thinned and expired, while time passes.

After every step of five days the tier of every thread is compared with a model of what its policy says, written down
here once more and by itself; at the end, every envelope that was ever written is accounted for by length: it is in the
database, in the archive, or was freed. Triggers count what is written and deleted, whoever does it.
"""

# ruff: noqa: S608  table and column names are constants of this test

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random  # noqa: TID251  seeded: the same year every time

import pytest

from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.errors import ThreadArchived
from storage.retention.planner import Policy
from storage.retention.rounds import Acts, Retaining, RoundLimits
from storage.scope import Scope, TenantScope
from tests.support.archive_rows import fsck, opened
from tests.support.blob_rows import Blobs
from tests.support.passing_time import PassingTime
from tests.support.states import contents, load, save, state

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400
STEP_DAYS, YEAR_DAYS = 5, 365
SUBJECTS = 20
AT_ONCE = 8
THAW_HOURS = 6
CHECKPOINTS_MAX = 8

POLICIES = {
    None: Policy(idle_ttl_seconds=60 * DAY),
    "scratch": Policy(idle_ttl_seconds=15 * DAY, on_expiry="delete"),
    "task": Policy(done_ttl_seconds=10 * DAY, archive_ttl_seconds=90 * DAY, archive_storage_class="STANDARD_IA"),
    "held": Policy(idle_ttl_seconds=20 * DAY, archive_ttl_seconds=30 * DAY, legal_hold=True),
    "cold": Policy(idle_ttl_seconds=30 * DAY, archive_storage_class="GLACIER"),
    "busy": Policy(checkpoints_max=CHECKPOINTS_MAX),
}
OWN = Policy(absolute_ttl_seconds=100 * DAY, on_expiry="delete")
HAPPENS = (
    "archived", "deleted", "expired", "thinned", "read while hot", "read while archive", "saved to while archived",
    "thawed and restored",
)  # fmt: skip
AGENTS = ("chat", "scratch", "task", "held", "cold", "busy")

LEDGER = """
CREATE TABLE IF NOT EXISTS public.ledger (txid xid8, tenant_id uuid, what text, added bigint, removed bigint);
CREATE OR REPLACE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    old_bytes bigint := 0;
    new_bytes bigint := 0;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        old_bytes := CASE TG_TABLE_NAME WHEN 'archives' THEN (to_jsonb(OLD) ->> 'hot_bytes')::bigint
            ELSE (octet_length(to_jsonb(OLD) ->> TG_ARGV[0]) - 2) / 2 END;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_bytes := CASE TG_TABLE_NAME WHEN 'archives' THEN (to_jsonb(NEW) ->> 'hot_bytes')::bigint
            ELSE (octet_length(to_jsonb(NEW) ->> TG_ARGV[0]) - 2) / 2 END;
    END IF;
    INSERT INTO public.ledger VALUES (
        pg_current_xact_id(), coalesce(NEW.tenant_id, OLD.tenant_id), TG_TABLE_NAME, new_bytes, old_bytes);
    RETURN NULL;
END $$;
"""
ENVELOPES = {"checkpoints": "manifest", "chunks": "envelope", "pending_writes": "value", "archives": "hot_bytes"}

# A transaction that adds to the archive moves; one that takes from it and brings rows back moves back.
ACCOUNT = """
WITH moves AS (
    SELECT txid,
        bool_or(what = 'archives' AND added > 0) AS archives,
        bool_or(what = 'archives' AND removed > 0) AND bool_or(what = 'checkpoints' AND added > 0) AS restores
    FROM public.ledger WHERE tenant_id = $1 GROUP BY txid
)
SELECT
    coalesce(sum(added) FILTER (WHERE what <> 'archives' AND NOT restores), 0)::bigint AS written,
    coalesce(sum(removed) FILTER (WHERE what <> 'archives' AND NOT archives), 0)::bigint
        + coalesce(sum(removed) FILTER (WHERE what = 'archives' AND NOT restores), 0)::bigint AS freed,
    coalesce(sum(removed) FILTER (WHERE what <> 'archives' AND archives), 0)::bigint AS moved_out,
    coalesce(sum(added) FILTER (WHERE what <> 'archives' AND restores), 0)::bigint AS moved_back
FROM public.ledger JOIN moves USING (txid) WHERE tenant_id = $1
"""


@dataclass
class Model:
    """A thread as its owner and its policy think of it; days are since the start."""

    scope: Scope
    thread_id: str
    agent: str
    own: bool
    created: float
    last: float = 0.0
    notes: int = 0
    checkpoints: int = 0
    status: str = "active"
    tier: str = "hot"
    archived: float = 0.0

    def policy_days(self):
        """(idle, done, absolute, deletes, archive TTL), None: never; a hold keeps archives."""
        idle, done, absolute, deletes, archive = 60, None, None, False, None
        if self.agent == "scratch":
            idle, deletes = 15, True
        elif self.agent == "task":
            done, archive = 10, 90
        elif self.agent == "held":
            idle = 20
        elif self.agent == "cold":
            idle = 30
        if self.own:
            absolute, deletes = 100, True
        return idle, done, absolute, deletes, archive

    def go_through(self, today):
        """What a round makes of it: the new tier, or None when it is gone."""
        idle, done, absolute, deletes, archive = self.policy_days()
        over = today - self.last >= idle
        over = over or (done is not None and self.status == "done" and today - self.last >= done)
        over = over or (absolute is not None and today - self.created >= absolute)
        if over and deletes:
            return None
        if self.tier == "archive":
            return None if archive is not None and today - self.archived >= archive else "archive"
        if over:
            self.archived = today
            return "archive"
        if self.agent == "busy" and self.checkpoints > CHECKPOINTS_MAX * 1.25:
            self.checkpoints = CHECKPOINTS_MAX
        return "hot"


@dataclass
class Year:
    """The world of one run."""

    store: object
    clock: ManualClock  # of the bucket, which thaws by it
    passing: PassingTime  # of the rows
    tenant: TenantScope
    chance: Random
    threads: dict[tuple[str, str], Model] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def today(self):
        return (self.clock.now() - START) / timedelta(days=1)

    async def until(self, moment):
        await self.passing.go_on((moment - self.clock.now()).total_seconds())
        self.clock.set(moment)

    def count(self, what):
        self.seen[what] = self.seen.get(what, 0) + 1

    async def write_to(self, thread):
        thread.notes += 1
        thread.checkpoints += 1
        thread.status = "done" if thread.agent == "task" and thread.notes >= 3 else "active"
        await save(
            self.store,
            thread.scope,
            thread.thread_id,
            content=state(note=thread.notes, log=[f"{thread.thread_id} {n} " * 40 for n in range(thread.notes)]),
            agent=thread.agent,
            status=thread.status,
            step=thread.notes,
        )
        if thread.tier == "archive":
            self.count("saved to while archived")
        thread.tier, thread.last = "hot", self.today

        if thread.own and thread.notes == 1:
            await self.store.retention_policies.put_thread(thread.scope, thread.thread_id, OWN)

    async def read(self, thread):
        saved = await load(self.store, thread.scope, thread.thread_id)
        assert contents(saved)["note"] == thread.notes
        assert contents(saved)["log"][-1].startswith(f"{thread.thread_id} {thread.notes - 1} ")
        self.count(f"read while {thread.tier}")

    async def look_at(self, thread, writes):
        """Somebody comes back to a thread, to read or to write; one that is frozen has to be thawed first."""
        try:
            await (self.write_to(thread) if writes else self.read(thread))
        except ThreadArchived as refused:
            if (refused.state, thread.agent) != ("frozen", "cold"):
                raise
            if writes:
                thread.notes, thread.checkpoints = thread.notes - 1, thread.checkpoints - 1
            return thread
        return None


async def at_once(work):
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(each):
        async with limit:
            return await each

    return await asyncio.gather(*(one(each) for each in work))


async def tiers(admin, tenant):
    rows = await admin.fetch(
        "SELECT subject_id, thread_id, tier FROM stateroom.threads WHERE tenant_id = $1", tenant.tenant_id
    )
    return {(row["subject_id"], row["thread_id"]): row["tier"] for row in rows}


async def spend(year, admin, threads):
    """A year in steps: people come, then the round."""
    steps = YEAR_DAYS // STEP_DAYS
    rounds = Retaining(
        year.store.unit_of_work,
        year.store.audit,
        year.passing,
        Acts(
            year.store.threads,
            year.store.pruning,
            year.store.archives,
            year.store.items.expiring,
            year.store.event_keeping,
            year.store.approvals_expiring,
        ),
        year.store.control,
        RoundLimits(acts_per_second=100_000, acts_at_once=AT_ONCE),
    )
    births = [year.chance.randrange(steps * 2 // 3) for _ in range(threads)]
    for step in range(steps):
        await year.until(START + timedelta(days=step * STEP_DAYS))
        people = []
        for number in (n for n, birth in enumerate(births) if birth == step):
            scope = Scope(year.tenant.tenant_id, f"user-{number % SUBJECTS}")
            agent = AGENTS[number % len(AGENTS)]
            thread = Model(scope, f"t{number}", agent, agent == "chat" and number % 4 == 0, year.today)
            year.threads[scope.subject_id, thread.thread_id] = thread
            people.append((thread, True))
        known = list(year.threads.values())
        people += [(each, True) for each in known if each.agent == "busy" and each.created > year.today - 80]
        coming = year.chance.sample(known, k=min(len(known), threads // 40))
        people += [(each, year.chance.random() < 0.3) for each in coming]
        once = {id(each[0]): each for each in reversed(people)}
        frozen = await at_once(year.look_at(*each) for each in once.values())
        await thaw(year, admin, [each for each in frozen if each is not None])

        done = await rounds.tenant(year.tenant.tenant_id, now=True)
        assert (done.left, done.failed) == (0, 0)
        for name in ("archived", "deleted", "expired", "thinned"):
            year.seen[name] = year.seen.get(name, 0) + getattr(done, name)
        for place, thread in list(year.threads.items()):
            tier = thread.go_through(year.today)
            if tier is None:
                del year.threads[place]
            else:
                thread.tier = tier
        assert await tiers(admin, year.tenant) == {place: each.tier for place, each in year.threads.items()}, step


async def thaw(year, admin, frozen):
    """Restore frozen threads by jobs, which wait for the thaw; in between, what is thawed is read from its object."""
    for thread in frozen:
        await year.store.archives.begin_restore(thread.scope, thread.thread_id, "tester")
    if not frozen:
        return
    while await year.store.runner.run_due():
        pass
    await year.until(year.clock.now() + timedelta(hours=THAW_HOURS))
    for thread in frozen:
        await year.read(thread)
    # Jobs look again by the database's clock, which nobody moves.
    await admin.execute("UPDATE stateroom.jobs SET lease_until = NULL WHERE tenant_id = $1", year.tenant.tenant_id)
    while await year.store.runner.run_due():
        pass
    for thread in frozen:
        thread.tier, thread.last = "hot", year.today
        await year.read(thread)
        year.count("thawed and restored")


async def account(admin, tenant):
    """What became of every envelope, by length."""
    hot = 0
    for table, column in ENVELOPES.items():
        if table != "archives":
            sizes = f"SELECT coalesce(sum(octet_length({column})), 0)::bigint FROM stateroom.{table}"
            hot += await admin.fetchval(f"{sizes} WHERE tenant_id = $1", tenant.tenant_id)
    archived = await admin.fetchval(
        "SELECT coalesce(sum(hot_bytes), 0)::bigint FROM stateroom.archives WHERE tenant_id = $1", tenant.tenant_id
    )
    return {"hot": hot, "archived": archived, **dict(await admin.fetchrow(ACCOUNT, tenant.tenant_id))}


async def verify(store, tenant):
    """Everything that is left, in both tiers, against its seals."""
    await store.verifying.begin_tenant(tenant, "tester")
    while await store.runner.run_due():
        pass
    jobs = (await store.jobs.list(tenant, limit=1000)).items
    [verified] = [each for each in jobs if each.kind == "verify-tenant"]
    assert verified.state == "done"
    assert '"found":{}' in verified.note


@pytest.fixture
async def ledger(admin):
    await admin.execute(LEDGER)
    for table, column in ENVELOPES.items():
        await admin.execute(
            f"CREATE OR REPLACE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON stateroom.{table}"
            f" FOR EACH ROW EXECUTE FUNCTION public.note('{column}')"
        )


@pytest.mark.parametrize("threads", [150, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])])
@pytest.mark.usefixtures("ledger")
async def test_a_year_of_threads(database, root_key, scope, admin, threads):
    clock = ManualClock(START)
    bucket = MemoryBlobStore(clock=clock, thaw_seconds=(THAW_HOURS - 1) * 3600)
    async with opened(database, root_key, archive=bucket, connections_max=AT_ONCE + 2) as store:
        tenant = TenantScope(scope.tenant_id)
        for agent, policy in POLICIES.items():
            await store.retention_policies.put(tenant, agent, policy)
        year = Year(store, clock, PassingTime(admin, scope.tenant_id), tenant, Random(20261122))  # noqa: S311
        await spend(year, admin, threads)
        for what in HAPPENS:
            assert year.seen.get(what, 0) > 0, f"the year is too quiet: {what}"

        sizes = await account(admin, tenant)
        assert all(sizes.values())
        assert sizes["hot"] + sizes["archived"] + sizes["freed"] == sizes["written"]

        await verify(store, tenant)
        assert (await fsck(store, scope)).faults == {}
        left = [each for each in year.threads.values() if each.tier == "hot" or each.agent != "cold"]
        for thread in year.chance.sample(left, k=min(50, len(left))):
            await year.read(thread)

        # What expired or was restored leaves no object behind when no backup names it any more.
        await Blobs(store, store.blobs, archive=bucket).sweeper().tenant(tenant.tenant_id, now=True)
        objects: list[str] = []
        while page := await bucket.list_keys(
            tenant_prefix(tenant.tenant_id, "archive"), after=objects[-1] if objects else ""
        ):
            objects += page
        archives = "SELECT count(*) FROM stateroom.archives WHERE tenant_id = $1"
        assert len(objects) == await admin.fetchval(archives, tenant.tenant_id)
        assert (await fsck(store, scope)).faults == {}
        print(threads, year.seen, sizes)  # noqa: T201  for whoever wants to know what a year is
