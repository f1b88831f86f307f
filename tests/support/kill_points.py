"""A process that kills itself with SIGKILL at the n-th await of one save, for every n until the save gets through.

``python -m tests.support.kill_points``, with the job as JSON in the environment: each save runs in a forked child with
connections of its own; before every statement and before and after every call of the object store is a kill point. What
happened is one JSON line: for each child whether it was killed, and whether its save was acknowledged.
"""

import asyncio
import gc
import json
import os
import signal
import traceback
from importlib import import_module
from typing import Any
from uuid import UUID

import msgpack

from crypto.keyring import SecretKey
from crypto.roots.local import LocalRootKey
from storage.access.access import Access
from storage.access.offload import Offload
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.checkpoints.verbs import Checkpoints
from storage.clock import SystemClock
from storage.ledger.ledger import BlobLedger
from storage.ledger.streams import BlobReader, BlobWriter
from storage.model import ChannelValue, FullState, NewWrite, Save, TaskWrites, Value
from storage.scope import Scope
from storage.service import Store
from tests.support.faulty_blobs import FaultyBlobStore
from tests.support.interleaving import SteeredUnitOfWork, parts_of

POINTS_MAX = 200
# So short that the sweepers beside the saves find something to do.
INTENT_SECONDS = 2


def root_key(secret: bytes) -> LocalRootKey:
    """A root key that several processes can have."""
    return LocalRootKey("memory", {1: SecretKey(secret)}, 1)


class _Countdown:
    def __init__(self, point: int) -> None:
        self.left = point

    def pass_by(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


async def _save(job: dict[str, Any], point: int, s3: S3BlobStore) -> None:
    countdown = _Countdown(point)

    async def at_blob(_moment: str, _operation: str) -> None:
        countdown.pass_by()

    async def at_statement(_statement: str) -> None:
        countdown.pass_by()

    bucket = FaultyBlobStore(s3, at_blob)
    store = await Store.open(
        job["database_url"],
        root_key=root_key(bytes.fromhex(job["root_key"])),
        deployment_id=UUID(job["deployment_id"]),
        connections_max=2,
        durable=False,
    )
    scope = Scope(UUID(job["tenant_id"]), "user-1")
    await store.keys.sealer(scope)
    steered = SteeredUnitOfWork(store._engine, {}, at_statement)
    ledger = BlobLedger(steered, intent_seconds=INTENT_SECONDS)
    offload = Offload(steered, ledger, BlobWriter(bucket), BlobReader(bucket), SystemClock())
    checkpoints = Checkpoints(Access(parts_of(store, steered, offload=offload)))
    checkpoint_id = f"1f0-{point:04}"
    texts = (f"{point}" + "A" * 100_000, "shared" + "B" * 100_000)
    channels = {
        f"c{at}": ChannelValue(None, Value("msgpack", msgpack.packb([{"image": text}])))
        for at, text in enumerate(texts)
    }
    thread_id = job["thread_id"]
    await checkpoints.save(scope, Save(thread_id=thread_id, checkpoint_id=checkpoint_id, content=FullState(channels)))
    write = NewWrite(idx=0, channel="c", value=Value("msgpack", msgpack.packb(f"w{point}" + "C" * 100_000)))
    await checkpoints.put_writes(scope, TaskWrites(thread_id, "", checkpoint_id, "task", "", [write], None))


def main() -> None:
    """Run all points."""
    job = json.loads(os.environ["KILL_POINTS_JOB"])
    # What takes longer than the save itself is done before forking: neither has a thread or a connection yet.
    import_module("sqlalchemy.dialects.postgresql.asyncpg")
    s3 = S3BlobStore(S3Location.parse(job["s3_url"]))
    gc.freeze()
    killed = []
    for point in range(POINTS_MAX):
        child = os.fork()
        if child == 0:
            status = 3
            try:
                asyncio.run(_save(job, point, s3))
                status = 0
            except Exception:  # noqa: BLE001  the parent reads the status, and nothing of the child's is to be finished
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed.append(point)
            continue
        print(json.dumps({"killed": killed, "through": point, "status": os.WEXITSTATUS(status)}))  # noqa: T201
        return
    raise SystemExit("no save got through")


if __name__ == "__main__":
    main()
