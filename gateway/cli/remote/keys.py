"""Keys over HTTP: `key status|rotate|rewrap`, `subject shred`, `tenant shred`, `job`; and `restore accept`, locally.

What takes long is a job of the gateway; the commands wait for its end and show how far it is, and the job goes on when
they are interrupted. `restore accept` works on a database that no gateway serves: with the gateway's own settings, or,
with ``--data-dir``, on an embedded gateway's folder, whose engines it starts.
"""

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.local.running import run_local, settings_from_environment
from gateway.cli.opening import as_either, as_operator, as_tenant
from gateway.cli.parameters import data_dir_option, json_option, page_options, url_option
from gateway.cli.remote.administration.tenants import tenant_group
from gateway.cli.remote.archive import restore_thread
from gateway.cli.remote.jobs import flat, follow, job_path, timeout_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection
    from gateway.settings import Settings
    from storage.administration.anchors import Restored
    from storage.key_lifecycle.shred import Accepted

_TIMES = ("created_at", "updated_at", "destroyed_at", "shred_effective_at")

operator_option = click.option(
    "--operator", is_flag=True, help="As the operator (STATEROOM_OPERATOR_KEY): the root keys of the deployment."
)
wait_option = click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait for the end, and show how far it is."
)


def _shown(item: dict[str, Any]) -> dict[str, str]:
    return {name: render.moment(value) if name in _TIMES else render.cell(value) for name, value in item.items()}


