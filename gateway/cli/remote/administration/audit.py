"""The audit log: `audit list`, `export`, `anchor`, `key` over HTTP, and `verify`, which needs no gateway.

`verify` reads three files and nothing else, so that an auditor can run it on another machine, years later. Keep the
public key and the anchors where the operator of the gateway cannot change them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_either
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import Page, json_option, page_options

if TYPE_CHECKING:
    from gateway.cli.connection import Connection
    from storage.format.audit import Entry

_FILE = click.Path(dir_okay=False, path_type=Path)
_READABLE = click.Path(dir_okay=False, exists=True, path_type=Path)

_EVENTS = Listing(
    {"sequence": "#", "at": "At", "actor": "Actor", "action": "Action", "target": "Target"}, empty="No events."
)
_OPERATORS_LOG = "The operators' log (STATEROOM_OPERATOR_KEY), not the tenant's."


@click.group("audit")
def audit_group() -> None:
    """The audit log: read it, anchor it, prove that nobody changed it."""


@audit_group.command("list")
@page_options
@as_either(_OPERATORS_LOG, json_option)
def audit_list(*, page: Page, remote: Remote) -> None:
    """List events, oldest first. Reading them is an event itself."""
    remote.print_pages(remote.path("audit"), "events", page, _EVENTS)


@audit_group.command("export")
@click.argument("file", type=_FILE)
@as_either(_OPERATORS_LOG)
def audit_export(*, file: Path, remote: Remote) -> None:
    """Write the whole log to FILE for `audit verify`: one JSON object a line, exactly as it is stored.

    The export is made even where the log does not verify: it is the evidence. FILE must not exist.
    """
    from storage.format.audit import export_lines

    with remote.connect() as connection:
        origin = connection.call("GET", remote.path("audit", "key"))["origin"]
        try:
            with file.open("xb") as output:
                count = -1  # the last line is not an event
                for line in export_lines(origin, _entries(connection, remote.path("audit"))):
                    output.write(line)
                    count += 1
                output.flush()
                os.fsync(output.fileno())
        except FileExistsError:
            raise Failure(f"{file} exists", hint="Name a new file.", exit_code=ExitCode.CONFLICT) from None
        except OSError as error:
            raise Failure(f"cannot write {file}", detail=str(error.strerror)) from None
        except BaseException:
            file.unlink(missing_ok=True)  # half an export proves nothing
            raise
    render.say(f"{count:,} events of {origin}.")


def _entries(connection: "Connection", path: list[str]) -> "Iterator[Entry]":
    from storage.format.audit import Entry

    for event in connection.pages(path, "events", query={"verify": "false"}):
        yield Entry(
            event["sequence"],
            event["body"].encode("utf-8", "surrogatepass"),
            bytes.fromhex(event["previous"]),
            bytes.fromhex(event["hash"]),
        )


@audit_group.command("anchor")
@click.option("--latest", is_flag=True, help="The newest one in the object store, instead of one made now.")
@as_either(_OPERATORS_LOG)
def audit_anchor(*, latest: bool, remote: Remote) -> None:
    """Print a signed anchor of the log as it is now: keep it where the gateway cannot change it."""
    anchor = remote.call("GET" if latest else "POST", remote.path("audit", "anchor"))
    for line in anchor["note"].rstrip("\n").split("\n"):
        print(line, file=render.results())
    if not anchor["stored"]:
        render.say("There is no object store: this printed copy is the only one.")


@audit_group.command("key")
@as_either(_OPERATORS_LOG)
def audit_key(*, remote: Remote) -> None:
    """Print the public key that anchors are signed with; fetch it once and keep it."""
    render.line(remote.call("GET", remote.path("audit", "key"))["public_key"])


@audit_group.command("verify")
@click.argument("file", type=_READABLE)
@click.option(
    "--anchor",
    "anchors",
    type=_READABLE,
    multiple=True,
    required=True,
    metavar="ANCHOR",
    help="A file with an anchor, from `audit anchor` or from the object store; repeatable.",
)
@click.option("--public-key", required=True, metavar="KEY", help="What `audit key` printed, or a file that holds it.")
@json_option
def audit_verify(*, file: Path, anchors: tuple[Path, ...], public_key: str, as_json: bool) -> None:
    """Verify an export against anchors, offline; exit with 1 when anything was edited, removed, added or reordered."""
    from storage.format.audit import AuditInvalid, verify_export

    try:
        if Path(public_key).is_file():
            public_key = Path(public_key).read_text(encoding="utf-8")
        notes = [anchor.read_text(encoding="utf-8") for anchor in anchors]
        with file.open("rb") as lines:
            report = verify_export(lines, notes, public_key)
    except AuditInvalid as error:
        raise Failure("nothing can be verified", detail=str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure("a file cannot be read", detail=type(error).__name__) from None
    if as_json:
        findings = [{"kind": each.kind, "sequence": each.sequence, "message": each.message} for each in report.findings]
        gaps = [{"sequence": each.sequence, **each.detail} for each in report.gaps]
        counts = {"events": report.events, "anchored_through": report.anchored_through}
        render.emit_json({"ok": report.ok, **counts, "findings": findings, "gaps": gaps})
    else:
        for gap in report.gaps:
            render.line(f"Gap: {gap.message}.")
    if report.ok and not as_json:
        render.line(f"Verified: {report.events:,} events, anchored through event {report.anchored_through:,}.")
        if report.events > report.anchored_through:
            render.say("Later events agree with each other; verify them against a newer anchor.")
    if not report.ok:
        shown = report.findings[:20]
        detail = "\n".join(f"{each.kind}: {each.message}" for each in shown)
        more = f"\nand {len(report.findings) - len(shown):,} more" if len(report.findings) > len(shown) else ""
        raise Failure("the audit log does not verify", detail=detail + more)


COMMANDS = (audit_group,)
