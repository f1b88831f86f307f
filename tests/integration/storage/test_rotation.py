"""Keys rotate at all three levels while agents save and load: nothing fails, nothing is lost, the old ends."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
import hashlib
from uuid import uuid4

import asyncpg
import pytest

from crypto import KeyDenied, KeyUnavailable, MemoryRootKey, RootKeyInvalid, RootKeys, peek_header
from storage.administration.jobs import LEASE_SECONDS
from storage.administration.rounds import LeaseLostError
from storage.errors import IntegrityFailure, SubjectNotFound
from storage.model import Idempotency
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store
from tests.support.interleaving import CancelAtAwait
from tests.support.root_keys import UnsteadyRootKey
from tests.support.states import contents, document, load, put, save, state, write, writes_of
from tests.support.stores import DEPLOYMENT_ID

SEALED = {
    "chunks": "envelope",
    "checkpoints": "manifest",
    "pending_writes": "value",
    "heads": "seal",
    "threads": "seal",
    "idempotency": "receipt",
}
ACTOR = "api-key:test"
THREADS_OF_AN_AGENT = 3


async def opened(database, root_key, connections_max=8):
    return await Store.open(
        database.app_url,
        root_key=root_key,
        deployment_id=DEPLOYMENT_ID,
        connections_max=connections_max,
        durable=False,
    )


@pytest.fixture
async def other(database, root_key):
    """Another gateway, with caches of its own."""
    store = await opened(database, root_key)
    yield store
    await store.close()


@pytest.fixture
async def app_connection(database):
    connection = await asyncpg.connect(database.dsn(database.app_url))
    yield connection
    await connection.close()


@pytest.fixture
async def admin_of():
    connections = []

    async def connect(database):
        connections.append(await asyncpg.connect(database.dsn(database.superuser_url)))
        return connections[-1]

    yield connect
    for connection in connections:
        await connection.close()


async def finished(store, scope, job_id, seconds_max=60):
    """Work until a job ends, as the gateway's loop does."""
    async with asyncio.timeout(seconds_max):
        while True:
            worked = await store.runner.run_due()
            job = await store.jobs.get(scope, job_id)
            if job.state in {"done", "failed"}:
                return job
            if not worked:
                await asyncio.sleep(0.02)  # somebody who began before is still at work


async def fill(store, scope, threads=3, steps=4):
    """A subject with every kind of sealed row; returns what a reader must find, by thread."""
    found = {}
    for number in range(threads):
        thread_id = f"t{number}"
        for step in range(steps):
            content = {"text": document(f"{number}/{step}", 9000), "step": step, "note": "n"}
            saved = await save(store, scope, thread_id, content=state(**content))
        await put(store, scope, saved.checkpoint_id, write(0, "out", [number]), thread_id=thread_id)
        await save(store, scope, thread_id, namespace="sub", content=state(sub=number))
        found[thread_id] = content
    await save(
        store, scope, "receipt", content=state(a=1), idempotency=Idempotency("once", hashlib.sha256(b"r").digest())
    )
    return found


async def check(store, scope, found):
    for thread_id, content in found.items():
        checkpoint = await load(store, scope, thread_id)
        assert contents(checkpoint) == content
        assert [each[3] for each in writes_of(checkpoint)] == [[int(thread_id[1:])]]
        assert contents(await load(store, scope, thread_id, namespace="sub")) == {"sub": int(thread_id[1:])}
    report = await store.verification.subject(scope)
    assert report.findings == []


async def envelopes(admin, scope):
    """Every sealed byte of a subject, in order."""
    found = []
    for table, column in SEALED.items():
        rows = await admin.fetch(
            f"SELECT {column} FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2 ORDER BY {column}",
            scope.tenant_id,
            scope.subject_id,
        )
        found += [(table, bytes(row[0])) for row in rows if row[0] is not None]
    return found


def versions(sealed):
    return {(table, peek_header(envelope).key_version) for table, envelope in sealed}


async def states(admin, scope):
    rows = await admin.fetch(
        "SELECT key_version, state, wrapped IS NULL AS gone FROM stateroom.subject_keys"
        " WHERE tenant_id = $1 AND subject_id = $2 AND purpose = 'data' ORDER BY 1",
        scope.tenant_id,
        scope.subject_id,
    )
    return [tuple(row) for row in rows]


