"""What the command line prints: tables for people, JSON for programs, failures for both.

Results go to stdout, remarks and failures to stderr. Text that came from an agent or a user (ids, states,
names) is never interpreted: no rich markup, and control characters are shown as escapes, so that a stored
message cannot drive the operator's terminal.
"""

import errno
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TextIO

from gateway.cli.failure import Failure

if TYPE_CHECKING:
    from rich.console import Console

    from gateway.cli.state_diff import Change

_PERCENT = 100
PIPE_COLUMNS = 1000  # a pipe has no edge to wrap at: keep one row on one line
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, bidi overrides, surrogates, line separators


def safe(text: str) -> str:
    """Return ``text`` with everything that could move a cursor or reorder a line shown as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode()
        if unicodedata.category(character) in _UNSAFE
        else character
        for character in text
    )


def console(stream: TextIO) -> "Console":
    """Return a console for ``stream``: as wide as the terminal, or practically endless on a pipe."""
    from rich.console import Console

    return Console(
        file=stream,
        width=None if stream.isatty() else PIPE_COLUMNS,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def results() -> TextIO:
    """Return the stream of results.

    Raises:
        OSError: The process was started without standard output.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdout


def say(text: str) -> None:
    """Print a remark of one or more lines to stderr."""
    print("\n".join(map(safe, text.split("\n"))), file=sys.stderr, flush=True)


def line(text: str) -> None:
    """Print one line of the result to stdout."""
    print(safe(text), file=results(), flush=True)


def emit_json(value: Any) -> None:
    """Print one JSON document on one line; ASCII only, so that it is harmless on a terminal as well."""
    print(json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=_plain), file=results(), flush=True)


def _plain(value: Any) -> Any:
    from datetime import date
    from uuid import UUID

    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        from base64 import b64encode

        return {"$bytes": b64encode(value).decode()}
    raise TypeError(f"cannot print {type(value).__name__} as JSON")


def compact(value: Any) -> str:
    """Return ``value`` as one line of readable JSON."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def cell(value: Any) -> str:
    """Return ``value`` as it stands in a table: "-" for nothing, lists separated by commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "-"
    if isinstance(value, dict):
        return safe(compact(value)) if value else "-"
    return safe(str(value))


def byte_count(count: int) -> str:
    """Return a number of bytes for people, with the exact one: ``1.5 GiB (1610612736)``."""
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"), 1):
        if count < 1024 ** (power + 1) or unit == "EiB":
            break
    return f"{count / 1024**power:.1f} {unit} ({count})" if count >= 1024 else f"{count} bytes"


def moment(value: str | None) -> str:
    """Return an RFC 3339 time to the second, in UTC, for a table."""
    if not value:
        return "-"
    from datetime import UTC, datetime

    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return safe(value)
    return parsed.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def member(name: str, value: Any) -> str:
    """Return the member ``name`` of a resource as it stands in a table: a time as a `moment`, all else as a `cell`."""
    is_time = name == "at" or name.endswith(("_at", "_until", "_since"))
    return moment(value) if is_time and isinstance(value, str) else cell(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table to stdout, or the remark ``empty`` to stderr when there are no rows."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(value) for value in row))
    if grid.row_count:
        console(results()).print(grid)
    else:
        say(empty)


def record(fields: Mapping[str, str]) -> None:
    """Print named values to stdout, one a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {value}", file=results(), flush=True)


def failure(failed: Failure) -> None:
    """Print a failure to stderr: title, detail, facts and hint."""
    from rich.text import Text

    lines = [Text.assemble(("error: ", "bold red"), (safe(failed.title), "bold"))]
    lines += [Text(f"  {safe(text)}") for text in failed.detail.splitlines()]
    lines += [Text.assemble((f"  {name}: ", "dim"), safe(value)) for name, value in failed.facts.items()]
    lines += [Text.assemble(("  hint: ", "green"), safe(text)) for text in failed.hint.splitlines()]
    output = console(sys.stderr)
    for text_line in lines:
        output.print(text_line)


def document(value: Any) -> None:
    """Print a JSON value over several lines, indented, harmless on a terminal."""
    for text in json.dumps(value, ensure_ascii=False, indent=2, default=_plain).splitlines():
        print(safe(text), file=results(), flush=True)


def change(changed: "Change", *, value_characters_max: int | None) -> None:
    """Print one difference of two states: a line for its path, and one for each side."""
    from rich.text import Text

    from gateway.cli.state_diff import ABSENT

    output = console(results())
    sign, style = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}[changed.kind]
    output.print(Text(f"{sign} {safe(changed.path or '/')}", style=style), soft_wrap=True)
    for side, value, colour in (("-", changed.before, "red"), ("+", changed.after, "green")):
        if value is not ABSENT:
            text = safe(compact(value))
            if value_characters_max is not None and len(text) > value_characters_max:
                text = f"{text[:value_characters_max]}... ({len(text):,} characters)"
            output.print(Text(f"    {side} {text}", style=colour), soft_wrap=True)


def bytes_progress() -> Callable[[int, int | None], None] | None:
    """What shows on a terminal how many bytes are there, and of how many; None: nobody looks."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int | None) -> None:
        share = f" of {total:,} ({done * _PERCENT // total if total else _PERCENT} %)" if total is not None else ""
        print(f"\r{done:,}{share} bytes", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show


class Progress:
    """How many of something are done, shown in one place of a terminal; nobody looks elsewhere.

    Args:
        what: What is counted, in the plural.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_on = sys.stderr.isatty()
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def at(self, count: int) -> None:
        """Show that so many are done."""
        if self._is_on:
            print(f"\r{count:,} {self._what}", end="", file=sys.stderr, flush=True)
            self._is_shown = True

    def say(self, text: str) -> None:
        """Print a remark on a line of its own."""
        self._leave()
        say(text)

    def _leave(self) -> None:
        if self._is_shown:
            print(file=sys.stderr, flush=True)
        self._is_shown = False
