"""The archive over HTTP: `archive`, `restore`, and `jobs`: who is at what.

Both verbs are jobs of the gateway: they go on when the command is interrupted. How far a thaw is, which takes a cold
storage class hours, goes to stderr.
"""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_either, as_subject
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import STATUSES, Page, Period, gathered, json_option, page_options
from gateway.cli.remote.jobs import Patience, Waiting, flat, follow, waiting_options

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

# How often a thread is asked where it is; what is being thawed, less often.
LOOK_SECONDS = 0.5
LOOK_SECONDS_MAX = 30.0
# What the job says is asked for as often as that.
LOOKS_FOR_THE_JOB = 4
_JOBS = Listing(
    {name: name for name in ("job_id", "kind", "target", "state", "progress", "error", "updated_at")},
    empty="No jobs.",
    row=flat,
)
_waiting_options = waiting_options("Start the job and do not wait for its end.")


def _move(verb: str, thread_id: str, query: dict[str, Any], waiting: Waiting, remote: Remote) -> None:
    wanted = "archive" if verb == "archive" else "hot"
    with remote.connect() as connection:
        begun = connection.call("POST", ["threads", thread_id, verb], query=query)
        if "job_id" not in begun:
            render.say(f"{thread_id} is in the {wanted} tier already.")
        elif waiting.detach:
            render.say(f"Job {begun['job_id']}")
        else:
            _wait(connection, thread_id, verb, wanted, begun["job_id"], waiting.timeout_seconds)
        thread = begun if waiting.detach else connection.call("GET", ["threads", thread_id])
    if remote.as_json:
        shown = thread
    elif "job_id" in thread:
        shown = flat(thread)
    else:
        shown = {name: value for name, value in thread.items() if name != "archive"} | (thread.get("archive") or {})
    remote.print_record(shown)


def _wait(
    connection: "Connection", thread_id: str, verb: str, wanted: str, job_id: str, timeout_seconds: float | None
) -> None:
    """Show how far it is until the thread is there; what the job ended with is the tenant's to see.

    Raises:
        Failure: the job ended, and the thread is not there; or it did not end within ``timeout_seconds``.
    """
    shown, waits, looks, patience = None, "", 0, Patience(timeout_seconds)
    while True:
        thread = connection.call("GET", ["threads", thread_id])
        if _is_there(thread, wanted):
            return
        archive = thread.get("archive")
        progress = _progress(verb, archive) + waits
        if progress != shown:
            shown = progress
            render.say(progress)
        over = archive is not None and archive["job_id"] is None and archive["state"] != "unknown"
        job = _job(connection, job_id) if looks and not looks % LOOKS_FOR_THE_JOB and not over else None
        if job is not None:
            waits = f", waits for {job['waits_for']}" if job.get("waits_for") else ""
            over = (verb == "archive" or archive is None) and job["state"] in {"done", "failed"}
        if over:
            # Asked again: it may have ended between the two answers.
            if _is_there(connection.call("GET", ["threads", thread_id]), wanted):
                return
            raise Failure(
                f"the job ended, and the thread is not in the {wanted} tier",
                detail=_why(connection, job_id),
                hint="Try again; `stateroom jobs` shows a tenant:admin why.",
                facts={"job_id": job_id},
                exit_code=ExitCode.CONFLICT,
            )
        looks += 1
        seconds = archive["retry_after_seconds"] if archive and archive["state"] == "thawing" else LOOK_SECONDS
        seconds = max(LOOK_SECONDS, min(seconds, LOOK_SECONDS_MAX))
        patience.wait(seconds, job_id, progress=progress, follow=f"stateroom {verb} {thread_id}")


def _is_there(thread: dict[str, Any], wanted: str) -> bool:
    """Whether a thread is in a tier, and all of it, if that is the hot one."""
    return thread["tier"] == wanted and (wanted != "hot" or "segments" not in thread)


def _progress(verb: str, archive: dict[str, Any] | None) -> str:
    if verb == "archive":
        return "archiving"
    if archive is None:
        return "restoring"
    if archive["state"] == "thawing":
        share = archive["progress"]
        return "thawing" if share is None else f"thawing: {share:.0%} of the longest it takes"
    return "restoring" if archive["state"] == "ready" else "waiting for the thaw to begin"


def _job(connection: "Connection", job_id: str) -> dict[str, Any] | None:
    """The job; None: this key may not see jobs."""
    try:
        job: dict[str, Any] = connection.call("GET", ["jobs", job_id])
    except Failure as refused:
        if refused.exit_code in {ExitCode.DENIED, ExitCode.NOT_FOUND}:
            return None
        raise
    return job


def _why(connection: "Connection", job_id: str) -> str:
    job = _job(connection, job_id)
    return "" if job is None else job["error"] or job["note"] or ""


@dataclass(frozen=True, slots=True)
class _Old:
    """Which checkpoints of a thread that stays hot are moved; nothing said: the whole thread is."""

    older_than_seconds: int | None
    keep_last: int | None
    keep_first: int | None
    keep_every: int | None
    keep_status: str | None

    def query(self) -> dict[str, Any]:
        """The query parameters that say it, without those that were not given."""
        asked = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in asked.items() if value is not None}


