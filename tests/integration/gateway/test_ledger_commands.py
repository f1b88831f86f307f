"""`stateroom thread claim`, `thread silent` and `stateroom effects` against a running gateway."""

import json
from uuid import uuid4

import pytest

from gateway.cli.main import run
from stateroom import Client
from tests.support.tenants import somebody_else


@pytest.fixture
def subject():
    return f"user-{uuid4()}"


@pytest.fixture
def command(running_gateway, subject, monkeypatch, capsys):
    monkeypatch.setenv("STATEROOM_URL", running_gateway.url)
    monkeypatch.setenv("STATEROOM_API_KEY", running_gateway.api_key)
    monkeypatch.setenv("STATEROOM_SUBJECT", subject)

    def call(*words, code=0):
        capsys.readouterr()
        ended = run([*words, "--json"])
        told = capsys.readouterr()
        assert ended == code, told.err
        return [json.loads(line) for line in told.out.splitlines() if line]

    return call


@pytest.fixture
def client(running_gateway, subject):
    with Client(running_gateway.url, running_gateway.api_key, subject=subject) as opened:
        yield opened


def test_a_claim_is_shown_and_required_and_dead_runs_are_listed(client, command):
    thread = client.thread("t")
    with thread.claim(holder="w1", note="half"):
        [shown] = command("thread", "claim", "t")
        assert (shown["holder"], shown["note"], shown["status"]) == ("w1", "half", "live")
        assert command("thread", "silent") == []
    assert command("thread", "claim", "t", "--required") == [{"thread_id": "t", "required": True}]
    assert thread.claim_info().required
    command("thread", "claim", "t", "--not-required")
    assert not thread.claim_info().required
    assert command("thread", "claim", "absent", code=3) == []
    assert run(["thread", "silent"]) == 0


def test_effects_are_listed_shown_and_resolved(client, running_gateway, command, monkeypatch):
    thread = client.thread("t")
    thread.save({"n": 1})
    thread.finish_effect(thread.start_effect("a", "look", {"n": 1}, mode="read").effect, result=[1])
    for name in ("b", "c"):
        thread.finish_effect(thread.start_effect(name, "pay", {"n": name}).effect, "unknown", error="Lost")
    assert {each["name"] for each in command("effects", "list", "t")} == {"a", "b", "c"}
    assert [each["name"] for each in command("effects", "list", "t", "--status", "done")] == ["a"]
    [shown] = command("effects", "show", "t", "a")
    assert (shown["args"], shown["result"], shown["status"]) == ({"n": 1}, [1], "done")
    assert [each["thread_id"] for each in command("effects", "unknown")] == ["t", "t"]
    permissions = ["state:read", "approval:decide", "subject:act_as"]
    decider = somebody_else(running_gateway.url, running_gateway.operator_key, running_gateway.api_key, permissions)
    assert run(["effects", "resolve", "t", "b", "--yes"]) == 2  # whether it did is to be said
    assert run(["effects", "resolve", "t", "b", "--happened", "--result", "{", "--yes"]) == 2
    monkeypatch.setenv("STATEROOM_API_KEY", decider)
    [happened] = command("effects", "resolve", "t", "b", "--happened", "--result", '{"paid": 5}', "--yes")
    [did_not] = command("effects", "resolve", "t", "c", "--did-not-happen", "--yes")
    assert (happened["status"], happened["result"], did_not["status"]) == ("done", {"paid": 5}, "voided")
    assert command("effects", "unknown") == []
    assert run(["effects", "list", "t"]) == 0
