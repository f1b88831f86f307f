"""`docs/events.md` as it stands: its session in a shell, its Python, and the commands of `stateroom events`."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from gateway.admission.limits import TENANT_WAITERS_MAX, WAIT_SECONDS_MAX, WAITERS_MAX
from gateway.wire.events.events import EventType
from stateroom import Client
from storage.event_queue.model import EVENT_TYPES
from tests.support.gateway import new_tenant

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
SESSIONS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
LEAD_SECONDS_MAX = 30


@pytest.fixture(scope="module")
def tenant(running_gateway):
    """A tenant of its own whose events are on, and begin to be told."""
    made = new_tenant(running_gateway)
    with httpx.Client(base_url=made.url, headers={"Authorization": f"Bearer {made.api_key}"}) as client:
        client.put("/v1/events/settings", json={"on": True}).raise_for_status()
        deadline = time.monotonic() + LEAD_SECONDS_MAX
        while client.get("/v1/events").status_code == 409:
            assert time.monotonic() < deadline
            time.sleep(0.2)  # until on_since, which the database's clock says
    return made


@pytest.fixture
def environ(running_gateway, tenant):
    lines = running_gateway.env_file.read_text().splitlines()
    programs = str(Path(sys.executable).parent)
    found = dict(shlex.split(line)[0].split("=", 1) for line in lines)
    found |= {"STATEROOM_API_KEY": tenant.api_key, "PATH": f"{programs}:{os.environ['PATH']}"}
    return {name: text for name, text in os.environ.items() if name != "STATEROOM_SUBJECT"} | found


def run(script, environ, folder):
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_curl_session_hears_the_save_that_it_makes(environ, tmp_path):
    [session] = [each for each in SESSIONS if "curl" in each]
    done = run(session, environ, tmp_path)
    assert done.returncode == 0, done.stderr
    first, *told = done.stdout.splitlines()
    assert first == "201"
    assert "thread.created user-42 trip-7 waiting" in told or "checkpoint.saved user-42 trip-7 waiting" in told


def test_the_python_of_the_page_hears_the_save_that_it_makes(tenant, monkeypatch):
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setenv("STATEROOM_URL", tenant.url)
    monkeypatch.setenv("STATEROOM_API_KEY", tenant.api_key)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(block, "docs/events.md", "exec"), {})  # noqa: S102
    assert said.getvalue().splitlines()[-1].endswith(" waiting")


def test_the_commands_switch_events_on_and_print_them(environ, tenant, tmp_path):
    assert "on" in run("stateroom events on", environ, tmp_path).stdout
    with Client(tenant.url, tenant.api_key, subject="ada") as client:
        begin = client.event_cursor(whole_tenant=True)
        client.thread("t").save({"n": 1})
        next(client.events(since=begin, whole_tenant=True))
    done = run(f"stateroom events --since {begin} --json", environ, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["subject_id"] for each in shown} == {"ada"}
    done = run(f"stateroom events --since {shown[0]['cursor']}", environ, tmp_path)
    assert "checkpoint.saved" in done.stdout
    assert "subject=ada thread=t" in done.stdout
    assert json.loads(run("stateroom events settings --json", environ, tmp_path).stdout)["on"] is True
    asked = run("stateroom events", environ, tmp_path)
    assert asked.returncode == 2
    refused = run("stateroom events --since x", environ, tmp_path)
    assert refused.returncode == 1
    assert "invalid request" in refused.stderr.lower()


def test_the_page_names_every_type_and_the_numbers_that_hold():
    named = re.findall(r"`([a-z]+(?:\.[a-z]+)?)`", PAGE.split("## What is promised")[0])
    assert {*EVENT_TYPES} <= {*named}
    assert {*EventType.__args__} == {*EVENT_TYPES}
    for number in (f"{TENANT_WAITERS_MAX} requests of the tenant", f"{WAITERS_MAX:,} of the process"):
        assert number in PAGE
    assert f"({WAIT_SECONDS_MAX} at most)" in PAGE
