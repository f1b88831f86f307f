"""Archiving and restoring over HTTP: jobs, refusals, and what shows meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import httpx
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from storage.administration.jobs import Runner
from storage.blobs.buckets import Buckets
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.collection.sweep import Sweep
from storage.control.features import SEGMENTS
from storage.model import Tenant
from storage.retention.rounds import Acts, Retaining
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store, StoreOptions
from storage.threads.thinning import ThinningRule
from tests.support.features import switch_on
from tests.support.operations import STATE, assert_problem
from tests.support.passing_time import PassingTime
from tests.support.segments import ChosenBounds, move_within
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

PATH = "/threads/t1"
THAW_SECONDS = 4 * 3600.0


@pytest.fixture
def thaw_clock():
    return ManualClock(datetime.now(UTC))


@pytest.fixture
def archive(thaw_clock):
    return MemoryBlobStore(clock=thaw_clock, thaw_seconds=THAW_SECONDS)


@pytest.fixture
def opening(connections, root_key):
    def open_with(archive):
        options = StoreOptions(blobs=MemoryBlobStore(), archive=archive)
        return Store(connections, root_key=root_key, deployment_id=DEPLOYMENT_ID, options=options)

    return open_with


@pytest.fixture
def serving_store(opening, archive):
    return opening(archive)


@pytest.fixture
def scope():
    return Scope(uuid4(), "user-1")


@pytest.fixture
async def service(serving_store, scope):
    return await new_tenant(serving_store, scope.tenant_id)


async def new_tenant(serving_store, tenant_id):
    """The key of a service of a new tenant."""
    now = datetime.now(UTC)
    tenant = Tenant(tenant_id=tenant_id, name=uuid4().hex, created_at=now)
    permissions = (*STATE, "subject:act_as", "tenant:admin")
    key, text = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="service", permissions=permissions, now=now, tenant_id=tenant.tenant_id)
    )
    await serving_store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, key)
    return text


def client_of(store, service, subject="user-1"):
    # Without the lifespan: no loop works on jobs, so that a test says when one is worked on.
    headers = {"Authorization": f"Bearer {service}"} | ({"Stateroom-Subject": subject} if subject else {})
    transport = httpx.ASGITransport(create_app(settings(), store=store))
    return httpx.AsyncClient(transport=transport, base_url="http://test/v1", headers=headers)


@pytest.fixture
async def client(serving_store, service):
    async with client_of(serving_store, service) as made:
        yield made


async def saved(client):
    answer = await client.post(f"{PATH}/checkpoints", json={"state": {"n": 1}})
    assert answer.status_code == 201, answer.text
    return answer.json()["checkpoint_id"]


async def ok(work, status=200):
    answer = await work
    assert answer.status_code == status, answer.text
    return answer.json()


async def work(store):
    """A round of jobs; what was told to wait is due again at once."""
    await store.runner.run_due()


async def test_a_thread_is_archived_and_restored_by_jobs_that_repeating_names_again(client, serving_store):
    await saved(client)
    shown = await ok(client.get(PATH))
    assert (shown["tier"], "archive" in shown) == ("hot", False)
    begun = await ok(client.post(f"{PATH}/archive"), 202)
    assert begun["target"] == {"subject_id": "user-1", "thread_id": "t1"}
    assert await ok(client.post(f"{PATH}/archive"), 202) == begun
    await work(serving_store)
    job = await ok(client.get(f"/jobs/{begun['job_id']}"))
    assert (job["kind"], job["state"], job["progress"]) == ("archive", "done", {"done": 1, "total": 1})
    assert (await ok(client.post(f"{PATH}/archive")))["tier"] == "archive"

    shown = await ok(client.get(PATH))
    archive = shown["archive"]
    assert shown["tier"] == "archive"
    assert (archive["state"], archive["storage_class"], archive["checkpoints"]) == ("ready", "STANDARD", 1)
    assert archive["hot_bytes"] > 0
    assert archive["size_bytes"] > 0
    assert datetime.fromisoformat(archive["archived_at"]) <= datetime.now(UTC)
    assert (archive["retry_after_seconds"], archive["progress"], archive["job_id"]) == (0, None, None)

    begun = await ok(client.post(f"{PATH}/restore"), 202)
    assert await ok(client.post(f"{PATH}/restore"), 202) == begun
    assert (await ok(client.get(PATH)))["archive"]["job_id"] == begun["job_id"]
    await work(serving_store)
    assert (await ok(client.post(f"{PATH}/restore")))["tier"] == "hot"
    assert (await ok(client.get(f"{PATH}/checkpoints/latest")))["state"] == {"n": 1}


async def test_old_checkpoints_move_and_come_back_by_jobs_while_the_thread_stays_hot(client, serving_store):
    ids = [
        (await ok(client.post(f"{PATH}/checkpoints", json={"state": {"n": n}}), 201))["checkpoint_id"] for n in range(6)
    ]
    old = f"{PATH}/archive?older_than_seconds=0&keep_last=2"
    assert_problem(await client.post(old), 409, "feature-off")
    await switch_on(serving_store, SEGMENTS)
    begun = await ok(client.post(old), 202)
    await work(serving_store)
    assert (await ok(client.get(f"/jobs/{begun['job_id']}")))["state"] == "done"
    shown = await ok(client.get(PATH))
    assert (shown["tier"], "archive" in shown) == ("hot", False)
    assert {name: shown["segments"][name] for name in ("segments", "checkpoints", "pending_writes")} == {
        "segments": 1, "checkpoints": 4, "pending_writes": 0,
    }  # fmt: skip
    assert shown["segments"]["hot_bytes"] > 0 < shown["segments"]["size_bytes"]
    listed = (await ok(client.get(f"{PATH}/checkpoints")))["checkpoints"]
    assert [(each["checkpoint_id"], each["parent_id"]) for each in listed] == [
        (each, parent) for each, parent in zip(reversed(ids), [*reversed(ids[:-1]), None], strict=True)
    ]
    assert (await ok(client.get(f"{PATH}/checkpoints/{ids[1]}")))["state"] == {"n": 1}
    assert (await ok(client.get(f"{PATH}/checkpoints/latest")))["state"] == {"n": 5}
    audited = [each["action"] for each in (await ok(client.get("/audit?limit=100")))["events"]]
    assert "segment.archive" in audited
    begun = await ok(client.post(f"{PATH}/restore"), 202)
    await work(serving_store)
    assert "segments" not in await ok(client.get(PATH))
    assert (await ok(client.post(f"{PATH}/restore")))["tier"] == "hot"
    assert begun["kind"] == "restore"


async def in_segments(client, serving_store, scope, storage_class=None):
    """A thread whose older checkpoints are in two volumes; returns the ids, oldest first."""
    await switch_on(serving_store, SEGMENTS)
    ids = []
    for number in range(2):
        for n in range(3):
            saved = client.post(f"{PATH}/checkpoints", json={"state": {"n": n, "round": number}})
            ids.append((await ok(saved, 201))["checkpoint_id"])
        rule = ThinningRule(keep_last=1)
        await move_within(ChosenBounds(), serving_store, scope, rule, storage_class=storage_class)
    return ids


async def test_one_segment_comes_back_and_the_others_stay(client, service, serving_store, scope):
    ids = await in_segments(client, serving_store, scope)
    ranges = (await ok(client.get(PATH)))["segments"]["ranges"]
    assert [(each["segment"], each["volume"], each["checkpoints"]) for each in ranges] == [(1, 1, 2), (2, 2, 3)]
    assert [(each["first_id"], each["last_id"]) for each in ranges] == [(ids[0], ids[1]), (ids[2], ids[4])]
    async with client_of(serving_store, service, "user-2") as other:
        assert_problem(await other.post(f"{PATH}/restore?segment=1"), 404, "thread-not-found")
    async with client_of(serving_store, await new_tenant(serving_store, uuid4())) as foreign:
        assert_problem(await foreign.post(f"{PATH}/restore?segment=1"), 404, "thread-not-found")
    for number in (0, 3, 2**31, "x"):
        problem = assert_problem(await client.post(f"{PATH}/restore?segment={number}"), 422, "invalid-request")
        assert problem["errors"][0]["parameter"] == "segment"
    assert "no segment 3" in (await client.post(f"{PATH}/restore?segment=3")).text

    begun = await ok(client.post(f"{PATH}/restore?segment=1"), 202)
    assert await ok(client.post(f"{PATH}/restore?segment=1"), 202) == begun
    restoring = (await ok(client.get(PATH)))["segments"]["restoring"]
    assert (restoring["job_id"], restoring["state"], restoring["progress"]) == (begun["job_id"], "ready", None)
    await work(serving_store)
    assert (await ok(client.get(f"/jobs/{begun['job_id']}")))["state"] == "done"
    shown = (await ok(client.get(PATH)))["segments"]
    assert ([each["segment"] for each in shown["ranges"]], "restoring" in shown) == ([2], False)
    problem = assert_problem(await client.post(f"{PATH}/restore?segment=1"), 422, "invalid-request")
    assert "it came back, or never was" in problem["errors"][0]["detail"]
    await ok(client.post(f"{PATH}/restore?segment=2"), 202)
    await work(serving_store)
    assert "segments" not in await ok(client.get(PATH))
    assert (await ok(client.post(f"{PATH}/restore?segment=1")))["tier"] == "hot", "all of it is"


async def test_a_restore_of_all_is_also_that_of_one_and_not_the_other_way_round(client, serving_store, scope):
    await in_segments(client, serving_store, scope)
    one = await ok(client.post(f"{PATH}/restore?segment=2"), 202)
    everything = await ok(client.post(f"{PATH}/restore"), 202)
    assert everything["job_id"] != one["job_id"]
    assert (await ok(client.post(f"{PATH}/restore?segment=1"), 202))["job_id"] == everything["job_id"]


async def test_of_an_archived_thread_no_segment_comes_back_by_itself(client, serving_store, scope):
    await in_segments(client, serving_store, scope)
    await ok(client.post(f"{PATH}/archive"), 202)
    await work(serving_store)
    assert_problem(await client.post(f"{PATH}/restore?segment=1"), 409, "thread-archived")


async def test_a_hot_thread_says_how_far_the_thaw_of_its_segments_is(client, serving_store, scope, thaw_clock):
    ids = await in_segments(client, serving_store, scope, "GLACIER")
    assert "restoring" not in (await ok(client.get(PATH)))["segments"]
    problem = assert_problem(await client.get(f"{PATH}/checkpoints/{ids[0]}"), 409, "thread-archived")
    assert problem["state"] == "frozen"
    begun = await ok(client.post(f"{PATH}/restore?segment=1"), 202)
    assert (await ok(client.get(PATH)))["segments"]["restoring"]["state"] == "frozen"
    await work(serving_store)
    restoring = (await ok(client.get(PATH)))["segments"]["restoring"]
    assert (restoring["job_id"], restoring["state"]) == (begun["job_id"], "thawing")
    assert 0 <= restoring["progress"] < 1
    assert restoring["retry_after_seconds"] > 0
    problem = assert_problem(await client.get(f"{PATH}/checkpoints/{ids[0]}"), 409, "thread-archived")
    assert problem["state"] == "thawing"
    assert 0 <= problem["progress"] < 1
    problem = assert_problem(await client.get(f"{PATH}/checkpoints/{ids[3]}"), 409, "thread-archived")
    assert problem["state"] == "frozen", "the other volume was not asked for"
    assert (await ok(client.get(f"{PATH}/checkpoints/latest")))["state"] == {"n": 2, "round": 1}
    thaw_clock.set(thaw_clock.now() + timedelta(seconds=THAW_SECONDS + 60))
    assert (await ok(client.get(PATH)))["segments"]["restoring"]["state"] == "ready"
    scope = Scope(UUID((await ok(client.get("/whoami")))["tenant_id"]), "user-1")
    await serving_store.archives.bring_back(scope, "t1", 1)
    assert [each["segment"] for each in (await ok(client.get(PATH)))["segments"]["ranges"]] == [2]
    assert (await ok(client.get(f"{PATH}/checkpoints/{ids[0]}")))["state"] == {"n": 0, "round": 0}


@pytest.mark.parametrize(
    "query", ["keep_last=-1", "keep_every=0", "older_than_seconds=x", "keep_status=odd", "older_than_seconds=-5"]
)
async def test_what_stays_hot_is_told_what_is_wrong_with_it(client, query):
    await saved(client)
    problem = assert_problem(await client.post(f"{PATH}/archive?{query}"), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == query.partition("=")[0]


async def test_a_frozen_thread_is_thawed_by_a_restore_and_every_refusal_says_how_far_it_is(
    client, serving_store, thaw_clock
):
    head_id = await saved(client)
    await ok(client.post(f"{PATH}/archive?storage_class=GLACIER"), 202)
    await work(serving_store)
    assert (await ok(client.get(PATH)))["archive"]["state"] == "frozen"
    write = {"json": {"writes": [{"channel": "n", "idx": 0, "value": 2}]}}
    requests = [
        lambda: client.get(f"{PATH}/checkpoints/latest"),
        lambda: client.get(f"{PATH}/checkpoints"),
        lambda: client.post(f"{PATH}/checkpoints", json={"state": {"n": 2}}),
        lambda: client.post(f"{PATH}/checkpoints/{head_id}/writes/task", **write),
        lambda: client.post(f"{PATH}/copy", json={"target_thread_id": "t2"}),
        lambda: client.post("/threads:prune", json={"thread_ids": ["t1"]}),
    ]
    for request in requests:
        refused = await request()
        problem = assert_problem(refused, 409, "thread-archived")
        assert (problem["state"], "progress" in problem) == ("frozen", False)
        assert int(refused.headers["retry-after"]) >= 3600

    await ok(client.post(f"{PATH}/restore"), 202)
    await work(serving_store)
    for request in requests:
        refused = await request()
        problem = assert_problem(refused, 409, "thread-archived")
        assert problem["state"] == "thawing"
        assert 0 <= problem["progress"] < 1
        assert 1 <= int(refused.headers["retry-after"]) <= 600
    shown = (await ok(client.get(PATH)))["archive"]
    assert shown["state"] == "thawing"
    assert shown["job_id"]
    assert shown["retry_after_seconds"] > 0
    thaw_clock.set(thaw_clock.now() + timedelta(seconds=THAW_SECONDS + 60))
    # Thawed: it is read where it is, and a save brings it back, whether or not the job has looked again.
    assert (await ok(client.get(f"{PATH}/checkpoints/latest")))["state"] == {"n": 1}
    assert (await ok(client.get(PATH)))["tier"] == "archive"
    await ok(client.post(f"{PATH}/checkpoints", json={"state": {"n": 2}}), 201)
    assert (await ok(client.get(PATH)))["tier"] == "hot"


async def test_without_a_bucket_of_archives_nothing_is_archived_and_an_archived_thread_still_shows(
    client, serving_store, opening, service
):
    await saved(client)
    async with client_of(opening(None), service) as bare:
        assert_problem(await bare.post(f"{PATH}/archive"), 409, "archive-unavailable")
        await ok(client.post(f"{PATH}/archive"), 202)
        await work(serving_store)
        assert (await ok(bare.get(PATH)))["archive"]["state"] == "unknown"
        assert_problem(await bare.get(f"{PATH}/checkpoints/latest"), 409, "archive-unavailable")
        assert_problem(await bare.post(f"{PATH}/checkpoints", json={"state": {"n": 2}}), 409, "archive-unavailable")
    assert (await ok(client.get(f"{PATH}/checkpoints/latest")))["state"] == {"n": 1}


async def test_wrong_requests_are_told_what_is_wrong_with_them(client, service, serving_store):
    await saved(client)
    problem = assert_problem(await client.post(f"{PATH}/archive?storage_class=TAPE"), 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == "storage_class"
    assert_problem(await client.post(f"{PATH}/restore?storage_class=GLACIER"), 422, "invalid-request")
    for verb in ("archive", "restore"):
        assert_problem(await client.post(f"/threads/none/{verb}"), 404, "thread-not-found")
        async with client_of(serving_store, service, "user-2") as other:
            assert_problem(await other.post(f"{PATH}/{verb}"), 404, "thread-not-found")
    now = datetime.now(UTC)
    tenant_id = UUID((await ok(client.get("/whoami")))["tenant_id"])
    key, text = api_keys.mint(
        PEPPERS,
        api_keys.NewKey(kind="subject", permissions=("state:read",), now=now, tenant_id=tenant_id, subject_id="user-1"),
    )
    await serving_store.tenants.add_key(TenantScope(tenant_id), key)
    async with client_of(serving_store, text, None) as reader:
        assert (await ok(reader.get(PATH)))["tier"] == "hot"
        for verb in ("archive", "restore"):
            assert_problem(await reader.post(f"{PATH}/{verb}"), 403, "permission-denied")


async def test_a_round_of_retention_shows_who_has_it_and_what_it_did(client, serving_store):
    assert (await ok(client.get("/retention/round")))["state"] == "none"
    await saved(client)
    await ok(client.put("/retention", json={"idle_ttl_seconds": 3600}))
    tenant_id = UUID((await ok(client.get("/whoami")))["tenant_id"])
    assert (await ok(client.get("/retention/round")))["state"] == "waiting"
    round_ = await serving_store.retaining.tenant(tenant_id, now=True)
    shown = await ok(client.get("/retention/round"))
    assert round_.threads == 1
    assert (shown["state"], shown["hot"], shown["done"], shown["due"]) == ("waiting", 1, {}, {})
    assert datetime.fromisoformat(shown["due_at"]) > datetime.now(UTC) + timedelta(minutes=5)
    assert shown["started_at"] is None


async def reached_or_ended(reached, working):
    """Wait for the point; work that ends before it, ends the test."""
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait({waiting, working}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not working.done(), working.result()


class Endless:
    """An archive whose object store takes for ever."""

    def __init__(self):
        self.reached = asyncio.Event()

    async def archive(self, scope, thread_id, *, actor="", storage_class=None, activity=None, guard=None):
        self.reached.set()
        await asyncio.Event().wait()

    async def expire(self, scope, thread_id, *, actor="", blob_id=None):
        pytest.fail("nothing is archived here, so nothing expires")


async def test_a_process_that_stops_in_a_round_gives_it_back_at_once(client, serving_store, admin):
    await saved(client)
    await ok(client.put("/retention", json={"idle_ttl_seconds": 3600}))
    tenant_id = UUID((await ok(client.get("/whoami")))["tenant_id"])
    endless, clock = Endless(), PassingTime(admin, tenant_id)
    await clock.go_on(86_400)
    serving = serving_store

    def rounds(archives):
        acts = Acts(
            serving.threads,
            serving.pruning,
            archives,
            serving.items.expiring,
            serving.event_keeping,
            serving.approvals_expiring,
        )
        return Retaining(serving.unit_of_work, serving.audit, clock, acts, serving.control)

    working = asyncio.create_task(rounds(endless).run_due())
    await reached_or_ended(endless.reached, working)
    shown = await ok(client.get("/retention/round"))
    assert shown["state"] == "running"
    assert datetime.fromisoformat(shown["lease_until"]) > datetime.now(UTC)
    assert await serving_store.retaining.tenant(tenant_id) is None
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    shown = await ok(client.get("/retention/round"))
    assert (shown["state"], shown["lease_until"]) == ("waiting", None)
    round_ = await rounds(serving.archives).tenant(tenant_id)
    assert (round_.archived, round_.tenants) == (1, 1)
    assert (await ok(client.get(PATH)))["tier"] == "archive"


async def test_a_process_that_stops_in_a_job_gives_it_back_at_once(client, serving_store):
    await saved(client)
    job_id = (await ok(client.post(f"{PATH}/archive"), 202))["job_id"]
    reached = asyncio.Event()

    async def endless(lease):
        reached.set()
        await asyncio.Event().wait()

    working = asyncio.create_task(Runner(serving_store.jobs, {"archive": endless}).run_due())
    await reached_or_ended(reached, working)
    assert await serving_store.runner.run_due() == 0
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await serving_store.runner.run_due() == 1
    assert (await ok(client.get(f"/jobs/{job_id}")))["state"] == "done"


class EndlessListing(MemoryBlobStore):
    """An object store that takes for ever to list uploads."""

    def __init__(self):
        super().__init__()
        self.reached = asyncio.Event()

    async def list_multiparts(self, prefix):
        self.reached.set()
        await asyncio.Event().wait()


async def test_a_process_that_stops_in_a_sweep_gives_it_back_at_once(client, serving_store):
    await saved(client)
    await ok(client.post(f"{PATH}/archive"), 202)
    await work(serving_store)  # now the tenant has an object
    tenant_id = UUID((await ok(client.get("/whoami")))["tenant_id"])
    endless = EndlessListing()
    working = asyncio.create_task(Sweep(serving_store.unit_of_work, Buckets(endless), 0).tenant(tenant_id))
    await reached_or_ended(endless.reached, working)
    assert await serving_store.sweep.tenant(tenant_id) is None
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert (await serving_store.sweep.tenant(tenant_id)).tenants == 1