_old_options = gathered(
    "old",
    _Old,
    click.option(
        "--older-than",
        "older_than_seconds",
        type=Period(),
        metavar="AGE",
        help="Move checkpoints that were not made or written to for so long, such as 30d.",
    ),
    click.option(
        "--keep", "keep_last", type=click.IntRange(0), metavar="N", help="But not the newest N of each namespace."
    ),
    click.option("--keep-first", type=click.IntRange(0), metavar="N", help="And not the oldest N."),
    click.option("--keep-every", type=click.IntRange(1), metavar="N", help="And not every N-th step."),
    click.option("--keep-status", type=click.Choice(STATUSES), help="And not those that had or came to this status."),
)


@click.command("archive")
@click.argument("thread_id")
@click.option("--storage-class", metavar="CLASS", help="S3 storage class, such as GLACIER.  [default: the bucket's]")
@_old_options
@_waiting_options
@as_subject
def archive(*, thread_id: str, storage_class: str | None, old: _Old, waiting: Waiting, remote: Remote) -> None:
    """Move a thread to the archive: one sealed object instead of rows. It stays listed; unless frozen, readable.

    With --older-than or --keep only its older checkpoints move, into segments; the thread stays hot, and history and
    loads go on into them.
    """
    if old.query():
        _move_part("archive", thread_id, {"storage_class": storage_class, **old.query()}, waiting, remote)
    else:
        _move("archive", thread_id, {"storage_class": storage_class}, waiting, remote)


def _move_part(verb: str, thread_id: str, query: dict[str, Any], waiting: Waiting, remote: Remote) -> None:
    """Move checkpoints of a thread that stays hot; its tier does not say whether they are there."""
    with remote.connect() as connection:
        begun = connection.call("POST", ["threads", thread_id, verb], query=query)
        if "job_id" not in begun:
            render.say(f"{thread_id} is in the {begun['tier']} tier already.")
        elif waiting.detach or _job(connection, begun["job_id"]) is None:
            render.say(f"Job {begun['job_id']}")
        else:
            follow(remote, connection, begun["job_id"], timeout_seconds=waiting.timeout_seconds)
        thread = connection.call("GET", ["threads", thread_id])
    shown = {name: value for name, value in thread.items() if name not in {"archive", "segments"}}
    remote.print_record(thread if remote.as_json else shown | _told(thread.get("segments")))


def _told(segments: dict[str, Any] | None) -> dict[str, Any]:
    """What is in segments as a record, with their numbers; what each has, JSON says."""
    if segments is None:
        return {"segments": 0}
    numbers = ", ".join(str(each["segment"]) for each in segments.get("ranges", ()))
    told = {name: value for name, value in segments.items() if name not in {"ranges", "restoring"}}
    return (
        told
        | {"numbers": numbers}
        | {f"restore_{name}": value for name, value in segments.get("restoring", {}).items()}
    )


@click.command("thread")
@click.argument("thread_id")
@click.option("--segment", type=click.IntRange(1), metavar="N", help="Only this segment of a thread that is hot.")
@_waiting_options
@as_subject
def restore_thread(*, thread_id: str, segment: int | None, waiting: Waiting, remote: Remote) -> None:
    """Bring a thread back from the archive, thawing it first if need be. `stateroom restore ID` is the same.

    `stateroom thread show ID` has the numbers of segments. With one come back those that its volume got later.
    """
    if segment is None:
        _move("restore", thread_id, {}, waiting, remote)
    else:
        _move_part("restore", thread_id, {"segment": segment}, waiting, remote)


@click.command("jobs")
@page_options
@as_either("The deployment's, with STATEROOM_OPERATOR_KEY.", json_option)
def jobs(*, page: Page, remote: Remote) -> None:
    """Show who is at what: the tenant's jobs (archive, restore, rotate, ...), newest first, and its retention round.

    Each has one owner at a time, by a lease that ends when its process dies.
    """
    with remote.connect() as connection:
        remote.print_list(connection.pages(remote.path("jobs"), "jobs", rows_wanted=page.rows_wanted), page, _JOBS)
        round_ = None if remote.operator else connection.call("GET", ["retention", "round"])
    if round_ is not None and remote.as_json:
        render.emit_json({"kind": "retention-round", **round_})
    elif round_ is not None:
        _print_round(round_)


def _print_round(round_: dict[str, Any]) -> None:
    render.line("")
    if round_["state"] == "none":
        render.line("No rounds of retention: nobody said how long threads are kept.")
        return
    render.line("Retention round")
    shown = {name: value for name, value in round_.items() if value is not None and value != {}}
    for what in ("done", "due"):
        if what in shown:
            shown[what] = ", ".join(f"{action} {count:,}" for action, count in sorted(shown[what].items()))
    render.record({name: render.member(name, value) for name, value in shown.items()})


COMMANDS = (archive, jobs)
