"""Options and values that several commands share."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import rich_click as click

from gateway.sizes import parse_size

Command = TypeVar("Command", bound=Callable[..., Any])

STATUSES = ("active", "waiting", "failed", "done")
PAGE_ROWS = 50  # what a person reads; --limit or --all asks for more
_DURATION = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_PERIOD = re.compile(r"(\d{1,9})([smhdwy]?)", re.ASCII)
UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType[Any]):
    """A time: RFC 3339 with an offset, or a duration such as ``24h`` counted from now.

    Args:
        direction: Whether a duration lies in the past or in the future.
        never: Whether ``never`` is an answer, too.
    """

    name = "time"

    def __init__(self, direction: Literal["ago", "ahead"], *, never: bool = False) -> None:
        self._sign = -1 if direction == "ago" else 1
        self._never = never

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | Literal["never"]:
        """Return the time that ``value`` names, in UTC, or ``never``."""
        if isinstance(value, datetime):
            return value
        if self._never and value == "never":
            return "never"
        if match := _DURATION.fullmatch(value):
            return datetime.now(UTC) + self._sign * timedelta(**{_UNITS[match[2]]: int(match[1])})
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither a duration such as 24h nor an RFC 3339 time", param, ctx)
        if parsed.tzinfo is None:
            self.fail(f"{value!r} needs a time zone, such as {value}Z", param, ctx)
        return parsed.astimezone(UTC)


class Period(click.ParamType[Any]):
    """How long something lasts, such as ``90d``, ``12h`` or ``2y``; a bare number is seconds."""

    name = "period"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the seconds that ``value`` names."""
        seconds = value if isinstance(value, int) else seconds_of(value.strip().lower())
        if seconds is None:
            self.fail(f"{value!r} is no period such as 90d, 12h or 2y", param, ctx)
        return seconds


def seconds_of(text: str) -> int | None:
    """The seconds of a period such as ``90d``; None: it is none."""
    period = _PERIOD.fullmatch(text)
    return None if period is None else int(period[1]) * UNIT_SECONDS[period[2]]


class ByteSize(click.ParamType[Any]):
    """A number of bytes such as ``500``, ``10GiB`` (powers of 1024) or ``1.5 TB`` (powers of 1000), or ``none``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["none"]:
        """Return the whole number of bytes that ``value`` names, or ``none``."""
        if isinstance(value, int):
            return value
        if value.strip().lower() == "none":
            return "none"
        try:
            return parse_size(value)
        except ValueError:
            self.fail(f"{value!r} is no size such as 10GiB, 500MB or 1048576, below 8EiB, nor none", param, ctx)


class OrNone(click.ParamType[Any]):
    """A value that is a whole number once it is read, or ``none``.

    Args:
        name: The name in the help.
        read: Reads the text in lower case; None: it is no such value.
        wanted: The kind of value, as a refusal names it.
    """

    def __init__(self, name: str, read: Callable[[str], int | None], wanted: str) -> None:
        self.name = name
        self._read = read
        self._wanted = wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["none"]:
        """Return the number that ``value`` names, or ``none``."""
        if isinstance(value, int):
            return value
        text = value.strip().lower()
        if text == "none":
            return "none"
        number = self._read(text)
        if number is None:
            self.fail(f"{value!r} is no {self._wanted}, nor none", param, ctx)
        return number


COUNT = OrNone("count", lambda text: int(text) if text.isdecimal() else None, "whole number")


def gathered(name: str, shape: type[Any], *options: Callable[..., Any], **fixed: Any) -> Callable[[Command], Command]:
    """Give a command several options as one value.

    Args:
        name: The command's parameter that takes the value.
        shape: The value's dataclass; its fields are called like options or arguments of the command.
        options: Options to add; the command may have others above that are fields, too.
        fixed: Fields that are no options.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def gathering(*args: Any, **options: Any) -> Any:
            taken = {each.name: options.pop(each.name) for each in fields(shape) if each.name in options}
            return command(*args, **{name: shape(**taken, **fixed)}, **options)

        for option in reversed(options):
            option(gathering)
        return cast("Command", gathering)

    return decorate


@dataclass(frozen=True, slots=True)
class Page:
    """How much of a listing a person wants to read."""

    limit: int
    everything: bool

    @property
    def rows_wanted(self) -> int | None:
        """How many rows are shown at most; None: all."""
        return None if self.everything else self.limit


EVERYTHING = Page(0, everything=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document a line.")
page_options = gathered(
    "page",
    Page,
    click.option(
        "--limit", type=click.IntRange(1), default=PAGE_ROWS, show_default=True, help="List at most this many."
    ),
    click.option("--all", "everything", is_flag=True, help="List everything, page after page."),
)
url_option = click.option(
    "--url", envvar="STATEROOM_URL", show_envvar=True, metavar="URL", help="Where the gateway answers."
)
subject_option = click.option(
    "--subject",
    envvar="STATEROOM_SUBJECT",
    show_envvar=True,
    metavar="ID",
    help="The subject to act for, when the API key is a service key; ~shared is the tenant's own.",
)
data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of an embedded gateway, running or not, instead of settings in the environment.",
)
