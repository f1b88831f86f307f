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


def test_a_fork_and_a_compaction_are_saved_as_the_state_version_that_one_states(running_gateway, subject, command):
    schema = f"s{uuid4().hex[:12]}"
    with Client(running_gateway.url, running_gateway.api_key, subject=subject) as client:
        for number, definition in ((1, {}), (2, {"up": [{"op": "rename", "from": "/n", "to": "/count"}]})):
            client.request("PUT", f"/state-schemas/{schema}/versions/{number}", body=definition)
        thread = client.thread("t1", state_version=f"{schema}@1")
        first = thread.save({"lines": ["a", "b"], "n": 1})
        version = ("--state-schema", schema, "--state-version")
        [forked] = command("thread", "fork", "t1", first.checkpoint_id, *version, "2")
        head = client.thread("t1").load()
        assert (forked["parent_id"], head.checkpoint_id) == (first.checkpoint_id, forked["checkpoint_id"])
        assert (head.state, head.state_version) == ({"lines": ["a", "b"], "count": 1}, 2)
        command("thread", "fork", "t1", first.checkpoint_id)
        assert client.thread("t1").load().state_version == 1
        command("thread", "compact", "t1", "lines", "--keep-last", "1", *version, "2")
        head = client.thread("t1").load()
        assert (head.state, head.state_version) == ({"lines": ["b"], "count": 1}, 2)
    for verb in (["fork", "t1", first.checkpoint_id], ["compact", "t1", "lines", "--keep-last", "1"]):
        assert run(["thread", *verb, "--state-version", "1"]) == 2


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
