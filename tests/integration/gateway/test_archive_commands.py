"""`stateroom archive`, `restore` and `jobs` against a running gateway."""

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
        return code, [json.loads(line) for line in told.out.splitlines() if line], told.err

    return call


def test_a_thread_goes_to_the_archive_and_comes_back_at_the_word_of_a_command(running_gateway, subject, command):
    with Client(running_gateway.url, running_gateway.api_key, subject=subject) as client:
        client.thread("t1").save({"n": 1})
        code, [shown], said = command("archive", "t1")
        assert (code, shown["tier"], shown["archive"]["state"]) == (0, "archive", "ready"), said
        assert client.thread("t1").load().state == {"n": 1}
        code, _, said = command("archive", "t1")
        assert code == 0
        assert "already" in said
        code, rows, said = command("jobs")
        assert code == 0, said
        assert any(
            row["kind"] == "archive" and row["state"] == "done" and row["target"]["thread_id"] == "t1" for row in rows
        )
        assert rows[-1]["kind"] == "retention-round"
        code, [shown], said = command("restore", "t1")
        assert (code, shown["tier"], "archive" in shown) == (0, "hot", False), said
        assert client.thread("t1").load().state == {"n": 1}
        assert command("archive", "unknown")[0] == 3
        assert command("restore", "unknown")[0] == 3
