"""Save policies over HTTP: `save-policy get|set`."""

from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.opening import as_tenant
from gateway.cli.parameters import json_option, url_option

if TYPE_CHECKING:
    pass

_agent_option = click.option("--agent", metavar="NAME", help="Only the saves of this agent, and those to its threads.")
_SAID = {True: "strict: saves name the head they follow", False: "not strict", None: ""}


def _query(agent: str | None) -> dict[str, str] | None:
    return None if agent is None else {"agent": agent}


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print what is said at one level beside what that comes to."""
    if as_json:
        render.emit_json(found)
        return
    holds = "damaged: saves that name no head are refused" if found["strict"] is None else _SAID[found["strict"]]
    render.record({"Said here": _SAID[found["policy"].get("strict")], "In effect": holds})
    for agent in found["damaged"]:
        whose = "the tenant" if agent is None else f"agent {render.safe(agent)}"
        render.say(f"Damaged, until it is said again: the policy of {whose}")
    if found["agents"]:
        render.say(f"Agents with a policy of their own: {', '.join(map(render.safe, found['agents']))}")


@click.group("save-policy")
def save_policy_group() -> None:
    """Which saves must name the head they follow, so that none overwrites an update that it has not seen."""


@save_policy_group.command("get")
@_agent_option
@url_option
@json_option
def save_policy_get(*, agent: str | None, url: str | None, as_json: bool) -> None:
    """Show what is said and what holds: for the tenant, or an agent."""
    with as_tenant(url) as connection:
        found = connection.call("GET", ["save-policy"], query=_query(agent))
    _show(found, as_json=as_json)


@save_policy_group.command("set")
@_agent_option
@click.option("--strict/--no-strict", default=None, help="Whether a save must name the head it saw.")
@click.option("--take-back", is_flag=True, help="Say nothing any more; of an agent, the tenant's policy holds then.")
@url_option
@json_option
def save_policy_set(*, agent: str | None, strict: bool | None, take_back: bool, url: str | None, as_json: bool) -> None:
    """Say whether saves must name the head they follow: for the tenant, or an agent. It holds at once."""
    if (strict is None) != take_back:
        raise click.UsageError("Say one of --strict, --no-strict and --take-back.")
    with as_tenant(url) as connection:
        found = connection.call("PUT", ["save-policy"], query=_query(agent), body={"strict": strict})
    _show(found, as_json=as_json)


COMMANDS = (save_policy_group,)
