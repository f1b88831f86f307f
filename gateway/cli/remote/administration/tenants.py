"""Tenants over HTTP, as the operator: `tenant`."""

from datetime import datetime
from typing import Any, Literal

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_operator, confirm, yes_option
from gateway.cli.parameters import ByteSize, Page, page_options
from gateway.cli.remote.administration.api_keys import expires_option, print_new_key

_TENANTS = Listing(
    {"tenant_id": "Tenant", "name": "Name", "created_at": "Created", "suspended_at": "Suspended"},
    empty="No tenants yet: stateroom tenant create NAME",
)
_reason_option = click.option("--reason", required=True, help="Why; the tenant reads it in its audit log.")


@click.group("tenant")
def tenant_group() -> None:
    """Tenants, as the operator (STATEROOM_OPERATOR_KEY)."""


@tenant_group.command("create")
@click.argument("name")
@as_operator
def tenant_create(*, name: str, remote: Remote) -> None:
    """Create a tenant and print its first API key, this once: it administers the tenant, and makes keys for agents."""
    print_new_key(remote, remote.call("POST", ["admin", "tenants"], body={"name": name}))


@tenant_group.command("list")
@page_options
@as_operator
def tenant_list(*, page: Page, remote: Remote) -> None:
    """List tenants, newest first."""
    remote.print_pages(["admin", "tenants"], "tenants", page, _TENANTS)


@tenant_group.command("show")
@click.argument("tenant_id")
@as_operator
def tenant_show(*, tenant_id: str, remote: Remote) -> None:
    """Show one tenant."""
    remote.print_record(remote.call("GET", ["admin", "tenants", tenant_id]))


@tenant_group.command("rename")
@click.argument("tenant_id")
@click.argument("name")
@as_operator
def tenant_rename(*, tenant_id: str, name: str, remote: Remote) -> None:
    """Give a tenant another name, which no other tenant has."""
    remote.print_record(remote.call("PATCH", ["admin", "tenants", tenant_id], body={"name": name}))


@tenant_group.command("suspend")
@click.argument("tenant_id")
@_reason_option
@yes_option
@as_operator
def tenant_suspend(*, tenant_id: str, reason: str, assume_yes: bool, remote: Remote) -> None:
    """Refuse all API keys of a tenant until it is resumed; what it stored is kept, and not removed for its age."""
    confirm(f"Refuse all keys of tenant {render.safe(tenant_id)} from now on?", assume_yes)
    remote.print_record(remote.call("POST", ["admin", "tenants", tenant_id, "suspend"], body={"reason": reason}))


@tenant_group.command("resume")
@click.argument("tenant_id")
@as_operator
def tenant_resume(*, tenant_id: str, remote: Remote) -> None:
    """Take the API keys of a suspended tenant again."""
    remote.print_record(remote.call("POST", ["admin", "tenants", tenant_id, "resume"]))


@tenant_group.command("recover")
@click.argument("tenant_id")
@_reason_option
@expires_option
@as_operator
def tenant_recover(*, tenant_id: str, reason: str, expires: datetime | None, remote: Remote) -> None:
    """Make an administration key for a tenant that lost its own and print it, this once; the tenant's log says so."""
    body = {"reason": reason} | ({"expires_at": expires.isoformat()} if expires else {})
    print_new_key(remote, remote.call("POST", ["admin", "tenants", tenant_id, "recover"], body=body))


@tenant_group.command("quota")
@click.argument("tenant_id")
@click.option(
    "--set", "quota", type=ByteSize(), help="Allow so much in the object store: 10GiB, 500MB, bytes, or none."
)
@click.option("--set-rows", "rows_quota", type=ByteSize(), help="Allow so much for rows in the database, likewise.")
@as_operator
def tenant_quota(
    *,
    tenant_id: str,
    quota: int | Literal["none"] | None,
    rows_quota: int | Literal["none"] | None,
    remote: Remote,
) -> None:
    """Show what a tenant keeps in the object store and the database, or say how much it may; none: all it likes."""
    path = ["admin", "tenants", tenant_id, "usage"]
    quotas = {"quota_bytes": quota, "rows_quota_bytes": rows_quota}
    body = {name: None if each == "none" else each for name, each in quotas.items() if each is not None}
    usage = remote.call("PATCH", path, body=body) if body else remote.call("GET", path)
    remote.print_record(usage if remote.as_json else _readable(usage))


def _readable(usage: dict[str, Any]) -> dict[str, Any]:
    """What a person reads of a tenant's bytes."""
    shown = {"tenant_id": usage["tenant_id"]}
    for used_name, quota_name in (("used_bytes", "quota_bytes"), ("rows_bytes", "rows_quota_bytes")):
        used, quota = usage.get(used_name), usage.get(quota_name)
        share = f", {used / quota:.0%} used" if quota and used is not None else ""
        shown[used_name] = "not counted yet" if used is None else render.byte_count(used)
        shown[quota_name] = "none" if quota is None else render.byte_count(quota) + share
    return shown | {"rows_counted_at": usage.get("rows_counted_at")}


COMMANDS = (tenant_group,)
