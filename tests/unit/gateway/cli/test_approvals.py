"""`stateroom approvals`: what is shown before anything is decided, and what a decision says."""

import io

import pytest

ID = "01988d42-6f70-7182-9304-5e6f70819203"
HASH = "ab" * 32
APPROVAL = {
    "approval_id": ID, "subject_id": "user-42", "thread_id": "t", "namespace": "", "checkpoint_id": "c", "run_id": None,
    "agent": "payer", "kind": "tool_call", "status": "pending", "requested_by": "k1", "requested_principal": "k1",
    "created_at": "2026-11-21T10:00:00Z", "expires_at": "2026-11-28T10:00:00Z", "valid_until": None, "decided_at": None,
    "decisions_needed": 1, "revision": 1, "client_share": False, "has_display": False,
    "actions": [{"position": 0, "status": "pending", "verdict": None, "edited": False}], "votes": [],
}  # fmt: skip
ACTION = {
    "tool": "pay", "tool_digest": None, "args": {"amount": 1200, "to": "Bob\x1b[2J"}, "args_schema": None, "hide": [],
    "description": "Pays a bill", "action_hash": "cd" * 32, "verdict": None,
}  # fmt: skip
CONTENT = {
    "approval_id": ID, "external_id": "pay-1", "action_hash": HASH, "allowed": ["approve", "reject"], "message": "Pay?",
    "display": None, "response_schema": None, "actions": [ACTION], "withheld": False,
}  # fmt: skip
DONE = {**APPROVAL, "status": "approved"}


def test_what_would_be_done_is_shown_exactly_and_harmlessly(command, gateway):
    gateway.answer(APPROVAL)
    gateway.answer(CONTENT)
    outcome = command("approvals", "show", ID)
    assert outcome.code == 0, outcome.err
    assert [each.path for each in gateway.requests] == [f"/v1/approvals/{ID}", f"/v1/approvals/{ID}/content"]
    for said in ("pay", "amount = 1200", "Pays a bill", HASH, "Pay?", "0 of 1"):
        assert said in outcome.out
    assert "\x1b" not in outcome.out


def test_a_person_is_shown_and_asked_before_anything_is_decided(command, gateway, environment):
    gateway.answer(APPROVAL)
    gateway.answer(CONTENT)
    gateway.answer(DONE)
    environment.setattr("sys.stdin", io.StringIO("y\n"))
    outcome = command("approvals", "approve", ID, "--message", "fine")
    assert outcome.code == 0, outcome.err
    assert "amount = 1200" in outcome.out
    assert HASH[:16] in outcome.err
    assert (gateway.last.method, gateway.last.path) == ("POST", f"/v1/approvals/{ID}/decisions")
    assert gateway.last.body == {"action_hash": HASH, "verdicts": [{"verdict": "approve", "message": "fine"}]}


def test_a_question_is_taken_back_for_its_subject(command, gateway):
    gateway.answer({**APPROVAL, "status": "cancelled"})
    outcome = command("approvals", "cancel", ID, "--subject", "user-42")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("POST", f"/v1/approvals/{ID}/cancel")
    assert f"{ID} is cancelled." in outcome.err


def test_policies_are_said_taken_back_and_listed(command, gateway):
    policy = {"required": True, "decisions_needed": 2}
    entry = {"agent": None, "tool": "pay", "policy": policy, "updated_at": None, "damaged": False}
    damaged = {"agent": "a", "tool": None, "policy": None, "updated_at": None, "damaged": True}
    gateway.answer({"policies": [entry, damaged]})
    outcome = command("approval-policy", "set", "--tool", "pay", "--required", "--decisions", "2", "--four-eyes")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/approval-policies")
    assert gateway.last.query == {"tool": "pay"}
    assert gateway.last.body == {"required": True, "decisions_needed": 2, "requester_may_approve": False}
    for said in ("(all)", "pay", "required=true", "decisions_needed=2", "damaged: say it again"):
        assert said in outcome.out
    gateway.answer({"policies": []})
    assert command("approval-policy", "remove", "--tool", "pay").code == 0
    assert (gateway.last.method, gateway.last.query) == ("DELETE", {"tool": "pay"})
    gateway.answer({"policies": []})
    assert command("approval-policy", "list", "--json").out.strip() == '{"policies":[]}'
    assert command("approval-policy", "set", "--decisions", "6").code == 2


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_who_says_no_decides_nothing(command, gateway, environment, word):
    gateway.answer(APPROVAL)
    gateway.answer(CONTENT)
    environment.setattr("sys.stdin", io.StringIO("n\n"))
    outcome = command("approvals", word, ID)
    assert outcome.code != 0
    assert {each.method for each in gateway.requests} == {"GET"}


