"""Vector policies over HTTP: `vector-policy get|set`."""

from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_tenant


def _show(remote: Remote, policy: dict[str, Any]) -> None:
    """Print where the vectors are kept."""
    if remote.as_json:
        render.emit_json(policy)
        return
    accepted = policy["accepted_leakage"]
    render.record({"Vectors": policy["vectors"], "Accepted leakage": accepted or "-", "Complete": policy["complete"]})
    if policy["damaged"]:
        render.say("Damaged, until it is said again: what was said is not counted, and vectors are sealed only.")
    elif not policy["complete"]:
        render.say("A job is at what was there before (stateroom job list); until then searches open what is sealed.")


@click.group("vector-policy")
def vector_policy_group() -> None:
    """Where the vectors of items are kept: sealed, or in clear in the database, too."""


@vector_policy_group.command("get")
@as_tenant
def vector_policy_get(*, remote: Remote) -> None:
    """Show where the vectors of the tenant's items are kept."""
    _show(remote, remote.call("GET", ["vector-policy"]))


@vector_policy_group.command("set")
@click.option("--vectors", type=click.Choice(["sealed", "clear"]), required=True, help="Where they are kept.")
@click.option(
    "--accept-leakage",
    type=click.Choice(["content"]),
    help="For clear: I accept that who reads the database or a backup reads about what the items say.",
)
@as_tenant
def vector_policy_set(*, vectors: str, accept_leakage: str | None, remote: Remote) -> None:
    """Say where the vectors of the tenant's items are kept; a job brings along what is there already."""
    change = {"vectors": vectors} | ({} if accept_leakage is None else {"accept_leakage": accept_leakage})
    _show(remote, remote.call("PUT", ["vector-policy"], body=change))


COMMANDS = (vector_policy_group,)
