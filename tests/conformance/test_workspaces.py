"""Folders that are stored with a thread, through the Python client, kept by a real gateway and a real object store."""

import asyncio
import os
import secrets
import socket
import stat
import subprocess
import sys

import pytest

from stateroom import (
    ArtifactNotFound,
    ArtifactUnknown,
    AsyncClient,
    Client,
    InvalidRequest,
    WorkspaceSnapshot,
)
from stateroom._workspaces import packing

MIB = 1024 * 1024


@pytest.fixture
def client(gateway_env, subject):
    with Client(gateway_env.url, gateway_env.api_key, subject=subject) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    """A folder with something of every kind."""
    top = tmp_path / "work"
    (top / "src" / "deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "src" / "a.py").write_bytes(b"print('a')\n")
    (top / "src" / "same.py").write_bytes(b"print('a')\n")
    (top / "src" / "deep" / "nothing").write_bytes(b"")
    (top / "run.sh").write_bytes(b"#!/bin/sh\n")
    (top / "run.sh").chmod(0o750)
    (top / "film.bin").write_bytes(secrets.token_bytes(packing.ALONE_BYTES_MIN + 12_345))
    (top / "to a").symlink_to("src/a.py")
    (top / "src" / "up").symlink_to("../run.sh")
    (top / "empty").chmod(0o500)
    yield top
    (top / "empty").chmod(0o700)


def seen(top):
    """What is in a folder: kinds, permissions, contents."""
    found = {}
    for path in sorted(top.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(top))
        if stat.S_ISLNK(mode):
            found[name] = ("link", path.readlink().as_posix())
        elif stat.S_ISDIR(mode):
            found[name] = ("folder", stat.S_IMODE(mode))
        else:
            found[name] = ("file", stat.S_IMODE(mode), path.read_bytes())
    return found


def test_a_folder_comes_back_as_it_was_on_another_machine(client, thread_id, folder, tmp_path):
    thread = client.thread(thread_id)
    snapshot = thread.workspace(folder).store()
    thread.save({"step": 1, "workspace": snapshot.value})

    other = client.thread(thread_id)
    restored = other.workspace(tmp_path / "there").restore(other.load().state["workspace"])
    assert seen(tmp_path / "there") == seen(folder)
    assert (restored.files, restored.written, restored.left_out) == (5, 5, [])
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
    assert (snapshot.files, snapshot.size_bytes, restored.written_bytes) == (5, size, size)


def test_both_clients_make_the_same_snapshot(gateway_env, client, subject, thread_id, folder, tmp_path):
    mine = client.thread(thread_id).workspace(folder).store()

    async def run():
        async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as asynchronous:
            workspace = asynchronous.thread(thread_id).workspace(folder)
            theirs = await workspace.store()
            await asynchronous.thread(thread_id).workspace(tmp_path / "there").restore(theirs)
            return theirs

    theirs = asyncio.run(run())
    assert theirs.value == mine.value
    assert theirs.stored_bytes == 0
    assert seen(tmp_path / "there") == seen(folder)


def test_what_was_stored_before_is_not_sent_again(client, thread_id, folder):
    workspace = client.thread(thread_id).workspace(folder)
    first = workspace.store()
    assert first.stored_bytes == sum({len(each.read_bytes()) for each in folder.rglob("*") if each.is_file()})
    unchanged = workspace.store()
    assert (unchanged.value, unchanged.stored_bytes) == (first.value, 0)
    (folder / "src" / "a.py").write_bytes(b"print('b')\n")
    second = workspace.store()
    assert second.stored_bytes == len(b"print('b')\n")
    assert {*second.contents} > {*first.contents}
    anew = client.thread(thread_id).workspace(folder).store()  # another process: it finds what the thread has
    assert anew.value == second.value


def test_a_fork_and_a_copy_have_the_folder_of_their_moment(client, thread_id, folder, tmp_path):
    thread = client.thread(thread_id)
    workspace = thread.workspace(folder)
    old = thread.save({"workspace": workspace.store().value})
    before = seen(folder)
    (folder / "run.sh").write_bytes(b"changed")
    thread.save({"workspace": workspace.store().value})

    fork = thread.fork(old.checkpoint_id)
    assert fork.workspace(folder).restore(fork.load().state["workspace"]).written == 1
    assert seen(folder) == before

    (folder / "new").write_bytes(b"new")
    thread.copy(f"{thread_id}-copy")
    client.thread(thread_id).delete()
    copy = client.thread(f"{thread_id}-copy")
    state = copy.load().state["workspace"]
    copy.workspace(tmp_path / "there").restore(state)
    assert (tmp_path / "there" / "run.sh").read_bytes() == b"changed"
    again = copy.workspace(folder).store(base=state)
    assert again.stored_bytes == len(b"new#!/bin/sh\n")  # not in that snapshot
    copy.save({"workspace": again.value})


def test_what_gitignore_names_is_not_stored_and_stays(client, thread_id, folder, tmp_path):
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    (folder / "src" / ".gitignore").write_text("!keep.log\n/secret\n")
    (folder / "build").mkdir()
    for name in ("build/out", "a.log", "src/keep.log", "src/b.log", "src/secret", "src/deep/secret", "node.txt"):
        (folder / name).write_text(name)
    workspace = client.thread(thread_id).workspace(folder)
    snapshot = workspace.store(ignore=["node.*"])
    client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
    missing = seen(folder).keys() - seen(tmp_path / "there").keys()
    assert missing == {"build", "build/out", "a.log", "src/b.log", "src/secret", "node.txt"}

    (folder / "extra").write_text("extra")
    restored = workspace.restore(snapshot, remove_others=True, ignore=["node.*"])
    assert restored.removed == ["extra"]
    assert (folder / "a.log").exists()
    assert (folder / "build" / "out").exists()


def test_others_stay_unless_they_are_to_be_removed(client, thread_id, folder):
    workspace = client.thread(thread_id).workspace(folder)
    snapshot = workspace.store()
    before = seen(folder)
    (folder / "more" / "deep").mkdir(parents=True)
    (folder / "more" / "deep" / "x").write_text("x")
    (folder / "run.sh").unlink()
    (folder / "run.sh").mkdir()
    with pytest.raises(InvalidRequest, match=r"run\.sh is a folder here"):
        workspace.restore(snapshot)
    assert (folder / "more" / "deep" / "x").exists()
    restored = workspace.restore(snapshot, remove_others=True)
    assert restored.removed == ["more", "more/deep", "more/deep/x", "run.sh"]
    assert seen(folder) == before


def test_what_is_no_file_is_left_out_and_named(client, thread_id, tmp_path, monkeypatch):
    folder = tmp_path / "w"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder)  # a path of a socket is short
        listening.bind("socket")
    (folder / "a").write_text("a")
    os.close(os.open(os.fsencode(folder) + b"/\xff", os.O_CREAT))
    snapshot = client.thread(thread_id).workspace(folder).store()
    assert snapshot.files == 1
    assert [each.path for each in snapshot.left_out] == ["pipe", "socket", "\ufffd"]


