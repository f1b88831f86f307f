import json

import pytest

from gateway.cli.failure import ExitCode
from tests.unit.gateway.cli.conftest import API_KEY

WHEN = "2026-11-21T10:00:00.123456Z"


def thread(archive=None):
    found = {
        "thread_id": "t1", "agent": None, "status": "active", "tier": "archive" if archive else "hot", "strict": False,
        "client_share": False, "created_at": WHEN, "updated_at": WHEN, "head_id": "c1",
    }  # fmt: skip
    return found | ({"archive": archive} if archive else {})


def archive(state="ready", job_id=None, progress=None):
    return {
        "state": state, "storage_class": "GLACIER", "checkpoints": 3, "pending_writes": 1, "hot_bytes": 1000,
        "size_bytes": 900, "archived_at": WHEN, "retry_after_seconds": 0.0, "progress": progress, "job_id": job_id,
    }  # fmt: skip


def job(state, **members):
    return {
        "job_id": "j1", "kind": "archive", "target": {"subject_id": "user-42", "thread_id": "t1"}, "state": state,
        "progress": {"done": 0, "total": 1}, "error": None,
        "note": None, "created_at": WHEN, "updated_at": WHEN,
    } | members  # fmt: skip


def test_archiving_waits_for_the_job_and_shows_what_became_of_it(command, gateway):
    gateway.answer(job("queued", job_id="j1"), 202)
    gateway.answer(thread())
    gateway.answer(thread(archive()))
    gateway.answer(thread(archive()))
    outcome = command("archive", "t1", "--subject", "user-42", "--storage-class", "GLACIER", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["archive"]["state"] == "ready"
    assert "archiving" in outcome.err
    first = gateway.requests[0]
    assert (first.method, first.path, first.query) == ("POST", "/v1/threads/t1/archive", {"storage_class": "GLACIER"})
    assert first.headers["authorization"] == f"Bearer {API_KEY}"
    assert first.headers["stateroom-subject"] == "user-42"


@pytest.mark.parametrize("words", [("restore", "t1"), ("restore", "thread", "t1"), ("restore", "--subject", "u", "t1")])
def test_a_restore_shows_how_far_the_thaw_is_until_the_thread_is_back(command, gateway, words):
    gateway.answer(job("queued", job_id="j1"), 202)
    gateway.answer(thread(archive("frozen", "j1")))
    gateway.answer(thread(archive("thawing", "j1", 0.25)))
    gateway.answer(thread())
    gateway.answer(thread())
    outcome = command(*words)
    assert outcome.code == 0, outcome.err
    assert gateway.requests[0].path == "/v1/threads/t1/restore"
    assert outcome.err.index("waiting for the thaw") < outcome.err.index("25% of the longest it takes")
    assert "hot" in outcome.out


def test_a_restore_that_is_not_waited_for_names_its_job(command, gateway):
    gateway.answer(job("queued", job_id="j1"), 202)
    outcome = command("restore", "t1", "--detach", "--json")
    assert (outcome.code, json.loads(outcome.out)["job_id"], len(gateway.requests)) == (0, "j1", 1)


def test_a_restore_that_ended_in_vain_is_a_failure_that_says_why(command, gateway):
    gateway.answer(job("queued", job_id="j1"), 202)
    gateway.answer(thread(archive("ready")))
    gateway.answer(thread(archive("ready")))
    gateway.answer(job("failed", error="too large"))
    outcome = command("restore", "t1")
    assert outcome.code == ExitCode.CONFLICT
    assert "too large" in outcome.err


def test_nothing_to_do_is_said(command, gateway):
    gateway.answer(thread())
    gateway.answer(thread())
    outcome = command("restore", "t1")
    assert outcome.code == 0
    assert "already" in outcome.err


def test_jobs_show_who_is_at_what_and_the_round_of_retention(command, gateway):
    page = {"jobs": [job("running"), job("failed", job_id="j2", kind="restore", error="damaged")], "next_cursor": None}
    round_ = {
        "state": "running", "lease_until": WHEN, "due_at": WHEN, "started_at": WHEN, "finished_at": None,
        "looked_at": 500, "hot": 480, "archive": 20, "held": 1, "done": {"archive": 1200}, "due": {},
        "late_since": None,
    }  # fmt: skip
    for arguments in ((), ("--json",)):
        gateway.answer(page)
        gateway.answer(round_)
        outcome = command("jobs", *arguments)
        assert outcome.code == 0, outcome.err
        assert gateway.last.path == "/v1/retention/round"
        for word in ("archive", "restore", "damaged", "running", "500"):
            assert word in outcome.out
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["kind"] for row in rows] == ["archive", "restore", "retention-round"]
    gateway.answer({"jobs": [], "next_cursor": None})
    assert command("jobs", "--operator").code == 0
    assert gateway.last.path == "/v1/admin/jobs"


