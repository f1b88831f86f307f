import io
import json
from datetime import UTC, datetime, timedelta

import pytest

from gateway.cli.local import serving
from gateway.cli.main import run
from tests.unit.gateway.cli.conftest import API_KEY, OPERATOR_KEY

WHEN = "2026-11-21T10:00:00.123456Z"
SECRET = "sr_live_shown_once"


def thread(thread_id="t1", **members):
    return {
        "thread_id": thread_id,
        "agent": "travel",
        "status": "active",
        "tier": "hot",
        "strict": False,
        "created_at": WHEN,
        "updated_at": WHEN,
        "head_id": "c1",
    } | members


def checkpoint(checkpoint_id, state=None, **members):
    found = {
        "thread_id": "t1",
        "namespace": "",
        "checkpoint_id": checkpoint_id,
        "parent_id": None,
        "step": 1,
        "status": "active",
        "source": "loop",
        "agent": None,
        "run_id": None,
        "created_at": WHEN,
        "state_schema": None,
        "state_version": None,
        "model": None,
        "usage": None,
        "metadata": {},
        "delta_channels": [],
    } | members
    return found if state is None else found | {"state": state, "pending_writes": []}


def api_key(**members):
    return {
        "key_id": "k1",
        "kind": "service",
        "name": "",
        "tenant_id": "00000000-0000-0000-0000-000000000001",
        "subject_id": None,
        "permissions": ["state:read"],
        "created_at": WHEN,
        "expires_at": None,
        "revoked_at": None,
        "last_used_at": None,
    } | members


def test_a_tenant_is_created_by_the_operator_and_its_key_printed_once(command, gateway):
    gateway.answer({"tenant_id": "t", "name": "acme", "created_at": WHEN, "api_key": SECRET}, 201)
    outcome = command("tenant", "create", "acme")
    assert outcome.code == 0
    assert (outcome.out + outcome.err).count(SECRET) == 1
    assert gateway.last.method == "POST"
    assert gateway.last.path == "/v1/admin/tenants"
    assert gateway.last.body == {"name": "acme"}
    assert gateway.last.headers["authorization"] == f"Bearer {OPERATOR_KEY}"


def test_an_operator_command_never_names_a_subject(command, gateway, environment):
    environment.setenv("STATEROOM_SUBJECT", "user-42")
    gateway.answer({"tenants": [], "next_cursor": None})
    command("tenant", "list")
    assert "stateroom-subject" not in gateway.last.headers


def test_a_new_key_in_json_is_the_apis_own_answer(command, gateway):
    answer = api_key(api_key=SECRET)
    gateway.answer(answer, 201)
    outcome = command("api-key", "create", "--name", "ci", "--permission", "state:read", "--json")
    assert json.loads(outcome.out) == answer
    assert gateway.last.body == {"kind": "service", "name": "ci", "permissions": ["state:read"]}


def test_a_key_for_a_subject_ends_when_it_was_asked_to(command, gateway):
    gateway.answer(api_key(kind="subject", subject_id="user-42", api_key=SECRET), 201)
    command("api-key", "create", "--subject", "user-42", "--expires", "90d")
    body = gateway.last.body
    assert body["kind"] == "subject"
    assert body["subject_id"] == "user-42"
    ends = datetime.fromisoformat(body["expires_at"])
    assert abs(ends - datetime.now(UTC) - timedelta(days=90)) < timedelta(minutes=1)


def test_listed_keys_show_no_secret_and_revoking_names_the_key(command, gateway):
    gateway.answer({"api_keys": [api_key()], "next_cursor": None})
    assert "k1" in command("api-key", "list").out
    gateway.answer(None, 204)
    assert command("api-key", "revoke", "k1").code == 0
    assert (gateway.last.method, gateway.last.path) == ("DELETE", "/v1/api-keys/k1")
    assert gateway.last.headers["authorization"] == f"Bearer {API_KEY}"


def test_how_the_last_key_that_administers_is_revoked_is_hinted_at(command, gateway):
    gateway.refuse(409, "last-admin-key")
    outcome = command("api-key", "revoke", "k1")
    assert outcome.code == 6
    assert "--force" in outcome.err


