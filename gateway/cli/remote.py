"""The commands that use a gateway over HTTP: `tenant`, `api-key`, `operator-key`, `thread`, `checkpoint`.

They know the API and nothing else: no database, no key material. Listings are tables for people and, with
``--json``, one JSON document a line, exactly as the API gave it. A new key is printed once, on stdout, and
nowhere else.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import ByteSize, Command, Moment, json_option, page_options, subject_option, url_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection
    from gateway.cli.state_diff import Change

PERMISSIONS = ("state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin")
STATUSES = ("active", "waiting", "failed", "done")
VALUE_CHARACTERS_MAX = 100  # of a value in a difference; --full prints all of it


def _as_operator(url: str | None) -> "Connection":
    from gateway.cli.connection import Connection

    return Connection.open(url, credential="STATEROOM_OPERATOR_KEY", subject=None)


def _as_tenant(url: str | None, subject: str | None = None) -> "Connection":
    from gateway.cli.connection import Connection

    return Connection.open(url, credential="STATEROOM_API_KEY", subject=subject)


class _Listing:
    """The first rows of a listing, and whether there are more."""

    def __init__(self, items: Iterable[dict[str, Any]], limit: int, everything: bool) -> None:
        self._items = items
        self._limit = None if everything else limit
        self.cut = False

    def __iter__(self) -> Any:
        for count, item in enumerate(self._items):
            if count == self._limit:
                self.cut = True
                return
            yield item


def _print_listing(
    listing: _Listing, columns: dict[str, str], *, as_json: bool, empty: str, times: tuple[str, ...] = ()
) -> None:
    if as_json:
        for item in listing:
            render.emit_json(item)
        return
    rows = [
        [render.moment(item.get(name)) if name in times else render.cell(item.get(name)) for name in columns]
        for item in listing
    ]
    render.table(list(columns.values()), rows, empty=empty)
    if listing.cut:
        render.say("There is more: --limit N or --all.")


def _print_record(item: dict[str, Any], *, as_json: bool, times: tuple[str, ...] = ()) -> None:
    if as_json:
        render.emit_json(item)
    else:
        render.record(
            {name: render.moment(value) if name in times else render.cell(value) for name, value in item.items()}
        )


def _confirm(question: str, assume_yes: bool) -> None:
    if not assume_yes:
        click.confirm(question, abort=True, err=True)


# --- tenants ---------------------------------------------------------------------------------------------


_KEY_TIMES = ("created_at", "expires_at", "revoked_at", "last_used_at")
_TENANT_TIMES = ("created_at", "suspended_at")
_reason_option = click.option("--reason", required=True, help="Why; the tenant reads it in its audit log.")
_expires_option = click.option("--expires", type=Moment("ahead"), help="When it ends: 90d, or an RFC 3339 time.")
_force_option = click.option("--force", is_flag=True, help="Also when it is the last key that administers.")


@click.group("tenant")
def tenant_group() -> None:
    """Tenants, as the operator (STATEROOM_OPERATOR_KEY)."""


@tenant_group.command("create")
@click.argument("name")
@url_option
@json_option
def tenant_create(*, name: str, url: str | None, as_json: bool) -> None:
    """Create a tenant and print its first API key, this once: it administers the tenant, and makes keys for agents."""
    with _as_operator(url) as connection:
        created = connection.call("POST", ["admin", "tenants"], body={"name": name})
    _print_record(created, as_json=as_json, times=_TENANT_TIMES)
    if not as_json:
        render.say("The API key is shown only now: keep it where your secrets are.")


@tenant_group.command("list")
@page_options
@url_option
@json_option
def tenant_list(*, limit: int, everything: bool, url: str | None, as_json: bool) -> None:
    """List tenants, newest first."""
    with _as_operator(url) as connection:
        pages = connection.pages(["admin", "tenants"], "tenants", rows_wanted=None if everything else limit)
        _print_listing(
            _Listing(pages, limit, everything),
            {"tenant_id": "Tenant", "name": "Name", "created_at": "Created", "suspended_at": "Suspended"},
            as_json=as_json,
            empty="No tenants yet: stateroom tenant create NAME",
            times=_TENANT_TIMES,
        )


@tenant_group.command("show")
@click.argument("tenant_id")
@url_option
@json_option
def tenant_show(*, tenant_id: str, url: str | None, as_json: bool) -> None:
    """Show one tenant."""
    with _as_operator(url) as connection:
        found = connection.call("GET", ["admin", "tenants", tenant_id])
    _print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("rename")
@click.argument("tenant_id")
@click.argument("name")
@url_option
@json_option
def tenant_rename(*, tenant_id: str, name: str, url: str | None, as_json: bool) -> None:
    """Give a tenant another name, which no other tenant has."""
    with _as_operator(url) as connection:
        found = connection.call("PATCH", ["admin", "tenants", tenant_id], body={"name": name})
    _print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("suspend")
@click.argument("tenant_id")
@_reason_option
@click.option("--yes", "assume_yes", is_flag=True, help="Do not ask.")
@url_option
@json_option
def tenant_suspend(*, tenant_id: str, reason: str, assume_yes: bool, url: str | None, as_json: bool) -> None:
    """Refuse all API keys of a tenant until it is resumed; what it stored is kept, and not removed for its age."""
    _confirm(f"Refuse all keys of tenant {render.safe(tenant_id)} from now on?", assume_yes)
    with _as_operator(url) as connection:
        found = connection.call("POST", ["admin", "tenants", tenant_id, "suspend"], body={"reason": reason})
    _print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("resume")
@click.argument("tenant_id")
@url_option
@json_option
def tenant_resume(*, tenant_id: str, url: str | None, as_json: bool) -> None:
    """Take the API keys of a suspended tenant again."""
    with _as_operator(url) as connection:
        found = connection.call("POST", ["admin", "tenants", tenant_id, "resume"])
    _print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("recover")
@click.argument("tenant_id")
@_reason_option
@_expires_option
@url_option
@json_option
def tenant_recover(*, tenant_id: str, reason: str, expires: datetime | None, url: str | None, as_json: bool) -> None:
    """Make an administration key for a tenant that lost its own and print it, this once; the tenant's log says so."""
    body = {"reason": reason} | ({"expires_at": expires.isoformat()} if expires else {})
    with _as_operator(url) as connection:
        _print_new_key(connection.call("POST", ["admin", "tenants", tenant_id, "recover"], body=body), as_json=as_json)


