"""`stateroom thread fork`, `compact`, `prune` and `list --all-subjects` against a running gateway."""

import json
from uuid import uuid4

import pytest

from gateway.cli.main import run
from stateroom import Client


@pytest.fixture
def subject():
    return f"user-{uuid4()}"


@pytest.fixture
def command(running_gateway, subject, monkeypatch, capsys):
    monkeypatch.setenv("STATEROOM_URL", running_gateway.url)
    monkeypatch.setenv("STATEROOM_API_KEY", running_gateway.api_key)
    monkeypatch.setenv("STATEROOM_SUBJECT", subject)

    def call(*words):
        capsys.readouterr()
        code = run([*words, "--json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        return [json.loads(line) for line in told.out.splitlines() if line]

    return call


def test_a_thread_is_forked_compacted_pruned_and_found_among_all_subjects(running_gateway, subject, command):
    with Client(running_gateway.url, running_gateway.api_key, subject=subject) as client:
        thread = client.thread("t1")
        first = thread.save({"lines": ["a", "b", "c"], "n": 1})
        thread.save({"lines": ["a", "b", "c", "d"], "n": 2})
        [forked] = command("thread", "fork", "t1", first.checkpoint_id)
        assert forked["parent_id"] == first.checkpoint_id
        assert client.thread("t1").load().state == {"lines": ["a", "b", "c"], "n": 1}
        command("thread", "compact", "t1", "lines", "--keep-last", "1", "--summary", "so far")
        assert client.thread("t1").load().state == {"lines": ["so far", "c"], "n": 1}
        [removed] = command("thread", "prune", "t1", "--yes")
        assert removed["checkpoints"] == 3
        assert client.thread("t1").load().state == {"lines": ["so far", "c"], "n": 1}
    listed = command("thread", "list", "--all-subjects", "--all")
    assert (subject, "t1") in {(each["subject_id"], each["thread_id"]) for each in listed}
    assert subject in {each["subject_id"] for each in command("subject", "list", "--all")}
