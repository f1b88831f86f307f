"""A process that sweeps one tenant again and again and knows no grace; forked by `tests.support.launcher`.

Writes a line to its standard output before the first round and after every one.
"""

import asyncio
from collections.abc import Mapping
from uuid import UUID

from storage.blobs.buckets import Buckets
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location
from storage.collection.sweep import Sweep
from storage.postgres.engine import create_engine
from storage.postgres.unit_of_work import Silent, UnitOfWork


async def sweep(environ: Mapping[str, str]) -> None:
    engine = create_engine(environ["STATEROOM_DATABASE_URL"], connections_max=8)
    sweeper = Sweep(
        UnitOfWork(engine, Silent()),
        Buckets(S3BlobStore(S3Location.parse(environ["STATEROOM_S3_URL"]))),
        0,
        grace_seconds=0,
        tombstone_seconds=float(environ["TOMBSTONE_SECONDS"]),
    )
    print("sweeping", flush=True)  # noqa: T201  whoever started it reads along
    while True:
        print(await sweeper.tenant(UUID(environ["TENANT_ID"]), now=True), flush=True)  # noqa: T201


def run(environ: Mapping[str, str]) -> int:
    asyncio.run(sweep(environ))
    return 0
