"""Following a job of the gateway to its end."""

import time
from typing import TYPE_CHECKING, Any

from gateway.cli import render
from gateway.cli.failure import Failure

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

# How often a job is asked how far it is.
POLL_SECONDS = 0.5


def job_path(operator: bool, *more: str) -> list[str]:
    """The path of the tenant's own, or of the deployment's."""
    return ["admin", *more] if operator else list(more)


def follow(connection: "Connection", job_id: str, *, operator: bool) -> dict[str, Any]:
    """Show how far a job is until it ends; it goes on when this is interrupted.

    Raises:
        Failure: it failed.
    """
    said = None
    while True:
        job: dict[str, Any] = connection.call("GET", job_path(operator, "jobs", job_id))
        progress = f"{job['done']:,}" if job["total"] is None else f"{job['done']:,} of {job['total']:,}"
        if progress != said:
            said = progress
            render.say(f"{job['kind']}: {progress}")
        if job["state"] == "failed":
            raise Failure("the job failed", detail=job["error"] or "", facts={"job_id": job_id})
        if job["state"] == "done":
            return job
        time.sleep(POLL_SECONDS)
