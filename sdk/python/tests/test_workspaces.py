"""Workspaces without a gateway: what of a folder is stored, what of a manifest is believed, and where links lead."""

import errno
import gc
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateroom import InvalidRequest, WorkspaceSnapshot
from stateroom._workspaces.folders import NewFile, Root
from stateroom._workspaces.ignoring import Rules
from stateroom._workspaces.manifest import (
    Content,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Manifest,
    decoded,
    encoded,
    leading_out,
)
from stateroom._workspaces.packing import Packing
from stateroom._workspaces.restoring import Restoring
from stateroom._workspaces.scanning import scan

GIT = shutil.which("git")
NOBODY = 65534
DIGEST = bytes(32)
FORMAT = "stateroom-workspace/1"


def a_file(path, **others):
    fields = {"mode": 0o644, "size_bytes": 1, "digest": DIGEST, "content": 0, "offset": 0}
    return FileEntry(path, **{**fields, **others})


def manifest_of(*entries):
    return Manifest(FORMAT, [Content("stateroom:artifact:x", 10)], list(entries))


def test_a_manifest_comes_back_as_it_was():
    manifest = manifest_of(FolderEntry("d", 0o755), a_file("d/f"), LinkEntry("l", "d/f"))
    assert decoded(encoded(manifest)) == manifest


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (a_file("../x"), "no path within a folder"),
        (a_file("/x"), "no path within a folder"),
        (a_file(""), "no path within a folder"),
        (a_file("a//b"), "no path within a folder"),
        (a_file("./a"), "no path within a folder"),
        (a_file("a\0b"), "no path within a folder"),
        (a_file("a" * 256), "a name of more than 255 bytes"),
        (a_file("/".join(["a"] * 3000)), "longer than 4096 bytes"),
        (a_file("nowhere/x"), "in no folder"),
        (a_file("l/x"), "in no folder"),
        (a_file("x", content=1), "no content"),
        (a_file("x", content=-1), "no content"),
        (a_file("x", digest=b"short"), "no content"),
        (a_file("x", mode=0o4755), "impossible"),
        (a_file("x", offset=-1), "impossible"),
        (a_file("x", size_bytes=-1), "impossible"),
        (a_file("x", size_bytes=0), "no content"),
        (LinkEntry("x", "a" * 4096), "leads nowhere"),
        (FolderEntry("d", 0o1777), "impossible mode"),
        (LinkEntry("x", ""), "leads nowhere"),
        (LinkEntry("x", "a\0"), "leads nowhere"),
        (a_file("l"), "there twice"),
    ],
    ids=repr,
)
def test_a_manifest_that_leads_out_of_the_folder_is_refused(entry, why):
    with pytest.raises(InvalidRequest, match=why):
        decoded(encoded(manifest_of(LinkEntry("l", "d"), entry)))


@pytest.mark.parametrize(
    "data", [b"", b"\x91" * 200_000, b"\xc1", b"\x80", msgspec.msgpack.encode({"format": "stateroom-workspace/2"})]
)
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(InvalidRequest, match="cannot be read"):
        decoded(data)


def test_a_snapshot_of_a_state_is_the_one_that_was_stored():
    snapshot = WorkspaceSnapshot("stateroom:artifact:m", ["stateroom:artifact:c"], 2, 30)
    assert WorkspaceSnapshot.of_value(snapshot.value) == snapshot
    assert WorkspaceSnapshot.of_value({**snapshot.value, "later": 1}) == snapshot


# --- links -----------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
FOLDERS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TARGETS = st.lists(st.one_of(NAMES, st.sampled_from(["..", ".", ""])), min_size=1, max_size=6).map("/".join)


