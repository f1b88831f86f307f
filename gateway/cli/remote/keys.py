"""Keys over HTTP: `key status|rotate|rewrap`, `subject shred`, `tenant shred`, `job`; and `restore accept`, locally.

What takes long is a job of the gateway; the commands wait for its end and show how far it is, and the job goes on when
they are interrupted. `restore accept` works on a database that no gateway serves: with the gateway's own settings, or,
with ``--data-dir``, on an embedded gateway's folder, whose engines it starts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_either, as_operator, as_tenant
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.local.running import run_with_settings
from gateway.cli.parameters import Page, data_dir_option, gathered, json_option, page_options
from gateway.cli.remote.administration.tenants import tenant_group
from gateway.cli.remote.archive import restore_thread
from gateway.cli.remote.jobs import flat, follow, timeout_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection
    from gateway.settings import Settings
    from storage.administration.anchors import Restored
    from storage.key_lifecycle.shred import Accepted

_DEPLOYMENTS = "As the operator (STATEROOM_OPERATOR_KEY): the root keys of the deployment."
_JOBS = Listing(
    {
        "job_id": "Job id",
        "kind": "Kind",
        "target": "Target",
        "state": "State",
        "progress": "Progress",
        "created_at": "Created at",
    },
    empty="No jobs.",
    row=flat,
)


@dataclass(frozen=True, slots=True)
class Following:
    """Whether a command waits for the end of its job, and for how long at most; None: to its end."""

    wait: bool
    timeout_seconds: float | None


following_options = gathered(
    "following",
    Following,
    click.option("--wait/--no-wait", default=True, show_default=True, help="Wait for the end, and show how far it is."),
    timeout_option,
)


def _table(items: list[dict[str, Any]], columns: tuple[str, ...], *, empty: str) -> None:
    titles = [name.replace("_", " ").capitalize() for name in columns]
    render.table(titles, [[render.member(name, item[name]) for name in columns] for item in items], empty=empty)


def _follow(remote: Remote, connection: "Connection", job_id: str, timeout_seconds: float | None) -> dict[str, Any]:
    job = follow(remote, connection, job_id, timeout_seconds=timeout_seconds)
    if job["note"]:
        render.say(job["note"])
    return job


def _end(remote: Remote, connection: "Connection", job: dict[str, Any], following: Following) -> None:
    """Follow the job that was begun, if the command waits for it, and print it."""
    if following.wait:
        job |= _follow(remote, connection, job["job_id"], following.timeout_seconds)
    _print_job(remote, job)


def _print_job(remote: Remote, job: dict[str, Any]) -> None:
    remote.print_record(job if remote.as_json else flat(job))


@click.group("key")
def key_group() -> None:
    """Keys: which versions there are, and their rotation. Never a key itself."""


@key_group.command("status")
@click.option("--subject", "subject_id", metavar="ID", help="Show this subject's keys, too.")
@as_either(_DEPLOYMENTS, json_option)
def key_status(*, subject_id: str | None, remote: Remote) -> None:
    """Show the versions of the tenant's key; with --operator, which root keys wrap how many tenant keys."""
    if remote.operator and subject_id:
        raise click.UsageError("--operator sees no subject.")
    status = remote.call("GET", remote.path("keys"), query=None if remote.operator else {"subject_id": subject_id})
    if remote.as_json:
        render.emit_json(status)
    elif remote.operator:
        columns: tuple[str, ...] = ("provider", "root_key_id", "root_key_version", "tenant_keys")
        _table(status["root_keys"], columns, empty="No tenant has a key yet.")
    else:
        columns = ("key_version", "state", "provider", "root_key_version", "subject_keys", "created_at", "destroyed_at")
        _table(status["tenant_keys"], columns, empty="The tenant has no key yet.")
        if status["subject_keys"] is not None:
            columns = (
                "purpose",
                "key_version",
                "state",
                "archived_bytes",
                "created_at",
                "destroyed_at",
                "shred_effective_at",
            )
            _table(status["subject_keys"], columns, empty="")


