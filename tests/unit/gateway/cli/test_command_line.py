import subprocess
import sys
from importlib.metadata import version

import pytest
import rich_click as click

from gateway.cli.main import commands, run

HEAVY = (
    "litestar",
    "sqlalchemy",
    "asyncpg",
    "boto3",
    "alembic",
    "cryptography",
    "uvicorn",
    "stateroom",
    "msgspec",
)


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, inner in group.commands.items():
        if isinstance(inner, click.Group):
            found += every_command(inner, (*path, name))
        else:
            found.append((*path, name))
    return found


def test_starting_up_imports_no_server_database_or_sdk():
    code = (
        "import sys; from gateway.cli.main import run; run(['checkpoint', 'diff', '--help']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("path", every_command(commands), ids=" ".join)
def test_every_command_explains_itself(path, capsys):
    assert run([*path, "--help"]) == 0
    assert "Usage: stateroom" in capsys.readouterr().out


def test_version_is_the_package_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"stateroom {version('stateroom-gateway')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["thread", "show"],
        ["thread", "list", "--limit", "0"],
        ["thread", "settings", "t1"],
        ["checkpoint", "list", "t1", "--agent", "a"],
        ["checkpoint", "list", "--since", "yesterday"],
        ["checkpoint", "list", "--since", "2026-01-01T00:00:00"],
        ["serve", "--data-dir", "d"],
        ["serve", "--write-env", "e"],
        ["serve", "--listen", "nowhere"],
        ["serve", "--embedded", "--port", "65536"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2_and_prints_no_result(arguments, capsys, environment):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["thread", "list"], "STATEROOM_URL"),
        (["thread", "list", "--url", "http://127.0.0.1:9"], "STATEROOM_API_KEY"),
        (["tenant", "list", "--url", "http://127.0.0.1:9"], "STATEROOM_OPERATOR_KEY"),
        (["db", "upgrade"], "STATEROOM_DATABASE_OWNER_URL"),
        (["init"], "STATEROOM_DEPLOYMENT_ID"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_not_set_is_named(arguments, missing, capsys, environment):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {missing} is not set\n")


def test_serving_without_settings_names_what_is_missing(capsys, environment):
    assert run(["serve"]) == 1
    assert "STATEROOM_DATABASE_URL" in capsys.readouterr().err


def test_a_key_may_come_from_a_file(tmp_path, command, gateway, environment):
    path = tmp_path / "key"
    path.write_text("sr_live_from_file\n")
    environment.delenv("STATEROOM_API_KEY")
    environment.setenv("STATEROOM_API_KEY_FILE", str(path))
    gateway.answer({"threads": [], "next_cursor": None})
    assert command("thread", "list").code == 0
    assert gateway.last.headers["authorization"] == "Bearer sr_live_from_file"


def test_a_root_key_file_is_private_and_never_overwritten(tmp_path, capsys):
    path = tmp_path / "root.key"
    assert run(["root-key", "create", str(path)]) == 0
    assert capsys.readouterr().out == f"STATEROOM_ROOT_KEY=file:{path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert run(["root-key", "create", str(path)]) == 1
    captured = capsys.readouterr()
    assert "never overwritten" in captured.err
    assert path.read_bytes() == before