async def tenant_states(admin, tenant_id):
    rows = await admin.fetch(
        "SELECT key_version, state, wrapped IS NULL FROM stateroom.tenant_keys WHERE tenant_id = $1 ORDER BY 1",
        tenant_id,
    )
    return [tuple(row) for row in rows]


class Load:
    """Agents that save and load through two gateways until told to stop; any failure fails the test."""

    def __init__(self, stores, scopes):
        self._stores = stores
        self._scopes = scopes
        self._stop = asyncio.Event()
        self._warm = asyncio.Event()
        self.saves = 0
        self.last = {}

    async def __aenter__(self):
        self._tasks = [
            asyncio.create_task(self._agent(store, scope, f"agent-{number}"))
            for number, store in enumerate(self._stores)
            for scope in self._scopes
        ]
        await self._warm.wait()
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _agent(self, store, scope, name):
        step = 0
        while not self._stop.is_set():
            thread_id = f"{name}-{step // 8 % THREADS_OF_AN_AGENT}"
            if step % 8 == 0:  # begun anew: however long a rotation takes, there is never much more to seal again
                for each in (thread_id, f"{thread_id}-copy"):
                    if self.last.pop((scope, each), None):
                        await store.threads.delete(scope, each)
            text = document(f"{thread_id}/{step % 7}", 5000)
            saved = await save(store, scope, thread_id, content=state(text=text, step=step))
            await put(store, scope, saved.checkpoint_id, write(0, "out", step), thread_id=thread_id)
            assert contents(await load(store, scope, thread_id)) == {"text": text, "step": step}
            self.last[scope, thread_id] = (text, step)
            self.saves += 1
            if self.saves >= 2 * len(self._tasks):
                self._warm.set()
            if step % 8 == 7:  # copies move chunks as they are, old ones too
                await store.threads.copy(scope, thread_id, f"{thread_id}-copy")
                self.last[scope, f"{thread_id}-copy"] = (text, step)
                await store.threads.prune(scope, [thread_id], "keep_latest")
            step += 1

    async def check(self, store):
        for (scope, thread_id), (text, step) in self.last.items():
            assert contents(await load(store, scope, thread_id)) == {"text": text, "step": step}


async def test_a_rotated_subject_key_reseals_everything_and_the_old_version_is_destroyed(
    store, other, scope, admin, database, root_key
):
    found = await fill(store, scope)
    await check(other, scope, found)  # its cache is warm
    before = await envelopes(admin, scope)
    assert versions(before) == {(table, 1) for table in SEALED}
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    assert rotated.key_version == 2
    assert await states(admin, scope) == [(1, "decrypt_only", False), (2, "active", False)]
    await save(other, scope, "t9", content=state(new=1))  # new writes at once, in a gateway that was not told
    assert ("threads", 2) in versions(await envelopes(admin, scope))
    job = await finished(store, TenantScope(scope.tenant_id), rotated.job_id)
    assert (job.state, job.error, job.note) == ("done", None, None)
    assert job.done == job.total == len(before)
    assert await states(admin, scope) == [(1, "destroyed", True), (2, "active", False)]
    assert versions(await envelopes(admin, scope)) == {(table, 2) for table in SEALED}
    fresh = await opened(database, root_key)
    try:
        for each in (store, other, fresh):
            await check(each, scope, found)
    finally:
        await fresh.close()
    again = await save(
        store, scope, "receipt", content=state(a=1), idempotency=Idempotency("once", hashlib.sha256(b"r").digest())
    )
    assert not again.created


async def test_a_subject_key_rotates_under_load_and_no_request_fails(store, other, scope, admin, database, root_key):
    found = await fill(store, scope)
    async with Load([store, other], [scope]) as agents:
        for version in (2, 3):
            rotated = await store.rotation.rotate_subject(scope, ACTOR)
            assert rotated.key_version == version
            job = await finished(other, TenantScope(scope.tenant_id), rotated.job_id)
            assert (job.state, job.error) == ("done", None)
    assert (await states(admin, scope))[-1] == (3, "active", False)
    assert {state for _, state, _ in (await states(admin, scope))[:-1]} == {"destroyed"}
    assert {version for _, version in versions(await envelopes(admin, scope))} == {3}
    fresh = await opened(database, root_key)
    try:
        await check(fresh, scope, found)
        await agents.check(fresh)
    finally:
        await fresh.close()


