"""Approvals over HTTP: `approvals`, which lists them, shows exactly what would be done, and decides.

A decision names the hash of what was shown. Who decides without being asked (`--yes`) says that hash, so that no script
decides about something that nobody has seen.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_approver, as_subject, confirm, yes_option
from gateway.cli.parameters import Page, page_options

if TYPE_CHECKING:
    import stateroom
    from gateway.cli.connection import Connection

_STATUSES = (
    "pending", "approved", "rejected", "answered", "expired", "cancelled", "superseded", "consumed", "lapsed",
)  # fmt: skip
_LIST = Listing(
    {
        "approval_id": "Approval",
        "status": "Status",
        "kind": "Kind",
        "agent": "Agent",
        "subject_id": "Subject",
        "thread_id": "Thread",
        "created_at": "Asked",
        "expires_at": "Expires",
    },
    empty="Nobody is asked anything.",
)


@dataclass(frozen=True, slots=True)
class Deciding:
    """How a decision is made.

    Attributes:
        approval_hash: The hash of what was seen; None: it is shown and asked about.
        assume_yes: Whether it is not asked about.
        person: The person who decides, where the key speaks for several.
        message: A word to the agent.
    """

    approval_hash: str | None
    assume_yes: bool
    person: str | None
    message: str | None


def _deciding(command: Callable[..., Any]) -> Callable[..., Any]:
    from gateway.cli.parameters import gathered

    options = (
        click.option("--hash", "approval_hash", metavar="HASH", help="Only if this is what is asked (see show)."),
        yes_option,
        click.option("--person", metavar="ID", help="Who decides, where the key may name people (approval:assert)."),
        click.option("--message", metavar="TEXT", help="A word to the agent."),
    )
    return as_approver(gathered("deciding", Deciding, *options)(command))


def _json_value(_context: click.Context, parameter: click.Parameter, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise click.BadParameter("is no JSON", param=parameter) from None


@click.group("approvals")
def approvals_group() -> None:
    """What agents ask people, and what people decide, with a key that may (STATEROOM_APPROVER_KEY, STATEROOM_API_KEY).

    A service's key sees those of the whole tenant, a subject's key its own.
    """


@approvals_group.command("list")
@click.option("--status", type=click.Choice(_STATUSES), help="Only those that stand so.")
@click.option("--agent", metavar="NAME", help="Only what this program asks.")
@click.option("--thread", metavar="ID", help="Only what is asked in this thread.")
@page_options
@as_approver
def approvals_list(*, status: str | None, agent: str | None, thread: str | None, page: Page, remote: Remote) -> None:
    """List approvals, newest first; nothing of what they are about."""
    query = {"status": status, "agent": agent, "thread": thread}
    remote.print_pages(["approvals"], "approvals", page, _LIST, query=query)


@approvals_group.command("show")
@click.argument("approval_id")
@as_approver
def approvals_show(*, approval_id: str, remote: Remote) -> None:
    """Show how an approval stands, and exactly what would be done. It goes on the record who looked."""
    with remote.connect() as connection:
        approval = connection.call("GET", ["approvals", approval_id])
        content = connection.call("GET", ["approvals", approval_id, "content"])
    if remote.as_json:
        render.emit_json({"approval": approval, "content": content})
        return
    _print(approval, content)


def _print(approval: dict[str, Any], content: dict[str, Any]) -> None:
    render.record(
        {
            "Approval": approval["approval_id"],
            "Status": approval["status"],
            "Agent": render.cell(approval["agent"]),
            "Subject": approval["subject_id"],
            "Thread": approval["thread_id"],
            "Asked": render.moment(approval["created_at"]),
            "Expires": render.moment(approval["expires_at"]),
            "Decisions": f"{_approving(approval)} of {approval['decisions_needed']}",
            "Message": render.cell(content["message"]),
            "Display": render.cell(content["display"]),
            "Hash": content["action_hash"],
        }
    )
    for vote in approval["votes"]:
        named = f" (named by {vote['key_id']})" if vote["asserted"] else ""
        render.line(f"  {vote['principal']}{named}: {vote['verdict']} at {render.moment(vote['at'])}")
    if content["withheld"]:
        render.say("What would be done opens only with the client-held share of its thread.")
    for number, action in enumerate(content["actions"], 1):
        render.line("")
        render.line(f"Action {number} of {len(content['actions'])}: {action['tool']}")
        if action["description"]:
            render.line(f"  {action['description']}")
        for name, value in _arguments(action.get("edited_args", action["args"])):
            render.line(f"  {name} = {render.compact(value)}")
        if "edited_args" in action:
            render.line("  (edited; the agent asked for)")
            for name, value in _arguments(action["args"]):
                render.line(f"    {name} = {render.compact(value)}")
        if action["verdict"]:
            render.line(f"  said: {action['verdict']}")


def _approving(approval: dict[str, Any]) -> int:
    return sum(vote["verdict"] != "reject" for vote in approval["votes"])


def _arguments(args: Any) -> list[tuple[str, Any]]:
    return [*args.items()] if isinstance(args, dict) else [("arguments", args)]


def _decide(
    remote: Remote, approval_id: str, deciding: Deciding, word: str, verdict_of: Callable[[int], "stateroom.Verdict"]
) -> None:
    """Show what is asked, ask whether it is meant, and decide; ``verdict_of`` makes the verdict of each action."""
    if deciding.assume_yes and deciding.approval_hash is None:
        raise click.UsageError("--yes decides without showing: say --hash, of what was shown.")
    with remote.connect() as connection:
        seen = deciding.approval_hash
        count = 0
        if not deciding.assume_yes:
            seen, count = _look(connection, approval_id, seen)
            confirm(f"{word} exactly this ({seen[:16]})?", assume_yes=False)
        elif seen is not None:
            count = len(connection.call("GET", ["approvals", approval_id])["actions"])
        assert seen is not None  # noqa: S101  for the type checker: one of both ways gave it
        with connection.sdk() as client:
            done = client.approvals.decide(
                approval_id,
                [verdict_of(position) for position in range(count)],
                action_hash=seen,
                principal=deciding.person,
            )
    if remote.as_json:
        import msgspec

        render.emit_json(msgspec.to_builtins(done))
    else:
        render.say(f"{done.approval_id} is {done.status}.")


def _look(connection: "Connection", approval_id: str, wanted: str | None) -> tuple[str, int]:
    """Print what is asked; its hash, and how many actions it has.

    Raises:
        ClickException: It is something else than what was seen before.
    """
    approval = connection.call("GET", ["approvals", approval_id])
    content = connection.call("GET", ["approvals", approval_id, "content"])
    _print(approval, content)
    if wanted not in {None, content["action_hash"]}:
        raise click.ClickException("what is asked has another hash than --hash says; nothing was decided")
    return content["action_hash"], len(approval["actions"])


@approvals_group.command("approve")
@click.argument("approval_id")
@_deciding
def approvals_approve(*, approval_id: str, deciding: Deciding, remote: Remote) -> None:
    """Let all actions of an approval be done, exactly as they are shown."""
    from stateroom import Verdict

    _decide(remote, approval_id, deciding, "Approve", lambda _: Verdict.approve(deciding.message))


@approvals_group.command("reject")
@click.argument("approval_id")
@_deciding
def approvals_reject(*, approval_id: str, deciding: Deciding, remote: Remote) -> None:
    """Let no action of an approval be done. Whoever asked may always say no."""
    from stateroom import Verdict

    _decide(remote, approval_id, deciding, "Reject", lambda _: Verdict.reject(deciding.message))


@approvals_group.command("edit")
@click.argument("approval_id")
@click.option("--args", "arguments", required=True, metavar="JSON", callback=_json_value, help="All arguments anew.")
@click.option("--action", "number", type=click.IntRange(1), default=1, show_default=True, help="Of which action.")
@_deciding
def approvals_edit(*, approval_id: str, arguments: Any, number: int, deciding: Deciding, remote: Remote) -> None:
    """Let an action be done with other arguments, and the others of the approval as they are shown."""
    from stateroom import Verdict

    def verdict(position: int) -> "Verdict":
        return Verdict.edit(arguments, deciding.message) if position == number - 1 else Verdict.approve()

    render.say(f"With these arguments for action {number}: {render.compact(arguments)}")
    _decide(remote, approval_id, deciding, "Approve with those arguments, instead of", verdict)


@approvals_group.command("respond")
@click.argument("approval_id")
@click.option("--response", required=True, metavar="JSON", callback=_json_value, help="The answer, such as '\"42\"'.")
@_deciding
def approvals_respond(*, approval_id: str, response: Any, deciding: Deciding, remote: Remote) -> None:
    """Answer in place of the actions, or to the question."""
    from stateroom import Verdict

    _decide(remote, approval_id, deciding, "Answer", lambda _: Verdict.respond(response, deciding.message))


@approvals_group.command("cancel")
@click.argument("approval_id")
@as_subject
def approvals_cancel(*, approval_id: str, remote: Remote) -> None:
    """Take a question back that waits, for the subject that it is about (STATEROOM_API_KEY, --subject)."""
    done = remote.call("POST", ["approvals", approval_id, "cancel"])
    if remote.as_json:
        render.emit_json(done)
    else:
        render.say(f"{done['approval_id']} is {done['status']}.")


COMMANDS = (approvals_group,)
