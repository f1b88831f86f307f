"""Running recorded steps again with a program of this machine: `replay`.

It asks no gateway. The program is imported from the folder the command is run in, and what it prints goes to standard
error.
"""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import json_option

if TYPE_CHECKING:
    from stateroom.testing import Report

_SHOWN_CHARACTERS = 60  # of a value in the table; --json has all of it
_EXIT_CODES = {"same": ExitCode.OK, "drift": ExitCode.FAILURE, "failed": ExitCode.USAGE}


@click.group("replay")
def replay_group() -> None:
    """Recorded steps, run again."""


@replay_group.command("check")
@click.argument("fixture", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--graph", metavar="MODULE:NAME", help="A compiled LangGraph graph that runs them.")
@click.option(
    "--run",
    "function",
    metavar="MODULE:NAME",
    help="A function that runs them: it gets the state before a step, and returns what the step makes.",
)
@click.option("--step", "steps", metavar="ID", multiple=True, help="Only the step of this checkpoint; more than once.")
@json_option
def replay_check(
    *, fixture: Path, graph: str | None, function: str | None, steps: tuple[str, ...], as_json: bool
) -> None:
    """Run the steps of a fixture again, and say what drifted: model, parameters, seed, prompt, result.

    Exit codes: 0 no drift, 1 drift, 2 a step could not be run, or none.
    """
    named = graph or function
    if named is None or (graph and function):
        raise click.UsageError("Name what runs the steps: --graph or --run.")
    with contextlib.redirect_stdout(sys.stderr):
        report = _report(fixture, named, steps, is_graph=graph is not None)
    if as_json:
        import msgspec

        render.emit_json(msgspec.to_builtins(report))
    else:
        render.table(("Step", "Checkpoint", "What", "Outcome", "Recorded", "Now"), _rows(report), empty="No steps.")
    raise SystemExit(_EXIT_CODES[report.outcome])


def _report(fixture: Path, named: str, steps: Sequence[str], *, is_graph: bool) -> "Report":
    """Run the steps.

    Raises:
        Failure: the file or the program cannot be used.
    """
    from stateroom import StateroomError
    from stateroom.testing import Fixture, check_run

    try:
        read = Fixture.read(fixture)
        program = _imported(named)
        if not is_graph:
            return check_run(read, program, steps)
        try:
            from stateroom.testing.graphs import Graph, check_graph
        except ModuleNotFoundError as error:
            raise Failure("LangGraph is not installed", detail=str(error), exit_code=ExitCode.USAGE) from None
        if not isinstance(program, Graph):
            raise Failure(f"{named} is no compiled graph", exit_code=ExitCode.USAGE)
        return check_graph(read, program, steps)
    except StateroomError as error:
        raise Failure("The fixture cannot be used", detail=error.detail, exit_code=ExitCode.USAGE) from None


def _imported(named: str) -> Any:
    """What a module has under a name.

    Raises:
        Failure: the module cannot be imported, or has no such name.
    """
    module_name, colon, name = named.partition(":")
    if not (module_name and colon and name):
        raise click.UsageError(f"{named!r} is not MODULE:NAME.")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a text
    try:
        found = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a program may raise anything
        detail = f"{type(error).__name__}: {error}"
        raise Failure(f"{named} cannot be imported", detail=detail, exit_code=ExitCode.USAGE) from None
    return found


def _rows(report: "Report") -> list[tuple[str, ...]]:
    """A row for each thing that was compared and is known, and for a step of which nothing was."""
    rows: list[tuple[str, ...]] = []
    for each in report.steps:
        step = str(each.step), each.checkpoint_id
        if each.detail is not None or not each.comparisons:
            rows.append((*step, "", each.outcome, "", render.safe(each.detail or "")))
        rows += [
            (*step, render.safe(one.what), one.outcome, *_shown(_text(one.recorded), _text(one.now)))
            for one in each.comparisons
            if one.recorded is not None or one.now is not None
        ]
    return rows


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    return render.safe(text)


def _shown(recorded: str, now: str) -> tuple[str, str]:
    """Both as far as there is room, from a little before they begin to differ."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(recorded, now, strict=False)))
    start = max(0, alike - _SHOWN_CHARACTERS // 3)
    if recorded == now or max(len(recorded), len(now)) <= _SHOWN_CHARACTERS:
        start = 0
    return _cut(recorded, start), _cut(now, start)


def _cut(text: str, start: int) -> str:
    end = start + _SHOWN_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if text[end:] else "")


COMMANDS = (replay_group,)