def test_nothing_is_decided_that_has_another_hash_than_was_seen(command, gateway, environment):
    gateway.answer(APPROVAL)
    gateway.answer(CONTENT)
    environment.setattr("sys.stdin", io.StringIO("y\n"))
    outcome = command("approvals", "approve", ID, "--hash", "00" * 32)
    assert outcome.code == 1
    assert "another hash" in outcome.err
    assert {each.method for each in gateway.requests} == {"GET"}


def test_a_script_says_what_it_decides_about(command, gateway):
    assert command("approvals", "approve", ID, "--yes").code == 2
    assert gateway.requests == []
    gateway.answer(APPROVAL)
    gateway.answer({**DONE, "status": "rejected"})
    outcome = command("approvals", "reject", ID, "--yes", "--hash", HASH, "--person", "ann")
    assert outcome.code == 0, outcome.err
    assert gateway.last.body == {"action_hash": HASH, "verdicts": [{"verdict": "reject"}]}
    assert gateway.last.headers["stateroom-principal"] == "ann"
    assert "is rejected" in outcome.err


def test_an_edit_is_of_one_action_and_approves_the_others(command, gateway):
    both = {**APPROVAL, "actions": [*APPROVAL["actions"], {**APPROVAL["actions"][0], "position": 1}]}
    gateway.answer(both)
    gateway.answer(DONE)
    words = ("edit", ID, "--args", '{"amount": 900}', "--action", "2", "--yes", "--hash", HASH)
    assert command("approvals", *words).code == 0
    edited = {"verdict": "edit", "edited_args": {"amount": 900}}
    assert gateway.last.body["verdicts"] == [{"verdict": "approve"}, edited]
    assert command("approvals", "edit", ID, "--args", "{", "--yes", "--hash", HASH).code == 2


def test_an_answer_is_any_value(command, gateway):
    gateway.answer(APPROVAL)
    gateway.answer({**DONE, "status": "answered"})
    assert command("approvals", "respond", ID, "--response", '["a", 1]', "--yes", "--hash", HASH).code == 0
    assert gateway.last.body["verdicts"] == [{"verdict": "respond", "response": ["a", 1]}]


def test_a_list_is_of_the_tenant_whatever_subject_the_environment_names(command, gateway, environment):
    environment.setenv("STATEROOM_SUBJECT", "user-42")
    gateway.answer({"approvals": [APPROVAL], "next_cursor": None})
    outcome = command("approvals", "list", "--status", "pending")
    assert outcome.code == 0, outcome.err
    assert gateway.last.query["status"] == "pending"
    assert "stateroom-subject" not in gateway.last.headers
    assert ID in outcome.out


def test_the_approver_has_a_key_of_their_own_where_it_is_set(command, gateway, environment):
    environment.setenv("STATEROOM_APPROVER_KEY", "sr_live_approver")
    gateway.answer({"approvals": [], "next_cursor": None})
    assert command("approvals", "list").code == 0
    assert gateway.last.headers["authorization"] == "Bearer sr_live_approver"
    gateway.answer({"threads": [], "next_cursor": None})
    command("thread", "list")
    assert gateway.last.headers["authorization"] != "Bearer sr_live_approver"
