"""Completion of commands and options, as a person has it: in a real bash, by the Tab key."""

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

from gateway.cli.main import run

SECONDS_MAX = 30.0


class Terminal:
    """A bash at a terminal, to which a person types."""

    def __init__(self, home: Path) -> None:
        self.shown = ""
        programs = str(Path(sys.executable).parent)  # where the environment has `stateroom`
        environ = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", "PS1": "$ "}
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.chdir(home)
            os.execvpe("bash", ["bash", "--noprofile", "--norc", "-i"], environ)  # noqa: S606

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def shows(self, wanted: str) -> bool:
        """Whether it comes to show a text; what it showed before it is forgotten then."""
        until = time.monotonic() + SECONDS_MAX
        while wanted not in self.shown:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._terminal], [], [], left)[0]:
                return False
            self.shown += os.read(self._terminal, 65536).decode(errors="replace")
        self.shown = self.shown.split(wanted, 1)[1]
        return True

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@pytest.fixture
def terminal(tmp_path):
    made = Terminal(tmp_path)
    made.type('source <(stateroom completion bash); bind "set enable-bracketed-paste off"; echo lo""aded\n')
    assert made.shows("loaded"), made.shown
    yield made
    made.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("stateroom operator-", "key "),  # a command
        ("stateroom key rot", "ate "),  # one of a group
        ("stateroom item sea", "rch "),
        ("stateroom key rotate --time", "out "),  # an option
        ("stateroom completion fi", "sh "),  # a choice
        ("stateroom restore acc", "ept "),  # of the group that takes threads, too
        ("stateroom doctor --data-dir fold", "er/"),  # a folder
    ],
)
def test_the_tab_key_completes_what_was_typed(terminal, tmp_path, typed, completed):
    (tmp_path / "folder").mkdir()
    terminal.type(f"{typed}\t")
    assert terminal.shows(typed + completed), terminal.shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_stateroom_itself(shell, capsys):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_STATEROOM_COMPLETE={shell}_complete" in script
    assert script.endswith("\n")


def test_another_shell_is_named_as_unknown(capsys):
    assert run(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err
