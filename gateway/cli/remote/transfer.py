"""Portability over HTTP: `transfer-key show`, `export thread`, `export tenant`, `import`.

Files are streamed in both directions and never held. A download goes to a hidden file beside the target, which takes
the target's name when it is whole; progress goes to stderr, and only to a terminal. What the gateway reports goes to
stdout. No file can be looked into here: only the receiving deployment has the key.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_silent_operator, as_silent_subject, as_silent_tenant, as_tenant
from gateway.cli.failure import ExitCode, Failure

if TYPE_CHECKING:
    import httpx2

_CREDENTIAL = "STATEROOM_API_KEY"
_SHOW_SECONDS = 0.2
_PERCENT = 100
_SLICE_BYTES = 1024 * 1024
_CONNECT_SECONDS = 2.0
# Without a byte on the connection; the gateway answers an import only after the last thread was read back.
_IDLE_SECONDS = 600.0
_REASONS = {
    "there": "imported before",
    "exists": "exists here",
    "client-share": "its client-held share was not sent",
    "archived": "was archived, and could not be read",
    "damaged": "is damaged where it was exported",
    "damaged-vectors": "has damaged vectors where it was exported: it is here without them",
    "expired": "was over by now",
}
# What was not imported for these reasons is nothing that should be here.
_EXPECTED = {"there", "exists", "expired"}


class _Meter:
    """Says how far it is, on a terminal, a few times a second."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._done = 0
        self._shown_at = 0.0
        self._is_on = sys.stderr.isatty()

    def moved(self, size: int) -> None:
        self._done += size
        if self._is_on and time.monotonic() - self._shown_at >= _SHOW_SECONDS:
            self._shown_at = time.monotonic()
            self._say("")

    def end(self) -> None:
        if self._is_on:
            self._say("\n")

    def _say(self, end: str) -> None:
        share = f" of {self._total:,} ({self._done * _PERCENT // self._total} %)" if self._total else ""
        print(f"\r{self._done:,}{share} bytes", end=end, file=sys.stderr, flush=True)


@contextmanager
def _http(remote: Remote) -> "Iterator[httpx2.Client]":
    """A connection for streams: the SDK's calls are bounded in size and repeated, these are neither.

    Raises:
        Failure: the URL or the credential is missing, or the gateway does not answer.
    """
    import httpx2

    from gateway.cli.connection import KEY_HINT
    from gateway.cli.environment import secret, share_header

    remote.connect().__exit__()  # the same refusals, in the same words
    headers = {"Authorization": f"Bearer {secret(_CREDENTIAL, hint=KEY_HINT)}", "Accept": "application/json"}
    headers |= share_header()
    timeout = httpx2.Timeout(_IDLE_SECONDS, connect=_CONNECT_SECONDS)
    try:
        with httpx2.Client(base_url=f"{(remote.url or '').rstrip('/')}/v1", headers=headers, timeout=timeout) as client:
            yield client
    except httpx2.RequestError as error:
        raise Failure(
            "The connection broke off",
            detail=type(error).__name__,
            hint="See `stateroom job list` for how far the gateway got, and run the command again: an import passes"
            " over what is there, an export begins anew.",
            exit_code=ExitCode.UNAVAILABLE,
        ) from None


def _refused(answer: "httpx2.Response") -> Failure:
    """What a refusal says to a person."""
    import msgspec

    from gateway.cli.connection import failure_from
    from stateroom.errors import GatewayUnavailable, Problem, error_from_problem

    try:
        problem = msgspec.json.decode(answer.read(), type=Problem)
    except msgspec.MsgspecError:
        detail = f"unexpected answer with status {answer.status_code}"
        return failure_from(GatewayUnavailable(detail, code="unexpected-answer"), _CREDENTIAL)
    return failure_from(error_from_problem(problem, answer.status_code), _CREDENTIAL)


def _export(remote: Remote, path: str, wanted: dict[str, str], file: Path) -> None:
    if file.exists():
        raise Failure(f"{file} exists", hint="Name a new file.", exit_code=ExitCode.CONFLICT)
    arriving = file.with_name(f".{file.name}.arriving")
    try:
        with _http(remote) as client, client.stream("POST", path, json=wanted) as answer:
            if not answer.is_success:
                raise _refused(answer)
            job_id = answer.headers["stateroom-job"]
            meter = _Meter(None)
            with arriving.open("wb") as output:
                for data in answer.iter_bytes():
                    output.write(data)
                    meter.moved(len(data))
                output.flush()
                os.fsync(output.fileno())
            meter.end()
        # A stream that broke off raised: whatever is here ended as HTTP says.
        arriving.rename(file)
    except OSError as error:
        raise Failure(f"cannot write {file}", detail=str(error.strerror)) from None
    finally:
        arriving.unlink(missing_ok=True)
    render.say(f"{render.byte_count(file.stat().st_size)} in {file}; only the recipient opens them.")
    _tell_what_is_damaged(remote, job_id)


def _tell_what_is_damaged(remote: Remote, job_id: str) -> None:
    """Name the threads and items that are not in the file because they cannot be read.

    Raises:
        Failure: there are some.
    """
    note = remote.call("GET", ["jobs", job_id])["note"] or ""
    if "damaged" in note:
        raise Failure(
            "Some threads or items are damaged and were left out",
            detail=str(note),
            hint="stateroom verify thread says what is wrong with one; the file holds all others.",
        )


