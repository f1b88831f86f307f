"""Threads over HTTP: `thread`."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_silent_subject, as_subject, confirm, yes_option
from gateway.cli.parameters import STATUSES, Command, Page, gathered, page_options
from gateway.cli.remote.checkpoints import load

_FAMILY_SECONDS = 120.0  # a family is deleted in one request, a thread after the other
_COLUMNS = {
    "thread_id": "Thread",
    "agent": "Agent",
    "status": "Status",
    "tier": "Tier",
    "strict": "Strict",
    "updated_at": "Updated",
    "head_id": "Head",
    "damaged": "Damaged",
}


@click.group("thread")
def thread_group() -> None:
    """Threads of a subject (STATEROOM_API_KEY, --subject)."""


@dataclass(frozen=True, slots=True)
class _Filters:
    """Which threads are listed; None: whatever they have."""

    status: str | None
    agent: str | None
    tier: str | None


@thread_group.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only threads with this status.")
@click.option("--agent", metavar="NAME", help="Only threads of this agent.")
@click.option("--tier", type=click.Choice(("hot", "archive")), help="Only threads in this tier.")
@click.option(
    "--all-subjects",
    is_flag=True,
    help="Of every subject of the tenant, whatever --subject is, with a key that has tenant:admin, state:read and"
    " subject:act_as.",
)
@page_options
@as_subject
@gathered("filters", _Filters)
def thread_list(*, filters: _Filters, all_subjects: bool, page: Page, remote: Remote) -> None:
    """List threads, newest first; with --all-subjects, subject after subject."""

    def of(subject: str | None) -> Iterator[dict[str, Any]]:
        with replace(remote, subject=subject).connect() as connection:
            yield from connection.pages(["threads"], "threads", query=asdict(filters), rows_wanted=page.rows_wanted)

    def of_all() -> Iterator[dict[str, Any]]:
        with replace(remote, subject=None).connect() as connection:
            for each in connection.pages(["subjects"], "subjects"):
                yield from ({"subject_id": each["subject_id"], **thread} for thread in of(each["subject_id"]))

    columns = {"subject_id": "Subject", **_COLUMNS} if all_subjects else _COLUMNS
    remote.print_list(of_all() if all_subjects else of(remote.subject), page, Listing(columns, empty="No threads."))


@thread_group.command("show")
@click.argument("thread_id")
@as_subject
def thread_show(*, thread_id: str, remote: Remote) -> None:
    """Show one thread: settings, status, head."""
    remote.print_record(remote.call("GET", ["threads", thread_id]))


@thread_group.command("settings")
@click.argument("thread_id")
@click.option("--strict/--no-strict", default=None, help="Whether a save must name the head it saw.")
@click.option("--agent", metavar="NAME", help="The program the thread belongs to; '' for none.")
@as_subject
def thread_settings(
    *,
    thread_id: str,
    strict: bool | None,
    agent: str | None,
    remote: Remote,
) -> None:
    """Change settings of a thread; what is not named stays. Creates the thread when there is none."""
    body: dict[str, Any] = {}
    if strict is not None:
        body["strict"] = strict
    if agent is not None:
        body["agent"] = agent or None
    if not body:
        raise click.UsageError("Name a setting to change: --strict, --no-strict or --agent.")
    remote.print_record(remote.call("PATCH", ["threads", thread_id], body=body))


@thread_group.command("copy")
@click.argument("thread_id")
@click.argument("target_thread_id")
@as_subject
def thread_copy(*, thread_id: str, target_thread_id: str, remote: Remote) -> None:
    """Copy a thread with its history to a thread that does not exist yet."""
    remote.print_record(
        remote.call("POST", ["threads", thread_id, "copy"], body={"target_thread_id": target_thread_id})
    )


@dataclass(frozen=True, slots=True)
class _Version:
    """The version that a new checkpoint is converted to; None: as its state is."""

    state_schema: str | None
    state_version: int | None


@dataclass(frozen=True, slots=True)
class _Compaction:
    """What of a list channel stays, and what stands for the rest."""

    channel: str
    keep_last: int
    summary: str | None
    namespace: str


def _state_version_options(command: Command) -> Command:
    """Add ``--state-schema`` and ``--state-version``, to which a new checkpoint is converted."""
    number = click.option(
        "--state-version",
        type=click.IntRange(min=1),
        metavar="N",
        help="The version of --state-schema that the new checkpoint gets.",
    )
    schema = click.option(
        "--state-schema", metavar="NAME", help="Convert it to a version of this state schema.  [default: as it is]"
    )
    return schema(number(command))


def _stated(version: _Version) -> dict[str, Any]:
    """What a body says of the state version; nothing where none was stated.

    Raises:
        UsageError: only one of both was given.
    """
    if (version.state_schema is None) != (version.state_version is None):
        raise click.UsageError("--state-schema and --state-version go together.")
    return {} if version.state_schema is None else asdict(version)


@thread_group.command("fork")
@click.argument("thread_id")
@click.argument("checkpoint_id")
@_state_version_options
@as_subject
@gathered("version", _Version)
def thread_fork(
    *,
    thread_id: str,
    checkpoint_id: str,
    version: _Version,
    remote: Remote,
) -> None:
    """Go on from an older checkpoint: its state becomes a new one, which is the head; nothing is removed."""
    stated = _stated(version)
    with remote.connect() as connection:
        head_id = connection.call("GET", ["threads", thread_id])["head_id"]
        older = load(connection, thread_id, checkpoint_id, "", view="none")
        body = {name: older[name] for name in ("status", "agent", "metadata", "state_schema", "state_version")}
        body |= {"changes": {}, "parent_id": checkpoint_id, "fork": True, "source": "fork"} | stated
        receipt = connection.call("POST", ["threads", thread_id, "checkpoints"], body=body, head_id=head_id)
    remote.print_record(receipt)


@thread_group.command("compact")
@click.argument("thread_id")
@click.argument("channel")
@click.option("--keep-last", type=click.IntRange(min=0), required=True, metavar="N", help="Newest elements that stay.")
@click.option("--summary", metavar="TEXT", help="Stands for the elements before.")
@click.option("--namespace", default="", metavar="NAME", help="The root's when left out.")
@_state_version_options
@as_subject
@gathered("wanted", _Compaction)
@gathered("version", _Version)
def thread_compact(
    *,
    thread_id: str,
    wanted: _Compaction,
    version: _Version,
    remote: Remote,
) -> None:
    """Make a list channel of the head shorter, as a new checkpoint; older checkpoints keep the whole list."""
    body = {name: value for name, value in asdict(wanted).items() if value is not None} | _stated(version)
    remote.print_record(remote.call("POST", ["threads", thread_id, "compact"], body=body))


@thread_group.command("trajectory")
@click.argument("thread_id")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="The checkpoint it leads to.  [default: the newest]")
@click.option("--namespace", default="", metavar="NAME", help="The root's when left out.")
@click.option(
    "--form",
    type=click.Choice(("steps", "chat", "fixture")),
    default="steps",
    show_default=True,
    help="A line for each step; one line with all messages, for fine-tuning; or all that is stored, for tests.",
)
@click.option(
    "--all-namespaces",
    is_flag=True,
    help="The whole thread, with its sub-agents: of each namespace the line up to its newest checkpoint, or up to what"
    " was there when --checkpoint was saved.",
)
@as_silent_subject
def thread_trajectory(
    *,
    thread_id: str,
    checkpoint_id: str | None,
    namespace: str,
    form: str,
    all_namespaces: bool,
    remote: Remote,
) -> None:
    """Print what a thread did, step by step, as JSON Lines in clear; needs state:export. The audit log says so."""
    import msgspec

    from stateroom import chat_form

    if all_namespaces and form == "chat":
        raise click.UsageError("--form chat is one conversation: name a --namespace instead of --all-namespaces.")
    with remote.connect() as connection, connection.sdk() as client:
        thread = client.thread(thread_id, namespace=namespace)
        if form == "fixture":
            for line in thread.fixture(checkpoint_id=checkpoint_id, all_namespaces=all_namespaces).lines():
                render.emit_json(msgspec.json.decode(line))
            return
        steps = thread.trajectory(checkpoint_id=checkpoint_id, all_namespaces=all_namespaces)
        for shown in [chat_form(steps)] if form == "chat" else steps:
            render.emit_json(msgspec.to_builtins(shown))


@thread_group.command("load-fixture")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("thread_id")
@click.option("--namespace", default="", metavar="NAME", help="The root's when left out.")
@as_subject
def thread_load_fixture(*, file: Path, thread_id: str, namespace: str, remote: Remote) -> None:
    """Save the steps of a fixture into a thread that has none; doing it again changes nothing.

    A fixture of a whole thread brings its own namespaces.
    """
    from stateroom.testing import Fixture

    with remote.connect() as connection, connection.sdk() as client:
        fixture = Fixture.read(file)
        created = fixture.load_into(client.thread(thread_id, namespace=namespace))
    remote.print_record({"thread_id": thread_id, "steps": len(fixture.steps), "created": created})


@thread_group.command("prune")
@click.argument("thread_ids", nargs=-1, required=True)
@yes_option
@as_subject
def thread_prune(*, thread_ids: tuple[str, ...], assume_yes: bool, remote: Remote) -> None:
    """Remove the history of threads: what stays is their heads, and what those need."""
    confirm(f"Remove the history of {len(thread_ids):,} threads?", assume_yes)
    body = {"thread_ids": list(thread_ids), "strategy": "keep_latest"}
    remote.print_record(remote.call("POST", ["threads:prune"], body=body))


@thread_group.command("link")
@click.argument("thread_id")
@click.argument("parent_thread_id")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="The checkpoint it was begun from.")
@click.option("--namespace", default="", metavar="NAME", help="The namespace it was begun from.  [default: the root]")
@as_subject
def thread_link(
    *, thread_id: str, parent_thread_id: str, checkpoint_id: str | None, namespace: str, remote: Remote
) -> None:
    """Say that a thread was begun from another one. Creates the thread when there is none."""
    body = {"thread_id": parent_thread_id, "namespace": namespace, "checkpoint_id": checkpoint_id}
    remote.print_record(remote.call("PUT", ["threads", thread_id, "parent"], body=body))


@thread_group.command("unlink")
@click.argument("thread_id")
@as_silent_subject
def thread_unlink(*, thread_id: str, remote: Remote) -> None:
    """Say that a thread was begun from no other; both stay."""
    remote.call("DELETE", ["threads", thread_id, "parent"])
    render.say(f"Unlinked {thread_id}.")


@thread_group.command("children")
@click.argument("thread_id")
@page_options
@as_subject
def thread_children(*, thread_id: str, page: Page, remote: Remote) -> None:
    """List the threads that were begun from a thread, newest first; it need not be there itself."""

    def children() -> Iterator[dict[str, Any]]:
        with remote.connect() as connection:
            yield from connection.pages(["threads", thread_id, "children"], "threads", rows_wanted=page.rows_wanted)

    remote.print_list(children(), page, Listing(_COLUMNS, empty="No children."))


@thread_group.command("delete")
@click.argument("thread_id")
@click.option("--family", is_flag=True, help="Also the threads that were begun from it, and so on.")
@yes_option
@as_silent_subject
def thread_delete(*, thread_id: str, family: bool, assume_yes: bool, remote: Remote) -> None:
    """Delete a thread with all its checkpoints."""
    more = " and all that descend from it" if family else ""
    confirm(f"Delete thread {render.safe(thread_id)} with its whole history{more}?", assume_yes)
    if family:
        with remote.connect(attempt_seconds=_FAMILY_SECONDS) as connection:
            connection.call("DELETE", ["threads", thread_id], query={"family": "true"})
    else:
        remote.call("DELETE", ["threads", thread_id])
    render.say(f"Deleted {thread_id}{more}.")


COMMANDS = (thread_group,)
