"""Claims over HTTP: `thread claim` and `thread silent`."""

import rich_click as click

from gateway.cli.calling import Listing, Remote, as_subject
from gateway.cli.parameters import Page, page_options

_SILENT = Listing(
    {
        "subject_id": "Subject",
        "thread_id": "Thread",
        "agent": "Agent",
        "holder": "Holder",
        "run_id": "Run",
        "claimed_until": "Silent since",
        "takeovers": "Takeovers",
        "stuck": "Stuck",
    },
    empty="No silent threads.",
)


@click.command("claim")
@click.argument("thread_id")
@click.option("--required/--not-required", default=None, help="Whether the thread takes no write without a claim.")
@as_subject
def thread_claim(*, thread_id: str, required: bool | None, remote: Remote) -> None:
    """Show who goes on with a thread, until when, and what was noted; or say whether a claim is required."""
    path = ["threads", thread_id, "resume-claim"]
    if required is not None:
        remote.call("PUT", [*path, "required"], body={"required": required})
        remote.print_record({"thread_id": thread_id, "required": required})
        return
    remote.print_record(remote.call("GET", path))


@click.command("silent")
@click.option(
    "--silent-seconds", type=click.IntRange(min=0), default=0, metavar="N", help="Only those silent for so long."
)
@click.option("--agent", metavar="NAME", help="Only threads of this agent.")
@page_options
@as_subject
def thread_silent(*, silent_seconds: int, agent: str | None, page: Page, remote: Remote) -> None:
    """List threads whose run died: its claim is over, and nobody released it.

    Without --subject, a service key with tenant:admin lists those of the whole tenant.
    """
    query = {"silent_seconds": silent_seconds, "agent": agent}
    remote.print_pages(["silent-threads"], "threads", page, _SILENT, query=query)


COMMANDS = (thread_claim, thread_silent)