def test_a_listing_follows_cursors_and_prints_one_document_a_line(command, gateway):
    gateway.answer({"threads": [thread("a")], "next_cursor": "next"})
    gateway.answer({"threads": [], "next_cursor": "more"})
    gateway.answer({"threads": [thread("b")], "next_cursor": None})
    outcome = command("thread", "list", "--all", "--json", "--subject", "user-42", "--status", "failed")
    assert [json.loads(line)["thread_id"] for line in outcome.out.splitlines()] == ["a", "b"]
    assert [request.query.get("cursor") for request in gateway.requests] == [None, "next", "more"]
    assert gateway.last.query["status"] == "failed"
    assert gateway.last.headers["stateroom-subject"] == "user-42"


def test_a_cut_listing_says_that_there_is_more_and_asks_for_no_more_than_that(command, gateway):
    gateway.answer({"threads": [thread("a"), thread("b"), thread("c")], "next_cursor": "next"})
    outcome = command("thread", "list", "--limit", "2")
    assert "c1" in outcome.out
    assert [line.split()[0] for line in outcome.out.splitlines()[2:]] == ["a", "b"]
    assert "There is more" in outcome.err
    assert gateway.last.query["limit"] == "3"


def test_an_unusual_thread_id_travels_encoded(command, gateway):
    gateway.answer(thread("a/b?"))
    assert command("thread", "show", "a/b?", "--json").code == 0
    assert gateway.last.raw_path == "/v1/threads/~YS9iPw"


def test_deleting_a_thread_asks_first(command, gateway, environment):
    for answer in ("", "n\n"):
        environment.setattr("sys.stdin", io.StringIO(answer))
        assert command("thread", "delete", "t1").code == 1
    assert gateway.requests == []
    gateway.answer(None, 204)
    environment.setattr("sys.stdin", io.StringIO("y\n"))
    assert command("thread", "delete", "t1").code == 0
    gateway.answer(None, 204)
    assert command("thread", "delete", "t1", "--yes").code == 0
    assert (gateway.last.method, gateway.last.path) == ("DELETE", "/v1/threads/t1")


def test_only_the_named_settings_are_sent(command, gateway):
    gateway.answer(thread(strict=True))
    command("thread", "settings", "t1", "--strict")
    assert gateway.last.body == {"strict": True}
    gateway.answer(thread(agent=None))
    command("thread", "settings", "t1", "--agent", "")
    assert gateway.last.body == {"agent": None}


def test_a_copy_names_its_target(command, gateway):
    gateway.answer({"thread_id": "t2", "checkpoints": 3, "pending_writes": 1}, 201)
    outcome = command("thread", "copy", "t1", "t2")
    assert gateway.last.path == "/v1/threads/t1/copy"
    assert gateway.last.body == {"target_thread_id": "t2"}
    assert outcome.code == 0


def test_which_agents_failed_at_step_5_in_the_last_day(command, gateway):
    gateway.answer({"checkpoints": [checkpoint("c9", agent="travel", step=5)], "next_cursor": None})
    outcome = command("checkpoint", "list", "--status", "failed", "--step", "5", "--since", "24h")
    assert "travel" in outcome.out
    assert gateway.last.path == "/v1/checkpoints"
    since = datetime.fromisoformat(gateway.last.query["since"])
    assert abs(datetime.now(UTC) - since - timedelta(hours=24)) < timedelta(minutes=1)
    assert gateway.last.query["step"] == "5"


def test_the_root_namespace_can_be_asked_for(command, gateway):
    gateway.answer({"checkpoints": [], "next_cursor": None})
    command("checkpoint", "list", "t1", "--namespace", "")
    assert gateway.last.query["namespace"] == ""


def test_showing_a_checkpoint_prints_its_state_without_driving_the_terminal(command, gateway):
    gateway.answer(checkpoint("c1", {"note": "ring \x1b[31mred\x9b[0m"}))
    outcome = command("checkpoint", "show", "t1")
    assert gateway.last.path == "/v1/threads/t1/checkpoints/latest"
    assert '"note"' in outcome.out
    assert "\x1b" not in outcome.out
    assert "\x9b" not in outcome.out


