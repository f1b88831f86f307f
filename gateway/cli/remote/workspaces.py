"""Workspaces: `workspace store`, `workspace restore`: folders that are kept with a thread and come back.

The state of the thread names a snapshot at one of its top-level keys. What of a folder is stored, and how it comes
back, is the SDK's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_subject, confirm, yes_option
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import gathered

_key_option = click.option(
    "--key", default="workspace", show_default=True, help="The state's key that names the snapshot."
)
_ignore_option = click.option(
    "--ignore", multiple=True, metavar="PATTERN", help="More that is left alone, as a line of a .gitignore; repeatable."
)


@click.group("workspace")
def workspace_group() -> None:
    """Workspaces: folders that are kept with a thread (STATEROOM_API_KEY, --subject)."""


@dataclass(frozen=True, slots=True)
class _Store:
    """What of a folder is stored, and where the state names it."""

    key: str
    ignore: tuple[str, ...]
    save: bool


@workspace_group.command("store")
@click.argument("thread_id")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_key_option
@_ignore_option
@click.option("--save/--no-save", default=True, help="Save a checkpoint that names the snapshot, or only print it.")
@as_subject
@gathered("what", _Store)
def workspace_store(*, thread_id: str, folder: Path, what: _Store, remote: Remote) -> None:
    """Store a folder and save a checkpoint that names it. What .gitignore files name, and what is there, is not sent.

    A store that broke off goes on when it is run again. --no-save prints what to put into a state: for a thread of a
    framework, which saves its own checkpoints.
    """
    with remote.connect_for_files() as connection, connection.sdk() as client:
        thread = client.thread(thread_id)
        head = thread.load() if what.save else None
        try:
            snapshot = thread.workspace(folder, name=what.key).store(
                ignore=what.ignore, progress=render.bytes_progress()
            )
        except OSError as error:
            raise _unusable(folder, error) from None
        told: dict[str, Any] = {"value": snapshot.value, "stored_bytes": snapshot.stored_bytes}
        if what.save:
            named = {what.key: snapshot.value}
            saved = thread.save(named) if head is None else thread.patch(set=named)
            told = {"checkpoint_id": saved.checkpoint_id, **told}
    _say_left_out(snapshot.left_out, "Not stored")
    remote.print_record(told)


@dataclass(frozen=True, slots=True)
class _Restore:
    """Which snapshot comes back, and what becomes of the rest."""

    key: str
    checkpoint_id: str | None
    remove_others: bool
    ignore: tuple[str, ...]


@workspace_group.command("restore")
@click.argument("thread_id")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@_key_option
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Of which checkpoint; the newest when left out.")
@click.option("--remove-others", is_flag=True, help="Remove what the snapshot does not have and nothing ignores.")
@_ignore_option
@yes_option
@as_subject
@gathered("what", _Restore)
def workspace_restore(*, thread_id: str, folder: Path, what: _Restore, assume_yes: bool, remote: Remote) -> None:
    """Make a folder what it was in a checkpoint. What is there with its content is not fetched."""
    if what.remove_others:
        confirm(f"Remove what the snapshot does not have from {render.safe(str(folder))}?", assume_yes)
    with remote.connect_for_files() as connection, connection.sdk() as client:
        thread = client.thread(thread_id)
        head = thread.load() if what.checkpoint_id is None else thread.at(what.checkpoint_id)
        if head is None or what.key not in head.state:
            raise Failure(
                f"the state names no snapshot at {what.key!r}",
                hint="See what it has: stateroom checkpoint show; another key: --key.",
                exit_code=ExitCode.NOT_FOUND,
            )
        try:
            restored = thread.workspace(folder, name=what.key).restore(
                head.state[what.key],
                remove_others=what.remove_others,
                ignore=what.ignore,
                progress=render.bytes_progress(),
            )
        except OSError as error:
            raise _unusable(folder, error) from None
    _say_left_out(restored.left_out, "Not restored")
    told = {name: getattr(restored, name) for name in ("files", "written", "written_bytes", "removed")}
    remote.print_record(told)


def _say_left_out(left_out: list[Any], what: str) -> None:
    for each in left_out:
        render.say(f"{what}: {each.path}: {each.reason}")


def _unusable(folder: Path, error: OSError) -> Failure:
    return Failure(
        f"cannot use {folder}", detail=": ".join(filter(None, (error.filename and str(error.filename), error.strerror)))
    )


COMMANDS = (workspace_group,)
