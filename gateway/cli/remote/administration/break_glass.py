"""`decrypt`: an operator's break-glass reading of one checkpoint, which the tenant finds in its audit log."""

from dataclasses import dataclass

import rich_click as click

from gateway.cli import render
from gateway.cli.opening import as_operator
from gateway.cli.parameters import gathered, json_option, url_option
from gateway.cli.remote.checkpoints import print_checkpoint


@dataclass(frozen=True, slots=True)
class _Place:
    """The one checkpoint that is read; without ``checkpoint_id``, the latest."""

    subject: str
    thread_id: str
    namespace: str
    checkpoint_id: str | None


@click.command("decrypt")
@click.argument("tenant_id")
@click.option("--subject", required=True, metavar="ID", help="Whose state; ~shared is the tenant's own.")
@click.option("--thread", "thread_id", required=True, metavar="ID", help="Which thread.")
@click.option("--namespace", default="", metavar="NAME", help="Which namespace.  [default: the root]")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Which checkpoint.  [default: the latest]")
@click.option("--reason", required=True, metavar="TEXT", help="Why; the tenant reads it in its audit log.")
@url_option
@json_option
@gathered("place", _Place)
def decrypt(
    *,
    tenant_id: str,
    place: _Place,
    reason: str,
    url: str | None,
    as_json: bool,
) -> None:
    """Read one checkpoint of any subject, on the record (STATEROOM_OPERATOR_KEY with the permission decrypt-any).

    The tenant's audit log and the operators' hold who read what and why before anything is opened.
    """
    body = {
        "subject_id": place.subject,
        "thread_id": place.thread_id,
        "namespace": place.namespace,
        "reason": reason,
    }
    if place.checkpoint_id is not None:
        body["checkpoint_id"] = place.checkpoint_id
    with as_operator(url) as connection:
        found = connection.call("POST", ["admin", "tenants", tenant_id, "decrypt"], body=body)
    if as_json:
        render.emit_json(found)
    else:
        print_checkpoint(found)


COMMANDS = (decrypt,)
