"""A gateway that is killed at any await of a save with large pieces leaves nothing dangling and nothing orphaned."""

import asyncio
import json
import os
import sys
from uuid import uuid4

import msgpack

from storage.blobs.buckets import Buckets
from storage.blobs.keyspace import tenant_prefix
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.clock import SystemClock
from storage.collection.fsck import Fsck
from storage.collection.sweep import Sweep
from storage.model import HistoryQuery
from storage.scope import Scope
from storage.service import Store, StoreOptions
from tests.support.kill_points import INTENT_SECONDS, root_key
from tests.support.stores import DEPLOYMENT_ID

POINTS_MIN = 25  # statements, commits and object store calls of one save and one write


async def sweep_on(store, blobs, tenant_id, ended):
    """A sweeper without any patience, until the others have ended."""
    sweep = Sweep(store.unit_of_work, Buckets(blobs), 0, grace_seconds=0, tombstone_seconds=1)
    while not ended.is_set():
        await sweep.tenant(tenant_id, now=True)
        await asyncio.sleep(0.05)


async def test_a_kill_at_any_await_of_a_save_leaves_the_object_store_and_the_database_agreeing(
    database, s3_server, admin
):
    secret = os.urandom(32)
    blobs = S3BlobStore(S3Location.parse(s3_server.url()))
    scope = Scope(uuid4(), "user-1")
    job = {
        "s3_url": s3_server.url(),
        "database_url": database.app_url,
        "root_key": secret.hex(),
        "deployment_id": str(DEPLOYMENT_ID),
        "tenant_id": str(scope.tenant_id),
        "thread_id": "t1",
    }
    store = await Store.open(
        database.app_url,
        root_key=root_key(secret),
        deployment_id=DEPLOYMENT_ID,
        connections_max=6,
        durable=False,
        options=StoreOptions(blobs=blobs),
    )
    ended = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(sweep_on(store, blobs, scope.tenant_id, ended))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.kill_points"),
                env={**os.environ, "KILL_POINTS_JOB": json.dumps(job)},
                stdout=asyncio.subprocess.PIPE,
            )
            told, _ = await process.communicate()
            ended.set()
        report = json.loads(told.splitlines()[-1])
        assert report["status"] == 0
        assert report["killed"] == list(range(report["through"]))
        assert report["through"] >= POINTS_MIN
        # Whatever was stored comes back whole, and the acknowledged one was.
        page = await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", with_state=True))
        assert page.items[0].checkpoint_id == f"1f0-{report['through']:04}"
        assert len(page.items[0].writes) == 1
        for item in page.items:
            point = int(item.checkpoint_id[4:])
            assert msgpack.unpackb(item.channels["c0"].value.data) == [{"image": f"{point}" + "A" * 100_000}]
            assert msgpack.unpackb(item.channels["c1"].value.data) == [{"image": "shared" + "B" * 100_000}]
            for write in item.writes:
                assert msgpack.unpackb(write.value.data) == f"w{point}" + "C" * 100_000
        fsck = Fsck(store.unit_of_work, store.ledger, Buckets(blobs), SystemClock(), grace_seconds=0)
        found = await fsck.run(scope.tenant_id)
        assert found.findings == []
        # And once every upload has expired and its tombstone has ended, there is exactly what is live.
        sweep = Sweep(store.unit_of_work, Buckets(blobs), 0, grace_seconds=0, tombstone_seconds=0)
        left = "SELECT count(*) FROM stateroom.blob_intents WHERE tenant_id = $1"
        async with asyncio.timeout(10 * INTENT_SECONDS):
            while await admin.fetchval(left, scope.tenant_id):
                await sweep.tenant(scope.tenant_id, now=True)
        live = "SELECT count(*) FROM stateroom.blobs WHERE tenant_id = $1 AND state = 'live'"
        objects = await blobs.list_objects(tenant_prefix(scope.tenant_id))
        assert len(objects) == await admin.fetchval(live, scope.tenant_id) > 0
        assert (await fsck.run(scope.tenant_id)).findings == []
    finally:
        ended.set()
        await store.close()
        await blobs.aclose()
