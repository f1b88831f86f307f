"""Checkpoints over HTTP: `checkpoint`."""

from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_subject
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import STATUSES, Moment, Page, gathered, page_options

if TYPE_CHECKING:
    from gateway.cli.connection import Connection
    from gateway.cli.state_diff import Change

VALUE_CHARACTERS_MAX = 100  # of a value in a difference; --full prints all of it


@click.group("checkpoint")
def checkpoint_group() -> None:
    """Checkpoints: history, states, differences (STATEROOM_API_KEY, --subject)."""


@dataclass(frozen=True, slots=True)
class _Filters:
    """Which checkpoints are listed; None: whatever they have."""

    namespace: str | None
    status: str | None
    step: int | None
    run_id: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class _FiltersAcross:
    """Which checkpoints of all threads are listed; None: whatever they have."""

    agent: str | None
    since: datetime | None
    until: datetime | None


@checkpoint_group.command("list")
@click.argument("thread_id", required=False)
@click.option("--namespace", metavar="NAME", help="Only this namespace; '' is the root.  [default: all]")
@click.option("--status", type=click.Choice(STATUSES), help="Only checkpoints saved with this status.")
@click.option("--step", type=int, help="Only this step.")
@click.option("--run-id", metavar="ID", help="Only this run.")
@click.option("--source", metavar="WORD", help="Only this source, such as loop, input, update or fork.")
@click.option("--agent", metavar="NAME", help="Only this agent (without THREAD_ID).")
@click.option("--since", type=Moment("ago"), help="Not older: 24h, or an RFC 3339 time (without THREAD_ID).")
@click.option("--until", type=Moment("ago"), help="Older: 24h, or an RFC 3339 time (without THREAD_ID).")
@page_options
@as_subject
@gathered("filters", _Filters)
@gathered("across", _FiltersAcross)
def checkpoint_list(
    *,
    thread_id: str | None,
    filters: _Filters,
    across: _FiltersAcross,
    page: Page,
    remote: Remote,
) -> None:
    """List checkpoints, newest first: of one thread, or of all threads of the subject."""
    query: dict[str, Any] = asdict(filters)
    if thread_id is None:
        path = ["checkpoints"]
        query["agent"] = across.agent
        query |= {
            name: moment.isoformat() for name, moment in (("since", across.since), ("until", across.until)) if moment
        }
    elif any(asdict(across).values()):
        raise click.UsageError("--agent, --since and --until work across threads: leave out THREAD_ID.")
    else:
        path = ["threads", thread_id, "checkpoints"]
    with remote.connect() as connection:
        pages = connection.pages(path, "checkpoints", query=query, rows_wanted=page.rows_wanted)
        columns = {
            "checkpoint_id": "Checkpoint",
            "thread_id": "Thread",
            "namespace": "Namespace",
            "step": "Step",
            "status": "Status",
            "source": "Source",
            "agent": "Agent",
            "run_id": "Run",
            "created_at": "Created",
        }
        if thread_id is not None:
            del columns["thread_id"]
        first = next(pages, None)
        if first is not None and "subject_id" in first:  # over all subjects: equal ids are different threads
            columns = {"subject_id": "Subject", **columns}
        checkpoints = () if first is None else chain([first], pages)
        remote.print_list(checkpoints, page, Listing(columns, empty="No checkpoints."))


@checkpoint_group.command("show")
@click.argument("thread_id")
@click.argument("checkpoint_id", default="latest")
@click.option("--namespace", default="", metavar="NAME", help="The namespace; the root when left out.")
@click.option("--state/--no-state", "with_state", default=True, help="Whether to load and print the state.")
@click.option("--artifacts", "with_artifacts", is_flag=True, help="Print what is said of the artifacts it names.")
@as_subject
def checkpoint_show(
    *,
    thread_id: str,
    checkpoint_id: str,
    namespace: str,
    with_state: bool,
    with_artifacts: bool,
    remote: Remote,
) -> None:
    """Show a checkpoint, the latest when none is named, with its state and pending writes."""
    if with_artifacts and not with_state:
        raise click.UsageError("--artifacts are those that the state names: leave out --no-state.")
    view, resolve = "state" if with_state else "none", "previews" if with_artifacts else None
    with remote.connect() as connection:
        checkpoint = load(connection, thread_id, checkpoint_id, namespace, view=view, resolve=resolve)
    print_checkpoint(remote, checkpoint)


