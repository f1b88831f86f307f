"""Effects over HTTP: `effects`, which lists and shows them, and says what became of unknown ones."""

import json
from dataclasses import dataclass
from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_subject, confirm, yes_option
from gateway.cli.parameters import Page, gathered, page_options

_STATUSES = ("started", "done", "failed", "unknown", "voided")
_EFFECTS = Listing(
    {
        "name": "Name",
        "execution": "Execution",
        "tool": "Tool",
        "mode": "Mode",
        "status": "Status",
        "attempt": "Attempt",
        "started_at": "Started",
        "error": "Error",
    },
    empty="No effects.",
)
_UNKNOWN = Listing(
    {
        "subject_id": "Subject",
        "thread_id": "Thread",
        "namespace": "Namespace",
        "execution": "Execution",
        "mode": "Mode",
        "started_at": "Started",
        "started_by": "Key",
        "run_id": "Run",
    },
    empty="No effects of unknown outcome.",
)


@dataclass(frozen=True, slots=True)
class _Named:
    """Which effect; ``execution`` None: the newest of its name."""

    thread_id: str
    name: str
    namespace: str
    execution: int | None

    @property
    def path(self) -> list[str]:
        """Where the API has it."""
        return ["threads", self.thread_id, "effects", self.name]

    def show(self, remote: Remote) -> Any:
        """The effect."""
        query = {"namespace": self.namespace, "execution": self.execution}
        return remote.call("GET", self.path, query=query)


_one_effect = gathered(
    "effect",
    _Named,
    click.argument("thread_id"),
    click.argument("name"),
    click.option("--namespace", default="", metavar="NAME", help="The root's when left out."),
    click.option(
        "--execution", type=click.IntRange(min=1), metavar="N", help="Which one of this name.  [default: the newest]"
    ),
)


@click.group("effects")
def effects_group() -> None:
    """Tool calls with consequences, which happen once (STATEROOM_API_KEY, --subject)."""


@effects_group.command("list")
@click.argument("thread_id")
@click.option("--status", type=click.Choice(_STATUSES), help="Only effects with this status.")
@click.option("--checkpoint", "checkpoint_id", metavar="ID", help="Only those that were started at this checkpoint.")
@page_options
@as_subject
def effects_list(*, thread_id: str, status: str | None, checkpoint_id: str | None, page: Page, remote: Remote) -> None:
    """List the effects of a thread."""
    query = {"status": status, "checkpoint_id": checkpoint_id}
    remote.print_pages(["threads", thread_id, "effects"], "effects", page, _EFFECTS, query=query)


@effects_group.command("show")
@_one_effect
@as_subject
def effects_show(*, effect: _Named, remote: Remote) -> None:
    """Show an effect with its arguments and its result."""
    remote.print_record(effect.show(remote))


@effects_group.command("resolve")
@_one_effect
@click.option("--happened/--did-not-happen", default=None, help="Whether it happened; one of both is to be said.")
@click.option("--result", metavar="JSON", help="What it gave, if that is known.")
@yes_option
@as_subject
def effects_resolve(
    *, effect: _Named, happened: bool | None, result: str | None, assume_yes: bool, remote: Remote
) -> None:
    """Say of an effect of unknown outcome whether it happened.

    This needs approval:decide, and another key than the one that started it. What did not happen is done by the next
    run.
    """
    if happened is None:
        raise click.UsageError("Say --happened or --did-not-happen.")
    body: dict[str, Any] = {"happened": happened, "namespace": effect.namespace}
    if result is not None:
        try:
            body["result"] = json.loads(result)
        except ValueError:
            raise click.UsageError("--result is no JSON.") from None
    shown = effect.show(remote)
    body |= {"execution": shown["execution"], "attempt": shown["attempt"]}
    said = "happened" if happened else "did not happen, so that it may be done again"
    question = f"Say that {render.safe(shown['tool'])}, execution {shown['execution']}, {said}?"
    confirm(question, assume_yes)
    remote.print_record(remote.call("POST", [*effect.path, "resolve"], body=body))


@effects_group.command("unknown")
@page_options
@as_subject
def effects_unknown(*, page: Page, remote: Remote) -> None:
    """List effects of which nobody knows whether they happened.

    Without --subject, a service key with tenant:admin lists those of the whole tenant.
    """
    remote.print_pages(["unknown-effects"], "effects", page, _UNKNOWN)


COMMANDS = (effects_group,)
