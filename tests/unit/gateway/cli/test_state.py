import json
import subprocess
from pathlib import Path

import msgspec
import pytest

from gateway.cli.failure import ExitCode
from gateway.wire.checkpoints import Checkpoint, WriteOut

JOB = "0190a1b2-0000-7000-8000-000000000002"
REPORT = {
    "heads": 7, "current": 1, "changed": 3, "waiting": 1, "recent": 0, "shared": 1, "archived": 0, "moved": 0,
    "gone": 0, "failed": 0, "failures": [], "samples": [],
}  # fmt: skip
UNVERSIONED = [{"agent": "old\u202e", "threads": 1_234}, {"agent": None, "threads": 5}]
EXAMPLE = Path(__file__).parents[4] / "examples" / "state_schemas"


def version(number, **members):
    return {
        "state_schema": "travel",
        "state_version": number,
        "label": None,
        "json_schema": None,
        "ephemeral": [],
        "searchable": [],
        "up": None,
        "down": None,
        "deployment": None,
        "created_at": "2026-11-22T10:00:00Z",
    } | members


def job(kind, state="done", **members):
    return {
        "job_id": JOB,
        "kind": kind,
        "target": {"state_schema": "travel", "state_version": 2},
        "state": state,
        "progress": {"done": 7, "total": 7},
        "error": None,
        "note": None,
        "created_at": "2026-11-22T10:00:00Z",
        "updated_at": "2026-11-22T10:00:09Z",
        "migration": REPORT,
    } | members


def answer_job(gateway, kind, **members):
    gateway.answer(job(kind, "queued"), 202)
    gateway.answer(job(kind, **members))
    gateway.answer({"state_schema": "travel", "newest_version": 2, "heads": [], "unversioned": [], "jobs": []})


def test_a_version_is_registered_as_its_file_defines_it(command, gateway, tmp_path):
    definition = {"up": [{"op": "rename", "from": "/a", "to": "/b"}], "ephemeral": ["scratch"]}
    (tmp_path / "v2.json").write_text(json.dumps(definition))
    gateway.answer(version(2, **definition), 201)
    outcome = command("state", "schema", "register", "travel", "2", str(tmp_path / "v2.json"), "--label", "2.0.0")
    assert outcome.code == 0
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/state-schemas/travel/versions/2")
    assert gateway.last.body == definition | {"label": "2.0.0"}
    assert "1 operations" in outcome.out
    assert "scratch" in outcome.out


def test_a_version_without_a_file_has_no_rules_or_those_of_the_deployment(command, gateway):
    gateway.answer(version(1), 201)
    assert command("state", "schema", "register", "travel", "1").code == 0
    assert gateway.last.body == {}
    gateway.answer(version(2, deployment="travel"), 200)
    outcome = command("state", "schema", "register", "travel", "2", "--deployment", "travel", "--json")
    assert gateway.last.body == {"deployment": "travel"}
    assert json.loads(outcome.out)["deployment"] == "travel"


@pytest.mark.parametrize("content", [b"{", b"[]", b'"text"', b"\xff"])
def test_a_file_that_defines_nothing_is_not_sent(command, gateway, tmp_path, content):
    (tmp_path / "v2.json").write_bytes(content)
    outcome = command("state", "schema", "register", "travel", "2", str(tmp_path / "v2.json"))
    assert outcome.code == ExitCode.USAGE
    assert gateway.requests == []


def test_a_refusal_names_the_place_in_the_definition(command, gateway):
    gateway.refuse(422, "invalid-request", errors=[{"detail": "no such member", "pointer": "/up/0/form"}])
    outcome = command("state", "schema", "register", "travel", "2")
    assert outcome.code == 1
    assert "/up/0/form: no such member" in outcome.err