def print_checkpoint(remote: Remote, checkpoint: dict[str, Any]) -> None:
    """Print a checkpoint: for people its columns, then its state and pending writes where it has them."""
    if remote.as_json:
        render.emit_json(checkpoint)
        return
    inside = {"state", "channels", "pending_writes", "artifacts"}
    remote.print_record({name: value for name, value in checkpoint.items() if name not in inside})
    if "state" in checkpoint:
        render.line("")
        render.line("State")
        render.document(checkpoint["state"])
    if checkpoint.get("pending_writes"):
        render.line("")
        render.line("Pending writes")
        for write in checkpoint["pending_writes"]:
            value = render.compact(write.get("value"))
            render.line(f"  {write['task_id']} #{write['idx']} {write['channel']}: {value}")
    if checkpoint.get("artifacts"):
        render.line("")
        render.line("Artifacts")
        for artifact_id, artifact in checkpoint["artifacts"].items():
            render.line(f"  {artifact_id}: {render.compact(artifact)}")


@dataclass(frozen=True, slots=True)
class _Sides:
    """Two checkpoints of one thread; without ``from_id``, a checkpoint and its parent."""

    thread_id: str
    from_id: str | None
    to_id: str
    namespace: str


@checkpoint_group.command("diff")
@click.argument("thread_id")
@click.argument("from_id", required=False)
@click.argument("to_id", default="latest")
@click.option("--namespace", default="", metavar="NAME", help="The namespace; the root when left out.")
@click.option("--full", is_flag=True, help="Print values whole, however long.")
@click.option("--exit-code", "speak_by_exit_code", is_flag=True, help="Exit with 1 when the states differ.")
@as_subject
@click.pass_context
@gathered("sides", _Sides)
def checkpoint_diff(
    context: click.Context,
    *,
    sides: _Sides,
    full: bool,
    speak_by_exit_code: bool,
    remote: Remote,
) -> None:
    """Show what changed between the states of two checkpoints, path by path.

    With only THREAD_ID: what the latest checkpoint changed in its parent's state. With FROM_ID: what changed
    since.
    """
    from gateway.cli.state_diff import differences

    with remote.connect() as connection:
        thread_id, namespace = sides.thread_id, sides.namespace
        newer = load(connection, thread_id, sides.to_id, namespace, view="state")
        from_id = sides.from_id or newer["parent_id"]
        older = load(connection, thread_id, from_id, namespace, view="state") if from_id else None
    changes = list(differences(older["state"] if older else {}, newer["state"]))
    rebuilt = sorted({*newer["delta_channels"], *(older["delta_channels"] if older else [])})
    if remote.as_json:
        _emit_changes(older, newer, changes)
    else:
        _print_changes(older, newer, changes, full=full)
    if rebuilt:
        render.say(f"Not compared, since they are rebuilt from pending writes: {', '.join(rebuilt)}")
    if changes and speak_by_exit_code:
        context.exit(ExitCode.FAILURE)


def load(
    connection: "Connection",
    thread_id: str,
    checkpoint_id: str,
    namespace: str,
    *,
    view: str,
    resolve: str | None = None,
) -> dict[str, Any]:
    """Ask for one checkpoint.

    Raises:
        Failure: the gateway refused, or what answers is no gateway.
    """
    path = ["threads", thread_id, "checkpoints", checkpoint_id]
    answer = connection.call("GET", path, query={"namespace": namespace, "view": view, "resolve": resolve})
    if not isinstance(answer, dict):
        raise Failure("The gateway's answer is not a checkpoint", hint="Is STATEROOM_URL really a Stateroom gateway?")
    return answer


def _side(checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
    shown = ("checkpoint_id", "namespace", "step", "status", "created_at")
    return {name: checkpoint[name] for name in shown} if checkpoint else None


def _emit_changes(older: dict[str, Any] | None, newer: dict[str, Any], changes: "list[Change]") -> None:
    from gateway.cli.state_diff import ABSENT

    render.emit_json(
        {
            "from": _side(older),
            "to": _side(newer),
            "changes": [
                {"path": change.path, "kind": change.kind}
                | ({} if change.before is ABSENT else {"before": change.before})
                | ({} if change.after is ABSENT else {"after": change.after})
                for change in changes
            ],
        }
    )


def _print_changes(older: dict[str, Any] | None, newer: dict[str, Any], changes: "list[Change]", *, full: bool) -> None:
    for mark, checkpoint in (("---", older), ("+++", newer)):
        if checkpoint is None:
            render.line(f"{mark} nothing (there is no parent)")
        else:
            when = render.moment(checkpoint["created_at"])
            status = checkpoint["status"]
            render.line(f"{mark} {checkpoint['checkpoint_id']}  step {checkpoint['step']}  {status}  {when}")
    limit = None if full else VALUE_CHARACTERS_MAX
    for change in changes:
        render.change(change, value_characters_max=limit)
    kinds = [change.kind for change in changes]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("added", "removed", "changed"))
    render.say(counts if changes else "No difference.")


COMMANDS = (checkpoint_group,)
