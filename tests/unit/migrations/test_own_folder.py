"""A deployment's own folder of steps: it is code, so nobody else may be able to change it."""

import importlib
import os
import py_compile
import stat
import sys

import pytest

from migrations.state.errors import ChainInvalid
from migrations.state.loading import ENTRY_POINT_GROUP, chains_of_own_folder, shipped_chains, ships_steps
from tests.unit.migrations.states import packed, unpacked

STEP = "def upcast(state):\n    return {'b': state['a']}\n"
OTHER_USER = 54_321


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "schemas"
    (made / "travel").mkdir(parents=True)
    (made / "travel" / "v1_to_v2.py").write_text(STEP)
    for each in (made, made / "travel", made / "travel" / "v1_to_v2.py"):
        each.chmod(each.stat().st_mode & ~0o022)
    return made


def refused(folder, why):
    with pytest.raises(ChainInvalid, match=why) as caught:
        chains_of_own_folder(folder)
    return caught.value.step


def test_steps_of_an_own_folder_are_used_beside_the_installed_ones(folder):
    assert [step.name for step in shipped_chains(folder)["travel"].steps] == ["v1_to_v2"]
    assert "travel" not in shipped_chains()


@pytest.mark.parametrize("place", ["", "travel", "travel/v1_to_v2.py"])
@pytest.mark.parametrize("mode", [stat.S_IWGRP, stat.S_IWOTH, stat.S_IWOTH | stat.S_ISVTX])
def test_what_others_can_write_is_not_run(folder, place, mode):
    path = folder / place
    path.chmod(path.stat().st_mode | mode)
    assert refused(folder, "chmod go-w") == str(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("place", ["", "travel", "travel/v1_to_v2.py"])
def test_what_belongs_to_somebody_else_is_not_run(folder, place):
    os.chown(folder / place, OTHER_USER, OTHER_USER)
    assert refused(folder, f"belongs to user {OTHER_USER}") == str(folder / place)


def test_a_folder_that_others_can_replace_is_not_run(folder, tmp_path):
    tmp_path.chmod(0o777)
    assert refused(folder, "chmod go-w") == str(tmp_path)
    tmp_path.chmod(0o1777)
    assert "travel" in chains_of_own_folder(folder)


def test_symbolic_links_lead_to_no_code(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_text(STEP)
    (folder / "travel" / "v2_to_v3.py").symlink_to(elsewhere)
    assert refused(folder, "symbolic link").endswith("v2_to_v3.py")
    (folder / "travel" / "v2_to_v3.py").unlink()
    (folder / "more").symlink_to(folder / "travel")
    assert refused(folder, "symbolic link").endswith("more")
    (folder / "more").unlink()
    link = tmp_path / "current"
    link.symlink_to(folder)
    assert "travel" in chains_of_own_folder(link), (
        "the folder itself may be named by a link: what it leads to is checked"
    )


def test_bytecode_beside_a_step_is_not_run(folder, tmp_path):
    path = folder / "travel" / "v1_to_v2.py"
    source, times = path.read_text(), path.stat()
    path.write_text(source.replace("'b'", "'x'"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    py_compile.compile(str(path))
    path.write_text(source)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (folder / "travel" / "__pycache__").is_dir()
    chain = chains_of_own_folder(folder)["travel"]
    assert unpacked(chain.convert(packed(a=1), 1, 2)) == {"b": 1}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("v1_to_v2.py", "def upcast(state:\n", "SyntaxError"),
        ("v1_to_v2.py", "import no_such_module_anywhere\n", "ModuleNotFoundError"),
        ("v2_to_v3.py", "raise RuntimeError('at import')\n", "RuntimeError: at import"),
        ("v3_to_v4.py", STEP, "no step from version 2 to 3"),
    ],
)
def test_what_cannot_be_used_is_named(folder, name, text, why):
    path = folder / "travel" / name
    path.write_text(text)
    path.chmod(0o644)
    refused(folder, why)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    assert refused(tmp_path / "nowhere", "No such file").endswith("nowhere")
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o600)
    assert refused(tmp_path / "file", "not a folder").endswith("file")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Announce a package with a step of the schema `travel`, as often as it is called."""
    site = tmp_path / "site"
    schema = site / "announced_steps" / "travel"
    schema.mkdir(parents=True)
    for each in (schema.parent, schema):
        (each / "__init__.py").write_text("")
    (schema / "v1_to_v2.py").write_text(STEP)
    monkeypatch.syspath_prepend(site)

    def announce(name):
        information = site / f"{name}-1.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (information / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{name} = announced_steps\n")
        importlib.invalidate_caches()

    yield announce
    for name in [each for each in sys.modules if each.partition(".")[0] == "announced_steps"]:
        del sys.modules[name]


def test_steps_of_an_installed_package_are_used_once_it_announces_them(installed):
    assert not ships_steps()
    installed("one")
    assert ships_steps()
    assert unpacked(shipped_chains()["travel"].convert(packed(a=1), 1, 2)) == {"b": 1}


def test_a_schema_that_two_ship_is_refused(installed, folder):
    installed("one")
    with pytest.raises(ChainInvalid, match="the folder has a schema 'travel', which this build or a package ships"):
        shipped_chains(folder)
    installed("two")
    with pytest.raises(ChainInvalid, match="two packages have a schema 'travel'"):
        shipped_chains()
