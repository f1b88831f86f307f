"""How the command line fails: exit codes, and the one exception that a person reads.

A `Failure` says what went wrong and what to do; it never carries a secret or a payload. Anything else that
escapes a command is a defect of the command line, not of its use, and keeps its traceback.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process answers to its shell; documented in `docs/operations/cli.md`, never renumbered."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNAVAILABLE = 5
    CONFLICT = 6
    TIMED_OUT = 7


class Failure(Exception):
    """A command cannot do what was asked.

    Args:
        title: One line: what went wrong.
        detail: More of it, when there is more.
        hint: A sentence on what to do about it.
        facts: Short named facts such as the problem's code and the request id.
        exit_code: The exit code of the process.
    """

    def __init__(
        self,
        title: str,
        *,
        detail: str = "",
        hint: str = "",
        facts: dict[str, str] | None = None,
        exit_code: ExitCode = ExitCode.FAILURE,
    ) -> None:
        super().__init__(title)
        self.title = title
        self.detail = detail
        self.hint = hint
        self.facts = facts or {}
        self.exit_code = exit_code
