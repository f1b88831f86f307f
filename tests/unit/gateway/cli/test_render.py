import json
import sys
from datetime import UTC, datetime

import pytest

from gateway.cli import render
from gateway.cli.failure import Failure
from gateway.cli.state_diff import Change


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb", "\x9b31m", "\u202eevil", "\u2028", "\ud800", "\x07", "\x7f"])
def test_text_cannot_drive_the_terminal(hostile):
    shown = render.safe(f"x{hostile}y")
    assert shown.isprintable()
    assert shown.startswith("x")
    assert shown.endswith("y")


def test_readable_text_in_any_script_stays_as_it_is():
    assert render.safe("Grüße, 世界 [bold]") == "Grüße, 世界 [bold]"


def test_tables_show_markup_literally_and_whole(capsys):
    render.table(["Thread"], [["[red]" + "t" * 300]], empty="none")
    output = capsys.readouterr().out
    assert "[red]" + "t" * 300 in output
    assert "\x1b" not in output


def test_an_empty_table_leaves_stdout_empty(capsys):
    render.table(["Thread"], [], empty="No threads.")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "No threads.\n"


def test_json_is_one_line_of_ascii(capsys):
    document = {"text": "ü\n\x1b\u2028", "raw": b"\x00\xff", "when": datetime(2026, 1, 2, tzinfo=UTC)}
    render.emit_json(document)
    output = capsys.readouterr().out
    assert output.isascii()
    assert output.count("\n") == 1
    assert json.loads(output) == {
        "text": "ü\n\x1b\u2028",
        "raw": {"$bytes": "AP8="},
        "when": "2026-01-02T00:00:00+00:00",
    }


def test_a_failure_goes_to_stderr_with_its_facts_and_hint(capsys):
    found = Failure("Head moved", detail="Somebody\nsaved", hint="Load again.", facts={"request id": "r-1"})
    render.failure(found)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "error: Head moved",
        "  Somebody",
        "  saved",
        "  request id: r-1",
        "  hint: Load again.",
    ]


def test_a_long_value_is_cut_unless_all_of_it_is_wanted(capsys):
    change = Change("/a", "changed", 1, "x" * 500)
    render.change(change, value_characters_max=20)
    assert "(502 characters)" in capsys.readouterr().out
    render.change(change, value_characters_max=None)
    assert "x" * 500 in capsys.readouterr().out


def test_times_are_shown_in_utc_to_the_second():
    assert render.moment("2026-11-21T23:30:00.5+02:00") == "2026-11-21 21:30:00Z"
    assert render.moment(None) == "-"


def test_a_pipe_never_wraps():
    assert not sys.stdout.isatty()
    assert render.console(sys.stdout).width == render.PIPE_COLUMNS
