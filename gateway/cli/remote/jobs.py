"""Following a job of the gateway to its end, or for as long as the caller has time for it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import Command, gathered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.cli.connection import Connection

# How often a job is asked how far it is.
POLL_SECONDS = 0.5

timeout_option = click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait at most this long; the job goes on, and the exit code is 7.  [default: to its end]",
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether a command leaves the job that it begins to itself, and how long it waits otherwise; None: to its end."""

    detach: bool
    timeout_seconds: float | None


def waiting_options(detach_help: str) -> Callable[[Command], Command]:
    """Add ``--detach`` and ``--timeout``."""
    return gathered("waiting", Waiting, click.option("--detach", is_flag=True, help=detach_help), timeout_option)


class Patience:
    """How long the caller waits for a job; without ``timeout_seconds``, until it ends."""

    def __init__(self, timeout_seconds: float | None) -> None:
        self._until = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def wait(self, seconds: float, job_id: str, *, progress: str, follow: str) -> None:
        """Wait for ``seconds``, or for what is left; ``follow`` is the command that waits on.

        Raises:
            Failure: nothing is left; the job goes on.
        """
        left = seconds if self._until is None else self._until - time.monotonic()
        if left <= 0:
            raise Failure(
                "the job has not ended; it goes on",
                detail=progress,
                hint=f"Wait on: {follow}",
                facts={"job_id": job_id},
                exit_code=ExitCode.TIMED_OUT,
            )
        time.sleep(min(seconds, left))


def progress_of(job: "Mapping[str, Any]") -> str:
    """How far a job is, in words, and what it waits for."""
    done, total = job["progress"]["done"], job["progress"]["total"]
    shown = f"{done:,}" if total is None else f"{done:,} of {total:,}"
    waits_for = job.get("waits_for")  # a gateway of another release may not say it
    return f"{shown}, waits for {waits_for}" if waits_for else shown


def target_of(job: "Mapping[str, Any]") -> str:
    """What a job works on, in words; what narrows it not at all works on everything."""
    return " ".join(f"{name}={value}" for name, value in job["target"].items()) or "all"


def flat(job: "Mapping[str, Any]") -> dict[str, Any]:
    """A job as a row of a table, without what it found in detail; the state of a damaged one is that it is."""
    row = {name: value for name, value in job.items() if name not in {"migration", "verification"}}
    state = "damaged" if job.get("damaged") else job["state"]
    return {**row, "state": state, "target": target_of(job), "progress": progress_of(job)}


def follow(
    remote: Remote, connection: "Connection", job_id: str, *, timeout_seconds: float | None = None
) -> dict[str, Any]:
    """Show how far a job is, and what it waits for, until it ends; it goes on when this is interrupted.

    Raises:
        Failure: it failed, or did not end within ``timeout_seconds``.
    """
    shown, patience = None, Patience(timeout_seconds)
    again = f"stateroom job show {job_id} --wait" + " --operator" * remote.operator
    while True:
        job: dict[str, Any] = connection.call("GET", remote.path("jobs", job_id))
        progress = progress_of(job)
        if progress != shown:
            shown = progress
            render.say(f"{job['kind']}: {progress}")
        if job["state"] == "failed":
            raise Failure("the job failed", detail=job["error"] or "", facts={"job_id": job_id})
        if job["state"] == "done":
            return job
        patience.wait(POLL_SECONDS, job_id, progress=progress, follow=again)
