"""Save policies over HTTP: `save-policy get|set`."""

from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_tenant
from gateway.cli.parameters import COUNT, ByteSize

_agent_option = click.option("--agent", metavar="NAME", help="Only the saves of this agent, and those to its threads.")


def _in_words(policy: dict[str, Any]) -> str:
    """What a policy says, in words."""
    strict, elements, size = (policy.get(name) for name in ("strict", "compact_elements", "compact_bytes"))
    says = []
    if strict is not None:
        says.append("strict: saves name the head they follow" if strict else "not strict")
    if elements is not None:
        says.append(f"lists of more than {elements} elements need compaction")
    if size is not None:
        says.append(f"lists of more than {render.byte_count(size)} need compaction")
    return "; ".join(says)


def _show(remote: Remote, policies: dict[str, Any]) -> None:
    """Print the policy of one level beside what is in effect there."""
    if remote.as_json:
        render.emit_json(policies)
        return
    effective = _in_words(policies)
    if policies["strict"] is None:
        effective = "; ".join(filter(None, ("damaged: saves that name no head are refused", effective)))
    render.record({"Said here": _in_words(policies["policy"]), "In effect": effective})
    for agent in policies["damaged"]:
        whose = "the tenant" if agent is None else f"agent {render.safe(agent)}"
        render.say(f"Damaged, until it is said again: the policy of {whose}")
    if policies["agents"]:
        render.say(f"Agents with a policy of their own: {', '.join(map(render.safe, policies['agents']))}")


@click.group("save-policy")
def save_policy_group() -> None:
    """What is asked of saves: to name the head they follow, and to be told which lists need compaction."""


@save_policy_group.command("get")
@_agent_option
@as_tenant
def save_policy_get(*, agent: str | None, remote: Remote) -> None:
    """Show what is said and what holds: for the tenant, or an agent."""
    _show(remote, remote.call("GET", ["save-policy"], query={"agent": agent}))


@save_policy_group.command("set")
@_agent_option
@click.option("--strict/--no-strict", default=None, help="Whether a save must name the head it saw.")
@click.option("--compact-elements", type=COUNT, help="Lists with more elements need compaction, or none.")
@click.option("--compact-bytes", type=ByteSize(), help="Lists with more bytes need compaction: 512KiB, or none.")
@click.option("--take-back", is_flag=True, help="Say nothing any more; of an agent, the tenant's policy holds then.")
@as_tenant
def save_policy_set(*, agent: str | None, take_back: bool, remote: Remote, **says: Any) -> None:
    """Say what is asked of saves: the tenant's, or an agent's. It holds at once; what is not named stays as it is."""
    named = {name: None if value == "none" else value for name, value in says.items() if value is not None}
    if bool(named) == take_back:
        raise click.UsageError(
            "Say what is asked (--strict, --no-strict, --compact-elements, --compact-bytes), or --take-back."
        )
    policy = {} if take_back else remote.call("GET", ["save-policy"], query={"agent": agent})["policy"] | named
    _show(remote, remote.call("PUT", ["save-policy"], query={"agent": agent}, body=policy))


COMMANDS = (save_policy_group,)