@key_group.command("rotate")
@click.option("--subject", "subject_id", metavar="ID", help="This subject's data key; without: the tenant's key.")
@click.option(
    "--complete", is_flag=True, help="Write the subject's archives and segments again, too: it costs their bytes."
)
@following_options
@as_tenant
def key_rotate(*, subject_id: str | None, complete: bool, following: Following, remote: Remote) -> None:
    """Make a new key active. No request fails meanwhile; the old version goes when nothing needs it."""
    if complete and subject_id is None:
        raise click.UsageError("--complete is for a subject's key: name it with --subject.")
    body: dict[str, Any] = {"level": "tenant"} if subject_id is None else {"level": "subject", "subject_id": subject_id}
    if complete:
        body["complete"] = True
    with remote.connect() as connection:
        _end(remote, connection, connection.call("POST", ["keys:rotate"], body=body), following)


@key_group.command("rewrap")
@click.option("--operator", is_flag=True, help=_DEPLOYMENTS)
@following_options
@as_tenant
def key_rewrap(*, following: Following, remote: Remote) -> None:
    """Wrap the tenant's subject keys under its newest key; with --operator, all tenant keys under the active root key.

    Run it with --operator after the root key was changed (the new one listed first) or rotated; the old one may go when
    it ended well. No payload is touched.
    """
    with remote.connect() as connection:
        _end(remote, connection, connection.call("POST", remote.path("keys:rewrap")), following)


# --- shredding -----------------------------------------------------------------------------------------------------


@click.group("subject")
def subject_group() -> None:
    """Subjects of a tenant, with a key that has tenant:admin (STATEROOM_API_KEY)."""


def _confirmed(what: str, confirm: str | None) -> str:
    if confirm is None:
        confirm = click.prompt(f"This cannot be undone. Type {render.safe(what)} to shred it", err=True)
    if confirm != what:
        raise Failure(
            "not confirmed: nothing happened", hint=f"Repeat the id: --confirm {what}", exit_code=ExitCode.USAGE
        )
    return confirm


def _say_shredded(answer: dict[str, Any]) -> None:
    render.say("The keys are destroyed. Backups that hold them have expired at shred_effective_at, not before.")
    if not answer["tombstone"]:
        render.say("There is no object store: after a restore from a backup, shred again.")


confirm_option = click.option("--confirm", metavar="ID", help="The id once more, instead of the question.")


@subject_group.command("list")
@page_options
@as_tenant
def subject_list(*, page: Page, remote: Remote) -> None:
    """List the tenant's subjects that have keys, hence data, by id."""
    remote.print_pages(["subjects"], "subjects", page, Listing({"subject_id": "Subject"}, empty="No subjects."))


@subject_group.command("shred")
@click.argument("subject_id")
@confirm_option
@following_options
@as_tenant
def subject_shred(*, subject_id: str, confirm: str | None, following: Following, remote: Remote) -> None:
    """Destroy a subject's keys, for ever: nothing it stored can be opened again, by anybody."""
    body = {"confirm": _confirmed(subject_id, confirm)}
    with remote.connect() as connection:
        shredded = connection.call("POST", ["subjects", subject_id, "shred"], body=body)
        _say_shredded(shredded)
        _end(remote, connection, shredded, following)


@tenant_group.command("shred")
@click.argument("tenant_id")
@confirm_option
@as_operator
def tenant_shred(*, tenant_id: str, confirm: str | None, remote: Remote) -> None:
    """Destroy all keys of a tenant and its subjects, for ever. The rows go in the background."""
    body = {"confirm": _confirmed(tenant_id, confirm)}
    shredded = remote.call("POST", ["admin", "tenants", tenant_id, "shred"], body=body)
    _say_shredded(shredded)
    _print_job(remote, shredded)


# --- jobs ----------------------------------------------------------------------------------------------------------


@click.group("job")
def job_group() -> None:
    """Long operations: rotations, re-seals, shreds."""


