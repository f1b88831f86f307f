"""A backup of an embedded gateway's database that is put back beside its newer object store."""

import json
import shutil
import signal
import subprocess

import httpx

from tests.integration.gateway.test_black_box_entry import STOP_SECONDS_MAX, folder, serving, stateroom

__all__ = ["folder"]  # a fixture


def client(environ):
    headers = {"Authorization": f"Bearer {environ['STATEROOM_API_KEY']}", "Stateroom-Subject": "user-1"}
    return httpx.Client(base_url=f"{environ['STATEROOM_URL']}/v1", headers=headers, timeout=30)


def test_what_was_shredded_since_is_shredded_again_before_the_folder_is_served_from(folder):
    data_dir, backup = folder / "data", folder / "backup"
    with serving(data_dir) as running:
        with client(running.ready()) as agent:
            assert agent.post("/threads/t1/checkpoints", json={"state": {"a": 1}}).status_code == 201
        assert running.stop(signal.SIGTERM) == 0
    subprocess.run(["cp", "-a", data_dir / "postgres", backup], check=True)  # with its owner
    with serving(data_dir) as running:
        with client(running.ready()) as agent:
            shredded = agent.post("/subjects/user-1/shred", json={"confirm": "user-1"})
            assert shredded.status_code == 202, shredded.text
        assert running.stop(signal.SIGTERM) == 0
    shutil.rmtree(data_dir / "postgres")
    backup.rename(data_dir / "postgres")
    with serving(data_dir) as running:
        assert running.process.wait(STOP_SECONDS_MAX) != 0
        assert "stateroom restore accept" in running.errors.read_text()
    accepted = stateroom("restore", "accept", "--json", "--data-dir", str(data_dir))
    assert accepted.returncode == 0, accepted.stderr
    assert [each.get("keys_destroyed") for each in map(json.loads, accepted.stdout.splitlines())][-1] == 2
    again = stateroom("restore", "accept", "--json", "--data-dir", str(data_dir))
    assert (again.returncode, again.stdout) == (0, "")
    with serving(data_dir) as running, client(running.ready()) as agent:
        assert agent.get("/threads/t1/checkpoints/latest").status_code == 410
        assert running.stop(signal.SIGTERM) == 0


def test_a_folder_that_is_none_is_refused_and_not_made_one(folder):
    refused = stateroom("restore", "accept", "--data-dir", str(folder / "typo"))
    assert refused.returncode == 1
    assert "not the folder of an embedded gateway" in refused.stderr
    assert not (folder / "typo").exists()
