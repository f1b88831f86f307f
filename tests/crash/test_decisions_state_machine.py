"""People decide, agents act, and everybody is killed: what was authorised is done at most once, and nothing is lost.

Two gateways and four workers, real processes on a durable PostgreSQL, do random steps (`tests.support.decisions`):
approve, edit, expire, claim, start, crash, finish, resolve, fork, replay, prune, archive. A random one of them is
killed by SIGKILL and begun again, and again. What agents do in the world outlives them, so that the judge of the
history knows what really happened, whatever the product says.

`DECISIONS_SEED` and `DECISIONS_KILLS` say which run; the seed is told when one fails.
"""

import os
import secrets
import time
from dataclasses import replace
from pathlib import Path

import pytest

from storage.control.features import DECISIONS
from tests.support.decisions.history import judge
from tests.support.decisions.machine import Machine
from tests.support.features import finish_upgrade
from tests.support.production import Deployment, Launcher

KILLS, SOAK_KILLS = 50, int(os.environ.get("DECISIONS_KILLS", "1000"))


@pytest.fixture
async def archiving(deployment: Deployment, s3_server) -> Deployment:
    await finish_upgrade(deployment, DECISIONS)
    urls = {"STATEROOM_S3_URL": s3_server.url(), "STATEROOM_ARCHIVE_URL": s3_server.archive_url()}
    return replace(deployment, environ=deployment.environ | urls)


@pytest.mark.parametrize(
    "kills", [KILLS, pytest.param(SOAK_KILLS, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])], ids=["ci", "soak"]
)
async def test_what_people_decided_is_done_at_most_once_and_nothing_is_lost_whoever_is_killed(
    archiving: Deployment, launcher: Launcher, tmp_path: Path, kills: int
) -> None:
    seed = int(os.environ.get("DECISIONS_SEED", secrets.randbelow(2**32)))
    machine = Machine(launcher, archiving, tmp_path, seed)
    print(f"DECISIONS_SEED={seed}")  # noqa: T201 - shown when it fails
    begun = time.monotonic()
    history = await machine.run(kills)
    print(machine.account(time.monotonic() - begun))  # noqa: T201 - as above
    assert judge(history) == []
    assert machine.kills == kills
    assert len(history.lines) > kills // 4
    assert sum(each.outcome == "acknowledged" for each in history.decisions) > kills // 10
