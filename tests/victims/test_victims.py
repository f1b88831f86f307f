"""`make victims`: whatever one tenant does, another one waits no longer than 0.25 s more, and memory stays below 1 GiB.

Run alone on the machine. Every verb and every limit is attacked in turn, for a few seconds each, at one gateway. A case
that is over a bound is measured again: what a machine did otherwise counts for nobody. The table goes to standard
output and to `benchmarks/results/victims.txt`.
"""

import asyncio
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.victims.cases import ALL, LIMITS, Case
from tests.victims.harness import Measured, arena

pytestmark = pytest.mark.victims

MORE_SECONDS_MAX = 0.25
MEMORY_BYTES_MAX = 1024**3
BEFORE_SECONDS, SECONDS = 1.0, 4.0
ATTEMPTS = 3
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "victims.txt"
_MISSED = "  MISSED"
_HEAD = "verb or limit                  p99 ms before  during  /livez p99  worst  MiB  answers"


@pytest.fixture(scope="module")
def heavy_keys():
    """The key of the tenant with a history of a thousand checkpoints, once it was made, which takes long."""
    return []


@pytest.fixture(scope="module")
def table():
    lines: list[str] = []
    machine = _machine()
    print(f"\n{_HEAD}", flush=True)  # noqa: T201 - what it is for
    yield lines
    if len(lines) == len(ALL):
        missed = sum(_MISSED in line for line in lines)
        said = f"{len(lines) - missed} of {len(lines)} cases hold; {missed} are marked as missed."
        RESULTS.write_text("\n".join([*machine, said, "", _HEAD, *lines, ""]))


def _machine() -> list[str]:
    """What was measured on, and what it did already."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    loads = " ".join(f"{each:.1f}" for each in os.getloadavg())
    return [
        f"make victims, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {os.cpu_count()} processors, {memory} GiB, {system}.",
        f"Load averages before: {loads}. Gateway, PostgreSQL, object store, attacker and victim share the machine.",
        f"Bounds: p99 of another tenant and of /livez rise by less than {MORE_SECONDS_MAX} s; memory is below 1 GiB.",
        "A case that is over one is measured up to three times; the last one counts.",
    ]


def _told(name: str, case: Case, measured: Measured) -> str:
    before, during = measured.before, measured.during
    answers = " ".join(f"{status}:{count}" for status, count in sorted(measured.answers.items()))
    pushes = [limit for limit, case in LIMITS.items() if case == name]
    is_missed = not _is_within_bounds(measured) or not _is_answered(case, measured)
    return (
        f"{name:30s} {before.victim_p99 * 1000:13.0f} {during.victim_p99 * 1000:7.0f} "
        f"{during.livez_p99 * 1000:11.0f} {max(during.livez) * 1000:6.0f} {during.peak_bytes >> 20:4d}  "
        f"{answers}{_MISSED if is_missed else ''}\n"
        f"    {case.worst}{': ' + ', '.join(pushes) if pushes else ''}"
    )


def _is_within_bounds(measured: Measured) -> bool:
    return measured.more_seconds < MORE_SECONDS_MAX and measured.during.peak_bytes < MEMORY_BYTES_MAX


def _is_answered(case: Case, measured: Measured) -> bool:
    """Whether something of what was sent was done: an attack that is refused attacks nothing."""
    return not case.answers or not case.answers.isdisjoint(measured.answers)


@pytest.mark.parametrize("name", ALL)
async def test_nobody_waits_for_a_tenant_at_its_worst(
    launcher, deployment, s3_server, tmp_path, heavy_keys, table, name
):
    case, declared = ALL[name]
    with_buckets = deployment.with_buckets(s3_server.url(), s3_server.archive_url())
    seconds = SECONDS
    for _ in range(ATTEMPTS):
        async with (
            arena(launcher, with_buckets, tmp_path) as place,
            place.tenant(heavy_keys[0] if case.is_heavy and heavy_keys else None) as tenant,
        ):
            if case.is_heavy and not heavy_keys:
                heavy_keys.append(tenant.api_key)
            lines = await asyncio.to_thread(case.lines, tenant, declared)
            measured = await place.attack(tenant, lines, before_seconds=BEFORE_SECONDS, seconds=seconds)
        if not _is_answered(case, measured):  # what takes so long is done for longer
            seconds *= 4
        elif _is_within_bounds(measured):
            break
    table.append(_told(name, case, measured))
    print(f"\n{table[-1]}", flush=True)  # noqa: T201 - what it is for
    assert _is_answered(case, measured), table[-1]
    assert measured.more_seconds < MORE_SECONDS_MAX, table[-1]
    assert measured.during.peak_bytes < MEMORY_BYTES_MAX, table[-1]
