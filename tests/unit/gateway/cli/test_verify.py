import json

JOB = "0190a1b2-0000-7000-8000-000000000001"
COUNTS = {
    "threads": 2, "threads_skipped": 1, "threads_frozen": 0, "checkpoints": 3, "pending_writes": 0, "pieces": 4,
    "items_opened": 6, "items_skipped": 5,
}  # fmt: skip


def job(state="done", **members):
    return {
        "job_id": JOB,
        "kind": "verify-tenant",
        "target": {},
        "state": state,
        "progress": {"done": 1, "total": 2},
        "error": None,
        "note": None,
    } | members


def verified(found=None, findings=()):
    return {**COUNTS, "found": found or {}, "findings": list(findings)}


def test_a_tenant_is_verified_by_a_job_that_is_followed_to_its_end(command, gateway):
    gateway.answer({"job_id": JOB}, 202)
    gateway.answer(job(verification=verified()))
    outcome = command("verify", "tenant", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out) == {**COUNTS, "known_losses": 0, "findings": 0}
    assert "verify-tenant: 1 of 2" in outcome.err
    assert [request.path for request in gateway.requests] == ["/v1/verify", f"/v1/jobs/{JOB}"]
    assert gateway.requests[0].method == "POST"


def test_what_an_accepted_restore_lost_is_said_and_is_no_failure(command, gateway):
    for options in ([], ["--json"]):
        gateway.answer({"job_id": JOB}, 202)
        gateway.answer(job(verification=verified() | {"known_losses": 4}))
        outcome = command("verify", "tenant", *options)
        assert outcome.code == 0
        assert "4 anchored heads" in outcome.err
    assert json.loads(outcome.out)["known_losses"] == 4


def test_what_a_job_found_is_printed_and_fails_the_command(command, gateway):
    found = {"code": "piece", "detail": "d", "subject_id": "u\u202e1", "thread_id": "t1"}
    gateway.answer({"job_id": JOB}, 202)
    gateway.answer(job(verification=verified({"piece": 101}, [found])))
    outcome = command("verify", "tenant")
    assert outcome.code == 1
    assert "t1" in outcome.out
    assert "\u202e" not in outcome.out
    assert "piece: 101" in outcome.err


def test_all_tenants_are_verified_as_the_operator(command, gateway):
    found = {"tenant_id": "t", "job_id": "j", "code": "piece", "count": 3}
    gateway.answer({"job_id": JOB}, 202)
    gateway.answer(job(verification=verified({"piece": 3}, [found])))
    outcome = command("verify", "all", "--json")
    assert outcome.code == 1
    assert [json.loads(line) for line in outcome.out.splitlines()] == [
        found,
        {**COUNTS, "known_losses": 0, "findings": 3},
    ]
    assert [request.path for request in gateway.requests] == ["/v1/admin/verify", f"/v1/admin/jobs/{JOB}"]


def test_a_job_that_failed_verified_nothing(command, gateway):
    gateway.answer({"job_id": JOB}, 202)
    gateway.answer(job("failed", error="the tenant key was refused"))
    outcome = command("verify", "tenant")
    assert outcome.code != 0
    assert "refused" in outcome.err


def report(*findings, cursor=None, **counts):
    return {**COUNTS, **counts, "findings": list(findings), "next_cursor": cursor}


DAMAGED = {"thread_id": "t1", "namespace": "", "checkpoint_id": "c1", "code": "checkpoint", "detail": "d\u202e"}


def test_a_thread_that_is_whole_is_counted(command, gateway):
    gateway.answer(report(checkpoints=1_200))
    outcome = command("verify", "thread", "t1", "--subject", "user-1")
    assert (outcome.code, outcome.out) == (0, "")
    assert "1,200 checkpoints" in outcome.err
    assert "0 findings" in outcome.err
    assert (gateway.last.path, gateway.last.body) == ("/v1/threads:verify", {"thread_id": "t1"})
    assert gateway.last.headers["stateroom-subject"] == "user-1"


def test_a_finding_in_a_thread_is_printed_and_fails_the_command(command, gateway):
    gateway.answer(report(DAMAGED))
    outcome = command("verify", "thread", "t1", "--subject", "user-1")
    assert outcome.code == 1
    assert "c1" in outcome.out
    assert "\u202e" not in outcome.out
    assert "1 findings" in outcome.err


def test_all_threads_of_a_subject_are_verified_page_by_page(command, gateway):
    gateway.answer(report(cursor="more"))
    gateway.answer(report(DAMAGED, threads=5))
    outcome = command("verify", "subject", "--subject", "user-1", "--json")
    assert outcome.code == 1
    first, *_, last = [json.loads(line) for line in outcome.out.splitlines()]
    assert first == {"subject": "user-1", **DAMAGED}
    assert (last["threads"], last["checkpoints"], last["findings"]) == (7, 6, 1)
    assert [request.body["cursor"] for request in gateway.requests] == [None, "more"]
