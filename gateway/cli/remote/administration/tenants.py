"""Tenants over HTTP, as the operator: `tenant`."""

from datetime import datetime
from typing import Any, Literal

import rich_click as click

from gateway.cli import render
from gateway.cli.listing import Listing, confirm, print_listing, print_record
from gateway.cli.opening import as_operator
from gateway.cli.parameters import ByteSize, json_option, page_options, url_option
from gateway.cli.remote.administration.api_keys import expires_option, print_new_key

_TENANT_TIMES = ("created_at", "suspended_at")
_reason_option = click.option("--reason", required=True, help="Why; the tenant reads it in its audit log.")


@click.group("tenant")
def tenant_group() -> None:
    """Tenants, as the operator (STATEROOM_OPERATOR_KEY)."""


@tenant_group.command("create")
@click.argument("name")
@url_option
@json_option
def tenant_create(*, name: str, url: str | None, as_json: bool) -> None:
    """Create a tenant and print its first API key, this once: it administers the tenant, and makes keys for agents."""
    with as_operator(url) as connection:
        created = connection.call("POST", ["admin", "tenants"], body={"name": name})
    print_record(created, as_json=as_json, times=_TENANT_TIMES)
    if not as_json:
        render.say("The API key is shown only now: keep it where your secrets are.")


@tenant_group.command("list")
@page_options
@url_option
@json_option
def tenant_list(*, limit: int, everything: bool, url: str | None, as_json: bool) -> None:
    """List tenants, newest first."""
    with as_operator(url) as connection:
        pages = connection.pages(["admin", "tenants"], "tenants", rows_wanted=None if everything else limit)
        print_listing(
            Listing(pages, limit, everything),
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
    with as_operator(url) as connection:
        found = connection.call("GET", ["admin", "tenants", tenant_id])
    print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("rename")
@click.argument("tenant_id")
@click.argument("name")
@url_option
@json_option
def tenant_rename(*, tenant_id: str, name: str, url: str | None, as_json: bool) -> None:
    """Give a tenant another name, which no other tenant has."""
    with as_operator(url) as connection:
        found = connection.call("PATCH", ["admin", "tenants", tenant_id], body={"name": name})
    print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("suspend")
@click.argument("tenant_id")
@_reason_option
@click.option("--yes", "assume_yes", is_flag=True, help="Do not ask.")
@url_option
@json_option
def tenant_suspend(*, tenant_id: str, reason: str, assume_yes: bool, url: str | None, as_json: bool) -> None:
    """Refuse all API keys of a tenant until it is resumed; what it stored is kept, and not removed for its age."""
    confirm(f"Refuse all keys of tenant {render.safe(tenant_id)} from now on?", assume_yes)
    with as_operator(url) as connection:
        found = connection.call("POST", ["admin", "tenants", tenant_id, "suspend"], body={"reason": reason})
    print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("resume")
@click.argument("tenant_id")
@url_option
@json_option
def tenant_resume(*, tenant_id: str, url: str | None, as_json: bool) -> None:
    """Take the API keys of a suspended tenant again."""
    with as_operator(url) as connection:
        found = connection.call("POST", ["admin", "tenants", tenant_id, "resume"])
    print_record(found, as_json=as_json, times=_TENANT_TIMES)


@tenant_group.command("recover")
@click.argument("tenant_id")
@_reason_option
@expires_option
@url_option
@json_option
def tenant_recover(*, tenant_id: str, reason: str, expires: datetime | None, url: str | None, as_json: bool) -> None:
    """Make an administration key for a tenant that lost its own and print it, this once; the tenant's log says so."""
    body = {"reason": reason} | ({"expires_at": expires.isoformat()} if expires else {})
    with as_operator(url) as connection:
        print_new_key(connection.call("POST", ["admin", "tenants", tenant_id, "recover"], body=body), as_json=as_json)


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
    with as_operator(url) as connection:
        found = connection.call("PATCH", path, body=body) if body else connection.call("GET", path)
    print_record(found if as_json else _readable(found), as_json=as_json)


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
