"""`decrypt`: an operator's break-glass reading of one checkpoint, which the tenant finds in its audit log."""

from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.parameters import json_option, url_option
from gateway.cli.remote.checkpoints import print_checkpoint


@click.command("decrypt")
@click.argument("tenant_id")
@click.option("--subject", required=True, metavar="ID", help="Whose state; ~shared is the tenant's own.")
@click.option("--thread", "thread_id", required=True, metavar="ID", help="Which thread.")
@click.option("--namespace", default="", metavar="NAME", help="Which namespace.  [default: the root]")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Which checkpoint.  [default: the latest]")
@click.option("--reason", required=True, metavar="TEXT", help="Why; the tenant reads it in its audit log.")
@url_option
@json_option
def decrypt(
    *,
    tenant_id: str,
    subject: str,
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    reason: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Read one checkpoint of any subject, on the record (STATEROOM_OPERATOR_KEY with the permission decrypt-any).

    The tenant's audit log and the operators' hold who read what and why before anything is opened.
    """
    from gateway.cli.connection import Connection

    body: dict[str, Any] = {"subject_id": subject, "thread_id": thread_id, "namespace": namespace, "reason": reason}
    if checkpoint_id is not None:
        body["checkpoint_id"] = checkpoint_id
    with Connection.open(url, credential="STATEROOM_OPERATOR_KEY", subject=None) as connection:
        found = connection.call("POST", ["admin", "tenants", tenant_id, "decrypt"], body=body)
    if as_json:
        render.emit_json(found)
    else:
        print_checkpoint(found)


COMMANDS = (decrypt,)