def test_the_artifacts_that_a_checkpoint_names_are_shown_if_asked_for(command, gateway):
    artifacts = {"a1": {"name": "shot \x1b[31m.png", "media_type": "image/png", "size_bytes": 3, "preview": "cA=="}}
    gateway.answer({**checkpoint("c1", {"shot": "stateroom:artifact:a1"}), "artifacts": artifacts})
    outcome = command("checkpoint", "show", "t1", "--artifacts")
    assert gateway.last.query["resolve"] == "previews"
    assert "a1: " in outcome.out
    assert "image/png" in outcome.out
    assert "\x1b" not in outcome.out
    gateway.answer(checkpoint("c1", {}))
    command("checkpoint", "show", "t1")
    assert "resolve" not in gateway.last.query
    assert command("checkpoint", "show", "t1", "--artifacts", "--no-state").code == 2


def test_a_difference_defaults_to_what_the_latest_checkpoint_changed(command, gateway):
    gateway.answer(checkpoint("c2", {"done": ["a", "b"], "n": 2}, parent_id="c1", step=2))
    gateway.answer(checkpoint("c1", {"done": ["a"], "n": 1, "old": True}))
    outcome = command("checkpoint", "diff", "t1", "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert (found["from"]["checkpoint_id"], found["to"]["checkpoint_id"]) == ("c1", "c2")
    assert found["changes"] == [
        {"path": "/done/1", "kind": "added", "after": "b"},
        {"path": "/n", "kind": "changed", "before": 1, "after": 2},
        {"path": "/old", "kind": "removed", "before": True},
    ]
    assert [request.path for request in gateway.requests] == [
        "/v1/threads/t1/checkpoints/latest",
        "/v1/threads/t1/checkpoints/c1",
    ]


def test_a_difference_is_readable_and_can_speak_by_exit_code(command, gateway):
    for _ in range(2):
        gateway.answer(checkpoint("c2", {"n": 2}, parent_id="c1", step=2))
        gateway.answer(checkpoint("c1", {"n": 1}))
    outcome = command("checkpoint", "diff", "t1", "c1", "c2")
    assert outcome.code == 0
    assert "~ /n\n    - 1\n    + 2\n" in outcome.out
    assert outcome.err == "0 added, 0 removed, 1 changed\n"
    assert command("checkpoint", "diff", "t1", "c1", "c2", "--exit-code").code == 1


def test_a_first_checkpoint_differs_from_nothing(command, gateway):
    gateway.answer(checkpoint("c1", {"n": 1}))
    outcome = command("checkpoint", "diff", "t1")
    assert "there is no parent" in outcome.out
    assert "+ /n" in outcome.out


def test_channels_rebuilt_from_writes_are_named_as_not_compared(command, gateway):
    gateway.answer(checkpoint("c1", {}, delta_channels=["messages"]))
    assert "messages" in command("checkpoint", "diff", "t1").err


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, "subject-required", 2),
        (401, "unauthenticated", 4),
        (403, "permission-denied", 4),
        (403, "subject-mismatch", 4),
        (404, "thread-not-found", 3),
        (404, "not-found", 3),
        (409, "thread-exists", 6),
        (422, "invalid-request", 1),
        (503, "draining", 5),
        (429, "tenant-busy", 5),
        (500, "internal", 1),
    ],
)
def test_a_problem_is_told_with_its_code_and_request_id(command, gateway, status, code, exit_code):
    gateway.refuse(status, code)
    outcome = command("thread", "show", "t1")
    assert outcome.code == exit_code
    assert outcome.out == ""
    assert f"detail of {code}" in outcome.err
    assert f"code: {code}" in outcome.err
    assert "request id: r-77" in outcome.err
    assert "Traceback" not in outcome.err
    assert API_KEY not in outcome.err


def test_a_problem_names_the_place_of_the_fault(command, gateway):
    gateway.refuse(422, "invalid-request", errors=[{"detail": "too long", "pointer": "/name"}])
    assert "/name: too long" in command("tenant", "create", "x").err


def test_a_subject_that_is_missing_is_hinted_at(command, gateway):
    gateway.refuse(400, "subject-required")
    assert "--subject" in command("thread", "list").err