def test_an_embedded_gateway_has_no_worker_beside_it(command):
    outcome = command("serve", "--embedded", "--no-background")
    assert outcome.code == ExitCode.USAGE
    assert "worker" in outcome.err


def segmented(**segments):
    return thread() | {
        "segments": {"segments": 1, "checkpoints": 4, "pending_writes": 0, "hot_bytes": 10, "size_bytes": 9} | segments
    }


def test_old_checkpoints_are_moved_and_what_is_in_segments_is_shown(command, gateway):
    gateway.answer(job("queued"), 202)
    gateway.answer(job("running"))
    gateway.answer(job("running"))
    gateway.answer(job("done"))
    gateway.answer(segmented())
    outcome = command(
        "archive", "t1", "--older-than", "30d", "--keep", "20", "--keep-first", "1", "--keep-every", "10",
        "--keep-status", "failed", "--storage-class", "GLACIER_IR",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    first = gateway.requests[0]
    assert (first.method, first.path) == ("POST", "/v1/threads/t1/archive")
    assert first.query == {
        "older_than_seconds": "2592000", "keep_last": "20", "keep_first": "1", "keep_every": "10",
        "keep_status": "failed", "storage_class": "GLACIER_IR",
    }  # fmt: skip
    assert "checkpoints" in outcome.out
    assert "4" in outcome.out


def test_who_may_not_see_jobs_is_told_the_job_that_moves_old_checkpoints(command, gateway):
    gateway.answer(job("queued"), 202)
    gateway.refuse(403, "permission-denied")
    gateway.answer(thread())
    outcome = command("archive", "t1", "--keep", "2", "--json")
    assert outcome.code == 0, outcome.err
    assert "Job j1" in outcome.err
    assert json.loads(outcome.out)["tier"] == "hot"


@pytest.mark.parametrize("words", [("--older-than", "soon"), ("--keep", "-1"), ("--keep-every", "0")])
def test_what_says_nothing_of_age_or_number_is_refused_before_anything_is_asked(command, gateway, words):
    assert command("archive", "t1", *words).code == ExitCode.USAGE
    assert gateway.requests == []


def test_a_restore_waits_until_nothing_is_in_segments(command, gateway):
    gateway.answer(job("queued"), 202)
    gateway.answer(segmented())
    gateway.answer(segmented(checkpoints=2))
    gateway.answer(thread())
    gateway.answer(thread())
    outcome = command("restore", "t1")
    assert outcome.code == 0, outcome.err
    assert "restoring" in outcome.err
    assert len(gateway.requests) == 5


def test_one_segment_is_restored_and_the_numbers_of_the_others_are_shown(command, gateway):
    gateway.answer(job("queued"), 202)
    gateway.answer(job("running"))
    gateway.answer(job("done"))
    ranges = [{"segment": each, "volume": 1, "first_id": "a", "last_id": "b", "checkpoints": 2} for each in (3, 12)]
    restoring = {"job_id": "j9", "state": "thawing", "retry_after_seconds": 60.0, "progress": 0.5}
    gateway.answer(segmented(ranges=ranges, restoring=restoring))
    outcome = command("restore", "t1", "--segment", "7")
    assert outcome.code == 0, outcome.err
    first = gateway.requests[0]
    assert (first.method, first.path, first.query) == ("POST", "/v1/threads/t1/restore", {"segment": "7"})
    assert "3, 12" in outcome.out
    assert "thawing" in outcome.out
    gateway.answer(thread())
    gateway.answer(thread())
    outcome = command("restore", "t1", "--segment", "7")
    assert "in the hot tier already" in outcome.err
    gateway.refuse(422, "invalid-request")
    assert command("restore", "t1", "--segment", "7").code != 0
    assert command("restore", "t1", "--segment", "0").code == ExitCode.USAGE
