"""`docs/approvals.md` as it stands: its sessions in a shell, its Python, and the commands of `stateroom approvals`."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import httpx
import pytest

from gateway.authentication.api_keys import APPROVAL_PERMISSIONS
from gateway.wire.thread_ledgers.approvals import ApprovalStatus
from stateroom import Client, NewAction, NewApproval
from storage.approvals.model import (
    APPROVAL_ACTIONS_MAX,
    APPROVAL_CONTENT_BYTES_MAX,
    APPROVALS_ENDED_MAX,
    APPROVALS_PENDING_MAX,
)
from tests.support.gateway import new_tenant

PAGE = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text()
SESSIONS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
ASK, DECIDE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def tenant(running_gateway):
    return new_tenant(running_gateway)


def key(tenant, *permissions):
    with httpx.Client(base_url=tenant.url, headers={"Authorization": f"Bearer {tenant.founding_key}"}) as client:
        body = {"kind": "service", "permissions": permissions, "grants": []}
        made = client.post("/v1/api-keys", json=body)
        assert made.status_code == 201, made.text
        return made.json()["api_key"]


@pytest.fixture(scope="module")
def approver(tenant):
    return key(tenant, "approval:read", "approval:decide")


@pytest.fixture
def environ(running_gateway, tenant, approver):
    programs = str(Path(sys.executable).parent)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("STATEROOM_")}
    return kept | {
        "STATEROOM_URL": tenant.url,
        "STATEROOM_API_KEY": tenant.api_key,
        "STATEROOM_APPROVER_KEY": approver,
        "PATH": f"{programs}:{os.environ['PATH']}",
    }


def run(script, environ, folder):
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_curl_session_asks_and_is_told_no(environ, tmp_path):
    [session] = [each for each in SESSIONS if "/decisions" in each]
    done = run(session, environ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["rejected", "rejected"]


def test_the_policy_of_the_page_is_set(environ, tmp_path):
    [session] = [each for each in SESSIONS if "approval-policies" in each]
    done = run(session, environ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ['["transfer",2]']


def test_the_ten_lines_of_the_agent_do_what_the_person_made_of_it(environ, monkeypatch, tmp_path):
    for name in ("STATEROOM_URL", "STATEROOM_API_KEY", "STATEROOM_APPROVER_KEY"):
        monkeypatch.setenv(name, environ[name])
    asking = subprocess.Popen(
        [sys.executable, "-c", ASK], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    timer = threading.Timer(SECONDS_MAX, asking.kill)
    timer.start()
    said = io.StringIO()
    deadline = time.monotonic() + SECONDS_MAX
    while not said.getvalue() and asking.poll() is None and time.monotonic() < deadline:
        with contextlib.redirect_stdout(said):
            exec(compile(DECIDE, "docs/approvals.md", "exec"), {})  # noqa: S102
    out, err = asking.communicate()
    timer.cancel()
    assert asking.returncode == 0, err
    assert said.getvalue().strip() == "Invoice 7 is due on Friday. pay {'amount': 1200, 'to': 'Bob'}"
    assert out.splitlines() == ["paid 900 to Bob"]
    # A program that was stopped runs the same lines again, and finds the answer.
    again = subprocess.run([sys.executable, "-c", ASK], env=environ, capture_output=True, text=True, timeout=60)  # noqa: PLW1510
    assert again.stdout.splitlines() == ["paid 900 to Bob"], again.stderr


def ask(tenant, thread_id, **question):
    with Client(tenant.url, tenant.api_key, subject="ada") as client:
        action = NewAction(tool="pay", args={"amount": 5})
        asked = NewApproval(external_id="q", actions=[action], **question)
        client.thread(thread_id).save({"n": 1}, status="waiting", approvals=[asked])
        [approval] = client.approvals.list(thread=thread_id)
        return approval.approval_id


def test_the_commands_show_exactly_what_would_be_done_and_decide(environ, tenant, tmp_path):
    approval_id = ask(tenant, "shell", message="Pay five?", allowed=["approve", "reject", "edit", "respond"])
    listed = run("stateroom approvals list --status pending --json", environ, tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert approval_id in {json.loads(line)["approval_id"] for line in listed.stdout.splitlines()}
    shown = run(f"stateroom approvals show {approval_id}", environ, tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "amount = 5" in shown.stdout
    assert "Pay five?" in shown.stdout
    told = run(f"stateroom approvals show {approval_id} --json", environ, tmp_path).stdout
    digest = json.loads(told)["content"]["action_hash"]
    assert digest in shown.stdout
    wrong = run(f"stateroom approvals approve {approval_id} --yes --hash {'0' * 64}", environ, tmp_path)
    assert wrong.returncode == 6, wrong.stderr
    assert "action changed" in wrong.stderr.lower()
    refused = run(f"echo n | stateroom approvals approve {approval_id}", environ, tmp_path)
    assert refused.returncode != 0
    done = run(f"echo y | stateroom approvals approve {approval_id}", environ, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "is approved" in done.stderr
    again = run(f"stateroom approvals reject {approval_id} --yes --hash {digest}", environ, tmp_path)
    assert again.returncode == 6, again.stderr


def test_who_asked_does_not_approve_but_may_say_no(environ, tenant, tmp_path):
    approval_id = ask(tenant, "own", message="mine")
    own = environ | {"STATEROOM_APPROVER_KEY": tenant.api_key}
    told = run(f"stateroom approvals show {approval_id} --json", own, tmp_path).stdout
    digest = json.loads(told)["content"]["action_hash"]
    refused = run(f"stateroom approvals approve {approval_id} --yes --hash {digest}", own, tmp_path)
    assert refused.returncode == 4, refused.stderr
    assert "approval not yours" in refused.stderr.lower()
    assert run(f"stateroom approvals reject {approval_id} --yes --hash {digest}", own, tmp_path).returncode == 0


def test_the_page_names_every_status_and_permission_and_the_numbers_that_hold():
    named = {*re.findall(r"`([a-z:]+)`", PAGE)}
    assert {*get_args(ApprovalStatus)} <= named
    assert named >= APPROVAL_PERMISSIONS
    for words in (
        f"more than {APPROVAL_ACTIONS_MAX} actions, or {APPROVAL_CONTENT_BYTES_MAX // 1024} KiB",
        f"{APPROVALS_PENDING_MAX} of the thread wait",
        f"the last {APPROVALS_ENDED_MAX:,} that are over",
    ):
        assert words in PAGE
