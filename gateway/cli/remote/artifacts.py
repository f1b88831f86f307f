"""Artifacts over HTTP: `artifact upload`, `download`, `list`, `show`, `delete`, `url`, `revoke-urls`.

Content goes through the SDK: in parts that are sent again one by one, verified by digest, resumed where it broke off.
Progress goes to stderr, and only to a terminal.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.opening import as_tenant, patiently
from gateway.cli.parameters import gathered, json_option, page_options, subject_option, url_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

_TIMES = ("created_at", "expires_at")
_COLUMNS = {
    "artifact_id": "Artifact",
    "name": "Name",
    "version": "Version",
    "media_type": "Type",
    "size_bytes": "Bytes",
    "created_at": "Created",
}
_ATTEMPT_SECONDS = 120.0  # without any progress on the connection
_TOTAL_SECONDS = 24 * 3600.0  # a large file over a slow line
_PERCENT = 100


def _progress() -> Callable[[int, int | None], None] | None:
    """What shows how far it is, on a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int | None) -> None:
        share = f" of {total:,} ({done * _PERCENT // total if total else _PERCENT} %)" if total is not None else ""
        print(f"\r{done:,}{share} bytes", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show


def _print(item: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        render.emit_json(item)
    else:
        render.record(
            {name: render.moment(value) if name in _TIMES else render.cell(value) for name, value in item.items()}
        )


def _show(connection: "Connection", artifact_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = connection.call("GET", ["artifacts", artifact_id.removeprefix("stateroom:artifact:")])
    return shown


@click.group("artifact")
def artifact_group() -> None:
    """Artifacts: files that agents store beside their state (STATEROOM_API_KEY, --subject)."""


@dataclass(frozen=True, slots=True)
class _Upload:
    """What a file is called and what it is, where the file does not say; and the upload that goes on."""

    name: str | None
    media_type: str | None
    resume: str | None


@artifact_group.command("upload")
@click.argument("thread_id")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="What to call it; the file's name when left out.")
@click.option("--media-type", help="Its media type; guessed from the name when left out.")
@click.option("--resume", metavar="UPLOAD_ID", help="Go on with an upload that broke off; unchanged parts stay.")
@subject_option
@url_option
@json_option
@gathered("how", _Upload)
def artifact_upload(
    *,
    thread_id: str,
    file: Path,
    how: _Upload,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Store a file in a thread, which is made if there is none."""
    from stateroom.errors import StateroomError

    with patiently(url, subject, attempt_seconds=_ATTEMPT_SECONDS, total_seconds=_TOTAL_SECONDS) as connection:
        with connection.sdk() as client:
            try:
                stored = client.artifacts.upload(thread_id, file, progress=_progress(), **asdict(how))
            except StateroomError as error:
                upload_id = getattr(error, "upload_id", None)
                if upload_id:
                    render.say(f"What arrived is kept: go on with --resume {upload_id}")
                raise
        _print(_show(connection, stored.artifact_id), as_json=as_json)


@artifact_group.command("download")
@click.argument("artifact_id")
@click.argument("target", type=click.Path(path_type=Path, allow_dash=True))
@subject_option
@url_option
def artifact_download(*, artifact_id: str, target: Path, subject: str | None, url: str | None) -> None:
    """Bring an artifact's content to a file (or - for stdout) and check its digest; goes on where it broke off."""
    connecting = patiently(url, subject, attempt_seconds=_ATTEMPT_SECONDS, total_seconds=_TOTAL_SECONDS)
    with connecting as connection, connection.sdk() as client:
        if str(target) == "-":
            client.artifacts.download(artifact_id, render.results().buffer)
            render.results().buffer.flush()
            return
        try:
            found = client.artifacts.download(artifact_id, target, progress=_progress())
        except OSError as error:
            raise Failure(f"cannot write {target}", detail=str(error.strerror), exit_code=ExitCode.FAILURE) from None
    render.say(f"{found.size_bytes:,} bytes, digest verified: {target}")


@artifact_group.command("list")
@click.argument("thread_id")
@click.option("--name", help="Only the versions of this name.")
@page_options
@subject_option
@url_option
@json_option
def artifact_list(
    *,
    thread_id: str,
    name: str | None,
    limit: int,
    everything: bool,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """List a thread's artifacts, newest first."""
    shown = []
    with as_tenant(url, subject) as connection:
        wanted = None if everything else limit
        pages = connection.pages(
            ["threads", thread_id, "artifacts"], "artifacts", query={"name": name}, rows_wanted=wanted
        )
        for count, item in enumerate(pages):
            if count == wanted:
                render.say("There is more: --limit N or --all.")
                break
            if as_json:
                render.emit_json(item)
            else:
                shown.append(
                    [render.moment(item[one]) if one in _TIMES else render.cell(item[one]) for one in _COLUMNS]
                )
    if not as_json:
        render.table(list(_COLUMNS.values()), shown, empty="No artifacts.")


@artifact_group.command("show")
@click.argument("artifact_id")
@subject_option
@url_option
@json_option
def artifact_show(*, artifact_id: str, subject: str | None, url: str | None, as_json: bool) -> None:
    """Show an artifact, named by its id or its pointer, without its content."""
    with as_tenant(url, subject) as connection:
        _print(_show(connection, artifact_id), as_json=as_json)


@artifact_group.command("delete")
@click.argument("artifact_id")
@click.option("--yes", "assume_yes", is_flag=True, help="Do not ask.")
@subject_option
@url_option
def artifact_delete(*, artifact_id: str, assume_yes: bool, subject: str | None, url: str | None) -> None:
    """Delete an artifact that no checkpoint names."""
    if not assume_yes:
        click.confirm(f"Delete artifact {render.safe(artifact_id)}?", abort=True, err=True)
    with as_tenant(url, subject) as connection:
        connection.call("DELETE", ["artifacts", artifact_id.removeprefix("stateroom:artifact:")])
    render.say(f"Deleted {artifact_id}.")


@artifact_group.command("url")
@click.argument("artifact_id")
@click.option("--ttl", "ttl_seconds", type=click.IntRange(1, 900), default=300, show_default=True, help="Seconds.")
@click.option("--inline", is_flag=True, help="To be shown in a page: pictures, sound, video, PDF, plain text.")
@click.option("--revoke", is_flag=True, help="End every URL made so far instead.")
@subject_option
@url_option
@json_option
def artifact_url(
    *,
    artifact_id: str,
    ttl_seconds: int,
    inline: bool,
    revoke: bool,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a URL that reads an artifact for a few minutes without a credential; whoever has it may."""
    path = ["artifacts", artifact_id.removeprefix("stateroom:artifact:"), "urls"]
    with as_tenant(url, subject) as connection:
        if revoke:
            connection.call("DELETE", path)
            render.say("Every URL made so far is revoked.")
            return
        body = {"ttl_seconds": ttl_seconds, "disposition": "inline" if inline else "attachment"}
        _print(connection.call("POST", path, body=body), as_json=as_json)


COMMANDS = (artifact_group,)
