import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import rich_click as click

from gateway.cli.commands import commands
from gateway.cli.environment import bypass_proxies
from gateway.cli.main import run

HEAVY = (
    "gateway.app",
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


@pytest.mark.slow
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
    assert run(["serve"]) == 2
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


def test_a_key_that_is_given_twice_is_refused_and_not_chosen(tmp_path, command, environment):
    (tmp_path / "key").write_text("sr_live_other")
    environment.setenv("STATEROOM_API_KEY_FILE", str(tmp_path / "key"))
    refused = command("thread", "list")
    assert refused.code == 2
    assert refused.err.startswith("error: STATEROOM_API_KEY and STATEROOM_API_KEY_FILE are both set")
    environment.setenv("STATEROOM_DATABASE_OWNER_URL", "postgresql://a@b/c")
    environment.setenv("STATEROOM_DATABASE_OWNER_URL_FILE", str(tmp_path / "key"))
    refused = command("db", "current")
    assert refused.code == 2
    assert "are both set" in refused.err


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "127.0.0.1:abc", ":abc", "http://[::1", "ftp://host", "http://"]
)
def test_what_is_no_url_of_a_gateway_is_one_line_and_wrong_usage(url, command, environment):
    environment.setenv("STATEROOM_URL", url)
    refused = command("thread", "list")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.splitlines()[0] == "error: STATEROOM_URL is not an http or https URL"


@pytest.mark.parametrize(
    "arguments", [["serve"], ["worker"], ["init"], ["fsck", "--all"], ["db", "current"], ["db", "upgrade"]]
)
def test_a_database_url_with_a_wrong_port_is_wrong_usage_and_not_shown(arguments, environment, capsys):
    url = "postgresql://gw_app:hunter2@host:hunter3/stateroom"
    for name in ("STATEROOM_DATABASE_URL", "STATEROOM_DATABASE_OWNER_URL"):
        environment.setenv(name, url)
    environment.setenv("STATEROOM_DEPLOYMENT_ID", "00000000-0000-4000-8000-000000000001")
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert "is not a database URL" in shown.err
    assert "hunter" not in shown.err + shown.out


@pytest.mark.parametrize("arguments", [["db", "current"], ["db", "upgrade"]])
def test_a_database_that_is_away_is_unavailable(arguments, environment, capsys):
    environment.setenv("STATEROOM_DATABASE_OWNER_URL", "postgresql://gw_migrate:hunter2@127.0.0.1:1/stateroom")
    assert run(arguments) == 5
    assert "hunter2" not in capsys.readouterr().err


MAIN = [sys.executable, "-c", "from gateway.cli.main import main; main()"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["doctor"], ["doctor", "--json"]], ids=" ".join)
def test_an_output_that_takes_nothing_is_a_failure_in_one_line(arguments):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*MAIN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written\n  No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["doctor", "doctor --json"])
def test_a_closed_output_is_a_failure_in_one_line(arguments):
    command = f'exec "$0" -c "from gateway.cli.main import main; main()" {arguments} >&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written\n  Bad file descriptor\n"


@pytest.mark.slow
def test_ctrl_c_while_the_commands_are_imported_ends_the_process_without_a_word():
    # The first module that the commands import sends the signal, as a person would in that moment.
    code = """
import importlib.abc, os, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "rich_click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background has it ignored
from gateway.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.slow
def test_this_machine_is_reached_without_the_proxy_that_is_set(gateway):
    gateway.answer({"threads": [], "next_cursor": None})
    environ = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    environ |= dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:1")
    environ |= {"STATEROOM_URL": gateway.url, "STATEROOM_API_KEY": "sr_live_x"}
    done = subprocess.run([*MAIN, "thread", "list"], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(gateway.requests) == 1


def test_hosts_that_need_no_proxy_already_are_kept():
    environ = {"NO_PROXY": "internal.example,localhost"}
    bypass_proxies(environ)
    assert environ["no_proxy"] == environ["NO_PROXY"] == "internal.example,localhost,127.0.0.1,::1"
