"""API keys over HTTP: `api-key` and `operator-key`. A new key is printed once, on stdout, and nowhere else."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.listing import Listing, print_listing, print_record
from gateway.cli.opening import as_operator, as_tenant
from gateway.cli.parameters import Moment, json_option, page_options, url_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

PERMISSIONS = ("state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin")

_KEY_TIMES = ("created_at", "expires_at", "revoked_at", "last_used_at")
expires_option = click.option("--expires", type=Moment("ahead"), help="When it ends: 90d, or an RFC 3339 time.")
_force_option = click.option("--force", is_flag=True, help="Also when it is the last key that administers.")


def print_new_key(created: dict[str, Any], *, as_json: bool) -> None:
    """Print a key with its secret, and say that this is the only time."""
    print_record(created, as_json=as_json, times=_KEY_TIMES)
    if not as_json:
        render.say("The API key is shown only now: keep it where your secrets are.")


def _list_keys(connection: "Connection", path: list[str], limit: int, everything: bool, *, as_json: bool) -> None:
    pages = connection.pages(path, "api_keys", rows_wanted=None if everything else limit)
    print_listing(
        Listing(pages, limit, everything),
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
@expires_option
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
    with as_tenant(url) as connection:
        print_new_key(connection.call("POST", ["api-keys"], body=body), as_json=as_json)


@api_key_group.command("list")
@page_options
@url_option
@json_option
def api_key_list(*, limit: int, everything: bool, url: str | None, as_json: bool) -> None:
    """List the tenant's API keys, newest first; never their secrets."""
    with as_tenant(url) as connection:
        _list_keys(connection, ["api-keys"], limit, everything, as_json=as_json)


@api_key_group.command("revoke")
@click.argument("key_id")
@_force_option
@url_option
def api_key_revoke(*, key_id: str, force: bool, url: str | None) -> None:
    """Revoke an API key; it cannot be brought back. The last one with tenant:admin takes --force."""
    with as_tenant(url) as connection:
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
    with as_operator(url) as connection:
        _list_keys(connection, ["admin", "api-keys"], limit, everything, as_json=as_json)


@operator_key_group.command("revoke")
@click.argument("key_id")
@_force_option
@url_option
def operator_key_revoke(*, key_id: str, force: bool, url: str | None) -> None:
    """Revoke an operator's API key; it cannot be brought back. The last one takes --force."""
    with as_operator(url) as connection:
        _revoke_key(connection, ["admin", "api-keys"], key_id, force=force)


COMMANDS = (api_key_group, operator_key_group)
