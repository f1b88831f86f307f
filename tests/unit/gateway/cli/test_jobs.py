import pytest
import rich_click as click

from gateway.cli.commands import commands
from gateway.cli.failure import ExitCode

JOB = "0190a1b2-0000-7000-8000-000000000001"
WHEN = "2026-11-21T10:00:00.123456Z"


def job(state="running", waits_for=None, **members):
    return {
        "job_id": JOB, "kind": "rewrap-subject-keys", "target": {}, "state": state,
        "progress": {"done": 0, "total": 2}, "error": None, "note": None, "waits_for": waits_for,
        "created_at": WHEN, "updated_at": WHEN, "damaged": False,
    } | members  # fmt: skip


THREAD = {"thread_id": "t1", "tier": "hot", "archive": None, "created_at": WHEN, "updated_at": WHEN}


def test_a_job_that_waits_says_for_what_while_it_is_followed(command, gateway):
    gateway.answer(job("queued"), 202)
    gateway.answer(job(waits_for="root-key-refused"))
    gateway.answer(job("done"))
    outcome = command("key", "rotate")
    assert outcome.code == 0, outcome.err
    assert "0 of 2, waits for root-key-refused" in outcome.err


@pytest.mark.parametrize("words", [("job", "list"), ("jobs",)])
def test_lists_of_jobs_say_what_each_waits_for(command, gateway, words):
    gateway.answer({"jobs": [job(waits_for="object-store")], "next_cursor": None})
    gateway.answer({"state": "none"})
    assert "object-store" in command(*words).out


@pytest.mark.parametrize("words", [("job", "list"), ("jobs",)])
def test_lists_of_jobs_mark_what_was_edited_outside_the_gateway(command, gateway, words):
    gateway.answer({"jobs": [job("failed", damaged=True)], "next_cursor": None})
    gateway.answer({"state": "none"})
    shown = command(*words).out
    assert "damaged" in shown
    assert "failed" not in shown


def test_a_job_that_was_put_aside_is_shown_as_every_job_is(command, gateway):
    gateway.answer(job("failed", kind="superseded"))
    outcome = command("job", "supersede", JOB)
    assert gateway.last.path == f"/v1/jobs/{JOB}/supersede"
    assert "0 of 2" in outcome.out


@pytest.mark.parametrize(
    ("words", "looks_at", "wait_on"),
    [
        (("key", "rotate"), job(), f"stateroom job show {JOB} --wait"),
        (("key", "rewrap", "--operator"), job(), f"stateroom job show {JOB} --wait --operator"),
        (("subject", "shred", "u", "--confirm", "u"), job(), f"stateroom job show {JOB} --wait"),
        (("archive", "t1"), THREAD, "stateroom archive t1"),
        (("restore", "t1"), THREAD | {"tier": "archive"}, "stateroom restore t1"),
        (("state", "plan", "travel"), job(), f"stateroom job show {JOB} --wait"),
        (("state", "migrate", "travel"), job(), f"stateroom job show {JOB} --wait"),
        (("state", "rollback", "travel"), job(), f"stateroom job show {JOB} --wait"),
        (("verify", "tenant"), job(), f"stateroom job show {JOB} --wait"),
        (("verify", "all"), job(), f"stateroom job show {JOB} --wait --operator"),
    ],
)
def test_a_command_waits_no_longer_than_it_is_told_and_says_how_to_wait_on(command, gateway, words, looks_at, wait_on):
    gateway.answer(job("queued") | {"tombstone": True, "shred_effective_at": WHEN}, 202)
    gateway.answer(looks_at)
    outcome = command(*words, "--timeout", "0")
    assert outcome.code == ExitCode.TIMED_OUT == 7
    assert JOB in outcome.err
    assert wait_on in " ".join(outcome.err.split())
    assert "it goes on" in outcome.err


def test_every_command_that_waits_for_a_job_can_be_told_for_how_long():
    def options(command):
        return {name for parameter in command.params for name in parameter.opts}

    waiting = [words for words, command in leaves(commands) if options(command) & {"--wait", "--detach"}]
    assert len(waiting) >= 8
    assert [
        words for words, command in leaves(commands) if words in waiting and "--timeout" not in options(command)
    ] == []


def leaves(group, path=()):
    for name, inner in group.commands.items():
        if isinstance(inner, click.Group):
            yield from leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


@pytest.mark.parametrize("wait", [("--wait",), ()])
def test_showing_a_job_waits_no_longer_than_it_is_told(command, gateway, wait):
    gateway.answer(job(waits_for="root-key-refused"))
    outcome = command("job", "show", JOB, *wait, "--timeout", "0")
    assert outcome.code == ExitCode.TIMED_OUT
    assert "root-key-refused" in outcome.err


@pytest.mark.parametrize(("words", "path"), [((), "/v1/jobs"), (("--operator",), "/v1/admin/jobs")])
def test_a_job_is_cancelled(command, gateway, words, path):
    gateway.answer(job("failed", error="it was cancelled"))
    outcome = command("job", "cancel", JOB, *words)
    assert outcome.code == 0, outcome.err
    assert "it was cancelled" in outcome.out
    assert (gateway.last.method, gateway.last.path) == ("POST", f"{path}/{JOB}/cancel")