to_option = click.option(
    "--to", "recipient", required=True, metavar="KEY", help="What `transfer-key show` printed at the receiving gateway."
)
file_option = click.option(
    "--output", "-o", "file", required=True, metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Where to put it; must not exist.",
)  # fmt: skip


@click.group("transfer-key")
def transfer_key_group() -> None:
    """The key that exports for this tenant are sealed for (STATEROOM_API_KEY, with tenant:admin)."""


@transfer_key_group.command("show")
@as_tenant
def transfer_key_show(*, remote: Remote) -> None:
    """Print the public key; compare the fingerprint over another way than the key came."""
    key = remote.call("GET", ["transfer-key"])
    if remote.as_json:
        render.emit_json(key)
        return
    render.line(key["public_key"])
    render.say(f"Fingerprint: {key['fingerprint']}")


@click.group("export")
def export_group() -> None:
    """Write a thread or a tenant to a file that one other deployment opens (STATEROOM_API_KEY).

    What was made under a client-held share is exported with STATEROOM_CLIENT_SHARE.
    """


@export_group.command("thread")
@click.argument("thread_id")
@to_option
@file_option
@as_silent_subject
def export_thread(*, thread_id: str, recipient: str, file: Path, remote: Remote) -> None:
    """Export one thread, with its history, pending writes and files."""
    import stateroom

    if remote.subject is None:
        raise Failure(
            "no subject", hint="Name the subject with --subject or STATEROOM_SUBJECT.", exit_code=ExitCode.USAGE
        )
    path = f"/threads/{quote(stateroom.encode_id(thread_id), safe='~._:@+-')}/export"
    _export(replace(remote, subject=None), path, {"recipient": recipient, "subject_id": remote.subject}, file)


@export_group.command("tenant")
@to_option
@file_option
@as_silent_tenant
def export_tenant(*, recipient: str, file: Path, remote: Remote) -> None:
    """Export all threads and items of the tenant, and its state schemas."""
    _export(remote, "/export", {"recipient": recipient}, file)


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.option("--skip-existing", is_flag=True, help="Pass over threads and items that exist here, instead of stopping.")
@as_tenant
def import_command(*, file: Path, skip_existing: bool, remote: Remote) -> None:
    """Take an export in, under the tenant of STATEROOM_API_KEY; run it again if it broke off.

    Each thread appears whole, is read back and compared with what was exported.
    """
    meter = _Meter(file.stat().st_size)

    def content() -> Iterator[bytes]:
        with file.open("rb") as source:
            while data := source.read(_SLICE_BYTES):
                yield data
                meter.moved(len(data))
        meter.end()

    query = {"skip_existing": "true"} if skip_existing else {}
    headers = {"Content-Type": "application/vnd.stateroom.export", "Content-Length": str(file.stat().st_size)}
    try:
        with _http(remote) as client:
            answer = client.post("/import", params=query, content=content(), headers=headers)
            if not answer.is_success:
                raise _refused(answer)
    except OSError as error:
        raise Failure(f"cannot read {file}", detail=str(error.strerror)) from None
    _report(answer.json(), as_json=remote.as_json)


def _report(report: dict[str, Any], *, as_json: bool) -> None:
    """Print what was done.

    Raises:
        Failure: something of the file is not here now.
    """
    missing = [each for each in report["passed"] if each["reason"] != "there"]
    items = report.get("passed_items", [])  # a gateway of an earlier release has none
    if as_json:
        render.emit_json(report)
    else:
        names = (
            "threads", "checkpoints", "pending_writes", "artifacts", "state_schemas", "verified", "passed_over",
            "items", "items_verified", "items_passed_over",
        )  # fmt: skip
        render.record({name: f"{report.get(name, 0):,}" for name in names})
        if missing:
            render.table(
                ["Subject", "Thread", "Not imported because it"],
                [
                    [render.cell(each["subject_id"]), render.cell(each["thread_id"]), _REASONS[each["reason"]]]
                    for each in missing
                ],
                empty="",
            )
        if items:
            render.table(
                ["Subject", "Path", "Key", "Not imported because it"],
                [
                    [
                        render.cell(each["subject_id"]), render.cell(each["path"]),
                        render.cell(each["key"]), _REASONS[each["reason"]],
                    ]
                    for each in items
                ],
                empty="",
            )  # fmt: skip
    if any(each["reason"] not in _EXPECTED for each in [*missing, *items]):
        raise Failure("Some threads or items were not imported", detail=f"job {report['job_id']}")


@click.command("accept-unbound-import")
@click.argument("tenant_id")
@click.argument("export_id")
@as_silent_operator
def accept_unbound_import(*, tenant_id: str, export_id: str, remote: Remote) -> None:
    """Let a tenant import one file of an earlier release, which names no tenant (STATEROOM_OPERATOR_KEY).

    Make sure that the file is theirs: EXPORT_ID is in its name, and in the audit log of who exported it.
    """
    remote.call("POST", ["admin", "tenants", tenant_id, "unbound-imports"], body={"export_id": export_id})
    render.say(f"Tenant {tenant_id} may import export {export_id}, once.")


COMMANDS = (accept_unbound_import, export_group, import_command, transfer_key_group)