def test_schemas_are_listed_and_shown(command, gateway):
    gateway.answer({"state_schemas": [{"state_schema": "travel", "newest_version": 2}], "next_cursor": None})
    assert "travel" in command("state", "schema", "list").out
    versions = [version(1, label="1.0"), version(2, up=[{"op": "remove", "path": "/a\u202e"}], damaged=True)]
    answer = {"state_schema": "travel", "newest_version": 2, "versions": versions}
    gateway.answer(answer)
    shown = command("state", "schema", "show", "travel")
    assert shown.code == 0
    assert "1 operations" in shown.out
    assert [line.split()[-1] for line in shown.out.splitlines()[-2:]] == ["ok", "damaged"]
    gateway.answer(answer)
    whole = command("state", "schema", "show", "travel", "2")
    assert "/a\\u202e" in whole.out
    gateway.answer(answer)
    assert command("state", "schema", "show", "travel", "3").code == ExitCode.NOT_FOUND
    gateway.answer(answer)
    assert [
        json.loads(line)["state_version"]
        for line in command("state", "schema", "show", "travel", "--json").out.splitlines()
    ] == [1, 2]
    gateway.refuse(404, "state-schema-not-found")
    assert command("state", "schema", "show", "travle").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    ("verb", "options", "body"),
    [
        ("plan", (), {}),
        ("plan", ("--to", "2", "--idle-seconds", "0"), {"target_version": 2, "idle_seconds": 0}),
        ("migrate", ("--to", "2", "--threads-per-second", "9"), {"target_version": 2, "threads_per_second": 9}),
        ("rollback", ("--threads-per-second", "9"), {"threads_per_second": 9}),
    ],
)
def test_a_job_is_started_followed_and_reported(command, gateway, verb, options, body):
    answer_job(gateway, f"state-{verb}")
    outcome = command("state", verb, "travel", *options)
    assert outcome.code == 0, outcome.err
    assert [request.path for request in gateway.requests] == [
        f"/v1/state-schemas/travel/{verb}",
        f"/v1/jobs/{JOB}",
        "/v1/state-schemas/travel/status",
    ]
    assert (gateway.requests[0].method, gateway.requests[0].body) == ("POST", body)
    assert "changed   3" in outcome.out
    assert f"state-{verb}: 7 of 7" in outcome.err
    assert "1 shared: under a client-held share" in outcome.err
    assert "recent:" not in outcome.err


@pytest.mark.parametrize(
    ("verb", "report", "code", "said"),
    [
        ("migrate", {"current": 7}, 0, "All 7 heads were at the version already"),
        ("migrate", {"current": 5, "recent": 2}, 1, "nothing was migrated: 2 recent"),
        ("migrate", {"archived": 7}, 1, "nothing was migrated: 7 archived"),
        ("migrate", {"heads": 0}, 1, "no state is saved under 'travel'"),
        ("rollback", {"current": 7}, 1, "no head is one that a migration saved"),
        ("rollback", {"current": 5, "waiting": 2}, 1, "nothing was rolled back: 2 waiting"),
        ("plan", {"recent": 7}, 0, "7 recent"),
    ],
)
def test_nothing_changed_is_no_success_unless_there_was_nothing_to_change(command, gateway, verb, report, code, said):
    nothing = {"current": 0, "changed": 0, "waiting": 0, "shared": 0}
    answer_job(gateway, f"state-{verb}", migration=REPORT | nothing | report)
    outcome = command("state", verb, "travel")
    assert (outcome.code, said in outcome.err) == (code, True), outcome.err


def test_a_job_can_be_left_to_itself(command, gateway):
    gateway.answer({"job_id": JOB}, 202)
    outcome = command("state", "migrate", "travel", "--detach", "--json")
    assert json.loads(outcome.out) == {"job_id": JOB}
    assert len(gateway.requests) == 1


