"""`decrypt`: an operator's break-glass reading of one checkpoint, which the tenant finds in its audit log."""

from dataclasses import asdict, dataclass

import rich_click as click

from gateway.cli.calling import Remote, as_operator
from gateway.cli.parameters import gathered
from gateway.cli.remote.checkpoints import print_checkpoint


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The one checkpoint that is read; without ``checkpoint_id``, the latest."""

    subject_id: str
    thread_id: str
    namespace: str
    checkpoint_id: str | None


@click.command("decrypt")
@click.argument("tenant_id")
@click.option("--subject", "subject_id", required=True, metavar="ID", help="Whose state; ~shared is the tenant's own.")
@click.option("--thread", "thread_id", required=True, metavar="ID", help="Which thread.")
@click.option("--namespace", default="", metavar="NAME", help="Which namespace.  [default: the root]")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Which checkpoint.  [default: the latest]")
@click.option("--reason", required=True, metavar="TEXT", help="Why; the tenant reads it in its audit log.")
@as_operator
@gathered("wanted", _Wanted)
def decrypt(*, tenant_id: str, wanted: _Wanted, reason: str, remote: Remote) -> None:
    """Read one checkpoint of any subject, on the record (STATEROOM_OPERATOR_KEY with the permission decrypt-any).

    The tenant's audit log and the operators' hold who read what and why before anything is opened.
    """
    body = {name: value for name, value in asdict(wanted).items() if value is not None} | {"reason": reason}
    print_checkpoint(remote, remote.call("POST", ["admin", "tenants", tenant_id, "decrypt"], body=body))


COMMANDS = (decrypt,)
