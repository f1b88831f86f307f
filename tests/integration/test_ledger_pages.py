"""`docs/claims.md` and `docs/effects.md` as they stand: their Python, and their sessions in a shell."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from storage.claims.model import LEASE_SECONDS_MAX, LEASE_SECONDS_MIN
from storage.effects.model import EFFECT_TOMBSTONE_DAYS, EFFECTS_MAX
from tests.support.gateway import new_tenant

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in ("claims", "effects")}
SAID = {
    "claims": [
        [r"held until 20", r"released"],
        [r"finished trip-8"],
        [r"\{'done': \['flight'\]\}"],
    ],
    "effects": [
        [r"\{'paid': 1200\}", r"\{'paid': 1200\}", r"paid 1 time", r"done as pay-i-17"],
        [r"unknown", r"receipt for 300", r"charged 1 time"],
        [r"paid 5 to bob with 1 key"],
    ],
}


@pytest.fixture(scope="module")
def tenant(running_gateway):
    return new_tenant(running_gateway)


@pytest.fixture
def environ(running_gateway, tenant):
    lines = running_gateway.env_file.read_text().splitlines()
    programs = str(Path(sys.executable).parent)
    found = dict(shlex.split(line)[0].split("=", 1) for line in lines)
    found |= {"STATEROOM_API_KEY": tenant.api_key, "PATH": f"{programs}:{os.environ['PATH']}"}
    return {name: text for name, text in os.environ.items() if name != "STATEROOM_SUBJECT"} | found


@pytest.mark.parametrize("page", PAGES)
def test_the_python_and_the_session_of_a_page_do_what_it_says(page, tenant, environ, monkeypatch, tmp_path):
    monkeypatch.setenv("STATEROOM_URL", tenant.url)
    monkeypatch.setenv("STATEROOM_API_KEY", tenant.api_key)
    blocks = re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL)
    for block, expected in zip(blocks, SAID[page], strict=True):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, f"docs/{page}.md", "exec"), {"__name__": "page"})  # noqa: S102
        lines = said.getvalue().splitlines()
        assert len(lines) == len(expected), lines
        assert all(map(re.match, expected, lines)), lines
    [session] = re.findall(r"```sh\n(.*?)```", PAGES[page], re.DOTALL)
    command = ["bash", "-euo", "pipefail", "-c", session]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert ("trip-7" if page == "claims" else "pay-i-17") in done.stdout


def test_the_pages_name_the_numbers_that_hold():
    assert f"{LEASE_SECONDS_MIN} to {LEASE_SECONDS_MAX} seconds" in PAGES["claims"]
    assert f"at most {EFFECTS_MAX:,} effects" in PAGES["effects"]
    assert f"for {EFFECT_TOMBSTONE_DAYS} days" in PAGES["effects"]
