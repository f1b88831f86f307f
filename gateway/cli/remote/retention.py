"""Retention over HTTP: `retention get|set|preview|ceilings`.

`set` changes what is named and leaves the rest as it is; ``none`` takes back what was said. `preview` asks the gateway
page after page what a round would do, by what is said or by what the options would make of it, and adds up; how far it
is goes to stderr.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import rich_click as click

from gateway.cli import render
from gateway.cli.opening import as_operator, as_tenant
from gateway.cli.parameters import STATUSES, json_option, subject_option, url_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

Command = TypeVar("Command", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d{1,9})([smhdwy]?)", re.ASCII)
_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_PAGE_THREADS = 500
_THINNING = ("every", "keep_first", "keep_last", "keep_statuses")
_TIMES = ("updated_at", "at")


class Period(click.ParamType[Any]):
    """A period such as ``90d``, ``12h``, ``2y`` or a number of seconds, or ``none``."""

    name = "period"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["none"]:
        """Return the seconds that ``value`` names, or ``none``."""
        if isinstance(value, int):
            return value
        text = value.strip().lower()
        if text == "none":
            return "none"
        found = _DURATION.fullmatch(text)
        if found is None:
            self.fail(f"{value!r} is no period such as 90d, 12h or 2y, nor none", param, ctx)
        return int(found[1]) * _UNIT_SECONDS[found[2]]


class Count(click.ParamType[Any]):
    """A whole number, or ``none``."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["none"]:
        """Return the number that ``value`` names, or ``none``."""
        if isinstance(value, int):
            return value
        text = value.strip().lower()
        if text == "none":
            return "none"
        if not text.isdecimal():
            self.fail(f"{value!r} is no whole number, nor none", param, ctx)
        return int(text)


_CAPPED = (
    click.option("--idle-ttl", "idle_ttl_seconds", type=Period(), help="Since the last write: 90d, 12h, 2y, or none."),
    click.option("--absolute-ttl", "absolute_ttl_seconds", type=Period(), help="Since the thread was made, or none."),
    click.option("--done-ttl", "done_ttl_seconds", type=Period(), help="Since it was done, or none."),
    click.option(
        "--checkpoints-max", type=Count(), help="Thin down to so many when there are a quarter more, or none."
    ),
    click.option(
        "--pending-writes",
        "pending_writes_seconds",
        type=Period(),
        help="How long pending writes that nobody resumes from stay, or none.",
    ),
    click.option("--archive-ttl", "archive_ttl_seconds", type=Period(), help="How long archives stay, or none."),
)
_MORE = (
    click.option(
        "--on-expiry",
        type=click.Choice(("archive", "delete", "none")),
        help="What happens when a time is over.  [default: archive]",
    ),
    click.option("--thin-every", "every", type=Count(), help="Thinning keeps steps that are a multiple, or none."),
    click.option("--keep-first", type=Count(), help="Thinning keeps so many of the oldest."),
    click.option("--keep-last", type=Count(), help="Thinning keeps so many of the newest."),
    click.option(
        "--keep-status",
        "keep_statuses",
        multiple=True,
        type=click.Choice(STATUSES),
        help="Thinning keeps checkpoints with this status; repeatable.",
    ),
    click.option("--archive-class", "archive_storage_class", metavar="CLASS", help="Such as GLACIER_IR, or none."),
)
_hold_option = click.option(
    "--legal-hold/--no-legal-hold", default=None, help="Keep everything, whatever else is said; or lift the hold."
)
_agent_option = click.option("--agent", metavar="NAME", help="Only the threads of this agent.")
_thread_option = click.option("--thread", "thread_id", metavar="ID", help="Only this thread of the subject.")


