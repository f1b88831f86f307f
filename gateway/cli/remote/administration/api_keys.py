"""API keys over HTTP: `api-key` and `operator-key`. A new key is printed once, on stdout, and nowhere else."""

from datetime import datetime
from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import (
    Listing,
    Remote,
    as_operator,
    as_silent_operator,
    as_silent_tenant,
    as_tenant,
)
from gateway.cli.parameters import Moment, Page, page_options

PERMISSIONS = (
    "state:read",
    "state:write",
    "state:delete",
    "state:export",
    "event:read",
    "approval:read",
    "approval:open",
    "approval:decide",
    "approval:assert",
    "subject:act_as",
    "tenant:admin",
)

_KEYS = Listing(
    {
        "key_id": "Key",
        "kind": "Kind",
        "subject_id": "Subject",
        "name": "Name",
        "permissions": "Permissions",
        "grants": "Grants",
        "principal": "Principal",
        "status": "Status",
        "created_at": "Created",
        "expires_at": "Expires",
        "revoked_at": "Revoked",
        "last_used_at": "Last used",
    },
    empty="No API keys.",
)
expires_option = click.option("--expires", type=Moment("ahead"), help="When it ends: 90d, or an RFC 3339 time.")
_force_option = click.option("--force", is_flag=True, help="Also when it is the last key that administers.")


def print_new_key(remote: Remote, created: dict[str, Any]) -> None:
    """Print a key with its secret, and say that this is the only time."""
    remote.print_record(created)
    if not remote.as_json:
        render.say("The API key is shown only now: keep it where your secrets are.")


def _revoke_key(remote: Remote, key_id: str, *, force: bool) -> None:
    remote.call("DELETE", remote.path("api-keys", key_id), query={"force": "true"} if force else None)
    render.say(f"Revoked {key_id}.")


@click.group("api-key")
def api_key_group() -> None:
    """API keys of a tenant, with a key that has tenant:admin (STATEROOM_API_KEY)."""


@api_key_group.command("create")
@click.option("--subject", "subject_id", metavar="ID", help="Bind the key to this subject; without: a service key.")
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
@click.option(
    "--principal", metavar="NAME", help="Who stands behind it, by whom votes are counted.  [default: the key]"
)
@as_tenant
def api_key_create(
    *,
    subject_id: str | None,
    name: str,
    permissions: tuple[str, ...],
    grants: tuple[str, ...],
    expires: datetime | None,
    principal: str | None,
    remote: Remote,
) -> None:
    """Create an API key and print it, this once."""
    body: dict[str, Any] = {"kind": "subject" if subject_id else "service", "name": name}
    if subject_id:
        body["subject_id"] = subject_id
    if permissions:
        body["permissions"] = list(permissions)
    if grants:
        body["grants"] = list(grants)
    if expires:
        body["expires_at"] = expires.isoformat()
    if principal:
        body["principal"] = principal
    print_new_key(remote, remote.call("POST", ["api-keys"], body=body))


@api_key_group.command("list")
@page_options
@as_tenant
def api_key_list(*, page: Page, remote: Remote) -> None:
    """List the tenant's API keys, newest first; never their secrets."""
    remote.print_pages(remote.path("api-keys"), "api_keys", page, _KEYS)


@api_key_group.command("revoke")
@click.argument("key_id")
@_force_option
@as_silent_tenant
def api_key_revoke(*, key_id: str, force: bool, remote: Remote) -> None:
    """Revoke an API key; it cannot be brought back. The last one with tenant:admin takes --force."""
    _revoke_key(remote, key_id, force=force)


@click.group("operator-key")
def operator_key_group() -> None:
    """Operators' API keys (STATEROOM_OPERATOR_KEY); `stateroom init --another` makes one."""


@operator_key_group.command("list")
@page_options
@as_operator
def operator_key_list(*, page: Page, remote: Remote) -> None:
    """List the operators' API keys, newest first; never their secrets."""
    remote.print_pages(remote.path("api-keys"), "api_keys", page, _KEYS)


@operator_key_group.command("revoke")
@click.argument("key_id")
@_force_option
@as_silent_operator
def operator_key_revoke(*, key_id: str, force: bool, remote: Remote) -> None:
    """Revoke an operator's API key; it cannot be brought back. The last one takes --force."""
    _revoke_key(remote, key_id, force=force)


COMMANDS = (api_key_group, operator_key_group)