@pytest.mark.parametrize("url", ["ftp://host", "http://user:pw@host", "nonsense"])
def test_a_url_that_is_none_is_refused_before_anything_is_sent(url, capsys, environment):
    environment.setenv("STATEROOM_API_KEY", API_KEY)
    assert run(["thread", "list", "--url", url]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_when_nobody_listens_that_is_said_at_once(capsys, environment):
    environment.setenv("STATEROOM_API_KEY", API_KEY)
    with serving.bind("127.0.0.1", 0) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert run(["thread", "list", "--url", url]) == 5
    errors = capsys.readouterr().err
    assert "refused" in errors
    assert "stateroom serve --embedded" in errors


def test_something_else_at_the_url_is_no_gateway(command, gateway):
    gateway.answers.append((200, {"hello": "world"}, "text/html"))
    outcome = command("thread", "show", "t1")
    assert outcome.code == 5
    assert "Traceback" not in outcome.err


def test_threads_of_all_subjects_are_listed_with_whose_they_are(command, gateway):
    thread = {"thread_id": "t", "agent": None, "status": "done", "tier": "hot", "strict": False, "head_id": "c"}
    thread["updated_at"] = "2026-11-22T10:00:00Z"
    gateway.answer({"subjects": [{"subject_id": "u1"}, {"subject_id": "u2"}], "next_cursor": None})
    gateway.answer({"threads": [thread], "next_cursor": None})
    gateway.answer({"threads": [thread | {"thread_id": "other"}], "next_cursor": None})
    outcome = command("thread", "list", "--all-subjects", "--status", "done")
    assert outcome.code == 0, outcome.err
    assert [each.headers.get("stateroom-subject") for each in gateway.requests] == [None, "u1", "u2"]
    assert [each.path for each in gateway.requests] == ["/v1/subjects", "/v1/threads", "/v1/threads"]
    assert [line.split()[:2] for line in outcome.out.splitlines() if line.startswith("u")] == [
        ["u1", "t"], ["u2", "other"]
    ]  # fmt: skip


def test_subjects_are_listed(command, gateway):
    gateway.answer({"subjects": [{"subject_id": "u1"}, {"subject_id": "u\u202e2"}], "next_cursor": None})
    outcome = command("subject", "list")
    assert "u1" in outcome.out
    assert "u\\u202e2" in outcome.out


def test_a_tenants_checkpoints_are_listed_with_whose_they_are(command, gateway):
    found = {"checkpoint_id": "c", "thread_id": "t", "namespace": "", "step": 1, "status": "done"}
    gateway.answer({"checkpoints": [found | {"subject_id": "u1"}], "next_cursor": None})
    assert "Subject" in command("checkpoint", "list").out
    gateway.answer({"checkpoints": [found], "next_cursor": None})
    assert "Subject" not in command("checkpoint", "list").out


def test_a_thread_is_forked_compacted_and_pruned(command, gateway):
    receipt = {"thread_id": "t", "checkpoint_id": "new", "created_at": "2026-11-22T10:00:00Z"}
    gateway.answer({"thread_id": "t", "head_id": "head"})
    older = {"status": "waiting", "agent": "a", "metadata": {"k": 1}, "state_schema": "s", "state_version": 2}
    gateway.answer({"checkpoint_id": "old", "step": 3, **older})
    gateway.answer(receipt, 201)
    outcome = command("thread", "fork", "t", "old")
    assert outcome.code == 0, outcome.err
    assert gateway.last.headers["if-match"] == '"head"'
    forked = {"changes": {}, "parent_id": "old", "fork": True, "source": "fork"}
    assert gateway.last.body == older | forked
    gateway.answer(receipt, 201)
    assert command("thread", "compact", "t", "messages", "--keep-last", "4", "--summary", "so far").code == 0
    assert gateway.last.path == "/v1/threads/t/compact"
    assert gateway.last.body == {"channel": "messages", "keep_last": 4, "namespace": "", "summary": "so far"}
    gateway.answer({"threads": 2, "checkpoints": 9, "pending_writes": 0})
    assert command("thread", "prune", "t", "u", "--yes").code == 0
    assert (gateway.last.path, gateway.last.body["strategy"]) == ("/v1/threads:prune", "keep_latest")