def test_a_plan_shows_samples_by_place_and_type(command, gateway):
    change = {"pointer": "/user_pref", "before": "object of 2", "after": None}
    sample = {
        "subject_id": "u1",
        "thread_id": "t\u202e1",
        "namespace": "inner",
        "checkpoint_id": "c",
        "from_version": 1,
        "changes": [change],
    }
    answer_job(gateway, "state-plan", migration=REPORT | {"samples": [sample]})
    outcome = command("state", "plan", "travel")
    assert "u1 t\\u202e1 inner (from version 1)" in outcome.out
    assert "/user_pref: object of 2 -> -" in outcome.out


def test_heads_that_cannot_be_converted_fail_the_command(command, gateway):
    failure = {"step": "v1_to_v2", "pointer": "/name", "detail": "only text can be split", "heads": 2}
    answer_job(gateway, "state-plan", migration=REPORT | {"failed": 2, "failures": [failure]})
    outcome = command("state", "plan", "travel", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["failed"] == 2
    assert "2 at v1_to_v2 /name: only text can be split" in outcome.err


def test_a_job_that_fails_fails_the_command(command, gateway):
    gateway.answer({"job_id": JOB}, 202)
    gateway.answer(job("state-migrate", "failed", error="the tenant key was refused"))
    outcome = command("state", "migrate", "travel")
    assert outcome.code == 1
    assert "refused" in outcome.err


def test_status_shows_versions_and_jobs(command, gateway):
    heads = [{"state_version": 1, "heads": 4_999}, {"state_version": 2, "heads": 1}]
    jobs = [
        job("state-migrate", "running", progress={"done": 3, "total": 7}),
        job("state-plan", progress={"done": 7, "total": None}),
    ]
    gateway.answer(
        {"state_schema": "travel", "newest_version": 2, "heads": heads, "unversioned": UNVERSIONED, "jobs": jobs}
    )
    outcome = command("state", "status", "travel")
    assert "4,999" in outcome.out
    assert "1,234 threads of agent old\\u202e were saved without a version" in outcome.err
    assert "5 threads of no agent" in outcome.err
    assert "stateroom state adopt travel VERSION --agent NAME" in outcome.err
    assert "state-migrate to version 2: running, 3 of 7" in outcome.out
    assert "state-plan to version 2: done, 7 (" in outcome.out


def test_state_is_adopted_for_an_agent_or_for_none_and_never_by_leaving_it_out(command, gateway):
    adoption = {
        "state_schema": "travel", "state_version": 1, "agent": "travel", "namespace": "", "damaged": False,
        "adopted_at": "2026-11-22T10:00:00Z",
    }  # fmt: skip
    gateway.answer(adoption, 201)
    outcome = command("state", "adopt", "travel", "1", "--agent", "travel")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("POST", "/v1/state-schemas/travel/adoptions")
    assert gateway.last.body == {"agent": "travel", "state_version": 1, "namespace": "", "supersede": False}
    gateway.answer(adoption | {"agent": None}, 200)
    command("state", "adopt", "travel", "1", "--no-agent", "--namespace", "billing:*", "--supersede", "--json")
    assert gateway.last.body == {"agent": None, "state_version": 1, "namespace": "billing:*", "supersede": True}
    assert command("state", "adopt", "travel", "1").code == ExitCode.USAGE
    gateway.answer({"adoptions": [adoption | {"damaged": True}]})
    assert "damaged" in command("state", "adoptions", "travel").out
    gateway.refuse(409, "adoption-built-on")
    assert command("state", "adopt", "travel", "2", "--agent", "travel", "--supersede").code == ExitCode.CONFLICT


# --- on this machine ---------------------------------------------------------------------------------------------


@pytest.fixture
def local(command, tmp_path):
    folder = tmp_path / "steps"
    return folder, lambda verb, *arguments: command("state", verb, *arguments, "--folder", str(folder))


def recorded(folder, step, schema="travel"):
    return json.loads((folder / schema / "recorded" / f"{step}.json").read_text())["cases"]


def test_the_example_keeps_its_promises(command):
    outcome = command("state", "test", "--folder", str(EXAMPLE))
    assert outcome.code == 0, outcome.out
    assert "2 steps of 1 schemas, 7 recorded states: 0 findings" in outcome.err


def test_a_new_version_can_be_tested_as_it_is_made(local):
    folder, run = local
    made = run("new-version", "travel")
    assert made.out.splitlines() == [
        str(folder / "travel" / "v1_to_v2.py"),
        str(folder / "travel" / "recorded" / "v1_to_v2.json"),
    ]
    assert "no state is recorded" in run("test").out
    assert run("test", "--accept").code == 0
    assert run("test").code == 0


def test_the_next_version_begins_with_what_the_step_before_makes(local):
    folder, run = local
    run("new-version", "travel")
    step = folder / "travel" / "v1_to_v2.py"
    step.write_text("def upcast(state):\n    return {'b': state['a']} if 'a' in state else {}\n")
    states = folder / "travel" / "recorded" / "v1_to_v2.json"
    states.write_text(json.dumps({"cases": [{"name": "one", "before": {"a": {"$bytes": "AQI="}}}]}))
    assert run("test", "--accept").code == 0
    assert recorded(folder, "v1_to_v2")[0]["after"] == {"b": {"$bytes": "AQI="}}
    run("new-version", "travel")
    assert recorded(folder, "v2_to_v3") == [{"name": "one", "before": {"b": {"$bytes": "AQI="}}}]


def test_a_declared_step_is_made_and_tested_too(local):
    folder, run = local
    made = run("new-version", "travel", "--declared")
    assert [Path(line).name for line in made.out.splitlines()] == ["v1.json", "v2.json", "v1_to_v2.json"]
    states = folder / "travel" / "recorded" / "v1_to_v2.json"
    states.write_text(json.dumps({"cases": [{"name": "one", "before": {"old_name": 1}}]}))
    assert run("test", "--accept").code == 0
    assert recorded(folder, "v1_to_v2")[0]["after"] == {"new_name": 1}
    assert run("new-version", "travel", "--declared").out.splitlines()[0].endswith("v3.json")


def test_what_a_step_makes_must_fit_the_json_schema_of_its_version(local):
    folder, run = local
    run("new-version", "travel")
    states = folder / "travel" / "recorded" / "v1_to_v2.json"
    states.write_text(json.dumps({"cases": [{"name": "one", "before": {"a": "secret"}}]}))
    definition = folder / "travel" / "v2.json"
    schema = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    definition.write_text(json.dumps({"deployment": "travel", "json_schema": schema}))
    assert run("test", "--accept").code == 0
    schema["properties"]["a"]["type"] = "integer"
    definition.write_text(json.dumps({"deployment": "travel", "json_schema": schema}))
    outcome = run("test")
    assert outcome.code == 1
    assert "does not fit the JSON Schema of version 2, at /a" in outcome.out
    assert "secret" not in outcome.out
    definition.write_text(json.dumps({"deployment": "travel", "json_schema": {"type": "no such type"}}))
    assert "no usable JSON Schema" in run("test").err


def test_what_a_step_makes_otherwise_is_shown_and_fails(local):
    folder, run = local
    run("new-version", "travel")
    states = folder / "travel" / "recorded" / "v1_to_v2.json"
    states.write_text(json.dumps({"cases": [{"name": "one", "before": {"a": 1}, "after": {"a": 2}}]}))
    outcome = run("test")
    assert outcome.code == 1
    assert "travel v1_to_v2: one: it makes something else" in outcome.out
    assert "- 2" in outcome.out
    assert "+ 1" in outcome.out
    (line, *_) = run("test", "--json").out.splitlines()
    assert json.loads(line)["step"] == "v1_to_v2"


def test_accepting_writes_nothing_where_nothing_changed_and_nothing_of_a_step_that_fails(local):
    folder, run = local
    run("new-version", "travel")
    run("test", "--accept")
    assert "recorded" not in run("test", "--accept").err.split("0 findings")[0].replace("recorded states", "")
    before = (folder / "travel" / "recorded" / "v1_to_v2.json").read_bytes()
    (folder / "travel" / "v1_to_v2.py").write_text("def upcast(state):\n    raise ValueError('secret')\n")
    outcome = run("test", "--accept")
    assert outcome.code == 1
    assert "secret" not in outcome.err
    assert (folder / "travel" / "recorded" / "v1_to_v2.json").read_bytes() == before


def test_the_state_of_a_thread_is_recorded_as_it_is_shown(local, gateway):
    folder, run = local
    state = {"user_pref": {"seat": "window"}, "photo": {"$bytes": "AQI="}, "~langgraph": {}, "branch:to:ask": None}
    writes = [
        {"task_id": "t", "idx": 0, "channel": "user_pref", "value": {"seat": "aisle"}},
        {"task_id": "t", "idx": -3, "channel": "__interrupt__", "value": []},
    ]
    gateway.answer({"thread_id": "trip-7", "state": state, "pending_writes": writes})
    outcome = run("new-version", "travel", "--from-thread", "trip-7", "--subject", "user-42")
    assert gateway.last.path == "/v1/threads/trip-7/checkpoints/latest"
    assert gateway.last.query["view"] == "state"
    (case,) = recorded(folder, "v1_to_v2")
    assert case["before"] == {"user_pref": {"seat": "window"}, "photo": {"$bytes": "AQI="}}
    assert case["writes"] == [{"channel": "user_pref", "value": {"seat": "aisle"}}]
    assert "replace what is personal" in outcome.err
    assert run("test", "--accept").code == 0
    assert recorded(folder, "v1_to_v2")[0]["writes"][0]["becomes"] == {"user_pref": {"seat": "aisle"}}


def test_what_is_recorded_of_a_thread_has_the_names_that_the_api_has():
    assert {"thread_id", "state", "pending_writes"} <= {field.name for field in msgspec.structs.fields(Checkpoint)}
    assert {"channel", "value"} <= {field.name for field in msgspec.structs.fields(WriteOut)}


@pytest.mark.parametrize("name", ["Travel", "tra-vel", "../travel", "travel/..", "", "1travel"])
def test_a_name_that_cannot_be_a_schemas_makes_nothing(local, name):
    folder, run = local
    assert run("new-version", name).code == ExitCode.USAGE
    assert not folder.exists()


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("travel/v1_to_v2.py", "upcast = None", "upcast"),
        ("travel/notes.py", "", "v<from>_to_v<to>.py"),
        ("travel/v2_to_v1.py", "def upcast(state): return state", "cycle"),
        ("travel/notes.json", "{}", "v<number>.json"),
        ("travel/v2.json", "{", "not a definition"),
        ("travel/v2.json", '{"up": [{"op": "renam"}]}', "/up/0/op"),
        ("travel/v2.json", '{"up": [{"op": "remove", "path": "/a", "when": "[1].map(x, x)"}]}', "/up/0/when"),
        ("travel/recorded/v1_to_v2.json", "[]", "recorded states"),
        (
            "travel/recorded/v1_to_v2.json",
            '{"cases": [{"name": "x", "before": {"a": {"$bytes": 1}}, "after": {}}]}',
            "/cases/0/before/a",
        ),
    ],
)
def test_what_is_not_in_order_in_the_folder_is_named(local, path, content, said):
    folder, run = local
    if "recorded" in path:
        run("new-version", "travel")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(content)
    outcome = run("test")
    assert outcome.code == 1
    assert said in outcome.err


def test_a_folder_or_schema_that_is_not_there_is_not_found(local):
    folder, run = local
    assert run("test").code == ExitCode.NOT_FOUND
    run("new-version", "travel")
    assert run("test", "billing").code == ExitCode.NOT_FOUND
    assert subprocess.run(["ls", folder], capture_output=True, check=True, text=True).stdout == "travel\n"
