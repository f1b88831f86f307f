"""Stored values are never made into objects: a real gateway dies if anything in it unpickles a class (threat 25)."""

import base64
import pickle  # noqa: TID251  what an attacker sends
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest

from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy

# Loaded by every Python process whose path names its folder, before anything else runs.
GUARD = """
import os, sys

def refuse(event, arguments):
    if event in ("pickle.find_class", "marshal.loads.object"):
        os.write(2, b"UNPICKLED " + repr(arguments).encode() + b"\\n")
        os._exit(99)

sys.addaudithook(refuse)
"""


class Marker:
    """What must not be made."""

    def __reduce__(self) -> Any:
        return (print, ("revived",))


PICKLED = pickle.dumps(Marker())
LANGCHAIN = {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}}
ENCODINGS = ("pickle", "msgpack", "json", "bytes", "cloudpickle", "jsonplus", "dill")
SAVE = "/v1/threads/t/checkpoints"


@pytest.fixture(scope="module")
def guarded() -> Iterator[GatewayProcess]:
    folder = Path(tempfile.mkdtemp(prefix="stateroom-guarded-"))
    (folder / "sitecustomize.py").write_text(GUARD)
    try:
        with GatewayProcess(folder / "data", {"PYTHONPATH": str(folder)}) as gateway:
            yield gateway
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_guard_ends_a_process_that_revives(guarded: GatewayProcess) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import pickle; pickle.loads({PICKLED!r})"],
        env={"PYTHONPATH": str(guarded.data_dir.parent)},
        capture_output=True,
        check=False,
    )
    assert (ended.returncode, b"revived" in ended.stdout) == (99, False)


def _read_everything(client: httpx.Client, checkpoint_id: str) -> None:
    for accept in ("application/json", "application/msgpack"):
        headers = {"Accept": accept}
        for view in ("none", "state", "channels"):
            assert client.get(f"{SAVE}/{checkpoint_id}?view={view}", headers=headers).status_code == 200
            assert client.get(f"{SAVE}/{checkpoint_id}/writes/w?view={view}", headers=headers).status_code == 200
        assert client.get(f"{SAVE}/latest/channel-history?channel=a", headers=headers).status_code == 200


def _list_everything(client: httpx.Client, checkpoints: int) -> None:
    for accept in ("application/json", "application/msgpack"):
        for view in ("none", "state", "channels"):
            listed = client.get(f"{SAVE}?view={view}&limit=1000", headers={"Accept": accept})
            assert listed.status_code == 200
            unpacked = listed.json() if accept == "application/json" else msgpack.unpackb(listed.content)
            assert len(unpacked["checkpoints"]) == checkpoints


def test_nothing_that_is_stored_or_read_becomes_an_object(guarded: GatewayProcess) -> None:
    tenancy = Tenancy(guarded)
    contents = [PICKLED, msgpack.packb(msgpack.ExtType(5, PICKLED)), msgpack.packb(LANGCHAIN), b'{"lc":1}']
    with tenancy.client(tenancy.tenant(), "user-1") as client:
        for encoding in ENCODINGS:
            for content in contents:
                data = base64.b64encode(content).decode()
                saved = client.post(SAVE, json={"channels": {"a": {"version": 1, "encoding": encoding, "data": data}}})
                assert saved.status_code == 201, saved.text
                written = {"writes": [{"channel": "a", "idx": 0, "encoding": encoding, "data": data}]}
                path = f"{SAVE}/{saved.json()['checkpoint_id']}/writes/w"
                assert client.post(path, json=written).status_code == 200
                _read_everything(client, saved.json()["checkpoint_id"])
        for state in ({"a": LANGCHAIN}, {"a": {"$ext": [5, base64.b64encode(PICKLED).decode()]}}):
            saved = client.post(SAVE, json={"state": state})
            assert saved.status_code == 201, saved.text
            _read_everything(client, saved.json()["checkpoint_id"])
        _list_everything(client, len(ENCODINGS) * len(contents) + 2)
        assert client.post("/v1/threads:verify", json={}).json()["findings"] == []
        assert client.post("/v1/threads/t/copy", json={"target_thread_id": "u"}).status_code in {200, 201}
    assert "UNPICKLED" not in guarded.log