@job_group.command("list")
@page_options
@as_either(_DEPLOYMENTS, json_option)
def job_list(*, page: Page, remote: Remote) -> None:
    """List jobs, newest first."""
    remote.print_pages(remote.path("jobs"), "jobs", page, _JOBS)


@job_group.command("show")
@click.argument("job_id")
@click.option("--wait", is_flag=True, help="Wait for its end, and show how far it is; --timeout waits, too.")
@timeout_option
@as_either(_DEPLOYMENTS, json_option)
def job_show(*, job_id: str, wait: bool, timeout_seconds: float | None, remote: Remote) -> None:
    """Show a job: how far it is, and what it waits for."""
    with remote.connect() as connection:
        if wait or timeout_seconds is not None:
            job = _follow(remote, connection, job_id, timeout_seconds)
        else:
            job = connection.call("GET", remote.path("jobs", job_id))
    _print_job(remote, job)


@job_group.command("cancel")
@click.argument("job_id")
@as_either(_DEPLOYMENTS, json_option)
def job_cancel(*, job_id: str, remote: Remote) -> None:
    """End a job before its time, on the record: archive, restore, verify, state migrations, export, import.

    What it has done stays. Shreds and rotations go on to their end.
    """
    _print_job(remote, remote.call("POST", remote.path("jobs", job_id, "cancel")))


@job_group.command("supersede")
@click.argument("job_id")
@as_either(_DEPLOYMENTS, json_option)
def job_supersede(*, job_id: str, remote: Remote) -> None:
    """Put a job aside whose row was written or edited outside the gateway; the audit log keeps what it said."""
    _print_job(remote, remote.call("POST", remote.path("jobs", job_id, "supersede")))


# --- after a restore -----------------------------------------------------------------------------------------------


class _ThreadsOrAccept(click.RichGroup):
    """`restore THREAD` is `restore thread THREAD`: a thread of the name of a command is named that way."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["thread", *args]
        return super().parse_args(ctx, args)


@click.group("restore", cls=_ThreadsOrAccept)
def restore_group() -> None:
    """Bring a thread back from the archive; or accept a database that was restored from a backup.

    `stateroom restore THREAD_ID` is `stateroom restore thread THREAD_ID`.
    """


restore_group.add_command(restore_thread)


@restore_group.command("accept")
@data_dir_option
@json_option
def restore_accept(*, data_dir: Path | None, as_json: bool) -> None:
    """After a restore from a backup: shred again what was shredded since, and document what the audit logs lost.

    Takes the gateway's settings, or an embedded gateway's folder with --data-dir; no gateway may run.

    Reads the tombstones and the anchors in the object store; `serve` refuses to start before. Run again, it changes
    nothing.
    """
    restored, accepted = run_with_settings(_accept, data_dir)
    for log in restored:
        if as_json:
            render.emit_json({"tenant_id": str(log.tenant_id), "sequence": log.gap.sequence, **log.gap.detail})
        else:
            render.line(f"audit log of {log.tenant_id}: {log.gap.message}")
    for each in accepted:
        item = {
            "tenant_id": str(each.tenant_id),
            "job_id": str(each.shred_id),
            "level": each.level,
            "keys_destroyed": each.keys_destroyed,
        }
        if as_json:
            render.emit_json(item)
        else:
            render.line(f"{each.level} of tenant {each.tenant_id}: {each.keys_destroyed} keys destroyed again")
    render.say(f"{len(accepted)} shreds applied again; the gateway may serve from this database.")


async def _accept(settings: "Settings") -> "tuple[list[Restored], list[Accepted]]":
    from gateway.app import open_store
    from storage.administration.audit import LOCAL_ACTOR

    if settings.s3_url is None:
        raise Failure(
            "there are no tombstones without an object store",
            hint="STATEROOM_S3_URL names the bucket; without one, shred again what was shredded since the backup.",
            exit_code=ExitCode.USAGE,
        )
    async with open_store(settings, 2, restored=True) as (store, _):
        return await store.accept_restored(LOCAL_ACTOR)


COMMANDS = (key_group, subject_group, job_group, restore_group)
