import json

from tests.unit.gateway.cli.conftest import OPERATOR_KEY

TENANT = "01890000-0000-7000-8000-000000000001"
FOUND = {
    "thread_id": "t1",
    "checkpoint_id": "c1",
    "status": "failed",
    "created_at": "2026-11-22T10:00:00Z",
    "state": {"note": "hello\u202e"},
    "pending_writes": [{"task_id": "w", "idx": 0, "channel": "out", "value": 7}],
}
ASKED = ("decrypt", TENANT, "--subject", "user 42", "--thread", "t1", "--reason", "ticket 4711")


def test_it_asks_as_the_operator_for_what_was_named(command, gateway):
    gateway.answer(FOUND)
    outcome = command(*ASKED, "--checkpoint", "c1", "--namespace", "sub", "--json")
    assert (outcome.code, json.loads(outcome.out)) == (0, FOUND)
    asked = gateway.last
    assert (asked.method, asked.path) == ("POST", f"/v1/admin/tenants/{TENANT}/decrypt")
    assert asked.headers["authorization"] == f"Bearer {OPERATOR_KEY}"
    assert asked.body == {
        "subject_id": "user 42",
        "thread_id": "t1",
        "namespace": "sub",
        "checkpoint_id": "c1",
        "reason": "ticket 4711",
    }


def test_it_shows_state_and_writes_to_people(command, gateway):
    gateway.answer(FOUND)
    outcome = command(*ASKED)
    assert outcome.code == 0
    assert "checkpoint_id" not in gateway.last.body
    assert "hello" in outcome.out
    assert "\u202e" not in outcome.out
    assert "w #0 out: 7" in outcome.out


def test_it_wants_a_reason(command, gateway):
    assert command(*ASKED[:-2]).code == 2
    assert gateway.requests == []


def test_a_key_without_the_permission_is_told_so(command, gateway):
    gateway.refuse(403, "permission-denied", detail="this needs the permission decrypt-any")
    outcome = command(*ASKED)
    assert outcome.code == 4
    assert "decrypt-any" in outcome.err
