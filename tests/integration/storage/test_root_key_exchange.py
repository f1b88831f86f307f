"""Another root key takes over while processes restart one after the other, and whoever is refused is seen."""

from collections import Counter
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest
from structlog.testing import capture_logs

from crypto import KeyDenied
from crypto.roots import create_root_key
from crypto.roots.file import FileRootKey
from storage.postgres.unit_of_work import Silent
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store, StoreOptions
from tests.support.states import contents, load, save, state
from tests.support.stores import DEPLOYMENT_ID

ACTOR = "api-key:test"


class Refusals(Silent):
    def __init__(self):
        self.counted = Counter()
        self.waits = Counter()

    def root_key_refused(self, reason):
        self.counted[reason] += 1

    def job_waits(self, kind, waits_for):
        self.waits[kind, waits_for] += 1


class Processes:
    """Two gateways on one database, each with a list of root keys of its own, restarted one at a time."""

    def __init__(self, database):
        self._database = database
        self._stores = [None, None]
        self.refusals = Refusals()

    async def restart(self, number, root_keys):
        if self._stores[number] is not None:
            await self._stores[number].close()
        self._stores[number] = await Store.open(
            self._database.app_url,
            root_key=create_root_key(root_keys),
            deployment_id=DEPLOYMENT_ID,
            connections_max=4,
            durable=False,
            options=StoreOptions(observer=self.refusals),
        )

    @property
    def stores(self):
        return self._stores


@asynccontextmanager
async def processes(database, root_keys):
    both = Processes(database)
    try:
        for number in range(2):
            await both.restart(number, root_keys)
        yield both
    finally:
        for store in both.stores:
            await store.close()


@pytest.fixture
async def superuser(migrated_database):
    connection = await asyncpg.connect(migrated_database.dsn(migrated_database.superuser_url))
    yield connection
    await connection.close()


@pytest.fixture
def root_keys(tmp_path):
    found = []
    for name in ("old", "new"):
        FileRootKey.create(tmp_path / name)
        found.append(f"file:{tmp_path / name}")
    return found


async def ended(store, scope, job_id):
    while (job := await store.jobs.get(scope, job_id)).state not in {"done", "failed"}:
        await store.runner.run_due()
    return job.state


async def each_serves_what_the_other_made(both, scopes):
    """A tenant is founded through each, and one's key is rotated through each; both serve all tenants."""
    for number, maker in enumerate(both.stores):
        other = both.stores[1 - number]
        made = Scope(uuid4(), "user-1")
        await save(maker, made, content=state(n=1))
        scopes.append(made)
        whole = TenantScope(scopes[number].tenant_id)
        rotated = await maker.rotation.rotate_tenant(whole, ACTOR)
        assert await ended(other, whole, rotated.job_id) == "done"
        for store in both.stores:
            for scope in scopes:
                assert contents(await load(store, scope)) == {"n": 1}


async def test_root_keys_are_exchanged_in_the_documented_order_and_nobody_is_refused(migrated_database, root_keys):
    old, new = root_keys
    scopes = []
    async with processes(migrated_database, old) as both:
        await each_serves_what_the_other_made(both, scopes)
        for listed in (f"{old} {new}", f"{new} {old}"):
            for number in range(2):
                await both.restart(number, listed)
                await each_serves_what_the_other_made(both, scopes)
        job_id = await both.stores[0].rotation.rewrap_root(ACTOR)
        assert await ended(both.stores[1], OperatorScope(), job_id) == "done"
        for number in range(2):
            await both.restart(number, new)
            await each_serves_what_the_other_made(both, scopes)
        assert both.refusals.counted == {}


async def test_a_root_key_that_a_process_does_not_list_is_counted_and_logged(migrated_database, root_keys):
    old, new = root_keys
    async with processes(migrated_database, old) as both:
        await both.restart(0, f"{new} {old}")  # first at once: the other one cannot open what this one wraps
        made = Scope(uuid4(), "user-1")
        await save(both.stores[0], made, content=state(n=1))
        with capture_logs() as log, pytest.raises(KeyDenied):
            await load(both.stores[1], made)
        assert both.refusals.counted == {"denied": 1}
    [line] = [each for each in log if each["event"] == "root key refused"]
    assert (line["log_level"], line["asked_to"], line["recognised"]) == ("warning", "unwrap", False)
    assert str(made.tenant_id) not in str(line)


async def test_a_job_whose_key_another_process_does_not_list_says_that_it_waits_for_the_root_key(
    migrated_database, superuser, root_keys
):
    old, new = root_keys
    async with processes(migrated_database, old) as both:
        made = Scope(uuid4(), "user-1")
        tenant = TenantScope(made.tenant_id)
        await save(both.stores[0], made, content=state(n=1))
        await both.stores[0].jobs.ready()  # the deployment's own key is under the old one, too
        await both.restart(0, f"{new} {old}")
        rotated = await both.stores[0].rotation.rotate_tenant(tenant, ACTOR)
        with capture_logs() as log:
            for _ in range(2):
                await both.stores[1].runner.run_due()
                waiting = await both.stores[0].jobs.get(tenant, rotated.job_id)
                assert (waiting.state, waiting.waits_for) == ("running", "root-key-refused")
                await superuser.execute("UPDATE stateroom.jobs SET lease_until = NULL")
        [line] = [each for each in log if each["event"] == "job waits"]  # once, however often it is tried
        assert (line["log_level"], line["waits_for"]) == ("warning", "root-key-refused")
        assert line["job_id"] == str(rotated.job_id)
        assert both.refusals.waits == {("rewrap-subject-keys", "root-key-refused"): 2}
        await both.restart(1, f"{old} {new}")
        assert await ended(both.stores[1], tenant, rotated.job_id) == "done"
        # No MAC covers it, and a build of before leaves it behind.
        await superuser.execute("UPDATE stateroom.jobs SET waits_for = 'database'")
        assert (await both.stores[0].jobs.get(tenant, rotated.job_id)).waits_for is None


async def test_what_a_job_waits_for_is_one_of_our_codes_or_not_shown(migrated_database, superuser, root_keys):
    async with processes(migrated_database, root_keys[0]) as both:
        made = Scope(uuid4(), "user-1")
        await save(both.stores[0], made, content=state(n=1))
        rotated = await both.stores[0].rotation.rotate_tenant(TenantScope(made.tenant_id), ACTOR)
        await superuser.execute("UPDATE stateroom.jobs SET waits_for = 'you: call +1 555 0100'")
        found = await both.stores[0].jobs.get(TenantScope(made.tenant_id), rotated.job_id)
        assert (found.waits_for, found.damaged) == (None, False)