@tenant_group.command("quota")
@click.argument("tenant_id")
@click.option(
    "--set", "quota", type=ByteSize(), help="Allow so much in the object store: 10GiB, 500MB, bytes, or none."
)
@click.option("--set-rows", "rows_quota", type=ByteSize(), help="Allow so much for rows in the database, likewise.")
@url_option
@json_option
def tenant_quota(
    *,
    tenant_id: str,
    quota: int | Literal["none"] | None,
    rows_quota: int | Literal["none"] | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show what a tenant keeps in the object store and the database, or say how much it may; none: all it likes."""
    path = ["admin", "tenants", tenant_id, "usage"]
    given = {"quota_bytes": quota, "rows_quota_bytes": rows_quota}
    body = {name: None if each == "none" else each for name, each in given.items() if each is not None}
    with _as_operator(url) as connection:
        found = connection.call("PATCH", path, body=body) if body else connection.call("GET", path)
    _print_record(found if as_json else _readable(found), as_json=as_json)


def _readable(usage: dict[str, Any]) -> dict[str, Any]:
    """What a person reads of a tenant's bytes."""
    shown = {"tenant_id": usage["tenant_id"]}
    for used_name, quota_name in (("used_bytes", "quota_bytes"), ("rows_bytes", "rows_quota_bytes")):
        used, quota = usage.get(used_name), usage.get(quota_name)
        share = f", {used / quota:.0%} used" if quota and used is not None else ""
        shown[used_name] = "not counted yet" if used is None else render.byte_count(used)
        shown[quota_name] = "none" if quota is None else render.byte_count(quota) + share
    return shown | {"rows_counted_at": usage.get("rows_counted_at")}


# --- API keys --------------------------------------------------------------------------------------------


def _print_new_key(created: dict[str, Any], *, as_json: bool) -> None:
    _print_record(created, as_json=as_json, times=_KEY_TIMES)
    if not as_json:
        render.say("The API key is shown only now: keep it where your secrets are.")


def _list_keys(connection: "Connection", path: list[str], limit: int, everything: bool, *, as_json: bool) -> None:
    pages = connection.pages(path, "api_keys", rows_wanted=None if everything else limit)
    _print_listing(
        _Listing(pages, limit, everything),
        {
            "key_id": "Key",
            "kind": "Kind",
            "subject_id": "Subject",
            "name": "Name",
            "permissions": "Permissions",
            "grants": "Grants",
            "status": "Status",
            "created_at": "Created",
            "expires_at": "Expires",
            "revoked_at": "Revoked",
            "last_used_at": "Last used",
        },
        as_json=as_json,
        empty="No API keys.",
        times=_KEY_TIMES,
    )


def _revoke_key(connection: "Connection", path: list[str], key_id: str, *, force: bool) -> None:
    connection.call("DELETE", [*path, key_id], query={"force": "true"} if force else None)
    render.say(f"Revoked {key_id}.")


@click.group("api-key")
def api_key_group() -> None:
    """API keys of a tenant, with a key that has tenant:admin (STATEROOM_API_KEY)."""


@api_key_group.command("create")
@click.option("--subject", metavar="ID", help="Bind the key to this subject; without: a service key.")
@click.option("--name", default="", help="What the key is for.")
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    type=click.Choice(PERMISSIONS),
    help="What the key may do; repeatable.  [default: state:read, state:write, state:delete]",
)
@click.option(
    "--grant",
    "grants",
    multiple=True,
    type=click.Choice(PERMISSIONS),
    help="What keys that it makes may do; repeatable.  [default: what it may do itself]",
)
@_expires_option
@url_option
@json_option
def api_key_create(
    *,
    subject: str | None,
    name: str,
    permissions: tuple[str, ...],
    grants: tuple[str, ...],
    expires: datetime | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Create an API key and print it, this once."""
    body: dict[str, Any] = {"kind": "subject" if subject else "service", "name": name}
    if subject:
        body["subject_id"] = subject
    if permissions:
        body["permissions"] = list(permissions)
    if grants:
        body["grants"] = list(grants)
    if expires:
        body["expires_at"] = expires.isoformat()
    with _as_tenant(url) as connection:
        _print_new_key(connection.call("POST", ["api-keys"], body=body), as_json=as_json)


@api_key_group.command("list")
@page_options
@url_option
@json_option
def api_key_list(*, limit: int, everything: bool, url: str | None, as_json: bool) -> None:
    """List the tenant's API keys, newest first; never their secrets."""
    with _as_tenant(url) as connection:
        _list_keys(connection, ["api-keys"], limit, everything, as_json=as_json)


@api_key_group.command("revoke")
@click.argument("key_id")
@_force_option
@url_option
def api_key_revoke(*, key_id: str, force: bool, url: str | None) -> None:
    """Revoke an API key; it cannot be brought back. The last one with tenant:admin takes --force."""
    with _as_tenant(url) as connection:
        _revoke_key(connection, ["api-keys"], key_id, force=force)


@click.group("operator-key")
def operator_key_group() -> None:
    """Operators' API keys (STATEROOM_OPERATOR_KEY); `stateroom init --another` makes one."""


@operator_key_group.command("list")
@page_options
@url_option
@json_option
def operator_key_list(*, limit: int, everything: bool, url: str | None, as_json: bool) -> None:
    """List the operators' API keys, newest first; never their secrets."""
    with _as_operator(url) as connection:
        _list_keys(connection, ["admin", "api-keys"], limit, everything, as_json=as_json)


@operator_key_group.command("revoke")
@click.argument("key_id")
@_force_option
@url_option
def operator_key_revoke(*, key_id: str, force: bool, url: str | None) -> None:
    """Revoke an operator's API key; it cannot be brought back. The last one takes --force."""
    with _as_operator(url) as connection:
        _revoke_key(connection, ["admin", "api-keys"], key_id, force=force)


# --- threads ---------------------------------------------------------------------------------------------

_THREAD_TIMES = ("created_at", "updated_at")


@click.group("thread")
def thread_group() -> None:
    """Threads of a subject (STATEROOM_API_KEY, --subject)."""


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
@subject_option
@url_option
@json_option
def thread_list(
    *,
    status: str | None,
    agent: str | None,
    tier: str | None,
    all_subjects: bool,
    limit: int,
    everything: bool,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """List threads, newest first; with --all-subjects, subject after subject."""
    wanted = None if everything else limit
    query: dict[str, str | int | None] = {"status": status, "agent": agent, "tier": tier}

    def of(one: str | None) -> Iterator[dict[str, Any]]:
        with _as_tenant(url, one) as connection:
            yield from connection.pages(["threads"], "threads", query=query, rows_wanted=wanted)

    def of_all() -> Iterator[dict[str, Any]]:
        with _as_tenant(url) as connection:
            for each in connection.pages(["subjects"], "subjects"):
                yield from ({"subject_id": each["subject_id"], **thread} for thread in of(each["subject_id"]))

    columns = {
        "thread_id": "Thread",
        "agent": "Agent",
        "status": "Status",
        "tier": "Tier",
        "strict": "Strict",
        "updated_at": "Updated",
        "head_id": "Head",
        "damaged": "Damaged",
    }
    _print_listing(
        _Listing(of_all() if all_subjects else of(subject), limit, everything),
        {"subject_id": "Subject", **columns} if all_subjects else columns,
        as_json=as_json,
        empty="No threads.",
        times=_THREAD_TIMES,
    )


@thread_group.command("show")
@click.argument("thread_id")
@subject_option
@url_option
@json_option
def thread_show(*, thread_id: str, subject: str | None, url: str | None, as_json: bool) -> None:
    """Show one thread: settings, status, head."""
    with _as_tenant(url, subject) as connection:
        found = connection.call("GET", ["threads", thread_id])
    _print_record(found, as_json=as_json, times=_THREAD_TIMES)


@thread_group.command("settings")
@click.argument("thread_id")
@click.option("--strict/--no-strict", default=None, help="Whether a save must name the head it saw.")
@click.option("--agent", metavar="NAME", help="The program the thread belongs to; '' for none.")
@subject_option
@url_option
@json_option
def thread_settings(
    *,
    thread_id: str,
    strict: bool | None,
    agent: str | None,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Change settings of a thread; what is not named stays. Creates the thread when there is none."""
    body: dict[str, Any] = {}
    if strict is not None:
        body["strict"] = strict
    if agent is not None:
        body["agent"] = agent or None
    if not body:
        raise click.UsageError("Name a setting to change: --strict, --no-strict or --agent.")
    with _as_tenant(url, subject) as connection:
        found = connection.call("PATCH", ["threads", thread_id], body=body)
    _print_record(found, as_json=as_json, times=_THREAD_TIMES)


@thread_group.command("copy")
@click.argument("thread_id")
@click.argument("target_thread_id")
@subject_option
@url_option
@json_option
def thread_copy(*, thread_id: str, target_thread_id: str, subject: str | None, url: str | None, as_json: bool) -> None:
    """Copy a thread with its history to a thread that does not exist yet."""
    with _as_tenant(url, subject) as connection:
        receipt = connection.call("POST", ["threads", thread_id, "copy"], body={"target_thread_id": target_thread_id})
    _print_record(receipt, as_json=as_json)


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


def _stated_version(schema: str | None, number: int | None) -> dict[str, Any]:
    """What a body says of the state version; nothing where nobody stated one.

    Raises:
        UsageError: only one of both was given.
    """
    if (schema is None) != (number is None):
        raise click.UsageError("--state-schema and --state-version go together.")
    return {} if schema is None else {"state_schema": schema, "state_version": number}


@thread_group.command("fork")
@click.argument("thread_id")
@click.argument("checkpoint_id")
@_state_version_options
@subject_option
@url_option
@json_option
def thread_fork(
    *,
    thread_id: str,
    checkpoint_id: str,
    state_schema: str | None,
    state_version: int | None,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Go on from an older checkpoint: its state becomes a new one, which is the head; nothing is removed."""
    stated = _stated_version(state_schema, state_version)
    with _as_tenant(url, subject) as connection:
        head_id = connection.call("GET", ["threads", thread_id])["head_id"]
        older = _load(connection, thread_id, checkpoint_id, "", view="none")
        body = {name: older[name] for name in ("status", "agent", "metadata", "state_schema", "state_version")}
        body |= {"changes": {}, "parent_id": checkpoint_id, "fork": True, "source": "fork"} | stated
        receipt = connection.call("POST", ["threads", thread_id, "checkpoints"], body=body, head_id=head_id)
    _print_record(receipt, as_json=as_json, times=("created_at",))


@thread_group.command("compact")
@click.argument("thread_id")
@click.argument("channel")
@click.option("--keep-last", type=click.IntRange(min=0), required=True, metavar="N", help="Newest elements that stay.")
@click.option("--summary", metavar="TEXT", help="Stands for the elements before.")
@click.option("--namespace", default="", metavar="NAME", help="The root's when left out.")
@_state_version_options
@subject_option
@url_option
@json_option
def thread_compact(
    *,
    thread_id: str,
    channel: str,
    keep_last: int,
    summary: str | None,
    namespace: str,
    state_schema: str | None,
    state_version: int | None,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Make a list channel of the head shorter, as a new checkpoint; older checkpoints keep the whole list."""
    body: dict[str, Any] = {"channel": channel, "keep_last": keep_last, "namespace": namespace}
    body |= _stated_version(state_schema, state_version)
    if summary is not None:
        body["summary"] = summary
    with _as_tenant(url, subject) as connection:
        receipt = connection.call("POST", ["threads", thread_id, "compact"], body=body)
    _print_record(receipt, as_json=as_json, times=("created_at",))


@thread_group.command("prune")
@click.argument("thread_ids", nargs=-1, required=True)
@click.option("--yes", "assume_yes", is_flag=True, help="Do not ask.")
@subject_option
@url_option
@json_option
def thread_prune(
    *, thread_ids: tuple[str, ...], assume_yes: bool, subject: str | None, url: str | None, as_json: bool
) -> None:
    """Remove the history of threads: what stays is their heads, and what those need."""
    _confirm(f"Remove the history of {len(thread_ids):,} threads?", assume_yes)
    with _as_tenant(url, subject) as connection:
        body = {"thread_ids": list(thread_ids), "strategy": "keep_latest"}
        receipt = connection.call("POST", ["threads:prune"], body=body)
    _print_record(receipt, as_json=as_json)


@thread_group.command("delete")
@click.argument("thread_id")
@click.option("--yes", "assume_yes", is_flag=True, help="Do not ask.")
@subject_option
@url_option
def thread_delete(*, thread_id: str, assume_yes: bool, subject: str | None, url: str | None) -> None:
    """Delete a thread with all its checkpoints."""
    _confirm(f"Delete thread {render.safe(thread_id)} with its whole history?", assume_yes)
    with _as_tenant(url, subject) as connection:
        connection.call("DELETE", ["threads", thread_id])
    render.say(f"Deleted {thread_id}.")


# --- checkpoints -----------------------------------------------------------------------------------------


@click.group("checkpoint")
def checkpoint_group() -> None:
    """Checkpoints: history, states, differences (STATEROOM_API_KEY, --subject)."""


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
@subject_option
@url_option
@json_option
def checkpoint_list(
    *,
    thread_id: str | None,
    namespace: str | None,
    status: str | None,
    step: int | None,
    run_id: str | None,
    source: str | None,
    agent: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    everything: bool,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """List checkpoints, newest first: of one thread, or of all threads of the subject."""
    query: dict[str, Any] = {
        "namespace": namespace,
        "status": status,
        "step": step,
        "run_id": run_id,
        "source": source,
    }
    across = {
        "agent": agent,
        "since": since.isoformat() if since else None,
        "until": until.isoformat() if until else None,
    }
    if thread_id is None:
        path = ["checkpoints"]
        query |= across
    elif any(across.values()):
        raise click.UsageError("--agent, --since and --until work across threads: leave out THREAD_ID.")
    else:
        path = ["threads", thread_id, "checkpoints"]
    with _as_tenant(url, subject) as connection:
        pages = connection.pages(path, "checkpoints", query=query, rows_wanted=None if everything else limit)
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
        _print_listing(
            _Listing(() if first is None else chain([first], pages), limit, everything),
            columns,
            as_json=as_json,
            empty="No checkpoints.",
            times=("created_at",),
        )


@checkpoint_group.command("show")
@click.argument("thread_id")
@click.argument("checkpoint_id", default="latest")
@click.option("--namespace", default="", metavar="NAME", help="The namespace; the root when left out.")
@click.option("--state/--no-state", "with_state", default=True, help="Whether to load and print the state.")
@subject_option
@url_option
@json_option
def checkpoint_show(
    *,
    thread_id: str,
    checkpoint_id: str,
    namespace: str,
    with_state: bool,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show a checkpoint, the latest when none is named, with its state and pending writes."""
    with _as_tenant(url, subject) as connection:
        found = _load(connection, thread_id, checkpoint_id, namespace, view="state" if with_state else "none")
    if as_json:
        render.emit_json(found)
    else:
        print_checkpoint(found)


def print_checkpoint(found: dict[str, Any]) -> None:
    """Print a checkpoint for people: its columns, then its state and pending writes where it has them."""
    clear = {name: value for name, value in found.items() if name not in {"state", "channels", "pending_writes"}}
    _print_record(clear, as_json=False, times=("created_at",))
    if "state" in found:
        render.line("")
        render.line("State")
        render.document(found["state"])
    if found.get("pending_writes"):
        render.line("")
        render.line("Pending writes")
        for write in found["pending_writes"]:
            value = render.compact(write.get("value"))
            render.line(f"  {write['task_id']} #{write['idx']} {write['channel']}: {value}")


@checkpoint_group.command("diff")
@click.argument("thread_id")
@click.argument("from_id", required=False)
@click.argument("to_id", default="latest")
@click.option("--namespace", default="", metavar="NAME", help="The namespace; the root when left out.")
@click.option("--full", is_flag=True, help="Print values whole, however long.")
@click.option("--exit-code", "speak_by_exit_code", is_flag=True, help="Exit with 1 when the states differ.")
@subject_option
@url_option
@json_option
@click.pass_context
def checkpoint_diff(
    context: click.Context,
    *,
    thread_id: str,
    from_id: str | None,
    to_id: str,
    namespace: str,
    full: bool,
    speak_by_exit_code: bool,
    subject: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Show what changed between the states of two checkpoints, path by path.

    With only THREAD_ID: what the latest checkpoint changed in its parent's state. With FROM_ID: what changed
    since.
    """
    from gateway.cli.state_diff import differences

    with _as_tenant(url, subject) as connection:
        newer = _load(connection, thread_id, to_id, namespace, view="state")
        from_id = from_id or newer["parent_id"]
        older = _load(connection, thread_id, from_id, namespace, view="state") if from_id else None
    changes = list(differences(older["state"] if older else {}, newer["state"]))
    rebuilt = sorted({*newer["delta_channels"], *(older["delta_channels"] if older else [])})
    if as_json:
        _emit_changes(older, newer, changes)
    else:
        _print_changes(older, newer, changes, full=full)
    if rebuilt:
        render.say(f"Not compared, since they are rebuilt from pending writes: {', '.join(rebuilt)}")
    if changes and speak_by_exit_code:
        context.exit(ExitCode.FAILURE)


def _load(connection: "Connection", thread_id: str, checkpoint_id: str, namespace: str, *, view: str) -> dict[str, Any]:
    path = ["threads", thread_id, "checkpoints", checkpoint_id]
    found = connection.call("GET", path, query={"namespace": namespace, "view": view})
    if not isinstance(found, dict):
        raise Failure("The gateway's answer is not a checkpoint", hint="Is STATEROOM_URL really a Stateroom gateway?")
    return found


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


COMMANDS = (tenant_group, api_key_group, operator_key_group, thread_group, checkpoint_group)