@given(st.sets(FOLDERS, max_size=4), st.dictionaries(FOLDERS, TARGETS.filter(bool), max_size=6))
def test_no_link_that_is_made_leads_out_of_the_folder(tmp_path_factory, folders, links):
    top = tmp_path_factory.mktemp("links") / "top"
    entries = {str(parent): "folder" for each in folders for parent in [Path(each), *Path(each).parents][:-1]}
    entries |= {str(parent): "folder" for each in links for parent in list(Path(each).parents)[:-1]}
    made = {path: target for path, target in links.items() if path not in entries}
    listed = [FolderEntry(each, 0o755) for each in sorted(entries)] + [LinkEntry(*each) for each in made.items()]
    restoring = Restoring(top, Manifest(FORMAT, [], listed), remove_others=False, ignore=())
    restoring.begin()
    left_out = {each.path for each in restoring.finish().left_out}
    restoring.close()
    for path in made:
        assert (top / path).is_symlink() == (path not in left_out)
        if path not in left_out:
            assert Path(os.path.realpath(top / path)).is_relative_to(os.path.realpath(top))
    shutil.rmtree(top)


@pytest.mark.parametrize(
    ("links", "out"),
    [
        ({"x": "/etc/passwd"}, ["x"]),
        ({"x": "../x"}, ["x"]),
        ({"x": "d/../../x"}, ["x"]),
        ({"d/up": "..", "x": "d/up/.."}, ["x"]),  # its text stays within, and where it leads does not
        ({"x": "y", "y": "x"}, ["x", "y"]),
        ({"x": "/etc", "y": "x/passwd"}, ["x", "y"]),
        ({"x": "d", "d/y": "../x/z"}, []),
        ({"x": "nothing/that/is/there"}, []),
        ({"x": "nothing/../y"}, ["x"]),  # it may be a link one day
        ({"x": "D/up/../..", "d/up": ".."}, ["x"]),  # which is d where names have no case
        ({f"l{number:02}": f"l{number + 1:02}" for number in range(50)}, [f"l{number:02}" for number in range(41)]),
    ],
)
def test_links_are_followed_through_other_links(links, out):
    entries = [FolderEntry("d", 0o755), *(LinkEntry(*each) for each in links.items())]
    assert sorted(each.path for each in leading_out(entries)) == out


# --- what may be in the way ------------------------------------------------------------------------------------------


def restored(top, *entries, **options):
    restoring = Restoring(top, manifest_of(*entries), **{"remove_others": False, "ignore": (), **options})
    try:
        for wanted in restoring.begin():
            for each in wanted.files:
                with restoring.new(each) as file:
                    file.write(b"x")
                    file.finish()
        return restoring.finish()
    finally:
        restoring.close()


def test_nothing_is_written_through_a_link_that_is_there(tmp_path):
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    top.mkdir()
    (outside / "f").write_text("mine")
    (top / "d").symlink_to(outside)
    (top / "f").symlink_to(outside / "f")
    empty = {"size_bytes": 0, "digest": hashlib.sha256().digest()}
    entries = FolderEntry("d", 0o700), a_file("d/f", **empty), a_file("f", **empty)
    with pytest.raises(InvalidRequest, match="d is no folder here"):
        restored(top, *entries)
    assert restored(top, *entries, remove_others=True).removed == ["d"]
    assert (outside / "f").read_text() == "mine"
    assert not (top / "d").is_symlink()
    assert not (top / "f").is_symlink()
    assert (top / "d" / "f").read_bytes() == (top / "f").read_bytes() == b""


def test_nothing_is_read_or_written_where_a_link_took_the_place_of_a_folder(tmp_path):
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (top / "d").mkdir(parents=True)
    (outside / "f").write_text("secret")
    with Root(top) as root:
        (top / "d").rmdir()
        (top / "d").symlink_to(outside)
        for refused in (lambda: root.open("d/f"), lambda: NewFile(root, "d/f", 0o600), lambda: root.names("d")):
            with pytest.raises(OSError, match="d"):
                refused()
        assert [each.path for each in scan(root, ()).entries] == ["d"]
    assert {each.name for each in outside.iterdir()} == {"f"}


def test_a_file_that_is_not_finished_leaves_nothing(tmp_path):
    with Root(tmp_path) as root, NewFile(root, "f", 0o600) as file:
        file.write(b"half")
        assert [each.path for each in scan(root, ()).entries] == []
    assert list(tmp_path.iterdir()) == []


