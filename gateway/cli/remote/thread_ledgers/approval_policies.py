"""Approval policies over HTTP: `approval-policy list|set|remove`."""

from dataclasses import dataclass
from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_tenant
from gateway.cli.parameters import gathered


@dataclass(frozen=True, slots=True)
class _Of:
    """Whose calls a policy is about; None: of all."""

    agent: str | None
    tool: str | None

    @property
    def query(self) -> dict[str, str]:
        """What names it in a request."""
        return {name: text for name, text in (("agent", self.agent), ("tool", self.tool)) if text is not None}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked; None: the default."""

    required: bool | None
    decisions_needed: int | None
    requester_may_approve: bool | None
    edit_allowed: bool | None
    expires_seconds: int | None
    valid_seconds: int | None
    asserted_count: bool | None

    @property
    def body(self) -> dict[str, Any]:
        """The body of the request."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}


_of = gathered(
    "of",
    _Of,
    click.option("--agent", metavar="NAME", help="Of this agent.  [default: of all]"),
    click.option("--tool", metavar="NAME", help="Of this tool.  [default: of all]"),
)
_SECONDS = click.IntRange(60, 30 * 86_400)
_asked = gathered(
    "asked",
    _Asked,
    click.option("--required/--not-required", default=None, help="Refuse an effect without an approval."),
    click.option("--decisions", "decisions_needed", type=click.IntRange(1, 5), help="How many people have to approve."),
    click.option("--requester-may-approve/--four-eyes", default=None, help="Whether who asks may approve, too."),
    click.option("--edit/--no-edit", "edit_allowed", default=None, help="Whether arguments may be edited."),
    click.option("--expires-seconds", type=_SECONDS, help="How long a question waits, at most."),
    click.option("--valid-seconds", type=_SECONDS, help="How long an approval holds."),
    click.option("--count-named/--named-are-one", "asserted_count", default=None, help="Whether named people count."),
)


def _show(remote: Remote, answer: dict[str, Any]) -> None:
    """Print all policies of the tenant, as they are now."""
    if remote.as_json:
        render.emit_json(answer)
        return
    rows = [
        [
            render.cell(each["agent"] or "(all)"),
            render.cell(each["tool"] or "(all)"),
            "damaged: say it again" if each["damaged"] else _said(each["policy"]),
        ]
        for each in answer["policies"]
    ]
    render.table(["Agent", "Tool", "Policy"], rows, empty="No policies: one approval, by somebody else, within 7 days.")


def _said(policy: dict[str, Any]) -> str:
    return ", ".join(f"{name}={render.compact(value)}" for name, value in policy.items())


@click.group("approval-policy")
def approval_policy_group() -> None:
    """What a tenant asks of approvals, by agent and tool, with a key that has tenant:admin (STATEROOM_API_KEY)."""


@approval_policy_group.command("list")
@as_tenant
def approval_policy_list(*, remote: Remote) -> None:
    """List the tenant's policies; the most specific holds."""
    _show(remote, remote.call("GET", ["approval-policies"]))


@approval_policy_group.command("set")
@_of
@_asked
@as_tenant
def approval_policy_set(*, of: _Of, asked: _Asked, remote: Remote) -> None:
    """Say what is asked, in place of what was said there; it holds for what is asked from then on."""
    _show(remote, remote.call("PUT", ["approval-policies"], query=of.query, body=asked.body))


@approval_policy_group.command("remove")
@_of
@as_tenant
def approval_policy_remove(*, of: _Of, remote: Remote) -> None:
    """Take back what was said there; the next less specific policy holds from then on."""
    _show(remote, remote.call("DELETE", ["approval-policies"], query=of.query))


COMMANDS = (approval_policy_group,)
