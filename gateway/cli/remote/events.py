"""Events over HTTP: `events`, which prints them, and `events settings`, `on` and `off`."""

from typing import TYPE_CHECKING, Any

import rich_click as click
from click.core import ParameterSource

from gateway.cli import render
from gateway.cli.calling import Remote, as_tenant
from gateway.cli.parameters import gathered, json_option, subject_option, url_option

if TYPE_CHECKING:
    import stateroom

# A listener asks with 25 seconds of patience, and goes on where a gateway went away: this is how long one may be away
# before anything was heard.
_TOTAL_SECONDS = 30.0


def _line(event: "stateroom.Event") -> str:
    """An event for people: when, what, whose, and about what."""
    about = {
        "subject": event.subject_id,
        "thread": event.thread_id,
        "namespace": event.namespace,
        "checkpoint": event.checkpoint_id,
        "status": event.status,
        "agent": event.agent,
        "run": event.run_id,
        "job": event.job_id,
        "key": event.key_id,
        "tag": event.subject_tag,
    }
    said = " ".join(f"{name}={text}" for name, text in about.items() if text)
    return f"{render.moment(event.at.isoformat())}  {event.type:<18} {said}"


def _refuse_options(context: click.Context, subcommand: str) -> None:
    """Refuse what was said before a subcommand, which would not hear of it.

    Raises:
        UsageError: there is something.
    """
    for option in context.command.params:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{option.opts[0]} says nothing before {subcommand}; leave it out, or put it behind."
            )


@click.group("events", invoke_without_command=True)
@click.option("--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("--since", metavar="CURSOR", help="Begin behind the event that has this cursor (--json shows it).")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only events of this type; repeatable.")
@click.option("--thread", metavar="ID", help="Only events of this thread.")
@gathered("remote", Remote, subject_option, url_option, json_option)
@click.pass_context
def events_group(
    context: click.Context,
    *,
    follow: bool,
    since: str | None,
    types: tuple[str, ...],
    thread: str | None,
    remote: Remote,
) -> None:
    """Print what happens to threads, jobs and keys: of the subject, or of the whole tenant.

    Without --subject, a service key with event:read or tenant:admin hears the whole tenant.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context, context.invoked_subcommand)
        return
    if not follow and since is None:
        raise click.UsageError("say --follow, or since when: --since CURSOR.")
    with remote.connect(total_seconds=_TOTAL_SECONDS) as connection:
        for event in connection.events(since=since, types=types, thread=thread, follow=follow):
            if remote.as_json:
                import msgspec

                render.emit_json(msgspec.to_builtins(event))
            else:
                render.line(_line(event))


def _show(remote: Remote, settings: dict[str, Any]) -> None:
    """Print whether the tenant has events."""
    if remote.as_json:
        render.emit_json(settings)
        return
    render.record({"Events": "on" if settings["on"] else "off", "Since": render.moment(settings["on_since"])})
    if settings["damaged"]:
        render.say("Damaged, until it is said again: what was said is not counted, and nothing is told.")


@events_group.command("settings")
@as_tenant
def events_settings(*, remote: Remote) -> None:
    """Show whether the tenant's events are told, and since when none is left out."""
    _show(remote, remote.call("GET", ["events", "settings"]))


@events_group.command("on")
@as_tenant
def events_on(*, remote: Remote) -> None:
    """Switch the tenant's events on; they begin some seconds later."""
    _show(remote, remote.call("PUT", ["events", "settings"], body={"on": True}))


@events_group.command("off")
@as_tenant
def events_off(*, remote: Remote) -> None:
    """Switch the tenant's events off; what was told is kept for its days."""
    _show(remote, remote.call("PUT", ["events", "settings"], body={"on": False}))


COMMANDS = (events_group,)
