"""A tenant at its worst stops nobody else: one case of each class of cost (`make victims` measures all of them).

What a victim waits is bounded here so widely that only a gateway that stands still is over it: each of these cases
once stopped one for seconds, or took gigabytes.
"""

import asyncio
import statistics

import pytest

from storage.control.features import DECISIONS
from tests.support.features import finish_upgrade
from tests.victims.cases import ALL
from tests.victims.harness import arena

CLASSES = {
    "decoding": "update_thread",
    "saving": "save_checkpoint",
    "showing": "shown dense",
    "answers that nobody reads": "load_checkpoint",
    "patterns and conditions": "migrate_state",
    "schemas": "put_state_schema_version",
    "connections": "silent connections",
    "before a caller is known": "unknown keys",
    "rows and objects": "put_writes",
    "waiting for people": "decisions waited for",
}
ASKING = {"decisions waited for"}
SECONDS = 1.5
MEDIAN_SECONDS_MAX = 2.0
MEMORY_BYTES_MAX = 1024**3


@pytest.mark.parametrize("name", CLASSES.values(), ids=CLASSES)
async def test_others_are_served_while_a_tenant_does_its_worst(launcher, deployment, s3_server, tmp_path, name):
    case, declared = ALL[name]
    with_buckets = deployment.with_buckets(s3_server.url(), s3_server.archive_url())
    if name in ASKING:
        await finish_upgrade(deployment, DECISIONS)
    async with arena(launcher, with_buckets, tmp_path) as place, place.tenant() as tenant:
        lines = await asyncio.to_thread(case.lines, tenant, declared)
        async with place.attacked(tenant, lines):
            waits = await place.measure(SECONDS)
    assert statistics.median(waits.victim) < MEDIAN_SECONDS_MAX
    assert statistics.median(waits.livez) < MEDIAN_SECONDS_MAX
    assert waits.peak_bytes < MEMORY_BYTES_MAX