async def test_a_tenant_key_rotates_under_load_and_no_payload_byte_changes(
    store, other, scope, admin, database, root_key
):
    still = Scope(scope.tenant_id, "user-still")
    found = await fill(store, still)
    before = await envelopes(admin, still)
    wrapped = await admin.fetch("SELECT wrapped FROM stateroom.subject_keys WHERE tenant_id = $1", scope.tenant_id)
    born = []

    async def births():
        """Subjects that come into being meanwhile, through both gateways."""
        while not done.is_set():
            for each in (store, other):
                born.append(Scope(scope.tenant_id, f"born-{len(born)}"))
                await save(each, born[-1], content=state(n=len(born)))

    done = asyncio.Event()
    async with Load([store, other], [scope]) as agents:
        birth = asyncio.create_task(births())
        try:
            for version in (2, 3):
                rotated = await store.rotation.rotate_tenant(TenantScope(scope.tenant_id), ACTOR)
                assert rotated.key_version == version
                job = await finished(other, TenantScope(scope.tenant_id), rotated.job_id)
                assert (job.state, job.error) == ("done", None)
                assert job.done >= job.total > 0
        finally:
            done.set()
            await birth
    assert await envelopes(admin, still) == before
    assert await tenant_states(admin, scope.tenant_id) == [
        (1, "destroyed", True),
        (2, "destroyed", True),
        (3, "active", False),
    ]
    rows = await admin.fetch(
        "SELECT tenant_key_version, wrapped FROM stateroom.subject_keys WHERE tenant_id = $1", scope.tenant_id
    )
    assert {row["tenant_key_version"] for row in rows} == {3}
    assert not {bytes(row["wrapped"]) for row in rows} & {bytes(row["wrapped"]) for row in wrapped}
    fresh = await opened(database, root_key)
    try:
        await check(fresh, still, found)
        await agents.check(fresh)
        for number, each in enumerate(born):
            assert contents(await load(fresh, each)) == {"n": number + 1}
    finally:
        await fresh.close()


class TurnedRootKey(UnsteadyRootKey):
    """An unsteady root key whose old versions can be taken away, as a service does, and that takes its time."""

    async def wrap(self, key, context):
        await asyncio.sleep(0)
        return await super().wrap(key, context)

    async def unwrap(self, wrapped, context):
        await asyncio.sleep(0)
        return await super().unwrap(wrapped, context)

    def forget_old(self):
        newest = max(self._root_keys)
        self._root_keys = {newest: self._root_keys[newest]}


async def test_the_root_key_changes_under_load_and_touches_wrappings_only(migrated_database, admin_of):
    root_key = TurnedRootKey()
    first, second = [await opened(migrated_database, root_key) for _ in range(2)]
    admin = await admin_of(migrated_database)
    scopes = [Scope(uuid4(), "user-1") for _ in range(25)]  # more than one batch
    try:
        for scope in scopes:
            await save(first, scope, content=state(a=1))
        await first.anchors.public_key(OperatorScope())  # the deployment's own keys
        await first.control.ready()
        found = await fill(first, scopes[0])
        before = [await envelopes(admin, scope) for scope in scopes]
        kept = await admin.fetch("SELECT tenant_id, subject_id, wrapped FROM stateroom.subject_keys ORDER BY 1, 2, 3")
        busy = [Scope(uuid4(), "busy")]
        async with Load([first, second], busy) as agents:
            root_key.rotate()
            job_id = await first.rotation.rewrap_root(ACTOR)
            job = await finished(second, OperatorScope(), job_id)
        assert (job.state, job.error) == ("done", None)
        # Each tenant once, the busy one, too; the signing key and that of control rows.
        assert job.done == job.total == len(scopes) + 1 + 2
        assert [await envelopes(admin, scope) for scope in scopes] == before
        rows = await admin.fetch("SELECT tenant_id, subject_id, wrapped FROM stateroom.subject_keys ORDER BY 1, 2, 3")
        assert set(kept) <= set(rows)
        assert {use.root_key_version for use in await first.rotation.root_status()} == {"2"}
        root_key.forget_old()
        fresh = await opened(migrated_database, root_key)
        try:
            await check(fresh, scopes[0], found)
            await agents.check(fresh)
            await fresh.anchors.public_key(OperatorScope())
            for scope in scopes[1:]:
                assert contents(await load(fresh, scope)) == {"a": 1}
        finally:
            await fresh.close()
    finally:
        await first.close()
        await second.close()


