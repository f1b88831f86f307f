"""Two years of one agent that saves all the time, under a policy of thirty days in the database.

Every week what is older moves into segments. The database must not grow with the years, all of the history must be
readable, nothing may be damaged, and every byte that the tenant is charged for must be somewhere. A round itself goes
by the database's clock, which nobody can move: here the rule that it makes of the policy is applied at a time of ours.
"""

from datetime import UTC, datetime, timedelta
from random import Random  # noqa: TID251  seeded: the same two years every time

import pytest

from storage.blobs.keyspace import tenant_prefix
from storage.blobs.memory import MemoryBlobStore
from storage.clock import ManualClock
from storage.control.features import SEGMENTS
from storage.model import HistoryQuery
from storage.retention.examining import segment_rule_of
from storage.retention.planner import Policy, resolve
from tests.support.archive_rows import fsck, opened
from tests.support.features import switch_on
from tests.support.states import contents, load, save, state

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = 86_400
HOT_DAYS, ROUND_DAYS, DAYS = 30, 7, 730
LOOKED_AT = 40


def written(number: int) -> dict[str, object]:
    """What the agent knows after so many saves: a window of notes, of which one is new each time."""
    return {
        "n": number,
        "notes": [f"note {each}: {each * 7919 % 10_007}" * 3 for each in range(number - 9, number + 1)],
    }


async def stored_checkpoints(admin, scope) -> int:
    return await admin.fetchval(
        "SELECT count(*) FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2",
        scope.tenant_id, scope.subject_id,
    )  # fmt: skip


async def charged(admin, scope) -> tuple[int, int, int]:
    """What counts for the tenant's quota of objects, what the rows of objects say, and what those of segments say."""
    return tuple(
        await admin.fetchrow(
            "SELECT (SELECT bytes FROM stateroom.blob_usage WHERE tenant_id = $1),"
            " (SELECT coalesce(sum(size_bytes), 0)::bigint FROM stateroom.blobs WHERE tenant_id = $1),"
            " (SELECT coalesce(sum(size_bytes), 0)::bigint FROM stateroom.archives WHERE tenant_id = $1)",
            scope.tenant_id,
        )
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    "minutes",
    [
        pytest.param(60, id="a save an hour", marks=pytest.mark.timeout(3_600)),
        pytest.param(1, id="a save a minute", marks=pytest.mark.timeout(36_000)),
    ],
)
async def test_two_years_leave_thirty_days_in_the_database_and_all_of_them_to_read(
    database, root_key, scope, admin, minutes
):
    clock, bucket = ManualClock(START), MemoryBlobStore()
    ids = list[str]()
    async with opened(database, root_key, archive=bucket, clock=clock) as store:
        await switch_on(store, SEGMENTS)
        policy, a_day = resolve([Policy(checkpoints_idle_ttl_seconds=HOT_DAYS * DAY)]), 24 * 60 // minutes
        for day in range(DAYS):
            for each in range(a_day):
                clock.set(START + timedelta(days=day, minutes=each * minutes))
                saved = await save(store, scope, content=state(**written(len(ids))), agent="watch")
                ids.append(saved.checkpoint_id)
            if day % ROUND_DAYS == ROUND_DAYS - 1:
                rule = segment_rule_of(policy, clock.now())
                await store.archives.segmenting.move(scope, "t1", rule, actor="round")
                assert await stored_checkpoints(admin, scope) <= (HOT_DAYS + 1) * a_day + 1

        assert await stored_checkpoints(admin, scope) < (HOT_DAYS + ROUND_DAYS + 2) * a_day
        found, after = list[str](), None
        while True:
            page = await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", limit=1000, after=after))
            found += [each.checkpoint_id for each in page.items]
            after = page.after
            if after is None:
                break
        assert found == ids[::-1]
        for number in Random(730).sample(range(len(ids)), LOOKED_AT):  # noqa: S311
            assert contents(await load(store, scope, checkpoint_id=ids[number])) == written(number)

        report = await store.verification.thread(scope, "t1")
        assert (report.checkpoints, report.findings) == (len(ids), [])
        assert (await fsck(store, scope)).faults == {}
        usage, blobs, segments = await charged(admin, scope)
        objects = await bucket.list_objects(tenant_prefix(scope.tenant_id, "archive"), limit=1_000_000)
        assert usage == blobs == segments == sum(each.size_bytes for each in objects)
