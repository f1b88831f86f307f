"""Artifacts over HTTP: `artifact upload`, `download`, `list`, `show`, `delete`, `url`, `revoke-urls`.

Content goes through the SDK: in parts that are sent again one by one, verified by digest, resumed where it broke off.
Progress goes to stderr, and only to a terminal.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_silent_subject, as_subject, confirm, yes_option
from gateway.cli.failure import Failure
from gateway.cli.parameters import Page, gathered, page_options

_ARTIFACTS = Listing(
    {
        "artifact_id": "Artifact",
        "name": "Name",
        "version": "Version",
        "media_type": "Type",
        "size_bytes": "Bytes",
        "created_at": "Created",
    },
    empty="No artifacts.",
)


def _path(artifact_id: str) -> list[str]:
    return ["artifacts", artifact_id.removeprefix("stateroom:artifact:")]


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
@as_subject
@gathered("how", _Upload)
def artifact_upload(
    *,
    thread_id: str,
    file: Path,
    how: _Upload,
    remote: Remote,
) -> None:
    """Store a file in a thread, which is made if there is none."""
    from stateroom.errors import StateroomError

    with remote.connect_for_files() as connection:
        with connection.sdk() as client:
            try:
                stored = client.artifacts.upload(thread_id, file, progress=render.bytes_progress(), **asdict(how))
            except StateroomError as error:
                upload_id = getattr(error, "upload_id", None)
                if upload_id:
                    render.say(f"What arrived is kept: go on with --resume {upload_id}")
                raise
        remote.print_record(connection.call("GET", _path(stored.artifact_id)))


@artifact_group.command("download")
@click.argument("artifact_id")
@click.argument("target", type=click.Path(path_type=Path, allow_dash=True))
@as_silent_subject
def artifact_download(*, artifact_id: str, target: Path, remote: Remote) -> None:
    """Bring an artifact's content to a file (or - for stdout) and check its digest; goes on where it broke off."""
    with remote.connect_for_files() as connection, connection.sdk() as client:
        if str(target) == "-":
            client.artifacts.download(artifact_id, render.results().buffer)
            render.results().buffer.flush()
            return
        try:
            artifact = client.artifacts.download(artifact_id, target, progress=render.bytes_progress())
        except OSError as error:
            raise Failure(f"cannot write {target}", detail=str(error.strerror)) from None
    render.say(f"{artifact.size_bytes:,} bytes, digest verified: {target}")


@artifact_group.command("list")
@click.argument("thread_id")
@click.option("--name", help="Only the versions of this name.")
@page_options
@as_subject
def artifact_list(*, thread_id: str, name: str | None, page: Page, remote: Remote) -> None:
    """List a thread's artifacts, newest first."""
    path = ["threads", thread_id, "artifacts"]
    remote.print_pages(path, "artifacts", page, _ARTIFACTS, query={"name": name})


@artifact_group.command("show")
@click.argument("artifact_id")
@as_subject
def artifact_show(*, artifact_id: str, remote: Remote) -> None:
    """Show an artifact, named by its id or its pointer, without its content."""
    remote.print_record(remote.call("GET", _path(artifact_id)))


@artifact_group.command("delete")
@click.argument("artifact_id")
@yes_option
@as_silent_subject
def artifact_delete(*, artifact_id: str, assume_yes: bool, remote: Remote) -> None:
    """Delete an artifact that no checkpoint names."""
    confirm(f"Delete artifact {render.safe(artifact_id)}?", assume_yes)
    remote.call("DELETE", _path(artifact_id))
    render.say(f"Deleted {artifact_id}.")


@artifact_group.command("url")
@click.argument("artifact_id")
@click.option("--ttl", "ttl_seconds", type=click.IntRange(1, 900), default=300, show_default=True, help="Seconds.")
@click.option("--inline", is_flag=True, help="To be shown in a page: pictures, sound, video, PDF, plain text.")
@click.option("--revoke", is_flag=True, help="End every URL made so far instead.")
@as_subject
def artifact_url(
    *,
    artifact_id: str,
    ttl_seconds: int,
    inline: bool,
    revoke: bool,
    remote: Remote,
) -> None:
    """Make a URL that reads an artifact for a few minutes without a credential; whoever has it may."""
    path = [*_path(artifact_id), "urls"]
    if revoke:
        remote.call("DELETE", path)
        render.say("Every URL made so far is revoked.")
        return
    body = {"ttl_seconds": ttl_seconds, "disposition": "inline" if inline else "attachment"}
    remote.print_record(remote.call("POST", path, body=body))


COMMANDS = (artifact_group,)