async def test_a_root_rewrap_waits_for_a_root_key_that_is_out_of_reach(migrated_database):
    root_key = TurnedRootKey()
    store = await opened(migrated_database, root_key)
    try:
        await save(store, Scope(uuid4(), "user-1"))
        await store.control.ready()
        root_key.rotate()
        root_key.reachable = False
        job_id = await store.rotation.rewrap_root(ACTOR)
        await store.runner.run_due()
        assert (await store.jobs.get(OperatorScope(), job_id)).state == "running"
        assert {use.root_key_version for use in await store.rotation.root_status()} == {"1"}
    finally:
        await store.close()


REFUSALS = pytest.mark.parametrize("refusal", [KeyDenied(), RootKeyInvalid()], ids=lambda each: type(each).__name__)


async def ended_after_a_refusal(store, scope, job_id, root_key, refusal, admin, forget_keys=lambda: None):
    """How a job ends that the root key refused at first, as it does when a token has expired.

    What ends by itself half a minute later, the lease and the memory of a refusal, ends here at once.
    """
    root_key.refusal = refusal
    for _ in range(3):
        await store.runner.run_due()
    waiting = await store.jobs.get(scope, job_id)
    assert (waiting.state, waiting.error) == ("running", None)
    root_key.refusal = None
    await admin.execute("UPDATE stateroom.jobs SET lease_until = NULL WHERE job_id = $1", job_id)
    forget_keys()
    return await finished(store, scope, job_id)


@REFUSALS
async def test_a_root_rewrap_waits_for_a_root_key_that_refuses(migrated_database, admin_of, refusal):
    root_key = TurnedRootKey()
    store = await opened(migrated_database, root_key)
    try:
        await save(store, Scope(uuid4(), "user-1"))
        root_key.rotate()
        job_id = await store.rotation.rewrap_root(ACTOR)
        admin = await admin_of(migrated_database)
        job = await ended_after_a_refusal(store, OperatorScope(), job_id, root_key, refusal, admin)
        assert (job.state, job.error) == ("done", None)
        assert {use.root_key_version for use in await store.rotation.root_status()} == {"2"}
    finally:
        await store.close()


async def test_a_root_rewrap_leaves_behind_and_counts_what_only_its_own_root_key_refuses(migrated_database):
    withdrawn, other = Scope(uuid4(), "user-1"), Scope(uuid4(), "user-1")
    own = TurnedRootKey()
    store = await opened(migrated_database, RootKeys([MemoryRootKey()], {withdrawn.tenant_id: [own]}))
    try:
        for scope in (withdrawn, other):
            await save(store, scope)
        own.refusal = KeyDenied()
        job_id = await store.rotation.rewrap_root(ACTOR)
        job = await finished(store, OperatorScope(), job_id)
        assert (job.state, job.error.split()[0]) == ("failed", "1")
    finally:
        await store.close()


@REFUSALS
@pytest.mark.parametrize("level", ["tenant", "subject"])
async def test_a_rotation_waits_for_a_root_key_that_refuses(migrated_database, admin_of, refusal, level):
    root_key = TurnedRootKey()
    store = await opened(migrated_database, root_key)
    scope = Scope(uuid4(), "user-1")
    whole = TenantScope(scope.tenant_id)

    def forget_keys():
        store.keys.evict(scope)
        store.keys.evict_tenant(scope.tenant_id)

    try:
        found = await fill(store, scope)
        if level == "tenant":
            rotated = await store.rotation.rotate_tenant(whole, ACTOR)
        else:
            rotated = await store.rotation.rotate_subject(scope, ACTOR)
        forget_keys()
        admin = await admin_of(migrated_database)
        job = await ended_after_a_refusal(store, whole, rotated.job_id, root_key, refusal, admin, forget_keys)
        assert (job.state, job.error) == ("done", None)
        store.keys.evict(scope)
        await check(store, scope, found)
    finally:
        await store.close()