def _print(item: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        render.emit_json(item)
    else:
        render.record(_shown(item))


def _table(items: Sequence[dict[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    titles = [name.replace("_", " ").capitalize() for name in columns]
    render.table(titles, [[_shown(item)[name] for name in columns] for item in items], empty=empty)


def _follow(connection: "Connection", job_id: str, *, operator: bool, timeout_seconds: float | None) -> dict[str, Any]:
    job = follow(connection, job_id, operator=operator, timeout_seconds=timeout_seconds)
    if job["note"]:
        render.say(job["note"])
    return job


def _end(
    connection: "Connection",
    started: dict[str, Any],
    *,
    operator: bool,
    wait: bool,
    timeout_seconds: float | None,
    as_json: bool,
) -> None:
    if wait:
        started |= _follow(connection, started["job_id"], operator=operator, timeout_seconds=timeout_seconds)
    _print(started if as_json else flat(started), as_json=as_json)


@click.group("key")
def key_group() -> None:
    """Keys: which versions there are, and their rotation. Never a key itself."""


@key_group.command("status")
@click.option("--subject", metavar="ID", help="Show this subject's keys, too.")
@operator_option
@url_option
@json_option
def key_status(*, subject: str | None, operator: bool, url: str | None, as_json: bool) -> None:
    """Show the versions of the tenant's key; with --operator, which root keys wrap how many tenant keys."""
    if operator and subject:
        raise click.UsageError("--operator sees no subject.")
    with as_either(url, operator=operator) as connection:
        query = None if operator else {"subject_id": subject}
        found = connection.call("GET", job_path(operator, "keys"), query=query)
    if as_json:
        render.emit_json(found)
    elif operator:
        columns: tuple[str, ...] = ("provider", "root_key_id", "root_key_version", "tenant_keys")
        _table(found["root_keys"], columns, empty="No tenant has a key yet.")
    else:
        columns = ("key_version", "state", "provider", "root_key_version", "subject_keys", "created_at", "destroyed_at")
        _table(found["tenant_keys"], columns, empty="The tenant has no key yet.")
        if found["subject_keys"] is not None:
            columns = ("purpose", "key_version", "state", "created_at", "destroyed_at", "shred_effective_at")
            _table(found["subject_keys"], columns, empty="")


@key_group.command("rotate")
@click.option("--subject", metavar="ID", help="This subject's data key; without: the tenant's key.")
@wait_option
@timeout_option
@url_option
@json_option
def key_rotate(
    *, subject: str | None, wait: bool, timeout_seconds: float | None, url: str | None, as_json: bool
) -> None:
    """Make a new key active. No request fails meanwhile; the old version goes when nothing needs it."""
    body: dict[str, Any] = {"level": "tenant"} if subject is None else {"level": "subject", "subject_id": subject}
    with as_tenant(url) as connection:
        started = connection.call("POST", ["keys:rotate"], body=body)
        _end(connection, started, operator=False, wait=wait, timeout_seconds=timeout_seconds, as_json=as_json)


@key_group.command("rewrap")
@operator_option
@wait_option
@timeout_option
@url_option
@json_option
def key_rewrap(*, operator: bool, wait: bool, timeout_seconds: float | None, url: str | None, as_json: bool) -> None:
    """Wrap the tenant's subject keys under its newest key; with --operator, all tenant keys under the active root key.

    Run it with --operator after the root key was changed (the new one listed first) or rotated; the old one may go when
    it ended well. No payload is touched.
    """
    with as_either(url, operator=operator) as connection:
        started = connection.call("POST", job_path(operator, "keys:rewrap"))
        _end(connection, started, operator=operator, wait=wait, timeout_seconds=timeout_seconds, as_json=as_json)


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
@url_option
@json_option
def subject_list(*, limit: int, everything: bool, url: str | None, as_json: bool) -> None:
    """List the tenant's subjects that have keys, hence data, by id."""
    with as_tenant(url) as connection:
        pages = connection.pages(["subjects"], "subjects", rows_wanted=None if everything else limit)
        found = list(pages if everything else islice(pages, limit))
    if as_json:
        for each in found:
            render.emit_json(each)
    else:
        render.table(["Subject"], [[render.cell(each["subject_id"])] for each in found], empty="No subjects.")


@subject_group.command("shred")
@click.argument("subject_id")
@confirm_option
@wait_option
@timeout_option
@url_option
@json_option
def subject_shred(
    *,
    subject_id: str,
    confirm: str | None,
    wait: bool,
    timeout_seconds: float | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Destroy a subject's keys, for ever: nothing it stored can be opened again, by anybody."""
    body = {"confirm": _confirmed(subject_id, confirm)}
    with as_tenant(url) as connection:
        answer = connection.call("POST", ["subjects", subject_id, "shred"], body=body)
        _say_shredded(answer)
        _end(connection, answer, operator=False, wait=wait, timeout_seconds=timeout_seconds, as_json=as_json)


@tenant_group.command("shred")
@click.argument("tenant_id")
@confirm_option
@url_option
@json_option
def tenant_shred(*, tenant_id: str, confirm: str | None, url: str | None, as_json: bool) -> None:
    """Destroy all keys of a tenant and its subjects, for ever. The rows go in the background."""
    body = {"confirm": _confirmed(tenant_id, confirm)}
    with as_operator(url) as connection:
        answer = connection.call("POST", ["admin", "tenants", tenant_id, "shred"], body=body)
    _say_shredded(answer)
    _print(answer if as_json else flat(answer), as_json=as_json)


# --- jobs ----------------------------------------------------------------------------------------------------------


@click.group("job")
def job_group() -> None:
    """Long operations: rotations, re-seals, shreds."""


@job_group.command("list")
@page_options
@operator_option
@url_option
@json_option
def job_list(*, limit: int, everything: bool, operator: bool, url: str | None, as_json: bool) -> None:
    """List jobs, newest first."""
    rows: list[dict[str, Any]] = []
    cut = False
    with as_either(url, operator=operator) as connection:
        wanted = None if everything else limit
        for job in connection.pages(job_path(operator, "jobs"), "jobs", rows_wanted=wanted):
            if wanted is not None and len(rows) == wanted:
                cut = True
                break
            rows.append(job)
    if as_json:
        for job in rows:
            render.emit_json(job)
        return
    _table(list(map(flat, rows)), ("job_id", "kind", "target", "state", "progress", "created_at"), empty="No jobs.")
    if cut:
        render.say("There is more: --limit N or --all.")


@job_group.command("show")
@click.argument("job_id")
@click.option("--wait", is_flag=True, help="Wait for its end, and show how far it is; --timeout waits, too.")
@timeout_option
@operator_option
@url_option
@json_option
def job_show(
    *, job_id: str, wait: bool, timeout_seconds: float | None, operator: bool, url: str | None, as_json: bool
) -> None:
    """Show a job: how far it is, and what it waits for."""
    with as_either(url, operator=operator) as connection:
        if wait or timeout_seconds is not None:
            found = _follow(connection, job_id, operator=operator, timeout_seconds=timeout_seconds)
        else:
            found = connection.call("GET", job_path(operator, "jobs", job_id))
    _print(found if as_json else flat(found), as_json=as_json)


@job_group.command("cancel")
@click.argument("job_id")
@operator_option
@url_option
@json_option
def job_cancel(*, job_id: str, operator: bool, url: str | None, as_json: bool) -> None:
    """End a job before its time, on the record: archive, restore, verify, state migrations, export, import.

    What it has done stays. Shreds and rotations go on to their end.
    """
    with as_either(url, operator=operator) as connection:
        found = connection.call("POST", job_path(operator, "jobs", job_id, "cancel"))
    _print(found if as_json else flat(found), as_json=as_json)


@job_group.command("supersede")
@click.argument("job_id")
@operator_option
@url_option
@json_option
def job_supersede(*, job_id: str, operator: bool, url: str | None, as_json: bool) -> None:
    """Put a job aside whose row was written or edited outside the gateway; the audit log keeps what it said."""
    with as_either(url, operator=operator) as connection:
        found = connection.call("POST", job_path(operator, "jobs", job_id, "supersede"))
    _print(found if as_json else flat(found), as_json=as_json)


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
    restored, accepted = _accepted() if data_dir is None else _accepted_in(data_dir)
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


def _accepted() -> "tuple[list[Restored], list[Accepted]]":
    settings = settings_from_environment()
    if settings.s3_url is None:
        raise Failure(
            "there are no tombstones without an object store",
            hint="STATEROOM_S3_URL names the bucket; without one, shred again what was shredded since the backup.",
            exit_code=ExitCode.USAGE,
        )
    done: tuple[list[Restored], list[Accepted]] = run_local(_accept(settings))
    return done


def _accepted_in(data_dir: Path) -> "tuple[list[Restored], list[Accepted]]":
    from gateway.cli.local.instance import Instance

    with Instance(data_dir) as folder:
        identity = folder.join()

        async def run() -> "tuple[list[Restored], list[Accepted]]":
            app_url = await folder.prepare(identity)
            # Nobody is served here: the public URL is only one that a setting must have.
            return await _accept(folder.settings(identity, app_url, "http://localhost", os.environ))

        done: tuple[list[Restored], list[Accepted]] = run_local(run())
        return done


async def _accept(settings: "Settings") -> "tuple[list[Restored], list[Accepted]]":
    from contextlib import AsyncExitStack

    from crypto.roots import create_root_key
    from gateway.app import open_blobs
    from storage.administration.audit import LOCAL_ACTOR
    from storage.service import Store, StoreOptions

    async with AsyncExitStack() as stack:
        root_key = create_root_key(settings.root_key)
        stack.push_async_callback(root_key.aclose)
        blobs = await stack.enter_async_context(open_blobs(settings.s3_url))
        store = await Store.open(
            settings.database_url,
            root_key=root_key,
            deployment_id=settings.deployment_id,
            connections_max=2,
            restored=True,
            options=StoreOptions(blobs=blobs, backup_retention_days=settings.backup_retention_days),
        )
        stack.push_async_callback(store.close)
        return await store.accept_restored(LOCAL_ACTOR)


COMMANDS = (key_group, subject_group, job_group, restore_group)
