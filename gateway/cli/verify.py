"""Verification over HTTP: `verify thread`, `verify subject`, `verify tenant`, with progress.

A subject is verified a stretch at a time, which the gateway bounds; each stretch is a line of progress on stderr.
Findings go to stdout and make the exit code 1.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import json_option, subject_option, url_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

_COUNTS = ("threads", "threads_skipped", "checkpoints", "pending_writes", "pieces")
_COLUMNS = {
    "subject": "Subject",
    "thread_id": "Thread",
    "namespace": "Namespace",
    "checkpoint_id": "Checkpoint",
    "code": "Finding",
    "detail": "Detail",
}
_ATTEMPT_SECONDS = 600.0  # a thread is verified in one request, however long it is


def _open(url: str | None, subject: str | None) -> "Connection":
    from gateway.cli.connection import Connection
    from stateroom import Timeouts

    patience = Timeouts(connect_seconds=2.0, attempt_seconds=_ATTEMPT_SECONDS, total_seconds=_ATTEMPT_SECONDS)
    return Connection.open(url, credential="STATEROOM_API_KEY", subject=subject, timeouts=patience)


class _Tally:
    """What was verified so far."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts = dict.fromkeys(_COUNTS, 0)
        self.findings: list[dict[str, Any]] = []

    def take(self, report: dict[str, Any], subject: str | None) -> None:
        for name in _COUNTS:
            self._counts[name] += report[name]
        for found in report["findings"]:
            finding = {"subject": subject, **found}
            self.findings.append(finding)
            if self._as_json:
                render.emit_json(finding)

    def say(self) -> None:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in self._counts.items())
        render.say(f"Verified {counts}; {len(self.findings)} findings.")

    def finish(self) -> None:
        """Print what was found.

        Raises:
            Failure: something was.
        """
        if self._as_json:
            render.emit_json({**self._counts, "findings": len(self.findings)})
        elif self.findings:
            rows = [[render.cell(found[name]) for name in _COLUMNS] for found in self.findings]
            render.table(list(_COLUMNS.values()), rows, empty="")
        if self.findings:
            raise Failure(
                "Stored state was changed outside the gateway or lost",
                detail=f"{len(self.findings)} findings",
                hint="Keep the database as it is for whoever looks into it; see docs/formats/head-and-thread-seals.md.",
                exit_code=ExitCode.FAILURE,
            )


def _stretches(connection: "Connection") -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        report = connection.call("POST", ["verify"], body={"cursor": cursor})
        yield report
        cursor = report["next_cursor"]
        if cursor is None:
            return


def _verify_subject(connection: "Connection", tally: _Tally, subject: str | None) -> None:
    for report in _stretches(connection):
        tally.take(report, subject)
        tally.say()


@click.group("verify")
def verify_group() -> None:
    """Prove that stored threads are whole and as the gateway wrote them."""


@verify_group.command("thread")
@click.argument("thread_id")
@subject_option
@url_option
@json_option
def verify_thread(*, thread_id: str, subject: str | None, url: str | None, as_json: bool) -> None:
    """Verify one thread."""
    tally = _Tally(as_json=as_json)
    with _open(url, subject) as connection:
        tally.take(connection.call("POST", ["verify"], body={"thread_id": thread_id}), subject)
    tally.say()
    tally.finish()


@verify_group.command("subject")
@subject_option
@url_option
@json_option
def verify_subject(*, subject: str | None, url: str | None, as_json: bool) -> None:
    """Verify all threads of a subject."""
    tally = _Tally(as_json=as_json)
    with _open(url, subject) as connection:
        _verify_subject(connection, tally, subject)
    tally.finish()


@verify_group.command("tenant")
@url_option
@json_option
def verify_tenant(*, url: str | None, as_json: bool) -> None:
    """Verify all threads of all subjects, with a key that has tenant:admin and subject:act_as."""
    tally = _Tally(as_json=as_json)
    with _open(url, None) as listing:
        for each in listing.pages(["subjects"], "subjects"):
            subject = each["subject_id"]
            render.say(f"Subject {subject}")
            with _open(url, subject) as connection:
                _verify_subject(connection, tally, subject)
    tally.finish()


COMMANDS = (verify_group,)