async def test_a_reseal_that_is_killed_in_the_middle_goes_on_where_it_was(store, other, scope, admin):
    found = await fill(store, scope, threads=4, steps=8)
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    tenant = TenantScope(scope.tenant_id)
    kills = 0
    seen = []
    while (job := await store.jobs.get(tenant, rotated.job_id)).state != "done":
        # Killed a few awaits later each time; the lease of a dead owner ends by itself, which is not waited for here.
        work = CancelAtAwait(store.runner.run_due(), 3 + 2 * kills)
        await work.run()
        kills += work.cancelled
        await admin.execute(
            "UPDATE stateroom.jobs SET lease_until = NULL WHERE job_id = $1 AND state = 'running'", rotated.job_id
        )
        seen.append(job.done)
        await check(other, scope, found)
        assert kills < 500
    assert kills > 3
    assert seen == sorted(seen)
    assert job.done == job.total
    assert await states(admin, scope) == [(1, "destroyed", True), (2, "active", False)]
    await check(other, scope, found)


async def test_a_late_owner_of_a_lease_changes_nothing(store, scope, admin):
    await fill(store, scope)
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    late = await store.jobs.claim(scope.tenant_id, rotated.job_id)
    assert await store.jobs.claim(scope.tenant_id, rotated.job_id) is None
    await admin.execute(
        "UPDATE stateroom.jobs SET lease_until = lease_until - make_interval(secs => $1)", LEASE_SECONDS + 1
    )
    assert await store.jobs.claim(scope.tenant_id, rotated.job_id) is not None
    async with store.unit_of_work.begin(TenantScope(scope.tenant_id)) as transaction:
        with pytest.raises(LeaseLostError):
            await late.advance(transaction, "elsewhere", 1000)
    await store.jobs.end(late)
    job = await store.jobs.get(TenantScope(scope.tenant_id), rotated.job_id)
    assert (job.state, job.done) == ("running", 0)


async def test_the_old_version_waits_for_a_save_that_began_before_the_rotation(store, scope, admin, app_connection):
    await fill(store, scope)
    # As a gateway that stopped between BEGIN and its save: it may still believe that version 1 is active.
    await app_connection.execute("BEGIN")
    await app_connection.fetchval("SELECT 1")
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    for _ in range(5):
        await store.runner.run_due()
        await admin.execute("UPDATE stateroom.jobs SET lease_until = NULL WHERE job_id = $1", rotated.job_id)
    job = await store.jobs.get(TenantScope(scope.tenant_id), rotated.job_id)
    assert (job.state, job.done) == ("running", 0)
    assert await states(admin, scope) == [(1, "decrypt_only", False), (2, "active", False)]
    await app_connection.execute("ROLLBACK")
    assert (await finished(store, TenantScope(scope.tenant_id), rotated.job_id)).state == "done"


async def test_what_does_not_authenticate_keeps_its_key_version(store, scope, admin):
    await fill(store, scope)
    await admin.execute(
        "UPDATE stateroom.chunks SET envelope = set_byte(envelope, 60, get_byte(envelope, 60) # 1)"
        " WHERE ctid = (SELECT ctid FROM stateroom.chunks WHERE tenant_id = $1 LIMIT 1)",
        scope.tenant_id,
    )
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    job = await finished(store, TenantScope(scope.tenant_id), rotated.job_id)
    assert job.state == "failed"
    assert job.error == "1 sealed rows are damaged; the older key versions stay"
    assert await states(admin, scope) == [(1, "decrypt_only", False), (2, "active", False)]