def test_many_small_files_are_few_artifacts_and_progress_is_told(client, thread_id, tmp_path):
    folder = tmp_path / "many"
    for number in range(2000):
        target = folder / f"d{number % 50}" / f"f{number}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(number.to_bytes(4, "big") * 50)
    told = []
    snapshot = client.thread(thread_id).workspace(folder).store(progress=lambda *each: told.append(each))
    assert len(snapshot.contents) == 1
    assert told[0] == (0, 400_000)
    assert told[-1] == (400_000, 400_000)
    assert told == sorted(told)
    told.clear()
    client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot, progress=lambda *each: told.append(each))
    assert told[-1] == (400_000, 400_000)
    assert seen(tmp_path / "there") == seen(folder)


STORES = """
import sys
from stateroom import Client
with Client(sys.argv[1], sys.argv[2], subject=sys.argv[3]) as client:
    def told(done, total):
        print(done, flush=True)
    client.thread(sys.argv[4]).workspace(sys.argv[5]).store(progress=told)
"""


def test_a_store_that_was_killed_is_gone_on_with(client, gateway_env, subject, thread_id, tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    size = 3 * packing.ALONE_BYTES_MIN
    for number in range(2):
        (folder / f"film{number}").write_bytes(secrets.token_bytes(size))
    program = [sys.executable, "-c", STORES, gateway_env.url, gateway_env.api_key, subject, thread_id, str(folder)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        while int(process.stdout.readline()) <= size:  # of the second file, a part is there
            pass
        process.kill()
    told = []
    workspace = client.thread(thread_id).workspace(folder)
    snapshot = workspace.store(progress=lambda *each: told.append(each[0]))
    assert snapshot.stored_bytes <= size
    client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
    assert seen(tmp_path / "there") == seen(folder)


def test_a_restore_fetches_only_what_is_not_there(client, thread_id, folder, tmp_path):
    snapshot = client.thread(thread_id).workspace(folder).store()
    workspace = client.thread(thread_id).workspace(tmp_path / "there")
    workspace.restore(snapshot)
    (tmp_path / "there" / "run.sh").chmod(0o600)
    (tmp_path / "there" / "src" / "a.py").write_bytes(b"longer than it was")
    restored = workspace.restore(snapshot)
    assert (restored.written, restored.written_bytes) == (1, len(b"print('a')\n"))
    assert seen(tmp_path / "there") == seen(folder)


def test_a_snapshot_lives_as_long_as_a_checkpoint_names_it(client, thread_id, folder):
    thread = client.thread(thread_id)
    snapshot = thread.workspace(folder).store()
    for pointer in snapshot.contents:
        client.artifacts.delete(pointer)
    with pytest.raises(ArtifactUnknown):
        thread.save({"workspace": snapshot.value})
    # What went is stored again, although the newest snapshot names it.
    again = client.thread(thread_id).workspace(folder).store()
    assert again.stored_bytes
    thread.save({"workspace": again.value})


def test_another_subject_has_no_snapshot_and_no_content(gateway_env, client, thread_id, folder, tmp_path):
    snapshot = client.thread(thread_id).workspace(folder).store()
    with Client(gateway_env.url, gateway_env.api_key, subject="somebody-else") as other:
        with pytest.raises(ArtifactNotFound):
            other.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
        assert other.thread(thread_id).workspace(folder).store().stored_bytes
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("value", [None, {}, {"stateroom_workspace": 2}, {"stateroom_workspace": 1, "manifest": 1}])
def test_what_is_no_snapshot_is_refused_by_name(client, thread_id, tmp_path, value):
    with pytest.raises(InvalidRequest, match="no workspace snapshot"):
        client.thread(thread_id).workspace(tmp_path).restore(value)
    with pytest.raises(InvalidRequest, match="no workspace snapshot"):
        WorkspaceSnapshot.of_value(value)


def test_what_is_appended_while_a_file_is_stored_is_of_another_moment(client, thread_id, tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    first = secrets.token_bytes(packing.ALONE_BYTES_MIN)
    (folder / "large.log").write_bytes(first)
    (folder / "small.log").write_bytes(b"first")

    def append(*_):
        for each in folder.iterdir():
            with each.open("ab") as file:
                file.write(b" more")

    snapshot = client.thread(thread_id).workspace(folder).store(progress=append)
    client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
    assert (tmp_path / "there" / "large.log").read_bytes() == first
    assert (tmp_path / "there" / "small.log").read_bytes() == b"first"


def test_a_file_that_goes_while_others_are_stored_is_not_in_the_snapshot(client, thread_id, folder, tmp_path):
    def remove(*_):
        (folder / "film.bin").unlink(missing_ok=True)
        (folder / "run.sh").unlink(missing_ok=True)

    snapshot = client.thread(thread_id).workspace(folder).store(progress=remove)
    assert snapshot.files == 3
    client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
    assert not (tmp_path / "there" / "run.sh").exists()


def test_two_threads_and_a_copy_store_the_same_large_file(client, thread_id, folder):
    for each in (thread_id, f"{thread_id}-2"):
        thread = client.thread(each)
        snapshot = thread.workspace(folder).store()
        assert snapshot.stored_bytes
        thread.save({"workspace": snapshot.value})
    client.thread(thread_id).copy(f"{thread_id}-3")
    assert client.thread(f"{thread_id}-3").workspace(folder).store().stored_bytes


def test_an_artifact_of_another_program_is_no_base(client, thread_id, folder, tmp_path):
    client.artifacts.upload(thread_id, b"not a manifest", name="workspace")
    snapshot = client.thread(thread_id).workspace(folder).store()
    client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
    assert seen(tmp_path / "there") == seen(folder)


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_takes_the_place_of_a_file_meanwhile_is_as_if_the_file_went(client, thread_id, folder, tmp_path, kind):
    def replace(*_):
        for name in ("film.bin", "run.sh"):
            path = folder / name
            if path.is_file() and not path.is_symlink():
                path.unlink()
                path.symlink_to("/etc/passwd") if kind == "link" else path.mkdir()

    snapshot = client.thread(thread_id).workspace(folder).store(progress=replace)
    assert snapshot.files == 3


def test_a_large_file_that_gets_shorter_meanwhile_is_named(client, thread_id, folder):
    with pytest.raises(InvalidRequest, match=r"film\.bin got shorter"):
        client.thread(thread_id).workspace(folder).store(progress=lambda *_: os.truncate(folder / "film.bin", 5))


def test_equal_large_files_are_fetched_once(client, thread_id, tmp_path):
    folder = tmp_path / "w"
    folder.mkdir()
    content = secrets.token_bytes(packing.ALONE_BYTES_MIN)
    for number in range(4):
        (folder / f"f{number}").write_bytes(content)
    workspace = client.thread(thread_id).workspace(folder)
    snapshot = workspace.store()
    assert snapshot.stored_bytes == len(content)
    restored = client.thread(thread_id).workspace(tmp_path / "there").restore(snapshot)
    assert (restored.written, restored.written_bytes) == (4, 4 * len(content))
    assert seen(tmp_path / "there") == seen(folder)
