"""Save policies over HTTP: `save-policy get|set`."""

from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_tenant

_agent_option = click.option("--agent", metavar="NAME", help="Only the saves of this agent, and those to its threads.")
_SAID = {True: "strict: saves name the head they follow", False: "not strict", None: ""}


def _show(remote: Remote, policies: dict[str, Any]) -> None:
    """Print the policy of one level beside what is in effect there."""
    if remote.as_json:
        render.emit_json(policies)
        return
    effective = (
        "damaged: saves that name no head are refused" if policies["strict"] is None else _SAID[policies["strict"]]
    )
    render.record({"Said here": _SAID[policies["policy"].get("strict")], "In effect": effective})
    for agent in policies["damaged"]:
        whose = "the tenant" if agent is None else f"agent {render.safe(agent)}"
        render.say(f"Damaged, until it is said again: the policy of {whose}")
    if policies["agents"]:
        render.say(f"Agents with a policy of their own: {', '.join(map(render.safe, policies['agents']))}")


@click.group("save-policy")
def save_policy_group() -> None:
    """Which saves must name the head they follow, so that none overwrites an update that it has not seen."""


@save_policy_group.command("get")
@_agent_option
@as_tenant
def save_policy_get(*, agent: str | None, remote: Remote) -> None:
    """Show what is said and what holds: for the tenant, or an agent."""
    _show(remote, remote.call("GET", ["save-policy"], query={"agent": agent}))


@save_policy_group.command("set")
@_agent_option
@click.option("--strict/--no-strict", default=None, help="Whether a save must name the head it saw.")
@click.option("--take-back", is_flag=True, help="Say nothing any more; of an agent, the tenant's policy holds then.")
@as_tenant
def save_policy_set(*, agent: str | None, strict: bool | None, take_back: bool, remote: Remote) -> None:
    """Say whether saves must name the head they follow: for the tenant, or an agent. It holds at once."""
    if (strict is None) != take_back:
        raise click.UsageError("Say one of --strict, --no-strict and --take-back.")
    _show(remote, remote.call("PUT", ["save-policy"], query={"agent": agent}, body={"strict": strict}))


COMMANDS = (save_policy_group,)
