"""Verification over HTTP: `verify thread`, `verify subject`, `verify tenant`, `verify all`, with progress.

A subject is verified a stretch at a time, which the gateway bounds; each stretch is a line of progress on stderr. A
tenant, and all tenants, are verified by jobs of the gateway, which go on when the command is interrupted. Findings go
to stdout and make the exit code 1.
"""

from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_operator, as_subject, as_tenant
from gateway.cli.failure import Failure
from gateway.cli.remote.jobs import follow, timeout_option

_COUNTS = (
    "threads", "threads_skipped", "threads_frozen", "checkpoints", "pending_writes", "pieces", "items_opened",
    "items_skipped",
)  # fmt: skip
_COLUMNS = {
    "subject": "Subject",
    "thread_id": "Thread",
    "namespace": "Namespace",
    "checkpoint_id": "Checkpoint",
    "code": "Finding",
    "detail": "Detail",
}
_TENANT_COLUMNS = {"tenant_id": "Tenant", "code": "Finding", "count": "Count", "job_id": "Job"}
_ATTEMPT_SECONDS = 600.0  # a thread is verified in one request, however long it is


class _Tally:
    """What was verified so far."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts = dict.fromkeys(_COUNTS, 0)
        self.findings: list[dict[str, Any]] = []

    def take(self, report: dict[str, Any], subject: str | None) -> None:
        for name in _COUNTS:
            self._counts[name] += report.get(name, 0)  # a gateway of an older release counts less
        for each in report["findings"]:
            finding = {"subject": subject, **each}
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
            rows = [[render.cell(finding[name]) for name in _COLUMNS] for finding in self.findings]
            render.table(list(_COLUMNS.values()), rows, empty="")
        if self.findings:
            raise _damage(len(self.findings))


def _damage(count: int) -> Failure:
    return Failure(
        "Stored state was changed outside the gateway or lost",
        detail=f"{count:,} findings",
        hint="Keep the database as it is for whoever looks into it; see docs/formats/head-and-thread-seals.md.",
    )


@click.group("verify")
def verify_group() -> None:
    """Prove that stored threads are whole and as the gateway wrote them."""


@verify_group.command("thread")
@click.argument("thread_id")
@as_subject
def verify_thread(*, thread_id: str, remote: Remote) -> None:
    """Verify one thread."""
    tally = _Tally(as_json=remote.as_json)
    with remote.connect(attempt_seconds=_ATTEMPT_SECONDS) as connection:
        tally.take(connection.call("POST", ["threads:verify"], body={"thread_id": thread_id}), remote.subject)
    tally.say()
    tally.finish()


@verify_group.command("subject")
@as_subject
def verify_subject(*, remote: Remote) -> None:
    """Verify all threads and items of a subject."""
    tally = _Tally(as_json=remote.as_json)
    with remote.connect(attempt_seconds=_ATTEMPT_SECONDS) as connection:
        for report in connection.each_page("POST", ["threads:verify"], body={}):
            tally.take(report, remote.subject)
            tally.say()
    tally.finish()


def _verify_by_job(remote: Remote, timeout_seconds: float | None) -> None:
    with remote.connect() as connection:
        started = connection.call("POST", remote.path("verify"))
        render.say(f"Job {started['job_id']}")
        job = follow(remote, connection, started["job_id"], timeout_seconds=timeout_seconds)
    report: dict[str, Any] = job["verification"]
    total = sum(report["found"].values())
    counts = {name: report.get(name, 0) for name in _COUNTS}  # a release may have begun it that counted less
    columns = _TENANT_COLUMNS if remote.operator else _COLUMNS
    rows = [_row(each) for each in report["findings"]]
    shown = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
    known_losses = report.get("known_losses", 0)
    render.say(f"Verified {shown}; {total} findings.")
    if known_losses:
        tenants = " and tenants" if remote.operator else ""
        render.say(
            f"{known_losses:,} anchored heads{tenants} are known to be lost since a restore that was accepted; they are"
            " no finding."
        )
    if remote.as_json:
        for row in rows:
            render.emit_json(row)
        render.emit_json({**counts, "known_losses": known_losses, "findings": total})
    elif total:
        table = [[render.cell(row.get(name)) for name in columns] for row in rows]
        render.table(list(columns.values()), table, empty="")
        for code, count in report["found"].items():
            render.say(f"{code}: {count:,}")
    if total:
        raise _damage(total)


def _row(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding as the other commands print it."""
    if "tenant_id" in finding:
        return finding
    subject = finding.pop("subject_id", None)
    return {"subject": subject, **finding}


@verify_group.command("tenant")
@timeout_option
@as_tenant
def verify_tenant(*, timeout_seconds: float | None, remote: Remote) -> None:
    """Verify all threads and items of all subjects, and that no subject is gone, with a key that has tenant:admin."""
    _verify_by_job(remote, timeout_seconds)


@verify_group.command("all")
@timeout_option
@as_operator
def verify_all(*, timeout_seconds: float | None, remote: Remote) -> None:
    """Verify every tenant, as the operator (STATEROOM_OPERATOR_KEY).

    Shows codes and numbers by tenant; what is damaged, each tenant sees with `stateroom job show JOB`.
    """
    _verify_by_job(remote, timeout_seconds)


COMMANDS = (verify_group,)