async def test_a_thread_under_a_client_held_share_keeps_its_key_version_and_the_job_says_so(store, scope, admin):
    found = await fill(store, scope)
    before = await envelopes(admin, scope)
    await admin.execute(
        "UPDATE stateroom.threads SET client_share = true WHERE tenant_id = $1 AND thread_id = 't1'", scope.tenant_id
    )
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    job = await finished(store, TenantScope(scope.tenant_id), rotated.job_id)
    assert job.state == "done"
    assert "client-held share" in job.note
    assert await states(admin, scope) == [(1, "decrypt_only", False), (2, "active", False)]
    assert {version for _, version in versions(await envelopes(admin, scope))} == {1, 2}
    assert set(before) & set(await envelopes(admin, scope))
    await admin.execute("UPDATE stateroom.threads SET client_share = false WHERE tenant_id = $1", scope.tenant_id)
    await check(store, scope, found)


async def test_an_envelope_put_back_under_a_destroyed_version_is_damage_not_a_shred(store, scope, admin):
    await save(store, scope, content=state(a=1))
    old = await admin.fetchval("SELECT seal FROM stateroom.heads WHERE tenant_id = $1", scope.tenant_id)
    rotated = await store.rotation.rotate_subject(scope, ACTOR)
    assert (await finished(store, TenantScope(scope.tenant_id), rotated.job_id)).state == "done"
    store.keys.evict(scope)
    await admin.execute("UPDATE stateroom.heads SET seal = $2 WHERE tenant_id = $1", scope.tenant_id, old)
    with pytest.raises(IntegrityFailure):
        await load(store, scope)


async def test_a_subject_without_keys_has_nothing_to_rotate(store, scope):
    with pytest.raises(SubjectNotFound):
        await store.rotation.rotate_subject(scope, ACTOR)


async def test_rotations_are_in_the_audit_log(store, scope):
    await save(store, scope)
    subject = await store.rotation.rotate_subject(scope, ACTOR)
    tenant = await store.rotation.rotate_tenant(TenantScope(scope.tenant_id), ACTOR)
    for job_id in (subject.job_id, tenant.job_id):
        await finished(store, TenantScope(scope.tenant_id), job_id)
    page = await store.audit.page(TenantScope(scope.tenant_id), ACTOR)
    found = [(record.event.actor, record.event.action, record.event.target) for record in page.items]
    assert found[:2] == [(ACTOR, "key.rotate", "subject:user-1"), (ACTOR, "key.rotate", "tenant-key:2")]
    assert set(found[2:4]) == {
        ("gateway", "key.destroy", "subject:user-1"),
        ("gateway", "key.destroy", "tenant-key:1"),
    }


async def test_500_concurrent_first_uses_ask_the_root_key_once(migrated_database):
    root_key = TurnedRootKey()
    tenant_id = uuid4()
    scopes = [Scope(tenant_id, f"user-{number}") for number in range(10)]
    store = await opened(migrated_database, root_key)
    try:
        for scope in scopes:
            await save(store, scope, content=state(a=1))
    finally:
        await store.close()
    cold = await opened(migrated_database, root_key)
    try:
        root_key.calls = 0
        loaded = await asyncio.gather(*(load(cold, scopes[number % 10]) for number in range(500)))
        assert all(contents(each) == {"a": 1} for each in loaded)
        assert root_key.calls == 1
    finally:
        await cold.close()


async def test_in_an_outage_cached_tenants_go_on_and_others_are_told_when_to_come_back(migrated_database):
    root_key = TurnedRootKey()
    cached, cold = Scope(uuid4(), "user-1"), Scope(uuid4(), "user-1")
    store = await opened(migrated_database, root_key)
    try:
        for scope in (cached, cold):
            await save(store, scope, content=state(a=1))
        store.keys.evict_tenant(cold.tenant_id)
        store.keys.evict(cold)
        root_key.reachable = False
        for _ in range(3):
            await save(store, cached, content=state(a=2))
            assert contents(await load(store, cached)) == {"a": 2}
            await save(store, Scope(cached.tenant_id, "born in the outage"))
            for verb in (load, save):
                with pytest.raises(KeyUnavailable) as refused:
                    await verb(store, cold)
                assert refused.value.retry_after_seconds > 0
        asked = root_key.calls
        await asyncio.gather(*(load(store, cold) for _ in range(50)), return_exceptions=True)
        assert root_key.calls <= asked + 1  # nobody storms a service that is down
        root_key.reachable = True
        store.keys.evict_tenant(cold.tenant_id)
        store.keys.evict(cold)
        assert contents(await load(store, cold)) == {"a": 1}
    finally:
        await store.close()