def test_an_older_link_leads_no_newer_one_out(tmp_path):
    top = tmp_path / "top"
    (tmp_path / "secret").write_text("secret")
    assert restored(top, FolderEntry("d", 0o755), LinkEntry("d/up", "..")).left_out == []
    left_out = restored(top, FolderEntry("d", 0o755), LinkEntry("x", "d/up/../secret")).left_out
    assert [each.path for each in left_out] == ["x"]


def test_of_two_names_of_one_file_only_that_of_the_snapshot_changes(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    (tmp_path / "outside").write_bytes(b"x")
    (tmp_path / "outside").chmod(0o600)
    os.link(tmp_path / "outside", top / "f")
    restored(top, a_file("f", digest=hashlib.sha256(b"x").digest(), mode=0o666))
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o600
    assert (top / "f").stat().st_mode & 0o777 == 0o666


def test_a_closed_folder_is_not_found_by_a_thread_that_still_works_there(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "f").write_text("precious")
    manifest = Manifest(FORMAT, [], [a_file("f", size_bytes=0, digest=hashlib.sha256().digest())])
    restoring = Restoring(tmp_path / "a", manifest, remove_others=True, ignore=())
    restoring.close()
    with Root(tmp_path / "b"), pytest.raises(ValueError, match="closed"):  # it has the number of the descriptor
        restoring.begin()
    assert (tmp_path / "b" / "f").read_text() == "precious"


def test_files_that_nobody_took_are_closed_and_removed(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Root(tmp_path) as root:
        for number in range(50):
            NewFile(root, f"f{number}", 0o600)
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert list(tmp_path.iterdir()) == []


def trees(top, **files):
    for path, content in files.items():
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(content)


def test_what_is_ignored_now_or_then_or_was_never_stored_is_not_removed(tmp_path):
    top = tmp_path / "top"
    trees(top, **{".gitignore": "*.log\n.env\n", ".env": "secret", "a.log": "x", "b.tmp": "x", "c": "x", "d.own": "x"})
    os.mkfifo(top / "pipe")
    os.close(os.open(os.fsencode(top) + b"/\xff", os.O_CREAT))
    old = b"*.tmp\n"
    entry = a_file(".gitignore", size_bytes=len(old), digest=hashlib.sha256(old).digest())
    restoring = Restoring(top, Manifest(FORMAT, [Content("p", 9)], [entry], ["*.own"]), remove_others=True, ignore=())
    ((wanted,),) = ([each.files for each in restoring.begin()],)
    with restoring.new(wanted[0]) as file:
        file.write(old)
        file.finish()
    assert restoring.finish().removed == ["c"]
    restoring.close()
    assert (top / ".env").read_text() == "secret"
    assert (top / "pipe").is_fifo()


def test_a_folder_with_what_is_ignored_is_not_removed_for_a_file(tmp_path):
    top = tmp_path / "top"
    trees(top, **{".gitignore": "data/\n", "data/precious": "x", "other/below/x": "x"})
    with pytest.raises(InvalidRequest, match="data has something that is ignored"):
        restored(top, a_file("data", size_bytes=0, digest=hashlib.sha256().digest()), remove_others=True)
    assert (top / "data" / "precious").exists()
    made = restored(top, a_file("other", size_bytes=0, digest=hashlib.sha256().digest()), remove_others=True)
    assert made.removed == [".gitignore", "other", "other/below", "other/below/x"]


def test_a_deep_tree_costs_no_more_for_each_folder_and_ends_where_paths_do(tmp_path):
    top = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=top)
        below = os.open("d", os.O_RDONLY, dir_fd=top)
        os.close(top)
        top = below
    os.close(top)
    with Root(tmp_path) as root:
        found = scan(root, ())
    subprocess.run(["/bin/rm", "-r", tmp_path / "d"], check=True)  # noqa: S603 - deeper than Python removes
    assert (len(found.entries), len(found.left_out)) == (2048, 1)
    assert found.left_out[0].reason == "is longer than 4096 bytes"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to become")
def test_folders_that_may_not_be_written_to_are_restored_by_their_owner():
    os.seteuid(NOBODY)
    try:
        with tempfile.TemporaryDirectory(dir="/tmp") as made:  # the others are below folders of root's
            top = Path(made) / "top"
            trees(top, **{"mod/x": "x"})
            (top / "mod").chmod(0o500)
            assert restored(top, remove_others=True).removed == ["mod", "mod/x"]
            for _ in range(2):
                restored(top, FolderEntry("d", 0o300), FolderEntry("d/e", 0o500))
    finally:
        os.seteuid(0)


# --- ignoring --------------------------------------------------------------------------------------------------------

PATTERNS = [
    "*.log",
    "!keep.log",
    "build/",
    "/top",
    "a/**/z",
    "**/deep",
    "[",
    "!",
    "# no",
    "",
    "sp ace",
    "q?",
    "\\!x",
    "d*/f",
]
PATHS = ["x.log", "keep.log", "build/o", "src/build/p", "top", "src/top", "a/z", "a/b/c/z", "b/deep/f", "[", "sp ace",
         "qq", "!x", "dd/f", "src/keep.log", "src/x.log", "src/more/keep.log"]  # fmt: skip


@pytest.mark.skipif(GIT is None, reason="no git here to compare with")
@settings(deadline=None)  # each starts git twice
@given(st.lists(st.sampled_from(PATTERNS), max_size=5), st.lists(st.sampled_from(PATTERNS), max_size=4))
def test_what_is_ignored_is_what_git_ignores(tmp_path_factory, at_top, in_src):
    top = tmp_path_factory.mktemp("ignored")
    for each in PATHS:
        (top / each).parent.mkdir(parents=True, exist_ok=True)
        (top / each).write_text("x")
    (top / ".gitignore").write_text("\n".join(at_top))
    (top / "src" / ".gitignore").write_text("\n".join(in_src))
    environment = {"HOME": str(top), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run([GIT, "init", "-q", "."], cwd=top, env=environment, check=True)  # noqa: S603
    listed = subprocess.run(  # noqa: S603
        [GIT, "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=top,
        env=environment,
        check=True,
        capture_output=True,
    )
    with Root(top) as root:
        found = scan(root, [".git/"])
    files = {each.path for each in found.entries if not isinstance(each, FolderEntry)}
    assert files == set(listed.stdout.decode().split("\0")) - {""}
    shutil.rmtree(top)


@pytest.mark.parametrize(
    ("ignore_file", "path", "ignored"),
    [
        ("\ufeff.env", ".env", True),
        ("# a\x0c*", "x", False),
        ("*.a\r\n*.b\r\n", "x.b", True),
    ],
)
def test_lines_of_an_ignore_file_are_those_that_git_sees(ignore_file, path, ignored):
    assert Rules.of(()).below("", ignore_file).ignores(path, is_folder=False) is ignored


@pytest.mark.parametrize("lines", ["*a" * 6 + "*b", "**/a/" * 10 + "b", "\n".join(map(str, range(10_001)))])
def test_patterns_that_would_take_for_ever_are_refused(lines):
    with pytest.raises(InvalidRequest, match="to ignore"):
        Rules.of(()).below("", lines)


# --- how content is laid out -----------------------------------------------------------------------------------------


def test_content_of_an_artifact_of_which_little_is_used_is_stored_anew(tmp_path):
    (tmp_path / "kept").write_bytes(b"k" * 40)
    with Root(tmp_path) as root:
        found = scan(root, ())
        (kept,) = found.entries
        for others, sources in ((40, 0), (41, 1)):
            content = Content("stateroom:artifact:old", 40 + others)
            base = Manifest(FORMAT, [content], [a_file("kept", size_bytes=40, digest=kept.digest)])
            assert len(list(Packing(root, found, base, {content.pointer}, []).sources())) == sources
            assert len(list(Packing(root, found, base, set(), []).sources())) == 1


@pytest.mark.parametrize("left", range(4))
def test_a_file_that_cannot_be_begun_leaves_nothing_behind(tmp_path, monkeypatch, left):
    dup, made = os.dup, []

    def few(fd):
        if len(made) == left:
            raise OSError(errno.EMFILE, "too many open files")
        made.append(fd)
        return dup(fd)

    with Root(tmp_path) as root:
        monkeypatch.setattr(os, "dup", few)
        with suppress(OSError), NewFile(root, "a", 0o600):
            pass
        monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