def _with(options: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def _whose(agent: str | None, thread_id: str | None) -> list[str]:
    if agent is not None and thread_id is not None:
        raise click.UsageError("A policy is an agent's or a thread's: name one of --agent and --thread.")
    return ["retention"] if thread_id is None else ["threads", thread_id, "retention"]


def _changed(policy: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A policy with what was named on the command line instead of what it said."""
    said = {name: value for name, value in policy.items() if value is not None}
    thinning = dict(said.pop("thinning", None) or {})
    for name, value in options.items():
        if value is None or value == ():
            continue
        target = thinning if name in _THINNING else said
        if value == "none":
            target.pop(name, None)
        else:
            target[name] = list(value) if isinstance(value, tuple) else value
    # A bound of zero says nothing.
    if any(thinning.values()):
        said["thinning"] = thinning
    return said


def _period(seconds: int) -> str:
    for unit in ("d", "h", "m"):
        if seconds % _UNIT_SECONDS[unit] == 0:
            return f"{seconds // _UNIT_SECONDS[unit]:,}{unit}"
    return f"{seconds:,}s"


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in _TIMES:
        return render.moment(value)
    return _period(value) if name.endswith("_seconds") else render.cell(value)


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    """Print what is said at one level beside what that comes to."""
    if as_json:
        render.emit_json(found)
        return
    said, holds = found["policy"], found["effective"] or dict.fromkeys(found["policy"])
    rows = [[name, _shown(name, said.get(name)), _shown(name, value)] for name, value in holds.items()]
    render.table(["Retention", "Said here", "In effect"], rows, empty="")
    for damaged in found["damaged"] if isinstance(found["damaged"], list) else []:
        whose = damaged["level"] if damaged["agent"] is None else f"agent {render.safe(damaged['agent'])}"
        render.say(f"Damaged, and protecting what it could hold: the policy of {whose}")
    if found["effective"] is None:
        render.say("Nothing is removed here until it is said again: all of it, with --legal-hold or --no-legal-hold.")
    if found.get("agents"):
        render.say(f"Agents with a policy of their own: {', '.join(map(render.safe, found['agents']))}")
    if step := found.get("next"):
        due = f"due {render.moment(step['at'])}"
        if datetime.fromisoformat(step["at"]) <= datetime.now(UTC):
            due = (
                f"due since {render.moment(step['at'])}: the next round does it; stateroom retention run begins it now"
            )
        render.say(f"Next: {step['action']} ({step['reason']}), {due}")
    ceilings = {name: value for name, value in (found.get("ceilings") or {}).items() if value is not None}
    if ceilings:
        shown = ", ".join(f"{name} {_shown(name, value)}" for name, value in ceilings.items())
        render.say(f"The operator allows at most: {shown}")


@click.group("retention")
def retention_group() -> None:
    """How long threads are kept: policies of a tenant, an agent or a thread, and what they would do."""


@retention_group.command("get")
@_agent_option
@_thread_option
@subject_option
@url_option
@json_option
def retention_get(
    *, agent: str | None, thread_id: str | None, subject: str | None, url: str | None, as_json: bool
) -> None:
    """Show what is said and what holds: for the tenant, an agent or a thread."""
    path = _whose(agent, thread_id)
    with as_tenant(url, subject) as connection:
        found = connection.call("GET", path, query={"agent": agent} if agent is not None else None)
    _show(found, as_json=as_json)


@retention_group.command("set")
@_agent_option
@_thread_option
@_with(_CAPPED)
@_with(_MORE)
@_hold_option
@subject_option
@url_option
@json_option
def retention_set(
    *,
    agent: str | None,
    thread_id: str | None,
    subject: str | None,
    url: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change what is named of the policy of the tenant, an agent or a thread; `none` takes it back."""
    path = _whose(agent, thread_id)
    if all(value is None or value == () for value in options.values()):
        raise click.UsageError("Name what to change, such as --idle-ttl 90d.")
    query = {"agent": agent} if agent is not None else None
    with as_tenant(url, subject) as connection:
        before = connection.call("GET", path, query=query)["policy"]
        before.pop("legal_hold", None)  # it stays unless it is named
        found = connection.call("PUT", path, query=query, body=_changed(before, options))
    _show(found, as_json=as_json)


def _pages(connection: "Connection", query: dict[str, str | int | None]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = connection.call("GET", ["retention", "preview"], query={**query, "cursor": cursor})
        yield page
        cursor = page["next_cursor"]
        if cursor is None:
            return


@retention_group.command("run")
@url_option
@json_option
def retention_run(*, url: str | None, as_json: bool) -> None:
    """Begin the tenant's round as soon as a process is free, instead of when it is due; `preview` says what it will do.

    It goes on when the command has ended; `stateroom jobs` shows how far it is.
    """
    with as_tenant(url, None) as connection:
        found = connection.call("POST", ["retention", "round"])
    if as_json:
        render.emit_json(found)
    elif found["state"] == "none":
        render.say("Nobody said how long threads are kept: there is nothing to do. See: stateroom retention set")
    else:
        render.say("The round begins as soon as a process is free.")


@retention_group.command("preview")
@_agent_option
@_with(_CAPPED)
@_with(_MORE)
@url_option
@json_option
def retention_preview(*, agent: str | None, url: str | None, as_json: bool, **options: Any) -> None:
    """Show what would happen now, to how many threads and bytes; with options, as if `set` had been called with them.

    Nothing is changed.
    """
    drafts = any(value is not None and value != () for value in options.values())
    if agent is not None and not drafts:
        raise click.UsageError("--agent says whose policy the options would change: name one.")
    query: dict[str, str | int | None] = {"limit": _PAGE_THREADS}
    totals: dict[str, dict[str, int]] = {}
    threads = held = damaged = 0
    with as_tenant(url) as connection:
        if drafts:
            said = connection.call("GET", ["retention"], query={"agent": agent} if agent is not None else None)
            policy = said["policy"]
            policy.pop("legal_hold", None)
            query |= {"agent": agent, "draft": json.dumps(_changed(policy, options))}
        for page in _pages(connection, query):
            threads, held, damaged = threads + page["threads"], held + page["held"], damaged + page["damaged"]
            for found in page["actions"]:
                total = totals.setdefault(found.pop("action"), dict.fromkeys(found, 0))
                for name, number in found.items():
                    total[name] += number
            if page["next_cursor"] is not None:
                render.say(f"{threads:,} threads looked at")
    if as_json:
        render.emit_json({"threads": threads, "held": held, "damaged": damaged, "actions": totals})
        return
    rows = [
        [
            action,
            f"{total['threads']:,}",
            render.byte_count(total["bytes"]),
            f"{total['checkpoints']:,}" if total["checkpoints"] else "",
            f"{total['pending_writes']:,}" if total["pending_writes"] else "",
        ]
        for action, total in sorted(totals.items())
    ]
    titles = ["Would", "Threads", "Bytes", "Checkpoints", "Pending writes"]
    render.table(titles, rows, empty="Nothing would happen.")
    damaged_kept = f"; {damaged:,} are left alone because a policy is damaged" if damaged else ""
    kept = f"; a legal hold keeps {held:,} more from it" if held else ""
    render.say(f"{threads:,} threads looked at{kept}{damaged_kept}.")


@retention_group.command("ceilings")
@click.argument("tenant_id")
@_with(_CAPPED)
@url_option
@json_option
def retention_ceilings(*, tenant_id: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Show or change what a tenant may say at most, as the operator (STATEROOM_OPERATOR_KEY); `none` lifts it."""
    path = ["admin", "tenants", tenant_id, "retention-ceilings"]
    with as_operator(url) as connection:
        found = connection.call("GET", path)
        if any(value is not None for value in options.values()):
            found = connection.call("PUT", path, body=_changed(found["ceilings"], options))
    if as_json:
        render.emit_json(found)
        return
    rows = [[name, _shown(name, value)] for name, value in found["ceilings"].items() if value is not None]
    render.table(["At most", "Ceiling"], rows, empty="The operator sets no ceilings: the tenant may say what it likes.")


COMMANDS = (retention_group,)
